"""`barnabas reassign-partitions`: kafka-reassign-partitions.sh."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.cli import _reassign_plan as plan
from barnabas.cli import _throttles
from barnabas.cli._command import UsageError
from barnabas.cli._json_files import read_json
from barnabas.cli._output import say, say_json
from barnabas.cli._parsing import commas, parse_number
from barnabas.cli._reassign_plan import Assignment, Replica
from barnabas.cli.tool import CONNECTION, JSON, Option, Tool
from barnabas.client.admin import configs as config_admin
from barnabas.client.admin import partitions as admin
from barnabas.client.admin.partitions import Reassignment
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import check

_EXISTING: Final = (
    "Cannot execute because there is an existing partition assignment.  Use --additional to override this and create a "
    "new partition assignment in addition to the existing one. The --additional flag can also be used to change the "
    "throttle by resubmitting the current reassignment."
)
_MUST_VERIFY: Final = (
    "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle is removed."
)
#: Pause between tries to move a replica to a log directory of a broker that does not have the replica yet.
_MOVE_RETRY_S: Final = 0.1


def _brokers(text: str) -> list[int]:
    brokers = [parse_number(each, what="--broker-list") for each in text.split(",")]
    if len(set(brokers)) < len(brokers):
        raise UsageError(f"Broker list contains duplicate entries: {text}")
    return brokers


def _topics(path: str) -> list[str]:
    return plan.parse_topics(read_json(path, option="--topics-to-move-json-file"))


def _assignment(path: str) -> Assignment:
    return plan.parse_assignment(read_json(path, option="--reassignment-json-file"))


TOOL = Tool(
    kafka="kafka-reassign-partitions.sh",
    options=(
        *CONNECTION,
        Option(
            "--reassignment-json-file",
            '{"partitions": [{"topic": "foo", "partition": 1, "replicas": [1,2,3], "log_dirs": […]}], "version": 1}',
            _assignment,
            metavar="FILE",
        ),
        Option("--topics-to-move-json-file", '{"topics": [{"topic": "foo"}], "version": 1}', _topics, metavar="FILE"),
        Option("--broker-list", "The brokers to move to.", _brokers, metavar="0,1,2"),
        Option("--disable-rack-aware", "Ignore racks.", bool),
        Option("--throttle", "Bytes/s between brokers.", int, default=-1),
        Option("--replica-alter-log-dirs-throttle", "Bytes/s between directories of a broker.", int, default=-1),
        Option(
            "--timeout", "How long to wait for moves to begin.", int, metavar="MS", default=10_000, name="timeout_ms"
        ),
        Option("--additional", "Add to the reassignments in progress.", bool),
        Option("--preserve-throttles", "Leave throttles alone.", bool),
        JSON,
    ),
    examples=(
        "barnabas reassign-partitions --generate --topics-to-move-json-file topics.json --broker-list 1,2,3",
        "barnabas reassign-partitions --execute --reassignment-json-file plan.json",
        "barnabas reassign-partitions --verify --reassignment-json-file plan.json",
    ),
)


# -- generate, list -----------------------------------------------------------------------------------------------------


async def _current(cluster: AsyncClient, topics: Sequence[str]) -> dict[TopicPartition, list[int]]:
    found = await cluster.topics(topics)
    for topic in topics:
        if topic not in found or found[topic].error is not ErrorCode.NONE:
            raise UsageError(f"Topic {topic} not found.")
    return {
        TopicPartition(topic, part.index): list(part.replicas) for topic in topics for part in found[topic].partitions
    }


@TOOL.action(
    "--generate", "Propose a reassignment; change nothing.", needs=("--topics-to-move-json-file", "--broker-list")
)
async def _generate(
    cluster: AsyncClient,
    topics_to_move_json_file: list[str],
    broker_list: list[int],
    disable_rack_aware: bool,
    json: bool,
) -> None:
    current = await _current(cluster, topics_to_move_json_file)
    racks = {
        broker_id: None if disable_rack_aware else broker.rack
        for broker_id, broker in (await cluster.brokers()).items()
        if broker_id in broker_list
    }
    proposed = plan.propose(current, racks, random.Random())
    if json:
        say(plan.to_json(proposed))
        return
    say(f"Current partition replica assignment\n{plan.to_json(current)}\n")
    say(f"Proposed partition reassignment configuration\n{plan.to_json(proposed)}")


@TOOL.action("--list", "List reassignments in progress.")
async def _list(cluster: AsyncClient, json: bool) -> None:
    ongoing = await admin.list_reassignments(cluster)
    if json:
        say_json(
            [
                {
                    "topic": where.topic,
                    "partition": where.partition,
                    "replicas": list(moving.replicas),
                    "adding": list(moving.adding),
                    "removing": list(moving.removing),
                }
                for where, moving in sorted(ongoing.items())
            ]
        )
        return
    if not ongoing:
        say("No partition reassignments found.")
        return
    say("Current partition reassignments:")
    for where, moving in sorted(ongoing.items()):
        adding = f" adding: {commas(moving.adding)}." if moving.adding else ""
        removing = f" removing: {commas(moving.removing)}." if moving.removing else ""
        say(f"{where}: replicas: {commas(moving.replicas)}.{adding}{removing}")


# -- execute ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Throttles:
    """Bytes per second, between brokers and between the directories of one; negative: no limit."""

    throttle: int
    replica_alter_log_dirs_throttle: int


@TOOL.action("--execute", "Start a reassignment.", needs=("--reassignment-json-file",))
async def _execute(
    cluster: AsyncClient, reassignment_json_file: Assignment, throttles: Throttles, additional: bool, timeout_ms: int
) -> None:
    target = reassignment_json_file
    ongoing = await admin.list_reassignments(cluster)
    if ongoing and not additional:
        raise UsageError(_EXISTING)
    alive = await cluster.brokers()
    unknown = sorted({broker for replicas in target.partitions.values() for broker in replicas} - alive.keys())
    if unknown:
        raise UsageError(f"Unknown broker id {unknown[0]}")
    everything = await _current(cluster, sorted({where.topic for where in target.partitions}))
    missing = [where for where in target.partitions if where not in everything]
    if missing:
        raise UsageError(f"Unable to find partition: {commas(missing)}")
    current = {where: everything[where] for where in target.partitions}
    say(f"Current partition replica assignment\n\n{plan.to_json(current)}\n")
    say("Save this to use as the --reassignment-json-file option during rollback")
    await _set_throttles(cluster, target, ongoing, current, throttles)
    outcome = await admin.alter_reassignments(cluster, target.partitions)
    failed = {where: (code, text) for where, (code, text) in outcome.items() if code is not ErrorCode.NONE}
    if failed:
        lines = "\n".join(f"{where}: {text or code.name}" for where, (code, text) in sorted(failed.items()))
        raise UsageError(f"Error reassigning partition(s):\n{lines}")
    plural = "" if len(target.partitions) == 1 else "s"
    say(f"Successfully started partition reassignment{plural} for {commas(sorted(target.partitions))}")
    if target.log_dirs:
        await _move(cluster, target.log_dirs, timeout_ms)


async def _set_throttles(
    cluster: AsyncClient,
    target: Assignment,
    ongoing: Mapping[TopicPartition, Reassignment],
    current: Mapping[TopicPartition, Sequence[int]],
    throttles: Throttles,
) -> None:
    between_brokers, between_dirs = throttles.throttle, throttles.replica_alter_log_dirs_throttle
    if between_brokers < 0 and between_dirs < 0:
        return
    say(_MUST_VERIFY)
    if between_brokers >= 0:
        moving = plan.moves(ongoing, target.partitions, current)
        await _throttles.limit_moves(cluster, moving, between_brokers)
        say(f"The inter-broker throttle limit was set to {between_brokers} B/s")
    if between_dirs >= 0:
        for broker in sorted({replica.broker for replica in target.log_dirs}):
            await config_admin.alter_configs(
                cluster,
                ConfigResourceType.BROKER,
                str(broker),
                {_throttles.DIR_RATE: (AlterOperation.SET, str(between_dirs))},
            )
        say(f"The replica-alter-dir throttle limit was set to {between_dirs} B/s")


async def _move(cluster: AsyncClient, moves: Mapping[Replica, str], timeout_ms: int) -> None:
    """Move replicas between log directories. A replica that is new on its broker can move only once it exists: try again."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_ms / 1000
    pending = dict(moves)
    while True:
        for replica in sorted(await _start_moves(cluster, pending)):
            say(
                f"Successfully started moving log directory to {pending.pop(replica)} for replica "
                f"{replica.topic}-{replica.partition} with broker {replica.broker} "
            )
        if not pending:
            return
        if loop.time() >= deadline_s:
            plural = "" if len(pending) == 1 else "s"
            raise UsageError(
                f"Timed out before log directory move{plural} could be started for: {commas(sorted(pending))}"
            )
        await asyncio.sleep(_MOVE_RETRY_S)


