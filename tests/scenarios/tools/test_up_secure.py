"""A secure cluster on one machine: `barnabas up --secure`, `Cluster(secure=True)`, and the tools against it."""

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from barnabas.cli.main import app
from barnabas.testing import Cluster
from tests.support.command_line import CliRunner


@pytest.fixture(scope="module")
def secure() -> Iterator[Cluster]:
    with Cluster(brokers=2, secure=True) as running:
        yield running


def tool(cluster: Cluster, user: str, name: str, *arguments: str) -> str:
    # The option names of Kafka's tools.
    option = {"console-consumer": "--consumer.config", "cluster": "--config"}.get(name, "--command-config")
    address = ["--bootstrap-server", cluster.bootstrap, option, str(cluster.command_config(user))]
    return CliRunner().invoke(app, [name, *address, *arguments]).output


def produce_lines(cluster: Cluster, topic: str, lines: str) -> None:
    """Run in a separate process, because the tool reads the real standard input."""
    arguments = [
        "--bootstrap-server",
        cluster.bootstrap,
        "--producer.config",
        str(cluster.command_config()),
        "--topic",
        topic,
    ]
    command = [sys.executable, "-m", "barnabas", "console-producer", *arguments]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_tools_come_in_with_the_file_and_users_may_what_they_may(secure: Cluster, topic: str) -> None:
    assert "Created topic" in tool(secure, "client", "topics", "--create", "--topic", topic, "--partitions", "1")
    produce_lines(secure, topic, "coffee\ntea\n")
    consumed = tool(
        secure, "client", "console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "2",
        "--timeout-ms", "20000",
    )  # fmt: skip
    assert "coffee" in consumed and "tea" in consumed
    assert f"{topic}:0:2" in tool(secure, "client", "get-offsets", "--topic", topic)
    assert "CLUSTER_AUTHORIZATION_FAILED" in tool(secure, "client", "acls", "--list").upper().replace(" ", "_")
    assert "User:client" in tool(secure, "admin", "acls", "--list")
    assert "SCRAM-SHA-512" in tool(secure, "admin", "configs", "--describe", "--entity-type", "users", "--all")
    for name, *arguments in (
        ("configs", "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all"),
        ("consumer-groups", "--list"),
        ("log-dirs", "--describe"),
        ("transactions", "list"),
        ("cluster", "cluster-id"),
        ("broker-api-versions",),
        ("delegation-tokens", "--create", "--max-life-time-period", "-1"),
    ):
        output = tool(secure, "admin", name, *arguments)
        assert not output.startswith("error:"), (name, output)


def test_testing_cluster_gives_settings_for_clients(secure: Cluster, topic: str) -> None:
    secure.create_topic(topic, partitions=2)
    outcome: list[KafkaError | None] = []
    producer = Producer(secure.librdkafka_settings() | {"acks": "all"})
    producer.produce(topic, b"x", on_delivery=lambda error, _: outcome.append(error))
    producer.flush(60)
    assert outcome == [None]
    assert set(secure.client_settings()) >= {"bootstrap.servers", "security.protocol", "sasl.jaas.config"}
    wrong = secure.librdkafka_settings("admin") | {"sasl.password": "guess", "log_level": "0"}
    with pytest.raises(KafkaException):
        AdminClient(wrong).list_topics(timeout=2)


def test_secrets_are_their_owners_and_in_no_log(secure: Cluster) -> None:
    settings = secure.librdkafka_settings("admin")
    folder = secure.folder / "security"
    for file in (*folder.glob("*.properties"), folder / "broker.pem", folder / "secrets.json"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    for broker_id in secure.broker_ids:
        log = secure.log(broker_id)
        assert settings["sasl.password"] not in log
        assert stat.S_IMODE((secure.folder / f"broker-{broker_id}.properties").stat().st_mode) == 0o600
    assert secure.client_settings("admin")["sasl.jaas.config"] not in repr(secure)


def test_up_prints_what_to_paste_and_keeps_it_over_a_restart(tmp_path: Path) -> None:
    def start() -> tuple[subprocess.Popen[str], dict[str, str]]:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "barnabas",
                "up",
                "--secure",
                "--brokers",
                "1",
                "--port",
                "0",
                "--data",
                str(tmp_path),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("ready "):
                break
        text = "".join(lines)
        admin = text[text.index("user admin") :]
        return process, dict(re.findall(r"^    ([a-z.]+)=(.*)$", admin, re.MULTILINE))

    seen = []
    for _ in range(2):
        process, settings = start()
        try:
            assert len(AdminClient(dict(settings)).list_topics(timeout=60).brokers) == 1
        finally:
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(60) == 0
            assert process.stdout is not None
            process.stdout.close()
        seen.append(settings["sasl.password"])
    assert seen[0] == seen[1]
