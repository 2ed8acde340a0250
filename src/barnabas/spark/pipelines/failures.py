"""Reports each failure once, in one sentence. Pure: takes Spark's messages, returns events to report.

Spark reports a failure at each attempt and again at the end, each time with the stacks of two languages and the plan of the
query. It reports a flow as COMPLETED when its query has ended, and as FAILED a moment later.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from barnabas.base.errors import BarnabasError
from barnabas.spark.pipelines.events import Event, FlowState, RunState, parse_message, short_name

_TRACEBACK: Final = "Traceback (most recent call last):"
_ENDS: Final = ("JVM stacktrace:", "\tat ", "Suppressed:", "=== Streaming Query", "SQLSTATE:")
_STATE: Final = re.compile(r"(\s*SQLSTATE: \w{5}\.?)+")
_QUERY: Final = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")
_TASK: Final = re.compile(r"^Job aborted due to stage failure: .*?\(TID \d+\).*?: (?=\S)")
_JAVA_CLASS: Final = re.compile(r"^(?:[a-z][\w]*\.)+[\w$]+: ")
_PYTHON_CLASS: Final = re.compile(r"^((?:\w+\.)*)(\w+): ")
_FLOW: Final = re.compile(r"flow:? ['`]*([\w.`-]*\w)", re.IGNORECASE)
_GIVEN_UP: Final = "will not be restarted"
_LENGTH_MAX: Final = 2000


class PipelineFailed(BarnabasError):
    """The run failed; the message is Spark's, without its stack."""


def plain_message(text: str) -> str:
    """Return the part of one of Spark's errors that a reader needs: the message, without the stack."""
    kept: list[str] = []
    for line in text.splitlines():
        if line.startswith(_ENDS[:3]):
            break
        kept.append(line)
    return "\n".join(kept).strip()


def cause_of(text: str) -> str:
    """Return the sentence with the cause: the last of a Python traceback if there is one, else Spark's first."""
    traced = text.rpartition(_TRACEBACK)[2] if _TRACEBACK in text else ""
    if traced:
        lines = traced.lstrip("\n").splitlines()
        # Frames are indented. The first line that is not has the exception, and the lines after it belong to it.
        first = next((n for n, line in enumerate(lines) if line.strip() and not line.startswith(" ")), None)
        if first is not None:
            return _without_class(_sentence(lines[first:]), _PYTHON_CLASS)
    found = _QUERY.sub("", text.strip()).removeprefix("[USER_RAISED_EXCEPTION] ")
    return _without_class(_TASK.sub("", _sentence(found.splitlines()[:1])), _JAVA_CLASS)


def _sentence(lines: Sequence[str]) -> str:
    kept: list[str] = []
    for line in lines:
        if not line.strip() or line.lstrip().startswith(_ENDS):
            break
        kept.append(line.strip())
    return _STATE.sub("", " ".join(kept)).strip()[:_LENGTH_MAX]


def _without_class(text: str, kind: re.Pattern[str]) -> str:
    """Drop the class of our own errors, and the module of other classes."""
    found = kind.match(text)
    if found is None:
        return text
    if kind is _JAVA_CLASS or found[1].startswith("barnabas."):
        return text[found.end() :]
    return text.removeprefix(found[1])


def innermost(causes: Sequence[str]) -> str:
    """Return the cause that says most, from a chain of causes from the outside to the inside."""
    traced = next((cause for cause in reversed(causes) if _TRACEBACK in cause), None)
    last = traced or next((cause for cause in reversed(causes) if cause.strip()), None)
    return cause_of(last) if last is not None else "no reason was given"


