"""Computes where a promoted mirror and its former source diverge, so that the former source can follow. Pure.

The promoted cluster recorded what it copied: the former source's leader epochs, and the offset where copying stopped. Below
that offset the two logs are equal, unless the former source has lost records itself since.
"""

from collections.abc import Callable, Sequence

from barnabas.base.ids import Offset
from barnabas.broker.storage.epoch_cache import EpochEnd

#: (epoch, start offset), in order.
Epochs = Sequence[tuple[int, int]]


def last_divergence(promotions: Sequence[tuple[int, Epochs]]) -> tuple[int, Epochs]:
    """Select the latest of several promotions, each with its final offset and the copied epochs: two clusters may have followed
    each other more than once. Epochs of this log only grow, and within an epoch the log only grows."""
    return max(promotions, key=lambda each: (each[1][-1][0] if each[1] else -1, each[0]))


def divergence_offset(final_offset: int, epochs: Epochs, *, log_end: int, end_of: Callable[[int], EpochEnd]) -> Offset:
    """`epochs`: this log's epochs that the other cluster copied, with their start offsets. `end_of`: returns the latest epoch
    of this log up to the given one, and where it ends."""
    point = min(final_offset, log_end)
    if not epochs:
        return Offset(point)
    last = epochs[-1][0]
    ours = end_of(last)
    if ours.epoch < 0 or ours.end_offset < 0:
        return Offset(point)  # this log has no epochs that old
    point = min(point, ours.end_offset)
    for epoch, start in epochs:
        if epoch > ours.epoch:
            # This log has lost the epoch, or never had it: the logs agree up to its start at most.
            point = min(point, start)
            break
    return Offset(max(0, point))
