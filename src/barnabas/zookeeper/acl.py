"""Access control: ZooKeeper's schemes `world`, `auth`, `digest`, `x509` and `ip`, and the super user.

Pure. An identity is (scheme, id), as a connection collects them; an ACL entry is (permissions, scheme, id).
"""

import base64
import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from barnabas.zookeeper.wire import Acl, Err, Perm

if TYPE_CHECKING:
    import ipaddress

Identity = tuple[str, str]

ALL = 31
#: Bound of an ACL's entries, because each access to a node checks all of them.
ENTRIES_MAX = 100
OPEN_ACL: Acl = ((ALL, "world", "anyone"),)
READ_ACL: Acl = ((int(Perm.READ), "world", "anyone"),)
SUPER: Identity = ("super", "")


class Refusal(Exception):
    """ZooKeeper refuses the operation; the client gets `err`."""

    def __init__(self, err: Err) -> None:
        super().__init__(err.name)
        self.err = err


def digest_of(credentials: str) -> str:
    """Convert `user:password` to the `user:base64(sha1)` of ACLs."""
    user = credentials.split(":", 1)[0]
    sha1 = hashlib.sha1(credentials.encode("utf-8"), usedforsecurity=False).digest()
    return f"{user}:{base64.b64encode(sha1).decode()}"


def _network(expression: str) -> "ipaddress.IPv4Network | ipaddress.IPv6Network | None":
    import ipaddress  # slow to import, and few ACLs need it

    try:
        return ipaddress.ip_network(expression, strict=False)
    except ValueError:
        return None


def _ip_matches(address: str, expression: str) -> bool:
    import ipaddress

    network = _network(expression)
    if network is None:
        return False
    try:
        return ipaddress.ip_address(address) in network
    except ValueError:
        return False


def _is_valid(scheme: str, identity: str) -> bool:
    if scheme == "digest":
        # As Java's split(":"): two parts, the second of them not empty.
        _user, colon, rest = identity.partition(":")
        return bool(colon) and bool(rest) and ":" not in rest.rstrip(":") and bool(rest.rstrip(":"))
    if scheme == "ip":
        return _network(identity) is not None
    return scheme == "x509" and bool(identity)


def check(acl: Acl, perm: int, identities: Iterable[Identity]) -> None:
    """Raise `Refusal(NO_AUTH)` unless one of `identities` has one of the permissions in `perm`."""
    if acl is OPEN_ACL or not acl:
        return
    for granted, scheme, identity in acl:
        if granted & perm and scheme == "world" and identity == "anyone":
            return
    for held in identities:
        if held[0] == "super":
            return
        for granted, scheme, identity in acl:
            if not granted & perm or held[0] != scheme:
                continue
            if scheme == "ip":
                if _ip_matches(held[1], identity):
                    return
            elif held[1] == identity:
                return
    raise Refusal(Err.NO_AUTH)


def allows(acl: Acl, perm: int, identities: Iterable[Identity]) -> bool:
    try:
        check(acl, perm, identities)
    except Refusal:
        return False
    return True


def fix(acl: Acl, identities: Iterable[Identity]) -> Acl:
    """Return the ACL to store: no duplicates, `auth` replaced by the client's identities. Raises INVALID_ACL."""
    if acl == OPEN_ACL:
        return OPEN_ACL
    if len(acl) > ENTRIES_MAX:
        raise Refusal(Err.INVALID_ACL)
    fixed: list[tuple[int, str, str]] = []
    for entry in dict.fromkeys(acl):
        perms, scheme, identity = entry
        if scheme == "world" and identity == "anyone":
            fixed.append(entry)
        elif scheme == "auth":
            authenticated = [held for held in identities if held[0] in ("digest", "x509")]
            if not authenticated:
                raise Refusal(Err.INVALID_ACL)
            fixed.extend((perms, *held) for held in authenticated)
        elif _is_valid(scheme, identity):
            fixed.append(entry)
        else:
            raise Refusal(Err.INVALID_ACL)
    if not fixed:
        raise Refusal(Err.INVALID_ACL)
    return tuple(fixed)


def redact(acl: Acl) -> Acl:
    """Hide the digests, for a client without ADMIN."""
    return tuple(
        (perms, scheme, identity.split(":", 1)[0] + ":x" if scheme == "digest" and ":" in identity else identity)
        for perms, scheme, identity in acl
    )
