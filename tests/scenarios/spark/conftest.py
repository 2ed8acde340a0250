"""One Spark session for all tests in this folder, because it takes seconds to start.

`conftest.py` at the root sends them to two processes of pytest-xdist, so that there are two JVMs.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark_python import spark_environment

_HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the time limit: a test that is stopped by it leaves the session unusable for the others. The limit is for tests
    that hang."""
    for item in items:
        if item.path.parent == _HERE and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ.update(spark_environment(tmp_path_factory.mktemp("python")))
    session = (
        SparkSession.builder.master("local[2]")
        .appName("barnabas-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.python.daemon.module", "barnabas.spark.daemon")
        .config("spark.python.authenticate.socketTimeout", "60s")  # two cores may be busy with other tests
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.streaming.stopTimeout", "60s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _active(request: pytest.FixtureRequest) -> None:
    """Make the shared session active: Spark looks there for data sources, and an earlier test may have left another one."""
    if "spark" in request.fixturenames:
        session: SparkSession = request.getfixturevalue("spark")
        SparkSession._activeSession = session
        SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
