"""`startingOffsetsByTimestamp` and its kin: which times are asked of the brokers."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, LATEST
from barnabas.spark.lookup import OffsetLookup
from barnabas.spark.options import source_options

PARTITIONS = [TopicPartition("t", index) for index in range(3)]


class Asked:
    """A client of a topic whose partitions have the offsets 10 to 90, and a record of time T at offset 10 + T."""

    image = SimpleNamespace(topics={})

    def retrying(self, what: str, ask: Callable[[], Any]) -> Any:
        return ask()

    def list_offsets(self, wanted: Mapping[TopicPartition, int], *, isolation_level: int) -> dict[TopicPartition, int]:
        return {partition: {LATEST: 90, EARLIEST: 10}.get(at, 10 + at) for partition, at in wanted.items()}


def resolved(side: str, **options: str) -> list[int]:
    given = source_options({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **options}, streaming=False)
    asked = OffsetLookup(given)
    asked._client = Asked()  # type: ignore[assignment]
    found = asked.resolve(getattr(given, side), PARTITIONS, option=f"{side}Offsets")
    return [found[partition] for partition in PARTITIONS]


@pytest.mark.parametrize("side", ["starting", "ending"])
def test_minus_one_is_latest_and_minus_two_earliest(side: str) -> None:
    """FINDINGS P13: as in the official connector, for a partition and for all of them."""
    assert resolved(side, **{f"{side}OffsetsByTimestamp": '{"t":{"0":-1,"1":-2,"2":5}}'}) == [90, 10, 15]
    assert resolved(side, **{f"{side}Timestamp": "-1"}) == [90, 90, 90]
    assert resolved(side, **{f"{side}Timestamp": "-2"}) == [10, 10, 10]
    assert resolved(side, **{f"{side}Timestamp": "-4"}) == [10, 10, 10], "a time that is older than every record"
