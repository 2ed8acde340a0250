"""Random messages of our own classes at a version: only fields of that version are set."""

import importlib
import pkgutil
import random
from collections.abc import Iterator
from typing import TypeVar

import barnabas.wire.messages as package
from barnabas.wire.codec_source import in_range, is_nullable
from barnabas.wire.messages.base import Message, Versioned, Wire

M = TypeVar("M", bound=Message)

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def every_class() -> list[type[Versioned]]:
    """Every message that has versions, of every module."""
    found = []
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, Versioned) and value.__module__ == module.name:
                found.append(value)
    return [cls for cls in found if cls.__module__ != f"{package.__name__}.base"]


def every_version(classes: list[type[Versioned]]) -> Iterator[tuple[type[Versioned], int]]:
    for cls in classes:
        for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
            yield cls, version


def random_message(chance: random.Random, cls: type[M], version: int) -> M:
    return cls(
        **{
            name: random_value(chance, spec, version)
            for name, spec in cls.__wire__.items()
            if in_range(spec.versions, version) and (spec.tag is None or chance.random() < 0.5)
        }
    )


def random_value(chance: random.Random, spec: Wire, version: int) -> object:
    if is_nullable(spec, version) and chance.random() < 0.2:
        return None

    def one() -> object:
        if isinstance(spec.type, type):
            return random_message(chance, spec.type, version)
        return random_primitive(chance, spec.type)

    if spec.is_array:
        return [one() for _ in range(chance.choice((0, 1, 1, 2, 3)))]
    return one()


def random_primitive(chance: random.Random, type_: str) -> object:
    match type_:
        case "bool":
            return chance.random() < 0.5
        case "int8" | "int16" | "int32" | "int64":
            limit = 1 << (BITS[type_] - 1)
            return chance.choice((0, -1, 1, limit - 1, -limit, chance.randrange(-limit, limit)))
        case "uint16":
            return chance.choice((0, 65535, chance.randrange(65536)))
        case "float64":
            return chance.choice((0.0, -2.25, chance.random()))
        case "uuid":
            return chance.randbytes(16)
        case "string":
            return chance.choice(("", "t", "이벤트", "x" * 130))
        case "bytes" | "records":
            return chance.randbytes(chance.choice((0, 1, 127, 500)))
    raise NotImplementedError(type_)
