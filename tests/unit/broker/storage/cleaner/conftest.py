"""`engine`: a module that uses it runs with Python's loops and with the compiled ones."""

from collections.abc import Iterator

import pytest

from barnabas.broker.storage.cleaner.engine import PYTHON, Engine
from tests.unit.broker.storage.cleaner.cleaner_support import CompactedLog


def engine_called(name: str) -> Engine:
    if name == "python":
        return PYTHON
    pytest.importorskip("numba")
    from barnabas.broker.storage.cleaner import compiled

    return compiled.ready()


@pytest.fixture(scope="module", params=["python", "compiled"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """What every `CompactedLog` of the module is cleaned with."""
    found = engine_called(request.param)
    CompactedLog.engine = found
    yield found
    CompactedLog.engine = PYTHON
