"""Processes: a broker, ZooKeeper, a client. Each has a host, an event loop for one life, a clock that may be wrong, a disk."""

import asyncio
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, cast

from barnabas.base.host.disk import Disk
from barnabas.broker.compose import Broker
from barnabas.broker.features.tiered.store import Store
from barnabas.broker.server.platform import Platform
from barnabas.broker.storage.cleaner.in_process import InProcessWorker
from barnabas.broker.zookeeper_client.features import ANNOUNCED
from barnabas.broker.zookeeper_client.kazoo_client import KazooConnection
from barnabas.testing.simulation.disk import SimDisk
from barnabas.testing.simulation.disk_files import LOOK, NAME, READ, SYNC, WRITE
from barnabas.testing.simulation.disk_life import Life
from barnabas.testing.simulation.loop import ProcessDied, SimLoop
from barnabas.testing.simulation.network import Network
from barnabas.testing.simulation.world import EPOCH_MS, World
from barnabas.testing.simulation.zookeeper import SimKazooClient, SimLogThread
from barnabas.zookeeper.config import ZooKeeperConfig
from barnabas.zookeeper.server import EmbeddedZooKeeper
from barnabas.zookeeper.service import Service

#: Virtual seconds of an operation of the disk, and of a byte: an SSD under some load.
DISK_S = {LOOK: 5e-6, READ: 10e-6, WRITE: 10e-6, NAME: 50e-6, SYNC: 2e-3}
BYTE_S = 1e-9


