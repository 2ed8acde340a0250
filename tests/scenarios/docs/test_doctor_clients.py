"""The doctor, the tool and the console on clients that push metrics: one for each thing that is wrong with a client."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.cli.main import app
from barnabas.client.admin.configs import alter_configs
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.services.doctor.checks import clients as checks
from barnabas.services.doctor.cluster import check_cluster
from barnabas.testing import Cluster
from barnabas.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from barnabas.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from tests.scenarios.console.conftest import running as running_console
from tests.support.command_line import CliRunner
from tests.support.otlp_data import gauge, metrics_data, point


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        asyncio.run(_subscribe(cluster.bootstrap))
        yield cluster


async def _subscribe(bootstrap: str) -> None:
    async with AsyncClient(client_config(bootstrap)) as client:
        settings = {"metrics": (AlterOperation.SET, "*")}
        await alter_configs(client, ConfigResourceType.CLIENT_METRICS, "all", settings)


async def push(cluster: Cluster, client_id: str, *, ends: bool = False, **values: float) -> None:
    """Push these values as a client of this name would."""
    names = {"latency": checks.LATENCY, "queue": checks.QUEUE_TIME, "idle": checks.IDLE_RATIO,
             "commit": checks.COMMIT_LATENCY, "throttled": checks.THROTTLED[0], "retries": checks.RETRY_RATE,
             "errors": checks.ERROR_RATE}  # fmt: skip
    data = metrics_data(*(gauge(names[name], point(value, node_id="1")) for name, value in values.items()))
    async with AsyncClient(client_config(cluster.bootstrap, client_id=client_id)) as client:
        asked = await client.ask(1, GetTelemetrySubscriptionsRequest(), GetTelemetrySubscriptionsResponse)
        request = PushTelemetryRequest(
            client_instance_id=asked.client_instance_id,
            subscription_id=asked.subscription_id,
            metrics=data,
            terminating=ends,
        )
        assert (await client.ask(1, request, PushTelemetryResponse)).error_code == ErrorCode.NONE


def findings(cluster: Cluster) -> dict[str, dict[str, str]]:
    """Return the messages of the findings about clients, by the name of the finding and of the client."""
    found: dict[str, dict[str, str]] = {}
    for each in asyncio.run(check_cluster(client_config(cluster.bootstrap))).findings:
        if each.check.startswith("client-"):
            found.setdefault(each.check, {})[each.subject.split()[1]] = each.message
    return found


def test_doctor_says_which_client_is_slow_and_why(cluster: Cluster) -> None:
    async def story() -> None:
        await push(cluster, "far", latency=450.0)
        await push(cluster, "quick", latency=3.0, queue=5.0, idle=0.8, throttled=0.0, retries=0.0)
        await push(cluster, "full", queue=5_000.0)
        await push(cluster, "busy", idle=0.02, commit=400.0)
        await push(cluster, "gone", ends=True, latency=900.0)

    asyncio.run(story())
    slow = findings(cluster)["client-slow"]
    assert slow.keys() & {"far", "quick", "full", "busy", "gone"} == {"far", "full", "busy"}
    assert slow["far"] == "its requests take 450 ms"
    assert "wait 5000 ms in its own queue" in slow["full"]
    assert slow["busy"] == (
        "its commits take 400 ms; its application works 98% of the time between two polls: it is the bottleneck"
    )


def test_doctor_reports_retries_throttling_and_old_versions(cluster: Cluster) -> None:
    async def story() -> None:
        await push(cluster, "again", retries=2.5, errors=0.5)
        await push(cluster, "held", throttled=120.0)

    asyncio.run(story())
    found = findings(cluster)
    assert found["client-retries"] == {"again": "it sends 2.5 records a second again, and 0.5 fail"}
    assert found["client-throttled"] == {"held": "a quota holds its requests back for 120 ms on average"}
    assert "client-old" not in found


def tool(cluster: Cluster, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["client-metrics", "--bootstrap-server", cluster.bootstrap, *arguments])
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def test_tool_shows_clients_beside_the_broker(cluster: Cluster) -> None:
    asyncio.run(push(cluster, "shown", latency=450.0))
    [row] = [line for line in tool(cluster, "--clients").splitlines() if line.startswith("shown ")]
    assert "450.0" in row
    assert row.endswith("its requests take 450 ms")
    assert '"clientId": "shown"' in tool(cluster, "--clients", "--json")


def test_console_shows_slow_clients_first_and_one_with_all_metrics(cluster: Cluster) -> None:
    async def story() -> None:
        await push(cluster, "a quick one", latency=3.0)
        await push(cluster, "slow one", latency=450.0, queue=7.0)

    asyncio.run(story())
    with running_console(cluster) as console:
        listed = console.get("/api/clients", search=" one")
        assert [each["client"] for each in listed["clients"]] == ["slow one", "a quick one"]
        assert (listed["total"], listed["slow"], listed["subscriptions"]) == (2, 1, ["all"])
        detail = console.get(f"/api/clients/{listed['clients'][0]['instance']}")
        assert detail["reasons"] == ["its requests take 450 ms"]
        assert {each["name"]: each["value"] for each in detail["metrics"]} == {
            checks.LATENCY: 450.0,
            checks.QUEUE_TIME: 7.0,
        }
        assert console.get("/api/clients/unknown")[:2] == (404, "NOT_FOUND")


def test_time_of_the_broker_tells_the_network_from_the_replicas() -> None:
    from barnabas.client.pushing import BrokerTime, PushingClient
    from barnabas.services.doctor.view import ClusterView, Limits

    def client(client_id: str, version: str = "2.1.0", **times: Any) -> PushingClient:
        return PushingClient(
            instance_id=client_id,
            client_id=client_id,
            software_name="librdkafka",
            software_version=version,
            principal="User:ANONYMOUS",
            address="10.0.0.1",
            broker_id=1,
            interval_ms=1_000,
            pushed_ms_ago=0,
            is_ended=False,
            metrics={checks.LATENCY: {(("node_id", "1"),): 400.0, (("node_id", "2"),): 900.0}},
            broker_times={0: BrokerTime(10, **times)} if times else {},
        )

    def why(**times: float) -> str:
        return "; ".join(checks.why_slow(client("c", **times), Limits()))

    assert why() == "its requests take 400 ms"
    assert why(total_ms=30.0, waiting_ms=0.0) == (
        "its requests take 400 ms; broker 1 takes 3 ms of it: the network or the client's machine is slow"
    )
    assert why(total_ms=3_900.0, waiting_ms=3_500.0).endswith(
        "broker 1 takes 390 ms of it, most of it waiting for replicas"
    )
    assert why(total_ms=3_900.0, waiting_ms=0.0).endswith("broker 1 takes 390 ms of it: the broker is slow")
    view = ClusterView(image=None, clients=(client("a"), client("b", "1.9.2"), client("c", "1.9.2")))  # type: ignore[arg-type]
    [finding] = checks.old(view)
    assert (finding.check, finding.message) == ("client-old", "b, c still run it; others run 2.1.0")
