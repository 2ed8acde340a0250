"""Apache Kafka 4.3.0 in KRaft mode, one process: what a console meets elsewhere."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import maven
from bench.kafka import free_port, wait_for_port

KAFKA = ("org.apache.kafka:kafka_2.13:4.3.0",)


@contextmanager
def kraft() -> Iterator[str]:
    """The address of its broker."""
    classpath = maven.classpath(*KAFKA)
    with tempfile.TemporaryDirectory(prefix="kraft-") as name:
        folder = Path(name)
        port, controller_port = free_port(), free_port()
        file = folder / "server.properties"
        file.write_text(
            "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller_port}\nlog.dirs={folder}/data\n"
            "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
            "transaction.state.log.min.isr=1\ngroup.initial.rebalance.delay.ms=0\n"
        )
        java = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classpath]
        make = [*java, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(file)]
        subprocess.run(make, check=True, capture_output=True, timeout=120)
        log = folder / "server.log"
        with log.open("wb") as out:
            server = subprocess.Popen([*java, "kafka.Kafka", str(file)], stdout=out, stderr=out)
        try:
            wait_for_port(port, server, log)
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
