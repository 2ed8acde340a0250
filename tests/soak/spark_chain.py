"""Topic -> Spark -> topic -> Spark -> Delta, while drivers, executors and brokers are killed by seed; each record counts once.

`python -m tests.soak.spark_chain --seconds 300 --seed 7`. A producer numbers records into the first topic. One Spark process
runs two queries: the first maps records into the second topic with the exactly-once sink, the second writes that topic, read
committed, into a Delta table. The harness kills the whole driver, at some moment or exactly where it has decided, its executors
(Python processes, and JVMs with `--master local-cluster[2,1,1024]`, where speculation is on, too) or a broker. At the end both
have every number once.
"""

import argparse
import json
import os
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
from tests.soak.workload import DELIVERY_TIMEOUT_MS, QUIET, PromiseBroken

PARTITIONS = 3
FIRST, SECOND = "chain-in", "chain-out"
APP_ID = "spark-chain"
MORTAL = "barnabas-mortal"
CLUSTER_CONFIG = {
    "transaction.two.phase.commit.enable": "true",
    "zookeeper.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "3000",
    "min.insync.replicas": "1",
}


# -- the driver: a process of its own ---------------------------------------------------------------------------------


def drive(settings: dict[str, str]) -> None:
    """Both queries, until the process is killed; with `drain`, until all there is has gone through."""
    from pyspark.sql import SparkSession

    import barnabas.spark

    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    folder = settings["folder"]
    builder = (
        SparkSession.builder.master(settings["master"])
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .config("spark.task.maxFailures", "8")
        .config("spark.python.authenticate.socketTimeout", "120s")
    )
    if settings["master"].startswith("local-cluster"):
        builder = (
            builder.config("spark.speculation", "true")
            .config("spark.speculation.interval", "50ms")
            .config("spark.speculation.multiplier", "1.1")
            .config("spark.speculation.quantile", "0.3")
            .config("spark.speculation.minTaskRuntime", "10ms")
        )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    barnabas.spark.register(spark)
    spark.dataSource.register(_mortal_sink())
    queries = [_into_topic(spark, settings)]
    if settings["drain"]:
        queries[0].awaitTermination()
    queries.append(_into_delta(spark, settings))
    Path(folder, "started").write_text(str(os.getpid()))
    for query in queries:
        query.awaitTermination()


def _mortal_sink() -> type:
    """The sink, whose driver dies whole at a point of its commit that the file `plan` names."""
    from barnabas.spark import sink
    from barnabas.spark.source import BarnabasDataSource

    class Writer(sink.StreamWriter):
        plan = ""
        driver = 0

        def reached(self, point: str) -> None:
            plan = Path(self.plan)
            if plan.exists() and plan.read_text() == point:
                plan.unlink()
                kill_family(self.driver)

    class MortalSink(BarnabasDataSource):
        @classmethod
        def name(cls) -> str:
            return MORTAL

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            writer = Writer(sink.stream_writer(self.options, schema, overwrite)._options)
            writer.plan, writer.driver = self.options["plan"], int(self.options["driver"])
            return writer

    return MortalSink


