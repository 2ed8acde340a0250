"""Executors that are processes, and brokers that differ in their settings."""

import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.testing.cluster import Cluster

ROOT = Path(__file__).parents[3]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_all_checks_of_several_executors_pass(tmp_path: Path) -> None:
    settings = {
        1: {"transaction.two.phase.commit.enable": "true", "transaction.partition.verification.enable": "false"},
        2: {"transaction.two.phase.commit.enable": "false", "log.flush.interval.messages": "1"},
    }
    with Cluster(brokers=2, config={"log.cleaner.backoff.ms": "200"}, broker_config=settings) as cluster:
        process = subprocess.run(
            [sys.executable, "-m", "tests.scenarios.spark.executors_driver", cluster.bootstrap, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
    assert process.stdout.endswith("all done\n"), process.stdout + process.stderr[-5000:]
