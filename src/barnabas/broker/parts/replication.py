"""Builds the replication of a broker: its replicas, their fetchers, and the handling of the controller's requests.

Owner: the event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from barnabas.base.clock import Clock
from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.derived import derive
from barnabas.base.config.dynamic import DynamicConfig
from barnabas.base.ids import BrokerEpoch, BrokerId, TopicPartition
from barnabas.base.metrics.registry import Registry
from barnabas.broker.parts.readiness import Readiness
from barnabas.broker.replication.control_requests import ControlRequests
from barnabas.broker.replication.failed_dirs import FailedDirs
from barnabas.broker.replication.fetchers import FetcherManager
from barnabas.broker.replication.isr_changes import IsrChanges
from barnabas.broker.replication.leader_endpoint import FetcherSettings, LeaderEndpoint, RemoteLeader
from barnabas.broker.replication.log_dir_moves import LogDirMoves
from barnabas.broker.replication.lost_leadership import Ask, LostLeadership
from barnabas.broker.replication.machine import PartitionMachine
from barnabas.broker.replication.manager import ReplicaManager
from barnabas.broker.replication.read_replica import ReadReplicaSelector
from barnabas.broker.replication.throttle import ReplicationThrottles
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.server.broker_connections import BrokerConnections, Lane
from barnabas.broker.server.controller_client import ControllerClient
from barnabas.broker.storage.manager import LogManager
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache, MetadataChange
from barnabas.broker.zookeeper_client.session import SessionState, ZooKeeperSession
from barnabas.client.errors import RequestTimedOut
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse

#: Time limit of a question about leaders, with its connection.
LEADERS_TIMEOUT_MS = 2_000


class ReplicationParts:
    def __init__(
        self,
        broker_id: BrokerId,
        dynamic: DynamicConfig,
        logs: LogManager,
        metadata: MetadataCache,
        connections: BrokerConnections,
        controller: ControllerClient,
        readiness: Readiness,
        session: ZooKeeperSession,
        *,
        broker_epoch: Callable[[], BrokerEpoch],
        load_settings: Callable[[Iterable[str]], Awaitable[None]],
        report_failed_dir: Callable[[str], None],
        fail: Callable[[BaseException], None],
        clock: Clock,
        registry: Registry,
        loop: asyncio.AbstractEventLoop,
        tasks: asyncio.TaskGroup,
        on_thread: Callable[[Callable[[], bytes]], Coroutine[Any, Any, bytes]],
        spawn: Spawn,
    ) -> None:
        config = dynamic.broker
        self._broker_id = broker_id
        self._dynamic = dynamic
        self._metadata = metadata
        self._spawn = spawn
        self.throttles = ReplicationThrottles.of(
            broker_id,
            config,
            now_ms=lambda: int(clock.monotonic_s() * 1000),
            config_of=dynamic.log_config,
            registry=registry,
        )
        self.isr_changes = IsrChanges(
            broker_id,
            broker_epoch=broker_epoch,
            send=controller.alter_partition,
            on_settled=lambda partition, settled: self.replicas.isr_settled(partition, settled),
            clock=clock,
            registry=registry,
        )
        selector = ReadReplicaSelector(lambda: dynamic.broker, rack_of=metadata.rack_of, now_ms=clock.now_ms)
        self.replicas = ReplicaManager(
            broker_id,
            clock=clock,
            timers=loop,
            registry=registry,
            is_known=readiness.is_known,
            submit_isr_change=self.isr_changes.submit,
            prefers_replica=selector.select,
            fetch_bytes_max=config.fetch_max_bytes,
            is_throttled=self.throttles.leader.is_throttled,
        )
        #: A feature may wrap the endpoints through which followers fetch from their leaders.
        self.wrap_leader: Callable[[BrokerId, LeaderEndpoint], LeaderEndpoint] = lambda leader, endpoint: endpoint
        self.fetchers = self._make_fetchers(
            derive(FetcherSettings, config, broker_id=broker_id), connections, broker_epoch, tasks, clock
        )
        self.control = ControlRequests(
            broker_id,
            self.replicas,
            self.fetchers,
            logs,
            clock,
            broker_epoch=broker_epoch,
            make_machine=self._make_machine,
            is_alive=metadata.is_alive,
            load_settings=load_settings,
        )
        self.moves = LogDirMoves(
            self.replicas, logs, clock, on_thread=on_thread, spawn=spawn, throttle=self.throttles.moves
        )
        self.failed_dirs = FailedDirs(
            logs,
            self.replicas,
            self.fetchers,
            self.control,
            call_soon=loop.call_soon,
            report=report_failed_dir,
            fail=fail,
        )
        self.lost_leadership = LostLeadership(
            broker_id,
            metadata,
            self.replicas,
            ask=_asker(connections.lane("leaders")),
            stop_leading=self.control.stop_serving,
            session_timeout_s=config.zookeeper_session_timeout_ms / 1000,
        )
        session.on_state(
            lambda state: self.lost_leadership.zookeeper_changed(
                is_away=state in (SessionState.SUSPENDED, SessionState.EXPIRED)
            )
        )
        logs.on_log_start = self.replicas.hosted.log_start_moved
        metadata.subscribe(self._metadata_changed)

    def _make_fetchers(
        self,
        settings: FetcherSettings,
        connections: BrokerConnections,
        broker_epoch: Callable[[], BrokerEpoch],
        tasks: asyncio.TaskGroup,
        clock: Clock,
    ) -> FetcherManager:
        def endpoint(leader: BrokerId) -> LeaderEndpoint:
            remote = RemoteLeader(
                leader, lambda broker: connections.open(broker, purpose="fetcher"), settings, broker_epoch
            )
            return self.wrap_leader(leader, remote)

        return FetcherManager(settings, tasks, clock, endpoint, throttle=self.throttles.follower)

    def start(self) -> None:
        self._spawn(self.isr_changes.run(), "isr changes")
        self._spawn(self._shrink_isrs(), "isr expiration")
        self._spawn(self.lost_leadership.run(), "lost leaderships")

    async def _shrink_isrs(self) -> None:
        """Check twice in `replica.lag.time.max.ms`, as Kafka does: a lagging follower leaves the ISR within 1.5 times that."""
        while True:
            await asyncio.sleep(self._dynamic.broker.replica_lag_time_max_ms / 2000)
            self.replicas.tick()

    def settings_changed(self, before: BrokerConfig, after: BrokerConfig) -> None:
        self.throttles.change_limits(after)
        if after.num_replica_fetchers != before.num_replica_fetchers:
            self.fetchers.resize(after.num_replica_fetchers)

    def _metadata_changed(self, change: MetadataChange) -> None:
        for topic in {partition.topic for partition in change.deleted}:
            if self._metadata.topic(topic) is None:
                self.replicas.hosted.forget_topic(topic)

    def _make_machine(self, tp: TopicPartition) -> PartitionMachine:
        return PartitionMachine(
            local_broker=self._broker_id,
            replica_lag_time_max_ms=self._dynamic.broker.replica_lag_time_max_ms,
            min_insync_replicas=self._dynamic.log_config(tp.topic).min_insync_replicas,
            is_eligible=lambda broker, epoch: self._metadata.is_alive(broker),
        )


def _asker(lane: Lane) -> Ask:
    async def ask(broker: BrokerId, request: MetadataRequest) -> MetadataResponse:
        try:
            async with asyncio.timeout(LEADERS_TIMEOUT_MS / 1000):
                connection = await lane.to(broker)
                return await connection.request(request, MetadataResponse)
        except TimeoutError:
            raise RequestTimedOut(f"broker {broker} did not answer within {LEADERS_TIMEOUT_MS} ms") from None

    return ask
