"""A follower's log that is a list, for the tests of fetchers."""

import asyncio
import struct

from barnabas.base.errors import ErrorCode, LogDirFault, Malformed, Refused
from barnabas.broker.storage.epoch_cache import LeaderEpochCache

_RECORD = struct.Struct(">i")


def records(*epochs: int) -> bytes:
    return b"".join(map(_RECORD.pack, epochs))


class FakeReplica:
    """A log in which each record is its leader epoch. `broken` makes the next append fail."""

    def __init__(self, *epochs: int, high_watermark: int = 0, log_start: int = 0) -> None:
        self.epochs_of = list(epochs)
        self.cache = LeaderEpochCache()
        self.log_start = log_start
        self.high_watermark = high_watermark
        self.leader_log_start = -1
        self.tier_end = log_start
        self.broken: str | None = None
        #: If set, appends must be flushed, and a flush waits for it.
        self.disk: asyncio.Event | None = None
        for offset, epoch in enumerate(epochs):
            self.cache.assign(epoch, log_start + offset)

    @property
    def log_end(self) -> int:
        return self.log_start + len(self.epochs_of)

    @property
    def latest_epoch(self):
        return self.cache.latest_epoch

    def end_offset_for_epoch(self, epoch):
        return self.cache.end_offset_for(epoch, self.log_end)

    def append_follower(self, data, leader_high_watermark, leader_log_start):
        if self.broken == "bytes":
            self.broken = None
            raise Malformed("a batch with a wrong checksum")
        if self.broken == "descriptors":
            self.broken = None
            raise LogDirFault("/data", OSError(24, "Too many open files"))
        if self.broken == "disk":
            raise LogDirFault("/data", OSError(5, "Input/output error"))
        for (epoch,) in _RECORD.iter_unpack(data):
            self.cache.assign(epoch, self.log_end)
            self.epochs_of.append(epoch)
        self.high_watermark = min(leader_high_watermark, self.log_end)
        self.leader_log_start = leader_log_start
        return self.disk is not None

    async def flush(self):
        await self.disk.wait()

    async def truncate_to(self, offset, *, is_wanted):
        self.cut(offset)

    def cut(self, offset):
        self.log_start = min(self.log_start, offset)
        del self.epochs_of[offset - self.log_start :]
        self.cache.truncate_from_end(offset)
        self.high_watermark = min(self.high_watermark, offset)

    async def truncate_fully_and_start_at(self, offset, *, is_wanted):
        self.restart_at(offset)

    def restart_at(self, offset):
        self.epochs_of.clear()
        self.cache.clear()
        self.log_start = self.high_watermark = offset


def find_divergence(log, *, fetch_offset, last_fetched_epoch):
    """Return a leader's answer to a follower whose log ends differently (KIP-595); None if the follower may read."""
    if last_fetched_epoch < 0:
        return None
    end = log.end_offset_for_epoch(last_fetched_epoch)
    if end.end_offset < 0 or fetch_offset < log.log_start:
        raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {fetch_offset}, epoch {last_fetched_epoch}")
    return end if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset else None
