"""Partitions move to other brokers (KIP-455), also through ZooKeeper as old tools do it."""

import contextlib
import itertools
import json

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition, format_uuid
from barnabas.broker.controller.effects import Effect, ZkBatch
from barnabas.broker.controller.events import (
    AlterReassignments,
    ElectionType,
    ElectLeaders,
    Failure,
    ListReassignments,
)
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Create, SetData
from barnabas.broker.zookeeper_client.znodes import ReplicaAssignment, TopicAssignment, encode_reassign_partitions
from tests.unit.broker.controller.model_cluster import ModelBroker, ModelCluster

ORDERS = TopicPartition("orders", 0)


def four(*replicas: int) -> ModelCluster:
    cluster = ModelCluster()
    cluster.start(1, 2, 3, 4)
    cluster.create_topic("orders", replicas or (1, 2))
    cluster.clear_received()
    return cluster


def reassign(
    cluster: ModelCluster, target: tuple[int, ...] | None, partition: TopicPartition = ORDERS
) -> Failure | None:
    reply = cluster.call(AlterReassignments({partition: target}))
    assert not isinstance(reply, Failure)
    return reply[partition]


def reassignments(cluster: ModelCluster) -> dict[TopicPartition, ReplicaAssignment]:
    reply = cluster.call(ListReassignments(None))
    assert not isinstance(reply, Failure)
    return dict(reply)


def test_partition_moves_when_its_new_replicas_have_caught_up() -> None:
    cluster = four()
    assert reassign(cluster, (3, 4)) is None
    # The new replicas follow while the old ones still serve.
    assert cluster.assignment(ORDERS) == ReplicaAssignment((3, 4, 1, 2), adding=(3, 4), removing=(1, 2))
    assert reassignments(cluster) == {ORDERS: cluster.assignment(ORDERS)}
    assert cluster.brokers[3].hosted[ORDERS].is_new
    assert cluster.state(ORDERS).leader == 1
    cluster.alter_isr(ORDERS, (1, 2, 3))
    assert reassignments(cluster)
    cluster.alter_isr(ORDERS, (1, 2, 3, 4))
    # All target replicas are in sync: the lead moves, and the old replicas are removed.
    assert cluster.assignment(ORDERS) == ReplicaAssignment((3, 4))
    state = cluster.state(ORDERS)
    assert (state.leader, set(state.isr)) == (3, {3, 4})
    assert reassignments(cluster) == {}
    assert (ORDERS, True) in cluster.brokers[1].stopped
    assert (ORDERS, True) in cluster.brokers[2].stopped
    assert cluster.brokers[2].metadata[ORDERS].replicas == (3, 4)
    assert cluster.brokers[3].hosted[ORDERS].assignment == ReplicaAssignment((3, 4))


def test_replication_factor_grows_and_shrinks() -> None:
    cluster = four()
    reassign(cluster, (1, 2, 3))
    cluster.alter_isr(ORDERS, (1, 2, 3))
    assert cluster.assignment(ORDERS) == ReplicaAssignment((1, 2, 3))
    # Shrinking does not wait for a replica to catch up.
    reassign(cluster, (1,))
    assert cluster.assignment(ORDERS) == ReplicaAssignment((1,))
    assert cluster.state(ORDERS).isr == (1,)


def test_order_of_replicas_and_preferred_leader_change_at_once() -> None:
    cluster = four()
    reassign(cluster, (2, 1))
    assert cluster.assignment(ORDERS) == ReplicaAssignment((2, 1))
    assert cluster.state(ORDERS).leader == 1


def test_cancelled_reassignment_leaves_everything_as_it_was() -> None:
    cluster = four()
    reassign(cluster, (3, 4))
    assert reassign(cluster, None) is None
    assert cluster.assignment(ORDERS) == ReplicaAssignment((1, 2))
    assert reassignments(cluster) == {}
    assert (ORDERS, True) in cluster.brokers[3].stopped
    assert reassign(cluster, None) == Failure(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)


def test_later_target_replaces_an_earlier_one() -> None:
    cluster = four()
    reassign(cluster, (3,))
    reassign(cluster, (4, 2))
    assert cluster.assignment(ORDERS) == ReplicaAssignment((4, 2, 1), adding=(4,), removing=(1,))
    assert (ORDERS, True) in cluster.brokers[3].stopped
    cluster.alter_isr(ORDERS, (1, 2, 4))
    assert cluster.assignment(ORDERS) == ReplicaAssignment((4, 2))


