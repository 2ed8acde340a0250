"""The file name of an export: a part of the response headers that a client can choose."""

import pytest

from barnabas.services.console.export import file_name


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("orders.v1-a_b", "orders.v1-a_b.jsonl"),
        ("\0", "_.jsonl"),
        ('a"\r\nSet-Cookie: x', "a___Set-Cookie__x.jsonl"),
        ("ž", "_.jsonl"),
    ],
)
def test_name_of_a_topic_that_cannot_be_fits_into_a_header(topic: str, name: str) -> None:
    assert file_name(topic, "jsonl") == name
