"""Rights and quotas of the members of share groups: READ on the group and on each topic, and what consumers may fetch."""

import asyncio

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from barnabas.base.errors import ErrorCode
from barnabas.broker.security.quotas import Quota
from barnabas.client.admin.configs import alter_quotas
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.testing import Broker
from tests.support.share_member import ACCEPT, ShareMember, offer
from tests.support.waiting import eventually

ONE_STATE = {"share.coordinator.state.topic.num.partitions": "1"}
AUTHORIZER = ONE_STATE | {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def _only_another_may_read(bootstrap: str, kind: ResourceType, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    pattern = ResourcePatternType.LITERAL
    binding = AclBinding(kind, name, pattern, "User:other", "*", AclOperation.READ, AclPermissionType.ALLOW)
    for future in admin.create_acls([binding]).values():
        future.result(30)


async def test_member_needs_read_on_the_group_and_on_each_topic() -> None:
    async with Broker(config=AUTHORIZER) as kafka:
        places = []
        for topic in ("open", "closed"):
            await kafka.create_topic(topic)
            await kafka.produce(topic, ["a"])
            places += await offer(kafka, topic, start=0)
        opened, closed = places
        await asyncio.to_thread(_only_another_may_read, kafka.bootstrap, ResourceType.TOPIC, "closed")
        async with ShareMember(kafka.bootstrap, "one") as one:
            got = await one.fetch([closed])
            codes = {(each.topic_id, data.error_code) for each in one.answer.responses for data in each.partitions}
            assert (got, codes) == ([], {(closed[0], ErrorCode.TOPIC_AUTHORIZATION_FAILED)})
            answer = await one.acknowledge({closed: [(0, 0, [ACCEPT])]})
            assert answer.responses[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            got = await one.fetch([opened], forget=[closed], max_wait_ms=5_000)
            assert [each.value for each in got] == [b"a"]
            await asyncio.to_thread(_only_another_may_read, kafka.bootstrap, ResourceType.GROUP, "g")
            assert await one.settle(got) == []
            assert (await one.acknowledge({opened: []})).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
            await one.fetch()
            assert one.answer.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_member_above_its_quota_gets_its_records_and_waits_afterwards() -> None:
    async with Broker(config=ONE_STATE) as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", ["v" * 1_000] * 20)
        [place] = await offer(kafka, "orders", start=0)
        async with AsyncClient(client_config(kafka.bootstrap)) as client:
            await alter_quotas(client, {"client-id": "barnabas"}, {"consumer_byte_rate": 1_500.0})
        quotas = kafka._machinery.members[1].broker.context.quotas
        await eventually(lambda: quotas.bytes_max(Quota.CONSUME, "ANONYMOUS", "barnabas") == 15_000)
        async with ShareMember(kafka.bootstrap, "one") as one:
            got, throttle_ms = 0, 0
            while got < 20:
                got += len(await one.fetch([place], max_wait_ms=5_000))
                throttle_ms = max(throttle_ms, one.answer.throttle_time_ms)
            assert throttle_ms > 0
