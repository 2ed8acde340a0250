"""The values that a coordinator's machine takes and returns: records, effects, results. Pure.

An operation returns a `Result`. The runtime (`coordinator`) writes its records, replays them, and carries out its effects.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from barnabas.base.errors import Refused

if TYPE_CHECKING:
    import asyncio


class KeyValue(NamedTuple):
    """A record of an internal topic; without a value it is a tombstone."""

    key: bytes
    value: bytes | None


class Producer(NamedTuple):
    """The producer of records inside a transaction; other records have none."""

    producer_id: int
    producer_epoch: int


NO_PRODUCER: Final = Producer(-1, -1)


class ReplayedRecord(NamedTuple):
    """A record that was just written, or read back from the log."""

    record: KeyValue
    offset: int
    timestamp_ms: int
    producer: Producer = NO_PRODUCER


class Marker(NamedTuple):
    """The end of a transaction, between the records of the log."""

    producer: Producer
    is_commit: bool


class SetTimer(NamedTuple):
    """Call the machine's `timer_fired(key, now_ms)` after the delay; replaces a timer with the same key."""

    key: Hashable
    delay_ms: int


class CancelTimer(NamedTuple):
    key: Hashable


class Respond(NamedTuple):
    """The answer to an operation that waited. One result may have several, for different tickets."""

    ticket: "Ticket"
    response: object


class SendToDriver(NamedTuple):
    """A message to the driver (send markers, elect, …): passed to `on_effect` when the records are committed."""

    message: object


Effect = SetTimer | CancelTimer | Respond | SendToDriver
R = TypeVar("R")
#: Called with the answer, or with the error.
Reply = Callable[[R | None, Refused | None], None]


@dataclass(slots=True)
class Result(Generic[R]):
    """The outcome of an operation."""

    records: list[KeyValue] = field(default_factory=list)
    #: None: the answer comes later, in a `Respond`.
    response: R | None = None
    effects: list[Effect] = field(default_factory=list)
    #: Set if the records are offsets that are committed inside a transaction.
    producer: Producer = NO_PRODUCER
    #: Proves to the log that this transaction was verified, if these records begin it in the partition (KIP-890).
    guard: object | None = None
    #: The next step for the same ticket, called once the records are in the log and replayed.
    then: "Callable[[], Result[R]] | None" = None
    #: Called if the log refuses the records: undoes changes of state that is not in the log, and of timers.
    if_refused: "Callable[[], Result[None]] | None" = None


class Ticket:
    """Stands for an operation that waits for its answer. Compared by identity."""

    __slots__ = ("future", "reply")

    def __init__(self, future: "asyncio.Future[Any] | None" = None, reply: "Reply[Any] | None" = None) -> None:
        #: Both are None in tests that drive a machine without a runtime.
        self.future = future
        #: None after it was called.
        self.reply = reply


class Machine(Protocol):
    def replay(self, record: ReplayedRecord) -> None:
        """Change the hard state, which nothing else may do."""
        ...

    def replay_marker(self, marker: Marker, offset: int) -> None: ...

    def loaded(self, now_ms: int) -> Result[None]:
        """The whole log was replayed: set timers, and expire what has expired in the meantime."""
        ...

    def timer_fired(self, key: Hashable, now_ms: int) -> Result[None]: ...

    def unloaded(self) -> list[Ticket]:
        """This broker does not lead any more: return the waiting operations, whose clients must look for the new
        coordinator."""
        ...
