"""CEL expressions over the content of records, with limits: neither the expressions nor the records are trusted.

An expression of a few hundred characters can double a list two hundred times, or compare nested lists for years, on a thread
that cannot be stopped. So the evaluation counts everything that it reads and creates, and the time of its thread.
"""

import functools
import logging
import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from barnabas.services.console.errors import bad_request
from barnabas.services.console.quick_expressions import AskCel, NoAnswer, quick

EXPRESSION_CHARS_MAX: Final = 4_000
#: Per record: elements that macros such as `list.all(…)` visit.
ELEMENTS_MAX: Final = 20_000
#: Per record: arguments of functions, including the contents of lists and maps; eight characters count as one.
WORK_MAX: Final = 1_000_000
_CHARS_A_UNIT: Final = 8
#: Per record: CPU time of the thread in seconds.
SECONDS_MAX: Final = 5.0
#: Functions whose cost does not depend on the size of their arguments.
_CONSTANT: Final = frozenset({"_[_]", "size", "type", "_?_:_", "_&&_", "_||_", "!_", "-_"})


_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "_==_": operator.eq,
    "_!=_": operator.ne,
    "_<_": operator.lt,
    "_<=_": operator.le,
    "_>_": operator.gt,
    "_>=_": operator.ge,
}


class CannotSay(Exception):
    """The expression has no result for this record; the message says why."""


class _TooMuch(Exception):
    """Not a subclass of CEL's errors, which its macros would treat as a result."""


class _Budget:
    """The remaining budget for one record. Owner: the evaluating thread."""

    __slots__ = ("_elements", "_ends_s", "_work")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._elements = ELEMENTS_MAX
        self._work = WORK_MAX
        self._ends_s = time.thread_time() + SECONDS_MAX

    def take_element(self) -> None:
        self._elements -= 1
        if self._elements < 0:
            raise _TooMuch(f"it visits more than {ELEMENTS_MAX:,} elements of a record's lists")
        self._check_time()

    def take(self, values: Sequence[Any]) -> None:
        """Charge values before a function uses them: a few nested lists may count as billions of values."""
        self._check_time()
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            self._work -= 1
            if isinstance(value, str | bytes):
                self._work -= len(value) // _CHARS_A_UNIT
            elif isinstance(value, dict):
                self._work -= len(value)
                waiting += value.values() if self._work > 0 else ()
            elif isinstance(value, list | tuple):
                self._work -= len(value)
                waiting += value if self._work > 0 else ()
            if self._work < 0:
                raise _TooMuch("it reads or creates too many values for one record")

    def _check_time(self) -> None:
        if time.thread_time() > self._ends_s:
            raise _TooMuch(f"it takes more than {SECONDS_MAX:g} s for one record")


def compiled(expression: str, names: Iterable[str] = ()) -> Callable[[Mapping[str, Any]], bool]:
    """Return `evaluate(values)`, which raises `CannotSay`. Each has its own budget: call it from one thread at a time.

    Compiling may take a second: call it from a thread. `names` are the variables that every call has.

    :raises Refusal: if the expression is not CEL. The reason says where.
    """
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise bad_request(f"an expression may have up to {EXPRESSION_CHARS_MAX} characters")
    import celpy  # takes tens of milliseconds and megabytes, so it is imported when needed
    from celpy.celparser import CELParseError
    from celpy.evaluation import CELEvalError

    logging.getLogger("celpy").setLevel(logging.CRITICAL)
    budget = _Budget()
    environment = celpy.Environment(runner_class=_bounded_runner())
    try:
        tree = environment.compile(expression)
        program = environment.program(tree, functions=_bounded_operators(budget))
    except CELParseError as error:
        raise bad_request(_refusal(expression, error)) from None
    except RecursionError:
        raise bad_request("the filter is nested too deeply") from None
    program.budget = budget  # type: ignore[attr-defined]
    quickly = quick(tree, frozenset(names))

    def evaluate(values: Mapping[str, Any]) -> bool:
        if quickly is not None:
            try:
                return quickly(values)
            except NoAnswer as error:
                raise CannotSay(str(error)) from None
            except AskCel:
                pass
        budget.begin()
        try:
            result = program.evaluate({name: _to_cel(value) for name, value in values.items()})
        except _TooMuch as error:
            raise CannotSay(str(error)) from None
        except CELEvalError as error:
            raise CannotSay(str(error.args[0]) if error.args else "it failed") from None
        except (RecursionError, ValueError, TypeError, OverflowError) as error:
            raise CannotSay(_one_line(error)) from None
        if not isinstance(result, celpy.celtypes.BoolType | bool):
            raise CannotSay("the result is neither true nor false")
        return bool(result)

    return evaluate


