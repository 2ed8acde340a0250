"""Which of the records that were read from the log a member is given. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.share.machine import ShareMachine
from barnabas.broker.share.records import Acquired, AcquireMode, LogBatch, Run, ShareLimits
from barnabas.wire.record_batch import BatchHeader

if TYPE_CHECKING:
    from barnabas.broker.storage.txn_index import AbortedTxn

#: Records are not set apart before they were delivered this often, whatever the limit.
_SUSPICIOUS_DELIVERIES_MIN: Final = 2


class Wish(NamedTuple):
    """The limits of a request for records."""

    records_max: int
    #: Acquired records are announced in ranges of about this size, which the member acknowledges together.
    batch_size: int
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED


def deliverable(headers: Iterable[BatchHeader], aborted: "Sequence[AbortedTxn] | None") -> Iterator[LogBatch]:
    """Yield the batches as share groups see them. `aborted`: the aborted transactions among them; None reads them all."""
    ahead = sorted(aborted or (), key=lambda txn: txn.first_offset, reverse=True)
    aborting: set[int] = set()
    for header in headers:
        while ahead and ahead[-1].first_offset <= header.last_offset:
            aborting.add(ahead.pop().producer_id)
        if header.is_control:
            # The marker ends the transaction that is known to be aborted.
            aborting.discard(header.producer_id)
        is_aborted = header.is_transactional and header.producer_id in aborting
        yield LogBatch(header.base_offset, header.last_offset, not header.is_control and not is_aborted)


def acquire(
    machine: ShareMachine, member: str, batches: Iterable[LogBatch], wish: Wish, *, from_offset: int, now_ms: int
) -> list[Acquired]:
    """Give a member records of these batches, which the log has from `from_offset` on, without a gap unless it has one itself.

    Offsets between the batches are forgotten: compaction has removed them. `from_offset` was `machine.next_offset()` before the
    log was read.
    """
    grant = _Grant(machine, member, wish, now_ms)
    position = max(from_offset, machine.start)
    for batch in batches:
        if batch.last < position:
            continue
        if grant.is_over or (position >= machine.end and machine.in_flight >= machine.limits.in_flight_max):
            break
        if batch.first > position:
            machine.remove(position, batch.first - 1)
        position, first = batch.last + 1, max(position, batch.first)
        if batch.is_deliverable:
            grant.take(first, batch.last)
        else:
            machine.remove(first, batch.last)
    return grant.acquired


class _Grant:
    """The records that one request gets."""

    def __init__(self, machine: ShareMachine, member: str, wish: Wish, now_ms: int) -> None:
        self._machine = machine
        self._member = member
        self._wish = wish
        self._now_ms = now_ms
        self._count = 0
        #: Set if the records have failed often: how many more of them this request may get. It gets no others.
        self._portion: int | None = None
        self.acquired: list[Acquired] = []
        self.is_over = wish.records_max <= 0

    def take(self, first: int, last: int) -> None:
        """Take from one batch of the log: first what others gave back, then what was never delivered."""
        before = self._count
        machine, in_flight_max = self._machine, self._machine.limits.in_flight_max
        while not self.is_over and (run := machine.available(first, last)) is not None:
            start, end = max(run.first, first), min(run.last, last)
            if self._may_have(run):
                self._lock(start, end, is_same_batch=self._count > before)
        if last >= machine.end and not self.is_over:
            room = in_flight_max - machine.in_flight
            if room <= 0 or self._portion is not None:
                self.is_over = True
                return
            if self._wish.mode is AcquireMode.RECORD_LIMIT:
                last = min(last, machine.end + room - 1)
            self._lock(machine.end, last, is_same_batch=self._count > before)
        self.is_over = self.is_over or self._count >= self._wish.records_max

    def _may_have(self, run: Run) -> bool:
        portion = _portion(run, self._machine.limits)
        if not self._count:
            self._portion = portion
        elif portion is not None or self._portion is not None:
            # Suspicious records come alone, with those that have failed as often.
            self.is_over = self._portion is None or run.delivery_count + 1 != self.acquired[-1].delivery_count
        return not self.is_over

    def _lock(self, first: int, last: int, *, is_same_batch: bool) -> None:
        """Lock available records, at least one. `is_same_batch`: the last ones are of the same batch of the log."""
        if self._wish.mode is AcquireMode.RECORD_LIMIT:
            last = min(last, first + self._wish.records_max - self._count - 1)
        if self._portion is not None:
            last = min(last, first + self._portion - 1)
            self._portion -= last - first + 1
            self.is_over = self._portion == 0
        delivery_count = self._machine.lock(self._member, first, last, now_ms=self._now_ms)
        self._count += last - first + 1
        if self._wish.mode is AcquireMode.RECORD_LIMIT:
            self.is_over = self.is_over or self._count >= self._wish.records_max
        before = self.acquired[-1] if self.acquired else None
        if (
            before is not None
            and before.last + 1 == first
            and before.delivery_count == delivery_count
            and (is_same_batch or before.last - before.first + 1 < self._wish.batch_size)
        ):
            self.acquired[-1] = before._replace(last=last)
        else:
            self.acquired.append(Acquired(first, last, delivery_count))


def _portion(run: Run, limits: ShareLimits) -> int | None:
    """Return how many records are delivered at once if they have failed often; None: there is no reason to set them apart.

    One record that no member can process takes with it the records that are delivered together with it. So the portion is
    halved with each further delivery, and the last delivery is of one record alone.
    """
    count, limit = run.delivery_count, limits.delivery_count_limit
    if limit > 2 and count >= limit - 1:
        return 1
    if count >= max(_SUSPICIOUS_DELIVERIES_MIN, (limit + 1) // 2):
        return max(1, run.size // 2)
    return None
