"""One connection to a broker that answers well, late, out of order, or not at all."""

import asyncio
import struct
import threading
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.client.blocking import BlockingConnection
from barnabas.client.config import ClientConfig
from barnabas.client.connection import Connection, open_connection
from barnabas.client.errors import ConnectionLost, RequestTimedOut, UnsupportedVersion
from barnabas.client.exchange import Incoming
from barnabas.wire import frame
from barnabas.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from barnabas.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from tests.unit.client.client_fake_broker import Call, FakeBroker

API_VERSIONS, FETCH, METADATA, HEARTBEAT = 18, 1, 3, 12


@pytest.fixture(params=["asyncio", "uvloop"], autouse=True)
def loop(request: pytest.FixtureRequest) -> None:
    if request.param == "uvloop":
        request.node.add_marker(pytest.mark.uvloop)


async def connect(broker: FakeBroker, **options: int) -> Connection:
    return await open_connection(broker.host, broker.port, client_id="test", **options)  # type: ignore[arg-type]


async def end(connection: Connection) -> None:
    connection.close()
    await connection.wait_closed()


async def test_request_uses_the_highest_version_that_both_sides_speak() -> None:
    broker = FakeBroker(handlers={METADATA: lambda call: call.reply(MetadataResponse(cluster_id="c", controller_id=7))})
    broker.served[METADATA] = (0, 9)
    async with broker:
        connection = await connect(broker)
        response = await connection.request(MetadataRequest(), MetadataResponse)
        assert (response.cluster_id, response.controller_id) == ("c", 7)
        assert broker.calls[-1].version == 9
        await end(connection)


async def test_response_class_is_found_when_it_is_not_given() -> None:
    async with FakeBroker(handlers={METADATA: lambda call: call.reply(MetadataResponse())}) as broker:
        connection = await connect(broker)
        assert isinstance(await connection.request(MetadataRequest()), MetadataResponse)
        await end(connection)


async def test_broker_without_our_api_versions_gets_a_version_that_it_supports() -> None:
    def old_broker(call: Call) -> None:
        if call.version > 2:
            refusal = ApiVersionsResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION,
                api_keys=[ApiVersion(api_key=API_VERSIONS, min_version=0, max_version=2)],
            )
            call.reply_raw(frame.encode_response(refusal, 0, call.correlation_id))
        else:
            call.reply(ApiVersionsResponse(api_keys=[ApiVersion(api_key=METADATA, min_version=1, max_version=5)]))

    async with FakeBroker(handlers={API_VERSIONS: old_broker}) as broker:
        connection = await connect(broker)
        assert [call.version for call in broker.calls] == [5, 2]
        assert connection.versions.pick(MetadataRequest) == 5
        await end(connection)


async def test_api_without_a_common_version_is_refused_before_anything_is_sent() -> None:
    broker = FakeBroker()
    broker.served = {API_VERSIONS: (0, 4), METADATA: (90, 99)}
    async with broker:
        connection = await connect(broker)
        sent = len(broker.calls)
        with pytest.raises(UnsupportedVersion, match="serves versions 90 to 99"):
            await connection.request(MetadataRequest(), MetadataResponse)
        with pytest.raises(UnsupportedVersion, match="does not serve Fetch"):
            await connection.request(FetchRequest(), FetchResponse)
        assert len(broker.calls) == sent
        assert connection.in_flight == 0
        await end(connection)


async def test_pipelined_requests_get_their_own_answers() -> None:
    held: list[Call] = []

    def answer_all_at_once(call: Call) -> None:
        held.append(call)
        if len(held) == 5:
            for waiting in held:
                assert isinstance(waiting.message, HeartbeatRequest)
                waiting.reply(HeartbeatResponse(error_code=waiting.message.generation_id))

    async with FakeBroker(handlers={HEARTBEAT: answer_all_at_once}) as broker:
        connection = await connect(broker)
        answers = await asyncio.gather(
            *(connection.request(HeartbeatRequest(generation_id=n), HeartbeatResponse) for n in range(5))
        )
        assert [answer.error_code for answer in answers] == [0, 1, 2, 3, 4]
        await end(connection)


