#!/usr/bin/env python3
"""Compares chat templates rendered by fastgen.h with transformers' own renderer (jinja2).

    check_chat.py                       our templates and conversations in tests/golden/chat/, and their golden file
    check_chat.py --write               writes the golden file (tests/golden/chat/expected.json)
    check_chat.py --templates DIR       all *.jinja in DIR with the same conversations
    check_chat.py --random N [--seed S] N random templates, also whether they fail

It needs transformers and jinja2, and build/chat: ./build.sh chat (--tool names another).
"""
import argparse
import glob
import json
import os
import random
import re
import resource
import subprocess
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template  # noqa: E402

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden", "chat")
TEXTS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class Tool:
    """The C side: one request a line."""

    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("the tool died on %s" % json.dumps(request))
        return json.loads(line)


def reference(template, case):
    """What transformers makes of a conversation: a text, or an exception."""
    options = dict(case.get("options") or {})
    options.setdefault("add_generation_prompt", True)
    try:
        return render_jinja_template([case["messages"]], chat_template=template, **dict(TEXTS, **options))[0][0]
    except Exception as e:
        return e


def ours(tool, template, case):
    options = case.get("options")
    return tool({"template": template, "messages": json.dumps(case["messages"]), "texts": TEXTS,
                 "options": json.dumps(options) if options is not None else None})


def differs(name, want, got, verbose=True):
    """Reports a difference; an error only has to be an error."""
    if isinstance(want, Exception):
        same = "error" in got
    else:
        same = got.get("text") == want
    if not same and verbose:
        print("DIFFERENT: %s\n  wanted %r\n  got    %r" % (name, want, got))
    return not same


def read_templates(directory):
    for path in sorted(glob.glob(os.path.join(directory, "*.jinja"))):
        with open(path, newline="", encoding="utf-8") as file:
            yield os.path.basename(path)[:-len(".jinja")], file.read()


def check_directory(tool, directory, cases, golden=None):
    n = bad = errors = 0
    expected = {}
    for name, template in read_templates(directory):
        expected[name] = {}
        for case_name, case in cases.items():
            want = reference(template, case)
            expected[name][case_name] = None if isinstance(want, Exception) else want
            if tool:
                n += 1
                errors += isinstance(want, Exception)
                bad += differs("%s, %s" % (name, case_name), want, ours(tool, template, case))
    if golden is not None and golden != expected:
        print("DIFFERENT: expected.json is not what transformers makes of the templates")
        bad += 1
    return n, bad, errors, expected


# ---------------------------------------------------------------------------------------------------
# Random templates
# ---------------------------------------------------------------------------------------------------