async def _start_moves(cluster: AsyncClient, pending: Mapping[Replica, str]) -> list[Replica]:
    started: list[Replica] = []
    for broker in sorted({replica.broker for replica in pending}):
        wanted = {
            TopicPartition(replica.topic, replica.partition): log_dir
            for replica, log_dir in pending.items()
            if replica.broker == broker
        }
        for where, code in (await admin.alter_replica_log_dirs(cluster, broker, wanted)).items():
            if code is ErrorCode.NONE:
                started.append(Replica(broker, *where))
            elif code is not ErrorCode.REPLICA_NOT_AVAILABLE:
                check(code, f"Failed to alter dir for {Replica(broker, *where)}")
    return started


# -- verify, cancel -----------------------------------------------------------------------------------------------------


@TOOL.action("--verify", "Show the progress; when all is done, remove throttles.", needs=("--reassignment-json-file",))
async def _verify(
    cluster: AsyncClient, reassignment_json_file: Assignment, preserve_throttles: bool, json: bool
) -> None:
    target = reassignment_json_file
    ongoing = await admin.list_reassignments(cluster)
    known = await cluster.topics(sorted({where.topic for where in target.partitions}))
    states: dict[TopicPartition, str] = {}
    for where, wanted in sorted(target.partitions.items()):
        info = known.get(where.topic)
        parts = {part.index: part for part in info.partitions} if info is not None else {}
        now = list(parts[where.partition].replicas) if where.partition in parts else []
        if where in ongoing:
            states[where] = f"Reassignment of partition {where} is still in progress."
        elif now == wanted:
            states[where] = f"Reassignment of partition {where} is completed."
        else:
            states[where] = (
                f"There is no active reassignment of partition {where}, but replica set is {commas(now)} "
                f"rather than {commas(wanted)}."
            )
    moves = await _move_states(cluster, target.log_dirs)
    complete = all(text.endswith("is completed.") for text in states.values()) and all(
        move.current == move.target for move in moves.values()
    )
    if json:
        say_json({"complete": complete, "partitions": {str(where): text for where, text in states.items()}})
    else:
        say("Status of partition reassignment:")
        for text in states.values():
            say(text)
        say("\n".join(_move_text(replica, move) for replica, move in sorted(moves.items())))
    moving = any(move.future is not None for move in moves.values())
    if not ongoing and not moving and not preserve_throttles:
        await _clear_throttles(cluster, target, quiet=json)


