"""Every znode that Kafka 3.9.1 wrote is read, and written again byte for byte."""

import json
from pathlib import Path

import pytest

from barnabas.base.errors import Malformed
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.json_data import mutable_map_order, properties_order
from barnabas.broker.zookeeper_client.znodes import (
    BrokerRegistration,
    ControllerRegistration,
    Endpoint,
    FinalizedFeatures,
    LeaderAndIsr,
    LeaderRecoveryState,
    ProducerIdBlock,
    ReplicaAssignment,
    TopicAssignment,
    decode_cluster_id,
    decode_config,
    decode_config_change,
    decode_controller_epoch,
    decode_isr_change,
    decode_log_dir_event,
    decode_preferred_replica_election,
    decode_reassign_partitions,
    encode_cluster_id,
    encode_config,
    encode_config_change,
    encode_controller_epoch,
    encode_isr_change,
    encode_log_dir_event,
    encode_preferred_replica_election,
    encode_reassign_partitions,
)
from barnabas.broker.zookeeper_client.znodes_security import (
    CREATOR_ALL_ACL,
    CREATOR_ALL_AND_WORLD_READ_ACL,
    OPEN_ACL,
    AclChange,
    DelegationTokenInfo,
    decode_acls,
    default_acl,
    encode_acls,
)

GOLDEN = json.loads((Path(__file__).parents[3] / "golden/kafka-3.9.1/znodes.json").read_text())
WITH_DATA = {path: node["data"].encode() for path, node in GOLDEN.items() if node["data"] is not None}


def again(path: str, data: bytes) -> bytes:
    """Decode what Kafka wrote to `path`, and encode it."""
    names = path.strip("/").split("/")
    match names:
        case ["brokers", "ids", number]:
            return BrokerRegistration.decode(int(number), data).encode()
        case ["brokers", "topics", topic]:
            return TopicAssignment.decode(topic, data).encode()
        case ["brokers", "topics", topic, "partitions", number, "state"]:
            return LeaderAndIsr.decode(TopicPartition(topic, int(number)), data, 0).encode()
        case ["cluster", "id"]:
            return encode_cluster_id(decode_cluster_id(data))
        case ["config", "changes", _]:
            return encode_config_change(decode_config_change(data))
        case ["config", _, _]:
            return encode_config(decode_config(path, data))
        case ["controller"]:
            return ControllerRegistration.decode(data).encode()
        case ["controller_epoch"]:
            return encode_controller_epoch(decode_controller_epoch(data))
        case ["feature"]:
            return FinalizedFeatures.decode(data).encode()
        case ["kafka-acl-changes", _]:
            return AclChange.decode(data, prefixed=False).encode()
        case ["kafka-acl-extended-changes", _]:
            return AclChange.decode(data, prefixed=True).encode()
        case ["kafka-acl", _, _] | ["kafka-acl-extended", _, _, _]:
            return encode_acls(decode_acls(path, data))
        case ["latest_producer_id_block"]:
            return ProducerIdBlock.decode(data).encode()
    raise AssertionError(f"no codec for {path}")


@pytest.mark.parametrize("path", WITH_DATA)
def test_znode_of_kafka_is_written_again_byte_for_byte(path: str) -> None:
    assert again(path, WITH_DATA[path]) == WITH_DATA[path]


def test_golden_tree_has_the_persistent_paths_that_a_broker_makes() -> None:
    assert set(paths.PERSISTENT) <= set(GOLDEN)
    assert set(paths.ACL_PERSISTENT) <= set(GOLDEN)


def test_settings_are_written_in_the_order_of_java_properties_whatever_order_they_came_in() -> None:
    path = "/config/topics/__transaction_state"
    settings = decode_config(path, WITH_DATA[path])
    assert encode_config(dict(reversed(settings.items()))) == WITH_DATA[path]


