"""Durations and sizes as text."""

_UNITS_S = (("d", 86_400), ("h", 3_600), ("min", 60))


def duration_text(seconds: float) -> str:
    """Format a duration in the largest unit that fits at least twice: `119 s`, `90 min`, `47 h`."""
    for unit, unit_s in _UNITS_S:
        if seconds >= 2 * unit_s:
            return f"{int(seconds // unit_s)} {unit}"
    return f"{int(seconds)} s"


def size_text(number: float) -> str:
    """Format a number of bytes with decimal units: `999 B`, `1.5 kB`, `12.0 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"
