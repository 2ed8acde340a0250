"""Messages for a person who waits. Not in a pipe, and not for quick operations."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

PATIENCE_S: Final = 2.0


@contextmanager
def telling(words: str) -> Iterator[None]:
    """`with telling("asking the brokers"):` writes that to stderr if the block takes longer than a moment."""
    if not sys.stderr.isatty():
        yield
        return
    stream = sys.stderr
    timer = threading.Timer(PATIENCE_S, lambda: print(f"{words} …", file=stream, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
