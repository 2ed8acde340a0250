"""Addresses of machines. Pure."""

from ipaddress import IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Return whether the address can only be reached from this machine."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True  # browsers and resolvers reserve these names for this machine
    try:
        return ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def network_of(host: str) -> str:
    """Return the network of one client: its IPv4 address, or the /64 of its IPv6 address, since a customer has a whole /64."""
    try:
        parsed = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped or ip_network((parsed, 64), strict=False))
    return str(parsed)


def bracketed(host: str) -> str:
    """Return the host as it is written before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def address(host: str, port: int) -> str:
    return f"{bracketed(host)}:{port}"


def host_of(header: str) -> str:
    """Return the name in a `Host` header, without the port."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""
