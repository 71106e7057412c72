/* fastgen demo: eight texts at once, with a view of what the scheduler does, pass by pass. In a terminal the view is
   drawn in place, and slowed down so that the eye can follow; the engine's clock stands still meanwhile. */

/* In a smaller terminal lines would wrap, or scroll away before they are drawn over. */
enum { DEMO_TEXTS = 8, DEMO_HISTORY = 256, DEMO_LEAST_COLUMNS = 64, DEMO_LEAST_ROWS = DEMO_TEXTS + 7 };

#define DEMO_PASS_SECONDS 0.03 /* shortest time that the view shows a pass */

/* Three stories share their beginning, which the prefix cache finds; three are questions to a chat model. */
#define DEMO_FOX "Once upon a time, a little fox named Pip lived in a den in the forest. Pip was always kind. "

static const struct {
    bool question;
    const char *text;
} demo_prompts[DEMO_TEXTS] = {
    {false, DEMO_FOX "One windy morning, Pip"},
    {false, DEMO_FOX "Every night, Pip looked at the stars."},
    {false, DEMO_FOX "Pip wanted to learn to paint."},
    {true, "Tell me a story about a little robot."},
    {false, "Deep in the woods, there lived a young witch. She liked to sing very much."},
    {true, "What does an owl eat?"},
    {true, "Please tell me a story about a storm."},
    {false, "My grandmother once told me about a small dragon."},
};

typedef struct demo_text {
    str text;         /* prompt and continuation */
    size_t n_prompt;  /* bytes of the prompt */
    bool started, ended;
    fg_event end;
} demo_text;

typedef struct demo {
    const tool_args *args;
    session s;
    char device[160];
    int token_budget;
    demo_text texts[DEMO_TEXTS];
    int n_ended;
    fg_stats stats;
    int history[DEMO_HISTORY]; /* tokens of the last passes; negative: none of a prompt */
    int n_passes, n_lines, n_most_running;
    double n_tokens;
    bool live, color;
    int columns, rows;
} demo;

/* The engine's clock: the view's pauses are not its time. */
static double demo_paused;

static double demo_clock(void *user) {
    (void)user;
    return now_seconds() - demo_paused;
}

/* ---- drawing ---- */

static void demo_color(const demo *d, str *to, const char *code) {
    if (d->color) str_printf(to, "\x1b[%sm", code);
}

static void add_cells(str *to, int n, const char *cell, const char *plain) {
    while (n-- > 0) str_puts(to, terminal_utf8 ? cell : plain);
}

/* `first` and `second` of `total`, in two colours, `width` cells wide. Whatever is there takes a cell at least. */
static void add_split_bar(const demo *d, str *to, int first, int second, int total, int width) {
    int a = total > 0 ? (int)((double)first * width / total + 0.5) : 0;
    int b = total > 0 ? (int)((double)second * width / total + 0.5) : 0;
    if (first > 0 && a == 0) a = 1;
    if (second > 0 && b == 0) b = 1;
    if (a > width) a = width;
    if (a + b > width) b = width - a;
    demo_color(d, to, "36");
    add_cells(to, a, "\xe2\x96\x88", "P");
    demo_color(d, to, "32");
    add_cells(to, b, "\xe2\x96\x88", "D");
    demo_color(d, to, "2");
    add_cells(to, width - a - b, "\xe2\x96\x91", ".");
    demo_color(d, to, "0");
}

static void demo_end_line(demo *d, str *to) {
    str_puts(to, "\x1b[K\n");
    d->n_lines++;
}

/* One column for each of the last passes: its height is the share of the budget that was used. */
static void add_history(const demo *d, str *to, int width) {
    static const char *const heights[8] = {"\xe2\x96\x81", "\xe2\x96\x82", "\xe2\x96\x83", "\xe2\x96\x84",
                                           "\xe2\x96\x85", "\xe2\x96\x86", "\xe2\x96\x87", "\xe2\x96\x88"};
    int i = d->n_passes > width ? d->n_passes - width : 0;
    for (; i < d->n_passes; i++) {
        int n = d->history[i % DEMO_HISTORY], tokens = n < 0 ? -n : n, height = tokens * 8 / (d->token_budget + 1);
        demo_color(d, to, n < 0 ? "32" : "36");
        if (terminal_utf8) str_puts(to, heights[height > 7 ? 7 : height]);
        else str_puts(to, n < 0 ? "d" : "P");
    }
    demo_color(d, to, "0");
}

