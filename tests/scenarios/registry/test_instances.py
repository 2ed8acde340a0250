"""Several instances: one primary, the others forward; no schema is lost, and no id is used twice."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from barnabas.base.clock import SystemClock
from barnabas.base.errors import ErrorCode
from barnabas.cli.local_cluster import wait_until
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.consumer import Consumer
from barnabas.client.errors import BrokerRefused
from barnabas.client.fetching import Fetched
from barnabas.client.transactions import Transactions
from barnabas.services.registry.content import Content
from barnabas.services.registry.election import Identity, PrimaryProtocol, assignment_of
from barnabas.services.registry.errors import Refusal
from barnabas.services.registry.log import Fenced, SchemaLog, SchemaLogConfig
from barnabas.services.registry.records import Record, SchemaVersion, noop_record
from barnabas.services.registry.server import ServerConfig
from barnabas.services.registry.store import Applied, Store
from barnabas.testing import Broker, Cluster
from tests.manual_time import ManualClock
from tests.scenarios.registry.conftest import DEADLINE_S, HEADERS, Registry, config_for, running
from tests.scenarios.registry.test_api import A_B, AB, A


def _schema(number: int) -> str:
    return json.dumps({"type": "fixed", "name": f"F{number}", "size": 1}, separators=(",", ":"))


def _primaries(*registries: Registry) -> list[Registry]:
    return [each for each in registries if each.is_primary]


@pytest.fixture(scope="module")
def two(cluster: Cluster) -> Iterator[tuple[Registry, Registry]]:
    """The primary, and an instance that forwards to it."""
    config = config_for(cluster)
    with running(config) as first, running(config) as second:
        assert first.register("first", '"int"')["id"] == 1
        assert second.register("second", '"int"')["id"] == 1
        yield (first, second) if first.is_primary else (second, first)


def test_one_instance_is_the_primary(two: tuple[Registry, Registry]) -> None:
    assert _primaries(*two) == [two[0]]


def test_write_at_one_instance_is_visible_at_the_other_at_once(two: tuple[Registry, Registry]) -> None:
    primary, other = two
    for number in range(10):
        writer, reader = (primary, other) if number % 2 else (other, primary)
        subject = f"at-once-{number}"
        registered = writer.register(subject, _schema(number))
        assert reader.get(f"/subjects/{subject}/versions/latest")["id"] == registered["id"]
        assert writer.get(f"/subjects/{subject}/versions") == [1]
        assert reader.get(f"/schemas/ids/{registered['id']}")["schema"] == _schema(number)
        assert reader.put(f"/config/{subject}", {"compatibility": "NONE"}) == {"compatibility": "NONE"}
        assert writer.get(f"/config/{subject}") == {"compatibilityLevel": "NONE"}
        assert writer.delete(f"/subjects/{subject}") == [1]
        assert subject not in reader.get("/subjects")


@pytest.fixture
def slow_reader(two: tuple[Registry, Registry], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the primary writes arrives at the other one late. The primary itself does not read what it has written."""
    poll = Consumer.poll

    async def late(self: Consumer, timeout_ms: int) -> list[Fetched]:
        found = await poll(self, timeout_ms)
        await asyncio.sleep(0.5)
        return found

    monkeypatch.setattr(Consumer, "poll", late)
    two[0].register("wakes-both", _schema(999))


@pytest.mark.usefixtures("slow_reader")
def test_register_at_one_instance_knows_deletions_at_the_other(two: tuple[Registry, Registry]) -> None:
    """The other one may answer that the schema is there already, but not from before it was deleted."""
    primary, other = two
    primary.register("comes-back", _schema(1_000))
    assert other.get("/subjects/comes-back/versions") == [1]
    assert primary.delete("/subjects/comes-back") == [1]
    other.register("comes-back", _schema(1_000))
    assert len(primary.get("/subjects/comes-back/versions")) == 1


