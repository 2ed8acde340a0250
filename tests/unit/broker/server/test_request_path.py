"""The request path where something goes wrong half-way: waiters must be woken, and what is broken must stay with its peer."""

import asyncio
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.base.errors import BrokenInvariant, ErrorCode
from barnabas.base.ids import BrokerId
from barnabas.broker.compose import Broker
from barnabas.broker.runtime.turns import SLICE_ELEMENTS
from barnabas.broker.server.call import Call
from barnabas.broker.server.large import let_go
from barnabas.broker.server.later import answer_later
from barnabas.broker.server.writer import TransportWriter
from barnabas.broker.zookeeper_client.log_dir_failure import report_log_dir_failure
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import SessionExpired
from barnabas.wire import frame
from barnabas.wire.messages.fetch import FetchRequest, FetchResponse
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from barnabas.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from tests.support.waiting import eventually
from tests.unit.broker.server.harness import Harness, PinnedRange, heartbeat

pytestmark = pytest.mark.uvloop


async def test_room_that_the_next_connection_does_not_take_goes_to_the_one_after() -> None:
    release = asyncio.Event()
    started: list[int] = []

    async def takes_room(call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
        started.append(call.correlation_id)
        await release.wait()
        return HeartbeatResponse()

    def takes_none(call: Call, request: FetchRequest) -> FetchResponse:
        return FetchResponse()

    async with Harness({"Heartbeat": takes_room, "Fetch": takes_none}, queued_requests_max=1) as server:
        first, second, third = [await server.client() for _ in range(3)]
        first.send(heartbeat(), 3, 1)
        await eventually(lambda: started == [1])
        second.send(FetchRequest(max_wait_ms=0, min_bytes=0), 11, 2)
        await eventually(lambda: len(server.pipeline._waiting_for_room) == 1)
        third.send(heartbeat(), 3, 3)
        await eventually(lambda: len(server.pipeline._waiting_for_room) == 2)
        release.set()
        assert [await client.correlation_id() for client in (first, second, third)] == [1, 2, 3]
        for client in (first, second, third):
            await client.close()


@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
async def test_answer_that_cannot_be_encoded_closes_its_connection_and_no_other(later: bool) -> None:
    async def bad_later(call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=1_000_000 if call.correlation_id == 1 else 0)

    def bad(call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=1_000_000 if call.correlation_id == 1 else 0)

    failed: list[BaseException | None] = []
    async with Harness({"Heartbeat": bad_later if later else bad}) as server:
        client, other = await server.client(), await server.client()
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context["exception"]))
        client.send(heartbeat(), 3, 1)
        assert await client.is_closed()
        other.send(heartbeat(), 3, 2)
        assert await other.correlation_id() == 2
        await client.close()
        await other.close()
        assert server.tasks == set() and failed == []


async def test_nothing_behind_a_malformed_request_is_carried_out() -> None:
    executed: list[int] = []

    def handle(call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
        executed.append(call.correlation_id)
        return HeartbeatResponse()

    async with Harness({"Heartbeat": handle}) as server:
        client = await server.client()
        unknown = struct.pack(">ihhih", 10, 12_345, 0, 7, -1)
        client.writer.write(unknown + frame.encode_request(heartbeat(), 3, 8, "test"))
        assert await client.is_closed()
        await client.close()
    assert executed == []


class Transport:
    def __init__(self) -> None:
        self.written = bytearray()

    def write(self, data: bytes) -> None:
        self.written += data
        assert len(self.written) < 1_000_000 and data, "nothing, again and again"


async def test_file_cut_short_while_it_is_sent_by_tls_ends_the_connection(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"x" * 100)
    pinned = PinnedRange(str(path), 0, 1000)  # truncated after the read that found 1000 bytes
    errors: list[OSError] = []
    with ThreadPoolExecutor(1) as pool:
        transport = Transport()
        writer = TransportWriter(
            asyncio.get_running_loop(),
            cast(asyncio.Transport, transport),
            pool,
            on_drained=lambda: None,
            on_error=errors.append,
        )
        writer.write([pinned])
        await eventually(lambda: bool(errors))
    assert pinned.released == 1 and bytes(transport.written) == b"x" * 100


def test_failed_directory_is_reported_by_the_next_session_where_this_one_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Session:
        attempts = 0

        async def create(self, path: str, data: bytes, *, sequence: bool, make_path: bool) -> str:
            self.attempts += 1
            if self.attempts == 1:
                raise SessionExpired("the session has expired and there is no new one yet")
            return path

    monkeypatch.setattr("barnabas.broker.zookeeper_client.log_dir_failure.REPORT_RETRY_S", 0.0)
    session = Session()
    asyncio.run(report_log_dir_failure(cast(ZooKeeperSession, session), BrokerId(1)))
    assert session.attempts == 2


async def test_broken_invariant_in_a_callback_of_the_loop_stops_the_broker_and_a_lost_peer_does_not() -> None:
    broker = Broker({"zookeeper.connect": "localhost:1", "broker.id": "1", "log.dirs": "/nowhere"})
    loop = asyncio.get_running_loop()
    broker.callback_failed(loop, {"message": "lost", "exception": ConnectionResetError()})
    assert not broker._stop.is_set()
    broken = BrokenInvariant("released twice")
    broker.callback_failed(loop, {"message": "a timer", "exception": broken})
    assert broker._stop.is_set() and broker._fatal is broken


async def test_request_whose_coordinator_fails_later_is_still_answered() -> None:
    """A call without an answer blocks its connection for ever."""

    answers: list[object] = []
    call: Any = SimpleNamespace(
        api=SimpleNamespace(name="Heartbeat", refuse=lambda request, code, message: code), reply=answers.append
    )
    future: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()
    assert answer_later(call, HeartbeatRequest(), future) is None
    future.set_exception(KeyError("a bug"))
    await asyncio.sleep(0)
    assert answers == [ErrorCode.UNKNOWN_SERVER_ERROR]


def long_answer() -> ListGroupsResponse:
    return ListGroupsResponse(groups=[ListedGroup(group_id=f"group-{number}") for number in range(5_000)])


async def test_long_answer_is_sent_whole_and_then_forgotten() -> None:
    answer = long_answer()

    async def list_groups(call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
        return answer

    async with Harness({"ListGroups": list_groups}) as server:
        client = await server.client()
        client.send(ListGroupsRequest(), 4, 1)
        assert (await client.receive()).count(b"group-") == 5_000
        await eventually(lambda: len(answer.groups) <= SLICE_ELEMENTS)
        await client.close()


def test_long_answer_is_forgotten_in_turns() -> None:
    """To free all that it is made of at once would hold the loop as long as to make it."""
    answer = long_answer()
    left = [len(answer.groups) for _ in let_go(answer).__await__()]
    assert left == list(range(5_000 - SLICE_ELEMENTS, 0, -SLICE_ELEMENTS))
