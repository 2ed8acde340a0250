"""Tiered storage of a broker, enabled by `remote.log.storage.system.enable`."""

from collections.abc import Callable, Iterator
from functools import partial

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.derived import Derived
from barnabas.base.config.log_config import LogConfig
from barnabas.base.ids import ZERO_TOPIC_ID, TopicPartition
from barnabas.base.metrics.registry import Row
from barnabas.base.topics import REMOTE_LOG_METADATA_TOPIC
from barnabas.broker.features.tiered.copier import Copier
from barnabas.broker.features.tiered.health import StoreHealth
from barnabas.broker.features.tiered.local_copies import LocalCopies
from barnabas.broker.features.tiered.manager import TierManager
from barnabas.broker.features.tiered.metadata_topic import RemoteMetadata
from barnabas.broker.features.tiered.metrics import TierMetrics
from barnabas.broker.features.tiered.reader import FetchQuota, TierReader
from barnabas.broker.features.tiered.reads import TierReads
from barnabas.broker.features.tiered.remover import Remover
from barnabas.broker.features.tiered.segment_metadata import TierPartition
from barnabas.broker.features.tiered.settings import TierSettings, new_metadata_topic, store_settings
from barnabas.broker.features.tiered.store import Store, open_store
from barnabas.broker.parts.feature import Host, Plugin
from barnabas.broker.replication.partition import Partition
from barnabas.broker.runtime.threads import OnThread
from barnabas.broker.runtime.timers import Timers
from barnabas.broker.server.platform import Platform
from barnabas.broker.storage import names
from barnabas.broker.storage.log import Log
from barnabas.broker.zookeeper_client.internal_topic import InternalTopic
from barnabas.broker.zookeeper_client.metadata_cache import MetadataChange
from barnabas.broker.zookeeper_client.topic_lookup import count_partitions, topic_exists


