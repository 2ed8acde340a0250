"""A member of a streams group (KIP-1071), as far as brokers see it: its heartbeats. No Python client speaks the protocol."""

import asyncio

from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.wire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TopicInfo,
    Topology,
)


class StreamsMember:
    """A thread of an application that counts what is in a topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic, self.group = bootstrap, topic, f"{topic}-app"
        self.epoch = 0

    async def heartbeat(self, epoch: int) -> bool:
        """Return whether the member got tasks with this answer."""
        count = Subtopology(
            subtopology_id="0",
            source_topics=[self.topic],
            state_changelog_topics=[TopicInfo(name=f"{self.group}-count-changelog")],
        )
        is_joining = epoch == 0
        request = StreamsGroupHeartbeatRequest(
            group_id=self.group,
            member_id="member-1",
            member_epoch=epoch,
            process_id="process-1",
            rebalance_timeout_ms=60_000 if is_joining else -1,
            topology=Topology(subtopologies=[count]) if is_joining else None,
        )
        async with AsyncClient(client_config(self.bootstrap, client_id="counter")) as client:
            answer = await client.ask_coordinator(
                self.group, request, StreamsGroupHeartbeatResponse, error_of=lambda answer: answer.error_code
            )
        assert answer.error_code == 0, answer
        self.epoch = answer.member_epoch
        return bool(answer.active_tasks)

    def join(self) -> None:
        async def until_tasks() -> None:
            while not await self.heartbeat(self.epoch):
                await asyncio.sleep(0.05)

        asyncio.run(until_tasks())

    def leave(self) -> None:
        asyncio.run(self.heartbeat(-1))
