"""How tools connect to ZooKeeper: with a broker's ZooKeeper settings."""

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.properties import load as load_properties
from barnabas.broker.server.settings import session_config
from barnabas.broker.zookeeper_client.session_config import SessionConfig


def session_settings(connect: str, file: str | None, *, creates: bool = False) -> SessionConfig:
    """`creates`: what is created gets the brokers' protection, if `zookeeper.set.acl` says so.

    :raises ConfigError: for a file that cannot be read or used.
    """
    settings = load_properties(file) if file is not None else {}
    known = {name: value for name, value in settings.items() if "zookeeper" in name}
    if not creates:
        known.pop("zookeeper.set.acl", None)
    return session_config(BrokerConfig.parse({**known, "zookeeper.connect": connect}))
