"""Starts the Spark that `pyspark.pipelines` needs: a JVM of this process, a Connect server in it, and a Connect session.

The JVM is reachable through py4j as well. Connect lacks two things that need it: the progress of flows while they run,
and flows that go on (`continuous`). Owner: the thread that made it, because Spark ties its active session to a thread.
"""

import atexit
import fcntl
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from barnabas.spark import WORKER_SETTINGS
from barnabas.spark.pipelines.failures import PipelineFailed
from barnabas.spark.pipelines.project import Project, user_environment
from barnabas.spark.python_command import set_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService"
#: How long to wait for the JVM of a killed driver, which ends within seconds, or later on a busy machine.
_PATIENCE_S: Final = 120.0
_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
# Sessions end while answers are still being sent; nothing is lost by that.
logger.connect.name = org.apache.spark.sql.connect
logger.connect.level = off
"""


class Session:
    """`spark` is the Connect session that definitions and runs use."""

    def __init__(self, classic: "SparkSession", *, owned: bool) -> None:
        self._classic = classic
        self._owned = owned
        self.jvm: Any = classic._jvm
        port = _connect_port(classic)
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        self._environment = {"SPARK_CONNECT_MODE_ENABLED": "1"}
        with self.remote():
            self.spark: Any = ConnectSession.builder.remote(f"sc://localhost:{port}").create()
        service = getattr(getattr(self.jvm, f"{_SERVICE}$"), "MODULE$")
        user = self.spark.client._user_id or ""
        self._holder = service.getOrCreateIsolatedSession(user, self.spark.session_id)
        self.jvm_session: Any = self._holder.session()

    @contextmanager
    def remote(self) -> Iterator[None]:
        """Make functions of `pyspark.sql` those of Connect while definitions are read."""
        before = {name: os.environ.get(name) for name in self._environment}
        os.environ.update(self._environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def execution(self, graph_id: str) -> Any:
        """Return the server's state of a run: its `PipelineUpdateContext`."""
        return self._holder.getPipelineExecution(graph_id).get()

    def has_started(self, graph_id: str) -> bool:
        """Whether the run got as far as starting flows."""
        found = self._holder.getPipelineExecution(graph_id)
        return bool(found.isDefined() and found.get().pipelineExecution().graphExecution().isDefined())

    def activate(self) -> None:
        """Make our session the active one of this thread in the JVM."""
        self.jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(self.jvm_session)

    def queries(self) -> list[Any]:
        """Return the running streaming queries, as the JVM has them."""
        return list(self.jvm_session.streams().active())

    def new_checkpoint(self, folder: str) -> None:
        """Let a flow start again: Spark goes on in the folder of the highest number."""
        path = self.jvm.org.apache.hadoop.fs.Path(folder)
        files = path.getFileSystem(self._classic.sparkContext._jsc.hadoopConfiguration())
        if not files.exists(path):
            return
        numbers = [
            int(each.getPath().getName()) for each in files.listStatus(path) if each.getPath().getName().isdigit()
        ]
        files.mkdirs(self.jvm.org.apache.hadoop.fs.Path(path, str(max(numbers, default=-1) + 1)))

    def on_progress(self, report: Callable[[str], None], rests: Callable[[str], None]) -> Callable[[], None]:
        """Call `report` with the JSON of each progress report, and `rests` with the id of a query that has nothing to do, from
        another thread; return a function that ends that."""
        from py4j.java_gateway import java_import  # type: ignore[import-untyped]
        from pyspark.java_gateway import ensure_callback_server_started

        gateway: Any = self._classic.sparkContext._gateway
        java_import(gateway.jvm, "org.apache.spark.sql.streaming.*")
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        listener = self.jvm.PythonStreamingQueryListenerWrapper(_ProgressListener(report, rests))
        streams = self.jvm_session.streams()
        streams.addListener(listener)
        return lambda: streams.removeListener(listener)

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # At exit the client would send a message to our server, which has ended, and wait for it for minutes.
        atexit.unregister(self.spark.client._on_exit)
        try:
            for query in self.queries():
                query.stop()
        except Py4JError:
            # The JVM ended before us, and with it everything that was to be ended here.
            if error is None:
                raise
            return
        with self.remote():
            self.spark.stop()
        if self._owned:
            self._classic.stop()


