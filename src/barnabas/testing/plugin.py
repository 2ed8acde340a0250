"""The pytest plugin: `kafka_broker`, brokers in the process for one test, `kafka`, a cluster that all tests share,
`kafka_cluster`, clusters that a test may break, and `pipeline`, projects of `barnabas pipeline` on them.

    def test_orders(kafka):
        topic = kafka.topic(partitions=3)
        run_my_service(kafka.bootstrap, topic)
        kafka.assert_records(topic, ["coffee"])

    @pytest.mark.kafka(brokers=3, config={"min.insync.replicas": 2})
    def test_leader_dies(kafka):
        kafka.cluster.kill(1)

`--kafka-brokers N` (or `kafka_brokers` in the ini file) sets the size of the shared cluster; 1 by default. `--kafka-secure` (or
`kafka_secure`) makes it a secure one: `kafka.client_settings()` and `kafka.librdkafka_settings()` have what clients need.

`--simulation-seed N` runs one seed of the tests that `simulation.test` makes, `--simulation-seeds N` more or fewer of them.

pytest loads this module at each start, so it imports nothing else of barnabas until a test needs a cluster.
"""

import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from barnabas.cli.faults.journal import Watch
    from barnabas.testing.broker import BlockingBroker
    from barnabas.testing.cluster import Cluster
    from barnabas.testing.pipelines import PipelineProject
    from barnabas.testing.shared import Kafka, SharedClusters

#: What the report of a failed test shows of its clusters.
_watches = pytest.StashKey[list["Watch | BlockingBroker"]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kafka", "a Kafka cluster for tests (barnabas)")
    group.addoption(
        "--kafka-brokers", type=int, default=None, help="brokers of the cluster that tests share; default 1"
    )
    group.addoption("--kafka-secure", action="store_true", help="the shared cluster has TLS, users and ACLs")
    simulation = parser.getgroup("simulation", "simulated worlds (barnabas.testing.simulation)")
    simulation.addoption("--simulation-seed", type=int, default=None, help="run only this seed of each simulated test")
    simulation.addoption(
        "--simulation-seeds", type=int, default=None, help="run so many seeds of each simulated test, from 0"
    )
    simulation.addoption(
        "--simulation-jobs", type=int, default=None, help="seeds at a time; one for each core by default, with xdist 1"
    )
    simulation.addoption(
        "--simulation-folder", default=None, help="where failing seeds and their stories are kept; default .simulation"
    )
    parser.addini("kafka_brokers", "brokers of the cluster that tests share", default="1")
    parser.addini("kafka_secure", "whether the shared cluster has TLS, users and ACLs", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "kafka(brokers=1, config={}, secure=False, short_sessions=False, ...): the cluster that the test's fixtures start,"
        " by the options of barnabas.testing.Cluster; tests that want the same one share it",
    )


def _set_up_simulation(config: pytest.Config) -> None:
    """Hand the options over, as soon as a module with simulated tests is loaded."""
    from barnabas.testing.simulation.seeds import settings

    settings.seed = config.getoption("--simulation-seed")
    settings.seeds = config.getoption("--simulation-seeds")
    settings.jobs = config.getoption("--simulation-jobs")
    settings.folder = config.rootpath / (config.getoption("--simulation-folder") or ".simulation")


def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_watches] = []  # a test may be run again
    if hasattr(getattr(item, "obj", None), "simulated"):
        _set_up_simulation(item.config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: "pytest.CallInfo[None]"
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a failed test what its brokers logged, and which faults fired."""
    report = yield
    if report.failed:
        for watch in item.stash.get(_watches, []):
            report.sections.extend(watch.sections())
    return report


def _report_watch(request: pytest.FixtureRequest, watch: "Watch | BlockingBroker") -> None:
    request.node.stash[_watches].append(watch)


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Merge the options of the test's markers; the nearest marker wins."""
    from barnabas.testing.shared import check_options

    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("kafka"))):
        if marker.args:
            raise pytest.UsageError(f"pytest.mark.kafka takes names: kafka(brokers=3), not kafka({marker.args[0]!r})")
        options |= marker.kwargs
    try:
        check_options(options, of="pytest.mark.kafka")
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    return options


