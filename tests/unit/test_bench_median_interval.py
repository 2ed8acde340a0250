"""The interval that `python -m bench tiered -- --pairs` prints."""

import pytest
from bench.tiered import median_interval


@pytest.mark.parametrize(
    ("count", "first", "last"),
    [(1, 1, 1), (5, 1, 5), (6, 1, 6), (9, 2, 8), (20, 6, 15), (100, 40, 61)],  # as tables of order statistics have them
)
def test_interval_of_a_median_is_between_two_of_the_values(count: int, first: int, last: int) -> None:
    assert median_interval([float(each) for each in range(count, 0, -1)]) == (first, last)
