"""Requests about links to other clusters: CreateLink, DescribeLinks, AlterLink, DeleteLink and RenewLeaderEpoch, each v0.
No KIP defines them: their API keys are far above Kafka's.

Any broker makes a change, by writing to ZooKeeper. Each broker reports the mirrors that it leads: clients ask all brokers.
"""

from collections.abc import Mapping

from barnabas.base.errors import ErrorCode, Malformed, Refused
from barnabas.base.ids import TopicPartition
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.controller.events import RenewLeaderEpoch
from barnabas.broker.features.link.changes import LinkChanges, no_such_link
from barnabas.broker.features.link.manager import Link, LinkManager
from barnabas.broker.features.link.replica import MirrorReplica
from barnabas.broker.security.authorizer import CLUSTER_NAME
from barnabas.broker.security.dynamic_secrets import is_password
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import serves
from barnabas.broker.server.refusal import refusal
from barnabas.broker.storage.producer_entry import ProducerEntry
from barnabas.broker.zookeeper_client.znodes_link import LinkSpec, MirrorPartition, MirrorState
from barnabas.wire.messages.alter_link import AlterLinkRequest, AlterLinkResponse
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.create_link import CreateLinkRequest, CreateLinkResponse
from barnabas.wire.messages.delete_link import DeleteLinkRequest, DeleteLinkResponse
from barnabas.wire.messages.describe_links import (
    DescribedEpoch,
    DescribedLink,
    DescribedLinkConfig,
    DescribedMirrorPartition,
    DescribedMirrorTopic,
    DescribeLinksRequest,
    DescribeLinksResponse,
)
from barnabas.wire.messages.renew_leader_epoch import RenewLeaderEpochRequest, RenewLeaderEpochResponse


