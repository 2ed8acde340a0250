"""Reads the code of a project into a graph of Spark's, as `spark-pipelines` does it: file by file, in order of their names."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from barnabas.spark.pipelines._flows import flows_of
from barnabas.spark.pipelines.failures import PipelineFailed
from barnabas.spark.pipelines.project import Project
from barnabas.spark.pipelines.sql_files import BadCall, TopicView, statements, topic_views


def read_definitions(project: Project, registry: Any, spark: Any, graph_id: str) -> None:
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    previous, imported = Path.cwd(), set(sys.modules)
    os.chdir(project.folder)
    sys.path.insert(0, str(project.folder))
    ConnectSession._set_default_and_active_session(spark)
    try:
        with graph_element_registration_context(registry):
            for file in project.files():
                if file.suffix == ".sql":
                    _read_sql(file, registry, spark, graph_id, project.folder)
                elif file.suffix == ".py":
                    _read_python(file, spark, graph_id)
                else:
                    raise PipelineFailed(f"{file}: definitions are .py or .sql files")
    finally:
        sys.path.remove(str(project.folder))
        os.chdir(previous)
        # Another project may have modules of the same names, and this one may have changed when it is read again.
        for name in set(sys.modules) - imported:
            if (home := getattr(sys.modules[name], "__file__", None)) and Path(home).is_relative_to(project.folder):
                del sys.modules[name]


def _read_python(file: Path, spark: Any, graph_id: str) -> None:
    from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
    from pyspark.pipelines.block_session_mutations import block_session_mutations

    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["spark"] = spark
    with (
        add_pipeline_analysis_context(spark=spark, dataflow_graph_id=graph_id, flow_name=None),
        block_session_mutations(),
    ):
        spec.loader.exec_module(module)


def _read_sql(file: Path, registry: Any, spark: Any, graph_id: str, folder: Path) -> None:
    """Turn calls of `read_topic` into temporary views, and remember what flows read, as for Python's flows."""
    from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context

    name, flows = file.relative_to(folder), flows_of(registry)
    try:
        text, views = topic_views(file.read_text(), name)
        with add_pipeline_analysis_context(spark=spark, dataflow_graph_id=graph_id, flow_name=None):
            for view in views:
                _define(view)
                flows.places[view.name] = f"{name}:{view.line}"
    except BadCall as error:
        raise PipelineFailed(f"{name}:{error}") from error
    for each in statements(text):
        flows.targets[each.flow] = each.target
        flows.places[each.flow] = f"{name}:{each.line}"
        flows.reads.setdefault(each.flow, set()).update(each.reads)
        flows.streams.setdefault(each.flow, set()).update(each.streams)
        if each.is_view:
            flows.views.add(each.target)
    registry.register_sql(text, name)


def _define(view: TopicView) -> None:
    from pyspark import pipelines as dp

    def read() -> Any:
        source = view.source()
        return source.stream() if view.is_stream else source.batch()

    dp.temporary_view(name=view.name)(read)
