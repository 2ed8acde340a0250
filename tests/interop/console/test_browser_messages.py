"""Messages in a browser: every format, filters, the tail, producing one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.cli.local_cluster import LocalCluster
from tests.interop.console.stage import EMPTY, FORMATS, ORDERS

Open = Callable[..., Any]


@pytest.fixture
def tab(open_tab: Open, world: LocalCluster) -> Iterator[Any]:
    with open_tab(world.console_url) as tab:
        yield tab


def row_of(tab: Any, key: str) -> Any:
    """Return the row of the record with this key."""
    return tab.page.locator("table.messages tbody tr").filter(
        has=tab.page.locator("td.cut:not(.value)", has_text=key)
    ).first  # fmt: skip


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("text", "plain text, naïve 漢字 🎉"),
        ("json", '"amount"'),
        ("number", "42"),
        ("bytes", "00010203"),
        ("tombstone", "null"),
        ("nothing", "empty"),
        ("avro", "avro customer"),
        ("protobuf", "proto customer"),
    ],
)
def test_every_format_is_decoded(tab: Any, key: str, shown: str) -> None:
    tab.go(f"/topics/{FORMATS}?tab=messages&from=oldest")
    row = row_of(tab, key)
    row.wait_for()
    value = row.locator("td.value")
    value.filter(has_text=shown).wait_for() if key != "bytes" else value.wait_for()
    row.get_by_role("button").click()
    detail = tab.page.locator(".detail").first
    detail.wait_for()
    if key != "bytes":
        detail.get_by_text(shown).first.wait_for()
    tab.screenshot(f"message-{key}")
    assert tab.serious_findings() == []


def test_headers_are_shown_with_their_record(tab: Any) -> None:
    tab.go(f"/topics/{FORMATS}?tab=messages&from=oldest")
    row = row_of(tab, "headers")
    row.get_by_role("button").click()
    detail = tab.page.locator(".detail").first
    for text in ("trace", "abc"):
        detail.get_by_text(text, exact=True).wait_for()


def test_a_long_record_is_shown_whole_when_asked(tab: Any) -> None:
    tab.go(f"/topics/{FORMATS}?tab=messages&from=oldest")
    row_of(tab, "long").get_by_role("button").click()
    tab.page.get_by_role("button", name="Show it whole").click()
    tab.page.wait_for_function("document.querySelector('.detail pre:last-of-type').textContent.length >= 100000")


def test_records_are_found_by_an_expression(tab: Any) -> None:
    tab.go(f"/topics/{ORDERS}?tab=messages&from=oldest")
    tab.page.get_by_label("Filter (CEL)").fill('value.amount > 490 && key.startsWith("c-4")')
    tab.page.get_by_role("button", name="Search", exact=True).click()
    tab.page.get_by_text("matches in").first.wait_for()
    tab.page.locator("table.messages tbody tr").first.wait_for()
    tab.screenshot("search")
    for text in tab.page.locator("table.messages td.cut:not(.value)").all_inner_texts():
        assert text.startswith("c-4")


def test_a_filter_that_is_wrong_says_so(tab: Any) -> None:
    tab.expected = ["400"]
    tab.go(f"/topics/{ORDERS}?tab=messages")
    tab.page.get_by_label("Filter (CEL)").fill("value.amount >")
    tab.page.get_by_role("button", name="Search", exact=True).click()
    tab.page.get_by_role("alert").wait_for()
    tab.screenshot("wrong-filter")


def test_new_messages_are_shown_as_they_arrive(tab: Any) -> None:
    tab.go(f"/topics/{ORDERS}?tab=messages")
    tab.page.get_by_role("button", name="Live", exact=True).click()
    rows = tab.page.locator("table.messages tbody tr")
    rows.nth(20).wait_for(state="attached")
    tab.page.get_by_role("button", name="Stop live").click()


def test_an_empty_topic_is_empty_at_once(tab: Any) -> None:
    tab.go(f"/topics/{EMPTY}?tab=messages")
    tab.see("There are no records here.")


def test_a_record_is_produced_and_seen(tab: Any) -> None:
    tab.go(f"/topics/{FORMATS}?tab=messages")
    tab.page.get_by_role("button", name="Produce…").click()
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_label("No key (null)").uncheck()
    dialog.get_by_label("Key", exact=True).fill("by-hand")
    dialog.get_by_label("Value", exact=True).fill("written in the browser")
    dialog.get_by_label("Headers").fill("who: me")
    tab.screenshot("produce")
    assert tab.serious_findings() == []
    dialog.get_by_role("button", name="Produce", exact=True).click()
    tab.see("Written to partition")
    row_of(tab, "by-hand").wait_for()
