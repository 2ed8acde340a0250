"""The only broker module that uses kazoo: one connection to an ensemble, driven by kazoo's own thread.

Owner: kazoo's connection thread, except `start`, `submit` and `stop`, which the session calls. Events
are callbacks on that thread, in order; the session passes them to the loop.

Requests go straight into kazoo's queue with a small object for the answer, as kazoo's own transactions do. Kazoo's futures
would cost a condition variable and two more threads per answer, and lose the order of answers and watches.
"""

import contextlib
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from kazoo import exceptions as failures
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import serialization as requests
from kazoo.protocol.connection import ConnectionDropped, ConnectionHandler
from kazoo.protocol.states import Callback, KazooState, KeeperState, WatchedEvent, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import ACL, Id

from barnabas.broker.zookeeper_client.operations import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Exists,
    Get,
    GetAcl,
    GetChildren,
    Interrupted,
    Multi,
    MultiRead,
    Operation,
    Result,
    SetAcl,
    SetData,
    Stat,
    ZkCode,
)
from barnabas.broker.zookeeper_client.session_config import SessionConfig, SessionKey
from barnabas.broker.zookeeper_client.znodes_security import ZnodeAcl, default_acl

_log = logging.getLogger(__name__)

#: First and longest pause between two attempts to connect.
_RETRY_FIRST_S = 0.05
_RETRY_LONGEST_S = 1.0
#: How often `stop` breaks the connection of an abandoned session again until kazoo's thread has ended.
_BREAK_AGAIN_S = 0.05

#: The largest packet that a server may send. A list of 100,000 topics with the longest names has 25 MB; a hundred of the
#: largest znodes, which are read together, have 100 MB.
_PACKET_BYTES_MAX = 128 * 1024 * 1024

_CODES: dict[type[BaseException], ZkCode] = {
    failures.NoNodeError: ZkCode.NO_NODE,
    failures.NodeExistsError: ZkCode.NODE_EXISTS,
    failures.BadVersionError: ZkCode.BAD_VERSION,
    failures.NotEmptyError: ZkCode.NOT_EMPTY,
    failures.NoAuthError: ZkCode.NO_AUTH,
    failures.RolledBackError: ZkCode.ROLLED_BACK,
    # ZooKeeper's code for "another operation of the transaction failed".
    failures.RuntimeInconsistency: ZkCode.ROLLED_BACK,
    failures.UnimplementedError: ZkCode.UNIMPLEMENTED,
    failures.NoChildrenForEphemeralsError: ZkCode.NO_CHILDREN_FOR_EPHEMERALS,
}

