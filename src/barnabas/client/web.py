"""Small documents from the web: token endpoints and key sets. Blocking: call it from a thread, never from the loop."""

import http.client
import ssl
import urllib.error
import urllib.request
from typing import Final
from urllib.parse import unquote, urlsplit

from barnabas.client.errors import ClientError
from barnabas.core.errors import ConfigError

#: Key sets and tokens are a few kilobytes.
DOCUMENT_BYTES_MAX: Final = 1024 * 1024
#: Of an answer that says why there is no document.
_REASON_BYTES_MAX: Final = 16 * 1024
DEFAULT_TIMEOUT_MS: Final = 10_000
_SCHEMES: Final = ("file", "http", "https")
#: Answers that another try would not change.
_FINAL_CODES: Final = frozenset((*range(400, 408), *range(409, 416), 501, 505))


class WebFailed(ClientError):
    """What was asked for did not come. `is_final`: asking again is of no use. `document` is what came instead."""

    def __init__(self, message: str, *, is_final: bool, document: bytes = b"") -> None:
        super().__init__(message)
        self.is_final = is_final
        self.document = document


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the client's secret to a host that is not configured."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


def check_url(setting: str, url: str) -> None:
    """:raises ConfigError: unless it is a file, http or https URL."""
    parts = urlsplit(url)
    if (
        parts.scheme not in _SCHEMES
        or (parts.scheme == "file" and not parts.path)
        or (parts.scheme != "file" and not parts.hostname)
    ):
        raise ConfigError(f"{setting} must be a URL that begins with file://, http:// or https://")


def load(
    url: str,
    *,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    timeout_ms: int | None = None,
    tls: ssl.SSLContext | None = None,
    bytes_max: int = DOCUMENT_BYTES_MAX,
) -> bytes:
    """GET, or POST of a `body`; or a file. Raises `WebFailed`, which repeats nothing of what was sent or came."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        try:
            with open(unquote(parts.path), "rb") as file:
                return _bounded(file.read(bytes_max + 1), url, bytes_max)
        except OSError as error:
            raise WebFailed(f"{url} cannot be read: {error.strerror}", is_final=True) from error
    where = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
    request = urllib.request.Request(url, data=body, headers={"Accept": "application/json", **(headers or {})})
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=tls))
    try:
        with opener.open(request, timeout=(timeout_ms or DEFAULT_TIMEOUT_MS) / 1000) as answer:
            document = _bounded(answer.read(bytes_max + 1), where, bytes_max)
            if answer.length:  # `read` with a limit does not say so
                raise WebFailed(f"{where} broke off with {answer.length} bytes to come", is_final=False)
            return document
    except urllib.error.HTTPError as error:
        with error:
            said = _said(error)
        is_final = error.code in _FINAL_CODES
        raise WebFailed(f"{where} answered {error.code}", is_final=is_final, document=said) from None
    # URLError is an OSError; an answer that is cut off or no HTTP is neither that nor a ValueError.
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise WebFailed(f"{where} cannot be reached: {reason}", is_final=False) from None


def _said(error: urllib.error.HTTPError) -> bytes:
    try:
        return error.read(_REASON_BYTES_MAX)
    except (OSError, http.client.HTTPException):
        return b""


def _bounded(data: bytes, where: str, bytes_max: int) -> bytes:
    if len(data) > bytes_max:
        raise WebFailed(f"{where} is longer than {bytes_max} bytes", is_final=True)
    return data
