"""Connections: framing, order, back-pressure, and peers that misbehave."""

import asyncio
import gc
import os
import random
import socket
import struct
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop

from barnabas.base.errors import BrokenInvariant, ErrorCode, NothingWritten, Refused
from barnabas.broker.server import connection
from barnabas.broker.server.call import Call
from barnabas.broker.server.connection import FRAME_BUFFER_START_BYTES, SHARED_BUFFER_BYTES
from barnabas.broker.server.connection_quotas import ConnectionLimits
from barnabas.broker.server.ranges import Part, read_small
from barnabas.broker.server.writer import SocketWriter
from barnabas.broker.zookeeper_client.zk_errors import SessionExpired
from barnabas.wire import frame
from barnabas.wire.messages.fetch import FetchRequest, FetchResponse
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tests.support.waiting import eventually
from tests.unit.broker.server.harness import Harness, PinnedRange, fetch_response, heartbeat

pytestmark = pytest.mark.uvloop


def produce(payload: bytes, acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=payload)
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[data])])


async def test_request_in_one_byte_pieces_is_answered() -> None:
    async with Harness() as server:
        client = await server.client()
        for byte in frame.encode_request(heartbeat(), 3, 7, "test"):
            client.writer.write(bytes([byte]))
            await client.writer.drain()
        assert await client.correlation_id() == 7
        await client.close()


async def test_records_can_be_written_into_wherever_the_frame_was_cut() -> None:
    """The log writes offsets into a Produce's frame, so a frame that came in pieces must be as writable as any other."""
    writable: list[bool] = []

    def take(call: Call, request: ProduceRequest) -> ProduceResponse:
        records = request.topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        writable.append(not records.readonly)
        return ProduceResponse()

    async with Harness({"Produce": take}) as server:
        client = await server.client()
        data = frame.encode_request(produce(b"x" * 50), 7, 1, "test")
        for cut in range(1, 8):
            # The rest must not arrive with the first piece: it is sent when the answer before has come.
            client.writer.write(data[:cut])
            await client.writer.drain()
            await eventually(lambda: any(each._prefix or each._frame for each in server.server.connections))
            client.writer.write(data[cut:])
            assert await client.correlation_id() == 1
        await client.close()
    assert writable == [True] * 7


async def test_many_requests_in_one_segment_are_answered_in_order() -> None:
    async with Harness() as server:
        client = await server.client()
        for number in range(500):
            client.send(heartbeat(), 3, number)
        assert [await client.correlation_id() for _ in range(500)] == list(range(500))
        await client.close()


async def test_answers_to_requests_of_one_segment_leave_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = SocketWriter.write

    def counted(self: SocketWriter, parts: Sequence[Part]) -> bool:
        written.append(len(parts))
        return write(self, parts)

    monkeypatch.setattr(SocketWriter, "write", counted)
    async with Harness() as server:
        client = await server.client()
        requests = [frame.encode_request(heartbeat(), 3, number, "test") for number in range(20)]
        client.writer.write(b"".join(requests))
        assert [await client.correlation_id() for _ in range(20)] == list(range(20))
        assert sum(written) == 20 and len(written) <= 3
        await client.close()


async def test_answers_before_a_request_that_ends_the_connection_are_sent() -> None:
    async with Harness() as server:
        client = await server.client()
        requests = [frame.encode_request(heartbeat(), 3, number, "test") for number in range(3)]
        client.writer.write(b"".join(requests) + b"\0\0\0\x0a" + b"\x7f" * 10)
        assert [await client.correlation_id() for _ in range(3)] == [0, 1, 2]
        assert await client.is_closed()
        await client.close()


