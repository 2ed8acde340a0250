"""The tree in memory answers as a ZooKeeper server does, so what is proved with one holds for the other."""

import random

import pytest

from barnabas.broker.zookeeper_client.operations import (
    Check,
    Create,
    Delete,
    Exists,
    Get,
    GetChildren,
    Guard,
    Multi,
    Operation,
    Result,
    SetData,
    ZkCode,
)
from tests.memory_zookeeper import Fired, MemoryZooKeeper
from tests.unit.broker.zookeeper_client.zookeeper_fixture import session, zookeeper

PATHS = ("/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/deep", "/controller_epoch")


def random_write(chance: random.Random) -> Create | SetData | Delete:
    path = chance.choice(PATHS)
    version = chance.choice((-1, -1, 0, 1))
    match chance.randrange(4):
        case 0 | 1:
            data = chance.choice((None, b"", b"1"))
            return Create(path, data, ephemeral=chance.random() < 0.2, sequence=chance.random() < 0.2)
        case 2:
            return SetData(path, chance.choice((None, b"2")), version)
    return Delete(path, version)


def random_operation(chance: random.Random) -> Operation:
    match chance.randrange(6):
        case 0:
            return Get(chance.choice(PATHS))
        case 1:
            return Exists(chance.choice(PATHS))
        case 2:
            return GetChildren(chance.choice(PATHS))
        case 3:
            parts: list[Create | SetData | Delete | Check] = [random_write(chance) for _ in range(chance.randint(1, 3))]
            if chance.random() < 0.3:
                parts.insert(0, Check(chance.choice(PATHS), chance.choice((0, 1))))
            return Multi(tuple(parts))
    return random_write(chance)


def essence(result: Result) -> object:
    """Without transaction numbers and owners, which the two count differently."""
    version = result.stat.version if result.stat else None
    owned = bool(result.stat.ephemeral_owner) if result.stat else None
    if result.results and not result.ok:
        return result.code
    return (
        result.code,
        result.path,
        result.data,
        version,
        owned,
        result.children,
        [essence(each) for each in result.results],
    )


@pytest.mark.parametrize("seed", range(6))
async def test_answers_are_those_of_a_server(seed: int) -> None:
    chance = random.Random(seed)
    memory = MemoryZooKeeper(persistent=())
    number = memory.open_session()
    async with zookeeper() as ensemble, session(ensemble, "/root") as server:
        for _ in range(30):
            operations: list[Operation] = [random_operation(chance) for _ in range(10)]
            guard = None
            if chance.random() < 0.3:
                operations = [random_write(chance)]
                guard = Guard(chance.randrange(3))
            expected = await server.batch(operations, guard)
            found = memory.execute(number, operations, guard)
            assert found.moved == expected.moved
            if found.moved:
                continue
            for operation, mine, theirs in zip(operations, found.results, expected.results, strict=True):
                assert essence(mine) == essence(theirs), operation


def test_watch_fires_once_and_only_for_its_owner() -> None:
    memory = MemoryZooKeeper(persistent=())
    one, two = memory.open_session(), memory.open_session()
    memory.execute(one, [Exists("/a", "made"), GetChildren("/", "child"), GetChildren("/", "child")])
    memory.execute(two, [Exists("/a", "other")])
    fired = memory.execute(two, [Create("/a"), SetData("/a", b"")]).fired
    assert fired == (Fired(one, "made", "/a"), Fired(two, "other", "/a"), Fired(one, "child", "/"))
    assert memory.execute(two, [Delete("/a")]).fired == ()


def test_watch_on_what_is_not_there_is_set_by_existence_only() -> None:
    memory = MemoryZooKeeper(persistent=())
    one = memory.open_session()
    memory.execute(one, [Get("/a", "data"), GetChildren("/a", "children")])
    assert memory.execute(one, [Create("/a")]).fired == ()


def test_transaction_that_fails_leaves_everything_as_it_was_watches_too() -> None:
    memory = MemoryZooKeeper(persistent=())
    one = memory.open_session()
    memory.execute(one, [Create("/a"), Get("/a", "changed")])
    before = memory.dump()
    executed = memory.execute(one, [Multi((SetData("/a", b"1"), Create("/b"), Delete("/nothing")))])
    assert executed.results[0].code is ZkCode.NO_NODE
    assert [each.code for each in executed.results[0].results] == [
        ZkCode.ROLLED_BACK,
        ZkCode.ROLLED_BACK,
        ZkCode.NO_NODE,
    ]
    assert executed.fired == ()
    assert memory.dump() == before
    assert memory.execute(one, [SetData("/a", b"1")]).fired == (Fired(one, "changed", "/a"),)


def test_expired_session_takes_its_ephemerals_and_watches_along() -> None:
    memory = MemoryZooKeeper(persistent=())
    one, two = memory.open_session(), memory.open_session()
    memory.execute(one, [Create("/mine", ephemeral=True), Exists("/mine", "own")])
    memory.execute(two, [Exists("/mine", "theirs")])
    assert memory.expire(one) == (Fired(two, "theirs", "/mine"),)
    assert not memory.exists("/mine")
