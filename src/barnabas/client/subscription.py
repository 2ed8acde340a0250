"""The topics and partitions that a consumer wants, as they are added and deleted. Decisions only."""

from collections.abc import Callable, Collection, Mapping

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.core import ClientCore
from barnabas.client.image import NO_TOPIC_ID, TopicInfo


class Subscription:
    """Topics by name, or topics whose names match. Calling `look` every `metadata.max.age.ms` finds added partitions."""

    def __init__(
        self, cluster: ClientCore, topics: Collection[str], matching: Callable[[str], bool] | None = None
    ) -> None:
        self._cluster = cluster
        self._names = sorted(topics)
        self._matching = matching
        #: Partition counts by topic at the last look.
        self.counts: Mapping[str, int] = {}
        #: The id and the highest partition count ever seen, by topic. A broker that has just started may not know all
        #: topics and partitions yet; those that then reappear are not new.
        self._seen: dict[str, tuple[bytes, int]] = {}
        self.look_at_s = 0.0

    @property
    def topics(self) -> list[str]:
        return self._names if self._matching is None else sorted(self.counts)

    async def look(self) -> list[TopicPartition]:
        """Refresh the metadata; return the partitions that are new since the last look."""
        self.look_at_s = self._cluster.io.now_s() + self._cluster.config.metadata_max_age_ms / 1000
        matching = self._matching
        if matching is None and not self._seen:
            found = {name: await self._cluster.existing_topic(name) for name in self._names}
        elif matching is None:
            # A deleted topic must not stop the others. This request does not create missing topics.
            found = await self._cluster.topics(self._names)
        else:
            found = {name: info for name, info in (await self._cluster.all_topics()).items() if matching(name)}
        existing = {name: info for name, info in sorted(found.items()) if info.error is ErrorCode.NONE}
        new = [partition for name, info in existing.items() for partition in self._new_of(name, info)]
        self.counts = {name: len(info.partitions) for name, info in existing.items()}
        return new

    def _new_of(self, name: str, info: TopicInfo) -> list[TopicPartition]:
        topic_id, count = self._seen.get(name, (NO_TOPIC_ID, 0))
        # Without topic ids, a topic that was missing at the last look counts as created again.
        if topic_id != info.topic_id or (topic_id == NO_TOPIC_ID and name not in self.counts):
            count = 0
        self._seen[name] = (info.topic_id, max(count, len(info.partitions)))
        return [TopicPartition(name, index) for index in range(count, len(info.partitions))]
