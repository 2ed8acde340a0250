"""Client quotas: the limit of a user and client id, how much they have used, and how long they must wait.

Owner: the event loop. Pure: time is given. Bytes and the time of requests are rates over `quota.window.num` windows of
`quota.window.size.seconds`; changes of topics are a token bucket (KIP-599). Each broker applies a limit separately. Names are
stored as in znodes, so that a user called `<default>` is not mistaken for the default.
"""

import hashlib
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from barnabas.broker.security.rates import Rate, TokenBucket
from barnabas.broker.zookeeper_client import paths

DEFAULT: Final = paths.DEFAULT_ENTITY
#: Stands for "no user" or "no client id" in an entity.
ABSENT: Final = ""
#: Largest number of users and clients with a known rate; above it, silent ones are forgotten.
METERS_MAX: Final = 10_000
#: How many of them stay if there are too many.
METERS_KEPT: Final = METERS_MAX * 3 // 4
CLIENT_ID_MAX: Final = 255

#: (user, client id), each a sanitized name, `DEFAULT` or `ABSENT`.
Entity = tuple[str, str]


class Quota(Enum):
    """The kinds of limits, by the names of their settings."""

    PRODUCE = "producer_byte_rate"
    CONSUME = "consumer_byte_rate"
    #: Percent of the time of the broker's one loop; 100 is all of it.
    REQUEST = "request_percentage"
    #: Partitions created or deleted per second.
    CONTROLLER_MUTATION = "controller_mutation_rate"

    # Enum's own hash is a Python call, and every produce and fetch looks its limit up.
    __hash__ = object.__hash__


#: Called with (quota, throttled entity, milliseconds to wait).
OnThrottled = Callable[[Quota, Entity, int], None]


