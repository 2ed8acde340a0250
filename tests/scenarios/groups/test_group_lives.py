"""Groups of librdkafka's members that grow, shrink, restart and fail: no record is skipped or read twice."""

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from barnabas.cli.local_cluster import LocalCluster
from barnabas.testing import wait_until
from tests.scenarios.groups.group_clients import FAST_GROUPS, PROTOCOLS, Member, create, crew, produce

every_protocol = pytest.mark.parametrize("protocol", sorted(PROTOCOLS))


@every_protocol
def test_group_grows_and_shrinks_and_reads_every_record_once(fast: str, topic: str, protocol: str) -> None:
    with crew(fast, f"g-{topic}", topic, 6, **PROTOCOLS[protocol]) as group:
        group.join()
        produce(fast, topic, range(300), 6)
        group.wait_for(300)
        group.wait_balanced()
        for size in (2, 3):
            group.join()
            group.wait_balanced()
            produce(fast, topic, range(300 * (size - 1), 300 * size), 6)
            group.wait_for(300 * size)
        assert sorted(len(member.owned) for member in group.members) == [2, 2, 2]
        group.leave(group.members[0])
        group.wait_balanced()
        produce(fast, topic, range(900, 1200), 6)
        group.wait_for(1200)
        assert sorted(group.values) == list(range(1200)), group.explain()
        assert not [error for member in group.everybody for error in member.errors]


@every_protocol
def test_group_resumes_where_it_stopped(fast: str, topic: str, protocol: str) -> None:
    with crew(fast, f"g-{topic}", topic, 4, **PROTOCOLS[protocol]) as group:
        group.join(2)
        produce(fast, topic, range(200), 4)
        group.wait_for(200)
        for member in list(group.members):
            group.leave(member)
        produce(fast, topic, range(200, 300), 4)
        group.join()
        group.wait_for(300)
        assert sorted(group.values) == list(range(300)), group.explain()


@every_protocol
def test_rebalance_under_load_loses_nothing_and_repeats_nothing(fast: str, topic: str, protocol: str) -> None:
    with crew(fast, f"g-{topic}", topic, 6, **PROTOCOLS[protocol]) as group:
        group.join(2)
        for step in range(6):
            produce(fast, topic, range(step * 500, (step + 1) * 500), 6)
            if step in (1, 3):
                group.join()
            elif step in (2, 4):
                group.leave(group.members[0])
        group.wait_for(3000)
        group.wait_balanced()
        troubled = [(member.errors, member.lost) for member in group.everybody if member.errors or member.lost]
        assert not troubled, group.explain()
        assert sorted(group.values) == list(range(3000)), group.explain()


def test_only_moved_partitions_are_taken_away_in_a_cooperative_rebalance(fast: str, topic: str) -> None:
    with crew(fast, f"g-{topic}", topic, 6, **PROTOCOLS["cooperative"]) as group:
        [first] = group.join()
        group.wait_balanced()
        kept_before = set(first.owned)
        group.join()
        group.wait_balanced()
        assert first.owned < kept_before
        assert first.revoked == 1


@pytest.mark.parametrize("protocol", ["eager", "cooperative"])
def test_static_member_that_restarts_causes_no_rebalance(fast: str, topic: str, protocol: str) -> None:
    with crew(fast, f"g-{topic}", topic, 6, **PROTOCOLS[protocol]) as group:
        [one] = group.join(**{"group.instance.id": "one"})
        [two] = group.join(**{"group.instance.id": "two"})
        group.wait_balanced()
        places, given = set(one.owned), (two.assigned, two.revoked)
        group.leave(one)  # a static member sends no LeaveGroup
        [again] = group.join(**{"group.instance.id": "one"})
        group.wait_balanced()
        assert again.owned == places
        assert (two.assigned, two.revoked) == given


def test_static_consumer_protocol_member_that_restarts_gets_its_partitions_back(fast: str, topic: str) -> None:
    with crew(fast, f"g-{topic}", topic, 6, **PROTOCOLS["consumer"]) as group:
        [one] = group.join(**{"group.instance.id": "one"})
        group.join(**{"group.instance.id": "two"})
        group.wait_balanced()
        places = set(one.owned)
        group.leave(one)
        [again] = group.join(**{"group.instance.id": "one"})
        group.wait_balanced()
        assert again.owned == places


def test_second_member_with_the_same_instance_id_fences_the_first(fast: str, topic: str) -> None:
    with crew(fast, f"g-{topic}", topic, 2, **PROTOCOLS["eager"], **{"group.instance.id": "only"}) as group:
        [first] = group.join()
        group.wait_balanced()
        group.join()
        wait_until(lambda: bool(first.errors), what="an error of the first member")
        assert first.errors[0].code() == KafkaError._FATAL  # type: ignore[attr-defined]


@every_protocol
def test_new_partitions_are_given_out(fast: str, topic: str, protocol: str) -> None:
    options = {**PROTOCOLS[protocol], "topic.metadata.refresh.interval.ms": 300}
    with crew(fast, f"g-{topic}", topic, 2, **options) as group:
        group.join(2)
        group.wait_balanced()
        admin = AdminClient({"bootstrap.servers": fast})
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(60)
        group.partitions = 4
        group.wait_balanced()


