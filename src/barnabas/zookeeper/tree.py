"""The tree of znodes, in memory. Pure: takes transactions, returns results and watch events.

Only `apply_*` change it, both live and during a replay. They are idempotent as ZooKeeper's fuzzy snapshots require: if a
snapshot already has the effect of a replayed transaction, the outcome is the same.
"""

from collections.abc import Iterator

from barnabas.zookeeper import acl as acls
from barnabas.zookeeper.acl import OPEN_ACL, READ_ACL, Refusal
from barnabas.zookeeper.watches import Client, WatchEvent, WatchTable
from barnabas.zookeeper.wire import STAT, Acl, Err, Event, Perm

#: `ephemeralOwner` of a container node: Java's Long.MIN_VALUE.
CONTAINER_OWNER = -(1 << 63)
#: `ephemeralOwner` of a TTL node: top byte 0xff, two reserved bytes, then the TTL.
TTL_OWNER_BITS = -(1 << 56)
TTL_MS_MAX = (1 << 40) - 1


def parent_of(path: str) -> str:
    return path[: path.rfind("/")] or "/"


def ttl_owner(ttl_ms: int) -> int:
    return TTL_OWNER_BITS | ttl_ms


class Node:
    """One znode."""

    __slots__ = (
        "acl",
        "aversion",
        "children",
        "ctime",
        "cversion",
        "czxid",
        "data",
        "mtime",
        "mzxid",
        "owner",
        "pzxid",
        "version",
    )

    def __init__(self, data: bytes | None, acl: Acl, owner: int, zxid: int, time_ms: int) -> None:
        self.data = data
        #: Interned by the tree: equal ACLs are one object.
        self.acl = acl
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime = self.mtime = time_ms
        self.version = self.aversion = 0
        #: Number of children ever created, as ZooKeeper stores it; clients see creations plus deletions.
        self.cversion = 0
        #: 0, a session id, `CONTAINER_OWNER`, or `ttl_owner(…)`.
        self.owner = owner
        #: Names in order of creation; None before the first child.
        self.children: dict[str, None] | None = None

    @property
    def child_count(self) -> int:
        return len(self.children) if self.children else 0

    @property
    def ttl_ms(self) -> int | None:
        return self.owner & TTL_MS_MAX if TTL_OWNER_BITS <= self.owner < 0 else None

    def stat(self) -> bytes:
        children = len(self.children) if self.children else 0
        data = self.data
        owner = self.owner
        return STAT.pack(
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            _wrap_int(self.cversion * 2 - children),
            self.aversion,
            # Containers and TTL nodes have no owner that a client may see.
            owner if owner > 0 else 0,
            len(data) if data else 0,
            children,
            self.pzxid,
        )


def is_ephemeral(owner: int) -> bool:
    """Session ids are positive: the server id in the top byte is at most 0x7e."""
    return owner > 0


def _wrap_int(value: int) -> int:
    """Java's int arithmetic."""
    return (value + 0x80000000 & 0xFFFFFFFF) - 0x80000000


SPECIAL_PATHS = frozenset({"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"})


