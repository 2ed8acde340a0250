"""Changes while clients write and read: more partitions, moving replicas, moving or failing directories."""

import json
import shutil
import subprocess
import sys

from confluent_kafka.admin import NewPartitions

from tests.scenarios.faults.conftest import QUICK, QUICK_COORDINATOR, Admin  # type: ignore[attr-defined]
from tests.soak.workload import Reader, Writer, read_all


class Load:
    """One writer and one reader; no record may be lost, repeated or out of order meanwhile."""

    def __init__(self, admin: Admin, topic: str, partitions: int) -> None:
        bootstrap = admin.cluster.bootstrap
        self.writer = Writer("w", bootstrap, topic, partitions, seed=1, rate=300)
        self.reader = Reader(bootstrap, topic, partitions)

    def __enter__(self) -> "Load":
        self.reader.start()
        self.writer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.writer.stop()
        wanted: dict[int, int] = {}
        for (partition, _), offset in self.writer.acknowledged.items():
            wanted[partition] = max(wanted.get(partition, 0), offset + 1)
        self.reader.stop(wanted)
        assert self.writer.errors == []
        assert self.reader.broken == []
        for partition, values in self.reader.values.items():
            numbers = [int(value.decode().split(":")[2]) for value in values]
            assert numbers == list(range(len(numbers))), f"partition {partition}"


