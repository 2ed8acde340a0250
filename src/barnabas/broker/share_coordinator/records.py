"""Records of `__share_group_state`, byte for byte as Kafka writes them: snapshots of a state, updates of it, tombstones."""

from collections.abc import Iterable
from typing import Final

from barnabas.base.errors import Malformed
from barnabas.broker.runtime.machine import KeyValue
from barnabas.broker.runtime.share_state import SharePartitionKey, StateBatch
from barnabas.broker.share_coordinator.state import Change, KeptState
from barnabas.wire.codec import decode_versioned, encode_versioned
from barnabas.wire.messages import share_state_records as wire
from barnabas.wire.messages.share_state_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)

#: The first two bytes of a key: the type of the record.
SNAPSHOT: Final = 0
UPDATE: Final = 1
_VALUE_VERSION: Final = 0
_KEY_CLASSES: Final[dict[int, type[ShareSnapshotKey] | type[ShareUpdateKey]]] = {
    SNAPSHOT: ShareSnapshotKey,
    UPDATE: ShareUpdateKey,
}


def snapshot(key: SharePartitionKey, state: KeptState) -> KeyValue:
    """Return the record of the whole state."""
    value = ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp=state.created_ms,
        write_timestamp=state.written_ms,
        state_batches=_to_wire(state.batches),
    )
    return KeyValue(_snapshot_key(key), encode_versioned(value, _VALUE_VERSION))


def update(key: SharePartitionKey, change: Change, *, snapshot_epoch: int) -> KeyValue:
    value = ShareUpdateValue(
        snapshot_epoch=snapshot_epoch,
        leader_epoch=change.leader_epoch,
        start_offset=change.start_offset,
        delivery_complete_count=change.delivery_complete_count,
        state_batches=_to_wire(change.batches),
    )
    encoded_key = encode_versioned(ShareUpdateKey(**key._asdict()), UPDATE)
    return KeyValue(encoded_key, encode_versioned(value, _VALUE_VERSION))


def tombstone(key: SharePartitionKey) -> KeyValue:
    return KeyValue(_snapshot_key(key), None)


def decode_key(data: bytes) -> tuple[int, SharePartitionKey] | None:
    """Return the type of the record and the key; None for a type of a newer Kafka, which Kafka ignores too."""
    record_type = int.from_bytes(data[:2], "big", signed=True) if len(data) >= 2 else -1
    key_class = _KEY_CLASSES.get(record_type)
    if key_class is None:
        return None
    key, _ = decode_versioned(key_class, data)
    return record_type, SharePartitionKey(key.group_id, key.topic_id, key.partition)


def decode_snapshot(data: bytes, *, before: KeptState | None, offset: int) -> KeptState:
    """Return the state of a snapshot at `offset`. `before`: the state that it replaces."""
    value, _ = decode_versioned(ShareSnapshotValue, data)
    return KeptState(
        snapshot_epoch=value.snapshot_epoch,
        # Kafka's snapshot of a new start may have lower epochs, which fence no leader.
        state_epoch=max(value.state_epoch, -1 if before is None else before.state_epoch),
        leader_epoch=max(value.leader_epoch, -1 if before is None else before.leader_epoch),
        start_offset=value.start_offset,
        delivery_complete_count=value.delivery_complete_count,
        batches=_from_wire(value.state_batches),
        created_ms=value.create_timestamp,
        written_ms=value.write_timestamp,
        updates=0,
        snapshot_offset=offset,
    )


def decode_update(data: bytes) -> Change:
    value, _ = decode_versioned(ShareUpdateValue, data)
    return Change(
        state_epoch=-1,  # updates do not change it
        leader_epoch=value.leader_epoch,
        start_offset=value.start_offset,
        delivery_complete_count=value.delivery_complete_count,
        batches=_from_wire(value.state_batches),
    )


def _snapshot_key(key: SharePartitionKey) -> bytes:
    return encode_versioned(ShareSnapshotKey(**key._asdict()), SNAPSHOT)


def _to_wire(batches: Iterable[StateBatch]) -> list[wire.StateBatch]:
    return [
        wire.StateBatch(
            first_offset=batch.first_offset,
            last_offset=batch.last_offset,
            delivery_state=batch.delivery_state,
            delivery_count=batch.delivery_count,
        )
        for batch in batches
    ]


def _from_wire(batches: Iterable[wire.StateBatch]) -> tuple[StateBatch, ...]:
    found = tuple(
        StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
        for batch in batches
    )
    if any(batch.last_offset < batch.first_offset for batch in found):
        raise Malformed("a state batch that ends before it begins")
    return found
