"""A blocking client over plain sockets, for threads without an event loop: Spark executors, small scripts.

Same messages and codec as `connection`; `request` waits for its answer, `send` and `receive` let several be under way.
Owner: one thread. A large response is received straight into a buffer of its own, and its records are views of that buffer.
"""

import socket
import ssl
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from barnabas.client.admin.partitions import READ_UNCOMMITTED
from barnabas.client.cluster import names_only
from barnabas.client.config import ClientConfig
from barnabas.client.connection import (
    SOFTWARE_NAME,
    SOFTWARE_VERSION,
    BrokerVersions,
    broker_versions,
    fallback_version,
)
from barnabas.client.consumer import Fetched
from barnabas.client.errors import (
    AuthenticationFailed,
    BrokerRefused,
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
    RequestTimedOut,
    check,
    lost_connection,
)
from barnabas.client.image import ClusterImage, image_of
from barnabas.client.security import RENEWAL_SHARE, ClientSecurity
from barnabas.core.errors import ErrorCode, Malformed
from barnabas.core.ids import TopicPartition
from barnabas.protocol import codec, frame
from barnabas.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.protocol.messages.base import ApiMessage
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from barnabas.protocol.messages.sasl_handshake import SaslHandshakeResponse

R = TypeVar("R", bound=ApiMessage)
T = TypeVar("T")

_SIZE: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Awaited(Generic[R]):
    """A request that was sent and has no answer yet."""

    what: str
    response_type: type[R]
    version: int
    correlation_id: int
    deadline_s: float


