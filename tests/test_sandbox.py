"""Hostile templates end in an error, within a bound of time and memory, and leave honest ones as they are."""

import subprocess
import sys
import textwrap

import pytest
from test_chat_template import render, user

from fastcore.errors import ChatTemplateError
from fastcore.text.chat_template import ChatTemplate

START = "{% set ns = namespace(s='ab', l=[1], m=[1]) %}"
BOTH = "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}"


def grown(step: str, then: str = "") -> str:
    """A step sixty times: what doubles with it would be 2**60 large."""
    return START + "{% for i in range(60) %}" + step + "{% endfor %}" + then


TEXT_60_000 = "('a' * 60000)"
HOSTILE = {
    # loops and calls
    "range": "{% for i in range(10 ** 9) %}x{% endfor %}",
    "loops": "{% for a in range(100000) %}" * 3 + "{% endfor %}" * 3,
    "loops of text": "{% for a in range(100000) %}{% for b in range(100000) %}some text{% endfor %}{% endfor %}",
    "recursive loop": "{% for i in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "wide recursive loop": "{% for i in range(10) recursive %}{{ loop(range(10)) if loop.depth < 30 }}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}",
    "macros without end": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "lipsum": "{{ lipsum(n=100000) }}",
    # products
    "text times": "{{ 'a' * 10 ** 9 }}",
    "text times times": "{{ ('a' * 10 ** 6) * 10 ** 6 }}",
    "list times": "{{ ([1] * 10 ** 9) | length }}",
    "power": "{{ 7 ** (7 ** 9) }}",
    "squares": grown("{% set ns.s = (ns.s | length) if ns.s is string else ns.s * ns.s + 3 %}"),
    "sums": "{{ ([[1] * 6000] * 60000) | sum(start=[]) | length }}",
    "kept texts": START + "{% for i in range(100000) %}{% set ns.l = [ns.l[-9:], 'a' * 60000] %}{% endfor %}",
    # doubling
    "tilde": grown("{% set ns.s = ns.s ~ ns.s %}"),
    "plus": grown("{% set ns.s = ns.s + ns.s %}"),
    "lists": grown("{% set ns.l = ns.l + ns.l %}"),
    "block": grown("{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"),
    "blocks": "{% set s = 'a' %}" + "{% set s %}{% filter upper %}{{ s }}{{ s }}{% endfilter %}{% endset %}" * 60,
    "macro": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}{{ " + "f(" * 60 + "'a'" + ")" * 60 + " }}",
    # lists that share what they hold
    **{
        f"shared: {use}": grown(BOTH, "{{ " + use + " }}")
        for use in (
            "ns.l", "'' ~ ns.l", "ns.l | tojson", "ns.l | upper", "ns.l | pprint", "'%s' % ns.l", "'{}'.format(ns.l)",
            "ns.l == ns.m", "ns.l in [ns.m]", "[ns.l].index(ns.m)", "[ns.l, ns.m] | sort", "ns.l is eq(ns.m)",
            "[ns.l, ns.m] | max", "raise_exception(ns.l)", "messages[0][ns.l]", "ns.l | string", "[ns.l] | join",
        )
    },
    "shared and hashed": grown("{% set ns.l = (ns.l, ns.l) %}", "{{ {ns.l: 1} | length }}"),
    "deep": START + "{% for i in range(100000) %}{% set ns.l = (ns.l,) %}{% endfor %}{{ {ns.l: 1} | length }}",
    "deep and equal": START + "{% for i in range(99999) %}" + BOTH.replace(", ns.l", "").replace(", ns.m", "")
    + "{% endfor %}{{ ns.l == ns.m }}",
    # widths and counts
    **{
        use: "{{ " + use + " }}"
        for use in (
            "'{:1000000000}'.format(1)", "'{:{}}'.format(1, 10 ** 9)", "'{a:1000000000}'.format_map({'a': 1})",
            "'%1000000000d' % 1", "'%*d' % (10 ** 9, 1)", "'%.1000000000f' % 1.0", "'%(a)1000000000d' % {'a': 1}",
            "'%1000000000d' | format(1)", "'a' | center(10 ** 9)", "'a'.ljust(10 ** 9)", "'1'.zfill(10 ** 9)",
            "'\\t'.expandtabs(10 ** 9)", "('\\t' * 60000).expandtabs(60000)", "('\\n' * 60000) | indent(60000)",
            f"{TEXT_60_000} | replace('a', {TEXT_60_000})", f"{TEXT_60_000}.replace('a', {TEXT_60_000})",
            f"{TEXT_60_000} | replace('', {TEXT_60_000})", f"{TEXT_60_000}.translate({{97: {TEXT_60_000}}})",
            f"(['a'] * 60000) | join({TEXT_60_000})", f"{TEXT_60_000}.join(['a'] * 60000)",
            f"{TEXT_60_000}.join({TEXT_60_000})", f"{TEXT_60_000} | join({TEXT_60_000})",
            f"''.join([{TEXT_60_000}] * 60000)", f"range(100000) | map('string') | join({TEXT_60_000})",
            "range(100000) | map('center', 60000) | join", "[1] | batch(10 ** 9, 'x') | list",
            "[1] | slice(10 ** 9) | list", "1.5 | round(10 ** 9, 'ceil')", "(1).to_bytes(10 ** 9, 'big')",
            "[[1]] | tojson(indent=10 ** 9)", f"([1] * 60000) | tojson(indent={TEXT_60_000})",
            f"('a ' * 9000) | wordwrap(1, true, {TEXT_60_000})", "('<!---->' * 60000) | striptags",
            "'a'.encode().center(10 ** 9)", "strftime_now('%c' * 100000)", "('<' * 90000000) | escape",
        )
    },
    # long looks
    "in": "{% set s = 'a' * 8000000 %}{% for i in range(100000) %}{% if 'b' in s %}{% endif %}{% endfor %}",
    "find": "{% set s = 'a' * 8000000 %}{% for i in range(100000) %}{{ s.find('b') }}{% endfor %}",
    "select": "{% set s = 'a' * 8000000 %}{{ (['b'] * 90000) | select('in', s) | list | length }}",
    "slices": "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{% set x = s[i:] %}{% endfor %}",
    "split": "{% for i in range(100000) %}{% set x = ('a ' * 60000).split(' ') %}{% endfor %}",
    # sources
    "long": "x" * 300_000,
    "parentheses": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "not": "{{ " + "not " * 40000 + "1 }}",
    "additions": "{{ 1" + "+1" * 50000 + " }}",
    "filters": "{{ 1" + "|string" * 20000 + " }}",
    "nested blocks": "{% for i in [1] %}" * 300 + "{% endfor %}" * 300,
    "nested conditions": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
}  # fmt: skip

