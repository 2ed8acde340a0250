"""An ensemble of three ZooKeeper servers, as brokers see it: two of them may be behind.

The leader is the embedded ZooKeeper that ships, and takes all writes. A follower stands for a server of Apache ZooKeeper, which
barnabas does not ship. It keeps Apache's promises, and no more than those:

- Writes and `sync` go to the leader. The follower forwards an answer when it has applied as much as the leader had by then.
- Reads are answered from the follower's own tree, in the order of the client's requests, and watches fire as it changes.
- A client that has seen a later zxid than the follower is rejected. So its view never goes back when it changes servers.
- A follower that hears nothing from its leader continues for a while, and then closes its clients' connections.

A follower has the whole history when it joins. From then on it applies each change a little later.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from barnabas.testing.simulation.network import Network
from barnabas.testing.simulation.process import Process, ZooKeeperProcess, loop_of
from barnabas.testing.simulation.world import World
from barnabas.testing.simulation.zookeeper import Frames
from barnabas.zookeeper import reads, txns, wire
from barnabas.zookeeper.machine import Machine, Written
from barnabas.zookeeper.service import Service
from barnabas.zookeeper.watches import Client
from barnabas.zookeeper.wire import Op, Reader

if TYPE_CHECKING:
    from tests.simulation.faults import Faults

CLIENT_PORT, PEER_PORT = 2181, 2888
#: How often the leader sends a sign of life, and how long a follower continues without one.
REMIND_S = 0.25
SYNC_LIMIT_S = 2.0
REJOIN_S = 0.05
#: By how much a follower lags, for how long, how long it does not lag after that, and before the first lag.
LAGS_S = (0.05, 0.2, 0.4, 0.4, 0.8, 2.0)
BEHIND_S = (0.5, 3.0)
LEVEL_S = (0.5, 3.0)
FIRST_S = (0.08, 0.2)

#: xid, type
_REQUEST = struct.Struct(">ii")
#: The last zxid and the session of a client, in its first frame and in the answer.
_SEEN = struct.Struct(">iq")
_GREETING = struct.Struct(">iiq")
_PING_XID = -2


class LeaderProcess(ZooKeeperProcess):
    """The embedded ZooKeeper, which sends followers the transactions on its disk."""

    def __init__(self, world: World, network: Network, prefix: str = "") -> None:
        super().__init__(world, network, prefix)
        #: Every transaction ever logged. The last ones may not be on disk yet.
        self.history: list[tuple[txns.TxnHeader, txns.Txn]] = []
        self.feeds: dict[_Feed, None] = {}

    @property
    def committed_zxid(self) -> int:
        assert self.server is not None
        return self.server.service.commit.synced_zxid

    def _listen_to(self, service: Service) -> None:
        super()._listen_to(service)
        # The disk did not have the transactions that a crash took, so no follower has them.
        while self.history and self.history[-1][0].zxid > service.machine.last_zxid:
            self.history.pop()
        self.feeds = {}
        log_and_notify, released = service._log_and_notify, service.released

        def log(written: Written, origin: Any, out: list[bytes]) -> None:
            self.history.append((written.header, written.txn))
            log_and_notify(written, origin, out)

        def flushed() -> None:
            released()
            for feed in list(self.feeds):
                feed.send_committed()

        vars(service).update(_log_and_notify=log, released=flushed)
        self.host.serve(loop_of(self), lambda: _Feed(self), PEER_PORT)
        self._remind()

    def _remind(self) -> None:
        for feed in list(self.feeds):
            feed.remind()
        loop_of(self).call_later(REMIND_S, self._remind)


class _Framed(asyncio.Protocol):
    """One side of a connection on which frames travel."""

    def __init__(self) -> None:
        super().__init__()
        self._frames = Frames()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.take(data):
            self.took(frame)

    def took(self, frame: bytes) -> None:
        raise NotImplementedError

    def send(self, frame: bytes) -> None:
        self.transport.write(wire.INT.pack(len(frame)) + frame)


class _Feed(_Framed):
    """The leader's side of the connection to a follower."""

    def __init__(self, leader: LeaderProcess) -> None:
        super().__init__()
        self._leader = leader
        #: How many transactions of the history were sent.
        self._sent = 0

    def took(self, frame: bytes) -> None:
        (known,) = wire.LONG.unpack(frame)
        self._sent = sum(header.zxid <= known for header, _ in self._leader.history)
        self._leader.feeds[self] = None
        self.send_committed()
        self.remind()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leader.feeds.pop(self, None)

    def send_committed(self) -> None:
        history, committed = self._leader.history, self._leader.committed_zxid
        while self._sent < len(history) and history[self._sent][0].zxid <= committed:
            self.send(txns.encode(*history[self._sent]))
            self._sent += 1

    def remind(self) -> None:
        """Send a sign of life behind everything that is committed by now."""
        self.send(wire.LONG.pack(self._leader.committed_zxid))


