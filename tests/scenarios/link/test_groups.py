"""Offsets of groups: equal numbers, never ahead of the mirror, never for a group with members here."""

from typing import Any

from confluent_kafka import Consumer

from barnabas.base.ids import TopicPartition
from barnabas.cli.local_cluster import wait_until
from barnabas.client.admin import links as admin
from barnabas.client.admin.groups import CommittedOffset, commit_offsets, committed_offsets, committed_offsets_of
from barnabas.client.asynchronous import AsyncClient
from barnabas.testing.cluster import Cluster
from barnabas.wire.messages.offset_fetch import OffsetFetchRequest
from tests.scenarios.link.linked import create, describe, tool, wait_for_copy

TIMEOUT_S = 60.0


def commit(cluster: Cluster, group: str, topic: str, offset: int) -> None:
    cluster.ask(lambda client: commit_offsets(client, group, {TopicPartition(topic, 0): CommittedOffset(offset, "m")}))


def committed(cluster: Cluster, group: str, topic: str) -> CommittedOffset | None:
    tp = TopicPartition(topic, 0)
    return cluster.ask(lambda client: committed_offsets(client, group, [tp])).get(tp)


def is_at(cluster: Cluster, group: str, topic: str, offset: int) -> bool:
    found = committed(cluster, group, topic)
    return found is not None and found.offset == offset


def test_offsets_follow_also_back_and_metadata_with_them(source: Cluster, target: Cluster, topic: str) -> None:
    source.create_topic(topic)
    source.produce(topic, [f"r{number}" for number in range(10)])
    group, other = f"g-{topic}", f"other-{topic}"
    commit(source, group, topic, 7)
    commit(source, other, topic, 3)
    create(target, source, f"l-{topic}", topic, groups="g-.*")
    wait_until(lambda: is_at(target, group, topic, 7), TIMEOUT_S, what="the offset is here")
    found = committed(target, group, topic)
    assert found is not None
    assert found.metadata == "m"
    assert committed(target, other, topic) is None
    commit(source, group, topic, 2)
    wait_until(lambda: is_at(target, group, topic, 2), TIMEOUT_S, what="the offset went back")
    assert describe(target, f"l-{topic}").groups_copied >= 1


def test_offsets_of_many_groups_take_one_request_for_each_coordinator(source: Cluster, topic: str) -> None:
    source.create_topic(topic)
    tp, groups = TopicPartition(topic, 0), [f"many-{topic}-{number}" for number in range(12)]
    for number, group in enumerate(groups):
        commit(source, group, topic, number)
    asked: list[str] = []

    async def story(client: AsyncClient) -> None:
        ask = client.ask

        async def counted(broker: int, message: Any, *arguments: Any, **options: Any) -> Any:
            asked.extend([type(message).__name__] if isinstance(message, OffsetFetchRequest) else [])
            return await ask(broker, message, *arguments, **options)

        client.ask = counted  # type: ignore[method-assign]
        found = await committed_offsets_of(client, groups, [tp])
        assert {group: {tp: CommittedOffset(at, "m", -1)} for at, group in enumerate(groups)} == found

    source.ask(story)
    assert 1 <= len(asked) <= len(source.broker_ids)


def test_group_with_members_here_keeps_its_own_offsets(source: Cluster, target: Cluster, topic: str) -> None:
    source.create_topic(topic)
    source.produce(topic, [f"r{number}" for number in range(10)])
    group = f"g-{topic}"
    create(target, source, f"l-{topic}", topic, groups=group)
    wait_for_copy(target, f"l-{topic}", topic, {0: 10})
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    message = consumer.poll(60)
    assert message is not None
    consumer.commit(message, asynchronous=False)
    turns = describe(target, f"l-{topic}").group_turns
    commit(source, group, topic, 9)
    # Both brokers copy; one of them at least twice.
    wait_until(lambda: describe(target, f"l-{topic}").group_turns > turns + 3, TIMEOUT_S, what="brokers look")
    assert is_at(target, group, topic, 1)
    consumer.close()
    wait_until(lambda: is_at(target, group, topic, 9), TIMEOUT_S, what="the group has no members any more")


def test_planned_promotion_takes_the_last_offsets_along(source: Cluster, target: Cluster, topic: str) -> None:
    source.create_topic(topic)
    source.produce(topic, [f"r{number}" for number in range(10)])
    group = f"g-{topic}"
    commit(source, group, topic, 4)
    create(target, source, f"l-{topic}", topic, groups=group, configs={"link.refresh.interval.ms": "60000"})
    wait_for_copy(target, f"l-{topic}", topic, {0: 10})
    source.produce(topic, ["last"])
    commit(source, group, topic, 11)
    tool("link", "promote", f"l-{topic}", "--bootstrap-server", target.bootstrap)
    assert is_at(target, group, topic, 11)


def test_offset_ahead_of_the_mirror_waits(source: Cluster, target: Cluster, topic: str) -> None:
    source.create_topic(topic)
    source.produce(topic, ["a", "b"])
    group = f"g-{topic}"
    create(target, source, f"l-{topic}", topic, groups=group)
    wait_for_copy(target, f"l-{topic}", topic, {0: 2})
    commit(source, group, topic, 2)
    wait_until(lambda: is_at(target, group, topic, 2), TIMEOUT_S, what="the offset is here")
    target.ask(lambda client: admin.alter_link(client, f"l-{topic}", "pause"))
    commit(source, group, topic, 3)
    target.ask(lambda client: admin.alter_link(client, f"l-{topic}", "resume"))
    turns = describe(target, f"l-{topic}").group_turns
    wait_until(lambda: describe(target, f"l-{topic}").group_turns > turns + 3, TIMEOUT_S, what="brokers look")
    assert is_at(target, group, topic, 2)
    source.produce(topic, ["c"])
    wait_until(lambda: is_at(target, group, topic, 3), TIMEOUT_S, what="the offset is here")


def test_group_whose_offsets_the_source_refuses_does_not_delay_promotions(
    source: Cluster, target: Cluster, topic: str
) -> None:
    """The link's user may list groups, but lacks DESCRIBE on this one."""
    source.create_topic(topic)
    source.produce(topic, ["a"])
    group = f"g-{topic}"
    commit(source, group, topic, 1)
    for broker in source.broker_ids:
        source.fail_api(broker, "OffsetFetch", error="GROUP_AUTHORIZATION_FAILED", client_id="barnabas-link")
    try:
        create(target, source, f"l-{topic}", topic, groups=group)
        wait_for_copy(target, f"l-{topic}", topic, {0: 1})
        wait_until(
            lambda: group in (describe(target, f"l-{topic}").error or ""), TIMEOUT_S, what="the error is reported"
        )
        tool("link", "promote", f"l-{topic}", "--bootstrap-server", target.bootstrap)
    finally:
        source.heal()
    assert committed(target, group, topic) is None
