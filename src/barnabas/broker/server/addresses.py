"""Resolves host names where an address is expected: quotas of addresses accept both."""

import asyncio
import ipaddress
import socket


async def address_of(host: str) -> str | None:
    """Return the address in the form in which sockets name their peers; None if there is no such host."""
    try:
        return ipaddress.ip_address(host).compressed
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    # As Java does: IPv4 first.
    addresses = sorted(found, key=lambda info: info[0] != socket.AF_INET)
    return str(addresses[0][4][0]) if addresses else None
