"""Requests of controllers: which ones are too old. And the replica from which a consumer should read."""

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import ZERO_TOPIC_ID, TopicId
from barnabas.broker.replication.control import (
    EPOCH_DURING_DELETE,
    Verdict,
    decide_leader_and_isr,
    decide_stop_replica,
    is_broker_epoch_stale,
    is_controller_epoch_stale,
)
from barnabas.broker.replication.machine import PartitionMachine
from barnabas.broker.replication.read_replica import ReplicaView, read_candidates, select_by_rack
from barnabas.broker.replication.state import PartitionLeadership

ID = TopicId(b"a" * 16)
OTHER_ID = TopicId(b"b" * 16)


def decide(*, leader=1, leader_epoch=5, current=4, replicas=(1, 2), **more):
    state = PartitionLeadership(
        leader=leader, leader_epoch=leader_epoch, isr=(1,), partition_epoch=1, replicas=replicas
    )
    return decide_leader_and_isr(state, local_broker=1, current_leader_epoch=current, **more)


def test_newer_leader_epoch_makes_a_leader_or_a_follower():
    assert decide().verdict is Verdict.BECOME_LEADER
    assert decide(leader=2).verdict is Verdict.BECOME_FOLLOWER


@pytest.mark.parametrize("current", [5, 6])
def test_same_or_older_leader_epoch_is_refused(current):
    assert decide(current=current) == (Verdict.REFUSE, ErrorCode.STALE_CONTROLLER_EPOCH)


def test_replica_list_without_this_broker_is_refused():
    assert decide(leader=2, replicas=(2, 3)) == (Verdict.REFUSE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_other_topic_of_the_same_name_is_refused():
    decision = decide(request_topic_id=ID, log_topic_id=OTHER_ID)
    assert decision == (Verdict.REFUSE, ErrorCode.INCONSISTENT_TOPIC_ID)
    assert decide(request_topic_id=ID, log_topic_id=ZERO_TOPIC_ID).verdict is Verdict.BECOME_LEADER
    assert decide(request_topic_id=ZERO_TOPIC_ID, log_topic_id=ID).verdict is Verdict.BECOME_LEADER


def test_same_epoch_may_bring_or_take_away_the_topic_id():
    assert decide(current=5, request_topic_id=ID).verdict is Verdict.ASSIGN_TOPIC_ID
    assert decide(current=5, leader=2, log_topic_id=ID).verdict is Verdict.FORGET_FETCH_TOPIC_ID
    assert decide(current=5, leader=1, log_topic_id=ID).verdict is Verdict.REFUSE


def test_replica_on_a_failed_disk_refuses_requests_of_every_controller():
    assert decide(is_offline=True) == (Verdict.REFUSE, ErrorCode.KAFKA_STORAGE_ERROR)
    stop = decide_stop_replica(request_leader_epoch=9, current_leader_epoch=1, is_offline=True)
    assert stop is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("epoch", [EPOCH_DURING_DELETE, -1, 5, 6])
def test_stop_replica_is_obeyed_in_this_epoch_a_later_one_or_a_deletion(epoch):
    assert decide_stop_replica(request_leader_epoch=epoch, current_leader_epoch=5) is ErrorCode.NONE


def test_stop_replica_of_an_older_epoch_is_refused():
    assert decide_stop_replica(request_leader_epoch=4, current_leader_epoch=5) is ErrorCode.FENCED_LEADER_EPOCH


def test_requests_for_an_earlier_life_or_from_an_earlier_controller_are_stale():
    assert is_broker_epoch_stale(10, 11)
    assert not is_broker_epoch_stale(11, 11)
    assert not is_broker_epoch_stale(-1, 11)
    assert not is_broker_epoch_stale(12, 11)
    assert is_controller_epoch_stale(3, 4)
    assert not is_controller_epoch_stale(4, 4)


def test_broker_that_has_not_registered_refuses_requests_of_every_controller():
    assert is_broker_epoch_stale(11, -1)
    assert is_broker_epoch_stale(-1, -1)


def test_consumer_is_sent_to_the_most_advanced_replica_of_its_rack():
    views = [ReplicaView(2, "b", 10, 5), ReplicaView(3, "b", 12, 50), ReplicaView(4, "c", 99, 0)]
    assert select_by_rack("b", leader_rack="a", candidates=views) == 3
    assert select_by_rack("a", leader_rack="a", candidates=views) is None
    assert select_by_rack("", leader_rack="a", candidates=views) is None
    assert select_by_rack("z", leader_rack="a", candidates=views) is None
    tied = [ReplicaView(2, "b", 10, 5), ReplicaView(3, "b", 10, 50)]
    assert select_by_rack("b", leader_rack="a", candidates=tied) == 2, "the replica that caught up last"


def test_only_in_sync_followers_that_have_the_offset_are_candidates():
    led = PartitionMachine(local_broker=1, replica_lag_time_max_ms=100)
    state = PartitionLeadership(leader=1, leader_epoch=1, isr=(1, 2, 4), partition_epoch=1, replicas=(1, 2, 3, 4))
    led.become_leader(state, log_end=10, now_ms=1000)
    for broker, offset in ((2, 10), (3, 5), (4, 6)):
        led.record_follower_fetch(
            broker, fetch_offset=offset, follower_log_start=0, broker_epoch=-1, log_end=10, now_ms=1000
        )
    views = read_candidates(led, fetch_offset=7, now_ms=1010, rack_of=lambda broker: f"rack-{broker}")
    assert views == [ReplicaView(2, "rack-2", 10, 10)]
