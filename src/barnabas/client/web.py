"""Load small documents from the web: tokens and key sets. Blocking: call it from a thread, never from the event loop."""

import ssl
from typing import Final
from urllib.parse import unquote, urlsplit

from barnabas.base.errors import ConfigError
from barnabas.client.errors import ClientError

#: Key sets and tokens are a few kilobytes.
DOCUMENT_BYTES_MAX: Final = 1024 * 1024
_SCHEMES: Final = ("file", "http", "https")


class WebFailed(ClientError):
    """The document could not be loaded. `is_final`: a retry is useless. `document` is the body of the error response, `status`
    its HTTP status; None without a response."""

    def __init__(self, message: str, *, is_final: bool, document: bytes = b"", status: int | None = None) -> None:
        super().__init__(message)
        self.is_final = is_final
        self.status = status
        self.document = document


def scheme_of(url: str) -> str:
    """As `load` sees it: the parser skips blanks and line ends, so that a prefix of the text says something else."""
    return urlsplit(url).scheme


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
    """Load by GET, by POST of a `body`, or from a file. `WebFailed` repeats nothing of the request or the response."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        if body is not None:
            raise WebFailed(f"{url} is a file: it takes no request", is_final=True)
        try:
            with open(unquote(parts.path), "rb") as file:
                return bounded(file.read(bytes_max + 1), url, bytes_max)
        except OSError as error:
            raise WebFailed(f"{url} cannot be read: {error.strerror}", is_final=True) from error
    from barnabas.client.web_http import ask  # Python's HTTP client is slow to import and rarely needed

    return ask(url, body=body, headers=headers or {}, timeout_ms=timeout_ms, tls=tls, bytes_max=bytes_max)


def bounded(data: bytes, where: str, bytes_max: int) -> bytes:
    if len(data) > bytes_max:
        raise WebFailed(f"{where} is longer than {bytes_max} bytes", is_final=True)
    return data
