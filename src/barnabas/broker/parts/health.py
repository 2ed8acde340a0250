"""The health of a broker, for monitoring: `/health`, `/ready`, `/in-sync` on the metrics port, systemd, and a gauge.

*Live* means that a restart would not help: the loop runs, and nothing has failed for good. *Ready* means that clients can be
sent here. If ZooKeeper is unavailable, both stay true: clients of live leaders continue, and as it affects every broker, all
brokers would be restarted or taken out of service at once. It is a warning in both answers. *In sync* means that the next
broker may be restarted: this one is in the ISR of every partition of which it has a replica. A broker that is cut off from
ZooKeeper, and no longer counted as alive by others, is in none. Owner: the event loop.
"""

from enum import IntEnum
from typing import Any

from barnabas.base.clock import Clock
from barnabas.base.ids import BrokerId
from barnabas.base.metrics.registry import Registry
from barnabas.base.times import utc
from barnabas.broker.replication.lost_leadership import LostLeadership
from barnabas.broker.replication.manager import ReplicaManager
from barnabas.broker.server.metrics_http import Verdict
from barnabas.broker.storage.manager import LogManager
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.broker.zookeeper_client.session import ZooKeeperSession

#: Largest number of partitions that an answer names; the rest are counted.
NAMED_MAX = 10


class Phase(IntEnum):
    """The broker's state, with the numbers of Kafka's `BrokerState`."""

    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Phase.STARTING: "waiting for ZooKeeper",
    Phase.RECOVERY: "opening its logs, or registering",
    Phase.RUNNING: "serving",
    Phase.PENDING_CONTROLLED_SHUTDOWN: "handing over what it leads",
    Phase.SHUTTING_DOWN: "stopping",
}


class Health:
    def __init__(self, clock: Clock, registry: Registry) -> None:
        self._clock = clock
        self._since_ms = clock.now_ms()
        self._phase = Phase.STARTING
        self._session: ZooKeeperSession | None = None
        self._logs: LogManager | None = None
        self._replicas: ReplicaManager | None = None
        self._cluster: tuple[BrokerId, MetadataCache] | None = None
        self._lost_leadership: LostLeadership | None = None
        #: The error that ended the broker, if any.
        self.fatal: BaseException | None = None
        registry.gauge(
            "kafka_server_broker_state",
            "1: starting, 2: recovery, 3: running, 6: controlled shutdown, 7: stopping.",
            lambda: float(self._phase),
        )

    @property
    def phase(self) -> Phase:
        return self._phase

    def enter(self, phase: Phase) -> None:
        self._phase, self._since_ms = phase, self._clock.now_ms()

    def watch(
        self,
        *,
        session: ZooKeeperSession | None = None,
        logs: LogManager | None = None,
        replicas: ReplicaManager | None = None,
        cluster: tuple[BrokerId, MetadataCache] | None = None,
        lost_leadership: LostLeadership | None = None,
    ) -> None:
        """Add parts that exist from now on."""
        self._session = session or self._session
        self._logs = logs or self._logs
        self._replicas = replicas or self._replicas
        self._cluster = cluster or self._cluster
        self._lost_leadership = lost_leadership or self._lost_leadership

    def live(self) -> Verdict:
        return self._verdict(self.fatal is None)

    def ready(self) -> Verdict:
        return self._verdict(self.fatal is None and self._phase is Phase.RUNNING)

    def in_sync(self) -> Verdict:
        behind = self._behind()
        is_ready, document = self.ready()
        ok = is_ready and not behind and not self._is_outside()
        return ok, document | {
            "status": document["status"] if ok else "fail",
            "behind": len(behind),
            "partitions": behind[:NAMED_MAX],
        }

    def _is_outside(self) -> bool:
        return self._lost_leadership is not None and self._lost_leadership.is_outside

    def _behind(self) -> list[str]:
        """Return the partitions with a replica on this broker that is not in their ISR."""
        if self._cluster is None:
            return []
        me, metadata = self._cluster
        return [
            str(partition) for partition, state in metadata.partitions() if me in state.replicas and me not in state.isr
        ]

    def _verdict(self, ok: bool) -> Verdict:
        warnings = self._warnings()
        document: dict[str, Any] = {
            "status": "fail" if not ok else "warn" if warnings else "pass",
            "phase": self._phase.words,
            "since": utc(self._since_ms),
            "warnings": warnings,
        }
        if self.fatal is not None:
            document["fatal"] = f"{type(self.fatal).__name__}: {self.fatal}"
        return ok, document

    def _warnings(self) -> list[str]:
        found = []
        session = self._session
        if session is not None and not session.is_connected and self._phase is not Phase.STARTING:
            found.append(f"ZooKeeper at {session.hosts} does not answer")
        if self._is_outside():
            found.append("the other brokers no longer count this one as alive: it is cut off from ZooKeeper")
        if self._logs is not None:
            offline = [log_dir.path for log_dir in self._logs.dirs if not log_dir.is_online]
            if offline:
                found.append(f"log directories are offline: {', '.join(offline)}")
        if self._replicas is not None:
            refusing = sum(partition.machine.is_under_min_isr for partition in self._replicas)
            if refusing:
                found.append(f"{refusing} partitions led here refuse acks=all (min.insync.replicas)")
        return found
