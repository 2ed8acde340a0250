"""The attack: a real broker and a real embedded ZooKeeper, strangers, a user with few rights, and a bystander."""

import contextlib
import multiprocessing
import random
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import psutil

from barnabas.cli.local_cluster import wait_until
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse
from barnabas.zookeeper import wire as zk
from tests.fuzz.inputs import Inputs
from tests.fuzz.target import Target, ask, connect, ours

#: Limits of the bystander's latency and of the memory growth of broker and ZooKeeper.
P99_S_MAX = 0.25
GROWTH_BYTES_MAX = 200_000_000
#: Frames on one connection before the next one is opened.
FRAMES_MAX = 20
#: How long the bystander is alone before the attack, to measure the latency on this machine without it.
ALONE_S = 2.0


@dataclass
class Report:
    seed: int
    inputs: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    alone_p99_s: float = 0.0
    p99_s: float = 0.0
    worst_s: float = 0.0
    growth_bytes: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {sum(self.inputs.values())} inputs, {dict(self.inputs)}"]
        alone = f"alone before it: p99 {self.alone_p99_s * 1000:.0f} ms"
        lines.append(f"bystander: p99 {self.p99_s * 1000:.0f} ms, worst {self.worst_s * 1000:.0f} ms ({alone})")
        lines += [f"{name} grew by {size / 1e6:.0f} MB at most" for name, size in self.growth_bytes.items()]
        return "\n".join(lines + [f"FOUND: {finding}" for finding in self.findings])


class Bystander:
    """Alice: she connects before the attack and sends requests all the time, from a process of her own because the attacker's
    is busy.
    """

    def __init__(self, target: Target) -> None:
        own = multiprocessing.get_context("spawn")
        self._here, there = own.Pipe()
        self._process = own.Process(target=_stand_by, args=(target.client, there), daemon=True)
        #: (when, latency) of each answer; complete when she has stopped.
        self.answers: list[tuple[float, float]] = []
        #: Why she had to stop; empty if she did not.
        self.failure = ""

    def __enter__(self) -> "Bystander":
        self._process.start()
        assert self._here.recv() == "asking"
        return self

    def __exit__(self, *_exc: object) -> None:
        self._here.send("leave")
        self.answers, self.failure = self._here.recv()
        self._process.join()

    def took_s(self, *, since_s: float = 0.0, until_s: float = float("inf")) -> list[float]:
        return [took_s for at_s, took_s in self.answers if since_s <= at_s < until_s]


def _stand_by(port: int, there: Connection) -> None:
    answers: list[tuple[float, float]] = []
    failure = ""
    with Target(port).login("alice") as peer:
        there.send("asking")
        try:
            while not there.poll(0.005):
                began_s = time.monotonic()
                answer = ask(peer, MetadataRequest(topics=None), 9)
                assert isinstance(answer, MetadataResponse) and answer.brokers
                now_s = time.monotonic()
                answers.append((now_s, now_s - began_s))
        except Exception as error:
            failure = repr(error)
            there.poll(None)
        there.send((answers, failure))


class Memory:
    """The largest growth of each process, measured at each `look`."""

    def __init__(self, target: Target) -> None:
        self._before = {name: (each, each.memory_info().rss) for name, each in target.processes.items()}
        self.growth_bytes = dict.fromkeys(self._before, 0)

    def look(self) -> None:
        for name, (process, before) in self._before.items():
            with contextlib.suppress(psutil.NoSuchProcess):
                self.growth_bytes[name] = max(self.growth_bytes[name], process.memory_info().rss - before)


def percentile(took_s: list[float], share: float) -> float:
    return sorted(took_s)[int(len(took_s) * share)] if took_s else 0.0


def attack(
    *, seed: int, count: int | None = None, seconds: float | None = None, p99_s_max: float = P99_S_MAX
) -> Report:
    """Attack our own broker until the count is reached or the time is up, and return a report with the findings."""
    with ours() as target:
        return attack_target(target, seed=seed, count=count, seconds=seconds, p99_s_max=p99_s_max)


