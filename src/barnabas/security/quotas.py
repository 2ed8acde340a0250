"""Client quotas on bytes: which limit applies to a user and client id, how fast they are, how long they must wait.

Owner: the event loop. Pure: time is given. Rates are measured as Kafka measures them, over `quota.window.num` windows of
`quota.window.size.seconds`; a limit is each broker's own. Names are kept as znodes spell them, so that a user called
`<default>` is not taken for the default.
"""

from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Final

from barnabas.coordination import paths

DEFAULT: Final = paths.DEFAULT_ENTITY
#: No user, or no client id, in an entity.
ABSENT: Final = ""
THROTTLE_MS_MAX: Final = 2**31 - 1
#: Users and clients whose rate is known; past it, those that are silent are forgotten.
METERS_MAX: Final = 10_000

#: (user, client id), each a sanitized name, `DEFAULT` or `ABSENT`.
Entity = tuple[str, str]


class Quota(Enum):
    """The limits that are enforced, by the name of their setting."""

    PRODUCE = "producer_byte_rate"
    CONSUME = "consumer_byte_rate"


class Rate:
    """Bytes a second over the last windows."""

    __slots__ = ("_samples", "_window_ms", "_windows")

    def __init__(self, *, windows: int, window_ms: int) -> None:
        self._windows = windows
        self._window_ms = window_ms
        #: [when it began, how much], the oldest first.
        self._samples: deque[list[float]] = deque()

    def record(self, amount: float, now_ms: int) -> None:
        self._purge(now_ms)
        if not self._samples or now_ms - self._samples[-1][0] >= self._window_ms:
            self._samples.append([now_ms, 0.0])
        self._samples[-1][1] += amount

    def _purge(self, now_ms: int) -> None:
        while self._samples and now_ms - self._samples[0][0] >= self._windows * self._window_ms:
            self._samples.popleft()

    def is_silent(self, now_ms: int) -> bool:
        self._purge(now_ms)
        return not self._samples

    def measured_ms(self, now_ms: int) -> float:
        """The time that the rate is taken over: all windows but the current one count whole even before they have passed,
        so that a first burst is not taken for a rate."""
        elapsed_ms = now_ms - self._samples[0][0] if self._samples else 0
        full = int(elapsed_ms // self._window_ms)
        return elapsed_ms + max(0, self._windows - 1 - full) * self._window_ms

    def per_second(self, now_ms: int) -> float:
        self._purge(now_ms)
        measured_ms = self.measured_ms(now_ms) or self._window_ms
        return sum(amount for _, amount in self._samples) / measured_ms * 1000


class ClientQuotas:
    def __init__(self, *, windows: int, window_ms: int) -> None:
        self._windows = windows
        self._window_ms = window_ms
        self._limits: dict[Quota, dict[Entity, float]] = {each: {} for each in Quota}
        self._rates: dict[tuple[Quota, Entity], Rate] = {}
        #: What was found for (quota, user, client id): whose rate it is, and the limit; None for no limit.
        self._found: dict[tuple[Quota, str, str], tuple[Entity, float] | None] = {}

    def entity_changed(self, entity: Entity, settings: Mapping[str, str]) -> None:
        """All settings of a user, a client id or both, as they are now. A value that is no number is no limit."""
        for quota in Quota:
            limits = self._limits[quota]
            limits.pop(entity, None)
            try:
                limits[entity] = float(settings[quota.value])
            except (KeyError, ValueError):
                continue
        self._found.clear()

    def record(self, quota: Quota, user: str, client_id: str, amount: float, *, now_ms: int) -> int:
        """Counts bytes; answers how many milliseconds the client must wait now."""
        if not self._limits[quota]:
            return 0
        found = self._find(quota, user, client_id)
        if found is None:
            return 0
        entity, limit = found
        rate = self._rate(quota, entity, now_ms)
        rate.record(amount, now_ms)
        excess = rate.per_second(now_ms) - limit
        if excess <= 0:
            return 0
        if limit <= 0:
            return THROTTLE_MS_MAX
        return min(THROTTLE_MS_MAX, round(excess / limit * rate.measured_ms(now_ms)))

    def unrecord(self, quota: Quota, user: str, client_id: str, amount: float, *, now_ms: int) -> None:
        """What was counted is not sent after all."""
        found = self._find(quota, user, client_id)
        if found is not None:
            self._rate(quota, found[0], now_ms).record(-amount, now_ms)

    def _rate(self, quota: Quota, entity: Entity, now_ms: int) -> Rate:
        rate = self._rates.get((quota, entity))
        if rate is None:
            if len(self._rates) >= METERS_MAX:
                self._rates = {key: held for key, held in self._rates.items() if not held.is_silent(now_ms)}
                self._found.clear()
            rate = self._rates[quota, entity] = Rate(windows=self._windows, window_ms=self._window_ms)
        return rate

    def _find(self, quota: Quota, user: str, client_id: str) -> tuple[Entity, float] | None:
        key = (quota, user, client_id)
        if key not in self._found:
            if len(self._found) >= METERS_MAX:
                self._found.clear()
            self._found[key] = self._look_up(quota, paths.sanitize(user), paths.sanitize(client_id))
        return self._found[key]

    def _look_up(self, quota: Quota, user: str, client_id: str) -> tuple[Entity, float] | None:
        """Kafka's order: the most particular limit counts. Each user and client has a rate of its own under a default."""
        limits = self._limits[quota]
        for entity, whose in (
            ((user, client_id), (user, client_id)),
            ((user, DEFAULT), (user, client_id)),
            ((user, ABSENT), (user, ABSENT)),
            ((DEFAULT, client_id), (user, client_id)),
            ((DEFAULT, DEFAULT), (user, client_id)),
            ((DEFAULT, ABSENT), (user, ABSENT)),
            ((ABSENT, client_id), (ABSENT, client_id)),
            ((ABSENT, DEFAULT), (ABSENT, client_id)),
        ):
            limit = limits.get(entity)
            if limit is not None:
                return whose, limit
        return None


def entity_of(entity_type: str, name: str) -> Entity | None:
    """The entity behind a path below /config; None for one that has no quotas on bytes."""
    if entity_type == paths.CLIENTS:
        return ABSENT, name
    if entity_type == paths.USERS:
        user, separator, client_id = name.partition(f"/{paths.CLIENTS}/")
        return user, client_id if separator else ABSENT
    return None
