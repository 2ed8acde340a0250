"""`Broker`: real brokers in the process of the test.

async with Broker() as kafka:                 # on the loop of the test
    await kafka.create_topic("orders")

with Broker(brokers=3) as kafka:              # on a thread of their own, for code that blocks
    kafka.create_topic("orders")
"""

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

from barnabas.base.names import did_you_mean
from barnabas.broker.runtime.faults import TEST_CLIENT_ID
from barnabas.cli.faults.asking import Question
from barnabas.cli.faults.broker_faults import BrokerFaults
from barnabas.cli.faults.journal import LOG_LINES_MAX, Fault, Journal
from barnabas.cli.faults.names import check_broker_settings
from barnabas.cli.local_cluster import ClusterFailed
from barnabas.cli.local_settings import SettingValue, setting_texts
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import client_config
from barnabas.testing.in_process import HOST, Machinery, Options
from barnabas.testing.loop_watch import LoopWatch
from barnabas.testing.snapshot import Snapshot
from barnabas.testing.topics import TopicHelpers

T = TypeVar("T")
P = ParamSpec("P")

#: Calls of `AsyncBroker` that may wait at the same time.
_CALLS_MAX = 32
#: Options of `Cluster` that need processes.
_OF_CLUSTER = (
    *("secure", "schema_registry", "schema_registry_port", "console", "console_port", "tables", "inside"),
    *("zookeeper", "zookeeper_options", "host", "advertised_host", "port"),
)
_OWN = ("brokers", "config", "broker_config", "data", "short_sessions", "own_thread")
#: Settings that `Broker` chooses itself.
_CHOSEN = ("broker.id", "listeners", "advertised.listeners", "zookeeper.connect")
#: Methods of `Cluster` that do something to a process or with certificates, and what to do instead.
_REFUSED = {
    "pause": "it would stop the test, too; slow_network(id, delay_ms=…) or cut_off(id) come near",
    "resume": "there is no pause()",
    "tear_write": "it would kill the test in the middle of a write; kill(id) ends a broker between two writes",
    "move_controller": "the old controller cannot be held still meanwhile; kill(kafka.controller()) moves it",
    "expire_certificate": "there are no certificates",
    "kill_all": "restore(snapshot()) is a power cut of everything",
    "pause_zookeeper": "it would stop the test, too; restart_zookeeper(away_s=…) takes it away for a while",
    "resume_zookeeper": "there is no pause_zookeeper()",
    "stop_zookeeper": "restart_zookeeper(away_s=…) takes it away for a while",
    "pid": "there is no process of its own",
    "librdkafka_settings": "there are no users; {'bootstrap.servers': kafka.bootstrap} is all that a client needs",
    "client_settings": "there are no users; {'bootstrap.servers': kafka.bootstrap} is all that a client needs",
}


def _refuse(name: str, owner: object) -> NoReturn:
    if name in _REFUSED:
        raise AttributeError(
            f"{name}() needs brokers that are processes, and these run in the test's: {_REFUSED[name]}. "
            f"Cluster has {name}()",
            name=name,
            obj=owner,
        )
    raise AttributeError(f"{type(owner).__name__} has no {name}", name=name, obj=owner)


