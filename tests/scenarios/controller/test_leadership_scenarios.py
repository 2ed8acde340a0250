"""Leadership: ISRs, preferred leaders, unclean elections, controlled shutdown, failed log directories."""

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.controller.broker_machine import SHUTDOWN_STEP
from barnabas.broker.controller.channel import Request
from barnabas.broker.controller.effects import (
    SendLeaderAndIsr,
    SendStopReplica,
)
from barnabas.broker.controller.events import (
    AllocateProducerIds,
    AlterPartition,
    AlterPartitionReply,
    ControlledShutdown,
    ElectionType,
    ElectLeaders,
    Failure,
    ProposedIsr,
    Timer,
    TimerFired,
    UncleanElectionEnabled,
)
from barnabas.broker.controller.settings import ControllerSettings
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Create, SetData
from barnabas.broker.zookeeper_client.znodes import (
    LeaderAndIsr,
    LeaderRecoveryState,
    ProducerIdBlock,
    encode_isr_change,
    encode_log_dir_event,
    encode_preferred_replica_election,
)
from tests.unit.broker.controller.model_cluster import ModelBroker, ModelCluster

ORDERS = TopicPartition("orders", 0)
UNCLEAN = {"unclean.leader.election.enable": "true"}


def three() -> ModelCluster:
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    return cluster


def with_orders(*replicas: int) -> ModelCluster:
    cluster = three()
    cluster.create_topic("orders", replicas or (2, 3, 1))
    return cluster


# --- ISR --------------------------------------------------------------------------------------------------------------


def test_leader_shrinks_and_grows_its_isr_and_all_brokers_hear_of_it() -> None:
    cluster = with_orders()
    shrunk = cluster.alter_isr(ORDERS, (2, 3))
    assert isinstance(shrunk, LeaderAndIsr)
    assert (shrunk.isr, shrunk.leader_epoch, shrunk.partition_epoch) == ((2, 3), 0, 1)
    assert [each.metadata[ORDERS].isr for each in cluster.brokers.values()] == [(2, 3)] * 3
    grown = cluster.alter_isr(ORDERS, (2, 3, 1))
    assert isinstance(grown, LeaderAndIsr) and grown.partition_epoch == 2


def test_request_that_is_repeated_after_a_lost_answer_is_granted_without_a_write() -> None:
    cluster = with_orders()
    cluster.alter_isr(ORDERS, (2, 3))
    again = cluster.alter_isr(ORDERS, (2, 3), partition_epoch=0)
    assert isinstance(again, LeaderAndIsr) and again.partition_epoch == 1
    assert cluster.state(ORDERS).partition_epoch == 1


