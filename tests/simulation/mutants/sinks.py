"""Mutants of the sink of Spark that writes exactly once."""

from tests.simulation.mutants.mutant import Mutant

_DECISION = "unit/spark/test_spark_sink_decision.py::"
_DIES = (
    "unit/spark/test_spark_sink_protocol.py::test_a_driver_that_dies_is_followed_by_one_that_finishes_or_starts_over"
)
_PAUSED = (
    "unit/spark/test_spark_sink_protocol.py::"
    "test_driver_that_is_paused_at_any_step_aborts_nothing_that_another_one_decides"
)

MUTANTS = [
    Mutant(
        "a batch that is not the one that was written is written as if it were",
        "spark/decision.py",
        "    if candidate.accepted:\n        return next_one",
        "    if True:\n        return next_one",
        finding="P1",
        world="spark",
        profile="rewound by hand",
    ),
    Mutant(
        "a batch that is not the one that was written is left out",
        "spark/decision.py",
        'return _Line.FOREIGN if set(before.differences(identity)) - {"batch"} else _Line.AGAIN',
        "return _Line.AGAIN",
        finding="P1",
        world="spark",
        profile="rewound by hand",
    ),
    Mutant(
        "a copied checkpoint is taken for the original",
        "spark/checkpoint.py",
        "    elif not is_here:\n        raise CheckpointElsewhere(",
        "    elif False:\n        raise CheckpointElsewhere(",
        finding="P2",
        world="spark",
        profile="copied",
    ),
    Mutant(
        "an accepted copy of a checkpoint keeps the name under which the original is known",
        "spark/checkpoint.py",
        "            id=new_id, known_as=new_id, location=files.location",
        "            id=new_id, known_as=query, location=files.location",
        world="spark",
        profile="copied",
    ),
    Mutant(
        "the option for a skipped batch writes it",
        "spark/decision.py",
        "is_skipped=candidate.accepted == SKIP)",
        "is_skipped=False)",
        world="spark",
        profile="rewound by hand",
    ),
    Mutant(
        "a rewound checkpoint keeps its id",
        "spark/checkpoint.py",
        "return replace(self, id=uuid.uuid4().hex, replaces=before, made_at_ms=_now_ms(), why=why)",
        "return replace(self, replaces=before, made_at_ms=_now_ms(), why=why)",
        world="spark",
        profile="rewound by command",
    ),
    Mutant(
        "a batch that is planned again by the command counts as the end of the earlier generation",
        "spark/decision.py",
        "            return next_one._replace(generation=known.generation + 1)\n",
        "            return next_one\n",
        world="spark",
        profile="rewound by command",
        test=_DECISION + "test_a_checkpoint_that_was_replanned_on_purpose_follows_any_batch_of_its_former_id",
    ),
    Mutant(
        "a decided batch whose driver died is not ended by the next one",
        "spark/transactions.py",
        "        if verdict.unfinished is not None:\n            self._finish(batch.query, verdict.unfinished, where, driver, identity)\n        if verdict.is_takeover:",
        "        if verdict.is_takeover:",
        world="spark",
        test="unit/spark/test_spark_sink_identity.py::"
        "test_decided_batch_whose_driver_died_is_ended_before_another_one_is_accepted",
    ),
    Mutant(
        "a batch that comes again is not ended",
        "spark/transactions.py",
        "                self._abort({name: producer for name, producer in written.items() if name not in named})\n"
        "                if unfinished is not None:\n                    self._finish(batch.query, unfinished, where, driver, identity)\n",
        "                self._abort({name: producer for name, producer in written.items() if name not in named})\n",
        world="spark",
        test="unit/spark/test_spark_sink_identity.py::"
        "test_decided_batch_that_comes_again_is_ended_though_no_other_follows",
    ),
    Mutant(
        "an abort after a failed commit aborts a batch that was decided",
        "spark/transactions.py",
        "named = {} if decided is None else decided.participants",
        "named: dict[str, Participant] = {}",
        world="spark",
    ),
    Mutant(
        "a decision counts before its transaction is committed",
        "spark/decision.py",
        "                if header.is_transactional:\n                    self._pending",
        "                if False:\n                    self._pending",
        world="spark",
        test=_DECISION + "test_a_decision_counts_when_its_transaction_is_committed",
    ),
    Mutant(
        "an aborted decision counts",
        "spark/decision.py",
        "if marker is not None and marker.is_commit:",
        "if marker is not None:",
        world="spark",
        test=_DECISION + "test_a_decision_counts_when_its_transaction_is_committed",
    ),
    Mutant(
        "transactions of earlier starts that no decision names stay open",
        "spark/transactions.py",
        "and run_of(name, prefix) in runs",
        "and run_of(name, prefix) == batch.run",
        world="spark",
    ),
    Mutant(
        "attempts that lost stay open",
        "spark/transactions.py",
        "and run_of(name, prefix) in runs",
        "and run_of(name, prefix) in runs - {batch.run}",
        world="spark",
        test="unit/spark/test_spark_sink_protocol.py::test_rows_of_attempts_that_lost_are_never_seen",
    ),
    Mutant(
        "an attempt of a repeated stage takes the name of the one that won",
        "spark/sink.py",
        '        for candidate in (name, *(f"{name}.{number}" for number in range(1, _NAMES_MAX))):',
        "        for candidate in ():",
        world="spark",
        test="unit/spark/test_spark_sink_protocol.py::test_an_attempt_of_a_repeated_stage_does_not_fence_the_winner_of_its_number",
    ),
    Mutant(
        "a batch is decided although a transaction of it is gone",
        "spark/transactions.py",
        "        if not gone:\n            return\n",
        "        if True:\n            return\n",
        world="spark",
        test="unit/spark/test_spark_sink_protocol.py::test_a_transaction_gone_before_the_decision_fails_the_batch_whole",
    ),
    Mutant(
        "the decision is recorded after the transactions have ended",
        "spark/transactions.py",
        "        identity = self._record_unless_fenced(batch, decided, where, driver, identity)\n",
        "        self._end(decided)\n        identity = self._record_unless_fenced(batch, decided, where, driver, identity)\n",
        world="spark",
    ),
    Mutant(
        "the end of a batch is recorded before its transactions have ended",
        "spark/transactions.py",
        "        unended = self._end(decided)\n        self._at(ALL_ENDED)\n",
        "        self._record_ended(query, decided, where)\n        unended = self._end(decided)\n        self._at(ALL_ENDED)\n",
        world="spark",
    ),
    Mutant(
        "a prepared transaction keeps its former identity in the decision",
        "spark/transactions.py",
        "kept.append(Participant(name, *answer.identity, prepared=True))",
        "kept.append(Participant(name, *written[name], prepared=True))",
        world="spark",
        test=_DIES,
    ),
    Mutant(
        "the checkpoint's plan is not a part of a batch's identity",
        "spark/checkpoint.py",
        "        return self.offsets if self.is_of_part or batch == self.batch else UNKNOWN",
        "        return 'planned'",
        also=(
            (
                "spark/checkpoint.py",
                "        return self.previous if batch == self.batch and not self.is_of_part else UNKNOWN",
                "        return UNKNOWN",
            ),
        ),
        finding="P1",
        world="spark",
        profile="rewound by hand",
    ),
    Mutant(
        "a driver that was paused aborts what a newer one has decided",
        "spark/transactions.py",
        "            verdict = verdict._replace(superseded=decision.superseding(verdict.superseded, self._open_runs(batch)))\n",
        "            self._sweep(batch, self._open_runs(batch))\n",
        finding="spark seed 4",
        world="spark",
        profile="two drivers",
        test=_PAUSED,
    ),
    Mutant(
        "a driver whose batch comes again aborts the transactions of others before they are ruled out",
        "spark/transactions.py",
        "        superseded = decision.superseding(decision.replaced(decided), open_runs)\n",
        "        superseded = decision.superseding(decision.replaced(decided), open_runs)\n        self._sweep(batch, open_runs)\n",
        world="spark",
        profile="two drivers",
        test=_PAUSED,
    ),
    Mutant(
        "a start that was superseded may decide",
        "spark/decision.py",
        "    if run != known.run and run in known.superseded:\n",
        "    if False:\n",
        world="spark",
        profile="two drivers",
        test="unit/spark/test_spark_sink_protocol.py::test_an_old_driver_that_comes_back_decides_nothing",
    ),
    Mutant(
        "a decision that was superseded meanwhile is recorded without its fence",
        "spark/transactions.py",
        "        producer = self._producer(identity, driver)\n        producer.send(_ready(where, [(Key(query, decision.DECISION)",
        "        identity = self._transactions.initialise(driver, timeout_ms=self._timeout_ms)\n        producer = self._producer(identity, driver)\n        producer.send(_ready(where, [(Key(query, decision.DECISION)",
        world="spark",
        profile="two drivers",
        test="unit/spark/test_spark_sink_protocol.py::test_a_driver_that_is_fenced_while_it_decides_fails_with_driver_replaced",
    ),
]
