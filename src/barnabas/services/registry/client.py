"""A blocking client of a registry, for tools. A refusal raises an exception."""

import os
import re
import ssl
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx

from barnabas.base.errors import BarnabasError, ConfigError
from barnabas.services.registry.values import json_values

#: Limits of each read, and (below) of the whole answer.
_TIMEOUT_S: Final = 60.0
_ANSWER_S: Final = 120.0
#: An export of a whole registry is the largest answer.
_ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
#: Answers are not compressed: a few bytes could become gigabytes.
_HEADERS: Final = {"Content-Type": "application/vnd.schemaregistry.v1+json", "Accept-Encoding": "identity"}
#: Names of settings, as Confluent's clients have them.
USER_INFO: Final = "basic.auth.user.info"
TOKEN: Final = "bearer.auth.token"
CA: Final = "ssl.ca.location"
CONFIG_NAMES: Final = frozenset({USER_INFO, TOKEN, CA})


class RegistryRefused(BarnabasError):
    """The registry answered with an error; the message is the registry's."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(f"{message} (error code {code})")
        self.status = status
        self.code = code


class RegistryClient:
    """`url` may list several instances, separated by commas: the client tries the next one if it cannot connect."""

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        token: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._urls = [each.strip().rstrip("/") for each in url.split(",") if each.strip()]
        if not self._urls or not all(each.startswith(("http://", "https://")) for each in self._urls):
            raise ConfigError(f"{url!r} is not the address of a registry; write for example http://localhost:8081")
        #: Whether requests carry credentials.
        self.signs_in = token is not None or user is not None
        headers = dict(_HEADERS)
        auth = None
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        elif user is not None:
            name, _, password = user.partition(":")
            auth = httpx.BasicAuth(name, password)
        try:
            tls = ssl.create_default_context(cafile=ca)
        except OSError as error:
            raise ConfigError(f"{ca}: {error}") from None
        self._http = httpx.Client(headers=headers, auth=auth, verify=tls, timeout=timeout_s, trust_env=False)

    @classmethod
    def from_config(cls, url: str, config: Mapping[str, str], *, timeout_s: float = _TIMEOUT_S) -> Self:
        """`config` has the names that Confluent's clients use. :raises ConfigError: for a name that is not known."""
        if unknown := config.keys() - CONFIG_NAMES:
            raise ConfigError(
                f"{', '.join(sorted(unknown))}: not a setting of a registry's client; "
                f"the settings are {', '.join(sorted(CONFIG_NAMES))}"
            )
        return cls(url, user=config.get(USER_INFO), token=config.get(TOKEN), ca=config.get(CA), timeout_s=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def ask(self, method: str, *path: object, body: object = None, **query: object) -> Any:
        """Send a request and return the JSON of the answer. Parts of the path are quoted; a query argument None is left out."""
        target = "/".join(quote(str(part), safe="") for part in path)
        params = {name: _word(value) for name, value in query.items() if value is not None}
        reasons: list[str] = []
        for url in self._urls:
            try:
                with self._http.stream(method, f"{url}/{target}", json=body, params=params) as answer:
                    return _result(answer, _content(answer))
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
                reasons.append(f"{url}: {reason}")
                continue
            except httpx.HTTPError as error:
                raise RegistryUnreachable(f"{url}: {type(error).__name__} {error}") from None
        raise RegistryUnreachable(f"no registry can be reached: {'; '.join(reasons)}")


class RegistryUnreachable(BarnabasError):
    """No address answers."""


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _content(answer: httpx.Response) -> bytes:
    """Return the raw body. Limit its size and the time that it takes."""
    deadline_s = time.monotonic() + _ANSWER_S
    data = bytearray()
    for part in answer.iter_raw():
        data += part
        if len(data) > _ANSWER_BYTES_MAX:
            raise RegistryUnreachable(f"{answer.url} answers with more than {_ANSWER_BYTES_MAX} bytes")
        if time.monotonic() > deadline_s:
            raise RegistryUnreachable(f"{answer.url} has not sent its whole answer within {_ANSWER_S:g} s")
    return bytes(data)


def _result(answer: httpx.Response, content: bytes) -> Any:
    try:
        document = json_values.read(content)
    except ValueError:
        raise RegistryUnreachable(
            f"{answer.url} answers {answer.status_code}, but not with JSON: is it a registry?"
        ) from None
    if answer.is_success:
        return document
    code = document.get("error_code", answer.status_code) if isinstance(document, dict) else answer.status_code
    message = document.get("message", "") if isinstance(document, dict) else ""
    raise RegistryRefused(answer.status_code, code, message or f"the registry answers {answer.status_code}")