async def test_no_more_than_max_in_flight_requests_are_unanswered() -> None:
    held: list[Call] = []
    two_arrived = asyncio.Event()

    def hold(call: Call) -> None:
        held.append(call)
        if len(held) == 2:
            two_arrived.set()

    async with FakeBroker(handlers={HEARTBEAT: hold}) as broker:
        connection = await connect(broker, max_in_flight=2)
        tasks = [
            asyncio.ensure_future(connection.request(HeartbeatRequest(generation_id=n), HeartbeatResponse))
            for n in range(4)
        ]
        await two_arrived.wait()
        assert connection.in_flight == 2
        while not all(task.done() for task in tasks):
            if held:
                call = held.pop(0)
                assert isinstance(call.message, HeartbeatRequest)
                call.reply(HeartbeatResponse(error_code=call.message.generation_id))
            assert connection.in_flight <= 2
            await asyncio.sleep(0)
        assert [task.result().error_code for task in tasks] == [0, 1, 2, 3]
        await end(connection)


async def test_records_of_a_large_response_are_views_of_the_buffer_it_was_received_in() -> None:
    records = bytes(range(256)) * 4096

    def fetch(call: Call) -> None:
        part = PartitionData(partition_index=0, records=records)
        call.reply(FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])]))

    async with FakeBroker(handlers={FETCH: fetch}) as broker:
        connection = await connect(broker)
        answers = [await connection.request(FetchRequest(), FetchResponse, version=11) for _ in range(3)]
        for answer in answers:
            view = answer.responses[0].partitions[0].records
            assert isinstance(view, memoryview)
            assert isinstance(view.obj, bytearray)
            assert view == records
        await end(connection)


async def test_buffer_of_a_large_response_is_reused_if_no_view_remains() -> None:
    sizes: list[int] = []

    def fetch(call: Call) -> None:
        part = PartitionData(partition_index=0, records=b"r" * sizes.pop(0))
        call.reply(FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])]))

    def beat(call: Call) -> None:
        call.reply(HeartbeatResponse())

    async with FakeBroker(handlers={FETCH: fetch, HEARTBEAT: beat}) as broker:
        connection = await connect(broker)
        sizes[:] = [1_000_000, 900_000, 1_000_100]

        async def view() -> memoryview:
            answer = await connection.request(FetchRequest(), FetchResponse, version=11)
            records = answer.responses[0].partitions[0].records
            assert isinstance(records, memoryview)
            return records

        first = await view()
        room = id(first.obj)
        del first
        second = await view()
        assert id(second.obj) == room
        third = await view()  # a view of the second still exists
        assert id(third.obj) != room
        assert second == b"r" * 900_000
        assert third == b"r" * 1_000_100
        await connection.request(HeartbeatRequest(), HeartbeatResponse)
        assert connection._spare is None  # it is released once responses are small
        await end(connection)


@pytest.mark.parametrize("size", [10, 65_000, 65_520, 65_536, 70_000, 200_000])
async def test_responses_of_any_size_arrive_whole_whatever_the_pieces(size: int) -> None:
    """Sizes around that at which a response gets its own buffer, in pieces that cut frames anywhere."""

    async def fetch(call: Call) -> None:
        part = PartitionData(partition_index=0, records=b"r" * size)
        response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])])
        data = frame.encode_response(response, call.version, call.correlation_id)
        for at in range(0, len(data), 7919):
            call.reply_raw(data[at : at + 7919])
            await call.writer.drain()
            await asyncio.sleep(0)

    async with FakeBroker(handlers={FETCH: fetch}) as broker:
        connection = await connect(broker)
        answers = await asyncio.gather(
            *(connection.request(FetchRequest(), FetchResponse, version=11) for _ in range(4))
        )
        assert all(answer.responses[0].partitions[0].records == b"r" * size for answer in answers)
        await end(connection)


async def test_wrong_correlation_id_ends_the_connection() -> None:
    async with FakeBroker(
        handlers={METADATA: lambda call: call.reply(MetadataResponse(), correlation_id=4711)}
    ) as broker:
        connection = await connect(broker)
        with pytest.raises(ConnectionLost, match="correlation id 4711 where 2 was due"):
            await connection.request(MetadataRequest(), MetadataResponse)
        assert connection.closed
        await connection.wait_closed()


