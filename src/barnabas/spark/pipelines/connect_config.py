"""Turns a connector's `transforms` settings, as in its JSON or properties, into transforms of a DataFrame.

    orders.transform(from_connect({
        "transforms": "mask,route",
        "transforms.mask.type": "org.apache.kafka.connect.transforms.MaskField$Value",
        "transforms.mask.fields": "card",
        "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.route.regex": "raw-(.*)", "transforms.route.replacement": "$1"}))

A setting that would be ignored is refused by its name. A predicate goes with Filter; conditional use of other transforms is
refused, since rows of one DataFrame have one schema: say it with `pyspark.sql.functions.when`.
"""

from collections.abc import Callable, Mapping
from typing import Final, cast

from pyspark.sql import Column, DataFrame

from barnabas.spark.pipelines import transforms as t

_PACKAGE: Final = "org.apache.kafka.connect.transforms."
_REQUIRED: Final = object()


class _Settings:
    """The settings of one transform or predicate. Each that is read is ticked off; a setting that remains is an error."""

    def __init__(self, prefix: str, config: Mapping[str, str]) -> None:
        self._prefix = prefix
        self._left = {name[len(prefix) :]: value for name, value in config.items() if name.startswith(prefix)}

    def text(self, name: str, default: object = _REQUIRED) -> str:
        value = self._left.pop(name, default)
        if value is _REQUIRED:
            raise t.TransformError(f"{self._prefix}{name} is missing")
        return str(value)

    def maybe(self, name: str) -> str | None:
        return self._left.pop(name, None)

    def names(self, name: str, default: object = _REQUIRED) -> list[str]:
        return [part.strip() for part in self.text(name, default).split(",") if part.strip()]

    def pairs(self, name: str, default: object = _REQUIRED) -> dict[str, str]:
        found = {}
        for part in self.names(name, default):
            old, colon, new = part.rpartition(":")
            if not colon or not old or not new:
                raise t.TransformError(f"{self._prefix}{name}: {part!r} is not of the form a:b")
            found[old] = new
        return found

    def flag(self, name: str) -> bool:
        return self.text(name, "false").lower() == "true"

    def nothing_left(self) -> None:
        if self._left:
            names = ", ".join(self._prefix + name for name in sorted(self._left))
            raise t.TransformError(f"not supported here: {names}")


def from_connect(config: Mapping[str, str], *, key: str = "key", value: str | None = "value") -> t.Transform:
    """Return the chain that `transforms` names. `key` and `value` are the columns of `$Key` and `$Value`; with `value=None`
    the value's fields are the DataFrame's own columns."""
    predicates = {name: _predicate(name, config) for name in _names(config, "predicates")}
    transforms = [_transform(name, config, predicates, key, value) for name in _names(config, "transforms")]
    return t.chain(*transforms)


def _names(config: Mapping[str, str], of: str) -> list[str]:
    return [name.strip() for name in config.get(of, "").split(",") if name.strip()]


def _predicate(name: str, config: Mapping[str, str]) -> Callable[[], Column]:
    settings = _Settings(f"predicates.{name}.", config)
    kind = settings.text("type").removeprefix(_PACKAGE + "predicates.")
    condition: Callable[[], Column]
    match kind:
        case "TopicNameMatches":
            pattern = settings.text("pattern")
            condition = lambda: t.topic_name_matches(pattern)  # noqa: E731
        case "HasHeaderKey":
            header = settings.text("name")
            condition = lambda: t.has_header_key(header)  # noqa: E731
        case "RecordIsTombstone":
            condition = t.record_is_tombstone
        case _:
            raise t.TransformError(f"predicates.{name}.type: no predicate {kind!r}")
    settings.nothing_left()
    return condition


