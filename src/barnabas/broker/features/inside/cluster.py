"""This broker's view of the cluster: the controller's decisions, and the transactions that this broker coordinates."""

from collections.abc import Mapping
from typing import Any, Final

from barnabas.broker.controller.driver import Controller
from barnabas.broker.transactions.machine import TransactionMachine
from barnabas.broker.transactions.state import NO_TIME, Transaction, TransactionState

TRANSACTIONS_MAX: Final = 300
PARTITIONS_MAX: Final = 20
#: States to list first: transactions that are open or ending.
_ORDER: Final = (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


def decisions(controller: Controller) -> dict[str, Any]:
    """List decisions, the oldest first. Each controller knows only those that it made itself."""
    return {
        "controller": controller.controller_id,
        "is_controller": controller.is_active,
        "epoch": controller.epoch,
        "decisions": [
            {
                "at_ms": each.at_ms,
                "what": each.what,
                "why": each.why,
                "controller_epoch": each.controller_epoch,
                "details": dict(each.details),
            }
            for each in controller.machine.decisions
        ],
    }


def transactions(machines: Mapping[int, TransactionMachine], *, now_ms: int) -> dict[str, Any]:
    """List the transactions that this broker coordinates: the open ones first, then the most recently changed."""
    known = [(partition, each) for partition, machine in machines.items() for each in machine.transactions.values()]
    known.sort(key=lambda entry: (entry[1].state not in _ORDER, -entry[1].update_ms))
    return {
        "count": len(known),
        "transactions": [_transaction(partition, each, now_ms) for partition, each in known[:TRANSACTIONS_MAX]],
        "left_out": max(0, len(known) - TRANSACTIONS_MAX),
    }


def _transaction(partition: int, transaction: Transaction, now_ms: int) -> dict[str, Any]:
    partitions = transaction.partitions
    return {
        "transactional_id": transaction.transactional_id,
        "coordinator_partition": partition,
        "state": transaction.state.kafka_name,
        "producer_id": transaction.producer_id,
        "epoch": transaction.epoch,
        "timeout_ms": None if transaction.is_two_phase else transaction.timeout_ms,
        "open_ms": now_ms - transaction.start_ms if transaction.start_ms != NO_TIME else None,
        "updated_ms_ago": now_ms - transaction.update_ms,
        "partitions": [{"topic": each.topic, "partition": each.partition} for each in partitions[:PARTITIONS_MAX]],
        "partition_count": len(partitions),
    }
