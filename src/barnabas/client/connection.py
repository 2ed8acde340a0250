"""One connection to one broker: requests out, responses in, in order.

Owner: the event loop that opened it. The receiving side is an `asyncio.BufferedProtocol`: small responses arrive in a
buffer that the connection keeps. A larger response is received straight into its own buffer, and the `records` fields of
the decoded response are memoryviews of that buffer, so a replica fetcher's megabytes are never copied. The connection
reuses the large buffer for the next large response if no view of it remains.

Responses come in the order of the requests, and each must carry the expected correlation id; anything else ends the
connection. A timed-out request ends it too, because its late response could be taken for that of a later request.
"""

import asyncio
import errno
import os
import re
import ssl
import struct
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, TypeVar, cast, overload

from barnabas.base.errors import Malformed
from barnabas.client.config import DEFAULT_RESPONSE_BYTES_MAX
from barnabas.client.errors import ClientError, ConnectionLost, ConnectionRefused, RequestTimedOut
from barnabas.client.exchange import BrokerVersions, Exchange, Incoming, Pending, api_name
from barnabas.client.exchange import negotiate as agree_on_versions
from barnabas.client.security import (
    RENEWAL_SHARE,
    ClientSecurity,
    ended_at_once,
    failed_handshake,
    log_in,
    lost_connection,
)
from barnabas.wire.codec import TooManyElements
from barnabas.wire.codec_read import Budget
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.fetch import FetchResponse

R = TypeVar("R", bound=ApiMessage)
T = TypeVar("T")

DEFAULT_REQUEST_TIMEOUT_MS: Final = 30_000

_SIZE: Final = struct.Struct(">i")
#: Responses up to this size share the connection's buffer; one read may hold many of them.
_BUFFER_BYTES: Final = 64 * 1024
#: Buffers for larger responses grow in steps of this size, so that one also fits the next response.
_LARGE_STEP_BYTES: Final = 256 * 1024
#: A thread decodes larger responses, which would block the loop for 0.1 s and more.
_AT_ONCE_BYTES: Final = 256 * 1024
#: The same for Fetch responses, whose bytes are mostly records.
_AT_ONCE_ELEMENTS: Final = 10_000


class _Pending(Pending):
    """A request in flight. It ends in exactly one way: answered, timed out, or lost."""

    __slots__ = ("future", "timer")

    future: "asyncio.Future[ApiMessage]"
    timer: asyncio.TimerHandle


