"""Validate writes: takes a request and the tree, returns a transaction or a refusal. Pure; nothing is changed here.

The checks and their order are ZooKeeper's, since the order decides which error a client sees. Within a multi, each operation
sees the effect of the previous ones, through `Overlay`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from barnabas.base.errors import Malformed
from barnabas.base.znode_path import is_valid_path
from barnabas.zookeeper import acl as acls
from barnabas.zookeeper.acl import Identity, Refusal
from barnabas.zookeeper.tree import (
    SPECIAL_PATHS,
    TTL_MS_MAX,
    DataTree,
    is_ephemeral,
    parent_of,
)
from barnabas.zookeeper.txns import (
    CheckTxn,
    CreateTxn,
    DeleteTxn,
    ErrorTxn,
    MultiTxn,
    SetAclTxn,
    SetDataTxn,
    SubTxn,
    Txn,
)
from barnabas.zookeeper.wire import MULTI_OPS_MAX, Acl, Err, Op, Perm, Reader


class CreateRequest(NamedTuple):
    op: int
    path: str
    data: bytes | None
    acl: Acl
    flags: int
    ttl_ms: int


class DeleteRequest(NamedTuple):
    path: str
    version: int


class SetDataRequest(NamedTuple):
    path: str
    data: bytes | None
    version: int


class SetAclRequest(NamedTuple):
    path: str
    acl: Acl
    version: int


class CheckRequest(NamedTuple):
    path: str
    version: int


class ReconfigRequest(NamedTuple):
    pass


SubRequest = CreateRequest | DeleteRequest | SetDataRequest | CheckRequest


class MultiRequest(NamedTuple):
    requests: list[SubRequest]


WriteRequest = SubRequest | SetAclRequest | MultiRequest | ReconfigRequest

_CREATES = frozenset({Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER, Op.CREATE_TTL})
WRITES = _CREATES | {Op.DELETE, Op.SET_DATA, Op.SET_ACL, Op.CHECK, Op.MULTI, Op.RECONFIG}


def decode(op: int, reader: Reader) -> WriteRequest:
    """Decode the whole request before any of it is validated. Raises `Malformed`."""
    if op == Op.MULTI:
        return MultiRequest(_decode_multi(reader))
    if op == Op.SET_ACL:
        return SetAclRequest(reader.text(), reader.acl(), reader.i32())
    if op == Op.RECONFIG:
        return ReconfigRequest()
    return _decode_simple(op, reader)


def _decode_simple(op: int, reader: Reader) -> SubRequest:
    if op == Op.SET_DATA:
        return SetDataRequest(reader.text(), reader.buffer(), reader.i32())
    if op in _CREATES:
        path, data, acl, flags = reader.text(), reader.buffer(), reader.acl(), reader.i32()
        return CreateRequest(op, path, data, acl, flags, reader.i64() if op == Op.CREATE_TTL else -1)
    if op == Op.DELETE:
        return DeleteRequest(reader.text(), reader.i32())
    if op == Op.CHECK:
        return CheckRequest(reader.text(), reader.i32())
    raise Malformed(f"operation {op} in a multi")


def _decode_multi(reader: Reader) -> list[SubRequest]:
    requests: list[SubRequest] = []
    while True:
        op, done, _err = reader.i32(), reader.boolean(), reader.i32()
        if done:
            return requests
        request = _decode_simple(op, reader)
        requests.append(_in_multi(request) if isinstance(request, CreateRequest) else request)
        if len(requests) > MULTI_OPS_MAX:
            raise Malformed(f"a multi of more than {MULTI_OPS_MAX} operations")


def _in_multi(request: CreateRequest) -> CreateRequest:
    """Normalise a create. Within a multi ZooKeeper reads only its flags, and fails the whole multi if they are invalid."""
    if request.op == Op.CREATE_TTL:
        return request
    if not 0 <= request.flags <= 4:
        raise Malformed(f"create flags {request.flags} in a multi")
    return request._replace(op=Op.CREATE_CONTAINER) if request.flags == 4 else request


class Znode(Protocol):
    """The properties of a node that validation needs, for a stored node or a draft."""

    acl: Acl
    version: int
    aversion: int
    cversion: int
    owner: int

    @property
    def child_count(self) -> int: ...


class View(Protocol):
    def get(self, path: str) -> Znode | None: ...


@dataclass(slots=True)
class _Draft:
    acl: Acl
    version: int = 0
    aversion: int = 0
    cversion: int = 0
    owner: int = 0
    child_count: int = 0


class Overlay:
    """The tree as it will be after the operations of a multi so far."""

    def __init__(self, tree: DataTree, session_id: int) -> None:
        self._tree = tree
        self._session_id = session_id
        self._drafts: dict[str, _Draft | None] = {}

    def get(self, path: str) -> Znode | None:
        return self._drafts[path] if path in self._drafts else self._tree.nodes.get(path)

    def _draft(self, path: str) -> _Draft:
        node = self.get(path)
        assert node is not None, "bug: only validated operations are recorded"
        draft = _Draft(node.acl, node.version, node.aversion, node.cversion, node.owner, node.child_count)
        self._drafts[path] = draft
        return draft

    def record(self, txn: SubTxn) -> None:
        match txn:
            case CreateTxn():
                parent = self._draft(parent_of(txn.path))
                parent.cversion = txn.parent_cversion
                parent.child_count += 1
                # Every owner except a session allows children, so 0 can stand for all of them here.
                owner = self._session_id if txn.ephemeral else 0
                self._drafts[txn.path] = _Draft(txn.acl, owner=owner)
            case DeleteTxn():
                self._draft(parent_of(txn.path)).child_count -= 1
                self._drafts[txn.path] = None
            case SetDataTxn():
                self._draft(txn.path).version = txn.version


def prepare(request: WriteRequest, tree: DataTree, session_id: int, identities: Sequence[Identity]) -> Txn:
    """Return the transaction for `request`. Raises `Refusal`."""
    if isinstance(request, MultiRequest):
        return _prepare_multi(request, tree, session_id, identities)
    if isinstance(request, SetAclRequest):
        return _prepare_set_acl(request, tree, identities)
    if isinstance(request, ReconfigRequest):
        # Like a server with `reconfigEnabled=false`, the default.
        raise Refusal(Err.RECONFIG_DISABLED)
    if isinstance(request, CheckRequest):
        # A log cannot contain a single check (ZooKeeper could not read it back), so it is put into a multi.
        return MultiTxn((_prepare_simple(request, tree.nodes, identities),))
    return _prepare_simple(request, tree.nodes, identities)


def _prepare_simple(request: SubRequest, view: View, identities: Sequence[Identity]) -> SubTxn:
    match request:
        case SetDataRequest():
            return _prepare_set_data(request, view, identities)
        case CreateRequest():
            return _prepare_create(request, view, identities)
        case DeleteRequest():
            return _prepare_delete(request, view, identities)
        case CheckRequest():
            return _prepare_check(request, view, identities)


def _prepare_multi(request: MultiRequest, tree: DataTree, session_id: int, identities: Sequence[Identity]) -> MultiTxn:
    overlay = Overlay(tree, session_id)
    txns: list[SubTxn] = []
    failed = False
    for sub in request.requests:
        if failed:
            txns.append(ErrorTxn(Err.RUNTIME_INCONSISTENCY))
            continue
        try:
            txn = _prepare_simple(sub, overlay, identities)
        except Refusal as refusal:
            failed = True
            txns.append(ErrorTxn(refusal.err))
        else:
            overlay.record(txn)
            txns.append(txn)
    return MultiTxn(tuple(txns))


def _validate(path: str) -> None:
    if not is_valid_path(path):
        raise Refusal(Err.BAD_ARGUMENTS)


def _next_version(current: int, expected: int) -> int:
    if expected not in (-1, current):
        raise Refusal(Err.BAD_VERSION)
    return current + 1 if current != 0x7FFFFFFF else -0x80000000


def _must(view: View, path: str) -> Znode:
    node = view.get(path)
    if node is None:
        raise Refusal(Err.NO_NODE)
    return node


def _check_mode(request: CreateRequest) -> tuple[bool, bool]:
    """Return (ephemeral, sequential). BAD_ARGUMENTS if flags and TTL contradict each other."""
    flags = request.flags
    if not 0 <= flags <= 6:
        raise Refusal(Err.BAD_ARGUMENTS)
    is_ttl = flags in (5, 6)
    if is_ttl != (request.op == Op.CREATE_TTL) or (is_ttl and not 0 < request.ttl_ms <= TTL_MS_MAX):
        raise Refusal(Err.BAD_ARGUMENTS)
    # A container stays one whatever its flags are.
    return flags in (1, 3) and request.op != Op.CREATE_CONTAINER, flags in (2, 3, 6)


def _prepare_create(request: CreateRequest, view: View, identities: Sequence[Identity]) -> CreateTxn:
    ephemeral, sequential = _check_mode(request)
    path = request.path
    if "/" not in path or "\0" in path:
        raise Refusal(Err.BAD_ARGUMENTS)
    acl = acls.fix(request.acl, identities)
    parent = _must(view, parent_of(path))
    acls.check(parent.acl, Perm.CREATE, identities)
    if sequential:
        path = f"{path}{parent.cversion:010d}"
    _validate(path)
    if view.get(path) is not None:
        raise Refusal(Err.NODE_EXISTS)
    if is_ephemeral(parent.owner):
        raise Refusal(Err.NO_CHILDREN_FOR_EPHEMERALS)
    return CreateTxn(request.op, path, request.data, acl, ephemeral, request.ttl_ms, parent.cversion + 1)


def _prepare_delete(request: DeleteRequest, view: View, identities: Sequence[Identity]) -> DeleteTxn:
    path = request.path
    if "/" not in path or "\0" in path or path in SPECIAL_PATHS:
        raise Refusal(Err.BAD_ARGUMENTS)
    parent = _must(view, parent_of(path))
    acls.check(parent.acl, Perm.DELETE, identities)
    node = _must(view, path)
    _next_version(node.version, request.version)
    if node.child_count:
        raise Refusal(Err.NOT_EMPTY)
    return DeleteTxn(path)


def _prepare_set_data(request: SetDataRequest, view: View, identities: Sequence[Identity]) -> SetDataTxn:
    path = request.path
    _validate(path)
    node = _must(view, path)
    acls.check(node.acl, Perm.WRITE, identities)
    return SetDataTxn(path, request.data, _next_version(node.version, request.version))


def _prepare_check(request: CheckRequest, view: View, identities: Sequence[Identity]) -> CheckTxn:
    _validate(request.path)
    node = _must(view, request.path)
    acls.check(node.acl, Perm.READ, identities)
    return CheckTxn(request.path, _next_version(node.version, request.version))


def _prepare_set_acl(request: SetAclRequest, tree: DataTree, identities: Sequence[Identity]) -> SetAclTxn:
    _validate(request.path)
    acl = acls.fix(request.acl, identities)
    node = _must(tree.nodes, request.path)
    acls.check(node.acl, Perm.ADMIN, identities)
    return SetAclTxn(request.path, acl, _next_version(node.aversion, request.version))


def prepare_delete_container(path: str, tree: DataTree) -> DeleteTxn:
    """Validate the server's own deletion of containers and TTL nodes: no ACL, but the node must be empty and of that kind."""
    node = _must(tree.nodes, path)
    if node.child_count:
        raise Refusal(Err.NOT_EMPTY)
    if node.owner >= 0:
        raise Refusal(Err.BAD_VERSION)
    return DeleteTxn(path, Op.DELETE_CONTAINER)
