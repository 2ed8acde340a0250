"""What brokers in the process of a test log: kept in memory, for the report of a test that fails.

While such brokers run, their loggers go nowhere else: a test that passes prints nothing, and the application's own log settings
stay as they are. Handlers that an application has put on these loggers itself still get every line.
"""

import logging
import threading
from collections import deque
from contextvars import ContextVar

from barnabas.base.log_format import OneLine

#: Whose lines these are. Only broker code logs to them; clients in the same process keep their own.
LOGGERS = ("barnabas.broker", "barnabas.zookeeper")
#: Lines kept for each broker, the newest ones.
LINES_MAX = 2_000

#: The lines of the broker whose task or callback is running. Threads of file work and of kazoo have none.
_current: "ContextVar[Lines | None]" = ContextVar("barnabas_testing_lines", default=None)


class Lines:
    """The newest log lines of one broker. Any thread may add some."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES_MAX)

    def __enter__(self) -> "Lines":
        _handler.open(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _handler.close_lines(self)

    def claim(self) -> None:
        """Tasks and callbacks that are made in this context log here."""
        _current.set(self)

    def add(self, line: str) -> None:
        self._lines.append(line)

    def text(self, last: int | None = None) -> str:
        """All lines, or the last ones."""
        lines = list(self._lines)
        return "\n".join(lines if last is None else lines[-last:])


class _Handler(logging.Handler):
    """Takes the loggers when the first broker starts, and gives them back when the last one has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(OneLine())
        self._open: list[Lines] = []
        self._opening = threading.Lock()
        #: Level and propagation of each logger before.
        self._before: dict[str, tuple[int, bool]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        own = _current.get()
        # A line of a thread that serves no broker in particular may be the one that explains a failure: each gets it.
        for lines in [own] if own is not None else list(self._open):
            lines.add(line)

    def open(self, lines: Lines) -> None:
        with self._opening:
            self._open.append(lines)
            if len(self._open) == 1:
                for name in LOGGERS:
                    logger = logging.getLogger(name)
                    self._before[name] = (logger.level, logger.propagate)
                    logger.setLevel(logging.INFO)
                    logger.propagate = False
                    logger.addHandler(self)

    def close_lines(self, lines: Lines) -> None:
        with self._opening:
            self._open.remove(lines)
            if not self._open:
                for name, (level, propagates) in self._before.items():
                    logger = logging.getLogger(name)
                    logger.removeHandler(self)
                    logger.setLevel(level)
                    logger.propagate = propagates
                self._before.clear()


_handler = _Handler()
