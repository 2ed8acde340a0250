"""Debian's Prometheus scrapes three brokers with the rules that we ship, and they fire for a killed broker."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from barnabas.testing import Cluster, wait_until
from tests.interop.debian import program
from tests.interop.prometheus import RULES, Prometheus, running_prometheus

ROOT = Path(__file__).parents[2]
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
#: Variables of the dashboards, with Grafana's values if everything is selected.
FILLED = {"$job": ".*", "$instance": ".*", "$topic": ".*", "$group": ".*", "$__rate_interval": "10s"}


def metrics_address(cluster: Cluster, broker: int) -> str:
    return cluster.log(broker).rpartition("metrics at http://")[2].partition("/metrics")[0]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, config={"barnabas.metrics.port": "0"}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def prometheus(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    targets = [metrics_address(cluster, broker) for broker in cluster.broker_ids]
    with running_prometheus(targets, tmp_path_factory.mktemp("prometheus")) as started:
        yield started


def test_promtool_finds_nothing_wrong_with_rules_and_configuration() -> None:
    promtool = program("promtool", "prometheus")
    rules = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True, check=True)
    assert f"{RULES.read_text().count('- alert:')} rules found" in rules.stdout
    subprocess.run([promtool, "check", "config", RULES.parent / "prometheus.yml"], capture_output=True, check=True)


def test_panels_of_the_dashboards_have_something_to_show(prometheus: Prometheus, cluster: Cluster) -> None:
    cluster.create_topic("orders", partitions=3, replication_factor=3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "t"})
    producer.init_transactions(60)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    empty: list[str] = []

    def nothing_is_empty() -> bool:
        producer.begin_transaction()
        producer.produce("orders", b"x")
        producer.commit_transaction(60)
        while consumer.poll(1) is not None:
            consumer.commit()
        empty[:] = [expression for expression in expressions() if not prometheus.ask(expression)]
        return not empty

    def expressions() -> Iterator[str]:
        for dashboard in DASHBOARDS:
            for panel in json.loads(dashboard.read_text())["panels"]:
                for target in panel["targets"]:
                    expression = target["expr"]
                    for variable, value in FILLED.items():
                        expression = expression.replace(variable, value)
                    yield expression

    try:
        wait_until(nothing_is_empty, 180, what="every panel")
    except TimeoutError as error:
        raise AssertionError(empty) from error
    finally:
        consumer.close()


def test_rules_are_silent_while_all_is_well_and_fire_for_a_broker_that_is_killed(
    prometheus: Prometheus, cluster: Cluster
) -> None:
    wait_until(lambda: not prometheus.firing(), 120, what="silence")
    victim = cluster.broker_ids[-1]
    cluster.kill(victim)
    wanted = {"BrokerDown", "BrokerMissing", "UnderReplicated"}
    wait_until(lambda: wanted <= prometheus.firing(), 120, what="alerts")
    cluster.start_broker(victim)
    # The restarted broker has another port for its metrics; only its registration comes back.
    wait_until(lambda: not {"BrokerMissing", "UnderReplicated"} & prometheus.firing(), 120, what="the end of alerts")
