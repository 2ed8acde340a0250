"""The body of a request: limits of time and size, the content type, and parsing of a JSON object."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

from barnabas.base import json_reader
from barnabas.services.http.errors import Refusal, bad_request

Receive = Callable[[], Awaitable[Any]]

#: Time limit for a whole body.
BODY_S: Final = 60


async def read_body(
    headers: Mapping[str, str], receive: Receive, *, bytes_max: int, timeout_s: float = BODY_S
) -> bytes:
    """:raises Refusal: if the body is too large, arrives too slowly, or is missing."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _read_all(headers, receive, bytes_max)
    except TimeoutError:
        raise Refusal(408, "TOO_SLOW", f"the body did not arrive within {timeout_s:.0f} s") from None


async def _read_all(headers: Mapping[str, str], receive: Receive, bytes_max: int) -> bytes:
    too_large = Refusal(413, "TOO_LARGE", f"a request may have up to {bytes_max} bytes")
    announced = headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > bytes_max:
        raise too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise bad_request("the client disconnected")
        body += message.get("body", b"")
        if len(body) > bytes_max:
            raise too_large
        if not message.get("more_body"):
            return bytes(body)


def check_content_type(headers: Mapping[str, str], accepted: Collection[str]) -> None:
    """Check the type of a request that has a body.

    A page of another site can make a browser send text, forms and untyped bytes, but JSON only after a preflight request.
    """
    if headers.get("content-type", "").partition(";")[0].strip().lower() not in accepted:
        raise Refusal(415, "UNSUPPORTED_MEDIA_TYPE", f"send the body with the content type {next(iter(accepted))}")


def json_object(body: bytes) -> dict[str, Any]:
    try:
        document = json_reader.read(body)
    except json_reader.BadJson as error:
        raise bad_request(f"the body cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise bad_request("the body is not a JSON object")
    return document
