"""The flows of a project, remembered while it is read: their DataFrames, what they read, and where they are defined.

A flow goes to Spark as it is, with one exception. Below `withWatermark` Spark looks for the table at once, although another
flow of the pipeline has yet to make it; Spark's SQL with a WATERMARK clause waits. So
`spark.readStream.table("orders").withWatermark(…)` is passed on as that SQL.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame

_FLOWS: Final = "_barnabas_flows"
_DELAY: Final = re.compile(r"(?:interval\s+)?((?:\d+\s*[a-z]+\s*)+)", re.IGNORECASE)


class UnknownSchema(ValueError):
    """A schema that is needed while a pipeline is being defined, and cannot be found out."""


@dataclasses.dataclass
class Flows:
    #: The DataFrame of each dataset, by the dataset's name.
    known: dict[str, DataFrame] = dataclasses.field(default_factory=dict)
    #: Names of the tables that each flow reads.
    reads: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    #: The tables of `reads` that a flow reads as streams: new rows of such a table go on into the flow's target.
    streams: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    #: `file:line` of each flow.
    places: dict[str, str] = dataclasses.field(default_factory=dict)
    #: The dataset or sink that each flow writes.
    targets: dict[str, str] = dataclasses.field(default_factory=dict)
    #: Temporary views: the flow of a view has the view's name.
    views: set[str] = dataclasses.field(default_factory=set)
    #: The flow whose function is being called.
    current: str | None = None

    def inputs(self, flow: str) -> set[str]:
        """Return the flows that write what this one reads, directly or through views."""
        tables = set(self.reads.get(flow, ()))
        while more := {name for view in tables & self.views for name in self.reads.get(view, ())} - tables:
            tables |= more
        return {writer for writer, target in self.targets.items() if target in tables and target not in self.views}


def flows_of(registry: Any) -> Flows:
    """Return the flows of this registry, remembered from the first call on; later calls return the same object."""
    from pyspark.pipelines.output import TemporaryView

    flows = getattr(registry, _FLOWS, None)
    if isinstance(flows, Flows):
        return flows
    flows = Flows()
    setattr(registry, _FLOWS, flows)
    register: Callable[[Any], None] = registry.register_flow
    register_output: Callable[[Any], None] = registry.register_output

    def remember_output(output: Any) -> None:
        if isinstance(output, TemporaryView):
            flows.views.add(short(output.name))
        register_output(output)

    def register_flow(flow: Any) -> None:
        name = short(flow.name)
        flows.targets[name] = short(flow.target)
        if (place := _place_of(flow)) is not None:
            flows.places[name] = place

        def remembered() -> Any:
            flows.current = name
            try:
                df: DataFrame = flow.func()
            finally:
                flows.current = None
            flows.known.setdefault(short(flow.target), df)
            client = getattr(df.sparkSession, "client", None) if is_of_connect(df) else None
            if client is None:
                return df
            remote: Any = df
            tables = list(tables_in(remote._plan.to_proto(client)))
            flows.reads.setdefault(name, set()).update(table for table, _ in tables)
            flows.streams.setdefault(name, set()).update(table for table, is_stream in tables if is_stream)
            return _Handed(remote)

        try:
            register(dataclasses.replace(flow, func=remembered))
        except AnalysisException as error:
            raise UnknownSchema(f"flow {name} ({place}): {_advice(error)}{error}") from error

    registry.register_flow = register_flow
    registry.register_output = remember_output
    return flows


def active_flows() -> Flows | None:
    """Return the flows of the project that is being read, from the first use of a connector on. None outside of a project."""
    from pyspark.pipelines.graph_element_registry import get_active_graph_element_registry

    try:
        return flows_of(get_active_graph_element_registry())
    except PySparkException:
        return None


def active_flow() -> str | None:
    """Return the flow whose function is being called, if one is."""
    flows = active_flows()
    return None if flows is None else flows.current


def _place_of(flow: Any) -> str | None:
    place = getattr(flow, "source_code_location", None)
    return None if place is None else f"{place.filename}:{place.line_number}"


def _advice(error: AnalysisException) -> str:
    if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
        return ""
    return (
        "Spark looks for a table at once here, although another flow of this pipeline has yet to make it: na.fill and a few "
        "others do that, and withWatermark if it does not directly follow readStream.table(…). Put withWatermark there, and "
        "write the others with select: "
    )


class _Handed:
    """The part of a DataFrame that Spark's registry uses: its plan."""

    def __init__(self, df: Any) -> None:
        self._df = df
        self._plan = self

    def plan(self, client: Any) -> Any:
        relation = self._df._plan.plan(client)
        watermark_by_sql(relation)
        return relation


def watermark_by_sql(message: Any) -> None:
    """Replace a watermark right above the stream of a table by the equivalent query."""
    import pyspark.sql.connect.proto as pb2

    for child in _children(message):
        watermark_by_sql(child)
    if not isinstance(message, pb2.Relation) or message.WhichOneof("rel_type") != "with_watermark":
        return
    below = message.with_watermark.input
    delay = _DELAY.fullmatch(message.with_watermark.delay_threshold.strip())
    is_stream = below.WhichOneof("rel_type") == "read" and below.read.is_streaming
    if not is_stream or below.read.WhichOneof("read_type") != "named_table" or delay is None:
        return
    table = below.read.named_table
    if table.options:
        return
    column = message.with_watermark.event_time.replace("`", "``")
    message.sql.query = (
        f"SELECT * FROM STREAM {table.unparsed_identifier} WATERMARK `{column}` DELAY OF INTERVAL {delay[1]}"
    )


def is_of_connect(df: DataFrame) -> bool:
    return type(df).__module__.startswith("pyspark.sql.connect")


def short(name: str) -> str:
    return name.rpartition(".")[2].strip("`")


def tables_in(message: Any) -> Iterator[tuple[str, bool]]:
    """Yield the names of tables in a plan, and whether they are read as streams."""
    import pyspark.sql.connect.proto as pb2

    if isinstance(message, pb2.Relation) and message.WhichOneof("rel_type") == "read":
        if message.read.WhichOneof("read_type") == "named_table":
            yield short(message.read.named_table.unparsed_identifier), message.read.is_streaming
        return
    for child in _children(message):
        yield from tables_in(child)


def put_in_place(message: Any, known: Mapping[str, DataFrame], client: Any) -> None:
    """Replace reads of known datasets by their plans, all the way down."""
    import pyspark.sql.connect.proto as pb2

    if isinstance(message, pb2.Relation) and message.WhichOneof("rel_type") == "read":
        if message.read.WhichOneof("read_type") == "named_table":
            dataset: Any = known.get(short(message.read.named_table.unparsed_identifier))
            if dataset is not None:
                plan_id = message.common.plan_id
                message.CopyFrom(dataset._plan.to_proto(client).root)
                message.common.plan_id = plan_id
                put_in_place(message, known, client)
        return
    for child in _children(message):
        put_in_place(child, known, client)


def _children(message: Any) -> Iterator[Any]:
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from [value] if hasattr(value, "ListFields") else value
