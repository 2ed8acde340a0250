"""Moves partitions between their states: new, online with a leader, offline, gone. Pure.

Writes are optimistic: a decision uses the context, and the write is conditional on the znode's version. Leaders change their
ISR only through the controller, so the context is almost always right. If it is not, the write is refused, and the controller
reads the state and decides again. That saves reading every partition's state before each fail-over.
"""

import logging
from collections.abc import Iterable, Sequence

from barnabas.base.errors import ErrorCode, Malformed
from barnabas.base.ids import TopicPartition
from barnabas.broker.controller import elections
from barnabas.broker.controller.elections import Outcome, Strategy
from barnabas.broker.controller.events import Failure
from barnabas.broker.controller.journal import NAMED_MAX, changes
from barnabas.broker.controller.program import ControllerState, Program, ask, read_leadership, write
from barnabas.broker.controller.requests import RequestBatch
from barnabas.broker.controller.states import PartitionState
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Create, Get, SetData, ZkCode
from barnabas.broker.zookeeper_client.znodes import LeaderAndIsr, decode_config

_log = logging.getLogger(__name__)

UNCLEAN_SETTING = "unclean.leader.election.enable"
#: New partitions that get their leaders in one turn of the event loop: some 15 ms.
TURN_PARTITIONS = 1_000

Elected = dict[TopicPartition, LeaderAndIsr | Failure]


