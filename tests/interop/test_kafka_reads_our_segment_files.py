"""Apache Kafka's DumpLogSegments reads what we write: batches of every codec, markers, indexes, snapshots.

It must print the same as our own tool for our files, and find no mismatch.
"""

import io
import random
import subprocess
from pathlib import Path

import pytest

from barnabas.base.ids import TopicPartition
from barnabas.broker.storage import names, producer_snapshot
from barnabas.broker.storage.dump.decoders import PlainDecoder
from barnabas.broker.storage.dump.dumper import DumpOptions, dump_files
from barnabas.broker.storage.dump.report import Report
from barnabas.broker.storage.offset_index import OffsetIndex
from barnabas.broker.storage.producer_append import AppendOrigin
from barnabas.broker.storage.producer_state import ProducerStateManager
from barnabas.broker.storage.time_index import TimeIndex
from barnabas.broker.storage.txn_index import AbortedTxn, TransactionIndex
from barnabas.wire.compression import LEVELS, Codec
from barnabas.wire.record_batch import iter_batches, patch_max_timestamp, read_header
from barnabas.wire.records import BatchBuilder, empty_batch, end_txn_marker, read_end_txn_marker
from tests.interop import maven

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not maven.is_available(), reason="needs mvn and java"),
]
KAFKA = "org.apache.kafka:kafka_2.13:3.9.1"
BASE = 1_000


class Segment:
    """Writes the files of one segment with the leaf modules alone."""

    def __init__(self, directory: Path) -> None:
        self.paths = [
            str(directory / name(BASE))
            for name in (names.log_file, names.index_file, names.time_index_file, names.txn_index_file)
        ]
        self.data = bytearray()
        self.end = BASE
        self.timestamp = 1_700_000_000_000
        self.producers = ProducerStateManager(TopicPartition("t", 0))

    def append(self, batch: bytes) -> None:
        self.data += batch
        self.end = read_header(batch).next_offset
        self.timestamp += 1_000

    def batch(self, codec: int, records: list[tuple[bytes | None, bytes | None]], **kwargs: object) -> bytes:
        builder = BatchBuilder(base_offset=self.end, codec=codec, leader_epoch=3, **kwargs)  # type: ignore[arg-type]
        for number, (key, value) in enumerate(records):
            headers = [("a", b"1"), ("b", None)] if number % 2 else []
            builder.append(key, value, timestamp=self.timestamp + number, headers=headers)
        return builder.build()

    def write(self, directory: Path) -> list[str]:
        log, index_path, time_path, txn_path = self.paths
        Path(log).write_bytes(self.data)
        index, times = OffsetIndex(index_path, BASE), TimeIndex(time_path, BASE)
        aborted = TransactionIndex(txn_path, BASE)
        for position, header in iter_batches(self.data):
            if position:
                index.append(header.last_offset, position)
            if header.record_count and not header.has_delete_horizon:
                times.maybe_append(header.max_timestamp, header.last_offset)
            marker = read_end_txn_marker(self.data, position, header) if header.is_control else None
            plan = self.producers.analyze([(header, marker)], AppendOrigin.REPLICATION)
            for append in plan.appends:
                self.producers.update(append)
            for done in plan.completed:
                if done.is_aborted:
                    stable = self.producers.last_stable_offset(done)
                    aborted.append(AbortedTxn(done.producer_id, done.first_offset, done.last_offset, stable))
                self.producers.complete_txn(done)
        index.close()
        times.close()
        snapshot = str(directory / names.snapshot_file(self.end))
        producer_snapshot.write(snapshot, self.producers.snapshot_entries())
        return [*self.paths, snapshot]


def fill(segment: Segment) -> None:
    noise = random.Random(5)
    long_value = b"the quick brown fox " * 10_000  # several blocks of every codec
    for codec in Codec:
        low, high, _ = LEVELS.get(codec, (None, None, None))
        for level in dict.fromkeys([None, low, high]):
            records = [(None, b"x"), (b"key", None), (b"", b""), (b"k", bytes(noise.choices(b"abcdefgh", k=90_000)))]
            segment.append(segment.batch(codec, [*records, (b"long", long_value)], level=level))
    sequence = 2**31 - 3
    batch = segment.batch(Codec.LZ4, [(b"a", b"1")] * 5, producer_id=7, producer_epoch=1, base_sequence=sequence)
    segment.append(batch)
    for commit in (True, False):
        transaction = {"producer_id": 8, "producer_epoch": 2, "transactional": True}
        segment.append(segment.batch(0, [(b"t", b"x")] * 2, base_sequence=0 if commit else 2, **transaction))
        segment.append(
            end_txn_marker(
                commit=commit,
                coordinator_epoch=4,
                producer_id=8,
                producer_epoch=2,
                timestamp=segment.timestamp,
                base_offset=segment.end,
                leader_epoch=3,
            )
        )
    appended = bytearray(segment.batch(Codec.ZSTD, [(b"a", b"b")] * 3))
    patch_max_timestamp(appended, 0, segment.timestamp + 5, log_append_time=True)
    segment.append(bytes(appended))
    segment.append(segment.batch(Codec.GZIP, [(b"gone", None)], delete_horizon_ms=segment.timestamp + 99_999))
    emptied = segment.batch(Codec.SNAPPY, [(b"a", b"b")] * 4, producer_id=9, producer_epoch=0, base_sequence=0)
    segment.append(empty_batch(read_header(emptied)))
    segment.append(
        segment.batch(0, [(b"last", b"one")], producer_id=10, producer_epoch=0, base_sequence=0, transactional=True)
    )


def kafkas_dump(*args: str) -> tuple[str, str]:
    command = ["java", "-cp", maven.classpath(KAFKA), "kafka.tools.DumpLogSegments", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, done.stderr


def our_dump(files: list[str], options: DumpOptions) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    dump_files(files, Report(out, err), options)
    return out.getvalue(), err.getvalue()


def without_logging(err: str) -> str:
    return "\n".join(line for line in err.splitlines() if not line.upper().startswith("SLF4J"))


def test_kafka_prints_for_our_files_what_we_print(tmp_path):
    segment = Segment(tmp_path)
    fill(segment)
    files = segment.write(tmp_path)
    theirs = kafkas_dump("--files", ",".join(files), "--print-data-log")
    ours = our_dump(files, DumpOptions(decoder=PlainDecoder()))
    assert theirs[0].splitlines() == ours[0].splitlines()
    # The emptied batch leaves a gap of offsets, which both report; nothing else is wrong.
    assert without_logging(theirs[1]) == ours[1].rstrip("\n")
    assert "isvalid: false" not in theirs[0]
    assert "Mismatch" not in theirs[1]
    assert len(ours[0].splitlines()) > 100


def test_kafka_finds_our_indexes_sane(tmp_path):
    segment = Segment(tmp_path)
    fill(segment)
    _, index, times, _, _ = segment.write(tmp_path)
    out, err = kafkas_dump("--files", f"{index},{times}", "--index-sanity-check")
    assert out.count("passed sanity check.") == 2
    assert without_logging(err) == ""
