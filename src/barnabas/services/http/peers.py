"""Finds the address of a request's client. Pure."""

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

UNKNOWN: Final = "unknown"


def peer_address(client: tuple[str, int] | None, forwarded_for: Iterable[str], *, behind_proxy: bool) -> str:
    """Return the peer of the connection; behind a trusted proxy, the address that the proxy saw.

    `forwarded_for` are the values of all `X-Forwarded-For` fields in their order. A proxy adds its own to the end, and clients
    may have written anything before it.
    """
    peer = client[0] if client else UNKNOWN
    if not behind_proxy:
        return peer
    last = ",".join(forwarded_for).rpartition(",")[2].strip()
    try:
        return str(ip_address(last.removeprefix("[").removesuffix("]")))
    except ValueError:
        return peer
