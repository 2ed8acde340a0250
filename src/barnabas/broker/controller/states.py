"""States of partitions and replicas, and every transition that is legal. Pure.

The two tables list every transition: a state that is not in the row of a target cannot move to that target.
"""

from enum import Enum

from barnabas.base.errors import IllegalTransition


class PartitionState(Enum):
    #: Never created, or deleted.
    NON_EXISTENT = "NonExistentPartition"
    #: Has replicas, but no leader yet.
    NEW = "NewPartition"
    #: Has a leader.
    ONLINE = "OnlinePartition"
    #: Had a leader, which is gone.
    OFFLINE = "OfflinePartition"


class ReplicaState(Enum):
    NON_EXISTENT = "NonExistentReplica"
    #: A new topic or a reassignment is creating the replica: it can only follow.
    NEW = "NewReplica"
    #: Alive and one of its partition's replicas.
    ONLINE = "OnlineReplica"
    #: The broker or its log directory is gone, or the broker got a StopReplica.
    OFFLINE = "OfflineReplica"
    #: The broker got the request to delete the replica's data.
    DELETION_STARTED = "ReplicaDeletionStarted"
    DELETION_SUCCESSFUL = "ReplicaDeletionSuccessful"
    #: The broker could not delete the data; the controller tries again when the broker returns.
    DELETION_INELIGIBLE = "ReplicaDeletionIneligible"


#: Target -> states from which it may be reached.
PARTITION_TRANSITIONS: dict[PartitionState, frozenset[PartitionState]] = {
    PartitionState.NEW: frozenset({PartitionState.NON_EXISTENT}),
    PartitionState.ONLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.OFFLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.NON_EXISTENT: frozenset({PartitionState.OFFLINE}),
}

_LIVING = frozenset(
    {ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE},
)

REPLICA_TRANSITIONS: dict[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.NEW: frozenset({ReplicaState.NON_EXISTENT}),
    ReplicaState.ONLINE: _LIVING,
    ReplicaState.OFFLINE: _LIVING,
    ReplicaState.DELETION_STARTED: frozenset({ReplicaState.OFFLINE}),
    ReplicaState.DELETION_SUCCESSFUL: frozenset({ReplicaState.DELETION_STARTED}),
    ReplicaState.DELETION_INELIGIBLE: frozenset({ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED}),
    ReplicaState.NON_EXISTENT: frozenset({ReplicaState.DELETION_SUCCESSFUL}),
}


def check_partition(what: object, state: PartitionState, target: PartitionState) -> None:
    if state not in PARTITION_TRANSITIONS[target]:
        raise IllegalTransition(f"{what} cannot move from {state.value} to {target.value}")


def check_replica(what: object, state: ReplicaState, target: ReplicaState) -> None:
    if state not in REPLICA_TRANSITIONS[target]:
        raise IllegalTransition(f"{what} cannot move from {state.value} to {target.value}")
