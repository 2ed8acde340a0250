"""HTTP for `client.web`, which imports this module only when needed. Blocking."""

import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from barnabas.client.web import WebFailed, bounded

#: Upper bound of an error response's body.
_REASON_BYTES_MAX: Final = 16 * 1024
DEFAULT_TIMEOUT_MS: Final = 10_000
#: Status codes after which a retry is useless.
_FINAL_CODES: Final = frozenset((*range(400, 408), *range(409, 416), 501, 505))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: they would send the client's secret to a host that is not configured."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


def ask(
    url: str,
    *,
    body: bytes | None,
    headers: Mapping[str, str],
    timeout_ms: int | None,
    tls: ssl.SSLContext | None,
    bytes_max: int,
) -> bytes:
    parts = urlsplit(url)
    where = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
    request = urllib.request.Request(url, data=body, headers={"Accept": "application/json", **headers})
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=tls))
    try:
        with opener.open(request, timeout=(timeout_ms or DEFAULT_TIMEOUT_MS) / 1000) as answer:
            document = bounded(answer.read(bytes_max + 1), where, bytes_max)
            if answer.length:  # `read` with a limit does not raise IncompleteRead
                raise WebFailed(f"{where} broke off with {answer.length} bytes to come", is_final=False)
            return document
    except urllib.error.HTTPError as error:
        with error:
            error_body = _error_body(error)
        is_final = error.code in _FINAL_CODES
        raise WebFailed(f"{where} answered {error.code}", is_final=is_final, document=error_body) from None
    # URLError is an OSError; a truncated or invalid response raises an HTTPException.
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise WebFailed(f"{where} cannot be reached: {reason}", is_final=False) from None


def _error_body(error: urllib.error.HTTPError) -> bytes:
    try:
        return error.read(_REASON_BYTES_MAX)
    except (OSError, http.client.HTTPException):
        return b""
