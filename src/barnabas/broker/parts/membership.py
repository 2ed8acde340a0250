"""Builds the parts that know the other brokers and connect to them.

Owner: the event loop.
"""

import asyncio
from collections.abc import Mapping

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.dynamic import DynamicConfig
from barnabas.base.ids import BrokerEpoch, BrokerId
from barnabas.broker.parts.identity import advertised_endpoints
from barnabas.broker.parts.readiness import Readiness
from barnabas.broker.runtime.faults import Faults
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.threads import OnThread
from barnabas.broker.server.broker_connections import BrokerConnections, Opener
from barnabas.broker.server.controller_client import ControllerClient
from barnabas.broker.server.platform import Platform
from barnabas.broker.server.settings import session_config
from barnabas.broker.storage.manager import LogManager
from barnabas.broker.zookeeper_client.features import ClusterFeatures
from barnabas.broker.zookeeper_client.former_session import FormerSession
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.broker.zookeeper_client.registration import BrokerRegistrar
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration, Endpoint


class MembershipParts:
    def __init__(
        self,
        broker_id: BrokerId,
        dynamic: DynamicConfig,
        session: ZooKeeperSession,
        platform: Platform,
        logs: LogManager,
        *,
        ports: Mapping[str, int],
        open_connection: Opener,
        faults: Faults | None,
        stop: asyncio.Event,
        on_thread: OnThread,
        spawn: Spawn,
    ) -> None:
        config = dynamic.broker
        self._dynamic = dynamic
        self._ports = ports
        self._spawn = spawn
        self._faults = faults
        self.metadata = MetadataCache()
        self.features = ClusterFeatures(session)
        endpoints = advertised_endpoints(config, ports)
        self.readiness = Readiness(
            broker_id, self.metadata, stop, address=", ".join(str(endpoint) for endpoint in endpoints)
        )
        self.connections = BrokerConnections(broker_id, endpoint_of=self._endpoint, open_connection=open_connection)
        self.registrar = BrokerRegistrar(
            session,
            BrokerRegistration(id=broker_id, endpoints=endpoints, rack=config.broker_rack, features=platform.features),
            clock=platform.clock,
            wait_for_former_self_ms=config.zookeeper_session_timeout_ms * 2,
            former=FormerSession(
                session_config(config),
                platform.zookeeper,
                disk=platform.disk,
                directories=lambda: [log_dir.path for log_dir in logs.live_dirs],
                on_thread=on_thread,
            ),
        )
        self.controller_client = ControllerClient(
            broker_id,
            self.connections,
            self.metadata,
            config=lambda: dynamic.broker,
            broker_epoch=self.epoch,
        )

    def settings_changed(self, before: BrokerConfig, after: BrokerConfig) -> None:
        """Register changed addresses. Called after the listeners were moved."""
        endpoints = advertised_endpoints(after, self._ports)
        if endpoints != self.registrar.registration.endpoints:
            self._spawn(self.registrar.announce(endpoints), "new endpoints")

    def epoch(self) -> BrokerEpoch:
        return self.registrar.epoch

    def _endpoint(self, broker_id: BrokerId) -> Endpoint | None:
        if self._faults is not None and self._faults.refuses_to_reach(broker_id):
            return None
        return self.metadata.endpoint(broker_id, self._dynamic.broker.inter_broker_listener_name)
