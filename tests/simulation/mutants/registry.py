"""Mutants of the schema registry."""

from tests.simulation.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "a former primary is not fenced",
        "services/registry/log.py",
        "        identity = await Transactions(self._cluster).initialise(\n"
        "            self._config.transactional_id, timeout_ms=_TRANSACTION_TIMEOUT_MS\n        )\n",
        "        identity = await Transactions(self._cluster).initialise(None, timeout_ms=0)\n",
        world="registry",
        test="scenarios/registry/test_instances.py::test_an_old_primary_cannot_write_once_another_has_claimed_the_log",
    ),
    Mutant(
        "a primary does not read back what it has written before it answers",
        "services/registry/node.py",
        "                await self._log.applied(last)\n        except TimeoutError:\n            # The next",
        "                pass\n        except TimeoutError:\n            # The next",
        also=(
            (
                "services/registry/node.py",
                "        if self._log.has_skipped(last - len(written) + 1, last) or not writes.is_kept(self.store, written):\n",
                "        if False:\n",
            ),
            ("services/registry/log.py", "        if base == self.position:\n", "        if False:\n"),
        ),
        world="registry",
    ),
    Mutant(
        "a version that others refer to can be deleted",
        "services/registry/writes.py",
        "    if store.referrers(subject, found.version, deleted=permanent):\n",
        "    if False:\n",
        world="registry",
    ),
    Mutant(
        "every user who may write anything may write everything",
        "services/registry/access.py",
        "        return any(_matches(rule.write, subject) for rule in self._rules_of(user))\n",
        "        return any(rule.write for rule in self._rules_of(user))\n",
        world="registry",
    ),
    Mutant(
        "an import takes the id of another schema",
        "services/registry/writes.py",
        "    if taken is not None and taken != content:\n",
        "    if False:\n",
        also=(
            (
                "services/registry/node.py",
                "        if self._log.has_skipped(last - len(written) + 1, last) or not writes.is_kept(self.store, written):\n",
                "        if False:\n",
            ),
        ),
        world="registry",
    ),
    Mutant(
        "references are followed to subjects that the user may not read",
        "services/registry/api.py",
        "        return partial(self._check, request, writes=False)\n",
        "        return lambda subject: None\n",
        finding="A3",
        world="registry",
    ),
]
