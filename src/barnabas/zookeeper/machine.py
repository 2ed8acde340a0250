"""The state machine: tree and sessions. Pure: takes a request, zxid and time; returns transaction, response and watch events.

Owner: the event loop. `write` validates a request and applies the resulting transaction. Only `apply` changes durable state;
replaying the log calls it, too.
"""

from typing import NamedTuple

from barnabas.base.errors import BrokenInvariant, Malformed
from barnabas.zookeeper import prepare, wire
from barnabas.zookeeper.acl import Refusal
from barnabas.zookeeper.sessions import SessionTable
from barnabas.zookeeper.tree import CONTAINER_OWNER, DataTree, ttl_owner
from barnabas.zookeeper.txns import (
    CheckTxn,
    CloseSessionTxn,
    CreateSessionTxn,
    CreateTxn,
    DeleteTxn,
    ErrorTxn,
    MultiTxn,
    SetAclTxn,
    SetDataTxn,
    SubTxn,
    Txn,
    TxnHeader,
)
from barnabas.zookeeper.watches import Client, WatchEvent
from barnabas.zookeeper.wire import MULTI_END, MULTI_HEADER, Err, Op, Reader


class Written(NamedTuple):
    """The result of a write: a transaction to log, a response, and events to send before the response."""

    header: TxnHeader
    txn: Txn
    err: int
    body: bytes
    events: list[WatchEvent]


