"""Addresses of machines. Pure."""

from ipaddress import IPv6Address, ip_address, ip_network


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can be meant."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True  # browsers and resolvers give these to nobody else
    try:
        return ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def network_of(host: str) -> str:
    """What one client can be told apart by: an address, of IPv6 the /64 that a provider's customer has to themselves."""
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
