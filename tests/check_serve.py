#!/usr/bin/env python3
"""fastgen serve by the official openai client: every feature, and what must hold while a long prompt is processed.

    ./build.sh tool && python tests/check_serve.py          needs: openai, anthropic, prometheus-client, jsonschema

The last line is "N passed, N failed".
"""
import asyncio
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request

import anthropic
import gguf
import jsonschema
import numpy as np
import openai
from prometheus_client.parser import text_string_to_metric_families

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOOL = os.environ.get("TOOL", os.path.join(ROOT, "build", "fastgen"))
DEMO = os.path.join(ROOT, "examples", "demo-model", "demo.gguf")
PROMPT = "Once upon a time"


class Server:
    """A server on a free port, stopped at the end of a with block."""

    def __init__(self, *options, model=DEMO):
        command = [TOOL, "serve", "-m", model, "--port", "0", "--quiet", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().split()[-1]
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=120)
        self.anthropic = anthropic.Anthropic(base_url=self.url, api_key="none", max_retries=0, timeout=120)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(40) == 0, "the server did not end with 0"

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read().decode()

    def post(self, path, **body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def metrics(self):
        """Value of every sample, by name and by its labels that are not the model's."""
        values = {}
        for family in text_string_to_metric_families(self.get("/metrics")):
            for sample in family.samples:
                labels = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
                values[(sample.name, *sorted(labels.items()))] = sample.value
        return values

    def complete(self, prompt=PROMPT, **more):
        more = {"max_tokens": 16, "temperature": 0, **more}
        return self.client.completions.create(model="demo", prompt=prompt, **more)

    def chat(self, text="Hello", **more):
        more = {"max_tokens": 16, "temperature": 0, **more}
        return self.client.chat.completions.create(model="demo", messages=[{"role": "user", "content": text}], **more)


def generated(text, n, *options):
    """What the tool writes behind `text`."""
    run = subprocess.run([TOOL, "generate", "-m", DEMO, "-p", text, "-n", str(n), "--json", "--quiet", *options],
                         capture_output=True, text=True, check=True)
    return json.loads(run.stdout)["results"]


def raises(kind, call, part=""):
    try:
        call()
    except kind as error:
        assert part in str(error), error
        return error
    raise AssertionError(f"no {kind.__name__}")


# ---- completions


def test_greedy(s):
    wanted = generated(PROMPT, 16, "--temp", "0")[0]
    answer = s.complete()
    assert answer.choices[0].text == wanted["text"] and answer.choices[0].finish_reason == "length"
    assert answer.object == "text_completion" and answer.model == "demo" and abs(answer.created - time.time()) < 60
    assert answer.usage.completion_tokens == 16 and answer.usage.prompt_tokens == wanted["prompt_tokens"]
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 16


def test_prompts_as_tokens(s):
    tokens = s.post("/tokenize", prompt=PROMPT)["tokens"]
    text = s.complete().choices[0].text
    assert s.complete(tokens).choices[0].text == text
    many = s.complete([tokens, s.post("/tokenize", prompt="The little dog")["tokens"]])
    assert [c.index for c in many.choices] == [0, 1]
    assert many.choices[0].text == text and many.choices[1].text == s.complete("The little dog").choices[0].text
    assert s.post("/detokenize", tokens=tokens[1:])["prompt"] == PROMPT


def test_many_prompts_and_samples(s):
    answer = s.complete([PROMPT, "The little dog"], n=3, temperature=0.9, seed=5)
    assert [c.index for c in answer.choices] == list(range(6))
    assert len({c.text for c in answer.choices[:3]}) > 1
    alone = [s.complete(PROMPT, temperature=0.9, seed=5 + i).choices[0].text for i in range(3)]
    assert [c.text for c in answer.choices[:3]] == alone  # sample i uses seed + i
    assert answer.usage.completion_tokens == 96


def test_seed(s):
    def once(**more):
        return s.complete(temperature=1.0, **more).choices[0].text
    assert once(seed=7) == once(seed=7)
    assert len({once() for _ in range(6)}) > 1 and once(seed=7) != once(seed=8)


def test_stop(s):
    full = s.complete(max_tokens=64).choices[0].text
    word = full.split()[6]
    answer = s.complete(max_tokens=64, stop=["never there", word])
    assert answer.choices[0].text == full[:full.index(word)] and answer.choices[0].finish_reason == "stop"
    streamed = "".join(c.choices[0].text for c in s.complete(max_tokens=64, stop=word, stream=True))
    assert streamed == answer.choices[0].text


def test_echo_and_logprobs(s):
    answer = s.complete(max_tokens=4, echo=True, logprobs=3).choices[0]
    p = answer.logprobs
    assert answer.text.startswith(PROMPT)
    assert len(p.tokens) == len(p.token_logprobs) == len(p.top_logprobs) == len(p.text_offset)
    assert p.token_logprobs[0] is None and p.top_logprobs[0] is None and all(x <= 0 for x in p.token_logprobs[1:])
    assert "".join(p.tokens).endswith(answer.text)
    # the same as scored in one piece, and nothing generated
    tokens = s.post("/tokenize", prompt=answer.text)["tokens"]
    scored = s.complete(tokens, max_tokens=0, echo=True, logprobs=0).choices[0]
    assert all(math.isclose(a, b, abs_tol=1e-4) for a, b in zip(p.token_logprobs[1:], scored.logprobs.token_logprobs[1:]))
    best = [max(t, key=t.get) for t in p.top_logprobs[-4:]]
    assert best == p.tokens[-4:]  # greedy


def test_echo_of_many(s):
    """Every choice begins with its prompt and the prompt's log-probabilities, streamed or not."""
    prompts, more = [PROMPT, 'The "little"\ndog'], {"max_tokens": 4, "echo": True, "logprobs": 2, "temperature": 0.9}
    whole = s.complete(prompts, n=3, seed=5, **more).choices
    texts, lists = [""] * 6, [([], [], [], []) for _ in range(6)]
    for chunk in s.complete(prompts, n=3, seed=5, stream=True, **more):
        for c in chunk.choices:
            texts[c.index] += c.text
            p = c.logprobs
            for to, items in zip(lists[c.index], (p.tokens, p.token_logprobs, p.top_logprobs, p.text_offset)):
                to.extend(items)
    for i, c in enumerate(whole):
        alone, p = s.complete(prompts[i // 3], seed=5 + i % 3, **more).choices[0], c.logprobs
        assert c.index == i and c.text.startswith(prompts[i // 3]) and c.text == alone.text == texts[i]
        assert p.tokens == alone.logprobs.tokens == lists[i][0] and p.text_offset == alone.logprobs.text_offset == lists[i][3]
        assert p.token_logprobs[0] is None and len(p.token_logprobs) == len(p.top_logprobs) == len(p.tokens) == len(lists[i][2])
        for a, b, d in zip(p.token_logprobs[1:], alone.logprobs.token_logprobs[1:], lists[i][1][1:]):
            assert math.isclose(a, b, abs_tol=1e-4) and math.isclose(a, d, abs_tol=1e-4)
        assert all(c.text[at:].startswith(t) for t, at in zip(p.tokens[1:], p.text_offset[1:]))


def test_logit_bias(s):
    tokens = s.post("/tokenize", prompt=" dog", add_special_tokens=False)["tokens"]
    answer = s.complete(max_tokens=4, logit_bias={str(tokens[0]): 100})
    assert answer.choices[0].text == " dog" * 4
    first = s.complete(max_tokens=1, logprobs=1).choices[0].logprobs.tokens[0]
    banned = s.post("/tokenize", prompt=first, add_special_tokens=False)["tokens"][0]
    assert s.complete(max_tokens=1, logit_bias={str(banned): -100}).choices[0].text != first


def test_penalties(s):
    plain = s.complete(max_tokens=64).choices[0].text
    for field in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"extra_body": {"repetition_penalty": 1.5}}):
        assert s.complete(max_tokens=64, **field).choices[0].text != plain, field
    assert s.complete(max_tokens=64, presence_penalty=0, frequency_penalty=0).choices[0].text == plain


def test_filters(s):
    greedy = s.complete().choices[0].text
    for field in ({"top_p": 0.0}, {"extra_body": {"top_k": 1}}, {"extra_body": {"min_p": 1.0}}):
        assert s.complete(temperature=2.0, seed=3, **field).choices[0].text == greedy, field


def test_length_and_ends(s):
    tokens = s.post("/tokenize", messages=[{"role": "user", "content": "Hello"}])["tokens"]
    ended = s.complete(tokens, max_tokens=200)
    assert ended.choices[0].finish_reason == "stop" and ended.usage.completion_tokens < 200
    n = ended.usage.completion_tokens
    more = s.complete(tokens, max_tokens=200, extra_body={"ignore_eos": True})
    assert more.choices[0].finish_reason == "length" and more.usage.completion_tokens == 200
    least = s.complete(tokens, max_tokens=200, extra_body={"min_tokens": n + 5})
    assert least.usage.completion_tokens > n + 4
    assert s.complete(max_tokens=None).usage.completion_tokens <= 16


def test_completion_stream(s):
    whole = s.complete([PROMPT, "The little dog"], n=2, logprobs=1)
    texts, tokens, ends = {}, {}, {}
    stream = s.complete([PROMPT, "The little dog"], n=2, logprobs=1, stream=True, stream_options={"include_usage": True})
    usage = None
    for chunk in stream:
        assert usage is None
        for c in chunk.choices:
            texts[c.index] = texts.get(c.index, "") + c.text
            tokens.setdefault(c.index, []).extend(c.logprobs.tokens if c.logprobs else [])
            ends[c.index] = c.finish_reason
        usage = chunk.usage
    assert usage == whole.usage or usage.completion_tokens == whole.usage.completion_tokens
    for c in whole.choices:
        assert texts[c.index] == c.text and tokens[c.index] == c.logprobs.tokens and ends[c.index] == c.finish_reason


# ---- chat


def test_chat(s):
    answer = s.chat(max_tokens=100)
    message = answer.choices[0].message
    assert message.role == "assistant" and message.content and answer.object == "chat.completion"
    assert answer.choices[0].finish_reason == "stop" and answer.choices[0].logprobs is None
    rendered = s.post("/tokenize", messages=[{"role": "user", "content": "Hello"}])["tokens"]
    assert answer.usage.prompt_tokens == len(rendered)
    assert s.complete(rendered, max_tokens=100).choices[0].text == message.content


def test_chat_parts(s):
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert s.chat(parts).choices[0].message.content == s.chat("Hel\nlo").choices[0].message.content


def test_chat_logprobs(s):
    answer = s.chat(logprobs=True, top_logprobs=4).choices[0]
    entries = answer.logprobs.content
    assert "".join(e.token for e in entries) == answer.message.content
    assert b"".join(bytes(e.bytes) for e in entries).decode() == answer.message.content
    for e in entries:
        assert len(e.top_logprobs) == 4 and e.top_logprobs[0].logprob == e.logprob
        assert [t.logprob for t in e.top_logprobs] == sorted((t.logprob for t in e.top_logprobs), reverse=True)
    assert s.chat(logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_chat_stream(s):
    whole = s.chat(n=2, temperature=0.8, seed=1, logprobs=True, top_logprobs=2)
    texts, roles, entries = {}, {}, {}
    for chunk in s.chat(n=2, temperature=0.8, seed=1, logprobs=True, top_logprobs=2, stream=True):
        assert chunk.object == "chat.completion.chunk"
        for c in chunk.choices:
            texts[c.index] = texts.get(c.index, "") + (c.delta.content or "")
            roles.setdefault(c.index, []).append(c.delta.role)
            entries.setdefault(c.index, []).extend(c.logprobs.content if c.logprobs else [])
    for c in whole.choices:
        assert texts[c.index] == c.message.content and roles[c.index][0] == "assistant" and not any(roles[c.index][1:])
        assert [e.token for e in entries[c.index]] == [e.token for e in c.logprobs.content]


def test_chat_fields(s):
    assert s.client.chat.completions.create(
        model="demo", messages=[{"role": "system", "content": "x"}, {"role": "user", "content": "Hello"}],
        max_completion_tokens=3, temperature=0).usage.completion_tokens == 3
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    assert s.chat(tools=[tool], tool_choice="auto").choices[0].message.content
    assert s.chat(response_format={"type": "text"}, user="me", parallel_tool_calls=False).choices
    raises(openai.BadRequestError, lambda: s.chat(tools=[tool], tool_choice="any"), "tool_choice")


# ---- calls of tools

def function(name, **properties):
    return {"type": "function", "function": {"name": name, "parameters": {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}}}


TOOLS = [function("weather", city={"type": "string", "maxLength": 12}, days={"type": "integer", "minimum": 1, "maximum": 14}),
         function("sum \u20ac", of={"$ref": "#/$defs/of"}), function("stop")]
TOOLS[1]["function"]["parameters"]["$defs"] = {"of": {"type": "array", "items": {"type": "integer", "maximum": 99}, "minItems": 1, "maxItems": 3}}


def streamed_calls(s, **more):
    """The content and the calls of a stream, put together as clients do."""
    text, calls, finish = "", [], None
    for chunk in s.chat(stream=True, **more):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                if call.index == len(calls):
                    assert call.id and call.type == "function"
                    calls.append([call.function.name, ""])
                assert call.index == len(calls) - 1
                calls[-1][1] += call.function.arguments
    return text or None, [(name, json.loads(arguments)) for name, arguments in calls], finish


def whole_calls(s, **more):
    choice = s.chat(**more).choices[0]
    calls = choice.message.tool_calls or []
    assert len({c.id for c in calls}) == len(calls) and all(len(c.id) == 9 and c.type == "function" for c in calls)
    return choice.message.content, [(c.function.name, json.loads(c.function.arguments)) for c in calls], choice.finish_reason


def check_arguments(calls):
    for name, arguments in calls:
        jsonschema.validate(arguments, next(t["function"]["parameters"] for t in TOOLS if t["function"]["name"] == name))


def test_calls_asked_for(s):
    names, ended, bias = set(), 0, closing(s)
    for seed in range(24):
        more = dict(tools=TOOLS, max_tokens=200, temperature=1.5, seed=seed, logit_bias=bias if seed % 2 else {})
        chosen = {"type": "function", "function": {"name": TOOLS[seed % 3]["function"]["name"]}}
        for choice, parallel in (("required", True), ("required", False), (chosen, True)):
            parts = dict(more, tool_choice=choice, parallel_tool_calls=parallel)
            if s.chat(**parts).choices[0].finish_reason != "tool_calls":
                continue
            content, calls, finish = whole = whole_calls(s, **parts)
            assert content is None and calls and finish == "tool_calls" and whole == streamed_calls(s, **parts), whole
            assert len(calls) == 1 or (choice == "required" and parallel)
            assert choice == "required" or calls[0][0] == chosen["function"]["name"]
            check_arguments(calls)
            names |= {name for name, _ in calls}
            ended += 1
    assert ended > 16 and len(names) == 3, (ended, names)
    print(f"    {ended} of 72 came to their end")


def test_calls_in_text(s):
    """What models write: a choice of one text makes this one write it."""
    stop, call = ("stop", {}), '{"name": "weather", "arguments": {"city": "K\u00f6ln <b>", "days": 2}}'
    weather = ("weather", {"city": "K\u00f6ln <b>", "days": 2})
    for text, content, calls in (
            (f"<tool_call>\n{call}\n</tool_call>", None, [weather]),
            (f"Let me see.\n<tool_call>{call}</tool_call>\n<tool_call>\n" '{"name": "stop", "arguments": {}}\n</tool_call>\n', "Let me see.\n", [weather, stop]),
            (f"\n\n<tool_call>{call}", None, [weather]), (f" {call}\n", None, [weather]), (f"[{call}, {call}]", None, [weather, weather]),
            ('{"name": "stop", "parameters": {}}', None, [stop]), ('[TOOL_CALLS][{"name": "stop", "arguments": {}}]', None, [stop]),
            (f'<tool_call>{call.replace("weather", "whether")}</tool_call> a', f'<tool_call>{call.replace("weather", "whether")}</tool_call> a', []),
            ('{"name": "stop", "arguments": 7}', '{"name": "stop", "arguments": 7}', []), ("[1] a < b <tool_ca", "[1] a < b <tool_ca", []),
            (" a <tool_call> b", " a <tool_call> b", []), ('{"name": "stop"', '{"name": "stop"', []), (" \n", " \n", []),
            (f"<tool_call>{call}</tool_call> and <tool", " and <tool", [weather])):
        more = dict(tools=TOOLS, extra_body={"guided_choice": [text]}, max_tokens=300)
        expected = content, calls, "tool_calls" if calls else "stop"
        assert whole_calls(s, **more) == expected, (text, whole_calls(s, **more))
        assert streamed_calls(s, **more) == expected, (text, streamed_calls(s, **more))
        assert whole_calls(s, **dict(more, tool_choice="none")) == (text, [], "stop")
    # other ways to write them
    for text, calls in (('{"name": "stop"}', [stop]), ('{"name": "stop", "arguments": null}', [stop]), (f"{call}\n{call};\n" '{"name":"stop"}', [weather, weather, stop]), (f"{call}\n{call}\n", [weather, weather]),
                        ('<tool_call>{"name": "stop", "arguments": {"a": "</tool_call>"}}</tool_call>', [("stop", {"a": "</tool_call>"})]),
                        ('{"name": "stop", "arguments": "{\\"a\\": 1}"}', [("stop", {"a": 1})]), ('{"type": "function", "function": {"name": "stop"}}', [stop]),
                        ('{"name": "stop", "a": 1, "b": 2}', []), ('{"name": "stop"} x', []), ('<tool_call>a</tool_call><tool_call>{"name": "stop"}</tool_call>', [stop])):
        more = dict(tools=TOOLS, extra_body={"guided_choice": [text]}, max_tokens=300)
        assert whole_calls(s, **more)[1] == calls and whole_calls(s, **more) == streamed_calls(s, **more), (text, whole_calls(s, **more))
    later = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "stop", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "a", "content": "done"}]
    assert s.client.chat.completions.create(model="demo", messages=later, tools=TOOLS, max_tokens=3).choices


def test_calls_in_elements(s):
    """As Qwen 3.5 and Qwen3-Coder write calls: texts as they are, all else by what the tool's schema says."""
    def element(name, **values):
        return f"<function={name}>\n" + "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items()) + "</function>"

    tools = TOOLS + [function("edit", text={"type": "string"}, lines={"type": "array", "items": {"type": "integer"}}, force={"type": "boolean"},
                              at={"anyOf": [{"type": "number"}, {"type": "null"}]}, maybe={"type": ["string", "null"]}, more={"type": "object"})]
    code, city, of = 'if a < b:\n    print("</tool>", {1: 2})\n', "K\u00f6ln <b>", "sum \u20ac"

    def block(*elements):
        return "<tool_call>\n" + "\n".join(elements) + "\n</tool_call>"

    for text, content, calls in (
            (block(element("weather", city=city, days=2)), None, [("weather", {"city": city, "days": 2})]),
            ("I look.\n\n" + block(element("stop")) + "\n" + block(element("edit", text=code, lines="[1, 2]", force="True", at="null")), "I look.\n\n",
             [("stop", {}), ("edit", {"text": code, "lines": [1, 2], "force": True, "at": None})]),
            (block(element("edit", text="7", at="1.5", maybe="null", more="{}", other="[3]", unknown="7")), None,
             [("edit", {"text": "7", "at": 1.5, "maybe": None, "more": {}, "other": [3], "unknown": "7"})]),
            (block(element("edit", lines="one", force="maybe", maybe="None", text="")), None, [("edit", {"lines": "one", "force": "maybe", "maybe": "None", "text": ""})]),
            (block(element("stop"), element("weather", days=3)), None, [("stop", {}), ("weather", {"days": 3})]),
            ("<tool_call>" + element(of, of="[4]"), None, [(of, {"of": [4]})]),
            *((text, text, []) for text in (
                block(element("whether")), block("<function=stop>"), block("<function=stop</function>"), block("<function=weather><parameter=days>2</function>"),
                block(element("stop") + " and"), block("<function=weather><parameter=days 2</parameter></function>")))):
        more = dict(tools=tools, extra_body={"guided_choice": [text]}, max_tokens=300)
        expected = content, calls, "tool_calls" if calls else "stop"
        assert whole_calls(s, **more) == expected, (text, whole_calls(s, **more))
        assert streamed_calls(s, **more) == expected, (text, streamed_calls(s, **more))


def test_calls_cut_off(s):
    """What a limit or a stop text cuts off is no call; those before it are."""
    endless = dict(tools=[function("f", a={"const": 1})], tool_choice="required", max_tokens=400,
                   logit_bias={str(s.post("/tokenize", prompt="]", add_special_tokens=False)["tokens"][-1]): -100})
    content, calls, finish = whole = whole_calls(s, **endless)
    assert not content and finish == "length" and calls and all(c == ("f", {"a": 1}) for c in calls), whole
    assert streamed_calls(s, **endless) == whole
    chosen = dict(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "weather"}})
    for stop in ("{", ","):
        choice = s.chat(stop=[stop], max_tokens=200, **chosen).choices[0]
        assert choice.finish_reason in ("stop", "length") and (choice.message.tool_calls or stop == "{"), choice
    assert whole_calls(s, tools=[function("f")], tool_choice="required", temperature=1.5, max_tokens=60, parallel_tool_calls=False)[1] in ([("f", {})], [])
    assert s.chat(response_format={"type": "json_object"}, tools=TOOLS, tool_choice="required").choices
    schema = {"type": "object", "properties": {"name": {"const": "stop"}, "arguments": {"const": {}}}, "required": ["name", "arguments"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    assert json.loads(s.chat(response_format=form, tools=TOOLS, max_tokens=100).choices[0].message.content) == {"name": "stop", "arguments": {}}


def test_stream_helper(s):
    for more in ({}, {"tools": [function("f")], "tool_choice": "required"}):
        with s.client.chat.completions.stream(model="demo", messages=[{"role": "user", "content": "Hello"}], n=3, max_tokens=20, temperature=1, **more) as stream:
            for _ in stream:
                pass
            choices = stream.current_completion_snapshot.choices  # get_final_completion() refuses a text that was cut off, as these may be
            assert [c.index for c in choices] == [0, 1, 2] and all(c.finish_reason for c in choices)


def test_calls_refused(s):
    deep = {"$ref": "#/$defs/a"}
    nested = function("f", a=deep)
    nested["function"]["parameters"]["$defs"] = {"a": {"type": "array", "items": deep, "minItems": 1}}
    for more, part in ((dict(tools=[], tool_choice="required"), "needs tools"), (dict(tools=[TOOLS[0], TOOLS[0]]), "name of another"),
                       (dict(tools=[{"type": "function"}]), "function with a name"), (dict(tools=[7]), "function with a name"),
                       (dict(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "x"}}), "not in tools"),
                       (dict(tools=TOOLS, tool_choice={"type": "function"}), "tool_choice must be"),
                       (dict(tools=TOOLS, tool_choice="required", extra_body={"guided_json": {"type": "null"}}), "another schema"),
                       (dict(tools=[nested], tool_choice="required"), "nested without end"),
                       (dict(tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}], tool_choice="required"), "type object"),
                       (dict(tools=[function("f", a={"not": {}})], tool_choice="required"), "'not' is not supported")):
        raises(openai.BadRequestError, lambda: s.chat(**more), part)
    assert s.chat(tools=[function("f", a={"not": {}})]).choices
    for parameters in ({"description": "nothing"}, {}, {"type": "object", "properties": {}}):
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
        for choice in ("required", {"type": "function", "function": {"name": "f"}}):
            _, calls, finish = whole_calls(s, tools=[tool], tool_choice=choice, max_tokens=300, temperature=1.5, seed=3, logit_bias=closing(s))
            assert finish == "tool_calls" and all(arguments == {} for _, arguments in calls)


