"""Attempts at a request: pauses with jitter, each longer than the last, until patience ends."""

from __future__ import annotations

import logging
import random
import time

from packline.errors import StoreError

PATIENCE_SECONDS = 180.0
"""Time for which a store that has answered before may fail."""
FIRST_SECONDS = 5.0
"""The same for one that has never answered: its address may be wrong."""
LONGEST_PAUSE = 15.0
LOG_AFTER_SECONDS = 15.0
"""Time after which repeated failures are logged, once a minute at most."""
MINUTE = 60.0
LOG = logging.getLogger("packline.storage")

_logged = -MINUTE


class Attempts:
    """Pauses between the attempts at one request.

    Args:
        pause: seconds of the first pause; each next one is twice as long, up to 15 seconds.

    >>> attempts = Attempts(0.001)
    >>> attempts.wait(1), attempts.wait(0)
    (True, False)
    """

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._began = time.monotonic()
        self.number = 1

    def wait(self, patience: float, reason: str = "") -> bool:
        """Pause before the next attempt; False, at once, if more than `patience` seconds have passed.

        Args:
            reason: what failed, for the log.
        """
        global _logged
        now = time.monotonic()
        if (seconds := now - self._began) > patience:
            return False
        if seconds > LOG_AFTER_SECONDS and now - _logged >= MINUTE:
            _logged = now
            LOG.warning("requests have failed for %d s and are repeated: %s", seconds, reason)
        time.sleep(self._pause * random.uniform(0.5, 1.5))
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        self.number += 1
        return True

    def error(self, last: StoreError) -> StoreError:
        """Error for the end of patience, of the last failure."""
        seconds = time.monotonic() - self._began
        times = f" ({self.number} attempts in {seconds:.0f} s)" if self.number > 1 else ""
        return StoreError(f"{last.message}{times}", hint=last.hint)
