"""The embedded ZooKeeper beside Apache ZooKeeper 3.8.4, in one run: `python -m bench.zookeeper [--seconds N]`.

Both run on the same disk with every write flushed (forceSync, the default of both), both are warmed up, and rounds
alternate. The figure is the best round of each, because other load on the machine only makes a round worse (all rounds
are in the JSON). `CPU us` is the server's own CPU time for one operation, which other load hardly changes.

kazoo drives both, as it drives our brokers. Since kazoo itself takes most of the time, the `wire` rows send hand-made
frames, with many in flight, and show the capacity of each server. Results go to bench/results/zookeeper.json and .txt.
"""

import argparse
import json
import os
import platform
import selectors
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kazoo.client import KazooClient

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "interop"), str(ROOT / "tests" / "scenarios" / "zookeeper")]

import maven  # noqa: E402
from zk_process import four_letter_word  # noqa: E402
from zk_raw import RawClient, create, set_data, watched  # noqa: E402

from barnabas.zookeeper.wire import Op  # noqa: E402
from bench import as_installed  # noqa: E402

APACHE = "Apache ZooKeeper 3.8.4"
OURS = "barnabas"
JARS = (
    "org.apache.zookeeper:zookeeper:3.8.4",
    "io.dropwizard.metrics:metrics-core:4.1.12.1",
    "org.xerial.snappy:snappy-java:1.1.10.5",
)
PAYLOAD = b"x" * 100
SESSIONS = 100


