"""Apache ZooKeeper 3.8.4 as a process, for tests."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop import maven
from tests.scenarios.zookeeper.zk_process import four_letter_word

ZOOKEEPER = (
    "org.apache.zookeeper:zookeeper:3.8.4",
    "io.dropwizard.metrics:metrics-core:4.1.12.1",
    "org.xerial.snappy:snappy-java:1.1.10.5",
    "commons-cli:commons-cli:1.5.0",
    "jline:jline:2.14.6",
)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def apache_zookeeper(data: Path) -> Iterator[int]:
    """Run Apache's server on `data`; yield its port."""
    data.mkdir(parents=True, exist_ok=True)
    port = free_port()
    config = data / "zoo.cfg"
    config.write_text(
        f"dataDir={data}\nclientPort={port}\nclientPortAddress=127.0.0.1\ntickTime=2000\nmaxClientCnxns=0\n"
        "admin.enableServer=false\n4lw.commands.whitelist=*\nextendedTypesEnabled=true\n"
    )
    logback = data / "logback.xml"
    logback.write_text('<configuration><root level="OFF"/></configuration>')
    command = ["java", "-Xmx256m", f"-Dlogback.configurationFile={logback}", "-cp", maven.classpath(*ZOOKEEPER)]
    command += ["org.apache.zookeeper.server.ZooKeeperServerMain", str(config)]
    with (data / "out.txt").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 60
            while not _is_ok(port):
                assert process.poll() is None, (data / "out.txt").read_text()[-3000:]
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()
            process.wait(20)


def _is_ok(port: int) -> bool:
    try:
        return "Mode: standalone" in four_letter_word(port, b"srvr")
    except OSError:
        return False
