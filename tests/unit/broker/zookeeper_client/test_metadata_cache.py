"""The image of the cluster that UpdateMetadata feeds."""

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import ZERO_TOPIC_ID, BrokerId, TopicId, TopicPartition
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache, MetadataChange
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

ORDERS_ID = TopicId(bytes(range(16)))
OTHER_ID = TopicId(bytes(range(1, 17)))


def broker(number: int, *listeners: str, rack: str | None = None) -> UpdateMetadataBroker:
    return UpdateMetadataBroker(
        id=number,
        endpoints=[
            UpdateMetadataEndpoint(port=9000 + number, host=f"host{number}", listener=name, security_protocol=0)
            for name in listeners or ("PLAINTEXT",)
        ],
        rack=rack,
    )


def partition(number: int, leader: int, replicas: tuple[int, ...] = (1, 2)) -> UpdateMetadataPartitionState:
    return UpdateMetadataPartitionState(
        partition_index=number,
        controller_epoch=1,
        leader=leader,
        leader_epoch=3,
        isr=list(replicas),
        zk_version=4,
        replicas=list(replicas),
    )


def update(
    *topics: tuple[str, TopicId, list[UpdateMetadataPartitionState]],
    brokers: tuple[UpdateMetadataBroker, ...] = (broker(1), broker(2)),
    controller: int = 1,
) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(
        controller_id=controller,
        controller_epoch=1,
        topic_states=[
            UpdateMetadataTopicState(topic_name=name, topic_id=topic_id, partition_states=states)
            for name, topic_id, states in topics
        ],
        live_brokers=list(brokers),
    )


def test_topics_are_found_by_name_and_by_id() -> None:
    cache = MetadataCache()
    change = cache.update(update(("orders", ORDERS_ID, [partition(0, 1), partition(1, 2)])))
    assert change == MetadataChange((), frozenset({"orders"}), brokers_changed=True, controller_changed=True)
    assert cache.topic_name(ORDERS_ID) == "orders"
    assert cache.topic_id("orders") == ORDERS_ID
    assert cache.partition_count("orders") == 2
    found = cache.partition(TopicPartition("orders", 1))
    assert found is not None and found.leader == 2
    assert cache.partition(TopicPartition("orders", 9)) is None
    assert cache.topic_id("nothing") == ZERO_TOPIC_ID
    assert cache.controller_id == 1
    assert [each for each, _ in cache.partitions()] == [TopicPartition("orders", 0), TopicPartition("orders", 1)]


def test_update_without_partitions_replaces_brokers_and_keeps_topics() -> None:
    cache = MetadataCache()
    cache.update(update(("orders", ORDERS_ID, [partition(0, 1)])))
    change = cache.update(update(brokers=(broker(1), broker(3)), controller=3))
    assert change.brokers_changed and change.controller_changed and not change.topics
    assert set(cache.brokers) == {1, 3}
    assert cache.topic("orders") is not None
    assert cache.controller_id == 3


def test_partial_update_keeps_the_other_partitions() -> None:
    cache = MetadataCache()
    cache.update(update(("orders", ORDERS_ID, [partition(0, 1), partition(1, 1)])))
    cache.update(update(("orders", ORDERS_ID, [partition(1, 2)])))
    topic = cache.topic("orders")
    assert topic is not None
    assert {number: state.leader for number, state in topic.partitions.items()} == {0: 1, 1: 2}


def test_version_of_a_topic_changes_with_it_and_only_with_it() -> None:
    cache = MetadataCache()
    cache.update(update(("orders", ORDERS_ID, [partition(0, 1)]), ("other", OTHER_ID, [partition(0, 1)])))
    orders, other = cache.topics["orders"].version, cache.topics["other"].version
    cache.update(update(("orders", ORDERS_ID, [partition(0, 2)])))
    assert cache.topics["orders"].version != orders
    assert cache.topics["other"].version == other


def test_change_tells_whether_the_brokers_are_others() -> None:
    cache = MetadataCache()
    cache.update(update())
    assert not cache.update(update()).brokers_changed
    assert cache.update(update(brokers=(broker(1, rack="r"), broker(2)))).brokers_changed


def test_deleted_topic_goes_and_its_successor_has_another_version() -> None:
    cache = MetadataCache()
    cache.update(update(("orders", ORDERS_ID, [partition(0, 1), partition(1, 1)])))
    version = cache.topics["orders"].version
    change = cache.update(update(("orders", ORDERS_ID, [partition(0, -2), partition(1, -2)])))
    assert change.deleted == (TopicPartition("orders", 0), TopicPartition("orders", 1))
    assert cache.topic("orders") is None
    assert cache.topic_name(ORDERS_ID) is None
    cache.update(update(("orders", OTHER_ID, [partition(0, 1)])))
    assert cache.topics["orders"].version != version
    assert cache.topic_name(OTHER_ID) == "orders"


