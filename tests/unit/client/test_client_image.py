"""The metadata that a client keeps, and the metadata that it ignores."""

from collections.abc import Iterator

from barnabas.base.ids import TopicPartition
from barnabas.client.image import Broker, ClusterImage, LeaderEpochs, PartitionInfo, TopicInfo

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


def test_topic_that_was_created_again_begins_with_its_own_epochs() -> None:
    epochs = LeaderEpochs()
    epochs.checked(image(2, 5), is_whole=False)
    assert epochs.checked(image(1, 0, topic_id=b"b" * 16), is_whole=False).leader_of(P0) == 1


def test_cluster_without_topic_ids_is_believed() -> None:
    epochs = LeaderEpochs()
    epochs.checked(image(2, 5, topic_id=bytes(16)), is_whole=False)
    assert epochs.checked(image(1, 0, topic_id=bytes(16)), is_whole=False).leader_of(P0) == 1


def test_partition_is_found_by_its_number_also_where_some_are_missing() -> None:
    def of(*indexes: int) -> ClusterImage:
        parts = tuple(PartitionInfo(index, 1, 10 + index, (1,), (1,)) for index in indexes)
        return ClusterImage(topics={"t": TopicInfo("t", bytes(16), False, parts)})

    for known in (of(0, 1, 2, 3), of(1, 3)):
        epochs = [known.leader_epoch_of(TopicPartition("t", index)) for index in (-1, 1, 3, 4)]
        assert epochs == [-1, 11, 13, -1]


def test_cost_of_a_partition_does_not_depend_on_their_number() -> None:
    class Counted(tuple[PartitionInfo, ...]):
        looked_through = 0

        def __iter__(self) -> Iterator[PartitionInfo]:
            Counted.looked_through += 1
            return super().__iter__()

    parts = Counted(PartitionInfo(index, 1, 0, (1,), (1,)) for index in range(1000))
    known = ClusterImage(brokers={1: Broker(1, "h", 1)}, topics={"t": TopicInfo("t", bytes(16), False, parts)})
    Counted.looked_through = 0
    assert all(known.leader_of(TopicPartition("t", index)) == 1 for index in range(1000))
    assert Counted.looked_through == 0
