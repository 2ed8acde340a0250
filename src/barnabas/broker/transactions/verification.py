"""Asks the coordinator, before a transaction's first batch is appended to a partition, whether the batch belongs to it
(KIP-890).

A batch that arrives after its transaction has ended would begin a transaction that no client ever ends. So the partition's
leader asks first with AddPartitionsToTxn: to verify, for clients that have added the partition themselves, or to add it, for
clients that leave this to the leader (`transaction.version` 2: Produce v12, TxnOffsetCommit v5). The verification begins with a
guard, which the append must show: a marker in between invalidates the guard.

Owner: the event loop. Requests for the same coordinator are sent together, one at a time. Callers with the same question and
the same guards share a request in flight. A caller with another guard came after a marker, and the shared answer may be older
than that marker.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from barnabas.base.errors import BarnabasError, ErrorCode
from barnabas.base.ids import NO_PRODUCER_ID, BrokerId, TopicPartition
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.producer_state import ProducerStateManager
from barnabas.broker.transactions.state import Identity
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from barnabas.wire.record_batch import NO_SEQUENCE, BatchHeader

log = logging.getLogger(__name__)

#: How long a batch waits for the end of the previous transaction, as in Kafka 4: the client has the answer to EndTxn, but the
#: markers are still being written.
RETRY_MAX_MS: Final = 100
RETRY_BACKOFF_MS: Final = 20
#: Partitions in one request with more than one question: far fewer than a coordinator accepts
#: (`barnabas.request.max.elements`). After a coordinator was unreachable, thousands of producers may ask at once.
PARTITIONS_PER_REQUEST_MAX: Final = 1_000


class Asked(Enum):
    """What the leader must do, given the client's version of Produce or TxnOffsetCommit."""

    #: Produce to v10, TxnOffsetCommit to v3: the client knows only INVALID_TXN_STATE.
    VERIFY = "verify"
    #: Produce v11, TxnOffsetCommit v4: the client knows TRANSACTION_ABORTABLE (KIP-890, KIP-1050).
    VERIFY_ABORTABLE = "verify, abortable"
    #: Produce v12, TxnOffsetCommit v5: the leader adds the partition.
    ADD = "add"

    @classmethod
    def of_produce(cls, api_version: int) -> "Asked":
        return cls.ADD if api_version >= 12 else cls.VERIFY_ABORTABLE if api_version >= 11 else cls.VERIFY

    @classmethod
    def of_offset_commit(cls, api_version: int) -> "Asked":
        return cls.ADD if api_version >= 5 else cls.VERIFY_ABORTABLE if api_version >= 4 else cls.VERIFY


class Verified(NamedTuple):
    """The result for one partition: append with `guard`, or answer with the error."""

    error: ErrorCode
    message: str | None = None
    #: None: not needed, since a transaction of this producer is open in the partition.
    guard: object | None = None


class Question(NamedTuple):
    transactional_id: str
    identity: Identity
    adds: bool


_Errors = dict[TopicPartition, ErrorCode]
_Guards = dict[TopicPartition, object]


class _Pending:
    """A question about some partitions, with the future for its answer."""

    __slots__ = ("answer", "partitions", "question")

    def __init__(self, question: Question, partitions: tuple[TopicPartition, ...]) -> None:
        self.question = question
        self.partitions = partitions
        self.answer: asyncio.Future[_Errors] = asyncio.get_running_loop().create_future()


