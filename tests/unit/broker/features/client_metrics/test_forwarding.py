"""Metrics of clients on their way to an OpenTelemetry collector, over real HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from barnabas.base.errors import ConfigError, ErrorCode, Malformed
from barnabas.broker.features.client_metrics import forwarding, otlp
from barnabas.broker.features.client_metrics.feature import ClientMetricsPlugin
from barnabas.broker.features.client_metrics.forwarding import Forwarder, url_of
from barnabas.wire.compression import Codec, compress
from tests.support.otlp_data import LATENCY, gauge, metrics_data, point
from tests.support.otlp_metrics_collector import MetricsCollector
from tests.support.waiting import eventually
from tests.unit.broker.compose.live_broker import live_broker
from tests.unit.broker.features.client_metrics.test_client_metrics_broker import alter, pushing
from tests.unit.broker.zookeeper_client.zookeeper_fixture import zookeeper


def push_named(name: str) -> bytes:
    return metrics_data(gauge(name, point(1.0)))


@asynccontextmanager
async def forwarding_to(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, *, queue_bytes_max: int = 100_000
) -> AsyncIterator[Forwarder]:
    monkeypatch.setattr(forwarding, "_BACKOFF_S", 0.01)
    forwarder = Forwarder(
        url_of(endpoint), queue_bytes_max=queue_bytes_max, on_thread=asyncio.to_thread, chance=Random(1)
    )
    sending = asyncio.create_task(forwarder.run())
    try:
        yield forwarder
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_push_reaches_the_collector_with_the_attributes_of_its_client(tmp_path: Path) -> None:
    data = MetricsData.FromString(metrics_data(gauge(LATENCY, point(2.5, node_id="1"))))
    data.resource_metrics[0].resource.attributes.extend(
        KeyValue(key=key, value=AnyValue(string_value=text)) for key, text in (("principal", "User:admin"), ("az", "b"))
    )
    with MetricsCollector() as collector:
        settings = {"barnabas.client.metrics.otlp.endpoint": collector.endpoint}
        async with zookeeper() as ensemble, live_broker(ensemble, tmp_path, settings) as broker:
            await alter(broker, "all", {"metrics": "*"})
            client = await pushing(broker)
            assert await client.get() is ErrorCode.NONE
            assert await client.push(compress(Codec.ZSTD, data.SerializeToString()), codec=Codec.ZSTD) is ErrorCode.NONE
            await eventually(lambda: collector.requests)
            forwarder = broker.plugin(ClientMetricsPlugin).forwarder
            assert forwarder is not None
            await eventually(lambda: (forwarder.forwarded, forwarder.queue_bytes) == (1, 0))
        [resource] = collector.requests[0].resource_metrics
    found = [(each.key, each.value.string_value) for each in resource.resource.attributes]
    attributes = dict(found)
    assert len(found) == len(attributes), "a client cannot pretend to be another one"
    assert attributes.pop("client_instance_id") and attributes.pop("cluster_id")
    assert attributes.pop("client_software_version")
    assert attributes == {
        "az": "b",
        "client_id": "orders",
        "client_software_name": "barnabas",
        "client_source_address": "127.0.0.1",
        "principal": "User:ANONYMOUS",
        "broker_id": "1",
    }
    assert resource.scope_metrics == data.resource_metrics[0].scope_metrics
    assert collector.paths == {("/v1/metrics", "application/x-protobuf")}


async def test_failed_requests_are_repeated_until_the_collector_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with MetricsCollector() as collector:
        collector.statuses.extend([503, 429, 502])
        async with forwarding_to(collector.endpoint, monkeypatch) as forwarder:
            forwarder.add(push_named("a"))
            await eventually(lambda: forwarder.forwarded == 1)
            assert (collector.names, forwarder.failed_attempts, forwarder.dropped) == (["a"], 3, 0)


async def test_oldest_pushes_are_dropped_and_counted_while_the_collector_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with MetricsCollector() as former:
        endpoint, port = former.endpoint, former.port
    one = push_named("metric-0")
    async with forwarding_to(endpoint, monkeypatch, queue_bytes_max=4 * len(one)) as forwarder:
        forwarder.add(one)
        await eventually(lambda: forwarder.failed_attempts)
        for number in range(1, 8):
            forwarder.add(push_named(f"metric-{number}"))
            assert forwarder.queue_bytes <= 4 * len(one)
        forwarder.add(push_named("x" * 1_000))
        assert (forwarder.dropped, forwarder.queue_bytes) == (8, len(one)), (
            "the push of the request in flight cannot be dropped"
        )
        forwarder.add(push_named("metric-8"))
        with MetricsCollector(port) as collector:
            await eventually(lambda: forwarder.forwarded == 2)
            assert collector.names == ["metric-0", "metric-8"]
    assert forwarder.queue_bytes == 0


async def test_push_that_the_collector_refuses_is_dropped_and_rejected_points_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with MetricsCollector() as collector:
        collector.statuses.append(400)
        collector.rejected_points = 7
        async with forwarding_to(collector.endpoint, monkeypatch) as forwarder:
            forwarder.add(push_named("a"))
            await eventually(lambda: forwarder.dropped == 1)
            forwarder.add(push_named("b"))
            await eventually(lambda: forwarder.forwarded == 1)
        assert (collector.names, forwarder.rejected_points, forwarder.failed_attempts) == (["b"], 7, 0)
        assert forwarder.queue_bytes == 0


async def test_waiting_pushes_go_out_in_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with MetricsCollector() as collector:
        async with forwarding_to(collector.endpoint, monkeypatch) as forwarder:
            for number in range(50):
                forwarder.add(push_named(f"m{number}"))
            await eventually(lambda: forwarder.forwarded == 50)
        assert collector.names == [f"m{number}" for number in range(50)]
        assert len(collector.requests) == 1


@pytest.mark.parametrize("endpoint", ["collector:4318", "file:///tmp/x", "http://", "grpc://collector:4317"])
def test_endpoint_must_be_an_http_url(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"barnabas\.client\.metrics\.otlp\.endpoint=.* is not valid"):
        url_of(endpoint)


def test_path_of_the_endpoint_is_added_unless_it_is_there() -> None:
    assert url_of("http://c:4318/") == url_of("http://c:4318/v1/metrics") == "http://c:4318/v1/metrics"


@pytest.mark.parametrize("data", [b"\x0a\xff", b"\x0a\x05abc", b"\x0b", b"\xff" * 11])
def test_damaged_metrics_are_not_forwarded(data: bytes) -> None:
    with pytest.raises(Malformed):
        otlp.with_attributes(data, {"client_id": "x"})
