"""A continuous attack: seeded inputs of strangers and of a user with few rights, while a bystander must not notice them.

`make fuzz` runs it for an hour or a count; a short run with a fixed seed is part of `make test`.
"""