@pytest.mark.parametrize(
    ("target", "reason"),
    [((), "Empty"), ((1, 1), "Duplicate"), ((1, -2), "Invalid broker"), ((1, 9), "not alive")],
)
def test_target_that_cannot_be_is_refused(target: tuple[int, ...], reason: str) -> None:
    cluster = four()
    failure = reassign(cluster, target)
    assert failure is not None and failure.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reason in (failure.message or "")
    assert cluster.assignment(ORDERS) == ReplicaAssignment((1, 2))


def test_partition_that_does_not_exist_cannot_move() -> None:
    cluster = four()
    failure = reassign(cluster, (1,), TopicPartition("nothing", 0))
    assert failure is not None and failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_dead_replica_may_be_moved_away_from() -> None:
    cluster = four()
    cluster.kill(2)
    reassign(cluster, (1, 3))
    cluster.alter_isr(ORDERS, (1, 3))
    assert cluster.assignment(ORDERS) == ReplicaAssignment((1, 3))


def test_reassignment_goes_on_under_a_new_controller() -> None:
    cluster = four(2, 3)
    reassign(cluster, (3, 4))
    cluster.kill(1)
    assert reassignments(cluster) == {ORDERS: ReplicaAssignment((3, 4, 2), adding=(4,), removing=(2,))}
    cluster.alter_isr(ORDERS, (2, 3, 4))
    assert cluster.assignment(ORDERS) == ReplicaAssignment((3, 4))
    assert cluster.state(ORDERS).leader == 3


@pytest.mark.parametrize("is_new_controller", [True, False])
def test_partition_whose_state_cannot_be_read_waits_and_the_cluster_keeps_its_controller(
    is_new_controller: bool,
) -> None:
    """Each controller in turn failed at it and resigned: no partition of the cluster could get another leader."""
    cluster = four()
    cluster.create_topic("fine", (1, 2))
    if is_new_controller:
        assert reassign(cluster, (3, 4)) is None
    cluster.write(SetData(paths.partition_state(ORDERS), b"no json"))
    if not is_new_controller:
        assert reassign(cluster, (3, 4)) is None
    before = cluster.controller.machine.epoch
    cluster.kill(1)
    assert cluster.controller.machine.epoch == before + 1
    assert cluster.state(TopicPartition("fine", 0)).leader == 2
    cluster.start(1)
    assert cluster.controller.machine.epoch == before + 1


@pytest.mark.parametrize(
    ("replicas", "adding", "removing"),
    [([2, 3], [4], []), ([2, 2, 3], [], []), ([2, 3, 4], [4, 9], [7]), ([2, 3], [], [2, 3])],
)
def test_nonsense_assignment_ends_no_controller_and_deletes_nothing(
    replicas: list[int], adding: list[int], removing: list[int]
) -> None:
    cluster = four(2, 3)
    cluster.create_topic("fine", (1, 2))
    data = {
        "version": 3,
        "topic_id": format_uuid(cluster.topic_id("orders") or b""),
        "partitions": {"0": replicas},
        "adding_replicas": {"0": adding},
        "removing_replicas": {"0": removing},
    }
    cluster.write(SetData(paths.topic("orders"), json.dumps(data).encode()))
    before = cluster.controller.machine.epoch
    cluster.kill(1)
    assert cluster.controller.machine.epoch == before + 1
    assert cluster.state(TopicPartition("fine", 0)).leader == 2
    assert cluster.state(ORDERS).leader == 2
    assert (ORDERS, True) not in cluster.brokers[2].stopped
    cluster.delete_topic("orders")
    assert cluster.controller.machine.epoch == before + 1


def test_new_replica_whose_broker_dies_goes_on_when_it_returns() -> None:
    cluster = four()
    reassign(cluster, (1, 3))
    cluster.kill(3)
    assert reassignments(cluster)
    cluster.start(3)
    assert cluster.brokers[3].hosted[ORDERS].leadership.leader == 1
    cluster.alter_isr(ORDERS, (1, 2, 3))
    assert cluster.assignment(ORDERS) == ReplicaAssignment((1, 3))


