"""The stage for stories about one partition: real machines, logs that are lists, and a controller that the story plays.

A story is a text file of commands, each followed by `----` and its effects. `HELP` lists the commands.
Records are letters; `b3` is record b, written in leader epoch 3.
"""

from dataclasses import dataclass, field

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import ZERO_TOPIC_ID, TopicPartition
from barnabas.broker.replication.control import Verdict, decide_leader_and_isr, is_controller_epoch_stale
from barnabas.broker.replication.fetch_state import Phase
from barnabas.broker.replication.fetch_steps import (
    Append,
    AskEpochEnds,
    AskOffsets,
    EpochAnswer,
    FetchedPartition,
    GiveUp,
    OffsetsAnswer,
    SendFetch,
    Truncate,
    TruncateFully,
    TruncateTo,
)
from barnabas.broker.replication.fetcher_machine import FetcherMachine
from barnabas.broker.replication.machine import PartitionMachine
from barnabas.broker.replication.read_replica import read_candidates, select_by_rack
from barnabas.broker.replication.state import PartitionLeadership, Role
from barnabas.broker.storage.epoch_cache import LeaderEpochCache
from tests.unit.broker.replication.fetch_fakes import find_divergence

HELP = """
replicas 1 2 3 [min-isr=N] [isr=1,2] [leader=N]   a new partition; the first replica leads it
elect N [isr=1,2] [deaf=3,4]                      the controller elects N and tells every live broker but the deaf
leader-and-isr N leader=M epoch=E controller=C    a request of some controller reaches broker N alone
produce N a b [acks=1]                            a client writes to broker N
fetch N [times=K]                                 follower N fetches from the broker that it believes to lead
late-fetch N offset=O life=L                      a fetch that broker N sent in its L-th life reaches its leader now
consume N from=O                                  a consumer reads at broker N
end N                                             a consumer asks broker N where the partition ends
tick N                                            leader N looks after its ISR
accept N | refuse N CODE                          the controller's answer to the proposal of leader N
time +S                                           S seconds pass
kill N | power-cut N keep=K | start N             a process dies | with it all but K records | it starts
checkpoint N                                      broker N writes its high watermark to disk
delete-records N before=O                         broker N drops the records before offset O
nearest rack=R from=O                             to whom does the leader send a consumer of that rack
rule high-watermark | rule epochs                 how followers truncate: as before KIP-101, or as they do
show                                              all replicas
"""

TP = TopicPartition("story", 0)
LAG_MS = 30_000


class HighWatermarkRule(FetcherMachine):
    """The rule before KIP-101: followers truncate to their own high watermark without asking the leader."""

    def _settle(self):
        cuts = [
            TruncateTo(partition, min(state.log.high_watermark, state.log.log_end), True)
            for partition in self._unsettled
            if (state := self._states[partition]).phase is Phase.TRUNCATING
        ]
        return Truncate(tuple(cuts)) if cuts else super()._settle()


@dataclass
class Replica:
    """A broker with its one replica. `machine` and `fetcher` belong to the process, the rest stays on disk."""

    broker: int
    records: list[tuple[int, str]] = field(default_factory=list)
    epochs: LeaderEpochCache = field(default_factory=LeaderEpochCache)
    log_start: int = 0
    checkpoint: int = 0
    broker_epoch: int = 0
    controller_epoch: int = 0
    machine: PartitionMachine | None = None
    fetcher: FetcherMachine | None = None
    waiting: list[tuple[int, str]] = field(default_factory=list)

    @property
    def log_end(self) -> int:
        return self.log_start + len(self.records)

    @property
    def high_watermark(self) -> int:
        return self.machine.high_watermark

    @property
    def latest_epoch(self):
        return self.epochs.latest_epoch

    def end_offset_for_epoch(self, epoch: int):
        return self.epochs.end_offset_for(epoch, self.log_end)

    def append(self, epoch: int, letter: str) -> None:
        self.epochs.assign(epoch, self.log_end)
        self.records.append((epoch, letter))

    def truncate(self, offset: int) -> None:
        del self.records[offset - self.log_start :]
        self.epochs.truncate_from_end(offset)

    def read(self, start: int, end: int) -> list[tuple[int, str]]:
        return self.records[start - self.log_start : end - self.log_start]


