"""Code that blocks, such as a driver of Spark with its sockets, as a part of a simulated process.

It runs on a thread of its own, but only while the world waits for it: at each operation that blocks (connect, receive, sleep)
the thread stands still, and the process's event loop carries the operation out in virtual time. So a run stays the same for a
seed. A killed process never lets its thread go on. The thread is left behind: a seed ends with its operating system process.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

from barnabas.testing.simulation.process import Process, SimClock
from barnabas.testing.simulation.world import World

T = TypeVar("T")

_running = threading.local()


class Torn(BaseException):
    """Ends blocking code at a step, as a kill of its process does, while the simulated process itself lives on."""


class BlockingCode(Generic[T]):
    def __init__(
        self,
        process: Process,
        work: Callable[[], T],
        *,
        given: object = None,
        at_step: Callable[[int], None] = lambda number: None,
    ) -> None:
        """`given`: what the work finds by `current().given`. `at_step` may end the process, or raise `Torn`."""
        self.process = process
        self.given = given
        self._work = work
        self._at_step = at_step
        self._steps = 0
        self._to_thread, self._to_world = threading.Semaphore(0), threading.Semaphore(0)
        self._asked: Callable[[], Awaitable[Any]] | None = None
        self._answer: Any = None
        self._error: BaseException | None = None
        self._is_torn = False

    async def run(self) -> T:
        threading.Thread(target=self._main, daemon=True).start()
        self._hand_over()
        while (operation := self._asked) is not None:
            self._asked = None
            self._answer, self._error = None, None
            self._steps += 1
            try:
                self._at_step(self._steps)
                if self.process.is_paused:
                    await asyncio.sleep(0)  # the loop turns again when the process goes on
                self._answer = await operation()
            except Torn as torn:
                self._is_torn, self._error = True, torn
            except Exception as error:
                self._error = error
            self._hand_over()
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[no-any-return]

    def _hand_over(self) -> None:
        self._to_thread.release()
        self._to_world.acquire()

    def _main(self) -> None:
        self._to_thread.acquire()
        _running.code = self
        self._answer, self._error = None, None
        try:
            self._answer = self._work()
        except BaseException as error:
            self._error = error
        self._asked = None
        self._to_world.release()

    def block(self, operation: Callable[[], Awaitable[Any]]) -> Any:
        """Called on the thread: let the process's loop carry the operation out."""
        if self._is_torn:
            raise Torn
        self._asked = operation
        self._to_world.release()
        self._to_thread.acquire()
        if self._error is not None:
            raise self._error
        return self._answer


def current() -> BlockingCode[Any]:
    """Return the blocking code that runs now."""
    found: BlockingCode[Any] = _running.code
    return found


# -- what blocking modules take from the machine ------------------------------------------------------------------------


class SimTime:
    """Stands for the module `time`. The clock of the process; outside of blocking code that of the world."""

    def __init__(self, world: World) -> None:
        self._clock = SimClock(world)

    def _of_process(self) -> SimClock:
        code: BlockingCode[Any] | None = getattr(_running, "code", None)
        return self._clock if code is None else code.process.clock

    def monotonic(self) -> float:
        return self._clock.monotonic_s()

    def time_ns(self) -> int:
        return self._of_process().now_ms() * 1_000_000

    def time(self) -> float:
        return self._of_process().now_ms() / 1000

    def sleep(self, seconds: float) -> None:
        current().block(lambda: asyncio.sleep(seconds))


class _Arrivals(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = bytearray()
        self.is_ended = False
        self.error: Exception | None = None
        self._changed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self._changed.set()

    def eof_received(self) -> bool:
        self.is_ended = True
        self._changed.set()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_ended, self.error = True, error
        self._changed.set()

    async def arrival(self, timeout_s: float | None) -> None:
        async with asyncio.timeout(timeout_s):
            while not self.data and not self.is_ended:
                self._changed.clear()
                await self._changed.wait()


class BlockingSocket:
    """A connected socket of `socket`, as far as clients use it."""

    def __init__(self, transport: Any, arrivals: _Arrivals) -> None:
        self._transport = transport
        self._arrivals = arrivals
        self._timeout_s: float | None = None

    def setsockopt(self, *_: int) -> None:
        """Do nothing: the simulated network does not wait for more data."""

    def settimeout(self, seconds: float | None) -> None:
        self._timeout_s = seconds

    def sendall(self, data: bytes | memoryview) -> None:
        content = bytes(data)

        async def send() -> None:
            if self._arrivals.is_ended:
                raise self._arrivals.error or ConnectionResetError("the peer has closed the connection")
            self._transport.write(content)

        current().block(send)

    def recv_into(self, buffer: memoryview) -> int:
        arrived = self._arrivals
        if not arrived.data and not arrived.is_ended:
            current().block(lambda: arrived.arrival(self._timeout_s))
        count = min(len(buffer), len(arrived.data))
        if not count and arrived.error is not None:
            raise arrived.error
        buffer[:count] = arrived.data[:count]
        del arrived.data[:count]
        return count

    def close(self) -> None:
        code = current()
        if code.process.loop is not None:
            code.process.loop.call_soon(self._transport.abort)


def _create_connection(address: tuple[str, int], timeout: float | None = None) -> BlockingSocket:
    code = current()

    async def connect() -> BlockingSocket:
        assert code.process.loop is not None
        async with asyncio.timeout(timeout):
            return BlockingSocket(*await code.process.loop.create_connection(_Arrivals, *address))

    found: BlockingSocket = code.block(connect)
    return found


SOCKETS = SimpleNamespace(
    create_connection=_create_connection,
    socket=socket.socket,
    IPPROTO_TCP=socket.IPPROTO_TCP,
    TCP_NODELAY=socket.TCP_NODELAY,
)


def simulate(modules: list[ModuleType], world: World) -> None:
    """Let these modules use virtual time, simulated sockets, and the chance of the seed. For the rest of the run."""
    randoms = SimpleNamespace(Random=lambda *seed: Random(*seed) if seed else Random(world.random.getrandbits(64)))
    for module in modules:
        for name, stands_for in (("time", SimTime(world)), ("socket", SOCKETS), ("random", randoms)):
            if hasattr(module, name):
                setattr(module, name, stands_for)
