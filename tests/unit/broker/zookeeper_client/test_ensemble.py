"""Members of an ensemble, asked one by one."""

import asyncio
from collections.abc import Callable

from barnabas.broker.features.neighbours.members import Members
from barnabas.broker.zookeeper_client.ensemble import MemberAnswer, ask_member
from tests.manual_time import ManualClock

SRVR = b"Zookeeper version: 3.8.0\nLatency min/avg/max: 0/0.5/6\nZxid: 0x10000002a\nMode: follower\nNode count: 5\n"


def answered(answer: bytes, *, has_tls: bool = False) -> MemberAnswer:
    """The answer of a member that sends these bytes."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not has_tls:
            assert await reader.readexactly(4) == b"srvr"
            writer.write(answer)
        writer.close()

    async def ask() -> MemberAnswer:
        async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await ask_member("127.0.0.1", port, timeout_s=30, has_tls=has_tls)

    return asyncio.run(ask())


def test_member_that_serves_has_a_transaction_id() -> None:
    assert answered(SRVR) == MemberAnswer(zxid=0x10000002A)


def test_member_without_a_majority_is_up_and_does_not_serve() -> None:
    answer = answered(b"This ZooKeeper instance is not currently serving requests\n")
    assert answer.is_up and "does not serve" in answer.trouble


def test_member_that_does_not_allow_the_word_counts_as_serving() -> None:
    assert answered(b"srvr is not executed because it is not in the whitelist.\n") == MemberAnswer()
    assert answered(b"Zxid: nonsense\n") == MemberAnswer()
    assert answered(b"", has_tls=True) == MemberAnswer()


def test_closed_port_is_a_member_that_is_down() -> None:
    answer = asyncio.run(ask_member("127.0.0.1", 1, timeout_s=30))
    assert not answer.is_up and "127.0.0.1:1: Connection refused" in answer.trouble


def members(ask: Callable[[str], MemberAnswer]) -> tuple[ManualClock, Members]:
    async def asked(host: str, port: int) -> MemberAnswer:
        return ask(host)

    clock = ManualClock()
    return clock, Members(clock, [("a", 1), ("b", 2), ("c", 3)], asked)


def test_member_is_behind_when_it_lacks_what_another_had_a_round_before() -> None:
    zxids = {"a": 7, "b": 7, "c": 5}
    _, watched = members(lambda host: MemberAnswer(zxid=zxids[host]))
    asyncio.run(watched.round())
    assert not any(each.is_behind for each in watched.members.values())
    zxids.update(a=9, b=8, c=6)
    asyncio.run(watched.round())
    assert [name for name, each in watched.members.items() if each.is_behind] == ["c:3"]


def test_member_fails_since_the_first_question_that_it_did_not_answer() -> None:
    trouble = ""
    clock, watched = members(lambda host: MemberAnswer(trouble if host == "b" else ""))
    asyncio.run(watched.round())
    clock.advance_ms(10_000)
    trouble = "no answer within 5 s"
    for _ in range(2):
        asyncio.run(watched.round())
        clock.advance_ms(10_000)
    assert watched.members["b:2"].failing_since_ms == 10_000
    assert watched.members["a:1"].failing_since_ms is None
    trouble = ""
    asyncio.run(watched.round())
    assert watched.members["b:2"].failing_since_ms is None
