"""Sends every probe under every ACL, and records the answers: in the same way for Apache Kafka and for our broker.

A world is the record of one broker's answers:
    {"outcomes": [[line, …], …],                     each different answer once
     "probes": {probe: {"none": 3, "all": 0, "allow": {"TOPIC.READ literal": 1, …}, "deny": {…}, "mixed": {…}}}}
`allow` and `deny` have only entries that differ from `none` and from `all`.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from barnabas.base.errors import ErrorCode
from barnabas.base.words import Permission
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig, client_config
from barnabas.client.connection import Connection
from barnabas.client.errors import ConnectionLost
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from barnabas.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tests.authorization.entries import EVERYTHING, Acl, mixed, single
from tests.authorization.probes import (
    GROUP,
    HIDDEN_GROUP,
    HIDDEN_TOPIC,
    HIDDEN_TXN,
    OPEN_TXN,
    OWNER,
    PROBES,
    TOPIC,
    TXN,
    Probe,
    Stage,
    decisions,
)

GOLDEN: Final = Path(__file__).parents[1] / "golden/kafka-3.9.1/authorization.json"
PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
Attempt = Callable[[], Awaitable[ErrorCode]]

#: Settings of a recorded broker. The listener has the name of its protocol, so that one client setting fits all.
BROKER_CONFIG: Final = {
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        f'{PLAIN} required username="admin" password="a" user_admin="a" user_alice="a";'
    ),
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:admin",
    "delegation.token.secret.key": "a secret that signs tokens",
    "auto.create.topics.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


def client_of(bootstrap: str, user: str) -> ClientConfig:
    return client_config(
        bootstrap,
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{PLAIN} required username="{user}" password="a";',
        },
        client_id=user,
    )


class Asker:
    """Sets ACLs as admin, and sends requests as alice."""

    def __init__(self, admin: AsyncClient, alice: AsyncClient) -> None:
        self._admin = admin
        self._alice = alice
        self.stage = Stage(b"", b"")
        self._requests: dict[str, ApiMessage] = {}

    async def set_the_stage(self) -> None:
        topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in (TOPIC, HIDDEN_TOPIC)]

        async def create() -> ErrorCode:
            request = CreateTopicsRequest(topics=topics, timeout_ms=30_000)
            answer = await self._admin.ask_any(request, CreateTopicsResponse)
            code = ErrorCode(max(result.error_code for result in answer.topics))
            return ErrorCode.NONE if code is ErrorCode.TOPIC_ALREADY_EXISTS else code

        await self._until_served(create)
        wanted = [MetadataRequestTopic(name=name) for name in (TOPIC, HIDDEN_TOPIC)]
        found = await self._admin.ask_any(MetadataRequest(topics=wanted), MetadataResponse)
        ids = {topic.name: topic.topic_id for topic in found.topics}
        self.stage = Stage(ids[TOPIC], ids[HIDDEN_TOPIC])
        for group in (GROUP, HIDDEN_GROUP):
            await self._until_served(self._commit(group))
        for transactional_id in (TXN, OPEN_TXN, HIDDEN_TXN):
            await self._until_served(self._begin(transactional_id))
        await self._until_served(self._open_transaction)
        await self._until_served(self._make_token)

    @staticmethod
    async def _until_served(attempt: Attempt) -> None:
        """Repeat the attempt until it succeeds: a coordinator may have to create its topic first."""
        async with asyncio.timeout(60):
            while await attempt() is not ErrorCode.NONE:
                await asyncio.sleep(0.1)

    def _commit(self, group: str) -> Attempt:
        partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=0)]
        topics = [OffsetCommitRequestTopic(name=name, partitions=partitions) for name in (TOPIC, HIDDEN_TOPIC)]
        request = OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=topics)

        async def attempt() -> ErrorCode:
            connection = await self._admin.any_connection()
            await connection.request(FindCoordinatorRequest(key=group, key_type=0), FindCoordinatorResponse, version=3)
            answer = await connection.request(request, OffsetCommitResponse, version=8)
            return ErrorCode(answer.topics[0].partitions[0].error_code)

        return attempt

    def _begin(self, transactional_id: str) -> Attempt:
        find = FindCoordinatorRequest(key=transactional_id, key_type=1)
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=900_000)

        async def attempt() -> ErrorCode:
            connection = await self._admin.any_connection()
            await connection.request(find, FindCoordinatorResponse, version=3)
            return ErrorCode((await connection.request(request, InitProducerIdResponse, version=4)).error_code)

        return attempt

    async def _open_transaction(self) -> ErrorCode:
        connection = await self._admin.any_connection()
        init = InitProducerIdRequest(transactional_id=OPEN_TXN, transaction_timeout_ms=900_000)
        known = await connection.request(init, InitProducerIdResponse, version=4)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=OPEN_TXN,
            v3_and_below_producer_id=known.producer_id,
            v3_and_below_producer_epoch=known.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in (TOPIC, HIDDEN_TOPIC)],
        )
        answer = await connection.request(request, AddPartitionsToTxnResponse, version=3)
        results = [each for topic in answer.results_by_topic_v3_and_below for each in topic.results_by_partition]
        return ErrorCode(max(each.partition_error_code for each in results))

    async def _make_token(self) -> ErrorCode:
        request = CreateDelegationTokenRequest(owner_principal_type="User", owner_principal_name=OWNER)
        return ErrorCode((await self._admin.ask_any(request, CreateDelegationTokenResponse)).error_code)

    async def add(self, acls: Iterable[Acl]) -> None:
        creations = [
            AclCreation(
                resource_type=acl.resource,
                resource_name=acl.name,
                resource_pattern_type=acl.pattern,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ]
        answer = await self._admin.ask_any(CreateAclsRequest(creations=creations), CreateAclsResponse)
        for acl, result in zip(acls, answer.results, strict=True):
            assert result.error_code == ErrorCode.NONE, f"{acl}: {result.error_message}"

    async def remove(self, acls: Iterable[Acl]) -> None:
        filters = [
            DeleteAclsFilter(
                resource_type_filter=acl.resource,
                resource_name_filter=acl.name,
                pattern_type_filter=acl.pattern,
                principal_filter=acl.principal,
                host_filter=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ]
        answer = await self._admin.ask_any(DeleteAclsRequest(filters=filters), DeleteAclsResponse)
        assert all(len(result.matching_acls) == 1 for result in answer.filter_results)

    async def connection(self) -> Connection:
        return await self._alice.any_connection()

    async def ask(self, connection: Connection, probe: Probe) -> tuple[str, ...]:
        request = self._requests.get(probe.name)
        if request is None:
            request = self._requests[probe.name] = probe.request(self.stage)
        try:
            answer = await connection.request(request, version=probe.version)
        except ConnectionLost:
            return ("connection closed",)
        return tuple(decisions(answer))


async def fill_in(asker: Asker, probes: Iterable[Probe], *, with_singles: bool = True) -> dict[str, Any]:
    """Return the whole table of one broker."""
    probes = list(probes)
    outcomes: dict[tuple[str, ...], int] = {}
    table: dict[str, dict[str, Any]] = {probe.name: {} for probe in probes}

    async def ask_all(acls: tuple[Acl, ...]) -> dict[str, int]:
        if acls:
            await asker.add(acls)
        # Send a few at a time on one connection, which keeps their order: the broker executes them one by one.
        connection = await asker.connection()
        found = await asyncio.gather(*(asker.ask(connection, probe) for probe in probes))
        answers = {
            probe.name: outcomes.setdefault(lines, len(outcomes)) for probe, lines in zip(probes, found, strict=True)
        }
        if acls:
            await asker.remove(acls)
        return answers

    for name, outcome in (await ask_all(())).items():
        table[name]["none"] = outcome
    for name, outcome in (await ask_all(EVERYTHING)).items():
        table[name]["all"] = outcome
    if with_singles:
        for title, acls in single(Permission.ALLOW):
            _note(table, "allow", "none", title, await ask_all(acls))
        await asker.add(EVERYTHING)
        for title, acls in single(Permission.DENY):
            _note(table, "deny", "all", title, await ask_all(acls))
        await asker.remove(EVERYTHING)
    for title, acls in mixed():
        _note(table, "mixed", None, title, await ask_all(acls))
    return {"outcomes": [list(lines) for lines in outcomes], "probes": table}


def _note(
    table: dict[str, dict[str, Any]], part: str, usual: str | None, title: str, answers: Mapping[str, int]
) -> None:
    for name, outcome in answers.items():
        row = table[name].setdefault(part, {})
        if usual is None or outcome != table[name][usual]:
            row[title] = outcome


async def ask_broker(bootstrap: str, *, probes: Iterable[Probe] = PROBES, with_singles: bool = True) -> dict[str, Any]:
    async with AsyncClient(client_of(bootstrap, "admin")) as admin, AsyncClient(client_of(bootstrap, "alice")) as alice:
        asker = Asker(admin, alice)
        await asker.set_the_stage()
        return await fill_in(asker, probes, with_singles=with_singles)


def spelled_out(world: Mapping[str, Any]) -> dict[str, dict[str, list[str]]]:
    """Return, by probe and ACL title, the lines themselves."""
    outcomes = world["outcomes"]
    return {
        name: {
            f"{part}: {title}" if title else part: outcomes[outcome]
            for part, cells in row.items()
            for title, outcome in (cells.items() if isinstance(cells, dict) else (("", cells),))
        }
        for name, row in world["probes"].items()
    }


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """A line for each cell in which two worlds differ."""
    lines = []
    theirs, ours = spelled_out(expected), spelled_out(found)
    for name in ours:
        for cell in dict.fromkeys((*theirs[name], *ours[name])):
            want, have = theirs[name].get(cell, "as usual"), ours[name].get(cell, "as usual")
            if want != have:
                lines.append(f"{name} | {cell} | Kafka: {want} | here: {have}")
    return lines


def load() -> dict[str, Any]:
    worlds: dict[str, Any] = json.loads(GOLDEN.read_text())
    return worlds


def save(worlds: Mapping[str, Any]) -> None:
    """Write a line for each probe, so that a diff shows what changed."""
    lines = []
    for world, content in worlds.items():
        outcomes = ",\n".join(f"    {json.dumps(each)}" for each in content["outcomes"])
        probes = ",\n".join(f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in content["probes"].items())
        lines.append(f'"{world}": {{\n  "outcomes": [\n{outcomes}\n  ],\n  "probes": {{\n{probes}\n  }}\n}}')
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
