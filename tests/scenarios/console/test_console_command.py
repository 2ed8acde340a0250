"""`barnabas console` as a process, and errors at its start."""

import json
import os
import signal
import subprocess
import sys
from urllib.request import urlopen

from barnabas.testing import Cluster
from tests.scenarios.console.conftest import DEADLINE_S


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "barnabas", "console", *arguments]


def test_console_says_where_it_is_and_ends_on_sigterm(cluster: Cluster) -> None:
    process = subprocess.Popen(
        command("--bootstrap-server", cluster.bootstrap, "--port", "0"), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("ready console=http://127.0.0.1:"), line
        with urlopen(f"{line.strip().removeprefix('ready console=')}/api/about", timeout=DEADLINE_S) as answer:
            assert json.load(answer)["readWrite"] is False
    finally:
        os.kill(process.pid, signal.SIGTERM)
        process.stdout.close()
    assert process.wait(DEADLINE_S) == 0


def test_port_in_use_is_reported_in_one_line(cluster: Cluster) -> None:
    port = cluster.bootstrap.rpartition(":")[2]
    arguments = command("--bootstrap-server", cluster.bootstrap, "--port", port)
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr and "Traceback" not in done.stderr
