"""The tools at a terminal: completion of names, pipes that end, process titles."""

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from barnabas.base.host.kernel import IS_LINUX
from barnabas.cli import _completion
from barnabas.cli import tool as tables
from barnabas.cli.local_cluster import LocalCluster
from barnabas.cli.main import app
from barnabas.testing import wait_until
from tests.scenarios.tools.conftest import Tool
from tests.support.command_line import CliRunner


def shell(words: list[str], *, name: str = "zsh") -> list[str]:
    """Return the arguments with which a shell asks to complete the last word."""
    return ["--complete", name, shlex.join(["barnabas", *words[:-1]]) + " " + words[-1]]


def completed(words: list[str]) -> list[str]:
    result = CliRunner().invoke(app, shell(words))
    assert result.stderr == ""
    return result.stdout.split()


def installed_for(shell: str, home: Path) -> dict[str, str]:
    """Install the completion of a shell; return the environment in which it works."""
    environment = {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TERM": "dumb",
        "SHELL": shutil.which(shell) or "",
        "PS1": "$ ",
    }
    subprocess.run(["barnabas", "--install-completion"], env=environment, check=True, capture_output=True, timeout=60)
    return environment


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish here")
def test_installed_completion_completes_in_fish(tmp_path: Path) -> None:
    ask = ["fish", "-c", "complete -C 'barnabas dum'; complete -C 'barnabas dump-log --deep'"]
    done = subprocess.run(ask, env=installed_for("fish", tmp_path), capture_output=True, timeout=60, check=True)
    assert done.stdout.split() == [b"dump-log", b"--deep-iteration"]


@pytest.mark.parametrize(
    ("shell", "keys"),
    [
        (["bash", "-i"], "source ~/.local/share/bash-completion/completions/barnabas\n"),
        (["zsh", "-i"], "fpath+=~/.zfunc; autoload -Uz compinit && compinit\n"),
    ],
    ids=["bash", "zsh"],
)
def test_installed_completion_completes_in_the_shell(shell: list[str], keys: str, tmp_path: Path) -> None:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"there is no {shell[0]} here")
    environment = installed_for(shell[0], tmp_path)
    mine, its = pty.openpty()
    with subprocess.Popen(shell, stdin=its, stdout=its, stderr=its, env=environment, start_new_session=True) as running:
        os.close(its)
        try:
            said = b""
            os.write(mine, keys.encode())

            def shows(wanted: bytes) -> bool:
                nonlocal said
                while select.select([mine], [], [], 0.1)[0]:
                    said += os.read(mine, 4096)
                return wanted in said

            os.write(mine, b"echo be''gins\n")
            wait_until(lambda: shows(b"begins\r\n"))
            os.write(mine, b"barnabas dum\t")
            wait_until(lambda: shows(b"barnabas dump-log"))
            os.write(mine, b" --deep\t")
            wait_until(lambda: shows(b"--deep-iteration"))
        finally:
            running.kill()
            os.close(mine)


def test_shell_that_asks_is_answered() -> None:
    command = [sys.executable, "-m", "barnabas", *shell(["dum"])]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == ([b"dump-log"], b"")


def test_bash_gets_what_comes_after_the_last_colon_or_equals_sign() -> None:
    tool = tables.Tool(options=(tables.Option("--from", kind=tables.OneOf("a:start", "a:stop")),))
    tool.main(print)

    def found(shell: str, line: str) -> list[str]:
        return _completion.candidates(shell, line, ["x"], lambda name: tool)

    assert found("zsh", "barnabas x --from a:") == ["a:start", "a:stop"]
    assert found("bash", "barnabas x --from a:") == ["start", "stop"]
    assert found("zsh", "barnabas x --from=a:star") == ["--from=a:start"]
    assert found("bash", "barnabas x --from=") == ["a:start", "a:stop"]


