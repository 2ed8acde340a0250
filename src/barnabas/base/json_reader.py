"""JSON from outside, within bounds that are checked before Python's parser, which recurses in C. Pure."""

import json
import math
import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

#: Objects and arrays within each other.
DEPTH_MAX: Final = 200
#: A string or a comment that never ends is one token up to the end, so that nothing is scanned twice.
TOKENS: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|/\*.*?(?:\*/|\Z)|//[^\n]*|[\[{\]}]', re.DOTALL)


class BadJson(ValueError):
    """The text is not JSON, or goes beyond a bound. The message says which."""


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise BadJson(f"the number {text[:40]} is out of range")
    return number


def read(data: bytes | str, *, parse_float: Callable[[str], Any] = _finite) -> Any:
    """:raises BadJson: if it is not JSON (NaN is not), is nested too deeply, or has a number that Python cannot hold."""
    try:
        text = data.decode() if isinstance(data, bytes) else data
        _check_depth(text)
        return json.loads(text, parse_constant=_refuse_constant, parse_float=parse_float)
    except BadJson:
        raise
    # Also for an integer with more digits than Python converts, and for other bytes than UTF-8.
    except ValueError as error:
        raise BadJson(f"not JSON: {error}") from None


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= DEPTH_MAX:
        return
    depth = 0
    for match in TOKENS.finditer(text):
        if match[0] in "[{":
            depth += 1
            if depth > DEPTH_MAX:
                raise BadJson(f"JSON nested more than {DEPTH_MAX} deep, which is the limit")
        elif match[0] in "]}":
            depth -= 1


def _refuse_constant(name: str) -> NoReturn:
    raise BadJson(f"not JSON: {name} is not a number")
