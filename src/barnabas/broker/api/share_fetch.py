"""The requests of share group members to the leader of a partition (KIP-932): ShareFetch and ShareAcknowledge, v1 to v2
(KIP-1206, KIP-1222).

A ShareFetch may carry acknowledgements. They are decided before it fetches, and it is answered when both are done.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.security.quotas import Quota
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.leader_hint import MOVED, tell_leader
from barnabas.broker.server.refusal import refusal
from barnabas.broker.share.acquiring import Wish
from barnabas.broker.share.fetching import Portion, ShareFetchHost, ShareFetching, ShareFetchParams
from barnabas.broker.share.manager import SharePartitions
from barnabas.broker.share.metrics import ShareCounts
from barnabas.broker.share.records import RENEW, Acknowledgement, AcquireMode
from barnabas.broker.share.sessions import FINAL_EPOCH, MemberKey, ShareSession, TopicIdPartition
from barnabas.wire.codec import RecordsRef
from barnabas.wire.messages import share_acknowledge as acknowledging
from barnabas.wire.messages import share_fetch as fetching

#: The leader is not known.
_NOWHERE: Final = -1

D = TypeVar("D")
N = TypeVar("N", fetching.NodeEndpoint, acknowledging.NodeEndpoint)


class _Batch(Protocol):
    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


class ShareFetchApi:
    def __init__(self, context: BrokerContext, shares: SharePartitions, host: ShareFetchHost) -> None:
        self._context = context
        self._shares = shares
        self._host = host

    # -- requests -----------------------------------------------------------------------------------------------------

    @serves("ShareFetch", refusal(), sends_files=True)
    def fetch(self, call: Call, request: fetching.ShareFetchRequest) -> HandlerResult:
        self._shares.counts.fetches()
        key = self._member(call, request.group_id, request.member_id)
        if request.is_renew_ack and (
            request.max_wait_ms or request.min_bytes or request.max_bytes or request.max_records
        ):
            raise Refused(
                ErrorCode.INVALID_REQUEST, "A request that renews locks fetches nothing: its limits must be 0."
            )
        acknowledged = {
            TopicIdPartition(topic.topic_id, partition.partition_index): partition.acknowledgement_batches
            for topic in request.topics
            for partition in topic.partitions
            if partition.acknowledgement_batches
        }
        session = self._shares.sessions.for_fetch(
            key,
            request.share_session_epoch,
            added=_named(
                (topic.topic_id, (each.partition_index for each in topic.partitions)) for topic in request.topics
            ),
            forgotten=_named((topic.topic_id, topic.partitions) for topic in request.forgotten_topics_data),
            has_acknowledgements=bool(acknowledged),
            owner=call.channel,
        )
        answer = _FetchAnswer(self._context, call, session, acknowledged, self._shares.counts)
        names = _Names(self._context, call)
        self._acknowledge_all(session, acknowledged, names, answer.acknowledged, is_renewal=request.is_renew_ack)
        if request.share_session_epoch == FINAL_EPOCH or request.is_renew_ack:
            answer.fetched([])
        else:
            self._fetch(call, request, session, names, answer.fetched)
        if request.share_session_epoch == FINAL_EPOCH:
            self._shares.sessions.end(session)
        return None

    @serves("ShareAcknowledge", refusal())
    def acknowledge(self, call: Call, request: acknowledging.ShareAcknowledgeRequest) -> HandlerResult:
        self._shares.counts.acknowledges()
        key = self._member(call, request.group_id, request.member_id)
        acknowledged = {
            TopicIdPartition(topic.topic_id, partition.partition_index): partition.acknowledgement_batches
            for topic in request.topics
            for partition in topic.partitions
        }
        session = self._shares.sessions.for_acknowledge(key, request.share_session_epoch, owner=call.channel)
        answer = _AcknowledgeAnswer(self._context, call, session, acknowledged, self._shares.counts)
        names = _Names(self._context, call)
        self._acknowledge_all(session, acknowledged, names, answer.acknowledged, is_renewal=request.is_renew_ack)
        answer.begun()
        if request.share_session_epoch == FINAL_EPOCH:
            self._shares.sessions.end(session)
        return None

    # -- steps --------------------------------------------------------------------------------------------------------

    def _member(self, call: Call, group_id: str | None, member_id: str | None) -> MemberKey:
        self._context.require_share_groups()
        if not group_id:
            raise Refused(ErrorCode.INVALID_GROUP_ID, "The group id is empty.")
        if not self._context.allows(call, AclOperation.READ, AclResourceType.GROUP, group_id):
            raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.")
        return MemberKey(group_id, member_id or "")

    def _acknowledge_all(
        self,
        session: ShareSession,
        acknowledged: Mapping[TopicIdPartition, Sequence[_Batch]],
        names: "_Names",
        on_settled: Callable[[TopicIdPartition, Refused | None], None],
        *,
        is_renewal: bool,
    ) -> None:
        for wanted, batches in acknowledged.items():

            def settled(refused: Refused | None, wanted: TopicIdPartition = wanted) -> None:
                on_settled(wanted, refused)

            try:
                decisions = _decisions(batches, is_renewal=is_renewal)
                self._shares.acknowledge(session, wanted, names.resolve(wanted), decisions, settled)
            except Refused as refused:
                settled(refused)

    def _fetch(
        self,
        call: Call,
        request: fetching.ShareFetchRequest,
        session: ShareSession,
        names: "_Names",
        on_done: Callable[[Sequence[Portion]], None],
    ) -> None:
        context = self._context
        max_bytes = min(request.max_bytes, context.replicas.fetch_bytes_max)
        allowed_bytes = context.quotas.bytes_max(Quota.CONSUME, call.channel.principal.name, call.client_id or "")
        if allowed_bytes is not None:
            max_bytes = min(max_bytes, int(allowed_bytes))
        portions = []
        for wanted in session.in_turn():
            try:
                portions.append(
                    Portion(wanted, self._shares.for_fetch(session.key.group_id, wanted, names.resolve(wanted)))
                )
            except Refused as refused:
                portions.append(Portion(wanted, None, refused))
        params = ShareFetchParams(
            member_id=session.key.member_id,
            wish=Wish(request.max_records, request.batch_size, _mode(request.share_acquire_mode)),
            max_wait_ms=request.max_wait_ms,
            min_bytes=min(request.min_bytes, max_bytes),
            max_bytes=max_bytes,
        )
        waiting = ShareFetching(portions, params, self._host, on_done)
        waiting.begin()
        if call.parts is None:
            call.on_abandoned = waiting.cancel
            call.waits_in = waiting.operation


class _Names:
    """The topics of a request, looked up and authorized once each."""

    def __init__(self, context: BrokerContext, call: Call) -> None:
        self._context = context
        self._call = call
        self._found: dict[bytes, str | Refused] = {}

    def resolve(self, wanted: TopicIdPartition) -> TopicPartition:
        found = self._found.get(wanted.topic_id)
        if found is None:
            found = self._found[wanted.topic_id] = self._look_up(wanted.topic_id)
        if isinstance(found, Refused):
            raise found
        return TopicPartition(found, wanted.partition)

    def _look_up(self, topic_id: bytes) -> str | Refused:
        name = self._context.metadata.topic_name(TopicId(topic_id))
        if name is None:
            return Refused(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        if not self._context.allows_topic(self._call, AclOperation.READ, name):
            return Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
        return name


class _Answer:
    """Collects what a request waits for: its acknowledgements, and one more step that a subclass reports."""

    def __init__(
        self,
        context: BrokerContext,
        call: Call,
        session: ShareSession,
        acknowledged: Collection[TopicIdPartition],
        counts: ShareCounts,
    ) -> None:
        self._context = context
        self._counts = counts
        self._call = call
        self._lock_ms = context.dynamic.group_config(session.key.group_id).share_record_lock_duration_ms
        self._missing = len(acknowledged) + 1
        self._results: dict[TopicIdPartition, Refused | None] = {}

    def acknowledged(self, wanted: TopicIdPartition, refused: Refused | None) -> None:
        self._results[wanted] = refused
        if refused is not None:
            self._counts.failed_acknowledges(1)
        self._step()

    def _step(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._reply()

    def _reply(self) -> None:
        raise NotImplementedError

    def _point_to_leader(
        self, refused: Refused, wanted: TopicIdPartition, data: Any, nodes: list[N], make_node: Callable[..., N]
    ) -> None:
        """Name the present leader, so that the client need not fetch metadata (KIP-951)."""
        if refused.code not in MOVED:
            return
        topic = self._context.metadata.topic_name(TopicId(wanted.topic_id))
        tp = TopicPartition(topic or "", wanted.partition)
        leader = tell_leader(self._context, self._call, tp, nodes, make_node)
        data.current_leader.leader_id = _NOWHERE if leader is None else leader.leader_id
        data.current_leader.leader_epoch = _NOWHERE if leader is None else leader.leader_epoch


class _FetchAnswer(_Answer):
    _portions: Sequence[Portion] = ()

    def fetched(self, portions: Sequence[Portion]) -> None:
        self._portions = portions
        self._counts.failed_fetches(sum(1 for portion in portions if portion.error is not None))
        self._step()

    def _reply(self) -> None:
        response = fetching.ShareFetchResponse(acquisition_lock_timeout_ms=self._lock_ms)
        found: dict[TopicIdPartition, fetching.PartitionData] = {}

        def data_of(wanted: TopicIdPartition) -> fetching.PartitionData:
            data = found.get(wanted)
            if data is None:
                data = found[wanted] = fetching.PartitionData(partition_index=wanted.partition, records=b"")
            return data

        size_bytes = 0
        for portion in self._portions:
            if portion.error is not None:
                data = data_of(portion.wanted)
                data.error_code, data.error_message = portion.error.code, portion.error.message
                self._point_to_leader(
                    portion.error, portion.wanted, data, response.node_endpoints, fetching.NodeEndpoint
                )
            elif portion.acquired:
                data = data_of(portion.wanted)
                data.records = RecordsRef(portion.size_bytes, portion.ranges)
                data.acquired_records = [
                    fetching.AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
                    for first, last, count in portion.acquired
                ]
                size_bytes += portion.size_bytes
                if portion.share is not None:
                    hosted = self._context.replicas.hosted
                    hosted.counters(portion.share.tp.topic).bytes_out.value += portion.size_bytes
        for wanted, refused in self._results.items():
            data = data_of(wanted)
            if refused is not None:
                data.acknowledge_error_code, data.acknowledge_error_message = refused.code, refused.message
                self._point_to_leader(refused, wanted, data, response.node_endpoints, fetching.NodeEndpoint)
        response.responses = [
            fetching.ShareFetchableTopicResponse(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in _by_topic(found).items()
        ]
        # The member has locked the records: it gets them in any case, and pays afterwards.
        self._context.throttle(self._call, Quota.CONSUME, size_bytes)
        self._call.reply(response)


class _AcknowledgeAnswer(_Answer):
    def begun(self) -> None:
        """All decisions were made: only their persistence is missing."""
        self._step()

    def _reply(self) -> None:
        response = acknowledging.ShareAcknowledgeResponse(acquisition_lock_timeout_ms=self._lock_ms)
        found: dict[TopicIdPartition, acknowledging.PartitionData] = {}
        for wanted, refused in self._results.items():
            data = found[wanted] = acknowledging.PartitionData(partition_index=wanted.partition)
            if refused is not None:
                data.error_code, data.error_message = refused.code, refused.message
                self._point_to_leader(refused, wanted, data, response.node_endpoints, acknowledging.NodeEndpoint)
        response.responses = [
            acknowledging.ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in _by_topic(found).items()
        ]
        self._call.reply(response)


def _by_topic(found: Mapping[TopicIdPartition, D]) -> dict[bytes, list[D]]:
    by_topic: dict[bytes, list[D]] = {}
    for wanted, data in found.items():
        by_topic.setdefault(wanted.topic_id, []).append(data)
    return by_topic


def _named(topics: Iterable[tuple[bytes, Iterable[int]]]) -> Iterator[TopicIdPartition]:
    for topic_id, partitions in topics:
        for partition in partitions:
            yield TopicIdPartition(topic_id, partition)


def _mode(value: int) -> AcquireMode:
    try:
        return AcquireMode(value)
    except ValueError:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Unknown share acquire mode: {value}.") from None


def _decisions(batches: Sequence[_Batch], *, is_renewal: bool) -> list[Acknowledgement]:
    """Return a partition's acknowledgements, which must not overlap. The machine checks the rest."""
    decisions: list[Acknowledgement] = []
    for batch in batches:
        if decisions and batch.first_offset <= decisions[-1].last:
            raise Refused(ErrorCode.INVALID_REQUEST, "The acknowledgement batches overlap, or are not in order.")
        if RENEW in batch.acknowledge_types and not is_renewal:
            raise Refused(ErrorCode.INVALID_REQUEST, "The request does not announce renewals (IsRenewAck).")
        decisions.append(Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types))
    return decisions
