"""The client side of ZooKeeper in a simulation: what kazoo's client does, on the simulated network.

kazoo's own client has threads and sockets of the machine, so this one stands in for it, and for nothing else: requests, answers
and watches are kazoo's classes and travel as bytes to the embedded ZooKeeper that ships.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any

from kazoo import exceptions as failures
from kazoo.protocol import serialization as requests
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent

from barnabas.testing.simulation.loop import SimLoop

_HEADER = struct.Struct("!iqi")
_INT = struct.Struct("!i")
_WATCH_XID, _PING_XID = -1, -2
_EVENTS = {1: EventType.CREATED, 2: EventType.DELETED, 3: EventType.CHANGED, 4: EventType.CHILD}


class Frames:
    """The received part of a stream of frames, each of which begins with its length."""

    def __init__(self) -> None:
        self._received = bytearray()

    def take(self, data: bytes) -> Iterator[bytes]:
        """Add data and return the frames that are complete now."""
        self._received += data
        while len(self._received) >= 4:
            (size,) = _INT.unpack_from(self._received)
            if len(self._received) < 4 + size:
                return
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            yield frame


class _Wire(asyncio.Protocol):
    def __init__(self, client: "SimKazooClient") -> None:
        self._client = client
        self._frames = Frames()
        self.transport: Any = None
        self.ended = asyncio.get_running_loop().create_future()
        self.greeting: asyncio.Future[bytes] | None = asyncio.get_running_loop().create_future()
        self.heard_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard_s = self._client.loop.time()
        for frame in self._frames.take(data):
            if self.greeting is not None:
                if not self.greeting.done():
                    self.greeting.set_result(frame)
                self.greeting = None
            else:
                self._client.took(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.greeting is not None and not self.greeting.done():
            self.greeting.set_exception(ConnectionResetError("lost"))
        if not self.ended.done():
            self.ended.set_result(None)

    def send(self, body: bytes) -> None:
        self.transport.write(_INT.pack(len(body)) + body)


class SimKazooClient:
    """The part of `KazooClient` that `KazooConnection` uses."""

    def __init__(self, *, hosts: str, timeout: float, client_id: tuple[int, bytes] | None = None, **_: Any) -> None:
        self.loop: SimLoop = asyncio.get_running_loop()  # type: ignore[assignment]
        self._hosts = [(host, int(port)) for host, _, port in (each.partition(":") for each in hosts.split(","))]
        self._timeout_ms = int(timeout * 1000)
        self._session_id: int | None
        self._session_id, self._password = client_id or (None, bytes(16))
        self._last_zxid = 0
        self._listeners: list[Any] = []
        self._state = KazooState.LOST
        self.client_state = KeeperState.CONNECTING
        self._wire: _Wire | None = None
        self._xid = 0
        self._pending: deque[tuple[Any, Any, int]] = deque()
        self._data_watchers: dict[str, dict[Any, None]] = {}
        self._child_watchers: dict[str, dict[Any, None]] = {}
        self._is_stopped = False

    @property
    def client_id(self) -> tuple[int | None, bytes] | None:
        return (self._session_id, self._password) if self._state == KazooState.CONNECTED else None

    def add_listener(self, listener: Any) -> None:
        self._listeners.append(listener)

    def start_async(self) -> None:
        self.loop.create_task(self._run(), name="zookeeper client")

    def stop(self) -> None:
        self._is_stopped = True
        if self._wire is not None and self._state == KazooState.CONNECTED:
            self._submit(requests.Close)
            self._wire.transport.close()

    def close(self) -> None:
        """Do nothing: `stop` has closed everything."""

    def _call(self, request: Any, answer: Any) -> None:
        if self._wire is None or self._state != KazooState.CONNECTED:
            answer.set_exception(failures.ConnectionLoss())
            return
        self._pending.append((request, answer, self._submit(request)))

    def _submit(self, request: Any) -> int:
        assert self._wire is not None
        self._xid += 1
        kind = request.type
        body = b"" if request is requests.Close else bytes(request.serialize())
        self._wire.send(_INT.pack(self._xid) + _INT.pack(kind) + body)
        return self._xid

    # -- the connection -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        pause_s = 0.05
        while not self._is_stopped:
            host, port = self.loop.world.random.choice(self._hosts)
            try:
                # As in kazoo: with several servers, there is time to try each.
                async with asyncio.timeout(self._timeout_ms / 1000 / len(self._hosts)):
                    wire = await self._connect(host, port)
            except (OSError, TimeoutError):
                await asyncio.sleep(pause_s)
                pause_s = min(1.0, pause_s * 2)
                continue
            if wire is None:
                self._end_session()
                continue
            pause_s = 0.05
            await self._keep_alive(wire)
            if self._wire is wire:
                self._lost()

    async def _connect(self, host: str, port: int) -> _Wire | None:
        """Return the connection; None if the session has expired."""
        wire: _Wire
        _, wire = await self.loop.create_connection(lambda: _Wire(self), host, port)
        try:
            greeting = wire.greeting
            wire.send(
                bytes(
                    requests.Connect(
                        0, self._last_zxid, self._timeout_ms, self._session_id or 0, self._password, False
                    ).serialize()
                )
            )
            assert greeting is not None
            answer, _ = requests.Connect.deserialize(await greeting, 0)
        except BaseException:
            wire.transport.abort()
            raise
        if answer.time_out <= 0:
            wire.transport.abort()
            return None
        self._session_id, self._password = answer.session_id, answer.passwd
        self._timeout_ms = answer.time_out
        self._wire = wire
        self._set_state(KazooState.CONNECTED)
        return wire

    async def _keep_alive(self, wire: _Wire) -> None:
        """Send pings until the connection is lost, or the server was silent for two thirds of the session timeout."""
        wire.heard_s = self.loop.time()
        step_s = self._timeout_ms / 3000
        while not wire.ended.done():
            await asyncio.wait([wire.ended], timeout=step_s)
            if wire.ended.done() or self._is_stopped:
                return
            if self.loop.time() - wire.heard_s >= 2 * step_s:
                wire.transport.abort()
                return
            wire.send(_INT.pack(_PING_XID) + _INT.pack(requests.Ping.type))

    def lose_connection(self) -> None:
        """Lose the connection at this very moment, as a thread of kazoo may notice at any moment."""
        if self._wire is not None:
            self._wire.transport.abort()
            self._lost()

    def _lost(self) -> None:
        self._wire = None
        if self._is_stopped:
            return
        self._fail_pending(failures.ConnectionLoss())
        self._set_state(KazooState.SUSPENDED)
        self._reset_watchers()

    def _end_session(self) -> None:
        self._session_id, self._password, self._last_zxid = None, bytes(16), 0
        self._set_state(KazooState.LOST)
        self._fail_pending(failures.SessionExpiredError())
        self._reset_watchers()

    def _set_state(self, state: str) -> None:
        self._state = state
        for listener in self._listeners:
            listener(state)

    def _fail_pending(self, error: Exception) -> None:
        pending, self._pending = self._pending, deque()
        for _, answer, _ in pending:
            answer.set_exception(error)

    def _reset_watchers(self) -> None:
        watchers = [w for each in (self._data_watchers, self._child_watchers) for ws in each.values() for w in ws]
        self._data_watchers, self._child_watchers = {}, {}
        for watcher in watchers:
            watcher(WatchedEvent(EventType.NONE, self._state, None))

    # -- answers --------------------------------------------------------------------------------------------------------

    def took(self, frame: bytes) -> None:
        xid, zxid, error = _HEADER.unpack_from(frame)
        if xid == _PING_XID:
            return
        if xid == _WATCH_XID:
            self._watched(frame)
            return
        if zxid > 0:
            self._last_zxid = zxid
            sent, host = self.loop.world.zxids_sent, self._hosts[0][0]
            sent[host] = max(zxid, sent.get(host, 0))
        if not self._pending:
            return  # the answer to the close request
        request, answer, expected = self._pending.popleft()
        assert xid == expected, f"answer {xid} where {expected} was due"
        is_absent = error == failures.NoNodeError.code and request.type == requests.Exists.type
        if error and not is_absent:
            answer.set_exception(failures.EXCEPTIONS[error]())
            return
        answer.set(None if is_absent else request.deserialize(frame, _HEADER.size))
        watcher = getattr(request, "watcher", None)
        if watcher is not None:
            kind = (
                self._child_watchers
                if isinstance(request, requests.GetChildren | requests.GetChildren2)
                else self._data_watchers
            )
            kind.setdefault(request.path, {})[watcher] = None

    def _watched(self, frame: bytes) -> None:
        watch, _ = requests.Watch.deserialize(frame, _HEADER.size)
        fired: list[Any] = []
        if watch.type in (1, 2, 3):
            fired += self._data_watchers.pop(watch.path, {})
        if watch.type in (2, 4):
            fired += self._child_watchers.pop(watch.path, {})
        for watcher in fired:
            watcher(WatchedEvent(_EVENTS[watch.type], self._state, watch.path))


class SimLogThread:
    """The embedded ZooKeeper's log thread, on its simulated process."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Do nothing: the thread begins with the first job."""

    def put(self, job: Any) -> None:
        self._loop.run_in_executor(None, self._work, job)

    def stop(self) -> None:
        """Do nothing: the server has waited for the last job."""