class Server:
    """A server process that is measured."""

    def __init__(self, name: str, command: list[str], port: int, out: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.port = port
        with out.open("wb") as log:
            began = time.perf_counter()
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        deadline = began + 60
        while True:
            with suppress(OSError):
                if "Mode: standalone" in four_letter_word(port, b"srvr"):
                    break
            if self.process.poll() is not None or time.perf_counter() > deadline:
                raise SystemExit(f"{name} did not start: {out.read_text()[-2000:]}")
            time.sleep(0.002)
        self.start_ms = (time.perf_counter() - began) * 1000
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        self.start_cpu_ms = sum(int(task.read_text().split()[0]) for task in tasks) / 1e6

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:"))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def start(name: str, folder: Path) -> Server:
    folder.mkdir(parents=True)
    port = free_port()
    if name == OURS:
        command = [sys.executable, "-m", "barnabas", "zookeeper", "--port", str(port), "--data", str(folder / "data")]
        command += ["--max-client-cnxns", "0"]
    else:
        config = folder / "zoo.cfg"
        config.write_text(
            f"dataDir={folder}/data\nclientPort={port}\nclientPortAddress=127.0.0.1\ntickTime=2000\nmaxClientCnxns=0\n"
            "admin.enableServer=false\n"
        )
        quiet = folder / "logback.xml"
        quiet.write_text('<configuration><root level="OFF"/></configuration>')
        # zkServer.sh gives it 1000 MB.
        command = ["java", "-Xmx1000m", f"-Dlogback.configurationFile={quiet}", "-cp", maven.classpath(*JARS)]
        command += ["org.apache.zookeeper.server.ZooKeeperServerMain", str(config)]
    return Server(name, command, port, folder / "out.txt", as_installed(str(folder.parent / "bytecode")))


@contextmanager
def kazoo(server: Server) -> Iterator[KazooClient]:
    client = KazooClient(server.address, timeout=30)
    client.start(30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


# ---- workloads driven by kazoo: each returns operations per second -----------------------------------------------------


class KazooLoad:
    def __init__(self, client: KazooClient) -> None:
        self._client = client
        self._round = 0
        client.ensure_path("/bench")
        client.create("/bench/node", PAYLOAD)

    def _many(self, operation: Callable[[int], object], seconds: float) -> float:
        count = 0
        began = time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds:
            operation(count)
            count += 1
        return count / elapsed

    def _pipelined(self, operation: Callable[[int], object], count: int = 1500) -> float:
        began = time.perf_counter()
        for result in [operation(number) for number in range(count)]:
            result.get(timeout=60)  # type: ignore[attr-defined]
        return count / (time.perf_counter() - began)

    def _folder(self) -> str:
        self._round += 1
        path = f"/bench/r{self._round}"
        self._client.create(path)
        return path

    def _transaction(self, folder: str, number: int) -> object:
        transaction = self._client.transaction()
        transaction.create(f"{folder}/n{number}", PAYLOAD)
        transaction.set_data("/bench/node", PAYLOAD)
        transaction.delete(f"{folder}/n{number}")
        return transaction.commit_async()

    def rows(self, seconds: float) -> dict[str, Callable[[], float]]:
        client = self._client

        def creates(sync: bool) -> float:
            folder = self._folder()
            if sync:
                return self._many(lambda n: client.create(f"{folder}/n{n}", PAYLOAD), seconds)
            return self._pipelined(lambda n: client.create_async(f"{folder}/n{n}", PAYLOAD))

        def multis(sync: bool) -> float:
            folder = self._folder()
            if sync:
                return self._many(lambda n: self._transaction(folder, n).get(timeout=60), seconds)  # type: ignore[attr-defined]
            return self._pipelined(lambda n: self._transaction(folder, n), 1000)

        return {
            "kazoo sync create": lambda: creates(True),
            "kazoo sync get": lambda: self._many(lambda _n: client.get("/bench/node"), seconds),
            "kazoo sync set": lambda: self._many(lambda _n: client.set("/bench/node", PAYLOAD), seconds),
            "kazoo sync multi": lambda: multis(True),
            "kazoo pipelined create": lambda: creates(False),
            "kazoo pipelined get": lambda: self._pipelined(lambda _n: client.get_async("/bench/node")),
            "kazoo pipelined set": lambda: self._pipelined(lambda _n: client.set_async("/bench/node", PAYLOAD)),
            "kazoo pipelined multi": lambda: multis(False),
        }


class FanOut:
    """100 sessions watch one node; events per second from the change until the last session has its event."""

    def __init__(self, server: Server, writer: KazooClient, stack: ExitStack) -> None:
        self._writer = writer
        self._clients = [stack.enter_context(kazoo(server)) for _ in range(SESSIONS)]
        writer.create("/fan", b"")

    def run(self) -> float:
        rounds = 5
        total_s = 0.0
        for _ in range(rounds):
            left = threading.Semaphore(0)
            for result in [c.get_async("/fan", watch=lambda _e, left=left: left.release()) for c in self._clients]:
                result.get(timeout=30)
            began = time.perf_counter()
            self._writer.set("/fan", b"")
            for _client in self._clients:
                assert left.acquire(timeout=30)
            total_s += time.perf_counter() - began
        return rounds * SESSIONS / total_s


# ---- the same by hand, where the server is the bottleneck --------------------------------------------------------------


def frames(requests: list[tuple[int, bytes]]) -> bytes:
    parts = []
    for xid, (op, body) in enumerate(requests, start=1):
        parts.append(struct.pack(">iii", 8 + len(body), xid, op) + body)
    return b"".join(parts)


def by_wire(port: int, requests: list[tuple[int, bytes]], count: int) -> float:
    """Send all frames from a separate thread, and read all responses."""
    with RawClient(port, timeout_s=60) as client:
        assert client.connect(timeout_ms=30_000)
        data = frames(requests)
        began = time.perf_counter()
        sender = threading.Thread(target=client.sock.sendall, args=(data,))
        sender.start()
        buffered, answers = b"", 0
        while answers < count:
            chunk = client.sock.recv(1 << 18)
            assert chunk, "the server hung up"
            buffered += chunk
            at = 0
            while len(buffered) - at >= 4:
                end = at + 4 + int.from_bytes(buffered[at : at + 4], "big")
                if end > len(buffered):
                    break
                assert buffered[at + 16 : at + 20] == bytes(4), "an answer is an error"
                answers += 1
                at = end
            buffered = buffered[at:]
        elapsed_s = time.perf_counter() - began
        sender.join()
        return count / elapsed_s


class WireLoad:
    def __init__(self, server: Server) -> None:
        self._port = server.port
        self._round = 0

    def rows(self) -> dict[str, Callable[[], float]]:
        count = 4000

        def creates() -> float:
            self._round += 1
            requests = [(int(Op.CREATE), create(f"/w{self._round}-{n}", PAYLOAD)) for n in range(count)]
            return by_wire(self._port, requests, count)

        def gets() -> float:
            return by_wire(self._port, [(int(Op.GET_DATA), watched("/bench/node"))] * count, count)

        def sets() -> float:
            return by_wire(self._port, [(int(Op.SET_DATA), set_data("/bench/node", PAYLOAD))] * count, count)

        return {"wire create": creates, "wire get": gets, "wire set": sets}


def wire_fan_out(port: int) -> float:
    """100 sessions watch one node, all read by one thread; from the change until the last session has its event."""
    with ExitStack() as stack:
        writer, *watchers = clients = [stack.enter_context(RawClient(port)) for _ in range(SESSIONS + 1)]
        selector = stack.enter_context(selectors.DefaultSelector())
        for client in clients:
            assert client.connect(timeout_ms=30_000)
        for client in watchers:
            selector.register(client.sock, selectors.EVENT_READ)
        times_s = []
        for _ in range(5):
            for client in watchers:
                assert client.call(Op.GET_DATA, watched("/fan", True)).err == 0
            began = time.perf_counter()
            writer.request(Op.SET_DATA, set_data("/fan", b""))
            left = SESSIONS
            while left:
                for key, _events in selector.select():
                    assert key.fileobj.recv(4096)  # type: ignore[union-attr]
                    left -= 1
            times_s.append(time.perf_counter() - began)
            assert writer.reply().err == 0
        for client in clients:
            assert client.call(Op.CLOSE_SESSION).err == 0
        return SESSIONS / statistics.median(times_s)


@dataclass
class Figures:
    rounds: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    operations: float = 0.0

    def best(self, *, least: bool) -> float:
        return min(self.rounds) if least else max(self.rounds)

    @property
    def cpu_us(self) -> float | None:
        return self.cpu_s / self.operations * 1e6 if self.operations else None


Results = dict[str, dict[str, Figures]]


def measure(folder: Path, *, seconds: float, rounds: int) -> Results:
    """Return figures by row and server."""
    results: Results = {}

    def figures(row: str, name: str) -> Figures:
        return results.setdefault(row, {OURS: Figures(), APACHE: Figures()})[name]

    start(OURS, folder / "compile").stop()
    for number in range(min(rounds, 5)):
        for name in (OURS, APACHE):
            server = start(name, folder / f"start-{name[:6]}-{number}")
            figures("start ms", name).rounds.append(server.start_ms)
            figures("start CPU ms", name).rounds.append(server.start_cpu_ms)
            figures("idle MB", name).rounds.append(server.rss_mb())
            server.stop()
    with ExitStack() as stack:
        servers = [start(name, folder / f"load-{name[:6]}") for name in (OURS, APACHE)]
        loads: list[tuple[Server, dict[str, Callable[[], float]]]] = []
        for server in servers:
            stack.callback(server.stop)
            client = stack.enter_context(kazoo(server))
            rows = KazooLoad(client).rows(seconds)
            rows["kazoo watch fan-out to 100"] = FanOut(server, client, stack).run
            rows |= WireLoad(server).rows()
            rows["wire watch fan-out to 100"] = lambda server=server: wire_fan_out(server.port)  # type: ignore[misc]
            loads.append((server, rows))
        for row in loads[0][1]:
            for _server, rows in loads:
                rows[row]()  # warm up
            for _ in range(rounds):
                for server, rows in loads:
                    one_round(server, rows[row], figures(row, server.name))
        for server in servers:
            figures("loaded MB", server.name).rounds.append(server.rss_mb())
    return results


def one_round(server: Server, run: Callable[[], float], into: Figures) -> None:
    cpu_s, began = server.cpu_s(), time.perf_counter()
    rate = run()
    elapsed_s = time.perf_counter() - began
    into.rounds.append(rate)
    into.cpu_s += server.cpu_s() - cpu_s
    into.operations += rate * elapsed_s


def report(results: Results) -> tuple[str, dict[str, object]]:
    lines = [f"{'':32} {'barnabas':>10} {'Apache':>10} {'ratio':>6}   {'CPU us':>8} {'Apache':>8}"]
    table: dict[str, object] = {}
    for row, by_server in results.items():
        least = row.endswith(("ms", "MB"))
        ours, apache = (by_server[name].best(least=least) for name in (OURS, APACHE))
        cpu_us = [by_server[name].cpu_us for name in (OURS, APACHE)]
        cpu = "".join(f" {value:8.0f}" for value in cpu_us if value is not None)
        lines.append(
            f"{row + ('' if least else ' /s'):32} {ours:10.1f} {apache:10.1f} {ours / apache:6.2f}  {cpu}".rstrip()
        )
        table[row] = {
            "barnabas": ours,
            "apache": apache,
            "ratio": ours / apache,
            "cpu_us": dict(zip(("barnabas", "apache"), cpu_us, strict=True)),
            "rounds": {name: by_server[name].rounds for name in (OURS, APACHE)},
        }
    return "\n".join(lines) + "\n", table


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.4, help="per synchronous row and round")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="bench-zookeeper-"))
    try:
        text, table = report(measure(folder, seconds=options.seconds, rounds=options.rounds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    results = ROOT / "bench" / "results"
    results.mkdir(parents=True, exist_ok=True)
    machine = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
    }
    (results / "zookeeper.json").write_text(json.dumps({"machine": machine, "rows": table}, indent=1) + "\n")
    (results / "zookeeper.txt").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
