"""Log lines that a client cannot forge: each message is one line, whatever names and addresses it contains."""

import datetime
import json
import logging
import os
from typing import Final, TextIO

#: `text` or `json`. An environment variable, because the log is set up before any settings are read.
FORMAT_VARIABLE: Final = "BARNABAS_LOG_FORMAT"
LOG_FORMAT: Final = "[%(asctime)s] %(levelname)s %(message)s (%(name)s)"
#: Line ends, terminal escape sequences, and other characters that move the cursor.
_VISIBLE: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t"} | {
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


class OneLine(logging.Formatter):
    """Escapes the control characters of a message. A traceback follows in lines that begin with blanks."""

    def __init__(self, format: str = LOG_FORMAT) -> None:
        super().__init__(format)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = record.message.translate(_VISIBLE)
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802
        lines = super().formatException(ei).splitlines()  # type: ignore[arg-type]
        return "\n".join("    " + line.translate(_VISIBLE) for line in lines)


class JsonLines(logging.Formatter):
    """Formats each message as one JSON object that includes the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # ASCII only, so that characters that move the cursor are escaped.
        return json.dumps(line)


def log_to(stream: TextIO, *, level: int, format: str = LOG_FORMAT) -> None:
    """Set up the log of the process: as text in `format`, or as JSON if the environment says so."""
    wanted = os.environ.get(FORMAT_VARIABLE, "text")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if wanted == "json" else OneLine(format))
    logging.basicConfig(level=level, handlers=[handler])
    if wanted not in ("text", "json"):
        logging.getLogger(__name__).warning(
            "%s=%s is not valid, logging as text: use text or json", FORMAT_VARIABLE, wanted
        )