static void add_scheduler_lines(demo *d, str *to) {
    const fg_stats *st = &d->stats;
    int i, width = d->columns - 47;
    str_printf(to, "pass   %4d  ", d->n_passes);
    add_split_bar(d, to, st->pass_prompt_tokens, st->pass_decode_tokens, d->token_budget, width);
    demo_color(d, to, "36");
    str_printf(to, "  %2d prompt", st->pass_prompt_tokens);
    demo_color(d, to, "0");
    str_puts(to, " + ");
    demo_color(d, to, "32");
    str_printf(to, "%d decode", st->pass_decode_tokens);
    demo_color(d, to, "0");
    str_puts(to, " tokens");
    demo_end_line(d, to);
    str_puts(to, "KV blocks    ");
    add_split_bar(d, to, 0, st->blocks_used, st->blocks_total, width);
    str_printf(to, "  %d of %d, %d cached", st->blocks_used, st->blocks_total, st->blocks_cached);
    demo_end_line(d, to);
    str_puts(to, "requests     ");
    for (i = 0; i < DEMO_TEXTS; i++) {
        demo_color(d, to, d->texts[i].ended ? "2" : d->texts[i].started ? "32" : "36");
        add_cells(to, 3, d->texts[i].ended ? "\xe2\x96\x91" : "\xe2\x96\x88", d->texts[i].ended ? "." : "#");
        str_puts(to, " ");
    }
    demo_color(d, to, "0");
    str_printf(to, "  %d running, %d waiting", st->n_running, st->n_waiting);
    demo_end_line(d, to);
    str_puts(to, "history      ");
    add_history(d, to, d->columns - 14);
    demo_end_line(d, to);
}

/* End of the line that begins at `start`: after the last space that fits, or within a long word. */
static size_t wrap_end(const str *text, size_t start, int columns) {
    size_t end = start, i;
    str ignored = {NULL, 0, 0};
    add_columns(&ignored, text->data, text->length, &end, columns);
    str_free(&ignored);
    if (end >= text->length) return text->length;
    for (i = end; i > start; i--)
        if (text->data[i] == ' ') return i + 1;
    return end > start ? end : text->length;
}

static void add_text_line(demo *d, str *to, const demo_text *t, size_t start, size_t end) {
    size_t middle = start > t->n_prompt ? start : end < t->n_prompt ? end : t->n_prompt, at = start;
    demo_color(d, to, "2");
    add_columns(to, t->text.data, middle, &at, d->columns);
    demo_color(d, to, "0");
    add_columns(to, t->text.data, end, &at, d->columns);
}

/* The last `n_lines` lines of a text; 0: all. */
static void add_text_view(demo *d, str *to, int index, int n_lines) {
    const demo_text *t = &d->texts[index];
    int width = d->columns - 4, total = 0, i, line = 0;
    size_t start, end;
    for (start = 0; start < t->text.length; start = wrap_end(&t->text, start, width)) total++;
    for (start = 0; start < t->text.length; start = end, line++) {
        end = wrap_end(&t->text, start, width);
        if (n_lines && line < total - n_lines) continue;
        demo_color(d, to, t->ended ? "2" : "1");
        if (line == 0 || (n_lines && line == total - n_lines)) str_printf(to, "%d ", index + 1);
        else str_puts(to, "  ");
        demo_color(d, to, "0");
        add_text_line(d, to, t, start, end);
        demo_end_line(d, to);
    }
    for (i = total; i < n_lines; i++) demo_end_line(d, to);
}

static int lines_per_text(const demo *d) {
    int lines = (d->rows - 7) / DEMO_TEXTS; /* beside the head */
    return lines < 1 ? 1 : lines > 5 ? 5 : lines;
}

/* Draws everything over what the last call drew, with the last `n_lines` lines of each text. */
static void draw_demo(demo *d, int n_lines) {
    str out = {NULL, 0, 0};
    size_t at = 0;
    str title = {NULL, 0, 0};
    int i;
    if (d->n_lines) str_printf(&out, "\x1b[%dA", d->n_lines);
    d->n_lines = 0;
    str_printf(&title, "fastgen demo: %s on %s", base_name(d->args->model), d->device);
    add_columns(&out, title.data, title.length, &at, d->columns);
    demo_end_line(d, &out);
    add_scheduler_lines(d, &out);
    demo_end_line(d, &out);
    for (i = 0; i < DEMO_TEXTS; i++) add_text_view(d, &out, i, n_lines);
    fwrite(out.data, 1, out.length, stderr);
    fflush(stderr);
    str_free(&title);
    str_free(&out);
}

