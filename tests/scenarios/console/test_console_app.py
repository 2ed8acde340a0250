"""The basis of all pages: errors, the API's description, events, the page itself."""

import json
from collections.abc import Callable

from barnabas.services.console.app import STATIC
from tests.scenarios.console.conftest import Console


def test_missing_things_are_reported_in_the_common_format(console: Console) -> None:
    assert console.get("/api/nothing")[:2] == (404, "NOT_FOUND")
    assert console.get("/api/topics/not-there")[:2] == (404, "NOT_FOUND")
    assert console.change("PUT", "/api/about")[:2] == (405, "METHOD_NOT_ALLOWED")
    assert console.get("/api/topics", sort="colour")[:2] == (400, "BAD_REQUEST")


def test_description_names_every_path_that_answers(console: Console) -> None:
    description = console.get("/api/openapi.json")
    assert description["openapi"].startswith("3.1")
    assert {"/api/topics", "/api/topics/{topic}", "/api/events"} <= description["paths"].keys()
    for path, operations in description["paths"].items():
        for operation in operations.values():
            named = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}


def test_every_path_of_the_browser_gets_the_page_and_all_that_it_loads(console: Console) -> None:
    for path in ("/", "/topics", "/topics/a%2Fb"):
        page = console.http.get(path)
        assert page.status_code == 200 and "/static/app.js" in page.text
    for file in STATIC.rglob("*.js"):
        found = console.http.get(f"/static/{file.relative_to(STATIC)}")
        assert found.status_code == 200 and "javascript" in found.headers["content-type"], file


def test_page_loads_nothing_from_elsewhere_and_makes_no_markup_of_text() -> None:
    for file in (each for each in STATIC.rglob("*.js") if each.parent.name != "vendor"):
        text = file.read_text()
        assert "innerHTML" not in text and "dangerouslySet" not in text, file
        assert "http://" not in text and "https://" not in text, file


def test_watcher_hears_of_a_change(console: Console, cluster: object, topic: Callable[..., str]) -> None:
    name = topic()
    path = f"/api/topics/{name}"
    with console.watching(path) as events:
        event, data = next(events)
        assert event == path and json.loads(data)["messages"] == 0
        cluster.produce(name, [b"one", b"two"])  # type: ignore[attr-defined]
        for _, data in events:
            if json.loads(data)["messages"] == 2:
                break


def test_endpoint_that_is_not_live_cannot_be_watched(console: Console) -> None:
    assert console.get("/api/events", watch="/api/about")[:2] == (400, "BAD_REQUEST")
    assert console.get("/api/events")[:2] == (400, "BAD_REQUEST")
