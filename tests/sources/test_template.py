"""Templates make what plain Jinja makes, of fields alone, and refuse everything else."""

from __future__ import annotations

import json
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packline.errors import RecipeError
from packline.sources.batch import RecordProblem
from packline.sources.template import Template

GOOD = (
    "{{ title }}\n\n{{ text | trim }}\n",
    "{% for w in words %}{{ loop.index }} {{ w }}{{ ', ' if not loop.last else '' }}{% endfor %}",
    "{% if number > 3 %}many{% elif number == 3 %}three{% else %}{{ number }}{% endif %}",
    "{{ meta.name }}|{{ meta['name'] }}|{{ meta.inner.deep | default('none') }}",
    "{% for key, value in meta.items() %}{{ key }}={{ value }};{% endfor %}",
    "{{ words | join(', ') }} {{ words | length }} {{ words | first }} {{ words[-1] }} {{ text[:5] }}",
    "{{ text.strip().lower() | replace('a', 'bb') }} {{ text.split('a') | length }}",
    "{% set n = number + 2 %}{{ n * 2 }} {{ n // 2 }} {{ n % 2 }} {{ 'x' * 3 }} {{ title ~ n ~ 'y' }}",
    "{% for m in turns if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    "{% for a in words %}{% for b in words %}{{ a }}{{ b }}{% endfor %}{% endfor %}",
    "{{ turns | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('+') }}",
    "{{ words | sort | join }} {{ words | unique | list | length }} {{ words | reverse | join('-') }}",
    "{{ record_of is defined }} {{ title is string }} {{ number is odd }} {{ 'a' in text }}",
    "{{ 'yes' if number else 'no' }} {{ range(3) | join }} {% raw %}{{ not }}{% endraw %}",
    "{{ turns | sort(attribute='role') | map(attribute='content') | join }} {{ turns[::-1] | length }}",
    "{{ [meta] | map(attribute='inner.c', default='none') | join }}",
    "{{ 1 in (1, 2) }} {{ turns == turns }} {{ 1 < 2 < 3 }} {{ 2 is divisibleby(2) }} {{ 'abc'[:-1] }}",
    "{%- for line in text.splitlines() -%} {{ line }}; {%- endfor %}{# a comment #}",
)

records = st.fixed_dictionaries(
    {
        "title": st.text(max_size=12),
        "text": st.text(st.sampled_from("aAb\n\r \u2028é日"), max_size=30),
        "number": st.integers(-5, 10),
        "words": st.lists(st.text("abC", max_size=3), min_size=1, max_size=4),
        "meta": st.fixed_dictionaries({"name": st.text(max_size=5), "inner": st.just({})}),
        "turns": st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "system"]), "content": st.text(max_size=5)}
            ),
            max_size=3,
        ),
    }
)


@pytest.mark.parametrize("source", GOOD)
@settings(max_examples=20)
@given(record=records)
def test_a_template_makes_what_plain_jinja_makes(source: str, record: dict[str, Any]) -> None:
    plain = jinja2.Environment().from_string(source)
    template = Template(source)
    assert template.render(record) == plain.render(record)
    assert template.fields is not None
    wanted = {name: record[name] for name in template.fields if name in record}
    assert template.render(wanted) == plain.render(record)  # no other field is looked at


@settings(max_examples=20)
@given(record=records)
def test_json_is_not_escaped_for_html(record: dict[str, Any]) -> None:
    assert json.loads(Template("{{ turns | tojson }}").render(record)) == record["turns"]
    assert Template("{{ x | tojson }}").render({"x": "<é>"}) == '"<é>"'


def test_the_whole_record_is_there_for_odd_names() -> None:
    template = Template('{{ record["my-field"] }} {{ a }}')
    assert template.fields is None and template.render({"my-field": 1, "a": 2}) == "1 2"


def test_fields_win_over_methods_and_are_never_attributes() -> None:
    assert Template("{{ a.items }} {{ a.keys }}").render({"a": {"items": 1, "keys": 2}}) == "1 2"
    with pytest.raises(RecordProblem):
        Template("{{ a.upper }}").render({"a": "text"})


def test_names_that_jinja_has_for_itself_are_fields_or_refused() -> None:
    template = Template(
        "{{ range }} {{ range(2) | list }} {{ loop }} {% for a in loop %}{{ loop.index }}{% endfor %}"
    )
    assert template.fields == ("loop", "range")
    assert template.render({"range": "far", "loop": "xy"}) == "far [0, 1] xy 12"
    with pytest.raises(RecipeError, match="'self' is not a field") as refused:
        Template("{{ self }}")
    assert "write record['self']" in refused.value.hint
    assert Template('{{ record["self"] }}').render({"self": "me"}) == "me"
    with pytest.raises(RecipeError, match="line 2: 'scope'"):
        Template("a\n{% autoescape true %}b{% endautoescape %}")


