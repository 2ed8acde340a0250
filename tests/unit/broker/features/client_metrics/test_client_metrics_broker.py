"""A whole broker: subscriptions in ZooKeeper, pushes by the wire, and the metrics page."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.words import AlterOperation, ConfigResourceType, ConfigSource
from barnabas.broker.compose import Broker
from barnabas.broker.features.client_metrics.feature import ClientMetricsPlugin
from barnabas.broker.features.client_metrics.instances import NAME_CHARS_MAX
from barnabas.broker.zookeeper_client.znodes import decode_config
from barnabas.client.connection import Connection, open_connection
from barnabas.wire.compression import Codec, compress
from barnabas.wire.messages.describe_client_metrics import (
    DescribeClientMetricsRequest,
    DescribeClientMetricsResponse,
)
from barnabas.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from barnabas.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from barnabas.wire.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from barnabas.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from tests.support.otlp_data import LATENCY, gauge, metrics_data, point
from tests.unit.broker.compose.live_broker import LISTENER, ask, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import session, zookeeper

KIND = ConfigResourceType.CLIENT_METRICS
PUSHED = metrics_data(gauge(LATENCY, point(2.5, node_id="1")))


async def alter(broker: Broker, name: str, settings: Mapping[str, str | None]) -> tuple[int, str | None]:
    entries = [
        AlterableConfig(
            name=each, value=value, config_operation=AlterOperation.DELETE if value is None else AlterOperation.SET
        )
        for each, value in settings.items()
    ]
    resource = AlterConfigsResource(resource_type=KIND, resource_name=name, configs=entries)
    request = IncrementalAlterConfigsRequest(resources=[resource])
    [answer] = (await ask(broker, request, IncrementalAlterConfigsResponse, version=1)).responses
    return answer.error_code, answer.error_message


async def described(broker: Broker, name: str) -> dict[str, tuple[str | None, int]]:
    request = DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=KIND, resource_name=name)])
    [result] = (await ask(broker, request, DescribeConfigsResponse, version=4)).results
    assert result.error_code == ErrorCode.NONE
    return {each.name: (each.value, each.config_source) for each in result.configs}


async def listed(broker: Broker, version: int) -> list[str]:
    request = ListConfigResourcesRequest(resource_types=[KIND])
    answer = await ask(broker, request, ListConfigResourcesResponse, version=version)
    return [each.resource_name for each in answer.config_resources]


class PushingClient:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.subscription = GetTelemetrySubscriptionsResponse()

    async def get(self) -> ErrorCode:
        request = GetTelemetrySubscriptionsRequest(client_instance_id=self.subscription.client_instance_id)
        self.subscription = await self._connection.request(request, GetTelemetrySubscriptionsResponse, version=0)
        return ErrorCode(self.subscription.error_code)

    async def push(self, metrics: bytes = PUSHED, *, codec: int = Codec.NONE) -> ErrorCode:
        request = PushTelemetryRequest(
            client_instance_id=self.subscription.client_instance_id,
            subscription_id=self.subscription.subscription_id,
            compression_type=codec,
            metrics=metrics,
        )
        return ErrorCode((await self._connection.request(request, PushTelemetryResponse, version=0)).error_code)


async def pushing(broker: Broker, client_id: str = "orders") -> PushingClient:
    return PushingClient(await open_connection("127.0.0.1", broker.ports[LISTENER], client_id=client_id))


async def test_subscription_is_kept_in_zookeeper_and_reaches_every_broker(tmp_path: Path) -> None:
    async with (
        zookeeper() as ensemble,
        live_broker(ensemble, tmp_path / "1") as one,
        live_broker(ensemble, tmp_path / "2", {"broker.id": "2"}) as two,
        session(ensemble) as other,
    ):
        assert await alter(one, "a b", {"metrics": "x.,y.", "interval.ms": "500"}) == (ErrorCode.NONE, None)
        data, _ = await other.get("/config/client-metrics/a%20b")
        assert decode_config("", data) == {"metrics": "x.,y.", "interval.ms": "500"}
        while "a b" not in two.dynamic.client_metrics:
            assert await listed(one, 0) == ["a b"]
        assert await listed(two, 1) == ["a b"]
        assert await described(two, "a b") == {
            "metrics": ("x.,y.", ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG),
            "interval.ms": ("500", ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG),
            "match": ("", ConfigSource.DEFAULT_CONFIG),
        }
        assert await alter(two, "a b", {"metrics": None, "interval.ms": None}) == (ErrorCode.NONE, None)
        assert await listed(two, 1) == []
        assert not await other.exists("/config/client-metrics/a%20b")


@pytest.mark.parametrize(
    ("name", "settings", "code", "why"),
    [
        ("", {"metrics": "*"}, ErrorCode.INVALID_REQUEST, "must not be empty"),
        ("s", {"metric": "*"}, ErrorCode.INVALID_REQUEST, "Unknown client metrics configuration: metric"),
        ("s", {"interval.ms": "99"}, ErrorCode.INVALID_REQUEST, "interval must be between 100 and 3600000 (1 hour)"),
        ("s", {"interval.ms": "soon"}, ErrorCode.INVALID_CONFIG, "Not a number of type INT"),
        ("s", {"match": "client=x"}, ErrorCode.INVALID_CONFIG, "Illegal client matching pattern: client=x"),
        ("s", {"match": "client_id=("}, ErrorCode.INVALID_CONFIG, "Illegal client matching pattern: client_id=("),
    ],
)
async def test_wrong_subscription_is_refused(
    tmp_path: Path, name: str, settings: dict[str, str], code: ErrorCode, why: str
) -> None:
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path) as broker:
        found, message = await alter(broker, name, settings)
        assert found == code
        assert message is not None and why in message
        assert broker.dynamic.client_metrics == {}


async def test_client_is_asked_for_nothing_until_there_is_a_subscription(tmp_path: Path) -> None:
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path) as broker:
        client = await pushing(broker)
        assert await client.get() is ErrorCode.NONE
        assert client.subscription.requested_metrics == []
        await alter(broker, "all", {"metrics": "*", "interval.ms": "100"})
        assert await client.get() is ErrorCode.NONE
        assert (client.subscription.requested_metrics, client.subscription.push_interval_ms) == (["*"], 100)
        assert client.subscription.accepted_compression_types == [Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY]


@pytest.mark.parametrize("codec", Codec)
async def test_pushed_metrics_are_on_the_page(tmp_path: Path, codec: Codec) -> None:
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path) as broker:
        await alter(broker, "all", {"metrics": "*"})
        client = await pushing(broker)
        assert (await client.get(), await client.push(compress(codec, PUSHED), codec=codec)) == (0, 0)
        page = b"".join(page() for page in broker.metrics_server.pages).decode()
        assert 'kafka_client_producer_node_request_latency_avg{client_id="orders",client_instance_id="' in page
        assert 'node_id="1"} 2.5\n' in page
        assert 'client_software_name="barnabas"' in page


async def test_hostile_pushes_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path, {"telemetry.max.bytes": "10000"}) as broker:
        await alter(broker, "all", {"metrics": "*", "interval.ms": "100"})
        plugin = broker.plugin(ClientMetricsPlugin)
        for metrics, codec, code in (
            (bytes(10_001), Codec.NONE, ErrorCode.TELEMETRY_TOO_LARGE),
            (compress(Codec.ZSTD, bytes(50_000_000)), Codec.ZSTD, ErrorCode.TELEMETRY_TOO_LARGE),
            (compress(Codec.GZIP, bytes(5_000_000)), Codec.GZIP, ErrorCode.TELEMETRY_TOO_LARGE),
            (b"not zstd", Codec.ZSTD, ErrorCode.INVALID_RECORD),
            (b"not Protobuf", Codec.NONE, ErrorCode.INVALID_RECORD),
            (PUSHED, 5, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ):
            client = await pushing(broker, "x" * 30_000)
            assert await client.get() is ErrorCode.NONE
            assert await client.push(metrics, codec=codec) is code
        assert len(plugin.store.clients) == 0
        assert {len(each.client.client_id or "") for each in plugin.instances.known.values()} == {NAME_CHARS_MAX}
        client = await pushing(broker)
        assert (await client.get(), await client.push(), await client.push()) == (
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        )


async def test_broker_describes_clients_with_its_own_time_for_their_requests(tmp_path: Path) -> None:
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path) as broker:
        await alter(broker, "all", {"metrics": "*"})
        client = await pushing(broker)
        assert broker.pipeline.traces == ()
        assert (await client.get(), await client.push()) == (ErrorCode.NONE, ErrorCode.NONE)
        for _ in range(3):
            await client.get()
        answer = await ask(
            broker, DescribeClientMetricsRequest(metrics=[LATENCY]), DescribeClientMetricsResponse, version=0
        )
        [described] = answer.clients
        assert (described.client_id, described.software_name, described.is_ended) == ("orders", "barnabas", False)
        [series] = described.series
        assert (series.name, series.value, series.labels[0].key, series.labels[0].value) == (
            LATENCY,
            2.5,
            "node_id",
            "1",
        )
        assert {each.api_key: each.count for each in described.requests} == {71: 3, 72: 1}
        nothing = DescribeClientMetricsRequest(metrics=[])
        [without] = (await ask(broker, nothing, DescribeClientMetricsResponse, version=0)).clients
        assert without.series == []
        plugin = broker.plugin(ClientMetricsPlugin)
        list(plugin.store.current(broker.context.now_monotonic_ms() + 3_600_000))
        assert broker.pipeline.traces == ()
