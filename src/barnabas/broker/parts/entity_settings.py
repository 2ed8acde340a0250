"""Reads and writes the settings below /config in ZooKeeper, of topics, brokers, clients, users, addresses,
groups and subscriptions to metrics of clients.

Read at the start, then by notification; written for all brokers, and applied here at once. Owner: the event loop.
"""

import logging
from collections.abc import Iterable, Mapping

from barnabas.base.config.dynamic import DynamicConfig, usable_of_broker
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import BrokerId
from barnabas.broker.parts.security import SecurityParts
from barnabas.broker.server.quota_parts import QuotaParts
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.config_store import Change, ConfigStore, Entity
from barnabas.broker.zookeeper_client.zk_errors import SessionExpired

log = logging.getLogger(__name__)


class EntitySettings:
    """Passes each entity's settings to the part that uses them."""

    def __init__(
        self,
        store: ConfigStore,
        dynamic: DynamicConfig,
        broker_id: BrokerId,
        *,
        quotas: QuotaParts,
        security: SecurityParts,
    ) -> None:
        self.store = store
        self._dynamic = dynamic
        self._broker = str(broker_id)
        self._quotas = quotas
        self._security = security
        #: Entities with settings, as far as this broker knows.
        self._known: set[Entity] = set()

    async def start(self) -> None:
        await self.store.start(self._changed, known=lambda: tuple(self._known))
        await self._reencode_secrets()

    def _changed(self, entity_type: str, name: str, settings: Mapping[str, str]) -> None:
        """Apply settings from ZooKeeper: all of them at the start and after an absence, then each change."""
        (self._known.add if settings else self._known.discard)((entity_type, name))
        ignored: tuple[str, ...] = ()
        if entity_type == paths.TOPICS:
            ignored = self._dynamic.set_topic(name, settings)
        elif entity_type == paths.GROUPS:
            ignored = self._dynamic.set_group(paths.desanitize(name), settings)
        elif entity_type == paths.CLIENT_METRICS:
            ignored = self._dynamic.set_client_metrics(paths.desanitize(name), settings)
        elif entity_type in (paths.CLIENTS, paths.USERS, paths.IPS):
            self._quotas.settings_changed(entity_type, name, settings)
            if entity_type == paths.USERS and "/" not in name:
                self._security.user_changed(paths.desanitize(name), settings)
        elif entity_type == paths.BROKERS_ENTITY:
            if name == paths.DEFAULT_ENTITY:
                ignored = self._dynamic.set_cluster_default(settings)
            elif name == self._broker:
                revealed, undecoded = self._security.secrets.reveal(settings)
                ignored = undecoded + self._dynamic.set_broker(revealed)
                self._security.broker_changed()
        for line in ignored:
            log.warning("%s", line)

    async def load_topics(self, topics: Iterable[str]) -> None:
        """Load the settings of topics that this broker is about to host: their creation wrote them without a notification."""
        try:
            found = await self.store.read_new(paths.TOPICS, list(topics))
        except SessionExpired as error:
            # The controller sends the request again when this broker has registered again.
            raise Refused(ErrorCode.STALE_BROKER_EPOCH, str(error)) from error
        for name, settings in found.items():
            self._changed(paths.TOPICS, name, settings)

    async def read_broker(self, name: str) -> dict[str, str]:
        """Return the present dynamic settings of this broker, or the cluster's defaults, from ZooKeeper; passwords are
        plain."""
        return self._of_broker(name, await self.store.read(paths.BROKERS_ENTITY, name))

    def _of_broker(self, name: str, stored: Mapping[str, str]) -> dict[str, str]:
        is_own = name == self._broker
        if is_own:
            stored, _ = self._security.secrets.reveal(stored)
        return usable_of_broker(stored, per_broker=is_own)[0]

    async def write(self, entity_type: str, name: str, settings: Mapping[str, str]) -> None:
        """Replace all settings of an entity."""
        await self.change(entity_type, name, lambda found: settings)

    async def change(self, entity_type: str, name: str, change: Change) -> None:
        """Change settings in ZooKeeper for all brokers, and here at once. `change` sees a broker's passwords in plain text."""

        def stored_change(stored: Mapping[str, str]) -> Mapping[str, str] | None:
            if entity_type != paths.BROKERS_ENTITY:
                return change(stored)
            wanted = change(self._of_broker(name, stored))
            if wanted is None:
                return None
            return self._security.secrets.protect(wanted, per_broker=name != paths.DEFAULT_ENTITY)

        await self.store.change(entity_type, name, stored_change)

    async def _reencode_secrets(self) -> None:
        """After a change of `password.encoder.secret`, encrypt all passwords again, so that the former secret is not needed."""
        stored = await self.store.read(paths.BROKERS_ENTITY, self._broker)
        if self._security.secrets.needs_reencoding(stored):
            revealed, _ = self._security.secrets.reveal(stored)
            await self.write(paths.BROKERS_ENTITY, self._broker, revealed)
