"""The converters of a connector's file: a table of classes with their options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.base.errors import ConfigError
from barnabas.spark.connect.converters import simple
from barnabas.spark.connect.converters.avro import AvroConverter
from barnabas.spark.connect.converters.base import Converter
from barnabas.spark.connect.converters.json_converter import JsonConverter
from barnabas.spark.connect.options import Option, Problem, Refused, Row, Values, Without, flag, one_of, parse
from barnabas.spark.pipelines.codecs.registry import SchemaRegistry

_STORAGE: Final = "org.apache.kafka.connect.storage."
_CONVERTERS: Final = "org.apache.kafka.connect.converters."
#: The converters of the sample worker configuration that comes with Kafka.
DEFAULT: Final = "org.apache.kafka.connect.json.JsonConverter"
DEFAULT_OF_HEADERS: Final = _STORAGE + "SimpleHeaderConverter"

_BY_TOPIC: Final = "io.confluent.kafka.serializers.subject.TopicNameStrategy"
_SIDES: Final = ("key", "value")


@dataclass(frozen=True)
class Kind:
    rows: tuple[Row, ...]
    #: `is_key`: for the key of records.
    make: Callable[[Values, bool], Converter]


REGISTRY: Final[tuple[Row, ...]] = (
    Option("schema.registry.url", "addresses of the registry, by commas", needed=True),
    Option("basic.auth.user.info", "`user:password`", is_secret=True),
    Option("schema.registry.basic.auth.user.info", "the same", is_secret=True),
    Option("bearer.auth.token", "a bearer token", is_secret=True),
    Option("schema.registry.ssl.ca.location", "a file with the authorities of its certificate"),
    Option(
        "auto.register.schemas", "whether writing registers schemas; else the subject's newest is taken", flag, "true"
    ),
    Refused("basic.auth.credentials.source", "give basic.auth.user.info", ("USER_INFO", "URL")),
    Refused("bearer.auth.credentials.source", "give bearer.auth.token", ("STATIC_TOKEN",)),
    *(
        Refused(f"{side}.subject.name.strategy", "subjects are <topic>-key and <topic>-value", (_BY_TOPIC,))
        for side in _SIDES
    ),
    Refused("use.latest.version", "set auto.register.schemas=false, which takes the newest schema", ("false",)),
    Without("latest.compatibility.strict", "the registry checks compatibility when a schema is registered"),
    Without("schemas.cache.config", "each process keeps 1,000 schemas"),
    Without("schemas.cache.size", "each process keeps 1,000 schemas"),
    Without("max.schemas.per.subject", "each process keeps 1,000 schemas"),
    Refused(
        "enhanced.avro.schema.support", "enums are texts, and names keep their namespace already", ("false", "true")
    ),
    Refused("connect.meta.data", "members `connect.*` are always written", ("true",)),
)

_JSON: Final[tuple[Row, ...]] = (
    Option("schemas.enable", 'each record has its schema: `{"schema": …, "payload": …}`', flag, "true"),
    Option("decimal.format", "`BASE64` or `NUMERIC`", one_of("BASE64", "NUMERIC"), "BASE64"),
    Option("replace.null.with.default", "a null of a field with a default becomes the default", flag, "true"),
    Without("schemas.cache.size", "each process keeps 1,000 schemas"),
)


def registry_of(v: Values) -> SchemaRegistry:
    return SchemaRegistry(
        v["schema.registry.url"],
        user_info=v["basic.auth.user.info"] or v["schema.registry.basic.auth.user.info"],
        token=v["bearer.auth.token"],
        ca_location=v["schema.registry.ssl.ca.location"],
    )


def _number(type: str) -> Kind:
    return Kind((), lambda _, __: simple.NumberConverter(type))


CONVERTERS: Final[Mapping[str, Kind]] = {
    _STORAGE + "StringConverter": Kind(
        (Option("converter.encoding", "the encoding of texts", default="UTF-8"),),
        lambda v, _: simple.StringConverter(v["converter.encoding"]),
    ),
    DEFAULT: Kind(
        _JSON,
        lambda v, _: JsonConverter(
            v["schemas.enable"], v["decimal.format"] == "NUMERIC", v["replace.null.with.default"]
        ),
    ),
    _CONVERTERS + "ByteArrayConverter": Kind((), lambda _, __: simple.ByteArrayConverter()),
    _CONVERTERS + "BooleanConverter": Kind((), lambda _, __: simple.BooleanConverter()),
    _CONVERTERS + "ShortConverter": _number("int16"),
    _CONVERTERS + "IntegerConverter": _number("int32"),
    _CONVERTERS + "LongConverter": _number("int64"),
    _CONVERTERS + "FloatConverter": _number("float32"),
    _CONVERTERS + "DoubleConverter": _number("float64"),
    "io.confluent.connect.avro.AvroConverter": Kind(
        REGISTRY, lambda v, is_key: AvroConverter(registry_of(v), is_key, v["auto.register.schemas"])
    ),
    DEFAULT_OF_HEADERS: Kind((), lambda _, __: simple.SimpleHeaderConverter()),
}
#: Options that every converter may have without reading them.
_ANYWHERE: Final = ("converter.type", "schemas.enable")


def converter_of(name: str, config: Mapping[str, str], default: str) -> tuple[Converter, list[Problem]]:
    """Make the converter that `<name>` names, such as `key.converter`."""
    given = config.get(name, default)
    nothing = simple.ByteArrayConverter()
    kind = CONVERTERS.get(given)
    if kind is None:
        return nothing, [Problem(name, f"no converter {given!r} here: {', '.join(CONVERTERS)}")]
    prefix = name + "."
    values, problems = parse(kind.rows, config, prefix=prefix)
    known = {*_ANYWHERE, *(row.name for row in kind.rows)}
    problems += [
        Problem(each, f"{given.rpartition('.')[2]} has no such option here")
        for each in config
        if each.startswith(prefix) and each.removeprefix(prefix) not in known
    ]
    if problems:
        return nothing, problems
    try:
        return kind.make(values, name == "key.converter"), []
    except (ValueError, LookupError, ConfigError) as error:
        return nothing, [Problem(name, str(error))]
