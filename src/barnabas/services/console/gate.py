"""Is a request meant for this console, and does it come from its own page? And the headers that bind the page.

A site that somebody visits can make the browser ask any address, also one on loopback, and can give its own name the address
of the console (DNS rebinding). So where nobody signs in the name must be one of loopback's, changes must come from the
console's own page, and other sites may fetch nothing of the API.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit

from barnabas.base.hosts import is_loopback
from barnabas.services.console.errors import Refusal
from barnabas.services.console.settings import Settings
from barnabas.services.console.web import PATH_PREFIX, refused

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: Scripts, styles, fonts and pictures are files of the console: nothing inline, nothing of others, no frames.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)
_YEAR: Final = b"max-age=31536000"
_SAFE: Final = frozenset({"GET", "HEAD"})
_PATH_BYTES_MAX: Final = 16_384


class Gate:
    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]], settings: Settings) -> None:
        self._app = app
        self._only_loopback = not settings.needs_sign_in
        self._headers = [*_HEADERS]
        if settings.certificate is not None:
            self._headers.append((b"strict-transport-security", _YEAR))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_bound(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                added = [each for each in self._headers if each[0] not in present]
                if scope["path"].startswith(PATH_PREFIX) and b"cache-control" not in present:
                    added.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send_bound)
        else:
            await refused(refusal)(scope, receive, send_bound)

    def _refusal(self, scope: Message) -> Refusal | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > _PATH_BYTES_MAX:
            return Refusal(414, "TOO_LONG", f"an address may have up to {_PATH_BYTES_MAX} bytes")
        if self._only_loopback and not is_loopback(host_of(headers.get("host", ""))):
            return Refusal(
                421, "WRONG_HOST", "without sign-in this console answers to localhost, 127.0.0.1 and [::1] alone"
            )
        if not _is_own(scope, headers):
            return Refusal(403, "WRONG_ORIGIN", "another site asked for this; open the console itself")
        return None


def _is_own(scope: Message, headers: Mapping[str, str]) -> bool:
    """Whether the console's own page asks, or a program that is no browser."""
    is_api = scope["path"].startswith(PATH_PREFIX)
    # A link to a page of the console may stand anywhere.
    if is_api and headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return False
    origin = headers.get("origin")
    if origin is None or (scope["method"] in _SAFE and not is_api):
        return True
    return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""


def host_of(header: str) -> str:
    """The name in a `Host` header, without the port."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""
