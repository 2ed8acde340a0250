"""Transactions: the validated form of a write, and its bytes in ZooKeeper's log format.

A transaction states the result, not the request (versions are absolute, sequential names are complete), so applying it needs
no validation and can be repeated.
"""

import struct
from typing import NamedTuple

from barnabas.base.errors import Malformed
from barnabas.zookeeper import wire
from barnabas.zookeeper.wire import Acl, Op, Reader

#: clientId, cxid, zxid, time, type
_HEADER = struct.Struct(">qiqqi")


class TxnHeader(NamedTuple):
    client_id: int
    cxid: int
    zxid: int
    time_ms: int


class CreateTxn(NamedTuple):
    #: CREATE, CREATE2, CREATE_TTL or CREATE_CONTAINER.
    op: int
    path: str
    data: bytes | None
    acl: Acl
    ephemeral: bool
    #: -1 except for CREATE_TTL.
    ttl_ms: int
    parent_cversion: int


class DeleteTxn(NamedTuple):
    path: str
    op: int = Op.DELETE


class SetDataTxn(NamedTuple):
    path: str
    data: bytes | None
    version: int
    op: int = Op.SET_DATA


class SetAclTxn(NamedTuple):
    path: str
    acl: Acl
    version: int
    op: int = Op.SET_ACL


class CheckTxn(NamedTuple):
    path: str
    version: int
    op: int = Op.CHECK


class CreateSessionTxn(NamedTuple):
    timeout_ms: int
    op: int = Op.CREATE_SESSION


class CloseSessionTxn(NamedTuple):
    #: The ephemerals that are deleted with the session.
    paths: tuple[str, ...]
    op: int = Op.CLOSE_SESSION


class ErrorTxn(NamedTuple):
    """A refused write. Clients have seen its zxid, so it is logged as well."""

    err: int
    op: int = Op.ERROR


SubTxn = CreateTxn | DeleteTxn | SetDataTxn | CheckTxn | ErrorTxn


class MultiTxn(NamedTuple):
    """All or nothing. A failed one has an `ErrorTxn` in place of the operation that failed, and changes nothing."""

    txns: tuple[SubTxn, ...]
    op: int = Op.MULTI


Txn = SubTxn | SetAclTxn | CreateSessionTxn | CloseSessionTxn | MultiTxn


def _body(txn: Txn) -> bytes:
    match txn:
        case CreateTxn(op, path, data, acl, ephemeral, ttl_ms, parent_cversion):
            head = wire.text(path) + wire.buffer(data) + wire.acl_bytes(acl)
            if op == Op.CREATE_TTL:
                return head + struct.pack(">iq", parent_cversion, ttl_ms)
            if op == Op.CREATE_CONTAINER:
                return head + wire.INT.pack(parent_cversion)
            return head + struct.pack(">?i", ephemeral, parent_cversion)
        case SetDataTxn(path, data, version):
            return wire.text(path) + wire.buffer(data) + wire.INT.pack(version)
        case DeleteTxn(path):
            return wire.text(path)
        case CheckTxn(path, version):
            return wire.text(path) + wire.INT.pack(version)
        case SetAclTxn(path, acl, version):
            return wire.text(path) + wire.acl_bytes(acl) + wire.INT.pack(version)
        case MultiTxn(txns):
            parts = [wire.INT.pack(len(txns))]
            for sub in txns:
                parts.append(wire.INT.pack(sub.op))
                parts.append(wire.buffer(_body(sub)))
            return b"".join(parts)
        case CloseSessionTxn(paths):
            return wire.texts(list(paths))
        case CreateSessionTxn(value) | ErrorTxn(value):
            return wire.INT.pack(value)


def encode(header: TxnHeader, txn: Txn) -> bytes:
    return _HEADER.pack(*header, txn.op) + _body(txn)


def decode(raw: bytes) -> tuple[TxnHeader, Txn]:
    """Decode one transaction. Bytes after it (ZooKeeper's digest of the tree) are ignored. Raises `Malformed`."""
    if len(raw) < _HEADER.size:
        raise Malformed(f"transaction of {len(raw)} bytes")
    client_id, cxid, zxid, time_ms, op = _HEADER.unpack_from(raw)
    return TxnHeader(client_id, cxid, zxid, time_ms), _read(op, Reader(raw, _HEADER.size))


def _read(op: int, reader: Reader) -> Txn:
    if op == Op.MULTI:
        return MultiTxn(tuple(_read_sub(reader) for _ in range(reader.count(8))))
    if op == Op.SET_ACL:
        return SetAclTxn(reader.text(), reader.acl(), reader.i32())
    if op == Op.CREATE_SESSION:
        return CreateSessionTxn(reader.i32())
    if op == Op.CLOSE_SESSION:
        # Before 3.6 it had no body.
        return CloseSessionTxn(tuple(reader.texts()) if reader.remaining else ())
    return _read_simple(op, reader)


def _read_sub(reader: Reader) -> SubTxn:
    op = reader.i32()
    raw = reader.buffer()
    return _read_simple(op, Reader(raw or b""))


def _read_simple(op: int, reader: Reader) -> SubTxn:
    if op in (Op.CREATE, Op.CREATE2):
        path, data, acl, ephemeral = reader.text(), reader.buffer(), reader.acl(), reader.boolean()
        return CreateTxn(op, path, data, acl, ephemeral, -1, reader.i32())
    if op == Op.CREATE_TTL:
        path, data, acl, cversion = reader.text(), reader.buffer(), reader.acl(), reader.i32()
        return CreateTxn(op, path, data, acl, False, reader.i64(), cversion)
    if op == Op.CREATE_CONTAINER:
        return CreateTxn(op, reader.text(), reader.buffer(), reader.acl(), False, -1, reader.i32())
    if op in (Op.DELETE, Op.DELETE_CONTAINER):
        return DeleteTxn(reader.text(), op)
    if op in (Op.SET_DATA, Op.RECONFIG):
        return SetDataTxn(reader.text(), reader.buffer(), reader.i32())
    if op == Op.CHECK:
        return CheckTxn(reader.text(), reader.i32())
    if op == Op.ERROR:
        return ErrorTxn(reader.i32())
    raise Malformed(f"transaction of unknown type {op}")
