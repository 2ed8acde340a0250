"""`consumer-groups --reset-offsets`: the target, the partitions, and the plan as a table or CSV."""

import csv
import io
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.times import duration_ms
from barnabas.base.words import EARLIEST, LATEST
from barnabas.cli._command import UsageError
from barnabas.cli._connection import run
from barnabas.cli._output import say, say_json, write
from barnabas.cli._parsing import parse_number
from barnabas.client.admin import groups as admin
from barnabas.client.admin.groups import CommittedOffset
from barnabas.client.admin.partitions import list_offsets
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig
from barnabas.client.errors import check

Plan = dict[str, dict[TopicPartition, int]]

_DRY_RUN_WARNING = (
    "WARN: No action will be performed as the --execute option is missing. "
    "Add --dry-run to say that this is what you want."
)


@dataclass(frozen=True, slots=True)
class Rule:
    """Exactly one of Kafka's scenarios."""

    kind: str
    number: int = 0
    text: str = ""

    @classmethod
    def of(cls, **given: int | str | bool | None) -> Self:
        chosen = {name: value for name, value in given.items() if value is not None and value is not False}
        if len(chosen) != 1:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(f"Option [reset-offsets] requires one of the following scenarios: {names}")
        ((name, value),) = chosen.items()
        if isinstance(value, str):
            return cls(name, text=value)
        return cls(name, number=int(value))


@dataclass(frozen=True, slots=True)
class Scope:
    group: Sequence[str]
    all_groups: bool
    topic: Sequence[str]
    all_topics: bool


def reset(
    config: ClientConfig, rule: Rule, scope: Scope, *, execute: bool, dry_run: bool, export: bool, json: bool
) -> None:
    if execute and dry_run:
        raise UsageError("Option [reset-offsets] only accepts one of [execute] and [dry-run]")
    if not execute and not dry_run:
        sys.stderr.write(_DRY_RUN_WARNING + "\n")
    if not scope.topic and not scope.all_topics and rule.kind != "from_file":
        raise UsageError("One of the reset scopes should be defined: --all-topics, --topic.")
    file_plan = _read_plan(rule.text, scope.group) if rule.kind == "from_file" else None
    plan = run(config, lambda cluster: _reset(cluster, rule, scope, file_plan, execute=execute))
    if export:
        sys.stdout.write(to_csv(plan, with_group=len(scope.group) != 1) + "\n")
    elif json:
        say_json(
            [
                {"group": group, "topic": topic, "partition": index, "newOffset": offset}
                for group, offsets in plan.items()
                for (topic, index), offset in offsets.items()
            ]
        )
    else:
        _print(plan)


def _read_plan(path: str, groups: Sequence[str]) -> Plan:
    try:
        return from_csv(Path(path).read_text(encoding="utf-8"), groups)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _print(plan: Plan) -> None:
    rows = [("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")] if plan else []
    rows += [
        (group, where.topic, str(where.partition), str(offset))
        for group, offsets in plan.items()
        for where, offset in offsets.items()
    ]
    for group, topic, partition, offset in rows:
        write(f"\n{group:<30} {topic:<30} {partition:<10} {offset:<15}")
    say()


# -- the plan as CSV ----------------------------------------------------------------------------------------------------


