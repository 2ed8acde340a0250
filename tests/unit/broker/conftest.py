"""A ZooKeeper server, a session with it, and a broker, each on the event loop of its test."""

from collections.abc import AsyncIterator
from pathlib import Path

from barnabas.broker.compose import Broker
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from tests.support.async_fixture import async_fixture
from tests.unit.broker.compose.live_broker import live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import Ensemble, session, zookeeper


@async_fixture
async def ensemble() -> AsyncIterator[Ensemble]:
    async with zookeeper() as started:
        yield started


@async_fixture
async def zk(ensemble: Ensemble) -> AsyncIterator[ZooKeeperSession]:
    async with session(ensemble) as opened:
        yield opened


@async_fixture
async def broker(ensemble: Ensemble, tmp_path: Path) -> AsyncIterator[Broker]:
    async with live_broker(ensemble, tmp_path) as started:
        yield started
