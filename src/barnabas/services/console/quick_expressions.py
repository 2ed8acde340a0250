"""CEL for most filters: the parsed expression becomes Python functions that look at the record as JSON has it.

celpy walks its tree for every record, and wants every value of the record in a class of its own: 0.1 to 0.2 ms. Functions
that were made once take some microseconds. They know comparisons, arithmetic, fields, lists, `&&`, `||`, `!`, `? :`, `has`,
`size`, `exists`, `all`, and the functions of strings. Where they are not sure of the answer (`AskCel`), or the work grows
beyond small bounds, celpy evaluates the expression for that record, and counts what it does.
"""

import operator
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from barnabas.base.expressions import BadExpression, compile_expression

#: Longer texts and lists are left to celpy's evaluation, which is counted.
_CHARS_MAX: Final = 64 * 1024
_ITEMS_MAX: Final = 2_000
#: Elements that the macros of one expression look at in one record, loops within loops included.
_ELEMENTS_MAX: Final = 2_000
_SECONDS_MAX: Final = 0.25
_WORK: Final = "the work of macros"  # no name of CEL has blanks

Values = dict[str, Any]
Quick = Callable[[Values], Any]


class NoAnswer(Exception):
    """What CEL calls an error: the record has no such field, or a value is of the wrong type."""


class AskCel(Exception):
    """These functions do not know the answer."""


class _NotQuick(Exception):
    """The expression has a part that these functions do not know."""


class _Work:
    """What macros have done for one record. Whatever else there is takes time in proportion to the expression."""

    __slots__ = ("_elements", "_ends_s")

    def __init__(self) -> None:
        self._elements = 0
        self._ends_s = 0.0

    def take_element(self) -> None:
        now_s = time.thread_time()
        if not self._elements:
            self._ends_s = now_s + _SECONDS_MAX
        self._elements += 1
        if self._elements > _ELEMENTS_MAX or now_s > self._ends_s:
            raise AskCel


def quick(tree: Any, names: frozenset[str]) -> Callable[[Mapping[str, Any]], bool] | None:
    """Functions for a tree of celpy's parser, or None. They raise `NoAnswer` and `AskCel`. `names`: the variables."""
    try:
        evaluate = _Compiler(names).make(tree)
    except (_NotQuick, RecursionError):
        return None

    def answer(values: Mapping[str, Any]) -> bool:
        try:
            return _truth(evaluate({**values, _WORK: _Work()}))
        except RecursionError:
            raise AskCel from None

    return answer


