"""Times in a readable form. Pure."""

import re
from datetime import UTC, datetime
from typing import Final

_UTC: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def utc(time_ms: int) -> str:
    """Format as `2026-11-16T05:47:43Z`."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def time_in(text: str) -> int | None:
    """Return the first time in the text that was written by `utc`, in milliseconds."""
    found = _UTC.search(text)
    return None if found is None else round(datetime.fromisoformat(found[0]).timestamp() * 1000)


_DURATION: Final = re.compile(
    r"(?P<sign>[-+])?P(?:(?P<days>[-+]?\d{1,12})D)?"
    r"(?:T(?=[-+\d])(?:(?P<hours>[-+]?\d{1,12})H)?(?:(?P<minutes>[-+]?\d{1,12})M)?"
    r"(?:(?P<seconds>[-+]?\d{1,12}(?:\.\d{1,9})?)S)?)?",
    re.IGNORECASE | re.ASCII,
)


def duration_ms(text: str) -> int:
    """Parse `P1DT2H3M4.5S` as java.time.Duration does. :raises ValueError: if it is not a duration."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.group(unit) for unit in ("days", "hours", "minutes", "seconds")):
        raise ValueError(f"{text} is not a duration: write PnDTnHnMnS, for example PT30M or P7D")
    total_s = (
        int(match["days"] or 0) * 86_400
        + int(match["hours"] or 0) * 3_600
        + int(match["minutes"] or 0) * 60
        + float(match["seconds"] or 0)
    )
    return round(total_s * 1000) * (-1 if match["sign"] == "-" else 1)
