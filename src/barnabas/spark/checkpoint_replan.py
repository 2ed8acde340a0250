"""Shows what a streaming query's checkpoint has planned and committed, and changes it so that Spark plans records again.

For `barnabas pipeline offsets`. Every file that is removed or replaced is kept in `barnabas/replaced/` of the checkpoint. The
checkpoint gets a new id last: sinks then take the batches that Spark plans again for new ones, and write them. If a change
stops half way, the old id stays and a sink refuses such a batch, until the command has run again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from barnabas.base.errors import BarnabasError
from barnabas.spark.checkpoint import (
    COMMITS,
    METADATA,
    NAMELESS,
    OFFSETS,
    CheckpointElsewhere,
    Repeated,
    first,
    load,
    numbers,
    query_id,
    repeated,
    save,
)
from barnabas.spark.checkpoint_files import CheckpointFiles

REPLACED: Final = "barnabas/replaced"
_STATE: Final = "state"
#: Line of a file of `offsets` at which the sources begin: before are the version and what Spark notes about the batch.
_SOURCES_FROM: Final = 2
#: The line of a source that has planned nothing.
_NOTHING: Final = "-"

_KEEPS_STATE: Final = "the query keeps state (aggregations, joins, deduplication) of the records that it has read"


class CannotReplan(BarnabasError):
    """The checkpoint cannot be changed in this way. The message says why, and what to do instead."""


@dataclass(frozen=True)
class View:
    """A checkpoint as people and programs see it."""

    location: str
    query: str
    checkpoint: str
    #: The oldest batch to which the query can be set back.
    oldest: int | None
    committed: int | None
    planned: int | None
    #: For each source, in the order of the query: where the next batch begins, and where a planned batch ends that is not
    #: committed.
    committed_offsets: list[Any] = field(default_factory=list)
    planned_offsets: list[Any] = field(default_factory=list)
    has_state: bool = False
    repeated: Repeated = field(default_factory=Repeated)


def show(files: CheckpointFiles) -> View:
    query = query_id(files)
    if query is None:
        raise CannotReplan(f"{files.location} is not the checkpoint of a streaming query: it has no file {METADATA}")
    named = load(files)
    planned, committed = numbers(files, OFFSETS), _committed(files)
    last = max(planned, default=None)
    ahead = last is not None and last != max(committed, default=None)
    return View(
        location=files.location,
        query=query,
        checkpoint="" if named is None else named.id,
        oldest=min(committed, default=None),
        committed=max(committed, default=None),
        planned=last if ahead else None,
        committed_offsets=_sources(files, max(committed)) if committed else [],
        planned_offsets=_sources(files, last) if ahead and last is not None else [],
        has_state=_has_state(files),
        repeated=repeated(files),
    )


@dataclass(frozen=True)
class Change:
    """The files that a command removes and writes."""

    what: str
    #: Files to be kept aside and removed.
    removed: tuple[str, ...]
    #: New contents.
    written: Mapping[str, bytes] = field(default_factory=dict)


def require_sink(files: CheckpointFiles) -> None:
    """Refuse a checkpoint that no sink of ours has named: such a sink may leave out a batch that is planned again, and not say
    so."""
    if load(files) is None:
        raise CannotReplan(
            f"no sink of this barnabas has written a batch from {files.location}. Spark's own sinks of files and tables "
            "remember the numbers of batches: they would leave out the batches that are planned again, and their records with "
            "them. If the sink is a topic, or one of an older barnabas, say --any-sink"
        )


def plan_rewind(files: CheckpointFiles, *, batches: int | None = None, to_batch: int | None = None) -> Change:
    """Plan to go back to an earlier batch. `to_batch`: the last batch that stays. `batches`: how many committed batches go."""
    committed = _committed(files)
    if not committed:
        raise CannotReplan(f"{files.location} has no committed batch: there is nothing to go back to")
    stays = to_batch if to_batch is not None else max(committed) - (1 if batches is None else batches)
    if stays not in committed:
        raise CannotReplan(
            f"batch {stays} is not one to go back to: {files.location} has the batches {min(committed)} to {max(committed)}. "
            "To read everything again, use `barnabas pipeline run --full-refresh`, or a new checkpoint"
        )
    if stays < max(committed) and _has_state(files):
        raise CannotReplan(
            f"{_KEEPS_STATE}. Spark would mix the state of batches that are taken back with that of the batches in their "
            "place. Compute it again with `barnabas pipeline run --full-refresh`"
        )
    removed = [
        f"{folder}/{number}" for folder in (OFFSETS, COMMITS) for number in numbers(files, folder) if number > stays
    ]
    return Change(f"back to the end of batch {stays}", tuple(removed))


def plan_set(files: CheckpointFiles, offsets: Mapping[str, Any], *, source: int | None, keep_state: bool) -> Change:
    """The next batch of a source begins at these offsets. Topics and partitions that they do not name stay where they are."""
    committed = _committed(files)
    if not committed:
        raise CannotReplan(f"{files.location} has no committed batch: set startingOffsets of the source instead")
    if _has_state(files) and not keep_state:
        raise CannotReplan(
            f"{_KEEPS_STATE}, and would count records twice or miss them. Compute it again with `barnabas pipeline run "
            "--full-refresh`, or say --keep-state if that is what you want"
        )
    last = max(committed)
    lines = _lines(files, last)
    number = _source_number(lines, source)
    before = _parsed(lines[_SOURCES_FROM + number])
    lines[_SOURCES_FROM + number] = json.dumps(_merged(before, offsets), separators=(",", ":"))
    ahead = [f"{OFFSETS}/{each}" for each in numbers(files, OFFSETS) if each > last]
    return Change(
        f"on from the offsets given for source {number}, after batch {last}",
        tuple(ahead),
        {f"{OFFSETS}/{last}": "\n".join(lines).encode()},
    )


def apply(files: CheckpointFiles, change: Change, *, now: datetime | None = None) -> str:
    """Carry the change out, and return the folder with the replaced files. The query must not run."""
    query = query_id(files)
    assert query is not None, "the change was planned from this checkpoint"
    named = load(files)
    if named is not None and named.location != files.location:
        raise CheckpointElsewhere(
            f"the checkpoint {files.location} was made at {named.location}: it is a copy or was moved. Start the query once "
            "with acceptCheckpoint=moved or acceptCheckpoint=copied, so that its sink knows which of the two it is"
        )
    at = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%S.%fZ")
    backup = f"{REPLACED}/{at}"
    for name in (*change.removed, *change.written):
        data = files.read(name)
        if data is not None:
            files.write(f"{backup}/{name}", data)
    # Highest numbers first, commits before offsets: a change that stops half way looks like the work of a driver that died.
    for name in sorted(change.removed, key=_last_first):
        files.remove(name)
    for name, data in change.written.items():
        files.write(name, data)
    before = named or replace(first(files.location, query), id=NAMELESS)
    save(files, before.replanned(change.what))
    return backup


def _last_first(name: str) -> tuple[int, bool]:
    folder, _, number = name.partition("/")
    return -int(number), folder != COMMITS


def _committed(files: CheckpointFiles) -> list[int]:
    """Return the batches that are planned and committed: the others mean nothing to Spark."""
    return sorted(set(numbers(files, OFFSETS)) & set(numbers(files, COMMITS)))


def _lines(files: CheckpointFiles, batch: int) -> list[str]:
    data = files.read(f"{OFFSETS}/{batch}")
    lines = [] if data is None else data.decode().split("\n")
    if len(lines) <= _SOURCES_FROM or lines[0] != "v1":
        raise CannotReplan(
            f"{files.location}/{OFFSETS}/{batch} is damaged, or a version of Spark wrote it that this barnabas does not know"
        )
    return lines


def _sources(files: CheckpointFiles, batch: int) -> list[Any]:
    return [_parsed(line) for line in _lines(files, batch)[_SOURCES_FROM:]]


def _parsed(line: str) -> Any:
    if line == _NOTHING:
        return None
    try:
        return json.loads(line)
    except ValueError:
        return line  # some sources have offsets that are not JSON


def _source_number(lines: list[str], source: int | None) -> int:
    count = len(lines) - _SOURCES_FROM
    if source is None and count > 1:
        raise CannotReplan(f"the query reads {count} sources: say which with --source, from 0 to {count - 1}")
    number = source or 0
    if not 0 <= number < count:
        raise CannotReplan(f"the query has no source {number}: it has the sources 0 to {count - 1}")
    return number


def _merged(before: Any, offsets: Mapping[str, Any]) -> dict[str, Any]:
    if not _are_topics(offsets):
        raise CannotReplan('the offsets are not topics with partitions, such as {"orders": {"0": 1200, "1": 1180}}')
    if not _are_topics(before):
        raise CannotReplan("the source does not read topics: its offsets cannot be set here. Use `rewind`")
    after = {topic: dict(partitions) for topic, partitions in before.items()}
    for topic, partitions in offsets.items():
        for partition, offset in partitions.items():
            if partition not in after.get(topic, {}):
                raise CannotReplan(f"the query does not read partition {partition} of topic {topic}")
            after[topic][partition] = offset
    return after


def _are_topics(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(partitions, Mapping)
        and all(
            isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0 for offset in partitions.values()
        )
        for partitions in value.values()
    )


def _has_state(files: CheckpointFiles) -> bool:
    return bool(files.names(_STATE))
