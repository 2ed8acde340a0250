"""The schemas of a registry, as much as codecs need.

A registry is plain settings, so it travels to executors. Schemas never change under their id: each process fetches one once.
If a registry does not answer, that says nothing about the records: the client asks again, and then the batch fails
(`RegistryUnavailable`), so that good records do not end as dead letters. An id that the registry itself does not know is one
bad record (`UnknownSchema`).
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Self, TypeAlias

from barnabas.base.backoff import Backoff
from barnabas.base.errors import ConfigError
from barnabas.client import registry
from barnabas.client.registry import SCHEMA_BYTES_MAX, RegistryClient
from barnabas.services.registry.references import BadReferences, imports

_SCHEMAS_CACHED: Final = 1000  # as many as Confluent's serializers keep per subject

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"


class RegistryError(Exception):
    """An error between us and a schema registry."""


class UnknownSchema(RegistryError):
    """The registry has no such schema, subject or version."""


class RegistryRefused(RegistryError):
    """The registry understood and said no: not allowed, not compatible, not a schema."""


class RegistryUnavailable(RegistryError):
    """No registry answered, after all attempts."""


@dataclass(frozen=True)
class Reference:
    """A schema that another one imports."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class RegisteredSchema:
    text: str
    kind: str = "AVRO"
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True)
class SchemaRegistry:
    """The registry's address, and the settings of connections to it.

    `url` may list several, by commas: the client tries them in turn. `user_info` is `user:password`.
    """

    url: str
    user_info: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_location: str | None = None
    certificate_location: str | None = None
    key_location: str | None = None
    timeout_ms: int = 10_000
    retries: int = 4
    backoff_ms: int = 200

    def __post_init__(self) -> None:
        try:
            _ = self._client
        except ConfigError as error:
            raise ValueError(f"schema.registry.url: {error}") from None

    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> Self:
        """Make a client from settings with the names of Confluent's clients."""
        names = {
            "schema.registry.url": "url",
            registry.USER_INFO: "user_info",
            f"schema.registry.{registry.USER_INFO}": "user_info",
            registry.TOKEN: "token",
            registry.CA: "ca_location",
            registry.CERTIFICATE: "certificate_location",
            registry.KEY: "key_location",
        }
        known = {names[name]: value for name, value in config.items() if name in names}
        if "url" not in known:
            raise ValueError("schema.registry.url is missing")
        timeout_ms = int(config.get("request.timeout.ms", cls.timeout_ms))
        return cls(**known, timeout_ms=timeout_ms)  # type: ignore[arg-type]

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of an id, from this process's memory if it was asked for before."""
        return _schema(self, schema_id)

    def latest(self, subject: str) -> RegisteredSchema:
        return self.newest(subject)[1]

    def newest(self, subject: str) -> tuple[int, RegisteredSchema]:
        """Return a subject's newest schema, with its id."""
        answer = self._ask("GET", "subjects", subject, "versions", "latest")
        schema_id = answer.get("id")
        if not isinstance(schema_id, int):
            raise RegistryRefused(f"subject {subject!r}: the registry answered without an id: {answer}")
        return schema_id, _registered(answer)

    def resolve(self, schema: RegisteredSchema) -> tuple[str, ...]:
        """Return the texts of all that a schema imports, each after those that it needs itself."""
        return tuple(dict.fromkeys(self.references(schema).values()))

    def references(self, schema: RegisteredSchema) -> dict[str, str]:
        """Return the imports by the names under which they are imported."""
        try:
            found = imports(
                schema.references,
                lambda each: _version(self, each.subject, each.version),
                lambda found: found.references,
            )
            return {name: imported.text for name, imported in found}
        except BadReferences as error:
            raise RegistryRefused(str(error)) from None

    def register(self, subject: str, schema: RegisteredSchema) -> int:
        """Register the schema and return its id. To register it again changes nothing."""
        return self._number_of("id", schema, "subjects", subject, "versions")

    def version_of(self, subject: str, schema: RegisteredSchema) -> int:
        """Return the version under which a subject has this schema."""
        return self._number_of("version", schema, "subjects", subject)

    def _number_of(self, what: str, schema: RegisteredSchema, *path: str) -> int:
        answer = self._ask("POST", *path, body=_body(schema))
        found = answer.get(what)
        if not isinstance(found, int):
            raise RegistryRefused(f"subject {path[1]!r}: the registry answered without {what}: {answer}")
        return found

    @property
    def _client(self) -> RegistryClient:
        return RegistryClient(
            self.url,
            user=self.user_info,
            token=self.token,
            ca=self.ca_location,
            certificate=self.certificate_location,
            key=self.key_location,
            timeout_ms=self.timeout_ms,
            answer_bytes_max=SCHEMA_BYTES_MAX,
            may_repeat=True,  # to register a schema again changes nothing
        )

    def _ask(self, method: str, *path: object, body: Mapping[str, Json] | None = None) -> dict[str, Json]:
        client, backoff = self._client, Backoff(self.backoff_ms / 1000, math.inf)
        while True:
            try:
                answer = client.ask(method, *path, body=body)
                break
            except registry.RegistryError as error:
                failure = f"{error.request}: {error.status or ''} {error.reason}".replace(":  ", ": ")
                if isinstance(error, registry.RegistryRefused) and error.is_unknown:
                    raise UnknownSchema(failure) from None
                if not error.is_transient:
                    raise RegistryRefused(failure) from None
                if backoff.failures == self.retries:
                    raise RegistryUnavailable(f"asked {self.retries + 1} times; {failure}") from None
                time.sleep(backoff.failed())
        if not isinstance(answer, dict):
            raise RegistryRefused(
                f"{method} {self.url}/{'/'.join(map(str, path))}: the answer is not a JSON object; "
                "is this a schema registry?"
            )
        return answer


@lru_cache(maxsize=_SCHEMAS_CACHED)
def _schema(of: SchemaRegistry, schema_id: int) -> RegisteredSchema:
    return _registered(of._ask("GET", "schemas", "ids", schema_id))


@lru_cache(maxsize=_SCHEMAS_CACHED)
def _version(of: SchemaRegistry, subject: str, version: int) -> RegisteredSchema:
    return _registered(of._ask("GET", "subjects", subject, "versions", version))


def _registered(answer: Mapping[str, Json]) -> RegisteredSchema:
    text, kind, references = answer.get("schema"), answer.get("schemaType", "AVRO"), answer.get("references") or []
    if not isinstance(text, str) or not isinstance(kind, str) or not isinstance(references, list):
        raise RegistryRefused(f"the registry answered with something that is not a schema: {answer}")
    return RegisteredSchema(text, kind, tuple(_reference(one) for one in references))


def _reference(one: Json) -> Reference:
    match one:
        case {"name": str(name), "subject": str(subject), "version": int(version)}:
            return Reference(name, subject, version)
    raise RegistryRefused(f"the registry answered with something that is not a reference: {one}")


def _body(schema: RegisteredSchema) -> dict[str, Json]:
    body: dict[str, Json] = {"schema": schema.text}
    if schema.kind != "AVRO":
        body["schemaType"] = schema.kind
    if schema.references:
        body["references"] = [
            {"name": one.name, "subject": one.subject, "version": one.version} for one in schema.references
        ]
    return body
