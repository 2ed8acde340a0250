"""Tables that pipelines write, without Spark: what they refuse before a byte is written, and two drivers of one query."""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from barnabas.spark.pipelines import sinks
from barnabas.spark.pipelines.delta_upsert import DeltaUpsertSource
from barnabas.spark.pipelines.sinks import emptying
from barnabas.spark.pipelines.sinks.delta_table import DeltaSource
from barnabas.spark.pipelines.sinks.exactly_once import Batch, BatchWriter, Target, Task, once_of
from barnabas.spark.pipelines.sinks.exactly_once import Staged as StagedMessage
from barnabas.spark.pipelines.sinks.iceberg_table import IcebergSource
from barnabas.spark.pipelines.sinks.sql_table import SqlTarget
from barnabas.spark.pipelines.sinks.table_schema import TableMismatch, becomes, require_values
from barnabas.spark.pipelines.sources.sql_query import SqlSource

Rows = list[dict[str, Any]]
INT, LONG, STRING, DOUBLE = IntegerType(), LongType(), StringType(), DoubleType()
TYPES: dict[str, DataType] = {
    "int": INT,
    "long": LONG,
    "string": STRING,
    "double": DOUBLE,
    "boolean": BooleanType(),
    "decimal": DecimalType(38, 18),
}


def schema_of(text: str) -> StructType:
    """`id long not null, name string`."""
    made = StructType()
    for column in text.split(", "):
        name, kind, *rest = column.split(" ")
        made.add(name, TYPES[kind], nullable=rest != ["not", "null"])
    return made


@dataclass
class Table:
    """One table of one kind."""

    kind: str
    folder: Path
    extra: dict[str, str] = field(default_factory=dict)

    def target(self, schema: StructType, **options: str) -> Target:
        overwrite = options.pop("overwrite", "") != ""
        return self.source(**options).streamWriter(schema, overwrite).target

    def batch_writer(self, schema: StructType, **options: str) -> BatchWriter:
        return self.source(**options).writer(schema, False)

    def source(self, **options: str) -> Any:
        options = self.extra | options
        match self.kind:
            case "delta":
                given, source = {"path": f"{self.folder}/delta"}, DeltaSource
            case "delta upsert":
                given, source = {"path": f"{self.folder}/delta", "key": "id"}, DeltaUpsertSource
            case "iceberg":
                given = {"table": "a.b"} | {f"catalog.{name}": value for name, value in self.catalog().items()}
                source = IcebergSource
            case "sqlite":
                given, source = {"uri": f"sqlite:///{self.folder}/db", "table": "t"}, SqlSource
            case other:
                raise AssertionError(other)
        return source(CaseInsensitiveDict(given | options))

    def catalog(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/warehouse",
        }

    def write(self, schema: str, rows: Rows, batch: Batch | None = None, **options: str) -> None:
        staged = self.stage(schema, rows, **options)
        staged.publish(batch)

    def stage(self, schema: str, rows: Rows, *, task: int = 0, **options: str) -> "Staged":
        kind = schema_of(schema)
        target = self.target(kind, **options)
        data = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(nullable(kind), timezone="UTC"))
        return Staged(target, target.stage(iter([data]), Task("query", 0, 0, task)))

    def rows(self) -> Rows:
        match self.kind:
            case "delta" | "delta upsert":
                return DeltaTable(f"{self.folder}/delta").to_pyarrow_table().sort_by("id").to_pylist()
            case "iceberg":
                with closing(load_catalog("barnabas", **self.catalog())) as catalog:
                    return catalog.load_table("a.b").scan().to_arrow().sort_by("id").to_pylist()
            case _:
                with closing(sqlite3.connect(f"{self.folder}/db")) as connection:
                    connection.row_factory = sqlite3.Row
                    return [dict(row) for row in connection.execute("SELECT * FROM t ORDER BY id")]

    def files(self) -> set[str]:
        return {each.name for each in self.folder.rglob("*.parquet") if "_delta_log" not in each.parts}


