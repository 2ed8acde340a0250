"""A word to a person who waits. Nothing in a pipe, and nothing for what is quick."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

PATIENCE_S: Final = 2.0


@contextmanager
def telling(words: str) -> Iterator[None]:
    """`with telling("asking the brokers"):` says so on stderr if it takes longer than a moment."""
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
