"""HTTP for `client.web`, which imports this module only when needed. Blocking."""

import http.client
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

from barnabas.client.web import WebFailed, bounded

DEFAULT_TIMEOUT_MS: Final = 10_000
#: A whole response may take this many timeouts. The timeout itself only limits each read, so a server that sends a byte now and
#: then would block the thread forever.
_WHOLE_ANSWER_TIMEOUTS: Final = 3
#: Status codes after which a retry is useless.
_FINAL_CODES: Final = frozenset((*range(400, 408), *range(409, 416), 501, 505))


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: they would send the client's secret to a host that is not configured."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


class _Deadline:
    """Ends the connection of one request, from a thread, when the time for the whole answer is over."""

    def __init__(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.has_passed = False

    @contextmanager
    def running(self) -> Iterator[None]:
        self._timer.start()
        try:
            yield
        finally:
            self._timer.cancel()
            with self._lock:
                if self._socket is not None:
                    self._socket.close()
                    self._socket = None

    def watch(self, opened: socket.socket) -> None:
        with self._lock:
            if self.has_passed:
                raise TimeoutError
            # A descriptor of its own: it ends the connection in a TLS handshake as well.
            self._socket = opened.dup()

    def _end(self) -> None:
        with self._lock:
            self.has_passed = True
            if self._socket is not None:
                with suppress(OSError):  # the server has closed the connection already
                    self._socket.shutdown(socket.SHUT_RDWR)


class _Http(urllib.request.HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_watched(http.client.HTTPConnection, self._deadline), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, deadline: _Deadline, tls: ssl.SSLContext | None) -> None:
        self._tls = tls or ssl.create_default_context()
        super().__init__(context=self._tls)
        self._deadline = deadline

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_watched(http.client.HTTPSConnection, self._deadline), req, context=self._tls)


def _watched(kind: Any, deadline: _Deadline) -> Any:
    """A connection that the deadline ends, in its TLS handshake as well."""

    def connect(*args: Any, **kwargs: Any) -> socket.socket:
        opened = socket.create_connection(*args, **kwargs)
        try:
            deadline.watch(opened)
        except BaseException:
            opened.close()
            raise
        return opened

    class Watched(kind):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._create_connection = connect

    return Watched


def ask(
    url: str,
    *,
    method: str | None,
    body: bytes | None,
    headers: Mapping[str, str],
    timeout_ms: int | None,
    tls: ssl.SSLContext | None,
    bytes_max: int,
    reason_bytes_max: int,
    may_use_proxy: bool,
) -> bytes:
    parts = urlsplit(url)
    where = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
    request = urllib.request.Request(url, data=body, method=method, headers={"Accept": "application/json", **headers})
    timeout_s = (timeout_ms or DEFAULT_TIMEOUT_MS) / 1000
    whole_s = timeout_s * _WHOLE_ANSWER_TIMEOUTS
    deadline = _Deadline(whole_s)
    opener = _opener(deadline, _Https(deadline, tls) if parts.scheme == "https" else _Http(deadline), may_use_proxy)
    with deadline.running():
        try:
            with opener.open(request, timeout=timeout_s) as answer:
                document = bounded(answer.read(bytes_max + 1), where, bytes_max)
                if answer.length:  # `read` with a limit does not raise IncompleteRead
                    if deadline.has_passed:
                        raise TimeoutError
                    raise WebFailed(f"{where} broke off with {answer.length} bytes to come", is_final=False)
                return document
        except urllib.error.HTTPError as error:
            with error:
                error_body = _error_body(error, reason_bytes_max)
            is_final = error.code in _FINAL_CODES
            raise WebFailed(
                f"{where} answered {error.code}", is_final=is_final, document=error_body, status=error.code
            ) from None
        # URLError is an OSError; a truncated or invalid response raises an HTTPException.
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason: object = getattr(error, "reason", None) or error
            if deadline.has_passed:
                reason = f"no whole answer within {whole_s:g} s"
            # Python wraps what fails up to the end of the request in an URLError.
            is_sent = not isinstance(error, urllib.error.URLError)
            raise WebFailed(
                f"{where} cannot be reached: {reason}", is_final=False, is_sent=is_sent, reason=str(reason)
            ) from None


def _opener(
    deadline: _Deadline, scheme: urllib.request.BaseHandler, may_use_proxy: bool
) -> urllib.request.OpenerDirector:
    """One scheme alone: `build_opener` would add the others, and load the system's certificates for each request."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(None if may_use_proxy else {}),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        NoRedirects(),
        scheme,
    ):
        opener.add_handler(handler)
    return opener


def _error_body(error: urllib.error.HTTPError, bytes_max: int) -> bytes:
    try:
        return error.read(bytes_max)
    except (OSError, http.client.HTTPException):
        return b""
