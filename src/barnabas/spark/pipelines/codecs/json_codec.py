"""JSON, by Spark's own parser: no Python per record."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from barnabas.services.registry.wire import HEAD_BYTES, frame
from barnabas.spark.pipelines._errors import ERROR_DDL
from barnabas.spark.pipelines._schema import parse_type
from barnabas.spark.pipelines.codecs.base import CodecError
from barnabas.spark.pipelines.codecs.registry import RegisteredSchema, SchemaRegistry

_CORRUPT: Final = "_corrupt_record"
_SHOWN: Final = 200
ERROR_CLASS: Final = "barnabas.spark.pipelines.codecs.MalformedJson"


@dataclass(frozen=True)
class Json:
    """JSON in UTF-8.

    `schema`: the type to read, as a Spark type or in DDL (`id int, name string`); writing needs none. A field that is declared
    `not null` must be present. `envelope`: Connect's JsonConverter with `schemas.enable=true`, of which the payload is read.
    `registry`: Confluent's JSON Schema serializer, whose five bytes are checked and skipped; writing registers `json_schema`
    under `subject`.
    """

    schema: DataType | str | None = None
    envelope: bool = False
    registry: SchemaRegistry | None = None
    subject: str | None = None
    json_schema: str | None = None

    def decoder(self) -> Callable[[Column], Column]:
        if self.schema is None:
            raise CodecError("Json: reading needs a schema")
        schema = self.schema if isinstance(self.schema, DataType) else parse_type(self.schema)
        if not isinstance(schema, StructType | ArrayType | MapType) and not self.envelope:
            raise CodecError(f"Json: {schema.simpleString()} is not supported: use a struct, an array or a map")

        def column(raw: Column) -> Column:
            framed = F.lit(True)
            if self.registry is not None:
                framed = (F.length(raw) > HEAD_BYTES) & (F.substring(raw, 1, 1) == F.lit(b"\0"))
                raw = F.substring(raw, HEAD_BYTES + 1, 2**31 - 1)
            return self._parsed(raw, framed, schema)

        return column

    def _parsed(self, raw: Column, framed: Column, schema: DataType) -> Column:
        text = raw.cast("string")
        shape = StructType([StructField("payload", schema)]) if self.envelope else schema
        asked, corrupt = shape, _CORRUPT
        if isinstance(shape, StructType):
            # Spark finds fields without regard to case, and the JSON may have a field of this name.
            corrupt += "_" * sum(each.lower().startswith(_CORRUPT) for each in shape.names)
            asked = StructType([*shape.fields, StructField(corrupt, StringType())])
        parsed = F.from_json(text, asked.json(), {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt})
        # Spark computes the argument of a higher-order function once. Otherwise it parses again for every field of the result.
        return F.get(
            F.transform(F.array(parsed), lambda once: self._checked(once, raw, framed, schema, shape, corrupt)),
            F.lit(0),
        )

    def _checked(
        self, parsed: Column, raw: Column, framed: Column, schema: DataType, shape: DataType, corrupt: str
    ) -> Column:
        text = raw.cast("string")
        data = parsed.getField("payload") if self.envelope else parsed
        if isinstance(shape, StructType) and not self.envelope:
            whole = F.struct(*[parsed.getField(name).alias(name) for name in shape.names])
            data = F.when(parsed.isNotNull(), whole)
        shown = F.substring(text, 1, _SHOWN)
        wrong = F.when(~framed, F.lit("does not start as the schema registry's wire format does"))
        wrong = wrong.when(~F.is_valid_utf8(text), F.lit("not UTF-8"))
        if isinstance(shape, StructType):
            malformed = parsed.getField(corrupt).isNotNull()
            wrong = wrong.when(malformed, F.concat(F.lit(f"not JSON of {schema.simpleString()}: "), shown))
        wrong = wrong.when(parsed.isNull(), F.concat(F.lit("not JSON: "), shown))
        if self.envelope:
            # An error, not null: a topic without envelopes would have nothing but nulls.
            there_is = F.coalesce(F.array_contains(F.json_object_keys(text), "payload"), F.lit(False))
            wrong = wrong.when(
                data.isNull() & ~there_is, F.concat(F.lit("no payload, as Connect's envelope has: "), shown)
            )
        for path, missing in _required(schema, data, ()):
            wrong = wrong.when(missing, F.lit(f"field {'.'.join(path)!r} is missing or null"))
        has_value = raw.isNotNull() & (F.trim(text) != "null")
        wrong = F.when(has_value, wrong)
        error = F.struct(F.lit(ERROR_CLASS).alias("class"), wrong.alias("message"))
        return F.struct(
            F.when(has_value & wrong.isNull(), data).alias("data"),
            F.when(wrong.isNotNull(), error).cast(ERROR_DDL).alias("error"),
        )

    def encoder(self, kind: DataType) -> Callable[[Column], Column]:
        head = b""
        if self.registry is not None:
            if self.json_schema is None or self.subject is None:
                raise CodecError("Json: writing with a registry needs json_schema and subject")
            registered = RegisteredSchema(self.json_schema, "JSON")
            head = frame(self.registry.register(self.subject, registered), b"")
        return self.encoder_behind(head, kind)

    def encoder_behind(self, head: bytes, kind: DataType) -> Callable[[Column], Column]:
        """Return an encoder that puts these bytes in front."""

        def column(value: Column) -> Column:
            if isinstance(kind, StringType):
                text = value  # already JSON
            else:
                text = F.to_json(value, {"ignoreNullFields": "false"})
            data = F.concat(F.lit(head), text.cast("binary")) if head else text.cast("binary")
            return F.struct(data.alias("data"), F.lit(None).cast(ERROR_DDL).alias("error"))

        return column


def _required(schema: DataType, value: Column, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Column]]:
    """Yield fields declared `not null`, with the condition that the field is null although its struct is there."""
    if not isinstance(schema, StructType):
        return
    for field in schema.fields:
        path, inner = (*above, field.name), value.getField(field.name)
        if not field.nullable:
            yield path, value.isNotNull() & inner.isNull()
        yield from _required(field.dataType, inner, path)
