"""Runs a project: reads its definitions, starts its flows, and tells what happens.

A run of `pyspark.pipelines` ends when it has read what was there. `continuous` goes on from there: the same flows, planned by
the same planner of Spark's, from the same resolved graph and checkpoints, but with a trigger that fires again and again.
A flow that fails is started again from its checkpoint, after a pause that doubles, until it has failed too often in a row.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

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
#: How often running flows are looked at.
_WATCH_S = 0.25


@dataclass(frozen=True)
class RunOptions:
    continuous: bool = False
    dry: bool = False
    refresh: Sequence[str] = ()
    full_refresh: Sequence[str] = ()
    full_refresh_all: bool = False
    #: A full refresh of sinks writes all rows again into them. They keep what they have...
    sinks_again: bool = False
    #: ...or are emptied first.
    empty_sinks: bool = False
    #: Continuous: the least time between two batches of a flow.
    trigger_ms: int = 500
    #: Continuous: how often materialized views are made anew.
    views_s: float = 60.0
    #: Continuous: failures in a row, without a batch between them, after which a flow stays down and the run fails.
    failures_max: int = 5
    pause_s: float = 1.0


@dataclass
class _Running:
    """A flow that goes on."""

    name: str
    flow: Any
    execution: Any
    failures: int = 0
    #: When to start it again after a failure; None while it runs.
    again_s: float | None = None
    batches_seen: int = field(default=-1)


class Runner:
    """Owner: one thread, which calls `run`; `stop` may come from any."""

    def __init__(
        self,
        project: Project,
        session: Session,
        told: Callable[[Event], None],
        rests: Callable[[str], None] = lambda flow: None,
    ) -> None:
        """`rests`: told of a flow that goes on and has nothing to do. Both may be called from a thread of Spark's."""
        self._project = project
        self._session = session
        self._told = told
        self._rests = rests
        #: By the id of its query.
        self._flow_names: dict[str, str] = {}
        self._stopping = threading.Event()
        self._batches: dict[str, int] = {}
        #: In a row.
        self._view_failures = 0
        self._flows = Flows()
        #: File and line of each flow.
        self._places: dict[str, str] = {}

    def stop(self) -> None:
        self._stopping.set()

    def run(self, options: RunOptions) -> None:
        """Until everything is read, or, if continuous, until `stop`. Raises `PipelineFailed`."""
        _check(options)
        end = self._session.on_progress(self._take_progress, self._take_rest)
        ended = ExitStack()
        try:
            graph_id = self._define()
            if not options.dry:
                ended.enter_context(self._lineage_told())
            reset = self._reset(options)
            anew = set() if options.dry else self._anew(options)
            if not options.dry:
                connector.prepare()
                self._check_topics(anew)
            try:
                try:
                    if not options.full_refresh_all and reset.sinks:
                        # Spark chooses among tables alone: then everything runs.
                        if reset.tables:
                            self._once(graph_id, replace(options, continuous=False, full_refresh=reset.tables))
                            graph_id = self._define()
                        options = replace(options, refresh=(), full_refresh=())
                    self._once(graph_id, options)
                finally:
                    self._note_topics(anew, graph_id)
                if not options.dry and not options.continuous:
                    self._catch_up(graph_id, options)
            except PipelineFailed:
                # A flow that failed while it caught up is tried again below; a graph that makes no sense is not.
                if not options.continuous or not self._session.has_started(graph_id):
                    raise
            if options.continuous and self._stopping.is_set():
                self._told(RunState(now(), "STOPPED", "Run has been stopped while it caught up."))
            elif options.continuous:
                self._go_on(graph_id, options)
        finally:
            ended.close()
            end()

    @contextmanager
    def _lineage_told(self) -> Iterator[None]:
        """What flows read and write is told as well, if the project wants that."""
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
        told, telling = self._told, lineage.Lineage(self._project.name, flows, send)

        def tell(event: Event) -> None:
            told(event)
            telling.take(event)

        self._told = tell
        try:
            yield
        finally:
            self._told = told
            telling.end(now())
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
        """What a full refresh starts again: what becomes of the sinks is said, and done only if it is asked for."""
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
                emptying.stock_of(sink)  # one that cannot be emptied is told before another has been
            for name, sink in reset.sinks.items():
                self._told(RunState(now(), "RUNNING", f"Sink {name} has been emptied: it was {emptying.empty(sink)}."))
        # Spark does so itself when it resets everything, but later: a run that fails before would leave sinks that are empty
        # and flows that go on behind what was in them.
        for flow, target in self._flows.targets.items():
            if target in reset.sinks:
                self._session.new_checkpoint(f"{self._project.storage}/_checkpoints/{target}/{flow}")
        return reset

    def _anew(self, options: RunOptions) -> set[str]:
        """Flows that start again from the beginning of what they read."""
        chosen = {name.rpartition(".")[2] for name in options.full_refresh}
        return self._with_views(
            {flow for flow, target in self._flows.targets.items() if options.full_refresh_all or target in chosen}
        )

    def _with_views(self, flows: set[str]) -> set[str]:
        """A view has no checkpoint of its own: what reads it has."""
        found = set(flows)
        while (
            more := {view for flow in found for view in self._flows.reads.get(flow, set()) & self._flows.views} - found
        ):
            found |= more
        return found

    def _check_topics(self, anew: set[str]) -> None:
        """Raises where a topic was made again since the last run."""
        for warning in topic_ids.check(self._project.topics_file, _topic_reads(), anew):
            self._told(RunState(now(), "RUNNING", warning))

    def _check_topics_of(self, flow: str) -> None:
        """The same before a flow goes on. Its last query knew the ids; the next one knows offsets only, and would go on in the
        middle of a new topic as soon as that is long enough."""
        names = self._with_views({short(flow)})
        reads = [read for read in _topic_reads() if read.flow in names]
        try:
            warnings = topic_ids.check(self._project.topics_file, reads, ())
        except topic_ids.TopicMadeAgain as error:
            self._told(FlowState(now(), flow, "FAILED", f"Flow {Telling(self._places).named(flow)} failed: {error}"))
            raise PipelineFailed(str(error)) from error
        for warning in warnings:
            self._told(RunState(now(), "RUNNING", warning))

    def _note_topics(self, anew: set[str], graph_id: str) -> None:
        if anew and self._session.has_started(graph_id):
            topic_ids.note(self._project.topics_file, _topic_reads(), anew)

    def _changeable(self) -> dict[str, str]:
        """Settings of the spec that Spark lets a flow change; the others were given to it when it started."""
        conf = self._session.jvm_session.conf()
        return {
            name: value
            for name, value in self._project.configuration.items()
            if not name.startswith("spark.") or conf.isModifiable(name)
        }

    def _once(self, graph_id: str, options: RunOptions, *, quiet: bool = False) -> None:
        telling = Telling(self._places, {flow: self._flows.inputs(flow) for flow in self._flows.targets})

        def tell(events: Sequence[Event]) -> None:
            for event in events:
                over = isinstance(event, RunState) and options.continuous
                if not over and not quiet:
                    self._told(event)

        try:
            with self._session.remote(), _failing_well():
                for message in self._messages(graph_id, options):
                    tell(telling.take(now(), message))
                tell(telling.rest())
        except PipelineFailed as failed:
            tell(telling.end(now()))
            raise PipelineFailed(telling.failure(str(failed))) from failed

    def _catch_up(self, graph_id: str, options: RunOptions) -> None:
        """Run again while a flow may have started before its input had been read.

        Where a table is there from an earlier run, Spark may resolve what a flow reads (`withColumn` and others do that) before
        it knows that the table is a dataset of this pipeline: the flow does not wait for it.
        """
        again = replace(options, full_refresh=(), full_refresh_all=False)
        early = self._early(graph_id)
        # A chain of such flows gets one further with each run.
        for number in range(len(early)):
            what = f"{', '.join(sorted(early))} may have started before what they read: run {number + 2} of this start"
            self._told(RunState(now(), "RUNNING", what))
            self._once(self._define(), again)

    def _early(self, graph_id: str) -> set[str]:
        """Streaming flows that read a dataset of the pipeline which Spark does not count as their input."""
        self._session.activate()
        graph = self._session.execution(graph_id).pipelineExecution().graphExecution().get().graphForExecution()
        flows = graph.resolvedFlows()  # those of views as well: what reads a view waits for what the view reads
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
        """Start a run, and yield what Spark says of it until it is over.

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
        self._told(progress)

    def _repeated_rows(self, flow: str) -> int:
        """Of batches that a sink has recognised and left out. Sinks count them in the flow's checkpoint."""
        files = checkpoint_of(self._project.storage, self._flows.targets.get(flow, flow), flow)
        return 0 if files is None else repeated_rows(files)

    def _take_rest(self, query_id: str) -> None:
        if query_id in self._flow_names:
            self._rests(self._flow_names[query_id])

    # -- on and on ------------------------------------------------------------------------------------------------------

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
                running.append(_Running(name, flow, self._start(planner, name, flow)))
                self._told(FlowState(now(), name, "RUNNING", f"Flow {name} goes on."))
            else:
                views.append(short_name(flow.destinationIdentifier().toString()))
        self._told(RunState(now(), "RUNNING", f"{len(running)} flows go on until they are stopped."))
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
            self._told(FlowState(now(), each.name, "STOPPED", f"Flow {each.name} has been stopped."))
        self._told(RunState(now(), "STOPPED", "Run has been stopped."))

    def _compute(self, views: Sequence[str], options: RunOptions) -> None:
        """Materialized views anew. Those that fail are computed with the next ones, as flows start again that fail."""
        try:
            self._once(self._define(), RunOptions(refresh=views), quiet=True)
            self._view_failures = 0
        except PipelineFailed as failed:
            self._view_failures += 1
            if self._view_failures > options.failures_max:
                raise
            said = f"Materialized views keep what they have, and are computed again in {options.views_s:g} s"
            self._told(RunState(now(), "RUNNING", f"{said}: {failed}"))
        finally:
            self._session.activate()

    def _planner(self, graph_id: str, options: RunOptions) -> tuple[Any, list[Any]]:
        """Spark's own planner of flows, with a trigger that goes on; and the flows."""
        jvm = self._session.jvm
        old = self._session.execution(graph_id)
        graph = old.pipelineExecution().graphExecution().get().graphForExecution()
        # A map with a default is a function in Scala: the constant ones that we need can be had without a JAR.
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
                self._told(FlowState(now(), each.name, "RUNNING", f"Flow {each.name} goes on from its checkpoint."))
            return
        if not each.execution.isCompleted():
            return
        reason, named = _reason(each.execution), Telling(self._places).named(each.name)
        batch = self._batches.get(each.name, -1)
        each.failures = 1 if batch > each.batches_seen else each.failures + 1
        each.batches_seen = batch
        if each.failures > options.failures_max:
            said = f"{named} failed {each.failures} times in a row: {reason}"
            self._told(FlowState(now(), each.name, "FAILED", f"Flow {said}"))
            raise PipelineFailed(f"flow {said}")
        pause_s = options.pause_s * 2 ** (each.failures - 1)
        each.again_s = time.monotonic() + pause_s
        message = f"Flow {named} failed, and starts again in {pause_s:g} s: {reason}"
        self._told(FlowState(now(), each.name, "RETRYING", message))


def _topic_reads() -> list[topic_ids.TopicRead]:
    return [topic_ids.TopicRead(flow, given) for flow, given in connector.streams()]


def _check(options: RunOptions) -> None:
    if options.full_refresh_all and (options.refresh or options.full_refresh):
        raise PipelineFailed("a full refresh of everything leaves nothing for --refresh and --full-refresh to choose")
    if (options.sinks_again or options.empty_sinks) and not (options.full_refresh_all or options.full_refresh):
        raise PipelineFailed("--sinks-again and --empty-sinks say what a full refresh does with sinks")
    if options.sinks_again and options.empty_sinks:
        raise PipelineFailed("--sinks-again keeps what sinks have, --empty-sinks deletes it: give one of them")


@contextmanager
def _failing_well() -> Iterator[None]:
    """Spark's errors as one of ours, without the stack of the JVM."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise PipelineFailed(plain_message(str(error))) from error
    except (SyntaxError, ImportError, NameError, AttributeError, TypeError, ValueError, KeyError) as error:
        raise PipelineFailed(f"{_place(error)}{type(error).__name__}: {error}") from error


def _place(error: BaseException) -> str:
    """`file:line: ` of the last line of a project's own code that the error came through."""
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
