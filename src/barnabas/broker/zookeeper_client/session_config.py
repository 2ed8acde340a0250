"""How to reach ZooKeeper, under Kafka's names."""

import ssl
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from barnabas.base.errors import ConfigError

#: kazoo wakes its thread with one byte a request through a socket pair, whose buffer has room for about 270: past that the
#: loop would block.
IN_FLIGHT_MAX: Final = 128


class SessionKey(NamedTuple):
    """Who has it may go on with a session, or close it."""

    session_id: int
    password: bytes

    def __repr__(self) -> str:
        return f"SessionKey(0x{self.session_id:x})"


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Settings of one session."""

    #: `zookeeper.connect` without its path: `h1:2181,h2:2181`.
    hosts: str
    #: The path of `zookeeper.connect`, without a slash at its end; empty for none. Made if it is absent.
    chroot: str = ""
    #: `zookeeper.session.timeout.ms`
    session_timeout_ms: int = 18_000
    #: `zookeeper.connection.timeout.ms`
    connection_timeout_ms: int = 18_000
    #: `zookeeper.set.acl`: only those who have our credentials may change what we make.
    secure_acls: bool = False
    #: Credentials: (scheme, value) such as ("digest", "user:password").
    auth: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    #: `zookeeper.max.in.flight.requests`: requests that are sent and not answered.
    in_flight_max: int = IN_FLIGHT_MAX
    #: From the `zookeeper.ssl.*` settings; None where `zookeeper.ssl.client.enable` is false.
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    #: An earlier session to go on with, instead of a new one.
    resumes: SessionKey | None = None

    @staticmethod
    def split(connect: str) -> tuple[str, str]:
        """The hosts and the path of `zookeeper.connect`."""
        hosts, slash, path = connect.strip().partition("/")
        if not hosts:
            raise ConfigError(
                f"zookeeper.connect={connect!r} names no host; it has the form host1:2181,host2:2181/path"
            )
        chroot = f"/{path.strip('/')}" if slash and path.strip("/") else ""
        if "//" in chroot:
            raise ConfigError(f"zookeeper.connect={connect!r} has an empty name in its path")
        return hosts, chroot