@dataclass(frozen=True, slots=True)
class _MoveState:
    target: str
    #: None: the broker has no such replica in a working directory.
    current: str | None
    future: str | None = None


async def _move_states(cluster: AsyncClient, targets: Mapping[Replica, str]) -> dict[Replica, _MoveState]:
    states: dict[Replica, _MoveState] = {}
    for broker in sorted({replica.broker for replica in targets}):
        mine = {replica: log_dir for replica, log_dir in targets.items() if replica.broker == broker}
        found = await admin.describe_log_dirs(
            cluster, broker, [TopicPartition(replica.topic, replica.partition) for replica in mine]
        )
        for replica, log_dir in mine.items():
            places = {
                part.is_future_key: result.log_dir
                for result in found
                for topic in result.topics
                if topic.name == replica.topic
                for part in topic.partitions
                if part.partition_index == replica.partition
            }
            states[replica] = _MoveState(log_dir, places.get(False), places.get(True))
    return states


def _move_text(replica: Replica, move: _MoveState) -> str:
    partition = f"{replica.topic}-{replica.partition}"
    if move.current is None:
        return (
            f"Partition {partition} is not found in any live log dir on broker {replica.broker}. "
            "There is likely an offline log directory on the broker."
        )
    if move.future is None and move.current == move.target:
        return f"Reassignment of replica {replica} completed successfully."
    if move.future is None:
        return (
            f"Partition {partition} on broker {replica.broker} is not being moved from log dir {move.current} "
            f"to {move.target}."
        )
    if move.future == move.target:
        return f"Reassignment of replica {replica} is still in progress."
    return (
        f"Partition {partition} on broker {replica.broker} is being moved to log dir {move.future} "
        f"instead of {move.target}."
    )


async def _clear_throttles(cluster: AsyncClient, target: Assignment, *, quiet: bool = False) -> None:
    """Clear the throttles of all brokers, because the brokers that took part are no longer known."""
    alive = await cluster.brokers()
    brokers = sorted(alive.keys() | {broker for replicas in target.partitions.values() for broker in replicas})
    topics = sorted({where.topic for where in target.partitions})
    if not quiet:
        say(f"Clearing broker-level throttles on broker{'' if len(brokers) == 1 else 's'} {commas(brokers)}")
    await _throttles.clear_brokers(cluster, [broker for broker in brokers if broker in alive])
    if not quiet:
        say(f"Clearing topic-level throttles on topic{'' if len(topics) == 1 else 's'} {commas(topics)}")
    await _throttles.clear_topics(cluster, topics)


@TOOL.action("--cancel", "Cancel a reassignment.", needs=("--reassignment-json-file",))
async def _cancel(
    cluster: AsyncClient, reassignment_json_file: Assignment, preserve_throttles: bool, timeout_ms: int
) -> None:
    target = reassignment_json_file
    ongoing = await admin.list_reassignments(cluster, target.partitions)
    active = sorted(where for where, moving in ongoing.items() if moving.adding or moving.removing)
    if active:
        outcome = await admin.alter_reassignments(cluster, dict.fromkeys(active))
        failed = {where: (code, text) for where, (code, text) in outcome.items() if code is not ErrorCode.NONE}
        if failed:
            lines = "\n".join(f"{where}: {text or code.name}" for where, (code, text) in sorted(failed.items()))
            plural = "" if len(failed) == 1 else "s"
            raise UsageError(f"Error cancelling partition reassignment{plural} for:\n{lines}")
        plural = "" if len(active) == 1 else "s"
        say(f"Successfully cancelled partition reassignment{plural} for: {commas(active)}")
    else:
        say("None of the specified partition reassignments are active.")
    states = await _move_states(cluster, target.log_dirs)
    back = {
        replica: state.current
        for replica, state in states.items()
        if state.future is not None and state.current is not None
    }
    if back:
        await _move(cluster, back, timeout_ms)
    else:
        say("None of the specified partition moves are active.")
    if not preserve_throttles:
        await _clear_throttles(cluster, target)
