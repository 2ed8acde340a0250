"""Read the JSON files that Kafka's tools take, with errors of one line."""

import json
from pathlib import Path
from typing import Any

from barnabas.cli._command import UsageError


def read_json(path: str, *, option: str) -> dict[str, Any]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option}: cannot read {path}: {error.strerror}") from None
    return parse_json(text, what=f"{option} {path}")


def parse_json(text: str, *, what: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{what}: it is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{what}: a JSON object is expected")
    return document


def field(entry: object, name: str, kind: type | tuple[type, ...], *, what: str) -> Any:
    """Return a required field, checked for its type."""
    if not isinstance(entry, dict) or name not in entry:
        raise UsageError(f"{what}: the field {name!r} is missing in {json.dumps(entry)}")
    value = entry[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UsageError(f"{what}: the field {name!r} has a value of the wrong type in {json.dumps(entry)}")
    return value


def entries(document: dict[str, Any], name: str, *, what: str) -> list[Any]:
    listed: list[Any] = field(document, name, list, what=what)
    return listed
