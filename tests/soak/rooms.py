"""Everything at once: brokers, a Spark driver that writes exactly once, a registry of two instances, a console and a link.

`python -m tests.soak.rooms --seconds 300 --seed 7`. The queries are those of `spark_chain`, and so are the faults of drivers
and brokers. A second cluster mirrors both topics, a client registers one schema after the other at any instance, and another
one looks at the console. Instances, the console and the mirror's broker are killed and started again, and all processes of the
driver are paused. In the end every number is in the topic and the table once, every acknowledged schema is at both instances
under its id, which no other has, the mirror has the source's records at their offsets, and the console finds single records.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, TopicPartition

from barnabas.cli.local_cluster import LocalCluster, wait_until
from barnabas.client.admin import links
from barnabas.client.blocking import BlockingClient
from barnabas.client.config import client_config
from tests.soak.spark_chain import PARTITIONS, Chain, cluster_of
from tests.soak.spark_chain_driver import FIRST, SECOND
from tests.soak.workload import QUIET, PromiseBroken

#: These happen in turn if no others are named.
ONCE = ("decided", "registry", "broker", "mirror", "paused", "half-ended", "registry", "console", "driver", "mirror")
LINK = "rooms"
_HTTP_TIMEOUT_S = 20.0
_START_TIMEOUT_S = 120.0
#: How long the end of a run waits for a mirror, or for an instance of the registry to have read everything.
_SETTLE_S = 180.0
#: Pause between two schemas, and between two looks at the console.
_REGISTERS_EVERY_S, _LOOKS_EVERY_S = 0.2, 1.0


@dataclass
class Server:
    """A registry or a console: a process that can be killed, and comes back at the same port."""

    kind: str
    arguments: list[str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None

    def __post_init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"

    def start(self) -> None:
        port = self.url.rpartition(":")[2]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "barnabas", self.kind, *self.arguments, "--port", port],
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, _START_TIMEOUT_S, what=f"an answer of the {self.kind} at {self.url}, see {self.log}")

    def _answers(self) -> bool:
        try:
            ask(self.url, "/subjects" if self.kind == "schema-registry" else "/api/session")
        except (OSError, http.client.HTTPException):
            return False
        return True

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)


def ask(url: str, path: str, body: object = None) -> Any:
    """Return a server's JSON. Raises OSError, also for a refusal."""
    request = urllib.request.Request(
        url + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
        method="GET" if body is None else "POST",
    )
    with urllib.request.urlopen(request, timeout=_HTTP_TIMEOUT_S) as answer:
        return json.loads(answer.read())


@dataclass
class Repeated:
    """Work in a thread of its own, again and again. A server that is away is no failure."""

    work: Callable[[], None]
    every_s: float
    done: int = 0
    away: int = 0
    failure: BaseException | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        while not self._stop.wait(self.every_s):
            try:
                self.work()
                self.done += 1
            except (OSError, http.client.HTTPException):
                self.away += 1
            except BaseException as error:
                self.failure = error
                return


def schema_of(number: int) -> str:
    return json.dumps({"type": "record", "name": f"R{number}", "fields": [{"name": "f", "type": "long"}]})