def kill_family(pid: int) -> None:
    """A process and all that it has started, at once, as when a machine dies; the caller may be one of them."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in sorted(family, key=lambda member: member.pid == os.getpid()):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def _read(spark: Any, settings: dict[str, str], topic: str) -> Any:
    return (
        spark.readStream.format("barnabas")
        .option("kafka.bootstrap.servers", settings["bootstrap"])
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .option("maxOffsetsPerTrigger", settings["rows"])
        .load()
    )


def _trigger(settings: dict[str, str]) -> dict[str, Any]:
    return {"availableNow": True} if settings["drain"] else {"processingTime": "200 milliseconds"}


def _into_topic(spark: Any, settings: dict[str, str]) -> Any:
    return (
        _read(spark, settings, FIRST)
        .selectExpr("key", "concat('n', cast(value as string)) value")
        .writeStream.format(MORTAL)
        .option("plan", f"{settings['folder']}/plan")
        .option("driver", str(os.getpid()))
        .option("kafka.bootstrap.servers", settings["bootstrap"])
        .option("topic", SECOND)
        .option("checkpointLocation", f"{settings['folder']}/checkpoint-topic")
        .option("kafka.transaction.timeout.ms", "120000")
        .trigger(**_trigger(settings))
        .start()
    )


def _into_delta(spark: Any, settings: dict[str, str]) -> Any:
    table = f"{settings['folder']}/table"

    def write(rows: Any, batch: int) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

        # The batch id goes into the table with its rows: a batch that is there already is not written again.
        if DeltaTable.is_deltatable(table):
            known = DeltaTable(table).transaction_version(APP_ID)
            if known is not None and known >= batch:
                return
        write_deltalake(
            table,
            rows.selectExpr("cast(substr(cast(value as string), 2) as bigint) number").toArrow(),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction(app_id=APP_ID, version=batch)]),
        )

    return (
        _read(spark, settings, SECOND)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{settings['folder']}/checkpoint-delta")
        .trigger(**_trigger(settings))
        .start()
    )


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


@dataclass
class Chain:
    cluster: LocalCluster
    folder: Path
    seed: int
    master: str = "local[2,8]"
    rate: int = 500
    say: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._began = time.monotonic()
        self._driver: subprocess.Popen[bytes] | None = None
        self.log = self.folder / "driver.log"

    def run(self, *, seconds: float, faults: list[str] | None = None) -> int:
        """The number of records that went through, each once; `PromiseBroken` otherwise."""
        for topic in (FIRST, SECOND):
            self.cluster_topic(topic)
        numbers = Numbers(self.cluster.bootstrap, self.rate)
        numbers.start()
        try:
            self.start_driver()
            deadline = time.monotonic() + seconds
            queue = list(faults or ())
            while queue if faults is not None else time.monotonic() < deadline:
                self.let_work()
                name = queue.pop(0) if faults is not None else self._chance.choice(list(FAULTS))
                FAULTS[name](self)
                if queue or faults is None:
                    self.everyone_runs()
        finally:
            numbers.stop()
            self.kill_driver()
        if numbers.failed:
            raise PromiseBroken(f"the producer of the input failed: {numbers.failed[:3]}")
        self.note(f"{numbers.sent} records in; draining")
        self.start_driver(drain=True)
        assert self._driver is not None
        if self._driver.wait(900) != 0:
            raise PromiseBroken(f"the last driver failed: see {self.log}")
        self._driver = None
        self.verify(numbers.sent)
        return numbers.sent

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
        }
        started = self.folder / "started"
        started.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.spark_chain", "--drive", json.dumps(settings)],
                start_new_session=True,
                stdout=log,
                stderr=log,
            )
        if not drain:
            deadline = time.monotonic() + 180
            while not started.exists():
                if self._driver.poll() is not None or time.monotonic() > deadline:
                    raise PromiseBroken(f"a driver did not start: see {self.log}")
                time.sleep(0.2)
            self.note("a driver runs")

    def everyone_runs(self) -> None:
        """A query that failed ends its process: it is started again, as a supervisor would."""
        if self._driver is None or self._driver.poll() is not None:
            self.note("the driver has ended; again")
            self.kill_driver()
            self.start_driver()

    def let_work(self) -> None:
        """For a moment; mostly until another batch went through, since a driver takes long to start."""
        commits = self.folder / "checkpoint-topic" / "commits"
        deadline = time.monotonic() + 60
        before = len(list(commits.glob("*"))) if commits.exists() else 0
        if self._chance.random() < 0.8:
            while len(list(commits.glob("*"))) == before and time.monotonic() < deadline:
                time.sleep(0.1)
        time.sleep(self._chance.uniform(0, 2))

    def family(self) -> list[psutil.Process]:
        """The driver's processes: Spark's JVMs and Python workers."""
        assert self._driver is not None
        try:
            return psutil.Process(self._driver.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    # -- faults -------------------------------------------------------------------------------------------------------

    def kill_driver(self) -> None:
        """The Python process and its JVM, workers and executors."""
        if self._driver is None:
            return
        family = self.family()
        kill_family(self._driver.pid)
        psutil.wait_procs(family, 10)
        self._driver.wait(10)
        self._driver = None
        self.note("killed the driver")

    def kill_driver_at(self, point: str) -> None:
        """Where it has decided and ended nothing, or half of it: `everyone_runs` starts the next one."""
        assert self._driver is not None
        plan = self.folder / "plan"
        plan.write_text(point)
        try:
            self._driver.wait(90)
            self.note(f"the driver died where it was {point}")
        except subprocess.TimeoutExpired:
            self.note(f"the driver did not come to {point}")
        plan.unlink(missing_ok=True)

    def kill_executor(self) -> None:
        """A Python worker of a task or of a commit, or an executor's JVM where there are any."""
        found = []
        for process in self.family():
            try:
                line = " ".join(process.cmdline())
                if "CoarseGrainedExecutorBackend" in line or ("pyspark.daemon" in line and not process.children()):
                    found.append(process)
            except psutil.Error:
                continue
        if found:
            victim = self._chance.choice(found)
            try:
                victim.kill()
                self.note(f"killed worker {victim.pid}")
            except psutil.NoSuchProcess:
                self.note("a worker ended before it was killed")

    def kill_broker(self) -> None:
        broker = self._chance.choice(list(self.cluster.broker_ids))
        self.cluster.kill(broker)
        self.note(f"killed broker {broker}")
        time.sleep(self._chance.choice([0, 1, 3]))
        self.cluster.start_broker(broker)
        self.note(f"broker {broker} is back")

    # -- what must hold -----------------------------------------------------------------------------------------------

    def verify(self, sent: int) -> None:
        self._same("the second topic", Counter(self.in_topic()), sent)
        self._same("the Delta table", Counter(self.in_table()), sent)
        self.note(f"{sent} records, each once in the second topic and once in the table")

    def _same(self, where: str, found: Counter[int], sent: int) -> None:
        twice = sorted(number for number, count in found.items() if count > 1)
        missing = sorted(set(range(sent)) - found.keys())
        strange = sorted(found.keys() - set(range(sent)))
        if twice or missing or strange:
            raise PromiseBroken(
                f"{where}, seed {self.seed}: {len(missing)} of {sent} missing {missing[:5]}, {len(twice)} repeated "
                f"{twice[:5]}, {len(strange)} strange {strange[:5]}"
            )

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


FAULTS: dict[str, Callable[[Chain], None]] = {
    "driver": Chain.kill_driver,
    **{point: partial(Chain.kill_driver_at, point=point) for point in ("ready", "decided", "half-ended", "all-ended")},
    "executor": Chain.kill_executor,
    "broker": Chain.kill_broker,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--rate", type=int, default=500, help="records a second")
    parser.add_argument("--master", default="local[2,8]")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        drive(json.loads(arguments.drive))
        return
    with (
        tempfile.TemporaryDirectory(prefix="spark-chain-") as folder,
        LocalCluster(brokers=3, config=CLUSTER_CONFIG, zookeeper_options=("--tick-time", "500")) as cluster,
    ):
        print(f"seed {arguments.seed}", flush=True)
        chain = Chain(
            cluster,
            Path(folder),
            arguments.seed,
            master=arguments.master,
            rate=arguments.rate,
            say=lambda line: print(line, flush=True),
        )
        try:
            chain.run(seconds=arguments.seconds)
        except BaseException:
            print((Path(folder) / "driver.log").read_text()[-20_000:], flush=True)
            raise


if __name__ == "__main__":
    main()
