"""What happens under a share group: its leader fails, transactions abort, records are deleted, its topic is made again."""

import asyncio
from typing import Any

from aiokafka import AIOKafkaProducer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient

from barnabas.base.errors import ErrorCode
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration, Endpoint
from barnabas.testing import Broker
from barnabas.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from tests.support.share_member import ACCEPT, RELEASE, Got, Place, ShareMember, offer
from tests.support.waiting import eventually

ONE_STATE = {"share.coordinator.state.topic.num.partitions": "1"}
SHORT_LOCKS = {"group.share.record.lock.duration.ms": "1000", "group.share.min.record.lock.duration.ms": "1000"}


def composed(kafka: Any, broker_id: int = 1) -> Any:
    return kafka._machinery.members[broker_id].broker


async def read_all(member: ShareMember, place: Place, count: int) -> list[Got]:
    got: list[Got] = []
    async with asyncio.timeout(30):
        while len(got) < count:
            got += await member.fetch([place], max_wait_ms=500)
    return got


async def test_new_leader_delivers_what_was_not_acknowledged() -> None:
    async with Broker(brokers=3, config=ONE_STATE) as kafka:
        await kafka.create_topic("orders", replication_factor=3)
        await kafka.produce("orders", [str(number) for number in range(10)])
        [place] = await offer(kafka, "orders", start=0)
        leader = await kafka.leader_of("orders")
        async with ShareMember(kafka.bootstrap, "one", broker_id=leader) as one:
            got = await read_all(one, place, 10)
            assert await one.settle(got[2:5]) == [0]
            assert await one.settle(got[7:8], RELEASE) == [0]
        await kafka.kill(leader)
        while (heir := await kafka.leader_of("orders")) == leader:
            await asyncio.sleep(0.05)
        async with ShareMember(kafka.bootstrap, "two", broker_id=heir) as two:
            again = await read_all(two, place, 7)
            # The new leader knows no locks, but it knows how often the released record was delivered.
            assert [each.offset for each in again] == [0, 1, 5, 6, 7, 8, 9]
            assert {each.offset: each.delivery_count for each in again}[7] == 2
            assert await two.settle(again) == [0]
            assert await two.fetch() == []


async def test_former_leader_points_to_the_present_one() -> None:
    async with Broker(brokers=2, config=ONE_STATE | {"share.coordinator.state.topic.replication.factor": "2"}) as kafka:
        await kafka.create_topic("orders", replication_factor=1)
        [place] = await offer(kafka, "orders", start=0)
        leader = await kafka.leader_of("orders")
        async with ShareMember(kafka.bootstrap, "one", broker_id=3 - leader) as one:
            await one.fetch([place])
            [data] = one.answer.responses[0].partitions
            assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert data.current_leader.leader_id == leader
            assert [node.node_id for node in one.answer.node_endpoints] == [leader]
            await one.fetch([(bytes(15) + b"\x07", 0)], forget=[place])
            assert one.answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
            assert counted(kafka, "kafka_server_failed_share_fetch_requests", 3 - leader) == 2
            assert counted(kafka, "kafka_server_share_group_requested_topic_partitions", 3 - leader) == 2
            assert counted(kafka, "kafka_server_share_group_fetched_topic_partitions", 3 - leader) == 0
        async with ShareMember(kafka.bootstrap, "two", broker_id=leader) as two:
            await kafka.produce("orders", ["a"])
            got = await two.fetch([place], max_wait_ms=5_000)
            assert await two.settle(got) == [0]
            assert await two.settle(got) == [ErrorCode.INVALID_RECORD_STATE]
            assert counted(kafka, "kafka_server_failed_share_acknowledge_requests", leader) == 1
            assert counted(kafka, "kafka_server_share_group_fetched_topic_partitions", leader) == 1
            assert counted(kafka, "kafka_server_share_group_topic_partitions_acquire_time_ms", leader) == 1


