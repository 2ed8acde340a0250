"""The event loop of one simulated process: asyncio's interface, virtual time, and no threads or sockets of the machine.

A turn runs the ready callbacks, as asyncio does, and takes the process some virtual time in which other processes run. Work for
threads runs at a moment of its own between two turns, and its result arrives later.
"""

import asyncio
import heapq
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from barnabas.testing.simulation.world import World

if TYPE_CHECKING:
    from barnabas.testing.simulation.network import Host
    from barnabas.testing.simulation.sockets import SimSocket

#: Virtual time of one callback.
CALLBACK_S = 20e-6
#: Chance that a turn is held up, as by garbage collection or a busy machine.
HOLDUP_CHANCE = 0.0005


#: The most disk time that one callback may take once a process serves: five times what the most expensive one takes
#: (LeaderAndIsr for ten new logs: 5 ms). A sync takes 2 ms, and `Process` forbids it on a loop.
HELD_MAX_S = 0.025


class ProcessDied(SystemExit):
    """Ends a process in the middle of a callback, so that none of its code runs after that."""


class SimFuture(asyncio.Future[Any]):
    """A future whose hash is the same in every run, because code iterates over sets of futures."""

    #: Set by `SimLoop.create_future`, not by a constructor in Python: there are thousands of futures in a second.
    _number: int

    def __hash__(self) -> int:
        return self._number


class SimTask(asyncio.Task[Any]):
    def __init__(self, coro: Any, *, loop: "SimLoop", name: str | None, context: Any = None) -> None:
        self._number = loop.world.number()
        super().__init__(coro, loop=loop, name=name or f"task-{self._number}", context=context)

    def __hash__(self) -> int:
        return self._number


class _Handle(asyncio.Handle):
    """asyncio's handle, without the debug checks that it makes with its loop."""

    _context: Any
    _callback: Any
    _args: Any

    def __init__(self, callback: Any, args: Any, loop: "SimLoop", context: Any = None) -> None:
        self._context = context if context is not None else copy_context()
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None


class _TimerHandle(asyncio.TimerHandle):
    """Likewise."""

    _context: Any
    _callback: Any
    _args: Any

    def __init__(self, when: float, callback: Any, args: Any, loop: "SimLoop", context: Any = None) -> None:
        self._context = context if context is not None else copy_context()
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None
        self._when = when
        self._scheduled = False

    def cancel(self) -> None:
        """Mark the timer; the loop skips it when its time comes."""
        self._cancelled = True
        self._callback = self._args = None


