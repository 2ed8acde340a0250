"""Many seeds: a bug is found, shortened, described as a story, and its seed is kept."""

import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.testing import simulation
from tests.simulation.api import applications

ROOT = Path(__file__).resolve().parents[3]
BROKEN_TEST = """
from barnabas.testing import simulation
from tests.simulation.api.applications import no_order_is_lost

@simulation.test(seeds=40, brokers=1, faults=["kill process"], virtual_minutes=0.3)
async def test_orders(world):
    await no_order_is_lost(world, auto_commit=True)
"""


def test_consumer_that_commits_first_loses_orders_and_the_seed_tells_how(tmp_path: Path) -> None:
    (tmp_path / "test_kitchen.py").write_text(BROKEN_TEST)

    def pytest_says(*options: str) -> str:
        return subprocess.run(
            [
                *(
                    sys.executable,
                    "-m",
                    "pytest",
                    "-q",
                    "-p",
                    "no:cacheprovider",
                    "-p",
                    "no:randomly",
                    "-c",
                    "/dev/null",
                ),
                *("--rootdir", str(tmp_path), str(tmp_path / "test_kitchen.py"), "--simulation-jobs=1", *options),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=500,
        ).stdout

    said = pytest_says()
    [kept] = (tmp_path / ".simulation").glob("*.seeds")
    seed = int(kept.read_text())
    assert f"seed {seed} fails" in said
    assert "The faults it takes" in said
    assert "is killed; it is started again" in said
    assert f"pytest --simulation-seed {seed} " in said
    assert "missing = {b'orders-" in said
    assert "What happened, in virtual seconds:" in said
    assert f"seed {seed} fails, after 1 run:" in pytest_says("--simulation-seeds=0")  # those that are kept run first


def test_consumer_that_commits_what_is_done_loses_nothing() -> None:
    reports = simulation.hunt(
        applications.no_order_is_lost, range(4), brokers=1, faults=["kill process"], virtual_minutes=0.3
    )
    assert [(report.broken, report.message) for report in reports] == [("", "")] * 4
    assert any(report.faults for report in reports)


def test_function_that_another_interpreter_cannot_find_is_refused() -> None:
    async def inside(world: simulation.World) -> None: ...

    with pytest.raises(TypeError, match="top level of its module"):
        simulation.run(inside)


def test_unknown_faults_are_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="unknown faults 'rebalance': choose of the profiles calm, rebalances"):
        simulation.test(faults="rebalance")