Answer = Result | Interrupted
Done = Callable[[Answer], None]
Fired = Callable[[str, Hashable], None]


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Wraps the socket with our TLS context. Kazoo's own sends a certificate only if the key has a file of its own, reads only
    PEM files, and supports neither protocol versions nor a trust store's password.
    """

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._tls = tls

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any
    ) -> socket.socket:
        plain: socket.socket = super().create_connection(address, timeout=timeout)
        if self._tls is None:
            return plain
        try:
            return self._tls.wrap_socket(plain, server_hostname=hostname or address[0])
        except BaseException:
            plain.close()
            raise

    def select(self, rlist: list[Any], wlist: list[Any], xlist: list[Any], timeout: float | None = None) -> Any:
        """Count TLS sockets with buffered data as readable. The system does not see data in TLS's buffer: if two answers came
        together, the second would be read only when the next one comes, seconds later."""
        buffered = [sock for sock in rlist if isinstance(sock, ssl.SSLSocket) and sock.pending()]
        if not buffered:
            return super().select(rlist, wlist, xlist, timeout)
        readable, writable, failed = super().select(rlist, wlist, xlist, 0)
        return list({*readable, *buffered}), writable, failed


class _Bell(socket.socket):
    """Wakes kazoo's thread with a byte per request, without blocking. Kazoo's own socket pair has room for 278 bytes, which
    are not read while there is no connection: then the event loop would block until ZooKeeper is back."""

    def __init__(self, fileno: int) -> None:
        super().__init__(fileno=fileno)
        #: Bytes that did not fit into the socket.
        self.waiting: deque[bytes] = deque()

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(data, flags | socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.waiting.append(data)
            return len(data)


class _Ear(socket.socket):
    """The end of the pair that kazoo's thread reads."""

    def __init__(self, fileno: int, bell: _Bell) -> None:
        super().__init__(fileno=fileno)
        self._bell = bell

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return overflowed bytes first: while there are any, the socket has bytes too, and stays readable."""
        try:
            return self._bell.waiting.popleft()
        except IndexError:
            return super().recv(size, flags)


class _InlineHandler(TlsHandler):
    """Runs watches on the connection thread itself: they only post to the loop, and need no threads of their own."""

    def __init__(self, tls: ssl.SSLContext | None, on_ping_due: Callable[[], None] = lambda: None) -> None:
        super().__init__(tls)
        self.on_ping_due = on_ping_due

    def create_socket_pair(self) -> tuple[socket.socket, socket.socket]:
        read, write = socket.socketpair()
        bell = _Bell(write.detach())
        return _Ear(read.detach(), bell), bell

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def dispatch_callback(self, callback: Callback) -> None:
        callback.func(*callback.args)


class _Wire(ConnectionHandler):  # type: ignore[misc]
    """Kazoo's connection with two changes. It sends a ping only after the event loop has allowed it: a process whose loop hangs
    serves no client, and must lose its session, and with it its leaderships. And it limits the packets of a server.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Whether the loop was asked for a ping and has not answered.
        self._has_asked = False
        #: Whether the loop has allowed a ping that is not sent yet.
        self._may_ping = False

    def _send_ping(self, connect_timeout: float) -> None:
        """Ask the loop for a ping. Kazoo's thread calls this when nothing was sent for a third of the session timeout."""
        if not self._has_asked:
            self._has_asked = True
            self.handler.on_ping_due()

    def allow_ping(self) -> None:
        """Allow the ping, and wake kazoo's thread as a request does. The loop calls this."""
        self._may_ping = True
        bell = self._write_sock
        if bell is not None:
            bell.send(b"\0")

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        if self._may_ping:
            self._may_ping = self._has_asked = False
            super()._send_ping(connect_timeout)
        super()._send_request(read_timeout, connect_timeout)

    def _read(self, length: int, timeout: float) -> bytes:
        if not 0 <= length <= _PACKET_BYTES_MAX:
            raise ConnectionDropped(f"the server announces a packet of {length} bytes")
        data: bytes = super()._read(length, timeout)
        return data


class _Client(KazooClient):  # type: ignore[misc]
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._connection = _Wire(self, self._conn_retry.copy(), logger=self.logger)

    def allow_ping(self) -> None:
        self._connection.allow_ping()


class _Pending:
    """Receives the answer to one request from kazoo."""

    __slots__ = ("_convert", "_done")

    def __init__(self, convert: Callable[[Any], Result], done: Done) -> None:
        self._convert = convert
        self._done: Done | None = done

    def set(self, value: Any = None) -> None:
        self._finish(self._convert(value))

    def set_exception(self, error: BaseException) -> None:
        if isinstance(error, failures.ConnectionLoss):
            self._finish(Interrupted.CONNECTION_LOST)
        elif isinstance(error, failures.SessionMovedError):
            self._finish(Interrupted.SESSION_MOVED)
        elif isinstance(error, failures.SessionExpiredError | failures.AuthFailedError):
            self._finish(Interrupted.SESSION_GONE)
        else:
            self._finish(Result(_CODES.get(type(error), ZkCode.REFUSED)))

    def _finish(self, answer: Answer) -> None:
        # Kazoo reports a request twice if it races with the close of the connection: the first answer counts.
        done, self._done = self._done, None
        if done is not None:
            done(answer)


class _MultiRead:
    """ZooKeeper's request 22, which kazoo lacks: several reads of data, each with its own answer or error."""

    __slots__ = ("_paths",)

    type = 22

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def serialize(self) -> bytearray:
        out = bytearray()
        for path in self._paths:
            out += requests.MultiHeader(requests.GetData.type, False, -1).serialize()
            out += requests.GetData(path, None).serialize()
        out += requests.MultiHeader(-1, True, -1).serialize()
        return out

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[Result]:
        results: list[Result] = []
        while True:
            header, offset = requests.MultiHeader.deserialize(data, offset)
            if header.done:
                return results
            if header.type == requests.GetData.type:
                value, offset = requests.read_buffer(data, offset)
                stat = ZnodeStat._make(requests.stat_struct.unpack_from(data, offset))
                offset += requests.stat_struct.size
                results.append(Result(ZkCode.OK, data=value, stat=_stat(stat)))
            else:
                [code] = requests.int_struct.unpack_from(data, offset)
                offset += requests.int_struct.size
                results.append(Result(_CODES.get(failures.EXCEPTIONS[code], ZkCode.REFUSED)))