def test_topics_groups_and_brokers_of_the_cluster_are_completed(
    bootstrap: str, new_topic: Callable[..., str], process: Tool, tmp_path: Path
) -> None:
    # Completion has a short timeout, which may be too short on a busy machine: the test asks again.
    topic = new_topic()
    at = ["--bootstrap-server", bootstrap]
    wait_until(lambda: completed(["topics", *at, "--describe", "--topic", topic[:6]]) == [topic])
    wait_until(lambda: completed(["console-consumer", *at, "--topic", topic[:6]]) == [topic])
    wait_until(lambda: completed(["configs", *at, "--describe", "--broker", ""]) == ["1", "2", "3"])
    entity = ["--entity-type", "brokers", "--entity-name", ""]
    wait_until(lambda: completed(["configs", *at, "--describe", *entity]) == ["1", "2", "3"])
    wait_until(lambda: completed(["brokers", *at, "drain", ""]) == ["1", "2", "3"])
    group = f"group-of-{topic}"
    process("console-producer", "--topic", topic, stdin="one\n")
    process("console-consumer", "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "1")
    wait_until(lambda: completed(["consumer-groups", *at, "--describe", "--group", group[:-1]]) == [group])
    # The file with the client's settings has the cluster's address and the login.
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={bootstrap}\n")
    wait_until(lambda: completed(["console-consumer", "--consumer.config", str(file), "--topic", topic[:6]]) == [topic])
    wait_until(lambda: completed(["topics", "--command-config", str(file), "--topic", topic[:6]]) == [topic])


def test_completion_without_a_cluster_offers_nothing_and_says_nothing() -> None:
    assert completed(["topics", "--bootstrap-server", "127.0.0.1:1", "--topic", ""]) == []


def test_consumer_ends_when_its_reader_has_gone(bootstrap: str, new_topic: Callable[..., str], process: Tool) -> None:
    topic = new_topic()
    process("console-producer", "--topic", topic, stdin="one\n")
    words = ["console-consumer", "--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning"]
    consumer = subprocess.Popen([sys.executable, "-m", "barnabas", *words], stdout=subprocess.PIPE)
    assert consumer.stdout is not None
    assert consumer.stdout.readline() == b"one\n"
    consumer.stdout.close()  # as `head -1` does; there are no further records
    assert consumer.wait(60) == 141


def test_consumer_whose_reader_goes_in_the_middle_of_a_batch_says_how_much_it_printed(
    bootstrap: str, new_topic: Callable[..., str], process: Tool
) -> None:
    topic = new_topic()
    process("console-producer", "--topic", topic, stdin=("x" * 999 + "\n") * 1_000)  # more than a pipe holds
    words = ["console-consumer", "--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning"]
    with subprocess.Popen(
        [sys.executable, "-m", "barnabas", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as consumer:
        assert consumer.stdout is not None and consumer.stderr is not None
        assert consumer.stdout.readline()
        consumer.stdout.close()
        said = re.search(rb"Processed a total of (\d+) messages", consumer.stderr.read())
        assert consumer.wait(60) == 141
    assert said is not None and 1 <= int(said[1]) <= 1_000  # the first batches may be small


@pytest.mark.skipif(not IS_LINUX, reason="titles are Linux's")
def test_processes_of_a_local_cluster_have_distinct_titles(shared_cluster: LocalCluster) -> None:
    title = Path(f"/proc/{shared_cluster.pid(2)}/cmdline").read_bytes().rstrip(b"\0").decode()
    assert title.startswith("barnabas broker-2 ")
    assert Path(f"/proc/{shared_cluster.pid(2)}/comm").read_text() == "broker-2\n"
    port = int(shared_cluster.zookeeper_connect.rpartition(":")[2])
    [zookeeper] = (
        process
        for process in psutil.Process(shared_cluster.pid(2)).parent().children()
        if any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in process.net_connections())
    )
    assert zookeeper.cmdline()[0].startswith("barnabas zookeeper /")


def listening(cluster: LocalCluster) -> list[Any]:
    """Return the sockets on which its processes, and those of the session's other clusters, accept connections."""
    processes = psutil.Process(cluster.pid(1)).parent().children()
    return [
        each for process in processes for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN
    ]


def test_cluster_that_listens_everywhere_advertises_the_given_host() -> None:
    with LocalCluster(brokers=1, host="0.0.0.0", advertised_host="localhost") as cluster:
        assert cluster.bootstrap.startswith("localhost:")
        # ZooKeeper is only for the brokers, and listens only on this machine.
        host, _, port = cluster.zookeeper_connect.rpartition(":")
        assert host == "127.0.0.1"
        assert {each.laddr.ip for each in listening(cluster) if each.laddr.port == int(port)} == {"127.0.0.1"}
        done = subprocess.run(
            [sys.executable, "-m", "barnabas", "topics", "--bootstrap-server", cluster.bootstrap, "--list"],
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
