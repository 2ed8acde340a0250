"""Apache ZooKeeper's Java client and its shell get the same answers from both servers."""

import subprocess
import sys
from pathlib import Path

from tests.scenarios.zookeeper.zk_process import ZooKeeperProcess

HERE = Path(__file__).resolve().parent


def quiet(tmp_path: Path) -> str:
    path = tmp_path / "logback-off.xml"
    path.write_text('<configuration><root level="OFF"/></configuration>')
    return f"-Dlogback.configurationFile={path}"


def run(java: str, tmp_path: Path, *command: str, text: str | None = None) -> list[str]:
    arguments = ["java", quiet(tmp_path), "-cp", java, *command]
    # zkCli prints its actions on stderr, and its results on stdout.
    done = subprocess.run(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False, input=text
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def test_conversation_is_the_same(java: str, apache: int, ours: ZooKeeperProcess, tmp_path: Path) -> None:
    program = str(HERE / "Conversation.java")
    expected = run(java, tmp_path, program, f"127.0.0.1:{apache}")
    got = run(java, tmp_path, program, f"127.0.0.1:{ours.port}")
    assert got == expected
    assert got[-1] == "left [c, d, m, p, t]"


def test_zkcli_session_is_the_same(java: str, apache: int, ours: ZooKeeperProcess, tmp_path: Path) -> None:
    script = "\n".join(
        [
            "create /k hello",
            "create -s /k/n- 1",
            "create -e /k/e 2",
            "create -c /k/c",
            "create -t 60000 /k/t",
            "get /k",
            "set -v 0 /k world",
            "set -v 0 /k again",
            "ls -R /k",
            "stat /none",
            "delete /k",
            "addauth digest joe:secret",
            "setAcl /k/c auth::cdrwa",
            "getAcl /k/c",
            "getEphemerals /k",
            "getAllChildrenNumber /k",
            "sync /k",
            "deleteall /k",
            "ls /",
            "quit",
            "",
        ]
    )
    shell = "org.apache.zookeeper.ZooKeeperMain"
    outputs = [
        [
            line
            for line in run(java, tmp_path, shell, "-server", f"127.0.0.1:{port}", text=script)
            if not line.startswith("Connecting to") and "[zk:" not in line and line.strip()
        ]
        for port in (apache, ours.port)
    ]
    # A thread prints the beginning and the end of the session at any place in the output.
    said = [[line for line in lines if not line.startswith(("WATCHER::", "WatchedEvent"))] for lines in outputs]
    assert said[0] == said[1]
    assert all("WatchedEvent state:SyncConnected type:None path:null" in lines for lines in outputs)
    assert "Created /k/n-0000000000" in outputs[1]
    assert "[zookeeper]" in outputs[1]


def test_our_shell_works_on_both(apache: int, ours: ZooKeeperProcess) -> None:
    script = "\n".join(
        [
            "create /s one",
            "create -s -e /s/n- x",
            "ls -R /",
            "get /s",
            "set -v 0 /s two",
            "set -v 0 /s three",
            "create /s",
            "addauth digest joe:secret",
            "setAcl /s auth::cdrwa",
            "getAcl /s",
            "delete /s",
            "sync /",
            "deleteall /s",
            "ls /",
            "quit",
            "",
        ]
    )
    outputs = []
    for port in (apache, ours.port):
        command = [sys.executable, "-m", "barnabas", "zookeeper-shell", f"127.0.0.1:{port}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, input=script)
        outputs.append((done.returncode, done.stdout, done.stderr))
    assert outputs[0] == outputs[1]
    assert "Created /s/n-0000000000" in outputs[0][1]
    assert outputs[0][2].splitlines() == [
        "version No is not valid : /s",
        "Node already exists: /s",
        "Node not empty: /s",
    ]
