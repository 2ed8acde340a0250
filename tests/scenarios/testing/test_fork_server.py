"""One process that forks the brokers of all clusters of a process."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from barnabas.cli.fork_server import fork_server
from barnabas.testing import Cluster, ClusterFailed, wait_until


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_clusters_are_forked_from_one_process_and_one_that_stops_leaves_the_other_alone() -> None:
    with Cluster(brokers=1) as first, Cluster(brokers=1) as second:
        assert parent_of(first.pid(1)) == parent_of(second.pid(1))
        assert first.bootstrap != second.bootstrap
        folder, pid = first.folder, first.pid(1)
        first.stop()
        assert not folder.exists()
        assert not Path(f"/proc/{pid}").exists()
        second.create_topic("orders")
        second.produce("orders", ["coffee"])
        second.assert_records("orders", ["coffee"])


def test_broker_has_the_environment_of_the_moment_when_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_server()  # before the environment is changed
    monkeypatch.setenv("RETENTION_OF_TEST", "123456")
    config = {
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        "log.retention.ms": "${env:RETENTION_OF_TEST}",
    }
    with Cluster(brokers=1, config=config) as cluster:
        broker = ConfigResource(ResourceType.BROKER, "1")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        described = admin.describe_configs([broker])[broker].result(60)
        assert described["log.retention.ms"].value == "123456"


def test_broker_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(ClusterFailed, match="broker-1 ended with 1"),
        Cluster(brokers=1, config={"log.dirs": "/proc/x"}),
    ):
        pass


def test_killed_test_process_leaves_no_process_and_no_folder_behind() -> None:
    code = (
        "import sys, time\n"
        "from barnabas.testing import Cluster\n"
        "cluster = Cluster(brokers=1).__enter__()\n"
        "print(cluster.pid(1), cluster.folder, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, folder = process.stdout.readline().split()
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists() and not Path(folder).exists(), 60, what="the end of it all")