def test_settings_of_one_bucket_keep_the_order_they_came_in() -> None:
    # "Aa" and "BB" have the same hash.
    assert properties_order(["Aa", "BB"]) == ["Aa", "BB"]
    assert properties_order(["BB", "Aa"]) == ["BB", "Aa"]
    many = [f"setting.{number}" for number in range(40)]
    assert sorted(properties_order(many)) == sorted(many)


def test_partitions_are_written_in_the_order_of_a_scala_hash_map() -> None:
    # 0..9 hash to 48..57; a table of 16 puts them in order. "10" hashes to 1567 and lands between.
    assert mutable_map_order(map(str, range(10))) == [str(number) for number in range(10)]
    assert mutable_map_order(map(str, range(11))).index("10") == 10
    assert sorted(mutable_map_order(map(str, range(500))), key=int) == [str(number) for number in range(500)]


def test_broker_registration_keeps_rack_features_and_several_listeners() -> None:
    registration = BrokerRegistration(
        id=7,
        endpoints=(Endpoint("INTERNAL", "SASL_SSL", "::1", 9093), Endpoint("OUT", "PLAINTEXT", "example.org", 9092)),
        rack="r1",
        features={"barnabas.groups": (1, 2)},
        timestamp_ms=5,
    )
    data = registration.encode()
    assert BrokerRegistration.decode(7, data) == registration
    assert b'"endpoints":["INTERNAL://[::1]:9093","OUT://example.org:9092"]' in data
    # Old clients get the plaintext address.
    assert b'"port":9092,"host":"example.org"' in data


def test_broker_without_plaintext_registers_an_empty_address_for_old_clients() -> None:
    data = BrokerRegistration(id=1, endpoints=(Endpoint("SSL", "SSL", "h", 1),)).encode()
    assert b'"port":-1,"host":null' in data
    assert b"rack" not in data


def test_registrations_of_old_releases_are_read() -> None:
    one = BrokerRegistration.decode(1, b'{"version":1,"host":"h","port":9092,"jmx_port":9999,"timestamp":"22"}')
    assert one.endpoints == (Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092),)
    two = BrokerRegistration.decode(
        2, b'{"version":2,"host":"h","port":9092,"jmx_port":1,"timestamp":"2","endpoints":["SSL://h:9093"]}'
    )
    assert two.endpoints == (Endpoint("SSL", "SSL", "h", 9093),)


def test_topic_written_before_topic_ids_is_read_without_one() -> None:
    assignment = TopicAssignment.decode("t", b'{"version":1,"partitions":{"0":[1,2]}}')
    assert assignment.topic_id is None
    assert assignment.partitions == {0: ReplicaAssignment((1, 2))}


def test_reassignment_is_kept_in_the_topic() -> None:
    topic = TopicAssignment(TopicId(bytes(range(16))), {0: ReplicaAssignment((1, 2, 3), adding=(3,), removing=(1,))})
    data = topic.encode()
    assert TopicAssignment.decode("t", data) == topic
    assert b'"adding_replicas":{"0":[3]},"removing_replicas":{"0":[1]}' in data


@pytest.mark.parametrize(
    ("replicas", "target", "full", "adding", "removing"),
    [
        ((1, 2, 3), (4, 5, 6), (4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3)),
        ((1, 2, 3), (3, 2, 1), (3, 2, 1), (), ()),
        ((1, 2), (1, 2, 3), (1, 2, 3), (3,), ()),
        ((1, 2, 3), (1,), (1, 2, 3), (), (2, 3)),
    ],
)
def test_reassignment_names_added_and_removed_replicas(
    replicas: tuple[int, ...],
    target: tuple[int, ...],
    full: tuple[int, ...],
    adding: tuple[int, ...],
    removing: tuple[int, ...],
) -> None:
    moved = ReplicaAssignment(replicas).reassign_to(target)
    assert moved == ReplicaAssignment(full, adding, removing)
    assert moved.target == target
    assert sorted(moved.origin) == sorted(replicas)


def test_second_reassignment_replaces_the_first_and_keeps_the_origin() -> None:
    first = ReplicaAssignment((1, 2)).reassign_to((3, 4))
    second = first.reassign_to((5, 2))
    assert second == ReplicaAssignment((5, 2, 1), adding=(5,), removing=(1,))


