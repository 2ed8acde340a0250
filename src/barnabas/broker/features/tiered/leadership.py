"""One leadership of one tiered partition: what its copies and removals look at before every step. Owner: the event loop."""

import asyncio
from typing import NamedTuple

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import BarnabasError
from barnabas.broker.features.tiered.segment_metadata import RemoteSegment, RemoteSegmentId, TierPartition
from barnabas.broker.storage.log import Log


class Look(NamedTuple):
    """What the last look at the segments saw, and until when another would find nothing else."""

    version: int
    log_start: int
    config: LogConfig
    until_ms: int | None
    until_bytes: int | None

    def is_still_good(self, version: int, local: Log, now_ms: int) -> bool:
        return (
            self.version == version
            and self.log_start == local.log_start_offset
            and self.config is local.config
            and (self.until_ms is None or now_ms < self.until_ms)
            and (self.until_bytes is None or local.size_bytes < self.until_bytes)
        )


class LeadershipLost(BarnabasError):
    """Another leads now, or nobody: whatever is under way ends."""


class Leadership:
    """It ends once and does not come back: a later one of the same broker is another object."""

    def __init__(self, of: TierPartition, epoch: int) -> None:
        self.of = of
        self.epoch = epoch
        #: Everything that was written about the partition before has been read.
        self.is_ready = False
        self.is_over = False
        #: Copies under way: they are nobody's leavings.
        self.being_copied: set[RemoteSegmentId] = set()
        self.copying: asyncio.Task[None] | None = None
        self.expiring: asyncio.Task[None] | None = None
        #: What is to go from the tier, and has not gone yet.
        self.to_remove: list[RemoteSegment] = []
        #: None: nobody has looked yet, or there was more to do.
        self.look: Look | None = None

    def check(self) -> None:
        """:raises LeadershipLost:"""
        if self.is_over:
            raise LeadershipLost(f"{self.of.tp} is not led in epoch {self.epoch} any more")

    def end(self) -> None:
        self.is_over = True
        for task in (self.copying, self.expiring):
            if task is not None:
                task.cancel()