# ---- thoughts

def whole_thought(s, **more):
    message = s.chat(**more).choices[0].message
    return getattr(message, "reasoning_content", None) or "", message.content or "", len(message.tool_calls or [])


def streamed_thought(s, **more):
    thought = text = ""
    calls = 0
    for chunk in s.chat(stream=True, **more):
        for choice in chunk.choices:
            more_thought = getattr(choice.delta, "reasoning_content", None) or ""
            assert not (more_thought and text), "a thought behind the text"
            thought += more_thought
            text += choice.delta.content or ""
            calls += len(choice.delta.tool_calls or [])
    return thought, text, calls


CALL = '<tool_call>{"name": "stop", "arguments": {}}</tool_call>'
THOUGHTS = [("<think>\nHm. So.\n</think>\n\nYes.", "Hm. So.", "Yes.", 0), (" <think>a</think> b", "a", "b", 0), ("<think></think>Yes", "", "Yes", 0),
            ("<think>\n \n</think>\n", "", "", 0), ("a <think>b</think>", "", "a <think>b</think>", 0), ("<thin", "", "<thin", 0), (" \n", "", " \n", 0),
            ("<think>a < b </thin", "a < b </thin", "", 0), ("<think>a\n\nb </think", "a\n\nb </think", "", 0), ("<think>a", "a", "", 0), ("<think>", "", "", 0),
            ("<think>a</think>b</think>c", "a", "b</think>c", 0), (f"<think>\n{CALL}\n</think>\n\n{CALL}", CALL, "", 1), (f"<think>a</think>b {CALL}", "a", "b ", 1)]


