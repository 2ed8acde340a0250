"""A session with ZooKeeper, for the event loop.

Owner: the event loop; kazoo's thread reaches it only through `_post`, in order. Callers see `operations` and `ZkError`, and
nothing of kazoo.

Promise: operations are sent in the order of the calls. One that a lost connection interrupted is repeated, in its place, on
the next connection, as long as the session lives (so a create that succeeded unseen answers NODE_EXISTS, and a conditional
write BAD_VERSION: callers read again). When a session expires, its pending operations fail with `SessionExpired`; then a new
session begins, and `SessionState.RENEWED` reports it.

A loop that hangs loses the session: kazoo's thread sends a ping only after the loop has allowed it.
"""

import asyncio
import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from barnabas.base.metrics.registry import Counter, Histogram
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Exists,
    Get,
    GetChildren,
    Guard,
    Interrupted,
    Multi,
    MultiRead,
    Operation,
    Result,
    SetData,
    Stat,
    Write,
    ZkCode,
)
from barnabas.broker.zookeeper_client.request_sizes import RequestSizes, size_of
from barnabas.broker.zookeeper_client.session_batch import BatchAnswer, PendingBatch, PendingRequest
from barnabas.broker.zookeeper_client.session_config import SessionConfig, SessionKey
from barnabas.broker.zookeeper_client.zk_errors import ConnectionLost, NotAuthorized, SessionExpired, checked

if TYPE_CHECKING:
    from barnabas.broker.zookeeper_client.kazoo_client import Answer, KazooConnection

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Limits for guarded writes in one transaction, by number and by size, and for reads in one request, by number.
#: ZooKeeper accepts 1 MB.
_PACKED_MAX = 100
_PACKED_BYTES_MAX = 256 * 1024
#: A first connection that takes longer than this is logged.
_QUIET_S = 1.0
#: If the loop does not turn for this share of the session timeout, that is logged.
_LATE_SHARE = 0.3


class SessionState(Enum):
    CONNECTED = "connected"
    #: The connection is lost; the session may still be alive.
    SUSPENDED = "suspended"
    #: The session is over.
    EXPIRED = "expired"
    #: A new session has replaced an expired one.
    RENEWED = "renewed"


