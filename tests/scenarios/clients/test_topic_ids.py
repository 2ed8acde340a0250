"""Metadata by topic id, as the Java client requests it."""

import asyncio

from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicId
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse


def test_topic_is_found_by_id_also_beside_an_empty_name(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(60)
    host, _, port = bootstrap.split(",")[0].rpartition(":")

    async def run() -> None:
        cluster = AsyncClient(ClientConfig(bootstrap=((host, int(port)),)))
        try:
            known = (await cluster.topics({topic}))[topic].topic_id
            unknown = TopicId(b"unknown topic id")
            request = MetadataRequest(
                topics=[
                    MetadataRequestTopic(topic_id=known, name=""),
                    MetadataRequestTopic(topic_id=known, name=None),
                    MetadataRequestTopic(topic_id=unknown, name=""),
                ]
            )
            [broker_id, *_] = cluster.image.brokers
            response = await cluster.ask(broker_id, request, MetadataResponse)
        finally:
            await cluster.close()
        assert [(found.name, found.topic_id, found.error_code) for found in response.topics] == [
            (topic, known, ErrorCode.NONE),
            (topic, known, ErrorCode.NONE),
            (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
        ]

    asyncio.run(run())
