"""Fixtures and options of all tests here. The root `conftest.py` has what concerns the run."""

from collections.abc import Iterator

import pytest

from tests.support.stories import Story


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-stories", action="store_true", help="write the files of tests/stories again")


@pytest.fixture
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    """The story of a test: the name of its file is the test's, after `test_`."""
    scenes = Story(request.node.name.removeprefix("test_"))
    yield scenes
    scenes.compare(update=request.config.getoption("--update-stories"))
