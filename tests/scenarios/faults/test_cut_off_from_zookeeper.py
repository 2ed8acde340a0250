"""A broker that is cut off from ZooKeeper alone: clients and the other brokers still reach it.

The controller elects other leaders and cannot tell it. A relay stands between the broker and ZooKeeper; when the cut begins it
keeps its connections and passes nothing on, as a firewall does.
"""

import itertools
import socket
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, Message, Producer

from barnabas.cli.local_cluster import LocalCluster
from tests.scenarios.faults.conftest import QUICK_COORDINATOR, Admin  # type: ignore[attr-defined]
from tests.soak.workload import QUIET

CUT_OFF = 2
SESSION_S = 3.0
CUT_S = 16.0


class Relay:
    """Passes bytes on to a server, until it is cut."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._target = host, int(port)
        self._healed = threading.Event()
        self._healed.set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._healed.clear()

    def heal(self) -> None:
        self._healed.set()

    def close(self) -> None:
        self.heal()
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._healed.wait()
        far = socket.create_connection(self._target)
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self._healed.wait()
                sink.sendall(data)
        except OSError:
            pass
        finally:
            sink.close()


def test_producers_wait_no_longer_than_the_session_of_a_broker_that_lost_zookeeper(
    new_cluster: Callable[..., LocalCluster], topic: str
) -> None:
    zookeeper = new_cluster(brokers=0, zookeeper_options=QUICK_COORDINATOR).zookeeper_connect
    relay = Relay(zookeeper)
    cluster = new_cluster(
        brokers=3,
        zookeeper=zookeeper,
        config={"zookeeper.session.timeout.ms": str(int(SESSION_S * 1000))},
        broker_config={CUT_OFF: {"zookeeper.connect": relay.address}},
    )
    admin = Admin(cluster)
    admin.create_on(topic, [[CUT_OFF, 1, 3], [1, 3, CUT_OFF]], min_insync_replicas="2")
    acknowledged: list[tuple[float, int]] = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)
        else:
            acknowledged.append((time.monotonic(), message.partition()))

    # With its defaults librdkafka looks for leaders when a broker refuses, and not when an answer is late.
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, **QUIET})
    began_s = time.monotonic()
    sent = 0
    cut_s = 0.0
    while time.monotonic() < began_s + 3 + CUT_S:
        if not cut_s and time.monotonic() > began_s + 3:
            cut_s = time.monotonic()
            relay.cut()
        for partition in (0, 1):
            producer.produce(topic, b"%d" % sent, partition=partition, on_delivery=delivered)
            sent += 1
        producer.poll(0.02)
    during = [at_s for at_s, partition in acknowledged if partition == 0 and at_s < began_s + 3 + CUT_S]
    # The partition's new leader takes over while the cut lasts.
    assert admin.leader(topic) != CUT_OFF
    pause_s = max(later - earlier for earlier, later in itertools.pairwise(during))
    assert during[-1] > cut_s + CUT_S - 3, "no write was acknowledged at the end of the cut"
    assert pause_s < SESSION_S + 6, f"no acknowledged write for {pause_s:.1f} s"
    relay.heal()
    assert producer.flush(60) == 0
    assert errors == [] and len(acknowledged) == sent
    admin.wait_in_sync(topic)
    relay.close()
