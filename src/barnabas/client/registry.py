"""A client of a schema registry (Confluent's, and those that speak its REST API). Blocking: call it from a thread.

A client is plain settings: it keeps no connection, and travels to other processes.

Brokers, tools, the console and Spark use it.
"""

import base64
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote, urlencode, urlsplit

from barnabas.base import json_reader
from barnabas.base.errors import BarnabasError, ConfigError
from barnabas.base.hosts import is_loopback
from barnabas.client.web import WebFailed, load

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
#: An export of a whole registry is the largest answer.
EXPORT_BYTES_MAX: Final = 256 * 1024 * 1024
#: Room for a schema of a megabyte, as JSON within JSON.
SCHEMA_BYTES_MAX: Final = 8 * 1024 * 1024
#: A refusal quotes a schema, and lists differences.
_REFUSAL_BYTES_MAX: Final = 1024 * 1024
_TIMEOUT_MS: Final = 60_000
_NOT_FOUND: Final = 404
#: Status codes that say nothing about the request: later, or at another instance, it may succeed. NOT_FOUND is one of them
#: unless the registry itself says so: a proxy in front of it may have no registry to ask at the moment.
_TRANSIENT: Final = frozenset({408, 429, 500, 502, 503, 504, _NOT_FOUND})

#: Names of settings, as Confluent's clients have them.
USER_INFO: Final = "basic.auth.user.info"
TOKEN: Final = "bearer.auth.token"
CA: Final = "ssl.ca.location"
CERTIFICATE: Final = "ssl.certificate.location"
KEY: Final = "ssl.key.location"
_ARGUMENTS: Final = {USER_INFO: "user", TOKEN: "token", CA: "ca", CERTIFICATE: "certificate", KEY: "key"}
CONFIG_NAMES: Final = frozenset(_ARGUMENTS)


class RegistryError(BarnabasError):
    """A request that did not succeed."""

    def __init__(
        self, text: str, *, request: str = "", status: int | None = None, reason: str = "", is_transient: bool = False
    ) -> None:
        """`request`: its method and address. `status`: None without an answer. `reason`: what the server says, or why there is
        no answer. `is_transient`: whether another attempt may succeed."""
        super().__init__(text)
        self.request = request
        self.status = status
        self.reason = reason
        self.is_transient = is_transient


class RegistryRefused(RegistryError):
    """The registry answered with an error; the message is the registry's."""

    status: int

    def __init__(self, status: int, code: int, message: str, *, request: str = "") -> None:
        self.code = code
        #: The registry does not have the item, and it was the registry that said so, and not a proxy in front of it.
        self.is_unknown = status == _NOT_FOUND and code // 100 == _NOT_FOUND
        super().__init__(
            f"{message} (error code {code})",
            request=request,
            status=status,
            reason=message,
            is_transient=status in _TRANSIENT and not self.is_unknown,
        )


class RegistryUnreachable(RegistryError):
    """No address gives a usable answer."""


