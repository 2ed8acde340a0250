"""Applications in a simulation: processes that run a coroutine function of the user on a loop of their own.

`current()` is the guest whose code runs now. The clock, the chance and the refusals of applications (`patches`, `refusals`)
ask it.
"""

import asyncio
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NoReturn

from barnabas.testing.simulation.loop import SimLoop
from barnabas.testing.simulation.network import Network
from barnabas.testing.simulation.process import Process
from barnabas.testing.simulation.world import World

#: A process that crashed is started again after so many seconds, as a supervisor does.
RESTART_S = 1.0


class Refused(RuntimeError):
    """The application did something that a simulation cannot do: the message says what to do instead."""


class _Now:
    guest: "Guest | None" = None


def current() -> "Guest | None":
    """Return the guest whose code runs now; None while a broker, ZooKeeper or the world does something."""
    return _Now.guest


def refuse(call: str, instead: str) -> NoReturn:
    """End the run: an application may catch the exception, and must not go on with half a simulation."""
    guest = _Now.guest
    line = f"{call} cannot be simulated: {instead}"
    if guest is not None:
        guest.world.failure = error = Refused(line)
        where = "".join(traceback.format_stack(limit=12)[:-2])
        guest.world.violate("an application makes only calls that can be simulated", f"{guest.name}: {line}\n{where}")
        raise error
    raise Refused(line)


class GuestLoop(SimLoop):
    """The loop of an application: the rest of asyncio's interface, and refusals of what cannot be simulated."""

    guest: "Guest"

    def run_ready(self) -> None:
        _Now.guest = self.guest
        sys.set_asyncgen_hooks(firstiter=self._asyncgen_began, finalizer=self._asyncgen_forgotten)
        try:
            super().run_ready()
        except (SystemExit, KeyboardInterrupt) as ended:
            asyncio._set_running_loop(None)
            self.guest.exits(ended)
        finally:
            sys.set_asyncgen_hooks(None, None)
            _Now.guest = None

    def _asyncgen_began(self, _: object) -> None:
        """The loop keeps no list of them: nothing waits for the end of a simulated process."""

    def _asyncgen_forgotten(self, generator: Any) -> None:
        if not self.is_dead:
            self.create_task(generator.aclose())

    def time(self) -> float:
        return self.world.now_s + (self.cost_s if _Now.guest is self.guest else 0.0)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """The function runs as a whole at one moment, as a thread that nothing interrupts."""

        def as_guest() -> Any:
            _Now.guest = self.guest
            try:
                return func(*args)
            finally:
                _Now.guest = None

        return super().run_in_executor(executor, as_guest)

    # -- network ------------------------------------------------------------------------------------------------------

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, *, ssl: Any = None, sock: Any = None, **_: Any
    ) -> Any:
        if ssl:
            refuse("TLS", "connect with PLAINTEXT: the simulated network has no listener with TLS")
        if sock is not None:
            refuse("create_connection(sock=…)", "give host and port, as asyncio.open_connection(host, port) does")
        return await self.host.connect(self, protocol_factory, str(host), int(port))

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, *, ssl: Any = None, sock: Any = None, **_: Any
    ) -> Any:
        if ssl:
            refuse("TLS", "serve without it: the simulated network has no TLS")
        if sock is not None:
            refuse("create_server(sock=…)", "give host and port")
        return self.host.serve(self, protocol_factory, int(port or 0))

    async def getaddrinfo(self, host: Any, port: Any, *, family: int = 0, type: int = 0, **_: Any) -> Any:
        name = self.host.name if host in (None, "localhost", "127.0.0.1", "0.0.0.0", "") else _text(host)
        if name not in self.host.network.hosts:
            import socket

            raise socket.gaierror(socket.EAI_NONAME, f"no host {name} in this world")
        return [(2, 1, 6, "", (name, int(port or 0)))]

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> Any:
        return str(sockaddr[0]), str(sockaddr[1])

    async def create_datagram_endpoint(self, *_: Any, **__: Any) -> Any:
        refuse("loop.create_datagram_endpoint", "the simulated network has streams only")

    async def create_unix_connection(self, *_: Any, **__: Any) -> Any:
        refuse("loop.create_unix_connection", "connect to a host and a port")

    async def create_unix_server(self, *_: Any, **__: Any) -> Any:
        refuse("loop.create_unix_server", "serve on a port")

    async def start_tls(self, *_: Any, **__: Any) -> Any:
        refuse("loop.start_tls", "the simulated network has no TLS: connect with PLAINTEXT")

    async def subprocess_exec(self, *_: Any, **__: Any) -> Any:
        refuse("asyncio.create_subprocess_exec", "run the other program's code with world.process")

    async def subprocess_shell(self, *_: Any, **__: Any) -> Any:
        refuse("asyncio.create_subprocess_shell", "run the other program's code with world.process")

    async def sock_connect(self, *_: Any) -> Any:
        refuse("loop.sock_connect", "use asyncio.open_connection(host, port)")

    # -- signals, debugging, the end ----------------------------------------------------------------------------------

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
        self.guest.signal_handlers[int(sig)] = partial(callback, *args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self.guest.signal_handlers.pop(int(sig), None) is not None

    def set_debug(self, enabled: bool) -> None:
        """Debug mode does not change what is simulated."""

    def set_task_factory(self, factory: Any) -> None:
        if factory is not None:
            refuse("loop.set_task_factory", "the simulation makes the tasks")

    def get_task_factory(self) -> Any:
        return None

    def set_default_executor(self, executor: Any) -> None:
        """Simulated threads have no pool."""

    async def shutdown_default_executor(self, *_: Any) -> None:
        """Simulated threads end by themselves."""

    def run_until_complete(self, future: Any) -> Any:
        refuse("loop.run_until_complete", "await it: the function of world.process runs on a loop already")

    def run_forever(self) -> None:
        refuse("loop.run_forever", "await something that does not end: the process runs on a loop already")

    def stop(self) -> None:
        refuse("loop.stop", "return from the function of world.process")

    def close(self) -> None:
        """The world closes it when the process ends."""


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes | bytearray) else str(name)


