"""Addresses of machines. Pure."""

from ipaddress import IPv6Address, ip_address, ip_network


def is_loopback(host: str) -> bool:
    """Whether the address belongs to this machine alone."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True  # browsers and resolvers keep these names for this machine
    try:
        return ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def network_of(host: str) -> str:
    """The network of one client: its address; of IPv6 the /64, since one customer of a provider has all of it."""
    try:
        parsed = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped or ip_network((parsed, 64), strict=False))
    return str(parsed)


def bracketed(host: str) -> str:
    """As it stands before a port: an address of IPv6 is in brackets."""
    return f"[{host}]" if ":" in host else host


def address(host: str, port: int) -> str:
    return f"{bracketed(host)}:{port}"
