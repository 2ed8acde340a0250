"""The schemas that a schema imports, as the console and Spark fetch them."""

import pytest

from barnabas.services.registry.formats import Reference
from barnabas.services.registry.formats.limits import REFERENCES_MAX
from barnabas.services.registry.references import LEVELS_MAX, BadReferences, imports

Graph = dict[str, list[str]]


def walked(graph: Graph, top: str = "top") -> tuple[list[str], int]:
    """The names in the order in which they come, and how many were fetched."""
    fetched: list[str] = []

    def fetch(reference: Reference) -> str:
        fetched.append(reference.subject)
        return reference.subject

    def references_of(name: str) -> list[Reference]:
        return [Reference(each, each, 1) for each in graph.get(name, [])]

    return [name for name, _ in imports(references_of(top), fetch, references_of)], len(fetched)


def test_each_comes_after_those_that_it_needs() -> None:
    assert walked({"top": ["a", "b"], "a": ["c"], "b": ["c", "d"], "c": ["d"]})[0] == ["d", "c", "a", "b"]


def test_a_schema_that_many_import_is_fetched_once() -> None:
    """Each level imports the next one twice: 2^60 ways lead to the last one."""
    graph = {"top": ["l0", "r0"]}
    for level in range(60):
        graph |= {f"{side}{level}": [f"l{level + 1}", f"r{level + 1}"] for side in "lr"}
    names, fetched = walked(graph)
    assert len(names) == len(set(names)) == fetched == 122


@pytest.mark.parametrize("graph", [{"top": ["a"], "a": ["a"]}, {"top": ["a"], "a": ["b"], "b": ["c"], "c": ["a"]}])
def test_a_circle_is_refused(graph: Graph) -> None:
    with pytest.raises(BadReferences, match="imports itself"):
        walked(graph)


def test_a_circle_under_other_names_is_refused() -> None:
    count = iter(range(10**9))
    with pytest.raises(BadReferences):
        list(imports([Reference("n", "s", 1)], lambda each: each, lambda _: [Reference(f"n{next(count)}", "s", 1)]))


def test_depth_is_bounded() -> None:
    with pytest.raises(BadReferences, match="levels"):
        walked({"top": ["0"]} | {str(level): [str(level + 1)] for level in range(LEVELS_MAX + 1)})


def test_number_is_bounded() -> None:
    assert walked({"top": [str(number) for number in range(REFERENCES_MAX)]})[1] == REFERENCES_MAX
    with pytest.raises(BadReferences):
        walked({"top": [str(number) for number in range(REFERENCES_MAX + 1)]})


def test_of_two_with_one_name_the_first_counts() -> None:
    both = [Reference("n", "first", 1), Reference("n", "second", 1)]
    assert [found.subject for _, found in imports(both, lambda each: each, lambda _: [])] == ["first"]
