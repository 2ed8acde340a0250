"""A finding of the doctor: what is wrong, since when, what it means for clients, and what to do. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from barnabas.base.times import utc


class Severity(StrEnum):
    """Errors and warnings are wrong, and decide the exit status; a note is worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    #: A short name that scripts may compare: `log-dirs-in-tmp`.
    check: str
    #: Where: a file, `broker 2`, `topic orders`.
    subject: str
    message: str
    #: What to do next.
    advice: str
    #: What clients notice; empty where they notice nothing.
    means: str = ""
    #: When it began, where that is known.
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
    """The worst first; otherwise as they were found. What was found twice is said once."""
    rank = list(Severity)
    return sorted(dict.fromkeys(findings), key=lambda finding: rank.index(finding.severity))


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The severity of the worst that is wrong; None where nothing is."""
    found = {finding.severity for finding in findings} - {Severity.NOTE}
    return next((severity for severity in Severity if severity in found), None)


def some(names: Iterable[object], limit: int = 5) -> str:
    """`a, b, c and 4 more`: a line stays a line on a cluster with thousands of partitions."""
    every = [str(name) for name in names]
    shown = ", ".join(every[:limit])
    return shown if len(every) <= limit else f"{shown} and {len(every) - limit} more"


def count(number: int, noun: str) -> str:
    """`1 broker`, `2 brokers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
