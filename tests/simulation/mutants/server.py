"""Mutants of the handling of requests."""

from tests.simulation.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "the audit log misses changes whose answers come later",
        "broker/server/pipeline.py",
        "        if result is None:\n            return\n",
        "        if result is None:\n            call.on_answer = None\n            return\n",
        test="unit/broker/features/audit/test_audit_of_answers.py::test_deletion_of_records_is_logged_when_the_replicas_have_followed",
        why="the simulation keeps no audit log",
    ),
]
