"""docs/performance.md says what was measured."""

from bench import summary


def test_tables_of_the_document_are_those_of_the_last_results() -> None:
    assert summary.text() in summary.DOCUMENT.read_text(), "`python -m bench.summary` writes them"
