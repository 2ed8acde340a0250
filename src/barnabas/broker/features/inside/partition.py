"""One replica on this broker: the bounds of its log, its followers, its files."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from barnabas.base.host.disk import Disk
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.state import UNKNOWN_OFFSET, FollowerPosition, Role
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.producer_entry import ProducerEntry
from barnabas.broker.storage.segment import Segment

#: Limits of the lists; the last entries are shown.
SEGMENTS_MAX: Final = 100
EPOCHS_MAX: Final = 50
PRODUCERS_MAX: Final = 200


def replica(partition: Partition, *, now_ms: int) -> dict[str, Any]:
    """Return everything except the files, which `segments` looks up."""
    machine, log = partition.machine, partition.log
    view: dict[str, Any] = {
        "topic": partition.tp.topic,
        "partition": partition.tp.partition,
        "role": machine.role.value,
        "leader": machine.leader,
        "leader_epoch": machine.leader_epoch,
        "partition_epoch": machine.partition_epoch,
        "controller_epoch": machine.controller_epoch,
        "replicas": list(machine.replicas),
        "adding_replicas": list(machine.adding_replicas),
        "removing_replicas": list(machine.removing_replicas),
        "log": None if log is None else _offsets(log),
    }
    if machine.role is Role.LEADER and log is not None:
        pending = machine.pending
        view["leadership"] = {
            "isr": sorted(machine.isr),
            "proposed_isr": None if pending is None else sorted(pending.broker_ids),
            "min_isr": machine.effective_min_isr,
            "epoch_start_offset": machine.leader_epoch_start,
            "lag_time_max_ms": machine.replica_lag_time_max_ms,
            "followers": [_follower(each, log, now_ms) for each in machine.followers],
        }
    return view


def _offsets(log: Log) -> dict[str, Any]:
    epochs = log.epochs.entries
    return {
        "log_start": log.log_start_offset,
        "log_end": log.log_end_offset,
        "high_watermark": log.high_watermark,
        "last_stable_offset": log.last_stable_offset,
        "recovery_point": log.recovery_point,
        "size_bytes": log.size_bytes,
        "segment_count": len(log.segments),
        "producer_count": len(log.producers.producers),
        "epochs": [{"epoch": each.epoch, "start_offset": each.start_offset} for each in epochs[-EPOCHS_MAX:]],
        "epochs_left_out": max(0, len(epochs) - EPOCHS_MAX),
    }


def _follower(follower: FollowerPosition, log: Log, now_ms: int) -> dict[str, Any]:
    is_known = follower.log_end != UNKNOWN_OFFSET
    lag = log.log_end_offset - follower.log_end if is_known else None
    return {
        "broker": follower.broker_id,
        "in_sync": follower.in_maximal_isr,
        "log_start": follower.log_start if is_known else None,
        "log_end": follower.log_end if is_known else None,
        "lag_records": lag,
        # Time since the follower last had the leader's whole log; 0 if it has it now.
        "lag_ms": 0 if lag == 0 else _since(follower.last_caught_up_ms, now_ms),
        "last_fetch_ms_ago": _since(follower.last_fetch_ms, now_ms),
    }


def _since(at_ms: int, now_ms: int) -> int | None:
    """Milliseconds since a time; None for 0, which stands for never."""
    return max(0, now_ms - at_ms) if at_ms else None


def last_segments(log: Log) -> list[Segment]:
    """Return the newest segments. Runs on the event loop; `segments` may then look up their files on a thread."""
    return list(log.segments)[-SEGMENTS_MAX:]


def segments(last: Sequence[Segment], disk: Disk) -> list[dict[str, Any]]:
    """Look up file sizes; blocks on the disk. A file may have been deleted meanwhile, or not created yet."""
    return [
        {
            "base_offset": segment.base_offset,
            "size_bytes": segment.size_bytes,
            "is_active": segment.is_active,
            "created_ms": segment.created_ms,
            "files": {
                path.rpartition("/")[2]: size for path in segment.paths() if (size := _size(disk, path)) is not None
            },
        }
        for segment in last
    ]


def _size(disk: Disk, path: str) -> int | None:
    try:
        return disk.size(path)
    except OSError:
        return None


def producers(log: Log, *, now_ms: int) -> dict[str, Any]:
    """List producers: those with an open transaction first, then the most recent writers."""
    known = log.producers.producers
    order = sorted(known.values(), key=lambda each: (each.txn_first_offset is None, -each.last_timestamp))
    return {
        "count": len(known),
        "producers": [_producer(each, now_ms) for each in islice(order, PRODUCERS_MAX)],
        "left_out": max(0, len(known) - PRODUCERS_MAX),
    }


def _producer(entry: ProducerEntry, now_ms: int) -> dict[str, Any]:
    return {
        "producer_id": entry.producer_id,
        "epoch": entry.producer_epoch,
        "last_sequence": entry.last_sequence,
        "last_offset": entry.last_data_offset,
        "last_write_ms_ago": now_ms - entry.last_timestamp if entry.last_timestamp >= 0 else None,
        "coordinator_epoch": entry.coordinator_epoch,
        "transaction_first_offset": entry.txn_first_offset,
    }
