"""How a transaction ends: by a client's EndTxn, by a fence of the coordinator, and the completion after the markers.

Pure rules over `Transaction`: they return the next value, or raise `Refused` with Kafka's error code.

`transaction.version` 2 (KIP-890 part 2): every end raises the epoch, so that partitions refuse all requests in flight with the
old epoch. The markers have the raised epoch. A client may therefore be one epoch behind because an answer was lost; only then
is its request a retry.
"""

from collections.abc import Callable
from typing import NamedTuple

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from barnabas.broker.transactions.state import (
    ENDS_WITH_BUMP,
    LAST_CLIENT_EPOCH,
    NO_IDENTITY,
    Identity,
    Transaction,
    TransactionState,
)

#: Returns a producer id that no producer has had, or None if there is none at the moment.
TakeId = Callable[[], int | None]


class EndAnswer(NamedTuple):
    error: ErrorCode
    #: The client's producer id and epoch from now on (EndTxn v5).
    identity: Identity = NO_IDENTITY


def fresh_id(take_id: TakeId) -> int:
    producer_id = take_id()
    if producer_id is None:
        raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "waiting for a block of producer ids")
    return producer_id


def not_current_client(txn: Transaction, identity: Identity) -> Refused:
    """Return the error for a producer that is not the current client."""
    if identity.producer_id not in (txn.client.producer_id, txn.producer_id):
        return Refused(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"{txn.transactional_id} belongs to producer {txn.client.producer_id}, not to {identity.producer_id}",
        )
    return Refused(
        ErrorCode.PRODUCER_FENCED,
        f"{txn.transactional_id} belongs to {txn.client}; {identity} was replaced by a newer producer",
    )


def end(
    txn: Transaction, identity: Identity, *, commit: bool, client_version: int, take_id: TakeId, now_ms: int
) -> Transaction | EndAnswer:
    """Return the decided transaction, or the answer to a client that repeats a request which is done."""
    if client_version >= ENDS_WITH_BUMP:
        return _end_with_bump(txn, identity, commit=commit, take_id=take_id, now_ms=now_ms)
    if identity != txn.client:
        raise not_current_client(txn, identity)
    if txn.state is TransactionState.ONGOING:
        return _prepare(txn, commit=commit, client_version=client_version, take_id=take_id, now_ms=now_ms)
    return _answer_decided(txn, commit=commit)


def _end_with_bump(
    txn: Transaction, identity: Identity, *, commit: bool, take_id: TakeId, now_ms: int
) -> Transaction | EndAnswer:
    if txn.is_end_retry_of(identity):
        if not (txn.state is TransactionState.COMPLETE_ABORT and txn.client.epoch > LAST_CLIENT_EPOCH) or commit:
            return _answer_decided(txn, commit=commit)
        # A fence took the last epoch, which no client may have. Another abort gives the client a new producer id.
        return _prepare(txn, commit=False, client_version=ENDS_WITH_BUMP, take_id=take_id, now_ms=now_ms)
    if txn.state.is_prepared:
        # The client has its next identity already, but the markers are not written yet.
        if identity == txn.successor:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        raise not_current_client(txn, identity)
    if identity != txn.client:
        raise not_current_client(txn, identity)
    if txn.state is not TransactionState.ONGOING and commit:
        raise _cannot_end(txn, commit=commit)
    return _prepare(txn, commit=commit, client_version=ENDS_WITH_BUMP, take_id=take_id, now_ms=now_ms)


def _answer_decided(txn: Transaction, *, commit: bool) -> EndAnswer:
    state = txn.state
    decided = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    deciding = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    if state is decided:
        return EndAnswer(ErrorCode.NONE, txn.client)
    if state is deciding:
        raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    raise _cannot_end(txn, commit=commit)


def _cannot_end(txn: Transaction, *, commit: bool) -> Refused:
    what = "committed" if commit else "aborted"
    return Refused(
        ErrorCode.INVALID_TXN_STATE, f"{txn.transactional_id} is {txn.state.kafka_name}, and cannot be {what}"
    )


def _raise(epoch: int) -> int:
    """Return the next epoch, but never one past the last.

    A client may have the last epoch from a coordinator that gave it out, as Kafka 4 does after a fence. Its transaction then
    ends with the same epoch, and the next one gets a new producer id.
    """
    return min(epoch, LAST_CLIENT_EPOCH) + 1


def _prepare(txn: Transaction, *, commit: bool, client_version: int, take_id: TakeId, now_ms: int) -> Transaction:
    """Decide the transaction. `epoch` becomes that of the markers, `successor` the client's next identity."""
    epoch, next_id, next_epoch = txn.epoch, txn.next_producer_id, txn.next_epoch
    if client_version >= ENDS_WITH_BUMP:
        client = txn.client
        is_used_up = client.epoch >= LAST_CLIENT_EPOCH
        if is_used_up:
            next_id, next_epoch = fresh_id(take_id), NO_PRODUCER_EPOCH
        if client.producer_id == txn.producer_id:
            # Raise above every epoch that was given out for this producer id.
            epoch = _raise(client.epoch)
            if not is_used_up:
                next_id, next_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        else:
            # The client has another id because the epochs of this one were used up.
            epoch = LAST_CLIENT_EPOCH + 1
            if not is_used_up:
                next_epoch = client.epoch + 1
    return txn.to(
        TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
        now_ms=now_ms,
        epoch=epoch,
        next_producer_id=next_id,
        next_epoch=next_epoch,
        # A client may abort before it adds any partition; a transaction that ends must have begun.
        start_ms=txn.start_ms if txn.state is TransactionState.ONGOING else now_ms,
        client_version=client_version,
    )


def fence(txn: Transaction, *, server_version: int, now_ms: int) -> Transaction:
    """Abort an open transaction by the coordinator: it has timed out, or a new producer has come.

    The epoch rises by one, above every epoch of a client. No client ever gets it: clients ask again for an epoch of their own.
    """
    next_id, next_epoch = txn.next_producer_id, txn.next_epoch
    epoch = _raise(txn.epoch)
    if txn.has_kept:
        if txn.next_producer_id == txn.producer_id:
            epoch = txn.next_epoch + 1
            next_id, next_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        else:
            epoch = LAST_CLIENT_EPOCH + 1
            next_epoch += 1
    fenced = txn.to(
        TransactionState.PREPARE_EPOCH_FENCE,
        now_ms=now_ms,
        epoch=epoch,
        next_producer_id=next_id,
        next_epoch=next_epoch,
    )
    return fenced.to(TransactionState.PREPARE_ABORT, now_ms=now_ms, client_version=server_version)


def complete(txn: Transaction, *, now_ms: int) -> Transaction:
    """Complete the transaction after all markers are written: the client's next identity becomes current."""
    successor = txn.successor
    has_new_id = successor.producer_id != txn.producer_id
    return txn.to(
        TransactionState.COMPLETE_COMMIT
        if txn.state is TransactionState.PREPARE_COMMIT
        else TransactionState.COMPLETE_ABORT,
        now_ms=now_ms,
        producer_id=successor.producer_id,
        epoch=successor.epoch,
        previous_producer_id=txn.producer_id if has_new_id else txn.previous_producer_id,
        next_producer_id=NO_PRODUCER_ID,
        next_epoch=NO_PRODUCER_EPOCH,
        partitions=(),
    )
