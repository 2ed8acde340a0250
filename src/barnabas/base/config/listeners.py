"""Listeners: the parsed values of `listeners`, `advertised.listeners` and `listener.security.protocol.map`."""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from barnabas.base.errors import ConfigError
from barnabas.base.hosts import address
from barnabas.base.words import SecurityProtocol

_ENDPOINT: Final = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)")
_HOST: Final = re.compile(r"[0-9a-zA-Z\-%._:]*")
PORT_MAX: Final = 65535


class Listener(NamedTuple):
    #: Upper case, unique in a broker.
    name: str
    security_protocol: SecurityProtocol
    #: Empty: every interface; in an advertised listener, this machine's name.
    host: str
    #: 0: any free port.
    port: int

    @property
    def config_prefix(self) -> str:
        """The prefix of settings for this listener only."""
        return f"listener.name.{self.name.lower()}."

    def __str__(self) -> str:
        return f"{self.name}://{address(self.host, self.port)}"


def split_list(text: str) -> list[str]:
    return [entry for entry in re.split(r"\s*,\s*", text.strip()) if entry]


def parse_pairs(setting: str, text: str) -> dict[str, str]:
    """Parse `a:1,b:2` as a mapping; a key may have colons, as an IPv6 address does."""
    pairs: dict[str, str] = {}
    for entry in split_list(text):
        key, colon, value = entry.rpartition(":")
        if not colon:
            raise ConfigError(
                f"Error parsing configuration property '{setting}': {entry!r} is not of the form key:value"
            )
        pairs[key.strip()] = value.strip()
    return pairs


def parse_security_protocol(setting: str, name: str) -> SecurityProtocol:
    try:
        return SecurityProtocol[name.upper()]
    except KeyError:
        known = ", ".join(SecurityProtocol.__members__)
        raise ConfigError(
            f"Invalid security protocol `{name}` defined in {setting}: it must be one of {known}"
        ) from None


def parse_protocol_map(text: str) -> dict[str, SecurityProtocol]:
    setting = "listener.security.protocol.map"
    return {
        name.upper(): parse_security_protocol(setting, protocol)
        for name, protocol in parse_pairs(setting, text).items()
    }


def parse_connection_overrides(text: str) -> dict[str, int]:
    setting = "max.connections.per.ip.overrides"
    overrides: dict[str, int] = {}
    for host, number in parse_pairs(setting, text).items():
        if not _HOST.fullmatch(host):
            raise ConfigError(f"{setting} contains invalid addresses : {host}")
        if not number.isdecimal():
            raise ConfigError(
                f"Error parsing configuration property '{setting}': {number!r} is not a number of connections"
            )
        overrides[host] = int(number)
    return overrides


def parse_listeners(
    text: str, protocols: Mapping[str, SecurityProtocol], *, distinct_ports: bool
) -> tuple[Listener, ...]:
    """:raises ConfigError: for values that Kafka refuses, with Kafka's messages."""
    listeners = tuple(_parse_listener(entry, text, protocols) for entry in split_list(text))
    names = [listener.name for listener in listeners]
    if len(set(names)) != len(names):
        raise ConfigError(f"Each listener must have a different name, listeners: {text}")
    if distinct_ports:
        _check_ports(listeners, text)
    return listeners


def _parse_listener(entry: str, text: str, protocols: Mapping[str, SecurityProtocol]) -> Listener:
    match = _ENDPOINT.fullmatch(entry)
    if match is None:
        raise ConfigError(
            f"Error creating broker listeners from '{text}': Unable to parse {entry} to a broker endpoint; "
            "it must be of the form NAME://host:port"
        )
    name, host, port = match[1].upper(), match[2], int(match[3])
    protocol = protocols.get(name)
    if protocol is None:
        raise ConfigError(
            f"Error creating broker listeners from '{text}': No security protocol defined for listener {name}; "
            "name it in listener.security.protocol.map"
        )
    if not 0 <= port <= PORT_MAX:
        raise ConfigError(f"Error creating broker listeners from '{text}': port {port} is not in 0..{PORT_MAX}")
    return Listener(name, protocol, host, port)


def _check_ports(listeners: Iterable[Listener], text: str) -> None:
    """A port may be shared by two listeners only if one has an IPv4 address and the other an IPv6 address."""
    by_port: dict[int, list[Listener]] = {}
    for listener in listeners:
        if listener.port != 0:
            by_port.setdefault(listener.port, []).append(listener)
    for port, sharing in by_port.items():
        if len(sharing) == 1:
            continue
        versions = [_ip_version(listener.host) for listener in sharing]
        if sorted(versions) == [4, 6]:
            continue
        if all(version == 0 for version in versions):
            raise ConfigError(f"Each listener must have a different port, listeners: {text}")
        if len(sharing) == 2:
            raise ConfigError(
                "If you have two listeners on the same port then one needs to be IPv4 and the other IPv6, "
                f"listeners: {text}, port: {port}"
            )
        raise ConfigError(
            "Each listener must have a different port unless exactly one listener has an IPv4 address and the other "
            f"IPv6 address, listeners: {text}, port: {port}"
        )


def _ip_version(host: str) -> int:
    """Return 4 or 6; 0 for a host name."""
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0
