"""Topics are made, grow, and go."""

from dataclasses import replace

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.broker.controller.effects import SendLeaderAndIsr, SendStopReplica, SendUpdateMetadata
from barnabas.broker.controller.events import LeaderAndIsrAnswered, StopReplicaAnswered
from barnabas.broker.controller.settings import ControllerSettings
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Create, SetData
from barnabas.broker.zookeeper_client.znodes import ReplicaAssignment, TopicAssignment
from tests.unit.broker.controller.model_cluster import ModelCluster

ORDERS = TopicPartition("orders", 0)


def three() -> ModelCluster:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.clear_received()
    return cluster


def test_new_topic_has_leaders_and_every_broker_gets_one_request_of_each_kind() -> None:
    cluster = three()
    cluster.create_topic("orders", *[(1 + n % 3, 1 + (n + 1) % 3) for n in range(1000)])
    for broker in cluster.brokers.values():
        assert [type(each) for each in broker.received] == [SendLeaderAndIsr, SendUpdateMetadata]
        assert len(broker.metadata) == 1000
        request = broker.received[0]
        assert isinstance(request, SendLeaderAndIsr)
        assert all(each.is_new for each in request.partitions.values())
        assert request.topic_ids == {"orders": cluster.topic_id("orders")}
    assert cluster.state(ORDERS).isr == (1, 2)
    assert cluster.zk.get("/brokers/topics/orders/partitions") is None


def test_topic_without_an_id_gets_one() -> None:
    cluster = three()
    cluster.write(Create("/brokers/topics/old", b'{"version":1,"partitions":{"0":[1,2]}}'))
    assert cluster.topic_id("old") is not None
    assert cluster.state(TopicPartition("old", 0)).leader == 1


def test_topic_whose_znode_is_nonsense_does_not_keep_others_from_being_made() -> None:
    cluster = three()
    cluster.write(Create("/brokers/topics/bad", b"nonsense"))
    cluster.create_topic("orders", (1, 2))
    assert cluster.state(ORDERS).leader == 1


def test_new_partition_whose_replicas_are_all_down_waits_for_one() -> None:
    cluster = three()
    cluster.kill(3)
    cluster.create_topic("orders", (3,))
    assert not cluster.zk.exists(paths.partition_state(ORDERS))
    cluster.start(3)
    assert cluster.state(ORDERS).leader == 3


def test_topic_grows_and_the_old_partitions_stay() -> None:
    cluster = three()
    cluster.create_topic("orders", (1, 2))
    cluster.alter_isr(ORDERS, (1,))
    grown = TopicAssignment(
        cluster.topic_id("orders"),
        {0: ReplicaAssignment((1, 2)), 1: ReplicaAssignment((2, 3)), 2: ReplicaAssignment((3, 1))},
    )
    cluster.clear_received()
    cluster.write(SetData("/brokers/topics/orders", grown.encode()))
    assert cluster.state(TopicPartition("orders", 1)).leader == 2
    assert cluster.state(TopicPartition("orders", 2)).leader == 3
    assert cluster.state(ORDERS).isr == (1,)
    request = cluster.brokers[2].received[0]
    assert isinstance(request, SendLeaderAndIsr)
    assert set(request.partitions) == {TopicPartition("orders", 1)}


def test_deleted_topic_leaves_nothing_behind() -> None:
    cluster = three()
    cluster.create_topic("orders", (1, 2), (2, 3), settings={"retention.ms": "1"})
    cluster.clear_received()
    cluster.delete_topic("orders")
    assert not [path for path in cluster.zk.dump() if "orders" in path]
    context = cluster.controller.machine.context
    assert not context.topics and not context.leadership and not context.replica_states and not context.partition_states
    for broker in cluster.brokers.values():
        assert not broker.metadata and not broker.hosted
        [stop] = [each for each in broker.received if isinstance(each, SendStopReplica)]
        # -2 overrides any epoch.
        assert all(each.delete and each.leader_epoch == -2 for each in stop.partitions.values())
    cluster.create_topic("orders", (1, 2))
    assert cluster.state(ORDERS).leader == 1


def test_deletion_waits_for_a_broker_that_is_down() -> None:
    cluster = three()
    cluster.create_topic("orders", (1, 2))
    cluster.kill(2)
    cluster.delete_topic("orders")
    assert cluster.zk.exists("/admin/delete_topics/orders")
    assert cluster.zk.exists("/brokers/topics/orders")
    # No broker serves it meanwhile.
    assert not cluster.brokers[1].metadata
    cluster.start(2)
    assert not cluster.zk.exists("/brokers/topics/orders")
    assert not cluster.zk.exists("/admin/delete_topics/orders")


def test_deletion_goes_on_when_a_broker_dies_in_the_middle_of_it() -> None:
    cluster = three()
    cluster.create_topic("orders", (2, 3))
    cluster.unreachable.add(3)
    cluster.delete_topic("orders")
    assert cluster.zk.exists("/brokers/topics/orders")
    cluster.kill(3)
    cluster.unreachable.clear()
    assert cluster.zk.exists("/brokers/topics/orders")
    cluster.start(3)
    assert not cluster.zk.exists("/brokers/topics/orders")


