"""Looks at a running cluster, barnabas or Apache: asks brokers through the protocol, and ZooKeeper if it can be reached.

Any question may stay unanswered: then the view says so, and the other questions are still asked.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    ConfigResourceType,
    ConfigSource,
)
from barnabas.client.admin.client_metrics import pushing_clients
from barnabas.client.admin.configs import Resource, describe_configs
from barnabas.client.admin.groups import REBALANCING, committed_offsets, list_groups
from barnabas.client.admin.partitions import describe_log_dirs, list_offsets
from barnabas.client.admin.tokens import describe_tokens
from barnabas.client.admin.transactions import describe_transaction, list_transactions
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.connection import Connection
from barnabas.client.errors import BrokerRefused, ClientError, RequestTimedOut, check
from barnabas.client.image import ClusterImage
from barnabas.client.pushing import PushingClient
from barnabas.services.doctor.checks import clients
from barnabas.services.doctor.view import (
    COORDINATOR_TOPICS,
    BrokerView,
    ClusterView,
    DirView,
    GroupPosition,
    Limits,
    MemberView,
    NeighbourView,
    TierView,
    TokenView,
    TransactionView,
    ZooKeeperView,
)
from barnabas.services.doctor.zookeeper import look_at_zookeeper
from barnabas.wire.messages.describe_neighbours import DescribeNeighboursRequest, DescribeNeighboursResponse
from barnabas.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse
from barnabas.wire.versions import api_named

T = TypeVar("T")

DESCRIBE_CLIENT_METRICS: Final = api_named("DescribeClientMetrics").key

#: Topics in one request.
TOPICS_AT_ONCE: Final = 200
#: Limit of groups, and of transactions, to describe.
ONE_BY_ONE_MAX: Final = 200
#: A broker reports after at most five seconds that ZooKeeper is unreachable.
ZOOKEEPER_TIMEOUT_MS: Final = 8_000
#: Errors for things that do not exist (any more).
_GONE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
#: A clock is compared only if the answer came within this time.
COMPARABLE_MS: Final = 1_000
_GIVEN: Final = (ConfigSource.STATIC_BROKER_CONFIG, ConfigSource.DYNAMIC_BROKER_CONFIG)


class Looker:
    """Looks at a cluster once. `_refused` collects the unanswered questions."""

    def __init__(self, cluster: AsyncClient, image: ClusterImage, limits: Limits) -> None:
        self._cluster = cluster
        self._image = image
        self._limits = limits
        self._refused: list[str] = []
        self._unreachable: dict[int, str] = {}

    async def look(self) -> ClusterView:
        started_s = time.monotonic()
        brokers = dict(await asyncio.gather(*(self._broker(broker_id) for broker_id in sorted(self._image.brokers))))
        answered = {broker_id: each for broker_id, each in brokers.items() if each is not None}
        if self._unreachable:
            answered = await self._with_news_of_unreachable(answered, time.monotonic() - started_s)
        # An answer that needs ZooKeeper may take seconds: ask everything else meanwhile.
        (troubles, zookeeper), (of_topics, newest_ms, transactions, groups, tokens, pushing) = await asyncio.gather(
            asyncio.gather(
                asyncio.gather(*(self._zookeeper_of(broker_id) for broker_id in answered)),
                self._zookeeper(answered.values()),
            ),
            asyncio.gather(
                self._answer("settings of topics", self._topic_settings()),
                self._answer("newest timestamps", self._newest()),
                self._answer("transactions", self._transactions()),
                self._answer("groups", self._groups()),
                self._answer("delegation tokens", self._tokens()),
                self._answer("metrics of clients", self._clients(answered.values())),
            ),
        )
        rebalancing, positions = groups or ({}, ())
        tiers = await self._answer("the tier", self._tiers(of_topics or {}))
        seen = {
            broker_id: replace(each, zookeeper_trouble=trouble, zookeeper_ms=took_ms)
            for (broker_id, each), (trouble, took_ms) in zip(answered.items(), troubles, strict=True)
        }
        return ClusterView(
            image=self._image,
            limits=self._limits,
            now_ms=time.time_ns() // 1_000_000,
            unreachable=self._unreachable,
            brokers=seen,
            zookeeper=zookeeper,
            min_isr={topic: int(value) for topic, value in _setting(of_topics, "min.insync.replicas")},
            cleanup=dict(_setting(of_topics, "cleanup.policy")),
            newest_ms=newest_ms or {},
            transactions=transactions or (),
            rebalancing=rebalancing,
            positions=positions,
            tokens=tokens or (),
            tiers=tiers or {},
            clients=pushing or (),
            refused=tuple(self._refused),
        )

    async def _zookeeper(self, brokers: Iterable[BrokerView]) -> ZooKeeperView | None:
        settings = next((each.settings for each in brokers if each.settings.get("zookeeper.connect")), None)
        if settings is None:
            return None
        connect = settings["zookeeper.connect"]
        if settings.get("zookeeper.ssl.client.enable") == "true":
            return ZooKeeperView(connect, trouble="it requires TLS with a certificate, which the doctor does not have")
        return await look_at_zookeeper(connect, self._in_trouble())

    async def _clients(self, brokers: Iterable[BrokerView]) -> tuple[PushingClient, ...]:
        if not all(DESCRIBE_CLIENT_METRICS in each.versions for each in brokers):
            return ()
        return tuple(await pushing_clients(self._cluster, clients.METRICS))

    async def _answer(self, what: str, question: Awaitable[T]) -> T | None:
        try:
            return await question
        except ClientError as error:
            self._refused.append(f"{what} ({error})")
            return None

    def _is_led(self, partition: TopicPartition) -> bool:
        """Whether a broker that answers leads the partition."""
        info = self._image.partition(partition)
        return info is not None and info.leader in self._image.brokers and info.leader not in self._unreachable

    def _in_trouble(self) -> list[TopicPartition]:
        return [
            TopicPartition(name, info.index)
            for name, topic in self._image.topics.items()
            for info in topic.partitions
            if info.leader not in self._image.brokers or len(info.isr) < len(info.replicas)
        ]

    # -- one broker -----------------------------------------------------------------------------------------------------

    async def _broker(self, broker_id: int) -> tuple[int, BrokerView | None]:
        try:
            connection = await self._cluster.connection(broker_id)
        except ClientError as error:
            self._unreachable[broker_id] = str(error)
            return broker_id, None
        about = f"of broker {broker_id}"
        log_dirs, described, controller_id, seen = await asyncio.gather(
            self._answer(f"log directories {about}", self._log_dirs(broker_id)),
            self._answer(f"settings {about}", self._settings(broker_id)),
            self._answer(f"controller {about}", self._controller_id(broker_id)),
            self._answer(f"other brokers, as seen by broker {broker_id}", self._neighbours(broker_id, connection)),
        )
        clock_ahead_ms, neighbours, strangers, members = seen or (None, {}, {}, {})
        settings, given, confusion = described or ({}, frozenset(), "")
        return broker_id, BrokerView(
            versions={key: (low, high) for key, (low, high) in connection.versions.apis.items()},
            log_dirs=log_dirs or (),
            settings=settings,
            given=given,
            confusion=confusion,
            # Apache's brokers have no features as long as they use ZooKeeper.
            is_ours=bool(settings.get("zookeeper.connect")) and bool(connection.versions.supported_features),
            features=frozenset(connection.versions.supported_features),
            finalized=frozenset(name for name, (_, level) in connection.versions.finalized_features.items() if level),
            controller_id=controller_id,
            certificate_ends_ms=certificate_end_ms(connection.peer_certificate),
            clock_ahead_ms=clock_ahead_ms,
            neighbours=neighbours,
            strangers=strangers,
            members=members,
        )

    async def _log_dirs(self, broker_id: int) -> tuple[DirView, ...]:
        return tuple(
            DirView(
                path=each.log_dir,
                error=ErrorCode(each.error_code).name if each.error_code else "",
                total_bytes=each.total_bytes,
                usable_bytes=each.usable_bytes,
            )
            for each in await describe_log_dirs(self._cluster, broker_id)
        )

    async def _settings(self, broker_id: int) -> tuple[dict[str, str], frozenset[str], str]:
        """Return the settings, and the reason if another broker answered: brokers only return their own settings."""
        resource = (ConfigResourceType.BROKER, str(broker_id))
        try:
            entries = (await describe_configs(self._cluster, [resource]))[resource]
        except BrokerRefused as refused:
            if refused.code is ErrorCode.INVALID_REQUEST:
                return {}, frozenset(), refused.message or refused.code.name
            raise
        settings = {entry.name: entry.value for entry in entries if entry.value is not None}
        return settings, frozenset(entry.name for entry in entries if entry.source in _GIVEN), ""

    async def _controller_id(self, broker_id: int) -> int | None:
        response = await self._cluster.ask(broker_id, MetadataRequest(topics=[]), MetadataResponse)
        return response.controller_id

    async def _with_news_of_unreachable(
        self, answered: Mapping[int, BrokerView], since_s: float
    ) -> dict[int, BrokerView]:
        """Ask the other brokers again about those that did not answer: an answer from before our attempts shows nothing."""

        async def asked_again(broker_id: int, each: BrokerView) -> BrokerView:
            connection = await self._cluster.connection(broker_id)
            _, neighbours, strangers, members = await self._neighbours(broker_id, connection)
            news = {
                other: seen
                for other, seen in neighbours.items()
                if other not in self._unreachable
                or seen.failing_ms is not None
                or (seen.answered_ms_ago is not None and seen.answered_ms_ago < since_s * 1000)
            }
            return replace(each, neighbours=news, strangers=strangers, members=members)

        again = await asyncio.gather(
            *(
                self._answer(f"other brokers, as seen by broker {broker_id}", asked_again(broker_id, each))
                for broker_id, each in answered.items()
            )
        )
        return {broker_id: news or each for (broker_id, each), news in zip(answered.items(), again, strict=True)}

    async def _neighbours(
        self, broker_id: int, connection: Connection
    ) -> tuple[int | None, dict[int, NeighbourView], dict[int, int | None], dict[str, MemberView]]:
        """Return by how much the broker's clock is ahead of ours, the brokers that it reports to, those that report to it
        although they are not in the cluster, and ZooKeeper's members. Only barnabas has this API."""
        if DescribeNeighboursRequest.API_KEY not in connection.versions.apis:
            return None, {}, {}, {}
        asked_ms, asked_s = time.time_ns() // 1_000_000, time.monotonic()
        answer = await self._cluster.ask(broker_id, DescribeNeighboursRequest(), DescribeNeighboursResponse)
        took_ms = round((time.monotonic() - asked_s) * 1000)
        check(answer.error_code, answer.error_message)
        neighbours = {
            each.broker_id: NeighbourView(
                failing_ms=None if each.failing_ms < 0 else each.failing_ms,
                reason=each.reason,
                is_untrusted=each.is_untrusted,
                round_trip_ms=None if each.round_trip_ms < 0 else each.round_trip_ms,
                answered_ms_ago=None if each.answered_ms_ago < 0 else each.answered_ms_ago,
            )
            for each in answer.neighbours
        }
        strangers = {
            each.broker_id: None if each.zookeeper_away_ms < 0 else each.zookeeper_away_ms for each in answer.strangers
        }
        ahead_ms = answer.now_ms - asked_ms - took_ms // 2 if took_ms < COMPARABLE_MS else None
        members = {
            each.address: MemberView(
                None if each.failing_ms < 0 else each.failing_ms, each.reason, each.is_up, each.is_behind
            )
            for each in answer.zookeeper_members
        }
        return ahead_ms, neighbours, strangers, members

    async def _zookeeper_of(self, broker_id: int) -> tuple[str, float]:
        """Send a request that needs ZooKeeper (for a user that does not exist). Return the error, and the time that it took."""
        request = DescribeUserScramCredentialsRequest(users=[UserName(name="barnabas-doctor")])
        started_s = time.monotonic()
        try:
            response = await self._cluster.ask(
                broker_id, request, DescribeUserScramCredentialsResponse, timeout_ms=ZOOKEEPER_TIMEOUT_MS
            )
        except RequestTimedOut:
            return f"no answer within {ZOOKEEPER_TIMEOUT_MS / 1000:.0f} s to a question that needs it", -1
        except ClientError as error:
            self._refused.append(f"ZooKeeper as broker {broker_id} sees it ({error})")
            return "", -1
        if response.error_code == ErrorCode.REQUEST_TIMED_OUT:
            return response.error_message or "REQUEST_TIMED_OUT", -1
        if response.error_code:
            words = BrokerRefused(response.error_code, response.error_message)
            self._refused.append(f"ZooKeeper as broker {broker_id} sees it ({words})")
            return "", -1
        return "", (time.monotonic() - started_s) * 1000

    # -- the cluster ----------------------------------------------------------------------------------------------------

    async def _topic_settings(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        refused: dict[Resource, BrokerRefused] = {}
        topics = list(self._image.topics)
        for start in range(0, len(topics), TOPICS_AT_ONCE):
            asked = [(ConfigResourceType.TOPIC, topic) for topic in topics[start : start + TOPICS_AT_ONCE]]
            for (_, topic), entries in (await describe_configs(self._cluster, asked, refused=refused)).items():
                found[topic] = {entry.name: entry.value for entry in entries if entry.value is not None}
        self._note_refusals("settings of topic", {name: error for (_, name), error in refused.items()})
        return found

    def _note_refusals(self, what: str, refused: Mapping[str, BrokerRefused]) -> None:
        """Note which things were refused. Things that do not exist were deleted since the list was made."""
        there = {name: error for name, error in refused.items() if error.code not in _GONE}
        if there:
            name, error = next(iter(there.items()))
            others = f" and {len(there) - 1} more" if len(there) > 1 else ""
            self._refused.append(f"{what} {name}{others} ({error})")

    def _first(self, what: str, found: Sequence[T]) -> Sequence[T]:
        """Return those that are asked one by one, and note that there are more."""
        if len(found) > ONE_BY_ONE_MAX:
            self._refused.append(f"{what} beyond the first {ONE_BY_ONE_MAX} of {len(found)}")
        return found[:ONE_BY_ONE_MAX]

    async def _newest(self) -> dict[TopicPartition, int]:
        partitions = [
            partition
            for name in COORDINATOR_TOPICS
            for info in (self._image.topics[name].partitions if name in self._image.topics else ())
            if self._is_led(partition := TopicPartition(name, info.index))
        ]
        listed = await self._offsets(partitions, MAX_TIMESTAMP)
        return {partition: timestamp_ms for partition, (_, timestamp_ms) in listed.items()}

    async def _offsets(self, partitions: list[TopicPartition], at: int) -> dict[TopicPartition, tuple[int, int]]:
        """Return offset and timestamp of the partitions that have a leader."""
        if not partitions:
            return {}
        listed = await list_offsets(self._cluster, dict.fromkeys(partitions, at))
        return {partition: (each.offset, each.timestamp_ms) for partition, each in listed.items() if not each.error}

    async def _transactions(self) -> tuple[TransactionView, ...]:
        if self._unreachable:
            return ()  # each broker knows its own: a partial list would look complete
        found = []
        refused: dict[str, BrokerRefused] = {}
        states = ["Ongoing", "PrepareAbort", "PrepareCommit"]
        for listed in self._first("transactions", await list_transactions(self._cluster, states=states)):
            try:
                _, state = await describe_transaction(self._cluster, listed.transactional_id)
            except BrokerRefused as error:
                refused[listed.transactional_id] = error
                continue
            partitions = tuple(TopicPartition(t.topic, index) for t in state.topics for index in t.partitions)
            found.append(
                TransactionView(
                    listed.transactional_id,
                    state.transaction_state,
                    state.transaction_start_time_ms,
                    state.transaction_timeout_ms,
                    partitions,
                )
            )
        self._note_refusals("transaction", refused)
        return tuple(found)

    async def _groups(self) -> tuple[Mapping[str, str], tuple[GroupPosition, ...]]:
        if self._unreachable:
            return {}, ()
        listed = await list_groups(self._cluster)
        unsettled = {group.group_id for group in listed if group.state in REBALANCING}
        rebalancing: dict[str, str] = {}
        if unsettled:
            await asyncio.sleep(self._limits.group_gap_s)
            again = await list_groups(self._cluster)
            rebalancing = {
                group.group_id: group.state
                for group in again
                if group.group_id in unsettled and group.state in REBALANCING
            }
        committed: dict[tuple[str, TopicPartition], int] = {}
        refused: dict[str, BrokerRefused] = {}
        for group in self._first("groups", listed):
            try:
                positions = await committed_offsets(self._cluster, group.group_id)
            except BrokerRefused as error:
                refused[group.group_id] = error
                continue
            for partition, offset in positions.items():
                if self._is_led(partition):
                    committed[group.group_id, partition] = offset.offset
        self._note_refusals("positions of group", refused)
        partitions = list(dict.fromkeys(partition for _, partition in committed))
        starts = await self._offsets(partitions, EARLIEST)
        ends = await self._offsets(partitions, LATEST)
        return rebalancing, tuple(
            GroupPosition(group_id, partition, offset, starts[partition][0], ends[partition][0])
            for (group_id, partition), offset in committed.items()
            if partition in starts and partition in ends
        )

    async def _tiers(self, of_topics: Mapping[str, Mapping[str, str]]) -> dict[TopicPartition, TierView]:
        """Return the state of topics in tiered storage, if brokers are new enough."""
        partitions = [
            partition
            for name, settings in of_topics.items()
            if settings.get("remote.storage.enable") == "true"
            for info in self._image.topics[name].partitions
            if self._is_led(partition := TopicPartition(name, info.index))
        ]
        if not partitions:
            return {}
        copied = await self._offsets(partitions, LATEST_TIERED)
        starts = await self._offsets(partitions, EARLIEST_LOCAL)
        ends = await self._offsets(partitions, LATEST)
        sizes = await self._sizes(partitions)
        return {
            each: TierView(
                copied[each][0],
                starts[each][0],
                ends[each][0],
                sizes[each],
                int(of_topics[each.topic].get("segment.bytes", "1073741824")),
            )
            for each in partitions
            if each in copied and each in starts and each in ends and each in sizes
        }

    async def _sizes(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the sizes of the leaders' logs."""
        sizes: dict[TopicPartition, int] = {}
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            if (info := self._image.partition(partition)) is not None:
                by_leader.setdefault(info.leader, []).append(partition)
        for leader, led in by_leader.items():
            for log_dir in await describe_log_dirs(self._cluster, leader, led):
                for topic in log_dir.topics:
                    for each in topic.partitions:
                        if not each.is_future_key:
                            sizes[TopicPartition(topic.name, each.partition_index)] = each.partition_size
        return sizes

    async def _tokens(self) -> tuple[TokenView, ...]:
        if not self._cluster.config.security_protocol.startswith("SASL"):
            return ()  # brokers only list tokens for authenticated clients
        try:
            tokens = await describe_tokens(self._cluster)
        except BrokerRefused as refused:
            if refused.code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED:
                return ()
            raise
        return tuple(
            TokenView(
                each.token_id, each.owner, each.issue_timestamp_ms, each.expiry_timestamp_ms, each.max_timestamp_ms
            )
            for each in tokens
        )


def _setting(of_topics: Mapping[str, Mapping[str, str]] | None, name: str) -> Iterable[tuple[str, str]]:
    """Yield (topic, value) for the topics whose setting is known."""
    return [(topic, settings[name]) for topic, settings in (of_topics or {}).items() if name in settings]


def certificate_end_ms(certificate: Mapping[str, object] | None) -> int | None:
    ends = (certificate or {}).get("notAfter")
    return int(ssl.cert_time_to_seconds(str(ends)) * 1000) if ends else None
