"""Java's SimpleDateFormat, as much of it as connectors use, in UTC and English. Pure."""

import calendar
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from functools import cache
from typing import Final, NamedTuple

_MONTHS: Final = calendar.month_name[1:]
_DAYS: Final = calendar.day_name[:]


class BadPattern(ValueError):
    """A pattern with letters that are not supported."""


class _Part(NamedTuple):
    #: A letter of the pattern; "" for text.
    letter: str
    text: str


def _parts(pattern: str) -> Iterator[_Part]:
    for found in re.finditer(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+|'", pattern):
        quoted, letter = found[1], found[2]
        if quoted is not None:
            yield _Part("", quoted.replace("''", "'") or "'")
        elif letter:
            if letter not in _FORMATS:
                raise BadPattern(
                    f"{pattern!r}: letter {letter} is not supported; there are {', '.join(sorted(_FORMATS))}"
                )
            yield _Part(letter, found[0])
        elif found[0] == "'":
            raise BadPattern(f"{pattern!r} has a quote that does not end")
        else:
            yield _Part("", found[0])


_FORMATS: Final[Mapping[str, Callable[[datetime, int], str]]] = {
    "y": lambda t, n: f"{t.year % 100:02d}" if n == 2 else f"{t.year:0{n}d}",
    "M": lambda t, n: _MONTHS[t.month - 1] if n > 3 else _MONTHS[t.month - 1][:3] if n == 3 else f"{t.month:0{n}d}",
    "d": lambda t, n: f"{t.day:0{n}d}",
    "D": lambda t, n: f"{t.timetuple().tm_yday:0{n}d}",
    "H": lambda t, n: f"{t.hour:0{n}d}",
    "k": lambda t, n: f"{t.hour or 24:0{n}d}",
    "h": lambda t, n: f"{t.hour % 12 or 12:0{n}d}",
    "K": lambda t, n: f"{t.hour % 12:0{n}d}",
    "m": lambda t, n: f"{t.minute:0{n}d}",
    "s": lambda t, n: f"{t.second:0{n}d}",
    "S": lambda t, n: f"{t.microsecond // 1000:0{n}d}",
    "a": lambda t, _: "AM" if t.hour < 12 else "PM",
    "E": lambda t, n: _DAYS[t.weekday()] if n > 3 else _DAYS[t.weekday()][:3],
    "u": lambda t, n: f"{t.isoweekday():0{n}d}",
    "z": lambda _, __: "UTC",
    "Z": lambda _, __: "+0000",
    "X": lambda _, __: "Z",
}


@cache
def check(pattern: str) -> str:
    """:raises BadPattern: if the pattern has a letter that is not supported."""
    list(_parts(pattern))
    return pattern


def format_time(pattern: str, moment: datetime) -> str:
    """Print a time in UTC."""
    utc = moment.astimezone(UTC)
    return "".join(
        part.text if not part.letter else _FORMATS[part.letter](utc, len(part.text)) for part in _parts(pattern)
    )


_PATTERNS: Final[Mapping[str, str]] = {
    "E": "[A-Za-z]+",
    "a": "[AaPp][Mm]",
    "z": r"UTC|GMT|Z|(?:GMT)?[+-]\d\d:?\d\d",
    "Z": r"UTC|GMT|[+-]\d\d:?\d\d",
    "X": r"Z|[+-]\d\d(?::?\d\d)?",
}


@cache
def _reader(pattern: str) -> tuple[re.Pattern[str], tuple[_Part, ...]]:
    read, expression = [], ""
    parts = list(_parts(pattern))
    for at, part in enumerate(parts):
        if not part.letter:
            expression += re.escape(part.text)
            continue
        read.append(part)
        # A number ends at the first other character, unless another number follows at once: then its width counts.
        is_packed = at + 1 < len(parts) and parts[at + 1].letter not in ("", *_PATTERNS)
        digits = rf"\d{{{len(part.text)}}}" if is_packed else r"\d+"
        is_word = part.letter in _PATTERNS or (part.letter == "M" and len(part.text) > 2)
        expression += f"({_PATTERNS.get(part.letter, '[A-Za-z]+') if is_word else digits})"
    return re.compile(expression), tuple(read)


def parse_time(pattern: str, text: str) -> datetime:
    """Read a time; without a zone it is one of UTC. :raises ValueError: if the text does not have this form."""
    expression, parts = _reader(pattern)
    found = expression.match(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not of the form {pattern}")
    values = {part.letter: (part, value) for part, value in zip(parts, found.groups(), strict=True)}

    def number(letter: str, otherwise: int) -> int:
        return int(values[letter][1]) if letter in values else otherwise

    year = number("y", 1970)
    if "y" in values and len(values["y"][0].text) <= 2 and len(values["y"][1]) == 2:
        year += 2000 if year < 50 else 1900
    hour = number("H", number("k", 0) % 24)
    if "h" in values or "K" in values:
        hour = number("h", number("K", 0)) % 12
    if "a" in values and values["a"][1].upper() == "PM":
        hour = hour % 12 + 12
    moment = datetime(
        year, _month(values), number("d", 1), hour, number("m", 0), number("s", 0), tzinfo=UTC
    ) + timedelta(milliseconds=number("S", 0))
    if "D" in values:
        moment += timedelta(days=number("D", 1) - 1)
    zone = next((values[letter][1] for letter in ("X", "Z", "z") if letter in values), "Z")
    return moment.replace(tzinfo=_zone(zone)).astimezone(UTC)


def _month(values: Mapping[str, tuple[_Part, str]]) -> int:
    if "M" not in values:
        return 1
    value = values["M"][1]
    if value.isdecimal():
        return int(value)
    found = next((at for at, name in enumerate(_MONTHS, 1) if name[:3].lower() == value[:3].lower()), None)
    if found is None:
        raise ValueError(f"{value!r} is not a month")
    return found


def _zone(text: str) -> timezone:
    found = re.search(r"([+-])(\d\d):?(\d\d)?$", text)
    if found is None:
        return UTC
    ahead = timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
    return timezone(ahead if found[1] == "+" else -ahead)
