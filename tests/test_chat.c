/* Tests of >>chat: the templates of tests/golden/chat/ over the conversations of cases.json against expected.json, which
   check_chat.py --write made with transformers' own renderer; limits; memory that runs out. */
#include "test_alloc.h"

static char *chat_read(const char *name, size_t *size) {
    char path[256];
    FILE *file;
    char *data = (char *)calloc(1, 1 << 20);
    snprintf(path, sizeof(path), "tests/golden/chat/%s", name);
    file = fopen(path, "rb");
    *size = file ? fread(data, 1, (1 << 20) - 1, file) : 0;
    if (file) fclose(file);
    CHECKF(*size > 0, "%s", path);
    return data;
}

static fg__json *chat_read_json(const fg__env *env, const char *name) {
    size_t size;
    char *data = chat_read(name, &size);
    fg__json *root = NULL;
    CHECKF(fg__json_parse(env, data, size, &root) == FG_OK, "%s", fg_last_error());
    free(data);
    return root;
}

static fg_result chat_format(const fg__env *env, const char *text, size_t size, const fg__json *one, fg__text *out) {
    static const fg__chat_text texts[4] = {{"bos_token", "<s>", 3}, {"eos_token", "</s>", 4}, {"unk_token", "<unk>", 5}, {"pad_token", "<pad>", 5}};
    fg__text messages, options;
    fg_result r;
    memset(&messages, 0, sizeof(messages));
    messages.env = env;
    options = messages;
    fg__json_write(&messages, fg__json_get(one, "messages"));
    if (fg__json_get(one, "options")) fg__json_write(&options, fg__json_get(one, "options"));
    r = fg__chat_format(env, text, size, messages.data, options.data, texts, 4, out);
    fg__text_free(&messages);
    fg__text_free(&options);
    return r;
}

static int chat_check_template(const fg__env *env, const char *name, const fg__json *cases, const fg__json *expected) {
    char file[128];
    size_t size, i;
    char *text;
    snprintf(file, sizeof(file), "%s.jinja", name);
    text = chat_read(file, &size);
    for (i = 0; i < cases->count; i++) {
        const char *title = fg__json_key(cases, i)->value.string;
        const fg__json *want = fg__json_get(expected, title);
        fg__text out;
        fg_result r;
        memset(&out, 0, sizeof(out));
        out.env = env;
        r = chat_format(env, text, size, fg__json_value(cases, i), &out);
        CHECK(want != NULL);
        if (want && want->type == FG__JSON_NULL) CHECKF(r == FG_ERROR_TEMPLATE, "%s, %s", name, title);
        else if (want)
            CHECKF(r == FG_OK && out.length == want->count && memcmp(out.length ? out.data : "", want->value.string, out.length) == 0,
                   "%s, %s: %s", name, title, r == FG_OK ? (out.data ? out.data : "") : fg_last_error());
        fg__text_free(&out);
    }
    free(text);
    return (int)cases->count;
}

static void test_chat_goldens(void) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__json *cases = chat_read_json(&env, "cases.json"), *expected = chat_read_json(&env, "expected.json");
    size_t i;
    int n = 0;
    for (i = 0; expected && cases && i < expected->count; i++)
        n += chat_check_template(&env, fg__json_key(expected, i)->value.string, cases, fg__json_value(expected, i));
    CHECK(n >= 30);
    fg__json_free(cases);
    fg__json_free(expected);
}

static fg_result chat_render(const fg__env *env, const char *text, fg__text *out) {
    static const char given[] = "{\"list\": [1, 2, 3], \"name\": \"x\"}";
    fg__json *variables = NULL;
    fg_result r = fg__json_parse(env, given, strlen(given), &variables);
    memset(out, 0, sizeof(*out));
    out->env = env;
    if (r == FG_OK) r = fg__chat_render(env, text, strlen(text), variables, out);
    fg__json_free(variables);
    return r;
}

/* A template and what jinja2 makes of it, set up as transformers does; NULL: an error. */
typedef struct chat_pair { const char *text, *expected; } chat_pair;

