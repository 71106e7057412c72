/* Answers that must be JSON: which bytes may come next, by a JSON schema, and so which tokens. A schema becomes a list of nodes,
   an answer is followed byte by byte on a stack of open objects and arrays, without recursion; where alternatives begin alike, on
   a stack for each. What is written satisfies the schema, but not everything that would is written: properties come in the
   schema's order, where a schema lists properties there are no others, and numbers with limits have no exponent. Keywords that
   cannot be kept are refused by name. */

enum { GRAMMAR_MAX_DEPTH = 32, GRAMMAR_MAX_NODES = 4096, GRAMMAR_MAX_LITERALS = 1000, GRAMMAR_MAX_PROPERTIES = 256,
       GRAMMAR_MAX_LOOKED = 10000000, /* members that are compared for all $refs together */
       GRAMMAR_MAX_TEXTS = 20000, GRAMMAR_MAX_SPACES = 24, GRAMMAR_MAX_DIGITS = 24, GRAMMAR_MAX_PATHS = 32, GRAMMAR_MAX_PLACES = 15, GRAMMAR_MAX_CALLS = 64,
       GRAMMAR_MAX_FORMAT = 64 /* characters */ };

/* What a number with limits is at most, in units of its last place. */
#define GRAMMAR_MOST INT64_C(999999999999999999)

typedef struct grammar_text {
    size_t at, length; /* in pool */
    int property;      /* of a key: which of its object's; of a value in alternatives: which of these */
    double number;     /* of a value that is a number; NAN: of others */
} grammar_text;

typedef struct grammar_node {
    unsigned types;               /* 1 << json_type: any value of these types */
    unsigned literal_types;       /* the same, of the values in literals */
    int literals, n_literals;     /* texts, in order */
    int properties, n_properties; /* none: any keys, each with a value of `extra` */
    int keys;                     /* texts of the properties' keys, in order, without quotes */
    int extra, items;             /* nodes; -1: none */
    int prefix, n_prefix;         /* the nodes of the first items, in `choices` */
    int choices, n_choices;       /* alternatives that may begin alike, in `choices`; the node has what is known of all of them */
    int selects;                  /* objects in `choices`, of which the value, by its `property`, says which the open one is; -1: none */
    int height;                   /* levels of objects and arrays that the least value has; above GRAMMAR_MAX_DEPTH: too many */
    int64_t least, most;          /* items */
    int64_t shortest, longest;    /* strings, in characters */
    int pattern;                  /* of strings: a state of the machine that they begin at, which counts characters, too; 0: none */
    int64_t low, high;            /* numbers, in units of 10^-places */
    int places;                   /* digits behind the point at most; -1: any number */
    bool integer, open, merged;   /* open: still being read; merged: of alternatives */
    bool guessed;                 /* types are taken from other keywords, which let other types pass */
} grammar_node;

typedef struct grammar_property {
    int node;
    bool required;
} grammar_property;

typedef struct grammar_frame {
    int node, next; /* next: property that may come next, or items so far */
    int array;      /* or an object */
} grammar_frame;

typedef enum grammar_mode {
    GRAMMAR_VALUE, GRAMMAR_OBJECT, GRAMMAR_ARRAY, GRAMMAR_NEXT, GRAMMAR_KEY_QUOTE, GRAMMAR_KEY, GRAMMAR_COLON, GRAMMAR_STRING,
    GRAMMAR_ESCAPE, GRAMMAR_HEX, GRAMMAR_LITERAL, GRAMMAR_RAW, GRAMMAR_MINUS, GRAMMAR_ZERO, GRAMMAR_DIGITS, GRAMMAR_POINT, GRAMMAR_FRACTION,
    GRAMMAR_E, GRAMMAR_SIGN, GRAMMAR_EXPONENT, GRAMMAR_DONE
} grammar_mode;

/* Where an answer is, if it is what it is taken for. Paths are compared as bytes: there is no padding. */
typedef struct grammar_path {
    int64_t number;      /* with limits: its digits so far */
    int mode;            /* grammar_mode */
    int key;             /* the string is a key */
    int left, spaces;    /* bytes of a character or an escape that are to come, or digits so far; bytes of white space, see grammar_space */
    int node;            /* of the value that is read or to come */
    int low, high, at;   /* texts that it may be, and how many of their bytes, which they share, were read; at: characters of a string;
                            low: the state of its pattern */
    int last;            /* property that a key may be at most */
    int places, minus;   /* of the number: digits behind the point; whether it is negative */
    int depth;
    grammar_frame frames[GRAMMAR_MAX_DEPTH];
} grammar_path;

/* All that it may be. Each path has a way on without the others. */
typedef struct grammar_state {
    int n;
    grammar_path paths[GRAMMAR_MAX_PATHS];
} grammar_state;

/* One sample of a request. */
typedef struct grammar_sample {
    grammar_state state;
    int begin, at; /* positions of its first token, and behind the last that was followed; begin 0: none was */
    bool lost;
} grammar_sample;

/* The tokens of a model, as bytes. */
typedef struct grammar_vocab {
    const fg_model *model;
    int n;
    const char **texts;
    unsigned char *lengths, *kinds; /* lengths: up to 255; kinds: GRAMMAR_* */
} grammar_vocab;

enum { GRAMMAR_NEVER, GRAMMAR_PLAIN, GRAMMAR_MIXED, GRAMMAR_END };

typedef struct grammar {
    str pool;
    grammar_text *texts;
    grammar_node *nodes;
    grammar_property *properties;
    int *choices; /* nodes */
    int n_texts, n_nodes, n_properties, n_choices, root;
    pattern_machine patterns;
    grammar_path first; /* where answers begin */
    const grammar_vocab *vocab;
    grammar_sample *samples;
    char error[160]; /* empty: none */
    /* while a schema is read */
    const json *j;
    const json_node *schema;
    int *made; /* [j->n] node of a schema + 1 */
    long looked; /* at members, for $refs */
} grammar;

static void grammar_free(grammar *g) {
    if (!g) return;
    str_free(&g->pool);
    free(g->texts);
    free(g->nodes);
    free(g->properties);
    free(g->choices);
    pattern_machine_free(&g->patterns);
    free(g->samples);
    free(g);
}

/* ---- from a schema ----------------------------------------------------------------------------- */

static int grammar_fail(grammar *g, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(g->error, sizeof(g->error), format, args);
    va_end(args);
    return -1;
}

/* The text that is at the end of the pool from `begin` on. */
static int grammar_add_text(grammar *g, size_t begin) {
    g->texts = (grammar_text *)xrealloc(g->texts, (size_t)(g->n_texts + 1) * sizeof(grammar_text));
    g->texts[g->n_texts].at = begin;
    g->texts[g->n_texts].length = g->pool.length - begin;
    g->texts[g->n_texts].property = 0;
    g->texts[g->n_texts].number = NAN;
    return g->n_texts++;
}

static int grammar_add_node(grammar *g, unsigned types) {
    grammar_node *node;
    if (g->n_nodes == GRAMMAR_MAX_NODES) return grammar_fail(g, "the schema has more than %d parts", GRAMMAR_MAX_NODES);
    g->nodes = (grammar_node *)xrealloc(g->nodes, (size_t)(g->n_nodes + 1) * sizeof(grammar_node));
    node = &g->nodes[g->n_nodes];
    memset(node, 0, sizeof(*node));
    node->types = types;
    node->extra = node->items = node->selects = -1;
    node->most = node->longest = INT64_MAX;
    node->places = -1;
    node->height = GRAMMAR_MAX_DEPTH + 1;
    return g->n_nodes++;
}

/* n nodes, which are yet to be set: where they are in `choices`. */
static int grammar_add_choices(grammar *g, int n) {
    g->choices = (int *)xrealloc(g->choices, (size_t)(g->n_choices + n + 1) * sizeof(int));
    g->n_choices += n;
    return g->n_choices - n;
}

static const char *grammar_text_of(const grammar *g, int i) { return g->pool.data + g->texts[i].at; }

static int grammar_compare(const grammar *g, int x, int y) {
    size_t n = g->texts[x].length < g->texts[y].length ? g->texts[x].length : g->texts[y].length;
    int order = memcmp(grammar_text_of(g, x), grammar_text_of(g, y), n);
    return order ? order : g->texts[x].length < g->texts[y].length ? -1 : g->texts[x].length > g->texts[y].length;
}

/* A value as an answer has it. */
static void grammar_add_value(const json *j, const json_node *value, str *to) {
    str text = {NULL, 0, 0};
    if (value->type == JSON_STRING) {
        json_add_text(j, value, &text);
        str_json(to, text.data ? text.data : "", text.length);
    } else {
        str_add(to, j->text + value->begin, value->end - value->begin);
    }
    str_free(&text);
}

/* Sorts the last text in among those from `first` on. */
static void grammar_sort_in(grammar *g, int first) {
    int i = g->n_texts - 1;
    for (; i > first && grammar_compare(g, i - 1, i) > 0; i--) {
        grammar_text swap = g->texts[i];
        g->texts[i] = g->texts[i - 1];
        g->texts[i - 1] = swap;
    }
}

static void grammar_copy_text(grammar *g, int i) {
    g->texts = (grammar_text *)xrealloc(g->texts, (size_t)(g->n_texts + 1) * sizeof(grammar_text));
    g->texts[g->n_texts++] = g->texts[i];
}

/* A value of an enum as text, sorted in among those of the node. */
static void grammar_add_literal(grammar *g, const json_node *value, grammar_node *node) {
    size_t begin = g->pool.length;
    double number;
    int i;
    grammar_add_value(g->j, value, &g->pool);
    node->literal_types |= 1u << value->type;
    i = grammar_add_text(g, begin);
    if (json_real(g->j, value, &number)) g->texts[i].number = number;
    grammar_sort_in(g, node->literals);
    node->n_literals++;
}

static bool grammar_is_one_of(const json *j, const json_node *name, const char *const *list) {
    for (; *list; list++)
        if (json_is(j, name, *list)) return true;
    return false;
}

static bool grammar_is_true(const json *j, const json_node *value) {
    return value && value->type == JSON_BOOL && j->text[value->begin] == 't';
}

