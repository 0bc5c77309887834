"""The product's prompts equal the shipped templates rendered by a jinja2 environment set up here, independently."""

import datetime
import json
from pathlib import Path

import jinja2
import jinja2.ext
import jinja2.sandbox
import pytest
import tokenizers
from tokenizers import models

from fastcore.errors import ChatTemplateError, Error
from fastcore.text.chat_template import ChatTemplate, split_reasoning
from fastcore.text.tokenizer import Tokenizer

TEMPLATES = Path(__file__).parent / "data" / "templates"
FAMILIES = ("qwen2.5", "qwen3", "llama-3.2", "smollm2", "falcon-h1-like")
SPECIAL = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "pad_token": "<|pad|>"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Today\'s weather in a place: <sun> & "rain", é',
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def system(text):
    return {"role": "system", "content": text}


CONVERSATIONS = {
    "one question": [user("What is the capital of France?")],
    "system": [system("You are terse."), user("Hello")],
    "empty system": [system(""), user("Hello")],
    "several turns": [user("Hi"), assistant("Hello!"), user("2+2?"), assistant("4"), user("times 3?")],
    "system and turns": [system("Be kind."), user("Hi"), assistant("Hello!"), user("Bye")],
    "ends with assistant": [user("Count to three"), assistant("1, 2,")],
    "trailing spaces": [system("  spaced  "), user("  padded \n\n "), assistant(" yes \t"), user("end  ")],
    "empty content": [user(""), assistant(""), user("?")],
    "html, quotes and newlines": [user("<b>\"it's\" & 'so'</b>\r\n{{ not_jinja }} {% raw %}")],
    "other scripts": [user("Việt e\u0301 👩‍👩‍👧 \u2029 日本語"), assistant("Ação"), user("\x00")],
    "thinking": [user("why?"), assistant("<think>\nhmm\n</think>\n\nbecause"), user("and?"), assistant("so")],
    "late system": [user("Hi"), system("Now in French."), user("Hello")],
}


def independent(source: str, **variables) -> str:
    """The template by plain jinja2, with what transformers documents and no sandbox."""

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

        def _render(self, caller):
            return caller()

    def refuse(message):
        raise jinja2.TemplateError(message)

    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.add_extension(Generation)
    environment.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: (
        json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    )
    environment.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
    }
    return environment.from_string(source).render(documents=None, **variables)


def bare(config=None, **options) -> Tokenizer:
    """A tokenizer whose only purpose is its chat template."""
    return Tokenizer(tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[])), config, **options)


def render(source: str, messages=None, **kwargs) -> str:
    return bare({"chat_template": source, **SPECIAL}).apply_chat_template(messages or [user("hi")], **kwargs)


