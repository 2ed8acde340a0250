"""`control.plane.listener.name`: the controller's requests use a separate listener with its own security."""

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.cli.local_cluster import LocalCluster
from tests.scenarios.security.secured import PLAIN_MODULE, bootstrap_of

CONFIG = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CONTROL://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROL:SASL_PLAINTEXT",
    "control.plane.listener.name": "CONTROL",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.control.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.control.plain.sasl.jaas.config": (
        f'{PLAIN_MODULE} required username="broker" password="broker-secret" user_broker="broker-secret";'
    ),
}


def established(pid: int, port: int) -> int:
    """Return the number of accepted connections on `port`."""
    return sum(
        1
        for each in psutil.Process(pid).net_connections("tcp")
        if each.laddr.port == port and each.status == psutil.CONN_ESTABLISHED
    )


def test_controller_reaches_every_broker_through_the_control_plane_listener(topic: str) -> None:
    with LocalCluster(brokers=2, config=CONFIG) as cluster:
        admin = AdminClient({"bootstrap.servers": bootstrap_of(cluster, "PLAINTEXT")})
        # The controller's requests create the replicas.
        admin.create_topics([NewTopic(topic, 2, 2)])[topic].result(60)
        controller = admin.list_topics(timeout=60).controller_id
        for broker_id, address in zip(cluster.broker_ids, bootstrap_of(cluster, "CONTROL").split(","), strict=True):
            port = int(address.rpartition(":")[2])
            # The controller connects to each broker, and the other brokers connect to the controller to watch it.
            watching = len(cluster.broker_ids) - 1 if broker_id == controller else 0
            assert established(cluster.member(broker_id).pid, port) == 1 + watching
