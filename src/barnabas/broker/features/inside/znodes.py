"""One znode, read through this broker's session: its data as JSON, its children, its owner, and this broker's watches on it.

Credentials stay hidden: of znodes that only brokers may read (`paths.is_sensitive`), only names are shown.
"""

import json
from typing import Any, Final

from barnabas.broker.server.metrics_http import Unanswered
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Get, GetChildren, ZkCode
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import ConnectionLost, SessionExpired

DATA_BYTES_MAX: Final = 64 * 1024
CHILDREN_MAX: Final = 1_000
#: Replaces each value that is not shown.
HIDDEN: Final = "(hidden)"


async def znode(session: ZooKeeperSession, path: str) -> dict[str, Any]:
    """:raises Unanswered: if the znode does not exist, or ZooKeeper is unreachable."""
    if not path.startswith("/") or (path != "/" and path.endswith("/")) or "//" in path or "\0" in path:
        raise Unanswered(400, f"{path!r} is not the path of a znode: use a path such as /brokers/ids")
    if not session.is_connected:
        # A request would wait for the connection, but viewers ask again every second anyway.
        raise Unanswered(503, "ZooKeeper is unreachable")
    watched = session.watches(path)
    try:
        found, listed = (await session.batch([Get(path), GetChildren(path)])).results
    except (SessionExpired, ConnectionLost) as error:
        raise Unanswered(503, f"ZooKeeper is unreachable: {error}") from error
    if found.code is ZkCode.NO_NODE:
        raise Unanswered(404, f"there is no znode {path}")
    if not found.ok or found.stat is None:
        raise Unanswered(503, f"{path}: {found.code.value}")
    stat, children = found.stat, listed.children
    return {
        "path": path,
        "data": _data(path, found.data),
        "size_bytes": len(found.data or b""),
        "version": stat.version,
        "czxid": stat.czxid,
        "mzxid": stat.mzxid,
        "mtime_ms": stat.mtime_ms,
        "ephemeral_owner": f"0x{stat.ephemeral_owner:x}" if stat.ephemeral_owner else None,
        "children": list(children[:CHILDREN_MAX]),
        "children_left_out": max(0, len(children) - CHILDREN_MAX),
        "watched_here": list(watched),
    }


def _data(path: str, data: bytes | None) -> Any:
    """Decode JSON or text; show only the size of other data."""
    if not data:
        return None
    if len(data) > DATA_BYTES_MAX:
        return f"({len(data)} bytes are too many to show)"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"({len(data)} bytes, not text)"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return HIDDEN if paths.is_sensitive(path) else text
    return without_secrets(path, value)


def without_secrets(path: str, value: Any) -> Any:
    """Keep only names in a sensitive znode: the name `SCRAM-SHA-256` reveals that a credential exists, but nothing else."""
    if not paths.is_sensitive(path):
        return value
    if isinstance(value, dict):
        return {name: without_secrets(path, each) for name, each in value.items()}
    # A small number is the document's version.
    return value if value is None or (isinstance(value, int) and 0 <= value < 100) else HIDDEN
