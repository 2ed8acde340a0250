"""Names of fields in JSON: which fields may be columns, and which records have a field that may not."""

import json
import re

import pytest
from pyspark.sql.types import StringType, StructType

from barnabas.spark.tables.inference import STRUCT_LEVELS_MAX, row_type
from barnabas.spark.tables.names import Admitted, Check, Rules, Votes, admitted


def row(text: str) -> StructType:
    """`a int, s {b int}, l [{b int}]`, a text like Spark's description of JSON."""
    for short, long in (("{", "OBJECT<"), ("}", ">"), ("[", "ARRAY<"), ("]", ">"), ("int", "BIGINT")):
        text = text.replace(short, long)
    fields = re.sub(r"([`.\w]+) (OBJECT|ARRAY|BIGINT)", r"\1: \2", text)
    return row_type(f"OBJECT<{fields}>")


@pytest.mark.parametrize(
    ("wanted", "known", "columns"),
    [
        ("a int, A int", "a int", "a int"),
        ("A int, a int, z int", "z int, a int", "a int, z int"),
        ("s {x int, X int}, _KEY int", "s {x int}", "s {x int}"),
        ("s {X int}, l [{x int, X int}]", "l [{X int}]", "s {X int}, l [{X int}]"),
        ("s {`` int}, n int", "", "n int"),
    ],
)  # fmt: skip
def test_an_existing_column_keeps_its_name(wanted: str, known: str, columns: str) -> None:
    found = admitted(row(wanted), row(known), Rules())
    assert (found.columns.simpleString(), found.contested) == (row(columns).simpleString(), frozenset())
    assert found.refused is (wanted != columns)


def test_new_names_that_differ_by_case_are_put_to_a_vote() -> None:
    wanted = row("ID int, id int, s [{N int, n int}]")
    found = admitted(wanted, StructType(), Rules())
    assert found.contested == {("ID",), ("id",), ("s", "element", "N"), ("s", "element", "n")}
    values = [b'{"id": 1, "s": [{"N": 1}]}', b'{"id": 1, "ID": 2, "s": [{"n": null}]}', b"no json", None]
    votes = Votes(found.contested).of(values)
    assert votes == {("ID",): 1, ("id",): 2, ("s", "element", "N"): 1, ("s", "element", "n"): 0}
    assert admitted(wanted, StructType(), Rules(), votes) == Admitted(row("id int, s [{N int}]"), refused=True)


def test_one_record_does_not_use_up_the_limit_of_fields() -> None:
    rules = Rules(fields_max=4)
    known = row("a int, s {b int}")
    many = admitted(row("a int, s {b int, c int, d int}, x int, y int"), known, rules)
    assert (many.columns, many.is_full) == (known, True), "either would fit, and both are too many"
    wide = admitted(row("a int, s {b int}, w {c int, d int, e int}"), known, rules)
    assert (wide.columns["w"].dataType, wide.refused) == (StringType(), False)
    reason = Check(known, rules, is_full=True).reason(b'{"x": 1}')
    assert reason == "field 'x' is one of too many new fields: the table has 3, and gets no more than 4"


def test_a_record_with_a_value_in_a_field_without_a_column_is_refused() -> None:
    check = Check(row("id int, s {x int}, l [{x int}]"), Rules())
    for fine in (
        b'{"id": 1}',
        b'{"ID": null, "s": {"X": []}, "l": [{"y": {"z": null}}]}',
        b"\xff",
        None,
        b'"text"',
        b'{"id": 1e999}',
    ):
        assert check.reason(fine) is None, fine
    assert (
        check.reason(b'{"l": [{"x": 1}, {"X": 1}]}') == "field 'X' of 'l.element' differs only by case from column 'x'"
    )
    assert check.reason(b"{") == "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    assert check.reason(b"[" * 100_000) == "objects or arrays too deep within each other"


def test_fields_within_rows_of_changes_are_checked() -> None:
    check = Check(row("id int"), Rules(), is_envelope=True)
    for wrapped in (lambda change: change, lambda change: {"schema": {"ID": 1}, "payload": change}):
        fine = {"before": {"id": 1}, "after": None, "source": {"ID": 1}}
        assert check.reason(json.dumps(wrapped(fine)).encode()) is None
        assert "differs only by case" in (check.reason(json.dumps(wrapped({"after": {"ID": 1}})).encode()) or "")


def test_a_dot_is_a_path_in_iceberg_only() -> None:
    wanted, known = row("`a.b` int, a {b int}, `a.element` int"), row("a {b int}")
    assert admitted(wanted, known, Rules()).columns.names == ["a.b", "a", "a.element"]
    rules = Rules(dots_are_paths=True)
    assert admitted(wanted, known, rules).columns.names == ["a", "a.element"]
    assert "is the same column as a field within an object" in (Check(known, rules).reason(b'{"A.B": 1}') or "")


def test_deep_objects_are_strings() -> None:
    found = row_type("OBJECT<a: " * 900 + "BIGINT" + ">" * 900 + "")
    text = found.simpleString()
    assert text.count("struct") == STRUCT_LEVELS_MAX
    assert text.count("string") == 1
    beside = row_type("OBJECT<a: " + "ARRAY<" * 900 + "`>`" + ">" * 900 + ", ``: BIGINT, `b``c`: OBJECT<`<`: STRING>>")
    assert beside.names == ["a", "", "b`c"]
