"""Many seeds: a bug is found, shortened, described as a story, and its seed is kept."""

from pathlib import Path

import pytest

from barnabas.testing import simulation
from barnabas.testing.simulation import seeds
from tests.simulation.api import applications


def test_consumer_that_commits_first_loses_orders_and_the_seed_tells_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeds.settings, "folder", tmp_path)
    monkeypatch.setattr(seeds.settings, "jobs", 1)
    with pytest.raises(simulation.SimulationFailed) as failed:
        applications.loses_orders()
    said = str(failed.value)
    [kept] = tmp_path.glob("*.seeds")
    seed = int(kept.read_text())
    assert f"seed {seed} fails" in said
    assert "The faults it takes" in said
    assert "is killed; it is started again" in said
    assert f"pytest --simulation-seed {seed} " in said
    assert "missing = {b'orders-" in said
    assert "What happened, in virtual seconds:" in said
    monkeypatch.setattr(seeds.settings, "seeds", 0)
    monkeypatch.setattr(seeds.settings, "shrinks", False)
    with pytest.raises(
        simulation.SimulationFailed, match=f"seed {seed} fails, after 1 run:"
    ):  # those that are kept run first
        applications.loses_orders()


def test_consumer_that_commits_what_is_done_loses_nothing() -> None:
    reports = simulation.hunt(
        applications.no_order_is_lost, range(2), brokers=1, faults=["kill process"], virtual_minutes=0.3
    )
    assert [(report.broken, report.message) for report in reports] == [("", "")] * 2
    assert any(report.faults for report in reports)


def test_function_that_another_interpreter_cannot_find_is_refused() -> None:
    async def inside(world: simulation.World) -> None: ...

    with pytest.raises(TypeError, match="top level of its module"):
        simulation.run(inside)


def test_unknown_faults_are_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="unknown faults 'rebalance': choose of the profiles calm, rebalances"):
        simulation.test(faults="rebalance")