def test_regular_expression_of_the_consumer_protocol_follows_new_topics(fast: str, topic: str) -> None:
    create(fast, f"{topic}-a", 1)
    member = Member(fast, f"g-{topic}", [f"^{topic}-.*"], **PROTOCOLS["consumer"])
    try:
        wait_until(lambda: member.owned == {(f"{topic}-a", 0)}, what="the topic that is there")
        create(fast, f"{topic}-b", 2)
        wait_until(lambda: len(member.owned) == 3, what="the topic that came later")
    finally:
        member.stop()


def test_running_group_moves_from_the_classic_to_the_consumer_protocol_and_back(fast: str, topic: str) -> None:
    with crew(fast, f"g-{topic}", topic, 6) as group:
        old = group.join(2, **PROTOCOLS["cooperative"])
        group.wait_balanced()
        produce(fast, topic, range(300), 6)
        group.wait_for(300)
        [new] = group.join(**PROTOCOLS["consumer"])
        group.wait_balanced()
        admin = AdminClient({"bootstrap.servers": fast})
        described = admin.describe_consumer_groups([group.group])[group.group].result(60)
        assert described.type.name == "CONSUMER"
        produce(fast, topic, range(300, 600), 6)
        group.wait_for(600)
        group.leave(new)
        group.wait_balanced()
        assert admin.describe_consumer_groups([group.group])[group.group].result(60).type.name == "CLASSIC"
        produce(fast, topic, range(600, 900), 6)
        group.wait_for(900)
        assert sorted(group.values) == list(range(900)), group.explain()
        assert all(member.owned for member in old)


# -- coordinators fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["cooperative", "consumer"])
def test_no_commit_is_lost_when_the_coordinator_is_killed(
    new_cluster: Callable[..., LocalCluster], topic: str, protocol: str
) -> None:
    cluster = new_cluster(brokers=3, config=FAST_GROUPS)
    with crew(cluster.bootstrap, "g", topic, 6, **PROTOCOLS[protocol]) as group:
        group.join(2)
        produce(cluster.bootstrap, topic, range(600), 6)
        group.wait_for(600)
        for member in list(group.members):
            group.leave(member)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        coordinator = admin.describe_consumer_groups(["g"])["g"].result(60).coordinator
        cluster.kill(coordinator.id)
        group.join(2)
        group.wait_balanced(60)
        produce(cluster.bootstrap, topic, range(600, 900), 6)
        group.wait_for(900, 60)
        assert sorted(group.values) == list(range(900)), group.explain()


@pytest.mark.parametrize("protocol", ["cooperative", "consumer"])
def test_group_lives_on_when_its_coordinator_stops_cleanly(
    new_cluster: Callable[..., LocalCluster], topic: str, protocol: str
) -> None:
    cluster = new_cluster(brokers=3, config=FAST_GROUPS)
    with crew(cluster.bootstrap, "g", topic, 6, **PROTOCOLS[protocol]) as group:
        group.join(2)
        group.wait_balanced()
        produce(cluster.bootstrap, topic, range(300), 6)
        group.wait_for(300)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        coordinator = admin.describe_consumer_groups(["g"])["g"].result(60).coordinator
        cluster.terminate(coordinator.id)
        produce(cluster.bootstrap, topic, range(300, 600), 6)
        group.wait_for(600, 60)
        for member in list(group.members):
            group.leave(member)
        assert sorted(group.values) == list(range(600)), group.explain()
        reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"})
        committed = reader.committed([TopicPartition(topic, number) for number in range(6)], timeout=60)
        reader.close()
        assert sum(each.offset for each in committed) == 600


# -- from outside ------------------------------------------------------------------------------------------------------


@every_protocol
def test_administrator_sees_moves_and_deletes_a_group(fast: str, topic: str, protocol: str) -> None:
    name = f"g-{topic}"
    admin = AdminClient({"bootstrap.servers": fast})
    with crew(fast, name, topic, 4, **PROTOCOLS[protocol]) as group:
        group.join(2)
        produce(fast, topic, range(40), 4)
        group.wait_for(40)
        group.wait_balanced()

        def is_stable() -> bool:
            described = admin.describe_consumer_groups([name])[name].result(60)
            return bool(described.state.name == "STABLE" and len(described.members) == 2)

        wait_until(is_stable, what="the group is stable")
        members = admin.describe_consumer_groups([name])[name].result(60).members
        places = [(tp.topic, tp.partition) for each in members for tp in each.assignment.topic_partitions]
        assert sorted(places) == [(topic, number) for number in range(4)]
        listed = {each.group_id: each for each in admin.list_consumer_groups().result(60).valid}
        assert listed[name].type.name == ("CONSUMER" if protocol == "consumer" else "CLASSIC")
        with pytest.raises(KafkaException) as caught:
            admin.delete_consumer_groups([name])[name].result(60)
        assert caught.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    rewound = ConsumerGroupTopicPartitions(name, [TopicPartition(topic, 0, 3)])
    admin.alter_consumer_group_offsets([rewound])[name].result(60)
    [found] = [
        each
        for each in admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name]
        .result(60)
        .topic_partitions
        if each.partition == 0
    ]
    assert found.offset == 3
    admin.delete_consumer_groups([name])[name].result(60)
    assert name not in {each.group_id for each in admin.list_consumer_groups().result(60).valid}
