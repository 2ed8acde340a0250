"""Mutants of replicas: partition machine, fetch sessions of followers, requests of the controller, moves."""

from tests.simulation.mutants.mutant import Mutant

MUTANTS = [
    # -- replication: the machine of a partition
    Mutant(
        "a leader that missed an epoch uses its followers' old log ends",
        "broker/replication/machine.py",
        "        was_led_by_another = is_new_leader or state.leader_epoch > self.leader_epoch + 1\n",
        "        was_led_by_another = is_new_leader\n",
        finding="missed epoch",
        profile="coincidences",
        test="unit/broker/replication/test_replication_machine.py"
        "::test_leader_that_missed_an_epoch_forgets_its_followers_log_ends",
    ),
    Mutant(
        "the high watermark ignores the followers",
        "broker/replication",
        "                follower.in_maximal_isr\n                or (",
        "                False\n                or (",
    ),
    Mutant(
        "the high watermark moves while too few are in sync",
        "broker/replication",
        "if len(self.isr) < self._min_isr or self.role is not Role.LEADER:",
        "if self.role is not Role.LEADER:",
    ),
    Mutant(
        "acks=all is answered before the followers have the record",
        "broker/replication",
        "if self.log.high_watermark < required_offset:\n            return None",
        "if self.log.high_watermark < required_offset - 1:\n            return None",
    ),
    Mutant(
        "a lagging follower joins the ISR",
        "broker/replication",
        "if follower.log_end < self.high_watermark or follower.log_end < self.leader_epoch_start:\n            return None",
        "if False:\n            return None",
        profile="sync",
    ),
    Mutant(
        "a follower joins the ISR without what earlier leaders wrote",
        "broker/replication",
        "if follower.log_end < self.high_watermark or follower.log_end < self.leader_epoch_start:",
        "if follower.log_end < self.high_watermark:",
        profile="elections",
    ),
    Mutant(
        "a leader counts a shrunk ISR before the controller agrees",
        "broker/replication",
        "propose = self._propose(IsrChange.SHRINK, self.isr - lagging)",
        "propose = self._propose(IsrChange.SHRINK, self.isr - lagging)\n"
        "                for each in self._order:\n"
        "                    each.in_maximal_isr = each.in_maximal_isr and each.broker_id not in lagging",
    ),
    Mutant(
        "a lagging follower never leaves the ISR",
        "broker/replication",
        "            if lagging:\n",
        "            if lagging and False:\n",
    ),
    Mutant(
        "a new leader answers with its end offset before it knows what is committed",
        "broker/replication",
        "return self.role is Role.LEADER and self.leader_epoch_start > self.high_watermark",
        "return False",
        profile="elections",
    ),
    Mutant(
        "an old leader epoch is not fenced",
        "broker/replication",
        "            if current_leader_epoch < self.leader_epoch:\n                return ErrorCode.FENCED_LEADER_EPOCH",
        "            if current_leader_epoch < self.leader_epoch:\n                return ErrorCode.NONE",
    ),
    Mutant(
        "a follower takes the leader's high watermark though its log is shorter",
        "broker/replication",
        "committed = leader_high_watermark if leader_high_watermark < log_end else log_end",
        "committed = leader_high_watermark",
    ),
    Mutant(
        "a rejected ISR change counts as accepted",
        "broker/replication",
        "        if error in _NOT_APPLIED:\n            self._commit_isr(self.isr)",
        "        if error in _NOT_APPLIED:\n            self._commit_isr(frozenset(each.broker_id for each in proposal.isr))",
        profile="sync",
    ),
    Mutant(
        "a lost ISR change is not repeated",
        "broker/replication/isr_changes.py",
        "            if partition.machine.pending is proposal:",
        "            if False:",
        profile="sync",
    ),
    # -- replication: partitions that a follower's fetch session leaves out
    Mutant(
        "a growing log does not wake the fetch sessions that leave it out",
        "broker/replication/hosted.py",
        "            self.fetch_purgatory.check(partition.log_end_key)\n        if partition.resting:\n",
        "            self.fetch_purgatory.check(partition.log_end_key)\n        if False:\n",
    ),
    Mutant(
        "a new high watermark does not wake the fetch sessions that leave the partition out",
        "broker/replication/hosted.py",
        "        self.fetch_purgatory.check(partition)\n        if partition.resting:\n",
        "        self.fetch_purgatory.check(partition)\n        if False:\n",
    ),
    Mutant(
        "a new log start does not wake the fetch sessions that leave the partition out",
        "broker/replication/hosted.py",
        "        if partition is not None and partition.resting:\n            self.stir(partition)\n",
        "",
        also=(
            (
                "broker/replication/hosted.py",
                "        partition = self.partitions.get(tp)\n\n    def stir",
                "        pass\n\n    def stir",
            ),
        ),
        profile="administrator",
    ),
    Mutant(
        "a waiting fetch session does not notice partitions that wake up",
        "broker/replication/hosted.py",
        "        for session in partition.stir():\n            self.fetch_purgatory.check(session)\n",
        "        partition.stir()\n",
        profile="meetings",
        test="unit/broker/replication/test_resting_partitions.py"
        "::test_record_in_a_resting_partition_ends_the_wait_and_only_that_partition_is_answered",
    ),
    Mutant(
        "a fetch session leaves out a follower outside the ISR",
        "broker/replication/partition.py",
        "            and replica_id in machine.isr\n",
        "",
        profile="sync",
    ),
    Mutant(
        "a fetch session leaves out a follower that does not know the high watermark",
        "broker/replication/partition.py",
        "            and want.sent_high_watermark == log.high_watermark\n",
        "",
    ),
    Mutant(
        "a fetch session leaves out a follower that left the ISR",
        "broker/replication/manager.py",
        "        self.hosted.stir(partition)\n        if settled.hw_moved:",
        "        if settled.hw_moved:",
        profile="sync",
    ),
    Mutant(
        "a new leader epoch does not wake the fetch sessions that leave the partition out",
        "broker/replication/control_requests.py",
        "            self._replicas.appends.elected(partition)\n        self._replicas.hosted.wake_all(partition)\n",
        "            self._replicas.appends.elected(partition)\n",
        profile="elections",
    ),
    Mutant(
        "a former leader does not wake the fetch sessions that leave the partition out",
        "broker/replication/control_requests.py",
        "order.state.leader_epoch)\n        self._replicas.hosted.wake_all(partition)\n        leader = order.state.leader\n",
        "order.state.leader_epoch)\n        leader = order.state.leader\n",
        profile="elections",
    ),
    Mutant(
        "a fetch session leaves out a partition that its follower has changed",
        "broker/replication/fetch_session_cache.py",
        "                self.wake(known)\n                known.update(partition)",
        "                known.update(partition)",
        profile="elections",
    ),
    Mutant(
        "a partition that an ended fetch session left out is left out for ever",
        "broker/replication/fetch_session_cache.py",
        "            session.wake_all()\n",
        "            pass\n",
        profile="sync",
    ),
    # -- replication: requests of the controller
    Mutant(
        "a broker obeys before it is registered",
        "broker/compose.py",
        "        await self._unless_stopped(self.session.outlive(self.registrar.register))\n",
        "        self.server.start_accepting()\n        await self._unless_stopped(self.session.outlive(self.registrar.register))\n",
        also=(
            (
                "broker/compose.py",
                "features.refresh()\n        self.server.start_accepting()\n",
                "features.refresh()\n",
            ),
            ("broker/replication", "    if current_epoch == NO_BROKER_EPOCH:\n        return True\n", ""),
        ),
        finding="R1",
        profile="power",
    ),
    Mutant(
        "a broker obeys a former controller, whatever its epoch",
        "broker/replication",
        "return request_epoch < known_epoch",
        "return False",
        also=(
            (
                "broker/replication",
                "    if state.leader_epoch > current_leader_epoch:",
                "    if state.leader_epoch != current_leader_epoch:",
            ),
        ),
        profile="sync",
    ),
    Mutant(
        "a request for an earlier registration is obeyed",
        "broker/replication",
        "return request_epoch != NO_BROKER_EPOCH and request_epoch < current_epoch",
        "return False",
        profile="power",
    ),
    Mutant(
        "one bad partition ends the whole LeaderAndIsr",
        "broker/replication",
        "        except (LogDirFault, Refused) as error:\n            # Only this",
        "        except LogDirFault as error:\n            # Only this",
        profile="directories",
        finding="R2",
    ),
    Mutant(
        "a follower does not follow its new leader",
        "broker/replication",
        "        elif must_refetch:\n",
        "        elif must_refetch and False:\n",
    ),
    Mutant(
        "a coordinator does not hear that its broker leads a partition",
        "broker/replication",
        "                listener(led, followed)",
        "                listener([], followed)",
    ),
    Mutant(
        "a coordinator does not hear that its broker no longer leads a partition",
        "broker/replication",
        "                listener(led, followed)",
        "                listener(led, [])",
        profile="broker/groups",
    ),
    # -- replication: partitions, fetchers, the manager
    Mutant(
        "a consumer reads records that are not committed",
        "broker/replication",
        "return log.last_stable_offset if params.isolation_level == READ_COMMITTED else log.high_watermark",
        "return log.log_end_offset",
        also=(
            (
                "broker/replication",
                "            if fetch_offset == bound and not log.is_closed:\n",
                "            bound = log.log_end_offset\n            if fetch_offset == bound and not log.is_closed:\n",
            ),
        ),
    ),
    Mutant(
        "read_committed reads past open transactions",
        "broker/replication",
        "return log.last_stable_offset if params.isolation_level == READ_COMMITTED else log.high_watermark",
        "return log.high_watermark",
        also=(("broker/replication", "            bound = result.last_stable_offset\n", "            pass\n"),),
        profile="broker/transactions",
    ),
    Mutant(
        "a follower's diverging log is not noticed",
        "broker/replication",
        "        if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset:",
        "        if False:",
        profile="elections",
    ),
    Mutant(
        "read_committed responses list no aborted transactions",
        "broker/replication",
        "        if found.size_bytes and params.isolation_level == READ_COMMITTED and not from_follower:",
        "        if False:",
    ),
    Mutant(
        "a follower does not take over the leader's log start",
        "broker/replication",
        "        if log.log_start_offset < leader_log_start <= log.high_watermark:",
        "        if False:",
        profile="administrator",
    ),
    Mutant(
        "a follower takes records of a later epoch than its leader's",
        "broker/replication/partition.py",
        "now_ms=self._clock.now_ms(), leader_epoch=self.machine.leader_epoch)\n",
        "now_ms=self._clock.now_ms())\n",
        finding="KAFKA-18723",
        profile="answers",
        test="unit/broker/replication/test_follower_truncation.py::test_follower_appends_no_records_of_a_later_epoch_than_its_leaders",
    ),
    Mutant(
        "a deletion is answered while checkpoints name the log",
        "broker/replication/control_requests.py",
        "        await forgotten.wait()\n",
        "",
        finding="storage reading 5",
        profile="meetings",
        test="unit/broker/replication/test_control_requests.py::test_partition_on_a_dead_disk_is_not_reported_as_deleted",
    ),
    # -- moves between log directories, and the session of a broker
    Mutant(
        "a log that moves back does not wait for the one that it replaced",
        "broker/replication/log_dir_moves.py",
        "            if not await self._waited_for_previous_move(partition.tp):\n",
        "            if True:\n",
        finding="core 1",
        profile="moves",
        test="unit/broker/storage/manager/test_moves.py::test_move_back_waits_until_the_log_of_the_first_move_has_gone",
    ),
    Mutant(
        "a leader whose replica was moved away during its absence still leads",
        "broker/replication/control_requests.py",
        "            if is_former or leader_epoch > partition.machine.leader_epoch:\n",
        "            if is_former:\n",
        finding="control 3",
        profile="coincidences",
        test="unit/broker/replication/test_control_requests.py"
        "::test_leader_whose_replica_was_moved_while_it_was_disconnected_stops",
    ),
    Mutant(
        "a copy keeps records that were truncated from its log",
        "broker/replication/log_dir_moves.py",
        "        cut_at = current.take_cut()\n",
        "        cut_at = None\n",
        finding="KAFKA-18723",
        profile="successions",
        test="unit/broker/storage/manager/test_moves.py"
        "::test_log_that_is_cut_and_written_over_while_it_is_read_for_its_copy_is_copied_as_it_is",
    ),
    # -- settings that change, and a process without a free descriptor
    Mutant(
        "a coordinator does not load a partition whose log moves to another directory meanwhile",
        "broker/server/coordinator_log.py",
        "        while offset < (end := (log := replica.local_log).log_end_offset):\n",
        "        log = replica.local_log\n        while offset < (end := log.log_end_offset):\n",
        also=(
            (
                "broker/server/coordinator_log.py",
                "                if replica.log in (None, log):\n                    raise\n                continue\n",
                "                raise\n",
            ),
        ),
        finding="core 9",
        profile="ambushes",
        test="unit/broker/replication/test_coordinator_log.py::test_load_continues_in_the_directory_to_which_the_log_was_moved",
    ),
    Mutant(
        "records that wait for a flush are refused when their log moves",
        "broker/replication/appends.py",
        "            if error is not None and partition.log not in (None, flushed_log):\n",
        "            if False:\n",
        finding="core 10",
        profile="ambushes",
        test="unit/broker/replication/test_replica_manager.py"
        "::test_records_that_wait_for_the_disk_while_their_log_moves_are_acknowledged",
    ),
    Mutant(
        "a replica of a former topic of the same name still leads",
        "broker/replication/control_requests.py",
        "            if is_former or leader_epoch > partition.machine.leader_epoch:\n",
        "            if leader_epoch > partition.machine.leader_epoch:\n",
        finding="storage reading 5",
        profile="meetings",
        test="unit/broker/replication/test_control_requests.py"
        "::test_leader_of_a_former_topic_with_the_same_name_stops_in_any_epoch",
    ),
    # -- with flush.messages, acknowledged records are on disk
    Mutant(
        "with flush.messages a follower acknowledges records that are not on its disk",
        "broker/replication/fetcher.py",
        "            *(replica.flush() for replica in unflushed),\n",
        "",
        finding="core 2",
        profile="flushed",
        test="unit/broker/replication/test_replica_fetcher.py"
        "::test_records_that_must_be_flushed_are_acknowledged_only_on_disk",
    ),
    Mutant(
        "acks=all confirms a record that was cut during its flush",
        "broker/replication/machine.py",
        "        if self.role is not Role.LEADER or self.leaderships != leadership:\n",
        "        if self.role is not Role.LEADER:\n",
        finding="R5",
        profile="ambushes",
        test="unit/broker/replication/test_replica_manager.py"
        "::test_record_that_was_truncated_while_the_disk_was_slow_is_not_acknowledged",
    ),
    Mutant(
        "a former leader answers OUT_OF_ORDER_SEQUENCE_NUMBER",
        "broker/replication/partition.py",
        "            raise self._error_for_gap(refused, now_ms) from refused\n",
        "            raise\n",
        finding="chaos 3602",
        profile="answers",
        test="unit/broker/replication/test_early_batches.py"
        "::test_leader_whose_followers_are_gone_does_not_say_that_a_sequence_is_out_of_order",
    ),
    Mutant(
        "a moved log loses a leader epoch without records",
        "broker/replication/log_dir_moves.py",
        "                    future.assign_epoch_start(latest.epoch, latest.start_offset)\n",
        "                    pass\n",
        finding="seed 90",
        profile="moves",
        test="unit/broker/storage/manager/test_moves.py::test_leader_epoch_without_a_record_moves_with_its_log",
    ),
]
