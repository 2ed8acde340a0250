"""`tests.soak.spark_chain`, short and long: with a driver that is killed after its decision, and with every process killed."""

from pathlib import Path

import pytest

from tests.soak.spark_chain import DIFFERENCES, FAULTS, Chain, NothingProved, cluster_of, numbers_differ


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_each_record_goes_through_the_chain_once_when_the_driver_is_killed(tmp_path: Path) -> None:
    story: list[str] = []
    with cluster_of(brokers=1) as cluster:
        chain = Chain(cluster, tmp_path, seed=1, master="local[2,8]", rate=200, say=story.append)
        count = chain.run(seconds=0, faults=["decided"])
    assert count > 100
    assert any("died where it was decided" in line for line in story), story


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_record_goes_through_the_chain_once_when_every_process_is_killed(tmp_path: Path) -> None:
    """Executors are JVMs, and brokers as different as their settings allow: every fault happens once at
    least."""
    with cluster_of(differ=True) as cluster:
        chain = Chain(cluster, tmp_path, seed=2, rate=200, differ=True, say=print)
        assert chain.run(seconds=0) > 100
    assert set(chain.happened) == {*FAULTS, *DIFFERENCES}


def test_the_chain_notices_records_that_are_lost_doubled_or_made_up() -> None:
    assert numbers_differ([2, 0, 1], 3) is None
    assert numbers_differ([0, 1], 3) == "1 of 3 missing [2], 0 repeated [], 0 strange []"
    assert numbers_differ([0, 1, 1, 2], 3) == "0 of 3 missing [], 1 repeated [1], 0 strange []"
    assert numbers_differ([0, 1, 2, 7], 3) == "0 of 3 missing [], 0 repeated [], 1 strange [7]"


def test_a_run_without_one_of_its_faults_fails(tmp_path: Path) -> None:
    with pytest.raises(NothingProved, match="did not happen: executor"):
        Chain(None, tmp_path, seed=1, master="local[2,8]").check_happened(["executor"])  # type: ignore[arg-type]
