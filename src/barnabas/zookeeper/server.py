"""The embedded ZooKeeper as a whole: directory, machine, commit, listener, and periodic tasks.

Owner: the event loop that `start` runs on. `EmbeddedZooKeeper` is the class to embed.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from barnabas.base.clock import Clock, SystemClock
from barnabas.base.host.disk import REAL_DISK, Disk
from barnabas.base.hosts import is_loopback
from barnabas.base.tls.contexts import TlsSettings, server_context
from barnabas.zookeeper import snapshot
from barnabas.zookeeper.commit import GroupCommit, Job, LogThread
from barnabas.zookeeper.config import ZooKeeperConfig
from barnabas.zookeeper.fourletter import WORDS_FOR_STRANGERS
from barnabas.zookeeper.listener import Connection
from barnabas.zookeeper.machine import Machine
from barnabas.zookeeper.service import Service
from barnabas.zookeeper.store import Store

_log = logging.getLogger(__name__)

#: After a delay longer than this, clients may have sent heartbeats that the server has not read yet.
_HELD_UP_S = 0.1
#: Time for reading the requests that arrived during the delay.
_CATCH_UP_S = 0.05


class EmbeddedZooKeeper:
    """A standalone ZooKeeper server in this process.

    `await start()` returns when clients can connect to `host`:`port` (the real port, if 0 was given). `await stop()` closes all
    connections, keeps sessions alive for the next start, and makes everything durable. If the disk fails, `failed` gets an
    exception: nothing is acknowledged from then on, and the owner should stop the server.
    """

    def __init__(
        self,
        data_dir: str | Path,
        host: str = "127.0.0.1",
        port: int | None = 0,
        *,
        secure_port: int | None = None,
        config: ZooKeeperConfig | None = None,
        clock: Clock | None = None,
        make_log_thread: Callable[[Callable[[Job], None]], LogThread] = LogThread,
        disk: Disk = REAL_DISK,
    ) -> None:
        self.host = host
        #: None if only clients with TLS can connect.
        self.port = port
        self.secure_port = secure_port
        self.config = config or ZooKeeperConfig()
        if self.config.four_letter_whitelist is None:
            words = "*" if is_loopback(host) else WORDS_FOR_STRANGERS
            self.config = replace(self.config, four_letter_whitelist=words)
        self._clock: Clock = clock or SystemClock()
        self._make_log_thread = make_log_thread
        self._store = Store(
            Path(data_dir),
            tick_ms=self.config.tick_time_ms,
            snapshots_kept=self.config.snap_retain_count,
            disk=disk,
        )
        self._service: Service | None = None
        self._servers: list[asyncio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._snapshot_task: asyncio.Task[None] | None = None
        self._txns_since_snapshot = 0
        self._stopping = False
        #: Gets an exception when the server cannot continue.
        self.failed: asyncio.Future[None] | None = None

    @property
    def connect_string(self) -> str:
        return f"{self.host}:{self.port if self.port is not None else self.secure_port}"

    @property
    def service(self) -> Service:
        assert self._service is not None, "not started"
        return self._service

    async def start(self) -> None:
        """Recover and listen. Raises `StoreFault` or OSError, with nothing left running."""
        loop = asyncio.get_running_loop()
        self.failed = loop.create_future()
        # Retrieve the exception, because the caller need not wait for it.
        self.failed.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._store.open()
        try:
            machine = self._store.recover()
            machine.sessions.restart_timers(now_ms=int(self._clock.monotonic_s() * 1000))
            self._txns_since_snapshot = self._store.replayed
            service = self._service = self._compose(loop, machine)
            if self.port is not None:
                self.port = service.port = await self._listen(loop, service, self.port, tls=None)
            if self.secure_port is not None:
                tls = server_context(self.config.tls or TlsSettings())
                self.secure_port = await self._listen(loop, service, self.secure_port, tls=tls)
                service.port = service.port or self.secure_port
        except BaseException:
            self._stop_listening()
            self._store.close()
            raise
        service.commit.start(machine.last_zxid)
        self._tasks = [
            loop.create_task(self._tick(service), name="zookeeper-tick"),
            loop.create_task(self._look_after_containers(service), name="zookeeper-containers"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)

    async def _listen(
        self, loop: asyncio.AbstractEventLoop, service: Service, port: int, *, tls: ssl.SSLContext | None
    ) -> int:
        server = await loop.create_server(
            lambda: Connection(service),
            self.host,
            port,
            backlog=1024,
            reuse_address=True,
            ssl=tls,
            ssl_handshake_timeout=self.config.sessionless_timeout_ms / 1000 if tls is not None else None,
        )
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def _stop_listening(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    def _compose(self, loop: asyncio.AbstractEventLoop, machine: Machine) -> Service:
        commit = GroupCommit(
            self._store.writer(sync=self.config.force_sync),
            loop=loop,
            on_released=lambda: service.released(),
            on_failure=self._on_failure,
            make_thread=self._make_log_thread,
        )
        service = Service(
            self.config,
            self._clock,
            machine,
            commit,
            self._store,
            secret=self._store.secret(),
            call_soon=loop.call_soon,
            on_txn=self._on_txn,
            on_bug=self._on_failure,
        )
        return service

    def _on_failure(self, error: Exception) -> None:
        """Stop serving after a disk failure or a bug, because responses might be wrong."""
        _log.critical(
            "[zookeeper] stopped serving; check the disk and restart it: %s",
            error,
            exc_info=None if isinstance(error, OSError) else error,
        )
        if self.failed is not None and not self.failed.done():
            self.failed.set_exception(error)
        self._stop_listening()
        for connection in list(self.service.connections):
            connection.abort()

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        """Stop if a periodic task fails: without session expiry, dead brokers would stay registered."""
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._on_failure(error)

    # ---- periodic tasks -----------------------------------------------------------------------------------------------

    async def _tick(self, service: Service) -> None:
        """Check sessions when the next one may expire, and at least twice per tick."""
        interval_s = self.config.tick_time_ms / 2000
        while True:
            wait_s = min(interval_s, service.until_next_expiry_s())
            due_s = self._clock.monotonic_s() + wait_s
            await asyncio.sleep(wait_s)
            if self._clock.monotonic_s() - due_s > _HELD_UP_S:
                # The process was stopped, or the machine was busy: first read what clients sent in the meantime.
                await asyncio.sleep(_CATCH_UP_S)
            service.expire_sessions()
            service.drop_idle()

    async def _look_after_containers(self, service: Service) -> None:
        while True:
            await asyncio.sleep(self.config.container_check_interval_ms / 1000)
            service.delete_containers()

    # ---- snapshots ----------------------------------------------------------------------------------------------------

    def _on_txn(self) -> None:
        self._txns_since_snapshot += 1
        if self._txns_since_snapshot >= self.config.snap_count and self._snapshot_task is None:
            self._txns_since_snapshot = 0
            loop = asyncio.get_running_loop()
            self._snapshot_task = loop.create_task(self.take_snapshot(), name="zookeeper-snapshot")
            self._snapshot_task.add_done_callback(self._snapshot_done)

    def _snapshot_done(self, task: asyncio.Task[None]) -> None:
        self._snapshot_task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            # The log is complete, so nothing is lost; the next snapshot may succeed.
            _log.error("[zookeeper] cannot take a snapshot, will retry later; check the disk: %s", error)

    async def take_snapshot(self) -> None:
        """Write a snapshot of the machine in slices, and serve clients between the slices."""
        service = self.service
        machine = service.machine
        loop = asyncio.get_running_loop()
        service.commit.roll()
        writer = self._store.begin_snapshot(machine.last_zxid)
        try:
            for piece in snapshot.slices(machine):
                if self._stopping:
                    writer.abandon()
                    return
                await loop.run_in_executor(None, writer.write, piece)
            # A fuzzy snapshot may include effects that are not in the log yet. They must be durable before the snapshot is
            # valid.
            await service.commit.synced(machine.last_zxid)
            path = await loop.run_in_executor(None, writer.finish)
        except BaseException:
            writer.abandon()
            raise
        await loop.run_in_executor(None, self._store.purge)
        _log.info("took %s", path)

    async def stop(self) -> None:
        """Close connections, flush, and release the directory. Sessions stay alive for the next start."""
        service, self._service = self._service, None
        if service is None:
            return
        self._stopping = True
        self._stop_listening()
        for task in self._tasks:
            task.cancel()
        # A running snapshot gives up at its next slice.
        unfinished = [*self._tasks, *([self._snapshot_task] if self._snapshot_task else [])]
        await asyncio.gather(*unfinished, return_exceptions=True)
        for connection in list(service.connections):
            connection.abort()
        await service.commit.stop()
        self._store.close()