static void chat_check_pairs(const chat_pair *pairs, int n) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__text out;
    int i;
    for (i = 0; i < n; i++) {
        fg_result r = chat_render(&env, pairs[i].text, &out);
        const char *got = r == FG_OK ? (out.data ? out.data : "") : fg_last_error();
        if (pairs[i].expected) CHECKF(r == FG_OK && strcmp(got, pairs[i].expected) == 0, "%s: %s", pairs[i].text, got);
        else CHECKF(r == FG_ERROR_TEMPLATE, "%s: %s", pairs[i].text, got);
        fg__text_free(&out);
    }
}

/* Keywords before and behind what * stands before. */
static void test_chat_star(void) {
#define MACRO "{% macro m(a, b, k=0, l=0) %}{{ a }}{{ b }}{{ k }}{{ l }}{{ varargs }}{{ kwargs }}{% endmacro %}"
    static const chat_pair pairs[] = {
        {MACRO "{{ m(*[1, 2], k=3) }}", "1230(){}"},
        {MACRO "{{ m(*[1, 2], k=3, l=4) }}", "1234(){}"},
        {MACRO "{{ m(k=3, *[1, 2], l=4) }}", "1234(){}"},
        {MACRO "{{ m(1, *[2], l=4, **{'k': 3, 'x': 5}) }}", "1234(){'x': 5}"},
        {MACRO "{{ m(*'ab', k='c' if list else 'd', l=m(*[6, 7], k=8)) }}", "abc6780(){}(){}"},
        {"{% macro m(a, k=0) %}{{ a }}{{ k }}{{ caller() }}{% endmacro %}{% call m(*[1], k=2) %}x{% endcall %}", "12x"},
        {MACRO "{{ m(*[1], k=2, k=3) }}", NULL},
        {"{{ 'a-a-a'|replace(*['a', 'b'], count=2) }} {{ 'a-a'|replace(*['a'], new='c') }}", "b-b-a c-c"},
        {"{{ 4 is divisibleby(*[], num=2) }} {{ 'a,b,c'.split(*[','], maxsplit=1) }}", "True ['a', 'b,c']"},
        {"{{ '{}{x}{y}'.format(*[1], x=2, y=3) }} {{ dict(*[[('a', 1)]], b=2) }}", "123 {'a': 1, 'b': 2}"},
    };
#undef MACRO
    chat_check_pairs(pairs, FG__COUNT(pairs));
}

/* Generators give each item once, and only as many as are asked for. */
static void test_chat_generators(void) {
    static const chat_pair pairs[] = {
        {"{% set r = ['system', 'user']|map('string') %}{{ 'system' in r }} {{ 'user' in r }} {{ 'user' in r }}", "True True False"},
        {"{% set r = list|select %}{{ 2 in r }} {{ r|list }}", "True [3]"},
        {"{% set r = list|select %}{{ 4 not in r }} {{ r|list }}", "True []"},
        {"{% set r = list|reverse %}{{ r|first }} {{ 1 in r }} {{ r|list }}", "3 True []"},
        {"{% set r = list|select %}{{ 1 is in r }} {{ [2, 3]|select('in', r)|list }} {{ r|list }}", "True [2, 3] []"},
        {"{% set r = {'a': 1, 'b': 2}|items %}{{ ('a', 1) in r }} {{ r|list }}", "True [('b', 2)]"},
        {"{% set r = list|select %}{% for x in r %}{% break %}{% endfor %}{{ r|list }}", "[2, 3]"},
        {"{% set r = list|select %}{% for x in r if x == 2 %}{% break %}{% endfor %}{{ r|list }}", "[3]"},
        {"{% set r = list|select %}{% for x in r %}{{ x }}{{ r|first }} {% endfor %}{{ r|list }}", "12 3 []"},
        {"{% set r = 'abcdef'|map('upper') %}{% for x in r %}{{ loop.index }}{{ x }}{{ r|first }}{{ loop.previtem }}{{ loop.first }} {% endfor %}",
         "1ABTrue 2CDAFalse 3EFCFalse "},
        {"{% set r = list|select %}{% for x in r %}{{ loop.last }}{% break %}{% endfor %}{{ r|list }}", "False[3]"},
        {"{% set r = list|select %}{% for x in r %}{{ loop.nextitem }}{{ x }} {% if loop.first %}{{ r|first }}{% endif %}{% endfor %}", "21 32 "},
        {"{% set r = list|select %}{% for x in r %}{{ loop.length }}{{ loop.revindex }}{{ r|list }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}",
         "33[]32[]"},
        {"{% for x in list|select %}{{ loop.last }}{{ loop.length }}{{ loop.revindex0 }}{{ loop.nextitem }}{{ loop.previtem }} {% endfor %}",
         "False322 False3131 True302 "},
        {"{% set r = list|select %}{% for x in r %}{{ loop[0] is defined }}{{ 'y' if loop }}{{ r|list }}{% break %}{% endfor %}", "Falsey[]"},
        {"{% for x in list %}{{ loop }} {{ loop|length }} {% endfor %}", "<LoopContext 1/3> 3 <LoopContext 2/3> 3 <LoopContext 3/3> 3 "},
        {"{% for x in list %}{{ loop.length }}{{ loop.last }}{{ loop.length }}{{ loop.nextitem }} {% endfor %}", "3False32 3False33 3True3 "},
    };
    chat_check_pairs(pairs, FG__COUNT(pairs));
}

