"""`configs --zookeeper`: SCRAM credentials of users, written where brokers read them, before there is a broker.

Brokers that speak SCRAM with each other need theirs before the first one starts: no broker could be asked. Kafka's tool takes
`--zookeeper` for that alone, and so does ours; everything else goes through a broker. Asks nothing and says nothing; the caller
prints.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence

from barnabas.base.clock import SystemClock
from barnabas.base.config.broker import BrokerConfig
from barnabas.broker.server.settings import session_config
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.config_store import ConfigStore
from barnabas.broker.zookeeper_client.registration import create_top_level_paths
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.cli._command import UsageError
from barnabas.client.admin.configs import ScramUpsert
from barnabas.wire.auth.mechanisms.scram import BY_NAME, ScramCredential

_SALT_BYTES = 32


def alter_scram(
    connect: str,
    broker_settings: Mapping[str, str],
    user: str,
    *,
    upserts: Sequence[ScramUpsert],
    deletions: Sequence[str],
) -> None:
    """`broker_settings`: a broker's, of which those count that say how to reach ZooKeeper and who we are there.

    :raises UsageError: where a credential to delete does not exist; then nothing is changed.
    """
    known = {name: value for name, value in broker_settings.items() if "zookeeper" in name}
    config = session_config(BrokerConfig.parse({**known, "zookeeper.connect": connect}))

    async def change() -> None:
        session = ZooKeeperSession(config)
        await session.start()
        try:
            await create_top_level_paths(session)
            await _change(ConfigStore(session, SystemClock()), paths.sanitize(user), upserts, deletions)
        finally:
            await session.stop()

    asyncio.run(change())


async def _change(store: ConfigStore, entity: str, upserts: Sequence[ScramUpsert], deletions: Sequence[str]) -> None:
    settings = await store.read(paths.USERS, entity)
    missing = [name for name in deletions if name not in settings]
    if missing:
        raise UsageError(f"Invalid config(s): {','.join(missing)}")
    for upsert in upserts:
        name = upsert.mechanism.sasl_name
        settings[name] = ScramCredential.of_password(
            BY_NAME[name], upsert.password, salt=secrets.token_bytes(_SALT_BYTES), iterations=upsert.iterations
        ).encode()
    for name in deletions:
        del settings[name]
    await store.write(paths.USERS, entity, settings)
