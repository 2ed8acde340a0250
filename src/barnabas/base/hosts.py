"""Addresses of machines. Pure."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can be meant."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True  # browsers and resolvers give these to nobody else
    try:
        return ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def bracketed(host: str) -> str:
    """As it stands before a port: an address of IPv6 is in brackets."""
    return f"[{host}]" if ":" in host else host


def address(host: str, port: int) -> str:
    return f"{bracketed(host)}:{port}"
