"""Take memory of a virtual machine into use before measuring.

A guest returns freed pages to its host, and the first touch of a page that it gets again costs more than the write to it. So on
a machine that was idle, the first rounds would measure the hypervisor, until the page cache has used all memory once. Reading a
sparse file once achieves that in seconds, without a disk.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

_STEP_BYTES = 8 * 1024 * 1024
#: Left free for the measured processes.
_LEFT_BYTES = 5 * 1024**3


@contextmanager
def touched_memory() -> Iterator[None]:
    """Fill most of the memory with the page cache; later writes reuse its pages."""
    size = max(0, psutil.virtual_memory().available - _LEFT_BYTES)
    scratch = bytearray(_STEP_BYTES)
    with tempfile.TemporaryFile() as file:
        os.truncate(file.fileno(), size)
        for position in range(0, size, _STEP_BYTES):
            os.preadv(file.fileno(), [scratch], position)
        yield