class ZooKeeperSession:
    def __init__(self, config: SessionConfig, connection_type: "Callable[..., KazooConnection] | None" = None) -> None:
        """`connection_type` creates the connection; by default, kazoo's."""
        self._config = config
        self._connection_type = connection_type
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: KazooConnection | None = None
        self._session_id = 0
        self._connected = False
        self._expired = False
        #: The session sends nothing any more; `_is_closed`: the connection is ending, too.
        self._stopped = self._is_closed = False
        self._are_credentials_refused = False
        self._first: asyncio.Future[None] | None = None
        self._listeners: list[Callable[[SessionState], None]] = []
        # Calls from kazoo's thread to the loop.
        self._inbox: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._inbox_lock = threading.Lock()
        self._drain_is_due = False
        # Requests that are not sent yet, in order.
        self._waiting: list[PendingRequest] = []
        self._in_flight: dict[PendingRequest, None] = {}
        self._sequence = 0
        #: Whether servers accept several reads in one request: false after a server of ZooKeeper before 3.6 has refused it.
        self._packs_reads = True
        #: When the connection was lost, by the loop's clock; None while connected.
        self.away_since_s: float | None = None
        self._sizes = RequestSizes()
        self.disconnects = Counter()
        self.expirations = Counter()
        #: Milliseconds from sending a request to its answer.
        self.latency = Histogram()

    # --- life ---------------------------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        return self._connected

    @property
    def hosts(self) -> str:
        return self._config.hosts

    @property
    def session_id(self) -> int:
        """The id of the current session, as znodes name their owner; 0 before the first session."""
        return self._session_id

    def watches(self, path: str) -> tuple[str, ...]:
        """Return what this session watches of a znode: `data`, `children`."""
        return () if self._connection is None else self._connection.watches(path)

    async def key(self) -> SessionKey:
        """Return the key with which another client could close the current session. It is a secret. Kazoo has it only while
        connected: this waits for that. Raises `SessionExpired`."""
        assert self._connection is not None
        while (found := self._connection.key) is None:
            await self.exists("/")
        return found

    async def start(self) -> None:
        """Connect, and create the chroot. Raises `ConnectionLost` after `zookeeper.connection.timeout.ms`."""
        self._loop = asyncio.get_running_loop()
        self._first = self._loop.create_future()
        if self._connection_type is None:
            # Kazoo takes long to import, so a thread imports it when it is first needed.
            loaded: type[KazooConnection] = await asyncio.to_thread(_load_connection_type)
            self._connection_type = loaded
        self._connection = self._connection_type(
            self._config,
            on_connected=lambda session_id: self._post(self._on_connected, session_id),
            on_suspended=lambda: self._post(self._on_suspended),
            on_lost=lambda auth_failed: self._post(self._on_lost, auth_failed),
            on_watch=lambda path, watch: self._post(self._on_watch, path, watch),
            on_ping_due=lambda: self._post(self._on_ping_due, time.monotonic()),
        )
        self._connection.start()
        telling = self._loop.call_later(_QUIET_S, self._log_waiting)
        try:
            async with asyncio.timeout(self._config.connection_timeout_ms / 1000):
                await self._first
                await self.outlive(self._settle_in)
        except NotAuthorized:
            await self.stop()
            raise
        except TimeoutError:
            await self.stop()
            raise ConnectionLost(
                f"no connection to ZooKeeper at {self._config.hosts} within "
                f"zookeeper.connection.timeout.ms={self._config.connection_timeout_ms}"
            ) from None
        finally:
            telling.cancel()

    async def _settle_in(self) -> None:
        assert self._connection is not None
        try:
            # ZooKeeper checks credentials after the connection: an answer shows that they were accepted.
            await self.exists("/")
            if self._config.chroot:
                await self.ensure_path(self._config.chroot)
                self._connection.chroot = self._config.chroot
        except SessionExpired as error:
            if self._are_credentials_refused:
                raise NotAuthorized(f"ZooKeeper at {self._config.hosts} refuses the credentials") from error
            raise

    def _log_waiting(self) -> None:
        _log.warning(
            "[zookeeper] waiting for %s, for up to zookeeper.connection.timeout.ms=%d; check that it runs",
            self._config.hosts,
            self._config.connection_timeout_ms,
        )

    async def stop(self) -> None:
        """Closes the session: its ephemerals go, and operations in progress fail with `SessionExpired`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._fall_silent()
        if self._connection is not None:
            await asyncio.to_thread(self._connection.stop)

    def abandon(self) -> None:
        """Goes away as a process that is killed: ZooKeeper keeps the session until it expires. `stop` must follow."""
        self._fall_silent()
        if self._connection is not None:
            self._connection.abandon()

    def _fall_silent(self) -> None:
        self._stopped = True
        self._connected = False
        self._fail_all(SessionExpired("the session was closed"))

    def on_state(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        """Call `listener` on the loop with each change of state; return a function that ends the subscription."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # --- single operations --------------------------------------------------------------------------------------------

    async def get(self, path: str, watch: Callable[[str], None] | None = None) -> tuple[bytes | None, Stat]:
        """Return data and stat. `watch(path)` is called once when they may have changed: read again then."""
        result = await self._one(Get(path, watch))
        assert result.stat is not None
        return result.data, result.stat

    async def exists(self, path: str, watch: Callable[[str], None] | None = None) -> Stat | None:
        [result] = (await self.batch([Exists(path, watch)])).results
        return result.stat if result.ok else None

    async def children(self, path: str, watch: Callable[[str], None] | None = None) -> tuple[str, ...]:
        return (await self._one(GetChildren(path, watch))).children

    async def create(
        self,
        path: str,
        data: bytes | None = None,
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_path: bool = False,
    ) -> str:
        """Create a znode and return its path, which ends with a number if `sequence`."""
        operation = Create(path, data, ephemeral, sequence)
        if not make_path:
            return (await self._one(operation)).path
        ancestors: list[Operation] = [Create(parent) for parent in paths.parents(path)]
        answer = await self.batch([*ancestors, operation])
        return checked(operation, answer.results[-1]).path

    async def ensure_path(self, path: str) -> None:
        await self.ensure_paths([path])

    async def ensure_paths(self, wanted: Sequence[str]) -> None:
        """Create persistent znodes, with their parents, if they are missing."""
        everything = dict.fromkeys(parent for path in wanted for parent in (*paths.parents(path), path))
        for path, result in zip(
            everything, (await self.batch([Create(each) for each in everything])).results, strict=True
        ):
            if result.code not in (ZkCode.OK, ZkCode.NODE_EXISTS):
                checked(Create(path), result)

    async def set(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> Stat:
        result = await self._one(SetData(path, data, version))
        assert result.stat is not None
        return result.stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._one(Delete(path, version))

    async def transaction(self, operations: Sequence[Create | SetData | Delete | Check]) -> tuple[Result, ...]:
        """Carry out all operations or none; raises the error of the first operation that failed."""
        return (await self._one(Multi(tuple(operations)))).results

    async def catch_up(self, path: str) -> None:
        """Make later reads at least as recent as what other clients have read before this call. A server of an ensemble may be
        behind; a transaction goes through all servers. `path`: of an existing znode."""
        await self.transaction([Check(path, ANY_VERSION)])

    async def _one(self, operation: Operation) -> Result:
        answer = await self.batch([operation])
        return checked(operation, answer.results[0])

    async def outlive(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work`, again with the next session each time a session expires. For work that may be done twice."""
        renewed = asyncio.Event()
        unsubscribe = self.on_state(lambda state: renewed.set() if state is SessionState.RENEWED else None)
        try:
            while True:
                renewed.clear()
                try:
                    return await work()
                except SessionExpired as error:
                    _log.info("[zookeeper] waiting for a new session: %s", error)
                    await renewed.wait()
        finally:
            unsubscribe()

    # --- batches ------------------------------------------------------------------------------------------------------

    async def batch(self, operations: Sequence[Operation], guard: Guard | None = None) -> BatchAnswer:
        """Send all operations, pipelined, and return when the last is answered. An operation that ZooKeeper refuses has an
        error result, and raises nothing. With a guard, all must be writes: they are sent with a check of /controller_epoch,
        many per transaction; if one fails such a transaction, each is repeated alone, so that each has its own answer.
        """
        return await self.begin_batch(operations, guard)

    def begin_batch(self, operations: Sequence[Operation], guard: Guard | None = None) -> "asyncio.Future[BatchAnswer]":
        """Like `batch`, for callers that are not coroutines."""
        done: asyncio.Future[BatchAnswer] = asyncio.get_running_loop().create_future()
        if self._stopped or self._loop is None:
            done.set_exception(SessionExpired("the session was closed"))
        elif self._expired:
            done.set_exception(SessionExpired("the session has expired and there is no new one yet"))
        elif not operations:
            done.set_result(BatchAnswer(()))
        else:
            self._begin(PendingBatch(operations, guard, done))
        return done

    def _begin(self, batch: PendingBatch) -> None:
        self._sequence += 1
        for index, operation in enumerate(batch.operations):
            if self._sizes.refuses(operation, self._now_s()):
                batch.settle(index, Result(ZkCode.TOO_LARGE))
        if batch.guard is None:
            self._push_all(batch)
        else:
            self._push_packed(batch, batch.guard)
        self._pump()

    def _push(self, work: PendingRequest) -> None:
        heapq.heappush(self._waiting, work)

    def _push_all(self, batch: PendingBatch) -> None:
        """Queue each operation alone, but combine plain reads: a new controller reads the state of thousands of partitions, and
        a request costs much more than one read in it."""
        reads: list[int] = []
        for index, operation in enumerate(batch.operations):
            if batch.results[index] is not None:
                continue
            is_plain = isinstance(operation, Get) and operation.watch is None
            if reads and (not is_plain or len(reads) >= _PACKED_MAX):
                self._push_reads(batch, reads)
                reads = []
            if is_plain and self._packs_reads:
                reads.append(index)
            else:
                self._push_alone(batch, index)
        if reads:
            self._push_reads(batch, reads)

    def _push_reads(self, batch: PendingBatch, indexes: Sequence[int]) -> None:
        if len(indexes) == 1:
            self._push_alone(batch, indexes[0])
            return
        gets = tuple(each for index in indexes if isinstance(each := batch.operations[index], Get))
        self._push(PendingRequest((self._sequence, indexes[0]), MultiRead(gets), batch, tuple(indexes)))

    def _push_alone(self, batch: PendingBatch, index: int, sequence: int | None = None) -> None:
        order = (self._sequence if sequence is None else sequence, index)
        self._push(PendingRequest(order, batch.operations[index], batch, (index,)))

    def _push_packed(self, batch: PendingBatch, guard: Guard) -> None:
        check = Check(paths.CONTROLLER_EPOCH, guard.epoch_zk_version)
        pack: dict[int, Write] = {}
        size = 0
        for index, operation in enumerate(batch.operations):
            if not isinstance(operation, Write):
                raise TypeError(f"only a write can be guarded, not {operation}")
            if batch.results[index] is not None:
                continue
            more = size_of(operation)
            if pack and (len(pack) >= _PACKED_MAX or size + more > _PACKED_BYTES_MAX):
                self._push_guarded(batch, check, pack)
                pack, size = {}, 0
            pack[index] = operation
            size += more
        if pack:
            self._push_guarded(batch, check, pack)

    def _push_guarded(self, batch: PendingBatch, check: Check, pack: Mapping[int, Write]) -> None:
        order = (self._sequence, min(pack))
        self._push(PendingRequest(order, Multi((check, *pack.values())), batch, tuple(pack), is_guarded=True))

    def _pump(self) -> None:
        """Send waiting requests, up to the limit."""
        if not self._connected or self._connection is None:
            return
        while self._waiting and len(self._in_flight) < self._config.in_flight_max:
            work = heapq.heappop(self._waiting)
            if work.batch.done.done():
                continue
            self._in_flight[work] = None
            work.sent_s = self._now_s()
            self._connection.submit(work.operation, lambda answer, work=work: self._post(self._answered, work, answer))  # type: ignore[misc]

    def _now_s(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    def _answered(self, work: PendingRequest, answer: "Answer") -> None:
        if work not in self._in_flight:
            return
        del self._in_flight[work]
        if isinstance(answer, Result):
            self.latency.observe_ms((self._now_s() - work.sent_s) * 1000)
            self._settle(work, answer)
        elif answer is Interrupted.SESSION_GONE:
            work.batch.fail(SessionExpired("the session expired before the request was answered"))
        else:
            if answer is Interrupted.CONNECTION_LOST:
                # Kazoo reports it before it has failed all requests. A request that is sent now would come back at once, again
                # and again.
                self._connected = False
                work.losses += 1
            self._ask_again(work)
        self._pump()

    def _ask_again(self, work: PendingRequest) -> None:
        if isinstance(work.operation, MultiRead):
            # An old server may close the connection because of it: send single reads instead.
            self._push_apart(work)
        elif self._sizes.is_hopeless(work.operation, work.losses, self._now_s()):
            _log.error(
                "[zookeeper] a request of %d bytes lost its connection %d times: it is too large, raise jute.maxbuffer",
                *(size_of(work.operation), work.losses),
            )
            self._settle(work, Result(ZkCode.TOO_LARGE))
        else:
            self._push(work)

    def _settle(self, work: PendingRequest, result: Result) -> None:
        batch = work.batch
        if isinstance(work.operation, MultiRead):
            self._settle_reads(work, result)
            return
        if not work.is_guarded or not isinstance(work.operation, Multi):
            batch.settle(work.indexes[0], result)
            return
        if result.ok:
            for index, part in zip(work.indexes, result.results[1:], strict=True):
                batch.settle(index, part)
            return
        if result.results and result.results[0].code in (ZkCode.BAD_VERSION, ZkCode.NO_NODE):
            batch.stop_moved()
            return
        if len(work.indexes) == 1:
            if batch.is_open_before(work.indexes[0]):
                # An operation before it may be among those that are sent again.
                self._push(work)
                return
            part = result.results[1] if result.results else result
            batch.settle(work.indexes[0], part)
            return
        # One operation failed the transaction for all: send each again, alone, in order.
        check = work.operation.operations[0]
        for index, operation in zip(work.indexes, work.operation.operations[1:], strict=True):
            self._push(
                PendingRequest((work.order[0], index), Multi((check, operation)), batch, (index,), is_guarded=True)
            )

    def _settle_reads(self, work: PendingRequest, result: Result) -> None:
        if result.ok:
            for index, part in zip(work.indexes, result.results, strict=True):
                work.batch.settle(index, part)
            return
        if result.code is ZkCode.UNIMPLEMENTED:
            self._packs_reads = False
        self._push_apart(work)

    def _push_apart(self, work: PendingRequest) -> None:
        for index in work.indexes:
            self._push_alone(work.batch, index, work.order[0])

    # --- calls from kazoo's thread ------------------------------------------------------------------------------------

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call this on the loop, after earlier posted calls. Any thread."""
        self._inbox.append((callback, arguments))
        with self._inbox_lock:
            if self._drain_is_due:
                return
            self._drain_is_due = True
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        with self._inbox_lock:
            self._drain_is_due = False
        while self._inbox:
            callback, arguments = self._inbox.popleft()
            callback(*arguments)

    def _on_connected(self, session_id: int) -> None:
        if self._stopped:
            return
        self._connected = True
        self.away_since_s = None
        self._session_id = session_id
        renewed, self._expired = self._expired, False
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        _log.info("[zookeeper] session 0x%x at %s", session_id, self._config.hosts)
        self._pump()
        self._notify(SessionState.RENEWED if renewed else SessionState.CONNECTED)

    def _on_suspended(self) -> None:
        if self._stopped:
            return
        self._lose_connection()
        self.disconnects.add()
        _log.warning("[zookeeper] the connection to %s is lost, trying again; check that it runs", self._config.hosts)
        self._notify(SessionState.SUSPENDED)

    def _lose_connection(self) -> None:
        self._connected = False
        if self.away_since_s is None:
            self.away_since_s = self._now_s()

    def _on_lost(self, auth_failed: bool) -> None:
        if self._stopped:
            return
        self._are_credentials_refused = auth_failed
        self._lose_connection()
        self.expirations.add()
        self._expired = True
        _log.warning("[zookeeper] session 0x%x has expired, starting a new one", self._session_id)
        self._fail_all(SessionExpired(f"session 0x{self._session_id:x} has expired"))
        self._notify(SessionState.EXPIRED)

    def _on_watch(self, path: str, watch: Hashable) -> None:
        if not self._stopped and callable(watch):
            watch(path)

    def _on_ping_due(self, asked_s: float) -> None:
        """Allow a ping. A broker whose loop hangs serves no client: without this call no ping is sent, the session expires, and
        other brokers take over. Earlier events are handled first, so that an expired session is known."""
        late_s = time.monotonic() - asked_s
        if late_s * 1000 > self._config.session_timeout_ms * _LATE_SHARE:
            _log.warning(
                "[event loop] it did not turn for %.1f s; a hang as long as zookeeper.session.timeout.ms=%d ends the session",
                *(late_s, self._config.session_timeout_ms),
            )
        if not self._stopped and self._connection is not None:
            self._connection.allow_ping()

    def _notify(self, state: SessionState) -> None:
        for listener in tuple(self._listeners):
            listener(state)

    def _fail_all(self, error: SessionExpired) -> None:
        batches = dict.fromkeys(work.batch for work in (*self._waiting, *self._in_flight))
        self._waiting.clear()
        self._in_flight.clear()
        for batch in batches:
            batch.fail(error)


def _load_connection_type() -> "type[KazooConnection]":
    from barnabas.broker.zookeeper_client.kazoo_client import KazooConnection

    return KazooConnection
