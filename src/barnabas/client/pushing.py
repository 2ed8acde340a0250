"""A client that pushes metrics to its brokers (KIP-714), as the brokers describe it. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class BrokerTime:
    """The time that brokers took for a client's requests of one API."""

    count: int
    #: All requests together.
    total_ms: float
    #: The part of it that the requests waited for records, replicas or members.
    waiting_ms: float

    @property
    def mean_ms(self) -> float:
        return self.total_ms / self.count if self.count else 0.0

    @property
    def own_mean_ms(self) -> float:
        """The mean time without the waiting."""
        return (self.total_ms - self.waiting_ms) / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PushingClient:
    instance_id: str
    client_id: str
    software_name: str
    software_version: str
    principal: str
    address: str
    #: The broker that it pushes to.
    broker_id: int
    interval_ms: int
    pushed_ms_ago: int
    is_ended: bool
    #: By name, then by labels.
    metrics: dict[str, dict[Labels, float]] = field(default_factory=dict)
    #: By API key, at the broker that it pushes to: its requests since its first push.
    broker_times: dict[int, BrokerTime] = field(default_factory=dict)

    def values(self, *names: str) -> Iterator[float]:
        """Yield the values of all series with one of these names."""
        for name in names:
            yield from self.metrics.get(name, {}).values()
