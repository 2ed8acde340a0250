"""`barnabas zookeeper` as people and other programs start it."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from barnabas.testing import wait_until
from tests.computed import computed_s
from tests.scenarios.zookeeper.zk_process import connected, running

COMMAND = [sys.executable, "-m", "barnabas", "zookeeper"]


def fails(*arguments: str) -> str:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_starts_fast_and_small(data: Path) -> None:
    with running(data) as server:
        # 130 ms on an idle machine. What it computes does not depend on what else a machine does.
        assert computed_s(server.pid) < 1.0
        assert server.rss_bytes() < 40 << 20


def test_port_in_use_is_one_clear_line(data: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"can't use 127.0.0.1:{port}" in fails("--port", str(port), "--data", str(data))


def test_unusable_directory_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "can't use the directory" in fails("--port", "0", "--data", str(tmp_path / "file" / "data"))


def test_directory_in_use_is_one_clear_line(data: Path) -> None:
    with running(data):
        assert "in use by another server" in fails("--port", "0", "--data", str(data))


def test_bad_settings_are_one_clear_line(tmp_path: Path) -> None:
    assert "tickTime=0" in fails("--port", "0", "--tick-time", "0")
    config = tmp_path / "zoo.cfg"
    config.write_text("clientPort=many\n")
    assert "clientPort=many: must be a number" in fails(str(config))
    config.write_text("server.1=a:1:2\n")
    assert "describes an ensemble" in fails(str(config))
    assert "can't read" in fails(str(tmp_path / "none"))


def test_settings_file_as_kafka_ships_it(tmp_path: Path) -> None:
    config = tmp_path / "zookeeper.properties"
    config.write_text(
        f"# the directory\ndataDir={tmp_path}/zk\nclientPort=2181\nmaxClientCnxns=0\nadmin.enableServer=false\ntickTime=150\n"
    )
    with running(tmp_path / "other", str(config)) as server, connected(server.address) as client:
        assert b"tickTime=150" in client.command(b"conf").encode()
        assert not (tmp_path / "zk").exists(), "options win over the file"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_temporary_directory_goes_with_the_process(number: signal.Signals, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([*COMMAND, "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert len(list(tmp_path.glob("barnabas-zookeeper-*/version-2"))) == 1
    with connected(line.strip().partition("=")[2]) as client:
        client.create("/a")
    process.send_signal(number)
    assert process.wait(60) == 0
    process.stdout.close()
    assert list(tmp_path.iterdir()) == []
    assert tempfile.gettempdir() != str(tmp_path)


def test_dies_with_its_parent_when_asked_to(data: Path) -> None:
    code = (
        "import subprocess, sys, os\n"
        "p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)\n"
        "print(p.pid, p.stdout.readline(), end='', flush=True)\n"
        "os._exit(0)\n"
    )
    command = [sys.executable, "-c", code, *COMMAND, "--port", "0", "--data", str(data)]
    environment = {**os.environ, "BARNABAS_PARENT_DEATH_SIGNAL": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    pid = int(done.stdout.split()[0])
    assert "ready zookeeper=" in done.stdout
    wait_until(lambda: not _is_alive(pid))


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
