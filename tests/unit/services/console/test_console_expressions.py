"""Filters in CEL: quick functions and celpy give the same answers, and a wrong filter is refused with its place."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from barnabas.services.console import expressions, messages
from barnabas.services.console.decoding import ShownRecord, show_record
from barnabas.services.console.errors import Refusal
from barnabas.services.console.expressions import CannotSay, compiled
from barnabas.services.console.filters import Filter
from barnabas.services.console.web import Call, User
from barnabas.wire.records import Record


def outcome(evaluate: Any, value: Any) -> bool | None:
    try:
        return bool(evaluate({"value": value}))
    except CannotSay:
        return None


@pytest.mark.parametrize(
    ("expression", "value", "wanted"),
    [
        ("value == 1", 1.0, True), ("value == 1.0", 1, True), ("1 < value", 1.5, True), ("value >= 1", 1.0, True),
        ("null != value.gone", {}, None),
        ("value == null", 1, False), ("value != null", 1, True), ("value == null", None, True),
        ("value > 1", "a", None), ("value.a == 1", {}, None), ("value.a == 1", 5, None),
        ("has(value.a)", {}, False), ("has(value.a.b)", {}, False), ("has(value.a)", {"a": None}, True),
        ("false && value.a", {}, False), ("value.a && false", {}, False), ("value.a || true", {}, True),
        ("value.a == 1 || value.b == 1", {"b": 1}, True), ("value.a == 1 || value.b == 1", {"b": 2}, None),
        ("value ? true : false", True, True), ('value in ["x", "y"]', "y", True), ('"x" in value', {"x": 1}, True),
        ("value == true", 1, False), ('value.startsWith("a") && value.endsWith("c")', "abc", True),
        ('value.contains("b")', 1, None), ('value.matches("^a+$")', "aaa", True), ("value.size() == 2", [1, 2], True),
        ("size(value) > 0", "", False), ("value[0] == 1", [1], True), ("value[5] == 1", [1], None),
        ('value["a"] == 1', {"a": 1}, True), ("!value", False, True), ("!value", 1, None), ("value", 1, None),
        ("value % 7 == -1", -8, True), ("value / 2 == -1", -3, True), ("value / 0 == 1", 1, None),
        ("value * 9223372036854775807 > 0", 2, None), ('value + "b" == "ab"', "a", True), ("value - 1 == 1", 2, True),
        ("value.exists(x, x.a == 2)", [{}, {"a": 2}], True), ("value.exists(x, x.a == 2)", [{}, {"a": 1}], None),
        ("value.all(x, x > 0)", [1, 2], True), ("value.all(x, x > 0)", [1, -2], False), ("value.all(x, x > 0)", [], True),
        ("value.exists(x, value.exists(y, x + y == 5))", [1, 4], True),
    ],
)  # fmt: skip
def test_quick_functions_answer_as_celpy_does(expression: str, value: Any, wanted: bool | None) -> None:
    quick, slow = compiled(expression, ["value"]), compiled(expression)
    assert (outcome(quick, value), outcome(slow, value)) == (wanted, wanted)


@pytest.mark.parametrize(("expression", "wanted"), [('value == "1"', False), ("value in [1, 2]", True)])
def test_quick_functions_know_equality_of_different_types_where_celpy_fails(expression: str, wanted: bool) -> None:
    """CEL's specification: values of different types are not equal, but for numbers."""
    assert outcome(compiled(expression, ["value"]), 2.0) is wanted and outcome(compiled(expression), 2.0) is None


_LEAVES = st.sampled_from(
    ["1", "-2", "2.5", '"a"', '"ab"', "true", "false", "null", "value", "value.n", "value.s", "value.l", "value.m.n",
     "value.b", "value.l[0]", "value.gone", "[1, 2]", '["a"]', "has(value.n)", "has(value.gone.x)", "size(value.s)"]
)  # fmt: skip
EXPRESSIONS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.builds(
            "({} {} {})".format,
            inner,
            st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "&&", "||", "+", "-", "*", "/", "%", "in"]),
            inner,
        ),
        st.builds("!({})".format, inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
        st.builds(
            "({}).{}({})".format, inner, st.sampled_from(["contains", "startsWith", "endsWith", "matches"]), inner
        ),
        st.builds("({}).{}(x, {})".format, inner, st.sampled_from(["exists", "all"]), inner),
    ),
    max_leaves=7,
)
RECORD = {"n": 3, "s": "abc", "l": [1, 2.5, 3], "m": {"n": -2, "s": ""}, "b": True, "z": None}


