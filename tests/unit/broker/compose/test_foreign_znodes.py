"""Anyone can write to an open ZooKeeper. Brokers log and skip a znode that they do not understand; it ends none of them."""

from pathlib import Path

import pytest

from barnabas.base.clock import SystemClock
from barnabas.base.ids import TopicId
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.config_store import ConfigStore
from barnabas.broker.zookeeper_client.registration import create_top_level_paths
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.znodes import ReplicaAssignment, TopicAssignment
from barnabas.client.admin import topics as topic_admin
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from tests.support.waiting import eventually
from tests.unit.broker.compose.live_broker import LISTENER, live_broker
from tests.unit.broker.zookeeper_client.zookeeper_fixture import Ensemble

#: Not JSON, not an object, without any field, and of every wrong kind, for every znode that a broker reads.
GARBAGE = {
    "empty": b"",
    "bytes": b"\xff\xfe\x00",
    "list": b"[1, 2]",
    "null": b"null",
    "version": b'{"version": 1}',
    "deep": b"[" * 100_000,
    "surrogate": b'{"version": 2, "entity_path": "topics/\\ud800", "config": {"retention.ms": "\\ud800"}}',
    "outside": b'{"version": 2, "entity_path": "../../..//x", "broker": 1e400, "brokerid": 1e400, "topic_id": "!"}',
    "kinds": b'{"version": 3, "config": 7, "endpoints": [7], "partitions": [{"topic": 1, "partition": "x"}], "acls": 7, '
    b'"leader": {}, "isr": 7, "features": 7, "status": "x", "broker": [], "host": 7, "owner": 7, "entity_path": 7}',
    "large": b'{"version": 1, "host": "h", "port": 99999999999, "partitions": {"0": [99999999999]}, "broker": 99999999999, '
    b'"leader": 99999999999, "leader_epoch": 99999999999, "controller_epoch": 0, "isr": [99999999999]}',
    "protocol": b'{"version": 5, "endpoints": ["LIS://h:1"], "listener_security_protocol_map": {"LIS": "MAGIC"}, '
    b'"config": {"producer_byte_rate": "many", "SCRAM-SHA-256": "salt", "retention.ms": "long", "ssl.keystore.password": "x"}}',
}

READ_AT_START = (
    f"{paths.BROKER_IDS}/no-number",
    f"{paths.BROKER_IDS}/²",
    paths.broker_id(7),
    f"{paths.BROKER_IDS}/99999999999",
    paths.topic("unreadable"),
    paths.topic("n" * 300),
    f"{paths.topic('stateless')}/partitions/0/state",
    f"{paths.DELETE_TOPICS}/unknown",
    paths.REASSIGN_PARTITIONS,
    paths.PREFERRED_REPLICA_ELECTION,
    f"{paths.ISR_CHANGE_NOTIFICATION}/foreign",
    f"{paths.LOG_DIR_EVENT_NOTIFICATION}/foreign",
    paths.FEATURE,
    paths.LATEST_PRODUCER_ID_BLOCK,
    *(
        f"{root}/{name}"
        for root, prefix in (
            (paths.CONFIG_CHANGES, paths.CONFIG_CHANGE_PREFIX),
            (paths.ACL_LITERAL_CHANGES, paths.ACL_CHANGE_PREFIX),
            (paths.ACL_EXTENDED_CHANGES, paths.ACL_CHANGE_PREFIX),
            (paths.DELEGATION_TOKEN_CHANGES, paths.TOKEN_CHANGE_PREFIX),
        )
        for name in ("foreign", f"{prefix}x", f"{prefix}9999999999")
    ),
    *(
        paths.config_entity(kind, name)
        for kind, name in (
            (paths.TOPICS, "fine"),
            (paths.BROKERS_ENTITY, "1"),
            (paths.BROKERS_ENTITY, paths.DEFAULT_ENTITY),
            (paths.USERS, "alice"),
            (paths.USERS, "alice/clients/app"),
            (paths.CLIENTS, "app"),
            (paths.IPS, "192.0.2.1"),
        )
    ),
    paths.acl_resource("Topic", "secret", prefixed=False),
    paths.acl_resource("Topic", "secret", prefixed=True),
    paths.delegation_token("token"),
)

WATCHED = (
    paths.config_change(),
    paths.acl_change(prefixed=False),
    paths.acl_change(prefixed=True),
    paths.delegation_token_change(),
    paths.log_dir_event(),
    f"{paths.ISR_CHANGE_NOTIFICATION}/{paths.ISR_CHANGE_PREFIX}",
    f"{paths.DELETE_TOPICS}/",
    f"{paths.BROKER_IDS}/",
    f"{paths.BROKER_TOPICS}/t",
)


async def put(zk: ZooKeeperSession, path: str, data: bytes) -> None:
    if await zk.exists(path) is None:
        await zk.create(path, data, make_path=True)
    else:
        await zk.set(path, data)


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_broker_starts_and_serves_whatever_others_have_written(
    ensemble: Ensemble, zk: ZooKeeperSession, tmp_path: Path, garbage: bytes
) -> None:
    await create_top_level_paths(zk)
    stateless = TopicAssignment(TopicId(b"stateless-topic!"), {0: ReplicaAssignment((1,))})
    await zk.create(paths.topic("stateless"), stateless.encode())
    for path in READ_AT_START:
        await put(zk, path, garbage)
    settings = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
        "delegation.token.secret.key": "key",
    }
    async with live_broker(ensemble, tmp_path, settings) as broker:
        for path in WATCHED:
            await zk.create(path, garbage, sequence=True)
        for path in (paths.broker_id(8), paths.REASSIGN_PARTITIONS, paths.PREFERRED_REPLICA_ELECTION):
            await put(zk, path, garbage)
        # The correct znodes still take effect.
        async with AsyncClient(client_config(f"127.0.0.1:{broker.ports[LISTENER]}", {})) as client:
            await topic_admin.create_topics(client, [topic_admin.NewTopic(name="fine", partitions=1)])
        await ConfigStore(zk, SystemClock()).write(paths.TOPICS, "fine", {"retention.ms": "12345"})
        await eventually(lambda: broker.dynamic.log_config("fine").retention_ms == 12345)
        await eventually(lambda: broker.metadata.has_all_leaders("fine", (0,)))
        assert broker.controller.is_active
