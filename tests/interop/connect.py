"""Kafka Connect of Maven, as processes: distributed workers with their REST interface, and MirrorMaker 2."""

import contextlib
import json
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from bench.kafka import free_port

from tests.interop import maven

VERSION = "4.3.1"
_RUNTIME = (
    *(f"org.apache.kafka:{artifact}:{VERSION}" for artifact in ("connect-runtime", "connect-file", "connect-mirror")),
    # Connect serves the levels of its loggers over REST, and so needs the ones that Kafka ships. They log errors alone.
    *(f"org.apache.logging.log4j:{artifact}:2.25.4" for artifact in ("log4j-core", "log4j-slf4j-impl")),
)
_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
#: A worker takes seconds to scan its plugins, and minutes on a busy machine.
TIMEOUT_S = 120.0


class JavaProcess:
    """A main class of Connect's in a process of its own, with a log."""

    def __init__(self, main: str, settings: Mapping[str, str], folder: Path, *arguments: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "worker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self.log = folder / "worker.log"
        command = ["java", *_OPTIONS, "-cp", maven.classpath(*_RUNTIME), main, str(file), *arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def alive(self) -> bool:
        """True, or an error that says why it ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"ended with {self._process.returncode}:\n{self.log.read_text()[-4000:]}")
        return True

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()


class Worker(JavaProcess):
    """A distributed worker; workers of the same name are one group."""

    def __init__(self, bootstrap: str, name: str, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        plugins = folder / "plugins"
        plugins.mkdir(parents=True)
        for jar in maven.jars(f"org.apache.kafka:connect-file:{VERSION}"):
            shutil.copy(jar, plugins)
        converter = "org.apache.kafka.connect.storage.StringConverter"
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": f"{name}-workers",
            "key.converter": converter,
            "value.converter": converter,
            **{f"{kind}.storage.topic": f"{name}-{kind}" for kind in ("config", "offset", "status")},
            **{f"{kind}.storage.replication.factor": "3" for kind in ("config", "offset", "status")},
            "offset.storage.partitions": "5",
            "offset.flush.interval.ms": "500",
            "exactly.once.source.support": "enabled",
            "scheduled.rebalance.max.delay.ms": "1000",
            "session.timeout.ms": "10000",
            "listeners": self.url,
            "plugin.path": str(plugins),
        }
        super().__init__("org.apache.kafka.connect.cli.ConnectDistributed", settings, folder)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read()
        return json.loads(text) if text else None

    def is_ready(self) -> bool:
        self.alive()
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            self.ask("GET", "/connectors")
            return True
        return False

    def states(self, connector: str) -> list[str]:
        """Of the connector and its tasks; none while a rebalance goes on."""
        self.alive()
        try:
            status = self.ask("GET", f"/connectors/{connector}/status")
        except urllib.error.HTTPError:
            return []
        failed = [part["trace"] for part in (status["connector"], *status["tasks"]) if part["state"] == "FAILED"]
        assert not failed, failed[0]
        return [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
