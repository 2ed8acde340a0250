"""Features of the cluster: every broker sees the same levels under the same epoch, and a later change has a higher one."""

import asyncio
import logging
from collections.abc import Collection

import pytest

from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.features import ANNOUNCED, SHARE_VERSION, TRANSACTION_VERSION, ClusterFeatures
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import SessionExpired
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration, Endpoint
from tests.unit.broker.zookeeper_client.zookeeper_fixture import Ensemble, session, zookeeper


def registration(broker_id: int, *, is_ours: bool) -> bytes:
    endpoints = (Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9000 + broker_id),)
    return BrokerRegistration(id=broker_id, endpoints=endpoints, features=ANNOUNCED if is_ours else {}).encode()


async def put(zk: ZooKeeperSession, broker_id: int, *, is_ours: bool) -> None:
    await zk.create(paths.broker_id(broker_id), registration(broker_id, is_ours=is_ours), make_path=True)


async def seen(features: ClusterFeatures) -> tuple[int, int]:
    await features.refresh()
    return features.epoch, features.level(TRANSACTION_VERSION)


async def test_brokers_of_any_age_agree_on_the_epoch_and_every_change_raises_it(zk: ZooKeeperSession) -> None:
    old = ClusterFeatures(zk)
    await put(zk, 1, is_ours=True)
    history = [await seen(old)]
    for is_ours in (True, False):
        await put(zk, 2, is_ours=is_ours)
        history.append(await seen(old))
        assert await seen(ClusterFeatures(zk)) == history[-1], "a broker that has just started"
        await zk.delete(paths.broker_id(2))
        history.append(await seen(old))
    assert [level for _, level in history] == [2, 2, 2, 0, 2]
    epochs = [epoch for epoch, _ in history]
    assert epochs == sorted(set(epochs))


async def test_broker_that_returns_at_once_with_other_features_is_noticed(zk: ZooKeeperSession) -> None:
    features, changed = ClusterFeatures(zk), asyncio.Event()
    features.on_change = changed.set
    returned: list[Collection[int]] = []
    features.on_returned = returned.append
    for broker_id in (1, 2):
        await put(zk, broker_id, is_ours=True)
    assert (await seen(features))[1] == 2
    await zk.delete(paths.broker_id(2))
    await put(zk, 2, is_ours=False)
    async with asyncio.timeout(60):
        await changed.wait()
    assert (await seen(features))[1] == 0
    assert returned == [{2}]


async def test_broker_that_returns_after_it_was_missed_is_noticed(zk: ZooKeeperSession) -> None:
    """The controller may not have reported its absence: it was the controller itself, and is back before there is another."""

    features = ClusterFeatures(zk)
    returned: list[Collection[int]] = []
    features.on_returned = returned.append
    for broker_id in (1, 2):
        await put(zk, broker_id, is_ours=True)
    await features.refresh()
    await zk.delete(paths.broker_id(2))
    await features.refresh()
    assert returned == []
    await put(zk, 2, is_ours=True)
    await put(zk, 3, is_ours=True)
    await features.refresh()
    assert returned == [{2}], "3 is new: no request waits for its former process"


async def test_missing_share_groups_are_logged_once_per_change_with_the_brokers_that_lack_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="barnabas.broker.zookeeper_client.features")

    def lines() -> list[tuple[str, str]]:
        logged = [(each.levelname, each.getMessage()) for each in caplog.records if "share groups" in each.getMessage()]
        caplog.clear()
        return logged

    async with zookeeper() as ensemble, session(ensemble) as zk:
        features = ClusterFeatures(zk)
        await put(zk, 1, is_ours=True)
        await features.refresh()
        assert features.level(SHARE_VERSION) == 2
        assert lines() == [], "nothing was ever missing"
        for broker_id in (12, 3):
            await put(zk, broker_id, is_ours=False)
        await features.refresh()
        assert features.level(SHARE_VERSION) == 0
        [(level, message)] = lines()
        assert level == "WARNING"
        assert "share.version: 3, 12; replace them" in message
        await put(zk, 2, is_ours=True)
        await features.refresh()
        assert lines() == [], "the same brokers lack it"
        await zk.delete(paths.broker_id(12))
        await features.refresh()
        [(level, message)] = lines()
        assert level == "WARNING"
        assert "share.version: 3; replace them" in message
        await zk.delete(paths.broker_id(3))
        await features.refresh()
        assert lines() == [("INFO", "[features] share groups are on again: every broker has share.version")]


async def test_foreign_child_of_broker_ids_has_no_features_and_stops_no_broker(zk: ZooKeeperSession) -> None:
    features = ClusterFeatures(zk)
    await put(zk, 1, is_ours=True)
    await zk.create(f"{paths.BROKER_IDS}/note-to-self", b"hello")
    for name in ("02", "3e9", "99999999999", "٣"):
        await zk.create(f"{paths.BROKER_IDS}/{name}", b"hello")
    assert (await seen(features))[1] == 2
    await zk.create(paths.broker_id(2), b"{")
    assert (await seen(features))[1] == 0


async def test_an_expired_session_puts_the_look_off_until_there_is_another() -> None:
    class Expiring:
        """A session that ends with the first request."""

        def __init__(self, zk: ZooKeeperSession, ensemble: Ensemble) -> None:
            self._zk = zk
            self._ensemble: Ensemble | None = ensemble
            self.on_state, self.outlive = zk.on_state, zk.outlive

        async def batch(self, operations: object) -> object:
            if self._ensemble is not None:
                self._ensemble.expire_sessions()
                self._ensemble = None
                raise SessionExpired("expired before the request was answered")
            return await self._zk.batch(operations)  # type: ignore[arg-type]

    async with zookeeper() as ensemble, session(ensemble) as zk:
        await put(zk, 1, is_ours=True)
        features = ClusterFeatures(Expiring(zk, ensemble))  # type: ignore[arg-type]
        async with asyncio.timeout(60):
            assert (await seen(features))[1] == 2
