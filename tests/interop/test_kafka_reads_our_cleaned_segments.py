"""Apache Kafka's DumpLogSegments reads segments that our cleaner wrote, prints what our tool prints, and finds no error."""

import random
from pathlib import Path

import pytest

from barnabas.broker.storage.dump.decoders import PlainDecoder
from barnabas.broker.storage.dump.dumper import DumpOptions
from barnabas.wire.compression import Codec
from tests.interop import maven
from tests.interop.test_kafka_reads_our_segment_files import kafkas_dump, our_dump, without_logging
from tests.unit.broker.storage.cleaner.cleaner_support import CONFIG, DELETE_RETENTION_MS, CompactedLog

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not maven.is_available(), reason="needs mvn and java"),
]


def cleaned(root: Path) -> CompactedLog:
    """Return a log with every codec, tombstones with horizons, markers with and without, emptied batches, merged segments."""
    log = CompactedLog(root, CONFIG)
    noise = random.Random(3)
    for number in range(300):
        codec = noise.choice(list(Codec))
        pairs = [
            (b"k%d" % noise.randrange(40), noise.choice([None, b"v" * noise.randrange(90)]))
            for _ in range(noise.randrange(1, 4))
        ]
        match number % 5:
            case 0:
                log.put(*pairs, codec=codec)
            case 1 | 2:
                log.put((b"i%d" % (number % 7), b"x"), codec=codec, producer=(5, 0, number // 5 * 2 + number % 5 - 1))
            case 3:
                log.put(*pairs[:1], codec=codec, producer=(6, 0, number // 5), transactional=True)
            case _:
                log.end_txn(6, 0, commit=noise.random() < 0.5)
        if number % 60 == 59:
            log.roll()
            log.clean()
            log.clock.advance_ms(DELETE_RETENTION_MS // 2)
    log.roll()
    log.clean()
    return log


def test_kafka_prints_for_cleaned_segments_what_we_print(tmp_path: Path) -> None:
    log = cleaned(tmp_path)
    headers = [batch.header for batch in log.batches()]
    assert any(header.has_delete_horizon and not header.is_control for header in headers)
    assert any(header.has_delete_horizon and header.is_control for header in headers)
    assert any(header.record_count == 0 for header in headers)
    assert {header.codec for header in headers} == set(Codec)
    files = [
        path for segment in log.log.segments for path in segment.paths() if Path(path).exists() and segment.size_bytes
    ]
    log.log.close()
    theirs = kafkas_dump("--files", ",".join(files), "--print-data-log")
    ours = our_dump(files, DumpOptions(decoder=PlainDecoder()))
    assert theirs[0].splitlines() == ours[0].splitlines()
    # Both report the gaps after compaction file by file, Kafka in the order of a hash map.
    assert sorted(without_logging(theirs[1]).splitlines()) == sorted(ours[1].splitlines())
    assert "isvalid: false" not in theirs[0]
    assert "Mismatch" not in theirs[1]


def test_kafka_finds_the_indexes_of_cleaned_segments_sane(tmp_path: Path) -> None:
    log = cleaned(tmp_path)
    indexes = [path for segment in log.log.segments if not segment.is_active for path in segment.paths()[1:3]]
    log.log.close()
    out, err = kafkas_dump("--files", ",".join(indexes), "--index-sanity-check")
    assert out.count("passed sanity check.") == len(indexes)
    assert without_logging(err) == ""
