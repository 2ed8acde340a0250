"""Clusters without what only Linux has, as on macOS: `BARNABAS_POSIX_ONLY=1` takes it away."""

import os
import subprocess
import sys
from pathlib import Path

from barnabas.testing import Broker, Cluster
from tests.scenarios.testing.testing_clients import consume, produce, values

#: Three segments, so that indexes are reserved and mapped, and answers are long enough to be sent from files.
COUNT = 300
PADDING = "x" * 10_000
SEGMENTS = {"segment.bytes": "1048576", "index.interval.bytes": "4096"}


def story() -> None:
    """Write, read, take a snapshot, kill a broker, go back."""
    with Cluster(brokers=2) as kafka:
        kafka.create_topic("orders", config=SEGMENTS)
        assert produce(kafka.bootstrap, "orders", COUNT, padding=PADDING) == [None] * COUNT
        for broker_id in kafka.broker_ids:
            assert "uvloop" not in Path(f"/proc/{kafka.pid(broker_id)}/maps").read_text(), "the setting did not arrive"
        snapshot = kafka.snapshot()
        kafka.kill(1)
        kafka.start_broker(1)
        assert produce(kafka.bootstrap, "orders", 1) == [None]
        kafka.restore(snapshot)
        found = values(consume(kafka.bootstrap, "orders", COUNT))
        assert found == [f"{number}{PADDING}".encode() for number in range(COUNT)]
    with Broker() as kafka:
        kafka.create_topic("orders")
        assert produce(kafka.bootstrap, "orders", 3) == [None] * 3
        assert values(consume(kafka.bootstrap, "orders", 3)) == [b"0", b"1", b"2"]


def test_cluster_needs_nothing_that_only_linux_has() -> None:
    environment = {**os.environ, "BARNABAS_POSIX_ONLY": "1"}
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import story; story()"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
