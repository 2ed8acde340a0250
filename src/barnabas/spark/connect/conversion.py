"""From a record of a topic to Connect's record and through the transforms, and back to bytes. Pure.

A record that fails names its stage, as Connect's dead letters do.
"""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from barnabas.client import error_headers
from barnabas.spark.connect.converters.base import Converter, Typed
from barnabas.spark.connect.data import DataError, Header, Record, Schema
from barnabas.spark.connect.transforms.table import Chain

HeaderBytes: TypeAlias = "tuple[str, bytes | None]"

KEY_CONVERTER: Final = "KEY_CONVERTER"
VALUE_CONVERTER: Final = "VALUE_CONVERTER"
HEADER_CONVERTER: Final = "HEADER_CONVERTER"
TRANSFORMATION: Final = "TRANSFORMATION"
TASK_PUT: Final = "TASK_PUT"


class RawRecord(NamedTuple):
    """A record as a topic has it."""

    topic: str
    key: bytes | None = None
    value: bytes | None = None
    headers: "Sequence[HeaderBytes]" = ()
    timestamp: int | None = None
    partition: int | None = None
    offset: int | None = None


class Failure(Exception):
    """A record that cannot be used."""

    def __init__(self, stage: str, cause: Exception) -> None:
        super().__init__(str(cause))
        self.stage = stage
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.stage}: {self.cause}"


@dataclass(frozen=True)
class Conversion:
    """The converters and transforms of a connector. Goes to executors."""

    key: Converter
    value: Converter
    header: Converter
    chain: Chain

    def read(self, raw: RawRecord) -> Record | None:
        """Return the record after the transforms; None if they drop it. :raises Failure: if it cannot be used."""
        key = self._read(KEY_CONVERTER, self.key, raw.topic, raw.key)
        value = self._read(VALUE_CONVERTER, self.value, raw.topic, raw.value)
        headers = []
        for name, data in raw.headers:
            found = self._read(HEADER_CONVERTER, self.header, raw.topic, data)
            headers.append(Header(name, found.value, found.schema))
        return self._transformed(
            Record(
                topic=raw.topic,
                value=value.value,
                value_schema=value.schema,
                key=key.value,
                key_schema=key.schema,
                headers=tuple(headers),
                timestamp=raw.timestamp,
                partition=raw.partition,
                offset=raw.offset,
            )
        )

    def write(self, record: Record) -> RawRecord | None:
        """Transform a record of a source and return it as bytes; None if it is dropped. :raises Failure: if that fails."""
        changed = self._transformed(record)
        if changed is None:
            return None
        return RawRecord(
            topic=changed.topic,
            key=self._written(KEY_CONVERTER, self.key, changed.topic, changed.key_schema, changed.key),
            value=self._written(VALUE_CONVERTER, self.value, changed.topic, changed.value_schema, changed.value),
            headers=[
                (each.key, self._written(HEADER_CONVERTER, self.header, changed.topic, each.schema, each.value))
                for each in changed.headers
            ],
            timestamp=changed.timestamp,
        )

    def _transformed(self, record: Record) -> Record | None:
        try:
            return self.chain(record)
        except DataError as error:
            raise Failure(TRANSFORMATION, error) from error

    @staticmethod
    def _read(stage: str, converter: Converter, topic: str, data: bytes | None) -> Typed:
        try:
            return converter.to_connect(topic, data)
        except DataError as error:
            raise Failure(stage, error) from error

    @staticmethod
    def _written(stage: str, converter: Converter, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        try:
            return converter.from_connect(topic, schema, value)
        except (DataError, AttributeError, TypeError, KeyError) as error:
            raise Failure(stage, error) from error


def context_headers(raw: RawRecord, failure: Failure, connector: str) -> "list[HeaderBytes]":
    """Return the headers of a dead letter: the record's own, and what failed where."""
    kept = [each for each in raw.headers if not each[0].startswith(error_headers.PREFIX)]
    kind = f"{type(failure.cause).__module__}.{type(failure.cause).__name__}"
    stack = "".join(traceback.format_exception_only(failure.cause)).rstrip()
    added = {
        error_headers.TOPIC: raw.topic,
        error_headers.PARTITION: raw.partition,
        error_headers.OFFSET: raw.offset,
        error_headers.CONNECTOR_NAME: connector,
        error_headers.TASK_ID: raw.partition,
        error_headers.STAGE: failure.stage,
        error_headers.CLASS_NAME: kind,
        error_headers.EXCEPTION_CLASS_NAME: kind,
        error_headers.EXCEPTION_MESSAGE: str(failure.cause),
        error_headers.PREFIX + "exception.stacktrace": stack,
    }
    return [*kept, *((name, str(value).encode()) for name, value in added.items())]
