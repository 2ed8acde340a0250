"""Run a command line in this process, and return what it printed."""

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock


class _Bytes(io.BytesIO):
    """The bytes of one stream, copied to a buffer that keeps the order of both."""

    def __init__(self, both: io.BytesIO) -> None:
        super().__init__()
        self._both = both

    def write(self, data: Any) -> int:
        self._both.write(data)
        return super().write(data)


def _stream(buffer: io.BytesIO) -> io.TextIOWrapper:
    return io.TextIOWrapper(buffer, encoding="utf-8", newline="", write_through=True)


@dataclass(frozen=True)
class Result:
    exit_code: int
    stdout: str
    stderr: str
    #: Standard output and standard error, in the order of the writes.
    output: str
    exception: BaseException | None


class CliRunner:
    def invoke(
        self,
        app: Callable[[Sequence[str]], object],
        arguments: Sequence[str],
        *,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        catch_exceptions: bool = True,
    ) -> Result:
        """Call `app`, which ends with SystemExit. Another exception is in the result, or raised again."""
        both = io.BytesIO()
        out, err = _Bytes(both), _Bytes(both)
        stdout, stderr = _stream(out), _stream(err)  # if they were collected, they would close their buffers
        stdin = io.TextIOWrapper(io.BytesIO((input or "").encode()), encoding="utf-8")
        status, raised = 0, None
        with (
            mock.patch.object(sys, "stdin", stdin),
            mock.patch.object(sys, "stdout", stdout),
            mock.patch.object(sys, "stderr", stderr),
            mock.patch.dict(os.environ, env or {}),
        ):
            try:
                app(arguments)
            except SystemExit as ended:
                raised, code = (ended if ended.code else None), ended.code
                status = code if isinstance(code, int) else int(code is not None)
            except Exception as error:
                if not catch_exceptions:
                    raise
                status, raised = 1, error
        return Result(status, out.getvalue().decode(), err.getvalue().decode(), both.getvalue().decode(), raised)
