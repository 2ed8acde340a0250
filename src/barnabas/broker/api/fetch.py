"""Fetch, v4 to v18: sessions (KIP-227), epochs (KIP-320), reading from followers (KIP-392), truncation on fetch (KIP-595),
topic ids (v13, KIP-516), replica state (v15, KIP-903), hints to the new leader (v16, KIP-951).

Records are sent as file ranges: the handler never reads their bytes. v17's directory ids belong to KRaft and are ignored.
"""

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from barnabas.base.config.log_config import COMPRESSION_ZSTD
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.replication.fetch_session_cache import CachedPartition, FetchContext, FetchKey
from barnabas.broker.replication.fetches import WaitingFetch
from barnabas.broker.replication.reads import NOTHING_NEW, FetchParams, PartitionRead, Wanted
from barnabas.broker.runtime.turns import SLICE_ELEMENTS
from barnabas.broker.security.authorizer import CLUSTER_NAME
from barnabas.broker.security.quotas import Quota
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.large import LARGE_FRAME_BYTES
from barnabas.broker.server.leader_hint import MOVED, tell_leader
from barnabas.wire.codec import RecordsRef
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

_EMPTY = b""
#: Twice as fast as a call of the class.
_new = tuple.__new__
#: From this version on consumers may read from followers (KIP-392).
MAY_READ_FROM_FOLLOWER_FROM_VERSION: Final = 11
#: Before this version consumers do not know zstd (KIP-110).
ZSTD_FROM_VERSION: Final = 10
#: Before this version consumers do not know KAFKA_STORAGE_ERROR, and give up.
STORAGE_ERROR_FROM_VERSION: Final = 6
#: These errors have no partitions: the client sends all partitions again.
_SESSION_ERRORS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
#: Largest number of partitions that one turn of the loop reads for a client: some 12 ms.
TURN_PARTITIONS: Final = 1_000


