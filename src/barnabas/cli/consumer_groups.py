"""`barnabas consumer-groups`: kafka-consumer-groups.sh."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import LATEST
from barnabas.cli import _reset_offsets
from barnabas.cli._command import UsageError
from barnabas.cli._connection import options
from barnabas.cli._output import say, say_json, table, write
from barnabas.cli.tool import CONNECTION, JSON, Option, Rule, Tool, at_least_one, at_most_one, excludes
from barnabas.client.admin import groups as admin
from barnabas.client.admin.groups import REBALANCING, GroupDescription
from barnabas.client.admin.partitions import list_offsets
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig

MISSING: Final = "-"
_STATES: Final = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Empty",
    "Assigning",
    "Reconciling",
    "NotReady",
)
_TYPES: Final = ("Consumer", "Classic", "Share", "Streams")
_ONE_GROUP: Final = "Option [delete-offsets] takes the following options: [group], [topic]"


def connect(bootstrap_server: str | None, command_config: str | None, timeout: int) -> ClientConfig:
    patience = {"default.api.timeout.ms": str(timeout), "request.timeout.ms": str(timeout)}
    return options(bootstrap_server, command_config, patience)


def _some_groups(action: str) -> Rule:
    says = f"Option [{action}] takes one of these options: [group], [all-groups]"
    return at_least_one("--group", "--all-groups", says=says)


TOOL = Tool(
    note="Both kinds of group; `--members --verbose` names the topics, as Kafka did before 3.8.",
    kafka="kafka-consumer-groups.sh",
    connect=connect,
    options=(
        *CONNECTION,
        Option("--timeout", "How long to wait for an answer.", int, metavar="MS", default=5000),
        Option("--group", "The group to act on; may be repeated.", many=True),
        Option("--all-groups", "Apply to all groups.", bool),
        Option(
            "--topic",
            "Topics (and partitions) to reset or delete offsets of.",
            metavar="TOPIC[:0,1,…]",
            many=True,
            instead="--delete-offsets deletes offsets of topics",
        ),
        Option("--all-topics", "All topics of a group.", bool),
        Option("--members", "Show the members.", bool),
        Option("--offsets", "Show offsets and lag (the default).", bool),
        Option("--state", "Describe: show the state. List: only these states.", metavar="STATE,…", alone=""),
        Option("--type", "Show types, or only these.", metavar="TYPE,…", alone=""),
        Option("--verbose", "Show more.", bool),
        Option("--dry-run", "Only show what would be reset (the default).", bool),
        Option("--execute", "Reset the offsets.", bool),
        Option("--export", "Print the reset plan as CSV.", bool),
        Option("--to-offset", "Reset to this offset.", int),
        Option("--from-file", "Reset to the offsets in a file.", metavar="CSV"),
        Option("--to-datetime", "Reset to a point in time.", metavar="YYYY-MM-DDTHH:mm:SS.sss"),
        Option("--by-duration", "Reset to this long ago.", metavar="PnDTnHnMnS"),
        Option("--to-earliest", "Reset to the first offset.", bool),
        Option("--to-latest", "Reset to the end.", bool),
        Option("--to-current", "Reset to the current offset.", bool),
        Option("--shift-by", "Move the current offset by n.", int),
        JSON,
    ),
    rules=(excludes("--group", "--all-groups", says='Option "[group]" can\'t be used with option "[all-groups]"'),),
    examples=(
        "barnabas consumer-groups --list",
        "barnabas consumer-groups --describe --group billing",
        "barnabas consumer-groups --reset-offsets --group billing --topic orders --to-earliest --execute",
    ),
)


# -- list ---------------------------------------------------------------------------------------------------------------


def parse_names(text: str, valid: Sequence[str], what: str) -> list[str]:
    """Parse states or types; as in Kafka, their case does not matter."""
    by_lower = {name.lower().replace("_", ""): name for name in valid}
    names = []
    for part in text.split(","):
        name = by_lower.get(part.strip().lower().replace("_", ""))
        if name is None:
            raise UsageError(f"Invalid {what} list '{text}'. Valid {what}s are: {', '.join(valid)}")
        names.append(name)
    return names


@TOOL.action("--list", "List all groups.")
async def _list(cluster: AsyncClient, state: str | None, type_: str | None, json: bool) -> None:
    listed = await admin.list_groups(
        cluster,
        states=parse_names(state, _STATES, "state") if state else (),
        types=parse_names(type_, _TYPES, "type") if type_ else (),
    )
    # As in Kafka: groups of other protocols (Connect's) are not consumer groups.
    listed = [entry for entry in listed if entry.protocol_type in ("consumer", "")]
    if json:
        say_json([{"group": entry.group_id, "type": entry.type, "state": entry.state} for entry in listed])
        return
    if state is None and type_ is None:
        for entry in listed:
            say(entry.group_id)
        return
    headers = ["GROUP", *(["TYPE"] if type_ is not None else []), *(["STATE"] if state is not None else [])]
    rows = [
        [
            entry.group_id,
            *([entry.type] if type_ is not None else []),
            *([entry.state or "Unknown"] if state is not None else []),
        ]
        for entry in listed
    ]
    widths = [max([15, *(len(row[0]) for row in rows)]) + 10, *([20] * (len(headers) - 1))]

    def plain() -> None:
        for row in [headers, *rows]:
            say(" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))

    table(headers, rows, plain)


# -- describe -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """One partition of a group, and the member that has it."""

    group: str
    partition: TopicPartition
    offset: int | None
    end: int | None
    member_id: str = MISSING
    host: str = MISSING
    client_id: str = MISSING

    @property
    def lag(self) -> int | None:
        return self.end - self.offset if self.offset is not None and self.end is not None else None

    def cells(self) -> list[str]:
        numbers = [MISSING if number is None else str(number) for number in (self.offset, self.end, self.lag)]
        topic, index = self.partition
        return [self.group, topic, str(index), *numbers, self.member_id, self.host, self.client_id]


async def _chosen(cluster: AsyncClient, groups: Sequence[str], all_groups: bool) -> list[str]:
    if not all_groups:
        return list(groups)
    return [entry.group_id for entry in await admin.list_groups(cluster) if entry.protocol_type in ("consumer", "")]


@TOOL.action(
    "--describe",
    "Describe groups and their lag.",
    rules=(
        at_most_one(
            "--members",
            "--offsets",
            "--state",
            says="Option [describe] takes at most one of these options: [members], [offsets], [state]",
        ),
        _some_groups("describe"),
    ),
)
async def _describe(
    cluster: AsyncClient,
    group: Sequence[str],
    all_groups: bool,
    members: bool,
    offsets: bool,
    state: str | None,
    verbose: bool,
    json: bool,
) -> int:
    if state:
        raise UsageError("Option [describe] does not take a value for [state]")
    shows_offsets = offsets or (not members and state is None)
    document: list[dict[str, object]] = []
    all_exist = True
    for name in sorted(await _chosen(cluster, group, all_groups)):
        description = await admin.describe_group(cluster, name)
        all_exist &= not description.missing
        if json:
            document.append(await _as_json(cluster, description))
            continue
        if shows_offsets:
            rows = await offset_rows(cluster, description)
            if _announce(description) and rows:
                _print_offsets(rows)
        elif members:
            if _announce(description):
                _print_members(description, verbose)
        elif _announce(description):
            _print_state(cluster, description)
    if json:
        say_json(document)
    return int(not all_exist)


def _announce(description: GroupDescription) -> bool:
    """Print the lines before a table. Return False if there is no table to print."""
    name, state = description.group_id, description.state
    if description.missing:
        say(f"\nError: Consumer group '{name}' does not exist.")
        return False
    sys.stdout.flush()
    if state == "Empty":
        sys.stderr.write(f"\nConsumer group '{name}' has no active members.\n")
    elif state in REBALANCING:
        sys.stderr.write(f"\nWarning: Consumer group '{name}' is rebalancing.\n")
    return True


async def offset_rows(cluster: AsyncClient, description: GroupDescription) -> list[OffsetRow]:
    """Return the partitions of members, the member with the most first; then partitions with only an offset."""
    group = description.group_id
    committed = await admin.committed_offsets(cluster, group)
    assigned = {partition for member in description.members for partition in member.assignment}
    ends = await end_offsets(cluster, assigned | committed.keys())
    rows: list[OffsetRow] = []
    for member in sorted(description.members, key=lambda member: -len(member.assignment)):
        for partition in sorted(member.assignment):
            at = committed.get(partition)
            rows.append(
                OffsetRow(
                    group,
                    partition,
                    at.offset if at else None,
                    ends.get(partition),
                    member.member_id,
                    member.host,
                    member.client_id,
                )
            )
    for partition in sorted(committed.keys() - assigned):
        rows.append(OffsetRow(group, partition, committed[partition].offset, ends.get(partition)))
    return rows


async def end_offsets(cluster: AsyncClient, partitions: set[TopicPartition]) -> dict[TopicPartition, int]:
    """Return end offsets of existing partitions: a group keeps offsets of deleted topics for a while."""
    known = await cluster.topics({partition.topic for partition in partitions})
    existing = {
        partition
        for partition in partitions
        if partition.topic in known and partition.partition < len(known[partition.topic].partitions)
    }
    listed = await list_offsets(cluster, dict.fromkeys(existing, LATEST))
    return {partition: found.offset for partition, found in listed.items() if found.error is ErrorCode.NONE}


_OFFSET_HEADERS: Final = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
)


def _print_offsets(rows: Sequence[OffsetRow]) -> None:
    cells = [row.cells() for row in rows]

    def width(column: int) -> int:
        return max(15, *(len(row[column]) for row in cells))

    widths = (width(0), width(1), 10, 15, 15, 15, width(6), width(7), 0)

    def plain() -> None:
        for row in [list(_OFFSET_HEADERS), *cells]:
            write("\n" + _line(row, widths))
        say()

    table(_OFFSET_HEADERS, cells, plain)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))


def _print_members(description: GroupDescription, verbose: bool) -> None:
    if not description.members:
        return
    static = any(member.instance_id for member in description.members)
    headers = ["GROUP", "CONSUMER-ID", *(["GROUP-INSTANCE-ID"] if static else []), "HOST", "CLIENT-ID", "#PARTITIONS"]
    rows = [
        [
            description.group_id,
            member.member_id,
            *([member.instance_id or ""] if static else []),
            member.host,
            member.client_id,
            str(len(member.assignment)),
        ]
        for member in description.members
    ]
    least = [15, 15, *([17] if static else []), 15, 15]
    widths = [max([low, *(len(row[index]) for row in rows)]) for index, low in enumerate(least)] + [15]
    if verbose:
        headers.append("ASSIGNMENT")
        rows = [
            [*row, assignment_text(member.assignment)] for row, member in zip(rows, description.members, strict=True)
        ]

    def plain() -> None:
        say()
        for row in [headers, *rows]:
            say(_line(row[: len(widths)], widths) + " " + "".join(row[len(widths) :]))

    table(headers, rows, plain)


def assignment_text(partitions: Sequence[TopicPartition]) -> str:
    """Format `topic(0,1), other(2)`, as 3.9.1 prints it."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    return (
        ", ".join(f"{topic}({','.join(sorted(map(str, indexes)))})" for topic, indexes in sorted(by_topic.items()))
        or MISSING
    )