class _ProgressListener:
    """Implements Java's interface by py4j. Spark's own wrapper for Python fails in a session that it did not make."""

    def __init__(self, report: Callable[[str], None], rests: Callable[[str], None]) -> None:
        self._report = report
        self._rests = rests

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Do nothing: states of flows come from the run itself."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self._report(event.progress().json())

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        self._rests(str(event.id()))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Do nothing: states of flows come from the run itself."""

    class Java:
        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


def start(project: Project, master: str) -> Session:
    """Start a Spark of our own, whose log goes to a file of the project."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    project.state.mkdir(parents=True, exist_ok=True)
    set_python(master)
    os.environ.update(user_environment(project))
    os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = uuid.uuid4().hex
    conf = SparkConf(loadDefaults=True)
    conf.setAll(list(_configuration(project, master).items()))
    with open(project.log_file, "ab") as log:
        launched = {"stdout": log, "stderr": log, "pass_fds": (alone(project),)}
        gateway = launch_gateway(conf=conf, popen_kwargs=launched)  # type: ignore[no-untyped-call]
    context = SparkContext(conf=conf, gateway=gateway)
    return Session(SparkSession(context), owned=True)


def alone(project: Project, *, patience_s: float = _PATIENCE_S) -> int:
    """Return a descriptor that holds the project's lock for as long as this process, or a JVM that inherits it, lives.

    The JVM of a killed driver ends a while after it. Until then it has the catalog open, which only one process may have.
    """
    held = os.open(project.state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline_s = time.monotonic() + patience_s
    is_announced = False
    while not _has_taken(held):
        if not is_announced:
            is_announced = True
            sys.stderr.write(
                f"waiting until another process leaves {project.name}, such as the Spark of a killed run\n"
            )
        if time.monotonic() > deadline_s:
            os.close(held)
            raise PipelineFailed(
                f"another process has {project.name}: a run, or the Spark of one that was killed. End it, and try again"
            )
        time.sleep(0.1)
    return held


def _has_taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def attach(spark: "SparkSession") -> Session:
    """Use a Spark that this process has already, and that stays: in a notebook, or beside other queries."""
    return Session(spark, owned=False)


def _configuration(project: Project, master: str) -> dict[str, str]:
    """Return our settings and those of the spec, which may change any of ours."""
    logging = project.state / "log4j2.properties"
    logging.write_text(_LOG4J.format(file=project.log_file))
    java = f"-Dlog4j2.configurationFile=file:{logging} -Dderby.system.home={project.state}"
    database = project.state / "metastore"
    ours = {
        "spark.master": master,
        "spark.app.name": project.name,
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.sql.artifact.isolation.enabled": "true",
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
        "spark.sql.connect.serverStacktrace.enabled": "false",
        "spark.sql.warehouse.dir": f"file://{project.state / 'warehouse'}",
        # Tables outlive the process only in a catalog that is stored on disk.
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={database};create=true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": java,
        "spark.sql.session.timeZone": "UTC",
        **WORKER_SETTINGS,
        "spark.executorEnv.PYTHONPATH": user_environment(project)["PYTHONPATH"],
    }
    if master.startswith("local"):
        ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Each source of a flow starts a Python process, for which Spark waits ten seconds. With more than the cores at a time,
        # none is ready.
        ours["spark.sql.pipelines.execution.maxConcurrentFlows"] = str(max(2, os.cpu_count() or 2))
    return ours | dict(project.configuration)


def _connect_port(classic: "SparkSession") -> int:
    """Return the port of the Connect server in this JVM; start the server if the context came without it."""
    jvm: Any = classic._jvm
    service = getattr(getattr(jvm, f"{_SERVICE}$"), "MODULE$")
    if not service.started():
        os.environ.setdefault("SPARK_CONNECT_AUTHENTICATE_TOKEN", uuid.uuid4().hex)
        conf = classic.sparkContext._jsc.sc().conf()
        conf.set("spark.connect.grpc.binding.port", "0")
        conf.set("spark.connect.grpc.binding.address", "127.0.0.1")
        conf.set("spark.connect.authenticate.token", os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"])
        service.start(classic.sparkContext._jsc.sc())
    return int(service.localPort())
