"""`barnabas dump-log`: Kafka's own output for Kafka's own files, and what it says of damaged ones."""

import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.broker.storage.dump.decoders import UnknownDecoder, decoder_of_class
from barnabas.broker.storage.dump.dumper import DumpOptions, dump_files
from barnabas.broker.storage.dump.report import Report
from barnabas.cli.main import app
from barnabas.wire.codec import encode_versioned
from barnabas.wire.compression import Codec
from barnabas.wire.internal_records import OffsetsDecoder, TransactionLogDecoder
from barnabas.wire.json_form import message_to_json
from barnabas.wire.messages.consumer_group_records import (
    ClassicMemberMetadata,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    TopicPartitions,
)
from barnabas.wire.messages.offsets_topic import GroupMetadataValue, MemberMetadata, OffsetCommitKey
from barnabas.wire.messages.transaction_log import TransactionLogKey, TransactionLogValue
from barnabas.wire.records import BatchBuilder, Record, end_txn_marker
from tests.support.command_line import CliRunner

GOLDEN = Path(__file__).parents[4] / "golden" / "kafka-3.9.1"
BROKER = GOLDEN / "broker-0"
#: Kafka's dump was made with the log directory under this name.
THEIR_DIR = "logs0/"
FLAGS = {"__consumer_offsets": "--offsets-decoder", "__transaction_state": "--transaction-log-decoder"}


def dump(*args: str | Path) -> "Outcome":
    result = CliRunner().invoke(app, ["dump-log", *map(str, args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.stdout, result.stderr, result.exit_code)


class Outcome:
    def __init__(self, out: str, err: str, code: int) -> None:
        self.out, self.err, self.code = out, err, code

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@pytest.mark.parametrize("path", sorted((GOLDEN / "dump").glob("*.txt")), ids=lambda path: path.stem)
def test_output_equals_kafkas_own(path: Path):
    expected = path.read_text()
    files = re.findall(rf"^Dumping {THEIR_DIR}(.*)$", expected, re.MULTILINE)
    assert files
    outcome = dump("--files", ",".join(str(BROKER / file) for file in files), FLAGS.get(path.stem, "--print-data-log"))
    assert outcome.out.replace(f"{BROKER}/", THEIR_DIR) == expected
    assert outcome.err == ""
    assert outcome.code == 0


def test_every_file_of_the_broker_is_dumped_without_a_finding():
    files = sorted(
        path for path in BROKER.glob("*/*") if path.suffix in (".log", ".index", ".timeindex", ".snapshot", ".txnindex")
    )
    assert len(files) > 100
    for flags in ([], ["--deep-iteration"], ["--verify-index-only"], ["--index-sanity-check"], ["--json"]):
        outcome = dump("--files", ",".join(map(str, files)), *flags)
        assert outcome.err == ""
        assert outcome.code == 0
        assert outcome.out.count("Dumping" if "--json" not in flags else '"kind": "file"') == len(files)


def test_command_is_installed_and_writes_utf8():
    path = BROKER / "keyed-0" / "00000000000000000000.log"
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            "from barnabas.cli.main import main; main()",
            "dump-log",
            "--files",
            path,
            "--print-data-log",
        ],
        capture_output=True,
        check=True,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )
    assert result.stdout.decode().replace(f"{BROKER}/", THEIR_DIR) == (GOLDEN / "dump" / "keyed-0.txt").read_text()


def test_without_flags_only_batches_are_printed():
    path = BROKER / "keyed-0" / "00000000000000000000.log"
    assert [line.split(" ", 1)[0] for line in dump("--files", path).lines] == ["Dumping", "Log", "baseOffset:"]


def test_deep_iteration_prints_records_without_their_content():
    path = BROKER / "keyed-0" / "00000000000000000000.log"
    lines = dump("--files", path, "--deep-iteration").lines
    assert lines[3] == "| offset: 0 CreateTime: 1700000000003 keySize: 6 valueSize: 7 sequence: 0 headerKeys: []"