async def test_response_above_the_size_limit_ends_the_connection_without_an_allocation() -> None:
    async with FakeBroker(
        handlers={METADATA: lambda call: call.reply_raw(struct.pack(">i", 2_000_000) + b"x" * 100)}
    ) as broker:
        connection = await connect(broker, response_bytes_max=1_000_000)
        with pytest.raises(ConnectionLost, match="a response of 2000000 bytes"):
            await connection.request(MetadataRequest(), MetadataResponse)
        await connection.wait_closed()


async def test_stranger_at_the_port_cannot_announce_a_large_response() -> None:
    """Before the login the limit is a megabyte: a few bytes would make a client take hundreds of them."""

    lie = struct.pack(">i", 2 << 20) + bytes(100)
    async with FakeBroker(handlers={API_VERSIONS: lambda call: call.reply_raw(lie)}) as broker:
        with pytest.raises(ConnectionLost, match="up to 1048576"):
            await connect(broker)
        with pytest.raises(ConnectionLost, match="up to 1048576"):
            await asyncio.to_thread(BlockingConnection, broker.host, broker.port, ClientConfig())


async def test_garbage_in_a_response_is_an_error_of_that_request_and_ends_the_connection() -> None:
    def garbage(call: Call) -> None:
        call.reply_raw(struct.pack(">ii", 9, call.correlation_id) + b"\0\xff\xff\xff\xff")

    async with FakeBroker(handlers={METADATA: garbage}) as broker:
        connection = await connect(broker)
        with pytest.raises(ConnectionLost, match="sent an invalid response"):
            await connection.request(MetadataRequest(), MetadataResponse)
        await connection.wait_closed()


async def test_request_that_times_out_closes_the_connection_and_fails_the_ones_behind_it() -> None:
    async with FakeBroker(handlers={HEARTBEAT: lambda call: None}) as broker:
        connection = await connect(broker)
        first = asyncio.ensure_future(connection.request(HeartbeatRequest(), HeartbeatResponse, timeout_ms=30))
        behind = asyncio.ensure_future(connection.request(HeartbeatRequest(), HeartbeatResponse, timeout_ms=9_000))
        with pytest.raises(RequestTimedOut, match="Heartbeat to 127"):
            await first
        with pytest.raises(ConnectionLost, match="was not answered in time"):
            await behind
        with pytest.raises(ConnectionLost):
            await connection.request(HeartbeatRequest(), HeartbeatResponse)
        await connection.wait_closed()


async def test_waiting_for_a_slot_counts_against_the_time_out() -> None:
    async with FakeBroker(handlers={HEARTBEAT: lambda call: None}) as broker:
        connection = await connect(broker, max_in_flight=1)
        holder = asyncio.ensure_future(connection.request(HeartbeatRequest(), HeartbeatResponse))
        await asyncio.sleep(0)  # it has taken the only slot
        with pytest.raises(RequestTimedOut, match="1 requests before it were not answered"):
            await connection.request(HeartbeatRequest(), HeartbeatResponse, timeout_ms=30)
        assert not connection.closed
        await end(connection)
        with pytest.raises(ConnectionLost):
            await holder


async def test_peer_that_disconnects_fails_unanswered_requests() -> None:
    async with FakeBroker() as broker:
        broker.handlers[HEARTBEAT] = lambda call: broker.drop_connections()
        connection = await connect(broker)
        with pytest.raises(ConnectionLost):
            await connection.request(HeartbeatRequest(), HeartbeatResponse)
        await connection.wait_closed()


async def test_cancelled_request_gives_its_answer_up_and_its_slot_back() -> None:
    held: list[Call] = []
    arrived = asyncio.Event()

    def handler(call: Call) -> None:
        held.append(call)
        arrived.set()

    async with FakeBroker(handlers={HEARTBEAT: handler}) as broker:
        connection = await connect(broker, max_in_flight=1)
        task = asyncio.ensure_future(connection.request(HeartbeatRequest(), HeartbeatResponse))
        await arrived.wait()
        task.cancel()
        following = asyncio.ensure_future(connection.request(HeartbeatRequest(), HeartbeatResponse))
        arrived.clear()
        held[0].reply(HeartbeatResponse(error_code=1))
        await arrived.wait()
        held[1].reply(HeartbeatResponse(error_code=2))
        assert (await following).error_code == 2
        assert task.cancelled()
        await end(connection)


