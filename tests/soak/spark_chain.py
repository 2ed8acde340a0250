"""Topic -> Spark -> topic -> Spark -> Delta, while drivers, executors and brokers are killed by seed: each record counts once.

`python -m tests.soak.spark_chain --seconds 300 --seed 7`. A producer numbers records into the first topic. One Spark process
(`spark_chain_driver`) runs two queries: the first copies records into the second topic with the exactly-once sink, the second
writes that topic, read committed, into a Delta table. Tasks read for the first query, the driver itself reads for the second.
The harness kills the driver at a random moment or exactly at a decision, the process in which the driver plans and reads, its
Python workers, its executors' JVMs, or a broker, or stops all brokers for a while. At the end the topic and the table must have
every number once.

With `--differ` brokers differ in their settings, which change at each restart. They are also restarted in turn, as for a
roll-out, and one looks like a Kafka broker for a while, so that `transaction.version` goes down and up again.

By default there are two executors in JVMs of their own. With `--speculation`, and a master whose workers are on two hosts, some
attempts are slow so that Spark starts speculative ones. A run continues until every kind of fault has really happened, and
prints how often each did. If a fault does not happen, the run has proved nothing, and fails.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.cli.local_cluster import LocalCluster
from tests.soak.differing_brokers import announce_nothing, settings_of
from tests.soak.spark_chain_driver import FIRST, SECOND, kill_family
from tests.soak.workload import DELIVERY_TIMEOUT_MS, QUIET, PromiseBroken

PARTITIONS = 3
#: The readers of micro-batches, as `spark_chain_driver` logs them.
READS = ("read by tasks", "read on the driver")
#: A master whose executors are JVMs of their own, which can be killed alone.
EXECUTORS = "local-cluster[2,1,1024]"
#: How long all brokers are down in the fault `outage`.
OUTAGE_S = 20.0
#: The longest time until a driver has started, or reaches the point where it is to die.
PATIENCE_S = 300.0
CLUSTER_CONFIG = {
    "transaction.two.phase.commit.enable": "true",
    "zookeeper.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "3000",
    "min.insync.replicas": "1",
}


# -- the harness ------------------------------------------------------------------------------------------------------


@dataclass
class Numbers:
    """A producer of 0, 1, 2, … in a thread of its own."""

    bootstrap: str
    rate: int
    sent: int = 0
    failed: list[str] = field(default_factory=list)

    def start(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="numbers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                "linger.ms": 20,
                **QUIET,
            }
        )

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                self.failed.append(str(error))

        while not self._stop.wait(0.05):
            for _ in range(max(1, self.rate // 20)):
                text = str(self.sent)
                producer.produce(FIRST, key=text, value=text, on_delivery=delivered)
                self.sent += 1
            producer.poll(0)
        if producer.flush(DELIVERY_TIMEOUT_MS / 1000):
            self.failed.append("not delivered in time")


class NothingProved(PromiseBroken):
    """A fault that the run needs did not happen."""


@dataclass
class Chain:
    cluster: LocalCluster
    folder: Path
    seed: int
    master: str = EXECUTORS
    #: Whether attempts are slow. Needs a master whose workers have different host names: Spark starts no second attempt on the
    #: first one's host.
    speculation: bool = False
    #: Whether brokers have other settings after each restart, beginning with those of `differing_brokers`.
    differ: bool = False
    rate: int = 500
    say: Callable[[str], None] = lambda line: None
    #: How often each fault of FAULTS really happened.
    happened: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._restarts: Counter[int] = Counter()
        self._began = time.monotonic()
        self._driver: subprocess.Popen[bytes] | None = None
        self.log = self.folder / "driver.log"

    def run(self, *, seconds: float, faults: list[str] | None = None) -> int:
        """Run; return the number of records that went through once each, or raise `PromiseBroken`.

        `faults` happen in turn. Without it, all faults of this kind of cluster happen in rounds of random order, for `seconds`
        and until each has happened.
        """
        for topic in (FIRST, SECOND):
            self.cluster_topic(topic)
        numbers = Numbers(self.cluster.bootstrap, self.rate)
        numbers.start()
        try:
            self.start_driver()
            self._go_through_faults(faults or self.kinds(), seconds=seconds, once=faults is not None)
        finally:
            numbers.stop()
            self.end_driver()
        if numbers.failed:
            raise PromiseBroken(f"the producer of the input failed: {numbers.failed[:3]}")
        self.note(f"{numbers.sent} records in; draining")
        self.start_driver(drain=True)
        assert self._driver is not None
        if self._driver.wait(900) != 0:
            raise PromiseBroken(f"the last driver failed: see {self.log}")
        self._driver = None
        self.verify(numbers.sent)
        self.check_happened(faults or self.kinds())
        counts = ", ".join(f"{name} {count}" for name, count in sorted((self.happened + self.reads()).items()))
        self.note(f"what happened: {counts}; speculative attempts: {self.speculative_attempts()}")
        return numbers.sent

    def kinds(self) -> list[str]:
        """Return every fault that can happen: without separate executors, the driver's JVM is the only one to kill."""
        known = [name for name in self.faults() if self.differ or name not in DIFFERENCES]
        return [name for name in known if name != "executor" or self.master == EXECUTORS]

    def faults(self) -> "dict[str, Callable[[Any], None]]":
        return FAULTS | DIFFERENCES

    def _go_through_faults(self, kinds: list[str], *, seconds: float, once: bool) -> None:
        deadline = time.monotonic() + seconds
        last = deadline + len(kinds) * PATIENCE_S
        queue: list[str] = []
        while True:
            if not queue:
                missing = self._missing(kinds)
                if not missing and (once or time.monotonic() > deadline):
                    return
                if time.monotonic() > last:
                    self.check_happened(kinds)
                again = [name for name in missing if name in kinds] if time.monotonic() > deadline else kinds
                queue = list(again or kinds) if once else self._chance.sample(again or kinds, len(again or kinds))
            self.everyone_runs()
            self.let_work()
            name = queue.pop(0)
            self.faults()[name](self)

    def _missing(self, kinds: list[str]) -> list[str]:
        missing = [name for name in kinds if not self.happened[name]]
        return [*missing, "speculation"] if self.speculation and not self.speculative_attempts() else missing

    def check_happened(self, kinds: list[str]) -> None:
        read = self.reads()
        if missing := [*self._missing(kinds), *(name for name in READS if not read[name])]:
            raise NothingProved(f"did not happen: {', '.join(missing)}; see {self.log}")

    def reads(self) -> Counter[str]:
        """Count the micro-batches of both queries and all drivers by their reader."""
        file = self.folder / "reads"
        return Counter(file.read_text().splitlines() if file.exists() else [])

    def speculative_attempts(self) -> int:
        """Count second attempts beside a running first one, over all drivers, from Spark's event logs."""
        found = 0
        for file in (self.folder / "events").rglob("*"):
            if file.is_file():
                found += sum(
                    '"Event":"SparkListenerTaskStart"' in line and '"Speculative":true' in line
                    for line in file.read_text(errors="replace").splitlines()
                )
        return found

    def cluster_topic(self, topic: str) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, **QUIET})
        replicas = min(3, len(list(self.cluster.broker_ids)))
        [done] = admin.create_topics([NewTopic(topic, PARTITIONS, replicas)], request_timeout=20).values()
        done.result()

    def note(self, line: str) -> None:
        self.say(f"{time.monotonic() - self._began:7.2f}  {line}")

    # -- processes ----------------------------------------------------------------------------------------------------

    def start_driver(self, *, drain: bool = False) -> None:
        settings = {
            "bootstrap": self.cluster.bootstrap,
            "folder": str(self.folder),
            "master": "local[2,8]" if drain else self.master,
            "rows": str(50_000 if drain else self.rate * 4),
            "drain": "yes" if drain else "",
            "speculation": "yes" if self.speculation and not drain else "",
        }
        started = self.folder / "started"
        started.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.spark_chain_driver", json.dumps(settings)],
                start_new_session=True,
                stdout=log,
                stderr=log,
            )
        if not drain:
            deadline = time.monotonic() + PATIENCE_S
            while not started.exists():
                if self._driver.poll() is not None or time.monotonic() > deadline:
                    raise PromiseBroken(f"a driver did not start: see {self.log}")
                time.sleep(0.2)
            self.note("a driver runs")

    def everyone_runs(self) -> None:
        """Start a driver again whose query has failed, as a supervisor would."""
        if self._driver is None or self._driver.poll() is not None:
            self.note("the driver has ended; again")
            self.end_driver()
            self.start_driver()

    def let_work(self) -> None:
        """Wait for a moment; mostly until another batch went through, since a driver takes long to start."""
        commits = self.folder / "checkpoint-topic" / "commits"
        deadline = time.monotonic() + 60
        before = _count(commits)
        if self._chance.random() < 0.8:
            while _count(commits) == before and time.monotonic() < deadline:
                time.sleep(0.1)
        time.sleep(self._chance.uniform(0, 2))

    def family(self) -> list[psutil.Process]:
        """Return the driver's processes: Spark's JVMs and Python workers."""
        assert self._driver is not None
        try:
            return psutil.Process(self._driver.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def end_driver(self) -> None:
        """Kill the Python process and its JVM, workers and executors."""
        if self._driver is None:
            return
        family = self.family()
        kill_family(self._driver.pid)
        psutil.wait_procs(family, 10)
        self._driver.wait(10)
        self._driver = None

    # -- faults -------------------------------------------------------------------------------------------------------

    def kill_driver(self) -> None:
        if self._driver is not None and self._driver.poll() is None:
            self._happened("driver", "killed the driver")
        self.end_driver()

    def kill_driver_at(self, point: str) -> None:
        """Kill the driver after its decision, when it has ended no transaction or some: `everyone_runs` starts the next one."""
        assert self._driver is not None
        plan = self.folder / "plan"
        plan.write_text(point)
        try:
            self._driver.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.note(f"the driver did not come to {point}")
        if plan.exists():  # a driver that ended has not reached the point either
            plan.unlink()
            return
        self._happened(point, f"the driver died where it was {point}")

    def kill_worker(self) -> None:
        """Kill a Python process of a task or of a commit, not one that looks a format up or plans a write, which is done."""
        busy = ("pyspark.daemon pyspark.worker", "python_streaming_sink_runner")
        self._kill_one("worker", lambda line, process: line.endswith(busy) and not process.children())

    def kill_planner(self) -> None:
        """Kill a query's Python process on the driver, which plans its micro-batches and reads small ones."""
        self._kill_one("planner", lambda line, process: "python_streaming_source_runner" in line)

    def kill_executor(self) -> None:
        self._kill_one("executor", lambda line, process: "CoarseGrainedExecutorBackend" in line)

    def _kill_one(self, name: str, wanted: Callable[[str, psutil.Process], bool]) -> None:
        found = []
        for process in self.family():
            try:
                if wanted(" ".join(process.cmdline()), process):
                    found.append(process)
            except psutil.Error:
                continue
        if not found:
            self.note(f"there is no {name} to kill")
            return
        victim = self._chance.choice(found)
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            self.note(f"the {name} ended before it was killed")
            return
        self._happened(name, f"killed {name} {victim.pid}")

    def kill_broker(self) -> None:
        broker = self._chance.choice(list(self.cluster.broker_ids))
        self.cluster.kill(broker)
        self._happened("broker", f"killed broker {broker}")
        time.sleep(self._chance.choice([0, 1, 3]))
        self._start_broker(broker)
        self.note(f"broker {broker} is back")

    def _start_broker(self, broker: int, *, wait: bool = True) -> None:
        self._restarts[broker] += 1
        config = settings_of(broker, restarts=self._restarts[broker]) if self.differ else None
        self.cluster.start_broker(broker, config=config, wait=wait)

    def outage(self) -> None:
        """Stop the whole cluster for a while. Clients wait for it: the running driver must survive."""
        for broker in self.cluster.broker_ids:
            self.cluster.kill(broker)
        self.note(f"all brokers are away for {OUTAGE_S:g} s")
        time.sleep(OUTAGE_S)
        for broker in self.cluster.broker_ids:
            self._start_broker(broker, wait=False)
        for broker in self.cluster.broker_ids:
            self.cluster.wait_ready(broker)
        self._happened("outage", "the cluster is back")
        before = _count(self.folder / "checkpoint-topic" / "commits")
        deadline = time.monotonic() + PATIENCE_S
        while _count(self.folder / "checkpoint-topic" / "commits") == before:
            if self._driver is None or self._driver.poll() is not None:
                raise PromiseBroken(f"the driver did not live through {OUTAGE_S:g} s without brokers: see {self.log}")
            if time.monotonic() > deadline:
                raise PromiseBroken(f"no batch came through after the brokers were back: see {self.log}")
            time.sleep(0.1)

    def roll(self) -> None:
        """Restart each broker with other settings, while the queries run."""
        for broker in self.cluster.broker_ids:
            self.cluster.terminate(broker)
            self._start_broker(broker)
            time.sleep(self._chance.uniform(0, 1))
        self._happened("roll", "every broker has other settings")

    def lose_features(self) -> None:
        """Restart a broker without features: until its next restart the cluster has no transaction.version 2."""
        broker, other = self._chance.sample(list(self.cluster.broker_ids), 2)
        announce_nothing(self.cluster, broker)
        self.cluster.terminate(other)
        self._start_broker(other)
        self.note(f"broker {broker} announces no features")
        commits = self.folder / "checkpoint-topic" / "commits"
        before, deadline = _count(commits), time.monotonic() + 60
        while _count(commits) == before and time.monotonic() < deadline:
            time.sleep(0.1)
        if _count(commits) > before:
            self._happened("features", "a batch went through without them")
        self.cluster.terminate(broker)
        self._start_broker(broker)

    def _happened(self, name: str, line: str) -> None:
        self.happened[name] += 1
        self.note(line)

    # -- what must hold -----------------------------------------------------------------------------------------------

    def verify(self, sent: int) -> None:
        for where, numbers in (("the second topic", self.in_topic()), ("the Delta table", self.in_table())):
            if (difference := numbers_differ(numbers, sent)) is not None:
                raise PromiseBroken(f"{where}, seed {self.seed}: {difference}")
        self.note(f"{sent} records, each once in the second topic and once in the table")

    def in_topic(self) -> list[int]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": "verify",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                **QUIET,
            }
        )
        numbers: list[int] = []
        at_end: set[int] = set()
        consumer.assign([TopicPartition(SECOND, index, 0) for index in range(PARTITIONS)])
        while len(at_end) < PARTITIONS:
            message = consumer.poll(30)
            if message is None:
                raise PromiseBroken("the second topic cannot be read to its end")
            if message.error() is not None:
                at_end.add(message.partition())
            else:
                numbers.append(int(message.value()[1:]))
        consumer.close()
        return numbers

    def in_table(self) -> list[int]:
        from deltalake import DeltaTable

        found: list[int] = DeltaTable(str(self.folder / "table")).to_pyarrow_table()["number"].to_pylist()
        return found


