"""The requests of a fetcher to its leader: Fetch, OffsetForLeaderEpoch, ListOffsets, in the leader's versions.

Owner: one replica fetcher. There is one connection and one request at a time; records are not copied from the socket's buffer.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from barnabas.base.config.derived import setting
from barnabas.base.errors import ErrorCode
from barnabas.base.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition
from barnabas.base.words import EARLIEST, EARLIEST_LOCAL, LATEST
from barnabas.broker.replication.fetch_steps import (
    EpochAnswer,
    EpochQuestion,
    FetchedPartition,
    OffsetsAnswer,
    TierAnswer,
)
from barnabas.broker.replication.follower_session import FetchPlan
from barnabas.broker.storage.epoch_cache import EpochEnd
from barnabas.wire.messages.base import ApiMessage, RecordsRef
from barnabas.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from barnabas.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

#: The newest Fetch that Kafka 3.9 serves.
_FETCH_VERSION_MAX: Final = 17
_FETCH_WITH_EPOCHS: Final = 12
_FETCH_WITH_NAMES: Final = 12
_FETCH_WITH_REPLICA_STATE: Final = 15

#: (error, offset, epoch) of a partition that is missing in the leader's answer.
_NO_ANSWER: Final = (int(ErrorCode.UNKNOWN_SERVER_ERROR), -1, -1)

#: Twice as fast as a call of the class.
_new = tuple.__new__
R = TypeVar("R", bound=ApiMessage)


class Versions(Protocol):
    def pick(self, message: type[ApiMessage]) -> int: ...


class LeaderConnection(Protocol):
    """The parts of `barnabas.client.connection.Connection` that are used here."""

    @property
    def closed(self) -> bool: ...

    @property
    def versions(self) -> Versions: ...

    async def request(
        self, message: ApiMessage, response_type: type[R], *, version: int | None = None, timeout_ms: int = 30_000
    ) -> R: ...

    def close(self) -> None: ...


Connect = Callable[[BrokerId], Awaitable[LeaderConnection]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherSettings:
    """A follower's settings, under Kafka's names."""

    broker_id: BrokerId
    num_replica_fetchers: int = setting("num.replica.fetchers")
    replica_fetch_max_bytes: int = setting("replica.fetch.max.bytes")
    replica_fetch_min_bytes: int = setting("replica.fetch.min.bytes")
    replica_fetch_response_max_bytes: int = setting("replica.fetch.response.max.bytes")
    replica_fetch_wait_max_ms: int = setting("replica.fetch.wait.max.ms")
    replica_fetch_backoff_ms: int = setting("replica.fetch.backoff.ms")
    replica_socket_timeout_ms: int = setting("replica.socket.timeout.ms")


@dataclass(slots=True)
class FetchAnswer:
    error_code: int
    session_id: int
    partitions: list[FetchedPartition]
    #: Size of the records in bytes.
    size: int


class LeaderEndpoint(Protocol):
    """A leader of this cluster, or of a link's source cluster."""

    async def prepare(self) -> bool:
        """Connect if needed. Return whether this leader truncates on fetch."""
        ...

    async def fetch(self, plan: FetchPlan, *, max_wait_ms: int) -> FetchAnswer: ...

    async def epoch_ends(self, questions: dict[TopicPartition, EpochQuestion]) -> dict[TopicPartition, EpochAnswer]: ...

    async def list_offsets(self, epochs: dict[TopicPartition, LeaderEpoch]) -> dict[TopicPartition, OffsetsAnswer]: ...

    async def tier_starts(self, epochs: dict[TopicPartition, LeaderEpoch]) -> dict[TopicPartition, TierAnswer]: ...

    def close(self) -> None:
        """Close the connection; a request in flight fails. `prepare` opens it again."""
        ...


