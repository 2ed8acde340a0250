"""What a client keeps of Metadata, and what it does not believe."""

from barnabas.client.image import Broker, ClusterImage, LeaderEpochs, PartitionInfo, TopicInfo
from barnabas.core.ids import TopicPartition

P0 = TopicPartition("t", 0)


def image(leader: int, epoch: int, *, topic_id: bytes = b"a" * 16) -> ClusterImage:
    partition = PartitionInfo(0, leader, epoch, (1, 2), (leader,))
    brokers = {number: Broker(number, "h", 9092) for number in (1, 2)}
    return ClusterImage(brokers=brokers, topics={"t": TopicInfo("t", topic_id, False, (partition,))})


def test_broker_that_answers_from_the_past_names_no_leader() -> None:
    epochs = LeaderEpochs()
    assert epochs.checked(image(2, 5), is_whole=False).leader_of(P0) == 2
    assert epochs.checked(image(1, 3), is_whole=False).leader_of(P0) == -1
    assert epochs.checked(image(1, 3), is_whole=True).leader_of(P0) == -1
    assert epochs.checked(image(2, 5), is_whole=True).leader_of(P0) == 2
    assert epochs.checked(image(1, 6), is_whole=True).leader_of(P0) == 1


def test_topic_that_was_made_anew_begins_with_its_own_epochs() -> None:
    epochs = LeaderEpochs()
    epochs.checked(image(2, 5), is_whole=False)
    assert epochs.checked(image(1, 0, topic_id=b"b" * 16), is_whole=False).leader_of(P0) == 1


def test_cluster_without_topic_ids_is_believed() -> None:
    epochs = LeaderEpochs()
    epochs.checked(image(2, 5, topic_id=bytes(16)), is_whole=False)
    assert epochs.checked(image(1, 0, topic_id=bytes(16)), is_whole=False).leader_of(P0) == 1
