"""An expression cannot keep a thread for hours."""

import pytest

from barnabas.console import filters
from barnabas.console.filters import _CannotSay, _compiled


@pytest.mark.parametrize("macro", ["all(a, value.all(b, value.all(c, true)))", "map(a, value.map(b, a + b)).size() > 0",
                                   "filter(a, value.exists(b, value.exists_one(c, c < 0))).size() > 0"])  # fmt: skip
def test_lists_in_lists_in_lists_are_counted(macro: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "ELEMENTS_MAX", 100)
    evaluate = _compiled(f"value.{macro}")
    with pytest.raises(_CannotSay, match="more than 100 elements"):
        evaluate({"value": list(range(30))})
    # Each record has the whole bound to itself.
    for _ in range(3):
        evaluate({"value": [1, 2, 3]})


def test_a_pattern_that_would_not_end_in_python_does() -> None:
    evaluate = _compiled('value.matches("^(a+)+$")')
    assert not evaluate({"value": "a" * 5_000 + "!"})


def test_a_long_list_is_looked_through() -> None:
    evaluate = _compiled("value.exists(each, each == 999)")
    assert evaluate({"value": list(range(1_000))})
