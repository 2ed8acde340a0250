"""A finding of `barnabas doctor`: one line, with what to do."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


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

    def __str__(self) -> str:
        return f"{self.severity.upper():7} {self.subject}: {self.message}; {self.advice}"

    def as_json(self) -> dict[str, str]:
        return {
            "severity": str(self.severity),
            "check": self.check,
            "subject": self.subject,
            "message": self.message,
            "advice": self.advice,
        }


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first; otherwise as they were found. What was found twice is said once."""
    rank = list(Severity)
    return sorted(dict.fromkeys(findings), key=lambda finding: rank.index(finding.severity))


def is_wrong(findings: Iterable[Finding]) -> bool:
    return any(finding.severity is not Severity.NOTE for finding in findings)


def some(names: Iterable[object], limit: int = 5) -> str:
    """`a, b, c and 4 more`: a line stays a line on a cluster with thousands of partitions."""
    every = [str(name) for name in names]
    shown = ", ".join(every[:limit])
    return shown if len(every) <= limit else f"{shown} and {len(every) - limit} more"