def test_thoughts(s):
    for text, *expected in THOUGHTS:
        for tools in ({}, {"tools": TOOLS}):
            more = dict(tools, max_tokens=300)
            wanted = tuple(expected) if tools or not expected[2] else (expected[0], expected[1] + CALL, 0)
            body = {"guided_choice": [text]}
            assert whole_thought(s, extra_body=body, **more) == wanted == streamed_thought(s, extra_body=body, **more), (
                text, whole_thought(s, extra_body=body, **more), streamed_thought(s, extra_body=body, **more))
        body = {"guided_choice": [text], "reasoning_format": "none"}
        assert whole_thought(s, max_tokens=300, extra_body=body) == streamed_thought(s, max_tokens=300, extra_body=body) == ("", text, 0)
    begun = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "<think>"}]
    on = {"continue_final_message": True, "add_generation_prompt": False}
    raw, thought = [s.client.chat.completions.create(model="demo", messages=begun, temperature=0, max_tokens=12, logprobs=True, extra_body={**on, **more}).choices[0]
                    for more in ({"reasoning_format": "none"}, {"reasoning_format": "auto"})]
    assert thought.message.reasoning_content == raw.message.content.strip() and not thought.message.content and thought.finish_reason == "length"
    assert thought.logprobs.content == raw.logprobs.content
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": "<think>a</think>"}}}
    thought, text, _ = whole_thought(s, response_format=form, max_tokens=100)
    assert thought == "" and json.loads(text) == "<think>a</think>"
    raises(openai.BadRequestError, lambda: s.chat(extra_body={"reasoning_format": "all"}), "reasoning_format")
    assert s.chat(n=2, extra_body={"guided_choice": [THOUGHTS[0][0]]}, max_tokens=100).choices[1].message.reasoning_content == "Hm. So."