def tool(admin: Admin, *arguments: str) -> str:
    command = [sys.executable, "-m", "barnabas", *arguments, "--bootstrap-server", admin.cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_partitions_are_added_while_others_are_written_to(quick_cluster, admin, topic):
    admin.create(topic, partitions=2)
    with Load(admin, topic, 2):
        admin.client.create_partitions([NewPartitions(topic, 6)])[topic].result()
        admin.wait(lambda: len(admin.partitions(topic)) == 6, "six partitions")
        admin.wait_in_sync(topic)
    assert admin.write(topic, [b"value"], partition=5) == [0]


def test_replicas_move_with_a_throttle_while_they_are_written_to(new_cluster, topic, tmp_path):
    cluster = new_cluster(brokers=4, config=QUICK, zookeeper_options=QUICK_COORDINATOR)
    admin = Admin(cluster)
    admin.create_on(topic, [[1, 2, 3], [2, 3, 1]])
    admin.write(topic, [b"x" * 1000] * 3000, partition=0)
    plan = tmp_path / "plan.json"
    moves = [
        {"topic": topic, "partition": 0, "replicas": [4, 2, 3]},
        {"topic": topic, "partition": 1, "replicas": [3, 4, 1]},
    ]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    writer = Writer("w", cluster.bootstrap, topic, 2, seed=1, rate=300)
    writer.start()
    tool(admin, "reassign-partitions", "--execute", "--reassignment-json-file", str(plan), "--throttle", "2000000")
    admin.wait(lambda: {*admin.partitions(topic)[0].isrs} == {2, 3, 4}, "that broker 4 took over from 1")
    admin.wait(lambda: {*admin.partitions(topic)[1].isrs} == {1, 3, 4}, "that broker 4 took over from 2")
    said = tool(admin, "reassign-partitions", "--verify", "--reassignment-json-file", str(plan))
    writer.stop()
    assert writer.errors == []
    for partition in (0, 1):
        assert f"Reassignment of partition {topic}-{partition} is completed." in said.splitlines()
    admin.wait(lambda: not (cluster.log_dir(1) / f"{topic}-0").exists(), "that broker 1 gave its replica up")


def test_a_move_is_cancelled_and_replicas_are_added_and_removed_while_they_are_written_to(new_cluster, topic, tmp_path):
    cluster = new_cluster(brokers=4, config=QUICK, zookeeper_options=QUICK_COORDINATOR)
    admin = Admin(cluster)
    admin.create_on(topic, [[1, 2, 3]])
    admin.write(topic, [b"x" * 1000] * 3000, partition=0)

    def plan(*replicas: int) -> str:
        file = tmp_path / f"plan-{'-'.join(map(str, replicas))}.json"
        moves = [{"topic": topic, "partition": 0, "replicas": replicas}]
        file.write_text(json.dumps({"version": 1, "partitions": moves}))
        return str(file)

    def reassign(action: str, file: str, *options: str) -> str:
        return tool(admin, "reassign-partitions", action, "--reassignment-json-file", file, *options)

    writer = Writer("w", cluster.bootstrap, topic, 1, seed=1, rate=300)
    writer.start()
    # 3 MB at 50 kB/s: the move is still in progress when it is cancelled.
    reassign("--execute", plan(4, 2, 3), "--throttle", "50000")
    admin.wait(lambda: (cluster.log_dir(4) / f"{topic}-0").exists(), "a replica at broker 4")
    assert topic in tool(admin, "reassign-partitions", "--list")
    reassign("--cancel", plan(4, 2, 3))
    admin.wait(lambda: not (cluster.log_dir(4) / f"{topic}-0").exists(), "that broker 4 gave its replica up")
    now = admin.partitions(topic)[0]
    # The order is not the old one: as in Kafka, the target replicas come first, then those that were to be removed.
    assert ({*now.replicas}, {*now.isrs}) == ({1, 2, 3}, {1, 2, 3})
    assert topic not in tool(admin, "reassign-partitions", "--list")

    reassign("--execute", plan(1, 2, 3, 4))
    admin.wait(lambda: {*admin.partitions(topic)[0].isrs} == {1, 2, 3, 4}, "four replicas in sync")
    # The leader is among the removed replicas.
    reassign("--execute", plan(4, 3))
    admin.wait(lambda: {*admin.partitions(topic)[0].replicas} == {3, 4}, "two replicas")
    admin.wait(lambda: admin.leader(topic) in (3, 4), "a leader among them")
    for gone in (1, 2):
        admin.wait(lambda gone=gone: not (cluster.log_dir(gone) / f"{topic}-0").exists(), f"that {gone} deletes its")
    writer.stop()
    assert writer.errors == []
    values = read_all(cluster.bootstrap, topic, {0: max(writer.acknowledged.values()) + 1})[0][3000:]
    numbers = [int(value.decode().split(":")[2]) for value in values]
    assert numbers == list(range(len(writer.acknowledged)))


def test_a_broker_cannot_be_unregistered_as_in_kafkas_zookeeper_mode(quick_cluster, admin):
    command = [sys.executable, "-m", "barnabas", "cluster", "unregister", "--id", "3"]
    command += ["--bootstrap-server", quick_cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "does not support" in done.stdout + done.stderr
    assert len(admin.client.list_topics(timeout=60).brokers) == 3


def test_a_replica_moves_to_another_directory_while_it_is_written_to(new_cluster, topic, tmp_path):
    dirs = [tmp_path / "a", tmp_path / "b"]
    config = {"log.dirs": ",".join(map(str, dirs)), "replica.alter.log.dirs.io.max.bytes.per.second": "100000000"}
    cluster = new_cluster(brokers=1, config={**QUICK, **config}, zookeeper_options=QUICK_COORDINATOR)
    admin = Admin(cluster)
    admin.create(topic, replicas=1)
    admin.write(topic, [b"before"] * 100)
    at = next(each for each in dirs if (each / f"{topic}-0").exists())
    to = next(each for each in dirs if each != at)
    plan = tmp_path / "plan.json"
    move = {"topic": topic, "partition": 0, "replicas": [1], "log_dirs": [str(to)]}
    plan.write_text(json.dumps({"version": 1, "partitions": [move]}))
    writer = Writer("w", cluster.bootstrap, topic, 1, seed=1, rate=300)
    writer.start()
    tool(admin, "reassign-partitions", "--execute", "--reassignment-json-file", str(plan))
    admin.wait(lambda: (to / f"{topic}-0").exists() and not (at / f"{topic}-0").exists(), "that the replica moved")
    writer.stop()
    assert writer.errors == []
    assert sorted(writer.acknowledged.values()) == list(range(100, 100 + len(writer.acknowledged)))


def test_a_directory_that_fails_takes_its_replicas_offline_and_others_lead(new_cluster, topic, tmp_path):
    own = {n: {"log.dirs": f"{tmp_path}/{n}a,{tmp_path}/{n}b"} for n in (1, 2, 3)}
    cluster = new_cluster(brokers=3, config=QUICK, broker_config=own, zookeeper_options=QUICK_COORDINATOR)
    admin = Admin(cluster)
    admin.create_on(topic, [[1, 2, 3], [1, 2, 3]], segment_bytes="16384")
    admin.write(topic, [b"x" * 100] * 50, partition=0)
    failing = next(each for each in (tmp_path / "1a", tmp_path / "1b") if (each / f"{topic}-0").exists())
    assert not (failing / f"{topic}-1").exists(), "the other replica is in the other directory"
    shutil.rmtree(failing)
    admin.write(topic, [b"y" * 1000] * 100, partition=0)
    admin.wait(lambda: admin.leader(topic, 0) != 1, "another leader")
    assert cluster.member(1).running
    assert admin.leader(topic, 1) == 1, "replicas in the other directory stay"
    assert admin.write(topic, [b"z"], partition=1) == [0]
    assert "Traceback" not in cluster.log(1)
