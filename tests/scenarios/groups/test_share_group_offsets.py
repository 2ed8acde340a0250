"""The offsets of a share group: described with the lag, set back, deleted; and the group is deleted with them."""

import asyncio

from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from barnabas.base.errors import ErrorCode
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.testing import Broker
from barnabas.wire.messages import alter_share_group_offsets as altering
from barnabas.wire.messages import delete_share_group_offsets as deleting
from barnabas.wire.messages import describe_share_group_offsets as describing
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tests.scenarios.groups.test_share_group_members import FAST_SHARE

PARTITIONS = 3
RECORDS = 60


def from_the_start(bootstrap: str) -> None:
    """Set `share.auto.offset.reset` of the group, as administrators do."""
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, "g", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def produce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce("orders", str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def consume(bootstrap: str, count: int) -> list[int]:
    """Read and accept so many records, and leave the group."""
    values: list[int] = []
    consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    consumer.subscribe(["orders"])
    while len(values) < count:
        values += [int(message.value()) for message in consumer.poll(1) if message.error() is None]
    consumer.commit_sync(30.0)
    consumer.close()
    return sorted(values)


class Admin:
    def __init__(self, client: AsyncClient) -> None:
        self._core = client

    async def lags(self) -> list[int]:
        """Return the lag of each partition. The start offset in the state may be older than the deliveries that are
        complete."""
        request = describing.DescribeShareGroupOffsetsRequest(
            groups=[describing.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=None)]
        )
        response = await self._core.ask_coordinator(
            "g", request, describing.DescribeShareGroupOffsetsResponse, error_of=lambda each: each.groups[0].error_code
        )
        assert response.groups[0].error_code == ErrorCode.NONE
        found = [each for topic in response.groups[0].topics for each in topic.partitions]
        assert not [each for each in found if each.error_code]
        return [each.lag for each in sorted(found, key=lambda each: each.partition_index)]

    async def alter(self, starts: dict[int, int]) -> ErrorCode:
        partitions = [
            altering.AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=offset)
            for number, offset in starts.items()
        ]
        request = altering.AlterShareGroupOffsetsRequest(
            group_id="g",
            topics=[altering.AlterShareGroupOffsetsRequestTopic(topic_name="orders", partitions=partitions)],
        )
        response = await self._core.ask_coordinator(
            "g", request, altering.AlterShareGroupOffsetsResponse, error_of=lambda each: each.error_code
        )
        assert not [each for topic in response.responses for each in topic.partitions if each.error_code]
        return ErrorCode(response.error_code)

    async def delete_offsets(self) -> list[int]:
        request = deleting.DeleteShareGroupOffsetsRequest(
            group_id="g", topics=[deleting.DeleteShareGroupOffsetsRequestTopic(topic_name="orders")]
        )
        response = await self._core.ask_coordinator(
            "g", request, deleting.DeleteShareGroupOffsetsResponse, error_of=lambda each: each.error_code
        )
        return [response.error_code, *(each.error_code for each in response.responses)]

    async def delete_group(self) -> int:
        response = await self._core.ask_coordinator(
            "g",
            DeleteGroupsRequest(groups_names=["g"]),
            DeleteGroupsResponse,
            error_of=lambda each: each.results[0].error_code,
        )
        return response.results[0].error_code


async def test_offsets_are_read_set_back_and_deleted_and_the_group_goes() -> None:
    async with Broker(brokers=3, config=FAST_SHARE) as kafka, AsyncClient(client_config(kafka.bootstrap)) as client:
        admin = Admin(client)
        await kafka.create_topic("orders", partitions=PARTITIONS)
        await asyncio.to_thread(from_the_start, kafka.bootstrap)
        await asyncio.to_thread(produce, kafka.bootstrap)
        assert await asyncio.to_thread(consume, kafka.bootstrap, RECORDS) == list(range(RECORDS))
        everything = RECORDS // PARTITIONS
        await reaches(admin, [0, 0, 0])
        assert await admin.alter({0: 0, 1: 5}) is ErrorCode.NONE
        await reaches(admin, [everything, everything - 5, 0])
        again = await asyncio.to_thread(consume, kafka.bootstrap, 2 * everything - 5)
        assert again == sorted([*range(0, RECORDS, 3), *range(1 + 5 * 3, RECORDS, 3)])
        await reaches(admin, [0, 0, 0])
        assert await admin.delete_offsets() == [0, 0]
        assert await admin.lags() == []
        assert await asyncio.to_thread(consume, kafka.bootstrap, RECORDS) == list(range(RECORDS))
        assert await admin.delete_group() == ErrorCode.NONE
        assert await admin.lags() == []
        assert await admin.delete_group() == ErrorCode.GROUP_ID_NOT_FOUND


async def reaches(admin: Admin, expected: list[int]) -> None:
    """Wait for the lags: the last acknowledgements may still be on their way to the share coordinators."""
    lags: list[int] = []
    for _ in range(100):
        lags = await admin.lags()
        if lags == expected:
            return
        await asyncio.sleep(0.1)
    assert lags == expected
