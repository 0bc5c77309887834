"""A chat request: its prompt, and what its reply is held to and read as: tools, formats of answers, thoughts."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fastcore.engine.sampling_params import SamplingParams
from fastcore.errors import GrammarError, MissingPackageError
from fastcore.llm import LLM
from fastcore.server.answers import RequestError
from fastcore.server.openai_fields import ChatFields
from fastcore.text.chat_template import ChatTemplate
from fastcore.text.replies import ReplyForm

__all__ = ["Chat"]

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
Schema = Mapping[str, Any]


class Chat:
    """What a chat request asks for. Raises RequestError, which names the field, for what cannot be."""

    def __init__(self, fields: ChatFields, params: SamplingParams) -> None:
        if not fields.messages:
            what, code = ("missing", "missing_required_parameter") if fields.messages is None else ("empty", None)
            message = f"messages is {what}; expected a list of one or more messages"
            raise RequestError(400, message, code=code, param="messages")
        self._messages = fields.messages
        self._params = params
        self._effort = fields.reasoning_effort
        self._template_kwargs = fields.chat_template_kwargs or {}
        self._parallel = fields.parallel_tool_calls is not False
        self._tools = _tools(fields.tools, fields.tool_choice)
        self._answer = _answer_schema(fields.response_format)
        if params.held_to is not None and (self._answer is not None or self._tools.must_call):
            field = "tool_choice" if self._answer is None else "response_format"
            raise RequestError(400, f"{field} and a grammar of its own hold the answer to two things", param=field)

    @property
    def is_json(self) -> bool:
        """Whether the content of the answer is held to be JSON."""
        return self._answer is not None or (self._params.held_to or ("", ""))[0] == "json_schema"

    def prompt(self, llm: LLM) -> tuple[list[int], SamplingParams, ReplyForm]:
        """Its token ids, how to sample, and how to read what comes."""
        tools = self._tools
        template = llm.tokenizer.template_for(tools.offered)
        kwargs = {**self._switches(template), **self._template_kwargs}
        text, ids = llm.tokenizer.chat_prompt(self._messages, tools=tools.offered, template_kwargs=kwargs)
        form = ReplyForm.of(template.source, text, tools.functions)
        params = self._params
        is_strict = any(function.get("strict") is True for function in tools.functions)
        if params.held_to is None and (self._answer is not None or tools.must_call or is_strict):
            grammar = form.grammar(answer=self._answer, must_call=tools.must_call, parallel=self._parallel)
            self._check(llm, grammar)
            params = params.replace(grammar=grammar)
        elif form.calls is not None and form.calls.closing and not self._parallel:
            params = params.replace(stop=(*params.stop, form.calls.closing))
        return ids, params, form

    def _switches(self, template: ChatTemplate) -> dict[str, Any]:
        """What the template is told of the reasoning_effort."""
        effort = self._effort
        if effort is not None and effort not in EFFORTS:
            message = f"reasoning_effort is {effort!r:.80}; expected one of {', '.join(EFFORTS)}"
            raise RequestError(400, message, param="reasoning_effort")
        if effort is None:
            return {}
        if "reasoning_effort" in template.variables:
            return {"reasoning_effort": effort}
        if "enable_thinking" in template.variables:
            return {"enable_thinking": effort != "none"}
        if effort == "none" and "</think>" not in template.source:
            return {}
        message = "reasoning_effort is not supported by this model: its chat template has no switch for it"
        raise RequestError(400, message, code="unsupported_parameter", param="reasoning_effort")

    def _check(self, llm: LLM, grammar: str) -> None:
        """Raise RequestError for a grammar that cannot be followed, naming the field that it comes from."""
        try:
            llm._grammars.constraint("grammar", grammar)
        except MissingPackageError as error:
            param = "tools" if self._answer is None else "response_format"
            raise RequestError(400, f"{param}: {error}", code="unsupported_parameter", param=param) from None
        except GrammarError as error:
            self._blame(llm)
            raise RequestError(400, str(error), param="tools" if self._answer is None else "response_format") from None

    def _blame(self, llm: LLM) -> None:
        if self._answer is not None:
            _check_schema(llm, self._answer, "response_format", "invalid_json_schema")
        for function in self._tools.functions:
            param = f"tools[{self._tools.names.index(function['name'])}].function.parameters"
            _check_schema(llm, function.get("parameters") or {}, param, "invalid_function_parameters")


def _check_schema(llm: LLM, schema: Schema, param: str, code: str) -> None:
    try:
        llm._grammars.constraint("json_schema", json.dumps(schema))
    except GrammarError as error:
        raise RequestError(400, f"{param}: {error}", code=code, param=param) from None


# ---------------------------------------------------------------------- formats of answers


def _answer_schema(response_format: Mapping[str, Any] | None) -> Schema | None:
    """The schema that an answer is held to, if it is."""
    kind = None if response_format is None else response_format.get("type")
    if response_format is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        message = f"response_format.type is {kind!r:.80}; expected text, json_object or json_schema"
        raise RequestError(400, message, param="response_format")
    given = response_format.get("json_schema")
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(schema, dict):
        message = "response_format.json_schema needs a 'schema' that is an object"
        raise RequestError(400, message, code="missing_required_parameter", param="response_format")
    return schema


# ---------------------------------------------------------------------- tools


class _Tools(NamedTuple):
    """offered: as the template lists them; functions: those that may be called; must_call: one of them has to be."""

    offered: list[dict[str, Any]] | None = None
    functions: Sequence[Mapping[str, Any]] = ()
    must_call: bool = False

    @property
    def names(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.offered or []]


def _tools(tools: list[dict[str, Any]] | None, choice: Any) -> _Tools:
    if choice == "none" or (not tools and choice in (None, "auto")):
        return _Tools()
    if not tools:
        raise RequestError(400, "tool_choice asks for a tool, and there are no tools", param="tool_choice")
    functions = [_function(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    if choice in (None, "auto"):
        return _Tools(tools, functions)
    if choice == "required":
        return _Tools(tools, functions, must_call=True)
    name = None
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("function"), dict):
        name = choice["function"].get("name")
    if name is None:
        message = (
            f"tool_choice is {json.dumps(choice):.80}; expected none, auto, required, or "
            '{"type": "function", "function": {"name": ...}}'
        )
        raise RequestError(400, message, param="tool_choice")
    named = [function for function in functions if function["name"] == name]
    if not named:
        raise RequestError(400, f"tool_choice names {name!r:.80}, which is none of the tools", param="tool_choice")
    return _Tools(tools, named, must_call=True)


def _function(tool: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    kind, function = tool.get("type"), tool.get("function")
    if kind != "function":
        message = f"{where}.type is {kind!r:.80}; expected function, the one kind of tool that there is here"
        raise RequestError(400, message, param="tools")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        message = f"{where} needs a function with a 'name' that is a text"
        raise RequestError(400, message, code="missing_required_parameter", param="tools")
    if not isinstance(function.get("parameters") or {}, dict):
        raise RequestError(400, f"{where}.function.parameters is no JSON schema, which is an object", param="tools")
    return function
