"""Compare a mirror with its source: every batch, byte for byte, except for the epoch of the leader that wrote it.

Two sources of batches are compared: fetches, and the output of Kafka's `DumpLogSegments` on the files. They can differ only if
an index or an answer is wrong.
"""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, LATEST
from barnabas.client.blocking import BlockingClient
from barnabas.client.config import client_config
from barnabas.wire.record_batch import LOG_OVERHEAD, read_header
from tests.interop.kraft import java

#: Position of the epoch: after base offset and length. Four bytes, which the checksum does not cover.
_EPOCH_AT = LOG_OVERHEAD
#: Position in the file and leader epoch in the tool's output, which the mirror has of its own.
_OF_THE_FILE = re.compile(r"partitionLeaderEpoch: -?\d+ |position: \d+ ")


class Side(Protocol):
    """A cluster, Kafka's or ours."""

    @property
    def bootstrap(self) -> str: ...

    def log_dir(self, broker_id: int, /) -> Path: ...


def partitions_of(side: Side, topic: str) -> list[TopicPartition]:
    with BlockingClient(client_config(side.bootstrap)) as client:
        return [TopicPartition(topic, each.index) for each in client.refresh([topic]).topics[topic].partitions]


def offsets(side: Side, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
    """Return the first and the end offset of each partition."""
    with BlockingClient(client_config(side.bootstrap)) as client:
        starts = client.list_offsets(dict.fromkeys(partitions, EARLIEST))
        ends = client.list_offsets(dict.fromkeys(partitions, LATEST))
        return {each: (starts[each], ends[each]) for each in partitions}


def fetched_batches(side: Side, partition: TopicPartition) -> list[bytes]:
    """Return every batch that a consumer gets, from the first offset to the high watermark, without its leader epoch."""
    found: list[bytes] = []
    with BlockingClient(client_config(side.bootstrap)) as client:
        position = client.list_offsets({partition: EARLIEST})[partition]
        end = client.list_offsets({partition: LATEST})[partition]
        while position < end:
            fetched = client.fetch(partition, position, max_wait_ms=100)
            for pos, header in fetched.batches():
                if header.last_offset >= position:
                    batch = bytes(fetched.data[pos : pos + header.size_bytes])
                    found.append(batch[:_EPOCH_AT] + batch[_EPOCH_AT + 4 :])
                    position = header.last_offset + 1
    return found


def dumped_batches(sides: Sequence[Side], partition: TopicPartition) -> list[list[str]]:
    """Return, by side, the lines of `DumpLogSegments` for the leader's segments: batches and records, none of them invalid."""
    files = [_segments(side, partition) for side in sides]
    arguments = ["--files", ",".join(str(path) for each in files for path in each), "--print-data-log"]
    command = java("256m", "org.apache.kafka.tools.DumpLogSegments", *arguments, options=["-Dlog4j2.level=ERROR"])
    said = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout
    assert "isvalid: false" not in said
    by_file: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in said.splitlines():
        if line.startswith("Dumping "):
            lines = by_file[line.removeprefix("Dumping ")] = []
        elif line.startswith(("baseOffset: ", "|")):
            lines.append(_OF_THE_FILE.sub("", line))
    return [[line for path in each for line in by_file[str(path)]] for each in files]


def _segments(side: Side, partition: TopicPartition) -> list[Path]:
    with BlockingClient(client_config(side.bootstrap)) as client:
        client.refresh([partition.topic])
        leader = client.image.leader_of(partition)
    found = sorted((side.log_dir(leader) / f"{partition.topic}-{partition.partition}").glob("*.log"))
    assert found, f"broker {leader} has no segments of {partition}"
    return found


def assert_same(source: Side, mirror: Side, topic: str, *, files: bool = True) -> int:
    """Check for the same partitions, first and end offsets, and batches. Return the number of batches.

    `files`: also compare the files. Not if records were deleted: files keep them until their segment is deleted.
    """
    partitions = partitions_of(source, topic)
    assert partitions_of(mirror, topic) == partitions
    assert offsets(mirror, partitions) == offsets(source, partitions)
    count = 0
    for partition in partitions:
        theirs, ours = fetched_batches(source, partition), fetched_batches(mirror, partition)
        _assert_equal(partition, theirs, ours, lambda batch: str(_header(batch)))
        if files:
            dumped_theirs, dumped_ours = dumped_batches([source, mirror], partition)
            _assert_equal(partition, dumped_theirs, dumped_ours, str)
        count += len(theirs)
    return count


def _header(batch: bytes) -> Any:
    return read_header(batch[:_EPOCH_AT] + bytes(4) + batch[_EPOCH_AT:])


def _assert_equal(partition: TopicPartition, theirs: Sequence[Any], ours: Sequence[Any], show: Any) -> None:
    """Report only the first difference: ten thousand batches in an assertion are not readable."""
    for number, (one, other) in enumerate(zip(theirs, ours, strict=False)):
        assert one == other, f"{partition}: batch {number} differs\nsource: {show(one)}\nmirror: {show(other)}"
    assert len(theirs) == len(ours), f"{partition}: {len(theirs)} batches at the source, {len(ours)} in the mirror"
