"""`barnabas zookeeper-shell`, as Kafka's `zookeeper-shell.sh` is used: one command, or a script on standard input."""

import subprocess
import sys
import threading

import pytest
from kazoo.client import KazooClient

from barnabas.cli.zookeeper_prompt import Shell, ShellError, format_acl, parse_acl
from barnabas.testing import wait_until
from tests.scenarios.zookeeper.zk_process import ZooKeeperProcess


def run(address: str, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "barnabas", "zookeeper-shell", address, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, input=text)


class Screen:
    def __init__(self, client: KazooClient) -> None:
        self._lines: list[str] = []
        self._lock = threading.Lock()
        self.shell = Shell(client, self._write)

    def _write(self, text: str) -> None:
        with self._lock:
            self._lines.extend(text.splitlines())

    def __call__(self, line: str) -> list[str]:
        self.shell.execute_line(line)
        return self.take()

    def take(self) -> list[str]:
        with self._lock:
            lines, self._lines = self._lines, []
        return lines


def test_one_command_at_the_command_line(server: ZooKeeperProcess, root: str, zk: KazooClient) -> None:
    zk.create("/a/b", b"x", makepath=True)
    done = run(server.address + root, "ls", "-R", "/")
    assert (done.returncode, done.stdout) == (0, "/\n/a\n/a/b\n")
    done = run(server.address + root, "get", "/none")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "error: Node does not exist: /none\n")


def test_script_on_standard_input(server: ZooKeeperProcess, root: str) -> None:
    script = "create /s hello\nget /s\nset /s 'two words'\nget /s\nnonsense\nls /\nquit\nls /\n"
    done = run(server.address + root, text=script)
    assert done.stdout == "Created /s\nhello\ntwo words\n[s]\n"
    assert done.stderr == "Command not found: nonsense (try help)\n"
    assert done.returncode == 1


def test_nobody_there_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "barnabas", "zookeeper-shell", "--timeout", "0.5", "127.0.0.1:1", "ls", "/"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "error: no ZooKeeper answers at 127.0.0.1:1\n")


def test_commands(zk: KazooClient) -> None:
    screen = Screen(zk)
    assert screen("create /c data") == ["Created /c"]
    assert screen("create -s -e /c/n- x") == ["Created /c/n-0000000000"]
    assert screen("ls /c") == ["[n-0000000000]"]
    assert screen("get -s /c")[0] == "data"
    stat = dict(line.split(" = ") for line in screen("stat /c"))
    assert (stat["dataVersion"], stat["numChildren"], stat["dataLength"]) == ("0", "1", "4")
    assert screen("set -s -v 0 /c new")[6] == "dataVersion = 1"
    with pytest.raises(ShellError, match="version No is not valid"):
        screen("set -v 0 /c new")
    with pytest.raises(ShellError, match="Node not empty"):
        screen("delete /c")
    with pytest.raises(ShellError, match="Node already exists"):
        screen("create /c")
    with pytest.raises(ShellError, match="usage: set"):
        screen("set /c")
    with pytest.raises(ShellError, match="can't be read"):
        screen("set /c 'open")
    assert screen("sync /c") == ["Sync is OK"]
    screen("addauth digest joe:secret")
    screen("setAcl /c auth::cdrwa")
    assert screen("getAcl /c")[0].startswith("'digest,'joe:")
    assert screen("getAcl /c/n-0000000000")[0].startswith("'world,")
    screen("setAcl -R /c auth::cdrwa")
    assert screen("getAcl /c/n-0000000000")[0].startswith("'digest,'joe:")
    assert screen("whoami") == ["digest: joe"]
    assert screen("deleteall /c") == []
    assert "deleteall" in screen("help")[0]
    screen("quit")
    assert screen.shell.is_done


def test_watches_print_what_happens(zk: KazooClient) -> None:
    screen = Screen(zk)
    screen("create /w 0")
    screen("get -w /w")
    screen("ls -w /w")
    zk.set("/w", b"1")
    zk.create("/w/c")
    seen: list[str] = []
    wait_until(lambda: seen.extend(screen.take()) or sum(line.startswith("WatchedEvent") for line in seen) == 2)
    assert "WatchedEvent state:SyncConnected type:NodeDataChanged path:/w" in seen
    screen("watch /w")
    zk.set("/w", b"2")
    wait_until(lambda: seen.extend(screen.take()) or "/w version 2 2" in seen)


def test_acl_text() -> None:
    acl = parse_acl("world:anyone:r,digest:joe:abc=:cdrwa,ip:10.0.0.0/8:rw")
    assert [(entry.perms, entry.id.scheme, entry.id.id) for entry in acl] == [
        (1, "world", "anyone"),
        (31, "digest", "joe:abc="),
        (3, "ip", "10.0.0.0/8"),
    ]
    assert format_acl(acl[1]) == "'digest,'joe:abc=\n: cdrwa"
    for bad in ("world", "world:anyone:x", ":a:r", "world:anyone:"):
        with pytest.raises(ShellError):
            parse_acl(bad)