class RemoteLeader:
    def __init__(
        self, broker: BrokerId, connect: Connect, settings: FetcherSettings, broker_epoch: Callable[[], BrokerEpoch]
    ) -> None:
        self._broker = broker
        self._connect = connect
        self._settings = settings
        self._broker_epoch = broker_epoch
        self._connection: LeaderConnection | None = None
        #: Names of the topics in the fetch session: responses from version 13 on have only ids.
        self._names: dict[TopicId, str] = {}

    async def prepare(self) -> bool:
        if self._connection is None or self._connection.closed:
            self._connection = await self._connect(self._broker)
        return self._connection.versions.pick(FetchRequest) >= _FETCH_WITH_EPOCHS

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def fetch(self, plan: FetchPlan, *, max_wait_ms: int) -> FetchAnswer:
        connection = self._ready()
        version = min(connection.versions.pick(FetchRequest), _FETCH_VERSION_MAX)
        if not plan.has_topic_ids:
            version = min(version, _FETCH_WITH_NAMES)
        if plan.is_full:
            self._names.clear()
        for partition, entry in plan.to_send.items():
            self._names[entry.topic_id] = partition.topic
        request = self._fetch_request(plan, version, max_wait_ms)
        timeout_ms = self._settings.replica_socket_timeout_ms
        response = await connection.request(request, FetchResponse, version=version, timeout_ms=timeout_ms)
        return self._fetch_answer(response, by_name=version <= _FETCH_WITH_NAMES)

    def _fetch_request(self, plan: FetchPlan, version: int, max_wait_ms: int) -> FetchRequest:
        settings = self._settings
        topics: dict[tuple[str, TopicId], FetchTopic] = {}
        for partition, entry in plan.to_send.items():
            key = (partition.topic, entry.topic_id)
            topic = topics.get(key)
            if topic is None:
                topic = topics[key] = FetchTopic(topic=partition.topic, topic_id=entry.topic_id)
            topic.partitions.append(
                FetchPartition(
                    partition=partition.partition,
                    current_leader_epoch=entry.current_leader_epoch,
                    fetch_offset=entry.fetch_offset,
                    last_fetched_epoch=entry.last_fetched_epoch,
                    log_start_offset=entry.log_start,
                    partition_max_bytes=entry.max_bytes,
                )
            )
        forgotten: dict[tuple[str, TopicId], ForgottenTopic] = {}
        for partition, topic_id in plan.forgotten:
            gone = forgotten.setdefault(
                (partition.topic, topic_id), ForgottenTopic(topic=partition.topic, topic_id=topic_id)
            )
            gone.partitions.append(partition.partition)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=settings.replica_fetch_min_bytes,
            max_bytes=settings.replica_fetch_response_max_bytes,
            session_id=plan.session_id,
            session_epoch=plan.session_epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
        )
        if version >= _FETCH_WITH_REPLICA_STATE:
            request.replica_state = ReplicaState(replica_id=settings.broker_id, replica_epoch=self._broker_epoch())
        else:
            request.replica_id = settings.broker_id
        return request

    def _fetch_answer(self, response: FetchResponse, *, by_name: bool) -> FetchAnswer:
        partitions: list[FetchedPartition] = []
        size = 0
        for topic in response.responses:
            name = topic.topic if by_name else self._names.get(TopicId(topic.topic_id))
            if name is None:
                continue
            for data in topic.partitions:
                records = data.records
                if isinstance(records, RecordsRef):
                    raise TypeError("a decoded response holds bytes")
                if records is not None:
                    size += len(records)
                diverging = data.diverging_epoch
                end = None
                if diverging is not None and diverging.epoch >= 0:
                    end = EpochEnd(LeaderEpoch(diverging.epoch), Offset(diverging.end_offset))
                tp = _new(TopicPartition, (name, data.partition_index))
                offsets = data.high_watermark, data.log_start_offset
                partitions.append(_new(FetchedPartition, (tp, data.error_code, *offsets, end, records)))
        return FetchAnswer(response.error_code, response.session_id, partitions, size)

    async def epoch_ends(self, questions: dict[TopicPartition, EpochQuestion]) -> dict[TopicPartition, EpochAnswer]:
        topics: dict[str, OffsetForLeaderTopic] = {}
        for partition, question in questions.items():
            topic = topics.setdefault(partition.topic, OffsetForLeaderTopic(topic=partition.topic))
            topic.partitions.append(
                OffsetForLeaderPartition(
                    partition=partition.partition,
                    current_leader_epoch=question.current_leader_epoch,
                    leader_epoch=question.epoch,
                )
            )
        request = OffsetForLeaderEpochRequest(replica_id=self._settings.broker_id, topics=list(topics.values()))
        response = await self._ready().request(
            request, OffsetForLeaderEpochResponse, timeout_ms=self._settings.replica_socket_timeout_ms
        )
        return {
            TopicPartition(result.topic, end.partition): EpochAnswer(
                end.error_code, EpochEnd(LeaderEpoch(end.leader_epoch), Offset(end.end_offset))
            )
            for result in response.topics
            for end in result.partitions
        }

    async def list_offsets(self, epochs: dict[TopicPartition, LeaderEpoch]) -> dict[TopicPartition, OffsetsAnswer]:
        latest = await self._list(epochs, LATEST)
        # Ask in this order, as Kafka does: then a start that moves in between is noticed.
        earliest = await self._list(epochs, EARLIEST)
        answers: dict[TopicPartition, OffsetsAnswer] = {}
        for partition, (error, end, _) in latest.items():
            start_error, start, _ = earliest.get(partition, _NO_ANSWER)
            answers[partition] = OffsetsAnswer(error or start_error, end, start)
        return answers

    async def tier_starts(self, epochs: dict[TopicPartition, LeaderEpoch]) -> dict[TopicPartition, TierAnswer]:
        """Ask for the local start, the log start, and the epoch of the record before the local start, as Kafka's followers do.

        That epoch is the one of the local start itself, unless the local start begins an epoch.
        """
        local = await self._list(epochs, EARLIEST_LOCAL)
        earliest = await self._list(epochs, EARLIEST)
        questions = {
            partition: EpochQuestion(epochs[partition], LeaderEpoch(epoch - 1))
            for partition, (error, _, epoch) in local.items()
            if not error and epoch > 0
        }
        ends = await self.epoch_ends(questions) if questions else {}
        answers: dict[TopicPartition, TierAnswer] = {}
        for partition, (error, local_start, epoch) in local.items():
            start_error, log_start, _ = earliest.get(partition, _NO_ANSWER)
            before = ends.get(partition)
            if before is not None:
                error = error or before.error_code
                if before.end.end_offset > local_start - 1:
                    epoch = before.end.epoch
            answers[partition] = TierAnswer(error or start_error, local_start, log_start, epoch)
        return answers

    async def _list(
        self, epochs: dict[TopicPartition, LeaderEpoch], timestamp: int
    ) -> dict[TopicPartition, tuple[int, int, int]]:
        """Return (error, offset, epoch) of each partition."""
        topics: dict[str, ListOffsetsTopic] = {}
        for partition, epoch in epochs.items():
            topic = topics.setdefault(partition.topic, ListOffsetsTopic(name=partition.topic))
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=partition.partition, current_leader_epoch=epoch, timestamp=timestamp
                )
            )
        request = ListOffsetsRequest(replica_id=self._settings.broker_id, topics=list(topics.values()))
        response = await self._ready().request(
            request, ListOffsetsResponse, timeout_ms=self._settings.replica_socket_timeout_ms
        )
        return {
            TopicPartition(result.name, found.partition_index): (found.error_code, found.offset, found.leader_epoch)
            for result in response.topics
            for found in result.partitions
        }

    def _ready(self) -> LeaderConnection:
        if self._connection is None:
            raise ConnectionError(f"there is no connection to broker {self._broker}")
        return self._connection
