/* fastgen tokenize: stdin to token ids, or ids to text. */

static void print_ids(const tool_args *args, const int32_t *ids, int count) {
    str out = {NULL, 0, 0};
    int i;
    str_puts(&out, args->json ? "{\"ids\": [" : "");
    for (i = 0; i < count; i++) str_printf(&out, "%s%d", i == 0 ? "" : args->json ? ", " : " ", (int)ids[i]);
    str_puts(&out, args->json ? "]}\n" : "\n");
    fwrite(out.data, 1, out.length, stdout);
    str_free(&out);
}

static int encode_input(const tool_args *args, const fg_model *model, const str *input) {
    unsigned flags = (args->no_bos ? FG_NO_BOS : 0u) | (args->no_special ? FG_NO_SPECIAL : 0u);
    int32_t *ids = NULL;
    int count = tokenize_text(model, input->data, input->length, flags, &ids);
    if (count >= 0) print_ids(args, ids, count);
    free(ids);
    return count >= 0 ? 0 : 1;
}

/* Ids separated by spaces, lines or commas, as --json prints them too; -1 after a message. */
static int parse_ids(const str *input, int32_t **ids) {
    static const char head[] = "{\"ids\":";
    bool object = strncmp(input->data, head, sizeof(head) - 1) == 0;
    const char *text = input->data + (object ? sizeof(head) - 1 : 0), *between = object ? " \t\r\n,[]}" : " \t\r\n,[]";
    size_t capacity = input->length / 2 + 1;
    int count = 0;
    *ids = (int32_t *)xrealloc(NULL, capacity * sizeof(int32_t));
    while (*(text += strspn(text, between))) {
        char *end;
        long id = strtol(text, &end, 10);
        if (end == text || id < -0x7FFFFFFF || id > 0x7FFFFFFF || !strchr(" \t\r\n,]", *end)) {
            failure("'%.*s' is not a token id", (int)strcspn(text, " \t\r\n,]"), text);
            return -1;
        }
        (*ids)[count++] = (int32_t)id;
        text = end;
    }
    if (text == input->data + input->length) return count;
    failure("the ids have a NUL byte behind them");
    return -1;
}

/* What tokenize adds around a text is not part of it: a BOS and an EOS token that the model wants are left out. */
static void trim_ids(const tool_args *args, const fg_model *model, const int32_t **ids, int *count) {
    fg_model_info info;
    fg_model_get_info(model, &info);
    if (args->no_bos) return;
    if (info.add_bos && *count > 0 && (*ids)[0] == info.token_bos) {
        ++*ids;
        --*count;
    }
    if (info.add_eos && *count > 0 && (*ids)[*count - 1] == info.token_eos) --*count;
}

static void print_text(const tool_args *args, const str *text) {
    str out = {NULL, 0, 0};
    if (args->json) {
        str_puts(&out, "{\"text\": ");
        str_json(&out, text->data, text->length);
        str_puts(&out, "}\n");
    } else {
        str_add(&out, text->data, text->length);
        if (is_terminal(stdout)) str_puts(&out, "\n");
    }
    fwrite(out.data, 1, out.length, stdout);
    str_free(&out);
}

static int decode_input(const tool_args *args, const fg_model *model, const str *input) {
    str text = {NULL, 0, 0};
    int32_t *ids = NULL;
    int count = parse_ids(input, &ids), result = count >= 0 ? 0 : 1;
    const int32_t *start = ids;
    str_puts(&text, "");
    if (result == 0) {
        trim_ids(args, model, &start, &count);
        if (add_detokenized(model, start, (size_t)count, args->no_special ? FG_NO_SPECIAL : 0u, &text) != FG_OK)
            result = failure("%s", fg_last_error());
        else
            print_text(args, &text);
    }
    free(ids);
    str_free(&text);
    return result;
}

static int cmd_tokenize(tool_args *args) {
    fg_model *model = NULL;
    str input = {NULL, 0, 0};
    int result = load_model(args, true, &model);
    if (result != 0) return result;
    str_puts(&input, "");
    if (!read_file("-", &input)) result = failure("cannot read the standard input");
    else result = args->decode ? decode_input(args, model, &input) : encode_input(args, model, &input);
    str_free(&input);
    fg_model_free(model);
    return result;
}
