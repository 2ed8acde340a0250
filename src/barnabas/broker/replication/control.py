"""Decides whether requests of a controller are too old: LeaderAndIsr, StopReplica, UpdateMetadata. Pure.

There are three fences. The receiver's broker epoch: the request was meant for this incarnation of the broker. The controller
epoch: the sender is not a former controller. The partition's leader epoch.
"""

from enum import Enum
from typing import Final, NamedTuple

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import ZERO_TOPIC_ID, BrokerId, TopicId
from barnabas.broker.replication.state import NO_BROKER_EPOCH, PartitionLeadership

#: StopReplica for a topic that is being deleted: it has no higher leader epoch, and no epoch may stop it.
EPOCH_DURING_DELETE: Final = -2
#: StopReplica in a version without leader epochs.
NO_STOP_EPOCH: Final = -1


class Verdict(Enum):
    BECOME_LEADER = "become leader"
    BECOME_FOLLOWER = "become follower"
    #: Same epoch, but the request brings the topic id that the log does not have yet.
    ASSIGN_TOPIC_ID = "assign topic id"
    #: Same epoch, but the request has no topic id any more: the fetcher must stop using it.
    FORGET_FETCH_TOPIC_ID = "forget topic id in the fetcher"
    REFUSE = "refuse"


class Decision(NamedTuple):
    verdict: Verdict
    error: ErrorCode = ErrorCode.NONE


_LEAD: Final = Decision(Verdict.BECOME_LEADER)
_FOLLOW: Final = Decision(Verdict.BECOME_FOLLOWER)


def is_broker_epoch_stale(request_epoch: int, current_epoch: int) -> bool:
    """Whether the request was meant for an earlier incarnation of this broker. (-1: the sender does not know the epoch.)

    A broker that has not registered has no epoch, so no request can be meant for it. A higher epoch than ours is fine: the
    controller may see our registration before we have ZooKeeper's answer.
    """
    if current_epoch == NO_BROKER_EPOCH:
        return True
    return request_epoch != NO_BROKER_EPOCH and request_epoch < current_epoch


def is_controller_epoch_stale(request_epoch: int, known_epoch: int) -> bool:
    """Whether a former controller sent the request. It changes nothing, and the answer is STALE_CONTROLLER_EPOCH."""
    return request_epoch < known_epoch


def decide_leader_and_isr(
    state: PartitionLeadership,
    *,
    local_broker: BrokerId,
    current_leader_epoch: int,
    request_topic_id: TopicId = ZERO_TOPIC_ID,
    log_topic_id: TopicId = ZERO_TOPIC_ID,
    is_offline: bool = False,
) -> Decision:
    """Decide one partition of a LeaderAndIsr request with a valid controller epoch. An all-zero topic id means no id."""
    if is_offline:
        return Decision(Verdict.REFUSE, ErrorCode.KAFKA_STORAGE_ERROR)
    if ZERO_TOPIC_ID not in (request_topic_id, log_topic_id) and request_topic_id != log_topic_id:
        return Decision(Verdict.REFUSE, ErrorCode.INCONSISTENT_TOPIC_ID)
    if state.leader_epoch > current_leader_epoch:
        if local_broker not in state.replicas:
            return Decision(Verdict.REFUSE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return _LEAD if state.leader == local_broker else _FOLLOW
    if state.leader_epoch == current_leader_epoch:
        if request_topic_id != ZERO_TOPIC_ID and log_topic_id == ZERO_TOPIC_ID:
            return Decision(Verdict.ASSIGN_TOPIC_ID)
        if request_topic_id == ZERO_TOPIC_ID and log_topic_id != ZERO_TOPIC_ID and state.leader != local_broker:
            return Decision(Verdict.FORGET_FETCH_TOPIC_ID)
    # Kafka uses this error code for an old leader epoch, too.
    return Decision(Verdict.REFUSE, ErrorCode.STALE_CONTROLLER_EPOCH)


def decide_stop_replica(*, request_leader_epoch: int, current_leader_epoch: int, is_offline: bool = False) -> ErrorCode:
    """Decide one partition of a StopReplica request with a valid controller epoch. NONE: stop the replica."""
    if is_offline:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if request_leader_epoch in (EPOCH_DURING_DELETE, NO_STOP_EPOCH) or request_leader_epoch >= current_leader_epoch:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH
