"""The Python examples of docs/testing.md run in this process, where clusters are cheap, and show what the page says."""

import contextlib
import io
import re
import unittest
from pathlib import Path

import pytest

pytest_plugins = ("pytester",)

PAGE = Path(__file__).parents[3] / "docs" / "testing.md"
_EXAMPLE = re.compile(r"^```python example\n(.*?)^```\n(?:```text shows\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
_TESTS = re.compile(r"^```python tests\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = _EXAMPLE.findall(PAGE.read_text())


def test_page_has_examples() -> None:
    assert len(EXAMPLES) == 6


def test_tests_of_the_page_pass(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = _TESTS.findall(PAGE.read_text())
    pytester.makepyfile(code)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others take seconds to load
    # In a process of its own: pytester takes modules away after a run in this one, and the examples below run brokers here.
    result = pytester.runpytest_subprocess("-p", "barnabas.testing.plugin", "-p", "no:cacheprovider", timeout=100)
    result.assert_outcomes(passed=3)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_runs_and_shows_what_the_page_says(number: int) -> None:
    code, shows = EXAMPLES[number]
    names: dict[str, object] = {"__name__": "example"}
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(compile(code, str(PAGE), "exec"), names)
    assert shown.getvalue() == shows
    cases = [each for each in names.values() if isinstance(each, type) and each.__module__ == "example"]
    for case in cases:
        assert issubclass(case, unittest.TestCase)
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
        assert (result.testsRun, result.failures, result.errors) == (1, [], [])
