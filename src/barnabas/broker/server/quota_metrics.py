"""Throttle times, by quota and by throttled client. Owner: the event loop."""

from collections import deque
from typing import Final

from barnabas.base.metrics.registry import Registry
from barnabas.broker.security.quotas import Entity, Quota

#: Users and clients with a series of their own; a new one replaces the oldest.
ENTITIES_MAX: Final = 1_000
_BY_ENTITY: Final = "kafka_server_client_throttle_time_ms"
#: Kafka's names for the groups of its own metrics.
_NAMES: Final = {
    Quota.PRODUCE: "Produce",
    Quota.CONSUME: "Fetch",
    Quota.REQUEST: "Request",
    Quota.CONTROLLER_MUTATION: "ControllerMutation",
}


class QuotaMetrics:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._all = {
            quota: registry.histogram("kafka_server_throttle_time_ms", "Times that clients had to wait.", quota=name)
            for quota, name in _NAMES.items()
        }
        self._known: deque[tuple[Quota, Entity]] = deque()
        self._seen: set[tuple[Quota, Entity]] = set()

    def throttled(self, quota: Quota, entity: Entity, throttle_ms: int) -> None:
        self._all[quota].observe_ms(throttle_ms)
        key = (quota, entity)
        if key not in self._seen:
            if len(self._seen) >= ENTITIES_MAX:
                oldest = self._known.popleft()
                self._seen.discard(oldest)
                self._registry.remove(_BY_ENTITY, **_labels(*oldest))
            self._known.append(key)
            self._seen.add(key)
        self._registry.counter(
            _BY_ENTITY, "Milliseconds that a user or client id had to wait, all together.", **_labels(quota, entity)
        ).add(throttle_ms)


def _labels(quota: Quota, entity: Entity) -> dict[str, str]:
    user, client_id = entity
    return {"quota": _NAMES[quota], "user": user, "client_id": client_id}