class PartitionStateMachine:
    def __init__(self, state: ControllerState, requests: RequestBatch) -> None:
        self._state = state
        self._requests = requests

    @property
    def _epoch(self) -> int:
        return self._state.context.epoch

    def initialize(self) -> None:
        """Set the state of every partition as a new controller finds it."""
        context = self._state.context
        for partition in context.partitions():
            leadership = context.leadership.get(partition)
            if leadership is None:
                state = PartitionState.NEW
            elif context.is_online(leadership.leader, partition) and not self._is_led_by_stranger(
                partition, leadership
            ):
                state = PartitionState.ONLINE
            else:
                state = PartitionState.OFFLINE
            context.partition_states[partition] = state

    def _is_led_by_stranger(self, partition: TopicPartition, leadership: LeaderAndIsr) -> bool:
        """Whether another broker should lead because the leader is not a replica any more.

        This happens if a controller of Apache Kafka died while it replaced one reassignment by another. The controller would
        not send the next epoch to that leader.
        """
        context = self._state.context
        replicas = context.assignment(partition).replicas
        return leadership.leader not in replicas and any(
            each in replicas and context.is_online(each, partition) for each in leadership.isr
        )

    def to_new(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._state.context.move_partition(partition, PartitionState.NEW)

    def to_offline(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._state.context.move_partition(partition, PartitionState.OFFLINE)

    def to_non_existent(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._state.context.move_partition(partition, PartitionState.NON_EXISTENT)

    def bring_online(self, topic: str | None = None) -> Program[Elected]:
        """Elect a leader for every partition that has none and is not being deleted."""
        context = self._state.context
        waiting = [
            partition
            for partition in context.partitions_in(PartitionState.NEW, PartitionState.OFFLINE, topic=topic)
            if not context.is_dying(partition.topic)
        ]
        return (yield from self.to_online(waiting, Strategy.OFFLINE))

    def to_online(self, partitions: Sequence[TopicPartition], strategy: Strategy) -> Program[Elected]:
        """Elect leaders. A partition without a possible leader keeps its state; its `Failure` says why."""
        context = self._state.context
        new: list[TopicPartition] = []
        others: list[TopicPartition] = []
        for partition in partitions:
            (new if context.partition_state(partition) is PartitionState.NEW else others).append(partition)
        before = {each: context.leadership.get(each) for each in partitions}
        results = yield from self._first_leaders(new)
        results |= yield from self._elect(others, strategy)
        for partition, result in results.items():
            if isinstance(result, LeaderAndIsr):
                context.move_partition(partition, PartitionState.ONLINE)
            else:
                _log.info(
                    "[partition %s] stays %s: %s", partition, context.partition_state(partition).value, result.message
                )
        self._note(before, results, strategy)
        return results

    def _note(self, before: dict[TopicPartition, LeaderAndIsr | None], results: Elected, strategy: Strategy) -> None:
        elected = {each: result for each, result in results.items() if isinstance(result, LeaderAndIsr)}
        if elected:
            self._state.note("leaders elected", strategy=strategy.value, **changes(before, elected))
        failed = {str(each): result.message for each, result in results.items() if isinstance(result, Failure)}
        if failed:
            some = dict(list(failed.items())[:NAMED_MAX])
            self._state.note("no leader found", strategy=strategy.value, count=len(failed), reasons=some)

    # --- first leaders ------------------------------------------------------------------------------------------------

    def _first_leaders(self, partitions: Sequence[TopicPartition]) -> Program[Elected]:
        """Create the states in steps: other tasks of the event loop have a turn while ZooKeeper answers."""
        results: Elected = {}
        begun: set[str] = set()
        for at in range(0, len(partitions), TURN_PARTITIONS):
            results |= yield from self._first_leaders_of(partitions[at : at + TURN_PARTITIONS], begun)
        return results

    def _first_leaders_of(self, partitions: Sequence[TopicPartition], begun: set[str]) -> Program[Elected]:
        """The first live replica leads. All live replicas are in sync, because the logs are empty."""
        context = self._state.context
        results: Elected = {}
        wanted: dict[TopicPartition, LeaderAndIsr] = {}
        for partition in partitions:
            replicas = context.assignment(partition).replicas
            live = tuple(each for each in replicas if context.is_online(each, partition))
            if live:
                wanted[partition] = LeaderAndIsr(leader=live[0], isr=live, controller_epoch=self._epoch)
            else:
                results[partition] = _no_leader(f"none of the replicas {list(replicas)} of {partition} is alive")
        refused = yield from self._create_states(wanted, begun)
        # A refused write may be our own: its answer was lost with the connection, and the repeated write found our znode.
        found = yield from read_leadership(refused)
        for partition, leadership in wanted.items():
            if partition in refused and found.get(partition) != leadership:
                results[partition] = _no_leader(f"the state of {partition} could not be created")
                continue
            results[partition] = leadership
            context.leadership[partition] = leadership
            self._requests.add_leader_and_isr(
                leadership.isr, partition, leadership, context.assignment(partition), is_new=True
            )
        return results

    def _create_states(
        self, wanted: dict[TopicPartition, LeaderAndIsr], begun: set[str]
    ) -> Program[list[TopicPartition]]:
        """Create the znodes, parents first; return the partitions whose state could not be created.

        `begun`: topics whose parent znode exists already.
        """
        topics = [topic for topic in dict.fromkeys(each.topic for each in wanted) if topic not in begun]
        begun.update(topics)
        operations = [Create(paths.topic_partitions(topic)) for topic in topics]
        heads = len(operations)
        for partition, leadership in wanted.items():
            operations.append(Create(paths.topic_partition(partition)))
            operations.append(Create(paths.partition_state(partition), leadership.encode()))
        results = yield from write(operations)
        states = results[heads + 1 :: 2]
        return [partition for partition, result in zip(wanted, states, strict=True) if not result.ok]

    # --- elections ----------------------------------------------------------------------------------------------------

    def _elect(self, partitions: Sequence[TopicPartition], strategy: Strategy) -> Program[Elected]:
        context = self._state.context
        results: Elected = {}
        known = {each: context.leadership[each] for each in partitions if each in context.leadership}
        remaining = list(partitions)
        is_memory = True
        while remaining:
            outcomes = yield from self._decide(remaining, known, strategy, results)
            again = yield from self._write_outcomes(outcomes, results)
            if is_memory:
                # Before giving up on a leader, check whether ZooKeeper has a newer state that allows one.
                again += [each for each in remaining if each in results and isinstance(results[each], Failure)]
            found = yield from read_leadership(again)
            remaining = [each for each in again if found.get(each) != known.get(each) or each not in results]
            known = found
            is_memory = False
        return results

    def _decide(
        self,
        partitions: Sequence[TopicPartition],
        known: dict[TopicPartition, LeaderAndIsr],
        strategy: Strategy,
        results: Elected,
    ) -> Program[dict[TopicPartition, Outcome]]:
        context = self._state.context
        electable: list[TopicPartition] = []
        for partition in partitions:
            state = known.get(partition)
            if state is None:
                results[partition] = _no_leader(f"{partition} has no state in ZooKeeper")
            elif state.controller_epoch > self._epoch:
                results[partition] = _no_leader(
                    f"the state of {partition} was written by a controller of epoch {state.controller_epoch}"
                )
            else:
                electable.append(partition)
        unclean: frozenset[str] | None = frozenset()
        if strategy is Strategy.OFFLINE:
            unclean = yield from self._unclean_topics(electable, known)
        elif strategy is Strategy.OFFLINE_UNCLEAN:
            unclean = None
        outcomes: dict[TopicPartition, Outcome] = {}
        for partition in electable:
            if strategy in elections.CHOICES:
                outcome = elections.CHOICES[strategy](context, partition, known[partition])
            else:
                allowed = unclean is None or partition.topic in unclean
                outcome = elections.for_offline(context, partition, known[partition], unclean=allowed)
            if outcome.leadership is None:
                results[partition] = _no_leader(f"no replica of {partition} can lead under strategy {strategy.value}")
            else:
                outcomes[partition] = outcome
        return outcomes

    def _unclean_topics(
        self, partitions: Iterable[TopicPartition], known: dict[TopicPartition, LeaderAndIsr]
    ) -> Program[frozenset[str]]:
        """Of the topics with no live in-sync replica, return those that allow unclean elections."""
        context = self._state.context
        topics = list(
            dict.fromkeys(
                partition.topic
                for partition in partitions
                if not any(context.is_online(each, partition) for each in known[partition].isr)
            )
        )
        config_paths = [paths.config_entity(paths.TOPICS, topic) for topic in topics]
        results = yield from ask(Get(path) for path in config_paths)
        default = str(self._state.settings.unclean_leader_election_enable).lower()
        allowed = []
        for topic, path, result in zip(topics, config_paths, results, strict=True):
            try:
                settings = decode_config(path, result.data)
            except Malformed as error:
                _log.error("[controller] the topic's settings do not count, mend them with barnabas configs: %s", error)
                settings = {}
            if settings.get(UNCLEAN_SETTING, default).strip().lower() == "true":
                allowed.append(topic)
        return frozenset(allowed)

    def _write_outcomes(
        self, outcomes: dict[TopicPartition, Outcome], results: Elected
    ) -> Program[list[TopicPartition]]:
        """Write the outcomes; return the partitions whose state had changed since it was read."""
        wanted = {
            partition: outcome.leadership.by(self._epoch)
            for partition, outcome in outcomes.items()
            if outcome.leadership is not None
        }
        written = yield from write_leadership(wanted)
        context = self._state.context
        again = []
        for partition, leadership in written.items():
            if isinstance(leadership, LeaderAndIsr):
                results[partition] = context.leadership[partition] = leadership
                self._requests.add_leader_and_isr(
                    outcomes[partition].recipients,
                    partition,
                    leadership,
                    context.assignment(partition),
                    is_new=False,
                )
            elif leadership is ZkCode.BAD_VERSION:
                again.append(partition)
            else:
                results[partition] = _no_leader(f"the state of {partition} could not be written: {leadership.value}")
        return again


def write_leadership(
    wanted: dict[TopicPartition, LeaderAndIsr],
) -> Program[dict[TopicPartition, LeaderAndIsr | ZkCode]]:
    """Write states on condition of their versions. Return each state with its new version, or why it was not written."""
    results = yield from write(
        SetData(paths.partition_state(partition), leadership.encode(), leadership.partition_epoch)
        for partition, leadership in wanted.items()
    )
    written: dict[TopicPartition, LeaderAndIsr | ZkCode] = {}
    for (partition, leadership), result in zip(wanted.items(), results, strict=True):
        if result.ok and result.stat is not None:
            written[partition] = leadership.at(result.stat.version)
        else:
            written[partition] = result.code
    return written


def _no_leader(message: str) -> Failure:
    return Failure(ErrorCode.LEADER_NOT_AVAILABLE, message)