VARIABLES = {
    "s": "Hello, World", "t": "  \tpadded\n ", "u": "naïve Ωmega £5 日本語 🎉 straße", "e": "", "digits": "0042",
    "lines": "one\ntwo\r\nthree\n\nfive", "quote": "it's \"quoted\" \\ <b>&amp;</b>",
    "i": 7, "z": 0, "neg": -13, "big": 1234567, "f": 2.5, "g": -0.1, "h": 1e20, "yes": True, "no": False, "nil": None,
    "list": [3, 1, 2], "words": ["pear", "Apple", "fig", "apple"], "empty": [], "mixed": [1, "a", None, 2.0, True],
    "nested": [[1, 2], [3], []], "d": {"b": 1, "a": [1, 2], "C": {"x": "y"}, "items": 5}, "nothing": {},
    "people": [{"name": "Bob", "age": 30, "tags": ["x"]}, {"name": "alice", "age": 25, "tags": []},
               {"name": "Carol", "age": 30}],
    "messages": [{"role": "user", "content": "Hi <there>"}, {"role": "assistant", "content": "Hello!\n"},
                 {"role": "user", "content": ""}],
}
VARIABLES_TEXT = json.dumps(VARIABLES)
NAMES = list(VARIABLES) + ["x", "y", "missing"]
FILTERS = ["trim", "length", "count", "tojson", "join(', ')", "join", "upper", "lower", "title", "capitalize", "default('q')",
           "d('q', true)", "first", "last", "list", "map('upper')|list", "map(attribute='name')|list",
           "map(attribute='age', default=1)|list", "select|list", "select('odd')|list", "select('string')|list",
           "reject('none')|list", "selectattr('age')|list", "selectattr('age', 'equalto', 30)|list",
           "selectattr('tags', 'defined')|map(attribute='name')|join('-')", "rejectattr('age', 'gt', 26)|list",
           "replace('l', 'L')", "replace('', '.')", "replace('o', '0', 1)", "string", "int", "int(5)", "int(0, 16)", "float",
           "abs", "round", "round(1)", "round(1, 'floor')", "round(2, 'ceil')", "sort", "sort(reverse=true)",
           "sort(attribute='age')", "sort(attribute='age,name')", "sort(case_sensitive=true)", "unique|list", "reverse|list",
           "dictsort", "dictsort(by='value')", "items|list", "indent", "indent(2, true)", "indent('> ', blank=true)", "safe",
           "escape", "e", "min", "max", "sum", "sum(attribute='age')", "batch(2)|list", "batch(2, 0)|list", "slice(2)|list",
           "wordcount", "format(1, 2)", "groupby('age')|list", "center(20)", "truncate(8)", "truncate(9, true, '…', 0)",
           "attr('x')", "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(separators=(',', ':'), sort_keys=true)",
           "map('length')|list", "map('int')|sum", "trim('H ')", "string|length", "forceescape", "max(attribute='age')"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable",
         "true", "false", "even", "odd", "divisibleby 3", "divisibleby(2)", "equalto 7", "eq 7", "== 'a'", "ne 1", "lt 3",
         "gt(2)", "ge 7", "le 2.5", "in [7, 'a']", "in list", "callable", "lower", "upper", "sameas true", "escaped", "filter",
         "test"]
METHODS = ["strip()", "strip('Hd')", "lstrip()", "rstrip()", "split()", "split('l')", "split(',', 1)", "rsplit(None, 1)",
           "rsplit('l', 1)", "splitlines()", "splitlines(true)", "startswith('Hel')", "endswith(('d', 'x'))", "replace('l', '')",
           "upper()", "lower()", "title()", "capitalize()", "swapcase()", "find('o')", "find('o', 5)", "rfind('o')", "count('l')",
           "index('o')", "removeprefix('Hello')", "removesuffix('World')", "isdigit()", "isalpha()", "isalnum()", "isspace()",
           "isupper()", "islower()", "istitle()", "isidentifier()", "format_map(d)", "join(words)",
           "join(['a', 'b'])", "format(1, x=2)", "center(15, '*')", "ljust(15)",
           "rjust(15, '.')", "zfill(9)", "partition(',')", "rpartition('o')", "expandtabs(4)", "keys()|list", "values()|list",
           "items()|list", "get('a')", "get('q', 3)", "get('C').x", "index(1)", "count(1)", "append(1)", "update({})", "copy()",
           "a", "b", "C", "items", "name", "real_missing"]
LITERALS = ["0", "1", "2", "-1", "3.5", "1e3", "1_000", "0x1F", "''", "'a'", "\"it's\"", "'x\\ny'", "'é'", "true", "false", "none",
            "[]", "[1, 2, 3]", "['a', 'b']", "(1, 2)", "()", "(1,)", "{}", "{'a': 1}", "{1: 'x', 'k': [2]}", "'%s-%d'", "'{}:{x}'",
            "'%5.2f|%-6s|'", "'{:>8}|{:<4d}|'", "'%(a)s'", "range(4)", "range(1, 10, 3)", "range(3, 0, -1)", "dict(a=1, b=2)"]
SUBSCRIPTS = ["[0]", "[-1]", "[1:]", "[:-1]", "[::-1]", "[::2]", "[1:3]", "[5:1:-2]", "['a']", "['name']", "[10]", ".0", "[i]",
              "[-3:]", "[:100]", "[none:2]", "['upper']"]


