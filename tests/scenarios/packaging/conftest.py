"""Tests here install from PyPI; `-m "not pypi"` leaves them out on a machine without it."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "pypi: installs packages from PyPI (or the index that pip is configured for)")
