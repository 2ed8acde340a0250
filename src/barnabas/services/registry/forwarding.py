"""Forward writes to the primary: the request and the answer are unchanged."""

import ssl
from typing import Final

import httpx

from barnabas.services.registry import errors
from barnabas.services.registry.election import Identity
from barnabas.services.registry.web import CONTENT_TYPE, Request, Response

#: Set by an instance that forwards a request: the receiver does not forward it again.
FORWARDED: Final = "x-forward"
#: The offset of the last record that a write appended, for the instance that forwarded it.
OFFSET: Final = "x-schema-registry-offset"
#: Headers that the primary needs.
_HEADERS: Final = ("accept", "authorization", "content-type")
_CONNECTIONS_MAX: Final = 100


class Unreachable(Exception):
    """Connecting to the primary failed: the request was not sent."""


class Forwarder:
    def __init__(self, *, timeout_s: float, tls: ssl.SSLContext | None = None) -> None:
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 5.0)),
            limits=httpx.Limits(max_connections=_CONNECTIONS_MAX),
            verify=tls if tls is not None else ssl.create_default_context(),
            trust_env=False,
        )

    async def send(self, primary: Identity, request: Request) -> Response:
        headers = {name: request.headers[name] for name in _HEADERS if name in request.headers}
        headers[FORWARDED] = "true"
        try:
            answer = await self._client.request(
                request.method, primary.url + request.raw_target, content=request.body, headers=headers
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Unreachable(f"{primary.url}: {error}") from error
        except httpx.HTTPError as error:
            raise errors.forwarding_failed(
                f"Error while forwarding the request to the primary at {primary.url}: {type(error).__name__} {error}"
            ) from error
        kept = {OFFSET: answer.headers[OFFSET]} if OFFSET in answer.headers else {}
        return Response(answer.content, answer.status_code, answer.headers.get("content-type", CONTENT_TYPE), kept)

    async def close(self) -> None:
        await self._client.aclose()