def letters(records) -> str:
    return " ".join(f"{letter}{epoch}" for epoch, letter in records) or "nothing"


def ids(brokers) -> str:
    return ",".join(map(str, sorted(brokers))) or "none"


class Stage:
    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.brokers: dict[int, Replica] = {}
        self.order: tuple[int, ...] = ()
        self.min_isr = 1
        self.leader = -1
        self.leader_epoch = -1
        self.partition_epoch = 0
        self.controller_epoch = 1
        self.isr: tuple[int, ...] = ()
        self.rule = FetcherMachine
        self.out: list[str] = []

    def run(self, line: str) -> list[str]:
        """Execute one command; return its effects, line by line."""
        self.out = []
        words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words[1:] if "=" not in word]
        getattr(self, "do_" + words[0].replace("-", "_"))(plain, options)
        return self.out or ["ok"]

    def say(self, text: str) -> None:
        self.out.append(text)

    # --- the controller --------------------------------------------------------------------------------------------

    def do_replicas(self, plain, options) -> None:
        self.order = tuple(map(int, plain))
        self.min_isr = int(options.get("min-isr", 1))
        self.isr = _ids(options["isr"]) if "isr" in options else self.order
        for broker in self.order:
            self.brokers[broker] = Replica(broker)
            self._start(self.brokers[broker])
        self._elect(int(options.get("leader", self.order[0])), self.isr, ())

    def do_elect(self, plain, options) -> None:
        isr = _ids(options["isr"]) if "isr" in options else self.isr
        self._elect(int(plain[0]), isr, _ids(options.get("deaf", "")))

    def _elect(self, leader: int, isr: tuple[int, ...], deaf: tuple[int, ...]) -> None:
        self.leader, self.isr = leader, isr
        self.leader_epoch += 1
        self.partition_epoch += 1
        for replica in self.brokers.values():
            if replica.machine is not None and replica.broker not in deaf:
                self._tell(replica, leader, self.leader_epoch, self.controller_epoch)

    def do_leader_and_isr(self, plain, options) -> None:
        controller_epoch = int(options["controller"])
        self._tell(self.brokers[int(plain[0])], int(options["leader"]), int(options["epoch"]), controller_epoch)

    def _tell(self, replica: Replica, leader: int, epoch: int, controller_epoch: int) -> None:
        name = f"broker {replica.broker}"
        if is_controller_epoch_stale(controller_epoch, replica.controller_epoch):
            self.say(f"{name} refuses: STALE_CONTROLLER_EPOCH")
            return
        replica.controller_epoch = controller_epoch
        state = PartitionLeadership(
            leader=leader,
            leader_epoch=epoch,
            isr=self.isr,
            partition_epoch=self.partition_epoch,
            replicas=self.order,
            controller_epoch=controller_epoch,
        )
        machine = replica.machine
        decision = decide_leader_and_isr(state, local_broker=replica.broker, current_leader_epoch=machine.leader_epoch)
        if decision.verdict is Verdict.REFUSE:
            self.say(f"{name} refuses: {decision.error.name}")
        elif decision.verdict is Verdict.BECOME_LEADER:
            replica.fetcher = None
            started = machine.become_leader(state, log_end=replica.log_end, now_ms=self.now_ms)
            replica.epochs.assign(machine.leader_epoch, started.epoch_start)
            self.say(f"{name} leads epoch {epoch} from offset {started.epoch_start}, isr {ids(machine.isr)}")
            self._settle(replica)
        else:
            machine.become_follower(state)
            self.say(f"{name} follows broker {leader} in epoch {epoch}")
            self._settle(replica)
            replica.fetcher = self.rule(
                partition_bytes_max=1000, backoff_max_ms=1000, truncates_on_fetch=self.rule is FetcherMachine
            )
            replica.fetcher.add(TP, replica, topic_id=ZERO_TOPIC_ID, leader_epoch=epoch)

    def do_accept(self, plain, options) -> None:
        replica = self.brokers[int(plain[0])]
        proposal = replica.machine.pending
        before = replica.high_watermark
        self.isr = tuple(broker for broker in self.order if broker in proposal.broker_ids)
        self.partition_epoch += 1
        replica.machine.isr_accepted(
            proposal,
            isr=frozenset(self.isr),
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            log_end=replica.log_end,
            now_ms=self.now_ms,
        )
        self.say(f"isr {ids(self.isr)}")
        self._moved(replica, before)

    def do_refuse(self, plain, options) -> None:
        machine = self.brokers[int(plain[0])].machine
        settled = machine.isr_rejected(machine.pending, ErrorCode[plain[1]])
        if settled.retry is not None:
            self.say("will propose it again")
        elif machine.pending is not None:
            self.say(f"waits for the controller's next word; counts on {ids(machine.maximal_isr)} meanwhile")
        else:
            self.say(f"isr stays {ids(machine.isr)}")

    # --- brokers ---------------------------------------------------------------------------------------------------

    def _start(self, replica: Replica) -> None:
        replica.broker_epoch += 1
        replica.epochs.truncate_from_end(replica.log_end)
        replica.machine = PartitionMachine(
            local_broker=replica.broker,
            replica_lag_time_max_ms=LAG_MS,
            min_insync_replicas=self.min_isr,
            high_watermark=min(replica.checkpoint, replica.log_end),
            is_eligible=lambda broker, epoch: self.brokers[broker].machine is not None,
        )

    def do_start(self, plain, options) -> None:
        replica = self.brokers[int(plain[0])]
        self._start(replica)
        self.say(f"broker {replica.broker}: {letters(replica.records)}, hw {replica.high_watermark}")
        if self.leader >= 0:
            self._tell(replica, self.leader, self.leader_epoch, self.controller_epoch)

    def do_kill(self, plain, options) -> None:
        replica = self.brokers[int(plain[0])]
        replica.machine = replica.fetcher = None
        replica.controller_epoch = 0
        replica.waiting.clear()

    def do_power_cut(self, plain, options) -> None:
        replica = self.brokers[int(plain[0])]
        self.do_kill(plain, options)
        replica.truncate(int(options["keep"]))
        self.say(f"broker {replica.broker} kept {letters(replica.records)}")

    def do_checkpoint(self, plain, options) -> None:
        replica = self.brokers[int(plain[0])]
        replica.checkpoint = replica.high_watermark
        self.say(f"replication-offset-checkpoint: {replica.checkpoint}")

    def do_delete_records(self, plain, options) -> None:
        replica, before = self.brokers[int(plain[0])], int(options["before"])
        del replica.records[: before - replica.log_start]
        replica.log_start = before
        replica.epochs.truncate_from_start(before)
        replica.machine.log.maybe_increment_high_watermark(before)

    def do_time(self, plain, options) -> None:
        self.now_ms += int(float(plain[0]) * 1000)

    def do_rule(self, plain, options) -> None:
        self.rule = HighWatermarkRule if plain[0] == "high-watermark" else FetcherMachine

    def do_tick(self, plain, options) -> None:
        replica = self.brokers[int(plain[0])]
        before = replica.high_watermark
        ticked = replica.machine.tick(self.now_ms, replica.log_end)
        self._proposed(ticked.propose)
        self._moved(replica, before)

    def _proposed(self, proposal) -> None:
        if proposal is not None:
            epochs = ",".join(f"{member.broker_id}" for member in proposal.isr)
            self.say(
                f"proposes to {proposal.change.value} the isr to {epochs} (partition epoch {proposal.partition_epoch})"
            )

    def _moved(self, replica: Replica, before: int) -> None:
        if replica.high_watermark != before:
            self.say(f"broker {replica.broker}: high watermark {before} -> {replica.high_watermark}")
        self._settle(replica)

    def _settle(self, replica: Replica) -> None:
        still = []
        for required, letter in replica.waiting:
            code = replica.machine.check_replicated(required, replica.machine.leaderships)
            if code is None:
                still.append((required, letter))
            elif code is ErrorCode.NONE:
                self.say(f"{letter} is acknowledged")
            else:
                self.say(f"{letter} is not acknowledged: {code.name}")
        replica.waiting = still

    # --- clients ---------------------------------------------------------------------------------------------------

    def do_produce(self, plain, options) -> None:
        replica, acks = self.brokers[int(plain[0])], int(options.get("acks", -1))
        for letter in plain[1:]:
            error = replica.machine.check_append(required_acks=acks)
            if error is not ErrorCode.NONE:
                self.say(f"{letter} is refused: {error.name}")
                continue
            before = replica.high_watermark
            offset = replica.log_end
            replica.append(replica.machine.leader_epoch, letter)
            self.say(f"{letter} at offset {offset}")
            if acks == -1:
                replica.waiting.append((offset + 1, letter))
            else:
                self.say(f"{letter} is acknowledged")
            replica.machine.record_append(replica.log_end, self.now_ms)
            self._moved(replica, before)

    def do_consume(self, plain, options) -> None:
        replica, offset = self.brokers[int(plain[0])], int(options["from"])
        error = replica.machine.check_leader_epoch(int(options.get("epoch", -1)), require_leader=False)
        if error is not ErrorCode.NONE:
            self.say(error.name)
        else:
            self.say(letters(replica.read(offset, replica.high_watermark)))

    def do_end(self, plain, options) -> None:
        replica = self.brokers[int(plain[0])]
        error = replica.machine.check_leader_epoch(int(options.get("epoch", -1)))
        if error is ErrorCode.NONE and replica.machine.high_watermark_lags:
            error = ErrorCode.OFFSET_NOT_AVAILABLE
        self.say(error.name if error is not ErrorCode.NONE else str(replica.high_watermark))

    def do_nearest(self, plain, options) -> None:
        leader = self.brokers[self.leader]
        views = read_candidates(
            leader.machine,
            fetch_offset=int(options["from"]),
            now_ms=self.now_ms,
            rack_of=lambda broker: f"rack-{broker}",
        )
        found = select_by_rack(options["rack"], leader_rack=f"rack-{self.leader}", candidates=views)
        self.say(f"broker {self.leader if found is None else found}")

    # --- following -------------------------------------------------------------------------------------------------

    def do_fetch(self, plain, options) -> None:
        replica = self.brokers[int(plain[0])]
        for _ in range(int(options.get("times", 1))):
            self._fetch(replica)

    def do_late_fetch(self, plain, options) -> None:
        leader = self.brokers[self.leader]
        before = leader.high_watermark
        try:
            recorded = leader.machine.record_follower_fetch(
                int(plain[0]),
                fetch_offset=int(options["offset"]),
                follower_log_start=0,
                broker_epoch=int(options["life"]),
                log_end=leader.log_end,
                now_ms=self.now_ms,
            )
        except Refused as refused:
            self.say(f"refused: {refused.code.name}")
        else:
            self._proposed(recorded.propose)
        self._moved(leader, before)

    def _fetch(self, replica: Replica) -> None:
        name, fetcher = f"broker {replica.broker}", replica.fetcher
        if fetcher is None or fetcher.state(TP) is None:
            self.say(f"{name} does not fetch")
            return
        leader = self.brokers[replica.machine.leader]
        while True:
            step = fetcher.next_step(self.now_ms)
            if isinstance(step, Truncate):
                self._carry_out(replica, step.effects)
                continue
            if leader.machine is None:
                fetcher.fetch_failed(self.now_ms)
                self.say(f"{name} does not reach broker {leader.broker}")
                return
            if isinstance(step, AskEpochEnds):
                question = step.questions[TP]
                end = leader.end_offset_for_epoch(question.epoch)
                self.say(f"{name} asks where epoch {question.epoch} ends: epoch {end.epoch} ends at {end.end_offset}")
                error = leader.machine.check_leader_epoch(question.current_leader_epoch)
                self._carry_out(replica, fetcher.epoch_ends(step, {TP: EpochAnswer(error, end)}, self.now_ms))
                continue
            if isinstance(step, AskOffsets):
                self.say(f"{name} asks for the leader's offsets: {leader.log_start} to {leader.log_end}")
                error = leader.machine.check_leader_epoch(step.current_leader_epochs[TP])
                answer = OffsetsAnswer(error, leader.log_end, leader.log_start)
                self._carry_out(replica, fetcher.offsets_listed(step, {TP: answer}, self.now_ms))
                continue
            if not isinstance(step, SendFetch):
                self.say(f"{name} pauses")
                self.now_ms = step.until_ms
                return
            entry = fetcher._session.sent[TP]
            before = leader.high_watermark
            fetched = self._serve(leader, replica, entry)
            self.say(f"{name} fetches from {entry.fetch_offset}: {_describe(fetched)}")
            self._moved(leader, before)
            effects = fetcher.fetched(step.plan, error_code=0, session_id=0, partitions=[fetched], now_ms=self.now_ms)
            self._carry_out(replica, effects)
            return

    def _serve(self, leader: Replica, follower: Replica, entry) -> FetchedPartition:
        machine = leader.machine
        error = machine.check_leader_epoch(entry.current_leader_epoch)
        if error is not ErrorCode.NONE:
            return FetchedPartition(TP, error)
        try:
            diverging = find_divergence(
                leader, fetch_offset=entry.fetch_offset, last_fetched_epoch=entry.last_fetched_epoch
            )
            if diverging is not None:
                return FetchedPartition(TP, 0, leader.high_watermark, leader.log_start, diverging)
            if not leader.log_start <= entry.fetch_offset <= leader.log_end:
                return FetchedPartition(TP, ErrorCode.OFFSET_OUT_OF_RANGE)
            recorded = machine.record_follower_fetch(
                follower.broker,
                fetch_offset=entry.fetch_offset,
                follower_log_start=entry.log_start,
                broker_epoch=follower.broker_epoch,
                log_end=leader.log_end,
                now_ms=self.now_ms,
            )
        except Refused as refused:
            return FetchedPartition(TP, refused.code)
        self._proposed(recorded.propose)
        sent = leader.read(entry.fetch_offset, leader.log_end)
        data = "".join(f"{epoch:02d}{letter}" for epoch, letter in sent).encode()
        return FetchedPartition(TP, 0, leader.high_watermark, leader.log_start, None, data)

    def _carry_out(self, replica: Replica, effects) -> None:
        name, fetcher = f"broker {replica.broker}", replica.fetcher
        for effect in effects:
            before = replica.high_watermark
            match effect:
                case Append(_, data, leader_high_watermark):
                    text = bytes(data).decode()
                    for at in range(0, len(text), 3):
                        replica.append(int(text[at : at + 2]), text[at + 2])
                    replica.machine.record_follower_append(
                        log_start=replica.log_start,
                        log_end=replica.log_end,
                        leader_high_watermark=leader_high_watermark,
                    )
                    fetcher.appended(effect)
                    if replica.high_watermark != before:
                        self.say(f"{name}: high watermark {before} -> {replica.high_watermark}")
                case TruncateTo(_, offset):
                    if offset < replica.log_end:
                        self.say(
                            f"{name} truncates to {offset}, loses {letters(replica.read(offset, replica.log_end))}"
                        )
                    replica.truncate(offset)
                    replica.machine.log.high_watermark = min(replica.high_watermark, replica.log_end)
                    fetcher.truncated(effect)
                case TruncateFully(_, offset):
                    self.say(f"{name} drops everything and starts at {offset}")
                    replica.records.clear()
                    replica.epochs.clear()
                    replica.log_start = offset
                    replica.machine.log.high_watermark = offset
                    fetcher.truncated(effect)
                case GiveUp(_, reason):
                    self.say(f"{name} stops fetching: {reason}")

    def do_show(self, plain, options) -> None:
        for replica in self.brokers.values():
            log = (
                letters(replica.records)
                if not replica.log_start
                else f"{replica.log_start}: {letters(replica.records)}"
            )
            if replica.machine is None:
                self.say(f"broker {replica.broker}  dead      {log}")
                continue
            role = replica.machine.role
            isr = f", isr {ids(replica.machine.isr)}" if role is Role.LEADER else ""
            self.say(f"broker {replica.broker}  {role.value:<8}  {log}, hw {replica.high_watermark}{isr}")


def _ids(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def _describe(fetched: FetchedPartition) -> str:
    if fetched.error_code:
        return ErrorCode(fetched.error_code).name
    if fetched.diverging is not None:
        return f"diverging, epoch {fetched.diverging.epoch} ends at {fetched.diverging.end_offset}"
    text = bytes(fetched.records or b"").decode()
    return letters((int(text[at : at + 2]), text[at + 2]) for at in range(0, len(text), 3))
