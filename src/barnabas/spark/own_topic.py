"""Topics of our own in the cluster: compacted, as replicated as the cluster allows, created when a program first needs them."""

from collections.abc import Mapping
from typing import Final

from barnabas.base.errors import ErrorCode
from barnabas.client.admin.topics import NewTopic, ensure_topic
from barnabas.client.blocking import BlockingClient
from barnabas.client.errors import BrokerRefused, check
from barnabas.client.image import TopicInfo

#: Replicas of such a topic; fewer if the cluster has fewer brokers.
_REPLICAS: Final = 3


def find_topic(client: BlockingClient, topic: str) -> TopicInfo | None:
    """Return the topic; None if it does not exist."""

    def once() -> TopicInfo | None:
        info = client.refresh([topic]).topics.get(topic)
        if info is None or info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        check(info.error, f"topic {topic}")
        return info

    return client.retrying(f"metadata of {topic}", once)


def make_topic(client: BlockingClient, topic: str, configs: Mapping[str, str] | None = None) -> None:
    """Create the topic with one partition unless it exists, and wait until it has a leader."""
    if find_topic(client, topic) is not None:
        return
    replicas = min(_REPLICAS, len(client.image.brokers))
    given = {"cleanup.policy": "compact", "min.insync.replicas": str(max(1, replicas - 1)), **(configs or {})}
    wanted = NewTopic(name=topic, partitions=1, replication_factor=replicas, configs=given)
    client.run(ensure_topic(client.core, wanted))

    def led() -> None:
        info = find_topic(client, topic)
        if info is None or not info.partitions or info.partitions[0].leader < 0:
            raise BrokerRefused(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {topic}")

    client.retrying(f"leader of {topic}", led)