def attack_target(
    target: Target, *, seed: int, count: int | None, seconds: float | None, p99_s_max: float = P99_S_MAX
) -> Report:
    report = Report(seed)
    inputs = Inputs(random.Random(seed))
    memory = Memory(target)
    report.growth_bytes = memory.growth_bytes
    with Bystander(target) as bystander:
        time.sleep(ALONE_S)
        begins_s = time.monotonic()
        ends_s = begins_s + seconds if seconds is not None else float("inf")
        while time.monotonic() < ends_s and (count is None or sum(report.inputs.values()) < count):
            try:
                _one_connection(target, inputs, report)
            except ConnectionRefusedError as error:
                report.findings.append(f"the broker does not listen any more: {error}")
                break
            memory.look()
    report.alone_p99_s = percentile(bystander.took_s(until_s=begins_s), 0.99)
    took_s = bystander.took_s(since_s=begins_s)
    report.p99_s, report.worst_s = percentile(took_s, 0.99), max(took_s, default=0.0)
    if report.p99_s > p99_s_max:
        report.findings.append(f"the bystander's p99 is {report.p99_s * 1000:.0f} ms")
    _judge(target, bystander, report)
    return report


def _one_connection(target: Target, inputs: Inputs, report: Report) -> None:
    chance = inputs.chance
    peer_kind = chance.choice(("stranger", "eve", "eve", "eve", "zookeeper", "tls"))
    if getattr(target, peer_kind, True) is None:
        return  # the target has no such listener
    frames = chance.randrange(1, FRAMES_MAX)
    with contextlib.suppress(ConnectionResetError, BrokenPipeError, TimeoutError):
        if peer_kind == "zookeeper":
            peer = connect(target.zookeeper or 0)
            hello = struct.pack(">iqiq", 0, 0, 4_000, 0) + zk.buffer(bytes(16)) + b"\0"
            first = struct.pack(">i", len(hello)) + hello if chance.random() < 0.9 else b""
            kinds = {"zookeeper": inputs.zookeeper}
        elif peer_kind == "tls":
            peer, first, kinds = connect(target.tls or 0), b"", {"tls": inputs.tls}
        elif peer_kind == "stranger":
            peer, first, kinds = connect(target.client), b"", inputs.kinds
        else:
            peer, first, kinds = target.login("eve"), b"", inputs.kinds
        with peer:
            peer.settimeout(0.02)
            peer.sendall(first)
            for _ in range(frames):
                kind = chance.choice(list(kinds))
                if kind == "noise" and chance.random() < 0.9:
                    continue  # the frame ends the connection
                data = kinds[kind]()
                report.inputs[f"{peer_kind}: {kind}" if peer_kind in ("eve", "stranger") else peer_kind] += 1
                peer.sendall(data)
                if chance.random() < 0.3:
                    with contextlib.suppress(TimeoutError):
                        peer.recv(65_536)


def _judge(target: Target, bystander: Bystander, report: Report) -> None:
    if bystander.failure:
        report.findings.append(f"the bystander was hurt: {bystander.failure}")
    for name, grown in report.growth_bytes.items():
        if grown > GROWTH_BYTES_MAX:
            report.findings.append(f"{name} grew by {grown:,} bytes")
    for name, process in target.processes.items():
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            report.findings.append(f"{name} has ended")
    report.findings += bugs(target.logs())
    if not report.findings:
        # A client that connects now must be served as before.
        with target.login("alice") as alice:
            wait_until(lambda: isinstance(ask(alice, MetadataRequest(topics=None), 9), MetadataResponse), 10)


def bugs(logs: str) -> list[str]:
    """Return each traceback, with the line before it."""
    lines = logs.splitlines()
    found = []
    for at, line in enumerate(lines):
        if "Traceback (most recent call last)" in line:
            found.append("\n".join(lines[max(0, at - 1) : at + 30]))
    return found[:20]
