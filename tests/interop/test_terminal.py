"""The tools as a person uses them: typed into a real terminal (tmux), read from its screen, ended with Ctrl-C.

Every screen that a test checks is kept in `.interop/screens/`, for people to read.
"""

import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.cli.local_cluster import LocalCluster

ROOT = Path(__file__).resolve().parents[2]
SCREENS = ROOT / ".interop" / "screens"
BARNABAS = f"{Path(sys.executable).parent}/barnabas"


class Terminal:
    """One tmux session of its own server: 120 columns, 40 lines, a plain shell."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._socket = f"barnabas-{uuid.uuid4().hex[:8]}"
        self._shots = 0
        command = "env -u TMUX PS1='$ ' bash --norc --noprofile"
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "40", "-c", str(ROOT), command)

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(["tmux", "-L", self._socket, *arguments], capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def type(self, line: str) -> None:
        self._tmux("send-keys", "-l", line)
        self.press("Enter")

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)

    def screen(self, *, history: bool = False) -> str:
        return self._tmux("capture-pane", "-p", "-J", *(("-S", "-2000") if history else ()))

    def clear(self) -> None:
        self._tmux("send-keys", "-R")
        self._tmux("clear-history")
        self.press("Enter")

    def see(self, pattern: str, timeout_s: float = 30.0) -> str:
        """Wait until the screen shows the pattern, and keep the screen in a file."""
        deadline = time.monotonic() + timeout_s
        while not re.search(pattern, screen := self.screen(history=True), re.MULTILINE):
            assert time.monotonic() < deadline, f"no {pattern!r} on the screen after {timeout_s} s:\n{screen}"
            time.sleep(0.05)
        self._shots += 1
        SCREENS.mkdir(parents=True, exist_ok=True)
        (SCREENS / f"{self._name}-{self._shots}.txt").write_text(screen.rstrip() + "\n")
        return screen

    def done(self, code: str = "0", timeout_s: float = 30.0) -> str:
        """Wait until the command has ended with this exit code (a pattern) and the shell is ready for the next one."""
        self.see(r"\$ *\s*\Z", timeout_s)
        mark = uuid.uuid4().hex[:8]
        self.type(f"echo {mark[:4]}''{mark[4:]} $?")
        return self.see(rf"^{mark} {code}$", timeout_s)

    def close(self) -> None:
        self._tmux("kill-server")


@pytest.fixture
def terminal(request: pytest.FixtureRequest) -> Iterator[Terminal]:
    if shutil.which("tmux") is None and shutil.which("apt-get") is not None:
        subprocess.run(["apt-get", "install", "-y", "-qq", "tmux"], capture_output=True, timeout=180, check=False)
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux")
    terminal = Terminal(request.node.name.removeprefix("test_"))
    yield terminal
    terminal.close()


def test_help_teaches(terminal: Terminal) -> None:
    terminal.type(f"{BARNABAS} --help")
    screen = terminal.see(r"zookeeper-shell")
    assert "Usage" in screen
    terminal.done()
    terminal.type(f"{BARNABAS} topics --help")
    screen = terminal.see(r"--replication-factor")
    assert "--bootstrap-server" in screen
    terminal.done()


def test_a_cluster_comes_up_and_ctrl_c_ends_it(terminal: Terminal) -> None:
    terminal.type(f"{BARNABAS} up --brokers 3 --port 0")
    screen = terminal.see(r"ready bootstrap=\S+")
    found = re.search(r"ready bootstrap=(\S+)", screen)
    assert found is not None and len(found[1].split(",")) == 3
    terminal.press("C-c")
    screen = terminal.done()
    assert "Traceback" not in screen


def test_a_topic_is_made_described_filled_and_read(terminal: Terminal, cluster: LocalCluster, topic: str) -> None:
    server = f"--bootstrap-server {cluster.bootstrap}"
    terminal.type(f"{BARNABAS} topics {server} --create --topic {topic} --partitions 2 --replication-factor 3")
    terminal.see(rf"Created topic {topic}")
    terminal.clear()
    terminal.type(f"{BARNABAS} topics {server} --describe --topic {topic}")
    screen = terminal.see(r"Partition: 1.*Isr:")
    assert re.search(r"ReplicationFactor: 3", screen)
    terminal.clear()
    terminal.type(f"{BARNABAS} console-producer {server} --topic {topic}")
    terminal.see(r"^>")
    terminal.type("hello")
    terminal.type("world")
    terminal.press("C-d")
    terminal.done()
    terminal.clear()
    terminal.type(f"{BARNABAS} console-consumer {server} --topic {topic} --from-beginning")
    terminal.see(r"^hello$")
    terminal.see(r"^world$")
    terminal.press("C-c")
    screen = terminal.see(r"Processed a total of 2 messages")
    assert "Traceback" not in screen


def test_the_perf_tools_print_what_kafkas_print(terminal: Terminal, cluster: LocalCluster, topic: str) -> None:
    terminal.type(
        f"{BARNABAS} producer-perf-test --topic {topic} --num-records 20000 --record-size 100 --throughput -1"
        f" --producer-props bootstrap.servers={cluster.bootstrap}"
    )
    terminal.see(r"20000 records sent, [\d.]+ records/sec \([\d.]+ MB/sec\), [\d.]+ ms avg latency")
    terminal.clear()
    terminal.type(
        f"{BARNABAS} consumer-perf-test --bootstrap-server {cluster.bootstrap} --topic {topic} --messages 20000"
    )
    terminal.see(r"start\.time, end\.time, data\.consumed\.in\.MB, MB\.sec")
    terminal.done()


def test_a_mistake_gets_one_clear_line(terminal: Terminal) -> None:
    terminal.type(f"{BARNABAS} topics --bootstrap-server 127.0.0.1:1 --list --command-config /nowhere; echo code $?")
    screen = terminal.see(r"code [1-9]")
    assert "Traceback" not in screen
    terminal.clear()
    terminal.type(f"{BARNABAS} topisc; echo code $?")
    screen = terminal.see(r"code [1-9]")
    assert "topics" in screen


def test_ctrl_c_is_clean_in_every_tool_that_waits(terminal: Terminal, cluster: LocalCluster, topic: str) -> None:
    server = f"--bootstrap-server {cluster.bootstrap}"
    waiting = (
        f"console-consumer {server} --topic {topic}",
        f"console-producer {server} --topic {topic}",
        f"producer-perf-test --topic {topic} --num-records 100000000 --record-size 100 --throughput 100"
        f" --producer-props bootstrap.servers={cluster.bootstrap}",
        f"zookeeper-shell {cluster.zookeeper_connect}",
    )
    terminal.type(f"{BARNABAS} topics {server} --create --topic {topic}")
    terminal.see(rf"Created topic {topic}")
    for command in waiting:
        terminal.clear()
        terminal.type(f"{BARNABAS} {command}")
        terminal.see(rf"{command.split()[0]}[\s\S]*")
        time.sleep(1.5)  # long enough that the tool waits for input or records
        terminal.press("C-c")
        screen = terminal.done(code="(0|130)")
        assert "Traceback" not in screen, screen


@pytest.mark.timeout(1500)
def test_the_demo_in_a_terminal_kills_a_leader_and_counts_every_order(terminal: Terminal) -> None:
    for _ in range(4):
        terminal.clear()
        terminal.type(f"{sys.executable} examples/demo/run.py; echo code $?")
        # Wait for a dead broker in the table, or for the end of the demo without one.
        screen = terminal.see(r":\d+ +│ dead|code \d", 400)
        # Spark gives a Python process ten seconds to start, and no setting changes that: a busy machine needs another try.
        if "Python worker failed to connect back" not in screen:
            break
    assert re.search(r":\d+ +│ dead", screen), screen
    assert "orders/s acknowledged" in screen
    screen = terminal.see(r"code \d", 600)
    assert "code 0" in screen, screen
    assert "every acknowledged order arrived, once" in screen