@pytest.mark.usefixtures("slow_reader")
def test_alias_that_was_set_at_one_instance_counts_at_the_other(two: tuple[Registry, Registry]) -> None:
    primary, other = two
    real = primary.register("behind-an-alias", _schema(2_000))
    primary.put("/config/an-alias", {"alias": "behind-an-alias"})
    assert other.get("/subjects/an-alias/versions/latest")["id"] == real["id"]


def test_refusals_come_through_the_instance_that_forwards(two: tuple[Registry, Registry]) -> None:
    _, other = two
    other.register("refused", A)
    assert other.register("refused", AB)[:2] == (409, 409)
    assert other.register("refused", A_B)["version"] == 2
    assert other.delete("/subjects/none") == (404, 40401, "Subject 'none' not found.")
    assert other.put("/config/refused", {"compatibility": "x"})[:2] == (422, 42203)


def test_a_request_is_forwarded_once(two: tuple[Registry, Registry]) -> None:
    _, other = two
    answer = other.http.post("/subjects/once/versions", json={"schema": A}, headers={"X-Forward": "true"})
    assert (answer.status_code, answer.json()["error_code"]) == (500, 50004)


def test_an_instance_that_stops_hands_over_at_once(cluster: Cluster) -> None:
    config = config_for(cluster)  # its session lasts for 45 s, but the hand-over does not wait for its end
    with running(config) as survivor:
        with running(config) as other:
            registered = other.register("s", A)
            primary = survivor if survivor.is_primary else other
            assert primary is survivor, "the first one stays the primary when others come"
            assert survivor.register("s", A)["id"] == registered["id"]
        assert survivor.register("s", A_B)["version"] == 2


def test_an_instance_that_is_not_eligible_never_leads(cluster: Cluster) -> None:
    config = config_for(cluster)
    with running(config) as first, running(replace(config, eligible=False)) as second:
        assert second.register("s", A)["id"] == 1
        assert _primaries(first, second) == [first]


async def a_ghost_writes(config: ServerConfig) -> None:
    """A primary was paused while it was replaced, and then writes an earlier decision."""
    async with AsyncClient(config.client) as client, AsyncClient(config.client) as reader, asyncio.TaskGroup() as tasks:
        logs = []
        for _ in range(2):
            store = Store()
            log = SchemaLog(
                client,
                reader,
                store,
                SchemaLogConfig(topic=config.topic, transactional_id=config.group_id),
                clock=SystemClock(),
            )
            await log.prepare()
            logs.append((log, store, tasks.create_task(log.follow())))
        (ghost, ghost_store, _), (new, new_store, _) = logs

        def record(store: Store, text: str) -> Record:
            version = SchemaVersion("s", 1, store.next_id("."), Content("AVRO", text))
            return Record(version.key.to_bytes(), version.to_bytes())

        await ghost.claim()
        await ghost.applied(await ghost.append([record(ghost_store, '"int"')]))
        decided = record(ghost_store, '"long"')
        await new.claim()
        assert new_store.next_id(".") == 2, "the new one knows what the old one wrote"
        with pytest.raises(Fenced):
            await ghost.append([decided])
        await new.applied(await new.append([record(new_store, '"string"')]))
        with pytest.raises(Refusal, match="Leader not known"):
            await ghost.append([decided])  # it has to claim first
        await ghost.catch_up()
        texts = {version: each.content.text for version, each in ghost_store.subjects["s"].items()}
        assert texts == {1: '"string"'}
        for *_, task in logs:
            task.cancel()


def test_an_old_primary_cannot_write_once_another_has_claimed_the_log(cluster: Cluster) -> None:
    asyncio.run(a_ghost_writes(config_for(cluster)))


