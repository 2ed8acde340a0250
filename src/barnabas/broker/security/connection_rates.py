"""Limits on the rate of new connections (KIP-612): per broker, per listener, per address.

Owner: the event loop. Pure: time is given. Above the rate of the broker or of a listener, accepting waits: newcomers stay in
the listener's backlog. Above the rate of an address, its connection is accepted, held, and closed after the wait, so that a
client that tries again at once gains nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.broker.security.rates import Rate
from barnabas.broker.zookeeper_client import paths

#: No limit; Kafka's default.
UNLIMITED: Final = 2**31 - 1
#: Largest number of addresses with a known rate; above it, silent ones are forgotten.
ADDRESSES_MAX: Final = 10_000
SETTING: Final = "connection_creation_rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """`max.connection.creation.rate`, of the broker and of its listeners."""

    broker: int = UNLIMITED
    listeners: Mapping[str, int] = field(default_factory=dict)
    #: The inter-broker listener, if there is another one: clients must not keep brokers out. None if it is the only one.
    protected: str | None = None


class ConnectionRates:
    def __init__(self, *, windows: int, window_ms: int, limits: RateLimits | None = None) -> None:
        self._windows = windows
        self._window_ms = window_ms
        self.limits = limits or RateLimits()
        self._broker = self._new()
        self._listeners: dict[str, Rate] = {}
        self._addresses: dict[str, Rate] = {}
        #: Limits by address, with `DEFAULT_ENTITY` for all addresses without their own.
        self._address_limits: dict[str, float] = {}

    def _new(self) -> Rate:
        return Rate(windows=self._windows, window_ms=self._window_ms)

    def address_changed(self, name: str, settings: Mapping[str, str]) -> None:
        """Replace all settings of an address, or of `DEFAULT_ENTITY`. A value that is not a number is ignored."""
        self._address_limits.pop(name, None)
        try:
            self._address_limits[name] = float(settings[SETTING])
        except (KeyError, ValueError):
            return

    def limit_of(self, address: str) -> float | None:
        limits = self._address_limits
        if not limits:
            return None
        return limits.get(address, limits.get(paths.DEFAULT_ENTITY))

    def accepted(self, listener: str, now_ms: int) -> int:
        """Count a connection on a listener; return how long it has to wait."""
        limits, throttle_ms = self.limits, 0
        if listener != limits.protected and limits.broker != UNLIMITED:
            self._broker.record(1, now_ms)
            throttle_ms = self._broker.throttle_ms(limits.broker, now_ms)
        limit = limits.listeners.get(listener, UNLIMITED)
        if limit != UNLIMITED:
            rate = self._listeners.get(listener)
            if rate is None:
                rate = self._listeners[listener] = self._new()
            rate.record(1, now_ms)
            throttle_ms = max(throttle_ms, rate.throttle_ms(limit, now_ms))
        return min(throttle_ms, self._window_ms)

    def came_from(self, address: str, listener: str, now_ms: int) -> int:
        """Count the same connection for its address; return how long it is held before it is closed, 0 if it may stay.

        A connection that may not stay is not counted.
        """
        limit = self.limit_of(address)
        if limit is None:
            return 0
        rate = self._addresses.get(address)
        if rate is None:
            if len(self._addresses) >= ADDRESSES_MAX:
                self._addresses = {key: held for key, held in self._addresses.items() if not held.is_silent(now_ms)}
            rate = self._addresses[address] = self._new()
        rate.record(1, now_ms)
        throttle_ms = min(rate.throttle_ms(limit, now_ms), self._window_ms)
        if throttle_ms:
            rate.record(-1, now_ms)
            if listener != self.limits.protected and self.limits.broker != UNLIMITED:
                self._broker.record(-1, now_ms)
            if listener in self._listeners:
                self._listeners[listener].record(-1, now_ms)
        return throttle_ms