/* Loops with a test, which is made when its item comes. */
static void test_chat_filtered_loops(void) {
#define WHILE "{% set ns = namespace(n=0) %}{% for x in [1, 2, 3, 4] if ns.n < 2 %}{% set ns.n = ns.n + 1 %}"
    static const chat_pair pairs[] = {
        {WHILE "{{ loop.index }}{{ loop.index0 }} {% endfor %}", "10 21 "},
        {WHILE "{{ loop.first }}{{ loop.previtem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x) }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}",
         "TrueaTrue10 False1bTrue10 "},
        {WHILE "{% for y in list %}{{ loop.last }}{% else %}{{ loop.first }}{% endfor %}"
         "{% with a = x %}{{ loop.index ~ a }}{% endwith %} {% endfor %}",
         "FalseFalseTrue11 FalseFalseTrue22 "},
        {WHILE "{% macro m() %}{{ loop.index }}{% endmacro %}{{ m() if loop.first else 'x' }} {% endfor %}", "1 x "},
        {"{% for x in list if x != 2 %}{{ loop.index }}{{ loop.length }}{{ loop.last }}{{ loop.nextitem }} {% endfor %}", "12False3 22True "},
        {"{% for x in list if x != 2 %}{{ loop.index }}{{ loop['length'] }}{{ loop|length }} {% endfor %}", "122 222 "},
        {"{% for a, b in [(1, 2), (3, 4), (5, 6)] if a > 1 %}{{ loop.index }}{{ loop.previtem }}{{ b }} {% endfor %}", "14 2(3, 4)6 "},
        {"{% for x in list %}{% for y in list if loop.index == y %}{{ loop.index }}{{ y }} {% endfor %}{% endfor %}", "11 12 13 "},
        {"{% set r = list|select %}{% for x in r if x > 1 %}{{ loop.index }}{% break %}{% endfor %}{{ r|list }}", "1[3]"},
    };
#undef WHILE
    chat_check_pairs(pairs, FG__COUNT(pairs));
}

static void test_chat_fromkeys(void) {
    static const chat_pair pairs[] = {
        {"{{ dict.fromkeys(['a', 'b'], 1) }} {{ dict.fromkeys('aba') }}", "{'a': 1, 'b': 1} {'a': None, 'b': None}"},
        {"{{ dict['fromkeys']([1, true, 2.0, 'x'], []) }} {{ {'a': 1}.fromkeys(list|select) }}",
         "{1: [], 2.0: [], 'x': []} {1: None, 2: None, 3: None}"},
        {"{{ dict.fromkeys(missing) }} {{ dict.other is defined }} {{ range.fromkeys is defined }} {{ namespace.fromkeys is defined }}",
         "{} False False False"},
        {"{{ dict.fromkeys([[]]) }}", NULL},
        {"{{ dict.fromkeys(iterable=[]) }}", NULL},
        {"{{ dict.fromkeys(5) }}", NULL},
    };
    chat_check_pairs(pairs, FG__COUNT(pairs));
}

