"""Durations and sizes as text."""

import pytest

from barnabas.cli._words import duration_text, size_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (119.9, "119 s"),
        (120, "2 min"),
        (7_199, "119 min"),
        (7_200, "2 h"),
        (172_799, "47 h"),
        (172_800, "2 d"),
    ],
)
def test_duration_has_the_largest_unit_that_fits_twice(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (12_000_000, "12.0 MB"), (3.2e15, "3200.0 TB")]
)
def test_size_has_decimal_units(number: float, text: str) -> None:
    assert size_text(number) == text
