"""`barnabas up --detach`, and the commands for a running cluster: `status`, `restart`, `down`."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import pytest

from barnabas.cli.main import app
from barnabas.cli.running import Running, runtime_folder
from barnabas.testing import wait_until
from tests.support.command_line import CliRunner


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


def up(*arguments: str) -> Done:
    command = [sys.executable, "-m", "barnabas", "up", "--detach", "--port", "0", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run commands of a user with a runtime folder for this test. They run in this process, which saves seconds."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    runner = CliRunner()

    def command(*arguments: str) -> Done:
        result = runner.invoke(app, list(arguments), catch_exceptions=False)
        return Done(result.exit_code, result.stdout, result.stderr)

    yield command
    command("down", "--all")
    assert list(runtime.iterdir()) == []


def has_ended(process: psutil.Process) -> bool:
    """Whether the process has ended: where orphans are not reaped, a zombie remains."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def status(run: Run) -> list[dict]:
    return json.loads(run("status", "--json").stdout)


def test_unreadable_note_is_skipped_with_a_warning(run: Run) -> None:
    foreign = runtime_folder() / "1.json"
    for text in ('{"pid": 1}', "[]", "half a li"):
        foreign.write_text(text)
        done = run("status")
        assert done.stderr.startswith(f"warning: {foreign} is left out"), text
        assert "error: no cluster of `barnabas up` runs here" in done.stderr
    foreign.unlink()


def test_detached_cluster_is_shown_restarted_and_stopped(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    started = up("--brokers", "2", "--data", str(data))
    assert started.returncode == 0, started.stderr
    bootstrap = started.stdout.strip().removeprefix("ready bootstrap=")
    [before] = status(run)
    process = psutil.Process(before["pid"])
    assert (before["bootstrap"], before["folder"], len(before["brokers"])) == (bootstrap, str(data), 2)

    restarted = run("restart", "2")
    assert restarted.returncode == 0, restarted.stderr
    [after] = status(run)
    first, second = ((broker["id"], broker["pid"]) for broker in after["brokers"])
    assert first == (1, before["brokers"][0]["pid"])
    assert second != (2, before["brokers"][1]["pid"])

    os.kill(after["brokers"][0]["pid"], signal.SIGKILL)
    wait_until(lambda: run("status").returncode == 1)
    shown = run("status")
    assert "broker 1" in shown.stdout and "DOWN, ended with -9" in shown.stdout
    assert shown.stderr == "error: down: broker 1; `barnabas restart 1` starts it\n"
    assert run("restart", "1").returncode == 0
    assert run("status").returncode == 0

    refused = run("restart", "7")
    assert refused.stderr == "error: there is no broker 7: this cluster has brokers 1 to 2\n"
    again = run("up", "--brokers", "1", "--port", "0", "--data", str(data))
    assert (again.returncode, "a cluster runs on" in again.stderr) == (1, True)
    down = run("down")
    assert (down.returncode, down.stdout) == (0, f"stopped the cluster on {data}\n")
    assert has_ended(process)
    assert (data / "broker-1" / "meta.properties").exists()


def test_mistakes_say_what_to_do(run: Run, tmp_path: Path) -> None:
    for command in (["status"], ["restart", "1"], ["down"]):
        refused = run(*command)
        assert refused.returncode == 1
        assert refused.stderr == ("error: no cluster of `barnabas up` runs here; `barnabas up --detach` starts one\n")
    one, other = tmp_path / "one", tmp_path / "other"
    with pretended(one, 1), pretended(other, 2), pretended(tmp_path / "killed", 3) as killed:
        killed.close()  # its files remain
        refused = run("down")
        assert refused.stderr == f"error: 2 clusters run here: choose one of\n  --data {one}\n  --data {other}\n"
        refused = run("restart", "1", "--data", str(tmp_path / "none"))
        there_is = f"there is:\n  --data {one}\n  --data {other}\n"
        assert refused.stderr == f"error: no cluster runs on {tmp_path / 'none'}; {there_is}"
        assert not (runtime_folder() / "3.json").exists()


@contextmanager
def pretended(folder: Path, number: int) -> Iterator[socket.socket]:
    """Create the files of a running cluster, without a cluster."""
    note = Running(
        pid=number,
        folder=str(folder),
        bootstrap="",
        zookeeper="",
        brokers=1,
        secure=False,
        schema_registry=None,
        console=None,
        started_s=number,
    )
    file = runtime_folder() / f"{number}.json"
    file.write_text(json.dumps(asdict(note)))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(note.socket_path))
        listener.listen()
        yield listener
    for path in (file, file.with_suffix(".sock")):
        path.unlink(missing_ok=True)


def test_cluster_that_cannot_start_in_the_background_says_why(run: Run, tmp_path: Path) -> None:
    refused = up("--brokers", "1", "--config", "log.dirs=/proc/x")
    assert refused.returncode == 1
    assert "error: broker-1 ended with 1" in refused.stderr
