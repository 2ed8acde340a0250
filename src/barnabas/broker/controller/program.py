"""What the parts of the controller's machine share: the context, the settings, the effects so far, and how to ask ZooKeeper.

A *program* is a generator that decides: it yields what it wants to know or write, and goes on with the answers. The
machine runs one at a time, so that its decisions are as serial as Kafka's. Pure.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from barnabas.base.errors import BarnabasError, Malformed
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.controller.context import ControllerContext
from barnabas.broker.controller.effects import Effect
from barnabas.broker.controller.journal import Journal
from barnabas.broker.controller.settings import ControllerSettings
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Get, Operation, Result
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration, LeaderAndIsr

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ZkStep:
    operations: tuple[Operation, ...]
    #: Writes only while this term lasts.
    guarded: bool
    #: What comes next can wait for brokers to answer.
    when_quiet: bool = False


Program = Generator[ZkStep, tuple[Result, ...], T]


class ControllerMoved(BarnabasError):
    """Another broker was elected. Thrown into a program whose guarded write was refused."""


@dataclass(slots=True)
class ControllerState:
    settings: ControllerSettings
    #: Ids for topics that have none.
    new_topic_id: Callable[[], TopicId]
    now_ms: Callable[[], int]
    context: ControllerContext = field(default_factory=ControllerContext)
    #: Effects of the event that is being worked on.
    out: list[Effect] = field(default_factory=list)
    #: Whether this broker is controller.
    is_active: bool = False
    #: What was decided lately: nobody but who looks inside reads it.
    journal: Journal = field(default_factory=Journal)

    def note(self, what: str, **details: Any) -> None:
        """A decision, for whoever looks inside."""
        self.journal.note(self.now_ms(), what, self.context.epoch, details)

    def emit(self, effect: Effect) -> None:
        self.out.append(effect)


def ask(operations: Iterable[Operation]) -> Program[tuple[Result, ...]]:
    """Answers to reads, and to writes that need no guard."""
    wanted = tuple(operations)
    if not wanted:
        return ()
    return (yield ZkStep(wanted, guarded=False))


def write(operations: Iterable[Operation]) -> Program[tuple[Result, ...]]:
    """Answers to writes that only the current controller may make."""
    wanted = tuple(operations)
    if not wanted:
        return ()
    return (yield ZkStep(wanted, guarded=True))


def until_quiet() -> Program[None]:
    """Send what was decided so far. Brokers may carry it out before they get what comes next."""
    yield ZkStep((), guarded=False, when_quiet=True)


def read_leadership(partitions: Sequence[TopicPartition]) -> Program[dict[TopicPartition, LeaderAndIsr]]:
    """Partition states as ZooKeeper has them now; those that have none are left out."""
    results = yield from ask(Get(paths.partition_state(each)) for each in partitions)
    found = {}
    for partition, result in zip(partitions, results, strict=True):
        state = leadership_of(partition, result)
        if state is not None:
            found[partition] = state
    return found


def registration_of(broker: int, result: Result) -> BrokerRegistration | None:
    """What a broker's znode says; None where there is none, or nobody can read it."""
    if not result.ok:
        return None
    try:
        return BrokerRegistration.decode(broker, result.data or b"")
    except Malformed as error:
        _log.error("%s", error)
        return None


def leadership_of(partition: TopicPartition, result: Result) -> LeaderAndIsr | None:
    """What a partition's state znode says; None where there is none, or nobody can read it. (Then it has no leader until
    somebody repairs or deletes the znode: writing over it might raise the dead.)"""
    if not result.ok or not result.data or result.stat is None:
        return None
    try:
        return LeaderAndIsr.decode(partition, result.data, result.stat.version)
    except Malformed as error:
        _log.error("%s", error)
        return None
