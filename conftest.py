"""For all tests: those of Spark go to one process of pytest-xdist, and one JVM; the others go where there is room.

Ctrl-C works in what they start, also where the tests themselves run in the background of a shell.

A test on real time, with real processes and other people's clients, gets another try: their races are not ours to mend. The
summary lists each rerun: look at it, as it may hide a defect. The simulation gets none: the same seed does the same again.
"""

import signal
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/spark/"
REAL_PROCESSES = (SPARK, "tests/scenarios/")
SIMULATION = "tests/simulation/"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background jobs ignore it, and so would every process that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


class SparkTogether(LoadScopeScheduling):
    """Larger scopes are given out first, so Spark's tests begin at once."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SparkTogether:
    return SparkTogether(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.nodeid.startswith(SIMULATION):
            item.add_marker(pytest.mark.flaky(reruns=2 if item.nodeid.startswith(REAL_PROCESSES) else 1))
