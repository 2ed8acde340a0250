"""Names of hosts where an address is meant: quotas of addresses may be set by either."""

import asyncio
import ipaddress
import socket


async def address_of(host: str) -> str | None:
    """The address, spelled as sockets spell their peers; None where there is no such host."""
    try:
        return ipaddress.ip_address(host).compressed
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    # As Java chooses: IPv4 first.
    addresses = sorted(found, key=lambda each: each[0] != socket.AF_INET)
    return str(addresses[0][4][0]) if addresses else None