def test_unclean_leader_is_marked_as_recovering() -> None:
    state = LeaderAndIsr(leader=2, isr=(2,), leader_epoch=4, recovery=LeaderRecoveryState.RECOVERING)
    data = state.encode()
    assert data == (
        b'{"controller_epoch":0,"leader":2,"version":1,"leader_recovery_state":1,"leader_epoch":4,"isr":[2]}'
    )
    assert LeaderAndIsr.decode(TopicPartition("t", 0), data, 0) == state


def test_notifications_and_requests_survive_a_round_trip() -> None:
    partitions = [TopicPartition("a", 0), TopicPartition("b", 7)]
    assert decode_isr_change(encode_isr_change(partitions)) == partitions
    assert decode_preferred_replica_election(encode_preferred_replica_election(partitions)) == partitions
    targets = {partitions[0]: (1, 2), partitions[1]: (3,)}
    assert decode_reassign_partitions(encode_reassign_partitions(targets)) == targets
    assert encode_log_dir_event(3) == b'{"version":1,"broker":3,"event":1}'
    assert decode_log_dir_event(encode_log_dir_event(3)) == 3


def test_config_change_of_an_old_release_is_read() -> None:
    assert decode_config_change(b'{"version":1,"entity_type":"topics","entity_name":"orders"}') == "topics/orders"


def test_producer_id_blocks_follow_each_other_until_they_are_used_up() -> None:
    first = ProducerIdBlock.first_for(1)
    assert (first.first, first.last, first.size) == (0, 999, 1000)
    assert first.next_for(2) == ProducerIdBlock(2, 1000, 1999)
    with pytest.raises(OverflowError):
        ProducerIdBlock(1, 2**63 - 1000, 2**63 - 1).next_for(1)


def test_delegation_token_is_written_in_kafkas_order() -> None:
    token = DelegationTokenInfo("id1", "User:alice", "User:bob", ("User:c d",), 1, 2, 3)
    data = token.encode()
    assert list(json.loads(data)) == [
        "issueTimestamp",
        "renewers",
        "tokenRequester",
        "tokenId",
        "owner",
        "expiryTimestamp",
        "maxTimestamp",
        "version",
    ]
    assert b'"renewers":["User%3Ac%20d"]' in data
    assert DelegationTokenInfo.decode(data) == token


@pytest.mark.parametrize(
    ("path", "secure", "expected"),
    [
        ("/brokers/ids/1", False, OPEN_ACL),
        ("/brokers/ids/1", True, CREATOR_ALL_AND_WORLD_READ_ACL),
        ("/config/users/alice", True, CREATOR_ALL_ACL),
        ("/config/brokers/1", True, CREATOR_ALL_ACL),
        ("/delegation_token/tokens/x", True, CREATOR_ALL_ACL),
        ("/consumers", True, OPEN_ACL),
    ],
)
def test_only_brokers_read_what_holds_credentials(path: str, secure: bool, expected: object) -> None:
    assert default_acl(path, secure=secure) == expected


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("alice", "alice"),
        ("a b*", "a%20b%2A"),
        ("CN=x,O=y", "CN%3Dx%2CO%3Dy"),
        ("ü~/", "%C3%BC%7E%2F"),
        ("<d>", "%3Cd%3E"),
    ],
)
def test_names_are_sanitized_as_kafka_does(name: str, encoded: str) -> None:
    assert paths.sanitize(name) == encoded
    assert paths.desanitize(encoded) == name


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"version":5}', b'{"version":0}', b'{"version":5,"endpoints":["x"]}']
)
def test_registration_that_is_not_one_names_its_path(data: bytes) -> None:
    with pytest.raises(Malformed, match="/brokers/ids/9"):
        BrokerRegistration.decode(9, data)


def test_parents_are_the_ancestors_outermost_first() -> None:
    assert paths.parents("/a/b/c") == ["/a", "/a/b"]
    assert paths.parents("/a") == []
