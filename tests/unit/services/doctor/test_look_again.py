"""What brokers say about one that does not answer counts only if it is newer than the attempt."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.client.asynchronous import AsyncClient
from barnabas.services.doctor.look import Looker
from barnabas.services.doctor.view import Limits
from barnabas.wire.messages.describe_neighbours import (
    DescribedNeighbour,
    DescribeNeighboursRequest,
    DescribeNeighboursResponse,
)
from tests.unit.services.doctor.test_doctor_cluster import HEALTHY, image, topic


class BrokerOne:
    """A cluster of which broker 1 answers, and knows this about broker 2."""

    def __init__(self, seen: DescribedNeighbour) -> None:
        self._answer = DescribeNeighboursResponse(broker_id=1, neighbours=[seen])

    async def connection(self, broker_id: int) -> Any:
        return SimpleNamespace(versions=SimpleNamespace(apis={DescribeNeighboursRequest.API_KEY: (0, 0)}))

    async def ask(self, *_: object) -> DescribeNeighboursResponse:
        return self._answer


@pytest.mark.parametrize(
    ("seen", "counts"),
    [
        (DescribedNeighbour(broker_id=2, answered_ms_ago=8_000), False),
        (DescribedNeighbour(broker_id=2, answered_ms_ago=2_000), True),
        (DescribedNeighbour(broker_id=2, answered_ms_ago=8_000, failing_ms=1_000, reason="no answer"), True),
    ],
)
def test_only_news_about_an_unreachable_broker_counts(seen: DescribedNeighbour, counts: bool) -> None:
    looker = Looker(cast("AsyncClient", BrokerOne(seen)), image(topic()), Limits())
    looker._unreachable = {2: "no connection within 5000 ms"}
    looked = asyncio.run(looker._with_news_of_unreachable({1: HEALTHY}, 5.0))
    assert (2 in looked[1].neighbours) is counts
