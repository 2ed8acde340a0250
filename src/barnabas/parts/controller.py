"""The controller of a broker, put together."""

from collections.abc import Mapping

from barnabas.client.connection import Connection
from barnabas.controller.driver import Controller, ControllerConfig
from barnabas.controller.topics import TopicDefaults
from barnabas.coordination.metadata_cache import MetadataCache
from barnabas.coordination.registration import BrokerRegistrar
from barnabas.coordination.session import ZooKeeperSession
from barnabas.coordination.znodes import Endpoint
from barnabas.core.clock import Clock
from barnabas.core.config.broker import BrokerConfig
from barnabas.core.config.dynamic import DynamicConfig
from barnabas.core.config.topic import validate_topic_config as check_topic_settings
from barnabas.core.ids import BrokerId
from barnabas.server.broker_connections import BrokerConnections
from barnabas.server.settings import control_listener_name, controller_settings


def make_controller(
    broker_id: BrokerId,
    dynamic: DynamicConfig,
    session: ZooKeeperSession,
    registrar: BrokerRegistrar,
    metadata: MetadataCache,
    connections: BrokerConnections,
    clock: Clock,
) -> Controller:
    """Follows the broker's dynamic settings."""
    config = dynamic.broker

    async def connect(broker_id: int, endpoint: Endpoint) -> Connection:
        return await connections.open_to(endpoint, purpose="controller")

    def validate_topic_config(configs: Mapping[str, str]) -> None:
        check_topic_settings(dynamic.broker, configs)

    def settings_changed(before: BrokerConfig, after: BrokerConfig) -> None:
        controller.change_settings(controller_settings(broker_id, after))

    controller = Controller(
        session,
        registrar,
        ControllerConfig(
            settings=controller_settings(broker_id, config),
            control_listener=control_listener_name(config),
            inter_broker_listener=config.inter_broker_listener_name,
            request_timeout_ms=config.controller_socket_timeout_ms,
            topic_defaults=TopicDefaults(config.num_partitions, config.default_replication_factor),
        ),
        clock=clock,
        connect=connect,
        metadata=metadata,
        validate_topic_config=validate_topic_config,
    )
    dynamic.subscribe(settings_changed)
    return controller
