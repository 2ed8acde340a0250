"""`barnabas share-groups`: kafka-share-groups.sh."""

import sys
from collections.abc import Sequence
from typing import Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.cli import _reset_offsets
from barnabas.cli._command import UsageError
from barnabas.cli._output import say, say_json, table
from barnabas.cli._typed_groups import ONE_VIEW, chosen, only_one, print_list, print_new_offsets, print_state
from barnabas.cli.consumer_groups import MISSING, assignment_text, connect
from barnabas.cli.tool import CONNECTION, JSON, Option, Tool, at_least_one, at_most_one, exactly_one, excludes
from barnabas.client.admin import share_groups as admin
from barnabas.client.admin.groups import delete_group
from barnabas.client.admin.share_groups import ShareGroupDescription
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import check

_STATES: Final = ("Stable", "Dead", "Empty")

TOOL = Tool(
    note="Offsets are reset and deleted while a group has no members.",
    kafka="kafka-share-groups.sh",
    connect=connect,
    options=(
        *CONNECTION,
        Option("--timeout", "How long to wait for an answer.", int, metavar="MS", default=5000),
        Option("--group", "The share group to act on; may be repeated.", many=True),
        Option("--all-groups", "Apply to all share groups.", bool),
        Option("--topic", "Topics to reset or delete offsets of.", metavar="TOPIC[:0,1,…]", many=True),
        Option("--all-topics", "All topics of the group.", bool),
        Option("--members", "Show the members.", bool),
        Option("--offsets", "Show where the group reads (the default).", bool),
        Option("--state", "Describe: show the state. List: show states, or only these.", metavar="STATE,…", alone=""),
        Option("--verbose", "Show more.", bool),
        Option("--to-earliest", "Begin at the first record.", bool),
        Option("--to-latest", "Begin at the end.", bool),
        Option("--to-datetime", "Begin at a point in time.", metavar="YYYY-MM-DDTHH:mm:SS.sss"),
        Option("--dry-run", "Only show what would be reset (the default).", bool),
        Option("--execute", "Reset the offsets.", bool),
        JSON,
    ),
    rules=(excludes("--group", "--all-groups", says='Option "[group]" can\'t be used with option "[all-groups]"'),),
    examples=(
        "barnabas share-groups --list",
        "barnabas share-groups --describe --group mail --members",
        "barnabas share-groups --reset-offsets --group mail --topic orders --to-earliest --execute",
    ),
)
_SOME_GROUPS: Final = at_least_one(
    "--group", "--all-groups", says="Name share groups with --group, or use --all-groups."
)
_SOME_TOPICS: Final = exactly_one("--topic", "--all-topics", says="Use either --topic or --all-topics.")


@TOOL.action("--list", "List share groups.")
async def _list(cluster: AsyncClient, state: str | None, json: bool) -> None:
    await print_list(cluster, admin.SHARE, _STATES, state, as_json=json)


