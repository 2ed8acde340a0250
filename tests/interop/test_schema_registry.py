"""The schema registry on Apache Kafka: its topic, its group, and the epoch that keeps an old primary from writing."""

import asyncio
from collections.abc import Iterator

import pytest
from bench.kafka import ApacheKafka

from tests.scenarios.registry.conftest import config_for, running
from tests.scenarios.registry.test_api import A_B, AB, A
from tests.scenarios.registry.test_instances import a_ghost_writes


@pytest.fixture(scope="module")
def kafka(java: None) -> Iterator[ApacheKafka]:
    with ApacheKafka(brokers=1, heap="512m") as kafka:
        yield kafka


def test_kafka_refuses_what_an_old_primary_writes(kafka: ApacheKafka) -> None:
    asyncio.run(a_ghost_writes(config_for(kafka)))


def test_two_instances_on_kafka_elect_a_primary_and_see_each_others_writes(kafka: ApacheKafka) -> None:
    config = config_for(kafka)
    with running(config) as first:
        with running(config) as second:
            assert second.register("s", A)["id"] == 1
            assert first.get("/subjects/s/versions") == [1]
            assert first.register("s", AB)[:2] == (409, 409)
            assert [first.is_primary, second.is_primary] == [True, False]
        assert first.register("s", A_B)["version"] == 2
    with running(config) as again:
        assert again.get("/subjects/s/versions") == [1, 2], "both versions are there after a restart"