def nullable(schema: StructType) -> StructType:
    """Return the schema that executors get: Spark does not keep a frame's nullability."""
    made = StructType()
    for each in schema.fields:
        made.add(each.name, each.dataType, True)
    return made


@dataclass
class Staged:
    target: Target
    items: Sequence[dict[str, object]]

    def publish(self, batch: Batch | None = None) -> None:
        self.target.publish(self.items, batch)


KINDS = ["delta", "iceberg", "sqlite"]


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table(request.param, tmp_path)


@pytest.fixture(params=[*KINDS, "delta upsert"])
def any_table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table(request.param, tmp_path)


# -- what a table takes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("id long, n string", "column n is .* in the table and string in the rows"),
        ("id long, n int, more string", "the table has no column more string"),
        ("id long", "the rows have no column n"),
        ("id long, n double", "column n is .* in the table and double in the rows"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_anything_is_written(table: Table, schema: str, said: str) -> None:
    table.write("id long, n int", [{"id": 1, "n": 1}])
    before = table.files()
    with pytest.raises(TableMismatch, match=f"does not take these rows: {said}"):
        table.target(schema_of(schema))
    assert table.rows() == [{"id": 1, "n": 1}]
    assert table.files() == before


def test_narrower_values_are_written_in_the_type_of_the_table(table: Table) -> None:
    table.write("id long, n long", [{"id": 1, "n": 2**40}])
    table.write("id int, n int", [{"id": 2, "n": 7}])
    assert table.rows() == [{"id": 1, "n": 2**40}, {"id": 2, "n": 7}]


def test_a_null_for_a_column_that_is_not_null_is_refused_with_the_whole_batch(table: Table) -> None:
    if table.kind == "sqlite":
        with closing(sqlite3.connect(f"{table.folder}/db")) as connection:
            connection.execute("CREATE TABLE t (id INTEGER, n INTEGER NOT NULL)")
    else:
        table.write("id long, n int not null", [{"id": 1, "n": 1}])
    before = table.rows()
    with pytest.raises(TableMismatch, match=r"column n is NOT NULL, and null in 1 rows, the first of them \{'id': 3"):
        table.write("id long, n int", [{"id": 2, "n": 5}, {"id": 3, "n": None}])
    assert table.rows() == before


def test_constraints_of_a_delta_table_are_kept(tmp_path: Path) -> None:
    table = Table("delta", tmp_path)
    table.write("id long, n int, day string", [{"id": 1, "n": 1, "day": "mon"}], partitionBy="day")
    DeltaTable(f"{tmp_path}/delta").alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(
        TableMismatch, match=r"does not take these rows \(constraints: positive: n > 0\): .*\| 2 \| -1 \|"
    ):
        table.write("id long, n int, day string", [{"id": 2, "n": -1, "day": "tue"}], partitionBy="day")
    table.write("id long, n int, day string", [{"id": 3, "n": 3, "day": None}], Batch("q", 4), partitionBy="day")
    table.write("id long, n int, day string", [{"id": 3, "n": 3, "day": None}], Batch("q", 4), partitionBy="day")
    assert table.rows() == [{"id": 1, "n": 1, "day": "mon"}, {"id": 3, "n": 3, "day": None}]


def test_constraints_of_a_database_are_kept(tmp_path: Path) -> None:
    table = Table("sqlite", tmp_path)
    with closing(sqlite3.connect(f"{tmp_path}/db")) as connection:
        connection.execute("CREATE TABLE t (id INTEGER, n INTEGER CHECK (n > 0), kind TEXT DEFAULT 'x' NOT NULL)")
    with pytest.raises(Exception, match="CHECK constraint failed"):
        table.write("id long, n int, kind string", [{"id": 1, "n": 5, "kind": "k"}, {"id": 2, "n": -1, "kind": "k"}])
    assert table.rows() == []


def test_overwrite_replaces_all_rows_once(table: Table) -> None:
    columns, rows = "id long, n int", [{"id": 1, "n": 1}, {"id": 2, "n": 2}]
    table.write(columns, rows, Batch("q", 0))
    table.write(columns, [{"id": 3, "n": 3}], Batch("q", 1), overwrite="yes")
    assert table.rows() == [{"id": 3, "n": 3}]
    table.write(columns, [{"id": 4, "n": 4}], Batch("q", 2))
    table.write(columns, [{"id": 5, "n": 5}], Batch("q", 1), overwrite="yes")  # it comes again
    assert table.rows() == [{"id": 3, "n": 3}, {"id": 4, "n": 4}]
    table.target(schema_of(columns), overwrite="yes").publish([], Batch("q", 3))
    assert table.rows() == [], "a result without rows"


def test_overwrite_keeps_the_constraints_of_a_delta_table(tmp_path: Path) -> None:
    table = Table("delta", tmp_path)
    table.write("id long, n int", [{"id": 1, "n": 1}])
    DeltaTable(f"{tmp_path}/delta").alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(TableMismatch, match="positive: n > 0"):
        table.write("id long, n int", [{"id": 2, "n": -1}], overwrite="yes")
    table.write("id long, n int", [{"id": 2, "n": 2}], overwrite="yes")
    assert table.rows() == [{"id": 2, "n": 2}]


def test_a_batch_write_with_a_name_and_a_number_is_written_once(any_table: Table) -> None:
    """`foreachBatch` needs this to write into several tables."""
    upserts = any_table.kind == "delta upsert"
    columns = schema_of("id long, n int" + (", _deleted boolean, _sequence long" if upserts else ""))

    def write(key: int, **options: str) -> None:
        writer = any_table.batch_writer(columns, **options)
        row = {"id": key, "n": key, "_deleted": False, "_sequence": key}
        data = pa.RecordBatch.from_pylist([row], schema=to_arrow_schema(nullable(columns), timezone="UTC"))
        writer.commit([StagedMessage("job", writer.target.stage(iter([data]), Task("job", 0, 0, 0)))])

    write(1, onceName="lake", onceBatch="0")
    write(2, onceName="lake", onceBatch="0")
    write(3, onceName="other", onceBatch="0")
    write(4, onceName="lake", onceBatch="1")
    write(5)
    assert [row["id"] for row in any_table.rows()] == [1, 3, 4, 5]
    with pytest.raises(ValueError, match="onceName and onceBatch go together"):
        any_table.batch_writer(columns, onceName="x")


class Frame:
    """A DataFrame, its session and its context, as far as a sink looks at them."""

    def __init__(self, query: str) -> None:
        self.query = query
        self.saved: list[dict[str, str]] = []
        self.sparkSession = self._sc = self

    def getLocalProperty(self, name: str) -> str | None:
        return self.query if name == "sql.streaming.queryId" else None

    @property
    def write(self) -> "Frame":
        return self

    def format(self, name: str) -> "Frame":
        return self

    def options(self, **options: str) -> "Frame":
        self.saved.append(options)
        return self

    def mode(self, name: str) -> "Frame":
        return self

    def save(self) -> None:
        """Do nothing: `options` has noted the write."""


def test_two_topics_of_one_cluster_do_not_share_a_name() -> None:
    """The decision log has one record for a query and a name: it would take the second write for a repeated first one."""
    frame: Any = Frame("query")

    def sink(place: str, name: str) -> sinks.Sink:
        return sinks.Sink("barnabas", {"kafka.bootstrap.servers": place, "topic": name})

    for number in (0, 0, 1):
        sink("one:9092", "orders").write(frame, once=("batches", number))
    with pytest.raises(ValueError, match="once='batches' is the name of writes into orders"):
        sink("one:9092", "totals").write(frame, once=("batches", 0))
    sink("one:9092", "totals").write(frame, once=("totals", 0))
    sink("two:9092", "totals").write(frame, once=("batches", 0))
    sinks.Sink("barnabas-delta", {"path": "/lake"}).write(frame, once=("batches", 0))
    assert len(frame.saved) == 6


def test_two_tables_of_one_database_may_share_a_name(tmp_path: Path) -> None:
    """The sink asks for no second name, and the progress of each table is a row of its own."""
    frame: Any = Frame("query")
    uri = f"sqlite:///{tmp_path}/db"
    for table in ("orders", "totals"):
        sinks.Sink("barnabas-sql", {"uri": uri, "table": table}).write(frame, once=("batches", 0))
    for options, id in zip(frame.saved, (1, 2), strict=True):
        target = SqlTarget(options, schema_of("id long"))
        items = target.stage(iter([pa.RecordBatch.from_pylist([{"id": id}])]), Task("job", 0, 0, 0))
        target.publish(items, once_of(options))
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        found = connection.execute("SELECT id FROM orders UNION ALL SELECT id FROM totals").fetchall()
    assert found == [(1,), (2,)]


def test_two_queries_may_have_the_same_name_for_writes_into_topics() -> None:
    for query in ("one", "two"):
        frame: Any = Frame(query)
        sink = sinks.Sink("barnabas", {"kafka.bootstrap.servers": "shared:9092", "topic": query})
        sink.write(frame, once=("batches", 0))
        assert len(frame.saved) == 1


def test_a_table_of_changes_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mode upsert of barnabas-sql applies changes"):
        Table("sqlite", tmp_path, {"mode": "upsert", "key": "id"}).target(schema_of("id long"), overwrite="yes")
    columns = schema_of("id long, _deleted boolean, _sequence long")
    with pytest.raises(ValueError, match="barnabas-delta-upsert applies changes"):
        Table("delta upsert", tmp_path).target(columns, overwrite="yes")


def test_a_sink_is_counted_and_emptied(table: Table) -> None:
    lake = str(table.folder / "delta")
    sink = {
        "delta": lambda: sinks.delta(lake),
        "iceberg": lambda: sinks.iceberg("a.b", catalog=table.catalog()),
        "sqlite": lambda: sinks.sql(f"sqlite:///{table.folder}/db", "t"),
    }[table.kind]()
    assert emptying.stock_of(sink).rows == emptying.empty(sink).rows == 0, "not made yet"
    table.write("id long, n int", [{"id": 1, "n": 1}, {"id": 2, "n": 2}], Batch("q", 0))
    assert emptying.stock_of(sink).rows == 2
    assert emptying.empty(sink).rows == 2
    assert table.rows() == []
    table.write("id long, n int", [{"id": 3, "n": 3}], Batch("another query, after the refresh", 0))
    assert table.rows() == [{"id": 3, "n": 3}]


def test_a_folder_of_parquet_is_deleted_when_it_is_emptied(tmp_path: Path) -> None:
    sink = sinks.parquet(str(tmp_path / "out"))
    assert str(emptying.stock_of(sink)) == f"Parquet folder {tmp_path}/out with 0 files"
    (tmp_path / "out" / "_spark_metadata").mkdir(parents=True)
    (tmp_path / "out" / "a.parquet").write_bytes(b"x")
    assert emptying.empty(sink).rows == 1
    assert not (tmp_path / "out").exists()
    (tmp_path / "out" / "_spark_metadata").mkdir(parents=True)
    assert emptying.empty(sink).rows == 0
    assert not (tmp_path / "out").exists(), "batches that are listed would not be written again"
    with pytest.raises(emptying.CannotEmpty, match="not a local folder"):
        emptying.stock_of(sinks.parquet("s3://bucket/out"))


@pytest.mark.parametrize(
    ("declared", "values", "said"),
    [
        ("character varying(3)", ["abc", "äöü", None], ""),
        (
            "character varying(3)",
            ["abc", "abcd"],
            "column v is character varying(3), and 1 values are too large.* 'abcd'",
        ),
        ("numeric(5,2)", [Decimal("999.99"), Decimal("-999.994"), None], ""),
        ("numeric(5,2)", [Decimal("999.995")], "column v is numeric(5,2), and 1 values are too large.* 999.995"),
        ("numeric(20,0)", [10**20 - 1], ""),
        ("numeric(3)", [-1000, 1000], "and 2 values are too large.* -1000"),
        ("text", ["x" * 9999], ""),
    ],
)
def test_values_that_a_database_cannot_store_are_refused_with_column_and_value(
    declared: str, values: list[object], said: str
) -> None:
    kind = pa.decimal128(38, 6) if "numeric" in declared else pa.string()
    rows = pa.table(
        {"v": pa.array(values).cast(kind) if kind == pa.string() else pa.array(map(as_decimal, values), kind)}
    )
    written = StructType().add("v", STRING)
    if not said:
        require_values(rows, written, what="table t", declared={"v": declared})
        return
    with pytest.raises(TableMismatch, match=said.replace("(", r"\(").replace(")", r"\)")):
        require_values(rows, written, what="table t", declared={"v": declared})


def as_decimal(value: object) -> Decimal | None:
    return None if value is None else Decimal(str(value))


def test_merge_schema_adds_columns_and_fills_missing_ones_with_null(table: Table) -> None:
    table.write("id long, n int", [{"id": 1, "n": 1}])
    table.write("id long, more string", [{"id": 2, "more": "x"}], mergeSchema="true")
    assert table.rows() == [{"id": 1, "n": 1, "more": None}, {"id": 2, "n": None, "more": "x"}]
    with pytest.raises(TableMismatch, match=r"column n is .* and string in the rows"):
        table.target(schema_of("id long, n string"), mergeSchema="true")


def test_merge_schema_widens_where_the_table_can(tmp_path: Path) -> None:
    iceberg = Table("iceberg", tmp_path)
    iceberg.write("id long, n int", [{"id": 1, "n": 1}])
    iceberg.write("id long, n long", [{"id": 2, "n": 2**40}], mergeSchema="true")
    assert iceberg.rows() == [{"id": 1, "n": 1}, {"id": 2, "n": 2**40}]
    delta = Table("delta", tmp_path)
    delta.write("id long, n int", [{"id": 1, "n": 1}])
    with pytest.raises(TableMismatch, match="column n is int in the table and bigint in the rows"):
        delta.target(schema_of("id long, n long"), mergeSchema="true")


@pytest.mark.parametrize(
    ("given", "wanted", "is_expected"),
    [
        (INT, LONG, True),
        (LONG, INT, False),
        (INT, DOUBLE, False),
        (FloatType(), DOUBLE, True),
        (INT, DecimalType(12, 2), True),
        (LONG, DecimalType(12, 2), False),
        (DecimalType(8, 2), DecimalType(10, 4), True),
        (DecimalType(8, 2), DecimalType(9, 4), False),
        (STRING, BinaryType(), False),
        (ArrayType(INT), ArrayType(LONG), True),
        (MapType(STRING, INT), MapType(STRING, STRING), False),
        (StructType().add("a", INT), StructType().add("a", LONG), True),
        (StructType().add("a", INT), StructType().add("b", INT), False),
    ],
)
def test_which_types_become_which(given: DataType, wanted: DataType, is_expected: bool) -> None:
    assert becomes(given, wanted) is is_expected


def test_delta_upserts_keep_types_too(tmp_path: Path) -> None:
    table = Table("delta upsert", tmp_path)
    columns = "id long, n int, _deleted boolean, _sequence long"
    table.write(columns, [{"id": 1, "n": 1, "_deleted": False, "_sequence": 1}])
    with pytest.raises(TableMismatch, match="column n is int in the table and string in the rows"):
        table.target(schema_of(columns.replace("n int", "n string")))


def test_of_equal_changes_the_last_row_of_a_task_wins_however_many_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past a chunk a task stages several files; their names once were in no order."""
    monkeypatch.setattr("barnabas.spark.pipelines.sinks.files.ROWS_MAX", 1)
    table = Table("delta upsert", tmp_path)
    target = table.target(schema_of("id long, n int, _deleted boolean, _sequence long"))
    arrow = to_arrow_schema(nullable(schema_of("id long, n int, _deleted boolean, _sequence long")), timezone="UTC")
    rows = [{"id": key, "n": n, "_deleted": False, "_sequence": 7} for n in range(8) for key in range(3)]
    batches = [pa.RecordBatch.from_pylist([row], schema=arrow) for row in rows]
    items = target.stage(iter(batches), Task("query", 0, 0, 0))
    assert len(items) == len(rows)
    target.publish(items, Batch("query", 0))
    assert [(row["id"], row["n"]) for row in table.rows()] == [(0, 7), (1, 7), (2, 7)]


def test_changes_of_a_table_that_was_there_before_them_are_applied(tmp_path: Path) -> None:
    """Its rows have no sequence: `mergeSchema` gives it the column. They once stayed as they were, whatever changed."""
    table = Table("delta upsert", tmp_path)
    write_deltalake(f"{tmp_path}/delta", pa.table({"id": [1, 2, 3], "n": [0, 0, 0]}))
    changes = [
        {"id": 1, "n": 1, "_deleted": False, "_sequence": "5"},
        {"id": 2, "n": None, "_deleted": True, "_sequence": "6"},
    ]
    table.write("id long, n long, _deleted boolean, _sequence string", changes, mergeSchema="true")
    assert [(row["id"], row["n"], row["_sequence"]) for row in table.rows()] == [(1, 1, "5"), (3, 0, None)]


def test_sqlite_keeps_every_digit_of_a_decimal_or_refuses_it(tmp_path: Path) -> None:
    table = Table("sqlite", tmp_path)
    whole = Decimal("12345678901234567")
    kept = [whole, Decimal("0"), Decimal("-1.5"), Decimal("0.1234567890123"), None]
    table.write("id long, n decimal", [{"id": number, "n": value} for number, value in enumerate(kept)])
    assert [row["n"] for row in table.rows()] == [int(whole), 0, -1.5, 0.1234567890123, None]
    with pytest.raises(TableMismatch, match=r"column n has 1 values with more, the first of them 1234567890123456\.78"):
        table.write(
            "id long, n decimal",
            [{"id": 9, "n": Decimal("1234567890123456.78")}, {"id": 10, "n": Decimal("1.5")}],
        )
    assert len(table.rows()) == len(kept)


@pytest.mark.parametrize("nested", [False, True])
def test_text_that_is_not_utf8_is_refused_before_anything_is_written(tmp_path: Path, nested: bool) -> None:
    """Spark makes a text of any bytes. DuckDB, Polars and Python refuse to read a file that has it."""
    raw = pa.array([b"tea", b"\xff\xfe", b"zz"], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    kind: DataType = StringType()
    if nested:
        kind = StructType([StructField("names", ArrayType(StringType()))])
        texts = pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1, 2, 3], texts)], names=["names"])
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2, 3], pa.int64()), texts], names=["id", "item"])
    for name in KINDS[:2] if nested else KINDS:
        (tmp_path / name).mkdir()
        target = Table(name, tmp_path / name).target(
            StructType([StructField("id", LongType()), StructField("item", kind)])
        )
        with pytest.raises(TableMismatch, match="column item has text that is not UTF-8"):
            target.stage(iter([rows]), Task("query", 0, 0, 0))


def test_sqlite_refuses_nan_which_it_would_store_as_null(tmp_path: Path) -> None:
    """SQLite has no NaN. A number became null without an error, and rows with such a key were inserted again and again."""
    table = Table("sqlite", tmp_path)
    with pytest.raises(TableMismatch, match="column price has NaN, which SQLite stores as null"):
        table.stage("id long, price double", [{"id": 1, "price": 1.5}, {"id": 2, "price": float("nan")}])
    table.write("id long, price double", [{"id": 1, "price": 1.5}, {"id": 2, "price": None}])
    assert [row["price"] for row in table.rows()] == [1.5, None]


@pytest.mark.parametrize("options", [{}, {"mode": "upsert", "key": "id"}])
def test_sqlite_takes_a_batch_of_very_many_tasks(tmp_path: Path, options: dict[str, str]) -> None:
    """SQLite takes 500 terms of a union. A batch of 501 tasks failed at each attempt."""
    table = Table("sqlite", tmp_path)
    target = table.target(schema_of("id long"), **options)
    items: list[dict[str, object]] = []
    for number in range(501):
        rows = pa.RecordBatch.from_pydict({"id": pa.array([number, number + 1], pa.int64())})
        items += target.stage(iter([rows]), Task("query", 0, number, number))
    target.publish(items, Batch("query", 0))
    read = [row["id"] for row in table.rows()]
    assert read == sorted([*range(501), *range(1, 502)] if not options else range(502))


def test_days_outside_of_the_years_1_to_9999_are_written_to_delta_and_refused_for_iceberg(tmp_path: Path) -> None:
    """Both failed without the name of the column: date value out of range."""
    far = pa.table({"id": pa.array([1, 2], pa.int64()), "day": pa.array([0, 2_932_897], pa.date32())})
    schema = StructType([StructField("id", LongType()), StructField("day", DateType())])
    delta = Table("delta", tmp_path)
    target = delta.target(schema)
    items = target.stage(iter(far.to_batches()), Task("query", 0, 0, 0))
    target.publish(items, None)
    days = DeltaTable(f"{tmp_path}/delta").to_pyarrow_table().sort_by("id").column("day").cast(pa.int32())
    assert days.to_pylist() == [0, 2_932_897]
    times = far.set_column(1, "day", pa.array([0, 1 << 60], pa.timestamp("us", "UTC")))
    for kind, rows in ((DateType(), far), (TimestampType(), times)):
        target = Table("iceberg", tmp_path / kind.typeName()).target(
            StructType([StructField("id", LongType()), StructField("day", kind)])
        )
        with pytest.raises(
            TableMismatch, match=r"Iceberg table a.b .* column day has a time that is not in the years 1"
        ):
            target.stage(iter(rows.to_batches()), Task("query", 0, 0, 0))


def test_large_values_are_not_all_held_before_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.spark.pipelines.sinks.files.BYTES_MAX", 1000)
    table = Table("delta", tmp_path)
    columns = schema_of("id long, n string")
    target = table.target(columns)
    held: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(6):
            held.append(len(list(tmp_path.rglob("*.parquet"))))
            yield pa.RecordBatch.from_pylist(
                [{"id": number, "n": "x" * 400}], schema=to_arrow_schema(columns, timezone="UTC")
            )

    target.publish(target.stage(batches(), Task("query", 0, 0, 0)), Batch("query", 0))
    assert held == [0, 0, 0, 1, 1, 1]
    assert [row["id"] for row in table.rows()] == list(range(6))


# -- failures and zombies ---------------------------------------------------------------------------------------------


def test_a_batch_that_failed_after_it_was_published_keeps_its_files(table: Table) -> None:
    """Spark aborts when the answer to a commit is lost, too."""
    staged = table.stage("id long, n int", [{"id": 1, "n": 1}])
    staged.publish(Batch("q", 0))
    staged.target.abandon(staged.items)
    assert table.rows() == [{"id": 1, "n": 1}]


def test_a_batch_that_failed_before_leaves_no_file(table: Table) -> None:
    staged = table.stage("id long, n int", [{"id": 1, "n": 1}])
    staged.target.abandon(staged.items)
    assert table.files() == set()


#: What `publish` calls between looking for the batch and showing it.
BETWEEN = {"delta": "_publish", "delta upsert": "_publish", "iceberg": "_evolve", "sqlite": "_moves"}


def test_one_of_two_drivers_publishes_a_batch_that_both_have(any_table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old driver that was believed dead publishes at the same time as the new one."""
    table = any_table
    upserts = table.kind == "delta upsert"
    columns = "id long, n int" + (", _deleted boolean, _sequence long" if upserts else "")

    def row(key: int) -> dict[str, object]:
        return {"id": key, "n": key} | ({"_deleted": False, "_sequence": key} if upserts else {})

    table.write(columns, [row(0)], Batch("q", 0))
    old, new = table.stage(columns, [row(1)], task=1), table.stage(columns, [row(1)], task=2)
    original = getattr(type(old.target), BETWEEN[table.kind])
    other: list[threading.Thread] = []
    failures: list[BaseException] = []

    def publish_new() -> None:
        try:
            new.publish(Batch("q", 1))
        except Exception as error:
            failures.append(error)

    def while_the_other_publishes(target: Target, *given: object) -> object:
        if target is old.target and not other:
            other.append(threading.Thread(target=publish_new))
            other[0].start()
            other[0].join(1 if table.kind == "sqlite" else None)  # a database makes it wait
        return original(target, *given)

    monkeypatch.setattr(type(old.target), BETWEEN[table.kind], while_the_other_publishes)
    try:
        old.publish(Batch("q", 1))
    except Exception as error:
        failures.append(error)
    other[0].join()
    assert [(each["id"], each["n"]) for each in table.rows()] == [(0, 0), (1, 1)]
    assert len(failures) <= 1, failures
    # Whichever failed runs again, and finds that it is done.
    table.write(columns, [row(1)], Batch("q", 1))
    assert [(each["id"], each["n"]) for each in table.rows()] == [(0, 0), (1, 1)]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])  # of a database one waits for the other, as above
