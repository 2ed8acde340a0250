"""The number of Python calls that one request takes in a broker: it grows unnoticed, and each call costs 0.1 to 0.2 us."""

import asyncio
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

import pytest

from barnabas.testing import Broker
from barnabas.wire import codec, frame
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from barnabas.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from barnabas.wire.records import BatchBuilder
from tests.support.async_fixture import async_fixture

VERSIONS = {
    "Fetch": 16,
    "FindCoordinator": 4,
    "Heartbeat": 4,
    "JoinGroup": 3,
    "Metadata": 12,
    "OffsetFetch": 5,
    "OffsetCommit": 8,
    "Produce": 11,
    "SyncGroup": 5,
}
#: Code that only a broker in a test runs.
OF_TESTS = ("fault_injection.py", "faults.py", "in_process.py")
REQUESTS = 50
WARM = 5

pytestmark = pytest.mark.uvloop
R = TypeVar("R", bound=ApiMessage)


class Client:
    """Talks to the broker from a thread, so that the broker's thread can be counted alone."""

    def __init__(self, address: str) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), 30)
        self._received = self.sock.makefile("rb")

    def ask(self, requests: list[bytes]) -> bytes:
        """Send one request after the other, and return the last answer."""
        answer = b""
        for request in requests:
            self.sock.sendall(request)
            answer = self.receive()
        return answer

    def receive(self) -> bytes:
        return self._received.read(int.from_bytes(self._received.read(4), "big"))

    def close(self) -> None:
        self._received.close()
        self.sock.close()


def encode(request: ApiMessage) -> bytes:
    version = VERSIONS[type(request).__name__.removesuffix("Request")]
    return frame.encode_request(request, version, 1, "client-1")


def decode(answer: bytes, kind: type[R]) -> R:
    version = VERSIONS[kind.__name__.removesuffix("Response")]
    _, at = frame.parse_response_header(kind.API_KEY, version, answer)
    return codec.decode(kind, answer, version, at)


def batch() -> bytes:
    builder = BatchBuilder()
    builder.append(b"key", bytes(100), timestamp=1_700_000_000_000)
    return builder.build()


async def calls_of(ask: Callable[[list[bytes]], object], requests: list[bytes]) -> float:
    """Return the number of Python calls per request; the first requests warm caches up."""
    calls: Counter[str] = Counter()

    def count(called: FrameType, event: str, _: object) -> None:
        if event == "call" and not called.f_code.co_filename.endswith(OF_TESTS):
            calls[f"{called.f_code.co_filename}:{called.f_code.co_name}"] += 1

    number = len(requests) - WARM
    await asyncio.to_thread(ask, requests[:WARM])
    asked = asyncio.create_task(asyncio.to_thread(ask, requests[WARM:]))
    await asyncio.sleep(0)
    sys.setprofile(count)
    try:
        await asked
    finally:
        sys.setprofile(None)
    # The broker has other work in this time: leave out what not every other request calls.
    steps = {name: count for name, count in calls.items() if count >= number // 2}
    for name, times in steps.items():
        print(f"{times / number:5.2f} {name}")
    return sum(steps.values()) / number


@dataclass
class World:
    """A broker with a topic of four partitions, and a client of it."""

    client: Client
    topic_id: bytes
    produce: bytes

    async def ask(self, request: ApiMessage, kind: type[R]) -> R:
        return decode(await asyncio.to_thread(self.client.ask, [encode(request)]), kind)

    async def coordinator(self, group: str) -> None:
        """Wait until the coordinator of the group has loaded."""
        find = FindCoordinatorRequest(coordinator_keys=[group])
        while (await self.ask(find, FindCoordinatorResponse)).coordinators[0].error_code:
            await asyncio.sleep(0.01)
        list_offsets = OffsetFetchRequest(group_id=group)
        while (await self.ask(list_offsets, OffsetFetchResponse)).error_code:
            await asyncio.sleep(0.01)

    def fetch(self, session_id: int, epoch: int, offsets: dict[int, int], wait_ms: int = 0) -> FetchRequest:
        partitions = [
            FetchPartition(partition=each, fetch_offset=offset, partition_max_bytes=1 << 20)
            for each, offset in offsets.items()
        ]
        topics = [FetchTopic(topic_id=self.topic_id, partitions=partitions)] if partitions else []
        return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, session_id=session_id, session_epoch=epoch, topics=topics)


