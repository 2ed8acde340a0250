"""How to reach ZooKeeper, under Kafka's names."""

import ssl
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from barnabas.base.errors import ConfigError

#: Kazoo wakes its thread with one byte per request through a socket pair, whose buffer has room for about 270 bytes: with
#: more requests the loop would block.
IN_FLIGHT_MAX: Final = 128


class SessionKey(NamedTuple):
    """Id and password of a session. Their owner may continue or close the session."""

    session_id: int
    password: bytes

    def __repr__(self) -> str:
        return f"SessionKey(0x{self.session_id:x})"


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Settings of one session."""

    #: `zookeeper.connect` without its path: `h1:2181,h2:2181`.
    hosts: str
    #: The path of `zookeeper.connect`, without a slash at its end; empty for none. Created if it is missing.
    chroot: str = ""
    #: `zookeeper.session.timeout.ms`
    session_timeout_ms: int = 18_000
    #: `zookeeper.connection.timeout.ms`
    connection_timeout_ms: int = 18_000
    #: `zookeeper.set.acl`: only clients with our credentials may change znodes that we create.
    secure_acls: bool = False
    #: Credentials: (scheme, value) such as ("digest", "user:password").
    auth: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    #: `zookeeper.max.in.flight.requests`: largest number of unanswered requests.
    in_flight_max: int = IN_FLIGHT_MAX
    #: From the `zookeeper.ssl.*` settings; None if `zookeeper.ssl.client.enable` is false.
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    #: An earlier session to continue, instead of a new one.
    resumes: SessionKey | None = None

    @staticmethod
    def split(connect: str) -> tuple[str, str]:
        """Split `zookeeper.connect` into hosts and path."""
        hosts, slash, path = connect.strip().partition("/")
        if not hosts:
            raise ConfigError(
                f"zookeeper.connect={connect!r} names no host; it has the form host1:2181,host2:2181/path"
            )
        chroot = f"/{path.strip('/')}" if slash and path.strip("/") else ""
        if "//" in chroot:
            raise ConfigError(f"zookeeper.connect={connect!r} has an empty name in its path")
        return hosts, chroot
