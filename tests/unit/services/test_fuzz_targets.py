"""The fuzz targets of the registry and of the HTTP layer find nothing in a few seconds; `make fuzz` runs them for long."""

import asyncio
import logging

import pytest

from tests.fuzz import heads, registry


@pytest.mark.parametrize("seed", [1, 2])
def test_histories_of_a_registry(seed: int) -> None:
    steps, findings = registry.fuzz(seconds=120, seed=seed, most=60)
    assert not findings, "\n".join(findings)
    assert steps["register"] > 100 and steps["stranger"] > 100


@pytest.mark.parametrize("seed", [1, 2])
def test_heads_of_requests(seed: int) -> None:
    level = logging.getLogger("uvicorn.error").level
    try:
        inputs, problems = asyncio.run(heads.fuzz(seconds=120, seed=seed, most=400))
    finally:
        logging.getLogger("uvicorn.error").setLevel(level)
    assert not problems, "\n".join(problems)
    assert len(inputs) == 4
