"""For all tests: those of Spark go to two processes of pytest-xdist, each with a JVM; the others go where there is room, those
of a module together: what they share is made once.

Ctrl-C works in what they start, also where the tests themselves run in the background of a shell.

A test that starts real processes (`REAL_PROCESSES`) is tried up to three times: it runs on real time, with other people's
clients, whose races are not ours to mend. All other tests run once: a unit test or a seed of the simulation that fails and then
passes has found a defect. The end of a run lists each test that was tried again, with the reason of each failure: read it, as
such a failure may be a defect, too.
"""

import asyncio
import gc
import inspect
import signal
from collections.abc import Generator
from contextlib import AsyncExitStack
from typing import Any

import hypothesis
import pytest
import uvloop
from tests.support.async_fixture import entered
from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/scenarios/spark/"
#: What their tests share costs more than they do. Spark's, all in one process, would be the last to end by minutes.
APPLICATIONS = (
    "tests/scenarios/spark/test_spark_examples",
    "tests/scenarios/spark/test_spark_pipeline",
    "tests/scenarios/spark/test_spark_streams",
)
TOGETHER = dict.fromkeys(APPLICATIONS, "applications of Spark") | {
    scope: scope
    for scope in (
        SPARK,
        "tests/unit/spark/",
        "tests/scenarios/registry/",
        "tests/scenarios/groups/",
        "tests/scenarios/link/",
        "tests/scenarios/tiered/",
    )
}
REAL_PROCESSES = (
    "tests/scenarios/",
    "tests/interop/",
    "tests/soak/",
    "tests/unit/client/test_client_blocking_producer.py",
    "tests/unit/client/test_client_members_together.py",
    "tests/unit/spark/test_spark_checkpoint_replan.py",
    "tests/unit/spark/test_spark_mixed_brokers.py",
    "tests/unit/spark/test_spark_sink_identity.py",
    "tests/unit/spark/test_spark_sink_protocol.py",
)
RERUNS = 2
SIMULATION = "tests/simulation/"
#: Each of these is as long as whole modules are, and shares nothing: every one goes where there is room.
LONG = (
    "tests/scenarios/docs/test_documents.py",
    "tests/scenarios/faults/test_cluster_under_chaos.py",
    "tests/scenarios/packaging/",
    "tests/scenarios/transactions/test_money_transfer.py",
    "tests/simulation/test_simulation.py",
    "tests/simulation/test_mutants.py::test_mutant_is_noticed",
    "tests/unit/broker/compose/test_foreign_znodes.py",
)
#: Spark's two processes keep two cores busy by themselves: beside them run the tests that mostly wait, and only then those of
#: the simulation, which compute. What takes milliseconds comes last, so that all processes end together.
WAITING = (
    *REAL_PROCESSES,
    "tests/unit/broker/compose/test_foreign_znodes.py",
    "tests/unit/broker/server/",
    "tests/unit/broker/features/tiered/",
)
FIRST = (SPARK, tuple(TOGETHER), WAITING, SIMULATION)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background jobs ignore it, and so would every process that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# A busy machine must not fail an example because it took long, nor because it took long to think of. The same examples each
# time: a change is judged by what it changes. `pytest --hypothesis-profile explore` looks for others.
for profile, options in {
    "same": {"derandomize": True, "max_examples": 50},
    "explore": {"max_examples": 300},
}.items():
    hypothesis.settings.register_profile(
        profile, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], **options
    )
hypothesis.settings.load_profile("same")


class SomeTogether(LoadScopeScheduling):
    """Scopes are given out in the order of the tests."""

    def _split_scope(self, nodeid: str) -> str:
        alone = nodeid if nodeid.startswith(LONG) else nodeid.partition("::")[0]
        return next((scope for prefix, scope in TOGETHER.items() if nodeid.startswith(prefix)), alone)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SomeTogether:
    config.option.loadscopereorder = False
    return SomeTogether(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Hardly anything of what is imported and collected is garbage: looking for it took a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # they have been shuffled
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: [not item.nodeid.startswith(prefixes) for prefixes in FIRST])
    for item in items:
        if item.nodeid.startswith(REAL_PROCESSES):
            item.add_marker(pytest.mark.flaky(reruns=RERUNS))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    failures: list[pytest.TestReport] = terminalreporter.stats.get("rerun", [])
    if failures:
        terminalreporter.write_sep("=", "tests that failed and were tried again, with the reason", yellow=True)
    for failure in failures:
        terminalreporter.write_line(f"{failure.nodeid}: {_reason(failure)}")


def _reason(failure: pytest.TestReport) -> str:
    """The first line of the exception."""
    crash = getattr(failure.longrepr, "reprcrash", None)
    text = str(failure.longrepr if crash is None else crash.message).strip()
    return text.partition("\n")[0] or "no reason was given"


#: A guard against a test that waits for ever, not a measure.
COROUTINE_TEST_S = 60


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test may be a coroutine: it gets an event loop of its own; with the marker `uvloop`, the loop that a broker has. Its
    fixtures may be made on that loop, see `async_fixture`."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def bounded() -> None:
        async with asyncio.timeout(COROUTINE_TEST_S), AsyncExitStack() as fixtures:
            await pyfuncitem.obj(**await entered(arguments, fixtures))

    (uvloop.run if pyfuncitem.get_closest_marker("uvloop") else asyncio.run)(bounded())
    return True