def _print_state(cluster: AsyncClient, description: GroupDescription) -> None:
    broker = cluster.image.brokers.get(description.coordinator_id)
    where = f"{broker.host}:{broker.port}  ({broker.id})" if broker else MISSING
    headers = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"]
    row = [description.group_id, where, description.assignor, description.state, str(len(description.members))]
    widths = (max(25, len(where)), 25, 20, 15, 0)

    def plain() -> None:
        write("\n" + _line(headers, widths))
        write("\n" + _line(row, widths))
        say()

    table(headers, [row], plain)


async def _as_json(cluster: AsyncClient, description: GroupDescription) -> dict[str, object]:
    rows = [] if description.missing else await offset_rows(cluster, description)
    return {
        "group": description.group_id,
        "exists": not description.missing,
        "type": description.type,
        "state": description.state,
        "assignor": description.assignor,
        "coordinator": description.coordinator_id,
        "members": [
            {
                "memberId": member.member_id,
                "instanceId": member.instance_id,
                "clientId": member.client_id,
                "host": member.host,
                "assignment": [{"topic": topic, "partition": index} for topic, index in member.assignment],
            }
            for member in description.members
        ],
        "offsets": [
            {
                "topic": row.partition.topic,
                "partition": row.partition.partition,
                "currentOffset": row.offset,
                "logEndOffset": row.end,
                "lag": row.lag,
                "memberId": row.member_id if row.member_id != MISSING else None,
            }
            for row in rows
        ],
    }


