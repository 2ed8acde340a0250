"""Group commit: a response waits until the transactions that it depends on are on disk.

Owner: the event loop; one thread writes and flushes. Transactions that arrive during a flush wait for the next one. If no
flush runs, the next one starts at the end of this turn of the loop. A response is held until every transaction that was
logged before it is durable, so no client sees a state that a crash could undo.
"""

import asyncio
import contextlib
import errno
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from barnabas.zookeeper.txnlog import LogWriter


class Outlet(Protocol):
    """A connection, as the commit uses it."""

    def transmit(self, pieces: list[bytes], *, close: bool) -> None:
        """Send the pieces in order; then close if `close`."""
        ...


#: Whether to begin a new file first, the zxid of the first record, and the records.
Job = tuple[bool, int, bytes]


class LogThread:
    """Runs `work` on its own thread, one job after the other."""

    def __init__(self, work: Callable[[Job], None]) -> None:
        self._work = work
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="zookeeper-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    def stop(self) -> None:
        """Block until the last job is done."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._work(job)


class _Held:
    """Responses that wait for one flush."""

    __slots__ = ("closing", "count", "pieces")

    def __init__(self) -> None:
        self.pieces: dict[Outlet, list[bytes]] = {}
        self.closing: set[Outlet] = set()
        self.count = 0


class GroupCommit:
    """Invariants: `_flushing` holds the responses that the running flush covers, `_waiting` those that need the next one;
    `_records` is empty unless a flush is running or about to start.
    """

    def __init__(
        self,
        writer: LogWriter,
        *,
        loop: asyncio.AbstractEventLoop,
        on_released: Callable[[], None],
        on_failure: Callable[[OSError], None],
        make_thread: Callable[[Callable[[Job], None]], LogThread] = LogThread,
    ) -> None:
        self._writer = writer
        self._loop = loop
        self._on_released = on_released
        self._on_failure = on_failure
        self._records: list[bytes] = []
        self._first_zxid = 0
        self._appended_zxid = 0
        self._flushing_zxid = 0
        self.synced_zxid = 0
        self._flushing: _Held | None = None
        self._waiting = _Held()
        self._kicked = False
        self._failed = False
        self._roll_wanted = False
        self._thread = make_thread(self._write)
        self._sync_waiters: list[tuple[int, asyncio.Future[None]]] = []
        #: Bytes of records and responses that wait for the disk.
        self.held_bytes = 0
        #: Number of responses that wait for the disk.
        self.held_count = 0
        self.flush_count = 0

    def start(self, last_zxid: int) -> None:
        self._appended_zxid = self._flushing_zxid = self.synced_zxid = last_zxid
        self._thread.start()

    # ---- appends and responses ------------------------------------------------------------------------------------------

    def append(self, zxid: int, record: bytes) -> None:
        """Log one framed transaction."""
        if not self._records:
            self._first_zxid = zxid
        self._records.append(record)
        self._appended_zxid = zxid
        self.held_bytes += len(record)
        if self._flushing is None and not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._flush)

    def send(self, outlet: Outlet, pieces: list[bytes], *, close: bool = False) -> None:
        """Send `pieces` once everything appended so far is durable. Keeps the order of calls per outlet."""
        if self._records:
            held = self._waiting
        elif self._flushing is not None:
            held = self._flushing
        else:
            outlet.transmit(pieces, close=close)
            return
        queued = held.pieces.get(outlet)
        if queued is None:
            held.pieces[outlet] = list(pieces)
        else:
            queued.extend(pieces)
        held.count += len(pieces)
        self.held_count += len(pieces)
        self.held_bytes += sum(map(len, pieces))
        if close:
            held.closing.add(outlet)

    def forget(self, outlet: Outlet) -> None:
        """Drop the responses of a connection that has ended."""
        for held in (self._flushing, self._waiting):
            if held is not None:
                pieces = held.pieces.pop(outlet, None)
                held.closing.discard(outlet)
                if pieces is not None:
                    held.count -= len(pieces)
                    self.held_count -= len(pieces)
                    self.held_bytes -= sum(map(len, pieces))

    async def synced(self, zxid: int) -> None:
        """Wait until everything up to `zxid` is durable."""
        if self._failed:
            raise OSError(errno.EIO, "the transaction log has failed")
        if self.synced_zxid < zxid:
            future: asyncio.Future[None] = self._loop.create_future()
            self._sync_waiters.append((zxid, future))
            await future

    def roll(self) -> None:
        """Write records to a new file from the next flush on."""
        self._roll_wanted = True

    # ---- the flush ----------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._kicked = False
        if self._flushing is not None or not self._records or self._failed:
            return
        records, self._records = b"".join(self._records), []
        self._flushing, self._waiting = self._waiting, _Held()
        self._flushing_zxid = self._appended_zxid
        roll, self._roll_wanted = self._roll_wanted, False
        self._thread.put((roll, self._first_zxid, records))

    def _write(self, job: Job) -> None:
        """Runs on the log thread."""
        roll, first_zxid, records = job
        failure: OSError | None = None
        try:
            if roll:
                self._writer.roll()
            self._writer.append(first_zxid, records)
        except OSError as error:
            failure = error
        self._loop.call_soon_threadsafe(self._flushed, len(records), failure)

    def _flushed(self, record_bytes: int, failure: OSError | None) -> None:
        held, self._flushing = self._flushing, None
        assert held is not None, "bug: only _flush sends jobs"
        if failure is not None:
            # After a failed flush the contents of the disk are unknown: nothing may be acknowledged any more.
            self._failed = True
            for _zxid, future in self._sync_waiters:
                if not future.done():
                    future.set_exception(failure)
            self._sync_waiters.clear()
            self._on_failure(failure)
            return
        self.flush_count += 1
        self.held_bytes -= record_bytes
        self.held_count -= held.count
        self.synced_zxid = self._flushing_zxid
        # Start the next flush before sending the responses, so that the disk is busy meanwhile.
        self._flush()
        for outlet, pieces in held.pieces.items():
            self.held_bytes -= sum(map(len, pieces))
            outlet.transmit(pieces, close=outlet in held.closing)
        self._wake_waiters()
        self._on_released()

    def _wake_waiters(self) -> None:
        if self._sync_waiters:
            waiting = []
            for zxid, future in self._sync_waiters:
                if zxid > self.synced_zxid:
                    waiting.append((zxid, future))
                elif not future.done():
                    future.set_result(None)
            self._sync_waiters = waiting

    async def stop(self) -> None:
        """Flush the remaining records, then end the thread."""
        if not self._failed:
            await self.synced(self._appended_zxid)
        await self._loop.run_in_executor(None, self._thread.stop)
        # A disk that has failed may fail here again; the failure was already reported.
        with contextlib.suppress(*((OSError,) if self._failed else ())):
            self._writer.close()
