"""Znodes of a secured cluster that every client of ZooKeeper can change.

A broker with `zookeeper.set.acl=true` closes the znodes that it creates. Znodes that a tool or a broker without credentials
created before stay open: a stranger can replace a super user's password there. `find_open` finds them for the broker, the
tools and doctor. `close_what_is_open` is what a broker does about them when it starts. Owner: the event loop.
"""

import logging
from collections.abc import Sequence
from typing import Final

from barnabas.base.znode_path import closing_command
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import GetAcl, Operation, SetAcl, ZkCode
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import NoNode, NotAuthorized, checked
from barnabas.broker.zookeeper_client.znodes_security import PERMISSION_READ, ZnodeAcl

_log = logging.getLogger(__name__)

#: All znodes of Kafka and Barnabas except `/consumers`, below which old consumers write themselves.
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
ROOT: Final = "/"
#: Largest number of children of one znode to check: a cluster may have 100,000 topics, and one open znode is enough.
CHILDREN_MAX: Final = 100
_NAMED_MAX: Final = 3


def _of_every_cluster() -> tuple[str, ...]:
    """The root, and the znodes that brokers create when they start, with their parents."""
    created = (
        *SECURED,
        *paths.PERSISTENT,
        *paths.ACL_PERSISTENT,
        paths.DELEGATION_TOKENS,
        paths.DELEGATION_TOKEN_CHANGES,
    )
    all_of_them = dict.fromkeys(parent for path in created for parent in (*paths.parents(path), path))
    return (ROOT, *(path for path in all_of_them if path != paths.CONSUMERS))


async def find_open(session: ZooKeeperSession, chroot: str = "") -> list[str]:
    """Return the znodes of every cluster, and the first children of each, that clients without credentials can change. Znodes
    with secrets count if such clients can read them, and come first. A znode whose ACL this session may not read is closed.
    Paths are relative to `chroot`."""
    fixed = _of_every_cluster()
    children: list[str] = []
    for path in fixed[1:]:
        try:
            names = await session.children(chroot + path)
        except (NoNode, NotAuthorized):
            continue
        children += [below for name in names[:CHILDREN_MAX] if (below := f"{path}/{name}") not in fixed]
    found = await open_among(session, (*fixed, *children), chroot)
    return sorted(found, key=lambda path: not paths.is_sensitive(path))


async def open_among(session: ZooKeeperSession, wanted: Sequence[str], chroot: str = "") -> list[str]:
    asked: list[Operation] = [GetAcl(_below(chroot, path)) for path in wanted]
    results = (await session.batch(asked)).results
    for operation, result in zip(asked, results, strict=True):
        if result.code not in (ZkCode.NO_NODE, ZkCode.NO_AUTH):
            checked(operation, result)
    return [path for path, result in zip(wanted, results, strict=True) if result.ok and _is_open(path, result.acl)]


def _below(chroot: str, path: str) -> str:
    return chroot or ROOT if path == ROOT else chroot + path


def _is_open(path: str, acl: Sequence[ZnodeAcl]) -> bool:
    harmless = 0 if paths.is_sensitive(path) else PERMISSION_READ
    return any(entry.scheme == "world" and entry.permissions & ~harmless for entry in acl)


def named(open_paths: Sequence[str]) -> str:
    """Return a text like `/config/users, /brokers/ids, /admin and 12 other znodes`."""
    more = len(open_paths) - _NAMED_MAX
    text = ", ".join(open_paths[:_NAMED_MAX])
    return text + (f" and {more} other znode{'s' if more > 1 else ''}" if more > 0 else "")


async def close_what_is_open(session: ZooKeeperSession, *, connect: str, has_chroot: bool) -> None:
    """Close open znodes when a broker with `zookeeper.set.acl=true` starts.

    Before the first broker registers, no broker depends on the open ACLs: this one closes the open znodes and all credentials.
    Topics stay, because each has a tree of its own, and there may be 100,000. The root of a whole ZooKeeper stays: other
    applications may use it. While other brokers are registered, it changes nothing, because brokers that do not have the
    credentials yet would stop working. A warning names the znodes that stay open.
    """
    found = await find_open(session)
    if not found:
        return
    if not await session.children(paths.BROKER_IDS):
        of_topics = paths.BROKER_TOPICS + "/"
        closable = [path for path in found if not path.startswith(of_topics) and (path != ROOT or has_chroot)]
        for path in paths.SENSITIVE:
            closable += await _all_below(session, path)
        await _close(session, closable)
        remaining = await find_open(session)
        if closed := [path for path in found if path not in remaining]:
            _log.warning(
                "[zookeeper] closed znodes that every client of ZooKeeper could change: %s. They were created without the "
                "brokers' credentials. Check that they were not changed: `barnabas configs --describe --entity-type users` and "
                "`barnabas acls --list`",
                named(closed),
            )
        found = remaining
    if found:
        _log.warning(
            "[zookeeper] zookeeper.set.acl=true, but every client of ZooKeeper can change %s. As soon as all brokers have the "
            "credentials, close them: %s",
            named(found),
            closing_command(connect),
        )


async def _all_below(session: ZooKeeperSession, path: str) -> list[str]:
    try:
        children = [f"{path}/{name}" for name in await session.children(path)]
    except NoNode:
        return []
    return children + [deeper for child in children for deeper in await _all_below(session, child)]


async def _close(session: ZooKeeperSession, wanted: Sequence[str]) -> None:
    operations: list[Operation] = [SetAcl(path) for path in wanted]
    for operation, result in zip(operations, (await session.batch(operations)).results, strict=True):
        if result.code is not ZkCode.NO_NODE:
            checked(operation, result)
