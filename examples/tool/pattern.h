/* Regular expressions (ECMA-262, as JSON Schema's `pattern` has them) as deterministic automata over the bytes of UTF-8: Thompson's
   construction, then sets of its states. A text matches as a whole, as if ^ and $ were around the expression, which a search for it then finds,
   too. What is no regular language, or looks around, is refused: back references, lookaheads, \b; so are \p, and ^ and $ within. */

enum { PATTERN_MAX_DEPTH = 64, PATTERN_MAX_RANGES = 512, PATTERN_MAX_PARTS = 60000, PATTERN_MAX_STATES = 8192, PATTERN_MAX_REPEATS = 10000,
       PATTERN_MAX_WORK = 5000000 /* steps that all of a schema's may take to make: a tenth of a second */ };

/* What grammars step through. State 0 has no way on. */
typedef struct pattern_machine {
    uint16_t (*next)[256];
    bool *accepts;
    int n;
    long work;
} pattern_machine;

/* A byte from low to high leads to `next`; low > high: nothing does, and to `other`, too. -1: none. */
typedef struct pattern_part {
    int low, high, next, other;
} pattern_part;

/* Characters, as ranges. */
typedef struct pattern_class {
    uint32_t low[PATTERN_MAX_RANGES], high[PATTERN_MAX_RANGES];
    int n;
} pattern_class;

typedef struct pattern_piece {
    int begin, end; /* parts; end has no next yet */
} pattern_piece;

typedef struct pattern {
    const char *at, *end;
    pattern_part *parts;
    int n, depth;
    long *work;        /* the machine's */
    bool json;         /* what JSON can only write as \u is left out */
    const char *error; /* NULL: none */
} pattern;

static pattern_piece pattern_fail(pattern *p, const char *error) {
    pattern_piece none = {0, 0};
    if (!p->error) p->error = error;
    p->at = p->end;
    return none;
}

static int pattern_add(pattern *p, int low, int high, int next, int other) {
    pattern_part *part;
    if (p->n == PATTERN_MAX_PARTS || *p->work > PATTERN_MAX_WORK) return pattern_fail(p, "it is too long").begin;
    if (p->n % 1024 == 0) p->parts = (pattern_part *)xrealloc(p->parts, (size_t)(p->n + 1024) * sizeof(pattern_part));
    part = &p->parts[p->n];
    part->low = low;
    part->high = high;
    part->next = next;
    part->other = other;
    return p->n++;
}

static int pattern_join(pattern *p, int next, int other) { return pattern_add(p, 1, 0, next, other); }

static int pattern_peek(const pattern *p) { return p->at < p->end ? (unsigned char)*p->at : -1; }

static bool pattern_skip(pattern *p, char c) {
    if (pattern_peek(p) != (unsigned char)c) return false;
    p->at++;
    return true;
}

/* ---- characters -------------------------------------------------------------------------------- */

static void pattern_class_add(pattern *p, pattern_class *c, uint32_t low, uint32_t high) {
    if (c->n == PATTERN_MAX_RANGES) {
        pattern_fail(p, "a class is too long");
        return;
    }
    c->low[c->n] = low;
    c->high[c->n++] = high;
}

/* In order, and apart. */
static void pattern_class_sort(pattern_class *c) {
    int i, k, n = 0;
    for (i = 1; i < c->n; i++)
        for (k = i; k > 0 && c->low[k] < c->low[k - 1]; k--) {
            uint32_t low = c->low[k], high = c->high[k];
            c->low[k] = c->low[k - 1], c->high[k] = c->high[k - 1];
            c->low[k - 1] = low, c->high[k - 1] = high;
        }
    for (i = 1; i < c->n; i++) {
        if (c->low[i] > c->high[n] + 1) n++, c->low[n] = c->low[i], c->high[n] = c->high[i];
        else if (c->high[i] > c->high[n]) c->high[n] = c->high[i];
    }
    if (c->n) c->n = n + 1;
}