class LinksApi:
    def __init__(self, context: BrokerContext, manager: LinkManager, changes: LinkChanges) -> None:
        self._context = context
        self._manager = manager
        self._changes = changes

    @serves("CreateLink", refusal())
    async def create(self, call: Call, request: CreateLinkRequest) -> ApiMessage:
        self._context.require_cluster(call, AclOperation.ALTER)
        spec = LinkSpec(
            configs={},
            topics=request.topics,
            groups=request.groups,
            acls=request.acls,
            start=request.start,
            restart_recreated=request.restart_recreated,
            adopt=request.adopt,
        )
        await self._changes.create(request.name, spec, {each.name: each.value for each in request.configs})
        return CreateLinkResponse()

    @serves("AlterLink", refusal())
    async def alter(self, call: Call, request: AlterLinkRequest) -> ApiMessage:
        self._context.require_cluster(call, AclOperation.ALTER)
        try:
            await self._alter(request)
        except Malformed as error:  # a damaged znode, not the request
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
        return AlterLinkResponse()

    async def _alter(self, request: AlterLinkRequest) -> None:
        match request.action:
            case "pause" | "resume":
                await self._changes.pause(request.name, request.topic, paused=request.action == "pause")
            case "promote" | "promote-now":
                await self._changes.promote(request.name, request.topic, now=request.action == "promote-now")
            case _:
                raise Refused(ErrorCode.INVALID_REQUEST, f"unknown action {request.action!r} for a link")

    @serves("DeleteLink", refusal())
    async def delete(self, call: Call, request: DeleteLinkRequest) -> ApiMessage:
        self._context.require_cluster(call, AclOperation.ALTER)
        await self._changes.delete(request.name)
        return DeleteLinkResponse()

    @serves("DescribeLinks", refusal())
    async def describe(self, call: Call, request: DescribeLinksRequest) -> ApiMessage:
        # Other brokers ask as well, to find out how far mirrors have come that they do not lead.
        if not self._context.shows(call, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME):
            self._context.require_cluster(call, AclOperation.DESCRIBE)
        links = self._manager.links
        names = sorted(links) if request.names is None else request.names
        for name in names:
            if name not in links:
                raise no_such_link(name)
        described = [await self._described(links[name], request.include_partitions) for name in names if name in links]
        return DescribeLinksResponse(links=described)

    async def _described(self, link: Link, with_partitions: bool) -> DescribedLink:
        spec, source = link.spec, link.source
        answer = DescribedLink(
            name=link.name,
            state="paused" if spec.paused else "active" if link.settings is not None else "refused",
            error=link.trouble(),
            configs=[
                DescribedLinkConfig(name=name, value=None if is_password(name) else value)
                for name, value in sorted(spec.configs.items())
            ],
            topics_pattern=spec.topics,
            groups_pattern=spec.groups,
            acls=spec.acls,
            start=spec.start,
            restart_recreated=spec.restart_recreated,
            adopt=spec.adopt,
            source_cluster_id=source.client.image.cluster_id if source is not None else None,
            groups_copied=link.groups_copied,
            group_turns=link.group_turns,
        )
        for name, mirror in sorted(link.topics.items()):
            topic = DescribedMirrorTopic(
                name=name,
                state=mirror.state.value,
                reason=mirror.reason or None,
                source_topic_id=mirror.source_id,
                partition_count=self._context.metadata.partition_count(name),
            )
            answer.topics.append(topic)
            if with_partitions:
                topic.partitions = [
                    self._partition(link, TopicPartition(name, index)) for index in self._led_here(name)
                ]
                if topic.partitions and (mirror.state.is_promoting or mirror.state is MirrorState.PROMOTED):
                    ended = await self._manager.store.partitions(link.name, name, topic.partition_count)
                    for partition in topic.partitions:
                        _describe_end(partition, ended[partition.partition])
        return answer

    def _led_here(self, topic: str) -> list[int]:
        count = self._context.metadata.partition_count(topic)
        led = (self._context.replicas.hosted.get(TopicPartition(topic, index)) for index in range(count))
        return [each.tp.partition for each in led if each is not None and each.is_leader]

    def _partition(self, link: Link, tp: TopicPartition) -> DescribedMirrorPartition:
        partition = self._context.replicas.hosted.get(tp)
        replica = link.source.replicas.get(tp) if link.source is not None else None
        answer = DescribedMirrorPartition(partition=tp.partition, state="waiting")
        if partition is not None and partition.log is not None:
            answer.log_start_offset = partition.log.log_start_offset
            answer.log_end_offset = partition.log.log_end_offset
            answer.high_watermark = partition.log.high_watermark
            answer.open_transactions = _open_transactions(partition.log.producers.producers)
        if replica is not None:
            _describe_replica(answer, replica, self._context.clock.now_ms())
        return answer

    @serves("RenewLeaderEpoch", refusal())
    async def renew_leader_epoch(self, call: Call, request: RenewLeaderEpochRequest) -> ApiMessage:
        self._context.require_cluster(call, AclOperation.CLUSTER_ACTION)
        partition = TopicPartition(request.topic, request.partition)
        await self._context.controller.call(RenewLeaderEpoch(partition, request.broker_id, request.leader_epoch))
        return RenewLeaderEpochResponse()


def _open_transactions(producers: Mapping[int, ProducerEntry]) -> int:
    return sum(entry.txn_first_offset is not None for entry in producers.values())


def _describe_replica(answer: DescribedMirrorPartition, replica: MirrorReplica, now_ms: int) -> None:
    answer.state = "failed" if replica.error else "mirroring"
    answer.error = replica.error
    answer.source_offset = replica.source_end
    answer.lag_records = replica.lag_records
    answer.lag_ms = replica.lag_ms(now_ms)
    answer.source_leader = replica.source_leader
    answer.bytes_per_second = replica.bytes_per_second()
    answer.truncated_records = replica.truncated_records
    answer.epochs = [
        DescribedEpoch(epoch=each.epoch, start_offset=each.start_offset) for each in replica.epochs.entries
    ]


def _describe_end(answer: DescribedMirrorPartition, known: MirrorPartition) -> None:
    """Describe a mirror that ended: how far it came."""
    answer.epochs = [DescribedEpoch(epoch=epoch, start_offset=start) for epoch, start in known.epochs]
    if known.final_offset is None:
        return
    answer.state = "final" if known.is_done else "ending"
    answer.final_offset = known.final_offset
    answer.source_offset, answer.lag_ms = known.source_end, known.lag_ms
    answer.lag_records = max(0, known.source_end - known.final_offset) if known.source_end >= 0 else -1
