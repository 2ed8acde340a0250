"""JSON values, within bounds. Pure."""

import json
import math
from typing import Any

from barnabas.base import json_reader
from barnabas.services.registry.values.bounds import Unreadable


def read(data: bytes | str) -> Any:
    """:raises Unreadable: if it is not JSON (NaN is not), is nested too deeply, or has a number that Python cannot hold."""
    try:
        return json_reader.read(data)
    except json_reader.BadJson as error:
        raise Unreadable(str(error)) from None


def write(document: object, *, default: Any = None) -> str:
    """The JSON text. JSON has no NaN and no infinity: they become strings, as in Protobuf's JSON.

    :raises ValueError: if the document is nested too deeply.
    """
    try:
        try:
            return json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=default)
        except ValueError:
            return json.dumps(
                _finite(document), separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=default
            )
    except RecursionError:
        raise ValueError("nested too deeply for JSON") from None


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {_finite(name): _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
