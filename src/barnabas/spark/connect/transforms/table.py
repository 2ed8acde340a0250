"""The transforms and predicates of a connector's file: tables of kinds with their options, and the chain. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from barnabas.base.names import nearest
from barnabas.spark.connect import java_time
from barnabas.spark.connect.data import DataError, Record
from barnabas.spark.connect.options import (
    Option,
    Problem,
    Row,
    Values,
    Without,
    flag,
    names,
    number,
    one_of,
    pairs,
    parse,
)
from barnabas.spark.connect.transforms import fields, records, times
from barnabas.spark.connect.transforms.base import Side, Transform, steps_of

PACKAGE: Final = "org.apache.kafka.connect.transforms."

_NULLS: Final = Without(
    "replace.null.with.default",
    "a null of a field with a default is its default already when the converter has read it",
)


@dataclass(frozen=True)
class Kind:
    """A kind of transform."""

    #: Whether it is one of a key or a value (`Name$Key`, `Name$Value`), or of the record (`Name`).
    has_sides: bool
    rows: tuple[Row, ...]
    make: Callable[[Side, Values], Transform]


@dataclass(frozen=True)
class PredicateKind:
    rows: tuple[Row, ...]
    make: Callable[[Values], records.Predicate]


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text.replace("(?<", "(?P<") if re.search(r"\(\?<[A-Za-z]", text) else text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None


def _pattern(text: str) -> str:
    return java_time.check(text)


def _spec(text: str) -> dict[str, str]:
    found = pairs(text) if ":" in text else {"": text.strip()}
    for kind in found.values():
        if kind not in fields.CAST_TYPES:
            raise ValueError(f"{kind!r} is not a type to cast to: use {', '.join(fields.CAST_TYPES)}")
    return found


_SYNTAX: Final = Option("field.syntax.version", "`V2`: a path with dots reaches into structs", one_of("V1", "V2"), "V1")


def _path(values: Values, name: str = "field") -> tuple[str, ...]:
    given = values[name]
    if not given:
        return ()
    return tuple(steps_of(given)) if values["field.syntax.version"] == "V2" else (given,)


def _header_from(side: Side, v: Values) -> Transform:
    if len(v["fields"]) != len(v["headers"]):
        raise ValueError("fields and headers must have as many names as each other")
    return records.HeaderFrom(side, v["fields"], v["headers"], moves=v["operation"] == "move")


def _insert_field(side: Side, v: Values) -> Transform:
    if v["static.field"] is not None and v["static.value"] is None:
        raise ValueError("static.field needs static.value")
    places = {what: v[f"{what}.field"] for what in ("topic", "partition", "offset", "timestamp", "static")}
    if not any(places.values()):
        raise ValueError(
            "no field to insert is named: set topic.field, partition.field, offset.field, timestamp.field or static.field"
        )
    return fields.InsertField(side, **places, static_value=v["static.value"])


def _timestamp_converter(side: Side, v: Values) -> Transform:
    if v["target.type"] == "string" and not v["format"]:
        raise ValueError("target.type=string needs a format, such as yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
    return times.TimestampConverter(side, v["target.type"], _path(v), v["format"] or None, v["unix.precision"])


TRANSFORMS: Final[Mapping[str, Kind]] = {
    "Cast": Kind(
        True,
        (Option("spec", "`field:type,…`, or a type for the whole key or value", _spec, needed=True), _NULLS),
        lambda side, v: fields.Cast(side, v["spec"]),
    ),
    "DropHeaders": Kind(
        False,
        (Option("headers", "names of the headers to drop", names, needed=True),),
        lambda _, v: records.DropHeaders(v["headers"]),
    ),
    "ExtractField": Kind(
        True,
        (Option("field", "the field that replaces the struct", needed=True), _SYNTAX, _NULLS),
        lambda side, v: fields.ExtractField(side, _path(v)),
    ),
    "Filter": Kind(False, (), lambda _, __: records.Filter()),
    "Flatten": Kind(
        True,
        (Option("delimiter", "between the names of nested fields", default="."),),
        lambda side, v: fields.Flatten(side, v["delimiter"]),
    ),
    "HeaderFrom": Kind(
        True,
        (
            Option("fields", "fields to copy or move", names, needed=True),
            Option("headers", "names of their headers, in the same order", names, needed=True),
            Option("operation", "`copy` or `move`", one_of("move", "copy"), needed=True),
            _NULLS,
        ),
        _header_from,
    ),
    "HoistField": Kind(
        True,
        (Option("field", "the name of the only field of the new struct", needed=True),),
        lambda side, v: fields.HoistField(side, v["field"]),
    ),
    "InsertField": Kind(
        True,
        (
            *(
                Option(f"{what}.field", f"the field that gets the record's {what}")
                for what in ("topic", "partition", "offset", "timestamp")
            ),
            Option("static.field", "the field that gets `static.value`"),
            Option("static.value", "the text for it"),
            _NULLS,
        ),
        _insert_field,
    ),
    "InsertHeader": Kind(
        False,
        (
            Option("header", "the header's name", needed=True),
            Option("value.literal", "its value: a number, a boolean or JSON if it is one, else text", needed=True),
        ),
        lambda _, v: records.InsertHeader(v["header"], v["value.literal"]),
    ),
    "MaskField": Kind(
        True,
        (
            Option("fields", "fields that get the empty value of their type", names, needed=True),
            Option("replacement", "a value for texts and numbers instead"),
            _NULLS,
        ),
        lambda side, v: fields.MaskField(side, v["fields"], v["replacement"]),
    ),
    "RegexRouter": Kind(
        False,
        (
            Option("regex", "matches the whole name of the topic", _regex, needed=True),
            Option("replacement", "the new name; `$1` is the first group", needed=True),
        ),
        lambda _, v: records.RegexRouter(v["regex"], v["replacement"]),
    ),
    "ReplaceField": Kind(
        True,
        (
            Option("include", "fields to keep", names, ""),
            Option("exclude", "fields to leave out; wins over `include`", names, ""),
            Option("whitelist", "former name of `include`", names, ""),
            Option("blacklist", "former name of `exclude`", names, ""),
            Option("renames", "`old:new,…`", pairs, ""),
            _NULLS,
        ),
        lambda side, v: fields.ReplaceField(
            side, v["include"] or v["whitelist"], v["exclude"] or v["blacklist"], v["renames"]
        ),
    ),
    "SetSchemaMetadata": Kind(
        True,
        (
            Option("schema.name", "the new name of the schema"),
            Option("schema.version", "its new version", number),
            _NULLS,
        ),
        lambda side, v: fields.SetSchemaMetadata(side, v["schema.name"], v["schema.version"]),
    ),
    "TimestampConverter": Kind(
        True,
        (
            Option("target.type", "string, unix, Date, Time or Timestamp", one_of(*times.TARGETS), needed=True),
            Option("field", "the field; without it the whole key or value", default=""),
            Option("format", "Java's pattern of a text, in UTC", _pattern, ""),
            Option("unix.precision", "unit of a unix time", one_of(*times.PRECISIONS), "milliseconds"),
            _SYNTAX,
            _NULLS,
        ),
        _timestamp_converter,
    ),
    "TimestampRouter": Kind(
        False,
        (
            Option("topic.format", "the new name, with `${topic}` and `${timestamp}`", default="${topic}-${timestamp}"),
            Option("timestamp.format", "Java's pattern of the time, in UTC", _pattern, "yyyyMMdd"),
        ),
        lambda _, v: times.TimestampRouter(v["topic.format"], v["timestamp.format"]),
    ),
    "ValueToKey": Kind(
        False,
        (Option("fields", "fields of the value that become the key", names, needed=True), _NULLS),
        lambda _, v: fields.ValueToKey("Value", v["fields"]),
    ),
}

PREDICATES: Final[Mapping[str, PredicateKind]] = {
    "HasHeaderKey": PredicateKind(
        (Option("name", "a header's name", needed=True),), lambda v: records.HasHeaderKey(v["name"])
    ),
    "RecordIsTombstone": PredicateKind((), lambda _: records.RecordIsTombstone()),
    "TopicNameMatches": PredicateKind(
        (Option("pattern", "matches the whole name of the topic", _regex, needed=True),),
        lambda v: records.TopicNameMatches(v["pattern"]),
    ),
}

_COMMON: Final = (
    Option("type", "the class", needed=True),
    Option("predicate", "the name of a predicate: other records pass unchanged"),
    Option("negate", "the records for which the predicate does not hold", flag, "false"),
)


@dataclass(frozen=True)
class Chain:
    """The transforms of a connector, from first to last."""

    steps: tuple[Transform, ...] = ()

    def __call__(self, record: Record) -> Record | None:
        """Return the changed record, None if one of them drops it. :raises DataError: if one cannot change it."""
        current: Record | None = record
        for step in self.steps:
            if current is None:
                return None
            try:
                current = step(current)
            except (AttributeError, KeyError, TypeError) as error:
                raise DataError(f"{type(step).__name__}: the record does not fit: {error}") from error
        return current


def chain_of(config: Mapping[str, str]) -> tuple[Chain, list[Problem]]:
    """Make the chain that `transforms` names."""
    predicates, problems = _predicates(config)
    steps = []
    for alias in names(config.get("transforms", "")):
        step, found = _step(alias, config, predicates)
        problems += found
        if step is not None:
            steps.append(step)
    for prefix, of in (("transforms.", "transforms"), ("predicates.", "predicates")):
        known = names(config.get(of, ""))
        for name in config:
            if name.startswith(prefix) and name.removeprefix(prefix).split(".")[0] not in known:
                problems.append(Problem(name, f"{of} does not name {name.removeprefix(prefix).split('.')[0]!r}"))
    return Chain(tuple(steps)), problems


def _predicates(config: Mapping[str, str]) -> tuple[dict[str, records.Predicate], list[Problem]]:
    made: dict[str, records.Predicate] = {}
    problems: list[Problem] = []
    for alias in names(config.get("predicates", "")):
        prefix = f"predicates.{alias}."
        given = config.get(prefix + "type", "")
        kind = PREDICATES.get(given.removeprefix(PACKAGE + "predicates."))
        if kind is None:
            problems.append(
                Problem(prefix + "type", f"no predicate {given!r} here: use one of {', '.join(PREDICATES)}")
            )
            continue
        values, found = parse((_COMMON[0], *kind.rows), config, prefix=prefix)
        problems += found or _unknown_options(prefix, config, kind.rows, ("type",))
        if not found:
            made[alias] = kind.make(values)
    return made, problems


def _unknown_options(
    prefix: str, config: Mapping[str, str], rows: Sequence[Row], besides: Sequence[str]
) -> list[Problem]:
    """Return a problem for each option that the transform or predicate does not have."""
    known = (*besides, *(row.name for row in rows))
    problems = []
    for name in config:
        if name.startswith(prefix) and name.removeprefix(prefix) not in known:
            near = nearest(name.removeprefix(prefix), known)
            problems.append(Problem(name, f"is not one of its options{f'; did you mean {near}?' if near else ''}"))
    return problems


def _step(
    alias: str, config: Mapping[str, str], predicates: Mapping[str, records.Predicate]
) -> tuple[Transform | None, list[Problem]]:
    prefix = f"transforms.{alias}."
    given = config.get(prefix + "type", "")
    name, _, side = given.removeprefix(PACKAGE).partition("$")
    kind = TRANSFORMS.get(name)
    if kind is None:
        return None, [Problem(prefix + "type", f"no transform {given!r} here: use one of {', '.join(TRANSFORMS)}")]
    if kind.has_sides and side not in ("Key", "Value"):
        return None, [
            Problem(prefix + "type", f"{given!r} needs a side: use {PACKAGE}{name}$Key or {PACKAGE}{name}$Value")
        ]
    values, problems = parse((*_COMMON, *kind.rows), config, prefix=prefix)
    problems += _unknown_options(prefix, config, kind.rows, [row.name for row in _COMMON])
    if problems:
        return None, problems
    try:
        made = kind.make(cast(Side, side), values)
    except ValueError as error:
        return None, [Problem(f"transforms.{alias}", str(error))]
    if values["predicate"] is not None:
        predicate = predicates.get(values["predicate"])
        if predicate is None:
            return None, [Problem(prefix + "predicate", f"predicates does not name {values['predicate']!r}")]
        return records.Conditional(made, predicate, values["negate"]), []
    if values["negate"]:
        return None, [Problem(prefix + "negate", "needs a predicate")]
    return made, []
