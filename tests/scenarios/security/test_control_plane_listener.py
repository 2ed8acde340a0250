"""`control.plane.listener.name`: the controller's requests come through a listener of their own, with its own security."""

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
    """Connections that were accepted on `port`."""
    return sum(
        1
        for each in psutil.Process(pid).net_connections("tcp")
        if each.laddr.port == port and each.status == psutil.CONN_ESTABLISHED
    )


def test_controller_reaches_every_broker_through_the_control_plane_listener(topic: str) -> None:
    with LocalCluster(brokers=2, config=CONFIG) as cluster:
        admin = AdminClient({"bootstrap.servers": bootstrap_of(cluster, "PLAINTEXT")})
        # Each replica is made by a request of the controller.
        admin.create_topics([NewTopic(topic, 2, 2)])[topic].result(60)
        controller = admin.list_topics(timeout=60).controller_id
        for broker_id, address in zip(cluster.broker_ids, bootstrap_of(cluster, "CONTROL").split(","), strict=True):
            port = int(address.rpartition(":")[2])
            # The controller's own to each broker; and to the controller those of the others, who watch it.
            watching = len(cluster.broker_ids) - 1 if broker_id == controller else 0
            assert established(cluster.member(broker_id).pid, port) == 1 + watching
