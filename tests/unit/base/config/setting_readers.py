"""Find the readers of a setting: code that takes the value and uses it.

Not readers: a declaration, a check of the value, a tool that writes or shows settings, and a copy into a field that is never
read.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

SRC = Path(__file__).resolve().parents[4] / "src" / "barnabas"

#: Names of variables and attributes that hold a `BrokerConfig` or a `LogConfig`.
HOLDERS = frozenset({"config", "_config", "broker", "before", "after"})
#: Packages that declare, check, write or show settings.
NOT_READERS = ("base/config/", "cli/", "services/console/", "spark/", "testing/")
#: The client has its own settings, some with the same names. These are the parts with which brokers log in.
CLIENT_READERS = ("client/oauth_login.py", "client/security.py")


@dataclass(slots=True)
class Readers:
    #: Attributes that are taken from a holder and then used.
    attributes: set[str] = field(default_factory=set)
    #: All attributes that are loaded, from any object.
    loaded: set[str] = field(default_factory=set)
    #: Settings named in full, in a call or as an index.
    names: set[str] = field(default_factory=set)
    #: All literals.
    literals: set[object] = field(default_factory=set)


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SRC.rglob("*.py")):
        name = str(path.relative_to(SRC))
        if not name.startswith(NOT_READERS):
            yield name, ast.parse(path.read_text())


def readers(modules: Iterable[tuple[str, ast.Module]]) -> Readers:
    walked = {name: list(ast.walk(tree)) for name, tree in modules}
    fields = _fields(walked.values())
    copies = [copy for nodes in walked.values() for copy in _copies(nodes, fields)]
    copied = {node: to for to, value in copies for node in ast.walk(value)}
    found = Readers()
    for nodes in walked.values():
        for node in nodes:
            # `Parts(max_size=config.max_size)` does not read the field `max_size`.
            if _is_load(node) and (node not in copied or not _is_holder(node.value)):
                found.loaded.add(node.attr)
            elif isinstance(node, ast.Constant):
                found.literals.add(node.value)
    for name, nodes in walked.items():
        if name.startswith("client/") and name not in CLIENT_READERS:
            continue
        for node in nodes:
            if node in copied and copied[node] not in found.loaded:
                continue  # a copy that is never read
            if _is_load(node) and _is_holder(node.value):
                found.attributes.add(node.attr)
            else:
                found.names.update(_names_in(node))
    return found


def _is_load(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)


def _is_holder(node: ast.expr) -> bool:
    """`config.x`, `self.config.x`, `self._config().x`, `dynamic.broker.x`, `config_of(topic).x`, `log.config.x`"""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in HOLDERS
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in HOLDERS or name in ("log_config", "config_of", "_config_of")
    return False


def _names_in(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Call(args=parts):
            pass
        case ast.Subscript(slice=part):
            parts = [part]
        case _:
            return
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _fields(walked: Iterable[list[ast.AST]]) -> dict[str, list[str]]:
    """The annotated fields of each dataclass, in their order."""
    return {
        node.name: [
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        ]
        for nodes in walked
        for node in nodes
        if isinstance(node, ast.ClassDef) and not any(_is_init(each) for each in node.body)
    }


def _is_init(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__init__"


def _copies(nodes: list[ast.AST], fields: dict[str, list[str]]) -> Iterator[tuple[str, ast.expr]]:
    """The values that are put into the fields of dataclasses: the field and the expression."""
    for node in nodes:  # `size: int = setting("group.max.size")`
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call(func=ast.Name(id="setting")) as value):
                yield name, value
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    maker = {call: owner.name for owner in classes for call in ast.walk(owner) if _calls(call, "cls")}
    for call in nodes:
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            names = fields.get(maker.get(call, call.func.id), [])
            yield from zip(names, call.args, strict=False)
            if names:
                yield from ((each.arg, each.value) for each in call.keywords if each.arg is not None)


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
