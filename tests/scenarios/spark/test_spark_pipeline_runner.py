"""A project from table to topic to lake on a real Spark and a real cluster: once, continuously, and while the cluster is
away."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from barnabas.spark.pipelines.events import Event, FlowState, Progress, RunState
from barnabas.spark.pipelines.failures import PipelineFailed
from barnabas.spark.pipelines.project import Project, load_project
from barnabas.spark.pipelines.runner import Runner, RunOptions
from barnabas.spark.pipelines.session import Session, attach
from barnabas.testing import Cluster, wait_until

CODE = """
from pyspark import pipelines as dp
from pyspark.sql import functions as F
from barnabas.spark.pipelines import sinks, sources

sinks.topic("orders", bootstrap="{bootstrap}", partitions=2).create("{name}_topic")
sinks.delta("{folder}/lake").create("{name}_lake")

@dp.append_flow(target="{name}_topic")
def {name}_publish():
    rows = sources.table("sqlite:///{folder}/shop.db", "orders", incrementing="id").stream()
    return rows.select(F.col("id").cast("string").alias("key"), "item", F.col("item").alias("value")).drop("item")

@dp.append_flow(target="{name}_lake")
def {name}_keep():
    rows = sources.topic("orders", bootstrap="{bootstrap}").stream()
    return rows.select(F.col("key").cast("string").cast("long").alias("id"), F.col("value").cast("string").alias("item"))

@dp.materialized_view
def {name}_view():
    return sources.table("sqlite:///{folder}/shop.db", "orders").batch().groupBy("item").count()
"""


def project_in(folder: Path, code: str) -> Project:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "flows.py").write_text(code)
    # Spark gives a Python worker ten seconds to start; on a busy machine it needs another attempt.
    patience = 'configuration:\n  spark.sql.pipelines.maxFlowRetryAttempts: "20"\n'
    (folder / "spark-pipeline.yml").write_text(
        f"name: {folder.name}\nstorage: storage\n{patience}libraries:\n  - glob:\n      include: code/**\n"
    )
    return load_project(folder)


def add_orders(database: Path, first: int, end: int) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT)")
        connection.executemany("INSERT INTO orders VALUES (?, ?)", [(n, f"item {n % 3}") for n in range(first, end)])
        connection.commit()


def lake_ids(folder: Path) -> list[int]:
    if not DeltaTable.is_deltatable(str(folder / "lake")):
        return []
    ids: list[int] = DeltaTable(folder / "lake").to_pyarrow_table()["id"].to_pylist()
    return sorted(ids)


@pytest.fixture
def session(spark: SparkSession) -> Iterator[Session]:
    with attach(spark) as session:
        yield session


@contextmanager
def going_on(project: Project, session: Session, options: RunOptions) -> Iterator[list[Event]]:
    """Run the project continuously within this block; raise its error at the end."""
    reported: list[Event] = []
    runner = Runner(project, session, reported.append)
    raised: list[BaseException] = []

    def body() -> None:
        try:
            runner.run(options)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield reported
    finally:
        runner.stop()
        thread.join(60)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_project_runs_once_and_then_continuously_while_its_cluster_is_away(
    session: Session, kafka_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    cluster = kafka_cluster(brokers=1)
    code = CODE.format(bootstrap=cluster.bootstrap, folder=folder, name="shop")
    project = project_in(folder, code)
    add_orders(folder / "shop.db", 0, 10)

    reported: list[Event] = []
    Runner(project, session, reported.append).run(RunOptions())
    assert isinstance(reported[-1], RunState) and reported[-1].state == "COMPLETED"
    finished = {each.flow for each in reported if isinstance(each, FlowState) and each.state == "COMPLETED"}
    assert finished == {"shop_publish", "shop_keep", "shop_view"}
    published = [each for each in reported if isinstance(each, Progress) and each.flow == "shop_publish"]
    assert sum(each.rows for each in published) == 10

    options = RunOptions(continuous=True, trigger_ms=100, views_s=3600, pause_s=0.2, failures_max=50)
    with going_on(project, session, options) as reported:
        wait_until(lambda: any(isinstance(each, RunState) for each in reported), timeout_s=300)
        wait_until(lambda: lake_ids(folder) == list(range(10)), timeout_s=300)
        cluster.kill(1)
        add_orders(folder / "shop.db", 10, 20)
        wait_until(
            lambda: any(isinstance(each, FlowState) and each.state == "RETRYING" for each in reported), timeout_s=300
        )
        cluster.start_broker(1)
        wait_until(lambda: lake_ids(folder) == list(range(20)), timeout_s=300)
    assert isinstance(reported[-1], RunState) and reported[-1].state == "STOPPED"
    assert any(isinstance(each, Progress) and each.flow == "shop_keep" and each.lag == 0 for each in reported)


def test_invalid_definition_is_reported_with_its_file_and_line(session: Session, tmp_path: Path) -> None:
    def error_of(code: str) -> str:
        folder = tmp_path / "wrong"
        folder.mkdir(exist_ok=True)
        with pytest.raises(PipelineFailed) as raised:
            Runner(project_in(folder, code), session, lambda event: None).run(RunOptions(dry=True))
        return str(raised.value)

    head = "from pyspark import pipelines as dp\n"
    assert "code/flows.py:3: NameError" in error_of(head + "\nwrong_name()\n")
    assert "SyntaxError" in error_of("def (")
    missing = error_of(head + "@dp.materialized_view\ndef v():\n    return spark.table('nowhere')\n")
    assert "nowhere" in missing and "\tat " not in missing
    with pytest.raises(PipelineFailed, match="includes every table"):
        Runner(load_project(tmp_path / "wrong"), session, lambda event: None).run(
            RunOptions(full_refresh_all=True, refresh=["x"])
        )
