"""Debian's Prometheus scrapes three brokers with the rules that we ship, and they fire for a killed broker."""

import json
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from barnabas.testing import Cluster, wait_until
from tests.interop.debian import program

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/barnabas.rules.yml"
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
#: Variables of the dashboards, with Grafana's values if everything is selected.
FILLED = {"$job": ".*", "$instance": ".*", "$topic": ".*", "$group": ".*", "$__rate_interval": "10s"}


@dataclass
class Prometheus:
    url: str

    def get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def ask(self, expression: str) -> list[Any]:
        found: list[Any] = self.get("/api/v1/query", query=expression)["result"]
        return found

    def firing(self) -> set[str]:
        return {
            each["labels"]["alertname"] for each in self.get("/api/v1/alerts")["alerts"] if each["state"] == "firing"
        }


def metrics_address(cluster: Cluster, broker: int) -> str:
    return cluster.log(broker).rpartition("metrics at http://")[2].partition("/metrics")[0]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, config={"barnabas.metrics.port": "0"}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def prometheus(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    # The rules as shipped, but without their waiting times of minutes.
    lines = [line for line in RULES.read_text().splitlines() if not line.strip().startswith("for:")]
    (folder / "rules.yml").write_text("\n".join(lines))
    targets = json.dumps([metrics_address(cluster, broker) for broker in cluster.broker_ids])
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml]\n"
        f"scrape_configs: [{{job_name: barnabas, static_configs: [{{targets: {targets}}}]}}]\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    command = [program("prometheus"), "--config.file=prometheus.yml", f"--web.listen-address={address}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--storage.tsdb.path={folder}/data"], cwd=folder, stdout=log, stderr=log)
    try:
        made = Prometheus(f"http://{address}")
        wait_until(lambda: is_up(made), 120, what=f"Prometheus, see {folder}/log")
        yield made
    finally:
        process.terminate()
        process.wait(30)


def is_up(prometheus: Prometheus) -> bool:
    try:
        return len(prometheus.ask('up{job="barnabas"} == 1')) == 3
    except OSError:
        return False


def test_promtool_finds_nothing_wrong_with_rules_and_configuration() -> None:
    promtool = program("promtool", "prometheus")
    rules = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True, check=True)
    assert "18 rules found" in rules.stdout
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
