"""Runs a project: reads its definitions, starts its flows, and reports events.

A run of `pyspark.pipelines` ends when it has read all rows that its sources had. `continuous` goes on from there: the same
flows, planned by the same planner of Spark's, from the same resolved graph and checkpoints, but with a trigger that fires again
and again. A flow that fails is started again from its checkpoint, after a pause that doubles, until it has failed too often in
a row.
"""

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from barnabas.base.backoff import Backoff
from barnabas.spark.checkpoint import repeated_rows
from barnabas.spark.pipelines import connector, lineage, refresh, topic_ids
from barnabas.spark.pipelines._flows import Flows, flows_of, short
from barnabas.spark.pipelines.checkpoints import checkpoint_of
from barnabas.spark.pipelines.definitions import read_definitions
from barnabas.spark.pipelines.events import Event, FlowState, RunState, parse_progress, short_name
from barnabas.spark.pipelines.failures import PipelineFailed, Telling, innermost, plain_message
from barnabas.spark.pipelines.live import now
from barnabas.spark.pipelines.project import Project
from barnabas.spark.pipelines.session import Session

_GRAPH = "org.apache.spark.sql.pipelines.graph"
#: How often to look at running flows.
_WATCH_S = 0.25


@dataclass(frozen=True)
class RunOptions:
    continuous: bool = False
    dry: bool = False
    refresh: Sequence[str] = ()
    full_refresh: Sequence[str] = ()
    full_refresh_all: bool = False
    #: A full refresh writes all rows again into sinks, behind the rows that they have.
    sinks_again: bool = False
    #: A full refresh empties the sinks first.
    empty_sinks: bool = False
    #: Continuous: the least time between two batches of a flow.
    trigger_ms: int = 500
    #: Continuous: how often materialized views are computed again.
    views_s: float = 60.0
    #: Continuous: failures in a row, without a batch between them, after which a flow stays down and the run fails.
    failures_max: int = 5
    pause_s: float = 1.0


@dataclass
class _Running:
    """A flow that runs until it is stopped."""

    name: str
    flow: Any
    execution: Any
    backoff: Backoff
    #: Time to start it again after a failure; None while it runs.
    again_s: float | None = None
    batches_seen: int = field(default=-1)


