"""Settings in ZooKeeper: the znodes of an entity after its last setting is removed."""

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from barnabas.base.ids import BrokerId
from barnabas.broker.parts.entity_settings import EntitySettings
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.config_store import ConfigStore
from barnabas.broker.zookeeper_client.operations import Guard, Operation, Result, ZkCode
from barnabas.broker.zookeeper_client.registration import create_top_level_paths
from barnabas.broker.zookeeper_client.session import SessionState, ZooKeeperSession
from barnabas.broker.zookeeper_client.session_batch import BatchAnswer
from barnabas.broker.zookeeper_client.znodes import encode_config
from tests.support.waiting import eventually
from tests.unit.broker.zookeeper_client.zookeeper_fixture import (
    Ensemble,
    LosesAnswers,
    ReadsBehind,
    session,
    states_of,
    zookeeper,
)


async def left(opened: ZooKeeperSession) -> set[str]:
    """Users, and what stands below them."""
    users = await opened.children("/config/users")
    below = {user: await opened.children(f"/config/users/{user}") for user in users}
    return {*users, *(f"{user}/{child}" for user, children in below.items() for child in children)}


async def test_entity_of_quotas_goes_with_its_last_setting_and_a_topic_does_not(
    ensemble: Ensemble, zk: ZooKeeperSession
) -> None:
    await create_top_level_paths(zk)
    store = ConfigStore(zk, ensemble.clock)
    for kind, name in ((paths.CLIENTS, "app"), (paths.IPS, "10.0.0.1"), (paths.TOPICS, "t")):
        await store.write(kind, name, {"x": "1"})
        await store.write(kind, name, {})
        there = await zk.children(paths.config_type(kind))
        assert list(there) == (["t"] if kind == paths.TOPICS else [])
    assert len(await zk.children(paths.CONFIG_CHANGES)) == 6


async def test_user_stays_while_a_client_of_it_has_settings_and_goes_with_the_last(
    ensemble: Ensemble, zk: ZooKeeperSession
) -> None:
    await create_top_level_paths(zk)
    store = ConfigStore(zk, ensemble.clock)
    await store.write(paths.USERS, "alice", {"x": "1"})
    for client in ("one", "two"):
        await store.write(paths.USERS, f"alice/clients/{client}", {"x": "1"})
    await store.write(paths.USERS, "alice", {})
    assert await left(zk) == {"alice", "alice/clients"}
    await store.write(paths.USERS, "alice/clients/one", {})
    assert await left(zk) == {"alice", "alice/clients"}
    await store.write(paths.USERS, "alice/clients/two", {})
    assert await left(zk) == set()


async def test_user_with_settings_of_its_own_stays_when_its_last_client_goes(
    ensemble: Ensemble, zk: ZooKeeperSession
) -> None:
    await create_top_level_paths(zk)
    store = ConfigStore(zk, ensemble.clock)
    await store.write(paths.USERS, "alice", {"x": "1"})
    await store.write(paths.USERS, "alice/clients/one", {"x": "1"})
    await store.write(paths.USERS, "alice/clients/one", {})
    assert await left(zk) == {"alice"} and await store.read(paths.USERS, "alice") == {"x": "1"}
    await store.write(paths.USERS, "nobody", {})
    assert await left(zk) == {"alice"}


class Listener:
    """Keeps the settings that it gets, as a broker does. It fails for one entity."""

    def __init__(self) -> None:
        self.settings: dict[tuple[str, str], dict[str, str]] = {}
        self.heard = asyncio.Event()

    def changed(self, entity_type: str, name: str, settings: Mapping[str, str]) -> None:
        if name == "nonsense":
            raise ValueError("of no use")
        self.settings[entity_type, name] = dict(settings)
        self.heard.set()

    def known(self) -> list[tuple[str, str]]:
        return [entity for entity, settings in self.settings.items() if settings]


