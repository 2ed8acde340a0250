"""The interface of converters: bytes of a key, a value or a header to Connect's data, and back. Pure."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from barnabas.spark.connect.data import Schema


class Typed(NamedTuple):
    schema: Schema | None
    value: Any


class Converter(ABC):
    @abstractmethod
    def to_connect(self, topic: str, data: bytes | None) -> Typed:
        """:raises DataError: for bytes that are not of this format."""

    @abstractmethod
    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """:raises DataError: for data that this format cannot hold."""