def test_skipping_metadata_leaves_keys_and_payloads():
    lines = dump(
        "--files", BROKER / "keyed-0" / "00000000000000000000.log", "--print-data-log", "--skip-record-metadata"
    ).lines
    assert lines[3] == "| key: user-3 payload: event-3"
    lines = dump(
        "--files", BROKER / "appendtime-0" / "00000000000000000000.log", "--print-data-log", "--skip-record-metadata"
    ).lines
    assert lines[3] == " payload: 0"


def test_index_prints_offset_and_position():
    lines = dump("--files", BROKER / "segments-0" / "00000000000000000031.index").lines
    assert len(lines) == 1 + 7
    assert re.fullmatch(r"offset: \d+ position: \d+", lines[1])


def test_empty_index_is_said_to_be():
    path = BROKER / "keyed-0" / "00000000000000000000.index"
    assert dump("--files", path).lines == [f"Dumping {path}", f"{path} is empty."]


def test_indexes_of_a_broker_that_runs_have_room_and_no_mismatch(partition: Path):
    """Of a healthy active segment it said: Mismatches in …index, indexed offsets are not found in the log."""
    for suffix, entry_bytes in (("index", 8), ("timeindex", 12)):
        file = partition / f"{0:020}.{suffix}"
        file.write_bytes(bytes(100 * entry_bytes))
        outcome = dump("--files", file)
        assert "Mismatches" not in outcome.out and "not found in the log" not in outcome.out
    assert "offset: 0" not in outcome.out


def test_time_index_prints_timestamp_and_offset():
    path = BROKER / "keyed-0" / "00000000000000000000.timeindex"
    assert dump("--files", path).lines[1:] == ["timestamp: 1700000000059 offset: 32"]
    assert dump("--files", path, "--index-sanity-check").lines[1:] == [f"{path} passed sanity check."]
    assert dump("--files", path, "--verify-index-only").lines[1:] == []


def test_snapshot_and_transaction_index_as_kafka_words_them():
    assert dump("--files", BROKER / "txn-0" / "00000000000000000016.snapshot").lines[1:] == [
        "producerId: 1 producerEpoch: 0 coordinatorEpoch: 0 currentTxnFirstOffset: OptionalLong.empty "
        "lastTimestamp: 1794728973908 firstSequence: 9 lastSequence: 11 lastOffset: 14 offsetDelta: 2 "
        "timestamp: 1794728973908"
    ]
    assert dump("--files", BROKER / "txn-0" / "00000000000000000000.txnindex").lines[1:] == [
        "version: 0 producerId: 1 firstOffset: 4 lastOffset: 7 lastStableOffset: 8",
        "version: 0 producerId: 1 firstOffset: 12 lastOffset: 15 lastStableOffset: 16",
    ]


def test_json_has_an_object_a_line():
    objects = [
        json.loads(line)
        for line in dump("--files", BROKER / "txn-0" / "00000000000000000000.log", "--json", "--print-data-log").lines
    ]
    assert [item["kind"] for item in objects[:4]] == ["file", "log", "batch", "record"]
    assert objects[2]["isTransactional"] is True
    assert objects[2]["deleteHorizonMs"] is None
    assert objects[3]["headerKeys"] == []
    assert objects[3]["payload"] == "txn-0-0-commit"
    assert {item["endTxnMarker"] for item in objects if "endTxnMarker" in item} == {"COMMIT", "ABORT"}


# -- damage


@pytest.fixture
def partition(tmp_path) -> Path:
    return Path(shutil.copytree(BROKER / "segments-0", tmp_path / "segments-0"))


def test_folder_is_dumped_file_by_file(partition: Path):
    """H20."""
    files = sorted(
        path
        for path in partition.iterdir()
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot", ".txnindex")
    )
    outcome = dump("--files", partition)
    shown = [line.removeprefix("Dumping ") for line in outcome.lines if line.startswith("Dumping ")]
    assert shown == [str(path) for path in files]
    assert outcome.lines == [line for path in files for line in dump("--files", path).lines]


