"""Brokers come and go: membership and the controller, as stories."""

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.broker.controller.effects import SendLeaderAndIsr, SendUpdateMetadata
from barnabas.broker.controller.events import AllocateProducerIds, Failure
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import SetData
from barnabas.broker.zookeeper_client.znodes import ControllerRegistration, LeaderAndIsr
from tests.unit.broker.controller.model_cluster import ModelCluster

ORDERS = TopicPartition("orders", 0)


def test_first_broker_to_create_the_controller_znode_is_controller_and_the_others_watch() -> None:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    assert cluster.controller.id == 1
    assert cluster.controller.machine.epoch == 1
    assert [broker.machine.controller_id for broker in cluster.brokers.values()] == [1, 1, 1]
    assert cluster.zk.get("/controller_epoch") == b"1"
    assert ControllerRegistration.decode(cluster.zk.get("/controller") or b"").broker_id == 1


def test_controller_stays_in_office_when_its_znode_is_overwritten() -> None:
    """The version of /controller_epoch guards its writes. When the znode goes with its session, other brokers race for it."""
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.write(SetData(paths.CONTROLLER, b"no json"))
    assert cluster.controller.id == 1
    cluster.create_topic("orders", (2, 3, 1))
    assert cluster.state(ORDERS).leader == 2
    cluster.kill(1)
    assert cluster.controller.id in (2, 3)


def test_no_broker_becomes_controller_while_the_controller_epoch_is_unreadable() -> None:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.write(SetData(paths.CONTROLLER_EPOCH, b"many"))
    cluster.kill(1)
    assert not any(broker.machine.is_active for broker in cluster.brokers.values())
    assert cluster.zk.get(paths.CONTROLLER_EPOCH) == b"many"


def test_when_the_controller_dies_the_others_race_and_exactly_one_wins_with_a_higher_epoch() -> None:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.kill(1)
    assert cluster.controller.id in (2, 3)
    assert cluster.controller.machine.epoch == 2
    cluster.kill(cluster.controller.id)
    assert cluster.controller.machine.epoch == 3


def test_controller_that_slept_through_its_session_changes_nothing_and_resigns() -> None:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.create_topic("orders", (1, 2, 3))
    sleeper = cluster.pause(1)
    assert cluster.controller.id == 2
    before = cluster.zk.dump()
    cluster.wake(sleeper)
    assert sleeper.machine.is_active
    # It acts as controller: its first write is refused, since /controller_epoch has another version.
    request = AllocateProducerIds(2, cluster.brokers[2].epoch)
    cluster.tell(1, request)
    assert sleeper.replies[request] == Failure(ErrorCode.NOT_CONTROLLER)
    assert not sleeper.machine.is_active
    assert sleeper.machine.controller_id == 2
    assert sleeper.channels == {} and sleeper.timers == {}
    assert cluster.zk.dump() == before


def test_message_of_an_older_controller_epoch_is_refused_by_brokers() -> None:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.create_topic("orders", (1, 2, 3))
    old = [each for each in cluster.brokers[3].received if isinstance(each, SendLeaderAndIsr)][-1]
    cluster.kill(1)
    broker = cluster.brokers[3]
    hosted = dict(broker.hosted)
    cluster._deliver(cluster.brokers[2], 3, old)
    assert broker.hosted == hosted
    assert broker.received[-1] is not old


def test_broker_that_dies_disappears_and_the_next_in_sync_replica_of_the_list_leads() -> None:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.create_topic("orders", (2, 3, 1), (3, 1, 2))
    assert cluster.state(ORDERS).leader == 2
    cluster.kill(2)
    state = cluster.state(ORDERS)
    assert (state.leader, state.isr, state.leader_epoch) == (3, (3, 1), 1)
    for broker in cluster.brokers.values():
        assert broker.live_brokers == (1, 3)
        assert broker.metadata[ORDERS].leader == 3
        assert broker.metadata[ORDERS].offline_replicas == (2,)
    assert cluster.brokers[3].leads() == {ORDERS, TopicPartition("orders", 1)}
    # A partition that only lost a follower keeps its leader, with a smaller ISR.
    assert cluster.state(TopicPartition("orders", 1)).isr == (3, 1)


def test_replica_that_is_not_in_sync_is_passed_over() -> None:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.create_topic("orders", (2, 3, 1))
    cluster.alter_isr(ORDERS, (2, 1))
    cluster.kill(2)
    assert cluster.state(ORDERS).leader == 1


def test_new_broker_with_a_dead_ones_id_takes_its_partitions_over() -> None:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.create_topic("orders", (2, 3, 1))
    cluster.kill(2)
    cluster.start(2)
    broker = cluster.brokers[2]
    # It gets all brokers and all partitions, then the partitions that it hosts, and follows.
    assert broker.live_brokers == (1, 2, 3)
    assert broker.metadata[ORDERS].leader == 3
    assert broker.hosted[ORDERS].leadership.leader == 3
    assert [type(each) for each in broker.received][:2] == [SendUpdateMetadata, SendLeaderAndIsr]
    # When it has caught up, its leader adds it to the ISR.
    cluster.alter_isr(ORDERS, (3, 1, 2))
    assert cluster.state(ORDERS).isr == (3, 1, 2)


def test_broker_that_restarted_unnoticed_is_failed_and_started() -> None:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.create_topic("orders", (2, 3, 1))
    before = cluster.brokers[2].epoch
    cluster.bounce(2)
    assert cluster.brokers[2].epoch > before
    assert cluster.state(ORDERS).leader == 3
    assert cluster.brokers[2].hosted[ORDERS].leadership.leader == 3
    assert cluster.controller.channels[2] == cluster.brokers[2].epoch


