"""What the indexes of a tiered segment say, and how a slice is cut by them."""

import struct

import pytest

from barnabas.core.ids import TopicPartition
from barnabas.spark.tier_slices import Place, TierSlice, aborted_in, cut, index_places
from barnabas.storage.txn_index import AbortedTxn, encode
from barnabas.tiered.layout import Part
from barnabas.tiered.store import StoreFault

ABORTED = AbortedTxn(7, 3, 9, 3)  # type: ignore[arg-type]


def test_places_end_where_a_preallocated_index_does() -> None:
    data = struct.pack(">8i", 4, 0, 9, 100, 19, 200, 0, 0) + bytes(80)
    assert list(index_places(data, 1_000, 500)) == [Place(1_009, 100), Place(1_019, 200)]


def test_damaged_transaction_index_is_a_fault_and_hides_no_aborted_transaction() -> None:
    assert list(aborted_in("a.log", {Part.TXN_INDEX: encode(ABORTED)})) == [ABORTED]
    with pytest.raises(StoreFault, match=r"a\.log: entry at 34 has an unknown version 5"):
        list(aborted_in("a.log", {Part.TXN_INDEX: encode(ABORTED) + struct.pack(">hqqqq", 5, *ABORTED)}))


def test_slices_have_each_offset_once_and_only_their_own_aborted_transactions() -> None:
    piece = TierSlice(TopicPartition("t", 0), b"", "a.log", 0, 30, 0, 300, (ABORTED,))
    places = [Place(9, 100), Place(19, 200)]
    slices = cut(piece, places, max_bytes=100, max_records=None)
    assert [(each.from_offset, each.until_offset) for each in slices] == [(0, 10), (10, 20), (20, 30)]
    assert [(each.start, each.end) for each in slices] == [(0, 300), (100, 300), (200, 300)]
    assert [each.aborted for each in slices] == [(ABORTED,), (), ()]
