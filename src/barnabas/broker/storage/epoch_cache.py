"""Which leader epoch started at which offset (KIP-101, KIP-279): the line along which replicas truncate.

Pure but for the optional store, which gets the changes when the owner flushes. Owner: the log.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from barnabas.base.errors import BrokenInvariant
from barnabas.base.ids import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset


class EpochEntry(NamedTuple):
    epoch: LeaderEpoch
    start_offset: Offset


class EpochEnd(NamedTuple):
    """Answer of OffsetForLeaderEpoch: the largest epoch <= the requested one, and where it ended.

    (NO_EPOCH, NO_OFFSET) if no such epoch is known.
    """

    epoch: LeaderEpoch
    end_offset: Offset


class KeptEpochs(NamedTuple):
    """The leader epochs of a log's records that are only in the tier."""

    #: Epochs from the log start on.
    epochs: list[EpochEntry]
    #: The tier has all records below it: segments that end below it have left the disk, or will soon. 0: unknown.
    end_offset: int


class EpochStore(Protocol):
    def write(self, entries: Sequence[EpochEntry]) -> None: ...


UNDEFINED_END = EpochEnd(NO_EPOCH, NO_OFFSET)


class LeaderEpochCache:
    """Entries strictly ascending in both epoch and start offset.

    Changes only set `dirty`; `flush` writes them to the `store`. New epochs begin by the thousand when a broker fails, and
    the file is not needed at that moment: the owner flushes before its recovery point moves past their records, and recovery
    reads the epochs of later records from the records. An epoch without a record may be forgotten: no replica can have
    records of it, so no replica asks for its end.
    """

    def __init__(self, entries: Iterable[EpochEntry] = (), store: EpochStore | None = None) -> None:
        self._store = store
        self._epochs: list[int] = []
        self._starts: list[int] = []
        #: The last epoch: asked by each append.
        self.latest_epoch: LeaderEpoch | None = None
        #: Whether there are changes that the store does not have.
        self.dirty = False
        for entry in entries:
            self._assign(entry.epoch, entry.start_offset)

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def entries(self) -> list[EpochEntry]:
        return [self._entry(i) for i in range(len(self._epochs))]

    @property
    def latest(self) -> EpochEntry | None:
        return self._entry(-1) if self._epochs else None

    @property
    def earliest(self) -> EpochEntry | None:
        return self._entry(0) if self._epochs else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` starts at `start_offset`; return whether that was new.

        Removes entries that contradict it (a later epoch, or a start at or after it): the log was truncated since.
        """
        if not self._assign(epoch, start_offset):
            return False
        self.dirty = True
        return True

    def _assign(self, epoch: int, start_offset: int) -> bool:
        epochs, starts = self._epochs, self._starts
        if epochs and epochs[-1] == epoch and starts[-1] <= start_offset:
            return False
        if epoch < 0 or start_offset < 0:
            raise BrokenInvariant(f"leader epoch {epoch} cannot start at offset {start_offset}")
        while epochs and (epochs[-1] >= epoch or starts[-1] >= start_offset):
            epochs.pop()
            starts.pop()
        epochs.append(epoch)
        starts.append(start_offset)
        self.latest_epoch = LeaderEpoch(epoch)
        return True

    def end_offset_for(self, epoch: int, log_end: int) -> EpochEnd:
        """Return the largest epoch <= `epoch`, and its end: the start of the next epoch, or the log end for the latest."""
        epochs = self._epochs
        if epoch == NO_EPOCH or not epochs:
            return UNDEFINED_END
        if epoch == epochs[-1]:
            return EpochEnd(LeaderEpoch(epoch), Offset(log_end))
        higher = bisect_right(epochs, epoch)
        if higher == len(epochs):
            # Larger than any epoch that wrote here: this replica does not know.
            return UNDEFINED_END
        end = Offset(self._starts[higher])
        if higher == 0:
            # Its records are gone from the log; the answer makes the follower start where this log starts.
            return EpochEnd(LeaderEpoch(epoch), end)
        return EpochEnd(LeaderEpoch(epochs[higher - 1]), end)

    def start_of(self, epoch: int) -> Offset | None:
        """Return where an epoch starts; None if unknown."""
        at = bisect_left(self._epochs, epoch)
        return Offset(self._starts[at]) if at < len(self._epochs) and self._epochs[at] == epoch else None

    def epoch_at(self, offset: int) -> LeaderEpoch | None:
        """Return the epoch in which the record at `offset` was written; None before the first known epoch."""
        at = bisect_right(self._starts, offset)
        return LeaderEpoch(self._epochs[at - 1]) if at else None

    def below(self, end_offset: int) -> list[EpochEntry]:
        """The entries that start below `end_offset`."""
        return [self._entry(i) for i in range(bisect_left(self._starts, end_offset))]

    def between(self, start_offset: int, end_offset: int) -> list[EpochEntry]:
        """Return the epochs of the records in [start_offset, end_offset), the first as if it began at `start_offset`."""
        entries = self.below(end_offset)
        first = max(bisect_right(self._starts, start_offset) - 1, 0)
        return [EpochEntry(entry.epoch, Offset(max(entry.start_offset, start_offset))) for entry in entries[first:]]

    def next_epoch(self, epoch: int) -> LeaderEpoch | None:
        """The smallest known epoch above `epoch`."""
        at = bisect_right(self._epochs, epoch)
        return LeaderEpoch(self._epochs[at]) if at < len(self._epochs) else None

    def truncate_from_end(self, end_offset: int) -> bool:
        """Forget epochs that start at or after `end_offset`; return whether there were any."""
        if end_offset < 0:
            return False
        at = bisect_left(self._starts, end_offset)
        if at == len(self._starts):
            return False
        del self._epochs[at:], self._starts[at:]
        self.latest_epoch = LeaderEpoch(self._epochs[-1]) if self._epochs else None
        self.dirty = True
        return True

    def truncate_from_start(self, start_offset: int) -> bool:
        """Forget epochs that ended before `start_offset`; the epoch that contains it now starts there."""
        at = bisect_right(self._starts, start_offset)
        if at == 0:
            return False
        if at == 1 and self._starts[0] == start_offset:
            return False
        del self._epochs[: at - 1], self._starts[: at - 1]
        self._starts[0] = start_offset
        self.dirty = True
        return True

    def clear(self) -> None:
        if self._epochs:
            self._epochs.clear()
            self._starts.clear()
            self.latest_epoch = None
            self.dirty = True

    def flush(self) -> None:
        """Write the entries to the store, if there is one and something changed."""
        if self._store is not None and self.dirty:
            self._store.write(self.entries)
        self.dirty = False

    def _entry(self, at: int) -> EpochEntry:
        return EpochEntry(LeaderEpoch(self._epochs[at]), Offset(self._starts[at]))