class Verifier:
    def __init__(
        self,
        *,
        coordinator_of: Callable[[str], BrokerId | None],
        ask: Callable[[BrokerId, AddPartitionsToTxnRequest], Awaitable[AddPartitionsToTxnResponse | None]],
        now_ms: Callable[[], int],
        spawn: Spawn,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`coordinator_of` finds the live leader for a transactional id. `ask` sends v4 or later to it; it raises a
        `BarnabasError` if no answer comes, and returns None if the broker is too old for the request.
        """
        self._coordinator_of = coordinator_of
        self._ask = ask
        self._now_ms = now_ms
        self._spawn = spawn
        self._pause = pause
        self._queues: dict[BrokerId, list[_Pending]] = {}
        self._in_flight: dict[tuple[Question, tuple[tuple[TopicPartition, object], ...]], _Pending] = {}

    # -- for Produce and TxnOffsetCommit ------------------------------------------------------------------------------

    def must_ask(self, producers: ProducerStateManager, header: BatchHeader, asked: Asked) -> bool:
        """Whether the coordinator must verify this batch before it is appended. Cheap: called for every batch.

        The log decides whether `transaction.partition.verification.enable` is on: if the log demanded a guard and this method
        did not ask for one, no transaction could begin. The setting concerns only verification: if a client leaves the adding
        to the leader, the coordinator must learn of the partition in any case.
        """
        return (
            header.producer_id != NO_PRODUCER_ID
            and header.is_transactional
            and not producers.has_ongoing_transaction(header.producer_id, header.producer_epoch)
            and (asked is Asked.ADD or producers.transaction_verification)
        )

    async def verify(
        self,
        transactional_id: str,
        identity: Identity,
        wanted: Sequence[tuple[Log, int]],
        asked: Asked,
    ) -> list[Verified]:
        """Verify or add the partitions of these logs; each comes with its batch's base sequence (-1 for offsets of a group).

        The caller must trust nothing else after this: the append checks leadership and everything else again.
        """
        return await self._verify(transactional_id, identity, wanted, asked, _produce_error)

    async def _verify(
        self,
        transactional_id: str,
        identity: Identity,
        wanted: Sequence[tuple[Log, int]],
        asked: Asked,
        translate: Callable[[ErrorCode, Asked], Verified],
    ) -> list[Verified]:
        question = Question(transactional_id, identity, asked is Asked.ADD)
        waited_ms = 0
        while True:
            guards = self._begin(wanted, identity)
            errors = await self._ask_once(question, guards) if guards else {}
            if waited_ms >= RETRY_MAX_MS:
                break
            if question.adds and ErrorCode.CONCURRENT_TRANSACTIONS in errors.values():
                await self._pause(RETRY_BACKOFF_MS / 1000)
            elif not self._is_overtaken(wanted, question, guards, errors):
                break
            # The previous transaction's marker came in between, and is written now: ask again at once, but only a few times.
            waited_ms += RETRY_BACKOFF_MS
        verdicts: list[Verified] = []
        for each, _ in wanted:
            error = errors.get(each.partition, ErrorCode.NONE)
            if error is ErrorCode.NONE:
                verdicts.append(Verified(error, guard=guards.get(each.partition)))
            else:
                verdicts.append(translate(error, asked))
        return verdicts

    def _begin(self, wanted: Sequence[tuple[Log, int]], identity: Identity) -> _Guards:
        """Begin guards for partitions in which no transaction of this producer is open."""
        now_ms = self._now_ms()
        guards: _Guards = {}
        for each, sequence in wanted:
            if not each.producers.has_ongoing_transaction(*identity):
                entry = each.producers.start_verification(identity.producer_id, sequence, identity.epoch, now_ms)
                guards[each.partition] = entry.guard
        return guards

    @staticmethod
    def _is_overtaken(wanted: Sequence[tuple[Log, int]], question: Question, guards: _Guards, errors: _Errors) -> bool:
        """Whether the previous transaction's marker came while the request was in flight: then the guard is invalid, although
        the producer has done nothing wrong.
        """
        for each, _ in wanted:
            guard = guards.get(each.partition)
            if guard is None or errors.get(each.partition, ErrorCode.NONE) is not ErrorCode.NONE:
                continue
            entry = each.producers.verification(question.identity.producer_id)
            is_stale = entry is None or entry.guard is not guard
            if is_stale and not each.producers.has_ongoing_transaction(*question.identity):
                return True
        return False

    async def verify_offsets(
        self, transactional_id: str, identity: Identity, offsets_log: Log, asked: Asked
    ) -> Verified:
        """Verify for TxnOffsetCommit."""
        if asked is not Asked.ADD and not offsets_log.producers.transaction_verification:
            return Verified(ErrorCode.NONE)
        [verdict] = await self._verify(transactional_id, identity, [(offsets_log, NO_SEQUENCE)], asked, _offsets_error)
        return verdict

    # -- requests to coordinators
    # -------------------------------------------------------------------------------------------------------

    async def _ask_once(self, question: Question, guards: _Guards) -> _Errors:
        key = (question, tuple(guards.items()))
        pending = self._in_flight.get(key)
        if pending is None:
            coordinator = self._coordinator_of(question.transactional_id)
            if coordinator is None:
                return dict.fromkeys(guards, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            pending = self._in_flight[key] = _Pending(question, tuple(guards))
            pending.answer.add_done_callback(lambda _: self._in_flight.pop(key, None))
            queue = self._queues.get(coordinator)
            if queue is None:
                self._queues[coordinator] = [pending]
                self._spawn(self._serve(coordinator), f"transaction verification by {coordinator}")
            else:
                queue.append(pending)
        # Shield it: other callers may wait for the same answer.
        return await asyncio.shield(pending.answer)

    async def _serve(self, coordinator: BrokerId) -> None:
        """Send the queued questions to one coordinator, request after request, until the queue is empty."""
        queue = self._queues[coordinator]
        try:
            while queue:
                await self._ask_for(coordinator, _take_batch(queue))
        finally:
            del self._queues[coordinator]
            for pending in queue:
                _answer(pending, dict.fromkeys(pending.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))

    async def _ask_for(self, coordinator: BrokerId, batch: list[_Pending]) -> None:
        request = AddPartitionsToTxnRequest(transactions=[_transaction(pending) for pending in batch])
        failure = ErrorCode.NETWORK_EXCEPTION
        try:
            response = await self._ask(coordinator, request)
            if response is None:
                # Skip verification, as Kafka does with a broker that is too old. A partition to add must reach its coordinator,
                # though: the client aborts, and next time adds its partitions itself.
                for pending in batch:
                    failed = pending.partitions if pending.question.adds else ()
                    _answer(pending, dict.fromkeys(failed, ErrorCode.TRANSACTION_ABORTABLE))
                return
            if response.error_code == ErrorCode.NONE:
                _distribute(batch, response)
                return
            failure = ErrorCode(response.error_code)
            if failure is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                failure = ErrorCode.INVALID_TXN_STATE  # the error concerns brokers; a client must not see it
        except BarnabasError as error:
            log.info("[transactions] coordinator %d did not verify %d transactions: %s", coordinator, len(batch), error)
        finally:
            for pending in batch:
                _answer(pending, dict.fromkeys(pending.partitions, failure))


def _take_batch(queue: list[_Pending]) -> list[_Pending]:
    """Return the longest beginning of the queue that fits into a request and has no transactional id twice.

    The answers are matched by transactional id.
    """
    batch: dict[str, _Pending] = {}
    partitions = 0
    for pending in queue:
        partitions += len(pending.partitions)
        if batch and (pending.question.transactional_id in batch or partitions > PARTITIONS_PER_REQUEST_MAX):
            break
        batch[pending.question.transactional_id] = pending
    del queue[: len(batch)]
    return list(batch.values())


def _transaction(pending: _Pending) -> AddPartitionsToTxnTransaction:
    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for topic, partition in pending.partitions:
        topics.setdefault(topic, AddPartitionsToTxnTopic(name=topic)).partitions.append(partition)
    question = pending.question
    return AddPartitionsToTxnTransaction(
        transactional_id=question.transactional_id,
        producer_id=question.identity.producer_id,
        producer_epoch=question.identity.epoch,
        verify_only=not question.adds,
        topics=list(topics.values()),
    )


def _distribute(batch: Iterable[_Pending], response: AddPartitionsToTxnResponse) -> None:
    by_id = {result.transactional_id: result for result in response.results_by_transaction}
    for pending in batch:
        result = by_id.get(pending.question.transactional_id)
        errors = dict.fromkeys(pending.partitions, ErrorCode.UNKNOWN_SERVER_ERROR)
        if result is not None:
            for topic in result.topic_results:
                for each in topic.results_by_partition:
                    errors[TopicPartition(topic.name, each.partition_index)] = ErrorCode(each.partition_error_code)
        _answer(pending, errors)


def _answer(pending: _Pending, errors: _Errors) -> None:
    if not pending.answer.done():
        pending.answer.set_result(errors)


#: The coordinator could not be asked, or has no answer yet.
_NO_ANSWER: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        # The coordinator does not know another partition of the same request yet.
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)


def _common_error(error: ErrorCode, asked: Asked) -> Verified:
    if error is ErrorCode.PRODUCER_FENCED:
        return Verified(ErrorCode.INVALID_PRODUCER_EPOCH, "a newer producer has taken over the transactional id")
    if error is ErrorCode.TRANSACTION_ABORTABLE and asked is Asked.VERIFY:
        error = ErrorCode.INVALID_TXN_STATE
    if error in (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE):
        return Verified(error, "Partition was not added to the transaction")
    return Verified(error)


def _produce_error(error: ErrorCode, asked: Asked) -> Verified:
    """Translate the coordinator's error to one that a producer of that version expects.

    An error to be retried looks like a lack of replicas: the producer retries that without refreshing its metadata.
    """
    is_old_concurrent = error is ErrorCode.CONCURRENT_TRANSACTIONS and asked is not Asked.ADD
    if error in _NO_ANSWER or is_old_concurrent:
        return Verified(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"Unable to verify the partition has been added to the transaction. Underlying error: {error.name}",
        )
    return _common_error(error, asked)


def _offsets_error(error: ErrorCode, asked: Asked) -> Verified:
    """Translate for TxnOffsetCommit: a client retries after COORDINATOR_LOAD_IN_PROGRESS without looking for another group
    coordinator, which has not failed here.
    """
    if error in _NO_ANSWER:
        return Verified(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the transaction could not be verified: {error.name}")
    return _common_error(error, asked)
