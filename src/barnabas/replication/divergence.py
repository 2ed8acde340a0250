"""The leader's side of truncation on fetch (KIP-595, Fetch from version 12): does this follower's log fit ours? Pure."""

from barnabas.core.errors import ErrorCode, Refused
from barnabas.replication.fetcher_machine import UNDEFINED, LocalLog
from barnabas.storage.epoch_cache import EpochEnd


def find_divergence(log: LocalLog, *, fetch_offset: int, last_fetched_epoch: int) -> EpochEnd | None:
    """None: the fetch may be served. Else the reply's `diverging_epoch`: the follower's log ends differently.

    A fetch that gets a diverging epoch says nothing of the follower's position: do not record it.
    """
    if last_fetched_epoch == UNDEFINED:
        return None
    end = log.end_offset_for_epoch(last_fetched_epoch)
    if end.end_offset == UNDEFINED or end.epoch == UNDEFINED:
        raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"nothing is known of leader epoch {last_fetched_epoch}")
    if fetch_offset < log.log_start:
        raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {fetch_offset} is before the log start {log.log_start}")
    if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset:
        return end
    return None