HOSTILE = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ a._private }}",
    "{{ __builtins__ }}",
    "{{ a.format(b) }}",
    "{{ ''.join(a) }}",
    "{{ a.mro() }}",
    "{{ a() }}",
    "{{ (a)(b) }}",
    "{{ range(*a) }}",
    "{{ a.get(**b) }}",
    "{{ self }}{{ self.__init__ }}",
    "{% import 'os' as os %}",
    "{% from 'x' import y %}",
    "{% include '/etc/passwd' %}",
    "{% extends 'x' %}",
    "{% block b %}{% endblock %}",
    "{% macro m() %}{{ m() }}{% endmacro %}",
    "{% call x() %}{% endcall %}",
    "{% filter upper %}x{% endfilter %}",
    "{% set x %}y{% endset %}",
    "{% set ns.x = 1 %}",
    "{% for x in a recursive %}{{ loop(x) }}{% endfor %}",
    "{{ lipsum(1000) }}",
    "{{ cycler(1) }}",
    "{{ namespace(a=1) }}",
    "{{ joiner() }}",
    "{{ a | random }}",
    "{{ 2 ** 1000000000 }}",
    "{{ '{0.__class__}'.format(a) }}",
    "{{ a.format_map(b) }}",
    "{{ self }}",
    "{{ range() }}",
    "{{ range(stop=3) }}",
    "{% autoescape true %}{{ a }}{% endautoescape %}",
    "{% for x in a %}" * 50 + "{% endfor %}" * 50,
    # The escapes of Jinja's own advisories.
    "{{ '{0.__class__.__init__.__globals__}'.format(a) }}",  # CVE-2016-10745
    "{{ '{a.__class__}'.format_map(record) }}",  # CVE-2019-10906
    "{% set f = '{0.__class__}'.format %}{{ f(a) }}",  # CVE-2024-56326
    "{{ ('{0.__class__}' | attr('format'))(a) }}",  # CVE-2025-27516
    "{{ {'class=x onclick': 1} | xmlattr }}",  # CVE-2024-22195, CVE-2024-34064
    "{% set x.__class__ = 1 %}",  # CVE-2024-56201
    "{{ a",
    "{% for %}",
    "{{ a | no_such_filter }}",
    "x" * 100_001,
    "{{ " + "(" * 20_000 + "a" + ")" * 20_000 + " }}",
)


@pytest.mark.parametrize("source", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_not_turning_fields_into_text_is_refused_before_any_record(source: str) -> None:
    with pytest.raises(RecipeError) as refused:
        Template(source)
    assert "template" in str(refused.value) and len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("source", "record"),
    [
        ("{{ a }}", {}),
        ("{{ a }}", {"a": None}),
        ("{{ a ~ b }}", {"a": "x", "b": None}),
        ("{{ a | trim }}", {}),
        ("{{ a.b.c }}", {"a": {}}),
        ("{{ a + 1 }}", {"a": "x"}),
        ("{{ a / 0 }}", {"a": 1}),
        ("{{ a < 1 }}", {"a": "x"}),
        ("{% for x in a %}{{ x }}{% endfor %}", {"a": 5}),
        ("{% for x in a %}{{ x }}{% endfor %}", {}),
        ("{{ a.strip() }}", {"a": 5}),
        ("{{ a | join }}", {"a": [None]}),
        ("{{ a | length }}", {"a": 5}),
        ("{{ a | map(attribute='b') | list }}", {"a": [{}]}),
        ("{{ [a] }}", {}),
        ("{{ a[1:] }}", {"a": 5}),
        ("{{ 'x' if none[0] else 'y' }}", {}),
        ("{% for x in ('x' if [][0] else 'y') %}{{ x }}{% endfor %}", {}),
        ("{{ a[1:] }}", {}),
        ("{{ a['__class__'] }}", {"a": "x"}),
        ("{{ a | attr('__class__') }}", {"a": "x"}),
        ("{{ a | center(1000000000) }}", {"a": "x"}),
        ("{{ a | format(1) }}", {"a": "x"}),
        ("{{ a | map('attr', '__class__') | list }}", {"a": "x"}),
        ("{% for x in a %}{{ loop }}{% endfor %}", {"a": "x"}),
        ("{% for x in a %}{{ [loop] }}{{ loop.index }}{% endfor %}", {"a": "x"}),
        ("{% for x in a %}{{ loop.cycle }}{% endfor %}", {"a": "x"}),
        ("{% for x in a %}{% for y in x %}{{ loop ~ y }}{% endfor %}{% endfor %}", {"a": "x"}),
        ("{{ [''] | map('format', a) | list }}", {"a": "x"}),  # CVE-2024-56326
    ],
)
def test_a_record_that_does_not_fit_is_a_bad_one(source: str, record: dict[str, Any]) -> None:
    with pytest.raises(RecordProblem) as refused:
        Template(source).render(record)
    assert refused.value.reason == "template" and refused.value.detail
