"""Connect's transforms on the examples of Kafka's and Confluent's documentation, with schemas and without."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from barnabas.spark.connect import data
from barnabas.spark.connect.data import DataError, Header, Record, Schema
from barnabas.spark.connect.transforms.table import PACKAGE, TRANSFORMS, chain_of


def apply(record: Record, name: str, **settings: str) -> Record | None:
    """Apply one transform; `_` in the name of a setting stands for a dot, `__` for an underscore."""
    given = {key.replace("_", "."): value for key, value in settings.items()}
    config = {"transforms": "t", "transforms.t.type": PACKAGE + name} | {
        f"transforms.t.{k}": v for k, v in given.items()
    }
    chain, problems = chain_of(config)
    assert not problems, problems
    return chain(record)


def of(value: Any, schema: Schema | None = None, **more: Any) -> Record:
    return Record("orders", value, schema, **more)


def changed(record: Record, name: str, **settings: str) -> Record:
    made = apply(record, name, **settings)
    assert made is not None
    return made


PERSON = data.struct(("id", data.INT64), ("name", data.OPTIONAL_STRING), name="Person")


def test_flatten_names_nested_fields_by_their_paths() -> None:
    """Confluent's example of Flatten."""
    nested = {"content": {"id": 42, "name": {"first": "David", "middle": None, "last": "Wong"}}}
    flat = {"content.id": 42, "content.name.first": "David", "content.name.middle": None, "content.name.last": "Wong"}
    assert changed(of(nested), "Flatten$Value").value == flat
    names = data.struct(("first", data.STRING), ("middle", data.OPTIONAL_STRING), ("last", data.STRING), optional=True)
    schema = data.struct(("content", data.struct(("id", data.INT32), ("name", names))))
    made = changed(of(nested, schema), "Flatten$Value", delimiter="_")
    assert made.value == {key.replace(".", "_"): value for key, value in flat.items()}
    assert made.value_schema == data.struct(
        ("content_id", data.INT32),
        ("content_name_first", data.OPTIONAL_STRING),
        ("content_name_middle", data.OPTIONAL_STRING),
        ("content_name_last", data.OPTIONAL_STRING),
    )


