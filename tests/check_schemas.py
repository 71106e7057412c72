#!/usr/bin/env python3
"""What schemas let a model write, beside `jsonschema`, and which texts regular expressions match, beside Python's `re`.

    check_schemas.py [--schemas N] [--expressions N] [--seed N]

Random schemas and expressions of all that fastgen serve keeps. Of a schema's answers random bytes are written that its grammar lets come:
there is always a way on, and what ends is JSON that satisfies the schema. Needs the package jsonschema and a C compiler ($CC or cc). Ends
with "N passed, N failed".
"""
import argparse
import collections
import ctypes
import json
import os
import random
import re
import subprocess
import sys
import tempfile

import jsonschema

HERE = os.path.dirname(os.path.abspath(__file__))

DRIVER = r"""
#if !defined(_WIN32) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include "%(root)s/fastgen.h" /* what it declares: there is no engine in here */
#include "%(root)s/examples/tool/platform.h"
#include "%(root)s/examples/tool/text.h"
#include "%(root)s/examples/tool/json.h"
#include "%(root)s/examples/tool/http.h"
#include "%(root)s/examples/tool/pattern.h"
#include "%(root)s/examples/tool/grammar.h"

static grammar *made;

/* What is wrong with a schema; "": nothing. */
const char *check_schema(const char *text, size_t length) {
    json j;
    grammar_free(made);
    made = json_parse(&j, text, length) ? grammar_make(&j, j.nodes) : NULL;
    json_free(&j);
    return made ? made->error : "no JSON";
}

static uint64_t check_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* Writes what may come, of `liked` if any of that may: its length, or -1 - that where there is no way on. *done: the answer ends there. */
int check_write(const char *liked, uint64_t random, char *to, int most, int *done) {
    grammar_state s;
    int n = 0;
    grammar_begin(made, &s);
    for (*done = 0; n < most; n++) {
        grammar_state next;
        int i, c = (int)(check_random(&random) %% 256);
        bool complete = grammar_complete(made, &s), taken = false;
        if (complete && check_random(&random) %% 8 == 0) break;
        for (i = 0; i < 24 + 256 && !taken; i++) {
            c = i < 24 ? (unsigned char)liked[check_random(&random) %% strlen(liked)] : (c + 1) %% 256;
            next = s;
            taken = grammar_byte(made, &next, (unsigned char)c);
        }
        if (!taken && !complete) return -1 - n;
        if (!taken) break;
        to[n] = (char)c;
        s = next;
    }
    *done = grammar_complete(made, &s);
    return n;
}

static pattern_machine machine;
static int first;

/* What is wrong with an expression of texts of least to most characters (-1: any number); NULL: nothing. */
const char *check_expression(const char *text, size_t length, int least, int most) {
    const char *error;
    pattern_machine_free(&machine);
    memset(&machine, 0, sizeof(machine));
    first = pattern_compile(&machine, text, length, true, least, most < 0 ? INT64_MAX : most, &error);
    return first ? NULL : error;
}

int check_match(const char *text, size_t length) {
    int state = first;
    size_t i;
    for (i = 0; i < length; i++) state = machine.next[state][(unsigned char)text[i]];
    return state && machine.accepts[state];
}
"""


def compile_driver(folder):
    path = os.path.join(folder, "check_schemas.c")
    with open(path, "w") as file:
        file.write(DRIVER % {"root": os.path.dirname(HERE)})
    library = os.path.join(folder, "check_schemas.so")
    subprocess.run([os.environ.get("CC", "cc"), "-O1", "-w", "-shared", "-fPIC", path, "-o", library, "-lm", "-lpthread"], check=True)
    lib = ctypes.CDLL(library)
    lib.check_schema.restype = lib.check_expression.restype = ctypes.c_char_p
    lib.check_schema.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    lib.check_write.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int)]
    lib.check_expression.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int]
    lib.check_match.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return lib


# ---- schemas