class Runner:
    """Owner: one thread, which calls `run`; `stop` may come from any."""

    def __init__(
        self,
        project: Project,
        session: Session,
        report: Callable[[Event], None],
        rests: Callable[[str], None] = lambda flow: None,
    ) -> None:
        """`rests`: called with a flow that has nothing to do at the moment. Both may be called from a thread of Spark's."""
        self._project = project
        self._session = session
        self._report = report
        self._rests = rests
        #: Names of flows, by the id of their query.
        self._flow_names: dict[str, str] = {}
        self._stopping = threading.Event()
        self._batches: dict[str, int] = {}
        #: Failures of materialized views in a row.
        self._view_failures = 0
        self._flows = Flows()
        #: File and line of each flow.
        self._places: dict[str, str] = {}

    def stop(self) -> None:
        self._stopping.set()

    def run(self, options: RunOptions) -> None:
        """Run until everything is read, or, if continuous, until `stop`. Raises `PipelineFailed`."""
        _check(options)
        end = self._session.on_progress(self._take_progress, self._take_rest)
        ended = ExitStack()
        try:
            graph_id = self._define()
            if not options.dry:
                ended.enter_context(self._with_lineage())
            reset = self._reset(options)
            restarted = set() if options.dry else self._restarted(options)
            if not options.dry:
                connector.prepare()
                self._check_topics(restarted)
            try:
                try:
                    if not options.full_refresh_all and reset.sinks:
                        # Spark can choose among tables only. So run the tables first, and then everything.
                        if reset.tables:
                            self._once(graph_id, replace(options, continuous=False, full_refresh=reset.tables))
                            graph_id = self._define()
                        options = replace(options, refresh=(), full_refresh=())
                    self._once(graph_id, options)
                finally:
                    self._note_topics(restarted, graph_id)
                if not options.dry and not options.continuous:
                    self._catch_up(graph_id, options)
            except PipelineFailed:
                # A flow that failed while it caught up is started again below; an invalid graph is not.
                if not options.continuous or not self._session.has_started(graph_id):
                    raise
            if options.continuous and self._stopping.is_set():
                self._report(RunState(now(), "STOPPED", "Run has been stopped while it caught up."))
            elif options.continuous:
                self._go_on(graph_id, options)
        finally:
            ended.close()
            end()

    @contextmanager
    def _with_lineage(self) -> Iterator[None]:
        """Send lineage as well within this block, if the project asks for it."""
        where = self._project.configuration.get(lineage.SETTING)
        if where is None:
            yield
            return
        place, database = f"spark://{self._project.name}", self._project.database or "default"
        flows = lineage.lineage_of(
            self._flows,
            connector.sources(),
            connector.sinks(),
            lambda name: lineage.Dataset(place, f"{database}.{name}"),
        )
        send = lineage.sender_for(where, self._project.folder)
        report, events = self._report, lineage.Lineage(self._project.name, flows, send)

        def send_both(event: Event) -> None:
            report(event)
            events.take(event)

        self._report = send_both
        try:
            yield
        finally:
            self._report = report
            events.end(now())
            send.close()

    # -- once -----------------------------------------------------------------------------------------------------------

    def _define(self) -> str:
        """Read the project's code into a new graph of the server; returns its id."""
        from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
        from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph

        spark = self._session.spark
        defining = connector.defining(self._project.name, self._project.client_settings())
        with self._session.remote(), _failing_well(), defining:
            connector.register_all(spark)
            graph_id: str = create_dataflow_graph(
                spark, self._project.catalog, self._project.database, self._changeable()
            )
            registry = SparkConnectGraphElementRegistry(spark, graph_id)
            flows = flows_of(registry)
            read_definitions(self._project, registry, spark, graph_id)
        self._flows = flows
        folder = f"{self._project.folder}{os.sep}"
        self._places = {name: place.removeprefix(folder) for name, place in flows.places.items()}
        return graph_id

    def _reset(self, options: RunOptions) -> refresh.Reset:
        """Plan a full refresh, and report what it does with sinks; do it only if the options ask for it."""
        settled, sinks = options.sinks_again or options.empty_sinks, connector.sinks()
        if named := sorted({short_name(name) for name in options.refresh} & sinks.keys()):
            raise PipelineFailed(f"{', '.join(named)}: Spark updates tables by name, not sinks: run without --refresh")
        if options.full_refresh_all:
            if sinks and not settled:
                raise refresh.keeps("a full refresh of everything", sinks)
            reset = refresh.Reset((), sinks)
        else:
            reset = refresh.plan(options.full_refresh, self._flows, sinks, sinks_are_settled=settled)
        if options.dry:
            return reset
        if options.empty_sinks:
            from barnabas.spark.pipelines.sinks import emptying

            for sink in reset.sinks.values():
                emptying.stock_of(sink)  # raises for a sink that cannot be emptied, before another one has been
            for name, sink in reset.sinks.items():
                self._report(
                    RunState(now(), "RUNNING", f"Sink {name} has been emptied: it was {emptying.empty(sink)}.")
                )
        # Spark itself makes new checkpoints when it resets everything, but later: if the run failed before, the sinks would be
        # empty, and the flows would go on behind the rows that were in them.
        for flow, target in self._flows.targets.items():
            if target in reset.sinks:
                self._session.new_checkpoint(f"{self._project.storage}/_checkpoints/{target}/{flow}")
        return reset

    def _restarted(self, options: RunOptions) -> set[str]:
        """Return the flows that start again from the beginning of what they read."""
        chosen = {name.rpartition(".")[2] for name in options.full_refresh}
        return self._with_views(
            {flow for flow, target in self._flows.targets.items() if options.full_refresh_all or target in chosen}
        )

    def _with_views(self, flows: set[str]) -> set[str]:
        """Add the views that these flows read: a view has no checkpoint, but the flow that reads it has one."""
        found = set(flows)
        while (
            more := {view for flow in found for view in self._flows.reads.get(flow, set()) & self._flows.views} - found
        ):
            found |= more
        return found

    def _check_topics(self, restarted: set[str]) -> None:
        """Raise if a topic was created again since the last run; report warnings."""
        for warning in topic_ids.check(self._project.topics_file, _topic_reads(), restarted):
            self._report(RunState(now(), "RUNNING", warning))

    def _check_topics_of(self, flow: str) -> None:
        """Check the topics before a flow goes on. Its last query knew the ids; the next one knows offsets only, and would go on
        in the middle of a new topic as soon as that is long enough."""
        names = self._with_views({short(flow)})
        reads = [read for read in _topic_reads() if read.flow in names]
        try:
            warnings = topic_ids.check(self._project.topics_file, reads, ())
        except topic_ids.TopicMadeAgain as error:
            self._report(FlowState(now(), flow, "FAILED", f"Flow {Telling(self._places).named(flow)} failed: {error}"))
            raise PipelineFailed(str(error)) from error
        for warning in warnings:
            self._report(RunState(now(), "RUNNING", warning))

    def _note_topics(self, restarted: set[str], graph_id: str) -> None:
        if restarted and self._session.has_started(graph_id):
            topic_ids.note(self._project.topics_file, _topic_reads(), restarted)

    def _changeable(self) -> dict[str, str]:
        """Return settings of the spec that Spark lets a flow change; Spark got the others when it started."""
        conf = self._session.jvm_session.conf()
        return {
            name: value
            for name, value in self._project.configuration.items()
            if not name.startswith("spark.") or conf.isModifiable(name)
        }

    def _once(self, graph_id: str, options: RunOptions, *, quiet: bool = False) -> None:
        telling = Telling(self._places, {flow: self._flows.inputs(flow) for flow in self._flows.targets})

        def report(events: Sequence[Event]) -> None:
            for event in events:
                over = isinstance(event, RunState) and options.continuous
                if not over and not quiet:
                    self._report(event)

        try:
            with self._session.remote(), _failing_well():
                for message in self._messages(graph_id, options):
                    report(telling.take(now(), message))
                report(telling.rest())
        except PipelineFailed as failed:
            report(telling.end(now()))
            raise PipelineFailed(telling.failure(str(failed))) from failed

    def _catch_up(self, graph_id: str, options: RunOptions) -> None:
        """Run again while a flow may have started before its input had been read.

        If a table exists from an earlier run, Spark may resolve what a flow reads (`withColumn` and others do that) before
        it knows that the table is a dataset of this pipeline. Then the flow does not wait for it.
        """
        again = replace(options, full_refresh=(), full_refresh_all=False)
        early = self._early(graph_id)
        # In a chain of such flows each run brings one more up to date.
        for number in range(len(early)):
            what = f"{', '.join(sorted(early))} may have started before their inputs: run {number + 2} of this start"
            self._report(RunState(now(), "RUNNING", what))
            self._once(self._define(), again)

    def _early(self, graph_id: str) -> set[str]:
        """Return streaming flows that read a dataset of the pipeline which Spark does not count as their input."""
        self._session.activate()
        graph = self._session.execution(graph_id).pipelineExecution().graphExecution().get().graphForExecution()
        flows = graph.resolvedFlows()  # views included: a flow that reads a view waits for what the view reads
        each = [flows.apply(number) for number in range(flows.size())]
        datasets = {short(flow.destinationIdentifier().toString()) for flow in each}
        found = set()
        for flow in each:
            name = short(flow.identifier().toString())
            inputs = flow.inputs().toList()
            known = {short(inputs.apply(number).toString()) for number in range(inputs.size())}
            if (self._flows.reads.get(name, set()) & datasets) - known:
                found.add(name)
        return found

    def _messages(self, graph_id: str, options: RunOptions) -> Iterator[str]:
        """Start a run, and yield Spark's messages until it is over.

        `pyspark.pipelines` has `start_run` for that, but in 4.3 it fails at the first metric that a Python worker reports.
        """
        from pyspark.sql.connect import proto

        command = proto.Command()
        command.pipeline_command.start_run.CopyFrom(
            proto.PipelineCommand.StartRun(
                dataflow_graph_id=graph_id,
                full_refresh_selection=options.full_refresh,
                full_refresh_all=options.full_refresh_all,
                refresh_selection=options.refresh,
                dry=options.dry,
                storage=self._project.storage,
            )
        )
        client = self._session.spark.client
        request = client._execute_plan_request_with_metadata()
        client._set_command_in_plan(request.plan, command)
        for answer in client._execute_and_fetch_as_iterator(request, {}):
            if isinstance(answer, dict) and "pipeline_event_result" in answer:
                yield answer["pipeline_event_result"].event.message

    def _take_progress(self, text: str) -> None:
        document = json.loads(text)
        progress = parse_progress(document)
        progress = replace(progress, repeated_rows=self._repeated_rows(progress.flow))
        self._flow_names[str(document["id"])] = progress.flow
        self._batches[progress.flow] = progress.batch
        self._report(progress)

    def _repeated_rows(self, flow: str) -> int:
        """Return the rows of batches that a sink recognised and left out. Sinks count them in the flow's checkpoint."""
        files = checkpoint_of(self._project.storage, self._flows.targets.get(flow, flow), flow)
        return 0 if files is None else repeated_rows(files)

    def _take_rest(self, query_id: str) -> None:
        if query_id in self._flow_names:
            self._rests(self._flow_names[query_id])

    # -- continuous -----------------------------------------------------------------------------------------------------

    def _go_on(self, graph_id: str, options: RunOptions) -> None:
        self._session.activate()
        planner, flows = self._planner(graph_id, options)
        chosen = {short_name(name) for name in (*options.refresh, *options.full_refresh)}
        running: list[_Running] = []
        views: list[str] = []
        for flow in flows:
            name = short_name(flow.identifier().toString())
            if chosen and short_name(flow.destinationIdentifier().toString()) not in chosen:
                continue
            if flow.df().isStreaming():
                backoff = Backoff(options.pause_s, math.inf)  # `failures_max` ends it
                running.append(_Running(name, flow, self._start(planner, name, flow), backoff))
                self._report(FlowState(now(), name, "RUNNING", f"Flow {name} goes on."))
            else:
                views.append(short_name(flow.destinationIdentifier().toString()))
        self._report(RunState(now(), "RUNNING", f"{len(running)} flows go on until they are stopped."))
        next_views_s = time.monotonic() + options.views_s
        while not self._stopping.wait(_WATCH_S):
            for each in running:
                self._watch(each, planner, options)
            if views and time.monotonic() >= next_views_s:
                self._compute(views, options)
                next_views_s = time.monotonic() + options.views_s
        for query in self._session.queries():
            query.stop()
        for each in running:
            self._report(FlowState(now(), each.name, "STOPPED", f"Flow {each.name} has been stopped."))
        self._report(RunState(now(), "STOPPED", "Run has been stopped."))

    def _compute(self, views: Sequence[str], options: RunOptions) -> None:
        """Compute materialized views again. Views that fail are computed with the next ones, as failed flows start again."""
        try:
            self._once(self._define(), RunOptions(refresh=views), quiet=True)
            self._view_failures = 0
        except PipelineFailed as failed:
            self._view_failures += 1
            if self._view_failures > options.failures_max:
                raise
            said = f"Materialized views keep their rows, and are computed again in {options.views_s:g} s"
            self._report(RunState(now(), "RUNNING", f"{said}: {failed}"))
        finally:
            self._session.activate()

    def _planner(self, graph_id: str, options: RunOptions) -> tuple[Any, list[Any]]:
        """Return Spark's own planner of flows, with a trigger that fires again and again; and the flows."""
        jvm = self._session.jvm
        old = self._session.execution(graph_id)
        graph = old.pipelineExecution().graphExecution().get().graphForExecution()
        # A Scala map with a default value is a function: so we need no JAR for a constant function.
        constant = getattr(getattr(jvm, "scala.collection.immutable.Map$"), "MODULE$").empty().withDefaultValue
        context = getattr(jvm, f"{_GRAPH}.PipelineUpdateContextImpl")(
            old.unresolvedGraph(), constant(None), old.refreshTables(), old.fullRefreshTables(), old.storageRoot()
        )
        trigger = jvm.org.apache.spark.sql.streaming.Trigger.ProcessingTime(options.trigger_ms)
        planner = getattr(jvm, f"{_GRAPH}.FlowPlanner")(graph, context, constant(trigger))
        flows = graph.materializedFlows()
        return planner, [flows.apply(number) for number in range(flows.size())]

    def _start(self, planner: Any, name: str, flow: Any) -> Any:
        self._check_topics_of(name)
        execution = planner.plan(flow)
        execution.executeAsync()
        return execution

    def _watch(self, each: _Running, planner: Any, options: RunOptions) -> None:
        """Notice that a flow has ended, and start it again when it is time."""
        if each.again_s is not None:
            if time.monotonic() >= each.again_s:
                each.again_s = None
                each.execution = self._start(planner, each.name, each.flow)
                self._report(FlowState(now(), each.name, "RUNNING", f"Flow {each.name} goes on from its checkpoint."))
            return
        if not each.execution.isCompleted():
            return
        reason, named = _reason(each.execution), Telling(self._places).named(each.name)
        batch = self._batches.get(each.name, -1)
        if batch > each.batches_seen:
            each.backoff.succeeded()
        each.batches_seen = batch
        pause_s = each.backoff.failed()
        if each.backoff.failures > options.failures_max:
            said = f"{named} failed {each.backoff.failures} times in a row: {reason}"
            self._report(FlowState(now(), each.name, "FAILED", f"Flow {said}"))
            raise PipelineFailed(f"flow {said}")
        each.again_s = time.monotonic() + pause_s
        message = f"Flow {named} failed, and starts again in {pause_s:g} s: {reason}"
        self._report(FlowState(now(), each.name, "RETRYING", message))


