"""The number of Python calls that one request takes in a broker: it grows unnoticed, and each call costs 0.1 to 0.2 us."""

import asyncio
import socket
import sys
from collections import Counter
from types import FrameType
from typing import TypeVar

import pytest

from barnabas.testing import Broker
from barnabas.wire import codec, frame
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from barnabas.wire.records import BatchBuilder

VERSIONS = {"Produce": 11, "Fetch": 16, "Metadata": 12}
#: Code that only a broker in a test runs.
OF_TESTS = ("fault_injection.py", "faults.py", "in_process.py")
REQUESTS = 50

pytestmark = pytest.mark.uvloop
R = TypeVar("R", bound=ApiMessage)


class Client:
    """Talks to the broker from a thread, so that the broker's thread can be counted alone."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), 30)
        self._received = self.sock.makefile("rb")

    def ask(self, requests: list[bytes]) -> bytes:
        """Send one request after the other, and return the last answer."""
        answer = b""
        for request in requests:
            self.sock.sendall(request)
            answer = self._received.read(int.from_bytes(self._received.read(4), "big"))
        return answer

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


async def calls_of(client: Client, request: bytes) -> float:
    """Return the number of Python calls per request, after a few requests that warm caches up."""
    calls: Counter[str] = Counter()

    def count(called: FrameType, event: str, _: object) -> None:
        if event == "call" and not called.f_code.co_filename.endswith(OF_TESTS):
            calls[f"{called.f_code.co_filename}:{called.f_code.co_name}"] += 1

    await asyncio.to_thread(client.ask, [request] * 5)
    asked = asyncio.create_task(asyncio.to_thread(client.ask, [request] * REQUESTS))
    await asyncio.sleep(0)
    sys.setprofile(count)
    try:
        await asked
    finally:
        sys.setprofile(None)
    # The broker has other work in this time: leave out what not every other request calls.
    steps = {name: number for name, number in calls.items() if number >= REQUESTS // 2}
    for name, number in steps.items():
        print(f"{number / REQUESTS:5.2f} {name}")
    return sum(steps.values()) / REQUESTS


@pytest.mark.parametrize("acks", [1, -1])
async def test_produce_of_one_record_takes_few_calls(acks: int) -> None:
    async with Broker() as kafka:
        await kafka.create_topic("orders")
        client = Client(kafka.bootstrap)
        data = [TopicProduceData(name="orders", partition_data=[PartitionProduceData(index=0, records=batch())])]
        request = encode(ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=data))
        answer = decode(await asyncio.to_thread(client.ask, [request]), ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert await calls_of(client, request) <= 52
        client.close()


async def test_fetch_that_finds_records_takes_few_calls() -> None:
    async with Broker() as kafka:
        await kafka.create_topic("orders")
        client = Client(kafka.bootstrap)
        data = [TopicProduceData(name="orders", partition_data=[PartitionProduceData(index=0, records=batch())])]
        produce = encode(ProduceRequest(acks=1, timeout_ms=30_000, topic_data=data))
        metadata = encode(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]))
        found = decode(await asyncio.to_thread(client.ask, [produce, metadata]), MetadataResponse)
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topic = FetchTopic(topic_id=found.topics[0].topic_id, partitions=[partition])
        request = encode(FetchRequest(max_wait_ms=0, min_bytes=1, session_epoch=-1, topics=[topic]))
        answer = decode(await asyncio.to_thread(client.ask, [request]), FetchResponse)
        assert answer.responses[0].partitions[0].records
        assert await calls_of(client, request) <= 76
        client.close()
