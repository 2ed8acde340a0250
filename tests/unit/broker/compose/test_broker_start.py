"""A starting broker before it has joined the cluster: which requests it serves, and which it does not."""

import asyncio
import logging
from pathlib import Path

import pytest

from barnabas.base.clock import SystemClock
from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.broker.compose import Broker
from barnabas.broker.parts import readiness
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.registration import BrokerRegistrar, create_top_level_paths
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration, ControllerRegistration, Endpoint
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
)
from barnabas.wire.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from tests.support.waiting import eventually
from tests.unit.broker.compose.live_broker import LISTENER, ask, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import Ensemble, run, session, zookeeper

ORDERS = TopicPartition("orders", 0)
#: What both lives of the broker announce.
ADDRESS = Endpoint(LISTENER, LISTENER, "localhost", 1)


def lead(broker_epoch: int) -> LeaderAndIsrRequest:
    """Broker 1 is to lead in the epoch that it led in before."""
    state = LeaderAndIsrPartitionState(
        topic_name="orders", partition_index=0, leader=1, leader_epoch=4, isr=[1, 2], replicas=[1, 2]
    )
    topic = LeaderAndIsrTopicState(topic_name="orders", partition_states=[state])
    return LeaderAndIsrRequest(controller_id=2, controller_epoch=3, broker_epoch=broker_epoch, topic_states=[topic])


def delete(broker_epoch: int) -> StopReplicaRequest:
    state = StopReplicaPartitionState(partition_index=0, leader_epoch=-2, delete_partition=True)
    topic = StopReplicaTopicState(topic_name="orders", partition_states=[state])
    return StopReplicaRequest(controller_id=2, controller_epoch=3, broker_epoch=broker_epoch, topic_states=[topic])


def news(broker_epoch: int) -> UpdateMetadataRequest:
    endpoint = UpdateMetadataEndpoint(port=1, host="localhost", listener=LISTENER, security_protocol=0)
    return UpdateMetadataRequest(
        controller_id=2,
        controller_epoch=3,
        broker_epoch=broker_epoch,
        live_brokers=[UpdateMetadataBroker(id=1, endpoints=[endpoint])],
    )


async def unanswered(answers: list[asyncio.Task[ApiMessage]]) -> bool:
    """After a while in which a broker that answers would have done so."""
    done, _ = await asyncio.wait(answers, timeout=0.3, return_when=asyncio.FIRST_COMPLETED)
    return not done


def test_requests_meant_for_the_broker_that_died_are_refused_by_its_successor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits until the registration of its former process is gone. Until then it accepts no controller's request: a
    controller that takes the dead process for alive would make it leader in the old epoch, without the records that a power cut
    took."""

    async def story() -> None:
        async with zookeeper() as ensemble, session(ensemble) as controller, session(ensemble) as former:
            await create_top_level_paths(controller)
            await controller.create(paths.CONTROLLER, ControllerRegistration(2).encode(), ephemeral=True)
            registration = BrokerRegistration(1, (ADDRESS,))
            died = await BrokerRegistrar(
                former, registration, clock=SystemClock(), wait_for_former_self_ms=0
            ).register()
            settings = {"advertised.listeners": f"{LISTENER}://{ADDRESS.host}:{ADDRESS.port}"}
            async with live_broker(ensemble, tmp_path, settings, ready=False) as broker:
                answers = [
                    asyncio.create_task(each)
                    for each in (
                        asked(broker, lead(died), LeaderAndIsrResponse, version=7),
                        asked(broker, lead(-1), LeaderAndIsrResponse, version=7),
                        asked(broker, delete(died), StopReplicaResponse, version=4),
                        asked(broker, news(died), UpdateMetadataResponse, version=8),
                    )
                ]
                while not any(each.funcName == "_settle_with_owner" for each in caplog.records):  # it waits
                    await asyncio.sleep(0.01)
                assert await unanswered(answers)
                await former.stop()
                to_the_dead, to_anybody, deletion, metadata = await asyncio.gather(*answers)
                assert broker.registrar.epoch > died
                assert to_the_dead.error_code == ErrorCode.STALE_BROKER_EPOCH
                assert deletion.error_code == ErrorCode.STALE_BROKER_EPOCH
                assert metadata.error_code == ErrorCode.STALE_BROKER_EPOCH
                # A controller before Kafka 2.2 names no broker epoch.
                assert to_anybody.error_code == ErrorCode.NONE
                assert broker.replicas.hosted.get(ORDERS) is not None

    async def asked(broker: Broker, message: ApiMessage, answer: type[ApiMessage], *, version: int) -> ApiMessage:
        return await ask(broker, message, answer, version=version)

    caplog.set_level(logging.INFO)
    run(story())


async def test_settings_in_zookeeper_hold_from_the_start_of_a_broker(ensemble: Ensemble, tmp_path: Path) -> None:
    """Not only from the next change on: a broker that restarts must not fall back to its file."""

    async with live_broker(ensemble, tmp_path) as broker:
        changed = {"log.cleaner.threads": "2", "barnabas.request.max.elements": "4321"}
        await broker.settings.write(paths.BROKERS_ENTITY, paths.DEFAULT_ENTITY, changed)
        assert broker.cleaner.settings.threads == 2
    async with live_broker(ensemble, tmp_path) as broker:
        assert broker.cleaner.settings.threads == 2
        assert broker.pipeline.elements_max == 4321


async def test_broker_without_metadata_logs_that_it_waits_for_the_controller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a wrong advertised address a broker waited without a word."""
    monkeypatch.setattr(readiness, "WARN_AFTER_S", 0.0)

    async with zookeeper() as ensemble, session(ensemble) as controller:
        await create_top_level_paths(controller)
        await controller.create(paths.CONTROLLER, ControllerRegistration(2).encode(), ephemeral=True)
        settings = {"advertised.listeners": f"{LISTENER}://{ADDRESS.host}:{ADDRESS.port}"}
        async with live_broker(ensemble, tmp_path, settings, ready=False):
            await eventually(lambda: "Does it reach this broker at PLAINTEXT://localhost:1?" in caplog.text)
