"""Spark's standalone cluster as processes of this machine: a master, and workers on addresses of the loopback network."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from barnabas.testing import wait_until

SPARK_HOME = Path(pyspark.__file__).parent
MASTER_HOST = "127.0.0.1"


def is_an_address_here(host: str) -> bool:
    """Whether this machine has the address: Linux answers to all of 127/8, other systems only to 127.0.0.1 by default."""
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


@contextmanager
def standalone(folder: Path, hosts: Sequence[str], *, memory: str = "600m") -> Iterator[str]:
    """Yield the master's URL. Worker n, counted from 1, has one core, its host as its name, and its files in
    `folder`/worker-n.
    """
    with socket.socket() as free:
        free.bind((MASTER_HOST, 0))
        port = free.getsockname()[1]
    url = f"spark://{MASTER_HOST}:{port}"
    with ExitStack() as stack:
        master = folder / "master.log"
        _start(stack, master, MASTER_HOST, "master.Master", "--port", str(port))
        wait_until(lambda: _answers(port), timeout_s=120)
        for number, host in enumerate(hosts, 1):
            limits = ["--cores", "1", "--memory", memory, "--work-dir", str(folder / f"worker-{number}")]
            _start(stack, folder / f"worker-{number}.log", host, "worker.Worker", *limits, url)
        # A slow worker registers more than once.
        wait_until(
            lambda: len(set(re.findall(r"Registering worker (\S+)", master.read_text()))) == len(hosts), timeout_s=120
        )
        yield url


def _start(stack: ExitStack, log: Path, host: str, name: str, *arguments: str) -> None:
    # Executors inherit the environment of their worker, and with it the address to bind to.
    environment = os.environ | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": host,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
    }
    program = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    output = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(
        [*program, "--host", host, "--webui-port", "0", *arguments], env=environment, stdout=output, stderr=output
    )
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((MASTER_HOST, port)) == 0