/* Adds all characters that are not in a class. */
static void pattern_class_add_others(pattern *p, pattern_class *c, pattern_class *of) {
    uint32_t from = 0;
    int i;
    pattern_class_sort(of);
    for (i = 0; i < of->n; i++) {
        if (of->low[i] > from) pattern_class_add(p, c, from, of->low[i] - 1);
        from = of->high[i] + 1;
    }
    if (from <= 0x10FFFF) pattern_class_add(p, c, from, 0x10FFFF);
}

/* Adds \d, \w, \s or, in capitals, all others; '.': all but the ends of lines. false: another letter. */
static bool pattern_class_add_named(pattern *p, pattern_class *c, int name) {
    static const uint32_t digits[] = {'0', '9', 0}, words[] = {'0', '9', 'A', 'Z', '_', '_', 'a', 'z', 0}, ends[] = {10, 10, 13, 13, 0x2028, 0x2029, 0};
    static const uint32_t spaces[] = {9, 13, 32, 32, 0xA0, 0xA0, 0x1680, 0x1680, 0x2000, 0x200A, 0x2028, 0x2029, 0x202F, 0x202F,
                                      0x205F, 0x205F, 0x3000, 0x3000, 0xFEFF, 0xFEFF, 0};
    const uint32_t *list = name == '.' ? ends : (name | 32) == 'd' ? digits : (name | 32) == 'w' ? words : (name | 32) == 's' ? spaces : NULL;
    pattern_class some;
    some.n = 0;
    for (; list && *list; list += 2) pattern_class_add(p, name >= 'a' ? c : &some, list[0], list[1]);
    if (list && name < 'a') pattern_class_add_others(p, c, &some);
    return list != NULL;
}

/* A character of UTF-8. */
static uint32_t pattern_character(pattern *p) {
    int c = pattern_peek(p), more = c < 0xC2 ? 0 : c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3, i;
    uint32_t value = (uint32_t)(more ? c & (0x3F >> more) : c);
    if (c < 0 || (c >= 0x80 && c < 0xC2) || c > 0xF4 || p->end - p->at <= more) return (uint32_t)pattern_fail(p, "it ends within a character").begin;
    for (i = 1; i <= more; i++) value = value << 6 | ((unsigned char)p->at[i] & 0x3F);
    p->at += more + 1;
    return value;
}

static uint32_t pattern_hex(pattern *p, int digits) {
    uint32_t value = 0;
    for (; digits > 0 && json_is_hex(pattern_peek(p)); digits--) {
        int c = *p->at++ | 32;
        value = value << 4 | (uint32_t)(c >= 'a' ? c - 'a' + 10 : c & 15);
    }
    if (digits) pattern_fail(p, "\\x and \\u need hexadecimal digits");
    return value;
}

/* \uHHHH, two of which are a character beyond 0xFFFF, or \u{H...}. */
static uint32_t pattern_unicode(pattern *p) {
    uint32_t high, low;
    int n = 0;
    if (pattern_skip(p, '{')) {
        while (n < 6 && p->end - p->at > n && json_is_hex((unsigned char)p->at[n])) n++;
        high = pattern_hex(p, n ? n : 1);
        if (!pattern_skip(p, '}') || high > 0x10FFFF) pattern_fail(p, "a bad \\u{}");
        return high;
    }
    high = pattern_hex(p, 4);
    if (high < 0xD800 || high > 0xDBFF || p->end - p->at < 6 || p->at[0] != '\\' || p->at[1] != 'u') return high;
    p->at += 2;
    low = pattern_hex(p, 4);
    if (low < 0xDC00 || low > 0xDFFF) pattern_fail(p, "half a character");
    return 0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF);
}

