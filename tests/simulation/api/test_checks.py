"""Each check passes what keeps its promise, and names the records that do not."""

import pytest

from barnabas.testing.records import Record
from barnabas.testing.simulation import check

RECORDS = [Record(b"a", b"k", (), 0, 0), Record(b"b", b"k", (), 0, 1), Record(b"c", b"l", (), 1, 0)]


def test_missing_records_are_named_with_their_places() -> None:
    check.at_least_once(RECORDS, [b"a", b"b", b"b", b"c"])
    with pytest.raises(AssertionError, match=r"1 of 3 records .*b'b' \(partition 0, offset 1\)"):
        check.at_least_once(RECORDS, [b"a", b"c"])


def test_repeated_records_are_named() -> None:
    check.exactly_once(RECORDS, [b"c", b"a", b"b"])
    with pytest.raises(AssertionError, match="worked on too often: \"b'b' 2 times\""):
        check.exactly_once(RECORDS, [b"a", b"b", b"b", b"c"])


def test_order_counts_for_each_key() -> None:
    check.in_order(RECORDS, [(b"l", b"c"), (b"k", b"a"), (b"k", b"b"), (b"k", b"a")])
    with pytest.raises(AssertionError, match="b'a' was worked on after b'b'"):
        check.in_order(RECORDS, [(b"k", b"b"), (b"k", b"a")])


def test_offset_behind_work_that_was_not_done() -> None:
    check.offsets_skip_nothing("t", RECORDS, {("t", 0): 1}, [b"a"])
    with pytest.raises(AssertionError, match="committed without having been worked on: b'b'"):
        check.offsets_skip_nothing("t", RECORDS, {("t", 0): 2}, [b"a"])


def test_outputs_of_inputs() -> None:
    check.exactly_once_between(RECORDS, RECORDS)
    for outputs, message in (
        (RECORDS[:2], "1 of 3 inputs have no output"),
        ([*RECORDS, RECORDS[0]], "inputs with several outputs: b'a'"),
        ([*RECORDS, Record(b"x")], "outputs without an input: b'x'"),
    ):
        with pytest.raises(AssertionError, match=message):
            check.exactly_once_between(RECORDS, outputs)
