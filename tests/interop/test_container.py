"""The image, built without a registry and run as users run it: not as root, with no writable folder except its volume."""

import json
import os
import re
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from barnabas.testing import wait_until
from tests.interop.containers import BUILD_OPTIONS, ENGINE, ENVIRONMENT, LIMITS, ROOT, need_programs, podman

SIZE_MB_MAX = 150
IMAGE = "localhost/barnabas-test"
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    need_programs()
    environment = ENVIRONMENT | {"BUILDAH_OPTIONS": " ".join(BUILD_OPTIONS)}
    built = subprocess.run(
        [ROOT / "deploy/container/build", IMAGE],
        capture_output=True,
        text=True,
        env=environment,
        timeout=1500,
        check=False,
    )
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]
    yield IMAGE
    podman("rmi", "--force", IMAGE, check=False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Pod:
    """A ZooKeeper and a broker, each in a container of its own, on the machine's loopback."""

    def __init__(self, image: str) -> None:
        self.image = image
        self.name = f"barnabas-{uuid.uuid4().hex[:8]}"
        self.zookeeper, self.port, self.metrics = free_port(), free_port(), free_port()
        self.run("zookeeper", "zookeeper", "--data", "/var/lib/kafka/data", "--port", str(self.zookeeper))
        wait_until(lambda: "ready zookeeper=" in podman("logs", f"{self.name}-zookeeper"), 120, what="ZooKeeper")

    def run(self, part: str, *command: str, environment: dict[str, str] | None = None) -> None:
        variables = [f"--env={name}={value}" for name, value in (environment or {}).items()]
        limits = [*LIMITS, "--network=host", "--read-only"]
        volume = f"--volume={self.name}-{part}:/var/lib/kafka/data"
        podman("run", "--detach", f"--name={self.name}-{part}", *limits, volume, *variables, self.image, *command)

    def start_broker(self) -> None:
        self.run(
            "broker",
            environment={
                "KAFKA_BROKER_ID": "7",
                "KAFKA_ZOOKEEPER_CONNECT": f"127.0.0.1:{self.zookeeper}",
                "KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{self.port}",
                "KAFKA_BARNABAS_METRICS_PORT": str(self.metrics),
                "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
                "KAFKA_HEAP_OPTS": "-Xmx1g",
                "BARNABAS_LOG_FORMAT": "json",
            },
        )
        wait_until(lambda: "ready broker=7" in podman("logs", f"{self.name}-broker"), 120, what="the broker")

    def close(self) -> None:
        for part in ("broker", "zookeeper"):
            podman("rm", "--force", "--volumes", f"{self.name}-{part}", check=False)
            podman("volume", "rm", "--force", f"{self.name}-{part}", check=False)


def test_image_is_small_and_says_what_is_in_it(image: str) -> None:
    [described] = json.loads(podman("image", "inspect", image))
    print(f"{described['Size'] / 1e6:.0f} MB")
    assert described["Size"] / 1e6 <= SIZE_MB_MAX
    assert described["User"] == "1000:1000" and "Healthcheck" in described
    limits = ("--rm", "--network=host", "--read-only", *LIMITS)
    said = podman("run", *limits, "--entrypoint=/opt/barnabas/bin/python", image, "/opt/barnabas/sbom.py")
    parts = {part["name"]: part["purl"] for part in json.loads(said)["components"]}
    assert parts["libc6"].startswith("pkg:deb/debian/libc6@") and parts["uvloop"].startswith("pkg:pypi/uvloop@")
    assert "pip" not in parts and "bash" not in parts and "apt" not in parts


def test_broker_takes_variables_serves_and_keeps_its_records(image: str) -> None:
    pod = Pod(image)
    try:
        pod.start_broker()
        bootstrap = f"127.0.0.1:{pod.port}"
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce("orders", b"coffee")
        assert producer.flush(60) == 0
        podman("healthcheck", "run", f"{pod.name}-broker")
        podman("healthcheck", "run", f"{pod.name}-zookeeper")
        logged = [line for line in podman("logs", f"{pod.name}-broker").splitlines() if line.startswith("{")]
        assert all(json.loads(line)["level"] for line in logged)
        podman("stop", "--time=120", f"{pod.name}-broker")
        [state] = json.loads(podman("inspect", f"{pod.name}-broker"))
        assert state["State"]["ExitCode"] == 0
        podman("rm", f"{pod.name}-broker")

        pod.start_broker()
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        found: list[bytes | None] = []

        def read() -> bool:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                found.append(message.value())
            return bool(found)

        wait_until(read, 120, what="the record")
        consumer.close()
        assert found == [b"coffee"]
    finally:
        pod.close()


def test_broker_that_does_not_answer_is_not_healthy(image: str) -> None:
    pod = Pod(image)
    try:
        pod.start_broker()
        [described] = json.loads(podman("inspect", f"{pod.name}-broker"))
        os.kill(described["State"]["Pid"], signal.SIGSTOP)
        check = ("healthcheck", "run", f"{pod.name}-broker")
        done = subprocess.run(
            ["podman", *ENGINE, *check], capture_output=True, timeout=120, env=ENVIRONMENT, check=False
        )
        assert done.returncode != 0  # 1 from the check, or its timeout
        os.kill(described["State"]["Pid"], signal.SIGCONT)
        podman(*check)
    finally:
        pod.close()


def test_whole_cluster_runs_in_a_container(image: str) -> None:
    name = f"barnabas-up-{uuid.uuid4().hex[:8]}"
    limits = (*LIMITS, "--network=host", "--read-only")
    try:
        podman("run", "--detach", f"--name={name}", *limits, image, "up", "--brokers", "3", "--port", "0")
        wait_until(lambda: "ready bootstrap=" in podman("logs", name), 120, what="the cluster")
        [bootstrap] = re.findall(r"ready bootstrap=(\S+)", podman("logs", name))
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
        producer.produce("orders", b"coffee")
        assert producer.flush(60) == 0
        podman("healthcheck", "run", name)
        podman("stop", "--time=120", name)
        [state] = json.loads(podman("inspect", name))
        assert state["State"]["ExitCode"] == 0
    finally:
        podman("rm", "--force", "--volumes", name, check=False)