class Telling:
    """Translates the messages of one run of Spark's into events. `places`: file and line of each flow. `inputs`: the flows that
    it waits for."""

    def __init__(self, places: Mapping[str, str], inputs: Mapping[str, Collection[str]] | None = None) -> None:
        self._places = places
        self._inputs = inputs or {}
        #: The last cause of each flow's failure, in the order of the first failures.
        self._causes: dict[str, str] = {}
        #: Failures that name no flow.
        self._others: list[str] = []
        self._failures: dict[str, int] = {}
        #: Flows that failed and that Spark will start again.
        self._again: dict[str, None] = {}
        #: Flows that Spark reported as completed. It reports so even a flow that failed, and the failure seconds later. So the
        #: event is held until a flow starts that waited for this one, or until the run is over.
        self._completed: dict[str, FlowState] = {}
        self._waiting: dict[str, None] = {}

    def take(self, at: str, message: str) -> list[Event]:
        event = parse_message(at, message)
        if event is None:
            self._note(message)
            return []
        if isinstance(event, RunState):
            return [*self._release(), event]
        assert isinstance(event, FlowState)
        if event.state == "QUEUED":
            self._waiting[event.flow] = None
        elif event.state == "STARTING":
            self._waiting.pop(event.flow, None)
            self._again.pop(event.flow, None)
            return [*self._release(self._inputs.get(event.flow.rpartition(".")[2], ())), event]
        elif event.state == "SKIPPED":
            self._waiting.pop(event.flow, None)
            said = f"Flow {self.named(event.flow)} has not run: a flow that it reads failed."
            return [FlowState(at, event.flow, event.state, said)]
        elif event.state == "COMPLETED":
            self._completed[event.flow] = event
            return []
        elif event.state == "FAILED":
            self._waiting.pop(event.flow, None)
            self._completed.pop(event.flow, None)
            return [self._failure(event)]
        return [event]

    def rest(self) -> list[Event]:
        """Return the events that are held, because the run has ended well."""
        return self._release()

    def end(self, at: str) -> list[Event]:
        """Return the last events of a run that failed: flows that Spark did not start again, and flows that have not run."""
        given_up = [FlowState(at, flow, "FAILED", self._given_up(flow)) for flow in self._again]
        said = "has not run: the run failed before it."
        skipped = [FlowState(at, flow, "SKIPPED", f"Flow {self.named(flow)} {said}") for flow in self._waiting]
        return [*self._release(), *given_up, *skipped]

    def failure(self, error: str) -> str:
        """Return the reason of the run's failure: a sentence for each flow that failed, else Spark's message."""
        flows = [f"flow {self.named(flow)} failed: {cause}" for flow, cause in self._causes.items()]
        return "\n".join(once_each([*flows, *self._others])) or cause_of(plain_message(error))

    def named(self, flow: str) -> str:
        place = self._places.get(flow.rpartition(".")[2])
        return flow if place is None else f"{flow} ({place})"

    def _release(self, names: Collection[str] | None = None) -> list[Event]:
        """Return the held events of these flows, or of all."""
        done = [flow for flow in self._completed if names is None or flow.rpartition(".")[2] in names]
        for flow in done:
            self._causes.pop(flow, None)  # it succeeded in the end
        return [self._completed.pop(flow) for flow in done]

    def _failure(self, event: FlowState) -> FlowState:
        cause = cause_of(event.message.partition("\nError: ")[2] or event.message)
        is_known = self._causes.get(event.flow) == cause
        self._causes[event.flow] = cause
        self._failures[event.flow] = self._failures.get(event.flow, 0) + 1
        if _GIVEN_UP in event.message:
            self._again.pop(event.flow, None)
            return FlowState(event.at, event.flow, "FAILED", self._given_up(event.flow))
        self._again[event.flow] = None
        said = (
            "failed again, for the same reason, and starts again" if is_known else f"failed, and starts again: {cause}"
        )
        return FlowState(event.at, event.flow, "RETRYING", f"Flow {self.named(event.flow)} {said}")

    def _given_up(self, flow: str) -> str:
        times = self._failures[flow]
        said = "failed" if times == 1 else f"failed {times} times, and is not started again"
        return f"Flow {self.named(flow)} {said}: {self._causes[flow]}"

    def _note(self, message: str) -> None:
        """Note a message without a flow's state, such as that a flow cannot be resolved."""
        said, _, error = message.partition("\nError: ")
        found = _FLOW.search(said)
        if found is not None and error:
            self._causes.setdefault(short_name(found[1]), cause_of(error))
        elif error or "fail" in said.lower():
            self._others.append(cause_of(error) if error else plain_message(said))


def once_each(reasons: Sequence[str]) -> list[str]:
    """Return each reason once, without those that another one contains."""
    found = list(dict.fromkeys(reason.strip() for reason in reasons if reason.strip()))
    return [one for one in found if not any(one != other and one in other for other in found)]
