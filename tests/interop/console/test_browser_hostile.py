"""Hostile records, ids and descriptions are only text on every page."""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from barnabas.cli.local_cluster import LocalCluster
from tests.interop.console.stage import FORMATS, HOSTILE, PAYLOADS

#: Finds elements and attributes that no page of the console may have.
_INTRUDERS = """() => {
    const never = "iframe, object, embed, style, script:not([src]), math, base, meta[http-equiv], form[action]";
    const means = ({ name, value }) => name.startsWith("on") || (name === "href" && /^\\s*javascript:/i.test(value));
    return [...document.querySelectorAll("*")]
        .filter((each) => each.matches(never) || [...each.attributes].some(means))
        .map((each) => each.outerHTML.slice(0, 200));
}"""


@pytest.fixture
def tab(open_tab: Callable[..., Any], world: LocalCluster) -> Iterator[Any]:
    with open_tab(world.console_url) as tab:
        yield tab
        assert tab.page.evaluate(_INTRUDERS) == []


def visible(text: str) -> str:
    """Return the part of a payload that is readable on a page."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def test_records_stay_text(tab: Any) -> None:
    tab.go(f"/topics/{HOSTILE}?tab=messages&from=oldest&count=100")
    rows = tab.page.locator("table.messages tbody tr")
    rows.nth(2 * len(PAYLOADS) - 1).wait_for(state="attached")
    shown = rows.all_inner_texts()
    for text in (PAYLOADS[0], PAYLOADS[1], PAYLOADS[8]):
        assert any(text in row for row in shown), text
    for button in tab.page.locator("button.expand").all():
        button.click()
    tab.page.locator(".detail").nth(2 * len(PAYLOADS) - 1).wait_for(state="attached")
    tab.screenshot("hostile-messages")
    headers = tab.page.locator(".detail dt").all_inner_texts()
    assert any(PAYLOADS[0] in header for header in headers)


@pytest.mark.parametrize("way", ["text", "filter"])
def test_search_terms_stay_text(tab: Any, way: str) -> None:
    tab.expected = ["400"]
    for text in PAYLOADS[:4]:
        tab.go(f"/topics/{HOSTILE}?tab=messages&{way}={quote(text)}")
        tab.page.locator("table.messages, [role=alert], .empty").first.wait_for()


@pytest.mark.parametrize("path", ["/topics/{}", "/groups/{}", "/nowhere/{}", "/topics?search={}", "/groups?search={}"])
def test_addresses_stay_text(tab: Any, path: str) -> None:
    tab.expected = ["404", "400"]
    for text in PAYLOADS[:4]:
        tab.go(path.format(quote(text, safe="")))
        tab.page.locator("h1").first.wait_for()
        assert tab.page.evaluate(_INTRUDERS) == []


def test_group_ids_client_ids_and_metadata_stay_text(tab: Any) -> None:
    tab.go("/groups?search=hostile")
    tab.page.get_by_text("hostile <script>").first.wait_for()
    tab.screenshot("hostile-groups")
    for text in PAYLOADS[:6]:
        tab.go(f"/groups/{quote(f'hostile {text}', safe='')}")
        tab.page.locator("h1", has_text="hostile").first.wait_for()
        tab.page.get_by_text(HOSTILE, exact=True).first.wait_for()
        assert tab.page.evaluate(_INTRUDERS) == []
    tab.screenshot("hostile-group")


def test_users_and_schemas_stay_text(tab: Any) -> None:
    tab.go("/users")
    tab.page.get_by_text(PAYLOADS[0]).first.wait_for()
    tab.screenshot("hostile-users")
    assert tab.page.evaluate(_INTRUDERS) == []
    tab.go(f"/schemas/{FORMATS}-value")
    tab.page.get_by_text(PAYLOADS[0]).first.wait_for()
    tab.screenshot("hostile-schema")


def test_the_policy_would_stop_what_slips_through(open_tab: Callable[..., Any], world: LocalCluster) -> None:
    """The policy works by itself: markup that a bug inserts runs no script."""
    with open_tab(world.console_url) as tab:
        tab.go("/topics")
        tab.see("orders")
        found = tab.page.evaluate(
            """async () => {
                const outcome = [];
                window.alert = () => outcome.push("ran");
                try { document.body.insertAdjacentHTML("beforeend", "<img src=x onerror=alert(1)>"); }
                catch (error) { outcome.push(error.name); }
                const script = document.createElement("script");
                try { script.textContent = "alert(2)"; document.body.append(script); }
                catch (error) { outcome.push(error.name); }
                await new Promise((resolve) => setTimeout(resolve, 200));
                return outcome;
            }"""
        )
        assert "ran" not in found and found[0] == "TypeError", found
        assert tab.refused_by_policy()
        # Forget the violations that this test caused on purpose.
        tab.errors.clear()
        tab.page.evaluate("window.__refused = []")
