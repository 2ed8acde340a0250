"""Limits the number of connections: of the broker, of each listener, from each address.

Owner: the event loop. A connection counts from its acceptance until its close, so a TLS handshake that never ends counts too.

As in Kafka, the brokers' listener is exempt from the broker's own `max.connections` if clients have another listener:
connections of brokers are added, and the longest idle connections of the other listeners are closed for them.
"""

from collections import Counter as Tally
from collections.abc import Mapping
from dataclasses import dataclass, field

from barnabas.base.host import descriptors

#: Kafka's default of `max.connections` and `max.connections.per.ip`.
NO_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    max_connections: int = NO_LIMIT
    #: `listener.name.<name>.max.connections`; a listener without an entry has no limit of its own.
    listeners: Mapping[str, int] = field(default_factory=dict)
    max_connections_per_ip: int = NO_LIMIT
    per_ip_overrides: Mapping[str, int] | None = None
    idle_ms_max: int = 600_000
    #: The brokers' listener, if clients have another one: it may use more descriptors.
    broker_listener: str | None = None

    def for_ip(self, host: str) -> int:
        """Return the limit of an address. Even if no limit is set, one address may not take all connections."""
        limit = (self.per_ip_overrides or {}).get(host, self.max_connections_per_ip)
        if limit != NO_LIMIT or self.max_connections != NO_LIMIT:
            return limit
        return descriptors.for_connections() // descriptors.PER_CONNECTION // 2

    def descriptors_for(self, listener: str) -> int:
        return descriptors.for_brokers() if listener == self.broker_listener else descriptors.for_connections()


class ConnectionQuotas:
    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._listeners: Tally[str] = Tally()
        self._hosts: Tally[str] = Tally()

    def has_room(self, listener: str) -> bool:
        """Whether the listener may accept one more connection."""
        limits = self.limits
        if self._listeners[listener] >= limits.listeners.get(listener, NO_LIMIT):
            return False
        return listener == limits.broker_listener or self.taken < limits.max_connections

    def is_host_full(self, host: str) -> bool:
        return self._hosts[host] >= self.limits.for_ip(host)

    def take(self, listener: str, host: str) -> None:
        self._listeners[listener] += 1
        self._hosts[host] += 1

    def give_back(self, listener: str, host: str) -> None:
        for tally, key in ((self._listeners, listener), (self._hosts, host)):
            tally[key] -= 1
            if not tally[key]:
                del tally[key]

    @property
    def taken(self) -> int:
        return self._listeners.total()

    @property
    def excess(self) -> int:
        """The number of connections above `max.connections`."""
        return max(0, self.taken - self.limits.max_connections)
