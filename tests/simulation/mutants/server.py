"""Wrongs of how requests are served."""

from tests.simulation.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "the audit log hears of no change whose answer comes later",
        "broker/server/pipeline.py",
        "        if result is None:\n            return\n",
        "        if result is None:\n            call.on_answer = None\n            return\n",
        test="unit/broker/features/audit/test_audit_of_answers.py::test_deletion_of_records_is_logged_when_the_replicas_have_followed",
        why="the simulation keeps no audit log",
    ),
]
