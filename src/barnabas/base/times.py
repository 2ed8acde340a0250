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
