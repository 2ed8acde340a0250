"""The process that Spark forks Python workers from, with the modules of a worker loaded: a new worker is ready in milliseconds.

Set `spark.python.daemon.module=barnabas.spark.daemon` on a session that reads or writes topics much; `barnabas pipeline` does.
Without it every new worker, and every process in which Spark plans a read or commits a batch, imports the source or the sink
again. Forked workers share this memory. Executors need barnabas, as they do for the source and the sink.
"""

import importlib
import sys
from typing import Final

_PLANNING: Final = ("barnabas.spark.source", "barnabas.spark.reader", "barnabas.spark.sink")
#: The modules to import, by the module that the worker runs (Spark names it as the first argument).
PRELOADED: Final = {
    "pyspark.worker": (*_PLANNING, "barnabas.spark.fetching", "barnabas.spark.encode"),
    "pyspark.sql.worker.create_data_source": ("barnabas.spark.source",),
    "pyspark.sql.worker.plan_data_source_read": _PLANNING,
    "pyspark.sql.worker.data_source_pushdown_filters": _PLANNING,
    "pyspark.sql.worker.write_into_data_source": _PLANNING,
    "pyspark.sql.worker.commit_data_source_write": _PLANNING,
    "pyspark.sql.worker.python_streaming_sink_runner": _PLANNING,
}


def preload(worker_module: str) -> None:
    """Import the modules of a worker, and the worker's module itself: Spark's own daemon imports it in each worker after the
    fork."""
    for name in (worker_module, *PRELOADED.get(worker_module, ())):
        importlib.import_module(name)


def main() -> None:
    preload(sys.argv[1] if len(sys.argv) > 1 else "pyspark.worker")
    # pyspark.daemon reads the arguments while it is imported.
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