async def test_client_that_sent_many_requests_ahead_does_not_keep_the_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "TURN_S", -1.0)  # as if every request took the whole of a turn
    carried_out: list[str] = []
    sockets: list[int] = []

    def handle(call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
        if not carried_out:
            os.write(sockets[0], frame.encode_request(heartbeat("modest"), 3, 1, "test"))
        carried_out.append(request.group_id)
        return HeartbeatResponse()

    async with Harness({"Heartbeat": handle}) as server:
        eager, modest = await server.client(), await server.client()
        sockets.append(modest.writer.get_extra_info("socket").fileno())
        for number in range(100):
            eager.send(heartbeat("eager"), 3, number)
        assert await modest.correlation_id() == 1
        assert [await eager.correlation_id() for _ in range(100)] == list(range(100))
        assert carried_out.index("modest") < 10
        await eager.close()
        await modest.close()


@pytest.mark.parametrize("size", [10, FRAME_BUFFER_START_BYTES])
def test_requests_of_every_size_are_answered_in_order_a_turn_each(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "TURN_S", -1.0)

    async def main() -> None:
        async with Harness(
            {"Produce": lambda call, request: ProduceResponse()}, request_bytes_max=size + 1000
        ) as server:
            client = await server.client()
            for number in range(20):
                client.send(produce(bytes(size)), 9, number)
            assert [await client.correlation_id() for _ in range(20)] == list(range(20))
            await client.close()

    uvloop.run(main())


@pytest.mark.parametrize(
    "size",
    [1, SHARED_BUFFER_BYTES - 5, SHARED_BUFFER_BYTES, FRAME_BUFFER_START_BYTES, 3 * FRAME_BUFFER_START_BYTES + 17],
)
def test_frames_of_any_size_arrive_whole(size: int) -> None:
    payload = random.Random(size).randbytes(size)

    async def main() -> None:
        seen: list[bytes] = []

        def handle(call: Call, request: ProduceRequest) -> ProduceResponse:
            seen.append(bytes(request.topic_data[0].partition_data[0].records))  # type: ignore[arg-type]
            return ProduceResponse()

        async with Harness({"Produce": handle}, request_bytes_max=100_000_000) as server:
            client = await server.client()
            for number in range(3):
                client.send(produce(payload), 9, number)
            assert [await client.correlation_id() for _ in range(3)] == [0, 1, 2]
            assert seen == [payload] * 3
            await client.close()

    uvloop.run(main())


async def test_answer_of_a_slow_request_comes_before_that_of_a_fast_one_behind_it() -> None:
    release = asyncio.Event()

    async def slow(call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
        if request.group_id == "slow":
            await release.wait()
        return HeartbeatResponse()

    async with Harness({"Heartbeat": slow}) as server:
        client = await server.client()
        client.send(heartbeat("slow"), 3, 1)
        client.send(heartbeat("fast"), 3, 2)
        await asyncio.sleep(0)
        release.set()
        assert [await client.correlation_id(), await client.correlation_id()] == [1, 2]
        await client.close()


async def test_answer_is_sent_before_the_remaining_work_of_its_handler() -> None:
    from select import select

    heard: list[bool] = []
    sockets: list[int] = []

    def handle(call: Call, request: HeartbeatRequest) -> None:
        call.reply(HeartbeatResponse())
        # What the handler does now (waking consumers) the client need not wait for: its bytes are in its socket.
        heard.append(bool(select([sockets[0]], [], [], 5)[0]))

    async with Harness({"Heartbeat": handle}) as server:
        client = await server.client()
        sockets.append(client.writer.get_extra_info("socket").fileno())
        for number in range(3):
            client.send(heartbeat(), 3, number)
            assert await client.correlation_id() == number
        assert heard == [True] * 3
        await client.close()


async def test_request_that_is_held_back_is_answered_when_the_broker_knows_the_answer() -> None:
    heartbeats = 12
    async with Harness(held_apis=[heartbeats]) as server:
        early, other = await server.client(), await server.client()
        early.send(heartbeat(), 3, 1)
        await eventually(lambda: len(server.pipeline._held) == 1)
        server.pipeline.release()
        assert await early.correlation_id() == 1
        other.send(heartbeat(), 3, 2)
        assert await other.correlation_id() == 2
        for client in (early, other):
            await client.close()


async def test_only_one_request_of_a_connection_runs_at_a_time() -> None:
    running = most = 0

    async def handle(call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return HeartbeatResponse()

    async with Harness({"Heartbeat": handle}) as server:
        client = await server.client()
        for number in range(50):
            client.send(heartbeat(), 3, number)
        assert [await client.correlation_id() for _ in range(50)] == list(range(50))
        assert most == 1
        await client.close()


async def test_produce_that_waits_for_replicas_does_not_hold_back_the_next_produce() -> None:
    waiting: list[Call] = []

    def keep(call: Call, request: ProduceRequest) -> None:
        call.overlaps = frozenset({request.API_KEY})
        waiting.append(call)

    async with Harness({"Produce": keep}) as server:
        client = await server.client()
        for number in range(3):
            client.send(produce(b"x"), 9, number)
        client.send(heartbeat(), 3, 3)
        await eventually(lambda: len(waiting) == 3)
        for call in reversed(waiting):  # committed in another order than they came
            call.reply(ProduceResponse())
        assert [await client.correlation_id() for _ in range(4)] == [0, 1, 2, 3]
        await client.close()


async def test_refused_request_gets_the_apis_error() -> None:
    def refuse(call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
        raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)

    async with Harness({"Heartbeat": refuse}) as server:
        client = await server.client()
        assert (await client.heartbeat()).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        await client.close()


async def test_broken_invariant_is_answered_and_stops_the_broker() -> None:
    def bug(call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
        raise BrokenInvariant("high watermark past the log end")

    async with Harness({"Heartbeat": bug}) as server:
        client = await server.client()
        assert (await client.heartbeat()).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert [str(each) for each in server.bugs] == ["high watermark past the log end"]
        await client.close()


@pytest.mark.parametrize(
    "bug", [AssertionError("impossible"), KeyError("x"), NothingWritten("before the append")], ids=repr
)
def test_bug_before_anything_is_written_ends_the_request_alone(
    bug: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
        raise bug

    async def main() -> None:
        async with Harness({"Heartbeat": fails}) as server:
            client = await server.client()
            for number in range(3):
                assert (await client.heartbeat(number)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            assert server.bugs == []
            assert server.pipeline.bugs.count.value == 3
            await client.close()

    uvloop.run(main())
    assert caplog.text.count("Traceback") == 1, "a client that triggers a bug must not fill the disk"


async def test_request_that_needs_zookeeper_while_it_is_away_is_answered_and_does_not_count_as_a_bug() -> None:
    async def fails(call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
        raise SessionExpired("the session has expired and there is no new one yet")

    async with Harness({"Heartbeat": fails}) as server:
        client = await server.client()
        assert (await client.heartbeat()).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert server.pipeline.bugs.count.value == 0
        await client.close()


async def test_bug_after_the_answer_is_noted_and_the_connection_goes_on() -> None:
    def fails(call: Call, request: HeartbeatRequest) -> None:
        call.reply(HeartbeatResponse())
        raise KeyError("a waiter that was woken")

    async with Harness({"Heartbeat": fails}) as server:
        client = await server.client()
        for number in range(2):
            assert (await client.heartbeat(number)).error_code == 0
        assert server.pipeline.bugs.count.value == 2
        await client.close()


async def test_bug_before_there_is_a_handler_closes_its_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness() as server:
        good, bad = await server.client(), await server.client()
        await good.heartbeat(1)
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        with monkeypatch.context() as patch:
            patch.setattr("barnabas.broker.server.pipeline.read_request_header", lambda *frame: {}["no header"])
            bad.send(heartbeat(), 3, 1)
            assert await bad.is_closed()
        assert (await good.heartbeat(2)).error_code == 0
        assert failures == [] and server.pipeline.bugs.count.value == 1
        await good.close()
        await bad.close()


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 2_000_000_000),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        struct.pack(">ihhih", 10, 9999, 0, 1, -1),
        struct.pack(">ihhih", 10, 12, 99, 1, -1),
        struct.pack(">ihhih", 10, 12, 3, 1, 5000),
        struct.pack(">i", 3) + b"abc",
    ],
    ids=["negative", "zero", "huge", "http", "unknown-api", "unknown-version", "client-id-lies", "too-short"],
)
def test_peer_that_breaks_the_protocol_is_closed_and_others_are_served(garbage: bytes) -> None:
    async def main() -> None:
        async with Harness() as server:
            good, bad = await server.client(), await server.client()
            await good.heartbeat()
            bad.writer.write(garbage)
            assert await bad.is_closed()
            assert (await good.heartbeat(2)).error_code == 0
            await good.close()
            await bad.close()

    uvloop.run(main())


async def test_random_bytes_never_hurt_anyone_else() -> None:
    async with Harness() as server:
        good = await server.client()
        for seed in range(60):
            bad = await server.client()
            bad.writer.write(random.Random(seed).randbytes(seed * 37 + 1))
            bad.writer.write_eof()
            assert await bad.is_closed()
            await bad.close()
        assert (await good.heartbeat(1)).error_code == 0
        assert server.bugs == []
        await good.close()


async def test_peer_that_never_reads_is_idle_after_a_while_and_a_slow_one_is_not(tmp_path: Path) -> None:
    data = tmp_path / "records"
    data.write_bytes(bytes(20_000_000))

    def much(call: Call, request: FetchRequest) -> FetchResponse:
        return fetch_response([PinnedRange(str(data), 0, 20_000_000)])

    async with Harness({"Fetch": much}, limits=ConnectionLimits(idle_ms_max=2_000)) as server:
        loop = asyncio.get_running_loop()
        deaf = await server.client()
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        deaf.send(FetchRequest(max_wait_ms=0, min_bytes=0), 11, 1)
        with socket.create_connection(("127.0.0.1", server.port)) as slow:
            slow.setblocking(False)
            request = frame.encode_request(FetchRequest(max_wait_ms=0, min_bytes=0), 11, 1, "test")
            await loop.sock_sendall(slow, request)
            await eventually(
                lambda: all(c.busy for c in server.server.connections) and len(server.server.connections) == 2
            )
            # Far too slow to have it all before the other one is closed.
            while len(server.server.connections) == 2:
                await loop.sock_recv(slow, 64 * 1024)
                await asyncio.sleep(0.05)
            [left] = server.server.connections
            assert left.peer_port == slow.getsockname()[1]
        await deaf.close()


async def test_lie_about_a_length_takes_sixteen_kilobytes_and_the_truth_a_megabyte() -> None:
    async with Harness(request_bytes_max=2_000_000_000) as server:
        liar, honest = await server.client(), await server.client()
        liar.writer.write(struct.pack(">i", 1_900_000_000) + b"x" * 4)
        await eventually(lambda: any(c._frame is not None for c in server.server.connections))
        [connection] = [c for c in server.server.connections if c._frame is not None]
        assert connection._frame is not None and len(connection._frame) == 16 * 1024
        honest.writer.write(struct.pack(">i", 10_000_000) + b"x" * 200_000)
        await eventually(lambda: all(c._frame is not None for c in server.server.connections))
        assert max(len(c._frame or b"") for c in server.server.connections) >= 512 * 1024
        for client in (liar, honest):
            await client.close()


async def test_many_that_flood_share_one_round_of_the_loop() -> None:
    carried_out = 0
    seen: list[int] = []

    def slow(call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
        nonlocal carried_out
        if call.client_id == "other":
            seen.append(carried_out)
            return HeartbeatResponse()
        ends_s = time.perf_counter() + 0.0005
        while time.perf_counter() < ends_s:
            pass
        carried_out += 1
        return HeartbeatResponse()

    def ask_again_and_again(port: int) -> list[int]:
        """From outside of the loop. How many others' requests came between the question and the answer."""
        between = []
        with socket.create_connection(("127.0.0.1", port)) as peer:
            for number in range(6):
                before = carried_out
                peer.sendall(frame.encode_request(heartbeat(), 3, number, "other"))
                peer.recv(100)
                between.append(seen[-1] - before)
        return sorted(between)

    async with Harness({"Heartbeat": slow}) as server:
        flood = [await server.client() for _ in range(40)]
        for client in flood:
            client.writer.write(frame.encode_request(heartbeat(), 3, 1, "flood") * 400)
        await eventually(lambda: carried_out > 1_000)
        between = await asyncio.to_thread(ask_again_and_again, server.port)
        # Turns of 10 ms each are 20 requests of each of the 40 in a round: 800.
        assert between[3] < 150
        for client in flood:
            client.writer.transport.abort()  # type: ignore[attr-defined]


async def test_claimed_length_takes_no_memory_until_bytes_come() -> None:
    async with Harness(request_bytes_max=2_000_000_000) as server:
        client = await server.client()
        client.writer.write(struct.pack(">i", 1_900_000_000) + b"x")
        await eventually(lambda: any(c._frame is not None for c in server.server.connections))
        [connection] = server.server.connections
        assert connection._frame is not None and len(connection._frame) <= FRAME_BUFFER_START_BYTES
        await client.close()


async def test_peer_that_does_not_read_stops_being_served() -> None:
    served = 0

    def big(call: Call, request: ProduceRequest) -> ProduceResponse:
        nonlocal served
        served += 1
        from barnabas.wire.messages.produce import PartitionProduceResponse, TopicProduceResponse

        answer = PartitionProduceResponse(error_message="x" * 30_000)
        return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[answer])])

    async with Harness({"Produce": big}) as server:
        greedy = await server.client()
        good = await server.client()
        requests = 5000
        sender = asyncio.ensure_future(_flood(greedy, requests))
        # The server's socket buffer fills; from then on it neither answers nor reads.
        await eventually(lambda: any(c._backlog is not None and not c._awaits_turn for c in server.server.connections))
        stalled_at = served
        assert (await good.heartbeat()).error_code == 0
        assert served <= stalled_at + 1
        assert served < requests
        sender.cancel()
        await asyncio.wait([sender])
        await good.close()
        greedy.writer.transport.abort()


async def _flood(client: Any, count: int) -> None:
    for number in range(count):
        client.send(produce(b"x" * 100), 9, number)
        await client.writer.drain()


async def test_idle_connection_is_closed_and_a_waiting_one_is_not() -> None:
    kept: list[Call] = []

    def keep(call: Call, request: HeartbeatRequest) -> HeartbeatResponse | None:
        kept.append(call)
        return None

    async with Harness({"Heartbeat": keep}, limits=ConnectionLimits(idle_ms_max=200)) as server:
        idle, waiting = await server.client(), await server.client()
        waiting.send(heartbeat(), 3, 1)
        assert await idle.is_closed()
        await eventually(lambda: len(kept) == 1)
        kept[0].reply(HeartbeatResponse())
        assert await waiting.correlation_id() == 1
        await idle.close()
        await waiting.close()


async def test_connections_past_the_limit_of_an_address_are_closed() -> None:
    async with Harness(limits=ConnectionLimits(max_connections_per_ip=2)) as server:
        first, second = await server.client(), await server.client()
        await first.heartbeat()
        await second.heartbeat()
        third = await server.client()
        assert await third.is_closed()
        await second.close()
        await eventually(lambda: len(server.server.connections) == 1)
        fourth = await server.client()
        assert (await fourth.heartbeat()).error_code == 0
        for client in (first, third, fourth):
            await client.close()


async def test_broker_accepts_again_when_a_connection_of_a_full_house_leaves() -> None:
    async with Harness(limits=ConnectionLimits(max_connections=2)) as server:
        first, second = await server.client(), await server.client()
        await first.heartbeat()
        await second.heartbeat()
        third = await server.client()  # the kernel's backlog takes it, the broker does not yet
        third.send(heartbeat(), 3, 9)
        await first.heartbeat(2)
        assert len(server.server.connections) == 2
        await first.close()
        assert await third.correlation_id() == 9
        await second.close()
        await third.close()


async def test_queued_max_requests_bounds_running_handlers() -> None:
    running = most = 0
    release = asyncio.Event()

    async def handle(call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1
        return HeartbeatResponse()

    async with Harness({"Heartbeat": handle}, queued_requests_max=3) as server:
        clients = [await server.client() for _ in range(8)]
        for number, client in enumerate(clients):
            client.send(heartbeat(), 3, number)
        await eventually(lambda: running == 3)
        release.set()
        assert [await client.correlation_id() for client in clients] == list(range(8))
        assert most == 3
        for client in clients:
            await client.close()


async def test_file_ranges_are_sent_whole_and_released(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(5_000_000)
    path = tmp_path / "segment"
    path.write_bytes(content)
    ranges: list[PinnedRange] = []

    def handle(call: Call, request: FetchRequest) -> Any:
        ranges[:] = [PinnedRange(str(path), 100, 4_000_000), PinnedRange(str(path), 0, 50)]
        path.unlink()  # deleted by retention while it is being sent
        return fetch_response(ranges)

    async with Harness({"Fetch": handle}) as server:
        client = await server.client()
        client.send(FetchRequest(max_wait_ms=0, min_bytes=0), 11, 5)
        data = await client.receive()
        assert data.endswith(content[100:4_000_100] + content[:50])
        await eventually(lambda: all(each.released == 1 for each in ranges))
        client.send(heartbeat(), 3, 6)
        assert await client.correlation_id() == 6
        await client.close()


def test_small_answer_is_one_piece_and_a_large_or_a_cut_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(range(100)))
    ranges = [PinnedRange(str(path), 10, 20), PinnedRange(str(path), 50, 5)]
    parts: list[Part] = [b"head", ranges[0], memoryview(b"between"), ranges[1], bytearray(b"tail")]
    expected = b"head" + bytes(range(10, 30)) + b"between" + bytes(range(50, 55)) + b"tail"
    assert read_small(parts, len(expected)) == expected
    assert read_small(parts, len(expected) - 1) is None
    beyond = PinnedRange(str(path), 90, 20)
    assert read_small([b"head", beyond], 1000) is None
    for each in (*ranges, beyond):
        each.release()


async def test_disconnect_in_the_middle_of_a_range_releases_it(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    with path.open("wb") as file:
        file.truncate(200_000_000)
    ranges = [PinnedRange(str(path), 0, 200_000_000)]

    async with Harness({"Fetch": lambda call, request: fetch_response(ranges)}) as server:
        client = await server.client()
        client.send(FetchRequest(max_wait_ms=0, min_bytes=0), 11, 5)
        await client.reader.readexactly(1000)
        client.writer.transport.abort()
        await eventually(lambda: ranges[0].released == 1)
        await eventually(lambda: not server.server.connections)


async def test_request_that_waited_leaves_no_reference_cycles() -> None:
    """Hundreds a second would have the heap searched once a second, and everybody wait for that."""
    waits: list[weakref.ref[object]] = []

    class Wait:
        def __init__(self, call: Call) -> None:
            self.call = call

        def cancel(self) -> None:
            raise AssertionError("its client is there")

        def end(self) -> None:
            self.call.reply(HeartbeatResponse())

    def wait(call: Call, request: object) -> None:
        waiting = Wait(call)
        waits.append(weakref.ref(waiting))
        call.on_abandoned = waiting.cancel
        asyncio.get_running_loop().call_soon(waiting.end)

    async with Harness({"Heartbeat": wait}) as server:
        client = await server.client()
        gc.disable()
        try:
            for number in range(3):
                await client.heartbeat(number)
            await eventually(lambda: [each() for each in waits] == [None] * 3)
        finally:
            gc.enable()
        await client.close()


async def test_client_that_leaves_ends_its_wait() -> None:
    abandoned: list[str] = []

    def keep(call: Call, request: HeartbeatRequest) -> None:
        call.on_abandoned = lambda: abandoned.append(request.group_id)

    async with Harness({"Heartbeat": keep}) as server:
        client = await server.client()
        client.send(heartbeat("left"), 3, 1)
        await eventually(lambda: any(c.busy for c in server.server.connections))
        await client.close()
        await eventually(lambda: abandoned == ["left"])


async def test_throttled_connection_is_not_read_until_its_time_is_over() -> None:
    loop = asyncio.get_running_loop()

    def throttle(call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
        call.throttle_ms = 150 if call.correlation_id == 1 else 0
        return HeartbeatResponse(throttle_time_ms=call.throttle_ms)

    async with Harness({"Heartbeat": throttle}) as server:
        client = await server.client()
        client.send(heartbeat(), 3, 1)
        client.send(heartbeat(), 3, 2)
        assert await client.correlation_id() == 1
        began_s = loop.time()
        assert await client.correlation_id() == 2
        assert loop.time() - began_s >= 0.1
        await client.close()


async def test_request_metrics_count_every_stage() -> None:
    async with Harness() as server:
        client = await server.client()
        for number in range(5):
            await client.heartbeat(number)
        counts = {
            family.name: metric.count
            for family in server.registry.families()
            for metric in family.series.values()
            if hasattr(metric, "count") and family.name.startswith("kafka_network_request_")
        }
        assert set(counts.values()) == {5}
        assert len(counts) == 5
        await client.close()
