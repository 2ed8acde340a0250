"""The controller on a real ZooKeeper: calls of handlers, requests to brokers, and the tree of znodes."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.controller.events import (
    AllocateProducerIds,
    AlterPartition,
    AlterReassignments,
    ControlledShutdown,
    ElectionType,
    Failure,
    ListReassignments,
    ProposedIsr,
)
from barnabas.broker.controller.topics import FORMER_TOPIC_WAIT_S, MorePartitions, NewTopic, TopicAdmin, TopicDefaults
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Create, Guard, Operation, SetData
from barnabas.broker.zookeeper_client.request_sizes import RequestSizes
from barnabas.broker.zookeeper_client.session import SessionState, ZooKeeperSession
from barnabas.broker.zookeeper_client.session_batch import BatchAnswer
from barnabas.broker.zookeeper_client.znodes import (
    LeaderAndIsr,
    ReplicaAssignment,
    TopicAssignment,
    decode_config,
    encode_config,
)
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest
from barnabas.wire.messages.stop_replica import StopReplicaRequest
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest
from tests.support.waiting import eventually
from tests.unit.broker.controller.live_cluster import LiveBroker, LiveCluster, live_cluster

GOLDEN = json.loads((Path(__file__).parents[3] / "golden/kafka-3.9.1/znodes.json").read_text())
ORDERS = TopicPartition("orders", 0)


async def make(cluster: LiveCluster, *topics: NewTopic) -> dict[str, Failure | None]:
    controller = (await cluster.the_controller()).controller
    created = await controller.create_topics(topics, timeout_ms=10_000)
    return {name: each.failure for name, each in created.items()}


async def state(cluster: LiveCluster, partition: TopicPartition) -> LeaderAndIsr:
    session = next(iter(cluster.brokers.values())).session
    data, stat = await session.get(paths.partition_state(partition))
    return LeaderAndIsr.decode(partition, data or b"", stat.version)


async def test_new_topic_is_in_the_metadata_when_the_answer_comes() -> None:
    async with live_cluster(1, 2, 3) as cluster:
        controller = await cluster.the_controller()
        for broker in cluster.brokers.values():
            broker.received.clear()
        created = await controller.controller.create_topics([NewTopic("orders", 1000, 3)], timeout_ms=20_000)
        assert created["orders"].failure is None
        assert (created["orders"].partitions, created["orders"].replication_factor) == (1000, 3)
        assert controller.metadata.has_all_leaders("orders", range(1000))
        assert controller.metadata.topic_id("orders") == created["orders"].topic_id
        for broker in cluster.brokers.values():
            await eventually(lambda broker=broker: broker.metadata.partition_count("orders") == 1000)  # type: ignore[misc]
            assert [type(each) for each in broker.received] == [LeaderAndIsrRequest, UpdateMetadataRequest]


async def test_znodes_are_equal_to_kafkas() -> None:
    """Create the topics of the golden cluster, with their own assignments and settings, by two brokers of barnabas."""

    async with live_cluster(1, 0, rack=lambda broker: f"r{broker}") as cluster:
        topics = {}
        for path, node in GOLDEN.items():
            if path.count("/") == 3 and path.startswith("/brokers/topics/"):
                name = path.rpartition("/")[2]
                topics[name] = TopicAssignment.decode(name, node["data"].encode())
        wanted = [
            NewTopic(
                name,
                assignment={number: each.replicas for number, each in topic.partitions.items()},
                configs=decode_config("", GOLDEN[f"/config/topics/{name}"]["data"].encode()),
            )
            for name, topic in topics.items()
        ]
        failures = await make(cluster, *wanted)
        assert set(failures.values()) == {None}
        controller = await cluster.the_controller()
        block = await controller.controller.call(AllocateProducerIds(1, cluster.brokers[1].registrar.epoch))
        assert (block.first, block.last) == (0, 999)
        tree = await cluster.dump(controller.session)
        expected = {
            path: dict(node)
            for path, node in GOLDEN.items()
            # Other changes that the golden cluster's administrators made.
            if not path.startswith(("/kafka-acl", "/config/changes/", "/config/brokers/", "/config/users/", "/cluster"))
        }
        for nodes in (tree, expected):
            for path, node in nodes.items():
                if node["data"] and path != "/controller_epoch":
                    data = json.loads(str(node["data"]))
                    data.pop("timestamp", None)
                    data.pop("topic_id", None)
                    # Equal byte for byte, except for ids and times.
                    node["data"] = json.dumps(data)
        assert tree == expected


async def test_each_invalid_topic_of_a_request_is_refused_separately() -> None:
    async with live_cluster(1, 2) as cluster:
        assert await make(cluster, NewTopic("orders", 1, 1)) == {"orders": None}
        failures = await make(
            cluster,
            NewTopic("orders", 1, 1),
            NewTopic("a.b", 1, 1),
            NewTopic("a_b", 1, 1),
            NewTopic("bad name", 1, 1),
            NewTopic("wide", 1, 5),
            NewTopic("both", 1, 1, assignment={0: [1]}),
            NewTopic("good"),
        )
        codes = {name: failure.code if failure else None for name, failure in failures.items()}
        assert codes == {
            "orders": ErrorCode.TOPIC_ALREADY_EXISTS,
            "a.b": None,
            "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "wide": ErrorCode.INVALID_REPLICATION_FACTOR,
            "both": ErrorCode.INVALID_REQUEST,
            "good": None,
        }


async def test_validate_only_request_creates_no_topic() -> None:
    async with live_cluster(1) as cluster:
        controller = await cluster.the_controller()
        created = await controller.controller.create_topics(
            [NewTopic("orders", 3, 1)], timeout_ms=1000, validate_only=True
        )
        assert created["orders"].failure is None and created["orders"].partitions == 3
        assert await controller.session.exists("/brokers/topics/orders") is None
        assert await controller.session.exists("/config/topics/orders") is None


async def test_topics_over_the_quota_are_refused_and_not_written() -> None:
    """KIP-599: each topic asks for a permit for its partitions; validation asks for none."""

    async with live_cluster(1) as cluster:
        controller = (await cluster.the_controller()).controller
        asked: list[int] = []

        def permit(partitions: int) -> bool:
            asked.append(partitions)
            return partitions < 3

        wanted = [NewTopic("small", 2, 1), NewTopic("large", 3, 1)]
        validated = await controller.create_topics(wanted, timeout_ms=10_000, validate_only=True, permit=permit)
        assert all(each.failure is None for each in validated.values()) and asked == []
        created = await controller.create_topics(wanted, timeout_ms=10_000, permit=permit)
        assert created["small"].failure is None and asked == [2, 3]
        assert created["large"].failure == Failure(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
        )
        grown = await controller.create_partitions([MorePartitions("small", 6)], timeout_ms=10_000, permit=permit)
        assert grown["small"] is not None and grown["small"].code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        kept = await controller.delete_topics(["small"], timeout_ms=10_000, permit=lambda partitions: False)
        assert kept["small"] is not None and kept["small"].code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert await controller.delete_topics(["small"], timeout_ms=10_000, permit=permit) == {"small": None}
        assert asked == [2, 3, 4, 2]


async def test_request_with_time_out_zero_is_answered_with_a_time_out_but_is_carried_out() -> None:
    async with live_cluster(1) as cluster:
        controller = await cluster.the_controller()
        created = await controller.controller.create_topics([NewTopic("orders", 1, 1)], timeout_ms=0)
        assert created["orders"].failure == Failure(ErrorCode.REQUEST_TIMED_OUT)
        await eventually(lambda: controller.metadata.has_all_leaders("orders", [0]))


COMPACTED = NewTopic("orders", 1, 1, configs={"cleanup.policy": "compact"})


async def settings_of_orders(broker: LiveBroker) -> dict[str, str]:
    data, _ = await broker.session.get("/config/topics/orders")
    return decode_config("", data)


async def test_two_concurrent_creations_of_a_topic_leave_the_settings_of_the_first() -> None:
    """A consumer's Metadata request creates the topic, without settings, while an administrator does so with some."""

    async with live_cluster(1) as cluster:
        broker = await cluster.the_controller()
        first, second = await asyncio.gather(
            broker.controller.create_topics([COMPACTED], timeout_ms=10_000),
            broker.controller.create_topics([NewTopic("orders", 1, 1)], timeout_ms=10_000),
        )
        assert first["orders"].failure is None
        failure = second["orders"].failure
        assert failure is not None and failure.code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert await settings_of_orders(broker) == COMPACTED.configs
        assert await broker.controller.delete_topics(["orders"], timeout_ms=10_000) == {"orders": None}
        await eventually(lambda: not broker.controller.machine.context.to_delete)
        assert await make(cluster, NewTopic("orders", 1, 1)) == {"orders": None}, "it can be created again"