class Guest(Process):
    """A simulated process of an application. Owner: the world."""

    def __init__(
        self,
        world: World,
        network: Network,
        name: str,
        function: Callable[..., Coroutine[Any, Any, Any]],
        args: tuple[Any, ...] = (),
        options: dict[str, Any] | None = None,
        *,
        restart: bool = True,
    ) -> None:
        super().__init__(world, network, name)
        if not inspect.iscoroutinefunction(inspect.unwrap(getattr(function, "func", function))) and not callable(
            function
        ):
            raise TypeError(f"world.process takes a coroutine function: async def, not {function!r}")
        self._function = function
        self._args = args
        self._options = options or {}
        self._restarts = restart
        self.signal_handlers: dict[int, Callable[[], object]] = {}
        #: Exceptions that ended it, with the virtual time.
        self.crashes: list[tuple[float, BaseException]] = []
        #: What the function has returned, and whether it has.
        self.result: Any = None
        self.has_returned = False
        #: Whether a fault holds it down: its supervisor does not start it.
        self.is_held_down = False
        self._awaiting: list[asyncio.Future[None]] = []
        self.on_death: Callable[[Guest], None] = lambda guest: None
        self.pid = 100 + len(network.hosts)

    def start(self) -> None:
        """Begin a life of the process: the function is called again."""
        assert self.loop is None, f"{self.name} runs already"
        self.lives += 1
        self.signal_handlers.clear()
        self.has_returned = False
        loop = self.loop = GuestLoop(self.world, self.name, self.host)  # type: ignore[abstract]
        loop.guest = self
        loop.on_unhandled = self._unhandled
        self.world.note(self.name, "starts" if self.lives == 1 else f"starts again, life {self.lives}")
        task = loop.create_task(self.main(), name="main")
        task.add_done_callback(partial(self._ended, loop))

    async def main(self) -> None:
        made = self._function(*self._args, **self._options)
        if not inspect.isawaitable(made):
            raise TypeError(f"world.process takes a coroutine function: {self._function!r} returned {made!r}")
        self.result = await made
        self.has_returned = True

    def _unhandled(self, context: dict[str, Any]) -> None:
        """As asyncio does: log it, and go on."""
        error = context.get("exception")
        logging.getLogger("asyncio").error(
            "%s", context.get("message") or "unhandled exception", exc_info=error if error is not None else None
        )

    def _ended(self, loop: SimLoop, task: "asyncio.Task[None]") -> None:
        if self.loop is not loop:
            return
        error = None if task.cancelled() else task.exception()
        self._ends(loop)
        if error is not None:
            self._crashed(error)
        elif self.has_returned:
            self.world.note(self.name, "has returned")
            self._returned()
        else:
            self.world.note(self.name, "was cancelled")
            self._start_later()

    def _returned(self) -> None:
        for ended in self._awaiting:
            if not ended.done():
                ended.set_result(None)
        self._awaiting.clear()

    def _crashed(self, error: BaseException) -> None:
        self.crashes.append((self.world.now_s, error))
        place = traceback.extract_tb(error.__traceback__)
        at = f", at {place[-1].filename.rpartition('/')[2]}:{place[-1].lineno}" if place else ""
        self.world.note(self.name, f"crashes: {type(error).__name__}: {error}{at}")
        self.on_end(self, error)
        self._start_later()

    def exits(self, ended: BaseException) -> None:
        """It called sys.exit."""
        loop = self.loop
        if loop is not None:
            self._ends(loop)
            self.world.note(self.name, f"exits: {ended!r}")
            if ended.args and ended.args[0]:
                self.crashes.append((self.world.now_s, ended))
                self.on_end(self, ended)
                self._start_later()
            else:
                self.has_returned = True
                self._returned()

    def _ends(self, loop: SimLoop) -> None:
        self.loop = None
        loop.kill()
        self.host.process_died(loop)
        self._let_disk_go()
        self.on_death(self)

    def _start_later(self) -> None:
        if self._restarts:
            life = self.lives
            self.world.after(RESTART_S, lambda: self._start_if(life))

    def _start_if(self, life: int) -> None:
        if self.loop is None and self.lives == life and not self.is_held_down:
            self.start()

    async def returned(self) -> Any:
        """Wait until its function has returned, and return the result."""
        if not self.has_returned:
            ended = asyncio.get_running_loop().create_future()
            self._awaiting.append(ended)
            await ended
        return self.result

    # -- what tests and faults do to it -------------------------------------------------------------------------------

    def kill(self) -> None:
        """End it as SIGKILL does: no `finally` runs. It stays down until `start` or `restart`."""
        if self.loop is not None:
            super().kill()
            self.on_death(self)

    def restart(self) -> None:
        """Kill it, if it runs, and start it."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Send SIGTERM: its handler runs, if it has one; otherwise the process ends at once."""
        loop = self.loop
        if loop is None:
            return
        self.world.note(self.name, "gets SIGTERM")
        handler = self.signal_handlers.get(15)
        if handler is None:
            self.kill()
        else:
            loop.call_soon(handler)

    def clock_jump(self, seconds: float) -> None:
        """Let its wall clock jump; the monotonic clock goes on as before."""
        self.clock.skew_ms += int(seconds * 1000)
        self.world.note(self.name, f"its wall clock jumps by {seconds:+g} s")

    def release(self) -> None:
        """End what a fault held it down for."""
        self.is_held_down = False
        if self.loop is None and not self.has_returned:
            self.start()

    def go_on(self) -> None:
        """End a pause."""
        if self.is_paused:
            self.resume()

    def heal(self) -> None:
        """Let it run, whatever was done to it."""
        self.clock.skew_ms = 0
        self.go_on()
        self.release()
