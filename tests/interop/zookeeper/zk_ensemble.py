"""An ensemble of three Apache ZooKeeper servers as processes, of which some may be killed."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from barnabas.cli.local_cluster import wait_until
from tests.interop import maven
from tests.interop.zookeeper.zk_apache import ZOOKEEPER, free_port
from tests.scenarios.zookeeper.zk_process import four_letter_word

#: Short, so that followers soon notice that their leader is gone.
TICK_TIME_MS = 300


class Ensemble:
    """`with Ensemble(folder) as ensemble: ensemble.connect`; servers are 1, 2, 3."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = {server: free_port() for server in (1, 2, 3)}
        self._peers = {server: (free_port(), free_port()) for server in (1, 2, 3)}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            for server in self._ports:
                self.start(server)
            self.wait_for(lambda: self.leader is not None and len(self.followers) == 2, "all three servers")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def connect(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def start(self, server: int) -> None:
        data = self._folder / f"zookeeper-{server}"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(str(server))
        config = data / "zoo.cfg"
        peers = "".join(f"server.{each}=127.0.0.1:{a}:{b}\n" for each, (a, b) in self._peers.items())
        config.write_text(
            f"dataDir={data}\nclientPort={self._ports[server]}\nclientPortAddress=127.0.0.1\ntickTime={TICK_TIME_MS}\n"
            f"initLimit=20\nsyncLimit=5\nmaxClientCnxns=0\nmaxSessionTimeout=30000\nadmin.enableServer=false\n"
            f"4lw.commands.whitelist=*\n{peers}"
        )
        logback = data / "logback.xml"
        logback.write_text('<configuration><root level="OFF"/></configuration>')
        command = ["java", "-Xmx128m", f"-Dlogback.configurationFile={logback}", "-cp", maven.classpath(*ZOOKEEPER)]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)]
        with (data / "out.txt").open("ab") as out:
            self._processes[server] = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    def kill(self, server: int) -> None:
        process = self._processes.pop(server)
        process.kill()
        process.wait(20)

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(20)
        self._processes.clear()

    def mode(self, server: int) -> str:
        """Return leader or follower, or an empty text while the server is neither."""
        if server not in self._processes:
            return ""
        try:
            lines = four_letter_word(self._ports[server], b"srvr").splitlines()
        except OSError:
            return ""
        return next((line.removeprefix("Mode: ") for line in lines if line.startswith("Mode: ")), "")

    @property
    def leader(self) -> int | None:
        return next((server for server in self._ports if self.mode(server) == "leader"), None)

    @property
    def followers(self) -> list[int]:
        return [server for server in self._ports if self.mode(server) == "follower"]

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, 90, what=what)