async def test_existing_topic_that_the_controller_does_not_know_yet_keeps_its_settings() -> None:
    async with live_cluster(1) as cluster:
        broker = await cluster.the_controller()
        assert await make(cluster, COMPACTED) == {"orders": None}
        known = broker.controller.machine.context
        before_its_watch: Any = SimpleNamespace(
            is_active=True,
            context=SimpleNamespace(
                topics=(),
                to_delete=set(),
                deletion_ineligible=set(),
                epoch_zk_version=known.epoch_zk_version,
            ),
        )
        nothing_yet: Any = SimpleNamespace(topic=lambda name: None, brokers=broker.metadata.brokers)
        admin = TopicAdmin(
            broker.session,
            before_its_watch,
            nothing_yet,
            defaults=TopicDefaults(),
            choose=lambda below: 0,
            new_topic_id=lambda: TopicId(bytes(15) + b"\7"),
            validate_config=lambda configs: None,
        )
        created = await admin.create(
            [NewTopic("orders", 1, 1)], timeout_ms=0, validate_only=False, permit=lambda partitions: True
        )
        failure = created["orders"].failure
        assert failure is not None and failure.code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert await settings_of_orders(broker) == COMPACTED.configs


class _DoneTwice:
    """A session whose connection is lost after each write and before its answer, so that each write is repeated."""

    def __init__(self, opened: ZooKeeperSession) -> None:
        self._opened = opened

    async def batch(self, operations: Sequence[Operation], guard: Guard | None = None) -> BatchAnswer:
        if guard is not None:
            await self._opened.batch(operations, guard)
        return await self._opened.batch(operations, guard)


