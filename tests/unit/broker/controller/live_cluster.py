"""Controllers of several brokers in one process, on an embedded ZooKeeper, with requests that go through the codec.

Behind the controllers, a broker is only a metadata cache and a list of the partitions that it was asked to host.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from barnabas.base.clock import SystemClock
from barnabas.base.ids import TopicPartition
from barnabas.broker.controller.driver import Controller, ControllerConfig
from barnabas.broker.controller.settings import ControllerSettings
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.broker.zookeeper_client.operations import Get, GetChildren
from barnabas.broker.zookeeper_client.registration import BrokerRegistrar, create_top_level_paths
from barnabas.broker.zookeeper_client.session import SessionConfig, ZooKeeperSession
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration, Endpoint
from barnabas.client.errors import ConnectionLost, ConnectionRefused
from barnabas.wire import codec
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from barnabas.wire.messages.stop_replica import StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from barnabas.zookeeper.config import ZooKeeperConfig
from barnabas.zookeeper.server import EmbeddedZooKeeper
from tests.manual_time import ManualClock
from tests.support.waiting import eventually

LISTENER = "PLAINTEXT"


def run(story: Coroutine[None, None, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(90):
            await story

    asyncio.run(bounded())


@dataclass
class LiveBroker:
    id: int
    cluster: "LiveCluster"
    session: ZooKeeperSession
    registrar: BrokerRegistrar
    metadata: MetadataCache = field(default_factory=MetadataCache)
    received: list[ApiMessage] = field(default_factory=list)
    links: "list[_Link]" = field(default_factory=list)
    #: Ids of brokers whose ports refuse connections.
    refuses: bool = False
    #: Requests that reach the broker now are never answered.
    hangs: bool = False
    controller: Controller = field(init=False)

    def handle(self, message: ApiMessage) -> ApiMessage:
        self.received.append(message)
        match message:
            case UpdateMetadataRequest():
                self.metadata.update(message)
                return UpdateMetadataResponse()
            case LeaderAndIsrRequest():
                return LeaderAndIsrResponse(
                    topics=[
                        LeaderAndIsrTopicError(
                            topic_id=topic.topic_id,
                            partition_errors=[
                                LeaderAndIsrPartitionError(partition_index=each.partition_index)
                                for each in topic.partition_states
                            ],
                        )
                        for topic in message.topic_states
                    ]
                )
            case StopReplicaRequest():
                return StopReplicaResponse(
                    partition_errors=[
                        StopReplicaPartitionError(topic_name=topic.topic_name, partition_index=each.partition_index)
                        for topic in message.topic_states
                        for each in topic.partition_states
                    ]
                )
        raise AssertionError(f"unexpected {message}")

    def leader(self, partition: TopicPartition) -> int | None:
        state = self.metadata.partition(partition)
        return state.leader if state else None


class _Link:
    def __init__(self, target: LiveBroker) -> None:
        self._target = target
        self._on_closed: Callable[[], None] = lambda: None
        self._is_closed = asyncio.Event()
        target.links.append(self)

    async def request(
        self, message: ApiMessage, response_type: None = None, *, version: int | None = None, timeout_ms: int = 0
    ) -> ApiMessage:
        assert version is not None
        # A real connection takes a moment as well.
        await asyncio.sleep(0)
        if self._target.hangs:
            await self._is_closed.wait()
            raise ConnectionLost("closed by this client")
        if self._target.id not in self._target.cluster.brokers or self._target.refuses:
            raise ConnectionLost("the broker is gone")
        request = codec.decode(type(message), codec.encode(message, version), version)
        response = self._target.handle(request)
        return codec.decode(type(response), codec.encode(response, version), version)

    def on_closed(self, callback: Callable[[], None]) -> None:
        self._on_closed = callback

    def end(self) -> None:
        """The other side has closed the connection."""
        self._on_closed()

    def close(self) -> None:
        self._is_closed.set()


class LiveCluster:
    def __init__(self, data_dir: str) -> None:
        self.clock = ManualClock()
        self.zookeeper = EmbeddedZooKeeper(data_dir, clock=self.clock, config=ZooKeeperConfig(force_sync=False))
        self.brokers: dict[int, LiveBroker] = {}
        self._ids = 0

    async def start(
        self,
        *ids: int,
        rack: Callable[[int], str | None] = lambda _: None,
        before_controller: Callable[[LiveBroker], Awaitable[None]] | None = None,
    ) -> None:
        """`before_controller` runs between the registration of a broker and the start of its controller."""
        for broker_id in ids:
            session = ZooKeeperSession(
                SessionConfig(self.zookeeper.connect_string, chroot="/cluster-1", session_timeout_ms=6_000)
            )
            await session.start()
            await create_top_level_paths(session)
            registration = BrokerRegistration(
                broker_id,
                (Endpoint(LISTENER, "PLAINTEXT", "127.0.0.1", 19200 + broker_id),),
                rack=rack(broker_id),
            )
            registrar = BrokerRegistrar(session, registration, clock=SystemClock(), wait_for_former_self_ms=10_000)
            broker = LiveBroker(broker_id, self, session, registrar)
            config = ControllerConfig(ControllerSettings(broker_id), LISTENER, LISTENER)
            broker.controller = Controller(
                session,
                registrar,
                config,
                clock=SystemClock(),
                connect=self._connect,
                metadata=broker.metadata,
                choose=lambda _: 0,
            )
            self.brokers[broker_id] = broker
            await registrar.register()
            if before_controller is not None:
                await before_controller(broker)
            await broker.controller.start()
            await self.until_known(broker)

    async def until_known(self, broker: LiveBroker) -> None:
        """Wait until every broker, itself included, knows that it is alive."""
        for each in list(self.brokers.values()):
            await eventually(lambda each=each: each.metadata.is_alive(broker.id))  # type: ignore[misc]

    async def kill(self, broker_id: int) -> None:
        broker = self.brokers.pop(broker_id)
        await broker.controller.stop()
        await broker.session.stop()

    def refuse(self, broker_id: int) -> None:
        """Kill its process, as far as others can see: its session goes on."""
        broker = self.brokers[broker_id]
        broker.refuses = True
        links, broker.links = broker.links, []
        for link in links:
            link.end()

    async def stop(self) -> None:
        for broker_id in list(self.brokers):
            await self.kill(broker_id)

    async def the_controller(self) -> LiveBroker:
        """Wait until there is a controller."""
        active = await eventually(lambda: [each for each in self.brokers.values() if each.controller.is_active])
        assert len(active) == 1
        return active[0]

    async def _connect(self, broker_id: int, endpoint: Endpoint) -> _Link:
        target = self.brokers.get(broker_id)
        if target is None:
            raise ConnectionLost(f"nothing listens at {endpoint}")
        if target.refuses:
            raise ConnectionRefused(f"cannot connect to {endpoint}: Connection refused")
        return _Link(target)

    async def dump(self, session: ZooKeeperSession) -> dict[str, dict[str, object]]:
        """Return the tree in the form of the golden file."""
        tree: dict[str, dict[str, object]] = {}
        level = ["/"]
        while level:
            nodes = (await session.batch([Get(path) for path in level])).results
            children = (await session.batch([GetChildren(path) for path in level])).results
            for path, node in zip(level, nodes, strict=True):
                assert node.stat is not None
                tree[path] = {
                    "data": None if node.data is None else node.data.decode(),
                    "ephemeral": bool(node.stat.ephemeral_owner),
                    "version": node.stat.version,
                }
            level = [
                f"{path.rstrip('/')}/{name}"
                for path, listed in zip(level, children, strict=True)
                for name in listed.children
                if (path, name) != ("/", "zookeeper")
            ]
        return tree


@asynccontextmanager
async def live_cluster(*ids: int, rack: Callable[[int], str | None] = lambda _: None) -> AsyncIterator[LiveCluster]:
    with tempfile.TemporaryDirectory() as data_dir:
        cluster = LiveCluster(data_dir)
        await cluster.zookeeper.start()
        try:
            await cluster.start(*ids, rack=rack)
            yield cluster
        finally:
            await cluster.stop()
            await cluster.zookeeper.stop()
