"""The console in a real browser, on clusters of ours and on Apache Kafka."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).resolve().parent

pytest.importorskip("playwright", reason="needs playwright")

from playwright.sync_api import Browser  # noqa: E402

from barnabas.cli.local_cluster import LocalCluster  # noqa: E402
from tests.interop.console import stage  # noqa: E402
from tests.interop.console.browser import WIDE, Tab, axe_source, chromium  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def axe() -> Callable[[], str]:
    return functools.cache(axe_source)


@pytest.fixture
def open_tab(browser: Browser, axe: Callable[[], str]) -> Callable[..., Any]:
    """`with open_tab(url) as tab`: a fresh browser, whose page is checked at the end."""

    @contextmanager
    def opened(url: str, *, viewport: dict[str, int] = WIDE, scheme: str = "light", **more: Any) -> Iterator[Tab]:
        context = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce", **more)
        try:
            tab = Tab(context, url, axe)
            yield tab
            tab.check()
        finally:
            context.close()

    return opened


@pytest.fixture(scope="session")
def world() -> Iterator[LocalCluster]:
    """Three brokers, a registry and a console, under load, with records in every format and some hostile ones."""
    cluster = LocalCluster(brokers=3, schema_registry=True, console=True)
    with stage.started(cluster):
        stage.make_topics(cluster.bootstrap, replicas=3)
        stage.write_formats(cluster.bootstrap, cluster.schema_registry_url)
        stage.write_hostile(cluster.bootstrap)
        stage.write_hostile_users(cluster.bootstrap)
        stage.write_reports(cluster.bootstrap)
        with stage.load(cluster.bootstrap):
            yield cluster
