"""InitProducerId of a transactional id: it makes the sender the current producer, and decides on the former one's transaction.

Pure rules over `Transaction`. A new producer raises the epoch, which fences the old producer. An open transaction is aborted
first (the client gets CONCURRENT_TRANSACTIONS and asks again), or kept if a two-phase commit asks for it (KIP-939). A client
that sends its own id and epoch wants to continue after an error (KIP-360): it is refused if it was fenced.
"""

from typing import NamedTuple

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from barnabas.broker.transactions.ending import TakeId, fence, fresh_id
from barnabas.broker.transactions.state import (
    ENDS_WITHOUT_BUMP,
    LAST_CLIENT_EPOCH,
    NO_IDENTITY,
    NO_TIME,
    NO_TIMEOUT_MS,
    Identity,
    Transaction,
    TransactionState,
)


class InitRequest(NamedTuple):
    transactional_id: str
    timeout_ms: int
    #: The client's current identity, if the request has it (KIP-360).
    expected: Identity | None = None
    enable_two_phase: bool = False
    keep_prepared: bool = False


class InitAnswer(NamedTuple):
    error: ErrorCode
    identity: Identity = NO_IDENTITY
    #: Identity of the transaction that was kept.
    ongoing: Identity = NO_IDENTITY


class Bump(NamedTuple):
    """The last epoch bump that a client asked for; a retry gets the same answer. It is lost in a fail-over."""

    before: Identity
    after: Identity


class Initialized(NamedTuple):
    txn: Transaction
    answer: InitAnswer
    bump: Bump | None = None


def initialize(
    txn: Transaction | None,
    request: InitRequest,
    *,
    last_bump: Bump | None,
    server_version: int,
    take_id: TakeId,
    now_ms: int,
) -> Initialized:
    """Return the transactional id after the request, and the answer to send once that is committed."""
    timeout_ms = NO_TIMEOUT_MS if request.enable_two_phase else request.timeout_ms
    if txn is None:
        created = Transaction(
            transactional_id=request.transactional_id,
            producer_id=fresh_id(take_id),
            timeout_ms=timeout_ms,
            update_ms=now_ms,
        )
        return _renew(created, Identity(created.producer_id, 0), timeout_ms=timeout_ms, now_ms=now_ms)
    expected = request.expected
    if txn.state.is_prepared:
        if expected is not None and expected.producer_id not in (txn.producer_id, txn.successor.producer_id):
            raise _fenced(txn, expected)
        raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    is_retry = txn.state is TransactionState.EMPTY and last_bump == Bump(expected or NO_IDENTITY, txn.client)
    if expected is not None and not (is_retry or expected == txn.client or txn.is_end_retry_of(expected)):
        raise _fenced(txn, expected)
    if txn.state is TransactionState.ONGOING:
        if request.keep_prepared:
            return _keep(txn, timeout_ms=timeout_ms, take_id=take_id, now_ms=now_ms)
        aborting = fence(txn, server_version=server_version, now_ms=now_ms)
        return Initialized(aborting, InitAnswer(ErrorCode.CONCURRENT_TRANSACTIONS))
    if is_retry:
        return _renew(txn, txn.client, timeout_ms=timeout_ms, now_ms=now_ms, bump=last_bump)
    after = _next(txn.client, take_id)
    bump = None if expected is None else Bump(expected, after)
    return _renew(txn, after, timeout_ms=timeout_ms, now_ms=now_ms, bump=bump)


def _next(client: Identity, take_id: TakeId) -> Identity:
    if client.epoch >= LAST_CLIENT_EPOCH:
        return Identity(fresh_id(take_id), 0)
    return Identity(client.producer_id, client.epoch + 1)


def _renew(
    txn: Transaction, identity: Identity, *, timeout_ms: int, now_ms: int, bump: Bump | None = None
) -> Initialized:
    has_new_id = identity.producer_id != txn.producer_id
    renewed = txn.to(
        TransactionState.EMPTY,
        now_ms=now_ms,
        producer_id=identity.producer_id,
        epoch=identity.epoch,
        previous_producer_id=txn.producer_id if has_new_id else txn.previous_producer_id,
        next_producer_id=NO_PRODUCER_ID,
        next_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        start_ms=NO_TIME,
        client_version=ENDS_WITHOUT_BUMP,
    )
    return Initialized(renewed, InitAnswer(ErrorCode.NONE, identity), bump)


def _keep(txn: Transaction, *, timeout_ms: int, take_id: TakeId, now_ms: int) -> Initialized:
    """Keep the transaction of a two-phase client that restarted: the client gets a new identity to end it with."""
    client = _next(txn.client, take_id)
    kept = txn.to(
        TransactionState.ONGOING,
        now_ms=now_ms,
        next_producer_id=client.producer_id,
        next_epoch=client.epoch,
        timeout_ms=timeout_ms,
    )
    return Initialized(kept, InitAnswer(ErrorCode.NONE, client, ongoing=txn.identity))


def _fenced(txn: Transaction, expected: Identity) -> Refused:
    return Refused(
        ErrorCode.PRODUCER_FENCED, f"{txn.transactional_id} belongs to {txn.client}; the request comes from {expected}"
    )
