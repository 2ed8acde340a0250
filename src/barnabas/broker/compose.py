"""One broker: the composition root, the only module that knows all parts.

`Broker.run` is its life: bind the ports, find the cluster, open the logs, register, serve, and, after `stop`, hand leadership
over, flush, and mark the shutdown as clean. Every task is a child of the broker's task group; a task that fails ends the
broker, before the broker can write wrong data.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from barnabas.base.chance import random_uuid
from barnabas.base.clock import Clock
from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.dynamic import DynamicConfig
from barnabas.base.config.log_config import LogConfig
from barnabas.base.config.usage import broker_notices, volatile_log_dirs
from barnabas.base.errors import BrokenInvariant
from barnabas.base.ids import TopicPartition, format_uuid
from barnabas.base.metrics.registry import Registry
from barnabas.base.words import SHARE_VERSION
from barnabas.broker import features
from barnabas.broker.api.produce import ProduceApi
from barnabas.broker.parts import coordinators, gauges
from barnabas.broker.parts.controller import make_controller
from barnabas.broker.parts.entity_settings import EntitySettings
from barnabas.broker.parts.feature import Host, Plugin
from barnabas.broker.parts.groups import GroupParts
from barnabas.broker.parts.handlers import build_handlers
from barnabas.broker.parts.health import Health, Phase
from barnabas.broker.parts.identity import find_broker_id
from barnabas.broker.parts.listening import ListeningParts
from barnabas.broker.parts.membership import MembershipParts
from barnabas.broker.parts.replication import ReplicationParts
from barnabas.broker.parts.security import SecurityParts
from barnabas.broker.parts.serving import ServingParts
from barnabas.broker.parts.share import ShareParts
from barnabas.broker.parts.share_state import ShareStateParts
from barnabas.broker.parts.starting import StoppedEarly, unless_stopped
from barnabas.broker.parts.storage import StorageParts
from barnabas.broker.parts.transactions import TransactionParts
from barnabas.broker.replication.fetch_session_cache import FetchSessionCache
from barnabas.broker.runtime.faults import Faults
from barnabas.broker.runtime.threads import LoopThreads, ThreadPool
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.coordinator_log import leadership_listener
from barnabas.broker.server.fault_injection import ControlSocket, FaultControl, wrap_handlers
from barnabas.broker.server.metrics_http import MetricsServer, add_gc_gauges, watch_loop_lag
from barnabas.broker.server.platform import Platform
from barnabas.broker.server.settings import (
    serves_streams_groups,
    session_config,
)
from barnabas.broker.server.zookeeper_gate import ZooKeeperGate
from barnabas.broker.zookeeper_client.config_store import ConfigStore
from barnabas.broker.zookeeper_client.deleted_topics import DeletedTopics
from barnabas.broker.zookeeper_client.log_dir_failure import report_log_dir_failure
from barnabas.broker.zookeeper_client.metadata_cache import MetadataChange
from barnabas.broker.zookeeper_client.open_znodes import close_what_is_open
from barnabas.broker.zookeeper_client.registration import (
    create_or_get_cluster_id,
    create_top_level_paths,
)
from barnabas.broker.zookeeper_client.session import ZooKeeperSession

log = logging.getLogger(__name__)
T = TypeVar("T")
P = TypeVar("P", bound=Plugin)

#: `min.incremental.fetch.session.eviction.ms`, which is fixed in Kafka, too.
FETCH_SESSION_EVICTION_MS = 120_000


class Broker:
    """Owner: the event loop that runs it."""

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        faults: Faults | None = None,
        control_path: str | None = None,
        platform: Platform | None = None,
    ) -> None:
        """`faults`: the faults of a test; without it the broker has no fault points. `control_path`: a Unix socket through
        which another process asks for them. `platform`: the machine; this one by default.
        """
        self.dynamic = DynamicConfig(properties)
        self._control_path = control_path
        self._faults = faults
        self._platform = platform or Platform()
        #: Set when the broker serves, where there are fault points.
        self.control: FaultControl | None = None
        self._clock: Clock = self._platform.clock
        self._stop = asyncio.Event()
        self._fatal: BaseException | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()
        self.registry = Registry()
        self.health = Health(self._clock, self.registry)
        self.metrics_server = MetricsServer(
            self.registry,
            {b"/health": self.health.live, b"/ready": self.health.ready, b"/in-sync": self.health.in_sync},
        )
        self._are_logs_open = False
        self.plugins: list[Plugin] = []
        #: Set when the broker serves: listener name -> port.
        self.ports: dict[str, int] = {}

    @property
    def config(self) -> BrokerConfig:
        return self.dynamic.broker

    def plugin(self, kind: type[P]) -> P:
        """The plugin of a feature that this broker has."""
        return next(plugin for plugin in self.plugins if isinstance(plugin, kind))

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self, on_ready: Callable[["Broker"], None] = lambda broker: None) -> None:
        """Run until `stop` is called. Raises the error that ended the broker, if any."""
        loop = asyncio.get_running_loop()
        for line in [*broker_notices(self.dynamic.static), *volatile_log_dirs(self.config.log_dirs)]:
            log.warning("%s", line)
        pool = ThreadPool(self.config.background_threads, name="file-work")
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._loop, self._pool, self._threads = loop, pool, LoopThreads(loop, pool)
                try:
                    await self._start()
                except StoppedEarly:
                    await self._give_up_start()
                else:
                    self.health.enter(Phase.RUNNING)
                    on_ready(self)
                    await self._stop.wait()
                    await self._shut_down()
        finally:
            pool.shutdown(wait=True)
        if self._fatal is not None:
            raise self._fatal

    def stop(self) -> None:
        """Begin a clean stop. A second call does no harm."""
        self._stop.set()

    @property
    def _is_dead(self) -> bool:
        return self._faults is not None and self._faults.is_dead

    def die(self, *, closes_session: bool = False) -> None:
        """End like a process that is killed, for tests that run brokers in their own process: connections break now, nothing
        more reaches the disk, ZooKeeper keeps the session until it expires. The broker still closes its files and threads.
        `closes_session`: no other broker is left that the session could mislead, and closing it is quicker.
        """
        assert self._faults is not None, "only a broker with fault points can end so"
        self._faults.is_dead = True
        if not closes_session:
            self.session.abandon()
        self.server.stop_accepting()
        self.server.close_all()
        self.broker_connections.close()
        self._stop.set()

    def fail(self, error: BaseException) -> None:
        """Stop because of an error that cannot be worked around, and log it."""
        if self._fatal is None:
            log.critical(
                "[broker] stopping because of %s, restart it after solving this: %s", type(error).__name__, error
            )
            self._fatal = self.health.fatal = error
        self._stop.set()

    def callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The exception handler of a loop that is the broker's: timers and connections have no parent task for their errors."""
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, BrokenInvariant):
            self.fail(error)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        assert self._tasks is not None
        task = self._tasks.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _start(self) -> None:
        config = self.config
        self._bind_listeners()
        if config.barnabas_metrics_port >= 0:
            await self.metrics_server.start(config.barnabas_metrics_host, config.barnabas_metrics_port)
        self.session = ZooKeeperSession(session_config(config), self._platform.zookeeper)
        self.health.watch(session=self.session)
        self.pipeline.zookeeper = ZooKeeperGate(
            self.session, self._loop, self._clock, on_closed=self.pipeline.close, refuse=self.pipeline.refuse
        )
        await self._unless_stopped(self._find_cluster())
        self.health.enter(Phase.RECOVERY)
        self.settings = EntitySettings(
            ConfigStore(self.session, self._clock),
            self.dynamic,
            self.broker_id,
            quotas=self.quotas,
            security=self.security,
        )
        await self._unless_stopped(self.security.start(self.session))
        await self._open_logs()
        self._assemble()
        await self._unless_stopped(self._count_internal_topics())
        await self._serve()

    async def _find_cluster(self) -> None:
        await self.session.start()
        await self.session.outlive(self._look_around)

    async def _look_around(self) -> None:
        await create_top_level_paths(self.session)
        if self.config.zookeeper_set_acl:
            connect = self.config.zookeeper_connect
            await close_what_is_open(self.session, connect=connect, has_chroot="/" in connect.rstrip("/"))
        self.cluster_id = await create_or_get_cluster_id(self.session, lambda: format_uuid(random_uuid()))
        self.broker_id = await find_broker_id(self.config, self.session, self._platform.disk)

    async def _count_internal_topics(self) -> None:
        topics = [part.coordinator.topic for part in (self.groups, self.transactions, self.share_state)]
        for plugin in self.plugins:
            topics += plugin.internal_topics
        await asyncio.gather(*(each.look() for each in topics))

    async def _unless_stopped(self, work: Coroutine[Any, Any, object]) -> None:
        assert self._tasks is not None
        await unless_stopped(self._stop, self._tasks, work)

    def _bind_listeners(self) -> None:
        self.serving = ServingParts(
            self.config,
            self._platform,
            self.registry,
            self._loop,
            self._pool,
            on_bug=self.fail,
            on_thread=self._on_thread,
            spawn=self._spawn,
        )
        self.pipeline, self.server, self.quotas = self.serving.pipeline, self.serving.server, self.serving.quotas
        self.security = SecurityParts(self.dynamic, self._clock, now_s=self._loop.time, spawn=self._spawn)
        self.listening = ListeningParts(self.dynamic, self.server, self.security)
        self.ports = self.listening.ports
        self.security.watch_certificates(self.server, self.registry)
        self.dynamic.add_check(self.listening.check)

    async def _open_logs(self) -> None:
        storage = StorageParts(
            self.dynamic, self._platform, self._loop, self._threads, on_dir_failed=self._log_dir_failed
        )
        await storage.open(
            self.broker_id,
            self.cluster_id,
            load_settings=lambda: self.session.outlive(self.settings.start),
            pool=self._pool,
            registry=self.registry,
        )
        self.logs, self.cleaner = storage.logs, storage.cleaner
        self.dynamic.subscribe(storage.settings_changed)
        self._are_logs_open = True

    def _log_dir_failed(self, directory: str, gone: list[TopicPartition]) -> None:
        self.replication.failed_dirs.failed(directory, gone)

    # -- the parts ----------------------------------------------------------------------------------------------------

    def _assemble(self) -> None:
        """Build the parts in the order of their dependencies: the cluster, the replicas, the coordinators, the handlers."""
        config = self.config
        self._assemble_membership()
        self._assemble_replication()
        self.controller = make_controller(
            self.broker_id,
            self.dynamic,
            self.session,
            self.registrar,
            self.metadata,
            self.broker_connections,
            self._clock,
        )
        self.context = self._make_context(config)
        self._assemble_coordinators()
        self.produce = ProduceApi(self.context, self.transactions.verifier)
        self._build_features(config)
        self.dynamic.subscribe_topics(self._topic_settings_changed)
        self.dynamic.subscribe(self._settings_changed)
        self._settings_changed(config, config)  # these parts were built before ZooKeeper's settings were read
        self.pipeline.handlers.update(
            build_handlers(
                self.context,
                self.features,
                control_requests=self.replication.control,
                settings=self.settings,
                security=self.security,
                coordinators=self.coordinators,
                produce=self.produce,
                plugins=self.plugins,
            )
        )
        self.health.watch(logs=self.logs, replicas=self.replicas, cluster=(self.broker_id, self.metadata))
        self.health.watch(lost_leadership=self.replication.lost_leadership)
        self._add_gauges()

    def _build_features(self, config: BrokerConfig) -> None:
        host = Host(
            context=self.context,
            platform=self._platform,
            session=self.session,
            connections=self.broker_connections,
            controller_client=self.controller_client,
            cluster_features=self.features,
            settings=self.settings,
            security=self.security,
            replication=self.replication,
            groups=self.groups.coordinator,
            transactions=self.transactions.coordinator,
            share_persister=self.share_state.persister,
            produce=self.produce,
            pipeline=self.pipeline,
            server=self.server,
            metrics_server=self.metrics_server,
            timers=self._loop,
            on_thread=self._on_thread,
            spawn=self._spawn,
        )
        for build in features.wanted(config):
            plugin = build(host)
            self.plugins.append(plugin)
            self.replication.control.subscribe(plugin.leadership_changed)

    def _add_gauges(self) -> None:
        gauges.add_controller_gauges(self.registry, self.controller)
        gauges.add_replication_gauges(self.registry, self.replicas, self.replication.fetchers)
        gauges.add_log_gauges(self.registry, self.logs, self._platform.disk)
        gauges.add_zookeeper_gauges(self.registry, self.session)
        gauges.add_offset_gauges(self.registry, lambda: self.groups.coordinator.machines)

    def _assemble_membership(self) -> None:
        self.membership = MembershipParts(
            self.broker_id,
            self.dynamic,
            self.session,
            self._platform,
            self.logs,
            ports=self.ports,
            open_connection=self.security.inter_broker.open,
            faults=self._faults,
            stop=self._stop,
            on_thread=self._on_thread,
            spawn=self._spawn,
        )
        self.dynamic.subscribe(self.membership.settings_changed)
        self.metadata, self.broker_connections = self.membership.metadata, self.membership.connections
        self.features, self.registrar = self.membership.features, self.membership.registrar
        self.controller_client = self.membership.controller_client
        self.metadata.subscribe(self._metadata_changed)

    def _assemble_replication(self) -> None:
        assert self._tasks is not None

        def report_failed_dir(directory: str) -> None:
            self._spawn(report_log_dir_failure(self.session, self.broker_id), f"report failure of {directory}")

        self.replication = ReplicationParts(
            self.broker_id,
            self.dynamic,
            self.logs,
            self.metadata,
            self.broker_connections,
            self.controller_client,
            self.membership.readiness,
            self.session,
            broker_epoch=self.membership.epoch,
            load_settings=self.settings.load_topics,
            report_failed_dir=report_failed_dir,
            fail=self.fail,
            clock=self._clock,
            registry=self.registry,
            loop=self._loop,
            tasks=self._tasks,
            on_thread=self._on_thread,
            spawn=self._spawn,
        )
        self.replicas = self.replication.replicas
        self.dynamic.subscribe(self.replication.settings_changed)
        DeletedTopics(
            self.session,
            self.metadata,
            epochs=lambda: (self.replication.control.controller_epoch, self.membership.epoch()),
            spawn=self._spawn,
        )

    def _make_context(self, config: BrokerConfig) -> BrokerContext:
        return BrokerContext(
            broker_id=self.broker_id,
            cluster_id=self.cluster_id,
            dynamic=self.dynamic,
            clock=self._clock,
            registry=self.registry,
            metadata=self.metadata,
            logs=self.logs,
            replicas=self.replicas,
            fetch_sessions=FetchSessionCache(
                slots_max=config.max_incremental_fetch_session_cache_slots,
                eviction_ms=FETCH_SESSION_EVICTION_MS,
                random_id=lambda: self._platform.random.randrange(1, 2**31),
            ),
            moves=self.replication.moves,
            controller=self.controller,
            broker_epoch=self.membership.epoch,
            auto_create=self.controller_client.auto_create,
            authorizer=self.security.authorizer,
            quotas=self.quotas.clients,
            leader_throttle=self.replication.throttles.leader,
            share_groups_on=lambda: self.features.level(SHARE_VERSION) >= 1,
            streams_groups_on=lambda: serves_streams_groups(self.features, self.dynamic.broker),
        )

    def _assemble_coordinators(self) -> None:
        self.coordinators = parts = coordinators.assemble(
            self.context,
            self.membership,
            self.session,
            self._loop,
            self._pool,
            chance=self._platform.random,
            load_settings=self.settings.load_topics,
            on_thread=self._on_thread,
            spawn=self._spawn,
            on_bug=self.fail,
        )
        self.groups: GroupParts = parts.groups
        self.transactions: TransactionParts = parts.transactions
        self.share_state: ShareStateParts = parts.share_state
        self.share: ShareParts = parts.share
        self.server.closed_listeners.append(self.share.partitions.sessions.owner_lost)
        for listener in (
            leadership_listener(self.groups.coordinator),
            leadership_listener(self.transactions.coordinator),
            leadership_listener(self.share_state.coordinator),
            self.share.partitions.leadership_changed,
            self.replication.moves.leadership_changed,
        ):
            self.replication.control.subscribe(listener)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._pool, work)

    # -- settings -----------------------------------------------------------------------------------------------------

    def _settings_changed(self, before: BrokerConfig, after: BrokerConfig) -> None:
        """Update parts that copy a setting. The others read `self.config` when they need it, or subscribe themselves."""
        self.serving.settings_changed(before, after)
        self._pool.resize(after.background_threads)
        for plugin in self.plugins:
            plugin.settings_changed(before, after)

    def _topic_settings_changed(self, topic: str, config: LogConfig) -> None:
        """Update parts after a change of topic settings. `topic` is empty if those of every topic may have changed."""
        self.logs.topic_settings_changed(topic, config)
        self.controller.topic_settings_changed(topic, config)
        self.replicas.topic_settings_changed(topic)
        for plugin in self.plugins:
            plugin.topic_settings_changed(topic, config)

    # -- serving and stopping -----------------------------------------------------------------------------------------

    async def _open_fault_points(self, faults: Faults) -> None:
        wrap_handlers(self.pipeline.handlers.values(), faults, self._spawn)
        self.control = FaultControl(
            faults,
            connections=lambda: self.server.connections,
            fail_log_dir=lambda directory: self.logs.fail_dir(directory, OSError(errno.EIO, "failed by a test")),
            on_clock=self.replicas.tick,
        )
        if self._control_path is not None:
            self._control_socket = ControlSocket(self.control)
            await self._control_socket.start(self._control_path)

    async def _serve(self) -> None:
        if self._faults is not None:
            await self._open_fault_points(self._faults)
        # Clients wait until the epoch of this registration is known: a controller that takes the former process for alive would
        # make this broker leader in an old epoch, without the records that a power cut took.
        await self._unless_stopped(self.session.outlive(self.registrar.register))
        # Clients remember a broker's features for as long as they are connected: read them first.
        self.features.on_change = lambda: self._spawn(self._refresh_features(), "cluster features")
        self.features.on_returned = self.broker_connections.brokers_returned
        await self.features.refresh()
        self.server.start_accepting()
        self.listening.is_serving = True
        self._spawn(self.settings.store.run(), "config changes")
        self.security.serve(lambda: self.controller.is_active)
        self.replication.start()
        for plugin in self.plugins:
            plugin.start()
        self._spawn(watch_loop_lag(self.registry), "loop lag")
        add_gc_gauges(self.registry)
        await self.controller.start()
        self._spawn(self._watch_controller(), "controller failure")
        await self.membership.readiness.wait(self.session)
        self.pipeline.release()

    def _metadata_changed(self, change: MetadataChange) -> None:
        if change.brokers_changed:
            self.broker_connections.brokers_changed()

    async def _refresh_features(self) -> None:
        await self.features.refresh()
        for plugin in self.plugins:
            plugin.cluster_features_changed()

    async def _watch_controller(self) -> None:
        """End the broker if the controller fails, or if the broker cannot register again."""
        assert self.controller.failed is not None
        try:
            await self.controller.failed
        except Exception as error:
            self.fail(error)

    async def _give_up_start(self) -> None:
        """Stop before this broker had joined the cluster: no client was served, and there is nothing to hand over."""
        log.info("[broker] stopping while starting")
        self.server.stop_accepting()
        self.server.close_all()
        self.metrics_server.stop()
        if self._are_logs_open:
            await self._close_logs()
        await self._end()

    async def _shut_down(self) -> None:
        log.info("stopping")
        self.health.enter(Phase.PENDING_CONTROLLED_SHUTDOWN)
        self.replication.fetchers.take_no_more()
        if self.config.controlled_shutdown_enable and self._fatal is None and not self._is_dead:
            if self.session.is_connected:
                await self.controller_client.hand_over()
            else:
                log.warning(
                    "[broker] ZooKeeper at %s does not answer, stopping without a hand-over: its partitions have no leader "
                    "until ZooKeeper is back",
                    self.session.hosts,
                )
        self.health.enter(Phase.SHUTTING_DOWN)
        self.server.stop_accepting()
        self.replication.fetchers.stop()
        for plugin in self.plugins:
            plugin.stop()
        self.coordinators.close()
        await self.controller.stop()
        self.server.close_all()
        self.metrics_server.stop()
        self.broker_connections.close()
        await self._close_logs(self.registrar.epoch)
        await self._end()

    async def release(self) -> None:
        """After `run` has failed halfway, in a process that goes on: ports, files and threads are free again."""
        made = vars(self)
        if "session" in made:
            self.session.abandon()
        if "server" in made:
            self.server.stop_accepting()
            self.server.close_all()
        self.metrics_server.stop()
        if "broker_connections" in made:
            self.broker_connections.close()
        if self._are_logs_open:
            self.logs.abandon()
        if "session" in made:
            await self.session.stop()

    async def _close_logs(self, broker_epoch: int = -1) -> None:
        self.logs.stop()
        await self.cleaner.stop()
        await self._threads.drain()
        for partition in self.replicas:
            partition.log = None  # parts that still run must not write while the logs are closed
        if self._is_dead:
            self.logs.abandon()
        else:
            await self._loop.run_in_executor(self._pool, self.logs.shutdown, broker_epoch)

    async def _end(self) -> None:
        await self.session.stop()
        for plugin in self.plugins:
            await plugin.close()
        for task in list(self._running):
            task.cancel()
        log.info("stopped")