/* Behind a backslash: a character; what stands for several is added to the class, and not a character (false). */
static bool pattern_escape(pattern *p, pattern_class *c, uint32_t *character) {
    static const char letters[] = "tnvfr";
    int name = pattern_peek(p);
    const char *letter = name > 0 ? strchr(letters, name) : NULL;
    if (name > 0 && name < 0x80 && name != '.' && pattern_class_add_named(p, c, name)) return p->at++, false;
    if (name >= 0) p->at++;
    if (letter) *character = (uint32_t)(9 + (letter - letters));
    else if (name == 'x') *character = pattern_hex(p, 2);
    else if (name == 'u') *character = pattern_unicode(p);
    else if (name == '0' && !(pattern_peek(p) >= '0' && pattern_peek(p) <= '9')) *character = 0;
    else if (name < 0 || name >= 0x80 || (name >= '0' && name <= '9') || ((name | 32) >= 'a' && (name | 32) <= 'z'))
        pattern_fail(p, "an escape that is not supported");
    else *character = (uint32_t)name;
    return true;
}

/* One character, or what stands for several, within [ ]. */
static bool pattern_class_item(pattern *p, pattern_class *c, uint32_t *character) {
    if (!pattern_skip(p, '\\')) return *character = pattern_character(p), true;
    if (pattern_skip(p, 'b')) return *character = 8, true;
    return pattern_escape(p, c, character);
}

/* An item within [ ], or two with - between them: a range, or these and a - where one of them stands for several (ECMA-262, B.1.2). */
static void pattern_class_range(pattern *p, pattern_class *c) {
    uint32_t low = 0, high;
    bool single = pattern_class_item(p, c, &low);
    if (!single) return;
    high = low;
    if (p->end - p->at > 1 && p->at[0] == '-' && p->at[1] != ']') {
        p->at++;
        if (!pattern_class_item(p, c, &high)) pattern_class_add(p, c, '-', '-'), high = low;
        else if (high < low) pattern_fail(p, "a range of a class that is none");
    }
    if (!p->error) pattern_class_add(p, c, low, high);
}

/* Behind a [. */
static void pattern_class_read(pattern *p, pattern_class *c) {
    pattern_class some;
    bool others = pattern_skip(p, '^');
    some.n = 0;
    while (pattern_peek(p) >= 0 && pattern_peek(p) != ']') pattern_class_range(p, &some);
    if (!pattern_skip(p, ']')) pattern_fail(p, "a [ without its ]");
    if (others) pattern_class_add_others(p, c, &some);
    else *c = some;
}

/* ---- parts ------------------------------------------------------------------------------------- */

static int pattern_encode(uint32_t c, unsigned char bytes[4]) {
    int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4, i;
    for (i = n - 1; i > 0; i--, c >>= 6) bytes[i] = (unsigned char)(0x80 | (c & 0x3F));
    bytes[0] = (unsigned char)(n == 1 ? c : (0xF00u >> n & 0xFF) | c);
    return n;
}

/* Bytes low to high, then `next`: a part that does that is looked for from part `from` on, as states are fewer where ends are shared. */
static int pattern_share(pattern *p, int from, int low, int high, int next) {
    for (; from < p->n; from++)
        if (p->parts[from].low == low && p->parts[from].high == high && p->parts[from].next == next) return from;
    return pattern_add(p, low, high, next, -1);
}

/* One more way from *begin to part `end`: characters low to high, cut where the ranges of their bytes do not depend on each other. */
static void pattern_add_range(pattern *p, uint32_t low, uint32_t high, int *begin, int end) {
    static const uint32_t last[] = {0x7F, 0x7FF, 0xFFFF};
    unsigned char first[4], final[4];
    int i, n, next = end;
    for (i = 0; i < 3; i++)
        if (low <= last[i] && high > last[i]) {
            pattern_add_range(p, low, last[i], begin, end);
            low = last[i] + 1;
        }
    for (i = 1; i < 4 && low > 0x7F; i++) {
        uint32_t rest = (1u << 6 * i) - 1, cut = low & rest ? low | rest : (high & ~rest) - 1;
        if ((low & ~rest) == (high & ~rest) || (!(low & rest) && (high & rest) == rest)) continue;
        pattern_add_range(p, low, cut, begin, end);
        pattern_add_range(p, cut + 1, high, begin, end);
        return;
    }
    pattern_encode(low, first);
    n = pattern_encode(high, final);
    for (i = n - 1; i >= 0; i--) next = pattern_share(p, end, first[i], final[i], next);
    *begin = pattern_join(p, next, *begin);
}

