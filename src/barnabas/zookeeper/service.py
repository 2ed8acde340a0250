"""How the server processes a request: the machine decides, the commit makes it durable, the listener sends.

Owner: the event loop. Only this module assigns zxids and session ids.
"""

import hmac
import logging
import math
import struct
from collections.abc import Callable

from barnabas.base.bugs import BugLog
from barnabas.base.clock import Clock
from barnabas.base.errors import BrokenInvariant, Malformed
from barnabas.base.host import descriptors
from barnabas.zookeeper import acl as acls
from barnabas.zookeeper import reads, txns, wire
from barnabas.zookeeper.commit import GroupCommit
from barnabas.zookeeper.config import ZooKeeperConfig
from barnabas.zookeeper.listener import Connection
from barnabas.zookeeper.machine import Machine, Written
from barnabas.zookeeper.prepare import WRITES
from barnabas.zookeeper.sessions import PASSWORD_BYTES, first_session_id, session_password
from barnabas.zookeeper.stats import ServerStats
from barnabas.zookeeper.store import Store
from barnabas.zookeeper.txnlog import frame
from barnabas.zookeeper.watches import WatchEvent
from barnabas.zookeeper.wire import FRAMED_REPLY, Err, Op, Reader

_log = logging.getLogger(__name__)

#: Bound of one connection's identities, because every check of an ACL reads them all.
IDENTITIES_MAX = 32
#: Bound of one connection's watches, in bytes of paths and overhead: some 80,000 watches, or 1.3 million after the connection
#: has authenticated.
STRANGER_WATCHES_BYTES_MAX = 16 << 20
WATCHES_BYTES_MAX = 256 << 20

#: xid, type
_REQUEST_HEADER = struct.Struct(">ii")
#: protocolVersion, timeOut, sessionId
_CONNECT = struct.Struct(">iiq")

#: Names of the last operation in the output of `cons`.
_OP_NAMES = {
    Op.CREATE: "CREA",
    Op.CREATE2: "CREA",
    Op.CREATE_TTL: "CREA",
    Op.CREATE_CONTAINER: "CREA",
    Op.DELETE: "DELE",
    Op.SET_DATA: "SETD",
    Op.SET_ACL: "SETA",
    Op.MULTI: "MULT",
    Op.MULTI_READ: "MLTR",
    Op.CHECK: "CHEC",
    Op.RECONFIG: "RECO",
    Op.EXISTS: "EXIS",
    Op.GET_DATA: "GETD",
    Op.GET_ACL: "GETA",
    Op.GET_CHILDREN: "GETC",
    Op.GET_CHILDREN2: "GETC",
    Op.GET_ALL_CHILDREN_NUMBER: "GETACN",
    Op.GET_EPHEMERALS: "GETE",
    Op.SYNC: "SYNC",
    Op.PING: "PING",
    Op.SET_WATCHES: "SETW",
    Op.SET_WATCHES2: "STW2",
    Op.ADD_WATCH: "ADDW",
    Op.CHECK_WATCHES: "CHKW",
    Op.REMOVE_WATCHES: "REMW",
    Op.WHO_AM_I: "HOMI",
    Op.CLOSE_SESSION: "CLOS",
}


