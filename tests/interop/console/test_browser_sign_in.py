"""Sign-in in a browser, over HTTPS, on a host that is not only loopback."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.cli.local_cluster import LocalCluster
from barnabas.wire.auth.authority import LocalAuthority
from tests.interop.console.browser import NARROW, WIDE
from tests.interop.console.consoles import console
from tests.interop.console.stage import started


@pytest.fixture(scope="module")
def secured() -> Iterator[LocalCluster]:
    with started(LocalCluster(brokers=1, secure=True)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def address(secured: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("pki")
    authority = LocalAuthority.create("console test")
    (folder / "console.pem").write_text(authority.issue("console", ["localhost", "127.0.0.1"]))
    # The settings that all users share: the cluster's address and the trusted certificate, without a user.
    settings = secured.client_settings()
    lines = [f"{name}={settings[name]}" for name in settings if not name.startswith("sasl.jaas")]
    (folder / "client.properties").write_text("\n".join(lines))
    with console(
        "--bootstrap-server", secured.bootstrap, "--command-config", str(folder / "client.properties"),
        "--host", "0.0.0.0", "--ssl-certificate", str(folder / "console.pem"), "--read-write",
    ) as url:  # fmt: skip
        yield f"https://127.0.0.1:{url.rpartition(':')[2]}"


def password_of(cluster: LocalCluster, user: str) -> str:
    found: str = cluster.librdkafka_settings(user)["sasl.password"]
    return found


def sign_in(tab: Any, user: str, password: str) -> None:
    tab.page.get_by_label("User").fill(user)
    tab.page.get_by_label("Password").fill(password)
    tab.page.get_by_role("button", name="Sign in").click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_form_is_accessible(
    open_tab: Callable[..., Any], address: str, scheme: str, viewport: dict[str, int]
) -> None:
    with open_tab(address, scheme=scheme, viewport=viewport, ignore_https_errors=True) as tab:
        tab.go("/topics")
        tab.see("With a user of the cluster")
        tab.screenshot(f"sign-in-{scheme}-{viewport['width']}")
        assert tab.serious_findings() == []
        assert tab.overflow_px() <= 0


def test_a_user_signs_in_and_out(open_tab: Callable[..., Any], address: str, secured: LocalCluster) -> None:
    with open_tab(address, ignore_https_errors=True) as tab:
        tab.expected = ["401"]
        tab.go("/topics")
        sign_in(tab, "admin", "a wrong password")
        tab.see("the cluster does not know this user with this password")
        sign_in(tab, "admin", password_of(secured, "admin"))
        tab.see("There are no topics yet.")
        tab.screenshot("signed-in")
        [cookie] = tab.context.cookies()
        assert cookie["name"].startswith("__Host-")
        assert cookie["httpOnly"] and cookie["secure"] and cookie["sameSite"] == "Strict"
        assert tab.page.evaluate("document.cookie") == ""
        assert password_of(secured, "admin") not in tab.page.content()
        tab.page.reload()
        tab.see("There are no topics yet.")  # the session outlives the page
        tab.page.get_by_role("button", name="Sign out").click()
        tab.see("With a user of the cluster")
        tab.page.reload()
        tab.see("With a user of the cluster")


def test_expired_session_leads_to_the_form(open_tab: Callable[..., Any], address: str, secured: LocalCluster) -> None:
    with open_tab(address, ignore_https_errors=True) as tab:
        tab.expected = ["401"]
        tab.go("/topics")
        sign_in(tab, "client", password_of(secured, "client"))
        tab.see("There are no topics yet.")
        tab.context.clear_cookies()
        tab.page.get_by_label("Internal topics").check()
        tab.see("With a user of the cluster")
