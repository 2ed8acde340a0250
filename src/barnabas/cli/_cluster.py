"""A local cluster's settings: the same for `barnabas up` and for clusters in tests."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """N brokers, ids 1..N, on one machine."""

    brokers: int = 3
    host: str = "127.0.0.1"
    #: Of the first broker; the others follow. 0: each takes a free one.
    port: int = 9092
    data: Path
    #: `host:port[/chroot]` of the coordinator.
    zookeeper: str
    config: Mapping[str, str] = field(default_factory=dict)

    def broker_name(self, broker_id: int) -> str:
        return f"broker-{broker_id}"

    @property
    def broker_ids(self) -> range:
        return range(1, self.brokers + 1)

    def settings(self, broker_id: int) -> dict[str, str]:
        """Settings that suit the cluster's size; `config` wins over them."""
        replicas = min(3, self.brokers)
        port = self.port + broker_id - 1 if self.port else 0
        return {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://{self.host}:{port}",
            "log.dirs": str(self.data / self.broker_name(broker_id)),
            "zookeeper.connect": self.zookeeper,
            # A broker that is killed is noticed when its session ends.
            "zookeeper.session.timeout.ms": "6000",
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(max(1, replicas - 1)),
            "offsets.topic.replication.factor": str(replicas),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(max(1, replicas - 1)),
            # Nobody waits for more members that may never come.
            "group.initial.rebalance.delay.ms": "0",
            **self.config,
        }


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