@settings(max_examples=400, deadline=None)
@given(EXPRESSIONS)
@example("(value.n == 3.0)")
def test_any_expression_has_the_same_answer_both_ways(expression: str) -> None:
    """celpy calls some comparisons of different types an error that CEL's specification answers: those say more here."""
    quick, slow = outcome(compiled(expression, ["value"]), RECORD), outcome(compiled(expression), RECORD)
    assert slow is None or quick == slow


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("value == ", "ends too early, after 'value == '"), ("value.x = 1", "unexpected '= 1' at character 9"),
        ("a && && b", "unexpected '&& b' at character 6"), ("1 +\n* 2", "unexpected '* 2' at line 2, column 1"),
        ("value @ 1", "unexpected '@ 1' at character 7"), ("(" * 3_000 + ")" * 500, "the filter"),
        ("1" * 4_001, "up to 4000 characters"),
    ],
)  # fmt: skip
def test_a_wrong_filter_is_refused_with_the_reason_and_the_place(expression: str, reason: str) -> None:
    with pytest.raises(Refusal) as refused:
        Filter("t", "", expression)
    assert refused.value.status == 400 and reason in str(refused.value)


def test_loops_within_loops_are_counted_and_left_to_celpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "ELEMENTS_MAX", 5_000)
    evaluate = compiled("value.all(a, value.exists(b, b == 999 || value.all(c, c >= 0)))", ["value"])
    with pytest.raises(CannotSay, match="more than 5,000 elements"):
        evaluate({"value": list(range(1_000))})


def shown(number: int) -> ShownRecord:
    lines = [{"sku": "a", "n": 1}, {"sku": "b", "n": number}]
    document = {"id": number, "amount": number * 1.5, "status": "paid", "customer": {"city": "Bern"}, "lines": lines}
    record = Record(number, 0, f"k{number}".encode(), json.dumps(document).encode(), ())
    return show_record("t", 0, record, key="auto", value="auto", by_registry=None)


@pytest.mark.parametrize(
    "expression",
    ['value.amount > 100 && key.startsWith("k42")', 'value.customer.city == "Bern"', "has(value.gone)",
     'value.lines.exists(line, line.sku == "b" && line.n > 7)'],
)  # fmt: skip
def test_an_expression_costs_at_most_three_times_what_a_text_costs(expression: str) -> None:
    """Decoding included, as a search has it. celpy takes thirty times as long."""

    def cost_s(wanted: Filter) -> float:
        began_s = time.thread_time()
        for number in range(1_000):
            wanted.matches(shown(number))
        return time.thread_time() - began_s

    text, cel = Filter("t", "basel", ""), Filter("t", "", expression)
    assert min(cost_s(cel) for _ in range(3)) < 3 * min(cost_s(text) for _ in range(3))


def test_an_expression_is_compiled_away_from_the_loop_and_counts_as_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_in: list[str] = []

    def slow_filter(topic: str, text: str, expression: str) -> str:
        compiled_in.append(threading.current_thread().name)
        time.sleep(0.2)
        return expression

    monkeypatch.setattr(messages, "Filter", slow_filter)
    searching: list[int] = []

    @contextlib.contextmanager
    def counted(user: object) -> Iterator[None]:
        searching.append(1)
        yield
        searching.append(-1)

    guard = SimpleNamespace(searching=counted)
    call = Call(services=SimpleNamespace(guard=guard), user=User("u", None), query={"filter": "x"})  # type: ignore[arg-type]

    async def run() -> int:
        ticks = 0
        task = asyncio.ensure_future(messages._filter(call, "t"))
        while not task.done():
            assert not searching or sum(searching) == 1
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks

    assert asyncio.run(run()) > 5
    assert compiled_in == ["console-filter_0"] and searching == [1, -1]
