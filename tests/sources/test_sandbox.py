"""The sandbox: values are measured right, and no template costs more than one record may."""

from __future__ import annotations

import threading
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.sources import sandbox
from packline.sources.batch import RecordProblem, TemplateTimeout
from packline.sources.sandbox import measure
from packline.sources.template import Template

leaves = st.one_of(st.none(), st.integers(), st.text(max_size=4))
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
)


def counted(value: Any) -> tuple[int, int]:
    """Values and characters below a value, by recursion; names of objects count as characters alone."""
    if isinstance(value, str):
        return 0, len(value)
    if not isinstance(value, list | dict):
        return 0, 0
    inner = list(value.values()) if isinstance(value, dict) else value
    below = [counted(one) for one in inner]
    names = sum(map(len, value)) if isinstance(value, dict) else 0
    return len(inner) + sum(one for one, _ in below), names + sum(one for _, one in below)


@given(values, st.integers(0, 12))
def test_a_measure_is_the_recursive_count_or_above_the_limit(value: Any, most: int) -> None:
    expected = counted(value)
    assert measure(value, 10**9) == expected
    found = measure(value, most)
    assert found == expected if expected[0] <= most else most < found[0] <= expected[0]


@given(st.integers(0, 20), st.integers(0, 20))
def test_a_list_counts_with_everything_in_it_each_time_it_is_copied(size: int, times: int) -> None:
    template = Template("{% set x = [words, words] %}{% set y = x * times %}{{ y | length }}", 100)
    record = {"words": ["ab"] * size, "times": times}
    characters = 4 * size * (1 + times) + len(str(2 * times))
    if characters <= 100:
        assert template.render(record) == str(2 * times)
    else:
        with pytest.raises(RecordProblem, match="more than 100 characters"):
            template.render(record)


DOUBLE = "{% set a = 'x' * 1000 %}" + "{% set a = a ~ a %}" * 60 + "{{ a }}"
LISTS = "".join(
    f"{{% set {one} = [1] %}}" + f"{{% set {one} = [x, x] %}}".replace("x", one) * 40 for one in "xy"
)
COSTLY = (
    "{% for i in range(1000000000) %}x{% endfor %}",
    "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "{{ 'x' * 10000000000 }}",
    "{{ 10000000000 * 'x' }}",
    "{{ [1] * 10000000000 }}",
    DOUBLE,
    DOUBLE.replace("~", "+"),
    "{% set a = [1] %}" + "{% set a = a + a %}" * 60 + "{{ a | length }}",
    "{% set a = 99999999 %}" + "{% set a = a * a %}" * 40 + "{{ a }}",
    "{{ ('x' * 100000) | replace('', 'y' * 100000) }}",
    "{{ ('x' * 100000) | replace('x', 'y' * 100000) }}",
    "{{ ('x' * 100000) | list | join('y' * 100000) }}",
    "{{ range(9999) | join('y' * 100000) }}",
    "{% for i in range(9999) %}{{ 'y' * 100000 }}{% endfor %}",
    "{{ '%1000000000d' % 5 }}",
    "{{ 1.5 | round(1000000000) }}",
    "{{ 1 | round(-1000000000) }}",
    "{{ a | tojson(indent=1000000000) }}",
    "{% for i in range(9999) %}{{ ('a ' * 500000).split() | length }}{% endfor %}",
    "{% for i in range(9999) %}{% set x = ('a\\n' * 400000).splitlines() %}{% endfor %}",
    # Lists of lists: they are small until somebody writes them out or compares them.
    *(f"{LISTS}{{{{ {use} }}}}" for use in ("x", "x ~ ''", "x | string", "x | tojson", "x == y", "x in [y]")),
    *(f"{LISTS}{{{{ {use} }}}}" for use in ("[x] | sort | length", "x | join", "[x].count(y)", "{'a': x}")),
    LISTS.replace("[x, x]", "{'a': x, 'b': x}") + "{{ x }}",
    LISTS.replace("[x, x]", "(x, x)").replace("[1]", "(1,)") + "{{ {x: 1} }}",
    "{% set x = ['y' * 900000] * 9 %}",
    "{% set y = 'y' * 90000 %}" + "{% set x = [y, y, y] %}" * 9,
    "{% set x = ['y' * 1000] %}" + "{% set x = x + x %}" * 30,
    "{% set x = ['y' * 1000] * 999 %}{{ range(9999) | list | map(attribute='b', default=x) | length }}",
    "{% set x = [1] %}" + "{% set x = range(2) | map(attribute='b', default=x) | list %}" * 40,
    "{% set x = 'y' * 900000 %}" + "{% set z = x[1:] %}" * 9,
    "{% set x = 'y' * 900000 %}{% for i in range(9999) %}{% if x == x ~ '' %}{% endif %}{% endfor %}",
)
ENDLESS = (
    "{% for i in range(99999) %}{% for w in words %}{{ w }}{% endfor %}{% endfor %}",
    # Reading that makes nothing.
    "{% set x, y = 'y' * 9000000, 'y' * 9000000 %}{% for i in range(99999) if x != y %}{% endfor %}",
    "{% set x = range(99999) | list %}{% for i in range(99999) %}{{ 'y' in x }}{% endfor %}",
    "{% set x = 'y ' * 90000 %}{% for i in range(99999) %}{% set z = x | wordcount %}{% endfor %}",
)
"""Templates that take longer than a job should wait."""


@pytest.mark.parametrize("source", COSTLY, ids=range(len(COSTLY)))
def test_what_would_cost_too_much_costs_one_record(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MOST_STEPS", 20_000)
    template = Template(source, 1 << 20)
    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(RecordProblem) as refused:
            template.render({"a": {"b": [1]}})
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()
    assert refused.value.reason == "template"
    assert time.perf_counter() - started < 30
    good = Template("{{ a }}", 1 << 20)
    assert good.render({"a": "x"}) == good.render({"a": "x"}) == "x"


@pytest.mark.parametrize("source", ENDLESS, ids=range(len(ENDLESS)))
def test_a_template_that_does_not_end_stops_instead_of_costing_one_record(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "MOST_SECONDS", 0.05)
    template = Template(source)
    found: list[BaseException | str] = []

    def render(words: list[str]) -> None:
        try:
            found.append(template.render({"words": words}))
        except (TemplateTimeout, RecordProblem) as error:
            found.append(error)

    monkeypatch.setattr(sandbox, "MOST_STEPS", 10**15)
    thread = threading.Thread(target=render, args=(["a"] * 99999,))
    thread.start()
    thread.join(60)
    assert not thread.is_alive() and isinstance(found[0], TemplateTimeout)
    assert "0.05 seconds of processor time" in str(found[0])


def test_a_budget_is_for_each_record_anew() -> None:
    template = Template("{% for i in range(600) %}{{ a }}{% endfor %}", 1000)
    for _ in range(3):
        assert len(template.render({"a": "x"})) == 600
        with pytest.raises(RecordProblem, match="more than 1,000 characters"):
            template.render({"a": "xx"})