def test_insert_field_adds_where_a_record_came_from() -> None:
    record = of({"id": 1}, data.struct(("id", data.INT64)), partition=3, offset=41, timestamp=1_000)
    made = changed(
        record, "InsertField$Value", topic_field="t!", partition_field="p", offset_field="o", timestamp_field="at"
    )
    assert made.value == {"id": 1, "t": "orders", "p": 3, "o": 41, "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}
    assert made.value_schema is not None
    assert [(each.name, each.schema) for each in made.value_schema.fields[1:]] == [
        ("t", data.STRING),
        ("p", data.INT32.as_optional()),
        ("o", data.INT64.as_optional()),
        ("at", data.timestamp(optional=True)),
    ]
    plain = changed(
        of({"id": 1}, timestamp=1_000),
        "InsertField$Value",
        static_field="from",
        static_value="shop",
        timestamp_field="at",
    )
    assert plain.value == {"id": 1, "from": "shop", "at": 1_000}
    assert changed(of(None), "InsertField$Value", topic_field="t").value is None


def test_replace_field_keeps_drops_and_renames() -> None:
    made = changed(of({"foo": 1, "bar": 2, "baz": 3}), "ReplaceField$Value", exclude="baz", renames="foo:c1,bar:c2")
    assert made.value == {"c1": 1, "c2": 2}
    made = changed(of({"id": 1, "name": "a"}, PERSON), "ReplaceField$Value", include="id", renames="id:number")
    assert made.value == {"number": 1}
    assert made.value_schema == data.struct(("number", data.INT64), name="Person")


def test_mask_field_puts_the_empty_value_of_the_type() -> None:
    value = {
        "s": "x",
        "n": 5,
        "f": 1.5,
        "b": True,
        "y": b"1",
        "at": datetime.now(UTC),
        "d": Decimal("1.5"),
        "nothing": None,
    }
    made = changed(of(value), "MaskField$Value", fields=",".join(value))
    assert made.value == {
        "s": "", "n": 0, "f": 0.0, "b": False, "y": b"", "at": datetime(1970, 1, 1, tzinfo=UTC), "d": Decimal(0),
        "nothing": None,
    }  # fmt: skip
    made = changed(of({"phone": "1-222", "salary": 100}), "MaskField$Value", fields="phone", replacement="***-***")
    assert made.value == {"phone": "***-***", "salary": 100}
    with pytest.raises(DataError, match="'x' is not of type int"):
        changed(of({"n": 1}), "MaskField$Value", fields="n", replacement="x")


def test_value_to_key_and_extract_field_make_a_plain_key() -> None:
    """The pair of transforms of Kafka's quickstarts: a key from a field of the value."""
    keyed = changed(of({"id": 7, "name": "a"}, PERSON), "ValueToKey", fields="id")
    assert (keyed.key, keyed.key_schema) == ({"id": 7}, data.struct(("id", data.INT64)))
    plain = changed(keyed, "ExtractField$Key", field="id")
    assert (plain.key, plain.key_schema) == (7, data.INT64)
    with pytest.raises(DataError, match="field does not exist: other"):
        changed(of({"id": 7}, data.struct(("id", data.INT64))), "ValueToKey", fields="other")


def test_extract_field_reaches_into_structs_with_the_second_syntax() -> None:
    value = {"a": {"b.c": 5}, "a.b": 6}
    assert changed(of(value), "ExtractField$Value", field="a.b").value == 6
    assert changed(of(value), "ExtractField$Value", field="a.`b.c`", field_syntax_version="V2").value == 5


def test_hoist_field_wraps_any_value() -> None:
    assert changed(of(1), "HoistField$Value", field="line").value == {"line": 1}
    made = changed(of("x", data.STRING), "HoistField$Value", field="line")
    assert (made.value, made.value_schema) == ({"line": "x"}, data.struct(("line", data.STRING)))


def test_cast_changes_fields_and_whole_values() -> None:
    value = {"a": "12", "b": 300, "c": 1, "d": 2.9, "e": True, "f": date(2026, 1, 2)}
    spec = "a:int32,b:int8,c:boolean,d:int64,e:string,f:int32"
    made = changed(of(value), "Cast$Value", spec=spec)
    assert made.value == {"a": 12, "b": 44, "c": True, "d": 2, "e": "true", "f": 20_455}
    made = changed(of({"id": 1, "name": "5"}, PERSON), "Cast$Value", spec="name:float64")
    assert made.value == {"id": 1, "name": 5.0}
    assert made.value_schema == data.struct(
        ("id", data.INT64), ("name", Schema("float64", optional=True)), name="Person"
    )
    assert changed(of(None, key="17", key_schema=data.STRING), "Cast$Key", spec="int64").key == 17
    with pytest.raises(DataError, match="field a: 'x' is not a number of type int32"):
        changed(of({"a": "x"}), "Cast$Value", spec="a:int32")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("string", "2017-06-08"),
        ("unix", 1_496_931_600_000),
        ("Timestamp", datetime(2017, 6, 8, 14, 20, tzinfo=UTC)),
        ("Date", date(2017, 6, 8)),
    ],
)
def test_timestamp_converter_turns_a_unix_time_into_every_form(target: str, expected: object) -> None:
    schema = data.struct(("ts", data.INT64.as_optional()))
    made = changed(
        of({"ts": 1_496_931_600_000}, schema),
        "TimestampConverter$Value",
        field="ts",
        target_type=target,
        format="yyyy-MM-dd",
    )
    assert made.value == {"ts": expected}
    assert made.value_schema is not None and made.value_schema.fields[0].schema.optional


def test_timestamp_converter_reads_texts_and_other_units() -> None:
    settings = {
        "field": "ts",
        "target_type": "unix",
        "format": "yyyy-MM-dd HH:mm:ss.SSS XXX",
        "unix_precision": "seconds",
    }
    assert changed(of({"ts": "2017-06-08 16:20:00.000 +02:00"}), "TimestampConverter$Value", **settings).value == {
        "ts": 1_496_931_600
    }
    with pytest.raises(DataError, match="is not of the form"):
        changed(of({"ts": "yesterday"}), "TimestampConverter$Value", **settings)


def test_routers_name_topics() -> None:
    assert changed(of(1), "RegexRouter", regex="or(.*)", replacement="new-$1").topic == "new-ders"
    assert changed(of(1), "RegexRouter", regex="or", replacement="x").topic == "orders"
    made = changed(
        of(1, timestamp=1_496_931_600_000),
        "TimestampRouter",
        topic_format="foo-${timestamp}",
        timestamp_format="yyyyMM",
    )
    assert made.topic == "foo-201706"
    assert changed(of(1, timestamp=0), "TimestampRouter").topic == "orders-19700101"


