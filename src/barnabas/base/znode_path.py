"""The valid paths of znodes, and the command that closes znodes. Pure; for ZooKeeper's client and its server."""

import re

# The characters that ZooKeeper's PathUtils refuses: control characters, surrogates, the private use area, specials. Java
# sees characters beyond the BMP as surrogates, so it refuses those, too.
_BAD = "\\x00-\\x1f\\x7f-\\x9f\\ud800-\\uf8ff\\ufff0-\\uffff\U00010000-\U0010ffff"
_PATH = re.compile(rf"(?:/(?!\.{{1,2}}(?:/|\Z))[^/{_BAD}]+)+")


def is_valid_path(path: str) -> bool:
    return path == "/" or _PATH.fullmatch(path) is not None


def closing_command(connect: str, file: str = "BROKER.properties") -> str:
    """Return the command that closes znodes which every client can change. `file` has the brokers' ZooKeeper settings."""
    return (
        f"barnabas zookeeper-security-migration --zookeeper.acl secure --zookeeper.connect {connect} "
        f"--zk-tls-config-file {file}"
    )
