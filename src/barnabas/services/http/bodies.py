"""The body of a request: it arrives in time, is bounded, says what it is, and holds a JSON object."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, NoReturn

from barnabas.services.http.errors import Refusal, bad_request

Receive = Callable[[], Awaitable[Any]]

#: All bytes of a body arrive within this time.
BODY_S: Final = 60
_DEPTH_MAX: Final = 100


async def read_body(
    headers: Mapping[str, str], receive: Receive, *, bytes_max: int, timeout_s: float = BODY_S
) -> bytes:
    """:raises Refusal: for a body that is too large, comes too slowly, or does not come."""
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
            raise bad_request("the client went away")
        body += message.get("body", b"")
        if len(body) > bytes_max:
            raise too_large
        if not message.get("more_body"):
            return bytes(body)


def check_content_type(headers: Mapping[str, str], accepted: Collection[str]) -> None:
    """For a request with a body.

    A page of another site can make a browser send text, forms and bytes without a type, but no JSON without asking first.
    """
    if headers.get("content-type", "").partition(";")[0].strip().lower() not in accepted:
        raise Refusal(415, "UNSUPPORTED_MEDIA_TYPE", f"send the body with the content type {next(iter(accepted))}")


def json_object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise bad_request("the body is not a JSON object")
    if _is_deep(document):
        raise bad_request(f"the body is nested deeper than {_DEPTH_MAX}")
    return document


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _is_deep(document: object) -> bool:
    level: list[object] = [document]
    for _ in range(_DEPTH_MAX):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True
