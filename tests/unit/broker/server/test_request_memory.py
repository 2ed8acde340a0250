"""`queued.max.request.bytes`, and what requests may take without it: many connections, one memory."""

import asyncio
import struct
from pathlib import Path

import pytest
import uvloop

from barnabas.broker.server import request_memory
from barnabas.broker.server.call import Call
from barnabas.broker.server.request_memory import machine_bytes
from barnabas.wire import frame
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tests.support.waiting import eventually
from tests.unit.broker.server.harness import Harness, RawClient

LIMIT = 1_000_000


def produce(size: int) -> bytes:
    data = PartitionProduceData(index=0, records=b"x" * size)
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[data])])
    return frame.encode_request(request, 7, 1, "test")


def answer_at_once(call: Call, request: ProduceRequest) -> ProduceResponse:
    return ProduceResponse()


def pool(handler=answer_at_once) -> Harness:
    return Harness({"Produce": handler}, request_bytes_max=LIMIT, queued_bytes_max=LIMIT)


async def begin(server: Harness, data: bytes, sent: int) -> RawClient:
    """A client that has sent the first bytes of a frame, which the broker has read."""
    used, waiting = server.server.memory.used_bytes, len(server.server.memory._waiting)
    client = await server.client()
    client.writer.write(data[:sent])
    memory = server.server.memory
    await eventually(lambda: memory.used_bytes > used or len(memory._waiting) > waiting)
    return client


def test_request_is_not_received_while_others_have_all_memory():
    async def test() -> None:
        async with pool() as server:
            memory, large, small = server.server.memory, produce(900_000), produce(300_000)
            first = await begin(server, large, 400_000)
            second = await begin(server, large, 400_000)  # anything is left, so it may take more than that, as in Kafka
            assert memory.used_bytes == 2 * (len(large) - 4)
            third = await begin(server, small, 200_000)
            assert memory.used_bytes == 2 * (len(large) - 4)
            third.writer.write(small[200_000:])
            fourth = await server.client()
            assert (await fourth.heartbeat()).error_code == 0  # what takes no memory of its own does not wait
            assert [memory.is_waiting(each) for each in server.server.connections] == [False, False, True, False]
            first.writer.write(large[400_000:])
            assert await first.correlation_id() == await third.correlation_id() == 1
            second.writer.write(large[400_000:])
            assert await second.correlation_id() == 1
            await eventually(lambda: memory.used_bytes == 0)
            for client in (first, second, third, fourth):
                await client.close()

    uvloop.run(test())


def test_memory_of_a_broken_connection_is_given_to_waiting_ones():
    async def test() -> None:
        async with pool() as server:
            holder = await begin(server, produce(990_000), 300_000)
            another = await begin(server, produce(990_000), 300_000)
            waits = await begin(server, produce(300_000), 200_000)
            gone = await begin(server, produce(300_000), 200_000)
            gone.writer.transport.abort()  # noticed at its turn: a waiting connection is not read
            holder.writer.transport.abort()
            another.writer.transport.abort()
            waits.writer.write(produce(300_000)[200_000:])
            assert await waits.correlation_id() == 1
            await waits.close()
            await eventually(lambda: server.server.memory.used_bytes == 0)

    uvloop.run(test())


def test_waiting_connections_do_not_wait_for_their_own_first_bytes():
    """Their first bytes together exceed the pool. If those counted, no connection would ever continue."""

    async def test() -> None:
        async with pool() as server:
            holder = await begin(server, produce(990_000), 300_000)
            another = await begin(server, produce(990_000), 300_000)
            data = produce(300_000)
            waiting = [await begin(server, data, 250_000) for _ in range(8)]
            for client in (holder, another):
                client.writer.write(produce(990_000)[300_000:])
            for client in waiting:
                client.writer.write(data[250_000:])
            for client in (holder, another, *waiting):
                assert await client.correlation_id() == 1
                await client.close()

    uvloop.run(test())


def test_request_that_arrives_slowly_goes_when_others_wait_for_its_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(request_memory, "PATIENCE_S", 0.05)

    async def test() -> None:
        async with pool() as server:
            slow = [await begin(server, produce(990_000), 5_000) for _ in range(2)]
            honest = await begin(server, produce(300_000), 200_000)
            honest.writer.write(produce(300_000)[200_000:])
            assert await honest.correlation_id() == 1
            for client in slow:
                assert await client.is_closed()
                await client.close()
            await honest.close()

    uvloop.run(test())
    assert "queued.max.request.bytes=1000000" in caplog.text


def test_memory_is_given_back_when_the_handler_has_run_and_not_when_it_has_begun():
    async def test() -> None:
        go_on = asyncio.Event()

        async def slow(call: Call, request: ProduceRequest) -> ProduceResponse:
            await go_on.wait()
            return ProduceResponse()

        async with pool(slow) as server:
            client = await server.client()
            client.writer.write(produce(900_000))
            await eventually(lambda: bool(server.tasks) and any(c.busy for c in server.server.connections))
            assert server.server.memory.used_bytes >= 900_000
            go_on.set()
            assert await client.correlation_id() == 1
            assert server.server.memory.used_bytes == 0
            await client.close()

    uvloop.run(test())


def test_without_the_setting_the_largest_holder_is_closed_above_a_share_of_the_machine(
    caplog: pytest.LogCaptureFixture,
):
    async def test() -> None:
        async with Harness({"Produce": answer_at_once}, request_bytes_max=100_000_000) as server:
            memory = server.server.memory
            memory.limit_bytes = 3_000_000
            lie = struct.pack(">i", 100_000_000)
            liars = [await begin(server, lie + b"x" * 1000, 1004) for _ in range(50)]
            assert memory.used_bytes <= 50 * 16 * 1024
            greedy = await begin(server, lie + b"x" * 600_000, 600_004)
            while not greedy.reader.at_eof() and memory.used_bytes < 3_000_000 and not caplog.text:
                greedy.writer.write(b"x" * 100_000)
                await asyncio.sleep(0.001)
            assert await greedy.is_closed()
            assert memory.used_bytes <= 50 * 16 * 1024
            honest = await server.client()
            honest.writer.write(produce(900_000))
            assert await honest.correlation_id() == 1
            assert len(server.server.connections) == 51
            for client in (*liars, greedy, honest):
                await client.close()

    uvloop.run(test())
    assert caplog.text.count("set queued.max.request.bytes to make clients wait for each other") == 1


def test_requests_that_wait_for_their_turn_count_and_leave_nothing_behind():
    """Requests that a client has sent ahead are kept while one runs: up to 256 KiB for each connection."""

    async def test() -> None:
        go_on = asyncio.Event()

        async def slow(call: Call, request: ProduceRequest) -> ProduceResponse:
            await go_on.wait()
            return ProduceResponse()

        async with Harness({"Produce": slow}) as server:
            client = await server.client()
            client.writer.write(produce(100) * 1000)
            await eventually(lambda: server.server.memory.used_bytes >= 100_000)
            client.writer.write(produce(900_000))
            go_on.set()
            for _ in range(1001):
                assert await client.correlation_id() == 1
            assert server.server.memory.used_bytes == 0
            await client.close()

    uvloop.run(test())


@pytest.mark.parametrize(("text", "limited"), [("1000000\n", True), ("max\n", False), (None, False)])
def test_container_has_the_memory_that_it_may_use(tmp_path: Path, text: str | None, limited: bool):
    file = tmp_path / "memory.max"
    if text is not None:
        file.write_text(text)
    assert (machine_bytes(file) == 1_000_000) is limited
    assert machine_bytes(file) > 0
