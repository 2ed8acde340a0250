"""Links of a broker to other clusters whose topics it mirrors. Part of every broker: a command creates links."""

from barnabas.base.config.log_config import LogConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import BrokerId, LeaderEpoch, TopicPartition
from barnabas.broker.features.link.acls import AclCopier
from barnabas.broker.features.link.api import LinksApi
from barnabas.broker.features.link.changes import LinkChanges
from barnabas.broker.features.link.gauges import add_gauges
from barnabas.broker.features.link.groups import GroupCopier
from barnabas.broker.features.link.manager import LinkManager
from barnabas.broker.features.link.producer_ids import ProducerIdSpace
from barnabas.broker.features.link.replica import RenewEpoch
from barnabas.broker.features.link.steward import Steward
from barnabas.broker.parts.feature import Host, Plugin
from barnabas.broker.replication.partition import Partition
from barnabas.broker.server.broker_connections import BrokerConnections
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.controller_client import ControllerClient
from barnabas.broker.zookeeper_client.features import LINK_VERSION
from barnabas.client.errors import ClientError
from barnabas.wire.messages.describe_links import DescribedLink, DescribeLinksRequest, DescribeLinksResponse
from barnabas.wire.messages.renew_leader_epoch import RenewLeaderEpochRequest, RenewLeaderEpochResponse


class _Others:
    """Collects the state of a link from all brokers: each broker knows the partitions it leads and the groups it copied."""

    def __init__(self, context: BrokerContext, connections: BrokerConnections, manager: LinkManager) -> None:
        self._context = context
        self._connections = connections
        self._manager = manager

    async def _descriptions(self, link: str) -> dict[BrokerId, DescribedLink]:
        """Ask the other live brokers. :raises Refused: if one does not answer."""
        described: dict[BrokerId, DescribedLink] = {}
        for broker in list(self._context.metadata.brokers):
            if broker == self._context.broker_id:
                continue
            request = DescribeLinksRequest(names=[link])
            try:
                answer = await self._connections.request(broker, request, DescribeLinksResponse)
            except ClientError as error:
                raise Refused(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker}: {error}") from error
            if answer.error_code != ErrorCode.NONE:
                raise Refused(ErrorCode(answer.error_code), f"broker {broker}: {answer.error_message}")
            described[broker] = answer.links[0]
        return described

    async def ends(self, link: str) -> dict[TopicPartition, int]:
        """Return the committed end of each of the link's mirrors."""
        context = self._context
        found = {
            TopicPartition(topic.name, each.partition): each.high_watermark
            for described in (await self._descriptions(link)).values()
            for topic in described.topics
            for each in topic.partitions
        }
        for partition in context.replicas:
            if partition.is_leader and context.dynamic.log_config(partition.tp.topic).barnabas_link_name == link:
                found[partition.tp] = partition.high_watermark
        return found

    async def group_turns(self, link: str) -> dict[BrokerId, int]:
        """Return how often each broker has looked at the offsets of its groups."""
        turns = {broker: described.group_turns for broker, described in (await self._descriptions(link)).items()}
        known = self._manager.links.get(link)
        return {self._context.broker_id: known.group_turns if known is not None else 0, **turns}


def _epoch_renewal(context: BrokerContext, controller_client: ControllerClient) -> RenewEpoch:
    async def renew(tp: TopicPartition, epoch: LeaderEpoch) -> None:
        request = RenewLeaderEpochRequest(
            broker_id=context.broker_id, topic=tp.topic, partition=tp.partition, leader_epoch=epoch
        )
        try:
            response = await controller_client.ask(request, RenewLeaderEpochResponse)
        except ClientError as error:
            raise Refused(ErrorCode.NOT_CONTROLLER, f"the controller gave {tp} no new leader epoch: {error}") from error
        if response.error_code != ErrorCode.NONE:
            raise Refused(ErrorCode(response.error_code), response.error_message)

    return renew


class LinkPlugin(Plugin):
    def __init__(self, host: Host) -> None:
        context, security = host.context, host.security
        self._spawn = host.spawn
        ids = ProducerIdSpace.of(context.cluster_id)
        self.manager = manager = LinkManager(
            host.session,
            context.replicas,
            config_of=context.dynamic.log_config,
            secrets=lambda: security.secrets,
            renew_epoch=_epoch_renewal(context, host.controller_client),
            is_enabled=lambda: host.cluster_features.level(LINK_VERSION) >= 1,
            producer_id_floor=ids.floor,
            skip_producer_ids=host.transactions.producer_ids.skip_below,
            clock=context.clock,
            spawn=host.spawn,
            chance=host.platform.random,
        )
        others = _Others(context, host.connections, manager)
        steward = Steward(
            manager.store,
            context.controller,
            context.metadata,
            host.settings.store,
            host.settings.change,
            ids,
            group_turns=others.group_turns,
        )
        groups = GroupCopier(
            context.broker_id, host.groups, ends=others.ends, partition_count=context.metadata.partition_count
        )
        acls = AclCopier(lambda: security.acl_store, manager.store, is_active=lambda: context.controller.is_active)
        manager.endings.append(steward.complete_promotions)
        manager.turns += [steward.turn, groups.turn, acls.turn]
        changes = LinkChanges(
            manager,
            config_of=context.dynamic.log_config,
            secrets=lambda: security.secrets,
            producer_id_floor=ids.floor,
        )
        self.apis = (LinksApi(context, manager, changes),)
        context.link_of = manager.link_of
        add_gauges(context.registry, lambda: manager.links)

    def start(self) -> None:
        self._spawn(self.manager.start(), "links")

    def stop(self) -> None:
        self.manager.stop()

    def leadership_changed(self, led: list[Partition], followed: list[Partition]) -> None:
        self.manager.leadership_changed(led, followed)

    def topic_settings_changed(self, topic: str, config: LogConfig) -> None:
        self.manager.topic_settings_changed(topic, config)

    def cluster_features_changed(self) -> None:
        self.manager.features_changed()


build = LinkPlugin