NUMBERS = [0, 1, -1, 5, 7, 12, -3, 100, 0.5, -0.25, 1e3, 1e-3, 2.75, 99.95, 1e15, -1e9, 123456789, 1e-7]
VALUES = ["a", "ab", "b", 1, 1.5, None, True, [1], {"a": 1}, "\u00e9"]
PATTERNS = ["^a+$", "^[ab]{1,3}$", "^(x|yy)*$", r"^\d{2}-\w$", '^[^"]*$', "^(a|\u00e9)+.$"]
LIKED = [b'{"a:b,n}k0123', b'[{"1-7.,]}:ab', b'"ab-0123456789:TZ."', b'{}[],:"', b'0123456789.-,]}"']


def some(r, share, **members):
    return {name: value(r) for name, value in members.items() if r.random() < share}


def number(r):
    return r.choice(NUMBERS)


def scalar(r):
    kind = r.choice(["integer", "number", "string", "string", "boolean", "null", "enum", "format"])
    if kind in ("integer", "number"):
        return {"type": kind, **some(r, 0.35, minimum=number, maximum=number, exclusiveMinimum=number, exclusiveMaximum=number)}
    if kind == "string":
        return {"type": kind, **some(r, 0.4, minLength=lambda r: r.randint(0, 4), maxLength=lambda r: r.randint(0, 6), pattern=lambda r: r.choice(PATTERNS))}
    if kind == "format":
        return {"type": "string", "format": r.choice(["date", "time", "ipv4", "date-time", "uuid", "email"])}
    return {"enum": [r.choice(VALUES) for _ in range(r.randint(1, 4))]} if kind == "enum" else {"type": kind}


def an_object(r, depth):
    names = r.sample(["a", "b", "ab", "k", "n"], r.randint(0, 4))
    schema = {"type": "object", "properties": {name: random_schema(r, depth - 1) for name in names}}
    schema.update(some(r, 0.5, required=lambda r: r.sample(names, r.randint(0, len(names)))))
    return schema if names else {**schema, **some(r, 0.7, additionalProperties=lambda r: r.choice([False, random_schema(r, depth - 1)]))}


def an_array(r, depth):
    return {"type": "array", **some(r, 0.7, items=lambda r: r.choice([False] + 7 * [random_schema(r, depth - 1)])),
            **some(r, 0.4, prefixItems=lambda r: [random_schema(r, depth - 1) for _ in range(r.randint(1, 3))], minItems=lambda r: r.randint(0, 3),
                   maxItems=lambda r: r.randint(0, 4))}


def tagged(r, depth):
    """A union whose members differ by a property that none of them requires."""
    return {"oneOf": [{"type": "object", "properties": {"a": random_schema(r, depth - 1), "k": {"const": tag}}} for tag in r.sample(VALUES[:7], 2)]}


def random_schema(r, depth):
    kind = r.random() if depth > 0 else 0
    if kind < 0.35:
        return scalar(r)
    if kind < 0.75:
        return an_object(r, depth) if kind < 0.6 else an_array(r, depth)
    if kind < 0.8:
        return tagged(r, depth)
    if kind < 0.92:
        return {r.choice(["anyOf", "anyOf", "oneOf"]): [random_schema(r, depth - 1) for _ in range(r.randint(1, 4))]}
    if kind < 0.96:
        return {"$ref": r.choice(["#/$defs/A", "#/$defs/B", "#"])}
    return {"type": [r.choice(["integer", "string"]), r.choice(["null", "boolean", "array"])], "minimum": number(r), "minLength": 1}


def wrong_answer(lib, r, validator):
    """What is wrong with a random answer; None: nothing, "": it is cut off."""
    text, done = ctypes.create_string_buffer(700), ctypes.c_int()
    n = lib.check_write(r.choice(LIKED), r.getrandbits(60), text, r.choice([20, 60, 200, 600]), ctypes.byref(done))
    if n < 0:
        return f"no way on behind {text.raw[:-1 - n]}"
    if not done.value:
        return ""
    error = next(validator.iter_errors(json.loads(text.raw[:n])), None)
    return f"{text.raw[:n]}: {error.message[:200]}" if error else None


