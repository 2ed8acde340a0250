"""Fixtures and options of all tests in this folder. The root `conftest.py` has the settings of the run."""

from collections.abc import Iterator

import pytest

from tests.support.stories import Story


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-stories", action="store_true", help="write the files of tests/stories again")


@pytest.fixture
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    """Return the story of a test: its file has the test's name without `test_`."""
    scenes = Story(request.node.name.removeprefix("test_"))
    yield scenes
    scenes.compare(update=request.config.getoption("--update-stories"))