async def a_ghost_wakes_when_its_id_is_forgotten(config: ServerConfig) -> None:
    clock = ManualClock()
    async with AsyncClient(config.client) as client, AsyncClient(config.client) as reader, asyncio.TaskGroup() as tasks:
        log_config = SchemaLogConfig(topic=config.topic, transactional_id=config.group_id)
        logs = [SchemaLog(client, reader, Store(), log_config, clock=clock) for _ in range(2)]
        for log in logs:
            await log.prepare()
        following = [tasks.create_task(log.follow()) for log in logs]
        ghost, new = logs
        await ghost.claim()
        await ghost.applied(await ghost.append([noop_record()]))
        transactions = Transactions(client)
        while not isinstance((await transactions.describe_all([config.group_id]))[config.group_id], BrokerRefused):
            await asyncio.sleep(0)
        clock.advance_ms(3_600_000)
        await new.claim()
        with pytest.raises(Refusal, match="Leader not known"):
            await ghost.append([noop_record()])
        await new.applied(await new.append([noop_record()]))
        for task in following:
            task.cancel()


def test_an_old_primary_cannot_write_when_brokers_have_forgotten_the_id_of_primaries() -> None:
    """They do so after transactional.id.expiration.ms, 7 days. The next primary gets another producer id then, and no epoch of
    it fences the one before: it wrote on until it noticed by itself that it was replaced."""
    forgetful = {
        "transactional.id.expiration.ms": "1",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "50",
    }
    with Cluster(brokers=1, config=forgetful) as cluster:
        asyncio.run(a_ghost_wakes_when_its_id_is_forgotten(config_for(cluster)))


def test_a_record_with_an_id_that_is_taken_is_undone_and_refused(cluster: Cluster) -> None:
    """Another implementation without fencing may write at the same time as the primary."""
    with running(config_for(cluster)) as registry:
        assert registry.register("s", A)["id"] == 1
        node = registry.server.node

        async def collide() -> None:
            version = SchemaVersion("t", 1, 1, Content("AVRO", AB))
            async with node._writing:
                await node._append([Record(version.key.to_bytes(), version.to_bytes())])

        with pytest.raises(Refusal) as refusal:
            asyncio.run_coroutine_threadsafe(collide(), registry.loop).result(DEADLINE_S)
        assert refusal.value.code == 50001
        assert registry.get("/subjects") == ["s"]
        assert registry.get("/schemas/ids/1")["schema"] == A
        assert registry.register("t", AB)["id"] == 2


def _append(registry: Registry, *versions: SchemaVersion) -> None:
    """Write records without a decision, as another registry might."""
    node = registry.server.node

    async def append() -> None:
        async with node._writing:
            await node._append([Record(version.key.to_bytes(), version.to_bytes()) for version in versions])

    asyncio.run_coroutine_threadsafe(append(), registry.loop).result(DEADLINE_S)


def test_registry_with_an_id_at_the_end_of_the_range_keeps_what_it_acknowledges(cluster: Cluster) -> None:
    """An older registry took such an import: from then on it acknowledged schemas and kept none."""
    config = config_for(cluster)
    poison = SchemaVersion("poison", 1, 2**31 - 1, Content("AVRO", '"int"'))
    with running(config) as registry:
        assert registry.register("before", A)["id"] == 1
        _append(registry, poison)
        assert registry.get(f"/schemas/ids/{poison.id}")["schema"] == '"int"'
        assert registry.register("after", AB)["id"] == 2
    with running(config) as registry:
        for query in ({}, {"permanent": "true"}):
            registry.delete("/subjects/poison", **query)
        assert registry.register("later", '"long"')["id"] == 3
        assert [registry.get(f"/subjects/{name}/versions/1")["id"] for name in ("before", "after", "later")] == [
            1,
            2,
            3,
        ]


def test_a_record_that_readers_would_skip_is_refused_and_not_written(cluster: Cluster) -> None:
    with running(config_for(cluster)) as registry:
        registry.register("s", A)
        end = registry.server.node._log.position
        with pytest.raises(Refusal) as refusal:
            _append(registry, SchemaVersion("t", 1, 2**31, Content("AVRO", AB)))
        assert refusal.value.code == 50001
        assert registry.register("u", AB)["id"] == 2
        assert registry.server.node._log.position == end + 1, "one record: that of the last registration"


