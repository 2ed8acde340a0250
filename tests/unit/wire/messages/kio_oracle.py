"""kio's entities as a second opinion: random instances of theirs, their bytes, and the same values in our classes."""

import datetime
import io
import random
import types
import uuid
from dataclasses import MISSING, Field, fields
from typing import Any, get_args, get_origin

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.serial._implicit_defaults import get_tagged_field_default

from barnabas.wire.messages.base import ZERO_UUID, Message

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXTS = ("", "a", "topic-1", "é", "한국어 카프카", "\N{ROLLING ON THE FLOOR LAUGHING}", "x" * 126, "y" * 127, "z" * 300)


def split(annotation: Any) -> tuple[Any, bool, bool]:
    nullable = False
    if get_origin(annotation) is types.UnionType:
        (inner,) = [each for each in get_args(annotation) if each is not types.NoneType]
        annotation, nullable = inner, True
    if get_origin(annotation) is tuple:
        return get_args(annotation)[0], True, nullable
    return annotation, False, nullable


def random_primitive(chance: random.Random, kafka_type: str) -> object:
    match kafka_type:
        case "int8" | "int16" | "int32" | "int64":
            limit = 1 << (BITS[kafka_type] - 1)
            return chance.choice((0, -1, 1, limit - 1, -limit, chance.randrange(-limit, limit)))
        case "uint16":
            return chance.choice((0, 65535, chance.randrange(65536)))
        case "float64":
            return chance.choice((0.0, -1.5, chance.random() * 1e9))
        case "bool":
            return chance.random() < 0.5
        case "string":
            return chance.choice(TEXTS)
        case "bytes" | "records":
            return chance.randbytes(chance.choice((0, 1, 126, 127, 128, 1000)))
        case "uuid":
            return uuid.UUID(bytes=chance.randbytes(16)) if chance.random() < 0.8 else None
        case "error_code":
            return chance.choice(list(ErrorCode))
        case "timedelta_i32" | "timedelta_i64":
            return MILLISECOND * chance.choice((0, -1, 30_000, chance.randrange(1 << 31)))
        case "datetime_i64":
            return EPOCH + MILLISECOND * chance.randrange(1 << 41)
    raise NotImplementedError(kafka_type)


def random_entity(chance: random.Random, cls: type[Any]) -> Any:
    return cls(**{field.name: random_field(chance, field) for field in fields(cls)})


def random_field(chance: random.Random, field: Field[Any]) -> object:
    if "tag" in field.metadata and chance.random() < 0.3:
        return get_tagged_field_default(field)
    inner, is_array, nullable = split(field.type)
    kafka_type = field.metadata.get("kafka_type")
    # kio cannot encode a tagged field that is null if null is not its default.
    if (
        nullable
        and kafka_type != "uuid"
        and chance.random() < 0.25
        and ("tag" not in field.metadata or field.default is None)
    ):
        return None

    def one() -> object:
        if kafka_type is None:  # a struct
            return random_entity(chance, inner)
        return random_primitive(chance, kafka_type)

    if is_array:
        return tuple(one() for _ in range(chance.choice((0, 1, 1, 2, 3))))
    return one()


def kio_bytes(entity: Any) -> bytes:
    with io.BytesIO() as out:
        entity_writer(type(entity))(out, entity)
        return out.getvalue()


def to_ours(entity: Any, cls: type[Message]) -> Message:
    """Convert to our class. An absent tagged struct is None, and one with only defaults is absent."""
    values: dict[str, object] = {}
    for field in fields(entity):
        name = field.name.removesuffix("_").replace("k_raft_", "kraft_")
        if name not in cls.__wire__:
            name += "_ms"
        spec = cls.__wire__[name]
        value = getattr(entity, field.name)
        if isinstance(spec.type, type):
            if spec.is_array:
                values[name] = None if value is None else [to_ours(each, spec.type) for each in value]
            elif "tag" in field.metadata and value == (
                field.default if field.default is not MISSING else get_tagged_field_default(field)
            ):
                values[name] = None
            else:
                values[name] = None if value is None else to_ours(value, spec.type)
        elif spec.is_array:
            values[name] = None if value is None else [plain(each, spec.type) for each in value]
        else:
            values[name] = plain(value, spec.type)
    return cls(**values)


def plain(value: Any, type_: str) -> object:
    match value:
        case None:
            # kio's None means zeros for a uuid, and -1 for a time.
            return {"uuid": ZERO_UUID, "int64": -1}.get(type_)
        case ErrorCode():
            return value.value
        case uuid.UUID():
            return value.bytes
        case datetime.timedelta():
            return round(value / MILLISECOND)
        case datetime.datetime():
            return round((value - EPOCH) / MILLISECOND)
    return value
