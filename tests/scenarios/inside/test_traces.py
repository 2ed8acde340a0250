"""Traces of requests, as an OpenTelemetry collector gets them from real brokers."""

from collections.abc import Callable, Iterator

import pytest

from barnabas.testing import Cluster, wait_until
from tests.scenarios.inside.otlp_receiver import OtlpReceiver, Received


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as made:
        yield made


def test_trace_follows_a_batch_through_its_leader_and_to_its_followers(
    receiver: OtlpReceiver, kafka_cluster: Callable[..., Cluster]
) -> None:
    settings = {"barnabas.otel.endpoint": receiver.endpoint, "barnabas.otel.sample.ratio": "1.0"}
    cluster = kafka_cluster(brokers=3, config=settings)
    cluster.create_topic("orders", replication_factor=3)
    cluster.wait_for_isr("orders", 3)
    cluster.produce("orders", ["coffee"])
    leader = cluster.leader_of("orders")
    everything = {"Produce orders", "request queue", "handler", "append", "purgatory", "send"}

    def trace() -> list[Received]:
        found = receiver.spans()
        root = next((each for each in found if each.name == "Produce orders"), None)
        return [each for each in found if root is not None and each.trace == root.trace]

    def is_whole() -> bool:
        spans = trace()
        followers = {each.broker for each in spans if each.name == "follower append"}
        return {each.name for each in spans} >= everything and len(followers) == 2

    wait_until(is_whole, 60, what="the trace")
    spans = trace()
    [root] = [each for each in spans if not each.parent]
    assert root.broker == leader and root.service == "barnabas"
    assert root.attributes["messaging.destination.name"] == "orders"
    assert root.attributes["messaging.kafka.offset"] == 0 and root.attributes["messaging.kafka.acks"] == -1
    ids = {each.span for each in spans}
    assert len(ids) == len(spans) and {each.parent for each in spans} <= ids | {""}
    of_leader = [each for each in spans if each.broker == leader]
    for each in of_leader:
        assert root.start_ns <= each.start_ns <= each.end_ns <= root.end_ns + 1_000_000, each.name
    [handler] = [each for each in of_leader if each.name == "handler"]
    [append] = [each for each in of_leader if each.name == "append"]
    assert append.parent == handler.span
    for name in ("follower fetch", "follower append"):
        assert {each.broker for each in spans if each.name == name} == set(cluster.broker_ids) - {leader}
    # Other requests have separate traces.
    wait_until(lambda: any(each.name == "Metadata" for each in receiver.spans()), 60, what="a trace of Metadata")


def test_unreachable_collector_delays_no_request(kafka_cluster: Callable[..., Cluster]) -> None:
    with OtlpReceiver() as gone:
        endpoint = gone.endpoint
    cluster = kafka_cluster(brokers=1, config={"barnabas.otel.endpoint": endpoint, "barnabas.otel.sample.ratio": "1.0"})
    cluster.create_topic("t")
    cluster.produce("t", [str(number) for number in range(100)])
    assert len(cluster.records("t")) == 100