@pytest.mark.case("T03")
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_shipped_templates_render_as_plain_jinja2_does(family, conversation, add_generation_prompt):
    source = (TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8")
    messages = CONVERSATIONS[conversation]
    date = {"date_string": "05 Mar 2025"}
    expected = independent(
        source, messages=messages, tools=None, add_generation_prompt=add_generation_prompt, **SPECIAL, **date
    )
    assert render(source, messages, add_generation_prompt=add_generation_prompt, template_kwargs=date) == expected
    assert all(message["content"].strip() in expected for message in messages if message["role"] == "user")


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3", "llama-3.2", "falcon-h1-like"])
def test_tools_render_as_plain_jinja2_does(family):
    source = (TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8")
    call = {"type": "function", "function": {"name": "weather", "arguments": {"place": "Malmö <Sweden>"}}}
    asked = [user("Weather in Malmö?")]
    called = [*asked, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "sun"}]
    date = {"date_string": "05 Mar 2025"}
    for messages in (asked, called):
        variables = {"messages": messages, "tools": [WEATHER], "add_generation_prompt": True, **SPECIAL, **date}
        text = render(source, messages, tools=[WEATHER], template_kwargs=date)
        assert text == independent(source, **variables)
        assert "<sun> & " in text


@pytest.mark.case("T03")
def test_known_prompts_are_spelled_out():
    texts = {family: (TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8") for family in FAMILIES}
    assert render(texts["qwen2.5"]) == (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(texts["smollm2"]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    today = datetime.datetime.now().strftime("%d %b %Y")
    assert render(texts["llama-3.2"]) == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        f"Today Date: {today}\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert render(texts["falcon-h1-like"]) == (
        "<|begin_of_text|><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_qwen3_thinking_switch():
    source = (TEMPLATES / "qwen3.jinja").read_text(encoding="utf-8")
    plain = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert render(source) == plain
    assert render(source, template_kwargs={"enable_thinking": True}) == plain
    assert render(source, template_kwargs={"enable_thinking": False}) == plain + "<think>\n\n</think>\n\n"


@pytest.mark.case("T05")
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ strftime_now('%Y-%m') }}", datetime.datetime.now().strftime("%Y-%m")),
        (
            "{{ messages[0] | tojson(indent=2, ensure_ascii=False) }}",
            '{\n  "role": "user",\n  "content": "é <b> & \'"\n}',
        ),
        ("{{ messages[0].content | tojson }}", '"é <b> & \'"'),
        ("{{ messages[0].content | tojson(ensure_ascii=True) }}", '"\\u00e9 <b> & \'"'),
        ("{{ {'b': 1, 'a': [2]} | tojson(sort_keys=True, separators=(',', ':')) }}", '{"a":[2],"b":1}'),
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
            "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "023",
        ),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 7 %}{% endfor %}{{ ns.n }}", "7"),
        ("a{% generation %}{{ messages[0].role }}{% endgeneration %}b", "auserb"),
        ("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", "21"),
        ("a  \n  {%- if true -%}  \n b \n {%- endif -%} \n c", "abc"),
        ("  {% if true %}\n  kept\n  {% endif %}\nend\n", "  kept\nend"),
        ("{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ sep_token }}", "<|begin_of_text|><|eot_id|><|pad|>"),
        ("{{ documents is none }}{{ tools is none }}{{ add_generation_prompt }}", "TrueTrueTrue"),
        ("{{ messages[0].tool_calls is defined }}{{ messages[0].name is defined }}", "FalseFalse"),
        ("{{ dict(a=1).a }}{{ '%s' | format('x') }}{{ [1, 2] | last }}{{ 'a b' | title }}", "1x2A B"),
    ],
)
def test_every_helper_a_template_may_use(source, expected):
    messages = [{"role": "user", "content": "é <b> & '", "tool_calls": None}]
    assert render(source, messages) == expected


@pytest.mark.case("T05")
def test_the_templates_own_refusal_is_the_message():
    with pytest.raises(ChatTemplateError, match="roles must alternate, got user"):
        render("{{ raise_exception('roles must alternate, got ' + messages[0].role) }}")


@pytest.mark.case("T05")
@pytest.mark.parametrize(
    "escape",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ ''['__class__'].__mro__ }}",
        "{{ (messages | attr('__class__')).__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['os'] }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{% set _ = messages.append(1) %}",
        "{% set _ = messages[0].update(role='x') %}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_the_sandbox_holds(escape):
    with pytest.raises(ChatTemplateError, match=r"unsafe|not safe|undefined|Range too big"):
        render(escape + "reached")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if %}", "line 1"),
        ("{{ messages[0].nothing.more }}", "no attribute 'nothing'"),
        ("{{ 'a' + 1 }}", "str"),
        ("{{ 1 // 0 }}", "zero"),
        ("{% include 'other' %}", "no loader"),
    ],
)
def test_a_faulty_template_is_a_typed_error_with_its_text(source, text):
    with pytest.raises(ChatTemplateError, match=text):
        render(source)


@pytest.mark.case("T11")
@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], "non-empty list"),
        ("hi", "got str"),
        (None, "got NoneType"),
        ({"role": "user"}, "got dict"),
        ([[]], r"messages\[0\] must be a dict"),
        ([user("a"), "b"], r"messages\[1\] must be a dict"),
        ([{"content": "x"}], r"messages\[0\] needs a 'role'.*content"),
        ([{"role": 3, "content": "x"}], "needs a 'role'"),
        ([{"role": "user", "content": object()}], r"messages\[0\]\['content'\] is a object"),
        ([{"role": "user", "content": [{"text": b"x"}]}], r"\['content'\]\[0\]\['text'\] is a bytes"),
    ],
)
def test_malformed_messages(messages, text):
    tokenizer = bare({"chat_template": "{{ messages[0].role }}"})
    with pytest.raises(ChatTemplateError, match=text):
        tokenizer.apply_chat_template(messages)
    assert isinstance(ChatTemplateError("x"), (ValueError, Error))


