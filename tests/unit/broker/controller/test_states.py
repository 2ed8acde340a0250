"""Every transition of the two tables is possible, and no other."""

import pytest

from barnabas.base.errors import IllegalTransition
from barnabas.base.ids import TopicPartition
from barnabas.broker.controller.context import ControllerContext, Replica
from barnabas.broker.controller.states import (
    PARTITION_TRANSITIONS,
    REPLICA_TRANSITIONS,
    PartitionState,
    ReplicaState,
)

P = TopicPartition("t", 0)
R = Replica(P, 1)


@pytest.mark.parametrize("target", PartitionState)
@pytest.mark.parametrize("state", PartitionState)
def test_partition_makes_only_transitions_in_the_table(state: PartitionState, target: PartitionState) -> None:
    context = ControllerContext()
    if state is not PartitionState.NON_EXISTENT:
        context.partition_states[P] = state
    if state in PARTITION_TRANSITIONS[target]:
        context.move_partition(P, target)
        assert context.partition_state(P) is target
    else:
        with pytest.raises(IllegalTransition, match="t-0 cannot move"):
            context.move_partition(P, target)
        assert context.partition_state(P) is state


@pytest.mark.parametrize("target", ReplicaState)
@pytest.mark.parametrize("state", ReplicaState)
def test_replica_makes_only_transitions_in_the_table(state: ReplicaState, target: ReplicaState) -> None:
    context = ControllerContext()
    if state is not ReplicaState.NON_EXISTENT:
        context.replica_states[R] = state
    if state in REPLICA_TRANSITIONS[target]:
        context.move_replica(R, target)
        assert context.replica_state(R) is target
    else:
        with pytest.raises(IllegalTransition, match="replica 1 of t-0 cannot move"):
            context.move_replica(R, target)
        assert context.replica_state(R) is state
