"""A cluster as a client sees it: bootstrap, metadata, a connection per broker, who leads what, and patience.

Owner: the event loop. `Cluster` is an async context manager; leaving it closes every connection.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from barnabas.client.config import ClientConfig
from barnabas.client.connection import Connection, open_connection
from barnabas.client.errors import (
    BrokerRefused,
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
    NotSupportedYet,
    check,
)
from barnabas.client.image import Broker, ClusterImage, TopicInfo, image_of
from barnabas.client.security import ClientSecurity, authenticate
from barnabas.core.errors import ErrorCode
from barnabas.core.ids import TopicPartition
from barnabas.protocol.messages.base import ApiMessage
from barnabas.protocol.messages.fetch import FetchRequest
from barnabas.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.protocol.messages.offset_commit import OffsetCommitRequest
from barnabas.protocol.messages.offset_fetch import OffsetFetchRequest
from barnabas.protocol.messages.produce import ProduceRequest

R = TypeVar("R", bound=ApiMessage)
T = TypeVar("T")

GROUP: Final = 0
TRANSACTION: Final = 1

#: Answers that say "not here any more": look again before the next try.
_STALE_METADATA: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
_STALE_COORDINATOR: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


#: The last versions that name topics: from the next on there are only ids, which this client does not keep.
_NAMES_UP_TO: Final = {
    ProduceRequest.API_KEY: 12,
    FetchRequest.API_KEY: 12,
    OffsetCommitRequest.API_KEY: 9,
    OffsetFetchRequest.API_KEY: 9,
}


class Cluster:
    """Connections and knowledge, shared by everything that one client does."""

    def __init__(self, config: ClientConfig, *, chance: random.Random | None = None) -> None:
        if not config.bootstrap:
            raise NotSupportedYet("a cluster needs at least one bootstrap server")
        self.config = config
        self._security = ClientSecurity.of(config.security_protocol, config.security)
        self.image = ClusterImage()
        self._chance = chance or random.Random()
        self._image_at_s = float("-inf")
        #: By broker, and by whether it is for coordination: a JoinGroup that waits for others must hold no Fetch up.
        self._connections: dict[tuple[int, bool], Connection] = {}
        self._opening: dict[tuple[int, bool], asyncio.Lock] = {}
        self._bootstrap: Connection | None = None
        self._coordinators: dict[tuple[int, str], int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        connections = [*self._connections.values(), *([self._bootstrap] if self._bootstrap else [])]
        self._connections.clear()
        self._bootstrap = None
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.wait_closed()

    # -- connections ----------------------------------------------------------------------------------------------------

    async def connection(self, broker_id: int, *, coordination: bool = False) -> Connection:
        """The connection to a broker of the image; made when there is none that is open."""
        key = (broker_id, coordination)
        connection = self._connections.get(key)
        if connection is not None and not connection.closed:
            return connection
        async with self._opening.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is None or connection.closed:
                broker = self.image.brokers.get(broker_id)
                if broker is None:
                    broker = await self._find_broker(broker_id)
                connection = self._connections[key] = await self._open(broker.host, broker.port)
        return connection

    async def any_connection(self) -> Connection:
        """To whichever broker answers: the least busy that is connected, else any known one, else a bootstrap server."""
        data = [each for (_, coordination), each in self._connections.items() if not coordination]
        connected = [each for each in (*data, self._bootstrap) if each is not None and not each.closed]
        if connected:
            return min(connected, key=lambda each: each.in_flight)
        reasons: list[str] = []
        known = list(self.image.brokers)
        self._chance.shuffle(known)
        for broker_id in known:
            try:
                return await self.connection(broker_id)
            except ConnectionLost as error:
                reasons.append(str(error))
        for host, port in self.config.bootstrap:
            try:
                self._bootstrap = await self._open(host, port)
                return self._bootstrap
            except ConnectionLost as error:
                reasons.append(str(error))
        raise ConnectionLost("; ".join(dict.fromkeys(reasons)))

    async def _open(self, host: str, port: int) -> Connection:
        config = self.config
        return await open_connection(
            host,
            port,
            client_id=config.client_id,
            ssl_context=self._security.tls,
            authenticate=partial(authenticate, security=self._security, timeout_ms=config.request_timeout_ms),
            connect_timeout_ms=config.connect_timeout_ms,
            request_timeout_ms=config.request_timeout_ms,
            max_in_flight=config.max_in_flight,
            response_bytes_max=config.response_bytes_max,
        )

    async def _find_broker(self, broker_id: int) -> Broker:
        await self.refresh(())
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            alive = ", ".join(str(known) for known in sorted(self.image.brokers)) or "none"
            raise ConnectionLost(f"broker {broker_id} is not alive (alive: {alive})")
        return broker

    # -- metadata -------------------------------------------------------------------------------------------------------

    async def refresh(self, topics: Collection[str] | None, *, auto_create: bool = False) -> ClusterImage:
        """New metadata for these topics, or for all (`None`); what is known of other topics stays."""
        connection = await self.any_connection()
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        response = await connection.request(
            MetadataRequest(topics=wanted, allow_auto_topic_creation=auto_create),
            MetadataResponse,
            timeout_ms=self.config.request_timeout_ms,
        )
        check(response.error_code)
        fresh = image_of(response)
        kept = {} if topics is None else dict(self.image.topics)
        self.image = ClusterImage(
            brokers=fresh.brokers,
            cluster_id=fresh.cluster_id,
            controller_id=fresh.controller_id,
            topics=kept | dict(fresh.topics),
        )
        self._image_at_s = asyncio.get_running_loop().time()
        return fresh

    async def brokers(self) -> dict[int, Broker]:
        return dict((await self.retrying("metadata", lambda: self.refresh(()))).brokers)

    async def all_topics(self) -> dict[str, TopicInfo]:
        return dict((await self.retrying("metadata", lambda: self.refresh(None))).topics)

    async def topics(self, names: Collection[str], *, auto_create: bool = False) -> dict[str, TopicInfo]:
        """These topics, fresh. A topic that is not there has its error set."""
        image = await self.retrying("metadata", lambda: self.refresh(names, auto_create=auto_create))
        return dict(image.topics)

    async def leaders(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Partitions by their leader. One without a leader raises, and may be asked for again."""
        wanted = list(partitions)
        now_s = asyncio.get_running_loop().time()
        stale = now_s - self._image_at_s > self.config.metadata_max_age_ms / 1000
        missing = {p.topic for p in wanted if stale or self.image.leader_of(p) < 0}
        if missing:
            await self.refresh(missing)
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in wanted:
            leader = self.image.leader_of(partition)
            if leader < 0:
                raise self._no_leader(partition)
            by_leader.setdefault(leader, []).append(partition)
        return by_leader

    def _no_leader(self, partition: TopicPartition) -> BrokerRefused:
        topic = self.image.topics.get(partition.topic)
        if topic is not None and topic.error not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            return BrokerRefused(topic.error, f"topic {partition.topic}")
        if self.image.partition(partition) is None:
            return BrokerRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {partition}")
        return BrokerRefused(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {partition} has no leader")

    def forget_leaders(self, topics: Iterable[str]) -> None:
        """The next look-up asks again."""
        gone = set(topics)
        image = self.image
        self.image = ClusterImage(
            brokers=image.brokers,
            cluster_id=image.cluster_id,
            controller_id=image.controller_id,
            topics={name: info for name, info in image.topics.items() if name not in gone},
        )

    # -- requests -------------------------------------------------------------------------------------------------------

    async def ask(
        self,
        broker_id: int,
        message: ApiMessage,
        response_type: type[R],
        *,
        timeout_ms: int | None = None,
        version_max: int | None = None,
        coordination: bool = False,
    ) -> R:
        """Ask one broker, once."""
        connection = await self.connection(broker_id, coordination=coordination)
        version = usable_version(connection, message)
        return await connection.request(
            message,
            response_type,
            version=version if version_max is None else min(version, version_max),
            timeout_ms=timeout_ms if timeout_ms is not None else self.config.request_timeout_ms,
        )

    async def ask_any(self, message: ApiMessage, response_type: type[R]) -> R:
        async def once() -> R:
            connection = await self.any_connection()
            return await connection.request(message, response_type, timeout_ms=self.config.request_timeout_ms)

        return await self.retrying(type(message).__name__, once)

    async def ask_controller(
        self,
        message: ApiMessage,
        response_type: type[R],
        *,
        first_error: Callable[[R], int],
        timeout_ms: int | None = None,
    ) -> R:
        """`first_error` finds a code in the response that says whether the controller was the right one to ask."""

        async def once() -> R:
            if self.image.controller_id < 0 or self.image.controller_id not in self.image.brokers:
                await self.refresh(())
            if self.image.controller_id < 0:
                raise BrokerRefused(ErrorCode.NOT_CONTROLLER, "the cluster has no controller at the moment")
            response = await self.ask(self.image.controller_id, message, response_type, timeout_ms=timeout_ms)
            if first_error(response) == ErrorCode.NOT_CONTROLLER:
                raise BrokerRefused(ErrorCode.NOT_CONTROLLER)
            return response

        return await self.retrying(type(message).__name__, once)

    async def coordinator(self, key: str, kind: int = GROUP) -> int:
        """The broker id of the coordinator of a group or a transactional id."""
        known = self._coordinators.get((kind, key))
        if known is not None:
            return known
        connection = await self.any_connection()
        # Versions 4+ take several keys; both ways are filled in, and the version decides.
        response = await connection.request(
            FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key]),
            FindCoordinatorResponse,
            timeout_ms=self.config.request_timeout_ms,
        )
        if response.coordinators:
            found = response.coordinators[0]
            check(found.error_code, found.error_message)
            broker = Broker(found.node_id, found.host, found.port)
        else:
            check(response.error_code, response.error_message)
            broker = Broker(response.node_id, response.host, response.port)
        if broker.id not in self.image.brokers:
            await self.refresh(())
        self._coordinators[kind, key] = broker.id
        return broker.id

    async def ask_coordinator(
        self,
        key: str,
        message: ApiMessage,
        response_type: type[R],
        *,
        kind: int = GROUP,
        error_of: Callable[[R], int],
        timeout_ms: int | None = None,
        version_max: int | None = None,
    ) -> R:
        """Ask, and look again for the coordinator while it says that it is not (or not yet) the one."""

        async def once() -> R:
            try:
                broker_id = await self.coordinator(key, kind)
                response = await self.ask(
                    broker_id,
                    message,
                    response_type,
                    timeout_ms=timeout_ms,
                    version_max=version_max,
                    coordination=True,
                )
            except ClientError as error:
                if error.retriable:
                    self._coordinators.pop((kind, key), None)
                raise
            code = error_of(response)
            if code in _STALE_COORDINATOR:
                self._coordinators.pop((kind, key), None)
                raise BrokerRefused(code)
            if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                raise BrokerRefused(code)
            return response

        return await self.retrying(type(message).__name__, once)

    async def retrying(self, what: str, attempt: Callable[[], Awaitable[T]], *, timeout_ms: int | None = None) -> T:
        """Carry out `attempt` until it succeeds, fails for good, or the time is up."""
        loop = asyncio.get_running_loop()
        allowed_ms = self.config.api_timeout_ms if timeout_ms is None else timeout_ms
        deadline_s = loop.time() + allowed_ms / 1000
        tries = 0
        while True:
            try:
                return await attempt()
            except ClientError as error:
                if not error.retriable:
                    raise
                if isinstance(error, ConnectionLost) and not self.image.brokers and tries >= _BOOTSTRAP_TRIES:
                    raise  # nothing was ever reached: a wrong address is told at once, not after a minute
                if isinstance(error, ConnectionLost) or (
                    isinstance(error, BrokerRefused) and error.code in _STALE_METADATA
                ):
                    self._image_at_s = float("-inf")
                    self.image = ClusterImage(brokers=self.image.brokers, cluster_id=self.image.cluster_id)
                pause_s = self._backoff_s(tries)
                if loop.time() + pause_s >= deadline_s:
                    raise DeadlineExceeded(f"{what}: gave up after {allowed_ms} ms: {error}") from error
                tries += 1
                await asyncio.sleep(pause_s)

    def _backoff_s(self, tries: int) -> float:
        """Doubling from `retry.backoff.ms` up to its maximum, 20 % either way, as Kafka's clients do."""
        pause_ms: int = min(self.config.retry_backoff_ms << min(tries, 20), self.config.retry_backoff_max_ms)
        return pause_ms * self._chance.uniform(0.8, 1.2) / 1000


_BOOTSTRAP_TRIES: Final = 3


def usable_version(connection: Connection, message: ApiMessage) -> int:
    """The highest common version in which topics go by their names."""
    return names_only(message, connection.versions.pick(type(message)))


def names_only(message: ApiMessage, version: int) -> int:
    return min(version, _NAMES_UP_TO.get(message.API_KEY, version))
