"""Builds a broker's controller."""

from collections.abc import Mapping

from barnabas.base.clock import Clock
from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.derived import derive
from barnabas.base.config.dynamic import DynamicConfig
from barnabas.base.config.topic import validate_topic_config as check_topic_settings
from barnabas.base.ids import BrokerId
from barnabas.broker.controller.driver import Controller, ControllerConfig
from barnabas.broker.controller.settings import ControllerSettings
from barnabas.broker.controller.topics import TopicDefaults
from barnabas.broker.server.broker_connections import BrokerConnections
from barnabas.broker.server.settings import control_listener_name
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.broker.zookeeper_client.registration import BrokerRegistrar
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.znodes import Endpoint
from barnabas.client.connection import Connection


def make_controller(
    broker_id: BrokerId,
    dynamic: DynamicConfig,
    session: ZooKeeperSession,
    registrar: BrokerRegistrar,
    metadata: MetadataCache,
    connections: BrokerConnections,
    clock: Clock,
) -> Controller:
    """Return the controller. It follows the broker's dynamic settings."""
    config = dynamic.broker

    async def connect(broker_id: int, endpoint: Endpoint) -> Connection:
        return await connections.open_to(endpoint, purpose="controller")

    def validate_topic_config(configs: Mapping[str, str]) -> None:
        check_topic_settings(dynamic.broker, configs)

    def settings_changed(before: BrokerConfig, after: BrokerConfig) -> None:
        controller.change_settings(derive(ControllerSettings, after, broker_id=broker_id))

    controller = Controller(
        session,
        registrar,
        ControllerConfig(
            settings=derive(ControllerSettings, config, broker_id=broker_id),
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
