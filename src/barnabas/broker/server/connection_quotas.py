"""How many connections there may be: to the broker, to each listener, from each address.

Owner: the event loop. A connection has a place from the moment it is accepted until it is closed, so a TLS handshake that
never ends takes a place, too.

As in Kafka, the listener of the brokers is exempt from the broker's own `max.connections` if clients have another listener:
connections of brokers come on top, and the longest idle connections of the other listeners are closed for them.
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
    #: `listener.name.<name>.max.connections`; a listener that is not here has no limit of its own.
    listeners: Mapping[str, int] = field(default_factory=dict)
    max_connections_per_ip: int = NO_LIMIT
    per_ip_overrides: Mapping[str, int] | None = None
    idle_ms_max: int = 600_000
    #: The listener of the brokers, where clients have another one: it may use more descriptors.
    broker_listener: str | None = None

    def for_ip(self, host: str) -> int:
        """If no limit is set, one address may still not take all connections."""
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
        """How many connections there are above `max.connections`."""
        return max(0, self.taken - self.limits.max_connections)
