/* When the KV cache is better off on the CPU (--kv-device cpu): the time of a pass that decodes, by what was measured of the device, the
   CPU and the copies between them. Seconds, bytes, tokens. */

enum { SPLIT_POINTS = 40, SPLIT_MOST = 1024 /* sequences of a pass */ };

/* A copy of n bytes takes seconds + n / bytes_per_s. */
typedef struct split_link {
    double seconds, bytes_per_s;
} split_link;

typedef struct split_model {
    int n_layers, n_points;      /* n_points 0: there is nothing to compare */
    double tokens[SPLIT_POINTS]; /* of passes that were measured, ascending, */
    double pass_s[SPLIT_POINTS]; /* and what each takes on the device but for attention */
    double device_kv, cpu_kv;    /* bytes of the cache that attention reads in a second */
    split_link down, up;         /* copies to the host, to the device */
    double down_bytes, up_bytes; /* of a token in a layer: q, k and v; attention's result */
    double kv_bytes;             /* of a token in the cache, all layers */
    double room, cpu_room;       /* for the cache on the device, and on the host; cpu_room 0: unknown */
    double at_once;              /* how much of the shorter of two pieces of work, one on each, is done while the other is: 0 to 1 */
} split_model;

/* Adds a pass that was measured; one of more tokens takes no less, and of two of as many the longer time counts. */
static void split_point(split_model *m, double tokens, double seconds) {
    int i = m->n_points, k;
    if (!(tokens > 0.0) || !(seconds > 0.0)) return;
    for (k = 0; k < m->n_points && m->tokens[k] != tokens; k++) {}
    if (k == SPLIT_POINTS) return;
    if (k < m->n_points) m->pass_s[k] = m->pass_s[k] > seconds ? m->pass_s[k] : seconds;
    else {
        for (; i > 0 && m->tokens[i - 1] > tokens; i--) {
            m->tokens[i] = m->tokens[i - 1];
            m->pass_s[i] = m->pass_s[i - 1];
        }
        m->tokens[i] = tokens;
        m->pass_s[i] = seconds;
        m->n_points++;
    }
    for (k = 1; k < m->n_points; k++)
        if (m->pass_s[k] < m->pass_s[k - 1]) m->pass_s[k] = m->pass_s[k - 1];
}

/* The products of a pass of n tokens: on the line between the points around it; as the first below them, straight on above them. */
static double split_products(const split_model *m, double n) {
    int i = 1, last = m->n_points - 1;
    double slope;
    if (n <= m->tokens[0]) return m->pass_s[0];
    if (last == 0) return m->pass_s[0] * n / m->tokens[0];
    while (i < last && m->tokens[i] < n) i++;
    slope = (m->pass_s[i] - m->pass_s[i - 1]) / (m->tokens[i] - m->tokens[i - 1]);
    return m->pass_s[i - 1] + (n - m->tokens[i - 1]) * slope;
}

/* All on the device: as many sequences of `context` tokens as fit, and their tokens per second; 0: not one fits. */
static double split_alone(const split_model *m, double context, double *sequences) {
    double cache = context * m->kv_bytes, n = floor(m->room / cache);
    if (n > SPLIT_MOST) n = SPLIT_MOST;
    *sequences = n < 1.0 ? 0.0 : n;
    return n < 1.0 ? 0.0 : n / (split_products(m, n) + n * cache / m->device_kv);
}

static double split_copies(const split_model *m, const split_link *link, double bytes) {
    return m->n_layers * (link->seconds + bytes / link->bytes_per_s);
}

/* A pass of n sequences with the cache on the CPU. Its halves change places, so that it lasts as long as the busiest of the device, the
   CPU and the two directions of copies, but no less than one half takes on its way through all of them. */
static double split_pass(const split_model *m, double context, double n) {
    double halves = n > 1.0 ? 2.0 : 1.0, one = n / halves;
    double device = split_products(m, one), cpu = one * context * m->kv_bytes / m->cpu_kv;
    double down = split_copies(m, &m->down, one * m->down_bytes), up = split_copies(m, &m->up, one * m->up_bytes);
    double more = device > cpu ? device : cpu, less = device > cpu ? cpu : device, way = device + cpu + down + up;
    double seconds = halves * (more + (1.0 - m->at_once) * less);
    if (seconds < halves * down) seconds = halves * down;
    if (seconds < halves * up) seconds = halves * up;
    return seconds < way ? way : seconds;
}

/* Tokens per second with the cache on the CPU, of the fewest sequences that come within a twentieth of the best. */
static double split_together(const split_model *m, double context, double *sequences) {
    double most = SPLIT_MOST, best = 0.0, n;
    if (m->cpu_room > 0.0 && m->cpu_room < most * context * m->kv_bytes) most = floor(m->cpu_room / (context * m->kv_bytes));
    for (n = 1.0; n <= most; n *= 2.0)
        if (n / split_pass(m, context, n) > best) best = n / split_pass(m, context, n);
    for (n = 1.0; n <= most; n *= 2.0)
        if (n / split_pass(m, context, n) >= 0.95 * best) break;
    *sequences = most < 1.0 ? 0.0 : n;
    return most < 1.0 ? 0.0 : n / split_pass(m, context, n);
}

/* A device that takes turns with the CPU, as one in software does, is no second processor, and it never pays. */
static bool split_pays(const split_model *m, double context) {
    double n, alone = split_alone(m, context, &n);
    return m->at_once >= 0.5 && split_together(m, context, &n) > 1.05 * alone;
}
