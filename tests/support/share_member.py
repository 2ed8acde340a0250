"""A member of a share group, down at the requests: it fetches from one broker and acknowledges as the test says."""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from barnabas.broker.runtime.share_state import SharePartitionKey
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.wire.messages import share_acknowledge as acknowledging
from barnabas.wire.messages import share_fetch as fetching
from barnabas.wire.record_batch import iter_batches
from barnabas.wire.record_decode import iter_records

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
Place = tuple[bytes, int]
#: First offset, last offset, acknowledge types.
Batch = tuple[int, int, Sequence[int]]


class Got(NamedTuple):
    topic_id: bytes
    partition: int
    offset: int
    value: bytes | None
    delivery_count: int


class ShareMember:
    """Has one connection. `offer` begins the state of a share partition, as the group coordinator does."""

    def __init__(self, bootstrap: str, member_id: str, *, group_id: str = "g", broker_id: int = 1) -> None:
        self.group_id, self.member_id, self.broker_id = group_id, member_id, broker_id
        self.client = AsyncClient(client_config(bootstrap))
        self.epoch = 0
        self.session: set[Place] = set()
        self.answer: fetching.ShareFetchResponse = fetching.ShareFetchResponse()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection, and leave the session to the broker."""
        await self.client.close()

    async def fetch(
        self,
        places: Iterable[Place] = (),
        *,
        acknowledge: "dict[Place, list[Batch]] | None" = None,
        forget: Iterable[Place] = (),
        max_wait_ms: int = 0,
        max_records: int = 500,
        **fields: Any,
    ) -> list[Got]:
        """Fetch, also the places of former fetches; return the acquired records. The whole response is in `answer`."""
        batches = acknowledge or {}
        added = [place for place in dict.fromkeys((*places, *batches)) if place not in self.session or place in batches]
        topics = [
            fetching.FetchTopic(
                topic_id=topic_id,
                partitions=[
                    fetching.FetchPartition(
                        partition_index=partition,
                        acknowledgement_batches=[
                            fetching.AcknowledgementBatch(
                                first_offset=first, last_offset=last, acknowledge_types=list(types)
                            )
                            for first, last, types in batches.get((topic_id, partition), [])
                        ],
                    )
                ],
            )
            for topic_id, partition in added
        ]
        request = fetching.ShareFetchRequest(
            **{
                "group_id": self.group_id,
                "member_id": self.member_id,
                "share_session_epoch": self.epoch,
                "max_wait_ms": max_wait_ms,
                "min_bytes": 1,
                "max_bytes": 50_000_000,
                "max_records": max_records,
                "batch_size": max_records,
                "topics": topics,
                "forgotten_topics_data": [
                    fetching.ForgottenTopic(topic_id=topic_id, partitions=[partition]) for topic_id, partition in forget
                ],
                **fields,
            }
        )
        connection = await self.client.connection(self.broker_id)
        self.answer = await connection.request(request, fetching.ShareFetchResponse, timeout_ms=max_wait_ms + 60_000)
        if not self.answer.error_code:
            self.epoch += 1
            self.session = (self.session | set(added)) - set(forget)
        return [got for topic in self.answer.responses for data in topic.partitions for got in _acquired(topic, data)]

    async def acknowledge(
        self, batches: "dict[Place, list[Batch]]", *, epoch: int | None = None, is_renew_ack: bool = False
    ) -> acknowledging.ShareAcknowledgeResponse:
        request = acknowledging.ShareAcknowledgeRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            share_session_epoch=self.epoch if epoch is None else epoch,
            is_renew_ack=is_renew_ack,
            topics=[
                acknowledging.AcknowledgeTopic(
                    topic_id=topic_id,
                    partitions=[
                        acknowledging.AcknowledgePartition(
                            partition_index=partition,
                            acknowledgement_batches=[
                                acknowledging.AcknowledgementBatch(
                                    first_offset=first, last_offset=last, acknowledge_types=list(types)
                                )
                                for first, last, types in some
                            ],
                        )
                    ],
                )
                for (topic_id, partition), some in batches.items()
            ],
        )
        connection = await self.client.connection(self.broker_id)
        answer = await connection.request(request, acknowledging.ShareAcknowledgeResponse)
        if not answer.error_code:
            self.epoch += 1
        return answer

    async def settle(self, got: Iterable[Got], kind: int = ACCEPT) -> list[int]:
        """Acknowledge each record; return the error codes of the partitions."""
        batches: dict[Place, list[Batch]] = {}
        for each in sorted(got):
            batches.setdefault((each.topic_id, each.partition), []).append((each.offset, each.offset, [kind]))
        answer = await self.acknowledge(batches, is_renew_ack=kind == RENEW)
        return [answer.error_code or data.error_code for topic in answer.responses for data in topic.partitions]

    async def leave(self) -> None:
        await self.acknowledge({}, epoch=-1)


def _acquired(topic: fetching.ShareFetchableTopicResponse, data: fetching.PartitionData) -> Iterable[Got]:
    """Yield the records that are acquired; the batches around them may have others."""
    if not data.records:
        return
    view = memoryview(data.records)  # type: ignore[arg-type]
    for position, header in iter_batches(view):
        if header.is_control:
            continue
        for record in iter_records(view, position, header):
            for acquired in data.acquired_records:
                if acquired.first_offset <= record.offset <= acquired.last_offset:
                    value = None if record.value is None else bytes(record.value)
                    yield Got(topic.topic_id, data.partition_index, record.offset, value, acquired.delivery_count)


async def offer(kafka: Any, topic: str, *, group_id: str = "g", partitions: int = 1, start: int = -1) -> list[Place]:
    """Begin the states of a topic's share partitions; -1: the leader chooses where, by `share.auto.offset.reset`."""
    composed = next(member.broker for member in kafka._machinery.members.values() if member.broker is not None)
    topic_id = composed.context.metadata.topic_id(topic)
    for partition in range(partitions):
        key = SharePartitionKey(group_id, topic_id, partition)
        await composed.share_state.persister.initialize(key, state_epoch=1, start_offset=start)
    return [(topic_id, partition) for partition in range(partitions)]
