"""Read lines of standard input without blocking the event loop or the exit."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator

_CHUNK_BYTES = 64 * 1024
#: Bound of chunks that were read and not yet processed.
_CHUNKS_MAX = 16


async def stdin_lines(prompt: str = "") -> AsyncIterator[bytes]:
    """Yield lines without their ends. On a terminal, print `prompt` before each."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue(_CHUNKS_MAX)
    fileno = sys.stdin.fileno()

    def read() -> None:
        # A separate daemon thread that the exit does not join: a read of a terminal may never end. It reads the descriptor,
        # because the lock of a buffered reader would still be held when the interpreter ends.
        while True:
            try:
                chunk = os.read(fileno, _CHUNK_BYTES)
            except OSError:
                chunk = b""
            try:
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            except RuntimeError:
                return  # the loop has closed
            if not chunk:
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    rest = b""
    _print(prompt)
    while chunk := await chunks.get():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
            _print(prompt)
    if rest:
        yield rest


def _print(prompt: str) -> None:
    if prompt and sys.stdin.isatty():
        sys.stdout.write(prompt)
        sys.stdout.flush()
