"""`configs --zookeeper`: write SCRAM credentials of users to ZooKeeper before the first broker starts.

Brokers that authenticate to each other with SCRAM need their credentials before the first broker starts, so no broker can
create them. As in Kafka's tool, `--zookeeper` serves only for that; everything else goes through a broker. This module
prints nothing; its caller does.
"""

import asyncio
import secrets
from collections.abc import Sequence

from barnabas.base.clock import SystemClock
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.config_store import ConfigStore
from barnabas.broker.zookeeper_client.open_znodes import open_among
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.session_config import SessionConfig
from barnabas.cli._command import UsageError
from barnabas.client.admin.configs import ScramUpsert
from barnabas.wire.auth.mechanisms.scram import BY_NAME, ScramCredential

_SALT_BYTES = 32


def alter_scram(
    config: SessionConfig,
    user: str,
    *,
    upserts: Sequence[ScramUpsert],
    deletions: Sequence[str],
) -> list[str]:
    """Change the credentials. Return the znodes that hold or announce them and that every client of ZooKeeper can change.

    :raises UsageError: if a credential to delete does not exist; then nothing is changed.
    """
    entity = paths.sanitize(user)
    needed = (paths.config_type(paths.USERS), paths.CONFIG_CHANGES)

    async def change() -> list[str]:
        session = ZooKeeperSession(config)
        await session.start()
        try:
            await session.ensure_paths(needed)
            await _change(ConfigStore(session, SystemClock()), entity, upserts, deletions)
            return await open_among(session, (paths.config_entity(paths.USERS, entity), *needed, paths.CONFIG))
        finally:
            await session.stop()

    return asyncio.run(change())


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