def check_schemas(lib, r, count):
    wrong, seen = [], collections.Counter()
    for _ in range(count):
        schema = {**random_schema(r, 3), "$defs": {"A": random_schema(r, 2), "B": random_schema(r, 1)}}
        text = json.dumps(schema).encode()
        refused = lib.check_schema(text, len(text))
        seen["refused" if refused else "taken"] += 1
        validator = jsonschema.Draft202012Validator(schema)
        for what in [] if refused else [wrong_answer(lib, r, validator) for _ in range(12)]:
            seen["ended" if what is None else "cut off"] += 1
            if what:
                wrong.append(f"{json.dumps(schema)}: {what}")
    print(f"schemas: {dict(seen)}")
    if seen["taken"] < count // 2 or seen["ended"] < 4 * count:
        wrong.append("too few schemas or answers to say anything")
    return wrong


# ---- regular expressions

LETTERS = ["a", "b", "c", "\u00e9", "\u20ac", "\U0001f600", "-", " ", "1"]
ITEMS = ["a", "b", "c", "\u00e9", "a-c", "\u00e0-\u00ff", "\u20ac-\u20bf", "\U0001f600-\U0001f60e", r"\d", r"\w", r"\s", "1", "x-\u2100", r"\-"]
COUNTS = [["", "", "", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "{0,2}", "*?", "{a"], ["", "", "", "", "*", "?", "{2}", "+"]]


def atom(r, depth):
    kind = r.random()
    if kind < 0.45 or depth > 1:
        return r.choice(LETTERS[:6] + ["1", "-"])
    if kind < 0.75:
        return "." if kind < 0.55 else "[" + r.choice(["", "^"]) + "".join(r.choice(ITEMS) for _ in range(r.randint(1, 3))) + "]"
    return "\\" + r.choice("dwsDWS") if kind < 0.82 else r.choice(["(", "(?:"]) + expression(r, depth + 1) + ")"


def expression(r, depth=0):
    return "|".join("".join(atom(r, depth) + r.choice(COUNTS[min(depth, 1)]) for _ in range(r.randint(0 if depth else 1, 2)))
                    for _ in range(r.choice([1, 1, 2, 3])))


def check_expressions(lib, r, count):
    wrong, seen = [], collections.Counter()
    for _ in range(count):
        text = expression(r)
        least, most = r.choice([(0, -1)] * 3 + [(1, 3), (2, 4), (0, 2), (3, -1)])
        error = lib.check_expression(text.encode(), len(text.encode()), least, most)
        seen["refused" if error else "taken"] += 1
        if error not in (None, b"no text matches it", b"it has too many states"):
            wrong.append(f"{text}: {error.decode()}")
        compiled = re.compile(text, re.ASCII)
        for _ in range(0 if error else 40):
            sample = "".join(r.choice(LETTERS) for _ in range(r.randint(0, 5)))
            wanted = bool(compiled.fullmatch(sample)) and len(sample) >= least and (most < 0 or len(sample) <= most)
            seen["matches"] += wanted
            if bool(lib.check_match(sample.encode(), len(sample.encode()))) != wanted:
                wrong.append(f"{text!r} of {least} to {most} characters: {sample!r} is {'one' if wanted else 'none'}")
    print(f"expressions: {dict(seen)}")
    return wrong if seen["matches"] > count else wrong + ["too few matches to say anything"]


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("--schemas", type=int, default=1500, metavar="N")
    options.add_argument("--expressions", type=int, default=3000, metavar="N")
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        lib = compile_driver(folder)
        for check, count in ((check_schemas, args.schemas), (check_expressions, args.expressions)):
            wrong = check(lib, random.Random(args.seed), count)
            failed += bool(wrong)
            for line in wrong[:10]:
                print("FAILED", check.__name__, line)
    print(f"{2 - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