/* Words of str.title begin behind what has no case. */
static void test_chat_title(void) {
    static const chat_pair pairs[] = {
        {"{{ '\347\254\254a\347\253\240b \346\227\245\346\234\254go\350\252\236LANG'.title() }}", "\347\254\254A\347\253\240B \346\227\245\346\234\254Go\350\252\236Lang"},
        {"{{ \"they're 3rd \303\251a \303\237b a\306\200c \302\252b \341\203\230e\".title() }}", "They'Re 3Rd \303\211a Ssb A\306\200c \302\252b \341\203\230e"},
        {"{{ 'x\347\254\254a'|title }} {{ '\347\254\254a b'|title }}", "X\347\254\254a \347\254\254a B"},
    };
    chat_check_pairs(pairs, FG__COUNT(pairs));
}

static void test_chat_string_methods(void) {
    static const chat_pair pairs[] = {
        {"{{ '{a} {b[1]} {c.d!r:>5} {a:{w}}|'.format_map({'a': 1, 'b': [2, 3], 'c': {'d': 'x'}, 'w': 3}) }}", "1 3   'x'   1|"},
        {"{{ 'x{{}}'.format_map(5) }} {{ '{}'.format_map is callable }}", "x{} True"},
        {"{{ '{x}'.format_map({'a': 1}) }}", NULL},
        {"{{ '{}'.format_map({'a': 1}) }}", NULL},
        {"{{ '{0}'.format_map({'0': 1}) }}", NULL},
        {"{{ '{a}'.format_map([1]) }}", NULL},
        {"{{ '{a}'.format_map(a=1) }}", NULL},
        {"{{ '{a}'.format_map({'a': 1}, 2) }}", NULL},
        {"{% for s in ['Hello World', 'Hello world', 'HELLO', \"They'Re\", '', '1', '3Rd A', 'A1b', '\347\254\254A\347\253\240', '\303\211\303\251 SSa'] %}"
         "{{ s.istitle() }} {% endfor %}", "True False False True False False True False True False "},
        {"{% for s in ['a', '_1', '1a', '', 'a b', 'a-b', 'class', '\346\227\245\346\234\2541', 'e\314\201'] %}{{ s.isidentifier() }} {% endfor %}",
         "True True False False False False True True True "},
    };
    chat_check_pairs(pairs, FG__COUNT(pairs));
}

