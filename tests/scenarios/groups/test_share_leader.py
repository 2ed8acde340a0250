"""The leader's side of share groups: ShareFetch and ShareAcknowledge as members send them, to real brokers."""

import asyncio
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.host.disk import Disk
from barnabas.testing import Broker
from tests.support.share_member import ACCEPT, REJECT, RELEASE, RENEW, ShareMember, offer
from tests.support.waiting import eventually

FAST = {
    "group.share.record.lock.duration.ms": "1000",
    "group.share.min.record.lock.duration.ms": "1000",
    "share.coordinator.state.topic.num.partitions": "1",
}


def values(got: Any) -> list[bytes]:
    return [each.value for each in got]


async def test_records_are_delivered_once_when_accepted_and_again_when_released() -> None:
    async with Broker(config=FAST) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["a", "b", "c", "d"])
        [place] = await offer(kafka, "orders", start=0)
        async with ShareMember(kafka.bootstrap, "one") as one, ShareMember(kafka.bootstrap, "two") as two:
            got = await one.fetch([place], max_wait_ms=5_000)
            assert values(got) == [b"a", b"b", b"c", b"d"]
            assert {each.delivery_count for each in got} == {1}
            assert await two.fetch([place]) == []
            assert one.answer.acquisition_lock_timeout_ms == 1_000
            assert await one.settle(got[:2]) == [0]
            assert await one.settle(got[2:3], RELEASE) == [0]
            assert await one.settle(got[3:], REJECT) == [0]
            again = await two.fetch(max_wait_ms=5_000)
            assert [(each.value, each.delivery_count) for each in again] == [(b"c", 2)]
            assert await two.settle(again) == [0]
            # Every delivery up to here is complete: another acknowledgement would confirm what it does not decide.
            assert await one.settle(again) == [ErrorCode.INVALID_RECORD_STATE]
            assert await one.fetch() == []


async def test_fetch_waits_for_records_and_for_released_ones() -> None:
    async with Broker(config=FAST) as kafka:
        await kafka.create_topic("orders")
        [place] = await offer(kafka, "orders", start=0)
        async with ShareMember(kafka.bootstrap, "one") as one, ShareMember(kafka.bootstrap, "two") as two:
            waiting = asyncio.create_task(one.fetch([place], max_wait_ms=30_000))
            await asyncio.sleep(0.1)
            await kafka.produce("orders", ["a"])
            got = await waiting
            waiting = asyncio.create_task(two.fetch([place], max_wait_ms=30_000))
            await asyncio.sleep(0.1)
            assert await one.settle(got, RELEASE) == [0]
            assert values(await waiting) == [b"a"]


async def test_lock_that_times_out_gives_the_record_to_another_member() -> None:
    async with Broker(config=FAST) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["a"])
        [place] = await offer(kafka, "orders", start=0)
        async with ShareMember(kafka.bootstrap, "one") as one, ShareMember(kafka.bootstrap, "two") as two:
            first = await one.fetch([place], max_wait_ms=5_000)
            [again] = await two.fetch([place], max_wait_ms=30_000)
            assert (again.value, again.delivery_count) == (b"a", 2)
            assert await one.settle(first) == [ErrorCode.INVALID_RECORD_STATE]


async def test_renewed_lock_lasts_longer() -> None:
    async with Broker(config=FAST) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["a"])
        [place] = await offer(kafka, "orders", start=0)
        async with ShareMember(kafka.bootstrap, "one") as one, ShareMember(kafka.bootstrap, "two") as two:
            got = await one.fetch([place], max_wait_ms=5_000)
            for _ in range(4):
                await asyncio.sleep(0.5)
                assert await one.settle(got, RENEW) == [0]
            assert await two.fetch([place]) == []
            assert await one.settle(got, ACCEPT) == [0]


async def test_record_is_given_up_at_the_delivery_count_limit() -> None:
    async with Broker(config=FAST) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["poison", "b"])
        [place] = await offer(kafka, "orders", start=0)
        async with ShareMember(kafka.bootstrap, "one") as one:
            counts = []
            for _ in range(5):
                got = await one.fetch([place], max_wait_ms=5_000)
                counts.append([(each.value, each.delivery_count) for each in got if each.value == b"poison"])
                await one.settle([each for each in got if each.value == b"poison"], RELEASE)
                await one.settle([each for each in got if each.value == b"b"])
            assert counts == [[(b"poison", count)] for count in range(1, 6)]
            assert await one.fetch() == []


async def test_member_whose_connection_is_lost_gives_its_records_back() -> None:
    async with Broker(config=FAST | {"group.share.record.lock.duration.ms": "60000"}) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["a", "b"])
        [place] = await offer(kafka, "orders", start=0)
        async with ShareMember(kafka.bootstrap, "two") as two:
            one = ShareMember(kafka.bootstrap, "one")
            assert len(await one.fetch([place], max_wait_ms=5_000)) == 2
            waiting = asyncio.create_task(two.fetch([place], max_wait_ms=30_000))
            await asyncio.sleep(0.05)
            await one.close()
            assert [each.delivery_count for each in await waiting] == [2, 2]