def _transform(
    name: str,
    config: Mapping[str, str],
    predicates: Mapping[str, Callable[[], Column]],
    key: str,
    value: str | None,
) -> t.Transform:
    settings = _Settings(f"transforms.{name}.", config)
    kind, _, side = settings.text("type").removeprefix(_PACKAGE).partition("$")
    of = key if side == "Key" else value
    predicate, negate = settings.maybe("predicate"), settings.flag("negate")
    settings.maybe("field.syntax.version")  # paths always reach into structs, as V2 does
    if kind == "Filter":
        transform = _filter(name, predicate, negate, predicates)
    elif predicate is not None:
        raise t.TransformError(f"transforms.{name}.predicate: only Filter takes a predicate here")
    else:
        maker = _MAKERS.get(kind)
        if maker is None:
            raise t.TransformError(
                f"transforms.{name}.type: no transform {kind!r}; there are {', '.join(_MAKERS)}, Filter"
            )
        transform = maker(settings, of)
    settings.nothing_left()
    return transform


def _filter(
    name: str, predicate: str | None, negate: bool, predicates: Mapping[str, Callable[[], Column]]
) -> t.Transform:
    if predicate is None or predicate not in predicates:
        raise t.TransformError(f"transforms.{name}.predicate: Filter needs one of {', '.join(predicates) or 'none'}")
    condition = predicates[predicate]

    def apply(df: DataFrame) -> DataFrame:
        return t.Filter(condition(), negate=negate)(df)

    return apply


def _insert_field(s: _Settings, of: str | None) -> t.Transform:
    def named(what: str) -> str | None:
        """Return the field's name without a final ! (required) or ? (optional): here every field may be null."""
        name = s.maybe(f"{what}.field")
        return name[:-1] if name is not None and name.endswith(("!", "?")) else name

    static = {}
    if (name := named("static")) is not None:
        static[name] = s.text("static.value")
    places = {what: named(what) for what in ("topic", "partition", "offset", "timestamp")}
    return t.InsertField(**places, static=static, of=of)


def _cast(s: _Settings, of: str | None) -> t.Transform:
    spec = s.text("spec")
    return t.Cast(_Settings("", {"spec": spec}).pairs("spec") if ":" in spec else spec, of=of)


def _timestamp_converter(s: _Settings, of: str | None) -> t.Transform:
    return t.TimestampConverter(
        target_type=cast(t.Target, s.text("target.type")),
        field=s.text("field", ""),
        format=s.maybe("format"),
        unix_precision=cast(t.Precision, s.text("unix.precision", "milliseconds")),
        of=of,
    )


def _whole_column(of: str | None, kind: str) -> str:
    if of is None:
        raise t.TransformError(f"{kind} needs the value in one column: pass value='data' or the like")
    return of


_MAKERS: Final[Mapping[str, Callable[[_Settings, str | None], t.Transform]]] = {
    "InsertField": _insert_field,
    "ReplaceField": lambda s, of: t.ReplaceField(
        include=s.names("include", ""), exclude=s.names("exclude", ""), renames=s.pairs("renames", ""), of=of
    ),
    "MaskField": lambda s, of: t.MaskField(s.names("fields"), replacement=s.maybe("replacement"), of=of),
    "Cast": _cast,
    "Flatten": lambda s, of: t.Flatten(delimiter=s.text("delimiter", "."), of=of),
    "ExtractField": lambda s, of: t.ExtractField(s.text("field"), of=_whole_column(of, "ExtractField")),
    "HoistField": lambda s, of: t.HoistField(s.text("field"), of=of),
    "ValueToKey": lambda s, of: t.ValueToKey(s.names("fields"), of=of),
    "TimestampConverter": _timestamp_converter,
    "RegexRouter": lambda s, _: t.RegexRouter(s.text("regex"), s.text("replacement")),
    "TimestampRouter": lambda s, _: t.TimestampRouter(
        s.text("topic.format", "${topic}-${timestamp}"), s.text("timestamp.format", "yyyyMMdd")
    ),
    "InsertHeader": lambda s, _: t.InsertHeader(s.text("header"), s.text("value.literal")),
    "DropHeaders": lambda s, _: t.DropHeaders(s.names("headers")),
    "HeaderFrom": lambda s, of: t.HeaderFrom(
        s.names("fields"), s.names("headers"), operation=cast(t.Move, s.text("operation")), of=of
    ),
}
