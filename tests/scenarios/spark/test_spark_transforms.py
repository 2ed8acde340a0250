"""Connect's transforms on real DataFrames: with rows, with nulls, and with a DataFrame that they do not fit."""

from datetime import date, datetime
from decimal import Decimal

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col

from barnabas.spark.pipelines.connect_config import from_connect
from barnabas.spark.pipelines.transforms import (
    Cast,
    DropHeaders,
    ExtractField,
    Filter,
    Flatten,
    HeaderFrom,
    HoistField,
    InsertField,
    InsertHeader,
    MaskField,
    RegexRouter,
    ReplaceField,
    Route,
    TimestampConverter,
    TimestampRouter,
    Transform,
    TransformError,
    ValueToKey,
    chain,
    has_header_key,
    record_is_tombstone,
)

SCHEMA = (
    "key binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>, value struct<id: int, name: string, amount: double, at: long, "
    "tags: array<string>, address: struct<city: string, zip: string>>"
)


@pytest.fixture(scope="module")
def records(spark: SparkSession) -> DataFrame:
    """An order and a tombstone."""
    at = datetime(2024, 5, 6, 23, 30, 0, 250_000)
    order = (7, "Ann", 12.5, 1_715_038_200_250, ["a", "b"], ("Bonn", "53111"))
    rows = [
        (b"k1", "raw-orders", 2, 41, at, [("trace", b"t1")], order),
        (b"k2", "raw-orders", 2, 42, at, None, None),
    ]
    return spark.createDataFrame(rows, SCHEMA).coalesce(1).cache()


def values(df: DataFrame) -> list[Row | None]:
    return [row.value for row in df.collect()]


def test_fields_are_inserted_replaced_masked_and_cast_inside_a_struct_and_a_tombstone_stays_one(
    records: DataFrame,
) -> None:
    steps = chain(
        InsertField(topic="_topic", offset="_offset", static={"source": "shop"}, of="value"),
        ReplaceField(exclude=["tags", "address.zip"], renames={"name": "customer", "address.city": "town"}, of="value"),
        MaskField(["customer", "amount"], of="value"),
        Cast({"id": "string", "_offset": "int32", "amount": "decimal(6,2)"}, of="value"),
    )
    order, tombstone = values(records.transform(steps))
    assert tombstone is None
    assert order is not None
    assert order.asDict(recursive=True) == {
        "id": "7",
        "customer": "",
        "amount": Decimal("0.00"),
        "at": 1_715_038_200_250,
        "address": {"town": "Bonn"},
        "_topic": "raw-orders",
        "_offset": 41,
        "source": "shop",
    }


def test_the_same_transforms_work_on_the_columns_of_a_dataframe(records: DataFrame) -> None:
    flat = records.select("value.*").transform(ReplaceField(include=["id", "address", "tags"])).transform(Flatten("_"))
    assert flat.columns == ["id", "tags", "address_city", "address_zip"]
    masked = flat.transform(MaskField(["address_city"], replacement="***")).transform(
        MaskField(["id"], replacement="-1")
    )
    masked = masked.transform(MaskField(["tags"]))
    assert [tuple(row) for row in masked.collect()] == [(-1, [], "***", "53111"), (None, None, None, None)]
    dotted = records.select("value.*").transform(Flatten()).transform(MaskField(["address.city"]))
    assert dotted.select("`address.city`").first() == ("",)


def test_a_value_that_does_not_fit_its_new_type_is_null_with_on_error_null(records: DataFrame) -> None:
    cast = records.transform(Cast({"name": "int32", "address.zip": "int64"}, of="value", on_error="NULL"))
    order = values(cast)[0]
    assert order is not None
    assert (order.name, order.address.zip) == (None, 53111)
    whole = records.select("timestamp").transform(Cast("int64", of="timestamp"))
    assert whole.first() == (1_715_038_200_250,)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_times_are_converted_in_utc_in_every_time_zone_of_the_session(
    records: DataFrame, spark: SparkSession, zone: str
) -> None:
    pattern = "yyyy-MM-dd HH:mm:ss.SSS"
    steps = [
        *[TimestampConverter("Timestamp", name) for name in ("text", "back", "day")],
        *[TimestampConverter("string", name, format=pattern) for name in ("text", "back")],
        TimestampConverter("Timestamp", "back", format=pattern),
        TimestampConverter("unix", "back", unix_precision="microseconds"),
        TimestampConverter("Date", "day"),
        TimestampConverter("Time", "of_day"),
        TimestampRouter(timestamp_format="yyyy-MM"),
    ]
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        at = col("value.at")
        forms = records.select("timestamp", "topic", *[at.alias(name) for name in ("text", "back", "day", "of_day")])
        row = forms.transform(chain(*steps)).drop("timestamp").first()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert row is not None
    assert row.asDict() == {
        "topic": "raw-orders-2024-05",
        "text": "2024-05-06 23:30:00.250",
        "back": 1_715_038_200_250_000,
        "day": date(2024, 5, 6),
        "of_day": 84_600_250,
    }


