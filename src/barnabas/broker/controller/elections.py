"""The ways to choose the next leader, as functions of the context. Pure.

Each takes the next in-sync replica of the replica list. They differ in the replicas that may lead, and in the resulting ISR.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from barnabas.base.ids import TopicPartition
from barnabas.broker.controller.context import ControllerContext
from barnabas.broker.zookeeper_client.znodes import LeaderAndIsr, LeaderRecoveryState


class Strategy(Enum):
    #: The leader is gone, or the partition never had one.
    OFFLINE = "OfflinePartition"
    #: As OFFLINE, but an operator asked for an unclean election.
    OFFLINE_UNCLEAN = "OfflinePartition (unclean)"
    #: The replicas have moved.
    REASSIGN = "ReassignPartition"
    #: Leadership goes back to the first replica of the list.
    PREFERRED = "PreferredReplica"
    #: The leader asks for another epoch because it has truncated its log.
    RENEWAL = "RenewedEpoch"
    #: The leader is about to stop.
    CONTROLLED_SHUTDOWN = "ControlledShutdown"


@dataclass(frozen=True, slots=True)
class Outcome:
    #: None: no replica can lead.
    leadership: LeaderAndIsr | None
    #: Brokers that get the result.
    recipients: tuple[int, ...]


def for_offline(
    context: ControllerContext, partition: TopicPartition, state: LeaderAndIsr, *, unclean: bool
) -> Outcome:
    """Choose the next live in-sync replica; with `unclean` any live one, which loses the records that only the others have.

    A suspect may be alive. A wrong guess must not lose records, so unclean elections wait until the suspect's session has
    ended.
    """
    replicas = context.assignment(partition).replicas
    live = tuple(each for each in replicas if context.is_online(each, partition))
    leader = next((each for each in live if each in state.isr), None)
    if leader is not None:
        isr = tuple(each for each in state.isr if each in live)
        return Outcome(state.with_leader(leader, isr), live)
    if unclean and live and context.suspects.keys().isdisjoint(state.isr):
        context.unclean_elections += 1
        elected = state.with_leader(live[0], (live[0],))
        return Outcome(replace(elected, recovery=LeaderRecoveryState.RECOVERING), live)
    return Outcome(None, live)


def for_reassignment(context: ControllerContext, partition: TopicPartition, state: LeaderAndIsr) -> Outcome:
    target = context.assignment(partition).target
    leader = next((each for each in target if context.is_online(each, partition) and each in state.isr), None)
    return Outcome(None if leader is None else state.with_leader(leader), target)


def for_preferred(context: ControllerContext, partition: TopicPartition, state: LeaderAndIsr) -> Outcome:
    replicas = context.assignment(partition).replicas
    if replicas and can_lead(context, partition, state, replicas[0]):
        return Outcome(state.with_leader(replicas[0]), replicas)
    return Outcome(None, replicas)


def for_renewal(context: ControllerContext, partition: TopicPartition, state: LeaderAndIsr) -> Outcome:
    """Keep the leader and the ISR in the next epoch."""
    replicas = context.assignment(partition).replicas
    alive = tuple(each for each in replicas if context.is_online(each, partition))
    return Outcome(
        state.with_leader(state.leader) if can_lead(context, partition, state, state.leader) else None, alive
    )


def for_controlled_shutdown(context: ControllerContext, partition: TopicPartition, state: LeaderAndIsr) -> Outcome:
    replicas = context.assignment(partition).replicas
    alive = tuple(each for each in replicas if context.is_online(each, partition, or_shutting_down=True))
    leader = next((each for each in alive if each in state.isr and each not in context.shutting_down), None)
    isr = tuple(each for each in state.isr if each not in context.shutting_down)
    return Outcome(None if leader is None else state.with_leader(leader, isr), alive)


def can_lead(context: ControllerContext, partition: TopicPartition, state: LeaderAndIsr, broker: int) -> bool:
    return broker in state.isr and context.is_online(broker, partition)


Choice = Callable[[ControllerContext, TopicPartition, LeaderAndIsr], Outcome]

#: Strategies that need nothing but the context.
CHOICES: dict[Strategy, Choice] = {
    Strategy.REASSIGN: for_reassignment,
    Strategy.PREFERRED: for_preferred,
    Strategy.RENEWAL: for_renewal,
    Strategy.CONTROLLED_SHUTDOWN: for_controlled_shutdown,
}
