"""Writes parts (bytes and file ranges) to a peer, in order, without blocking and without copying files.

uvloop owns the connection's descriptor for reading. A `SocketWriter` sends on a duplicate of it, and is the only sender:
mixing with the transport's own write buffer would corrupt the stream. TLS needs the transport, so a `TransportWriter` reads
ranges on the thread pool and writes them as bytes, which TLS costs in Kafka, too.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Protocol

from barnabas.base.host.kernel import MORE_FOLLOWS
from barnabas.broker.server.ranges import BYTES, FileRange, Part, read_small, release

#: Bytes that one call may send before the loop runs other work. A fast reader would otherwise let it send everything.
SEND_STEP_BYTES = 1024 * 1024
#: Answers with at most this many bytes of files are read and sent with one call: checking, and sending header, range and rest
#: separately costs more than the copy.
SMALL_BYTES = 64 * 1024
#: Bytes of a range that are read at once for a TLS peer.
READ_STEP_BYTES = 256 * 1024


class Writer(Protocol):
    @property
    def idle(self) -> bool:
        """Whether everything has gone to the kernel: the peer reads at least as fast as it sends requests."""
        ...

    def waiting_bytes(self) -> int:
        """Return the number of bytes that the peer has not accepted yet."""
        ...

    def write(self, parts: Sequence[Part]) -> bool:
        """Return whether everything has gone to the kernel. If not, `on_drained` is called when it has."""
        ...

    def close(self) -> None:
        """Release every range that was not sent."""
        ...


class SocketWriter:
    """Owner: the event loop. `on_drained` is called when a write that had to wait is complete."""

    __slots__ = (
        "_closed",
        "_fd",
        "_loop",
        "_on_drained",
        "_on_error",
        "_pool",
        "_queue",
        "_reading",
        "_sock",
        "_waiting",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        pool: Executor,
        *,
        on_drained: Callable[[], None],
        on_error: Callable[[OSError], None],
    ) -> None:
        self._loop = loop
        self._sock = sock.dup()
        self._sock.setblocking(False)
        self._fd = self._sock.fileno()
        self._pool = pool
        self._queue: deque[Part | _Progress] = deque()
        self._on_drained = on_drained
        self._on_error = on_error
        self._waiting = False  #: until the socket becomes writable
        self._reading = False  #: the pool is loading the range at the head of the queue
        self._closed = False

    @property
    def idle(self) -> bool:
        return not self._queue

    def waiting_bytes(self) -> int:
        return sum(_size(part) for part in self._queue)

    def write(self, parts: Sequence[Part]) -> bool:
        if self._closed:
            release(parts)
            return True
        if not self._queue and not self._waiting:
            whole = parts[0] if len(parts) == 1 and isinstance(parts[0], BYTES) else _in_one_piece(parts)
            if whole is not None:
                # The usual case is a small response on an idle socket: one system call, no queue.
                size = len(whole)
                try:
                    sent = self._sock.send(whole if size <= SEND_STEP_BYTES else memoryview(whole)[:SEND_STEP_BYTES])
                except (BlockingIOError, InterruptedError):
                    sent = 0
                except OSError as error:
                    self._fail(error)
                    return True
                if sent < size:
                    self._queue.append(memoryview(whole)[sent:])
                    self._wait_writable()
                return sent == size
        self._queue.extend(parts)
        if not self._waiting and not self._reading:
            self._send_some()
        return self.idle

    def _send_some(self) -> None:
        queue = self._queue
        try:
            while queue:
                head = queue[0]
                if isinstance(head, BYTES):
                    step = head if len(head) <= SEND_STEP_BYTES else memoryview(head)[:SEND_STEP_BYTES]
                    more = MORE_FOLLOWS if len(queue) > 1 else 0
                    sent = self._sock.send(step, more)
                    if sent < len(head):
                        queue[0] = memoryview(head)[sent:]
                        self._wait_writable()
                        return
                    queue.popleft()
                elif not self._send_range(head):
                    return
        except (BlockingIOError, InterruptedError):
            self._wait_writable()
        except OSError as error:
            self._fail(error)

    def _send_range(self, head: "FileRange | _Progress") -> bool:
        """Send a step of the range; return whether it is complete."""
        if not isinstance(head, _Progress):
            if not head.is_resident(head.position, head.size_bytes):
                self._load_then_send(head)
                return False
            self._queue[0] = head = _Progress(head)
        sent = head.source.send_to(self._sock, head.position, min(head.size_bytes, SEND_STEP_BYTES))
        if sent == 0:
            raise OSError("the file is shorter than the range to be sent")
        head.advance(sent)
        if head.size_bytes:
            # Let the loop run other work: one fast reader of a long range must not block everyone else.
            self._wait_writable()
            return False
        self._queue.popleft()
        head.release()
        return True

    def _load_then_send(self, head: FileRange) -> None:
        self._reading = True
        self._queue[0] = progress = _Progress(head)
        future = self._loop.run_in_executor(self._pool, head.load, head.position, head.size_bytes)
        future.add_done_callback(partial(self._loaded, progress))

    def _loaded(self, progress: "_Progress", done: "asyncio.Future[None]") -> None:
        self._reading = False
        if self._closed:
            progress.release()
            return
        error = done.exception() if not done.cancelled() else OSError("the broker is stopping")
        if isinstance(error, OSError):
            self._fail(error)
        elif error is not None:
            raise error
        else:
            self._resume()

    def _wait_writable(self) -> None:
        if not self._waiting:
            self._waiting = True
            self._loop.add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        """Stay registered until the queue is empty or waits for the disk: a large range takes several turns."""
        self._send_some()
        if self._closed:
            return
        if not self._queue or self._reading:
            self._loop.remove_writer(self._fd)
            self._waiting = False
        if not self._queue:
            self._on_drained()

    def _resume(self) -> None:
        self._send_some()
        if not self._queue and not self._closed:
            self._on_drained()

    def _fail(self, error: OSError) -> None:
        self.close()
        self._on_error(error)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_writer(self._fd)
        # A range that the pool is reading is released when that read ends: its descriptor is in use.
        release(list(self._queue)[1:] if self._reading else self._queue)
        self._queue.clear()
        self._sock.close()


class TransportWriter:
    """For TLS: bytes go through the transport; ranges are read on the thread pool, step by step."""

    __slots__ = ("_closed", "_loop", "_on_drained", "_on_error", "_paused", "_pool", "_queue", "_reading", "_transport")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        pool: Executor,
        *,
        on_drained: Callable[[], None],
        on_error: Callable[[OSError], None],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._pool = pool
        self._queue: deque[Part | _Progress] = deque()
        self._on_drained = on_drained
        self._on_error = on_error
        self._paused = False
        self._reading = False
        self._closed = False

    @property
    def idle(self) -> bool:
        return not self._queue and not self._paused

    def waiting_bytes(self) -> int:
        return self._transport.get_write_buffer_size() + sum(_size(part) for part in self._queue)

    def write(self, parts: Sequence[Part]) -> bool:
        if self._closed:
            release(parts)
            return True
        self._queue.extend(parts)
        self._send_some()
        return self.idle

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._resume()

    def _resume(self) -> None:
        self._send_some()
        if self.idle and not self._closed:
            self._on_drained()

    def _send_some(self) -> None:
        while self._queue and not self._paused and not self._reading and not self._closed:
            head = self._queue[0]
            if isinstance(head, BYTES):
                if len(head) > SEND_STEP_BYTES:
                    # Encryption takes long: write a step now, and the rest after other work.
                    self._transport.write(memoryview(head)[:SEND_STEP_BYTES])
                    self._queue[0] = memoryview(head)[SEND_STEP_BYTES:]
                    self._loop.call_soon(self._resume)
                    return
                self._queue.popleft()
                self._transport.write(head)
                continue
            progress = head if isinstance(head, _Progress) else _Progress(head)
            self._queue[0] = progress
            step = min(progress.size_bytes, READ_STEP_BYTES)
            if progress.source.is_resident(progress.position, step):
                self._sent_step(progress, progress.source.read_at(progress.position, step))
            else:
                self._reading = True
                read_at = progress.source.read_at
                future = self._loop.run_in_executor(self._pool, read_at, progress.position, step)
                future.add_done_callback(partial(self._read, progress))

    def _sent_step(self, progress: "_Progress", data: bytes) -> None:
        if not data:
            # The log was truncated during the read: the promised bytes are gone.
            self.close()
            self._on_error(OSError("the file is shorter than the range to be sent"))
            return
        self._transport.write(data)
        progress.advance(len(data))
        if not progress.size_bytes:
            self._queue.popleft()
            progress.release()

    def _read(self, progress: "_Progress", done: "asyncio.Future[bytes]") -> None:
        self._reading = False
        if self._closed:
            progress.release()
            return
        error = done.exception() if not done.cancelled() else OSError("the broker is stopping")
        if isinstance(error, OSError):
            self.close()
            self._on_error(error)
        elif error is not None:
            raise error
        else:
            self._sent_step(progress, done.result())
            self._resume()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        release(list(self._queue)[1:] if self._reading else self._queue)
        self._queue.clear()


class _Progress:
    """The remaining part of a range that is being sent."""

    __slots__ = ("position", "size_bytes", "source")

    def __init__(self, source: FileRange) -> None:
        self.source = source
        self.position = source.position
        self.size_bytes = source.size_bytes

    def advance(self, sent_bytes: int) -> None:
        self.position += sent_bytes
        self.size_bytes -= sent_bytes

    def release(self) -> None:
        self.source.release()


def _size(part: "Part | _Progress") -> int:
    return len(part) if isinstance(part, BYTES) else part.size_bytes


def _in_one_piece(parts: Sequence[Part]) -> bytearray | None:
    """Return the bytes that one call can send: several answers, or one with few records, read from memory here."""
    small = read_small(parts, SMALL_BYTES)
    if small is not None:
        release(parts)
    return small
