"""Values of formats: the dtype for a vocabulary holds every id of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import RecipeError
from packline.formats.types import fitting_dtype

LIMITS = {"uint16": 2**16, "int32": 2**31, "int64": 2**63}


@given(st.one_of(st.integers(1, 2**63), *(st.integers(most - 2, most + 2) for most in LIMITS.values())))
def test_the_dtype_holds_every_id_and_no_narrower_one_does(vocab_size: int) -> None:
    if vocab_size > 2**63:
        with pytest.raises(RecipeError, match="do not fit into int64"):
            fitting_dtype("x", vocab_size, LIMITS)
        return
    found = fitting_dtype("x", vocab_size, LIMITS)
    assert np.iinfo(found).max >= vocab_size - 1 and found.str[0] == "<"
    narrower = [name for name in LIMITS if np.dtype(name).itemsize < found.itemsize]
    assert all(np.iinfo(name).max < vocab_size - 1 for name in narrower)
    for name in LIMITS:
        if np.iinfo(name).max >= vocab_size - 1:
            assert fitting_dtype("x", vocab_size, LIMITS, name) == np.dtype(name)
        else:
            with pytest.raises(RecipeError, match=f"do not fit into {name}"):
                fitting_dtype("x", vocab_size, LIMITS, name)
