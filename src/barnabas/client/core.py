"""The decisions of a client, without I/O: the broker to ask, the meaning of a response, the time to retry, stale metadata.

The core consists of coroutines and imports no event loop, socket or clock. All effects go through `Io`:
`client.asynchronous` implements it with asyncio, `client.blocking` with plain sockets, and tests and simulations have their
own. So every operation that is written against `ClientCore` (`client.admin`, `client.transactions`) serves both shells.
"""

import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeVar

from barnabas.base.backoff import Backoff
from barnabas.base.errors import ConfigError, ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.config import ClientConfig
from barnabas.client.errors import (
    BrokerRefused,
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
    OtherProtocol,
    RequestTimedOut,
    UnsupportedVersion,
    check,
)
from barnabas.client.exchange import Link, api_name, version_with_names
from barnabas.client.image import Broker, ClusterImage, LeaderEpochs, TopicInfo, image_of
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

R = TypeVar("R", bound=ApiMessage)
T = TypeVar("T")

#: Kinds of coordinator, as FindCoordinator numbers them.
GROUP: Final = 0
TRANSACTION: Final = 1

#: Errors of a broker that no longer serves the partition: refresh the metadata before the next try.
_STALE_METADATA: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
_STALE_COORDINATOR: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
#: Errors of a broker that is not, or not yet, the coordinator.
COORDINATOR_TROUBLE: Final = _STALE_COORDINATOR | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
#: A coordinator that loads, or ends a transaction, needs milliseconds; the first pause is as short.
_COORDINATOR_PAUSE_MS: Final = 5
#: If no broker was ever reached, report a wrong address after this many tries instead of after a minute.
_BOOTSTRAP_TRIES: Final = 3

#: How long a broker may take over metadata before the client asks another one. A starting broker accepts logins, but
#: answers no request until the controller has sent it the cluster's metadata.
_METADATA_PATIENCE_MS: Final = 5_000

#: The purposes of connections. Each purpose has its own connection to each broker: a JoinGroup that waits for other
#: members must not delay a Fetch, and a Fetch that waits for records must not delay a Produce.
DATA, COORDINATION, PRODUCE = "data", "coordination", "produce"


def _address(host: str, port: int) -> str:
    """Format an address as `Link.address` does."""
    return f"{host}:{port}"


class Io(Protocol):
    """What the core needs from its environment."""

    def now_s(self) -> float:
        """Return the time of a clock that never goes back."""

    async def pause(self, seconds: float) -> None: ...

    async def connect(self, host: str, port: int) -> Link:
        """Open a connection, negotiate versions and authenticate."""

    def lock(self) -> AbstractAsyncContextManager[object]: ...

    async def together(self, tasks: Sequence[Coroutine[Any, Any, T]]) -> list[T | ClientError]:
        """Run all tasks with their requests in flight at the same time; return their outcomes in order."""


