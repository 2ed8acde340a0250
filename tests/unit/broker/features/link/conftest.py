"""Tests of this directory may be coroutines: each gets a loop of its own."""

from tests.unit.broker.features.tiered.conftest import pytest_pyfunc_call as pytest_pyfunc_call
