"""The pages that explain what the console shows, as Markdown: the page renders them."""

from pathlib import Path
from typing import Any, Final

from barnabas.console.errors import not_found
from barnabas.console.web import Call, Endpoint

#: In an installed package they are beside this module, in a clone at its top.
_FOLDERS: Final = (Path(__file__).parent / "markdown", Path(__file__).parents[3] / "docs")


def _pages() -> dict[str, Path]:
    folder = next((each for each in _FOLDERS if each.is_dir()), None)
    return {} if folder is None else {file.stem: file for file in sorted(folder.glob("*.md"))}


async def page(call: Call) -> dict[str, Any]:
    pages = _pages()
    name = call.path["name"]
    if name not in pages:
        raise not_found(f"there is no page {name}")
    return {"name": name, "text": pages[name].read_text(encoding="utf-8"), "pages": list(pages)}


ENDPOINTS = [
    Endpoint(method="GET", path="/docs/{name}", handler=page, summary="A page of the documentation, in Markdown.")
]