def counted(kafka: Any, name: str, broker_id: int) -> int:
    """Return the value of a counter, or the number of observations of a histogram."""
    registry = composed(kafka, broker_id).context.registry
    [family] = [each for each in registry.families() if each.name == name]
    [metric] = family.series.values()
    return int(metric.count if hasattr(metric, "count") else metric.value)


async def test_fifty_members_share_one_partition_and_every_record_is_accepted_once() -> None:
    async with Broker(config=ONE_STATE) as kafka:
        await kafka.create_topic("orders")
        records = 3_000
        accepted: list[int] = []

        async def work(number: int) -> None:
            async with ShareMember(kafka.bootstrap, f"member-{number}") as member:
                while len(accepted) < records:
                    got = await member.fetch([place], max_wait_ms=200, max_records=10, share_acquire_mode=1)
                    assert {each.delivery_count for each in got} <= {1}
                    if got:
                        assert await member.settle(got) == [0]
                        accepted.extend(each.offset for each in got)

        [place] = await offer(kafka, "orders", start=0)
        async with asyncio.timeout(120), asyncio.TaskGroup() as members:
            for number in range(50):
                members.create_task(work(number))
            for first in range(0, records, 500):
                await kafka.produce("orders", [str(number) for number in range(first, first + 500)])
        assert sorted(accepted) == list(range(records))


async def test_members_that_do_not_acknowledge_stop_at_the_limit_of_locks() -> None:
    async with Broker(config=ONE_STATE) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", [str(number) for number in range(5_000)])
        [place] = await offer(kafka, "orders", start=0)
        async with ShareMember(kafka.bootstrap, "one") as one, ShareMember(kafka.bootstrap, "two") as two:
            got = []
            while more := await one.fetch([place], max_wait_ms=100, max_records=300, share_acquire_mode=1):
                got += more
            assert [each.offset for each in got] == list(range(2_000))
            assert await two.fetch([place], share_acquire_mode=1) == []
            await one.acknowledge({place: [(10, 1_999, [ACCEPT])]})
            assert await two.fetch(share_acquire_mode=1) == []  # the start offset is still 0
            await one.acknowledge({place: [(0, 9, [ACCEPT])]})
            more = await two.fetch(share_acquire_mode=1, max_wait_ms=5_000)
            assert [each.offset for each in more] == list(range(2_000, 2_500))


async def test_aborted_transactions_and_markers_are_passed_over() -> None:
    async with Broker(config=ONE_STATE) as kafka:
        await kafka.create_topic("orders")
        composed(kafka).dynamic.set_group("g", {"share.isolation.level": "read_committed"})
        [place] = await offer(kafka, "orders", start=0)
        [other] = await offer(kafka, "orders", group_id="h", start=0)
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id="t") as producer:
            async with producer.transaction():
                await producer.send_and_wait("orders", b"a")
            await producer.begin_transaction()
            await producer.send_and_wait("orders", b"aborted")
            await producer.abort_transaction()
            await producer.begin_transaction()
            await producer.send_and_wait("orders", b"open")
            async with (
                ShareMember(kafka.bootstrap, "one") as one,
                ShareMember(kafka.bootstrap, "two", group_id="h") as two,
            ):
                got = await read_all(one, place, 1)
                assert [each.value for each in got] == [b"a"]
                assert [each.value for each in await read_all(two, other, 3)] == [b"a", b"aborted", b"open"]
                waiting = asyncio.create_task(one.fetch(max_wait_ms=30_000))
                await asyncio.sleep(0.1)
                assert not waiting.done()
                await producer.commit_transaction()
                got += await waiting
                assert [each.value for each in got] == [b"a", b"open"]
                assert await one.settle(got) == [0]
                [share] = [each for each in composed(kafka).share.partitions if each.key.group_id == "g"]
                await one.fetch()
                assert share.machine.in_flight == 0
                assert share.machine.start == share.partition.high_watermark
                # The marker of the last transaction would stay a lag of one.
                async with asyncio.timeout(60):
                    while await persisted_lag(share):
                        await asyncio.sleep(0.002)


