"""State batches are combined as Kafka combines them."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.runtime.share_state import StateBatch
from barnabas.broker.share_coordinator.batches import combine

#: Known batches | new batches | start offset | the result of Apache Kafka 4.3.0's PersisterStateBatchCombiner.
CASES = (Path(__file__).parent / "kafka_combined_batches.txt").read_text().splitlines()

BATCHES = st.lists(
    st.builds(
        lambda first, length, state, count: StateBatch(first, first + length, state, count),
        st.integers(0, 30),
        st.integers(0, 10),
        st.sampled_from([0, 2, 4]),
        st.integers(1, 3),
    ),
    max_size=8,
)


def parsed(text: str) -> tuple[StateBatch, ...]:
    return tuple(StateBatch(*map(int, each.split(","))) for each in text.split(";") if each)


@pytest.mark.parametrize("case", CASES)
def test_result_is_kafkas(case: str) -> None:
    known, new, start_offset, combined = case.split("|")
    assert combine(parsed(known), parsed(new), int(start_offset)) == parsed(combined)


@given(known=BATCHES, new=BATCHES, start_offset=st.integers(-1, 35))
def test_each_offset_has_the_delivery_that_went_furthest(
    known: list[StateBatch], new: list[StateBatch], start_offset: int
) -> None:
    furthest: dict[int, tuple[int, int]] = {}
    for batch in known + new:
        for offset in range(max(batch.first_offset, start_offset), batch.last_offset + 1):
            delivery = (batch.delivery_count, batch.delivery_state)
            furthest[offset] = max(furthest.get(offset, delivery), delivery)
    combined = combine(known, new, start_offset)
    found = {
        offset: (batch.delivery_count, batch.delivery_state)
        for batch in combined
        for offset in range(batch.first_offset, batch.last_offset + 1)
    }
    assert found == furthest
    assert all(before.last_offset < after.first_offset for before, after in pairwise(combined))


@given(known=BATCHES, new=BATCHES)
def test_a_repeated_write_changes_nothing(known: list[StateBatch], new: list[StateBatch]) -> None:
    def shown(batches: tuple[StateBatch, ...]) -> set[tuple[int, int, int]]:
        return {
            (offset, batch.delivery_state, batch.delivery_count)
            for batch in batches
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }

    once = combine(known, new, -1)
    assert shown(combine(once, new, -1)) == shown(once)
