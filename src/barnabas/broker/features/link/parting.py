"""Where a mirror that was promoted and its former source part, so that the former source can follow. Pure.

The promoted cluster has noted what it copied: the former source's leader epochs, and the offset at which it stopped. Below that
offset the two logs are the same, unless the former source has lost records itself since.
"""

from collections.abc import Callable, Sequence

from barnabas.base.ids import Offset
from barnabas.broker.storage.epoch_cache import EpochEnd

#: (epoch, where it starts), in order.
Epochs = Sequence[tuple[int, int]]


def last_parting(told: Sequence[tuple[int, Epochs]]) -> tuple[int, Epochs]:
    """Of several promotions, each with its final offset and the epochs that it had copied: two clusters may have followed each
    other more than once. Epochs of this log only grow, and within one the log does."""
    return max(told, key=lambda each: (each[1][-1][0] if each[1] else -1, each[0]))


def point_of_parting(final_offset: int, epochs: Epochs, *, log_end: int, end_of: Callable[[int], EpochEnd]) -> Offset:
    """`epochs`: those of this log that the other has copied, and where each starts. `end_of`: the last epoch up to one that
    this log has, and where it ends."""
    point = min(final_offset, log_end)
    if not epochs:
        return Offset(point)
    last = epochs[-1][0]
    ours = end_of(last)
    if ours.epoch < 0 or ours.end_offset < 0:
        return Offset(point)  # this log knows no epochs as old
    point = min(point, ours.end_offset)
    for epoch, start in epochs:
        if epoch > ours.epoch:
            # Of an epoch that this log has lost, or never had: it agrees up to its start at most.
            point = min(point, start)
            break
    return Offset(max(0, point))
