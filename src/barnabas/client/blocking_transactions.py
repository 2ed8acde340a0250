"""`client.transactions` for a thread without an event loop. Owner: the thread of its client."""

from collections.abc import Mapping, Sequence

from barnabas.client.blocking import BlockingClient
from barnabas.client.errors import BrokerRefused
from barnabas.client.identity import NO_IDENTITY, ProducerIdentity
from barnabas.client.transactions import Initialised, Transactions
from barnabas.wire.messages.describe_transactions import TransactionState


class BlockingTransactions:
    """Each method does what the method of `Transactions` with its name does."""

    def __init__(self, client: BlockingClient) -> None:
        self._run = client.run
        self._core = Transactions(client.core)

    def initialise(
        self, transactional_id: str | None, *, timeout_ms: int, expected: ProducerIdentity = NO_IDENTITY
    ) -> ProducerIdentity:
        return self._run(self._core.initialise(transactional_id, timeout_ms=timeout_ms, expected=expected))

    def keep_all(self, transactional_ids: Sequence[str]) -> Mapping[str, Initialised | BrokerRefused]:
        return self._run(self._core.keep_all(transactional_ids))

    def end(self, transactional_id: str, identity: ProducerIdentity, *, committed: bool) -> ProducerIdentity:
        return self._run(self._core.end(transactional_id, identity, committed=committed))

    def end_all(
        self, transactions: Mapping[str, ProducerIdentity], *, committed: bool
    ) -> Mapping[str, BrokerRefused | None]:
        return self._run(self._core.end_all(transactions, committed=committed))

    def abort_all(self, transactional_ids: Sequence[str], *, timeout_ms: int) -> Mapping[str, BrokerRefused | None]:
        return self._run(self._core.abort_all(transactional_ids, timeout_ms=timeout_ms))

    def describe_all(self, transactional_ids: Sequence[str]) -> Mapping[str, TransactionState | BrokerRefused]:
        return self._run(self._core.describe_all(transactional_ids))

    def ongoing(self, prefix: str) -> list[str]:
        return self._run(self._core.ongoing(prefix))
