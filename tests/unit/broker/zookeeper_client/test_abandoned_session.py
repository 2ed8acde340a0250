"""A session that is left as a killed process leaves it."""

import asyncio
import threading

from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from tests.unit.broker.zookeeper_client.zookeeper_fixture import session, zookeeper


async def test_ephemerals_of_an_abandoned_session_stay_until_it_expires() -> None:
    async with zookeeper() as ensemble, session(ensemble) as other:
        dying = ZooKeeperSession(ensemble.config())
        await dying.start()
        await dying.create("/alive", ephemeral=True)
        dying.abandon()
        await dying.stop()
        assert await other.exists("/alive") is not None
        ensemble.server.service.expire(dying.session_id)
        assert await other.exists("/alive") is None


async def test_session_that_is_abandoned_while_it_connects_ends_its_thread() -> None:
    threads = set(threading.enumerate())
    async with zookeeper() as ensemble:
        for _ in range(20):
            dying = ZooKeeperSession(ensemble.config())
            starting = asyncio.create_task(dying.start())
            await asyncio.sleep(0.001)
            dying.abandon()
            await dying.stop()
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
    kazoo = [each for each in set(threading.enumerate()) - threads if not each.name.startswith("asyncio")]
    assert kazoo == []
