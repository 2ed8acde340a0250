"""The coordinators' runtime: records first, replay alone changes state, answers wait for the commit."""

import asyncio
from collections.abc import Hashable

import pytest

from barnabas.base.errors import BrokenInvariant, ErrorCode, NothingWritten, Refused
from barnabas.broker.runtime.coordinator import CoordinatorRuntime
from barnabas.broker.runtime.machine import (
    KeyValue,
    Marker,
    ReplayedRecord,
    Respond,
    Result,
    SendToDriver,
    SetTimer,
    Ticket,
)
from tests.manual_time import ManualClock, ManualTimers
from tests.memory_log import MemoryLog


class Register:
    """A machine that keeps the last value of each key."""

    def __init__(self, partition: int) -> None:
        self.values: dict[bytes, bytes | None] = {}
        self.waiting: list[Ticket] = []
        self.fired: list[Hashable] = []
        self.markers: list[Marker] = []

    def put(self, key: bytes, value: bytes) -> Result[str]:
        return Result(records=[KeyValue(key, value)], response="stored")

    def replay(self, record: ReplayedRecord) -> None:
        self.values[record.record.key] = record.record.value

    def replay_marker(self, marker: Marker, offset: int) -> None:
        self.markers.append(marker)

    def loaded(self, now_ms: int) -> Result[None]:
        return Result(effects=[SetTimer("after load", 10)])

    def timer_fired(self, key: Hashable, now_ms: int) -> Result[None]:
        self.fired.append(key)
        return Result()

    def unloaded(self) -> list[Ticket]:
        return self.waiting


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.log = MemoryLog(commits_at_once=False)
        self.tasks: list[asyncio.Task[None]] = []
        self.messages: list[object] = []
        self.load_times_ms: list[float] = []
        loop = asyncio.get_running_loop()
        self.runtime = CoordinatorRuntime(
            "registers",
            self.log,
            make_machine=Register,
            now_ms=self.clock.now_ms,
            timers=self.timers,
            spawn=lambda work, name: self.tasks.append(loop.create_task(work, name=name)),
            on_effect=lambda partition, message: self.messages.append(message),
            answer_timeout_ms=lambda: 5000,
            on_loaded=self.load_times_ms.append,
        )

    async def lead(self, epoch: int = 1) -> Register:
        self.runtime.elected(0, epoch)
        await asyncio.gather(*self.tasks)
        return self.runtime.active[0]


async def test_answer_waits_for_the_commit_but_state_does_not() -> None:
    world = World()
    machine = await world.lead()
    write = asyncio.ensure_future(world.runtime.write(0, lambda m, t: m.put(b"a", b"1")))
    await asyncio.sleep(0)
    assert machine.values == {b"a": b"1"}
    assert not write.done()
    world.log.settle_first()
    assert await write == "stored"


async def test_read_waits_for_the_commit_of_the_state_that_it_saw() -> None:
    world = World()
    await world.lead()
    write = asyncio.ensure_future(world.runtime.write(0, lambda m, t: m.put(b"a", b"1")))
    await asyncio.sleep(0)
    read = asyncio.ensure_future(world.runtime.read(0, lambda m: m.values[b"a"]))
    await asyncio.sleep(0)
    assert not read.done()
    world.log.settle_first()
    assert await read == b"1"
    await write
    assert await world.runtime.read(0, lambda m: m.values[b"a"]) == b"1"


async def test_next_step_runs_after_the_append_and_undo_runs_if_it_is_refused() -> None:
    world = World()
    machine = await world.lead()

    def operation(machine: Register, ticket: Ticket) -> Result[str]:
        return Result(
            records=[KeyValue(b"a", b"1")],
            effects=[SetTimer("written", 10)],
            then=lambda: machine.put(b"b", machine.values[b"a"] or b""),
            if_refused=lambda: Result(effects=[SetTimer("taken back", 10)]),
        )

    world.log.refuses_with = ErrorCode.NOT_ENOUGH_REPLICAS
    with pytest.raises(Refused):
        await world.runtime.write(0, operation)
    world.timers.advance_ms(20)
    assert machine.fired == ["after load", "taken back"]
    world.log.refuses_with = None
    world.log.commits_at_once = True
    assert await world.runtime.write(0, operation) == "stored"
    assert machine.values == {b"a": b"1", b"b": b"1"}
    world.timers.advance_ms(20)
    assert machine.fired[2:] == ["written"]


async def test_refused_append_changes_nothing_and_gets_a_coordinators_error() -> None:
    world = World()
    machine = await world.lead()
    world.log.refuses_with = ErrorCode.NOT_ENOUGH_REPLICAS
    with pytest.raises(Refused) as refused:
        await world.runtime.write(0, lambda m, t: m.put(b"a", b"1"))
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert machine.values == {}


