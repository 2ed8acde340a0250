"""The offsets of a connector as Connect's REST shows and takes them (KIP-875), from and to checkpoints of Spark."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from barnabas.services.http.errors import Refusal, bad_request
from barnabas.spark import checkpoint_replan
from barnabas.spark.checkpoint_files import CheckpointFiles, location_of

_OFFSETS_MAX: Final = 1 << 62


def files_of(checkpoint: Path) -> CheckpointFiles:
    return CheckpointFiles(location_of(str(checkpoint)))


def sink_offsets(checkpoint: Path) -> list[dict[str, Any]]:
    """Return where the next batch of a sink begins, by topic and partition."""
    return [
        {
            "partition": {"kafka_topic": topic, "kafka_partition": int(partition)},
            "offset": {"kafka_offset": offset},
        }
        for topics in _committed(checkpoint)
        for topic, partitions in sorted((topics or {}).items())
        for partition, offset in sorted(partitions.items(), key=lambda each: int(each[0]))
    ]


def source_offsets(checkpoints: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Return the places of a source's flows, as each source writes its own."""
    return [
        {"partition": {"flow": flow}, "offset": place}
        for flow, checkpoint in sorted(checkpoints.items())
        for place in _committed(checkpoint)
    ]


def _committed(checkpoint: Path) -> Sequence[Any]:
    if not (checkpoint / "metadata").exists():
        return ()
    return checkpoint_replan.show(files_of(checkpoint)).committed_offsets


def wanted_offsets(document: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the offsets of a request, by topic and partition. :raises Refusal: if it has others than those of a sink."""
    given = document.get("offsets")
    if not isinstance(given, list) or not given:
        raise bad_request('offsets is a list of {"partition": {…}, "offset": {…}}')
    found: dict[str, dict[str, int]] = {}
    for each in given:
        match each:
            case {
                "partition": {"kafka_topic": str(topic), "kafka_partition": int(partition)},
                "offset": {"kafka_offset": int(offset)},
            } if partition >= 0 and 0 <= offset < _OFFSETS_MAX and not isinstance(offset, bool):
                found.setdefault(topic, {})[str(partition)] = offset
            case {"partition": {"kafka_topic": str()}, "offset": None}:
                raise bad_request("one partition cannot be reset alone: give it an offset, or DELETE all offsets")
            case _:
                raise bad_request(
                    'an offset of a sink is {"partition": {"kafka_topic": "t", "kafka_partition": 0}, '
                    '"offset": {"kafka_offset": 5}}'
                )
    return found


def set_sink_offsets(checkpoint: Path, wanted: Mapping[str, Mapping[str, int]]) -> None:
    """Let the next batch begin there. :raises Refusal: if the connector does not read these partitions."""
    if not (checkpoint / "metadata").exists():
        raise bad_request(
            "the connector has not written a batch yet: consumer.override.auto.offset.reset says where it begins"
        )
    files = files_of(checkpoint)
    try:
        change = checkpoint_replan.plan_set(files, wanted, source=None, keep_state=False)
        checkpoint_replan.apply(files, change)
    except checkpoint_replan.CannotReplan as error:
        raise Refusal(400, "BAD_REQUEST", str(error)) from None
