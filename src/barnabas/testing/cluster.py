"""`Cluster`: a local cluster with a test's operations and faults. Blocking; one thread at a time."""

import asyncio
from dataclasses import dataclass
from typing import Self

from barnabas.cli.faults.cluster import FaultyCluster
from barnabas.testing.settings import DEFAULTS, SHORT_SESSIONS, SHORT_TICK_MS
from barnabas.testing.snapshot import Snapshot, restore, take
from barnabas.testing.topics import TopicHelpers

_SHORT_ZOOKEEPER = ("--tick-time", str(SHORT_TICK_MS), "--max-session-timeout", "60000")


@dataclass(kw_only=True)
class Cluster(FaultyCluster, TopicHelpers):
    """`with Cluster(brokers=3) as cluster: cluster.bootstrap`. Brokers have the ids 1..N."""

    #: Notice a broker or consumer that dies after about a second instead of six or more. Only for machines that are not busy.
    short_sessions: bool = False

    def __post_init__(self) -> None:
        if self.short_sessions:
            self.config = {**SHORT_SESSIONS, **self.config}
            self.zookeeper_options = (*_SHORT_ZOOKEEPER, *self.zookeeper_options)
        self.config = {**DEFAULTS, **self.config}
        super().__post_init__()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.stop)

    # -- snapshots --------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Copy everything that the cluster has on disk. Its processes stop for some milliseconds, which clients do not
        notice."""
        return take(self)

    def restore(self, snapshot: Snapshot) -> None:
        """Restore that state, at the same addresses. The processes start again, and clients reconnect."""
        restore(self, snapshot)