# -- delete -------------------------------------------------------------------------------------------------------------


@TOOL.action("--delete", "Delete groups.", rules=(_some_groups("delete"),))
async def _delete(cluster: AsyncClient, group: Sequence[str], all_groups: bool) -> int:
    names = await _chosen(cluster, group, all_groups)
    outcome = {name: await admin.delete_group(cluster, name) for name in names}
    failed = {name: code for name, code in outcome.items() if code is not ErrorCode.NONE}
    deleted = [name for name in outcome if name not in failed]
    if not failed:
        say(f"Deletion of requested consumer groups ('{', '.join(deleted)}') was successful.")
        return 0
    say("\nError: Deletion of some consumer groups failed:")
    for name, code in failed.items():
        say(f"* Group '{name}' could not be deleted due to: {code.name}{_HINTS.get(code, '')}")
    if deleted:
        say(f"\nThese consumer groups were deleted successfully: '{', '.join(deleted)}'")
    return 1


_HINTS: Final = {
    ErrorCode.NON_EMPTY_GROUP: " (it has members: stop its consumers first)",
    ErrorCode.GROUP_ID_NOT_FOUND: " (there is no such group)",
}


@TOOL.action(
    "--delete-offsets",
    "Delete offsets of a group.",
    rules=(Rule(lambda given: given >= {"--group", "--topic"}, ("--group", "--topic"), _ONE_GROUP),),
)
async def _delete_offsets(cluster: AsyncClient, group: Sequence[str], topic: Sequence[str]) -> int:
    if len(group) != 1:
        raise UsageError(_ONE_GROUP)
    return await delete_offsets_of(cluster, group[0], topic)


