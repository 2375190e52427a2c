"""The shuffle: a bijection for every size, the same everywhere, and without a pattern that shows."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline import permutation as permutation_module
from packline.errors import RecipeError
from packline.permutation import MOST, Permutation

SIGMAS = 6
"""What counts as a pattern. Keys are fixed, so a test that passes once passes always."""


def chi_squared(counts: np.ndarray) -> float:
    """How far counts are from all equal, in standard deviations of chi-squared."""
    counts = np.asarray(counts, float).ravel()
    freedom = len(counts) - 1
    statistic = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    return (statistic - freedom) / math.sqrt(2 * freedom)


def joint(first: np.ndarray, second: np.ndarray, size: int, cells: int = 16) -> np.ndarray:
    """How often the two fall into each pair of 16 equal stretches of the range."""
    return np.bincount((first * cells // size) * cells + second * cells // size, minlength=cells * cells)


def test_every_small_size_is_a_bijection() -> None:
    for size in (*range(1, 300), *range(300, 2001, 37)):
        indices = np.arange(size)
        permutation = Permutation(size, 1, size)
        images = permutation(indices)
        assert np.array_equal(np.sort(images), indices), size
        assert np.array_equal(permutation.invert(images), indices), size


@given(st.integers(1, MOST), st.lists(st.integers(-(2**70), 2**70), max_size=3), st.data())
def test_inverse_undoes_at_any_size(size: int, key: list[int], data: st.DataObject) -> None:
    drawn = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=40))
    indices = np.array([*drawn, 0, size - 1], np.int64)
    permutation = Permutation(size, *key)
    images = permutation(indices)
    assert images.dtype == np.int64
    assert 0 <= images.min() <= images.max() < size
    assert np.array_equal(permutation.invert(images), indices)
    assert np.array_equal(permutation(permutation.invert(indices)), indices)
    assert len(set(images.tolist())) == len(set(indices.tolist()))


@pytest.mark.parametrize("size", [65_537, 100_003, 2**17, 200_000])
def test_blocks_do_not_change_the_result(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    indices = np.arange(size)
    whole = Permutation(size, 3)(indices)
    assert np.array_equal(np.sort(whole), indices)
    monkeypatch.setattr(permutation_module, "BLOCK", 1000)
    assert np.array_equal(Permutation(size, 3)(indices), whole)
    assert Permutation(size, 3)(np.array([[5, 7], [9, 11]])).tolist() == whole[[[5, 7], [9, 11]]].tolist()
    assert Permutation(size, 3)(np.empty(0, np.int64)).shape == (0,)


def test_images_are_the_same_on_every_machine() -> None:
    """A loader's state is only worth something if these never change."""
    assert Permutation(10, 42, 0)(np.arange(10)).tolist() == [0, 9, 6, 7, 2, 8, 3, 4, 5, 1]
    assert Permutation(10**12, 42, 0)(np.arange(3)).tolist() == [612318251452, 191466361176, 574393596155]
    assert Permutation(2**32, 42, 0)(np.arange(3)).tolist() == [2489409761, 2467020095, 2446663359]


def scramble_in_integers(size: int, key: tuple[int, ...], index: int) -> int:
    """The definition, in Python's own whole numbers."""
    bits = max(1, (size - 1).bit_length())
    constants = Permutation(size, *key)._rounds
    while True:
        for odd, add, _ in constants:
            index = (index * int(odd) + int(add)) % 2**bits
            index ^= index >> (bits + 1) // 2
        if index < size:
            return index


@pytest.mark.parametrize("size", [2, 3, 1000, 2**31 + 1, 2**32 - 1, 2**32, 2**32 + 1, 2**50, MOST - 1, MOST])
def test_words_of_either_width_compute_the_definition(size: int) -> None:
    indices = np.linspace(0, size - 1, 50).astype(np.int64).clip(0, size - 1)
    expected = [scramble_in_integers(size, (7, 8), int(index)) for index in indices]
    assert Permutation(size, 7, 8)(indices).tolist() == expected


@pytest.mark.parametrize("size", [3, 4, 5])
def test_every_permutation_of_a_few_is_as_likely(size: int) -> None:
    found = Counter(tuple(Permutation(size, key)(np.arange(size)).tolist()) for key in range(6000))
    counts = [found[images] for images in itertools.permutations(range(size))]
    assert abs(chi_squared(np.array(counts))) < SIGMAS


@pytest.mark.parametrize("size", [4096, 100_003, 2**20])
def test_no_pattern_between_neighbours_or_epochs(size: int) -> None:
    indices = np.arange(size)
    for key in range(3):
        images, later = Permutation(size, 7, key)(indices), Permutation(size, 7, key + 1)(indices)
        for stride in (1, 2, 3, 8, 32, 256):
            assert chi_squared(joint(images[:-stride], images[stride:], size)) < SIGMAS
            distances = (images[stride:] - images[:-stride]) % size
            assert chi_squared(np.bincount(distances * 64 // size, minlength=64)) < SIGMAS
        assert chi_squared(joint(images, later, size)) < SIGMAS
        assert chi_squared(joint(indices, images, size)) < SIGMAS
        assert chi_squared(np.bincount(indices % 16 * 16 + images % 16)) < SIGMAS
        rises = int((np.diff(images) > 0).sum())
        assert abs(rises - (size - 1) / 2) < SIGMAS * math.sqrt((size + 1) / 12)


@pytest.mark.parametrize("size", [2**33 + 1, 10**12, 2**61 + 1])
def test_no_pattern_in_ranges_too_large_to_go_through(size: int) -> None:
    images = Permutation(size, 5)(np.arange(200_000)) // (size // 4096 + 1)
    assert chi_squared(joint(images[:-1], images[1:], 4096)) < SIGMAS
    distances = (images[1:] - images[:-1]) % 4096
    assert chi_squared(np.bincount(distances // 64, minlength=64)) < SIGMAS


def test_too_few_rounds_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permutation_module, "ROUNDS", 3)
    with pytest.raises(AssertionError):
        for size in (4096, 65_536, 2**20):
            test_no_pattern_between_neighbours_or_epochs(size)
    with pytest.raises(AssertionError):
        test_every_permutation_of_a_few_is_as_likely(4)


@pytest.mark.parametrize("size", [0, -1, MOST + 1])
def test_a_size_out_of_bounds_is_refused(size: int) -> None:
    with pytest.raises(RecipeError, match="expected 1 to 2"):
        Permutation(size)


@pytest.mark.parametrize("index", [-1, 10, 2**40])
def test_an_index_outside_the_range_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match=r"outside range\(10\)"):
        Permutation(10)(np.array([3, index]))
    with pytest.raises(IndexError, match=r"outside range\(10\)"):
        Permutation(10).invert(np.array([index]))