def refuse(request: FetchRequest, code: ErrorCode, message: str | None) -> ApiMessage:
    """Build an error response. From v7 on the whole response carries the error. Before v7 each partition carries it: a client
    would mistake a response without partitions for a normal one, and send the request again for ever.
    """
    if code in _SESSION_ERRORS:
        return FetchResponse(error_code=code)
    return FetchResponse(
        error_code=code,
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    PartitionData(partition_index=each.partition, error_code=code, high_watermark=-1, records=_EMPTY)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


class FetchApi:
    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    @serves("Fetch", refuse, sends_files=True)
    def handle(self, call: Call, request: FetchRequest) -> HandlerResult:
        context = self._context
        replica_id, replica_epoch = request.replica_id, -1
        if request.replica_state is not None:
            replica_id, replica_epoch = request.replica_state.replica_id, request.replica_state.replica_epoch
        is_follower = replica_id >= 0
        may_follow = is_follower and context.allows(
            call, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME
        )
        max_bytes = min(request.max_bytes, context.replicas.fetch_bytes_max)
        if is_follower:
            call.meter = None  # replication has throttles of its own
        else:
            # Data above the quota is not sent at all: more than the windows hold could never be sent.
            if Quota.CONSUME in context.quotas.limited:
                user, client_id = call.channel.principal.name, call.client_id or ""
                allowed_bytes = context.quotas.bytes_max(Quota.CONSUME, user, client_id)
                if allowed_bytes is not None:
                    max_bytes = min(max_bytes, int(allowed_bytes))
        if not may_follow and call.request_bytes > LARGE_FRAME_BYTES:
            self._require_few(request)
        by_id = call.api_version >= 13
        fetched = context.fetch_sessions.begin(
            request.session_id,
            request.session_epoch,
            wanted=_wanted(request, by_id),
            forgotten=[
                FetchKey(topic.topic_id if by_id else topic.topic, partition)
                for topic in request.forgotten_topics_data
                for partition in topic.partitions
            ],
            replica=(replica_id, replica_epoch) if may_follow else None,
            uses_topic_ids=by_id,
            now_s=context.clock.monotonic_s(),
            now_ms=context.clock.now_ms() if may_follow else 0,
        )
        wanted = self._resolve_all(call, fetched.partitions, is_follower=is_follower, may_follow=may_follow)
        params: FetchParams = _new(
            FetchParams,
            (
                replica_id,
                replica_epoch,
                request.max_wait_ms,
                # `min_bytes` above the largest response could never be reached.
                min(request.min_bytes, max_bytes),
                max_bytes,
                request.isolation_level,
                request.rack_id,
                call.api_version >= MAY_READ_FROM_FOLLOWER_FROM_VERSION,
            ),
        )
        if len(wanted) > TURN_PARTITIONS and not may_follow:
            return self._in_turns(call, fetched, params, wanted)
        waiting = context.replicas.fetches.fetch(
            params,
            wanted,
            partial(self._answer, call, fetched, params, wanted),
            session=fetched.session if may_follow and fetched.incremental else None,
        )
        if waiting is not None:
            call.on_abandoned = waiting.cancel
            call.waits_in = waiting.operation
        return None

    async def _in_turns(
        self, call: Call, fetched: FetchContext, params: FetchParams, wanted: Wanted
    ) -> FetchResponse | None:
        """Answer a client's fetch of very many partitions in turns: other requests run in between."""
        reads = await self._fetch_in_turns(call, params, wanted)
        if self._throttle(call, fetched, reads):
            return None
        response = FetchResponse(session_id=fetched.session.id if fetched.session is not None else 0)
        for _ in self._fill(response, call, fetched, params, wanted, reads):
            await asyncio.sleep(0)
        return response

    async def _fetch_in_turns(self, call: Call, params: FetchParams, wanted: Wanted) -> list[PartitionRead]:
        """Fetch each slice separately, until one has enough. Then read what is available for the other slices."""
        fetch = self._context.replicas.fetches.fetch
        slices = [list(wanted[at : at + SLICE_ELEMENTS]) for at in range(0, len(wanted), SLICE_ELEMENTS)]
        answered = asyncio.Event()
        reads: dict[int, list[PartitionRead]] = {}
        waits: dict[int, WaitingFetch] = {}

        def note(number: int, some: list[PartitionRead]) -> None:
            reads[number] = some
            answered.set()

        call.on_abandoned = answered.set
        for number, some in enumerate(slices):
            if answered.is_set():
                break
            waiting = fetch(params, some, partial(note, number))
            if waiting is not None:
                waits[number] = waiting
            await asyncio.sleep(0)
        await answered.wait()
        for number, waiting in waits.items():
            if number not in reads:
                waiting.cancel()
        left_bytes = params.max_bytes - sum(read.size_bytes for some in reads.values() for read in some)
        for number, some in enumerate(slices):
            if number not in reads:
                fetch(params._replace(max_wait_ms=-1, max_bytes=max(left_bytes, 0)), some, partial(note, number))
                for read in reads[number]:
                    if read.size_bytes > left_bytes and left_bytes < params.max_bytes:
                        read.withhold()  # the first partition of a fetch may exceed the limit, but this is not the first
                    left_bytes -= read.size_bytes
                await asyncio.sleep(0)
        return [read for number in range(len(slices)) for read in reads[number]]

    def _require_few(self, request: FetchRequest) -> None:
        """Refuse too many partitions. Brokers may fetch all their partitions; other clients have the limit of every request."""
        partitions = sum(len(topic.partitions) for topic in request.topics)
        if partitions + len(request.topics) > (most := self._context.config.barnabas_request_max_elements):
            why = f"{partitions} partitions in one request; barnabas.request.max.elements is {most}"
            raise Refused(ErrorCode.INVALID_REQUEST, why)

    def _resolve_all(
        self, call: Call, partitions: Iterable[CachedPartition], *, is_follower: bool, may_follow: bool
    ) -> list[tuple[CachedPartition, TopicPartition | ErrorCode]]:
        """Resolve the topics of all partitions. Looks each topic up once: a session may hold thousands of its partitions."""
        topics: dict[str | bytes, str | ErrorCode] = {}
        wanted: list[tuple[CachedPartition, TopicPartition | ErrorCode]] = []
        for want in partitions:
            key = want.key
            topic = topics.get(key.topic)
            if topic is None:
                topic = topics[key.topic] = self._resolve(call, key.topic, is_follower, may_follow)
            if isinstance(topic, ErrorCode):
                wanted.append((want, topic))
                continue
            tp = want.tp
            if tp is None or tp.topic != topic:
                tp = want.tp = TopicPartition(topic, key.partition)
            wanted.append((want, tp))
        return wanted

    def _resolve(self, call: Call, topic: str | bytes, is_follower: bool, may_follow: bool) -> str | ErrorCode:
        if is_follower and not may_follow:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if not isinstance(topic, str):
            name = self._context.metadata.topic_name(TopicId(topic))
            if name is None:
                # A follower may know a topic before this broker does: the follower tries again.
                return ErrorCode.UNKNOWN_TOPIC_ID
            topic = name
        if not is_follower and not self._context.allows(call, AclOperation.READ, AclResourceType.TOPIC, topic):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return topic

    def _answer(
        self, call: Call, fetched: FetchContext, params: FetchParams, wanted: Wanted, reads: list[PartitionRead]
    ) -> None:
        if (
            params.replica_id < 0
            and (call.meter is not None or Quota.CONSUME in self._context.quotas.limited)
            and self._throttle(call, fetched, reads)
        ):
            return
        response = FetchResponse(session_id=fetched.session.id if fetched.session is not None else 0)
        for _ in self._fill(response, call, fetched, params, wanted, reads):
            pass
        call.reply(response)

    def _fill(
        self,
        response: FetchResponse,
        call: Call,
        fetched: FetchContext,
        params: FetchParams,
        wanted: Wanted,
        reads: list[PartitionRead],
    ) -> Iterator[None]:
        """Fill the response; yield after every few partitions, so that other requests run during a very large fetch."""
        session = fetched.session
        topic: FetchableTopicResponse | None = None
        topic_name: str | bytes | None = None
        served: list[FetchKey] = []
        for number, ((want, tp), read) in enumerate(zip(wanted, reads, strict=True), 1):
            if number % SLICE_ELEMENTS == 0:
                yield
            if read is NOTHING_NEW:
                continue
            key = want.key
            if session is not None:
                must_tell = want.must_tell(
                    error=read.error,
                    high_watermark=read.high_watermark,
                    log_start=read.log_start_offset,
                    has_more=bool(read.size_bytes) or read.preferred_read_replica >= 0,
                    is_diverging=read.diverging_epoch is not None,
                )
                if not read.size_bytes and session.replica is not None and not isinstance(tp, ErrorCode):
                    self._rest(want, tp, read, params)
                if fetched.incremental and not must_tell:
                    continue
            if topic is None or key.topic != topic_name:
                topic_name = key.topic
                topic = FetchableTopicResponse()
                if isinstance(key.topic, str):
                    topic.topic = key.topic
                else:
                    topic.topic_id = key.topic
                response.responses.append(topic)
            topic.partitions.append(self._partition(call, response, key, tp, read))
            if read.size_bytes:
                served.append(key)
                if isinstance(tp, ErrorCode):
                    continue
                if params.replica_id < 0:
                    self._context.replicas.hosted.counters(tp.topic).bytes_out.value += read.size_bytes
                elif self._context.leader_throttle is not None:
                    self._context.leader_throttle.record(tp, read.size_bytes)
        if session is not None and served:
            session.to_the_back(served)

    def _rest(self, want: CachedPartition, tp: TopicPartition, read: PartitionRead, params: FetchParams) -> None:
        """Stop checking a follower's partition until something changes: it has all records and all metadata."""
        partition = self._context.replicas.hosted.get(tp)
        if partition is not None and not read.error and read.diverging_epoch is None:
            partition.rest(want, params.replica_id)

    def _throttle(self, call: Call, fetched: FetchContext, reads: list[PartitionRead]) -> bool:
        """Send a consumer above its quota an empty response; it waits and fetches again. Releases what was read."""
        size_bytes = sum(read.size_bytes for read in reads)
        self._context.throttle(call, Quota.CONSUME, size_bytes)
        if not call.charge():
            return False
        self._context.quotas.add(
            Quota.CONSUME,
            call.channel.principal.name,
            call.client_id or "",
            -size_bytes,
            now_ms=self._context.now_monotonic_ms(),
        )
        for read in reads:
            for part in read.ranges:
                part.release()
        # A session that this request began is not offered: its first response would have to name every partition.
        session_id = fetched.session.id if fetched.session is not None and fetched.incremental else 0
        call.reply(FetchResponse(session_id=session_id))
        return True

    def _partition(
        self, call: Call, response: FetchResponse, key: FetchKey, tp: TopicPartition | ErrorCode, read: PartitionRead
    ) -> PartitionData:
        if call.api_version < ZSTD_FROM_VERSION:
            self._translate(read, tp, call.api_version)
        data = PartitionData(
            partition_index=key.partition,
            error_code=read.error,
            high_watermark=read.high_watermark,
            last_stable_offset=read.last_stable_offset,
            log_start_offset=read.log_start_offset,
            aborted_transactions=None,
            preferred_read_replica=read.preferred_read_replica,
            records=RecordsRef(read.size_bytes, read.ranges) if read.size_bytes else _EMPTY,
        )
        if read.aborted_transactions is not None:
            data.aborted_transactions = [
                AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset)
                for txn in read.aborted_transactions
            ]
        if read.diverging_epoch is not None:
            data.diverging_epoch = EpochEndOffset(
                epoch=read.diverging_epoch.epoch, end_offset=read.diverging_epoch.end_offset
            )
        if read.error in MOVED and call.api_version >= 16 and not isinstance(tp, ErrorCode):
            leader = tell_leader(self._context, call, tp, response.node_endpoints, NodeEndpoint)
            if leader is not None:
                data.current_leader = LeaderIdAndEpoch(leader_id=leader.leader_id, leader_epoch=leader.leader_epoch)
        return data

    def _translate(self, read: PartitionRead, tp: TopicPartition | ErrorCode, version: int) -> None:
        """Replace errors and reads that old consumers do not understand."""
        if read.error is ErrorCode.KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_FROM_VERSION:
            read.error = ErrorCode.NOT_LEADER_OR_FOLLOWER  # they fetch metadata, and try again
        partition = None if isinstance(tp, ErrorCode) else self._context.replicas.hosted.get(tp)
        if (
            partition is not None
            and partition.log is not None
            and partition.log.config.compression_type == COMPRESSION_ZSTD
        ):
            read.release()
            read.error = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def _wanted(request: FetchRequest, by_id: bool) -> list[CachedPartition]:
    wanted: list[CachedPartition] = []
    for topic in request.topics:
        named = topic.topic_id if by_id else topic.topic
        for partition in topic.partitions:
            wanted.append(
                CachedPartition(
                    _new(FetchKey, (named, partition.partition)),
                    partition.fetch_offset,
                    partition.partition_max_bytes,
                    partition.current_leader_epoch,
                    partition.last_fetched_epoch,
                    partition.log_start_offset,
                )
            )
    return wanted