def test_two_queries_that_publish_into_one_table_at_once_both_do(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(kind, tmp_path)
    table.write("id long, n int", [{"id": 0, "n": 0}], Batch("a", 0))
    one, two = table.stage("id long, n int", [{"id": 1, "n": 1}]), table.stage("id long, n int", [{"id": 2, "n": 2}])
    original = getattr(type(one.target), BETWEEN[table.kind])
    todo = [two]

    def while_the_other_publishes(target: Target, *given: object) -> object:
        if target is one.target and todo:
            todo.pop().publish(Batch("b", 0))
        return original(target, *given)

    monkeypatch.setattr(type(one.target), BETWEEN[table.kind], while_the_other_publishes)
    one.publish(Batch("a", 1))
    assert [row["id"] for row in table.rows()] == [0, 1, 2]


def test_an_old_driver_does_not_delete_the_staged_files_of_a_newer_one(tmp_path: Path) -> None:
    table = Table("sqlite", tmp_path)
    kind = schema_of("id long, n int")
    data = pa.RecordBatch.from_pylist([{"id": 5, "n": 5}], schema=to_arrow_schema(kind, timezone="UTC"))
    newer = table.target(kind)
    items = newer.stage(iter([data]), Task("q", 5, 0, 0))
    table.write("id long, n int", [{"id": 4, "n": 4}], Batch("q", 4))
    newer.publish(items, Batch("q", 5))
    assert [row["id"] for row in table.rows()] == [4, 5]


@pytest.mark.parametrize("name", ["lake", None])
def test_an_iceberg_catalog_stores_its_own_name(tmp_path: Path, name: str | None):
    table = Table("iceberg", tmp_path, {} if name is None else {"catalog.name": name})
    table.write("id long", [{"id": 1}])
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as connection:
        assert connection.execute("SELECT DISTINCT catalog_name FROM iceberg_tables").fetchall() == [
            (name or "barnabas",)
        ]