def test_deletion_of_an_unknown_topic_is_reported_and_changes_nothing() -> None:
    cache = MetadataCache()
    change = cache.update(update(("gone", ORDERS_ID, [partition(0, -2)])))
    assert change.deleted == (TopicPartition("gone", 0),)
    assert not change.topics and not cache.topics


def test_successor_under_the_same_name_replaces_the_id() -> None:
    cache = MetadataCache()
    cache.update(update(("orders", ORDERS_ID, [partition(0, 1)])))
    cache.update(update(("orders", OTHER_ID, [partition(0, 1)])))
    assert cache.topic_name(ORDERS_ID) is None
    assert cache.topic_name(OTHER_ID) == "orders"


def test_nothing_of_a_topic_is_left_when_its_successor_is_heard_of_first() -> None:
    cache = MetadataCache()
    cache.update(update(("orders", ORDERS_ID, [partition(0, 1), partition(1, 1), partition(2, 1)])))
    change = cache.update(update(("orders", OTHER_ID, [partition(1, 2)])))
    assert change.deleted == (TopicPartition("orders", 0), TopicPartition("orders", 2))
    assert change.topics == {"orders"}
    cache.update(update(("orders", OTHER_ID, [partition(0, 2)])))
    assert sorted(cache.topics["orders"].partitions) == [0, 1], "the third one was the former topic's"


def test_topic_that_is_given_an_id_keeps_its_partitions() -> None:
    cache = MetadataCache()
    cache.update(update(("orders", ZERO_TOPIC_ID, [partition(0, 1), partition(1, 1)])))
    change = cache.update(update(("orders", ORDERS_ID, [partition(1, 2)])))
    assert not change.deleted and cache.partition_count("orders") == 2


def test_endpoints_are_those_of_the_clients_listener() -> None:
    cache = MetadataCache()
    cache.update(update(brokers=(broker(2, "IN", "OUT"), broker(1, "IN"))))
    assert [image.id for image, _ in cache.alive_endpoints("IN")] == [1, 2]
    assert [image.id for image, _ in cache.alive_endpoints("OUT")] == [2]
    endpoint = cache.endpoint(BrokerId(2), "OUT")
    assert endpoint is not None and (endpoint.host, endpoint.port) == ("host2", 9002)
    assert cache.endpoint(BrokerId(1), "OUT") is None
    assert cache.endpoint(BrokerId(9), "IN") is None


def test_dead_leader_and_leader_without_the_listener_have_different_errors() -> None:
    cache = MetadataCache()
    cache.update(update(("t", ORDERS_ID, [partition(0, 1), partition(1, 7)]), brokers=(broker(1, "IN"),)))
    assert cache.leader_error(1, "IN") is ErrorCode.NONE
    assert cache.leader_error(1, "OUT") is ErrorCode.LISTENER_NOT_FOUND
    assert cache.leader_error(7, "IN") is ErrorCode.LEADER_NOT_AVAILABLE


def test_topic_is_ready_when_every_partition_has_a_live_leader() -> None:
    cache = MetadataCache()
    assert not cache.has_all_leaders("t", [0])
    cache.update(update(("t", ORDERS_ID, [partition(0, 1), partition(1, -1)])))
    assert cache.has_all_leaders("t", [0])
    assert not cache.has_all_leaders("t", [0, 1])
    assert not cache.has_all_leaders("t", [0, 2])


def test_subscriber_hears_of_each_update_until_it_leaves() -> None:
    cache = MetadataCache()
    heard: list[MetadataChange] = []
    leave = cache.subscribe(heard.append)
    cache.update(update(("t", ORDERS_ID, [partition(0, 1)])))
    leave()
    cache.update(update(("t", ORDERS_ID, [partition(0, 2)])))
    assert [change.topics for change in heard] == [frozenset({"t"})]


def test_partitions_of_an_old_controller_come_one_by_one() -> None:
    cache = MetadataCache()
    request = update()
    state = partition(0, 1)
    state.topic_name = "old"
    request.ungrouped_partition_states = [state]
    cache.update(request)
    assert cache.partition_count("old") == 1
    assert cache.topic_id("old") == ZERO_TOPIC_ID
