"""The choice of the next leader, as a table."""

import pytest

from barnabas.base.ids import TopicPartition
from barnabas.broker.controller import elections
from barnabas.broker.controller.context import ControllerContext
from barnabas.broker.zookeeper_client.znodes import (
    BrokerRegistration,
    LeaderAndIsr,
    LeaderRecoveryState,
    ReplicaAssignment,
)

P = TopicPartition("t", 0)
NO_LEADER = None


def context(live: tuple[int, ...], replicas: tuple[int, ...], **moving: tuple[int, ...]) -> ControllerContext:
    made = ControllerContext()
    for broker in live:
        made.add_broker(BrokerRegistration(broker, ()), epoch=broker)
    made.assign(P, ReplicaAssignment(replicas, **moving))
    return made


def state(leader: int, *isr: int) -> LeaderAndIsr:
    return LeaderAndIsr(leader, isr, leader_epoch=5, partition_epoch=9)


@pytest.mark.parametrize(
    ("live", "isr", "unclean", "leader", "new_isr"),
    [
        ((1, 2, 3), (1, 2, 3), False, 1, (1, 2, 3)),
        ((2, 3), (1, 2, 3), False, 2, (2, 3)),
        ((2, 3), (1, 3), False, 3, (3,)),
        ((2, 3), (1,), False, NO_LEADER, ()),
        ((2, 3), (1,), True, 2, (2,)),
        ((), (1, 2), True, NO_LEADER, ()),
        # A live in-sync replica is always better than an unclean one.
        ((2, 3), (3,), True, 3, (3,)),
    ],
)
def test_offline_partition_is_led_by(
    live: tuple[int, ...], isr: tuple[int, ...], unclean: bool, leader: int | None, new_isr: tuple[int, ...]
) -> None:
    outcome = elections.for_offline(context(live, (1, 2, 3)), P, state(1, *isr), unclean=unclean)
    if leader is NO_LEADER:
        assert outcome.leadership is None
        return
    assert outcome.leadership is not None
    assert (outcome.leadership.leader, outcome.leadership.isr) == (leader, new_isr)
    assert outcome.leadership.leader_epoch == 6
    assert outcome.leadership.partition_epoch == 9
    was_unclean = leader not in isr
    assert (outcome.leadership.recovery is LeaderRecoveryState.RECOVERING) is was_unclean


@pytest.mark.parametrize(
    ("live", "isr", "leader"), [((1, 2, 3), (2, 1), 1), ((2, 3), (1, 2), NO_LEADER), ((1, 2), (2, 3), NO_LEADER)]
)
def test_preferred_replica_leads_if_it_is_alive_and_in_sync(
    live: tuple[int, ...], isr: tuple[int, ...], leader: int | None
) -> None:
    outcome = elections.for_preferred(context(live, (1, 2, 3)), P, state(2, *isr))
    assert (outcome.leadership.leader if outcome.leadership else None) == leader
    if outcome.leadership:
        assert outcome.leadership.isr == isr


def test_reassigned_partition_is_led_by_one_of_its_target() -> None:
    moving = context((1, 2, 3, 4), (3, 4, 1), adding=(3, 4), removing=(1,))
    outcome = elections.for_reassignment(moving, P, state(1, 1, 4, 3))
    assert outcome.leadership is not None
    assert (outcome.leadership.leader, outcome.leadership.isr) == (3, (1, 4, 3))
    assert outcome.recipients == (3, 4)
    assert elections.for_reassignment(moving, P, state(1, 1)).leadership is None


def test_broker_in_controlled_shutdown_loses_leadership_and_isr_but_gets_the_result() -> None:
    leaving = context((1, 2, 3), (1, 2, 3))
    leaving.shutting_down = {1, 2}
    outcome = elections.for_controlled_shutdown(leaving, P, state(1, 1, 2, 3))
    assert outcome.leadership is not None
    assert (outcome.leadership.leader, outcome.leadership.isr) == (3, (3,))
    assert outcome.recipients == (1, 2, 3)
    assert elections.for_controlled_shutdown(leaving, P, state(1, 1, 2)).leadership is None


def test_replica_in_a_failed_directory_cannot_lead() -> None:
    failing = context((1, 2), (1, 2))
    failing.offline_dirs[1] = {P}
    outcome = elections.for_offline(failing, P, state(1, 1, 2), unclean=False)
    assert outcome.leadership is not None and outcome.leadership.leader == 2
    assert not elections.can_lead(failing, P, state(2, 1, 2), 1)