@TOOL.action(
    "--describe",
    "Describe share groups.",
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
    for name in await chosen(cluster, admin.SHARE, group, all_groups):
        description = await admin.describe_share_group(cluster, name)
        all_exist &= not description.missing
        if json:
            document.append(await _as_json(cluster, description))
        elif description.missing:
            say(f"\nError: Share group '{name}' does not exist.")
        elif members:
            _print_members(description, verbose)
        elif state is not None and not offsets:
            _announce(description)
            print_state(cluster, description, verbose)
        else:
            await _print_offsets(cluster, description, verbose)
    if json:
        say_json(document)
    return int(not all_exist)


def _announce(description: ShareGroupDescription) -> None:
    say()
    sys.stdout.flush()
    if not description.members:
        sys.stderr.write(f"Share group '{description.group_id}' has no active members.\n")


async def _print_offsets(cluster: AsyncClient, description: ShareGroupDescription, verbose: bool) -> None:
    _announce(description)
    rows = [
        (
            description.group_id,
            where.topic,
            str(where.partition),
            *([str(each.leader_epoch)] if verbose else []),
            MISSING if each.start < 0 else str(each.start),
            MISSING if each.lag < 0 else str(each.lag),
        )
        for where, each in (await admin.share_offsets(cluster, description.group_id)).items()
    ]
    epoch = ["LEADER-EPOCH"] if verbose else []
    if rows:
        table(("GROUP", "TOPIC", "PARTITION", *epoch, "START-OFFSET", "LAG"), rows)


def _print_members(description: ShareGroupDescription, verbose: bool) -> None:
    _announce(description)
    rows = [
        (
            description.group_id,
            member.member_id,
            member.host,
            member.client_id,
            str(len(member.assignment)),
            *([str(member.epoch)] if verbose else []),
            assignment_text(member.assignment),
        )
        for member in description.members
    ]
    epoch = ["MEMBER-EPOCH"] if verbose else []
    if rows:
        table(("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", *epoch, "ASSIGNMENT"), rows)


async def _as_json(cluster: AsyncClient, description: ShareGroupDescription) -> dict[str, object]:
    offsets = {} if description.missing else await admin.share_offsets(cluster, description.group_id)
    return {
        "group": description.group_id,
        "exists": not description.missing,
        "state": description.state,
        "assignor": description.assignor,
        "coordinator": description.coordinator_id,
        "members": [
            {
                "memberId": member.member_id,
                "clientId": member.client_id,
                "host": member.host,
                "epoch": member.epoch,
                "assignment": [{"topic": topic, "partition": index} for topic, index in member.assignment],
            }
            for member in description.members
        ],
        "offsets": [
            {
                "topic": where.topic,
                "partition": where.partition,
                "startOffset": each.start if each.start >= 0 else None,
                "lag": each.lag if each.lag >= 0 else None,
            }
            for where, each in offsets.items()
        ],
    }


@TOOL.action("--delete", "Delete share groups that have no members.", rules=(_SOME_GROUPS,))
async def _delete(cluster: AsyncClient, group: Sequence[str], all_groups: bool) -> int:
    outcome: dict[str, ErrorCode] = {}
    for name in await chosen(cluster, admin.SHARE, group, all_groups):
        # DeleteGroups deletes groups of every type.
        is_missing = (await admin.describe_share_group(cluster, name)).missing
        outcome[name] = ErrorCode.GROUP_ID_NOT_FOUND if is_missing else await delete_group(cluster, name)
    failed = {name: code for name, code in outcome.items() if code is not ErrorCode.NONE}
    deleted = ", ".join(name for name in outcome if name not in failed)
    if not failed:
        say(f"Deletion of requested share groups ({deleted}) was successful.")
        return 0
    say("\nError: Deletion of some share groups failed:")
    for name, code in failed.items():
        say(f"* Share group '{name}' could not be deleted due to: {code.name}")
    if deleted:
        say(f"\nThese share groups were deleted successfully: {deleted}")
    return 1


@TOOL.action(
    "--delete-offsets", "Let a share group forget topics.", needs=("--group",), rules=(at_least_one("--topic"),)
)
async def _delete_offsets(cluster: AsyncClient, group: Sequence[str], topic: Sequence[str], json: bool) -> int:
    outcome = await admin.delete_share_offsets(cluster, only_one(group, admin.SHARE), topic)
    if json:
        say_json([{"topic": name, "error": code.name} for name, code in outcome.items()])
    else:
        table(
            ("TOPIC", "STATUS"),
            [(name, "Successful" if not code else f"Error: {code.name}") for name, code in outcome.items()],
        )
    return int(any(outcome.values()))


@TOOL.action(
    "--reset-offsets",
    "Let a share group without members begin elsewhere.",
    needs=("--group",),
    rules=(
        at_most_one("--execute", "--dry-run"),
        _SOME_TOPICS,
    ),
)
async def _reset(
    cluster: AsyncClient,
    group: Sequence[str],
    topic: Sequence[str],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_datetime: str | None,
    dry_run: bool,
    execute: bool,
    json: bool,
) -> None:
    rule = _reset_offsets.Rule.of(to_earliest=to_earliest, to_latest=to_latest, to_datetime=to_datetime)
    name = only_one(group, admin.SHARE)
    description = await admin.describe_share_group(cluster, name)
    if description.members:
        raise UsageError(f"Share group '{name}' is not empty: stop its consumers first")
    if not execute and not dry_run:
        sys.stderr.write("WARN: No action will be performed as the --execute option is missing.\n")
    if all_topics:
        partitions = list(await admin.share_offsets(cluster, name))
    else:
        partitions, unknown = await _reset_offsets.expand_topics(cluster, topic)
        if unknown:
            raise UsageError(f"topic {', '.join(unknown)} does not exist")
    plan: dict[TopicPartition, int] = await _reset_offsets.apply(cluster, rule, partitions, {})
    if execute:
        for where, code in (await admin.alter_share_offsets(cluster, name, plan)).items():
            check(code, f"offset of {where}")
    print_new_offsets(name, plan, as_json=json)
