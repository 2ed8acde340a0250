"""A standing attack: seeded inputs of strangers and of a user with few rights, beside a bystander who must not notice.

`make fuzz` runs it for an hour or a count; a short run with a fixed seed is part of `make test`.
"""
