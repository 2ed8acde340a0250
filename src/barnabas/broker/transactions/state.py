"""The state of one transactional id: an immutable value, its states, and the legal transitions.

A transition makes a new value. The machine writes it to the log, and adopts it when it replays the log. Follows Kafka's
TransactionMetadata and, for the two identities of a kept transaction, KIP-939.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final, NamedTuple

from barnabas.base.errors import BrokenInvariant
from barnabas.base.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

#: The highest epoch that a client gets. The coordinator keeps one more, so that it can always fence a producer.
LAST_CLIENT_EPOCH: Final = 32766
#: Time-out of a two-phase commit, which never times out (KIP-939).
NO_TIMEOUT_MS: Final = 2**31 - 1
NO_TIME: Final = -1

#: `transaction.version` with which a client ended its transaction.
ENDS_WITHOUT_BUMP: Final = 0
ENDS_WITH_BUMP: Final = 2


class TransactionState(IntEnum):
    """The numbers are Kafka's: they are in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        """The name that DescribeTransactions and ListTransactions use."""
        return _NAMES[self]

    @property
    def is_prepared(self) -> bool:
        """Whether the transaction is decided, and its markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)

    @property
    def may_expire(self) -> bool:
        return self is TransactionState.EMPTY or self.is_complete


_NAMES: Final = {state: "".join(word.capitalize() for word in state.name.split("_")) for state in TransactionState}
STATES_BY_NAME: Final = {name: state for state, name in _NAMES.items()}

_S = TransactionState
#: From a state to its possible next states.
TRANSITIONS: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    # A TV2 client gets the next epoch by an abort without partitions (KIP-890 part 2).
    _S.EMPTY: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT, _S.PREPARE_EPOCH_FENCE}),
    _S.PREPARE_COMMIT: frozenset({_S.COMPLETE_COMMIT}),
    _S.PREPARE_ABORT: frozenset({_S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.COMPLETE_ABORT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    #: Never written: a step from ONGOING to PREPARE_ABORT within one operation.
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.PREPARE_ABORT}),
    #: Never written: an expired id leaves a tombstone.
    _S.DEAD: frozenset(),
}


class Identity(NamedTuple):
    """A producer's identity: its requests have it, and a higher epoch fences it."""

    producer_id: int
    epoch: int


NO_IDENTITY: Final = Identity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transactional id. Its record of `__transaction_state` has all of this."""

    transactional_id: str
    #: Producer id of the transaction in the partitions; also the client's, unless `next_epoch` is set.
    producer_id: int
    #: Epoch of `producer_id`; -1 until the first InitProducerId.
    epoch: int = NO_PRODUCER_EPOCH
    #: The producer id whose epochs were used up before this one.
    previous_producer_id: int = NO_PRODUCER_ID
    #: The producer id after the markers are written: the epochs are used up, or a new client keeps the open transaction.
    next_producer_id: int = NO_PRODUCER_ID
    #: The epoch for `next_producer_id`; -1: it starts at 0. If set, the client already has this identity (KIP-939).
    next_epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    #: Without duplicates, grouped by topic, in the record's order. May be empty while ONGOING: a client may add an empty list.
    partitions: tuple[TopicPartition, ...] = ()
    #: When the transaction began; -1 if none has begun since InitProducerId.
    start_ms: int = NO_TIME
    update_ms: int
    client_version: int = ENDS_WITHOUT_BUMP

    @property
    def identity(self) -> Identity:
        """The producer's identity in the partitions."""
        return Identity(self.producer_id, self.epoch)

    @property
    def client(self) -> Identity:
        """The producer from which the coordinator accepts requests."""
        if self.next_epoch != NO_PRODUCER_EPOCH:
            return Identity(self.next_producer_id, self.next_epoch)
        return self.identity

    @property
    def has_kept(self) -> bool:
        """Whether the client kept a transaction that another identity began."""
        return self.next_epoch != NO_PRODUCER_EPOCH

    @property
    def successor(self) -> Identity:
        """The client's identity once the markers are written."""
        if self.has_kept:
            return Identity(self.next_producer_id, self.next_epoch)
        if self.next_producer_id != NO_PRODUCER_ID:
            return Identity(self.next_producer_id, 0)
        return self.identity

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == NO_TIMEOUT_MS

    def is_end_retry_of(self, identity: Identity) -> bool:
        """Whether `identity` ended the last transaction with an epoch bump, and asks again because it got no answer."""
        if self.client_version < ENDS_WITH_BUMP or not (self.state.is_prepared or self.state.is_complete):
            return False
        if identity == Identity(self.producer_id, self.epoch - 1):
            return True
        if self.has_kept and identity == Identity(self.next_producer_id, self.next_epoch - 1):
            return True
        return self.epoch == 0 and identity == Identity(self.previous_producer_id, LAST_CLIENT_EPOCH)

    def to(self, state: TransactionState, *, now_ms: int, **changes: Any) -> "Transaction":
        """Return the value after a transition, which must be in the table."""
        if state not in TRANSITIONS[self.state]:
            raise BrokenInvariant(f"{self.transactional_id}: {self.state.kafka_name} cannot become {state.kafka_name}")
        changed = replace(self, state=state, update_ms=now_ms, **changes)
        changed.validate()
        return changed

    def validate(self) -> None:
        """Check what holds in every state that is written."""
        if self.producer_id < 0 or not 0 <= self.epoch <= LAST_CLIENT_EPOCH + 1:
            raise BrokenInvariant(f"{self.transactional_id}: producer {self.identity}")
        if self.state is TransactionState.ONGOING and self.start_ms < 0:
            raise BrokenInvariant(f"{self.transactional_id}: ongoing, but began at {self.start_ms}")
        if self.partitions and not (self.state.is_prepared or self.state in _WITH_PARTITIONS):
            raise BrokenInvariant(f"{self.transactional_id}: {self.state.kafka_name} with partitions")


_WITH_PARTITIONS: Final = (TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE)


def add_partitions(known: tuple[TopicPartition, ...], added: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
    """Return both without duplicates, grouped by topic: the order in a record."""
    topics: dict[str, dict[TopicPartition, None]] = {}
    for partition in (*known, *added):
        topics.setdefault(partition.topic, {})[partition] = None
    return tuple(partition for partitions in topics.values() for partition in partitions)