class SimLoop(asyncio.AbstractEventLoop):
    """Owner: the world. `is_dead`: the process is gone, and none of its callbacks runs any more."""

    def __init__(self, world: World, name: str, host: "Host") -> None:
        self.world = world
        self.name = name
        self.host = host
        self.is_dead = False
        #: Whether the process has started: from then on no callback may hold up the loop.
        self.is_serving = False
        self._is_paused = False
        self._ready: deque[Any] = deque()  # handles, of which the loop reads private fields
        self._wake_is_due = False
        self._busy_until_s = 0.0
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        #: Tasks are kept until they end: the garbage collector must not close anything of a killed process in the middle of a
        #: run. Ended tasks are removed a little later, so that no callback is needed for each.
        self.tasks: list[asyncio.Task[Any]] = []
        self._tasks_max = 50
        self.readers: dict[int, asyncio.Handle] = {}
        self.writers: dict[int, asyncio.Handle] = {}
        self._late: list[Callable[[], None]] = []
        #: Work for threads that no thread has begun, and the filter for work that joins it.
        self.held_work: list[Callable[[], None]] = []
        self._is_held: Callable[[Any], bool] | None = None
        #: Virtual time beyond the usual that the running callback has taken, by disk.
        self.cost_s = 0.0
        #: Time that the running callback would have taken on a disk that is not slow.
        self.disk_s = 0.0
        self.sockets: dict[int, SimSocket] = {}
        self._free_fds: list[int] = []
        self._fds = 10
        #: Called with exceptions that were never retrieved.
        self.on_unhandled: Callable[[dict[str, Any]], None] = lambda context: None

    # -- the world's side -----------------------------------------------------------------------------------------------

    def run_ready(self) -> None:
        self._wake_is_due = False
        if self.is_dead or self._is_paused:
            return
        ready, world = self._ready, self.world
        count = len(ready)
        self.cost_s = 0.0
        _set_running_loop(self)
        try:
            for _ in range(count):
                handle = ready.popleft()
                if not handle._cancelled:
                    self.disk_s = 0.0
                    # The same as `Handle._run`, without another call.
                    try:
                        handle._context.run(handle._callback, *handle._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        self.call_exception_handler(
                            {"message": f"Exception in callback {handle!r}", "exception": error, "handle": handle}
                        )
                    if self.disk_s > HELD_MAX_S:
                        self._held(handle, self.disk_s)
                if self.is_dead:
                    return  # type: ignore[unreachable]  # the callback may have killed the process
        except ProcessDied:
            return
        finally:
            _set_running_loop(None)
        spent_s = count * CALLBACK_S + self.cost_s
        if world.random.random() < HOLDUP_CHANCE:
            spent_s += world.random.uniform(0.001, 0.05)
        busy_until_s = self._busy_until_s = world.now_s + spent_s
        if ready and not self._wake_is_due and not self._is_paused:
            self._wake_is_due = True
            world.push(busy_until_s, self, None)

    def _held(self, handle: asyncio.Handle, seconds: float) -> None:
        if self.is_serving:
            self.world.violate(
                "no callback holds the loop", f"{self.name}: {seconds * 1000:.0f} ms of its disk's time: {handle!r}"
            )

    def timer_fired(self, handle: asyncio.TimerHandle) -> None:
        if not handle._cancelled and not self.is_dead:
            self._ready.append(handle)
            if not self._wake_is_due:
                self._want_turn()

    def _want_turn(self) -> None:
        if not self._wake_is_due and not self._is_paused and not self.is_dead:
            self._wake_is_due = True
            now_s = self.world.now_s
            self.world.push(self._busy_until_s if self._busy_until_s > now_s else now_s, self, None)

    def kill(self) -> None:
        self.is_dead = True
        self.world.graveyard.append(self)
        self._ready.clear()
        self._late.clear()

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        late, self._late = self._late, []
        for job in late:
            self.world.after(0.0, job)
        if self._ready:
            self._want_turn()

    # -- callbacks and time -----------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.world.now_s

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._wake_is_due:
            self._want_turn()
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self.world.now_s + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = _TimerHandle(when, callback, args, self, context)
        if when != float("inf"):
            self.world.push(when if when > self.world.now_s else self.world.now_s, self, handle)
        return handle

    def timers(self) -> list[str]:
        """Return the names of the pending timers."""
        return [
            getattr(what._callback, "__qualname__", type(what._callback).__name__)
            for _, _, loop, what in self.world.pending
            if loop is self and what is not None and not what._cancelled
        ]

    def create_future(self) -> "SimFuture":
        future = SimFuture(loop=self)
        world = self.world
        world.numbers += 1
        future._number = world.numbers
        return future

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> "SimTask":
        task = SimTask(coro, loop=self, name=name, context=context)
        self.tasks.append(task)
        if len(self.tasks) > self._tasks_max:
            self.forget_ended_tasks()
        return task

    def forget_ended_tasks(self) -> None:
        self.tasks = [each for each in self.tasks if not each.done()]
        self._tasks_max = 2 * len(self.tasks) + 50

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> "SimFuture":
        """Run the function on a simulated thread: it begins a little later, and takes as long as its disk work."""
        future = self.create_future()
        world = self.world

        def work() -> None:
            if self.is_dead:
                return
            if self._is_paused:
                self._late.append(work)
                return
            self.cost_s = 0.0
            result: Any = None
            error: BaseException | None = None
            try:
                result = func(*args)
            except BaseException as raised:
                error = raised
            if self.is_dead:
                return  # type: ignore[unreachable]  # the callback may have killed the process
            world.after(
                self.cost_s + world.random.uniform(10e-6, 300e-6), partial(self.call_soon, finish, result, error)
            )

        def finish(result: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        if self._is_held is not None and self._is_held(func):
            self.held_work.append(work)
        else:
            world.after(world.random.uniform(10e-6, 200e-6), work)
        return future

    def hold_work(self, which: Callable[[Any], bool]) -> None:
        """Let no thread begin such work until `release_work`."""
        self._is_held = which

    def release_work(self) -> None:
        """Begin the held work now; later work does not wait."""
        self._is_held = None
        held, self.held_work = self.held_work, []
        for work in held:
            self.world.after(self.world.random.uniform(10e-6, 200e-6), work)

    def take_fd(self) -> int:
        """Return the lowest free descriptor, as the kernel does."""
        if self._free_fds:
            return heapq.heappop(self._free_fds)
        self._fds += 1
        return self._fds

    def free_fd(self, fd: int) -> None:
        heapq.heappush(self._free_fds, fd)

    # -- sockets ----------------------------------------------------------------------------------------------------------

    async def create_connection(self, protocol_factory: Any, host: str, port: int, *, ssl: Any = None, **_: Any) -> Any:
        assert ssl is None, "TLS is not simulated"
        return await self.host.connect(self, protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: str, port: int, **_: Any) -> Any:
        return self.host.serve(self, protocol_factory, port)

    async def connect_accepted_socket(self, protocol_factory: Any, sock: "SimSocket", **_: Any) -> Any:
        return self.host.adopt(self, protocol_factory, sock)

    def add_reader(self, fd: int, callback: Any, *args: Any) -> None:
        self.readers[fd] = asyncio.Handle(callback, args, self)
        self.sockets[fd].poll()

    def remove_reader(self, fd: int) -> bool:
        handle = self.readers.pop(fd, None)
        if handle is not None:
            handle.cancel()
        return handle is not None

    def add_writer(self, fd: int, callback: Any, *args: Any) -> None:
        self.writers[fd] = asyncio.Handle(callback, args, self)
        self.sockets[fd].poll()

    def remove_writer(self, fd: int) -> bool:
        handle = self.writers.pop(fd, None)
        if handle is not None:
            handle.cancel()
        return handle is not None

    def readable(self, fd: int) -> None:
        """Run the callback as long as there is something to read (level-triggered)."""
        self._ready_for(fd, self.readers, lambda sock: sock.is_readable)

    def writable(self, fd: int) -> None:
        self._ready_for(fd, self.writers, lambda sock: sock.is_writable)

    def _ready_for(self, fd: int, handles: dict[int, asyncio.Handle], is_ready: Callable[["SimSocket"], bool]) -> None:
        handle = handles.get(fd)
        if handle is None:
            return

        def run() -> None:
            if handles.get(fd) is not handle or fd not in self.sockets or not is_ready(self.sockets[fd]):
                return
            handle._run()
            if handles.get(fd) is handle and fd in self.sockets and is_ready(self.sockets[fd]):
                self.call_soon(run)

        self.call_soon(run)

    # -- the rest of asyncio's interface that is used ---------------------------------------------------------------------

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return False

    def set_exception_handler(self, handler: Any) -> None:
        self._handler = handler

    def get_exception_handler(self) -> Any:
        return self._handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.on_unhandled(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.is_dead:
            return
        if self._handler is None:
            self.default_exception_handler(context)
        else:
            self._handler(self, context)

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: there are no asynchronous generators."""

    def _asyncgen_hook(self, _: object) -> None:
        """Unused."""
