"""librdkafka pushes its metrics when a subscription asks for them (KIP-714), and they appear at the brokers."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from barnabas.cli.main import app
from barnabas.testing import Cluster, wait_until
from tests.scenarios.broker_metrics import metrics_of
from tests.support.command_line import CliRunner


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2, config={"barnabas.metrics.port": "0"}) as cluster:
        yield cluster


def tool(cluster: Cluster, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["client-metrics", "--bootstrap-server", cluster.bootstrap, *arguments])
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def pages(cluster: Cluster) -> list[str]:
    lines = "".join(metrics_of(cluster, broker) for broker in (1, 2)).splitlines()
    return [line for line in lines if "client_instance_id=" in line]


def test_metrics_of_producer_and_consumer_appear_with_one_command(cluster: Cluster) -> None:
    tool(cluster, "--alter", "--name", "all", "--metrics", "*", "--interval", "200", "--match", "client_id=taker|cook")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "client.id": "taker", "linger.ms": 0})
    other = Producer({"bootstrap.servers": cluster.bootstrap, "client.id": "other", "linger.ms": 0})
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "client.id": "cook", "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])

    def shown() -> bool:
        for each in (producer, other):
            each.produce("orders", b"x")
            each.flush(60)
        consumer.poll(0.1)
        found = "\n".join(pages(cluster))
        return (
            'kafka_client_producer_node_request_latency_avg{client_id="taker"' in found
            and 'kafka_client_consumer_connection_creation_total{client_id="cook"' in found
        )

    wait_until(shown, timeout_s=90, what="the metrics of both clients at the brokers")
    assert not any('client_id="other"' in line for line in pages(cluster))
    info = [line for line in pages(cluster) if line.startswith("kafka_server_client_metrics_client_info")]
    assert any('client_software_name="confluent-kafka-python"' in line for line in info)
    consumer.close()


def test_tool_makes_shows_and_deletes_subscriptions(cluster: Cluster) -> None:
    for name in tool(cluster, "--list").split():
        tool(cluster, "--delete", "--name", name)
    assert tool(cluster, "--list") == ""
    created = tool(
        cluster, "--alter", "--generate-name", "--metrics", "a.,b.", "--match", "client_id=x,client_source_port=1"
    )
    name = created.removeprefix("Altered client metrics config for ").removesuffix(".\n")
    assert tool(cluster, "--list") == f"{name}\n"
    assert tool(cluster, "--describe", "--name", name) == (
        f"Client metrics configs for {name} are:\n  match=client_id=x,client_source_port=1\n  metrics=a.,b.\n"
    )
    tool(cluster, "--alter", "--name", name, "--match", "", "--interval", "500")
    assert (
        tool(cluster, "--describe") == f"Client metrics configs for {name} are:\n  interval.ms=500\n  metrics=a.,b.\n"
    )
    assert tool(cluster, "--delete", "--name", name) == f"Deleted client metrics config for {name}.\n"
    assert tool(cluster, "--list") == ""