def test_a_record_that_the_state_does_not_hold_is_not_acknowledged(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(config_for(cluster)) as registry:
        registry.register("s", A)
        apply_schema = Store._apply_schema
        monkeypatch.setattr(Store, "_apply_schema", lambda store, key, value: Applied.DONE)
        assert registry.register("s", A_B)[1] == 50001
        monkeypatch.setattr(Store, "_apply_schema", apply_schema)
        assert registry.get("/subjects/s/versions") == [1]


def test_a_registry_outlives_a_restart_of_its_broker() -> None:
    with Cluster(brokers=1) as cluster, running(config_for(cluster)) as registry:
        assert registry.register("before", A)["id"] == 1
        cluster.kill(1)
        assert registry.get("/schemas/ids/1")["schema"] == A, "a known id needs no broker"
        cluster.start_broker(1)
        assert registry.register("after", AB)["id"] == 2
        assert registry.get("/subjects") == ["after", "before"]


def test_recreated_topic_is_read_from_the_beginning(cluster: Cluster) -> None:
    """`_schemas` was deleted. The state of its records is dropped, and the new topic's records are applied."""
    config = config_for(cluster)
    with running(config) as registry:
        for number in range(5):
            registry.register(f"before-{number}", _schema(number))
        cluster.delete_topic(config.topic)

        def is_made() -> bool:
            try:
                cluster.create_topic(config.topic, config={"cleanup.policy": "compact"})
            except BrokerRefused as refused:  # it is still being deleted
                assert refused.code is ErrorCode.TOPIC_ALREADY_EXISTS
                return False
            return True

        wait_until(is_made, DEADLINE_S, what="the new topic")

        def is_empty() -> bool:
            return registry.get("/subjects") == []

        wait_until(is_empty, DEADLINE_S, what="a registry without subjects")
        assert registry.register("after", _schema(100))["version"] == 1
        assert registry.get("/subjects") == ["after"]
    with running(config) as again:
        assert again.get("/subjects") == ["after"]


@pytest.mark.parametrize("number", [0, 20], ids=["as many records", "more records"])
def test_recreated_topic_with_enough_records_is_not_mixed_with_the_former_one(number: int) -> None:
    """The position is valid in the new topic, too: only its id shows that the records are others."""
    with Broker() as kafka, running(config_for(kafka)) as registry:
        topic = registry.config.topic
        for each in range(3):
            registry.register(f"before-{each}", _schema(each))
        count = number or max(record.offset for record in kafka.records(topic)) + 1
        kafka.delete_topic(topic)
        kafka.create_topic(topic, config={"cleanup.policy": "compact"})
        versions = [
            SchemaVersion(f"after-{each}", 1, each + 1, Content("AVRO", _schema(100 + each))) for each in range(count)
        ]
        kafka.produce(topic, [(each.key.to_bytes(), each.to_bytes()) for each in versions])
        subjects: set[str] = set()

        def is_read() -> bool:
            subjects.update(registry.get("/subjects"))
            return f"after-{count - 1}" in subjects

        wait_until(is_read, DEADLINE_S, what="the new records")
        assert registry.get("/subjects") == sorted(each.subject for each in versions)
        assert registry.get("/schemas/ids/1")["schema"] == _schema(100)
        assert registry.register("mine", _schema(200))["id"] == count + 1


def test_write_that_is_not_read_back_in_time_is_waited_for_by_the_next(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(cluster)
    with running(config) as registry:
        log = registry.server.node._log
        applied, missed = log.applied, [1]

        async def too_late(offset: int) -> None:
            if missed:
                missed.pop()
                raise TimeoutError
            await applied(offset)

        monkeypatch.setattr(log, "applied", too_late)
        status, code, _ = registry.register("s", _schema(1))
        assert (status, code) == (500, 50002)
        assert not log.is_claimed, "the next write claims first, and so waits until everything is applied"
        assert registry.register("s2", _schema(2))["id"] == 2


@pytest.mark.parametrize("junk", [b"", b"[]", b"{}", b'{"host": "x"}', b'{"host": "x", "port": "y"}', b"\xff"])
def test_foreign_member_of_the_group_does_not_end_the_election(junk: bytes) -> None:
    own = Identity(host="here", port=1, scheme="http", is_eligible=True)
    protocol = PrimaryProtocol(own)
    assignments = asyncio.run(protocol.assign({"us": protocol.metadata(), "them": junk}))
    assert assignments.keys() == {"us", "them"}
    assert assignment_of(assignments["us"]).member_id == "us"
    assert assignment_of(junk).primary is None


def test_a_topic_that_would_lose_schemas_is_refused(cluster: Cluster) -> None:
    config = config_for(cluster)
    cluster.create_topic(config.topic, partitions=1, config={"cleanup.policy": "delete"})
    with pytest.raises(BaseExceptionGroup) as failure, running(config):
        pass
    assert failure.group_contains(Exception, match=r"has cleanup.policy=delete; set it to compact")


# -- processes that are killed ----------------------------------------------------------------------------------------------


class Process:
    def __init__(self, bootstrap: str, folder: Path, name: str, *, topic: str, group: str) -> None:
        self._log = (folder / f"{name}.log").open("wb")
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "barnabas", "schema-registry", "--bootstrap-server", bootstrap, "--port", "0",
                "--topic", topic, "--group", group, "--session-timeout-ms", "1500",
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line.startswith("ready schema-registry=http://"), (folder / f"{name}.log").read_text()
        self.url = line.strip().partition("=")[2]

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(DEADLINE_S) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()


class Load:
    """Registers schemas at any instance that answers, until `stop`."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.acknowledged: dict[int, int] = {}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(3)]
        for thread in self._threads:
            thread.start()

    def _run(self, lane: int) -> None:
        number = lane
        with httpx.Client(headers=HEADERS, timeout=DEADLINE_S, trust_env=False) as http:
            while not self._stop.is_set():
                url = self.urls[number % len(self.urls)]
                try:
                    answer = http.post(f"{url}/subjects/load-{number}/versions", json={"schema": _schema(number)})
                except httpx.HTTPError:
                    self._stop.wait(0.05)
                    number += len(self._threads)  # its fate is open: go on with the next
                    continue
                if answer.status_code == 200:
                    self.acknowledged[number] = answer.json()["id"]
                else:
                    assert answer.status_code == 500, answer.text
                number += len(self._threads)

    def wait_for(self, count: int) -> None:
        """So many more than now."""
        wanted, deadline_s = len(self.acknowledged) + count, time.monotonic() + DEADLINE_S
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < deadline_s, "nothing is acknowledged any more"
            time.sleep(0.02)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)


@contextmanager
def _processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    try:
        yield started
    finally:
        for each in started:
            each.close()


def test_a_primary_that_is_killed_under_load_loses_nothing_and_no_id_is_given_twice(
    cluster: Cluster, tmp_path: Path
) -> None:
    config = config_for(cluster)

    def start(name: str) -> Process:
        return Process(cluster.bootstrap, tmp_path, name, topic=config.topic, group=config.group_id)

    with _processes() as processes:
        processes += [start("one"), start("two")]
        load = Load([each.url for each in processes])
        try:
            load.wait_for(50)
            processes[0].kill()  # the first to come leads
            load.wait_for(50)
        finally:
            load.stop()
        survivor = processes[1].url
        found: dict[int, str] = {}
        with httpx.Client(headers=HEADERS, timeout=DEADLINE_S, trust_env=False) as http:
            listed = http.get(f"{survivor}/schemas").json()
            for version in listed:
                assert found.setdefault(version["id"], version["schema"]) == version["schema"], "an id was given twice"
        by_subject = {version["subject"]: version for version in listed}
        for number, schema_id in load.acknowledged.items():
            version = by_subject[f"load-{number}"]
            assert (version["id"], version["schema"]) == (schema_id, _schema(number))
        assert len(set(load.acknowledged.values())) == len(load.acknowledged)