class Machine:
    """Invariant: `last_zxid` is the zxid of the last applied transaction; zxids only grow."""

    def __init__(self, *, tick_ms: int) -> None:
        self.tree = DataTree()
        self.sessions = SessionTable(tick_ms=tick_ms)
        self.last_zxid = 0

    # ---- writes -------------------------------------------------------------------------------------------------------

    def write(self, client: Client, op: int, cxid: int, reader: Reader, *, zxid: int, now_ms: int) -> Written:
        """Validate and apply one request. A refused request becomes an error transaction, which also takes a zxid."""
        header = TxnHeader(client.session_id, cxid, zxid, now_ms)
        txn: Txn
        try:
            request = prepare.decode(op, reader)
            txn = prepare.prepare(request, self.tree, client.session_id, client.identities)
        except Refusal as refusal:
            txn = ErrorTxn(refusal.err)
        except Malformed:
            txn = ErrorTxn(Err.MARSHALLING_ERROR)
        written = self._commit(header, txn)
        # A single check is logged as a multi, but its client expects no multi response.
        return written if op != Op.CHECK else written._replace(body=b"")

    def open_session(self, session_id: int, timeout_ms: int, *, zxid: int, now_ms: int) -> Written:
        return self._commit(TxnHeader(session_id, 0, zxid, now_ms), CreateSessionTxn(timeout_ms))

    def close_session(self, session_id: int, cxid: int, *, zxid: int, now_ms: int) -> Written:
        """Close a session at its client's request or because it expired. The same transaction deletes its ephemerals."""
        self.sessions.begin_close(session_id)
        paths = tuple(self.tree.ephemerals.get(session_id, ()))
        return self._commit(TxnHeader(session_id, cxid, zxid, now_ms), CloseSessionTxn(paths))

    def delete_container(self, path: str, *, zxid: int, now_ms: int) -> Written | None:
        """Delete a container; return None if it must not be deleted any more."""
        try:
            txn = prepare.prepare_delete_container(path, self.tree)
        except Refusal:
            return None
        return self._commit(TxnHeader(0, 0, zxid, now_ms), txn)

    def _commit(self, header: TxnHeader, txn: Txn) -> Written:
        events: list[WatchEvent] = []
        err, body = self._apply(header, txn, events, strict=True)
        return Written(header, txn, err, body, events)

    # ---- the one function that changes durable state ------------------------------------------------------------------

    def replay(self, header: TxnHeader, txn: Txn) -> None:
        """Apply a transaction from the log, to a snapshot that may already include its effect."""
        self._apply(header, txn, [], strict=False)

    def _apply(self, header: TxnHeader, txn: Txn, events: list[WatchEvent], *, strict: bool) -> tuple[int, bytes]:
        """`strict`: the transaction was just validated against this state, so applying it cannot fail."""
        if header.zxid <= self.last_zxid:
            raise BrokenInvariant(f"zxid 0x{header.zxid:x} after 0x{self.last_zxid:x}")
        try:
            err, body = self._dispatch(header, txn, events, strict=strict)
        except Refusal as refusal:
            if strict:
                raise BrokenInvariant(f"{txn!r} was validated and then refused: {refusal.err.name}") from refusal
            err, body = refusal.err, b""
        except Exception as bug:
            raise BrokenInvariant(f"{type(txn).__name__} 0x{header.zxid:x} was applied only in part: {bug!r}") from bug
        self.last_zxid = header.zxid
        return err, body

    def _dispatch(self, header: TxnHeader, txn: Txn, events: list[WatchEvent], *, strict: bool) -> tuple[int, bytes]:
        match txn:
            case MultiTxn():
                return 0, self._apply_multi(header, txn, events, strict=strict)
            case CreateSessionTxn():
                self.sessions.add(header.client_id, txn.timeout_ms)
                return 0, b""
            case CloseSessionTxn():
                self._apply_close_session(header, txn, events)
                return 0, b""
            case SetAclTxn():
                return 0, self.tree.apply_set_acl(txn.path, txn.acl, version=txn.version).stat()
            case ErrorTxn():
                return txn.err, b""
            case _:
                return 0, self._apply_simple(header, txn, events)

    def _apply_simple(
        self, header: TxnHeader, txn: CreateTxn | DeleteTxn | SetDataTxn | CheckTxn, events: list[WatchEvent]
    ) -> bytes:
        tree = self.tree
        match txn:
            case SetDataTxn():
                return tree.apply_set_data(
                    txn.path, txn.data, version=txn.version, zxid=header.zxid, time_ms=header.time_ms, events=events
                ).stat()
            case CreateTxn():
                if txn.op == Op.CREATE_TTL:
                    owner = ttl_owner(txn.ttl_ms)
                elif txn.op == Op.CREATE_CONTAINER:
                    owner = CONTAINER_OWNER
                else:
                    owner = header.client_id if txn.ephemeral else 0
                node = tree.apply_create(
                    txn.path,
                    txn.data,
                    txn.acl,
                    owner=owner,
                    parent_cversion=txn.parent_cversion,
                    zxid=header.zxid,
                    time_ms=header.time_ms,
                    events=events,
                )
                return wire.text(txn.path) if txn.op == Op.CREATE else wire.text(txn.path) + node.stat()
            case DeleteTxn():
                tree.apply_delete(txn.path, zxid=header.zxid, events=events)
                return b""
            case CheckTxn():
                return b""

    def _apply_multi(self, header: TxnHeader, multi: MultiTxn, events: list[WatchEvent], *, strict: bool) -> bytes:
        if any(isinstance(txn, ErrorTxn) for txn in multi.txns):
            return _failed_multi(multi.txns)
        parts: list[bytes] = []
        for txn in multi.txns:
            assert not isinstance(txn, ErrorTxn), "checked above"
            try:
                body = self._apply_simple(header, txn, events)
            except Refusal:
                if strict:
                    raise
                # During a replay each part is applied on its own: a fuzzy snapshot may already include some of them.
                continue
            op = Op.CREATE2 if txn.op in (Op.CREATE_TTL, Op.CREATE_CONTAINER) else txn.op
            parts.append(MULTI_HEADER.pack(op, False, 0))
            parts.append(body)
        parts.append(MULTI_END)
        return b"".join(parts)

    def _apply_close_session(self, header: TxnHeader, txn: CloseSessionTxn, events: list[WatchEvent]) -> None:
        session_id = header.client_id
        # The second part is for logs of old servers, which do not list the paths.
        for path in dict.fromkeys((*txn.paths, *self.tree.ephemerals.get(session_id, ()))):
            try:
                self.tree.apply_delete(path, zxid=header.zxid, events=events)
            except Refusal:
                # The snapshot was taken after the node's deletion.
                continue
        self.sessions.remove(session_id)


def _failed_multi(txns: tuple[SubTxn, ...]) -> bytes:
    """Return error results: OK before the failure, then its error, then RUNTIME_INCONSISTENCY."""
    parts: list[bytes] = []
    for txn in txns:
        err = txn.err if isinstance(txn, ErrorTxn) else 0
        parts.append(MULTI_HEADER.pack(Op.ERROR, False, err))
        parts.append(wire.INT.pack(err))
    parts.append(MULTI_END)
    return b"".join(parts)
