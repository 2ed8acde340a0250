"""Dumps files one after another, each by its kind and the options."""

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from barnabas.base.errors import Malformed
from barnabas.broker.storage import names
from barnabas.broker.storage.dump.decoders import RecordDecoder
from barnabas.broker.storage.dump.indexes import (
    DEFAULT_MAX_MESSAGE_SIZE,
    dump_offset_index,
    dump_snapshot,
    dump_time_index,
    dump_txn_index,
)
from barnabas.broker.storage.dump.report import Report
from barnabas.broker.storage.dump.segment import MAX_BYTES, dump_segment

#: Suffixes of the files that can be dumped.
SUFFIXES: Final = (
    names.LOG_SUFFIX,
    names.INDEX_SUFFIX,
    names.TIME_INDEX_SUFFIX,
    names.SNAPSHOT_SUFFIX,
    names.TXN_INDEX_SUFFIX,
)


@dataclass(frozen=True, slots=True)
class DumpOptions:
    #: Prints keys and values; None: they are not printed.
    decoder: RecordDecoder | None = None
    deep_iteration: bool = False
    skip_record_metadata: bool = False
    index_sanity_check: bool = False
    verify_index_only: bool = False
    max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE
    max_bytes: int = MAX_BYTES


def dump_files(paths: Iterable[str], report: Report, options: DumpOptions) -> None:
    """Dump each file. Report an unreadable file, and continue with the next."""
    for path in paths:
        report.line(f"Dumping {path}", "file", {"file": path})
        try:
            _dump(path, report, options)
        except (Malformed, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            report.finding(f"{path} cannot be dumped: {reason}")
            report.has_failed = True


def _dump(path: str, report: Report, options: DumpOptions) -> None:
    suffix = os.path.splitext(path)[1]  # noqa: PTH122
    if suffix == names.LOG_SUFFIX:
        dump_segment(
            path,
            report,
            options.decoder,
            deep=options.deep_iteration or options.decoder is not None,
            skip_record_metadata=options.skip_record_metadata,
            max_bytes=options.max_bytes,
        )
    elif suffix == names.INDEX_SUFFIX:
        dump_offset_index(
            path,
            report,
            sanity_only=options.index_sanity_check,
            verify_only=options.verify_index_only,
            max_message_size=options.max_message_size,
        )
    elif suffix == names.TIME_INDEX_SUFFIX:
        dump_time_index(path, report, sanity_only=options.index_sanity_check, verify_only=options.verify_index_only)
    elif suffix == names.SNAPSHOT_SUFFIX:
        dump_snapshot(path, report)
    elif suffix == names.TXN_INDEX_SUFFIX:
        dump_txn_index(path, report)
    elif not os.path.exists(path):  # noqa: PTH110
        raise FileNotFoundError(errno.ENOENT, "there is no such file")
    else:
        report.finding(f"Ignoring unknown file {path}")
