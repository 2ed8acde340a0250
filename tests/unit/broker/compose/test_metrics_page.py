"""The pages on a broker's metrics port: every metric is documented, and the health pages are right."""

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import barnabas
from barnabas.base.metrics.exposition import render
from barnabas.broker.compose import Broker
from barnabas.broker.features.tiered.metrics import TierMetrics
from barnabas.broker.replication.topic_counters import TopicCounters
from barnabas.broker.security.quotas import Quota
from barnabas.broker.server.quota_metrics import QuotaMetrics
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tests.support.waiting import eventually
from tests.unit.broker.compose.live_broker import ask, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import zookeeper

PAGE = Path(barnabas.__file__).parents[2] / "docs/metrics.md"
METRICS = {"barnabas.metrics.port": "0"}


async def get(broker: Broker, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.metrics_server.port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def verdict(broker: Broker, path: str) -> tuple[int, Mapping[str, Any]]:
    status, body = await get(broker, path)
    return status, json.loads(body)


def families(text: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\S+) (?:counter|gauge|histogram)$", text, re.MULTILINE))


async def test_every_metric_is_on_the_page_and_every_metric_of_the_page_is_offered(tmp_path: Path) -> None:
    seen: list[str] = []
    tiered = {
        "remote.log.storage.system.enable": "true",
        "barnabas.remote.storage.url": f"file://{tmp_path}/tier",
    }
    # Nothing is sent there: no client pushes metrics.
    forwarding = {"barnabas.client.metrics.otlp.endpoint": "http://127.0.0.1:9"}
    settings = METRICS | tiered | forwarding
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path / "logs", settings) as broker:
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        await ask(broker, CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, version=5)
        # Made when they are first needed.
        TopicCounters.of(broker.registry, "t")
        TierMetrics(broker.registry).of("t")
        QuotaMetrics(broker.registry).throttled(Quota.PRODUCE, ("user", "client"), 1)
        seen.append((await get(broker, "/metrics"))[1])
    documented = set(re.findall(r"^\| `([a-z]+_[a-z_]+)`", PAGE.read_text(), re.MULTILINE))
    assert families(seen[0]) == documented


async def test_numbers_of_the_metrics_are_those_of_the_broker(tmp_path: Path) -> None:
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path, METRICS) as broker:
        topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1)
        await ask(broker, CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, version=5)
        await eventually(lambda: len(broker.logs.all_logs()) >= 2)
        text = (await get(broker, "/metrics"))[1]
        for line in (
            "kafka_controller_active_controller_count 1.0",
            "kafka_controller_global_partition_count 2.0",
            "kafka_controller_offline_partitions_count 0.0",
            "kafka_server_zookeeper_session_connected 1.0",
            "kafka_server_broker_state 3.0",
            'kafka_log_log_end_offset{partition="1",topic="t"} 0.0',
            "kafka_log_offline_log_directory_count 0.0",
        ):
            assert line in text.splitlines()
        usable = re.search(r'kafka_log_dir_usable_bytes{log_dir="[^"]+"} (\S+)', text)
        assert usable is not None and float(usable[1]) > 0
        memory = re.search(r"^process_resident_memory_bytes (\S+)", text, re.MULTILINE)
        assert memory is not None and float(memory[1]) > 1_000_000


async def test_broker_is_live_and_ready_and_tells_when_zookeeper_goes_away(tmp_path: Path) -> None:
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path, METRICS) as broker:
        assert (await verdict(broker, "/ready"))[0] == 200
        status, document = await verdict(broker, "/health")
        assert (status, document["status"], document["phase"]) == (200, "pass", "serving")
        await ensemble.server.stop()
        await eventually(lambda: not broker.session.is_connected)
        # Clients of live leaders continue: neither a restart nor taking brokers out of service would help.
        for path in ("/health", "/ready"):
            status, document = await verdict(broker, path)
            assert (status, document["status"]) == (200, "warn")
            assert "does not answer" in document["warnings"][0]
        assert "kafka_server_zookeeper_session_connected 0.0" in render(broker.registry).decode()


async def test_broker_that_waits_for_zookeeper_is_live_but_not_ready(tmp_path: Path, unused_tcp_port: int) -> None:
    settings = {
        "zookeeper.connect": f"127.0.0.1:{unused_tcp_port}",
        "broker.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path),
        **METRICS,
    }
    broker = Broker(settings)
    life = asyncio.create_task(broker.run())
    await eventually(lambda: broker.metrics_server.port >= 0)
    assert (await verdict(broker, "/health"))[0] == 200
    status, document = await verdict(broker, "/ready")
    assert (status, document["status"], document["phase"]) == (503, "fail", "waiting for ZooKeeper")
    assert (await get(broker, "/nothing"))[0] == 404
    broker.stop()
    await life


async def test_broker_outside_of_an_isr_is_ready_but_not_in_sync(tmp_path: Path) -> None:
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path, METRICS) as broker:
        topic = CreatableTopic(name="t", num_partitions=12, replication_factor=1)
        await ask(broker, CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, version=5)
        await eventually(lambda: broker.metadata.partition_count("t") >= 12)
        assert (await verdict(broker, "/in-sync"))[0] == 200
        image = broker.metadata.topic("t")
        assert image is not None
        for state in image.partitions.values():
            state.isr = []
        assert (await verdict(broker, "/ready"))[0] == 200
        status, document = await verdict(broker, "/in-sync")
        assert (status, document["status"], document["behind"]) == (503, "fail", 12)
        assert len(document["partitions"]) == 10


async def test_broken_broker_is_not_live(tmp_path: Path) -> None:
    async with zookeeper() as ensemble, live_broker(ensemble, tmp_path, METRICS) as broker:
        broker.health.fatal = RuntimeError("a bug")
        status, document = await verdict(broker, "/health")
        assert (status, document["fatal"]) == (503, "RuntimeError: a bug")


@pytest.fixture
def unused_tcp_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
