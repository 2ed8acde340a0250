"""Each test of the page finds its bug: it fails with the buggy code, and passes with the fixed code."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.testing import Kafka

PAGE = Path(__file__).parents[3] / "docs" / "ten-bugs.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, str]:
    """Return the code of each section, by its title."""
    _, *parts = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    return {part.partition("\n")[0]: "\n".join(_BLOCK.findall(part)) for part in parts}


def shared_code() -> str:
    return "\n".join(_BLOCK.findall(PAGE.read_text().partition("\n## ")[0]))


def load(title: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(shared_code() + sections()[title], str(PAGE), "exec"), names)
    return names


def test_of(names: dict[str, Any]) -> Callable[[Kafka, Any], None]:
    [test] = [value for name, value in names.items() if name.startswith("test_")]
    return test


test_of.__test__ = False  # type: ignore[attr-defined]


def test_there_are_ten() -> None:
    assert [title.partition(".")[0] for title in sections()] == [str(number) for number in range(1, 11)]


@pytest.mark.parametrize("title", sections())
def test_bug_is_found(title: str, kafka: Kafka) -> None:
    names = load(title)
    with pytest.raises(AssertionError):
        test_of(names)(kafka, names["broken"])


@pytest.mark.parametrize("title", sections())
def test_mended_code_passes(title: str, kafka: Kafka) -> None:
    names = load(title)
    test_of(names)(kafka, names["mended"])
