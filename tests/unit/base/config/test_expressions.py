"""Regular expressions that clients send."""

import pytest

from barnabas.base.expressions import BadExpression, compile_expression


@pytest.mark.parametrize(
    ("expression", "reason"),
    [("a[", "missing ]: ["), ("(", "missing ): ("), ("a{3000}", "invalid repetition size: {3000}")],
)
def test_error_of_a_broken_expression_goes_only_to_its_sender(
    capfd: pytest.CaptureFixture[str], expression: str, reason: str
) -> None:
    with pytest.raises(BadExpression) as broken:
        compile_expression(expression)
    assert str(broken.value).startswith(reason)
    assert capfd.readouterr().err == "", "a client could fill the log of the broker"


def test_expression_matches_whole_names() -> None:
    pattern = compile_expression("pay-.")
    assert pattern.fullmatch("pay-1") and not pattern.fullmatch("pay-12")