# Productions by the type they (mostly) give. S, I, F, L, D, B, A stand for operands: string, integer, float, list, dict, boolean, any.
GRAMMAR = {
    "S": ["s", "t", "u", "e", "digits", "lines", "quote", "'a'", "'x\\ny'", "\"it's\"", "'é' 'b'", "''", "words[0]", "people[1].name",
          "messages[0]['content']", "messages[-1].role", "S ~ A", "S ~ I ~ S", "S + S", "S * I", "I * S", "A|string", "A|tojson",
          "A|tojson(indent=I)", "A|tojson(separators=(',', ':'), sort_keys=true)", "D|tojson(indent='  ', ensure_ascii=true)", "L|join",
          "L|join(S)", "S.join(words)", "L|join(', ', attribute='name')", "S if B else S", "S if B", "S or S", "S and S", "S[I]", "S[I:]",
          "S[:I]", "S[I:I]", "S[::-1]", "S[I:I:I]", "S.strip()", "S.strip(S)", "S.lstrip()", "S.rstrip(S)", "S|trim", "S|trim(S)",
          "S.upper()", "S|upper", "S|lower", "S.lower()", "S|title", "S.title()", "('第a章' ~ S).title()",
          "S.join('日b本c').title()", "S|capitalize", "S.capitalize()", "S.swapcase()",
          "S.replace(S, S)", "S.replace(S, S, I)", "S|replace(S, S)", "S|replace(S, S, I)", "S|indent", "S|indent(I)", "S|indent(I, B, B)",
          "S|indent(S)", "S.split(S)[0]", "S.split('l')[-1]", "S.removeprefix(S)", "S.removesuffix(S)", "S.center(I, '*')", "S.ljust(I)",
          "S.rjust(I)", "S.zfill(I)", "S|center(I)", "S|truncate(I)", "S|truncate(I, B, '..', I)", "S|escape", "S|e + S", "S|safe + S",
          "S|reverse", "'%s-%s' % (A, A)", "'%d|%5.1f' % (I, F)", "'%-8s|%08.3f|%+d' % (S, F, I)", "'%(a)s' % dict(a=A)", "'%r' % (A,)",
          "'%x %o %e %g %%' % (I, I, F, F)", "'%s' % A", "S|format(A)", "'%s %s'|format(A, A)", "'{} {}'.format(A, A)",
          "'{0:>8}|{1:<5}|{0:^9}'.format(S, S)", "'{x:.2f} {y:+d} {z!r}'.format(x=F, y=I, z=A)", "'{:,} {:08.2f} {:%}'.format(I, F, F)",
          "'{0[name]} {0.age}'.format(people[0])", "'{name} {age:>4}'.format_map(people[0])", "'{a!r} {b:2}'.format_map(D)",
          "'{:{}}|'.format(S, I)", "'{:x} {:#b} {:e} {:g}'.format(I, I, F, F)", "A|string|upper",
          "L|first|string", "S|default(S)", "missing|default(S)", "S|d(S, true)", "S.expandtabs(I)", "S.partition(S)[2]",
          "S.rpartition(S)[0]", "strftime_now('%-d %^b %_m|%j %U %W %V %G')", "strftime_now('%x %5d %e %^h %#a %C %u')",
          "D.get('role', S)", "A ~ A", "L|map('string')|join(S)", "S|string", "S|first", "S|last"],
    "I": ["i", "z", "neg", "0", "1", "2", "3", "-1", "12", "0x1F", "1_000", "I + I", "I - I", "I * I", "I // I", "I % I", "I ** 2", "-I", "+I",
          "S|length", "L|length", "L|count", "D|length", "S.find(S)", "S.rfind(S)", "S.count(S)", "S.find(S, I)", "S.count(S, I, I)", "S|int",
          "S|int(I)", "F|int", "I|abs", "F|round|int", "I|round", "I|round(-1)", "L|map('length')|sum", "[I, I, I]|sum", "[I, I]|max",
          "[I, I]|min", "I if B else I", "I or I", "S|wordcount", "L.index(L[0])", "L.count(A)", "people|sum(attribute='age', start=I)",
          "(I, I)[I]", "range(I, I, 2)|length", "D.get('age', I)", "B + I", "A|length", "big", "S|int(base=16)", "people[0].age"],
    "F": ["f", "g", "h", "2.5", "1e3", "0.1", "I / I", "F + I", "F * F", "F - F", "F // I", "F % I", "-F", "F|round", "F|round(1)",
          "F|round(2, 'ceil')", "F|round(I, 'floor')", "S|float", "I|float", "F|abs", "'3.25'|float", "F ** 2", "I ** -1", "2 ** F",
          "[F, I, F]|sum", "[F, F]|max", "'1e-7'|float", "F if B else F"],
    "L": ["list", "words", "empty", "mixed", "nested", "people", "messages", "[A, A]", "[]", "[1, 2, 3]", "(A, A)", "(A,)", "L + L", "L * 2",
          "L[I:]", "L[:I]", "L[::-1]", "L[I:I]", "L[::2]", "L|list", "L|reverse|list", "words|sort", "list|sort(reverse=B)",
          "words|sort(case_sensitive=true)", "people|sort(attribute='age')", "people|sort(attribute='age,name', reverse=true)",
          "words|unique|list", "L|unique|list", "L|map('string')|list", "people|map(attribute='name')|list",
          "people|map(attribute='tags', default=A)|list", "words|map('upper')|list", "words|map('replace', S, S)|list", "L|select|list",
          "L|select('string')|list", "L|select('number')|list", "L|reject('none')|list", "list|select('odd')|list", "L|reject('in', L)|list",
          "list|select('gt', I)|list", "people|selectattr('tags')|list", "people|selectattr('age', 'equalto', I)|list",
          "messages|selectattr('role', 'equalto', 'user')|list", "messages|rejectattr('content')|map(attribute='role')|list",
          "people|rejectattr('tags', 'defined')|list", "S|list", "S.split()", "S.split(S)", "S.split(S, I)", "S.rsplit(None, I)",
          "S.rsplit(S, I)", "S.splitlines()", "S.splitlines(true)", "S.partition(S)", "D.keys()|list", "D.values()|list", "D.items()|list",
          "D|items|list", "D|list", "D|dictsort", "D|dictsort(true)", "D|dictsort(false, 'value')", "L|batch(2)|list", "L|batch(I, A)|list",
          "L|slice(2)|list", "L|slice(3, A)|list", "people|groupby('age')", "people|groupby('tags', default='z')|list", "range(I)|list",
          "range(I, I)|list", "L if B else L", "L or L", "nested|sum(start=[])", "nested|first", "nested[1]", "range(3)", "range(I)[I:]"],
    "D": ["d", "nothing", "people[0]", "people[-1]", "messages[0]", "{}", "{'a': A}", "{S: A, I: A}", "dict(a=A, b=A)", "dict(D)", "dict(D, c=A)",
          "dict([('k', A)])", "dict.fromkeys(L)", "dict.fromkeys(S, A)",
          "D if B else D", "L|first", "d.C", "d['C']", "D.copy()", "people|last", "namespace(x=A, y=A)"],
    "B": ["yes", "no", "true", "false", "B and B", "B or B", "not B", "I < I", "I <= F", "F > I", "I == F", "A == A", "A != A", "S < S",
          "S >= S", "I < I <= I", "S == S != S", "S in S", "A in L", "S not in D", "A in [A, A]", "'a' in D", "I in range(5)", "A is defined",
          "missing is defined", "A is none", "A is not none", "A is string", "A is number", "A is integer", "A is float", "A is boolean",
          "A is mapping", "A is sequence", "A is iterable", "A is true", "A is false", "I is even", "I is odd", "I is divisibleby 3",
          "A is eq A", "A is equalto(A)", "I is lt 3", "F is ge(2)", "A is in L", "A is not in L", "A is callable", "S is lower", "S is upper",
          "A is sameas none", "A is escaped", "A is undefined", "D.q is undefined", "D.a is defined", "S.startswith(S)", "S.endswith(S)",
          "S.startswith((S, S))", "S.isdigit()", "S.isalpha()", "S.isalnum()", "S.isspace()", "S.isupper()", "S.islower()", "S.istitle()", "S.title().istitle()",
          "S.isidentifier()", "L == L", "L < L",
          "D == D", "S is filter", "'upper' is filter", "'odd' is test", "B if B else B", "(A, A) == (A, A)", "A is not string and B"],
    "A": ["nil", "missing", "none", "S", "S", "S", "I", "I", "F", "L", "L", "D", "B", "A if B else A", "A or A", "A and A", "L|first", "L|last",
          "L[I]", "D['a']", "D.a", "D.items is callable", "D.get('a')", "D.get(A)", "D.missing", "L|min", "words|max", "people|max(attribute='age')",
          "people|min(attribute='name')", "x", "y", "A|default(A)", "A|d(A, B)", "A|attr('x')", "(A, A)|first", "mixed[I]", "L.0", "d.C.x",
          "(A)", "not A", "A|safe", "D|attr('get') is callable", "range is callable", "S.upper is defined"],
}


