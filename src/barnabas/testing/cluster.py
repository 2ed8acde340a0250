"""`Cluster`: a local cluster with a test's view of it, and a test's ways to break it. Blocking; any one thread at a time."""

import asyncio
from dataclasses import dataclass
from typing import Self

from barnabas.testing.faults import FaultyCluster
from barnabas.testing.settings import DEFAULTS, SHORT_SESSIONS, SHORT_TICK_MS
from barnabas.testing.snapshot import Snapshot, restore, take
from barnabas.testing.topics import TopicHelpers

_SHORT_ZOOKEEPER = ("--tick-time", str(SHORT_TICK_MS), "--max-session-timeout", "60000")


@dataclass(kw_only=True)
class Cluster(FaultyCluster, TopicHelpers):
    """`with Cluster(brokers=3) as cluster: cluster.bootstrap`. Brokers have the ids 1..N."""

    #: A broker or a consumer that dies is missed after about a second, not after six or more. For machines that are not busy.
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
        """All that the cluster has on disk now. It is held still for some milliseconds, which clients do not notice."""
        return take(self)

    def restore(self, snapshot: Snapshot) -> None:
        """The cluster is as it was then, at the same addresses. Its processes start anew; clients reconnect."""
        restore(self, snapshot)