class ClientQuotas:
    def __init__(
        self,
        *,
        windows: int,
        window_ms: int,
        controller_windows: int | None = None,
        controller_window_ms: int | None = None,
        on_throttled: OnThrottled = lambda quota, entity, throttle_ms: None,
    ) -> None:
        """The controller's windows (`controller.quota.window.*`) equal the others unless given."""
        self._windows = windows
        self._window_ms = window_ms
        self._controller_windows = controller_windows or windows
        self._controller_window_ms = controller_window_ms or window_ms
        self._on_throttled = on_throttled
        self._limits: dict[Quota, dict[Entity, float]] = {each: {} for each in Quota}
        self._rates: dict[tuple[Quota, Entity], Rate] = {}
        self._buckets: dict[Entity, TokenBucket] = {}
        #: Cache: (quota, user, client id) -> the entity that owns the rate, and its limit; None for no limit.
        self._found: dict[tuple[Quota, str, str], tuple[Entity, float] | None] = {}
        #: The quotas that any user or client has; checked before every request.
        self.limited: frozenset[Quota] = frozenset()

    def entity_changed(self, entity: Entity, settings: Mapping[str, str]) -> None:
        """Replace all settings of a user, a client id or both. A value that is not a number is ignored."""
        for quota in Quota:
            limits = self._limits[quota]
            limits.pop(entity, None)
            try:
                limits[entity] = float(settings[quota.value])
            except (KeyError, ValueError):
                continue
        self._found.clear()
        self.limited = frozenset(quota for quota in Quota if self._limits[quota])

    def limit(self, quota: Quota, user: str, client_id: str) -> float | None:
        found = self._find(quota, user, client_id) if self._limits[quota] else None
        return found[1] if found is not None else None

    def bytes_max(self, quota: Quota, user: str, client_id: str) -> float | None:
        """Return the amount above which a single request would be throttled even after a silence; None for no limit."""
        limit = self.limit(quota, user, client_id)
        return None if limit is None else limit * (self._windows - 1) * self._window_ms / 1000

    # -- rates --------------------------------------------------------------------------------------------------------

    def record(self, quota: Quota, user: str, client_id: str, amount: float, *, now_ms: int) -> int:
        """Count bytes, or percent-seconds of the loop; return how many milliseconds the client must wait now."""
        if not self._limits[quota]:
            return 0
        found = self._find(quota, user, client_id)
        if found is None:
            return 0
        entity, limit = found
        rate = self._rate(quota, entity, now_ms)
        rate.record(amount, now_ms)
        throttle_ms = rate.throttle_ms(limit, now_ms)
        if throttle_ms and quota is Quota.REQUEST:
            # Kafka's bound: the time of a request is known only after it, and one slow request must not lock the client out.
            throttle_ms = min(throttle_ms, self._window_ms)
        if throttle_ms:
            self._on_throttled(quota, entity, throttle_ms)
        return throttle_ms

    def add(self, quota: Quota, user: str, client_id: str, amount: float, *, now_ms: int) -> None:
        """Count without throttling. A negative amount takes back bytes that were not sent."""
        if not self._limits[quota]:
            return
        found = self._find(quota, user, client_id)
        if found is not None:
            self._rate(quota, found[0], now_ms).record(amount, now_ms)

    def _rate(self, quota: Quota, entity: Entity, now_ms: int) -> Rate:
        rate = self._rates.get((quota, entity))
        if rate is None:
            if len(self._rates) >= METERS_MAX:
                active = [key for key, held in self._rates.items() if not held.is_silent(now_ms)]
                # Drop many of the oldest entries: a search through all entries for each new one would cost too much.
                self._rates = {key: self._rates[key] for key in active[-METERS_KEPT:]}
                self._found.clear()
            rate = self._rates[quota, entity] = Rate(windows=self._windows, window_ms=self._window_ms)
        return rate

    # -- changes of topics --------------------------------------------------------------------------------------------

    def mutations(self, user: str, client_id: str, *, strict: bool, now_ms: Callable[[], int]) -> "MutationQuota":
        """Return the quota of one request's changes. Use it for that request only."""
        limits = self._limits[Quota.CONTROLLER_MUTATION]
        found = self._find(Quota.CONTROLLER_MUTATION, user, client_id) if limits else None
        if found is None:
            return MutationQuota(None, 0.0, strict=strict, now_ms=now_ms)
        entity, limit = found
        bucket = self._buckets.get(entity)
        if bucket is None:
            if len(self._buckets) >= METERS_MAX:
                at_ms = now_ms()
                heard = [key for key, held in self._buckets.items() if not held.is_silent(at_ms)]
                self._buckets = {key: self._buckets[key] for key in heard[-METERS_KEPT:]}
            bucket = self._buckets[entity] = TokenBucket(
                windows=self._controller_windows, window_ms=self._controller_window_ms
            )
        return MutationQuota(
            bucket,
            limit,
            strict=strict,
            now_ms=now_ms,
            on_throttled=lambda throttle_ms: self._on_throttled(Quota.CONTROLLER_MUTATION, entity, throttle_ms),
        )

    # -- entities -----------------------------------------------------------------------------------------------------

    def _find(self, quota: Quota, user: str, client_id: str) -> tuple[Entity, float] | None:
        if len(client_id) > CLIENT_ID_MAX:
            # A long name without its own limit is not stored: clients choose their names.
            client_id = f"long-{hashlib.sha256(client_id.encode('utf-8', 'surrogatepass')).hexdigest()}"
        key = (quota, user, client_id)
        if key not in self._found:
            if len(self._found) >= METERS_MAX:
                self._found.clear()
            self._found[key] = self._look_up(quota, paths.sanitize(user), paths.sanitize(client_id))
        return self._found[key]

    def _look_up(self, quota: Quota, user: str, client_id: str) -> tuple[Entity, float] | None:
        """Look up the limit in Kafka's order: the most specific applies. Under a default, each user and client has its own
        rate."""
        limits = self._limits[quota]
        for entity, owner in (
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
                return owner, limit
        return None


class MutationQuota:
    """Permits for one request that creates or deletes partitions.

    Strict: a change that comes while the bucket is below zero is refused with an error. Not strict, for clients that do not
    know the error: every change is carried out, and the response says how long to wait.
    """

    def __init__(
        self,
        bucket: TokenBucket | None,
        limit: float,
        *,
        strict: bool,
        now_ms: Callable[[], int],
        on_throttled: Callable[[int], None] = lambda throttle_ms: None,
    ) -> None:
        self._bucket = bucket
        self._limit = limit
        self._strict = strict
        self._now_ms = now_ms
        self._on_throttled = on_throttled
        self._throttle_ms = 0
        self._known_ms = 0

    def take(self, partitions: int) -> bool:
        """Whether this number of partitions may be created or deleted now."""
        if self._bucket is None:
            return True
        now_ms = self._now_ms()
        if self._strict:
            throttle_ms = self._bucket.throttle_ms(self._limit, now_ms)
            if not throttle_ms:
                self._bucket.take(partitions, self._limit, now_ms)
                return True
        else:
            self._bucket.take(partitions, self._limit, now_ms)
            throttle_ms = self._bucket.throttle_ms(self._limit, now_ms)
        if throttle_ms:
            self._throttle_ms, self._known_ms = throttle_ms, now_ms
            self._on_throttled(throttle_ms)
        return not self._strict

    @property
    def throttle_ms(self) -> int:
        """How long the client must wait from now: part of the wait may have passed during the request."""
        return max(0, self._throttle_ms - (self._now_ms() - self._known_ms)) if self._throttle_ms else 0


def entity_of(entity_type: str, name: str) -> Entity | None:
    """Return the entity of a path below /config; None if it has no client quotas."""
    if entity_type == paths.CLIENTS:
        return ABSENT, name
    if entity_type == paths.USERS:
        user, separator, client_id = name.partition(f"/{paths.CLIENTS}/")
        return user, client_id if separator else ABSENT
    return None
