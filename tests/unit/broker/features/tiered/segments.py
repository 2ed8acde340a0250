"""Segments in the tier, for tests."""

from barnabas.base.ids import BrokerId, LeaderEpoch, Offset, TopicId
from barnabas.broker.features.tiered.segment_metadata import RemoteSegment, RemoteSegmentId, SegmentState, SegmentUpdate

TOPIC_ID = TopicId(bytes(range(16)))


def segment(
    number: int, start: int, end: int, epochs: dict[int, int] | None = None, **changed: object
) -> RemoteSegment:
    """A segment whose copy has started. `epochs`: their start offsets; by default one epoch, 0."""
    given = {0: start} if epochs is None else epochs
    values: dict[str, object] = {
        "id": RemoteSegmentId(TOPIC_ID, "orders", 0, number.to_bytes(16, "big")),
        "start_offset": Offset(start),
        "end_offset": Offset(end),
        "max_timestamp": 1000 + end,
        "broker_id": BrokerId(1),
        "event_ms": 5000,
        "size_bytes": 10 * (end - start + 1),
        "epochs": {LeaderEpoch(epoch): Offset(at) for epoch, at in given.items()},
        **changed,
    }
    return RemoteSegment(**values)  # type: ignore[arg-type]


def update(of: RemoteSegment, state: SegmentState) -> SegmentUpdate:
    return SegmentUpdate(of.id, state, 6000, BrokerId(1))
