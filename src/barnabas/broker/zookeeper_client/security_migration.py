"""Closes a Kafka tree in ZooKeeper to strangers, or opens it again: what Kafka's `ZkSecurityMigrator` does.

Brokers with `zookeeper.set.acl` protect what they create. What was there before, and the root itself, they leave as it is: a
stranger could delete and create beside them. Owner: the thread that calls.
"""

from collections.abc import Iterator
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import ACL, Id

from barnabas.base.errors import BarnabasError
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.kazoo_client import TlsHandler
from barnabas.broker.zookeeper_client.session_config import SessionConfig
from barnabas.broker.zookeeper_client.znodes_security import default_acl

#: Everything of Kafka's, and ours, but `/consumers`, below which old consumers write themselves.
SECURED: Final = (
    paths.ADMIN,
    paths.BROKERS,
    paths.CLUSTER,
    paths.CONFIG,
    paths.CONTROLLER,
    paths.CONTROLLER_EPOCH,
    paths.ISR_CHANGE_NOTIFICATION,
    paths.LATEST_PRODUCER_ID_BLOCK,
    paths.LOG_DIR_EVENT_NOTIFICATION,
    paths.DELEGATION_TOKEN,
    paths.FEATURE,
    paths.MIGRATION,
    paths.ACL_LITERAL,
    paths.ACL_EXTENDED,
    paths.ACL_LITERAL_CHANGES,
    paths.ACL_EXTENDED_CHANGES,
    paths.BARNABAS,
)


class Unreachable(BarnabasError):
    """No ZooKeeper answered."""


def connect(config: SessionConfig, *, timeout_s: float) -> KazooClient:
    """A started client, with the certificate and the digest of the settings. :raises Unreachable:"""
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
    """Set the ACL of the root and of every znode of Kafka's; how many. Who comes and goes meanwhile is left out."""
    changed = 0
    for path in ("/", *(below for top in SECURED for below in _tree(client, top))):
        entries = default_acl(path, secure=secure)
        acl = [ACL(each.permissions, Id(each.scheme, each.id or "creator")) for each in entries]
        try:
            client.set_acls(path, acl)
        except NoNodeError:
            continue
        changed += 1
    return changed


def _tree(client: KazooClient, path: str) -> Iterator[str]:
    """`path` and all below it. The children first: whoever is not let in any more at the top would not see them."""
    try:
        children = client.get_children(path)
    except NoNodeError:
        return
    for name in children:
        yield from _tree(client, f"{path}/{name}")
    yield path