/* How much of a name a message shows. */
static int grammar_shown(const json_node *name) { return (int)(name->end - name->begin < 60 ? name->end - name->begin : 60); }

/* Whether a keyword with its value constrains what a schema takes, of those that are known: others are annotations (JSON Schema 2020-12,
   6.5). */
static bool grammar_constrains(const json *j, const json_node *name, const json_node *value) {
    static const char *const read[] = {"type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "enum",
                                       "const", "anyOf", "oneOf", "allOf", "$ref", "not", "if", "then", "else", "contains", NULL};
    static const char *const limits[] = {"pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
                                         "maxLength", "uniqueItems", "minContains", "maxContains", "prefixItems", "additionalItems",
                                         "minProperties", "maxProperties", "patternProperties", "propertyNames", "dependentRequired",
                                         "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties", "nullable",
                                         "$dynamicRef", "$recursiveRef", NULL};
    static const char *const least[] = {"minLength", "minProperties", NULL};
    static const char *const flags[] = {"uniqueItems", "nullable", "exclusiveMinimum", "exclusiveMaximum", NULL};
    const json_node *type = value->type == JSON_OBJECT && value->count == 1 ? json_get(j, value, "type") : NULL;
    double number;
    if (json_is(j, name, "propertyNames") && type && type->type == JSON_STRING && json_is(j, type, "string")) return false; /* as they all are */
    if (grammar_is_one_of(j, name, read)) return true;
    if (!grammar_is_one_of(j, name, limits) || value->type == JSON_NULL) return false;
    if (value->type == JSON_BOOL) return (j->text[value->begin] == 't') == grammar_is_one_of(j, name, flags);
    if (value->type == JSON_OBJECT) return value->count > 0;
    return !(grammar_is_one_of(j, name, least) && json_real(j, value, &number) && number == 0);
}

/* Whether all members of a schema are among `kept` or constrain nothing; `beside`: the keyword that goes with no others. */
static bool grammar_keeps(grammar *g, const json_node *schema, const char *const *kept, const char *beside) {
    const json_node *item = schema + 1;
    uint32_t i;
    for (i = 0; i < schema->count; i++, item = json_next(g->j, json_next(g->j, item)))
        if (grammar_constrains(g->j, item, json_next(g->j, item)) && !grammar_is_one_of(g->j, item, kept))
            return grammar_fail(g, "the schema's keyword '%.*s' is not supported%s%s", grammar_shown(item), g->j->text + item->begin,
                                beside ? " beside " : "", beside ? beside : "") == 0;
    return true;
}

static unsigned grammar_type(const json *j, const json_node *name, bool *integer) {
    static const char *const names[6] = {"null", "boolean", "number", "string", "array", "object"};
    int i;
    for (i = 0; name->type == JSON_STRING && i < 6; i++)
        if (json_is(j, name, names[i])) return 1u << i;
    if (name->type != JSON_STRING || !json_is(j, name, "integer")) return 0;
    *integer = true;
    return 1u << JSON_NUMBER;
}

/* A "type", or several, as bits; 0: an error. */
static unsigned grammar_types(grammar *g, const json_node *type, bool *integer) {
    uint32_t i, n = type->type == JSON_ARRAY ? type->count : 1;
    const json_node *item = type->type == JSON_ARRAY ? type + 1 : type;
    unsigned types = 0, bit = 1;
    for (i = 0; i < n && bit; i++, item = json_next(g->j, item)) types |= bit = grammar_type(g->j, item, integer);
    if (n == 0 || bit == 0) grammar_fail(g, "type: no such type");
    return n == 0 || bit == 0 ? 0 : types;
}

static int grammar_read(grammar *g, const json_node *schema, int depth);

/* A part of a JSON pointer (RFC 6901) in place: ~1 is a slash, ~0 a tilde. */
static void grammar_unescape(char *part) {
    char *to = part;
    for (; *part; part++) {
        bool escape = *part == '~' && (part[1] == '0' || part[1] == '1');
        *to++ = !escape ? *part : *++part == '0' ? '~' : '/';
    }
    *to = 0;
}

/* What a JSON pointer leads to; NULL: nothing. */
static const json_node *grammar_follow_pointer(grammar *g, char *pointer) {
    const json_node *at = g->schema;
    while (at && *pointer == '/' && (g->looked += (long)at->count) <= GRAMMAR_MAX_LOOKED) {
        char *part = pointer + 1, *next = part + strcspn(part, "/"), more = *next;
        *next = 0;
        grammar_unescape(part);
        at = json_get(g->j, at, part);
        *next = more;
        pointer = next;
    }
    return *pointer ? NULL : at;
}

/* "#/$defs/Name": a pointer as the fragment of a URI. */
static int grammar_read_ref(grammar *g, const json_node *ref, int depth) {
    const json_node *at = NULL;
    str text = {NULL, 0, 0};
    bool local, whole; /* whole: there is no NUL in it */
    str_puts(&text, "");
    if (ref->type == JSON_STRING) json_add_text(g->j, ref, &text);
    local = text.data[0] == '#';
    whole = strlen(text.data) == text.length;
    http_decode(text.data);
    if (local && whole) at = grammar_follow_pointer(g, text.data + 1);
    str_free(&text);
    if (!local) return grammar_fail(g, "$ref must begin with #");
    if (g->looked > GRAMMAR_MAX_LOOKED) return grammar_fail(g, "too many $refs among too many definitions");
    return at ? grammar_read(g, at, depth + 1) : grammar_fail(g, "a $ref leads nowhere");
}

/* Of a schema that is still being read, whether what it refers to is where it will stay: an object with properties is, and
   alternatives, of which there may be more, are not. */
static bool grammar_is_known(const grammar_node *node) {
    return node->types && !node->merged && !(node->types >> JSON_ARRAY & 1) && (!(node->types >> JSON_OBJECT & 1) || node->n_properties);
}

/* Whether the first byte of a value tells which of two nodes it is of, or both have values that are compared. */
static bool grammar_apart(const grammar_node *x, const grammar_node *y) {
    return !((x->types | x->literal_types) & y->types) && !(x->types & y->literal_types);
}

/* What `from`, an alternative of that number, allows is allowed by `to`, too, which is apart from it. The values of `to` are the last
   texts there are, where it has any: they grow in place. */
static bool grammar_merge(grammar *g, const char *name, int number, int to_index, int from_index) {
    grammar_node *to = &g->nodes[to_index];
    const grammar_node *from = &g->nodes[from_index];
    int i;
    if (to->n_literals + from->n_literals > GRAMMAR_MAX_LITERALS || g->n_texts > GRAMMAR_MAX_TEXTS)
        return grammar_fail(g, "%s: too many values", name) == 0;
    if (!to->n_literals) to->literals = g->n_texts;
    for (i = 0; i < from->n_literals; i++, to->n_literals++) {
        grammar_copy_text(g, from->literals + i);
        g->texts[g->n_texts - 1].property = number;
        grammar_sort_in(g, to->literals);
    }
    to->types |= from->types;
    to->literal_types |= from->literal_types;
    to->guessed = to->guessed || from->guessed;
    if (from->types >> JSON_STRING & 1) to->shortest = from->shortest, to->longest = from->longest, to->pattern = from->pattern;
    if (from->types >> JSON_NUMBER & 1)
        to->integer = from->integer, to->low = from->low, to->high = from->high, to->places = from->places;
    if (from->types >> JSON_ARRAY & 1)
        to->items = from->items, to->least = from->least, to->most = from->most, to->prefix = from->prefix, to->n_prefix = from->n_prefix;
    if (from->types >> JSON_OBJECT & 1)
        to->properties = from->properties, to->n_properties = from->n_properties, to->keys = from->keys, to->extra = from->extra;
    return true;
}

/* Alternatives, those of alternatives among them, in groups: what is in one is apart. */
typedef struct grammar_group {
    int n, n_groups;
    int *nodes, *numbers, *groups; /* [n] numbers: which alternative of the schema it is, or is in */
    grammar_node known[GRAMMAR_MAX_PATHS]; /* of each group the types */
} grammar_group;

static void grammar_group_free(grammar_group *all) {
    free(all->nodes);
    free(all->numbers);
    free(all->groups);
}

/* Adds one to the first group that it is apart from. */
static bool grammar_group_add(grammar *g, const char *name, int number, int index, grammar_group *all) {
    const grammar_node *node = &g->nodes[index];
    size_t bytes = (size_t)(all->n + 1) * sizeof(int);
    int k = 0;
    if (node->open && !grammar_is_known(node)) return grammar_fail(g, "%s: a schema that contains itself must be an object", name) == 0;
    while (k < all->n_groups && !grammar_apart(&all->known[k], node)) k++;
    if (k == GRAMMAR_MAX_PATHS) return grammar_fail(g, "%s: more than %d alternatives of the same type", name, GRAMMAR_MAX_PATHS) == 0;
    if (k == all->n_groups) memset(&all->known[all->n_groups++], 0, sizeof(grammar_node));
    all->known[k].types |= node->types;
    all->known[k].literal_types |= node->literal_types;
    all->nodes = (int *)xrealloc(all->nodes, bytes);
    all->numbers = (int *)xrealloc(all->numbers, bytes);
    all->groups = (int *)xrealloc(all->groups, bytes);
    all->nodes[all->n] = index;
    all->numbers[all->n] = number;
    all->groups[all->n++] = k;
    return true;
}

/* Makes one node of the alternatives of a group. */
static bool grammar_merge_group(grammar *g, const char *name, const grammar_group *all, int k, int index) {
    int i;
    for (i = 0; i < all->n; i++)
        if (all->groups[i] == k && !grammar_merge(g, name, all->numbers[i], index, all->nodes[i])) return false;
    return true;
}

/* A node that is one of several: it has their types, and is a whole number where all of them are. */
static bool grammar_choose(grammar *g, const char *name, const grammar_group *all, int index) {
    int k, first = grammar_add_choices(g, all->n_groups);
    g->nodes[index].choices = first;
    g->nodes[index].n_choices = all->n_groups;
    g->nodes[index].integer = true;
    for (k = 0; k < all->n_groups; k++) {
        int made = g->choices[first + k] = grammar_add_node(g, 0);
        if (made < 0 || !grammar_merge_group(g, name, all, k, made)) return false;
        g->nodes[index].types |= g->nodes[made].types;
        g->nodes[index].literal_types |= g->nodes[made].literal_types;
        g->nodes[index].guessed |= g->nodes[made].guessed;
        if (g->nodes[made].types >> JSON_NUMBER & 1) g->nodes[index].integer &= g->nodes[made].integer;
    }
    return true;
}

