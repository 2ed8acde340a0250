"""A model of ZooKeeper: one tree, one order of transactions, sessions that expire, watches that fire once."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from barnabas.coordination import paths
from barnabas.coordination.operations import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Exists,
    Get,
    GetChildren,
    Guard,
    Multi,
    Operation,
    Result,
    SetData,
    Stat,
    ZkCode,
)


@dataclass
class Node:
    data: bytes | None
    czxid: int
    owner: int = 0
    version: int = 0
    sequence: int = 0
    children: set[str] = field(default_factory=set)
    mzxid: int = 0

    @property
    def stat(self) -> Stat:
        return Stat(version=self.version, czxid=self.czxid, ephemeral_owner=self.owner, mzxid=self.mzxid or self.czxid)


class Session:
    def __init__(self, number: int, expires_ms: int, on_watch: Callable[[Hashable], None]) -> None:
        self.number = number
        self.expires_ms = expires_ms
        self.on_watch = on_watch
        self.is_alive = True
        #: Arrival times of the last message each way: a session is one TCP connection, in order.
        self.last_out_ms = 0
        self.last_in_ms = 0


class SimZooKeeper:
    def __init__(self, on_write: Callable[[int, str, bytes | None], None] = lambda session, path, data: None) -> None:
        """`on_write(session, path, data)` is told of each write that went through."""
        self._nodes: dict[str, Node] = {"/": Node(None, 0)}
        self._zxid = 0
        self._sessions: dict[int, Session] = {}
        self._numbers = 0
        self._on_write = on_write
        #: (path, "data" | "children") -> watches, in the order of asking.
        self._watches: dict[tuple[str, str], dict[tuple[int, Hashable], None]] = {}

    # --- sessions --------------------------------------------------------------------------------------------------

    def open_session(self, expires_ms: int, on_watch: Callable[[Hashable], None]) -> Session:
        self._numbers += 1
        session = self._sessions[self._numbers] = Session(self._numbers, expires_ms, on_watch)
        return session

    def expire(self, session: Session) -> None:
        session.is_alive = False
        self._sessions.pop(session.number, None)
        for path in [path for path, node in self._nodes.items() if node.owner == session.number]:
            self._delete(path)

    # --- operations ------------------------------------------------------------------------------------------------

    def execute(
        self, session: Session, operations: tuple[Operation, ...], guard: Guard | None = None
    ) -> tuple[tuple[Result, ...], bool]:
        """All of a batch, in order. The flag: the guard did not hold, and the rest was not done."""
        results = []
        for operation in operations:
            is_write = not isinstance(operation, Get | Exists | GetChildren)
            if guard is not None and is_write and self.version_of(paths.CONTROLLER_EPOCH) != guard.epoch_zk_version:
                return tuple(results), True
            results.append(self._execute(session, operation))
        return tuple(results), False

    def _execute(self, session: Session, operation: Operation) -> Result:
        match operation:
            case Get(path, watch):
                node = self._nodes.get(path)
                if node is None:
                    return Result(ZkCode.NO_NODE)
                self._watch(session, path, "data", watch)
                return Result(ZkCode.OK, data=node.data, stat=node.stat)
            case Exists(path, watch):
                node = self._nodes.get(path)
                self._watch(session, path, "data", watch)
                return Result(ZkCode.NO_NODE) if node is None else Result(ZkCode.OK, stat=node.stat)
            case GetChildren(path, watch):
                node = self._nodes.get(path)
                if node is None:
                    return Result(ZkCode.NO_NODE)
                self._watch(session, path, "children", watch)
                return Result(ZkCode.OK, children=tuple(sorted(node.children)), stat=node.stat)
            case Multi(parts):
                return self._multi(session, parts)
            case _:
                code = self._verdict(operation)
                return self._apply(session, operation) if code is ZkCode.OK else Result(code)

    def _multi(self, session: Session, parts: tuple[Create | SetData | Delete | Check, ...]) -> Result:
        """Judged one after the other on the tree before it: none of ours depends on another of the same transaction,
        but for a parent that is made before its child."""
        made = {part.path for part in parts if isinstance(part, Create)}
        codes = [self._verdict(part, made) for part in parts]
        bad = next((code for code in codes if code is not ZkCode.OK), None)
        if bad is not None:
            return Result(
                bad,
                results=tuple(Result(code if code is not ZkCode.OK else ZkCode.ROLLED_BACK) for code in codes),
            )
        done = tuple(Result(ZkCode.OK) if isinstance(part, Check) else self._apply(session, part) for part in parts)
        return Result(ZkCode.OK, results=done)

    def _verdict(self, part: Operation | Check, made: set[str] = frozenset()) -> ZkCode:  # type: ignore[assignment]
        match part:
            case Create(path, sequence=sequence):
                parent = _parent(path)
                if parent not in self._nodes and parent not in made:
                    return ZkCode.NO_NODE
                return ZkCode.NODE_EXISTS if path in self._nodes and not sequence else ZkCode.OK
            case SetData(path, _, version) | Delete(path, version) | Check(path, version):
                node = self._nodes.get(path)
                if node is None:
                    return ZkCode.NO_NODE
                if version not in (ANY_VERSION, node.version):
                    return ZkCode.BAD_VERSION
                return ZkCode.NOT_EMPTY if isinstance(part, Delete) and node.children else ZkCode.OK
        raise TypeError(f"{part!r} is no write")

    def _apply(self, session: Session, part: Create | SetData | Delete) -> Result:
        self._zxid += 1
        match part:
            case Create(path, data, ephemeral, sequence):
                parent_path = _parent(path)
                parent = self._nodes[parent_path]
                if sequence:
                    path = f"{path}{parent.sequence:010d}"
                    parent.sequence += 1
                node = self._nodes[path] = Node(data, self._zxid, session.number if ephemeral else 0)
                parent.children.add(path.rpartition("/")[2])
                self._on_write(session.number, path, data)
                self._fire(path, "data")
                self._fire(parent_path, "children")
                return Result(ZkCode.OK, path=path, stat=node.stat)
            case SetData(path, data):
                node = self._nodes[path]
                node.data = data
                node.version += 1
                node.mzxid = self._zxid
                self._on_write(session.number, path, data)
                self._fire(path, "data")
                return Result(ZkCode.OK, stat=node.stat)
            case Delete(path):
                self._delete(path)
                return Result(ZkCode.OK)
        raise TypeError(f"{part!r} is no write")

    def _delete(self, path: str) -> None:
        self._zxid += 1
        del self._nodes[path]
        parent_path = _parent(path)
        self._nodes[parent_path].children.discard(path.rpartition("/")[2])
        self._fire(path, "data")
        self._fire(path, "children")
        self._fire(parent_path, "children")

    def _watch(self, session: Session, path: str, kind: str, watch: Hashable | None) -> None:
        if watch is not None:
            self._watches.setdefault((path, kind), {})[(session.number, watch)] = None

    def _fire(self, path: str, kind: str) -> None:
        for number, watch in self._watches.pop((path, kind), ()):
            session = self._sessions.get(number)
            if session is not None:
                session.on_watch(watch)

    # --- for the outside -------------------------------------------------------------------------------------------

    def make(self, path: str, data: bytes | None = None) -> None:
        """An administrator's hand: the path with its parents."""
        parent = _parent(path)
        if parent not in self._nodes:
            self.make(parent)
        if path not in self._nodes:
            self._apply(Session(0, 0, lambda watch: None), Create(path, data))

    def data_of(self, path: str) -> bytes | None:
        node = self._nodes.get(path)
        return None if node is None else node.data

    def version_of(self, path: str) -> int:
        node = self._nodes.get(path)
        return -2 if node is None else node.version

    def mzxid_of(self, path: str) -> int:
        """The transaction that wrote it last; 0 if it is not there."""
        node = self._nodes.get(path)
        return 0 if node is None else node.stat.mzxid

    def children_of(self, path: str) -> tuple[str, ...]:
        node = self._nodes.get(path)
        return () if node is None else tuple(sorted(node.children))


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