async def test_sessions_follow_kafkas_epochs() -> None:
    async with Broker(config=FAST | {"group.share.max.share.sessions": "1"}) as kafka:
        await kafka.create_topic("orders")
        [place] = await offer(kafka, "orders", start=0)
        async with ShareMember(kafka.bootstrap, "one") as one, ShareMember(kafka.bootstrap, "two") as two:
            await one.fetch([place], share_session_epoch=1)
            assert one.answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
            await one.fetch([place], acknowledge={place: [(0, 0, [ACCEPT])]})
            assert one.answer.error_code == ErrorCode.INVALID_REQUEST
            await one.fetch([place])
            await one.fetch(share_session_epoch=7)
            assert one.answer.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
            assert (await one.acknowledge({}, epoch=0)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
            await two.fetch([place])
            assert two.answer.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
            await one.leave()
            await two.fetch([place])
            assert two.answer.error_code == 0
            await two.fetch(member_id="")
            assert two.answer.error_code == ErrorCode.INVALID_REQUEST


async def test_records_that_are_only_on_the_disk_are_loaded_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: set[tuple[int, int]] = set()
    monkeypatch.setattr(
        Disk, "is_resident", lambda disk, fd, position, size: any(at <= position < end for at, end in loaded)
    )
    monkeypatch.setattr(Disk, "load", lambda disk, fd, position, size: loaded.add((position, position + size)))
    async with Broker(config=FAST) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["v" * 1_000] * 300)
        [place] = await offer(kafka, "orders", start=0)
        async with ShareMember(kafka.bootstrap, "one") as one:
            got = await one.fetch([place], max_wait_ms=5_000)
            assert loaded
            assert [each.offset for each in got] == list(range(300))


async def test_fetch_waits_for_the_bytes_that_it_asks_for() -> None:
    async with Broker(config=FAST) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["a"])
        [place] = await offer(kafka, "orders", start=0)
        async with ShareMember(kafka.bootstrap, "one") as one:
            waiting = asyncio.create_task(one.fetch([place], max_wait_ms=30_000, min_bytes=5_000))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await kafka.produce("orders", ["b" * 6_000])
            assert len(await waiting) == 2
            assert len(await one.fetch(max_wait_ms=300, min_bytes=5_000)) == 0


async def test_group_without_members_leaves_no_share_partition_behind() -> None:
    async with Broker(config=FAST) as kafka:
        await kafka.create_topic("orders", partitions=2)
        await kafka.produce("orders", ["a"], partition=0)
        places = await offer(kafka, "orders", partitions=2, start=0)
        shares = kafka._machinery.members[1].broker.share.partitions
        async with ShareMember(kafka.bootstrap, "one") as one:
            await one.fetch(places, max_wait_ms=5_000)
            assert len(list(shares)) == 2
            await one.leave()
            await eventually(lambda: not list(shares))
        quick = ShareMember(kafka.bootstrap, "two")
        await quick.fetch(places)
        await quick.close()  # perhaps before the states are loaded
        await eventually(lambda: not list(shares) and not len(shares.sessions))


async def test_acknowledgements_ride_on_a_fetch() -> None:
    async with Broker(config=FAST) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["a", "b", "c"])
        [place] = await offer(kafka, "orders", start=0)
        async with ShareMember(kafka.bootstrap, "one") as one:
            got = await one.fetch([place], max_wait_ms=5_000, max_records=1, share_acquire_mode=1)
            assert values(got) == [b"a"]
            got = await one.fetch(
                acknowledge={place: [(0, 0, [ACCEPT])]}, max_wait_ms=5_000, max_records=1, share_acquire_mode=1
            )
            assert values(got) == [b"b"]
            got = await one.fetch(acknowledge={place: [(0, 0, [ACCEPT])]})
            [data] = one.answer.responses[0].partitions
            assert data.acknowledge_error_code == ErrorCode.INVALID_RECORD_STATE  # its delivery is complete
            got = await one.fetch(acknowledge={place: [(2, 2, [ACCEPT])]})
            [data] = one.answer.responses[0].partitions
            assert (data.acknowledge_error_code, data.error_code, got) == (0, 0, [])
            await one.fetch(acknowledge={place: [(1, 1, [RENEW])]})
            [data] = one.answer.responses[0].partitions
            assert data.acknowledge_error_code == ErrorCode.INVALID_REQUEST
            await one.fetch(acknowledge={place: [(1, 1, [RENEW])]}, is_renew_ack=True)
            assert one.answer.error_code == ErrorCode.INVALID_REQUEST
            await one.fetch(
                acknowledge={place: [(1, 1, [RENEW])]}, is_renew_ack=True, max_records=0, max_bytes=0, min_bytes=0
            )
            [data] = one.answer.responses[0].partitions
            assert data.acknowledge_error_code == 0


async def test_group_begins_where_its_settings_say() -> None:
    async with Broker(config=FAST) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["a"])
        [place] = await offer(kafka, "orders")
        async with ShareMember(kafka.bootstrap, "one") as one:
            waiting = asyncio.create_task(one.fetch([place], max_wait_ms=30_000))
            await eventually(lambda: _start_of(kafka, place) == 1)
            await kafka.produce("orders", ["b"])
            assert values(await waiting) == [b"b"]
        [place] = await offer(kafka, "orders", group_id="early")
        kafka._machinery.members[1].broker.dynamic.set_group("early", {"share.auto.offset.reset": "earliest"})
        async with ShareMember(kafka.bootstrap, "one", group_id="early") as one:
            assert values(await one.fetch([place], max_wait_ms=30_000)) == [b"a", b"b"]


def _start_of(kafka: Any, place: tuple[bytes, int]) -> int | None:
    for share in kafka._machinery.members[1].broker.share.partitions:
        if share.machine is not None and (share.key.topic_id, share.key.partition) == place:
            return int(share.machine.start)
    return None
