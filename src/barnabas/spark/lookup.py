"""Asks the cluster where partitions begin and end: the driver's side of the source. Owner: one thread."""

import logging
import time
from collections.abc import Callable, Collection
from typing import Final, TypeVar

from barnabas.base.errors import ConfigError, ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, LATEST, READ_UNCOMMITTED
from barnabas.client.blocking import BlockingClient
from barnabas.client.errors import ClientError
from barnabas.spark.offsets import Offsets, report_data_loss
from barnabas.spark.options import Assign, AtTimestamp, Everywhere, Limit, NoMatch, SourceOptions, Specific, Subscribe

T = TypeVar("T")

_log: Final = logging.getLogger("barnabas.spark")


class OffsetLookup:
    """Partitions and offsets as a query's options name them. `fetchOffset.numRetries` applies to each request."""

    def __init__(
        self,
        options: SourceOptions,
        *,
        sleep: Callable[[float], None] = time.sleep,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._options = options
        self._sleep = sleep
        self._now_ms = now_ms
        self._client: BlockingClient | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def client(self) -> BlockingClient:
        if self._client is None:
            self._client = BlockingClient(self._options.client())
        return self._client

    # -- partitions -----------------------------------------------------------------------------------------------------

    def partitions(self, *, required: bool, known: Collection[TopicPartition] = ()) -> list[TopicPartition]:
        """Return the partitions that the options subscribe to now. `required`: raise if a named topic does not exist.

        If one of `known` is missing, a broker may have answered that has just started, or does not know of partitions that were
        added yet: ask again.
        """
        found = self._partitions(required=required)
        for _ in range(self._options.fetch_offset_retries):
            if set(found).issuperset(known):
                break
            self._sleep(self._options.fetch_offset_retry_interval_ms / 1000)
            self.close()
            found = self._partitions(required=required)
        return found

    def _partitions(self, *, required: bool) -> list[TopicPartition]:
        strategy = self._options.strategy
        if isinstance(strategy, Assign):
            topics = sorted({partition.topic for partition in strategy.partitions})
            existing = set(self._of_topics(topics, required=required))
            if required and (missing := [str(p) for p in strategy.partitions if p not in existing]):
                raise ConfigError(f"option 'assign' names {', '.join(missing)}, which the cluster does not have")
            return [partition for partition in strategy.partitions if partition in existing]
        if isinstance(strategy, Subscribe):
            return self._of_topics(list(strategy.topics), required=required)
        image = self._asking("metadata of all topics", lambda: self.client.refresh(None))
        names = sorted(info.name for info in image.topics.values() if not info.internal and strategy.takes(info.name))
        return [TopicPartition(name, info.index) for name in names for info in image.topics[name].partitions]

    def _of_topics(self, topics: list[str], *, required: bool) -> list[TopicPartition]:
        image = self._asking(f"metadata of {', '.join(topics)}", lambda: self.client.refresh(topics))
        found = []
        for name in topics:
            info = image.topics.get(name)
            if info is None or info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                if required:
                    raise ConfigError(f"topic {name} does not exist: UNKNOWN_TOPIC_OR_PARTITION")
                continue
            if info.error is not ErrorCode.NONE and not info.partitions:
                raise ConfigError(f"topic {name} cannot be read: {info.error.name}")
            found += [TopicPartition(name, part.index) for part in info.partitions]
        return found

    def topic_ids(self) -> dict[str, bytes]:
        """Return the ids of the topics that `partitions` found last; no ids if the cluster has none."""
        found = {} if self._client is None else self._client.image.topics
        return {name: info.topic_id for name, info in found.items() if any(info.topic_id)}

    # -- offsets --------------------------------------------------------------------------------------------------------

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._list(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Collection[TopicPartition], known: Offsets | None = None) -> dict[TopicPartition, int]:
        """Return the ends. If an end is below `known`, a leader that was just elected may have answered: ask again."""
        found = self._list(dict.fromkeys(partitions, LATEST))
        for _ in range(self._options.fetch_offset_retries):
            if known is None or all(found[p] >= known[p] for p in found if p in known):
                break
            self._sleep(self._options.fetch_offset_retry_interval_ms / 1000)
            found = self._list(dict.fromkeys(partitions, LATEST))
        return found

    def at_time(self, wanted: Offsets) -> dict[TopicPartition, int]:
        """Return the first offset whose record is not older; -1 if there is none."""
        return self._list(wanted)

    def resolve_as_of(self, limit: Limit, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where the log ended at that time. Open transactions below it do not matter: the result is the same at any
        time."""
        if isinstance(limit, Specific):
            check_covers(limit.offsets, partitions, option="asOf")
            return dict(limit.offsets)
        assert isinstance(limit, AtTimestamp) and isinstance(limit.timestamps, int)
        if limit.timestamps > self._now_ms():
            raise ConfigError("asOf is in the future: use a time that has passed")
        found = self._list(dict.fromkeys(partitions, limit.timestamps), READ_UNCOMMITTED)
        without = [partition for partition, offset in found.items() if offset < 0]
        return found | self._list(dict.fromkeys(without, LATEST), READ_UNCOMMITTED)

    def resolve(self, limit: Limit, partitions: list[TopicPartition], *, option: str) -> dict[TopicPartition, int]:
        """Return `startingOffsets`, `endingOffsets` or their timestamps as offsets."""
        if isinstance(limit, Everywhere):
            return self._list(dict.fromkeys(partitions, limit.at))
        if isinstance(limit, Specific):
            check_covers(limit.offsets, partitions, option=option)
            named = {p: offset for p, offset in limit.offsets.items() if offset in (EARLIEST, LATEST)}
            return dict(limit.offsets) | self._list(named)
        return self._by_timestamp(limit, partitions, option=option)

    def _by_timestamp(
        self, limit: AtTimestamp, partitions: list[TopicPartition], *, option: str
    ) -> dict[TopicPartition, int]:
        if isinstance(limit.timestamps, int):
            wanted = dict.fromkeys(partitions, limit.timestamps)
        else:
            check_covers(limit.timestamps, partitions, option=f"{option}ByTimestamp")
            wanted = dict(limit.timestamps)
        # -1 means latest and -2 earliest, as in the official connector, which sends them to the broker. Other negative times
        # have other meanings in the protocol. Taken as times they are before every record.
        found = self._list(
            {partition: at if at in (EARLIEST, LATEST) else max(0, at) for partition, at in wanted.items()}
        )
        without = [partition for partition, offset in found.items() if offset < 0]
        if without and limit.no_match is NoMatch.ERROR:
            asked = ", ".join(f"{partition} and timestamp {wanted[partition]}" for partition in without)
            raise ConfigError(
                f"No offset matched from request of topic-partition {asked}. "
                "Set startingOffsetsByTimestampStrategy to 'latest' to begin at the end there."
            )
        return found | self._list(dict.fromkeys(without, LATEST))

    def checked(self, offsets: Offsets, *, option: str) -> dict[TopicPartition, int]:
        """Check specific offsets against the log. An offset outside is data loss, or is moved to the nearest end."""
        first, last = self.earliest(list(offsets)), self.latest(list(offsets))
        for partition, offset in offsets.items():
            if not first[partition] <= offset <= last[partition]:
                report_data_loss(
                    f"{option} for {partition} was {offset} but the log has {first[partition]} to {last[partition]}",
                    fail=self._options.fail_on_data_loss,
                )
        return {p: min(max(offset, first[p]), last[p]) for p, offset in offsets.items()}

    # -- asking ---------------------------------------------------------------------------------------------------------

    def _list(self, wanted: Offsets, isolation_level: int | None = None) -> dict[TopicPartition, int]:
        if not wanted:
            return {}
        level = self._options.consumer.isolation_level if isolation_level is None else isolation_level
        return self._asking("offsets", lambda: self.client.list_offsets(wanted, isolation_level=level))

    def _asking(self, what: str, ask: Callable[[], T]) -> T:
        """Ask, and repeat it with fresh connections if the client gives up: it tries for `default.api.timeout.ms` itself."""
        for attempt in range(self._options.fetch_offset_retries + 1):
            try:
                return self.client.retrying(what, ask)
            except ClientError as error:
                self.close()
                if attempt == self._options.fetch_offset_retries:
                    raise
                _log.warning("%s: attempt %d failed: %s", what, attempt + 1, error)
                self._sleep(self._options.fetch_offset_retry_interval_ms / 1000)
        raise AssertionError("the last attempt returns or raises")


def check_covers(offsets: Offsets, partitions: Collection[TopicPartition], *, option: str) -> None:
    """Specific offsets must name exactly the partitions that are read."""
    if offsets.keys() == set(partitions):
        return
    given = ", ".join(map(str, sorted(offsets)))
    assigned = ", ".join(map(str, sorted(partitions)))
    raise ConfigError(
        f"If {option} contains specific offsets, you must specify all TopicPartitions. "
        f"Use -1 for latest, -2 for earliest. Specified: {given}. Assigned: {assigned}"
    )