@dataclass
class Rooms(Chain):
    mirror: LocalCluster | None = None
    #: Acknowledged schemas: their ids, by number.
    registered: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        as_client = ["--bootstrap-server", self.cluster.bootstrap]
        instance = [*as_client, "--session-timeout-ms", "6000"]
        self.registries = [
            Server("schema-registry", instance, self.folder / f"registry-{number}.log") for number in (1, 2)
        ]
        self.console = Server("console", as_client, self.folder / "console.log")
        self._registers = Repeated(self._register, _REGISTERS_EVERY_S)
        self._looks = Repeated(self._look, _LOOKS_EVERY_S)

    def run(self, *, seconds: float, faults: list[str] | None = None) -> int:
        for each in (*self.registries, self.console):
            each.start()
        self._create_link()
        self._registers.start()
        self._looks.start()
        try:
            return super().run(seconds=seconds, faults=faults)
        finally:
            for server in (*self.registries, self.console):
                server.kill()

    def faults(self) -> dict[str, Callable[[Any], None]]:
        return super().faults() | {
            "registry": Rooms.kill_registry,
            "console": Rooms.kill_console,
            "mirror": Rooms.kill_mirror,
            "paused": Rooms.pause_driver,
        }

    # -- clients ------------------------------------------------------------------------------------------------------

    def _create_link(self) -> None:
        assert self.mirror is not None
        configs = {"bootstrap.servers": self.cluster.bootstrap, "link.refresh.interval.ms": "1000"}
        with BlockingClient(client_config(self.mirror.bootstrap, {})) as client:
            client.run(links.create_link(client.core, LINK, configs=configs, topics="chain-.*"))

    def _register(self) -> None:
        """Register the next schema, or the last one again if it was not acknowledged."""
        number = len(self.registered)
        url = self._chance_of_clients.choice(self.registries).url
        answer = ask(url, f"/subjects/s-{number}/versions", {"schema": schema_of(number)})
        found = ask(url, f"/schemas/ids/{answer['id']}")
        if json.loads(found["schema"]) != json.loads(schema_of(number)):
            raise PromiseBroken(f"schema {number} was acknowledged as {answer['id']}, which is {found['schema']}")
        self.registered[number] = int(answer["id"])

    @property
    def _chance_of_clients(self) -> random.Random:
        return random.Random(f"{self.seed} {len(self.registered)} {self._registers.away}")

    def _look(self) -> None:
        ask(self.console.url, "/api/overview")

    # -- faults -------------------------------------------------------------------------------------------------------

    def kill_registry(self) -> None:
        server = self._chance.choice(self.registries)
        server.kill()
        self._happened("registry", f"killed the registry at {server.url}")
        time.sleep(self._chance.choice([0, 1, 4]))
        server.start()

    def kill_console(self) -> None:
        self.console.kill()
        self._happened("console", "killed the console")
        self.console.start()

    def kill_mirror(self) -> None:
        assert self.mirror is not None
        self.mirror.kill(1)
        self._happened("mirror", "killed the mirror's broker")
        time.sleep(self._chance.choice([0, 2]))
        self.mirror.start_broker(1)

    def pause_driver(self) -> None:
        """Stop all processes of the driver for longer than sessions last, and let them go on."""
        if self._driver is None or self._driver.poll() is not None:
            return
        paused = [psutil.Process(self._driver.pid), *self.family()]
        for process in paused:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGSTOP)
        time.sleep(self._chance.uniform(3, 8))
        for process in paused:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
        self._happened("paused", f"paused {len(paused)} processes of the driver")

    # -- what must hold -------------------------------------------------------------------------------------------------

    def verify(self, sent: int) -> None:
        super().verify(sent)
        self._registers.stop()
        self._looks.stop()
        self._verify_registry()
        self._verify_mirror()
        self._verify_console(sent)

    def _verify_registry(self) -> None:
        twice = [each for each, count in Counter(self.registered.values()).items() if count > 1]
        if twice or not self.registered:
            raise PromiseBroken(
                f"{len(self.registered)} schemas were registered, and ids mean several of them: {twice}"
            )
        for server in self.registries:
            for number, known in self.registered.items():
                found = ask(server.url, f"/subjects/s-{number}/versions/1")
                if found["id"] != known or json.loads(found["schema"]) != json.loads(schema_of(number)):
                    raise PromiseBroken(f"{server.url} has schema {number} as {found}, not under its id {known}")
        away, done = self._registers.away, len(self.registered)
        self.note(f"{done} schemas at both instances, each under its id; {away} requests found no instance")

    def _verify_mirror(self) -> None:
        assert self.mirror is not None
        for topic in (FIRST, SECOND):
            for partition in range(PARTITIONS):
                there = records_of(self.cluster.bootstrap, topic, partition)
                deadline_s = time.monotonic() + _SETTLE_S
                while (here := records_of(self.mirror.bootstrap, topic, partition)) != there:
                    if time.monotonic() > deadline_s:
                        raise PromiseBroken(
                            f"the mirror of {topic}-{partition} has {len(here)} records of {len(there)}: "
                            f"{sorted(set(there) ^ set(here))[:3]}"
                        )
                    time.sleep(1)
        self.note("the mirror has every record at its offset")

    def _verify_console(self, sent: int) -> None:
        for number in self._chance.sample(range(sent), min(5, sent)):
            query = f"/api/topics/{FIRST}/messages?from=oldest&count=1"
            if not ask(self.console.url, query)["records"]:
                raise PromiseBroken(f"the console shows no record of {FIRST}")
            path = f"/api/topics/{FIRST}/export?from=oldest&count=2&text={number:d}&filter=key%3D%3D%22{number}%22"
            with urllib.request.urlopen(self.console.url + path, timeout=120) as answer:
                found = [json.loads(line)["key"] for line in answer.read().splitlines() if line]
            if [str(each) for each in found] != [str(number)]:
                raise PromiseBroken(f"the console finds {number} {len(found)} times in {FIRST}: {found}")
        self.note(f"the console finds single records; {self._looks.done} looks, {self._looks.away} while it was away")


def _consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"rooms-{os.getpid()}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            **QUIET,
        }
    )


def records_of(bootstrap: str, topic: str, partition: int) -> list[tuple[int, bytes]]:
    """Return the offsets and values of all committed records."""
    consumer = _consumer(bootstrap)
    found: list[tuple[int, bytes]] = []
    consumer.assign([TopicPartition(topic, partition, 0)])
    try:
        while True:
            message = consumer.poll(30)
            if message is None:
                raise PromiseBroken(f"{topic}-{partition} cannot be read to its end at {bootstrap}")
            if message.error() is not None:
                return found
            offset, value = message.offset(), message.value()
            assert offset is not None and value is not None
            found.append((offset, value))
    finally:
        consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0, help="at least so long, with all faults in random order")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--rate", type=int, default=200, help="records a second")
    parser.add_argument("--faults", nargs="*", help="these alone, in turn")
    arguments = parser.parse_args()
    faults = arguments.faults or (None if arguments.seconds else [*ONCE])
    with (
        tempfile.TemporaryDirectory(prefix="rooms-", ignore_cleanup_errors=True) as folder,
        cluster_of() as cluster,
        LocalCluster(brokers=1, zookeeper_options=("--tick-time", "500")) as mirror,
    ):
        print(f"seed {arguments.seed}", flush=True)
        rooms = Rooms(
            cluster,
            Path(folder),
            arguments.seed,
            master="local[2,8]",
            rate=arguments.rate,
            say=lambda line: print(line, flush=True),
            mirror=mirror,
        )
        try:
            rooms.run(seconds=arguments.seconds, faults=faults)
        except BaseException:
            for log in sorted(Path(folder).glob("*.log")):
                print(f"--- {log.name}", log.read_text(errors="replace")[-6_000:], sep="\n", flush=True)
            raise


if __name__ == "__main__":
    main()
