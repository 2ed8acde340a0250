"""The differences that `assert_records` reports, and the forms that it accepts."""

import json

import pytest

from barnabas.cli.faults.journal import Fault, Journal
from barnabas.testing.records import Record, _Comparison


def found(*values: str, partition: int = 0) -> list[Record]:
    return [Record(value.encode(), f"k{n}".encode(), (), partition, n) for n, value in enumerate(values)]


def difference(expected: list, records: list[Record], *, in_order: bool = True, decode=None) -> str:
    return _Comparison("orders", expected, decode).difference(records, in_order=in_order)


def test_equal_records_differ_in_nothing() -> None:
    assert not difference(["a", b"b"], found("a", "b"))
    assert not difference([("k0", "a"), ("k1", "b")], found("a", "b"))
    assert not difference([Record("a", "k0")], found("a"))
    assert not difference(["b", "a"], found("a", "b"), in_order=False)


def test_difference_names_missing_records_and_extra_ones_with_their_place() -> None:
    assert difference(["a", "b", "c"], found("a", "x", "c", "c")).splitlines() == [
        "orders has 4 records, 3 were expected: 1 missing; 1 not expected; 1 too often",
        "    'a'",
        "  - 'b'",
        "  + 'x'   (partition 0, offset 1)",
        "    'c'",
        "  + 'c'   (partition 0, offset 3)",
    ]


def test_other_order_is_a_difference_where_order_counts() -> None:
    assert "the same records in another order" in difference(["a", "b"], found("b", "a"))


def test_decoded_values_are_compared_by_meaning() -> None:
    records = found('{"b": 1, "a": [1, 2]}')
    assert not difference([{"a": [1, 2], "b": 1}], records, decode=json.loads)
    assert "- {'a': 2}" in difference([{"a": 2}], records, decode=json.loads)


def test_key_that_differs_is_a_difference() -> None:
    assert "- 'other' | 'a'" in difference([("other", "a")], found("a"))


def test_long_values_that_differ_at_their_end_are_different() -> None:
    assert difference(["x" * 999 + "1"], found("x" * 999 + "2"))


def test_waiting_ends_when_more_records_would_change_nothing() -> None:
    comparison = _Comparison("orders", ["a", "b"], None)
    assert not comparison.is_decided(found("a"), in_order=True)
    assert comparison.is_decided(found("b"), in_order=True)
    assert not comparison.is_decided(found("b"), in_order=False)
    assert comparison.is_decided(found("x"), in_order=False)
    assert comparison.is_decided(found("a", "b", "c"), in_order=True)


@pytest.mark.parametrize("expected", ["abc", b"abc", ["a", ("k", "v")], [1]])
def test_records_that_cannot_be_compared_are_refused(expected: object) -> None:
    with pytest.raises(TypeError):
        _Comparison("orders", expected, None)  # type: ignore[arg-type]


def test_journal_reports_faults_that_fired_and_stresses_those_that_did_not() -> None:
    journal = Journal()
    journal.note("a", Fault("a", lambda: 2))
    journal.note("b", Fault("b", lambda: 0))
    journal.note("c")
    assert [line.split(" ", 1)[1] for line in journal.lines()] == ["a -> fired 2 times", "b -> NEVER FIRED", "c"]


def test_fault_of_an_ended_broker_keeps_its_last_count() -> None:
    counts = iter([2, None])
    fault = Fault("a", lambda: next(counts))
    assert [fault.fired, fault.fired] == [2, 2]