def _topic_reads() -> list[topic_ids.TopicRead]:
    return [topic_ids.TopicRead(flow, given) for flow, given in connector.streams()]


def _check(options: RunOptions) -> None:
    if options.full_refresh_all and (options.refresh or options.full_refresh):
        raise PipelineFailed(
            "a full refresh of everything includes every table: leave --refresh and --full-refresh out"
        )
    if (options.sinks_again or options.empty_sinks) and not (options.full_refresh_all or options.full_refresh):
        raise PipelineFailed(
            "--sinks-again and --empty-sinks are for a full refresh: add --full-refresh or --full-refresh-all"
        )
    if options.sinks_again and options.empty_sinks:
        raise PipelineFailed("--sinks-again keeps what sinks have, --empty-sinks deletes it: give one of them")


@contextmanager
def _failing_well() -> Iterator[None]:
    """Raise Spark's errors as ours, without the stack of the JVM."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise PipelineFailed(plain_message(str(error))) from error
    except (SyntaxError, ImportError, NameError, AttributeError, TypeError, ValueError, KeyError) as error:
        raise PipelineFailed(f"{_place(error)}{type(error).__name__}: {error}") from error


def _place(error: BaseException) -> str:
    """Return `file:line: ` of the last line of a project's own code that the error came through."""
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "site-packages" not in file and f"{os.sep}barnabas{os.sep}" not in file and not file.startswith("<"):
            place = f"{file}:{trace.tb_lineno}: "
        trace = trace.tb_next
    return place


def _reason(execution: Any) -> str:
    failure = execution.exception()
    if not failure.isDefined():
        return "it ended"
    error = failure.get()
    causes: list[str] = []
    while error is not None and len(causes) < 8:
        causes.append(str(error.getMessage() or error.getClass().getSimpleName()))
        error = error.getCause()
    return innermost(causes)
