"""Limits for the cost of a schema. Pure.

Any client with write access can send a schema. Text, depth and work are bounded here, and an error names the limit.
"""

from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")

#: A record of `_schemas` holds the text, and a topic takes no record above max.message.bytes: 1 MiB unless set higher.
CHARS_MAX = 1 << 20
#: Characters including all references.
CHARS_WITH_REFERENCES_MAX = 8 << 20
REFERENCES_MAX = 1000
#: Steps of one comparison of two schemas: about two seconds. A pair of parts takes a few.
STEPS_MAX = 500_000
PAIR_STEPS = 5
#: Differences that one comparison reports; a longer list is useless.
DIFFERENCES_MAX = 1000


class SchemaError(ValueError):
    """The schema is not valid, or costs too much. The message is for the user who registers it (error code 42201)."""


class Budget:
    """Steps that a comparison may still take."""

    def __init__(self) -> None:
        self._left = STEPS_MAX

    def spend(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise SchemaError(f"comparing these schemas takes more than {STEPS_MAX} steps, which is the limit")


def run(walk: Generator[Any, Any, T]) -> T:
    """Run a generator that yields the generators it waits for: recursion that needs no stack, at any depth."""
    stack: list[Generator[Any, Any, Any]] = [walk]
    result: Any = None
    while stack:
        try:
            child = stack[-1].send(result)
        except StopIteration as end:
            stack.pop()
            result = end.value
        else:
            stack.append(child)
            result = None
    return result  # type: ignore[no-any-return]
