"""A console as a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def console(*arguments: str) -> Iterator[str]:
    """Its address."""
    command = [sys.executable, "-m", "barnabas", "console", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready console="), line
            yield line.partition("=")[2].strip()
        finally:
            process.terminate()
            process.wait(30)
