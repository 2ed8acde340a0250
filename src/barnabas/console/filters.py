"""Which records a search wants: those that hold a text, and those for which an expression (CEL) is true.

An expression sees `key` and `value` (what JSON, Avro or Protobuf have, else text), `headers` (text by name), `partition`,
`offset`, `timestamp` (ms) and `topic`. A record that it cannot be evaluated for (it has no such field) is not wanted.
"""

import functools
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from barnabas.console.decoding import ShownRecord
from barnabas.console.errors import bad_request

EXPRESSION_CHARS_MAX: Final = 4_000
#: Of one record: `list.all(…)` looks at each.
ELEMENTS_MAX: Final = 20_000
_NAMES: Final = ("key", "value", "headers", "partition", "offset", "timestamp", "topic")


class Filter:
    """`matches` may take a millisecond for an expression: call it from a thread."""

    def __init__(self, topic: str, text: str, expression: str) -> None:
        self._topic = topic
        self._text = text.lower()
        self._evaluate = _compiled(expression) if expression else None
        #: What the expression could not be evaluated for: how many, and why the last one was not.
        self.failed = 0
        self.failure = ""
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
        except _CannotSay as error:
            self.failed += 1
            self.failure = str(error)
            return False


class _CannotSay(Exception):
    pass


class _TooMuch(Exception):
    """Not one of CEL's own errors, which its macros take for an answer."""


def _compiled(expression: str) -> Callable[[Mapping[str, Any]], bool]:
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise bad_request(f"an expression may have up to {EXPRESSION_CHARS_MAX} characters")
    import celpy  # tens of milliseconds and megabytes, for those who use it
    from celpy.celparser import CELParseError
    from celpy.evaluation import CELEvalError

    logging.getLogger("celpy").setLevel(logging.CRITICAL)
    environment = celpy.Environment(runner_class=_bounded_runner())
    try:
        program = environment.program(environment.compile(expression))
    except CELParseError as error:
        raise bad_request(f"the filter is not CEL: {_one_line(error)}") from None
    except RecursionError:
        raise bad_request("the filter is nested too deeply") from None

    def evaluate(values: Mapping[str, Any]) -> bool:
        try:
            result = program.evaluate({name: _to_cel(value) for name, value in values.items()})
        except _TooMuch:
            raise _CannotSay(f"it looks at more than {ELEMENTS_MAX} elements of a record's lists") from None
        except CELEvalError as error:
            raise _CannotSay(str(error.args[0]) if error.args else "it failed") from None
        except (RecursionError, ValueError, TypeError) as error:
            raise _CannotSay(_one_line(error)) from None
        if not isinstance(result, celpy.celtypes.BoolType | bool):
            raise _CannotSay("it is neither true nor false")
        return bool(result)

    return evaluate


@functools.cache
def _bounded_runner() -> Any:
    """CEL's macros over lists in lists can take hours for one record, on a thread that nobody can stop: they are counted."""
    import celpy
    from celpy.evaluation import Evaluator

    class Bounded(Evaluator):
        def __init__(self, ast: Any, activation: Any, seen: list[int] | None = None) -> None:
            super().__init__(ast, activation)
            self._seen = [0] if seen is None else seen

        def sub_evaluator(self, ast: Any) -> "Bounded":
            return Bounded(ast, self.activation, self._seen)

        def evaluate(self, context: Any = None) -> Any:
            self._seen[0] += 1
            if self._seen[0] > ELEMENTS_MAX:
                raise _TooMuch
            return super().evaluate(context)

    class Runner(celpy.InterpretedRunner):
        def evaluate(self, context: Any) -> Any:
            return Bounded(self.ast, self.new_activation()).evaluate(context)

    return Runner


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _to_cel(value: Any) -> Any:
    from celpy import celtypes

    if isinstance(value, bool):
        return celtypes.BoolType(value)
    if isinstance(value, int):
        # CEL's integers have 64 bits; a larger one is only near enough as a double.
        return celtypes.IntType(value) if -(2**63) <= value < 2**63 else celtypes.DoubleType(value)
    if isinstance(value, float):
        return celtypes.DoubleType(value)
    if isinstance(value, str):
        return celtypes.StringType(value)
    if isinstance(value, list | tuple):
        return celtypes.ListType([_to_cel(each) for each in value])
    if isinstance(value, dict):
        return celtypes.MapType({celtypes.StringType(str(name)): _to_cel(each) for name, each in value.items()})
    return None
