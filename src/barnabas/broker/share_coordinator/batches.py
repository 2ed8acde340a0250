"""Combines the known state batches of a share partition with new ones. Pure.

The result is sorted and free of overlaps. Where batches overlap, the one with the higher delivery count wins, then the one
with the higher state: a delivery only goes forward, so a late or repeated write takes nothing back. Neighbours that agree are
joined as Kafka's PersisterStateBatchCombiner joins them: in the order of the offsets, while no third batch lies between.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from barnabas.broker.runtime.share_state import StateBatch

#: first offset, last offset, delivery count, delivery state: in this order Kafka sorts batches.
_Span = tuple[int, int, int, int]


def combine(known: Iterable[StateBatch], new: Iterable[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """Return the combined batches from `start_offset` on; -1 keeps them all."""
    spans = [
        (max(batch.first_offset, start_offset), batch.last_offset, batch.delivery_count, batch.delivery_state)
        for batches in (known, new)
        for batch in batches
        if batch.last_offset >= start_offset
    ]
    return tuple(StateBatch(first, last, state, count) for first, last, count, state in _without_overlaps(spans))


def _without_overlaps(spans: list[_Span]) -> list[_Span]:
    heapify(spans)
    done: list[_Span] = []
    while spans:
        span = heappop(spans)
        if not spans:
            done.append(span)
            break
        first, last, *delivery = span
        next_first, next_last, *next_delivery = spans[0]
        if delivery == next_delivery and next_first <= last + 1:
            heappop(spans)
            heappush(spans, (first, max(last, next_last), span[2], span[3]))
        elif next_first > last:
            done.append(span)
        else:
            following = heappop(spans)
            for piece in _split(span, following):
                heappush(spans, piece)
    return done


def _split(span: _Span, following: _Span) -> Iterable[_Span]:
    """Split two spans that overlap and differ. `following` begins in `span`."""
    first, last, count, state = span
    next_first, next_last, next_count, next_state = following
    if (next_count, next_state) > (count, state):
        yield following
        if first < next_first:
            yield first, next_first - 1, count, state
        if last > next_last:
            yield next_last + 1, last, count, state
    else:
        yield span
        if next_last > last:
            yield last + 1, next_last, next_count, next_state
