"""JSON as Java's Jackson reads and writes it, within limits. Pure.

Confluent's registry stores what Jackson writes, and clients compare the text. So numbers, escapes and the order of keys
are Jackson's.
"""

import json
import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NoReturn, TypeAlias

from barnabas.base.java_text import java_double
from barnabas.services.registry.formats.limits import DEPTH_MAX, SchemaError

Json: TypeAlias = dict[str, Any] | list[Any] | str | int | float | Decimal | bool | None

#: As many digits of an integer as Python converts.
_NUMBER_CHARS_MAX: Final = 4_300
#: A string or a comment that never ends is one token up to the end, so that nothing is scanned twice.
_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|/\*.*?(?:\*/|\Z)|//[^\n]*|[\[{\]}]', re.DOTALL)
_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def loads(text: str, *, comments: bool = False, decimals: bool = False) -> Json:
    """Parse JSON. Of two equal keys the last value wins, at the place of the first, as with Jackson.

    With `decimals` a number with a decimal point keeps all its digits, else it becomes a double.
    """
    if comments:
        text = _without_comments(text)
    _check_depth(text)
    try:
        value: Json = json.loads(text, parse_constant=_refuse_constant, parse_float=_decimal if decimals else _finite)
    except SchemaError:
        raise
    except ValueError as error:  # also for an integer with more digits than Python converts
        raise SchemaError(f"not JSON: {error}") from None
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
    return _TOKENS.sub(lambda match: " " if match[0][0] == "/" else match[0], text)


def _check_depth(text: str) -> None:
    """Check the depth before parsing: the parser recurses and must not see a text of a million brackets."""
    if text.count("[") + text.count("{") <= DEPTH_MAX:
        return
    depth = 0
    for match in _TOKENS.finditer(text):
        if match[0] in "[{":
            depth += 1
            if depth > DEPTH_MAX:
                raise SchemaError(f"JSON nested more than {DEPTH_MAX} deep, which is the limit")
        elif match[0] in "]}":
            depth -= 1


def _refuse_constant(name: str) -> NoReturn:
    raise SchemaError(f"not JSON: {name} is not a number")


def _decimal(text: str) -> Decimal:
    if len(text) > _NUMBER_CHARS_MAX:
        raise SchemaError(f"a number has {len(text)} characters; {_NUMBER_CHARS_MAX} is the limit")
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent that Python cannot represent
        raise SchemaError(f"the number {text[:40]} is out of range") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise SchemaError(f"the number {text[:40]} is out of range")
    return number