/* caller, kwargs and varargs are given to macros that use them before they assign to them. */
static void test_chat_specials(void) {
    static const chat_pair pairs[] = {
        {"{% macro m() %}{% set kwargs = {} %}{{ kwargs }}{% endmacro %}{{ m() }}", "{}"},
        {"{% macro m() %}{% set kwargs = {} %}{{ kwargs }}{% endmacro %}{{ m(x=1) }}", NULL},
        {"{% macro m() %}{{ kwargs }}{% set kwargs = 1 %}{{ kwargs }}{% endmacro %}{{ m(x=2) }}", "{'x': 2}1"},
        {"{% macro m() %}{% set varargs = varargs|list %}{{ varargs }}{% endmacro %}{{ m() }}", "[]"},
        {"{% macro m() %}{% set varargs = varargs|list %}{{ varargs }}{% endmacro %}{{ m(1) }}", NULL},
        {"{% macro m() %}{% set v = varargs|list %}{% set varargs = 0 %}{{ v }}{% endmacro %}{{ m(1) }}", "[1]"},
        {"{% macro m() %}{% for varargs in list %}{{ varargs }}{% endfor %}{% endmacro %}{{ m() }}", "123"},
        {"{% macro m() %}{% for varargs in list %}{{ varargs }}{% endfor %}{% endmacro %}{{ m(1) }}", NULL},
        {"{% macro m() %}{% set caller = 1 %}{{ caller }}{% endmacro %}{% call m() %}x{% endcall %}", NULL},
        {"{% macro m() %}{{ caller() }}{% set caller = 1 %}{{ caller }}{% endmacro %}{% call m() %}x{% endcall %}", "x1"},
        {"{% macro m() %}{% macro n() %}{{ kwargs }}{% endmacro %}{{ n(y=1) }}{% endmacro %}{{ m(x=2) }}", "{'y': 1}"},
        {"{% macro m() %}{% macro n(kwargs) %}{{ kwargs }}{% endmacro %}{{ n(1) }}{% endmacro %}{{ m() }}", "1"},
        {"{% macro m() %}{% macro n(kwargs) %}{{ kwargs }}{% endmacro %}{{ n(1) }}{% endmacro %}{{ m(x=2) }}", NULL},
        {"{% macro m(a=kwargs) %}{{ a }}{% endmacro %}{{ m() }}", ""},
        {"{% macro m(a=kwargs) %}{{ a }}{% endmacro %}{{ m(x=1) }}", NULL},
        {"{% macro n() %}{{ caller(5) }}{% endmacro %}{% macro m() %}{% call(kwargs) n() %}{{ kwargs }}{% endcall %}"
         "{% endmacro %}{{ m() }}", "5"},
        {"{% macro n() %}{{ caller(5) }}{% endmacro %}{% macro m() %}{% call(kwargs) n() %}{{ kwargs }}{% endcall %}"
         "{% endmacro %}{{ m(x=1) }}", NULL},
    };
    chat_check_pairs(pairs, FG__COUNT(pairs));
}

/* Which variable a name in odd places is. */
static void test_chat_scopes(void) {
    static const chat_pair pairs[] = {
        {"{% filter replace('a', name) %}a{% endfilter %}{% set name = 'z' %}{{ name }}", "xz"},
        {"{% filter replace('a', name)|replace('x', n|default('y')) %}a{% endfilter %}{% set name, n = 1, 2 %}{{ n }}", "y2"},
        {"{% filter replace('a', name) %}a{% set name = 'q' %}{% endfilter %}{{ name }}", "qx"},
        {"{% filter replace('a', name) %}{% filter replace('b', name) %}ab{% endfilter %}{% set name = 'q' %}{% endfilter %}"
         "{% set name = 'z' %}", "qx"},
        {"{% for i in list %}{% filter replace('a', name) %}a{% endfilter %}{% set name = i %}{% endfor %}{{ name }}", "xxxx"},
        {"{% macro m() %}{% filter replace('a', name) %}a{% endfilter %}{% set name = 'z' %}{% endmacro %}{{ m() }}"
         "{% set name = 'w' %}{{ m() }}", "w"},
    };
    chat_check_pairs(pairs, FG__COUNT(pairs));
}

static void chat_check_times(const fg__j_clock *now, const chat_pair *pairs, int n) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__jinja *j = (fg__jinja *)fg__calloc(&env, 1, sizeof(*j));
    int i;
    j->env = j->arena.env = j->scratch.env = &env;
    j->steps = FG__J_MAX_STEPS;
    for (i = 0; i < n; i++) {
        j->scratch.length = 0;
        fg__j_put_time(j, now, pairs[i].text, strlen(pairs[i].text));
        CHECKF(strcmp(j->scratch.data, pairs[i].expected) == 0, "%s: %s", pairs[i].text, j->scratch.data);
    }
    fg__j_free(j);
}

