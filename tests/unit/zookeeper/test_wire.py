"""Jute within bounds: whatever the bytes are, the reader raises `Malformed` or returns, and allocates no more than their
size."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.base.errors import Malformed
from barnabas.zookeeper import prepare, txns, wire
from barnabas.zookeeper.wire import Op, Reader


def made(kind: type, *fields: st.SearchStrategy[object]) -> st.SearchStrategy[txns.Txn]:
    return st.tuples(*fields).map(lambda values: kind(*values))


ACL = st.lists(st.tuples(st.integers(0, 31), st.text(max_size=5), st.text(max_size=5)), max_size=3).map(tuple)


@given(st.text(max_size=20), st.binary(max_size=20), ACL, st.lists(st.text(max_size=5), max_size=4))
def test_written_values_are_read_back(name: str, data: bytes, acl: wire.Acl, names: list[str]) -> None:
    raw = wire.text(name) + wire.buffer(data) + wire.acl_bytes(acl) + wire.texts(names) + wire.buffer(None)
    reader = Reader(raw)
    assert (reader.text(), reader.buffer(), reader.acl(), reader.texts(), reader.buffer()) == (
        name,
        data,
        acl,
        names,
        None,
    )
    assert reader.remaining == 0


@given(st.sampled_from(sorted(prepare.WRITES)), st.binary(max_size=64))
def test_garbage_requests_are_malformed_or_mean_something(op: int, raw: bytes) -> None:
    try:
        prepare.decode(op, Reader(raw))
    except Malformed:
        return


@given(st.binary(max_size=96))
def test_garbage_transactions_are_malformed_or_mean_something(raw: bytes) -> None:
    try:
        txns.decode(raw)
    except Malformed:
        return


@pytest.mark.parametrize("length", [-2, -(2**31), 2**31 - 1, 5])
def test_lengths_that_cannot_be_are_refused_before_anything_is_allocated(length: int) -> None:
    raw = struct.pack(">i", length) + b"abcd"
    for read in (Reader.text, Reader.buffer, Reader.texts, Reader.acl):
        with pytest.raises(Malformed):
            read(Reader(raw))


@given(
    st.one_of(
        made(
            txns.CreateTxn,
            st.sampled_from([1, 15]),
            st.text(),
            st.binary(),
            ACL,
            st.booleans(),
            st.just(-1),
            st.integers(0, 9),
        ),
        made(
            txns.CreateTxn,
            st.just(21),
            st.text(),
            st.none(),
            ACL,
            st.just(False),
            st.integers(1, 99),
            st.integers(0, 9),
        ),
        made(txns.DeleteTxn, st.text()),
        made(txns.SetDataTxn, st.text(), st.binary() | st.none(), st.integers(0, 9)),
        made(txns.SetAclTxn, st.text(), ACL, st.integers(0, 9)),
        made(txns.CloseSessionTxn, st.lists(st.text()).map(tuple)),
        made(txns.CreateSessionTxn, st.integers(1, 99)),
        made(txns.ErrorTxn, st.integers(-127, 0)),
        made(
            txns.MultiTxn,
            st.lists(made(txns.DeleteTxn, st.text()) | made(txns.CheckTxn, st.text(), st.integers(0, 9))).map(tuple),
        ),
    )
)
def test_transactions_survive_the_log_with_or_without_a_digest_behind(txn: txns.Txn) -> None:
    header = txns.TxnHeader(7, 8, 9, 10)
    raw = txns.encode(header, txn)
    assert txns.decode(raw) == (header, txn)
    assert txns.decode(raw + struct.pack(">iq", 2, 12345)) == (header, txn)


def test_notification_is_framed_as_zookeeper_frames_it() -> None:
    raw = wire.notification(wire.Event.CREATED, "/a")
    assert raw.hex() == "0000001effffffffffffffffffffffff000000000000000100000003000000022f61"
    assert wire.reply(5, 6, -101) == struct.pack(">iiqi", 16, 5, 6, -101)
    assert Op(14) is Op.MULTI