def test_leader_that_dies_in_the_middle_is_replaced_by_an_in_sync_replica() -> None:
    cluster = four(2, 3)
    reassign(cluster, (4, 1))
    cluster.alter_isr(ORDERS, (2, 3, 4))
    cluster.kill(2)
    assert cluster.state(ORDERS).leader == 4
    cluster.alter_isr(ORDERS, (4, 3, 1))
    assert cluster.assignment(ORDERS) == ReplicaAssignment((4, 1))


def test_deletion_waits_for_a_reassignment_and_then_happens() -> None:
    cluster = four()
    reassign(cluster, (3, 4))
    cluster.delete_topic("orders")
    assert cluster.zk.exists("/brokers/topics/orders")
    cluster.alter_isr(ORDERS, (1, 2, 3, 4))
    assert not cluster.zk.exists("/brokers/topics/orders")
    assert not any(broker.hosted for broker in cluster.brokers.values())


def test_topic_that_is_being_deleted_cannot_be_reassigned() -> None:
    cluster = four()
    cluster.kill(2)
    cluster.delete_topic("orders")
    failure = reassign(cluster, (1, 3))
    assert failure is not None and failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_reassignment_through_zookeeper_is_carried_out_and_its_znode_goes_when_done() -> None:
    cluster = four()
    for target in ((3, 4), (1, 2)):
        isr = cluster.state(ORDERS).isr
        cluster.write(Create(paths.REASSIGN_PARTITIONS, encode_reassign_partitions({ORDERS: target})))
        assert cluster.zk.exists(paths.REASSIGN_PARTITIONS)
        cluster.alter_isr(ORDERS, (*isr, *target))
        assert cluster.assignment(ORDERS) == ReplicaAssignment(target)
        assert not cluster.zk.exists(paths.REASSIGN_PARTITIONS)


def test_request_over_the_api_replaces_one_through_zookeeper() -> None:
    cluster = four()
    other = TopicPartition("other", 0)
    cluster.create_topic("other", (1, 2))
    targets = {ORDERS: (3, 4), other: (3,)}
    cluster.write(Create(paths.REASSIGN_PARTITIONS, encode_reassign_partitions(targets)))
    reassign(cluster, (1, 4))
    assert cluster.zk.get(paths.REASSIGN_PARTITIONS) == encode_reassign_partitions({other: (3,)})


@pytest.mark.parametrize("data", [b"nonsense", encode_reassign_partitions({TopicPartition("nothing", 0): (1,)})])
def test_znode_that_asks_for_the_impossible_is_removed(data: bytes) -> None:
    cluster = four()
    cluster.write(Create(paths.REASSIGN_PARTITIONS, data))
    assert not cluster.zk.exists(paths.REASSIGN_PARTITIONS)
    # The controller notices the next one.
    cluster.write(Create(paths.REASSIGN_PARTITIONS, encode_reassign_partitions({ORDERS: (2, 1)})))
    assert cluster.assignment(ORDERS) == ReplicaAssignment((2, 1))


def test_list_can_be_asked_for_certain_partitions() -> None:
    cluster = four()
    reassign(cluster, (3, 4))
    reply = cluster.call(ListReassignments((ORDERS, TopicPartition("nothing", 0))))
    assert not isinstance(reply, Failure)
    assert set(reply) == {ORDERS}


@pytest.mark.parametrize("plan", [(1, 4), (4, 2), None])
def test_plan_that_does_without_the_replica_that_leads_elects_another_first(plan: tuple[int, ...] | None) -> None:
    """An added replica leads as soon as it is in sync, if it is the preferred one."""
    cluster = four()
    assert reassign(cluster, (3, 4)) is None
    cluster.alter_isr(ORDERS, (1, 2, 3))
    cluster.call(ElectLeaders((ORDERS,), ElectionType.PREFERRED))
    assert cluster.state(ORDERS).leader == 3
    assert reassign(cluster, plan) is None
    state = cluster.state(ORDERS)
    assert state.leader in (1, 2)
    assert 3 not in state.isr
    assert ORDERS in cluster.brokers[state.leader].leads()
    assert (ORDERS, True) in cluster.brokers[3].stopped