class BlockingConnection:
    """One connection to one broker. Any failure ends it."""

    def __init__(self, host: str, port: int, config: ClientConfig, security: ClientSecurity | None = None) -> None:
        """`security` is what the settings ask for, where somebody has made it already: it costs files, perhaps a token."""
        self._security = security or ClientSecurity.of(config.security_protocol, config.security)
        self._unanswered = 0
        #: When the session must be renewed; None where the broker does not end it, and while that is under way.
        self._renew_at_s: float | None = None
        self.address = f"{host}:{port}"
        self._config = config
        self._correlation_id = 0
        self.versions = BrokerVersions()
        try:
            self._socket = socket.create_connection((host, port), timeout=config.connect_timeout_ms / 1000)
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {self.address}: {error.strerror or error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed = False
        try:
            if self._security.tls is not None:
                self._socket = self._wrap(self._security.tls, host)
            self.versions = self._negotiate()
            self._authenticate()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.closed = True
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def request(
        self,
        message: ApiMessage,
        response_type: type[R],
        *,
        version: int | None = None,
        timeout_ms: int | None = None,
    ) -> R:
        """Send, and wait for the answer. `version` defaults to the highest common one in which topics have names."""
        return self.receive(self.send(message, response_type, version=version, timeout_ms=timeout_ms))

    def send(
        self,
        message: ApiMessage,
        response_type: type[R],
        *,
        version: int | None = None,
        timeout_ms: int | None = None,
    ) -> "Awaited[R]":
        """Send without waiting: several requests may be under way. Their answers are received in the order of sending."""
        if self._renew_at_s is not None and not self._unanswered and time.monotonic() >= self._renew_at_s:
            self._authenticate()
        if version is None:
            version = names_only(message, self.versions.pick(type(message)))
        deadline_s = time.monotonic() + (timeout_ms or self._config.request_timeout_ms) / 1000
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        awaited = Awaited(type(message).__name__, response_type, version, self._correlation_id, deadline_s)
        data = frame.encode_request(message, version, self._correlation_id, self._config.client_id)
        with self._ending_on_failure(awaited.what):
            self._socket.settimeout(self._left_s(deadline_s))
            self._socket.sendall(data)
        self._unanswered += 1
        return awaited

    def receive(self, awaited: "Awaited[R]") -> R:
        """The answer to the oldest request that has none yet."""
        with self._ending_on_failure(awaited.what):
            response = self._receive(awaited)
        self._unanswered -= 1
        return response

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
            raise ConnectionLost(f"{self.address} sent what is not a response: {error}") from error

    def _receive(self, awaited: "Awaited[R]") -> R:
        response_type, version = awaited.response_type, awaited.version
        (size,) = _SIZE.unpack(self._read_exactly(4, awaited.deadline_s))
        if not 4 <= size <= self._config.response_bytes_max:
            raise Malformed(f"a response of {size} bytes")
        data = self._read_exactly(size, awaited.deadline_s)
        correlation_id, offset = frame.parse_response_header(response_type.API_KEY, version, data)
        if correlation_id != awaited.correlation_id:
            raise Malformed(f"correlation id {correlation_id} where {awaited.correlation_id} was due")
        if (
            response_type is ApiVersionsResponse
            and _SHORT.unpack_from(data, offset)[0] == ErrorCode.UNSUPPORTED_VERSION
        ):
            version = 0  # KIP-511
        return codec.decode(response_type, data, version, offset)

    def _wrap(self, tls: ssl.SSLContext, host: str) -> socket.socket:
        try:
            return tls.wrap_socket(self._socket, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationFailed(
                f"the certificate of {self.address} is not trusted: {error.verify_message}"
            ) from error
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {self.address}: TLS: {error}") from error

    def _authenticate(self) -> None:
        """The first time, and again before the broker ends the session."""
        self._renew_at_s = None
        conversation = self._security.exchange(self.address)
        if conversation is None:
            return
        began_s = time.monotonic()
        request: SaslAuthenticateRequest | None
        request = conversation.begin(self.request(conversation.handshake, SaslHandshakeResponse))
        lifetime_ms = 0
        while request is not None:
            response = self.request(request, SaslAuthenticateResponse)
            lifetime_ms = response.session_lifetime_ms
            request = conversation.proceed(response)
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

    def _negotiate(self) -> BrokerVersions:
        request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
        response = self.request(request, ApiVersionsResponse, version=ApiVersionsRequest.MAX_VERSION)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            response = self.request(request, ApiVersionsResponse, version=fallback_version(response))
        check(response.error_code)
        return broker_versions(response)


class BlockingClient:
    """A cluster for one thread: metadata, offsets, raw fetches, with retries. `with BlockingClient(config) as client`."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.security = ClientSecurity.of(config.security_protocol, config.security)
        self.image = ClusterImage()
        self._connections: dict[int, BlockingConnection] = {}
        self._bootstrap: BlockingConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in (*self._connections.values(), *([self._bootstrap] if self._bootstrap else [])):
            connection.close()
        self._connections.clear()
        self._bootstrap = None

    # -- connections and metadata ---------------------------------------------------------------------------------------

    def connection(self, broker_id: int) -> BlockingConnection:
        connection = self._connections.get(broker_id)
        if connection is None or connection.closed:
            broker = self.image.brokers.get(broker_id)
            if broker is None:
                raise ConnectionLost(f"broker {broker_id} is not alive")
            connection = BlockingConnection(broker.host, broker.port, self.config, self.security)
            self._connections[broker_id] = connection
        return connection

    def any_connection(self) -> BlockingConnection:
        for connection in (*self._connections.values(), *([self._bootstrap] if self._bootstrap else [])):
            if not connection.closed:
                return connection
        reasons = []
        addresses = [(broker.host, broker.port) for broker in self.image.brokers.values()]
        for host, port in dict.fromkeys([*addresses, *self.config.bootstrap]):
            try:
                self._bootstrap = BlockingConnection(host, port, self.config, self.security)
                return self._bootstrap
            except ConnectionLost as error:
                reasons.append(str(error))
        raise ConnectionLost("; ".join(reasons))

    def refresh(self, topics: list[str] | None) -> ClusterImage:
        """Metadata of these topics, or of all."""
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        response = self.any_connection().request(
            MetadataRequest(topics=wanted, allow_auto_topic_creation=False), MetadataResponse
        )
        check(response.error_code)
        fresh = image_of(response)
        kept = {} if topics is None else dict(self.image.topics)
        self.image = ClusterImage(fresh.brokers, fresh.cluster_id, fresh.controller_id, kept | dict(fresh.topics))
        return fresh

    def leader(self, partition: TopicPartition) -> BlockingConnection:
        if self.image.leader_of(partition) < 0:
            self.refresh([partition.topic])
        leader = self.image.leader_of(partition)
        if leader < 0:
            topic = self.image.topics.get(partition.topic)
            code = topic.error if topic is not None and topic.error else ErrorCode.LEADER_NOT_AVAILABLE
            raise BrokerRefused(code, f"partition {partition}")
        return self.connection(leader)

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
        """Raw batches from `offset` on; empty when nothing came in time. OFFSET_OUT_OF_RANGE is raised, not repaired."""
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            topics=[
                FetchTopic(
                    topic=partition.topic,
                    partitions=[
                        FetchPartition(
                            partition=partition.partition, fetch_offset=offset, partition_max_bytes=max_bytes
                        )
                    ],
                )
            ],
        )

        def once() -> Fetched:
            response = self.leader(partition).request(
                request, FetchResponse, timeout_ms=self.config.request_timeout_ms + max_wait_ms
            )
            check(response.error_code)
            part = response.responses[0].partitions[0]
            check(part.error_code, str(partition))
            records = part.records if part.records is not None else b""
            assert isinstance(records, bytes | memoryview)
            return Fetched(
                partition=partition,
                data=records,
                position=offset,
                high_watermark=part.high_watermark,
                last_stable_offset=part.last_stable_offset,
                log_start_offset=part.log_start_offset,
                aborted=tuple(part.aborted_transactions or ()),
                throttle_time_ms=response.throttle_time_ms,
            )

        return self.retrying(f"fetch of {partition}", once, topic=partition.topic)

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation_level: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        """Offsets by time, `LATEST` or `EARLIEST`; -1 where no record is that young. One request a leader."""
        found: dict[TopicPartition, int] = {}

        def once() -> None:
            by_leader: dict[BlockingConnection, list[TopicPartition]] = {}
            for partition in wanted:
                if partition not in found:
                    by_leader.setdefault(self.leader(partition), []).append(partition)
            refused: BrokerRefused | None = None
            for leader, partitions in by_leader.items():
                topics: dict[str, list[ListOffsetsPartition]] = {}
                for partition in partitions:
                    entry = ListOffsetsPartition(partition_index=partition.partition, timestamp=wanted[partition])
                    topics.setdefault(partition.topic, []).append(entry)
                request = ListOffsetsRequest(
                    replica_id=-1,
                    isolation_level=isolation_level,
                    topics=[ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()],
                )
                for topic in leader.request(request, ListOffsetsResponse).topics:
                    for result in topic.partitions:
                        partition = TopicPartition(topic.name, result.partition_index)
                        if result.error_code:
                            refused = BrokerRefused(result.error_code, str(partition))
                        else:
                            found[partition] = result.offset
            if refused is not None:
                raise refused

        names = list(dict.fromkeys(partition.topic for partition in wanted))
        self.retrying(f"offsets of {', '.join(names)}", once, topics=names)
        return found

    def retrying(
        self, what: str, attempt: Callable[[], T], *, topic: str | None = None, topics: Collection[str] = ()
    ) -> T:
        """Until it succeeds, fails for good, or `default.api.timeout.ms` is up. Forgets what it knew of `topics` between."""
        forgotten = {*topics, *([] if topic is None else [topic])}
        deadline_s = time.monotonic() + self.config.api_timeout_ms / 1000
        pause_ms = self.config.retry_backoff_ms
        while True:
            try:
                return attempt()
            except ClientError as error:
                if not error.retriable:
                    raise
                if forgotten:
                    kept = {name: info for name, info in self.image.topics.items() if name not in forgotten}
                    self.image = ClusterImage(self.image.brokers, self.image.cluster_id, self.image.controller_id, kept)
                if time.monotonic() + pause_ms / 1000 > deadline_s:
                    raise DeadlineExceeded(f"{what}: gave up after {self.config.api_timeout_ms} ms: {error}") from error
                time.sleep(pause_ms / 1000)
                pause_ms = min(pause_ms * 2, self.config.retry_backoff_max_ms)