class Random:
    """Random templates: mostly sensible, often wrong in type, sometimes in syntax."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.wild = 0.1

    def one(self, items):
        return self.r.choice(items)

    def typed(self, kind, depth):
        """An expression of a type, or now and then of another."""
        if self.r.random() < self.wild:
            return self.wild_expression(depth - 1) if self.r.random() < 0.3 else self.typed(self.one("SIFLDBA"), depth - 1)
        rule = self.one(GRAMMAR[kind])
        for _ in range(8):
            if depth > 0 or not re.search(r"\b[SIFLDBA]\b", rule):
                break
            rule = self.one(GRAMMAR[kind])
        return re.sub(r"\b[SIFLDBA]\b", lambda m: self.operand_of(m.group(), depth - 1), rule) if depth > -3 else self.one(["1", "'a'"])

    def operand_of(self, kind, depth):
        text = self.typed(kind, depth)
        return text if re.fullmatch(r"[\w.]+|'[^']*'", text) or self.r.random() < 0.1 else "(%s)" % text

    def expression(self, depth):
        return self.typed(self.one("SSILDBA"), min(depth, 3))

    def wild_expression(self, depth):
        r = self.r.random()
        if depth <= 0 or r < 0.12:
            return self.one(NAMES) if self.r.random() < 0.6 else self.one(LITERALS)
        e = self.wild_expression
        if r < 0.27:
            return "%s|%s" % (self.operand(depth - 1), self.one(FILTERS))
        if r < 0.36:
            return "%s.%s" % (self.operand(depth - 1), self.one(METHODS))
        if r < 0.45:
            return self.operand(depth - 1) + self.one(SUBSCRIPTS)
        if r < 0.53:
            return "%s is %s%s" % (self.operand(depth - 1), self.one(["", "", "not "]), self.one(TESTS))
        if r < 0.70:
            op = self.one(["+", "+", "-", "*", "/", "//", "%", "~", "~", "and", "or", "==", "!=", "<", "<=", ">", ">=", "in",
                           "not in"])
            return "%s %s %s" % (self.one([e, self.operand])(depth - 1), op, self.one([e, self.operand])(depth - 1))
        if r < 0.75:
            return "%s < %s <= %s" % (self.operand(depth - 1), self.operand(depth - 1), self.operand(depth - 1))
        if r < 0.80:
            return "not " + e(depth - 1)
        if r < 0.83:
            return "-" + self.operand(depth - 1)
        if r < 0.90:
            tail = " else " + e(depth - 1) if self.r.random() < 0.8 else ""
            return "%s if %s%s" % (e(depth - 1), e(depth - 1), tail)
        if r < 0.93:
            return "[%s]" % ", ".join(e(depth - 1) for _ in range(self.r.randint(0, 3)))
        if r < 0.96:
            return "{%s}" % ", ".join("%s: %s" % (self.operand(depth - 2), e(depth - 1)) for _ in range(self.r.randint(0, 2)))
        return "(%s)" % e(depth - 1)

    def operand(self, depth):
        text = self.wild_expression(depth)
        return text if self.r.random() < 0.3 and " " not in text else "(%s)" % text if depth > 0 else text

    def tag(self, text):
        return "{%%%s %s %s%%}" % (self.one(["", "", "-", "+"]), text, self.one(["", "", "-", "+"]))

    def text(self):
        return self.one(["", " ", "\n", "a", "text\n", "  \n  ", "{", "}", "é\n", "\t", "\r\n", " x "])

    def output(self):
        return "{{%s %s %s}}" % (self.one(["", "", "-"]), self.expression(3), self.one(["", "", "-"]))

    def name(self):
        return self.one(["x", "y", "s", "i", "list", "zz", "kwargs"])

    def body(self, depth, loop=False):
        return "".join(self.text() + self.statement(depth, loop) for _ in range(self.r.randint(1, 3))) + self.text()

    def statement(self, depth, loop=False):
        r = self.r.random()
        tag, e = self.tag, self.expression
        if depth <= 0 or r < 0.30:
            return self.output()
        if r < 0.42:
            return tag("set %s = %s" % (self.name(), e(2)))
        if r < 0.45:
            return tag("set %s%s" % (self.name(), self.one(["", "|upper", "|trim|length"]))) + self.body(depth - 1, loop) + tag("endset")
        if r < 0.58:
            more = tag("elif " + e(2)) + self.body(depth - 1, loop) if self.r.random() < 0.3 else ""
            more += tag("else") + self.body(depth - 1, loop) if self.r.random() < 0.5 else ""
            return tag("if " + e(2)) + self.body(depth - 1, loop) + more + tag("endif")
        if r < 0.76:
            target = self.one(["x", "x", "y", "k, v", "(x, y)"])
            source = self.one(["list", "words", "people", "messages", "range(4)", "d.items()", "d|dictsort", "nested", "s", "mixed"])
            test = " if " + self.one(["x", "loop is defined", e(1)]) if self.r.random() < 0.25 else ""
            other = tag("else") + self.body(depth - 1) if self.r.random() < 0.3 else ""
            inner = self.body(depth - 1, True) + self.one(
                ["", "{{ loop.index }}", "{{ loop.last }}{{ loop.revindex0 }}", "{{ loop.previtem }}|{{ loop.nextitem }}",
                 "{{ loop.cycle('a', 'b') }}", "{{ loop.changed(x) }}", "{{ loop.length }}{{ loop.first }}"])
            return tag("for %s in %s%s" % (target, source, test)) + inner + other + tag("endfor")
        if r < 0.80 and loop:
            return tag("if " + e(2)) + self.text() + tag(self.one(["break", "continue"])) + tag("endif")
        if r < 0.86:
            return tag("macro m(x, y=%s)" % e(1)) + self.body(depth - 1) + self.one(["", "{{ caller() }}", "{{ varargs }}{{ kwargs }}"]) + \
                tag("endmacro") + self.one(["{{ m(1) }}", "{{ m(i, y=s) }}", "{{ m() }}", "{{ m(1, 2, 3) }}", "{{ m(1, z=2) }}",
                                            "{{ m(*[1], y=s) }}", "{{ m(y=i, *[s], z=2) }}", "{{ m(1, *[2, 3], z=i, **d) }}",
                                            "{% call m(1) %}" + self.body(depth - 1) + "{% endcall %}"])
        if r < 0.88:  # what is left of a generator
            over = tag("for x in g") + self.body(depth - 1, True) + self.one(
                ["", "{{ loop.last }}", "{{ loop.length }}", "{{ loop.nextitem }}", "{{ loop.previtem }}"]) + \
                tag("if " + e(2)) + tag("break") + tag("endif") + tag("endfor")
            return tag("set g = " + self.one(["list|select", "words|map('upper')", "people|map(attribute='age')", "s|reverse", "d|items"])) + \
                self.one(["{{ x in g }}", "{{ 2 in g }}", "{{ 'FIG' not in g }}", "{{ g|first }}", over, over]) + "{{ g|list }}"
        if r < 0.885:  # a test that depends on what the body did
            return tag("set ns = namespace(x=0)") + tag("for x in %s if ns.x < 2" % self.one(["list", "words", "s", "list|select"])) + \
                tag("set ns.x = ns.x + 1") + self.one(
                    ["{{ loop.index }}", "{{ loop.first }}{{ loop.previtem }}", "{{ loop.cycle('a', 'b') }}{{ loop.changed(x) }}"]) + tag("endfor")
        if r < 0.90:
            return tag("set ns = namespace(x=%s)" % e(1)) + "{% for q in list %}{% set ns.x = " + e(1) + " %}{% endfor %}{{ ns.x }}"
        if r < 0.93:
            return tag("with x = %s, zz = %s" % (e(1), e(1))) + self.body(depth - 1, loop) + tag("endwith")
        if r < 0.95:
            return tag("filter " + self.one(["upper", "trim", "replace('a', x)", "replace('a', s)|replace(s, i)"])) + self.body(depth - 1, loop) + tag("endfilter")
        if r < 0.97:
            return self.one(["{# a comment #}", "{#- {{ x }} -#}", "{% raw %}{{ x }}{% endraw %}", " {%- raw -%} {% x %} {%- endraw +%}\n",
                             "{% generation %}" + self.body(depth - 1) + "{% endgeneration %}"])
        return self.one(["{{ ", "{% if %}", "{% endif %}", "{{ 'a }}", "{{ 1 + }}", "{% for in x %}", "{{ )( }}", "{% else %}"]) \
            if self.r.random() < 0.2 else self.output()

    def template(self):
        if self.r.random() < 0.5:
            return "{{ %s }}" % self.expression(4)
        self.wild = 0.02
        text = self.body(3)
        self.wild = 0.1
        return text


def python_result(template):
    import warnings
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _compile_jinja_template.__wrapped__(template).render(**json.loads(VARIABLES_TEXT))  # a fresh copy: += changes lists
    except Exception as e:
        return e


def undecided(template, want, got):
    """Where Python says what cannot or need not be said alike: addresses, integers of more than 64 bits, what is unknown."""
    text = want if isinstance(want, str) else ""
    if re.search(r" at 0x|<built-in method|<Macro|<LoopContext", text, re.I):
        return True
    error = got.get("error", "")
    if "integer is too large" in error or "complex numbers" in error or "too deeply" in error or "too long" in error or "too much" in error:
        return True
    if "cannot be sliced" in error or "slice indices" in error:  # jinja2 makes Undefined of it where all is constant
        return True
    if "expected an integer, got 'float'" in error:  # Python would not look at this argument
        return True
    if re.search("No (filter|test) named", error + str(want)):  # jinja2 says so at once, we when it is reached
        return True
    return "too long" in str(want) or "recursion" in str(want) or isinstance(want, (MemoryError, OverflowError))


def check_random(tool, n, seed, limit=20):
    gen = Random(seed)
    bad = failed = skipped = 0
    for _ in range(n):
        template = gen.template()
        want = python_result(template)
        got = tool({"template": template, "variables": VARIABLES})
        if undecided(template, want, got):
            skipped += 1
            continue
        failed += isinstance(want, Exception)
        if differs(template, want, got, bad < limit):
            bad += 1
    print("%d random templates (%d of them fail, as they should; %d undecided): %d different" % (n - skipped, failed, skipped, bad))
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", default=os.path.join("build", "chat"))
    parser.add_argument("--templates")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with open(os.path.join(HERE, "cases.json"), encoding="utf-8") as file:
        cases = json.load(file)
    golden_path = os.path.join(HERE, "expected.json")
    if args.write:
        expected = check_directory(None, HERE, cases)[3]
        with open(golden_path, "w", encoding="utf-8") as file:
            json.dump(expected, file, ensure_ascii=False, indent=1)
            file.write("\n")
        return 0
    tool = Tool(args.tool)
    if args.random:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))  # random templates ask Python for terabytes
        return check_random(tool, args.random, args.seed) != 0
    golden = None
    if not args.templates:
        with open(golden_path, encoding="utf-8") as file:
            golden = json.load(file)
    n, bad, errors, expected = check_directory(tool, args.templates or HERE, cases, golden)
    print("%d templates, %d renderings (%d of them fail, as they should): %d different" % (len(expected), n, errors, bad))
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