class DataTree:
    """Invariants: the parent of every node except `/` is in `nodes`, was inserted before it, and has its name among its
    children; `ephemerals`, `containers` and `ttls` index exactly the nodes with such owners.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.ephemerals: dict[int, dict[str, None]] = {}
        self.containers: dict[str, None] = {}
        self.ttls: dict[str, None] = {}
        #: Bytes of paths and data, as ZooKeeper counts them.
        self.data_bytes = 0
        #: Descendant counts that were requested since a node was last created or deleted.
        self._descendants: dict[str, int] = {}
        self.data_watches = WatchTable()
        self.child_watches = WatchTable()
        self._acls: dict[Acl, Acl] = {OPEN_ACL: OPEN_ACL, READ_ACL: READ_ACL}
        for path in ("/", "/zookeeper", "/zookeeper/quota"):
            self.restore(path, Node(b"", OPEN_ACL, 0, 0, 0))
        self.restore("/zookeeper/config", Node(b"", READ_ACL, 0, 0, 0))
        # ZooKeeper sets the ACL of its config node by setACL with version -1.
        self.nodes["/zookeeper/config"].aversion = -1

    def intern(self, acl: Acl) -> Acl:
        return self._acls.setdefault(acl, acl)

    def restore(self, path: str, node: Node) -> None:
        """Insert a node from a snapshot. Its parent must exist."""
        node.acl = self.intern(node.acl)
        before = self.nodes.get(path)
        if before is not None:
            # A snapshot's /, /zookeeper, … replace the ones that every new tree has.
            node.children = before.children
            self.data_bytes -= len(path) + len(before.data or b"")
        elif path != "/":
            parent = self.nodes[parent_of(path)]
            if parent.children is None:
                parent.children = {}
            parent.children[path[path.rfind("/") + 1 :]] = None
        self.nodes[path] = node
        self.data_bytes += len(path) + len(node.data or b"")
        self._index(path, node.owner)

    def _index(self, path: str, owner: int) -> None:
        if owner == 0:
            return
        if owner > 0:
            self.ephemerals.setdefault(owner, {})[path] = None
        elif owner == CONTAINER_OWNER:
            self.containers[path] = None
        else:
            self.ttls[path] = None

    # ---- transactions -------------------------------------------------------------------------------------------------

    def apply_create(
        self,
        path: str,
        data: bytes | None,
        acl: Acl,
        *,
        owner: int,
        parent_cversion: int,
        zxid: int,
        time_ms: int,
        events: list[WatchEvent],
    ) -> Node:
        slash = path.rfind("/")
        parent_path = path[:slash] or "/"
        parent = self.nodes.get(parent_path)
        if parent is None:
            raise Refusal(Err.NO_NODE)
        # Never lower it: during a replay over a newer snapshot, the parent may have a higher version already.
        if parent_cversion > parent.cversion:
            parent.cversion = parent_cversion
            parent.pzxid = zxid
        if path in self.nodes:
            raise Refusal(Err.NODE_EXISTS)
        acl = self._acls.setdefault(acl, acl)
        node = Node(data, acl, owner, zxid, time_ms)
        if parent.children is None:
            parent.children = {}
        parent.children[path[slash + 1 :]] = None
        self.nodes[path] = node
        if self._descendants:
            self._descendants.clear()
        self.data_bytes += len(path) + (len(data) if data else 0)
        if owner:
            self._index(path, owner)
        self._fire(self.data_watches, path, Event.CREATED, acl, events)
        self._fire(self.child_watches, parent_path, Event.CHILDREN_CHANGED, parent.acl, events)
        return node

    def apply_delete(self, path: str, *, zxid: int, events: list[WatchEvent]) -> None:
        slash = path.rfind("/")
        parent_path = path[:slash] or "/"
        parent = self.nodes.get(parent_path)
        if parent is None:
            raise Refusal(Err.NO_NODE)
        parent.pzxid = max(parent.pzxid, zxid)
        node = self.nodes.pop(path, None)
        if node is None:
            raise Refusal(Err.NO_NODE)
        if parent.children is not None:
            parent.children.pop(path[slash + 1 :], None)
        if self._descendants:
            self._descendants.clear()
        self.data_bytes -= len(path) + (len(node.data) if node.data else 0)
        owner = node.owner
        if owner > 0:
            held = self.ephemerals.get(owner)
            if held is not None:
                held.pop(path, None)
                if not held:
                    del self.ephemerals[owner]
        elif owner:
            self.containers.pop(path, None)
            self.ttls.pop(path, None)
        notified = self._fire(self.data_watches, path, Event.DELETED, node.acl, events)
        self._fire(self.child_watches, path, Event.DELETED, node.acl, events, notified=notified)
        self._fire(self.child_watches, parent_path, Event.CHILDREN_CHANGED, parent.acl, events)

    def apply_set_data(
        self, path: str, data: bytes | None, *, version: int, zxid: int, time_ms: int, events: list[WatchEvent]
    ) -> Node:
        node = self.nodes.get(path)
        if node is None:
            raise Refusal(Err.NO_NODE)
        self.data_bytes += (len(data) if data else 0) - (len(node.data) if node.data else 0)
        node.data = data
        node.mtime = time_ms
        node.mzxid = zxid
        node.version = version
        self._fire(self.data_watches, path, Event.DATA_CHANGED, node.acl, events)
        return node

    def apply_set_acl(self, path: str, acl: Acl, *, version: int) -> Node:
        node = self.nodes.get(path)
        if node is None:
            raise Refusal(Err.NO_NODE)
        node.acl = self._acls.setdefault(acl, acl)
        node.aversion = version
        return node

    # ---- watches ------------------------------------------------------------------------------------------------------

    def _fire(
        self,
        table: WatchTable,
        path: str,
        event: Event,
        acl: Acl,
        events: list[WatchEvent],
        *,
        notified: list[Client] | None = None,
    ) -> list[Client]:
        """Trigger watches. Notify clients that may read the node, except those in `notified`, which already got this event."""
        clients = table.trigger(path, event)
        if not clients:
            return clients
        audience = clients if not notified else [client for client in clients if client not in notified]
        if acl is not OPEN_ACL:
            # ZooKeeper filters events by the ACL of the node since CVE-2024-23944.
            audience = [client for client in audience if acls.allows(acl, Perm.READ, client.identities)]
        if audience:
            events.append(WatchEvent(event, path, audience))
        return clients

    def add_watch(self, path: str, client: Client, mode: int) -> None:
        self.data_watches.add(path, client, mode)
        self.child_watches.add(path, client, mode)

    def forget_client(self, client: Client) -> None:
        self.data_watches.remove_client(client)
        self.child_watches.remove_client(client)

    # ---- queries ------------------------------------------------------------------------------------------------------

    def descendant_count(self, path: str) -> int:
        if path == "/":
            return len(self.nodes) - 1
        count = self._descendants.get(path)
        if count is None:
            prefix = path + "/"
            count = self._descendants[path] = sum(1 for other in self.nodes if other.startswith(prefix))
        return count

    def expired_candidates(self, *, now_ms: int) -> Iterator[str]:
        """Yield empty containers that had a child before, and empty TTL nodes past their time."""
        for path in self.containers:
            node = self.nodes[path]
            if not node.children and node.cversion > 0:
                yield path
        for path in self.ttls:
            node = self.nodes[path]
            ttl_ms = node.ttl_ms
            if not node.children and ttl_ms and now_ms - node.mtime > ttl_ms:
                yield path

    def acl_table(self) -> list[Acl]:
        """Return the ACLs in use; the others are forgotten."""
        used = {node.acl for node in self.nodes.values()}
        self._acls = {acl: acl for acl in used | {OPEN_ACL, READ_ACL}}
        return [acl for acl in used if acl is not OPEN_ACL]
