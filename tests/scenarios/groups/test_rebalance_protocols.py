"""`group.coordinator.rebalance.protocols`: a cluster restricted to the classic protocol refuses the new one."""

import asyncio

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.cli.local_cluster import LocalCluster, wait_until
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

NOT_YET = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
JOIN = ConsumerGroupHeartbeatRequest(
    group_id="g",
    member_id="A" * 22,
    member_epoch=0,
    rebalance_timeout_ms=1000,
    subscribed_topic_names=["orders"],
    topic_partitions=[],
)


async def join(bootstrap: str) -> ErrorCode:
    async with AsyncClient(client_config(bootstrap)) as client:
        await client.ask_any(FindCoordinatorRequest(key="g", coordinator_keys=["g"]), FindCoordinatorResponse)
        return ErrorCode((await client.ask_any(JOIN, ConsumerGroupHeartbeatResponse)).error_code)


@pytest.mark.parametrize(
    ("protocols", "answer"), [("classic", ErrorCode.UNSUPPORTED_VERSION), ("classic,consumer", ErrorCode.NONE)]
)
def test_consumer_protocol_is_served_where_the_setting_names_it(protocols: str, answer: ErrorCode) -> None:
    answers: list[ErrorCode] = []
    with LocalCluster(brokers=1, config={"group.coordinator.rebalance.protocols": protocols}) as cluster:

        def answered() -> bool:
            answers.append(asyncio.run(join(cluster.bootstrap)))
            return answers[-1] not in NOT_YET

        wait_until(answered, what="an answer")
    assert answers[-1] is answer
