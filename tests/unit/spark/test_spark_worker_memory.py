"""A Python worker of Spark collects garbage after every task: imported modules are not part of it."""

import subprocess
import sys

IN_A_WORKER = """
import gc
from barnabas.spark import fetching, worker_memory
before = gc.get_freeze_count()
worker_memory.keep_imports()
kept = gc.get_freeze_count()
later = [object() for _ in range(10)]
worker_memory.keep_imports()
print(before, kept > 10_000, gc.get_freeze_count() == kept)
"""


def test_imports_are_kept_once_a_process() -> None:
    process = subprocess.run([sys.executable, "-c", IN_A_WORKER], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["0", "True", "True"]
