"""Which checkpoint a streaming query runs from, and what it has planned: a sink's half of a batch's identity.

`barnabas/checkpoint.json` in the checkpoint's folder names the checkpoint. The first batch writes the file, with the folder's
location. A copy brings the file along, and is recognised because its location is another one. A folder that was moved looks
like a copy. Both are refused until an option says which of the two it is.
"""

import json
import logging
import time
import uuid
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from barnabas.base.errors import BarnabasError
from barnabas.spark.batch_identity import UNKNOWN, fingerprint
from barnabas.spark.checkpoint_files import CannotRead, CheckpointFiles, location_of

_log: Final = logging.getLogger("barnabas.spark")

FILE: Final = "barnabas/checkpoint.json"
#: How often batches of the checkpoint came again and were not written twice.
REPEATED_FILE: Final = "barnabas/repeated.json"
VERSION: Final = 1
#: Values of the option `acceptCheckpoint`.
NOTHING, MOVED, COPIED = "", "moved", "copied"
#: Stands in `replaces` for a checkpoint that had no id: an older barnabas ran from it.
NAMELESS: Final = "nameless"
#: The reason of a refusal if the batch before has other offsets in the checkpoint than those that were written.
EDITED: Final = "The offsets of batch {} in the checkpoint are not those that were written: the checkpoint was edited"
#: Number of former ids of a checkpoint that it remembers.
_REPLACES_MAX: Final = 16
OFFSETS, COMMITS, METADATA = "offsets", "commits", "metadata"


