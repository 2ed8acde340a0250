"""Tests here install from PyPI; `-m "not pypi and not soak"` leaves them out on a machine without it.

`make dist` gives them the wheel that it built, and one Python after the other.
"""

import sys
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    # Known only where this folder is named on the command line, as `make dist` does.
    parser.addoption("--wheel", type=Path, help="the wheel to test, instead of one made here")
    parser.addoption("--python", default=sys.executable, help="the Python to test it on")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "pypi: installs packages from PyPI (or the index that pip is configured for)")