/* strftime_now, against datetime's strftime over glibc. */
static void test_chat_time(void) {
    static const chat_pair january[] = { /* Sunday, the third of 2027, which is in a week of 2026 */
        {"%-d/%-m/%-I/%-H %_d|%_m|%-e|%0e|%-j|%_j|%j", "3/1/3/15  3| 1|3|03|3|  3|003"},
        {"%d %b %Y, %A %B %H:%M:%S %y %h %I %p", "03 Jan 2027, Sunday January 15:04:09 27 Jan 03 PM"},
        {"%^a %^B %#b %#A %#p %^p %P %#P %^P %^F %^c", "SUN JANUARY JAN SUNDAY pm PM pm pm pm 2027-01-03 SUN JAN  3 15:04:09 2027"},
        {"%c|%x|%X|%D|%T|%R|%r|%F", "Sun Jan  3 15:04:09 2027|01/03/27|15:04:09|01/03/27|15:04:09|15:04|03:04:09 PM|2027-01-03"},
        {"%U %W %V %G %g %C %u %w", "01 00 53 2026 26 20 7 0"},
        {"%k|%l|%-k|%-l|%0l|%_I|%e", "15| 3|15|3|03| 3| 3"},
        {"%f|%%f|%-f|%-%|%n%t|%z%Z%-z|", "000007|%f|%-f|%|\n\t||"},
        {"%10d|%010d|%-10d|%_10d|%3Y|%10a|%^10a|%010a|%12F",
         "0000000003|0000000003|         3|         3|2027|       Sun|       SUN|0000000Sun|  2027-01-03"},
        {"%5e|%05e|%-5k|%_5l|%5j|%012F|%5p|%5%", "    3|00003|   15|    3|00003|002027-01-03|   PM|    %"},
        {"%Ey %Od %EY %Oe %Ed %OF", "27 03 2027  3 %Ed %OF"},
        {"%Q %& %\303\251 %-Q %- %E", "%Q %& %\303\251 %-Q %- %E"},
        {"%", "%"},
    };
    static const chat_pair december[] = { /* Monday, the thirtieth of 2024, which is in a week of 2025 */
        {"%U %W %V %G %g %j %u", "52 53 01 2025 25 365 1"},
        {"%I %-I %l %k %p %P", "12 12 12  0 AM am"},
    };
    fg__j_clock now;
    memset(&now, 0, sizeof(now));
    now.micros = 7;
    now.date.tm_year = 127;
    now.date.tm_mday = 3;
    now.date.tm_hour = 15;
    now.date.tm_min = 4;
    now.date.tm_sec = 9;
    now.date.tm_yday = 2;
    chat_check_times(&now, january, FG__COUNT(january));
    now.date.tm_year = 124;
    now.date.tm_mon = 11;
    now.date.tm_mday = 30;
    now.date.tm_hour = 0;
    now.date.tm_wday = 1;
    now.date.tm_yday = 364;
    chat_check_times(&now, december, FG__COUNT(december));
}

static void test_chat_now(void) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__text out;
    long long before = (long long)time(NULL) - 1, now;
    CHECKF(chat_render(&env, "{{ strftime_now('%s') }} {{ strftime_now('%f')|length }}", &out) == FG_OK, "%s", fg_last_error());
    now = atoll(out.data ? out.data : "");
    CHECKF(now >= before && now <= (long long)time(NULL) + 1, "%s", out.data ? out.data : "");
    CHECK(out.data && strstr(out.data, " 6"));
    fg__text_free(&out);
}

/* Templates that would run for ever, recurse or fill the memory end with an error that says so. */
static void test_chat_hostile(void) {
    static const char *const bad[] = {
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'x' * 10000000000 }}",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{{ 10 ** 1000000000 }}",
        "{% set s = 'a' * 30000000 ~ '!' %}{% for i in range(100000) %}{% set x = s.isalpha() %}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% set ns = namespace(l=[]) %}{% for i in range(100, 280) %}{% set ns.l = ns.l + [(s ~ i, i)] %}"
        "{% endfor %}{% set d = dict(ns.l) %}{% for i in range(1000) %}{{ ''.format(**d) }}{% endfor %}",
        "{% set f = '%.' ~ '0' * 30000000 ~ 'd' %}{% for i in range(100000) %}{% set x = f % 1 %}{% endfor %}",
        "{% set f = '%' ~ '-' * 30000000 ~ 'd' %}{% for i in range(100000) %}{% set x = strftime_now(f) %}{% endfor %}",
        "{% set p = '0' * 30000000 %}{{ ('a' * 1000000)|map(attribute=p)|list|length }}",
        "{% set d = dict(dict.fromkeys(range(10000)|map('string')), a=1) %}{{ ('{a}' * 2000000).format(**d) }}",
        "{{ 'abc'|truncate(1000000, true, '', 'nan'|float) }}", "{{ '%*d' % (-9223372036854775807 - 1, 5) }}",
        "{% if %}", "{{ name.nothing.more }}", "{{ raise_exception('no') }}", "{% for %}", "{{ 'a' + 1 }}", "{% endfor %}", "{{ (",
    };
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__text out;
    int i;
    for (i = 0; i < FG__COUNT(bad); i++) {
        CHECKF(chat_render(&env, bad[i], &out) == FG_ERROR_TEMPLATE, "%s", bad[i]);
        CHECKF(strstr(fg_last_error(), "line"), "%s", fg_last_error());
        fg__text_free(&out);
    }
}

