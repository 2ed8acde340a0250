"""Which topics and partitions a consumer wants, as they come and go. Decisions only, for members of groups and others."""

from collections.abc import Callable, Collection, Mapping

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.client.core import ClientCore
from barnabas.client.image import NO_TOPIC_ID, TopicInfo


class Subscription:
    """Topics by name, or those whose names match. `look` every `metadata.max.age.ms` finds what was added."""

    def __init__(
        self, cluster: ClientCore, topics: Collection[str], matching: Callable[[str], bool] | None = None
    ) -> None:
        self._cluster = cluster
        self._names = sorted(topics)
        self._matching = matching
        #: Partitions by topic, as they were at the last look.
        self.counts: Mapping[str, int] = {}
        #: By topic: its id, and the most partitions that were ever seen of it. A broker that has just started may not know a
        #: topic yet, or not all of it: what comes back then is not new.
        self._seen: dict[str, tuple[bytes, int]] = {}
        self.look_at_s = 0.0

    @property
    def topics(self) -> list[str]:
        return self._names if self._matching is None else sorted(self.counts)

    async def look(self) -> list[TopicPartition]:
        """Ask again. The partitions that are new since the last look."""
        self.look_at_s = self._cluster.io.now_s() + self._cluster.config.metadata_max_age_ms / 1000
        matching = self._matching
        if matching is None and not self._seen:
            found = {name: await self._cluster.existing_topic(name) for name in self._names}
        elif matching is None:
            # One that was deleted meanwhile keeps nobody from the others. It is not asked for in a way that makes it again.
            found = await self._cluster.topics(self._names)
        else:
            found = {name: info for name, info in (await self._cluster.all_topics()).items() if matching(name)}
        there = {name: info for name, info in sorted(found.items()) if info.error is ErrorCode.NONE}
        new = [partition for name, info in there.items() for partition in self._new_of(name, info)]
        self.counts = {name: len(info.partitions) for name, info in there.items()}
        return new

    def _new_of(self, name: str, info: TopicInfo) -> list[TopicPartition]:
        topic_id, count = self._seen.get(name, (NO_TOPIC_ID, 0))
        # A cluster without ids does not tell one that was made again from one that was out of sight.
        if topic_id != info.topic_id or (topic_id == NO_TOPIC_ID and name not in self.counts):
            count = 0
        self._seen[name] = (info.topic_id, max(count, len(info.partitions)))
        return [TopicPartition(name, index) for index in range(count, len(info.partitions))]
