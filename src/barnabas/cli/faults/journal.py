"""A record of the faults in a test, for its report if it fails. The report shows whether each fault fired."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Lines of each log that a report shows, from its end.
LOG_LINES_MAX = 40


@dataclass(slots=True, eq=False)
class Fault:
    """A fault that a test requested. `fired` is the number of hits."""

    what: str
    #: Asks the broker; None if it no longer knows.
    _count: Callable[[], int | None] = field(repr=False)
    _end: Callable[[], None] = field(default=lambda: None, repr=False)
    _known: int = field(default=0, repr=False)

    @property
    def fired(self) -> int:
        """The number of requests that it has hit. If the broker has ended, the last known number."""
        count = self._count()
        if count is not None:
            self._known = count
        return self._known

    def end(self) -> None:
        """End this fault alone, where its broker still runs."""
        self._end()


def together(what: str, parts: Sequence[Fault], end: Callable[[], None]) -> Fault:
    """Return a fault at several brokers, with the hits of all of them."""
    return Fault(what, lambda: sum(part.fired for part in parts), end)


@dataclass(slots=True)
class _Entry:
    at: str
    what: str
    fault: Fault | None


class Journal:
    """Bounded by the length of one test: the shared cluster clears it for each test."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    def note(self, what: str, fault: Fault | None = None) -> None:
        self._entries.append(_Entry(time.strftime("%H:%M:%S"), what, fault))

    def clear(self) -> None:
        self._entries.clear()

    def lines(self) -> list[str]:
        return [f"{entry.at} {entry.what}{_fired(entry.fault)}" for entry in self._entries]


def _fired(fault: Fault | None) -> str:
    if fault is None:
        return ""
    count = fault.fired
    return f" -> fired {count} time{'s' * (count != 1)}" if count else " -> NEVER FIRED"


class Watch:
    """Records what happens to a cluster from the start of a test."""

    def __init__(self, journal: Journal, logs: Mapping[str, Path]) -> None:
        self._journal = journal
        self._logs = dict(logs)
        self._began = {name: log.stat().st_size if log.exists() else 0 for name, log in logs.items()}

    def sections(self) -> list[tuple[str, str]]:
        """Return titles and texts for a report, without empty ones."""
        sections = [
            ("faults", "\n".join(self._journal.lines())),
            *((f"log of {name}", self._added(name)) for name in self._logs),
        ]
        return [(f"kafka: {title}", text) for title, text in sections if text]

    def _added(self, name: str) -> str:
        """Return the lines added to the log, or only the last of them."""
        log = self._logs[name]
        if not log.exists():
            return ""
        with log.open("rb") as file:
            file.seek(self._began[name])
            lines = file.read().decode(errors="replace").splitlines()
        left_out = len(lines) - LOG_LINES_MAX
        shown = lines if left_out <= 0 else [f"({left_out} lines before these: see {log})", *lines[-LOG_LINES_MAX:]]
        return "\n".join(shown)
