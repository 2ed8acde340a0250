"""Replica fetchers in a storm of faults, by seed: real tasks, sessions and session caches of leaders, in virtual time.

Leaders hang, refuse, restart and lose their sessions; answers are late or lost; requests arrive after their sender gave them
up; leadership changes. At the end every follower must have its leader's records and high watermark.
"""

import asyncio
import random
import selectors
import struct

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import TopicId, TopicPartition
from barnabas.broker.replication.fetch_session_cache import CachedPartition as Wanted
from barnabas.broker.replication.fetch_session_cache import FetchKey, FetchSessionCache
from barnabas.broker.replication.fetch_steps import FetchedPartition, OffsetsAnswer
from barnabas.broker.replication.fetchers import FetcherManager
from barnabas.broker.replication.leader_endpoint import FetchAnswer, FetcherSettings
from barnabas.broker.storage.epoch_cache import LeaderEpochCache
from barnabas.client.errors import ConnectionLost
from tests.unit.broker.replication.fetch_fakes import find_divergence

ID = TopicId(b"o" * 16)
FOLLOWER = 1
LEADERS = (2, 3)
SETTINGS = FetcherSettings(broker_id=FOLLOWER, num_replica_fetchers=2)
RECORD = struct.Struct(">ii")
STORM_S = 20.0
#: Longer than the wait for a hanging connection, the wait before a new session, and a back-off.
CALM_S = 45.0
#: More calls per second than this mean that the fetcher spins.
CALLS_PER_SECOND_MAX = 1000
LEAST_IN_ONE_ANSWER = 3


