"""kazoo's recipes, each with more than one client."""

import threading
import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from barnabas.testing import wait_until
from tests.scenarios.zookeeper.zk_process import ZooKeeperProcess, connected


@pytest.fixture
def other(server: ZooKeeperProcess, root: str) -> Iterator[KazooClient]:
    with connected(server.address + root) as client:
        yield client


def test_lock_is_held_by_one(zk: KazooClient, other: KazooClient) -> None:
    inside: list[str] = []
    overlaps: list[int] = []

    def work(client: KazooClient, name: str) -> None:
        for _ in range(10):
            with client.Lock("/lock", name):
                inside.append(name)
                overlaps.append(len(inside))
                inside.remove(name)

    threads = [threading.Thread(target=work, args=pair) for pair in ((zk, "a"), (other, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert overlaps == [1] * 20


def test_lock_contenders_and_read_locks(zk: KazooClient, other: KazooClient) -> None:
    lock = zk.Lock("/lock", "one")
    assert lock.acquire(timeout=60)
    assert not other.Lock("/lock", "two").acquire(blocking=False)
    assert lock.contenders() == ["one"]
    lock.release()
    first, second = zk.ReadLock("/rw"), other.ReadLock("/rw")
    assert first.acquire(timeout=60)
    assert second.acquire(timeout=60)
    first.release()
    second.release()


def test_semaphore_lets_in_as_many_as_it_says(zk: KazooClient, other: KazooClient) -> None:
    first, second = zk.Semaphore("/s", max_leases=1), other.Semaphore("/s", max_leases=1)
    assert first.acquire(timeout=60)
    assert not second.acquire(blocking=False)
    first.release()
    assert second.acquire(timeout=60)
    second.release()


def test_election_has_one_leader_and_another_when_it_goes(server: ZooKeeperProcess, root: str, zk: KazooClient) -> None:
    led = threading.Event()
    with connected(server.address + root) as first:
        holding = threading.Event()
        election = first.Election("/election", "first")
        thread = threading.Thread(target=lambda: election.run(lambda: (holding.set(), led.wait(60))), daemon=True)
        thread.start()
        assert holding.wait(60)
        second = zk.Election("/election", "second")
        elected = threading.Event()
        waiter = threading.Thread(target=lambda: second.run(elected.set), daemon=True)
        waiter.start()
        wait_until(lambda: second.contenders() == ["first", "second"])
        assert not elected.is_set()
        led.set()
        assert elected.wait(60)
        thread.join(60)
        waiter.join(60)


def test_barriers(zk: KazooClient, other: KazooClient) -> None:
    barrier = zk.Barrier("/barrier")
    barrier.create()
    passed = threading.Event()
    thread = threading.Thread(target=lambda: passed.set() if other.Barrier("/barrier").wait(60) else None)
    thread.start()
    assert not passed.is_set()
    barrier.remove()
    assert passed.wait(60)
    thread.join(60)
    entered: list[str] = []

    def both(client: KazooClient, name: str) -> None:
        double = client.DoubleBarrier("/double", 2, name)
        double.enter()
        entered.append(name)
        double.leave()

    threads = [threading.Thread(target=both, args=pair) for pair in ((zk, "a"), (other, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(entered) == ["a", "b"]


def test_queues(zk: KazooClient, other: KazooClient) -> None:
    queue = zk.Queue("/queue")
    for number in range(5):
        queue.put(b"%d" % number, priority=50 if number != 4 else 1)
    taken = [other.Queue("/queue").get() for _ in range(5)]
    assert taken == [b"4", b"0", b"1", b"2", b"3"]
    locking = zk.LockingQueue("/locking")
    locking.put(b"job")
    assert locking.get(timeout=60) == b"job"
    assert locking.consume()
    assert len(locking) == 0


def test_party_counter_and_lease(zk: KazooClient, other: KazooClient) -> None:
    party = zk.Party("/party", "a")
    party.join()
    other.Party("/party", "b").join()
    assert sorted(party) == ["a", "b"]
    counter = zk.Counter("/count")
    counter += 2
    assert other.Counter("/count").value == 2
    import datetime

    lease = zk.NonBlockingLease("/lease", datetime.timedelta(seconds=60))
    assert lease
    assert not other.NonBlockingLease("/lease", datetime.timedelta(seconds=60), identifier="other")


def test_caches_follow_the_tree(zk: KazooClient, other: KazooClient) -> None:
    from kazoo.recipe.cache import TreeCache

    zk.create("/tree/a/b", b"1", makepath=True)
    cache = TreeCache(other, "/tree")
    cache.start()
    try:
        wait_until(lambda: cache.get_data("/tree/a/b") is not None)
        zk.set("/tree/a/b", b"2")
        zk.create("/tree/a/c")
        wait_until(lambda: cache.get_data("/tree/a/b").data == b"2" and cache.get_data("/tree/a/c") is not None)
        zk.delete("/tree/a", recursive=True)
        wait_until(lambda: cache.get_data("/tree/a") is None)
    finally:
        cache.close()


def test_watch_recipes_see_every_state_that_stays(zk: KazooClient, other: KazooClient) -> None:
    zk.create("/n", b"0")
    data: list[bytes] = []
    names: list[list[str]] = []
    other.DataWatch("/n", lambda value, stat: data.append(value) if stat else None)
    other.ChildrenWatch("/n", lambda children: names.append(sorted(children)))
    for number in range(1, 6):
        zk.set("/n", b"%d" % number)
        zk.create(f"/n/{number}")
    wait_until(lambda: data[-1] == b"5" and names[-1] == ["1", "2", "3", "4", "5"])
    assert data == sorted(data)


def test_partitioner_divides(zk: KazooClient, other: KazooClient) -> None:
    partitioners = [
        client.SetPartitioner("/set", {1, 2, 3, 4}, identifier=name, time_boundary=0.2)
        for client, name in ((zk, "a"), (other, "b"))
    ]
    deadline = time.monotonic() + 60
    while not all(p.acquired for p in partitioners) or {len(list(p)) for p in partitioners} != {2}:
        assert time.monotonic() < deadline
        for partitioner in partitioners:
            if partitioner.release:
                partitioner.release_set()
            elif partitioner.allocating:
                partitioner.wait_for_acquire(0.1)
    assert sorted(x for p in partitioners for x in p) == [1, 2, 3, 4]
    for partitioner in partitioners:
        partitioner.finish()