def _truth(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise AskCel


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _bounded(value: Any) -> Any:
    """The value, which a function is going to look through, if it is short enough."""
    if isinstance(value, str):
        if len(value) > _CHARS_MAX:
            raise AskCel
    elif isinstance(value, list | dict) and len(value) > _ITEMS_MAX:
        raise AskCel
    return value


def _equal(left: Any, right: Any) -> bool:
    """Numbers by their value, whatever their types; values of different types are not equal."""
    if isinstance(left, list | dict) and isinstance(right, list | dict):
        raise AskCel
    if _is_number(left) and _is_number(right):
        return bool(left == right)
    return type(left) is type(right) and bool(left == right)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def check(left: Any, right: Any) -> bool:
        if (_is_number(left) and _is_number(right)) or (isinstance(left, str) and isinstance(right, str)):
            return compare(left, right)
        if isinstance(left, bool) and isinstance(right, bool):
            return compare(left, right)
        raise NoAnswer(f"cannot compare {_kind(left)} with {_kind(right)}")

    return check


def _within(item: Any, container: Any) -> bool:
    _bounded(container)
    if isinstance(container, list):
        return any(_equal(item, each) for each in container)
    if isinstance(container, dict) and isinstance(item, str):
        return item in container
    raise AskCel


def _kind(value: Any) -> str:
    names = {bool: "a bool", int: "an int", float: "a double", str: "a string", list: "a list", dict: "a map"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _calculated(calculate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Of two ints or two doubles, as CEL has it; overflow and division by zero are celpy's."""

    def check(left: Any, right: Any) -> Any:
        if type(left) is float and type(right) is float:
            return calculate(left, right)
        if type(left) is int and type(right) is int:
            found = calculate(left, right)
            if -(2**63) <= found < 2**63:
                return found
        raise AskCel

    return check


def _added(left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        return _bounded(left + right)
    return _sum(left, right)


def _divided(left: Any, right: Any) -> Any:
    if not right:
        raise AskCel
    return left / right if type(left) is float else abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def _remainder(left: Any, right: Any) -> Any:
    if type(left) is not int or not right:
        raise AskCel
    return abs(left) % abs(right) * (-1 if left < 0 else 1)


_sum: Final = _calculated(operator.add)
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "relation_eq": _equal,
    "relation_ne": lambda left, right: not _equal(left, right),
    "relation_lt": _ordered(operator.lt),
    "relation_le": _ordered(operator.le),
    "relation_gt": _ordered(operator.gt),
    "relation_ge": _ordered(operator.ge),
    "relation_in": _within,
    "addition_add": _added,
    "addition_sub": _calculated(operator.sub),
    "multiplication_mul": _calculated(operator.mul),
    "multiplication_div": _calculated(_divided),
    "multiplication_mod": _calculated(_remainder),
}
_OF_STRINGS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": operator.contains,
}


class _Compiler:
    """Makes functions of a tree, from the inside out."""

    def __init__(self, names: frozenset[str]) -> None:
        #: Variables, those of the macros around included.
        self._names = names

    def make(self, tree: Any) -> Quick:
        while len(tree.children) == 1 and tree.data in _WRAPPERS:
            tree = tree.children[0]
        return getattr(self, f"_{tree.data}", self._unknown)(tree)

    def _unknown(self, tree: Any) -> Quick:
        raise _NotQuick

    def _expr(self, tree: Any) -> Quick:
        condition, then, otherwise = map(self.make, tree.children)
        return lambda values: then(values) if _truth(condition(values)) else otherwise(values)

    def _conditionalor(self, tree: Any) -> Quick:
        return self._absorbing(tree, decides=True)

    def _conditionaland(self, tree: Any) -> Quick:
        return self._absorbing(tree, decides=False)

    def _absorbing(self, tree: Any, *, decides: bool) -> Quick:
        """One side that decides makes the other side's error irrelevant."""
        left, right = map(self.make, tree.children)

        def evaluate(values: Values) -> bool:
            try:
                if _truth(left(values)) is decides:
                    return decides
            except NoAnswer:
                if _truth(right(values)) is decides:
                    return decides
                raise
            return _truth(right(values))

        return evaluate

    def _relation(self, tree: Any) -> Quick:
        first, second = tree.children
        operate = _OPERATORS.get(first.data)
        if operate is None:
            raise _NotQuick
        left, right = self.make(first.children[0]), self.make(second)
        return lambda values: operate(left(values), right(values))

    _addition = _multiplication = _relation

    def _unary(self, tree: Any) -> Quick:
        sign, inner = tree.children
        operand = self.make(inner)
        if sign.data != "unary_not":
            raise _NotQuick
        return lambda values: not _truth(operand(values))

    def _literal(self, tree: Any) -> Quick:
        (token,) = tree.children
        text, kind = str(token), token.type
        value: Any
        if kind == "BOOL_LIT":
            value = text == "true"
        elif kind == "NULL_LIT":
            value = None
        elif kind == "INT_LIT" and "x" not in text and abs(int(text)) < 2**63:
            value = int(text)
        elif kind == "FLOAT_LIT":
            value = float(text)
        elif kind == "STRING_LIT" and text[0] in "'\"" and "\\" not in text:
            value = text[1:-1]
        else:
            raise _NotQuick
        return lambda values: value

    def _ident(self, tree: Any) -> Quick:
        name = str(tree.children[0])
        if name not in self._names:
            raise _NotQuick
        return operator.itemgetter(name)

    def _member_dot(self, tree: Any) -> Quick:
        inner, name = self.make(tree.children[0]), str(tree.children[1])

        def evaluate(values: Values) -> Any:
            owner = inner(values)
            if not isinstance(owner, dict):
                raise NoAnswer(f"{_kind(owner)} has no field {name!r}")
            if name not in owner:
                raise NoAnswer(f"no such member in mapping: {name!r}")
            return owner[name]

        return evaluate

    def _member_index(self, tree: Any) -> Quick:
        owner_of, index_of = map(self.make, tree.children)

        def evaluate(values: Values) -> Any:
            owner, index = owner_of(values), index_of(values)
            if isinstance(owner, list) and type(index) is int and 0 <= index < len(owner):
                return owner[index]
            if isinstance(owner, dict) and isinstance(index, str) and index in owner:
                return owner[index]
            raise AskCel

        return evaluate

    def _list_lit(self, tree: Any) -> Quick:
        items = [self.make(each) for each in tree.children[0].children] if tree.children else []
        return lambda values: [item(values) for item in items]

    def _ident_arg(self, tree: Any) -> Quick:
        name, arguments = str(tree.children[0]), tree.children[1].children if len(tree.children) > 1 else []
        if name == "size" and len(arguments) == 1:
            return _size(self.make(arguments[0]))
        if name == "has" and len(arguments) == 1:
            return self._has(arguments[0])
        raise _NotQuick

    def _has(self, tree: Any) -> Quick:
        while len(tree.children) == 1 and tree.data in _WRAPPERS:
            tree = tree.children[0]
        if tree.data != "member_dot":
            raise _NotQuick
        inner, name = self.make(tree.children[0]), str(tree.children[1])

        def evaluate(values: Values) -> bool:
            try:
                owner = inner(values)
            except NoAnswer:
                return False
            return isinstance(owner, dict) and name in owner

        return evaluate

    def _member_dot_arg(self, tree: Any) -> Quick:
        owner, name = tree.children[0], str(tree.children[1])
        arguments = tree.children[2].children if len(tree.children) > 2 else []
        if name in ("exists", "all") and len(arguments) == 2:
            return self._macro(owner, *arguments, stops=name == "exists")
        if name == "size" and not arguments:
            return _size(self.make(owner))
        if name in _OF_STRINGS and len(arguments) == 1:
            return _on_strings(_OF_STRINGS[name], self.make(owner), self.make(arguments[0]))
        if name == "matches" and len(arguments) == 1:
            return _matching(self.make(owner), self.make(arguments[0]))
        raise _NotQuick

    def _macro(self, owner: Any, variable: Any, condition: Any, *, stops: bool) -> Quick:
        """`exists` stops at the first true, `all` at the first false; an error counts only if nothing stops it."""
        while len(variable.children) == 1 and variable.data in _WRAPPERS:
            variable = variable.children[0]
        if variable.data != "ident":
            raise _NotQuick
        name, items_of = str(variable.children[0]), self.make(owner)
        check = _Compiler(self._names | {name}).make(condition)

        def evaluate(values: Values) -> bool:
            items, missing = items_of(values), None
            if not isinstance(items, list):
                raise AskCel
            work: _Work = values[_WORK]
            inside = {**values}
            for item in items:
                work.take_element()
                inside[name] = item
                try:
                    if _truth(check(inside)) is stops:
                        return stops
                except NoAnswer as error:
                    missing = error
            if missing is not None:
                raise missing
            return not stops

        return evaluate


_WRAPPERS: Final = frozenset(
    {"expr", "conditionalor", "conditionaland", "relation", "addition", "multiplication", "unary", "member", "primary"}
    | {"paren_expr"}
)


def _size(inner: Quick) -> Quick:
    def evaluate(values: Values) -> int:
        value = inner(values)
        if isinstance(value, str | list | dict):
            return len(value)
        raise NoAnswer(f"{_kind(value)} has no size")

    return evaluate


def _on_strings(operate: Callable[[str, str], bool], first: Quick, second: Quick) -> Quick:
    def evaluate(values: Values) -> bool:
        text, part = first(values), second(values)
        if isinstance(text, str) and isinstance(part, str):
            return operate(_bounded(text), _bounded(part))
        raise NoAnswer(f"this function takes two strings, not {_kind(text)} and {_kind(part)}")

    return evaluate


def _matching(text_of: Quick, pattern: Quick) -> Quick:
    """Only for a pattern that stands in the expression: it is compiled once."""
    try:
        expression = pattern({})
        compiled = compile_expression(expression)
    except (KeyError, BadExpression, NoAnswer, AskCel, TypeError):
        raise _NotQuick from None

    def evaluate(values: Values) -> bool:
        text = text_of(values)
        if not isinstance(text, str):
            raise NoAnswer(f"matches takes a string, not {_kind(text)}")
        return compiled.search(_bounded(text)) is not None

    return evaluate