static size_t chat_largest; /* allocation of chat_realloc */

static void *chat_realloc(void *pointer, size_t size, void *user) {
    chat_largest = FG__MAX(chat_largest, size);
    return test_alloc_realloc(pointer, size, user);
}

/* JSON twice as long as its string ends at the limit, in whose buffer there is room for up to twice as much. */
static void test_chat_large_json(void) {
    fg_allocator allocator = test_allocator(0);
    fg__env env;
    fg__text out;
    allocator.realloc = chat_realloc;
    env = fg__env_make(&allocator, NULL, NULL);
    chat_largest = 0;
    CHECK(chat_render(&env, "{{ ('\"' * 1024 * 65536)|tojson }}", &out) == FG_ERROR_TEMPLATE);
    CHECKF(chat_largest <= 2 * FG__J_MAX_TEXT, "%zu bytes", chat_largest);
    fg__text_free(&out);
    CHECK(test_alloc_live() == 0);
}

/* What equals nothing, white space behind names, numbers that end in letters, markup that filters take apart, views of dicts. */
static void test_chat_odd(void) {
    static const chat_pair pairs[] = {
        {"{{ ['nan'|float, 1, 1]|unique|list }}", "[nan, 1]"},
        {"{{ '\306\241\306\260\341\273\243\304\261'|upper }} {{ '\306\240\306\257\341\273\242\306\217'|lower }}",
         "\306\240\306\257\341\273\242I \306\241\306\260\341\273\243\311\231"},
        {"{{ name\302\240}} {{ name\343\200\200}}{% if name\302\240%}!{% endif\302\240%}", "x x!"},
        {"{{ '123456789012345678901234abc'|int }} {{ 'abc'|int(7) }} {{ '-12'|int }} {{ '-7f'|int(0, 16) }}", "0 7 -12 -127"},
        {"{{ '123456789012345678901234'|int }}", NULL}, /* integers have 64 bits */
        {"{{ ('<b'|safe|first) + '<' }} {{ ('b<'|safe|last) + '<' }} {{ ('a'|safe|title) + '<' }} {{ ('a'|safe|upper) + '<' }}", "<< <&lt; A< A&lt;"},
        {"{{ {'a': 1}.keys() == {'a': 2}.keys() }} {{ {'a': 1}.keys() == {'a': 1}.values() }} {{ {'a': 1}.items() == {'a': 1}.items() }} "
         "{{ {'a': 1}.items() == {'a': 2}.items() }} {{ {'a': 1, 'b': 1}.keys() == {'b': 1, 'a': 2}.keys() }}", "True False True False True"},
    };
    chat_check_pairs(pairs, FG__COUNT(pairs));
}

