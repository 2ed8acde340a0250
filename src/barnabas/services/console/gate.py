"""The checks before every request, and the page's security headers. `http.origins` has the checks and the reasons."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from barnabas.services.console.errors import Refusal
from barnabas.services.console.settings import Settings
from barnabas.services.console.web import PATH_PREFIX, refused
from barnabas.services.http.origins import check_host, check_origin

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: Scripts, styles, fonts and pictures must be files of the console: nothing inline, nothing from elsewhere, no frames.
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
        # Any site may link to a page of the console.
        is_page = scope["method"] in _SAFE and not scope["path"].startswith(PATH_PREFIX)
        try:
            if self._only_loopback:
                check_host(headers)
            if not is_page:
                check_origin(headers)
        except Refusal as refusal:
            return refusal
        return None