def numbers_differ(numbers: list[int], sent: int) -> str | None:
    """Describe how `numbers` differ from 0 to `sent`, each once; None if they do not."""
    found = Counter(numbers)
    twice = sorted(number for number, count in found.items() if count > 1)
    missing = sorted(set(range(sent)) - found.keys())
    strange = sorted(found.keys() - set(range(sent)))
    if not (twice or missing or strange):
        return None
    return (
        f"{len(missing)} of {sent} missing {missing[:5]}, {len(twice)} repeated {twice[:5]}, "
        f"{len(strange)} strange {strange[:5]}"
    )


def _count(folder: Path) -> int:
    return len(list(folder.glob("*"))) if folder.exists() else 0


FAULTS: dict[str, Callable[[Chain], None]] = {
    "driver": Chain.kill_driver,
    **{point: partial(Chain.kill_driver_at, point=point) for point in ("ready", "decided", "half-ended", "all-ended")},
    "planner": Chain.kill_planner,
    "worker": Chain.kill_worker,
    "executor": Chain.kill_executor,
    "broker": Chain.kill_broker,
    "outage": Chain.outage,
}
#: Faults of clusters with differing brokers.
DIFFERENCES: dict[str, Callable[[Chain], None]] = {"roll": Chain.roll, "features": Chain.lose_features}