async def test_refused_connection_names_the_address_and_the_reason() -> None:
    async with FakeBroker() as broker:
        port = broker.port
    with pytest.raises(ConnectionLost, match=f"cannot connect to 127.0.0.1:{port}: "):
        await open_connection("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port"), [("x" * 300, 1), ("a..b", 1), ("\0", 1), ("127.0.0.1", 70_000), ("127.0.0.1", -1)]
)
async def test_broker_that_calls_itself_by_no_address_is_a_connection_that_fails(host: str, port: int) -> None:
    """A source of a link said so, and its fetcher ended."""

    with pytest.raises(ConnectionLost, match="cannot connect to"):
        await open_connection(host, port)
    with pytest.raises(ConnectionLost, match="cannot connect to"):
        await asyncio.to_thread(BlockingConnection, host, port, ClientConfig())


async def test_failed_authentication_closes_the_connection() -> None:
    async def refuse(connection: Connection) -> None:
        raise ConnectionLost("no")

    async with FakeBroker() as broker:
        with pytest.raises(ConnectionLost, match="no"):
            await open_connection(broker.host, broker.port, authenticate=refuse)


class LoopThreads:
    """Which threads decoded responses: of any connection in this process, so ask for those of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._decoded: list[tuple[Any, threading.Thread]] = []
        decode = Incoming.decode

        def recorded(incoming: Any, budget: list[int] | None) -> Any:
            response = decode(incoming, budget)
            self._decoded.append((response, threading.current_thread()))
            return response

        monkeypatch.setattr(Incoming, "decode", recorded)

    def is_this(self, response: object) -> bool:
        """Whether this thread decoded the response."""
        [thread] = [thread for decoded, thread in self._decoded if decoded is response]
        return thread is threading.current_thread()


def metadata_of(topics: int) -> MetadataResponse:
    return MetadataResponse(topics=[MetadataResponseTopic(name=f"t{number}") for number in range(topics)])


async def test_large_response_is_decoded_by_a_thread_and_answers_stay_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that answers with megabytes of small elements must not hold up the loop of a broker."""
    sizes = [3, 20_000, 4, 20_001, 5]
    answers = iter(sizes)
    broker = FakeBroker(handlers={3: lambda call: call.reply(metadata_of(next(answers)))})
    async with broker:
        connection = await connect(broker)
        decoded = LoopThreads(monkeypatch)
        asked = [connection.request(MetadataRequest(topics=None), MetadataResponse, version=9) for _ in sizes]
        found = await asyncio.gather(*asked)
        assert [len(each.topics) for each in found] == sizes
        assert [decoded.is_this(each) for each in found] == [True, False, True, False, True]
        await end(connection)


@pytest.mark.parametrize("topics", [501, 20_000])
async def test_response_with_more_elements_than_allowed_ends_the_connection(topics: int) -> None:
    async with FakeBroker(handlers={3: lambda call: call.reply(metadata_of(topics))}) as broker:
        connection = await open_connection(broker.host, broker.port, response_elements_max=500)
        with pytest.raises(ConnectionLost, match="elements are too many"):
            await connection.request(MetadataRequest(topics=None), MetadataResponse, version=9)
        assert connection.closed


async def test_fetch_response_of_very_many_partitions_is_decoded_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = [PartitionData(partition_index=number, records=b"") for number in range(20_000)]
    answer = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    async with FakeBroker(handlers={1: lambda call: call.reply(answer)}) as broker:
        connection = await open_connection(broker.host, broker.port, response_elements_max=100_000)
        decoded = LoopThreads(monkeypatch)
        found = await connection.request(FetchRequest(), FetchResponse, version=11)
        assert len(found.responses[0].partitions) == 20_000
        assert not decoded.is_this(found)
        await end(connection)


async def test_damage_in_a_large_response_ends_the_connection() -> None:
    def garbage(call: Call) -> None:
        data = bytearray(frame.encode_response(metadata_of(20_000), call.version, call.correlation_id))
        data[-200_000:] = b"\xff" * 200_000
        call.reply_raw(bytes(data))

    async with FakeBroker(handlers={3: garbage}) as broker:
        connection = await connect(broker)
        with pytest.raises(ConnectionLost, match="invalid response"):
            await connection.request(MetadataRequest(topics=None), MetadataResponse, version=9)
        assert connection.closed
