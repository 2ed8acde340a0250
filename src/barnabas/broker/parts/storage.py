"""Builds the logs of a broker and their cleaner. Owner: the event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.derived import derive
from barnabas.base.config.dynamic import DynamicConfig
from barnabas.base.host import descriptors
from barnabas.base.ids import BrokerId
from barnabas.base.metrics.registry import Registry
from barnabas.broker.runtime.threads import LoopThreads
from barnabas.broker.server.platform import Platform
from barnabas.broker.storage.cleaner.cleaner import Cleaner
from barnabas.broker.storage.cleaner.gauges import add_gauges
from barnabas.broker.storage.cleaner.settings import CleanerSettings
from barnabas.broker.storage.environment import LogEnvironment
from barnabas.broker.storage.file_handle import SegmentPool
from barnabas.broker.storage.manager import DirFailed, LogManager
from barnabas.broker.storage.manager_settings import ManagerSettings


class StorageParts:
    def __init__(
        self,
        dynamic: DynamicConfig,
        platform: Platform,
        loop: asyncio.AbstractEventLoop,
        threads: LoopThreads,
        *,
        on_dir_failed: DirFailed,
    ) -> None:
        config = dynamic.broker
        env = LogEnvironment(
            disk=platform.disk,
            clock=platform.clock,
            timers=loop,
            threads=threads,
            pool=SegmentPool(descriptors.open_segments_max()),
            check_framing=config.barnabas_record_framing_check,
            random=platform.random,
            make_pool=platform.make_pool,
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            transaction_verification=config.transaction_partition_verification_enable,
            is_tiering=config.remote_log_storage_system_enable,
        )
        self._loop = loop
        self._platform = platform
        self._env = env
        self._dynamic = dynamic
        self.logs = LogManager(
            config.log_dirs,
            env=env,
            settings=derive(ManagerSettings, config),
            config_of=dynamic.log_config,
            on_dir_failed=on_dir_failed,
        )

    async def open(
        self,
        broker_id: BrokerId,
        cluster_id: str,
        *,
        load_settings: Callable[[], Awaitable[None]],
        pool: Executor,
        registry: Registry,
    ) -> None:
        """Open the logs. `load_settings` reads the settings in ZooKeeper, after a check that no other broker uses a
        directory."""
        self.logs.open_dirs(broker_id=broker_id, cluster_id=cluster_id)
        await load_settings()
        loop, env, config = self._loop, self._env, self._dynamic.broker
        await loop.run_in_executor(pool, self.logs.load)
        self.cleaner = Cleaner(
            self.logs, env, derive(CleanerSettings, config), lambda: self._platform.make_cleaner_worker(loop, env)
        )
        add_gauges(registry, self.cleaner)
        # ZooKeeper may have settings that this broker's file lacks.
        self.settings_changed(config, config)
        self.logs.start()
        self.cleaner.start()

    def settings_changed(self, before: BrokerConfig, after: BrokerConfig) -> None:
        self.logs.check_framing(after.barnabas_record_framing_check)
        self.logs.settings = derive(ManagerSettings, after)
        self.logs.change_producer_settings(
            expiration_ms=after.producer_id_expiration_ms,
            transaction_verification=after.transaction_partition_verification_enable,
        )
        self.cleaner.update_settings(derive(CleanerSettings, after))
