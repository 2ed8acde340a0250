"""How batches get to their leaders: in order, several requests under way, and with a producer id each exactly once.

Pure: `Sender` decides, a shell sends. Every partition has a lane of batches. Batches of one leader share requests, one batch
of a partition to a request. When a batch fails in a way that may pass, its lane waits for what is under way behind it, and
what did not get through goes again, in the same order and with the same sequence numbers, one at a time until one is taken:
so the broker tells a duplicate from a new batch, and the order stays.

A batch that fails for good leaves a hole in the sequence. Without a transaction those behind it go on under a new producer
id, but for those that may have been written: they keep their numbers until a leader says that it has not got them. In a
transaction nothing can go on: all that is left fails with it, until `restart` says that the next one begins.
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

#: The leader has written it, and does not know whether it will stay.
_PERHAPS_WRITTEN: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
#: Behind a batch that failed these only mean "not yet".
_OUT_OF_TURN: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


@dataclass(slots=True, eq=False, kw_only=True)
class Outgoing:
    """A batch, from being given to the sender until it is acknowledged or given up. Each shell adds the records."""

    partition: TopicPartition
    size_bytes: int = 0
    record_count: int = 0
    #: Since when it counts for `delivery.timeout.ms`.
    added_at_s: float = 0.0
    #: It waits for company until then. Another batch behind it in its lane, or a full request, ends the wait.
    ripe_at_s: float = NEVER
    #: Whom it is sent as, and its place: set when it is sent the first time, kept over retries.
    identity: ProducerIdentity = NO_IDENTITY
    sequence: int = NO_SEQUENCE
    #: It was sent or given up: no more records may be added.
    closed: bool = False
    #: It may have been written: an attempt had no answer, or none that rules it out.
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
    #: Not under way; the last may be open for more records.
    waiting: deque[B] = field(default_factory=deque)
    #: Sent and not acknowledged, in order; those in `failed` have been refused.
    sent: list[B] = field(default_factory=list)
    failed: dict[B, ClientError] = field(default_factory=dict)
    next_sequence: int = 0
    identity: ProducerIdentity = NO_IDENTITY
    #: Not before then, after a failure.
    retry_at_s: float = 0.0
    #: After a failure: one batch at a time until one is taken.
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
        #: Those with batches that wait.
        self._busy: dict[TopicPartition, _Lane[B]] = {}
        self._in_flight: dict[int, int] = {}
        #: In the order they were added: a simulation must see the same order each time.
        self.unfinished: dict[B, None] = {}
        #: Send what waits, ripe or not.
        self.flushing = False
        #: Why the transaction cannot be committed.
        self.failure: ClientError | None = None
        #: Of the last `shipments`: topics whose leaders have to be looked up, and whether something due had to stay.
        self.unknown: dict[str, None] = {}
        self.held_back = False
        self.wake_at_s = NEVER

    # -- batches --------------------------------------------------------------------------------------------------------

    @property
    def needs_identity(self) -> bool:
        return self._idempotent and self._identity == NO_IDENTITY and bool(self._busy)

    @property
    def is_quiet(self) -> bool:
        """No request is under way."""
        return not any(self._in_flight.values())

    def identify(self, identity: ProducerIdentity) -> None:
        """The owner of lanes that have not begun, or have to start over."""
        self._identity = identity

    def restart(self, identity: ProducerIdentity) -> None:
        """A new transaction of a producer whose epoch was raised: sequences begin at zero."""
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
        """The requests that are due. Also sets `unknown`, `held_back` and `wake_at_s`."""
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
        """The lanes that may send now, and whether their first batch is due."""
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
        """Whether nothing may be under way before `head`, or behind what is: what fails would be overtaken."""
        return lane.cautious or self._is_left_over(lane, head) or self._is_left_over(lane, lane.sent[-1])

    def _cut(self, leader: int, lanes: list[tuple[bool, _Lane[B]]]) -> list[Shipment[B]]:
        """Requests of at most `request_bytes`. One goes if it is full or something in it is due."""
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
        """The batches that are finished by this: with their first offset, or with what went wrong for good."""
        self._in_flight[shipment.leader] -= 1
        finished: list[tuple[B, int | ClientError]] = []
        for batch in shipment.batches:
            if batch not in self.unfinished:
                continue  # given up with its transaction
            lane = self._lanes[batch.partition]
            result = outcome if isinstance(outcome, ClientError) else outcome[batch.partition]
            if isinstance(result, int):
                lane.sent.remove(batch)
                lane.cautious = False
                del self.unfinished[batch]  # at once: another one of this request may end the transaction
                finished.append((batch, result))
            elif self._may_pass(lane, batch, result):
                self._judge(lane, batch, result)
                lane.failed[batch] = result
            else:
                finished += self._give_up(lane, batch, result)
            is_given_up = self._lanes.get(batch.partition) is not lane  # with its transaction
            if not is_given_up and lane.failed and len(lane.failed) == len(lane.sent):
                finished += self._recover(lane, now_s)
        return self._without(finished)

    def looked_up(
        self, topics: Iterable[str], image: ClusterImage, error: ClientError, now_s: float
    ) -> list[tuple[B, int | ClientError]]:
        """What waits in these topics and has no leader in the image: later again, or never."""
        finished: list[tuple[B, int | ClientError]] = []
        asked = set(topics)
        for lane in [lane for lane in self._busy.values() if lane.partition.topic in asked]:
            if self._lanes.get(lane.partition) is not lane:
                break  # given up with its transaction
            if image.leader_of(lane.partition) >= 0:
                continue
            lane.retry_at_s = now_s + self._retry_backoff_s
            if not lane.sent:
                lane.failed[lane.waiting[0]] = error
                finished += self._recover(lane, now_s)
        return self._without(finished)

    def fail_all(self, error: ClientError) -> list[tuple[B, int | ClientError]]:
        """Give up whatever is unfinished; answers that still come mean nothing."""
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
        """What a refusal says of whether the batch is in the log."""
        if not isinstance(error, BrokerRefused) or error.code in _PERHAPS_WRITTEN:
            batch.is_doubtful = True
        elif error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            batch.is_doubtful = False
            if self._is_left_over(lane, batch):
                batch.sequence = NO_SEQUENCE  # it is not there, and the one before it never will be

    def _is_left_over(self, lane: _Lane[B], batch: B) -> bool:
        """Numbered behind a batch that was given up."""
        return self._idempotent and batch.sequence != NO_SEQUENCE and batch.identity != lane.identity

    def _recover(self, lane: _Lane[B], now_s: float) -> list[tuple[B, int | ClientError]]:
        """Nothing of the lane is under way: what failed goes again, or its time is up."""
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
        """The sequence has a hole where this batch was."""
        batch.closed = True
        if self._transactional:
            self.failure = error
            return self.fail_all(error)
        if batch in lane.sent:
            lane.sent.remove(batch)
        if self._idempotent:
            self._identity = lane.identity = NO_IDENTITY
            lane.next_sequence = 0
            # Those that may be in the log keep their numbers: under others they would be there twice.
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
    """The first offset of each partition's batch, or why there is none. A duplicate was taken before, nobody knows where."""
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
