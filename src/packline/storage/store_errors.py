"""Errors of object stores in packline's form, without secrets.

The messages of clients contain whole answers of servers, among them signed addresses and key ids; so only the
status, the code and the sentence of an answer are taken from them.
"""

from __future__ import annotations

import re

from packline.errors import StoreError

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,200})</Message>")
_REASONS = {
    "ConnectionRefused": "nothing answers there: connection refused",
    "dns error": "its address cannot be found",
    "TimedOut": "no answer in time",
    "ConnectionReset": "the connection was reset",
    "IncompleteMessage": "the connection was closed in mid-answer",
    "UnexpectedEof": "the connection was closed in mid-answer",
    "end of file before message length": "the connection was closed in mid-answer",
    "InvalidCertificate": "its certificate is not valid",
    "certificate": "its certificate is not valid",
    "URL scheme is not allowed": "plain HTTP is used only where the endpoint in the environment names it",
}
_WITH_SECRETS = re.compile(r"signature|token|key ?id|credential|canonical", re.IGNORECASE)

ACCESS = {
    "s3": "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or the role, and AWS_REGION",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS or the machine's account",
    "az": "check AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or another way of access",
}
"""What to check where access is refused, by scheme."""


def status_of(error: BaseException) -> int:
    """HTTP status of the answer that an error tells of; 0 if there was none."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def is_missing_bucket(error: BaseException) -> bool:
    """True if an answer says that the bucket or container itself does not exist."""
    return any(code in str(error) for code in ("NoSuchBucket", "ContainerNotFound"))


def reason_of(error: BaseException) -> str:
    """Reason of a failure in a few words, without secrets.

    >>> reason_of(Exception("status code: 503 Slow Down: <Code>SlowDown</Code><Message>Reduce</Message>"))
    'status 503, SlowDown: Reduce'
    """
    text = str(error)
    if status := status_of(error):
        code, message = _CODE.search(text), _MESSAGE.search(text)
        parts = f"status {status}" + (f", {code[1]}" if code else "")
        return f"{parts}: {message[1]}" if message and not _WITH_SECRETS.search(message[1]) else parts
    for sign, reason in _REASONS.items():
        if sign in text:
            return reason
    return type(error).__name__


def store_error(error: BaseException, place: str, scheme: str, action: str) -> StoreError:
    """Error for a failed request.

    Args:
        place: URI of the object or folder.
        action: what failed: `read`, `write`, `list` or `delete`.
    """
    reason, status = reason_of(error), status_of(error)
    if is_missing_bucket(error):
        return StoreError(
            f"cannot {action} {place}: there is no such bucket or container",
            hint="create it, or check its name and the endpoint",
        )
    if status in (401, 403) or type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
        return StoreError(f"cannot {action} {place}: access refused: {reason}", hint=ACCESS[scheme])
    if "169.254.169.254" in str(error) or "metadata" in str(error).lower():
        return StoreError(f"cannot {action} {place}: no credentials were found", hint=ACCESS[scheme])
    hint = "run the same command again: finished work is kept"
    if not status:
        hint = f"check the network and the endpoint, then {hint}"
    return StoreError(f"cannot {action} {place}: {reason}", hint=hint)
