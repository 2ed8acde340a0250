"""The states of a connector, and which request is valid in which. Pure."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from barnabas.services.http.errors import Refusal


class State(StrEnum):
    """As Kafka Connect shows them. PAUSED and STOPPED are wishes of a user; FAILED is not."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"


#: The states that outlive the process.
KEPT: Final = (State.RUNNING, State.PAUSED, State.STOPPED)


@dataclass
class Life:
    """The state of one connector: the state that its user wants, and its failure. Owner: the event loop."""

    wanted: State = State.RUNNING
    #: Why it failed; "" while it has not.
    trace: str = ""
    #: States of its flows, by name; empty while nothing runs.
    flows: dict[str, State] = field(default_factory=dict)
    traces: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> State:
        return State.FAILED if self.trace and self.wanted is State.RUNNING else self.wanted

    @property
    def has_failed(self) -> bool:
        return bool(self.trace or self.traces)

    def want(self, state: State) -> bool:
        """Change the wish. Return whether queries have to be started or stopped for that."""
        changed, self.wanted = state is not self.wanted, state
        return changed

    def started(self, flows: "list[str]") -> None:
        self.trace, self.traces = "", {}
        self.flows = dict.fromkeys(flows, State.RUNNING)

    def stopped(self) -> None:
        """All queries were stopped, as the user wants."""
        self.flows, self.traces, self.trace = {}, {}, ""

    def done(self, flow: str) -> None:
        """A query has read everything, and its connector is to end then."""
        del self.flows[flow]

    def failed_to_start(self, trace: str) -> None:
        self.flows, self.trace = {}, trace

    def failed(self, flow: str, trace: str) -> None:
        self.flows[flow] = State.FAILED
        self.traces[flow] = trace

    def require_stopped(self, name: str) -> None:
        """:raises Refusal: unless the connector is stopped, so that nothing reads or writes its offsets."""
        if self.wanted is not State.STOPPED:
            raise Refusal(
                400, "BAD_REQUEST",
                f"offsets of connector {name} can be changed only while it is STOPPED, and it is {self.state}: PUT "
                f"/connectors/{name}/stop first",
            )  # fmt: skip
