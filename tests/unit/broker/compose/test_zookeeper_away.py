"""A broker whose ZooKeeper is unavailable: requests that need it get an error, and the broker can still be stopped."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.words import ConfigResourceType
from barnabas.broker.compose import Broker
from barnabas.broker.server import zookeeper_gate
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from barnabas.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from barnabas.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from barnabas.zookeeper.config import ZooKeeperConfig
from barnabas.zookeeper.server import EmbeddedZooKeeper
from tests.support.waiting import eventually
from tests.unit.broker.compose.live_broker import LISTENER, ask, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import Ensemble, run, zookeeper

TEN_MINUTES_MS = "600000"


@pytest.fixture
def unused_address() -> Iterator[str]:
    """An address that refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


async def create(broker: Broker, topic: str) -> tuple[ErrorCode, str | None]:
    request = CreateTopicsRequest(topics=[CreatableTopic(name=topic, num_partitions=1, replication_factor=1)])
    [result] = (await ask(broker, request, CreateTopicsResponse, version=5)).topics
    return ErrorCode(result.error_code), result.error_message


async def describe(broker: Broker, kind: ConfigResourceType, name: str) -> ErrorCode:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    answer = await ask(broker, DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse, version=4)
    return ErrorCode(answer.results[0].error_code)


async def test_requests_that_need_zookeeper_are_refused_with_the_reason_and_served_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_gate, "PATIENCE_S", 0.3)

    ensemble = Ensemble(str(tmp_path / "zookeeper"))
    await ensemble.server.start()
    async with live_broker(ensemble, tmp_path / "log") as broker:
        address = ensemble.server.connect_string
        assert (await create(broker, "known"))[0] is ErrorCode.NONE
        await ensemble.server.stop()
        code, message = await create(broker, "caught-by-it")
        assert code is ErrorCode.REQUEST_TIMED_OUT and message is not None
        assert f"ZooKeeper cannot be reached: {address} has not answered since 20" in message
        assert "may still be carried out" in message
        code, message = await create(broker, "later")
        assert code is ErrorCode.REQUEST_TIMED_OUT and message is not None and "nothing was changed" in message
        read = DescribeUserScramCredentialsRequest(users=None)
        refused = await ask(broker, read, DescribeUserScramCredentialsResponse, version=0)
        assert refused.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert await describe(broker, ConfigResourceType.TOPIC, "known") is ErrorCode.REQUEST_TIMED_OUT
        assert await describe(broker, ConfigResourceType.BROKER, "1") is ErrorCode.NONE

        back = EmbeddedZooKeeper(
            tmp_path / "zookeeper",
            clock=ensemble.clock,
            config=ZooKeeperConfig(force_sync=False),
            port=int(address.rpartition(":")[2]),
        )
        await back.start()
        try:
            while (await create(broker, "later"))[0] is ErrorCode.REQUEST_TIMED_OUT:
                await asyncio.sleep(0.05)
            assert broker.metadata.topic("caught-by-it") is not None, "a request sent before is still carried out"
        finally:
            broker.stop()
            await back.stop()


def test_broker_that_waits_for_zookeeper_logs_it_and_can_be_stopped(
    tmp_path: Path, unused_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        broker = Broker(
            {
                "zookeeper.connect": unused_address,
                "zookeeper.connection.timeout.ms": TEN_MINUTES_MS,
                "broker.id": "1",
                "listeners": f"{LISTENER}://127.0.0.1:0",
                "log.dirs": str(tmp_path),
            }
        )
        life = asyncio.create_task(broker.run())
        await eventually(lambda: f"[zookeeper] waiting for {unused_address}" in caplog.text)
        broker.stop()
        await life

    caplog.set_level(logging.INFO)
    run(story())
    assert caplog.records[-1].message == "stopped"


async def test_broker_whose_zookeeper_went_away_stops_without_a_hand_over(tmp_path: Path) -> None:
    # With two brokers, one would ask the other to take over, again and again: each question may take ten minutes.
    settings = {
        "controlled.shutdown.enable": "true",
        "controlled.shutdown.retry.backoff.ms": TEN_MINUTES_MS,
        "controller.socket.timeout.ms": TEN_MINUTES_MS,
    }

    async with (
        zookeeper() as ensemble,
        live_broker(ensemble, tmp_path / "1", settings) as one,
        live_broker(ensemble, tmp_path / "2", {**settings, "broker.id": "2"}) as two,
    ):
        await eventually(lambda: len(one.metadata.brokers) == len(two.metadata.brokers) == 2)
        await ensemble.server.stop()
        await eventually(lambda: not one.session.is_connected and not two.session.is_connected)
