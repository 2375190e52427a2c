"""Memory of batches: used again when nothing refers to it, never while something does."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.packing import blocks
from packline.packing.blocks import KEPT, LEAST, take


@pytest.fixture(autouse=True)
def nothing_free() -> None:
    gc.collect()
    blocks._FREE.clear()


@given(st.lists(st.tuples(st.sampled_from([LEAST, LEAST + 8, 1000]), st.integers(0, 5)), max_size=60))
def test_a_block_that_is_kept_never_changes(uses: list[tuple[int, int]]) -> None:
    kept: list[tuple[int, np.ndarray]] = []
    for number, (size, drop) in enumerate(uses):
        whole = take(size)
        assert whole.shape == (size,) and whole.flags.writeable
        whole[:] = number % 251
        # A view of a view in another dtype keeps the memory as the whole does.
        kept.append((number % 251, whole.view("u8")[:: 1 + number % 3]))
        del whole
        if drop < len(kept):
            kept.pop(drop)
        assert all((array.view(np.uint64) == value * 0x0101010101010101).all() for value, array in kept)
        places = [array.__array_interface__["data"][0] for _, array in kept]
        assert len(set(places)) == len(places)


def test_free_blocks_are_few_and_those_of_another_size_go() -> None:
    held = [take(LEAST) for _ in range(3 * KEPT)]
    del held
    assert [free.size for free in blocks._FREE] == [LEAST] * KEPT
    others = [take(2 * LEAST) for _ in range(KEPT)]
    assert [free.size for free in blocks._FREE] == [LEAST]
    del others
    assert [free.size for free in blocks._FREE] == [2 * LEAST] * KEPT


def test_two_sizes_in_turn_use_their_own_memory_again() -> None:
    for size in (LEAST, 3 * LEAST):
        take(size)
    first = list(map(id, blocks._FREE))
    for size in (LEAST, 3 * LEAST) * 3:
        take(size)
    assert sorted(map(id, blocks._FREE)) == sorted(first)


def test_memory_of_a_few_megabytes_begins_at_a_huge_page() -> None:
    for size in (blocks.HUGE, blocks.HUGE + 4096, 3 * blocks.HUGE):
        block = take(size)
        assert len(block) == size and block.__array_interface__["data"][0] % blocks.HUGE == 0
        block[:] = 1


def test_threads_never_share_a_block() -> None:
    wrong: list[int] = []

    def use(number: int) -> None:
        for _ in range(300):
            block = take(LEAST)
            block[::4096] = number
            if not (block[::4096] == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_comes_back_from_a_reference_circle() -> None:
    circle: list[object] = [take(LEAST)]
    circle.append(circle)
    del circle
    gc.collect()
    assert len(blocks._FREE) == 1
