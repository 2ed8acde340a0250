"""A client for threads without an event loop, over plain sockets: Spark's processes, small scripts.

`client.core` makes the decisions. `drive` runs its coroutines here and blocks where an event loop would switch tasks.
Owner: one thread. A large response is received straight into its own buffer, and its records are views of that buffer.
"""

import random
import socket
import ssl
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, Generic, Self, TypeVar, cast

from barnabas.base.errors import Malformed
from barnabas.base.ids import TopicPartition
from barnabas.base.words import READ_UNCOMMITTED
from barnabas.client import fetching
from barnabas.client.admin import partitions as partition_admin
from barnabas.client.config import ClientConfig
from barnabas.client.core import DATA, ClientCore
from barnabas.client.errors import ClientError, ConnectionLost, RequestTimedOut, check
from barnabas.client.exchange import BrokerVersions, Exchange, Pending, negotiate, version_with_names
from barnabas.client.fetching import ConsumerConfig, Fetched
from barnabas.client.image import ClusterImage
from barnabas.client.security import (
    RENEWAL_SHARE,
    ClientSecurity,
    ended_at_once,
    failed_handshake,
    log_in,
    lost_connection,
)
from barnabas.wire.messages.base import ApiMessage

R = TypeVar("R", bound=ApiMessage)
T = TypeVar("T")

_SIZE: Final = struct.Struct(">i")


# -- coroutines without an event loop ---------------------------------------------------------------------------------