async def test_broker_that_was_away_for_so_long_that_notifications_are_gone_reads_all_settings_again(
    ensemble: Ensemble, zk: ZooKeeperSession
) -> None:
    """Among them those of a user who must not log in any more."""

    await create_top_level_paths(zk)
    store, listener = ConfigStore(zk, ensemble.clock), Listener()
    for kind, name in ((paths.TOPICS, "t"), (paths.USERS, "mallory"), (paths.USERS, "alice/clients/app")):
        await store.write(kind, name, {"x": "1"})
    await store.start(listener.changed, known=listener.known)
    states = states_of(zk)
    ensemble.expire_sessions()
    await eventually(lambda: SessionState.RENEWED in states)
    # Meanwhile, without a notification that is still there.
    await zk.create(paths.config_entity(paths.TOPICS, "nonsense"), encode_config({"x": "3"}))
    await zk.set(paths.config_entity(paths.TOPICS, "t"), encode_config({"x": "2"}))
    await zk.delete(paths.config_entity(paths.USERS, "mallory"))
    await zk.delete(paths.config_entity(paths.USERS, "alice/clients/app"))
    listener.heard.clear()
    running = asyncio.ensure_future(store.run())
    await listener.heard.wait()
    assert listener.settings == {
        (paths.TOPICS, "t"): {"x": "2"},
        (paths.USERS, "mallory"): {},
        (paths.USERS, "alice"): {},
        (paths.USERS, "alice/clients/app"): {},
    }
    await store.write(paths.TOPICS, "t", {"x": "4"})
    while listener.settings[paths.TOPICS, "t"] != {"x": "4"}:
        listener.heard.clear()
        await listener.heard.wait()
    running.cancel()


async def test_settings_that_cannot_be_read_again_stay_as_they_were(ensemble: Ensemble, zk: ZooKeeperSession) -> None:
    """A client has deleted a znode that every broker creates at its start."""

    await create_top_level_paths(zk)
    store, listener = ConfigStore(zk, ensemble.clock), Listener()
    await store.write(paths.TOPICS, "t", {"x": "1"})
    await store.start(listener.changed, known=listener.known)
    states = states_of(zk)
    ensemble.expire_sessions()
    await eventually(lambda: SessionState.RENEWED in states)
    await zk.delete("/config/users")
    running = asyncio.ensure_future(store.run())
    await store.write(paths.TOPICS, "t", {"x": "2"})
    while listener.settings[paths.TOPICS, "t"] != {"x": "2"}:
        listener.heard.clear()
        await listener.heard.wait()
    running.cancel()


async def test_broker_continues_when_the_parent_of_notifications_was_deleted(
    ensemble: Ensemble, zk: ZooKeeperSession
) -> None:
    """All brokers hear of it at the same time: none may end."""

    await create_top_level_paths(zk)
    store, listener = ConfigStore(zk, ensemble.clock), Listener()
    await store.start(listener.changed, known=listener.known)
    running = asyncio.ensure_future(store.run())
    await zk.delete(paths.CONFIG_CHANGES)
    while await zk.exists(paths.CONFIG_CHANGES) is None:
        assert not running.done()
        await asyncio.sleep(0.001)
    await store.write(paths.TOPICS, "t", {"x": "2"})
    await listener.heard.wait()
    assert listener.settings == {(paths.TOPICS, "t"): {"x": "2"}}
    running.cancel()


