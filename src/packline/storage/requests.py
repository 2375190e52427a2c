"""Requests to object stores: many in threads, made again, and their errors in packline's form.

Messages of clients contain whole answers of servers, among them signed addresses and key ids, so only status,
code and sentence of an answer are taken from them.
"""

from __future__ import annotations

import logging
import os
import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from packline.errors import StoreError

INSTANCE = "169.254."
"""Start of the addresses at which a machine of a cloud gets its credentials."""
_STATUS = re.compile(r"status (?:code: )?(\d{3})")
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
_AGAIN = {"BadDigest", "IncompleteBody", "Md5Mismatch", "RequestTimeout", "XAmzContentSHA256Mismatch"}
"""Codes of answers to bytes that were damaged or late on their way."""
_EXPIRED = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired")
"""Codes of answers to credentials that have run out, some with the status 400."""
_DAMAGED = re.compile(
    r"(invalid \w+(?: \w+)* response|Error getting \w+ response body|Requested [\d.]+, got [\d.]+)"
)
"""Words of the client about an answer whose body cannot be read."""
_FINAL = ("certificate", "URL scheme is not allowed", INSTANCE)
_SENT = re.compile(rf"HTTP error|HttpError|RetryError|reqwest|[Tt]imed? ?[Oo]ut|{_DAMAGED.pattern}")
"""Signs of a request that was sent, so that its failure is one of the network."""
_SETTING = re.compile(r"error: ((?:Missing|Account must|Invalid Access Key|Unable to open)[^\n]{0,150})")
"""Messages about settings that contain none of their values."""
_WITH_SECRETS = re.compile(r"signature|token|key ?id|credential|canonical", re.IGNORECASE)

ACCESS = {
    "s3": "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or the role, and AWS_REGION",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS or the machine's account",
    "az": "check AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or another way of access",
    "https": "the server wants credentials, and packline sends none",
}


def status_of(error: BaseException) -> int:
    """HTTP status of the answer that an error reports; 0 if there was none."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def is_missing_bucket(error: BaseException) -> bool:
    """True if an answer says that the bucket or container itself does not exist."""
    return any(code in str(error) for code in ("NoSuchBucket", "ContainerNotFound"))


def is_conflict(error: BaseException) -> bool:
    """True if a store reports that an object exists; its own write may have been the first."""
    return type(error).__name__ == "AlreadyExistsError"


def is_refused(error: BaseException) -> bool:
    """True if an answer refuses access, or says that the credentials have run out."""
    code = _CODE.search(str(error))
    return (
        status_of(error) in (401, 403)
        or type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError")
        or (code is not None and code[1] in _EXPIRED)
    )


def may_pass(error: BaseException) -> bool:
    """True if another attempt may succeed.

    >>> may_pass(Exception("status code: 503")), may_pass(Exception("status code: 404"))
    (True, False)
    >>> may_pass(Exception("Generic S3 error: Got invalid list response: missing field"))
    True
    """
    text, status = str(error), status_of(error)
    if is_conflict(error):
        return True
    if any(sign in text for sign in _FINAL):
        return False
    if not status:
        return _SENT.search(text) is not None
    code = _CODE.search(text)
    if code is not None and code[1] in _AGAIN:
        return True
    return status in (408, 409, 429) or (status >= 500 and status != 501)


def reason_of(error: BaseException) -> str:
    """Reason of a failure in a few words, without secrets.

    >>> reason_of(Exception("status code: 503 Slow Down: <Code>SlowDown</Code><Message>Reduce</Message>"))
    'status 503, SlowDown: Reduce'
    """
    text = str(error)
    if is_conflict(error):
        return "the store reports that it exists, and has none"
    if status := status_of(error):
        from http.client import responses  # takes 10 ms

        code, message = _CODE.search(text), _MESSAGE.search(text)
        name = code[1] if code else responses.get(status, "")
        parts = f"status {status}, {name}" if name else f"status {status}"
        return f"{parts}: {message[1]}" if message and not _WITH_SECRETS.search(message[1]) else parts
    if damaged := _DAMAGED.search(text):
        return f"its answer is damaged: {damaged[1]}"
    for sign, reason in _REASONS.items():
        if sign in text:
            return reason
    if setting := _SETTING.search(text):
        return setting[1]
    if isinstance(error, ValueError):
        return "no object can have this name"
    return "no answer" if _SENT.search(text) else "its settings cannot be used"


def store_error(error: BaseException, place: str, scheme: str, action: str) -> StoreError:
    """Error for a failed request."""
    reason, status = reason_of(error), status_of(error)
    start = f"cannot {action} {place}"
    hint = "run the same command again: finished work is kept"
    if is_missing_bucket(error):
        reason = "there is no such bucket or container"
        hint = "create it, or check its name and the endpoint"
    elif type(error).__name__ == "NotSupportedError" and action == "read":
        reason, hint = "its server does not support ranges", "download the file, and give its path"
    elif INSTANCE in str(error):
        reason, hint = "no credentials were found", ACCESS[scheme]
    elif is_refused(error):
        reason, hint = f"access refused: {reason}", ACCESS[scheme]
    elif not (status or is_conflict(error)):
        sent = _SENT.search(str(error))
        hint = f"check the network and the endpoint, then {hint}" if sent else ACCESS[scheme]
    return StoreError(f"{start}: {reason}", hint=hint)


T = TypeVar("T")
U = TypeVar("U")
WAITING = 4
"""Results per thread that may wait for the caller, so that memory is bounded."""
MOST_THREADS = 8
"""Threads of `in_threads`: more of them mostly wait for each other."""


def process_cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(function: Callable[[T], U], values: Iterable[T]) -> Iterator[U]:
    """Results of `map_in_threads` with a thread per core: Arrow and NumPy release the GIL."""
    return map_in_threads(function, values, min(process_cores(), MOST_THREADS), "packline-pass")


def map_in_threads(function: Callable[[T], U], values: Iterable[T], threads: int, name: str) -> Iterator[U]:
    """Results of a function in the order of its arguments, computed by threads; in turn for one thread.

    The threads end with the iterator: a process that forks afterwards has none.

    Args:
        name: beginning of the names of the threads.
    """
    if threads <= 1:
        yield from map(function, values)
        return
    waiting: deque[Future[U]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix=name) as pool:
        try:
            for value in values:
                waiting.append(pool.submit(function, value))
                if len(waiting) >= WAITING * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for one in waiting:
                one.cancel()


PATIENCE_SECONDS = 180.0
"""Time for which a store that has answered before may fail."""
FIRST_SECONDS = 2.0
"""The same for one that has never answered, beside the seconds of the client: its address may be wrong."""
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 15.0
LOG_AFTER_SECONDS = 15.0
"""Time after which repeated failures are logged, once a minute at most."""
MINUTE = 60.0
LOG = logging.getLogger("packline.storage")

_logged = -MINUTE


class Pauses:
    """Pauses between the attempts at one request, each about twice as long as the last."""

    def __init__(self) -> None:
        self._began, self._pause = time.monotonic(), FIRST_PAUSE

    def wait(self, failure: StoreError, patience: float) -> None:
        """Pause before the next attempt, for which less than `patience` seconds may have passed."""
        global _logged
        now = time.monotonic()
        if (seconds := now - self._began) > patience:
            raise StoreError(f"{failure.message} (for {seconds:.0f} s)", hint=failure.hint) from None
        if seconds > LOG_AFTER_SECONDS and now - _logged >= MINUTE:
            _logged = now
            LOG.warning("requests have failed for %d s and are repeated: %s", seconds, failure.message)
        time.sleep(self._pause * random.uniform(0.5, 1.5))
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
