"""Derive the settings of each broker on a host from one file. Pure.

Broker K of a host has the file's `broker.id` + K, its ports + K, and its own folder in each of the log directories.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.base.config.listeners import PORT_MAX, split_list
from barnabas.base.errors import ConfigError

DEFAULT_LISTENERS: Final = "PLAINTEXT://:9092"


@dataclass(frozen=True, slots=True)
class HostedBroker:
    broker_id: int
    #: Settings that override the file's.
    overrides: Mapping[str, str]

    @property
    def arguments(self) -> list[str]:
        return [f"{name}={value}" for name, value in self.overrides.items()]

    def at(self, listeners: str) -> "HostedBroker":
        """Return the broker pinned to the addresses that it reported: after a restart it keeps a port that it chose itself."""
        ports = {name: port for name, _, port in (_parts(each) for each in split_list(listeners))}
        kept = []
        for listener in split_list(self.overrides["listeners"]):
            name, address, port = _parts(listener)
            kept.append(f"{address}:{ports.get(name, port) if port == '0' else port}")
        return HostedBroker(self.broker_id, {**self.overrides, "listeners": ",".join(kept)})


def _parts(listener: str) -> tuple[str, str, str]:
    """Split a listener into its name, everything before the port, and the port."""
    address, _, port = listener.rpartition(":")
    return address.partition("://")[0], address, port


def derive(settings: Mapping[str, str], brokers: int, *, host: str) -> list[HostedBroker]:
    """:raises ConfigError: if several brokers cannot be derived from the file."""
    if brokers < 1:
        raise ConfigError("--brokers must be at least 1")
    first = _first_id(settings)
    return [
        HostedBroker(
            first + number,
            {
                "broker.id": str(first + number),
                **_listeners(settings, number),
                **_log_dirs(settings, first + number),
                # Without racks, all replicas of a partition could be on this host and be lost together.
                "broker.rack": settings.get("broker.rack") or host,
                # The host's endpoint gets the file's port. Each broker gets a private one.
                "barnabas.metrics.host": "127.0.0.1",
                "barnabas.metrics.port": "0",
            },
        )
        for number in range(brokers)
    ]


def _first_id(settings: Mapping[str, str]) -> int:
    given = settings.get("broker.id", "")
    if not given.strip().isdigit():
        raise ConfigError(
            "broker.id must be set: it is the first broker's, and the others of this host count on from it "
            "(10, 20, 30 leave room for ten brokers on each of three hosts)"
        )
    return int(given)


def _listeners(settings: Mapping[str, str], number: int) -> dict[str, str]:
    listeners = settings.get("listeners") or DEFAULT_LISTENERS
    moved = {"listeners": _moved("listeners", listeners, number)}
    if settings.get("advertised.listeners"):
        moved["advertised.listeners"] = _moved("advertised.listeners", settings["advertised.listeners"], number)
    return moved


def _moved(setting: str, listeners: str, number: int) -> str:
    """Return the same addresses with ports raised by `number`; port 0 stays."""
    moved = []
    for listener in split_list(listeners):
        address, colon, port = listener.rpartition(":")
        if not colon or not port.isdigit():
            raise ConfigError(f"{setting}: {listener} has no port")
        if port != "0" and int(port) + number > PORT_MAX:
            raise ConfigError(f"{setting}: {listener}: there is no port {int(port) + number} for broker {number + 1}")
        moved.append(f"{address}:{int(port) + number if port != '0' else 0}")
    return ",".join(moved)


def _log_dirs(settings: Mapping[str, str], broker_id: int) -> dict[str, str]:
    given = settings.get("log.dirs") or settings.get("log.dir") or "/tmp/kafka-logs"
    return {"log.dirs": ",".join(f"{folder.rstrip('/')}/broker-{broker_id}" for folder in split_list(given))}
