"""Checkpoints that are edited, copied and rewound, with Spark itself: every record of the source is counted in the topics."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import barnabas.spark
from barnabas.cli.main import app
from barnabas.spark.pipelines import sinks
from barnabas.testing import Kafka
from tests.support.command_line import CliRunner

PER_BATCH = 10


class Flow:
    """A query that copies a topic, ten records a batch. A test may start it several times."""

    def __init__(self, spark: SparkSession, kafka: Kafka, source: str, target: str, checkpoint: Path) -> None:
        self.spark, self.kafka, self.source, self.target, self.checkpoint = spark, kafka, source, target, checkpoint

    def run(self, **options: str) -> None:
        """Run until all present records have been read."""
        frame = (
            self.spark.readStream.format("barnabas")
            .option("kafka.bootstrap.servers", self.kafka.bootstrap)
            .option("subscribe", self.source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(PER_BATCH))
            .load()
            .select("value")
        )
        writer = sinks.topic(self.target, bootstrap=self.kafka.bootstrap, options=options).writer(
            frame, checkpoint=str(self.checkpoint)
        )
        assert writer.trigger(availableNow=True).start().awaitTermination(300)

    def refused(self, words: str) -> None:
        with pytest.raises(StreamingQueryException) as failed:
            self.run()
        assert words in str(failed.value)

    def produce(self, first: int, end: int) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for number in range(first, end):
            producer.produce(self.source, str(number))
        assert producer.flush(60) == 0

    def counted(self) -> Counter[int]:
        reader = self.spark.read.format("barnabas").option("kafka.bootstrap.servers", self.kafka.bootstrap)
        frame = reader.option("subscribe", self.target).option("kafka.isolation.level", "read_committed").load()
        return Counter(int(row.value) for row in frame.collect())

    def forget_last_batch(self) -> int:
        """Remove the last offsets and their commit, the usual cure of a torn file."""
        last = max(int(path.name) for path in (self.checkpoint / "offsets").glob("[0-9]*"))
        for folder in ("offsets", "commits"):
            for name in (f"{last}", f".{last}.crc"):
                (self.checkpoint / folder / name).unlink(missing_ok=True)
        return last

    def forget_last_commit(self) -> None:
        """Make the checkpoint look as if the driver had died just before it noted the last batch."""
        last = max(int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*"))
        for name in (f"{last}", f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.fixture
def flow(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> Flow:
    barnabas.spark.register(spark)
    found = Flow(spark, kafka, kafka.topic("in"), kafka.topic("out"), tmp_path / "checkpoint")
    found.produce(0, 25)
    found.run()
    assert found.counted() == Counter(range(25))
    return found


def test_a_batch_that_spark_plans_again_with_more_records_is_refused_and_every_record_is_counted(flow: Flow) -> None:
    """FINDINGS P1: the sink threw the rows away without an error."""
    last = flow.forget_last_batch()
    flow.produce(25, 40)
    flow.refused(f"acceptReplannedBatch={last}:write")
    assert flow.counted() == Counter(range(25))
    flow.run(acceptReplannedBatch=f"{last}:write")
    flow.run()
    # The records 20 to 24 of the batch that was written before come twice, as the message says. None is missing.
    assert flow.counted() == Counter(range(40)) + Counter(range(20, 25))


def test_a_batch_that_comes_again_as_it_was_is_written_once(flow: Flow) -> None:
    flow.forget_last_commit()
    flow.produce(25, 30)
    flow.run()
    assert flow.counted() == Counter(range(30))
    shown = CliRunner().invoke(app, ["pipeline", "offsets", "show", "--checkpoint", str(flow.checkpoint)])
    assert "were not written twice: 1 batches, 5 rows" in shown.stdout


def test_a_copied_checkpoint_takes_nothing_from_the_query_that_it_was_copied_from(flow: Flow) -> None:
    """FINDINGS P2: a staging copy lost its rows, and then made the production query lose rows."""
    staging = Flow(flow.spark, flow.kafka, flow.source, flow.kafka.topic("staging"), flow.checkpoint.with_name("copy"))
    shutil.copytree(flow.checkpoint, staging.checkpoint)
    flow.produce(25, 60)
    staging.refused("acceptCheckpoint=copied")
    staging.run(acceptCheckpoint="copied")
    flow.run()
    flow.produce(60, 75)
    flow.run()
    staging.run()
    assert staging.counted() == Counter(range(25, 75))
    assert flow.counted() == Counter(range(75))


def test_a_flow_that_is_rewound_by_the_command_writes_its_records_again_and_loses_none(flow: Flow) -> None:
    given = ["--checkpoint", str(flow.checkpoint), "--query-is-stopped"]
    done = CliRunner().invoke(app, ["pipeline", "offsets", "rewind", *given, "--batches", "2"])
    assert done.exit_code == 0, done.output
    flow.produce(25, 40)
    flow.run()
    assert flow.counted() == Counter(range(40)) + Counter(range(10, 25))
    to = f'{{"{flow.source}":{{"0":35}}}}'
    done = CliRunner().invoke(app, ["pipeline", "offsets", "set", *given, "--to", to])
    assert done.exit_code == 0, done.output
    flow.run()
    assert flow.counted() == Counter(range(40)) + Counter(range(10, 25)) + Counter(range(35, 40))


def test_writes_of_foreach_batch_know_the_checkpoint_around_them(flow: Flow, tmp_path: Path) -> None:
    checkpoint, table = tmp_path / "both", tmp_path / "lake"
    topic, lake = flow.kafka.topic("both"), sinks.delta(str(table))
    into = sinks.topic(topic, bootstrap=flow.kafka.bootstrap)

    def write(rows: DataFrame, batch: int) -> None:
        into.write(rows, once=("copy", batch))
        lake.write(rows, once=("copy", batch))

    def run() -> None:
        source = flow.spark.readStream.format("barnabas").option("kafka.bootstrap.servers", flow.kafka.bootstrap)
        frame = source.option("subscribe", flow.source).option("startingOffsets", "earliest").load().select("value")
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(300)

    run()
    both = Flow(flow.spark, flow.kafka, flow.source, topic, checkpoint)
    both.forget_last_commit()
    run()
    assert both.counted() == Counter(range(25))
    both.forget_last_batch()
    flow.produce(25, 30)
    with pytest.raises(StreamingQueryException, match="differs in the planned offsets"):
        run()
    assert both.counted() == Counter(range(25))