@async_fixture
async def world() -> AsyncIterator[World]:
    async with Broker(config={"group.initial.rebalance.delay.ms": "0"}) as kafka:
        await kafka.create_topic("orders", partitions=4)
        client = Client(kafka.bootstrap)
        world = World(client, b"", produced(1))
        found = await world.ask(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), MetadataResponse)
        world.topic_id = found.topics[0].topic_id
        yield world
        client.close()


def produced(acks: int) -> bytes:
    data = [TopicProduceData(name="orders", partition_data=[PartitionProduceData(index=0, records=batch())])]
    return encode(ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=data))


@pytest.mark.parametrize("acks", [1, -1])
async def test_produce_of_one_record_takes_few_calls(world: World, acks: int) -> None:
    request = produced(acks)
    answer = decode(await asyncio.to_thread(world.client.ask, [request]), ProduceResponse)
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert await calls_of(world.client.ask, [request] * (WARM + REQUESTS)) <= 46


async def test_fetch_that_finds_records_takes_few_calls(world: World) -> None:
    request = world.fetch(0, -1, {0: 0})
    await asyncio.to_thread(world.client.ask, [world.produce])
    assert (await world.ask(request, FetchResponse)).responses[0].partitions[0].records
    assert await calls_of(world.client.ask, [encode(request)] * (WARM + REQUESTS)) <= 61


async def test_fetch_of_one_changed_partition_in_a_session_takes_few_calls(world: World) -> None:
    session_id = (await world.ask(world.fetch(0, 0, dict.fromkeys(range(4), 0)), FetchResponse)).session_id
    await asyncio.to_thread(world.client.ask, [world.produce])
    found = await world.ask(world.fetch(session_id, 1, {0: 0}), FetchResponse)
    assert [each.partition_index for each in found.responses[0].partitions] == [0]
    requests = [encode(world.fetch(session_id, 2 + each, {0: 0})) for each in range(WARM + REQUESTS)]
    assert await calls_of(world.client.ask, requests) <= 68


async def test_long_poll_and_the_produce_that_it_waits_for_take_few_calls(world: World) -> None:
    session_id = (await world.ask(world.fetch(0, 0, dict.fromkeys(range(4), 0)), FetchResponse)).session_id
    producer = Client(world.client.address)
    requests = [encode(world.fetch(session_id, 1 + at, {0: at}, wait_ms=30_000)) for at in range(WARM + REQUESTS)]

    def ask(polls: list[bytes]) -> None:
        for poll in polls:
            world.client.sock.sendall(poll)
            producer.ask([world.produce])
            answer = decode(world.client.receive(), FetchResponse)
            assert len(answer.responses[0].partitions) == 1

    assert await calls_of(ask, requests) <= 132
    producer.close()


async def test_commit_takes_few_calls(world: World) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=42)
    topic = OffsetCommitRequestTopic(name="orders", partitions=[partition])
    request = OffsetCommitRequest(group_id="readers", topics=[topic])
    await world.coordinator("readers")
    assert (await world.ask(request, OffsetCommitResponse)).topics[0].partitions[0].error_code == 0
    assert await calls_of(world.client.ask, [encode(request)] * (WARM + REQUESTS)) <= 114


async def test_heartbeat_takes_few_calls(world: World) -> None:
    await world.coordinator("readers")
    join = JoinGroupRequest(
        group_id="readers",
        session_timeout_ms=300_000,
        rebalance_timeout_ms=300_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    joined = await world.ask(join, JoinGroupResponse)
    member_id, generation_id = joined.member_id, joined.generation_id
    assignment = SyncGroupRequestAssignment(member_id=member_id, assignment=b"")
    sync = SyncGroupRequest(
        group_id="readers", generation_id=generation_id, member_id=member_id, assignments=[assignment]
    )
    await world.ask(sync, SyncGroupResponse)
    request = HeartbeatRequest(group_id="readers", generation_id=generation_id, member_id=member_id)
    assert (await world.ask(request, HeartbeatResponse)).error_code == 0
    assert await calls_of(world.client.ask, [encode(request)] * (WARM + REQUESTS)) <= 56


async def test_metadata_that_has_not_changed_takes_few_calls(world: World) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")], allow_auto_topic_creation=False)
    assert await calls_of(world.client.ask, [encode(request)] * (WARM + REQUESTS)) <= 28
