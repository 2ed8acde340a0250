"""The library inside `pyspark.pipelines`, where Spark does not let a function ask for a schema."""

from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.connect import proto

from barnabas.client.errors import BrokerRefused
from barnabas.spark.pipelines import connector, sinks, topic_ids
from barnabas.spark.pipelines._flows import flows_of, put_in_place, watermark_by_sql
from barnabas.spark.pipelines.events import Event, FlowState, Progress
from barnabas.spark.pipelines.failures import PipelineFailed
from barnabas.spark.pipelines.project import load_project
from barnabas.spark.pipelines.reporting import RunReporter
from barnabas.spark.pipelines.runner import Runner, RunOptions
from barnabas.spark.pipelines.session import attach
from barnabas.spark.pipelines.sinks import emptying
from barnabas.testing import Kafka, wait_until
from tests.scenarios.spark.test_spark_report import reports

CODE = """
from pyspark import pipelines as dp
from pyspark.sql import functions as F
from barnabas.spark.pipelines import cdc, sinks, sources
from barnabas.spark.pipelines.codecs import Avro, Json, decode, encode
from barnabas.spark.pipelines.dead_letter import to_topics
from barnabas.spark.pipelines.expectations import expect_or_drop
from barnabas.spark.pipelines.transforms import MaskField

@dp.temporary_view
@expect_or_drop("has pieces", "data.pieces > 0 or error is not null")
def lib_orders():
    records = sources.topic("{orders}", bootstrap="{bootstrap}", options={{"includeHeaders": "true"}}).stream()
    return decode(records, Json("id long, customer string, card string, pieces int")).transform(MaskField(["card"], of="data"))

sinks.topic(bootstrap="{bootstrap}").create("lib_both")

@dp.append_flow(target="lib_both")
def lib_clean():
    ready = encode(spark.readStream.table("lib_orders"), Avro(), into="out", mode="PERMISSIVE")
    return to_topics(ready, topic="{clean}", dead_letter_topic="{dead}", value="out")

cdc.upsert_into_delta("{folder}/customers", keys=["customer"]).create("lib_customers")

@dp.append_flow(target="lib_customers")
def lib_last_orders():
    orders = spark.readStream.table("lib_orders").filter("data is not null").withColumn("who", F.col("data.customer"))
    return cdc.keyed(orders, keys=["customer"], key="who")
"""
UNKNOWN = """
from pyspark import pipelines as dp
from barnabas.spark.pipelines.transforms import Flatten

@dp.table
def lib_late():
    return spark.readStream.table("lib_not_yet").transform(Flatten())
"""


AGAIN = """
from pyspark import pipelines as dp
from pyspark.sql import functions as F
from barnabas.spark.pipelines import sinks, sources

@dp.table
def again_orders():
    return sources.synthetic({{"n": "sequence", "at": "timestamp"}}, rows_per_second=100_000, rows={rows}).stream()

@dp.temporary_view
def again_view():
    return spark.readStream.table("again_orders").withColumn("m", F.col("n") + 1)

@dp.table
def again_more():
    return spark.readStream.table("again_view").withColumn("k", F.col("m") + 1)

sinks.delta("{folder}/again").create("again_lake")

@dp.append_flow(target="again_lake")
def again_last():
    return spark.readStream.table("again_more").withWatermark("at", "1 minute").withColumn("j", F.col("k") + 1)
"""


FAILING = """
from pyspark import pipelines as dp
from pyspark.sql import functions as F
from barnabas.spark.pipelines import sources

@dp.table
def failing_one():
    rows = sources.synthetic({"n": "sequence"}, rows_per_second=1000, rows=1).stream()
    return rows.select(F.raise_error("topic t, partition 2, offset 41: no order").cast("string").alias("x"))

@dp.table
def failing_two():
    return spark.readStream.table("failing_one")
"""


def run(
    folder: Path, spark: SparkSession, code: str, options: RunOptions | None = None, reported: list[Event] | None = None
) -> list[Event]:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "flows.py").write_text(code)
    once = 'configuration:\n  spark.sql.pipelines.maxFlowRetryAttempts: "0"\n' if code is FAILING else ""
    spec = f"name: library\nstorage: storage\n{once}libraries:\n  - glob:\n      include: code/**\n"
    (folder / "spark-pipeline.yml").write_text(spec)
    events: list[Event] = [] if reported is None else reported
    reporter = RunReporter(folder.name, {})

    def take(event: Event) -> None:
        events.append(event)
        reporter.take(event)

    try:
        with attach(spark) as session:
            Runner(load_project(folder), session, take, reporter.rests).run(options or RunOptions())
    finally:
        reporter.close()
    return events


