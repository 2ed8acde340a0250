"""The runbook's table of bad days is the list of causes that `tests/interop/test_bad_days.py` makes."""

import re

from tests.interop.bad_day_causes import CAUSES, RUNBOOK, with_table
from tests.unit.test_deploy import RULES


def test_table_of_bad_days_is_current() -> None:
    page = RUNBOOK.read_text()
    assert page == with_table(page), "run python -m tests.interop.bad_day_causes"


def test_alert_of_each_cause_exists_and_has_its_section() -> None:
    sections = set(re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE))
    alerts = {cause.alert for cause in CAUSES}
    assert alerts <= {rule["alert"] for rule in RULES}
    assert alerts <= sections