class Service:
    """Invariants: a session has at most one connection (`by_session`); every admitted connection is in `connections`."""

    def __init__(
        self,
        config: ZooKeeperConfig,
        clock: Clock,
        machine: Machine,
        commit: GroupCommit,
        store: Store,
        *,
        secret: bytes,
        call_soon: Callable[[Callable[[], None]], object],
        on_txn: Callable[[], None],
        on_bug: Callable[[Exception], None],
    ) -> None:
        self.config = config
        self.clock = clock
        self.machine = machine
        self.commit = commit
        self.store = store
        self.stats = ServerStats()
        self.port = 0
        self.started_s = clock.monotonic_s()
        self._secret = secret
        self._call_soon = call_soon
        self._on_txn = on_txn
        #: Called if a request failed after it changed something: the state may be inconsistent, so the server must stop.
        self.on_bug = on_bug
        self.bugs = BugLog(_log)
        # Higher than every id in use, even if the clock was set back since.
        self._next_session_id = max(
            first_session_id(server_id=0, now_ms=clock.now_ms()), max(machine.sessions.by_id, default=0) + 1
        )
        self.connections: dict[Connection, None] = {}
        self.by_session: dict[int, Connection] = {}
        self._per_address: dict[str, int] = {}
        self._waiting: dict[Connection, None] = {}
        self._turns: dict[Connection, None] = {}

    # ---- connections --------------------------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        count = self._per_address.get(connection.address, 0)
        limit, total = self.config.max_client_cnxns, self.config.max_cnxns or descriptors.for_connections()
        if (limit and count >= limit) or len(self.connections) >= total:
            _log.warning("%s: too many connections (maxClientCnxns=%d, maxCnxns=%d)", connection.address, limit, total)
            return False
        self._per_address[connection.address] = count + 1
        self.connections[connection] = None
        connection.identities.append(("ip", connection.address))
        connection.established_ms = self.clock.now_ms()
        connection.established_s = self.clock.monotonic_s()
        return True

    def departed(self, connection: Connection) -> None:
        """Forget an ended connection with its watches. Its session lives until it expires."""
        del self.connections[connection]
        count = self._per_address[connection.address] - 1
        if count:
            self._per_address[connection.address] = count
        else:
            del self._per_address[connection.address]
        if self.by_session.get(connection.session_id) is connection:
            del self.by_session[connection.session_id]
        self._waiting.pop(connection, None)
        self._turns.pop(connection, None)
        self.machine.tree.forget_client(connection)
        self.commit.forget(connection)

    def on_sent(self, connection: Connection, count: int) -> None:
        """Count sent responses. Events without a request have no latency."""
        self.stats.packets_sent += count
        answers = min(count, connection.outstanding)
        if not answers:
            return
        connection.outstanding -= answers
        now_s = self.clock.monotonic_s()
        latency_ms = int((now_s - connection.turn_started_s) * 1000)
        self.stats.record_latency(latency_ms, answers)
        connection.last_response_s = now_s
        connection.last_latency_ms = latency_ms
        connection.latency_max_ms = max(connection.latency_max_ms, latency_ms)
        connection.latency_sum_ms += latency_ms * answers

    # ---- back-pressure ------------------------------------------------------------------------------------------------

    @property
    def is_overloaded(self) -> bool:
        commit = self.commit
        return (
            commit.held_count >= self.config.global_outstanding_limit
            or commit.held_bytes >= self.config.outstanding_bytes_max
        )

    def wait(self, connection: Connection) -> None:
        """Let the connection wait until the disk has caught up."""
        self._waiting[connection] = None

    def wait_turn(self, connection: Connection) -> None:
        """Let the connection wait until other connections have had their turn."""
        if not self._turns:
            self._call_soon(self._next_turns)
        self._turns[connection] = None

    def _next_turns(self) -> None:
        turns, self._turns = self._turns, {}
        for connection in turns:
            connection.resume()

    def released(self) -> None:
        """Resume connections after the disk has caught up with some responses."""
        if not self._waiting or self.is_overloaded:
            return
        waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            connection.resume()

    # ---- requests -----------------------------------------------------------------------------------------------------

    def handle(self, connection: Connection, payload: bytes, out: list[bytes]) -> None:
        """Process one frame. Its response goes to `out`; events for other connections do not."""
        self.stats.packets_received += 1
        if not connection.is_ready:
            self._handshake(connection, payload, out)
            return
        if len(payload) < 8:
            _log.warning("%s: a request of %d bytes; closed", connection.peer, len(payload))
            connection.abort()
            return
        xid, op = _REQUEST_HEADER.unpack_from(payload)
        machine = self.machine
        if not machine.sessions.touch(connection.session_id, now_ms=int(connection.turn_started_s * 1000)):
            # The session has expired and its connection is about to be closed: no client waits for this response.
            return
        if op in reads.READS:
            err, body, events = reads.read(machine.tree, connection, op, Reader(payload, 8))
            if events:
                out.extend(wire.notification(event, path) for event, path, _ in events)
            if connection.watched_bytes > STRANGER_WATCHES_BYTES_MAX and self._watches_too_much(connection):
                return
            out.append(FRAMED_REPLY.pack(16 + len(body), xid, machine.last_zxid, err) + body)
        elif op == Op.PING:
            out.append(FRAMED_REPLY.pack(16, xid, machine.last_zxid, 0))
        elif op in WRITES:
            now_ms = self.clock.now_ms()
            written = machine.write(connection, op, xid, Reader(payload, 8), zxid=machine.last_zxid + 1, now_ms=now_ms)
            self._log_and_notify(written, connection, out)
            body = written.body
            out.append(FRAMED_REPLY.pack(16 + len(body), xid, written.header.zxid, written.err) + body)
        else:
            self._handle_special(connection, xid, op, payload, out)
        connection.last_op = _OP_NAMES.get(op, "NA")
        if xid >= 0:
            connection.last_cxid = xid
            connection.last_zxid = machine.last_zxid

    def _watches_too_much(self, connection: Connection) -> bool:
        is_known = any(scheme not in ("ip", "world") for scheme, _ in connection.identities)
        if is_known and connection.watched_bytes <= WATCHES_BYTES_MAX:
            return False
        _log.warning("%s watches %d bytes of paths; closed", connection.peer, connection.watched_bytes)
        connection.abort()
        return True

    def _handle_special(self, connection: Connection, xid: int, op: int, payload: bytes, out: list[bytes]) -> None:
        if op == Op.AUTH:
            self._authenticate(connection, xid, payload, out)
        elif op == Op.CLOSE_SESSION:
            self._close(connection.session_id, xid, connection, out)
            out.append(wire.reply(xid, self.machine.last_zxid, 0))
            connection.close_after_answer()
        else:
            # SASL is not configured here, and clients may not send the other operations.
            err = Err.AUTH_FAILED if op == Op.SASL else Err.UNIMPLEMENTED
            _log.warning("%s: operation %d is not served; closed", connection.peer, op)
            out.append(wire.reply(xid, self.machine.last_zxid, err))
            connection.close_after_answer()

    def _log_and_notify(self, written: Written, origin: Connection | None, out: list[bytes]) -> None:
        """Log the transaction and queue its events. They reach each client before any response that shows the change."""
        try:
            self.commit.append(written.header.zxid, frame(txns.encode(written.header, written.txn)))
            self._on_txn()
            for event in written.events:
                self._notify(event, origin, out)
        except Exception as bug:
            raise BrokenInvariant(
                f"zxid 0x{written.header.zxid:x} was applied, but not logged and announced: {bug!r}"
            ) from bug

    def _notify(self, event: WatchEvent, origin: Connection | None, out: list[bytes]) -> None:
        piece = [wire.notification(event.event, event.path)]
        for client in event.clients:
            if client is origin:
                out.extend(piece)
            else:
                assert isinstance(client, Connection), "only connections watch"
                self.commit.send(client, piece)

    def _authenticate(self, connection: Connection, xid: int, payload: bytes, out: list[bytes]) -> None:
        try:
            reader = Reader(payload, 8)
            reader.i32()
            scheme, credentials = reader.text(), reader.buffer() or b""
        except Malformed:
            connection.abort()
            return
        if scheme == "digest":
            digest = acls.digest_of(credentials.decode("utf-8", "replace"))
            if self.config.super_digest is not None and hmac.compare_digest(
                digest.encode("utf-8"), self.config.super_digest.encode("utf-8")
            ):
                _add_identity(connection, acls.SUPER)
            _add_identity(connection, ("digest", digest))
        elif scheme == "ip":
            _add_identity(connection, ("ip", connection.address))
        else:
            _log.warning("%s: no authentication scheme %r; closed", connection.peer, scheme)
            self._refuse_authentication(connection, xid, out)
            return
        if len(connection.identities) > IDENTITIES_MAX:
            _log.warning("%s: more than %d identities; closed", connection.peer, IDENTITIES_MAX)
            self._refuse_authentication(connection, xid, out)
            return
        out.append(wire.reply(xid, 0, 0))

    @staticmethod
    def _refuse_authentication(connection: Connection, xid: int, out: list[bytes]) -> None:
        out.append(wire.reply(xid, 0, Err.AUTH_FAILED))
        connection.close_after_answer()

    # ---- sessions -----------------------------------------------------------------------------------------------------

    def _handshake(self, connection: Connection, payload: bytes, out: list[bytes]) -> None:
        try:
            reader = Reader(payload)
            reader.i32()  # protocol version
            last_zxid_seen, timeout_ms, session_id = reader.i64(), reader.i32(), reader.i64()
            password = reader.buffer() or b""
        except Malformed as error:
            _log.warning("%s: %s in the handshake; closed", connection.peer, error)
            connection.abort()
            return
        # Clients before 3.4 do not say whether they accept a read-only server; they get no such flag back.
        flag = b"\0" if reader.remaining else b""
        if last_zxid_seen > self.machine.last_zxid:
            _log.warning(
                "%s has seen zxid 0x%x, ours is 0x%x: it must try another server; closed",
                connection.peer,
                last_zxid_seen,
                self.machine.last_zxid,
            )
            connection.abort()
            return
        timeout_ms = min(max(timeout_ms, self.config.session_timeout_min_ms), self.config.session_timeout_max_ms)
        if session_id == 0:
            session_id = self._open_session(timeout_ms, out)
        elif not self._resume_session(session_id, password, timeout_ms):
            out.append(_connect_response(0, 0, bytes(PASSWORD_BYTES), flag))
            connection.close_after_answer()
            return
        connection.session_id = session_id
        connection.timeout_ms = timeout_ms
        connection.is_ready = True
        connection.last_op = "SESS"
        self.by_session[session_id] = connection
        out.append(_connect_response(timeout_ms, session_id, self._password(session_id), flag))

    def _elapsed_ms(self) -> int:
        """The clock of session timers."""
        return int(self.clock.monotonic_s() * 1000)

    def _open_session(self, timeout_ms: int, out: list[bytes]) -> int:
        session_id = self._next_session_id
        self._next_session_id += 1
        zxid = self.machine.last_zxid + 1
        written = self.machine.open_session(session_id, timeout_ms, zxid=zxid, now_ms=self.clock.now_ms())
        self.machine.sessions.touch(session_id, now_ms=self._elapsed_ms())
        self._log_and_notify(written, None, out)
        return session_id

    def _resume_session(self, session_id: int, password: bytes, timeout_ms: int) -> bool:
        if not hmac.compare_digest(password, self._password(session_id)):
            return False
        if not self.machine.sessions.touch(session_id, now_ms=self._elapsed_ms(), timeout_ms=timeout_ms):
            return False
        # The client has moved to this connection; the old one is no longer used.
        old = self.by_session.get(session_id)
        if old is not None:
            old.abort()
        return True

    def _password(self, session_id: int) -> bytes:
        return session_password(self._secret, session_id)

    def _close(self, session_id: int, cxid: int, origin: Connection | None, out: list[bytes]) -> None:
        zxid = self.machine.last_zxid + 1
        written = self.machine.close_session(session_id, cxid, zxid=zxid, now_ms=self.clock.now_ms())
        self._log_and_notify(written, origin, out)

    def until_next_expiry_s(self) -> float:
        """Return how long no session can expire; infinite if there is none."""
        due_ms = self.machine.sessions.next_expiry_ms()
        return math.inf if due_ms is None else max(0.001, (due_ms - self._elapsed_ms()) / 1000)

    def expire_sessions(self) -> None:
        """Close the sessions whose clients were silent for too long."""
        for session_id in self.machine.sessions.expired(now_ms=self._elapsed_ms()):
            self.expire(session_id)

    def expire(self, session_id: int) -> None:
        _log.info("[zookeeper session 0x%x] expired", session_id)
        connection = self.by_session.get(session_id)
        out: list[bytes] = []
        self._close(session_id, 0, connection, out)
        if connection is not None:
            self.commit.send(connection, out, close=True)

    def drop_idle(self) -> None:
        """Close connections that opened no session in time, and those that do not read their last response."""
        now_s = self.clock.monotonic_s()
        limit_s = self.config.sessionless_timeout_ms / 1000
        for connection in list(self.connections):
            since_s = connection.closing_since_s
            if since_s is None and not connection.is_ready:
                since_s = connection.established_s
            if since_s is not None and now_s - since_s > limit_s:
                connection.abort()

    def delete_containers(self) -> None:
        """Delete empty containers, and TTL nodes whose time is up."""
        now_ms = self.clock.now_ms()
        for path in list(self.machine.tree.expired_candidates(now_ms=now_ms)):
            written = self.machine.delete_container(path, zxid=self.machine.last_zxid + 1, now_ms=now_ms)
            if written is not None:
                self._log_and_notify(written, None, [])


def _add_identity(connection: Connection, identity: acls.Identity) -> None:
    if identity not in connection.identities:
        connection.identities.append(identity)


def _connect_response(timeout_ms: int, session_id: int, password: bytes, flag: bytes) -> bytes:
    body = _CONNECT.pack(0, timeout_ms, session_id) + wire.buffer(password) + flag
    return wire.INT.pack(len(body)) + body
