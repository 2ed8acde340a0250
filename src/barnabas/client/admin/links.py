"""Links to other clusters: create, describe, pause, resume, promote, delete. Only barnabas brokers support them."""

from collections.abc import Mapping, Sequence

from barnabas.client.core import ClientCore
from barnabas.client.errors import ClientError, check
from barnabas.wire.messages.alter_link import AlterLinkRequest, AlterLinkResponse
from barnabas.wire.messages.create_link import CreateLinkRequest, CreateLinkResponse, LinkConfig
from barnabas.wire.messages.delete_link import DeleteLinkRequest, DeleteLinkResponse
from barnabas.wire.messages.describe_links import DescribedLink, DescribeLinksRequest, DescribeLinksResponse


async def create_link(
    cluster: ClientCore,
    name: str,
    *,
    configs: Mapping[str, str],
    topics: str,
    groups: str | None = None,
    acls: bool = False,
    start: str = "earliest",
    restart_recreated: bool = False,
    adopt: bool = False,
) -> None:
    """Mirror topics of the cluster that `configs` point to. `configs` has a client's properties and `link.*`."""
    request = CreateLinkRequest(
        name=name,
        configs=[LinkConfig(name=key, value=value) for key, value in configs.items()],
        topics=topics,
        groups=groups,
        acls=acls,
        start=start,
        restart_recreated=restart_recreated,
        adopt=adopt,
    )
    response = await cluster.ask_any(request, CreateLinkResponse)
    check(response.error_code, response.error_message)


async def describe_links(
    cluster: ClientCore, names: Sequence[str] | None = None, *, partitions: bool = True
) -> list[DescribedLink]:
    """Describe links, merged from the answers of all brokers: each broker knows only the partitions that it leads."""
    brokers = await cluster.brokers()
    request = DescribeLinksRequest(names=None if names is None else list(names), include_partitions=partitions)
    answers = await cluster.io.together(
        [cluster.ask(broker, request, DescribeLinksResponse) for broker in sorted(brokers)]
    )
    failed = [answer for answer in answers if isinstance(answer, ClientError)]
    answered = [answer for answer in answers if not isinstance(answer, ClientError)]
    if not answered:
        raise failed[0]
    if all(answer.error_code for answer in answered):
        check(answered[0].error_code, answered[0].error_message)
    merged: dict[str, DescribedLink] = {}
    for answer in answered:
        for link in answer.links:
            _merge(merged.setdefault(link.name, link), link)
    return [merged[name] for name in sorted(merged)]


def _merge(into: DescribedLink, other: DescribedLink) -> None:
    if into is other:
        return
    into.error = into.error or other.error
    into.source_cluster_id = into.source_cluster_id or other.source_cluster_id
    into.groups_copied += other.groups_copied
    into.group_turns += other.group_turns
    by_name = {topic.name: topic for topic in into.topics}
    for topic in other.topics:
        known = by_name.get(topic.name)
        if known is None:
            into.topics.append(topic)
            continue
        have = {each.partition for each in known.partitions}
        known.partitions += [each for each in topic.partitions if each.partition not in have]
        known.partitions.sort(key=lambda each: each.partition)
    into.topics.sort(key=lambda topic: topic.name)


async def alter_link(cluster: ClientCore, name: str, action: str, *, topic: str | None = None) -> None:
    """Apply `pause`, `resume`, `promote` (once everything is copied) or `promote-now` to a topic, or to the whole link."""
    response = await cluster.ask_any(AlterLinkRequest(name=name, topic=topic, action=action), AlterLinkResponse)
    check(response.error_code, response.error_message)


async def delete_link(cluster: ClientCore, name: str) -> None:
    response = await cluster.ask_any(DeleteLinkRequest(name=name), DeleteLinkResponse)
    check(response.error_code, response.error_message)
