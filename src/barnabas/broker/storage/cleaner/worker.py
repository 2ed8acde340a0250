"""The compaction worker: a process that takes jobs from its standard input and reports on its standard output.

`python -m barnabas.broker.storage.cleaner.worker`. Each message is four bytes of length, big-endian, and JSON. It ends when
its input ends, or when the broker that started it is gone. It imports little: an idle worker costs some 15 MB, unless it has
loaded the compiled loops (`engine`).
"""

import logging
import os
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import BinaryIO, Final

from barnabas.base.errors import Malformed
from barnabas.base.host.parent import die_with_parent
from barnabas.broker.storage.cleaner.compaction import clean_log
from barnabas.broker.storage.cleaner.engine import EngineChoice
from barnabas.broker.storage.cleaner.job import CleanJob, Failed, Report, encode_report

LENGTH: Final = struct.Struct(">I")


def frame(message: bytes) -> bytes:
    return LENGTH.pack(len(message)) + message


def serve(jobs: BinaryIO, reports: BinaryIO) -> None:
    """Carry out jobs until `jobs` ends."""
    choice = EngineChoice()

    def send(report: Report) -> None:
        reports.write(frame(encode_report(report)))
        reports.flush()

    while len(head := jobs.read(LENGTH.size)) == LENGTH.size:
        (size,) = LENGTH.unpack(head)
        message = jobs.read(size)
        if len(message) < size:
            return
        job = CleanJob.decode(message)
        run_job(job, send, clean=partial(clean_log, engine=choice.engine(job)))


def run_job(
    job: CleanJob,
    send: Callable[[Report], None],
    *,
    clean: Callable[[CleanJob, Callable[[Report], None]], None] = clean_log,
) -> None:
    """Run a job and report failures of the log; any other error is a bug, and ends the worker."""
    try:
        clean(job, send)
    except Malformed as error:
        send(Failed(str(error), 0))
    except BrokenPipeError:
        raise  # the broker is gone
    except OSError as error:
        send(Failed(str(error), error.errno or 5))


def main() -> None:
    die_with_parent()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="[%(asctime)s] %(levelname)s %(message)s (%(name)s)"
    )
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Other output goes to the broker's log, not between the reports.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        serve(sys.stdin.buffer, reports)
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(1)


if __name__ == "__main__":
    main()