async def delete_offsets_of(cluster: AsyncClient, group: str, topics: Sequence[str]) -> int:
    partitions, unknown = await _reset_offsets.expand_topics(cluster, topics)
    code, results = await admin.delete_offsets(cluster, group, partitions)
    statuses: dict[TopicPartition, ErrorCode] = dict.fromkeys(
        (TopicPartition(topic, -1) for topic in unknown), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ) | (results if code is ErrorCode.NONE else dict.fromkeys(partitions, code))
    worst = code or next((status for status in statuses.values() if status), ErrorCode.NONE)
    messages = {
        ErrorCode.NONE: "",
        ErrorCode.INVALID_GROUP_ID: f"'{group}' is not valid.",
        ErrorCode.GROUP_ID_NOT_FOUND: f"'{group}' does not exist.",
        ErrorCode.GROUP_AUTHORIZATION_FAILED: f"Access to '{group}' is not authorized.",
        ErrorCode.NON_EMPTY_GROUP: f"Deleting offsets of a consumer group '{group}' is forbidden if the group is not empty.",
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "Encounter some partition level error, see the follow-up details:",
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Encounter some partition level error, see the follow-up details:",
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "Encounter some partition level error, see the follow-up details:",
    }
    if worst is ErrorCode.NONE:
        say(f"Request succeed for deleting offsets with topic {', '.join(topics)} group {group}")
    else:
        say(f"\nError: {messages.get(worst, f'Encounter some unknown error: {worst.name}')}")
    widths = (30, 15, 15)
    write("\n" + _line(("TOPIC", "PARTITION", "STATUS"), widths))
    for where, status in sorted(statuses.items()):
        index = str(where.partition) if where.partition >= 0 else "Not Provided"
        text = f"Error: {status.name}" if status else "Successful"
        write("\n" + _line((where.topic, index, text), widths))
    say()
    return int(worst is not ErrorCode.NONE)


@TOOL.action("--reset-offsets", "Reset offsets of inactive groups.", rules=(_some_groups("reset-offsets"),))
def _reset(
    client: ClientConfig,
    scope: _reset_offsets.Scope,
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    from_file: str | None,
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    execute: bool,
    dry_run: bool,
    export: bool,
    json: bool,
) -> None:
    rule = _reset_offsets.Rule.of(
        to_offset=to_offset,
        shift_by=shift_by,
        to_datetime=to_datetime,
        by_duration=by_duration,
        from_file=from_file,
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_current=to_current,
    )
    _reset_offsets.reset(client, rule, scope, execute=execute, dry_run=dry_run, export=export, json=json)
