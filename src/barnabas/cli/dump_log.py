"""`barnabas dump-log`: the flags and the output of kafka-dump-log.sh. Reads files; needs no broker."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from barnabas.broker.features.tiered.metadata_records import RemoteLogMetadataDecoder
from barnabas.broker.storage.dump.decoders import PlainDecoder, RecordDecoder, decoder_of_class
from barnabas.broker.storage.dump.dumper import SUFFIXES, DumpOptions, dump_files
from barnabas.broker.storage.dump.indexes import DEFAULT_MAX_MESSAGE_SIZE
from barnabas.broker.storage.dump.report import Report
from barnabas.broker.storage.dump.segment import MAX_BYTES
from barnabas.cli._command import UsageError
from barnabas.cli.tool import Option, Tool
from barnabas.wire.internal_records import OffsetsDecoder, ShareGroupStateDecoder, TransactionLogDecoder

#: Kafka's default, also for an option without a value.
_STRING_DECODER: Final = "org.apache.kafka.tools.api.StringDecoder"


def _files_of(text: str) -> list[str]:
    paths = [found for path in text.split(",") if path for found in _files_at(Path(os.path.normpath(path)))]
    if not paths:
        raise UsageError("--files needs at least one file")
    return paths


def _files_at(path: Path) -> list[str]:
    """Return the file itself, or the printable files in a partition's folder."""
    if not path.is_dir():
        return [str(path)]
    found = sorted(str(each) for each in path.iterdir() if each.suffix in SUFFIXES)
    if not found:
        raise UsageError(f"--files {path}: there are no segments in this folder; name the folder of a partition")
    return found


TOOL = Tool(
    note="Reads files; needs no broker.",
    kafka="kafka-dump-log.sh",
    options=(
        Option(
            "--files",
            "Log and index files, or folders of partitions, with commas between them.",
            _files_of,
            required=True,
        ),
        Option("--print-data-log", "Print keys and values. Set by any decoder option.", bool),
        Option("--deep-iteration", "Print records, not only batches. Set by --print-data-log.", bool),
        Option("--index-sanity-check", "Only make the check that a broker makes at start on an index.", bool),
        Option("--verify-index-only", "Verify indexes against the log without printing entries.", bool),
        Option("--max-message-size", "Size of the largest message.", int, default=DEFAULT_MAX_MESSAGE_SIZE),
        Option("--max-bytes", "Read no more than this of a log file.", int, default=MAX_BYTES),
        Option("--offsets-decoder", "Parse records as those of __consumer_offsets.", bool),
        Option("--transaction-log-decoder", "Parse records as those of __transaction_state.", bool),
        Option("--remote-log-metadata-decoder", "Parse records as those of __remote_log_metadata.", bool),
        Option("--share-group-state-decoder", "Parse records as those of __share_group_state.", bool),
        Option(
            "--value-decoder-class",
            "How to show values: Kafka's StringDecoder, DefaultDecoder, Integer-, LongDecoder.",
            metavar="CLASS",
            alone=_STRING_DECODER,
        ),
        Option("--key-decoder-class", "How to show keys, likewise.", metavar="CLASS", alone=_STRING_DECODER),
        Option("--skip-record-metadata", "Print no offset, time and sizes of records.", bool),
        Option("--json", "One JSON object a line, for other programs.", bool),
        Option("--cluster-metadata-decoder", "Refused.", bool, refused="metadata logs of KRaft are not supported"),
    ),
    examples=(
        "barnabas dump-log --files data/orders-0 --print-data-log",
        "barnabas dump-log --files data/__consumer_offsets-7 --offsets-decoder",
    ),
)


@TOOL.main
def _dump(
    files: list[str],
    print_data_log: bool,
    deep_iteration: bool,
    index_sanity_check: bool,
    verify_index_only: bool,
    max_message_size: int,
    max_bytes: int,
    offsets_decoder: bool,
    transaction_log_decoder: bool,
    remote_log_metadata_decoder: bool,
    share_group_state_decoder: bool,
    value_decoder_class: str | None,
    key_decoder_class: str | None,
    skip_record_metadata: bool,
    json: bool,
) -> int:
    flags: dict[Callable[[], RecordDecoder], bool] = {
        OffsetsDecoder: offsets_decoder,
        TransactionLogDecoder: transaction_log_decoder,
        RemoteLogMetadataDecoder: remote_log_metadata_decoder,
        ShareGroupStateDecoder: share_group_state_decoder,
    }
    decoder = next((kind() for kind, is_chosen in flags.items() if is_chosen), None)
    if decoder is None and (print_data_log or value_decoder_class is not None or key_decoder_class is not None):
        key, value = (decoder_of_class(each or _STRING_DECODER) for each in (key_decoder_class, value_decoder_class))
        decoder = PlainDecoder(key, value)
    report = Report(sys.stdout, sys.stderr, as_json=json)
    options = DumpOptions(
        decoder=decoder,
        deep_iteration=deep_iteration,
        skip_record_metadata=skip_record_metadata,
        index_sanity_check=index_sanity_check,
        verify_index_only=verify_index_only,
        max_message_size=max_message_size,
        max_bytes=max_bytes,
    )
    dump_files(files, report, options)
    return int(report.has_failed)
