"""Produce, with the times that a trace needs. Served instead of the plain one where tracing is on."""

from collections.abc import Callable

from barnabas.base.errors import ErrorCode
from barnabas.broker.api.produce import Outcomes, ProduceApi
from barnabas.broker.replication.appends import AppendEntry
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.schema_checks import SchemaChecks
from barnabas.broker.server.tracing import Tracing
from barnabas.broker.transactions.verification import Verifier
from barnabas.wire.messages.produce import ProduceRequest


class TracedProduceApi(ProduceApi):
    def __init__(self, context: BrokerContext, verifier: Verifier, schemas: SchemaChecks, tracing: Tracing) -> None:
        super().__init__(context, verifier, schemas)
        self._tracing = tracing

    def _append(
        self, call: Call, request: ProduceRequest, entries: list[AppendEntry], done: Callable[[Outcomes], None]
    ) -> None:
        tracing = self._tracing
        start_s = tracing.now_s()
        end_s = 0.0

        def noted(outcomes: Outcomes) -> None:
            now_s = tracing.now_s()
            placed = [
                (entry.tp, int(outcome.base_offset))
                for entry, outcome in zip(entries, outcomes, strict=True)
                if outcome.error is ErrorCode.NONE
            ]
            # With acks=all the append ends when the wait for the followers begins.
            tracing.produced(call, placed, acks=request.acks, append_s=(start_s, end_s or now_s), done_s=now_s)
            done(outcomes)

        super()._append(call, request, entries, noted)
        end_s = tracing.now_s()
