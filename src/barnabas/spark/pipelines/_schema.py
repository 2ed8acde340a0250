"""The schema of a DataFrame, also inside a function of `pyspark.pipelines`, where Spark refuses to analyze.

It refuses because a dataset that the pipeline defines elsewhere is not known to it yet. To us it is: what a flow's function
returned is remembered while a project is read, file by file. A schema is then that of the DataFrame with such datasets put
in place of their names, which Spark analyzes as any other. A dataset has to be defined before another one asks for its schema.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructType

_CONTEXT: Final = "PipelineAnalysisContext"
_KNOWN: Final = "_barnabas_known"
_READS: Final = "_barnabas_reads"


class UnknownSchema(ValueError):
    """A schema that is needed now, while a pipeline is defined, and cannot be found out."""


def schema_of(df: DataFrame) -> StructType:
    """Never analyzes twice: Spark keeps a DataFrame's schema."""
    session = df.sparkSession
    client = getattr(session, "client", None) if _is_remote(df) else None
    if client is None or not _is_in_query_function(client):
        return df.schema
    remote: Any = df
    if remote._cached_schema is None:
        known = _known_datasets()
        plan = remote._plan.to_proto(client)
        _put_in_place(plan, known, client)
        try:
            with _outside_of_pipeline(client):
                remote._cached_schema = client.schema(plan)
        except AnalysisException as error:
            raise UnknownSchema(
                f"the schema of a dataset is needed and not known; define what it reads before it: {error}"
            ) from error
    found: StructType = remote._cached_schema
    return found


def columns_of(df: DataFrame) -> list[str]:
    return schema_of(df).names


def parse_type(ddl: str) -> DataType:
    """A type out of its DDL, which a remote Spark parses by what it takes for an analysis."""
    from pyspark.sql.utils import is_remote

    if not is_remote():
        return DataType.fromDDL(ddl)
    from pyspark.sql.connect.session import SparkSession

    with _outside_of_pipeline(SparkSession.active().client):
        return DataType.fromDDL(ddl)


def remember_flows(registry: Any) -> None:
    """Remember what the functions of flows return, from now on. Called again for the same registry, it does nothing."""
    if hasattr(registry, _KNOWN):
        return
    known: dict[str, DataFrame] = {}
    reads: dict[str, set[str]] = {}
    setattr(registry, _KNOWN, known)
    setattr(registry, _READS, reads)
    register: Callable[[Any], None] = registry.register_flow

    def register_flow(flow: Any) -> None:
        def remembered() -> DataFrame:
            df: DataFrame = flow.func()
            known.setdefault(_short(flow.target), df)
            client = getattr(df.sparkSession, "client", None) if _is_remote(df) else None
            if client is not None:
                remote: Any = df
                reads.setdefault(_short(flow.name), set()).update(_tables_in(remote._plan.to_proto(client)))
            return df

        try:
            register(dataclasses.replace(flow, func=remembered))
        except AnalysisException as error:
            raise UnknownSchema(f"{_place_of(flow)}{_advice(error)}{error}") from error

    registry.register_flow = register_flow


def _place_of(flow: Any) -> str:
    place = getattr(flow, "source_code_location", None)
    where = f" ({place.filename}:{place.line_number})" if place is not None else ""
    return f"flow {_short(flow.name)}{where}: "


def _advice(error: AnalysisException) -> str:
    if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
        return ""
    return (
        "Spark looks for a table at once, which another flow of this pipeline is yet to make: withWatermark, na.fill and a few "
        "others make it look. Put withWatermark right behind the source, in the flow that reads it (for example "
        "sources.topic(…).stream().withWatermark(…)), and write the others with select: "
    )


def tables_read(registry: Any) -> dict[str, set[str]]:
    """What each flow names as a table, by the flow's name."""
    found: dict[str, set[str]] = getattr(registry, _READS, {})
    return found


def remember_active_flows() -> None:
    """For projects that another program than ours reads: from the first use of a connector on."""
    from pyspark.pipelines.graph_element_registry import get_active_graph_element_registry

    try:
        remember_flows(get_active_graph_element_registry())
    except PySparkException:
        return  # no pipeline is being defined


def _is_remote(df: DataFrame) -> bool:
    return type(df).__module__.startswith("pyspark.sql.connect")


def _extensions(client: Any) -> list[tuple[str, Any]]:
    return list(getattr(client.thread_local, "user_context_extensions", []))


def _is_in_query_function(client: Any) -> bool:
    import pyspark.sql.connect.proto as pb2

    for _, extension in _extensions(client):
        context = pb2.PipelineAnalysisContext()
        if extension.Unpack(context) and context.flow_name:
            return True
    return False


@contextmanager
def _outside_of_pipeline(client: Any) -> Iterator[None]:
    saved = _extensions(client)
    client.thread_local.user_context_extensions = [one for one in saved if not one[1].type_url.endswith(_CONTEXT)]
    try:
        yield
    finally:
        client.thread_local.user_context_extensions = saved


def _known_datasets() -> dict[str, DataFrame]:
    from pyspark.pipelines.graph_element_registry import get_active_graph_element_registry

    remember_active_flows()
    known: dict[str, DataFrame] = getattr(get_active_graph_element_registry(), _KNOWN)
    return known


def _short(name: str) -> str:
    return name.rpartition(".")[2].strip("`")


def _tables_in(message: Any) -> Iterator[str]:
    """The names of tables in a plan."""
    import pyspark.sql.connect.proto as pb2

    if isinstance(message, pb2.Relation) and message.WhichOneof("rel_type") == "read":
        if message.read.WhichOneof("read_type") == "named_table":
            yield _short(message.read.named_table.unparsed_identifier)
        return
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for one in [value] if hasattr(value, "ListFields") else value:
            yield from _tables_in(one)


def _put_in_place(message: Any, known: dict[str, DataFrame], client: Any) -> None:
    """Replace reads of known datasets by what they are, all the way down."""
    import pyspark.sql.connect.proto as pb2

    if isinstance(message, pb2.Relation) and message.WhichOneof("rel_type") == "read":
        if message.read.WhichOneof("read_type") == "named_table":
            dataset = known.get(_short(message.read.named_table.unparsed_identifier))
            if dataset is not None:
                plan_id = message.common.plan_id
                message.CopyFrom(dataset._plan.to_proto(client).root)  # type: ignore[operator]
                message.common.plan_id = plan_id
                _put_in_place(message, known, client)
        return
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for one in [value] if hasattr(value, "ListFields") else value:
            _put_in_place(one, known, client)