async def test_failed_commit_reaches_the_caller() -> None:
    world = World()
    await world.lead()
    write = asyncio.ensure_future(world.runtime.write(0, lambda m, t: m.put(b"a", b"1")))
    await asyncio.sleep(0)
    world.log.settle_first(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    with pytest.raises(Refused) as refused:
        await write
    assert refused.value.code is ErrorCode.NOT_COORDINATOR


async def test_kept_request_is_answered_by_a_later_one() -> None:
    world = World()
    await world.lead()
    kept: list[Ticket] = []

    def keep(machine: Register, ticket: Ticket) -> Result[str]:
        kept.append(ticket)
        return Result()

    first = asyncio.ensure_future(world.runtime.write(0, keep))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(
        world.runtime.write(
            0,
            lambda m, t: Result(
                records=[KeyValue(b"a", b"1")],
                response="second",
                effects=[Respond(kept[0], "first"), SendToDriver("markers")],
            ),
        )
    )
    await asyncio.sleep(0)
    assert not first.done() and world.messages == []
    world.log.settle_first()
    assert (await first, await second) == ("first", "second")
    assert world.messages == ["markers"]


async def test_new_leader_replays_to_the_same_state() -> None:
    world = World()
    machine = await world.lead()
    write = asyncio.ensure_future(world.runtime.write(0, lambda m, t: m.put(b"a", b"1")))
    await asyncio.sleep(0)
    world.log.settle_first()
    await write
    world.runtime.resigned(0)
    with pytest.raises(Refused) as refused:
        await world.runtime.read(0, lambda m: m.values)
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    assert (await world.lead(epoch=2)).values == machine.values


async def test_coordinator_that_missed_an_epoch_loads_again() -> None:
    """Another broker was coordinator in between and has fenced the markers of decisions made here: they are sent again."""

    world = World()
    machine = await world.lead()
    assert await world.lead(epoch=2) is machine, "in the next epoch no other broker was coordinator"
    again = await world.lead(epoch=4)
    assert again is not machine
    world.timers.advance_ms(10)
    assert (machine.fired, again.fired) == ([], ["after load"])


async def test_loading_shard_answers_coordinator_load_in_progress() -> None:
    world = World()
    world.log.entries[0] = [ReplayedRecord(KeyValue(b"a", b"1"), 0, 0)]
    world.runtime.elected(0, 1)
    with pytest.raises(Refused) as refused:
        await world.runtime.read(0, lambda m: m.values)
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await asyncio.gather(*world.tasks)
    assert await world.runtime.read(0, lambda m: m.values) == {b"a": b"1"}


async def test_waiting_requests_get_not_coordinator_when_leadership_ends() -> None:
    world = World()
    machine = await world.lead()

    def keep(m: Register, ticket: Ticket) -> Result[str]:
        m.waiting.append(ticket)
        return Result()

    waiting = asyncio.ensure_future(world.runtime.write(0, keep))
    await asyncio.sleep(0)
    world.runtime.resigned(0)
    with pytest.raises(Refused) as refused:
        await waiting
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    world.timers.advance_ms(1000)
    assert machine.fired == []


async def test_timer_reaches_the_machine() -> None:
    world = World()
    machine = await world.lead()
    world.timers.advance_ms(10)
    assert machine.fired == ["after load"]


async def test_commit_that_comes_at_once_is_answered_at_once() -> None:
    world = World()
    machine = await world.lead()
    world.log.commits_at_once = True
    answer = world.runtime.begin(0, lambda m, t: m.put(b"a", b"1"))
    assert answer.done() and answer.result() == "stored"
    assert machine.values == {b"a": b"1"}


async def test_write_that_is_not_confirmed_in_time_is_refused_and_stays_unseen_until_it_is_committed() -> None:
    world = World()
    await world.lead()
    write = world.runtime.begin(0, lambda m, t: m.put(b"a", b"1"))
    world.timers.advance_ms(4999)
    assert not write.done()
    world.timers.advance_ms(1)
    with pytest.raises(Refused) as refused:
        await write
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    read = asyncio.ensure_future(world.runtime.read(0, lambda m: m.values[b"a"]))
    await asyncio.sleep(0)
    assert not read.done()
    world.log.settle_first()
    assert await read == b"1"


async def test_read_that_waits_too_long_is_refused() -> None:
    world = World()
    await world.lead()
    write = world.runtime.begin(0, lambda m, t: m.put(b"a", b"1"))
    world.timers.advance_ms(3000)
    read = asyncio.ensure_future(world.runtime.read(0, lambda m: m.values[b"a"]))
    await asyncio.sleep(0)
    world.timers.advance_ms(5000)
    for late in (write, read):
        with pytest.raises(Refused) as refused:
            await late
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_postponed_timer_fires_once_at_its_last_deadline() -> None:
    world = World()
    machine = await world.lead()
    set_timer = SetTimer("session", 100)
    for _ in range(5):
        world.runtime.submit(0, lambda m: Result(effects=[set_timer]))
        world.timers.advance_ms(60)
    assert "session" not in machine.fired
    world.timers.advance_ms(39)
    assert "session" not in machine.fired
    world.timers.advance_ms(1)
    assert machine.fired.count("session") == 1
    world.timers.advance_ms(1000)
    assert machine.fired.count("session") == 1


async def test_timer_that_is_brought_forward_fires_early() -> None:
    world = World()
    machine = await world.lead()
    for delay_ms in (1000, 50):
        world.runtime.submit(0, lambda m, d=delay_ms: Result(effects=[SetTimer("session", d)]))  # type: ignore[misc]
    world.timers.advance_ms(50)
    assert machine.fired.count("session") == 1
    world.timers.advance_ms(2000)
    assert machine.fired.count("session") == 1


async def test_load_time_is_reported() -> None:
    world = World()
    await world.lead()
    assert world.load_times_ms == [0.0]


def gather(world: World, key: bytes, value: bytes = b"1") -> "asyncio.Future[str]":
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def reply(response: str | None, failure: Refused | None) -> None:
        if failure is not None:
            answer.set_exception(failure)
        else:
            assert response is not None
            answer.set_result(response)

    world.runtime.gather(0, lambda m, t: m.put(key, value), reply)
    return answer


async def test_operations_of_one_turn_share_an_append() -> None:
    world = World()
    machine = await world.lead()
    world.log.commits_at_once = True
    answers = [gather(world, b"%d" % number) for number in range(5)]
    assert world.log.appends == []
    assert await asyncio.gather(*answers) == ["stored"] * 5
    assert world.log.appends == [5]
    assert len(machine.values) == 5


async def test_operation_after_a_gathered_one_sees_its_records() -> None:
    world = World()
    await world.lead()
    world.log.commits_at_once = True
    gathered = gather(world, b"a")
    assert await world.runtime.read(0, lambda m: m.values[b"a"]) == b"1"
    assert await gathered == "stored"
    gathered = gather(world, b"a", b"2")
    await world.runtime.begin(0, lambda m, t: m.put(b"b", m.values[b"a"] or b""))
    assert await gathered == "stored"
    assert [record.value for record in world.log.records] == [b"1", b"2", b"2"]


async def test_refused_append_fails_all_gathered_operations() -> None:
    world = World()
    machine = await world.lead()
    world.log.refuses_with = ErrorCode.NOT_ENOUGH_REPLICAS
    for answer in [gather(world, b"a"), gather(world, b"b")]:
        with pytest.raises(Refused) as refused:
            await answer
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert machine.values == {}


async def test_gathered_operations_get_not_coordinator_when_leadership_ends() -> None:
    world = World()
    await world.lead()
    answer = gather(world, b"a")
    world.runtime.resigned(0)
    with pytest.raises(Refused) as refused:
        await answer
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    assert world.log.records == []


async def test_gathering_is_bounded() -> None:
    world = World()
    await world.lead()
    world.log.commits_at_once = True
    await asyncio.gather(*[gather(world, b"k", bytes(40_000)) for _ in range(8)])
    assert world.log.appends == [3, 3, 2]
    assert await gather(world, b"k", bytes(500_000)) == "stored", "a large operation has its own append"


def broken(machine: Register, ticket: Ticket) -> Result[str]:
    raise BrokenInvariant("a state that cannot be")


async def test_bug_in_an_operation_writes_nothing_and_does_not_stop_the_broker() -> None:
    world = World()
    await world.lead()
    with pytest.raises(NothingWritten):
        world.runtime.begin(0, broken)
    with pytest.raises(NothingWritten):
        world.runtime.gather(0, broken, lambda answer, failure: None)
    world.runtime.submit(0, lambda machine: broken(machine, Ticket()))  # type: ignore[arg-type,return-value]
    assert world.log.records == []


async def test_bug_in_the_replay_of_what_was_written_stops_the_broker() -> None:
    world = World()
    machine = await world.lead()
    machine.replay = lambda record: {}["x"]  # type: ignore[method-assign]
    with pytest.raises(BrokenInvariant):
        world.runtime.begin(0, lambda m, t: m.put(b"a", b"1"))


async def test_failed_timer_does_no_harm_and_fires_again() -> None:
    world = World()
    machine = await world.lead()
    fired: list[Hashable] = []

    def fails_once(key: Hashable, now_ms: int) -> Result[None]:
        fired.append(key)
        if len(fired) == 1:
            raise BrokenInvariant("a member that is not there")
        return Result()

    machine.timer_fired = fails_once  # type: ignore[method-assign]
    world.timers.advance_ms(10)
    world.timers.advance_ms(60_000)
    assert fired == ["after load", "after load"]
