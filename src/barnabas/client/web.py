"""Load small documents from the web: tokens and key sets. Blocking: call it from a thread, never from the event loop."""

import ssl
from typing import Final
from urllib.parse import unquote, urlsplit

from barnabas.base.errors import ConfigError
from barnabas.client.errors import ClientError

#: Upper bound of an error response's body.
REASON_BYTES_MAX: Final = 16 * 1024
#: Key sets and tokens are a few kilobytes.
DOCUMENT_BYTES_MAX: Final = 1024 * 1024
_SCHEMES: Final = ("file", "http", "https")


class WebFailed(ClientError):
    """The document could not be loaded. `is_final`: a retry is useless. `document` is the body of the error response, `status`
    its HTTP status; None without a response. `is_sent`: the server may have carried out the request. `reason` is the message
    without the address."""

    def __init__(
        self,
        message: str,
        *,
        is_final: bool,
        document: bytes = b"",
        status: int | None = None,
        is_sent: bool = True,
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.is_final = is_final
        self.is_sent = is_sent
        self.reason = reason or message
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
    method: str | None = None,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    timeout_ms: int | None = None,
    tls: ssl.SSLContext | None = None,
    bytes_max: int = DOCUMENT_BYTES_MAX,
    reason_bytes_max: int = REASON_BYTES_MAX,
    may_use_proxy: bool = True,
) -> bytes:
    """Load by GET, by POST of a `body`, by another `method`, or from a file. `WebFailed` repeats nothing of the request or the
    response."""
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

    return ask(
        url,
        method=method,
        body=body,
        headers=headers or {},
        timeout_ms=timeout_ms,
        tls=tls,
        bytes_max=bytes_max,
        reason_bytes_max=reason_bytes_max,
        may_use_proxy=may_use_proxy,
    )


def bounded(data: bytes, where: str, bytes_max: int) -> bytes:
    if len(data) > bytes_max:
        raise WebFailed(f"{where} is longer than {bytes_max} bytes", is_final=True)
    return data
