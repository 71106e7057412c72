/* What check_chat.py runs: renders chat templates, one case a line of standard input, one result a line of output.

   {"template": T, "variables": {...}}                        renders T with these variables
   {"template": T, "messages": JSON text, "options": JSON text or null, "texts": {"bos_token": "<s>", ...}}
                                                              formats a conversation, as fg_chat_format does
   Results: {"text": ...}, {"error": message} */
#define FASTGEN_IMPLEMENTATION
#include "../fastgen.h"

#include <stdio.h>
#include <stdlib.h>

/* Reads a line without its end; the caller frees it. NULL at the end of the input. */
static char *read_line(size_t *length) {
    size_t capacity = 1 << 16;
    char *line = (char *)malloc(capacity);
    int c;
    for (*length = 0; line && (c = getchar()) != EOF && c != '\n'; line[(*length)++] = (char)c) {
        if (*length + 2 > capacity) line = (char *)realloc(line, capacity *= 2);
        if (!line) return NULL;
    }
    if (line && *length == 0 && feof(stdin)) {
        free(line);
        return NULL;
    }
    return line;
}

static fg_result render(const fg__env *env, const fg__json *request, fg__text *out) {
    const fg__json *text = fg__json_get(request, "template"), *messages = fg__json_get(request, "messages");
    const fg__json *options = fg__json_get(request, "options"), *given = fg__json_get(request, "texts");
    fg__chat_text texts[8];
    size_t n;
    if (!messages)
        return fg__chat_render(env, text->value.string, text->count, fg__json_get(request, "variables"), out);
    for (n = 0; given && n < given->count && n < 8; n++) {
        texts[n].name = fg__json_key(given, n)->value.string;
        texts[n].text = fg__json_value(given, n)->value.string;
        texts[n].length = fg__json_value(given, n)->count;
    }
    return fg__chat_format(env, text->value.string, text->count, messages->value.string,
                           options && options->type == FG__JSON_STRING ? options->value.string : NULL, texts, n, out);
}

int main(void) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    char *line;
    size_t length;
    while ((line = read_line(&length)) != NULL) {
        fg__json *request;
        fg__text out, reply;
        memset(&out, 0, sizeof(out));
        out.env = &env;
        reply = out;
        if (fg__json_parse(&env, line, length, &request) == FG_OK && render(&env, request, &out) == FG_OK) {
            fg__text_puts(&reply, "{\"text\": ");
            fg__json_escape(&reply, out.data ? out.data : "", out.length);
        } else {
            fg__text_puts(&reply, "{\"error\": ");
            fg__json_escape(&reply, fg_last_error(), strlen(fg_last_error()));
        }
        printf("%s}\n", reply.data);
        fflush(stdout);
        fg__json_free(request);
        fg__text_free(&out);
        fg__text_free(&reply);
        free(line);
    }
    return 0;
}
