"""A contract for import-linter: pure modules do not import modules that do I/O, directly or indirectly.

It applies to a module if `machine` is in its name, or if its docstring claims to be pure: with a sentence that begins with
"Pure", or with "A pure machine". "Pure but for …" claims less, and is not checked.
"""

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import grimp
from importlinter import Contract, ContractCheck, fields, output

CLAIM = re.compile(r"(?:^|[.;:] )Pure\b(?! but)|\b[Aa] pure machine\b")


def claims_purity(name: str, docstring: str) -> bool:
    return "machine" in name.rpartition(".")[2] or CLAIM.search(" ".join(docstring.split())) is not None


def pure_modules(package: str) -> list[str]:
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    found = []
    for path in sorted(root.rglob("*.py")):
        name = ".".join((package, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
        if claims_purity(name, ast.get_docstring(ast.parse(path.read_text())) or ""):
            found.append(name)
    return found


class PureModules(Contract):
    forbidden_modules = fields.ListField(subfield=fields.StringField())

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        # A separate graph, because an import for type checkers only brings nothing in at run time.
        package = self.session_options["root_packages"][0]
        runs = grimp.build_graph(package, include_external_packages=True, exclude_type_checking_imports=True)
        modules = pure_modules(package)
        chains = [
            chain
            for module in modules
            for forbidden in self.forbidden_modules
            if forbidden in runs.modules and (chain := runs.find_shortest_chain(module, forbidden)) is not None
        ]
        return ContractCheck(kept=bool(modules) and not chains, metadata={"chains": chains})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for chain in check.metadata["chains"]:
            output.print_error(" -> ".join(chain), bold=False)
        output.new_line()
