"""Log lines that a client cannot forge: a message is one line, whatever names and addresses it contains."""

import logging
from typing import Final, TextIO

LOG_FORMAT: Final = "[%(asctime)s] %(levelname)s %(message)s (%(name)s)"
#: Line ends, escape sequences of terminals, and what else moves the cursor.
_VISIBLE: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t"} | {
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


class OneLine(logging.Formatter):
    """Control characters of a message are shown, not printed. A traceback follows in lines that begin with blanks."""

    def __init__(self, format: str = LOG_FORMAT) -> None:
        super().__init__(format)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = record.message.translate(_VISIBLE)
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802
        lines = super().formatException(ei).splitlines()  # type: ignore[arg-type]
        return "\n".join("    " + line.translate(_VISIBLE) for line in lines)


def log_to(stream: TextIO, *, level: int, format: str = LOG_FORMAT) -> None:
    """Set up the process's log."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine(format))
    logging.basicConfig(level=level, handlers=[handler])
