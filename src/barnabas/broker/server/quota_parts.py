"""All client quotas of one broker: created from its settings, and changed with them. Owner: the event loop."""

import logging
from collections.abc import Callable, Mapping

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.metrics.registry import Registry
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.security.connection_rates import ConnectionRates
from barnabas.broker.security.quotas import ClientQuotas, entity_of
from barnabas.broker.server.addresses import address_of
from barnabas.broker.server.quota_metrics import QuotaMetrics
from barnabas.broker.server.request_quota import RequestQuota
from barnabas.broker.server.settings import connection_rate_limits
from barnabas.broker.zookeeper_client import paths

log = logging.getLogger(__name__)


class QuotaParts:
    def __init__(
        self,
        config: BrokerConfig,
        registry: Registry,
        *,
        now_s: Callable[[], float],
        spawn: Spawn,
    ) -> None:
        windows, window_ms = config.quota_window_num, config.quota_window_size_seconds * 1000
        self._spawn = spawn
        self.clients = ClientQuotas(
            windows=windows,
            window_ms=window_ms,
            controller_windows=config.controller_quota_window_num,
            controller_window_ms=config.controller_quota_window_size_seconds * 1000,
            on_throttled=QuotaMetrics(registry).throttled,
        )
        self.requests = RequestQuota(self.clients, now_s)
        self.connections = ConnectionRates(windows=windows, window_ms=window_ms, limits=connection_rate_limits(config))

    def settings_changed(self, entity_type: str, name: str, settings: Mapping[str, str]) -> None:
        """Apply all settings of an entity below /config; ignores entities that have no quotas."""
        entity = entity_of(entity_type, name)
        if entity is not None:
            self.clients.entity_changed(entity, settings)
        elif entity_type == paths.IPS:
            self._spawn(self._address_changed(name, settings), "quota of an address")

    async def _address_changed(self, name: str, settings: Mapping[str, str]) -> None:
        """Resolve a host name without blocking the loop, and apply its settings."""
        address: str | None = name
        if name != paths.DEFAULT_ENTITY:
            address = await address_of(paths.desanitize(name))
        if address is None:
            log.error(
                "[quota of %s] has no effect: there is no such host, set it for an address instead",
                paths.desanitize(name),
            )
        else:
            self.connections.address_changed(address, settings)
