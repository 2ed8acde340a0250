"""`examples/pytest_plugin` passes as its README says, from its own folder, and shows the time of each test."""

import os
import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[3] / "examples" / "pytest_plugin"


def test_sample_project_passes_and_shows_the_time_of_each_test() -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--durations=0", "-p", "no:cacheprovider", "-p", "no:randomly", "-W", "error"],
        cwd=PROJECT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    print(done.stdout[done.stdout.find("= slowest") :])
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b11 passed\b", done.stdout)
    calls = re.findall(r"^([0-9.]+)s call +(\S+)$", done.stdout, re.MULTILINE)
    assert len(calls) == 11
    # A topic for each test is cheap; the rest of the time is the client's. The first test's setup starts the cluster.
    ends = re.findall(r"^([0-9.]+)s teardown +\S+test_every_test_starts_with_an_empty_topic", done.stdout, re.MULTILINE)
    assert ends and all(float(seconds) < 30 for seconds in ends)
