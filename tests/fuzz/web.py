"""`python -m tests.fuzz.web [--seconds 120] [--seed 7]`: hostile requests at registry, console, `/inside` and metrics.

Each has a process of its own, on a cluster of one broker. It prints its findings and then exits with 1: an answer of 500, a
traceback in a log, a process that ended or grew, or one that does not answer any more.
"""

import argparse
import contextlib
import json
import random
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlsplit

import psutil

from barnabas.cli.local_cluster import LocalCluster
from barnabas.services.console.app import MODULES
from barnabas.services.console.web import PATH_PREFIX
from barnabas.services.registry import api as registry_api
from tests.fuzz.attack import GROWTH_BYTES_MAX, bugs

NAMES = [
    "orders",
    "orders-value",
    "__consumer_offsets",
    "",
    "..",
    "%2e%2e%2f",
    "a" * 300,
    "\u0000",
    "\u2603",
    "-1",
    "0",
    "1",
    "latest",
    "99999999999999999999",
]
WORDS = [
    *NAMES,
    "true",
    "earliest",
    "NaN",
    "1e308",
    "avro",
    "BACKWARD",
    "READONLY",
    "[",
    "{",
    "(a+)+$",
    "<script>",
    "';--",
]
SCHEMAS = [
    '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}',
    '{"type": "array", "items": ' * 200 + '"int"' + "}" * 200,
    'syntax = "proto3"; message M { string a = 1; }',
    '{"type": "object", "$ref": "#"}',
    '"int"',
]
INSIDE = ["", "/partition", "/producers", "/waiting", "/requests", "/controller", "/transactions", "/znode"]


class Web:
    """Random requests: mostly well-formed, so that the application parses them before it refuses them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        source = Path(registry_api.__file__).read_text()
        self.registry = re.findall(r'Route\("(\w+)", "([^"]*)"', source)
        self.console = [(each.method, PATH_PREFIX + each.path) for module in MODULES for each in module.ENDPOINTS]

    def value(self, depth: int = 0) -> object:
        chance = self.chance
        kinds: list[Callable[[], object]] = [
            lambda: chance.choice(WORDS),
            lambda: chance.choice(SCHEMAS),
            lambda: chance.choice((0, -1, 1, 2**31, 2**63, 1.5, None, True)),
        ]
        if depth < 3:
            kinds.append(lambda: [self.value(depth + 1) for _ in range(chance.randrange(4))])
            kinds.append(lambda: self.document(depth + 1))
        return chance.choice(kinds)()

    def document(self, depth: int = 0) -> dict[str, object]:
        keys = [
            "schema",
            "schemaType",
            "references",
            "compatibility",
            "mode",
            "id",
            "version",
            "name",
            "subject",
            "topic",
        ]
        keys += ["partitions", "configs", "group", "offset", "value", "key", "ruleSet", "metadata", "user", "password"]
        return {self.chance.choice(keys): self.value(depth) for _ in range(self.chance.randrange(5))}

    def path(self, pattern: str) -> str:
        filled = re.sub(r"\{[^}]*\}", lambda _: quote(self.chance.choice(NAMES), safe="%"), pattern)
        words = [
            "topic",
            "partition",
            "deleted",
            "normalize",
            "format",
            "limit",
            "offset",
            "path",
            "filter",
            "from",
            "verbose",
        ]
        query = "&".join(
            f"{self.chance.choice(words)}={quote(str(self.chance.choice(WORDS)))}"
            for _ in range(self.chance.randrange(4))
        )
        return f"/{filled.lstrip('/')}" + (f"?{query}" if query else "")

    def request(self, method: str, pattern: str) -> bytes:
        chance = self.chance
        if chance.random() < 0.1:
            method = chance.choice(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "BREW", ""])
        body = json.dumps(self.document()).encode() if method in ("POST", "PUT", "PATCH") else b""
        if body and chance.random() < 0.2:
            at = chance.randrange(len(body))
            body = body[:at] + chance.randbytes(chance.randrange(20)) + body[at:]
        length = len(body) if chance.random() < 0.95 else chance.choice((0, -1, 2**40, len(body) + 5))
        lines = [
            f"{method} {self.path(pattern)} HTTP/1.1",
            "Host: 127.0.0.1",
            "Connection: close",
            f"Content-Length: {length}",
        ]
        lines.append(chance.choice(("Content-Type: application/json", "Content-Type: x/y", "X-A: " + "b" * 5000)))
        lines.append(
            chance.choice(
                ("X-Barnabas-Console: 1", "Origin: http://evil", "Authorization: Basic !!!", "Cookie: session=x")
            )
        )
        data = "\r\n".join(lines).encode(errors="replace") + b"\r\n\r\n" + body
        if chance.random() < 0.05:
            data = (
                chance.randbytes(chance.randrange(1, 2000))
                if chance.random() < 0.3
                else data[: chance.randrange(len(data))]
            )
        return data


def send(port: int, data: bytes, patience_s: float = 0.3) -> int | None:
    """Send a request; return the status, or None without an answer."""
    with contextlib.suppress(ConnectionError, TimeoutError), socket.create_connection(("127.0.0.1", port), 20) as peer:
        peer.settimeout(patience_s)
        peer.sendall(data)
        head = re.match(rb"HTTP/1\.\d (\d+)", peer.recv(4096))
        return int(head[1]) if head else None
    return None


def attack(seconds: float, seed: int) -> tuple[Counter[str], list[str]]:
    web = Web(seed)
    found: list[str] = []
    sent: Counter[str] = Counter()
    with LocalCluster(brokers=1, schema_registry=True, console=True, config={"log.retention.ms": "-1"}) as cluster:
        inside = urlsplit(cluster.inside_url(1)).port or 0
        registry, console = (urlsplit(url).port or 0 for url in (cluster.schema_registry_url, cluster.console_url))
        kinds = {
            "registry": (registry, web.registry),
            "console": (console, web.console),
            "inside": (
                inside,
                [("GET", f"/inside{each}") for each in INSIDE] + [("GET", "/metrics"), ("GET", "/health")],
            ),
        }
        launcher = psutil.Process(cluster.pid(1)).parent()
        assert launcher is not None
        before = {each.pid: (each, each.memory_info().rss) for each in launcher.children()}
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            kind = web.chance.choice(list(kinds))
            port, patterns = kinds[kind]
            data = web.request(*web.chance.choice(patterns))
            status = send(port, data)
            sent[kind] += 1
            if status is not None and status >= 500 and status not in (501, 503, 504):
                found.append(f"{kind} answered {status} to {data[:600]!r}")
        for process, rss in before.values():
            if not process.is_running():
                found.append(f"{process.pid} has ended")
            elif (grown := process.memory_info().rss - rss) > GROWTH_BYTES_MAX:
                found.append(f"{process.pid} grew by {grown:,} bytes")
        for kind, path in (("registry", "/subjects"), ("console", "/"), ("inside", "/health")):
            if send(kinds[kind][0], f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode(), 60) != 200:
                found.append(f"{kind} does not answer any more")
        for path in cluster.folder.glob("*.log"):
            found += [f"{path.name}: {each}" for each in bugs(path.read_text(errors="replace"))]
    return sent, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sent, found = attack(options.seconds, options.seed)
    print(f"seed {options.seed}: {dict(sent)}")
    for each in found[:50]:
        print(f"FOUND: {each}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