# ---- messages of channels, as gpt-oss writes them

def script_model(path, script):
    """A model that writes `script`, a list of tokens, behind "<|start|>assistant": each token's embedding is a direction of its own, the
    layer adds nothing, and the output turns it into the next token. Tokens like <|this|> are special."""
    T = gguf.TokenType
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + ["<|channel|>", "<|return|>", "<|start|>", "assistant"] + script
    types = [T.UNKNOWN, T.CONTROL, T.CONTROL] + [T.BYTE] * 256 + [T.CONTROL] * 3 + [T.USER_DEFINED] + [
        T.CONTROL if t.startswith("<") else T.NORMAL for t in script]
    n, width = len(tokens), 512
    w = gguf.GGUFWriter(path, "llama")
    w.add_name("demo")
    w.add_context_length(512)
    w.add_embedding_length(width)
    w.add_block_count(1)
    w.add_feed_forward_length(32)
    w.add_head_count(1)
    w.add_key_length(32)
    w.add_value_length(32)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model("llama")
    w.add_token_list(tokens)
    w.add_token_scores([-float(i) for i in range(n)])
    w.add_token_types(types)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_space_prefix(False)
    w.add_chat_template("{% for m in messages %}{{ m.content }}{{ m.thinking }}{% endfor %}{{ reasoning_effort }}<|start|>assistant")
    output = np.zeros((n, width), dtype=np.float32)
    for i in range(n - len(script), n):
        output[i, i - 1] = 1
    w.add_tensor("token_embd.weight", np.eye(n, width, dtype=np.float32))
    w.add_tensor("output.weight", output)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        w.add_tensor(name + ".weight", np.ones(width, dtype=np.float32))
    for name, rows, columns in (("attn_q", 32, width), ("attn_k", 32, width), ("attn_v", 32, width), ("attn_output", width, 32),
                                ("ffn_gate", 32, width), ("ffn_up", 32, width), ("ffn_down", width, 32)):
        w.add_tensor(f"blk.0.{name}.weight", np.zeros((rows, columns), dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


ANALYSIS = ["<|channel|>", "analysis", "<|message|>", "Let", "\u2581me", "\u2581think", ".", "<|end|>", "<|start|>", "assistant"]
FINAL = ["<|channel|>", "final", "<|message|>", "Hi", "!", "<|return|>"]


def channel_call(name, arguments):
    return ["<|channel|>", "commentary", "\u2581to=functions.", name, "\u2581", "<|constrain|>", "json", "<|message|>", *arguments, "<|call|>"]


# What is written, the thought, the text, the calls where the request has tools.
CHANNELS = [(ANALYSIS + FINAL, "Let me think.", "Hi!", 0), (FINAL, "", "Hi!", 0), (["Hi", "!", "</s>"], "", "Hi!", 0),
            (ANALYSIS + channel_call("stop", ["{", "}"]), "Let me think.", "", 1),
            (ANALYSIS + channel_call("stop", ["{\"a\":", "1", "}"]) + ["x"], "Let me think.", "", 1),
            (channel_call("start", ["{", "}"]), "", "{}", 0), (channel_call("stop", ["{"]), "", "{", 0),
            (["<|channel|>", "commentary", "<|message|>", "So", ":", "<|end|>", "<|start|>", "assistant"] + channel_call("stop", ["{", "}"]), "", "So:", 1),
            (ANALYSIS[:5] + ["</s>"], "Let me", "", 0)]


def effort_of_gpt_oss(s):
    """What its template is given: how much to think, and what was thought."""

    def rendered(message, **more):
        ids = s.post("/tokenize", model="demo", messages=[message], **more)["tokens"]
        return s.post("/detokenize", model="demo", tokens=ids)["prompt"].split("<|start|>")[0].removeprefix("<s>")

    user = {"role": "user", "content": "x"}
    assert rendered(user) == "x" and rendered(user, reasoning_effort="low") == "xlow" and rendered(user, reasoning_effort=None) == "x"
    assert rendered(user, reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "high"}) == "xhigh"
    assert rendered({"role": "assistant", "content": "", "reasoning_content": "y"}) == "y"
    raises(openai.BadRequestError, lambda: s.chat(extra_body={"reasoning_effort": 1}), "reasoning_effort")
    answer = s.client.responses.create(model="demo", input="x", reasoning={"effort": "low"}, max_output_tokens=16)
    plain = s.client.responses.create(model="demo", input="x", max_output_tokens=16)
    assert answer.reasoning.effort == "low" and plain.reasoning.effort is None and answer.usage.input_tokens > plain.usage.input_tokens


def channels():
    with tempfile.TemporaryDirectory() as folder:
        for i, (script, thought, text, calls) in enumerate(CHANNELS):
            path = os.path.join(folder, "demo.gguf")
            script_model(path, script)
            chat = subprocess.run([TOOL, "chat", "-m", path, "-n", "60", "--temp", "0", "--quiet"], input="Hello\n", capture_output=True, text=True, timeout=60)
            shown = [part for part in chat.stdout.strip().split("\n\n") if part]
            assert chat.returncode == 0 and shown == [part for part in (thought, text, "{}" * calls) if part] or script in (CHANNELS[4][0], CHANNELS[7][0]), (i, chat)
            with Server(model=path) as s:
                wanted = (thought, text, calls)
                more = dict(tools=TOOLS, max_tokens=100)
                assert whole_thought(s, **more) == wanted == streamed_thought(s, **more), (i, whole_thought(s, **more), streamed_thought(s, **more))
                if calls:
                    answer = s.chat(**more).choices[0]
                    assert answer.finish_reason == "tool_calls" and answer.message.tool_calls[0].function.name == "stop", answer
                plain = whole_thought(s, max_tokens=100)
                assert plain == streamed_thought(s, max_tokens=100) and plain[0] == thought and plain[2] == 0 and plain[1].startswith(text), (i, plain)
                merged = whole_thought(s, extra_body={"reasoning_format": "none"}, max_tokens=100)
                assert merged == ("", thought + plain[1], 0), (i, merged)
                kinds = ["reasoning"] * bool(thought) + ["message"] * bool(text) + ["function_call"] * calls
                answer = same_response(s, tools=[flat(t) for t in TOOLS], max_output_tokens=100)
                assert [item.type for item in answer.output] == kinds or (not kinds and not answer.output_text), (i, answer.output)
                assert answer.output_text == text and (not thought or answer.output[0].content[0].text == thought), (i, answer.output)
                effort_of_gpt_oss(s)
                form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": 1}}}
                answer = s.chat(response_format=form).choices[0]
                assert answer.message.content.strip() == "1", (i, answer)  # what is asked for so is all of the text


def test_thoughts_of_responses(s):
    for text, thought, content, calls in THOUGHTS:
        answer = same_response(s, tools=[flat(t) for t in TOOLS], max_output_tokens=300, extra_body={"guided_choice": [text]})
        kinds = ["reasoning"] * bool(thought) + ["message"] * bool(content) + ["function_call"] * calls
        assert [o.type for o in answer.output] == (kinds or ["message"]), (text, answer.output)
        assert not thought or answer.output[0].content[0].text == thought and answer.output[0].content[0].type == "reasoning_text"
        assert answer.output_text == content


def test_thoughts_of_messages(s):
    for text, thought, content, calls in THOUGHTS:
        answer = message(s, tokens=300, tools=[given(t) for t in TOOLS], guided_choice=[text])
        wanted = [("thinking", thought)] * bool(thought) + [("text", content)] * bool(content) + [("tool_use", "stop", {}, 9)] * calls
        assert plain_blocks(answer) == wanted, (text, answer.content)


# ---- the Responses API

def respond(s, prompt="Hello", **more):
    return s.client.responses.create(**{"model": "demo", "input": prompt, "max_output_tokens": 16, "temperature": 0, **more})


def plain_items(response):
    """A response's output without its ids, which differ from one to the next."""
    items = [item.model_dump() for item in response.output]
    for item in items:
        assert item.pop("id").startswith({"message": "msg_", "function_call": "fc_", "reasoning": "rs_"}[item["type"]])
        if item["type"] == "function_call":
            assert len(item.pop("call_id")) == 9
        item.pop("parsed_arguments", None)
        for part in item.get("content") or []:
            part.pop("parsed", None)
    return items


def streamed_response(s, prompt="Hello", **more):
    """The last event's response, after its events have said the same, in order."""
    items, last = [], None
    for number, event in enumerate(respond(s, prompt, stream=True, **more)):
        assert event.sequence_number == number and (event.type == "response.created") == (number == 0) and last is None, event
        if event.type in ("response.created", "response.in_progress"):
            assert event.response.status == "in_progress" and event.response.output == [] and event.response.usage is None
        elif event.type == "response.output_item.added":
            assert event.output_index == len(items) and event.item.status == "in_progress"
            items.append({"item": event.item, "text": "", "logprobs": [], "done": None})
        elif event.type in ("response.completed", "response.incomplete"):
            last = event.response
        else:
            item = items[-1]
            assert event.output_index == len(items) - 1 and item["done"] is None and getattr(event, "item_id", item["item"].id) == item["item"].id, event
            if event.type.endswith(".delta"):
                item["text"] += event.delta
                item["logprobs"] += getattr(event, "logprobs", [])
            elif event.type in ("response.output_text.done", "response.function_call_arguments.done", "response.reasoning_text.done"):
                assert getattr(event, "text", getattr(event, "arguments", None)) == item["text"]
            elif event.type == "response.content_part.added":
                assert event.part.text == ""
            elif event.type == "response.content_part.done":
                assert event.part.text == item["text"] and len(getattr(event.part, "logprobs", [])) == len(item["logprobs"])
            else:
                assert event.type == "response.output_item.done", event
                item["done"] = event.item
    assert last and [i["done"] for i in items] == last.output and [i["item"].id for i in items] == [o.id for o in last.output]
    return last


def same_response(s, prompt="Hello", **more):
    """A response, which a stream brings as well, and so does the client's helper where it came to its end."""
    whole, streamed = respond(s, prompt, **more), streamed_response(s, prompt, **more)
    assert plain_items(whole) == plain_items(streamed) and whole.status == streamed.status and whole.usage.output_tokens == streamed.usage.output_tokens
    if whole.status == "completed":
        more = {"model": "demo", "input": prompt, "max_output_tokens": 16, "temperature": 0, **more}
        with s.client.responses.stream(**more) as stream:
            for _ in stream:
                pass
            helped = stream.get_final_response()
        assert helped.output_text == whole.output_text and len(helped.output) == len(whole.output)
    return whole


def test_responses(s):
    answer, chat = same_response(s, max_output_tokens=100, instructions="Be brief."), s.client.chat.completions.create(
        model="demo", messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}], temperature=0, max_tokens=100)
    assert answer.output_text == chat.choices[0].message.content and answer.status == "completed" and answer.error is None
    assert answer.id.startswith("resp_") and answer.object == "response" and answer.model == "demo" and answer.instructions == "Be brief."
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (
        chat.usage.prompt_tokens, chat.usage.completion_tokens, chat.usage.total_tokens)
    assert answer.max_output_tokens == 100 and answer.temperature == 0 and answer.tools == [] and answer.tool_choice == "auto"
    short = same_response(s, max_output_tokens=3, metadata={"a": "b"})
    assert short.status == "incomplete" and short.incomplete_details.reason == "max_output_tokens" and short.output[0].status == "incomplete"
    assert short.usage.output_tokens == 3 and short.metadata == {"a": "b"}
    assert respond(s, temperature=1.5, extra_body={"seed": 3}).output_text == s.chat(temperature=1.5, seed=3).choices[0].message.content
    empty = same_response(s, extra_body={"logit_bias": {str(t): 100 for t in range(3)}, "stop_token_ids": [0, 1, 2]})
    assert empty.status == "completed" and empty.output_text == "" and len(empty.output) == 1