/* The characters of a class that strings can have. */
static pattern_piece pattern_of_class(pattern *p, pattern_class *c) {
    static const uint32_t never[] = {0, 7, 11, 11, 14, 31, 127, 127, 0xD800, 0xDFFF}; /* but for the last as \u alone, in JSON */
    pattern_piece piece;
    pattern_class gone, kept;
    int i;
    gone.n = kept.n = 0;
    for (i = p->json ? 0 : 8; i < 10; i += 2) pattern_class_add(p, &gone, never[i], never[i + 1]);
    *p->work += (long)c->n * c->n / 4;
    pattern_class_add_others(p, &gone, c);
    pattern_class_add_others(p, &kept, &gone);
    piece.begin = -1;
    piece.end = pattern_join(p, -1, -1);
    for (i = 0; i < kept.n && !p->error; i++) pattern_add_range(p, kept.low[i], kept.high[i], &piece.begin, piece.end);
    piece.begin = pattern_join(p, piece.begin, -1);
    return piece;
}

static pattern_piece pattern_alternatives(pattern *p);

static pattern_piece pattern_group(pattern *p) {
    pattern_piece piece;
    if (++p->depth > PATTERN_MAX_DEPTH) return pattern_fail(p, "groups are nested too deeply");
    if (pattern_skip(p, '?') && !pattern_skip(p, ':')) {
        if (!pattern_skip(p, '<') || pattern_peek(p) == '=' || pattern_peek(p) == '!') return pattern_fail(p, "looking ahead or behind is not supported");
        while (pattern_peek(p) >= 0 && pattern_peek(p) != '>') p->at++;
        p->at += p->at < p->end;
    }
    piece = pattern_alternatives(p);
    if (!pattern_skip(p, ')')) return pattern_fail(p, "a ( without its )");
    p->depth--;
    return piece;
}

static pattern_piece pattern_characters(pattern *p) {
    pattern_class c;
    uint32_t character = 0;
    c.n = 0;
    if (pattern_skip(p, '[')) pattern_class_read(p, &c);
    else if (pattern_skip(p, '.')) pattern_class_add_named(p, &c, '.');
    else if (!pattern_skip(p, '\\')) character = pattern_character(p), pattern_class_add(p, &c, character, character);
    else if (pattern_escape(p, &c, &character)) pattern_class_add(p, &c, character, character);
    return pattern_of_class(p, &c);
}

static pattern_piece pattern_atom(pattern *p) {
    int c = pattern_peek(p);
    if (c == '*' || c == '+' || c == '?') return pattern_fail(p, "nothing to repeat");
    if (c == '^' || c == '$') return pattern_fail(p, "^ and $ are only supported at its ends");
    return pattern_skip(p, '(') ? pattern_group(p) : pattern_characters(p);
}

static int pattern_count(pattern *p) {
    int value = 0;
    for (; pattern_peek(p) >= '0' && pattern_peek(p) <= '9'; p->at++)
        value = value > PATTERN_MAX_REPEATS ? value : 10 * value + (*p->at - '0');
    return value;
}

/* {least}, {least,} or {least,most}; false: a { that stands for itself. */
static bool pattern_counts(pattern *p, int *least, int *most) {
    const char *begin = p->at++;
    bool any = pattern_peek(p) >= '0' && pattern_peek(p) <= '9';
    *least = *most = pattern_count(p);
    if (pattern_skip(p, ',')) *most = pattern_peek(p) == '}' ? -1 : pattern_count(p);
    if (any && pattern_skip(p, '}')) return true;
    p->at = begin;
    *least = *most = 1;
    return false;
}

/* How often what was read may come; most -1: without end. */
static void pattern_repeats(pattern *p, int *least, int *most) {
    int c = pattern_peek(p);
    *least = *most = 1; /* unless it says otherwise */
    if (c != '*' && c != '+' && c != '?' && !(c == '{' && pattern_counts(p, least, most))) return;
    if (c != '{') {
        *least = c == '+';
        *most = c == '?' ? 1 : -1;
        p->at++;
    }
    pattern_skip(p, '?'); /* the same language */
    if (*most >= 0 && *most < *least) pattern_fail(p, "a repetition from more to less");
    if (*least > PATTERN_MAX_REPEATS || *most > PATTERN_MAX_REPEATS) pattern_fail(p, "too many repetitions");
}

