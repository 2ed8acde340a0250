"""Real brokers and their ZooKeeper on an event loop of the test's process: no child process, no signal handler, no output.

`Machinery` belongs to the event loop that runs `start`; every method is called on it. `testing.broker` has what tests use.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from barnabas.base.errors import BarnabasError, BrokenInvariant, leaves
from barnabas.base.host.disk import Disk, ReadableBuffer
from barnabas.broker.compose import Broker
from barnabas.broker.runtime.faults import Faults
from barnabas.broker.server.fault_injection import FaultyDisk
from barnabas.broker.server.platform import Platform
from barnabas.broker.storage.cleaner.in_process import InProcessWorker
from barnabas.cli.local_cluster import ClusterFailed
from barnabas.cli.local_settings import suiting_settings
from barnabas.cli.snapshots import FOLDER, copy_out, places, put_back
from barnabas.testing.memory_folder import MemoryFolder
from barnabas.testing.quiet_logs import Lines
from barnabas.testing.settings import DEFAULTS, SHORT_SESSIONS, SHORT_TICK_MS
from barnabas.testing.snapshot import Snapshot
from barnabas.zookeeper.config import ZooKeeperConfig
from barnabas.zookeeper.server import EmbeddedZooKeeper

HOST = "127.0.0.1"
ZOOKEEPER = "zookeeper"
LISTENER = "PLAINTEXT"
#: Log lines that an error shows.
_SHOWN_LINES_MAX = 15


@dataclass(frozen=True, kw_only=True)
class Options:
    brokers: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    broker_config: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    #: None: in memory.
    data: Path | None = None
    short_sessions: bool = False


class HeldDisk(Disk):
    """Stands still while a snapshot is taken. With `syncs=False` nothing waits for a device: the data goes with the test."""

    def __init__(self, gate: threading.Lock, *, syncs: bool) -> None:
        self._gate = gate
        self._syncs = syncs

    def pwrite(self, fd: int, data: ReadableBuffer, position: int) -> int:
        with self._gate:
            return super().pwrite(fd, data, position)

    def truncate(self, fd: int, size_bytes: int) -> None:
        with self._gate:
            super().truncate(fd, size_bytes)

    def rename(self, source: str, target: str) -> None:
        with self._gate:
            super().rename(source, target)

    def unlink(self, path: str) -> bool:
        with self._gate:
            return super().unlink(path)

    def mkdir(self, path: str) -> None:
        with self._gate:
            super().mkdir(path)

    def rmdir(self, path: str) -> None:
        with self._gate:
            super().rmdir(path)

    def rmtree(self, path: str) -> None:
        with self._gate:
            super().rmtree(path)

    def fsync(self, fd: int) -> None:
        if self._syncs:
            super().fsync(fd)

    def fdatasync(self, fd: int) -> None:
        if self._syncs:
            super().fdatasync(fd)


class BrokerDisk(FaultyDisk, HeldDisk):
    """The faults come first: a slow disk must not hold the gate."""

    def __init__(self, faults: Faults, gate: threading.Lock, *, syncs: bool) -> None:
        FaultyDisk.__init__(self, faults)
        HeldDisk.__init__(self, gate, syncs=syncs)


class Member:
    """One broker, from start to start."""

    def __init__(self, broker_id: int) -> None:
        self.id = broker_id
        self.port = 0
        self.lines = Lines()
        self.faults = Faults()
        self.broker: Broker | None = None
        self.life: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self.life is not None and not self.life.done()


async def _live(broker: Broker, on_ready: Callable[[], None]) -> None:
    try:
        await broker.run(lambda _: on_ready())
    except (Exception, asyncio.CancelledError):
        await broker.release()
        raise


class Machinery:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.broker_ids = range(1, options.brokers + 1)
        self.members = {broker_id: Member(broker_id) for broker_id in self.broker_ids}
        self.zookeeper_lines = Lines()
        self._gate = threading.Lock()
        self._memory: MemoryFolder | None = None
        self._zookeeper: EmbeddedZooKeeper | None = None
        self._stack = contextlib.AsyncExitStack()

    # -- life -------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Everything up and ready, or `ClusterFailed` with nothing left running."""
        try:
            if self.options.data is None:
                self._memory = MemoryFolder()
                self._stack.callback(self._memory.remove)
            else:
                self.options.data.mkdir(parents=True, exist_ok=True)
            for lines in (self.zookeeper_lines, *(member.lines for member in self.members.values())):
                self._stack.enter_context(lines)
            self._catch_errors_of_callbacks()
            self._stack.push_async_callback(self._stop_zookeeper)
            await self._start_zookeeper(0)
            self._stack.push_async_callback(self._stop_brokers)
            await self._start_brokers()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Brokers in a folder of the test's stop cleanly; those in memory just end. Then ZooKeeper, then the folder."""
        await self._stack.aclose()

    def _catch_errors_of_callbacks(self) -> None:
        """The loop's exception handler stays the application's; but a broker whose invariant broke must not go on."""
        loop = asyncio.get_running_loop()
        former = loop.get_exception_handler()

        def failed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            if isinstance(error, BrokenInvariant):
                for broker in self._running_brokers():
                    broker.fail(error)
            if former is None:
                loop.default_exception_handler(context)
            else:
                former(loop, context)

        loop.set_exception_handler(failed)
        self._stack.callback(loop.set_exception_handler, former)

    def _running_brokers(self) -> list[Broker]:
        return [member.broker for member in self.members.values() if member.running and member.broker is not None]

    # -- ZooKeeper --------------------------------------------------------------------------------------------------------

    @property
    def zookeeper(self) -> EmbeddedZooKeeper:
        assert self._zookeeper is not None, "not started"
        return self._zookeeper

    async def _start_zookeeper(self, port: int) -> None:
        config = ZooKeeperConfig(force_sync=self._memory is None, max_client_cnxns=1000)
        if self.options.short_sessions:
            config = ZooKeeperConfig(
                force_sync=self._memory is None,
                max_client_cnxns=1000,
                tick_time_ms=SHORT_TICK_MS,
                max_session_timeout_ms=60_000,
            )
        server = EmbeddedZooKeeper(
            self.folder / ZOOKEEPER, HOST, port, config=config, disk=HeldDisk(self._gate, syncs=self._memory is None)
        )
        await self._log_to(self.zookeeper_lines, server.start())
        self._zookeeper = server

    async def _stop_zookeeper(self) -> None:
        if self._zookeeper is not None:
            await self._zookeeper.stop()

    async def restart_zookeeper(self, away_s: float = 0) -> None:
        port = self.zookeeper.port or 0
        await self._stop_zookeeper()
        await asyncio.sleep(away_s)
        await self._start_zookeeper(port)

    def expire_session(self, broker_id: int) -> None:
        self.zookeeper.service.expire(self.running(broker_id).session.session_id)

    @staticmethod
    async def _log_to(lines: Lines, work: Coroutine[Any, Any, None]) -> None:
        """What the work starts on this loop logs there, too."""
        context = copy_context()
        context.run(lines.claim)
        await asyncio.get_running_loop().create_task(work, context=context)

    # -- brokers ----------------------------------------------------------------------------------------------------------

    async def _start_brokers(self) -> None:
        results = await asyncio.gather(
            *(self.start_broker(each) for each in self.broker_ids if not self.members[each].running),
            return_exceptions=True,
        )
        for error in results:
            if error is not None:
                raise error

    async def start_broker(self, broker_id: int, config: Mapping[str, str] | None = None) -> None:
        """On its data and port, where it has run before."""
        member = self.members[broker_id]
        if member.running:
            raise ClusterFailed(f"broker {broker_id} is running")
        faults = member.faults = Faults()
        platform = Platform(
            clock=faults.clock,
            disk=BrokerDisk(faults, self._gate, syncs=self._memory is None),
            make_cleaner_worker=lambda loop, env: InProcessWorker(env),
        )
        try:
            member.broker = Broker({**self.properties(broker_id), **(config or {})}, faults=faults, platform=platform)
        except BarnabasError as error:
            raise ClusterFailed(f"broker {broker_id} did not start: {error}") from error
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        context = copy_context()
        context.run(member.lines.claim)
        life = _live(member.broker, lambda: ready.set_result(None))
        member.life = loop.create_task(life, name=f"broker {broker_id}", context=context)
        # An error is in the log, and in what `start_broker` and `stop` raise: asyncio need not report it as well.
        member.life.add_done_callback(lambda life: life.cancelled() or life.exception())
        await asyncio.wait([member.life, ready], return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            raise ClusterFailed(
                f"broker {broker_id} did not start: {self._error_of(member)}\n{member.lines.text(_SHOWN_LINES_MAX)}"
            )
        member.port = member.broker.ports[LISTENER]

    @staticmethod
    def _error_of(member: Member) -> str:
        """Why its run has ended; empty if nothing failed."""
        assert member.life is not None
        if member.life.cancelled():
            return "its task was cancelled"
        error = member.life.exception()
        errors = leaves(error) if isinstance(error, BaseExceptionGroup) else [error] if error is not None else []
        return "; ".join(f"{type(each).__name__}: {each}" for each in errors)

    async def kill(self, broker_id: int) -> None:
        """As by kill -9."""
        await self._end([broker_id], lambda broker: broker.die())

    async def terminate(self, broker_id: int) -> None:
        await self._end([broker_id], lambda broker: broker.stop())

    async def _end(self, broker_ids: list[int], how: Callable[[Broker], None]) -> None:
        """:raises ClusterFailed: for an error in ending; one that ended a broker before is in its log."""
        lives = []
        for member in (self.members[each] for each in broker_ids):
            if member.running and member.broker is not None and member.life is not None:
                how(member.broker)
                lives.append(member)
        if lives:
            await asyncio.wait([member.life for member in lives if member.life is not None])
        for member in lives:
            assert member.broker is not None
            if self._error_of(member) and member.broker.health.fatal is None:
                raise ClusterFailed(f"broker {member.id} did not stop as it should: {self._error_of(member)}")

    async def _stop_brokers(self) -> None:
        is_ready = [each for each in self.broker_ids if self.members[each].port]
        if self._memory is not None:
            await self._end(is_ready, lambda broker: broker.die(closes_session=True))
        await self._end(list(self.broker_ids), lambda broker: broker.stop())

    def running(self, broker_id: int) -> Broker:
        member = self.members[broker_id]
        if not member.running or member.broker is None:
            raise ClusterFailed(f"broker {broker_id} is down: start_broker({broker_id}) starts it")
        return member.broker

    def control(self, broker_id: int, command: dict[str, Any]) -> object:
        broker = self.running(broker_id)
        assert broker.control is not None
        return broker.control.obey(command)

    def properties(self, broker_id: int) -> dict[str, str]:
        options = self.options
        min_isr = int(options.config.get("min.insync.replicas", "2" if options.brokers >= 3 else "1"))
        return {
            **suiting_settings(options.brokers, min_insync_replicas=min_isr),
            **DEFAULTS,
            **(SHORT_SESSIONS if options.short_sessions else {}),
            "broker.id": str(broker_id),
            "listeners": f"{LISTENER}://{HOST}:{self.members[broker_id].port}",
            "zookeeper.connect": self.zookeeper.connect_string,
            "log.dirs": str(self.folder / f"broker-{broker_id}"),
            "barnabas.metrics.port": "-1",
            **options.config,
            **options.broker_config.get(broker_id, {}),
        }

    # -- data -------------------------------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        folder = self.options.data if self._memory is None else self._memory.path
        if folder is None:
            raise ClusterFailed("the broker was not started")
        return folder

    def log_dirs(self, broker_id: int) -> list[Path]:
        return [Path(each.strip()) for each in self.properties(broker_id)["log.dirs"].split(",")]

    def take_snapshot(self) -> Snapshot:
        """All brokers and ZooKeeper stand still meanwhile: their loop works here, and their threads wait at the gate."""
        for broker_id in self.broker_ids:
            self.running(broker_id)
        parent = self.folder / FOLDER
        parent.mkdir(mode=0o700, exist_ok=True)
        snapshot = Snapshot(parent / str(len(os.listdir(parent))), places(self))  # noqa: PTH208
        snapshot.folder.mkdir(mode=0o700)
        with self._gate:
            copy_out(snapshot.places, snapshot.folder)
        return snapshot

    async def restore(self, snapshot: Snapshot) -> None:
        if self.folder not in snapshot.folder.parents:
            raise ClusterFailed("this snapshot is of another cluster")
        await self._end(list(self.broker_ids), lambda broker: broker.die())
        port = self.zookeeper.port or 0
        await self._stop_zookeeper()
        put_back(snapshot.folder, snapshot.places)
        await self._start_zookeeper(port)
        service = self.zookeeper.service
        for session_id in list(service.machine.sessions.by_id):
            service.expire(session_id)  # of the brokers of then
        await self._start_brokers()