class VirtualSelector(selectors.DefaultSelector):
    """Waits never take time: virtual time passes at once."""

    passed_s = 0.0

    def select(self, timeout=None):
        if timeout is None:
            raise AssertionError("everybody waits, and nothing will happen")
        self.passed_s += max(0.0, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._virtual = VirtualSelector()
        super().__init__(self._virtual)

    def time(self):
        return self._virtual.passed_s


class LoopClock:
    def monotonic_s(self):
        return asyncio.get_running_loop().time()


class Replica:
    """A log of (epoch, serial number), of a leader or of a follower."""

    log_start = tier_end = 0

    def __init__(self, chance):
        self.chance = chance
        self.records = []
        self.cache = LeaderEpochCache()
        self.high_watermark = 0

    @property
    def log_end(self):
        return len(self.records)

    @property
    def latest_epoch(self):
        return self.cache.latest_epoch

    def end_offset_for_epoch(self, epoch):
        return self.cache.end_offset_for(epoch, self.log_end)

    def append(self, epoch, serial):
        self.cache.assign(epoch, self.log_end)
        self.records.append((epoch, serial))

    def append_follower(self, data, leader_high_watermark, leader_log_start):
        for epoch, serial in RECORD.iter_unpack(data):
            self.append(epoch, serial)
        self.high_watermark = max(self.high_watermark, min(leader_high_watermark, self.log_end))

    async def truncate_to(self, offset, *, is_wanted):
        for _ in range(self.chance.randrange(3)):
            await asyncio.sleep(0)  # a thread reads the remaining records
        if not is_wanted():
            return
        assert offset >= self.high_watermark, "committed records were truncated"
        del self.records[offset:]
        self.cache.truncate_from_end(offset)

    async def truncate_fully_and_start_at(self, offset, *, is_wanted):
        raise AssertionError("nothing is ever deleted here")


class Leader:
    """A broker as its followers see it."""

    def __init__(self, chance):
        self.chance = chance
        self.leads = {}  #: partition -> (leader epoch, log)
        self.grew = asyncio.Condition()
        self.is_up = asyncio.Event()
        self.is_up.set()
        self.in_trouble_until_s = 0.0
        self.calls = {}
        self.boot()

    def boot(self):
        ids = iter(range(self.chance.randrange(1, 1_000_000), 2**31))
        slots = self.chance.choice((1, 10))
        self.sessions = FetchSessionCache(slots_max=slots, eviction_ms=1000, random_id=lambda: next(ids))
        self.boots = getattr(self, "boots", 0) + 1

    @property
    def is_in_trouble(self):
        """Refuse every request at once."""
        return asyncio.get_running_loop().time() < self.in_trouble_until_s

    def count_call(self):
        second = int(asyncio.get_running_loop().time())
        self.calls[second] = self.calls.get(second, 0) + 1
        assert self.calls[second] < CALLS_PER_SECOND_MAX, "a fetcher spins"

    async def serve(self, plan, max_wait_ms):
        boots = self.boots
        now_s = asyncio.get_running_loop().time()
        if self.is_in_trouble:
            return FetchAnswer(ErrorCode.UNKNOWN_SERVER_ERROR, 0, [], 0)
        try:
            context = self.sessions.begin(
                plan.session_id,
                plan.session_epoch,
                wanted=[
                    Wanted(
                        FetchKey(tp.topic, tp.partition),
                        e.fetch_offset,
                        1,
                        e.current_leader_epoch,
                        e.last_fetched_epoch,
                        0,
                    )
                    for tp, e in plan.to_send.items()
                ],
                forgotten=[FetchKey(tp.topic, tp.partition) for tp, _ in plan.forgotten],
                replica=(2, 1),
                uses_topic_ids=False,
                now_s=now_s,
                now_ms=int(now_s * 1000),
            )
        except Refused as refusal:
            return FetchAnswer(refusal.code, 0, [], 0)
        wanted = list(context.partitions)
        for want in wanted:
            self.note(want)
        answers, has_news = self.read(wanted)
        if wanted and not has_news:
            try:
                async with asyncio.timeout(max_wait_ms / 1000), self.grew:
                    await self.grew.wait_for(lambda: self.boots != boots or self.read(wanted)[1])
            except TimeoutError:
                pass
            answers, _ = self.read(wanted)
        if self.boots != boots:
            raise ConnectionLost("the leader went down")
        answers = [
            answer
            for want, answer in zip(wanted, answers, strict=True)
            if context.session is None
            or want.must_tell(
                error=answer.error_code,
                high_watermark=answer.high_watermark,
                log_start=answer.log_start,
                has_more=bool(answer.records),
                is_diverging=answer.diverging is not None,
            )
            or not context.incremental
        ]
        return FetchAnswer(0, context.session.id if context.session else 0, answers, 0)

    def note(self, want):
        """Return a follower's position, if its log is a beginning of this one."""
        answer = self.read_one(want)
        if not answer.error_code and answer.diverging is None:
            _, log = self.leads[TopicPartition(*want.key)]
            log.high_watermark = max(log.high_watermark, want.fetch_offset)

    def read(self, wanted):
        answers = [self.read_one(want) for want in wanted]
        return answers, any(each.error_code or each.diverging or each.records for each in answers)

    def read_one(self, want):
        tp = TopicPartition(*want.key)
        epoch, log = self.leads.get(tp, (None, None))
        if log is None:
            return FetchedPartition(tp, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if want.current_leader_epoch != epoch:
            is_old = want.current_leader_epoch < epoch
            return FetchedPartition(tp, ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH)
        try:
            diverging = find_divergence(log, fetch_offset=want.fetch_offset, last_fetched_epoch=want.last_fetched_epoch)
        except Refused as refusal:
            return FetchedPartition(tp, refusal.code)
        if diverging is not None:
            return FetchedPartition(tp, 0, log.high_watermark, 0, diverging)
        if want.fetch_offset > log.log_end:
            return FetchedPartition(tp, ErrorCode.OFFSET_OUT_OF_RANGE)
        some = log.records[want.fetch_offset : want.fetch_offset + LEAST_IN_ONE_ANSWER]
        data = b"".join(RECORD.pack(*record) for record in some)
        return FetchedPartition(tp, 0, log.high_watermark, 0, None, data)


class Wire:
    """One fetcher's endpoint: a connection that breaks, and a leader that may hang."""

    def __init__(self, leader, chance):
        self._leader = leader
        self._chance = chance
        self._lost = None
        self.is_stormy = lambda: True

    async def prepare(self):
        if self._lost is None or self._lost.done():
            self._leader.count_call()
            await asyncio.sleep(self._delay_s())
            if self.is_stormy() and self._chance.random() < 0.1:
                raise ConnectionRefusedError(111, "Connection refused")
            try:
                async with asyncio.timeout(10):
                    await self._leader.is_up.wait()
            except TimeoutError:
                raise ConnectionLost("no answer") from None
            self._lost = asyncio.get_running_loop().create_future()
        return True

    async def fetch(self, plan, *, max_wait_ms):
        return await self._ask(lambda: self._leader.serve(plan, max_wait_ms))

    async def list_offsets(self, epochs):
        async def answer():
            answers = {}
            for tp, epoch in epochs.items():
                known, log = self._leader.leads.get(tp, (None, None))
                if known != epoch:
                    answers[tp] = OffsetsAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                else:
                    answers[tp] = OffsetsAnswer(0, log.log_end, 0)
            return answers

        return await self._ask(answer)

    async def epoch_ends(self, questions):
        raise AssertionError("this leader truncates on fetch")

    async def _ask(self, serve):
        """A request that was sent is carried out, even if its sender does not wait for it any more."""
        self._leader.count_call()
        if self._lost is None:
            raise ConnectionLost("no connection")
        lost = self._lost
        if self.is_stormy() and self._chance.random() < 0.05:
            self.close()
            raise ConnectionLost("the request was lost")

        async def carry_out():
            await asyncio.sleep(self._delay_s())
            await self._leader.is_up.wait()
            answer = await serve()
            await asyncio.sleep(self._delay_s())
            return answer

        asked = asyncio.ensure_future(carry_out())
        asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        PENDING.add(asked)
        asked.add_done_callback(PENDING.discard)
        await asyncio.wait({asked, lost}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        if lost.done() or not asked.done():
            raise ConnectionLost("the connection was lost")
        if self.is_stormy() and self._chance.random() < 0.05:
            self.close()
            raise ConnectionLost("the answer was lost")
        if self.is_stormy() and self._chance.random() < 0.1:
            self.close()  # behind its answer
        return asked.result()

    def _delay_s(self):
        if self._leader.is_in_trouble:
            return 0
        return self._chance.choice((0, 0, 0.001, 0.02, 0.3 if self.is_stormy() else 0))

    def close(self):
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)
        self._lost = None


PENDING = set()


class Storm:
    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.leaders = {broker: Leader(self.chance) for broker in LEADERS}
        self.partitions = [TopicPartition("orders", number) for number in range(self.chance.choice((1, 3, 6)))]
        self.logs = {tp: Replica(self.chance) for tp in self.partitions}
        self.replicas = {tp: Replica(self.chance) for tp in self.partitions}
        self.epochs = dict.fromkeys(self.partitions, 0)
        self.led_by = {}
        self.serial = 0
        self.is_over = False

    def endpoint(self, broker):
        wire = Wire(self.leaders[broker], self.chance)
        wire.is_stormy = lambda: not self.is_over
        return wire

    async def run(self):
        async with asyncio.TaskGroup() as tasks:
            self.manager = FetcherManager(SETTINGS, tasks, LoopClock(), self.endpoint)
            loop = asyncio.get_running_loop()
            for tp in self.partitions:
                await self.elect(tp)
            while loop.time() < STORM_S:
                await asyncio.sleep(self.chance.choice((0, 0, 0.001, 0.01, 0.1, 0.4)))
                await self.chance.choice(
                    (
                        self.produce,
                        self.produce,
                        self.produce,
                        self.fail_over,
                        self.flap,
                        self.hang,
                        self.refuse,
                        self.restart,
                    )
                )()
            self.is_over = True
            for leader in self.leaders.values():
                leader.is_up.set()
            for tp in self.partitions:
                if self.manager.fetcher_of(tp) is None:
                    self.follow(tp)
            await asyncio.sleep(CALM_S)
            self.check()
            self.manager.stop()
        for each in list(PENDING):
            each.cancel()
        await asyncio.gather(*PENDING, return_exceptions=True)

    async def produce(self):
        tp = self.chance.choice(self.partitions)
        for _ in range(self.chance.choice((1, 1, 8))):
            self.serial += 1
            self.logs[tp].append(self.epochs[tp], self.serial)
        await self.wake(self.led_by[tp])

    async def wake(self, broker):
        leader = self.leaders[broker]
        async with leader.grew:
            leader.grew.notify_all()

    async def elect(self, tp):
        """The next leader has the committed records, and perhaps some of the others."""
        before = self.led_by.get(tp)
        if before is not None:
            del self.leaders[before].leads[tp]
        log = self.logs[tp]
        log_end = self.chance.randint(log.high_watermark, log.log_end)
        del log.records[log_end:]
        log.cache.truncate_from_end(log_end)
        self.epochs[tp] += 1
        log.cache.assign(self.epochs[tp], log.log_end)
        broker = self.led_by[tp] = self.chance.choice(LEADERS)

        def lead():
            self.leaders[broker].leads[tp] = (self.epochs[tp], log)

        if self.chance.random() < 0.5:
            lead()
            self.follow(tp)
        else:  # the follower learns of it first
            self.follow(tp)
            lead()
        for each in LEADERS:
            await self.wake(each)

    def follow(self, tp):
        self.manager.add(tp, self.replicas[tp], leader=self.led_by[tp], leader_epoch=self.epochs[tp], topic_id=ID)

    async def fail_over(self):
        with self.manager.together():
            for tp in self.chance.choices(self.partitions, k=self.chance.randint(1, len(self.partitions))):
                await self.elect(tp)
                await self.a_moment()

    async def flap(self):
        """Stop and start following a partition in the same epoch, by the same fetcher or another one."""
        tp = self.chance.choice(self.partitions)
        self.manager.remove([tp])
        await self.a_moment()
        self.follow(tp)

    async def a_moment(self):
        """Let other tasks run for some turns of the loop, or for none."""
        pause_s = self.chance.choice((None, 0, 0, 0.001, 0.03, 0.5))
        if pause_s is not None:
            await asyncio.sleep(pause_s)

    async def hang(self):
        leader = self.leaders[self.chance.choice(LEADERS)]
        leader.is_up.clear()
        asyncio.get_running_loop().call_later(self.chance.choice((0.01, 0.5, 3)), leader.is_up.set)

    async def refuse(self):
        leader = self.leaders[self.chance.choice(LEADERS)]
        leader.in_trouble_until_s = asyncio.get_running_loop().time() + self.chance.choice((0.1, 3))

    async def restart(self):
        broker = self.chance.choice(LEADERS)
        self.leaders[broker].boot()
        await self.wake(broker)

    def check(self):
        for tp, log in self.logs.items():
            replica = self.replicas[tp]
            assert self.manager.fetcher_of(tp) is not None, f"{tp} is not followed"
            assert replica.records == log.records, f"{tp} has {replica.log_end} records, its leader {log.log_end}"
            assert log.high_watermark == log.log_end, f"{tp}: its leader does not know how far it is"
            assert replica.high_watermark == log.high_watermark, f"{tp}: it did not get the high watermark"


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_followers_have_all_records_after_the_storm(first):
    for seed in range(first, first + 10):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            try:
                runner.run(Storm(seed).run())
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