def test_nanoseconds_become_the_microsecond_that_they_are_in(spark: SparkSession) -> None:
    """A float does not have all their digits: times in the last tenth of a microsecond became the next one."""
    given = [1_763_356_000_123_456_001, 1_763_356_000_123_456_950, 1_763_355_999_999_999_999, -1]
    frame = spark.createDataFrame([(number,) for number in given], "at long")
    made = frame.transform(
        chain(
            TimestampConverter("Timestamp", "at", unix_precision="nanoseconds"),
            TimestampConverter("unix", "at", unix_precision="microseconds"),
        )
    )
    assert [row["at"] for row in made.collect()] == [number // 1000 for number in given]


def test_clock_changes_in_the_time_zone_of_the_session_change_no_time(spark: SparkSession) -> None:
    """There and back again: `'Z'` in quotes is a letter, and Z is the zone."""
    text = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
    moments = {
        "2026-03-08T02:30:00.123456Z": "Sun 02 o'clock AM +0000 UTC",  # an hour that New York does not have
        "2026-11-01T05:30:00.000000Z": "Sun 05 o'clock AM +0000 UTC",
        "2026-11-01T06:30:00.000000Z": "Sun 06 o'clock AM +0000 UTC",  # the same time as the last one in New York
        "1969-12-31T23:59:59.999999Z": "Wed 11 o'clock PM +0000 UTC",
    }
    micros = {each: round(datetime.fromisoformat(each).timestamp() * 1_000_000) for each in moments}
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        values = ", ".join(f"({number}, '{each}')" for each, number in micros.items())
        given = spark.sql(f"SELECT timestamp_micros(us) timestamp, 't' topic, read FROM VALUES {values} AS v(us, read)")
        given = given.selectExpr("*", "timestamp written", "timestamp zoned", "to_timestamp_ntz(left(read, 26)) clock")
        rows = given.transform(
            chain(
                TimestampConverter("string", "written", format=text),
                TimestampConverter("string", "zoned", format="EEE hh 'o''clock' a Z z"),
                TimestampConverter("unix", "read", format=text, unix_precision="microseconds"),
                TimestampConverter("unix", "clock", unix_precision="microseconds"),
                TimestampRouter(timestamp_format="yyyyMMddHH"),
            )
        ).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert {row.written: row.zoned for row in rows} == moments
    assert {row.written: row.read for row in rows} == {row.written: row.clock for row in rows} == micros
    assert [row.topic for row in rows] == ["t-2026030802", "t-2026110105", "t-2026110106", "t-1969123123"]


def test_keys_come_from_values_and_single_fields_are_extracted_and_hoisted(records: DataFrame) -> None:
    keyed = records.transform(ValueToKey(["id", "address.city"]))
    assert [row.key.asDict() for row in keyed.collect()] == [{"id": 7, "city": "Bonn"}, {"id": None, "city": None}]
    one = keyed.transform(ExtractField("id", of="key")).transform(ExtractField("address.city"))
    one = one.transform(HoistField("city"))
    assert [(row.key, row.value.city) for row in one.collect()] == [(7, "Bonn"), (None, None)]


def test_records_are_filtered_by_predicate_and_routed_by_name_and_by_content(records: DataFrame) -> None:
    assert records.transform(Filter(record_is_tombstone())).count() == 1
    assert records.transform(Filter("value.amount > 10")).count() == 1  # a record for which the predicate is null stays
    assert records.transform(Filter(has_header_key("trace"), negate=True)).count() == 1
    routed = records.transform(RegexRouter("raw-(.*)", "clean.$1"))
    assert {row.topic for row in routed.collect()} == {"clean.orders"}
    partly = records.transform(RegexRouter("raw", "clean"))
    assert {row.topic for row in partly.collect()} == {"raw-orders"}
    by_content = records.transform(Route({"big": "value.amount > 100", "small": col("value.amount") <= 100}))
    assert [row.topic for row in by_content.collect()] == ["small", "raw-orders"]
    rest = records.drop("topic").transform(Route({"big": "value.amount > 100"}, otherwise="rest"))
    assert [row.topic for row in rest.collect()] == ["rest", "rest"]


def test_headers_are_added_dropped_and_taken_from_fields(records: DataFrame) -> None:
    more = records.transform(InsertHeader("env", "test")).transform(
        HeaderFrom(["id", "address.city"], ["order-id", "city"], operation="move")
    )
    order, tombstone = more.collect()
    assert [(h.key, h.value) for h in order.headers] == [
        ("trace", b"t1"),
        ("env", b"test"),
        ("order-id", b"7"),
        ("city", b"Bonn"),
    ]
    assert "id" not in order.value
    assert (tombstone.headers[0].key, tombstone.headers[0].value) == ("env", b"test")
    fewer = more.transform(DropHeaders(["env", "city", "order-id"])).collect()
    assert [[h.key for h in row.headers] for row in fewer] == [["trace"], []]


@pytest.mark.parametrize(
    ("transform", "complaint"),
    [
        (MaskField(["crad"], of="value"), "MaskField: no field 'crad'; there are id, name, amount"),
        (MaskField(["address"], of="value"), "field 'address' is struct<"),
        (MaskField(["id"], replacement="x", of="value"), "field 'id' is int, and 'x' is not"),
        (MaskField(["key"], of="key"), "column 'key' is binary, which has no fields: decode it first"),
        (ReplaceField(renames={"id": "name"}, of="value"), "more than one field would be named 'name'"),
        (ReplaceField(include=["x"], of="value"), "no field 'x' to include"),
        (TimestampConverter("Date", "name", of="value"), "field 'name' is a string, which needs a format"),
        (TimestampConverter("Date", "amount", of="value"), "field 'amount' is double, not a time"),
        (HeaderFrom(["address"], ["a"]), "field 'address' is struct<"),
        (InsertField(of="value"), "no field to insert"),
        (ValueToKey(["nope"]), "ValueToKey: no field 'nope'"),
        (Cast("int32"), "needs `of`"),
    ],
)
def test_a_transform_that_does_not_fit_says_which_field_before_anything_runs(
    records: DataFrame, transform: Transform, complaint: str
) -> None:
    with pytest.raises(TransformError, match=complaint.replace("(", r"\(").replace("`", ".")):
        records.transform(transform)


def test_the_transforms_of_a_connector_are_made_from_its_settings(records: DataFrame) -> None:
    package = "org.apache.kafka.connect.transforms."
    config = {
        "name": "shop-sink",
        "transforms": "gone,mask,types,key,id,when,route,tag",
        "transforms.gone.type": package + "Filter",
        "transforms.gone.predicate": "empty",
        "predicates": "empty",
        "predicates.empty.type": package + "predicates.RecordIsTombstone",
        "transforms.mask.type": package + "MaskField$Value",
        "transforms.mask.fields": "name, amount",
        "transforms.types.type": package + "Cast$Value",
        "transforms.types.spec": "amount:int32",
        "transforms.key.type": package + "ValueToKey",
        "transforms.key.fields": "id",
        "transforms.id.type": package + "ExtractField$Key",
        "transforms.id.field": "id",
        "transforms.when.type": package + "TimestampConverter$Value",
        "transforms.when.field": "at",
        "transforms.when.target.type": "string",
        "transforms.when.format": "yyyyMMdd",
        "transforms.route.type": package + "RegexRouter",
        "transforms.route.regex": "raw-(.*)",
        "transforms.route.replacement": "$1",
        "transforms.tag.type": package + "InsertHeader",
        "transforms.tag.header": "by",
        "transforms.tag.value.literal": "connect",
    }
    (row,) = records.transform(from_connect(config)).collect()
    assert (row.topic, row.key, row.value.name, row.value.amount, row.value.at) == ("orders", 7, "", 0, "20240506")
    assert row.headers[-1].key == "by"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"type": "MaskField$Value"}, "transforms.x.fields is missing"),
        ({"type": "MaskField$Value", "fields": "a", "feilds": "b"}, "not supported here: transforms.x.feilds"),
        ({"type": "Nonesuch"}, "no transform 'Nonesuch'"),
        ({"type": "Filter"}, "Filter needs one of"),
        ({"type": "Flatten$Value", "predicate": "p"}, "only Filter takes a predicate"),
        ({"type": "ReplaceField$Value", "renames": "a"}, "'a' is not of the form a:b"),
    ],
)
def test_unsupported_settings_of_a_connector_are_refused_by_name(settings: dict[str, str], complaint: str) -> None:
    config = {"transforms": "x"} | {f"transforms.x.{name}": value for name, value in settings.items()}
    with pytest.raises(TransformError, match=complaint):
        from_connect(config)