class ClientCore:
    """Connections and metadata, shared by all operations of one client."""

    def __init__(self, config: ClientConfig, io: Io, *, chance: random.Random, fails_early: bool) -> None:
        """`fails_early`: give up after a few tries if no broker was ever reached."""
        if not config.bootstrap:
            raise ConfigError("a cluster needs at least one bootstrap server")
        self.config = config
        self.io = io
        self.image = ClusterImage()
        self._leader_epochs = LeaderEpochs()
        self._chance = chance
        self._fails_early = fails_early
        self._image_at_s = float("-inf")
        #: Open connections, by broker and purpose.
        self._links: dict[tuple[int, str], Link] = {}
        self._opening: dict[tuple[int, str], AbstractAsyncContextManager[object]] = {}
        self._bootstrap: Link | None = None
        self._bootstrapping = io.lock()
        self._coordinators: dict[tuple[int, str], int] = {}
        #: Addresses whose last connection attempt failed.
        self._out_of_reach: set[str] = set()
        #: Brokers that accepted a connection but did not answer a request that any broker answers. They are asked last.
        self._silent: set[str] = set()
        #: Receives a sentence about connection trouble. Tools write it to stderr.
        self.tell: Callable[[str], None] = lambda message: None

    def drop_links(self) -> list[Link]:
        """Close every connection and return them, for a shell that waits until they are closed."""
        links = [*self._links.values(), *([self._bootstrap] if self._bootstrap else [])]
        self._links.clear()
        self._bootstrap = None
        for link in links:
            link.close()
        return links

    def drop_purpose(self, purpose: str) -> None:
        """Close the connections of a purpose that is no longer used."""
        for key in [key for key in self._links if key[1] == purpose]:
            self._links.pop(key).close()
        for key in [key for key in self._opening if key[1] == purpose]:
            del self._opening[key]

    # -- connections ----------------------------------------------------------------------------------------------------

    async def link(self, broker_id: int, *, purpose: str = DATA) -> Link:
        """Return the connection to a broker of the image; open one if there is none."""
        key = (broker_id, purpose)
        link = self._links.get(key)
        if link is not None and not link.closed:
            return link
        async with self._opening.setdefault(key, self.io.lock()):
            link = self._links.get(key)
            if link is None or link.closed:
                broker = self.image.brokers.get(broker_id) or await self._find_broker(broker_id)
                link = self._links[key] = await self._connect(broker.host, broker.port)
        return link

    async def any_link(self) -> Link:
        """Return a connection to any broker that answers: the least busy open one, else a known broker, else a bootstrap
        server."""
        data = [each for (_, purpose), each in self._links.items() if purpose == DATA]
        connected = [each for each in (*data, self._bootstrap) if each is not None and not each.closed]
        answering = [each for each in connected if each.address not in self._silent]
        if answering:
            return min(answering, key=lambda each: each.in_flight)
        reasons: list[str] = []
        known = list(self.image.brokers.values())
        self._chance.shuffle(known)
        for broker in known:
            if _address(broker.host, broker.port) in self._silent:
                continue
            try:
                return await self.link(broker.id)
            except (ConnectionLost, RequestTimedOut) as error:
                reasons.append(str(error))
        async with self._bootstrapping:
            return await self._bootstrap_link(reasons)

    async def _bootstrap_link(self, reasons: list[str]) -> Link:
        """Open one bootstrap connection for all concurrent callers: a second one would never be closed."""
        addresses = sorted(self.config.bootstrap, key=lambda each: _address(*each) in self._silent)
        if self._bootstrap is not None and not self._bootstrap.closed:
            if self._bootstrap.address not in self._silent or _address(*addresses[0]) in self._silent:
                return self._bootstrap
            self._bootstrap.close()
        failure = ConnectionLost
        for host, port in addresses:
            try:
                self._bootstrap = await self._connect(host, port)
                return self._bootstrap
            except (ConnectionLost, RequestTimedOut) as error:
                reasons.append(str(error))
                failure = OtherProtocol if isinstance(error, OtherProtocol) else failure
        raise failure("; ".join(dict.fromkeys(reasons)))

    async def _connect(self, host: str, port: int) -> Link:
        """Report trouble with a broker that was reached before, and report when it is reached again."""
        address = _address(host, port)
        try:
            link = await self.io.connect(host, port)
        except (ConnectionLost, RequestTimedOut) as error:
            if self.image.brokers and address not in self._out_of_reach:
                self._out_of_reach.add(address)
                self.tell(f"{error}; trying again")
            raise
        if address in self._out_of_reach:
            self._out_of_reach.discard(address)
            self.tell(f"connected to {address} again")
        return link

    async def _find_broker(self, broker_id: int) -> Broker:
        await self.refresh(())
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            alive = ", ".join(str(known) for known in sorted(self.image.brokers)) or "none"
            raise ConnectionLost(f"broker {broker_id} is not alive (alive: {alive})")
        return broker

    # -- metadata -------------------------------------------------------------------------------------------------------

    async def refresh(self, topics: Collection[str] | None, *, auto_create: bool = False) -> ClusterImage:
        """Fetch metadata of these topics, or of all (`None`); metadata of other topics stays as it is."""
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        response = await self._ask_in_turn(
            MetadataRequest(topics=wanted, allow_auto_topic_creation=auto_create),
            MetadataResponse,
            patience_ms=_METADATA_PATIENCE_MS,
        )
        check(response.error_code)
        fresh = self._leader_epochs.checked(image_of(response), is_whole=topics is None)
        self.image = fresh if topics is None else fresh.with_topics({**self.image.topics, **fresh.topics})
        self._image_at_s = self.io.now_s()
        return fresh

    async def brokers(self) -> dict[int, Broker]:
        return dict((await self.retrying("metadata", lambda: self.refresh(()))).brokers)

    async def all_topics(self) -> dict[str, TopicInfo]:
        return dict((await self.retrying("metadata", lambda: self.refresh(None))).topics)

    async def topics(self, names: Collection[str], *, auto_create: bool = False) -> dict[str, TopicInfo]:
        """Return fresh metadata of these topics. A topic that does not exist has its error set."""
        image = await self.retrying("metadata", lambda: self.refresh(names, auto_create=auto_create))
        return dict(image.topics)

    async def existing_topic(self, name: str, *, timeout_ms: int | None = None) -> TopicInfo:
        """Wait until the topic has partitions and return it: the broker may be creating it (`auto.create.topics.enable`)."""

        async def once() -> TopicInfo:
            info = (await self.refresh([name], auto_create=True)).topics.get(name)
            check(info.error if info is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}")
            if info is None or not info.partitions:
                raise BrokerRefused(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name}")
            return info

        return await self.retrying(f"metadata of {name}", once, timeout_ms=timeout_ms)

    async def leaders(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Group partitions by leader. A partition without a leader raises a retriable error."""
        wanted = list(partitions)
        stale = self.io.now_s() - self._image_at_s > self.config.metadata_max_age_ms / 1000
        missing = dict.fromkeys(p.topic for p in wanted if stale or self.image.leader_of(p) < 0)
        if missing:
            await self.refresh(missing)
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in wanted:
            leader = self.image.leader_of(partition)
            if leader < 0:
                raise self.no_leader(partition)
            by_leader.setdefault(leader, []).append(partition)
        return by_leader

    def no_leader(self, partition: TopicPartition) -> BrokerRefused:
        """Build the error that says why a partition has no leader in the image."""
        topic = self.image.topics.get(partition.topic)
        if topic is not None and topic.error not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            return BrokerRefused(topic.error, f"topic {partition.topic}")
        if self.image.partition(partition) is None:
            return BrokerRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {partition}")
        return BrokerRefused(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {partition} has no leader")

    def forget_leaders(self, topics: Iterable[str] | None = None) -> None:
        """Make the next look-up of these topics, or of all, ask the cluster."""
        forgotten = self.image.topics.keys() if topics is None else set(topics)
        self.image = self.image.with_topics({n: info for n, info in self.image.topics.items() if n not in forgotten})

    # -- requests -------------------------------------------------------------------------------------------------------

    async def ask(
        self,
        broker_id: int,
        message: ApiMessage,
        response_type: type[R],
        *,
        timeout_ms: int | None = None,
        version_min: int = 0,
        version_max: int | None = None,
        purpose: str = DATA,
    ) -> R:
        """Ask one broker, once."""
        link = await self.link(broker_id, purpose=purpose)
        version = version_with_names(message, link.versions.pick(type(message)))
        if version < version_min:
            name = api_name(type(message))
            raise UnsupportedVersion(f"broker {broker_id} knows {name} up to version {version} only")
        return await link.request(
            message,
            response_type,
            version=version if version_max is None else min(version, version_max),
            timeout_ms=timeout_ms if timeout_ms is not None else self.config.request_timeout_ms,
        )

    async def ask_any(self, message: ApiMessage, response_type: type[R]) -> R:
        async def once() -> R:
            return await self._ask_in_turn(message, response_type)

        return await self.retrying(api_name(type(message)), once)

    async def _ask_in_turn(self, message: ApiMessage, response_type: type[R], *, patience_ms: int | None = None) -> R:
        """Ask any broker. If it does not answer, ask the others, one after the other.

        While other brokers can be asked, a broker gets no more than `patience_ms`.
        """
        while True:
            link = await self.any_link()
            allowed_ms = self.config.request_timeout_ms
            is_last = link.address in self._silent or not self._others_than(link)
            if patience_ms is not None and not is_last:
                allowed_ms = min(allowed_ms, patience_ms)
            try:
                answer = await link.request(message, response_type, timeout_ms=allowed_ms)
            except (ConnectionLost, RequestTimedOut):
                link.close()
                self._silent.add(link.address)
                if is_last:
                    raise
            else:
                self._silent.discard(link.address)
                return answer

    def _others_than(self, link: Link) -> set[str]:
        """Return the addresses of brokers that may answer if this one does not."""
        known = [(broker.host, broker.port) for broker in self.image.brokers.values()]
        return {_address(*place) for place in (*known, *self.config.bootstrap)} - self._silent - {link.address}

    async def ask_controller(
        self,
        message: ApiMessage,
        response_type: type[R],
        *,
        first_error: Callable[[R], int],
        timeout_ms: int | None = None,
    ) -> R:
        """`first_error` returns the code of the response that tells whether this broker is the controller."""

        async def once() -> R:
            if self.image.controller_id < 0 or self.image.controller_id not in self.image.brokers:
                await self.refresh(())
            if self.image.controller_id < 0:
                raise BrokerRefused(ErrorCode.NOT_CONTROLLER, "the cluster has no controller at the moment")
            response = await self.ask(self.image.controller_id, message, response_type, timeout_ms=timeout_ms)
            if first_error(response) == ErrorCode.NOT_CONTROLLER:
                raise BrokerRefused(ErrorCode.NOT_CONTROLLER)
            return response

        return await self.retrying(api_name(type(message)), once)

    # -- coordinators ---------------------------------------------------------------------------------------------------

    async def coordinator(self, key: str, kind: int = GROUP) -> int:
        """Return the broker id of the coordinator of a group or a transactional id."""
        return (await self._find_coordinators(kind, [key]))[key]

    async def coordinators(self, keys: Sequence[str], kind: int = GROUP) -> dict[str, int]:
        """Return the coordinators of many keys, with one request if the broker supports that."""
        return await self._find_coordinators(kind, keys)

    async def _find_coordinators(self, kind: int, keys: Sequence[str]) -> dict[str, int]:
        unknown = [key for key in keys if (kind, key) not in self._coordinators]
        if unknown:
            many = (await self.any_link()).versions.pick(FindCoordinatorRequest) >= 4
            for some in [unknown] if many else [[key] for key in unknown]:
                # The request fills both the old field and the new one; its version decides which one is sent.
                request = FindCoordinatorRequest(key=some[0], key_type=kind, coordinator_keys=some)
                response = await self._ask_in_turn(request, FindCoordinatorResponse, patience_ms=_METADATA_PATIENCE_MS)
                if not response.coordinators:
                    check(response.error_code, response.error_message or some[0])
                    self._coordinators[kind, some[0]] = response.node_id
                for found in response.coordinators:
                    check(found.error_code, found.error_message or found.key)
                    self._coordinators[kind, found.key] = found.node_id
        unnamed = [key for key in keys if (kind, key) not in self._coordinators]
        if unnamed:  # an older broker answered; it supports one key per request
            raise BrokerRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, unnamed[0])
        known = {key: self._coordinators[kind, key] for key in keys}
        if any(broker_id not in self.image.brokers for broker_id in known.values()):
            await self.refresh(())
        return known

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
        purpose: str = COORDINATION,
    ) -> R:
        """Ask the coordinator. Look it up again while the broker says that it is not, or not yet, the coordinator."""
        answers = await self.ask_coordinators(
            {key: message},
            response_type,
            kind=kind,
            error_of=error_of,
            timeout_ms=timeout_ms,
            version_max=version_max,
            purpose=purpose,
        )
        return answers[key]

    async def ask_coordinators(
        self,
        requests: Mapping[str, ApiMessage],
        response_type: type[R],
        *,
        kind: int,
        error_of: Callable[[R], int],
        again: Collection[ErrorCode] = COORDINATOR_TROUBLE,
        timeout_ms: int | None = None,
        version_min: int = 0,
        version_max: int | None = None,
        purpose: str = COORDINATION,
    ) -> dict[str, R]:
        """Ask each key's coordinator at the same time, until each has answered with a code that is not in `again`.

        Keys whose coordinator does not support `version_min` are left out: other coordinators may already have acted.
        """
        answers: dict[str, R] = {}
        too_old: set[str] = set()

        async def one(key: str, broker_id: int) -> None:
            try:
                response = await self.ask(
                    broker_id, requests[key], response_type, timeout_ms=timeout_ms,
                    version_min=version_min, version_max=version_max, purpose=purpose,
                )  # fmt: skip
            except UnsupportedVersion:
                if not version_min:
                    raise
                too_old.add(key)
                return
            except ClientError:
                self._coordinators.pop((kind, key), None)
                raise
            code = ErrorCode(error_of(response))
            if code in _STALE_COORDINATOR:
                self._coordinators.pop((kind, key), None)
            if code in again:
                raise BrokerRefused(code, key)
            answers[key] = response

        async def once() -> None:
            unanswered = [key for key in requests if key not in answers and key not in too_old]
            brokers = await self._find_coordinators(kind, unanswered)
            outcomes = await self.io.together([one(key, brokers[key]) for key in unanswered])
            troubles = [outcome for outcome in outcomes if isinstance(outcome, ClientError)]
            if troubles:
                raise next((trouble for trouble in troubles if not trouble.retriable), troubles[0])

        what = api_name(response_type) + (f" of {len(requests)} ids" if len(requests) > 1 else "")
        await self.retrying(what, once, pause_ms=_COORDINATOR_PAUSE_MS)
        return {key: answers[key] for key in requests if key in answers}

    # -- patience -------------------------------------------------------------------------------------------------------

    async def retrying(
        self,
        what: str,
        attempt: Callable[[], Awaitable[T]],
        *,
        timeout_ms: int | None = None,
        pause_ms: int | None = None,
    ) -> T:
        """Run `attempt` until it succeeds, fails for good, or the time is up. `pause_ms` is the first pause."""
        allowed_ms = self.config.api_timeout_ms if timeout_ms is None else timeout_ms
        began_s = self.io.now_s()
        deadline_s = began_s + allowed_ms / 1000
        first_ms = self.config.retry_backoff_ms if pause_ms is None else pause_ms
        # Plus or minus 20 %, as Kafka's clients do.
        backoff = Backoff(
            first_ms / 1000, self.config.retry_backoff_max_ms / 1000, lambda: self._chance.uniform(0.8, 1.2)
        )
        while True:
            try:
                return await attempt()
            except ClientError as error:
                if not error.retriable:
                    raise
                was_lost = isinstance(error, ConnectionLost | RequestTimedOut)
                if was_lost and self._fails_early and not self.image.brokers:
                    waited_ms = (self.io.now_s() - began_s) * 1000
                    if backoff.failures >= _BOOTSTRAP_TRIES or waited_ms >= self.config.setup_timeout_ms:
                        raise
                if was_lost or (isinstance(error, BrokerRefused) and error.code in _STALE_METADATA):
                    self._image_at_s = float("-inf")
                    self.image = ClusterImage(brokers=self.image.brokers, cluster_id=self.image.cluster_id)
                pause_s = backoff.failed()
                if self.io.now_s() + pause_s >= deadline_s:
                    raise DeadlineExceeded(f"{what}: gave up after {allowed_ms} ms: {error}") from error
                await self.io.pause(pause_s)
