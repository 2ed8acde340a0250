"""Which topics and partitions a consumer wants, as they come and go. Decisions only, for members of groups and others."""

from collections.abc import Callable, Collection, Mapping

from barnabas.client.core import ClientCore
from barnabas.core.errors import ErrorCode
from barnabas.core.ids import TopicPartition


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
        self.look_at_s = 0.0

    @property
    def topics(self) -> list[str]:
        return self._names if self._matching is None else sorted(self.counts)

    async def look(self) -> list[TopicPartition]:
        """Ask again. The partitions that are new since the last look."""
        self.look_at_s = self._cluster.io.now_s() + self._cluster.config.metadata_max_age_ms / 1000
        matching = self._matching
        if matching is None and not self.counts:
            found = {name: await self._cluster.existing_topic(name) for name in self._names}
        elif matching is None:
            # One that was deleted meanwhile keeps nobody from the others. It is not asked for in a way that makes it again.
            found = await self._cluster.topics(self._names)
        else:
            found = {name: info for name, info in (await self._cluster.all_topics()).items() if matching(name)}
        before = self.counts
        self.counts = {
            name: len(info.partitions) for name, info in sorted(found.items()) if info.error is ErrorCode.NONE
        }
        return [
            TopicPartition(name, index)
            for name, count in self.counts.items()
            for index in range(before.get(name, 0), count)
        ]
