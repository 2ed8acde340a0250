"""Sends the events of `barnabas pipeline run` to the console, as the same reports that a listener of Spark writes.

The reports go to each cluster whose topics the pipeline reads or writes.
"""

import threading
from collections.abc import Mapping

from barnabas.spark.pipelines import connector
from barnabas.spark.pipelines.events import Event, FlowState, Progress, RunState
from barnabas.spark.reports import Reports

_OVER = frozenset({"COMPLETED", "STOPPED", "SKIPPED", "EXCLUDED"})
_FAILED = frozenset({"FAILED", "RETRYING"})


class RunReporter:
    """Takes events from the thread that runs the pipeline and from the one that Spark calls back on, one at a time."""

    def __init__(self, pipeline: str, settings: Mapping[str, str]) -> None:
        """`settings`: those of the project's clients."""
        self._pipeline = pipeline
        self._settings = settings
        self._lock = threading.Lock()
        self._reports: list[Reports] | None = None
        #: Flows that have had a batch in this run: the others have nothing to report.
        self._flows: set[str] = set()

    def take(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Progress):
                self._flows.add(event.flow)
                for reports in self._opened():
                    reports.progressed(event.flow, event)
            elif isinstance(event, FlowState) and event.flow in self._flows:
                self._take_state(event)
            elif isinstance(event, RunState) and event.state in _FAILED:
                for reports in self._opened():
                    reports.all_over(error=event.message)

    def _take_state(self, event: FlowState) -> None:
        if event.state in _OVER or event.state in _FAILED:
            self._flows.discard(event.flow)
            for reports in self._opened():
                reports.over(event.flow, error=event.message if event.state in _FAILED else None)

    def rests(self, flow: str) -> None:
        """Report that a flow has nothing to do at the moment."""
        with self._lock:
            for reports in self._opened() if flow in self._flows else ():
                reports.rests(flow)

    def close(self) -> None:
        with self._lock:
            for reports in self._reports or ():
                reports.all_over(error=None)
                reports.close()

    def _opened(self) -> list[Reports]:
        """Open the reports. Call it when the definitions have been read: they name the clusters."""
        if self._reports is None:
            self._reports = [
                Reports(
                    bootstrap,
                    pipeline=self._pipeline,
                    dead_letters=connector.dead_letters(),
                    settings=self._settings,
                )
                for bootstrap in connector.clusters()
            ]
        return self._reports