def test_deletion_goes_on_under_a_new_controller() -> None:
    cluster = three()
    cluster.create_topic("orders", (2, 3))
    cluster.unreachable.add(3)
    cluster.delete_topic("orders")
    cluster.unreachable.clear()
    cluster.kill(1)
    assert not cluster.zk.exists("/brokers/topics/orders")


def test_replica_that_cannot_delete_its_data_holds_the_topic_back_until_its_broker_returns() -> None:
    cluster = three()
    cluster.create_topic("orders", (1, 2))
    cluster.brokers[2].deletion_error = ErrorCode.KAFKA_STORAGE_ERROR
    cluster.delete_topic("orders")
    assert cluster.zk.exists("/brokers/topics/orders")
    assert cluster.controller.machine.context.deletion_ineligible == {"orders"}
    cluster.bounce(2)
    assert not cluster.zk.exists("/brokers/topics/orders")


def test_late_answer_to_a_deletion_that_was_given_up_does_no_harm() -> None:
    cluster = three()
    cluster.create_topic("orders", (1, 2))
    cluster.hold_deletions = True
    cluster.delete_topic("orders")
    cluster.kill(2)
    cluster.hold_deletions = False
    cluster.release_held()
    assert cluster.zk.exists("/brokers/topics/orders")
    cluster.start(2)
    assert not cluster.zk.exists("/brokers/topics/orders")


def test_answer_of_a_brokers_former_life_does_not_end_a_deletion() -> None:
    """The broker restarts, and refuses a request for its former life. The controller reads that after its next request."""
    cluster = three()
    cluster.create_topic("orders", (2,))
    cluster.hold_deletions = True
    cluster.delete_topic("orders")
    [(controller, former)] = cluster.held
    assert isinstance(former, StopReplicaAnswered)
    cluster.held.clear()
    cluster.bounce(2)
    cluster.tell(controller, replace(former, error=ErrorCode.STALE_BROKER_EPOCH))
    cluster.release_held()
    assert not cluster.zk.exists(paths.topic("orders"))
    assert cluster.zk.children(paths.DELETE_TOPICS) == ()


def test_failed_directory_of_a_brokers_former_life_does_not_count_for_the_next() -> None:
    cluster = ModelCluster()
    cluster.start(3, 1, 2)
    cluster.create_topic("orders", (1, 2))
    former = cluster.brokers[1].epoch
    cluster.bounce(1)
    cluster.alter_isr(ORDERS, (2, 1))
    cluster.tell(
        cluster.controller.id,
        LeaderAndIsrAnswered(1, former, ErrorCode.NONE, {ORDERS: ErrorCode.KAFKA_STORAGE_ERROR}),
    )
    assert set(cluster.state(ORDERS).isr) == {1, 2}
    assert cluster.brokers[1].stopped == []


def test_wish_to_delete_a_topic_that_is_not_there_is_removed() -> None:
    cluster = three()
    cluster.delete_topic("nothing")
    assert cluster.zk.children("/admin/delete_topics") == ()


def test_no_topic_goes_while_delete_topic_enable_is_false() -> None:
    cluster = ModelCluster(lambda broker: ControllerSettings(broker, delete_topic_enable=False))
    cluster.start(1, 2)
    cluster.create_topic("orders", (1, 2))
    cluster.delete_topic("orders")
    assert cluster.zk.children("/admin/delete_topics") == ()
    assert cluster.zk.exists("/brokers/topics/orders")
    assert cluster.brokers[2].metadata[ORDERS].leader == 1


def test_topic_that_is_being_deleted_does_not_grow() -> None:
    cluster = three()
    cluster.create_topic("orders", (1, 2))
    cluster.kill(2)
    cluster.delete_topic("orders")
    grown = TopicAssignment(cluster.topic_id("orders"), {0: ReplicaAssignment((1, 2)), 1: ReplicaAssignment((1,))})
    cluster.write(SetData("/brokers/topics/orders", grown.encode()))
    assert TopicAssignment.decode("orders", cluster.zk.get("/brokers/topics/orders") or b"").partitions == {
        0: ReplicaAssignment((1, 2))
    }


def test_topic_with_a_foreign_znode_below_it_is_deleted() -> None:
    cluster = three()
    cluster.create_topic("orders", (1, 2))
    cluster.write(Create("/brokers/topics/orders/partitions/0/extra"), Create("/brokers/topics/orders/left"))
    cluster.delete_topic("orders")
    assert not cluster.zk.exists("/brokers/topics/orders")


def test_many_topics_are_deleted_together() -> None:
    cluster = three()
    for number in range(5):
        cluster.create_topic(f"t{number}", (1, 2, 3))
    cluster.write(*[Create(paths.delete_topic(f"t{number}")) for number in range(5)])
    assert cluster.zk.children("/brokers/topics") == ()
    assert not cluster.brokers[1].metadata