class _Watcher:
    """Equal for the same watch on the same path, so that kazoo keeps only one of them."""

    __slots__ = ("_fired", "_key")

    def __init__(self, kind: str, path: str, watch: Hashable, fired: Fired) -> None:
        self._key = (kind, path, watch)
        self._fired = fired

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Watcher) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __call__(self, event: WatchedEvent) -> None:
        # Kazoo also calls it when a connection breaks and its watches are lost: the owner of the watch must read again.
        self._fired(self._key[1], self._key[2])


class KazooConnection:
    def __init__(
        self,
        config: SessionConfig,
        *,
        on_connected: Callable[[int], None],
        on_suspended: Callable[[], None],
        on_lost: Callable[[bool], None],
        on_watch: Fired,
        on_ping_due: Callable[[], None] = lambda: None,
        make_client: Callable[..., Any] = _Client,
    ) -> None:
        """Kazoo's thread calls `on_ping_due` when a ping is due, and sends it after `allow_ping`."""
        self._config = config
        self._on_connected = on_connected
        self._on_suspended = on_suspended
        self._on_lost = on_lost
        self._on_watch = on_watch
        self._is_abandoned = False
        #: Set by the session once it exists.
        self.chroot = ""
        self._acls: dict[Any, list[ACL]] = {}
        # Kazoo logs every attempt and every state. The session logs the relevant ones.
        quiet = logging.getLogger(f"{__name__}.kazoo")
        quiet.setLevel(logging.CRITICAL)
        self._client = make_client(
            hosts=config.hosts,
            timeout=config.session_timeout_ms / 1000,
            handler=_InlineHandler(config.tls, on_ping_due),
            auth_data=list(config.auth) or None,
            client_id=None if config.resumes is None else tuple(config.resumes),
            connection_retry=KazooRetry(
                max_tries=-1,
                delay=_RETRY_FIRST_S,
                backoff=2,
                max_delay=_RETRY_LONGEST_S,
                sleep_func=SequentialThreadingHandler.sleep_func,
            ),
            logger=quiet,
        )
        self._client.add_listener(self._state_changed)

    def start(self) -> None:
        """Begin to connect, and return at once."""
        self._client.start_async()

    def stop(self) -> None:
        """Closes the session, so that its ephemerals go at once. Blocks until the thread has ended."""
        if self._is_abandoned:
            while not self._client._connection.connection_stopped.wait(_BREAK_AGAIN_S):
                self._break()  # the thread was connecting when `abandon` looked for its socket
            self._client._safe_close()
        else:
            self._client.stop()
        self._client.close()

    def abandon(self) -> None:
        """Break the connection and leave the session as it is, as a process that is killed does. `stop` ends the thread."""
        self._is_abandoned = True
        self._client._stopped.set()  # so that kazoo neither connects again nor sends a Close
        self._break()

    def _break(self) -> None:
        sock = self._client._connection._socket
        if sock is not None:
            with contextlib.suppress(OSError):  # it has just been closed
                sock.shutdown(socket.SHUT_RDWR)

    @property
    def key(self) -> SessionKey | None:
        """Key of the current session; None while there is no connection."""
        found = self._client.client_id
        return None if found is None else SessionKey(*found)

    def watches(self, path: str) -> tuple[str, ...]:
        """Return what is watched of a znode: `data`, `children`. Any thread: this only reads kazoo's dictionaries."""
        absolute = self._absolute(path)
        kinds = (("data", self._client._data_watchers), ("children", self._client._child_watchers))
        return tuple(kind for kind, watchers in kinds if watchers.get(absolute))

    def allow_ping(self) -> None:
        self._client.allow_ping()

    def submit(self, operation: Operation | MultiRead, done: Done) -> None:
        request, convert = self._translate(operation)
        self._client._call(request, _Pending(convert, done))

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._on_connected(self._client._session_id or 0)
        elif state == KazooState.SUSPENDED:
            self._on_suspended()
        else:
            self._on_lost(self._client.client_state == KeeperState.AUTH_FAILED)

    # --- translation --------------------------------------------------------------------------------------------------

    def _absolute(self, path: str) -> str:
        return self.chroot + path if path != "/" else self.chroot or "/"

    def _relative(self, path: str) -> str:
        return path[len(self.chroot) :] if self.chroot else path

    def _watcher(self, kind: str, path: str, watch: Hashable | None) -> _Watcher | None:
        return None if watch is None else _Watcher(kind, path, watch, self._on_watch)

    def _acl(self, path: str) -> list[ACL]:
        entries = default_acl(path, secure=self._config.secure_acls)
        known = self._acls.get(entries)
        if known is None:
            # Kazoo writes an empty string as null, which some servers refuse; ZooKeeper ignores the id of `auth`.
            known = [ACL(entry.permissions, Id(entry.scheme, entry.id or "creator")) for entry in entries]
            self._acls[entries] = known
        return known

    def _translate(self, operation: Operation | MultiRead) -> tuple[Any, Callable[[Any], Result]]:
        match operation:
            case Get(path, watch):
                return requests.GetData(self._absolute(path), self._watcher("data", path, watch)), _got
            case Exists(path, watch):
                return requests.Exists(self._absolute(path), self._watcher("data", path, watch)), _existed
            case GetChildren(path, watch):
                return requests.GetChildren2(self._absolute(path), self._watcher("children", path, watch)), _listed
            case GetAcl(path):
                return requests.GetACL(self._absolute(path)), _got_acl
            case SetAcl(path):
                return requests.SetACL(self._absolute(path), self._acl(path), ANY_VERSION), _was_set
            case Multi(operations):
                return requests.Transaction([self._part(each) for each in operations]), self._committed
            case MultiRead(gets):
                return _MultiRead([self._absolute(each.path) for each in gets]), _read_together
            case Create():
                return self._part(operation), self._created
            case SetData():
                return self._part(operation), _was_set
            case Delete():
                return self._part(operation), _deleted

    def _part(self, operation: Create | SetData | Delete | Check) -> Any:
        match operation:
            case Create(path, data, ephemeral, sequence):
                flags = (1 if ephemeral else 0) | (2 if sequence else 0)
                return requests.Create(self._absolute(path), data, self._acl(path), flags)
            case SetData(path, data, version):
                return requests.SetData(self._absolute(path), data, version)
            case Delete(path, version):
                return requests.Delete(self._absolute(path), version)
            case Check(path, version):
                return requests.CheckVersion(self._absolute(path), version)

    def _created(self, path: Any) -> Result:
        return Result(ZkCode.OK, path=self._relative(str(path)))

    def _committed(self, parts: Any) -> Result:
        results = tuple(self._part_result(part) for part in parts)
        refused = [result.code for result in results if not result.ok]
        # The operation that broke the transaction has the reason; the others were only rolled back.
        causes = [code for code in refused if code is not ZkCode.ROLLED_BACK]
        return Result((causes or refused or [ZkCode.OK])[0], results=results)

    def _part_result(self, part: Any) -> Result:
        if isinstance(part, BaseException):
            return Result(_CODES.get(type(part), ZkCode.REFUSED))
        if isinstance(part, ZnodeStat):
            return Result(ZkCode.OK, stat=_stat(part))
        if isinstance(part, str):
            return self._created(part)
        return Result(ZkCode.OK)


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(
        version=stat.version,
        czxid=stat.czxid,
        ephemeral_owner=stat.ephemeralOwner or 0,
        mtime_ms=stat.mtime,
        mzxid=stat.mzxid,
        pzxid=stat.pzxid,
    )


def _got(value: Any) -> Result:
    data, stat = value
    return Result(ZkCode.OK, data=data, stat=_stat(stat))


def _got_acl(value: Any) -> Result:
    entries, stat = value
    return Result(
        ZkCode.OK, stat=_stat(stat), acl=tuple(ZnodeAcl(each.id.scheme, each.id.id, each.perms) for each in entries)
    )


def _read_together(results: Any) -> Result:
    return Result(ZkCode.OK, results=tuple(results))


def _existed(stat: Any) -> Result:
    return Result(ZkCode.NO_NODE) if stat is None else Result(ZkCode.OK, stat=_stat(stat))


def _listed(value: Any) -> Result:
    children, stat = value
    return Result(ZkCode.OK, children=tuple(sorted(children)), stat=_stat(stat))


def _was_set(stat: Any) -> Result:
    return Result(ZkCode.OK, stat=_stat(stat))


def _deleted(_: Any) -> Result:
    return Result(ZkCode.OK)