def test_messages_are_not_changed_and_template_kwargs_cannot_shadow_arguments():
    messages = [{"role": "user", "content": "x", "name": None}]
    assert render("{{ messages[0].name is defined }}", messages) == "False"
    assert messages == [{"role": "user", "content": "x", "name": None}]
    with pytest.raises(ChatTemplateError, match="'messages'"):
        render("x", template_kwargs={"messages": []})
    assert render("{{ bos_token }}", template_kwargs={"bos_token": "other"}) == "other"
    with pytest.raises(ChatTemplateError, match="tools must be a list"):
        render("x", tools=["weather"])


def test_a_template_is_compiled_once():
    template = ChatTemplate("{{ messages[0].content }}")
    assert template.render([user("a")]) == "a"
    compiled = template._compiled
    assert template.render([user("b")]) == "b"
    assert template._compiled is compiled


def folder_with(tmp_path, config=None, files=()):
    folder = tmp_path / "model"
    folder.mkdir()
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    backend.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, text in dict(files).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return Tokenizer.from_folder(folder)


NAMED = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]


@pytest.mark.case("C11")
@pytest.mark.parametrize(
    ("config", "files", "plain", "with_tools"),
    [
        (None, {"chat_template.jinja": "file"}, "file", "file"),
        ({"chat_template": "config"}, {}, "config", "config"),
        ({"chat_template": "config"}, {"chat_template.jinja": "file"}, "file", "file"),
        ({"chat_template": NAMED}, {}, "plain", "with tools"),
        ({"chat_template": NAMED}, {"chat_template.jinja": "file"}, "file", "file"),
        (
            {},
            {"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "tool file"},
            "file",
            "tool file",
        ),
    ],
)
def test_where_the_template_comes_from(tmp_path, config, files, plain, with_tools):
    tokenizer = folder_with(tmp_path, config, files)
    assert tokenizer.has_chat_template
    assert tokenizer.apply_chat_template([user("x")]) == plain
    assert tokenizer.apply_chat_template([user("x")], tools=[WEATHER]) == with_tools


@pytest.mark.case("C11")
def test_no_template_is_an_error_of_chat_only(tmp_path):
    tokenizer = folder_with(tmp_path, {"bos_token": None})
    assert not tokenizer.has_chat_template
    assert tokenizer.encode("a") == [0]
    with pytest.raises(ChatTemplateError, match=r"chat_template\.jinja"):
        tokenizer.apply_chat_template([user("x")])


@pytest.mark.case("C11")
def test_named_templates_without_a_default():
    tokenizer = bare({"chat_template": [{"name": "rag", "template": "x"}]})
    with pytest.raises(ChatTemplateError, match=r"'default'.*\['rag'\]"):
        tokenizer.apply_chat_template([user("x")])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nlet me see\n</think>\n\nFour.", ("let me see", "Four.")),
        ("<think>\n\n</think>\n\nFour.", ("", "Four.")),
        ("let me see\n</think>\n\nFour.", ("let me see", "Four.")),
        ("\n<think>cut off", ("cut off", "")),
        ("Four.", ("", "Four.")),
        ("Write <think> first.", ("", "Write <think> first.")),
        ("<think>a</think>b</think>c", ("a", "b</think>c")),
        ("", ("", "")),
    ],
)
def test_split_reasoning(text, expected):
    assert split_reasoning(text) == expected


def test_templates_render_as_transformers_does():
    transformers = pytest.importorskip("transformers", reason="compares with transformers where it is installed")
    utils = transformers.utils.chat_template_utils
    for family in FAMILIES:
        source = (TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8")
        for messages in CONVERSATIONS.values():
            for tools in (None, [WEATHER]):
                if tools and family == "llama-3.2" and messages[0]["role"] == "system" and len(messages) == 1:
                    continue
                (expected,), _ = utils.render_jinja_template(
                    conversations=[messages],
                    chat_template=source,
                    tools=tools,
                    add_generation_prompt=True,
                    **SPECIAL,
                )
                assert render(source, messages, tools=tools) == expected
