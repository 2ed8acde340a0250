"""Moves partitions between their states: new, online with a leader, offline, gone. Pure.

Writes are optimistic: a decision is made on what the context remembers, and the write is conditional on the znode's
version. Leaders change their ISR only through the controller, so the memory is right but for the rarest cases; in
those the write is refused, the state is read again, and the decision made again. That saves reading every
partition's state before each fail-over.
"""

import logging
from collections.abc import Iterable, Sequence

from barnabas.base.errors import ErrorCode, Malformed
from barnabas.base.ids import TopicPartition
from barnabas.broker.controller import elections
from barnabas.broker.controller.effects import Failure
from barnabas.broker.controller.elections import Outcome, Strategy
from barnabas.broker.controller.journal import NAMED_MAX, changes
from barnabas.broker.controller.program import ControllerState, Program, ask, read_leadership, write
from barnabas.broker.controller.requests import RequestBatch
from barnabas.broker.controller.states import PartitionState
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Create, Get, SetData, ZkCode
from barnabas.broker.zookeeper_client.znodes import LeaderAndIsr, decode_config

_log = logging.getLogger(__name__)

UNCLEAN_SETTING = "unclean.leader.election.enable"
#: New partitions that get their leaders in one turn of the loop: some 15 ms.
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
        """The state of every partition as a new controller finds it."""
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
        """Whether another should lead, because the leader is not a replica any more: a controller of Kafka's died while it
        replaced one reassignment by another. Nobody would tell that leader of the next epoch."""
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
        """A leader for every partition that has none and whose topic is to stay."""
        context = self._state.context
        waiting = [
            partition
            for partition in context.partitions_in(PartitionState.NEW, PartitionState.OFFLINE, topic=topic)
            if not context.is_dying(partition.topic)
        ]
        return (yield from self.to_online(waiting, Strategy.OFFLINE))

    def to_online(self, partitions: Sequence[TopicPartition], strategy: Strategy) -> Program[Elected]:
        """Elects leaders. Those that cannot have one keep their state, and say why."""
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
                _log.info("%s stays %s: %s", partition, context.partition_state(partition).value, result.message)
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
        """Some at a time: whoever waits for the loop has a turn while ZooKeeper answers."""
        results: Elected = {}
        begun: set[str] = set()
        for at in range(0, len(partitions), TURN_PARTITIONS):
            results |= yield from self._first_leaders_of(partitions[at : at + TURN_PARTITIONS], begun)
        return results

    def _first_leaders_of(self, partitions: Sequence[TopicPartition], begun: set[str]) -> Program[Elected]:
        """The first live replica leads, all live ones are in sync: there is nothing to be behind of."""
        context = self._state.context
        results: Elected = {}
        wanted: dict[TopicPartition, LeaderAndIsr] = {}
        for partition in partitions:
            replicas = context.assignment(partition).replicas
            live = tuple(each for each in replicas if context.is_online(each, partition))
            if live:
                wanted[partition] = LeaderAndIsr(leader=live[0], isr=live, controller_epoch=self._epoch)
            else:
                results[partition] = _nobody(f"none of the replicas {list(replicas)} of {partition} is alive")
        refused = yield from self._create_states(wanted, begun)
        # Refused but just as we meant it: our own write, whose answer a lost connection took along.
        found = yield from read_leadership(refused)
        for partition, leadership in wanted.items():
            if partition in refused and found.get(partition) != leadership:
                results[partition] = _nobody(f"the state of {partition} could not be created")
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
        """Makes the znodes, parents first; answers with those that could not be made. `begun`: topics that have the first."""
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
                # Before giving up on a leader, check whether ZooKeeper has a newer state with one.
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
                results[partition] = _nobody(f"{partition} has no state in ZooKeeper")
            elif state.controller_epoch > self._epoch:
                results[partition] = _nobody(
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
                results[partition] = _nobody(f"no replica of {partition} can lead under strategy {strategy.value}")
            else:
                outcomes[partition] = outcome
        return outcomes

    def _unclean_topics(
        self, partitions: Iterable[TopicPartition], known: dict[TopicPartition, LeaderAndIsr]
    ) -> Program[frozenset[str]]:
        """Of the topics with no live in-sync replica, those that rather lose records than wait."""
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
                _log.error("%s", error)  # what cannot be read sets nothing
                settings = {}
            if settings.get(UNCLEAN_SETTING, default).strip().lower() == "true":
                allowed.append(topic)
        return frozenset(allowed)

    def _write_outcomes(
        self, outcomes: dict[TopicPartition, Outcome], results: Elected
    ) -> Program[list[TopicPartition]]:
        """Answers with the partitions whose state had changed meanwhile."""
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
                results[partition] = _nobody(f"the state of {partition} could not be written: {leadership.value}")
        return again


def write_leadership(
    wanted: dict[TopicPartition, LeaderAndIsr],
) -> Program[dict[TopicPartition, LeaderAndIsr | ZkCode]]:
    """Writes states on condition of their versions: each with its new version, or why not."""
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


def _nobody(message: str) -> Failure:
    return Failure(ErrorCode.LEADER_NOT_AVAILABLE, message)