static void print_demo_line(const demo *d) {
    const fg_stats *st = &d->stats;
    printf("pass %4d   tokens %3d = %3d prompt + %2d decode   ", d->n_passes, st->pass_tokens, st->pass_prompt_tokens,
           st->pass_decode_tokens);
    printf("KV blocks %3d/%d   running %d   waiting %d\n", st->blocks_used, st->blocks_total, st->n_running,
           st->n_waiting);
    fflush(stdout);
}

/* ---- running ---- */

static void demo_take_events(demo *d) {
    fg_event event;
    while (fg_next_event(d->s.engine, &event)) {
        demo_text *t = (demo_text *)event.user;
        if (event.type == FG_EVENT_TOKEN || event.type == FG_EVENT_SAMPLE_END) {
            t->started = true;
            str_add(&t->text, event.text, event.text_length);
        }
        if (event.type != FG_EVENT_SAMPLE_END) continue;
        if (event.finish == FG_FINISH_LENGTH) str_puts(&t->text, " ...");
        t->ended = true;
        t->end = event;
        d->n_ended++;
    }
}

static void demo_count_pass(demo *d) {
    const fg_stats *st = &d->stats;
    fg_get_stats(d->s.engine, &d->stats);
    d->n_tokens += st->pass_tokens;
    d->history[d->n_passes++ % DEMO_HISTORY] = st->pass_prompt_tokens ? st->pass_tokens : -st->pass_tokens;
    if (st->n_running > d->n_most_running) d->n_most_running = st->n_running;
}

static void demo_pause(double since) {
    double left = DEMO_PASS_SECONDS - (now_seconds() - since);
    if (left <= 0.0) return;
    since = now_seconds();
    sleep_seconds(left);
    demo_paused += now_seconds() - since;
}

static fg_result demo_run(demo *d) {
    bool busy = true;
    fg_result result = FG_OK;
    while (busy && result == FG_OK && !interrupted) {
        double start = now_seconds();
        result = fg_step(d->s.engine, 0.0, &busy);
        demo_take_events(d);
        demo_count_pass(d);
        if (d->live) {
            double before = now_seconds();
            draw_demo(d, lines_per_text(d));
            demo_paused += now_seconds() - before;
            demo_pause(start);
        } else if (d->n_passes % 8 == 1) {
            print_demo_line(d);
        }
    }
    return result;
}

/* A question goes through the chat template, where the model has one. */
static fg_result demo_prompt(const demo *d, int index, str *prompt, unsigned *flags) {
    const char *text = demo_prompts[index].text;
    fg_model_info info;
    str json = {NULL, 0, 0};
    fg_result result;
    fg_model_get_info(d->s.model, &info);
    if (!demo_prompts[index].question || !info.chat_template) {
        str_puts(prompt, text);
        return FG_OK;
    }
    add_message(&json, "user", text, strlen(text));
    result = format_chat(d->s.model, &json, prompt);
    *flags = FG_RENDERED;
    str_free(&json);
    return result;
}

static fg_result demo_submit(demo *d, int index) {
    demo_text *t = &d->texts[index];
    str prompt = {NULL, 0, 0};
    fg_request_desc desc;
    fg_request request;
    fg_result result;
    memset(&desc, 0, sizeof(desc));
    result = demo_prompt(d, index, &prompt, &desc.tokenize_flags);
    desc.prompt = prompt.data;
    desc.prompt_length = prompt.length;
    desc.max_tokens = d->args->n_predict < 0 ? 96 : d->args->n_predict;
    desc.sampling.temperature = 0.6f;
    desc.sampling.min_p = 0.1f;
    desc.sampling.seed = d->args->seed + (uint64_t)index;
    desc.user = t;
    str_puts(&t->text, demo_prompts[index].text);
    if (demo_prompts[index].question) str_puts(&t->text, " ");
    t->n_prompt = t->text.length;
    if (result == FG_OK) result = fg_submit(d->s.engine, &desc, &request);
    str_free(&prompt);
    return result;
}

