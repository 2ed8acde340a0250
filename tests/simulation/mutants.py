"""Small wrongs, each put into what ships, one at a time: the simulation must notice every one.

A mutant is a piece of a source file and what stands there instead. It is put in when the module is loaded, so nothing of
it is on disk. A mutant whose piece is gone from its file is out of date: a test says so.
"""

import importlib.machinery
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

SOURCE = Path(__file__).parents[2] / "src" / "barnabas"


@dataclass(frozen=True, slots=True)
class Mutant:
    #: What it does wrong, as a sentence.
    name: str
    #: Below `src/barnabas`: the file, or the package whose only file with this piece it is.
    where: str
    old: str
    new: str
    #: More pieces: (where, old, new).
    also: tuple[tuple[str, str, str], ...] = ()
    #: The mended defect that it puts back.
    finding: str = ""
    #: The profile of the worlds that are likely to notice it, or the trouble that a world of links or of a tier has on
    #: purpose; empty: any.
    profile: str = ""
    #: "cluster": whole brokers; "storage": logs alone, much cheaper; "link": two clusters; "tier": one with an object store.
    world: str = "cluster"
    #: Below `tests`: the test that notices it, where no seed has yet.
    test: str = ""
    #: Why no seed of any world can be expected to.
    why: str = ""

    def find(self) -> dict[Path, str]:
        """The files, and what stands in them instead."""
        found: dict[Path, str] = {}
        for where, old, new in ((self.where, self.old, self.new), *self.also):
            place = SOURCE / where
            files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
            having = [(file, text) for file in files if old in (text := found.get(file) or file.read_text())]
            if len(having) != 1 or having[0][1].count(old) != 1:
                raise LookupError(f"{self.name}: {where} does not have its piece once: {old!r}")
            file, text = having[0]
            found[file] = text.replace(old, new)
        return found

    def apply(self) -> None:
        """From now on: call it before the modules are imported."""
        sources = {str(file): source for file, source in self.find().items()}
        original = importlib.machinery.SourceFileLoader.get_code

        def get_code(loader: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
            if loader.path in sources:
                return compile(sources[loader.path], loader.path, "exec", dont_inherit=True)
            return original(loader, fullname)

        importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


_ALL = [
    # -- replication: the machine of a partition
    Mutant(
        "a coordinator that missed an epoch goes on as it was",
        "runtime/coordinator.py",
        "            if current.state is ShardState.ACTIVE and epoch == current.epoch + 1:\n",
        "            if current.state is ShardState.ACTIVE:\n",
        finding="missed epoch",
        profile="ambushes",
        test="unit/runtime/test_coordinator.py::test_coordinator_that_missed_an_epoch_loads_again",
    ),
    Mutant(
        "a coordinator that missed its successor delivers markers of what that one has ended",
        "transactions/coordinator.py",
        "        if self._runtime.elected(partition, epoch):\n",
        "        if self._runtime.elected(partition, epoch) and False:\n",
        finding="missed epoch",
        profile="ambushes",
        test="unit/transactions/test_transaction_coordinator.py"
        "::test_a_coordinator_that_missed_its_successor_sends_nothing_for_what_that_one_ended",
    ),
    Mutant(
        "a leader that missed an epoch counts with where its followers were",
        "replication/machine.py",
        "        was_led_by_another = is_new_leader or state.leader_epoch > self.leader_epoch + 1\n",
        "        was_led_by_another = is_new_leader\n",
        finding="missed epoch",
        profile="coincidences",
        test="unit/replication/test_replication_machine.py"
        "::test_leader_that_missed_an_epoch_does_not_count_on_what_its_followers_had",
    ),
    Mutant(
        "the high watermark ignores the followers",
        "replication",
        "                follower.in_maximal_isr\n                or (",
        "                False\n                or (",
    ),
    Mutant(
        "the high watermark moves while too few are in sync",
        "replication",
        "if len(self.isr) < self._min_isr or self.role is not Role.LEADER:",
        "if self.role is not Role.LEADER:",
    ),
    Mutant(
        "acks=all is answered before the followers have the record",
        "replication",
        "if self.high_watermark < required_offset:\n            return None",
        "if self.high_watermark < required_offset - 1:\n            return None",
    ),
    Mutant(
        "a lagging follower joins the ISR",
        "replication",
        "if follower.log_end < self.high_watermark or follower.log_end < self.leader_epoch_start:\n            return None",
        "if False:\n            return None",
        profile="sync",
    ),
    Mutant(
        "a follower joins the ISR without what earlier leaders wrote",
        "replication",
        "if follower.log_end < self.high_watermark or follower.log_end < self.leader_epoch_start:",
        "if follower.log_end < self.high_watermark:",
        profile="elections",
    ),
    Mutant(
        "a leader counts a shrunk ISR before the controller agrees",
        "replication",
        "propose = self._propose(IsrChange.SHRINK, self.isr - lagging)",
        "propose = self._propose(IsrChange.SHRINK, self.isr - lagging)\n"
        "                for each in self._order:\n"
        "                    each.in_maximal_isr = each.in_maximal_isr and each.broker_id not in lagging",
    ),
    Mutant(
        "a lagging follower never leaves the ISR",
        "replication",
        "            if lagging:\n",
        "            if lagging and False:\n",
    ),
    Mutant(
        "the end is told before the new leader knows what is committed",
        "replication",
        "return self.role is Role.LEADER and self.leader_epoch_start > self.high_watermark",
        "return False",
        profile="elections",
    ),
    Mutant(
        "an old leader epoch is not fenced",
        "replication",
        "            if current_leader_epoch < self.leader_epoch:\n                return ErrorCode.FENCED_LEADER_EPOCH",
        "            if current_leader_epoch < self.leader_epoch:\n                return ErrorCode.NONE",
    ),
    Mutant(
        "a follower takes the leader's high watermark though its log is shorter",
        "replication",
        "committed = leader_high_watermark if leader_high_watermark < log_end else log_end",
        "committed = leader_high_watermark",
    ),
    Mutant(
        "a rejected ISR change is taken for accepted",
        "replication",
        "        if error in _NOT_APPLIED:\n            self._commit_isr(self.isr)",
        "        if error in _NOT_APPLIED:\n            self._commit_isr(frozenset(each.broker_id for each in proposal.isr))",
        profile="sync",
    ),
    Mutant(
        "an ISR change that was lost is not repeated",
        "replication/isr_changes.py",
        "            if partition.machine.pending is proposal:",
        "            if False:",
        profile="sync",
    ),
    # -- replication: what rests in a follower's session
    Mutant(
        "a log that grows wakes no session that passes it over",
        "replication/hosted.py",
        "        self.fetch_purgatory.check(partition.log_end_key)\n        if partition.resting:\n",
        "        self.fetch_purgatory.check(partition.log_end_key)\n        if False:\n",
    ),
    Mutant(
        "a high watermark that moves wakes no session that passes it over",
        "replication/hosted.py",
        "        self.fetch_purgatory.check(partition)\n        if partition.resting:\n",
        "        self.fetch_purgatory.check(partition)\n        if False:\n",
    ),
    Mutant(
        "a log start that moves wakes no session that passes it over",
        "replication/hosted.py",
        "        if partition is not None and partition.resting:\n            self.stir(partition)\n",
        "",
        also=(
            (
                "replication/hosted.py",
                "        partition = self.partitions.get(tp)\n\n    def stir",
                "        pass\n\n    def stir",
            ),
        ),
        profile="administrator",
    ),
    Mutant(
        "a session that waits does not hear of what has woken",
        "replication/hosted.py",
        "        for session in partition.stir():\n            self.fetch_purgatory.check(session)\n",
        "        partition.stir()\n",
        test="unit/replication/test_resting_partitions.py"
        "::test_record_in_a_resting_partition_ends_the_wait_and_only_it_is_told",
    ),
    Mutant(
        "a follower outside the ISR is passed over",
        "replication/partition.py",
        "            and replica_id in machine.isr\n",
        "",
        profile="sync",
    ),
    Mutant(
        "a follower is passed over before it was told what is committed",
        "replication/partition.py",
        "            and want.told_high_watermark == log.high_watermark\n",
        "",
    ),
    Mutant(
        "a follower that left the ISR is passed over",
        "replication/manager.py",
        "        self.hosted.stir(partition)\n        if settled.hw_moved:",
        "        if settled.hw_moved:",
        profile="sync",
    ),
    Mutant(
        "a new leader epoch wakes no session that passes the partition over",
        "replication/control_requests.py",
        "            self._replicas.elected(partition)\n        self._replicas.wake_all(partition)\n",
        "            self._replicas.elected(partition)\n",
        profile="elections",
    ),
    Mutant(
        "who stops leading wakes no session that passes the partition over",
        "replication/control_requests.py",
        "order.state.leader_epoch)\n        self._replicas.wake_all(partition)\n        leader = order.state.leader\n",
        "order.state.leader_epoch)\n        leader = order.state.leader\n",
        profile="elections",
    ),
    Mutant(
        "what a follower asks for anew is passed over",
        "replication/fetch_session_cache.py",
        "                self.wake(known)\n                known.update(partition)",
        "                known.update(partition)",
        profile="elections",
    ),
    Mutant(
        "what rested in a session that has ended rests for ever",
        "replication/fetch_session_cache.py",
        "            session.wake_all()\n",
        "            pass\n",
        profile="sync",
    ),
    # -- replication: requests of the controller
    Mutant(
        "a broker obeys before it is registered",
        "broker.py",
        "        await self._unless_stopped(self.registrar.register())\n",
        "        self.server.start_accepting()\n        await self._unless_stopped(self.registrar.register())\n",
        also=(
            (
                "broker.py",
                "features.refresh()\n        self.server.start_accepting()\n",
                "features.refresh()\n",
            ),
            ("replication", "    if current_epoch == NO_BROKER_EPOCH:\n        return True\n", ""),
        ),
        finding="R1",
        profile="power",
    ),
    Mutant(
        "a controller of the past is obeyed, whatever epoch it names",
        "replication",
        "return request_epoch < known_epoch",
        "return False",
        also=(
            (
                "replication",
                "    if state.leader_epoch > current_leader_epoch:",
                "    if state.leader_epoch != current_leader_epoch:",
            ),
        ),
        profile="sync",
    ),
    Mutant(
        "a request for an earlier registration is obeyed",
        "replication",
        "return request_epoch != NO_BROKER_EPOCH and request_epoch < current_epoch",
        "return False",
        profile="power",
    ),
    Mutant(
        "one bad partition ends the whole LeaderAndIsr",
        "replication",
        "        except (LogDirFault, Refused) as error:\n            # Of this",
        "        except LogDirFault as error:\n            # Of this",
        profile="directories",
        finding="R2",
    ),
    Mutant(
        "a follower does not follow its new leader",
        "replication",
        "        elif must_refetch:\n",
        "        elif must_refetch and False:\n",
    ),
    Mutant(
        "the coordinators hear nothing of a new leader",
        "replication",
        "                listener(led, followed)",
        "                listener([], followed)",
    ),
    Mutant(
        "the coordinators hear nothing of a lost leadership",
        "replication",
        "                listener(led, followed)",
        "                listener(led, [])",
        profile="groups",
    ),
    # -- controller
    Mutant(
        "AlterPartition that comes late is granted",
        "controller",
        "        if proposed.partition_epoch < current.partition_epoch:\n            return ErrorCode.INVALID_UPDATE_VERSION\n",
        "",
        also=(
            (
                "controller/isr_machine.py",
                "            partition_epoch=proposed.partition_epoch,\n            controller_epoch=context.epoch,\n",
                "            partition_epoch=current.partition_epoch,\n            controller_epoch=context.epoch,\n",
            ),
        ),
        profile="sync",
    ),
    Mutant(
        "anybody alive is elected, in sync or not",
        "controller",
        "leader = next((each for each in live if each in state.isr), None)",
        "leader = next(iter(live), None)",
    ),
    Mutant(
        "the leader epoch does not rise with an election",
        "coordination",
        "            self.leader_epoch + 1,\n",
        "            self.leader_epoch,\n",
    ),
    Mutant(
        "a broker that bounced is not noticed",
        "controller",
        "each for each in set(found) & set(context.brokers) if found[each][1] > context.broker_epochs[each]",
        "each for each in set(found) & set(context.brokers) if found[each][1] < 0",
    ),
    Mutant(
        "a broker that went is not noticed",
        "controller",
        "went = sorted(set(context.brokers) - set(found))",
        "went: list[int] = []",
        profile="power",
    ),
    Mutant(
        "a new controller trusts who was away (Kafka's gap)",
        "controller",
        "younger = frozenset(each for each in state.isr if context.born(each) > written)",
        "younger: frozenset[int] = frozenset()",
    ),
    Mutant(
        "a failed directory is not acted on",
        "controller",
        "            if error is ErrorCode.KAFKA_STORAGE_ERROR:\n                now.add(partition)",
        "            if error is ErrorCode.KAFKA_STORAGE_ERROR:\n                now.discard(partition)",
        profile="directories",
        test="scenarios/controller/test_leadership_scenarios.py"
        "::test_replica_in_a_failed_log_directory_loses_the_lead_and_its_place_in_the_isr",
    ),
    Mutant(
        "two controllers at once",
        "controller",
        "    if (yield from who_is_controller()) == state.settings.broker_id:",
        "    if True:",
        also=(
            (
                "controller",
                "        if term is None or self._controller_id != self._state.settings.broker_id:",
                "        if term is None:",
            ),
        ),
        profile="zookeeper",
    ),
    Mutant(
        "a process that is dead is not suspected",
        "controller",
        "        if registration is None or context.broker_epochs[broker] != broker_epoch or is_self:",
        "        if True:",
        profile="elections",
    ),
    Mutant(
        "a suspect that answers stays out",
        "controller",
        "        if broker in context.suspects and error is ErrorCode.NONE:",
        "        if False:",
        profile="sync",
    ),
    Mutant(
        "a suspect whose session has ended stays one",
        "controller",
        "        over = [broker for broker, epoch in suspects.items() if broker not in found or found[broker][1] != epoch]",
        "        over: list[int] = []",
        profile="elections",
    ),
    Mutant(
        "nobody deposes a dead controller",
        "controller",
        "    if registration.broker_id == controller and registration.kraft_epoch < 0:",
        "    if False:",
        profile="elections",
    ),
    Mutant(
        "a broker that only looks dead is replaced by one that lacks records",
        "controller/elections.py",
        "    if unclean and live and context.suspects.keys().isdisjoint(state.isr):",
        "    if unclean and live:",
        profile="sync",
    ),
    Mutant(
        "what waits for a broker that is gone goes on waiting",
        "broker.py",
        "            self.broker_connections.brokers_changed()\n",
        "            pass\n",
        profile="power",
    ),
    Mutant(
        "a broker that returns leads on in an epoch of its former life while the state cannot be read",
        "controller/replica_state_machine.py",
        "leadership is not None and not self._led_before(replica, leadership):",
        "leadership is not None:",
        profile="coincidences",
        finding="seed 51",
        test="scenarios/controller/test_leadership_scenarios.py"
        "::test_broker_that_returns_does_not_lead_on_in_an_epoch_of_its_former_life_while_the_state_cannot_be_read",
    ),
    Mutant(
        "what waits for the former life of a broker goes on waiting",
        "coordination/features.py",
        "if returned := {each for each in now if now[each] != before.get(each, now[each])}:",
        "if returned := set():",
        profile="coincidences",
        finding="seed 100108",
        test="unit/coordination/test_features.py::test_broker_that_returns_at_once_with_other_features_is_noticed",
    ),
    Mutant(
        "what waits for the former life of a broker that was seen to be away goes on waiting",
        "coordination/features.py",
        "            self._broker_epochs = {**before, **now}\n",
        "            self._broker_epochs = now\n",
        profile="coincidences",
        finding="seed 6",
        test="unit/coordination/test_features.py::test_broker_that_was_seen_to_be_away_is_noticed_when_it_returns",
    ),
    Mutant(
        "a new controller keeps silent towards the replicas",
        "controller",
        "self._replicas.to_online(each for each in replicas if context.replica_state(each) is ReplicaState.ONLINE)",
        "self._replicas.to_online(iter(()))",
        profile="administrator",
    ),
    # -- replication: partitions, fetchers, the manager
    Mutant(
        "a consumer reads what is not committed",
        "replication",
        "return log.last_stable_offset if params.isolation_level == READ_COMMITTED else log.high_watermark",
        "return log.log_end_offset",
    ),
    Mutant(
        "read_committed reads past open transactions",
        "replication",
        "return log.last_stable_offset if params.isolation_level == READ_COMMITTED else log.high_watermark",
        "return log.high_watermark",
        profile="transactions",
    ),
    Mutant(
        "a follower's diverging log is not noticed",
        "replication",
        "        if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset:",
        "        if False:",
        profile="elections",
    ),
    Mutant(
        "read_committed is told of no aborted transactions",
        "replication",
        "        if params.isolation_level == READ_COMMITTED and not from_follower:",
        "        if False:",
    ),
    Mutant(
        "a follower does not take over the leader's log start",
        "replication",
        "        if log.log_start_offset < leader_log_start <= log.high_watermark:",
        "        if False:",
        profile="administrator",
    ),
    Mutant(
        "a follower takes records of a later epoch than its leader's",
        "replication/partition.py",
        "now_ms=self._clock.now_ms(), leader_epoch=self.machine.leader_epoch)\n",
        "now_ms=self._clock.now_ms())\n",
        finding="KAFKA-18723",
        test="unit/replication/test_follower_truncation.py::test_follower_takes_nothing_of_a_later_epoch_than_its_leader",
        why="answers are sent at once in a simulated network",
    ),
    Mutant(
        "a deletion is answered while checkpoints name the log",
        "replication/control_requests.py",
        "        await forgotten.wait()\n",
        "",
        finding="storage reading 5",
        test="unit/replication/test_control_requests.py::test_partition_on_a_dead_disk_is_not_said_to_be_deleted",
    ),
    # -- storage
    Mutant(
        "a compaction goes on before the names of what it has replaced are durable",
        "storage/log_segments.py",
        "            sync_then(lambda: then(None))\n",
        "            then(None)\n",
        finding="storage seed 29",
        world="storage",
    ),
    Mutant(
        "indexes that are built again get their names before they are on disk",
        "storage/index_build.py",
        "        disk.fsync_path(index.path)\n",
        "        pass\n",
        finding="storage seed 44287",
        world="storage",
        test="unit/storage/log/test_recovery.py::"
        "test_indexes_that_are_built_again_are_on_disk_before_they_get_their_names",
    ),
    Mutant(
        "a flush leaves out the records",
        "storage/log_flush.py",
        "            self._disk.fsync(opened.fd)\n",
        "            pass\n",
        world="storage",
    ),
    Mutant(
        "a flush leaves out the indexes",
        "storage/log_flush.py",
        "            self._disk.fsync_path(path)\n",
        "            pass\n",
        world="storage",
    ),
    Mutant(
        "a flush leaves out the names of new files",
        "storage/log_flush.py",
        "            self._disk.fsync_dir(self.directory)\n",
        "            pass\n",
        world="storage",
    ),
    Mutant(
        "a leader does not note the epoch that it writes in",
        "storage/appender.py",
        "        self._start_epoch(leader_epoch, first)\n",
        "",
        world="storage",
    ),
    Mutant(
        "recovery leaves the indexes as they were",
        "storage/segment_recovery.py",
        "    segment.take_indexes(builder)\n",
        "",
        world="storage",
    ),
    Mutant(
        "recovery keeps the bytes that are no batch",
        "storage/segment_recovery.py",
        "        disk.truncate(segment.file.fd, valid)\n",
        "",
        world="storage",
    ),
    Mutant(
        "a producer that is not known has to begin with its first sequence",
        "storage",
        "            if first_sequence != 0 and entry.producer_epoch != NO_PRODUCER_EPOCH:",
        "            if first_sequence != 0:",
        finding="R10",
        profile="transactions",
    ),
    Mutant(
        "the offset index is not cut with the log",
        "storage/segment.py",
        "        self.offset_index.truncate_to(offset)\n        self.time",
        "        self.time",
        world="storage",
    ),
    Mutant(
        "the time index is not cut with the log",
        "storage/segment.py",
        "        self.time_index.truncate_to(offset)\n        self.txn",
        "        self.txn",
        world="storage",
    ),
    Mutant(
        "aborted transactions are not cut with the log",
        "storage/segment.py",
        "        self.txn_index.truncate_to(offset)\n        dropped",
        "        dropped",
        world="storage",
    ),
    Mutant(
        "recovery forgets who aborted",
        "storage/segment_recovery.py",
        "        if completed.is_aborted:\n            stable",
        "        if False:\n            stable",
        world="storage",
    ),
    Mutant(
        "a truncation keeps the producers of what it cuts",
        "storage/truncation.py",
        "            state.producers.become(truncation.producers)\n",
        "",
        world="storage",
    ),
    Mutant(
        "recovery trusts snapshots of what may not have survived",
        "storage/recovery.py",
        "        self._snapshots.remove_outside(self._log_start, first)\n",
        "",
        world="storage",
        test="unit/storage/log/test_recovery.py::test_snapshot_of_records_that_may_not_have_survived_is_not_trusted",
    ),
    Mutant(
        "recovery keeps records that were cut off before the power went",
        "storage/segment_recovery.py",
        "            if 0 <= epoch < latest_epoch:",
        "            if False:",
        world="storage",
    ),
    Mutant(
        "a crash in the middle of a compaction is not settled",
        "storage/recovery.py",
        "            replaced = settle_leftovers(self._directory, self._disk)\n",
        "            replaced = set()\n",
        world="storage",
    ),
    Mutant(
        "segments are replaced before that is durable",
        "storage",
        "            state.env.threads.run(lambda: state.env.disk.fsync_dir(directory), synced)\n",
        "            synced(None)\n",
        finding="storage seeds 333, 1323",
        world="storage",
    ),
    Mutant(
        "what says that indexes are in doubt goes before the new ones are durable",
        "storage",
        "    return replaced\n\n\ndef _came_back",
        "    forget_leftovers(directory, disk)\n    return replaced\n\n\ndef _came_back",
        also=(
            ("storage", "                    self._disk.fsync_path(path)\n", "                    pass\n"),
            ("storage/segment_recovery.py", "        disk.fsync_path(aside.path)\n", ""),
        ),
        finding="storage seed 59",
        world="storage",
    ),
    Mutant(
        "recovery finishes a replacement before that is durable",
        "storage",
        "    disk.fsync_dir(directory)\n    logs = ",
        "    logs = ",
        finding="storage seed 309",
        world="storage",
    ),
    Mutant(
        "a search for aborted transactions stops before the last of them",
        "storage",
        "                return Offset(min(first_offset, completed.last_offset + 1))",
        "                return Offset(first_offset)",
        also=(
            (
                "storage",
                "            if min(txn.last_stable_offset, txn.last_offset + 1) >= upper_bound_offset:",
                "            if txn.last_stable_offset >= upper_bound_offset:",
            ),
        ),
        finding="seed 2086",
        profile="transactions",
    ),
    Mutant(
        "compaction does not know who aborted",
        "storage/cleaner/compaction.py",
        "            found.extend(txn for txn in index.entries() if txn.first_offset < job.end_offset)\n",
        "            found.extend(())\n",
        world="storage",
    ),
    Mutant(
        "a truncation to the high watermark leaves ended transactions unstable",
        "storage",
        "            state.set_high_watermark(min(state.high_watermark, offset))\n            state.env.on_recovery_point",
        "            if state.high_watermark > offset:\n"
        "                state.set_high_watermark(offset)\n"
        "            state.env.on_recovery_point",
        finding="R3",
        profile="elections",
    ),
    Mutant(
        "a copy cannot begin inside a batch",
        "storage",
        "        end = self._begins_at(records)\n",
        "        end = state.log_end_offset\n",
        finding="R7",
        profile="administrator",
    ),
    Mutant(
        "a sequence of an ended transaction is confirmed as a duplicate",
        "storage",
        "                        if header.is_transactional and entry.has_ended(duplicate):\n",
        "                        if False:\n",
        finding="L1",
        profile="transactions",
    ),
    Mutant(
        "the clean shutdown marker comes back with the power",
        "storage",
        "            self._disk.unlink(path)\n"
        "            # A power cut must not bring it back: logs would count as complete that were written to since.\n"
        "            self._disk.fsync_dir(self.path)\n",
        "            self._disk.unlink(path)\n",
        finding="power cut 1",
        world="storage",
    ),
    Mutant(
        "leader epochs come from a file that knows of a lost truncation",
        "storage",
        "        self._epochs.truncate_from_end(first)\n        # Those above",
        "        # Those above",
        finding="power cut 2",
        world="storage",
    ),
    Mutant(
        "a new log that lost a segment keeps the hole",
        "storage",
        "            if next_offset < after and self._may_not_have_holes(recovered):\n",
        "            if False:\n",
        finding="power cut 3",
        world="storage",
    ),
    Mutant(
        "segments behind a torn one stay",
        "storage",
        "        if later:\n            self._drop(later",
        "        if False:\n            self._drop(later",
        also=(
            (
                "storage",
                "            if next_offset < after and self._may_not_have_holes(recovered):\n",
                "            if False:\n",
            ),
        ),
        world="storage",
    ),
    Mutant(
        "what was read back counts as durable",
        "storage",
        "        recovery_point = min(self._recovered_from, end_offset)\n",
        "        recovery_point = end_offset\n",
        finding="power cut 4",
        world="storage",
    ),
    Mutant(
        "records are cut before the recovery point is on disk",
        "storage",
        "        if self._flusher.recovery_point > base and is_wanted():",
        "        if False:",
        finding="power cut 5",
        world="storage",
    ),
    Mutant(
        "a flush that was overtaken by a cut counts",
        "storage",
        "            job.up_to = min(job.up_to, Offset(offset))",
        "            job.up_to = job.up_to",
        world="storage",
    ),
    Mutant(
        "a flush leaves out the segments before the active one",
        "storage",
        "for segment in log.segments.overlapping(self.recovery_point, offset + 1 if force else offset):",
        "for segment in log.segments.overlapping(self.recovery_point, offset + 1 if force else offset)[-1:]:",
        world="storage",
    ),
    Mutant(
        "a duplicate is appended again",
        "storage",
        "            if plan.duplicate is not None:\n                return self._duplicate(plan, header, size)\n",
        "",
    ),
    Mutant(
        "a gap in a producer's sequence is accepted",
        "storage",
        "        if self._current.producer_epoch != NO_PRODUCER_EPOCH and not in_sequence(last_sequence, first_sequence):",
        "        if False:",
        profile="transactions",
    ),
    Mutant(
        "a fenced producer's epoch is accepted",
        "storage",
        "        if producer_epoch >= self.updated.producer_epoch:\n            return\n",
        "        return\n",
        profile="transactions",
    ),
    Mutant(
        "aborted transactions are not indexed",
        "storage",
        "            if completed.is_aborted:\n                stable",
        "            if False:\n                stable",
    ),
    Mutant(
        "a commit marker counts as an abort",
        "storage",
        "Offset(entry.txn_first_offset), offset, not marker.is_commit",
        "Offset(entry.txn_first_offset), offset, marker.is_commit",
    ),
    Mutant(
        "a marker does not end its transaction",
        "storage",
        "        entry.txn_first_offset = None\n        return completed",
        "        return completed",
    ),
    Mutant(
        "the last stable offset passes what is not replicated",
        "storage",
        "        if not self._unreplicated:\n            return None if ongoing",
        "        if True:\n            return None if ongoing",
        profile="elections",
    ),
    Mutant(
        "an ended transaction stays unstable until the next record",
        "storage",
        "for first, last in self._unreplicated.items() if last < high_watermark]",
        "for first, last in self._unreplicated.items() if last < high_watermark - 1]",
    ),
    Mutant(
        "the recovery point moves before anything is synced",
        "storage",
        "        self.recovery_point = max(self.recovery_point, job.up_to)",
        "        self.recovery_point = self._log.log_end_offset",
        world="storage",
    ),
    Mutant(
        "recovery trusts what was not synced",
        "storage",
        "                self._recover(self._recovery_point, progress)",
        "                pass",
        world="storage",
    ),
    Mutant(
        "a batch's CRC is not looked at when the log is recovered",
        "storage",
        "                if crc32c(view[at + ATTRIBUTES_AT : after]) != raw[4]:",
        "                if False:",
        world="storage",
    ),
    Mutant(
        "the leader epoch of a batch is not its leader's",
        "storage",
        "        _patch_epoch(data, LEADER_EPOCH_AT, leader_epoch)\n",
        "        _patch_epoch(data, LEADER_EPOCH_AT, leader_epoch - 1)\n",
    ),
    Mutant(
        "who appends again when a flush ends is forgotten where others came meanwhile",
        "storage/log_flush.py",
        "            try:\n"
        "                # Who is told may append again at once, and waits with those who came late.\n"
        "                self._tell(waiters, fault)\n"
        "            finally:\n"
        "                late, self._waiters = self._waiters or [], None\n"
        "                if late:\n"
        "                    self._start(late)\n",
        "            late, self._waiters = self._waiters or [], None\n"
        "            self._tell(waiters, fault)\n"
        "            if late:\n"
        "                self._start(late)\n",
        finding="storage reading 1",
        world="storage",
        test="unit/storage/log/test_upkeep.py::test_those_who_append_again_when_a_flush_ends_are_told_of_the_next",
    ),
    Mutant(
        "a sync that fails after the log was closed is told as a success",
        "storage/log_flush.py",
        "                if error is not None:\n                    fault = self._log.storage_error()",
        "                if False:\n                    fault = self._log.storage_error()",
        finding="storage reading 1",
        world="storage",
        test="unit/storage/log/test_upkeep.py"
        "::test_a_flush_that_fails_when_the_log_has_been_closed_is_not_said_to_have_succeeded",
        why="a broker whose disk fails answers nobody any more",
    ),
    Mutant(
        "a segment that was cut off comes back among records of the same epoch",
        "storage/truncation.py",
        "            self._flusher.unsynced.add(active.log_path)\n",
        "",
        finding="storage reading 2",
        world="storage",
        test="unit/storage/log/test_power_cuts.py"
        "::test_segment_that_was_cut_off_does_not_come_back_among_later_records",
        why="what follows a cut is of a later epoch in every world, and its file is synced with the directory",
    ),
    Mutant(
        "what follows a damaged segment goes after that was cut",
        "storage/segment_recovery.py",
        "        before_cut()\n        disk.truncate(segment.file.fd, valid)\n",
        "        disk.truncate(segment.file.fd, valid)\n        before_cut()\n",
        finding="storage reading 2",
        world="storage",
        test="unit/storage/log/test_recovery.py"
        "::test_what_follows_a_damaged_segment_is_gone_for_good_before_that_is_cut",
        why="a lost end of a compacted log looks as what compaction leaves",
    ),
    Mutant(
        "a cut reads files that the pool may have closed",
        "storage/producer_replay.py",
        "                part.file.pin()\n",
        "",
        also=(
            (
                "storage/truncation.py",
                "        self._timestamps.file.pin()\n",
                "        for each in (*replay.segments, self._timestamps):\n            each.file.pin()\n",
            ),
            (
                "storage/producer_replay.py",
                "        for segment in self.segments:\n            segment.file.unpin()\n",
                "        pass\n",
            ),
        ),
        finding="storage reading 2",
        world="storage",
        test="unit/storage/log/test_truncation.py::test_cut_reads_more_segments_than_may_be_open",
        why="snapshots of the producers are there, and few segments",
    ),
    Mutant(
        "what was cut is sent with what came in its place",
        "storage/segment.py",
        "                opened.cut_at = found.position\n",
        "",
        finding="KAFKA-18723",
        world="storage",
        test="unit/storage/log/test_truncation.py"
        "::test_part_of_an_answer_that_was_cut_is_not_sent_with_what_came_in_its_place",
        why="answers are sent at once in a simulated network",
    ),
    Mutant(
        "the index of aborted transactions is opened after the marker was written",
        "storage/appender.py",
        "            index.hold()\n",
        "            pass\n",
        finding="storage reading 3",
        world="storage",
        test="unit/storage/log/test_descriptors.py"
        "::test_marker_of_an_aborted_transaction_is_written_or_not_and_never_the_fault_of_the_directory",
        why="no simulated process runs out of descriptors",
    ),
    Mutant(
        "a follower's log begins with a batch that nobody has looked at",
        "storage/appender.py",
        "        end = self._begins_at(records)\n",
        "        end = self._begins_at(records)\n"
        "        if end < state.log_end_offset:\n"
        "            self._truncator.restart_at(end, log_start_offset=state.log_start_offset)\n",
        finding="storage reading 4",
        world="storage",
        test="unit/storage/log/test_append.py"
        "::test_follower_that_gets_a_damaged_batch_with_its_log_start_inside_stays_where_it_is",
        why="no answer is damaged on its way",
    ),
    Mutant(
        "a start believes checkpoints that name a log which is gone",
        "storage/manager_load.py",
        "            is_wanted = not known.keys() <= here\n",
        "            is_wanted = False\n",
        finding="storage reading 5",
        world="storage",
        test="unit/storage/manager/test_log_manager.py"
        "::test_topic_that_is_made_again_does_not_inherit_the_checkpoints_of_the_former_one",
    ),
    # -- transactions
    Mutant(
        "a cluster that steps back does not raise the epoch that was asked for",
        "transactions/machine.py",
        "            decided = end(txn, identity, commit=commit, client_version",
        "            client_version = min(client_version, self._transaction_version())\n"
        "            decided = end(txn, identity, commit=commit, client_version",
        finding="T4",
        profile="transactions",
    ),
    Mutant(
        "without verification no partition is added to a transaction",
        "transactions",
        "            and (asked is Asked.ADD or producers.transaction_verification)",
        "            and producers.transaction_verification",
        finding="T1",
        profile="transactions",
    ),
    Mutant(
        "offsets in a transaction are refused with the log's own error",
        "parts",
        "            raise Refused(coordinator_error(refusal.code), refusal.message) from refusal",
        "            raise",
        also=(
            (
                "groups",
                "        partition = self.partition_for(request.group_id)\n        self._runtime.require(partition)\n        guard",
                "        partition = self.partition_for(request.group_id)\n        guard",
            ),
        ),
        finding="T2",
        profile="groups",
    ),
    Mutant(
        "the last producer epoch is raised",
        "transactions",
        "    return min(epoch, LAST_CLIENT_EPOCH) + 1",
        "    return epoch + 1",
        finding="T3",
        profile="transactions",
        test="unit/transactions/test_transaction_rules.py::test_a_transaction_with_the_last_epoch_is_fenced",
    ),
    Mutant(
        "an answer from before a marker confirms a batch that comes after it",
        "transactions/verification.py",
        "        key = (question, tuple(guards.items()))\n",
        "        key = (question, tuple(guards))\n",
        finding="T5",
        profile="ambushes",
        test="unit/transactions/test_verification.py"
        "::test_an_answer_from_before_a_marker_confirms_no_batch_that_came_after_it",
    ),
    Mutant(
        "late batches are not verified",
        "storage",
        "        if guard is None or entry is None or entry.guard is not guard:",
        "        if False:",
        also=(
            (
                "transactions",
                "        return (\n            header.producer_id != NO_PRODUCER_ID\n",
                "        return asked is Asked.ADD and (\n            header.producer_id != NO_PRODUCER_ID\n",
            ),
        ),
        profile="transactions",
    ),
    Mutant(
        "a decided transaction is forgotten with its coordinator",
        "transactions",
        "            if txn.state.is_prepared:\n                result.effects.append(Tell(_markers_of(txn)))\n",
        "            if False:\n                result.effects.append(Tell(_markers_of(txn)))\n",
        profile="transactions",
    ),
    Mutant(
        "an open transaction has no timer after a fail-over",
        "transactions",
        "            elif txn.state is TransactionState.ONGOING:\n                self._watch(result, txn, now_ms)\n        result.effects",
        "            elif False:\n                self._watch(result, txn, now_ms)\n        result.effects",
        profile="transactions",
    ),
    Mutant(
        "a partition of a transaction gets no marker",
        "transactions",
        "        self.left = set(message.partitions)",
        "        self.left = set(message.partitions[1:])",
    ),
    Mutant(
        "an abort commits",
        "transactions",
        "        transaction_result=decided.is_commit,",
        "        transaction_result=True,",
    ),
    Mutant(
        "markers without an answer are not sent again",
        "transactions",
        "            for marker, _ in sent:\n                self._park(marker)\n            return",
        "            return",
        profile="transactions",
    ),
    Mutant(
        "a partition that the coordinator has not heard of is gone",
        "transactions",
        "                if not await self._exists(partition):",
        "                if True:",
        finding="1a80086",
        profile="coincidences",
        test="unit/transactions/test_marker_delivery.py"
        "::test_a_partition_that_this_broker_has_not_heard_of_yet_gets_its_marker",
    ),
    Mutant(
        "markers that were refused are not sent again",
        "transactions",
        "        if again:\n            self._park(_Marker(decided, tuple(again)))",
        "        if again:\n            decided.left.difference_update(again)",
        profile="transactions",
    ),
    Mutant(
        "the epoch does not rise when a transaction is fenced",
        "transactions",
        "    epoch = _raise(txn.epoch)\n    if txn.has_kept:",
        "    epoch = txn.epoch\n    if txn.has_kept:",
        profile="transactions",
    ),
    Mutant(
        "EndTxn of a stranger is obeyed",
        "transactions",
        "    if identity != txn.client:\n        raise refuse_stranger(txn, identity)\n    if txn.state is not TransactionState.ONGOING and commit:",
        "    if txn.state is not TransactionState.ONGOING and commit:",
        profile="transactions",
    ),
    Mutant(
        "a transaction that has timed out stays open",
        "transactions",
        "        if txn.start_ms <= now_ms < txn.start_ms + txn.timeout_ms:\n            self._watch(result, txn, now_ms)\n            return result\n",
        "        if True:\n            return result\n",
        profile="transactions",
    ),
    Mutant(
        "producer ids are given out twice",
        "transactions",
        "        self._next_id += 1\n        if self._next_block is None",
        "        self._next_id += 0\n        if self._next_block is None",
    ),
    # -- coordinators
    Mutant(
        "a coordinator serves what it has loaded before it is committed",
        "server",
        "        error = await replicated\n",
        "        error = ErrorCode.NONE\n",
        finding="T13",
        profile="groups",
    ),
    Mutant(
        "who looks at what waits is disturbed by a failing disk",
        "runtime",
        "        completed = 0\n"
        "        # Of a copy: a look at the log may find that its disk has failed, and then everybody who waits for it is woken.\n"
        "        for operation in list(watchers):\n"
        "            if not operation.completed and operation.is_satisfied_by(key):\n"
        "                completed += self._finish(operation, False)\n"
        "        return completed\n",
        "        done = [operation for operation in watchers if operation.is_satisfied_by(key)]\n"
        "        for operation in done:\n"
        "            self._finish(operation, False)\n"
        "        return len(done)\n",
        finding="R9",
        profile="directories",
        test="unit/replication/test_replica_manager.py::test_disk_that_a_long_poll_finds_broken_ends_every_wait_once",
    ),
    Mutant(
        "a batch behind a refused one is judged by the log",
        "replication",
        "        if code not in RETRIABLE or code in _UNTRUSTED:\n            return\n",
        "        if True:\n            return\n",
        also=(("replication", "            self.early.elected(partition.tp)\n", "            pass\n"),),
        finding="L2",
        profile="refusals",
        test="unit/replication/test_early_batches.py"
        "::test_batches_behind_one_that_a_new_leader_refused_get_its_error_and_all_come_again_in_order",
    ),
    Mutant(
        "a coordinator answers before its record is committed",
        "runtime",
        "        self._uncommitted.add(number)\n        limit = self._limit(responses)",
        "        is_replayed = True\n        committed(ErrorCode.NONE)",
        profile="groups",
    ),
    Mutant(
        "a coordinator keeps its state when it is refused",
        "runtime",
        "            if error is ErrorCode.NONE:\n                self._answer(responses)",
        "            if True:\n                self._answer(responses)",
        profile="groups",
    ),
    Mutant(
        "the timers of a coordinator that has moved go on",
        "runtime",
        "        self.state = ShardState.CLOSED\n        self._alarms.clear()",
        "        self.state = ShardState.CLOSED",
        profile="groups",
    ),
    Mutant(
        "reads of a coordinator do not wait for what they saw",
        "runtime",
        "        if self._uncommitted:\n            future: asyncio.Future[None]",
        "        if False:\n            future: asyncio.Future[None]",
        profile="groups",
    ),
    # -- groups
    Mutant(
        "TxnOffsetCommit without a member is refused by a consumer group",
        "groups/consumer_group.py",
        "        if is_transactional and generation < 0 and not member_id and instance_id is None:\n"
        "            return  # producers may leave out who consumed\n",
        "",
        finding="T8",
        profile="groups",
    ),
    Mutant(
        "a commit of a former generation is taken",
        "groups",
        "            if generation != self.generation:\n                raise Refused(ErrorCode.ILLEGAL_GENERATION)\n        elif not is_transactional:",
        "            pass\n        elif not is_transactional:",
        profile="groups",
    ),
    Mutant(
        "offsets of an aborted transaction are kept",
        "groups",
        "        if not is_commit:\n            return\n        for group_id, topics in pending.by_group.items():",
        "        for group_id, topics in pending.by_group.items():",
        profile="transactions",
    ),
    Mutant(
        "a commit is answered and not written",
        "groups",
        "        out.records.append(records.offset_commit(commit))\n",
        "",
        profile="groups",
    ),
    # -- the client
    Mutant(
        "a batch that was taken is finished again with its transaction",
        "client/sending.py",
        "                del self.unfinished[batch]  # at once: another one of this request may end the transaction\n",
        "",
        finding="seed 40",
        profile="ambushes",
        test="unit/client/test_client_sending.py"
        "::test_batch_that_was_taken_is_not_finished_again_when_another_of_its_request_ends_the_transaction",
    ),
    Mutant(
        "batches that wait for a connection overtake each other",
        "client/producer.py",
        "await self._lines.setdefault(leader, _Line()).take(self.cluster, leader)",
        "await self.cluster.connection(leader, purpose=PRODUCE)",
        finding="seed 7015",
        profile="ambushes",
        test="unit/client/test_client_producer.py"
        "::test_batches_that_wait_for_one_connection_do_not_overtake_each_other",
    ),
    Mutant(
        "our client sends Produce v12 and ends its transactions with EndTxn v4",
        "client/transactions.py",
        "            version_max=None if raises_epochs else _END_TXN_V1,\n",
        "            version_max=_END_TXN_V1,\n",
        also=(
            ("client/producer.py", "        if self.raises_epochs and self._has_ended_one:\n", "        if False:\n"),
        ),
        finding="T9",
        profile="transactions",
        test="unit/client/test_client_transactions.py::test_late_batch_of_a_finished_transaction_is_refused",
    ),
    # -- the embedded ZooKeeper and the session
    Mutant(
        "a broker that was killed waits for its former session",
        "coordination",
        "            if self._former is not None and await self._former.end(stat.ephemeral_owner):",
        "            if False:",
        profile="power",
    ),
    Mutant(
        "a broker keeps the key to its session only after it has registered",
        "coordination",
        """            await self._former.keep(await self._session.key())
        while True:
""",
        "            pass\n        while True:\n",
        also=(
            (
                "coordination",
                "                self._registered(stat.czxid)\n                return self._epoch\n",
                "                self._registered(stat.czxid)\n"
                "                if self._former is not None:\n"
                "                    await self._former.keep(await self._session.key())\n"
                "                return self._epoch\n",
            ),
        ),
        finding="tier seed 73",
        profile="starts",
        test="unit/coordination/test_registration.py"
        "::test_broker_that_was_killed_as_it_registered_closes_that_session_too",
    ),
    Mutant(
        "ZooKeeper takes a torn flush for damage",
        "coordination",
        "        if not mark and len(head) == RECORD_HEADER.size:",
        "        if len(head) == RECORD_HEADER.size:",
        finding="R11",
        profile="coincidences",
        test="unit/zookeeper/test_store.py::test_power_cut_may_take_any_page_of_the_last_flush",
    ),
    Mutant(
        "a bad byte in a snapshot of ZooKeeper hides the older good one",
        "coordination/embedded/snapshot.py",
        "            table[number] = tuple((source.i32(), source.text(), source.text()) for _ in range(source.i32()))\n",
        "            table[number] = tuple(\n"
        '                (source.i32(), (source.buffer() or b"").decode(), (source.buffer() or b"").decode())\n'
        "                for _ in range(source.i32())\n"
        "            )\n",
        finding="R11",
        profile="coincidences",
        test="unit/zookeeper/test_store.py::test_snapshot_damaged_anywhere_is_passed_over_for_an_older_one",
    ),
    Mutant(
        "ZooKeeper takes a page of zeros among acknowledged writes for the end",
        "coordination",
        "        if mark > at:\n",
        "        if False:\n",
        also=(("coordination", "            self._disk.fdatasync(self._fd)\n", "            pass\n"),),
        profile="zookeeper",
    ),
    Mutant(
        "ephemeral znodes outlive their session",
        "coordination",
        "        paths = tuple(self.tree.ephemerals.get(session_id, ()))",
        "        paths = ()",
        also=(
            (
                "coordination",
                "        for path in dict.fromkeys((*txn.paths, *self.tree.ephemerals.get(session_id, ()))):",
                "        for path in txn.paths:",
            ),
        ),
        profile="zookeeper",
    ),
    Mutant(
        "ZooKeeper answers before its log is synced",
        "coordination",
        "        if self._records:\n            held = self._waiting\n        elif self._flushing is not None:\n            held = self._flushing\n        else:\n",
        "        if True:\n",
        profile="zookeeper",
    ),
    Mutant(
        "a conditional write ignores the version",
        "coordination",
        "    if expected not in (-1, current):\n        raise Refusal(Err.BAD_VERSION)\n",
        "",
        profile="zookeeper",
    ),
    Mutant(
        "a watch is not told",
        "coordination",
        "        clients = table.trigger(path, event)\n",
        "        clients = table.trigger(path, event)[1:]\n",
    ),
    Mutant(
        "a repeated operation is sent twice in another order",
        "coordination",
        "        return self.order < other.order",
        "        return self.order > other.order",
    ),
    Mutant(
        "a foreign notification ends the broker",
        "coordination",
        '        except Malformed as error:\n            log.error("ignoring %s/%s: %s", self._root, name, error)\n        except Exception:',
        "        except ZeroDivisionError:",
        profile="zookeeper",
        finding="R8",
        test="unit/coordination/test_config_store.py::test_notification_that_makes_no_sense_is_passed_over",
    ),
    # -- links
    Mutant(
        "a topic that the controller has not heard of is promoted without a record",
        "link",
        "        count = await self._store.partition_count(name)\n",
        "        count = self._metadata.partition_count(name)\n",
        also=(
            (
                "link",
                "        if count == 0 or (is_planned and (link.name, name) not in self._whole):\n            return\n",
                "",
            ),
        ),
        finding="link seed 9",
        world="link",
    ),
    Mutant(
        "a cluster with a link hands out producer ids as every other does",
        "link",
        "ProducerIdSpace((1 + zlib.crc32(cluster_id.encode()) % _RANGES) * _RANGE)",
        "ProducerIdSpace(0)",
        world="link",
    ),
    Mutant(
        "the next leader of a mirror does not ask where the source's epochs end",
        "link",
        "        return self.epochs.latest_epoch\n",
        "        return None\n",
        world="link",
        profile="cut",
    ),
    Mutant(
        "a mirror takes records of clients",
        "storage/log_append.py",
        "        or config.barnabas_link_name\n",
        "",
        world="link",
    ),
    Mutant(
        "what a leader of a mirror noted after a cut counts for replicas that still have what was cut",
        "link/replica.py",
        "        if last is not None and last < known.noted_in:\n",
        "        if False:\n",
        finding="noted after a cut",
        world="link",
        profile="cut",
        test="unit/link/test_mirror_replica.py"
        "::test_what_a_leader_noted_after_a_cut_is_not_said_of_what_others_have_not_cut",
    ),
    Mutant(
        "a mirror that its replicas do not have keeps all others from their end",
        "link/replica.py",
        "            async with asyncio.timeout(_COMMIT_TIMEOUT_S):\n",
        "            async with asyncio.timeout(None):\n",
        finding="link 1",
        world="link",
        profile="stuck",
        test="unit/link/test_each_by_itself.py::test_mirror_that_its_replicas_do_not_have_keeps_no_other_from_its_end",
    ),
    Mutant(
        "a broker that restarts in a promotion is waited for as long as it ran before",
        "link/steward.py",
        "            broker: min(turns, then.get(broker, 0)) for broker, turns in now.items()\n",
        "            broker: then.get(broker, 0) for broker in now\n",
        finding="link 2",
        world="link",
        profile="long",
        test="unit/link/test_each_by_itself.py"
        "::test_broker_that_restarts_in_a_promotion_is_not_waited_for_as_long_as_it_ran_before",
    ),
    Mutant(
        "an error of the source is taken for the absence of records where a mirror begins",
        "link/source.py",
        "        if found.error is not ErrorCode.NONE:  # not for want of a record\n",
        "        if False:\n",
        finding="link 3",
        world="link",
        profile="later",
        test="unit/link/test_each_by_itself.py::test_source_that_does_not_say_where_a_mirror_begins_is_asked_again",
    ),
    # -- tiered storage
    Mutant(
        "the objects of a copy that may be finished are deleted without a look",
        "tiered/copier.py",
        "self._spawn(self._tidy_up(segment, may_be_finished), ",
        "self._spawn(self._tidy_up(segment, False), ",
        finding="tier 1",
        world="tier",
        test="unit/tiered/test_tier_broker.py"
        "::test_a_finished_copy_stays_although_the_metadata_is_read_again_just_then",
    ),
    Mutant(
        "an abort whose marker leaves the disk while the store is asked is not told",
        "tiered/reader.py",
        "        while border != log.local_log_start_offset:\n",
        "        while border < 0:\n",
        finding="tier 2",
        world="tier",
        profile="border",
        test="unit/tiered/test_tier_reader.py::test_an_abort_that_leaves_the_disk_while_the_store_is_asked_is_found",
    ),
    Mutant(
        "a timestamp in what leaves the disk while the store is asked is not found",
        "tiered/reader.py",
        "        at = int(log.log_start_offset)\n",
        "        at, border = int(log.log_start_offset), log.local_log_start_offset\n",
        also=(
            (
                "tiered/reader.py",
                "next(pieces(view.segments, log.epochs, at, log.local_log_start_offset), None)",
                "next(pieces(view.segments, log.epochs, at, border), None)",
            ),
        ),
        finding="tier 3",
        world="tier",
        profile="border",
        test="unit/tiered/test_tier_reader.py::test_a_timestamp_is_found_in_what_leaves_the_disk_while_the_store_is_asked",
    ),
    Mutant(
        "what an overruled leader aborted hides what the log aborted",
        "tiered/reader.py",
        "collect = partial(index.collect, from_offset, upper_offset, end_offset=piece.end)",
        "collect = partial(index.collect, from_offset, upper_offset)",
        also=(
            (
                "tiered/reader.py",
                "for txn in search.aborted})\n",
                "for txn in search.aborted if txn.last_offset < piece.end})\n",
            ),
        ),
        finding="tier 4",
        world="tier",
        profile="overruled",
        test="unit/tiered/test_tier_reader.py::test_what_an_overruled_leader_aborted_does_not_hide_what_the_log_aborted",
    ),
    Mutant(
        "a new leader's high watermark is taken for the end of the metadata topic",
        "tiered/metadata_reader.py",
        "self._owner.fetched(number, fetch_offsets[number], found, self._ends.get(number))",
        "self._owner.fetched(number, fetch_offsets[number], found, answer.high_watermark)",
        finding="tier 5",
        world="tier",
        profile="together",
        test="unit/tiered/test_metadata_topic.py::test_a_new_leader_that_does_not_know_the_end_yet_has_not_told_all",
    ),
    Mutant(
        "nobody reads on behind a batch of nonsense in the metadata topic",
        "tiered/metadata_records.py",
        "        except Malformed as error:\n            events.append((header.last_offset, error))\n",
        "        except ZeroDivisionError:\n            pass\n",
        finding="tier 6",
        world="tier",
        profile="nonsense",
        test="unit/tiered/test_metadata_topic.py::test_a_batch_that_was_written_as_nonsense_is_passed_over",
    ),
    Mutant(
        "a log whose first record is above its first offset is copied without end",
        "tiered/copier.py",
        "lineage.covered_end(view, of.epochs, candidate.epochs[0].start_offset, end) == end",
        "lineage.covered_end(view, of.epochs, candidate.base_offset, end) == end",
        also=(("tiered/lineage.py", "        return _hole_at(view, epochs, offset)\n", "        return None\n"),),
        finding="tier 7",
        world="tier",
        profile="former",
        test="unit/tiered/test_tier_broker.py::test_log_whose_first_record_is_above_its_first_offset_is_copied_once",
    ),
    Mutant(
        "a log whose first record is above its first offset never leaves the disk",
        "tiered/lineage.py",
        "        return _hole_at(view, epochs, offset)\n",
        "        return None\n",
        finding="tier seed 19",
        world="tier",
        profile="former",
        test="unit/tiered/test_tier_reads_broker.py"
        "::test_log_whose_first_record_is_above_its_first_offset_leaves_the_disk_and_is_read",
    ),
    Mutant(
        "an index larger than the cache is fetched without end",
        "tiered/local_copies.py",
        "        self._make_room(but_for=copy)\n",
        "        self._make_room()\n",
        finding="tier 8",
        world="tier",
        profile="border",
        test="unit/tiered/test_tier_reader.py::test_readers_get_everything_even_if_one_index_is_more_than_may_be_kept",
    ),
    Mutant(
        "local retention takes what the tier has not",
        "storage/retention.py",
        "copied_end=state.highest_copied_offset + 1 if is_copied else None,",
        "copied_end=state.high_watermark if is_copied else None,",
        world="tier",
    ),
    Mutant(
        "the leader epochs of what is in the tier only are lost with the power",
        "storage/log_tier.py",
        "    lower = [entry for entry in kept if entry.start_offset < first_local]\n",
        "    lower: list[EpochEntry] = []\n",
        finding="tier seed 42",
        world="tier",
        profile="epochs",
        test="unit/storage/log/test_tiered_log.py::test_the_epochs_of_what_is_in_the_tier_only_survive_a_power_cut",
    ),
    Mutant(
        "the leader epochs of records here are lost with the power where the tier has those before them",
        "storage/recovery.py",
        "        if known and self._log_start < first and (not on_file or on_file[0].start_offset > first):\n",
        "        if False:\n",
        finding="tier seed 511",
        world="tier",
        profile="epochs",
        test="unit/storage/log/test_tiered_log.py"
        "::test_the_epochs_of_records_that_are_here_survive_a_power_cut_beside_those_in_the_tier",
    ),
    Mutant(
        "what an unclean election took back is read from the tier",
        "tiered/lineage.py",
        "    return Piece(segment, offset, _agreed_end(segment, epochs.entries, offset))\n",
        "    return Piece(segment, offset, end)\n",
        world="tier",
        also=(
            (
                "tiered/lineage.py",
                "    if len(segment.epochs) == 1 and epochs.end_offset_for(epoch, end).end_offset >= end:\n",
                "    if len(segment.epochs) == 1:\n",
            ),
        ),
    ),
    Mutant(
        "a deposed leader leaves what it put too late",
        "tiered/copier.py",
        '                self._spawn(self._tidy_up(segment, may_be_finished), f"tier leavings of {lead.of.tp}")\n',
        "                pass\n",
        finding="tier seed 2",
        world="tier",
        profile="late",
        test="unit/tiered/test_tier_broker.py::test_a_copy_that_a_deposed_leader_finishes_late_counts_or_goes",
    ),
    # -- moves between log directories, and the session of a broker
    Mutant(
        "a log that moves back does not wait for the one that it replaced",
        "replication/log_dir_moves.py",
        "            if not await self._waits_for_the_move_before(partition.tp):\n",
        "            if True:\n",
        finding="core 1",
        profile="moves",
        test="unit/storage/manager/test_moves.py::test_move_back_waits_until_the_log_of_the_first_move_has_gone",
    ),
    Mutant(
        "of two logs of one partition the one that goes less far is used",
        "storage/manager_moves.py",
        "    leaving = min(one, other, key=_reach)\n",
        "    leaving = max(one, other, key=_reach)\n",
        finding="core 1",
        world="storage",
        test="unit/storage/manager/test_log_manager.py"
        "::test_of_one_partition_in_two_directories_the_one_that_goes_further_is_used",
    ),
    Mutant(
        "a broker that finds one partition twice does not start",
        "storage/manager_moves.py",
        "    if None not in (one.topic_id, other.topic_id) and one.topic_id != other.topic_id:\n",
        "    if one is not other:\n",
        finding="core 1",
        world="storage",
        test="unit/storage/manager/test_log_manager.py"
        "::test_of_one_partition_in_two_directories_the_one_that_goes_further_is_used",
    ),
    Mutant(
        "a controller ends at a reassignment whose state in ZooKeeper is nonsense",
        "controller/reassignment_machine.py",
        "            if partition not in context.leadership:\n",
        "            if False:\n",
        finding="core 12",
        profile="coincidences",
        test="scenarios/controller/test_reassignment_scenarios.py"
        "::test_partition_whose_state_cannot_be_read_waits_and_the_cluster_keeps_its_controller",
    ),
    Mutant(
        "of the members of an ISR that are gone at once one stays in it, whichever",
        "controller/replica_state_machine.py",
        "        if not (for_good and isr) and not any(self._state.context.is_online(each, partition) for each in isr):\n",
        "        if not isr:\n",
        finding="seed 50070",
        profile="coincidences",
        test="scenarios/controller/test_membership_scenarios.py"
        "::test_members_of_an_isr_that_go_at_once_all_stay_in_it_and_who_returns_first_leads",
    ),
    Mutant(
        "a reassignment that replaces another removes the leader, and elects nobody",
        "controller/reassignment_machine.py",
        "            if context.leadership[partition].leader in unneeded:\n",
        "            if False:\n",
        finding="control 1",
        profile="coincidences",
        test="scenarios/controller/test_reassignment_scenarios.py"
        "::test_plan_that_does_without_the_replica_that_leads_elects_another_first",
    ),
    Mutant(
        "a leader whose replica was moved away while it was away leads on",
        "replication/control_requests.py",
        "            if is_former or leader_epoch > partition.machine.leader_epoch:\n",
        "            if is_former:\n",
        finding="control 3",
        profile="coincidences",
        test="unit/replication/test_control_requests.py"
        "::test_leader_whose_replica_has_moved_while_it_was_away_leads_no_more",
    ),
    Mutant(
        "a server of ZooKeeper that is behind says that a topic is gone",
        "coordination/topic_lookup.py",
        "        await session.catch_up(paths.BROKER_TOPICS)\n",
        "",
        finding="control 4",
        test="unit/coordination/test_topic_lookup.py"
        "::test_topic_that_a_server_of_zookeeper_has_not_heard_of_yet_exists",
        why="the ZooKeeper of the worlds is one server",
    ),
    Mutant(
        "a broker that hosts a new topic has the settings that its server of ZooKeeper knows so far",
        "coordination/config_store.py",
        "            await self._session.catch_up(paths.config_type(entity_type))\n",
        "            pass\n",
        finding="control 5",
        test="unit/coordination/test_config_store.py"
        "::test_settings_of_a_topic_that_a_server_of_zookeeper_has_not_heard_of_yet_are_read",
        why="the ZooKeeper of the worlds is one server",
    ),
    Mutant(
        "replicas that a reassignment removed are told after ZooKeeper has forgotten them",
        "controller/reassignment_machine.py",
        "            self._requests.flush()\n",
        "            pass\n",
        finding="control 2",
        profile="coincidences",
        test="scenarios/controller/test_reassignment_scenarios.py"
        "::test_controller_dies_as_a_reassignment_ends_and_nobody_leads_on",
    ),
    Mutant(
        "a broker that is not connected to ZooKeeper as it registers ends",
        "coordination/session.py",
        '        while (found := self._connection.key) is None:\n            await self.exists("/")\n',
        '        if (found := self._connection.key) is None:\n            raise TypeError("no key")\n',
        finding="seed 10",
        profile="coincidences",
        test="unit/coordination/test_registration.py"
        "::test_broker_registers_when_the_connection_is_back_that_was_lost_just_before",
    ),
    Mutant(
        "a broker that returns without a restart knows topics for ever that were deleted meanwhile",
        "coordination/deleted_topics.py",
        "        if epochs != self._told_in:\n",
        "        if False:\n",
        finding="core 7",
        profile="coincidences",
        test="unit/coordination/test_deleted_topics.py"
        "::test_broker_that_returns_forgets_topics_that_were_deleted_meanwhile",
    ),
    Mutant(
        "settings that changed while a broker was away for long are not read again",
        "coordination/notifications.py",
        "            self._is_reload_due = True\n",
        "            pass\n",
        finding="core 8",
        profile="coincidences",
        test="unit/coordination/test_config_store.py"
        "::test_broker_that_was_away_for_so_long_that_notifications_are_gone_reads_all_settings_again",
    ),
    Mutant(
        "where a group lives is counted by what the controller has told so far",
        "coordination/internal_topic.py",
        "        if self.partitions:\n            return partition_of(key, self.partitions)\n",
        "        if counted := self._metadata.partition_count(self.name):\n            return partition_of(key, counted)\n",
        finding="chaos 3309",
        profile="coincidences",
        test="unit/coordination/test_internal_topic.py"
        "::test_group_lives_in_one_partition_whatever_the_controller_has_told_so_far",
    ),
    Mutant(
        "a copy keeps what its log was cut of",
        "replication/log_dir_moves.py",
        "        cut_at = current.take_cut()\n",
        "        cut_at = None\n",
        finding="KAFKA-18723",
        test="unit/storage/manager/test_moves.py"
        "::test_log_that_is_cut_and_written_over_while_it_is_read_for_its_copy_is_copied_as_it_is",
    ),
    # -- what the loop reads, and small files that are damaged
    Mutant(
        "a truncation reads segments on the event loop",
        "storage/truncation.py",
        "        state.env.threads.run(truncation.run, done)\n",
        "        from barnabas.storage.environment import InlineThreads\n\n        InlineThreads().run(truncation.run, done)\n",
        finding="R4",
        world="storage",
        test="unit/storage/log/test_truncation.py::test_event_loop_reads_no_segment_for_a_cut",
    ),
    Mutant(
        "a segment whose records are all deleted is read whole for a timestamp",
        "storage/log_read.py",
        "    if start is None:\n        return None  # the log starts after all of it: DeleteRecords\n",
        "",
        also=(
            (
                "storage/log_read.py",
                "    for at, header in segment.headers(start.position):\n",
                "    for at, header in segment.headers(0 if start is None else start.position):\n",
            ),
        ),
        finding="core 4",
        world="storage",
        test="unit/storage/log/test_read.py::test_segment_whose_records_are_all_deleted_is_not_read_for_a_timestamp",
    ),
    Mutant(
        "a damaged index of aborted transactions makes a clean start forget all producers",
        "storage/recovery.py",
        "        if clean and not self._had_snapshots:\n",
        "        if clean and not self._snapshots.offsets:\n",
        also=(
            (
                "storage/recovery.py",
                "        producers = self._new_producers()\n        rebuild_producers(\n",
                "        producers = self._new_producers()\n        self._snapshots.remove_outside(self._log_start, offset)\n"
                "        rebuild_producers(\n",
            ),
        ),
        finding="R6",
        world="storage",
        test="unit/storage/log/test_recovery.py::test_producers_of_a_log_that_was_closed_cleanly_survive_a_repair",
    ),
    Mutant(
        "an index of aborted transactions that is built again gets its name before it is on disk",
        "storage/segment_recovery.py",
        "        disk.fsync_path(aside.path)\n",
        "",
        finding="storage seed 248",
        world="storage",
        test="unit/storage/log/test_recovery.py"
        "::test_index_of_aborted_transactions_that_is_built_again_is_on_disk_before_it_gets_its_name",
    ),
    Mutant(
        "a damaged tail keeps a damaged index of aborted transactions from being built again",
        "storage/segment_recovery.py",
        "    except (CorruptSegment, _Damage) as error:\n",
        "    except ZeroDivisionError as error:\n",
        finding="storage seed 1728",
        world="storage",
        test="unit/storage/log/test_recovery.py"
        "::test_damaged_tail_keeps_no_damaged_index_of_aborted_transactions_from_being_built_again",
    ),
    Mutant(
        "a deleted segment whose log alone comes back has aborted nothing",
        "storage/leftovers.py",
        "    came_back = _came_back([parsed for _, parsed in files if parsed is not None])\n",
        "    came_back: set[int] = set()\n",
        finding="storage seed 292",
        world="storage",
        test="unit/storage/log/test_recovery.py"
        "::test_deleted_segment_whose_log_alone_comes_back_gets_its_indexes_again",
    ),
    Mutant(
        "a start after a crash does not save where logs start",
        "storage/manager_load.py",
        "                is_wanted = offsets != known\n",
        "                is_wanted = False\n",
        finding="storage seed 1812",
        world="storage",
        test="unit/storage/manager/test_log_manager.py"
        "::test_start_after_a_crash_saves_where_logs_start_before_what_of_them_is_trusted",
    ),
    # -- settings that change, and a process without a free descriptor
    Mutant(
        "a disk that fails as settings change keeps them from all other logs",
        "storage/manager.py",
        "            except LogDirFault as fault:\n                # The log has reported it. The others need",
        "            except ZeroDivisionError as fault:\n                # The log has reported it. The others need",
        finding="core 6",
        world="storage",
        test="unit/storage/manager/test_failing_dirs.py"
        "::test_disk_that_fails_as_settings_change_leaves_the_settings_of_other_logs_changed",
    ),
    Mutant(
        "a roll that fails leaves its segment for the next start",
        "storage/log_segments.py",
        "            self._discard([segment])\n            raise\n        self._flusher.unsynced.add(segment.log_path)\n",
        "            raise\n        self._flusher.unsynced.add(segment.log_path)\n",
        finding="core 20",
        world="storage",
        test="unit/storage/log/test_descriptors.py"
        "::test_segment_that_cannot_be_begun_keeps_no_descriptor_and_hides_no_record_from_the_next_start",
    ),
    Mutant(
        "a segment that could not be ended is taken for one with room",
        "storage/segment.py",
        "        last = self.time_index.last_entry  # opens both indexes, which then have room\n"
        "        self._index_full = True  # if this fails",
        "        self._index_full = True\n        last = self.time_index.last_entry  # if this fails",
        finding="storage seed 1052",
        world="storage",
        test="unit/storage/log/test_descriptors.py"
        "::test_segment_that_could_not_be_ended_takes_records_though_its_indexes_were_not_open_before",
    ),
    Mutant(
        "an index entry gets its blocks after its batch was written",
        "storage/segment.py",
        "            self.offset_index.reserve_entry()\n            self.time_index.reserve_entry()\n",
        "            pass\n",
        finding="core 20",
        world="storage",
        test="unit/storage/log/test_descriptors.py"
        "::test_change_without_a_free_descriptor_is_done_or_left_undone_or_the_fault_of_the_directory",
    ),
    Mutant(
        "a log that was cut in part goes on",
        "storage/log_state.py",
        '        self.fault(descriptors.half_way(error, f"the log of {self.partition}"))\n',
        "        self.fault(error)\n",
        finding="core 20",
        world="storage",
        test="unit/storage/log/test_descriptors.py"
        "::test_change_without_a_free_descriptor_is_done_or_left_undone_or_the_fault_of_the_directory",
    ),
    Mutant(
        "a follower knows the leader epochs of what it could not append",
        "storage/appender.py",
        "        self._write(data, plan, first, last, max_timestamp, offset_of_max, now_ms)\n"
        "        # Not before: what is refused for want of a descriptor comes again, and would begin its epochs where it begins itself.\n"
        "        for header, _ in batches:\n"
        "            self._start_epoch(header.leader_epoch, header.base_offset)\n",
        "        for header, _ in batches:\n"
        "            self._start_epoch(header.leader_epoch, header.base_offset)\n"
        "        self._write(data, plan, first, last, max_timestamp, offset_of_max, now_ms)\n",
        finding="core 20",
        world="storage",
        test="unit/storage/log/test_descriptors.py"
        "::test_leader_epochs_of_what_could_not_be_appended_are_not_known_before_it_comes_again",
    ),
    Mutant(
        "a cut counts on a snapshot of producers from below the log start",
        "storage/producer_replay.py",
        "        snapshot = None\n    start = log_start_offset if snapshot is None else snapshot.offset\n",
        "        pass\n    start = log_start_offset if snapshot is None else max(snapshot.offset, log_start_offset)\n",
        finding="core 24",
        world="storage",
        test="unit/storage/log/test_upkeep.py"
        "::test_transaction_whose_marker_is_below_the_log_start_is_not_open_after_a_truncation",
    ),
    Mutant(
        "a follower begins a segment behind what compaction has left out",
        "storage/appender.py",
        "self._segments.roll(end if last - end <= RELATIVE_OFFSET_MAX else first, now_ms)\n",
        "self._segments.roll(first, now_ms)\n",
        finding="core 21",
        world="storage",
        test="unit/storage/log/test_recovery.py"
        "::test_offsets_that_compaction_left_out_where_a_follower_began_a_segment_are_no_lost_tail",
    ),
    Mutant(
        "an index that has become too small loses entries",
        "storage/index_file.py",
        "        return max(self._round(self.max_index_bytes), (entries + 1) * self.ENTRY_SIZE)\n",
        "        return self._round(self.max_index_bytes)\n",
        finding="core 22",
        world="storage",
        test="unit/storage/log/test_upkeep.py"
        "::test_smaller_segment_index_bytes_cost_no_entry_of_the_segment_that_is_active",
    ),
    Mutant(
        "retention deletes the segments that a worker of the cleaner reads",
        "storage/manager.py",
        "            if not log.config.is_compacted and not self.is_being_cleaned(log.partition):\n",
        "            if not log.config.is_compacted:\n",
        finding="core 23",
        world="storage",
        test="unit/storage/cleaner/test_cleaner.py"
        "::test_log_that_is_no_longer_compacted_has_its_retention_after_its_cleaning",
    ),
    Mutant(
        "a log that moves is deleted before its copy is on disk",
        "storage/manager_moves.py",
        "        self._old[old.partition] = _Old(old.directory, [])\n        self._make_safe(old, copy)\n",
        "        self._delete(old)\n",
        finding="core 1",
        world="storage",
        test="unit/storage/manager/test_moves.py::test_power_cut_at_any_step_of_a_move_takes_nothing_that_was_flushed",
    ),
    Mutant(
        "of two logs of one partition the one that is used is not made durable",
        "storage/manager_moves.py",
        "        _make_durable(staying, disk)\n",
        "",
        finding="storage seed 347",
        world="storage",
        test="unit/storage/manager/test_moves.py::test_kill_in_a_move_and_a_power_cut_after_that_take_nothing_that_was_flushed",
    ),
    Mutant(
        "a copy takes the name of a log of which a checkpoint still tells",
        "storage/manager.py",
        "                self._save_bounds(future.log_dir, then)\n\n        directory, disk",
        "                then(None)\n\n        directory, disk",
        finding="storage seed 567",
        world="storage",
        test="unit/storage/manager/test_moves.py::test_power_cut_in_a_move_back_takes_nothing_that_was_flushed",
    ),
    Mutant(
        "a coordinator does not load a partition whose log moves to another directory meanwhile",
        "server/coordinator_log.py",
        "        while offset < (end := (log := replica.local_log).log_end_offset):\n",
        "        log = replica.local_log\n        while offset < (end := log.log_end_offset):\n",
        also=(
            (
                "server/coordinator_log.py",
                "                if replica.log in (None, log):\n                    raise\n                continue\n",
                "                raise\n",
            ),
        ),
        finding="core 9",
        profile="ambushes",
        test="unit/replication/test_coordinator_log.py::test_load_goes_on_in_the_directory_that_the_log_has_moved_to",
    ),
    Mutant(
        "records that wait for the disk while their log moves are refused",
        "replication/appends.py",
        "            if error is not None and partition.log not in (None, flushed_log):\n",
        "            if False:\n",
        finding="core 10",
        profile="ambushes",
        test="unit/replication/test_replica_manager.py"
        "::test_records_that_wait_for_the_disk_while_their_log_moves_are_acknowledged",
    ),
    Mutant(
        "what recovery or a killed process has deleted comes back with the next power cut",
        "storage/recovery.py",
        "        self._epoch_file.unsynced.add(doubtful[0].log_path)\n",
        "",
        finding="storage seeds 1035, 153",
        world="storage",
        test="unit/storage/log/test_recovery.py::test_first_flush_after_a_crash_syncs_the_directory",
    ),
    Mutant(
        "the indexes of a segment that was being replaced are trusted",
        "storage/recovery.py",
        "            elif segment.base_offset in replaced:\n                segment.rebuild_indexes",
        "            elif False:\n                segment.rebuild_indexes",
        finding="storage seed 20021",
        world="storage",
        test="unit/storage/log/test_recovery.py::test_indexes_of_a_segment_that_was_being_replaced_are_built_again",
    ),
    Mutant(
        "what is below a log start that was not saved counts as durable",
        "storage/log.py",
        "        return self._retention.maybe_increment_log_start_offset(offset, reason)\n",
        "        moved = self._retention.maybe_increment_log_start_offset(offset, reason)\n"
        "        self.flusher.recovery_point = max(self.flusher.recovery_point, Offset(offset))\n"
        "        return moved\n",
        finding="power cut 6",
        world="storage",
        test="simulation/test_storage_power.py::test_what_was_deleted_is_whole_where_a_power_cut_brings_it_back",
    ),
    Mutant(
        "a log that starts anew without a descriptor takes its directory with it",
        "storage/truncation.py",
        '        state.check_descriptors()\n        logger.info("dropping all of',
        '        logger.info("dropping all of',
        finding="storage reading 3",
        world="storage",
        test="unit/storage/log/test_descriptors.py::test_cut_for_which_there_are_too_few_descriptors_is_left_undone",
        why="no simulated process runs out of descriptors",
    ),
    Mutant(
        "a repair of indexes that could not begin never ends",
        "storage/segment.py",
        "            self.is_under_repair = False  # no descriptor",
        "            pass  # no descriptor",
        finding="storage reading 3",
        world="storage",
        test="unit/storage/log/test_index_repair.py::test_repair_that_could_not_begin_is_begun_by_the_next_who_reads",
        why="no simulated process runs out of descriptors",
    ),
    Mutant(
        "a swap of compacted segments without a descriptor is left half done",
        "storage/log_segments.py",
        "                if isinstance(error, OSError) and descriptors.are_exhausted(error):\n",
        "                if False:\n",
        finding="storage reading 3",
        world="storage",
        test="unit/storage/log/test_descriptors.py"
        "::test_cleaned_segments_take_their_places_when_a_descriptor_is_free_again",
        why="no simulated process runs out of descriptors",
    ),
    Mutant(
        "a replica of a former topic of that name leads on",
        "replication/control_requests.py",
        "            if is_former or leader_epoch > partition.machine.leader_epoch:\n",
        "            if leader_epoch > partition.machine.leader_epoch:\n",
        finding="storage reading 5",
        test="unit/replication/test_control_requests.py"
        "::test_leader_of_a_former_topic_of_that_name_leads_no_more_whatever_its_epoch",
        why="no broker of the worlds is away while a topic that it had is moved, deleted and made again",
    ),
    Mutant(
        "a client that goes while the tier is asked leaves files open",
        "replication/fetches.py",
        "            for read in self.reads:\n                read.release()\n",
        "",
        finding="storage reading 6",
        world="tier",
        test="unit/tiered/test_tier_reads.py"
        "::test_client_that_goes_away_leaves_nothing_pinned_of_what_was_read_for_it_meanwhile",
        why="no simulated process runs out of descriptors",
    ),
    # -- with flush.messages, what is acknowledged is on disk
    Mutant(
        "with flush.messages a follower acknowledges what is not on its disk",
        "replication/fetcher.py",
        "            *(replica.flush() for replica in unflushed),\n",
        "",
        finding="core 2",
        profile="flushed",
        test="unit/replication/test_replica_fetcher.py"
        "::test_records_that_have_to_be_flushed_are_acknowledged_when_they_are_on_disk",
    ),
    Mutant(
        "with flush.messages a leader commits what is not on its own disk",
        "storage/log.py",
        "        if flusher.recovery_point < flusher.due_up_to and offset > flusher.recovery_point:\n",
        "        if False:\n",
        finding="seed 33",
        profile="flushed",
        test="unit/replication/test_replica_manager.py::test_leader_commits_what_is_on_its_own_disk_too",
    ),
    Mutant(
        "with flush.messages what a killed process wrote counts before it is on disk",
        "storage/recovery.py",
        "        if end_offset - recovery_point >= self._config.flush_messages:\n",
        "        if False:\n",
        finding="kill, then power",
        profile="twice",
        test="unit/storage/log/test_recovery.py"
        "::test_records_of_a_killed_process_are_on_disk_before_they_count_where_flush_messages_wants_that",
    ),
    Mutant(
        "the retry of a batch that is being flushed is answered at once",
        "storage/appender.py",
        "            flush_due=before.last_offset >= self._flusher.recovery_point and self._flusher.is_due(),\n",
        "            flush_due=False,\n",
        finding="core 3",
        profile="ambushes",
        test="unit/replication/test_replica_manager.py"
        "::test_retry_of_a_batch_that_is_being_flushed_waits_for_the_disk_too",
    ),
    Mutant(
        "acks=all confirms a record that was cut during its flush",
        "replication/machine.py",
        "        if self.role is not Role.LEADER or self.leaderships != leadership:\n",
        "        if self.role is not Role.LEADER:\n",
        finding="R5",
        profile="ambushes",
        test="unit/replication/test_replica_manager.py"
        "::test_record_that_was_cut_while_the_disk_was_slow_is_not_acknowledged",
    ),
    # -- what strangers write into ZooKeeper
    Mutant(
        "a topic that another request fails to make is said to exist",
        "controller/topics.py",
        "        timeout_ms -= await self._until_made(names, timeout_ms=timeout_ms)\n",
        "",
        also=(
            (
                "controller/topics.py",
                "                ErrorCode.REQUEST_TIMED_OUT,\n                f\"Topic '{topic.name}' is being created",
                "                ErrorCode.TOPIC_ALREADY_EXISTS,\n                f\"Topic '{topic.name}' is being created",
            ),
        ),
        finding="seed 427",
        profile="groups",
        test="unit/controller/test_driver.py::test_topic_that_another_request_fails_to_make_is_not_said_to_exist",
    ),
    Mutant(
        "a CreateTopics that is refused changes the settings of the topic",
        "controller/topics.py",
        "        if topic.name in being_made:\n",
        "        if False:\n",
        also=(
            (
                "controller/topics.py",
                "for (_, each), result in zip(left_over, there, strict=True) if not result.ok])",
                "for (_, each), result in zip(left_over, there, strict=True)])",
            ),
            (
                "controller/topics.py",
                "        timeout_ms -= await self._until_made(names, timeout_ms=timeout_ms)\n",
                "",
            ),
            (
                "controller/topics.py",
                "                del being_made[name]\n",
                "                being_made.pop(name, None)\n",
            ),
        ),
        finding="core 5",
        profile="strangers",
        test="unit/controller/test_driver.py::test_request_for_a_topic_that_is_being_made_does_not_change_its_settings",
    ),
    Mutant(
        "somebody who deletes the place of notifications ends every broker",
        "coordination/notifications.py",
        "                except ZkError as error:\n                    # Somebody has deleted it",
        "                except ZeroDivisionError as error:\n                    # Somebody has deleted it",
        finding="core 11",
        profile="strangers",
        test="unit/coordination/test_config_store.py"
        "::test_broker_goes_on_when_somebody_has_deleted_the_place_of_notifications",
    ),
    Mutant(
        "settings of a topic that cannot be read take the controller from the whole cluster",
        "controller/partition_state_machine.py",
        '            except Malformed as error:\n                _log.error("%s", error)  # what cannot be read sets nothing\n',
        '            except ZeroDivisionError as error:\n                _log.error("%s", error)  # what cannot be read sets nothing\n',
        finding="core 13",
        profile="coincidences",
        test="scenarios/controller/test_leadership_scenarios.py"
        "::test_settings_of_a_topic_that_cannot_be_read_take_the_controller_from_nobody",
    ),
    Mutant(
        "an assignment in ZooKeeper that makes no sense takes the controller from the cluster, or deletes all replicas",
        "coordination/znodes.py",
        "        everyone = tuple(dict.fromkeys(replicas))\n        coming, going = set(adding), set(removing)\n",
        "        return ReplicaAssignment(tuple(replicas), adding=tuple(adding), removing=tuple(removing))\n"
        "        everyone = tuple(dict.fromkeys(replicas))\n        coming, going = set(adding), set(removing)\n",
        finding="core 14",
        profile="strangers",
        test="scenarios/controller/test_reassignment_scenarios.py"
        "::test_assignment_that_makes_no_sense_takes_the_controller_from_nobody_and_deletes_nothing",
    ),
    # -- members of groups that come and go
    Mutant(
        "a group that has just become classic is gone after a fail-over",
        "groups/machine.py",
        "                    [*group.tombstones(), empty.record({})],\n",
        "                    [*group.tombstones()],\n",
        finding="T6",
        profile="members",
        test="unit/groups/test_groups_migration.py::test_group_that_has_just_become_classic_is_there_after_a_failover",
    ),
    Mutant(
        "a static member whose return could not be written owns its partitions for ever",
        "groups/classic.py",
        "            out.if_refused = take_back\n",
        "",
        finding="T7",
        profile="ambushes",
        test="unit/groups/test_groups_classic.py"
        "::test_static_member_whose_return_could_not_be_written_is_as_before_and_expires",
    ),
    Mutant(
        "regular expressions never match internal topics",
        "groups/subscriptions.py",
        "if pattern.fullmatch(name) and may_describe(name))",
        'if pattern.fullmatch(name) and may_describe(name) and not name.startswith("__"))',
        finding="T12",
        profile="members",
        test="unit/groups/test_groups_consumer.py::test_regular_expression_matches_internal_topics_as_well",
    ),
    Mutant(
        "SyncGroup of a stable group does not renew the session",
        "groups/classic.py",
        "            self.heard_from(group, member, out)\n            return out.result(_synced(group, member.assignment))\n",
        "            return out.result(_synced(group, member.assignment))\n",
        finding="T13",
        profile="members",
        test="unit/groups/test_groups_classic.py::test_sync_of_a_stable_group_is_a_sign_of_life",
    ),
    Mutant(
        "a new coordinator knows of members what they said first",
        "groups/classic_group.py",
        "                member.protocols = (chosen,)\n",
        "                pass\n",
        finding="seed 2 of mixed groups",
        profile="members",
        test="unit/groups/test_groups_classic.py"
        "::test_new_coordinator_loads_a_group_whose_members_have_agreed_on_another_protocol_since",
    ),
    Mutant(
        "an offset that is to be kept for ever cannot be committed",
        "groups/offsets.py",
        "min(now_ms + request.retention_time_ms, EXPIRY_MAX_MS)",
        "now_ms + request.retention_time_ms",
        test="unit/groups/test_groups_offsets.py::test_offset_that_is_to_be_kept_for_ever_is_kept",
        why="no client of the simulation speaks OffsetCommit before v5",
    ),
    # -- topics and settings that change while nobody looks
    Mutant(
        "the end of a topic is merged with the news of its successor",
        "controller/channel.py",
        "            and not _is_about_successors(request, last)\n",
        "",
        test="unit/controller/test_channel.py::test_end_of_a_topic_is_not_lost_in_the_news_of_its_successor",
        why="a broker that hosts none of the topic must be busy until somebody has made it again",
    ),
    Mutant(
        "a topic that was made again has the partitions of the former one as well",
        "coordination/metadata_cache.py",
        "            topic.partitions.clear()\n        for state in states:",
        "        for state in states:",
        test="unit/coordination/test_metadata_cache.py"
        "::test_nothing_of_a_topic_is_left_when_its_successor_is_heard_of_first",
        why="no world makes a topic again with fewer partitions",
    ),
    Mutant(
        "of two changes of an entity's settings at once one is lost",
        "coordination/config_store.py",
        "            await self._session.set(path, data, version)\n",
        "            await self._session.set(path, data)\n",
        test="unit/broker/test_broker_settings.py::test_changes_of_several_settings_at_once_lose_none",
        why="no world changes settings of one entity from two places",
    ),
    Mutant(
        "a topic is refused to the request that has made it",
        "controller/topics.py",
        "            if result.ok or name in ours:\n",
        "            if result.ok:\n",
        test="unit/controller/test_driver.py::test_what_was_made_before_its_answer_was_lost_is_not_refused",
        why="clients of the simulation take TOPIC_ALREADY_EXISTS for success",
    ),
    Mutant(
        "who waits for the former life of a broker that was missed waits on",
        "coordination/features.py",
        "            self._broker_epochs = {**before, **now}\n",
        "            self._broker_epochs = now\n",
        test="unit/coordination/test_features.py::test_broker_that_returns_after_it_was_missed_is_noticed",
        why="what waits is asked again after request.timeout.ms, and nothing is lost",
    ),
    # -- members of our own client
    Mutant(
        "a member that cannot learn where to begin goes on with what it had",
        "client/group.py",
        "        self.consumer.assign({})\n        self._consumed, self._committed = {}, {}\n",
        "",
        test="unit/client/test_client_group.py"
        "::test_member_that_cannot_learn_where_to_begin_keeps_nothing_of_what_it_had",
        why="consumers of the simulation have a protocol of their own",
    ),
    Mutant(
        "a topic that was out of sight for a moment is read again",
        "client/subscription.py",
        "        self._seen[name] = (info.topic_id, max(count, len(info.partitions)))\n",
        "        self._seen[name] = (info.topic_id, max(count, len(info.partitions)))\n"
        "        count = self.counts.get(name, 0)\n",
        test="unit/client/test_client_reading_alone.py"
        "::test_topic_that_a_broker_did_not_know_for_a_while_is_not_read_again",
        why="consumers of the simulation have a protocol of their own",
    ),
]

MUTANTS = {mutant.name: mutant for mutant in _ALL}
assert len(MUTANTS) == len(_ALL), "two mutants have one name"
