"""Answer reads and set watches: takes the tree and a request, returns (error, body, events). Pure.

Watches are not durable: they belong to a connection, and its client sets them again after it reconnects.
"""

from barnabas.base.errors import Malformed
from barnabas.zookeeper import acl as acls
from barnabas.zookeeper import wire
from barnabas.zookeeper.acl import Refusal
from barnabas.zookeeper.tree import DataTree, Node
from barnabas.zookeeper.watches import PERSISTENT, RECURSIVE, Client, WatchEvent
from barnabas.zookeeper.wire import MULTI_END, MULTI_HEADER, MULTI_OPS_MAX, Err, Event, Op, Perm, Reader

READS = frozenset(
    {
        Op.EXISTS,
        Op.GET_DATA,
        Op.GET_ACL,
        Op.GET_CHILDREN,
        Op.GET_CHILDREN2,
        Op.GET_ALL_CHILDREN_NUMBER,
        Op.GET_EPHEMERALS,
        Op.MULTI_READ,
        Op.SYNC,
        Op.SET_WATCHES,
        Op.SET_WATCHES2,
        Op.ADD_WATCH,
        Op.CHECK_WATCHES,
        Op.REMOVE_WATCHES,
        Op.WHO_AM_I,
    }
)

#: Bound of the response to one multi of reads: a request of a few kilobytes can ask for the same megabyte many times.
MULTI_READ_BYTES_MAX = 8 << 20

_CHILDREN_TYPE, _DATA_TYPE, _ANY_TYPE = 1, 2, 3


def read(tree: DataTree, client: Client, op: int, reader: Reader) -> tuple[int, bytes, list[WatchEvent]]:
    """Answer one read. A refused or malformed request gets an error code, and the connection continues."""
    events: list[WatchEvent] = []
    try:
        if op == Op.GET_DATA:
            return 0, _get_data(tree, client, reader), events
        if op == Op.EXISTS:
            return 0, _exists(tree, client, reader), events
        if op in (Op.GET_CHILDREN, Op.GET_CHILDREN2):
            return 0, _get_children(tree, client, op, reader), events
        return 0, _other(tree, client, op, reader, events), events
    except Refusal as refusal:
        return refusal.err, b"", events
    except Malformed:
        return Err.MARSHALLING_ERROR, b"", events


def _readable(tree: DataTree, client: Client, path: str, perm: int = Perm.READ) -> Node:
    node = tree.nodes.get(path)
    if node is None:
        raise Refusal(Err.NO_NODE)
    acls.check(node.acl, perm, client.identities)
    return node


def _get_data(tree: DataTree, client: Client, reader: Reader) -> bytes:
    path, watch = reader.text(), reader.boolean()
    node = _readable(tree, client, path)
    if watch:
        tree.data_watches.add(path, client)
    return wire.buffer(node.data) + node.stat()


def _exists(tree: DataTree, client: Client, reader: Reader) -> bytes:
    path, watch = reader.text(), reader.boolean()
    if "\0" in path:
        raise Refusal(Err.BAD_ARGUMENTS)
    node = tree.nodes.get(path)
    if node is not None:
        acls.check(node.acl, Perm.READ, client.identities)
    if watch:
        # Also on a node that does not exist: its creation triggers the watch.
        tree.data_watches.add(path, client)
    if node is None:
        raise Refusal(Err.NO_NODE)
    return node.stat()


def _get_children(tree: DataTree, client: Client, op: int, reader: Reader) -> bytes:
    path, watch = reader.text(), reader.boolean()
    node = _readable(tree, client, path)
    if watch:
        tree.child_watches.add(path, client)
    names = wire.texts(node.children or {})
    return names + node.stat() if op == Op.GET_CHILDREN2 else names


def _other(tree: DataTree, client: Client, op: int, reader: Reader, events: list[WatchEvent]) -> bytes:
    match op:
        case Op.GET_ACL:
            return _get_acl(tree, client, reader.text())
        case Op.GET_ALL_CHILDREN_NUMBER:
            path = reader.text()
            _readable(tree, client, path)
            return wire.INT.pack(tree.descendant_count(path))
        case Op.GET_EPHEMERALS:
            prefix = (reader.optional_text() or "").strip()
            own = tree.ephemerals.get(client.session_id, {})
            return wire.texts([path for path in own if prefix in ("", "/") or path.startswith(prefix)])
        case Op.SYNC:
            # There is only one server, so its state is always in sync.
            return wire.text(reader.text())
        case Op.MULTI_READ:
            return _multi_read(tree, client, reader)
        case Op.SET_WATCHES | Op.SET_WATCHES2:
            events.extend(_set_watches(tree, client, op, reader))
            return b""
        case Op.ADD_WATCH:
            return _add_watch(tree, client, reader)
        case Op.CHECK_WATCHES | Op.REMOVE_WATCHES:
            return _check_or_remove_watches(tree, client, op, reader)
        case Op.WHO_AM_I:
            return _who_am_i(client)
        case _:
            raise Malformed(f"operation {op} is not a read")


