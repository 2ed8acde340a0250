"""Records of `__remote_log_metadata`: the classes of Kafka 3.9.1 read ours, and write the bytes of the golden file."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.broker.features.tiered.metadata_records import decode_event, describe, encode_event
from barnabas.broker.features.tiered.segment_metadata import RemoteSegment
from tests.interop import java_client, maven

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not maven.is_available(), reason="needs mvn and java"),
]
GOLDEN = Path(__file__).parents[1] / "golden/kafka-3.9.1/remote-log-metadata.tsv"


def kafka(*arguments: str, text: str = "") -> list[str]:
    command = java_client.compiled("3.9.1", "TierEvents", "kafka-storage")
    done = subprocess.run([*command, *arguments], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_kafka_writes_what_the_golden_file_has() -> None:
    assert kafka() == GOLDEN.read_text().splitlines()


def test_kafka_reads_our_records_as_we_do() -> None:
    events = [decode_event(bytes.fromhex(line.split("\t")[1])) for line in GOLDEN.read_text().splitlines()]
    # Kafka 3.9 does not know the tag for a segment without aborted transactions (KIP-1058), and skips it.
    events += [replace(each, txn_index_empty=True) for each in events if isinstance(each, RemoteSegment)]
    ours = [each for each in events if each is not None]
    assert kafka("read", text="\n".join(encode_event(each).hex() for each in ours)) == [describe(each) for each in ours]
