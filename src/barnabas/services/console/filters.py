"""Filters of a search: records that contain a text, and for which an expression (CEL) is true.

An expression sees `key` and `value` (data decoded from JSON, Avro or Protobuf, else text), `headers` (text by name),
`partition`, `offset`, `timestamp` (ms) and `topic`. A record for which it fails (for example because a field is missing) does
not match.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from barnabas.services.console.decoding import ShownRecord
from barnabas.services.console.expressions import CannotSay, compiled

_NAMES: Final = ("key", "value", "headers", "partition", "offset", "timestamp", "topic")


class Filter:
    """`matches` may take a millisecond to evaluate an expression: call it on a thread."""

    def __init__(self, topic: str, text: str, expression: str) -> None:
        self._topic = topic
        self._text = text.lower()
        self._evaluate = compiled(expression, _NAMES) if expression else None
        #: Number of records for which the expression failed, and (below) the last reason.
        self.failed = 0
        self.failure = ""
        #: Set when the search has ended, to stop the thread.
        self.is_over = False
        self._used = [name for name in _NAMES if re.search(rf"\b{name}\b", expression)]

    @property
    def is_open(self) -> bool:
        return not self._text and self._evaluate is None

    def matches(self, shown: ShownRecord) -> bool:
        if self._text and not self._holds_text(shown):
            return False
        return self._evaluate is None or self._is_true(shown)

    def _holds_text(self, shown: ShownRecord) -> bool:
        pieces = (shown.key.text, shown.value.text, *(f"{name} {value.text}" for name, value in shown.headers))
        return any(self._text in piece.lower() for piece in pieces)

    def _is_true(self, shown: ShownRecord) -> bool:
        assert self._evaluate is not None
        known: dict[str, Callable[[], Any]] = {
            "key": lambda: shown.key.data,
            "value": lambda: shown.value.data,
            "headers": lambda: {name: value.text for name, value in shown.headers},
            "partition": lambda: shown.partition,
            "offset": lambda: shown.record.offset,
            "timestamp": lambda: shown.record.timestamp,
            "topic": lambda: self._topic,
        }
        try:
            return self._evaluate({name: known[name]() for name in self._used})
        except CannotSay as error:
            self.failed += 1
            self.failure = str(error)
            return False
