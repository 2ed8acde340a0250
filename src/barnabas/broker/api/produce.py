"""Produce, v3 to v13: acks 0, 1 and all, several topics and partitions, per-record errors (KIP-467), hints to the new leader
(KIP-951), topic ids (v13, KIP-516).

v0 to v2 carry message formats before Kafka 0.11. They are advertised for older librdkafka (KAFKA-18659), but refused.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Protocol, cast

from barnabas.base.errors import ErrorCode, Malformed, Refused
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.base.topics import INTERNAL_TOPICS
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.replication.appends import AppendEntry
from barnabas.broker.replication.early_batches import nameless
from barnabas.broker.security.quotas import Quota
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.leader_hint import MOVED, tell_leader
from barnabas.broker.server.refusal import refusal
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_types import Origin
from barnabas.broker.transactions.state import Identity
from barnabas.broker.transactions.verification import Asked, Verifier
from barnabas.wire.compression import Codec
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from barnabas.wire.record_batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    HEADER_SIZE,
    MAGIC_AT,
    MAGIC_V2,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    read_header,
)
from barnabas.wire.versions import PRODUCE, api_named

#: Twice as fast as a call of the class.
_new_tp = tuple.__new__
#: A Produce that only waits for its replicas does not hold back the next Produce.
OVERLAPS = frozenset({PRODUCE})
#: A type alias: Python would create the annotations of an inner function again each time.
Entries = Sequence[AppendEntry]
Append = Callable[[Call, ProduceRequest, Entries, Callable[[Entries], None]], None]
#: KIP-110: consumers behind older producers may not know zstd.
ZSTD_FROM_VERSION = 7
#: KIP-516: topics are named by their ids.
BY_ID_FROM_VERSION = 13
#: KIP-951: refusals name the new leader.
LEADER_HINT_FROM_VERSION = 10
NO_RECORDS = (ErrorCode.INVALID_RECORD, "the request has no records for this partition")
#: A client with this id may write to the coordinators' topics, as in Kafka.
ADMIN_CLIENT_ID = "__admin_client"


refuse = refusal("responses.partition_responses <- topic_data.partition_data", base_offset=-1).of(api_named("Produce"))


class RecordChecks(Protocol):
    """Checks of records before an append, besides those of the log."""

    @property
    def topics(self) -> Mapping[str, object]:
        """Topics whose records are checked."""

    def is_clear(self, tp: TopicPartition, records: memoryview | bytearray) -> bool:
        """Whether a batch may be appended at once. If not, await `refusal`."""

    async def refusal(self, tp: TopicPartition, records: bytearray) -> Refused | None:
        """Return the reason why a batch may not be appended, or None."""


class _NoChecks:
    topics: Mapping[str, object] = {}

    def is_clear(self, tp: TopicPartition, records: memoryview | bytearray) -> bool:
        return True

    async def refusal(self, tp: TopicPartition, records: bytearray) -> Refused | None:
        return None


class ProduceApi:
    def __init__(self, context: BrokerContext, verifier: Verifier) -> None:
        self._context = context
        self._verifier = verifier
        #: Features may replace these two.
        self.checks: RecordChecks = _NoChecks()
        self.append: Append = self._append

    @serves("Produce", refuse, min_version=3)
    def handle(self, call: Call, request: ProduceRequest) -> HandlerResult:
        try:
            return self._handle(call, request)
        except Refused as refusal:
            if request.acks != 0:
                raise
            raise Malformed(f"acks=0 produce refused with {refusal.code.name}, and has no response to say so") from None

    def _handle(self, call: Call, request: ProduceRequest) -> HandlerResult:
        if request.acks not in (0, 1, -1):
            raise Refused(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks} is not valid: use 0, 1 or -1 (all)")
        context = self._context
        if request.transactional_id is not None and not context.allows(
            call, AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, request.transactional_id
        ):
            raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        entries: list[AppendEntry] = []
        is_refused = False
        version = call.api_version
        by_id = version >= BY_ID_FROM_VERSION
        for topic_data in request.topic_data:
            topic, error = self._resolve(call, topic_data)
            topic_data.name = topic  # for the answer
            for data in topic_data.partition_data:
                records = data.records
                tp = _new_tp(TopicPartition, (topic, data.index))
                entry = AppendEntry(tp, records, None, topic_data.topic_id if by_id else None)  # type: ignore[arg-type]  # checked below
                entries.append(entry)
                if error is not ErrorCode.NONE:
                    entry.error = error
                    if error is ErrorCode.UNKNOWN_TOPIC_ID and isinstance(records, memoryview):
                        context.replicas.appends.refused(nameless(topic_data.topic_id, data.index), records, error)
                elif not isinstance(records, memoryview):
                    entry.error, entry.message = NO_RECORDS
                elif (len(records) <= MAGIC_AT or records[MAGIC_AT] != MAGIC_V2 or version < ZSTD_FROM_VERSION) and (
                    code := _not_of_version(records, version)
                ) is not ErrorCode.NONE:
                    entry.error, entry.message = code, f"Produce v{version} may not carry such a batch"
                elif (
                    request.transactional_id is None
                    and len(records) >= HEADER_SIZE
                    and records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_FLAG
                ):
                    # Without the id, this broker can neither authorize the producer nor find the transaction's coordinator.
                    raise Refused(
                        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                        "records of a transaction need its transactional id",
                    )
                is_refused = is_refused or entry.error is not ErrorCode.NONE
        accepted = [entry for entry in entries if entry.error is ErrorCode.NONE] if is_refused else entries
        if self.checks.topics or request.transactional_id is not None:
            unclear = self._unclear(accepted)
            if unclear or (request.transactional_id is not None and self._unverified(call, dict(enumerate(accepted)))):
                if request.acks == 0 and request.transactional_id is not None:
                    raise Refused(ErrorCode.INVALID_REQUIRED_ACKS, "a transaction needs to know what was written")
                # The frame buffer is reused after the return: copy the records while they wait for the checks.
                for entry in accepted:
                    entry.records = bytearray(entry.records)
                return self._append_later(call, request, entries, accepted, unclear)
        self.append(call, request, accepted, partial(self._answer, call, request, entries))
        return None

    def _append(
        self,
        call: Call,
        request: ProduceRequest,
        entries: Entries,
        done: Callable[[Entries], None],
    ) -> None:
        wait = self._context.replicas.appends.append(
            entries,
            required_acks=request.acks,
            timeout_ms=request.timeout_ms,
            origin=Origin.CLIENT,
            on_done=done,
        )
        if wait is not None and not wait.completed:
            call.waits_in = wait
        call.overlaps = OVERLAPS

    async def _append_later(
        self,
        call: Call,
        request: ProduceRequest,
        entries: list[AppendEntry],
        accepted: list[AppendEntry],
        unclear: Sequence[int],
    ) -> ApiMessage | None:
        """Ask the schema registry, then the transaction's coordinator; append the records that both have confirmed."""
        waiting = dict(enumerate(accepted))
        refusals = await asyncio.gather(
            *(self.checks.refusal(accepted[index].tp, cast(bytearray, accepted[index].records)) for index in unclear)
        )
        for index, refused in zip(unclear, refusals, strict=True):
            if refused is not None:
                self._context.replicas.appends.refuse(waiting.pop(index), refused)
        if request.transactional_id is not None:
            await self._verify(call, request.transactional_id, waiting)
        appended: asyncio.Future[Entries] = asyncio.get_running_loop().create_future()
        self.append(call, request, list(waiting.values()), appended.set_result)
        call.channel.resume()
        await appended
        if request.acks == 0:
            self._answer(call, request, entries, entries)
            return None
        self._context.throttle(call, Quota.PRODUCE, call.request_bytes)
        return self._response(call, request, entries)

    def _unclear(self, entries: list[AppendEntry]) -> list[int]:
        """Return the indexes of the entries that need a slow check. Only the leader of a partition checks."""
        return [
            index
            for index, entry in enumerate(entries)
            if not self.checks.is_clear(entry.tp, entry.records)
            and (partition := self._context.replicas.hosted.get(entry.tp)) is not None
            and partition.is_leader
        ]

    # -- transactions (KIP-890) ---------------------------------------------------------------------------------------

    def _unverified(self, call: Call, entries: Mapping[int, AppendEntry]) -> dict[int, tuple[Log, BatchHeader]]:
        """Return, by index, the entries that would begin a transaction in their partition: its coordinator must verify them."""
        found: dict[int, tuple[Log, BatchHeader]] = {}
        asked = Asked.of_produce(call.api_version)
        for index, entry in entries.items():
            partition = self._context.replicas.hosted.get(entry.tp)
            if partition is None or partition.log is None or len(entry.records) < HEADER_SIZE:
                continue  # the append refuses it
            try:
                header = read_header(entry.records)
            except Malformed:
                continue  # the append reports the error
            if self._verifier.must_ask(partition.log.producers, header, asked):
                found[index] = (partition.log, header)
        if len({header.producer_id for _, header in found.values()}) > 1:
            raise Refused(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID"
            )
        return found

    async def _verify(
        self,
        call: Call,
        transactional_id: str,
        waiting: dict[int, AppendEntry],
    ) -> None:
        """Ask the coordinator about the entries that need it. A confirmed entry gets its guard; the others get an error and
        leave `waiting`."""
        unverified = self._unverified(call, waiting)
        if not unverified:
            return
        _, header = next(iter(unverified.values()))
        verdicts = await self._verifier.verify(
            transactional_id,
            Identity(header.producer_id, header.producer_epoch),
            [(log, header.base_sequence) for log, header in unverified.values()],
            Asked.of_produce(call.api_version),
        )
        for index, verdict in zip(unverified, verdicts, strict=True):
            if verdict.error is ErrorCode.NONE:
                waiting[index].guard = verdict.guard
            else:
                refused = waiting.pop(index)
                refused.error, refused.message = verdict.error, verdict.message
                self._context.replicas.appends.refused(refused.tp, refused.records, verdict.error)

    def _resolve(self, call: Call, data: TopicProduceData) -> tuple[str, ErrorCode]:
        """Return the topic's name, and its error, if any."""
        name = data.name
        if call.api_version >= BY_ID_FROM_VERSION:
            found = self._context.metadata.topic_name(TopicId(data.topic_id))
            if found is None:
                return "", ErrorCode.UNKNOWN_TOPIC_ID
            name = found
        if not self._context.allows(call, AclOperation.WRITE, AclResourceType.TOPIC, name):
            return name, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if name in INTERNAL_TOPICS and call.client_id != ADMIN_CLIENT_ID:
            # Only coordinators write there. The next coordinator that loads the partition would apply a client's records.
            return name, ErrorCode.INVALID_TOPIC_EXCEPTION
        return name, ErrorCode.NONE

    def _response(self, call: Call, request: ProduceRequest, entries: Entries) -> ProduceResponse:
        """Build the response from the outcome of each partition, in the order of the request."""
        response = ProduceResponse()
        outcomes = iter(entries)
        for topic_data in request.topic_data:
            answers: list[PartitionProduceResponse] = []
            for entry in islice(outcomes, len(topic_data.partition_data)):
                if entry.error is ErrorCode.NONE:
                    answer = PartitionProduceResponse(
                        index=entry.tp.partition,
                        base_offset=entry.base_offset,
                        log_append_time_ms=entry.log_append_time_ms,
                        log_start_offset=entry.log_start_offset,
                    )
                else:
                    answer = self._refusal(call, response, entry)
                answers.append(answer)
            response.responses.append(
                TopicProduceResponse(name=topic_data.name, topic_id=topic_data.topic_id, partition_responses=answers)
            )
        return response

    def _refusal(self, call: Call, response: ProduceResponse, entry: AppendEntry) -> PartitionProduceResponse:
        answer = PartitionProduceResponse(
            index=entry.tp.partition,
            error_code=entry.error,
            error_message=entry.message,
            base_offset=-1,
            log_start_offset=entry.log_start_offset,
            record_errors=[
                BatchIndexAndErrorMessage(batch_index=error.batch_index, batch_index_error_message=error.message)
                for error in entry.record_errors
            ],
        )
        if call.api_version >= LEADER_HINT_FROM_VERSION and entry.error in MOVED:
            leader = tell_leader(self._context, call, entry.tp, response.node_endpoints, NodeEndpoint)
            if leader is not None:
                answer.current_leader = LeaderIdAndEpoch(leader_id=leader.leader_id, leader_epoch=leader.leader_epoch)
        return answer

    def _answer(self, call: Call, request: ProduceRequest, entries: Entries, _: Entries) -> None:
        if Quota.PRODUCE in self._context.quotas.limited:
            self._context.throttle(call, Quota.PRODUCE, call.request_bytes)
        if request.acks != 0:
            call.reply(self._response(call, request, entries))
            return
        # acks=0 has no response for an error: close the connection, as Kafka does, so that the client notices.
        failed = [entry.error for entry in entries if entry.error]
        if failed:
            call.channel.fail(f"acks=0 produce failed with {failed[0].name}, and has no response to say so")
        call.reply_nothing()


def _not_of_version(records: memoryview, version: int) -> ErrorCode:
    """Return the error of a batch that this version of the request does not allow; the append does all other checks."""
    if len(records) > MAGIC_AT and records[MAGIC_AT] < MAGIC_V2:
        return ErrorCode.INVALID_RECORD
    if (
        version < ZSTD_FROM_VERSION
        and len(records) >= HEADER_SIZE
        and records[ATTRIBUTES_AT + 1] & CODEC_MASK == Codec.ZSTD
    ):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return ErrorCode.NONE