class TieredPlugin(Plugin):
    def __init__(self, host: Host) -> None:
        context, platform, session, connections = host.context, host.platform, host.session, host.connections
        on_thread, spawn = host.on_thread, host.spawn
        config = context.config
        assert config.barnabas_remote_storage_url is not None  # `base.config.checks`
        new_metadata_topic(config)  # refuses invalid settings at the start
        self._context = context
        self._spawn = spawn
        store = (platform.open_store or open_store)(config.barnabas_remote_storage_url, store_settings(config))
        health, metrics = StoreHealth(context.clock), TierMetrics(context.registry)
        settings = Derived(lambda: context.config, TierSettings)
        self.metadata = RemoteMetadata(
            context.broker_id,
            InternalTopic(
                REMOTE_LOG_METADATA_TOPIC,
                context.metadata,
                new=lambda: new_metadata_topic(context.config),
                create=host.controller_client.create_topic,
                count=partial(count_partitions, session),
                spawn=spawn,
            ),
            context.metadata,
            connect=lambda broker: connections.open(broker, purpose="tier-metadata-reader"),
            lane=connections.lane("tier-metadata-writer").to,
            on_event=lambda of: self.manager.refresh(of),
            on_thread=on_thread,
            clock=context.clock,
            spawn=spawn,
        )
        copier = Copier(
            context.broker_id,
            store,
            self.metadata,
            log_of=self._log_of,
            settings=settings,
            health=health,
            metrics=metrics,
            disk=platform.disk,
            on_thread=on_thread,
            clock=context.clock,
            chance=platform.random,
            spawn=spawn,
        )
        remover = Remover(context.broker_id, store, self.metadata, health=health, metrics=metrics, clock=context.clock)
        self.manager = TierManager(
            store,
            self.metadata,
            copier,
            remover,
            log_of=self._log_of,
            log_start_moved=context.replicas.hosted.log_start_moved,
            exists=lambda of: topic_exists(session, of.topic, of.topic_id),
            settings=settings,
            health=health,
            metrics=metrics,
            clock=context.clock,
            spawn=spawn,
        )
        self._assemble_reads(store, platform, host.timers, on_thread, metrics)
        # Used for followers of leaders whose first records are in the tier, and for consumers that read those.
        host.replication.fetchers.tier = context.replicas.fetches.tier = self.reads
        self.internal_topics = (self.metadata.topic,)
        context.metadata.subscribe(self._metadata_changed)
        self._add_gauges()

    def _assemble_reads(
        self, store: Store, platform: Platform, timers: Timers, on_thread: OnThread, metrics: TierMetrics
    ) -> None:
        context = self._context
        config = context.config
        self._quota = FetchQuota(
            windows=config.remote_log_manager_fetch_quota_window_num,
            window_ms=config.remote_log_manager_fetch_quota_window_size_seconds * 1000,
            now_ms=context.now_monotonic_ms,
            limit=config.remote_log_manager_fetch_max_bytes_per_second,
        )
        self._copies = LocalCopies(
            f"{context.logs.live_dirs[0].path}/{names.REMOTE_CACHE_DIR}",
            store,
            platform.disk,
            on_thread=on_thread,
            spawn=self._spawn,
            chunk_bytes=config.barnabas_remote_chunk_bytes,
            chunks_bytes_max=config.barnabas_remote_chunk_cache_bytes,
            indexes_bytes_max=config.remote_log_index_file_cache_total_size_bytes,
            gets_at_once=config.remote_log_reader_threads,
            wait_for_quota=self._quota.wait_for,
        )
        self.reader = TierReader(
            store, self._copies, on_thread=on_thread, read_ahead_bytes=config.barnabas_remote_read_ahead_bytes
        )
        self.reads = TierReads(
            context.replicas.hosted,
            self.reader,
            segments_of=lambda log: self.manager.view(log.partition),
            timers=timers,
            registry=context.registry,
            metrics=metrics,
            spawn=self._spawn,
            max_wait_ms=lambda: context.config.remote_fetch_max_wait_ms,
            reads_max=config.remote_log_reader_threads + config.remote_log_reader_max_pending_tasks,
        )

    def settings_changed(self, before: BrokerConfig, after: BrokerConfig) -> None:
        self._quota.limit = after.remote_log_manager_fetch_max_bytes_per_second
        self._copies.indexes_bytes_max = after.remote_log_index_file_cache_total_size_bytes

    def start(self) -> None:
        self._spawn(self._copies.prepare(), "tiered storage, copies")
        self._spawn(self.manager.run(), "tiered storage")

    def stop(self) -> None:
        self.manager.stop()

    # -- events ---------------------------------------------------------------------------------------------------------

    def leadership_changed(self, led: list[Partition], followed: list[Partition]) -> None:
        for partition in (*led, *followed):
            self._look_at(partition)

    def topic_settings_changed(self, topic: str, config: LogConfig) -> None:
        """`topic` is empty if the settings of any topic may have changed."""
        for partition in list(self._context.replicas):
            if topic in ("", partition.tp.topic):
                self._look_at(partition)
        self.manager.wake()

    def _metadata_changed(self, change: MetadataChange) -> None:
        if change.deleted:
            self.manager.wake()

    def _look_at(self, partition: Partition) -> None:
        log, topic_id = partition.log, partition.topic_id
        is_here = self._context.replicas.hosted.get(partition.tp) is partition
        if not is_here or log is None or topic_id is None or topic_id == ZERO_TOPIC_ID or not _is_hosted(log):
            self.manager.stopped(partition.tp)
            self.reader.forget(partition.tp)
            return
        of = TierPartition(topic_id, *partition.tp)
        if partition.is_leader:
            self.manager.became_leader(of, partition.machine.leader_epoch)
        else:
            self.manager.became_follower(of)

    def _log_of(self, tp: TopicPartition) -> Log | None:
        partition = self._context.replicas.hosted.get(tp)
        return None if partition is None else partition.log

    # -- gauges -------------------------------------------------------------------------------------------------------

    def _add_gauges(self) -> None:
        """Add gauges; Kafka's are by partition as well. All values are computed when metrics are scraped."""
        registry, manager = self._context.registry, self.manager

        def add(name: str, what: str, read: Callable[[Log, TopicPartition], float]) -> None:
            def rows() -> Iterator[Row]:
                for tp in list(manager.led):
                    if (log := self._log_of(tp)) is not None and not log.is_closed:
                        yield {"topic": tp.topic, "partition": str(tp.partition)}, read(log, tp)

            registry.table(f"kafka_server_topic_{name}", what, rows)

        def lag(log: Log, tp: TopicPartition) -> list[int]:
            copied, active = log.highest_copied_offset, log.active_segment
            return [each.size_bytes for each in log.segments if each.base_offset > copied and each is not active]

        add(
            "remote_copy_lag_bytes", "Bytes of rolled segments that are not in the tier yet.", lambda *of: sum(lag(*of))
        )
        add("remote_copy_lag_segments", "Rolled segments that are not in the tier yet.", lambda *of: len(lag(*of)))
        add("remote_delete_lag_bytes", "Bytes to remove from the tier.", lambda _, tp: _to_remove(manager, tp)[1])
        add(
            "remote_delete_lag_segments",
            "Segments to remove from the tier.",
            lambda _, tp: _to_remove(manager, tp)[0],
        )
        add("remote_log_size_bytes", "Bytes of the partition in the tier.", partial(_in_tier, manager, "size_bytes"))
        add("remote_log_metadata_count", "Segments known in the tier.", partial(_in_tier, manager, "count"))
        registry.gauge(
            "barnabas_tier_store_failing_seconds",
            "How long all requests to the object store have failed, in seconds; 0 while it works.",
            lambda: manager.health.failing_s,
        )


def _in_tier(manager: TierManager, what: str, log: Log, tp: TopicPartition) -> float:
    view = manager.view(tp)
    if view is None:
        return 0
    return view.size_bytes if what == "size_bytes" else len(view)


def _to_remove(manager: TierManager, tp: TopicPartition) -> tuple[int, int]:
    """Return the number of segments and their bytes."""
    lead = manager.led.get(tp)
    segments = [] if lead is None else lead.to_remove
    return len(segments), sum(each.size_bytes for each in segments)


def _is_hosted(log: Log) -> bool:
    """Whether this broker manages the log's tier: after the topic has left the tier, until all its segments are removed."""
    return log.is_tiered or (log.config.remote_log_delete_on_disable and not log.config.remote_storage_enable)


build = TieredPlugin