/* Reads one again, from `from` on: each repetition has parts of its own. */
static pattern_piece pattern_again(pattern *p, const char *from) {
    p->at = from;
    return p->error ? pattern_fail(p, p->error) : pattern_atom(p);
}

/* An atom and how often it comes. */
static pattern_piece pattern_item(pattern *p) {
    const char *from = p->at, *behind;
    pattern_piece whole, one = pattern_atom(p);
    int least, most, last, i, way, copies;
    pattern_repeats(p, &least, &most);
    if (p->error || (least == 1 && most == 1)) return one;
    behind = p->at;
    copies = most >= 0 ? most : least ? least : 1;
    whole.begin = whole.end = pattern_join(p, -1, -1);
    last = pattern_join(p, -1, -1);
    for (i = 0; i < copies && !p->error; i++) {
        if (i) one = pattern_again(p, from);
        way = i < least ? one.begin : pattern_join(p, one.begin, last);
        p->parts[whole.end].next = way;
        whole.end = one.end;
    }
    way = most < 0 ? pattern_join(p, one.begin, last) : last; /* the last one again and again */
    p->parts[whole.end].next = way;
    whole.end = last;
    if (!p->error) p->at = behind;
    return whole;
}

static pattern_piece pattern_sequence(pattern *p) {
    pattern_piece whole;
    whole.begin = whole.end = pattern_join(p, -1, -1);
    if (p->depth == 0) pattern_skip(p, '^');
    while (!p->error && pattern_peek(p) >= 0 && pattern_peek(p) != '|' && pattern_peek(p) != ')') {
        pattern_piece one;
        if (p->depth == 0 && *p->at == '$' && (p->end - p->at == 1 || p->at[1] == '|')) {
            p->at++;
            break;
        }
        one = pattern_item(p);
        if (p->error) break;
        p->parts[whole.end].next = one.begin;
        whole.end = one.end;
    }
    return whole;
}

static pattern_piece pattern_alternatives(pattern *p) {
    pattern_piece whole = pattern_sequence(p), one;
    int last = pattern_join(p, -1, -1);
    if (!p->error) p->parts[whole.end].next = last;
    while (!p->error && pattern_skip(p, '|')) {
        one = pattern_sequence(p);
        if (p->error) break;
        p->parts[one.end].next = last;
        whole.begin = pattern_join(p, whole.begin, one.begin);
    }
    whole.end = last;
    return whole;
}

/* ---- the machine ------------------------------------------------------------------------------- */

/* A state that is being made: parts, those that a byte leads on from and the last one, and the characters so far. */
typedef struct pattern_set {
    int at, n; /* in pool */
    uint32_t hash;
    int64_t count;
} pattern_set;

typedef struct pattern_edge {
    int from, to, other; /* other: the next one to the same state; -1: none */
} pattern_edge;

/* What is in all states of an expression, of which the first is state `first` of the machine. */
typedef struct pattern_sets {
    const pattern *p;
    pattern_machine *machine;
    int64_t least, most;      /* characters */
    pattern_set *sets;
    pattern_edge *edges;
    int *pool, *seen, *stack; /* seen: [part] at which mark it was last */
    int first, last, n, n_pool, capacity, n_edges, mark; /* last: part */
} pattern_sets;

/* Room for one more than n, which grows to twice as much. */
static void *pattern_grow(void *list, int n, size_t bytes) {
    return n & (n - 1) ? list : xrealloc(list, (size_t)(n ? 2 * n : 1) * bytes);
}

/* Room for one more set. */
static void pattern_reserve(pattern_sets *s) {
    if (s->capacity - s->n_pool >= s->p->n) return;
    s->capacity = 2 * s->capacity + s->p->n;
    s->pool = (int *)xrealloc(s->pool, (size_t)s->capacity * sizeof(int));
}