class Connection(asyncio.BufferedProtocol):
    """Use `await open_connection(…)`; then `await connection.request(…)` from any number of tasks."""

    def __init__(
        self,
        address: str,
        *,
        client_id: str,
        max_in_flight: int,
        response_bytes_max: int,
        response_elements_max: int | None = None,
    ) -> None:
        self.address = address
        self._elements_max = response_elements_max
        self._exchange = Exchange(_Pending, client_id=client_id, response_bytes_max=response_bytes_max)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._max_in_flight = max_in_flight
        #: Slots taken, including a slot that was passed to a waiting task that has not run yet.
        self._slots_taken = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._failure: ClientError | None = None
        #: KIP-368: when the session must be renewed (loop time), and how; None if the broker does not end sessions.
        self._renew_at_s: float | None = None
        self._renew: Authenticate | None = None
        #: Set during a renewal: only the renewing task may send.
        self._renewing: asyncio.Future[None] | None = None
        self._renewer: asyncio.Task[object] | None = None
        #: Set while the transport's own buffer is over its high-water mark.
        self._writable: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        # Receiving: either frames in `_buffer[_start:_fill]`, or one large frame in `_large[:_fill]`.
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = 0
        self._fill = 0
        self._large: memoryview | None = None
        self._spare: bytearray | None = None

    # -- what callers use ---------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._failure is not None

    @property
    def peer_certificate(self) -> Mapping[str, object] | None:
        """Return the broker's certificate as `ssl` describes it, if the connection uses TLS and verified it."""
        if self._transport is None:
            return None
        return cast("Mapping[str, object] | None", self._transport.get_extra_info("peercert"))

    @property
    def in_flight(self) -> int:
        return len(self._exchange.unanswered)

    @property
    def versions(self) -> BrokerVersions:
        return self._exchange.versions

    @versions.setter
    def versions(self, versions: BrokerVersions) -> None:
        self._exchange.versions = versions

    @overload
    async def request(
        self,
        message: ApiMessage,
        response_type: type[R],
        *,
        version: int | None = None,
        timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS,
    ) -> R: ...

    @overload
    async def request(
        self,
        message: ApiMessage,
        response_type: None = None,
        *,
        version: int | None = None,
        timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS,
    ) -> ApiMessage: ...

    async def request(
        self,
        message: ApiMessage,
        response_type: type[ApiMessage] | None = None,
        *,
        version: int | None = None,
        timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS,
    ) -> ApiMessage:
        """Send, and wait for the response. `version` defaults to the highest that both sides support.

        Waits for a slot while `max_in_flight` requests are unanswered; `timeout_ms` includes that wait.
        """
        deadline_s = self._loop.time() + timeout_ms / 1000
        if self._renew_at_s is not None or self._renewing is not None:
            await self._keep_session()
        if self._slots_taken < self._max_in_flight:
            self._slots_taken += 1
        else:
            await self._wait_for_slot(message, deadline_s)
            if self._renewing is not None and self._renewer is not asyncio.current_task():
                self._release_slot()  # the session is being renewed: nothing may come in between
                return await self.request(message, response_type, version=version, timeout_ms=timeout_ms)
        try:
            future = self._send(message, response_type, version, deadline_s)
        except BaseException:
            self._release_slot()
            raise
        return await future

    def post(self, message: ApiMessage, *, version: int | None = None) -> None:
        """Send a request that gets no response: Produce with acks=0."""
        if self._failure is not None:
            raise self._failure
        assert self._transport is not None
        self._transport.write(self._exchange.post(message, version))

    async def drain(self) -> None:
        """Wait until the transport accepts more bytes. This bounds `post` as `max_in_flight` bounds `request`."""
        if self._renew_at_s is not None or self._renewing is not None:
            await self._keep_session()
        if self._writable is not None:
            await asyncio.shield(self._writable)
        if self._failure is not None:
            raise self._failure

    async def compute(self, work: Callable[[], T]) -> T:
        """On a thread: the proof of a SCRAM password takes as many iterations as the server asks for."""
        return await asyncio.to_thread(work)

    def close(self) -> None:
        """End it now; unanswered requests fail with `ConnectionLost`."""
        self._fail(ConnectionLost(f"connection to {self.address} was closed by this client"))

    async def wait_closed(self) -> None:
        await asyncio.shield(self._ended)

    def on_closed(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the connection has ended, whichever side ended it."""
        self._ended.add_done_callback(lambda _: callback())

    def set_up(self) -> None:
        self._exchange.set_up()

    def renew_after(self, delay_ms: float, renew: "Authenticate") -> None:
        """Authenticate again before the first request that comes after `delay_ms`, because the broker ends sessions."""
        self._renew_at_s = self._loop.time() + delay_ms / 1000
        self._renew = renew

    async def _keep_session(self) -> None:
        """Renew the session if it is time, or wait for the task that renews it. No other request is sent during a renewal,
        because between a handshake and its end the broker accepts only tokens. It answers earlier requests first."""
        task = asyncio.current_task()
        while self._renewing is not None and self._renewer is not task:
            await asyncio.shield(self._renewing)
        if self._renew_at_s is None or self._loop.time() < self._renew_at_s or self._renew is None:
            return
        renew, self._renew_at_s = self._renew, None
        self._renewing, self._renewer = self._loop.create_future(), task
        try:
            await renew(self)
        except BaseException:
            self.close()  # the state of the exchange is unknown
            raise
        finally:
            self._renewing.set_result(None)
            self._renewing = self._renewer = None

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send(
        self, message: ApiMessage, response_type: type[ApiMessage] | None, version: int | None, deadline_s: float
    ) -> "asyncio.Future[ApiMessage]":
        if self._failure is not None:
            raise self._failure
        assert self._transport is not None
        data, pending = self._exchange.request(message, response_type, version)
        future = pending.future = self._loop.create_future()
        pending.timer = self._loop.call_at(deadline_s, self._timed_out, pending)
        self._transport.write(data)
        return future

    async def _wait_for_slot(self, message: ApiMessage, deadline_s: float) -> None:
        if self._failure is not None:
            raise self._failure
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline_s):
                await waiter
        except TimeoutError:
            self._give_up(waiter)
            raise RequestTimedOut(
                f"{api_name(type(message))} to {self.address}: {self.in_flight} requests before it were not answered"
            ) from None
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise

    def _give_up(self, waiter: "asyncio.Future[None]") -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self._release_slot()  # the waiter was given a slot that it will not use

    def _release_slot(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)  # the longest-waiting task gets the slot
                return
        self._slots_taken -= 1

    def _timed_out(self, pending: _Pending) -> None:
        what = f"{pending.name} to {self.address} was not answered in time"
        if not pending.future.done():
            pending.future.set_exception(RequestTimedOut(what))
        self._fail(ConnectionLost(f"connection to {self.address} was closed: {what}"))

    # -- receiving: asyncio.BufferedProtocol ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from it

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large[self._fill :]
        return self._buffer[self._fill :]

    def buffer_updated(self, nbytes: int) -> None:
        self._fill += nbytes
        try:
            if self._large is None:
                self._take_frames()
            elif self._fill == len(self._large):
                data, self._large, self._fill = self._large, None, 0
                self._answer(data)
        except Malformed as error:
            self._fail(ConnectionLost(f"{self.address} sent an invalid response: {error}"))

    def eof_received(self) -> bool:
        self._fail(ConnectionLost(f"{self.address} closed the connection"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(lost_connection(self.address, exc))
        if not self._ended.done():
            self._ended.set_result(None)

    def pause_writing(self) -> None:
        if self._writable is None:
            self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    def _take_frames(self) -> None:
        """Process every whole frame in the buffer. Move a partial frame to the front, or to a large buffer."""
        buffer, start, fill = self._buffer, self._start, self._fill
        while fill - start >= 4:
            (size,) = _SIZE.unpack_from(buffer, start)
            self._exchange.check_size(size)
            end = start + 4 + size
            if end > fill:
                if size + 4 > _BUFFER_BYTES:
                    large = self._room_for(size)
                    have = fill - start - 4
                    large[:have] = buffer[start + 4 : fill]
                    self._large, self._start, self._fill = large, 0, have
                    return
                break
            self._spare = None
            # The buffer is reused, so the response gets its own copy.
            self._answer(memoryview(bytes(buffer[start + 4 : end])))
            start = end
        unread = fill - start
        if start and unread:
            buffer[:unread] = bytes(buffer[start:fill])
        self._start, self._fill = 0, unread

    def _room_for(self, size: int) -> memoryview:
        """Return a buffer for one large frame. Reuse the last one if no view of it remains: new memory is first filled with
        zeros, page by page, which costs much when large frames follow each other, as for a fetcher that is behind."""
        spare = self._spare
        if spare is None or len(spare) < size or _is_looked_at(spare):
            spare = self._spare = bytearray(-(-size // _LARGE_STEP_BYTES) * _LARGE_STEP_BYTES)
        return memoryview(spare)[:size]

    def _answer(self, data: memoryview) -> None:
        if self._failure is not None:
            return  # the connection already failed, so no caller waits for the rest of the buffer
        incoming = self._exchange.expect(data)
        limit = self._elements_max
        # Records are not decoded here, so the size of a Fetch response does not show the work.
        if len(data) <= _AT_ONCE_BYTES or incoming.response_type is FetchResponse:
            at_once = limit if len(data) <= _AT_ONCE_BYTES or limit is None else min(limit, _AT_ONCE_ELEMENTS)
            try:
                response = _decode(incoming, at_once)
            except TooManyElements:
                if at_once == limit:
                    raise
            else:
                self._finish(incoming.pending, response)
                return
        # Decode on a thread, because a large response must not block a broker's loop. No more is read meanwhile.
        assert self._transport is not None
        self._transport.pause_reading()
        decoding = self._loop.run_in_executor(None, _decode, incoming, limit)
        decoding.add_done_callback(partial(self._decoded, incoming.pending))

    def _decoded(self, pending: _Pending, decoding: "asyncio.Future[ApiMessage]") -> None:
        error = None if decoding.cancelled() else decoding.exception()
        if self._failure is not None:
            return
        if decoding.cancelled() or error is not None:
            self._fail(ConnectionLost(f"{self.address} sent an invalid response: {error or 'this client ends'}"))
            if error is not None and not isinstance(error, Malformed):
                raise error
            return
        self._finish(pending, decoding.result())
        assert self._transport is not None
        self._transport.resume_reading()

    def _finish(self, pending: _Pending, response: ApiMessage) -> None:
        self._exchange.unanswered.popleft()
        pending.timer.cancel()
        if not pending.future.done():
            pending.future.set_result(response)
        self._release_slot()

    def _fail(self, failure: ClientError) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        pending, self._exchange.unanswered = self._exchange.unanswered, deque()
        for request in pending:
            request.timer.cancel()
            if not request.future.done():
                request.future.set_exception(_again(failure))
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(_again(failure))
        self.resume_writing()
        if self._transport is not None:
            self._transport.abort()


#: The budget of a thread's readers: each reader is compiled for one budget.
_of_thread: Final = threading.local()


def _decode(incoming: Incoming[_Pending], elements_max: int | None) -> ApiMessage:
    """Decode on any thread. :raises Malformed:"""
    if elements_max is None:
        return incoming.decode(None)
    budget: Budget = _of_thread.__dict__.setdefault("budget", [0])
    budget[0] = elements_max
    return incoming.decode(budget)


def _is_looked_at(room: bytearray) -> bool:
    """Return whether a view of the bytearray exists: it then refuses to change its size."""
    try:
        room.append(room.pop())
    except BufferError:
        return True
    return False


def _again(failure: ClientError) -> ClientError:
    """Copy a failure, because each waiter adds its own traceback when it raises."""
    return type(failure)(str(failure))


#: Performs the SASL exchange on a new connection, after versions are negotiated and before callers get it.
Authenticate = Callable[[Connection], Awaitable[None]]


async def open_connection(
    host: str,
    port: int,
    *,
    client_id: str = "barnabas",
    ssl_context: ssl.SSLContext | None = None,
    authenticate: Authenticate | None = None,
    connect_timeout_ms: int = 10_000,
    request_timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS,
    max_in_flight: int = 5,
    response_bytes_max: int = DEFAULT_RESPONSE_BYTES_MAX,
    response_elements_max: int | None = None,
    negotiate: bool = True,
) -> Connection:
    """Connect, agree on versions, authenticate. Raise `ConnectionLost` with the address and the reason.

    `negotiate=False` leaves `versions` empty: every request must then name its version. Brokers of one cluster use this
    when `inter.broker.protocol.version` determines the versions.
    """
    address = f"{host}:{port}"
    loop = asyncio.get_running_loop()

    def make() -> Connection:
        return Connection(
            address,
            client_id=client_id,
            max_in_flight=max_in_flight,
            response_bytes_max=response_bytes_max,
            response_elements_max=response_elements_max,
        )

    try:
        async with asyncio.timeout(connect_timeout_ms / 1000):
            _, connection = await loop.create_connection(
                make, host, port, ssl=ssl_context, server_hostname=host if ssl_context else None
            )
    except TimeoutError:
        raise ConnectionLost(f"{address} did not accept a connection within {connect_timeout_ms} ms") from None
    except OSError as error:
        is_tls = isinstance(error, ssl.SSLError) or (
            ssl_context is not None and isinstance(error, ConnectionResetError)
        )
        if is_tls:
            raise failed_handshake(address, error) from error
        kind = ConnectionRefused if _numbers(error) == [errno.ECONNREFUSED] else ConnectionLost
        raise kind(f"cannot connect to {address}: {_reason(error)}") from error
    except (ValueError, OverflowError) as error:  # after OSError: a certificate that is refused is both
        raise ConnectionLost(f"cannot connect to {address!r}: this is not an address: {error}") from None
    try:
        if negotiate:
            try:
                connection.versions = await agree_on_versions(connection, request_timeout_ms)
            except ConnectionLost as error:
                raise (ended_at_once(address, error) if ssl_context is None else error) from error
        if authenticate is not None:
            await authenticate(connection)
    except BaseException:
        connection.close()
        raise
    connection.set_up()
    return connection


def _reason(error: OSError) -> str:
    if error.errno is not None and error.errno <= 0:
        return error.strerror or str(error)
    return ", ".join(os.strerror(number) for number in _numbers(error)) or str(error)


def _numbers(error: OSError) -> list[int]:
    """Return each error number once. A name may have several addresses: asyncio joins their errors into one text."""
    if error.errno is not None:
        return [error.errno]
    return list(dict.fromkeys(int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))))


async def authenticate(connection: Connection, security: ClientSecurity, *, timeout_ms: int) -> None:
    """The hook of `open_connection`: the SASL exchange, repeated before the broker ends the session."""
    if security.tokens is None or security.tokens.is_fresh:
        conversation = security.exchange(connection.address)
    else:
        # Building the exchange may block on the web or a file. A thread always does it: whether the token is fresh may be
        # unknown.
        conversation = await asyncio.to_thread(security.exchange, connection.address)
    lifetime_ms = await log_in(connection, conversation, timeout_ms)
    if lifetime_ms > 0:
        connection.renew_after(
            lifetime_ms * RENEWAL_SHARE, partial(authenticate, security=security, timeout_ms=timeout_ms)
        )
