"""Mutants of groups, and of our client as a member."""

from tests.simulation.mutants.mutant import Mutant

MUTANTS = [
    # -- groups
    Mutant(
        "TxnOffsetCommit without a member is refused by a consumer group",
        "broker/groups/consumer_group.py",
        "        if is_transactional and generation < 0 and not member_id and instance_id is None:\n"
        "            return  # transactional producers may leave out the consumer\n",
        "",
        finding="T8",
        profile="broker/groups",
    ),
    Mutant(
        "a commit of a former generation is accepted",
        "broker/groups",
        "            if generation != self.generation:\n                raise Refused(ErrorCode.ILLEGAL_GENERATION)\n        elif not is_transactional:",
        "            pass\n        elif not is_transactional:",
        profile="broker/groups",
    ),
    Mutant(
        "offsets of an aborted transaction are kept",
        "broker/groups",
        "        if not is_commit:\n            return\n        for group_id, topics in pending.by_group.items():",
        "        for group_id, topics in pending.by_group.items():",
        profile="broker/transactions",
    ),
    Mutant(
        "a commit is acknowledged and not written",
        "broker/groups",
        "        out.records.append(records.offset_commit(commit))\n",
        "",
        profile="broker/groups",
    ),
    Mutant(
        "expired offsets are deleted in one batch, however large",
        "broker/groups/offsets.py",
        "        return self._counted < TOMBSTONES_MAX and self._size_bytes < TOMBSTONE_BYTES_MAX\n",
        "        return self._counted < TOMBSTONES_MAX\n",
        test="unit/broker/groups/test_groups_offsets.py::test_long_names_are_removed_in_batches_that_can_be_written",
        why="groups of the simulation have short names",
    ),
    Mutant(
        "SyncGroup answers an error code unknown to clients while the coordinator loads",
        "broker/api/groups.py",
        "                return SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)\n",
        "                return SyncGroupResponse(error_code=refusal.code)\n",
        test="unit/broker/groups/test_groups_api.py::test_member_whose_coordinator_is_loading_joins_again",
        why="clients of the simulation handle that error code",
    ),
    Mutant(
        "OffsetCommit answers an error code unknown to clients while replicas are slow",
        "broker/api/group_offsets.py",
        "                code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS\n",
        "                code = ErrorCode.COORDINATOR_NOT_AVAILABLE\n",
        test="unit/broker/groups/test_groups_api.py"
        "::test_consumer_that_waits_for_slow_replicas_gets_an_error_and_asks_again",
        why="clients of the simulation handle that error code",
    ),
    # -- the client
    Mutant(
        "an accepted batch is finished again with its transaction",
        "client/sending.py",
        "                del self.unfinished[batch]  # before the next batch, which may fail the transaction\n",
        "",
        finding="seed 40",
        profile="ambushes",
        test="unit/client/test_client_sending.py"
        "::test_accepted_batch_is_finished_once_if_another_of_its_request_fails_the_transaction",
    ),
    Mutant(
        "our client looks for a missing partition without a pause and without an end",
        "client/sending.py",
        "            if image.leader_of(lane.partition) >= 0:\n                continue\n",
        "            found = image.topics.get(lane.partition.topic)\n"
        "            if found is not None and all(part.leader >= 0 for part in found.partitions):\n"
        "                continue\n",
        test="unit/client/test_client_producer.py"
        "::test_record_for_a_missing_partition_fails_in_time_and_with_few_requests",
        why="producers of the simulation write only to existing partitions",
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
        profile="broker/transactions",
        test="unit/client/test_client_transactions.py::test_late_batch_of_a_finished_transaction_is_refused",
    ),
    # -- members of groups that come and go
    Mutant(
        "a group that has just become classic is gone after a fail-over",
        "broker/groups/machine.py",
        "                [*group.tombstones(), empty.record({})],\n",
        "                [*group.tombstones()],\n",
        finding="T6",
        profile="members",
        test="unit/broker/groups/test_groups_migration.py::test_group_that_has_just_become_classic_exists_after_a_failover",
    ),
    Mutant(
        "a static member whose return was not written owns its partitions for ever",
        "broker/groups/classic.py",
        "            out.if_refused = take_back\n",
        "",
        finding="T7",
        profile="ambushes",
        test="unit/broker/groups/test_groups_classic.py"
        "::test_static_member_whose_return_could_not_be_written_is_as_before_and_expires",
    ),
    Mutant(
        "regular expressions never match internal topics",
        "broker/groups/subscriptions.py",
        "if pattern.fullmatch(name) and may_describe(name))",
        'if pattern.fullmatch(name) and may_describe(name) and not name.startswith("__"))',
        finding="T12",
        profile="members",
        test="unit/broker/groups/test_groups_consumer.py::test_regular_expression_matches_internal_topics_as_well",
    ),
    Mutant(
        "SyncGroup of a stable group does not renew the session",
        "broker/groups/classic.py",
        "            self.heard_from(group, member, out)\n            return out.result(_synced(group, member.assignment))\n",
        "            return out.result(_synced(group, member.assignment))\n",
        finding="T13",
        profile="members",
        test="unit/broker/groups/test_groups_classic.py::test_sync_of_a_stable_group_is_a_sign_of_life",
    ),
    Mutant(
        "a new coordinator has the members' first subscriptions",
        "broker/groups/classic_group.py",
        "                member.protocols = (chosen,)\n",
        "                pass\n",
        finding="seed 2 of mixed groups",
        profile="successions",
        test="unit/broker/groups/test_groups_classic.py"
        "::test_new_coordinator_loads_a_group_whose_members_have_agreed_on_another_protocol_since",
    ),
    Mutant(
        "an offset with unlimited retention cannot be committed",
        "broker/groups/offsets.py",
        "min(now_ms + request.retention_time_ms, EXPIRY_MAX_MS)",
        "now_ms + request.retention_time_ms",
        profile="answers",
        test="unit/broker/groups/test_groups_offsets.py::test_offset_with_unlimited_retention_is_kept",
    ),
    # -- members of our own client
    Mutant(
        "a member without a first offset continues with its former partitions",
        "client/group.py",
        "        self.consumer.assign({})\n        self._consumed, self._committed = {}, {}\n",
        "",
        profile="answers",
        test="unit/client/test_client_group.py::test_member_that_cannot_fetch_its_offsets_drops_its_old_partitions",
    ),
    Mutant(
        "members that share a client cannot send heartbeats while one of them joins",
        "client/membership.py",
        'self._purpose = f"{COORDINATION} of member {next(_NUMBERS)}"',
        "self._purpose = COORDINATION",
        test="unit/client/test_client_members_together.py"
        "::test_members_that_share_a_client_share_the_partitions_at_once",
        why="each member of the simulation has its own client",
    ),
    Mutant(
        "records of a poll that fails are skipped",
        "client/group.py",
        "                self.consumer.give_back(fetched)\n",
        "",
        test="unit/client/test_client_group.py::test_records_of_a_failed_poll_are_returned_by_the_next_one",
        why="consumers of the simulation do not use the group consumer",
    ),
    Mutant(
        "a topic that metadata lacked for a moment is read again",
        "client/subscription.py",
        "        self._seen[name] = (info.topic_id, max(count, len(info.partitions)))\n",
        "        self._seen[name] = (info.topic_id, max(count, len(info.partitions)))\n"
        "        count = self.counts.get(name, 0)\n",
        profile="answers",
        test="unit/client/test_client_reading_alone.py"
        "::test_topic_that_a_broker_did_not_know_for_a_while_is_not_read_again",
    ),
]
