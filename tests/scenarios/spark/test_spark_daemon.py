"""The daemon that Spark forks workers from: it has imported their modules."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from barnabas.spark import daemon


@pytest.mark.parametrize("worker", daemon.PRELOADED)
def test_a_worker_module_is_one_of_sparks(worker: str) -> None:
    assert importlib.util.find_spec(worker) is not None


def test_planning_loads_no_numba_and_tasks_do() -> None:
    look = "import sys; from barnabas.spark.daemon import preload; preload(sys.argv[1]); print('numba' in sys.modules)"
    for worker, numba in (("pyspark.sql.worker.python_streaming_sink_runner", "False"), ("pyspark.worker", "True")):
        process = subprocess.run([sys.executable, "-c", look, worker], capture_output=True, text=True, check=True)
        assert process.stdout.strip() == numba, worker


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks at processes as Linux shows them")
def test_workers_come_from_the_daemon_that_the_session_names(spark: SparkSession) -> None:
    def parent(_: int) -> str:
        import os

        return Path(f"/proc/{os.getppid()}/cmdline").read_text().replace("\0", " ")

    [line] = spark.sparkContext.parallelize([0], 1).map(parent).collect()
    assert "-m barnabas.spark.daemon pyspark.worker" in line