class _View:
    """What both forms show without asking a broker."""

    def __init__(self, machinery: Machinery, journal: Journal) -> None:
        self._machinery = machinery
        self.journal = journal

    if not TYPE_CHECKING:  # a type checker knows what is there

        def __getattr__(self, name: str) -> object:
            _refuse(name, self)

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for clients."""
        return ",".join(self.address(each) for each in self.broker_ids)

    @property
    def broker_ids(self) -> range:
        return self._machinery.broker_ids

    @property
    def folder(self) -> Path:
        """Where the data is."""
        return self._machinery.folder

    @property
    def zookeeper_connect(self) -> str:
        return self._machinery.zookeeper.connect_string

    def address(self, broker_id: int) -> str:
        return f"{HOST}:{self._machinery.members[self._checked_id(broker_id)].port}"

    def log(self, broker_id: int) -> str:
        """What the broker has logged so far: the newest lines."""
        return self._machinery.members[self._checked_id(broker_id)].lines.text()

    def log_dirs(self, broker_id: int) -> list[Path]:
        return self._machinery.log_dirs(self._checked_id(broker_id))

    def sections(self) -> list[tuple[str, str]]:
        """For the report of a test that fails: titles and texts, without those that are empty."""
        logs = [(f"log of broker-{each.id}", each.lines) for each in self._machinery.members.values()]
        logs.append(("log of zookeeper", self._machinery.zookeeper_lines))
        found = [("faults", "\n".join(self.journal.lines()))]
        found += [(title, lines.text(LOG_LINES_MAX)) for title, lines in logs]
        return [(f"kafka: {title}", text) for title, text in found if text]

    def _can_obey(self, broker_id: int) -> bool:
        return self._machinery.members[self._checked_id(broker_id)].running

    def _checked_id(self, broker_id: int) -> int:
        if broker_id not in self.broker_ids:
            there_are = "broker 1 alone" if len(self.broker_ids) == 1 else f"brokers 1 to {len(self.broker_ids)}"
            raise ValueError(f"there is no broker {broker_id!r}: there are {there_are}")
        return broker_id


class BlockingBroker(_View, TopicHelpers, BrokerFaults):
    """What `with Broker()` gives. Any thread may call it, but not the one that runs the brokers' loop."""

    def __init__(self, machinery: Machinery, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(machinery, Journal())
        self._loop = loop
        self._loop_thread = threading.get_ident()
        #: Tasks of the loop whose end a thread waits for.
        self._questions: set[asyncio.Task[Any]] = set()
        self._is_closed = False
        self._closing = threading.Lock()
        self._marred: set[int] = set()
        self._throttled: dict[str | None, tuple[str, ...]] = {}

    def _wait_for(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The end of a coroutine that runs on the brokers' loop."""
        if threading.get_ident() == self._loop_thread:
            raise ClusterFailed("this would wait for itself: the brokers run on the loop of this thread")

        async def tracked() -> T:
            task = asyncio.current_task()
            assert task is not None
            self._questions.add(task)
            try:
                return await work()
            finally:
                self._questions.discard(task)

        with self._closing:
            if self._is_closed:
                raise ClusterFailed("the broker was stopped")
            future = asyncio.run_coroutine_threadsafe(tracked(), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ClusterFailed("the broker was stopped") from None
        finally:
            future.cancel()  # Ctrl-C: the thread no longer waits for it

    async def end_questions(self) -> None:
        """On the loop, before the brokers stop: threads that wait for an answer get an error."""
        with self._closing:
            self._is_closed = True
        await asyncio.sleep(0)  # those that were asked for just now begin
        for task in (questions := list(self._questions)):
            task.cancel()
        await asyncio.gather(*questions, return_exceptions=True)

    # -- asking -----------------------------------------------------------------------------------------------------------

    def ask(self, question: Question[T], *, of: int | None = None) -> T:
        """Carry out something with a client of the brokers; `of` asks one broker first."""
        brokers = [of] if of is not None else [each for each in self.broker_ids if self._can_obey(each)]
        if not brokers and not self._is_closed:
            raise ClusterFailed("no broker runs: start one with start_broker(1)")
        where = ",".join(self.address(each) for each in brokers)

        async def with_client() -> T:
            async with AsyncClient(client_config(where, {}, client_id=TEST_CLIENT_ID)) as client:
                return await question(client)

        return self._wait_for(with_client)

    def controller(self, *, seen_by: int | None = None) -> int:
        """The controller's id, as a broker (any, if not said) knows it; -1 if there is no controller."""

        async def look(client: AsyncClient) -> int:
            await client.topics([])
            return client.image.controller_id

        return self.ask(look, of=seen_by)

    def control(self, broker_id: int, **command: object) -> object:
        """One command to a broker's fault points, and its answer."""
        self._checked_id(broker_id)

        async def obey() -> object:
            try:
                return self._machinery.control(broker_id, command)
            except (ValueError, KeyError, TypeError) as error:
                raise ClusterFailed(f"broker {broker_id} refused {command}: {error}") from error

        return self._wait_for(obey)

    def _life(self, broker_id: int) -> int | None:
        member = self._machinery.members[broker_id]
        return id(member.faults) if member.running else None

    def _api_fault(self, broker_id: int, what: str, number: object) -> Fault:
        """It counts in the broker's memory, which is ours: its count outlives the broker."""
        assert isinstance(number, int)
        asked = self._machinery.members[broker_id].faults.asked[number]
        life = self._life(broker_id)

        def end() -> None:
            if self._life(broker_id) == life is not None:
                self.control(broker_id, do="end_api_fault", fault=number)

        return Fault(f"broker {broker_id}: {what}", lambda: asked.fired, end)

    # -- brokers ----------------------------------------------------------------------------------------------------------

    def kill(self, broker_id: int) -> None:
        """As by kill -9: connections break, nothing more is written, no hand-over, no flush. Other
        brokers take over when its session with ZooKeeper expires."""
        self._checked_id(broker_id)
        self._wait_for(lambda: self._machinery.kill(broker_id))
        self.journal.note(f"broker {broker_id} was killed")

    def terminate(self, broker_id: int) -> None:
        """A clean stop: the broker hands over what it leads."""
        self._checked_id(broker_id)
        self._wait_for(lambda: self._machinery.terminate(broker_id))
        self.journal.note(f"broker {broker_id} was stopped")

    def start_broker(self, broker_id: int, *, config: Mapping[str, SettingValue] | None = None) -> None:
        """A broker that was stopped or killed, on its data and port again. Faults that it had are over."""
        self._checked_id(broker_id)
        given = _checked_settings(config or {})
        self._wait_for(lambda: self._machinery.start_broker(broker_id, given))
        self._marred.discard(broker_id)
        self.journal.note(f"broker {broker_id} was started")

    def restart(self, broker_id: int) -> None:
        self.terminate(broker_id)
        self.start_broker(broker_id)

    def expire_session(self, broker_id: int) -> None:
        """ZooKeeper gives up the broker's session: it registers again, and leaders move."""
        self._checked_id(broker_id)

        async def expire() -> None:
            self._machinery.expire_session(broker_id)

        self._wait_for(expire)
        self.journal.note(f"the ZooKeeper session of broker {broker_id} expired")

    def restart_zookeeper(self, *, away_s: float = 0) -> None:
        """ZooKeeper stops, and starts at the same address on its data: sessions live on."""
        self._wait_for(lambda: self._machinery.restart_zookeeper(away_s))
        self.journal.note("ZooKeeper was restarted")

    # -- mending ----------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Every fault ends, on every broker that runs. Brokers that are down stay down."""
        for broker_id in self.broker_ids:
            if self._can_obey(broker_id):
                self.control(broker_id, do="clear")
        self._end_throttles()

    def repair(self) -> None:
        """As it was at first: no fault, everything up, clocks right. Topics and records stay."""
        for broker_id in self.broker_ids:
            if broker_id in self._marred and self._can_obey(broker_id):
                self._wait_for(functools.partial(self._machinery.terminate, broker_id))
            if not self._can_obey(broker_id):
                self.start_broker(broker_id)
        self.heal()

    # -- snapshots --------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """All that the brokers and ZooKeeper have on disk now. The loop that runs them stands still meanwhile."""

        async def take() -> Snapshot:
            return self._machinery.take_snapshot()

        return self._wait_for(take)

    def restore(self, snapshot: Snapshot) -> None:
        """Everything is as it was then, at the same addresses. Brokers start again; clients reconnect."""
        self._wait_for(lambda: self._machinery.restore(snapshot))
        self._throttled.clear()


def _awaited(
    method: Callable[Concatenate[BlockingBroker, P], T],
) -> "Callable[Concatenate[AsyncBroker, P], Coroutine[Any, Any, T]]":
    """The same without blocking the loop: the call waits on a thread, and its work is done on the loop."""

    async def call(self: "AsyncBroker", /, *args: P.args, **options: P.kwargs) -> T:
        work = functools.partial(method, self.blocking, *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    functools.update_wrapper(call, method)
    return call


class AsyncBroker(_View):
    """What `async with Broker()` gives: the methods of `BlockingBroker`, to be awaited."""

    def __init__(self, blocking: BlockingBroker) -> None:
        super().__init__(blocking._machinery, blocking.journal)
        #: The same for threads of the test.
        self.blocking = blocking
        # Not the loop's own threads: calls that wait would take all of them, and the brokers need some.
        self._threads = ThreadPoolExecutor(_CALLS_MAX, "kafka call")

    def close(self) -> None:
        """After the questions have ended: calls that still wait fail now."""
        self._threads.shutdown(wait=True)

    create_topic = _awaited(BlockingBroker.create_topic)
    delete_topic = _awaited(BlockingBroker.delete_topic)
    topics = _awaited(BlockingBroker.topics)
    partitions = _awaited(BlockingBroker.partitions)
    leader_of = _awaited(BlockingBroker.leader_of)
    wait_until_led = _awaited(BlockingBroker.wait_until_led)
    wait_for_isr = _awaited(BlockingBroker.wait_for_isr)
    produce = _awaited(BlockingBroker.produce)
    records = _awaited(BlockingBroker.records)
    assert_records = _awaited(BlockingBroker.assert_records)
    lag = _awaited(BlockingBroker.lag)
    wait_for_lag = _awaited(BlockingBroker.wait_for_lag)
    wait_for_members = _awaited(BlockingBroker.wait_for_members)
    controller = _awaited(BlockingBroker.controller)

    kill = _awaited(BlockingBroker.kill)
    terminate = _awaited(BlockingBroker.terminate)
    start_broker = _awaited(BlockingBroker.start_broker)
    restart = _awaited(BlockingBroker.restart)
    fail_api = _awaited(BlockingBroker.fail_api)
    drop_connections = _awaited(BlockingBroker.drop_connections)
    cut_off = _awaited(BlockingBroker.cut_off)
    be_deaf_to = _awaited(BlockingBroker.be_deaf_to)
    slow_network = _awaited(BlockingBroker.slow_network)
    slow_disk = _awaited(BlockingBroker.slow_disk)
    fill_disk = _awaited(BlockingBroker.fill_disk)
    fail_log_dir = _awaited(BlockingBroker.fail_log_dir)
    advance_clock = _awaited(BlockingBroker.advance_clock)
    skew_clock = _awaited(BlockingBroker.skew_clock)
    throttle = _awaited(BlockingBroker.throttle)
    expire_session = _awaited(BlockingBroker.expire_session)
    restart_zookeeper = _awaited(BlockingBroker.restart_zookeeper)
    heal = _awaited(BlockingBroker.heal)
    repair = _awaited(BlockingBroker.repair)
    snapshot = _awaited(BlockingBroker.snapshot)
    restore = _awaited(BlockingBroker.restore)

    async def ask(self, question: Question[T], *, of: int | None = None) -> T:
        """Carry out something with a client of the brokers; `of` asks one broker first."""
        work = functools.partial(self.blocking.ask, question, of=of)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class Broker:
    """Real brokers with their ZooKeeper in this process, for a test. Brokers have the ids 1..N.

    `async with Broker() as kafka:` runs them on the loop of the test. A client that blocks the loop's thread (kafka-python,
    confluent-kafka's `poll` and `flush`) would wait for brokers that cannot run: call it in a thread, or use
    `Broker(own_thread=True)`, or the blocking form. `with Broker() as kafka:` runs them on a thread of their own.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        config: Mapping[str, SettingValue] | None = None,
        broker_config: Mapping[int, Mapping[str, SettingValue]] | None = None,
        data: Path | str | None = None,
        short_sessions: bool = False,
        own_thread: bool = False,
        **others: object,
    ) -> None:
        """`config`, `broker_config`: settings of all brokers, and of single ones by id. `data`: a folder that stays; without it
        the data is in memory. `short_sessions`: a dead broker or consumer is noticed within about a second. `own_thread`: the
        brokers do not run on the loop of the test."""
        for name in others:
            if name in _OF_CLUSTER:
                raise ValueError(f"Broker has no option {name!r}: it needs processes, so use Cluster({name}=…)")
            raise ValueError(
                f"Broker has no option {name!r}{did_you_mean(name, _OWN) or ': it has ' + ', '.join(_OWN)}"
            )
        if brokers < 1:
            raise ValueError(f"brokers={brokers}: there must be one at least")
        own = {broker_id: _checked_settings(settings) for broker_id, settings in (broker_config or {}).items()}
        for broker_id in own:
            if not 1 <= broker_id <= brokers:
                raise ValueError(f"broker_config has broker {broker_id!r}: ids are 1 to {brokers}")
        self._options = Options(
            brokers=brokers,
            config=_checked_settings(config or {}),
            broker_config=own,
            data=None if data is None else Path(data).absolute(),
            short_sessions=short_sessions,
        )
        self._own_thread = own_thread
        self._thread: _LoopThread | None = None
        self._machinery: Machinery | None = None
        self._view: BlockingBroker | None = None

    # -- on a thread ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> BlockingBroker:
        self._refuse_twice()
        self._thread = _LoopThread(self._options)
        try:
            self._view = self._thread.start()
        except BaseException:
            self._thread = None
            raise
        return self._view

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._add_notes(error)
        thread, self._thread, self._view = self._thread, None, None
        with _stopping(error):
            if thread is not None:
                thread.stop()

    # -- on the loop of the test ------------------------------------------------------------------------------------------

    async def __aenter__(self) -> AsyncBroker:
        if self._own_thread:
            self._async_view = AsyncBroker(await self._enter_on_thread())
            return self._async_view
        self._refuse_twice()
        machinery = Machinery(self._options)
        await machinery.start()
        self._machinery = machinery
        self._watch = LoopWatch(asyncio.get_running_loop())
        self._view = BlockingBroker(machinery, asyncio.get_running_loop())
        self._async_view = AsyncBroker(self._view)
        return self._async_view

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if self._own_thread:
                await asyncio.to_thread(self.__exit__, kind, error, tb)
                return
            self._add_notes(error)
            view, self._view = self._view, None
            machinery, self._machinery = self._machinery, None
            assert view is not None and machinery is not None
            self._watch.stop()
            with _stopping(error):
                try:
                    await view.end_questions()
                finally:
                    await machinery.stop()
        finally:
            self._async_view.close()

    async def _enter_on_thread(self) -> BlockingBroker:
        entering = asyncio.ensure_future(asyncio.to_thread(self.__enter__))
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            await entering
            await asyncio.to_thread(self.__exit__, None, None, None)
            raise

    def _refuse_twice(self) -> None:
        if self._view is not None:
            raise ClusterFailed("this Broker runs already: make another one")

    def _add_notes(self, error: BaseException | None) -> None:
        if isinstance(error, Exception) and self._view is not None:
            add_notes(error, self._view)


@contextlib.contextmanager
def _stopping(error: BaseException | None) -> Iterator[None]:
    """What fails while the brokers stop does not hide the error of the test."""
    try:
        yield
    except ClusterFailed as failure:
        if error is None:
            raise
        error.add_note(f"kafka: {failure}")


def add_notes(error: Exception, view: BlockingBroker | AsyncBroker) -> None:
    """A test that fails shows what its brokers logged and which faults fired, whatever runs the test."""
    for title, text in view.sections():
        error.add_note(f"--- {title} ---\n{text}")


class _LoopThread:
    """Runs brokers on an event loop of their own."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._started: Future[BlockingBroker] = Future()
        self._ended: Future[None] = Future()
        self._stop: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="kafka brokers", daemon=True)

    def start(self) -> BlockingBroker:
        self._thread.start()
        try:
            self._view = self._started.result()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the loop has ended already, with the error that is raised here
                self._stop()
            self._thread.join()
            raise
        return self._view

    def stop(self) -> None:
        self._stop()
        self._thread.join()
        self._ended.result()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _main(self) -> None:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stopping.set)
        machinery = Machinery(self._options)
        await machinery.start()
        try:
            view = BlockingBroker(machinery, loop)
            self._started.set_result(view)
            await stopping.wait()
            await view.end_questions()
        finally:
            await machinery.stop()


def _checked_settings(settings: Mapping[str, SettingValue]) -> dict[str, str]:
    check_broker_settings(settings)
    for name in settings:
        if name in _CHOSEN:
            raise ValueError(f"Broker chooses {name} itself: use Cluster, or a broker of your own, to set it")
    return setting_texts(settings)
