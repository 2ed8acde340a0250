"""The client instances that ask for subscriptions and push metrics, and Kafka's rules for their requests. Pure.

A client instance gets an id with its first request. Its subscription is the union of all subscriptions that match it; the id
of the subscription is a checksum, so that every broker computes the same one. Between two requests of an instance there must
be its push interval.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from barnabas.base.config.client_metrics_config import (
    CLIENT_ID,
    CLIENT_INSTANCE_ID,
    CLIENT_SOFTWARE_NAME,
    CLIENT_SOFTWARE_VERSION,
    CLIENT_SOURCE_ADDRESS,
    CLIENT_SOURCE_PORT,
    DEFAULT_INTERVAL_MS,
    EVERY_METRIC,
    ClientMetricsConfig,
)
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import format_uuid
from barnabas.base.recent import Recent
from barnabas.wire.compression import Codec

#: As in Kafka: client instances that a broker knows at the same time.
INSTANCES_MAX: Final = 16_384
#: As in Kafka: an instance that is silent for three push intervals, and for this long, is forgotten.
SILENCE_MS_LEAST: Final = 60_000
SILENT_INTERVALS: Final = 3
#: Characters of a client's names that are kept. Clients choose the names.
NAME_CHARS_MAX: Final = 200
#: The codecs that clients may use, in the order of preference.
ACCEPTED_CODECS: Final = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
_UNUSABLE_IDS: Final = (bytes(16), bytes(15) + b"\x01")
#: Errors after which a client may ask for its subscription at once.
_ASKS_AGAIN: Final = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)

Subscriptions = Mapping[str, ClientMetricsConfig]


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client, as its requests show it. Names are cut to NAME_CHARS_MAX."""

    instance_id: bytes
    #: None if the client has none.
    client_id: str | None
    software_name: str
    software_version: str
    principal: str
    address: str
    port: int

    @property
    def selectors(self) -> dict[str, str]:
        """The values that `match` can select by; without those that are not known."""
        values = {
            CLIENT_INSTANCE_ID: format_uuid(self.instance_id),
            CLIENT_SOFTWARE_NAME: self.software_name,
            CLIENT_SOFTWARE_VERSION: self.software_version,
            CLIENT_SOURCE_ADDRESS: self.address,
            CLIENT_SOURCE_PORT: str(self.port),
        }
        known = {name: value for name, value in values.items() if value}
        return known if self.client_id is None else known | {CLIENT_ID: self.client_id}


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one client instance is asked for."""

    id: int
    metrics: tuple[str, ...]
    interval_ms: int


@dataclass(slots=True)
class Instance:
    client: Client
    subscription: Subscription
    #: The subscriptions from which `subscription` was made. Another object: they have changed.
    made_from: Subscriptions
    seen_ms: int
    last_get_ms: int | None = None
    last_push_ms: int | None = None
    #: Whether the next push may come at any time: clients spread the first push after a subscription over an interval.
    may_push_early: bool = False
    is_terminating: bool = False
    last_error: ErrorCode = ErrorCode.NONE

    def is_silent(self, now_ms: int) -> bool:
        patience_ms = max(SILENCE_MS_LEAST, SILENT_INTERVALS * self.subscription.interval_ms)
        return now_ms - self.seen_ms > patience_ms

    def may_get(self, now_ms: int) -> bool:
        times = [each for each in (self.last_get_ms, self.last_push_ms) if each is not None]
        if times and now_ms - max(times) < self.subscription.interval_ms and self.last_error not in _ASKS_AGAIN:
            return False
        self.last_get_ms = now_ms
        self.may_push_early = True
        return True

    def may_push(self, now_ms: int) -> bool:
        push_ms = self.last_push_ms
        if not self.may_push_early and push_ms is not None and now_ms - push_ms < self.subscription.interval_ms:
            return False
        self.last_push_ms = now_ms
        self.may_push_early = False
        return True


class Instances:
    """Owner: the event loop. `current` returns the present subscriptions by name, as one object until they change."""

    def __init__(
        self, current: Callable[[], Subscriptions], *, bytes_max: int, instances_max: int = INSTANCES_MAX
    ) -> None:
        self._current = current
        self._bytes_max = bytes_max
        #: By id. The least recently seen instance comes first.
        self.known: Recent[bytes, Instance] = Recent(instances_max)
        self.throttled = 0
        self.unknown_subscriptions = 0

    def get(self, client: Client, now_ms: int) -> Instance:
        """Return the instance with its subscription.

        :raises Refused: THROTTLING_QUOTA_EXCEEDED before the end of the push interval, unless the subscription has changed.
        """
        instance = self._seen(client, now_ms)
        if not instance.may_get(now_ms):
            raise self._throttle(instance)
        instance.last_error = ErrorCode.NONE
        return instance

    def push(
        self, client: Client, now_ms: int, *, subscription_id: int, is_terminating: bool, codec: int, size_bytes: int
    ) -> Instance:
        """Check a push before its metrics are read.

        :raises Refused: with Kafka's errors.
        """
        if client.instance_id in _UNUSABLE_IDS:
            raise Refused(ErrorCode.INVALID_REQUEST, "Invalid client instance id: ask for a subscription first.")
        instance = self._seen(client, now_ms)
        try:
            self._check(instance, now_ms, subscription_id, is_terminating, codec, size_bytes)
        except Refused as refusal:
            self.failed(instance, refusal.code)
            raise
        finally:
            instance.is_terminating = is_terminating
        instance.last_error = ErrorCode.NONE
        return instance

    def failed(self, instance: Instance, code: ErrorCode) -> None:
        """Remember why a push was refused."""
        instance.last_error = code

    def _check(
        self, instance: Instance, now_ms: int, subscription_id: int, is_terminating: bool, codec: int, size_bytes: int
    ) -> None:
        if instance.is_terminating:
            raise Refused(ErrorCode.INVALID_REQUEST, "The client said with its last push that it ends.")
        if not instance.may_push(now_ms) and not is_terminating:
            raise self._throttle(instance)
        if subscription_id != instance.subscription.id:
            self.unknown_subscriptions += 1
            raise Refused(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "The client's subscription has changed.")
        if codec != Codec.NONE and codec not in ACCEPTED_CODECS:
            raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Unknown compression type {codec}.")
        if size_bytes > self._bytes_max:
            raise Refused(
                ErrorCode.TELEMETRY_TOO_LARGE,
                f"{size_bytes} bytes of metrics; telemetry.max.bytes is {self._bytes_max}",
            )

    def _throttle(self, instance: Instance) -> Refused:
        self.throttled += 1
        return Refused(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            f"The client must wait for its push interval of {instance.subscription.interval_ms} ms.",
        )

    def _seen(self, client: Client, now_ms: int) -> Instance:
        self.forget_silent(now_ms)
        subscriptions = self._current()
        instance = self.known.use(client.instance_id)
        if instance is None or instance.made_from is not subscriptions:
            instance = Instance(client, subscription_of(client, subscriptions), subscriptions, now_ms)
            self.known.put(client.instance_id, instance)
        instance.client = client
        instance.seen_ms = now_ms
        return instance

    def forget_silent(self, now_ms: int) -> None:
        """Forget instances that were not seen for a long time, as far as they are the least recently seen ones."""
        while (first := next(iter(self.known.items()), None)) is not None and first[1].is_silent(now_ms):
            self.known.pop(first[0])


def subscription_of(client: Client, subscriptions: Subscriptions) -> Subscription:
    """Join all subscriptions that match the client."""
    selectors = client.selectors
    matching = [each for each in subscriptions.values() if each.matches(selectors)]
    interval_ms = min([DEFAULT_INTERVAL_MS, *(each.interval_ms for each in matching)])
    metrics = sorted({name for each in matching for name in each.metrics})
    if EVERY_METRIC in metrics:
        metrics = [EVERY_METRIC]
    return Subscription(_subscription_id(client.instance_id, metrics, interval_ms), tuple(metrics), interval_ms)


def _subscription_id(instance_id: bytes, metrics: list[str], interval_ms: int) -> int:
    """Compute Kafka's checksum: CRC-32C of the metrics and the interval, combined with Java's hash of the client's id."""
    checksum = crc32c(f"[{', '.join(metrics)}]{interval_ms}".encode())
    for at in range(0, len(instance_id), 4):
        checksum ^= int.from_bytes(instance_id[at : at + 4])
    return checksum - (1 << 32) if checksum >= 1 << 31 else checksum
