"""ZooKeeper's tree in memory, for simulations and tests of pure machines: the semantics of `operations`, nothing else.

No sockets, no clock, no threads, one caller. Watches that fire are handed back, in order, for the caller to deliver.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Exists,
    Get,
    GetAcl,
    GetChildren,
    Guard,
    Multi,
    Operation,
    Result,
    SetAcl,
    SetData,
    Stat,
    Write,
    ZkCode,
)
from barnabas.broker.zookeeper_client.znodes_security import OPEN_ACL, ZnodeAcl, default_acl


@dataclass(frozen=True, slots=True)
class Fired:
    """A watch to be delivered to the session that set it."""

    session: int
    watch: Hashable
    path: str


@dataclass(slots=True)
class _Node:
    data: bytes | None
    czxid: int
    mzxid: int
    pzxid: int
    owner: int = 0
    version: int = 0
    sequence: int = 0
    acl: tuple[ZnodeAcl, ...] = OPEN_ACL
    children: dict[str, None] = field(default_factory=dict)

    def stat(self) -> Stat:
        return Stat(self.version, self.czxid, self.owner, mzxid=self.mzxid, pzxid=self.pzxid)


@dataclass(frozen=True, slots=True)
class Executed:
    results: tuple[Result, ...]
    moved: bool
    fired: tuple[Fired, ...]


class MemoryZooKeeper:
    def __init__(self, persistent: Iterable[str] = paths.PERSISTENT) -> None:
        self._nodes: dict[str, _Node] = {"/": _Node(None, 0, 0, 0)}
        self._zxid = 0
        self._sessions = 0
        self._live: set[int] = set()
        #: (kind, path) -> who watches, in order.
        self._watches: dict[tuple[str, str], dict[tuple[int, Hashable], None]] = {}
        self._fired: list[Fired] = []
        for path in persistent:
            for each in (*paths.parents(path), path):
                if each not in self._nodes:
                    self._create(0, Create(each))
        self._fired.clear()

    # --- sessions -----------------------------------------------------------------------------------------------------

    def open_session(self) -> int:
        self._sessions += 1
        self._live.add(self._sessions)
        return self._sessions

    def expire(self, session: int) -> tuple[Fired, ...]:
        """Ends a session: its ephemerals and its watches go. Returns the events for other sessions."""
        self._live.discard(session)
        for watchers in self._watches.values():
            for key in [key for key in watchers if key[0] == session]:
                del watchers[key]
        for path in sorted(path for path, node in self._nodes.items() if node.owner == session):
            self._zxid += 1
            self._delete(Delete(path))
        return self._take_fired()

    # --- operations ---------------------------------------------------------------------------------------------------

    def execute(self, session: int, operations: Iterable[Operation], guard: Guard | None = None) -> Executed:
        """As a session's `batch` does: every operation has its answer, and a guard that fails ends it."""
        assert session in self._live, f"session {session} is over"
        results = []
        for operation in operations:
            assert guard is None or isinstance(operation, Write), f"only a write can be guarded, not {operation}"
            if guard is not None and not self._holds(guard):
                return Executed((), True, self._take_fired())
            results.append(self._apply(session, operation))
        return Executed(tuple(results), False, self._take_fired())

    def get(self, path: str) -> bytes | None:
        """For tests: the data, or KeyError."""
        return self._nodes[path].data

    def exists(self, path: str) -> bool:
        return path in self._nodes

    def children(self, path: str) -> tuple[str, ...]:
        return tuple(sorted(self._nodes[path].children))

    def dump(self) -> dict[str, tuple[bytes | None, int, bool]]:
        """For tests: path -> (data, version, ephemeral)."""
        return {path: (node.data, node.version, bool(node.owner)) for path, node in sorted(self._nodes.items())}

    def _take_fired(self) -> tuple[Fired, ...]:
        fired, self._fired = tuple(self._fired), []
        return fired

    def _holds(self, guard: Guard) -> bool:
        node = self._nodes.get(paths.CONTROLLER_EPOCH)
        return node is not None and node.version == guard.epoch_zk_version

    def _apply(self, session: int, operation: Operation) -> Result:
        match operation:
            case Get(path, watch):
                node = self._nodes.get(path)
                if node is None:
                    return Result(ZkCode.NO_NODE)
                self._watch("data", path, session, watch)
                return Result(ZkCode.OK, data=node.data, stat=node.stat())
            case Exists(path, watch):
                self._watch("data", path, session, watch)
                node = self._nodes.get(path)
                return Result(ZkCode.NO_NODE) if node is None else Result(ZkCode.OK, stat=node.stat())
            case GetChildren(path, watch):
                node = self._nodes.get(path)
                if node is None:
                    return Result(ZkCode.NO_NODE)
                self._watch("children", path, session, watch)
                return Result(ZkCode.OK, children=tuple(sorted(node.children)), stat=node.stat())
            case GetAcl(path):
                node = self._nodes.get(path)
                return Result(ZkCode.NO_NODE) if node is None else Result(ZkCode.OK, stat=node.stat(), acl=node.acl)
            case SetAcl(path):
                node = self._nodes.get(path)
                if node is None:
                    return Result(ZkCode.NO_NODE)
                node.acl = default_acl(path, secure=True)
                return Result(ZkCode.OK, stat=node.stat())
            case Multi(operations):
                return self._multi(session, operations)
            case Create() | SetData() | Delete():
                code = self._check(operation)
                return Result(code) if code is not ZkCode.OK else self._write(session, operation)

    def _multi(self, session: int, operations: tuple[Create | SetData | Delete | Check, ...]) -> Result:
        saved = {
            path: (node.data, node.version, node.sequence, node.mzxid, node.pzxid, dict(node.children))
            for path, node in self._nodes.items()
        }
        nodes = dict(self._nodes)
        watches = {key: dict(value) for key, value in self._watches.items()}
        fired = list(self._fired)
        results: list[Result] = []
        for index, operation in enumerate(operations):
            code = self._check(operation)
            if code is not ZkCode.OK:
                # All is as it was; the others only say that they were rolled back.
                self._nodes, self._watches, self._fired = nodes, watches, fired
                for path, (data, version, sequence, mzxid, pzxid, children) in saved.items():
                    node = self._nodes[path]
                    node.data, node.version, node.sequence = data, version, sequence
                    node.mzxid, node.pzxid, node.children = mzxid, pzxid, children
                parts = [Result(ZkCode.ROLLED_BACK)] * len(operations)
                parts[index] = Result(code)
                return Result(code, results=tuple(parts))
            results.append(Result(ZkCode.OK) if isinstance(operation, Check) else self._write(session, operation))
        return Result(ZkCode.OK, results=tuple(results))

    def _check(self, operation: Create | SetData | Delete | Check) -> ZkCode:
        node = self._nodes.get(operation.path)
        if isinstance(operation, Create):
            parent = self._nodes.get(_parent(operation.path))
            if parent is None:
                return ZkCode.NO_NODE
            if parent.owner:
                return ZkCode.NO_CHILDREN_FOR_EPHEMERALS
            return ZkCode.OK if node is None or operation.sequence else ZkCode.NODE_EXISTS
        if node is None:
            return ZkCode.NO_NODE
        if operation.version not in (ANY_VERSION, node.version):
            return ZkCode.BAD_VERSION
        if isinstance(operation, Delete) and node.children:
            return ZkCode.NOT_EMPTY
        return ZkCode.OK

    def _write(self, session: int, operation: Create | SetData | Delete) -> Result:
        self._zxid += 1
        if isinstance(operation, Create):
            return Result(ZkCode.OK, path=self._create(session, operation))
        if isinstance(operation, Delete):
            self._delete(operation)
            return Result(ZkCode.OK)
        node = self._nodes[operation.path]
        node.data = operation.data
        node.version += 1
        node.mzxid = self._zxid
        self._fire("data", operation.path)
        return Result(ZkCode.OK, stat=node.stat())

    def _create(self, session: int, operation: Create) -> str:
        path = operation.path
        above = _parent(path)
        if operation.sequence:
            path = f"{path}{self._nodes[above].sequence:010d}"
        self._nodes[above].sequence += 1
        self._nodes[above].pzxid = zxid = self._zxid
        self._nodes[path] = _Node(operation.data, zxid, zxid, zxid, owner=session if operation.ephemeral else 0)
        self._nodes[above].children[path.rpartition("/")[2]] = None
        self._fire("data", path)
        self._fire("children", above)
        return path

    def _delete(self, operation: Delete) -> None:
        path = operation.path
        del self._nodes[path]
        above = _parent(path)
        self._nodes[above].pzxid = self._zxid
        del self._nodes[above].children[path.rpartition("/")[2]]
        self._fire("data", path)
        self._fire("children", path)
        self._fire("children", above)

    def _watch(self, kind: str, path: str, session: int, watch: Hashable | None) -> None:
        if watch is not None:
            self._watches.setdefault((kind, path), {})[(session, watch)] = None

    def _fire(self, kind: str, path: str) -> None:
        for session, watch in self._watches.pop((kind, path), {}):
            self._fired.append(Fired(session, watch, path))


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