async def test_creation_whose_answer_was_lost_succeeds() -> None:
    async with live_cluster(1) as cluster:
        broker = await cluster.the_controller()
        admin: Any = broker.controller._topics
        admin._session = _DoneTwice(broker.session)
        created = await broker.controller.create_topics(
            [NewTopic("orders", 1, 1), NewTopic("payments", 1, 1)], timeout_ms=10_000
        )
        assert [each.failure for each in created.values()] == [None, None], "this request created them"
        assert created["orders"].topic_id == broker.metadata.topic_id("orders")
        grown = await broker.controller.create_partitions([MorePartitions("orders", 3)], timeout_ms=10_000)
        assert grown == {"orders": None}
        assert broker.metadata.partition_count("orders") == 3


async def test_left_over_settings_of_a_deleted_topic_are_replaced() -> None:
    async with live_cluster(1) as cluster:
        session = (await cluster.the_controller()).session
        await session.create("/config/topics/orders", encode_config({"retention.ms": "1"}))
        await make(cluster, NewTopic("orders", 1, 1, configs={"retention.ms": "2"}))
        data, _ = await session.get("/config/topics/orders")
        assert decode_config("", data) == {"retention.ms": "2"}


@pytest.mark.parametrize("timeout_ms", [0, 10_000])
async def test_request_for_a_topic_that_is_being_created_does_not_change_its_settings(timeout_ms: int) -> None:
    """For example, a client's Metadata request creates a topic with the defaults, while an administrator creates it
    compacted."""

    async with live_cluster(1) as cluster:
        controller = (await cluster.the_controller()).controller
        wanted = [NewTopic("table", 1, 1, configs={"cleanup.policy": "compact"}), NewTopic("table", 1, 1)]
        answers = await asyncio.gather(
            *(controller.create_topics([each], timeout_ms=timeout_ms) for each in (*wanted, *wanted))
        )
        failures = [answer["table"].failure for answer in answers]
        codes = [None if failure is None else failure.code for failure in failures]
        if timeout_ms:
            assert codes == [None, *[ErrorCode.TOPIC_ALREADY_EXISTS] * 3]
        else:
            assert codes == [ErrorCode.REQUEST_TIMED_OUT] * 4, "the result of the first request is not known yet"
        data, _ = await next(iter(cluster.brokers.values())).session.get(paths.config_entity("topics", "table"))
        assert decode_config("", data) == {"cleanup.policy": "compact"}


