"""Batches that come before their turn: an earlier one of their producer was refused a moment ago, and will come again.

A producer has up to five batches under way. After an election the new leader may refuse the first because it does not know
of its election yet, and know of it when the second arrives; or the former leader refuses the first while librdkafka sends
the second to the new one. Nothing is out of order then, the second is only early. Kafka answers
OUT_OF_ORDER_SEQUENCE_NUMBER, whereupon librdkafka raises its epoch and sends everything unacknowledged again, in all
partitions, also what had been written; or it appends the second batch before the first where it does not know the
producer. Here the second gets a retriable error, and both come again in their order.

A true gap is not hidden for long: four batches may follow the one that is missing, so four times it is early. Then the log
judges, as it does where nothing was refused and no leader elected. Owner: the event loop.
"""

import struct
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

#: Producers and partitions that are remembered, about 3 MB. Beyond it the oldest goes, and Kafka's answer is given.
MISSING_MAX: Final = 10_000
#: `delivery.timeout.ms` of Java: after that the refused batch does not come again.
KEPT_S: Final = 120.0
#: How long a producer may have batches under way to the leader before this one.
ELECTED_S: Final = 10.0
#: For what another broker has refused. Clients repeat it, and do not look for another leader.
_NOT_YET: Final = ErrorCode.NOT_ENOUGH_REPLICAS
#: Whether these bytes are what the producer sent is not known: its name would be no more certain.
_UNTRUSTED: Final = frozenset({ErrorCode.CORRUPT_MESSAGE})

_producer_id = struct.Struct(">q").unpack_from


class _Missing:
    """A batch that has to come before those that follow it."""

    __slots__ = ("at_s", "code", "epoch", "followers_left", "sequence")

    def __init__(self, epoch: int, sequence: int, code: ErrorCode, at_s: float) -> None:
        self.epoch = epoch
        #: Its first.
        self.sequence = sequence
        self.code = code
        self.at_s = at_s
        #: How many more batches may have been under way behind it.
        self.followers_left = BATCHES_RETAINED - 1

    def has_come(self, log: Log | None, producer_id: int) -> bool:
        """Whether the log has it: through a leader in between, whose log this one copied."""
        entry = log.producers.entry(producer_id) if log is not None else None
        if entry is None or entry.producer_epoch != self.epoch:
            return entry is not None and entry.producer_epoch > self.epoch
        return bool(entry.batches) and not is_ahead(self.sequence, of=entry.last_sequence)


class EarlyBatches:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Oldest first.
        self.missing: dict[tuple[TopicPartition, int], _Missing] = {}
        #: When this broker was elected, where that was lately.
        self._elected_s: dict[TopicPartition, float] = {}
        #: Nothing was refused and nobody elected lately: the hot path looks at nothing else.
        self.is_quiet = True

    def elected(self, tp: TopicPartition) -> None:
        """This broker leads a partition that another one has led, or itself in another epoch."""
        self._elected_s[tp] = self._clock.monotonic_s()
        self.is_quiet = False

    def refused(self, tp: TopicPartition, records: memoryview | bytearray, code: ErrorCode, log: Log | None) -> None:
        """A client's batch was refused with `code`, and nothing of it was written."""
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
        """What to answer a client's batch with that is early; NONE where it is not, and the log may judge it."""
        if len(records) < HEADER_SIZE:
            return ErrorCode.NONE
        # All producers come here for a while after an election: most have no early batch.
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
        """What a producer leaves out soon after an election has probably been refused by the leader before."""
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
        """Now and then: producers that did not come again, and elections that are over."""
        if self.is_quiet:
            return
        now_s = self._clock.monotonic_s()
        self.missing = {key: missing for key, missing in self.missing.items() if now_s - missing.at_s <= KEPT_S}
        self._elected_s = {tp: at_s for tp, at_s in self._elected_s.items() if now_s - at_s <= ELECTED_S}
        self.is_quiet = not self.missing and not self._elected_s

    def _is_over(self, missing: _Missing) -> bool:
        return self._clock.monotonic_s() - missing.at_s > KEPT_S


def nameless(topic_id: bytes, partition: int) -> TopicPartition:
    """A partition of a topic of which only the id is known. No topic has such a name."""
    return TopicPartition(f"/{topic_id.hex()}", partition)


def _header(records: memoryview | bytearray) -> BatchHeader | None:
    """Of an idempotent producer's batch; None for any other bytes."""
    if len(records) < HEADER_SIZE or records[MAGIC_AT] != MAGIC_V2:
        return None
    header = BatchHeader._make(HEADER.unpack_from(records))
    return None if header.producer_id == NO_PRODUCER_ID or header.is_control else header
