"""How batches get to their leaders: in order, with several requests in flight, and exactly once with a producer id.

Pure: `Sender` decides, a shell sends. Every partition has a lane of batches. Batches for one leader share requests, with at
most one batch of each partition per request. After a retriable failure the lane waits for the requests that are in flight
behind the failed batch. Then it sends the failed batches again, in the same order and with the same sequence numbers, one at
a time until the broker accepts one. So the broker recognises duplicates, and the order stays.

A batch that fails for good leaves a gap in the sequence. Without a transaction the batches behind it continue under a new
producer id. Batches that may already be in the log keep their numbers until a leader answers that it does not have them. In
a transaction all remaining batches fail with it, until `restart` begins the next transaction.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.errors import BrokerRefused, ClientError, DeadlineExceeded
from barnabas.client.identity import NO_IDENTITY, ProducerIdentity
from barnabas.client.image import ClusterImage
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from barnabas.wire.record_batch import NO_SEQUENCE, increment_sequence

ACKS_ALL: Final = -1
NEVER: Final = float("inf")

#: The leader has written the batch, but does not know whether it will be kept.
_PERHAPS_WRITTEN: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
#: For a batch behind a failed one, these errors only mean that it came too early.
_OUT_OF_TURN: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


@dataclass(slots=True, eq=False, kw_only=True)
class Outgoing:
    """A batch, from `add` until it is acknowledged or given up. Each shell adds the records."""

    partition: TopicPartition
    size_bytes: int = 0
    record_count: int = 0
    #: When the time of `delivery.timeout.ms` begins.
    added_at_s: float = 0.0
    #: The end of `linger.ms`. Another batch behind it in its lane, or a full request, ends the wait earlier.
    ripe_at_s: float = NEVER
    #: The identity and sequence number of the batch: set when it is sent first, kept over retries.
    identity: ProducerIdentity = NO_IDENTITY
    sequence: int = NO_SEQUENCE
    #: The batch was sent or given up: no more records may be added.
    closed: bool = False
    #: The batch may be in the log: an attempt got no response, or one that does not exclude it.
    is_doubtful: bool = False


B = TypeVar("B", bound=Outgoing)


@dataclass(slots=True, eq=False)
class Shipment(Generic[B]):
    """The batches of one Produce request."""

    leader: int
    batches: list[B]


@dataclass(slots=True, eq=False)
class _Lane(Generic[B]):
    partition: TopicPartition
    #: Batches that are not in flight. Only the last one may be open for more records.
    waiting: deque[B] = field(default_factory=deque)
    #: Batches in flight, in order; `failed` holds those of them that were refused.
    sent: list[B] = field(default_factory=list)
    failed: dict[B, ClientError] = field(default_factory=dict)
    next_sequence: int = 0
    identity: ProducerIdentity = NO_IDENTITY
    #: After a failure, the earliest time of the next attempt.
    retry_at_s: float = 0.0
    #: Set after a failure: send one batch at a time until one succeeds.
    cautious: bool = False


class Sender(Generic[B]):
    def __init__(
        self,
        *,
        max_in_flight: int,
        request_bytes: int,
        retry_backoff_ms: int,
        delivery_timeout_ms: int,
        idempotent: bool,
        transactional: bool,
    ) -> None:
        self._max_in_flight = max_in_flight
        self._request_bytes = request_bytes
        self._retry_backoff_s = retry_backoff_ms / 1000
        self._delivery_timeout_ms = delivery_timeout_ms
        self._idempotent = idempotent
        self._transactional = transactional
        self._identity = NO_IDENTITY
        self._lanes: dict[TopicPartition, _Lane[B]] = {}
        #: Lanes that have waiting batches.
        self._busy: dict[TopicPartition, _Lane[B]] = {}
        self._in_flight: dict[int, int] = {}
        #: A dict, because it keeps the order of adding: a simulation must see the same order each time.
        self.unfinished: dict[B, None] = {}
        #: Send waiting batches before their linger ends.
        self.flushing = False
        #: Why the transaction cannot be committed.
        self.failure: ClientError | None = None
        #: Set by `shipments`: topics whose leaders are unknown, and whether a due batch could not be sent.
        self.unknown: dict[str, None] = {}
        self.held_back = False
        self.wake_at_s = NEVER

    # -- batches --------------------------------------------------------------------------------------------------------

    @property
    def needs_identity(self) -> bool:
        return self._idempotent and self._identity == NO_IDENTITY and bool(self._busy)

    @property
    def is_quiet(self) -> bool:
        """Whether no request is in flight."""
        return not any(self._in_flight.values())

    def identify(self, identity: ProducerIdentity) -> None:
        """Set the producer identity for new lanes and for lanes that start over."""
        self._identity = identity

    def restart(self, identity: ProducerIdentity) -> None:
        """Begin a new transaction of a producer whose epoch was raised: sequences begin at zero."""
        assert not self.unfinished, "the last transaction is still being written"
        self._lanes.clear()
        self._identity = identity
        self.failure = None

    def is_waiting(self, partition: TopicPartition) -> bool:
        return partition in self._busy

    def add(self, batch: B) -> None:
        lane = self._lanes.get(batch.partition)
        if lane is None:
            lane = self._lanes[batch.partition] = _Lane(batch.partition)
        lane.waiting.append(batch)
        self._busy[batch.partition] = lane
        self.unfinished[batch] = None

    # -- what to send ---------------------------------------------------------------------------------------------------

    def shipments(self, image: ClusterImage, now_s: float) -> list[Shipment[B]]:
        """Return the requests that are due. Also sets `unknown`, `held_back` and `wake_at_s`."""
        self.unknown.clear()
        self.held_back = False
        self.wake_at_s = NEVER
        if self.needs_identity:
            self.held_back = True
            return []
        found: list[Shipment[B]] = []
        while True:
            round_ = [
                each for leader, lanes in self._by_leader(image, now_s).items() for each in self._cut(leader, lanes)
            ]
            if not round_:
                return found
            found += round_

    def _by_leader(self, image: ClusterImage, now_s: float) -> dict[int, list[tuple[bool, _Lane[B]]]]:
        """Return by leader the lanes that may send now, and whether their first batch is due."""
        ready: dict[int, list[tuple[bool, _Lane[B]]]] = {}
        for partition, lane in self._busy.items():
            head = lane.waiting[0]
            is_due = self.flushing or len(lane.waiting) > 1 or head.ripe_at_s <= now_s
            if lane.failed or (lane.sent and self._goes_alone(lane, head)):
                self.held_back = True
            elif lane.retry_at_s > now_s:
                self.held_back = True
                self.wake_at_s = min(self.wake_at_s, lane.retry_at_s)
            elif (leader := image.leader_of(partition)) < 0:
                self.unknown[partition.topic] = None
                self.held_back = True
            elif self._in_flight.get(leader, 0) >= self._max_in_flight:
                self.held_back |= is_due
            else:
                if not is_due:
                    self.wake_at_s = min(self.wake_at_s, head.ripe_at_s)
                ready.setdefault(leader, []).append((is_due, lane))
        return ready

    def _goes_alone(self, lane: _Lane[B], head: B) -> bool:
        """Whether `head` must not be in flight together with another batch: a failed batch would be overtaken."""
        return lane.cautious or self._is_left_over(lane, head) or self._is_left_over(lane, lane.sent[-1])

    def _cut(self, leader: int, lanes: list[tuple[bool, _Lane[B]]]) -> list[Shipment[B]]:
        """Build requests of at most `request_bytes`. A request is sent if it is full or one of its batches is due."""
        shipments: list[Shipment[B]] = []
        some: list[_Lane[B]] = []
        size, has_due = 0, False
        for index, (is_due, lane) in enumerate(lanes):
            head_bytes = lane.waiting[0].size_bytes
            if some and size + head_bytes > self._request_bytes:
                shipments.append(self._ship(leader, some))
                some, size, has_due = [], 0, False
                if self._in_flight[leader] >= self._max_in_flight:
                    self.held_back |= any(is_due for is_due, _ in lanes[index:])
                    return shipments
            some.append(lane)
            size += head_bytes
            has_due |= is_due
        if has_due or size >= self._request_bytes:
            shipments.append(self._ship(leader, some))
        return shipments

    def _ship(self, leader: int, lanes: list[_Lane[B]]) -> Shipment[B]:
        batches = []
        for lane in lanes:
            batch = lane.waiting.popleft()
            if not lane.waiting:
                del self._busy[lane.partition]
            batch.closed = True
            if self._idempotent and batch.sequence == NO_SEQUENCE:
                if lane.identity == NO_IDENTITY:
                    lane.identity = self._identity
                batch.identity, batch.sequence = lane.identity, lane.next_sequence
                lane.next_sequence = increment_sequence(lane.next_sequence, batch.record_count)
            lane.sent.append(batch)
            batches.append(batch)
        self._in_flight[leader] = self._in_flight.get(leader, 0) + 1
        return Shipment(leader, batches)

    # -- what came of it ------------------------------------------------------------------------------------------------

    def answered(
        self, shipment: Shipment[B], outcome: Mapping[TopicPartition, int | ClientError] | ClientError, now_s: float
    ) -> list[tuple[B, int | ClientError]]:
        """Process a response; return finished batches with their first offset or their final error."""
        self._in_flight[shipment.leader] -= 1
        finished: list[tuple[B, int | ClientError]] = []
        for batch in shipment.batches:
            if batch not in self.unfinished:
                continue  # the batch failed together with its transaction
            lane = self._lanes[batch.partition]
            result = outcome if isinstance(outcome, ClientError) else outcome[batch.partition]
            if isinstance(result, int):
                lane.sent.remove(batch)
                lane.cautious = False
                del self.unfinished[batch]  # before the next batch, which may fail the transaction
                finished.append((batch, result))
            elif self._may_pass(lane, batch, result):
                self._judge(lane, batch, result)
                lane.failed[batch] = result
            else:
                finished += self._give_up(lane, batch, result)
            is_given_up = self._lanes.get(batch.partition) is not lane  # the lane failed together with its transaction
            if not is_given_up and lane.failed and len(lane.failed) == len(lane.sent):
                finished += self._recover(lane, now_s)
        return self._without(finished)

    def looked_up(
        self, topics: Iterable[str], image: ClusterImage, error: ClientError, now_s: float
    ) -> list[tuple[B, int | ClientError]]:
        """Retry the batches of these topics that still have no leader, or fail those whose time is up."""
        finished: list[tuple[B, int | ClientError]] = []
        asked = set(topics)
        for lane in [lane for lane in self._busy.values() if lane.partition.topic in asked]:
            if self._lanes.get(lane.partition) is not lane:
                break  # the lane failed together with its transaction
            if image.leader_of(lane.partition) >= 0:
                continue
            lane.retry_at_s = now_s + self._retry_backoff_s
            if not lane.sent:
                lane.failed[lane.waiting[0]] = error
                finished += self._recover(lane, now_s)
        return self._without(finished)

    def fail_all(self, error: ClientError) -> list[tuple[B, int | ClientError]]:
        """Fail all unfinished batches; later responses are ignored."""
        finished: list[tuple[B, int | ClientError]] = [(batch, error) for batch in self.unfinished]
        for batch in self.unfinished:
            batch.closed = True
        self.unfinished.clear()
        self._busy.clear()
        self._lanes.clear()
        return finished

    def _without(self, finished: list[tuple[B, int | ClientError]]) -> list[tuple[B, int | ClientError]]:
        for batch, _ in finished:
            self.unfinished.pop(batch, None)
        return finished

    def _may_pass(self, lane: _Lane[B], batch: B, error: ClientError) -> bool:
        if error.retriable:
            return True
        is_behind = lane.sent[0] is not batch or self._is_left_over(lane, batch)
        return is_behind and isinstance(error, BrokerRefused) and error.code in _OUT_OF_TURN

    def _judge(self, lane: _Lane[B], batch: B, error: ClientError) -> None:
        """Decide from an error whether the batch may be in the log."""
        if not isinstance(error, BrokerRefused) or error.code in _PERHAPS_WRITTEN:
            batch.is_doubtful = True
        elif error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            batch.is_doubtful = False
            if self._is_left_over(lane, batch):
                batch.sequence = NO_SEQUENCE  # it is not in the log, and the batch before it will never be

    def _is_left_over(self, lane: _Lane[B], batch: B) -> bool:
        """Whether the batch still has a number from before a gap in the sequence."""
        return self._idempotent and batch.sequence != NO_SEQUENCE and batch.identity != lane.identity

    def _recover(self, lane: _Lane[B], now_s: float) -> list[tuple[B, int | ClientError]]:
        """Queue all failed batches again, or fail the first if its time is up. No batch of the lane is in flight."""
        error = next(iter(lane.failed.values()))
        for batch in reversed(lane.sent):
            lane.waiting.appendleft(batch)
        lane.sent.clear()
        lane.failed.clear()
        lane.cautious = True
        lane.retry_at_s = now_s + self._retry_backoff_s
        self._busy[lane.partition] = lane
        first = lane.waiting[0]
        if (now_s - first.added_at_s) * 1000 <= self._delivery_timeout_ms:
            return []
        lane.waiting.popleft()
        if not lane.waiting:
            del self._busy[lane.partition]
        late = DeadlineExceeded(f"{lane.partition}: not delivered in {self._delivery_timeout_ms} ms: {error}")
        late.__cause__ = error
        return self._give_up(lane, first, late)

    def _give_up(self, lane: _Lane[B], batch: B, error: ClientError) -> list[tuple[B, int | ClientError]]:
        """Fail a batch. It leaves a gap in the sequence."""
        batch.closed = True
        if self._transactional:
            self.failure = error
            return self.fail_all(error)
        if batch in lane.sent:
            lane.sent.remove(batch)
        if self._idempotent:
            self._identity = lane.identity = NO_IDENTITY
            lane.next_sequence = 0
            # Batches that may be in the log keep their numbers: with new ones they could be written twice.
            for other in lane.waiting:
                if not other.is_doubtful:
                    other.sequence = NO_SEQUENCE
        return [(batch, error)]


# -- the wire -----------------------------------------------------------------------------------------------------------


def produce_request(
    batches: Iterable[tuple[TopicPartition, bytes | memoryview]],
    image: ClusterImage,
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None,
) -> ProduceRequest:
    topics: dict[str, list[PartitionProduceData]] = {}
    for (topic, index), data in batches:
        topics.setdefault(topic, []).append(PartitionProduceData(index=index, records=data))
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(name=name, topic_id=image.topic_id(name), partition_data=parts)
            for name, parts in topics.items()
        ],
    )


def produce_outcome(request: ProduceRequest, response: ProduceResponse) -> dict[TopicPartition, int | ClientError]:
    """Return the first offset of each partition's batch, or its error. A duplicate has -1: its offset is unknown."""
    outcome: dict[TopicPartition, int | ClientError] = {
        TopicPartition(topic.name, part.index): BrokerRefused(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"no answer for {topic.name}-{part.index}"
        )
        for topic in request.topic_data
        for part in topic.partition_data
    }
    names = {topic.topic_id: topic.name for topic in request.topic_data}
    for topic in response.responses:
        for part in topic.partition_responses:
            where = TopicPartition(topic.name or names.get(topic.topic_id, ""), part.index)
            if part.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                outcome[where] = -1
            elif part.error_code:
                words = f"{where}: {part.error_message}" if part.error_message else str(where)
                outcome[where] = BrokerRefused(part.error_code, words)
            else:
                outcome[where] = part.base_offset
    return outcome