@dataclass(frozen=True, kw_only=True)
class RegistryClient:
    """`url` may list several instances, separated by commas.

    The next instance is asked if a request could not be sent to one. A request that may be repeated, such as a read, is also
    sent to the next one if an instance gives no answer, or one that says nothing about the request.
    """

    url: str = field(kw_only=False)
    #: `name:password`
    user: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    #: PEM files: the authorities of the registry's certificate, and the client's own certificate and key.
    ca: str | Path | None = None
    certificate: str | None = None
    key: str | None = None
    #: Limit of each read. A whole answer may take three times as long.
    timeout_ms: int = _TIMEOUT_MS
    answer_bytes_max: int = EXPORT_BYTES_MAX
    #: Whether all requests of this client may be sent twice, and not only reads.
    may_repeat: bool = False

    def __post_init__(self) -> None:
        if not self.urls or not all(urlsplit(url).scheme in ("http", "https") for url in self.urls):
            raise ConfigError(f"{self.url!r} is not the address of a registry; write for example http://localhost:8081")

    @classmethod
    def from_config(cls, url: str, config: Mapping[str, str], *, timeout_ms: int = _TIMEOUT_MS) -> Self:
        """`config` has the names that Confluent's clients use.

        :raises ConfigError: for a name that is not known, or a file that cannot be read.
        """
        if unknown := config.keys() - CONFIG_NAMES:
            raise ConfigError(
                f"{', '.join(sorted(unknown))}: not a setting of a registry's client; "
                f"the settings are {', '.join(sorted(CONFIG_NAMES))}"
            )
        given = {_ARGUMENTS[name]: value for name, value in config.items()}
        client = cls(url, timeout_ms=timeout_ms, **given)  # type: ignore[arg-type]
        client._tls()
        return client

    @property
    def urls(self) -> list[str]:
        return [url.strip().rstrip("/") for url in self.url.split(",") if url.strip()]

    @property
    def signs_in(self) -> bool:
        """Whether requests carry credentials."""
        return self.token is not None or self.user is not None

    def ask(self, method: str, *path: object, body: object = None, **query: object) -> Any:
        """Send a request and return the JSON of the answer. Parts of the path are quoted; a query argument None is left out.

        :raises RegistryError: if no instance carried out the request
        """
        target = "/".join(quote(str(part), safe="", errors="replace") for part in path)
        given = {name: _word(value) for name, value in query.items() if value is not None}
        target += f"?{urlencode(given)}" if given else ""
        data = None if body is None else json.dumps(body).encode()
        failures: list[tuple[str, RegistryError]] = []
        for url in self.urls:
            try:
                return self._ask(method, f"{url}/{target}", data)
            except WebFailed as failure:
                error = _error(f"{method} {url}/{target}", failure)
                is_unsent = not failure.is_sent
            except json_reader.BadJson:
                said = "answers, but not with JSON: is it a registry?"
                error = RegistryUnreachable(f"{url} {said}", request=f"{method} {url}/{target}", reason=f"it {said}")
                is_unsent = False
            failures.append((url, error))
            may_repeat = self.may_repeat or method == "GET"
            if not is_unsent and not (may_repeat and (error.is_transient or isinstance(error, RegistryUnreachable))):
                raise error
        raise _last(failures)

    def _ask(self, method: str, url: str, data: bytes | None) -> Any:
        headers = {"Accept": f"{MEDIA_TYPE}, application/json"}
        if data is not None:
            headers["Content-Type"] = MEDIA_TYPE
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        elif self.user is not None:
            name, _, password = self.user.partition(":")
            headers["Authorization"] = f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"
        is_https = urlsplit(url).scheme == "https"
        document = load(
            url,
            method=method,
            body=data,
            headers=headers,
            timeout_ms=self.timeout_ms,
            tls=self._tls() if is_https else None,
            bytes_max=self.answer_bytes_max,
            reason_bytes_max=_REFUSAL_BYTES_MAX,
            # A proxy of the environment would read a password that is sent without TLS.
            may_use_proxy=is_https and not is_loopback(urlsplit(url).hostname or ""),
        )
        return json_reader.read(document)

    def _tls(self) -> ssl.SSLContext:
        files = [file for file in (self.ca, self.certificate, self.key) if file is not None]
        try:
            # Files may be replaced while the process runs.
            changed = tuple(Path(file).stat().st_mtime_ns for file in files)
            return _context(self.ca, self.certificate, self.key, changed)
        except OSError as error:
            raise ConfigError(f"{', '.join(map(str, files))}: {error}") from None


@lru_cache(maxsize=16)
def _context(
    ca: str | Path | None, certificate: str | None, key: str | None, changed: tuple[int, ...]
) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _error(request: str, failure: WebFailed) -> RegistryError:
    if failure.status is None:
        reason = re.sub(r"^\[Errno -?\d+\] ", "", failure.reason)
        return RegistryUnreachable(str(failure), request=request, reason=reason, is_transient=not failure.is_final)
    try:
        answer = json_reader.read(failure.document)
    except json_reader.BadJson:
        return RegistryUnreachable(
            f"{failure}, but not with JSON: is it a registry?",
            request=request,
            status=failure.status,
            reason=failure.document[:200].decode(errors="replace"),
            is_transient=failure.status in _TRANSIENT,
        )
    code = answer.get("error_code", failure.status) if isinstance(answer, dict) else failure.status
    message = answer.get("message") if isinstance(answer, dict) else None
    return RegistryRefused(
        failure.status,
        code if isinstance(code, int) else failure.status,
        str(message or f"the registry answers {failure.status}"),
        request=request,
    )


def _last(failures: list[tuple[str, RegistryError]]) -> RegistryError:
    """Return the error for a request that all instances failed to answer; an answer of the registry says most."""
    for _, error in reversed(failures):
        if isinstance(error, RegistryRefused):
            return error
    _, last = failures[-1]
    reasons = "; ".join(f"{url}: {error.reason}" for url, error in failures)
    return RegistryUnreachable(
        f"no registry can be reached: {reasons}",
        request=last.request,
        status=last.status,
        reason=last.reason,
        is_transient=any(error.is_transient for _, error in failures),
    )