async def test_topic_that_another_request_fails_to_create_is_not_reported_as_existing() -> None:
    """A client repeats a request whose answer was lost. If the first one fails, the topic must exist after the second."""

    async with live_cluster(1) as cluster:
        controller = (await cluster.the_controller()).controller
        admin: Any = controller._topics
        write, began, may_end = admin._write, asyncio.Event(), asyncio.Event()

        async def fail(planned: Any) -> Any:
            admin._write = write
            began.set()
            await may_end.wait()
            raise Refused(ErrorCode.NOT_CONTROLLER)

        admin._write = fail
        first = asyncio.ensure_future(controller.create_topics([NewTopic("orders", 1, 1)], timeout_ms=10_000))
        await began.wait()
        at_once = await controller.create_topics([NewTopic("orders", 1, 1)], timeout_ms=0)
        assert at_once["orders"].failure is not None
        assert at_once["orders"].failure.code is ErrorCode.REQUEST_TIMED_OUT
        second = asyncio.ensure_future(controller.create_topics([NewTopic("orders", 1, 1)], timeout_ms=10_000))
        await asyncio.sleep(0)
        may_end.set()
        with pytest.raises(Refused):
            await first
        assert (await second)["orders"].failure is None


async def test_topics_are_deleted_and_replicas_get_stop_replica() -> None:
    async with live_cluster(1, 2) as cluster:
        await make(cluster, NewTopic("orders", 2, 2))
        controller = await cluster.the_controller()
        results = await controller.controller.delete_topics(["orders", "nothing"], timeout_ms=5_000)
        assert results == {"orders": None, "nothing": Failure(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}
        # The deletion request is removed last.
        changed = asyncio.Event()
        while await controller.session.children("/admin/delete_topics", lambda _: changed.set()):
            await changed.wait()
            changed.clear()
        assert await controller.session.exists("/brokers/topics/orders") is None
        assert await controller.session.exists("/config/topics/orders") is None
        assert any(isinstance(each, StopReplicaRequest) for each in cluster.brokers[2].received)
        assert await make(cluster, NewTopic("orders", 1, 1)) == {"orders": None}


async def test_topic_can_be_created_again_as_soon_as_its_deletion_is_answered() -> None:
    async with live_cluster(1, 2) as cluster:
        controller = (await cluster.the_controller()).controller
        for partitions in (1, 2, 3):
            assert await make(cluster, NewTopic("orders", partitions, 2)) == {"orders": None}
            assert len(controller.machine.context.assignments["orders"]) == partitions
            assert await controller.delete_topics(["orders"], timeout_ms=5_000) == {"orders": None}


async def test_creation_does_not_wait_for_a_deletion_that_waits_for_a_broker() -> None:
    async with live_cluster(1, 2) as cluster:
        await make(cluster, NewTopic("orders", 1, 2))
        controller = (await cluster.the_controller()).controller
        controller.machine.context.to_delete.add("orders")
        controller.machine.context.deletion_ineligible.add("orders")
        began_s = asyncio.get_running_loop().time()
        assert await make(cluster, NewTopic("orders", 1, 2)) == {
            "orders": Failure(ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'orders' is marked for deletion.")
        }
        assert asyncio.get_running_loop().time() - began_s < FORMER_TOPIC_WAIT_S / 2


async def test_topic_is_enlarged() -> None:
    async with live_cluster(1, 2) as cluster:
        await make(cluster, NewTopic("orders", 1, 2))
        controller = (await cluster.the_controller()).controller
        results = await controller.create_partitions(
            [
                MorePartitions("orders", 3),
                MorePartitions("nothing", 3),
            ],
            timeout_ms=5_000,
        )
        assert results["orders"] is None
        assert results["nothing"] is not None
        assert results["nothing"].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await cluster.the_controller()).metadata.partition_count("orders") == 3
        again = await controller.create_partitions([MorePartitions("orders", 3)], timeout_ms=0, validate_only=True)
        assert again["orders"] is not None and again["orders"].code is ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__remote_log_metadata"])
async def test_number_of_partitions_of_an_internal_topic_cannot_be_changed(topic: str) -> None:
    async with live_cluster(1) as cluster:
        await make(cluster, NewTopic(topic, 2, 1))
        controller = (await cluster.the_controller()).controller
        refused = (await controller.create_partitions([MorePartitions(topic, 3)], timeout_ms=5_000))[topic]
        assert refused is not None and refused.code is ErrorCode.INVALID_PARTITIONS
        data, _ = await cluster.brokers[1].session.get(paths.topic(topic))
        assert len(TopicAssignment.decode(topic, data or b"").partitions) == 2


async def test_controller_and_leader_that_die_are_replaced() -> None:
    async with live_cluster(1, 2, 3) as cluster:
        await make(cluster, NewTopic("orders", assignment={0: [1, 2, 3]}))
        await cluster.kill(1)
        controller = await cluster.the_controller()
        assert controller.controller.epoch == 2
        for broker in cluster.brokers.values():
            await eventually(lambda broker=broker: broker.leader(ORDERS) == 2)  # type: ignore[misc]
        assert (await state(cluster, ORDERS)).isr == (2, 3)
        await cluster.start(1)
        await eventually(lambda: cluster.brokers[1].leader(ORDERS) == 2)


async def test_sessions_that_expire_are_renewed_and_the_cluster_goes_on() -> None:
    async with live_cluster(1, 2) as cluster:
        await make(cluster, NewTopic("orders", assignment={0: [1, 2]}))
        epochs = {broker.id: broker.registrar.epoch for broker in cluster.brokers.values()}
        term = (await cluster.the_controller()).controller.epoch
        cluster.clock.advance_ms(60_000)
        cluster.zookeeper.service.expire_sessions()
        for broker in cluster.brokers.values():
            await eventually(
                lambda broker=broker: (  # type: ignore[misc]
                    set(broker.metadata.brokers) == {1, 2}
                    and broker.registrar.epoch > epochs[broker.id]
                    and broker.leader(ORDERS) in (1, 2)
                )
            )
        controller = await cluster.the_controller()
        assert controller.controller.epoch > term
        assert await make(cluster, NewTopic("more", 1, 1)) == {"more": None}


async def test_a_session_that_expires_before_the_controller_starts_is_registered_again() -> None:
    """A broker whose session ended right after its registration stayed outside the cluster forever."""

    async with live_cluster() as cluster:

        async def lose_session(broker: LiveBroker) -> None:
            renewed = asyncio.Event()
            leave = broker.session.on_state(lambda state: renewed.set() if state is SessionState.RENEWED else None)
            cluster.clock.advance_ms(60_000)
            cluster.zookeeper.service.expire_sessions()
            async with asyncio.timeout(60):
                await renewed.wait()
            leave()

        async with asyncio.timeout(60):
            await cluster.start(1, before_controller=lose_session)
            assert (await cluster.the_controller()).id == 1


async def test_isr_elections_reassignment_and_shutdown_go_through_the_controller() -> None:
    async with live_cluster(1, 2, 3) as cluster:
        await make(cluster, NewTopic("orders", assignment={0: [2, 3]}))
        controller = await cluster.the_controller()
        api = controller.controller
        topic_id = controller.metadata.topic_id("orders")

        async def alter(isr: tuple[int, ...]) -> None:
            now = await state(cluster, ORDERS)
            reply = await api.call(
                AlterPartition(
                    now.leader,
                    cluster.brokers[now.leader].registrar.epoch,
                    {(topic_id, 0): ProposedIsr(now.leader_epoch, isr, now.partition_epoch)},
                )
            )
            assert isinstance(reply.partitions[(topic_id, 0)], LeaderAndIsr)

        remaining = await api.call(ControlledShutdown(2, cluster.brokers[2].registrar.epoch))
        assert remaining == ()
        assert (await state(cluster, ORDERS)).leader == 3
        await cluster.kill(2)
        await cluster.start(2)
        await alter((3, 2))
        elected = await api.elect_leaders([ORDERS], ElectionType.PREFERRED, timeout_ms=5_000)
        assert elected == {ORDERS: None}
        assert controller.leader(ORDERS) == 2

        assert await api.call(AlterReassignments({ORDERS: (1, 3)})) == {ORDERS: None}
        moving = ReplicaAssignment((1, 3, 2), adding=(1,), removing=(2,))
        assert await api.call(ListReassignments(None)) == {ORDERS: moving}
        await alter((2, 3, 1))
        assert await api.call(ListReassignments((ORDERS,))) == {}
        assert (await state(cluster, ORDERS)).leader == 1


async def test_broker_that_is_not_controller_refuses() -> None:
    async with live_cluster(1, 2) as cluster:
        other = next(each for each in cluster.brokers.values() if not each.controller.is_active).controller
        for call in (
            other.create_topics([NewTopic("t")], timeout_ms=1),
            other.delete_topics(["t"], timeout_ms=1),
            other.create_partitions([], timeout_ms=1),
            other.elect_leaders(None, ElectionType.PREFERRED, timeout_ms=1),
            other.call(AllocateProducerIds(1, 1)),
            other.update_features(["x"]),
        ):
            with pytest.raises(Refused) as refused:
                await call
            assert refused.value.code is ErrorCode.NOT_CONTROLLER
        assert other.controller_id == (await cluster.the_controller()).id


async def test_feature_updates_are_refused_as_by_kafka_with_zookeeper() -> None:
    async with live_cluster(1) as cluster:
        controller = (await cluster.the_controller()).controller
        answers = await controller.update_features(["metadata.version"])
        assert answers["metadata.version"].code is ErrorCode.INVALID_REQUEST


async def test_controller_whose_machine_fails_resigns_and_another_broker_takes_over() -> None:
    async with live_cluster(1, 2) as cluster:
        await make(cluster, NewTopic("orders", assignment={0: [1, 2]}))
        first = await cluster.the_controller()
        # Simulate a bug: the machine forgets the state of a partition for which it has to elect a leader.
        first.controller.machine.context.partition_states.clear()
        first.controller.machine.context.leadership.clear()
        with pytest.raises(Refused):
            await first.controller.elect_leaders([ORDERS], ElectionType.PREFERRED, timeout_ms=1)
        await eventually(lambda: first.controller.epoch != 1)
        again = await cluster.the_controller()
        assert again.controller.epoch == 2
        assert (await state(cluster, ORDERS)).leader == 1


async def test_topic_written_by_a_tool_is_created_like_any_other() -> None:
    async with live_cluster(1, 2) as cluster:
        session = (await cluster.the_controller()).session
        topic = TopicAssignment(None, {0: ReplicaAssignment((2, 1))})
        await session.batch([Create(paths.topic("orders"), topic.encode())])
        await eventually(lambda: cluster.brokers[1].leader(ORDERS) == 2)
        data, _ = await session.get(paths.topic("orders"))
        assert TopicAssignment.decode("orders", data or b"").topic_id == cluster.brokers[1].metadata.topic_id("orders")
        grown = TopicAssignment(
            cluster.brokers[1].metadata.topic_id("orders"),
            {0: ReplicaAssignment((2, 1)), 1: ReplicaAssignment((1,))},
        )
        await session.batch([SetData(paths.topic("orders"), grown.encode())])
        await eventually(lambda: cluster.brokers[2].metadata.partition_count("orders") == 2)


async def until_led(cluster: LiveCluster, leader: int) -> None:
    for broker in cluster.brokers.values():
        if not broker.refuses:
            await eventually(lambda broker=broker: broker.leader(ORDERS) == leader)  # type: ignore[misc]


async def test_broker_whose_port_refuses_connections_loses_leadership_before_its_session_ends() -> None:
    async with live_cluster(1, 2, 3) as cluster:
        assert await make(cluster, NewTopic("orders", assignment={0: [2, 3]})) == {"orders": None}
        cluster.refuse(2)
        await until_led(cluster, 3)
        assert await cluster.brokers[1].session.get(paths.broker_id(2))
        assert not cluster.brokers[1].metadata.is_alive(2)
        assert (await state(cluster, ORDERS)).isr == (3,)
        # ZooKeeper reports the same later, which changes nothing.
        controller = (await cluster.the_controller()).controller
        epoch = (await state(cluster, ORDERS)).leader_epoch
        await cluster.kill(2)
        await eventually(lambda: not controller.machine.context.suspects)
        assert (await state(cluster, ORDERS)).leader_epoch == epoch


async def test_broker_that_was_wrongly_suspected_counts_as_alive_once_it_answers() -> None:
    async with live_cluster(1, 2, 3) as cluster:
        assert await make(cluster, NewTopic("orders", assignment={0: [2, 3]})) == {"orders": None}
        suspect = cluster.brokers[2]
        cluster.refuse(2)
        await until_led(cluster, 3)
        suspect.received.clear()
        suspect.refuses = False
        await cluster.until_known(suspect)
        # The broker gets the news that it does not lead any more.
        await eventually(lambda: suspect.leader(ORDERS) == 3)
        await eventually(lambda: any(isinstance(request, LeaderAndIsrRequest) for request in suspect.received))
        request = next(request for request in suspect.received if isinstance(request, LeaderAndIsrRequest))
        [sent] = request.topic_states[0].partition_states
        assert (sent.leader, sent.leader_epoch) == (3, (await state(cluster, ORDERS)).leader_epoch)


async def test_unclean_election_waits_until_the_suspects_session_has_ended() -> None:
    """A suspect may be alive and the only one with all records: a wrong guess must not lose them."""

    async with live_cluster(1, 2, 3) as cluster:
        assert await make(
            cluster,
            NewTopic("orders", assignment={0: [2, 3]}, configs={"unclean.leader.election.enable": "true"}),
        ) == {"orders": None}
        controller = (await cluster.the_controller()).controller
        leader = cluster.brokers[2]
        before = await state(cluster, ORDERS)
        alone = ProposedIsr(before.leader_epoch, (2,), before.partition_epoch)
        topic_id = leader.metadata.topic_id("orders")
        assert topic_id is not None
        await controller.call(AlterPartition(2, leader.registrar.epoch, {(topic_id, 0): alone}))
        cluster.refuse(2)
        await until_led(cluster, -1)
        await cluster.kill(2)
        await until_led(cluster, 3)
        assert (await state(cluster, ORDERS)).isr == (3,)


async def test_controller_whose_port_refuses_connections_is_deposed_before_its_session_ends() -> None:
    async with live_cluster(1, 2, 3) as cluster:
        assert await make(cluster, NewTopic("orders", assignment={0: [1, 3]})) == {"orders": None}
        assert (await cluster.the_controller()).id == 1
        cluster.refuse(1)
        await until_led(cluster, 3)
        active = {each.id for each in cluster.brokers.values() if each.controller.is_active}
        assert len(active - {1}) == 1
        # The broker lives, has noticed the new controller, and gets requests from it.
        deposed = cluster.brokers[1]
        deposed.refuses = False
        await cluster.until_known(deposed)
        await eventually(lambda: deposed.leader(ORDERS) == 3)
        assert not deposed.controller.is_active


async def test_reassignment_that_would_delete_the_only_replicas_in_sync_is_refused() -> None:
    """The reassignment is cancelled, or replaced by another plan, while only the replica that is being added is in sync."""

    async with live_cluster(1, 2, 3) as cluster:
        assert await make(cluster, NewTopic("orders", assignment={0: [2]})) == {"orders": None}
        controller = (await cluster.the_controller()).controller
        assert await controller.call(AlterReassignments({ORDERS: (1, 3)})) == {ORDERS: None}
        joining = await state(cluster, ORDERS)
        topic_id = cluster.brokers[2].metadata.topic_id("orders")
        assert topic_id is not None
        await controller.call(
            AlterPartition(
                2,
                cluster.brokers[2].registrar.epoch,
                {(topic_id, 0): ProposedIsr(joining.leader_epoch, (2, 3), joining.partition_epoch)},
            )
        )
        await cluster.kill(2)
        await until_led(cluster, 3)
        assert (await state(cluster, ORDERS)).isr == (3,)
        for plan in (None, (2, 1)):
            answer = (await controller.call(AlterReassignments({ORDERS: plan})))[ORDERS]
            assert answer is not None
            assert answer.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert not any(isinstance(each, StopReplicaRequest) for each in cluster.brokers[3].received)


async def test_assignment_that_is_too_large_for_zookeeper_is_refused_and_the_controller_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The session does not send an operation that it knows to be too large."""

    def refuses(sizes: RequestSizes, operation: Operation, now_s: float) -> bool:
        return isinstance(operation, Create | SetData) and len(operation.data or b"") > most

    most = 1_000_000
    monkeypatch.setattr(RequestSizes, "refuses", refuses)
    async with live_cluster(1, 2) as cluster:
        assert await make(cluster, NewTopic("orders", assignment={0: [1]})) == {"orders": None}
        controller = (await cluster.the_controller()).controller
        data, _ = await (await cluster.the_controller()).session.get(paths.topic("orders"))
        most = len(data or b"")
        wide = await make(cluster, NewTopic("wide", 20, 2))
        more = await controller.create_partitions([MorePartitions("orders", 20)], timeout_ms=5_000)
        moved = await controller.call(AlterReassignments({ORDERS: (2,)}))
        for refusal, code in (
            (wide["wide"], ErrorCode.INVALID_PARTITIONS),
            (more["orders"], ErrorCode.INVALID_PARTITIONS),
            (moved[ORDERS], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ):
            assert refusal is not None and refusal.code is code
            assert "larger than ZooKeeper takes" in (refusal.message or "")
        assert await controller.call(ListReassignments(None)) == {}
        most = 1_000_000
        assert await controller.call(AlterReassignments({ORDERS: (2,)})) == {ORDERS: None}


async def test_topic_whose_settings_are_too_large_for_zookeeper_is_not_created() -> None:
    async with live_cluster(1) as cluster:
        long = {"leader.replication.throttled.replicas": ",".join(["1:1"] * 300_000)}
        failure = (await make(cluster, NewTopic("orders", 1, 1, configs=long)))["orders"]
        assert failure is not None and failure.code is ErrorCode.INVALID_CONFIG
        assert "/config/topics/orders would have 1,2" in (failure.message or "")


async def test_broker_whose_address_changes_gets_the_unanswered_requests() -> None:
    """A broker may get a request to lead or to delete at the moment in which an operator adds a listener to it."""

    async with live_cluster(1, 2) as cluster:
        assert await make(cluster, NewTopic("old", assignment={0: [2]})) == {"old": None}
        moving = cluster.brokers[2]
        moving.received.clear()
        moving.hangs = True
        controller = (await cluster.the_controller()).controller
        await controller.create_topics([NewTopic("orders", assignment={0: [2]})], timeout_ms=0)
        await eventually(lambda: cluster.brokers[1].leader(ORDERS) == 2)
        await controller.delete_topics(["old"], timeout_ms=0)
        await eventually(lambda: cluster.brokers[1].leader(TopicPartition("old", 0)) is None)
        moving.hangs = False
        [endpoint] = moving.registrar.registration.endpoints
        # Written as a broker of Apache Kafka does it.
        moved = replace(moving.registrar.registration, endpoints=(replace(endpoint, port=endpoint.port + 100),))
        await moving.session.set(paths.broker_id(2), moved.encode())
        await eventually(lambda: moving.leader(ORDERS) == 2)
        await eventually(lambda: any(isinstance(each, StopReplicaRequest) for each in moving.received))
        assert isinstance(moving.received[0], LeaderAndIsrRequest)