/* Adds a part and all that it leads to without a byte to the set that begins there in the pool, in order. */
static void pattern_close(pattern_sets *s, int part, int begin) {
    int top = 0, i;
    s->stack[top++] = part;
    while (top) {
        const pattern_part *at;
        part = s->stack[--top];
        if (part < 0 || s->seen[part] == s->mark) continue;
        at = &s->p->parts[part];
        s->seen[part] = s->mark;
        s->machine->work++;
        if (at->low > at->high && part != s->last) {
            s->stack[top++] = at->next;
            s->stack[top++] = at->other;
            continue;
        }
        for (i = s->n_pool++; i > begin && s->pool[i - 1] > part; i--, s->machine->work++) s->pool[i] = s->pool[i - 1];
        s->pool[i] = part;
    }
}

static int pattern_add_state(pattern_machine *m) {
    m->next = (uint16_t(*)[256])pattern_grow(m->next, m->n, sizeof(m->next[0]));
    m->accepts = (bool *)pattern_grow(m->accepts, m->n, sizeof(bool));
    memset(m->next[m->n], 0, sizeof(m->next[0]));
    m->accepts[m->n] = false;
    return m->n++;
}

/* The number of the set that is at the end of the pool, a new one where there is none yet; -1: too many. */
static int pattern_find(pattern_sets *s, int begin, int64_t count) {
    pattern_set *set;
    int n = s->n_pool - begin, i;
    uint32_t hash = (uint32_t)count;
    for (i = begin; i < s->n_pool; i++) hash = hash * 16777619u ^ (uint32_t)s->pool[i];
    for (i = 0; i < s->n; i++) {
        set = &s->sets[i];
        if (set->hash != hash || set->n != n || set->count != count) continue;
        if (n && memcmp(s->pool + set->at, s->pool + begin, (size_t)n * sizeof(int)) != 0) continue;
        s->n_pool = begin;
        return i;
    }
    if (s->machine->n == PATTERN_MAX_STATES) return -1;
    s->sets = (pattern_set *)pattern_grow(s->sets, s->n, sizeof(pattern_set));
    set = &s->sets[s->n];
    set->at = begin;
    set->n = n;
    set->hash = hash;
    set->count = count;
    pattern_add_state(s->machine);
    return s->n++;
}

/* Where bytes low to high - 1, which all parts of a set take for the same, lead from it. A byte that does not go on with a character begins
   one. false: too much. */
static bool pattern_step(pattern_sets *s, int from, int low, int high) {
    const pattern_set set = s->sets[from];
    int64_t count = set.count + ((low & 0xC0) != 0x80);
    int begin = s->n_pool, k, to;
    if (count > s->most) return true;
    if (s->most == INT64_MAX && count > s->least) count = s->least;
    pattern_reserve(s);
    s->mark++;
    for (k = 0; k < set.n; k++) {
        const pattern_part *part = &s->p->parts[s->pool[set.at + k]];
        if (part->low <= low && low <= part->high) pattern_close(s, part->next, begin);
    }
    if (s->n_pool == begin) return true;
    if ((to = pattern_find(s, begin, count)) < 0) return false;
    for (k = low; k < high; k++) s->machine->next[s->first + from][k] = (uint16_t)(s->first + to);
    s->edges = (pattern_edge *)pattern_grow(s->edges, s->n_edges, sizeof(pattern_edge));
    s->edges[s->n_edges].from = from;
    s->edges[s->n_edges++].to = to;
    return s->machine->work < PATTERN_MAX_WORK;
}

/* All steps from a set, cut where its parts tell bytes apart, and where bytes begin or end to go on with a character. */
static bool pattern_steps(pattern_sets *s, int from) {
    bool cut[257] = {false};
    int k, low = 0;
    cut[0x80] = cut[0xC0] = cut[256] = true;
    for (k = 0; k < s->sets[from].n; k++) {
        const pattern_part *part = &s->p->parts[s->pool[s->sets[from].at + k]];
        if (part->low <= part->high) cut[part->low] = cut[part->high + 1] = true;
    }
    for (k = 1; k <= 256; k++) {
        if (!cut[k]) continue;
        if (!pattern_step(s, from, low, k)) return false;
        low = k;
    }
    return true;
}