class SimClock:
    """The world's time; the wall clock may be wrong, and may jump."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.skew_ms = 0

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._world.now_s * 1000) + self.skew_ms

    def monotonic_s(self) -> float:
        return self._world.now_s


class InlinePool(Executor):
    """A thread pool inside a thread: it runs one job after the other."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Process:
    """Owner: the world. A process has one life at a time on its host."""

    def __init__(self, world: World, network: Network, name: str) -> None:
        self.world = world
        self.network = network
        self.name = name
        self.host = network.host(name)
        self.clock = SimClock(world)
        self.storage = SimDisk(now_ns=lambda: self.clock.now_ms() * 1_000_000)
        self._life: Life | None = None
        #: Factor by which its disk is slower than usual.
        self.disk_slowness = 1
        self._operations_left = 0
        #: Size of the sync in which the process ends; 0: it does not.
        self._fatal_sync_bytes = 0
        #: Additional time of the next sync.
        self._slow_sync_s = 0.0
        self._how: Callable[[], None] = self.kill
        self.loop: SimLoop | None = None
        self.lives = 0
        #: Whether its host lost power since its last life, so that writes that were not synced may be gone.
        self.has_lost_power = False
        #: Called when the process ends by itself, with the exception that ended it.
        self.on_end: Callable[[Process, BaseException | None], None] = lambda process, error: None

    @property
    def is_up(self) -> bool:
        return self.loop is not None

    @property
    def is_paused(self) -> bool:
        return self.loop is not None and self.loop.is_paused

    def start(self) -> None:
        assert self.loop is None, f"{self.name} runs already"
        self.lives += 1
        if not self.host.is_up:
            self.host.boot()
        # What simulated code does not use of asyncio raises NotImplementedError.
        loop = self.loop = SimLoop(self.world, self.name, self.host)  # type: ignore[abstract]
        loop.on_unhandled = self._unhandled
        self.world.note(self.name, f"starts, life {self.lives}")
        task = loop.create_task(self.main(), name="main")
        task.add_done_callback(partial(self._ended, loop))

    def main(self) -> Coroutine[Any, Any, None]:
        raise NotImplementedError

    def _unhandled(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        detail = f"{self.name}: {context.get('message')}: {error!r}"
        self.world.failure = error
        self.world.violate("no exception is left unhandled", detail)

    def _ended(self, loop: SimLoop, task: "asyncio.Task[None]") -> None:
        if self.loop is loop:
            self.loop = None
            error = None if task.cancelled() else task.exception()
            self.world.note(self.name, f"has ended{'' if error is None else f': {error!r}'}")
            self.host.process_died(loop)
            loop.kill()
            self._let_disk_go()
            self.on_end(self, error)

    def kill(self) -> None:
        """Kill the process; the kernel and its page cache live on."""
        loop, self.loop = self.loop, None
        assert loop is not None
        self.world.note(self.name, "is killed")
        loop.kill()
        self.host.process_died(loop)
        self._let_disk_go()

    def cut_power(self) -> None:
        loop, self.loop = self.loop, None
        self.world.note(self.name, "loses power")
        self.has_lost_power = True
        if loop is not None:
            loop.kill()
        self.host.lose_power()
        self._life = None
        self.storage.power_cut(self.world.random)

    def die_at_disk_operation(self, number: int, how: Callable[[], None] | None = None) -> None:
        """End the process at its `number`th disk operation from now: by a kill, or by `how`."""
        self._operations_left = number
        self._how = how or self.kill

    def die_in_sync(self, size_bytes: int, how: Callable[[], None]) -> None:
        """End the process by `how` in the middle of the next sync of at least `size_bytes`."""
        self._fatal_sync_bytes = size_bytes
        self._how = how

    def slow_next_sync(self, seconds: float) -> None:
        """Delay the next sync, as if the disk were busy. Other syncs in the meantime are not delayed."""
        self._slow_sync_s = seconds

    def spare(self) -> None:
        """Cancel `die_at_disk_operation` and `slow_next_sync`."""
        self._operations_left = self._fatal_sync_bytes = 0
        self._slow_sync_s = 0.0

    def leave_descriptors(self, count: int | None, *, keeps_what_it_closes: bool = False) -> None:
        """Let the process open only `count` more files in this life; None: no limit."""
        assert self._life is not None
        self._life.descriptors_left = count
        self._life.keeps_what_it_closes = keeps_what_it_closes

    @property
    def is_short_of_descriptors(self) -> bool:
        return self._life is not None and self._life.descriptors_left is not None

    def _disk_asked(self, kind: str, size_bytes: int) -> None:
        loop = self.loop
        if loop is None:
            return
        cost_s = DISK_S[kind] + size_bytes * BYTE_S
        loop.disk_s += cost_s
        loop.cost_s += cost_s * self.disk_slowness
        if kind is SYNC and self._slow_sync_s:
            loop.cost_s += self._slow_sync_s
            self._slow_sync_s = 0.0
        if kind is SYNC and loop.is_serving and asyncio._get_running_loop() is loop:
            where = "".join(traceback.format_stack(limit=8)[:-2])
            self.world.violate("no callback holds the loop", f"{self.name} waits for its disk to sync:\n{where}")
        if self._operations_left or self._fatal_sync_bytes:
            self._count_down(kind, size_bytes)

    def _count_down(self, kind: str, size_bytes: int) -> None:
        is_time = False
        if self._operations_left:
            self._operations_left -= 1
            is_time = not self._operations_left
        if self._fatal_sync_bytes and kind is SYNC and size_bytes >= self._fatal_sync_bytes:
            self._fatal_sync_bytes = 0
            is_time = True
        if is_time:
            loop = self.loop
            self._how()
            if self.loop is not loop:
                raise ProcessDied

    def _take_disk(self) -> Life:
        self.spare()
        self.storage.on_cost = self._disk_asked
        self._life = self.storage.life()
        return self._life

    def _let_disk_go(self) -> None:
        if self._life is not None:
            self.storage.process_died(self._life)
            self._life = None

    @property
    def open_files(self) -> dict[int, str]:
        return {} if self._life is None else self._life.open_files

    @contextmanager
    def looked_at(self) -> Iterator[None]:
        """Let the oracle read the disk: its reads take no time and do not count for `die_at_disk_operation`."""
        on_cost, self.storage.on_cost = self.storage.on_cost, lambda kind, size_bytes: None
        life = self._life
        left = None if life is None else life.descriptors_left
        if life is not None:
            life.descriptors_left = None
        try:
            yield
        finally:
            self.storage.on_cost = on_cost
            if life is not None:
                life.descriptors_left = left

    def pause(self) -> None:
        assert self.loop is not None
        self.world.note(self.name, "is paused")
        self.loop.pause()

    def resume(self) -> None:
        assert self.loop is not None
        self.world.note(self.name, "goes on")
        self.loop.resume()


def loop_of(process: Process) -> SimLoop:
    assert process.loop is not None
    return process.loop


class ZooKeeperProcess(Process):
    def __init__(self, world: World, network: Network, prefix: str = "") -> None:
        super().__init__(world, network, f"{prefix}zk")
        self.server: EmbeddedZooKeeper | None = None
        #: Called on every change, as soon as it is made.
        self.on_change: Callable[[], None] = lambda: None
        #: Number of transactions between two snapshots.
        self.snap_count = 100_000
        self.is_ready = False

    @property
    def is_serving(self) -> bool:
        return self.is_up and self.is_ready and not self.is_paused

    def expire(self, session_id: int) -> bool:
        """End a client's session before its time."""
        assert self.server is not None and self.loop is not None
        service = self.server.service
        if session_id not in service.by_session:
            return False
        self.loop.call_soon(service.expire, session_id)
        return True

    def _listen_to(self, service: Service) -> None:
        on_txn = service._on_txn

        def changed() -> None:
            on_txn()
            self.on_change()

        service._on_txn = changed

    async def main(self) -> None:
        self.is_ready = False
        self.server = EmbeddedZooKeeper(
            "/zookeeper",
            self.name,
            2181,
            config=ZooKeeperConfig(tick_time_ms=500, snap_count=self.snap_count),
            clock=self.clock,
            disk=self._take_disk(),
            make_log_thread=cast(Any, SimLogThread),
        )
        await self.server.start()
        self._listen_to(self.server.service)
        last_zxid = self.server.service.machine.last_zxid
        sent = self.world.zxids_sent.get(self.name, 0)
        if last_zxid < sent:
            self.world.violate(
                "ZooKeeper forgets nothing that it has answered",
                f"0x{sent:x} was answered, and the last is 0x{last_zxid:x}",
            )
        self.is_ready = loop_of(self).is_serving = True
        assert self.server.failed is not None
        await self.server.failed


def _no_store(disk: Disk) -> Store:
    raise AssertionError("this world has no object store")


class BrokerProcess(Process):
    def __init__(
        self, world: World, network: Network, broker_id: int, settings: Mapping[str, str], prefix: str = ""
    ) -> None:
        super().__init__(world, network, f"{prefix}b{broker_id}")
        self.id = broker_id
        self.settings = dict(settings)
        #: Features of the release that the broker runs.
        self.features: Mapping[str, tuple[int, int]] = ANNOUNCED
        self.broker: Broker | None = None
        self.is_ready = False
        self.is_stopping = False
        #: Opens the object store, for a broker with tiered storage.
        self.open_store: Callable[[Disk], Store] = _no_store
        #: Called before the next life begins, while the memory of the last one can still be read.
        self.on_start: Callable[[BrokerProcess], None] = lambda process: None
        #: Called instead of `on_end` after `stop`.
        self.on_stopped: Callable[[Process, BaseException | None], None] = lambda process, error: None

    @property
    def is_serving(self) -> bool:
        return self.is_up and self.is_ready and not self.is_paused and not self.is_stopping

    async def main(self) -> None:
        loop = self.loop
        assert loop is not None
        self.on_start(self)
        self.is_ready = self.is_stopping = False
        disk = self._take_disk()
        platform = Platform(
            clock=self.clock,
            disk=disk,
            make_cleaner_worker=lambda loop, env: InProcessWorker(env),
            random=Random(self.world.random.getrandbits(64)),
            make_pool=lambda threads, name: InlinePool(),
            listen=cast(Any, partial(self.host.listen, loop)),
            zookeeper=partial(KazooConnection, make_client=SimKazooClient),
            features=self.features,
            open_store=lambda url, settings: self.open_store(disk),
        )
        self.broker = Broker(self.settings, platform=platform)
        loop.set_exception_handler(self.broker.callback_failed)
        await self.broker.run(self._ready)

    def mend_directories(self) -> None:
        """Heal its directories. While one was dead, a replica may have been removed and created again in the other directory:
        the broker has to choose.
        """
        self.storage.heal()
        if self.is_up:
            self.kill()

    def _ready(self, broker: Broker) -> None:
        self.has_lost_power = False
        self.is_ready = loop_of(self).is_serving = True
        self.world.note(self.name, "is ready")

    def _ended(self, loop: SimLoop, task: "asyncio.Task[None]") -> None:
        was_stopping = self.is_stopping
        on_end = self.on_end
        if was_stopping:
            self.on_end = self.on_stopped
        super()._ended(loop, task)
        self.on_end = on_end

    def stop(self) -> None:
        """Stop the broker as SIGTERM does."""
        self.world.note(self.name, "stops on request")
        if self.broker is not None:
            self.broker.stop()
