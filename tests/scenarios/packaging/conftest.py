"""These tests install from PyPI; `-m "not pypi and not soak"` skips them on a machine without it.

`make dist` runs them with the wheel that it built, on one Python after the other.
"""

import sys
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    # These options exist only if this folder is on the command line, as in `make dist`.
    parser.addoption("--wheel", type=Path, help="the wheel to test, instead of one made here")
    parser.addoption("--python", default=sys.executable, help="the Python to test it on")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "pypi: installs packages from PyPI (or the index that pip is configured for)")
