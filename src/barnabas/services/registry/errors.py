"""The errors of a registry, with the status, code and message that Confluent's clients know. Pure."""

from barnabas.base.errors import BarnabasError


class Refusal(BarnabasError):
    """Sent to the client as `{"error_code": …, "message": …}`."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def subject_not_found(subject: str | None) -> Refusal:
    return Refusal(404, 40401, f"Subject '{subject}' not found.")


def version_not_found(version: object) -> Refusal:
    return Refusal(404, 40402, f"Version {version} not found.")


def schema_not_found(schema_id: object = None) -> Refusal:
    return Refusal(404, 40403, "Schema not found" if schema_id is None else f"Schema {schema_id} not found")


def subject_soft_deleted(subject: str) -> Refusal:
    return Refusal(404, 40404, f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently")


def subject_not_soft_deleted(subject: str) -> Refusal:
    return Refusal(404, 40405, f"Subject '{subject}' was not deleted first before being permanently deleted")


def version_soft_deleted(subject: str, version: int) -> Refusal:
    return Refusal(
        404, 40406, f"Subject '{subject}' Version {version} was soft deleted.Set permanent=true to delete permanently"
    )


def version_not_soft_deleted(subject: str, version: int) -> Refusal:
    return Refusal(
        404, 40407, f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted"
    )


def no_subject_config(subject: str) -> Refusal:
    return Refusal(404, 40408, f"Subject '{subject}' does not have subject-level compatibility configured")


def no_subject_mode(subject: str) -> Refusal:
    return Refusal(404, 40409, f"Subject '{subject}' does not have subject-level mode configured")


def incompatible(subject: str, details: str) -> Refusal:
    return Refusal(
        409,
        409,
        f'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: {details}',
    )


def invalid_schema(message: str) -> Refusal:
    return Refusal(422, 42201, message)


def invalid_version(version: object) -> Refusal:
    return Refusal(
        422,
        42202,
        f"The specified version '{version}' is not a valid version id. "
        'Allowed values are between [1, 2^31-1] and the string "latest"',
    )


def invalid_compatibility() -> Refusal:
    return Refusal(
        422,
        42203,
        "Invalid compatibility level. Valid values are none, backward, forward, full, "
        "backward_transitive, forward_transitive, and full_transitive",
    )


def invalid_mode() -> Refusal:
    return Refusal(422, 42204, "Invalid mode. Valid values are READWRITE, READONLY, IMPORT and FORWARD.")


def not_permitted(message: str) -> Refusal:
    return Refusal(422, 42205, message)


def read_only(subject: str | None, context: str) -> Refusal:
    return not_permitted(f"Subject {subject} in context {context} is in read-only mode")


def reference_exists(subject: str, version: int) -> Refusal:
    key = f"{{magic=1,keytype=SCHEMA,subject={subject},version={version}}}"
    return Refusal(422, 42206, f"One or more references exist to the schema {key}.")


def invalid_subject(subject: str) -> Refusal:
    return Refusal(422, 42208, f"The specified subject '{subject}' is not a valid.")


def too_large(message: str) -> Refusal:
    return Refusal(422, 42209, message)


def invalid_rule_set(message: str) -> Refusal:
    return Refusal(422, 42210, message)


def store_failed(message: str) -> Refusal:
    return Refusal(500, 50001, message)


def timed_out(message: str) -> Refusal:
    return Refusal(500, 50002, message)


def forwarding_failed(message: str) -> Refusal:
    return Refusal(500, 50003, message)


def primary_unknown(message: str = "Leader not known.") -> Refusal:
    return Refusal(500, 50004, message)
