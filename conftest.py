"""For all tests: those of Spark go to one process of pytest-xdist, and one JVM; the others go where there is room."""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/unit/spark/"


class SparkTogether(LoadScopeScheduling):
    """Larger scopes are given out first, so Spark's tests begin at once."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SparkTogether:
    return SparkTogether(config, log)
