"""kill -9 under load, again and again: every acknowledged write is there afterwards, and nothing that was not asked for."""

import random
import threading
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError

from barnabas.testing import wait_until
from tests.scenarios.zookeeper.zk_process import ZooKeeperProcess, connected, running

OPTIONS = ("--tick-time", "200", "--max-session-timeout", "60000", "--snap-count", "150")


class Load:
    """One client that writes until the server dies, and knows what was acknowledged and what was under way.

    Each key is written by this client alone, with growing numbers; so what is found must be the last acknowledged number,
    or one that was asked for after it.
    """

    def __init__(self, server: ZooKeeperProcess, name: str, seed: int) -> None:
        self._rng = random.Random(seed)
        self._name = name
        self.client = KazooClient(server.address, timeout=20)
        self.client.start(10)
        self.client.ensure_path(f"/{name}")
        self.acknowledged: dict[str, int] = {}
        self.asked: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def progress(self) -> int:
        return max(list(self.acknowledged.values()), default=0)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        # Stopping first: requests that kazoo keeps for a reconnect fail then.
        self._stop.set()
        self.client.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.client.close()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            batch = []
            for _ in range(self._rng.choice([1, 1, 5, 30])):
                number += 1
                key = f"/{self._name}/k{self._rng.randrange(20)}"
                try:
                    batch.append((key, number, self._write(key, number)))
                except KazooException:
                    return
            for key, written, result in batch:
                try:
                    result.get(timeout=60)
                    self.acknowledged[key] = written
                except KazooException:
                    return

    def _write(self, key: str, number: int):
        value = b"%d" % number
        first = key not in self.asked
        self.asked[key] = number
        if first:
            return self.client.create_async(key, value)
        if self._rng.random() < 0.3:
            transaction = self.client.transaction()
            transaction.set_data(key, value)
            transaction.create(f"{key}/n-", value, sequence=True)
            return transaction.commit_async()
        return self.client.set_async(key, value)

    def check(self, client: KazooClient) -> None:
        for key, asked in self.asked.items():
            least = self.acknowledged.get(key, 0)
            try:
                data, stat = client.get(key)
            except NoNodeError:
                assert least == 0, f"{key}: {least} was acknowledged and is lost"
                continue
            assert least <= int(data) <= asked, f"{key}: {least} acknowledged, {asked} asked, {data!r} found"
            children = client.get_children(key)
            # A transaction is whole or absent: each child was made together with a value, so none is newer than the value.
            for child in children:
                assert int(client.get(f"{key}/{child}")[0]) <= int(data)
            assert stat.numChildren == len(children)


@pytest.mark.parametrize("seed", range(4))
def test_kill_nine_under_load_loses_no_acknowledged_write(data: Path, seed: int) -> None:
    rng = random.Random(seed)
    with running(data, *OPTIONS) as server:
        acknowledged = 0
        for life in range(3):
            loads = [Load(server, f"s{seed}-l{life}-c{number}", seed * 100 + number) for number in range(3)]
            for load in loads:
                load.start()
            enough = rng.randrange(30, 400)
            wait_until(lambda loads=loads, enough=enough: sum(load.progress for load in loads) > enough)
            server.kill()
            for load in loads:
                load.finish()
            server.start()
            with connected(server.address) as client:
                for load in loads:
                    load.check(client)
                    acknowledged += len(load.acknowledged)
        assert acknowledged > 0
        assert len(list((data / "version-2").glob("snapshot.*"))) > 1, "snapshots were taken under load"


def test_sessions_and_ephemerals_survive_a_crash_until_they_expire(data: Path) -> None:
    with running(data, *OPTIONS) as server, connected(server.address, timeout_s=20) as survivor:
        survivor.create("/here", ephemeral=True)
        session = survivor.client_id
        orphan = KazooClient(server.address, timeout=1.0)
        orphan.start(10)
        orphan.create("/orphan", ephemeral=True)
        server.kill()
        orphan.stop()
        orphan.close()
        server.start()
        wait_until(lambda: survivor.connected)
        assert survivor.client_id == session
        assert survivor.retry(survivor.exists, "/here")
        assert survivor.exists("/orphan"), "its session has its whole time-out again"
        gone = threading.Event()
        if survivor.exists("/orphan", watch=lambda _event: gone.set()):
            assert gone.wait(60)
        assert survivor.exists("/orphan") is None
        assert survivor.exists("/here")


def test_clean_stop_leaves_sessions_alive_and_files_trimmed(data: Path) -> None:
    with running(data, *OPTIONS) as server, connected(server.address, timeout_s=20) as client:
        client.create("/e", b"x", ephemeral=True)
        session = client.client_id
        assert server.terminate() == 0
        logs = list((data / "version-2").glob("log.*"))
        assert all(log.stat().st_size < 4096 for log in logs), "no padding is left behind"
        server.start()
        wait_until(lambda: client.connected)
        assert (client.retry(client.get, "/e")[0], client.client_id) == (b"x", session)


def test_many_restarts_count_zxids_on(data: Path) -> None:
    with running(data, *OPTIONS) as server:
        last = 0
        for number in range(5):
            with connected(server.address) as client:
                zxid = client.create(f"/n{number}", include_data=True)[1].czxid
                assert zxid > last
                last = zxid
            server.kill()
            server.start()
        with connected(server.address) as client:
            assert len(client.get_children("/")) == 6
            with pytest.raises(NodeExistsError):
                client.create("/n0")
