"""A streaming query's progress as offsets of a consumer group, so that its lag shows in every Kafka tool.

No query reads these offsets: it goes on from its checkpoint. So a commit that fails is logged, and the next one makes up
for it; it never ends the query. The group is `kafka.group.id`, or with `groupIdPrefix` the prefix and a digest of the
subscription, the same after a restart.

Spark informs a source of a batch's end only when the next batch begins. `latestOffset` therefore commits the offset that it is
asked to go on from, and `ProgressListener` (on the driver, beside the query) commits the end of each batch as soon as Spark
reports it: needed if no batch follows the last one, as with `Trigger.Once`.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from barnabas.base.errors import ConfigError
from barnabas.base.ids import TopicPartition
from barnabas.client.admin.groups import CommittedOffset, commit_offsets
from barnabas.client.blocking import BlockingClient
from barnabas.client.config import ClientConfig
from barnabas.client.errors import ClientError, check
from barnabas.spark.offsets import Offsets, from_json
from barnabas.spark.options import Assign, SourceOptions, Strategy, Subscribe, SubscribePattern, source_options

_log: Final = logging.getLogger("barnabas.spark")
_OUR_SOURCE: Final = "PythonMicroBatchStream"


def progress_group(options: SourceOptions) -> str | None:
    """Return the group for the query's progress; None if the options name none."""
    if group := options.kafka.get("group.id"):
        return group
    if options.group_id_prefix is None:
        return None
    return f"{options.group_id_prefix}-{_fingerprint(options.strategy)}"


def _fingerprint(strategy: Strategy) -> str:
    if isinstance(strategy, Subscribe):
        text = "subscribe:" + ",".join(sorted(strategy.topics))
    elif isinstance(strategy, SubscribePattern):
        text = "subscribePattern:" + strategy.pattern
    else:
        text = "assign:" + ",".join(sorted(map(str, strategy.partitions)))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


#: Longest time that a query waits for a commit of its progress. After a failure it pauses before the next attempt.
_PATIENCE_MS: Final = 2_000
_PAUSE_S: Final = 30.0


class GroupProgress:
    """Commits offsets for a group without being a member. Owner: one thread."""

    def __init__(self, config: ClientConfig, group: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = BlockingClient(config.within(_PATIENCE_MS))
        self._group = group
        self._committed: dict[TopicPartition, int] = {}
        self._clock = clock
        self._not_before_s = float("-inf")

    def close(self) -> None:
        self._client.close()

    def commit(self, offsets: Offsets) -> None:
        """Commit the offsets that have changed since the last commit. Failures are logged."""
        changed = {
            partition: offset for partition, offset in offsets.items() if self._committed.get(partition) != offset
        }
        if not changed or self._clock() < self._not_before_s:
            return
        try:
            committed = {partition: CommittedOffset(offset) for partition, offset in changed.items()}
            outcome = self._client.run(commit_offsets(self._client.core, self._group, committed))
            for partition, code in outcome.items():
                check(code, str(partition))
        except ClientError as error:
            _log.warning(
                "[group %s] cannot commit the query's progress; the next commit repeats it: %s", self._group, error
            )
            self._not_before_s = self._clock() + _PAUSE_S
            return
        self._committed |= changed


class ProgressListener(StreamingQueryListener):
    """Use as `spark.streams.addListener(ProgressListener(options))`, with the options of the source whose progress it
    commits."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__()
        self._options = source_options(options, streaming=True)
        group = progress_group(self._options)
        if group is None:
            raise ConfigError("progress needs a group: set kafka.group.id or groupIdPrefix")
        self.group = group
        self._progress = GroupProgress(self._options.client(), group)
        self._ended = threading.Event()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing: no record has been read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        for source in event.progress.sources:
            if _OUR_SOURCE in source.description and source.endOffset:
                offsets = from_json(json.loads(source.endOffset))
                self._progress.commit({p: offset for p, offset in offsets.items() if self._subscribes(p)})

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: no record has been read since the last report."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self._progress.close()
        self._ended.set()

    def wait_for_end(self, timeout_s: float) -> bool:
        """Wait until a query has ended and its progress is committed: Spark informs listeners a moment later than other
        callers."""
        return self._ended.wait(timeout_s)

    def _subscribes(self, partition: TopicPartition) -> bool:
        """Whether the options subscribe to the partition: a session may run other queries, on other topics or clusters."""
        strategy = self._options.strategy
        if isinstance(strategy, Assign):
            return partition in strategy.partitions
        return strategy.takes(partition.topic)
