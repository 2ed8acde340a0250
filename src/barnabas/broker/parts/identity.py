"""A broker's id, and its addresses for other brokers and clients."""

import socket
from collections.abc import Mapping

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.errors import ConfigError
from barnabas.base.host.disk import Disk
from barnabas.base.ids import BrokerId
from barnabas.broker.storage import meta_properties, names
from barnabas.broker.zookeeper_client.registration import generate_broker_id
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.znodes import Endpoint


async def find_broker_id(config: BrokerConfig, session: ZooKeeperSession, disk: Disk) -> BrokerId:
    """Return `broker.id`, or the id in the log directories, or a new one from ZooKeeper."""
    if config.broker_id >= 0:
        return BrokerId(config.broker_id)
    for directory in config.log_dirs:
        meta = meta_properties.read(f"{directory}/{names.META_PROPERTIES}", disk=disk)
        if meta is not None and meta.broker_id is not None:
            return BrokerId(meta.broker_id)
    if not config.broker_id_generation_enable:
        raise ConfigError("broker.id is not set and broker.id.generation.enable is false: set one of them")
    return BrokerId(await generate_broker_id(session, reserved_broker_max_id=config.reserved_broker_max_id))


def advertised_endpoints(config: BrokerConfig, ports: Mapping[str, int]) -> tuple[Endpoint, ...]:
    """Return the addresses at which clients and brokers connect. `ports` has the ports of this broker's listeners."""
    return tuple(
        Endpoint(
            listener=listener.name,
            security_protocol=listener.security_protocol.name,
            host=listener.host or socket.gethostname(),
            port=listener.port or ports[listener.name],
        )
        for listener in config.advertised_listeners
        if listener.name in ports
    )
