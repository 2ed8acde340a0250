"""Batches that arrive too early: an earlier batch of their producer was refused a moment ago, and will be sent again.

A producer has up to five batches in flight. After an election the new leader may refuse the first one because it does not know
of its election yet, and know of it when the second one arrives. Or the former leader refuses the first one while librdkafka
sends the second one to the new leader. The second batch is not out of order then, only early.

Kafka answers OUT_OF_ORDER_SEQUENCE_NUMBER, and librdkafka raises its epoch and sends everything unacknowledged again, in all
partitions, also batches that had been written. If Kafka does not know the producer, it appends the second batch before the
first.
Here the second batch gets a retriable error, and the producer sends both again in order.

A real gap is not hidden for long: at most four batches may follow the missing one, so the error is sent at most four times.
After that the log judges, as it does if nothing was refused and no leader elected. Owner: the event loop.
"""

import struct
from dataclasses import dataclass
from typing import Final

from barnabas.base.clock import Clock
from barnabas.base.errors import RETRIABLE, ErrorCode
from barnabas.base.ids import NO_PRODUCER_ID, TopicPartition
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.producer_entry import BATCHES_RETAINED, is_ahead
from barnabas.wire.record_batch import (
    HEADER,
    HEADER_SIZE,
    MAGIC_AT,
    MAGIC_V2,
    PRODUCER_ID_AT,
    BatchHeader,
    increment_sequence,
)

#: Remembered pairs of producer and partition, about 3 MB. Above this the oldest is forgotten, and Kafka's answer is given.
MISSING_MAX: Final = 10_000
#: `delivery.timeout.ms` of the Java client: later than that the producer does not send the refused batch again.
KEPT_S: Final = 120.0
#: How long after an election a producer may have batches in flight to the former leader.
ELECTED_S: Final = 10.0
#: Answer when another broker has refused the missing batch. Clients retry, and do not look for another leader.
_NOT_YET: Final = ErrorCode.NOT_ENOUGH_REPLICAS
#: With these errors the bytes may be corrupt, and so may the producer id in them.
_UNTRUSTED: Final = frozenset({ErrorCode.CORRUPT_MESSAGE})

_producer_id = struct.Struct(">q").unpack_from


@dataclass(slots=True)
class _Missing:
    """A refused batch that has to come before those that follow it."""

    epoch: int
    #: First sequence number of the batch.
    sequence: int
    code: ErrorCode
    at_s: float
    #: How many more batches may have been in flight behind it.
    followers_left: int = BATCHES_RETAINED - 1

    def has_come(self, log: Log | None, producer_id: int) -> bool:
        """Whether the log has the batch: it may have got it from a leader in between."""
        entry = log.producers.entry(producer_id) if log is not None else None
        if entry is None or entry.producer_epoch != self.epoch:
            return entry is not None and entry.producer_epoch > self.epoch
        return bool(entry.batches) and not is_ahead(self.sequence, of=entry.last_sequence)


