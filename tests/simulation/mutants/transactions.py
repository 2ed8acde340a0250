"""Wrongs of transactions, and of the coordinators of both kinds."""

from tests.simulation.mutants.mutant import Mutant

MUTANTS = [
    # -- replication: the machine of a partition
    Mutant(
        "a coordinator that missed an epoch goes on as it was",
        "broker/runtime/coordinator.py",
        "            if current.state is ShardState.ACTIVE and epoch == current.epoch + 1:\n",
        "            if current.state is ShardState.ACTIVE:\n",
        finding="missed epoch",
        profile="ambushes",
        test="unit/broker/runtime/test_coordinator.py::test_coordinator_that_missed_an_epoch_loads_again",
    ),
    Mutant(
        "a coordinator that missed its successor delivers markers of what that one has ended",
        "broker/transactions/coordinator.py",
        "        if self._runtime.elected(partition, epoch):\n",
        "        if self._runtime.elected(partition, epoch) and False:\n",
        finding="missed epoch",
        profile="ambushes",
        test="unit/broker/transactions/test_transaction_coordinator.py"
        "::test_a_coordinator_that_missed_its_successor_sends_no_markers_of_transactions_it_ended",
    ),
    # -- transactions
    Mutant(
        "a cluster that steps back does not raise the epoch that was asked for",
        "broker/transactions/machine.py",
        "            decided = end(txn, identity, commit=commit, client_version",
        "            client_version = min(client_version, self._transaction_version())\n"
        "            decided = end(txn, identity, commit=commit, client_version",
        finding="T4",
        profile="broker/transactions",
    ),
    Mutant(
        "without verification no partition is added to a transaction",
        "broker/transactions",
        "            and (asked is Asked.ADD or producers.transaction_verification)",
        "            and producers.transaction_verification",
        finding="T1",
        profile="broker/transactions",
    ),
    Mutant(
        "offsets in a transaction are refused with the log's own error",
        "broker/parts",
        "            raise Refused(coordinator_error(refusal.code), refusal.message) from refusal",
        "            raise",
        also=(
            (
                "broker/groups",
                "        partition = self.partition_for(request.group_id)\n        self._runtime.require(partition)\n        guard",
                "        partition = self.partition_for(request.group_id)\n        guard",
            ),
        ),
        finding="T2",
        profile="broker/groups",
    ),
    Mutant(
        "the last producer epoch is raised",
        "broker/transactions",
        "    return min(epoch, LAST_CLIENT_EPOCH) + 1",
        "    return epoch + 1",
        finding="T3",
        profile="successions",
        test="unit/broker/transactions/test_transaction_rules.py::test_a_transaction_with_the_last_epoch_is_fenced",
    ),
    Mutant(
        "an answer from before a marker confirms a batch that comes after it",
        "broker/transactions/verification.py",
        "        key = (question, tuple(guards.items()))\n",
        "        key = (question, tuple(guards))\n",
        finding="T5",
        profile="ambushes",
        test="unit/broker/transactions/test_verification.py"
        "::test_an_answer_from_before_a_marker_confirms_no_batch_that_came_after_it",
    ),
    Mutant(
        "late batches are not verified",
        "broker/storage",
        "        if guard is None or entry is None or entry.guard is not guard:",
        "        if False:",
        also=(
            (
                "broker/transactions",
                "        return (\n            header.producer_id != NO_PRODUCER_ID\n",
                "        return asked is Asked.ADD and (\n            header.producer_id != NO_PRODUCER_ID\n",
            ),
        ),
        profile="broker/transactions",
    ),
    Mutant(
        "a decided transaction is forgotten with its coordinator",
        "broker/transactions",
        "            if txn.state.is_prepared:\n                result.effects.append(SendToDriver(_markers_of(txn)))\n",
        "            if False:\n                result.effects.append(SendToDriver(_markers_of(txn)))\n",
        profile="broker/transactions",
    ),
    Mutant(
        "an open transaction has no timer after a fail-over",
        "broker/transactions",
        "            elif txn.state is TransactionState.ONGOING:\n                self._watch(result, txn, now_ms)\n        result.effects",
        "            elif False:\n                self._watch(result, txn, now_ms)\n        result.effects",
        profile="broker/transactions",
    ),
    Mutant(
        "a partition of a transaction gets no marker",
        "broker/transactions",
        "        self.remaining = set(message.partitions)",
        "        self.left = set(message.partitions[1:])",
    ),
    Mutant(
        "an abort commits",
        "broker/transactions",
        "        transaction_result=decided.is_commit,",
        "        transaction_result=True,",
    ),
    Mutant(
        "markers without an answer are not sent again",
        "broker/transactions",
        "            for marker, _ in sent:\n                self._park(marker)\n            return",
        "            return",
        profile="broker/transactions",
    ),
    Mutant(
        "a partition that the coordinator has not heard of is gone",
        "broker/transactions",
        "                if not await self._exists(partition):",
        "                if True:",
        finding="1a80086",
        profile="coincidences",
        test="unit/broker/transactions/test_marker_delivery.py"
        "::test_a_partition_that_this_broker_does_not_know_yet_gets_its_marker",
    ),
    Mutant(
        "markers that were refused are not sent again",
        "broker/transactions",
        "        if again:\n            self._park(_Marker(decided, tuple(again)))",
        "        if again:\n            decided.left.difference_update(again)",
        profile="broker/transactions",
    ),
    Mutant(
        "the epoch does not rise when a transaction is fenced",
        "broker/transactions",
        "    epoch = _raise(txn.epoch)\n    if txn.has_kept:",
        "    epoch = txn.epoch\n    if txn.has_kept:",
        profile="broker/transactions",
    ),
    Mutant(
        "EndTxn of a stranger is obeyed",
        "broker/transactions",
        "    if identity != txn.client:\n        raise not_current_client(txn, identity)\n    if txn.state is not TransactionState.ONGOING and commit:",
        "    if txn.state is not TransactionState.ONGOING and commit:",
        profile="broker/transactions",
    ),
    Mutant(
        "a transaction that has timed out stays open",
        "broker/transactions",
        "        if txn.start_ms <= now_ms < txn.start_ms + txn.timeout_ms:\n            self._watch(result, txn, now_ms)\n            return result\n",
        "        if True:\n            return result\n",
        profile="broker/transactions",
    ),
    Mutant(
        "producer ids are given out twice",
        "broker/transactions",
        "        self._next_id += 1\n        if self._next_block is None",
        "        self._next_id += 0\n        if self._next_block is None",
    ),
    # -- coordinators
    Mutant(
        "a coordinator serves what it has loaded before it is committed",
        "broker/server",
        "        error = await replicated\n",
        "        error = ErrorCode.NONE\n",
        finding="T13",
        profile="broker/groups",
    ),
    Mutant(
        "who looks at what waits is disturbed by a failing disk",
        "broker/runtime",
        "        completed = 0\n"
        "        # Iterate over a copy: a check may find that a disk has failed, and that wakes all operations which wait for it.\n"
        "        for operation in list(watchers):\n"
        "            if not operation.completed and operation.is_satisfied_by(key):\n"
        "                completed += self._finish(operation, False)\n"
        "        return completed\n",
        "        done = [operation for operation in watchers if operation.is_satisfied_by(key)]\n"
        "        for operation in done:\n"
        "            self._finish(operation, False)\n"
        "        return len(done)\n",
        finding="R9",
        profile="meetings",
        test="unit/broker/replication/test_replica_manager.py::test_disk_that_a_long_poll_finds_broken_ends_every_wait_once",
    ),
    Mutant(
        "a batch behind a refused one is judged by the log",
        "broker/replication",
        "        if code not in RETRIABLE or code in _UNTRUSTED:\n            return\n",
        "        if True:\n            return\n",
        also=(("broker/replication", "            self.early.elected(partition.tp)\n", "            pass\n"),),
        finding="L2",
        profile="refusals",
        test="unit/broker/replication/test_early_batches.py"
        "::test_batches_behind_a_refused_one_get_its_error_and_are_all_sent_again_in_order",
    ),
    Mutant(
        "a coordinator answers before its record is committed",
        "broker/runtime",
        "        self._uncommitted.add(number)\n        limit = self._limit(responses)",
        "        is_replayed = True\n        committed(ErrorCode.NONE)",
        profile="broker/groups",
    ),
    Mutant(
        "a coordinator keeps its state when it is refused",
        "broker/runtime",
        "            if error is ErrorCode.NONE:\n                self._answer(responses)",
        "            if True:\n                self._answer(responses)",
        profile="broker/groups",
    ),
    Mutant(
        "the timers of a coordinator that has moved go on",
        "broker/runtime",
        "        self.state = ShardState.CLOSED\n        self._alarms.clear()",
        "        self.state = ShardState.CLOSED",
        profile="broker/groups",
    ),
    Mutant(
        "reads of a coordinator do not wait for what they saw",
        "broker/runtime",
        "        if self._uncommitted:\n            future: asyncio.Future[None]",
        "        if False:\n            future: asyncio.Future[None]",
        profile="broker/groups",
    ),
    Mutant(
        "a transaction whose markers cannot be written holds up the producers of all leaders that ask",
        "broker/transactions/coordinator.py",
        "            wait_max_ms=BROKERS_WAIT_MAX_MS if by_broker else None,\n",
        "",
        test="unit/broker/transactions/test_transaction_coordinator.py"
        "::test_a_transaction_whose_markers_cannot_be_written_delays_no_other_producer",
        why="it is slow, and nothing is wrong",
    ),
    Mutant(
        "a coordinator that has not heard of one partition yet makes producers abort because of the others",
        "broker/transactions/verification.py",
        "        ErrorCode.OPERATION_NOT_ATTEMPTED,\n",
        "",
        test="unit/broker/transactions/test_verification.py::test_error_that_a_producer_gets",
        why="producers of the simulation begin when all brokers know the topics",
    ),
]