async def persisted_lag(share: Any) -> int:
    found = await share._host.persister.read_summary(share.key, leader_epoch=-1)
    return int(share.partition.high_watermark - found.start_offset - found.delivery_complete_count)


async def test_deleted_records_are_not_waited_for() -> None:
    async with Broker(config=ONE_STATE) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["a", "b", "c", "d"])
        [place] = await offer(kafka, "orders", start=0)
        async with ShareMember(kafka.bootstrap, "one") as one:
            got = await read_all(one, place, 4)
            await asyncio.to_thread(_delete_records, kafka.bootstrap, 3)
            assert await one.settle(got[:2]) == [0]
            assert await one.settle(got[2:3], RELEASE) == [0]
            assert await one.fetch() == []
            assert await one.settle(got[3:], RELEASE) == [0]
            assert [each.value for each in await read_all(one, place, 1)] == [b"d"]
            await asyncio.to_thread(_delete_records, kafka.bootstrap, 4)
            await kafka.produce("orders", ["e"])
            assert [each.value for each in await read_all(one, place, 1)] == [b"e"]


def _delete_records(bootstrap: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([ConfluentPartition("orders", 0, offset)]).values():
        future.result(30)


async def test_topic_that_is_made_again_has_nothing_of_the_former_one() -> None:
    async with Broker(config=ONE_STATE) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["a", "b"])
        [former] = await offer(kafka, "orders", start=0)
        async with ShareMember(kafka.bootstrap, "one") as one:
            got = await read_all(one, former, 2)
            waiting = asyncio.create_task(one.fetch(max_wait_ms=30_000))
            await asyncio.sleep(0.1)
            await kafka.delete_topic("orders")
            await waiting
            [data] = one.answer.responses[0].partitions
            assert data.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            await eventually(lambda: not list(composed(kafka).share.partitions))
            await kafka.create_topic("orders")
            await kafka.produce("orders", ["c"])
            [place] = await offer(kafka, "orders", start=0)
            assert [each.value for each in await one.fetch([place], forget=[former], max_wait_ms=5_000)] == [b"c"]
            assert await one.settle(got) == [ErrorCode.UNKNOWN_TOPIC_ID]


async def test_share_groups_are_refused_while_an_old_broker_is_there_and_their_state_is_kept() -> None:
    async with Broker(config=ONE_STATE | SHORT_LOCKS) as kafka:
        broker = composed(kafka)
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["a", "b", "c"])
        [place] = await offer(kafka, "orders", start=0)
        beat = ShareGroupHeartbeatRequest(group_id="g", member_id="m", subscribed_topic_names=["orders"])
        async with ShareMember(kafka.bootstrap, "one") as one:
            got = await read_all(one, place, 3)
            assert await one.settle(got[:1]) == [0]
            assert await one.settle(got[1:2], RELEASE) == [0]
            # Apache Kafka 3.9 registers without features.
            old = BrokerRegistration(id=9, endpoints=(Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9),), features={})
            await broker.session.create(paths.broker_id(9), old.encode())
            await eventually(lambda: broker.context.share_groups_on() is False)
            await one.fetch()
            assert one.answer.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert (await one.acknowledge({place: [(2, 2, [ACCEPT])]})).error_code == ErrorCode.UNSUPPORTED_VERSION
            joined = await one.client.ask(1, beat, ShareGroupHeartbeatResponse)
            assert joined.error_code == ErrorCode.UNSUPPORTED_VERSION
            # Locks time out all the same, and that is persisted.
            [share] = broker.share.partitions
            await eventually(lambda: not share.machine.has_locks and share.is_idle)
            await broker.session.delete(paths.broker_id(9))
            await eventually(lambda: broker.context.share_groups_on() is True)
        async with ShareMember(kafka.bootstrap, "two") as two:
            again = await read_all(two, place, 2)
            assert [(each.value, each.delivery_count) for each in again] == [(b"b", 2), (b"c", 2)]
            assert await two.settle(again) == [0]