class _Following(_Framed):
    """The follower's side of the connection to its leader."""

    def __init__(self, server: "FollowerProcess") -> None:
        super().__init__()
        self._server = server
        self.ended = asyncio.get_running_loop().create_future()
        self.heard_s = server.world.now_s

    def took(self, frame: bytes) -> None:
        self.heard_s = self._server.world.now_s
        if len(frame) == wire.LONG.size:
            self._server.is_joined = True
        else:
            self._server.heard_of(*txns.decode(frame))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class FollowerProcess(Process):
    def __init__(self, world: World, network: Network, name: str, leader: str) -> None:
        super().__init__(world, network, name)
        self.leader = leader
        self.machine = Machine(tick_ms=500)
        self.visits: dict[_Visit, None] = {}
        #: Whether it has applied everything that was committed when it joined and has not lost its leader since.
        self.is_joined = False
        #: How much later than it arrives a change is applied.
        self.lag_s = 0.0
        #: Whether no lag begins any more.
        self.is_steady = False
        #: Changes that wait for the time at which they are applied, in order.
        self._coming: deque[tuple[float, txns.TxnHeader, txns.Txn]] = deque()

    @property
    def is_level(self) -> bool:
        """Whether the follower's clients see what the leader has, as far as the network allows."""
        return not self.is_up or (self.is_joined and not self.is_paused and not self.lag_s and not self._coming)

    async def main(self) -> None:
        loop = loop_of(self)
        self.machine, self.visits, self._coming = Machine(tick_ms=500), {}, deque()
        self.is_joined, self.lag_s = False, 0.0
        await loop.create_server(lambda: _Visit(self), self.name, CLIENT_PORT)
        varying = loop.create_task(self._vary(), name="lag")
        try:
            while True:
                await self._follow()
                self._send_all_away()
                await asyncio.sleep(REJOIN_S)
        finally:
            varying.cancel()

    async def _vary(self) -> None:
        await asyncio.sleep(self.world.between(*FIRST_S))
        while not self.is_steady:
            self.lag_s = self.world.random.choice(LAGS_S)
            self.world.note(self.name, f"is behind by {self.lag_s} s")
            await asyncio.sleep(self.world.between(*BEHIND_S))
            self.lag_s = 0.0
            await asyncio.sleep(self.world.between(*LEVEL_S))

    def settle(self) -> None:
        """End the lag for the rest of the run."""
        self.is_steady, self.lag_s = True, 0.0

    async def _follow(self) -> None:
        """Follow the leader until it is gone or has been silent for too long."""
        try:
            async with asyncio.timeout(SYNC_LIMIT_S):
                _, link = await loop_of(self).create_connection(lambda: _Following(self), self.leader, PEER_PORT)
        except (OSError, TimeoutError):
            return
        link.send(wire.LONG.pack(self.machine.last_zxid))
        while not link.ended.done() and self.world.now_s - link.heard_s < SYNC_LIMIT_S:
            await asyncio.wait([link.ended], timeout=REMIND_S)
        link.transport.abort()

    def _send_all_away(self) -> None:
        self.is_joined = False
        self._coming.clear()
        for visit in list(self.visits):
            visit.end()

    # -- what changes -----------------------------------------------------------------------------------------------------

    def heard_of(self, header: txns.TxnHeader, txn: txns.Txn) -> None:
        if not self.is_joined:
            self._apply(header, txn)
            return
        due_s = max(self.world.now_s + self.lag_s, self._coming[-1][0] if self._coming else 0.0)
        self._coming.append((due_s, header, txn))
        self._apply_due()

    def _apply_due(self) -> None:
        while self._coming and self._coming[0][0] <= self.world.now_s:
            _, header, txn = self._coming.popleft()
            self._apply(header, txn)
        if self._coming:
            loop_of(self).call_at(self._coming[0][0], self._apply_due)

    def _apply(self, header: txns.TxnHeader, txn: txns.Txn) -> None:
        """Apply a change. Watches fire before any client can read the change."""
        for event, path, watchers in self.machine._commit(header, txn).events:
            for visit in watchers:
                assert isinstance(visit, _Visit)
                visit.tell(wire.notification(event, path))
        for visit in list(self.visits):
            visit.go_on()


