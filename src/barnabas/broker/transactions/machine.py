"""The transactional ids of one partition of `__transaction_state`: the operations on them, and their effects.

A pure machine. Operations return a `Result`: the record to write, the answer, effects. Only `replay` changes the state. Every
operation has an answer, also an error: an error may depend on uncommitted records too, so it waits for their commit. Follows
Kafka's TransactionCoordinator and TransactionStateManager. Kafka blocks a second request while the first one is replicated
(CONCURRENT_TRANSACTIONS); this machine continues from the written state, and the answers come in order.
"""

from collections.abc import Callable, Collection, Hashable
from typing import Final, NamedTuple, TypeVar

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import TopicPartition
from barnabas.broker.runtime.machine import (
    CancelTimer,
    KeyValue,
    Marker,
    ReplayedRecord,
    Result,
    SendToDriver,
    SetTimer,
    Ticket,
)
from barnabas.broker.transactions import records
from barnabas.broker.transactions.ending import EndAnswer, TakeId, complete, end, fence, not_current_client
from barnabas.broker.transactions.initializing import Bump, InitAnswer, InitRequest, initialize
from barnabas.broker.transactions.settings import TransactionSettings
from barnabas.broker.transactions.state import (
    ENDS_WITHOUT_BUMP,
    LAST_CLIENT_EPOCH,
    Identity,
    Transaction,
    TransactionState,
    add_partitions,
)

R = TypeVar("R")

EXPIRY: Final = "expiry"
#: Tombstones in one append: far fewer than fit into a batch.
EXPIRED_AT_ONCE_MAX: Final = 1000
EXPIRED_BYTES_MAX: Final = 256 * 1024


class TimeoutKey(NamedTuple):
    """The timer of an open transaction."""

    transactional_id: str


class SendMarkers(NamedTuple):
    """The decision is committed: write a marker to each partition, then `complete`."""

    transactional_id: str
    #: Producer id and epoch of the markers.
    identity: Identity
    is_commit: bool
    partitions: tuple[TopicPartition, ...]
    client_version: int


class ListFilter(NamedTuple):
    """The filters of ListTransactions; an empty value or None does not filter."""

    states: frozenset[TransactionState] | None = None
    producer_ids: frozenset[int] = frozenset()
    duration_ms: int = -1
    matches: Callable[[str], bool] | None = None


