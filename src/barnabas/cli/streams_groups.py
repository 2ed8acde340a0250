"""`barnabas streams-groups`: kafka-streams-groups.sh."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.cli import _reset_offsets
from barnabas.cli._command import UsageError
from barnabas.cli._output import say, say_json, table
from barnabas.cli._typed_groups import ONE_VIEW, chosen, only_one, print_list, print_new_offsets, print_state
from barnabas.cli.consumer_groups import MISSING, connect, delete_offsets_of, end_offsets
from barnabas.cli.tool import CONNECTION, JSON, Option, Tool, at_least_one, at_most_one, exactly_one, excludes
from barnabas.client.admin import streams_groups as admin
from barnabas.client.admin.groups import CommittedOffset, commit_offsets, committed_offsets, delete_group
from barnabas.client.admin.streams_groups import StreamsGroupDescription, StreamsTasks, TasksBySubtopology
from barnabas.client.admin.topics import delete_topics
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import check

_STATES: Final = ("Empty", "NotReady", "Stable", "Assigning", "Reconciling", "Dead")

TOOL = Tool(
    note="Offsets are reset while the application is stopped.",
    kafka="kafka-streams-groups.sh",
    connect=connect,
    options=(
        *CONNECTION,
        Option("--timeout", "How long to wait for an answer.", int, metavar="MS", default=30_000),
        Option("--group", "The streams group to act on; may be repeated.", many=True),
        Option("--all-groups", "Apply to all streams groups.", bool),
        Option("--input-topic", "Topics to reset or delete offsets of.", metavar="TOPIC[:0,1,…]", many=True),
        Option("--all-input-topics", "All topics that the application reads.", bool),
        Option("--members", "Show the members and their tasks.", bool),
        Option("--offsets", "Show how far the group is (the default).", bool),
        Option("--state", "Describe: show the state. List: show states, or only these.", metavar="STATE,…", alone=""),
        Option("--verbose", "Show more.", bool),
        Option("--to-offset", "Begin at this offset.", int),
        Option("--to-earliest", "Begin at the first record.", bool),
        Option("--to-latest", "Begin at the end.", bool),
        Option("--to-current", "Begin at the committed offset.", bool),
        Option("--to-datetime", "Begin at a point in time.", metavar="YYYY-MM-DDTHH:mm:SS.sss"),
        Option("--by-duration", "Begin at a time ago.", metavar="PnDTnHnMnS"),
        Option("--shift-by", "Move committed offsets by this number.", int),
        Option("--dry-run", "Only show what would be reset (the default).", bool),
        Option("--execute", "Reset the offsets.", bool),
        Option("--delete-all-internal-topics", "Delete the repartition and changelog topics, too.", bool),
        JSON,
    ),
    rules=(excludes("--group", "--all-groups", says='Option "[group]" can\'t be used with option "[all-groups]"'),),
    examples=(
        "barnabas streams-groups --list",
        "barnabas streams-groups --describe --group word-count --members",
        "barnabas streams-groups --reset-offsets --group word-count --all-input-topics --to-earliest --execute",
    ),
)
_SOME_GROUPS: Final = at_least_one(
    "--group", "--all-groups", says="Name streams groups with --group, or use --all-groups."
)
_SOME_TOPICS: Final = exactly_one(
    "--input-topic", "--all-input-topics", says="Use either --input-topic or --all-input-topics."
)


@TOOL.action("--list", "List streams groups.")
async def _list(cluster: AsyncClient, state: str | None, json: bool) -> None:
    await print_list(cluster, admin.STREAMS, _STATES, state, as_json=json)


# -- describe -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far the group is in one partition."""

    committed: CommittedOffset | None
    end: int | None

    @property
    def lag(self) -> int | None:
        if self.end is None:
            return None
        return self.end - (0 if self.committed is None else self.committed.offset)