class _Upstream(_Framed):
    """A follower's connection to its leader on behalf of one client."""

    def __init__(self, visit: "_Visit") -> None:
        super().__init__()
        self._visit = visit

    def took(self, frame: bytes) -> None:
        self._visit.leader_answered(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        # The session has ended or moved to another server, or the leader is gone.
        self._visit.end()


class _Visit(Client, _Framed):
    """A client connection to a follower."""

    def __init__(self, server: FollowerProcess) -> None:
        Client.__init__(self)
        _Framed.__init__(self)
        self._server = server
        self._upstream: _Upstream | None = None
        self._is_greeted = False
        #: Requests without an answer yet, and the leader's answers to forwarded ones.
        self._asked: deque[bytes] = deque()
        self._answers: deque[bytes] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.visits[self] = None
        if not self._server.is_joined:
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.visits.pop(self, None)
        self._server.machine.tree.forget_client(self)
        if self._upstream is not None:
            self._upstream.transport.abort()

    def end(self) -> None:
        self.transport.abort()

    def tell(self, framed: bytes) -> None:
        self.transport.write(framed)

    def took(self, frame: bytes) -> None:
        if self._upstream is None:
            self._greet(frame)
            return
        _, op = _REQUEST.unpack_from(frame)
        if op == Op.PING:
            self._upstream.send(frame)  # the leader tracks the timeouts of all sessions
            self.tell(self._reply(frame, 0, b""))
            return
        self._asked.append(frame)
        if not self._is_own(op):
            self._upstream.send(frame)
        self.go_on()

    @staticmethod
    def _is_own(op: int) -> bool:
        """Whether the follower answers the request by itself."""
        return op in reads.READS and op != Op.SYNC

    def _greet(self, frame: bytes) -> None:
        _, seen = _SEEN.unpack_from(frame)
        if seen > self._server.machine.last_zxid:
            self.end()
            return
        loop_of(self._server).create_task(self._go_upstream(frame), name="upstream")

    async def _go_upstream(self, greeting: bytes) -> None:
        try:
            _, upstream = await loop_of(self._server).create_connection(
                lambda: _Upstream(self), self._server.leader, CLIENT_PORT
            )
        except OSError:
            self.end()
            return
        self._upstream = upstream
        if self.transport.is_closing():
            upstream.transport.abort()
        else:
            upstream.send(greeting)

    def leader_answered(self, frame: bytes) -> None:
        if self._is_greeted and wire.REPLY_HEADER.unpack_from(frame)[0] == _PING_XID:
            return
        self._answers.append(frame)
        self.go_on()

    def go_on(self) -> None:
        """Send the answers that are ready, in the order of the requests."""
        machine = self._server.machine
        if not self._is_greeted and self._answers:
            _, timeout_ms, self.session_id = _GREETING.unpack_from(self._answers[0])
            if timeout_ms > 0 and self.session_id not in machine.sessions.by_id:
                return  # the follower has not applied this zxid yet
            self._is_greeted = True
            self.send(self._answers.popleft())
        while self._asked:
            frame = self._asked[0]
            if self._is_own(_REQUEST.unpack_from(frame)[1]):
                self._read(frame)
            elif self._answers and wire.REPLY_HEADER.unpack_from(self._answers[0])[1] <= machine.last_zxid:
                self.send(self._answers.popleft())
            else:
                return
            self._asked.popleft()

    def _read(self, frame: bytes) -> None:
        op = _REQUEST.unpack_from(frame)[1]
        err, body, events = reads.read(self._server.machine.tree, self, op, Reader(frame, _REQUEST.size))
        for event, path, _ in events:
            self.tell(wire.notification(event, path))
        self.tell(self._reply(frame, err, body))

    def _reply(self, frame: bytes, err: int, body: bytes) -> bytes:
        return wire.reply(_REQUEST.unpack_from(frame)[0], self._server.machine.last_zxid, err, body)


class EnsembleFaults:
    """Faults of followers, apart from their lags."""

    def __init__(self, faults: "Faults") -> None:
        self._faults = faults
        self._world = faults._world

    @property
    def kinds(self) -> tuple[Callable[[], None], ...]:
        return (self.kill_follower, self.cut_off_follower, self.pause_follower, self.leave_follower)

    def _pick(self) -> FollowerProcess | None:
        up = [each for each in self._faults._cluster.followers if each.is_up and not each.is_paused]
        return self._world.random.choice(up) if up else None

    def kill_follower(self) -> None:
        """Kill a follower: its clients continue with another server, in the same session."""
        if (follower := self._pick()) is not None:
            follower.kill()
            self._faults._start_later(follower, 0.02, 2.0)

    def cut_off_follower(self) -> None:
        """Cut a follower off from its leader, one way or both: it answers reads for a while."""
        if (follower := self._pick()) is not None:
            pairs = [(follower.leader, follower.name), (follower.name, follower.leader)]
            self._faults._cut(self._world.random.choice([pairs, pairs[:1]]), self._world.between(0.2, 4.0))

    def pause_follower(self) -> None:
        if (follower := self._pick()) is not None:
            self._faults._pause_for(follower, self._world.between(0.1, 3.0))

    def leave_follower(self) -> None:
        """Close the connections of a follower's clients; they can connect again at once."""
        if (follower := self._pick()) is not None:
            self._world.note(follower.name, "loses its clients")
            for visit in list(follower.visits):
                visit.transport._line.reset_later()
                visit.transport._line.other.reset_later()