def test_responses_logprobs(s):
    more = dict(include=["message.output_text.logprobs"], top_logprobs=3)
    part, chat = same_response(s, **more).output[0].content[0], s.chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert [(p.token, p.logprob, [(t.token, t.logprob) for t in p.top_logprobs]) for p in part.logprobs] == [
        (p.token, p.logprob, [(t.token, t.logprob) for t in p.top_logprobs]) for p in chat]
    assert respond(s).output[0].content[0].logprobs == []


def flat(tool):
    return {"type": "function", "strict": True, **tool["function"]}


def test_responses_input(s):
    """Items become the messages that clients of chat completions send."""
    arguments = json.dumps({"city": "Rome", "days": 2})
    items = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
             {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
             {"type": "reasoning", "id": "rs_1", "summary": []}, {"type": "function_call", "call_id": "a", "name": "weather", "arguments": arguments},
             {"type": "function_call", "call_id": "b", "name": "stop", "arguments": "{}"}, {"type": "function_call_output", "call_id": "a", "output": "sun"},
             {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "done"}]},
             {"type": "function_call", "call_id": "c", "name": "stop", "arguments": "{}"}, {"type": "function_call_output", "call_id": "c", "output": "again"},
             {"role": "user", "content": "Thank you"}]
    def call(id, name, text):
        return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"},
                {"role": "assistant", "content": "Let me see.", "tool_calls": [call("a", "weather", arguments), call("b", "stop", "{}")]},
                {"role": "tool", "tool_call_id": "a", "content": "sun"}, {"role": "tool", "tool_call_id": "b", "content": "done"},
                {"role": "assistant", "content": None, "tool_calls": [call("c", "stop", "{}")]}, {"role": "tool", "tool_call_id": "c", "content": "again"},
                {"role": "user", "content": "Thank you"}]
    answer = respond(s, items, tools=[flat(t) for t in TOOLS])
    chat = s.client.chat.completions.create(model="demo", messages=messages, tools=TOOLS, temperature=0, max_tokens=16)
    assert answer.usage.input_tokens == chat.usage.prompt_tokens and answer.output_text == chat.choices[0].message.content
    again = respond(s, items + [o.model_dump(exclude_unset=True) for o in answer.output] + [{"role": "user", "content": "And?"}])
    assert again.usage.input_tokens > answer.usage.input_tokens


def test_responses_calls(s):
    tools, bias = [flat(t) for t in TOOLS], closing(s)
    ended = 0
    for seed in range(8):
        chosen = {"type": "function", "name": TOOLS[seed % 3]["function"]["name"]}
        for choice in ("required", chosen):
            more = dict(tools=tools, tool_choice=choice, max_output_tokens=200, temperature=1.5, extra_body={"seed": seed, "logit_bias": bias})
            answer = same_response(s, **more)
            calls = [(o.name, o.arguments) for o in answer.output if o.type == "function_call" and o.status == "completed"]
            check_arguments([(name, json.loads(text)) for name, text in calls])
            assert answer.status == "incomplete" or calls and (choice == "required" or [name for name, _ in calls] == [chosen["name"]])
            ended += answer.status == "completed"
    assert ended > 3, ended
    call = '{"name": "weather", "arguments": {"city": "K\u00f6ln <b>", "days": 2}}'
    for text, content, names in ((f"Let me see.\n<tool_call>{call}</tool_call>\n<tool_call>{call}</tool_call>", ["Let me see.\n"], ["weather", "weather"]),
                                 (call, [], ["weather"]), (f"<tool_call>{call}</tool_call> and <tool", [" and <tool"], ["weather"]), ("no call", ["no call"], [])):
        answer = same_response(s, tools=tools, max_output_tokens=300, extra_body={"guided_choice": [text]})
        assert [o.content[0].text for o in answer.output if o.type == "message"] == content and answer.status == "completed"
        assert [o.name for o in answer.output if o.type == "function_call"] == names
        assert all(json.loads(o.arguments) == {"city": "K\u00f6ln <b>", "days": 2} for o in answer.output if o.type == "function_call")
    cut = same_response(s, tools=tools, max_output_tokens=4, tool_choice={"type": "function", "name": "weather"})
    assert cut.status == "incomplete" and cut.output[0].type == "function_call" and cut.output[0].status == "incomplete"


def test_responses_json(s):
    form = {"format": {"type": "json_schema", "name": "a", "schema": SCHEMAS[2], "strict": True}}
    jsonschema.validate(json.loads(same_response(s, text=form, max_output_tokens=300).output_text), SCHEMAS[2])
    assert respond(s, text={"format": {"type": "text"}, "verbosity": "low"}).output_text == respond(s).output_text


