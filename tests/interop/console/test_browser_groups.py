"""Groups in a browser: changing lag, and a reset with its preview."""

import uuid
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from barnabas.cli.local_cluster import LocalCluster
from tests.interop.console.stage import ORDERS, STUCK, commit_until_taken


def test_lag_grows_while_one_looks(open_tab: Callable[..., Any], world: LocalCluster) -> None:
    with open_tab(world.console_url) as tab:
        tab.go(f"/groups/{STUCK}")
        tab.page.get_by_role("cell", name=ORDERS).first.wait_for()
        before = tab.page.locator("main dl.figures").first.inner_text()
        tab.page.wait_for_function(
            "(before) => document.querySelector('main dl.figures').innerText !== before", arg=before
        )  # fmt: skip
        tab.screenshot("group-behind")


def test_a_group_is_reset_as_its_preview_says(open_tab: Callable[..., Any], world: LocalCluster) -> None:
    group = f"reset-{uuid.uuid4().hex[:8]}"
    consumer = Consumer({"bootstrap.servers": world.bootstrap, "group.id": group})
    try:
        commit_until_taken(consumer, [TopicPartition(ORDERS, 0, 17)])
        with open_tab(world.console_url) as tab:
            tab.go(f"/groups/{group}")
            tab.page.get_by_role("cell", name=ORDERS).first.wait_for()
            tab.page.get_by_role("button", name="Reset offsets…").click()
            dialog = tab.page.get_by_role("dialog")
            dialog.get_by_role("button", name="Preview").click()
            preview = dialog.get_by_role("table", name="Preview")
            preview.get_by_text("-17").wait_for()
            tab.screenshot("reset-preview")
            assert tab.serious_findings() == []
            assert committed(consumer) == 17, "a preview changes nothing"
            dialog.get_by_role("button", name="Reset 1 partition").click()
            dialog.wait_for(state="detached")
        assert committed(consumer) == 0
    finally:
        consumer.close()


def committed(consumer: Consumer) -> int:
    [found] = consumer.committed([TopicPartition(ORDERS, 0)], timeout=30)
    return int(found.offset)
