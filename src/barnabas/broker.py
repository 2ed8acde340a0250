"""One broker: the composition root, the only module that knows everyone.

`Broker.run` is its life: take the ports, find the cluster, open the logs, register, serve, and, when told to stop, hand
leadership over, flush, mark the shutdown as clean. Every task has the broker's task group as its parent; one that fails
ends the broker, before it can write nonsense.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from barnabas.api import (
    acls,
    cluster,
    configs,
    control,
    fetch,
    find_coordinator,
    log_dirs,
    metadata,
    offsets,
    produce,
    quotas,
    registry,
    scram,
    topics,
)
from barnabas.api.find_coordinator import KeyType
from barnabas.client.connection import Connection
from barnabas.controller.driver import Controller, ControllerConfig
from barnabas.controller.topics import TopicDefaults
from barnabas.coordination import paths
from barnabas.coordination.config_store import ConfigStore
from barnabas.coordination.features import ANNOUNCED, GROUP_VERSION, TRANSACTION_VERSION, ClusterFeatures
from barnabas.coordination.metadata_cache import MetadataCache, MetadataChange
from barnabas.coordination.registration import (
    BrokerRegistrar,
    create_or_get_cluster_id,
    create_top_level_paths,
    generate_broker_id,
)
from barnabas.coordination.session import SessionExpired, ZooKeeperSession
from barnabas.coordination.znodes import BrokerRegistration, Endpoint, encode_log_dir_event
from barnabas.core.chance import random_uuid
from barnabas.core.clock import Clock
from barnabas.core.config.broker import BrokerConfig
from barnabas.core.config.dynamic import DynamicConfig
from barnabas.core.config.log_config import LogConfig
from barnabas.core.config.topic import validate_topic_config as check_topic_settings
from barnabas.core.config.usage import Notices
from barnabas.core.errors import BarnabasError, BrokenInvariant, ConfigError
from barnabas.core.ids import BrokerEpoch, BrokerId, TopicPartition, format_uuid
from barnabas.core.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.metrics.registry import Registry
from barnabas.parts import groups as group_parts
from barnabas.parts import transactions as transaction_parts
from barnabas.parts.entity_settings import EntitySettings
from barnabas.parts.security import SecurityParts
from barnabas.protocol.compression import Codec
from barnabas.protocol.versions import api_named
from barnabas.replication.control_requests import ControlRequests
from barnabas.replication.fetch_session_cache import FetchSessionCache
from barnabas.replication.fetcher import FetcherManager
from barnabas.replication.isr_changes import IsrChanges
from barnabas.replication.leader_endpoint import RemoteLeader
from barnabas.replication.log_dir_moves import LogDirMoves
from barnabas.replication.machine import PartitionMachine
from barnabas.replication.manager import ReplicaManager
from barnabas.replication.partition import FetchParams, Partition
from barnabas.replication.read_replica import RACK_AWARE_SELECTOR, read_candidates, select_by_rack
from barnabas.replication.throttle import ReplicationThrottles
from barnabas.runtime import descriptors
from barnabas.runtime.faults import Faults
from barnabas.runtime.threads import LoopThreads, ThreadPool
from barnabas.security.acl import AclAuthorizer
from barnabas.security.acl_store import AclStore
from barnabas.security.setup import make_authorizer
from barnabas.server.audit import AuditLog
from barnabas.server.context import BrokerContext
from barnabas.server.controller_client import ControllerClient
from barnabas.server.coordinator_log import InternalTopicLog, leadership_listener
from barnabas.server.fault_injection import ControlSocket, FaultyDisk, wrap_handlers
from barnabas.server.links import BrokerLinks
from barnabas.server.listener import SocketServer
from barnabas.server.metrics_http import MetricsServer, add_gc_gauges, watch_loop_lag
from barnabas.server.pipeline import Pipeline
from barnabas.server.platform import Platform
from barnabas.server.quota_parts import QuotaParts
from barnabas.server.settings import (
    allows_consumer_protocol,
    buffer_bytes,
    connection_limits,
    connection_rate_limits,
    control_listener_name,
    controller_settings,
    fetcher_settings,
    session_config,
)
from barnabas.server.zookeeper_gate import ZooKeeperGate
from barnabas.storage import meta_properties, names
from barnabas.storage.cleaner.cleaner import Cleaner
from barnabas.storage.cleaner.gauges import add_gauges
from barnabas.storage.cleaner.settings import CleanerSettings
from barnabas.storage.environment import LogEnvironment
from barnabas.storage.file_handle import SegmentPool
from barnabas.storage.manager import LogManager, ManagerSettings

log = logging.getLogger(__name__)
T = TypeVar("T")

#: The pause before a failed directory is reported again, by the session that follows an expired one.
REPORT_RETRY_S = 1.0
#: API families that need nothing but the context.
FAMILIES = (fetch, metadata, offsets, log_dirs, topics, cluster)

#: How long a broker that starts waits to be told of topics that ZooKeeper has.
TOPICS_WAIT_S = 3.0
#: What tells clients of the cluster. A broker that has not heard of it yet would send them away from everything.
CLUSTER_APIS = tuple(
    api_named(name).key for name in ("Metadata", "DescribeCluster", "DescribeTopicPartitions", "FindCoordinator")
)
#: `min.incremental.fetch.session.eviction.ms`, which Kafka does not let anybody set either.
FETCH_SESSION_EVICTION_MS = 120_000


class StoppedEarly(Exception):
    """Told to stop while it waited for ZooKeeper."""


async def _outcome(work: Coroutine[Any, Any, object]) -> BaseException | None:
    """What it raised: an error must reach who waits for it, not end the task group under it."""
    try:
        await work
    except Exception as error:
        return error
    return None


class Broker:
    """Owner: the event loop that runs it."""

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        control_path: str | None = None,
        platform: Platform | None = None,
    ) -> None:
        """`control_path`: a Unix socket through which a test asks for faults; without it there are none.
        `platform`: the machine; this one where none is given.
        """
        self.dynamic = DynamicConfig(properties)
        self._control_path = control_path
        self._faults = Faults() if control_path is not None else None
        self._platform = platform or Platform()
        if self._faults is not None:
            self._platform.clock = self._faults.clock
            self._platform.disk = FaultyDisk(self._faults)
        self._clock: Clock = self._platform.clock
        self._stop = asyncio.Event()
        self._fatal: BaseException | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()
        self.registry = Registry()
        self.metrics_server = MetricsServer(self.registry)
        self._is_cluster_known = False
        self._are_logs_open = False
        #: Set when the broker serves: listener name -> port.
        self.ports: dict[str, int] = {}

    @property
    def config(self) -> BrokerConfig:
        return self.dynamic.broker

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self, on_ready: Callable[["Broker"], None] = lambda broker: None) -> None:
        """Until `stop` is called. Raises what ended it, if it was not that."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self.callback_failed)
        self._warn_about_settings()
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
                    on_ready(self)
                    await self._stop.wait()
                    await self._shut_down()
        finally:
            pool.shutdown(wait=True)
        if self._fatal is not None:
            raise self._fatal

    def stop(self) -> None:
        """Begin a clean stop. Twice does no harm."""
        self._stop.set()

    def fail(self, error: BaseException) -> None:
        """Something is broken that cannot be worked around: stop, and say why."""
        if self._fatal is None:
            log.critical("stopping because of %s: %s", type(error).__name__, error)
            self._fatal = error
        self._stop.set()

    def callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop's exception handler: timers and connections have no parent that would hear of a bug."""
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

    def _warn_about_settings(self) -> None:
        for line in Notices().of_broker(self.dynamic.static):
            log.warning("%s", line)
        for directory in self.config.log_dirs:
            if directory == "/tmp" or directory.startswith("/tmp/"):
                log.warning(
                    "log.dirs=%s is under /tmp: the system may delete it; choose a folder that stays", directory
                )

    async def _start(self) -> None:
        config = self.config
        self._bind_listeners()
        self.session = ZooKeeperSession(session_config(config), self._platform.zookeeper)
        self.pipeline.zookeeper = ZooKeeperGate(
            self.session, self._loop, self._clock, on_closed=self.pipeline.close, refuse=self.pipeline.refuse
        )
        await self._unless_stopped(self._find_cluster())
        self.settings = EntitySettings(
            ConfigStore(self.session, self._clock),
            self.dynamic,
            self.broker_id,
            quotas=self.quotas,
            security=self.security,
        )
        await self._open_authorizer()
        await self._open_logs()
        self._assemble()
        await self._serve()

    async def _find_cluster(self) -> None:
        await self.session.start()
        await create_top_level_paths(self.session)
        self.cluster_id = await create_or_get_cluster_id(self.session, lambda: format_uuid(random_uuid()))
        self.broker_id = await self._find_broker_id()

    async def _unless_stopped(self, work: Coroutine[Any, Any, object]) -> None:
        """Work of the start that may wait for ZooKeeper for long: who is told to stop meanwhile does."""
        assert self._tasks is not None
        stopping = self._tasks.create_task(self._stop.wait(), name="stop while starting")
        working = self._tasks.create_task(_outcome(work), name="find the cluster")
        await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not working.done():
            working.cancel()
            raise StoppedEarly
        error = working.result()
        if error is not None:
            raise error

    def _bind_listeners(self) -> None:
        config = self.config
        self.quotas = QuotaParts(config, self.registry, now_s=self._loop.time, spawn=self._spawn)
        self.pipeline = Pipeline(
            {},
            self.registry,
            now_s=self._loop.time,
            spawn=lambda work, *, name: self._spawn(work, name),
            on_bug=self.fail,
            request_bytes_max=config.socket_request_max_bytes,
            queued_requests_max=config.queued_max_requests,
            held_apis=CLUSTER_APIS,
            request_quota=self.quotas.requests,
            elements_max=config.barnabas_request_max_elements,
            on_thread=self._on_thread,
        )
        self.server = SocketServer(
            self._loop,
            self.pipeline,
            self._pool,
            self.registry,
            limits=connection_limits(config),
            rates=self.quotas.connections,
            spawn=self._spawn,
            backlog=config.socket_listen_backlog_size,
            send_buffer_bytes=buffer_bytes(config, "socket.send.buffer.bytes"),
            receive_buffer_bytes=buffer_bytes(config, "socket.receive.buffer.bytes"),
            listen=self._platform.listen,
            monotonic_s=self._clock.monotonic_s,
        )
        self.security = SecurityParts(self.dynamic, self._clock, now_s=self._loop.time, spawn=self._spawn)
        self.ports.update(self.security.bind(self.server))

    async def _find_broker_id(self) -> BrokerId:
        """`broker.id`, or that of the log directories, or a new one from ZooKeeper."""
        if self.config.broker_id >= 0:
            return BrokerId(self.config.broker_id)
        for directory in self.config.log_dirs:
            meta = meta_properties.read(f"{directory}/{names.META_PROPERTIES}", disk=self._platform.disk)
            if meta is not None and meta.broker_id is not None:
                return BrokerId(meta.broker_id)
        if not self.config.broker_id_generation_enable:
            raise ConfigError("broker.id is not set and broker.id.generation.enable is false: set one of them")
        return BrokerId(
            await generate_broker_id(self.session, reserved_broker_max_id=self.config.reserved_broker_max_id)
        )

    async def _open_authorizer(self) -> None:
        self.authorizer = make_authorizer(self.config)
        self.acl_store: AclStore | None = None
        if isinstance(self.authorizer, AclAuthorizer):
            self.acl_store = AclStore(self.session, self.authorizer, self._clock)
            await self.acl_store.start()
            self._spawn(self.acl_store.run(), "acl changes")
        await self.security.start(self.session)

    async def _open_logs(self) -> None:
        config = self.config
        env = LogEnvironment(
            disk=self._platform.disk,
            clock=self._clock,
            timers=self._loop,
            threads=self._threads,
            pool=SegmentPool(descriptors.open_segments_max()),
            check_framing=config.barnabas_record_framing_check,
            random=self._platform.random,
            make_pool=self._platform.make_pool,
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            max_transaction_timeout_ms=config.transaction_max_timeout_ms,
            transaction_verification=config.transaction_partition_verification_enable,
        )
        self.logs = LogManager(
            config.log_dirs,
            env=env,
            settings=ManagerSettings.of(config),
            config_of=self.dynamic.log_config,
            on_dir_failed=self._dir_failed,
        )
        self.logs.open_dirs(broker_id=self.broker_id, cluster_id=self.cluster_id)
        await self.settings.start()
        await self._loop.run_in_executor(self._pool, self.logs.load)
        self.logs.start()
        self.cleaner = Cleaner(
            self.logs, env, CleanerSettings.of(config), lambda: self._platform.make_cleaner_worker(self._loop, env)
        )
        self.cleaner.start()
        add_gauges(self.registry, self.cleaner)
        self._are_logs_open = True

    # -- the parts ----------------------------------------------------------------------------------------------------

    def _assemble(self) -> None:
        """In the order of who needs whom: the cluster, the replicas, the coordinators, the handlers."""
        config = self.config
        self._assemble_membership(config)
        self._assemble_replication(config)
        self.controller = self._make_controller(config)
        self.context = self._make_context(config)
        self._open_audit_log(config)
        self._assemble_coordinators()
        self.dynamic.subscribe_topics(self._topic_settings_changed)
        self.dynamic.subscribe(self._broker_settings_changed)
        self._change_connection_limits(self.config)  # the ports were taken before ZooKeeper was asked
        self._register_handlers()

    def _assemble_membership(self, config: BrokerConfig) -> None:
        """What this broker knows of the others, and how it reaches them."""
        self.metadata = MetadataCache()
        self.features = ClusterFeatures(self.session)
        self.metadata.subscribe(self._metadata_changed)
        self.links = BrokerLinks(
            self.broker_id, endpoint_of=self._inter_broker_endpoint, open_link=self.security.links.open
        )
        self.registrar = BrokerRegistrar(
            self.session,
            BrokerRegistration(
                id=self.broker_id, endpoints=self._advertised(), rack=config.broker_rack, features=ANNOUNCED
            ),
            clock=self._clock,
            wait_for_former_self_ms=config.zookeeper_session_timeout_ms * 2,
        )
        self.controller_client = ControllerClient(
            self.broker_id,
            self.links,
            self.metadata,
            config=lambda: self.config,
            broker_epoch=self._broker_epoch,
        )

    def _make_throttles(self, config: BrokerConfig) -> ReplicationThrottles:
        return ReplicationThrottles.of(
            self.broker_id,
            config,
            now_ms=lambda: int(self._clock.monotonic_s() * 1000),
            config_of=self.dynamic.log_config,
            registry=self.registry,
        )

    def _assemble_replication(self, config: BrokerConfig) -> None:
        self.throttles = self._make_throttles(config)
        self.isr_changes = IsrChanges(
            self.broker_id,
            broker_epoch=self._broker_epoch,
            send=self.controller_client.alter_partition,
            on_settled=lambda partition, settled: self.replicas.isr_settled(partition, settled),
            clock=self._clock,
        )
        self.replicas = ReplicaManager(
            self.broker_id,
            clock=self._clock,
            timers=self._loop,
            registry=self.registry,
            is_known=lambda tp: not self._is_cluster_known or self.metadata.partition(tp) is not None,
            submit_isr_change=self.isr_changes.submit,
            prefers_replica=self._preferred_replica,
            fetch_bytes_max=config.fetch_max_bytes,
            is_throttled=self.throttles.leader.is_throttled,
        )
        self.fetchers = self._make_fetchers(config)
        self.control = ControlRequests(
            self.broker_id,
            self.replicas,
            self.fetchers,
            self.logs,
            self._clock,
            broker_epoch=self._broker_epoch,
            make_machine=self._make_machine,
            is_alive=self.metadata.is_alive,
            load_settings=self.settings.load_topics,
        )
        self.moves = LogDirMoves(
            self.replicas,
            self.logs,
            self._clock,
            on_thread=self._on_thread,
            spawn=self._spawn,
            throttle=self.throttles.moves,
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
            moves=self.moves,
            controller=self.controller,
            broker_epoch=self._broker_epoch,
            auto_create=self.controller_client.auto_create,
            authorizer=self.authorizer,
            quotas=self.quotas.clients,
            leader_throttle=self.throttles.leader,
        )

    def _open_audit_log(self, config: BrokerConfig) -> None:
        if config.barnabas_audit_log is None:
            return
        self.pipeline.audit = self.context.audit = AuditLog(
            config.barnabas_audit_log,
            disk=self._platform.disk,
            clock=self._clock,
            on_thread=self._on_thread,
            spawn=self._spawn,
            file_bytes_max=config.barnabas_audit_log_max_bytes,
        )

    def _register_handlers(self) -> None:
        self.pipeline.handlers.update(
            registry.build(
                [
                    *(family.handlers(self.context) for family in FAMILIES),
                    produce.handlers(self.context, self.transactions.verifier),
                    configs.handlers(self.context, self.settings.store, self.settings.write),
                    control.handlers(self.context, self.control),
                    acls.handlers(self.context, self.acl_store),
                    *self.security.families(self.context),
                    quotas.handlers(self.context, self.settings.store, self.settings.write),
                    scram.handlers(self.context, self.settings.store, self.settings.write),
                    *self.groups.families,
                    *self.transactions.families,
                    find_coordinator.handlers(
                        self.context,
                        {
                            KeyType.GROUP: self.groups.coordinator.topic,
                            KeyType.TRANSACTION: self.transactions.coordinator.topic,
                        },
                    ),
                ],
                self.features,
            )
        )

    def _assemble_coordinators(self) -> None:
        """Groups and transactions: each needs the other, so each gets what it needs by a function."""
        context = self.context

        def log_of(topic: str, codec: Callable[[], int] = lambda: Codec.NONE) -> InternalTopicLog:
            return InternalTopicLog(topic, self.replicas, self._pool, codec=codec)

        self.groups = group_parts.assemble(
            context,
            log_of(GROUP_METADATA_TOPIC, lambda: self.config.offsets_topic_compression_codec),
            create_topic=self.controller_client.create_topic,
            consumer_protocol_enabled=lambda: (
                self.features.level(GROUP_VERSION) >= 1 and allows_consumer_protocol(self.config)
            ),
            timers=self._loop,
            spawn=self._spawn,
            verify_transaction=transaction_parts.offsets_verifier(context, lambda: self.transactions.verifier),
        )

        self.transactions = transaction_parts.assemble(
            context,
            log_of(TRANSACTION_STATE_TOPIC),
            self.links,
            ask_controller=self.controller_client.allocate_producer_ids,
            create_topic=self.controller_client.create_topic,
            offsets_partition_for=self.groups.coordinator.partition_for,
            offsets_marked=self.groups.coordinator.txn_completed,
            transaction_version=lambda: self.features.level(TRANSACTION_VERSION),
            timers=self._loop,
            spawn=self._spawn,
            on_bug=self.fail,
        )
        self.control.subscribe(self.groups.leadership_changed)
        self.control.subscribe(leadership_listener(self.transactions.coordinator))
        self.control.subscribe(self.moves.leadership_changed)

    def _make_controller(self, config: BrokerConfig) -> Controller:
        async def connect(broker_id: int, endpoint: Endpoint) -> Connection:
            return await self.links.open_to(endpoint, purpose="controller")

        def validate_topic_config(configs: Mapping[str, str]) -> None:
            check_topic_settings(self.config, configs)

        return Controller(
            self.session,
            self.registrar,
            ControllerConfig(
                settings=controller_settings(self.broker_id, config),
                control_listener=control_listener_name(config),
                inter_broker_listener=config.inter_broker_listener_name,
                request_timeout_ms=config.controller_socket_timeout_ms,
                topic_defaults=TopicDefaults(config.num_partitions, config.default_replication_factor),
            ),
            clock=self._clock,
            connect=connect,
            metadata=self.metadata,
            validate_topic_config=validate_topic_config,
        )

    def _make_fetchers(self, config: BrokerConfig) -> FetcherManager:
        assert self._tasks is not None
        settings = fetcher_settings(self.broker_id, config)

        def endpoint(leader: BrokerId) -> RemoteLeader:
            return RemoteLeader(
                leader, lambda broker: self.links.open(broker, purpose="fetcher"), settings, self._broker_epoch
            )

        return FetcherManager(settings, self._tasks, self._clock, endpoint, throttle=self.throttles.follower)

    def _make_machine(self, tp: TopicPartition) -> PartitionMachine:
        return PartitionMachine(
            local_broker=self.broker_id,
            replica_lag_time_max_ms=self.config.replica_lag_time_max_ms,
            min_insync_replicas=self.dynamic.log_config(tp.topic).min_insync_replicas,
            is_eligible=lambda broker, epoch: self.metadata.is_alive(broker),
        )

    def _preferred_replica(self, partition: Partition, params: FetchParams, fetch_offset: int) -> int | None:
        """KIP-392: a consumer that tells its rack may be sent to a replica nearby."""
        if params.replica_id >= 0 or not params.client_rack or not partition.is_leader:
            return None
        if self.config.replica_selector_class != RACK_AWARE_SELECTOR:
            return None

        def rack_of(broker: BrokerId) -> str | None:
            image = self.metadata.brokers.get(broker)
            return image.rack if image is not None else None

        candidates = read_candidates(
            partition.machine, fetch_offset=fetch_offset, now_ms=self._clock.now_ms(), rack_of=rack_of
        )
        return select_by_rack(params.client_rack, leader_rack=self.config.broker_rack, candidates=candidates)

    def _advertised(self) -> tuple[Endpoint, ...]:
        """Where clients and brokers are told to connect; port 0 becomes the port that the OS chose."""
        return tuple(
            Endpoint(
                listener=listener.name,
                security_protocol=listener.security_protocol.name,
                host=listener.host or socket.gethostname(),
                port=listener.port or self.ports[listener.name],
            )
            for listener in self.config.advertised_listeners
        )

    def _inter_broker_endpoint(self, broker_id: BrokerId) -> Endpoint | None:
        if self._faults is not None and self._faults.is_cut_off(broker_id):
            return None
        return self.metadata.endpoint(broker_id, self.config.inter_broker_listener_name)

    def _broker_epoch(self) -> BrokerEpoch:
        return self.registrar.epoch

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._pool, work)

    # -- settings -----------------------------------------------------------------------------------------------------

    def _broker_settings_changed(self, before: BrokerConfig, after: BrokerConfig) -> None:
        """Dynamic settings whose owners keep a copy; everyone else reads `self.config` when it matters."""
        self._change_connection_limits(after)
        self.pipeline.elements_max = after.barnabas_request_max_elements
        self.logs.check_framing(after.barnabas_record_framing_check)
        self.throttles.change_limits(after)
        self.replicas.fetch_bytes_max = after.fetch_max_bytes
        self.logs.settings = ManagerSettings.of(after)
        self.logs.change_producer_settings(
            expiration_ms=after.producer_id_expiration_ms,
            transaction_verification=after.transaction_partition_verification_enable,
        )
        self._pool.resize(after.background_threads)
        self.cleaner.update_settings(CleanerSettings.of(after))
        self.controller.change_settings(controller_settings(self.broker_id, after))
        if after.num_replica_fetchers != before.num_replica_fetchers:
            self.fetchers.resize(after.num_replica_fetchers)

    def _change_connection_limits(self, config: BrokerConfig) -> None:
        self.server.limits = connection_limits(config)
        self.quotas.connections.limits = connection_rate_limits(config)

    def _topic_settings_changed(self, topic: str, config: LogConfig) -> None:
        if topic:
            self.logs.update_topic_config(topic, config)
        else:
            self.logs.refresh_configs()
        if topic and config.unclean_leader_election_enable:
            self.controller.unclean_election_enabled(topic)
        for partition in self.replicas:
            if partition.log is not None and topic in ("", partition.tp.topic):
                moved = partition.machine.set_min_insync_replicas(
                    partition.log.config.min_insync_replicas,
                    log_end=partition.log.log_end_offset,
                    now_ms=self._clock.now_ms(),
                )
                if moved:
                    self.replicas.high_watermark_moved(partition)

    # -- serving and stopping -----------------------------------------------------------------------------------------

    async def _open_control_socket(self, path: str, faults: Faults) -> None:
        wrap_handlers(self.pipeline.handlers.values(), faults, self._spawn)
        self._control_socket = ControlSocket(
            faults,
            connections=lambda: self.server.connections,
            fail_log_dir=lambda directory: self.logs.fail_dir(directory, OSError(errno.EIO, "failed by a test")),
            on_clock=self.replicas.tick,
        )
        await self._control_socket.start(path)

    async def _serve(self) -> None:
        if self._control_path is not None and self._faults is not None:
            await self._open_control_socket(self._control_path, self._faults)
        # Nobody is served before the epoch of this life is known: a controller that takes the former life for alive would
        # make this broker leader in an old epoch, without the records that a power cut took. Who connects meanwhile waits.
        await self._unless_stopped(self.registrar.register())
        self.server.start_accepting()
        await self.features.refresh()
        self._spawn(self.settings.store.run(), "config changes")
        self.security.serve(lambda: self.controller.is_active)
        self._spawn(self.isr_changes.run(), "isr changes")
        self._spawn(self._shrink_isrs(), "isr expiration")
        self._spawn(watch_loop_lag(self.registry), "loop lag")
        add_gc_gauges(self.registry)
        if self.config.barnabas_metrics_port >= 0:
            await self.metrics_server.start(self.config.barnabas_metrics_host, self.config.barnabas_metrics_port)
        await self.controller.start()
        self._spawn(self._watch_controller(), "controller failure")
        await self._wait_for_metadata()

    def _metadata_changed(self, change: MetadataChange) -> None:
        if change.brokers_changed:
            self._spawn(self.features.refresh(), "cluster features")
        for topic in {partition.topic for partition in change.deleted}:
            if self.metadata.topic(topic) is None:
                self.replicas.forget_topic(topic)

    async def _wait_for_metadata(self) -> None:
        """Ready means that a client's first question has an answer: the controller has told this broker of itself and of
        the topics. (A new controller tells of brokers first. Topics that are being deleted are never told of.)"""
        topics = await self.session.children(paths.BROKER_TOPICS)
        await self._metadata_shows(lambda: self.metadata.is_alive(self.broker_id))
        try:
            async with asyncio.timeout(TOPICS_WAIT_S):
                await self._metadata_shows(lambda: bool(self.metadata.topics) or not topics)
        except TimeoutError:
            log.info("the controller tells of no topic, though there are: %s", ", ".join(topics))
        self._is_cluster_known = True
        self.pipeline.release()

    async def _watch_controller(self) -> None:
        """A controller that cannot go on, or a broker that cannot register again, ends the broker."""
        assert self.controller.failed is not None
        try:
            await self.controller.failed
        except Exception as error:
            self.fail(error)

    async def _metadata_shows(self, condition: Callable[[], bool]) -> None:
        """Wait until it does, or the broker is told to stop."""
        shown = asyncio.Event()
        unsubscribe = self.metadata.subscribe(lambda change: shown.set() if condition() else None)
        try:
            if not condition():
                stopping = self._spawn(self._stop_then(shown), "stop while starting")
                await shown.wait()
                stopping.cancel()
        finally:
            unsubscribe()

    async def _stop_then(self, event: asyncio.Event) -> None:
        await self._stop.wait()
        event.set()

    async def _shrink_isrs(self) -> None:
        """Twice in `replica.lag.time.max.ms`, as Kafka does: a lagging follower leaves within 1.5 times that."""
        while True:
            await asyncio.sleep(self.config.replica_lag_time_max_ms / 2000)
            self.replicas.tick()

    def _dir_failed(self, directory: str, gone: list[TopicPartition]) -> None:
        """The disk under some partitions failed: they go offline here, and the controller elects others."""
        self.fetchers.remove(gone)
        offline = [partition for tp in gone if (partition := self.replicas.get(tp)) is not None]
        for partition in offline:
            partition.machine.go_offline()
            partition.log = None
            self.replicas.wake_all(partition)
        # Not from within the append that found it out: a coordinator may be at it.
        self._loop.call_soon(self.control.went_offline, offline)
        if not self.logs.live_dirs:
            self.fail(BarnabasError("every log directory has failed"))
        else:
            self._spawn(self._report_log_dir_failure(), f"report failure of {directory}")

    async def _report_log_dir_failure(self) -> None:
        """The controller sees the notification, asks which replicas are offline, and elects others."""
        while True:
            try:
                await self.session.create(paths.log_dir_event(), encode_log_dir_event(self.broker_id), sequence=True)
            except SessionExpired as error:
                log.warning("a failed log directory is not reported yet: %s", error)
                await asyncio.sleep(REPORT_RETRY_S)
            else:
                return

    async def _give_up_start(self) -> None:
        """Told to stop before this broker had a place in the cluster: nobody was served, and there is nothing to hand over."""
        log.info("stopping while starting")
        self.server.stop_accepting()
        self.server.close_all()
        self.metrics_server.stop()
        if self._are_logs_open:
            self.logs.stop()
            await self.cleaner.stop()
            await self._threads.drain()
            await self._loop.run_in_executor(self._pool, self.logs.shutdown)
        await self.session.stop()
        for task in list(self._running):
            task.cancel()
        log.info("stopped")

    async def _shut_down(self) -> None:
        log.info("stopping")
        self.fetchers.take_no_more()
        if self.config.controlled_shutdown_enable and self._fatal is None:
            if self.session.is_connected:
                await self.controller_client.hand_over()
            else:
                log.warning("ZooKeeper at %s is away: nobody can take over what this broker leads", self.session.hosts)
        self.server.stop_accepting()
        self.fetchers.stop()
        self.groups.coordinator.close()
        self.transactions.coordinator.close()
        await self.controller.stop()
        self.server.close_all()
        self.metrics_server.stop()
        self.links.close()
        self.logs.stop()
        await self.cleaner.stop()
        await self._threads.drain()
        for partition in self.replicas:
            partition.log = None  # nobody who still runs may write while the logs are closed
        await self._loop.run_in_executor(self._pool, self.logs.shutdown, self.registrar.epoch)
        await self.session.stop()
        for task in list(self._running):
            task.cancel()
        log.info("stopped")
