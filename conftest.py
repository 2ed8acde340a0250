"""For all tests: those of Spark go to one process of pytest-xdist, and one JVM; the others go where there is room.

And Ctrl-C works in what they start, also where the tests themselves run in the background of a shell.
"""

import signal
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/spark/"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background jobs ignore it, and so would every process that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


class SparkTogether(LoadScopeScheduling):
    """Larger scopes are given out first, so Spark's tests begin at once."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SparkTogether:
    return SparkTogether(config, log)
