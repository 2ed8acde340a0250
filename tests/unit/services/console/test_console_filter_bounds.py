"""An expression cannot keep a thread for hours, nor fill the memory."""

import resource

import pytest

from barnabas.services.console import expressions
from barnabas.services.console.expressions import CannotSay, compiled


@pytest.mark.parametrize("macro", ["all(a, value.all(b, value.all(c, true)))", "map(a, value.map(b, a + b)).size() > 0",
                                   "filter(a, value.exists(b, value.exists_one(c, c < 0))).size() > 0"])  # fmt: skip
def test_lists_in_lists_in_lists_are_counted(macro: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "ELEMENTS_MAX", 100)
    evaluate = compiled(f"value.{macro}")
    with pytest.raises(CannotSay, match="more than 100 elements"):
        evaluate({"value": list(range(30))})
    # Each record has the whole budget.
    for _ in range(3):
        evaluate({"value": [1, 2, 3]})


def test_a_pattern_that_would_not_end_in_python_does() -> None:
    evaluate = compiled('value.matches("^(a+)+$")')
    assert not evaluate({"value": "a" * 5_000 + "!"})


def test_a_long_list_is_looked_through() -> None:
    evaluate = compiled("value.exists(each, each == 999)")
    assert evaluate({"value": list(range(1_000))})


def memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


DOUBLED = "".join(".map(x, x + x)" for _ in range(200))
NESTED = "".join(".map(x, [x, x])" for _ in range(110))


@pytest.mark.parametrize(
    "expression",
    [
        '"%1000000000d" % 5 == ""',
        'value.text * 1000000000 == ""',
        f"[value.text]{DOUBLED}.size() > 0",
        f"[value.list]{DOUBLED}.size() > 0",
        f"[1]{NESTED} == [1]{NESTED}",
        f'string([1]{NESTED}) == ""',
        f"[1]{NESTED}.exists(x, nobody_knows(x))",
        "".join(".map(x, {'a': x, 'b': x})" for _ in range(150)).join(["[1]", ".size() > 0"]),
        "value.list.map(x, value.text + value.text).size() > 0",
        "value.list.reduce(sum, x, value.text, sum + sum).size() > 0",
    ],
)
def test_nothing_outgrows_the_memory(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "WORK_MAX", 200_000)  # the same, sooner
    evaluate = compiled(expression)
    before = memory_mb()
    with pytest.raises(CannotSay):
        evaluate({"value": {"text": "x" * 1_000, "list": list(range(10_000))}})
    assert memory_mb() - before < 200


def test_time_of_an_expression_for_a_record_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "SECONDS_MAX", 0.05)
    monkeypatch.setattr(expressions, "WORK_MAX", 10**12)
    evaluate = compiled("value.all(a, value.all(b, value == value))")
    with pytest.raises(CannotSay, match=r"more than 0\.05 s"):
        evaluate({"value": list(range(2_000))})


@pytest.mark.parametrize(
    ("expression", "is_true"),
    [
        ("type(value.list) == list && type(value.text) == string", True),
        ("string(value.number) == '7' && value.number % 4 == 3", True),
        ("value.list.map(x, x * 2).exists(x, x == 1998)", True),
        ("value.text + '!' == 'hello!' && value.list + [1] != value.list", True),
        ("{'a': [1, 2]}.a.size() == 2 && 3 in value.list", True),
        ("value.text.contains('z')", False),
    ],
)
def test_usual_expressions_stay_within_the_bounds(expression: str, is_true: bool) -> None:
    evaluate = compiled(expression)
    assert evaluate({"value": {"text": "hello", "number": 7, "list": list(range(1_000))}}) is is_true


@pytest.mark.parametrize(
    "expression",
    ["value.n" + " && value.n" * 200, "value.n" + " || value.n" * 200, "value.list.all(x, value.n)",
     "value.list.exists(x, x + 1)", "[value.n, value.list.all(x, value.list)].all(x, size(1) + value)"],
)  # fmt: skip
def test_errors_do_not_quote_each_other(expression: str) -> None:
    """Each error of && quoted the one before, with twice as many backslashes: the text grew to gigabytes."""
    evaluate = compiled(expression)
    before = memory_mb()
    with pytest.raises(CannotSay):
        evaluate({"value": {"n": 1, "list": list(range(3_000))}})
    assert memory_mb() - before < 300
