"""A client of the schema registry's REST API (Confluent's, and those that speak it), as much as codecs need.

A registry is plain settings, so it travels to executors. Schemas never change under their id: each process fetches one once.
If a registry does not answer, that says nothing about the records: the client asks again, and then the batch fails
(`RegistryUnavailable`), so that good records do not end as dead letters. An id that the registry itself does not know is one
bad record (`UnknownSchema`).
"""

import base64
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Self, TypeAlias
from urllib.parse import quote, urlsplit

from barnabas.client.web import WebFailed, load
from barnabas.services.registry.references import BadReferences, imports
from barnabas.services.registry.values import json_values

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"

_SCHEMAS_CACHED: Final = 1000  # as many as Confluent's serializers keep per subject
_NOT_FOUND: Final = 404
#: Room for a schema of a megabyte, as JSON within JSON.
_ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
#: NOT_FOUND is retried if a proxy in front of the registry sent it: it may have no registry to ask at the moment.
_RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504, _NOT_FOUND})

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
        if not self.urls:
            raise ValueError("schema.registry.url is empty")
        for url in self.urls:
            if urlsplit(url).scheme not in ("http", "https"):
                raise ValueError(f"schema.registry.url: {url!r} is not valid: use http or https")

    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> Self:
        """Make a client from settings with the names of Confluent's clients."""
        names = {
            "schema.registry.url": "url",
            "basic.auth.user.info": "user_info",
            "schema.registry.basic.auth.user.info": "user_info",
            "bearer.auth.token": "token",
            "ssl.ca.location": "ca_location",
            "ssl.certificate.location": "certificate_location",
            "ssl.key.location": "key_location",
        }
        known = {names[name]: value for name, value in config.items() if name in names}
        if "url" not in known:
            raise ValueError("schema.registry.url is missing")
        timeout_ms = int(config.get("request.timeout.ms", cls.timeout_ms))
        return cls(**known, timeout_ms=timeout_ms)  # type: ignore[arg-type]

    @property
    def urls(self) -> list[str]:
        return [url.strip().rstrip("/") for url in self.url.split(",") if url.strip()]

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of an id, from this process's memory if it was asked for before."""
        return _schema(self, schema_id)

    def latest(self, subject: str) -> RegisteredSchema:
        return self.newest(subject)[1]

    def newest(self, subject: str) -> tuple[int, RegisteredSchema]:
        """Return a subject's newest schema, with its id."""
        answer = self._call("GET", f"/subjects/{quote(subject, safe='')}/versions/latest")
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
        return self._number_of("id", subject, "/versions", schema)

    def version_of(self, subject: str, schema: RegisteredSchema) -> int:
        """Return the version under which a subject has this schema."""
        return self._number_of("version", subject, "", schema)

    def _number_of(self, what: str, subject: str, below: str, schema: RegisteredSchema) -> int:
        answer = self._call("POST", f"/subjects/{quote(subject, safe='')}{below}", _body(schema))
        found = answer.get(what)
        if not isinstance(found, int):
            raise RegistryRefused(f"subject {subject!r}: the registry answered without {what}: {answer}")
        return found

    def _call(self, method: str, path: str, body: Mapping[str, Json] | None = None) -> dict[str, Json]:
        failures: list[str] = []
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(self.backoff_ms / 1000 * 2 ** (attempt - 1))
            for url in self.urls:
                try:
                    return self._ask(method, url + path, body)
                except WebFailed as error:
                    if error.status is None and error.is_final:
                        raise RegistryRefused(f"{method} {error}") from None
                    if error.status is None:
                        failures.append(f"{method} {url}{path}: {error}")
                        continue
                    failure = f"{method} {url}{path}: {error.status} {_message(error.document)}"
                    if error.status == _NOT_FOUND and _is_not_known(error.document):
                        raise UnknownSchema(failure) from None
                    if error.status not in _RETRIED:
                        raise RegistryRefused(failure) from None
                    failures.append(failure)
        raise RegistryUnavailable(f"asked {self.retries + 1} times; {failures[-1]}")

    def _ask(self, method: str, url: str, body: Mapping[str, Json] | None) -> dict[str, Json]:
        headers = {"Accept": f"{MEDIA_TYPE}, application/json"}
        data = None
        if body is not None:
            headers["Content-Type"] = MEDIA_TYPE
            data = json.dumps(body).encode()
        if self.user_info is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(self.user_info.encode()).decode()
        elif self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        text = load(
            url,
            body=data,
            headers=headers,
            timeout_ms=self.timeout_ms,
            tls=self._tls(url),
            bytes_max=_ANSWER_BYTES_MAX,
        )
        try:
            answer = json_values.read(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise RegistryRefused(f"{method} {url}: the answer is not a JSON object; is this a schema registry?")
        return answer

    def _tls(self, url: str) -> ssl.SSLContext | None:
        if not url.startswith("https:"):
            return None
        context = ssl.create_default_context(cafile=self.ca_location)
        if self.certificate_location is not None:
            context.load_cert_chain(self.certificate_location, self.key_location)
        return context


@lru_cache(maxsize=_SCHEMAS_CACHED)
def _schema(registry: SchemaRegistry, schema_id: int) -> RegisteredSchema:
    return _registered(registry._call("GET", f"/schemas/ids/{schema_id}"))


@lru_cache(maxsize=_SCHEMAS_CACHED)
def _version(registry: SchemaRegistry, subject: str, version: int) -> RegisteredSchema:
    return _registered(registry._call("GET", f"/subjects/{quote(subject, safe='')}/versions/{version}"))


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


def _is_not_known(body: bytes) -> bool:
    """Whether the registry itself says so, by a code of its own (40401, 40402, 40403), and not a proxy in front of it, or a
    server that is not a registry."""
    try:
        return int(json_values.read(body)["error_code"]) // 100 == _NOT_FOUND
    except (ValueError, KeyError, TypeError):
        return False


def _message(body: bytes) -> str:
    try:
        return str(json_values.read(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
