"""Memory that a virtual machine has really got.

A guest gives pages that it frees back to its host, and the first touch of a page that it gets again costs more than the write
to it: a run on a machine that was idle measures its hypervisor in the first rounds, until the page cache has been all round
the memory once. A file of nothing but holes, read once, takes it there in seconds, without a disk.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

_STEP_BYTES = 8 * 1024 * 1024
#: Left free for the processes that are measured.
_LEFT_BYTES = 5 * 1024**3


@contextmanager
def touched_memory() -> Iterator[None]:
    """The page cache holds most of the memory: what is written meanwhile takes its pages."""
    size = max(0, psutil.virtual_memory().available - _LEFT_BYTES)
    scratch = bytearray(_STEP_BYTES)
    with tempfile.TemporaryFile() as file:
        os.truncate(file.fileno(), size)
        for position in range(0, size, _STEP_BYTES):
            os.preadv(file.fileno(), [scratch], position)
        yield
