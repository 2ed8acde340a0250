"""A replica's log on a simulated disk: what is in the page cache, what is synced, and what a power cut leaves."""

import random
import struct

from barnabas.core.ids import LeaderEpoch, Offset
from barnabas.storage.epoch_cache import EpochEnd, LeaderEpochCache

_RECORD = struct.Struct(">iq")


class SimLog:
    """Records are (leader epoch, value), one an offset. Survives its broker's crash; `lose_unsynced` is the power cut."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []
        self.log_start = Offset(0)
        self.synced = 0
        self.epochs = LeaderEpochCache()
        #: replication-offset-checkpoint
        self.checkpointed_high_watermark = Offset(0)

    @property
    def log_end(self) -> Offset:
        return Offset(len(self.records))

    def append(self, epoch: int, value: int) -> None:
        self.epochs.assign(epoch, len(self.records))
        self.records.append((epoch, value))

    def append_bytes(self, data: memoryview) -> None:
        for epoch, value in _RECORD.iter_unpack(data):
            self.append(epoch, value)

    def read_bytes(self, offset: int, count: int) -> bytes:
        return b"".join(_RECORD.pack(*record) for record in self.records[offset : offset + count])

    def truncate_to(self, offset: int) -> None:
        del self.records[offset:]
        self.synced = min(self.synced, offset)
        self.epochs.truncate_from_end(offset)

    def sync(self, high_watermark: Offset) -> None:
        self.synced = len(self.records)
        self.checkpointed_high_watermark = high_watermark

    def lose_unsynced(self, rng: random.Random) -> dict[int, tuple[int, int]]:
        """The pages that had not reached the disk are gone, from some point on. Returns the lost records by offset."""
        kept = rng.randint(self.synced, len(self.records))
        lost = dict(enumerate(self.records[kept:], kept))
        self.truncate_to(kept)
        return lost

    def recover(self) -> Offset:
        """As a broker finds it at its start; the high watermark from its checkpoint, inside the log."""
        self.epochs.truncate_from_end(len(self.records))
        return min(self.checkpointed_high_watermark, self.log_end)

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        return self.epochs.end_offset_for(epoch, len(self.records))

    @property
    def latest_epoch(self) -> LeaderEpoch | None:
        return self.epochs.latest_epoch