@functools.cache
def _bounded_runner() -> Any:
    """Count each element that a macro visits, and all arguments and results of functions, so that no value exceeds the
    limits."""
    import celpy
    from celpy.evaluation import Evaluator

    # The macros all() and exists() look these up each time.
    for name in ("logical_and", "logical_or"):
        setattr(celpy.celtypes, name, _without_quotes(getattr(celpy.celtypes, name)))

    class Bounded(Evaluator):
        def __init__(self, ast: Any, activation: Any, budget: _Budget) -> None:
            super().__init__(ast, activation)
            self._budget = budget

        def sub_evaluator(self, ast: Any) -> "Bounded":
            return Bounded(ast, self.activation, self._budget)

        def evaluate(self, context: Any = None) -> Any:
            self._budget.take_element()
            result = super().evaluate(context)
            self._budget.take((result,))
            return result

        def function_eval(self, name_token: Any, exprlist: Any = None) -> Any:
            if name_token.value not in _CONSTANT and isinstance(exprlist, list):
                self._budget.take(exprlist)
            return super().function_eval(name_token, exprlist)

        def method_eval(self, object: Any, method_ident: Any, exprlist: Any = None) -> Any:
            if method_ident.value not in _CONSTANT:
                self._budget.take([object, exprlist])
            return super().method_eval(object, method_ident, exprlist)

        def exprlist(self, tree: Any) -> Any:
            result = super().exprlist(tree)
            self._budget.take((result,))
            return result

        def mapinits(self, tree: Any) -> Any:
            result = super().mapinits(tree)
            self._budget.take((result,))
            return result

    class Runner(celpy.InterpretedRunner):
        budget: _Budget

        def evaluate(self, context: Any) -> Any:
            return Bounded(self.ast, self.new_activation(), self.budget).evaluate(context)

    return Runner


def _bounded_operators(budget: _Budget) -> dict[str, Callable[..., Any]]:
    from celpy.evaluation import base_functions

    def bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if name in ("_&&_", "_||_"):
            function = _without_quotes(function)

        @functools.wraps(function)
        def call(*values: Any) -> Any:
            if name == "_%_" and isinstance(values[0], str | bytes):
                # Python would treat the text as a format string, and could fill a gigabyte with blanks.
                raise TypeError("no such overload")
            budget.take(() if name in _CONSTANT else values)
            if name in _COMPARISONS and (found := _compared(name, *values)) is not None:
                return found
            return function(*values)

        return call

    return {name: bounded(name, function) for name, function in base_functions.items() if "_" in (name[0], name[-1])}


def _without_quotes(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """celpy's && or ||, without the values in its error where neither side is a bool.

    Each error would quote the one within it, with twice as many backslashes: sixty of them fill the memory.
    """
    from celpy.celtypes import BoolType

    @functools.wraps(function)
    def call(left: Any, right: Any) -> Any:
        if not isinstance(left, BoolType) and not isinstance(right, BoolType):
            raise TypeError("no such overload")
        return function(left, right)

    return call


def _compared(name: str, left: Any, right: Any) -> Any:
    """Numbers by their value, whatever their types, and null with anything, as CEL's specification has it.

    celpy 0.5 takes some of these for errors, and true for the number 1. None: celpy does as specified.
    """
    from celpy import celtypes

    if isinstance(left, Exception) or isinstance(right, Exception):
        return None  # celpy hands errors on as values
    are_bools = [isinstance(each, bool | celtypes.BoolType) for each in (left, right)]
    are_numbers = [
        isinstance(each, int | float) and not is_bool for each, is_bool in zip((left, right), are_bools, strict=True)
    ]
    if all(are_numbers):
        numbers = [float(each) if isinstance(each, float) else int(each) for each in (left, right)]
        return celtypes.BoolType(_COMPARISONS[name](*numbers))
    if name in ("_==_", "_!=_") and (left is None or right is None):
        return celtypes.BoolType((left is right) is (name == "_==_"))
    if any(are_numbers) and any(are_bools):
        if name in ("_==_", "_!=_"):
            return celtypes.BoolType(name == "_!=_")
        raise TypeError("no such overload")
    return None


def _refusal(expression: str, error: Any) -> str:
    """Where the parser stopped, as people count, and what stands there."""
    token = getattr(error.__context__, "token", None)  # the parser's own error knows what it stopped at
    if error.line is None or error.column is None or error.line < 1 or getattr(token, "type", "") == "$END":
        return f"the filter is not CEL: it ends too early, after {expression[-20:]!r}"
    lines = expression.splitlines() or [""]
    rest = lines[min(error.line, len(lines)) - 1][error.column - 1 :]
    place = f"line {error.line}, column {error.column}" if len(lines) > 1 else f"character {error.column}"
    return f"the filter is not CEL: unexpected {rest[:20]!r} at {place}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _to_cel(value: Any) -> Any:
    from celpy import celtypes

    if isinstance(value, bool):
        return celtypes.BoolType(value)
    if isinstance(value, int):
        # CEL's integers have 64 bits; a larger one becomes a double, with some loss of precision.
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
