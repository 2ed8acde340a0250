"""The append of produced records, with the times that a trace needs."""

from collections.abc import Callable

from barnabas.base.errors import ErrorCode
from barnabas.broker.api.produce import Append, Entries
from barnabas.broker.features.tracing.spans import Tracing
from barnabas.broker.server.call import Call
from barnabas.wire.messages.produce import ProduceRequest


def traced(append: Append, tracing: Tracing) -> Append:
    def traced_append(call: Call, request: ProduceRequest, entries: Entries, done: Callable[[Entries], None]) -> None:
        start_s = tracing.now_s()
        end_s = 0.0

        def note(entries: Entries) -> None:
            now_s = tracing.now_s()
            placed = [(entry.tp, entry.base_offset) for entry in entries if entry.error is ErrorCode.NONE]
            # With acks=all the append ends when the wait for the followers begins.
            tracing.produced(call, placed, acks=request.acks, append_s=(start_s, end_s or now_s), done_s=now_s)
            done(entries)

        append(call, request, entries, note)
        end_s = tracing.now_s()

    return traced_append