class TransactionMachine:
    def __init__(
        self,
        *,
        settings: Callable[[], TransactionSettings],
        transaction_version: Callable[[], int],
    ) -> None:
        """`transaction_version`: 2 if every broker of the cluster knows KIP-890 part 2, 0 in a mixed cluster."""
        self._settings = settings
        self._transaction_version = transaction_version
        self._transactions: dict[str, Transaction] = {}
        #: Soft state: after a fail-over a retry is refused as fenced, as in Kafka.
        self._bumps: dict[str, Bump] = {}

    # -- queries ------------------------------------------------------------------------------------------------

    @property
    def transactions(self) -> dict[str, Transaction]:
        """Transactions by id. Callers must not change them."""
        return self._transactions

    def count(self, state: TransactionState) -> int:
        """Return the number of transactional ids in a state."""
        return sum(txn.state is state for txn in self._transactions.values())

    def get(self, transactional_id: str) -> Transaction | None:
        return self._transactions.get(transactional_id)

    def select(self, wanted: ListFilter, now_ms: int) -> list[Transaction]:
        return [txn for txn in self._transactions.values() if _is_wanted(txn, wanted, now_ms)]

    # -- replay -------------------------------------------------------------------------------------------------------

    def replay(self, record: ReplayedRecord) -> None:
        transactional_id = records.decode_key(record.record.key)
        if transactional_id is None:
            return  # a newer Kafka wrote it before a downgrade
        value = record.record.value
        if value is None:
            self._transactions.pop(transactional_id, None)
            self._bumps.pop(transactional_id, None)
        else:
            self._transactions[transactional_id] = records.decode_transaction(transactional_id, value)

    def replay_marker(self, marker: Marker, offset: int) -> None:
        """No transaction writes to this topic, so a marker in it has no meaning."""

    def loaded(self, now_ms: int) -> Result[None]:
        """Finish transactions that the previous coordinator decided, and set the timers of open ones."""
        result = Result[None]()
        for txn in self._transactions.values():
            if txn.state.is_prepared:
                result.effects.append(SendToDriver(_markers_of(txn)))
            elif txn.state is TransactionState.ONGOING:
                self._watch(result, txn, now_ms)
        result.effects.append(SetTimer(EXPIRY, self._settings().expired_cleanup_interval_ms))
        return result

    def unloaded(self) -> list[Ticket]:
        """Return no ticket: every operation is answered at once, so none waits."""
        return []

    # -- operations of clients ----------------------------------------------------------------------------------------

    def init_producer_id(self, request: InitRequest, take_id: TakeId, now_ms: int) -> Result[InitAnswer]:
        try:
            self._check_init(request)
            txn = self._transactions.get(request.transactional_id)
            initialized = initialize(
                txn,
                request,
                last_bump=self._bumps.get(request.transactional_id),
                server_version=self._transaction_version(),
                take_id=take_id,
                now_ms=now_ms,
            )
        except Refused as refusal:
            return Result(response=InitAnswer(refusal.code))
        # If the append is refused, `after` is not the client's identity, and the entry has no effect.
        if initialized.bump is None:
            self._bumps.pop(request.transactional_id, None)
        else:
            self._bumps[request.transactional_id] = initialized.bump
        result = self._write(initialized.txn, initialized.answer)
        if initialized.txn.state.is_prepared:
            self._announce(result, initialized.txn)
        elif initialized.txn.state is TransactionState.ONGOING:
            self._watch(result, initialized.txn, now_ms)
        return result

    def _check_init(self, request: InitRequest) -> None:
        settings = self._settings()
        if request.enable_two_phase or request.keep_prepared:
            if not settings.two_phase_commit_enable or self._transaction_version() < 2:
                raise Refused(
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "two-phase commit needs transaction.two.phase.commit.enable, and that every broker knows it",
                )
            if request.enable_two_phase:
                return
        if not 0 < request.timeout_ms <= settings.transaction_max_timeout_ms:
            raise Refused(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"{request.timeout_ms} ms is not valid: transaction.max.timeout.ms is {settings.transaction_max_timeout_ms}",
            )

    def add_partitions(
        self,
        transactional_id: str,
        identity: Identity,
        partitions: Collection[TopicPartition],
        now_ms: int,
        *,
        client_version: int = ENDS_WITHOUT_BUMP,
    ) -> Result[ErrorCode]:
        """AddPartitionsToTxn and AddOffsetsToTxn: the first call begins the transaction. As in Kafka, the list may be empty."""
        try:
            txn = self._require_for_add(transactional_id, identity)
        except Refused as refusal:
            return Result(response=refusal.code)
        is_open = txn.state is TransactionState.ONGOING
        if is_open and set(partitions).issubset(txn.partitions):
            return Result(response=ErrorCode.NONE)
        grown = txn.to(
            TransactionState.ONGOING,
            now_ms=now_ms,
            partitions=add_partitions(txn.partitions, partitions),
            start_ms=txn.start_ms if is_open else now_ms,
            client_version=client_version,
        )
        result = self._write(grown, ErrorCode.NONE)
        if not is_open:
            self._watch(result, grown, now_ms)
        return result

    def _require_for_add(self, transactional_id: str, identity: Identity) -> Transaction:
        txn = self._transactions.get(transactional_id)
        if txn is None:
            raise Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"there is no transactional id {transactional_id}")
        if txn.state.is_prepared:
            if identity in (txn.identity, txn.successor):
                raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
            raise not_current_client(txn, identity)
        if identity != txn.client:
            raise not_current_client(txn, identity)
        if txn.has_kept:
            raise Refused(
                ErrorCode.INVALID_TXN_STATE,
                f"{transactional_id} has kept a prepared transaction, which can only be ended",
            )
        return txn

    def verify_partitions(
        self, transactional_id: str, identity: Identity, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Check whether the producer's open transaction has these partitions (KIP-890 part 1). Changes nothing."""
        try:
            txn = self._require_for_add(transactional_id, identity)
        except Refused as refusal:
            code = refusal.code
            if code is ErrorCode.INVALID_TXN_STATE:
                code = ErrorCode.TRANSACTION_ABORTABLE
            return dict.fromkeys(partitions, code)
        return {
            partition: ErrorCode.NONE if partition in txn.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def end(
        self,
        transactional_id: str,
        identity: Identity,
        take_id: TakeId,
        now_ms: int,
        *,
        commit: bool,
        client_version: int,
    ) -> Result[EndAnswer]:
        """EndTxn: the answer comes when the decision is committed; the markers follow.

        Only the version of the request decides whether the epoch is raised. A client that asked for that starts its sequences
        at 0 again, even if the cluster was downgraded since its transaction began.
        """
        txn = self._transactions.get(transactional_id)
        if txn is None:
            return Result(response=EndAnswer(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
        try:
            decided = end(txn, identity, commit=commit, client_version=client_version, take_id=take_id, now_ms=now_ms)
        except Refused as refusal:
            return Result(response=EndAnswer(refusal.code))
        if isinstance(decided, EndAnswer):
            return Result(response=decided)
        result = self._write(decided, EndAnswer(ErrorCode.NONE, decided.successor))
        self._announce(result, decided)
        return result

    # -- completion and timers -------------------------------------------------------------------------------------------------

    def complete(self, transactional_id: str, identity: Identity, now_ms: int) -> Result[ErrorCode]:
        """Complete a transaction whose markers are all written. Calling this twice does no harm."""
        txn = self._transactions.get(transactional_id)
        if txn is None or not txn.state.is_prepared or txn.identity != identity:
            return Result(response=ErrorCode.INVALID_TXN_STATE)
        return self._write(complete(txn, now_ms=now_ms), ErrorCode.NONE)

    def timer_fired(self, key: Hashable, now_ms: int) -> Result[None]:
        if key == EXPIRY:
            return self._expire(now_ms)
        assert isinstance(key, TimeoutKey)
        result = Result[None]()
        txn = self._transactions.get(key.transactional_id)
        if txn is None or txn.state is not TransactionState.ONGOING or txn.is_two_phase:
            return result
        if txn.start_ms <= now_ms < txn.start_ms + txn.timeout_ms:
            self._watch(result, txn, now_ms)
            return result
        aborting = fence(txn, server_version=self._transaction_version(), now_ms=now_ms)
        result.records.append(self._record(aborting))
        result.effects.append(SendToDriver(_markers_of(aborting)))
        return result

    def _expire(self, now_ms: int) -> Result[None]:
        """Write tombstones for transactional ids that were not used for `transactional.id.expiration.ms`."""
        settings = self._settings()
        limit_ms = now_ms - settings.transactional_id_expiration_ms
        result = Result[None]()
        size = 0
        delay_ms = settings.expired_cleanup_interval_ms
        for txn in self._transactions.values():
            if not txn.state.may_expire or txn.update_ms > limit_ms:
                continue
            record = records.tombstone(txn.transactional_id)
            size += len(record.key)
            if result.records and (len(result.records) == EXPIRED_AT_ONCE_MAX or size > EXPIRED_BYTES_MAX):
                delay_ms = 0
                break
            result.records.append(record)
        result.effects.append(SetTimer(EXPIRY, delay_ms))
        return result

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _record(self, txn: Transaction) -> KeyValue:
        version = records.value_version(self._transaction_version())
        if txn.next_producer_id >= 0 or txn.client_version != ENDS_WITHOUT_BUMP:
            version = records.TAGGED_VALUE  # only this version has these fields
        return records.encode_transaction(txn, version)

    def _write(self, txn: Transaction, response: R) -> Result[R]:
        return Result(records=[self._record(txn)], response=response)

    def _announce(self, result: Result[R], txn: Transaction) -> None:
        result.effects.append(CancelTimer(TimeoutKey(txn.transactional_id)))
        result.effects.append(SendToDriver(_markers_of(txn)))

    def _watch(self, result: Result[R], txn: Transaction, now_ms: int) -> None:
        key = TimeoutKey(txn.transactional_id)
        if txn.is_two_phase:
            result.effects.append(CancelTimer(key))
        else:
            # A start in the future comes from another clock that was ahead, or this clock was set back. Then the time-out
            # starts now: readers must not wait until the clock has caught up.
            remaining_ms = min(txn.start_ms + txn.timeout_ms - now_ms, txn.timeout_ms)
            result.effects.append(SetTimer(key, max(0, remaining_ms)))


def _markers_of(txn: Transaction) -> SendMarkers:
    return SendMarkers(
        txn.transactional_id,
        txn.identity,
        txn.state is TransactionState.PREPARE_COMMIT,
        txn.partitions,
        # With the last epoch, the records may have the same epoch as the marker (see `ending`).
        txn.client_version if txn.epoch <= LAST_CLIENT_EPOCH else ENDS_WITHOUT_BUMP,
    )


def _is_wanted(txn: Transaction, wanted: ListFilter, now_ms: int) -> bool:
    if wanted.producer_ids and txn.producer_id not in wanted.producer_ids:
        return False
    if wanted.states is not None and txn.state not in wanted.states:
        return False
    if wanted.duration_ms >= 0 and now_ms - txn.start_ms <= wanted.duration_ms:
        return False
    return wanted.matches is None or wanted.matches(txn.transactional_id)