class EarlyBatches:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Refused batches by partition and producer, oldest first.
        self.missing: dict[tuple[TopicPartition, int], _Missing] = {}
        #: When this broker became leader, for recent elections.
        self._elected_s: dict[TopicPartition, float] = {}
        #: True while no batch was refused and no leader elected lately: then the hot path checks nothing else.
        self.is_quiet = True

    def elected(self, tp: TopicPartition) -> None:
        """This broker leads a partition that another broker led before, or that it led itself in an earlier epoch."""
        self._elected_s[tp] = self._clock.monotonic_s()
        self.is_quiet = False

    def refused(self, tp: TopicPartition, records: memoryview | bytearray, code: ErrorCode, log: Log | None) -> None:
        """Note that a client's batch was refused with `code`, and that nothing of it was written."""
        if code not in RETRIABLE or code in _UNTRUSTED:
            return
        header = _header(records)
        if header is None:
            return
        known = self.missing.get((tp, header.producer_id))
        if known is not None and known.followers_left and known.epoch == header.producer_epoch:
            comes_after = is_ahead(header.base_sequence, of=known.sequence)
            if comes_after and not self._is_over(known) and not known.has_come(log, header.producer_id):
                return
        self._add(tp, header.producer_id, header.producer_epoch, header.base_sequence, code)

    def _add(self, tp: TopicPartition, producer_id: int, epoch: int, sequence: int, code: ErrorCode) -> _Missing:
        self.missing.pop((tp, producer_id), None)
        missing = self.missing[tp, producer_id] = _Missing(epoch, sequence, code, self._clock.monotonic_s())
        if len(self.missing) > MISSING_MAX:
            del self.missing[next(iter(self.missing))]
        self.is_quiet = False
        return missing

    def code_for(self, tp: TopicPartition, records: memoryview | bytearray, log: Log | None) -> ErrorCode:
        """Return the error for a client's batch that is early; NONE if it is not early, and the log may judge it."""
        if len(records) < HEADER_SIZE:
            return ErrorCode.NONE
        # For a while after an election all producers come here, and most have no early batch.
        key = (tp, _producer_id(records, PRODUCER_ID_AT)[0])
        missing = self.missing.get(key)
        if missing is None and tp not in self._elected_s:
            return ErrorCode.NONE
        header = _header(records)
        if header is None:
            return ErrorCode.NONE
        if missing is not None and (
            header.producer_epoch != missing.epoch
            or header.base_sequence == missing.sequence
            or self._is_over(missing)
            or missing.has_come(log, header.producer_id)
        ):
            del self.missing[key]
            missing = None
        if missing is None and tp in self._elected_s:
            missing = self._missing_since_election(tp, header, log)
        if missing is None or not missing.followers_left or not is_ahead(header.base_sequence, of=missing.sequence):
            return ErrorCode.NONE
        missing.followers_left -= 1
        return missing.code

    def _missing_since_election(self, tp: TopicPartition, header: BatchHeader, log: Log | None) -> _Missing | None:
        """Return the batch that a producer skips soon after an election: the former leader has probably refused it."""
        if log is None or self._clock.monotonic_s() - self._elected_s[tp] > ELECTED_S:
            return None
        entry = log.producers.entry(header.producer_id)
        expected = 0
        if entry is not None and entry.producer_epoch == header.producer_epoch and entry.batches:
            expected = increment_sequence(entry.last_sequence, 1)
        if not is_ahead(header.base_sequence, of=expected):
            return None
        return self._add(tp, header.producer_id, header.producer_epoch, expected, _NOT_YET)

    def forget_old(self) -> None:
        """Forget producers that did not come again, and old elections. Called periodically."""
        if self.is_quiet:
            return
        now_s = self._clock.monotonic_s()
        self.missing = {key: missing for key, missing in self.missing.items() if now_s - missing.at_s <= KEPT_S}
        self._elected_s = {tp: at_s for tp, at_s in self._elected_s.items() if now_s - at_s <= ELECTED_S}
        self.is_quiet = not self.missing and not self._elected_s

    def _is_over(self, missing: _Missing) -> bool:
        return self._clock.monotonic_s() - missing.at_s > KEPT_S


def nameless(topic_id: bytes, partition: int) -> TopicPartition:
    """Return a stand-in for a partition whose topic is known by id only. No topic can have such a name."""
    return TopicPartition(f"/{topic_id.hex()}", partition)


def _header(records: memoryview | bytearray) -> BatchHeader | None:
    """Decode the header of an idempotent producer's batch; None for any other bytes."""
    if len(records) < HEADER_SIZE or records[MAGIC_AT] != MAGIC_V2:
        return None
    header = BatchHeader._make(HEADER.unpack_from(records))
    return None if header.producer_id == NO_PRODUCER_ID or header.is_control else header