def test_torn_tail_is_counted(partition: Path):
    path = partition / "00000000000000000186.log"
    path.write_bytes(path.read_bytes()[:-5])
    outcome = dump("--files", path)
    assert re.fullmatch(r"Found \d+ invalid bytes at the end of 00000000000000000186.log", outcome.lines[-1])
    assert "is torn" in outcome.err


def test_max_bytes_reads_whole_batches_and_complains_of_nothing(partition: Path):
    outcome = dump("--files", partition / "00000000000000000000.log", "--max-bytes", "300")
    assert sum(line.startswith("baseOffset") for line in outcome.lines) == 2
    assert outcome.err == ""


def test_batch_with_a_wrong_crc_is_not_valid(partition: Path):
    path = partition / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    lines = [line for line in dump("--files", path).lines if line.startswith("baseOffset")]
    assert [line.endswith("isvalid: true") for line in lines].count(False) == 1


def test_records_that_cannot_be_read_do_not_stop_the_dump(partition: Path):
    path = partition / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[61] = 0x7F
    path.write_bytes(data)
    outcome = dump("--files", path, "--deep-iteration")
    assert "records of the batch at position 0 cannot be read" in outcome.err
    assert sum(line.startswith("baseOffset") for line in outcome.lines) == 31


def test_index_that_points_elsewhere_is_a_mismatch(partition: Path):
    path = partition / "00000000000000000031.index"
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, 0, struct.unpack_from(">i", data)[0] + 1)
    path.write_bytes(data)
    outcome = dump("--files", path, "--verify-index-only")
    assert f"Mismatches in :{path}" in outcome.err
    assert re.search(r"  Index offset: \d+, log offset: \d+", outcome.err)


def test_time_index_with_wrong_offsets_is_reported(partition: Path):
    path = partition / "00000000000000000031.timeindex"
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, 0, 5)
    struct.pack_into(">i", data, len(data) - 4, 10_000)
    struct.pack_into(">q", data, len(data) - 24, 4)
    path.write_bytes(data)
    outcome = dump("--files", path)
    assert "Found timestamp mismatch in :" in outcome.err
    assert "Found out of order timestamp in :" in outcome.err
    assert "Indexed offset: 10031, found log offset: -1" in outcome.err


def test_corrupt_snapshot_and_index_are_reported_and_the_next_file_is_dumped(partition: Path):
    snapshot, index = partition / "00000000000000000031.snapshot", partition / "00000000000000000031.index"
    snapshot.write_bytes(b"\0\1garbage!")
    index.write_bytes(b"abc" * 5)
    outcome = dump(
        "--index-sanity-check",
        "--files",
        f"{snapshot},{index},{partition / 'nothing.log'},{partition / '00000000000000000031.txnindex'}",
    )
    assert outcome.err.count("\n") == 3
    assert "not a multiple of 8" in outcome.err
    assert "nothing.log cannot be dumped" in outcome.err
    assert outcome.out.count("Dumping") == 4
    assert outcome.code == 1


