"""The documentation's project for users of Kafka Streams, with the fixtures that the documentation offers."""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from barnabas.testing import Cluster
from barnabas.testing.pipelines import PipelineProject

EXAMPLE = Path(__file__).parents[3] / "examples" / "streams"
NOON = datetime(2026, 5, 6, 12, 0)


@pytest.fixture(scope="session")
def pipeline_spark(spark: SparkSession) -> SparkSession:
    """The session that all tests in this folder share."""
    return spark


def minute(count: int) -> datetime:
    return NOON.replace(hour=12 + count // 60, minute=count % 60)


def test_windows_joins_deduplication_timers_and_sql_run_in_one_project(
    pipeline: Callable[..., PipelineProject], kafka_cluster: Callable[..., Cluster]
) -> None:
    cluster = kafka_cluster(brokers=1)
    for topic in ("orders", "payments", "customers"):
        cluster.create_topic(topic)
    streams = pipeline(EXAMPLE, cluster=cluster, configuration={"spark.sql.shuffle.partitions": "1"})

    def order(number: int, customer: str, at: int) -> dict[str, object]:
        return {"id": number, "customer": customer, "price": 2.5, "at": minute(at).isoformat()}

    streams.send(
        "orders",
        order(1, "ann", 1),
        order(2, "ann", 3),
        order(2, "ann", 3),  # sent twice
        order(3, "bob", 12),
        "{no order",
        order(4, "cat", 300),  # moves the watermark on
        order(5, "ann", 2),  # hours too late, but in the same batch as the others
    )
    streams.send(
        "payments",
        {"order_id": 1, "paid_at": minute(20).isoformat()},
        {"order_id": 3, "paid_at": minute(200).isoformat()},  # too late for its order
        {"order_id": 9, "paid_at": minute(300).isoformat()},
    )
    for key, name, at in (("ann", "Anna", "12:02Z"), ("ann", "Ann", "12:01Z"), ("bob", "Bob", "12:00Z")):
        streams.send("customers", name, key=key, at=f"2026-05-06T{at}")
    flows = streams.run()
    assert {flow.state for flow in flows.values()} == {"COMPLETED"}, flows

    streams.assert_rows(
        "sales",
        [
            {"customer": "ann", "orders": 3, "start": minute(0), "end": minute(10)},
            {"customer": "bob", "orders": 1, "start": minute(10), "end": minute(20)},
        ],
    )
    streams.assert_rows(
        "visits",
        [
            {"customer": "ann", "orders": 3, "start": minute(1), "end": minute(8)},
            {"customer": "bob", "orders": 1, "start": minute(12), "end": minute(17)},
        ],
    )
    streams.assert_rows("orders", [{"id": number} for number in (1, 2, 3, 4, 5)])
    streams.assert_rows("paid_orders", [{"id": 1, "paid_at": minute(20)}])
    names = [(1, "Anna"), (2, "Anna"), (3, "Bob"), (4, None), (5, "Anna")]
    streams.assert_rows("named_orders", [{"id": number, "name": name} for number, name in names])
    streams.assert_rows("reminders", [{"id": number} for number in (2, 5)])
    totals = [("ann", 3), ("bob", 1), ("cat", 1)]
    streams.assert_rows("turnover", [{"customer": customer, "orders": orders} for customer, orders in totals])
    assert [row["offset"] for row in streams.rows("payments", "offset")] == [0, 1, 2]
    with pytest.raises(AssertionError, match=r"orders has 5 rows, 1 were expected:\n- \{'id': 7\}\n\+ \{'id': 1\}"):
        streams.assert_rows("orders", [{"id": 7}])
    events = [json.loads(line) for line in (streams.folder / ".barnabas" / "lineage.jsonl").read_text().splitlines()]
    done = {each["job"]["name"]: each for each in events if each["eventType"] == "COMPLETE"}
    assert set(done) == {flow.rpartition(".")[2] for flow in flows}

    def inputs(flow: str) -> list[str]:
        return [f"{each['namespace']} {each['name'].rpartition('.')[2]}" for each in done[flow]["inputs"]]

    topics, tables = f"kafka://{cluster.bootstrap}", "spark://streams"
    assert inputs("orders") == [f"{topics} orders"]
    assert inputs("payments") == [f"{topics} payments"]
    assert inputs("paid_orders") == [f"{tables} orders", f"{tables} payments"]
    assert inputs("turnover") == [f"{tables} orders"]
    assert inputs("customers") == [f"{topics} customers"]
    assert inputs("reminders") == [f"{topics} orders", f"{topics} payments"]