def to_csv(plan: Plan, *, with_group: bool) -> str:
    """Format with Kafka's columns: `topic,partition,offset`, after the group if there may be several."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for group, offsets in plan.items():
        for (topic, index), offset in offsets.items():
            writer.writerow([*([group] if with_group else []), topic, index, offset])
    return out.getvalue()


def from_csv(text: str, groups: Sequence[str]) -> Plan:
    """Parse either form; the short one needs exactly one `--group`."""
    plan: Plan = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not row:
            continue
        if len(row) == 3 and len(groups) == 1:
            row = [groups[0], *row]
        if len(row) != 4:
            raise UsageError(f"--from-file: line {number} is not group,topic,partition,offset")
        group, topic, index, offset = row
        where = TopicPartition(topic, parse_number(index, what=f"--from-file, line {number}"))
        plan.setdefault(group, {})[where] = parse_number(offset, what=f"--from-file, line {number}")
    return plan


# -- carrying it out ----------------------------------------------------------------------------------------------------


async def _reset(cluster: AsyncClient, rule: Rule, scope: Scope, file_plan: Plan | None, *, execute: bool) -> Plan:
    groups = [entry.group_id for entry in await admin.list_groups(cluster)] if scope.all_groups else list(scope.group)
    plan: Plan = {}
    for group in groups:
        description = await admin.describe_group(cluster, group)
        if description.state not in ("Empty", "Dead"):
            raise UsageError(
                f"Assignments can only be reset if the group '{group}' is inactive, but the current state is "
                f"{description.state}. Stop its consumers first"
            )
        plan[group] = await _plan(cluster, group, rule, scope, file_plan)
        if execute:
            entries = {where: CommittedOffset(offset) for where, offset in plan[group].items()}
            for where, code in (await admin.commit_offsets(cluster, group, entries)).items():
                check(code, f"commit of {where}")
    return plan


async def _plan(
    cluster: AsyncClient, group: str, rule: Rule, scope: Scope, file_plan: Plan | None
) -> dict[TopicPartition, int]:
    if rule.kind == "from_file":
        wanted = (file_plan or {}).get(group)
        if wanted is None:
            raise UsageError(f"No reset plan for group {group} found")
        return await _within_log(cluster, wanted)
    committed = await admin.committed_offsets(cluster, group)
    if scope.all_topics:
        partitions = sorted(committed)
    else:
        partitions, unknown = await expand_topics(cluster, scope.topic)
        if unknown:
            raise UsageError(f"topic {', '.join(unknown)} does not exist")
    return await apply(cluster, rule, partitions, committed)


async def apply(
    cluster: AsyncClient,
    rule: Rule,
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, int]:
    """Return the offsets that the rule gives these partitions."""
    match rule.kind:
        case "to_offset":
            return await _within_log(cluster, dict.fromkeys(partitions, rule.number))
        case "to_earliest":
            return await _offsets(cluster, partitions, EARLIEST)
        case "to_latest":
            return await _offsets(cluster, partitions, LATEST)
        case "shift_by":
            missing = [where for where in partitions if where not in committed]
            if missing:
                raise UsageError(
                    f"Cannot shift offset for partition {missing[0]} since there is no current committed offset"
                )
            return await _within_log(cluster, {where: committed[where].offset + rule.number for where in partitions})
        case "to_datetime":
            return await _at_time(cluster, partitions, parse_datetime_ms(rule.text))
        case "by_duration":
            return await _at_time(cluster, partitions, int(time.time() * 1000) - parse_duration_ms(rule.text))
        case _:
            current = {where: committed[where].offset for where in partitions if where in committed}
            rest = [where for where in partitions if where not in committed]
            return current | await _offsets(cluster, rest, LATEST)


async def _offsets(cluster: AsyncClient, partitions: Sequence[TopicPartition], at: int) -> dict[TopicPartition, int]:
    listed = await list_offsets(cluster, dict.fromkeys(partitions, at))
    for where, found in listed.items():
        check(found.error, str(where))
    return {where: listed[where].offset for where in partitions}


async def _at_time(cluster: AsyncClient, partitions: Sequence[TopicPartition], at_ms: int) -> dict[TopicPartition, int]:
    found = await _offsets(cluster, partitions, at_ms)
    late = [where for where, offset in found.items() if offset < 0]
    for where in late:
        say(
            f"\nWarn: Partition {where.partition} from topic {where.topic} is empty. "
            "Falling back to latest known offset."
        )
    return found | await _offsets(cluster, late, LATEST)


async def _within_log(cluster: AsyncClient, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Move offsets outside the log to its nearer end, with a warning."""
    partitions = list(wanted)
    first = await _offsets(cluster, partitions, EARLIEST)
    last = await _offsets(cluster, partitions, LATEST)
    result: dict[TopicPartition, int] = {}
    for where, offset in wanted.items():
        result[where] = max(first[where], min(offset, last[where]))
        if result[where] != offset:
            side = "higher than latest" if offset > result[where] else "lower than earliest"
            sys.stderr.write(
                f"WARN New offset ({offset}) is {side} offset for topic partition {where}. "
                f"Value will be set to {result[where]}\n"
            )
    return result


async def expand_topics(cluster: AsyncClient, topics: Sequence[str]) -> tuple[list[TopicPartition], list[str]]:
    """Return the partitions of `topic` or `topic:0,1` arguments, and the topics that do not exist."""
    partitions: list[TopicPartition] = []
    whole: list[str] = []
    for argument in topics:
        name, colon, indexes = argument.partition(":")
        if not colon:
            whole.append(name)
            continue
        for index in indexes.split(","):
            if not index.strip().isdigit():
                raise UsageError(f"Invalid partition '{index}' specified in topic arg '{argument}'")
            partitions.append(TopicPartition(name, int(index)))
    found = await cluster.topics(whole) if whole else {}
    unknown = [name for name in whole if name not in found or found[name].error is not ErrorCode.NONE]
    for name in whole:
        if name not in unknown:
            partitions += [TopicPartition(name, part.index) for part in found[name].partitions]
    return sorted(set(partitions)), unknown


# -- times --------------------------------------------------------------------------------------------------------------


def parse_datetime_ms(text: str) -> int:
    """Parse `2024-01-31T10:00:00.000`, as UTC if it has no zone. The milliseconds are optional (in Kafka they are not)."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,3})?(Z|[+-]\d\d(:?\d\d)?)?", text):
        raise UsageError(f"--to-datetime {text}: write YYYY-MM-DDTHH:mm:SS.sss, with Z or +hh:mm where it is not UTC")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--to-datetime {text}: {error}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def parse_duration_ms(text: str) -> int:
    """Parse `P1DT2H3M4.5S` as java.time.Duration does."""
    try:
        return duration_ms(text)
    except ValueError:
        raise UsageError(f"--by-duration {text}: write PnDTnHnMnS, for example PT30M or P7D") from None
