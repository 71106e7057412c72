/* A game's frame loop with a language model in it: the engine runs inside the frame, with a limit of a few milliseconds
   for each, on the game's own thread. Two characters talk at once; their texts grow from frame to frame.

       cc -O2 -o frame_loop frame_loop.c -lm -lpthread && ./frame_loop model.gguf
*/
#define FASTGEN_IMPLEMENTATION
#include "../fastgen.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define FRAME 0.0166   /* seconds: 60 frames per second */
#define AI_LIMIT 0.002 /* of these for the engine */
#define SPEAKERS 2

typedef struct speaker {
    const char *line;  /* what the character begins with */
    char text[2000];
    size_t length;
} speaker;

static double seconds(void) {
#if defined(_WIN32)
    LARGE_INTEGER count, rate;
    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&rate);
    return (double)count.QuadPart / (double)rate.QuadPart;
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#endif
}

static void wait_seconds(double time) {
#if defined(_WIN32)
    if (time > 0) Sleep((DWORD)(time * 1000));
#else
    struct timespec t = {0, (long)(time * 1e9)};
    if (time > 0) nanosleep(&t, NULL);
#endif
}

/* Takes what the engine has; hands back how many characters finished. */
static int take_events(fg_engine *engine) {
    fg_event event;
    int ended = 0;
    while (fg_next_event(engine, &event)) {
        speaker *s = (speaker *)event.user;
        size_t room = sizeof(s->text) - 1 - s->length, n = event.text_length < room ? event.text_length : room;
        if (event.type == FG_EVENT_TOKEN || event.type == FG_EVENT_SAMPLE_END) {
            memcpy(s->text + s->length, event.text, n);
            s->length += n;
        }
        ended += event.type == FG_EVENT_END;
    }
    return ended;
}

static fg_result speak(fg_engine *engine, speaker *s) {
    fg_request_desc request;
    fg_request handle;
    memset(&request, 0, sizeof(request));
    request.prompt = s->line;
    request.max_tokens = 200;
    request.sampling.temperature = 0.7f;
    request.sampling.top_p = 0.9f;
    request.user = s;
    return fg_submit(engine, &request, &handle);
}

static void show_frame(int frame, double ai, const speaker *speakers) {
    int i;
    size_t k;
    printf("frame %4d  engine %5.2f ms", frame, ai * 1e3);
    for (i = 0; i < SPEAKERS; i++) {
        printf("  | ");
        for (k = speakers[i].length < 24 ? 0 : speakers[i].length - 24; k < speakers[i].length; k++)
            putchar(speakers[i].text[k] == '\n' ? ' ' : speakers[i].text[k]);
    }
    printf("\n");
}

/* Runs frames until both have spoken, and shows those in which something was said. The worst and the mean time that the
   engine took go to *worst and *mean. */
static fg_result run_frames(fg_engine *engine, speaker *speakers, int *n_frames, double *worst, double *mean) {
    int frame, ended = 0;
    size_t shown = 0;
    double sum = 0.0;
    fg_result result = FG_OK;
    for (frame = 0; ended < SPEAKERS && result == FG_OK; frame++) {
        double start = seconds(), ai;
        /* ... the game's input, physics and drawing come here ... */
        result = fg_step(engine, AI_LIMIT, NULL);
        ai = seconds() - start;
        ended += take_events(engine);
        sum += ai;
        if (ai > *worst) *worst = ai;
        if (speakers[0].length + speakers[1].length > shown) show_frame(frame, ai, speakers);
        shown = speakers[0].length + speakers[1].length;
        wait_seconds(FRAME - (seconds() - start)); /* a game waits for the display */
    }
    *n_frames = frame;
    *mean = frame ? sum / frame : 0.0;
    return result;
}

int main(int argc, char **argv) {
    static speaker speakers[SPEAKERS] = {{"The old wizard said to the knight", "", 0},
                                         {"The dragon looked at the sea and", "", 0}};
    fg_engine_desc desc = {0};
    fg_engine *engine = NULL;
    double worst = 0.0, mean = 0.0;
    int i, n_frames = 0;
    fg_result result;

    desc.model_path = argc > 1 ? argv[1] : "examples/demo-model/demo.gguf";
    desc.n_threads = 1;     /* the other cores are the game's */
    desc.token_budget = 16; /* small passes: nothing can be stopped in the middle of one */
    result = fg_engine_create(&desc, &engine);
    for (i = 0; i < SPEAKERS && result == FG_OK; i++) result = speak(engine, &speakers[i]);
    if (result == FG_OK) result = run_frames(engine, speakers, &n_frames, &worst, &mean);
    if (result != FG_OK) {
        fprintf(stderr, "%s\n", fg_last_error());
        return 1;
    }
    for (i = 0; i < SPEAKERS; i++) printf("\n%s%s\n", speakers[i].line, speakers[i].text);
    printf("\n%d frames; the engine took %.2f ms of a frame in the mean, %.2f ms at most (limit %.0f ms)\n", n_frames,
           mean * 1e3, worst * 1e3, AI_LIMIT * 1e3);
    fg_engine_free(engine);
    return 0;
}