def values(kafka: Kafka, topic: str) -> list[bytes | None]:
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "x", "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"enable.partition.eof": True})
    found: list[bytes | None] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(60)
            assert message is not None, "nothing came"
            if message.error() is not None:
                return found
            found.append(message.value())
    finally:
        consumer.close()


def test_codecs_transforms_dead_letters_expectations_and_changes_work_in_a_pipeline(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    topics = {name: kafka.topic(name) for name in ("orders", "clean", "dead")}
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for order in (
        '{"id": 1, "customer": "ann", "card": "4711", "pieces": 1}',
        '{"id": 2, "customer": "ann", "card": "4711", "pieces": 2}',
        '{"id": 3, "customer": "bob", "card": "0815", "pieces": 0}',
        "{no order",
    ):
        producer.produce(topics["orders"], order)
    assert producer.flush(60) == 0
    reported = run(tmp_path, spark, CODE.format(bootstrap=kafka.bootstrap, folder=tmp_path, **topics))
    assert len(values(kafka, topics["clean"])) == 2
    assert values(kafka, topics["dead"]) == [b"{no order"]
    (row,) = DeltaTable(tmp_path / "customers").to_pyarrow_table().to_pylist()
    assert (row["customer"], row["id"], row["card"], int(row["_sequence"][-19:])) == ("ann", 2, "", 1)
    counted = [one.expectations for one in reported if isinstance(one, Progress) and one.flow == "lib_clean"]
    assert counted == [{"lib_orders.has pieces": {"action": "drop", "passed": 3, "failed": 1}}]
    assert [group.rpartition("-")[0] for _, group in connector.groups()] == ["library-lib_orders"]
    reported = {each["query"]: each for each in reports(kafka.bootstrap) if each["pipeline"] == tmp_path.name}
    assert {each["state"] for each in reported.values()} == {"ended"}
    clean = reported["lib_clean"]
    assert (clean["dead_letters"], clean["error"]) == ([topics["dead"]], None)
    assert clean["progress"]["expectations"] == counted[0]
    assert [topics["orders"]] in [each["topics"] for each in reported.values()]
    with pytest.raises(PipelineFailed, match="define the datasets that it reads before it"):
        run(tmp_path, spark, UNKNOWN)


class _Plan:
    def to_proto(self, client: object) -> proto.Plan:
        plan = proto.Plan()
        plan.root.filter.input.read.named_table.unparsed_identifier = "raw"
        return plan


class _Rows:
    def to_proto(self, client: object) -> proto.Plan:
        plan = proto.Plan()
        plan.root.range.end = 5
        return plan


class _Frame:
    def __init__(self, plan: object) -> None:
        self._plan = plan


def test_datasets_of_the_pipeline_are_put_in_place_of_their_names_all_the_way_down() -> None:
    plan = proto.Plan()
    plan.root.with_columns.input.read.named_table.unparsed_identifier = "spark_catalog.default.`orders`"
    plan.root.with_columns.input.common.plan_id = 7
    plan.root.with_columns.aliases.add().expr.literal.integer = 3
    known = cast(dict[str, Any], {"orders": _Frame(_Plan()), "raw": _Frame(_Rows())})
    put_in_place(plan, known, None)
    put = plan.root.with_columns.input
    assert (put.common.plan_id, put.filter.input.range.end) == (7, 5)


def test_results_of_flows_are_remembered_by_their_targets() -> None:
    from pyspark.pipelines.flow import Flow
    from pyspark.pipelines.output import Output, TemporaryView
    from pyspark.pipelines.source_code_location import SourceCodeLocation

    class Registry:
        def register_flow(self, flow: Flow) -> None:
            flow.func()

        def register_output(self, output: Output) -> None:
            """Do nothing."""

    registry: Any = Registry()
    flows = flows_of(registry)
    assert flows_of(registry) is flows
    calls: list[str] = []

    def query() -> Any:
        calls.append(flows.current or "")
        return "a DataFrame"

    registry.register_flow(Flow("f", "cat.db.orders", {}, SourceCodeLocation("x.py", 1), query))
    assert calls == ["f"] and flows.current is None
    assert flows.known == {"orders": "a DataFrame"}
    registry.register_output(TemporaryView("cat.db.v", None, SourceCodeLocation("x.py", 2)))
    assert flows.views == {"v"}
    assert (flows.places, flows.targets) == ({"f": "x.py:1"}, {"f": "orders"})


def test_a_second_run_brings_everything_to_the_last_sink(spark: SparkSession, tmp_path: Path) -> None:
    """Spark lets flows start before their input if its table exists already: rows were left behind."""

    def lake() -> list[int]:
        return sorted(DeltaTable(tmp_path / "again").to_pyarrow_table()["n"].to_pylist())

    for rows in (100, 5000):
        run(tmp_path, spark, AGAIN.format(rows=rows, folder=tmp_path))
        assert lake() == list(range(rows))


def test_a_flow_that_fails_is_reported_in_one_sentence_and_never_as_completed(
    spark: SparkSession, tmp_path: Path
) -> None:
    reported: list[Event] = []
    with pytest.raises(PipelineFailed) as raised:
        run(tmp_path, spark, FAILING, reported=reported)
    place = "code/flows.py:6"
    assert str(raised.value) == f"flow failing_one ({place}) failed: topic t, partition 2, offset 41: no order"
    states = [(each.flow, each.state, each.message) for each in reported if isinstance(each, FlowState)]
    assert "COMPLETED" not in {state for _, state, _ in states}
    assert states[-2:] == [
        ("failing_one", "FAILED", f"Flow failing_one ({place}) failed: topic t, partition 2, offset 41: no order"),
        ("failing_two", "SKIPPED", "Flow failing_two (code/flows.py:11) has not run: a flow that it reads failed."),
    ]


def test_a_watermark_on_a_dataset_of_the_pipeline_is_sent_as_sql_which_waits_for_it() -> None:
    plan = proto.Relation()
    marked = plan.with_columns.input.with_watermark
    marked.event_time, marked.delay_threshold = "a`t", "1 hour 30 minutes"
    marked.input.read.named_table.unparsed_identifier = "orders"
    other = proto.Relation()
    other.CopyFrom(plan)
    watermark_by_sql(other)
    assert other == plan, "no stream: left alone"
    marked.input.read.is_streaming = True
    watermark_by_sql(plan)
    wanted = "SELECT * FROM STREAM orders WATERMARK `a``t` DELAY OF INTERVAL 1 hour 30 minutes"
    assert plan.with_columns.input.sql.query == wanted


def test_a_topic_is_emptied_and_goes_on_where_it_was(kafka: Kafka) -> None:
    sink = sinks.topic(kafka.topic("emptied"), bootstrap=kafka.bootstrap)
    kafka.produce(sink.options["topic"], ["a", "b", "c"])
    assert emptying.stock_of(sink).rows == 3
    assert str(emptying.empty(sink)) == f"topic {sink.options['topic']} with 3 offsets"
    assert emptying.stock_of(sink).rows == 0
    kafka.produce(sink.options["topic"], ["d"])
    kafka.assert_records(sink.options["topic"], ["d"])
    with pytest.raises(emptying.CannotEmpty, match="the rows name their topics"):
        emptying.stock_of(sinks.topic(bootstrap=kafka.bootstrap))


def make_again(kafka: Kafka, topic: str) -> None:
    """Create a topic again. A broker may know the old one for a while, and refuse another one of its name."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic}
    before = topic_ids.ids_of(options)[topic]
    kafka.cluster.delete_topic(topic)

    def is_made() -> bool:
        with suppress(BrokerRefused):
            kafka.cluster.create_topic(topic)
        return topic_ids.ids_of(options).get(topic, before) != before

    wait_until(is_made)


def test_a_topic_that_was_made_again_between_two_runs_is_noticed(kafka: Kafka, tmp_path: Path) -> None:
    topic, file = kafka.topic("again"), tmp_path / "state" / "topics.json"

    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic}

    def check(*, lossy: bool = False, restarted: tuple[str, ...] = ()) -> list[str]:
        given = options | ({"failOnDataLoss": "false"} if lossy else {})
        return topic_ids.check(file, [topic_ids.TopicRead("received", given)], restarted)

    assert check() == []
    assert check() == []
    make_again(kafka, topic)
    with pytest.raises(topic_ids.TopicMadeAgain, match=f"flow received reads topic {topic}, which was deleted"):
        check()
    assert check(restarted=("received",)) == []
    with pytest.raises(topic_ids.TopicMadeAgain):
        check()  # the run that was to start it again has failed before it did
    topic_ids.note(file, [topic_ids.TopicRead("received", options)], {"received"})
    assert check() == []
    make_again(kafka, topic)
    assert "deleted and made again" in check(lossy=True)[0]
    assert check() == []
