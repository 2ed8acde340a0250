"""JSON as Java's Jackson reads and writes it, within limits. Pure.

Confluent's registry stores what Jackson writes, and clients compare the text. So numbers, escapes and the order of keys
are Jackson's.
"""

import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

from barnabas.base import json_reader
from barnabas.base.java_text import java_double
from barnabas.services.registry.formats.limits import SchemaError

Json: TypeAlias = dict[str, Any] | list[Any] | str | int | float | Decimal | bool | None

#: As many digits of an integer as Python converts.
_NUMBER_CHARS_MAX: Final = 4_300
_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def loads(text: str, *, comments: bool = False, decimals: bool = False) -> Json:
    """Parse JSON. Of two equal keys the last value wins, at the place of the first, as with Jackson.

    With `decimals` a number with a decimal point keeps all its digits, else it becomes a double.
    """
    if comments:
        text = _without_comments(text)
    try:
        value: Json = json_reader.read(text, parse_float=_decimal) if decimals else json_reader.read(text)
    except json_reader.BadJson as error:
        raise SchemaError(str(error)) from None
    return value


def dumps(value: Json) -> str:
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts)


def quoted(text: str) -> str:
    return '"' + _ESCAPED.sub(_escape, text) + '"'


def sorted_keys(value: Json) -> Json:
    """Return the value with the keys of all objects sorted by UTF-16 units, as Java compares strings."""
    if isinstance(value, dict):
        return {key: sorted_keys(value[key]) for key in sorted(value, key=utf16)}
    if isinstance(value, list):
        return [sorted_keys(item) for item in value]
    return value


def utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def _double(number: float) -> str:
    if math.isfinite(number):
        return java_double(number)
    # Jackson writes these in quotes.
    return '"NaN"' if math.isnan(number) else '"Infinity"' if number > 0 else '"-Infinity"'


def _write(value: Json, parts: list[str]) -> None:
    if isinstance(value, str):
        parts.append(quoted(value))
    elif value is None:
        parts.append("null")
    elif value is True:
        parts.append("true")
    elif value is False:
        parts.append("false")
    elif isinstance(value, int):
        parts.append(str(value))
    elif isinstance(value, float):
        parts.append(_double(value))
    elif isinstance(value, Decimal):
        parts.append(str(value))  # BigDecimal.toString writes the same
    elif isinstance(value, dict):
        opening = "{"
        for key, item in value.items():
            parts.append(f"{opening}{quoted(key)}:")
            _write(item, parts)
            opening = ","
        parts.append("}" if value else "{}")
    else:
        opening = "["
        for item in value:
            parts.append(opening)
            _write(item, parts)
            opening = ","
        parts.append("]" if value else "[]")


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return _SHORT_ESCAPES.get(character) or f"\\u{ord(character):04X}"


def _without_comments(text: str) -> str:
    if "/*" not in text and "//" not in text:
        return text
    return json_reader.TOKENS.sub(lambda match: " " if match[0][0] == "/" else match[0], text)


def _decimal(text: str) -> Decimal:
    if len(text) > _NUMBER_CHARS_MAX:
        raise json_reader.BadJson(f"a number has {len(text)} characters; {_NUMBER_CHARS_MAX} is the limit")
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent that Python cannot represent
        raise json_reader.BadJson(f"the number {text[:40]} is out of range") from None
