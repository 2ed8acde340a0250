"""After a promotion the former source follows, from the point where the logs diverge; then it may lead again."""

from confluent_kafka import Producer

from barnabas.base.ids import LeaderEpoch, Offset
from barnabas.broker.features.link.divergence import divergence_offset, last_divergence
from barnabas.broker.storage.epoch_cache import EpochEntry, LeaderEpochCache
from barnabas.cli.local_cluster import wait_until
from barnabas.client.admin import links as admin
from barnabas.testing.cluster import Cluster
from tests.scenarios.link.linked import batches, create, describe, ends_of, partitions, wait_for_copy, wait_for_state

TIMEOUT_S = 60.0


def test_former_source_drops_records_that_only_it_has_and_follows(source: Cluster, target: Cluster, topic: str) -> None:
    source.create_topic(topic)
    there, back = f"there-{topic}", f"back-{topic}"
    source.produce(topic, [f"r{number}" for number in range(10)])
    left_open = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": f"x-{topic}"})
    left_open.init_transactions(60)
    left_open.begin_transaction()
    left_open.produce(topic, b"never")
    assert left_open.flush(60) == 0
    create(target, source, there, topic)
    wait_for_copy(target, there, topic, {0: 11})
    target.ask(lambda client: admin.alter_link(client, there, "pause"))
    # The described broker may not lead the partition.
    wait_until(lambda: partitions(target, there, topic)[0].state == "waiting", TIMEOUT_S, what="the leader has heard")
    source.produce(topic, ["only there"] * 5)
    target.ask(lambda client: admin.alter_link(client, there, "promote-now"))
    wait_for_state(target, there, topic, "promoted")
    target.produce(topic, ["here"] * 3)

    create(source, target, back, topic, adopt=True)
    # A marker that ended the transaction, and three records.
    wait_for_copy(source, back, topic, {0: 15})
    for broker in source.broker_ids:
        wait_until(
            lambda broker=broker: batches(source, broker, topic) == batches(target, target.leader_of(topic), topic),  # type: ignore[misc]
            TIMEOUT_S,
            what="the replicas are equal",
        )
    [mirror] = partitions(source, back, topic).values()
    assert mirror.truncated_records == 5
    left_open.abort_transaction(60)  # its marker is not written: the topic is a mirror now
    assert ends_of(source, topic) == {0: 15}
    target.produce(topic, ["on"])
    wait_for_copy(source, back, topic, {0: 16})

    source.ask(lambda client: admin.alter_link(client, back, "promote"))
    wait_for_state(source, back, topic, "promoted")
    source.produce(topic, ["home"])
    assert [record.value for record in source.records(topic)][-2:] == [b"on", b"home"]
    assert describe(source, back).error is None

    # Once more. Now a cluster reports two promotions, of which the last one is used.
    target.produce(topic, ["only here"] * 2)
    again, home = f"z-again-{topic}", f"home-{topic}"
    create(target, source, again, topic, adopt=True)
    wait_for_copy(target, again, topic, {0: 17})
    assert partitions(target, again, topic)[0].truncated_records == 2
    target.ask(lambda client: admin.alter_link(client, again, "promote"))
    wait_for_state(target, again, topic, "promoted")
    source.produce(topic, ["only there"] * 3)
    create(source, target, home, topic, adopt=True)
    target.produce(topic, ["last"])
    wait_for_copy(source, home, topic, {0: 18})
    assert partitions(source, home, topic)[0].truncated_records == 3
    assert [record.value for record in source.records(topic)][-3:] == [b"on", b"home", b"last"]


def test_logs_part_where_the_mirror_ended_or_where_an_epoch_was_lost() -> None:
    ours = LeaderEpochCache([EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in ((0, 0), (3, 50))])

    def point(final: int, epochs: list[tuple[int, int]], log_end: int = 100) -> int:
        return divergence_offset(
            final, epochs, log_end=log_end, end_of=lambda epoch: ours.end_offset_for(epoch, log_end)
        )

    assert point(80, [(0, 0), (3, 50)]) == 80
    assert point(120, [(0, 0), (3, 50)]) == 100
    # The mirror had not reached epoch 3, in which this log continued.
    assert point(40, [(0, 0)]) == 40
    assert point(60, [(0, 0)]) == 50
    # The mirror has records of epoch 2, which this log lost in an unclean election.
    assert point(70, [(0, 0), (2, 45)]) == 45
    assert point(0, []) == 0


def test_logs_part_where_the_last_of_several_promotions_was() -> None:
    assert last_divergence([(11, [(0, 0)]), (17, [(0, 0), (2, 15)])]) == (17, [(0, 0), (2, 15)])
    # The log was truncated since: a promotion of a later epoch may end before one of an earlier epoch.
    assert last_divergence([(20, [(0, 0)]), (17, [(0, 0), (2, 15)])]) == (17, [(0, 0), (2, 15)])
    # Without a truncation in between.
    assert last_divergence([(30, [(1, 0)]), (20, [(1, 0)]), (5, [])]) == (30, [(1, 0)])
