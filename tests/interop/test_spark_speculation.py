"""Speculative attempts with the exactly-once sink. Spark starts none on the first one's host: two workers, two hosts."""

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from barnabas.cli.local_cluster import LocalCluster
from tests.interop.spark_standalone import is_an_address_here, standalone
from tests.soak.spark_chain import CLUSTER_CONFIG, PARTITIONS, Chain
from tests.soak.spark_chain_driver import SECOND

HOSTS = ["127.0.0.1", "127.0.0.2"]


@pytest.mark.timeout(1500)  # three drivers, one after the other, on what may be a busy machine
def test_each_record_is_there_once_though_attempts_race_and_the_driver_dies_where_it_has_decided(
    java: None, tmp_path: Path
) -> None:
    """The first attempt at a partition writes its rows, and waits until a second one has written them too and won."""
    if not all(map(is_an_address_here, HOSTS)):
        pytest.skip(f"needs the addresses {HOSTS}")
    with (
        standalone(tmp_path, HOSTS, memory="1200m") as master,
        LocalCluster(brokers=1, config=CLUSTER_CONFIG) as cluster,
    ):
        chain = Chain(cluster, tmp_path, seed=3, master=master, speculation=True, rate=100, say=print)
        # The run checks that each number is in the second topic and in the table once.
        sent = chain.run(seconds=0, faults=["decided"])
        assert sent > 100
        assert chain.happened["decided"] == 1
        raced = won_by_the_second(tmp_path / "events")
        assert raced, "no speculative attempt won while the first one still ran"
        assert all({first, second} == set(HOSTS) for first, second in raced)
        assert written(cluster.bootstrap) > sent, "what the attempts that lost have written is in the log, and not seen"


def won_by_the_second(events: Path) -> list[tuple[str, str]]:
    """Return the hosts of a first attempt and of the speculative one that finished first, from Spark's event logs."""
    found = []
    for file in events.iterdir():
        first: dict[tuple[int, int], str] = {}
        for line in file.read_text().rpartition("\n")[0].splitlines():  # a killed driver may leave half a line
            if not line.startswith('{"Event":"SparkListenerTask'):
                continue
            event = json.loads(line)
            task = event["Task Info"]
            place = event["Stage ID"], task["Index"]
            if task["Attempt"] == 0:
                first[place] = task["Host"]
            elif task["Speculative"] and event.get("Task End Reason") == {"Reason": "Success"}:
                found.append((first[place], task["Host"]))
    return found


def written(bootstrap: str) -> int:
    """Count the records of the second topic, including those of aborted transactions."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "isolation.level": "read_uncommitted",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    count, at_end = 0, set()
    consumer.assign([TopicPartition(SECOND, index, 0) for index in range(PARTITIONS)])
    while len(at_end) < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is not None:
            at_end.add(message.partition())
        else:
            count += 1
    consumer.close()
    return count
