"""Which paths a znode can have, and the command that closes znodes. Pure; for ZooKeeper's client and its server."""

import re

# What ZooKeeper's PathUtils refuses: control characters, surrogates and the private use area, specials; beyond the BMP Java
# sees surrogates, so those are refused as well.
_BAD = "\\x00-\\x1f\\x7f-\\x9f\\ud800-\\uf8ff\\ufff0-\\uffff\U00010000-\U0010ffff"
_PATH = re.compile(rf"(?:/(?!\.{{1,2}}(?:/|\Z))[^/{_BAD}]+)+")


def is_valid_path(path: str) -> bool:
    return path == "/" or _PATH.fullmatch(path) is not None


def closing_command(connect: str, file: str = "BROKER.properties") -> str:
    """For znodes that everybody can change. `file`: with the brokers' settings of ZooKeeper."""
    return (
        f"barnabas zookeeper-security-migration --zookeeper.acl secure --zookeeper.connect {connect} "
        f"--zk-tls-config-file {file}"
    )
