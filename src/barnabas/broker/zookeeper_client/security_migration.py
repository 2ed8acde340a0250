"""Closes a Kafka tree in ZooKeeper to strangers, or opens it again: what Kafka's `ZkSecurityMigrator` does.

Brokers with `zookeeper.set.acl` protect the znodes that they create; `open_znodes` handles the others. This module closes the
root and every znode below it. Owner: the calling thread.
"""

from collections.abc import Iterator

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import ACL, Id

from barnabas.base.errors import BarnabasError
from barnabas.broker.zookeeper_client.kazoo_client import TlsHandler
from barnabas.broker.zookeeper_client.open_znodes import SECURED
from barnabas.broker.zookeeper_client.session_config import SessionConfig
from barnabas.broker.zookeeper_client.znodes_security import default_acl


class Unreachable(BarnabasError):
    """No ZooKeeper answered."""


def connect(config: SessionConfig, *, timeout_s: float) -> KazooClient:
    """Return a started client, with the certificate and the digest of the settings. :raises Unreachable:"""
    client = KazooClient(
        config.hosts + config.chroot,
        timeout=config.session_timeout_ms / 1000,
        handler=TlsHandler(config.tls),
        auth_data=list(config.auth) or None,
    )
    try:
        client.start(timeout_s)
    except client.handler.timeout_exception as error:
        client.close()
        raise Unreachable(f"no ZooKeeper answers at {config.hosts}") from error
    return client


def migrate(client: KazooClient, *, secure: bool) -> int:
    """Set the ACL of the root and of every znode of Kafka's; return their number. Skips znodes that come or go meanwhile."""
    changed = 0
    for path in ("/", *(below for top in SECURED for below in _tree(client, top))):
        entries = default_acl(path, secure=secure)
        acl = [ACL(entry.permissions, Id(entry.scheme, entry.id or "creator")) for entry in entries]
        try:
            client.set_acls(path, acl)
        except NoNodeError:
            continue
        changed += 1
    return changed


def _tree(client: KazooClient, path: str) -> Iterator[str]:
    """Yield `path` and everything below it, children first: once the top is closed, this client may not see the children."""
    try:
        children = client.get_children(path)
    except NoNodeError:
        return
    for name in children:
        yield from _tree(client, f"{path}/{name}")
    yield path
