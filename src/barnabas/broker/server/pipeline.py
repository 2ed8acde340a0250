"""The way of a request from its frame to its handler and back: header, version check, decoding, timing, encoding.

Kafka's stages keep their names in the metrics, though there is only one thread. A request is in the "request queue" while its
connection may not start it, "local" while its handler runs, "remote" while it waits for other parts, and in the "response
queue" until the earlier answers have been sent.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

from barnabas.base.bugs import BugLog
from barnabas.base.errors import BrokenInvariant, ErrorCode, Malformed, Refused
from barnabas.base.metrics.registry import Counter, Histogram, Registry
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.threads import OnThread
from barnabas.broker.runtime.turns import SLICE_ELEMENTS
from barnabas.broker.security.quotas import Quota
from barnabas.broker.server import large
from barnabas.broker.server.call import Audit, Call
from barnabas.broker.server.connection import Connection
from barnabas.broker.server.handler import ApiHandler
from barnabas.broker.server.large import LARGE_FRAME_BYTES
from barnabas.broker.server.request_quota import RequestQuota
from barnabas.broker.server.zookeeper_gate import MAY_NEED_ZOOKEEPER, NEEDS_ZOOKEEPER, ZooKeeperGate
from barnabas.broker.zookeeper_client.zk_errors import ConnectionLost, SessionExpired
from barnabas.wire import codec
from barnabas.wire.frame import read_request_header
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.versions import API_VERSIONS

log = logging.getLogger(__name__)

#: The client's message for a bug. The log has the details for the operator.
BUG_MESSAGE = "The server experienced an unexpected error when processing the request."
ASKS_ZOOKEEPER = NEEDS_ZOOKEEPER | MAY_NEED_ZOOKEEPER


class RequestMetrics:
    """Kafka's per-API request metrics."""

    __slots__ = ("at_once", "errors", "local", "queue", "remote", "requests", "response_queue", "total")

    def __init__(self, registry: Registry, api: str) -> None:
        def histogram(stage: str, what: str) -> Histogram:
            made = registry.histogram(f"kafka_network_request_{stage}_time_ms", what, request=api)
            made.zeros = self.at_once
            return made

        #: Requests answered within one turn of the loop, whose clock does not advance in it: 0 ms in every stage.
        self.at_once = Counter()
        self.requests: Counter = registry.counter("kafka_network_requests", "Requests, by API.", request=api)
        self.errors: Counter = registry.counter("kafka_network_request_errors", "Failed requests, by API.", request=api)
        self.queue = histogram("queue", "Time from the arrival of a request to its start.")
        self.local = histogram("local", "Time that the handler took.")
        self.remote = histogram("remote", "Time spent waiting for other brokers, data or members.")
        self.response_queue = histogram("response_queue", "Time from the answer to its turn on the connection.")
        self.total = histogram("total", "Time from the arrival of a request to the sending of its answer.")


T = TypeVar("T")


async def _at_once(work: Callable[[], T]) -> T:
    """Run the work without a thread: for tests of small requests."""
    return work()


async def _known(response: ApiMessage) -> ApiMessage:
    return response