async def test_notification_that_makes_no_sense_is_passed_over(ensemble: Ensemble, zk: ZooKeeperSession) -> None:
    """Every broker reads it, and none may end."""

    await create_top_level_paths(zk)
    store, listener = ConfigStore(zk, ensemble.clock), Listener()
    await store.start(listener.changed, known=listener.known)
    running = asyncio.ensure_future(store.run())
    await zk.create(f"{paths.CONFIG_CHANGES}/config_change_0000000000", b"nonsense")
    await store.write(paths.TOPICS, "t", {"x": "2"})
    waiting = asyncio.ensure_future(listener.heard.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert not running.done() and listener.settings == {(paths.TOPICS, "t"): {"x": "2"}}
    running.cancel()


class BehindOthers:
    """A session with a server of an ensemble that has heard of no settings, until it has caught up."""

    def __init__(self, opened: ZooKeeperSession) -> None:
        self._opened = opened
        self._is_behind = True
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    async def catch_up(self, path: str) -> None:
        self.asked += 1
        await self._opened.catch_up(path)
        self._is_behind = False

    async def batch(self, operations: Sequence[Operation], guard: Guard | None = None) -> BatchAnswer:
        if self._is_behind:
            return BatchAnswer(tuple(Result(ZkCode.NO_NODE) for _ in operations))
        return await self._opened.batch(operations, guard)


async def test_settings_of_a_topic_that_a_server_of_zookeeper_has_not_heard_of_yet_are_read(
    ensemble: Ensemble, zk: ZooKeeperSession
) -> None:
    """A broker that hosts a new topic would not know `min.insync.replicas`, `cleanup.policy`, or that it is a mirror."""

    await create_top_level_paths(zk)
    await zk.create("/config/topics/orders", encode_config({"min.insync.replicas": "2"}))
    behind = BehindOthers(zk)
    store = ConfigStore(cast(ZooKeeperSession, behind), ensemble.clock)
    assert await store.read_new(paths.TOPICS, []) == {}
    assert behind.asked == 0
    wanted = {"orders": {"min.insync.replicas": "2"}, "others": {}}
    received: dict[str, Mapping[str, str]] = {}
    dynamic = SimpleNamespace(set_topic=lambda name, settings: received.update({name: settings}) or ())
    settings = EntitySettings(store, cast(Any, dynamic), BrokerId(1), quotas=cast(Any, None), security=cast(Any, None))
    await settings.load_topics(["orders", "others"])
    assert received == wanted


async def test_quota_that_a_server_of_zookeeper_has_not_heard_of_yet_is_removed(
    ensemble: Ensemble, zk: ZooKeeperSession
) -> None:
    """A client that set it at another broker, and removed it at this one, got success, but the quota stayed."""

    await create_top_level_paths(zk)
    behind = ReadsBehind(zk)
    await behind.fall_behind()
    await ConfigStore(zk, ensemble.clock).write(paths.CLIENTS, "app", {"producer_byte_rate": "1"})
    store = ConfigStore(cast(ZooKeeperSession, behind), ensemble.clock)
    await store.change(paths.CLIENTS, "app", lambda found: {})
    assert await zk.children(paths.config_type(paths.CLIENTS)) == ()


async def test_settings_of_a_topic_that_is_heard_of_while_all_are_read_again_stay(
    ensemble: Ensemble, zk: ZooKeeperSession
) -> None:
    """A returning broker reads everything, and hosts a new topic before that ends: no later notification would bring its
    settings."""

    await create_top_level_paths(zk)
    await zk.create("/config/topics/gone", encode_config({"x": "1"}))
    received: dict[tuple[str, str], Mapping[str, str]] = {}
    store = ConfigStore(zk, ensemble.clock)
    await store.start(
        lambda kind, name, settings: received.update({(kind, name): settings}), known=lambda: tuple(received)
    )
    await zk.delete("/config/topics/gone")
    read_everything = store._read_everything

    async def read_slowly() -> dict[tuple[str, str], dict[str, str]]:
        found = await read_everything()
        received[paths.TOPICS, "new"] = {"min.insync.replicas": "2"}
        return found

    store._read_everything = read_slowly  # type: ignore[method-assign]
    await store._reload()
    assert received == {(paths.TOPICS, "gone"): {}, (paths.TOPICS, "new"): {"min.insync.replicas": "2"}}


async def test_topics_have_no_settings_after_all_settings_were_deleted(
    ensemble: Ensemble, zk: ZooKeeperSession
) -> None:
    store = ConfigStore(zk, ensemble.clock)
    assert await store.read_new(paths.TOPICS, ["orders"]) == {"orders": {}}


async def test_two_simultaneous_changes_of_one_setting_each_are_both_kept() -> None:
    """Each writes all settings. Of two read and written side by side, the later write had only its own."""

    async with zookeeper() as ensemble, session(ensemble) as one, session(ensemble) as other:
        await create_top_level_paths(one)
        stores = [ConfigStore(each, ensemble.clock) for each in (one, other)]
        for number in range(20):
            value = {"x": str(number)}
            await asyncio.gather(
                *(
                    store.change(paths.TOPICS, "t", lambda found, key=key, new=value["x"]: {**found, key: new})  # type: ignore[misc]
                    for store, key in zip((*stores, stores[0]), "abc", strict=True)
                )
            )
            assert await stores[1].read(paths.TOPICS, "t") == dict.fromkeys("abc", value["x"])
        assert len(await one.children(paths.CONFIG_CHANGES)) == 60, "everybody hears of each"


async def test_change_whose_answer_was_lost_is_not_made_twice(ensemble: Ensemble, zk: ZooKeeperSession) -> None:
    await create_top_level_paths(zk)
    store = ConfigStore(cast(ZooKeeperSession, LosesAnswers(zk)), ensemble.clock)

    def removed(found: Mapping[str, str]) -> dict[str, str]:
        assert "x" in found, "it is gone, and this change has done it"
        return {key: value for key, value in found.items() if key != "x"}

    for kind, name in ((paths.USERS, "alice"), (paths.TOPICS, "t")):
        assert await store.change(kind, name, lambda found: {"x": "1"}) == {"x": "1"}
        assert await store.change(kind, name, lambda found: {**found, "y": "1"}) == {"x": "1", "y": "1"}
        assert await store.change(kind, name, removed) == {"y": "1"}
        assert await store.change(kind, name, lambda found: None) is None
        assert await store.change(kind, name, lambda found: {}) == {}
        assert await store.read(kind, name) == {}
    assert len(await zk.children(paths.CONFIG_CHANGES)) == 8
