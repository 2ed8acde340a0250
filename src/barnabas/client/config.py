"""The settings of a client, from a `--command-config` file or from keyword arguments, checked once."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from barnabas.base.config import properties
from barnabas.base.errors import ConfigError
from barnabas.base.words import SECURITY_PROTOCOLS

#: Kafka's default of `socket.request.max.bytes`; in practice it bounds responses too.
DEFAULT_RESPONSE_BYTES_MAX: Final = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Everything that a connection to a cluster depends on. `properties` keeps the file's settings for the tools."""

    #: `host:port` pairs, never empty once a client uses it.
    bootstrap: tuple[tuple[str, int], ...] = ()
    client_id: str = "barnabas"
    security_protocol: str = "PLAINTEXT"
    #: Limit of one request, from sending it to its response.
    request_timeout_ms: int = 30_000
    #: Limit of one operation with all its retries.
    api_timeout_ms: int = 60_000
    connect_timeout_ms: int = 10_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    max_in_flight: int = 5
    response_bytes_max: int = DEFAULT_RESPONSE_BYTES_MAX
    #: Bound of the elements of all arrays in a response together; None: no bound.
    response_elements_max: int | None = None
    #: `ssl.*` and `sasl.*` as written; `client.security` reads them. `repr` hides both mappings: they hold passwords.
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def setup_timeout_ms(self) -> int:
        """Limit of the first response on a connection. A port that accepts but stays silent does not belong to a broker."""
        return min(self.request_timeout_ms, self.connect_timeout_ms)

    def within(self, timeout_ms: int) -> "ClientConfig":
        """Return a copy whose operations take no longer than this, for callers that must not block others."""
        return replace(
            self,
            api_timeout_ms=min(self.api_timeout_ms, timeout_ms),
            request_timeout_ms=min(self.request_timeout_ms, timeout_ms),
        )

    def __post_init__(self) -> None:
        if self.security_protocol not in SECURITY_PROTOCOLS:
            known = ", ".join(SECURITY_PROTOCOLS)
            raise ConfigError(f"security.protocol={self.security_protocol!r} is not valid: use {known}")


T = TypeVar("T")

_INT_SETTINGS: Final = {
    "request.timeout.ms": "request_timeout_ms",
    "default.api.timeout.ms": "api_timeout_ms",
    "socket.connection.setup.timeout.ms": "connect_timeout_ms",
    "retry.backoff.ms": "retry_backoff_ms",
    "retry.backoff.max.ms": "retry_backoff_max_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "max.in.flight.requests.per.connection": "max_in_flight",
}


def client_config(
    bootstrap: str | None = None, settings: Mapping[str, str] | None = None, *, client_id: str | None = None
) -> ClientConfig:
    """Read settings by Kafka's names. The caller's `bootstrap` and `client_id` override the file's."""
    props = properties.resolve_variables(settings or {}, os.environ)
    values = {
        attribute: value
        for name, attribute in _INT_SETTINGS.items()
        if (value := whole_number(props, name, None, at_least=0)) is not None
    }
    servers = bootstrap if bootstrap is not None else props.get("bootstrap.servers", "")
    return ClientConfig(
        bootstrap=parse_bootstrap(servers) if servers else (),
        client_id=props.get("client.id") or client_id or "barnabas",
        security_protocol=props.get("security.protocol", "PLAINTEXT").upper(),
        security={name: value for name, value in props.items() if name.startswith(("ssl.", "sasl."))},
        properties=props,
        **values,
    )


def whole_number(settings: Mapping[str, str], name: str, default: T, *, at_least: int | None = None) -> int | T:
    """:raises ConfigError: if the text is not a whole number, or the number is too small."""
    text = settings.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a number") from None
    if at_least is not None and value < at_least:
        raise ConfigError(f"{name}={value} must be at least {at_least}")
    return value


def parse_bootstrap(text: str) -> tuple[tuple[str, int], ...]:
    """Parse `host:port,host:port`, with `[::1]:9092` for IPv6 and an optional `PROTOCOL://` before each."""
    servers = []
    for entry in (part.strip() for part in text.split(",")):
        if not entry:
            continue
        address = entry.rpartition("://")[2]
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError(f"bootstrap server {entry!r} is not host:port")
        servers.append((host.removeprefix("[").removesuffix("]"), int(port)))
    if not servers:
        raise ConfigError("no bootstrap server given; say for example localhost:9092")
    return tuple(servers)


def load_properties(path: str | Path) -> dict[str, str]:
    """Read a `--command-config` file."""
    return dict(properties.load(str(path)))
