"""How fail-over, memory and creation grow with the number of partitions: `python -m bench.failover [PARTITIONS…]`.

Three brokers, RF 3, min.insync.replicas 2, session time-out 2 s. For each number of partitions: the time to create the
topic (until every partition has a leader), the brokers' memory, and the gap between two acknowledgements of a partition
when its leader is told to stop, and when it is killed. Also, after the kill, how long Metadata names the dead leader for.
"""

import argparse
import itertools
import json
import platform
import statistics
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.cli.local_cluster import LocalCluster, wait_until

RESULTS = Path(__file__).parent / "results"
SESSION_TIMEOUT_MS = 2000
TICK_TIME_MS = 500
TOPIC = "failover"
#: librdkafka's own pauses, out of the way: what is measured is the cluster. (While a leader is away it looks for another
#: one once a second, whatever its back-off is, but for the regular refresh.)
CLIENT = {
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.interval.ms": 50,
    "log_level": 0,
}


@dataclass(frozen=True)
class Point:
    partitions: int
    #: Seconds until every partition has a leader, in the answer to Metadata.
    create_s: float
    #: The three brokers together, after creation: proportional set size, so that shared pages count once.
    memory_mb: float
    stop_gap_ms: float
    kill_gap_ms: float
    #: After kill -9: until Metadata names another leader for the partition.
    kill_metadata_ms: float
    stop_s: float
    restart_s: float


class Pulse:
    """One record after the other to one partition; remembers when each was acknowledged."""

    def __init__(self, bootstrap: str, partition: int) -> None:
        self.times: list[float] = []
        self.errors: list[str] = []
        self._partition = partition
        self._stop = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0, **CLIENT}
        )
        self._thread = threading.Thread(target=self._run, name="pulse")

    def __enter__(self) -> "Pulse":
        self._thread.start()
        wait_until(lambda: len(self.times) > 20, what="the first acknowledgements")
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._producer.produce(TOPIC, b"x" * 100, partition=self._partition, on_delivery=self._delivered)
            self._producer.poll(0.005)
        self._producer.flush(30)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.times.append(time.monotonic())

    def gap_ms_after(self, moment: float) -> float:
        """The longest pause between two acknowledgements around and after `moment`."""
        wait_until(
            lambda: self.times[-1] > moment + SESSION_TIMEOUT_MS / 1000 + 2, what="acknowledgements after a fault"
        )
        times = [each for each in self.times if each > moment - 0.5]
        return max(b - a for a, b in itertools.pairwise(times)) * 1000


def agreed_leader(cluster: LocalCluster, partition: int) -> int:
    """The leader, once every broker names the same one: with many partitions some hear of it seconds later."""
    admins = [AdminClient({"bootstrap.servers": cluster.address(each), "log_level": 0}) for each in cluster.broker_ids]
    named: set[int] = set()

    def agree() -> bool:
        named.clear()
        named.update(leader_of(admin, partition) for admin in admins)
        return len(named) == 1 and -1 not in named

    wait_until(agree, 120, what="that all brokers name the same leader")
    return named.pop()


def leader_of(admin: AdminClient, partition: int) -> int:
    return int(admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[partition].leader)


def memory_mb(cluster: LocalCluster) -> float:
    return sum(psutil.Process(cluster.pid(each)).memory_full_info().pss for each in cluster.broker_ids) / 1e6


def measure(partitions: int) -> Point:
    config = {"zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS), "auto.leader.rebalance.enable": "false"}
    with LocalCluster(brokers=3, config=config, zookeeper_options=("--tick-time", str(TICK_TIME_MS))) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        began = time.monotonic()
        [created] = admin.create_topics(
            [NewTopic(TOPIC, num_partitions=partitions, replication_factor=3)], request_timeout=120
        ).values()
        created.result()
        wait_until(lambda: _all_led(admin, partitions), 120, what="leaders of all partitions")
        create_s = time.monotonic() - began
        time.sleep(1)
        memory = memory_mb(cluster)
        with Pulse(cluster.bootstrap, 0) as pulse:
            leader = agreed_leader(cluster, 0)
            moment = time.monotonic()
            cluster.terminate(leader, timeout_s=120)
            stop_s = time.monotonic() - moment
            stop_gap_ms = pulse.gap_ms_after(moment)
            began = time.monotonic()
            cluster.start_broker(leader)
            wait_until(lambda: _all_in_sync(admin, partitions), 120, what="that all replicas are in sync")
            restart_s = time.monotonic() - began
            leader = agreed_leader(cluster, 0)
            moment = time.monotonic()
            cluster.kill(leader)
            wait_until(lambda: leader_of(admin, 0) not in (leader, -1), 120, what="another leader in Metadata")
            kill_metadata_ms = (time.monotonic() - moment) * 1000
            kill_gap_ms = pulse.gap_ms_after(moment)
        if pulse.errors:
            raise RuntimeError(f"records were not delivered: {pulse.errors[:3]}")
    return Point(partitions, create_s, memory, stop_gap_ms, kill_gap_ms, kill_metadata_ms, stop_s, restart_s)


def _all_led(admin: AdminClient, partitions: int) -> bool:
    try:
        topic = admin.list_topics(TOPIC, timeout=10).topics[TOPIC]
    except KafkaException:
        return False
    return len(topic.partitions) == partitions and all(each.leader > 0 for each in topic.partitions.values())


def _all_in_sync(admin: AdminClient, partitions: int) -> bool:
    try:
        topic = admin.list_topics(TOPIC, timeout=10).topics[TOPIC]
    except KafkaException:
        return False
    return len(topic.partitions) == partitions and all(len(each.isrs) == 3 for each in topic.partitions.values())


def write_curves(points: list[Point], rounds: int) -> None:
    """`bench/results/failover.{txt,json}`"""
    title = (
        f"Fail-over, memory and creation by partitions (3 brokers, RF 3, session time-out {SESSION_TIMEOUT_MS} ms; "
        f"median of {rounds})"
    )
    heads = [
        "partitions",
        "create s",
        "memory MB",
        "stop gap ms",
        "kill gap ms",
        "kill, Metadata ms",
        "stop s",
        "back s",
    ]
    lines = [title, "", "  ".join(f"{head:>17}" for head in heads)]
    lines += [
        "  ".join(f"{value:>17,.2f}".replace(".00", "   ") for value in asdict(point).values()) for point in points
    ]
    text = "\n".join(lines)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "failover.txt").write_text(text + "\n")
    machine = {"cores": psutil.cpu_count(), "python": platform.python_version(), "system": platform.system()}
    data = {
        "title": title,
        "machine": machine,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "rounds": rounds,
        "points": [asdict(point) for point in points],
    }
    (RESULTS / "failover.json").write_text(json.dumps(data, indent=1) + "\n")


def median(points: list[Point]) -> Point:
    fields = [asdict(point) for point in points]
    return Point(**{name: statistics.median(each[name] for each in fields) for name in fields[0]})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument("partitions", type=int, nargs="*", default=[1, 100, 1000, 4000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    points = []
    for partitions in options.partitions:
        rounds = [measure(partitions) for _ in range(options.rounds)]
        points.append(median(rounds))
        print(points[-1], flush=True)
    write_curves(points, options.rounds)


if __name__ == "__main__":
    main()
