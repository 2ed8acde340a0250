"""What the coordinator knows of one transactional id: an immutable value, its states, and which may follow which.

A transition makes a new value; the machine writes it to the log and takes it over when the log replays it. Follows
Kafka's TransactionMetadata and, for the two identities of a kept transaction, KIP-939.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final, NamedTuple

from barnabas.base.errors import BrokenInvariant
from barnabas.base.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

#: The highest epoch that a client gets. One more is left for the coordinator, so that it can always fence a producer.
LAST_CLIENT_EPOCH: Final = 32766
#: The time-out of a transaction that never times out: prepared by a two-phase commit (KIP-939).
NO_TIMEOUT_MS: Final = 2**31 - 1
NO_TIME: Final = -1

#: `transaction.version`: how a client ended its transaction.
ENDS_WITHOUT_BUMP: Final = 0
ENDS_WITH_BUMP: Final = 2


class TransactionState(IntEnum):
    """Kafka's numbers: they are in the log."""

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
        """As DescribeTransactions and ListTransactions spell it."""
        return _NAMES[self]

    @property
    def is_prepared(self) -> bool:
        """Decided: the markers are on their way."""
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
#: From a state to those that may follow it.
TRANSITIONS: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    # An abort without partitions is how a TV2 client gets the next epoch (KIP-890 part 2).
    _S.EMPTY: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT, _S.PREPARE_EPOCH_FENCE}),
    _S.PREPARE_COMMIT: frozenset({_S.COMPLETE_COMMIT}),
    _S.PREPARE_ABORT: frozenset({_S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.COMPLETE_ABORT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    #: Never written: a step on the way from ONGOING to PREPARE_ABORT within one operation.
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.PREPARE_ABORT}),
    #: Never written either: what expires leaves a tombstone.
    _S.DEAD: frozenset(),
}


class Identity(NamedTuple):
    """Who a producer is: what its requests carry, and what fences it."""

    producer_id: int
    epoch: int


NO_IDENTITY: Final = Identity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transactional id. All of it is in its record of `__transaction_state`."""

    transactional_id: str
    #: Of the transaction in the partitions; also the client's, unless `next_epoch` says that the client has another.
    producer_id: int
    #: -1 until the first InitProducerId.
    epoch: int = NO_PRODUCER_EPOCH
    #: Before the epochs of the last producer id were used up.
    previous_producer_id: int = NO_PRODUCER_ID
    #: Takes over when the markers are written: the epochs are used up, or a new client keeps the open transaction.
    next_producer_id: int = NO_PRODUCER_ID
    #: The epoch to `next_producer_id`; -1: starts at 0. Set: the client already has this identity (KIP-939).
    next_epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    #: Each once, grouped by topic, in the order of the record. May be empty while ONGOING: a client may add an empty list.
    partitions: tuple[TopicPartition, ...] = ()
    #: When the transaction began; -1 where none has since InitProducerId.
    start_ms: int = NO_TIME
    update_ms: int
    client_version: int = ENDS_WITHOUT_BUMP

    @property
    def identity(self) -> Identity:
        """In the partitions."""
        return Identity(self.producer_id, self.epoch)

    @property
    def client(self) -> Identity:
        """The producer that the coordinator accepts requests from."""
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
        """Whether `identity` is the one that ended the last transaction with a bump, and had no answer."""
        if self.client_version < ENDS_WITH_BUMP or not (self.state.is_prepared or self.state.is_complete):
            return False
        if identity == Identity(self.producer_id, self.epoch - 1):
            return True
        if self.has_kept and identity == Identity(self.next_producer_id, self.next_epoch - 1):
            return True
        return self.epoch == 0 and identity == Identity(self.previous_producer_id, LAST_CLIENT_EPOCH)

    def to(self, state: TransactionState, *, now_ms: int, **changes: Any) -> "Transaction":
        """The value after a transition, which must be in the table."""
        if state not in TRANSITIONS[self.state]:
            raise BrokenInvariant(f"{self.transactional_id}: {self.state.kafka_name} cannot become {state.kafka_name}")
        changed = replace(self, state=state, update_ms=now_ms, **changes)
        changed.validate()
        return changed

    def validate(self) -> None:
        """What holds in every state that is written."""
        if self.producer_id < 0 or not 0 <= self.epoch <= LAST_CLIENT_EPOCH + 1:
            raise BrokenInvariant(f"{self.transactional_id}: producer {self.identity}")
        if self.state is TransactionState.ONGOING and self.start_ms < 0:
            raise BrokenInvariant(f"{self.transactional_id}: ongoing, but begun at {self.start_ms}")
        if self.partitions and not (self.state.is_prepared or self.state in _WITH_PARTITIONS):
            raise BrokenInvariant(f"{self.transactional_id}: {self.state.kafka_name} with partitions")


_WITH_PARTITIONS: Final = (TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE)


def add_partitions(known: tuple[TopicPartition, ...], added: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
    """Both, each once, topics together: the order in which a record keeps them."""
    topics: dict[str, dict[TopicPartition, None]] = {}
    for partition in (*known, *added):
        topics.setdefault(partition.topic, {})[partition] = None
    return tuple(partition for partitions in topics.values() for partition in partitions)
