"""Keys and values by the schemas of a registry, as JSON, for tools that print and send records."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.base.errors import BarnabasError
from barnabas.base.names import did_you_mean
from barnabas.cli._command import UsageError
from barnabas.cli._needs import need
from barnabas.client.registry import RegistryClient, RegistryRefused
from barnabas.services.registry import wire
from barnabas.services.registry.values import by_schema, json_values
from barnabas.wire.records import Record

#: How schemas that cannot be used, and values that do not fit, fail.
_UNFIT: Final = (ValueError, LookupError, TypeError, AttributeError, EOFError, RecursionError, OverflowError)


def _schema(client: RegistryClient, answer: Mapping[str, object]) -> by_schema.Schema:
    schema = by_schema.schema_of(answer, client.ask)
    if schema.kind == "AVRO":
        need("registry", "fastavro")
    elif schema.kind == "PROTOBUF":
        need("registry", "google.protobuf")
    return schema


# -- reading --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SchemaReader:
    """Bytes to JSON. Each schema is requested once, on a thread, before the records that need it are printed."""

    client: RegistryClient
    _readers: dict[int, by_schema.Reader] = field(default_factory=dict)
    #: Why a schema cannot be used.
    _unusable: dict[int, str] = field(default_factory=dict)

    async def prepare(self, records: Iterable[Record]) -> None:
        """:raises RegistryUnreachable: if the registry does not answer"""
        numbers = {
            number for each in records for data in (each.key, each.value) if (number := _id_of(data)) is not None
        }
        for number in sorted(numbers - self._readers.keys() - self._unusable.keys()):
            await asyncio.to_thread(self._load, number)

    def _load(self, number: int) -> None:
        try:
            schema = _schema(self.client, self.client.ask("GET", "schemas", "ids", number))
            self._readers[number] = by_schema.reader(schema, bytes_text=_latin1)
        except RegistryRefused as refused:
            self._unusable[number] = str(refused)
        except _UNFIT as error:
            self._unusable[number] = f"it cannot be used: {error}"

    def __call__(self, data: bytes) -> bytes:
        """Return what is printed; bytes without a schema's id as they are.

        :raises ValueError: if they are not what the schema says
        """
        number = _id_of(data)
        if number is None:
            return data
        if number in self._unusable:
            raise ValueError(f"schema {number}: {self._unusable[number]}")
        try:
            _, value = self._readers[number](wire.unframe(data)[1])
            return json_values.write(value, default=str).encode()
        except (*_UNFIT, BarnabasError) as error:
            raise ValueError(f"not as schema {number} says: {error}") from None


def _latin1(data: bytes) -> str:
    return data.decode("latin-1")


def _id_of(data: bytes | None) -> int | None:
    if data is None or len(data) <= wire.HEAD_BYTES or data[0] != wire.MAGIC:
        return None
    return wire.unframe(data)[0]


# -- writing --------------------------------------------------------------------------------------------------------------


def schema_writer(client: RegistryClient, subject: str, *, is_needed: bool) -> Callable[[bytes], bytes] | None:
    """Return what writes JSON by the latest schema of a subject; None if there is no such subject and none is needed.

    :raises UsageError: if there is none
    """
    try:
        answer = client.ask("GET", "subjects", subject, "versions", "latest")
    except RegistryRefused as refused:
        if not refused.is_unknown:
            raise
        if not is_needed:
            return None
        near = did_you_mean(subject, client.ask("GET", "subjects"))
        raise UsageError(
            f"the registry has no subject {subject}{near or f': barnabas schemas register {subject} FILE'}"
        ) from None
    number = int(answer["id"])
    try:
        write = by_schema.writer(_schema(client, answer))
    except _UNFIT as error:
        raise UsageError(f"schema {number} of {subject} cannot be used: {error}") from None

    def encode(text: bytes) -> bytes:
        try:
            value = json_values.read(text)
        except ValueError as error:
            raise UsageError(f"not JSON: {error}") from None
        try:
            return wire.frame(number, write(value))
        except (*_UNFIT, BarnabasError) as error:
            raise UsageError(f"not as schema {number} of {subject} says: {error}") from None

    return encode