class CheckpointElsewhere(BarnabasError):
    """The checkpoint is a copy, or was moved. The message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What `barnabas/checkpoint.json` says."""

    id: str
    #: The name under which sinks remember batches: the query's id, or for a copy a name of its own.
    known_as: str
    location: str
    #: Ids that this checkpoint had before `barnabas pipeline offsets` changed what it plans. Batches that were written
    #: under these ids do not stand in the way of batches of the same numbers.
    replaces: tuple[str, ...] = ()
    made_at_ms: int = 0
    #: Why the id is a new one.
    why: str = ""
    #: The option checkpointLocation of the first batch: over Spark Connect the sink names a query after it.
    option: str = ""

    def encode(self) -> bytes:
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes, where: str) -> "Checkpoint":
        try:
            known: dict[str, Any] = json.loads(data)
            version = known.pop("version")
            known["replaces"] = tuple(known["replaces"])
            found = cls(**known)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CannotRead(
                f"{where}/{FILE} is damaged ({error}). Without it the sink cannot tell whether a batch was written before: "
                "restore the file, or delete it and say with acceptReplannedBatch what to do with the next batch"
            ) from error
        if version != VERSION:
            raise CannotRead(
                f"{where}/{FILE} has version {version}: a newer barnabas wrote it, and this one cannot read it"
            )
        return found

    def replanned(self, why: str) -> "Checkpoint":
        """Return the checkpoint with a new id, because the user changed its planned batches on purpose."""
        before = (*self.replaces, self.id)[-_REPLACES_MAX:]
        return replace(self, id=uuid.uuid4().hex, replaces=before, made_at_ms=_now_ms(), why=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The micro-batch that is to be written, as its checkpoint describes it. Travels to executors: plain values only."""

    checkpoint: str = UNKNOWN
    #: The query's id, as its checkpoint has it.
    query: str = ""
    #: The option checkpointLocation of the first batch. A folder that is moved keeps it.
    option: str = ""
    #: The name under which the sink remembers batches; "" stands for the query's id.
    known_as: str = ""
    replaces: tuple[str, ...] = ()
    #: The last batch that Spark planned, the fingerprint of its offsets, and when Spark planned it.
    batch: int = -1
    offsets: str = UNKNOWN
    planned_at_ms: int | None = None
    #: The fingerprint of the batch before that one, if the checkpoint still has it.
    previous: str = UNKNOWN
    #: Why the checkpoint or the offsets are not known.
    reason: str = ""
    #: True for a write with `once=`: the caller numbers it, not Spark.
    is_of_part: bool = False

    def offsets_of(self, batch: int) -> str:
        """Return the fingerprint of this batch's offsets; UNKNOWN if the plan is that of another batch."""
        return self.offsets if self.is_of_part or batch == self.batch else UNKNOWN

    def previous_of(self, batch: int) -> str:
        """Return the fingerprint of the batch before; UNKNOWN if the checkpoint has lost it, or if the caller numbers the
        batches."""
        return self.previous if batch == self.batch and not self.is_of_part else UNKNOWN


def read_planned(given: str, *, accept: str = NOTHING) -> Planned:
    """Read the plan of the checkpoint at `given`, the option checkpointLocation. A checkpoint without a name gets one.

    Runs on the driver, after Spark has written `offsets/N` and before it writes batch N. Raises `CheckpointElsewhere`.
    """
    files = CheckpointFiles(location_of(given))
    try:
        query = query_id(files)
        if query is None:
            return Planned(reason=f"{files.location} has no file {METADATA}, in which Spark writes the query's id")
        checkpoint = _named(files, query, accept, given)
        batch = last_number(files, OFFSETS)
        data = None if batch is None else files.read(f"{OFFSETS}/{batch}")
        previous = files.read(f"{OFFSETS}/{batch - 1}") if batch else None
    except CannotRead as error:
        return Planned(reason=str(error))
    known_as = "" if checkpoint.known_as == query else checkpoint.known_as
    found = Planned(
        checkpoint=checkpoint.id,
        query=query,
        option=checkpoint.option,
        known_as=known_as,
        replaces=checkpoint.replaces,
    )
    if batch is None or data is None:
        return replace(found, reason=f"{files.location} has no planned batch")
    return replace(
        found,
        batch=batch,
        offsets=fingerprint(data),
        planned_at_ms=planned_at_ms(data),
        previous=UNKNOWN if previous is None else fingerprint(previous),
    )


#: A write with `once=` has no checkpoint of its own: the caller vouches for names and numbers, or the write is a part of a
#: micro-batch of the query whose checkpoint is named, or whose checkpoint is not known.
BY_CALLER, BY_CHECKPOINT, NOT_KNOWN = "by caller", "by checkpoint", "not known"


def planned_once(origin: str, location: str, *, accept: str = NOTHING) -> Planned:
    """Return the plan for a write with `once=`. `origin`: BY_CALLER, BY_CHECKPOINT or NOT_KNOWN."""
    if origin == BY_CHECKPOINT:
        return replace(read_planned(location, accept=accept), is_of_part=True)
    if origin == BY_CALLER:
        return Planned(checkpoint=BY_CALLER, offsets=BY_CALLER, is_of_part=True)
    return Planned(
        is_of_part=True,
        reason="Spark Connect does not say in foreachBatch where the query's checkpoint is: give it to write as checkpoint=",
    )


def load(files: CheckpointFiles) -> Checkpoint | None:
    data = files.read(FILE)
    return None if data is None else Checkpoint.decode(data, files.location)


def save(files: CheckpointFiles, checkpoint: Checkpoint) -> None:
    files.write(FILE, checkpoint.encode())


def query_id(files: CheckpointFiles) -> str | None:
    data = files.read(METADATA)
    return None if data is None else str(json.loads(data)["id"])


@dataclass(frozen=True, slots=True)
class Repeated:
    """Batches that came again after a restart and were not written a second time."""

    batches: int = 0
    rows: int = 0
    last_batch: int = -1
    at_ms: int = 0


def note_repeated(given: str, batch: int, rows: int) -> None:
    """Count in the checkpoint that a batch came again and was not written twice, for `barnabas pipeline` to show."""
    files = CheckpointFiles(location_of(given))
    try:
        before = repeated(files)
        after = Repeated(before.batches + 1, before.rows + rows, batch, _now_ms())
        files.write(REPEATED_FILE, json.dumps(asdict(after)).encode())
    except CannotRead as error:
        _log.warning("batch %d came again, and this could not be noted in its checkpoint: %s", batch, error)


def repeated(files: CheckpointFiles) -> Repeated:
    data = files.read(REPEATED_FILE)
    try:
        return Repeated() if data is None else Repeated(**json.loads(data))
    except (ValueError, TypeError) as error:
        raise CannotRead(f"{files.location}/{REPEATED_FILE} is damaged: {error}") from error


def repeated_rows(files: CheckpointFiles) -> int:
    """Return the number of rows; 0 if the file cannot be read, because the query goes on without it."""
    try:
        return repeated(files).rows
    except CannotRead as error:
        _log.warning("the number of rows that came again is not known: %s", error)
        return 0


def numbers(files: CheckpointFiles, folder: str) -> list[int]:
    """Return the numbers of the batches in `offsets` or `commits`, in order."""
    return sorted(int(name) for name in files.names(folder) if name.isdigit())


def last_number(files: CheckpointFiles, folder: str) -> int | None:
    return max(numbers(files, folder), default=None)


def last_planned(given: str) -> int | None:
    """Return the number of the batch that the checkpoint at `given` planned last; None if it cannot be read."""
    try:
        return last_number(CheckpointFiles(location_of(given)), OFFSETS)
    except CannotRead as error:
        _log.warning("the last planned batch of the checkpoint is not known: %s", error)
        return None


def planned_at_ms(data: bytes) -> int | None:
    """Return the time in a file of `offsets`, by the clock of the driver that planned the batch."""
    for line in data.splitlines():
        if line.startswith(b"{"):
            try:
                found = json.loads(line).get("batchTimestampMs")
            except ValueError:
                return None
            return found if isinstance(found, int) else None
    return None


def first(location: str, query: str) -> Checkpoint:
    """Make the description of a checkpoint that has no name yet."""
    return Checkpoint(id=uuid.uuid4().hex, known_as=query, location=location, made_at_ms=_now_ms(), why="first batch")


def _named(files: CheckpointFiles, query: str, accept: str, option: str) -> Checkpoint:
    found = load(files)
    if found is None:
        new = replace(first(files.location, query), option=option)
        if accept == COPIED:
            new = replace(new, known_as=new.id, why="acceptCheckpoint=copied")
        files.write(FILE, new.encode(), only_if_new=True)
        found = load(files)
        if found is None:
            raise CannotRead(f"{files.location}/{FILE} was written and cannot be found")
    is_here = found.location == files.location
    if accept == COPIED and (not is_here or found.known_as == query):
        new_id = uuid.uuid4().hex
        found = Checkpoint(
            id=new_id, known_as=new_id, location=files.location, made_at_ms=_now_ms(), why="acceptCheckpoint=copied"
        )
        save(files, found)
    elif not is_here and accept == MOVED:
        found = replace(found, location=files.location)
        save(files, found)
    elif not is_here:
        raise CheckpointElsewhere(
            f"the checkpoint {files.location} was made at {found.location}, so it is a copy or was moved. Two queries that run "
            "from one checkpoint and its copy would take each other's batches for their own. If the folder was moved and no "
            f"query runs from {found.location} any more, start this query with the option acceptCheckpoint={MOVED}. If it is a "
            f"copy, start this query with acceptCheckpoint={COPIED}: it becomes a query of its own, which writes every batch "
            "that the copy has not committed, also one that the other query has written"
        )
    return found


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