def test_headers_come_and_go() -> None:
    record = of({"id": 1, "name": "a"}, PERSON, headers=(Header("old", 1),))
    moved = changed(record, "HeaderFrom$Value", fields="id,name", headers="key,who", operation="move")
    assert moved.value == {} and moved.value_schema == data.struct(name="Person")
    assert moved.headers[1:] == (Header("key", 1, data.INT64), Header("who", "a", data.OPTIONAL_STRING))
    assert changed(moved, "DropHeaders", headers="old,who").headers == (Header("key", 1, data.INT64),)
    assert changed(of(1), "InsertHeader", header="n", value_literal="5").headers == (Header("n", 5, data.INT64),)


def test_schema_metadata_is_set() -> None:
    made = changed(of({"id": 1}, PERSON), "SetSchemaMetadata$Value", schema_name="order", schema_version="2")
    assert made.value_schema is not None and (made.value_schema.name, made.value_schema.version) == ("order", 2)
    with pytest.raises(DataError, match="needs records with schemas"):
        changed(of({"id": 1}), "SetSchemaMetadata$Value", schema_name="order")


def test_filter_drops_the_records_of_its_predicate() -> None:
    config = {
        "transforms": "drop",
        "transforms.drop.type": PACKAGE + "Filter",
        "transforms.drop.predicate": "p",
        "predicates": "p",
        "predicates.p.type": PACKAGE + "predicates.RecordIsTombstone",
    }
    chain, problems = chain_of(config)
    assert not problems
    assert chain(of(None)) is None and chain(of(1)) is not None
    chain, problems = chain_of(config | {"transforms.drop.negate": "true"})
    assert chain(of(None)) is not None and chain(of(1)) is None


def test_any_transform_takes_a_predicate() -> None:
    config = {
        "transforms": "mask",
        "transforms.mask.type": PACKAGE + "MaskField$Value",
        "transforms.mask.fields": "card",
        "transforms.mask.predicate": "secret",
        "predicates": "secret,marked",
        "predicates.secret.type": PACKAGE + "predicates.TopicNameMatches",
        "predicates.secret.pattern": "ord.*",
        "predicates.marked.type": PACKAGE + "predicates.HasHeaderKey",
        "predicates.marked.name": "h",
    }
    chain, problems = chain_of(config)
    assert not problems
    found = chain(of({"card": "4711"}))
    assert found is not None and found.value == {"card": ""}
    chain, _ = chain_of(config | {"transforms.mask.predicate": "marked"})
    found = chain(of({"card": "4711"}, headers=(Header("other", 1),)))
    assert found is not None and found.value == {"card": "4711"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transforms.t.type": "com.example.Mine"}, "no transform 'com.example.Mine' here"),
        ({"transforms.t.type": PACKAGE + "MaskField"}, "needs a side: use"),
        ({"transforms.t.type": PACKAGE + "MaskField$Value"}, "transforms.t.fields: is missing"),
        (
            {
                "transforms.t.type": PACKAGE + "MaskField$Value",
                "transforms.t.fields": "a",
                "transforms.t.replacment": "x",
            },
            "did you mean replacement",
        ),
        ({"transforms.t.type": PACKAGE + "Filter", "transforms.t.predicate": "p"}, "predicates does not name 'p'"),
        ({"transforms.t.type": PACKAGE + "Filter", "transforms.u.type": "x"}, "transforms does not name 'u'"),
        (
            {"transforms.t.type": PACKAGE + "Cast$Value", "transforms.t.spec": "a:date"},
            "'date' is not a type to cast to",
        ),
        (
            {"transforms.t.type": PACKAGE + "TimestampRouter", "transforms.t.timestamp.format": "YYYY-ww"},
            "letter Y is not supported",
        ),
    ],
)
def test_settings_that_cannot_be_honoured_are_named(settings: dict[str, str], message: str) -> None:
    _, problems = chain_of({"transforms": "t"} | settings)
    assert problems and message in str(problems[0])


def test_no_transform_changes_a_tombstone_into_an_error() -> None:
    """A tombstone passes the transforms of values that have no fields to change."""
    settings = {
        "Cast": {"spec": "a:int8"},
        "MaskField": {"fields": "a"},
        "ReplaceField": {"exclude": "a"},
        "Flatten": {},
    }
    for name, given in settings.items():
        assert name in TRANSFORMS
        assert changed(of(None), f"{name}$Value", **given).value is None