def test_partitions_that_are_added_as_a_reassignment_begins_stay() -> None:
    """The controller hears of the reassignment first, and also writes the topic's znode."""
    cluster = four()
    more = TopicAssignment(cluster.topic_id("orders"), {0: ReplicaAssignment((1, 2)), 1: ReplicaAssignment((2, 3))})

    def both() -> None:
        controller = cluster.controller.id
        cluster.tell(controller, AlterReassignments({ORDERS: (2, 3)}))
        cluster.write(SetData(paths.topic("orders"), more.encode()))

    cluster.unseen(both)
    assert cluster.assignment(ORDERS) == ReplicaAssignment((2, 3, 1), adding=(3,), removing=(1,))
    added = TopicPartition("orders", 1)
    assert cluster.assignment(added) == ReplicaAssignment((2, 3))
    assert added in cluster.brokers[2].leads()


class ControllerDied(Exception):
    pass


def die_at(cluster: ModelCluster, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the controller die before its `number`th batch to ZooKeeper from now on is executed."""
    controller, carry_out, batches = cluster.controller, cluster._carry_out, itertools.count()

    def carry_out_or_die(broker: ModelBroker, effect: Effect) -> None:
        if broker is controller and isinstance(effect, ZkBatch) and next(batches) == number:
            raise ControllerDied
        carry_out(broker, effect)

    monkeypatch.setattr(cluster, "_carry_out", carry_out_or_die)


def bury_controller(cluster: ModelCluster) -> None:
    cluster._queue.clear()
    cluster.kill(cluster.controller.id)


def leaders_by_their_own_word(cluster: ModelCluster) -> dict[int, int]:
    """Return the leaders, as they believe themselves, with their epochs."""
    return {
        each.id: each.hosted[ORDERS].leadership.leader_epoch
        for each in cluster.brokers.values()
        if ORDERS in each.leads()
    }


@pytest.mark.parametrize("batch", range(8))
def test_controller_dies_while_one_plan_replaces_another_that_has_the_leader(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader is not in the new plan. The next controller must not leave it in office and inform only the other replicas
    about the next epoch.
    """
    cluster = ModelCluster()
    cluster.start(9, 1, 2, 3, 4, 5)
    cluster.create_topic("orders", (1, 2))
    assert reassign(cluster, (3, 4)) is None
    cluster.alter_isr(ORDERS, (1, 2, 3))
    cluster.call(ElectLeaders((ORDERS,), ElectionType.PREFERRED))
    die_at(cluster, batch, monkeypatch)
    with contextlib.suppress(ControllerDied):
        cluster.call(AlterReassignments({ORDERS: (2, 5)}))
    bury_controller(cluster)
    state = cluster.state(ORDERS)
    assert state.leader in cluster.assignment(ORDERS).replicas
    assert set(state.isr) <= set(cluster.assignment(ORDERS).replicas)
    assert leaders_by_their_own_word(cluster) == {state.leader: state.leader_epoch}


@pytest.mark.parametrize("batch", range(8))
def test_controller_dies_as_a_reassignment_ends_and_the_removed_replica_does_not_lead(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed replica that led hears of its removal before ZooKeeper forgets that it was a replica."""
    cluster = ModelCluster()
    cluster.start(9, 1, 2, 3, 4)
    cluster.create_topic("orders", (1, 2))
    assert reassign(cluster, (3, 4)) is None
    die_at(cluster, batch, monkeypatch)
    with contextlib.suppress(ControllerDied):
        cluster.alter_isr(ORDERS, (1, 2, 3, 4))
    bury_controller(cluster)
    state = cluster.state(ORDERS)
    assert state.leader in cluster.assignment(ORDERS).replicas
    assert leaders_by_their_own_word(cluster) == {state.leader: state.leader_epoch}


def test_leader_that_is_not_a_replica_any_more_is_replaced_by_a_new_controller() -> None:
    """A Kafka controller leaves the state like this if it dies while one plan replaces another."""
    cluster = ModelCluster()
    cluster.start(9, 1, 2, 3)
    cluster.create_topic("orders", (1, 2))
    plan = TopicAssignment(cluster.topic_id("orders"), {0: ReplicaAssignment((2, 3), adding=(3,))})
    cluster.unseen(
        lambda: (cluster.write(SetData(paths.topic("orders"), plan.encode())), cluster.kill(cluster.controller.id))
    )
    state = cluster.state(ORDERS)
    assert (state.leader, state.isr) == (2, (2,))
    assert cluster.brokers[2].hosted[ORDERS].leadership.leader_epoch == state.leader_epoch
