"""Every page on a cluster under load shows its contents: light and dark, on a desk and on a phone, accessibly."""

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.cli.local_cluster import LocalCluster
from tests.interop.console.browser import NARROW, WIDE
from tests.interop.console.stage import BILLING, ORDERS, STUCK

Open = Callable[..., Any]
#: (name, address, a text that appears when the page has its data)
PAGES = [
    ("overview", "/overview", "Brokers"),
    ("topics", "/topics", ORDERS),
    ("topic", f"/topics/{ORDERS}", "Partitions"),
    ("partitions", f"/topics/{ORDERS}?tab=partitions", "Leader"),
    ("settings", f"/topics/{ORDERS}?tab=settings", "retention.ms"),
    ("messages", f"/topics/{ORDERS}?tab=messages", "Offset"),
    ("groups", "/groups", BILLING),
    ("group", f"/groups/{BILLING}", ORDERS),
    ("group-members", f"/groups/{BILLING}?tab=members", "billing-1"),
    ("group-behind", f"/groups/{STUCK}", ORDERS),
    ("inside-partitions", "/inside/partitions", ORDERS),
    ("inside-partition", f"/inside/partitions/{ORDERS}/0", "High watermark"),
    ("inside-waiting", "/inside/waiting", "Fetch"),
    ("inside-requests", "/inside/requests", "Fetch"),
    ("inside-controller", "/inside/controller", "Controller"),
    ("inside-transactions", "/inside/transactions", "Transactions"),
    ("inside-znodes", "/inside/znodes?path=/controller", "brokerid"),
    ("schemas", "/schemas", "formats-value"),
    ("schema", "/schemas/formats-value", "customer"),
    ("users", "/users", "SCRAM-SHA-256"),
    ("acls", "/acls", "ACLs"),
    ("quotas", "/quotas", "Quotas"),
    ("pipelines", "/pipelines", "late orders"),
    ("docs", "/docs/inside", "high watermark"),
]


@pytest.mark.parametrize(("name", "path", "text"), PAGES, ids=[page[0] for page in PAGES])
def test_a_page_is_readable_by_everybody(open_tab: Open, world: LocalCluster, name: str, path: str, text: str) -> None:
    """Light and dark, on a desk and on a phone: no serious findings of axe-core, and no sideways scrolling."""
    with open_tab(world.console_url) as tab:
        tab.expected = ["/api/acls"]  # the page reports that there is no authorizer
        tab.go(path)
        for viewport in (WIDE, NARROW):
            tab.page.set_viewport_size(viewport)
            for scheme in ("light", "dark"):
                tab.page.emulate_media(color_scheme=scheme)
                tab.page.locator("main").get_by_text(text, exact=False).first.wait_for(state="attached")
                tab.screenshot(f"{name}-{scheme}-{viewport['width']}")
                assert tab.serious_findings() == [], f"{scheme}, {viewport['width']} px"
            assert tab.overflow_px() <= 0, f"the page is wider than {viewport['width']} px"


def test_every_page_of_the_menu_opens(open_tab: Open, world: LocalCluster) -> None:
    with open_tab(world.console_url) as tab:
        tab.expected = ["/api/acls"]
        tab.go("/")
        tab.page.locator("nav a").first.wait_for()
        links = [link.get_attribute("href") for link in tab.page.locator("#navigation a").all()]
        assert len(links) >= 2
        for link in links:
            tab.page.locator(f'#navigation a[href="{link}"]').click()
            tab.page.locator("main h1").first.wait_for()
            tab.page.locator(f'#navigation a[href="{link}"][aria-current="page"]').wait_for()
            # A flow that failed on the stage has an alert of its own.
            if link != "/pipelines":
                assert tab.page.locator("main [role=alert]").count() == 0, (
                    f"{link}: {tab.page.locator('main').inner_text()}"
                )


def test_the_menu_works_with_the_keyboard_alone(open_tab: Open, world: LocalCluster) -> None:
    with open_tab(world.console_url) as tab:
        tab.go("/topics")
        tab.see(ORDERS)
        tab.page.keyboard.press("Tab")
        assert tab.page.evaluate("document.activeElement.textContent") == "Skip to content"
        tab.page.keyboard.press("Enter")
        assert tab.page.evaluate("document.activeElement.id") == "main"
        tab.page.get_by_role("link", name="Groups").first.focus()
        tab.page.keyboard.press("Enter")
        tab.page.locator("h1", has_text="Groups").wait_for()


def test_figures_move_while_one_looks(open_tab: Open, world: LocalCluster) -> None:
    with open_tab(world.console_url) as tab:
        tab.go(f"/topics/{ORDERS}")
        tab.page.locator("dl.figures").first.wait_for()
        before = tab.page.locator("dl.figures").first.inner_text()
        tab.page.wait_for_function(
            "(before) => document.querySelector('dl.figures').innerText !== before", arg=before
        )  # fmt: skip


def test_a_leader_dies_while_one_looks(open_tab: Open, world: LocalCluster) -> None:
    """The last test of this file: no other test runs while a broker is down."""
    with open_tab(world.console_url) as tab:
        tab.expected = ["502", "504", "503", "Failed to load resource"]
        tab.go("/topics")
        tab.see(ORDERS)
        world.kill(2)
        tab.page.get_by_text("under-replicated").first.wait_for()
        tab.screenshot("leader-killed-topics")
        tab.go(f"/topics/{ORDERS}?tab=partitions")
        tab.page.wait_for_function(
            """() => { const rows = [...document.querySelectorAll("main tbody tr")].map((row) => row.innerText);
                return rows.length >= 6 && rows.every((row) => !/^\\\\d+\\\\s+2\\\\s/.test(row)); }"""
        )
        tab.screenshot("leader-killed-partitions")
        tab.go(f"/topics/{ORDERS}?tab=messages")
        tab.page.locator("table.messages tbody tr").first.wait_for()
        world.start_broker(2)
        tab.go("/topics")
        tab.page.locator("tr", has=tab.page.get_by_text(ORDERS, exact=True)).get_by_text("in sync").wait_for()
