"""`python -m tests.fuzz.link [--seconds 300] [--seed 7]`: a link whose source lies.

Two clusters of one broker each, and a proxy in front of the source that changes what it answers to the link: fields, bytes,
lengths, error codes, records; it also breaks off, waits, and asks for what cannot be. A bystander writes to a topic of the
target's own. Exits with 1 and what was found: a broker that ended or grew, a traceback, a bystander who was not served, a
topic or an ACL beyond what is mirrored, our own records or ACLs gone, or a link that does not go on when the source is honest.
"""

import argparse
import asyncio
import contextlib
import random
import re
import socket
import struct
import sys
import threading
import time
from collections import Counter, deque
from typing import Any, Final

import psutil

from barnabas.base.errors import Malformed
from barnabas.base.words import AclOperation, AclResourceType, PatternType, Permission
from barnabas.cli.local_cluster import ClusterFailed, wait_until
from barnabas.client.admin import links as admin
from barnabas.client.admin.acls import Ace, ResourcePattern, create_acls, describe_acls
from barnabas.testing.cluster import Cluster
from barnabas.wire import codec, frame
from barnabas.wire.codec import Unwritable
from barnabas.wire.codec_source import in_range
from barnabas.wire.messages.base import Message
from barnabas.wire.versions import API, API_VERSIONS
from tests.fuzz.attack import bugs, percentile
from tests.fuzz.inputs import NUMBERS, SIZES, Inputs

#: Several at once: after a lie a link waits a moment. The topics of number 3 are called m3-….
LINKS: Final = [f"hostile-{number}" for number in range(6)]
CLIENT_ID: Final = "barnabas-link-"
OWN: Final = "own"
NAMES: Final = (
    "m-1",
    "m-2",
    "m-3",
    OWN,
    "__consumer_offsets",
    "",
    "m-" + "x" * 300,
    "m-\u2603",
    "m-..",
    "other",
    "g-1",
)
_MIRRORED: Final = re.compile(r"m\d-")
GROWTH_BYTES_MAX: Final = 300_000_000
BYSTANDER_P99_S: Final = 2.0
OPEN: Final = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
    "auto.create.topics.enable": "false",
}