def test_responses_lines(s):
    """A body of many lines comes back in events of one line."""
    body = json.dumps({"input": "Hello", "stream": True, "max_output_tokens": 3, "tools": [flat(t) for t in TOOLS], "metadata": {"a\n": "b\r\n"}}, indent=2).replace("\n", "\r\n")
    request = urllib.request.Request(s.url + "/v1/responses", body.encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        events = answer.read().decode().split("\n\n")
    assert events.pop() == "" and all(e.count("\n") == 1 and "\r" not in e for e in events)
    first = json.loads(events[0].split("\ndata: ")[1])["response"]
    assert first["tools"] == [flat(t) for t in TOOLS] and first["metadata"] == {"a\n": "b\r\n"}


def test_responses_refused(s):
    for more, part in ((dict(input=7), "input must be"), (dict(input=[]), "input must be"), (dict(input=[7]), "role"), (dict(input=[{"role": "tool", "content": "a"}]), "role"),
                       (dict(input=[{"role": "user"}]), "no content"), (dict(input=[{"type": "item_reference", "id": "a"}]), "item_reference"),
                       (dict(input=[{"type": "function_call", "call_id": "a", "name": "f"}]), "arguments"),
                       (dict(input=[{"type": "function_call_output", "output": "a"}]), "call_id"),
                       (dict(input=[{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]), "type text"),
                       (dict(previous_response_id="resp_1"), "keeps nothing"), (dict(conversation="conv_1"), "keeps nothing"), (dict(background=True), "background"),
                       (dict(max_output_tokens=0), "max_output_tokens is 0"), (dict(tools=[{"type": "web_search"}]), "type that"), (dict(tools=[{"type": "custom", "name": "a"}]), "type that"), (dict(instructions=7), "instructions"),
                       (dict(tool_choice="required"), "needs tools"), (dict(tools=[flat(TOOLS[0])], tool_choice={"type": "function", "name": "x"}), "not in tools"),
                       (dict(tools=[flat(TOOLS[0])], tool_choice={"type": "allowed_tools", "mode": "auto", "tools": []}), "tool_choice must be"),
                       (dict(text={"format": {"type": "grammar"}}), "text.format.type"), (dict(text={"format": {"type": "json_schema", "name": "a"}}), "schema"),
                       (dict(metadata={"a": "b" * (5 << 20)}), "come back"), (dict(input="word " * 3000), "context"), (dict(top_logprobs=1000), "top_logprobs"), (dict(model="other"), "other")):
        raises(openai.NotFoundError if "model" in more else openai.BadRequestError, lambda: respond(s, **more), part)


# ---- Anthropic's Messages API

def message(s, messages="Hello", tokens=16, **more):
    """A message, whole and streamed. Fields that the client does not name go into the body as they are."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    named = {k: more.pop(k) for k in ("system", "tools", "tool_choice", "stop_sequences", "output_config") if k in more}
    named.update(model=more.pop("model", "demo"), messages=messages, max_tokens=tokens, extra_body={"temperature": 0, **more})
    whole, blocks, text = s.anthropic.messages.create(**named), [], ""
    with s.anthropic.messages.stream(**named) as stream:
        for event in stream:
            if event.type == "content_block_start":
                assert event.index == len(blocks)
                blocks.append("")
            elif event.type == "content_block_delta":
                assert event.index == len(blocks) - 1
                blocks[-1] += getattr(event.delta, {"text_delta": "text", "thinking_delta": "thinking"}.get(event.delta.type, "partial_json"))
        last = stream.get_final_message()
    assert (last.stop_reason, last.stop_sequence, last.usage.output_tokens) == (whole.stop_reason, whole.stop_sequence, whole.usage.output_tokens)
    assert whole.type == "message" and whole.role == "assistant" and whole.id.startswith("msg_")
    assert plain_blocks(last) == plain_blocks(whole) or (whole.stop_reason == "max_tokens" and last.content[-1].type == "tool_use")  # cut off: the client guesses
    for block, came in zip(whole.content, blocks):
        assert getattr(block, block.type) == came if block.type != "tool_use" else whole.stop_reason == "max_tokens" or block.input == json.loads(came)
    return whole


def plain_blocks(answer):
    return [(b.type, b.name, b.input, len(b.id)) if b.type == "tool_use" else (b.type, getattr(b, b.type)) for b in answer.content]


def input_tokens(answer):
    return answer.usage.input_tokens + answer.usage.cache_read_input_tokens


def test_messages(s):
    more = dict(model="demo", messages=[{"role": "system", "content": "Be brief.\nBe kind."}, {"role": "user", "content": "Hello"}], temperature=0)
    chat = s.client.chat.completions.create(**more, max_tokens=100)
    for system in ("Be brief.\nBe kind.", [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "Be kind."}]):
        answer = message(s, tokens=100, system=system)
        assert plain_blocks(answer) == [("text", chat.choices[0].message.content)] and answer.stop_reason == "end_turn" and answer.model == "demo"
        assert (input_tokens(answer), answer.usage.output_tokens) == (chat.usage.prompt_tokens, chat.usage.completion_tokens)
        assert s.anthropic.messages.count_tokens(model="demo", messages=more["messages"][1:], system=system).input_tokens == chat.usage.prompt_tokens
    text = chat.choices[0].message.content
    assert message(s, tokens=3).stop_reason == "max_tokens"
    stopped = message(s, tokens=100, system="Be brief.\nBe kind.", stop_sequences=["nowhere", text[5:9], text[6:9]])
    assert (stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text) == ("stop_sequence", text[5:9], text[:5])
    assert message(s, tokens=100, stop_sequences=["nowhere"]).stop_reason == "end_turn"
    long = "A word of many more. " * 20
    message(s, long)
    cached, chat = message(s, long), s.chat(long)
    assert cached.usage.cache_read_input_tokens > 0 and input_tokens(cached) == chat.usage.prompt_tokens
    begun = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "I am"}]
    on = s.client.chat.completions.create(model="demo", messages=begun, temperature=0, max_tokens=16,
                                          extra_body={"continue_final_message": True, "add_generation_prompt": False})
    assert message(s, begun).content[0].text == on.choices[0].message.content
    assert message(s, temperature=1.5, seed=3).content[0].text == s.chat(temperature=1.5, seed=3).choices[0].message.content
    assert message(s, logit_bias={str(t): 100 for t in range(3)}, stop_token_ids=[0, 1, 2]).content == []


def given(tool):
    return {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}


def test_messages_input(s):
    """Blocks become the messages that clients of chat completions send."""
    blocks = [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]},
              {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "y"}, {"type": "text", "text": "Let me see."},
                                                {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome", "days": 2}},
                                                {"type": "tool_use", "id": "b", "name": "stop", "input": {}}]},
              {"role": "user", "content": [{"type": "text", "text": "Thank you"}, {"type": "tool_result", "tool_use_id": "a", "content": "sun"},
                                           {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "done"}], "is_error": True}]},
              {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "stop", "input": {}}]},
              {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}]
    def call(id, name, text):
        return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}
    messages = [{"role": "user", "content": "Hel\nlo"},
                {"role": "assistant", "content": "Let me see.", "tool_calls": [call("a", "weather", '{"city":"Rome","days":2}'), call("b", "stop", "{}")]},
                {"role": "tool", "tool_call_id": "a", "content": "sun"}, {"role": "tool", "tool_call_id": "b", "content": "done"},
                {"role": "user", "content": "Thank you"}, {"role": "assistant", "content": None, "tool_calls": [call("c", "stop", "{}")]},
                {"role": "tool", "tool_call_id": "c", "content": ""}]
    answer = message(s, blocks, tools=[given(t) for t in TOOLS])
    chat = s.client.chat.completions.create(model="demo", messages=messages, tools=TOOLS, temperature=0, max_tokens=16)
    assert input_tokens(answer) == chat.usage.prompt_tokens and answer.content[0].text == chat.choices[0].message.content
    assert s.anthropic.messages.count_tokens(model="demo", messages=blocks, tools=[given(t) for t in TOOLS]).input_tokens == chat.usage.prompt_tokens
    again = message(s, blocks + [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "And?"}])
    assert input_tokens(again) > input_tokens(answer)


def test_messages_calls(s):
    tools, bias, ended = [given(t) for t in TOOLS], closing(s), 0
    for seed in range(8):
        chosen = {"type": "tool", "name": TOOLS[seed % 3]["function"]["name"]}
        for choice in ({"type": "any"}, {"type": "any", "disable_parallel_tool_use": True}, chosen):
            answer = message(s, tokens=200, tools=tools, tool_choice=choice, temperature=1.5, seed=seed, logit_bias=bias)
            if answer.stop_reason == "max_tokens":
                continue
            assert answer.stop_reason == "tool_use" and answer.content and all(b.type == "tool_use" for b in answer.content), answer
            check_arguments([(b.name, b.input) for b in answer.content])
            assert len(answer.content) == 1 or choice == {"type": "any"}
            assert choice["type"] == "any" or answer.content[0].name == chosen["name"]
            ended += 1
    assert ended > 5, ended
    call = '{"name": "weather", "arguments": {"city": "K\u00f6ln <b>", "days": 2}}'
    use = ("tool_use", "weather", {"city": "K\u00f6ln <b>", "days": 2}, 9)
    for text, expected, reason in ((f"Let me see.\n<tool_call>{call}</tool_call>\n<tool_call>{call}</tool_call>", [("text", "Let me see.\n"), use, use], "tool_use"),
                                   (call, [use], "tool_use"), (f"<tool_call>{call}</tool_call> and <tool", [use, ("text", " and <tool")], "tool_use"),
                                   ("no call", [("text", "no call")], "end_turn")):
        answer = message(s, tokens=300, tools=tools, guided_choice=[text])
        assert plain_blocks(answer) == expected and answer.stop_reason == reason, answer
    assert plain_blocks(message(s, tokens=300, tools=tools, tool_choice={"type": "none"}, guided_choice=[call])) == [("text", call)]
    never = {str(s.post("/tokenize", prompt="]", add_special_tokens=False)["tokens"][-1]): -100}
    for single in (False, True):
        endless = message(s, tokens=400, tools=[given(function("f", a={"const": 1}))], tool_choice={"type": "any", "disable_parallel_tool_use": single}, logit_bias=never)
        assert (len(endless.content), endless.stop_reason) == (1, "tool_use") if single else len(endless.content) > 1 and endless.stop_reason == "max_tokens"
    cut = message(s, tokens=4, tools=tools, tool_choice={"type": "tool", "name": "weather"})
    assert cut.stop_reason == "max_tokens" and plain_blocks(cut) == [("tool_use", "weather", {}, 9)]


def test_messages_json(s):
    form = {"format": {"type": "json_schema", "schema": SCHEMAS[2]}}
    jsonschema.validate(json.loads(message(s, tokens=300, output_config=form).content[0].text), SCHEMAS[2])


def test_messages_refused(s):
    user = [{"role": "user", "content": "Hello"}]
    for more, part in ((dict(messages=[]), "at least one"), (dict(messages=[{"role": "system", "content": "a"}]), "role"), (dict(messages=[{"role": "user"}]), "no content"),
                       (dict(messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "a"}}]}]), "type text"),
                       (dict(messages=[{"role": "user", "content": [{"type": "tool_result", "content": "a"}]}]), "tool_use_id"),
                       (dict(messages=[{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": "x"}]}]), "as input"),
                       (dict(tools=[{"type": "web_search_20250305", "name": "web_search"}]), "type that"), (dict(system=7), "system"),
                       (dict(tool_choice={"type": "any"}), "needs tools"), (dict(tool_choice={"type": "x"}), "tool_choice must be"),
                       (dict(tools=[given(TOOLS[0])], tool_choice={"type": "tool", "name": "x"}), "not in tools"),
                       (dict(output_config={"format": {"type": "grammar"}}), "json_schema"), (dict(messages=[{"role": "user", "content": "word " * 3000}]), "context"),
                       (dict(temperature=-1), "temperature"), (dict(model="other"), "other")):
        error = raises(anthropic.NotFoundError if "model" in more else anthropic.BadRequestError, lambda: message(s, **{"messages": user, **more}), part)
        assert error.body["type"] == "error" and error.body["error"]["type"] == ("not_found_error" if "model" in more else "invalid_request_error")
        if part != "context": # which only what is generated needs
            fields = {"model": "demo", "messages": user, **more}
            raises(anthropic.APIStatusError, lambda: s.anthropic.messages.count_tokens(
                **{k: v for k, v in fields.items() if k != "temperature"}, extra_body={"temperature": fields.get("temperature", 0)}), part)


# ---- answers that must be JSON

SCHEMAS = [
    {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"],
     "additionalProperties": False},
    {"type": "object", "properties": {"colour": {"enum": ["red", "reddish", "blue", 5, 55, None, True]}, "n": {"type": "number"},
                                      "nameless": {"type": "boolean"}, "name": {"type": ["string", "null"]}}, "required": ["name"]},
    {"type": "array", "items": {"enum": [1, 12, 123]}, "minItems": 2, "maxItems": 4},
    {"$defs": {"Point": {"type": "object", "title": "Point", "properties": {"x": {"type": "integer"}, "y": {"$ref": "#/$defs/Y"}},
                         "required": ["x", "y"]}, "Y": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}},
     "type": "object", "properties": {"points": {"type": "array", "items": {"$ref": "#/$defs/Point"}, "maxItems": 2},
                                      "kind \"\u00e9\"": {"const": "line"}}, "required": ["points", "kind \"\u00e9\""]},
    {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
     "required": ["value", "next"]},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"anyOf": [{"type": "string"}, {"type": "integer"}, {"enum": [True]}]},
    # what pydantic makes of optional, referenced and literal fields
    {"definitions": {"Kind": {"title": "Kind", "description": "a kind", "enum": ["a", "b"], "type": "string"},
                     "A/B": {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}},
     "type": "object", "title": "Answer", "required": ["kind", "pair", "one", "maybe"], "additionalProperties": True,
     "properties": {"kind": {"title": "Kind", "default": "a", "allOf": [{"$ref": "#/definitions/Kind"}]},
                    "pair": {"$ref": "#/definitions/A~1B", "description": "both", "default": None},
                    "one": {"const": "x", "enum": ["x"], "title": "One", "type": "string"},
                    "maybe": {"anyOf": [{"$ref": "#/definitions/Kind"}, {"type": "null"}], "default": None, "type": ["string", "null"]}}},
    {"oneOf": [{"type": "integer", "enum": [1, 2.5, "three"]}, {"const": "four"}]},
    # and of limits, tuples and unions of models, told apart by a field or not at all
    {"type": "object", "required": ["age", "share", "code", "word"], "properties": {
        "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 130}, "share": {"type": "number", "minimum": -0.5, "maximum": 1},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d{1,4}$"}, "word": {"type": "string", "minLength": 2, "maxLength": 5}}},
    {"type": "array", "minItems": 3, "maxItems": 3, "prefixItems": [{"type": "integer", "exclusiveMinimum": -100, "maximum": -7}, {"type": "boolean"},
                                                                    {"type": "string", "format": "date"}]},
    {"$defs": {"Cat": {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer", "maximum": 9, "minimum": 0}},
                       "required": ["kind", "lives"]},
               "Dog": {"type": "object", "properties": {"kind": {"enum": ["dog", "cub"]}, "name": {"type": "string", "maxLength": 8}},
                       "required": ["kind", "name"]}},
     "type": "array", "minItems": 2, "maxItems": 3,
     "items": {"discriminator": {"propertyName": "kind"}, "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}},
    {"oneOf": [{"type": "object", "properties": {"kind": {"const": kind, "default": kind, "type": "string"}, field: {"type": "integer"}}}
               for kind, field in (("cat", "lives"), ("dog", "name"))], "discriminator": {"propertyName": "kind"}},
    {"anyOf": [{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["a", "b"], "additionalProperties": False},
               {"type": "object", "properties": {"a": {"type": "number"}, "c": {"type": "null"}}, "required": ["c"], "additionalProperties": False},
               {"type": "array", "items": {"type": "integer"}, "maxItems": 2}, {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}]},
]

# vLLM's regular expressions, which are Python's: answers that are not JSON
EXPRESSIONS = [r"(yes|no), \d{1,3}( [a-z]+){1,2}\.", r"[^\W\d_]{3}\n?", r"\d{4}-\d{2}-\d{2}", "(caf\u00e9|\u20ac+|[\u3041-\u3043]{2})!"]


def closing(s):
    """The model tells stories: this leads it to the ends of strings, lists and objects."""
    tokens = [s.post("/tokenize", prompt=c, add_special_tokens=False)["tokens"][-1] for c in '"}]']
    return {str(t): 8 for t in tokens}


def json_answer(s, schema, seed, **more):
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    return s.chat("Hello", response_format=form, max_tokens=400, temperature=1.5, seed=seed, **more).choices


def test_json_schema(s):
    ended, bias = 0, closing(s)
    for schema in SCHEMAS:
        for seed in range(12):
            for choice in json_answer(s, schema, seed, n=2, logit_bias=bias if seed % 2 else {}):
                if choice.finish_reason == "stop":
                    jsonschema.validate(json.loads(choice.message.content), schema)
                    ended += 1
    assert ended > 100, f"{ended} answers came to their end"
    print(f"    {ended} of {24 * len(SCHEMAS)} answers came to their end")
    text = "".join(c.choices[0].delta.content or "" for c in s.chat(
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMAS[2]}}, max_tokens=300, stream=True))
    jsonschema.validate(json.loads(text), SCHEMAS[2])


def test_texts(s):
    ended = 0
    for expression in EXPRESSIONS:
        for seed in range(12):
            for choice in s.chat("Hello", extra_body={"structured_outputs": {"regex": expression}}, max_tokens=60, temperature=1.5, seed=seed, n=2).choices:
                if choice.finish_reason == "stop":
                    assert re.fullmatch(expression, choice.message.content, re.ASCII), choice.message.content
                    ended += 1
    assert ended > 60, f"{ended} answers came to their end"
    words = {s.chat("Hello", extra_body={"guided_choice": ["yes", "no", "yes, or no"]}, temperature=1.5, seed=seed).choices[0].message.content for seed in range(20)}
    assert words <= {"yes", "no", "yes, or no"} and len(words) > 1, words


def test_json_object(s):
    ended, bias = 0, closing(s)
    for seed in range(20):
        choice = s.chat(response_format={"type": "json_object"}, max_tokens=300, temperature=1.0, seed=seed, logit_bias=bias).choices[0]
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
            ended += 1
    assert ended > 0
    assert s.chat(response_format={"type": "text"}).choices[0].message.content == s.chat().choices[0].message.content


def test_json_refused(s):
    for schema, part in (({"type": "string", "pattern": "(?=a)a+"}, "pattern"), ({"type": "array", "uniqueItems": True}, "uniqueItems"), ({"type": "strange"}, "no such type"), ({"$ref": "#"}, "deep"),
                         ({"$ref": "#/x"}, "nowhere"), ({"anyOf": [{"$ref": "#"}]}, "itself"), ({"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "itself"),
                         ([], "object"),
                         ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "same type"),
                         ({"type": "object", "required": ["x"]}, "required"), ({"allOf": [{}, {}]}, "allOf"),
                         ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False,
                           "allOf": [{"type": "object"}]}, "beside allOf"),
                         ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "anyOf": [{"type": "array"}]}, "beside anyOf"),
                         ({"$defs": {"A": {"type": "array", "items": {"type": "boolean"}}}, "$ref": "#/$defs/A", "minItems": 3, "maxItems": 3},
                          "beside $ref"),
                         ({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a", "b"]}, "required names 'b'"),
                         ({"properties": {f"p{i}": {"$ref": "#/$defs/z"} for i in range(200)},
                           "$defs": {**{f"k{i}": True for i in range(100000)}, "z": {"type": "integer"}}}, "too many $refs")):
        raises(openai.BadRequestError, lambda: json_answer(s, schema, 1), part)
    raises(openai.BadRequestError, lambda: s.chat(response_format={"type": "xml"}), "response_format")
    raises(openai.BadRequestError, lambda: s.chat(response_format={"type": "json_schema"}), "schema")


# ---- the rest


def test_models(s):
    assert [m.id for m in s.client.models.list()] == ["demo"]
    assert s.client.models.retrieve("demo").id == "demo"
    raises(openai.NotFoundError, lambda: s.client.models.retrieve("other"))


def test_errors(s):
    error = raises(openai.NotFoundError, lambda: s.client.completions.create(model="gpt-4", prompt="x"))
    assert error.code == "model_not_found" and error.type == "invalid_request_error" and error.param == "model"
    assert raises(openai.BadRequestError, lambda: s.complete(n=0)).param == "n"
    assert raises(openai.BadRequestError, lambda: s.complete([1] * 2000)).code == "context_length_exceeded"
    raises(openai.BadRequestError, lambda: s.complete(temperature=-1))
    raises(openai.BadRequestError, lambda: s.complete([10 ** 8]))
    raises(openai.BadRequestError, lambda: s.complete([]))
    assert raises(openai.BadRequestError, lambda: s.complete(logit_bias={"99999": 1})).param == "logit_bias"
    assert raises(openai.BadRequestError, lambda: s.complete(extra_body={"stop_token_ids": [99999]})).param == "stop_token_ids"
    raises(openai.BadRequestError, lambda: s.complete(["x"] * 257, max_tokens=1), "--max-queue")
    assert len(s.complete(["x"] * 256, max_tokens=1).choices) == 256


def test_priority(s):
    assert s.complete(extra_body={"priority": -5}).choices[0].text == s.complete(extra_body={"priority": 100}).choices[0].text


def test_prefix_cache(s):
    text = "The sun was warm and the birds sang. " * 12
    s.complete(text, max_tokens=1)
    again = s.complete(text, max_tokens=1)
    assert again.usage.prompt_tokens_details.cached_tokens > again.usage.prompt_tokens // 2


def test_concurrent(s):
    """Forty at once, streams and not: each gets what it gets alone."""
    prompts = [f"The {animal} had {n} apples" for animal in ("dog", "cat", "fox", "girl") for n in range(10)]
    alone = {p: s.complete(p, max_tokens=24).choices[0].text for p in prompts}

    async def one(client, prompt, stream):
        answer = await client.completions.create(model="demo", prompt=prompt, max_tokens=24, temperature=0, stream=stream)
        return "".join([c.choices[0].text async for c in answer]) if stream else answer.choices[0].text

    async def all_of():
        async with openai.AsyncOpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, p, i % 2 == 0) for i, p in enumerate(prompts)))

    assert asyncio.run(all_of()) == [alone[p] for p in prompts]


def test_metrics(s):
    before = s.metrics()
    s.complete([PROMPT, "The little dog"], n=2, max_tokens=8)
    after = s.metrics()

    def more(*name):
        return after[name] - before[name]
    assert more("vllm:request_success_total", ("finished_reason", "length")) == 4
    assert more("vllm:generation_tokens_total") == 32
    for name, count in (("time_to_first_token_seconds", 4), ("inter_token_latency_seconds", 28), ("e2e_request_latency_seconds", 4),
                        ("time_per_output_token_seconds", 28), ("request_queue_time_seconds", 4),
                        ("request_prefill_time_seconds", 4), ("request_decode_time_seconds", 4),
                        ("request_inference_time_seconds", 4), ("request_prompt_tokens", 4), ("request_params_n", 1),
                        ("request_generation_tokens", 4), ("request_params_max_tokens", 1)):
        assert more(f"vllm:{name}_count") == count, name
        assert more(f"vllm:{name}_bucket", ("le", "+Inf")) == count, name
    assert more("vllm:request_generation_tokens_sum") == 32
    assert more("vllm:iteration_tokens_total_sum") == more("vllm:prompt_tokens_total") + 28
    assert after[("vllm:num_requests_running",)] == 0 and after[("vllm:num_requests_waiting",)] == 0
    assert after[("vllm:kv_cache_usage_perc",)] == after[("vllm:gpu_cache_usage_perc",)] == 0
    kinds = {f.name: f.type for f in text_string_to_metric_families(s.get("/metrics"))}
    assert kinds["vllm:num_requests_running"] == "gauge" and kinds["vllm:time_to_first_token_seconds"] == "histogram"
    assert kinds["vllm:prompt_tokens"] == "counter" and kinds["vllm:prefix_cache_hits"] == "counter"


def with_key():
    with Server("--api-key", "secret") as s:
        raises(openai.AuthenticationError, s.client.models.list)
        right = openai.OpenAI(base_url=s.url + "/v1", api_key="secret", max_retries=0)
        assert right.models.list().data[0].id == "demo"
        more = dict(model="demo", messages=[{"role": "user", "content": "Hello"}], max_tokens=1)
        raises(anthropic.AuthenticationError, lambda: s.anthropic.messages.create(**more))
        for key in ({"api_key": "secret"}, {"api_key": None, "auth_token": "secret"}):
            assert anthropic.Anthropic(base_url=s.url, max_retries=0, **key).messages.create(**more).stop_reason == "max_tokens"


def odd_name():
    name = "org/m\u00f3del 7%"
    with Server("--alias", name) as s:
        assert [m.id for m in s.client.models.list()] == [name] and s.client.models.retrieve(name).id == name
        for body in ({"model": name}, {"model": name[:-1]}):
            text = json.dumps({**body, "prompt": "x", "max_tokens": 1}).replace("/", "\\/")
            request = urllib.request.Request(s.url + "/v1/completions", text.encode())
            try:
                answer = urllib.request.urlopen(request, timeout=30)
            except urllib.error.HTTPError as error:
                answer = error
            assert answer.status == (200 if body["model"] == name else 404), body


def long_prompt():
    """While a prompt of 32k tokens is processed, /health and /metrics answer, who was being answered goes on, and short prompts
    that come later are answered first."""
    with Server("-c", "33000", "--max-seqs", "4") as s:
        times, arrivals = {}, []

        def stream():
            for _ in s.complete(max_tokens=3000, stream=True, extra_body={"ignore_eos": True}):
                arrivals.append(time.perf_counter())

        def long():
            times["begin"] = time.perf_counter()
            assert s.complete([5 + i % 1000 for i in range(32768)], max_tokens=1).usage.prompt_tokens == 32768
            times["end"] = time.perf_counter()

        def short():
            while threads[1].is_alive():
                start = time.perf_counter()
                s.complete(f"{len(shorts)} little dogs", max_tokens=1)
                shorts.append(time.perf_counter() - start)
                time.sleep(0.05)
        threads, shorts = [threading.Thread(target=f) for f in (stream, long, short)], []
        threads[0].start()
        while len(arrivals) < 20:
            time.sleep(0.001)
        threads[1].start()
        threads[2].start()
        waits = []
        while threads[1].is_alive():
            start = time.perf_counter()
            s.get("/health" if len(waits) % 2 else "/metrics")
            waits.append(time.perf_counter() - start)
            time.sleep(0.01)
        threads[0].join()
        threads[2].join()
        assert "end" in times, "the long prompt was not answered"
        beside = [t for t in arrivals if times["begin"] < t < times["end"]]
        gaps = [b - a for a, b in zip(beside, beside[1:])]
        assert len(beside) > 20, f"the long prompt held up the others: {len(beside)} tokens"
        assert len(shorts) > 4, f"the long prompt held up the short ones: {len(shorts)}"
        print(f"    a 32k prompt, {times['end'] - times['begin']:.1f} s: /health, /metrics {max(waits) * 1e3:.1f} ms at most of "
              f"{len(waits)}; beside it {len(beside)} tokens of another, {max(gaps) * 1e3:.0f} ms apart at most; {len(shorts)} short prompts, "
              f"{max(shorts) * 1e3:.0f} ms at most")


def main():
    tests = [(name[5:], test) for name, test in globals().items() if name.startswith("test_")]
    passed = failed = 0
    with Server() as s:
        runs = [(name, lambda test=test: test(s)) for name, test in tests] + [("channels", channels), ("key", with_key), ("odd name", odd_name),
                                                                             ("long prompt", long_prompt)]
        for name, run in runs:
            if len(sys.argv) > 1 and not any(word in name for word in sys.argv[1:]):
                continue
            try:
                run()
                passed += 1
                print("ok     ", name, flush=True)
            except Exception:
                failed += 1
                print("FAILED ", name)
                traceback.print_exc(file=sys.stdout)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