def drive(operation: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the core to its end."""
    while True:
        try:
            operation.send(None)
        except StopIteration as end:
            return cast(T, end.value)


class _Closes(ABC):
    """Close at the end of a `with` statement."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...


class _Turn:
    """Awaited between sending and receiving, so that operations driven together all send before the first one waits."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def _together(operations: Sequence[Coroutine[Any, Any, T]]) -> list[T | ClientError]:
    outcomes: dict[int, T | ClientError] = {}
    while len(outcomes) < len(operations):
        for index, operation in enumerate(operations):
            if index in outcomes:
                continue
            try:
                operation.send(None)
            except StopIteration as end:
                outcomes[index] = cast(T, end.value)
            except ClientError as error:
                outcomes[index] = error
    return [outcomes[index] for index in range(len(operations))]


# -- one connection ---------------------------------------------------------------------------------------------------


class Awaited(Pending, Generic[R]):
    """A request that was sent. Its response may already be here: it can arrive while the caller waits for another one."""

    __slots__ = ("deadline_s", "response")

    deadline_s: float
    response: R | None


class BlockingConnection(_Closes):
    """One connection to one broker. Any failure ends it."""

    def __init__(self, host: str, port: int, config: ClientConfig, security: ClientSecurity | None = None) -> None:
        """`security` is built from the settings unless the caller passes it; building it reads files and may fetch a token."""
        self._security = security or ClientSecurity.of(config.security_protocol, config.security)
        #: When the session must be renewed; None if the broker does not end it, and during a renewal.
        self._renew_at_s: float | None = None
        self.address = f"{host}:{port}"
        self._config = config
        self._exchange: Exchange[Awaited[Any]] = Exchange(
            Awaited, client_id=config.client_id, response_bytes_max=config.response_bytes_max
        )
        try:
            self._socket = socket.create_connection((host, port), timeout=config.connect_timeout_ms / 1000)
        except (ValueError, OverflowError) as error:  # a broker may call itself by anything
            raise ConnectionLost(f"cannot connect to {self.address!r}: this is not an address: {error}") from None
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {self.address}: {error.strerror or error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed = False
        try:
            if self._security.tls is not None:
                self._socket = self._wrap(self._security.tls, host)
            try:
                self._exchange.versions = drive(negotiate(BlockingLink(self), config.setup_timeout_ms))
            except ConnectionLost as error:
                raise (ended_at_once(self.address, error) if self._security.tls is None else error) from error
            self._authenticate()
        except BaseException:
            self.close()
            raise
        self._exchange.set_up()

    def close(self) -> None:
        self.closed = True
        self._socket.close()

    @property
    def versions(self) -> BrokerVersions:
        return self._exchange.versions

    @property
    def in_flight(self) -> int:
        return len(self._exchange.unanswered)

    def request(
        self,
        message: ApiMessage,
        response_type: type[R],
        *,
        version: int | None = None,
        timeout_ms: int | None = None,
    ) -> R:
        """Send, and wait for the response. `version` defaults to the highest that both sides support."""
        return self.receive(self.send(message, response_type, version=version, timeout_ms=timeout_ms))

    def send(
        self,
        message: ApiMessage,
        response_type: type[R],
        *,
        version: int | None = None,
        timeout_ms: int | None = None,
    ) -> "Awaited[R]":
        """Send without waiting: several requests may be in flight."""
        self._keep_session()
        deadline_s = time.monotonic() + (timeout_ms or self._config.request_timeout_ms) / 1000
        data, awaited = self._exchange.request(message, response_type, self._version(message, version))
        awaited.deadline_s, awaited.response = deadline_s, None
        self._write(data, awaited.name, deadline_s)
        return awaited

    def post(self, message: ApiMessage, *, version: int | None = None) -> None:
        """Send a request that gets no response: Produce with acks=0."""
        self._keep_session()
        data = self._exchange.post(message, self._version(message, version))
        self._write(data, type(message).__name__, time.monotonic() + self._config.request_timeout_ms / 1000)

    def receive(self, awaited: "Awaited[R]") -> R:
        """Return the response. Responses to earlier requests arrive first and are kept until their callers ask for them."""
        while awaited.response is None:
            self._take()
        return awaited.response

    def _version(self, message: ApiMessage, version: int | None) -> int:
        return version_with_names(message, self.versions.pick(type(message))) if version is None else version

    def _write(self, data: bytes, what: str, deadline_s: float) -> None:
        with self._ending_on_failure(what):
            self._socket.settimeout(self._left_s(deadline_s))
            self._socket.sendall(data)

    def _take(self) -> None:
        """Receive the next response, which belongs to the oldest request."""
        if self.closed or not self._exchange.unanswered:
            raise ConnectionLost(f"connection to {self.address} was closed before the answer")
        oldest = self._exchange.unanswered[0]
        with self._ending_on_failure(oldest.name):
            (size,) = _SIZE.unpack(self._read_exactly(4, oldest.deadline_s))
            self._exchange.check_size(size)
            awaited, response = self._exchange.answer(self._read_exactly(size, oldest.deadline_s))
        awaited.response = response

    @contextmanager
    def _ending_on_failure(self, what: str) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            self.close()
            raise RequestTimedOut(f"{what} to {self.address} was not answered in time") from None
        except OSError as error:
            self.close()
            raise lost_connection(self.address, error) from error
        except Malformed as error:
            self.close()
            raise ConnectionLost(f"{self.address} sent an invalid response: {error}") from error

    def _wrap(self, tls: ssl.SSLContext, host: str) -> socket.socket:
        try:
            return tls.wrap_socket(self._socket, server_hostname=host)
        except OSError as error:
            raise failed_handshake(self.address, error) from error

    def _keep_session(self) -> None:
        """Authenticate again before the broker ends the session. The broker answers earlier requests first."""
        if self._renew_at_s is not None and time.monotonic() >= self._renew_at_s:
            self._renew_at_s = None
            while self._exchange.unanswered:
                self._take()
            self._authenticate()

    def _authenticate(self) -> None:
        began_s = time.monotonic()
        conversation = self._security.exchange(self.address)
        lifetime_ms = drive(log_in(BlockingLink(self), conversation, self._config.request_timeout_ms))
        if lifetime_ms > 0:
            self._renew_at_s = began_s + lifetime_ms * RENEWAL_SHARE / 1000

    def _read_exactly(self, size: int, deadline_s: float) -> memoryview:
        view = memoryview(bytearray(size))
        done = 0
        while done < size:
            self._socket.settimeout(self._left_s(deadline_s))
            count = self._socket.recv_into(view[done:])
            if count == 0:
                raise ConnectionResetError(0, "closed by the broker")
            done += count
        return view

    def _left_s(self, deadline_s: float) -> float:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


class BlockingLink:
    """A blocking connection as the core uses one."""

    def __init__(self, connection: BlockingConnection) -> None:
        self.connection = connection

    @property
    def address(self) -> str:
        return self.connection.address

    @property
    def versions(self) -> BrokerVersions:
        return self.connection.versions

    @property
    def closed(self) -> bool:
        return self.connection.closed

    @property
    def in_flight(self) -> int:
        return self.connection.in_flight

    async def request(
        self, message: ApiMessage, response_type: type[R], *, version: int | None = None, timeout_ms: int
    ) -> R:
        awaited = self.connection.send(message, response_type, version=version, timeout_ms=timeout_ms)
        await _Turn()
        return self.connection.receive(awaited)

    async def compute(self, work: Callable[[], T]) -> T:
        return work()

    def close(self) -> None:
        self.connection.close()


# -- a cluster --------------------------------------------------------------------------------------------------------


class _BlockingIo:
    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._security = ClientSecurity.of(config.security_protocol, config.security)

    def now_s(self) -> float:
        return time.monotonic()

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # blocking is what this shell is for

    async def connect(self, host: str, port: int) -> BlockingLink:
        return BlockingLink(BlockingConnection(host, port, self._config, self._security))

    def lock(self) -> nullcontext[None]:
        return nullcontext()

    async def together(self, tasks: Sequence[Coroutine[Any, Any, T]]) -> list[T | ClientError]:
        return await _together(tasks)


class BlockingClient(_Closes):
    """A cluster for one thread. `with BlockingClient(config) as client`; `run` carries out whatever the core offers,
    for example `client.run(create_topics(client.core, […]))`."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        # Keep retrying: a Spark task may start while the whole cluster restarts.
        self.core = ClientCore(config, _BlockingIo(config), chance=random.Random(), fails_early=False)

    def close(self) -> None:
        self.core.drop_links()

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        return drive(operation)

    def retrying(self, what: str, attempt: Callable[[], T]) -> T:
        """Repeat `attempt` until it succeeds, fails for good, or `default.api.timeout.ms` is over."""

        async def once() -> T:
            return attempt()

        return drive(self.core.retrying(what, once))

    # -- metadata -------------------------------------------------------------------------------------------------------

    @property
    def image(self) -> ClusterImage:
        return self.core.image

    def refresh(self, topics: Collection[str] | None) -> ClusterImage:
        """Fetch metadata of these topics, or of all."""
        return drive(self.core.refresh(topics))

    def forget_leaders(self) -> None:
        """Make the next look-up of any topic ask the cluster."""
        self.core.forget_leaders()

    def connection(self, broker_id: int, *, purpose: str = DATA) -> BlockingConnection:
        return cast(BlockingLink, drive(self.core.link(broker_id, purpose=purpose))).connection

    def any_connection(self) -> BlockingConnection:
        return cast(BlockingLink, drive(self.core.any_link())).connection

    # -- data -----------------------------------------------------------------------------------------------------------

    def fetch(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int = 8 * 1024 * 1024,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        isolation_level: int = READ_UNCOMMITTED,
    ) -> Fetched:
        """Return raw batches from `offset` on; empty if none came in time. OFFSET_OUT_OF_RANGE is raised, not repaired."""
        config = ConsumerConfig(
            isolation_level=isolation_level,
            fetch_min_bytes=min_bytes,
            fetch_max_bytes=max_bytes,
            partition_max_bytes=max_bytes,
            fetch_max_wait_ms=max_wait_ms,
        )
        return drive(fetching.fetch_one(self.core, config, partition, offset))

    def fetch_some(
        self, positions: Mapping[TopicPartition, int], config: ConsumerConfig
    ) -> dict[TopicPartition, Fetched]:
        """Fetch from many partitions with one request per leader. Partitions without data or with an error are left out."""
        return drive(fetching.fetch_some(self.core, config, positions))

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation_level: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        """Look up offsets by time, `LATEST` or `EARLIEST`; -1 if no record is that young. One request per leader."""
        found = drive(partition_admin.list_offsets(self.core, wanted, isolation_level=isolation_level))
        for partition, listed in found.items():
            check(listed.error, str(partition))
        return {partition: listed.offset for partition, listed in found.items()}
