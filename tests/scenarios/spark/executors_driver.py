"""Checks with executors that are processes: topics change between plan and read, rows and workers get lost.

`python -m tests.scenarios.spark.executors_driver BOOTSTRAP FOLDER [CHECK …]`: run by `test_spark_executors.py`,
in a process of its own because a process has one Spark. Every check raises; the last line says that all were done.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark import SparkJobInfo
from pyspark.sql import DataFrame, Row, SparkSession

import barnabas.spark
from tests.soak.spark_chain_driver import home_of_its_own
from tests.spark_python import spark_environment

WAIT_S = 300


class Bench:
    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap, self.folder = bootstrap, folder
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        os.environ.update(spark_environment(folder))
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["SPARK_HOME"] = str(home_of_its_own(folder / "home"))
        self.spark = (
            SparkSession.builder.master("local-cluster[2,1,1024]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.executor.memory", "512m")
            .config("spark.driver.memory", "512m")
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.sql.adaptive.enabled", "false")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.python.daemon.module", "barnabas.spark.daemon")
            .config("spark.python.authenticate.socketTimeout", "60s")
            .getOrCreate()
        )
        self.spark.sparkContext.setLogLevel("ERROR")
        barnabas.spark.register(self.spark)

    def topic(self, name: str, *, partitions: int, records: int = 0, **config: str) -> str:
        new = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
        self.admin.create_topics([new])[name].result(60)
        self.produce(name, range(records), partitions=partitions)
        return name

    def produce(self, name: str, numbers: range, *, partitions: int = 1, keys: int = 4) -> None:
        """Produce the numbers as values, with `keys` keys in turn."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in numbers:
            producer.produce(name, key=str(number % keys), value=str(number), partition=number % partitions)
        assert producer.flush(60) == 0

    def read(self, name: str, **options: str) -> DataFrame:
        reader = self.spark.read.format("barnabas").option("kafka.bootstrap.servers", self.bootstrap)
        return reader.options(subscribe=name, startingOffsets="earliest", **options).load()

    def seen(self, name: str, partitions: int) -> list[int]:
        """Return the numbers that a read_committed consumer sees."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "x", "isolation.level": "read_committed"}
        consumer = Consumer(settings | {"enable.partition.eof": True, "enable.auto.commit": False})
        consumer.assign([TopicPartition(name, part, 0) for part in range(partitions)])
        found, ended = [], 0
        while ended < partitions:
            message = consumer.poll(60)
            assert message is not None, "nothing came"
            if message.error() is not None:
                ended += 1
            else:
                found.append(int(message.value()))
        consumer.close()
        return sorted(found)


def raises(what: str, act: Callable[[], object]) -> None:
    try:
        act()
    except Exception as error:
        assert what in str(error), f"{what!r} is not in {error}"
    else:
        raise AssertionError(f"nothing was raised; {what!r} was expected")


def executors_read_what_the_driver_has(bench: Bench) -> None:
    """Rows that the driver has read go to an executor; tasks read every partition of frames of earlier batches again."""
    name = bench.topic("driver-reads", partitions=3, records=60)
    reader = bench.spark.readStream.format("barnabas").option("kafka.bootstrap.servers", bench.bootstrap)
    frame = reader.options(subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger="30").load()
    kept: list[DataFrame] = []
    counted: list[int] = []

    def take(batch: DataFrame, _: int) -> None:
        counted.append(batch.count())
        kept.append(batch)

    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(bench.folder / "reads"))
    assert query.trigger(availableNow=True).start().awaitTermination(WAIT_S)
    assert counted == [30, 30], counted
    later = sorted(int(row.value) for batch in kept for row in batch.collect())
    assert later == list(range(60)), later


def what_was_planned_changes_before_it_is_read(bench: Bench) -> None:
    name = bench.topic("changes", partitions=2, records=40)
    planned = bench.read(name).rdd
    lenient = bench.read(name, failOnDataLoss="false").rdd
    assert planned.getNumPartitions() == lenient.getNumPartitions() == 2
    [deleted] = bench.admin.delete_records([TopicPartition(name, 0, 15)]).values()
    deleted.result(60)
    raises("Cannot fetch offset 0 of changes-0", planned.collect)
    assert len(lenient.collect()) == 5 + 20

    name = bench.topic("again", partitions=2, records=40)
    planned, lenient = bench.read(name).rdd, bench.read(name, failOnDataLoss="false").rdd
    assert planned.getNumPartitions() == lenient.getNumPartitions() == 2
    bench.admin.delete_topics([name])[name].result(60)
    for _ in range(600):
        try:
            bench.topic(name, partitions=2, records=60)
            break
        except Exception as error:
            if "TOPIC_ALREADY_EXISTS" not in str(error):
                raise
    raises("created again", planned.collect)
    assert lenient.collect() == []


def what_was_planned_is_compacted_before_it_is_read(bench: Bench) -> None:
    """Compaction removes records of which a later one has the key. That is not data loss."""
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.001", "segment_ms": "100"}
    name = bench.topic("compacted", partitions=1, records=40, **settings)
    planned = bench.read(name).rdd
    assert planned.getNumPartitions() == 1
    deadline = time.monotonic() + WAIT_S
    while bench.seen(name, 1)[:4] != [36, 37, 38, 39]:
        assert time.monotonic() < deadline, "nothing was compacted"
        time.sleep(0.5)
        bench.produce(name, range(100, 101), keys=1000)  # in another segment: the newest one is not compacted
    assert sorted(int(row.value) for row in planned.collect()) == [36, 37, 38, 39]


def workers_die_and_each_row_is_there_once(bench: Bench) -> None:
    """Kill all Python workers of an executor in the middle of a write: Spark runs the tasks again, there or on the other
    executor."""
    name = bench.topic("repeated", partitions=2)
    marker = bench.folder / "died"

    def dying(rows: Iterator[object]) -> Iterator[object]:
        for count, row in enumerate(rows):
            if count == 100 and not marker.exists():
                marker.touch()
                os.kill(os.getppid(), 9)  # the daemon of this executor's workers
                os._exit(1)
            yield row

    numbers = bench.spark.range(0, 4000, 1, 4).repartition(4).rdd.mapPartitions(dying)
    frame = bench.spark.createDataFrame(numbers, "id long").selectExpr("cast(id as string) value")
    writer = frame.write.format("barnabas").option("kafka.bootstrap.servers", bench.bootstrap).option("topic", name)
    writer.mode("append").save()
    assert marker.exists(), "nothing died"
    assert bench.seen(name, 2) == list(range(4000))


def a_stage_is_tried_again_after_its_executor_died(bench: Bench) -> None:
    """An executor dies with its shuffled rows: Spark reads the topic again, and each row is there once."""
    source, target = bench.topic("read-again", partitions=4, records=2000), bench.topic("written-again", partitions=2)
    marker = bench.folder / "executor-died"

    def dying(rows: Iterator[Row]) -> Iterator[Row]:
        for count, row in enumerate(rows):
            if count == 100 and not marker.exists():
                marker.touch()
                next(each for each in psutil.Process().parents() if "java" in each.name()).kill()
            yield row

    tracker = bench.spark.sparkContext.statusTracker()
    bench.spark.sparkContext.setJobGroup("again", "a stage that is tried again")
    # By value: tasks that are repeated get the same rows.
    rows = bench.read(source).selectExpr("cast(value as string) value").repartition(4, "value").rdd.mapPartitions(dying)
    frame = bench.spark.createDataFrame(rows, "value string")
    writer = frame.write.format("barnabas").option("kafka.bootstrap.servers", bench.bootstrap).option("topic", target)
    writer.mode("append").save()
    assert marker.exists(), "no executor died"
    stages = [stage for job in tracker.getJobIdsForGroup("again") for stage in _stages(tracker.getJobInfo(job))]
    attempts = [info.currentAttemptId for stage in stages if (info := tracker.getStageInfo(stage)) is not None]
    assert any(attempts), f"no stage was tried again: {attempts}"
    assert bench.seen(target, 2) == list(range(2000))


def _stages(job: SparkJobInfo | None) -> list[int]:
    return [] if job is None else list(job.stageIds)


def main() -> None:
    bench = Bench(sys.argv[1], Path(sys.argv[2]))
    for check in (
        executors_read_what_the_driver_has,
        what_was_planned_changes_before_it_is_read,
        what_was_planned_is_compacted_before_it_is_read,
        workers_die_and_each_row_is_there_once,
        a_stage_is_tried_again_after_its_executor_died,
    ):
        if sys.argv[3:] and check.__name__ not in sys.argv[3:]:
            continue
        check(bench)
        print(check.__name__, flush=True)
    bench.spark.stop()
    print("all done", flush=True)


if __name__ == "__main__":
    main()
