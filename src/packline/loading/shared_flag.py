"""A flag that forked children share with their parent."""

from __future__ import annotations

import mmap


class SharedFlag:
    """False until `set` is called, in this process or in one forked from it; a pickled one begins anew."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)  # anonymous, and shared with forked children

    def set(self) -> None:
        self._memory[0] = 1

    def clear(self) -> None:
        self._memory[0] = 0

    def __bool__(self) -> bool:
        return self._memory[0] != 0

    def __reduce__(self) -> tuple[type[SharedFlag], tuple[()]]:
        return SharedFlag, ()
