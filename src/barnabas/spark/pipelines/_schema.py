"""The schema of a DataFrame, also inside a function of `pyspark.pipelines`, where Spark refuses to analyze.

Spark refuses because it does not know a dataset yet that the pipeline defines elsewhere. We know it: the DataFrames of flows
are remembered while a project is read, file by file. So Spark analyzes the DataFrame with such datasets
in place of their names, as any other. A dataset has to be defined before another one asks for its schema.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructType

from barnabas.spark.pipelines._flows import UnknownSchema, active_flows, is_of_connect, put_in_place

_CONTEXT: Final = "PipelineAnalysisContext"


def schema_of(df: DataFrame) -> StructType:
    """Return the schema. Analyzes once: Spark keeps a DataFrame's schema."""
    session = df.sparkSession
    client = getattr(session, "client", None) if is_of_connect(df) else None
    if client is None or not _is_in_query_function(client):
        return df.schema
    remote: Any = df
    if remote._cached_schema is None:
        flows = active_flows()
        plan = remote._plan.to_proto(client)
        put_in_place(plan, flows.known if flows is not None else {}, client)
        try:
            with _outside_of_pipeline(client):
                remote._cached_schema = client.schema(plan)
        except AnalysisException as error:
            raise UnknownSchema(
                f"the schema of a dataset is needed before it is known; define the datasets that it reads before it: {error}"
            ) from error
    found: StructType = remote._cached_schema
    return found


def columns_of(df: DataFrame) -> list[str]:
    return schema_of(df).names


def parse_type(ddl: str) -> DataType:
    """Return the type of a DDL text. A remote Spark parses it by a call that it counts as an analysis."""
    from pyspark.sql.utils import is_remote

    if not is_remote():
        return DataType.fromDDL(ddl)
    from pyspark.sql.connect.session import SparkSession

    with _outside_of_pipeline(SparkSession.active().client):
        return DataType.fromDDL(ddl)


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
