"""Settings of Connect's transforms, without Spark."""

from barnabas.spark.pipelines import connect_config, transforms


def test_the_marks_after_the_fields_of_insert_field_are_not_part_of_their_names() -> None:
    """Connect: a name that ends with ! is required, one with ? optional. The field was once named `source!`."""
    given = {"topic.field": "source!", "offset.field": "at?", "static.field": "shop!", "static.value": "x!"}
    settings = connect_config._Settings("", given)
    made = connect_config._MAKERS["InsertField"](settings, "value")
    settings.nothing_left()
    assert made == transforms.InsertField(topic="source", offset="at", static={"shop": "x!"}, of="value")
