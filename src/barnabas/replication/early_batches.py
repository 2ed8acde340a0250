"""Batches that come before their turn: an earlier one of their producer was refused a moment ago, and will come again.

A producer has up to five batches under way. After an election the new leader may refuse the first because it does not know
of its election yet, and know of it when the second arrives. Nothing is out of order then, the second is only early. Kafka
answers OUT_OF_ORDER_SEQUENCE_NUMBER, whereupon librdkafka raises its epoch and sends everything unacknowledged again, in
all partitions, also what had been written; or it appends the second batch before the first where it does not know the
producer. Here the second gets the first one's error, which is retriable, and both come again in their order.

A true gap is not hidden for long: a refusal speaks for at most the four batches that may follow it, and for two minutes.
Owner: the event loop.
"""

from typing import Final

from barnabas.core.clock import Clock
from barnabas.core.errors import RETRIABLE, ErrorCode
from barnabas.core.ids import NO_PRODUCER_ID, TopicPartition
from barnabas.protocol.record_batch import HEADER, HEADER_SIZE, MAGIC_AT, MAGIC_V2, BatchHeader
from barnabas.storage.log import Log
from barnabas.storage.producer_state import BATCHES_RETAINED, is_ahead

#: Producers and partitions that are remembered, about 3 MB. Beyond it the oldest goes, and Kafka's answer is given.
REFUSALS_MAX: Final = 10_000
#: `delivery.timeout.ms` of Java: after that the refused batch does not come again.
KEPT_S: Final = 120.0
#: Whether these bytes are what the producer sent is not known: its name would be no more certain.
_UNTRUSTED: Final = frozenset({ErrorCode.CORRUPT_MESSAGE})


class _Refusal:
    __slots__ = ("at_s", "code", "epoch", "followers_left", "sequence")

    def __init__(self, header: BatchHeader, code: ErrorCode, at_s: float) -> None:
        self.epoch = header.producer_epoch
        #: The first of the batch that was refused.
        self.sequence = header.base_sequence
        self.code = code
        self.at_s = at_s
        #: How many more batches may have been under way behind it.
        self.followers_left = BATCHES_RETAINED - 1

    def is_settled(self, log: Log | None, producer_id: int) -> bool:
        """Whether the refused batch has come by another way: through a leader in between, whose log this one copied."""
        entry = log.producers.entry(producer_id) if log is not None else None
        if entry is None or entry.producer_epoch < self.epoch:
            return False
        if entry.producer_epoch > self.epoch:
            return True
        return bool(entry.batches) and (
            entry.last_sequence == self.sequence or is_ahead(entry.last_sequence, of=self.sequence)
        )


class EarlyBatches:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Oldest first. Empty but for the moments after a refusal: the hot path looks at nothing else.
        self.refusals: dict[tuple[TopicPartition, int], _Refusal] = {}

    def refused(self, tp: TopicPartition, records: memoryview | bytearray, code: ErrorCode, log: Log | None) -> None:
        """A client's batch was refused with `code`, and nothing of it was written."""
        if code not in RETRIABLE or code in _UNTRUSTED:
            return
        header = _header(records)
        if header is None:
            return
        key = (tp, header.producer_id)
        known = self.refusals.get(key)
        if known is not None:
            comes_after = known.epoch == header.producer_epoch and is_ahead(header.base_sequence, of=known.sequence)
            if comes_after and not self._is_over(known) and not known.is_settled(log, header.producer_id):
                return
            del self.refusals[key]
        self.refusals[key] = _Refusal(header, code, self._clock.monotonic_s())
        if len(self.refusals) > REFUSALS_MAX:
            del self.refusals[next(iter(self.refusals))]

    def code_for(self, tp: TopicPartition, records: memoryview | bytearray, log: Log | None) -> ErrorCode:
        """What to answer a client's batch with that is early; NONE where it is not, and the log may judge it."""
        header = _header(records)
        if header is None:
            return ErrorCode.NONE
        key = (tp, header.producer_id)
        refusal = self.refusals.get(key)
        if refusal is None:
            return ErrorCode.NONE
        if header.producer_epoch == refusal.epoch and is_ahead(refusal.sequence, of=header.base_sequence):
            return ErrorCode.NONE  # a retry of one before it
        comes_again = header.base_sequence == refusal.sequence
        if (
            header.producer_epoch != refusal.epoch
            or comes_again
            or self._is_over(refusal)
            or refusal.is_settled(log, header.producer_id)
        ):
            del self.refusals[key]
            return ErrorCode.NONE
        refusal.followers_left -= 1
        if refusal.followers_left == 0:
            del self.refusals[key]
        return refusal.code

    def forget_old(self) -> None:
        """Now and then: producers that did not come again."""
        over = [key for key, refusal in self.refusals.items() if self._is_over(refusal)]
        for key in over:
            del self.refusals[key]

    def _is_over(self, refusal: _Refusal) -> bool:
        return self._clock.monotonic_s() - refusal.at_s > KEPT_S


def _header(records: memoryview | bytearray) -> BatchHeader | None:
    """Of an idempotent producer's batch; None for any other bytes."""
    if len(records) < HEADER_SIZE or records[MAGIC_AT] != MAGIC_V2:
        return None
    header = BatchHeader._make(HEADER.unpack_from(records))
    return None if header.producer_id == NO_PRODUCER_ID or header.is_control else header
