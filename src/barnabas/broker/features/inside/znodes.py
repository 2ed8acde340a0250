"""One znode through this broker's session: its data as JSON, its children, who owns it, and what this broker watches of it.

Credentials never leave: of what ZooKeeper shows to brokers alone (`paths.is_sensitive`), only names are told.
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
#: In the place of each value that is not shown.
HIDDEN: Final = "(hidden)"


async def znode(session: ZooKeeperSession, path: str) -> dict[str, Any]:
    """:raises Unanswered: where there is none, or ZooKeeper is away."""
    if not path.startswith("/") or (path != "/" and path.endswith("/")) or "//" in path or "\0" in path:
        raise Unanswered(400, f"{path!r} is not the path of a znode: /brokers/ids is")
    if not session.is_connected:
        # A request would wait for the connection, and whoever looks inside asks again in a second.
        raise Unanswered(503, "ZooKeeper is away")
    watched = session.watches(path)
    try:
        found, listed = (await session.batch([Get(path), GetChildren(path)])).results
    except (SessionExpired, ConnectionLost) as error:
        raise Unanswered(503, f"ZooKeeper is away: {error}") from error
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
    """JSON where it is JSON, else text; nothing of what is not text."""
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
    """Of a sensitive znode the names remain: who sees `SCRAM-SHA-256` knows that there is a verifier, and no more."""
    if not paths.is_sensitive(path):
        return value
    if isinstance(value, dict):
        return {name: without_secrets(path, each) for name, each in value.items()}
    # A small number is the version of the document.
    return value if value is None or (isinstance(value, int) and 0 <= value < 100) else HIDDEN