def test_missing_offsets_are_reported_as_by_kafka(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    builder = BatchBuilder(delete_horizon_ms=5_000, last_offset=9)
    builder.append(b"a", None, timestamp=1, offset=0)
    builder.append(b"b", b"x", timestamp=1, offset=4)
    path.write_bytes(builder.build())
    outcome = dump("--files", path, "--deep-iteration")
    assert outcome.err.splitlines() == [f"Non-consecutive offsets in {path}", "  0 is followed by 4"]
    assert "deleteHorizonMs: OptionalLong[5000]" in outcome.out


def test_old_formats_and_unknown_files_are_reported(tmp_path):
    log = tmp_path / "00000000000000000000.log"
    log.write_bytes(struct.pack(">qiIb", 0, 40, 0, 1) + bytes(35))
    other = tmp_path / "notes.txt"
    other.write_text("x")
    outcome = dump("--files", f"{log},{other}")
    assert "message format v1 of Kafka before 0.11" in outcome.err
    assert f"Ignoring unknown file {other}" in outcome.err


def test_header_keys_and_payloads_that_are_not_utf8_are_printed(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    builder = BatchBuilder(codec=Codec.LZ4)
    builder.append(b"\xff", b"\xfe", timestamp=1, headers=[("\udcff", b"")])
    path.write_bytes(builder.build())
    outcome = dump("--files", path, "--print-data-log")
    assert outcome.lines[-1].endswith("headerKeys: [?] key: \ufffd payload: \ufffd")


def test_control_record_of_another_kind_is_named(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    builder = BatchBuilder(control=True)
    builder.append(b"\0\0\0\2", b"", timestamp=1)
    builder.append(b"\0\0\0\x63", b"", timestamp=1)
    path.write_bytes(
        builder.build()
        + end_txn_marker(commit=True, coordinator_epoch=3, producer_id=1, producer_epoch=0, timestamp=1, base_offset=2)
    )
    lines = dump("--files", path, "--print-data-log").lines
    assert lines[3].endswith("controlType: LEADER_CHANGE(2)")
    assert lines[4].endswith("controlType: UNKNOWN(99)")
    assert lines[6].endswith("endTxnMarker: COMMIT coordinatorEpoch: 3")


@given(data=st.binary(max_size=400), suffix=st.sampled_from([".log", ".index", ".timeindex", ".txnindex", ".snapshot"]))
@settings(deadline=None, max_examples=80)
def test_garbage_never_breaks_the_tool(tmp_path_factory, data: bytes, suffix: str):
    directory = tmp_path_factory.mktemp("garbage")
    for kind in (".log", ".index", suffix):
        (directory / f"00000000000000000000{kind}").write_bytes(data)
    out, err = io.StringIO(), io.StringIO()
    path = str(directory / f"00000000000000000000{suffix}")
    dump_files([path], Report(out, err), DumpOptions(decoder=OffsetsDecoder()))
    assert out.getvalue().startswith("Dumping")


# -- options and decoders


def test_records_of_the_tier_are_printed_as_kafka_prints_them(tmp_path: Path):
    lines = [line.split("\t") for line in (GOLDEN / "remote-log-metadata.tsv").read_text().splitlines()]
    builder = BatchBuilder()
    for _, data, _ in lines:
        builder.append(None, bytes.fromhex(data), timestamp=1)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(builder.build())
    printed = dump("--files", path, "--remote-log-metadata-decoder", "--skip-record-metadata").lines
    assert [line.split("payload: ")[1] for line in printed if "payload: " in line] == [text for _, _, text in lines]


def test_decoders_of_logs_that_we_do_not_have_are_refused():
    outcome = dump("--files", "x.log", "--cluster-metadata-decoder")
    assert outcome.code == 1
    assert "not supported" in outcome.err


def test_files_are_required():
    assert dump().code == 2
    assert dump("--files", ",").code == 1


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (
            ["--value-decoder-class", "org.apache.kafka.tools.api.DefaultDecoder"],
            "key: user-3 payload: 0x6576656e742d33",
        ),
        (["--key-decoder-class", "kafka.serializer.DefaultDecoder"], "key: 0x757365722d33 payload: event-3"),
        (["--value-decoder-class"], "key: user-3 payload: event-3"),
        (["--value-decoder-class=LongDecoder"], "key: user-3 payload: 0x6576656e742d33"),
    ],
)
def test_kafkas_own_decoder_classes_are_known(args: list[str], shown: str):
    lines = dump("--files", BROKER / "keyed-0" / "00000000000000000000.log", *args).lines
    assert lines[3].endswith(shown)


def test_other_decoder_classes_are_refused_with_the_known_ones():
    with pytest.raises(UnknownDecoder, match=r"com.example.Mine cannot be loaded.*StringDecoder"):
        decoder_of_class("com.example.Mine")
    with pytest.raises(UnknownDecoder):
        decoder_of_class("com.example.StringDecoder")
    assert decoder_of_class("IntegerDecoder")(b"\xff\xff\xff\xfe") == "-2"
    assert decoder_of_class("LongDecoder")(bytes(7) + b"\5") == "5"
    outcome = dump("--files", "x.log", "--value-decoder-class", "Mine")
    assert (outcome.code, outcome.out) == (1, "")


def shown_offsets(key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
    return OffsetsDecoder().decode(Record(7, 0, key, value))


def test_offsets_decoder_shows_deletions_new_groups_and_unreadable_records():
    key = encode_versioned(OffsetCommitKey(group="g", topic="t", partition=1), 1)
    assert shown_offsets(key, None) == ('{"type":"1","data":{"group":"g","topic":"t","partition":1}}', "<DELETE>")
    key = encode_versioned(ConsumerGroupMetadataKey(group_id="g"), 3)
    value = encode_versioned(ConsumerGroupMetadataValue(epoch=4), 0)
    assert shown_offsets(key, value)[0] == '{"type":"3","data":{"groupId":"g"}}'
    assert shown_offsets(key, value)[1].startswith('{"version":"0","data":{"epoch":4')
    assert shown_offsets(b"\0\x63", b"") == ("Unknown record type 99 at offset 7, skipping.", None)
    for bad_key, bad_value in ((None, b""), (b"\0", b""), (b"\0\1\0", b""), (key, b"\0"), (key, b"\0\x63")):
        text, payload = shown_offsets(bad_key, bad_value)
        assert text.startswith("Error at offset 7, skipping.")
        assert payload is None


def test_json_of_a_message_has_the_fields_of_its_version_and_tagged_ones_that_say_something():
    metadata = ClassicMemberMetadata(session_timeout_ms=5)
    member = ConsumerGroupMemberMetadataValue(instance_id=None, client_id="c", subscribed_topic_names=["t"])
    assert "classicMemberMetadata" not in message_to_json(member, 0)
    assert message_to_json(member, 0)["subscribedTopicNames"] == ["t"]
    member.classic_member_metadata = metadata
    shown = message_to_json(member, 0)
    assert shown["classicMemberMetadata"] == {"sessionTimeoutMs": 5, "supportedProtocols": []}
    assert shown["instanceId"] is None
    txn = TransactionLogValue(previous_producer_id=-1, next_producer_id=9)
    assert "nextProducerId" not in message_to_json(txn, 0)
    assert message_to_json(txn, 1)["nextProducerId"] == 9
    assert "previousProducerId" not in message_to_json(txn, 1)
    assert message_to_json(TopicPartitions(topic_id=bytes(15) + b"\1"), 0)["topicId"] == "AAAAAAAAAAAAAAAAAAAAAQ"
    txn.producer_id = object()
    with pytest.raises(TypeError, match="holds a object"):
        message_to_json(txn, 1)


def test_members_of_other_protocols_keep_their_bytes():
    value = GroupMetadataValue(
        protocol_type="connect", generation=1, protocol="p", leader="m",
        members=[MemberMetadata(member_id="m", subscription=b"\xff\xfe", assignment=b"")],
    )  # fmt: skip
    key = bytes.fromhex("00020001") + b"g"
    assert '"subscription":"//4="' in shown_offsets(key, encode_versioned(value, 3))[1]
    value.protocol_type = "consumer"
    assert '"subscription":"//4="' in shown_offsets(key, encode_versioned(value, 3))[1]


def test_transaction_decoder_shows_deletions_and_unreadable_records():
    decoder = TransactionLogDecoder()
    key = encode_versioned(TransactionLogKey(transactional_id="x"), 0)
    assert decoder.decode(Record(7, 0, key, None)) == ("transaction_metadata::transactionalId=x", "<DELETE>")
    assert decoder.decode(Record(7, 0, b"\0\5", b"")) == ("unknown::version=5", None)
    value = encode_versioned(TransactionLogValue(transaction_status=9), 0)
    assert "state=Unknown(9)" in decoder.decode(Record(7, 0, key, value))[1]
    for bad_key, bad_value in ((None, b""), (b"\0", b""), (key, b"\0\0")):
        text, payload = decoder.decode(Record(7, 0, bad_key, bad_value))
        assert text.startswith("Error at offset 7, skipping.")
        assert payload is None
