"""What a coordinator's machine takes and returns: records, effects, results. Pure.

An operation returns a `Result`. The runtime (`coordinator`) writes its records, replays them, and carries out its effects.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from barnabas.base.errors import Refused

if TYPE_CHECKING:
    import asyncio


class KeyValue(NamedTuple):
    """A record of an internal topic; no value is a tombstone."""

    key: bytes
    value: bytes | None


class Producer(NamedTuple):
    """Records written inside a transaction carry their producer; outside of one there is none."""

    producer_id: int
    producer_epoch: int


NO_PRODUCER: Final = Producer(-1, -1)


class ReplayedRecord(NamedTuple):
    """A record as a machine sees it, just written or read back from the log."""

    record: KeyValue
    offset: int
    timestamp_ms: int
    producer: Producer = NO_PRODUCER


class Marker(NamedTuple):
    """The end of a transaction, in the log between the records."""

    producer: Producer
    is_commit: bool


class SetTimer(NamedTuple):
    """Call the machine's `timer_fired(key, now_ms)` after the delay; a timer of the same key is replaced."""

    key: Hashable
    delay_ms: int


class CancelTimer(NamedTuple):
    key: Hashable


class Respond(NamedTuple):
    """The answer to an operation that was kept waiting. Several results may carry one for different tickets."""

    ticket: "Ticket"
    response: object


class Tell(NamedTuple):
    """A message to the driver outside (send markers, elect, …): handed to `on_effect` when the records are committed."""

    message: object


Effect = SetTimer | CancelTimer | Respond | Tell
R = TypeVar("R")
#: Called with the answer, or with what kept it from coming.
Reply = Callable[[R | None, Refused | None], None]


@dataclass(slots=True)
class Result(Generic[R]):
    """What an operation wants to happen."""

    records: list[KeyValue] = field(default_factory=list)
    #: None: the answer comes later, by `Respond`.
    response: R | None = None
    effects: list[Effect] = field(default_factory=list)
    #: Set for offsets committed inside a transaction.
    producer: Producer = NO_PRODUCER
    #: Shows the log that this transaction was verified, where these records begin it in the partition (KIP-890).
    guard: object | None = None
    #: Goes on for the same ticket once the records are in the log and replayed.
    then: "Callable[[], Result[R]] | None" = None
    #: Called where the log refuses the records: takes back what was done to state that is not in the log, timers included.
    if_refused: "Callable[[], Result[None]] | None" = None


class Ticket:
    """Stands for an operation that waits for its answer. Compared by identity."""

    __slots__ = ("future", "reply")

    def __init__(self, future: "asyncio.Future[Any] | None" = None, reply: "Reply[Any] | None" = None) -> None:
        #: Both are None in tests that drive a machine without a runtime.
        self.future = future
        #: None once it was called.
        self.reply = reply


class Machine(Protocol):
    def replay(self, record: ReplayedRecord) -> None:
        """The only way in which hard state changes."""
        ...

    def replay_marker(self, marker: Marker, offset: int) -> None: ...

    def loaded(self, now_ms: int) -> Result[None]:
        """The whole log was replayed: set timers, expire what expired meanwhile."""
        ...

    def timer_fired(self, key: Hashable, now_ms: int) -> Result[None]: ...

    def unloaded(self) -> list[Ticket]:
        """Leadership is gone: returns those who still wait. They must look for the new coordinator."""
        ...
