"""Brokers that return: with an empty disk, after a long absence, after a topic was deleted, as preferred leaders."""

import shutil
from pathlib import Path

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec

from barnabas.cli.local_cluster import LocalCluster
from barnabas.wire.record_batch import iter_batches


def log_bytes(cluster: LocalCluster, broker: int, topic: str, partition: int = 0) -> bytes:
    folder = cluster.log_dir(broker) / f"{topic}-{partition}"
    return b"".join(file.read_bytes() for file in sorted(folder.glob("*.log")))


def stop_all(cluster: LocalCluster) -> None:
    for broker in cluster.broker_ids:
        assert cluster.terminate(broker) == 0


def test_a_new_broker_with_a_dead_ones_id_and_an_empty_disk_catches_up(quick_cluster, admin, topic):
    admin.create(topic)
    admin.write(topic, [b"before %d" % n for n in range(500)])
    victim = admin.leader(topic)
    quick_cluster.kill(victim)
    shutil.rmtree(quick_cluster.log_dir(victim))
    admin.write(topic, [b"meanwhile %d" % n for n in range(100)])
    quick_cluster.start_broker(victim)
    admin.wait_in_sync(topic)
    admin.write(topic, [b"after %d" % n for n in range(10)])
    admin.wait_in_sync(topic)
    stop_all(quick_cluster)
    logs = {log_bytes(quick_cluster, broker, topic) for broker in quick_cluster.broker_ids}
    assert len(logs) == 1
    assert sum(header.record_count for _, header in iter_batches(logs.pop())) == 610


def test_a_broker_that_was_away_while_records_were_deleted_starts_where_the_leader_does(quick_cluster, admin, topic):
    admin.create(topic, segment_bytes="65536")
    admin.write(topic, [b"%d" % n * 100 for n in range(500)])
    away = next(broker for broker in quick_cluster.broker_ids if broker != admin.leader(topic))
    assert quick_cluster.terminate(away) == 0
    last = max(admin.write(topic, [b"%d" % n * 100 for n in range(2000)]))
    admin.client.delete_records([TopicPartition(topic, 0, last - 10)])[TopicPartition(topic, 0)].result()
    quick_cluster.start_broker(away)
    admin.wait_in_sync(topic)
    for broker in quick_cluster.broker_ids:
        if broker != away:
            quick_cluster.terminate(broker)
    names = sorted(path.name for path in (quick_cluster.log_dir(away) / f"{topic}-0").glob("*.log"))
    assert int(Path(names[0]).stem) > 500, "the broker dropped its log: the leader's log starts after its end"


def test_a_topic_deleted_while_a_broker_is_down_is_gone_when_it_returns(quick_cluster, admin, topic):
    admin.create(topic, partitions=3)
    admin.write(topic, [b"value"])
    quick_cluster.terminate(2)
    admin.client.delete_topics([topic], operation_timeout=1, request_timeout=60)[topic].result()
    admin.wait(lambda: topic not in admin.client.list_topics(timeout=5).topics, "that the topic is gone")
    assert (quick_cluster.log_dir(2) / f"{topic}-0").exists()
    quick_cluster.start_broker(2)
    admin.wait(lambda: not (quick_cluster.log_dir(2) / f"{topic}-0").exists(), "that the returned broker deletes it")
    admin.create(topic, partitions=2)
    assert admin.write(topic, [b"anew"]) == [0]


def test_the_preferred_leader_leads_again_after_a_restart(quick_cluster, admin, topic):
    admin.create_on(topic, [[1, 2, 3]])
    admin.write(topic, [b"value"])
    quick_cluster.restart(1)
    admin.wait_in_sync(topic)
    assert admin.leader(topic) != 1
    admin.client.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result()
    admin.wait(lambda: admin.leader(topic) == 1, "the preferred leader")
    assert admin.write(topic, [b"more"]) == [1]


def test_an_unclean_election_happens_only_where_it_is_allowed(quick_cluster, admin, topic):
    admin.create_on(topic, [[1, 2]], min_insync_replicas="1")
    admin.write(topic, [b"both have it"])
    quick_cluster.kill(2)
    admin.wait(lambda: len(admin.partitions(topic)[0].isrs) == 1, "that the ISR is the leader alone")
    admin.write(topic, [b"only 1 has it"])
    quick_cluster.kill(1)
    quick_cluster.start_broker(2)
    admin.wait(lambda: admin.leader(topic) == -1, "that the partition has no leader")
    [allowed] = admin.client.incremental_alter_configs([_allow_unclean(topic)]).values()
    allowed.result()
    admin.wait(lambda: admin.leader(topic) == 2, "an unclean leader")
    [end] = admin.client.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()}).values()
    assert end.result().offset == 1, "records that only the lost leader had are lost"
    quick_cluster.start_broker(1)
    admin.wait_in_sync(topic, 2)
    assert admin.write(topic, [b"goes on"]) == [1]
    for broker in (1, 2):
        quick_cluster.terminate(broker)
    assert log_bytes(quick_cluster, 1, topic) == log_bytes(quick_cluster, 2, topic)


def _allow_unclean(topic: str) -> ConfigResource:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry

    entry = ConfigEntry("unclean.leader.election.enable", "true", incremental_operation=AlterConfigOpType.SET)
    return ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