class Liar:
    """Changes answers. Owner: the proxy's thread."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.inputs = Inputs(self.chance)
        self.lies: Counter[str] = Counter()
        self.share = 0.0

    def answer(self, api_key: int, version: int, body: bytes) -> bytes | None:
        """The frame without its size; None: the connection breaks."""
        if self.chance.random() >= self.share or (api_key == API_VERSIONS and self.chance.random() < 0.9):
            return body
        kind = self.chance.choice(("fields",) * 12 + ("bytes", "cut", "break", "correlation"))
        self.lies[f"{API[api_key].name}: {kind}"] += 1
        if kind == "break":
            return None
        if kind == "bytes":
            return self.inputs.mutated(struct.pack(">i", len(body)) + body)[4:]
        if kind == "cut":
            return body[: self.chance.randrange(len(body))]
        if kind == "correlation":
            return self.chance.randbytes(4) + body[4:]
        return self._with_other_fields(api_key, version, body)

    def _with_other_fields(self, api_key: int, version: int, body: bytes) -> bytes:
        cls = API[api_key].response_class
        try:
            correlation_id, at = frame.parse_response_header(api_key, version, body)
            message = codec.decode(cls, body, version, at)
            for _ in range(self.chance.choice((1, 1, 2, 5))):
                self._change(message, version)
            return frame.encode_response(message, version, correlation_id)[4:]
        except (Malformed, Unwritable, struct.error, ValueError, OverflowError, TypeError, AttributeError):
            return body

    def _change(self, message: Message, version: int) -> None:
        """One field of the message, or of one below it."""
        chance = self.chance
        fields = [(n, spec) for n, spec in type(message).__wire__.items() if in_range(spec.versions, version)]
        name, spec = chance.choice(fields)
        held: Any = getattr(message, name)
        if spec.is_array and held and chance.random() < 0.75:
            below = chance.choice(list(held))
            if isinstance(below, Message):
                self._change(below, version)
                return
        if isinstance(held, Message):
            self._change(held, version)
        elif spec.is_array:
            self._change_list(message, name, held)
        elif spec.type == "records":
            setattr(message, name, self._records(held))
        elif spec.type in SIZES:
            bits = SIZES[str(spec.type)]
            number = chance.choice((*NUMBERS, int(held) + 1, int(held) - 1, int(held) + 1000))
            setattr(message, name, (number + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1))
        elif spec.type == "string":
            setattr(message, name, chance.choice(NAMES))
        elif spec.type == "uuid":
            setattr(message, name, chance.choice((bytes(16), chance.randbytes(16))))
        elif spec.type == "bool":
            setattr(message, name, not held)
        elif spec.type == "bytes":
            setattr(message, name, chance.randbytes(chance.randrange(50)))

    def _change_list(self, message: Message, name: str, held: Any) -> None:
        chance = self.chance
        if held is None:
            return
        items = list(held)
        match chance.randrange(4):
            case 0:
                items = []
            case 1:
                items = items * chance.choice((2, 3, 500))
            case 2:
                chance.shuffle(items)
            case _:
                items = items[: chance.randrange(len(items) + 1)]
        setattr(message, name, items[:20_000])

    def _records(self, held: Any) -> bytes:
        chance, data = self.chance, bytes(held or b"")
        made = self.inputs.batch()
        if data and chance.random() < 0.5:
            # Ours with the offsets, epoch and checksum in place, or not.
            changed = bytearray(data)
            for _ in range(chance.choice((1, 2, 5))):
                at = chance.choice((chance.randrange(len(changed)), chance.randrange(min(61, len(changed)))))
                changed[at] = chance.randrange(256)
            return bytes(changed)
        return chance.choice((made, data + made, made + data, data * 3, data[: len(data) // 2], b""))


class Proxy:
    """In front of the source's broker. To others than the link it is honest."""

    def __init__(self, seed: int) -> None:
        self.liar = Liar(seed)
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port = self._listening.getsockname()[1]
        self.target = 0
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._listening))
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked: deque[tuple[int, int, bool]] = deque()
        there: asyncio.StreamWriter | None = None
        try:
            from_source, there = await asyncio.open_connection("127.0.0.1", self.target)
            back = self._loop.create_task(self._answers(from_source, writer, asked))
            self._tasks.add(back)
            back.add_done_callback(self._tasks.discard)
            while not back.done():
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                data = await reader.readexactly(size)
                header = frame.parse_request_header(data)
                asked.append((header.api_key, header.api_version, (header.client_id or "").startswith(CLIENT_ID)))
                there.write(struct.pack(">i", size) + data)
                await there.drain()
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            writer.transport.abort()
            if there is not None:
                there.transport.abort()

    async def _answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: deque[tuple[int, int, bool]]
    ) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                body: bytes | None = await reader.readexactly(size)
                assert body is not None
                api_key, version, is_link = asked.popleft()
                if is_link:
                    body = self.liar.answer(api_key, version, body)
                if body is None:
                    break
                claimed = len(body)
                if is_link and self.liar.chance.random() < self.liar.share / 20:
                    claimed = self.liar.chance.choice((2**31 - 1, -1, 0, len(body) + 1))
                writer.write(struct.pack(">i", claimed) + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        writer.transport.abort()


class Bystander:
    """Writes to the target's own topic, and measures."""

    def __init__(self, target: Cluster) -> None:
        self._target = target
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.took_s: list[float] = []
        self.count = 0
        self.failure = ""

    def __enter__(self) -> "Bystander":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._is_over.wait(0.3):
            began_s = time.monotonic()
            try:
                self._target.produce(OWN, [str(self.count).encode()])
            except Exception as error:
                self.failure = repr(error)
                return
            self.count += 1
            self.took_s.append(time.monotonic() - began_s)


OWN_ACL: Final = ResourcePattern(AclResourceType.TOPIC, OWN, PatternType.LITERAL)
OWN_ENTRY: Final = Ace("User:mallory", "*", AclOperation.READ, Permission.DENY)
MIRRORED_ACL: Final = ResourcePattern(AclResourceType.TOPIC, "m0-", PatternType.PREFIXED)


def attack(seconds: float, seed: int) -> tuple[Counter[str], list[str]]:
    found: list[str] = []
    proxy = Proxy(seed)
    advertised = {**OPEN, "advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
    # The source calls itself by the proxy's address: others, and itself, reach it through the proxy as well.
    with socket.create_server(("127.0.0.1", 0)) as free:
        proxy.target = free.getsockname()[1]
    with Cluster(brokers=1, config=OPEN) as here, Cluster(brokers=1, port=proxy.target, config=advertised) as there:
        names = [f"m{number}-{each}" for number in range(len(LINKS)) for each in (1, 2)]
        for name in names:
            there.create_topic(name, partitions=2)
        here.create_topic(OWN)
        there.ask(lambda client: create_acls(client, MIRRORED_ACL, [OWN_ENTRY]))
        there.ask(lambda client: create_acls(client, OWN_ACL, [OWN_ENTRY]))
        here.ask(lambda client: create_acls(client, OWN_ACL, [OWN_ENTRY]))
        configs = {"bootstrap.servers": f"127.0.0.1:{proxy.port}", "link.refresh.interval.ms": "200"}
        for number, link in enumerate(LINKS):
            asked = {"configs": configs, "topics": f"m{number}-.*", "groups": "g-.*", "acls": True}
            here.ask(lambda client, link=link, asked=asked: admin.create_link(client, link, **asked))  # type: ignore[misc]
        process = psutil.Process(here.pid(1))
        before = peak = process.memory_info().rss
        with Bystander(here) as bystander:
            ends_s = time.monotonic() + seconds
            while time.monotonic() < ends_s and not bystander.failure:
                proxy.liar.share = proxy.liar.chance.choice((0.02, 0.1, 0.3, 0.8))
                for name in proxy.liar.chance.sample(names, 3):
                    there.produce(name, [b"x" * 100] * 20)
                time.sleep(0.5)
                if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                    found.append("the broker has ended")
                    break
                peak = max(peak, process.memory_info().rss)
                here.ask(lambda client: admin.describe_links(client))
            proxy.liar.share = 0.0
            if not found:
                found += _judge(here, there)
        p99_s = percentile(bystander.took_s, 0.99)
        if bystander.failure:
            found.append(f"the bystander was hurt: {bystander.failure}")
        if p99_s > BYSTANDER_P99_S:
            found.append(f"the bystander's p99 is {p99_s:.1f} s")
        own = [record.value for record in here.records(OWN)] if not bystander.failure else []
        if not bystander.failure and own != [str(number).encode() for number in range(bystander.count)]:
            found.append("records of our own topic are not those that were written")
        if peak - before > GROWTH_BYTES_MAX:
            found.append(f"the broker grew by {peak - before:,} bytes")
        found += bugs(here.log(1))
        print(
            f"bystander: {bystander.count} records, p99 {p99_s * 1000:.0f} ms, worst {max(bystander.took_s) * 1000:.0f} ms; "
            f"the broker grew by {(peak - before) / 1e6:.0f} MB at most"
        )
    return proxy.liar.lies, found


def _judge(here: Cluster, there: Cluster) -> list[str]:
    """With an honest source from now on."""
    found = []
    topics = [name for name in here.topics() if name != OWN]
    if beyond := [name for name in topics if _MIRRORED.match(name) is None]:
        found.append(f"topics that are not mirrored: {beyond}")
    there.create_topic("m0-after", partitions=1)
    there.produce("m0-after", [b"1", b"2", b"3"])

    def has_come() -> bool:
        with contextlib.suppress(Exception):
            return len(here.records("m0-after")) == 3
        return False

    try:
        wait_until(has_come, 120, what="that a new topic is mirrored when the source is honest")
    except ClusterFailed as error:
        found.append(str(error))
    acls = here.ask(describe_acls)
    if OWN_ENTRY not in acls.get(OWN_ACL, []):
        found.append("our own ACL is gone")
    for pattern, entries in acls.items():
        is_mirrored = pattern.resource_type is AclResourceType.TOPIC and _MIRRORED.match(pattern.name or "") is not None
        is_mirrored |= pattern.resource_type is AclResourceType.GROUP and (pattern.name or "").startswith("g-")
        if not is_mirrored and (pattern != OWN_ACL or entries != [OWN_ENTRY]):
            found.append(f"an ACL beyond what is mirrored: {pattern} {entries}")
    links = here.ask(lambda client: admin.describe_links(client))
    states = Counter(each.state for link in links for each in link.topics)
    print(f"mirrors: {dict(states)}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    lies, found = attack(options.seconds, options.seed)
    print(f"seed {options.seed}: {sum(lies.values())} lies, {dict(lies)}")
    for each in found[:20]:
        print(f"FOUND: {each}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
