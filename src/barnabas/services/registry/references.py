"""The schemas that a schema imports, as a client reads them from a registry: bounded, and without circles. Pure."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

from barnabas.base.errors import BarnabasError
from barnabas.services.registry.formats.limits import REFERENCES_MAX

#: References of references.
LEVELS_MAX: Final = 100


class Reference(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def subject(self) -> str: ...
    @property
    def version(self) -> int: ...


R = TypeVar("R", bound=Reference)
S = TypeVar("S")


class BadReferences(BarnabasError):
    """The registry's answers lead in a circle, too deep, or to too many schemas."""


def imports(
    references: Sequence[R], fetch: Callable[[R], S], references_of: Callable[[S], Sequence[R]]
) -> Iterator[tuple[str, S]]:
    """Yield each imported schema with the name under which it is imported, after the schemas that it imports itself.

    Of two references with the same name the first one wins, as in Confluent's clients.
    """
    seen: set[str] = set()
    above: list[tuple[str, int]] = []

    def walk(level: Sequence[R]) -> Iterator[tuple[str, S]]:
        for each in level:
            place = (each.subject, each.version)
            if place in above:
                raise BadReferences(f"schema {each.name!r} imports itself")
            if each.name in seen:
                continue
            if len(seen) >= REFERENCES_MAX or len(above) >= LEVELS_MAX:
                raise BadReferences(f"more than {REFERENCES_MAX} schemas, or {LEVELS_MAX} levels of them, are imported")
            seen.add(each.name)
            schema = fetch(each)
            above.append(place)
            yield from walk(references_of(schema))
            above.pop()
            yield each.name, schema

    return walk(references)
