"""One leadership of one tiered partition: its copies and removals check it before every step. Owner: the event loop."""

import asyncio
from typing import NamedTuple

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import BarnabasError
from barnabas.broker.features.tiered.segment_metadata import RemoteSegment, RemoteSegmentId, TierPartition
from barnabas.broker.storage.log import Log


class Look(NamedTuple):
    """What the last check of the segments depended on, and until when another check would find nothing new."""

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
    """Another broker leads now, or none does: all work for the partition ends."""


class Leadership:
    """A leadership ends once: when the same broker leads again, that is another object."""

    def __init__(self, of: TierPartition, epoch: int) -> None:
        self.of = of
        self.epoch = epoch
        #: All metadata that earlier leaders wrote about the partition has been read.
        self.is_ready = False
        self.is_over = False
        #: Copies in progress, which must not be removed as abandoned.
        self.being_copied: set[RemoteSegmentId] = set()
        self.copying: asyncio.Task[None] | None = None
        self.expiring: asyncio.Task[None] | None = None
        #: Segments that are yet to be removed from the tier.
        self.to_remove: list[RemoteSegment] = []
        #: None: not checked yet, or there was more to do.
        self.look: Look | None = None

    def check(self) -> None:
        """:raises LeadershipLost:"""
        if self.is_over:
            raise LeadershipLost(f"this broker no longer leads {self.of.tp} in epoch {self.epoch}")

    def end(self) -> None:
        self.is_over = True
        for task in (self.copying, self.expiring):
            if task is not None:
                task.cancel()
