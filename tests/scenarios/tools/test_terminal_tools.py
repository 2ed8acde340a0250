"""What a person at a terminal notices: names to complete, pipes that end, processes that can be told apart."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from barnabas.cli.local_cluster import LocalCluster
from barnabas.cli.main import app
from barnabas.testing import wait_until
from tests.scenarios.tools.conftest import Tool


def shell(words: list[str]) -> dict[str, str]:
    """How a shell asks what it may offer for the last word."""
    line = "\n".join(["barnabas", *words])
    return {"_BARNABAS_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}


def completed(words: list[str]) -> list[str]:
    result = CliRunner().invoke(app, [], prog_name="barnabas", env=shell(words))
    assert result.stderr == ""
    return result.stdout.split()


def test_shell_that_asks_is_answered() -> None:
    command = [sys.executable, "-m", "barnabas"]
    done = subprocess.run(command, env={**os.environ, **shell(["dum"])}, capture_output=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == ([b"dump-log"], b"")


def test_topics_groups_and_brokers_of_the_cluster_are_completed(
    bootstrap: str, new_topic: Callable[..., str], process: Tool, tmp_path: Path
) -> None:
    # Completion gives up after a moment, which may be too short on a busy machine: then the shell asks again.
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
    # Where the file of a client's settings says where the cluster is, and how to come in.
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
    consumer.stdout.close()  # as `head -1` does; no further record comes
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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="titles are Linux's")
def test_processes_of_a_local_cluster_can_be_told_apart(shared_cluster: LocalCluster) -> None:
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
    """The sockets on which its processes, and those of the session's other clusters, take connections."""
    processes = psutil.Process(cluster.pid(1)).parent().children()
    return [
        each for process in processes for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN
    ]


def test_cluster_that_listens_everywhere_advertises_what_it_is_told() -> None:
    with LocalCluster(brokers=1, host="0.0.0.0", advertised_host="localhost") as cluster:
        assert cluster.bootstrap.startswith("localhost:")
        # Its ZooKeeper is the brokers' own business, and stays on this machine.
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