@TOOL.action(
    "--describe",
    "Describe streams groups.",
    rules=(
        ONE_VIEW,
        _SOME_GROUPS,
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
    document: list[dict[str, object]] = []
    all_exist = True
    for name in await chosen(cluster, admin.STREAMS, group, all_groups):
        description = await admin.describe_streams_group(cluster, name)
        all_exist &= not description.missing
        if json:
            document.append(_as_json(description, await _progress(cluster, description)))
        elif description.missing:
            say(f"\nError: Streams group '{name}' does not exist.")
        elif members:
            _print_members(description, verbose)
        elif state is not None and not offsets:
            _announce(description)
            print_state(cluster, description, verbose)
        else:
            _print_offsets(description, await _progress(cluster, description), verbose)
    if json:
        say_json(document)
    return int(not all_exist)


async def _progress(cluster: AsyncClient, description: StreamsGroupDescription) -> dict[TopicPartition, _Progress]:
    """Return the partitions that have a committed offset, and the others that the application reads."""
    if description.missing:
        return {}
    committed = await committed_offsets(cluster, description.group_id)
    known = await cluster.topics(description.inputs)
    read = {TopicPartition(name, index) for name, topic in known.items() for index in range(len(topic.partitions))}
    ends = await end_offsets(cluster, read | committed.keys())
    return {where: _Progress(committed.get(where), ends.get(where)) for where in sorted(read | committed.keys())}


def _announce(description: StreamsGroupDescription) -> None:
    say()
    sys.stdout.flush()
    if not description.members:
        sys.stderr.write(f"Streams group '{description.group_id}' has no active members.\n")
    elif description.state != "Stable":
        sys.stderr.write(f"Warning: Streams group '{description.group_id}' is {description.state}.\n")


def _shown(number: int | None) -> str:
    return MISSING if number is None else str(number)


def _print_offsets(
    description: StreamsGroupDescription, progress: Mapping[TopicPartition, _Progress], verbose: bool
) -> None:
    _announce(description)
    rows: list[tuple[str, ...]] = []
    for where, each in progress.items():
        details: tuple[str, ...] = ()
        if verbose:
            at = each.committed
            epoch = None if at is None or at.leader_epoch < 0 else at.leader_epoch
            details = (_shown(None if at is None else at.offset), _shown(epoch), _shown(each.end))
        rows.append((description.group_id, where.topic, str(where.partition), *details, _shown(each.lag)))
    names = ("CURRENT-OFFSET", "LEADER-EPOCH", "LOG-END-OFFSET") if verbose else ()
    if rows:
        table(("GROUP", "TOPIC", "PARTITION", *names, "OFFSET-LAG"), rows)


def _print_members(description: StreamsGroupDescription, verbose: bool) -> None:
    _announce(description)
    rows: list[tuple[str, ...]] = []
    for member in description.members:
        tasks = _tasks_text(member.tasks)
        if verbose:
            target = _tasks_text(member.target)
            epochs = (str(description.assignment_epoch), str(member.topology_epoch), str(member.epoch))
            named = (member.member_id, member.process_id, member.client_id)
            rows.append((description.group_id, *epochs, *named, tasks, target))
        else:
            rows.append((description.group_id, member.member_id, member.process_id, member.client_id, tasks))
    names = ("MEMBER", "PROCESS", "CLIENT-ID", "ASSIGNMENTS")
    if rows and verbose:
        epochs = ("TARGET-ASSIGNMENT-EPOCH", "TOPOLOGY-EPOCH", "MEMBER-EPOCH")
        table(("GROUP", *epochs, *names, "TARGET-ASSIGNMENTS"), rows)
    elif rows:
        table(("GROUP", *names), rows)


def _tasks_text(tasks: StreamsTasks) -> str:
    kinds = (("ACTIVE", tasks.active), ("STANDBY", tasks.standby), ("WARMUP", tasks.warmup))
    texts = [f"{kind}: {_partitions_text(some)}" for kind, some in kinds if some]
    return "; ".join(texts) or MISSING


def _partitions_text(tasks: TasksBySubtopology) -> str:
    return ", ".join(f"{subtopology}:[{','.join(map(str, numbers))}]" for subtopology, numbers in tasks)


def _as_json(description: StreamsGroupDescription, progress: Mapping[TopicPartition, _Progress]) -> dict[str, object]:
    def tasks(some: StreamsTasks) -> dict[str, object]:
        return {"active": dict(some.active), "standby": dict(some.standby), "warmup": dict(some.warmup)}

    return {
        "group": description.group_id,
        "exists": not description.missing,
        "state": description.state,
        "coordinator": description.coordinator_id,
        "epoch": description.epoch,
        "topologyEpoch": description.topology_epoch,
        "subtopologies": [
            {
                "id": each.subtopology_id,
                "sourceTopics": each.source_topics,
                "repartitionSourceTopics": each.repartition_sources,
                "repartitionSinkTopics": each.repartition_sinks,
                "changelogTopics": each.changelogs,
            }
            for each in description.subtopologies
        ],
        "members": [
            {
                "memberId": member.member_id,
                "processId": member.process_id,
                "clientId": member.client_id,
                "host": member.host,
                "epoch": member.epoch,
                "tasks": tasks(member.tasks),
                "targetTasks": tasks(member.target),
            }
            for member in description.members
        ],
        "offsets": [
            {
                "topic": where.topic,
                "partition": where.partition,
                "currentOffset": None if each.committed is None else each.committed.offset,
                "logEndOffset": each.end,
                "lag": each.lag,
            }
            for where, each in progress.items()
        ],
    }


# -- changes ------------------------------------------------------------------------------------------------------------


@TOOL.action("--delete", "Delete streams groups that have no members.", rules=(_SOME_GROUPS,))
async def _delete(
    cluster: AsyncClient, group: Sequence[str], all_groups: bool, delete_all_internal_topics: bool
) -> int:
    failed: dict[str, str] = {}
    deleted: list[str] = []
    for name in await chosen(cluster, admin.STREAMS, group, all_groups):
        # DeleteGroups deletes groups of every type.
        description = await admin.describe_streams_group(cluster, name)
        code = ErrorCode.GROUP_ID_NOT_FOUND if description.missing else await delete_group(cluster, name)
        if code is not ErrorCode.NONE:
            failed[name] = code.name
            continue
        deleted.append(name)
        if delete_all_internal_topics:
            failed |= await _delete_internal_topics(cluster, description)
    names = ", ".join(f"'{name}'" for name in deleted)
    if not failed:
        say(f"Deletion of requested streams groups ({names}) was successful.")
        return 0
    say("\nError: Deletion of some streams groups failed:")
    for name, reason in failed.items():
        say(f"* '{name}' could not be deleted due to: {reason}")
    if deleted:
        say(f"\nThese streams groups were deleted successfully: {names}")
    return 1


async def _delete_internal_topics(cluster: AsyncClient, description: StreamsGroupDescription) -> dict[str, str]:
    """Delete the topics that exist. Returns the reasons for those that could not be deleted."""
    known = await cluster.topics(description.internal_topics)
    existing = sorted(name for name, topic in known.items() if not topic.error)
    outcome = await delete_topics(cluster, existing) if existing else {}
    return {name: code.name for name, code in outcome.items() if code is not ErrorCode.NONE}


@TOOL.action("--delete-offsets", "Delete offsets of a streams group.", needs=("--group",), rules=(_SOME_TOPICS,))
async def _delete_offsets(
    cluster: AsyncClient, group: Sequence[str], input_topic: Sequence[str], all_input_topics: bool
) -> int:
    name = only_one(group, admin.STREAMS)
    description = await _existing(cluster, name)
    return await delete_offsets_of(cluster, name, sorted(description.inputs) if all_input_topics else input_topic)


@TOOL.action(
    "--reset-offsets",
    "Let a streams group without members begin elsewhere.",
    needs=("--group",),
    rules=(at_most_one("--execute", "--dry-run"), _SOME_TOPICS),
)
async def _reset(
    cluster: AsyncClient,
    group: Sequence[str],
    input_topic: Sequence[str],
    all_input_topics: bool,
    to_offset: int | None,
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    to_datetime: str | None,
    by_duration: str | None,
    shift_by: int | None,
    dry_run: bool,
    execute: bool,
    delete_all_internal_topics: bool,
    json: bool,
) -> int:
    rule = _reset_offsets.Rule.of(
        to_offset=to_offset,
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_current=to_current,
        to_datetime=to_datetime,
        by_duration=by_duration,
        shift_by=shift_by,
    )
    if delete_all_internal_topics and not execute:
        raise UsageError("--delete-all-internal-topics needs --execute")
    name = only_one(group, admin.STREAMS)
    description = await _existing(cluster, name)
    if description.members:
        raise UsageError(f"Streams group '{name}' is not empty: stop the application first")
    if not execute and not dry_run:
        sys.stderr.write("WARN: No action will be performed as the --execute option is missing.\n")
    # Of the topics that the user made: an application writes its repartition topics again.
    topics = sorted(description.source_topics) if all_input_topics else input_topic
    partitions, unknown = await _reset_offsets.expand_topics(cluster, topics)
    if unknown:
        raise UsageError(f"topic {', '.join(unknown)} does not exist")
    committed = await committed_offsets(cluster, name)
    plan = await _reset_offsets.apply(cluster, rule, partitions, committed)
    failed: dict[str, str] = {}
    if execute:
        outcome = await commit_offsets(cluster, name, {where: CommittedOffset(at, "") for where, at in plan.items()})
        for where, code in outcome.items():
            check(code, f"offset of {where}")
        if delete_all_internal_topics:
            failed = await _delete_internal_topics(cluster, description)
    print_new_offsets(name, plan, as_json=json)
    for topic, reason in failed.items():
        sys.stderr.write(f"Error: topic {topic} could not be deleted: {reason}\n")
    return int(bool(failed))


async def _existing(cluster: AsyncClient, name: str) -> StreamsGroupDescription:
    description = await admin.describe_streams_group(cluster, name)
    if description.missing:
        raise UsageError(f"Streams group '{name}' does not exist.")
    return description
