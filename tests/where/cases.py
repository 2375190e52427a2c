"""Conditions and typed rows for tests, and what plain Python makes of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

TEXTS = st.text("abé", max_size=3)
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(-3, 3) | st.sampled_from([2**53, 2**53 + 1, 2**62, -(2**63), 2**63 - 1]),
    "x": st.sampled_from([-1.5, 0.0, 0.5, 1.0, 2.0, 1e300, float(2**53)]),
    "s": TEXTS,
    "flag": st.booleans(),
    "a.b": TEXTS,
    "empty": st.none(),
}
"""Values of each column, apart from null."""
NUMBERS = (
    st.integers(-3, 3)
    | st.sampled_from([0.5, 1.0, -1.5, 2.5, 2**53 + 1, 2**63, 2**64 + 1, -(2**70), 10**400, 1e300])
    | st.sampled_from([2.0**53, 2.0**62, 2.0**63, -(2.0**63), 2.0**64])
    | st.floats(-4, 4).map(lambda value: round(value, 2))
)
ORDERED = st.sampled_from(["<", "<=", ">", ">="])
EQUAL = st.sampled_from(["==", "!="])


def rows() -> st.SearchStrategy[list[dict[str, Any]]]:
    """Records with values of these types, with nulls."""
    return st.lists(
        st.fixed_dictionaries({name: st.none() | values for name, values in COLUMNS.items()}), max_size=8
    )


def _terms() -> st.SearchStrategy[str]:
    number = st.sampled_from(["n", "x", "len(s)", "len(a.b)", "empty"])
    text = st.sampled_from(["s", "a.b", "empty"])
    any_column = st.sampled_from([*COLUMNS, "len(s)"])
    value = st.none() | NUMBERS | TEXTS | st.booleans()
    return st.one_of(
        st.tuples(number, ORDERED, NUMBERS).map(lambda one: f"{one[0]} {one[1]} {one[2]!r}"),
        st.tuples(NUMBERS, ORDERED, number).map(lambda one: f"{one[0]!r} {one[1]} {one[2]}"),
        st.tuples(NUMBERS, ORDERED, number, ORDERED, NUMBERS).map(
            lambda one: f"{one[0]!r} {one[1]} {one[2]} {one[3]} {one[4]!r}"
        ),
        st.tuples(text, ORDERED, TEXTS).map(lambda one: f"{one[0]} {one[1]} {one[2]!r}"),
        st.tuples(any_column, EQUAL, value).map(lambda one: f"{one[0]} {one[1]} {one[2]!r}"),
        st.tuples(any_column, st.sampled_from(["in", "not in"]), st.lists(value, max_size=4)).map(
            lambda one: f"{one[0]} {one[1]} {one[2]!r}"
        ),
        st.tuples(any_column, st.sampled_from(["is None", "is not None"])).map(" ".join),
        st.tuples(text, st.sampled_from(["startswith", "endswith", "contains"]), TEXTS).map(
            lambda one: f"{one[0]}.{one[1]}({one[2]!r})"
        ),
        st.tuples(TEXTS, st.sampled_from(["in", "not in"]), text).map(
            lambda one: f"{one[0]!r} {one[1]} {one[2]}"
        ),
        st.sampled_from(["flag", "empty"]),
    )


def conditions() -> st.SearchStrategy[str]:
    """Texts of conditions on these columns that compare no type with another one's order."""
    return st.recursive(
        _terms(),
        lambda inner: st.one_of(
            inner.map(lambda one: f"not ({one})"),
            st.tuples(inner, st.sampled_from([" and ", "  or "]), inner).map(
                lambda one: f"({one[0]}){one[1]}({one[2]})"
            ),
        ),
        max_leaves=5,
    )


class _Text(str):
    """A string with the method that Python's lack."""

    __slots__ = ()

    def contains(self, part: str) -> bool:
        return part in self


class _Fields:
    """`a.b` for Python: an object with a field b."""

    def __init__(self, b: Any) -> None:
        self.b = b


def python_says(text: str, record: dict[str, Any]) -> bool:
    """Python's own answer, for a record without nulls and without comparisons of bool with number."""
    names = {name: _Text(value) if isinstance(value, str) else value for name, value in record.items()}
    names["a"] = _Fields(names["a.b"])
    return bool(eval(text, {"__builtins__": {"len": len}}, names))
