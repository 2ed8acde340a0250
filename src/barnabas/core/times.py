"""Times as people read them. Pure."""

from datetime import UTC, datetime


def utc(time_ms: int) -> str:
    """`2026-11-16T05:47:43Z`"""
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