/* Whether a text may end in a set. */
static bool pattern_ends(const pattern_sets *s, int set) {
    int k;
    for (k = 0; k < s->sets[set].n; k++)
        if (s->pool[s->sets[set].at + k] == s->last) return s->sets[set].count >= s->least;
    return false;
}

/* Finds which sets a text can end from; takes away all ways to others. */
static void pattern_prune(pattern_sets *s) {
    pattern_machine *m = s->machine;
    int *head = (int *)xrealloc(NULL, (size_t)s->n * 2 * sizeof(int)), *todo = head + s->n, n = 0, i, k;
    bool *alive = (bool *)xrealloc(NULL, (size_t)s->n);
    for (i = 0; i < s->n; i++) {
        head[i] = -1;
        alive[i] = m->accepts[s->first + i] = pattern_ends(s, i);
        if (alive[i]) todo[n++] = i;
    }
    for (i = 0; i < s->n_edges; i++) s->edges[i].other = head[s->edges[i].to], head[s->edges[i].to] = i;
    while (n)
        for (k = head[todo[--n]]; k >= 0; k = s->edges[k].other)
            if (!alive[s->edges[k].from]) alive[s->edges[k].from] = true, todo[n++] = s->edges[k].from;
    for (i = 0; i < s->n; i++)
        for (k = 0; k < 256; k++)
            if (m->next[s->first + i][k] && !alive[m->next[s->first + i][k] - s->first]) m->next[s->first + i][k] = 0;
    free(head);
    free(alive);
}

/* Makes the states; false: too many. */
static bool pattern_make(pattern_sets *s, int begin) {
    bool good = true;
    int i;
    s->seen = (int *)xrealloc(NULL, (size_t)s->p->n * sizeof(int));
    s->stack = (int *)xrealloc(NULL, (size_t)(2 * s->p->n + 2) * sizeof(int));
    pattern_reserve(s);
    memset(s->seen, 0, (size_t)s->p->n * sizeof(int));
    s->mark = 1;
    pattern_close(s, begin, 0);
    good = pattern_find(s, 0, 0) == 0;
    for (i = 0; i < s->n && good; i++) good = pattern_steps(s, i);
    if (good) pattern_prune(s);
    free(s->seen);
    free(s->stack);
    free(s->pool);
    free(s->sets);
    free(s->edges);
    return good;
}

/* Whether a text can go on from a state. */
static bool pattern_goes_on(const pattern_machine *m, int state) {
    int k = 0;
    while (k < 256 && !m->next[state][k]) k++;
    return k < 256;
}

/* Adds an expression to a machine, of texts of least to most characters: the state that they begin at; 0: *error says what is wrong.
   json: texts are strings of JSON, where control characters other than \b, \t, \n, \f and \r are only written as \u, and so left out. */
static int pattern_compile(pattern_machine *m, const char *text, size_t length, bool json, int64_t least, int64_t most, const char **error) {
    pattern_sets s;
    pattern_piece whole;
    pattern p;
    memset(&p, 0, sizeof(p));
    memset(&s, 0, sizeof(s));
    p.at = text;
    p.end = text + length;
    p.json = json;
    p.work = &m->work;
    whole = pattern_alternatives(&p);
    if (p.at < p.end) pattern_fail(&p, "a ) without its (");
    if (!m->n) pattern_add_state(m);
    s.p = &p;
    s.machine = m;
    s.least = least;
    s.most = most;
    s.first = m->n;
    s.last = whole.end;
    if (!p.error && !pattern_make(&s, whole.begin)) pattern_fail(&p, "it has too many states");
    if (!p.error && !m->accepts[s.first] && !pattern_goes_on(m, s.first)) pattern_fail(&p, "no text matches it");
    free(p.parts);
    *error = p.error;
    return p.error ? 0 : s.first;
}

static void pattern_machine_free(pattern_machine *m) {
    free(m->next);
    free(m->accepts);
}