def _get_acl(tree: DataTree, client: Client, path: str) -> bytes:
    node = _readable(tree, client, path, Perm.READ | Perm.ADMIN)
    acl = node.acl if acls.allows(node.acl, Perm.ADMIN, client.identities) else acls.redact(node.acl)
    return wire.acl_bytes(acl) + node.stat()


def _multi_read(tree: DataTree, client: Client, reader: Reader) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        op, done, _err = reader.i32(), reader.boolean(), reader.i32()
        if done:
            parts.append(MULTI_END)
            return b"".join(parts)
        try:
            if op == Op.GET_DATA:
                body = _get_data(tree, client, reader)
            elif op == Op.GET_CHILDREN:
                body = _get_children(tree, client, op, reader)
            else:
                raise Malformed(f"operation {op} in a multi of reads")
        except Refusal as refusal:
            op, err, body = Op.ERROR, refusal.err, wire.INT.pack(refusal.err)
            parts.append(MULTI_HEADER.pack(op, False, err))
        else:
            parts.append(MULTI_HEADER.pack(op, False, 0))
        parts.append(body)
        size += len(body)
        if len(parts) > 2 * MULTI_OPS_MAX or size > MULTI_READ_BYTES_MAX:
            raise Malformed(f"a multi of more than {MULTI_OPS_MAX} reads, or of {MULTI_READ_BYTES_MAX} bytes")


def _set_watches(tree: DataTree, client: Client, op: int, reader: Reader) -> list[WatchEvent]:
    """Restore the watches of a reconnected client: send events for changes since `relative_zxid`, and watch the rest again."""
    relative_zxid = reader.i64()
    data, exist, child = reader.texts(), reader.texts(), reader.texts()
    persistent, recursive = (reader.texts(), reader.texts()) if op == Op.SET_WATCHES2 else ([], [])
    events: list[WatchEvent] = []

    def report(event: Event, path: str) -> None:
        events.append(WatchEvent(event, path, [client]))

    for path in data:
        node = tree.nodes.get(path)
        if node is None:
            report(Event.DELETED, path)
        elif node.mzxid > relative_zxid:
            report(Event.DATA_CHANGED, path)
        else:
            tree.data_watches.add(path, client)
    for path in exist:
        if path in tree.nodes:
            report(Event.CREATED, path)
        else:
            tree.data_watches.add(path, client)
    for path in child:
        node = tree.nodes.get(path)
        if node is None:
            report(Event.DELETED, path)
        elif node.pzxid > relative_zxid:
            report(Event.CHILDREN_CHANGED, path)
        else:
            tree.child_watches.add(path, client)
    for path in persistent:
        tree.add_watch(path, client, PERSISTENT)
    for path in recursive:
        tree.add_watch(path, client, RECURSIVE)
    return events


def _add_watch(tree: DataTree, client: Client, reader: Reader) -> bytes:
    path, mode = reader.text(), reader.i32()
    if mode not in (0, 1):
        raise Malformed(f"watch mode {mode}")
    tree.add_watch(path, client, RECURSIVE if mode else PERSISTENT)
    return wire.INT.pack(0)


def _check_or_remove_watches(tree: DataTree, client: Client, op: int, reader: Reader) -> bytes:
    path, kind = reader.text(), reader.i32()
    if kind not in (_CHILDREN_TYPE, _DATA_TYPE, _ANY_TYPE):
        raise Malformed(f"watcher type {kind}")
    tables = []
    if kind != _DATA_TYPE:
        tables.append(tree.child_watches)
    if kind != _CHILDREN_TYPE:
        tables.append(tree.data_watches)
    if op == Op.REMOVE_WATCHES:
        found = [table.remove(path, client) for table in tables]
    else:
        found = [table.contains(path, client) for table in tables]
    if not any(found):
        raise Refusal(Err.NO_WATCHER)
    return b""


def _who_am_i(client: Client) -> bytes:
    parts = [wire.INT.pack(len(client.identities))]
    for scheme, identity in client.identities:
        user = identity.split(":", 1)[0] if scheme == "digest" else identity
        parts.append(wire.text(scheme))
        parts.append(wire.text(user))
    return b"".join(parts)