def _defaults(config: pytest.Config) -> dict[str, Any]:
    return {
        "brokers": config.getoption("--kafka-brokers") or int(config.getini("kafka_brokers")),
        "secure": bool(config.getoption("--kafka-secure") or config.getini("kafka_secure")),
    }


@pytest.fixture(scope="session")
def kafka_shared_clusters() -> "Iterator[SharedClusters]":
    """The clusters behind `kafka`, one for each set of options that tests use."""
    from barnabas.testing.shared import SharedClusters

    with SharedClusters() as clusters:
        yield clusters


@pytest.fixture(scope="session")
def kafka_shared_cluster(kafka_shared_clusters: "SharedClusters", pytestconfig: pytest.Config) -> "Cluster":
    """The cluster behind `kafka` in tests without a marker, for fixtures that live as long as the cluster."""
    return kafka_shared_clusters.hold(**_defaults(pytestconfig))


@pytest.fixture
def kafka(request: pytest.FixtureRequest, kafka_shared_clusters: "SharedClusters") -> "Iterator[Kafka]":
    """A cluster that tests share, with topics for this test only. When the test ends, its faults end."""
    from barnabas.testing.shared import Kafka

    options = {**_defaults(request.config), **_marked(request)}
    view = Kafka(kafka_shared_clusters, kafka_shared_clusters.get(**options))
    _report_watch(request, view.watch)
    try:
        yield view
    finally:
        view.close()


@pytest.fixture
def kafka_broker(request: pytest.FixtureRequest) -> "Iterator[BlockingBroker]":
    """Brokers in this process, on a thread of their own, for this test alone. The marker `kafka` has their options."""
    from barnabas.testing.broker import Broker

    with Broker(**_marked(request)) as broker:
        _report_watch(request, broker)
        yield broker


@pytest.fixture
def kafka_cluster(request: pytest.FixtureRequest) -> "Iterator[Callable[..., Cluster]]":
    """Start clusters for this test only: `kafka_cluster(brokers=3, config={...})`."""
    from barnabas.testing.cluster import Cluster
    from barnabas.testing.shared import check_options

    with ExitStack() as stack:

        def make(**options: Any) -> Cluster:
            check_options(options, of="kafka_cluster")
            cluster = stack.enter_context(Cluster(**{**_marked(request), **options}))
            _report_watch(request, cluster.watch())
            return cluster

        yield make


@pytest.fixture(scope="session")
def pipeline_spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The Spark that projects under test share: an existing session, or a new one. You may replace this fixture."""
    from barnabas.testing.pipelines import spark_session

    with spark_session(tmp_path_factory.mktemp("warehouse")) as session:
        yield session


@pytest.fixture
def pipeline(
    request: pytest.FixtureRequest, pipeline_spark: "SparkSession", tmp_path: Path
) -> "Iterator[Callable[..., PipelineProject]]":
    """Projects of `barnabas pipeline` for this test: `pipeline("shop")`, on the cluster of `kafka` or on `cluster=`."""
    from barnabas.testing.pipelines import PipelineProject, copy_project

    made: list[PipelineProject] = []

    def make(
        folder: str | Path, *, cluster: "Cluster | None" = None, configuration: Mapping[str, str] | None = None
    ) -> PipelineProject:
        on: Any = cluster if cluster is not None else request.getfixturevalue("kafka")
        copy = copy_project(Path(folder), tmp_path / f"project-{len(made)}")
        name, given = f"test_{uuid.uuid4().hex[:12]}", configuration or {}
        made.append(PipelineProject(pipeline_spark, on, on.bootstrap, copy, database=name, configuration=given))
        return made[-1]

    try:
        yield make
    finally:
        for project in made:
            project.close()
