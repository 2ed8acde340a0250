"""Settings that suit tests."""

from collections.abc import Mapping

#: What suits tests, besides what suits a local cluster: the first group of a cluster waits for every partition of its topic.
DEFAULTS: Mapping[str, str] = {
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "share.coordinator.state.topic.num.partitions": "5",
}
#: What `short_sessions` sets: ends are noticed within about a second, where Kafka's own times are made for real networks.
SHORT_SESSIONS: Mapping[str, str] = {
    "zookeeper.session.timeout.ms": "1000",
    "replica.lag.time.max.ms": "1000",
    "group.min.session.timeout.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "0",
}
#: The tick of the embedded ZooKeeper that goes with `SHORT_SESSIONS`.
SHORT_TICK_MS = 100