static bool grammar_group_all(grammar *g, const char *name, const json_node *list, int depth, grammar_group *all) {
    const json_node *item = list + 1;
    uint32_t i;
    for (i = 0; i < list->count; i++, item = json_next(g->j, item)) {
        int made = grammar_read(g, item, depth + 1), k = 0;
        if (made < 0) return false;
        do {
            int one = g->nodes[made].n_choices ? g->choices[g->nodes[made].choices + k] : made;
            if (!grammar_group_add(g, name, (int)i, one, all)) return false;
        } while (++k < g->nodes[made].n_choices);
    }
    return true;
}

/* All alternatives are read before the first of them is merged, so that no text comes between those of the merged ones. */
static bool grammar_read_any_of(grammar *g, const char *name, const json_node *list, int index, int depth) {
    grammar_group all;
    bool done;
    if (list->type != JSON_ARRAY || list->count == 0) return grammar_fail(g, "%s must be an array of schemas", name) == 0;
    memset(&all, 0, sizeof(all));
    done = grammar_group_all(g, name, list, depth, &all);
    if (done) done = all.n_groups == 1 ? grammar_merge_group(g, name, &all, 0, index) : grammar_choose(g, name, &all, index);
    grammar_group_free(&all);
    return done;
}

/* A "type" beside alternatives stays where it takes nothing away from them. Of just their types it is what they had to say. */
static bool grammar_check_type(grammar *g, const json_node *schema, int index) {
    const json_node *type = json_get(g->j, schema, "type");
    grammar_node *node = &g->nodes[index];
    unsigned had = node->types | node->literal_types;
    bool integer = false, whole = node->integer && !(node->literal_types >> JSON_NUMBER & 1);
    unsigned types = type ? grammar_types(g, type, &integer) : had;
    if (type && types == node->types && !node->literal_types) node->guessed = false;
    if (types && (had & ~types) == 0 && !(integer && (had >> JSON_NUMBER & 1) && !whole)) return true;
    return (types ? grammar_fail(g, "a type beside alternatives of others is not supported") : -1) == 0;
}

/* Whether two values may be equal, as 1 and 1.0 are: objects, or arrays, are not compared. */
static bool grammar_may_equal(const grammar *g, int x, int y) {
    char first = *grammar_text_of(g, x);
    if (g->texts[x].number == g->texts[y].number || grammar_compare(g, x, y) == 0) return true;
    return (first == '{' || first == '[') && first == *grammar_text_of(g, y);
}

/* A value of x that may be one of y, too; of alternatives only of another one. -1: none. */
static int grammar_shared(grammar *g, const grammar_node *x, const grammar_node *y, bool alternatives) {
    int i, k;
    if ((g->looked += (long)x->n_literals * y->n_literals) > GRAMMAR_MAX_LOOKED) return x->literals;
    for (i = x->literals; i < x->literals + x->n_literals; i++)
        for (k = y->literals; k < y->literals + y->n_literals; k++)
            if (!(alternatives && g->texts[k].property == g->texts[i].property) && grammar_may_equal(g, k, i)) return i;
    return -1;
}

static grammar_property *grammar_property_of(const grammar *g, const grammar_node *object, int key) {
    return &g->properties[object->properties + g->texts[key].property];
}

/* Whether two properties are each one of a list of values, and these differ. */
static bool grammar_values_apart(grammar *g, const grammar_property *x, const grammar_property *y) {
    const grammar_node *a = &g->nodes[x->node], *b = &g->nodes[y->node];
    if (!a->n_literals || a->types || a->n_choices || !b->n_literals || b->types || b->n_choices) return false;
    return grammar_shared(g, a, b, false) < 0;
}

/* Whether no object is of both: they have a property with other values in each, which from now on both must have. */
static bool grammar_objects_apart(grammar *g, const grammar_node *x, const grammar_node *y) {
    int i, k;
    for (i = x->keys; i < x->keys + x->n_properties; i++)
        for (k = y->keys; k < y->keys + y->n_properties; k++) {
            grammar_property *one = grammar_property_of(g, x, i), *other = grammar_property_of(g, y, k);
            if (grammar_compare(g, i, k) != 0 || !grammar_values_apart(g, one, other)) continue;
            one->required = other->required = true;
            return true;
        }
    return false;
}

/* Values that two alternatives of a oneOf allow satisfy neither. */
static bool grammar_check_values(grammar *g, const grammar_node *x, const grammar_node *y) {
    int i = grammar_shared(g, x, y, true);
    char first = i < 0 ? 0 : *grammar_text_of(g, i);
    return i < 0 || grammar_fail(g, "oneOf: %s two alternatives", first == '{' || first == '[' ? "objects or arrays are values of" : "a value is in") == 0;
}

static bool grammar_check_apart(grammar *g, const grammar_node *x, const grammar_node *y) {
    unsigned types = (x->types & (y->types | y->literal_types)) | (x->literal_types & y->types);
    bool objects = types == 1u << JSON_OBJECT && x->types & y->types;
    if (types && !(objects && grammar_objects_apart(g, x, y)))
        return grammar_fail(g, "oneOf: alternatives of the same type must be objects with a property that has other values in each") == 0;
    return grammar_check_values(g, x, y);
}

static bool grammar_check_one_of(grammar *g, const json_node *list, int index) {
    const grammar_node *node = &g->nodes[index];
    int i, k, n = node->n_choices;
    if (list->count == 1) return true;
    if (node->guessed) return grammar_fail(g, "oneOf: an alternative with properties, required or items needs a type") == 0;
    if (n == 0) return grammar_check_values(g, node, node);
    for (i = 0; i < n; i++) {
        const grammar_node *x = &g->nodes[g->choices[node->choices + i]];
        if (!grammar_check_values(g, x, x)) return false;
        for (k = 0; k < i; k++)
            if (!grammar_check_apart(g, &g->nodes[g->choices[node->choices + k]], x)) return false;
    }
    return true;
}

/* Marks the properties that `required` names, which must be among those of the node. */
static bool grammar_read_required(grammar *g, const json_node *required, const grammar_node *node) {
    const json_node *item = required + 1;
    uint32_t i;
    for (i = 0; i < required->count; i++, item = json_next(g->j, item)) {
        str key = {NULL, 0, 0};
        int k;
        grammar_add_value(g->j, item, &key);
        for (k = node->keys; k < node->keys + node->n_properties; k++)
            if (g->texts[k].length + 2 == key.length && memcmp(grammar_text_of(g, k), key.data + 1, g->texts[k].length) == 0) break;
        str_free(&key);
        if (k == node->keys + node->n_properties || item->type != JSON_STRING)
            return grammar_fail(g, "required names '%.*s', which is not in properties", grammar_shown(item), g->j->text + item->begin) == 0;
        g->properties[node->properties + g->texts[k].property].required = true;
    }
    return true;
}

/* Adds n properties, whose values are yet to be read, to a node. */
static void grammar_add_properties(grammar *g, const json_node *list, int n, grammar_node *node) {
    const json_node *item = n ? list + 1 : NULL;
    int i;
    node->keys = g->n_texts;
    node->properties = g->n_properties;
    node->n_properties = n;
    g->properties = (grammar_property *)xrealloc(g->properties, (size_t)(g->n_properties + n + 1) * sizeof(grammar_property));
    for (i = 0; i < n; i++, item = json_next(g->j, json_next(g->j, item))) {
        size_t begin = g->pool.length;
        str key = {NULL, 0, 0};
        json_add_text(g->j, item, &key);
        str_json(&g->pool, key.data ? key.data : "", key.length);
        str_free(&key);
        grammar_add_text(g, begin + 1);
        g->texts[g->n_texts - 1].length--; /* without quotes */
        g->texts[g->n_texts - 1].property = i;
        grammar_sort_in(g, node->keys);
        g->properties[g->n_properties].node = 0; /* any value, which says nothing of it until it is read */
        g->properties[g->n_properties++].required = false;
    }
}

static bool grammar_read_properties(grammar *g, const json_node *schema, int index, int depth) {
    const json_node *list = json_get(g->j, schema, "properties"), *more = json_get(g->j, schema, "additionalProperties");
    const json_node *required = json_get(g->j, schema, "required"), *item;
    int i, n = list && list->type == JSON_OBJECT ? (int)list->count : 0;
    if (list && list->type != JSON_OBJECT) return grammar_fail(g, "properties must be an object") == 0;
    if (required && required->type != JSON_ARRAY) return grammar_fail(g, "required must be an array") == 0;
    if (n > GRAMMAR_MAX_PROPERTIES || (required && required->count > GRAMMAR_MAX_PROPERTIES))
        return grammar_fail(g, "an object of more than %d properties", GRAMMAR_MAX_PROPERTIES) == 0;
    if (g->n_texts > GRAMMAR_MAX_TEXTS) return grammar_fail(g, "the schema has too many values") == 0;
    grammar_add_properties(g, list, n, &g->nodes[index]);
    if (required && !grammar_read_required(g, required, &g->nodes[index])) return false;
    for (i = 0, item = n ? list + 1 : NULL; i < n; i++, item = json_next(g->j, json_next(g->j, item))) {
        int made = grammar_read(g, json_next(g->j, item), depth + 1);
        if (made < 0) return false;
        g->properties[g->nodes[index].properties + i].node = made;
    }
    if (n == 0 && !(more && more->type == JSON_BOOL && g->j->text[more->begin] == 'f')) {
        i = more && more->type == JSON_OBJECT ? grammar_read(g, more, depth + 1) : 0;
        g->nodes[index].extra = i;
        if (i < 0) return false;
    }
    return true;
}

static bool grammar_read_count(grammar *g, const json_node *schema, const char *name, int64_t *to) {
    const json_node *node = json_get(g->j, schema, name);
    return !node || (json_integer(g->j, node, to) && *to >= 0) || grammar_fail(g, "%s must be a whole number", name) == 0;
}