class Pipeline:
    """Owner: the event loop."""

    def __init__(
        self,
        handlers: dict[int, ApiHandler],
        registry: Registry,
        *,
        now_s: Callable[[], float],
        spawn: Spawn,
        on_bug: Callable[[BaseException], None],
        request_bytes_max: int,
        queued_requests_max: int,
        held_apis: Iterable[int] = (),
        request_quota: RequestQuota | None = None,
        elements_max: int = 10_000,
        on_thread: OnThread = _at_once,
    ) -> None:
        """Requests for `held_apis` wait until `release`: before it, their answers would be wrong."""
        self.handlers = handlers
        self._request_quota = request_quota
        #: Records changes; None: there is no audit log.
        self.audit: Audit | None = None
        #: Called with each answer that is sent, for `features.inside` and traces.
        self.traces: tuple[Callable[[Call, float], None], ...] = ()
        #: `barnabas.request.max.elements`
        self.elements_max = elements_max
        self._on_thread = on_thread
        self._decoding = asyncio.Lock()
        self._held_apis = frozenset(held_apis)
        #: Set once there is a session. The gate closes APIs while ZooKeeper is unavailable.
        self.zookeeper: ZooKeeperGate | None = None
        self._closed_apis: frozenset[int] = frozenset()
        #: APIs that are held or closed: checked for each request.
        self._stopped_apis = self._held_apis
        #: Held requests, at most one per connection.
        self._held: list[tuple[Call, ApiMessage | None]] = []
        self.request_bytes_max = request_bytes_max
        self._queued_requests_max = queued_requests_max
        self._registry = registry
        self.now_s = now_s
        #: Clock of the stages that traces need: it advances within a turn. None: the loop's time of the turn is enough.
        self.exact_s: Callable[[], float] | None = None
        self._spawn = spawn
        self._on_bug = on_bug
        self.bugs = BugLog(log, registry)
        self._metrics: dict[int, RequestMetrics] = {}
        self._running = 0  #: asynchronous handlers that run; requests that merely wait in a purgatory do not count
        #: Whether `queued.max.requests` is reached: then connections stop reading until a handler has finished.
        self.is_full = False
        self._waiting_for_room: deque[Connection] = deque()

    def wait_for_room(self, connection: Connection) -> None:
        self._waiting_for_room.append(connection)

    def start(self, connection: Connection, frame: memoryview) -> Call:
        exact_s = self.exact_s
        gate = connection.gate
        if gate is not None and (raw := gate.raw) is not None:
            return self._start_raw(connection, frame, raw)
        size = len(frame)
        key, version, correlation_id, client_id, at = read_request_header(frame, 0, size)
        if gate is not None:
            gate.admit(key)
        api = self.handlers.get(key)
        if api is None:
            raise Malformed(f"request for unknown API key {key}")
        call = Call(connection, api, version, correlation_id, client_id, connection.active_s)
        call.started_s = connection.turn_s if exact_s is None else exact_s()
        call.request_bytes = size
        quota = self._request_quota
        if quota is not None and Quota.REQUEST in quota.quotas.limited:
            quota.admit(call, self.now_s())
        request: ApiMessage | None = None
        elements = 0
        if api.min_version <= version <= api.max_version:
            request_class = api.api.request_class
            # Kafka ignores bytes after the message, and librdkafka's request for all topics has some.
            if size <= LARGE_FRAME_BYTES:
                read = codec.readers.get((request_class, version)) or codec.reader(request_class, version)
                request, _ = read(frame, at, size)
            else:
                most = min(self.elements_max, large.LOOP_ELEMENTS_MAX)
                read = large.loop_reader(request_class, version, most)
                try:
                    request, _ = read(frame, at, size)
                except codec.TooManyElements:
                    return self._start_large(call, bytearray(frame), at)
                elements = large.elements_read(most)
        elif key != API_VERSIONS:
            raise Malformed(f"{api.name} v{version} is not supported, v{api.min_version} to v{api.max_version} are")
        self._execute(call, request, elements)
        call.local_done_s = connection.turn_s if exact_s is None else exact_s()
        if call.meter is not None:
            call.meter.rest(call)
        return call

    def _start_large(self, call: Call, data: bytearray, at: int) -> Call:
        """Decode a request that is too large for the loop on a thread, one request at a time."""
        self._enter(call)
        self._spawn(self._decode_then_execute(call, data, at), f"large {call.api.name}")
        return call

    async def _decode_then_execute(self, call: Call, data: bytearray, at: int) -> None:
        api_key, most = call.api.api_key, large.thread_limit(call.api.api_key, self.elements_max)
        request_class, version = call.api.api.request_class, call.api_version
        try:
            async with self._decoding:
                request, elements = await self._on_thread(
                    lambda: large.decode_on_thread(request_class, version, data, at, most)
                )
            if elements <= self.elements_max or api_key in large.SLICED or api_key in large.WHOLE:
                self._execute(call, request, elements)
            else:
                why = f"{elements} elements in one request; barnabas.request.max.elements is {self.elements_max}"
                self.refuse(call, request, Refused(ErrorCode.INVALID_REQUEST, why))
        except codec.TooManyElements as error:
            # Not even the names in the request are known, so no response could carry the error.
            call.channel.fail(f"{call.api.name}: {error}; barnabas.request.max.elements is {self.elements_max}")
        except Malformed as error:
            call.channel.fail(f"{call.api.name}: {error}")
        except Exception as error:
            self._answer_bug(call, None, error)
        finally:
            self._leave()

    async def _in_slices(self, call: Call, request: ApiMessage, shape: large.Shape) -> ApiMessage:
        """Pass the handler a few elements at a time. Other requests run in between."""
        whole: ApiMessage | None = None
        call.is_sliced = True
        for part in large.slices(request, shape):
            result = call.api.execute(call, part)
            assert result is not None, f"{call.api.name} answers its calls later, so its requests cannot be sliced"
            response = result if isinstance(result, ApiMessage) else await result
            if whole is None:
                whole = response
            else:
                large.merge(whole, response, shape)
            await asyncio.sleep(0)
        assert whole is not None
        return whole

    def _start_raw(self, connection: Connection, frame: memoryview, api: ApiHandler) -> Call:
        """Start a request that is a SASL token without a header."""
        call = Call(connection, api, 0, 0, None, connection.active_s)
        self._execute(call, SaslAuthenticateRequest(auth_bytes=bytes(frame)))
        call.local_done_s = connection.turn_s
        return call

    def release(self) -> None:
        """Execute the held requests, and hold no further ones."""
        self._held_apis = frozenset()
        self._stopped_apis = self._closed_apis
        held, self._held = self._held, []
        for call, request in held:
            self._execute(call, request)

    def close(self, apis: frozenset[int]) -> None:
        """Refuse requests for these APIs, because ZooKeeper is unavailable, until called again, possibly with none."""
        self._closed_apis = apis
        self._stopped_apis = self._held_apis | apis

    def _hold_or_refuse(self, call: Call, request: ApiMessage | None) -> None:
        if call.api.api_key in self._held_apis:
            self._held.append((call, request))
        else:
            assert self.zookeeper is not None
            self.refuse(call, request, self.zookeeper.why_closed())

    def _execute(self, call: Call, request: ApiMessage | None, elements: int = 0) -> None:
        if self.audit is not None and call.api.api_key in self.audit.changes:
            # Not after the handler returns: a request that waits for replicas keeps its call and is answered later.
            call.on_answer = partial(self.audit.changed, call, request)
        if call.api.api_key in self._stopped_apis:
            self._hold_or_refuse(call, request)
            return
        shape = large.SLICED.get(call.api.api_key) if elements > SLICE_ELEMENTS else None
        try:
            if shape is None or request is None:
                result = call.api.execute(call, request)
            else:
                result = self._in_slices(call, request, shape)
        except Exception as error:
            self.refuse(call, request, error)
            return
        if result is None:
            return
        if isinstance(result, ApiMessage):
            if not large.is_long(result):
                call.reply(result)
                return
            result = _known(result)
        self._enter(call)
        if call.meter is not None:
            result = call.meter.measured(call, result)
        if self.zookeeper is not None and call.api.api_key in ASKS_ZOOKEEPER:
            self.zookeeper.begin(call, request)
        self._spawn(self._finish(call, request, result), f"request {call.api.name}")

    async def _finish(self, call: Call, request: ApiMessage | None, result: Awaitable[ApiMessage | None]) -> None:
        try:
            response = await result
        except Exception as error:
            self.refuse(call, request, error)
        else:
            if response is None:
                return
            if call.parts is not None:
                log.info("[request %s] of %s was carried out after its refusal", call.api.name, call.client_id)
                if self.audit is not None and call.api.api_key in self.audit.changes:
                    self.audit.changed(call, request, response)
            elif large.is_long(response):
                await call.reply_by_thread(response, self._on_thread)
                await large.let_go(response)
            else:
                call.reply(response)
        finally:
            if self.zookeeper is not None:
                self.zookeeper.end(call)
            self._leave()

    def _enter(self, call: Call) -> None:
        self._running += 1
        self.is_full = self._running >= self._queued_requests_max
        call.is_running = True

    def _leave(self) -> None:
        self._running -= 1
        self.is_full = self._running >= self._queued_requests_max
        # A resumed connection may be closed, or may start a request that takes no room: then resume the next one.
        while self._waiting_for_room and not self.is_full:
            self._waiting_for_room.popleft().resume()

    def refuse(self, call: Call, request: ApiMessage | None, error: Exception) -> None:
        """Answer with the error, unless the call has been answered."""
        if call.parts is not None and isinstance(error, Refused | SessionExpired | ConnectionLost):
            log.info("[request %s] of %s failed after its refusal: %s", call.api.name, call.client_id, error)
            return
        self.metrics_of(call.api).errors.add()
        if isinstance(error, Refused):
            log.debug("[request %s] of %s refused: %s", call.api.name, call.client_id, error)
            call.reply(call.api.refuse(request, error.code, error.message))
        elif isinstance(error, Malformed):
            call.channel.fail(f"{call.api.name}: {error}")
        elif isinstance(error, SessionExpired | ConnectionLost):
            # Not a bug: the client may try again, here or at another broker.
            log.warning(
                "[request %s] of %s needs ZooKeeper, check that it runs: %s", call.api.name, call.client_id, error
            )
            call.reply(call.api.refuse(request, ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper cannot be reached: {error}"))
        else:
            self._answer_bug(call, request, error)

    def _answer_bug(self, call: Call, request: ApiMessage | None, error: Exception) -> None:
        """Answer a request that met a bug. The broker stops only if it may have written wrong data."""
        self.bugs.note(f"{call.api.name} v{call.api_version}", error)
        if isinstance(error, BrokenInvariant):
            self._on_bug(error)
        if call.parts is not None:
            return  # its answer was sent before the bug
        try:
            response = call.api.refuse(request, ErrorCode.UNKNOWN_SERVER_ERROR, BUG_MESSAGE)
        except Exception as second:
            self.bugs.note(f"the refusal of {call.api.name} v{call.api_version}", second)
            call.channel.fail(f"{call.api.name} v{call.api_version} failed, and its error response too")
            return
        call.reply(response)

    def sent(self, call: Call, now_s: float) -> None:
        """Count an answer that is being sent."""
        if self.exact_s is not None:
            now_s = self.exact_s()
        metrics = self._metrics.get(call.api.api_key) or self.metrics_of(call.api)
        metrics.requests.value += 1
        received_s = call.received_s
        if now_s == received_s:
            metrics.at_once.value += 1
        else:
            started_s, answered_s = call.started_s, call.answered_s
            local_done_s = call.local_done_s or answered_s
            # Most stages took no time: the loop's clock does not advance within a turn.
            if started_s == received_s:
                metrics.queue.buckets[0] += 1
            else:
                metrics.queue.observe_ms((started_s - received_s) * 1000)
            if local_done_s == started_s:
                metrics.local.buckets[0] += 1
            else:
                metrics.local.observe_ms((local_done_s - started_s) * 1000)
            if answered_s <= local_done_s:
                metrics.remote.buckets[0] += 1
            else:
                metrics.remote.observe_ms((answered_s - local_done_s) * 1000)
            if now_s == answered_s:
                metrics.response_queue.buckets[0] += 1
            else:
                metrics.response_queue.observe_ms((now_s - answered_s) * 1000)
            metrics.total.observe_ms((now_s - received_s) * 1000)
        if self.traces:
            for trace in self.traces:
                trace(call, now_s)

    def metrics_of(self, api: ApiHandler) -> RequestMetrics:
        metrics = self._metrics.get(api.api_key)
        if metrics is None:
            metrics = self._metrics[api.api_key] = RequestMetrics(self._registry, api.name)
        return metrics