static void print_demo_texts(const demo *d) {
    int i;
    for (i = 0; i < DEMO_TEXTS; i++) printf("\n%d. %s\n", i + 1, d->texts[i].text.data);
}

static void print_demo_summary(const demo *d) {
    double first[DEMO_TEXTS], seconds = 0.0;
    int i, n_prompt = 0, n_cached = 0, n_generated = 0;
    for (i = 0; i < DEMO_TEXTS; i++) {
        const fg_event *e = &d->texts[i].end;
        first[i] = (e->times.first_token - e->times.arrival) * 1e3;
        if (e->times.finish - d->texts[0].end.times.arrival > seconds)
            seconds = e->times.finish - d->texts[0].end.times.arrival;
        n_prompt += e->n_prompt;
        n_cached += e->n_cached;
        n_generated += e->n_generated;
    }
    printf("\n%d texts, %d at once   %d tokens written, %.0f tokens/s\n", DEMO_TEXTS, d->n_most_running, n_generated,
           seconds > 0.0 ? n_generated / seconds : 0.0);
    printf("passes               %d of up to %d tokens, %.1f in the mean\n", d->n_passes, d->token_budget,
           d->n_passes ? d->n_tokens / d->n_passes : 0.0);
    printf("prompts              %d tokens, of these %d from the prefix cache\n", n_prompt, n_cached);
    printf("first token          after %.1f ms in the median, %.1f ms at most\n", median(first, DEMO_TEXTS),
           first[DEMO_TEXTS - 1]);
    printf("engine time          %.2f s", seconds);
    if (d->live) printf(" (the view shows each pass for %.0f ms)", DEMO_PASS_SECONDS * 1e3);
    printf("\n");
}

/* Small passes and blocks, so that there is something to see. */
static int demo_open(demo *d) {
    fg_engine_desc desc;
    fg_device_caps caps;
    int result = describe_engine(d->args, &desc);
    if (result == 0) result = load_model(d->args, false, &d->s.model);
    if (result != 0) return result;
    if (!desc.token_budget) desc.token_budget = 24;
    if (!desc.block_tokens) desc.block_tokens = 8;
    if (!desc.kv_tokens) desc.kv_tokens = 1024;
    desc.clock = demo_clock;
    result = create_engine(d->args, &desc, &d->s);
    if (result != 0) return result;
    fg_engine_get_desc(d->s.engine, &desc);
    put_used_backend_first(d->s.engine, &desc);
    d->token_budget = desc.token_budget;
    describe_device(&desc, &caps);
    snprintf(d->device, sizeof(d->device), "%s: %s", desc.backends[0]->name, caps.name);
    return 0;
}

static int demo_show(demo *d) {
    fg_result result = FG_OK;
    int i;
    for (i = 0; i < DEMO_TEXTS && result == FG_OK; i++) result = demo_submit(d, i);
    if (result == FG_OK) {
        if (d->live) fputs("\x1b[?25l", stderr); /* hide the cursor */
        catch_interrupts();
        result = demo_run(d);
        if (d->live) draw_demo(d, 0);
        if (d->live) fputs("\x1b[?25h", stderr);
    }
    if (result != FG_OK) return failure("%s", fg_last_error());
    if (interrupted) return 128 + interrupted;
    if (!d->live) print_demo_line(d);
    if (!d->live || !is_terminal(stdout)) print_demo_texts(d);
    print_demo_summary(d);
    return d->n_ended == DEMO_TEXTS ? 0 : failure("a text did not end");
}

static int cmd_demo(tool_args *args) {
    static demo d;
    int i, result;
    if (!args->model) args->model = "examples/demo-model/demo.gguf";
    d.args = args;
    d.columns = 80;
    d.rows = 24;
    terminal_size(&d.columns, &d.rows);
    d.live = terminal_obeys(stderr) && d.columns >= DEMO_LEAST_COLUMNS && d.rows >= DEMO_LEAST_ROWS;
    d.color = d.live && terminal_styles(stderr);
    d.columns = d.columns > 120 ? 119 : d.columns - 1;
    result = demo_open(&d);
    if (result == 0) result = demo_show(&d);
    for (i = 0; i < DEMO_TEXTS; i++) str_free(&d.texts[i].text);
    return session_close(&d.s, result);
}