def cluster_of(*, brokers: int = 3, differ: bool = False) -> LocalCluster:
    own = {broker: settings_of(broker) for broker in range(1, brokers + 1)} if differ else {}
    options = ("--tick-time", "500")
    return LocalCluster(brokers=brokers, config=CLUSTER_CONFIG, broker_config=own, zookeeper_options=options)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--rate", type=int, default=500, help="records a second")
    parser.add_argument("--master", default=EXECUTORS)
    parser.add_argument("--speculation", action="store_true", help="needs a --master with workers on two hosts")
    parser.add_argument("--differ", action="store_true", help="brokers differ in their settings, which change")
    parser.add_argument("--faults", nargs="*", help="these alone, in turn")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="spark-chain-", ignore_cleanup_errors=True) as folder,
        cluster_of(differ=arguments.differ) as cluster,
    ):
        print(f"seed {arguments.seed}", flush=True)
        chain = Chain(
            cluster,
            Path(folder),
            arguments.seed,
            master=arguments.master,
            speculation=arguments.speculation,
            differ=arguments.differ,
            rate=arguments.rate,
            say=lambda line: print(line, flush=True),
        )
        try:
            chain.run(seconds=arguments.seconds, faults=arguments.faults)
        except BaseException:
            print((Path(folder) / "driver.log").read_text()[-20_000:], flush=True)
            raise


if __name__ == "__main__":
    main()
