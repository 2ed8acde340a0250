"""What a broker knows of the others, and how it reaches them, put together.

Owner: the event loop.
"""

import asyncio
from collections.abc import Mapping

from barnabas.coordination.features import ClusterFeatures
from barnabas.coordination.former_session import FormerSession
from barnabas.coordination.metadata_cache import MetadataCache
from barnabas.coordination.registration import BrokerRegistrar
from barnabas.coordination.session import ZooKeeperSession
from barnabas.coordination.znodes import BrokerRegistration, Endpoint
from barnabas.core.config.dynamic import DynamicConfig
from barnabas.core.ids import BrokerEpoch, BrokerId
from barnabas.parts.identity import advertised_endpoints
from barnabas.parts.readiness import Readiness
from barnabas.runtime.faults import Faults
from barnabas.runtime.threads import OnThread
from barnabas.server.broker_connections import BrokerConnections, Opener
from barnabas.server.controller_client import ControllerClient
from barnabas.server.platform import Platform
from barnabas.server.settings import session_config
from barnabas.storage.manager import LogManager


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
    ) -> None:
        config = dynamic.broker
        self._dynamic = dynamic
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

    def epoch(self) -> BrokerEpoch:
        return self.registrar.epoch

    def _endpoint(self, broker_id: BrokerId) -> Endpoint | None:
        if self._faults is not None and self._faults.is_cut_off(broker_id):
            return None
        return self.metadata.endpoint(broker_id, self._dynamic.broker.inter_broker_listener_name)
