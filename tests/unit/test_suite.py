"""Rules of the suite itself."""

from collections import Counter
from pathlib import Path


def test_test_modules_have_names_of_their_own() -> None:
    """pytest imports a test module by its bare name: two of one name are an error, but only when both are collected."""
    names = Counter(path.name for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