CHILD = """
    import resource, sys, time
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    sys.path[:0] = {path!r}
    from fastcore.errors import ChatTemplateError
    from fastcore.text import sandbox
    from fastcore.text.chat_template import ChatTemplate
    from test_sandbox import HOSTILE

    sandbox.MAX_MADE, sandbox.SECONDS = 1 << 25, 0.5
    for name, source in HOSTILE.items():
        start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            ended = "made %d" % len(ChatTemplate(source).render([{{"role": "user", "content": "hello"}}]))
        except ChatTemplateError as error:
            ended = "error" if len(str(error)) < 3000 else "long error"
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
        print(ended, grown < 300, time.process_time() - start < 20, name.replace("\\n", " "), sep="|")
"""


@pytest.mark.fault("C2")
@pytest.mark.case("T05")
def test_hostile_templates_end_in_an_error() -> None:
    code = textwrap.dedent(CHILD).format(path=sys.path)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    lines = run.stdout.splitlines()
    assert [line for line in lines if not line.startswith("error|True|True|")] == []
    assert len(lines) == len(HOSTILE), run.stderr[-2000:]


@pytest.mark.case("T05")
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ 'ab' * 3 }}{{ 2 * 3 }}{{ 2 ** 10 }}{{ 7 % 4 }}{{ 'a' + 'b' }}{{ [1] + [2] }}", "ababab610243ab[1, 2]"),
        ("{{ '%s-%5.1f-%(x)s' % {'x': 1} if false else '%s-%05.1f' % ('a', 1.25) }}", "a-001.2"),
        ("{{ '{:>5}{}{a}'.format('x', 2, a='é') }}{{ '{x}'.format_map({'x': 1}) }}", "    x2é1"),
        ("{{ 'a' ~ 1 ~ none ~ [1] }}", "a1None[1]"),
        ("{{ 'abcdef'[1:4] }}{{ 'abc'[::-1] }}{{ messages[:1] | length }}", "bcdcba1"),
        ("{{ 1 < 2 <= 2 != 3 }}{{ 'a' in 'ab' }}{{ 'x' not in ['y'] }}", "TrueTrueTrue"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}", "a1True"),
        ("{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}", "1/2:1 2/2:3 "),
        ("{% for x in [] %}a{% else %}b{% endfor %}{% for x in nothing %}a{% else %}c{% endfor %}", "bc"),
        ("{% for x in [1, [2, 3]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{% for x in 'abc' %}{{ loop.previtem }}{{ x }}{{ loop.nextitem }},{% endfor %}", "ab,abc,bc,"),
        ("{% macro f(x, y=2) %}{{ x }}{{ y }}{% endmacro %}{{ f(1) }}", "12"),
        ("{% macro f(x) %}{{ x }}{{ caller() }}{% endmacro %}{% call f(3) %}c{% endcall %}", "3c"),
        ("{{ ['b', 'a'] | sort | join('-') }}{{ 'a\\nb' | indent(2) }}{{ '<' | e }}", "a-ba\n  b&lt;"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}", "['hi']"),
        ("{{ [1, 2, 3] | sum }}{{ [[1, 2], [3]] | map('length') | join(',') }}{{ [3, 1] | max }}", "62,13"),
        ("{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': 1}.get('z', 5) }}{{ messages[0]['content'] }}", "15hi"),
        ("{{ 'a,b'.split(',')[1] }}{{ ' x '.strip() }}{{ ','.join(['p', 'q']) }}{{ 'a'.replace('a', 'c') }}", "bxp,qc"),
        ("{% filter upper %}a{{ 'b' }}{% endfilter %}{% set x %}{{ 'c' }}d{% endset %}{{ x }}", "ABcd"),
        ("{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", "aba"),
        ("{% set j = joiner() %}{{ j() }}x{{ j() }}", "x, "),
        ("{{ 5 if true else 6 }}{{ range(3) | list }}{{ (1, 2) }}{{ 3 // 2 }}{{ -3 | abs }}", "5[0, 1, 2](1, 2)13"),
        ("{{ 'hello world' | title | replace('World', 'x') | truncate(50) | wordcount }}", "2"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "hi"}'),
        ("{{ x is defined }}{{ messages is sequence }}{{ 1 is odd }}{{ 'a' is in('b') }}", "FalseTrueTrueFalse"),
    ],
)  # fmt: skip
def test_honest_templates_render_as_ever(source: str, expected: str) -> None:
    assert render(source) == expected


def test_a_large_conversation_is_within_the_budget() -> None:
    from test_chat_template import TEMPLATES

    for family in ("qwen2.5", "qwen3", "smollm2", "llama-3.2"):
        template = ChatTemplate((TEMPLATES / f"{family}.jinja").read_text())
        for messages in ([user("word " * 800_000)], [user("a"), {"role": "assistant", "content": "b"}] * 2000):
            ready, _ = template.prepare(messages)
            text = template.render(ready, variables={"bos_token": "", "date_string": "x"})
            assert len(text) > 4_000_000 or len(text) > 4000 * 20


def test_what_a_template_raises_is_cut_short() -> None:
    with pytest.raises(ChatTemplateError, match=r"xxx\.\.\.$") as raised:
        render("{{ raise_exception('x' * 100000) }}")
    assert len(str(raised.value)) < 3000
