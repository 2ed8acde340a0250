"""Connect tools to ZooKeeper with a broker's ZooKeeper settings, and warn of znodes that every client can change."""

from collections.abc import Sequence

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.properties import load as load_properties
from barnabas.base.znode_path import closing_command
from barnabas.broker.server.settings import session_config
from barnabas.broker.zookeeper_client.open_znodes import named
from barnabas.broker.zookeeper_client.session_config import SessionConfig
from barnabas.cli._command import complain


def session_settings(connect: str, file: str | None, *, creates: bool = False) -> SessionConfig:
    """`creates`: new znodes get the brokers' protection if `zookeeper.set.acl` is set.

    :raises ConfigError: if the file cannot be read or used.
    """
    settings = load_properties(file) if file is not None else {}
    known = {name: value for name, value in settings.items() if "zookeeper" in name}
    if not creates:
        known.pop("zookeeper.set.acl", None)
    return session_config(BrokerConfig.parse({**known, "zookeeper.connect": connect}))


def warn_of_open(found: Sequence[str], config: SessionConfig, connect: str, file: str | None, *, option: str) -> None:
    """Warn on stderr that every client can change znodes with credentials, and say how to protect them. `option` takes
    `file`."""
    if not found:
        return
    if config.secure_acls:
        advice = f"close them: {closing_command(connect, file or 'BROKER.properties')}"
    else:
        advice = (
            "in a cluster with users, set zookeeper.set.acl=true and barnabas.zookeeper.digest=user:password in the brokers' "
            f"files, name one of these files with {option}, and close the znodes that exist: {closing_command(connect)}"
        )
    complain(f"warning: every client of ZooKeeper can change {named(found)}, and so become any user; {advice}")