@pytest.mark.parametrize(
    ("isr", "changes", "expected"),
    [
        ((2, 1), {"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ((2, 1), {"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ((2, 1), {"leader_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ((2, 1), {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ((2, 9), {}, ErrorCode.INVALID_REQUEST),
        ((3, 1), {}, ErrorCode.INVALID_REQUEST),
        ((2,), {"recovery": LeaderRecoveryState.RECOVERING}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_proposed_isr_is_refused(isr: tuple[int, ...], changes: dict[str, int], expected: ErrorCode) -> None:
    cluster = with_orders()
    cluster.alter_isr(ORDERS, (2, 3))
    before = cluster.state(ORDERS)
    assert cluster.alter_isr(ORDERS, isr, **changes) is expected
    assert cluster.state(ORDERS) == before


def test_broker_that_is_shutting_down_cannot_come_back_into_the_isr() -> None:
    cluster = with_orders()
    cluster.call(ControlledShutdown(3, cluster.brokers[3].epoch))
    assert cluster.state(ORDERS).isr == (2, 1)
    assert cluster.alter_isr(ORDERS, (2, 1, 3)) is ErrorCode.INELIGIBLE_REPLICA


def test_broker_that_is_down_cannot_come_back_into_the_isr() -> None:
    cluster = with_orders()
    cluster.kill(3)
    assert cluster.alter_isr(ORDERS, (2, 1, 3)) is ErrorCode.INELIGIBLE_REPLICA


def test_replica_of_a_former_life_cannot_come_into_the_isr() -> None:
    cluster = with_orders()
    cluster.alter_isr(ORDERS, (2, 1))
    old = cluster.brokers[3].epoch
    cluster.bounce(3)
    now = cluster.brokers[3].epoch
    epochs = {number: broker.epoch for number, broker in cluster.brokers.items()}
    key = (cluster.controller.machine.context.topic_ids["orders"], 0)

    def propose(epoch: int) -> LeaderAndIsr | ErrorCode:
        state = cluster.state(ORDERS)
        proposed = ProposedIsr(state.leader_epoch, (2, 1, 3), state.partition_epoch, isr_epochs=(epochs[2], -1, epoch))
        reply = cluster.call(AlterPartition(2, epochs[2], {key: proposed}))
        assert not isinstance(reply, Failure)
        return reply.partitions[key]

    assert propose(old) is ErrorCode.INELIGIBLE_REPLICA
    assert isinstance(propose(now), LeaderAndIsr)


def test_leader_with_a_stale_broker_epoch_is_refused_as_a_whole() -> None:
    cluster = with_orders()
    reply = cluster.call(AlterPartition(2, 0, {}))
    assert reply == AlterPartitionReply(ErrorCode.STALE_BROKER_EPOCH)
    reply = cluster.call(AlterPartition(77, 0, {}))
    assert reply == AlterPartitionReply(ErrorCode.STALE_BROKER_EPOCH)


def test_unknown_topic_id_is_answered_under_the_same_id() -> None:
    cluster = with_orders()
    key = (TopicId(bytes(15) + b"\xff"), 3)
    reply = cluster.call(AlterPartition(2, cluster.brokers[2].epoch, {key: ProposedIsr(0, (2,), 0)}))
    assert not isinstance(reply, Failure)
    assert reply.partitions == {key: ErrorCode.UNKNOWN_TOPIC_ID}


def test_state_that_a_tool_changed_is_read_again_before_the_next_decision() -> None:
    cluster = with_orders()
    state = cluster.state(ORDERS)
    # A tool wrote the znode behind the controller's back.
    cluster.write(SetData(paths.partition_state(ORDERS), LeaderAndIsr(2, (2, 1), 0, controller_epoch=1).encode()))
    assert cluster.alter_isr(ORDERS, (2,), partition_epoch=state.partition_epoch) is ErrorCode.INVALID_UPDATE_VERSION
    assert isinstance(cluster.alter_isr(ORDERS, (2,)), LeaderAndIsr)
    # An election that meets the change decides again.
    cluster.write(SetData(paths.partition_state(ORDERS), LeaderAndIsr(2, (2, 1), 0, controller_epoch=1).encode()))
    cluster.kill(2)
    assert cluster.state(ORDERS).leader == 1


def test_isr_change_that_an_old_broker_left_as_a_note_is_spread() -> None:
    cluster = with_orders()
    cluster.write(
        SetData(paths.partition_state(ORDERS), LeaderAndIsr(2, (2,), 0, controller_epoch=1).encode()),
        Create(paths.isr_change(), encode_isr_change([ORDERS, TopicPartition("gone", 1)]), sequence=True),
    )
    assert cluster.brokers[3].metadata[ORDERS].isr == (2,)
    assert cluster.zk.children("/isr_change_notification") == ()


# --- unclean elections ------------------------------------------------------------------------------------------------


def lost(settings: dict[str, str] | None = None) -> ModelCluster:
    """Return a cluster in which only broker 2 was in sync, and it is gone."""
    cluster = three()
    cluster.create_topic("orders", (2, 3), settings=settings)
    cluster.alter_isr(ORDERS, (2,))
    cluster.kill(2)
    return cluster


def test_topic_that_allows_it_gets_an_unclean_leader_that_is_recovering() -> None:
    cluster = lost(UNCLEAN)
    state = cluster.state(ORDERS)
    assert (state.leader, state.isr, state.recovery) == (3, (3,), LeaderRecoveryState.RECOVERING)
    assert cluster.controller.machine.context.unclean_elections == 1
    # When the leader is consistent it reports that, and others may join.
    recovered = cluster.alter_isr(ORDERS, (3,), recovery=LeaderRecoveryState.RECOVERED)
    assert isinstance(recovered, LeaderAndIsr) and recovered.recovery is LeaderRecoveryState.RECOVERED


def test_default_of_the_broker_allows_it_unless_the_topic_says_otherwise() -> None:
    for settings, leader in (({}, 3), ({"unclean.leader.election.enable": "false"}, -1)):
        cluster = ModelCluster(lambda broker: ControllerSettings(broker, unclean_leader_election_enable=True))
        cluster.start(1, 2, 3)
        cluster.create_topic("orders", (2, 3), settings=settings)
        cluster.alter_isr(ORDERS, (2,))
        cluster.kill(2)
        assert cluster.state(ORDERS).leader == leader


def test_unclean_election_that_is_allowed_later_happens_at_once() -> None:
    cluster = lost()
    assert cluster.state(ORDERS).leader == -1
    cluster.configure_topic("orders", UNCLEAN)
    cluster.tell(cluster.controller.id, UncleanElectionEnabled("orders"))
    assert cluster.state(ORDERS).leader == 3


def test_unclean_election_by_hand_needs_no_setting() -> None:
    cluster = lost()
    reply = cluster.call(ElectLeaders((ORDERS,), ElectionType.UNCLEAN))
    assert reply == {ORDERS: 3}
    assert cluster.state(ORDERS).recovery is LeaderRecoveryState.RECOVERING


def test_unclean_election_by_hand_without_any_live_replica_says_so() -> None:
    cluster = lost()
    cluster.kill(3)
    reply = cluster.call(ElectLeaders((ORDERS,), ElectionType.UNCLEAN))
    assert not isinstance(reply, Failure)
    failure = reply[ORDERS]
    assert isinstance(failure, Failure) and failure.code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


# --- preferred leaders ------------------------------------------------------------------------------------------------


def displaced() -> ModelCluster:
    """Return a cluster in which broker 2 is preferred and in sync again, and broker 3 leads."""
    cluster = with_orders()
    cluster.kill(2)
    cluster.start(2)
    cluster.alter_isr(ORDERS, (3, 1, 2))
    assert cluster.state(ORDERS).leader == 3
    return cluster


def test_preferred_election_by_hand_brings_the_first_of_the_list_back() -> None:
    cluster = displaced()
    unknown, healthy = TopicPartition("nothing", 0), TopicPartition("healthy", 0)
    cluster.create_topic("healthy", (1, 2))
    reply = cluster.call(ElectLeaders((ORDERS, unknown, healthy), ElectionType.PREFERRED))
    assert not isinstance(reply, Failure)
    assert reply[ORDERS] == 2
    assert reply[healthy] == Failure(ErrorCode.ELECTION_NOT_NEEDED)
    failure = reply[unknown]
    assert isinstance(failure, Failure) and failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.state(ORDERS).isr == (3, 1, 2)
    assert cluster.brokers[2].leads() == {ORDERS}


def test_preferred_election_of_all_partitions_names_each() -> None:
    cluster = displaced()
    reply = cluster.call(ElectLeaders(None, ElectionType.PREFERRED))
    assert reply == {ORDERS: 2}


def test_preferred_replica_that_is_not_in_sync_cannot_lead() -> None:
    cluster = displaced()
    cluster.alter_isr(ORDERS, (3, 1))
    reply = cluster.call(ElectLeaders((ORDERS,), ElectionType.PREFERRED))
    assert not isinstance(reply, Failure)
    failure = reply[ORDERS]
    assert isinstance(failure, Failure) and failure.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_preferred_election_through_zookeeper_is_done_and_its_znode_deleted() -> None:
    cluster = displaced()
    for _ in range(2):
        cluster.write(Create(paths.PREFERRED_REPLICA_ELECTION, encode_preferred_replica_election([ORDERS])))
        assert cluster.state(ORDERS).leader == 2
        assert not cluster.zk.exists(paths.PREFERRED_REPLICA_ELECTION)


def test_leaders_are_rebalanced_when_the_timer_says_so_and_too_many_are_elsewhere() -> None:
    cluster = displaced()
    controller = cluster.controller
    assert controller.timers == {Timer.AUTO_LEADER_REBALANCE: 5_000}
    assert controller.machine.context.preferred_replica_imbalance_count() == 1
    cluster.tell(controller.id, TimerFired(Timer.AUTO_LEADER_REBALANCE))
    assert cluster.state(ORDERS).leader == 2
    assert controller.timers == {Timer.AUTO_LEADER_REBALANCE: 300_000}
    assert controller.machine.context.preferred_replica_imbalance_count() == 0


def test_imbalance_within_the_percentage_is_left_alone() -> None:
    cluster = ModelCluster(lambda broker: ControllerSettings(broker, leader_imbalance_per_broker_percentage=50))
    cluster.start(1, 2, 3)
    cluster.create_topic("orders", (2, 3), (2, 3))
    cluster.kill(2)
    cluster.start(2)
    for number in (0, 1):
        cluster.alter_isr(TopicPartition("orders", number), (3, 2))
    cluster.call(ElectLeaders((ORDERS,), ElectionType.PREFERRED))
    cluster.tell(cluster.controller.id, TimerFired(Timer.AUTO_LEADER_REBALANCE))
    # One of two partitions: not more than half.
    assert cluster.state(TopicPartition("orders", 1)).leader == 3


def test_no_timer_without_auto_leader_rebalance() -> None:
    cluster = ModelCluster(lambda broker: ControllerSettings(broker, auto_leader_rebalance_enable=False))
    cluster.start(1)
    assert cluster.controller.timers == {}


# --- controlled shutdown ----------------------------------------------------------------------------------------------


def test_broker_that_stops_hands_over_a_few_partitions_at_a_time_and_hears_of_it_last() -> None:
    """Each partition is without a leader only as long as its step takes."""
    cluster = three()
    cluster.create_topic("many", *([2, 1, 3] for _ in range(SHUTDOWN_STEP + 10)))
    cluster.create_topic("others", *([1, 2, 3] for _ in range(SHUTDOWN_STEP + 20)))
    cluster.clear_received()
    informed: list[tuple[int, str, int]] = []
    deliver = cluster._deliver

    def note(sender: ModelBroker, target: int, request: Request) -> None:
        if isinstance(request, SendLeaderAndIsr | SendStopReplica):
            informed.append((target, type(request).__name__, len(request.partitions)))
        deliver(sender, target, request)

    cluster._deliver = note  # type: ignore[method-assign]
    reply = cluster.call(ControlledShutdown(2, cluster.brokers[2].epoch))
    assert reply == ()
    assert informed == [
        # the new leaders first
        *((broker, "SendLeaderAndIsr", SHUTDOWN_STEP) for broker in (1, 3, 2)),
        *((broker, "SendLeaderAndIsr", 10) for broker in (1, 3, 2)),
        # then the ISRs without it
        *((broker, "SendLeaderAndIsr", SHUTDOWN_STEP) for broker in (1, 3)),
        (2, "SendStopReplica", SHUTDOWN_STEP),
        *((broker, "SendLeaderAndIsr", 20) for broker in (1, 3)),
        (2, "SendStopReplica", 20),
    ]
    assert {cluster.state(TopicPartition("many", number)).leader for number in range(SHUTDOWN_STEP + 10)} == {1}
    assert {cluster.state(TopicPartition("others", number)).isr for number in (0, SHUTDOWN_STEP + 19)} == {(1, 3)}


def test_broker_that_shuts_down_hands_its_partitions_over_before_it_goes() -> None:
    cluster = with_orders()
    cluster.create_topic("followed", (1, 2))
    cluster.create_topic("alone", (2,))
    cluster.clear_received()
    reply = cluster.call(ControlledShutdown(2, cluster.brokers[2].epoch))
    assert reply == ()
    state = cluster.state(ORDERS)
    assert (state.leader, state.isr) == (3, (3, 1))
    assert cluster.state(TopicPartition("followed", 0)).isr == (1,)
    assert (TopicPartition("followed", 0), False) in cluster.brokers[2].stopped
    # The only replica of a partition keeps the lead.
    assert cluster.state(TopicPartition("alone", 0)).leader == 2
    cluster.kill(2)
    assert cluster.state(ORDERS).leader_epoch == 1


def test_partition_without_another_leader_is_named() -> None:
    cluster = with_orders()
    cluster.alter_isr(ORDERS, (2,))
    reply = cluster.call(ControlledShutdown(2, cluster.brokers[2].epoch))
    assert reply == (ORDERS,)
    assert cluster.state(ORDERS).leader == 2


def test_brokers_that_stop_together_do_not_wait_for_each_other() -> None:
    cluster = with_orders()
    for broker in (3, 1):
        cluster.call(ControlledShutdown(broker, cluster.brokers[broker].epoch))
    reply = cluster.call(ControlledShutdown(2, cluster.brokers[2].epoch))
    assert reply == ()
    assert cluster.state(ORDERS).leader == 2


def test_controlled_shutdown_of_an_old_incarnation_or_a_stranger_is_refused() -> None:
    cluster = with_orders()
    stale = cluster.call(ControlledShutdown(2, 0))
    assert isinstance(stale, Failure) and stale.code is ErrorCode.STALE_BROKER_EPOCH
    stranger = cluster.call(ControlledShutdown(9, 0))
    assert isinstance(stranger, Failure) and stranger.code is ErrorCode.BROKER_NOT_AVAILABLE


def test_controller_itself_can_shut_down() -> None:
    cluster = with_orders(1, 2, 3)
    reply = cluster.call(ControlledShutdown(1, cluster.brokers[1].epoch))
    assert reply == ()
    cluster.kill(1)
    assert cluster.state(ORDERS).leader == 2


# --- log directories --------------------------------------------------------------------------------------------------


def test_replica_in_a_failed_log_directory_loses_the_lead_and_its_place_in_the_isr() -> None:
    cluster = with_orders()
    cluster.brokers[2].broken.add(ORDERS)
    cluster.write(Create(paths.log_dir_event(), encode_log_dir_event(2), sequence=True))
    state = cluster.state(ORDERS)
    assert (state.leader, state.isr) == (3, (3, 1))
    assert cluster.brokers[1].metadata[ORDERS].offline_replicas == (2,)
    assert cluster.zk.children("/log_dir_event_notification") == ()
    # The broker itself is alive.
    assert cluster.brokers[1].live_brokers == (1, 2, 3)
    # After a restart with a working disk, it gets LeaderAndIsr again.
    cluster.bounce(2)
    assert cluster.brokers[1].metadata[ORDERS].offline_replicas == ()


# --- producer ids -----------------------------------------------------------------------------------------------------


def test_blocks_of_producer_ids_never_overlap_even_over_controllers() -> None:
    cluster = three()

    def allocate(broker: int) -> ProducerIdBlock:
        reply = cluster.call(AllocateProducerIds(broker, cluster.brokers[broker].epoch))
        assert not isinstance(reply, Failure)
        return reply

    assert (allocate(1).first, allocate(2).first) == (0, 1000)
    cluster.kill(1)
    assert allocate(3).first == 2000
    assert cluster.zk.get(paths.LATEST_PRODUCER_ID_BLOCK) == (
        b'{"version":1,"broker":3,"block_start":"2000","block_end":"2999"}'
    )


def test_producer_ids_are_refused_to_strangers_and_old_incarnations() -> None:
    cluster = three()
    assert cluster.call(AllocateProducerIds(9, 1)) == Failure(ErrorCode.BROKER_ID_NOT_REGISTERED)
    assert cluster.call(AllocateProducerIds(2, 1)) == Failure(ErrorCode.STALE_BROKER_EPOCH)


# --- not the controller -----------------------------------------------------------------------------------------------


def test_broker_that_is_not_controller_says_so() -> None:
    cluster = with_orders()
    for request in (
        AllocateProducerIds(1, 1),
        ControlledShutdown(1, 1),
        ElectLeaders(None, ElectionType.PREFERRED),
        AlterPartition(1, 1, {}),
    ):
        assert cluster.call(request, broker_id=2) == Failure(ErrorCode.NOT_CONTROLLER)


def test_election_informs_each_replica_once() -> None:
    cluster = with_orders()
    cluster.clear_received()
    cluster.kill(2)
    for broker in cluster.brokers.values():
        requests = [each for each in broker.received if isinstance(each, SendLeaderAndIsr)]
        assert len(requests) == 1


def test_broker_that_returns_does_not_lead_on_in_an_epoch_of_its_former_life_while_the_state_cannot_be_read() -> None:
    """It may have lost records in a power cut that followers in that epoch have. Cluster seed 51."""
    cluster = ModelCluster()
    cluster.start(1, 2)
    cluster.create_topic("orders", (2,))
    orders = TopicPartition("orders", 0)
    epoch = cluster.state(orders).leader_epoch
    good = cluster.state(orders)
    cluster.write(SetData(paths.partition_state(orders), b"no json"))
    cluster.kill(2)
    cluster.start(2)

    def informed() -> list[int]:
        requests = [each for each in cluster.brokers[2].received if isinstance(each, SendLeaderAndIsr)]
        return [each.partitions[orders].leadership.leader_epoch for each in requests if orders in each.partitions]

    assert epoch not in informed()
    cluster.write(SetData(paths.partition_state(orders), good.encode()))
    cluster.kill(2)
    cluster.start(2)
    assert informed() and all(each > epoch for each in informed())


def test_unreadable_topic_settings_end_no_controller() -> None:
    """The settings are read when no in-sync replica is alive, to decide about an unclean election."""
    cluster = ModelCluster()
    cluster.start(1, 2, 3)
    cluster.create_topic("orders", (2,), settings={"retention.ms": "1"})
    cluster.create_topic("fine", (1, 3))
    cluster.write(SetData(paths.config_entity(paths.TOPICS, "orders"), b"no json"))
    before = cluster.controller.machine.epoch
    cluster.kill(2)
    cluster.kill(1)
    assert cluster.controller.machine.epoch == before + 1
    assert cluster.state(TopicPartition("fine", 0)).leader == 3
