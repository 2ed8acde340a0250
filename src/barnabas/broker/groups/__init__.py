"""Consumer groups and committed offsets: pure machines (`machine` and its parts) and the driver around them (`coordinator`)."""
