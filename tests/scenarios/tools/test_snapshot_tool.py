"""`barnabas snapshot`: a cluster of `up` is saved under a name and comes back to that moment, with its clients connected."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from barnabas.cli.running import Running, running_clusters
from barnabas.cli.snapshots import FOLDER
from tests.scenarios.tools.test_up_detached import Run, run, up

__all__ = ["run"]


@pytest.fixture
def cluster(run: Run) -> Iterator[Running]:
    assert up("--brokers", "2").returncode == 0
    [found] = running_clusters()
    yield found


def values(bootstrap: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "look", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    read = [message.value() for message in consumer.consume(count, 60)]
    consumer.close()
    return read


def send(producer: Producer, value: str) -> None:
    errors: list[object] = []
    producer.produce("orders", value, on_delivery=lambda error, message: errors.append(error))
    producer.flush(60)
    assert errors == [None]


def test_records_and_offsets_come_back_and_connected_clients_go_on(run: Run, cluster: Running) -> None:
    run("topics", "--bootstrap-server", cluster.bootstrap, "--create", "--topic", "orders", "--replication-factor", "2")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": False})
    send(producer, "before")
    saved = run("snapshot", "save", "stocked")
    assert saved.stdout.startswith("saved stocked: ")
    send(producer, "after")
    assert run("snapshot", "restore", "stocked").stdout.startswith("restored stocked in ")
    [again] = running_clusters()
    assert again.bootstrap == cluster.bootstrap
    send(producer, "later")
    assert values(cluster.bootstrap, 2) == [b"before", b"later"]
    assert "stocked" in run("snapshot", "list").stdout
    assert run("snapshot", "delete", "stocked").returncode == 0
    assert json.loads(run("snapshot", "list", "--json").stdout) == []


def test_names_and_actions_are_checked(run: Run, cluster: Running) -> None:
    assert run("snapshot", "save", "one").returncode == 0
    for arguments, words in {
        ("save", "one"): "there is a snapshot 'one' already",
        ("save", "../one"): "cannot be a name",
        ("save",): "save needs the name of a snapshot",
        ("list", "one"): "'one' is not understood",
        ("restore", "two"): "there is no snapshot 'two'; there are: one",
        ("burn", "one"): "'burn' is not an action; use one of save, list, restore, delete",
    }.items():
        done = run("snapshot", *arguments)
        assert done.returncode != 0 and words in done.stderr, arguments


def test_interrupted_save_is_not_a_snapshot(run: Run, cluster: Running) -> None:
    unfinished = Path(cluster.folder) / FOLDER / "one.unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "zookeeper").mkdir()
    assert json.loads(run("snapshot", "list", "--json").stdout) == []
    assert run("snapshot", "save", "one").returncode == 0
    assert not unfinished.exists()


def test_cluster_with_a_link_or_a_tier_is_refused(run: Run, tmp_path: Path) -> None:
    tier = [f"--config=barnabas.remote.storage.url=file://{tmp_path}", "--config=remote.log.storage.system.enable=true"]
    assert up("--brokers", "1", *tier).returncode == 0
    done = run("snapshot", "save", "one")
    assert done.returncode == 1 and "cannot hold tiered topics" in done.stderr
    run("down")
    assert up("--brokers", "1").returncode == 0
    [found] = running_clusters()
    source = tmp_path / "source.properties"
    source.write_text("bootstrap.servers=127.0.0.1:1\n")
    made = run(
        "link", "create", "east", "--bootstrap-server", found.bootstrap, "--config", str(source), "--topics", "orders"
    )
    assert made.returncode == 0, made.stderr
    done = run("snapshot", "save", "one")
    assert done.returncode == 1 and "cannot hold mirrored topics" in done.stderr and "east" in done.stderr