/* The least and most of something that is counted. */
static bool grammar_read_counts(grammar *g, const json_node *schema, const char *min, const char *max, int64_t *least, int64_t *most) {
    return grammar_read_count(g, schema, min, least) && grammar_read_count(g, schema, max, most) &&
           (*least <= *most || grammar_fail(g, "%s is above %s", min, max) == 0);
}

/* Formats that are kept, as patterns, of what else they allow only a part (29 February, seconds of 60, years before 1000). Others are
   annotations, as all may be (JSON Schema Validation 2020-12, 7). */
#define GRAMMAR_DATE                                                                                                                     \
    "[1-9]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))"
#define GRAMMAR_TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define GRAMMAR_BYTE "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"

static const char *grammar_format(const json *j, const json_node *format) {
    static const char *const list[][2] = {
        {"date", GRAMMAR_DATE},
        {"time", GRAMMAR_TIME},
        {"date-time", GRAMMAR_DATE "T" GRAMMAR_TIME},
        {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
        {"ipv4", GRAMMAR_BYTE "(?:\\." GRAMMAR_BYTE "){3}"},
        {"email", "[A-Za-z0-9_+-]+(?:\\.[A-Za-z0-9_+-]+)*@(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\\.)+[A-Za-z]{2,}"},
    };
    size_t i;
    for (i = 0; format && format->type == JSON_STRING && i < sizeof(list) / sizeof(list[0]); i++)
        if (json_is(j, format, list[i][0])) return list[i][1];
    return NULL;
}

/* A pattern, or a format of that name. */
static bool grammar_read_pattern(grammar *g, const json_node *pattern, const char *format, grammar_node *node) {
    const char *error = "it must be a string";
    int64_t longest = format && node->shortest < GRAMMAR_MAX_FORMAT && node->longest > GRAMMAR_MAX_FORMAT ? GRAMMAR_MAX_FORMAT : node->longest;
    str text = {NULL, 0, 0};
    str_puts(&text, format ? format : "");
    if (pattern->type == JSON_STRING) {
        if (!format) json_add_text(g->j, pattern, &text);
        node->pattern = pattern_compile(&g->patterns, text.data, text.length, true, node->shortest, longest, &error);
    }
    str_free(&text);
    node->shortest = 0;
    node->longest = INT64_MAX;
    return node->pattern || grammar_fail(g, "%s '%.*s': %s", format ? "format" : "pattern", grammar_shown(pattern), g->j->text + pattern->begin, error) == 0;
}

static bool grammar_read_string(grammar *g, const json_node *schema, grammar_node *node) {
    const json_node *pattern = json_get(g->j, schema, "pattern"), *named = pattern ? NULL : json_get(g->j, schema, "format");
    const char *format = named ? grammar_format(g->j, named) : NULL;
    return grammar_read_counts(g, schema, "minLength", "maxLength", &node->shortest, &node->longest) &&
           (!(pattern || format) || grammar_read_pattern(g, pattern ? pattern : named, format, node));
}

/* The first items, each with a schema of its own: a tuple. */
static bool grammar_read_prefix(grammar *g, const json_node *list, int index, int depth) {
    const json_node *item = list + 1;
    int i, n = (int)list->count, first;
    if (list->type != JSON_ARRAY || n > GRAMMAR_MAX_PROPERTIES)
        return grammar_fail(g, "prefixItems must be an array of at most %d schemas", GRAMMAR_MAX_PROPERTIES) == 0;
    first = grammar_add_choices(g, n);
    for (i = 0; i < n; i++, item = json_next(g->j, item)) {
        int made = grammar_read(g, item, depth + 1);
        if (made < 0) return false;
        g->choices[first + i] = made;
    }
    g->nodes[index].prefix = first;
    g->nodes[index].n_prefix = n;
    return true;
}

static bool grammar_read_items(grammar *g, const json_node *schema, int index, int depth) {
    const json_node *first = json_get(g->j, schema, "items"), *list = first && first->type == JSON_ARRAY ? first : NULL; /* draft 7 */
    const json_node *items = list ? json_get(g->j, schema, "additionalItems") : first, *prefix = list ? list : json_get(g->j, schema, "prefixItems");
    bool none = items && items->type == JSON_BOOL && g->j->text[items->begin] == 'f';
    int made = items && !none ? grammar_read(g, items, depth + 1) : 0;
    grammar_node *node;
    if (made < 0 || (prefix && !grammar_read_prefix(g, prefix, index, depth))) return false;
    node = &g->nodes[index];
    node->items = made;
    if (!grammar_read_counts(g, schema, "minItems", "maxItems", &node->least, &node->most)) return false;
    if (none && node->most > node->n_prefix) node->most = node->n_prefix;
    return node->least <= node->most || grammar_fail(g, "minItems is above the number of items that there may be") == 0;
}

static int64_t grammar_add_digit(int64_t value, int digit) { return value > GRAMMAR_MOST / 10 ? GRAMMAR_MOST + 1 : 10 * value + digit; }

/* A number in units of 10^-places, rounded down; *exact: it is one. What is beyond GRAMMAR_MOST is that, and below its negative less than that. */
static int64_t grammar_units(const char *text, const char *end, int places, bool *exact) {
    bool minus = *text == '-', fraction = false;
    const char *at = text + minus, *stop = at;
    int64_t value = 0, n = 0, point = places;
    for (; stop < end && (*stop | 32) != 'e'; stop++) {
        if (*stop == '.') fraction = true;
        else point += !fraction;
    }
    if (stop < end) {
        long power = strtol(stop + 1, NULL, 10);
        point += power > 1000000 ? 1000000 : power < -1000000 ? -1000000 : power;
    }
    for (*exact = true; at < stop; at++) {
        if (*at == '.') continue;
        if (n++ < point) value = grammar_add_digit(value, *at - '0');
        else *exact = *exact && *at == '0';
    }
    for (; n < point && value && value <= GRAMMAR_MOST; n++) value = grammar_add_digit(value, 0);
    if (value > GRAMMAR_MOST) *exact = false, value = GRAMMAR_MOST;
    return minus ? -value - !*exact : value;
}

/* Draws the limit in where a keyword says so. Of numbers that are not whole an exclusive one is left by as much as a double shows. */
static void grammar_limit(const grammar *g, const json_node *value, bool least, bool exclusive, grammar_node *node) {
    bool exact;
    int64_t units = grammar_units(g->j->text + value->begin, g->j->text + value->end, node->places, &exact);
    int64_t step = !exclusive || !exact ? 0 : node->integer ? 1 : 1 + (units < 0 ? -units : units) / INT64_C(1000000000000000);
    if (least && units + step + !exact > node->low) node->low = units + step + !exact;
    if (!least && units - step < node->high) node->high = units - step;
}

/* Sets the limits in units of 10^-places; false: there is no such number. "exclusiveMinimum" is a number, or says of "minimum" that it is
   not allowed itself (draft 4). */
static bool grammar_set_range(const grammar *g, const json_node *const limits[4], int places, grammar_node *node) {
    int i;
    node->places = places;
    node->low = -GRAMMAR_MOST;
    node->high = GRAMMAR_MOST;
    for (i = 0; i < 4; i++)
        if (limits[i] && limits[i]->type == JSON_NUMBER)
            grammar_limit(g, limits[i], i < 2, i % 2 == 1 || grammar_is_true(g->j, limits[i + 1]), node);
    return node->low <= node->high;
}

/* Numbers with limits are whole, or have six places; more or fewer where none would be within the limits else. */
static bool grammar_read_range(grammar *g, const json_node *schema, grammar_node *node) {
    static const char *const names[4] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
    static const int places[] = {6, 9, 12, GRAMMAR_MAX_PLACES, 3, 0};
    const json_node *limits[4];
    bool any = false;
    int i;
    for (i = 0; i < 4; i++) {
        limits[i] = json_get(g->j, schema, names[i]);
        if (limits[i] && limits[i]->type != JSON_NUMBER && (i % 2 == 0 || limits[i]->type != JSON_BOOL))
            return grammar_fail(g, "%s must be a number", names[i]) == 0;
        any = any || (limits[i] && limits[i]->type == JSON_NUMBER);
    }
    if (!any) return true;
    for (i = node->integer ? 5 : 0; i < 6; i++)
        if (grammar_set_range(g, limits, places[i], node)) return true;
    return grammar_fail(g, "no number of 18 digits is within the limits") == 0;
}

/* Whether a value is of a type and has the text of grammar_add_value, which is made once: it may be long, and compared with many. */
static bool grammar_same(const json *j, const json_node *x, unsigned type, const str *text) {
    str own = {NULL, 0, 0};
    bool same;
    if (x->type != type) return false;
    grammar_add_value(j, x, &own);
    same = own.length == text->length && memcmp(own.data, text->data, own.length) == 0;
    str_free(&own);
    return same;
}

/* Whether a value is of one of these types. */
static bool grammar_is_of(const json *j, const json_node *value, unsigned types, bool integer) {
    double number;
    if (!(types >> value->type & 1)) return false;
    return value->type != JSON_NUMBER || !integer || (json_real(j, value, &number) && number == floor(number));
}

/* The values of an enum that are of the schema's type and equal its const, where there is one, which may be all there is. */
static bool grammar_read_literals(grammar *g, const json_node *schema, const json_node *list, const json_node *constant, unsigned types,
                                  int index) {
    static const char *const kept[] = {"enum", "const", "type", NULL};
    grammar_node *node = &g->nodes[index];
    const json_node *value = list ? list + 1 : constant;
    uint32_t i, n = list ? list->count : 1;
    str wanted = {NULL, 0, 0};
    if (!grammar_keeps(g, schema, kept, list ? "enum" : "const")) return false;
    if (list && (list->type != JSON_ARRAY || n > GRAMMAR_MAX_LITERALS))
        return grammar_fail(g, "enum must be an array of at most %d values", GRAMMAR_MAX_LITERALS) == 0;
    if (g->n_texts > GRAMMAR_MAX_TEXTS) return grammar_fail(g, "the schema has too many values") == 0;
    node->literals = g->n_texts;
    if (constant) grammar_add_value(g->j, constant, &wanted);
    for (i = 0; i < n; i++, value = json_next(g->j, value))
        if (grammar_is_of(g->j, value, types, node->integer) && (!constant || grammar_same(g->j, value, constant->type, &wanted)))
            grammar_add_literal(g, value, node);
    str_free(&wanted);
    if (!node->n_literals) return grammar_fail(g, "enum: no value satisfies the schema") == 0;
    return true;
}

/* "enum", "const" and "type"; false: an error. */
static bool grammar_read_types(grammar *g, const json_node *schema, int index) {
    const json *j = g->j;
    grammar_node *node = &g->nodes[index];
    const json_node *item = schema + 1, *list = NULL, *constant = NULL, *type = json_get(j, schema, "type");
    unsigned types = type ? grammar_types(g, type, &node->integer) : 63;
    uint32_t i;
    for (i = 0; i < schema->count; i++, item = json_next(j, json_next(j, item))) { /* json_get passes over null */
        if (json_is(j, item, "const")) constant = json_next(j, item);
        if (json_is(j, item, "enum")) list = json_next(j, item);
    }
    if (type && types && grammar_is_true(j, json_get(j, schema, "nullable"))) types |= 1u << JSON_NULL; /* OpenAPI 3.0 */
    if (types && (list || constant)) return grammar_read_literals(g, schema, list, constant, types, index);
    if (!type && (json_get(j, schema, "properties") || json_get(j, schema, "required"))) types = 1u << JSON_OBJECT;
    else if (!type && json_get(j, schema, "items")) types = 1u << JSON_ARRAY;
    node->guessed = !type && types != 63;
    node->types = types;
    return types != 0;
}

/* "anyOf", "oneOf" or "allOf" of a single schema. */
static bool grammar_read_alternatives(grammar *g, const json_node *schema, const char *name, const json_node *list, int index, int depth) {
    const char *kept[3];
    kept[0] = name;
    kept[1] = "type";
    kept[2] = NULL;
    g->nodes[index].merged = true;
    if (strcmp(name, "allOf") == 0 && list->count != 1) return grammar_fail(g, "allOf of several schemas is not supported") == 0;
    return grammar_keeps(g, schema, kept, name) && grammar_read_any_of(g, name, list, index, depth) &&
           (strcmp(name, "oneOf") != 0 || grammar_check_one_of(g, list, index)) && grammar_check_type(g, schema, index);
}

static bool grammar_fill(grammar *g, const json_node *schema, int index, int depth) {
    static const char *const alternatives[3] = {"anyOf", "oneOf", "allOf"};
    int i;
    for (i = 0; i < 3; i++) {
        const json_node *list = json_get(g->j, schema, alternatives[i]);
        if (list) return grammar_read_alternatives(g, schema, alternatives[i], list, index, depth);
    }
    if (!grammar_read_types(g, schema, index)) return false;
    if ((g->nodes[index].types >> JSON_STRING & 1) && !grammar_read_string(g, schema, &g->nodes[index])) return false;
    if ((g->nodes[index].types >> JSON_NUMBER & 1) && !grammar_read_range(g, schema, &g->nodes[index])) return false;
    if ((g->nodes[index].types >> JSON_OBJECT & 1) && !grammar_read_properties(g, schema, index, depth)) return false;
    return !(g->nodes[index].types >> JSON_ARRAY & 1) || grammar_read_items(g, schema, index, depth);
}

/* The node of a schema; -1: an error. Node 0 is any value. */
static int grammar_read(grammar *g, const json_node *schema, int depth) {
    static const char *const alone[] = {"$ref", NULL};
    static const char *const known[] = {"type", "nullable", "properties", "required", "additionalProperties", "items", "prefixItems", "additionalItems", "enum",
                                        "const", "anyOf", "oneOf", "allOf", "minItems", "maxItems", "minLength", "maxLength", "pattern", "minimum", "maximum",
                                        "exclusiveMinimum", "exclusiveMaximum", NULL};
    const json_node *ref;
    int index, *made = &g->made[schema - g->j->nodes];
    if (depth > 64) return grammar_fail(g, "the schema is nested too deeply");
    if (schema->type == JSON_BOOL && g->j->text[schema->begin] == 't') return 0;
    if (schema->type != JSON_OBJECT) return grammar_fail(g, "a schema must be an object");
    if (*made) return *made - 1;
    ref = json_get(g->j, schema, "$ref");
    if (!grammar_keeps(g, schema, ref ? alone : known, ref ? alone[0] : NULL)) return -1;
    if (ref) {
        index = grammar_read_ref(g, ref, depth);
        *made = index + 1; /* 0 after an error */
        return index;
    }
    if ((index = grammar_add_node(g, 0)) < 0) return -1;
    *made = index + 1;
    g->nodes[index].open = true;
    if (!grammar_fill(g, schema, index, depth)) return -1;
    g->nodes[index].open = false;
    return index;
}

static int grammar_object_height(const grammar *g, const grammar_node *node) {
    int most = 0, i;
    for (i = 0; i < node->n_properties; i++) {
        const grammar_property *property = &g->properties[node->properties + i];
        if (property->required && g->nodes[property->node].height > most) most = g->nodes[property->node].height;
    }
    return 1 + most;
}

/* The node of item i of an array. */
static int grammar_item_of(const grammar *g, const grammar_node *node, int64_t i) {
    return i < node->n_prefix ? g->choices[node->prefix + i] : node->items;
}

static int grammar_array_height(const grammar *g, const grammar_node *node) {
    int most = 0, i;
    for (i = 0; i < node->least && i <= node->n_prefix; i++)
        if (g->nodes[grammar_item_of(g, node, i)].height > most) most = g->nodes[grammar_item_of(g, node, i)].height;
    return 1 + most;
}

/* That of alternatives is the least. */
static int grammar_choice_height(const grammar *g, const grammar_node *node) {
    int least = GRAMMAR_MAX_DEPTH + 1, i;
    for (i = 0; i < node->n_choices; i++)
        if (g->nodes[g->choices[node->choices + i]].height < least) least = g->nodes[g->choices[node->choices + i]].height;
    return least;
}

/* The height of a node by what is known of others so far. */
static int grammar_height(const grammar *g, const grammar_node *node) {
    bool object = node->types >> JSON_OBJECT & 1, array = node->types >> JSON_ARRAY & 1;
    int least = GRAMMAR_MAX_DEPTH + 1, height;
    if (node->n_choices) return grammar_choice_height(g, node);
    if (node->n_literals || (node->types & ~(1u << JSON_OBJECT | 1u << JSON_ARRAY))) return 0;
    if (object && (height = grammar_object_height(g, node)) < least) least = height;
    if (array && (height = grammar_array_height(g, node)) < least) least = height;
    return least;
}

/* Finds the heights of all nodes: each round gets those of one level more right. */
static void grammar_measure(grammar *g) {
    bool more = true;
    while (more) {
        int i;
        for (more = false, i = g->n_nodes - 1; i >= 0; i--) {
            int height = grammar_height(g, &g->nodes[i]);
            more = more || height != g->nodes[i].height;
            g->nodes[i].height = height;
        }
    }
}

/* With the texts and nodes that all have: node 0 is any value, node 1 any object, which is the root. */
static grammar *grammar_make_any(void) {
    static const char *const words[3] = {"false", "null", "true"};
    grammar *g = (grammar *)xrealloc(NULL, sizeof(grammar));
    int i;
    memset(g, 0, sizeof(*g));
    for (i = 0; i < 3; i++) {
        str_puts(&g->pool, words[i]);
        grammar_add_text(g, g->pool.length - strlen(words[i]));
    }
    grammar_add_node(g, 63);
    g->root = grammar_add_node(g, 1u << JSON_OBJECT);
    for (i = 0; i < 2; i++) g->nodes[i].extra = g->nodes[i].items = 0;
    grammar_measure(g);
    g->first.node = g->root;
    return g;
}

/* Around the reading of schemas: what they are in may end before the grammar. */
static void grammar_reading_begin(grammar *g, const json *j) {
    g->j = j;
    g->made = (int *)xrealloc(NULL, j->n * sizeof(int));
    memset(g->made, 0, j->n * sizeof(int));
}

static void grammar_reading_end(grammar *g) {
    free(g->made);
    g->made = NULL;
    g->j = NULL;
    g->schema = NULL;
}

/* Answers are of the root, which may be -1 after an error. */
static grammar *grammar_finish(grammar *g) {
    if (g->root < 0) return g;
    grammar_measure(g);
    if (g->nodes[g->root].height > GRAMMAR_MAX_DEPTH)
        g->root = grammar_fail(g, "every value of the schema is nested without end, or more than %d levels deep", GRAMMAR_MAX_DEPTH);
    g->first.node = g->root;
    return g;
}

/* Any object (schema NULL), or what the schema says. An error is in g->error. */
static grammar *grammar_make(const json *j, const json_node *schema) {
    grammar *g = grammar_make_any();
    if (!schema) return g;
    grammar_reading_begin(g, j);
    g->schema = schema;
    g->root = grammar_read(g, schema, 0);
    grammar_reading_end(g);
    return grammar_finish(g);
}

/* The names of tools as values, which select between objects. */
static int grammar_add_names(grammar *g, const json_node *tools, int selects) {
    int names = grammar_add_node(g, 0), first = g->n_texts;
    const json_node *tool = tools + 1;
    uint32_t i;
    for (i = 0; i < tools->count; i++, tool = json_next(g->j, tool)) {
        size_t begin = g->pool.length;
        int text;
        grammar_add_value(g->j, json_get(g->j, json_get(g->j, tool, "function"), "name"), &g->pool);
        text = grammar_add_text(g, begin);
        g->texts[text].property = (int)i;
        grammar_sort_in(g, first);
    }
    g->nodes[names].literals = first;
    g->nodes[names].n_literals = (int)tools->count;
    g->nodes[names].literal_types = 1u << JSON_STRING;
    g->nodes[names].selects = selects;
    return names;
}

/* What a tool takes: an object, which is empty where the schema (NULL: none) has no properties and does not ask for others; -1: an error. */
static int grammar_read_parameters(grammar *g, const json_node *schema) {
    const grammar_node *node;
    int made = 0;
    g->schema = schema;
    if (schema && (made = grammar_read(g, schema, 0)) < 0) return -1;
    node = &g->nodes[made];
    if (node->types == 63 || (node->types == 1u << JSON_OBJECT && !node->n_properties && !node->n_choices && !json_get(g->j, schema, "additionalProperties")))
        return grammar_add_node(g, 1u << JSON_OBJECT);
    return (node->types | node->literal_types) == 1u << JSON_OBJECT ? made : grammar_fail(g, "parameters must be of the type object");
}

/* {"name": one of the names, "parameters": what a tool takes}; -1: an error. */
static int grammar_add_call(grammar *g, const json_node *tool, int names, int keys) {
    int made = grammar_read_parameters(g, json_get(g->j, json_get(g->j, tool, "function"), "parameters")), call;
    call = made < 0 ? -1 : grammar_add_node(g, 1u << JSON_OBJECT);
    if (call < 0) return -1;
    g->properties = (grammar_property *)xrealloc(g->properties, (size_t)(g->n_properties + 2) * sizeof(grammar_property));
    g->nodes[call].properties = g->n_properties;
    g->nodes[call].n_properties = 2;
    g->nodes[call].keys = keys;
    g->properties[g->n_properties].node = names;
    g->properties[g->n_properties++].required = true;
    g->properties[g->n_properties].node = made;
    g->properties[g->n_properties++].required = true;
    return call;
}

/* The calls of all tools; -1: an error. */
static int grammar_add_calls(grammar *g, const json_node *tools) {
    static const char *const words[2] = {"name", "parameters"};
    int first = grammar_add_choices(g, (int)tools->count), names = grammar_add_names(g, tools, first), keys = g->n_texts, i;
    const json_node *tool = tools + 1;
    for (i = 0; i < 2; i++) {
        int text;
        str_puts(&g->pool, words[i]);
        text = grammar_add_text(g, g->pool.length - strlen(words[i]));
        g->texts[text].property = i;
    }
    for (i = 0; i < (int)tools->count; i++, tool = json_next(g->j, tool)) {
        int call = grammar_add_call(g, tool, names, keys);
        if (call < 0) return -1;
        g->choices[first + i] = call;
    }
    return first;
}

/* The arguments of one tool; NULL: it has no schema. */
static grammar *grammar_make_arguments(const json *j, const json_node *schema) {
    grammar *g = grammar_make_any();
    grammar_reading_begin(g, j);
    g->root = grammar_read_parameters(g, schema);
    grammar_reading_end(g);
    return grammar_finish(g);
}

/* A list of calls of tools, each with a function that has a name; several: or of one. */
static grammar *grammar_make_calls(const json *j, const json_node *tools, bool several) {
    grammar *g = grammar_make_any();
    int first, i;
    grammar_reading_begin(g, j);
    first = grammar_add_calls(g, tools);
    grammar_reading_end(g);
    g->root = first < 0 ? -1 : grammar_add_node(g, 1u << JSON_ARRAY);
    if (g->root < 0) return g;
    g->nodes[g->root].items = g->choices[first];
    g->nodes[g->root].least = 1;
    g->nodes[g->root].most = several ? GRAMMAR_MAX_CALLS : 1;
    grammar_finish(g);
    for (i = 0; i < (int)tools->count; i++) /* the least of them is what the list was measured by */
        if (g->nodes[g->choices[first + i]].height >= GRAMMAR_MAX_DEPTH)
            grammar_fail(g, "parameters are nested without end, or more than %d levels deep", GRAMMAR_MAX_DEPTH - 2);
    return g;
}

/* A text, not JSON, that a regular expression matches as a whole. */
static grammar *grammar_make_regex(const json *j, const json_node *regex) {
    const char *error = "it must be a string";
    grammar *g = grammar_make_any();
    str text = {NULL, 0, 0};
    str_puts(&text, "");
    if (regex->type == JSON_STRING) {
        json_add_text(j, regex, &text);
        g->first.low = pattern_compile(&g->patterns, text.data, text.length, false, 0, INT64_MAX, &error);
    }
    str_free(&text);
    g->first.mode = GRAMMAR_RAW;
    if (!g->first.low) grammar_fail(g, "%s", error);
    return g;
}

/* One of several texts, not JSON. */
static grammar *grammar_make_choice(const json *j, const json_node *list) {
    grammar *g = grammar_make_any();
    const json_node *item = list + 1;
    uint32_t i;
    bool good = list->type == JSON_ARRAY && list->count && list->count <= GRAMMAR_MAX_LITERALS;
    g->first.mode = GRAMMAR_LITERAL;
    g->first.low = g->n_texts;
    for (i = 0; i < list->count && good; i++, item = json_next(j, item)) {
        size_t begin = g->pool.length;
        good = item->type == JSON_STRING && item->end > item->begin;
        if (good) json_add_text(j, item, &g->pool);
        grammar_add_text(g, begin);
        grammar_sort_in(g, g->first.low);
    }
    g->first.high = g->n_texts - 1;
    if (!good) grammar_fail(g, "it must be an array of at most %d texts", GRAMMAR_MAX_LITERALS);
    return g;
}

/* ---- following an answer ----------------------------------------------------------------------- */

static bool grammar_step(const grammar *g, grammar_path *s, unsigned char c);

/* Forgets all of what was read but what is open, so that paths that differ by that alone are the same. */
static bool grammar_expect(grammar_path *s, int node, grammar_mode mode) {
    int depth = s->depth;
    memset(s, 0, offsetof(grammar_path, frames));
    s->depth = depth;
    s->node = node;
    s->mode = mode;
    return true;
}

static bool grammar_end_value(grammar_path *s) { return grammar_expect(s, 0, s->depth ? GRAMMAR_NEXT : GRAMMAR_DONE); }

/* The first of the texts low..high whose next byte is c or above; high + 1: none. Those that end here come before all others. */
static int grammar_first(const grammar *g, const grammar_path *s, unsigned c) {
    int low = s->low, end = s->high + 1;
    while (low < end) {
        int i = low + (end - low) / 2;
        bool before = g->texts[i].length <= (size_t)s->at || (unsigned char)grammar_text_of(g, i)[s->at] < c;
        if (before) low = i + 1;
        else end = i;
    }
    return low;
}

/* Of the texts low..high those that go on with c. */
static bool grammar_narrow(const grammar *g, grammar_path *s, unsigned char c) {
    int first = grammar_first(g, s, c), end = grammar_first(g, s, c + 1u);
    if (first == end) return false;
    s->low = first;
    s->high = end - 1;
    s->at++;
    return true;
}

static bool grammar_literal(const grammar *g, grammar_path *s, unsigned char c) {
    int selects = g->nodes[s->node].selects;
    if (grammar_narrow(g, s, c)) return true;
    if (g->texts[s->low].length != (size_t)s->at) return false;
    if (selects >= 0) s->frames[s->depth - 1].node = g->choices[selects + g->texts[s->low].property];
    return grammar_end_value(s) && grammar_step(g, s, c);
}

/* Whether there are levels enough for a value. */
static bool grammar_fits(const grammar_path *s, int height) { return s->depth + height <= GRAMMAR_MAX_DEPTH; }

static bool grammar_open(const grammar *g, grammar_path *s, grammar_mode mode) {
    const grammar_node *node = &g->nodes[s->node];
    if (!grammar_fits(s, mode == GRAMMAR_ARRAY ? grammar_array_height(g, node) : grammar_object_height(g, node))) return false;
    s->frames[s->depth].node = s->node;
    s->frames[s->depth].array = mode == GRAMMAR_ARRAY;
    s->frames[s->depth++].next = 0;
    return grammar_expect(s, s->node, mode);
}

static bool grammar_begin_literal(const grammar *g, grammar_path *s, unsigned char c, int first, int n) {
    s->mode = GRAMMAR_LITERAL;
    s->low = first;
    s->high = first + n - 1;
    s->at = 0;
    return n > 0 && grammar_narrow(g, s, c);
}

/* Of a number with limits, those of its magnitude in units of its last place; false: there is none with its sign. */
static bool grammar_range(const grammar_path *s, const grammar_node *node, int64_t *low, int64_t *high) {
    *low = s->minus ? -node->high : node->low;
    *high = s->minus ? -node->low : node->high;
    if (*low < 0) *low = 0;
    return *low <= *high;
}

/* Whether a number with the digits so far, as many of them behind the point as `places`, is or can come to be within its limits. */
static bool grammar_may_reach(const grammar_path *s, const grammar_node *node) {
    int64_t low, high, unit = 1, first;
    int i;
    if (node->places < 0) return true;
    if (!grammar_range(s, node, &low, &high)) return false;
    if (s->mode == GRAMMAR_MINUS) return true;
    for (i = s->places; i < node->places; i++) unit *= 10;
    if (s->number > high / unit) return false;
    first = s->number * unit;
    if (s->mode != GRAMMAR_DIGITS) return first + unit > low;
    while (first + unit <= low && first <= high / 10) first *= 10, unit *= 10; /* one more digit before the point */
    return first + unit > low;
}

static bool grammar_begin_number(grammar_path *s, const grammar_node *node, unsigned char c) {
    s->mode = c == '-' ? GRAMMAR_MINUS : c == '0' ? GRAMMAR_ZERO : GRAMMAR_DIGITS;
    s->minus = c == '-';
    s->number = s->minus ? 0 : c - '0';
    return grammar_may_reach(s, node);
}

static bool grammar_begin_value(const grammar *g, grammar_path *s, unsigned char c) {
    const grammar_node *node = &g->nodes[s->node];
    bool digit = c == '-' || (c >= '0' && c <= '9');
    json_type type = c == '{' ? JSON_OBJECT : c == '[' ? JSON_ARRAY : c == '"' ? JSON_STRING : digit ? JSON_NUMBER
                   : c == 'n' ? JSON_NULL : JSON_BOOL;
    if (!(node->types >> type & 1)) return grammar_begin_literal(g, s, c, node->literals, node->n_literals);
    s->left = 0;
    s->key = false;
    switch (type) {
    case JSON_OBJECT: return grammar_open(g, s, GRAMMAR_OBJECT);
    case JSON_ARRAY: return grammar_open(g, s, GRAMMAR_ARRAY);
    case JSON_STRING: s->low = node->pattern; s->mode = GRAMMAR_STRING; return true;
    case JSON_NUMBER: return grammar_begin_number(s, node, c);
    case JSON_NULL: return grammar_begin_literal(g, s, c, 1, 1);
    default: return grammar_begin_literal(g, s, c, c == 't' ? 2 : 0, 1);
    }
}

/* The first required property from `next` on, or the number of properties. */
static int grammar_required(const grammar *g, const grammar_node *node, int next) {
    while (next < node->n_properties && !g->properties[node->properties + next].required) next++;
    return next;
}

static bool grammar_close_object(const grammar *g, grammar_path *s) {
    const grammar_frame *f = &s->frames[s->depth - 1];
    const grammar_node *node = &g->nodes[f->node];
    if (grammar_required(g, node, f->next) < node->n_properties) return false;
    s->depth--;
    return grammar_end_value(s);
}

/* The first of the keys low..high whose property may come and has room for its value; high + 1: none. */
static int grammar_may_be(const grammar *g, const grammar_path *s) {
    const grammar_frame *f = &s->frames[s->depth - 1];
    const grammar_property *all = g->properties + g->nodes[f->node].properties;
    int i = s->low;
    for (; i <= s->high; i++) {
        int property = g->texts[i].property;
        if (property >= f->next && property <= s->last && grammar_fits(s, g->nodes[all[property].node].height)) break;
    }
    return i;
}

static bool grammar_begin_key(const grammar *g, grammar_path *s) {
    const grammar_frame *f = &s->frames[s->depth - 1];
    const grammar_node *node = &g->nodes[f->node];
    s->left = s->at = 0;
    s->key = true;
    s->mode = node->n_properties ? GRAMMAR_KEY : GRAMMAR_STRING;
    s->low = node->keys;
    s->high = node->keys + node->n_properties - 1;
    s->last = grammar_required(g, node, f->next);
    if (node->n_properties) return grammar_may_be(g, s) <= s->high;
    return node->extra >= 0 && grammar_fits(s, g->nodes[node->extra].height);
}

/* A byte of a key that is one of the texts low..high. */
static bool grammar_key(const grammar *g, grammar_path *s, unsigned char c) {
    grammar_frame *f = &s->frames[s->depth - 1];
    int i = grammar_may_be(g, s);
    if (c != '"' || g->texts[i].length != (size_t)s->at) return grammar_narrow(g, s, c) && grammar_may_be(g, s) <= s->high;
    f->next = g->texts[i].property + 1;
    return grammar_expect(s, g->properties[g->nodes[f->node].properties + g->texts[i].property].node, GRAMMAR_COLON);
}

/* A byte of a text with a pattern, as it is meant. */
static bool grammar_raw(const grammar *g, grammar_path *s, unsigned char c) {
    s->low = g->patterns.next[s->low][c];
    return s->low != 0;
}

static const char grammar_escaped[] = "\"\\\b\f\n\r\t", grammar_escapes[] = "\"\\bfnrt";

/* A byte of a string with a pattern. What need not be escaped is not. */
static bool grammar_pattern(const grammar *g, grammar_path *s, unsigned char c) {
    bool any = false;
    int i;
    if (c == '"') return g->patterns.accepts[s->low] && grammar_end_value(s);
    if (c != '\\') return c >= 0x20 && grammar_raw(g, s, c);
    for (i = 0; grammar_escaped[i]; i++) any = any || g->patterns.next[s->low][(unsigned char)grammar_escaped[i]];
    s->mode = GRAMMAR_ESCAPE;
    return any;
}

static bool grammar_string(const grammar *g, grammar_path *s, unsigned char c) {
    const grammar_node *node = &g->nodes[s->node];
    if (!s->key && node->pattern) return grammar_pattern(g, s, c);
    if (s->left) { /* inside of a character */
        s->left--;
        return (c & 0xC0) == 0x80;
    }
    if (!s->key && (c == '"' ? s->at < node->shortest : s->at >= node->longest)) return false;
    if (c != '"' && s->at < INT_MAX) s->at++;
    if (c == '"')
        return s->key ? grammar_expect(s, g->nodes[s->frames[s->depth - 1].node].extra,
                                       GRAMMAR_COLON) : grammar_end_value(s);
    if (c == '\\') s->mode = GRAMMAR_ESCAPE;
    else if (c >= 0xC2 && c <= 0xF4) s->left = c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
    else if (c < 0x20 || c >= 0x7F) return false;
    return true;
}

/* No halves of characters. */
static bool grammar_escape(const grammar *g, grammar_path *s, unsigned char c) {
    const grammar_node *node = &g->nodes[s->node];
    const char *escape = c ? strchr(grammar_escapes, c) : NULL;
    if (!s->key && node->pattern) {
        s->mode = GRAMMAR_STRING;
        return escape && grammar_raw(g, s, (unsigned char)grammar_escaped[escape - grammar_escapes]);
    }
    if (s->mode == GRAMMAR_HEX) {
        if (s->left == 4) s->low = (c | 32) == 'd';
        if (s->left == 3 && s->low && c > '7') return false;
        if (--s->left == 0) s->mode = GRAMMAR_STRING;
        return json_is_hex(c);
    }
    s->mode = c == 'u' ? GRAMMAR_HEX : GRAMMAR_STRING;
    s->left = c == 'u' ? 4 : 0;
    return c && strchr("\"\\/bfnrtu", c);
}

static bool grammar_number_ends(const grammar *g, const grammar_path *s) {
    const grammar_node *node = &g->nodes[s->node];
    int64_t low, high, number = s->number;
    int i;
    if (s->mode != GRAMMAR_ZERO && s->mode != GRAMMAR_DIGITS && s->mode != GRAMMAR_FRACTION && s->mode != GRAMMAR_EXPONENT) return false;
    if (node->places < 0) return true;
    for (i = s->places; i < node->places; i++) number *= 10; /* at most the higher limit: see grammar_may_reach */
    return grammar_range(s, node, &low, &high) && number >= low;
}

/* A byte of a number with limits. */
static bool grammar_limited(const grammar *g, grammar_path *s, unsigned char c) {
    const grammar_node *node = &g->nodes[s->node];
    if (c >= '0' && c <= '9' && s->mode != GRAMMAR_ZERO) {
        if (s->mode == GRAMMAR_MINUS) s->mode = c == '0' ? GRAMMAR_ZERO : GRAMMAR_DIGITS;
        else if (s->mode == GRAMMAR_POINT) s->mode = GRAMMAR_FRACTION;
        if (s->mode == GRAMMAR_FRACTION && ++s->places > node->places) return false;
        s->number = grammar_add_digit(s->number, c - '0');
    } else if (c == '.' && node->places && (s->mode == GRAMMAR_ZERO || s->mode == GRAMMAR_DIGITS)) {
        s->mode = GRAMMAR_POINT;
    } else {
        return grammar_number_ends(g, s) && grammar_end_value(s) && grammar_step(g, s, c);
    }
    return grammar_may_reach(s, node);
}

static bool grammar_number(const grammar *g, grammar_path *s, unsigned char c) {
    bool digit = c >= '0' && c <= '9', real = !g->nodes[s->node].integer, ends;
    if (g->nodes[s->node].places >= 0) return grammar_limited(g, s, c);
    ends = grammar_number_ends(g, s);
    if (digit && s->mode != GRAMMAR_ZERO) {
        if (s->mode == GRAMMAR_MINUS) s->mode = c == '0' ? GRAMMAR_ZERO : GRAMMAR_DIGITS;
        else if (s->mode == GRAMMAR_POINT) s->mode = GRAMMAR_FRACTION;
        else if (s->mode == GRAMMAR_E || s->mode == GRAMMAR_SIGN)
            s->mode = GRAMMAR_EXPONENT, s->left = GRAMMAR_MAX_DIGITS - 3;
        return ++s->left <= GRAMMAR_MAX_DIGITS;
    }
    if (s->mode == GRAMMAR_E && (c == '+' || c == '-')) s->mode = GRAMMAR_SIGN;
    else if (real && c == '.' && s->left < GRAMMAR_MAX_DIGITS && (s->mode == GRAMMAR_ZERO || s->mode == GRAMMAR_DIGITS)) s->mode = GRAMMAR_POINT;
    else if (real && (c == 'e' || c == 'E') && ends && s->mode != GRAMMAR_EXPONENT) s->mode = GRAMMAR_E;
    else return ends && grammar_end_value(s) && grammar_step(g, s, c);
    return true;
}

static bool grammar_item(const grammar *g, grammar_path *s) {
    grammar_frame *f = &s->frames[s->depth - 1];
    const grammar_node *node = &g->nodes[f->node];
    int item = grammar_item_of(g, node, f->next);
    if (f->next >= node->most || !grammar_fits(s, g->nodes[item].height)) return false;
    if (f->next < INT_MAX) f->next++;
    return grammar_expect(s, item, GRAMMAR_VALUE);
}

static bool grammar_close_array(const grammar *g, grammar_path *s) {
    if (s->frames[s->depth - 1].next < g->nodes[s->frames[s->depth - 1].node].least) return false;
    s->depth--;
    return grammar_end_value(s);
}

/* Behind a value in an object or array. */
static bool grammar_next(const grammar *g, grammar_path *s, unsigned char c) {
    grammar_path key;
    if (s->frames[s->depth - 1].array) return c == ']' ? grammar_close_array(g, s) : c == ',' && grammar_item(g, s);
    if (c == '}') return grammar_close_object(g, s);
    if (c != ',') return false;
    key = *s;
    return grammar_begin_key(g, &key) && grammar_expect(s, s->node, GRAMMAR_KEY_QUOTE);
}

static bool grammar_is_space(unsigned char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* White space between the parts of JSON: one blank, or the end of a line and up to eight bytes a level that the next is indented by. Models would
   go on with it. */
static bool grammar_space(grammar_path *s, unsigned char c) {
    if (s->spaces) return (c == ' ' || c == '\t') && s->spaces++ <= 8 * s->depth && s->spaces <= GRAMMAR_MAX_SPACES;
    s->spaces = c == '\n' ? 1 : GRAMMAR_MAX_SPACES;
    return c == '\n' || c == ' ';
}

static bool grammar_step(const grammar *g, grammar_path *s, unsigned char c) {
    if (grammar_is_space(c) && (s->mode <= GRAMMAR_KEY_QUOTE || s->mode == GRAMMAR_COLON)) return grammar_space(s, c);
    switch (s->mode) {
    case GRAMMAR_VALUE: return grammar_begin_value(g, s, c);
    case GRAMMAR_OBJECT: return c == '"' ? grammar_begin_key(g, s) : c == '}' && grammar_close_object(g, s);
    case GRAMMAR_ARRAY: return c == ']' ? grammar_close_array(g, s) : grammar_item(g, s) && grammar_begin_value(g, s, c);
    case GRAMMAR_NEXT: return grammar_next(g, s, c);
    case GRAMMAR_KEY_QUOTE: return c == '"' && grammar_begin_key(g, s);
    case GRAMMAR_KEY: return grammar_key(g, s, c);
    case GRAMMAR_COLON: return c == ':' && grammar_expect(s, s->node, GRAMMAR_VALUE);
    case GRAMMAR_STRING: return grammar_string(g, s, c);
    case GRAMMAR_ESCAPE: case GRAMMAR_HEX: return grammar_escape(g, s, c);
    case GRAMMAR_LITERAL: return grammar_literal(g, s, c);
    case GRAMMAR_RAW: return grammar_raw(g, s, c);
    case GRAMMAR_DONE: return false;
    default: return grammar_number(g, s, c);
    }
}

/* Whether the answer may end here. */
static bool grammar_path_complete(const grammar *g, const grammar_path *s) {
    if (s->mode == GRAMMAR_DONE) return true;
    if (s->mode == GRAMMAR_RAW) return g->patterns.accepts[s->low];
    if (s->depth) return false;
    return s->mode == GRAMMAR_LITERAL ? g->texts[s->low].length == (size_t)s->at : grammar_number_ends(g, s);
}

/* Of the stack, only what is in use. */
static size_t grammar_path_bytes(const grammar_path *s) { return offsetof(grammar_path, frames) + (size_t)s->depth * sizeof(s->frames[0]); }

/* Adds a path, unless it is there or there are too many. */
static void grammar_add_path(grammar_state *s, const grammar_path *path) {
    int i;
    for (i = 0; i < s->n; i++)
        if (memcmp(&s->paths[i], path, grammar_path_bytes(path)) == 0) return;
    if (s->n < GRAMMAR_MAX_PATHS) memcpy(&s->paths[s->n++], path, grammar_path_bytes(path));
}

static void grammar_copy(grammar_state *to, const grammar_state *from) {
    int i;
    to->n = from->n;
    for (i = 0; i < from->n; i++) memcpy(&to->paths[i], &from->paths[i], grammar_path_bytes(&from->paths[i]));
}

/* Whether a byte is the first of a value, which may be one of several. */
static bool grammar_begins(const grammar_path *s, unsigned char c) {
    return (s->mode == GRAMMAR_VALUE || (s->mode == GRAMMAR_ARRAY && c != ']')) && !grammar_is_space(c);
}

/* Adds the ways of a path through such a byte. */
static void grammar_fork(const grammar *g, grammar_path *path, unsigned char c, grammar_state *to) {
    const grammar_node *node;
    grammar_path one;
    int i;
    if (path->mode == GRAMMAR_ARRAY && !grammar_item(g, path)) return;
    node = &g->nodes[path->node];
    if (!node->n_choices && grammar_step(g, path, c)) grammar_add_path(to, path);
    for (i = 0; i < node->n_choices; i++) {
        memcpy(&one, path, grammar_path_bytes(path));
        one.node = g->choices[node->choices + i];
        if (grammar_step(g, &one, c)) grammar_add_path(to, &one);
    }
}

/* Follows a byte; false: it may not come. */
static bool grammar_byte(const grammar *g, grammar_state *s, unsigned char c) {
    grammar_state to;
    int i;
    if (s->n == 1 && !grammar_begins(&s->paths[0], c)) return grammar_step(g, &s->paths[0], c);
    for (to.n = 0, i = 0; i < s->n; i++)
        if (grammar_begins(&s->paths[i], c)) grammar_fork(g, &s->paths[i], c, &to);
        else if (grammar_step(g, &s->paths[i], c)) grammar_add_path(&to, &s->paths[i]);
    grammar_copy(s, &to);
    return s->n > 0;
}

static void grammar_begin(const grammar *g, grammar_state *s) {
    s->paths[0] = g->first;
    s->n = 1;
}

static bool grammar_complete(const grammar *g, const grammar_state *s) {
    int i;
    for (i = 0; i < s->n; i++)
        if (grammar_path_complete(g, &s->paths[i])) return true;
    return false;
}

/* ---- tokens ------------------------------------------------------------------------------------ */

static void grammar_vocab_free(grammar_vocab *v) {
    free(v->texts);
    free(v->lengths);
    free(v->kinds);
    memset(v, 0, sizeof(*v));
}

/* Special tokens, which detokenize leaves out, are never part of JSON. */
static int grammar_kind(const fg_model *model, int32_t token, const char *text, size_t length) {
    size_t shown = 0, i;
    char buffer[256];
    if (fg_token_is_end(model, token)) return GRAMMAR_END;
    if (!text || length == 0 || length > 255) return GRAMMAR_NEVER;
    for (i = 0; i < length && text[i] == ' '; i++) {}
    if (i < length && fg_detokenize(model, &token, 1, FG_NO_SPECIAL, buffer, sizeof(buffer), &shown) == FG_OK && shown == 0)
        return GRAMMAR_NEVER;
    for (i = 0; i < length; i++)
        if ((unsigned char)text[i] < 0x20 || (unsigned char)text[i] > 0x7E || text[i] == '"' || text[i] == '\\')
            return GRAMMAR_MIXED;
    return GRAMMAR_PLAIN;
}

static void grammar_vocab_make(grammar_vocab *v, const fg_model *model, int n) {
    int i;
    if (v->n) return;
    v->texts = (const char **)xrealloc(NULL, (size_t)n * sizeof(char *));
    v->lengths = (unsigned char *)xrealloc(NULL, (size_t)n);
    v->kinds = (unsigned char *)xrealloc(NULL, (size_t)n);
    for (i = 0; i < n; i++) {
        size_t length = 0;
        v->texts[i] = fg_token_text(model, i, &length);
        v->lengths[i] = (unsigned char)(length > 255 ? 255 : length);
        v->kinds[i] = (unsigned char)grammar_kind(model, i, v->texts[i], length);
    }
    v->n = n;
}

static bool grammar_bytes(const grammar *g, grammar_state *s, const char *text, int length) {
    int i;
    for (i = 0; i < length; i++)
        if (!grammar_byte(g, s, (unsigned char)text[i])) return false;
    return true;
}

/* Follows the tokens of a sample up to `position`. */
static void grammar_follow(const grammar *g, grammar_sample *x, const int32_t *tokens, int position) {
    if (x->begin == 0 || position < x->at) {
        if (x->begin == 0) x->begin = position;
        x->at = x->begin;
        x->lost = false;
        grammar_begin(g, &x->state);
    }
    for (; x->at < position && !x->lost; x->at++) {
        int32_t t = tokens[x->at];
        x->lost = t < 0 || t >= g->vocab->n || !grammar_bytes(g, &x->state, g->vocab->texts[t], g->vocab->lengths[t]);
    }
}

/* Whether an answer that is at `from` can go on with these bytes. */
static bool grammar_can_add(const grammar *g, const grammar_state *from, const char *text, int length) {
    grammar_state s;
    grammar_copy(&s, from);
    return grammar_bytes(g, &s, text, length);
}

/* Whether it is within a string, where nearly all may come. */
static bool grammar_in_string(const grammar *g, const grammar_state *s) {
    int i;
    for (i = 0; i < s->n; i++)
        if (s->paths[i].mode == GRAMMAR_STRING && s->paths[i].left == 0 && 
            (s->paths[i].key || (g->nodes[s->paths[i].node].longest == INT64_MAX && !g->nodes[s->paths[i].node].pattern)))
            return true;
    return false;
}

/* Whether it can go on with a token. tried: what is known of two bytes that tokens begin with (0: nothing; 1: no way on; 2: there is
   one). White space may come nearly everywhere and begins most tokens, but few of them fit behind it: the others fail here. */
static bool grammar_can_add_token(const grammar *g, const grammar_sample *x, unsigned char (*tried)[256], int token) {
    const char *text = g->vocab->texts[token];
    int length = g->vocab->lengths[token], kind = g->vocab->kinds[token];
    unsigned char *start;
    if (x->lost || kind == GRAMMAR_NEVER) return false;
    if (kind == GRAMMAR_PLAIN && grammar_in_string(g, &x->state)) return true;
    if (length == 1) return grammar_can_add(g, &x->state, text, 1);
    start = &tried[(unsigned char)text[0]][(unsigned char)text[1]];
    if (*start == 0) *start = grammar_can_add(g, &x->state, text, 2) ? 2 : 1;
    return *start == 2 && (length == 2 || grammar_can_add(g, &x->state, text, length));
}

/* fg_logits_fn: bans the tokens that the answer cannot go on with. Where no token has a way on, it ends: a vocabulary can be without
   one for every byte. */
static void grammar_mask(void *user, int sample, int position, const int32_t *tokens, float *logits, int n_vocab) {
    grammar *g = (grammar *)user;
    grammar_sample *x = &g->samples[sample];
    const grammar_vocab *v = g->vocab;
    unsigned char tried[256][256];
    bool ends, any = false;
    int i;
    grammar_follow(g, x, tokens, position);
    ends = x->lost || grammar_complete(g, &x->state);
    memset(tried, 0, sizeof(tried));
    for (i = 0; i < n_vocab; i++) {
        bool end = i < v->n && v->kinds[i] == GRAMMAR_END;
        bool ok = end ? ends : i < v->n && grammar_can_add_token(g, x, tried, i);
        if (!ok && !end) logits[i] = -INFINITY;
        any = any || ok;
    }
    for (i = 0; i < n_vocab && i < v->n && any && !ends; i++)
        if (v->kinds[i] == GRAMMAR_END) logits[i] = -INFINITY;
}
