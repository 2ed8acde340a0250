"""Records with schemas of a registry: Avro, Protobuf, JSON Schema. Each schema is requested once; decoding sends no request.

Owner: the event loop; the registry's client blocks, so that it runs on threads.
"""

import asyncio
import datetime
import decimal
import io
import json
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from barnabas.base.errors import BarnabasError
from barnabas.services.console.decoding import Undecodable
from barnabas.services.console.errors import Refusal
from barnabas.services.registry import wire
from barnabas.services.registry.client import RegistryClient, RegistryRefused, RegistryUnreachable
from barnabas.services.registry.formats import Reference
from barnabas.services.registry.references import imports
from barnabas.wire.records import Record

_SCHEMAS_MAX: Final = 1_000
#: Time before the registry is asked again after it did not answer, or did not know an id.
_TROUBLE_S: Final = 5.0
#: Time before a refused user is tried again: many failures would slow the console's address down, as for a guesser.
_LOCKED_OUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Schema:
    kind: str
    text: str
    #: By the names under which they are imported; each comes after those that it needs.
    references: Mapping[str, str]


class Registered:
    """One user's view of the registry, which decides what the user may see."""

    def __init__(self, client: RegistryClient, user: str = "") -> None:
        """`user`: the user's name at the registry; empty for the console itself."""
        self.client = client
        self._user = user
        #: The registry refused the user: these credentials are not used before this time.
        self._locked_out_until_s = 0.0
        self._readers: dict[int, Any] = {}
        self._trouble: dict[int, tuple[float, str]] = {}

    async def close(self) -> None:
        self.client.close()

    async def ask(self, method: str, *path: object, body: object = None, **query: object) -> Any:
        """Send any request of the registry's API. Its refusals become the console's."""
        try:
            return await asyncio.to_thread(self._ask, method, *path, body=body, **query)
        except RegistryRefused as error:
            if error.status == 401:
                raise Refusal(
                    403, "REGISTRY_SIGN_IN", str(error)
                ) from None  # a 401 would end the session at the console
            status = error.status if 400 <= error.status < 500 else 502
            raise Refusal(status, f"REGISTRY_{error.code}", str(error)) from None
        except RegistryUnreachable as error:
            raise Refusal(502, "REGISTRY_UNREACHABLE", str(error)) from None

    def _ask(self, method: str, *path: object, body: object = None, **query: object) -> Any:
        """Runs on threads."""
        if time.monotonic() < self._locked_out_until_s:
            raise self._not_let_in()
        try:
            return self.client.ask(method, *path, body=body, **query)
        except RegistryRefused as error:
            if error.status != 401:
                raise
            self._locked_out_until_s = time.monotonic() + _LOCKED_OUT_S
            raise self._not_let_in() from None

    def _not_let_in(self) -> RegistryRefused:
        if not self._user:
            return RegistryRefused(401, 40101, "the registry does not let the console in; see --schema-registry-config")
        if not self.client.signs_in:
            why = "passwords are not sent to a registry without HTTPS"
        else:
            why = "it must know the user with the password or token of the cluster"
        return RegistryRefused(401, 40101, f"the registry does not let {self._user} in: {why}")

    async def prepare(self, records: Iterable[Record]) -> None:
        """Request the unknown schemas of these records."""
        ids = {number for each in records for data in (each.key, each.value) if (number := _id_of(data)) is not None}
        now_s = asyncio.get_running_loop().time()
        for number in ids:
            told = self._trouble.get(number)
            if number in self._readers or (told is not None and now_s - told[0] < _TROUBLE_S):
                continue
            try:
                reader = await asyncio.to_thread(self._reader, number)
            except BarnabasError as error:
                self._trouble[number] = (now_s, str(error))
                continue
            if len(self._readers) >= _SCHEMAS_MAX:
                self._readers.clear()
            self._readers[number] = reader
            self._trouble.pop(number, None)

    def decode(self, data: bytes) -> tuple[str, Any, str]:
        """Decode with a prepared schema. Return (format, value, note)."""
        try:
            number, payload = wire.unframe(data)
        except wire.NotFramed as error:
            raise Undecodable(str(error)) from None
        reader = self._readers.get(number)
        if reader is None:
            why = self._trouble[number][1] if number in self._trouble else "it was not asked for"
            raise Undecodable(f"schema {number}: {why}")
        try:
            kind, value = reader(payload)
        except Exception as error:  # each library has its own errors for bytes of another format
            raise Undecodable(f"not as schema {number} says: {type(error).__name__} {error}") from None
        return kind, value, f"schema {number}"

    # -- on a thread ------------------------------------------------------------------------------------------------------

    def _reader(self, number: int) -> Any:
        schema = self._schema(self._ask("GET", "schemas", "ids", number))
        if schema.kind == "AVRO":
            return _avro_reader(schema)
        if schema.kind == "PROTOBUF":
            return _protobuf_reader(schema)
        return lambda payload: ("json schema", json.loads(payload))

    def _schema(self, answer: Mapping[str, Any]) -> _Schema:
        def fetch(reference: Reference) -> Mapping[str, Any]:
            answer: Mapping[str, Any] = self._ask("GET", "subjects", reference.subject, "versions", reference.version)
            return answer

        found = imports(_references(answer), fetch, _references)
        texts = {name: str(imported["schema"]) for name, imported in found}
        return _Schema(answer.get("schemaType", "AVRO"), answer["schema"], texts)


def _references(answer: Mapping[str, Any]) -> list[Reference]:
    return [Reference(each["name"], each["subject"], each["version"]) for each in answer.get("references") or ()]


def _id_of(data: bytes | None) -> int | None:
    if data is None or len(data) <= wire.HEAD_BYTES or data[0] != wire.MAGIC:
        return None
    return wire.unframe(data)[0]


def _avro_reader(schema: _Schema) -> Any:
    import fastavro

    named: dict[str, Any] = {}
    for text in schema.references.values():
        fastavro.parse_schema(json.loads(text), named_schemas=named)
    parsed = fastavro.parse_schema(json.loads(schema.text), named_schemas=named)

    def read(payload: bytes) -> tuple[str, Any]:
        return "avro", _plain(fastavro.schemaless_reader(io.BytesIO(payload), parsed, None))

    return read


def _plain(value: Any) -> Any:
    """Convert Avro's logical types to values of JSON."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return value


def _protobuf_reader(schema: _Schema) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

    from barnabas.services.registry.formats.protobuf import ProtobufSchema

    files = descriptor_pb2.FileDescriptorSet.FromString(
        ProtobufSchema(schema.text, schema.references, as_new=False).descriptor_set()
    )
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    own = pool.FindFileByName(files.file[-1].name)

    def read(payload: bytes) -> tuple[str, Any]:
        indexes, message = wire.read_indexes(payload)
        level = list(own.message_types_by_name.values())
        descriptor = level[indexes[0]]
        for index in indexes[1:]:
            descriptor = descriptor.nested_types[index]
        parsed = message_factory.GetMessageClass(descriptor).FromString(message)
        return "protobuf", json_format.MessageToDict(parsed, preserving_proto_field_name=True)

    return read