def test_partition_without_live_in_sync_replica_waits_for_one() -> None:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.create_topic("orders", (2, 3))
    cluster.alter_isr(ORDERS, (2,))
    cluster.kill(2)
    state = cluster.state(ORDERS)
    # The last in-sync replica stays in the ISR: only it has all records.
    assert (state.leader, state.isr) == (-1, (2,))
    assert cluster.controller.machine.context.offline_partition_count() == 1
    cluster.start(2)
    assert cluster.state(ORDERS).leader == 2
    assert cluster.controller.machine.context.offline_partition_count() == 0


def test_new_controller_finds_what_the_old_one_left_and_elects() -> None:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.create_topic("orders", (1, 2, 3))
    cluster.create_topic("other", (3, 2))
    # Broker 1 is both controller and leader.
    cluster.kill(1)
    assert cluster.controller.machine.epoch == 2
    assert cluster.state(ORDERS).leader == 2
    assert cluster.state(ORDERS).controller_epoch == 2
    assert cluster.state(TopicPartition("other", 0)).leader == 3
    assert cluster.brokers[3].metadata[ORDERS].leader == 2


def test_whole_cluster_returns_with_its_leaders() -> None:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.create_topic("orders", (1, 2, 3))
    cluster.kill(3)
    cluster.kill(2)
    cluster.kill(1)
    assert not cluster.zk.exists("/controller")
    # Only the last one in the ISR may lead.
    cluster.start(2, 3)
    assert cluster.state(ORDERS).isr == (1,)
    assert cluster.state(ORDERS).leader == -1
    cluster.start(1)
    assert cluster.state(ORDERS).leader == 1


def test_broker_whose_session_expired_registers_again_and_goes_on() -> None:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.create_topic("orders", (1, 2, 3))
    cluster.expire_session(1)
    assert cluster.controller.id != 1
    assert cluster.state(ORDERS).leader == 2
    assert cluster.brokers[1].hosted[ORDERS].leadership.leader == 2
    assert cluster.brokers[1].machine.controller_id == cluster.controller.id


def test_broker_that_was_away_while_there_was_no_controller_leaves_the_isr() -> None:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.create_topic("orders", (2, 3), (3, 2), (2,))
    # The controller dies. Before another broker takes over, broker 2 loses power and restarts.
    cluster.unseen(lambda: (cluster.kill(1), cluster.bounce(2)))
    assert cluster.controller.machine.epoch == 2
    led = cluster.state(ORDERS)
    assert (led.leader, led.isr, led.leader_epoch) == (3, (3,), 1)
    followed = cluster.state(TopicPartition("orders", 1))
    assert (followed.leader, followed.isr) == (3, (3,))
    # Broker 2 has the only replica of this partition: it leads again, in a new epoch.
    alone = cluster.state(TopicPartition("orders", 2))
    assert (alone.leader, alone.isr, alone.leader_epoch) == (2, (2,), 1)
    assert cluster.brokers[2].hosted[ORDERS].leadership == led
    assert cluster.brokers[3].hosted[ORDERS].leadership == led
    # When it has caught up, it returns to the ISR.
    assert isinstance(cluster.alter_isr(ORDERS, (3, 2)), LeaderAndIsr)


def test_broker_that_only_lost_its_session_is_trusted_before_one_that_was_away() -> None:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.create_topic("orders", (2, 3), (3, 2))
    # All registrations are then newer than the ISRs, but the process of broker 3 has lost nothing.
    cluster.unseen(lambda: (cluster.kill(1), cluster.bounce(2), cluster.expire_session(3)))
    for partition in (ORDERS, TopicPartition("orders", 1)):
        state = cluster.state(partition)
        assert (state.leader, state.isr) == (3, (3,))


@pytest.mark.parametrize(("first", "second"), [(2, 3), (3, 2)])
def test_isr_members_that_go_down_together_stay_in_the_isr_and_the_first_to_return_leads(
    first: int, second: int
) -> None:
    """One of them may have lost power and the other only its session: to keep one of them would be a guess."""
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.create_topic("orders", (2, 3), (3, 2))
    cluster.unseen(lambda: cluster.kill(2, 3))
    for partition in (ORDERS, TopicPartition("orders", 1)):
        assert (cluster.state(partition).leader, sorted(cluster.state(partition).isr)) == (-1, [2, 3])
    cluster.start(first)
    for partition in (ORDERS, TopicPartition("orders", 1)):
        assert (cluster.state(partition).leader, cluster.state(partition).isr) == (first, (first,))
    cluster.start(second)
    assert cluster.state(ORDERS).isr == (first,), "it lacks the records that were written meanwhile"


def test_member_of_an_isr_that_goes_last_stays_in_it_alone() -> None:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.create_topic("orders", (2, 3))
    cluster.kill(2)
    cluster.kill(3)
    assert (cluster.state(ORDERS).leader, cluster.state(ORDERS).isr) == (-1, (3,))
    cluster.start(2)
    assert (cluster.state(ORDERS).leader, cluster.state(ORDERS).isr) == (-1, (3,))


def test_broker_that_was_there_all_the_time_stays_in_the_isr_under_a_new_controller() -> None:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.create_topic("orders", (2, 3))
    before = cluster.state(ORDERS)
    cluster.kill(1)
    assert cluster.state(ORDERS) == before
