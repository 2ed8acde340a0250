"""`barnabas doctor` beside a cluster in which faults are caused."""

import json
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from barnabas.cli.main import app
from barnabas.testing import Cluster, wait_until
from tests.support.command_line import CliRunner


def doctor(bootstrap: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return its exit status and its findings by check."""
    result = CliRunner().invoke(app, ["doctor", "--bootstrap-server", bootstrap, "--json"])
    document = json.loads(result.stdout)
    assert document["ok"] is (result.exit_code == 0)
    return result.exit_code, {finding["check"]: finding for finding in document["findings"]}


def commit_an_offset(bootstrap: str) -> None:
    """Commit an offset, so that the topic of the offsets exists."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0})
    consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
    consumer.close()


def test_doctor_finds_the_faults_of_a_cluster(kafka_cluster: Callable[..., Cluster]) -> None:
    cluster = kafka_cluster(brokers=2, config={"offsets.topic.replication.factor": "1"})
    cluster.create_topic("orders", replication_factor=2, config={"min.insync.replicas": "2"})
    assert doctor(cluster.bootstrap)[0] == 0

    for broker_id in cluster.broker_ids:
        cluster.advance_clock(broker_id, 60_000)
    commit_an_offset(cluster.bootstrap)
    status, found = doctor(cluster.bootstrap)
    assert status == 3, "warnings alone"
    assert {"clock-skew", "internal-topic-replicas-one"} <= found.keys()
    assert found["clock-skew"]["subject"] == "this machine"
    assert "behind the brokers'" in found["clock-skew"]["message"]

    cluster.create_topic("never", replication_factor=1, config={"min.insync.replicas": "2"})
    status, found = doctor(cluster.bootstrap)
    assert status == 3
    assert found["min-isr-above-replicas"]["subject"] == "topic never"
    assert found["min-isr-above-replicas"]["means"].startswith("it acts as 1: ")
    cluster.produce("never", ["acknowledged"])  # as it says
    assert found["topic-replicas-one"]["severity"] == "note"

    gone = next(broker for broker in cluster.broker_ids if broker != cluster.controller())
    left = cluster.address(cluster.controller())
    cluster.terminate(gone)
    wait_until(lambda: doctor(left)[1].keys() >= {"partitions-under-replicated", "partitions-offline"})
    assert next(iter(doctor(left)[1])) == "broker-down", "the cause comes first"
    assert doctor(left)[1]["partitions-under-min-isr"]["means"].startswith("writes with acks=all are refused")
    assert doctor(left)[1]["partitions-under-replicated"]["since"] is not None
    assert f"start broker {gone}" in doctor(left)[1]["partitions-under-replicated"]["advice"]


def test_doctor_finds_a_broker_that_does_not_answer_at_its_address(kafka_cluster: Callable[..., Cluster]) -> None:
    # The killed broker is a member until its session ends, with an address at which no process listens.
    cluster = kafka_cluster(brokers=2, config={"zookeeper.session.timeout.ms": "30000"})
    cluster.kill(2)
    status, found = doctor(cluster.address(1))
    assert status == 1
    assert found["advertised-listener-unreachable"]["subject"] == "broker 2"
    assert cluster.address(2) in found["advertised-listener-unreachable"]["message"]
