"""A finding of the doctor: the problem, since when it exists, its effect on clients, and what to do. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from barnabas.base.times import utc


class Severity(StrEnum):
    """Errors and warnings are problems and decide the exit status; a note is worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    #: A short name that scripts can compare: `log-dirs-in-tmp`.
    check: str
    #: The subject: a file, `broker 2`, `topic orders`.
    subject: str
    message: str
    #: What to do next.
    advice: str
    #: The effect that clients notice; empty if there is none.
    means: str = ""
    #: When the problem began, if known.
    since_ms: int | None = None

    def __str__(self) -> str:
        since = "" if self.since_ms is None else f", since {utc(self.since_ms)}"
        return f"{self.severity.upper():7} {self.subject}: {self.message}{since}; {self.advice}"

    def as_json(self) -> dict[str, str | None]:
        return {
            "severity": str(self.severity),
            "check": self.check,
            "subject": self.subject,
            "message": self.message,
            "since": None if self.since_ms is None else utc(self.since_ms),
            "means": self.means,
            "advice": self.advice,
        }


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The most severe first, otherwise in the original order, without duplicates."""
    rank = list(Severity)
    return sorted(dict.fromkeys(findings), key=lambda finding: rank.index(finding.severity))


def worst(findings: Iterable[Finding]) -> Severity | None:
    """Return the highest severity of a problem; None without problems."""
    found = {finding.severity for finding in findings} - {Severity.NOTE}
    return next((severity for severity in Severity if severity in found), None)


def some(names: Iterable[object], limit: int = 5) -> str:
    """`a, b, c and 4 more`: limits a line on a cluster with thousands of partitions."""
    every = [str(name) for name in names]
    shown = ", ".join(every[:limit])
    return shown if len(every) <= limit else f"{shown} and {len(every) - limit} more"


def count(number: int, noun: str) -> str:
    """`1 broker`, `2 brokers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
