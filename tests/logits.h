/* Logits of every position of a token sequence, through the public API. */
#ifndef LOGITS_H
#define LOGITS_H

#include <stdlib.h>
#include <string.h>

typedef struct logits_sink {
    float *rows; /* [n_tokens * n_vocab] */
    int n_tokens, n_vocab;
    int n_seen, n_wrong; /* rows that came; calls that made no sense */
} logits_sink;

/* The engine's hook: `position` is that of the token the row predicts, so the row belongs to the token before it. */
static void logits_keep(void *user, int sample, int position, const int32_t *tokens, float *logits, int n_vocab) {
    logits_sink *sink = (logits_sink *)user;
    (void)tokens;
    if (sample != 0 || position < 1 || position > sink->n_tokens || n_vocab != sink->n_vocab) {
        sink->n_wrong++;
        return;
    }
    memcpy(sink->rows + (size_t)(position - 1) * (size_t)n_vocab, logits, (size_t)n_vocab * sizeof(float));
    sink->n_seen++;
}

/* Fills rows[n_tokens * n_vocab]. FG_ERROR_DEVICE when not every row came exactly once. */
static fg_result logits_collect(fg_engine *engine, const int32_t *tokens, int n_tokens, float *rows, int n_vocab) {
    fg_request_desc request;
    logits_sink sink;
    fg_result result;
    memset(&request, 0, sizeof(request));
    sink.rows = rows;
    sink.n_tokens = n_tokens;
    sink.n_vocab = n_vocab;
    sink.n_seen = sink.n_wrong = 0;
    request.tokens = tokens;
    request.n_tokens = (size_t)n_tokens;
    request.max_tokens = 1;
    request.ignore_eos = true;
    request.prompt_logprobs = true;
    request.on_logits = logits_keep;
    request.on_logits_user = &sink;
    result = fg_generate(engine, &request, NULL, NULL);
    if (result == FG_OK && (sink.n_seen != n_tokens || sink.n_wrong)) result = FG_ERROR_DEVICE;
    return result;
}

#endif
