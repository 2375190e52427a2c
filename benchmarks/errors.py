"""The one error of the benchmarks: a measurement that cannot be made, or that may not be believed."""

from __future__ import annotations

from packline.errors import PacklineError


class BenchmarkError(PacklineError):
    """No text, no tokenizer, a contender that failed, or contenders that did not do the same work."""
