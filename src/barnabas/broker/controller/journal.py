"""The latest decisions of the controller and their reasons, for operators. Pure: it only remembers, and little of it."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from barnabas.base.ids import TopicPartition
from barnabas.broker.controller.events import (
    AllocateProducerIds,
    AlterPartition,
    AlterReassignments,
    BrokerModified,
    BrokerRefuses,
    BrokersChanged,
    ControlledShutdown,
    ControllerChanged,
    ControllerRefuses,
    DeletionsChanged,
    ElectLeaders,
    Event,
    IsrChangesNotified,
    LeaderAndIsrAnswered,
    LogDirEventsNotified,
    PreferredElectionRequested,
    ReassignmentsRequested,
    RenewLeaderEpoch,
    SessionExpired,
    SessionRenewed,
    Startup,
    StopReplicaAnswered,
    TimerFired,
    TopicModified,
    TopicsChanged,
    UncleanElectionEnabled,
    UpdateMetadataAnswered,
)
from barnabas.broker.zookeeper_client.znodes import LeaderAndIsr

DECISIONS_KEPT: Final = 300
#: Partitions or topics that one decision names; it only counts the rest.
NAMED_MAX: Final = 20


class Decision(NamedTuple):
    at_ms: int
    #: `leaders elected`, `brokers gone`, …
    what: str
    #: The event that led to the decision.
    why: str
    controller_epoch: int
    details: Mapping[str, Any]


class Journal:
    """Owner: the controller's machine. Bounded: the oldest decisions are dropped."""

    def __init__(self) -> None:
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        #: The event that the machine is handling.
        self.cause: Event | None = None

    def note(self, at_ms: int, what: str, epoch: int, details: Mapping[str, Any]) -> None:
        self.decisions.append(Decision(at_ms, what, why(self.cause), epoch, details))


def changes(
    before: Mapping[TopicPartition, LeaderAndIsr | None], after: Mapping[TopicPartition, LeaderAndIsr]
) -> dict[str, Any]:
    """Return leaders and ISRs before and after, of the first few partitions, and the number of partitions."""
    named: list[dict[str, Any]] = []
    for partition, now in after.items():
        if len(named) == NAMED_MAX:
            break
        was = before.get(partition)
        named.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "leader_before": None if was is None else was.leader,
                "leader": now.leader,
                "isr_before": None if was is None else list(was.isr),
                "isr": list(now.isr),
                "leader_epoch": now.leader_epoch,
            }
        )
    return {"count": len(after), "partitions": named}


def why(event: Event | None) -> str:
    """Describe the event for an operator."""
    match event:
        case BrokerRefuses(broker):
            return f"the port of broker {broker} refuses connections"
        case ControllerRefuses(broker):
            return f"the port of broker {broker}, which was controller, refuses connections"
        case ControlledShutdown(broker):
            return f"broker {broker} asked for a controlled shutdown"
        case AlterPartition(broker):
            return f"broker {broker}, which leads, proposed it (AlterPartition)"
        case LogDirEventsNotified() | LeaderAndIsrAnswered():
            return "a broker reported a failed log directory"
        case TopicModified(topic):
            return f"/brokers/topics/{topic} changed"
        case _:
            return _CAUSES.get(type(event), type(event).__name__)


_CAUSES: Final[dict[type[Any], str]] = {
    Startup: "the broker started",
    SessionRenewed: "the broker has a new ZooKeeper session",
    SessionExpired: "the ZooKeeper session expired",
    ControllerChanged: "/controller changed",
    BrokersChanged: "/brokers/ids changed",
    BrokerModified: "a broker changed its registration",
    TopicsChanged: "/brokers/topics changed",
    DeletionsChanged: "/admin/delete_topics changed",
    IsrChangesNotified: "/isr_change_notification changed",
    ReassignmentsRequested: "/admin/reassign_partitions was written",
    PreferredElectionRequested: "/admin/preferred_replica_election was written",
    UpdateMetadataAnswered: "a broker that was taken for dead answered",
    StopReplicaAnswered: "replicas were deleted",
    TimerFired: "auto.leader.rebalance.enable: it was time to look at the balance",
    UncleanElectionEnabled: "unclean.leader.election.enable became true",
    ElectLeaders: "a client asked for it (ElectLeaders)",
    RenewLeaderEpoch: "a mirror was truncated, as its source was",
    AlterReassignments: "a client asked for it (AlterPartitionReassignments)",
    AllocateProducerIds: "a broker asked for producer ids",
}
