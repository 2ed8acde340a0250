"""`barnabas dump-log`: the flags and the output of kafka-dump-log.sh. Reads files; needs no broker."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from barnabas.broker.features.tiered.metadata_records import RemoteLogMetadataDecoder
from barnabas.broker.storage.dump.decoders import PlainDecoder, RecordDecoder, decoder_of_class
from barnabas.broker.storage.dump.dumper import SUFFIXES, DumpOptions, dump_files
from barnabas.broker.storage.dump.indexes import DEFAULT_MAX_MESSAGE_SIZE
from barnabas.broker.storage.dump.report import Report
from barnabas.broker.storage.dump.segment import MAX_BYTES
from barnabas.cli._command import UsageError
from barnabas.wire.internal_records import OffsetsDecoder, ShareGroupStateDecoder, TransactionLogDecoder

#: Without a value, these options mean Kafka's default, the StringDecoder.
OPTIONAL_VALUES = ("--value-decoder-class", "--key-decoder-class")
NO_VALUE = "org.apache.kafka.tools.api.StringDecoder"


def command(
    files: Annotated[
        str,
        typer.Option(help="The comma-separated list of log and index files to be dumped, or folders of partitions."),
    ],
    print_data_log: Annotated[
        bool, typer.Option("--print-data-log", help="Print keys and values. Set by any decoder option.")
    ] = False,
    deep_iteration: Annotated[
        bool, typer.Option("--deep-iteration", help="Print records, not only batches. Set by --print-data-log.")
    ] = False,
    index_sanity_check: Annotated[
        bool,
        typer.Option("--index-sanity-check", help="Only make the check that a broker makes at start on an index."),
    ] = False,
    verify_index_only: Annotated[
        bool, typer.Option("--verify-index-only", help="Verify indexes against the log without printing entries.")
    ] = False,
    max_message_size: Annotated[int, typer.Option(help="Size of the largest message.")] = DEFAULT_MAX_MESSAGE_SIZE,
    max_bytes: Annotated[int, typer.Option(help="Read no more than this of a log file.")] = MAX_BYTES,
    offsets_decoder: Annotated[
        bool, typer.Option("--offsets-decoder", help="Parse records as those of __consumer_offsets.")
    ] = False,
    transaction_log_decoder: Annotated[
        bool, typer.Option("--transaction-log-decoder", help="Parse records as those of __transaction_state.")
    ] = False,
    remote_log_metadata_decoder: Annotated[
        bool, typer.Option("--remote-log-metadata-decoder", help="Parse records as those of __remote_log_metadata.")
    ] = False,
    share_group_state_decoder: Annotated[
        bool, typer.Option("--share-group-state-decoder", help="Parse records as those of __share_group_state.")
    ] = False,
    value_decoder_class: Annotated[
        str | None,
        typer.Option(help="How to show values: Kafka's StringDecoder, DefaultDecoder, Integer-, LongDecoder."),
    ] = None,
    key_decoder_class: Annotated[str | None, typer.Option(help="How to show keys, likewise.")] = None,
    skip_record_metadata: Annotated[
        bool, typer.Option("--skip-record-metadata", help="Print no offset, time and sizes of records.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for other programs.")] = False,
    cluster_metadata_decoder: Annotated[bool, typer.Option("--cluster-metadata-decoder", hidden=True)] = False,
) -> None:
    """Print what log segments, indexes, transaction indexes and producer snapshots hold, and check them."""
    if cluster_metadata_decoder:
        raise UsageError("metadata logs of KRaft are not supported")
    flags: dict[Callable[[], RecordDecoder], bool] = {
        OffsetsDecoder: offsets_decoder,
        TransactionLogDecoder: transaction_log_decoder,
        RemoteLogMetadataDecoder: remote_log_metadata_decoder,
        ShareGroupStateDecoder: share_group_state_decoder,
    }
    decoder = next((kind() for kind, is_chosen in flags.items() if is_chosen), None)
    if decoder is None and (print_data_log or value_decoder_class is not None or key_decoder_class is not None):
        key, value = (decoder_of_class(each or NO_VALUE) for each in (key_decoder_class, value_decoder_class))
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
    dump_files(_files_of(files), report, options)
    if report.has_failed:
        raise typer.Exit(1)


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
