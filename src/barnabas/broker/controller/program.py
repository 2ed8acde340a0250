"""What the parts of the controller's machine share: context, settings, collected effects, and access to ZooKeeper.

A *program* is a generator that decides: it yields what it wants to read or write, and goes on with the answers. The machine
runs one program at a time, so that its decisions are as serial as Kafka's. Pure.
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
    #: The operations are writes, and count only while this term lasts.
    guarded: bool
    #: The next step may wait until brokers have answered.
    when_quiet: bool = False


Program = Generator[ZkStep, tuple[Result, ...], T]


class ControllerMoved(BarnabasError):
    """Another broker was elected. Raised inside a program whose guarded write was refused."""


@dataclass(slots=True)
class ControllerState:
    settings: ControllerSettings
    #: Makes ids for topics that have none.
    new_topic_id: Callable[[], TopicId]
    now_ms: Callable[[], int]
    context: ControllerContext = field(default_factory=ControllerContext)
    #: Effects of the current event.
    out: list[Effect] = field(default_factory=list)
    #: Whether this broker is controller.
    is_active: bool = False
    #: The latest decisions, for operators. The machine never reads them.
    journal: Journal = field(default_factory=Journal)

    def note(self, what: str, **details: Any) -> None:
        """Write a decision to the journal."""
        self.journal.note(self.now_ms(), what, self.context.epoch, details)

    def emit(self, effect: Effect) -> None:
        self.out.append(effect)


def ask(operations: Iterable[Operation]) -> Program[tuple[Result, ...]]:
    """Read, or write without a guard; return the answers."""
    wanted = tuple(operations)
    if not wanted:
        return ()
    return (yield ZkStep(wanted, guarded=False))


def write(operations: Iterable[Operation]) -> Program[tuple[Result, ...]]:
    """Write only while this broker is controller; return the answers."""
    wanted = tuple(operations)
    if not wanted:
        return ()
    return (yield ZkStep(wanted, guarded=True))


def until_quiet() -> Program[None]:
    """Send the requests so far, and let brokers carry them out before they get the next ones."""
    yield ZkStep((), guarded=False, when_quiet=True)


def read_leadership(partitions: Sequence[TopicPartition]) -> Program[dict[TopicPartition, LeaderAndIsr]]:
    """Read partition states from ZooKeeper; leave out partitions that have none."""
    results = yield from ask(Get(paths.partition_state(each)) for each in partitions)
    found = {}
    for partition, result in zip(partitions, results, strict=True):
        state = leadership_of(partition, result)
        if state is not None:
            found[partition] = state
    return found


def registration_of(broker: int, result: Result) -> BrokerRegistration | None:
    """Decode a broker's znode; None if there is none, or if it cannot be read."""
    if not result.ok:
        return None
    try:
        return BrokerRegistration.decode(broker, result.data or b"")
    except Malformed as error:
        _log.error("[controller] %s", error)
        return None


def leadership_of(partition: TopicPartition, result: Result) -> LeaderAndIsr | None:
    """Decode a partition's state znode; None if there is none, or if it cannot be read.

    A partition with an unreadable state has no leader until an operator repairs or deletes the znode. Overwriting it might
    bring back an old leader.
    """
    if not result.ok or not result.data or result.stat is None:
        return None
    try:
        return LeaderAndIsr.decode(partition, result.data, result.stat.version)
    except Malformed as error:
        _log.error("[controller] %s", error)
        return None
