"""How tools connect to ZooKeeper: with a broker's ZooKeeper settings."""

from barnabas.coordination.session_config import SessionConfig
from barnabas.core.config.broker import BrokerConfig
from barnabas.core.config.properties import load as load_properties
from barnabas.server.settings import session_config


def session_settings(connect: str, file: str | None, *, creates: bool = False) -> SessionConfig:
    """`creates`: what is created gets the brokers' protection, if `zookeeper.set.acl` says so.

    :raises ConfigError: for a file that cannot be read or used.
    """
    settings = load_properties(file) if file is not None else {}
    known = {name: value for name, value in settings.items() if "zookeeper" in name}
    if not creates:
        known.pop("zookeeper.set.acl", None)
    return session_config(BrokerConfig.parse({**known, "zookeeper.connect": connect}))
