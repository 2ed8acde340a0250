"""One simulated broker: the real machines, a simulated disk, and the plainest possible driver around them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from sim_disk import SimLog
from sim_zookeeper import Session

from barnabas.controller import effects as fx
from barnabas.controller import events as ev
from barnabas.coordination import paths
from barnabas.coordination.operations import Create, ZkCode
from barnabas.coordination.znodes import BrokerRegistration
from barnabas.core.errors import ErrorCode
from barnabas.core.ids import TopicPartition
from barnabas.replication.control import (
    Verdict,
    decide_leader_and_isr,
    decide_stop_replica,
    is_broker_epoch_stale,
)
from barnabas.replication.fetcher_machine import (
    Append,
    AskEpochEnds,
    AskOffsets,
    GiveUp,
    Idle,
    SendFetch,
    Truncate,
    TruncateFully,
    TruncateTo,
)
from barnabas.replication.state import PartitionState, ProposeIsr, Role

if TYPE_CHECKING:
    from sim_cluster import Cluster


from sim_parts import FETCH_WAIT_MS, RETRY_MS, RPC_TIMEOUT_MS, Channel, Fetcher, ServerSession, SimPartition
from sim_serving import Serving


class SimBroker(Serving):
    def __init__(self, cluster: "Cluster", broker_id: int) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.id = broker_id
        self.name = f"broker {broker_id}"
        self.disk: dict[TopicPartition, SimLog] = {}
        self.incarnation = 0
        self.is_up = False
        self.is_paused = False
        #: How many records of which partitions the last crash cost.
        self.lost_in_cut: dict[TopicPartition, int] = {}
        self._inbox: list[Callable[[], None]] = []
        self._forget()

    def _forget(self) -> None:
        """What lives in the process only."""
        self.session: Session | None = None
        self.broker_epoch = -1
        self.first_epoch: int | None = None
        self.controller_id = -1
        self.controller_epoch = 0
        self.partitions: dict[TopicPartition, SimPartition] = {}
        self.metadata: dict[TopicPartition, tuple[int, int]] = {}
        self.metadata_number = (0, 0)
        self.live_brokers: set[int] = set()
        self.fetchers: dict[int, Fetcher] = {}
        self.sessions: dict[int, ServerSession] = {}
        #: Fetches that wait for records: what wakes them, and how.
        self.parked: dict[int, tuple[set[TopicPartition], Callable[[], None]]] = {}
        self.channels: dict[int, Channel] = {}
        self.replies: dict[object, Callable[[object], None]] = {}
        self.controller = self.cluster.make_controller(self.id)
        self._numbers = 0

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    # --- the process -----------------------------------------------------------------------------------------------

    def deliver(self, incarnation: int, action: Callable[[], None]) -> None:
        """Something reaches this process, if it is still the same one; a paused one takes it when it wakes."""
        if not self.is_up or incarnation != self.incarnation:
            return
        if self.is_paused:
            self._inbox.append(action)
        else:
            action()

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        incarnation = self.incarnation
        self.world.after(delay_ms, lambda: self.deliver(incarnation, action))

    def start(self) -> None:
        assert not self.is_up
        self._forget()
        self.incarnation += 1
        self.is_up = True
        self.world.note(self.name, "starts, incarnation %s", self.incarnation)
        for tp, log in self.disk.items():
            self._open(tp, log)
        self._register()
        self._tick()
        self._flush()

    def crash(self, *, power: bool) -> None:
        assert self.is_up
        self.is_up = False
        self.is_paused = False
        self._inbox.clear()
        self.lost_in_cut = {}
        if power:
            for tp, log in self.disk.items():
                if lost := log.lose_unsynced(self.world.rng):
                    self.lost_in_cut[tp] = len(lost)
                    self.cluster.oracle.loses(tp, lost)
        lost_words = ", ".join(f"{count} of {tp}" for tp, count in self.lost_in_cut.items())
        self.world.note(self.name, "%s %s", "loses power, and" if power else "is killed", lost_words)
        self.cluster.broker_died(self)

    def pause(self) -> None:
        self.is_paused = True
        self.world.note(self.name, "%s", "is paused")

    def resume(self) -> None:
        self.is_paused = False
        self.world.note(self.name, "%s", "goes on")
        inbox, self._inbox = self._inbox, []
        for action in inbox:
            if self.is_paused or not self.is_up:
                return
            action()

    def _tick(self) -> None:
        for partition in list(self.partitions.values()):
            ticked = partition.machine.tick(self.world.now_ms, partition.log_end)
            self._after_change(partition, ticked.propose)
        self.after(self.cluster.settings.replica_lag_ms // 2, self._tick)

    def _flush(self) -> None:
        for tp, log in self.disk.items():
            if self.world.chance(0.5):
                log.sync(self.partitions[tp].high_watermark)
        self.after(self.world.between(50, 400), self._flush)

    # --- ZooKeeper -------------------------------------------------------------------------------------------------

    def _register(self) -> None:
        self.session = self.cluster.open_session(self)
        self._register_id(self.session)

    def _register_id(self, session: Session) -> None:
        registration = BrokerRegistration(id=self.id, endpoints=(), incarnation=self.first_epoch)
        create = Create(paths.broker_id(self.id), registration.encode(), ephemeral=True)

        def answered(results: tuple, moved: bool) -> None:  # type: ignore[type-arg]
            if session is not self.session:
                return
            if results[0].code is ZkCode.NODE_EXISTS:
                self.after(100, lambda: self._register_id(session) if session is self.session else None)
                return
            is_first = self.broker_epoch < 0
            self.broker_epoch = results[0].stat.czxid
            if is_first:
                self.first_epoch = self.broker_epoch
            self.world.note(self.name, "registered, broker epoch %s", self.broker_epoch)
            self.feed(ev.Startup() if is_first else ev.SessionRenewed())

        self.cluster.zk_request(self, session, (create,), None, answered)

    def session_expired(self, session: Session) -> None:
        if session is self.session:
            self.world.note(self.name, "%s", "learns that its session expired")
            self.feed(ev.SessionExpired())
            self._register()

    # --- the controller --------------------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> None:
        for effect in self.controller.handle(event):
            self._carry_out(effect)

    def _carry_out(self, effect: fx.Effect) -> None:
        match effect:
            case fx.ZkBatch(batch_id, operations, guard):
                assert self.session is not None
                self.cluster.zk_request(
                    self,
                    self.session,
                    operations,
                    guard,
                    lambda results, moved: self.feed(ev.ZkAnswered(batch_id, results, moved)),
                )
            case fx.SendLeaderAndIsr(broker) | fx.SendStopReplica(broker):
                self._enqueue(broker, effect)
            case fx.SendUpdateMetadata(brokers):
                for broker in brokers:
                    self._enqueue(broker, effect)
            case fx.OpenChannel(registration, _):
                self.channels[registration.id] = Channel(registration.id)
            case fx.CloseChannel(broker):
                self.channels.pop(broker, None)
            case fx.ControllerIs(broker):
                self.controller_id = broker
            case fx.Elected(epoch):
                self.world.note(self.name, "is controller, epoch %s", epoch)
            case fx.Resigned():
                self.world.note(self.name, "%s", "is not controller any more")
                self.channels.clear()
            case fx.StartTimer(timer, delay_ms):
                self.after(delay_ms, lambda: self.feed(ev.TimerFired(timer)))
            case fx.Reply(token, value):
                reply = self.replies.pop(token, None)
                if reply is not None:
                    reply(value)

    def _enqueue(self, broker: int, request: fx.SendLeaderAndIsr | fx.SendStopReplica | fx.SendUpdateMetadata) -> None:
        channel = self.channels.get(broker)
        if channel is not None:
            channel.queue.append(request)
            self._send_next(channel)

    def _send_next(self, channel: Channel) -> None:
        if channel.is_busy or not channel.queue or self.channels.get(channel.broker) is not channel:
            return
        channel.is_busy = True
        channel.request = number = self._number()
        request = channel.queue[0]

        def answered(answer: ev.AnswerEvent) -> None:
            if channel.request == number and channel.is_busy:
                channel.queue.pop(0)
                channel.is_busy = False
                if self.channels.get(channel.broker) is channel:
                    self.feed(answer)
                    self._send_next(channel)

        def timed_out() -> None:
            if channel.request == number and channel.is_busy:
                channel.is_busy = False
                self._send_next(channel)

        self.cluster.call(self, channel.broker, lambda peer, reply: peer.on_control(number, request, reply), answered)
        self.after(RPC_TIMEOUT_MS, timed_out)

    def on_control(
        self,
        number: int,
        request: fx.SendLeaderAndIsr | fx.SendStopReplica | fx.SendUpdateMetadata,
        reply: Callable[[object], None],
    ) -> None:
        if self.broker_epoch < 0:
            # A broker serves requests once it knows its own epoch, not before.
            self.after(2, lambda: self.on_control(number, request, reply))
            return
        is_metadata = isinstance(request, fx.SendUpdateMetadata)
        broker_epoch = request.brokers[self.id] if is_metadata else request.broker_epoch
        error = ErrorCode.NONE
        if is_broker_epoch_stale(broker_epoch, self.broker_epoch):
            error = ErrorCode.STALE_BROKER_EPOCH
        elif self.cluster.is_stale(request.controller_epoch, self.controller_epoch):
            error = ErrorCode.STALE_CONTROLLER_EPOCH
        errors: dict[TopicPartition, ErrorCode] = {}
        if error is ErrorCode.NONE:
            self.cluster.oracle.obeys(self.id, self.incarnation, request.controller_epoch, type(request).__name__)
            self.controller_epoch = request.controller_epoch
            if is_metadata:
                # Nothing in it tells an older one of the same controller: that is left to TCP's order.
                if (request.controller_epoch, number) > self.metadata_number:
                    self.metadata_number = (request.controller_epoch, number)
                    self._on_update_metadata(request)
            elif isinstance(request, fx.SendLeaderAndIsr):
                errors = {tp: self._on_leader_and_isr(tp, state) for tp, state in request.partitions.items()}
            else:
                errors = {tp: self._on_stop_replica(tp, state) for tp, state in request.partitions.items()}
        if is_metadata:
            reply(ev.UpdateMetadataAnswered(self.id, error))
        elif isinstance(request, fx.SendLeaderAndIsr):
            reply(ev.LeaderAndIsrAnswered(self.id, error, errors))
        else:
            deleted = {tp: code for tp, code in errors.items() if request.partitions[tp].delete}
            reply(ev.StopReplicaAnswered(self.id, error, deleted))

    def _on_update_metadata(self, request: fx.SendUpdateMetadata) -> None:
        self.live_brokers = {broker.id for broker in request.live_brokers}
        for tp, state in request.partitions.items():
            self.metadata[tp] = (state.leader, state.leader_epoch)

    def _on_leader_and_isr(self, tp: TopicPartition, sent: fx.LeaderAndIsrState) -> ErrorCode:
        leadership, assignment = sent.leadership, sent.assignment
        state = PartitionState(
            leader=leadership.leader,
            leader_epoch=leadership.leader_epoch,
            isr=leadership.isr,
            partition_epoch=leadership.partition_epoch,
            replicas=assignment.replicas,
            controller_epoch=leadership.controller_epoch,
            adding_replicas=assignment.adding,
            removing_replicas=assignment.removing,
            is_new=sent.is_new,
        )
        partition = self.partitions.get(tp)
        current = -1 if partition is None else partition.machine.leader_epoch
        decision = decide_leader_and_isr(state, local_broker=self.id, current_leader_epoch=current)
        if decision.verdict is Verdict.REFUSE:
            return decision.error
        if partition is None:
            partition = self._open(tp, self.disk.setdefault(tp, SimLog()))
        if decision.verdict is Verdict.BECOME_LEADER:
            self._stop_fetching(tp)
            self._lead(partition, state)
        else:
            self._follow(partition, state)
        return ErrorCode.NONE

    def _on_stop_replica(self, tp: TopicPartition, state: fx.StopReplicaState) -> ErrorCode:
        partition = self.partitions.get(tp)
        if partition is None:
            return ErrorCode.NONE
        code = decide_stop_replica(
            request_leader_epoch=state.leader_epoch, current_leader_epoch=partition.machine.leader_epoch
        )
        if code is ErrorCode.NONE:
            self._stop_fetching(tp)
            partition.machine.stop()
            self._settle_produces(partition)
            if state.delete:
                self.world.note(self.name, "deletes %s", tp)
                del self.partitions[tp]
                self.disk.pop(tp, None)
        return code

    # --- roles -----------------------------------------------------------------------------------------------------

    def _open(self, tp: TopicPartition, log: SimLog) -> SimPartition:
        machine = self.cluster.make_machine(
            self, high_watermark=log.recover(), is_eligible=lambda broker, epoch: broker in self.live_brokers
        )
        partition = self.partitions[tp] = SimPartition(tp, machine, log)
        return partition

    def _lead(self, partition: SimPartition, state: PartitionState) -> None:
        machine = partition.machine
        started = machine.become_leader(state, log_end=partition.log_end, now_ms=self.world.now_ms)
        if not started.applied:
            return
        self.world.note(
            self.name,
            "leads %s in epoch %s from %s, hw %s, isr %s, version %s",
            partition.tp,
            machine.leader_epoch,
            started.epoch_start,
            machine.high_watermark,
            sorted(machine.isr),
            machine.partition_epoch,
        )
        if started.is_new_epoch:
            partition.log.epochs.assign(machine.leader_epoch, started.epoch_start)
            self.cluster.oracle.leads(
                partition.tp, machine.leader_epoch, self.id, self.incarnation, partition.log.records
            )
        self._after_change(partition, None)
        # Fetches that waited in the old role must look again.
        self._wake(partition.tp)
        self.cluster.on_leader(partition.tp, self)

    def _follow(self, partition: SimPartition, state: PartitionState) -> None:
        started = partition.machine.become_follower(state)
        if not started.applied:
            return
        self.world.note(self.name, "follows %s in epoch %s: broker %s", partition.tp, state.leader_epoch, state.leader)
        self._settle_produces(partition)
        self._wake(partition.tp)
        self._stop_fetching(partition.tp)
        if state.leader >= 0:
            fetcher = self.fetchers.get(state.leader)
            if fetcher is None:
                fetcher = self.fetchers[state.leader] = Fetcher(self.cluster.make_fetcher_machine())
            fetcher.machine.add(
                partition.tp, partition, topic_id=self.cluster.topic_id, leader_epoch=state.leader_epoch
            )
            self._fetch_on(state.leader)

    def _stop_fetching(self, tp: TopicPartition) -> None:
        for fetcher in self.fetchers.values():
            fetcher.machine.remove(tp)

    def _after_change(self, partition: SimPartition, propose: ProposeIsr | None) -> None:
        """The machine moved: tell the oracle, those who wait, and the controller."""
        machine, new = partition.machine, partition.machine.high_watermark
        if new != partition.known_hw:
            self.cluster.oracle.high_watermark_moved(
                partition.tp, machine.leader_epoch, self.id, partition.known_hw, new, partition.log.records
            )
            partition.known_hw = new
        machine.validate(log_start=partition.log_start, log_end=partition.log_end)
        self._settle_produces(partition)
        if propose is not None:
            self.world.note(
                self.name, "proposes %s for %s: %s", propose.change.value, partition.tp, sorted(propose.broker_ids)
            )
            self._send_proposal(partition, propose)

    # --- AlterPartition --------------------------------------------------------------------------------------------

    def _send_proposal(self, partition: SimPartition, proposal: ProposeIsr) -> None:
        if partition.machine.pending is not proposal or self.partitions.get(partition.tp) is not partition:
            return
        done = False
        key = (self.cluster.topic_id, partition.tp.partition)
        wish = ev.ProposedIsr(
            leader_epoch=proposal.leader_epoch,
            isr=tuple(member.broker_id for member in proposal.isr),
            partition_epoch=proposal.partition_epoch,
            isr_epochs=tuple(member.broker_epoch for member in proposal.isr),
        )

        def answered(value: object) -> None:
            nonlocal done
            if done:
                return
            done = True
            if isinstance(value, fx.AlterPartitionReply) and value.error is ErrorCode.NONE:
                self._proposal_answered(partition, proposal, value.partitions[key])
            else:
                again()

        def again() -> None:
            settled = partition.machine.isr_rejected(proposal, ErrorCode.NETWORK_EXCEPTION)
            if settled.retry is not None:
                self.after(RETRY_MS, lambda: self._send_proposal(partition, proposal))

        def timed_out() -> None:
            nonlocal done
            if not done:
                done = True
                again()

        self.after(RPC_TIMEOUT_MS, timed_out)
        if self.controller_id >= 0:
            broker_epoch = self.broker_epoch

            def ask(peer: "SimBroker", reply: Callable[[object], None]) -> None:
                token = (self.id, peer._number())
                peer.replies[token] = reply
                peer.feed(ev.AlterPartition(token, self.id, broker_epoch, {key: wish}))

            self.cluster.call(self, self.controller_id, ask, answered)

    def _proposal_answered(self, partition: SimPartition, proposal: ProposeIsr, answer: object) -> None:
        machine = partition.machine
        if isinstance(answer, ErrorCode):
            settled = machine.isr_rejected(proposal, answer)
            self.world.note(self.name, "proposal for %s refused: %s", partition.tp, answer.name)
        else:
            settled = machine.isr_accepted(
                proposal,
                isr=frozenset(answer.isr),
                leader_epoch=answer.leader_epoch,
                partition_epoch=answer.partition_epoch,
                log_end=partition.log_end,
                now_ms=self.world.now_ms,
            )
            self.world.note(
                self.name, "isr of %s is %s, version %s", partition.tp, sorted(answer.isr), answer.partition_epoch
            )
        self._after_change(partition, None)
        if settled.retry is not None:
            self.after(RETRY_MS, lambda: self._send_proposal(partition, proposal))

    # --- following -------------------------------------------------------------------------------------------------

    def _fetch_on(self, leader: int) -> None:
        fetcher = self.fetchers[leader]
        if fetcher.is_busy:
            return
        step = fetcher.machine.next_step(self.world.now_ms)
        while isinstance(step, Truncate):
            for effect in step.effects:
                self._truncate(fetcher, effect)
            step = fetcher.machine.next_step(self.world.now_ms)
        if isinstance(step, Idle):
            if step.until_ms is not None:
                self.after(step.until_ms - self.world.now_ms, lambda: self._fetch_on(leader))
            return
        fetcher.is_busy = True
        fetcher.request = number = self._number()

        def finished(answer: object) -> None:
            if fetcher.request == number and fetcher.is_busy:
                fetcher.is_busy = False
                self._fetch_answered(fetcher, step, answer)
                self._fetch_on(leader)

        def ask(peer: "SimBroker", reply: Callable[[object], None]) -> None:
            if isinstance(step, SendFetch):
                peer.on_fetch(self.id, step.plan, broker_epoch, reply)
            elif isinstance(step, AskEpochEnds):
                reply({tp: peer.on_epoch_end(tp, *question) for tp, question in step.questions.items()})
            else:
                reply({tp: peer.on_list_offsets(tp, epoch) for tp, epoch in step.current_leader_epochs.items()})

        broker_epoch = self.broker_epoch
        self.cluster.call(self, leader, ask, finished)
        self.after(RPC_TIMEOUT_MS + FETCH_WAIT_MS, lambda: finished(None))

    def _fetch_answered(self, fetcher: Fetcher, step: SendFetch | AskEpochEnds | AskOffsets, answer: object) -> None:
        now_ms = self.world.now_ms
        machine = fetcher.machine
        if answer is None:
            machine.fetch_failed(now_ms)
            return
        if isinstance(step, SendFetch):
            error, session_id, fetched = answer  # type: ignore[misc]
            effects = machine.fetched(
                step.plan, error_code=error, session_id=session_id, partitions=fetched, now_ms=now_ms
            )
        elif isinstance(step, AskEpochEnds):
            effects = machine.epoch_ends(step, answer, now_ms)  # type: ignore[arg-type]
        else:
            effects = machine.offsets_listed(step, answer, now_ms)  # type: ignore[arg-type]
        for effect in effects:
            match effect:
                case Append(tp, records, leader_high_watermark):
                    partition = self.partitions[tp]
                    partition.log.append_bytes(records)
                    partition.machine.record_follower_append(
                        log_start=partition.log_start,
                        log_end=partition.log_end,
                        leader_high_watermark=leader_high_watermark,
                    )
                    machine.appended(effect)
                    self._after_change(partition, None)
                case TruncateTo() | TruncateFully():
                    self._truncate(fetcher, effect)
                case GiveUp(tp, reason):
                    self.world.note(self.name, "gives up fetching %s: %s", tp, reason)

    def _truncate(self, fetcher: Fetcher, effect: TruncateTo | TruncateFully) -> None:
        partition = self.partitions[effect.partition]
        if effect.offset < partition.log_end:
            self.world.note(self.name, "truncates %s from %s to %s", effect.partition, partition.log_end, effect.offset)
            self.cluster.oracle.truncates(effect.partition, self.id, effect.offset, partition.high_watermark)
        partition.log.truncate_to(effect.offset)
        partition.machine.record_truncation(log_start=partition.log_start, log_end=partition.log_end)
        partition.known_hw = partition.high_watermark
        fetcher.machine.truncated(effect)

    # --- for the end of the run ------------------------------------------------------------------------------------

    def leads(self, tp: TopicPartition) -> bool:
        partition = self.partitions.get(tp)
        return partition is not None and partition.machine.role is Role.LEADER