/* What goes into JSON in pieces is that of one piece. */
static void test_chat_long_json(void) {
    static const chat_pair pairs[] = {
        {"{% set s = 'ab\"\xC3\xA9\xF0\x9F\x98\x80' * 10000 %}{% set t = s|tojson %}"
         "{{ t|length }} {{ t[:8] }} {{ t[-8:] }} {{ t[1:-1] == 'ab\\\\\"\xC3\xA9\xF0\x9F\x98\x80' * 10000 }}",
         "60002 \"ab\\\"\xC3\xA9\xF0\x9F\x98\x80" "a \xF0\x9F\x98\x80" "ab\\\"\xC3\xA9\xF0\x9F\x98\x80\" True"},
        {"{{ ['x' * 65536]|tojson|length }} {{ ['x' * 65537, 'y']|tojson == '[\"' ~ 'x' * 65537 ~ '\", \"y\"]' }} {{ ''|tojson }}", "65540 True \"\""},
        {"{{ ('\xC3\xA9' * 70000)|tojson(ensure_ascii=true) == '\"' ~ '\\\\u00e9' * 70000 ~ '\"' }}", "True"},
    };
    chat_check_pairs(pairs, FG__COUNT(pairs));
}

/* Numbers at the ends of their ranges. */
static void test_chat_extremes(void) {
    static const char *const pairs[][2] = {
        {"{{ (-9223372036854775807)|round(-1) }}", "-9223372036854775810"}, {"{{ 9223372036854775801|round(-1) }}", "9223372036854775800"},
        {"{{ 1.5|round(-9223372036854775807 - 1) }}", "0.0"},
        {"{{ none[-9223372036854775807 - 1] is defined }}", "False"}, {"{{ 'abc'[-9223372036854775807 - 1] is defined }}", "False"},
        {"{{ 2.225073858507203e-310 }}", "2.2250738585072e-310"},
    };
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__text out;
    int i;
    for (i = 0; i < FG__COUNT(pairs); i++) {
        fg_result r = chat_render(&env, pairs[i][0], &out);
        if (i) CHECKF(r == FG_OK && strcmp(out.data, pairs[i][1]) == 0, "%s: %s", pairs[i][0], r == FG_OK ? out.data : fg_last_error());
        else CHECKF(r == FG_ERROR_TEMPLATE, "%s", out.data); /* integers have 64 bits */
        fg__text_free(&out);
    }
}

static void test_chat_deep(void) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    size_t n = 200000;
    char *text = (char *)calloc(1, n + 8);
    fg__text out;
    memcpy(text, "{{ ", 3);
    memset(text + 3, '(', n);
    CHECK(chat_render(&env, text, &out) == FG_ERROR_TEMPLATE);
    fg__text_free(&out);
    free(text);
}

static void test_chat_out_of_memory(void) {
    static const char text[] = "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{% for x in list if x > 1 %}{{ m(x) | upper }}"
                               "{{ {'k': [x, name]} | tojson }}{% endfor %}";
    int i;
    for (i = 1;; i++) {
        fg_allocator allocator = test_allocator(i);
        fg__env env = fg__env_make(&allocator, NULL, NULL);
        fg__text out;
        fg_result r = chat_render(&env, text, &out);
        bool failed = test_alloc_failed();
        CHECK(r == (failed ? FG_ERROR_OUT_OF_MEMORY : FG_OK) || (r == FG_OK && out.failed));
        if (!failed) CHECKF(strcmp(out.data, "2-2{\"k\": [2, \"x\"]}3-2{\"k\": [3, \"x\"]}") == 0, "%s", out.data);
        fg__text_free(&out);
        CHECK(test_alloc_live() == 0);
        if (!failed) break;
    }
    CHECK(i > 3);
}

static void run_chat_tests(void) {
    RUN(test_chat_goldens);
    RUN(test_chat_star);
    RUN(test_chat_generators);
    RUN(test_chat_filtered_loops);
    RUN(test_chat_fromkeys);
    RUN(test_chat_title);
    RUN(test_chat_string_methods);
    RUN(test_chat_specials);
    RUN(test_chat_scopes);
    RUN(test_chat_time);
    RUN(test_chat_now);
    RUN(test_chat_hostile);
    RUN(test_chat_large_json);
    RUN(test_chat_odd);
    RUN(test_chat_long_json);
    RUN(test_chat_extremes);
    RUN(test_chat_deep);
    RUN(test_chat_out_of_memory);
}
