"""Executors in processes of their own, and brokers that differ in two-phase commit."""

import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.testing.cluster import Cluster

DRIVER = Path(__file__).parent / "executors_driver.py"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_what_is_planned_and_read_holds_over_several_executors(tmp_path: Path) -> None:
    settings = {number: {"transaction.two.phase.commit.enable": str(number == 1).lower()} for number in (1, 2)}
    with Cluster(brokers=2, broker_config=settings) as cluster:
        told = subprocess.run(
            [sys.executable, str(DRIVER), cluster.bootstrap, str(tmp_path)], capture_output=True, text=True, check=False
        )
    assert told.stdout.endswith("all done\n"), told.stdout + told.stderr[-5000:]
