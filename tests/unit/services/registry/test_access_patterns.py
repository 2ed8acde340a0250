"""Patterns of the registry's access rules: what they match, and what a hostile subject costs."""

import random
import re
import time

import pytest

from barnabas.services.registry.access import Pattern


@pytest.mark.parametrize(
    ("pattern", "subjects", "others"),
    [
        ("orders", ["orders"], ["orders-value", "order", ""]),
        ("orders-*", ["orders-", "orders-value"], ["orders", "my-orders-value"]),
        ("*", ["", "a", ":.c:s"], []),
        ("*-value", ["-value", "a-value"], ["value", "a-values"]),
        ("a*a", ["aa", "aba"], ["a", "ab"]),
        ("a.b", ["a.b"], ["axb"]),
        (":.*:orders", [":.x:orders", ":.:orders"], [":.x:orders2", "orders"]),
        ("*a*b*", ["ab", "xaxbx"], ["ba", "a"]),
    ],
)
def test_only_a_star_is_special(pattern: str, subjects: list[str], others: list[str]) -> None:
    assert all(Pattern.of(pattern).matches(each) for each in subjects)
    assert not any(Pattern.of(pattern).matches(each) for each in others)


def test_matches_are_those_of_a_regular_expression() -> None:
    chance = random.Random(1)
    for _ in range(5_000):
        pattern = "".join(chance.choices("ab*", k=chance.randrange(6)))
        subject = "".join(chance.choices("ab", k=chance.randrange(8)))
        expected = re.fullmatch(".*".join(map(re.escape, re.split(r"\*+", pattern))), subject) is not None
        assert Pattern.of(pattern).matches(subject) == expected, (pattern, subject)


def test_hostile_subject_costs_no_more_than_its_length() -> None:
    """A regular expression took eight seconds of the loop for half of this."""
    pattern, subject = Pattern.of("*.*.*-value"), ".-:" * 2_700
    began_s = time.process_time()
    assert not pattern.matches(subject)
    assert time.process_time() - began_s < 0.5
