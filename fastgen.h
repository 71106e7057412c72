/* fastgen.h: serves large language models from one C header.                         Public domain or MIT, at the end.

   Do this:
       #define FASTGEN_IMPLEMENTATION
       #include "fastgen.h"
   in one C or C++ file, before other headers, and build it with
       cc -O2 app.c -lm -lpthread
   Other files include fastgen.h without the #define. examples/hello.c is the whole of embedding it; examples/frame_loop.c
   steps an engine inside a game's frames; examples/fastgen.c is a command-line tool over nothing but this API.

   -------------------------------------------------------------------------------------------------
   1. WHAT IT DOES

   - Reads GGUF models (version 2 and 3, split files): Llama 1 to 3, Mistral, SmolLM, TinyLlama, Qwen 2 and 2.5, Qwen 3, with
     weights in F32, F16, BF16, Q4_0 to Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS and MXFP4; and their tokenizers (SentencePiece and
     byte-level BPE) and chat templates.
   - Serves many requests at once: each pass over the model carries the next token of every running request and, in the
     rest of its token budget, pieces of prompts (Dynamic SplitFuse, arXiv 2401.08671), so that long prompts do not stall
     those who are being answered. The KV cache is paged: no memory is reserved for tokens that may never come, common
     prefixes are computed once, parallel samples share their prompt, and when memory is short the newest request is set
     back and later computed again, or brought back from host memory, whichever takes less time. An accepted request always finishes.
   - Guesses ahead where asked to (n_draft): tokens that followed the same words before are verified in the same pass, so that
     text which repeats itself comes several tokens at a time, and is the same text.
   - A request does not feel the others: on the CPU its logits are the same bits alone or in any batch, cut in any way, with
     a warm or cold cache, on any number of threads. The same seed gives the same text.
   - Runs on the CPU, with kernels for AVX-512, AVX2 and NEON chosen at run time; on GPUs through a Vulkan driver; others come through backends (section 7).

   It does NOT: train, convert models, download anything, open sockets, call exit or abort, print, or read files other than
   the model you name. It loads no model it does not know: the error says what is missing.

   -------------------------------------------------------------------------------------------------
   2. HOW TO USE IT

       fg_engine_desc d = {0};                          // zero means the default, everywhere
       d.model_path = "model.gguf";
       fg_engine *engine;
       if (fg_engine_create(&d, &engine) != FG_OK) { puts(fg_last_error()); return 1; }

   One request at a time:

       fg_request_desc r = {0};
       r.prompt = "Once upon a time";
       r.max_tokens = 64;
       fg_generate(engine, &r, on_text, NULL);          // calls on_text with pieces of UTF-8

   Many:

       fg_submit(engine, &r, &request);                 // any thread, any number
       while (fg_step(engine, 0, &busy) == FG_OK && busy)  // one pass of the model for all of them
           while (fg_next_event(engine, &event)) ...    // tokens, text, ends

   A program with frames gives each frame's spare time: fg_step(engine, 0.004, &busy). A server has one thread that steps
   (fg_wait(engine, FG_WAIT_WORK, -1) while idle), one that takes events, and submits from wherever it likes.
   fg_chat_format turns a conversation into a prompt with the model's own template.

   To see what happens: fg_get_stats counts, fg_get_histograms has the distributions of waits, gaps and passes, every end
   event the request's times, and engine_desc.trace writes all of it for the viewers ui.perfetto.dev and chrome://tracing.

   -------------------------------------------------------------------------------------------------
   3. CONFIGURATION (define before including the implementation)

       FG_NO_THREADS   no threads, no locks: everything runs in the calling thread (tcc: set by itself)
       FG_NO_SIMD      the portable scalar kernels only

   With -std=c99 the implementation needs POSIX names from the system's headers: it asks for them itself when it is the first
   header of its file. Compilers: gcc, clang, mingw-w64, tcc; C99 or later, C++17 or later. MSVC's own compiler gets the scalar
   kernels and has not been tried.

   -------------------------------------------------------------------------------------------------
   4. MEMORY

   weights      as in the file; the fast paths keep one packed copy of about the same size, and the file's pages are only
                mapped
   KV cache     per token 2 x layers x KV heads x head size x bytes of kv_type. The pool (kv_tokens or kv_bytes) is shared by
                all sequences, so it need not hold max_seqs x max_context: whoever does not fit waits or is set back
   activations  token_budget x (3 x embedding + attention + 3 x feed-forward) floats, and 64 or max_seqs rows of logits

   fg_estimate_memory tells all three before anything is allocated. All memory comes from the allocator of the descriptor,
   except threads' stacks and mapped files. A failed allocation is a result, not a crash.

   -------------------------------------------------------------------------------------------------
   5. THREADS

   A model is constant once loaded: any thread may tokenise with it, any number of engines may share it. On an engine
   fg_submit, fg_cancel, fg_step, fg_wait and fg_get_stats may be called from any thread at any time; steps take turns. One
   thread at a time takes events, since the pointers in an event live until the next is taken. Callbacks run in the thread
   that called; on_logits and clock must not call the engine. The engine starts n_threads-1 threads for the CPU backend.

   -------------------------------------------------------------------------------------------------
   6. ERRORS

   Every call that can fail returns fg_result; fg_last_error() has the sentence, per thread. What a request does wrong ends that
   request only: at submit with a result, later with an FG_EVENT_END whose `finish` is FG_FINISH_ERROR and whose `result` says
   why. Files, prompts and metadata are treated as hostile: all offsets, counts and sizes are checked before use.

   -------------------------------------------------------------------------------------------------
   7. WRITING A BACKEND

   A backend is a table of functions, fg_backend, below the banner >>interface. The engine compiles the model into a flat list
   of fused operations (print it with fg_graph_text), gives each weight to pack, the list to prepare, and then for every
   pass a batch to submit. The list never changes; all that varies sits in fg_batch. A backend lists the ops it has in caps.ops
   and may fail prepare with FG_ERROR_UNSUPPORTED. >>cpu is the reference, fg_backend_null the smallest example. Put it into
   fg_engine_desc.backends: they are tried in order, the CPU comes last by itself. fg__graph_check_op and fg__batch_check do
   the checks of what comes from outside; a tensor's data stay where they are while its weight lives.

   backends/vulkan/fg_vulkan.h is a backend for any vendor's GPU in a header of its own, to include after this one:
   desc.backends[0] = fg_backend_vulkan(). It finds the driver at run time and falls through to the CPU without one.

   Sections, greppable: >>config >>log >>mem >>os >>json >>gguf >>quant >>token >>chat >>sample >>kv >>sched >>model >>graph >>cpu
   >>backend >>engine >>public. Names: fg_ public, fg__ private, FG_ macros. */

#ifndef FASTGEN_H
#define FASTGEN_H

#if defined(FASTGEN_IMPLEMENTATION) && !defined(_WIN32) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* clock_gettime, mmap, madvise under -std=c99; so include this header first in that file */
#endif

#if defined(FASTGEN_IMPLEMENTATION) && defined(__MINGW32__) && !defined(__USE_MINGW_ANSI_STDIO)
#define __USE_MINGW_ANSI_STDIO 1 /* %zu and %lld in vsnprintf */
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FG_VERSION "0.1.0"

/* ================================================================================================
   Results
   ================================================================================================ */

/* X(name, text): every result a call can return. */
#define FG_RESULTS(X)                                                                              \
    X(FG_OK, "success")                                                                            \
    X(FG_ERROR_INVALID_ARGUMENT, "an argument is missing, out of range or contradicts another")    \
    X(FG_ERROR_OUT_OF_MEMORY, "an allocation failed")                                              \
    X(FG_ERROR_IO, "a file could not be opened or read")                                           \
    X(FG_ERROR_BAD_FILE, "a file is damaged or not what its name or header says")                  \
    X(FG_ERROR_UNSUPPORTED, "valid, but this build or device cannot do it")                        \
    X(FG_ERROR_BUFFER_TOO_SMALL, "the caller's buffer is too small; the needed size was reported") \
    X(FG_ERROR_TOO_LONG, "the request could not fit the context or the empty KV pool")             \
    X(FG_ERROR_QUEUE_FULL, "max_queue requests are already waiting")                               \
    X(FG_ERROR_NOT_FOUND, "no such request, key, device or backend")                               \
    X(FG_ERROR_CANCELLED, "a progress callback asked to stop")                                     \
    X(FG_ERROR_TEMPLATE, "the chat template failed or raised an exception")                        \
    X(FG_ERROR_DEVICE, "the device failed or was lost")

typedef enum fg_result {
#define FG__ENUM(name, text) name,
    FG_RESULTS(FG__ENUM)
#undef FG__ENUM
    FG_RESULT_COUNT
} fg_result;

const char *fg_version(void);
const char *fg_result_name(fg_result result); /* "FG_ERROR_IO" */
const char *fg_result_text(fg_result result); /* one line of English */
/* What went wrong in the last call on this thread that did not return FG_OK. Never NULL. */
const char *fg_last_error(void);

/* ================================================================================================
   Callbacks: memory, log, progress
   ================================================================================================ */

/* One function does it all: pointer NULL allocates, size 0 frees, otherwise resizes. Called from any thread.
   Returns memory aligned for any C type, or NULL, which becomes FG_ERROR_OUT_OF_MEMORY. */
typedef struct fg_allocator {
    void *(*realloc)(void *pointer, size_t size, void *user);
    void *user;
} fg_allocator;

typedef enum fg_log_level { FG_LOG_DEBUG, FG_LOG_INFO, FG_LOG_WARNING, FG_LOG_ERROR } fg_log_level;
typedef void (*fg_log_fn)(fg_log_level level, const char *line, void *user);

/* Takes the next bytes of a stream. */
typedef void (*fg_write_fn)(const void *data, size_t size, void *user);

/* `fraction` runs from 0 to 1. Return false to stop: the call then returns FG_ERROR_CANCELLED. */
typedef bool (*fg_progress_fn)(float fraction, const char *what, void *user);

/* ================================================================================================
   Types of weights and KV caches
   ================================================================================================ */

/* X(name, GGUF type id, elements per block, bytes per block): block layouts are those of GGML. */
#define FG_TYPES(X)         \
    X(F32, 0, 1, 4)         \
    X(F16, 1, 1, 2)         \
    X(Q4_0, 2, 32, 18)      \
    X(Q4_1, 3, 32, 20)      \
    X(Q5_0, 6, 32, 22)      \
    X(Q5_1, 7, 32, 24)      \
    X(Q8_0, 8, 32, 34)      \
    X(Q2_K, 10, 256, 84)    \
    X(Q3_K, 11, 256, 110)   \
    X(Q4_K, 12, 256, 144)   \
    X(Q5_K, 13, 256, 176)   \
    X(Q6_K, 14, 256, 210)   \
    X(IQ4_NL, 20, 32, 18)   \
    X(IQ4_XS, 23, 256, 136) \
    X(BF16, 30, 1, 2)       \
    X(MXFP4, 39, 32, 17)

typedef enum fg_type {
#define FG__ENUM(name, id, elements, bytes) FG_TYPE_##name = id,
    FG_TYPES(FG__ENUM)
#undef FG__ENUM
    FG_TYPE_NONE = -1
} fg_type;

const char *fg_type_name(fg_type type);                     /* "Q4_K"; "unknown" for anything else */
int64_t fg_type_bytes(fg_type type, int64_t n_elements);    /* 0 when `type` is unknown or the count splits a block */
/* Expands n elements (whole blocks) of `type` at `from` into floats. FG_ERROR_INVALID_ARGUMENT on a split block. */
fg_result fg_dequantize(fg_type type, const void *from, float *to, int64_t n);

/* ================================================================================================
   Models
   ================================================================================================ */

typedef struct fg_model fg_model;

typedef struct fg_model_desc {
    const char *path;     /* a GGUF file; of a split model (-00001-of-0000N) the first */
    const void *data;     /* or a GGUF file in memory, which must outlive the model */
    size_t size;          /*    and its bytes */
    bool vocab_only;      /* tokenizer and metadata only: no weights needed */
    const fg_allocator *allocator; /* NULL: realloc and free */
    fg_log_fn log;
    void *log_user;
    fg_progress_fn progress;
    void *progress_user;
} fg_model_desc;

/* Loads a model: checks every offset, count, type and dimension, maps the weights. Errors: IO, BAD_FILE,
   UNSUPPORTED (an architecture, type or tokenizer we do not know), OUT_OF_MEMORY, CANCELLED. */
fg_result fg_model_load(const fg_model_desc *desc, fg_model **model);
/* Frees a model; every engine using it must be gone. NULL is fine. */
void fg_model_free(fg_model *model);

typedef struct fg_model_info {
    const char *architecture, *name; /* "llama"; general.name or "" */
    const char *chat_template;       /* Jinja text, or NULL */
    int64_t n_parameters, weight_bytes;
    int n_vocab, n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff;
    int n_ctx_train;     /* context length the model was trained with */
    int sliding_window;  /* tokens, 0: none */
    int token_bos, token_eos, token_unk, token_pad; /* -1: none */
    bool add_bos, add_eos;
    bool vocab_only;
} fg_model_info;
/* Pointers stay valid while the model lives. */
void fg_model_get_info(const fg_model *model, fg_model_info *info);

/* A view of one tensor of a model, in file order. dims[0] is the contiguous one. Name and data live as long as the model. */
typedef struct fg_tensor {
    const char *name;
    fg_type type;
    int n_dims;
    int64_t dims[4];
    const void *data;
    size_t bytes;
} fg_tensor;
int fg_model_tensor_count(const fg_model *model);
fg_result fg_model_tensor(const fg_model *model, int index, fg_tensor *tensor); /* NOT_FOUND past the end */

/* Metadata as text: key number `index` (NOT_FOUND past the end), value of arrays as "[type x count]". Writes at most
   `capacity` bytes with the closing zero; *length is the whole length. */
fg_result fg_model_meta(const fg_model *model, int index, const char **key, char *value, size_t capacity, size_t *length);

/* ================================================================================================
   Text and tokens
   ================================================================================================ */

enum {
    FG_NO_BOS = 1,     /* tokenize: do not add the BOS token even if the model wants one */
    FG_NO_SPECIAL = 2, /* tokenize: "<s>" in the text is text; detokenize: leave special tokens out */
};

/* Text (UTF-8; invalid bytes become U+FFFD for BPE vocabularies, byte tokens for SentencePiece) to ids. *count is the whole number of
   ids also when `capacity` is smaller (FG_ERROR_BUFFER_TOO_SMALL; ids may then be NULL). Thread-safe. */
fg_result fg_tokenize(const fg_model *model, const char *text, size_t text_length, unsigned flags, int32_t *ids,
                      size_t capacity, size_t *count);
/* Ids to text; not zero-terminated. *length as above. FG_ERROR_INVALID_ARGUMENT for ids outside the vocabulary. */
fg_result fg_detokenize(const fg_model *model, const int32_t *ids, size_t count, unsigned flags, char *text,
                        size_t capacity, size_t *length);
/* True when `token` ends a generation: EOS, end of turn, end of message. */
bool fg_token_is_end(const fg_model *model, int32_t token);
/* The bytes one token stands for, which may be part of a character; special tokens by their names. Not zero-terminated; they
   live as long as the model. NULL: the vocabulary has no such token. */
const char *fg_token_text(const fg_model *model, int32_t token, size_t *length);
/* Renders a conversation with the model's own chat template (Jinja, as transformers runs it). `messages_json` is the
   OpenAI form: [{"role": "user", "content": "Hi"}, ...]; options_json may be NULL or an object whose members become template
   variables (tools, add_generation_prompt, ...). Errors: TEMPLATE, INVALID_ARGUMENT (bad JSON), NOT_FOUND (the model has no template). */
fg_result fg_chat_format(const fg_model *model, const char *messages_json, const char *options_json, char *text,
                         size_t capacity, size_t *length);

/* ================================================================================================
   Engines
   ================================================================================================ */

typedef struct fg_engine fg_engine;
typedef struct fg_backend fg_backend;
typedef struct fg_device_caps fg_device_caps;

typedef enum fg_policy {
    FG_POLICY_SPLITFUSE = 0, /* decodes first, prompts split and fused to fill the budget evenly */
    FG_POLICY_PREFILL_FIRST, /* prompt passes pre-empt decodes */
    FG_POLICY_ORCA,          /* whole prompts beside decodes */
    FG_POLICY_STATIC         /* a batch is taken together and ends together */
} fg_policy;

typedef enum fg_preemption {
    FG_PREEMPT_AUTO = 0,   /* whichever of the two is expected to take less time */
    FG_PREEMPT_RECOMPUTE,  /* its KV is computed again */
    FG_PREEMPT_SWAP        /* its KV waits in host memory */
} fg_preemption;

#define FG_MAX_BACKENDS 8

/* Zero means the default, everywhere. fg_engine_get_desc reads back what was chosen. */
typedef struct fg_engine_desc {
    fg_model *model;         /* a loaded model, shared between engines; */
    const char *model_path;  /* or a path: the engine loads and owns it */
    const fg_backend *backends[FG_MAX_BACKENDS]; /* in order of preference; the CPU comes last by itself */
    const void *backend_options; /* passed to the backend's open, e.g. fg_null_options */
    const char *device;      /* backend's device by name or index; NULL: its first */
    const char *cpu_path;    /* "avx512", "avx2", "neon", "scalar"; NULL: the best this CPU has */
    int n_threads;           /* CPU threads; 0: all cores */
    int max_context;         /* longest sequence in tokens; 0: the training length, or what the pool holds */
    int max_seqs;            /* sequences that run at once; 0: 64 */
    int max_queue;           /* requests that may wait; 0: no limit */
    int token_budget;        /* most tokens per pass; 0: 256 */
    bool saturate_budget;    /* measure while loading how few tokens fill the device (90% of the best rate), and take no more */
    float target_tbt_ms;     /* milliseconds from a token to the next: prompts get no more of a pass than keeps to it, by a model
                                of the pass's time that is fitted while running. splitfuse only. 0: no target */
    fg_policy policy;
    bool no_even_split;      /* fill passes greedily instead of spreading prompts evenly over them */
    bool no_prefix_cache;
    fg_type kv_type;         /* F32 (0, default), F16, BF16 or Q8_0, as the backend offers */
    int kv_tokens;           /* KV pool in tokens, shared by all sequences; 0: from kv_bytes */
    size_t kv_bytes;         /* KV pool in bytes; 0: room for max_context tokens or 8 x 2048, whichever is more, capped at 4 GiB */
    int block_tokens;        /* tokens per KV block, a power of two; 0: the backend's choice */
    fg_preemption preemption; /* what becomes of a request that is set back when memory is short */
    size_t swap_bytes;       /* most host memory for KV blocks of such requests; 0: as much as the pool has */
    int priority_head_start; /* passes of waiting that one step of priority is worth (ageing); 0: 256 */
    uint64_t sample_seed;    /* mixed into every request's seed */
    double (*clock)(void *user); /* seconds; NULL: the monotonic clock */
    void *clock_user;
    fg_write_fn trace;       /* a trace of passes and requests, as JSON in the Trace Event Format that Perfetto and Chrome */
    void *trace_user;        /*    show; from the stepping thread, complete once the engine is freed. Must not call the engine */
    const fg_allocator *allocator;
    fg_log_fn log;
    void *log_user;
    fg_progress_fn progress;
    void *progress_user;
} fg_engine_desc;

/* Bytes, by use. */
typedef struct fg_memory {
    size_t weights, kv, activations, total;
} fg_memory;

/* What fg_engine_create would allocate, without allocating it. `desc->model` must be set. */
fg_result fg_estimate_memory(const fg_engine_desc *desc, fg_memory *memory);
/* Opens a device, packs the weights, allocates the KV pool. Errors: UNSUPPORTED, OUT_OF_MEMORY, DEVICE, CANCELLED, and
   those of fg_model_load with model_path. */
fg_result fg_engine_create(const fg_engine_desc *desc, fg_engine **engine);
/* Ends all requests and frees everything. No other call on the engine may be in progress. NULL is fine. */
void fg_engine_free(fg_engine *engine);
/* The descriptor with every default resolved. */
void fg_engine_get_desc(const fg_engine *engine, fg_engine_desc *desc);
const fg_model *fg_engine_get_model(const fg_engine *engine);
const char *fg_engine_get_backend(const fg_engine *engine); /* "cpu" */
void fg_engine_get_device(const fg_engine *engine, fg_device_caps *caps);
void fg_engine_get_memory(fg_engine *engine, fg_memory *memory);

/* ================================================================================================
   Requests
   ================================================================================================ */

/* A handle with a generation: using it after its request ended is safe and says FG_ERROR_NOT_FOUND. 0 is never valid. */
typedef struct fg_request {
    uint32_t id;
} fg_request;

typedef struct fg_logit_bias {
    int32_t token;
    float bias; /* added to the logit; -INFINITY bans the token */
} fg_logit_bias;

/* Zero is greedy decoding. Filters apply in this order: penalties and bias, top_k, typical_p, top_p, min_p, temperature. */
typedef struct fg_sampling {
    float temperature;        /* 0: greedy */
    int top_k;                /* 0: off */
    float top_p;              /* 0 or 1: off */
    float min_p;              /* 0: off */
    float typical_p;          /* 0 or 1: off; Meister et al., arXiv 2202.00666 */
    float repetition_penalty; /* 0 or 1: off; divides positive and multiplies negative logits of tokens seen */
    float presence_penalty;   /* subtracted once from tokens generated so far */
    float frequency_penalty;  /* subtracted per occurrence */
    int penalty_window;       /* last tokens that penalties look at; 0: all */
    uint64_t seed;            /* the same seed gives the same text, whatever else runs */
    const fg_logit_bias *logit_bias;
    int n_logit_bias;
} fg_sampling;

typedef struct fg_token_logprob {
    int32_t token;
    float logprob; /* natural log, of the model's distribution before penalties and filters */
} fg_token_logprob;

/* Called by fg_step for every row of logits, before sampling; may change them (grammars, custom samplers).
   `position` is the index of the token the logits predict; `tokens` are all before it. */
typedef void (*fg_logits_fn)(void *user, int sample, int position, const int32_t *tokens, float *logits, int n_vocab);

typedef struct fg_request_desc {
    const char *prompt;       /* text, */
    size_t prompt_length;     /*    its bytes; 0: up to the closing zero */
    const int32_t *tokens;    /* or ids, taken as they are */
    size_t n_tokens;
    const void *saved;        /* or what fg_save_request wrote: goes on where that request was, with its tokens as the prompt */
    size_t n_saved;           /*    bytes */
    unsigned tokenize_flags;  /* FG_NO_BOS, FG_NO_SPECIAL */
    int max_tokens;           /* 0: as many as fit the context; -1: none, the prompt is only processed */
    int min_tokens;           /* no end token or stop string before this many */
    int n;                    /* samples of the same prompt (copy-on-write); 0: 1. Sample i uses seed + i */
    fg_sampling sampling;
    const char *const *stop;  /* stop strings, not part of the output */
    int n_stop;
    const int32_t *stop_tokens;
    int n_stop_tokens;
    bool ignore_eos;          /* end tokens are ordinary */
    bool logprobs;            /* events carry the token's log-probability */
    int top_logprobs;         /*    and this many of the best alternatives, at most FG_MAX_TOP_LOGPROBS */
    bool prompt_logprobs;     /* FG_EVENT_PROMPT events for the prompt's tokens */
    int priority;             /* higher goes first; ageing keeps the others moving */
    int n_draft;              /* most tokens guessed ahead in a pass, from what followed the last ones before (prompt lookup). The
                                 guesses are verified: the output stays the same, token for token. 0: none; at most 16 */
    fg_logits_fn on_logits;
    void *on_logits_user;
    void *user;               /* comes back in every event */
} fg_request_desc;

#define FG_MAX_TOP_LOGPROBS 20

typedef enum fg_finish {
    FG_FINISH_NONE,
    FG_FINISH_STOP,      /* an end token, a stop token or a stop string */
    FG_FINISH_LENGTH,    /* max_tokens or the context */
    FG_FINISH_CANCELLED,
    FG_FINISH_ERROR      /* the device failed; fg_event.result says how */
} fg_finish;

/* Seconds on the engine's clock. */
typedef struct fg_times {
    double arrival;         /* fg_submit */
    double first_scheduled; /* first put into a pass */
    double scheduled;       /* last put back into a pass (after preemption) */
    double inference_begin; /* first pass starts on the device */
    double first_token;     /* first token sampled */
    double inference_end;   /* last pass ends */
    double finish;          /* the end event is queued */
} fg_times; /* 0: it did not come to that */

typedef enum fg_event_type {
    FG_EVENT_NONE,
    FG_EVENT_PROMPT, /* log-probability of prompt token `position` (prompt_logprobs) */
    FG_EVENT_TOKEN,  /* a token, and the text that became certain with it (may be empty: half a character, a stop prefix) */
    FG_EVENT_SAMPLE_END, /* sample `sample` ended: finish, last text, counts and times are set */
    FG_EVENT_END     /* the request ended: all samples did. Its handle is now dead */
} fg_event_type;

/* Pointers stay valid until the next fg_next_event on this engine. */
typedef struct fg_event {
    fg_event_type type;
    fg_request request;
    void *user;
    int sample;           /* 0 to n-1 */
    int position;         /* index in prompt + output */
    double time;          /* on the engine's clock: end of the pass that it came from; of ends: times.finish */
    int32_t token;
    const char *text;     /* whole UTF-8 characters, zero-terminated */
    size_t text_length;
    float logprob;
    const fg_token_logprob *top;
    int n_top;
    fg_finish finish;
    fg_result result;
    int n_prompt, n_cached, n_generated; /* tokens: prompt, of these from the prefix cache, output */
    int n_preemptions;
    int n_drafted, n_accepted; /* tokens guessed ahead, and of these found right */
    fg_times times;
} fg_event;

/* Queues a request; copies everything it needs. Any thread. Errors: INVALID_ARGUMENT, TOO_LONG, QUEUE_FULL, OUT_OF_MEMORY. */
fg_result fg_submit(fg_engine *engine, const fg_request_desc *desc, fg_request *request);
/* Ends a request; its blocks are free after the pass in progress. Any thread. NOT_FOUND when it has ended already. */
fg_result fg_cancel(fg_engine *engine, fg_request request);
/* Writes the tokens of a request (of its first sample) and their KV cache, for another engine to go on with: of the same model,
   KV type, block size and kind of device, in any process. With the same sampling and seed the same text follows. Any thread.
   Errors: NOT_FOUND, UNSUPPORTED, OUT_OF_MEMORY, DEVICE. */
fg_result fg_save_request(fg_engine *engine, fg_request request, fg_write_fn write, void *user);
/* Runs passes: with time_limit 0 exactly one (none when idle), else as many as are expected to fit that many seconds,
   the passes cut to fit; at least one token is processed. *busy (may be NULL): work is left. Any thread, one at a time. */
fg_result fg_step(fg_engine *engine, double time_limit, bool *busy);
/* Takes the oldest event; false when there is none. One thread at a time. */
bool fg_next_event(fg_engine *engine, fg_event *event);
enum { FG_WAIT_EVENT = 1, FG_WAIT_WORK = 2 };
/* Sleeps until there is an event to take or a request to step, whichever `what` names, at most `seconds` (negative: for
   ever). False: the time ran out. */
bool fg_wait(fg_engine *engine, unsigned what, double seconds);
/* The easy call: submits, steps until done, hands out text as it comes (on_text may be NULL). For programs that have one
   request at a time: it takes all events of the engine, and drops those of other requests. */
typedef void (*fg_text_fn)(const char *text, size_t length, void *user);
fg_result fg_generate(fg_engine *engine, const fg_request_desc *desc, fg_text_fn on_text, void *user);

/* ================================================================================================
   What the engine does: counters, the graph, roofs
   ================================================================================================ */

typedef struct fg_stats {
    /* now */
    int n_waiting, n_running;
    int blocks_total, blocks_used, blocks_cached; /* of the first cache group; cached ones are free but still hold a prefix */
    /* the last pass */
    int pass_tokens, pass_prompt_tokens, pass_decode_tokens, pass_seqs;
    double pass_seconds;
    /* since the start, or fg_reset_stats */
    uint64_t n_passes, prompt_tokens, cached_tokens, generated_tokens, n_preemptions;
    uint64_t n_swaps; /* of n_preemptions, to host memory */
    uint64_t n_submitted, n_finished, n_cancelled;
    uint64_t prefix_queries, prefix_hits; /* in tokens */
    uint64_t drafted_tokens, accepted_tokens; /* guessed ahead, and of these found right */
    double device_seconds, host_seconds;
    uint64_t kv_bytes_read; /* by attention */
} fg_stats;
void fg_get_stats(fg_engine *engine, fg_stats *stats);
void fg_reset_stats(fg_engine *engine);

/* Durations in seconds, counted in buckets that are a quarter of an octave wide. */
enum { FG_HISTOGRAM_BUCKETS = 112 };
typedef struct fg_histogram {
    uint64_t count;
    double sum, least, most;
    uint64_t buckets[FG_HISTOGRAM_BUCKETS]; /* bucket i: up to fg_histogram_bound(i), and over that of i-1 */
} fg_histogram;
double fg_histogram_bound(int bucket); /* 10 us x 2^(bucket/4); of the last: infinity */
/* The value that a share q (0 to 1) of the durations does not exceed, within a tenth; 0 when there are none. */
double fg_histogram_quantile(const fg_histogram *histogram, double q);

typedef struct fg_histograms {
    fg_histogram queue;       /* arrival to first pass, of requests */
    fg_histogram first_token; /* arrival to first token, of requests */
    fg_histogram token_gap;   /* a token to the next, of samples */
    fg_histogram request;     /* arrival to end, of requests */
    fg_histogram pass;        /* passes on the device */
    fg_histogram idle;        /* end of a pass to the start of the next, while there was work */
} fg_histograms;
void fg_get_histograms(fg_engine *engine, fg_histograms *histograms); /* since the start, or fg_reset_stats */
/* Forgets cached prefixes. */
void fg_clear_prefix_cache(fg_engine *engine);
/* The model as text, one op a line: what the backend was given. Buffer as in fg_detokenize. */
fg_result fg_graph_text(const fg_engine *engine, char *text, size_t capacity, size_t *length);

/* What the device can do, measured by running it for a fraction of a second. 0: unknown. */
typedef struct fg_roofs {
    double read_bytes_per_s; /* reading memory in order, all threads */
    double int8_ops_per_s, float_ops_per_s; /* multiplications plus additions of the best dot products */
} fg_roofs;
fg_result fg_measure_roofs(fg_engine *engine, fg_roofs *roofs);

/* ================================================================================================
   >>interface  what a backend is

   The engine compiles a model into a flat list of fused operations (fg_graph), which a backend takes once (prepare) and
   runs every pass (submit, wait). What changes from pass to pass is in fg_batch alone.
   Activations live in slots: matrices of float, one row per token (or per output row), which the backend allocates.
   ================================================================================================ */

#define FG_BACKEND_ABI 1
#define FG_MAX_GROUPS 4

/* X(name): the closed set of operations. T tokens of the pass, R rows that need logits, S sequences. */
#define FG_OPS(X)    \
    X(EMBED)         /* dst[T,n] = weight[tokens[t], n] * scale */                                               \
    X(NORM)          /* dst[T,n] = rms(src) * weight; with bias: layer norm; with src2: src += src2 before */    \
    X(GEMM)          /* dst[T, dst_col..+n] = act(src[T, src_col..+k] . weight[n,k]^T + bias) + src2[T, 0..n] */ \
    X(ROPE_KV)       /* q, k of src: norm per head (weight, weight2), rope in place; k, v to their KV slots */   \
    X(ATTENTION)     /* dst[T, n_head*head_dim] = attention of q in src over the sequence's KV blocks */         \
    X(ACT_MUL)       /* dst[T,n] = act(src[T, src_col..+n]) * src2[T, src2_col..+n] */                           \
    X(MOE_ROUTE)     /* top-k experts of each token */                                                           \
    X(MOE_GEMM)      /* GEMM with the experts of MOE_ROUTE */                                                    \
    X(STATE_SCAN)    /* recurrent layers: convolution and gated-delta or SSM scan */                             \
    X(GATHER_ROWS)   /* dst[R,n] = src[rows[r], n] */                                                            \
    X(SAMPLE)        /* argmax, its value and log-sum-exp of each row of src[R,n] into fg_output.rows */         \
    X(COPY_BLOCKS)   /* copy on write between KV blocks, before the pass */                                      \
    X(ALLREDUCE)     /* sum over devices */

typedef enum fg_op_type {
#define FG__ENUM(name) FG_OP_##name,
    FG_OPS(FG__ENUM)
#undef FG__ENUM
    FG_OP_COUNT
} fg_op_type;

typedef enum fg_act { FG_ACT_NONE, FG_ACT_SILU, FG_ACT_GELU_TANH, FG_ACT_GELU, FG_ACT_RELU } fg_act;

/* The constants of one operation. Slots and weights are indices into the graph; -1: none. */
typedef struct fg_op {
    int32_t type;                     /* fg_op_type */
    int32_t layer;                    /* of the model; -1 outside layers */
    int32_t src, src2, dst;           /* slots */
    int32_t src_col, src2_col, dst_col; /* first column; ROPE_KV: src_col q, src2_col k, dst_col v, all of slot src */
    int32_t weight, weight2, bias;    /* ROPE_KV: q norm, k norm, table of inverse frequencies (F32, n_rot/2) */
    int32_t n, k;                     /* output width; GEMM: input width */
    int32_t act;                      /* fg_act */
    int32_t group, group_layer;       /* cache group and the layer's index in it */
    int32_t n_head, n_kv_head, head_dim, n_rot;
    int32_t rope_neox;                /* 1: pairs are (i, i + n_rot/2); 0: (2i, 2i+1) */
    float eps;                        /* NORM, ROPE_KV */
    float scale;                      /* EMBED (0: 1); ATTENTION: of q.k; ROPE_KV: magnitude of cos and sin (YaRN) */
    float softcap;                    /* ATTENTION: s = softcap * tanh(s / softcap); 0: off */
} fg_op;

/* A matrix of floats: `width` columns, one row per token of the pass (or, with per_row, per row that needs logits). */
typedef struct fg_slot {
    const char *name;
    int32_t width;
    bool per_row;
} fg_slot;

typedef enum fg_group_kind { FG_GROUP_FULL, FG_GROUP_WINDOW, FG_GROUP_LATENT, FG_GROUP_STATE } fg_group_kind;

/* Layers that share a block table. A block holds K and V of block_tokens tokens for all layers of the group. */
typedef struct fg_group {
    fg_group_kind kind;
    int32_t n_layers, n_kv_head, head_dim;
    int32_t window;       /* FG_GROUP_WINDOW: a token sees itself and window-1 before it; 0: all */
    int32_t block_tokens; /* a power of two */
    int32_t n_blocks;
    fg_type kv_type;
} fg_group;

typedef struct fg_weight fg_weight; /* a packed weight: the backend's own */

typedef struct fg_graph {
    const fg_op *ops;
    int32_t n_ops;
    const fg_slot *slots;
    int32_t n_slots;
    const fg_tensor *tensors;     /* what was given to pack, in the same order */
    fg_weight *const *weights;    /* what pack made of them */
    int32_t n_weights;
    fg_group groups[FG_MAX_GROUPS];
    int32_t n_groups;
    int32_t max_tokens, max_rows, max_seqs; /* of a pass */
    int32_t max_blocks_per_seq;             /* columns of a block table */
    int32_t n_vocab;
} fg_graph;

/* One pass. Tokens of a sequence are adjacent; sequence s owns tokens cu_q[s] to cu_q[s+1]-1, which are its last
   ones: kv_len[s] counts its tokens with those of this pass. Sequences with one token come first. */
typedef struct fg_batch {
    int32_t n_tokens, n_seqs, n_rows;
    const int32_t *tokens, *positions;          /* [n_tokens] */
    const int32_t *cu_q;                        /* [n_seqs + 1] */
    const int32_t *kv_len;                      /* [n_seqs] */
    const int32_t *tables[FG_MAX_GROUPS];       /* [n_seqs * max_blocks_per_seq] block numbers; -1: outside the window */
    const int32_t *slots[FG_MAX_GROUPS];        /* [n_tokens] block * block_tokens + offset where the token's KV goes */
    const int32_t *rows;                        /* [n_rows] tokens that need logits, ascending */
    bool want_logits;                           /* fg_output.logits is needed, not only fg_output.rows */
} fg_batch;

typedef struct fg_row_result {
    int32_t token;       /* argmax; the lowest id of equals */
    float logit;         /* its logit */
    float log_sum_exp;   /* of the row */
} fg_row_result;

/* Valid until the next submit of the plan. */
typedef struct fg_output {
    const fg_row_result *rows; /* [n_rows] */
    float *logits;             /* [n_rows * n_vocab], or NULL */
} fg_output;

typedef struct fg_block_copy {
    int32_t group, from, to;
} fg_block_copy;

typedef struct fg_device_desc {
    const char *device;    /* name or index; NULL: first */
    const char *cpu_path;
    int n_threads;
    const void *options;   /* fg_engine_desc.backend_options */
    fg_allocator allocator;
    fg_log_fn log;
    void *log_user;
    fg_progress_fn progress; /* of prepare, called by its thread; may be NULL */
    void *progress_user;
} fg_device_desc;

struct fg_device_caps {
    char name[128];         /* "AMD EPYC, 2 threads, avx512" */
    int n_threads;
    size_t memory_bytes;    /* 0: unknown */
    int block_tokens;       /* preferred */
    int token_budget;       /* preferred */
    uint64_t kv_types;      /* bit (1 << fg_type) of each KV type offered */
    uint64_t weight_types;  /* likewise */
    uint32_t ops;           /* bit (1 << fg_op_type) of each op offered */
};

typedef struct fg_device fg_device; /* the backend's own */
typedef struct fg_plan fg_plan;

struct fg_backend {
    uint32_t abi, size; /* FG_BACKEND_ABI, sizeof(fg_backend) */
    const char *name;
    int (*probe)(void);  /* number of devices; 0: no driver. Never fails, never prints */
    fg_result (*open)(const fg_device_desc *desc, fg_device **device);
    void (*close)(fg_device *device);
    void (*caps)(fg_device *device, fg_device_caps *caps);
    void *(*alloc)(fg_device *device, size_t bytes); /* device memory, or NULL */
    void (*free)(fg_device *device, void *memory);
    fg_result (*write)(fg_device *device, void *memory, size_t offset, const void *data, size_t bytes);
    fg_result (*read)(fg_device *device, const void *memory, size_t offset, void *data, size_t bytes);
    /* Packs a weight into the device's layout. `use`: the op that will read it (EMBED reads rows, GEMM multiplies,
       others read vectors). The tensor's data stay where they are while the weight lives. With weight NULL only
       *bytes is set. */
    fg_result (*pack)(fg_device *device, const fg_tensor *tensor, fg_op_type use, fg_weight **weight, size_t *bytes);
    void (*unpack)(fg_device *device, fg_weight *weight); /* frees it */
    /* Takes the graph (which outlives the plan) and allocates slots and KV pool. With plan NULL only *memory is set. */
    fg_result (*prepare)(fg_device *device, const fg_graph *graph, fg_plan **plan, fg_memory *memory);
    void (*release)(fg_device *device, fg_plan *plan);
    fg_result (*submit)(fg_device *device, fg_plan *plan, const fg_batch *batch); /* may return before the work is done */
    fg_result (*wait)(fg_device *device, fg_plan *plan, fg_output *output);
    fg_result (*copy_blocks)(fg_device *device, fg_plan *plan, const fg_block_copy *copies, int n);
    fg_result (*profile)(fg_device *device, fg_roofs *roofs);
    /* Copies whole KV blocks of a group to host memory (out) or back, one behind the other. With `host` NULL only *block_bytes
       is set. May be NULL: the engine then neither swaps nor saves. */
    fg_result (*swap_blocks)(fg_device *device, fg_plan *plan, int group, const int32_t *blocks, int n, void *host, bool out,
                             size_t *block_bytes);
};

const fg_backend *fg_backend_cpu(void);  /* always there */
const fg_backend *fg_backend_null(void); /* computes nothing; for tests and simulation */

/* Options of the null backend: a pass of t tokens that reads c KV tokens takes overhead + base + per_token*t + per_kv_token*c
   seconds, or, as a roofline, overhead + max(base, per_token*t) + per_kv_token*c; added to *clock (may be NULL). Its logits are a fixed pseudo-random function of token and position. */
typedef struct fg_null_options {
    double base, per_token, per_kv_token;
    double *clock;
    double overhead;
    bool roofline; /* weights are read while tokens are computed */
} fg_null_options;

#ifdef __cplusplus
}
#endif
#endif /* FASTGEN_H */

/* ================================================================================================
   >>config  what the compiler and the platform offer
   ================================================================================================ */
#ifdef FASTGEN_IMPLEMENTATION
#ifndef FASTGEN_IMPLEMENTATION_INCLUDED
#define FASTGEN_IMPLEMENTATION_INCLUDED

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define FG__WINDOWS 1
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#endif

#if defined(__TINYC__) && !defined(FG_NO_THREADS)
#define FG_NO_THREADS
#endif
#if !defined(FG_NO_THREADS) && !defined(_WIN32)
#include <pthread.h>
#endif

#if (defined(__x86_64__) || defined(_M_X64)) && (defined(__GNUC__) || defined(__clang__)) && !defined(__TINYC__) && \
    !defined(FG_NO_SIMD)
#define FG__X86 1
#include <cpuid.h>
#if !defined(__clang__) /* GCC's own intrinsics warn about themselves as C++ (GCC bug 105593) */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#elif defined(__aarch64__) && !defined(__TINYC__) && !defined(FG_NO_SIMD)
#define FG__ARM 1
#include <arm_neon.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#endif

#if defined(__MINGW32__)
#define FG__PRINTF(fmt, args) __attribute__((format(__MINGW_PRINTF_FORMAT, fmt, args)))
#define FG__RESTRICT __restrict
#elif defined(__GNUC__) || defined(__clang__)
#define FG__PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define FG__RESTRICT __restrict
#else
#define FG__PRINTF(fmt, args)
#define FG__RESTRICT
#endif

#if defined(FG_NO_THREADS)
#define FG__THREAD_LOCAL
#elif defined(__cplusplus)
#define FG__THREAD_LOCAL thread_local
#elif defined(_MSC_VER)
#define FG__THREAD_LOCAL __declspec(thread)
#else
#define FG__THREAD_LOCAL __thread
#endif

#define FG__MIN(a, b) ((a) < (b) ? (a) : (b))
#define FG__MAX(a, b) ((a) > (b) ? (a) : (b))
#define FG__COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* ================================================================================================
   >>log  results, the last error of each thread, log lines
   ================================================================================================ */

static FG__THREAD_LOCAL char fg__error_text[512];

const char *fg_last_error(void) { return fg__error_text; }

const char *fg_result_name(fg_result result) {
#define FG__NAME(name, text) case name: return #name;
    switch ((int)result) { FG_RESULTS(FG__NAME) }
#undef FG__NAME
    return "unknown fg_result";
}

const char *fg_result_text(fg_result result) {
#define FG__TEXT(name, text) case name: return text;
    switch ((int)result) { FG_RESULTS(FG__TEXT) }
#undef FG__TEXT
    return "unknown result";
}

static const char *fg__op_name(int type) {
#define FG__NAME(name) case FG_OP_##name: return #name;
    switch (type) { FG_OPS(FG__NAME) }
#undef FG__NAME
    return "unknown";
}

/* Sets this thread's error message and hands `result` back, so that callers write `return fg__fail(...)`. */
FG__PRINTF(2, 3) static fg_result fg__fail(fg_result result, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(fg__error_text, sizeof(fg__error_text), format, args);
    va_end(args);
    return result;
}

/* What every object carries of its creator: where memory comes from and where log lines go. */
typedef struct fg__env {
    fg_allocator allocator;
    fg_log_fn log;
    void *log_user;
} fg__env;

FG__PRINTF(3, 4) static void fg__log(const fg__env *env, fg_log_level level, const char *format, ...) {
    char line[512];
    va_list args;
    if (!env->log) return;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    env->log(level, line, env->log_user);
}

/* ================================================================================================
   >>mem  allocation through the caller's allocator, growing arrays, text buffers
   ================================================================================================ */

static void *fg__default_realloc(void *pointer, size_t size, void *user) {
    (void)user;
    if (size) return realloc(pointer, size);
    free(pointer);
    return NULL;
}

static fg__env fg__env_make(const fg_allocator *allocator, fg_log_fn log, void *log_user) {
    fg__env env;
    memset(&env, 0, sizeof(env));
    if (allocator) env.allocator = *allocator;
    if (!env.allocator.realloc) env.allocator.realloc = fg__default_realloc;
    env.log = log;
    env.log_user = log_user;
    return env;
}

/* Resizes `pointer` (NULL: allocates) to count*size bytes; NULL and an error message when that fails. */
static void *fg__realloc(const fg__env *env, void *pointer, size_t count, size_t size) {
    void *result;
    if (count == 0 || size == 0) count = size = 1;
    if (count > (SIZE_MAX / 2) / size) {
        fg__fail(FG_ERROR_OUT_OF_MEMORY, "allocation of %zu x %zu bytes is absurd", count, size);
        return NULL;
    }
    result = env->allocator.realloc(pointer, count * size, env->allocator.user);
    if (!result) fg__fail(FG_ERROR_OUT_OF_MEMORY, "out of memory allocating %zu bytes", count * size);
    return result;
}

static void *fg__malloc(const fg__env *env, size_t count, size_t size) { return fg__realloc(env, NULL, count, size); }

static void *fg__calloc(const fg__env *env, size_t count, size_t size) {
    void *result = fg__malloc(env, count, size);
    if (result) memset(result, 0, count * size);
    return result;
}

static void fg__free(const fg__env *env, void *pointer) {
    if (pointer) env->allocator.realloc(pointer, 0, env->allocator.user);
}

static char *fg__strndup(const fg__env *env, const char *text, size_t length) {
    char *copy = (char *)fg__malloc(env, length + 1, 1);
    if (!copy) return NULL;
    if (length) memcpy(copy, text, length);
    copy[length] = 0;
    return copy;
}

/* Makes room for one more element past `count` in a growing array; false when memory is out. */
static bool fg__reserve(const fg__env *env, void **array, size_t *capacity, size_t count, size_t element) {
    void *grown;
    size_t wanted = *capacity;
    if (count <= wanted) return true;
    while (wanted < count) wanted = wanted ? wanted * 2 : 16;
    grown = fg__realloc(env, *array, wanted, element);
    if (!grown) return false;
    *array = grown;
    *capacity = wanted;
    return true;
}

/* A growing text buffer. `failed` sticks once memory ran out, so that callers test it once at the end. */
typedef struct fg__text {
    const fg__env *env;
    char *data; /* zero-terminated once anything was added */
    size_t length, capacity;
    bool failed;
} fg__text;

static void fg__text_add(fg__text *text, const char *data, size_t length) {
    void *array = text->data;
    if (text->failed) return;
    if (length > SIZE_MAX / 4 || !fg__reserve(text->env, &array, &text->capacity, text->length + length + 1, 1)) {
        text->failed = true;
        return;
    }
    text->data = (char *)array;
    if (length) memcpy(text->data + text->length, data, length);
    text->length += length;
    text->data[text->length] = 0;
}

static void fg__text_puts(fg__text *text, const char *string) { fg__text_add(text, string, strlen(string)); }

FG__PRINTF(2, 3) static void fg__text_printf(fg__text *text, const char *format, ...) {
    char line[512];
    int length;
    va_list args;
    va_start(args, format);
    length = vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    if (length > 0) fg__text_add(text, line, (size_t)FG__MIN(length, (int)sizeof(line) - 1));
}

static void fg__text_free(fg__text *text) {
    if (text->data) fg__free(text->env, text->data);
    text->data = NULL;
    text->length = text->capacity = 0;
}

/* ================================================================================================
   >>os  time, files, threads, atomics
   ================================================================================================ */

/* Seconds on a clock that never goes back. */
static double fg__now(void) {
#if FG__WINDOWS
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

static int fg__cpu_count(void) {
#if FG__WINDOWS
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return (int)info.dwNumberOfProcessors;
#elif defined(_SC_NPROCESSORS_ONLN)
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (int)count : 1;
#else
    return 1;
#endif
}

/* A file's bytes, mapped read-only (or read into memory when `copied`). */
typedef struct fg__file {
    const unsigned char *data;
    size_t size;
    bool copied;
} fg__file;

#if FG__WINDOWS
static bool fg__file_map(fg__file *file, const char *path) {
    LARGE_INTEGER size;
    HANDLE mapping, handle;
    wchar_t wide[1024];
    if (!MultiByteToWideChar(CP_UTF8, 0, path, -1, wide, FG__COUNT(wide))) return false;
    handle = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ, NULL, OPEN_EXISTING, 0, NULL);
    if (handle == INVALID_HANDLE_VALUE) return false;
    if (!GetFileSizeEx(handle, &size)) size.QuadPart = 0;
    mapping = size.QuadPart ? CreateFileMappingW(handle, NULL, PAGE_READONLY, 0, 0, NULL) : NULL;
    CloseHandle(handle);
    if (!mapping) return false;
    file->data = (const unsigned char *)MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0);
    file->size = (size_t)size.QuadPart;
    CloseHandle(mapping);
    return file->data != NULL;
}

static void fg__file_unmap(fg__file *file) { UnmapViewOfFile(file->data); }
#else
static bool fg__file_map(fg__file *file, const char *path) {
    struct stat info;
    void *data = MAP_FAILED;
    int handle = open(path, O_RDONLY);
    if (handle < 0) return false;
    if (fstat(handle, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0)
        data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, handle, 0);
    close(handle);
    if (data == MAP_FAILED) return false;
    file->data = (const unsigned char *)data;
    file->size = (size_t)info.st_size;
    return true;
}

static void fg__file_unmap(fg__file *file) { munmap((void *)(size_t)file->data, file->size); }
#endif

/* Maps the file at `path`; FG_ERROR_IO when it is missing, empty or not a plain file. */
static fg_result fg__file_open(fg__file *file, const char *path) {
    memset(file, 0, sizeof(*file));
    errno = 0;
    if (fg__file_map(file, path)) return FG_OK;
    return fg__fail(FG_ERROR_IO, "cannot open '%s': %s", path, errno ? strerror(errno) : "empty or not a plain file");
}

static void fg__file_close(fg__file *file) {
    if (file->data) fg__file_unmap(file);
    memset(file, 0, sizeof(*file));
}

#if defined(FG_NO_THREADS)
typedef int fg__mutex;
typedef int fg__cond;
typedef int fg__thread;
static void fg__mutex_init(fg__mutex *m) { *m = 0; }
static void fg__mutex_destroy(fg__mutex *m) { *m = 0; }
static void fg__mutex_lock(fg__mutex *m) { *m = 1; }
static void fg__mutex_unlock(fg__mutex *m) { *m = 0; }
static void fg__cond_init(fg__cond *c) { *c = 0; }
static void fg__cond_destroy(fg__cond *c) { *c = 0; }
static void fg__cond_broadcast(fg__cond *c) { *c = 0; }
static bool fg__cond_wait(fg__cond *c, fg__mutex *m, double seconds) { (void)c; (void)m; (void)seconds; return false; }
static bool fg__thread_start(fg__thread *t, void (*run)(void *), void *user) { (void)t; (void)run; (void)user; return false; }
static void fg__thread_join(fg__thread *t) { (void)t; }
#elif FG__WINDOWS
typedef SRWLOCK fg__mutex;
typedef CONDITION_VARIABLE fg__cond;
typedef struct fg__thread { HANDLE handle; void (*run)(void *); void *user; } fg__thread;
static void fg__mutex_init(fg__mutex *m) { InitializeSRWLock(m); }
static void fg__mutex_destroy(fg__mutex *m) { (void)m; }
static void fg__mutex_lock(fg__mutex *m) { AcquireSRWLockExclusive(m); }
static void fg__mutex_unlock(fg__mutex *m) { ReleaseSRWLockExclusive(m); }
static void fg__cond_init(fg__cond *c) { InitializeConditionVariable(c); }
static void fg__cond_destroy(fg__cond *c) { (void)c; }
static void fg__cond_broadcast(fg__cond *c) { WakeAllConditionVariable(c); }
/* Waits at most `seconds` (negative: for ever); false when the time ran out. */
static bool fg__cond_wait(fg__cond *c, fg__mutex *m, double seconds) {
    return SleepConditionVariableSRW(c, m, seconds < 0 ? INFINITE : (DWORD)(seconds * 1e3 + 0.999), 0) != 0;
}
static DWORD WINAPI fg__thread_main(LPVOID argument) {
    fg__thread *t = (fg__thread *)argument;
    t->run(t->user);
    return 0;
}
static bool fg__thread_start(fg__thread *t, void (*run)(void *), void *user) {
    t->run = run;
    t->user = user;
    t->handle = CreateThread(NULL, 0, fg__thread_main, t, 0, NULL);
    return t->handle != NULL;
}
static void fg__thread_join(fg__thread *t) {
    WaitForSingleObject(t->handle, INFINITE);
    CloseHandle(t->handle);
}
#else
typedef pthread_mutex_t fg__mutex;
typedef pthread_cond_t fg__cond;
typedef struct fg__thread { pthread_t handle; void (*run)(void *); void *user; } fg__thread;
static void fg__mutex_init(fg__mutex *m) { pthread_mutex_init(m, NULL); }
static void fg__mutex_destroy(fg__mutex *m) { pthread_mutex_destroy(m); }
static void fg__mutex_lock(fg__mutex *m) { pthread_mutex_lock(m); }
static void fg__mutex_unlock(fg__mutex *m) { pthread_mutex_unlock(m); }
static void fg__cond_init(fg__cond *c) { pthread_cond_init(c, NULL); }
static void fg__cond_destroy(fg__cond *c) { pthread_cond_destroy(c); }
static void fg__cond_broadcast(fg__cond *c) { pthread_cond_broadcast(c); }
/* Waits at most `seconds` (negative: for ever); false when the time ran out. */
static bool fg__cond_wait(fg__cond *c, fg__mutex *m, double seconds) {
    struct timespec t;
    if (seconds < 0) return pthread_cond_wait(c, m) == 0;
    clock_gettime(CLOCK_REALTIME, &t);
    seconds += 1e-9 * (double)t.tv_nsec;
    t.tv_sec += (time_t)seconds;
    t.tv_nsec = (long)((seconds - floor(seconds)) * 1e9);
    return pthread_cond_timedwait(c, m, &t) == 0;
}
static void *fg__thread_main(void *argument) {
    fg__thread *t = (fg__thread *)argument;
    t->run(t->user);
    return NULL;
}
static bool fg__thread_start(fg__thread *t, void (*run)(void *), void *user) {
    t->run = run;
    t->user = user;
    return pthread_create(&t->handle, NULL, fg__thread_main, t) == 0;
}
static void fg__thread_join(fg__thread *t) { pthread_join(t->handle, NULL); }
#endif

#if defined(FG_NO_THREADS)
static int fg__atomic_load(const int *p) { return *p; }
static void fg__atomic_store(int *p, int value) { *p = value; }
static int fg__atomic_add(int *p, int value) { int old = *p; *p += value; return old; }
static uint64_t fg__atomic_load64(const uint64_t *p) { return *p; }
static void fg__atomic_store64(uint64_t *p, uint64_t value) { *p = value; }
static uint64_t fg__atomic_add64(uint64_t *p, uint64_t value) { uint64_t old = *p; *p += value; return old; }
#elif defined(_MSC_VER) && !defined(__clang__)
static int fg__atomic_load(const int *p) { return (int)InterlockedOr((volatile LONG *)p, 0); }
static void fg__atomic_store(int *p, int value) { InterlockedExchange((volatile LONG *)p, value); }
static int fg__atomic_add(int *p, int value) { return (int)InterlockedExchangeAdd((volatile LONG *)p, value); }
static uint64_t fg__atomic_load64(const uint64_t *p) {
    return (uint64_t)InterlockedCompareExchange64((volatile LONGLONG *)p, 0, 0);
}
static void fg__atomic_store64(uint64_t *p, uint64_t value) {
    InterlockedExchange64((volatile LONGLONG *)p, (LONGLONG)value);
}
static uint64_t fg__atomic_add64(uint64_t *p, uint64_t value) {
    return (uint64_t)InterlockedExchangeAdd64((volatile LONGLONG *)p, (LONGLONG)value);
}
#else
static int fg__atomic_load(const int *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static void fg__atomic_store(int *p, int value) { __atomic_store_n(p, value, __ATOMIC_RELEASE); }
/* Adds and hands back the value before. */
static int fg__atomic_add(int *p, int value) { return __atomic_fetch_add(p, value, __ATOMIC_ACQ_REL); }
static uint64_t fg__atomic_load64(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static void fg__atomic_store64(uint64_t *p, uint64_t value) { __atomic_store_n(p, value, __ATOMIC_RELEASE); }
static uint64_t fg__atomic_add64(uint64_t *p, uint64_t value) { return __atomic_fetch_add(p, value, __ATOMIC_ACQ_REL); }
#endif


/* ================================================================================================
   >>json  a strict JSON reader (RFC 8259) into a compact tree, a writer, numbers as text
   ================================================================================================ */

#define FG__JSON_MAX_DEPTH 200 /* arrays and objects inside each other */

/* Defined in >>token. */
static int fg__utf8_measure(const char *text, size_t n);
static size_t fg__utf8_decode(const char *text, size_t n, uint32_t *code);
static size_t fg__utf8_encode(uint32_t code, char *to);

/* ------------------------------------------------------------------------------------------------
   Arenas: memory that is freed as a whole
   ------------------------------------------------------------------------------------------------ */

typedef struct fg__arena_chunk {
    struct fg__arena_chunk *next;
    size_t size, used; /* of the bytes behind this header */
} fg__arena_chunk;

typedef struct fg__arena {
    const fg__env *env;
    fg__arena_chunk *chunks; /* the first is the one in use */
    size_t bytes;            /* asked of the allocator */
} fg__arena;

enum { FG__ARENA_HEADER = 32 }; /* keeps what follows aligned */

static fg__arena_chunk *fg__arena_grow(fg__arena *arena, size_t size) {
    size_t wanted = FG__MIN(FG__MAX(arena->bytes, 1024), (size_t)1 << 20) - FG__ARENA_HEADER;
    fg__arena_chunk *chunk;
    if (wanted < size) wanted = size;
    chunk = (fg__arena_chunk *)fg__malloc(arena->env, FG__ARENA_HEADER + wanted, 1);
    if (!chunk) return NULL;
    chunk->size = wanted;
    chunk->used = 0;
    arena->bytes += FG__ARENA_HEADER + wanted;
    if (arena->chunks && wanted - size < arena->chunks->size - arena->chunks->used) { /* that one has more room left */
        chunk->next = arena->chunks->next;
        arena->chunks->next = chunk;
    } else {
        chunk->next = arena->chunks;
        arena->chunks = chunk;
    }
    return chunk;
}

/* `size` bytes, aligned to 8; NULL when memory is out. */
static void *fg__arena_alloc(fg__arena *arena, size_t size) {
    fg__arena_chunk *chunk = arena->chunks;
    if (size > SIZE_MAX / 4) size = SIZE_MAX / 4; /* which no allocator has */
    size = (size + 7) & ~(size_t)7;
    if (!chunk || chunk->size - chunk->used < size) chunk = fg__arena_grow(arena, size);
    if (!chunk) return NULL;
    chunk->used += size;
    return (char *)chunk + FG__ARENA_HEADER + chunk->used - size;
}

static void fg__arena_free(fg__arena *arena) {
    fg__arena_chunk *chunk = arena->chunks;
    while (chunk) {
        fg__arena_chunk *next = chunk->next;
        fg__free(arena->env, chunk);
        chunk = next;
    }
    arena->chunks = NULL;
    arena->bytes = 0;
}

/* ------------------------------------------------------------------------------------------------
   Numbers as text, in any locale
   ------------------------------------------------------------------------------------------------ */

/* Digits and a power of ten, without a decimal point, are what strtod reads alike in every locale. No double needs more
   than 768 digits to be told from its neighbours; of those that follow it only counts whether all are 0. */
static double fg__number_slow(const char *text, size_t length) {
    char buffer[840];
    int n = 0;
    int64_t exponent = 0, written = 0;
    bool point = false, dropped = false, down = false, leading = true;
    size_t i = 0;
    if (length && (text[0] == '-' || text[0] == '+')) buffer[n++] = text[i++];
    for (; i < length && (text[i] == '.' || (text[i] >= '0' && text[i] <= '9')); i++) {
        if (text[i] == '.') point = true;
        else if (n < 800) {
            leading = leading && text[i] == '0';
            if (!leading) buffer[n++] = text[i];
            exponent -= point ? 1 : 0;
        } else {
            dropped = dropped || text[i] != '0';
            exponent += point ? 0 : 1;
        }
    }
    if (dropped) {
        buffer[n++] = '1';
        exponent--;
    }
    if (i < length) { /* the letter e */
        down = ++i < length && text[i] == '-';
        if (i < length && (text[i] == '-' || text[i] == '+')) i++;
        for (; i < length && written < INT64_MAX / 100; i++) written = written * 10 + (text[i] - '0');
        exponent += down ? -written : written;
    }
    exponent = FG__MAX(-99999, FG__MIN(exponent, 99999));
    snprintf(buffer + n, sizeof(buffer) - (size_t)n, "0e%d", (int)exponent - 1); /* the 0: there may be no digit yet */
    return strtod(buffer, NULL);
}

/* The double nearest to a decimal number: sign, digits with at most one point, and after an e an exponent. The caller
   has checked that. */
static double fg__number_parse(const char *text, size_t length) {
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    uint64_t digits = 0;
    int decimals = 0;
    bool point = false;
    size_t i = length && (text[0] == '-' || text[0] == '+') ? 1 : 0;
    for (; i < length; i++) {
        if (text[i] == '.') {
            point = true;
            continue;
        }
        if (text[i] < '0' || text[i] > '9' || digits > ((uint64_t)1 << 53) / 10) break;
        digits = digits * 10 + (uint64_t)(text[i] - '0');
        decimals += point ? 1 : 0;
    }
    if (i < length || decimals > 22 || digits > (uint64_t)1 << 53) return fg__number_slow(text, length);
    return (length && text[0] == '-' ? -(double)digits : (double)digits) / powers[decimals]; /* exact before the division */
}

static bool fg__number_is(double value, const char *digits, int n, int point) {
    char text[48];
    snprintf(text, sizeof(text), "%.*se%d", n, digits, point - n);
    return strtod(text, NULL) == value;
}

/* The shortest digits that read back as `value` (finite, not negative); value = 0.d1d2... * 10^*point. */
static int fg__number_digits(double value, char digits[24], int *point) {
    char text[48];
    int precision, n, i;
    /* 15 digits are always what was written, if less was; except for subnormal numbers */
    for (precision = value < DBL_MIN ? 1 : 15; precision <= 17; precision++) {
        const char *s;
        snprintf(text, sizeof(text), "%.*e", precision - 1, value);
        n = 0;
        for (s = text; *s && *s != 'e'; s++)
            if (*s >= '0' && *s <= '9') digits[n++] = *s; /* the point may be any character */
        *point = *s ? atoi(s + 1) + 1 : 1;
        if (precision == 17 || fg__number_is(value, digits, n, *point)) break;
        /* just above a power of two there is more room than below: the next number up may do where the nearest does not */
        for (i = n - 1; i > 0 && digits[i] == '9'; i--) digits[i] = '0';
        digits[i]++;
        if (precision == 16 && digits[0] <= '9' && fg__number_is(value, digits, n, *point)) break;
    }
    while (n > 1 && digits[n - 1] == '0') n--;
    return n;
}

/* Writes the shortest text that reads back as `value`, in the form Python's repr gives it: 1.0, 0.1, 1e-07, 1e+16, inf,
   nan. Returns its length. */
static int fg__number_text(double value, char to[32]) {
    char digits[24];
    int n, point, at = 0, i;
    if (value != value) return snprintf(to, 32, "nan");
    if (value < 0 || (value == 0 && 1 / value < 0)) {
        to[at++] = '-';
        value = -value;
    }
    if (value > DBL_MAX) return at + snprintf(to + at, 8, "inf");
    n = fg__number_digits(value, digits, &point);
    if (value != 0 && (point < -3 || point > 16)) {
        to[at++] = digits[0];
        if (n > 1) to[at++] = '.';
        for (i = 1; i < n; i++) to[at++] = digits[i];
        return at + snprintf(to + at, 8, "e%c%02d", point > 0 ? '+' : '-', abs(point - 1));
    }
    if (point <= 0) to[at++] = '0';
    for (i = 0; i < point; i++) to[at++] = i < n ? digits[i] : '0';
    to[at++] = '.';
    for (i = point; i < 0; i++) to[at++] = '0';
    for (i = FG__MAX(point, 0); i < n; i++) to[at++] = digits[i];
    if (point >= n) to[at++] = '0';
    to[at] = 0;
    return at;
}

/* ------------------------------------------------------------------------------------------------
   Sorting
   ------------------------------------------------------------------------------------------------ */

/* Orders the elements numbered a and b: negative, 0 or positive. */
typedef int (*fg__order_fn)(void *user, uint32_t a, uint32_t b);

/* Sorts n numbers, keeping equal ones in their order; `spare` has room for n. Linear for what is sorted already. */
static void fg__sort(uint32_t *order, uint32_t *spare, size_t n, fg__order_fn compare, void *user) {
    size_t width, low, middle, high, a, b, i;
    for (width = 1; width < n; width *= 2) {
        for (low = 0; low + width < n; low = high) {
            middle = low + width;
            high = FG__MIN(middle + width, n);
            if (compare(user, order[middle - 1], order[middle]) <= 0) continue;
            memcpy(spare, order + low, width * sizeof(*spare));
            for (i = low, a = 0, b = middle; a < width;)
                order[i++] = b < high && compare(user, spare[a], order[b]) > 0 ? order[b++] : spare[a++];
        }
    }
}

/* Sorts n pairs of a key and a value, of `half` bytes each, by key through their numbers. Of pairs with equal keys only
   the first stays, with the value of the last; their numbers are then the new ones. Returns how many stay. */
static uint32_t fg__sort_unique(void *pairs, size_t half, uint32_t *sorted, uint32_t *spare, uint32_t n,
                                fg__order_fn compare, void *user) {
    char *bytes = (char *)pairs;
    uint32_t i, kept = 0, unique = 0;
    for (i = 0; i < n; i++) sorted[i] = i;
    fg__sort(sorted, spare, n, compare, user);
    for (i = 0; i < n; i++) {
        if (unique == 0 || compare(user, sorted[unique - 1], sorted[i]) != 0) sorted[unique++] = sorted[i];
        else memcpy(bytes + (2 * (size_t)sorted[unique - 1] + 1) * half, bytes + (2 * (size_t)sorted[i] + 1) * half, half);
    }
    if (unique == n) return n;
    for (i = 0; i < n; i++) spare[i] = UINT32_MAX;
    for (i = 0; i < unique; i++) spare[sorted[i]] = 0;
    for (i = 0; i < n; i++) {
        if (spare[i]) continue;
        memmove(bytes + 2 * (size_t)kept * half, bytes + 2 * (size_t)i * half, 2 * half);
        spare[i] = kept++;
    }
    for (i = 0; i < unique; i++) sorted[i] = spare[sorted[i]];
    return unique;
}

/* ------------------------------------------------------------------------------------------------
   The tree
   ------------------------------------------------------------------------------------------------ */

typedef enum fg__json_type {
    FG__JSON_NULL,
    FG__JSON_BOOL,
    FG__JSON_INTEGER, /* a number without point and exponent that fits int64 */
    FG__JSON_NUMBER,  /* any other number */
    FG__JSON_STRING,
    FG__JSON_ARRAY,
    FG__JSON_OBJECT
} fg__json_type;

/* A value: 16 bytes. Members of an object are in the order of their first occurrence; of equal keys the last value counts.
   Behind the items of an object with more than FG__JSON_LINEAR members are their numbers sorted by key (uint32_t). */
typedef struct fg__json {
    uint32_t type;  /* fg__json_type */
    uint32_t count; /* string: bytes; array: items; object: members */
    union {
        bool boolean;
        int64_t integer;
        double number;
        const char *string;     /* UTF-8, zero-terminated, may hold zeros */
        struct fg__json *items; /* object: key, value, key, value, ... */
    } value;
} fg__json;

enum { FG__JSON_LINEAR = 8 };

static int fg__json_compare(const char *a, size_t a_length, const char *b, size_t b_length) {
    int order = memcmp(a, b, FG__MIN(a_length, b_length));
    return order ? order : a_length < b_length ? -1 : a_length > b_length;
}

static int fg__json_compare_keys(void *items, uint32_t a, uint32_t b) {
    const fg__json *first = (const fg__json *)items + 2 * (size_t)a, *second = (const fg__json *)items + 2 * (size_t)b;
    return fg__json_compare(first->value.string, first->count, second->value.string, second->count);
}

/* The value of a member, or NULL when there is none (or `object` is NULL or no object). */
static const fg__json *fg__json_find(const fg__json *object, const char *key, size_t length) {
    const fg__json *items;
    const uint32_t *sorted;
    size_t low = 0, high;
    if (!object || object->type != FG__JSON_OBJECT || object->count == 0) return NULL;
    items = object->value.items;
    sorted = object->count > FG__JSON_LINEAR ? (const uint32_t *)(const void *)(items + 2 * (size_t)object->count) : NULL;
    for (high = object->count; low < high;) {
        size_t middle = sorted ? (low + high) / 2 : low;
        const fg__json *name = items + 2 * (sorted ? (size_t)sorted[middle] : middle);
        int order = fg__json_compare(key, length, name->value.string, name->count);
        if (order == 0) return name + 1;
        if (order > 0 || !sorted) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

static const fg__json *fg__json_get(const fg__json *object, const char *key) {
    return fg__json_find(object, key, strlen(key));
}

/* Item i < count of an array; member i < count of an object: its key (a string) and its value. */
static const fg__json *fg__json_item(const fg__json *array, size_t i) { return array->value.items + i; }
static const fg__json *fg__json_key(const fg__json *object, size_t i) { return object->value.items + 2 * i; }
static const fg__json *fg__json_value(const fg__json *object, size_t i) { return object->value.items + 2 * i + 1; }

/* The value of a number of either type; `otherwise` for anything else, and for NULL. */
static inline double fg__json_number(const fg__json *node, double otherwise) {
    if (node && node->type == FG__JSON_INTEGER) return (double)node->value.integer;
    return node && node->type == FG__JSON_NUMBER ? node->value.number : otherwise;
}

/* ------------------------------------------------------------------------------------------------
   Reading
   ------------------------------------------------------------------------------------------------ */

/* The root comes first, so that its address is the document's. */
typedef struct fg__json_document {
    fg__json root;
    fg__arena arena;
    fg__env env;
} fg__json_document;

typedef struct fg__json_parser {
    const char *text;
    size_t length, at;
    fg__arena *arena;
    fg__json *nodes; /* of the arrays and objects that are still open */
    size_t n_nodes, capacity;
    size_t open[FG__JSON_MAX_DEPTH]; /* where theirs begin in nodes, behind the node of their own */
    int depth;
} fg__json_parser;

static fg_result fg__json_error(const fg__json_parser *p, const char *what) {
    return fg__fail(FG_ERROR_INVALID_ARGUMENT, "JSON, byte %zu: %s", p->at, what);
}

static int fg__json_peek(const fg__json_parser *p) {
    return p->at < p->length ? (unsigned char)p->text[p->at] : -1;
}

/* Skips white space and returns the character behind it, or -1. */
static int fg__json_skip(fg__json_parser *p) {
    while (p->at < p->length && (p->text[p->at] == ' ' || (p->text[p->at] >= '\t' && p->text[p->at] <= '\r' &&
                                                         p->text[p->at] != '\v' && p->text[p->at] != '\f')))
        p->at++;
    return fg__json_peek(p);
}

static fg__json *fg__json_push(fg__json_parser *p, fg__json_type type) {
    void *array = p->nodes;
    fg__json *node;
    if (!fg__reserve(p->arena->env, &array, &p->capacity, p->n_nodes + 1, sizeof(*p->nodes))) return NULL;
    p->nodes = (fg__json *)array;
    node = &p->nodes[p->n_nodes++];
    memset(node, 0, sizeof(*node));
    node->type = (uint32_t)type;
    return node;
}

/* Reads the four digits behind \u; false when they are none. */
static bool fg__json_hex(fg__json_parser *p, uint32_t *code) {
    int i;
    *code = 0;
    for (i = 0; i < 4; i++, p->at++) {
        int c = fg__json_peek(p), lower = c | 0x20;
        if (c >= '0' && c <= '9') *code = *code << 4 | (uint32_t)(c - '0');
        else if (lower >= 'a' && lower <= 'f') *code = *code << 4 | (uint32_t)(lower - 'a' + 10);
        else return false;
    }
    return true;
}

/* Reads an escape behind its backslash into `to`. A surrogate without its other half becomes U+FFFD. */
static bool fg__json_escaped(fg__json_parser *p, char *to, size_t *n) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    int c = fg__json_peek(p);
    const char *name = c > 0 ? strchr(names, c) : NULL;
    uint32_t code, low;
    if (name) to[(*n)++] = values[name - names];
    if (name || c != 'u') return p->at++, name != NULL;
    p->at++;
    if (!fg__json_hex(p, &code)) return false;
    if (code >= 0xD800 && code < 0xDC00 && p->length - p->at >= 6 && p->text[p->at] == '\\' && p->text[p->at + 1] == 'u') {
        size_t back = p->at;
        p->at += 2;
        if (!fg__json_hex(p, &low)) return false;
        if (low >= 0xDC00 && low < 0xE000) code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        else p->at = back;
    }
    *n += fg__utf8_encode(code >= 0xD800 && code < 0xE000 ? 0xFFFD : code, to + *n);
    return true;
}

/* Finds the closing quote and checks the characters on the way. */
static fg_result fg__json_scan_string(fg__json_parser *p) {
    for (;;) {
        int c = fg__json_peek(p), n;
        if (c == '"') return FG_OK;
        if (c < 0) return fg__json_error(p, "a string does not end");
        if (c < 0x20) return fg__json_error(p, "a control character in a string");
        if (c == '\\' && p->length - p->at > 1) p->at++;
        n = fg__utf8_measure(p->text + p->at, p->length - p->at);
        if (n <= 0) return fg__json_error(p, "invalid UTF-8 in a string");
        p->at += (size_t)n;
    }
}

/* Reads a string behind its first quote. Its value is never longer than its source. */
static fg_result fg__json_string(fg__json_parser *p) {
    size_t begin = p->at, n = 0, end;
    fg__json *node = fg__json_push(p, FG__JSON_STRING);
    fg_result result = fg__json_scan_string(p);
    char *to = NULL;
    if (result != FG_OK) return result;
    if (node) to = (char *)fg__arena_alloc(p->arena, p->at - begin + 1);
    if (!to) return FG_ERROR_OUT_OF_MEMORY;
    end = p->at;
    for (p->at = begin; p->at < end;) {
        const char *from = p->text + p->at;
        const char *stop = (const char *)memchr(from, '\\', end - p->at);
        size_t plain = stop ? (size_t)(stop - from) : end - p->at;
        memcpy(to + n, from, plain);
        n += plain;
        p->at += plain;
        if (!stop) break;
        p->at++;
        if (!fg__json_escaped(p, to, &n)) return fg__json_error(p, "a bad escape in a string");
    }
    p->at++;
    to[n] = 0;
    node->value.string = to;
    node->count = (uint32_t)n;
    return FG_OK;
}

static size_t fg__json_digits(fg__json_parser *p) {
    size_t begin = p->at;
    while (p->at < p->length && p->text[p->at] >= '0' && p->text[p->at] <= '9') p->at++;
    return p->at - begin;
}

/* Reads decimal digits as int64, false when they do not fit. */
static bool fg__json_int64(const char *text, size_t length, int64_t *value) {
    bool negative = length && text[0] == '-';
    uint64_t sum = 0, limit = (uint64_t)INT64_MAX + (negative ? 1 : 0);
    size_t i;
    for (i = negative ? 1 : 0; i < length; i++) {
        uint64_t digit = (uint64_t)(text[i] - '0');
        if (sum > (limit - digit) / 10) return false;
        sum = sum * 10 + digit;
    }
    *value = negative && sum ? -(int64_t)(sum - 1) - 1 : (int64_t)sum;
    return true;
}

static fg_result fg__json_read_number(fg__json_parser *p) {
    size_t begin = p->at, integer;
    fg__json *node = fg__json_push(p, FG__JSON_NUMBER);
    bool whole = true, zero;
    if (!node) return FG_ERROR_OUT_OF_MEMORY;
    if (fg__json_peek(p) == '-') p->at++;
    zero = fg__json_peek(p) == '0';
    integer = fg__json_digits(p);
    if (!integer || (zero && integer > 1)) return fg__json_error(p, "a bad number");
    if (fg__json_peek(p) == '.') {
        p->at++;
        whole = false;
        if (!fg__json_digits(p)) return fg__json_error(p, "a bad number");
    }
    if (fg__json_peek(p) == 'e' || fg__json_peek(p) == 'E') {
        p->at++;
        whole = false;
        if (fg__json_peek(p) == '-' || fg__json_peek(p) == '+') p->at++;
        if (!fg__json_digits(p)) return fg__json_error(p, "a bad number");
    }
    if (whole && fg__json_int64(p->text + begin, p->at - begin, &node->value.integer)) node->type = FG__JSON_INTEGER;
    else node->value.number = fg__number_parse(p->text + begin, p->at - begin);
    return FG_OK;
}

static fg_result fg__json_word(fg__json_parser *p, const char *word, fg__json_type type) {
    size_t length = strlen(word);
    fg__json *node;
    if (p->length - p->at < length || memcmp(p->text + p->at, word, length) != 0)
        return fg__json_error(p, "expected a value");
    p->at += length;
    node = fg__json_push(p, type);
    if (node) node->value.boolean = word[0] == 't';
    return node ? FG_OK : FG_ERROR_OUT_OF_MEMORY;
}

/* A value that holds no others. */
static fg_result fg__json_scalar(fg__json_parser *p, int c) {
    if (c == '"') {
        p->at++;
        return fg__json_string(p);
    }
    if (c == '-' || (c >= '0' && c <= '9')) return fg__json_read_number(p);
    if (c == 't') return fg__json_word(p, "true", FG__JSON_BOOL);
    if (c == 'f') return fg__json_word(p, "false", FG__JSON_BOOL);
    return fg__json_word(p, "null", FG__JSON_NULL);
}

/* Makes `object` of n members: keys and values in turn. They may be changed. */
static fg_result fg__json_make_object(fg__arena *arena, fg__json *object, fg__json *items, size_t n) {
    uint32_t few[2 * FG__JSON_LINEAR], *sorted = few;
    size_t bytes = 2 * n * sizeof(*items);
    fg__json *to = NULL;
    if (n > FG__JSON_LINEAR) sorted = (uint32_t *)fg__malloc(arena->env, n, 2 * sizeof(*sorted));
    if (!sorted) return FG_ERROR_OUT_OF_MEMORY;
    object->type = FG__JSON_OBJECT;
    object->count = fg__sort_unique(items, sizeof(*items), sorted, sorted + n, (uint32_t)n, fg__json_compare_keys, items);
    bytes = 2 * (size_t)object->count * sizeof(*items);
    to = (fg__json *)fg__arena_alloc(arena, bytes + (object->count > FG__JSON_LINEAR ? object->count * sizeof(*sorted) : 0));
    if (to && bytes) memcpy(to, items, bytes);
    if (to && object->count > FG__JSON_LINEAR) memcpy((char *)to + bytes, sorted, object->count * sizeof(*sorted));
    if (sorted != few) fg__free(arena->env, sorted);
    object->value.items = to;
    return to ? FG_OK : FG_ERROR_OUT_OF_MEMORY;
}

/* Replaces the nodes of the innermost open array or object, and the place kept for it before them, by that value. */
static fg_result fg__json_close(fg__json_parser *p) {
    size_t begin = p->open[--p->depth], n = p->n_nodes - begin;
    fg__json *node = &p->nodes[begin - 1];
    p->n_nodes = begin;
    p->at++;
    if (node->type == FG__JSON_OBJECT) return fg__json_make_object(p->arena, node, node + 1, n / 2);
    node->value.items = (fg__json *)fg__arena_alloc(p->arena, n * sizeof(*node));
    if (!node->value.items) return FG_ERROR_OUT_OF_MEMORY;
    if (n) memcpy(node->value.items, node + 1, n * sizeof(*node));
    node->count = (uint32_t)n;
    return FG_OK;
}

/* Reads the key of a member and its colon. */
static fg_result fg__json_member(fg__json_parser *p) {
    fg_result result;
    if (fg__json_skip(p) != '"') return fg__json_error(p, "expected a key in quotes");
    p->at++;
    result = fg__json_string(p);
    if (result != FG_OK) return result;
    if (fg__json_skip(p) != ':') return fg__json_error(p, "expected ':'");
    p->at++;
    return FG_OK;
}

/* Reads the beginning of a value: all of it, or the opening bracket and, in an object, the first key. *done: a whole value. */
static fg_result fg__json_begin(fg__json_parser *p, bool *done) {
    int c = fg__json_skip(p);
    *done = true;
    if (c != '{' && c != '[') return fg__json_scalar(p, c);
    if (p->depth == FG__JSON_MAX_DEPTH) return fg__json_error(p, "nested too deeply");
    if (!fg__json_push(p, c == '{' ? FG__JSON_OBJECT : FG__JSON_ARRAY)) return FG_ERROR_OUT_OF_MEMORY;
    p->open[p->depth++] = p->n_nodes;
    p->at++;
    if (fg__json_skip(p) == (c == '{' ? '}' : ']')) return fg__json_close(p);
    *done = false;
    return c == '{' ? fg__json_member(p) : FG_OK;
}

/* After a value: closes what ends here, or goes on to the next item. *done: the root is complete. */
static fg_result fg__json_end(fg__json_parser *p, bool *done) {
    fg_result result = FG_OK;
    for (*done = false; result == FG_OK; result = fg__json_close(p)) {
        bool object = p->depth && p->nodes[p->open[p->depth - 1] - 1].type == FG__JSON_OBJECT;
        int c = fg__json_skip(p);
        if (!p->depth) {
            *done = true;
            return c < 0 ? FG_OK : fg__json_error(p, "more text behind the value");
        }
        if (c == ',') {
            p->at++;
            return object ? fg__json_member(p) : FG_OK;
        }
        if (c != (object ? '}' : ']')) return fg__json_error(p, object ? "expected ',' or '}'" : "expected ',' or ']'");
    }
    return result;
}

static fg_result fg__json_run(fg__json_parser *p) {
    bool done = false;
    while (!done) {
        fg_result result = fg__json_begin(p, &done);
        if (result == FG_OK && done) result = fg__json_end(p, &done);
        if (result != FG_OK) return result;
    }
    return FG_OK;
}

static void fg__json_free(fg__json *root) {
    fg__json_document *document = (fg__json_document *)(void *)root;
    fg__env env;
    if (!root) return;
    env = document->env;
    fg__arena_free(&document->arena);
    fg__free(&env, document);
}

/* An empty document (null), to be freed by fg__json_free; NULL when memory is out. */
static fg__json_document *fg__json_document_new(const fg__env *env) {
    fg__json_document *document = (fg__json_document *)fg__calloc(env, 1, sizeof(*document));
    if (!document) return NULL;
    document->env = *env;
    document->arena.env = &document->env;
    return document;
}

/* Reads `length` bytes of JSON into a tree that keeps no pointer into them. Errors: INVALID_ARGUMENT (with the byte where
   it went wrong), OUT_OF_MEMORY; *root is NULL then. The time is linear, n log n in the members of an object. */
static fg_result fg__json_parse(const fg__env *env, const char *text, size_t length, fg__json **root) {
    fg__json_parser parser;
    fg__json_document *document = fg__json_document_new(env);
    fg_result result;
    *root = NULL;
    if (!document) return FG_ERROR_OUT_OF_MEMORY;
    memset(&parser, 0, sizeof(parser));
    parser.text = text;
    parser.length = length;
    parser.arena = &document->arena;
    if (length >= UINT32_MAX) result = fg__fail(FG_ERROR_INVALID_ARGUMENT, "JSON: %zu bytes are too long", length);
    else result = fg__json_run(&parser);
    if (result == FG_OK) document->root = parser.nodes[0];
    fg__free(env, parser.nodes);
    if (result == FG_OK) *root = &document->root;
    else fg__json_free(&document->root);
    return result;
}

/* ------------------------------------------------------------------------------------------------
   Writing
   ------------------------------------------------------------------------------------------------ */

/* Adds a string with its quotes. Bytes that are no UTF-8 become U+FFFD; with `ascii` all that is not ASCII is escaped. */
static void fg__json_write_string(fg__text *out, const char *data, size_t length, bool ascii) {
    static const char names[] = "\"\\\b\f\n\r\t", values[] = "\"\\bfnrt";
    size_t i = 0, plain = 0;
    fg__text_add(out, "\"", 1);
    while (i < length) {
        int n = fg__utf8_measure(data + i, length - i);
        unsigned char c = (unsigned char)data[i];
        const char *name = c ? strchr(names, c) : NULL;
        bool escape = name || c < 0x20 || n <= 0 || (ascii && c >= 0x7F);
        if (!escape) {
            i += (size_t)n;
            continue;
        }
        fg__text_add(out, data + plain, i - plain);
        if (name) {
            fg__text_add(out, "\\", 1);
            fg__text_add(out, &values[name - names], 1);
        } else if (c < 0x80) {
            fg__text_printf(out, "\\u%04x", c);
        } else if (ascii) {
            uint32_t code;
            fg__utf8_decode(data + i, length - i, &code);
            if (code >= 0x10000) fg__text_printf(out, "\\u%04x", 0xD800 + ((code - 0x10000) >> 10));
            fg__text_printf(out, "\\u%04x", code < 0x10000 ? code : 0xDC00 + ((code - 0x10000) & 0x3FF));
        } else {
            fg__text_add(out, "\xEF\xBF\xBD", 3);
        }
        i += n > 0 ? (size_t)n : n < 0 ? (size_t)-n : length - i;
        plain = i;
    }
    fg__text_add(out, data + plain, length - plain);
    fg__text_add(out, "\"", 1);
}

/* Adds a string with its quotes, in UTF-8; bytes that are none become U+FFFD. */
static void fg__json_escape(fg__text *out, const char *data, size_t length) {
    fg__json_write_string(out, data, length, false);
}

/* Adds a number that reads back as the same double; null for infinities and NaN, which JSON lacks. */
static void fg__json_write_number(fg__text *out, double value) {
    char text[32];
    if (value - value == 0) fg__text_add(out, text, (size_t)fg__number_text(value, text));
    else fg__text_puts(out, "null");
}

/* Adds a whole tree, without spaces. */
static inline void fg__json_write(fg__text *out, const fg__json *node) {
    uint32_t i;
    switch (node->type) {
    case FG__JSON_BOOL: fg__text_puts(out, node->value.boolean ? "true" : "false"); break;
    case FG__JSON_INTEGER: fg__text_printf(out, "%lld", (long long)node->value.integer); break;
    case FG__JSON_NUMBER: fg__json_write_number(out, node->value.number); break;
    case FG__JSON_STRING: fg__json_escape(out, node->value.string, node->count); break;
    case FG__JSON_ARRAY:
    case FG__JSON_OBJECT:
        fg__text_puts(out, node->type == FG__JSON_ARRAY ? "[" : "{");
        for (i = 0; i < node->count; i++) {
            if (i) fg__text_puts(out, ",");
            if (node->type == FG__JSON_OBJECT) {
                const fg__json *key = fg__json_key(node, i);
                fg__json_escape(out, key->value.string, key->count);
                fg__text_puts(out, ":");
            }
            fg__json_write(out, node->type == FG__JSON_OBJECT ? fg__json_value(node, i) : fg__json_item(node, i));
        }
        fg__text_puts(out, node->type == FG__JSON_ARRAY ? "]" : "}");
        break;
    default: fg__text_puts(out, "null");
    }
}
/* ================================================================================================
   >>gguf  model files in the GGUF format, versions 2 and 3, little-endian

   Layout: "GGUF", version, number of tensors, number of values; the values (key, type, data); the tensors' names,
   shapes, types and offsets; and from the next multiple of general.alignment on the tensors' data. Strings are a 64-bit
   length and bytes. See https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
   Nothing but names and tables is copied: strings, arrays and tensors point into the mapped file, at any alignment.
   ================================================================================================ */

typedef enum fg__gguf_type {
    FG__GGUF_U8,
    FG__GGUF_I8,
    FG__GGUF_U16,
    FG__GGUF_I16,
    FG__GGUF_U32,
    FG__GGUF_I32,
    FG__GGUF_F32,
    FG__GGUF_BOOL,
    FG__GGUF_STRING,
    FG__GGUF_ARRAY,
    FG__GGUF_U64,
    FG__GGUF_I64,
    FG__GGUF_F64
} fg__gguf_type;

#define FG__GGUF_MAX_PARTS 65535     /* of a split model; its number has 16 bits */
#define FG__GGUF_MIN_VALUE_BYTES 13  /* an empty key's length, a type, one byte */
#define FG__GGUF_MIN_TENSOR_BYTES 24 /* an empty name's length, the number of dimensions, type, offset */

typedef struct fg__gguf_string {
    const char *data; /* not zero-terminated */
    size_t length;
} fg__gguf_string;

typedef struct fg__gguf_value {
    fg__gguf_string key;       /* this copy is zero-terminated */
    int type;                  /* fg__gguf_type */
    int item_type;             /* of arrays; of others the type itself */
    uint64_t count;            /* items; 1 for scalars */
    const unsigned char *data; /* the items in the file: little-endian, unaligned */
    fg__gguf_string *strings;  /* STRING or array of strings: [count] */
    fg__gguf_string single;    /* where `strings` of a STRING points */
} fg__gguf_value;

typedef struct fg__gguf_entry {
    fg__gguf_string name;
    int index;
} fg__gguf_entry;

typedef struct fg__gguf {
    fg__env env;
    fg__file file; /* empty for a file in memory */
    fg__gguf_value *values;
    int n_values;
    fg_tensor *tensors;
    int n_tensors;
    fg__gguf_entry *value_index, *tensor_index; /* sorted by name: unlike a hash table it has no bad case to aim at */
    struct fg__gguf **parts;                    /* the other files of a split model; their tensors moved to the first */
    int n_parts;
} fg__gguf;

/* A file being read. Functions that take one return false at the first error; `result` and the message tell which. */
typedef struct fg__gguf_reader {
    fg__gguf *gguf;
    const unsigned char *data;
    size_t size, at;
    const char *label; /* the file's name, for messages */
    fg_result result;
} fg__gguf_reader;

/* What messages call the file: its name without folders. */
static const char *fg__gguf_label(const char *path) {
    const char *c, *label = path ? path : "model in memory";
    for (c = label; *c; c++)
        if (*c == '/' || *c == '\\') label = c + 1;
    return label;
}

FG__PRINTF(3, 4) static bool fg__gguf_fail(fg__gguf_reader *r, fg_result result, const char *format, ...) {
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    r->result = fg__fail(result, "%.200s: %s", r->label, text);
    return false;
}

static bool fg__gguf_no_memory(fg__gguf_reader *r) {
    r->result = FG_ERROR_OUT_OF_MEMORY; /* the allocation has set the message */
    return false;
}

static uint64_t fg__gguf_load(const unsigned char *from, int bytes) {
    uint64_t value = 0;
    int i;
    for (i = 0; i < bytes; i++) value |= (uint64_t)from[i] << (8 * i);
    return value;
}

/* The next `bytes` bytes; NULL where the file ends before. */
static const unsigned char *fg__gguf_take(fg__gguf_reader *r, size_t bytes) {
    const unsigned char *data = r->data + r->at;
    if (bytes > r->size - r->at) {
        fg__gguf_fail(r, FG_ERROR_BAD_FILE, "the file ends inside its header, at byte %zu", r->size);
        return NULL;
    }
    r->at += bytes;
    return data;
}

static bool fg__gguf_take_u32(fg__gguf_reader *r, uint32_t *value) {
    const unsigned char *data = fg__gguf_take(r, 4);
    if (!data) return false;
    *value = (uint32_t)fg__gguf_load(data, 4);
    return true;
}

static bool fg__gguf_take_u64(fg__gguf_reader *r, uint64_t *value) {
    const unsigned char *data = fg__gguf_take(r, 8);
    if (!data) return false;
    *value = fg__gguf_load(data, 8);
    return true;
}

static bool fg__gguf_take_string(fg__gguf_reader *r, fg__gguf_string *string) {
    uint64_t length = 0;
    if (!fg__gguf_take_u64(r, &length)) return false;
    if (length > r->size - r->at)
        return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "a string at byte %zu claims %llu bytes, more than the file has",
                             r->at - 8, (unsigned long long)length);
    string->length = (size_t)length;
    string->data = (const char *)fg__gguf_take(r, string->length);
    return string->data != NULL;
}

/* A key or the name of a tensor: copied, so that it ends with a zero, and fit to be shown to users. */
static bool fg__gguf_take_name(fg__gguf_reader *r, fg__gguf_string *name) {
    char *copy;
    size_t i;
    if (!fg__gguf_take_string(r, name)) return false;
    for (i = 0; i < name->length; i++)
        if ((unsigned char)name->data[i] < 32 || name->data[i] == 127)
            return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "the name at byte %zu has a control character inside",
                                 r->at - name->length);
    copy = fg__strndup(&r->gguf->env, name->data, name->length);
    if (!copy) return fg__gguf_no_memory(r);
    name->data = copy;
    return true;
}

/* Bytes of an item of a fixed size; 0 for others. */
static int fg__gguf_item_size(int type) {
    switch (type) {
        case FG__GGUF_U8: case FG__GGUF_I8: case FG__GGUF_BOOL: return 1;
        case FG__GGUF_U16: case FG__GGUF_I16: return 2;
        case FG__GGUF_U32: case FG__GGUF_I32: case FG__GGUF_F32: return 4;
        case FG__GGUF_U64: case FG__GGUF_I64: case FG__GGUF_F64: return 8;
        default: return 0;
    }
}

static bool fg__gguf_take_strings(fg__gguf_reader *r, fg__gguf_value *value) {
    uint64_t i;
    value->strings = &value->single;
    if (value->type == FG__GGUF_ARRAY) {
        value->strings = (fg__gguf_string *)fg__malloc(&r->gguf->env, (size_t)value->count, sizeof(fg__gguf_string));
        if (!value->strings) return fg__gguf_no_memory(r);
    }
    for (i = 0; i < value->count; i++)
        if (!fg__gguf_take_string(r, &value->strings[i])) return false;
    return true;
}

static bool fg__gguf_take_items(fg__gguf_reader *r, fg__gguf_value *value) {
    int size = fg__gguf_item_size(value->item_type);
    if (value->item_type == FG__GGUF_STRING) size = 8; /* at least: its length */
    if (value->type == FG__GGUF_ARRAY && value->item_type == FG__GGUF_ARRAY)
        return fg__gguf_fail(r, FG_ERROR_UNSUPPORTED, "key '%.80s' is an array of arrays", value->key.data);
    if (!size)
        return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "key '%.80s' has the unknown type %u", value->key.data,
                             (unsigned)value->item_type);
    if (value->count > (r->size - r->at) / (size_t)size)
        return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "key '%.80s' claims %llu items, more than the file can hold",
                             value->key.data, (unsigned long long)value->count);
    value->data = r->data + r->at;
    if (value->item_type == FG__GGUF_STRING) return fg__gguf_take_strings(r, value);
    return fg__gguf_take(r, (size_t)value->count * (size_t)size) != NULL;
}

static bool fg__gguf_take_value(fg__gguf_reader *r, fg__gguf_value *value) {
    uint32_t type = 0;
    if (!fg__gguf_take_name(r, &value->key)) return false;
    r->gguf->n_values++; /* from here on fg__gguf_close frees it */
    if (!fg__gguf_take_u32(r, &type)) return false;
    value->type = value->item_type = (int)type;
    value->count = 1;
    if (type == FG__GGUF_ARRAY) {
        if (!fg__gguf_take_u32(r, &type) || !fg__gguf_take_u64(r, &value->count)) return false;
        value->item_type = (int)type;
    }
    return fg__gguf_take_items(r, value);
}

static int fg__gguf_compare(fg__gguf_string a, fg__gguf_string b) {
    size_t length = FG__MIN(a.length, b.length);
    int order = length ? memcmp(a.data, b.data, length) : 0;
    return order ? order : (a.length > b.length) - (a.length < b.length);
}

/* Heap sort: moves entry `i` of the heap down to its place. */
static void fg__gguf_sift(fg__gguf_entry *entries, int i, int count) {
    fg__gguf_entry moved = entries[i];
    while (i < count / 2) {
        int child = 2 * i + 1;
        if (child + 1 < count && fg__gguf_compare(entries[child].name, entries[child + 1].name) < 0) child++;
        if (fg__gguf_compare(moved.name, entries[child].name) >= 0) break;
        entries[i] = entries[child];
        i = child;
    }
    entries[i] = moved;
}

/* Sorts by name; returns the index of a name that is there twice, or -1. */
static int fg__gguf_sort(fg__gguf_entry *entries, int count) {
    int i;
    for (i = count / 2 - 1; i >= 0; i--) fg__gguf_sift(entries, i, count);
    for (i = count - 1; i > 0; i--) {
        fg__gguf_entry last = entries[0];
        entries[0] = entries[i];
        entries[i] = last;
        fg__gguf_sift(entries, 0, i);
    }
    for (i = 1; i < count; i++)
        if (fg__gguf_compare(entries[i - 1].name, entries[i].name) == 0) return i;
    return -1;
}

static int fg__gguf_search(const fg__gguf_entry *entries, int count, const char *name) {
    fg__gguf_string wanted;
    int low = 0, high = count;
    wanted.data = name;
    wanted.length = strlen(name);
    while (low < high) {
        int middle = low + (high - low) / 2, order = fg__gguf_compare(entries[middle].name, wanted);
        if (order == 0) return entries[middle].index;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return -1;
}

static const fg__gguf_value *fg__gguf_find(const fg__gguf *gguf, const char *key) {
    int i = fg__gguf_search(gguf->value_index, gguf->n_values, key);
    return i < 0 ? NULL : &gguf->values[i];
}

static int fg__gguf_value_count(const fg__gguf *gguf) { return gguf->n_values; }
static const fg__gguf_value *fg__gguf_value_at(const fg__gguf *gguf, int i) { return &gguf->values[i]; }

/* Item i of an array or, with i 0, a scalar; false unless it is an integer or bool that fits. */
static bool fg__gguf_item_i64(const fg__gguf_value *value, uint64_t i, int64_t *out) {
    int size = fg__gguf_item_size(value->item_type);
    uint64_t bits;
    if (!size || i >= value->count) return false;
    bits = fg__gguf_load(value->data + i * (uint64_t)size, size);
    switch (value->item_type) {
        case FG__GGUF_BOOL: *out = bits != 0; return true;
        case FG__GGUF_I8: *out = (int8_t)bits; return true;
        case FG__GGUF_I16: *out = (int16_t)bits; return true;
        case FG__GGUF_I32: *out = (int32_t)bits; return true;
        case FG__GGUF_F32: case FG__GGUF_F64: return false;
        case FG__GGUF_U64:
            if (bits > (uint64_t)INT64_MAX) return false;
            *out = (int64_t)bits;
            return true;
        default: *out = (int64_t)bits; return true;
    }
}

/* As above for floating-point numbers; integers are converted. */
static bool fg__gguf_item_f64(const fg__gguf_value *value, uint64_t i, double *out) {
    int64_t integer;
    uint32_t bits;
    uint64_t wide;
    float f;
    if (i >= value->count || value->item_type == FG__GGUF_BOOL) return false;
    if (value->item_type == FG__GGUF_F64) {
        wide = fg__gguf_load(value->data + i * 8, 8);
        memcpy(out, &wide, 8);
        return true;
    }
    if (value->item_type == FG__GGUF_F32) {
        bits = (uint32_t)fg__gguf_load(value->data + i * 4, 4);
        memcpy(&f, &bits, 4);
        *out = f;
        return true;
    }
    if (!fg__gguf_item_i64(value, i, &integer)) return false;
    *out = (double)integer;
    return true;
}

static bool fg__gguf_get_i64(const fg__gguf *gguf, const char *key, int64_t *out) {
    const fg__gguf_value *value = fg__gguf_find(gguf, key);
    return value && value->type != FG__GGUF_ARRAY && fg__gguf_item_i64(value, 0, out);
}

static bool fg__gguf_get_f64(const fg__gguf *gguf, const char *key, double *out) {
    const fg__gguf_value *value = fg__gguf_find(gguf, key);
    return value && value->type != FG__GGUF_ARRAY && fg__gguf_item_f64(value, 0, out);
}

static bool fg__gguf_get_bool(const fg__gguf *gguf, const char *key, bool *out) {
    const fg__gguf_value *value = fg__gguf_find(gguf, key);
    if (!value || value->type != FG__GGUF_BOOL) return false;
    *out = value->data[0] != 0;
    return true;
}

static bool fg__gguf_get_string(const fg__gguf *gguf, const char *key, fg__gguf_string *out) {
    const fg__gguf_value *value = fg__gguf_find(gguf, key);
    if (!value || value->type != FG__GGUF_STRING) return false;
    *out = value->strings[0];
    return true;
}

static int fg__gguf_tensor_count(const fg__gguf *gguf) { return gguf->n_tensors; }
static const fg_tensor *fg__gguf_tensor_at(const fg__gguf *gguf, int i) { return &gguf->tensors[i]; }

static const fg_tensor *fg__gguf_find_tensor(const fg__gguf *gguf, const char *name) {
    int i = fg__gguf_search(gguf->tensor_index, gguf->n_tensors, name);
    return i < 0 ? NULL : &gguf->tensors[i];
}

static bool fg__gguf_read_header(fg__gguf_reader *r, uint64_t *n_tensors, uint64_t *n_values) {
    uint32_t version = 0;
    if (r->size < 4 || memcmp(r->data, "GGUF", 4) != 0) return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "not a GGUF file");
    r->at = 4;
    if (!fg__gguf_take_u32(r, &version)) return false;
    if (version == 0) return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "GGUF version 0 does not exist");
    if ((version & 0xFFFF) == 0)
        return fg__gguf_fail(r, FG_ERROR_UNSUPPORTED, "a big-endian GGUF file; convert it to little-endian");
    if (version != 2 && version != 3)
        return fg__gguf_fail(r, FG_ERROR_UNSUPPORTED, "GGUF version %u; versions 2 and 3 are known", (unsigned)version);
    if (!fg__gguf_take_u64(r, n_tensors) || !fg__gguf_take_u64(r, n_values)) return false;
    if (*n_values > (r->size - r->at) / FG__GGUF_MIN_VALUE_BYTES || *n_values > INT_MAX)
        return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "claims %llu values, more than the file can hold",
                             (unsigned long long)*n_values);
    if (*n_tensors > (r->size - r->at) / FG__GGUF_MIN_TENSOR_BYTES || *n_tensors > INT_MAX)
        return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "claims %llu tensors, more than the file can hold",
                             (unsigned long long)*n_tensors);
    return true;
}

static bool fg__gguf_read_values(fg__gguf_reader *r, int count) {
    fg__gguf *gguf = r->gguf;
    int i;
    gguf->values = (fg__gguf_value *)fg__calloc(&gguf->env, (size_t)count, sizeof(fg__gguf_value));
    gguf->value_index = (fg__gguf_entry *)fg__malloc(&gguf->env, (size_t)count, sizeof(fg__gguf_entry));
    if (!gguf->values || !gguf->value_index) return fg__gguf_no_memory(r);
    for (i = 0; i < count; i++) {
        if (!fg__gguf_take_value(r, &gguf->values[i])) return false;
        gguf->value_index[i].name = gguf->values[i].key;
        gguf->value_index[i].index = i;
    }
    i = fg__gguf_sort(gguf->value_index, count);
    if (i < 0) return true;
    return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "key '%.80s' is there twice", gguf->value_index[i].name.data);
}

static bool fg__gguf_read_alignment(fg__gguf_reader *r, uint64_t *alignment) {
    int64_t value = 32;
    const char *key = "general.alignment";
    if (fg__gguf_find(r->gguf, key) && !fg__gguf_get_i64(r->gguf, key, &value)) value = 0;
    *alignment = (uint64_t)value;
    if (value >= 1 && value <= UINT32_MAX && (value & (value - 1)) == 0) return true;
    return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "%s is not a power of two", key);
}

/* Passes over the list of tensors: only its end tells where the tensors' data starts. */
static bool fg__gguf_skip_tensors(fg__gguf_reader *r, int count) {
    fg__gguf_string name;
    uint32_t n_dims = 0;
    int i;
    for (i = 0; i < count; i++) {
        if (!fg__gguf_take_string(r, &name) || !fg__gguf_take_u32(r, &n_dims)) return false;
        if (n_dims > 4)
            return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "tensor number %d has %u dimensions, more than 4", i,
                                 (unsigned)n_dims);
        if (!fg__gguf_take(r, 8 * n_dims + 12)) return false; /* dimensions, type, offset */
    }
    return true;
}

static fg_type fg__gguf_tensor_type(uint32_t id) {
#define FG__CASE(name, number, elements, bytes) case number: return FG_TYPE_##name;
    switch (id) { FG_TYPES(FG__CASE) default: return FG_TYPE_NONE; }
#undef FG__CASE
}

/* Sets tensor->type from the type's id in the file. The table names what GGML has or had beyond FG_TYPES. */
static bool fg__gguf_check_type(fg__gguf_reader *r, fg_tensor *tensor, uint32_t id) {
    static const char *const others[] = {
        "", "", "", "", "Q4_2", "Q4_3", "", "", "", "Q8_1",
        "", "", "", "", "", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
        "", "IQ3_S", "IQ2_S", "", "I8", "I16", "I32", "I64", "F64", "IQ1_M",
        "", "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8", "TQ1_0", "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "",
        "NVFP4", "Q1_0"};
    tensor->type = fg__gguf_tensor_type(id);
    if (tensor->type != FG_TYPE_NONE) return true;
    if (id < (uint32_t)FG__COUNT(others) && others[id][0])
        return fg__gguf_fail(r, FG_ERROR_UNSUPPORTED, "tensor '%.80s' has type %s, which is not supported",
                             tensor->name, others[id]);
    return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "tensor '%.80s' has the unknown type %u", tensor->name, (unsigned)id);
}

/* Sets tensor->bytes. A count of elements below 2^60 keeps all later arithmetic inside 64 bits. */
static bool fg__gguf_check_shape(fg__gguf_reader *r, fg_tensor *tensor) {
    int64_t elements = 1, bytes;
    int i;
    for (i = 0; i < 4; i++) {
        if (tensor->dims[i] < 1)
            return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "tensor '%.80s' has a dimension of %lld", tensor->name,
                                 (long long)tensor->dims[i]);
        if (tensor->dims[i] > (INT64_MAX / 8) / elements)
            return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "tensor '%.80s' has absurd dimensions", tensor->name);
        elements *= tensor->dims[i];
    }
    if (!fg_type_bytes(tensor->type, tensor->dims[0]))
        return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "tensor '%.80s': rows of %lld elements split a block of %s",
                             tensor->name, (long long)tensor->dims[0], fg_type_name(tensor->type));
    bytes = fg_type_bytes(tensor->type, elements);
    tensor->bytes = (size_t)bytes;
    if ((uint64_t)bytes <= r->size) return true;
    return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "tensor '%.80s' needs %lld bytes, the file has %zu", tensor->name,
                         (long long)bytes, r->size);
}

/* Points the tensor at its data; `data_at` is where the file's data starts, maybe past its end. */
static bool fg__gguf_place(fg__gguf_reader *r, fg_tensor *tensor, uint64_t data_at, uint64_t offset,
                           uint64_t alignment) {
    if (offset % alignment)
        return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "tensor '%.80s' starts at offset %llu, not a multiple of %llu",
                             tensor->name, (unsigned long long)offset, (unsigned long long)alignment);
    if (data_at > r->size || offset > r->size - data_at || tensor->bytes > r->size - data_at - offset)
        return fg__gguf_fail(r, FG_ERROR_BAD_FILE, "the data of tensor '%.80s' lies past the end of the file",
                             tensor->name);
    tensor->data = r->data + (size_t)(data_at + offset);
    return true;
}

static bool fg__gguf_read_tensor(fg__gguf_reader *r, fg_tensor *tensor, uint64_t data_at, uint64_t alignment) {
    fg__gguf_string name;
    uint32_t n_dims = 0, type = 0;
    uint64_t dim = 0, offset = 0;
    int i;
    if (!fg__gguf_take_name(r, &name)) return false;
    tensor->name = name.data;
    r->gguf->n_tensors++; /* from here on fg__gguf_close frees its name */
    if (!fg__gguf_take_u32(r, &n_dims)) return false;
    tensor->n_dims = n_dims ? (int)n_dims : 1; /* none: a single number. At most 4: skip_tensors has checked */
    for (i = 0; i < 4; i++) {
        tensor->dims[i] = 1;
        if (i >= (int)n_dims) continue;
        if (!fg__gguf_take_u64(r, &dim)) return false;
        tensor->dims[i] = dim > (uint64_t)INT64_MAX ? INT64_MAX : (int64_t)dim;
    }
    if (!fg__gguf_take_u32(r, &type) || !fg__gguf_take_u64(r, &offset)) return false;
    return fg__gguf_check_type(r, tensor, type) && fg__gguf_check_shape(r, tensor) &&
           fg__gguf_place(r, tensor, data_at, offset, alignment);
}

static bool fg__gguf_read_tensors(fg__gguf_reader *r, int count) {
    fg__gguf *gguf = r->gguf;
    uint64_t alignment = 0, data_at;
    size_t list_at = r->at;
    int i;
    gguf->tensors = (fg_tensor *)fg__calloc(&gguf->env, (size_t)count, sizeof(fg_tensor));
    if (!gguf->tensors) return fg__gguf_no_memory(r);
    if (!fg__gguf_read_alignment(r, &alignment) || !fg__gguf_skip_tensors(r, count)) return false;
    data_at = ((uint64_t)r->at + alignment - 1) / alignment * alignment;
    r->at = list_at;
    for (i = 0; i < count; i++)
        if (!fg__gguf_read_tensor(r, &gguf->tensors[i], data_at, alignment)) return false;
    return true;
}

static void fg__gguf_close(fg__gguf *gguf) {
    fg__env env;
    int i;
    if (!gguf) return;
    env = gguf->env;
    for (i = 0; i < gguf->n_parts; i++) fg__gguf_close(gguf->parts[i]); /* which have no parts of their own */
    fg__free(&env, gguf->parts);
    for (i = 0; i < gguf->n_values; i++) {
        fg__free(&env, (void *)(size_t)gguf->values[i].key.data);
        if (gguf->values[i].strings != &gguf->values[i].single) fg__free(&env, gguf->values[i].strings);
    }
    for (i = 0; i < gguf->n_tensors; i++) fg__free(&env, (void *)(size_t)gguf->tensors[i].name);
    fg__free(&env, gguf->values);
    fg__free(&env, gguf->value_index);
    fg__free(&env, gguf->tensors);
    fg__free(&env, gguf->tensor_index);
    fg__file_close(&gguf->file);
    fg__free(&env, gguf);
}

/* Reads one file, at `path` or in memory, without what makes a whole of split files. */
static fg_result fg__gguf_open_one(const fg__env *env, const char *path, const void *data, size_t size,
                                   fg__gguf **gguf) {
    fg__gguf_reader r;
    uint64_t n_tensors = 0, n_values = 0;
    memset(&r, 0, sizeof(r));
    *gguf = r.gguf = (fg__gguf *)fg__calloc(env, 1, sizeof(fg__gguf));
    if (!r.gguf) return FG_ERROR_OUT_OF_MEMORY;
    r.gguf->env = *env;
    r.data = (const unsigned char *)data;
    r.size = size;
    r.label = fg__gguf_label(path);
    if (path) {
        fg_result result = fg__file_open(&r.gguf->file, path);
        if (result) return result;
        r.data = r.gguf->file.data;
        r.size = r.gguf->file.size;
    }
    if (fg__gguf_read_header(&r, &n_tensors, &n_values) && fg__gguf_read_values(&r, (int)n_values))
        fg__gguf_read_tensors(&r, (int)n_tensors);
    return r.result;
}

/* Opens part `number` (1, 2, ...; the first is `gguf` itself) and moves its tensors over. */
static fg_result fg__gguf_add_part(fg__gguf *gguf, const char *path, int number, int64_t n_parts) {
    fg__gguf *part;
    fg_tensor *tensors;
    int64_t no = -1, count = -1;
    fg_result result = fg__gguf_open_one(&gguf->env, path, NULL, 0, &part);
    if (!part) return result;
    gguf->parts[gguf->n_parts++] = part;
    if (result) return result;
    if (!fg__gguf_get_i64(part, "split.no", &no) || !fg__gguf_get_i64(part, "split.count", &count) || no != number ||
        count != n_parts)
        return fg__fail(FG_ERROR_BAD_FILE, "%.200s: its values say it is part %lld of %lld",
                        fg__gguf_label(path), (long long)no + 1, (long long)count);
    if (part->n_tensors > INT_MAX - gguf->n_tensors)
        return fg__fail(FG_ERROR_BAD_FILE, "%.200s: too many tensors", fg__gguf_label(path));
    tensors = (fg_tensor *)fg__realloc(&gguf->env, gguf->tensors, (size_t)gguf->n_tensors + (size_t)part->n_tensors,
                                       sizeof(fg_tensor));
    if (!tensors) return FG_ERROR_OUT_OF_MEMORY;
    gguf->tensors = tensors;
    memcpy(tensors + gguf->n_tensors, part->tensors, (size_t)part->n_tensors * sizeof(fg_tensor));
    gguf->n_tensors += part->n_tensors;
    part->n_tensors = 0;
    return FG_OK;
}

/* The first file of a split model brings in the others, which lie beside it. */
static fg_result fg__gguf_open_parts(fg__gguf *gguf, const char *first, int64_t count) {
    char suffix[64], *path;
    size_t length = strlen(first);
    fg_result result = FG_OK;
    int i, n = snprintf(suffix, sizeof(suffix), "-%05d-of-%05d.gguf", 1, (int)count);
    if (length < (size_t)n || strcmp(first + length - n, suffix) != 0)
        return fg__fail(FG_ERROR_BAD_FILE, "%.200s: the first of %d files, so its name must end with '%s'",
                        fg__gguf_label(first), (int)count, suffix);
    gguf->parts = (fg__gguf **)fg__malloc(&gguf->env, (size_t)count - 1, sizeof(fg__gguf *));
    path = gguf->parts ? fg__strndup(&gguf->env, first, length) : NULL;
    if (!path) return FG_ERROR_OUT_OF_MEMORY;
    for (i = 1; i < count && !result; i++) {
        snprintf(suffix, sizeof(suffix), "-%05d-of-%05d.gguf", i + 1, (int)count);
        memcpy(path + length - n, suffix, (size_t)n);
        result = fg__gguf_add_part(gguf, path, i, count);
    }
    fg__free(&gguf->env, path);
    return result;
}

static fg_result fg__gguf_join(fg__gguf *gguf, const char *path) {
    int64_t count = 1, no = 0, n_tensors;
    const char *label = fg__gguf_label(path);
    fg_result result;
    if (fg__gguf_find(gguf, "split.count") && !fg__gguf_get_i64(gguf, "split.count", &count)) count = -1;
    if (fg__gguf_find(gguf, "split.no") && !fg__gguf_get_i64(gguf, "split.no", &no)) no = -1;
    if (count < 0 || count > FG__GGUF_MAX_PARTS || no < 0)
        return fg__fail(FG_ERROR_BAD_FILE, "%.200s: split.count or split.no is not a sensible number", label);
    if (count <= 1) return FG_OK;
    if (no != 0)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "%.200s: part %lld of %d; open the one named ...-00001-of-%05d.gguf",
                        label, (long long)no + 1, (int)count, (int)count);
    if (!path) return fg__fail(FG_ERROR_UNSUPPORTED, "%s: one of %d parts; only a path opens them", label, (int)count);
    result = fg__gguf_open_parts(gguf, path, count);
    if (result) return result;
    if (fg__gguf_get_i64(gguf, "split.tensors.count", &n_tensors) && n_tensors != gguf->n_tensors)
        return fg__fail(FG_ERROR_BAD_FILE, "%.200s: the %d parts have %d tensors together, not %lld", label, (int)count,
                        gguf->n_tensors, (long long)n_tensors);
    return FG_OK;
}

static fg_result fg__gguf_index_tensors(fg__gguf *gguf, const char *path) {
    int i;
    gguf->tensor_index = (fg__gguf_entry *)fg__malloc(&gguf->env, (size_t)gguf->n_tensors, sizeof(fg__gguf_entry));
    if (!gguf->tensor_index) return FG_ERROR_OUT_OF_MEMORY;
    for (i = 0; i < gguf->n_tensors; i++) {
        gguf->tensor_index[i].name.data = gguf->tensors[i].name;
        gguf->tensor_index[i].name.length = strlen(gguf->tensors[i].name);
        gguf->tensor_index[i].index = i;
    }
    i = fg__gguf_sort(gguf->tensor_index, gguf->n_tensors);
    if (i < 0) return FG_OK;
    return fg__fail(FG_ERROR_BAD_FILE, "%.200s: tensor '%.80s' is there twice", fg__gguf_label(path),
                    gguf->tensor_index[i].name.data);
}

/* Opens the file at `path`, and with it all others of a split model; or, with path NULL, a file of `size` bytes in
   memory, which must outlive it. Errors: IO, BAD_FILE, UNSUPPORTED, OUT_OF_MEMORY, INVALID_ARGUMENT. */
static fg_result fg__gguf_open(const fg__env *env, const char *path, const void *data, size_t size, fg__gguf **gguf) {
    fg_result result;
    *gguf = NULL;
    if (!path && !data) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "neither a path nor a file in memory was given");
    result = fg__gguf_open_one(env, path, data, size, gguf);
    if (!result) result = fg__gguf_join(*gguf, path);
    if (!result) result = fg__gguf_index_tensors(*gguf, path);
    if (!result) return FG_OK;
    fg__gguf_close(*gguf);
    *gguf = NULL;
    return result;
}
/* ================================================================================================
   >>quant  number formats: half, bfloat16 and GGML's block types, to float

   A block holds the quants q of 32 or 256 weights and their scales. All layouts are GGML's; reads may be unaligned.
   The products scale * q below fit the 24 bits of a float, so they are exact: only the final subtraction or addition
   rounds, and compilers that fuse it with the product give the same bits.
   ================================================================================================ */

static uint16_t fg__load_u16(const uint8_t *from) { return (uint16_t)(from[0] | from[1] << 8); }

static uint32_t fg__load_u32(const uint8_t *from) {
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

static float fg__float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint32_t fg__float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float fg__f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7FFF;
    if (magnitude >= 0x7C00) return fg__float_from_bits(sign | 0x7F800000 | magnitude << 13); /* infinity, NaN */
    if (magnitude >= 0x0400) return fg__float_from_bits(sign | ((magnitude << 13) + (112u << 23)));
    /* Denormals count units of 2^-24, the last bit of floats in [0.5, 1). */
    magnitude = fg__float_bits(fg__float_from_bits(0x3F000000 + magnitude) - 0.5f);
    return fg__float_from_bits(sign | magnitude);
}

/* Rounds to nearest, ties to even. */
static uint16_t fg__f32_to_f16(float value) {
    uint32_t bits = fg__float_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF, shift, rest, half;
    if (magnitude > 0x7F800000) return (uint16_t)(sign | 0x7E00 | (magnitude >> 13 & 0x03FF)); /* NaN, made quiet */
    if (magnitude >= 0x477FF000) return (uint16_t)(sign | 0x7C00);                             /* 65520 and more */
    if (magnitude >= 0x38800000)                                                               /* 2^-14 and more */
        return (uint16_t)(sign | (magnitude - (112u << 23) + 0x0FFF + (magnitude >> 13 & 1)) >> 13);
    shift = 126 - (magnitude >> 23);
    if (shift > 24) return (uint16_t)sign;
    magnitude = (magnitude & 0x007FFFFF) | 0x00800000;
    half = magnitude >> shift;
    rest = magnitude & ((1u << shift) - 1);
    if (rest > 1u << (shift - 1) || (rest == 1u << (shift - 1) && (half & 1))) half++;
    return (uint16_t)(sign | half);
}

static float fg__bf16_to_f32(uint16_t bits) { return fg__float_from_bits((uint32_t)bits << 16); }

/* Rounds to nearest, ties to even. */
static uint16_t fg__f32_to_bf16(float value) {
    uint32_t bits = fg__float_bits(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(bits >> 16 | 0x0040); /* NaN, made quiet */
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static void fg__dequantize_F32(const uint8_t *from, float *to, int64_t n) {
    for (; n > 0; n--, from += 4) *to++ = fg__float_from_bits(fg__load_u32(from));
}

static void fg__dequantize_F16(const uint8_t *from, float *to, int64_t n) {
    for (; n > 0; n--, from += 2) *to++ = fg__f16_to_f32(fg__load_u16(from));
}

static void fg__dequantize_BF16(const uint8_t *from, float *to, int64_t n) {
    for (; n > 0; n--, from += 2) *to++ = fg__bf16_to_f32(fg__load_u16(from));
}

/* Blocks of 32: f16 d; of Q4_1 and Q5_1 f16 m; of Q5 the fifth bits (u32, bit i of weight i); 16 bytes with weight i in
   the low half of byte i and weight i+16 in the high half. */

static void fg__dequantize_Q4_0(const uint8_t *from, float *to, int64_t n) {
    for (; n > 0; n -= 32, from += 18, to += 32) {
        float d = fg__f16_to_f32(fg__load_u16(from));
        int i;
        for (i = 0; i < 16; i++) {
            to[i] = d * (float)((from[2 + i] & 15) - 8);
            to[i + 16] = d * (float)((from[2 + i] >> 4) - 8);
        }
    }
}

static void fg__dequantize_Q4_1(const uint8_t *from, float *to, int64_t n) {
    for (; n > 0; n -= 32, from += 20, to += 32) {
        float d = fg__f16_to_f32(fg__load_u16(from)), m = fg__f16_to_f32(fg__load_u16(from + 2));
        int i;
        for (i = 0; i < 16; i++) {
            to[i] = d * (float)(from[4 + i] & 15) + m;
            to[i + 16] = d * (float)(from[4 + i] >> 4) + m;
        }
    }
}

static void fg__dequantize_Q5_0(const uint8_t *from, float *to, int64_t n) {
    for (; n > 0; n -= 32, from += 22, to += 32) {
        float d = fg__f16_to_f32(fg__load_u16(from));
        uint32_t high = fg__load_u32(from + 2);
        int i;
        for (i = 0; i < 16; i++) {
            to[i] = d * (float)((int)((from[6 + i] & 15) | (high >> i & 1) << 4) - 16);
            to[i + 16] = d * (float)((int)(from[6 + i] >> 4 | (high >> (i + 16) & 1) << 4) - 16);
        }
    }
}

static void fg__dequantize_Q5_1(const uint8_t *from, float *to, int64_t n) {
    for (; n > 0; n -= 32, from += 24, to += 32) {
        float d = fg__f16_to_f32(fg__load_u16(from)), m = fg__f16_to_f32(fg__load_u16(from + 2));
        uint32_t high = fg__load_u32(from + 4);
        int i;
        for (i = 0; i < 16; i++) {
            to[i] = d * (float)((from[8 + i] & 15) | (high >> i & 1) << 4) + m;
            to[i + 16] = d * (float)(from[8 + i] >> 4 | (high >> (i + 16) & 1) << 4) + m;
        }
    }
}

static void fg__dequantize_Q8_0(const uint8_t *from, float *to, int64_t n) {
    for (; n > 0; n -= 32, from += 34, to += 32) {
        float d = fg__f16_to_f32(fg__load_u16(from));
        int i;
        for (i = 0; i < 32; i++) to[i] = d * (float)(int8_t)from[2 + i];
    }
}

/* Blocks of 256 */

/* 16 bytes of scales (low half) and minimums (high half) of 16 weights each, 64 bytes of quants, f16 d, f16 dmin.
   Byte i of 32 in a half of the block holds weights i, i+32, i+64, i+96. */
static void fg__dequantize_Q2_K(const uint8_t *from, float *to, int64_t n) {
    for (; n > 0; n -= 256, from += 84, to += 256) {
        float d = fg__f16_to_f32(fg__load_u16(from + 80)), dmin = fg__f16_to_f32(fg__load_u16(from + 82));
        int i;
        for (i = 0; i < 256; i++) {
            int scale = from[i / 16], q = from[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
            to[i] = d * (float)(scale & 15) * (float)q - dmin * (float)(scale >> 4);
        }
    }
}

/* 32 bytes of third bits (bit j of byte i: weight i + 32j; 0 subtracts 4), 64 bytes of low bits as in Q2_K, 12 bytes of
   6-bit scales of 16 weights each (low 4 bits in 8 bytes, high 2 bits in 4), f16 d. */
static void fg__dequantize_Q3_K(const uint8_t *from, float *to, int64_t n) {
    for (; n > 0; n -= 256, from += 110, to += 256) {
        const uint8_t *scales = from + 96;
        float d = fg__f16_to_f32(fg__load_u16(from + 108));
        int i;
        for (i = 0; i < 256; i++) {
            int s = i / 16, low = scales[s % 8] >> (s / 8 * 4) & 15, high = scales[8 + s % 4] >> (s / 4 * 2) & 3;
            int q = from[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
            if (!(from[i % 32] >> (i / 32) & 1)) q -= 4;
            to[i] = d * (float)((low | high << 4) - 32) * (float)q;
        }
    }
}

/* Scale and minimum number i of 8, 6 bits each in 12 bytes: of the first four the low 6 bits of bytes 0-3 and 4-7; of
   the others the halves of bytes 8-11, with their upper two bits on top of bytes 0-3 and 4-7. */
static void fg__scale_min(const uint8_t *scales, int i, float *scale, float *min) {
    if (i < 4) {
        *scale = (float)(scales[i] & 63);
        *min = (float)(scales[i + 4] & 63);
    } else {
        *scale = (float)((scales[i + 4] & 15) | (scales[i - 4] >> 6) << 4);
        *min = (float)(scales[i + 4] >> 4 | (scales[i] >> 6) << 4);
    }
}

/* f16 d, f16 dmin, 12 bytes of scales and minimums of 32 weights each, 128 bytes of quants: 32 bytes for each 64
   weights, the first 32 in the low halves. */
static void fg__dequantize_Q4_K(const uint8_t *from, float *to, int64_t n) {
    for (; n > 0; n -= 256, from += 144, to += 256) {
        float d = fg__f16_to_f32(fg__load_u16(from)), dmin = fg__f16_to_f32(fg__load_u16(from + 2)), scale, min;
        int i, j;
        for (j = 0; j < 8; j++) {
            fg__scale_min(from + 4, j, &scale, &min);
            for (i = 0; i < 32; i++) {
                int q = from[16 + j / 2 * 32 + i] >> (j % 2 * 4) & 15;
                to[32 * j + i] = d * scale * (float)q - dmin * min;
            }
        }
    }
}

/* As Q4_K, with 32 bytes of fifth bits after the scales: bit j of byte i is of weight i + 32j. */
static void fg__dequantize_Q5_K(const uint8_t *from, float *to, int64_t n) {
    for (; n > 0; n -= 256, from += 176, to += 256) {
        float d = fg__f16_to_f32(fg__load_u16(from)), dmin = fg__f16_to_f32(fg__load_u16(from + 2)), scale, min;
        int i, j;
        for (j = 0; j < 8; j++) {
            fg__scale_min(from + 4, j, &scale, &min);
            for (i = 0; i < 32; i++) {
                int q = (from[48 + j / 2 * 32 + i] >> (j % 2 * 4) & 15) | (from[16 + i] >> j & 1) << 4;
                to[32 * j + i] = d * scale * (float)q - dmin * min;
            }
        }
    }
}

/* 128 bytes of low bits: 64 bytes for each 128 weights, the first 64 in the low halves; 64 bytes of high bits as in
   Q2_K; 16 int8 scales of 16 weights each; f16 d. */
static void fg__dequantize_Q6_K(const uint8_t *from, float *to, int64_t n) {
    for (; n > 0; n -= 256, from += 210, to += 256) {
        float d = fg__f16_to_f32(fg__load_u16(from + 208));
        int i;
        for (i = 0; i < 256; i++) {
            int low = from[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
            int high = from[128 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
            to[i] = d * (float)(int8_t)from[192 + i / 16] * (float)((low | high << 4) - 32);
        }
    }
}

/* The 16 values of IQ4_NL and IQ4_XS, denser around zero. */
static const int8_t fg__iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void fg__dequantize_IQ4_NL(const uint8_t *from, float *to, int64_t n) {
    for (; n > 0; n -= 32, from += 18, to += 32) {
        float d = fg__f16_to_f32(fg__load_u16(from));
        int i;
        for (i = 0; i < 16; i++) {
            to[i] = d * (float)fg__iq4_values[from[2 + i] & 15];
            to[i + 16] = d * (float)fg__iq4_values[from[2 + i] >> 4];
        }
    }
}

/* f16 d, u16 with the upper 2 bits and 4 bytes with the lower 4 bits of 8 scales, 16 bytes for each 32 weights. */
static void fg__dequantize_IQ4_XS(const uint8_t *from, float *to, int64_t n) {
    for (; n > 0; n -= 256, from += 136, to += 256) {
        float d = fg__f16_to_f32(fg__load_u16(from));
        int i, j, high = fg__load_u16(from + 2);
        for (j = 0; j < 8; j++) {
            float scale = d * (float)(((from[4 + j / 2] >> (j % 2 * 4) & 15) | (high >> (2 * j) & 3) << 4) - 32);
            for (i = 0; i < 16; i++) {
                to[32 * j + i] = scale * (float)fg__iq4_values[from[8 + 16 * j + i] & 15];
                to[32 * j + i + 16] = scale * (float)fg__iq4_values[from[8 + 16 * j + i] >> 4];
            }
        }
    }
}

/* OCP Microscaling MXFP4: a byte e for the scale 2^(e-127), then 4-bit floats (E2M1), here twice their value. */
static const int8_t fg__mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Half the scale of byte e: 2^(e-128). The first two are denormal floats. */
static float fg__mxfp4_half_scale(uint8_t e) {
    return fg__float_from_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

static void fg__dequantize_MXFP4(const uint8_t *from, float *to, int64_t n) {
    for (; n > 0; n -= 32, from += 17, to += 32) {
        float d = fg__mxfp4_half_scale(from[0]);
        int i;
        for (i = 0; i < 16; i++) {
            to[i] = d * (float)fg__mxfp4_values[from[1 + i] & 15];
            to[i + 16] = d * (float)fg__mxfp4_values[from[1 + i] >> 4];
        }
    }
}

/* Expands n weights, whole blocks of a known type: the reference for every faster path. */
static void fg__dequantize_row(fg_type type, const void *from, float *to, int64_t n) {
#define FG__CASE(name, id, elements, bytes) case id: fg__dequantize_##name((const uint8_t *)from, to, n); break;
    switch ((int)type) { FG_TYPES(FG__CASE) }
#undef FG__CASE
}

const char *fg_type_name(fg_type type) {
#define FG__CASE(name, id, elements, bytes) case id: return #name;
    switch ((int)type) { FG_TYPES(FG__CASE) }
#undef FG__CASE
    return "unknown";
}

int64_t fg_type_bytes(fg_type type, int64_t n_elements) {
    int64_t per_block = 1, block_bytes = 0;
#define FG__CASE(name, id, elements, bytes) case id: per_block = elements; block_bytes = bytes; break;
    switch ((int)type) { FG_TYPES(FG__CASE) }
#undef FG__CASE
    if (!block_bytes || n_elements < 0 || n_elements % per_block) return 0;
    if (n_elements / per_block > INT64_MAX / block_bytes) return 0;
    return n_elements / per_block * block_bytes;
}

fg_result fg_dequantize(fg_type type, const void *from, float *to, int64_t n) {
    if (n == 0 && fg_type_bytes(type, 256)) return FG_OK;
    if (!fg_type_bytes(type, n))
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "%lld weights are not whole blocks of type %d (%s)", (long long)n,
                        (int)type, fg_type_name(type));
    if (!from || !to) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "no memory to read or write was given");
    fg__dequantize_row(type, from, to, n);
    return FG_OK;
}
/* ================================================================================================
   >>unicode  character classes and composition tables, written by tests/make_unicode.py
   ================================================================================================ */

/* Classes of characters as Hugging Face tokenizers 0.23.3 has them, which differ in their version of Unicode. */
enum {
    FG__CHAR_LETTER = 1, /* \p{L} */
    FG__CHAR_NUMBER = 2, /* \p{N} */
    FG__CHAR_PUNCT = 4, /* \p{P} */
    FG__CHAR_SPACE = 8, /* \s */
    FG__CHAR_DIGIT = 16, /* what Digits splits: \p{N} of a newer Unicode */
    FG__CHAR_OLD_PUNCT = 32, /* what Punctuation splits: \p{P} of an older Unicode, and all of ASCII's */
    FG__CHAR_CASED = 64  /* the letters listed by DeepSeek LLM */
};

/* first code point << 8 | classes, up to the next entry */
static const uint32_t fg__unicode_classes[] = {
    0x0, 0x908, 0xE00, 0x2008, 0x2124, 0x2420, 0x2524, 0x2B20, 0x2C24, 0x3012, 0x3A24, 0x3C20, 0x3F24, 0x4141, 0x5B24,
    0x5E20, 0x5F24, 0x6020, 0x6141, 0x7B24, 0x7C20, 0x7D24, 0x7E20, 0x7F00, 0x8508, 0x8600, 0xA008, 0xA124, 0xA200,
    0xA724, 0xA800, 0xAA01, 0xAB24, 0xAC00, 0xB212, 0xB400, 0xB541, 0xB624, 0xB800, 0xB912, 0xBA01, 0xBB24, 0xBC12,
    0xBF24, 0xC041, 0xD700, 0xD841, 0xF700, 0xF841, 0x1BB01, 0x1BC41, 0x1C001, 0x1C441, 0x29401, 0x29541, 0x2B001,
    0x2C200, 0x2C601, 0x2D200, 0x2E001, 0x2E500, 0x2EC01, 0x2ED00, 0x2EE01, 0x2EF00, 0x37041, 0x37401, 0x37500,
    0x37641, 0x37800, 0x37A01, 0x37B41, 0x37E24, 0x37F41, 0x38000, 0x38641, 0x38724, 0x38841, 0x38B00, 0x38C41,
    0x38D00, 0x38E41, 0x3A200, 0x3A341, 0x3F600, 0x3F741, 0x48200, 0x48A41, 0x53000, 0x53141, 0x55700, 0x55901,
    0x55A24, 0x56001, 0x58924, 0x58B00, 0x5BE24, 0x5BF00, 0x5C024, 0x5C100, 0x5C324, 0x5C400, 0x5C624, 0x5C700,
    0x5D001, 0x5EB00, 0x5EF01, 0x5F324, 0x5F500, 0x60924, 0x60B00, 0x60C24, 0x60E00, 0x61B24, 0x61C00, 0x61D04,
    0x61E24, 0x62001, 0x64B00, 0x66012, 0x66A24, 0x66E01, 0x67000, 0x67101, 0x6D424, 0x6D501, 0x6D600, 0x6E501,
    0x6E700, 0x6EE01, 0x6F012, 0x6FA01, 0x6FD00, 0x6FF01, 0x70024, 0x70E00, 0x71001, 0x71100, 0x71201, 0x73000,
    0x74D01, 0x7A600, 0x7B101, 0x7B200, 0x7C012, 0x7CA01, 0x7EB00, 0x7F401, 0x7F600, 0x7F724, 0x7FA01, 0x7FB00,
    0x80001, 0x81600, 0x81A01, 0x81B00, 0x82401, 0x82500, 0x82801, 0x82900, 0x83024, 0x83F00, 0x84001, 0x85900,
    0x85E24, 0x85F00, 0x86001, 0x86B00, 0x87001, 0x88800, 0x88901, 0x88F00, 0x8A001, 0x8CA00, 0x90401, 0x93A00,
    0x93D01, 0x93E00, 0x95001, 0x95100, 0x95801, 0x96200, 0x96424, 0x96612, 0x97024, 0x97101, 0x98100, 0x98501,
    0x98D00, 0x98F01, 0x99100, 0x99301, 0x9A900, 0x9AA01, 0x9B100, 0x9B201, 0x9B300, 0x9B601, 0x9BA00, 0x9BD01,
    0x9BE00, 0x9CE01, 0x9CF00, 0x9DC01, 0x9DE00, 0x9DF01, 0x9E200, 0x9E612, 0x9F001, 0x9F200, 0x9F412, 0x9FA00,
    0x9FC01, 0x9FD04, 0x9FE00, 0xA0501, 0xA0B00, 0xA0F01, 0xA1100, 0xA1301, 0xA2900, 0xA2A01, 0xA3100, 0xA3201,
    0xA3400, 0xA3501, 0xA3700, 0xA3801, 0xA3A00, 0xA5901, 0xA5D00, 0xA5E01, 0xA5F00, 0xA6612, 0xA7000, 0xA7201,
    0xA7500, 0xA7604, 0xA7700, 0xA8501, 0xA8E00, 0xA8F01, 0xA9200, 0xA9301, 0xAA900, 0xAAA01, 0xAB100, 0xAB201,
    0xAB400, 0xAB501, 0xABA00, 0xABD01, 0xABE00, 0xAD001, 0xAD100, 0xAE001, 0xAE200, 0xAE612, 0xAF024, 0xAF100,
    0xAF901, 0xAFA00, 0xB0501, 0xB0D00, 0xB0F01, 0xB1100, 0xB1301, 0xB2900, 0xB2A01, 0xB3100, 0xB3201, 0xB3400,
    0xB3501, 0xB3A00, 0xB3D01, 0xB3E00, 0xB5C01, 0xB5E00, 0xB5F01, 0xB6200, 0xB6612, 0xB7000, 0xB7101, 0xB7212,
    0xB7800, 0xB8301, 0xB8400, 0xB8501, 0xB8B00, 0xB8E01, 0xB9100, 0xB9201, 0xB9600, 0xB9901, 0xB9B00, 0xB9C01,
    0xB9D00, 0xB9E01, 0xBA000, 0xBA301, 0xBA500, 0xBA801, 0xBAB00, 0xBAE01, 0xBBA00, 0xBD001, 0xBD100, 0xBE612,
    0xBF300, 0xC0501, 0xC0D00, 0xC0E01, 0xC1100, 0xC1201, 0xC2900, 0xC2A01, 0xC3A00, 0xC3D01, 0xC3E00, 0xC5801,
    0xC5B00, 0xC5D01, 0xC5E00, 0xC6001, 0xC6200, 0xC6612, 0xC7000, 0xC7704, 0xC7812, 0xC7F00, 0xC8001, 0xC8100,
    0xC8404, 0xC8501, 0xC8D00, 0xC8E01, 0xC9100, 0xC9201, 0xCA900, 0xCAA01, 0xCB400, 0xCB501, 0xCBA00, 0xCBD01,
    0xCBE00, 0xCDD01, 0xCDF00, 0xCE001, 0xCE200, 0xCE612, 0xCF000, 0xCF101, 0xCF300, 0xD0401, 0xD0D00, 0xD0E01,
    0xD1100, 0xD1201, 0xD3B00, 0xD3D01, 0xD3E00, 0xD4E01, 0xD4F00, 0xD5401, 0xD5700, 0xD5812, 0xD5F01, 0xD6200,
    0xD6612, 0xD7900, 0xD7A01, 0xD8000, 0xD8501, 0xD9700, 0xD9A01, 0xDB200, 0xDB301, 0xDBC00, 0xDBD01, 0xDBE00,
    0xDC001, 0xDC700, 0xDE612, 0xDF000, 0xDF424, 0xDF500, 0xE0101, 0xE3100, 0xE3201, 0xE3400, 0xE4001, 0xE4700,
    0xE4F24, 0xE5012, 0xE5A24, 0xE5C00, 0xE8101, 0xE8300, 0xE8401, 0xE8500, 0xE8601, 0xE8B00, 0xE8C01, 0xEA400,
    0xEA501, 0xEA600, 0xEA701, 0xEB100, 0xEB201, 0xEB400, 0xEBD01, 0xEBE00, 0xEC001, 0xEC500, 0xEC601, 0xEC700,
    0xED012, 0xEDA00, 0xEDC01, 0xEE000, 0xF0001, 0xF0100, 0xF0424, 0xF1300, 0xF1424, 0xF1500, 0xF2012, 0xF3400,
    0xF3A24, 0xF3E00, 0xF4001, 0xF4800, 0xF4901, 0xF6D00, 0xF8524, 0xF8600, 0xF8801, 0xF8D00, 0xFD024, 0xFD500,
    0xFD924, 0xFDB00, 0x100001, 0x102B00, 0x103F01, 0x104012, 0x104A24, 0x105001, 0x105600, 0x105A01, 0x105E00,
    0x106101, 0x106200, 0x106501, 0x106700, 0x106E01, 0x107100, 0x107501, 0x108200, 0x108E01, 0x108F00, 0x109012,
    0x109A00, 0x10A041, 0x10C600, 0x10C701, 0x10C800, 0x10CD01, 0x10CE00, 0x10D001, 0x10FB24, 0x10FC01, 0x124900,
    0x124A01, 0x124E00, 0x125001, 0x125700, 0x125801, 0x125900, 0x125A01, 0x125E00, 0x126001, 0x128900, 0x128A01,
    0x128E00, 0x129001, 0x12B100, 0x12B201, 0x12B600, 0x12B801, 0x12BF00, 0x12C001, 0x12C100, 0x12C201, 0x12C600,
    0x12C801, 0x12D700, 0x12D801, 0x131100, 0x131201, 0x131600, 0x131801, 0x135B00, 0x136024, 0x136912, 0x137D00,
    0x138001, 0x139000, 0x13A041, 0x13F600, 0x13F841, 0x13FE00, 0x140024, 0x140101, 0x166D20, 0x166E24, 0x166F01,
    0x168008, 0x168101, 0x169B24, 0x169D00, 0x16A001, 0x16EB24, 0x16EE12, 0x16F101, 0x16F900, 0x170001, 0x171200,
    0x171F01, 0x173200, 0x173524, 0x173700, 0x174001, 0x175200, 0x176001, 0x176D00, 0x176E01, 0x177100, 0x178001,
    0x17B400, 0x17D424, 0x17D701, 0x17D824, 0x17DB00, 0x17DC01, 0x17DD00, 0x17E012, 0x17EA00, 0x17F012, 0x17FA00,
    0x180024, 0x180B00, 0x181012, 0x181A00, 0x182001, 0x187900, 0x188001, 0x188500, 0x188701, 0x18A900, 0x18AA01,
    0x18AB00, 0x18B001, 0x18F600, 0x190001, 0x191F00, 0x194424, 0x194612, 0x195001, 0x196E00, 0x197001, 0x197500,
    0x198001, 0x19AC00, 0x19B001, 0x19CA00, 0x19D012, 0x19DB00, 0x1A0001, 0x1A1700, 0x1A1E24, 0x1A2001, 0x1A5500,
    0x1A8012, 0x1A8A00, 0x1A9012, 0x1A9A00, 0x1AA024, 0x1AA701, 0x1AA824, 0x1AAE00, 0x1B0501, 0x1B3400, 0x1B4501,
    0x1B4D00, 0x1B4E04, 0x1B5012, 0x1B5A24, 0x1B6100, 0x1B7D04, 0x1B8000, 0x1B8301, 0x1BA100, 0x1BAE01, 0x1BB012,
    0x1BBA01, 0x1BE600, 0x1BFC24, 0x1C0001, 0x1C2400, 0x1C3B24, 0x1C4012, 0x1C4A00, 0x1C4D01, 0x1C5012, 0x1C5A01,
    0x1C7E24, 0x1C8001, 0x1C8B00, 0x1C9041, 0x1CBB00, 0x1CBD41, 0x1CC024, 0x1CC800, 0x1CD324, 0x1CD400, 0x1CE901,
    0x1CED00, 0x1CEE01, 0x1CF400, 0x1CF501, 0x1CF700, 0x1CFA01, 0x1CFB00, 0x1D0041, 0x1D2C01, 0x1D6B41, 0x1D7801,
    0x1D7941, 0x1D9B01, 0x1DC000, 0x1E0041, 0x1F1600, 0x1F1841, 0x1F1E00, 0x1F2041, 0x1F4600, 0x1F4841, 0x1F4E00,
    0x1F5041, 0x1F5800, 0x1F5941, 0x1F5A00, 0x1F5B41, 0x1F5C00, 0x1F5D41, 0x1F5E00, 0x1F5F41, 0x1F7E00, 0x1F8041,
    0x1FB500, 0x1FB641, 0x1FBD00, 0x1FBE41, 0x1FBF00, 0x1FC241, 0x1FC500, 0x1FC641, 0x1FCD00, 0x1FD041, 0x1FD400,
    0x1FD641, 0x1FDC00, 0x1FE041, 0x1FED00, 0x1FF241, 0x1FF500, 0x1FF641, 0x1FFD00, 0x200008, 0x200B00, 0x201024,
    0x202808, 0x202A00, 0x202F08, 0x203024, 0x204400, 0x204524, 0x205200, 0x205324, 0x205F08, 0x206000, 0x207012,
    0x207101, 0x207200, 0x207412, 0x207A00, 0x207D24, 0x207F01, 0x208012, 0x208A00, 0x208D24, 0x208F00, 0x209001,
    0x209D00, 0x210241, 0x210300, 0x210741, 0x210800, 0x210A41, 0x211400, 0x211541, 0x211600, 0x211941, 0x211E00,
    0x212441, 0x212500, 0x212641, 0x212700, 0x212841, 0x212900, 0x212A41, 0x212E00, 0x212F41, 0x213501, 0x213941,
    0x213A00, 0x213C41, 0x214000, 0x214541, 0x214A00, 0x214E41, 0x214F00, 0x215012, 0x218341, 0x218512, 0x218A00,
    0x230824, 0x230C00, 0x232924, 0x232B00, 0x246012, 0x249C00, 0x24EA12, 0x250000, 0x276824, 0x277612, 0x279400,
    0x27C524, 0x27C700, 0x27E624, 0x27F000, 0x298324, 0x299900, 0x29D824, 0x29DC00, 0x29FC24, 0x29FE00, 0x2C0041,
    0x2C7C01, 0x2C7E41, 0x2CE500, 0x2CEB41, 0x2CEF00, 0x2CF241, 0x2CF400, 0x2CF924, 0x2CFD12, 0x2CFE24, 0x2D0001,
    0x2D2600, 0x2D2701, 0x2D2800, 0x2D2D01, 0x2D2E00, 0x2D3001, 0x2D6800, 0x2D6F01, 0x2D7024, 0x2D7100, 0x2D8001,
    0x2D9700, 0x2DA001, 0x2DA700, 0x2DA801, 0x2DAF00, 0x2DB001, 0x2DB700, 0x2DB801, 0x2DBF00, 0x2DC001, 0x2DC700,
    0x2DC801, 0x2DCF00, 0x2DD001, 0x2DD700, 0x2DD801, 0x2DDF00, 0x2E0024, 0x2E2F01, 0x2E3024, 0x2E4304, 0x2E5000,
    0x2E5204, 0x2E5E00, 0x300008, 0x300124, 0x300400, 0x300501, 0x300712, 0x300824, 0x301200, 0x301424, 0x302000,
    0x302112, 0x302A00, 0x303024, 0x303101, 0x303600, 0x303812, 0x303B01, 0x303D24, 0x303E00, 0x304101, 0x309700,
    0x309D01, 0x30A024, 0x30A101, 0x30FB24, 0x30FC01, 0x310000, 0x310501, 0x313000, 0x313101, 0x318F00, 0x319212,
    0x319600, 0x31A001, 0x31C000, 0x31F001, 0x320000, 0x322012, 0x322A00, 0x324812, 0x325000, 0x325112, 0x326000,
    0x328012, 0x328A00, 0x32B112, 0x32C000, 0x340001, 0x4DC000, 0x4E0001, 0xA48D00, 0xA4D001, 0xA4FE24, 0xA50001,
    0xA60D24, 0xA61001, 0xA62012, 0xA62A01, 0xA62C00, 0xA64041, 0xA66E01, 0xA66F00, 0xA67324, 0xA67400, 0xA67E24,
    0xA67F01, 0xA68041, 0xA69C01, 0xA69E00, 0xA6A001, 0xA6E612, 0xA6F000, 0xA6F224, 0xA6F800, 0xA71701, 0xA72000,
    0xA72241, 0xA77001, 0xA77141, 0xA78801, 0xA78900, 0xA78B41, 0xA78F01, 0xA7CE00, 0xA7D001, 0xA7D200, 0xA7D301,
    0xA7D400, 0xA7D501, 0xA7DD00, 0xA7F201, 0xA80200, 0xA80301, 0xA80600, 0xA80701, 0xA80B00, 0xA80C01, 0xA82300,
    0xA83012, 0xA83600, 0xA84001, 0xA87424, 0xA87800, 0xA88201, 0xA8B400, 0xA8CE24, 0xA8D012, 0xA8DA00, 0xA8F201,
    0xA8F824, 0xA8FB01, 0xA8FC24, 0xA8FD01, 0xA8FF00, 0xA90012, 0xA90A01, 0xA92600, 0xA92E24, 0xA93001, 0xA94700,
    0xA95F24, 0xA96001, 0xA97D00, 0xA98401, 0xA9B300, 0xA9C124, 0xA9CE00, 0xA9CF01, 0xA9D012, 0xA9DA00, 0xA9DE24,
    0xA9E001, 0xA9E500, 0xA9E601, 0xA9F012, 0xA9FA01, 0xA9FF00, 0xAA0001, 0xAA2900, 0xAA4001, 0xAA4300, 0xAA4401,
    0xAA4C00, 0xAA5012, 0xAA5A00, 0xAA5C24, 0xAA6001, 0xAA7700, 0xAA7A01, 0xAA7B00, 0xAA7E01, 0xAAB000, 0xAAB101,
    0xAAB200, 0xAAB501, 0xAAB700, 0xAAB901, 0xAABE00, 0xAAC001, 0xAAC100, 0xAAC201, 0xAAC300, 0xAADB01, 0xAADE24,
    0xAAE001, 0xAAEB00, 0xAAF024, 0xAAF201, 0xAAF500, 0xAB0101, 0xAB0700, 0xAB0901, 0xAB0F00, 0xAB1101, 0xAB1700,
    0xAB2001, 0xAB2700, 0xAB2801, 0xAB2F00, 0xAB3001, 0xAB5B00, 0xAB5C01, 0xAB6A00, 0xAB7041, 0xABC001, 0xABE300,
    0xABEB24, 0xABEC00, 0xABF012, 0xABFA00, 0xAC0001, 0xD7A400, 0xD7B001, 0xD7C700, 0xD7CB01, 0xD7FC00, 0xF90001,
    0xFA6E00, 0xFA7001, 0xFADA00, 0xFB0041, 0xFB0700, 0xFB1341, 0xFB1800, 0xFB1D01, 0xFB1E00, 0xFB1F01, 0xFB2900,
    0xFB2A01, 0xFB3700, 0xFB3801, 0xFB3D00, 0xFB3E01, 0xFB3F00, 0xFB4001, 0xFB4200, 0xFB4301, 0xFB4500, 0xFB4601,
    0xFBB200, 0xFBD301, 0xFD3E24, 0xFD4000, 0xFD5001, 0xFD9000, 0xFD9201, 0xFDC800, 0xFDF001, 0xFDFC00, 0xFE1024,
    0xFE1A00, 0xFE3024, 0xFE5300, 0xFE5424, 0xFE6200, 0xFE6324, 0xFE6400, 0xFE6824, 0xFE6900, 0xFE6A24, 0xFE6C00,
    0xFE7001, 0xFE7500, 0xFE7601, 0xFEFD00, 0xFF0124, 0xFF0400, 0xFF0524, 0xFF0B00, 0xFF0C24, 0xFF1012, 0xFF1A24,
    0xFF1C00, 0xFF1F24, 0xFF2141, 0xFF3B24, 0xFF3E00, 0xFF3F24, 0xFF4000, 0xFF4141, 0xFF5B24, 0xFF5C00, 0xFF5D24,
    0xFF5E00, 0xFF5F24, 0xFF6601, 0xFFBF00, 0xFFC201, 0xFFC800, 0xFFCA01, 0xFFD000, 0xFFD201, 0xFFD800, 0xFFDA01,
    0xFFDD00, 0x1000001, 0x1000C00, 0x1000D01, 0x1002700, 0x1002801, 0x1003B00, 0x1003C01, 0x1003E00, 0x1003F01,
    0x1004E00, 0x1005001, 0x1005E00, 0x1008001, 0x100FB00, 0x1010024, 0x1010300, 0x1010712, 0x1013400, 0x1014012,
    0x1017900, 0x1018A12, 0x1018C00, 0x1028001, 0x1029D00, 0x102A001, 0x102D100, 0x102E112, 0x102FC00, 0x1030001,
    0x1032012, 0x1032400, 0x1032D01, 0x1034112, 0x1034201, 0x1034A12, 0x1034B00, 0x1035001, 0x1037600, 0x1038001,
    0x1039E00, 0x1039F24, 0x103A001, 0x103C400, 0x103C801, 0x103D024, 0x103D112, 0x103D600, 0x1040041, 0x1045001,
    0x1049E00, 0x104A012, 0x104AA00, 0x104B041, 0x104D400, 0x104D841, 0x104FC00, 0x1050001, 0x1052800, 0x1053001,
    0x1056400, 0x1056F24, 0x1057001, 0x1057B00, 0x1057C01, 0x1058B00, 0x1058C01, 0x1059300, 0x1059401, 0x1059600,
    0x1059701, 0x105A200, 0x105A301, 0x105B200, 0x105B301, 0x105BA00, 0x105BB01, 0x105BD00, 0x105C001, 0x105F400,
    0x1060001, 0x1073700, 0x1074001, 0x1075600, 0x1076001, 0x1076800, 0x1078001, 0x1078600, 0x1078701, 0x107B100,
    0x107B201, 0x107BB00, 0x1080001, 0x1080600, 0x1080801, 0x1080900, 0x1080A01, 0x1083600, 0x1083701, 0x1083900,
    0x1083C01, 0x1083D00, 0x1083F01, 0x1085600, 0x1085724, 0x1085812, 0x1086001, 0x1087700, 0x1087912, 0x1088001,
    0x1089F00, 0x108A712, 0x108B000, 0x108E001, 0x108F300, 0x108F401, 0x108F600, 0x108FB12, 0x1090001, 0x1091612,
    0x1091C00, 0x1091F24, 0x1092001, 0x1093A00, 0x1093F24, 0x1094000, 0x1098001, 0x109B800, 0x109BC12, 0x109BE01,
    0x109C012, 0x109D000, 0x109D212, 0x10A0001, 0x10A0100, 0x10A1001, 0x10A1400, 0x10A1501, 0x10A1800, 0x10A1901,
    0x10A3600, 0x10A4012, 0x10A4900, 0x10A5024, 0x10A5900, 0x10A6001, 0x10A7D12, 0x10A7F24, 0x10A8001, 0x10A9D12,
    0x10AA000, 0x10AC001, 0x10AC800, 0x10AC901, 0x10AE500, 0x10AEB12, 0x10AF024, 0x10AF700, 0x10B0001, 0x10B3600,
    0x10B3924, 0x10B4001, 0x10B5600, 0x10B5812, 0x10B6001, 0x10B7300, 0x10B7812, 0x10B8001, 0x10B9200, 0x10B9924,
    0x10B9D00, 0x10BA912, 0x10BB000, 0x10C0001, 0x10C4900, 0x10C8041, 0x10CB300, 0x10CC041, 0x10CF300, 0x10CFA12,
    0x10D0001, 0x10D2400, 0x10D3012, 0x10D3A00, 0x10D4012, 0x10D4A01, 0x10D6600, 0x10D6E04, 0x10D6F01, 0x10D8600,
    0x10E6012, 0x10E7F00, 0x10E8001, 0x10EAA00, 0x10EAD04, 0x10EAE00, 0x10EB001, 0x10EB200, 0x10EC201, 0x10EC500,
    0x10F0001, 0x10F1D12, 0x10F2701, 0x10F2800, 0x10F3001, 0x10F4600, 0x10F5112, 0x10F5504, 0x10F5A00, 0x10F7001,
    0x10F8200, 0x10F8604, 0x10F8A00, 0x10FB001, 0x10FC512, 0x10FCC00, 0x10FE001, 0x10FF700, 0x1100301, 0x1103800,
    0x1104724, 0x1104E00, 0x1105212, 0x1107000, 0x1107101, 0x1107300, 0x1107501, 0x1107600, 0x1108301, 0x110B000,
    0x110BB24, 0x110BD00, 0x110BE24, 0x110C200, 0x110D001, 0x110E900, 0x110F012, 0x110FA00, 0x1110301, 0x1112700,
    0x1113612, 0x1114024, 0x1114401, 0x1114500, 0x1114701, 0x1114800, 0x1115001, 0x1117300, 0x1117424, 0x1117601,
    0x1117700, 0x1118301, 0x111B300, 0x111C101, 0x111C524, 0x111C920, 0x111CA00, 0x111CD24, 0x111CE00, 0x111D012,
    0x111DA01, 0x111DB24, 0x111DC01, 0x111DD24, 0x111E000, 0x111E112, 0x111F500, 0x1120001, 0x1121200, 0x1121301,
    0x1122C00, 0x1123824, 0x1123E00, 0x1123F01, 0x1124100, 0x1128001, 0x1128700, 0x1128801, 0x1128900, 0x1128A01,
    0x1128E00, 0x1128F01, 0x1129E00, 0x1129F01, 0x112A924, 0x112AA00, 0x112B001, 0x112DF00, 0x112F012, 0x112FA00,
    0x1130501, 0x1130D00, 0x1130F01, 0x1131100, 0x1131301, 0x1132900, 0x1132A01, 0x1133100, 0x1133201, 0x1133400,
    0x1133501, 0x1133A00, 0x1133D01, 0x1133E00, 0x1135001, 0x1135100, 0x1135D01, 0x1136200, 0x1138001, 0x1138A00,
    0x1138B01, 0x1138C00, 0x1138E01, 0x1138F00, 0x1139001, 0x113B600, 0x113B701, 0x113B800, 0x113D101, 0x113D200,
    0x113D301, 0x113D404, 0x113D600, 0x113D704, 0x113D900, 0x1140001, 0x1143500, 0x1144701, 0x1144B04, 0x1145012,
    0x1145A04, 0x1145C00, 0x1145D04, 0x1145E00, 0x1145F01, 0x1146200, 0x1148001, 0x114B000, 0x114C401, 0x114C624,
    0x114C701, 0x114C800, 0x114D012, 0x114DA00, 0x1158001, 0x115AF00, 0x115C124, 0x115D801, 0x115DC00, 0x1160001,
    0x1163000, 0x1164124, 0x1164401, 0x1164500, 0x1165012, 0x1165A00, 0x1166004, 0x1166D00, 0x1168001, 0x116AB00,
    0x116B801, 0x116B904, 0x116BA00, 0x116C012, 0x116CA00, 0x116D012, 0x116E400, 0x1170001, 0x1171B00, 0x1173012,
    0x1173C24, 0x1173F00, 0x1174001, 0x1174700, 0x1180001, 0x1182C00, 0x1183B04, 0x1183C00, 0x118A041, 0x118E012,
    0x118F300, 0x118FF01, 0x1190700, 0x1190901, 0x1190A00, 0x1190C01, 0x1191400, 0x1191501, 0x1191700, 0x1191801,
    0x1193000, 0x1193F01, 0x1194000, 0x1194101, 0x1194200, 0x1194404, 0x1194700, 0x1195012, 0x1195A00, 0x119A001,
    0x119A800, 0x119AA01, 0x119D100, 0x119E101, 0x119E204, 0x119E301, 0x119E400, 0x11A0001, 0x11A0100, 0x11A0B01,
    0x11A3300, 0x11A3A01, 0x11A3B00, 0x11A3F04, 0x11A4700, 0x11A5001, 0x11A5100, 0x11A5C01, 0x11A8A00, 0x11A9A04,
    0x11A9D01, 0x11A9E04, 0x11AA300, 0x11AB001, 0x11AF900, 0x11B0004, 0x11B0A00, 0x11BC001, 0x11BE104, 0x11BE200,
    0x11BF012, 0x11BFA00, 0x11C0001, 0x11C0900, 0x11C0A01, 0x11C2F00, 0x11C4001, 0x11C4104, 0x11C4600, 0x11C5012,
    0x11C6D00, 0x11C7004, 0x11C7201, 0x11C9000, 0x11D0001, 0x11D0700, 0x11D0801, 0x11D0A00, 0x11D0B01, 0x11D3100,
    0x11D4601, 0x11D4700, 0x11D5012, 0x11D5A00, 0x11D6001, 0x11D6600, 0x11D6701, 0x11D6900, 0x11D6A01, 0x11D8A00,
    0x11D9801, 0x11D9900, 0x11DA012, 0x11DAA00, 0x11DE010, 0x11DEA00, 0x11EE001, 0x11EF300, 0x11EF704, 0x11EF900,
    0x11F0201, 0x11F0300, 0x11F0401, 0x11F1100, 0x11F1201, 0x11F3400, 0x11F4304, 0x11F5012, 0x11F5A00, 0x11FB001,
    0x11FB100, 0x11FC012, 0x11FD500, 0x11FFF04, 0x1200001, 0x1239A00, 0x1240012, 0x1246F00, 0x1247024, 0x1247500,
    0x1248001, 0x1254400, 0x12F9001, 0x12FF104, 0x12FF300, 0x1300001, 0x1343000, 0x1344101, 0x1344700, 0x1346001,
    0x143FB00, 0x1440001, 0x1464700, 0x1610001, 0x1611E00, 0x1613012, 0x1613A00, 0x1680001, 0x16A3900, 0x16A4001,
    0x16A5F00, 0x16A6012, 0x16A6A00, 0x16A6E24, 0x16A7001, 0x16ABF00, 0x16AC012, 0x16ACA00, 0x16AD001, 0x16AEE00,
    0x16AF524, 0x16AF600, 0x16B0001, 0x16B3000, 0x16B3724, 0x16B3C00, 0x16B4001, 0x16B4424, 0x16B4500, 0x16B5012,
    0x16B5A00, 0x16B5B12, 0x16B6200, 0x16B6301, 0x16B7800, 0x16B7D01, 0x16B9000, 0x16D4001, 0x16D6D04, 0x16D7012,
    0x16D7A00, 0x16E4001, 0x16E8012, 0x16E9704, 0x16E9B00, 0x16F0001, 0x16F4B00, 0x16F5001, 0x16F5100, 0x16F9301,
    0x16FA000, 0x16FE001, 0x16FE204, 0x16FE301, 0x16FE400, 0x16FF410, 0x16FF700, 0x1700001, 0x187F800, 0x1880001,
    0x18CD600, 0x18CFF01, 0x18D0900, 0x1AFF001, 0x1AFF400, 0x1AFF501, 0x1AFFC00, 0x1AFFD01, 0x1AFFF00, 0x1B00001,
    0x1B12300, 0x1B13201, 0x1B13300, 0x1B15001, 0x1B15300, 0x1B15501, 0x1B15600, 0x1B16401, 0x1B16800, 0x1B17001,
    0x1B2FC00, 0x1BC0001, 0x1BC6B00, 0x1BC7001, 0x1BC7D00, 0x1BC8001, 0x1BC8900, 0x1BC9001, 0x1BC9A00, 0x1BC9F24,
    0x1BCA000, 0x1CCF012, 0x1CCFA00, 0x1D2C012, 0x1D2D400, 0x1D2E012, 0x1D2F400, 0x1D36012, 0x1D37900, 0x1D40001,
    0x1D45500, 0x1D45601, 0x1D49D00, 0x1D49E01, 0x1D4A000, 0x1D4A201, 0x1D4A300, 0x1D4A501, 0x1D4A700, 0x1D4A901,
    0x1D4AD00, 0x1D4AE01, 0x1D4BA00, 0x1D4BB01, 0x1D4BC00, 0x1D4BD01, 0x1D4C400, 0x1D4C501, 0x1D50600, 0x1D50701,
    0x1D50B00, 0x1D50D01, 0x1D51500, 0x1D51601, 0x1D51D00, 0x1D51E01, 0x1D53A00, 0x1D53B01, 0x1D53F00, 0x1D54001,
    0x1D54500, 0x1D54601, 0x1D54700, 0x1D54A01, 0x1D55100, 0x1D55201, 0x1D6A600, 0x1D6A801, 0x1D6C100, 0x1D6C201,
    0x1D6DB00, 0x1D6DC01, 0x1D6FB00, 0x1D6FC01, 0x1D71500, 0x1D71601, 0x1D73500, 0x1D73601, 0x1D74F00, 0x1D75001,
    0x1D76F00, 0x1D77001, 0x1D78900, 0x1D78A01, 0x1D7A900, 0x1D7AA01, 0x1D7C300, 0x1D7C401, 0x1D7CC00, 0x1D7CE12,
    0x1D80000, 0x1DA8724, 0x1DA8C00, 0x1DF0001, 0x1DF1F00, 0x1DF2501, 0x1DF2B00, 0x1E03001, 0x1E06E00, 0x1E10001,
    0x1E12D00, 0x1E13701, 0x1E13E00, 0x1E14012, 0x1E14A00, 0x1E14E01, 0x1E14F00, 0x1E29001, 0x1E2AE00, 0x1E2C001,
    0x1E2EC00, 0x1E2F012, 0x1E2FA00, 0x1E4D001, 0x1E4EC00, 0x1E4F012, 0x1E4FA00, 0x1E5D001, 0x1E5EE00, 0x1E5F001,
    0x1E5F112, 0x1E5FB00, 0x1E5FF04, 0x1E60000, 0x1E7E001, 0x1E7E700, 0x1E7E801, 0x1E7EC00, 0x1E7ED01, 0x1E7EF00,
    0x1E7F001, 0x1E7FF00, 0x1E80001, 0x1E8C500, 0x1E8C712, 0x1E8D000, 0x1E90041, 0x1E94400, 0x1E94B01, 0x1E94C00,
    0x1E95012, 0x1E95A00, 0x1E95E04, 0x1E96000, 0x1EC7112, 0x1ECAC00, 0x1ECAD12, 0x1ECB000, 0x1ECB112, 0x1ECB500,
    0x1ED0112, 0x1ED2E00, 0x1ED2F12, 0x1ED3E00, 0x1EE0001, 0x1EE0400, 0x1EE0501, 0x1EE2000, 0x1EE2101, 0x1EE2300,
    0x1EE2401, 0x1EE2500, 0x1EE2701, 0x1EE2800, 0x1EE2901, 0x1EE3300, 0x1EE3401, 0x1EE3800, 0x1EE3901, 0x1EE3A00,
    0x1EE3B01, 0x1EE3C00, 0x1EE4201, 0x1EE4300, 0x1EE4701, 0x1EE4800, 0x1EE4901, 0x1EE4A00, 0x1EE4B01, 0x1EE4C00,
    0x1EE4D01, 0x1EE5000, 0x1EE5101, 0x1EE5300, 0x1EE5401, 0x1EE5500, 0x1EE5701, 0x1EE5800, 0x1EE5901, 0x1EE5A00,
    0x1EE5B01, 0x1EE5C00, 0x1EE5D01, 0x1EE5E00, 0x1EE5F01, 0x1EE6000, 0x1EE6101, 0x1EE6300, 0x1EE6401, 0x1EE6500,
    0x1EE6701, 0x1EE6B00, 0x1EE6C01, 0x1EE7300, 0x1EE7401, 0x1EE7800, 0x1EE7901, 0x1EE7D00, 0x1EE7E01, 0x1EE7F00,
    0x1EE8001, 0x1EE8A00, 0x1EE8B01, 0x1EE9C00, 0x1EEA101, 0x1EEA400, 0x1EEA501, 0x1EEAA00, 0x1EEAB01, 0x1EEBC00,
    0x1F10012, 0x1F10D00, 0x1FBF012, 0x1FBFA00, 0x2000001, 0x2A6E000, 0x2A70001, 0x2B73A00, 0x2B74001, 0x2B81E00,
    0x2B82001, 0x2CEA200, 0x2CEB001, 0x2EBE100, 0x2EBF001, 0x2EE5E00, 0x2F80001, 0x2FA1E00, 0x3000001, 0x3134B00,
    0x3135001, 0x323B000
};

/* first code point << 8 | canonical combining class, up to the next entry (NFC as of Unicode 9) */
static const uint32_t fg__unicode_marks[] = {
    0x0, 0x300E6, 0x315E8, 0x316DC, 0x31AE8, 0x31BD8, 0x31CDC, 0x321CA, 0x323DC, 0x327CA, 0x329DC, 0x33401, 0x339DC,
    0x33DE6, 0x345F0, 0x346E6, 0x347DC, 0x34AE6, 0x34DDC, 0x34F00, 0x350E6, 0x353DC, 0x357E6, 0x358E8, 0x359DC,
    0x35BE6, 0x35CE9, 0x35DEA, 0x35FE9, 0x360EA, 0x362E9, 0x363E6, 0x37000, 0x483E6, 0x48800, 0x591DC, 0x592E6,
    0x596DC, 0x597E6, 0x59ADE, 0x59BDC, 0x59CE6, 0x5A2DC, 0x5A8E6, 0x5AADC, 0x5ABE6, 0x5ADDE, 0x5AEE4, 0x5AFE6,
    0x5B00A, 0x5B10B, 0x5B20C, 0x5B30D, 0x5B40E, 0x5B50F, 0x5B610, 0x5B711, 0x5B812, 0x5B913, 0x5BB14, 0x5BC15,
    0x5BD16, 0x5BE00, 0x5BF17, 0x5C000, 0x5C118, 0x5C219, 0x5C300, 0x5C4E6, 0x5C5DC, 0x5C600, 0x5C712, 0x5C800,
    0x610E6, 0x6181E, 0x6191F, 0x61A20, 0x61B00, 0x64B1B, 0x64C1C, 0x64D1D, 0x64E1E, 0x64F1F, 0x65020, 0x65121,
    0x65222, 0x653E6, 0x655DC, 0x657E6, 0x65CDC, 0x65DE6, 0x65FDC, 0x66000, 0x67023, 0x67100, 0x6D6E6, 0x6DD00,
    0x6DFE6, 0x6E3DC, 0x6E4E6, 0x6E500, 0x6E7E6, 0x6E900, 0x6EADC, 0x6EBE6, 0x6EDDC, 0x6EE00, 0x71124, 0x71200,
    0x730E6, 0x731DC, 0x732E6, 0x734DC, 0x735E6, 0x737DC, 0x73AE6, 0x73BDC, 0x73DE6, 0x73EDC, 0x73FE6, 0x742DC,
    0x743E6, 0x744DC, 0x745E6, 0x746DC, 0x747E6, 0x748DC, 0x749E6, 0x74B00, 0x7EBE6, 0x7F2DC, 0x7F3E6, 0x7F400,
    0x816E6, 0x81A00, 0x81BE6, 0x82400, 0x825E6, 0x82800, 0x829E6, 0x82E00, 0x859DC, 0x85C00, 0x8D4E6, 0x8E200,
    0x8E3DC, 0x8E4E6, 0x8E6DC, 0x8E7E6, 0x8E9DC, 0x8EAE6, 0x8EDDC, 0x8F01B, 0x8F11C, 0x8F21D, 0x8F3E6, 0x8F6DC,
    0x8F7E6, 0x8F9DC, 0x8FBE6, 0x90000, 0x93C07, 0x93D00, 0x94D09, 0x94E00, 0x951E6, 0x952DC, 0x953E6, 0x95500,
    0x9BC07, 0x9BD00, 0x9CD09, 0x9CE00, 0xA3C07, 0xA3D00, 0xA4D09, 0xA4E00, 0xABC07, 0xABD00, 0xACD09, 0xACE00,
    0xB3C07, 0xB3D00, 0xB4D09, 0xB4E00, 0xBCD09, 0xBCE00, 0xC4D09, 0xC4E00, 0xC5554, 0xC565B, 0xC5700, 0xCBC07,
    0xCBD00, 0xCCD09, 0xCCE00, 0xD4D09, 0xD4E00, 0xDCA09, 0xDCB00, 0xE3867, 0xE3A09, 0xE3B00, 0xE486B, 0xE4C00,
    0xEB876, 0xEBA00, 0xEC87A, 0xECC00, 0xF18DC, 0xF1A00, 0xF35DC, 0xF3600, 0xF37DC, 0xF3800, 0xF39D8, 0xF3A00,
    0xF7181, 0xF7282, 0xF7300, 0xF7484, 0xF7500, 0xF7A82, 0xF7E00, 0xF8082, 0xF8100, 0xF82E6, 0xF8409, 0xF8500,
    0xF86E6, 0xF8800, 0xFC6DC, 0xFC700, 0x103707, 0x103800, 0x103909, 0x103B00, 0x108DDC, 0x108E00, 0x135DE6,
    0x136000, 0x171409, 0x171500, 0x173409, 0x173500, 0x17D209, 0x17D300, 0x17DDE6, 0x17DE00, 0x18A9E4, 0x18AA00,
    0x1939DE, 0x193AE6, 0x193BDC, 0x193C00, 0x1A17E6, 0x1A18DC, 0x1A1900, 0x1A6009, 0x1A6100, 0x1A75E6, 0x1A7D00,
    0x1A7FDC, 0x1A8000, 0x1AB0E6, 0x1AB5DC, 0x1ABBE6, 0x1ABDDC, 0x1ABE00, 0x1B3407, 0x1B3500, 0x1B4409, 0x1B4500,
    0x1B6BE6, 0x1B6CDC, 0x1B6DE6, 0x1B7400, 0x1BAA09, 0x1BAC00, 0x1BE607, 0x1BE700, 0x1BF209, 0x1BF400, 0x1C3707,
    0x1C3800, 0x1CD0E6, 0x1CD300, 0x1CD401, 0x1CD5DC, 0x1CDAE6, 0x1CDCDC, 0x1CE0E6, 0x1CE100, 0x1CE201, 0x1CE900,
    0x1CEDDC, 0x1CEE00, 0x1CF4E6, 0x1CF500, 0x1CF8E6, 0x1CFA00, 0x1DC0E6, 0x1DC2DC, 0x1DC3E6, 0x1DCADC, 0x1DCBE6,
    0x1DCDEA, 0x1DCED6, 0x1DCFDC, 0x1DD0CA, 0x1DD1E6, 0x1DF600, 0x1DFBE6, 0x1DFCE9, 0x1DFDDC, 0x1DFEE6, 0x1DFFDC,
    0x1E0000, 0x20D0E6, 0x20D201, 0x20D4E6, 0x20D801, 0x20DBE6, 0x20DD00, 0x20E1E6, 0x20E200, 0x20E501, 0x20E7E6,
    0x20E8DC, 0x20E9E6, 0x20EA01, 0x20ECDC, 0x20F0E6, 0x20F100, 0x2CEFE6, 0x2CF200, 0x2D7F09, 0x2D8000, 0x2DE0E6,
    0x2E0000, 0x302ADA, 0x302BE4, 0x302CE8, 0x302DDE, 0x302EE0, 0x303000, 0x309908, 0x309B00, 0xA66FE6, 0xA67000,
    0xA674E6, 0xA67E00, 0xA69EE6, 0xA6A000, 0xA6F0E6, 0xA6F200, 0xA80609, 0xA80700, 0xA8C409, 0xA8C500, 0xA8E0E6,
    0xA8F200, 0xA92BDC, 0xA92E00, 0xA95309, 0xA95400, 0xA9B307, 0xA9B400, 0xA9C009, 0xA9C100, 0xAAB0E6, 0xAAB100,
    0xAAB2E6, 0xAAB4DC, 0xAAB500, 0xAAB7E6, 0xAAB900, 0xAABEE6, 0xAAC000, 0xAAC1E6, 0xAAC200, 0xAAF609, 0xAAF700,
    0xABED09, 0xABEE00, 0xFB1E1A, 0xFB1F00, 0xFE20E6, 0xFE27DC, 0xFE2EE6, 0xFE3000, 0x101FDDC, 0x101FE00, 0x102E0DC,
    0x102E100, 0x10376E6, 0x1037B00, 0x10A0DDC, 0x10A0E00, 0x10A0FE6, 0x10A1000, 0x10A38E6, 0x10A3901, 0x10A3ADC,
    0x10A3B00, 0x10A3F09, 0x10A4000, 0x10AE5E6, 0x10AE6DC, 0x10AE700, 0x1104609, 0x1104700, 0x1107F09, 0x1108000,
    0x110B909, 0x110BA07, 0x110BB00, 0x11100E6, 0x1110300, 0x1113309, 0x1113500, 0x1117307, 0x1117400, 0x111C009,
    0x111C100, 0x111CA07, 0x111CB00, 0x1123509, 0x1123607, 0x1123700, 0x112E907, 0x112EA09, 0x112EB00, 0x1133C07,
    0x1133D00, 0x1134D09, 0x1134E00, 0x11366E6, 0x1136D00, 0x11370E6, 0x1137500, 0x1144209, 0x1144300, 0x1144607,
    0x1144700, 0x114C209, 0x114C307, 0x114C400, 0x115BF09, 0x115C007, 0x115C100, 0x1163F09, 0x1164000, 0x116B609,
    0x116B707, 0x116B800, 0x1172B09, 0x1172C00, 0x11C3F09, 0x11C4000, 0x16AF001, 0x16AF500, 0x16B30E6, 0x16B3700,
    0x1BC9E01, 0x1BC9F00, 0x1D165D8, 0x1D16701, 0x1D16A00, 0x1D16DE2, 0x1D16ED8, 0x1D17300, 0x1D17BDC, 0x1D18300,
    0x1D185E6, 0x1D18ADC, 0x1D18C00, 0x1D1AAE6, 0x1D1AE00, 0x1D242E6, 0x1D24500, 0x1E000E6, 0x1E00700, 0x1E008E6,
    0x1E01900, 0x1E01BE6, 0x1E02200, 0x1E023E6, 0x1E02500, 0x1E026E6, 0x1E02B00, 0x1E8D0DC, 0x1E8D700, 0x1E944E6,
    0x1E94A07, 0x1E94B00
};

/* A character and the one or two (else 0) it stands for, by character. Hangul syllables are computed. */
static const uint32_t fg__unicode_pairs[][3] = {
    {0xC0,0x41,0x300}, {0xC1,0x41,0x301}, {0xC2,0x41,0x302}, {0xC3,0x41,0x303}, {0xC4,0x41,0x308}, {0xC5,0x41,0x30A},
    {0xC7,0x43,0x327}, {0xC8,0x45,0x300}, {0xC9,0x45,0x301}, {0xCA,0x45,0x302}, {0xCB,0x45,0x308}, {0xCC,0x49,0x300},
    {0xCD,0x49,0x301}, {0xCE,0x49,0x302}, {0xCF,0x49,0x308}, {0xD1,0x4E,0x303}, {0xD2,0x4F,0x300}, {0xD3,0x4F,0x301},
    {0xD4,0x4F,0x302}, {0xD5,0x4F,0x303}, {0xD6,0x4F,0x308}, {0xD9,0x55,0x300}, {0xDA,0x55,0x301}, {0xDB,0x55,0x302},
    {0xDC,0x55,0x308}, {0xDD,0x59,0x301}, {0xE0,0x61,0x300}, {0xE1,0x61,0x301}, {0xE2,0x61,0x302}, {0xE3,0x61,0x303},
    {0xE4,0x61,0x308}, {0xE5,0x61,0x30A}, {0xE7,0x63,0x327}, {0xE8,0x65,0x300}, {0xE9,0x65,0x301}, {0xEA,0x65,0x302},
    {0xEB,0x65,0x308}, {0xEC,0x69,0x300}, {0xED,0x69,0x301}, {0xEE,0x69,0x302}, {0xEF,0x69,0x308}, {0xF1,0x6E,0x303},
    {0xF2,0x6F,0x300}, {0xF3,0x6F,0x301}, {0xF4,0x6F,0x302}, {0xF5,0x6F,0x303}, {0xF6,0x6F,0x308}, {0xF9,0x75,0x300},
    {0xFA,0x75,0x301}, {0xFB,0x75,0x302}, {0xFC,0x75,0x308}, {0xFD,0x79,0x301}, {0xFF,0x79,0x308}, {0x100,0x41,0x304},
    {0x101,0x61,0x304}, {0x102,0x41,0x306}, {0x103,0x61,0x306}, {0x104,0x41,0x328}, {0x105,0x61,0x328},
    {0x106,0x43,0x301}, {0x107,0x63,0x301}, {0x108,0x43,0x302}, {0x109,0x63,0x302}, {0x10A,0x43,0x307},
    {0x10B,0x63,0x307}, {0x10C,0x43,0x30C}, {0x10D,0x63,0x30C}, {0x10E,0x44,0x30C}, {0x10F,0x64,0x30C},
    {0x112,0x45,0x304}, {0x113,0x65,0x304}, {0x114,0x45,0x306}, {0x115,0x65,0x306}, {0x116,0x45,0x307},
    {0x117,0x65,0x307}, {0x118,0x45,0x328}, {0x119,0x65,0x328}, {0x11A,0x45,0x30C}, {0x11B,0x65,0x30C},
    {0x11C,0x47,0x302}, {0x11D,0x67,0x302}, {0x11E,0x47,0x306}, {0x11F,0x67,0x306}, {0x120,0x47,0x307},
    {0x121,0x67,0x307}, {0x122,0x47,0x327}, {0x123,0x67,0x327}, {0x124,0x48,0x302}, {0x125,0x68,0x302},
    {0x128,0x49,0x303}, {0x129,0x69,0x303}, {0x12A,0x49,0x304}, {0x12B,0x69,0x304}, {0x12C,0x49,0x306},
    {0x12D,0x69,0x306}, {0x12E,0x49,0x328}, {0x12F,0x69,0x328}, {0x130,0x49,0x307}, {0x134,0x4A,0x302},
    {0x135,0x6A,0x302}, {0x136,0x4B,0x327}, {0x137,0x6B,0x327}, {0x139,0x4C,0x301}, {0x13A,0x6C,0x301},
    {0x13B,0x4C,0x327}, {0x13C,0x6C,0x327}, {0x13D,0x4C,0x30C}, {0x13E,0x6C,0x30C}, {0x143,0x4E,0x301},
    {0x144,0x6E,0x301}, {0x145,0x4E,0x327}, {0x146,0x6E,0x327}, {0x147,0x4E,0x30C}, {0x148,0x6E,0x30C},
    {0x14C,0x4F,0x304}, {0x14D,0x6F,0x304}, {0x14E,0x4F,0x306}, {0x14F,0x6F,0x306}, {0x150,0x4F,0x30B},
    {0x151,0x6F,0x30B}, {0x154,0x52,0x301}, {0x155,0x72,0x301}, {0x156,0x52,0x327}, {0x157,0x72,0x327},
    {0x158,0x52,0x30C}, {0x159,0x72,0x30C}, {0x15A,0x53,0x301}, {0x15B,0x73,0x301}, {0x15C,0x53,0x302},
    {0x15D,0x73,0x302}, {0x15E,0x53,0x327}, {0x15F,0x73,0x327}, {0x160,0x53,0x30C}, {0x161,0x73,0x30C},
    {0x162,0x54,0x327}, {0x163,0x74,0x327}, {0x164,0x54,0x30C}, {0x165,0x74,0x30C}, {0x168,0x55,0x303},
    {0x169,0x75,0x303}, {0x16A,0x55,0x304}, {0x16B,0x75,0x304}, {0x16C,0x55,0x306}, {0x16D,0x75,0x306},
    {0x16E,0x55,0x30A}, {0x16F,0x75,0x30A}, {0x170,0x55,0x30B}, {0x171,0x75,0x30B}, {0x172,0x55,0x328},
    {0x173,0x75,0x328}, {0x174,0x57,0x302}, {0x175,0x77,0x302}, {0x176,0x59,0x302}, {0x177,0x79,0x302},
    {0x178,0x59,0x308}, {0x179,0x5A,0x301}, {0x17A,0x7A,0x301}, {0x17B,0x5A,0x307}, {0x17C,0x7A,0x307},
    {0x17D,0x5A,0x30C}, {0x17E,0x7A,0x30C}, {0x1A0,0x4F,0x31B}, {0x1A1,0x6F,0x31B}, {0x1AF,0x55,0x31B},
    {0x1B0,0x75,0x31B}, {0x1CD,0x41,0x30C}, {0x1CE,0x61,0x30C}, {0x1CF,0x49,0x30C}, {0x1D0,0x69,0x30C},
    {0x1D1,0x4F,0x30C}, {0x1D2,0x6F,0x30C}, {0x1D3,0x55,0x30C}, {0x1D4,0x75,0x30C}, {0x1D5,0xDC,0x304},
    {0x1D6,0xFC,0x304}, {0x1D7,0xDC,0x301}, {0x1D8,0xFC,0x301}, {0x1D9,0xDC,0x30C}, {0x1DA,0xFC,0x30C},
    {0x1DB,0xDC,0x300}, {0x1DC,0xFC,0x300}, {0x1DE,0xC4,0x304}, {0x1DF,0xE4,0x304}, {0x1E0,0x226,0x304},
    {0x1E1,0x227,0x304}, {0x1E2,0xC6,0x304}, {0x1E3,0xE6,0x304}, {0x1E6,0x47,0x30C}, {0x1E7,0x67,0x30C},
    {0x1E8,0x4B,0x30C}, {0x1E9,0x6B,0x30C}, {0x1EA,0x4F,0x328}, {0x1EB,0x6F,0x328}, {0x1EC,0x1EA,0x304},
    {0x1ED,0x1EB,0x304}, {0x1EE,0x1B7,0x30C}, {0x1EF,0x292,0x30C}, {0x1F0,0x6A,0x30C}, {0x1F4,0x47,0x301},
    {0x1F5,0x67,0x301}, {0x1F8,0x4E,0x300}, {0x1F9,0x6E,0x300}, {0x1FA,0xC5,0x301}, {0x1FB,0xE5,0x301},
    {0x1FC,0xC6,0x301}, {0x1FD,0xE6,0x301}, {0x1FE,0xD8,0x301}, {0x1FF,0xF8,0x301}, {0x200,0x41,0x30F},
    {0x201,0x61,0x30F}, {0x202,0x41,0x311}, {0x203,0x61,0x311}, {0x204,0x45,0x30F}, {0x205,0x65,0x30F},
    {0x206,0x45,0x311}, {0x207,0x65,0x311}, {0x208,0x49,0x30F}, {0x209,0x69,0x30F}, {0x20A,0x49,0x311},
    {0x20B,0x69,0x311}, {0x20C,0x4F,0x30F}, {0x20D,0x6F,0x30F}, {0x20E,0x4F,0x311}, {0x20F,0x6F,0x311},
    {0x210,0x52,0x30F}, {0x211,0x72,0x30F}, {0x212,0x52,0x311}, {0x213,0x72,0x311}, {0x214,0x55,0x30F},
    {0x215,0x75,0x30F}, {0x216,0x55,0x311}, {0x217,0x75,0x311}, {0x218,0x53,0x326}, {0x219,0x73,0x326},
    {0x21A,0x54,0x326}, {0x21B,0x74,0x326}, {0x21E,0x48,0x30C}, {0x21F,0x68,0x30C}, {0x226,0x41,0x307},
    {0x227,0x61,0x307}, {0x228,0x45,0x327}, {0x229,0x65,0x327}, {0x22A,0xD6,0x304}, {0x22B,0xF6,0x304},
    {0x22C,0xD5,0x304}, {0x22D,0xF5,0x304}, {0x22E,0x4F,0x307}, {0x22F,0x6F,0x307}, {0x230,0x22E,0x304},
    {0x231,0x22F,0x304}, {0x232,0x59,0x304}, {0x233,0x79,0x304}, {0x340,0x300,0x0}, {0x341,0x301,0x0},
    {0x343,0x313,0x0}, {0x344,0x308,0x301}, {0x374,0x2B9,0x0}, {0x37E,0x3B,0x0}, {0x385,0xA8,0x301},
    {0x386,0x391,0x301}, {0x387,0xB7,0x0}, {0x388,0x395,0x301}, {0x389,0x397,0x301}, {0x38A,0x399,0x301},
    {0x38C,0x39F,0x301}, {0x38E,0x3A5,0x301}, {0x38F,0x3A9,0x301}, {0x390,0x3CA,0x301}, {0x3AA,0x399,0x308},
    {0x3AB,0x3A5,0x308}, {0x3AC,0x3B1,0x301}, {0x3AD,0x3B5,0x301}, {0x3AE,0x3B7,0x301}, {0x3AF,0x3B9,0x301},
    {0x3B0,0x3CB,0x301}, {0x3CA,0x3B9,0x308}, {0x3CB,0x3C5,0x308}, {0x3CC,0x3BF,0x301}, {0x3CD,0x3C5,0x301},
    {0x3CE,0x3C9,0x301}, {0x3D3,0x3D2,0x301}, {0x3D4,0x3D2,0x308}, {0x400,0x415,0x300}, {0x401,0x415,0x308},
    {0x403,0x413,0x301}, {0x407,0x406,0x308}, {0x40C,0x41A,0x301}, {0x40D,0x418,0x300}, {0x40E,0x423,0x306},
    {0x419,0x418,0x306}, {0x439,0x438,0x306}, {0x450,0x435,0x300}, {0x451,0x435,0x308}, {0x453,0x433,0x301},
    {0x457,0x456,0x308}, {0x45C,0x43A,0x301}, {0x45D,0x438,0x300}, {0x45E,0x443,0x306}, {0x476,0x474,0x30F},
    {0x477,0x475,0x30F}, {0x4C1,0x416,0x306}, {0x4C2,0x436,0x306}, {0x4D0,0x410,0x306}, {0x4D1,0x430,0x306},
    {0x4D2,0x410,0x308}, {0x4D3,0x430,0x308}, {0x4D6,0x415,0x306}, {0x4D7,0x435,0x306}, {0x4DA,0x4D8,0x308},
    {0x4DB,0x4D9,0x308}, {0x4DC,0x416,0x308}, {0x4DD,0x436,0x308}, {0x4DE,0x417,0x308}, {0x4DF,0x437,0x308},
    {0x4E2,0x418,0x304}, {0x4E3,0x438,0x304}, {0x4E4,0x418,0x308}, {0x4E5,0x438,0x308}, {0x4E6,0x41E,0x308},
    {0x4E7,0x43E,0x308}, {0x4EA,0x4E8,0x308}, {0x4EB,0x4E9,0x308}, {0x4EC,0x42D,0x308}, {0x4ED,0x44D,0x308},
    {0x4EE,0x423,0x304}, {0x4EF,0x443,0x304}, {0x4F0,0x423,0x308}, {0x4F1,0x443,0x308}, {0x4F2,0x423,0x30B},
    {0x4F3,0x443,0x30B}, {0x4F4,0x427,0x308}, {0x4F5,0x447,0x308}, {0x4F8,0x42B,0x308}, {0x4F9,0x44B,0x308},
    {0x622,0x627,0x653}, {0x623,0x627,0x654}, {0x624,0x648,0x654}, {0x625,0x627,0x655}, {0x626,0x64A,0x654},
    {0x6C0,0x6D5,0x654}, {0x6C2,0x6C1,0x654}, {0x6D3,0x6D2,0x654}, {0x929,0x928,0x93C}, {0x931,0x930,0x93C},
    {0x934,0x933,0x93C}, {0x958,0x915,0x93C}, {0x959,0x916,0x93C}, {0x95A,0x917,0x93C}, {0x95B,0x91C,0x93C},
    {0x95C,0x921,0x93C}, {0x95D,0x922,0x93C}, {0x95E,0x92B,0x93C}, {0x95F,0x92F,0x93C}, {0x9CB,0x9C7,0x9BE},
    {0x9CC,0x9C7,0x9D7}, {0x9DC,0x9A1,0x9BC}, {0x9DD,0x9A2,0x9BC}, {0x9DF,0x9AF,0x9BC}, {0xA33,0xA32,0xA3C},
    {0xA36,0xA38,0xA3C}, {0xA59,0xA16,0xA3C}, {0xA5A,0xA17,0xA3C}, {0xA5B,0xA1C,0xA3C}, {0xA5E,0xA2B,0xA3C},
    {0xB48,0xB47,0xB56}, {0xB4B,0xB47,0xB3E}, {0xB4C,0xB47,0xB57}, {0xB5C,0xB21,0xB3C}, {0xB5D,0xB22,0xB3C},
    {0xB94,0xB92,0xBD7}, {0xBCA,0xBC6,0xBBE}, {0xBCB,0xBC7,0xBBE}, {0xBCC,0xBC6,0xBD7}, {0xC48,0xC46,0xC56},
    {0xCC0,0xCBF,0xCD5}, {0xCC7,0xCC6,0xCD5}, {0xCC8,0xCC6,0xCD6}, {0xCCA,0xCC6,0xCC2}, {0xCCB,0xCCA,0xCD5},
    {0xD4A,0xD46,0xD3E}, {0xD4B,0xD47,0xD3E}, {0xD4C,0xD46,0xD57}, {0xDDA,0xDD9,0xDCA}, {0xDDC,0xDD9,0xDCF},
    {0xDDD,0xDDC,0xDCA}, {0xDDE,0xDD9,0xDDF}, {0xF43,0xF42,0xFB7}, {0xF4D,0xF4C,0xFB7}, {0xF52,0xF51,0xFB7},
    {0xF57,0xF56,0xFB7}, {0xF5C,0xF5B,0xFB7}, {0xF69,0xF40,0xFB5}, {0xF73,0xF71,0xF72}, {0xF75,0xF71,0xF74},
    {0xF76,0xFB2,0xF80}, {0xF78,0xFB3,0xF80}, {0xF81,0xF71,0xF80}, {0xF93,0xF92,0xFB7}, {0xF9D,0xF9C,0xFB7},
    {0xFA2,0xFA1,0xFB7}, {0xFA7,0xFA6,0xFB7}, {0xFAC,0xFAB,0xFB7}, {0xFB9,0xF90,0xFB5}, {0x1026,0x1025,0x102E},
    {0x1B06,0x1B05,0x1B35}, {0x1B08,0x1B07,0x1B35}, {0x1B0A,0x1B09,0x1B35}, {0x1B0C,0x1B0B,0x1B35},
    {0x1B0E,0x1B0D,0x1B35}, {0x1B12,0x1B11,0x1B35}, {0x1B3B,0x1B3A,0x1B35}, {0x1B3D,0x1B3C,0x1B35},
    {0x1B40,0x1B3E,0x1B35}, {0x1B41,0x1B3F,0x1B35}, {0x1B43,0x1B42,0x1B35}, {0x1E00,0x41,0x325}, {0x1E01,0x61,0x325},
    {0x1E02,0x42,0x307}, {0x1E03,0x62,0x307}, {0x1E04,0x42,0x323}, {0x1E05,0x62,0x323}, {0x1E06,0x42,0x331},
    {0x1E07,0x62,0x331}, {0x1E08,0xC7,0x301}, {0x1E09,0xE7,0x301}, {0x1E0A,0x44,0x307}, {0x1E0B,0x64,0x307},
    {0x1E0C,0x44,0x323}, {0x1E0D,0x64,0x323}, {0x1E0E,0x44,0x331}, {0x1E0F,0x64,0x331}, {0x1E10,0x44,0x327},
    {0x1E11,0x64,0x327}, {0x1E12,0x44,0x32D}, {0x1E13,0x64,0x32D}, {0x1E14,0x112,0x300}, {0x1E15,0x113,0x300},
    {0x1E16,0x112,0x301}, {0x1E17,0x113,0x301}, {0x1E18,0x45,0x32D}, {0x1E19,0x65,0x32D}, {0x1E1A,0x45,0x330},
    {0x1E1B,0x65,0x330}, {0x1E1C,0x228,0x306}, {0x1E1D,0x229,0x306}, {0x1E1E,0x46,0x307}, {0x1E1F,0x66,0x307},
    {0x1E20,0x47,0x304}, {0x1E21,0x67,0x304}, {0x1E22,0x48,0x307}, {0x1E23,0x68,0x307}, {0x1E24,0x48,0x323},
    {0x1E25,0x68,0x323}, {0x1E26,0x48,0x308}, {0x1E27,0x68,0x308}, {0x1E28,0x48,0x327}, {0x1E29,0x68,0x327},
    {0x1E2A,0x48,0x32E}, {0x1E2B,0x68,0x32E}, {0x1E2C,0x49,0x330}, {0x1E2D,0x69,0x330}, {0x1E2E,0xCF,0x301},
    {0x1E2F,0xEF,0x301}, {0x1E30,0x4B,0x301}, {0x1E31,0x6B,0x301}, {0x1E32,0x4B,0x323}, {0x1E33,0x6B,0x323},
    {0x1E34,0x4B,0x331}, {0x1E35,0x6B,0x331}, {0x1E36,0x4C,0x323}, {0x1E37,0x6C,0x323}, {0x1E38,0x1E36,0x304},
    {0x1E39,0x1E37,0x304}, {0x1E3A,0x4C,0x331}, {0x1E3B,0x6C,0x331}, {0x1E3C,0x4C,0x32D}, {0x1E3D,0x6C,0x32D},
    {0x1E3E,0x4D,0x301}, {0x1E3F,0x6D,0x301}, {0x1E40,0x4D,0x307}, {0x1E41,0x6D,0x307}, {0x1E42,0x4D,0x323},
    {0x1E43,0x6D,0x323}, {0x1E44,0x4E,0x307}, {0x1E45,0x6E,0x307}, {0x1E46,0x4E,0x323}, {0x1E47,0x6E,0x323},
    {0x1E48,0x4E,0x331}, {0x1E49,0x6E,0x331}, {0x1E4A,0x4E,0x32D}, {0x1E4B,0x6E,0x32D}, {0x1E4C,0xD5,0x301},
    {0x1E4D,0xF5,0x301}, {0x1E4E,0xD5,0x308}, {0x1E4F,0xF5,0x308}, {0x1E50,0x14C,0x300}, {0x1E51,0x14D,0x300},
    {0x1E52,0x14C,0x301}, {0x1E53,0x14D,0x301}, {0x1E54,0x50,0x301}, {0x1E55,0x70,0x301}, {0x1E56,0x50,0x307},
    {0x1E57,0x70,0x307}, {0x1E58,0x52,0x307}, {0x1E59,0x72,0x307}, {0x1E5A,0x52,0x323}, {0x1E5B,0x72,0x323},
    {0x1E5C,0x1E5A,0x304}, {0x1E5D,0x1E5B,0x304}, {0x1E5E,0x52,0x331}, {0x1E5F,0x72,0x331}, {0x1E60,0x53,0x307},
    {0x1E61,0x73,0x307}, {0x1E62,0x53,0x323}, {0x1E63,0x73,0x323}, {0x1E64,0x15A,0x307}, {0x1E65,0x15B,0x307},
    {0x1E66,0x160,0x307}, {0x1E67,0x161,0x307}, {0x1E68,0x1E62,0x307}, {0x1E69,0x1E63,0x307}, {0x1E6A,0x54,0x307},
    {0x1E6B,0x74,0x307}, {0x1E6C,0x54,0x323}, {0x1E6D,0x74,0x323}, {0x1E6E,0x54,0x331}, {0x1E6F,0x74,0x331},
    {0x1E70,0x54,0x32D}, {0x1E71,0x74,0x32D}, {0x1E72,0x55,0x324}, {0x1E73,0x75,0x324}, {0x1E74,0x55,0x330},
    {0x1E75,0x75,0x330}, {0x1E76,0x55,0x32D}, {0x1E77,0x75,0x32D}, {0x1E78,0x168,0x301}, {0x1E79,0x169,0x301},
    {0x1E7A,0x16A,0x308}, {0x1E7B,0x16B,0x308}, {0x1E7C,0x56,0x303}, {0x1E7D,0x76,0x303}, {0x1E7E,0x56,0x323},
    {0x1E7F,0x76,0x323}, {0x1E80,0x57,0x300}, {0x1E81,0x77,0x300}, {0x1E82,0x57,0x301}, {0x1E83,0x77,0x301},
    {0x1E84,0x57,0x308}, {0x1E85,0x77,0x308}, {0x1E86,0x57,0x307}, {0x1E87,0x77,0x307}, {0x1E88,0x57,0x323},
    {0x1E89,0x77,0x323}, {0x1E8A,0x58,0x307}, {0x1E8B,0x78,0x307}, {0x1E8C,0x58,0x308}, {0x1E8D,0x78,0x308},
    {0x1E8E,0x59,0x307}, {0x1E8F,0x79,0x307}, {0x1E90,0x5A,0x302}, {0x1E91,0x7A,0x302}, {0x1E92,0x5A,0x323},
    {0x1E93,0x7A,0x323}, {0x1E94,0x5A,0x331}, {0x1E95,0x7A,0x331}, {0x1E96,0x68,0x331}, {0x1E97,0x74,0x308},
    {0x1E98,0x77,0x30A}, {0x1E99,0x79,0x30A}, {0x1E9B,0x17F,0x307}, {0x1EA0,0x41,0x323}, {0x1EA1,0x61,0x323},
    {0x1EA2,0x41,0x309}, {0x1EA3,0x61,0x309}, {0x1EA4,0xC2,0x301}, {0x1EA5,0xE2,0x301}, {0x1EA6,0xC2,0x300},
    {0x1EA7,0xE2,0x300}, {0x1EA8,0xC2,0x309}, {0x1EA9,0xE2,0x309}, {0x1EAA,0xC2,0x303}, {0x1EAB,0xE2,0x303},
    {0x1EAC,0x1EA0,0x302}, {0x1EAD,0x1EA1,0x302}, {0x1EAE,0x102,0x301}, {0x1EAF,0x103,0x301}, {0x1EB0,0x102,0x300},
    {0x1EB1,0x103,0x300}, {0x1EB2,0x102,0x309}, {0x1EB3,0x103,0x309}, {0x1EB4,0x102,0x303}, {0x1EB5,0x103,0x303},
    {0x1EB6,0x1EA0,0x306}, {0x1EB7,0x1EA1,0x306}, {0x1EB8,0x45,0x323}, {0x1EB9,0x65,0x323}, {0x1EBA,0x45,0x309},
    {0x1EBB,0x65,0x309}, {0x1EBC,0x45,0x303}, {0x1EBD,0x65,0x303}, {0x1EBE,0xCA,0x301}, {0x1EBF,0xEA,0x301},
    {0x1EC0,0xCA,0x300}, {0x1EC1,0xEA,0x300}, {0x1EC2,0xCA,0x309}, {0x1EC3,0xEA,0x309}, {0x1EC4,0xCA,0x303},
    {0x1EC5,0xEA,0x303}, {0x1EC6,0x1EB8,0x302}, {0x1EC7,0x1EB9,0x302}, {0x1EC8,0x49,0x309}, {0x1EC9,0x69,0x309},
    {0x1ECA,0x49,0x323}, {0x1ECB,0x69,0x323}, {0x1ECC,0x4F,0x323}, {0x1ECD,0x6F,0x323}, {0x1ECE,0x4F,0x309},
    {0x1ECF,0x6F,0x309}, {0x1ED0,0xD4,0x301}, {0x1ED1,0xF4,0x301}, {0x1ED2,0xD4,0x300}, {0x1ED3,0xF4,0x300},
    {0x1ED4,0xD4,0x309}, {0x1ED5,0xF4,0x309}, {0x1ED6,0xD4,0x303}, {0x1ED7,0xF4,0x303}, {0x1ED8,0x1ECC,0x302},
    {0x1ED9,0x1ECD,0x302}, {0x1EDA,0x1A0,0x301}, {0x1EDB,0x1A1,0x301}, {0x1EDC,0x1A0,0x300}, {0x1EDD,0x1A1,0x300},
    {0x1EDE,0x1A0,0x309}, {0x1EDF,0x1A1,0x309}, {0x1EE0,0x1A0,0x303}, {0x1EE1,0x1A1,0x303}, {0x1EE2,0x1A0,0x323},
    {0x1EE3,0x1A1,0x323}, {0x1EE4,0x55,0x323}, {0x1EE5,0x75,0x323}, {0x1EE6,0x55,0x309}, {0x1EE7,0x75,0x309},
    {0x1EE8,0x1AF,0x301}, {0x1EE9,0x1B0,0x301}, {0x1EEA,0x1AF,0x300}, {0x1EEB,0x1B0,0x300}, {0x1EEC,0x1AF,0x309},
    {0x1EED,0x1B0,0x309}, {0x1EEE,0x1AF,0x303}, {0x1EEF,0x1B0,0x303}, {0x1EF0,0x1AF,0x323}, {0x1EF1,0x1B0,0x323},
    {0x1EF2,0x59,0x300}, {0x1EF3,0x79,0x300}, {0x1EF4,0x59,0x323}, {0x1EF5,0x79,0x323}, {0x1EF6,0x59,0x309},
    {0x1EF7,0x79,0x309}, {0x1EF8,0x59,0x303}, {0x1EF9,0x79,0x303}, {0x1F00,0x3B1,0x313}, {0x1F01,0x3B1,0x314},
    {0x1F02,0x1F00,0x300}, {0x1F03,0x1F01,0x300}, {0x1F04,0x1F00,0x301}, {0x1F05,0x1F01,0x301}, {0x1F06,0x1F00,0x342},
    {0x1F07,0x1F01,0x342}, {0x1F08,0x391,0x313}, {0x1F09,0x391,0x314}, {0x1F0A,0x1F08,0x300}, {0x1F0B,0x1F09,0x300},
    {0x1F0C,0x1F08,0x301}, {0x1F0D,0x1F09,0x301}, {0x1F0E,0x1F08,0x342}, {0x1F0F,0x1F09,0x342}, {0x1F10,0x3B5,0x313},
    {0x1F11,0x3B5,0x314}, {0x1F12,0x1F10,0x300}, {0x1F13,0x1F11,0x300}, {0x1F14,0x1F10,0x301}, {0x1F15,0x1F11,0x301},
    {0x1F18,0x395,0x313}, {0x1F19,0x395,0x314}, {0x1F1A,0x1F18,0x300}, {0x1F1B,0x1F19,0x300}, {0x1F1C,0x1F18,0x301},
    {0x1F1D,0x1F19,0x301}, {0x1F20,0x3B7,0x313}, {0x1F21,0x3B7,0x314}, {0x1F22,0x1F20,0x300}, {0x1F23,0x1F21,0x300},
    {0x1F24,0x1F20,0x301}, {0x1F25,0x1F21,0x301}, {0x1F26,0x1F20,0x342}, {0x1F27,0x1F21,0x342}, {0x1F28,0x397,0x313},
    {0x1F29,0x397,0x314}, {0x1F2A,0x1F28,0x300}, {0x1F2B,0x1F29,0x300}, {0x1F2C,0x1F28,0x301}, {0x1F2D,0x1F29,0x301},
    {0x1F2E,0x1F28,0x342}, {0x1F2F,0x1F29,0x342}, {0x1F30,0x3B9,0x313}, {0x1F31,0x3B9,0x314}, {0x1F32,0x1F30,0x300},
    {0x1F33,0x1F31,0x300}, {0x1F34,0x1F30,0x301}, {0x1F35,0x1F31,0x301}, {0x1F36,0x1F30,0x342}, {0x1F37,0x1F31,0x342},
    {0x1F38,0x399,0x313}, {0x1F39,0x399,0x314}, {0x1F3A,0x1F38,0x300}, {0x1F3B,0x1F39,0x300}, {0x1F3C,0x1F38,0x301},
    {0x1F3D,0x1F39,0x301}, {0x1F3E,0x1F38,0x342}, {0x1F3F,0x1F39,0x342}, {0x1F40,0x3BF,0x313}, {0x1F41,0x3BF,0x314},
    {0x1F42,0x1F40,0x300}, {0x1F43,0x1F41,0x300}, {0x1F44,0x1F40,0x301}, {0x1F45,0x1F41,0x301}, {0x1F48,0x39F,0x313},
    {0x1F49,0x39F,0x314}, {0x1F4A,0x1F48,0x300}, {0x1F4B,0x1F49,0x300}, {0x1F4C,0x1F48,0x301}, {0x1F4D,0x1F49,0x301},
    {0x1F50,0x3C5,0x313}, {0x1F51,0x3C5,0x314}, {0x1F52,0x1F50,0x300}, {0x1F53,0x1F51,0x300}, {0x1F54,0x1F50,0x301},
    {0x1F55,0x1F51,0x301}, {0x1F56,0x1F50,0x342}, {0x1F57,0x1F51,0x342}, {0x1F59,0x3A5,0x314}, {0x1F5B,0x1F59,0x300},
    {0x1F5D,0x1F59,0x301}, {0x1F5F,0x1F59,0x342}, {0x1F60,0x3C9,0x313}, {0x1F61,0x3C9,0x314}, {0x1F62,0x1F60,0x300},
    {0x1F63,0x1F61,0x300}, {0x1F64,0x1F60,0x301}, {0x1F65,0x1F61,0x301}, {0x1F66,0x1F60,0x342}, {0x1F67,0x1F61,0x342},
    {0x1F68,0x3A9,0x313}, {0x1F69,0x3A9,0x314}, {0x1F6A,0x1F68,0x300}, {0x1F6B,0x1F69,0x300}, {0x1F6C,0x1F68,0x301},
    {0x1F6D,0x1F69,0x301}, {0x1F6E,0x1F68,0x342}, {0x1F6F,0x1F69,0x342}, {0x1F70,0x3B1,0x300}, {0x1F71,0x3AC,0x0},
    {0x1F72,0x3B5,0x300}, {0x1F73,0x3AD,0x0}, {0x1F74,0x3B7,0x300}, {0x1F75,0x3AE,0x0}, {0x1F76,0x3B9,0x300},
    {0x1F77,0x3AF,0x0}, {0x1F78,0x3BF,0x300}, {0x1F79,0x3CC,0x0}, {0x1F7A,0x3C5,0x300}, {0x1F7B,0x3CD,0x0},
    {0x1F7C,0x3C9,0x300}, {0x1F7D,0x3CE,0x0}, {0x1F80,0x1F00,0x345}, {0x1F81,0x1F01,0x345}, {0x1F82,0x1F02,0x345},
    {0x1F83,0x1F03,0x345}, {0x1F84,0x1F04,0x345}, {0x1F85,0x1F05,0x345}, {0x1F86,0x1F06,0x345}, {0x1F87,0x1F07,0x345},
    {0x1F88,0x1F08,0x345}, {0x1F89,0x1F09,0x345}, {0x1F8A,0x1F0A,0x345}, {0x1F8B,0x1F0B,0x345}, {0x1F8C,0x1F0C,0x345},
    {0x1F8D,0x1F0D,0x345}, {0x1F8E,0x1F0E,0x345}, {0x1F8F,0x1F0F,0x345}, {0x1F90,0x1F20,0x345}, {0x1F91,0x1F21,0x345},
    {0x1F92,0x1F22,0x345}, {0x1F93,0x1F23,0x345}, {0x1F94,0x1F24,0x345}, {0x1F95,0x1F25,0x345}, {0x1F96,0x1F26,0x345},
    {0x1F97,0x1F27,0x345}, {0x1F98,0x1F28,0x345}, {0x1F99,0x1F29,0x345}, {0x1F9A,0x1F2A,0x345}, {0x1F9B,0x1F2B,0x345},
    {0x1F9C,0x1F2C,0x345}, {0x1F9D,0x1F2D,0x345}, {0x1F9E,0x1F2E,0x345}, {0x1F9F,0x1F2F,0x345}, {0x1FA0,0x1F60,0x345},
    {0x1FA1,0x1F61,0x345}, {0x1FA2,0x1F62,0x345}, {0x1FA3,0x1F63,0x345}, {0x1FA4,0x1F64,0x345}, {0x1FA5,0x1F65,0x345},
    {0x1FA6,0x1F66,0x345}, {0x1FA7,0x1F67,0x345}, {0x1FA8,0x1F68,0x345}, {0x1FA9,0x1F69,0x345}, {0x1FAA,0x1F6A,0x345},
    {0x1FAB,0x1F6B,0x345}, {0x1FAC,0x1F6C,0x345}, {0x1FAD,0x1F6D,0x345}, {0x1FAE,0x1F6E,0x345}, {0x1FAF,0x1F6F,0x345},
    {0x1FB0,0x3B1,0x306}, {0x1FB1,0x3B1,0x304}, {0x1FB2,0x1F70,0x345}, {0x1FB3,0x3B1,0x345}, {0x1FB4,0x3AC,0x345},
    {0x1FB6,0x3B1,0x342}, {0x1FB7,0x1FB6,0x345}, {0x1FB8,0x391,0x306}, {0x1FB9,0x391,0x304}, {0x1FBA,0x391,0x300},
    {0x1FBB,0x386,0x0}, {0x1FBC,0x391,0x345}, {0x1FBE,0x3B9,0x0}, {0x1FC1,0xA8,0x342}, {0x1FC2,0x1F74,0x345},
    {0x1FC3,0x3B7,0x345}, {0x1FC4,0x3AE,0x345}, {0x1FC6,0x3B7,0x342}, {0x1FC7,0x1FC6,0x345}, {0x1FC8,0x395,0x300},
    {0x1FC9,0x388,0x0}, {0x1FCA,0x397,0x300}, {0x1FCB,0x389,0x0}, {0x1FCC,0x397,0x345}, {0x1FCD,0x1FBF,0x300},
    {0x1FCE,0x1FBF,0x301}, {0x1FCF,0x1FBF,0x342}, {0x1FD0,0x3B9,0x306}, {0x1FD1,0x3B9,0x304}, {0x1FD2,0x3CA,0x300},
    {0x1FD3,0x390,0x0}, {0x1FD6,0x3B9,0x342}, {0x1FD7,0x3CA,0x342}, {0x1FD8,0x399,0x306}, {0x1FD9,0x399,0x304},
    {0x1FDA,0x399,0x300}, {0x1FDB,0x38A,0x0}, {0x1FDD,0x1FFE,0x300}, {0x1FDE,0x1FFE,0x301}, {0x1FDF,0x1FFE,0x342},
    {0x1FE0,0x3C5,0x306}, {0x1FE1,0x3C5,0x304}, {0x1FE2,0x3CB,0x300}, {0x1FE3,0x3B0,0x0}, {0x1FE4,0x3C1,0x313},
    {0x1FE5,0x3C1,0x314}, {0x1FE6,0x3C5,0x342}, {0x1FE7,0x3CB,0x342}, {0x1FE8,0x3A5,0x306}, {0x1FE9,0x3A5,0x304},
    {0x1FEA,0x3A5,0x300}, {0x1FEB,0x38E,0x0}, {0x1FEC,0x3A1,0x314}, {0x1FED,0xA8,0x300}, {0x1FEE,0x385,0x0},
    {0x1FEF,0x60,0x0}, {0x1FF2,0x1F7C,0x345}, {0x1FF3,0x3C9,0x345}, {0x1FF4,0x3CE,0x345}, {0x1FF6,0x3C9,0x342},
    {0x1FF7,0x1FF6,0x345}, {0x1FF8,0x39F,0x300}, {0x1FF9,0x38C,0x0}, {0x1FFA,0x3A9,0x300}, {0x1FFB,0x38F,0x0},
    {0x1FFC,0x3A9,0x345}, {0x1FFD,0xB4,0x0}, {0x2000,0x2002,0x0}, {0x2001,0x2003,0x0}, {0x2126,0x3A9,0x0},
    {0x212A,0x4B,0x0}, {0x212B,0xC5,0x0}, {0x219A,0x2190,0x338}, {0x219B,0x2192,0x338}, {0x21AE,0x2194,0x338},
    {0x21CD,0x21D0,0x338}, {0x21CE,0x21D4,0x338}, {0x21CF,0x21D2,0x338}, {0x2204,0x2203,0x338}, {0x2209,0x2208,0x338},
    {0x220C,0x220B,0x338}, {0x2224,0x2223,0x338}, {0x2226,0x2225,0x338}, {0x2241,0x223C,0x338}, {0x2244,0x2243,0x338},
    {0x2247,0x2245,0x338}, {0x2249,0x2248,0x338}, {0x2260,0x3D,0x338}, {0x2262,0x2261,0x338}, {0x226D,0x224D,0x338},
    {0x226E,0x3C,0x338}, {0x226F,0x3E,0x338}, {0x2270,0x2264,0x338}, {0x2271,0x2265,0x338}, {0x2274,0x2272,0x338},
    {0x2275,0x2273,0x338}, {0x2278,0x2276,0x338}, {0x2279,0x2277,0x338}, {0x2280,0x227A,0x338}, {0x2281,0x227B,0x338},
    {0x2284,0x2282,0x338}, {0x2285,0x2283,0x338}, {0x2288,0x2286,0x338}, {0x2289,0x2287,0x338}, {0x22AC,0x22A2,0x338},
    {0x22AD,0x22A8,0x338}, {0x22AE,0x22A9,0x338}, {0x22AF,0x22AB,0x338}, {0x22E0,0x227C,0x338}, {0x22E1,0x227D,0x338},
    {0x22E2,0x2291,0x338}, {0x22E3,0x2292,0x338}, {0x22EA,0x22B2,0x338}, {0x22EB,0x22B3,0x338}, {0x22EC,0x22B4,0x338},
    {0x22ED,0x22B5,0x338}, {0x2329,0x3008,0x0}, {0x232A,0x3009,0x0}, {0x2ADC,0x2ADD,0x338}, {0x304C,0x304B,0x3099},
    {0x304E,0x304D,0x3099}, {0x3050,0x304F,0x3099}, {0x3052,0x3051,0x3099}, {0x3054,0x3053,0x3099},
    {0x3056,0x3055,0x3099}, {0x3058,0x3057,0x3099}, {0x305A,0x3059,0x3099}, {0x305C,0x305B,0x3099},
    {0x305E,0x305D,0x3099}, {0x3060,0x305F,0x3099}, {0x3062,0x3061,0x3099}, {0x3065,0x3064,0x3099},
    {0x3067,0x3066,0x3099}, {0x3069,0x3068,0x3099}, {0x3070,0x306F,0x3099}, {0x3071,0x306F,0x309A},
    {0x3073,0x3072,0x3099}, {0x3074,0x3072,0x309A}, {0x3076,0x3075,0x3099}, {0x3077,0x3075,0x309A},
    {0x3079,0x3078,0x3099}, {0x307A,0x3078,0x309A}, {0x307C,0x307B,0x3099}, {0x307D,0x307B,0x309A},
    {0x3094,0x3046,0x3099}, {0x309E,0x309D,0x3099}, {0x30AC,0x30AB,0x3099}, {0x30AE,0x30AD,0x3099},
    {0x30B0,0x30AF,0x3099}, {0x30B2,0x30B1,0x3099}, {0x30B4,0x30B3,0x3099}, {0x30B6,0x30B5,0x3099},
    {0x30B8,0x30B7,0x3099}, {0x30BA,0x30B9,0x3099}, {0x30BC,0x30BB,0x3099}, {0x30BE,0x30BD,0x3099},
    {0x30C0,0x30BF,0x3099}, {0x30C2,0x30C1,0x3099}, {0x30C5,0x30C4,0x3099}, {0x30C7,0x30C6,0x3099},
    {0x30C9,0x30C8,0x3099}, {0x30D0,0x30CF,0x3099}, {0x30D1,0x30CF,0x309A}, {0x30D3,0x30D2,0x3099},
    {0x30D4,0x30D2,0x309A}, {0x30D6,0x30D5,0x3099}, {0x30D7,0x30D5,0x309A}, {0x30D9,0x30D8,0x3099},
    {0x30DA,0x30D8,0x309A}, {0x30DC,0x30DB,0x3099}, {0x30DD,0x30DB,0x309A}, {0x30F4,0x30A6,0x3099},
    {0x30F7,0x30EF,0x3099}, {0x30F8,0x30F0,0x3099}, {0x30F9,0x30F1,0x3099}, {0x30FA,0x30F2,0x3099},
    {0x30FE,0x30FD,0x3099}, {0xF900,0x8C48,0x0}, {0xF901,0x66F4,0x0}, {0xF902,0x8ECA,0x0}, {0xF903,0x8CC8,0x0},
    {0xF904,0x6ED1,0x0}, {0xF905,0x4E32,0x0}, {0xF906,0x53E5,0x0}, {0xF907,0x9F9C,0x0}, {0xF908,0x9F9C,0x0},
    {0xF909,0x5951,0x0}, {0xF90A,0x91D1,0x0}, {0xF90B,0x5587,0x0}, {0xF90C,0x5948,0x0}, {0xF90D,0x61F6,0x0},
    {0xF90E,0x7669,0x0}, {0xF90F,0x7F85,0x0}, {0xF910,0x863F,0x0}, {0xF911,0x87BA,0x0}, {0xF912,0x88F8,0x0},
    {0xF913,0x908F,0x0}, {0xF914,0x6A02,0x0}, {0xF915,0x6D1B,0x0}, {0xF916,0x70D9,0x0}, {0xF917,0x73DE,0x0},
    {0xF918,0x843D,0x0}, {0xF919,0x916A,0x0}, {0xF91A,0x99F1,0x0}, {0xF91B,0x4E82,0x0}, {0xF91C,0x5375,0x0},
    {0xF91D,0x6B04,0x0}, {0xF91E,0x721B,0x0}, {0xF91F,0x862D,0x0}, {0xF920,0x9E1E,0x0}, {0xF921,0x5D50,0x0},
    {0xF922,0x6FEB,0x0}, {0xF923,0x85CD,0x0}, {0xF924,0x8964,0x0}, {0xF925,0x62C9,0x0}, {0xF926,0x81D8,0x0},
    {0xF927,0x881F,0x0}, {0xF928,0x5ECA,0x0}, {0xF929,0x6717,0x0}, {0xF92A,0x6D6A,0x0}, {0xF92B,0x72FC,0x0},
    {0xF92C,0x90CE,0x0}, {0xF92D,0x4F86,0x0}, {0xF92E,0x51B7,0x0}, {0xF92F,0x52DE,0x0}, {0xF930,0x64C4,0x0},
    {0xF931,0x6AD3,0x0}, {0xF932,0x7210,0x0}, {0xF933,0x76E7,0x0}, {0xF934,0x8001,0x0}, {0xF935,0x8606,0x0},
    {0xF936,0x865C,0x0}, {0xF937,0x8DEF,0x0}, {0xF938,0x9732,0x0}, {0xF939,0x9B6F,0x0}, {0xF93A,0x9DFA,0x0},
    {0xF93B,0x788C,0x0}, {0xF93C,0x797F,0x0}, {0xF93D,0x7DA0,0x0}, {0xF93E,0x83C9,0x0}, {0xF93F,0x9304,0x0},
    {0xF940,0x9E7F,0x0}, {0xF941,0x8AD6,0x0}, {0xF942,0x58DF,0x0}, {0xF943,0x5F04,0x0}, {0xF944,0x7C60,0x0},
    {0xF945,0x807E,0x0}, {0xF946,0x7262,0x0}, {0xF947,0x78CA,0x0}, {0xF948,0x8CC2,0x0}, {0xF949,0x96F7,0x0},
    {0xF94A,0x58D8,0x0}, {0xF94B,0x5C62,0x0}, {0xF94C,0x6A13,0x0}, {0xF94D,0x6DDA,0x0}, {0xF94E,0x6F0F,0x0},
    {0xF94F,0x7D2F,0x0}, {0xF950,0x7E37,0x0}, {0xF951,0x964B,0x0}, {0xF952,0x52D2,0x0}, {0xF953,0x808B,0x0},
    {0xF954,0x51DC,0x0}, {0xF955,0x51CC,0x0}, {0xF956,0x7A1C,0x0}, {0xF957,0x7DBE,0x0}, {0xF958,0x83F1,0x0},
    {0xF959,0x9675,0x0}, {0xF95A,0x8B80,0x0}, {0xF95B,0x62CF,0x0}, {0xF95C,0x6A02,0x0}, {0xF95D,0x8AFE,0x0},
    {0xF95E,0x4E39,0x0}, {0xF95F,0x5BE7,0x0}, {0xF960,0x6012,0x0}, {0xF961,0x7387,0x0}, {0xF962,0x7570,0x0},
    {0xF963,0x5317,0x0}, {0xF964,0x78FB,0x0}, {0xF965,0x4FBF,0x0}, {0xF966,0x5FA9,0x0}, {0xF967,0x4E0D,0x0},
    {0xF968,0x6CCC,0x0}, {0xF969,0x6578,0x0}, {0xF96A,0x7D22,0x0}, {0xF96B,0x53C3,0x0}, {0xF96C,0x585E,0x0},
    {0xF96D,0x7701,0x0}, {0xF96E,0x8449,0x0}, {0xF96F,0x8AAA,0x0}, {0xF970,0x6BBA,0x0}, {0xF971,0x8FB0,0x0},
    {0xF972,0x6C88,0x0}, {0xF973,0x62FE,0x0}, {0xF974,0x82E5,0x0}, {0xF975,0x63A0,0x0}, {0xF976,0x7565,0x0},
    {0xF977,0x4EAE,0x0}, {0xF978,0x5169,0x0}, {0xF979,0x51C9,0x0}, {0xF97A,0x6881,0x0}, {0xF97B,0x7CE7,0x0},
    {0xF97C,0x826F,0x0}, {0xF97D,0x8AD2,0x0}, {0xF97E,0x91CF,0x0}, {0xF97F,0x52F5,0x0}, {0xF980,0x5442,0x0},
    {0xF981,0x5973,0x0}, {0xF982,0x5EEC,0x0}, {0xF983,0x65C5,0x0}, {0xF984,0x6FFE,0x0}, {0xF985,0x792A,0x0},
    {0xF986,0x95AD,0x0}, {0xF987,0x9A6A,0x0}, {0xF988,0x9E97,0x0}, {0xF989,0x9ECE,0x0}, {0xF98A,0x529B,0x0},
    {0xF98B,0x66C6,0x0}, {0xF98C,0x6B77,0x0}, {0xF98D,0x8F62,0x0}, {0xF98E,0x5E74,0x0}, {0xF98F,0x6190,0x0},
    {0xF990,0x6200,0x0}, {0xF991,0x649A,0x0}, {0xF992,0x6F23,0x0}, {0xF993,0x7149,0x0}, {0xF994,0x7489,0x0},
    {0xF995,0x79CA,0x0}, {0xF996,0x7DF4,0x0}, {0xF997,0x806F,0x0}, {0xF998,0x8F26,0x0}, {0xF999,0x84EE,0x0},
    {0xF99A,0x9023,0x0}, {0xF99B,0x934A,0x0}, {0xF99C,0x5217,0x0}, {0xF99D,0x52A3,0x0}, {0xF99E,0x54BD,0x0},
    {0xF99F,0x70C8,0x0}, {0xF9A0,0x88C2,0x0}, {0xF9A1,0x8AAA,0x0}, {0xF9A2,0x5EC9,0x0}, {0xF9A3,0x5FF5,0x0},
    {0xF9A4,0x637B,0x0}, {0xF9A5,0x6BAE,0x0}, {0xF9A6,0x7C3E,0x0}, {0xF9A7,0x7375,0x0}, {0xF9A8,0x4EE4,0x0},
    {0xF9A9,0x56F9,0x0}, {0xF9AA,0x5BE7,0x0}, {0xF9AB,0x5DBA,0x0}, {0xF9AC,0x601C,0x0}, {0xF9AD,0x73B2,0x0},
    {0xF9AE,0x7469,0x0}, {0xF9AF,0x7F9A,0x0}, {0xF9B0,0x8046,0x0}, {0xF9B1,0x9234,0x0}, {0xF9B2,0x96F6,0x0},
    {0xF9B3,0x9748,0x0}, {0xF9B4,0x9818,0x0}, {0xF9B5,0x4F8B,0x0}, {0xF9B6,0x79AE,0x0}, {0xF9B7,0x91B4,0x0},
    {0xF9B8,0x96B8,0x0}, {0xF9B9,0x60E1,0x0}, {0xF9BA,0x4E86,0x0}, {0xF9BB,0x50DA,0x0}, {0xF9BC,0x5BEE,0x0},
    {0xF9BD,0x5C3F,0x0}, {0xF9BE,0x6599,0x0}, {0xF9BF,0x6A02,0x0}, {0xF9C0,0x71CE,0x0}, {0xF9C1,0x7642,0x0},
    {0xF9C2,0x84FC,0x0}, {0xF9C3,0x907C,0x0}, {0xF9C4,0x9F8D,0x0}, {0xF9C5,0x6688,0x0}, {0xF9C6,0x962E,0x0},
    {0xF9C7,0x5289,0x0}, {0xF9C8,0x677B,0x0}, {0xF9C9,0x67F3,0x0}, {0xF9CA,0x6D41,0x0}, {0xF9CB,0x6E9C,0x0},
    {0xF9CC,0x7409,0x0}, {0xF9CD,0x7559,0x0}, {0xF9CE,0x786B,0x0}, {0xF9CF,0x7D10,0x0}, {0xF9D0,0x985E,0x0},
    {0xF9D1,0x516D,0x0}, {0xF9D2,0x622E,0x0}, {0xF9D3,0x9678,0x0}, {0xF9D4,0x502B,0x0}, {0xF9D5,0x5D19,0x0},
    {0xF9D6,0x6DEA,0x0}, {0xF9D7,0x8F2A,0x0}, {0xF9D8,0x5F8B,0x0}, {0xF9D9,0x6144,0x0}, {0xF9DA,0x6817,0x0},
    {0xF9DB,0x7387,0x0}, {0xF9DC,0x9686,0x0}, {0xF9DD,0x5229,0x0}, {0xF9DE,0x540F,0x0}, {0xF9DF,0x5C65,0x0},
    {0xF9E0,0x6613,0x0}, {0xF9E1,0x674E,0x0}, {0xF9E2,0x68A8,0x0}, {0xF9E3,0x6CE5,0x0}, {0xF9E4,0x7406,0x0},
    {0xF9E5,0x75E2,0x0}, {0xF9E6,0x7F79,0x0}, {0xF9E7,0x88CF,0x0}, {0xF9E8,0x88E1,0x0}, {0xF9E9,0x91CC,0x0},
    {0xF9EA,0x96E2,0x0}, {0xF9EB,0x533F,0x0}, {0xF9EC,0x6EBA,0x0}, {0xF9ED,0x541D,0x0}, {0xF9EE,0x71D0,0x0},
    {0xF9EF,0x7498,0x0}, {0xF9F0,0x85FA,0x0}, {0xF9F1,0x96A3,0x0}, {0xF9F2,0x9C57,0x0}, {0xF9F3,0x9E9F,0x0},
    {0xF9F4,0x6797,0x0}, {0xF9F5,0x6DCB,0x0}, {0xF9F6,0x81E8,0x0}, {0xF9F7,0x7ACB,0x0}, {0xF9F8,0x7B20,0x0},
    {0xF9F9,0x7C92,0x0}, {0xF9FA,0x72C0,0x0}, {0xF9FB,0x7099,0x0}, {0xF9FC,0x8B58,0x0}, {0xF9FD,0x4EC0,0x0},
    {0xF9FE,0x8336,0x0}, {0xF9FF,0x523A,0x0}, {0xFA00,0x5207,0x0}, {0xFA01,0x5EA6,0x0}, {0xFA02,0x62D3,0x0},
    {0xFA03,0x7CD6,0x0}, {0xFA04,0x5B85,0x0}, {0xFA05,0x6D1E,0x0}, {0xFA06,0x66B4,0x0}, {0xFA07,0x8F3B,0x0},
    {0xFA08,0x884C,0x0}, {0xFA09,0x964D,0x0}, {0xFA0A,0x898B,0x0}, {0xFA0B,0x5ED3,0x0}, {0xFA0C,0x5140,0x0},
    {0xFA0D,0x55C0,0x0}, {0xFA10,0x585A,0x0}, {0xFA12,0x6674,0x0}, {0xFA15,0x51DE,0x0}, {0xFA16,0x732A,0x0},
    {0xFA17,0x76CA,0x0}, {0xFA18,0x793C,0x0}, {0xFA19,0x795E,0x0}, {0xFA1A,0x7965,0x0}, {0xFA1B,0x798F,0x0},
    {0xFA1C,0x9756,0x0}, {0xFA1D,0x7CBE,0x0}, {0xFA1E,0x7FBD,0x0}, {0xFA20,0x8612,0x0}, {0xFA22,0x8AF8,0x0},
    {0xFA25,0x9038,0x0}, {0xFA26,0x90FD,0x0}, {0xFA2A,0x98EF,0x0}, {0xFA2B,0x98FC,0x0}, {0xFA2C,0x9928,0x0},
    {0xFA2D,0x9DB4,0x0}, {0xFA2E,0x90DE,0x0}, {0xFA2F,0x96B7,0x0}, {0xFA30,0x4FAE,0x0}, {0xFA31,0x50E7,0x0},
    {0xFA32,0x514D,0x0}, {0xFA33,0x52C9,0x0}, {0xFA34,0x52E4,0x0}, {0xFA35,0x5351,0x0}, {0xFA36,0x559D,0x0},
    {0xFA37,0x5606,0x0}, {0xFA38,0x5668,0x0}, {0xFA39,0x5840,0x0}, {0xFA3A,0x58A8,0x0}, {0xFA3B,0x5C64,0x0},
    {0xFA3C,0x5C6E,0x0}, {0xFA3D,0x6094,0x0}, {0xFA3E,0x6168,0x0}, {0xFA3F,0x618E,0x0}, {0xFA40,0x61F2,0x0},
    {0xFA41,0x654F,0x0}, {0xFA42,0x65E2,0x0}, {0xFA43,0x6691,0x0}, {0xFA44,0x6885,0x0}, {0xFA45,0x6D77,0x0},
    {0xFA46,0x6E1A,0x0}, {0xFA47,0x6F22,0x0}, {0xFA48,0x716E,0x0}, {0xFA49,0x722B,0x0}, {0xFA4A,0x7422,0x0},
    {0xFA4B,0x7891,0x0}, {0xFA4C,0x793E,0x0}, {0xFA4D,0x7949,0x0}, {0xFA4E,0x7948,0x0}, {0xFA4F,0x7950,0x0},
    {0xFA50,0x7956,0x0}, {0xFA51,0x795D,0x0}, {0xFA52,0x798D,0x0}, {0xFA53,0x798E,0x0}, {0xFA54,0x7A40,0x0},
    {0xFA55,0x7A81,0x0}, {0xFA56,0x7BC0,0x0}, {0xFA57,0x7DF4,0x0}, {0xFA58,0x7E09,0x0}, {0xFA59,0x7E41,0x0},
    {0xFA5A,0x7F72,0x0}, {0xFA5B,0x8005,0x0}, {0xFA5C,0x81ED,0x0}, {0xFA5D,0x8279,0x0}, {0xFA5E,0x8279,0x0},
    {0xFA5F,0x8457,0x0}, {0xFA60,0x8910,0x0}, {0xFA61,0x8996,0x0}, {0xFA62,0x8B01,0x0}, {0xFA63,0x8B39,0x0},
    {0xFA64,0x8CD3,0x0}, {0xFA65,0x8D08,0x0}, {0xFA66,0x8FB6,0x0}, {0xFA67,0x9038,0x0}, {0xFA68,0x96E3,0x0},
    {0xFA69,0x97FF,0x0}, {0xFA6A,0x983B,0x0}, {0xFA6B,0x6075,0x0}, {0xFA6C,0x242EE,0x0}, {0xFA6D,0x8218,0x0},
    {0xFA70,0x4E26,0x0}, {0xFA71,0x51B5,0x0}, {0xFA72,0x5168,0x0}, {0xFA73,0x4F80,0x0}, {0xFA74,0x5145,0x0},
    {0xFA75,0x5180,0x0}, {0xFA76,0x52C7,0x0}, {0xFA77,0x52FA,0x0}, {0xFA78,0x559D,0x0}, {0xFA79,0x5555,0x0},
    {0xFA7A,0x5599,0x0}, {0xFA7B,0x55E2,0x0}, {0xFA7C,0x585A,0x0}, {0xFA7D,0x58B3,0x0}, {0xFA7E,0x5944,0x0},
    {0xFA7F,0x5954,0x0}, {0xFA80,0x5A62,0x0}, {0xFA81,0x5B28,0x0}, {0xFA82,0x5ED2,0x0}, {0xFA83,0x5ED9,0x0},
    {0xFA84,0x5F69,0x0}, {0xFA85,0x5FAD,0x0}, {0xFA86,0x60D8,0x0}, {0xFA87,0x614E,0x0}, {0xFA88,0x6108,0x0},
    {0xFA89,0x618E,0x0}, {0xFA8A,0x6160,0x0}, {0xFA8B,0x61F2,0x0}, {0xFA8C,0x6234,0x0}, {0xFA8D,0x63C4,0x0},
    {0xFA8E,0x641C,0x0}, {0xFA8F,0x6452,0x0}, {0xFA90,0x6556,0x0}, {0xFA91,0x6674,0x0}, {0xFA92,0x6717,0x0},
    {0xFA93,0x671B,0x0}, {0xFA94,0x6756,0x0}, {0xFA95,0x6B79,0x0}, {0xFA96,0x6BBA,0x0}, {0xFA97,0x6D41,0x0},
    {0xFA98,0x6EDB,0x0}, {0xFA99,0x6ECB,0x0}, {0xFA9A,0x6F22,0x0}, {0xFA9B,0x701E,0x0}, {0xFA9C,0x716E,0x0},
    {0xFA9D,0x77A7,0x0}, {0xFA9E,0x7235,0x0}, {0xFA9F,0x72AF,0x0}, {0xFAA0,0x732A,0x0}, {0xFAA1,0x7471,0x0},
    {0xFAA2,0x7506,0x0}, {0xFAA3,0x753B,0x0}, {0xFAA4,0x761D,0x0}, {0xFAA5,0x761F,0x0}, {0xFAA6,0x76CA,0x0},
    {0xFAA7,0x76DB,0x0}, {0xFAA8,0x76F4,0x0}, {0xFAA9,0x774A,0x0}, {0xFAAA,0x7740,0x0}, {0xFAAB,0x78CC,0x0},
    {0xFAAC,0x7AB1,0x0}, {0xFAAD,0x7BC0,0x0}, {0xFAAE,0x7C7B,0x0}, {0xFAAF,0x7D5B,0x0}, {0xFAB0,0x7DF4,0x0},
    {0xFAB1,0x7F3E,0x0}, {0xFAB2,0x8005,0x0}, {0xFAB3,0x8352,0x0}, {0xFAB4,0x83EF,0x0}, {0xFAB5,0x8779,0x0},
    {0xFAB6,0x8941,0x0}, {0xFAB7,0x8986,0x0}, {0xFAB8,0x8996,0x0}, {0xFAB9,0x8ABF,0x0}, {0xFABA,0x8AF8,0x0},
    {0xFABB,0x8ACB,0x0}, {0xFABC,0x8B01,0x0}, {0xFABD,0x8AFE,0x0}, {0xFABE,0x8AED,0x0}, {0xFABF,0x8B39,0x0},
    {0xFAC0,0x8B8A,0x0}, {0xFAC1,0x8D08,0x0}, {0xFAC2,0x8F38,0x0}, {0xFAC3,0x9072,0x0}, {0xFAC4,0x9199,0x0},
    {0xFAC5,0x9276,0x0}, {0xFAC6,0x967C,0x0}, {0xFAC7,0x96E3,0x0}, {0xFAC8,0x9756,0x0}, {0xFAC9,0x97DB,0x0},
    {0xFACA,0x97FF,0x0}, {0xFACB,0x980B,0x0}, {0xFACC,0x983B,0x0}, {0xFACD,0x9B12,0x0}, {0xFACE,0x9F9C,0x0},
    {0xFACF,0x2284A,0x0}, {0xFAD0,0x22844,0x0}, {0xFAD1,0x233D5,0x0}, {0xFAD2,0x3B9D,0x0}, {0xFAD3,0x4018,0x0},
    {0xFAD4,0x4039,0x0}, {0xFAD5,0x25249,0x0}, {0xFAD6,0x25CD0,0x0}, {0xFAD7,0x27ED3,0x0}, {0xFAD8,0x9F43,0x0},
    {0xFAD9,0x9F8E,0x0}, {0xFB1D,0x5D9,0x5B4}, {0xFB1F,0x5F2,0x5B7}, {0xFB2A,0x5E9,0x5C1}, {0xFB2B,0x5E9,0x5C2},
    {0xFB2C,0xFB49,0x5C1}, {0xFB2D,0xFB49,0x5C2}, {0xFB2E,0x5D0,0x5B7}, {0xFB2F,0x5D0,0x5B8}, {0xFB30,0x5D0,0x5BC},
    {0xFB31,0x5D1,0x5BC}, {0xFB32,0x5D2,0x5BC}, {0xFB33,0x5D3,0x5BC}, {0xFB34,0x5D4,0x5BC}, {0xFB35,0x5D5,0x5BC},
    {0xFB36,0x5D6,0x5BC}, {0xFB38,0x5D8,0x5BC}, {0xFB39,0x5D9,0x5BC}, {0xFB3A,0x5DA,0x5BC}, {0xFB3B,0x5DB,0x5BC},
    {0xFB3C,0x5DC,0x5BC}, {0xFB3E,0x5DE,0x5BC}, {0xFB40,0x5E0,0x5BC}, {0xFB41,0x5E1,0x5BC}, {0xFB43,0x5E3,0x5BC},
    {0xFB44,0x5E4,0x5BC}, {0xFB46,0x5E6,0x5BC}, {0xFB47,0x5E7,0x5BC}, {0xFB48,0x5E8,0x5BC}, {0xFB49,0x5E9,0x5BC},
    {0xFB4A,0x5EA,0x5BC}, {0xFB4B,0x5D5,0x5B9}, {0xFB4C,0x5D1,0x5BF}, {0xFB4D,0x5DB,0x5BF}, {0xFB4E,0x5E4,0x5BF},
    {0x1109A,0x11099,0x110BA}, {0x1109C,0x1109B,0x110BA}, {0x110AB,0x110A5,0x110BA}, {0x1112E,0x11131,0x11127},
    {0x1112F,0x11132,0x11127}, {0x1134B,0x11347,0x1133E}, {0x1134C,0x11347,0x11357}, {0x114BB,0x114B9,0x114BA},
    {0x114BC,0x114B9,0x114B0}, {0x114BE,0x114B9,0x114BD}, {0x115BA,0x115B8,0x115AF}, {0x115BB,0x115B9,0x115AF},
    {0x1D15E,0x1D157,0x1D165}, {0x1D15F,0x1D158,0x1D165}, {0x1D160,0x1D15F,0x1D16E}, {0x1D161,0x1D15F,0x1D16F},
    {0x1D162,0x1D15F,0x1D170}, {0x1D163,0x1D15F,0x1D171}, {0x1D164,0x1D15F,0x1D172}, {0x1D1BB,0x1D1B9,0x1D165},
    {0x1D1BC,0x1D1BA,0x1D165}, {0x1D1BD,0x1D1BB,0x1D16E}, {0x1D1BE,0x1D1BC,0x1D16E}, {0x1D1BF,0x1D1BB,0x1D16F},
    {0x1D1C0,0x1D1BC,0x1D16F}, {0x2F800,0x4E3D,0x0}, {0x2F801,0x4E38,0x0}, {0x2F802,0x4E41,0x0},
    {0x2F803,0x20122,0x0}, {0x2F804,0x4F60,0x0}, {0x2F805,0x4FAE,0x0}, {0x2F806,0x4FBB,0x0}, {0x2F807,0x5002,0x0},
    {0x2F808,0x507A,0x0}, {0x2F809,0x5099,0x0}, {0x2F80A,0x50E7,0x0}, {0x2F80B,0x50CF,0x0}, {0x2F80C,0x349E,0x0},
    {0x2F80D,0x2063A,0x0}, {0x2F80E,0x514D,0x0}, {0x2F80F,0x5154,0x0}, {0x2F810,0x5164,0x0}, {0x2F811,0x5177,0x0},
    {0x2F812,0x2051C,0x0}, {0x2F813,0x34B9,0x0}, {0x2F814,0x5167,0x0}, {0x2F815,0x518D,0x0}, {0x2F816,0x2054B,0x0},
    {0x2F817,0x5197,0x0}, {0x2F818,0x51A4,0x0}, {0x2F819,0x4ECC,0x0}, {0x2F81A,0x51AC,0x0}, {0x2F81B,0x51B5,0x0},
    {0x2F81C,0x291DF,0x0}, {0x2F81D,0x51F5,0x0}, {0x2F81E,0x5203,0x0}, {0x2F81F,0x34DF,0x0}, {0x2F820,0x523B,0x0},
    {0x2F821,0x5246,0x0}, {0x2F822,0x5272,0x0}, {0x2F823,0x5277,0x0}, {0x2F824,0x3515,0x0}, {0x2F825,0x52C7,0x0},
    {0x2F826,0x52C9,0x0}, {0x2F827,0x52E4,0x0}, {0x2F828,0x52FA,0x0}, {0x2F829,0x5305,0x0}, {0x2F82A,0x5306,0x0},
    {0x2F82B,0x5317,0x0}, {0x2F82C,0x5349,0x0}, {0x2F82D,0x5351,0x0}, {0x2F82E,0x535A,0x0}, {0x2F82F,0x5373,0x0},
    {0x2F830,0x537D,0x0}, {0x2F831,0x537F,0x0}, {0x2F832,0x537F,0x0}, {0x2F833,0x537F,0x0}, {0x2F834,0x20A2C,0x0},
    {0x2F835,0x7070,0x0}, {0x2F836,0x53CA,0x0}, {0x2F837,0x53DF,0x0}, {0x2F838,0x20B63,0x0}, {0x2F839,0x53EB,0x0},
    {0x2F83A,0x53F1,0x0}, {0x2F83B,0x5406,0x0}, {0x2F83C,0x549E,0x0}, {0x2F83D,0x5438,0x0}, {0x2F83E,0x5448,0x0},
    {0x2F83F,0x5468,0x0}, {0x2F840,0x54A2,0x0}, {0x2F841,0x54F6,0x0}, {0x2F842,0x5510,0x0}, {0x2F843,0x5553,0x0},
    {0x2F844,0x5563,0x0}, {0x2F845,0x5584,0x0}, {0x2F846,0x5584,0x0}, {0x2F847,0x5599,0x0}, {0x2F848,0x55AB,0x0},
    {0x2F849,0x55B3,0x0}, {0x2F84A,0x55C2,0x0}, {0x2F84B,0x5716,0x0}, {0x2F84C,0x5606,0x0}, {0x2F84D,0x5717,0x0},
    {0x2F84E,0x5651,0x0}, {0x2F84F,0x5674,0x0}, {0x2F850,0x5207,0x0}, {0x2F851,0x58EE,0x0}, {0x2F852,0x57CE,0x0},
    {0x2F853,0x57F4,0x0}, {0x2F854,0x580D,0x0}, {0x2F855,0x578B,0x0}, {0x2F856,0x5832,0x0}, {0x2F857,0x5831,0x0},
    {0x2F858,0x58AC,0x0}, {0x2F859,0x214E4,0x0}, {0x2F85A,0x58F2,0x0}, {0x2F85B,0x58F7,0x0}, {0x2F85C,0x5906,0x0},
    {0x2F85D,0x591A,0x0}, {0x2F85E,0x5922,0x0}, {0x2F85F,0x5962,0x0}, {0x2F860,0x216A8,0x0}, {0x2F861,0x216EA,0x0},
    {0x2F862,0x59EC,0x0}, {0x2F863,0x5A1B,0x0}, {0x2F864,0x5A27,0x0}, {0x2F865,0x59D8,0x0}, {0x2F866,0x5A66,0x0},
    {0x2F867,0x36EE,0x0}, {0x2F868,0x36FC,0x0}, {0x2F869,0x5B08,0x0}, {0x2F86A,0x5B3E,0x0}, {0x2F86B,0x5B3E,0x0},
    {0x2F86C,0x219C8,0x0}, {0x2F86D,0x5BC3,0x0}, {0x2F86E,0x5BD8,0x0}, {0x2F86F,0x5BE7,0x0}, {0x2F870,0x5BF3,0x0},
    {0x2F871,0x21B18,0x0}, {0x2F872,0x5BFF,0x0}, {0x2F873,0x5C06,0x0}, {0x2F874,0x5F53,0x0}, {0x2F875,0x5C22,0x0},
    {0x2F876,0x3781,0x0}, {0x2F877,0x5C60,0x0}, {0x2F878,0x5C6E,0x0}, {0x2F879,0x5CC0,0x0}, {0x2F87A,0x5C8D,0x0},
    {0x2F87B,0x21DE4,0x0}, {0x2F87C,0x5D43,0x0}, {0x2F87D,0x21DE6,0x0}, {0x2F87E,0x5D6E,0x0}, {0x2F87F,0x5D6B,0x0},
    {0x2F880,0x5D7C,0x0}, {0x2F881,0x5DE1,0x0}, {0x2F882,0x5DE2,0x0}, {0x2F883,0x382F,0x0}, {0x2F884,0x5DFD,0x0},
    {0x2F885,0x5E28,0x0}, {0x2F886,0x5E3D,0x0}, {0x2F887,0x5E69,0x0}, {0x2F888,0x3862,0x0}, {0x2F889,0x22183,0x0},
    {0x2F88A,0x387C,0x0}, {0x2F88B,0x5EB0,0x0}, {0x2F88C,0x5EB3,0x0}, {0x2F88D,0x5EB6,0x0}, {0x2F88E,0x5ECA,0x0},
    {0x2F88F,0x2A392,0x0}, {0x2F890,0x5EFE,0x0}, {0x2F891,0x22331,0x0}, {0x2F892,0x22331,0x0}, {0x2F893,0x8201,0x0},
    {0x2F894,0x5F22,0x0}, {0x2F895,0x5F22,0x0}, {0x2F896,0x38C7,0x0}, {0x2F897,0x232B8,0x0}, {0x2F898,0x261DA,0x0},
    {0x2F899,0x5F62,0x0}, {0x2F89A,0x5F6B,0x0}, {0x2F89B,0x38E3,0x0}, {0x2F89C,0x5F9A,0x0}, {0x2F89D,0x5FCD,0x0},
    {0x2F89E,0x5FD7,0x0}, {0x2F89F,0x5FF9,0x0}, {0x2F8A0,0x6081,0x0}, {0x2F8A1,0x393A,0x0}, {0x2F8A2,0x391C,0x0},
    {0x2F8A3,0x6094,0x0}, {0x2F8A4,0x226D4,0x0}, {0x2F8A5,0x60C7,0x0}, {0x2F8A6,0x6148,0x0}, {0x2F8A7,0x614C,0x0},
    {0x2F8A8,0x614E,0x0}, {0x2F8A9,0x614C,0x0}, {0x2F8AA,0x617A,0x0}, {0x2F8AB,0x618E,0x0}, {0x2F8AC,0x61B2,0x0},
    {0x2F8AD,0x61A4,0x0}, {0x2F8AE,0x61AF,0x0}, {0x2F8AF,0x61DE,0x0}, {0x2F8B0,0x61F2,0x0}, {0x2F8B1,0x61F6,0x0},
    {0x2F8B2,0x6210,0x0}, {0x2F8B3,0x621B,0x0}, {0x2F8B4,0x625D,0x0}, {0x2F8B5,0x62B1,0x0}, {0x2F8B6,0x62D4,0x0},
    {0x2F8B7,0x6350,0x0}, {0x2F8B8,0x22B0C,0x0}, {0x2F8B9,0x633D,0x0}, {0x2F8BA,0x62FC,0x0}, {0x2F8BB,0x6368,0x0},
    {0x2F8BC,0x6383,0x0}, {0x2F8BD,0x63E4,0x0}, {0x2F8BE,0x22BF1,0x0}, {0x2F8BF,0x6422,0x0}, {0x2F8C0,0x63C5,0x0},
    {0x2F8C1,0x63A9,0x0}, {0x2F8C2,0x3A2E,0x0}, {0x2F8C3,0x6469,0x0}, {0x2F8C4,0x647E,0x0}, {0x2F8C5,0x649D,0x0},
    {0x2F8C6,0x6477,0x0}, {0x2F8C7,0x3A6C,0x0}, {0x2F8C8,0x654F,0x0}, {0x2F8C9,0x656C,0x0}, {0x2F8CA,0x2300A,0x0},
    {0x2F8CB,0x65E3,0x0}, {0x2F8CC,0x66F8,0x0}, {0x2F8CD,0x6649,0x0}, {0x2F8CE,0x3B19,0x0}, {0x2F8CF,0x6691,0x0},
    {0x2F8D0,0x3B08,0x0}, {0x2F8D1,0x3AE4,0x0}, {0x2F8D2,0x5192,0x0}, {0x2F8D3,0x5195,0x0}, {0x2F8D4,0x6700,0x0},
    {0x2F8D5,0x669C,0x0}, {0x2F8D6,0x80AD,0x0}, {0x2F8D7,0x43D9,0x0}, {0x2F8D8,0x6717,0x0}, {0x2F8D9,0x671B,0x0},
    {0x2F8DA,0x6721,0x0}, {0x2F8DB,0x675E,0x0}, {0x2F8DC,0x6753,0x0}, {0x2F8DD,0x233C3,0x0}, {0x2F8DE,0x3B49,0x0},
    {0x2F8DF,0x67FA,0x0}, {0x2F8E0,0x6785,0x0}, {0x2F8E1,0x6852,0x0}, {0x2F8E2,0x6885,0x0}, {0x2F8E3,0x2346D,0x0},
    {0x2F8E4,0x688E,0x0}, {0x2F8E5,0x681F,0x0}, {0x2F8E6,0x6914,0x0}, {0x2F8E7,0x3B9D,0x0}, {0x2F8E8,0x6942,0x0},
    {0x2F8E9,0x69A3,0x0}, {0x2F8EA,0x69EA,0x0}, {0x2F8EB,0x6AA8,0x0}, {0x2F8EC,0x236A3,0x0}, {0x2F8ED,0x6ADB,0x0},
    {0x2F8EE,0x3C18,0x0}, {0x2F8EF,0x6B21,0x0}, {0x2F8F0,0x238A7,0x0}, {0x2F8F1,0x6B54,0x0}, {0x2F8F2,0x3C4E,0x0},
    {0x2F8F3,0x6B72,0x0}, {0x2F8F4,0x6B9F,0x0}, {0x2F8F5,0x6BBA,0x0}, {0x2F8F6,0x6BBB,0x0}, {0x2F8F7,0x23A8D,0x0},
    {0x2F8F8,0x21D0B,0x0}, {0x2F8F9,0x23AFA,0x0}, {0x2F8FA,0x6C4E,0x0}, {0x2F8FB,0x23CBC,0x0}, {0x2F8FC,0x6CBF,0x0},
    {0x2F8FD,0x6CCD,0x0}, {0x2F8FE,0x6C67,0x0}, {0x2F8FF,0x6D16,0x0}, {0x2F900,0x6D3E,0x0}, {0x2F901,0x6D77,0x0},
    {0x2F902,0x6D41,0x0}, {0x2F903,0x6D69,0x0}, {0x2F904,0x6D78,0x0}, {0x2F905,0x6D85,0x0}, {0x2F906,0x23D1E,0x0},
    {0x2F907,0x6D34,0x0}, {0x2F908,0x6E2F,0x0}, {0x2F909,0x6E6E,0x0}, {0x2F90A,0x3D33,0x0}, {0x2F90B,0x6ECB,0x0},
    {0x2F90C,0x6EC7,0x0}, {0x2F90D,0x23ED1,0x0}, {0x2F90E,0x6DF9,0x0}, {0x2F90F,0x6F6E,0x0}, {0x2F910,0x23F5E,0x0},
    {0x2F911,0x23F8E,0x0}, {0x2F912,0x6FC6,0x0}, {0x2F913,0x7039,0x0}, {0x2F914,0x701E,0x0}, {0x2F915,0x701B,0x0},
    {0x2F916,0x3D96,0x0}, {0x2F917,0x704A,0x0}, {0x2F918,0x707D,0x0}, {0x2F919,0x7077,0x0}, {0x2F91A,0x70AD,0x0},
    {0x2F91B,0x20525,0x0}, {0x2F91C,0x7145,0x0}, {0x2F91D,0x24263,0x0}, {0x2F91E,0x719C,0x0}, {0x2F91F,0x243AB,0x0},
    {0x2F920,0x7228,0x0}, {0x2F921,0x7235,0x0}, {0x2F922,0x7250,0x0}, {0x2F923,0x24608,0x0}, {0x2F924,0x7280,0x0},
    {0x2F925,0x7295,0x0}, {0x2F926,0x24735,0x0}, {0x2F927,0x24814,0x0}, {0x2F928,0x737A,0x0}, {0x2F929,0x738B,0x0},
    {0x2F92A,0x3EAC,0x0}, {0x2F92B,0x73A5,0x0}, {0x2F92C,0x3EB8,0x0}, {0x2F92D,0x3EB8,0x0}, {0x2F92E,0x7447,0x0},
    {0x2F92F,0x745C,0x0}, {0x2F930,0x7471,0x0}, {0x2F931,0x7485,0x0}, {0x2F932,0x74CA,0x0}, {0x2F933,0x3F1B,0x0},
    {0x2F934,0x7524,0x0}, {0x2F935,0x24C36,0x0}, {0x2F936,0x753E,0x0}, {0x2F937,0x24C92,0x0}, {0x2F938,0x7570,0x0},
    {0x2F939,0x2219F,0x0}, {0x2F93A,0x7610,0x0}, {0x2F93B,0x24FA1,0x0}, {0x2F93C,0x24FB8,0x0}, {0x2F93D,0x25044,0x0},
    {0x2F93E,0x3FFC,0x0}, {0x2F93F,0x4008,0x0}, {0x2F940,0x76F4,0x0}, {0x2F941,0x250F3,0x0}, {0x2F942,0x250F2,0x0},
    {0x2F943,0x25119,0x0}, {0x2F944,0x25133,0x0}, {0x2F945,0x771E,0x0}, {0x2F946,0x771F,0x0}, {0x2F947,0x771F,0x0},
    {0x2F948,0x774A,0x0}, {0x2F949,0x4039,0x0}, {0x2F94A,0x778B,0x0}, {0x2F94B,0x4046,0x0}, {0x2F94C,0x4096,0x0},
    {0x2F94D,0x2541D,0x0}, {0x2F94E,0x784E,0x0}, {0x2F94F,0x788C,0x0}, {0x2F950,0x78CC,0x0}, {0x2F951,0x40E3,0x0},
    {0x2F952,0x25626,0x0}, {0x2F953,0x7956,0x0}, {0x2F954,0x2569A,0x0}, {0x2F955,0x256C5,0x0}, {0x2F956,0x798F,0x0},
    {0x2F957,0x79EB,0x0}, {0x2F958,0x412F,0x0}, {0x2F959,0x7A40,0x0}, {0x2F95A,0x7A4A,0x0}, {0x2F95B,0x7A4F,0x0},
    {0x2F95C,0x2597C,0x0}, {0x2F95D,0x25AA7,0x0}, {0x2F95E,0x25AA7,0x0}, {0x2F95F,0x7AEE,0x0}, {0x2F960,0x4202,0x0},
    {0x2F961,0x25BAB,0x0}, {0x2F962,0x7BC6,0x0}, {0x2F963,0x7BC9,0x0}, {0x2F964,0x4227,0x0}, {0x2F965,0x25C80,0x0},
    {0x2F966,0x7CD2,0x0}, {0x2F967,0x42A0,0x0}, {0x2F968,0x7CE8,0x0}, {0x2F969,0x7CE3,0x0}, {0x2F96A,0x7D00,0x0},
    {0x2F96B,0x25F86,0x0}, {0x2F96C,0x7D63,0x0}, {0x2F96D,0x4301,0x0}, {0x2F96E,0x7DC7,0x0}, {0x2F96F,0x7E02,0x0},
    {0x2F970,0x7E45,0x0}, {0x2F971,0x4334,0x0}, {0x2F972,0x26228,0x0}, {0x2F973,0x26247,0x0}, {0x2F974,0x4359,0x0},
    {0x2F975,0x262D9,0x0}, {0x2F976,0x7F7A,0x0}, {0x2F977,0x2633E,0x0}, {0x2F978,0x7F95,0x0}, {0x2F979,0x7FFA,0x0},
    {0x2F97A,0x8005,0x0}, {0x2F97B,0x264DA,0x0}, {0x2F97C,0x26523,0x0}, {0x2F97D,0x8060,0x0}, {0x2F97E,0x265A8,0x0},
    {0x2F97F,0x8070,0x0}, {0x2F980,0x2335F,0x0}, {0x2F981,0x43D5,0x0}, {0x2F982,0x80B2,0x0}, {0x2F983,0x8103,0x0},
    {0x2F984,0x440B,0x0}, {0x2F985,0x813E,0x0}, {0x2F986,0x5AB5,0x0}, {0x2F987,0x267A7,0x0}, {0x2F988,0x267B5,0x0},
    {0x2F989,0x23393,0x0}, {0x2F98A,0x2339C,0x0}, {0x2F98B,0x8201,0x0}, {0x2F98C,0x8204,0x0}, {0x2F98D,0x8F9E,0x0},
    {0x2F98E,0x446B,0x0}, {0x2F98F,0x8291,0x0}, {0x2F990,0x828B,0x0}, {0x2F991,0x829D,0x0}, {0x2F992,0x52B3,0x0},
    {0x2F993,0x82B1,0x0}, {0x2F994,0x82B3,0x0}, {0x2F995,0x82BD,0x0}, {0x2F996,0x82E6,0x0}, {0x2F997,0x26B3C,0x0},
    {0x2F998,0x82E5,0x0}, {0x2F999,0x831D,0x0}, {0x2F99A,0x8363,0x0}, {0x2F99B,0x83AD,0x0}, {0x2F99C,0x8323,0x0},
    {0x2F99D,0x83BD,0x0}, {0x2F99E,0x83E7,0x0}, {0x2F99F,0x8457,0x0}, {0x2F9A0,0x8353,0x0}, {0x2F9A1,0x83CA,0x0},
    {0x2F9A2,0x83CC,0x0}, {0x2F9A3,0x83DC,0x0}, {0x2F9A4,0x26C36,0x0}, {0x2F9A5,0x26D6B,0x0}, {0x2F9A6,0x26CD5,0x0},
    {0x2F9A7,0x452B,0x0}, {0x2F9A8,0x84F1,0x0}, {0x2F9A9,0x84F3,0x0}, {0x2F9AA,0x8516,0x0}, {0x2F9AB,0x273CA,0x0},
    {0x2F9AC,0x8564,0x0}, {0x2F9AD,0x26F2C,0x0}, {0x2F9AE,0x455D,0x0}, {0x2F9AF,0x4561,0x0}, {0x2F9B0,0x26FB1,0x0},
    {0x2F9B1,0x270D2,0x0}, {0x2F9B2,0x456B,0x0}, {0x2F9B3,0x8650,0x0}, {0x2F9B4,0x865C,0x0}, {0x2F9B5,0x8667,0x0},
    {0x2F9B6,0x8669,0x0}, {0x2F9B7,0x86A9,0x0}, {0x2F9B8,0x8688,0x0}, {0x2F9B9,0x870E,0x0}, {0x2F9BA,0x86E2,0x0},
    {0x2F9BB,0x8779,0x0}, {0x2F9BC,0x8728,0x0}, {0x2F9BD,0x876B,0x0}, {0x2F9BE,0x8786,0x0}, {0x2F9BF,0x45D7,0x0},
    {0x2F9C0,0x87E1,0x0}, {0x2F9C1,0x8801,0x0}, {0x2F9C2,0x45F9,0x0}, {0x2F9C3,0x8860,0x0}, {0x2F9C4,0x8863,0x0},
    {0x2F9C5,0x27667,0x0}, {0x2F9C6,0x88D7,0x0}, {0x2F9C7,0x88DE,0x0}, {0x2F9C8,0x4635,0x0}, {0x2F9C9,0x88FA,0x0},
    {0x2F9CA,0x34BB,0x0}, {0x2F9CB,0x278AE,0x0}, {0x2F9CC,0x27966,0x0}, {0x2F9CD,0x46BE,0x0}, {0x2F9CE,0x46C7,0x0},
    {0x2F9CF,0x8AA0,0x0}, {0x2F9D0,0x8AED,0x0}, {0x2F9D1,0x8B8A,0x0}, {0x2F9D2,0x8C55,0x0}, {0x2F9D3,0x27CA8,0x0},
    {0x2F9D4,0x8CAB,0x0}, {0x2F9D5,0x8CC1,0x0}, {0x2F9D6,0x8D1B,0x0}, {0x2F9D7,0x8D77,0x0}, {0x2F9D8,0x27F2F,0x0},
    {0x2F9D9,0x20804,0x0}, {0x2F9DA,0x8DCB,0x0}, {0x2F9DB,0x8DBC,0x0}, {0x2F9DC,0x8DF0,0x0}, {0x2F9DD,0x208DE,0x0},
    {0x2F9DE,0x8ED4,0x0}, {0x2F9DF,0x8F38,0x0}, {0x2F9E0,0x285D2,0x0}, {0x2F9E1,0x285ED,0x0}, {0x2F9E2,0x9094,0x0},
    {0x2F9E3,0x90F1,0x0}, {0x2F9E4,0x9111,0x0}, {0x2F9E5,0x2872E,0x0}, {0x2F9E6,0x911B,0x0}, {0x2F9E7,0x9238,0x0},
    {0x2F9E8,0x92D7,0x0}, {0x2F9E9,0x92D8,0x0}, {0x2F9EA,0x927C,0x0}, {0x2F9EB,0x93F9,0x0}, {0x2F9EC,0x9415,0x0},
    {0x2F9ED,0x28BFA,0x0}, {0x2F9EE,0x958B,0x0}, {0x2F9EF,0x4995,0x0}, {0x2F9F0,0x95B7,0x0}, {0x2F9F1,0x28D77,0x0},
    {0x2F9F2,0x49E6,0x0}, {0x2F9F3,0x96C3,0x0}, {0x2F9F4,0x5DB2,0x0}, {0x2F9F5,0x9723,0x0}, {0x2F9F6,0x29145,0x0},
    {0x2F9F7,0x2921A,0x0}, {0x2F9F8,0x4A6E,0x0}, {0x2F9F9,0x4A76,0x0}, {0x2F9FA,0x97E0,0x0}, {0x2F9FB,0x2940A,0x0},
    {0x2F9FC,0x4AB2,0x0}, {0x2F9FD,0x29496,0x0}, {0x2F9FE,0x980B,0x0}, {0x2F9FF,0x980B,0x0}, {0x2FA00,0x9829,0x0},
    {0x2FA01,0x295B6,0x0}, {0x2FA02,0x98E2,0x0}, {0x2FA03,0x4B33,0x0}, {0x2FA04,0x9929,0x0}, {0x2FA05,0x99A7,0x0},
    {0x2FA06,0x99C2,0x0}, {0x2FA07,0x99FE,0x0}, {0x2FA08,0x4BCE,0x0}, {0x2FA09,0x29B30,0x0}, {0x2FA0A,0x9B12,0x0},
    {0x2FA0B,0x9C40,0x0}, {0x2FA0C,0x9CFD,0x0}, {0x2FA0D,0x4CCE,0x0}, {0x2FA0E,0x4CED,0x0}, {0x2FA0F,0x9D67,0x0},
    {0x2FA10,0x2A0CE,0x0}, {0x2FA11,0x4CF8,0x0}, {0x2FA12,0x2A105,0x0}, {0x2FA13,0x2A20E,0x0}, {0x2FA14,0x2A291,0x0},
    {0x2FA15,0x9EBB,0x0}, {0x2FA16,0x4D56,0x0}, {0x2FA17,0x9EF9,0x0}, {0x2FA18,0x9EFE,0x0}, {0x2FA19,0x9F05,0x0},
    {0x2FA1A,0x9F0F,0x0}, {0x2FA1B,0x9F16,0x0}, {0x2FA1C,0x9F3B,0x0}, {0x2FA1D,0x2A600,0x0}
};

/* Those of the pairs above that NFC composes, ordered by their two characters. */
static const uint16_t fg__unicode_composed[] = {
    912, 909, 913, 0, 1, 2, 3, 53, 55, 238, 4, 572, 5, 165, 208, 210, 570, 415, 57, 417, 419, 421, 59, 61, 63, 65, 6,
    425, 67, 427, 431, 433, 429, 7, 8, 9, 598, 69, 71, 73, 10, 596, 77, 212, 214, 594, 240, 75, 439, 441, 445, 198,
    79, 447, 81, 83, 187, 85, 87, 449, 453, 236, 451, 455, 457, 11, 12, 13, 89, 91, 93, 97, 14, 610, 167, 216, 218,
    612, 95, 459, 98, 463, 189, 465, 100, 467, 102, 106, 469, 104, 475, 473, 477, 479, 481, 200, 108, 15, 483, 112,
    485, 110, 489, 487, 16, 17, 18, 19, 114, 116, 246, 20, 616, 118, 169, 220, 222, 161, 614, 191, 499, 501, 120, 503,
    124, 224, 226, 505, 122, 509, 126, 128, 511, 132, 513, 232, 130, 521, 136, 523, 234, 134, 527, 525, 21, 22, 23,
    138, 140, 142, 24, 640, 144, 146, 171, 228, 230, 163, 638, 529, 148, 533, 531, 539, 541, 543, 545, 150, 549, 547,
    551, 553, 555, 652, 25, 152, 658, 250, 557, 154, 656, 654, 155, 559, 157, 159, 561, 563, 26, 27, 28, 29, 54, 56,
    239, 30, 573, 31, 166, 209, 211, 571, 416, 58, 418, 420, 422, 60, 62, 64, 66, 32, 426, 68, 428, 432, 434, 430, 33,
    34, 35, 599, 70, 72, 74, 36, 597, 78, 213, 215, 595, 241, 76, 440, 442, 446, 199, 80, 448, 82, 84, 188, 86, 88,
    450, 454, 237, 452, 456, 458, 565, 37, 38, 39, 90, 92, 94, 40, 611, 168, 217, 219, 613, 96, 460, 99, 197, 464,
    190, 466, 101, 468, 103, 107, 470, 105, 476, 474, 478, 480, 482, 201, 109, 41, 484, 113, 486, 111, 490, 488, 42,
    43, 44, 45, 115, 117, 247, 46, 617, 119, 170, 221, 223, 162, 615, 192, 500, 502, 121, 504, 125, 225, 227, 506,
    123, 510, 127, 129, 512, 133, 514, 233, 131, 522, 566, 137, 524, 235, 135, 528, 526, 47, 48, 49, 139, 141, 143,
    50, 641, 145, 147, 172, 229, 231, 164, 639, 530, 149, 534, 532, 540, 542, 544, 546, 151, 550, 548, 567, 552, 554,
    556, 653, 51, 153, 659, 251, 558, 52, 657, 568, 655, 156, 560, 158, 160, 562, 564, 875, 258, 835, 576, 574, 580,
    578, 181, 202, 204, 185, 423, 602, 600, 606, 604, 461, 620, 618, 624, 622, 491, 244, 493, 242, 206, 179, 175, 173,
    177, 577, 575, 581, 579, 182, 203, 205, 186, 424, 603, 601, 607, 605, 462, 621, 619, 625, 623, 492, 245, 494, 243,
    207, 180, 176, 174, 178, 586, 584, 590, 588, 587, 585, 591, 589, 435, 437, 436, 438, 495, 497, 496, 498, 515, 516,
    517, 518, 535, 536, 537, 538, 569, 630, 628, 634, 632, 636, 631, 629, 635, 633, 637, 644, 642, 648, 646, 650, 645,
    643, 649, 647, 651, 195, 193, 194, 183, 184, 443, 444, 248, 249, 196, 831, 259, 830, 829, 668, 669, 833, 841, 261,
    682, 683, 843, 262, 696, 697, 845, 857, 263, 856, 855, 268, 712, 713, 883, 264, 726, 727, 874, 872, 265, 871, 870,
    269, 740, 885, 266, 752, 753, 887, 826, 838, 760, 270, 823, 822, 660, 661, 827, 825, 762, 271, 676, 677, 764, 272,
    688, 689, 839, 837, 766, 273, 850, 849, 275, 704, 705, 853, 768, 277, 720, 721, 866, 867, 770, 278, 863, 862, 276,
    732, 733, 868, 772, 279, 744, 745, 881, 879, 851, 267, 854, 864, 274, 869, 880, 280, 281, 285, 302, 304, 284, 282,
    306, 283, 300, 310, 312, 287, 314, 289, 316, 286, 318, 324, 288, 326, 328, 330, 332, 322, 303, 305, 293, 291, 307,
    292, 301, 311, 313, 296, 315, 290, 317, 295, 319, 325, 297, 327, 329, 331, 333, 323, 294, 298, 299, 308, 309, 320,
    321, 334, 335, 337, 336, 338, 340, 341, 339, 342, 343, 344, 353, 354, 365, 364, 366, 369, 370, 372, 371, 373, 374,
    377, 375, 376, 378, 379, 381, 380, 382, 383, 385, 384, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 413, 414,
    471, 472, 507, 508, 519, 520, 582, 592, 583, 593, 608, 609, 626, 627, 662, 664, 666, 774, 663, 665, 667, 775, 776,
    777, 778, 779, 780, 781, 670, 672, 674, 782, 671, 673, 675, 783, 784, 785, 786, 787, 788, 789, 678, 680, 679, 681,
    684, 686, 685, 687, 690, 692, 694, 790, 691, 693, 695, 791, 792, 793, 794, 795, 796, 797, 698, 700, 702, 798, 699,
    701, 703, 799, 800, 801, 802, 803, 804, 805, 706, 708, 710, 707, 709, 711, 714, 716, 718, 715, 717, 719, 722, 724,
    723, 725, 728, 730, 729, 731, 734, 736, 738, 735, 737, 739, 741, 742, 743, 746, 748, 750, 806, 747, 749, 751, 807,
    808, 809, 810, 811, 812, 813, 754, 756, 758, 814, 755, 757, 759, 815, 816, 817, 818, 819, 820, 821, 824, 836, 878,
    828, 846, 847, 848, 840, 882, 859, 860, 861, 894, 895, 896, 897, 899, 898, 900, 901, 902, 903, 904, 905, 906, 907,
    908, 911, 910, 914, 915, 916, 917, 918, 919, 920, 921, 930, 931, 922, 923, 924, 925, 932, 933, 926, 927, 928, 929,
    934, 935, 936, 937, 966, 941, 942, 943, 944, 945, 946, 947, 948, 949, 950, 951, 952, 953, 954, 955, 956, 957, 958,
    959, 960, 961, 962, 963, 964, 965, 967, 993, 968, 969, 970, 971, 972, 973, 974, 975, 976, 977, 978, 979, 980, 981,
    982, 983, 984, 985, 986, 987, 988, 989, 990, 991, 992, 994, 995, 996, 997, 998, 1493, 1494, 1495, 1496, 1497,
    1498, 1499, 1501, 1500, 1502, 1503, 1504
};
/* ================================================================================================
   >>token  text to tokens and back: SentencePiece and byte-level BPE vocabularies

   Two kinds of tokenizer.ggml.model are known. "llama" is SentencePiece's BPE: the text's characters, spaces written as
   U+2581, are joined pair by pair, the pair that makes the token of the highest score first; characters that are left
   without a token become byte tokens <0xXX>. "gpt2" is byte-level BPE: tokenizer.ggml.pre names the rules that cut the
   text into words, whose bytes are joined in the order of tokenizer.ggml.merges. Rules, versions of Unicode and so the
   tokens are those of Hugging Face tokenizers (tests/check_tokenizers.py compares).
   ================================================================================================ */

enum { /* tokenizer.ggml.token_type */
    FG__TOKEN_NORMAL = 1,
    FG__TOKEN_UNKNOWN = 2,
    FG__TOKEN_CONTROL = 3,
    FG__TOKEN_USER_DEFINED = 4,
    FG__TOKEN_UNUSED = 5,
    FG__TOKEN_BYTE = 6,
    FG__TOKEN_TYPE = 7, /* the bits of fg__vocab.attributes that hold the above */
    FG__TOKEN_END = 8,  /* ends a generation */
    FG__TOKEN_RSTRIP = 16 /* takes the white space that follows it in the text */
};

#define FG__MAX_TEXT ((size_t)1 << 26)  /* bytes that are tokenised in one call */
#define FG__MAX_SPECIAL 256             /* bytes of a special token that is recognised in text */
#define FG__MAX_PROBES 256              /* steps of a hash table search that only a file made for it needs */
#define FG__REPLACEMENT 0xFFFDu
#define FG__SPACE_MARK "\xE2\x96\x81" /* U+2581, SentencePiece's space */

/* A character and its classes (FG__CHAR_...) in one word, as the splitting rules see it. */
#define FG__RUNE(code, classes) ((uint32_t)(code) | (uint32_t)(classes) << 21)
#define FG__RUNE_CODE(rune) ((rune) & 0x1FFFFFu)
#define FG__RUNE_IS(rune, classes) (((rune) >> 21 & (uint32_t)(classes)) != 0)

struct fg__stage;
typedef bool (*fg__set_fn)(uint32_t rune);
/* How many characters the rule takes at `at` of the piece [begin, end); 0: it does not match there. */
typedef size_t (*fg__match_fn)(const struct fg__stage *stage, const uint32_t *runes, size_t begin, size_t at,
                               size_t end);

/* One rule of a pre-tokenizer. What it matches becomes a piece, and so does what is left between two matches. */
typedef struct fg__stage {
    fg__match_fn match;
    fg__set_fn set;       /* the characters that fg__match_run and fg__match_spaced take, */
    unsigned least, most; /* and how many */
} fg__stage;

enum {
    FG__PRE_NFC = 1,           /* text is normalised first */
    FG__PRE_IGNORE_MERGES = 2, /* a word that is a token is that token, whatever the merges say */
    FG__PRE_ADD_BOS = 4,       /* the default of tokenizer.ggml.add_bos_token */
    FG__PRE_BYTE_DIGITS = 8    /* words are cut at digits once more, after their bytes became characters */
};

typedef struct fg__pretokenizer {
    const char *name; /* tokenizer.ggml.pre */
    const fg__stage *stages;
    unsigned flags;
} fg__pretokenizer;

/* A pair of tokens that byte-level BPE joins. */
typedef struct fg__merge {
    int32_t left, right;
    uint32_t rank; /* low first */
    int32_t id;    /* the joined token; -1: this entry of the table is empty */
} fg__merge;

/* A node of the trie of special tokens; children of a node are a list. Node 0 is the root and so means none, too. */
typedef struct fg__trie_node {
    uint32_t child, sibling;
    int32_t id; /* the token that ends here, or -1 */
    unsigned char byte;
} fg__trie_node;

typedef struct fg__vocab {
    fg__env env;
    int n_tokens;
    int bos, eos, unk, pad, eot, eom; /* -1: none */
    bool add_bos, add_eos;
    bool spm;            /* SentencePiece, else byte-level BPE. Only SentencePiece has: */
    bool add_space;      /* text gets a space in front, which detokenising takes away again (fg__utf8.strip_space) */
    bool squeeze_spaces; /* no spaces at the ends of a text and single ones inside */
    const fg__pretokenizer *pre;   /* byte-level BPE */
    const fg__gguf_string *texts;  /* [n_tokens] as in the file */
    unsigned char *attributes;     /* [n_tokens] FG__TOKEN_... */
    uint32_t *ranks;               /* [n_tokens] SentencePiece: order of joining, from the scores */
    char *pieces;                  /* what the tokens stand for, one after the other: */
    size_t *piece_at;              /* [n_tokens + 1] where each starts */
    int32_t *words;                /* [word_mask + 1] hash table of ordinary tokens by their text; -1: empty */
    size_t word_mask, longest;     /* `longest`: bytes of the longest of those texts */
    fg__merge *merges;             /* [merge_mask + 1] hash table */
    size_t merge_mask;
    fg__trie_node *trie;           /* special tokens */
    size_t n_trie, trie_capacity;
    bool special_first[256];       /* bytes that special tokens start with */
    int32_t byte_ids[256];         /* token of a byte, or -1 */
    unsigned char classes[0x10000]; /* of the characters up to U+FFFF, for byte-level BPE */
} fg__vocab;

/* ------------------------------------------------------------------------------------------------
   UTF-8
   ------------------------------------------------------------------------------------------------ */

/* Length of the character at the start of `text`; 0 when all n >= 1 bytes are the beginning of one; negative: so many
   bytes are no character and cannot become one (the longest such beginning, as Unicode recommends for U+FFFD). */
static int fg__utf8_measure(const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    int i, length = s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    unsigned char low = 0x80, high = 0xBF;
    if (s[0] < 0x80) return 1;
    if (s[0] < 0xC2 || s[0] > 0xF4) return -1;
    if (s[0] == 0xE0) low = 0xA0; /* no longer than needed, */
    if (s[0] == 0xF0) low = 0x90;
    if (s[0] == 0xED) high = 0x9F; /* no surrogates, */
    if (s[0] == 0xF4) high = 0x8F; /* nothing past U+10FFFF */
    for (i = 1; i < length; i++) {
        if ((size_t)i == n) return 0;
        if (s[i] < low || s[i] > high) return -i;
        low = 0x80;
        high = 0xBF;
    }
    return length;
}

/* Reads one character and returns its length; what is no UTF-8 reads as U+FFFD. */
static size_t fg__utf8_decode(const char *text, size_t n, uint32_t *code) {
    int i, length = fg__utf8_measure(text, n);
    *code = FG__REPLACEMENT;
    if (length <= 0) return length ? (size_t)-length : n;
    *code = (unsigned char)text[0];
    if (length > 1) *code &= 0xFFu >> (length + 1);
    for (i = 1; i < length; i++) *code = *code << 6 | ((unsigned char)text[i] & 0x3Fu);
    return (size_t)length;
}

static size_t fg__utf8_encode(uint32_t code, char *to) {
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        to[0] = (char)(0xC0 | code >> 6);
        to[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        to[0] = (char)(0xE0 | code >> 12);
        to[1] = (char)(0x80 | (code >> 6 & 0x3F));
        to[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    to[0] = (char)(0xF0 | code >> 18);
    to[1] = (char)(0x80 | (code >> 12 & 0x3F));
    to[2] = (char)(0x80 | (code >> 6 & 0x3F));
    to[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}

/* A stream of bytes that comes out as whole characters. Zeroed, it is ready; strip_space drops one leading space. */
typedef struct fg__utf8 {
    char held[4]; /* the beginning of a character */
    int n;
    bool strip_space;
} fg__utf8;

static void fg__utf8_settle(fg__utf8 *stream, fg__text *out) {
    int length;
    while (stream->n && (length = fg__utf8_measure(stream->held, (size_t)stream->n)) != 0) {
        if (length > 0) fg__text_add(out, stream->held, (size_t)length);
        else fg__text_add(out, "\xEF\xBF\xBD", 3);
        if (length < 0) length = -length;
        stream->n -= length;
        memmove(stream->held, stream->held + length, (size_t)stream->n);
    }
}

/* Adds bytes; `out` gets the characters that are complete, and U+FFFD for bytes that are no UTF-8. */
static void fg__utf8_push(fg__utf8 *stream, const char *bytes, size_t length, fg__text *out) {
    size_t i = stream->strip_space && length && bytes[0] == ' ' ? 1 : 0;
    if (length) stream->strip_space = false;
    for (; i < length; i++) {
        stream->held[stream->n++] = bytes[i];
        fg__utf8_settle(stream, out);
    }
}

/* Ends the stream: a character that was not completed comes out as U+FFFD. */
static void fg__utf8_flush(fg__utf8 *stream, fg__text *out) {
    if (stream->n) fg__text_add(out, "\xEF\xBF\xBD", 3);
    stream->n = 0;
}

/* ------------------------------------------------------------------------------------------------
   Characters: classes and normalisation
   ------------------------------------------------------------------------------------------------ */

/* The last entry of a table of (code << 8 | value) that is not above `code`. */
static unsigned fg__unicode_find(const uint32_t *table, int count, uint32_t code) {
    int low = 0, high = count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (table[middle] >> 8 <= code) low = middle;
        else high = middle;
    }
    return table[low] & 0xFF;
}

static unsigned fg__char_classes(uint32_t code) {
    return fg__unicode_find(fg__unicode_classes, FG__COUNT(fg__unicode_classes), code);
}

static unsigned fg__combining_class(uint32_t code) {
    if (code < 0x300) return 0;
    return fg__unicode_find(fg__unicode_marks, FG__COUNT(fg__unicode_marks), code);
}

/* The table's row {code, first, second} of a character that decomposes, or NULL. */
static const uint32_t *fg__nfc_pair(uint32_t code) {
    int low = 0, high = FG__COUNT(fg__unicode_pairs) - 1;
    while (low <= high) {
        int middle = (low + high) / 2;
        uint32_t found = fg__unicode_pairs[middle][0];
        if (found == code) return fg__unicode_pairs[middle];
        if (found < code) low = middle + 1;
        else high = middle - 1;
    }
    return NULL;
}

/* Writes the canonical decomposition of a character, at most 4 of them, and returns how many. */
static int fg__nfc_expand(uint32_t code, uint32_t *to) {
    uint32_t tail[4], hangul = code - 0xAC00u;
    const uint32_t *pair;
    int i, n = 0;
    if (hangul < 11172) {
        to[0] = 0x1100 + hangul / 588;
        to[1] = 0x1161 + hangul % 588 / 28;
        to[2] = 0x11A7 + hangul % 28;
        return hangul % 28 ? 3 : 2;
    }
    while (n < 3 && (pair = fg__nfc_pair(code)) != NULL) {
        if (pair[2]) tail[n++] = pair[2];
        code = pair[1];
    }
    to[0] = code;
    for (i = 0; i < n; i++) to[i + 1] = tail[n - 1 - i];
    return n + 1;
}

/* The character that two compose to, or 0. */
static uint32_t fg__nfc_join(uint32_t first, uint32_t second) {
    int low = 0, high = FG__COUNT(fg__unicode_composed) - 1;
    if (first - 0x1100u < 19 && second - 0x1161u < 21) return 0xAC00 + ((first - 0x1100) * 21 + second - 0x1161) * 28;
    if (first - 0xAC00u < 11172 && (first - 0xAC00) % 28 == 0 && second - 0x11A8u < 27) return first + second - 0x11A7;
    while (low <= high) {
        int middle = (low + high) / 2;
        const uint32_t *pair = fg__unicode_pairs[fg__unicode_composed[middle]];
        if (pair[1] == first && pair[2] == second) return pair[0];
        if (pair[1] < first || (pair[1] == first && pair[2] < second)) low = middle + 1;
        else high = middle - 1;
    }
    return 0;
}

/* Sorts a run of marks by combining class, equal ones staying in order; `spare` has room for them. */
static void fg__nfc_sort(uint32_t *marks, size_t n, uint32_t *spare) {
    size_t i, at[257];
    memset(at, 0, sizeof(at));
    for (i = 0; i < n; i++) at[fg__combining_class(marks[i]) + 1]++;
    for (i = 1; i < 257; i++) at[i] += at[i - 1];
    for (i = 0; i < n; i++) spare[at[fg__combining_class(marks[i])]++] = marks[i];
    memcpy(marks, spare, n * sizeof(*marks));
}

/* Puts every run of marks in canonical order. `spare` is as large as `codes`. */
static void fg__nfc_order(uint32_t *codes, size_t n, uint32_t *spare) {
    size_t i, start = 0;
    for (i = 0; i <= n; i++) {
        if (i < n && fg__combining_class(codes[i])) continue;
        if (i - start > 1) fg__nfc_sort(codes + start, i - start, spare);
        start = i + 1;
    }
}

/* Composes in place and returns the new length. */
static size_t fg__nfc_compose(uint32_t *codes, size_t n) {
    size_t i, count = 0, starter = n;
    int last = -1; /* class of the character before, -1 where that is the starter */
    for (i = 0; i < n; i++) {
        int mark = (int)fg__combining_class(codes[i]);
        uint32_t joined = starter < n && last < mark ? fg__nfc_join(codes[starter], codes[i]) : 0;
        if (joined) {
            codes[starter] = joined;
            continue;
        }
        if (!mark) starter = count;
        last = mark ? mark : -1;
        codes[count++] = codes[i];
    }
    return count;
}

/* ------------------------------------------------------------------------------------------------
   Pre-tokenizers: the rules that cut text into words before byte-level BPE
   ------------------------------------------------------------------------------------------------ */

static bool fg__rune_is_letter(uint32_t rune) { return FG__RUNE_IS(rune, FG__CHAR_LETTER); }
static bool fg__rune_is_number(uint32_t rune) { return FG__RUNE_IS(rune, FG__CHAR_NUMBER); }
static bool fg__rune_is_punct(uint32_t rune) { return FG__RUNE_IS(rune, FG__CHAR_PUNCT); }
static bool fg__rune_is_space(uint32_t rune) { return FG__RUNE_IS(rune, FG__CHAR_SPACE); }
static bool fg__rune_is_digit(uint32_t rune) { return FG__RUNE_IS(rune, FG__CHAR_DIGIT); }
static bool fg__rune_is_old_punct(uint32_t rune) { return FG__RUNE_IS(rune, FG__CHAR_OLD_PUNCT); }
static bool fg__rune_is_cased(uint32_t rune) { return FG__RUNE_IS(rune, FG__CHAR_CASED); }
static bool fg__rune_is_other(uint32_t rune) {
    return !FG__RUNE_IS(rune, FG__CHAR_SPACE | FG__CHAR_LETTER | FG__CHAR_NUMBER);
}

static bool fg__rune_is_newline(uint32_t rune) { return FG__RUNE_CODE(rune) == '\r' || FG__RUNE_CODE(rune) == '\n'; }
static bool fg__rune_is_ascii_digit(uint32_t rune) { return FG__RUNE_CODE(rune) - '0' < 10; }

static bool fg__rune_in(uint32_t rune, uint32_t first, uint32_t last) {
    return FG__RUNE_CODE(rune) - first <= last - first;
}

/* Chinese, Korean and more, as the DeepSeek tokenizers list them */
static bool fg__rune_is_deepseek_cjk(uint32_t rune) {
    return fg__rune_in(rune, 0x800, 0x9FA5) || fg__rune_in(rune, 0xAC00, 0xD7FF);
}

/* [!-/:-~] and some wide punctuation, as DeepSeek LLM's tokenizer lists them; it has the ASCII letters, too */
static bool fg__rune_is_deepseek_punct(uint32_t rune) {
    return fg__rune_in(rune, '!', '/') || fg__rune_in(rune, ':', '~') || fg__rune_in(rune, 0xFF01, 0xFF0F) ||
           fg__rune_in(rune, 0xFF1A, 0xFF5E) || fg__rune_in(rune, 0x2018, 0x201F) || fg__rune_in(rune, 0x3000, 0x3002);
}

/* [\p{P}$+<=>^~|] */
static bool fg__rune_is_default_punct(uint32_t rune) {
    uint32_t code = FG__RUNE_CODE(rune);
    return fg__rune_is_punct(rune) || (code && code < 0x80 && strchr("$+<=>^~|", (int)code));
}

static size_t fg__run_end(fg__set_fn set, const uint32_t *runes, size_t at, size_t end) {
    while (at < end && set(runes[at])) at++;
    return at;
}

/* [set]{least,most} */
static size_t fg__match_run(const fg__stage *stage, const uint32_t *runes, size_t begin, size_t at, size_t end) {
    size_t length = fg__run_end(stage->set, runes, at, end - at > stage->most ? at + stage->most : end) - at;
    (void)begin;
    return length < stage->least ? 0 : length;
}

/* \s?[set]+ */
static size_t fg__match_spaced(const fg__stage *stage, const uint32_t *runes, size_t begin, size_t at, size_t end) {
    size_t stop, first = at;
    (void)begin;
    if (fg__rune_is_space(runes[at]) && at + 1 < end && stage->set(runes[at + 1])) first++;
    stop = fg__run_end(stage->set, runes, first, end);
    return stop > first ? stop - at : 0;
}

/* \s+$ ; the first space of a run answers for all of them */
static size_t fg__match_last_spaces(const fg__stage *stage, const uint32_t *runes, size_t begin, size_t at,
                                    size_t end) {
    (void)stage;
    if (at > begin && fg__rune_is_space(runes[at - 1])) return 0;
    return fg__run_end(fg__rune_is_space, runes, at, end) == end ? end - at : 0;
}

/* 's|'t|'re|'ve|'m|'ll|'d, in any case if `fold` (where U+017F is an s) */
static size_t fg__match_contraction(const uint32_t *runes, size_t at, size_t end, bool fold) {
    uint32_t c[2] = {0, 0};
    int i;
    if (FG__RUNE_CODE(runes[at]) != '\'') return 0;
    for (i = 0; i < 2 && at + 1 + (size_t)i < end; i++) {
        c[i] = FG__RUNE_CODE(runes[at + 1 + (size_t)i]);
        if (fold && c[i] - 'A' < 26) c[i] += 'a' - 'A';
        if (fold && c[i] == 0x17F) c[i] = 's';
    }
    if (c[0] == 's' || c[0] == 't' || c[0] == 'm' || c[0] == 'd') return 2;
    return (c[0] == 'l' && c[1] == 'l') || ((c[0] == 'r' || c[0] == 'v') && c[1] == 'e') ? 3 : 0;
}

/* \s+(?!\S)|\s+ : white space, of which the last is left to the word that follows */
static size_t fg__match_spaces(const uint32_t *runes, size_t at, size_t end) {
    size_t stop = fg__run_end(fg__rune_is_space, runes, at, end);
    return stop < end && stop - at > 1 ? stop - at - 1 : stop - at;
}

/* GPT-2: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t fg__match_gpt2(const fg__stage *stage, const uint32_t *runes, size_t begin, size_t at, size_t end) {
    static const fg__set_fn sets[3] = {fg__rune_is_letter, fg__rune_is_number, fg__rune_is_other};
    size_t length = fg__match_contraction(runes, at, end, false), first = at;
    int i;
    (void)stage;
    (void)begin;
    if (length) return length;
    if (FG__RUNE_CODE(runes[at]) == ' ' && at + 1 < end) first++;
    for (i = 0; i < 3; i++)
        if (sets[i](runes[first])) return fg__run_end(sets[i], runes, first, end) - at;
    return fg__match_spaces(runes, at, end);
}

/* Llama 3 (`most` 3) and Qwen 2 (`most` 1): (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,most}
   | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t fg__match_llama3(const fg__stage *stage, const uint32_t *runes, size_t begin, size_t at, size_t end) {
    size_t length = fg__match_contraction(runes, at, end, true), first = at, stop;
    uint32_t rune = runes[at];
    if (length) return length;
    if (!fg__rune_is_newline(rune) && !fg__rune_is_letter(rune) && !fg__rune_is_number(rune) && at + 1 < end) first++;
    if (fg__rune_is_letter(runes[first])) return fg__run_end(fg__rune_is_letter, runes, first, end) - at;
    if (fg__rune_is_number(rune)) return fg__match_run(stage, runes, begin, at, end);
    first = FG__RUNE_CODE(rune) == ' ' && at + 1 < end ? at + 1 : at;
    if (fg__rune_is_other(runes[first]))
        return fg__run_end(fg__rune_is_newline, runes, fg__run_end(fg__rune_is_other, runes, first, end), end) - at;
    stop = fg__run_end(fg__rune_is_space, runes, at, end);
    while (stop > at && !fg__rune_is_newline(runes[stop - 1])) stop--;
    return stop > at ? stop - at : fg__match_spaces(runes, at, end);
}

#define FG__MANY UINT_MAX
static const fg__stage fg__stages_gpt2[] = {{fg__match_gpt2, NULL, 0, 0}, {NULL, NULL, 0, 0}};
static const fg__stage fg__stages_llama3[] = {{fg__match_llama3, fg__rune_is_number, 1, 3}, {NULL, NULL, 0, 0}};
static const fg__stage fg__stages_qwen2[] = {{fg__match_llama3, fg__rune_is_number, 1, 1}, {NULL, NULL, 0, 0}};
static const fg__stage fg__stages_starcoder[] = {
    {fg__match_run, fg__rune_is_digit, 1, 1}, {fg__match_gpt2, NULL, 0, 0}, {NULL, NULL, 0, 0}};
static const fg__stage fg__stages_falcon[] = {
    {fg__match_run, fg__rune_is_old_punct, 1, FG__MANY}, {fg__match_gpt2, NULL, 0, 0}, {NULL, NULL, 0, 0}};
static const fg__stage fg__stages_deepseek_llm[] = {
    {fg__match_run, fg__rune_is_newline, 1, 1}, {fg__match_spaced, fg__rune_is_cased, 1, FG__MANY},
    {fg__match_spaced, fg__rune_is_deepseek_punct, 1, FG__MANY}, {fg__match_last_spaces, NULL, 0, 0},
    {fg__match_run, fg__rune_is_deepseek_cjk, 1, FG__MANY}, {fg__match_run, fg__rune_is_digit, 1, 1},
    {NULL, NULL, 0, 0}};
static const fg__stage fg__stages_deepseek_coder[] = {
    {fg__match_run, fg__rune_is_newline, 1, 1}, {fg__match_spaced, fg__rune_is_letter, 1, FG__MANY},
    {fg__match_spaced, fg__rune_is_punct, 1, FG__MANY}, {fg__match_run, fg__rune_is_deepseek_cjk, 1, FG__MANY},
    {fg__match_run, fg__rune_is_digit, 1, 1}, {NULL, NULL, 0, 0}};
static const fg__stage fg__stages_default[] = {
    {fg__match_run, fg__rune_is_default_punct, 1, FG__MANY}, {fg__match_gpt2, NULL, 0, 0},
    {fg__match_run, fg__rune_is_number, 1, FG__MANY}, {fg__match_run, fg__rune_is_ascii_digit, 3, 3},
    {NULL, NULL, 0, 0}};

/* Names as llama.cpp's converter writes them. An unknown one is an error: other rules would give other tokens. */
static const fg__pretokenizer fg__pretokenizers[] = {
    {"default", fg__stages_default, 0},
    {"gpt-2", fg__stages_gpt2, 0},
    {"phi-2", fg__stages_gpt2, 0},
    {"gigachat", fg__stages_gpt2, 0},
    {"jais", fg__stages_gpt2, 0},
    {"trillion", fg__stages_gpt2, 0},
    {"exaone4", fg__stages_gpt2, 0},
    {"mpt", fg__stages_gpt2, FG__PRE_NFC},
    {"olmo", fg__stages_gpt2, FG__PRE_NFC},
    {"llama-bpe", fg__stages_llama3, FG__PRE_IGNORE_MERGES | FG__PRE_ADD_BOS},
    {"llama-v3", fg__stages_llama3, FG__PRE_IGNORE_MERGES | FG__PRE_ADD_BOS},
    {"llama3", fg__stages_llama3, FG__PRE_IGNORE_MERGES | FG__PRE_ADD_BOS},
    {"falcon3", fg__stages_llama3, FG__PRE_IGNORE_MERGES | FG__PRE_ADD_BOS},
    {"falcon-h1", fg__stages_llama3, FG__PRE_IGNORE_MERGES | FG__PRE_ADD_BOS},
    {"pixtral", fg__stages_llama3, FG__PRE_IGNORE_MERGES | FG__PRE_ADD_BOS},
    {"lfm2", fg__stages_llama3, FG__PRE_IGNORE_MERGES | FG__PRE_ADD_BOS},
    {"midm-2.0", fg__stages_llama3, FG__PRE_IGNORE_MERGES | FG__PRE_ADD_BOS},
    {"dbrx", fg__stages_llama3, 0},
    {"smaug-bpe", fg__stages_llama3, 0},
    {"glm4", fg__stages_llama3, 0},
    {"chatglm-bpe", fg__stages_llama3, 0},
    {"qwen2", fg__stages_qwen2, FG__PRE_NFC},
    {"deepseek-r1-qwen", fg__stages_qwen2, FG__PRE_NFC},
    {"megrez", fg__stages_qwen2, FG__PRE_NFC},
    {"stablelm2", fg__stages_qwen2, FG__PRE_NFC},
    {"starcoder", fg__stages_starcoder, 0},
    {"refact", fg__stages_starcoder, 0},
    {"smollm", fg__stages_starcoder, 0},
    {"codeshell", fg__stages_starcoder, 0},
    {"exaone", fg__stages_starcoder, 0},
    {"minerva-7b", fg__stages_starcoder, 0},
    {"command-r", fg__stages_starcoder, FG__PRE_NFC},
    {"falcon", fg__stages_falcon, FG__PRE_BYTE_DIGITS},
    {"deepseek-llm", fg__stages_deepseek_llm, 0},
    {"deepseek-coder", fg__stages_deepseek_coder, 0}};

/* ------------------------------------------------------------------------------------------------
   Hash tables of tokens and merges
   ------------------------------------------------------------------------------------------------ */

static uint64_t fg__hash_mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

static size_t fg__hash_text(const char *text, size_t length) {
    uint64_t hash = length;
    size_t i;
    for (i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 0x100000001B3ull;
    return (size_t)fg__hash_mix(hash);
}

/* The entry of fg__vocab.words that has this text, or the empty one where it belongs; NULL past FG__MAX_PROBES. */
static int32_t *fg__word_entry(const fg__vocab *v, const char *text, size_t length) {
    size_t probe, at = fg__hash_text(text, length);
    for (probe = 0; probe < FG__MAX_PROBES; probe++, at++) {
        int32_t *entry = &v->words[at & v->word_mask];
        const fg__gguf_string *found = *entry < 0 ? NULL : &v->texts[*entry];
        if (!found || (found->length == length && memcmp(found->data, text, length) == 0)) return entry;
    }
    return NULL;
}

/* The ordinary token with this text, or -1. */
static int32_t fg__word_find(const fg__vocab *v, const char *text, size_t length) {
    const int32_t *entry = length && length <= v->longest ? fg__word_entry(v, text, length) : NULL;
    return entry ? *entry : -1;
}

/* As fg__word_entry, of fg__vocab.merges. */
static fg__merge *fg__merge_entry(const fg__vocab *v, int32_t left, int32_t right) {
    size_t probe, at = (size_t)fg__hash_mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
    for (probe = 0; probe < FG__MAX_PROBES; probe++, at++) {
        fg__merge *entry = &v->merges[at & v->merge_mask];
        if (entry->id < 0 || (entry->left == left && entry->right == right)) return entry;
    }
    return NULL;
}

/* The size of a hash table for n items that is at most half full, less one. */
static size_t fg__hash_mask(size_t n) {
    size_t size = 16;
    while (size < 2 * n) size *= 2;
    return size - 1;
}

/* ------------------------------------------------------------------------------------------------
   Loading a vocabulary
   ------------------------------------------------------------------------------------------------ */

/* The character that byte-level BPE writes for a byte: itself if it is printable Latin-1, else one from U+0100 on. */
static uint32_t fg__byte_to_char(unsigned byte) {
    if ((byte > 32 && byte < 127) || (byte > 160 && byte != 173)) return byte;
    return byte <= 32 ? 256 + byte : byte == 173 ? 323 : 256 + 33 + byte - 127;
}

static int fg__char_to_byte(uint32_t code) {
    if (code < 256) return fg__byte_to_char(code) == code ? (int)code : -1;
    if (code < 289) return (int)code - 256;
    return code < 323 ? (int)code - 289 + 127 : code == 323 ? 173 : -1;
}

static int fg__token_type(const fg__vocab *v, int32_t id) { return v->attributes[id] & FG__TOKEN_TYPE; }

/* Tokens that stand for something else than their text: never the outcome of ordinary text. */
static bool fg__token_is_special(const fg__vocab *v, int32_t id) {
    int type = fg__token_type(v, id);
    return type == FG__TOKEN_CONTROL || type == FG__TOKEN_UNKNOWN;
}

static void fg__token_set_type(fg__vocab *v, int32_t id, int type) {
    v->attributes[id] = (unsigned char)((v->attributes[id] & ~FG__TOKEN_TYPE) | type);
}

static bool fg__text_is(const fg__gguf_string *text, const char *string) {
    return text->length == strlen(string) && memcmp(text->data, string, text->length) == 0;
}

/* Whether token `id` is called [PADid]: converters fill holes of a vocabulary so, and no text means such a token. */
static bool fg__token_is_filler(const fg__gguf_string *text, int32_t id) {
    char name[32];
    if (text->length < 6 || memcmp(text->data, "[PAD", 4) != 0) return false;
    snprintf(name, sizeof(name), "[PAD%d]", (int)id);
    return fg__text_is(text, name);
}

/* The byte of a token called <0xXX>, or -1. */
static int fg__token_byte(const fg__gguf_string *text) {
    static const char digits[] = "0123456789ABCDEF";
    const char *high, *low;
    if (text->length != 6 || memcmp(text->data, "<0x", 3) != 0 || text->data[5] != '>') return -1;
    high = (const char *)memchr(digits, text->data[3], 16);
    low = (const char *)memchr(digits, text->data[4], 16);
    return high && low ? (int)(16 * (high - digits) + (low - digits)) : -1;
}

static fg_result fg__vocab_load_texts(fg__vocab *v, const fg__gguf *gguf) {
    const fg__gguf_value *tokens = fg__gguf_find(gguf, "tokenizer.ggml.tokens");
    if (!tokens || tokens->type != FG__GGUF_ARRAY || tokens->item_type != FG__GGUF_STRING || !tokens->strings)
        return fg__fail(FG_ERROR_BAD_FILE, "tokenizer.ggml.tokens is not an array of strings");
    if (tokens->count == 0 || tokens->count > INT_MAX / 4)
        return fg__fail(FG_ERROR_BAD_FILE, "tokenizer.ggml.tokens has %llu tokens", (unsigned long long)tokens->count);
    v->texts = tokens->strings;
    v->n_tokens = (int)tokens->count;
    v->attributes = (unsigned char *)fg__calloc(&v->env, (size_t)v->n_tokens, 1);
    v->ranks = (uint32_t *)fg__calloc(&v->env, (size_t)v->n_tokens, sizeof(*v->ranks));
    return v->attributes && v->ranks ? FG_OK : FG_ERROR_OUT_OF_MEMORY;
}

/* Finds an array that goes with the tokens; *value is NULL when the file has none. */
static fg_result fg__vocab_array(const fg__vocab *v, const fg__gguf *gguf, const char *key,
                                 const fg__gguf_value **value) {
    *value = fg__gguf_find(gguf, key);
    if (!*value) return FG_OK;
    if ((*value)->type != FG__GGUF_ARRAY)
        return fg__fail(FG_ERROR_BAD_FILE, "%s is not an array", key);
    if ((*value)->count != (uint64_t)v->n_tokens)
        return fg__fail(FG_ERROR_BAD_FILE, "%s has %llu items for %d tokens", key, (unsigned long long)(*value)->count,
                        v->n_tokens);
    return FG_OK;
}

static fg_result fg__vocab_load_types(fg__vocab *v, const fg__gguf *gguf) {
    const fg__gguf_value *types;
    fg_result result = fg__vocab_array(v, gguf, "tokenizer.ggml.token_type", &types);
    int32_t id;
    for (id = 0; id < v->n_tokens && result == FG_OK; id++) {
        int64_t type = FG__TOKEN_NORMAL;
        if (types && (!fg__gguf_item_i64(types, (uint64_t)id, &type) || type < 0 || type > FG__TOKEN_BYTE))
            return fg__fail(FG_ERROR_BAD_FILE, "tokenizer.ggml.token_type of token %d is not a type", (int)id);
        if (type == 0) type = FG__TOKEN_NORMAL;
        if (fg__token_is_filler(&v->texts[id], id)) type = FG__TOKEN_UNUSED;
        if (v->spm && !types && fg__token_byte(&v->texts[id]) >= 0) type = FG__TOKEN_BYTE;
        v->attributes[id] = (unsigned char)type;
    }
    return result;
}

/* Scores, high first, become ranks, low first, of the same order. */
static uint32_t fg__score_rank(float score) {
    uint32_t bits;
    score += 0.0f; /* no negative zero */
    memcpy(&bits, &score, 4);
    return bits >> 31 ? bits : ~bits & 0x7FFFFFFFu;
}

static fg_result fg__vocab_load_scores(fg__vocab *v, const fg__gguf *gguf) {
    const fg__gguf_value *scores;
    fg_result result = fg__vocab_array(v, gguf, "tokenizer.ggml.scores", &scores);
    int32_t id;
    for (id = 0; id < v->n_tokens && result == FG_OK; id++) {
        double score = 0;
        if (scores && (!fg__gguf_item_f64(scores, (uint64_t)id, &score) || score != score))
            return fg__fail(FG_ERROR_BAD_FILE, "tokenizer.ggml.scores of token %d is not a number", (int)id);
        v->ranks[id] = fg__score_rank((float)score);
    }
    return result;
}

/* The bytes that byte-level BPE text stands for; false if it has a character that stands for none. */
static bool fg__bytes_of_text(const fg__gguf_string *text, char *to, size_t *length) {
    size_t at = 0, n = 0;
    while (at < text->length) {
        uint32_t code;
        int byte;
        at += fg__utf8_decode(text->data + at, text->length - at, &code);
        byte = fg__char_to_byte(code);
        if (byte < 0) return false;
        to[n++] = (char)byte;
    }
    *length = n;
    return true;
}

/* SentencePiece text with its space marks turned into spaces; returns the length. */
static size_t fg__unmark_spaces(const fg__gguf_string *text, char *to) {
    size_t at = 0, n = 0;
    while (at < text->length) {
        bool mark = text->length - at >= 3 && memcmp(text->data + at, FG__SPACE_MARK, 3) == 0;
        to[n++] = mark ? ' ' : text->data[at];
        at += mark ? 3 : 1;
    }
    return n;
}

/* Writes what a token stands for in text, never longer than the token's text in the file. */
static size_t fg__vocab_write_piece(const fg__vocab *v, int32_t id, char *to) {
    const fg__gguf_string *text = &v->texts[id];
    int type = fg__token_type(v, id);
    size_t length;
    if (type == FG__TOKEN_BYTE && fg__token_byte(text) >= 0) {
        *to = (char)fg__token_byte(text);
        return 1;
    }
    if (v->spm && !fg__token_is_special(v, id)) return fg__unmark_spaces(text, to);
    if (!v->spm && (type == FG__TOKEN_NORMAL || type == FG__TOKEN_UNUSED) && fg__bytes_of_text(text, to, &length))
        return length;
    if (text->length) memcpy(to, text->data, text->length);
    return text->length;
}

static fg_result fg__vocab_load_pieces(fg__vocab *v) {
    size_t total = 0;
    int32_t id;
    for (id = 0; id < v->n_tokens; id++) {
        if (v->texts[id].length > SIZE_MAX / 4 - total) return fg__fail(FG_ERROR_BAD_FILE, "the tokens are too long");
        total += v->texts[id].length;
    }
    v->pieces = (char *)fg__malloc(&v->env, total + 1, 1);
    v->piece_at = (size_t *)fg__malloc(&v->env, (size_t)v->n_tokens + 1, sizeof(*v->piece_at));
    if (!v->pieces || !v->piece_at) return FG_ERROR_OUT_OF_MEMORY;
    v->piece_at[0] = 0;
    for (id = 0; id < v->n_tokens; id++)
        v->piece_at[id + 1] = v->piece_at[id] + fg__vocab_write_piece(v, id, v->pieces + v->piece_at[id]);
    return FG_OK;
}

/* The table of ordinary tokens. Of tokens with the same text the first is taken, a normal one before others. */
static fg_result fg__vocab_load_words(fg__vocab *v) {
    int32_t id, *entry;
    v->word_mask = fg__hash_mask((size_t)v->n_tokens);
    v->words = (int32_t *)fg__malloc(&v->env, v->word_mask + 1, sizeof(*v->words));
    if (!v->words) return FG_ERROR_OUT_OF_MEMORY;
    memset(v->words, 0xFF, (v->word_mask + 1) * sizeof(*v->words));
    for (id = 0; id < v->n_tokens; id++) {
        const fg__gguf_string *text = &v->texts[id];
        if (fg__token_is_special(v, id) || fg__token_type(v, id) == FG__TOKEN_BYTE || !text->length) continue;
        entry = fg__word_entry(v, text->data, text->length);
        if (!entry) return fg__fail(FG_ERROR_BAD_FILE, "too many tokens hash like token %d", (int)id);
        if (*entry < 0 || (fg__token_type(v, *entry) != FG__TOKEN_NORMAL && fg__token_type(v, id) == FG__TOKEN_NORMAL))
            *entry = id;
        v->longest = FG__MAX(v->longest, text->length);
    }
    return FG_OK;
}

static fg_result fg__vocab_load_bytes(fg__vocab *v) {
    char name[4];
    int32_t id;
    int byte;
    for (byte = 0; byte < 256; byte++) {
        size_t length = fg__utf8_encode(fg__byte_to_char((unsigned)byte), name);
        v->byte_ids[byte] = v->spm ? -1 : fg__word_find(v, name, length);
    }
    for (id = 0; id < v->n_tokens && v->spm; id++) {
        if (fg__token_type(v, id) != FG__TOKEN_BYTE) continue;
        byte = fg__token_byte(&v->texts[id]);
        if (byte < 0) return fg__fail(FG_ERROR_BAD_FILE, "byte token %d is not called <0xXX>", (int)id);
        if (v->byte_ids[byte] < 0) v->byte_ids[byte] = id;
    }
    return FG_OK;
}

/* Adds the merge "left right". One whose parts or outcome are no tokens never applies and is left out. */
static fg_result fg__vocab_add_merge(fg__vocab *v, const fg__gguf_string *text, uint32_t rank, fg__text *joined) {
    const char *space = text->length > 2 ? (const char *)memchr(text->data + 1, ' ', text->length - 2) : NULL;
    size_t first = space ? (size_t)(space - text->data) : 0;
    int32_t left, right, id;
    fg__merge *entry;
    if (!space) return fg__fail(FG_ERROR_BAD_FILE, "merge %lu is not two tokens", (unsigned long)rank);
    joined->length = 0;
    fg__text_add(joined, text->data, first);
    fg__text_add(joined, space + 1, text->length - first - 1);
    if (joined->failed) return FG_ERROR_OUT_OF_MEMORY;
    left = fg__word_find(v, text->data, first);
    right = fg__word_find(v, space + 1, text->length - first - 1);
    id = fg__word_find(v, joined->data, joined->length);
    if (left < 0 || right < 0 || id < 0) return FG_OK;
    entry = fg__merge_entry(v, left, right);
    if (!entry) return fg__fail(FG_ERROR_BAD_FILE, "too many merges hash like merge %lu", (unsigned long)rank);
    entry->left = left;
    entry->right = right;
    entry->rank = rank;
    entry->id = id;
    return FG_OK;
}

static fg_result fg__vocab_load_merges(fg__vocab *v, const fg__gguf *gguf) {
    const fg__gguf_value *merges = fg__gguf_find(gguf, "tokenizer.ggml.merges");
    fg_result result = FG_OK;
    fg__text joined;
    uint64_t i;
    if (!merges || merges->type != FG__GGUF_ARRAY || merges->item_type != FG__GGUF_STRING ||
        (merges->count && !merges->strings) || merges->count > INT_MAX / 4)
        return fg__fail(FG_ERROR_BAD_FILE, "tokenizer.ggml.merges is not an array of strings");
    v->merge_mask = fg__hash_mask((size_t)merges->count);
    v->merges = (fg__merge *)fg__malloc(&v->env, v->merge_mask + 1, sizeof(*v->merges));
    if (!v->merges) return FG_ERROR_OUT_OF_MEMORY;
    memset(v->merges, 0xFF, (v->merge_mask + 1) * sizeof(*v->merges));
    memset(&joined, 0, sizeof(joined));
    joined.env = &v->env;
    for (i = 0; i < merges->count && result == FG_OK; i++)
        result = fg__vocab_add_merge(v, &merges->strings[i], (uint32_t)i, &joined);
    fg__text_free(&joined);
    return result;
}

/* A token id of the file's metadata; `missing` when there is none or it is not in the vocabulary. */
static int fg__vocab_id(const fg__vocab *v, const fg__gguf *gguf, const char *key, int missing) {
    int64_t id = missing;
    if (fg__gguf_get_i64(gguf, key, &id) && (id < 0 || id >= v->n_tokens)) id = -1;
    return id < v->n_tokens ? (int)id : -1;
}

/* Whether families of models give this name to the token that ends a turn. */
static bool fg__text_is_turn_end(const fg__gguf_string *text) {
    static const char *const names[] = {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>",
        "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>"};
    int i;
    if (!text->length || (text->data[0] != '<' && text->data[0] != '_')) return false;
    for (i = 0; i < FG__COUNT(names); i++)
        if (fg__text_is(text, names[i])) return true;
    return false;
}

/* Marks the tokens that end a generation: those the file names, and those with names of such tokens. */
static void fg__vocab_find_ends(fg__vocab *v) {
    int32_t id;
    for (id = 0; id < v->n_tokens; id++) {
        bool turn = fg__text_is_turn_end(&v->texts[id]), message = fg__text_is(&v->texts[id], "<|eom_id|>");
        if (turn && v->eot < 0) v->eot = (int)id;
        if (message && v->eom < 0) v->eom = (int)id;
        if (turn || message) v->attributes[id] = FG__TOKEN_CONTROL | FG__TOKEN_END; /* some files call them normal */
    }
    if (v->eos >= 0) v->attributes[v->eos] |= FG__TOKEN_END;
    if (v->eot >= 0) v->attributes[v->eot] |= FG__TOKEN_END;
    if (v->eom >= 0) v->attributes[v->eom] |= FG__TOKEN_END;
}

/* Whether general.name has `word` in it, in any case. */
static bool fg__name_has(const fg__gguf *gguf, const char *word) {
    fg__gguf_string name;
    size_t i, j, n = strlen(word);
    if (!fg__gguf_get_string(gguf, "general.name", &name)) return false;
    for (i = 0; i + n <= name.length; i++) {
        for (j = 0; j < n; j++) {
            char c = name.data[i + j];
            if ((c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c) != word[j]) break;
        }
        if (j == n) return true;
    }
    return false;
}

/* GGUF does not say which tokens take the white space after them: those of Phi-3 do, but for these. */
static void fg__vocab_find_rstrip(fg__vocab *v, const fg__gguf *gguf) {
    int32_t id;
    if (!v->spm || !(fg__name_has(gguf, "phi-3") || fg__name_has(gguf, "phi3"))) return;
    for (id = 0; id < v->n_tokens; id++) {
        const fg__gguf_string *text = &v->texts[id];
        bool keeps = fg__text_is(text, "<unk>") || fg__text_is(text, "<s>") || fg__text_is(text, "<|endoftext|>");
        if (!keeps) v->attributes[id] |= FG__TOKEN_RSTRIP; /* only those found as special tokens ever use it */
    }
}

static void fg__vocab_load_settings(fg__vocab *v, const fg__gguf *gguf) {
    v->bos = fg__vocab_id(v, gguf, "tokenizer.ggml.bos_token_id", v->spm ? 1 : -1);
    v->eos = fg__vocab_id(v, gguf, "tokenizer.ggml.eos_token_id", v->spm ? 2 : -1);
    v->unk = fg__vocab_id(v, gguf, "tokenizer.ggml.unknown_token_id", v->spm ? 0 : -1);
    v->pad = fg__vocab_id(v, gguf, "tokenizer.ggml.padding_token_id", -1);
    v->eot = fg__vocab_id(v, gguf, "tokenizer.ggml.eot_token_id", -1);
    v->eom = fg__vocab_id(v, gguf, "tokenizer.ggml.eom_token_id", -1);
    v->add_bos = v->spm || (v->pre->flags & FG__PRE_ADD_BOS) != 0;
    v->add_space = v->spm;
    fg__gguf_get_bool(gguf, "tokenizer.ggml.add_bos_token", &v->add_bos);
    fg__gguf_get_bool(gguf, "tokenizer.ggml.add_eos_token", &v->add_eos);
    if (v->spm) {
        fg__gguf_get_bool(gguf, "tokenizer.ggml.add_space_prefix", &v->add_space);
        fg__gguf_get_bool(gguf, "tokenizer.ggml.remove_extra_whitespaces", &v->squeeze_spaces);
    }
    v->add_bos = v->add_bos && v->bos >= 0;
    v->add_eos = v->add_eos && v->eos >= 0;
    if (!fg__gguf_find(gguf, "tokenizer.ggml.token_type")) {
        if (v->bos >= 0) fg__token_set_type(v, v->bos, FG__TOKEN_CONTROL);
        if (v->eos >= 0) fg__token_set_type(v, v->eos, FG__TOKEN_CONTROL);
        if (v->unk >= 0) fg__token_set_type(v, v->unk, FG__TOKEN_UNKNOWN);
    }
    fg__vocab_find_ends(v);
    fg__vocab_find_rstrip(v, gguf);
}

/* The child of a node for a byte, or 0. */
static uint32_t fg__trie_child(const fg__vocab *v, uint32_t node, unsigned char byte) {
    uint32_t child = v->trie[node].child;
    while (child && v->trie[child].byte != byte) child = v->trie[child].sibling;
    return child;
}

/* Adds a child; 0 when memory is out. */
static uint32_t fg__trie_add(fg__vocab *v, uint32_t parent, unsigned char byte) {
    void *array = v->trie;
    uint32_t node = (uint32_t)v->n_trie;
    if (!fg__reserve(&v->env, &array, &v->trie_capacity, v->n_trie + 1, sizeof(*v->trie))) return 0;
    v->trie = (fg__trie_node *)array;
    v->trie[node].child = 0;
    v->trie[node].sibling = parent == node ? 0 : v->trie[parent].child; /* the root is its own parent */
    v->trie[node].id = -1;
    v->trie[node].byte = byte;
    if (parent != node) v->trie[parent].child = node;
    v->n_trie++;
    return node;
}

static fg_result fg__vocab_load_trie(fg__vocab *v) {
    int32_t id;
    size_t i;
    fg__trie_add(v, 0, 0);
    if (!v->trie) return FG_ERROR_OUT_OF_MEMORY;
    for (id = 0; id < v->n_tokens; id++) {
        const fg__gguf_string *text = &v->texts[id];
        uint32_t node = 0, child;
        if (!fg__token_is_special(v, id) && fg__token_type(v, id) != FG__TOKEN_USER_DEFINED) continue;
        if (!text->length || text->length > FG__MAX_SPECIAL) continue;
        if (v->n_trie > UINT32_MAX - FG__MAX_SPECIAL - 1)
            return fg__fail(FG_ERROR_BAD_FILE, "the vocabulary has too many special tokens");
        v->special_first[(unsigned char)text->data[0]] = true;
        for (i = 0; i < text->length; i++, node = child) {
            child = fg__trie_child(v, node, (unsigned char)text->data[i]);
            if (!child) child = fg__trie_add(v, node, (unsigned char)text->data[i]);
            if (!child) return FG_ERROR_OUT_OF_MEMORY;
        }
        if (v->trie[node].id < 0) v->trie[node].id = id;
    }
    return FG_OK;
}

static void fg__vocab_load_classes(fg__vocab *v) {
    uint32_t code = 0, next;
    int i;
    for (i = 0; i < FG__COUNT(fg__unicode_classes) && code < 0x10000; i++) {
        next = i + 1 < FG__COUNT(fg__unicode_classes) ? fg__unicode_classes[i + 1] >> 8 : 0x10000;
        for (; code < next && code < 0x10000; code++) v->classes[code] = (unsigned char)(fg__unicode_classes[i] & 0xFF);
    }
}

/* Reads which tokenizer the file has; without tokenizer.ggml.pre, which old files lack, it is the default one. */
static fg_result fg__vocab_load_kind(fg__vocab *v, const fg__gguf *gguf) {
    fg__gguf_string model, pre = {"default", 7};
    int i;
    if (!fg__gguf_get_string(gguf, "tokenizer.ggml.model", &model))
        return fg__fail(FG_ERROR_BAD_FILE, "the file has no tokenizer.ggml.model");
    v->spm = fg__text_is(&model, "llama");
    if (v->spm) return FG_OK;
    if (!fg__text_is(&model, "gpt2"))
        return fg__fail(FG_ERROR_UNSUPPORTED, "tokenizers of the kind '%.*s' are not supported",
                        (int)FG__MIN(model.length, (size_t)100), model.data);
    fg__gguf_get_string(gguf, "tokenizer.ggml.pre", &pre);
    for (i = 0; i < FG__COUNT(fg__pretokenizers) && !v->pre; i++)
        if (fg__text_is(&pre, fg__pretokenizers[i].name)) v->pre = &fg__pretokenizers[i];
    if (v->pre) return FG_OK;
    return fg__fail(FG_ERROR_UNSUPPORTED, "the pre-tokenizer '%.*s' is not supported",
                    (int)FG__MIN(pre.length, (size_t)100), pre.data);
}

static void fg__vocab_free(fg__vocab *vocab) {
    fg__env env;
    if (!vocab) return;
    env = vocab->env;
    fg__free(&env, vocab->attributes);
    fg__free(&env, vocab->ranks);
    fg__free(&env, vocab->pieces);
    fg__free(&env, vocab->piece_at);
    fg__free(&env, vocab->words);
    fg__free(&env, vocab->merges);
    fg__free(&env, vocab->trie);
    fg__free(&env, vocab);
}

static fg_result fg__vocab_load_all(fg__vocab *v, const fg__gguf *gguf) {
    fg_result result = fg__vocab_load_kind(v, gguf);
    if (result == FG_OK) result = fg__vocab_load_texts(v, gguf);
    if (result == FG_OK) result = fg__vocab_load_types(v, gguf);
    if (result == FG_OK && v->spm) result = fg__vocab_load_scores(v, gguf);
    if (result != FG_OK) return result;
    fg__vocab_load_settings(v, gguf);
    fg__vocab_load_classes(v);
    result = fg__vocab_load_pieces(v);
    if (result == FG_OK) result = fg__vocab_load_words(v);
    if (result == FG_OK) result = fg__vocab_load_bytes(v);
    if (result == FG_OK && !v->spm) result = fg__vocab_load_merges(v, gguf);
    if (result == FG_OK) result = fg__vocab_load_trie(v);
    return result;
}

/* Reads the vocabulary of a file, which must outlive it. Errors: BAD_FILE, UNSUPPORTED, OUT_OF_MEMORY. */
static fg_result fg__vocab_load(const fg__env *env, const fg__gguf *gguf, fg__vocab **vocab) {
    fg__vocab *v = (fg__vocab *)fg__calloc(env, 1, sizeof(*v));
    fg_result result;
    *vocab = NULL;
    if (!v) return FG_ERROR_OUT_OF_MEMORY;
    v->env = *env;
    result = fg__vocab_load_all(v, gguf);
    if (result == FG_OK) *vocab = v;
    else fg__vocab_free(v);
    return result;
}

/* ------------------------------------------------------------------------------------------------
   Text to tokens
   ------------------------------------------------------------------------------------------------ */

/* A piece of a word: at first a byte or a character, later what was joined. Pieces of the word are a list. */
typedef struct fg__bpe_symbol {
    uint32_t start, length; /* where it is in the word, in bytes */
    int32_t id;             /* -1: no token */
    int32_t prev, next;     /* -1: none; prev is FG__JOINED once it is part of another, and next stays as it was */
    int32_t child;          /* the first of the two it was joined of, whose `next` is the second; or -1 */
} fg__bpe_symbol;

/* Two neighbours that could be joined. */
typedef struct fg__bpe_pair {
    uint32_t rank;
    int32_t left, right; /* symbols */
    int32_t id;          /* what they would become */
} fg__bpe_pair;

#define FG__JOINED (-2)

/* The memory of one call; arrays grow and are used again for the next word. */
typedef struct fg__encoder {
    const fg__vocab *v;
    bool no_special;
    bool after_special; /* the text that follows starts anew, with SentencePiece's space */
    bool failed;        /* memory ran out */
    int32_t *ids;
    size_t n_ids, ids_capacity;
    uint32_t *runes, *spare; /* characters of the text between two special tokens */
    size_t n_runes, runes_capacity, spare_capacity;
    char *word;
    size_t word_length, word_capacity;
    fg__bpe_symbol *symbols;
    size_t n_symbols, symbols_capacity;
    fg__bpe_pair *pairs; /* a heap, the next pair to join on top */
    size_t n_pairs, pairs_capacity;
} fg__encoder;

/* Makes room for `count` elements in one of the encoder's arrays and returns it; NULL when memory is out. */
static void *fg__encoder_room(fg__encoder *e, void *array, size_t *capacity, size_t count, size_t element) {
    if (!e->failed && fg__reserve(&e->v->env, &array, capacity, count, element)) return array;
    e->failed = true;
    return array;
}

static void fg__encoder_add(fg__encoder *e, int32_t id) {
    e->ids = (int32_t *)fg__encoder_room(e, e->ids, &e->ids_capacity, e->n_ids + 1, sizeof(*e->ids));
    if (!e->failed) e->ids[e->n_ids++] = id;
}

static bool fg__encoder_word_room(fg__encoder *e, size_t bytes) {
    e->word = (char *)fg__encoder_room(e, e->word, &e->word_capacity, bytes, 1);
    return !e->failed;
}

static bool fg__bpe_pair_before(const fg__encoder *e, const fg__bpe_pair *a, const fg__bpe_pair *b) {
    if (a->rank != b->rank) return a->rank < b->rank;
    return e->symbols[a->left].start < e->symbols[b->left].start;
}

static void fg__bpe_pairs_push(fg__encoder *e, const fg__bpe_pair *pair) {
    size_t at = e->n_pairs++;
    while (at && fg__bpe_pair_before(e, pair, &e->pairs[(at - 1) / 2])) {
        e->pairs[at] = e->pairs[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    e->pairs[at] = *pair;
}

static fg__bpe_pair fg__bpe_pairs_pop(fg__encoder *e) {
    fg__bpe_pair top = e->pairs[0], last = e->pairs[--e->n_pairs];
    size_t at = 0, child = 1;
    while (child < e->n_pairs) {
        if (child + 1 < e->n_pairs && fg__bpe_pair_before(e, &e->pairs[child + 1], &e->pairs[child])) child++;
        if (!fg__bpe_pair_before(e, &e->pairs[child], &last)) break;
        e->pairs[at] = e->pairs[child];
        at = child;
        child = 2 * at + 1;
    }
    if (e->n_pairs) e->pairs[at] = last;
    return top;
}

/* Looks up what two neighbours make and remembers it. The heap has room for every call (fg__bpe_join). */
static void fg__bpe_consider(fg__encoder *e, int32_t left, int32_t right) {
    const fg__bpe_symbol *a, *b;
    const fg__merge *merge;
    fg__bpe_pair pair;
    if (left < 0 || right < 0) return;
    a = &e->symbols[left];
    b = &e->symbols[right];
    pair.left = left;
    pair.right = right;
    if (e->v->spm) {
        pair.id = fg__word_find(e->v, e->word + a->start, (size_t)a->length + b->length);
        if (pair.id < 0) return;
        pair.rank = e->v->ranks[pair.id];
    } else {
        merge = fg__merge_entry(e->v, a->id, b->id);
        if (!merge || merge->id < 0) return;
        pair.id = merge->id;
        pair.rank = merge->rank;
    }
    fg__bpe_pairs_push(e, &pair);
}

static void fg__bpe_symbol_add(fg__encoder *e, size_t start, size_t length, int32_t id) {
    fg__bpe_symbol *s = &e->symbols[e->n_symbols];
    s->start = (uint32_t)start;
    s->length = (uint32_t)length;
    s->id = id;
    s->prev = (int32_t)e->n_symbols - 1;
    s->next = -1;
    s->child = -1;
    if (e->n_symbols) s[-1].next = (int32_t)e->n_symbols;
    e->n_symbols++;
}

/* Joins a pair into a new symbol that takes their place, and considers it with its neighbours. */
static void fg__bpe_join_pair(fg__encoder *e, const fg__bpe_pair *pair) {
    int32_t made = (int32_t)e->n_symbols++;
    fg__bpe_symbol *left = &e->symbols[pair->left], *right = &e->symbols[pair->right], *s = &e->symbols[made];
    s->start = left->start;
    s->length = left->length + right->length;
    s->id = pair->id;
    s->prev = left->prev;
    s->next = right->next;
    s->child = pair->left;
    if (s->prev >= 0) e->symbols[s->prev].next = made;
    if (s->next >= 0) e->symbols[s->next].prev = made;
    left->prev = right->prev = FG__JOINED;
    fg__bpe_consider(e, s->prev, made);
    fg__bpe_consider(e, made, s->next);
}

/* Makes room for a word of n symbols: with those to be joined at most 2n, and each adds at most two pairs. */
static bool fg__bpe_join_room(fg__encoder *e, size_t n) {
    e->n_symbols = e->n_pairs = 0;
    e->symbols = (fg__bpe_symbol *)fg__encoder_room(e, e->symbols, &e->symbols_capacity, 2 * n, sizeof(*e->symbols));
    e->pairs = (fg__bpe_pair *)fg__encoder_room(e, e->pairs, &e->pairs_capacity, 3 * n, sizeof(*e->pairs));
    return !e->failed;
}

/* Joins the word's symbols, best pair first, until none is left: O(n log n). Returns the first symbol, or -1. */
static int32_t fg__bpe_join(fg__encoder *e) {
    int32_t i, n = (int32_t)e->n_symbols, first = n ? 0 : -1;
    for (i = 0; i + 1 < n; i++) fg__bpe_consider(e, i, i + 1);
    while (e->n_pairs) {
        fg__bpe_pair pair = fg__bpe_pairs_pop(e);
        const fg__bpe_symbol *left = &e->symbols[pair.left], *right = &e->symbols[pair.right];
        if (left->prev == FG__JOINED || right->prev == FG__JOINED) continue;
        if (pair.left == first) first = (int32_t)e->n_symbols;
        fg__bpe_join_pair(e, &pair);
    }
    return first;
}

/* The token whose text is bytes [begin, end) of e->word, or -1. */
static int32_t fg__bpe_whole(fg__encoder *e, size_t begin, size_t end) {
    size_t length = 0;
    char *text;
    if (end - begin > e->v->longest || !fg__encoder_word_room(e, e->word_length + 2 * (end - begin))) return -1;
    text = e->word + e->word_length; /* written in byte-level BPE's characters, two bytes at most, behind the word */
    for (; begin < end; begin++)
        length += fg__utf8_encode(fg__byte_to_char((unsigned char)e->word[begin]), text + length);
    return fg__word_find(e->v, text, length);
}

/* Byte-level BPE of bytes [begin, end) of e->word. Bytes that the vocabulary lacks are left out. */
static void fg__bpe_bytes(fg__encoder *e, size_t begin, size_t end) {
    size_t at;
    int32_t i = e->v->pre->flags & FG__PRE_IGNORE_MERGES ? fg__bpe_whole(e, begin, end) : -1;
    if (i >= 0) fg__encoder_add(e, i);
    if (i >= 0 || !fg__bpe_join_room(e, end - begin)) return;
    for (at = begin; at < end; at++) {
        int32_t id = e->v->byte_ids[(unsigned char)e->word[at]];
        if (id >= 0) fg__bpe_symbol_add(e, at, 1, id);
    }
    for (i = fg__bpe_join(e); i >= 0; i = e->symbols[i].next) fg__encoder_add(e, e->symbols[i].id);
}

/* Bytes whose character in byte-level BPE counts as numeric: the digits, and superscripts and fractions of Latin-1. */
static bool fg__byte_is_numeric(unsigned char byte) {
    if (byte >= '0' && byte <= '9') return true;
    return byte == 0xB2 || byte == 0xB3 || byte == 0xB9 || (byte >= 0xBC && byte <= 0xBE);
}

static bool fg__three_digits(const char *text, size_t at, size_t end) {
    size_t i;
    for (i = at; i < at + 3; i++)
        if (i >= end || text[i] < '0' || text[i] > '9') return false;
    return true;
}

/* Falcon cuts a word of bytes at numeric runs, and [0-9][0-9][0-9] out of those. */
static void fg__bpe_byte_digits(fg__encoder *e) {
    size_t at = 0, stop, end = e->word_length;
    while (at < end && !e->failed) {
        bool numeric = fg__byte_is_numeric((unsigned char)e->word[at]);
        bool three = fg__three_digits(e->word, at, end);
        stop = at + (three ? 3 : 1);
        while (!three && stop < end && fg__byte_is_numeric((unsigned char)e->word[stop]) == numeric &&
               !fg__three_digits(e->word, stop, end))
            stop++;
        fg__bpe_bytes(e, at, stop);
        at = stop;
    }
}

/* Tokenises one word, characters [begin, end). */
static void fg__bpe_word(fg__encoder *e, size_t begin, size_t end) {
    if (!fg__encoder_word_room(e, 4 * (end - begin))) return;
    for (e->word_length = 0; begin < end; begin++)
        e->word_length += fg__utf8_encode(FG__RUNE_CODE(e->runes[begin]), e->word + e->word_length);
    if (e->v->pre->flags & FG__PRE_BYTE_DIGITS) fg__bpe_byte_digits(e);
    else fg__bpe_bytes(e, 0, e->word_length);
}

/* Cuts [begin, end) by one rule after the other; what the last one leaves are words. Recursion is as deep as rules. */
static void fg__bpe_split(fg__encoder *e, const fg__stage *stage, size_t begin, size_t end) {
    size_t at = begin, rest = begin, length;
    if (!stage->match) {
        fg__bpe_word(e, begin, end);
        return;
    }
    while (at < end && !e->failed) {
        length = stage->match(stage, e->runes, begin, at, end);
        if (length) {
            if (rest < at) fg__bpe_split(e, stage + 1, rest, at);
            fg__bpe_split(e, stage + 1, at, at + length);
            rest = at + length;
        }
        at += length ? length : 1;
    }
    if (rest < end) fg__bpe_split(e, stage + 1, rest, end);
}

/* Normalises e->runes to NFC, which they are already when all of them are below U+0300. */
static void fg__bpe_normalize(fg__encoder *e) {
    uint32_t parts[4], *codes;
    size_t i, capacity, count = 0;
    int k, n;
    for (i = 0; i < e->n_runes && e->runes[i] < 0x300; i++) {}
    if (i == e->n_runes) return;
    for (i = 0; i < e->n_runes && !e->failed; i++) {
        n = fg__nfc_expand(e->runes[i], parts);
        e->spare = (uint32_t *)fg__encoder_room(e, e->spare, &e->spare_capacity, count + 4, sizeof(*e->spare));
        for (k = 0; k < n && !e->failed; k++) e->spare[count++] = parts[k];
    }
    e->runes = (uint32_t *)fg__encoder_room(e, e->runes, &e->runes_capacity, count, sizeof(*e->runes));
    if (e->failed) return;
    fg__nfc_order(e->spare, count, e->runes);
    e->n_runes = fg__nfc_compose(e->spare, count);
    codes = e->spare;
    e->spare = e->runes;
    e->runes = codes;
    capacity = e->spare_capacity;
    e->spare_capacity = e->runes_capacity;
    e->runes_capacity = capacity;
}

static void fg__bpe_text(fg__encoder *e, const char *text, size_t length) {
    size_t i, at = 0;
    e->n_runes = 0;
    e->runes = (uint32_t *)fg__encoder_room(e, e->runes, &e->runes_capacity, length, sizeof(*e->runes));
    if (e->failed) return;
    while (at < length) at += fg__utf8_decode(text + at, length - at, &e->runes[e->n_runes++]);
    if (e->v->pre->flags & FG__PRE_NFC) fg__bpe_normalize(e);
    for (i = 0; i < e->n_runes && !e->failed; i++) {
        uint32_t code = e->runes[i];
        e->runes[i] = FG__RUNE(code, code < 0x10000 ? e->v->classes[code] : fg__char_classes(code));
    }
    if (!e->failed && e->n_runes) fg__bpe_split(e, e->v->pre->stages, 0, e->n_runes);
}

static void fg__spm_put(fg__encoder *e, char byte) {
    size_t length = byte == ' ' ? 3 : 1;
    memcpy(e->word + e->word_length, byte == ' ' ? FG__SPACE_MARK : &byte, length);
    e->word_length += length;
}

/* Fills e->word with the text, spaces turned into marks, and the space that may come before it. False: nothing left. */
static bool fg__spm_prepare(fg__encoder *e, const char *text, size_t length) {
    bool squeeze = e->v->squeeze_spaces;
    size_t i;
    for (; squeeze && length && text[0] == ' '; length--) text++;
    if (!length || !fg__encoder_word_room(e, 3 * (length + 1))) return false;
    e->word_length = 0;
    if (e->v->add_space && e->after_special) fg__spm_put(e, ' ');
    for (i = 0; i < length; i++)
        if (!squeeze || text[i] != ' ' || text[i - 1] != ' ') fg__spm_put(e, text[i]);
    while (squeeze && e->word_length >= 3 && memcmp(e->word + e->word_length - 3, FG__SPACE_MARK, 3) == 0)
        e->word_length -= 3;
    return e->word_length > 0;
}

/* Writes a symbol that is no token: its bytes' tokens if there are all of them, else the unknown token once a run. */
static void fg__spm_fall_back(fg__encoder *e, const fg__bpe_symbol *s, bool *unknown) {
    uint32_t i;
    bool all = true;
    for (i = 0; i < s->length; i++) all = all && e->v->byte_ids[(unsigned char)e->word[s->start + i]] >= 0;
    for (i = 0; i < s->length && all; i++) fg__encoder_add(e, e->v->byte_ids[(unsigned char)e->word[s->start + i]]);
    if (!all && !*unknown && e->v->unk >= 0) fg__encoder_add(e, e->v->unk);
    *unknown = !all;
}

/* Writes the word's tokens. Unused tokens serve to join others and are themselves undone: replaced by their parts. */
static void fg__spm_write(fg__encoder *e, int32_t first) {
    int32_t i = first;
    bool unknown = false;
    while (i >= 0 && !e->failed) {
        const fg__bpe_symbol *s = &e->symbols[i];
        if (s->child >= 0 && fg__token_type(e->v, s->id) == FG__TOKEN_UNUSED) {
            e->symbols[e->symbols[s->child].next].next = s->next;
            i = s->child;
            continue;
        }
        if (s->id < 0) fg__spm_fall_back(e, s, &unknown);
        else {
            fg__encoder_add(e, s->id);
            unknown = false;
        }
        i = s->next;
    }
}

static void fg__spm_text(fg__encoder *e, const char *text, size_t length) {
    size_t at = 0;
    if (!fg__spm_prepare(e, text, length) || !fg__bpe_join_room(e, e->word_length)) return;
    while (at < e->word_length) {
        int n = fg__utf8_measure(e->word + at, e->word_length - at);
        size_t bytes = n > 0 ? (size_t)n : 1; /* each byte that is no UTF-8 on its own */
        fg__bpe_symbol_add(e, at, bytes, fg__word_find(e->v, e->word + at, bytes));
        at += bytes;
    }
    fg__spm_write(e, fg__bpe_join(e));
}

/* Tokenises text without special tokens in it. */
static void fg__encode_text(fg__encoder *e, const char *text, size_t length) {
    if (!length || e->failed) return;
    if (e->v->spm) fg__spm_text(e, text, length);
    else fg__bpe_text(e, text, length);
    e->after_special = false;
}

/* The longest special token at the start of the text, or -1. */
static int32_t fg__special_find(const fg__encoder *e, const char *text, size_t n, size_t *length) {
    const fg__vocab *v = e->v;
    int32_t id, found = -1;
    uint32_t node = 0;
    size_t i;
    for (i = 0; i < n && (node = fg__trie_child(v, node, (unsigned char)text[i])) != 0; i++) {
        id = v->trie[node].id;
        if (id < 0 || (e->no_special && fg__token_is_special(v, id))) continue;
        found = id;
        *length = i + 1;
    }
    return found;
}

/* How many bytes of white space the text starts with. */
static size_t fg__space_bytes(const char *text, size_t length) {
    size_t at = 0, n;
    uint32_t code;
    while (at < length) {
        n = fg__utf8_decode(text + at, length - at, &code);
        if (!(fg__char_classes(code) & FG__CHAR_SPACE)) break;
        at += n;
    }
    return at;
}

static void fg__encode_all(fg__encoder *e, const char *text, size_t length) {
    size_t at = 0, begin = 0, n = 0;
    while (at < length && !e->failed) {
        int32_t id = -1;
        if (e->v->special_first[(unsigned char)text[at]]) id = fg__special_find(e, text + at, length - at, &n);
        if (id < 0) {
            at++;
            continue;
        }
        fg__encode_text(e, text + begin, at - begin);
        fg__encoder_add(e, id);
        e->after_special = true;
        at += n;
        if (e->v->attributes[id] & FG__TOKEN_RSTRIP) at += fg__space_bytes(text + at, length - at);
        begin = at;
    }
    fg__encode_text(e, text + begin, length - begin);
}

/* Tokenises `length` bytes. FG_NO_BOS leaves out the BOS and EOS tokens that the vocabulary wants around a text;
   FG_NO_SPECIAL takes the names of control tokens for text. *ids is freed with fg__free(&v->env, ...); it may be NULL
   when *count is 0. Errors: OUT_OF_MEMORY, TOO_LONG. Any number of threads may use one vocabulary. */
static fg_result fg__vocab_encode(const fg__vocab *v, const char *text, size_t length, unsigned flags, int32_t **ids,
                                  size_t *count) {
    fg__encoder e;
    *ids = NULL;
    *count = 0;
    if (length > FG__MAX_TEXT)
        return fg__fail(FG_ERROR_TOO_LONG, "a text of %zu bytes is too long to tokenise", length);
    memset(&e, 0, sizeof(e));
    e.v = v;
    e.no_special = (flags & FG_NO_SPECIAL) != 0;
    e.after_special = true;
    if (v->add_bos && !(flags & FG_NO_BOS)) fg__encoder_add(&e, v->bos);
    fg__encode_all(&e, text, length);
    if (v->add_eos && !(flags & FG_NO_BOS)) fg__encoder_add(&e, v->eos);
    fg__free(&v->env, e.runes);
    fg__free(&v->env, e.spare);
    fg__free(&v->env, e.word);
    fg__free(&v->env, e.symbols);
    fg__free(&v->env, e.pairs);
    if (e.failed) {
        fg__free(&v->env, e.ids);
        return FG_ERROR_OUT_OF_MEMORY;
    }
    *ids = e.ids;
    *count = e.n_ids;
    return FG_OK;
}

/* ------------------------------------------------------------------------------------------------
   Tokens to text
   ------------------------------------------------------------------------------------------------ */

/* The bytes a token stands for, which need not be whole characters. Without `special`, control tokens stand for
   nothing, and so do ids that are no tokens. The pointer lives as long as the vocabulary. */
static const char *fg__vocab_piece(const fg__vocab *v, int32_t id, bool special, size_t *length) {
    *length = 0;
    if (id < 0 || id >= v->n_tokens || (!special && fg__token_is_special(v, id))) return "";
    *length = v->piece_at[id + 1] - v->piece_at[id];
    return v->pieces + v->piece_at[id];
}

/* Whether a token ends a generation. */
static bool fg__vocab_is_end(const fg__vocab *v, int32_t id) {
    return id >= 0 && id < v->n_tokens && (v->attributes[id] & FG__TOKEN_END);
}

/* ================================================================================================
   >>chat  chat templates: the Jinja that transformers runs, as a small compiler and a stack machine

   Follows Jinja 3.1 as transformers sets it up: ImmutableSandboxedEnvironment(trim_blocks, lstrip_blocks, loopcontrols,
   {% generation %}), with its own tojson, raise_exception, strftime_now, dict and namespace; and Python where Jinja hands
   values to Python. Differences, all of them on purpose:
   - no template inheritance (block, extends, include, import), no autoescape, no recursive loops, no cycler, joiner, lipsum;
   - not there: the filters filesizeformat, pprint, random, striptags, urlencode, urlize, wordwrap, xmlattr, and methods of
     numbers;
   - integers have 64 bits: larger results are errors, larger numbers in JSON are floats;
   - map, select and their like compute their items at once, where Jinja waits until they are asked for;
   - an unknown filter or test is an error only when it is reached;
   - case beyond ASCII is mapped for Latin, Greek, Cyrillic, Armenian and full-width letters, one character to one (but for
     the German sharp s); letters and digits beyond ASCII are what >>unicode says.

   The text is cut into tokens (fg__j_lex), which are compiled in one pass (fg__j_compile) into instructions for a stack
   machine. Names are then bound to slots by Jinja's own static rules of scope (fg__j_resolve). The machine (fg__j_run) keeps
   macro calls on its own stack, so that no template can exhaust the C stack. Everything lives in one arena that is freed at
   the end; every error, also of memory, leaves by longjmp to fg__j_guard. Names here begin with fg__j.
   ================================================================================================ */

#include <setjmp.h>
#include <time.h>

/* What a template may use: generous for real ones, and little enough that a hostile one does no harm. */
#ifndef FG__J_MAX_STEPS
#define FG__J_MAX_STEPS 100000000           /* instructions, characters looked at / 16, items: about a second or two */
#endif
#define FG__J_MAX_MEMORY ((size_t)256 << 20) /* bytes of values */
#define FG__J_MAX_TEXT ((size_t)64 << 20)    /* bytes of output, or of one string being built */
#define FG__J_MAX_TEMPLATE ((size_t)1 << 20) /* bytes of template */
#define FG__J_MAX_NESTING 400                /* calls of the compiler inside each other; a bracket takes four or five */
#define FG__J_MAX_DEPTH FG__JSON_MAX_DEPTH   /* lists and dicts inside each other, when printed or compared */
#define FG__J_MAX_CALLS 200                  /* macro calls inside each other */
#define FG__J_MAX_RANGE 100000               /* items of range(), as Jinja's sandbox */

typedef enum fg__j_type {
    FG__J_MISSING, /* a variable not set, an argument not given; never seen by a template */
    FG__J_UNDEFINED,
    FG__J_NONE,
    FG__J_BOOL, /* as in Python, an integer */
    FG__J_INT,
    FG__J_FLOAT,
    FG__J_STRING,
    FG__J_LIST,
    FG__J_TUPLE,
    FG__J_DICT,
    FG__J_VIEW,     /* keys(), values() or items() of a dict */
    FG__J_RANGE,
    FG__J_ITERATOR, /* a generator: yields its items once */
    FG__J_NAMESPACE,
    FG__J_LOOP,
    FG__J_FUNCTION,
    FG__J_METHOD,
    FG__J_MACRO
} fg__j_type;

static const char *const fg__j_type_names[] = {"missing",   "Undefined", "NoneType",  "bool",      "int",   "float",
                                               "str",       "list",      "tuple",     "dict",      "view",  "range",
                                               "generator", "Namespace", "LoopContext", "function", "method", "Macro"};

/* A value. Strings, lists, tuples and dicts never change once made, and so are shared freely. */
typedef struct fg__jval {
    uint8_t type; /* fg__j_type */
    uint8_t flag; /* STRING: markup; UNDEFINED: fg__j_hint; VIEW: fg__j_view_kind; TUPLE: of groupby */
    uint32_t n;   /* UNDEFINED: the fg__j_type of the object that lacks it */
    union {
        int64_t i; /* INT, BOOL */
        double f;
        const struct fg__j_string *s; /* STRING; UNDEFINED: name or message */
        struct fg__j_list *l;         /* LIST, TUPLE, ITERATOR */
        struct fg__j_dict *d;         /* DICT, VIEW, NAMESPACE */
        const struct fg__j_range *r;
        struct fg__j_loop *loop;
        const struct fg__j_function *function;
        const struct fg__j_method *m;
        const struct fg__j_macro *macro;
    } u;
} fg__jval;

enum fg__j_hint { FG__J_NAME, FG__J_ATTRIBUTE, FG__J_ELEMENT, FG__J_MESSAGE };
enum fg__j_view_kind { FG__J_KEYS, FG__J_VALUES, FG__J_ITEMS };

/* Memory behind a string that grew: what follows it may be appended in place, so that building a text piece by piece
   takes linear time. */
typedef struct fg__j_buffer {
    char *data;
    size_t used, capacity;
} fg__j_buffer;

typedef struct fg__j_string {
    const char *data; /* valid UTF-8, not zero-terminated */
    size_t length, chars;
    fg__j_buffer *buffer; /* or NULL */
} fg__j_string;

typedef struct fg__j_list {
    const fg__jval *items;
    size_t count;
    size_t next; /* ITERATOR: items taken so far */
} fg__j_list;

/* Keys and values in turn, in order of insertion; `sorted` lists them by key. */
typedef struct fg__j_dict {
    fg__jval *items;
    uint32_t *sorted;
    uint32_t count, capacity;
} fg__j_dict;

typedef struct fg__j_range {
    int64_t start, stop, step, count;
} fg__j_range;

/* A for loop that runs. */
typedef struct fg__j_loop {
    const fg__jval *items;
    size_t count, next; /* next: index of the item after this one */
    fg__jval *kept;     /* a loop that is filtered before it runs: the items that stay, */
    size_t n_kept;      /*    so far */
    bool filtering;  /* that comes first */
    bool filtered;   /*    and is done */
    bool completed;  /* the end of the body was reached (else there is reason for `else`, so Jinja) */
    int32_t slot;    /* of the variable `loop` */
    fg__jval last_changed;
} fg__j_loop;

/* Arguments of a call. */
typedef struct fg__j_args {
    const fg__jval *items;
    size_t n;
    const fg__jval *names, *values; /* keywords */
    size_t n_named;
} fg__j_args;

typedef struct fg__jinja fg__jinja;

enum { FG__J_MAX_PARAMS = 6 };

/* What a filter, test, method or global function is called with. */
typedef struct fg__j_in {
    fg__jval self;               /* the value before the bar, the object of the method */
    fg__jval a[FG__J_MAX_PARAMS]; /* arguments in the order of the parameters; MISSING where not given */
    const fg__j_args *args;      /* as they were given */
    int how;
} fg__j_in;

typedef fg__jval (*fg__j_fn)(fg__jinja *j, const fg__j_in *in);

typedef struct fg__j_function {
    const char *name;
    const char *params; /* names separated by spaces; after a "/" they cannot be used as keywords; "*": anything goes */
    int required;       /* the first so many must be given */
    fg__j_fn call;
    int how;            /* for functions that do several things */
} fg__j_function;

typedef struct fg__j_method {
    fg__jval self;
    const fg__j_function *function;
} fg__j_method;

/* The variables of a macro call, or of the template itself. */
typedef struct fg__j_frame {
    struct fg__j_frame *outer; /* of the macro's definition */
    fg__jval *slots;
} fg__j_frame;

typedef struct fg__j_macro {
    int function; /* of the code */
    fg__jval name;
    fg__j_frame *outer;
} fg__j_macro;

/* ------------------------------------------------------------------------------------------------
   Code
   ------------------------------------------------------------------------------------------------ */

typedef enum fg__j_op {
    FG__J_OP_TEXT,      /* adds constant a to the output */
    FG__J_OP_OUTPUT,    /* adds the value on the stack to the output */
    FG__J_OP_CONST,     /* pushes constant a */
    FG__J_OP_LOAD,      /* pushes the variable with name a: slot b, n frames out */
    FG__J_OP_STORE,     /* pops into a variable; flag: how it was stored */
    FG__J_OP_SET_ATTR,  /* pops a namespace, then a value for its attribute a (constant) */
    FG__J_OP_UNPACK,    /* pops a value, pushes its a items, the first on top */
    FG__J_OP_LIST,      /* pops a items */
    FG__J_OP_TUPLE,
    FG__J_OP_DICT,      /* pops a keys and values */
    FG__J_OP_ATTR,      /* .name: constant a */
    FG__J_OP_ITEM,      /* [value] */
    FG__J_OP_SLICE,     /* [start:stop:step] */
    FG__J_OP_CALL,      /* calls with arguments as in calls[b]; flag: and `caller`, on top of them */
    FG__J_OP_FILTER,    /* filter number a, arguments as in calls[b] */
    FG__J_OP_TEST,
    FG__J_OP_UNKNOWN,   /* an unknown filter or test: message constant a */
    FG__J_OP_NOT,
    FG__J_OP_NEG,
    FG__J_OP_POS,
    FG__J_OP_BINARY,    /* flag: operator */
    FG__J_OP_CONCAT,    /* joins a values as text */
    FG__J_OP_COMPARE,   /* flag: operator */
    FG__J_OP_CHAIN,     /* as COMPARE, of a chain: false jumps to a; otherwise leaves the right operand */
    FG__J_OP_JUMP,      /* a: distance */
    FG__J_OP_JUMP_FALSE,
    FG__J_OP_JUMP_TRUE,
    FG__J_OP_AND,       /* jumps when false, keeping the value; otherwise pops it */
    FG__J_OP_OR,
    FG__J_OP_NO_ELSE,   /* pushes what an inline if without else yields */
    FG__J_OP_ENTER,     /* enters scope a */
    FG__J_OP_LEAVE,
    FG__J_OP_FOR,       /* pops what to loop over; a: slot of `loop`; flag: filter before the loop */
    FG__J_OP_NEXT,      /* pushes the next item or jumps to a; with items that are filtered goes on at b */
    FG__J_OP_KEEP,      /* after a loop's test: b back to NEXT, unless the body is to run now; flag: several targets */
    FG__J_OP_AGAIN,     /* end of the body: jumps to a */
    FG__J_OP_DONE,      /* ends a loop; jumps to a unless its else is to run */
    FG__J_OP_CAPTURE,   /* output goes to a string from now on, */
    FG__J_OP_CAPTURED,  /*    which this pushes */
    FG__J_OP_DISCARD,   /*    or this drops */
    FG__J_OP_MACRO,     /* pushes the macro of function a, named constant b */
    FG__J_OP_DEFAULT,   /* jumps to a when parameter b was given */
    FG__J_OP_RETURN
} fg__j_op;

enum { FG__J_ADD, FG__J_SUB, FG__J_MUL, FG__J_DIV, FG__J_FLOORDIV, FG__J_MOD, FG__J_POW };
enum { FG__J_EQ, FG__J_NE, FG__J_LT, FG__J_LE, FG__J_GT, FG__J_GE, FG__J_IN, FG__J_NOT_IN };
enum { FG__J_STORE_ALWAYS, FG__J_STORE_SOMETIMES /* inside an if */, FG__J_STORE_PARAM };

typedef struct fg__j_code {
    uint8_t op, flag; /* fg__j_op */
    uint16_t n;
    int32_t a, b;
    int32_t line;
} fg__j_code;

/* Arguments of a call on the stack: n_items, then values of keywords, then what * and ** stand before. */
typedef struct fg__j_call {
    int32_t n_items, n_named, first_name; /* names: constants */
    bool star, double_star;
} fg__j_call;

typedef enum fg__j_load { FG__J_LOAD_PARAM, FG__J_LOAD_RESOLVE, FG__J_LOAD_ALIAS, FG__J_LOAD_UNDEFINED } fg__j_load;

/* A variable of a scope, and what it holds when the scope is entered. */
typedef struct fg__j_variable {
    int32_t name, slot, load; /* fg__j_load */
    int32_t from_slot, from_frames; /* ALIAS: of the outer variable */
    int32_t shadowed;         /* the variable its name stood for outside, or -1 */
    int32_t scope;
} fg__j_variable;

typedef struct fg__j_scope {
    int32_t function, begin, end;        /* instructions, from ENTER to LEAVE or RETURN */
    int32_t next;                        /* of the body of a for loop: its NEXT; otherwise -1 */
    int32_t first_variable, n_variables; /* set by fg__j_resolve */
} fg__j_scope;

/* A piece of code with variables of its own: the template (number 0), a macro, a call block. */
typedef struct fg__j_code_function {
    int32_t entry, scope, level; /* level: functions around it */
    int32_t n_slots;
    int32_t first_param, n_params, n_defaults; /* in params: names; the last n_defaults have a default */
    int32_t caller, kwargs, varargs;    /* slots of these special parameters, or -1 */
} fg__j_code_function;

typedef enum fg__j_token_type {
    FG__J_T_END, FG__J_T_DATA, FG__J_T_BLOCK, FG__J_T_BLOCK_END, FG__J_T_PRINT, FG__J_T_PRINT_END, FG__J_T_NAME,
    FG__J_T_STRING, FG__J_T_NUMBER, FG__J_T_OPERATOR
} fg__j_token_type;

typedef struct fg__j_token {
    int32_t type, line; /* fg__j_token_type */
    int32_t id;         /* NAME: its number; OPERATOR: its characters, the first * 256 (0 if there is one) + the last */
    fg__jval value;     /* DATA, STRING, NUMBER */
} fg__j_token;

/* A for loop that is being compiled. */
typedef struct fg__j_for {
    struct fg__j_for *outer;
    int32_t next, breaks; /* its NEXT; the last of a chain of jumps */
    int captures;         /* open in its body */
} fg__j_for;

/* A macro call that runs. */
typedef struct fg__j_active {
    fg__j_frame *frame;
    int32_t back; /* where the caller goes on */
    size_t n_loops;
} fg__j_active;

struct fg__jinja {
    const fg__env *env;
    fg__arena arena;
    jmp_buf leave;
    fg_result result;
    int64_t steps;
    int line; /* of the token or instruction at work, for messages */
    fg__text scratch; /* strings being built, one behind the other */
    fg__text *out;
    size_t out_begin;
    fg__jval ascii[128]; /* strings of one character */
    /* lexer */
    const char *text;
    size_t length, at;
    bool line_start;
    fg__j_token *tokens;
    size_t n_tokens, tokens_capacity;
    /* names */
    fg__jval *names;
    size_t n_names, names_capacity;
    int32_t *name_table; /* hash table of numbers + 1 */
    size_t name_mask;
    fg__jval *globals; /* of each name, MISSING until looked up */
    /* compiler */
    const fg__j_token *token; /* the next one */
    fg__j_code *code;
    fg__jval *constants;
    fg__j_call *calls;
    int32_t *params;
    fg__j_variable *variables;
    fg__j_scope *scopes;
    fg__j_code_function *functions;
    size_t n_code, n_constants, n_calls, n_params, n_variables, n_scopes, n_functions;
    size_t code_capacity, constants_capacity, calls_capacity, params_capacity, variables_capacity,
        scopes_capacity, functions_capacity;
    int32_t function; /* in which we are */
    int nesting, ifs; /* ifs: open in this scope */
    int fors;         /* open anywhere: `loop` must not be assigned there */
    fg__j_for *loop;  /* innermost, in this function */
    int32_t last_call; /* CALL that ends the expression just compiled, or -1 */
    int32_t *name_variables; /* while names are bound: the variable each stands for, or -1 */
    /* machine */
    const fg__json *given; /* variables */
    fg__jval *stack;
    size_t n_stack, stack_capacity;
    fg__j_active *active;
    size_t n_active, active_capacity;
    fg__j_loop **loops;
    size_t n_loops, loops_capacity;
    size_t *captures;
    size_t n_captures, captures_capacity;
    fg__j_frame *frame;
};

/* ------------------------------------------------------------------------------------------------
   Errors and memory
   ------------------------------------------------------------------------------------------------ */

static void fg__j_leave(fg__jinja *j, fg_result result) {
    j->result = result;
    longjmp(j->leave, 1);
}

/* Ends the rendering with FG_ERROR_TEMPLATE. Returns nothing useful, for callers that must return a value. */
FG__PRINTF(2, 3) static fg__jval fg__j_fail(fg__jinja *j, const char *format, ...) {
    static const fg__jval nothing = {0, 0, 0, {0}};
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fg__fail(FG_ERROR_TEMPLATE, "chat template, line %d: %s", j->line, text);
    fg__j_leave(j, FG_ERROR_TEMPLATE);
    return nothing;
}

/* Counts work done, so that no template runs for ever. */
static void fg__j_work(fg__jinja *j, size_t amount) {
    if (amount < (size_t)j->steps) j->steps -= (int64_t)amount;
    else fg__j_fail(j, "it takes too long");
}

static void *fg__j_alloc(fg__jinja *j, size_t count, size_t size) {
    void *result;
    if (count > FG__J_MAX_MEMORY / size || j->arena.bytes + count * size > FG__J_MAX_MEMORY)
        fg__j_fail(j, "it needs too much memory");
    fg__j_work(j, count * size / 64);
    result = fg__arena_alloc(&j->arena, count * size);
    if (!result) fg__j_leave(j, FG_ERROR_OUT_OF_MEMORY);
    return result;
}

/* Makes room for one more element at the end of an array; returns the array. */
static void *fg__j_room(fg__jinja *j, void *array, size_t *capacity, size_t count, size_t size) {
    if (count >= FG__J_MAX_MEMORY / size) fg__j_fail(j, "it needs too much memory");
    if (!fg__reserve(j->env, &array, capacity, count + 1, size)) fg__j_leave(j, FG_ERROR_OUT_OF_MEMORY);
    return array;
}

/* ------------------------------------------------------------------------------------------------
   Values
   ------------------------------------------------------------------------------------------------ */

static fg__jval fg__j_value(fg__j_type type) {
    fg__jval value;
    memset(&value, 0, sizeof(value));
    value.type = (uint8_t)type;
    return value;
}

static fg__jval fg__j_int(int64_t i) {
    fg__jval value = fg__j_value(FG__J_INT);
    value.u.i = i;
    return value;
}

static fg__jval fg__j_bool(bool b) {
    fg__jval value = fg__j_value(FG__J_BOOL);
    value.u.i = b ? 1 : 0;
    return value;
}

static fg__jval fg__j_float(double f) {
    fg__jval value = fg__j_value(FG__J_FLOAT);
    value.u.f = f;
    return value;
}

/* A list, tuple or iterator of items that stay where they are. */
static fg__jval fg__j_list_of(fg__jinja *j, fg__j_type type, const fg__jval *items, size_t count) {
    static const fg__jval nothing = {0, 0, 0, {0}};
    fg__jval value = fg__j_value(type);
    value.u.l = (fg__j_list *)fg__j_alloc(j, 1, sizeof(fg__j_list));
    value.u.l->items = items ? items : &nothing; /* so that adding 0 to it is defined */
    value.u.l->count = count;
    value.u.l->next = 0;
    return value;
}

static fg__jval *fg__j_array(fg__jinja *j, size_t count) {
    fg__j_work(j, count);
    return (fg__jval *)fg__j_alloc(j, count, sizeof(fg__jval));
}

/* A pair as a tuple. */
static fg__jval fg__j_pair(fg__jinja *j, fg__jval first, fg__jval second) {
    fg__jval *items = fg__j_array(j, 2);
    items[0] = first;
    items[1] = second;
    return fg__j_list_of(j, FG__J_TUPLE, items, 2);
}

static bool fg__j_is_integer(fg__jval v) { return v.type == FG__J_INT || v.type == FG__J_BOOL; }
static bool fg__j_is_number(fg__jval v) { return fg__j_is_integer(v) || v.type == FG__J_FLOAT; }
static double fg__j_as_float(fg__jval v) { return v.type == FG__J_FLOAT ? v.u.f : (double)v.u.i; }

/* ------------------------------------------------------------------------------------------------
   Strings
   ------------------------------------------------------------------------------------------------ */

/* Number of characters in valid UTF-8. */
static size_t fg__j_count_chars(const char *data, size_t length) {
    size_t i, n = 0;
    for (i = 0; i < length; i++) n += ((unsigned char)data[i] & 0xC0) != 0x80;
    return n;
}

/* A string over bytes that stay where they are. */
static fg__jval fg__j_span(fg__jinja *j, const char *data, size_t length) {
    fg__jval value = fg__j_value(FG__J_STRING);
    fg__j_string *s = (fg__j_string *)fg__j_alloc(j, 1, sizeof(*s));
    fg__j_work(j, length / 16);
    s->data = data;
    s->length = length;
    s->chars = fg__j_count_chars(data, length);
    s->buffer = NULL;
    value.u.s = s;
    return value;
}

static fg__jval fg__j_text(fg__jinja *j, const char *text) { return fg__j_span(j, text, strlen(text)); }

static fg__jval fg__j_copy(fg__jinja *j, const char *data, size_t length) {
    char *copy = (char *)fg__j_alloc(j, length, 1);
    if (length) memcpy(copy, data, length);
    return fg__j_span(j, copy, length);
}

/* The character at `data` as a string. */
static fg__jval fg__j_char(fg__jinja *j, const char *data, size_t left) {
    unsigned char c = (unsigned char)data[0];
    if (c >= 0x80) return fg__j_span(j, data, (size_t)fg__utf8_measure(data, left));
    if (j->ascii[c].type == FG__J_MISSING) j->ascii[c] = fg__j_copy(j, data, 1);
    return j->ascii[c];
}

/* A copy of a string value that is (not) markup: text that needs no escaping, which `safe` and `escape` make. */
static fg__jval fg__j_marked(fg__jval string, bool markup) {
    string.flag = markup ? 1 : 0;
    return string;
}

/* Byte offset of character number `index` <= chars. */
static size_t fg__j_offset(fg__jinja *j, const fg__j_string *s, size_t index) {
    size_t at = 0;
    if (s->length == s->chars) return index;
    if (index == s->chars) return s->length;
    fg__j_work(j, index / 8);
    while (index) {
        at++;
        if (((unsigned char)s->data[at] & 0xC0) != 0x80) index--;
    }
    return at;
}

static fg__jval fg__j_substring(fg__jinja *j, const fg__j_string *s, size_t begin, size_t end) {
    return fg__j_span(j, s->data + begin, end - begin);
}

static bool fg__j_same_string(const fg__j_string *a, const fg__j_string *b) {
    return a->length == b->length && memcmp(a->data, b->data, a->length) == 0;
}

/* Bytes of a string that fit a message: whole characters, at most `most` bytes. */
static int fg__j_cut(const fg__j_string *s, size_t most) {
    size_t n = FG__MIN(s->length, most);
    while (n < s->length && n && ((unsigned char)s->data[n] & 0xC0) == 0x80) n--;
    return (int)n;
}

static bool fg__j_is(fg__jval v, const char *text) {
    return v.type == FG__J_STRING && v.u.s->length == strlen(text) && memcmp(v.u.s->data, text, v.u.s->length) == 0;
}

/* a + b. A left side that was the last to grow in its buffer grows in place. */
static fg__jval fg__j_join2(fg__jinja *j, const fg__j_string *a, const fg__j_string *b) {
    fg__jval value = fg__j_value(FG__J_STRING);
    fg__j_string *s = (fg__j_string *)fg__j_alloc(j, 1, sizeof(*s));
    fg__j_buffer *buffer = a->buffer;
    size_t length = a->length + b->length;
    if (length > FG__J_MAX_TEXT) fg__j_fail(j, "a string is too long");
    if (!buffer || buffer->data + buffer->used != a->data + a->length || buffer->capacity - buffer->used < b->length) {
        buffer = (fg__j_buffer *)fg__j_alloc(j, 1, sizeof(*buffer));
        buffer->capacity = length < 256 ? length : 2 * length;
        buffer->data = (char *)fg__j_alloc(j, buffer->capacity, 1);
        buffer->used = a->length;
        if (a->length) memcpy(buffer->data, a->data, a->length);
        s->data = buffer->data;
    } else {
        s->data = a->data;
    }
    if (b->length) memmove(buffer->data + buffer->used, b->data, b->length);
    fg__j_work(j, b->length / 16);
    buffer->used += b->length;
    s->length = length;
    s->chars = a->chars + b->chars;
    s->buffer = buffer;
    value.u.s = s;
    return value;
}

/* Strings are built at the end of j->scratch: mark, put, put, ..., take. */
static size_t fg__j_mark(fg__jinja *j) { return j->scratch.length; }

static void fg__j_put(fg__jinja *j, const char *data, size_t length) {
    if (j->scratch.length + length > FG__J_MAX_TEXT) fg__j_fail(j, "a string is too long");
    fg__j_work(j, length / 16 + 1);
    fg__text_add(&j->scratch, data, length);
    if (j->scratch.failed) fg__j_leave(j, FG_ERROR_OUT_OF_MEMORY);
}

static void fg__j_puts(fg__jinja *j, const char *text) { fg__j_put(j, text, strlen(text)); }
static void fg__j_put_string(fg__jinja *j, const fg__j_string *s) { fg__j_put(j, s->data, s->length); }

static void fg__j_put_code(fg__jinja *j, uint32_t code) {
    char bytes[4];
    fg__j_put(j, bytes, fg__utf8_encode(code, bytes));
}

static void fg__j_put_repeated(fg__jinja *j, const char *data, size_t length, int64_t count) {
    if (count > 0 && length && (uint64_t)count > FG__J_MAX_TEXT / length) fg__j_fail(j, "a string is too long");
    for (; count > 0 && length; count--) fg__j_put(j, data, length);
}

static fg__jval fg__j_take(fg__jinja *j, size_t mark) {
    fg__jval value = fg__j_copy(j, j->scratch.data ? j->scratch.data + mark : "", j->scratch.length - mark);
    j->scratch.length = mark;
    return value;
}

/* ------------------------------------------------------------------------------------------------
   Characters
   ------------------------------------------------------------------------------------------------ */

/* What Python's str.isspace and the \s of its regular expressions accept. */
static bool fg__j_is_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= 0x1F);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

static uint32_t fg__j_decode(const char *data, size_t left, size_t *length) {
    uint32_t code;
    *length = fg__utf8_decode(data, left, &code);
    return code;
}

/* The character that ends before byte `end` of data; *begin: its first byte. */
static uint32_t fg__j_decode_back(const char *data, size_t end, size_t *begin) {
    size_t length;
    *begin = end - 1;
    while (*begin && ((unsigned char)data[*begin] & 0xC0) == 0x80) --*begin;
    return fg__j_decode(data + *begin, end - *begin, &length);
}

/* Blocks of letters with case. step 1: the lower-case letter is `delta` above; step 2: capital and small in turn, the
   capital at the parity of `first`. */
static const struct { uint32_t first, last; int delta, step; } fg__j_cases[] = {
    {'A', 'Z', 32, 1},           {0xC0, 0xD6, 32, 1},     {0xD8, 0xDE, 32, 1},     {0x100, 0x12F, 1, 2},
    {0x132, 0x137, 1, 2},        {0x139, 0x148, 1, 2},    {0x14A, 0x177, 1, 2},    {0x178, 0x178, -121, 1},
    {0x179, 0x17E, 1, 2},        {0x1CD, 0x1DC, 1, 2},    {0x1DE, 0x1EF, 1, 2},    {0x1F8, 0x21F, 1, 2},
    {0x222, 0x233, 1, 2},        {0x386, 0x386, 38, 1},   {0x388, 0x38A, 37, 1},   {0x38C, 0x38C, 64, 1},
    {0x38E, 0x38F, 63, 1},       {0x391, 0x3A1, 32, 1},   {0x3A3, 0x3AB, 32, 1},   {0x3D8, 0x3EF, 1, 2},
    {0x400, 0x40F, 80, 1},       {0x410, 0x42F, 32, 1},   {0x460, 0x481, 1, 2},    {0x48A, 0x4BF, 1, 2},
    {0x4C1, 0x4CE, 1, 2},        {0x4D0, 0x52F, 1, 2},    {0x531, 0x556, 48, 1},   {0x1E00, 0x1E95, 1, 2},
    {0x1EA0, 0x1EFF, 1, 2},      {0xFF21, 0xFF3A, 32, 1}, {0x10400, 0x10427, 40, 1}};

static uint32_t fg__j_lower(uint32_t c) {
    int i;
    if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
    for (i = 0; i < FG__COUNT(fg__j_cases); i++) {
        if (c < fg__j_cases[i].first || c > fg__j_cases[i].last) continue;
        if (fg__j_cases[i].step == 2 && (c - fg__j_cases[i].first) % 2) return c;
        return (uint32_t)((int)c + fg__j_cases[i].delta);
    }
    return c;
}

static uint32_t fg__j_upper(uint32_t c) {
    int i;
    if (c < 0x80) return c >= 'a' && c <= 'z' ? c - 32 : c;
    if (c == 0xB5) return 0x39C; /* micro sign */
    if (c == 0x3C2) return 0x3A3; /* final sigma */
    for (i = 0; i < FG__COUNT(fg__j_cases); i++) {
        int delta = fg__j_cases[i].delta;
        uint32_t capital = (uint32_t)((int)c - delta);
        if ((int)c < delta || capital < fg__j_cases[i].first || capital > fg__j_cases[i].last) continue;
        if (fg__j_cases[i].step == 2 && (capital - fg__j_cases[i].first) % 2) continue;
        return capital;
    }
    return c;
}

static bool fg__j_is_alpha(uint32_t c) {
    if (c < 0x80) return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
    return (fg__char_classes(c) & FG__CHAR_LETTER) != 0;
}

static bool fg__j_is_digit(uint32_t c) {
    if (c < 0x80) return c >= '0' && c <= '9';
    return (fg__char_classes(c) & FG__CHAR_NUMBER) != 0;
}

/* What Python's repr writes as it is: all but controls, formats, separators and private or unassigned characters (of
   which only the large blocks are known here). */
static bool fg__j_is_printable(uint32_t c) {
    static const uint32_t no[][2] = {{0, 0x1F},         {0x7F, 0xA0},       {0xAD, 0xAD},       {0x600, 0x605},
                                     {0x61C, 0x61C},    {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x1680, 0x1680},
                                     {0x180E, 0x180E},  {0x2000, 0x200F},   {0x2028, 0x202F},   {0x205F, 0x206F},
                                     {0x3000, 0x3000},  {0xD800, 0xF8FF},   {0xFEFF, 0xFEFF},   {0xFFF0, 0xFFFB},
                                     {0xFFFE, 0xFFFF},  {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0x323B0, 0xE00FF},
                                     {0xE01F0, 0x10FFFF}};
    int i;
    for (i = 0; i < FG__COUNT(no); i++)
        if (c >= no[i][0] && c <= no[i][1]) return false;
    return true;
}

/* ------------------------------------------------------------------------------------------------
   Comparing
   ------------------------------------------------------------------------------------------------ */

enum { FG__J_UNORDERED = 2 };

/* -1, 0 or 1 for numbers of any kind, exactly; FG__J_UNORDERED with NaN. */
static int fg__j_compare_numbers(fg__jval a, fg__jval b) {
    double x, y;
    if (fg__j_is_integer(a) && fg__j_is_integer(b)) return a.u.i < b.u.i ? -1 : a.u.i > b.u.i;
    if (fg__j_is_integer(b)) {
        int order = fg__j_compare_numbers(b, a);
        return order == FG__J_UNORDERED ? order : -order;
    }
    x = fg__j_as_float(a);
    y = b.u.f;
    if (x != x || y != y) return FG__J_UNORDERED;
    if (x != y || !fg__j_is_integer(a) || y >= 9223372036854775808.0) return x < y ? -1 : x > y;
    return a.u.i < (int64_t)y ? -1 : a.u.i > (int64_t)y; /* equal after a rounding */
}

static int fg__j_compare_strings(const fg__j_string *a, const fg__j_string *b) {
    int order = memcmp(a->data, b->data, FG__MIN(a->length, b->length));
    return order ? (order < 0 ? -1 : 1) : a->length < b->length ? -1 : a->length > b->length;
}

static const fg__jval *fg__j_dict_find(fg__jinja *j, const fg__j_dict *dict, fg__jval key);

static bool fg__j_equal_at(fg__jinja *j, fg__jval a, fg__jval b, int depth);

static bool fg__j_equal_lists(fg__jinja *j, const fg__j_list *a, const fg__j_list *b, int depth) {
    size_t i;
    if (a->count != b->count) return false;
    for (i = 0; i < a->count; i++)
        if (!fg__j_equal_at(j, a->items[i], b->items[i], depth)) return false;
    return true;
}

static bool fg__j_equal_dicts(fg__jinja *j, const fg__j_dict *a, const fg__j_dict *b, int depth) {
    uint32_t i;
    if (a->count != b->count) return false;
    for (i = 0; i < a->count; i++) {
        const fg__jval *other = fg__j_dict_find(j, b, a->items[2 * i]);
        if (!other || !fg__j_equal_at(j, a->items[2 * i + 1], *other, depth)) return false;
    }
    return true;
}

static bool fg__j_equal_ranges(const fg__j_range *a, const fg__j_range *b) {
    if (a->count != b->count || a->count == 0) return a->count == b->count;
    return a->start == b->start && (a->count == 1 || a->step == b->step);
}

static bool fg__j_equal_at(fg__jinja *j, fg__jval a, fg__jval b, int depth) {
    fg__j_work(j, 1);
    if (depth >= FG__J_MAX_DEPTH) fg__j_fail(j, "values are nested too deeply");
    if (fg__j_is_number(a) && fg__j_is_number(b)) return fg__j_compare_numbers(a, b) == 0;
    if (a.type != b.type) return false;
    switch (a.type) {
    case FG__J_UNDEFINED:
    case FG__J_NONE: return true;
    case FG__J_STRING: fg__j_work(j, a.u.s->length / 64); return fg__j_same_string(a.u.s, b.u.s);
    case FG__J_LIST:
    case FG__J_TUPLE: return a.u.l == b.u.l || fg__j_equal_lists(j, a.u.l, b.u.l, depth + 1);
    case FG__J_DICT: return a.u.d == b.u.d || fg__j_equal_dicts(j, a.u.d, b.u.d, depth + 1);
    case FG__J_RANGE: return fg__j_equal_ranges(a.u.r, b.u.r);
    case FG__J_METHOD:
        return a.u.m->function == b.u.m->function && fg__j_equal_at(j, a.u.m->self, b.u.m->self, depth + 1);
    default: return a.u.l == b.u.l;
    }
}

static bool fg__j_equal(fg__jinja *j, fg__jval a, fg__jval b) { return fg__j_equal_at(j, a, b, 0); }

/* What Jinja says when an undefined value is used. */
static fg__jval fg__j_fail_undefined(fg__jinja *j, fg__jval v) {
    int n = fg__j_cut(v.u.s, 200);
    switch (v.flag) {
    case FG__J_NAME: return fg__j_fail(j, "'%.*s' is undefined", n, v.u.s->data);
    case FG__J_ATTRIBUTE:
        return fg__j_fail(j, "'%s object' has no attribute '%.*s'", fg__j_type_names[v.n], n, v.u.s->data);
    case FG__J_ELEMENT: return fg__j_fail(j, "%s object has no element %.*s", fg__j_type_names[v.n], n, v.u.s->data);
    default: return fg__j_fail(j, "%.*s", n, v.u.s->data);
    }
}

static fg__jval fg__j_undefined(fg__jinja *j, const char *message) {
    fg__jval value = fg__j_text(j, message);
    value.type = FG__J_UNDEFINED;
    value.flag = FG__J_MESSAGE;
    return value;
}

/* What `object` has no attribute or element of this name. */
static fg__jval fg__j_lacks(fg__jval object, fg__jval name, enum fg__j_hint hint) {
    name.type = FG__J_UNDEFINED;
    name.flag = (uint8_t)hint;
    name.n = object.type;
    return name;
}

/* Fails when either is undefined, else as Python does for types that an operator does not take. */
static fg__jval fg__j_fail_operands(fg__jinja *j, const char *what, fg__jval a, fg__jval b) {
    if (a.type == FG__J_UNDEFINED) return fg__j_fail_undefined(j, a);
    if (b.type == FG__J_UNDEFINED) return fg__j_fail_undefined(j, b);
    return fg__j_fail(j, "'%s' not supported between '%s' and '%s'", what, fg__j_type_names[a.type],
                      fg__j_type_names[b.type]);
}

static int fg__j_order_at(fg__jinja *j, fg__jval a, fg__jval b, int depth) {
    size_t i;
    fg__j_work(j, 1);
    if (depth >= FG__J_MAX_DEPTH) fg__j_fail(j, "values are nested too deeply");
    if (fg__j_is_number(a) && fg__j_is_number(b)) return fg__j_compare_numbers(a, b);
    if (a.type == FG__J_STRING && b.type == FG__J_STRING) {
        fg__j_work(j, FG__MIN(a.u.s->length, b.u.s->length) / 64);
        return fg__j_compare_strings(a.u.s, b.u.s);
    }
    if (a.type != b.type || (a.type != FG__J_LIST && a.type != FG__J_TUPLE)) fg__j_fail_operands(j, "<", a, b);
    for (i = 0; i < a.u.l->count && i < b.u.l->count; i++)
        if (!fg__j_equal_at(j, a.u.l->items[i], b.u.l->items[i], depth + 1))
            return fg__j_order_at(j, a.u.l->items[i], b.u.l->items[i], depth + 1);
    return a.u.l->count < b.u.l->count ? -1 : a.u.l->count > b.u.l->count;
}

/* -1, 0, 1 or FG__J_UNORDERED; fails for values that Python does not order. */
static int fg__j_order(fg__jinja *j, fg__jval a, fg__jval b) { return fg__j_order_at(j, a, b, 0); }

typedef struct fg__j_sorter {
    fg__jinja *j;
    const fg__jval *keys;
    size_t stride;
    bool reverse, equal_first; /* equal_first: equal keys need no order (Jinja sorts lists of keys) */
} fg__j_sorter;

/* Orders keys as Python's sort does. */
static int fg__j_compare_sorted(void *user, uint32_t a, uint32_t b) {
    fg__j_sorter *s = (fg__j_sorter *)user;
    fg__jval x = s->keys[a * s->stride], y = s->keys[b * s->stride];
    int order;
    if (s->equal_first && fg__j_equal(s->j, x, y)) return 0;
    order = fg__j_order(s->j, x, y);
    if (order == FG__J_UNORDERED) return 0;
    return s->reverse ? -order : order;
}

/* The order of n keys. */
static uint32_t *fg__j_sorted(fg__jinja *j, const fg__jval *keys, size_t stride, size_t n, bool reverse, bool equal_first) {
    fg__j_sorter sorter;
    uint32_t *order = (uint32_t *)fg__j_alloc(j, 2 * n, sizeof(*order));
    size_t i;
    for (i = 0; i < n; i++) order[i] = (uint32_t)i;
    sorter.j = j;
    sorter.keys = keys;
    sorter.stride = stride;
    sorter.reverse = reverse;
    sorter.equal_first = equal_first;
    fg__sort(order, order + n, n, fg__j_compare_sorted, &sorter);
    return order;
}

/* ------------------------------------------------------------------------------------------------
   Dicts
   ------------------------------------------------------------------------------------------------ */

static int fg__j_key_rank(fg__jval key) { return fg__j_is_number(key) ? (int)FG__J_INT : (int)key.type; }

/* Some total order of keys that agrees with equality. */
static int fg__j_compare_keys(fg__jval a, fg__jval b) {
    int order = fg__j_key_rank(a) - fg__j_key_rank(b);
    size_t i;
    if (order) return order;
    switch (a.type) {
    case FG__J_UNDEFINED:
    case FG__J_NONE: return 0;
    case FG__J_BOOL:
    case FG__J_INT:
    case FG__J_FLOAT: return fg__j_compare_numbers(a, b);
    case FG__J_STRING: return fg__j_compare_strings(a.u.s, b.u.s);
    case FG__J_TUPLE:
        for (i = 0; i < a.u.l->count && i < b.u.l->count; i++)
            if ((order = fg__j_compare_keys(a.u.l->items[i], b.u.l->items[i])) != 0) return order;
        return a.u.l->count < b.u.l->count ? -1 : a.u.l->count > b.u.l->count;
    default: return (size_t)a.u.l < (size_t)b.u.l ? -1 : (size_t)a.u.l > (size_t)b.u.l;
    }
}

static int fg__j_compare_pairs(void *items, uint32_t a, uint32_t b) {
    return fg__j_compare_keys(((fg__jval *)items)[2 * (size_t)a], ((fg__jval *)items)[2 * (size_t)b]);
}

/* Fails for what Python cannot hash. */
static void fg__j_check_key(fg__jinja *j, fg__jval key, int depth) {
    size_t i;
    fg__j_work(j, 1);
    if (depth >= FG__J_MAX_DEPTH) fg__j_fail(j, "values are nested too deeply");
    if (key.type == FG__J_STRING) fg__j_work(j, key.u.s->length / 16);
    if (key.type == FG__J_LIST || key.type == FG__J_DICT) fg__j_fail(j, "unhashable type: '%s'", fg__j_type_names[key.type]);
    for (i = 0; key.type == FG__J_TUPLE && i < key.u.l->count; i++) fg__j_check_key(j, key.u.l->items[i], depth + 1);
}

/* The place of `key` in dict->sorted, or where it belongs. */
static uint32_t fg__j_dict_place(const fg__j_dict *dict, fg__jval key, bool *found) {
    uint32_t low = 0, high = dict->count;
    *found = false;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        int order = fg__j_compare_keys(key, dict->items[2 * dict->sorted[middle]]);
        if (order == 0) {
            *found = true;
            return middle;
        }
        if (order > 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* The value of a key, or NULL. Fails for a key that cannot be one. */
static const fg__jval *fg__j_dict_find(fg__jinja *j, const fg__j_dict *dict, fg__jval key) {
    bool found;
    uint32_t place;
    fg__j_check_key(j, key, 0);
    place = fg__j_dict_place(dict, key, &found);
    return found ? &dict->items[2 * dict->sorted[place] + 1] : NULL;
}

/* A dict or namespace of n keys and values in turn, which become its own; the last of equal keys counts. */
static fg__jval fg__j_dict_of(fg__jinja *j, fg__j_type type, fg__jval *items, size_t n) {
    fg__jval value = fg__j_value(type);
    fg__j_dict *dict = (fg__j_dict *)fg__j_alloc(j, 1, sizeof(*dict));
    size_t i;
    for (i = 0; i < n; i++) fg__j_check_key(j, items[2 * i], 0);
    dict->items = items;
    dict->sorted = (uint32_t *)fg__j_alloc(j, 2 * n, sizeof(*dict->sorted));
    dict->capacity = (uint32_t)n;
    fg__j_work(j, n * 4);
    dict->count = fg__sort_unique(items, sizeof(*items), dict->sorted, dict->sorted + n, (uint32_t)n, fg__j_compare_pairs,
                                  items);
    value.u.d = dict;
    return value;
}

/* Sets an attribute of a namespace, the one thing that can change. */
static void fg__j_namespace_set(fg__jinja *j, fg__j_dict *dict, fg__jval key, fg__jval value) {
    bool found;
    uint32_t place = fg__j_dict_place(dict, key, &found);
    if (key.u.s->length && key.u.s->data[0] == '_')
        fg__j_fail(j, "a namespace takes no attribute that begins with an underscore");
    if (found) {
        dict->items[2 * dict->sorted[place] + 1] = value;
        return;
    }
    if (dict->count == dict->capacity) {
        uint32_t capacity = dict->capacity * 2 + 8;
        fg__jval *items = fg__j_array(j, 2 * (size_t)capacity);
        uint32_t *sorted = (uint32_t *)fg__j_alloc(j, capacity, sizeof(*sorted));
        if (dict->count) memcpy(items, dict->items, 2 * dict->count * sizeof(*items));
        if (dict->count) memcpy(sorted, dict->sorted, dict->count * sizeof(*sorted));
        dict->items = items;
        dict->sorted = sorted;
        dict->capacity = capacity;
    }
    fg__j_work(j, dict->count - place);
    memmove(dict->sorted + place + 1, dict->sorted + place, (dict->count - place) * sizeof(*dict->sorted));
    dict->sorted[place] = dict->count;
    dict->items[2 * dict->count] = key;
    dict->items[2 * dict->count++ + 1] = value;
}

/* ------------------------------------------------------------------------------------------------
   Values as text: str, repr and JSON
   ------------------------------------------------------------------------------------------------ */

static void fg__j_put_repr(fg__jinja *j, fg__jval v, int depth);

static void fg__j_put_number(fg__jinja *j, fg__jval v) {
    char text[32];
    if (v.type == FG__J_BOOL) fg__j_puts(j, v.u.i ? "True" : "False");
    else if (v.type == FG__J_INT) fg__j_put(j, text, (size_t)snprintf(text, sizeof(text), "%lld", (long long)v.u.i));
    else fg__j_put(j, text, (size_t)fg__number_text(v.u.f, text));
}

static void fg__j_put_quoted(fg__jinja *j, const fg__j_string *s) {
    const char *single = s->length ? (const char *)memchr(s->data, '\'', s->length) : NULL;
    const char *quote = single && !memchr(s->data, '"', s->length) ? "\"" : "'";
    size_t i, length;
    char text[16];
    fg__j_puts(j, quote);
    for (i = 0; i < s->length; i += length) {
        uint32_t c = fg__j_decode(s->data + i, s->length - i, &length);
        const char *named = c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\t' ? "\\t" : c == '\\' ? "\\\\" : NULL;
        if (named) fg__j_puts(j, named);
        else if (c == (uint32_t)*quote) fg__j_puts(j, "\\'");
        else if (fg__j_is_printable(c)) fg__j_put(j, s->data + i, length);
        else {
            snprintf(text, sizeof(text), c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
            fg__j_puts(j, text);
        }
    }
    fg__j_puts(j, quote);
}

static void fg__j_put_items(fg__jinja *j, const char *open, const fg__j_list *list, const char *close, int depth) {
    size_t i;
    fg__j_puts(j, open);
    for (i = 0; i < list->count; i++) {
        if (i) fg__j_puts(j, ", ");
        fg__j_put_repr(j, list->items[i], depth);
    }
    fg__j_puts(j, close);
}

static void fg__j_put_dict(fg__jinja *j, const fg__j_dict *dict, int depth) {
    uint32_t i;
    fg__j_puts(j, "{");
    for (i = 0; i < dict->count; i++) {
        if (i) fg__j_puts(j, ", ");
        fg__j_put_repr(j, dict->items[2 * i], depth);
        fg__j_puts(j, ": ");
        fg__j_put_repr(j, dict->items[2 * i + 1], depth);
    }
    fg__j_puts(j, "}");
}

static void fg__j_put_view(fg__jinja *j, fg__jval v, int depth) {
    uint32_t i;
    fg__j_puts(j, v.flag == FG__J_KEYS ? "dict_keys([" : v.flag == FG__J_VALUES ? "dict_values([" : "dict_items([");
    for (i = 0; i < v.u.d->count; i++) {
        if (i) fg__j_puts(j, ", ");
        if (v.flag == FG__J_ITEMS) fg__j_puts(j, "(");
        if (v.flag != FG__J_VALUES) fg__j_put_repr(j, v.u.d->items[2 * i], depth);
        if (v.flag == FG__J_ITEMS) fg__j_puts(j, ", ");
        if (v.flag != FG__J_KEYS) fg__j_put_repr(j, v.u.d->items[2 * i + 1], depth);
        if (v.flag == FG__J_ITEMS) fg__j_puts(j, ")");
    }
    fg__j_puts(j, "])");
}

static void fg__j_put_range(fg__jinja *j, const fg__j_range *r) {
    char text[96];
    if (r->step == 1) snprintf(text, sizeof(text), "range(%lld, %lld)", (long long)r->start, (long long)r->stop);
    else
        snprintf(text, sizeof(text), "range(%lld, %lld, %lld)", (long long)r->start, (long long)r->stop,
                 (long long)r->step);
    fg__j_puts(j, text);
}

/* Objects whose repr in Python is not worth printing: an address, mostly. */
static void fg__j_put_object(fg__jinja *j, fg__jval v) {
    char text[64];
    if (v.type == FG__J_LOOP) {
        snprintf(text, sizeof(text), "<LoopContext %zu/%zu>", v.u.loop->next, v.u.loop->count);
        fg__j_puts(j, text);
        return;
    }
    fg__j_puts(j, "<");
    fg__j_puts(j, fg__j_type_names[v.type]);
    if (v.type == FG__J_MACRO) fg__j_puts(j, " ");
    if (v.type == FG__J_MACRO) fg__j_put_repr(j, v.u.macro->name, 0);
    fg__j_puts(j, ">");
}

static void fg__j_put_repr(fg__jinja *j, fg__jval v, int depth) {
    if (depth >= FG__J_MAX_DEPTH) fg__j_fail(j, "values are nested too deeply");
    switch (v.type) {
    case FG__J_UNDEFINED: fg__j_puts(j, "Undefined"); break;
    case FG__J_NONE: fg__j_puts(j, "None"); break;
    case FG__J_BOOL:
    case FG__J_INT:
    case FG__J_FLOAT: fg__j_put_number(j, v); break;
    case FG__J_STRING:
        if (v.flag) fg__j_puts(j, "Markup(");
        fg__j_put_quoted(j, v.u.s);
        if (v.flag) fg__j_puts(j, ")");
        break;
    case FG__J_LIST: fg__j_put_items(j, "[", v.u.l, "]", depth + 1); break;
    case FG__J_TUPLE: fg__j_put_items(j, "(", v.u.l, v.u.l->count == 1 ? ",)" : ")", depth + 1); break;
    case FG__J_DICT: fg__j_put_dict(j, v.u.d, depth + 1); break;
    case FG__J_VIEW: fg__j_put_view(j, v, depth + 1); break;
    case FG__J_RANGE: fg__j_put_range(j, v.u.r); break;
    case FG__J_NAMESPACE:
        fg__j_puts(j, "<Namespace ");
        fg__j_put_dict(j, v.u.d, depth + 1);
        fg__j_puts(j, ">");
        break;
    default: fg__j_put_object(j, v);
    }
}

static void fg__j_put_str(fg__jinja *j, fg__jval v) {
    if (v.type == FG__J_STRING) fg__j_put_string(j, v.u.s);
    else if (v.type != FG__J_UNDEFINED) fg__j_put_repr(j, v, 0);
}

/* str(v), without markup. */
static fg__jval fg__j_str(fg__jinja *j, fg__jval v) {
    size_t mark = fg__j_mark(j);
    if (v.type == FG__J_STRING) return fg__j_marked(v, false);
    fg__j_put_str(j, v);
    return fg__j_take(j, mark);
}

/* A string as it is, anything else as text: what filters of strings begin with. */
static fg__jval fg__j_soft(fg__jinja *j, fg__jval v) { return v.type == FG__J_STRING ? v : fg__j_str(j, v); }

typedef struct fg__j_json {
    bool ascii, sort_keys, lines;
    const fg__j_string *indent; /* with lines */
    const fg__j_string *comma, *colon;
} fg__j_json;

static void fg__j_put_json(fg__jinja *j, const fg__j_json *how, fg__jval v, int depth);

static void fg__j_put_json_string(fg__jinja *j, const fg__j_json *how, const fg__j_string *s) {
    fg__j_work(j, s->length / 16 + 1);
    fg__json_write_string(&j->scratch, s->data, s->length, how->ascii);
    if (j->scratch.failed) fg__j_leave(j, FG_ERROR_OUT_OF_MEMORY);
    if (j->scratch.length > FG__J_MAX_TEXT) fg__j_fail(j, "a string is too long");
}

static void fg__j_put_json_number(fg__jinja *j, fg__jval v) {
    if (v.type == FG__J_BOOL) fg__j_puts(j, v.u.i ? "true" : "false");
    else if (v.type == FG__J_FLOAT && v.u.f - v.u.f != 0)
        fg__j_puts(j, v.u.f != v.u.f ? "NaN" : v.u.f > 0 ? "Infinity" : "-Infinity");
    else fg__j_put_number(j, v);
}

/* Goes to a new line before an item or a closing bracket. */
static void fg__j_put_json_line(fg__jinja *j, const fg__j_json *how, int depth) {
    if (!how->lines) return;
    fg__j_puts(j, "\n");
    fg__j_put_repeated(j, how->indent->data, how->indent->length, depth);
}

static void fg__j_put_json_key(fg__jinja *j, const fg__j_json *how, fg__jval key) {
    if (key.type == FG__J_STRING) {
        fg__j_put_json_string(j, how, key.u.s);
        return;
    }
    if (!fg__j_is_number(key) && key.type != FG__J_NONE)
        fg__j_fail(j, "keys must be str, int, float, bool or None, not %s", fg__j_type_names[key.type]);
    fg__j_puts(j, "\"");
    fg__j_put_json(j, how, key, 0);
    fg__j_puts(j, "\"");
}

static void fg__j_put_json_dict(fg__jinja *j, const fg__j_json *how, const fg__j_dict *dict, int depth) {
    uint32_t *order = how->sort_keys ? fg__j_sorted(j, dict->items, 2, dict->count, false, false) : NULL;
    uint32_t i;
    fg__j_puts(j, "{");
    for (i = 0; i < dict->count; i++) {
        const fg__jval *item = dict->items + 2 * (size_t)(order ? order[i] : i);
        if (i) fg__j_put_string(j, how->comma);
        fg__j_put_json_line(j, how, depth + 1);
        fg__j_put_json_key(j, how, item[0]);
        fg__j_put_string(j, how->colon);
        fg__j_put_json(j, how, item[1], depth + 1);
    }
    if (dict->count) fg__j_put_json_line(j, how, depth);
    fg__j_puts(j, "}");
}

static void fg__j_put_json(fg__jinja *j, const fg__j_json *how, fg__jval v, int depth) {
    size_t i;
    if (depth >= FG__J_MAX_DEPTH) fg__j_fail(j, "values are nested too deeply");
    switch (v.type) {
    case FG__J_NONE: fg__j_puts(j, "null"); break;
    case FG__J_BOOL:
    case FG__J_INT:
    case FG__J_FLOAT: fg__j_put_json_number(j, v); break;
    case FG__J_STRING: fg__j_put_json_string(j, how, v.u.s); break;
    case FG__J_DICT: fg__j_put_json_dict(j, how, v.u.d, depth); break;
    case FG__J_LIST:
    case FG__J_TUPLE:
        fg__j_puts(j, "[");
        for (i = 0; i < v.u.l->count; i++) {
            if (i) fg__j_put_string(j, how->comma);
            fg__j_put_json_line(j, how, depth + 1);
            fg__j_put_json(j, how, v.u.l->items[i], depth + 1);
        }
        if (v.u.l->count) fg__j_put_json_line(j, how, depth);
        fg__j_puts(j, "]");
        break;
    default: fg__j_fail(j, "Object of type %s is not JSON serializable", fg__j_type_names[v.type]);
    }
}

/* ------------------------------------------------------------------------------------------------
   Truth, length, items
   ------------------------------------------------------------------------------------------------ */

/* len(v), or -1 for what has none. */
static int64_t fg__j_length(fg__jval v) {
    switch (v.type) {
    case FG__J_UNDEFINED: return 0;
    case FG__J_STRING: return (int64_t)v.u.s->chars;
    case FG__J_LIST:
    case FG__J_TUPLE: return (int64_t)v.u.l->count;
    case FG__J_DICT:
    case FG__J_VIEW: return v.u.d->count;
    case FG__J_RANGE: return v.u.r->count;
    case FG__J_LOOP: return (int64_t)v.u.loop->count;
    default: return -1;
    }
}

static bool fg__j_true(fg__jval v) {
    if (v.type == FG__J_FLOAT) return v.u.f != 0;
    if (fg__j_is_integer(v)) return v.u.i != 0;
    return v.type != FG__J_NONE && fg__j_length(v) != 0;
}

static bool fg__j_iterable(fg__jval v) {
    return v.type == FG__J_UNDEFINED || (v.type >= FG__J_STRING && v.type <= FG__J_ITERATOR) || v.type == FG__J_LOOP;
}

/* The characters of a string, each as a string. */
static const fg__jval *fg__j_chars(fg__jinja *j, const fg__j_string *s) {
    fg__jval *items = fg__j_array(j, s->chars);
    size_t at = 0, i;
    for (i = 0; i < s->chars; i++) {
        items[i] = fg__j_char(j, s->data + at, s->length - at);
        at += items[i].u.s->length;
    }
    return items;
}

static const fg__jval *fg__j_dict_items(fg__jinja *j, const fg__j_dict *dict, int kind) {
    fg__jval *items = fg__j_array(j, dict->count);
    uint32_t i;
    for (i = 0; i < dict->count; i++) {
        if (kind == FG__J_ITEMS) items[i] = fg__j_list_of(j, FG__J_TUPLE, dict->items + 2 * i, 2);
        else items[i] = dict->items[2 * i + (kind == FG__J_VALUES ? 1 : 0)];
    }
    return items;
}

/* What iterating over v yields; *count items. An iterator is used up by it. Fails for what cannot be iterated. */
static const fg__jval *fg__j_items(fg__jinja *j, fg__jval v, size_t *count) {
    fg__jval *items;
    size_t i;
    *count = fg__j_length(v) > 0 ? (size_t)fg__j_length(v) : 0;
    switch (v.type) {
    case FG__J_UNDEFINED: return NULL;
    case FG__J_STRING: return fg__j_chars(j, v.u.s);
    case FG__J_LIST:
    case FG__J_TUPLE: return v.u.l->items;
    case FG__J_DICT: return fg__j_dict_items(j, v.u.d, FG__J_KEYS);
    case FG__J_VIEW: return fg__j_dict_items(j, v.u.d, v.flag);
    case FG__J_RANGE:
        items = fg__j_array(j, *count);
        for (i = 0; i < *count; i++) items[i] = fg__j_int(v.u.r->start + (int64_t)i * v.u.r->step);
        return items;
    case FG__J_ITERATOR:
        i = v.u.l->next;
        v.u.l->next = v.u.l->count;
        *count = v.u.l->count - i;
        return v.u.l->items + i;
    default: fg__j_fail(j, "'%s' object is not iterable", fg__j_type_names[v.type]); return NULL;
    }
}

static bool fg__j_find(fg__jinja *j, const fg__j_string *s, const fg__j_string *what, size_t from, size_t *at);

/* `item in where` */
static bool fg__j_contains(fg__jinja *j, fg__jval where, fg__jval item) {
    const fg__jval *items;
    size_t count, i;
    if (where.type == FG__J_STRING) {
        if (item.type != FG__J_STRING)
            fg__j_fail(j, "'in <string>' requires string as left operand, not %s", fg__j_type_names[item.type]);
        return fg__j_find(j, where.u.s, item.u.s, 0, &i);
    }
    if (where.type == FG__J_DICT || (where.type == FG__J_VIEW && where.flag == FG__J_KEYS))
        return fg__j_dict_find(j, where.u.d, item) != NULL;
    if (!fg__j_iterable(where))
        fg__j_fail(j, "argument of type '%s' is not iterable", fg__j_type_names[where.type]);
    items = fg__j_items(j, where, &count);
    for (i = 0; i < count; i++)
        if (fg__j_equal(j, items[i], item)) return true;
    return false;
}

/* ------------------------------------------------------------------------------------------------
   Arguments
   ------------------------------------------------------------------------------------------------ */

static const fg__j_string *fg__j_need_string(fg__jinja *j, fg__jval v) {
    if (v.type == FG__J_UNDEFINED) fg__j_fail_undefined(j, v);
    if (v.type != FG__J_STRING) fg__j_fail(j, "expected a string, got '%s'", fg__j_type_names[v.type]);
    return v.u.s;
}

static int64_t fg__j_need_int(fg__jinja *j, fg__jval v) {
    if (v.type == FG__J_UNDEFINED) fg__j_fail_undefined(j, v);
    if (!fg__j_is_integer(v)) fg__j_fail(j, "expected an integer, got '%s'", fg__j_type_names[v.type]);
    return v.u.i;
}

static double fg__j_need_number(fg__jinja *j, fg__jval v) {
    if (v.type == FG__J_UNDEFINED) fg__j_fail_undefined(j, v);
    if (!fg__j_is_number(v)) fg__j_fail(j, "expected a number, got '%s'", fg__j_type_names[v.type]);
    return fg__j_as_float(v);
}

static int64_t fg__j_int_or(fg__jinja *j, fg__jval v, int64_t otherwise) {
    return v.type == FG__J_MISSING ? otherwise : fg__j_need_int(j, v);
}

static bool fg__j_given(fg__jval v) { return v.type != FG__J_MISSING && v.type != FG__J_NONE; }
static bool fg__j_flag(fg__jval v) { return v.type != FG__J_MISSING && fg__j_true(v); }

/* Puts positional and keyword arguments in the order of a function's parameters; MISSING where there is none. */
static void fg__j_bind(fg__jinja *j, const fg__j_function *f, const fg__j_args *args, fg__jval *a) {
    const char *p = f->params;
    bool keywords = *p != '/';
    size_t n = 0, used = 0, i;
    for (p += keywords ? 0 : 1; *p; p += *p == ' ' ? 1 : 0, n++) {
        size_t length = strcspn(p, " ");
        a[n] = n < args->n ? args->items[n] : fg__j_value(FG__J_MISSING);
        for (i = 0; keywords && i < args->n_named; i++) {
            const fg__j_string *name = args->names[i].u.s;
            if (name->length != length || memcmp(name->data, p, length) != 0) continue;
            if (a[n].type != FG__J_MISSING) fg__j_fail(j, "%s() got two values for one argument", f->name);
            a[n] = args->values[i];
            used++;
        }
        if ((int)n < f->required && a[n].type == FG__J_MISSING) fg__j_fail(j, "%s() misses an argument", f->name);
        p += length;
    }
    if (args->n > n) fg__j_fail(j, "%s() got too many arguments", f->name);
    if (used < args->n_named) fg__j_fail(j, "%s() got an unexpected keyword argument", f->name);
}

static fg__jval fg__j_invoke(fg__jinja *j, const fg__j_function *f, fg__jval self, const fg__j_args *args) {
    fg__j_in in;
    fg__j_work(j, 1);
    in.self = self;
    in.args = args;
    in.how = f->how;
    if (*f->params != '*') fg__j_bind(j, f, args, in.a);
    return f->call(j, &in);
}

static const fg__j_function *fg__j_function_named(const fg__j_function *table, int count, const char *name, size_t length) {
    int i;
    for (i = 0; i < count; i++)
        if (strlen(table[i].name) == length && memcmp(table[i].name, name, length) == 0) return &table[i];
    return NULL;
}

/* A list that grows. */
typedef struct fg__j_parts {
    fg__jval *items;
    size_t n, capacity;
} fg__j_parts;

static void fg__j_add(fg__jinja *j, fg__j_parts *parts, fg__jval v) {
    if (parts->n == parts->capacity) {
        size_t capacity = parts->capacity * 2 + 8;
        fg__jval *items = fg__j_array(j, capacity);
        if (parts->n) memcpy(items, parts->items, parts->n * sizeof(*items));
        parts->items = items;
        parts->capacity = capacity;
    }
    parts->items[parts->n++] = v;
}

static fg__jval fg__j_parts_list(fg__jinja *j, fg__j_type type, const fg__j_parts *parts) {
    return fg__j_list_of(j, type, parts->items, parts->n);
}

/* ------------------------------------------------------------------------------------------------
   Searching and changing strings
   ------------------------------------------------------------------------------------------------ */

/* First place at or behind byte `from` where `what` is found. */
static bool fg__j_find(fg__jinja *j, const fg__j_string *s, const fg__j_string *what, size_t from, size_t *at) {
    while (from <= s->length && s->length - from >= what->length) {
        const char *first;
        *at = from;
        if (!what->length) return true;
        first = (const char *)memchr(s->data + from, what->data[0], s->length - from - what->length + 1);
        if (!first) break;
        *at = (size_t)(first - s->data);
        fg__j_work(j, (*at - from) / 64 + what->length / 64 + 1);
        if (memcmp(first, what->data, what->length) == 0) return true;
        from = *at + 1;
    }
    fg__j_work(j, s->length / 64);
    return false;
}

/* Last place before byte `end` where all of `what` fits and is found. */
static bool fg__j_find_last(fg__jinja *j, const fg__j_string *s, const fg__j_string *what, size_t end, size_t *at) {
    if (end < what->length) return false;
    for (*at = end - what->length;; --*at) {
        if (memcmp(s->data + *at, what->data, what->length) == 0) return true;
        fg__j_work(j, what->length / 64 + 1);
        if (*at == 0) return false;
    }
}

static bool fg__j_has_char(fg__jinja *j, const fg__j_string *set, const char *data, size_t length) {
    fg__j_string what;
    size_t at;
    memset(&what, 0, sizeof(what));
    what.data = data;
    what.length = length;
    return fg__j_find(j, set, &what, 0, &at);
}

/* Removes characters of a set (NULL: white space) from the ends. */
static fg__jval fg__j_strip(fg__jinja *j, const fg__j_string *s, const fg__j_string *set, bool left, bool right) {
    size_t begin = 0, end = s->length, next, length;
    while (left && begin < end) {
        uint32_t c = fg__j_decode(s->data + begin, end - begin, &length);
        if (set ? !fg__j_has_char(j, set, s->data + begin, length) : !fg__j_is_space(c)) break;
        begin += length;
    }
    while (right && begin < end) {
        uint32_t c = fg__j_decode_back(s->data, end, &next);
        if (set ? !fg__j_has_char(j, set, s->data + next, end - next) : !fg__j_is_space(c)) break;
        end = next;
    }
    fg__j_work(j, (s->length - (end - begin)) / 4);
    return fg__j_substring(j, s, begin, end);
}

/* Replaces at most `count` (negative: all) places. */
static fg__jval fg__j_replaced(fg__jinja *j, const fg__j_string *s, const fg__j_string *from, const fg__j_string *to,
                               int64_t count) {
    size_t mark = fg__j_mark(j), at = 0, found;
    for (; count != 0 && fg__j_find(j, s, from, at, &found); count--) {
        fg__j_put(j, s->data + at, found - at);
        fg__j_put_string(j, to);
        at = found + from->length;
        if (from->length) continue;
        if (at == s->length) break; /* between characters */
        found = (size_t)fg__utf8_measure(s->data + at, s->length - at);
        fg__j_put(j, s->data + at, found);
        at += found;
    }
    fg__j_put(j, s->data + at, s->length - at);
    return fg__j_take(j, mark);
}

enum fg__j_case { FG__J_LOWER, FG__J_UPPER, FG__J_CAPITALIZE, FG__J_TITLE, FG__J_SWAP, FG__J_WORDS };

/* Whether the character behind `before` begins a word: for str.title any letter behind none, for Jinja's title filter what
   follows white space or - ( { [ < */
static bool fg__j_begins_word(enum fg__j_case how, uint32_t before) {
    if (how == FG__J_TITLE) return !fg__j_is_alpha(before);
    return fg__j_is_space(before) || (before < 0x80 && strchr("-({[<", (int)before) != NULL);
}

static fg__jval fg__j_cased(fg__jinja *j, const fg__j_string *s, enum fg__j_case how) {
    size_t mark = fg__j_mark(j), i, length;
    uint32_t before = ' ';
    for (i = 0; i < s->length; i += length) {
        uint32_t c = fg__j_decode(s->data + i, s->length - i, &length);
        bool upper = how == FG__J_UPPER || (how == FG__J_CAPITALIZE && i == 0);
        if (how == FG__J_TITLE || how == FG__J_WORDS) upper = fg__j_begins_word(how, before);
        if (how == FG__J_SWAP) upper = fg__j_upper(c) != c || c == 0xDF;
        before = c;
        if (upper && c == 0xDF) fg__j_puts(j, how == FG__J_CAPITALIZE || how == FG__J_TITLE ? "Ss" : "SS");
        else fg__j_put_code(j, upper ? fg__j_upper(c) : fg__j_lower(c));
    }
    return fg__j_take(j, mark);
}

static fg__jval fg__j_escaped(fg__jinja *j, const fg__j_string *s) {
    size_t mark = fg__j_mark(j), i, plain = 0;
    for (i = 0; i < s->length; i++) {
        char c = s->data[i];
        const char *name = c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '"' ? "&#34;" : NULL;
        if (c == '\'') name = "&#39;";
        if (!name) continue;
        fg__j_put(j, s->data + plain, i - plain);
        fg__j_puts(j, name);
        plain = i + 1;
    }
    fg__j_put(j, s->data + plain, s->length - plain);
    return fg__j_marked(fg__j_take(j, mark), true);
}

/* Bytes of the line end at `data`, or 0: the ones that Python's splitlines knows. */
static size_t fg__j_line_end(const char *data, size_t left) {
    size_t length;
    uint32_t c = fg__j_decode(data, left, &length);
    if (c == '\r' && left > 1 && data[1] == '\n') return 2;
    if ((c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029) return length;
    return 0;
}

static void fg__j_split_lines(fg__jinja *j, const fg__j_string *s, bool keep, fg__j_parts *parts) {
    size_t begin = 0, at = 0, end;
    while (at < s->length) {
        end = fg__j_line_end(s->data + at, s->length - at);
        if (!end) {
            at += (size_t)fg__utf8_measure(s->data + at, s->length - at);
            continue;
        }
        fg__j_add(j, parts, fg__j_substring(j, s, begin, keep ? at + end : at));
        begin = at += end;
    }
    if (begin < s->length) fg__j_add(j, parts, fg__j_substring(j, s, begin, s->length));
    fg__j_work(j, s->length / 8);
}

/* str.split without a separator: at runs of white space. */
static void fg__j_split_space(fg__jinja *j, const fg__j_string *s, int64_t limit, fg__j_parts *parts) {
    size_t at = 0, begin, length = 0;
    for (;;) {
        while (at < s->length && fg__j_is_space(fg__j_decode(s->data + at, s->length - at, &length))) at += length;
        if (at == s->length) break;
        if (limit-- == 0) {
            fg__j_add(j, parts, fg__j_substring(j, s, at, s->length));
            break;
        }
        begin = at;
        while (at < s->length && !fg__j_is_space(fg__j_decode(s->data + at, s->length - at, &length))) at += length;
        fg__j_add(j, parts, fg__j_substring(j, s, begin, at));
    }
    fg__j_work(j, s->length / 8);
}

/* The same from the right; the parts come last first. */
static void fg__j_rsplit_space(fg__jinja *j, const fg__j_string *s, int64_t limit, fg__j_parts *parts) {
    size_t end = s->length, last, next = 0;
    for (;;) {
        while (end && fg__j_is_space(fg__j_decode_back(s->data, end, &next))) end = next;
        if (end == 0) break;
        if (limit-- == 0) {
            fg__j_add(j, parts, fg__j_substring(j, s, 0, end));
            break;
        }
        last = end;
        while (end && !fg__j_is_space(fg__j_decode_back(s->data, end, &next))) end = next;
        fg__j_add(j, parts, fg__j_substring(j, s, end, last));
    }
    fg__j_work(j, s->length / 8);
}

static void fg__j_split_at(fg__jinja *j, const fg__j_string *s, const fg__j_string *sep, int64_t limit, fg__j_parts *parts) {
    size_t begin = 0, at;
    while (limit-- != 0 && fg__j_find(j, s, sep, begin, &at)) {
        fg__j_add(j, parts, fg__j_substring(j, s, begin, at));
        begin = at + sep->length;
    }
    fg__j_add(j, parts, fg__j_substring(j, s, begin, s->length));
}

static void fg__j_rsplit_at(fg__jinja *j, const fg__j_string *s, const fg__j_string *sep, int64_t limit, fg__j_parts *parts) {
    size_t end = s->length, at;
    while (limit-- != 0 && fg__j_find_last(j, s, sep, end, &at)) {
        fg__j_add(j, parts, fg__j_substring(j, s, at + sep->length, end));
        end = at;
    }
    fg__j_add(j, parts, fg__j_substring(j, s, 0, end));
}

static void fg__j_reverse(fg__jval *items, size_t n) {
    size_t i;
    for (i = 0; i < n / 2; i++) {
        fg__jval swap = items[i];
        items[i] = items[n - 1 - i];
        items[n - 1 - i] = swap;
    }
}

/* ------------------------------------------------------------------------------------------------
   Formatting: "%5.2f" % x and "{:>5}".format(x)
   ------------------------------------------------------------------------------------------------ */

typedef struct fg__j_spec {
    uint32_t fill;
    char align, sign, type; /* align: < > = ^ or 0; sign: + - space or 0; type: 0 if none */
    bool alternate, zero;
    char group; /* , or _ or 0 */
    int64_t width, precision; /* precision -1: none */
} fg__j_spec;

static fg__j_spec fg__j_spec_none(void) {
    fg__j_spec spec;
    memset(&spec, 0, sizeof(spec));
    spec.fill = ' ';
    spec.precision = -1;
    return spec;
}

/* Pads what was put since `mark` to the width; `sign` characters of it stay in front of padding with =. */
static void fg__j_pad(fg__jinja *j, const fg__j_spec *spec, size_t mark, size_t sign, char align) {
    fg__jval body = fg__j_take(j, mark);
    int64_t chars = (int64_t)body.u.s->chars, pad = spec->width > chars ? spec->width - chars : 0, left = 0;
    char fill[4];
    size_t n = fg__utf8_encode(spec->fill, fill);
    if (spec->align) align = spec->align;
    if (align == '>' || align == '=') left = pad;
    if (align == '^') left = pad / 2;
    if (align == '=') fg__j_put(j, body.u.s->data, sign);
    else sign = 0;
    fg__j_put_repeated(j, fill, n, left);
    fg__j_put(j, body.u.s->data + sign, body.u.s->length - sign);
    fg__j_put_repeated(j, fill, n, pad - left);
}

/* Puts digits with a separator before every `every`th from the right. */
static void fg__j_put_grouped(fg__jinja *j, const char *digits, size_t n, char group, size_t every) {
    size_t i;
    for (i = 0; i < n; i++) {
        if (group && i && (n - i) % every == 0) fg__j_put(j, &group, 1);
        fg__j_put(j, digits + i, 1);
    }
}

static size_t fg__j_put_sign(fg__jinja *j, const fg__j_spec *spec, bool negative) {
    if (negative) fg__j_puts(j, "-");
    else if (spec->sign == '+' || spec->sign == ' ') fg__j_put(j, &spec->sign, 1);
    else return 0;
    return 1;
}

/* Types d b o x X, and c. */
static void fg__j_put_integer(fg__jinja *j, const fg__j_spec *spec, int64_t value, bool percent) {
    const char *digits = spec->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    uint64_t rest = value < 0 ? (uint64_t)0 - (uint64_t)value : (uint64_t)value;
    unsigned base = spec->type == 'b' ? 2 : spec->type == 'o' ? 8 : spec->type == 'x' || spec->type == 'X' ? 16 : 10;
    char text[72];
    size_t at = sizeof(text), mark = fg__j_mark(j), sign;
    if (spec->type == 'c') {
        if (value < 0 || value > 0x10FFFF) fg__j_fail(j, "%%c arg not in range(0x110000)");
        fg__j_put_code(j, value >= 0xD800 && value < 0xE000 ? FG__REPLACEMENT : (uint32_t)value);
        fg__j_pad(j, spec, mark, 0, percent ? '>' : '<');
        return;
    }
    do text[--at] = digits[rest % base];
    while (rest /= base);
    sign = fg__j_put_sign(j, spec, value < 0);
    if (spec->alternate && base != 10) {
        fg__j_puts(j, "0");
        fg__j_put(j, &spec->type, 1);
        sign += 2;
    }
    if (percent) fg__j_put_repeated(j, "0", 1, spec->precision - (int64_t)(sizeof(text) - at));
    fg__j_put_grouped(j, text + at, sizeof(text) - at, spec->group, base == 10 ? 3 : 4);
    fg__j_pad(j, spec, mark, sign, '>');
}

/* Digits of |value| as printf has them, in any locale; to[] has room for 1024. */
static size_t fg__j_print_float(fg__jinja *j, char type, bool alternate, int64_t precision, double value, char *to) {
    char format[8], raw[1024], *s;
    size_t n = 0;
    if (precision > 300) fg__j_fail(j, "the precision is too large");
    snprintf(format, sizeof(format), alternate ? "%%#.*%c" : "%%.*%c", type);
    snprintf(raw, sizeof(raw), format, (int)precision, fabs(value));
    for (s = raw; *s; s++) {
        bool point = (unsigned char)*s >= 0x80 || (*s == ',' || *s == '.'); /* of the locale, which may be several bytes */
        if (!point) to[n++] = *s;
        else if (n && to[n - 1] != '.') to[n++] = '.';
    }
    to[n] = 0;
    return n;
}

/* Types e f g and their capitals, %, and none. */
static void fg__j_put_float(fg__jinja *j, const fg__j_spec *spec, double value) {
    char text[1024], type = spec->type;
    int64_t precision = spec->precision < 0 ? 6 : spec->precision;
    size_t n, whole, mark = fg__j_mark(j), sign = fg__j_put_sign(j, spec, value < 0 || (value == 0 && 1 / value < 0));
    if (value - value != 0) n = (size_t)snprintf(text, sizeof(text), value != value ? "nan" : "inf");
    else if (!type && spec->precision < 0) n = (size_t)fg__number_text(fabs(value), text);
    else if (type == '%') n = fg__j_print_float(j, 'f', spec->alternate, precision, value * 100, text);
    else {
        if ((type == 'g' || type == 'G' || !type) && precision == 0) precision = 1;
        n = fg__j_print_float(j, type ? type : 'g', spec->alternate, precision, value, text);
        if (!type && !strpbrk(text, ".e")) {
            memcpy(text + n, ".0", 3);
            n += 2;
        }
    }
    for (whole = 0; whole < n && text[whole] >= '0' && text[whole] <= '9'; whole++) {}
    fg__j_put_grouped(j, text, whole, spec->group, 3);
    fg__j_put(j, text + whole, n - whole);
    if (type == '%') fg__j_puts(j, "%");
    fg__j_pad(j, spec, mark, sign, '>');
}

static void fg__j_put_padded_text(fg__jinja *j, const fg__j_spec *spec, const fg__j_string *s, char align) {
    size_t mark = fg__j_mark(j), chars = s->chars;
    if (spec->precision >= 0 && (uint64_t)spec->precision < chars) chars = (size_t)spec->precision;
    fg__j_put(j, s->data, fg__j_offset(j, s, chars));
    fg__j_pad(j, spec, mark, 0, align);
}

/* int(f) */
static fg__jval fg__j_truncated(fg__jinja *j, double f) {
    if (f - f != 0) fg__j_fail(j, "cannot convert float infinity or NaN to integer");
    if (fabs(f) >= 9223372036854775808.0) fg__j_fail(j, "an integer is too large");
    return fg__j_int((int64_t)f);
}

/* One directive of printf-style formatting. */
static void fg__j_put_directive(fg__jinja *j, fg__j_spec *spec, fg__jval v) {
    size_t mark = fg__j_mark(j);
    if (spec->zero && !spec->align && v.type != FG__J_STRING) {
        spec->fill = '0';
        spec->align = '=';
    }
    switch (spec->type) {
    case 's':
    case 'r':
    case 'a':
        if (spec->type == 's') fg__j_put_str(j, v);
        else fg__j_put_repr(j, v, 0);
        if (spec->align == '=') spec->align = 0;
        spec->fill = ' ';
        fg__j_put_padded_text(j, spec, fg__j_take(j, mark).u.s, '>');
        return;
    case 'c':
        if (v.type == FG__J_STRING && v.u.s->chars == 1) {
            fg__j_put_padded_text(j, spec, v.u.s, '>');
            return;
        }
        fg__j_put_integer(j, spec, fg__j_need_int(j, v), true);
        return;
    case 'd':
    case 'i':
    case 'u':
        spec->type = 'd';
        if (v.type == FG__J_FLOAT) v = fg__j_truncated(j, v.u.f);
        fg__j_put_integer(j, spec, fg__j_need_int(j, v), true);
        return;
    case 'o':
    case 'x':
    case 'X': fg__j_put_integer(j, spec, fg__j_need_int(j, v), true); return;
    default: fg__j_put_float(j, spec, fg__j_need_number(j, v));
    }
}

typedef struct fg__j_percent {
    const fg__j_string *format;
    size_t at;
    fg__jval args;
    const fg__jval *items;
    size_t n, next;
} fg__j_percent;

static char fg__j_percent_char(fg__jinja *j, fg__j_percent *p) {
    if (p->at == p->format->length) fg__j_fail(j, "incomplete format");
    return p->format->data[p->at++];
}

static fg__jval fg__j_percent_arg(fg__jinja *j, fg__j_percent *p) {
    if (p->next == p->n) fg__j_fail(j, "not enough arguments for format string");
    return p->items[p->next++];
}

/* A number or *, behind its first character c; *c: what follows it. */
static int64_t fg__j_percent_number(fg__jinja *j, fg__j_percent *p, char *c) {
    int64_t n = 0;
    if (*c == '*') {
        n = fg__j_need_int(j, fg__j_percent_arg(j, p));
        *c = fg__j_percent_char(j, p);
        return n;
    }
    for (; *c >= '0' && *c <= '9'; *c = fg__j_percent_char(j, p)) {
        n = n * 10 + (*c - '0');
        if (n > INT32_MAX) fg__j_fail(j, "width too big");
    }
    return n;
}

static fg__jval fg__j_percent_key(fg__jinja *j, fg__j_percent *p) {
    size_t begin = p->at, depth = 1;
    fg__jval key;
    const fg__jval *value;
    while (depth) {
        char c = fg__j_percent_char(j, p);
        if (c == '(') depth++;
        if (c == ')') depth--;
    }
    if (p->args.type != FG__J_DICT) fg__j_fail(j, "format requires a mapping");
    key = fg__j_substring(j, p->format, begin, p->at - 1);
    value = fg__j_dict_find(j, p->args.u.d, key);
    if (!value) fg__j_fail(j, "the format has a key that is not there");
    return *value;
}

static void fg__j_percent_one(fg__jinja *j, fg__j_percent *p) {
    fg__j_spec spec = fg__j_spec_none();
    fg__jval v = fg__j_value(FG__J_MISSING);
    char c = fg__j_percent_char(j, p);
    if (c == '(') {
        v = fg__j_percent_key(j, p);
        c = fg__j_percent_char(j, p);
    }
    for (; strchr("-+ #0", c) && c; c = fg__j_percent_char(j, p)) {
        if (c == '-') spec.align = '<';
        else if (c == '#') spec.alternate = true;
        else if (c == '0') spec.zero = true;
        else if (spec.sign != '+') spec.sign = c;
    }
    spec.width = fg__j_percent_number(j, p, &c);
    if (spec.width < 0) {
        spec.align = '<';
        spec.width = -spec.width;
    }
    if (c == '.') {
        c = fg__j_percent_char(j, p);
        spec.precision = fg__j_percent_number(j, p, &c);
        if (spec.precision < 0) spec.precision = 0;
    }
    while (c == 'h' || c == 'l' || c == 'L') c = fg__j_percent_char(j, p);
    if (c == '%') {
        fg__j_puts(j, "%");
        return;
    }
    if (!c || !strchr("diouxXeEfFgGcrsa", c)) fg__j_fail(j, "unsupported format character");
    spec.type = c;
    fg__j_put_directive(j, &spec, v.type == FG__J_MISSING ? fg__j_percent_arg(j, p) : v);
}

/* format % args */
static fg__jval fg__j_percent_format(fg__jinja *j, const fg__j_string *format, fg__jval args) {
    fg__j_percent p;
    size_t mark = fg__j_mark(j), plain;
    bool mapping = args.type == FG__J_DICT || args.type == FG__J_LIST || args.type == FG__J_UNDEFINED ||
                   args.type == FG__J_RANGE; /* what Python takes for one: these may go unused */
    memset(&p, 0, sizeof(p));
    p.format = format;
    p.args = args;
    p.items = args.type == FG__J_TUPLE ? args.u.l->items : &args;
    p.n = args.type == FG__J_TUPLE ? args.u.l->count : 1;
    for (;;) {
        const char *next = p.at < format->length ? (const char *)memchr(format->data + p.at, '%', format->length - p.at) : NULL;
        plain = p.at;
        p.at = next ? (size_t)(next - format->data) : format->length;
        fg__j_put(j, format->data + plain, p.at - plain);
        if (!next) break;
        p.at++;
        fg__j_percent_one(j, &p);
    }
    if (p.next < p.n && !mapping) fg__j_fail(j, "not all arguments converted during string formatting");
    return fg__j_take(j, mark);
}

static const char *fg__j_spec_number(const char *p, const char *end, int64_t *number) {
    for (; p < end && *p >= '0' && *p <= '9'; p++) *number = FG__MIN(*number * 10 + (*p - '0'), INT32_MAX);
    return p;
}

/* Reads [[fill]align][sign][#][0][width][,][.precision][type]. */
static fg__j_spec fg__j_parse_spec(fg__jinja *j, const fg__j_string *s) {
    fg__j_spec spec = fg__j_spec_none();
    const char *p = s->data, *end = s->data + s->length;
    size_t first = s->length ? (size_t)fg__utf8_measure(p, s->length) : 0;
    if (s->length > first && p[first] && strchr("<>=^", p[first])) {
        spec.fill = fg__j_decode(p, s->length, &first);
        spec.align = p[first];
        p += first + 1;
    } else if (p < end && *p && strchr("<>=^", *p)) {
        spec.align = *p++;
    }
    if (p < end && (*p == '+' || *p == '-' || *p == ' ')) spec.sign = *p++;
    if (p < end && *p == '#') spec.alternate = *p++ == '#';
    if (p < end && *p == '0') {
        p++;
        if (!spec.align) spec.fill = '0';
        if (!spec.align) spec.zero = true;
    }
    p = fg__j_spec_number(p, end, &spec.width);
    if (p < end && (*p == ',' || *p == '_')) spec.group = *p++;
    if (p < end && *p == '.') {
        spec.precision = 0;
        if (++p == end || *p < '0' || *p > '9') fg__j_fail(j, "Format specifier missing precision");
        p = fg__j_spec_number(p, end, &spec.precision);
    }
    if (p < end) spec.type = *p++;
    if (p != end) fg__j_fail(j, "Invalid format specifier");
    return spec;
}

/* format(v, spec) */
static void fg__j_put_formatted(fg__jinja *j, fg__jval v, const fg__j_string *text) {
    fg__j_spec spec = fg__j_parse_spec(j, text);
    if (!text->length) {
        fg__j_put_str(j, v);
        return;
    }
    if (spec.zero && fg__j_is_number(v)) spec.align = '=';
    if (v.type == FG__J_STRING) {
        if ((spec.type && spec.type != 's') || spec.sign || spec.alternate || spec.group || spec.align == '=')
            fg__j_fail(j, "this format is not for strings");
        fg__j_put_padded_text(j, &spec, v.u.s, '<');
    } else if (fg__j_is_integer(v) && (!spec.type || strchr("bcdoxXn", spec.type))) {
        if (spec.precision >= 0) fg__j_fail(j, "Precision not allowed in integer format specifier");
        if (spec.type == 'n') spec.type = 'd';
        fg__j_put_integer(j, &spec, v.u.i, false);
    } else if (fg__j_is_number(v) && (!spec.type || strchr("eEfFgGn%", spec.type))) {
        if (spec.type == 'n') spec.type = 'g';
        fg__j_put_float(j, &spec, fg__j_as_float(v));
    } else {
        fg__j_fail(j, "unsupported format string passed to %s.__format__", fg__j_type_names[v.type]);
    }
}

typedef struct fg__j_braces {
    const fg__j_args *args;
    size_t next; /* argument that an empty name takes */
    bool manual, automatic;
} fg__j_braces;

static fg__jval fg__j_attribute(fg__jinja *j, fg__jval object, fg__jval name);
static fg__jval fg__j_item(fg__jinja *j, fg__jval object, fg__jval key);

/* Decimal digits as an index, or false. */
static bool fg__j_parse_index(const char *data, size_t length, int64_t *index) {
    size_t i;
    for (i = 0; i < length; i++)
        if (data[i] < '0' || data[i] > '9') return false;
    return length > 0 && fg__json_int64(data, length, index);
}

/* The argument that the part of a field's name before . and [ means. */
static fg__jval fg__j_braces_arg(fg__jinja *j, fg__j_braces *b, const char *name, size_t length) {
    int64_t index = 0;
    size_t i;
    if (length == 0) {
        b->automatic = true;
        index = (int64_t)b->next++;
    } else if (fg__j_parse_index(name, length, &index)) {
        b->manual = true;
    } else {
        for (i = 0; i < b->args->n_named; i++) {
            const fg__j_string *other = b->args->names[i].u.s;
            if (other->length == length && memcmp(other->data, name, length) == 0) return b->args->values[i];
        }
        return fg__j_fail(j, "the format names an argument that is not there");
    }
    if (b->manual && b->automatic) fg__j_fail(j, "cannot mix manual and automatic field numbers");
    if ((uint64_t)index >= b->args->n) fg__j_fail(j, "the format asks for more arguments than there are");
    return b->args->items[index];
}

static fg__jval fg__j_braces_field(fg__jinja *j, fg__j_braces *b, const fg__j_string *name) {
    const char *p = name->data, *end = p + name->length, *begin = p;
    int64_t index;
    fg__jval v;
    while (p < end && *p != '.' && *p != '[') p++;
    v = fg__j_braces_arg(j, b, begin, (size_t)(p - begin));
    while (p < end) {
        bool item = *p++ == '[';
        begin = p;
        while (p < end && (item ? *p != ']' : *p != '.' && *p != '[')) p++;
        if ((item && p == end) || p == begin) fg__j_fail(j, "a bad field name in a format");
        if (!item) v = fg__j_attribute(j, v, fg__j_copy(j, begin, (size_t)(p - begin)));
        else if (fg__j_parse_index(begin, (size_t)(p - begin), &index)) v = fg__j_item(j, v, fg__j_int(index));
        else v = fg__j_item(j, v, fg__j_copy(j, begin, (size_t)(p - begin)));
        if (item && ++p < end && *p != '.' && *p != '[') fg__j_fail(j, "a bad field name in a format");
    }
    return v;
}

static fg__jval fg__j_braces_format(fg__jinja *j, fg__j_braces *b, const fg__j_string *format, int depth);

/* A field behind its {, up to its }. Returns where that ends. */
static size_t fg__j_put_field(fg__jinja *j, fg__j_braces *b, const fg__j_string *s, size_t at, int depth) {
    size_t begin = at, name_end, nested = 0, bracket = 0;
    char conversion = 0;
    fg__jval v, spec;
    while (at < s->length && (bracket || (s->data[at] != ':' && s->data[at] != '!' && s->data[at] != '}'))) {
        if (s->data[at] == '{') fg__j_fail(j, "unexpected '{' in field name");
        if (s->data[at] == '[') bracket = 1;
        if (s->data[at] == ']') bracket = 0;
        at++;
    }
    name_end = at;
    if (at < s->length && s->data[at] == '!') {
        if (s->length - at < 3) fg__j_fail(j, "a format ends in a field");
        conversion = s->data[at + 1];
        at += 2;
        if (!strchr("rsa", conversion) || (s->data[at] != ':' && s->data[at] != '}')) fg__j_fail(j, "a bad conversion in a format");
    }
    v = fg__j_braces_field(j, b, fg__j_substring(j, s, begin, name_end).u.s);
    begin = at < s->length && s->data[at] == ':' ? ++at : at;
    for (; at < s->length && (nested || s->data[at] != '}'); at++) {
        if (s->data[at] == '{') nested++;
        if (s->data[at] == '}') nested--;
    }
    if (at == s->length) fg__j_fail(j, "expected '}' before end of string");
    spec = fg__j_substring(j, s, begin, at);
    if (memchr(spec.u.s->data, '{', spec.u.s->length)) spec = fg__j_braces_format(j, b, spec.u.s, depth + 1);
    if (conversion) {
        size_t mark = fg__j_mark(j);
        if (conversion == 's') fg__j_put_str(j, v);
        else fg__j_put_repr(j, v, 0);
        v = fg__j_take(j, mark);
    }
    fg__j_put_formatted(j, v, spec.u.s);
    return at + 1;
}

/* str.format */
static fg__jval fg__j_braces_format(fg__jinja *j, fg__j_braces *b, const fg__j_string *s, int depth) {
    size_t mark = fg__j_mark(j), at = 0;
    if (depth > 1) fg__j_fail(j, "Max string recursion exceeded");
    while (at < s->length) {
        char c = s->data[at++];
        bool twice = at < s->length && s->data[at] == c;
        if (c != '{' && c != '}') {
            fg__j_put(j, &c, 1);
        } else if (twice) {
            fg__j_put(j, &c, 1);
            at++;
        } else if (c == '}') {
            fg__j_fail(j, "Single '}' encountered in format string");
        } else {
            at = fg__j_put_field(j, b, s, at, depth);
        }
    }
    return fg__j_take(j, mark);
}

/* ------------------------------------------------------------------------------------------------
   Operators
   ------------------------------------------------------------------------------------------------ */

static const char *const fg__j_binary_names[] = {"+", "-", "*", "/", "//", "%", "**"};

static fg__jval fg__j_too_large(fg__jinja *j) { return fg__j_fail(j, "an integer is too large"); }

static fg__jval fg__j_add_ints(fg__jinja *j, int64_t a, int64_t b) {
    if (b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b) return fg__j_too_large(j);
    return fg__j_int(a + b);
}

static int64_t fg__j_mul_ints(fg__jinja *j, int64_t a, int64_t b) {
    bool fits = true;
    if (a > 0) fits = b > 0 ? a <= INT64_MAX / b : b >= INT64_MIN / a;
    else if (a < 0) fits = b > 0 ? a >= INT64_MIN / b : b == 0 || (a != INT64_MIN && b != INT64_MIN && -a <= INT64_MAX / -b);
    if (!fits) fg__j_too_large(j);
    return a * b;
}

/* Python's // and %: the remainder has the sign of b. */
static int64_t fg__j_floor_div(fg__jinja *j, int64_t a, int64_t b) {
    if (b == 0) fg__j_fail(j, "integer division or modulo by zero");
    if (b == -1) {
        if (a == INT64_MIN) fg__j_too_large(j);
        return -a;
    }
    return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

static fg__jval fg__j_floor_mod(fg__jinja *j, int64_t a, int64_t b) {
    int64_t rest;
    if (b == 0) fg__j_fail(j, "integer division or modulo by zero");
    rest = b == -1 ? 0 : a % b;
    return fg__j_int(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
}

static fg__jval fg__j_float_divmod(fg__jinja *j, double a, double b, bool want_mod) {
    double rest, quotient, whole;
    if (b == 0) fg__j_fail(j, "float division or modulo by zero");
    rest = fmod(a, b);
    quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) {
        rest += b;
        quotient -= 1;
    }
    if (want_mod) return fg__j_float(rest != 0 ? rest : copysign(0.0, b));
    whole = floor(quotient);
    if (quotient - whole > 0.5) whole += 1;
    return fg__j_float(quotient != 0 ? whole : copysign(0.0, a / b));
}

static fg__jval fg__j_power(fg__jinja *j, fg__jval a, fg__jval b) {
    double x = fg__j_as_float(a), y = fg__j_as_float(b), result;
    if (fg__j_is_integer(a) && fg__j_is_integer(b) && b.u.i >= 0) {
        int64_t power = 1, base = a.u.i, n = b.u.i;
        if (base >= -1 && base <= 1) return fg__j_int(n == 0 ? 1 : base == -1 && n % 2 == 0 ? 1 : base);
        for (; n; n--) power = fg__j_mul_ints(j, power, base); /* at most 63 times */
        return fg__j_int(power);
    }
    if (x == 0 && y < 0) fg__j_fail(j, "0.0 cannot be raised to a negative power");
    if (x < 0 && y != floor(y) && x - x == 0) fg__j_fail(j, "complex numbers are not supported");
    result = pow(x, y);
    if (result - result != 0 && x - x == 0 && y - y == 0) fg__j_fail(j, "Numerical result out of range");
    return fg__j_float(result);
}

static fg__jval fg__j_binary_numbers(fg__jinja *j, int op, fg__jval a, fg__jval b) {
    bool ints = fg__j_is_integer(a) && fg__j_is_integer(b);
    double x = fg__j_as_float(a), y = fg__j_as_float(b);
    switch (op) {
    case FG__J_ADD: return ints ? fg__j_add_ints(j, a.u.i, b.u.i) : fg__j_float(x + y);
    case FG__J_SUB:
        if (!ints) return fg__j_float(x - y);
        if (b.u.i > 0 ? a.u.i < INT64_MIN + b.u.i : a.u.i > INT64_MAX + b.u.i) return fg__j_too_large(j);
        return fg__j_int(a.u.i - b.u.i);
    case FG__J_MUL: return ints ? fg__j_int(fg__j_mul_ints(j, a.u.i, b.u.i)) : fg__j_float(x * y);
    case FG__J_DIV:
        if (y == 0) fg__j_fail(j, "division by zero");
        return fg__j_float(x / y);
    case FG__J_FLOORDIV:
        return ints ? fg__j_int(fg__j_floor_div(j, a.u.i, b.u.i)) : fg__j_float_divmod(j, x, y, false);
    case FG__J_MOD: return ints ? fg__j_floor_mod(j, a.u.i, b.u.i) : fg__j_float_divmod(j, x, y, true);
    default: return fg__j_power(j, a, b);
    }
}

/* Lists or tuples one behind the other. */
static fg__jval fg__j_joined_lists(fg__jinja *j, fg__jval a, fg__jval b) {
    size_t n = a.u.l->count, m = b.u.l->count;
    fg__jval *items = fg__j_array(j, n + m);
    if (n) memcpy(items, a.u.l->items, n * sizeof(*items));
    if (m) memcpy(items + n, b.u.l->items, m * sizeof(*items));
    return fg__j_list_of(j, (fg__j_type)a.type, items, n + m);
}

static fg__jval fg__j_repeated(fg__jinja *j, fg__jval v, int64_t count) {
    size_t mark = fg__j_mark(j), n, i;
    fg__jval *items;
    if (v.type == FG__J_STRING) {
        fg__j_put_repeated(j, v.u.s->data, v.u.s->length, count);
        return fg__j_marked(fg__j_take(j, mark), v.flag != 0);
    }
    n = v.u.l->count;
    if (count < 0 || n == 0) count = 0;
    if (n && (uint64_t)count > FG__J_MAX_MEMORY / n) fg__j_fail(j, "it needs too much memory");
    items = fg__j_array(j, n * (size_t)count);
    for (i = 0; i < n * (size_t)count; i++) items[i] = v.u.l->items[i % n];
    return fg__j_list_of(j, (fg__j_type)v.type, items, n * (size_t)count);
}

static bool fg__j_is_sequence(fg__jval v) {
    return v.type == FG__J_STRING || v.type == FG__J_LIST || v.type == FG__J_TUPLE;
}

static fg__jval fg__j_binary(fg__jinja *j, int op, fg__jval a, fg__jval b) {
    if (fg__j_is_number(a) && fg__j_is_number(b)) return fg__j_binary_numbers(j, op, a, b);
    if (op == FG__J_ADD && a.type == b.type && fg__j_is_sequence(a)) {
        if (a.type != FG__J_STRING) return fg__j_joined_lists(j, a, b);
        if (a.flag == b.flag) return fg__j_marked(fg__j_join2(j, a.u.s, b.u.s), a.flag != 0);
        if (a.flag) b = fg__j_escaped(j, b.u.s);
        else a = fg__j_escaped(j, a.u.s);
        return fg__j_marked(fg__j_join2(j, a.u.s, b.u.s), true);
    }
    if (op == FG__J_MUL && fg__j_is_sequence(a) && fg__j_is_integer(b)) return fg__j_repeated(j, a, b.u.i);
    if (op == FG__J_MUL && fg__j_is_sequence(b) && fg__j_is_integer(a)) return fg__j_repeated(j, b, a.u.i);
    if (op == FG__J_MOD && a.type == FG__J_STRING) return fg__j_percent_format(j, a.u.s, b);
    return fg__j_fail_operands(j, fg__j_binary_names[op], a, b);
}

static fg__jval fg__j_negated(fg__jinja *j, fg__jval v, bool negate) {
    if (v.type == FG__J_UNDEFINED) return fg__j_fail_undefined(j, v);
    if (v.type == FG__J_FLOAT) return fg__j_float(negate ? -v.u.f : v.u.f);
    if (!fg__j_is_integer(v)) return fg__j_fail(j, "bad operand type for unary -: '%s'", fg__j_type_names[v.type]);
    if (negate && v.u.i == INT64_MIN) return fg__j_too_large(j);
    return fg__j_int(negate ? -v.u.i : v.u.i);
}

static bool fg__j_compare(fg__jinja *j, int op, fg__jval a, fg__jval b) {
    int order;
    if (op == FG__J_EQ || op == FG__J_NE) return fg__j_equal(j, a, b) == (op == FG__J_EQ);
    if (op == FG__J_IN || op == FG__J_NOT_IN) return fg__j_contains(j, b, a) == (op == FG__J_IN);
    order = fg__j_order(j, a, b);
    if (order == FG__J_UNORDERED) return false;
    return op == FG__J_LT ? order < 0 : op == FG__J_LE ? order <= 0 : op == FG__J_GT ? order > 0 : order >= 0;
}

/* ------------------------------------------------------------------------------------------------
   Attributes, items, slices
   ------------------------------------------------------------------------------------------------ */

static const fg__j_function *fg__j_method_named(fg__jval object, const fg__j_string *name, bool *unsafe);

/* An attribute of a loop; MISSING if it has none of that name. */
static fg__jval fg__j_loop_attribute(fg__jinja *j, fg__jval v, fg__jval name) {
    const fg__j_loop *loop = v.u.loop;
    int64_t index = (int64_t)loop->next, count = (int64_t)loop->count;
    if (fg__j_is(name, "index")) return fg__j_int(index);
    if (fg__j_is(name, "index0")) return fg__j_int(index - 1);
    if (fg__j_is(name, "first")) return fg__j_bool(index == 1);
    if (fg__j_is(name, "last")) return fg__j_bool(index >= count);
    if (fg__j_is(name, "length")) return fg__j_int(count);
    if (fg__j_is(name, "revindex")) return fg__j_int(count - index + 1);
    if (fg__j_is(name, "revindex0")) return fg__j_int(count - index);
    if (fg__j_is(name, "depth")) return fg__j_int(1);
    if (fg__j_is(name, "depth0")) return fg__j_int(0);
    if (fg__j_is(name, "previtem"))
        return index > 1 ? loop->items[index - 2] : fg__j_undefined(j, "there is no previous item");
    if (fg__j_is(name, "nextitem"))
        return index < count ? loop->items[index] : fg__j_undefined(j, "there is no next item");
    return fg__j_value(FG__J_MISSING);
}

/* What Python's getattr finds in the sandbox; MISSING for nothing. */
static fg__jval fg__j_own_attribute(fg__jinja *j, fg__jval object, fg__jval name) {
    bool unsafe = false;
    const fg__j_function *function;
    const fg__jval *found;
    if (object.type == FG__J_UNDEFINED) return fg__j_fail_undefined(j, object);
    if (object.type == FG__J_NAMESPACE) {
        found = fg__j_dict_find(j, object.u.d, name);
        return found ? *found : fg__j_value(FG__J_MISSING);
    }
    function = fg__j_method_named(object, name.u.s, &unsafe);
    if (unsafe) {
        size_t mark = fg__j_mark(j);
        fg__j_puts(j, "access to attribute ");
        fg__j_put_repr(j, name, 0);
        fg__j_puts(j, " is unsafe");
        name = fg__j_take(j, mark);
        return fg__j_lacks(object, name, FG__J_MESSAGE);
    }
    if (function) {
        fg__jval value = fg__j_value(FG__J_METHOD);
        fg__j_method *method = (fg__j_method *)fg__j_alloc(j, 1, sizeof(*method));
        method->self = object;
        method->function = function;
        value.u.m = method;
        return value;
    }
    if (object.type == FG__J_LOOP) return fg__j_loop_attribute(j, object, name);
    if (object.type == FG__J_MACRO && fg__j_is(name, "name")) return object.u.macro->name;
    if (object.type == FG__J_TUPLE && object.flag && fg__j_is(name, "grouper")) return object.u.l->items[0];
    if (object.type == FG__J_TUPLE && object.flag && fg__j_is(name, "list")) return object.u.l->items[1];
    return fg__j_value(FG__J_MISSING);
}

/* What object[key] finds; MISSING for nothing. */
static fg__jval fg__j_own_item(fg__jinja *j, fg__jval object, fg__jval key) {
    int64_t count = fg__j_length(object), index;
    size_t at;
    if (object.type == FG__J_UNDEFINED) return fg__j_fail_undefined(j, object);
    if (object.type == FG__J_DICT && key.type != FG__J_LIST && key.type != FG__J_DICT) {
        const fg__jval *found = fg__j_dict_find(j, object.u.d, key);
        if (found) return *found;
    }
    if (!fg__j_is_integer(key)) return fg__j_value(FG__J_MISSING);
    index = key.u.i < 0 ? key.u.i + count : key.u.i;
    if (index < 0 || index >= count) return fg__j_value(FG__J_MISSING);
    if (object.type == FG__J_LIST || object.type == FG__J_TUPLE) return object.u.l->items[index];
    if (object.type == FG__J_RANGE) return fg__j_int(object.u.r->start + index * object.u.r->step);
    if (object.type != FG__J_STRING) return fg__j_value(FG__J_MISSING);
    at = fg__j_offset(j, object.u.s, (size_t)index);
    return fg__j_marked(fg__j_char(j, object.u.s->data + at, object.u.s->length - at), object.flag != 0);
}

/* object.name: the attribute, else the item. */
static fg__jval fg__j_attribute(fg__jinja *j, fg__jval object, fg__jval name) {
    fg__jval v = fg__j_own_attribute(j, object, name);
    if (v.type == FG__J_MISSING) v = fg__j_own_item(j, object, name);
    return v.type == FG__J_MISSING ? fg__j_lacks(object, name, FG__J_ATTRIBUTE) : v;
}

/* object[key]: the item, else the attribute. */
static fg__jval fg__j_item(fg__jinja *j, fg__jval object, fg__jval key) {
    fg__jval v = fg__j_own_item(j, object, key);
    if (v.type == FG__J_MISSING && key.type == FG__J_STRING) v = fg__j_own_attribute(j, object, key);
    if (v.type != FG__J_MISSING) return v;
    if (key.type == FG__J_STRING) return fg__j_lacks(object, key, FG__J_ATTRIBUTE);
    return fg__j_lacks(object, fg__j_str(j, key), FG__J_ELEMENT);
}

/* A slice's index, or `otherwise` for None, clipped to low..high; negative ones count from the end. */
static int64_t fg__j_slice_index(fg__jinja *j, fg__jval v, int64_t otherwise, int64_t count, int64_t low, int64_t high) {
    int64_t index;
    if (v.type == FG__J_NONE) return otherwise;
    if (!fg__j_is_integer(v)) fg__j_fail(j, "slice indices must be integers or None");
    index = v.u.i < 0 ? v.u.i + count : v.u.i;
    return index < low ? low : index > high ? high : index;
}

static fg__jval fg__j_sliced_string(fg__jinja *j, const fg__j_string *s, int64_t start, int64_t step, int64_t n) {
    size_t mark = fg__j_mark(j), begin;
    const fg__jval *chars;
    if (step == 1) {
        begin = fg__j_offset(j, s, (size_t)start);
        return fg__j_substring(j, s, begin, fg__j_offset(j, s, (size_t)(start + n)));
    }
    chars = fg__j_chars(j, s);
    for (; n > 0; n--, start += step) fg__j_put_string(j, chars[start].u.s);
    return fg__j_take(j, mark);
}

/* object[start:stop:step] */
static fg__jval fg__j_sliced(fg__jinja *j, fg__jval object, fg__jval from, fg__jval to, fg__jval by) {
    int64_t count = fg__j_length(object), step = 1, start, stop, n, i;
    fg__jval *items;
    if (object.type == FG__J_UNDEFINED) return fg__j_fail_undefined(j, object);
    if (!fg__j_is_sequence(object) && object.type != FG__J_RANGE)
        return fg__j_fail(j, "'%s' object cannot be sliced", fg__j_type_names[object.type]);
    if (by.type != FG__J_NONE) step = fg__j_slice_index(j, by, 1, 0, -INT32_MAX, INT32_MAX);
    if (step == 0) return fg__j_fail(j, "slice step cannot be zero");
    start = fg__j_slice_index(j, from, step < 0 ? count - 1 : 0, count, step < 0 ? -1 : 0, step < 0 ? count - 1 : count);
    stop = fg__j_slice_index(j, to, step < 0 ? -1 : count, count, step < 0 ? -1 : 0, step < 0 ? count - 1 : count);
    n = step > 0 ? (stop - start + step - 1) / step : (start - stop - step - 1) / -step;
    if (n < 0) n = 0;
    if (object.type == FG__J_STRING)
        return fg__j_marked(fg__j_sliced_string(j, object.u.s, start, step, n), object.flag != 0);
    if (object.type == FG__J_RANGE) {
        fg__j_range *range = (fg__j_range *)fg__j_alloc(j, 1, sizeof(*range));
        range->start = fg__j_add_ints(j, object.u.r->start, fg__j_mul_ints(j, start, object.u.r->step)).u.i;
        range->step = fg__j_mul_ints(j, object.u.r->step, step);
        range->stop = fg__j_add_ints(j, object.u.r->start, fg__j_mul_ints(j, stop, object.u.r->step)).u.i;
        range->count = n;
        object.u.r = range;
        return object;
    }
    if (step == 1) return fg__j_list_of(j, (fg__j_type)object.type, object.u.l->items + (n ? start : 0), (size_t)n);
    items = fg__j_array(j, (size_t)n);
    for (i = 0; i < n; i++) items[i] = object.u.l->items[start + i * step];
    return fg__j_list_of(j, (fg__j_type)object.type, items, (size_t)n);
}

/* ------------------------------------------------------------------------------------------------
   Methods
   ------------------------------------------------------------------------------------------------ */

/* A string that a method of markup returns is markup. */
static fg__jval fg__j_like(fg__jval self, fg__jval result) {
    return fg__j_marked(result, self.type == FG__J_STRING && self.flag);
}

static const fg__j_string *fg__j_optional_string(fg__jinja *j, fg__jval v) {
    return fg__j_given(v) ? fg__j_need_string(j, v) : NULL;
}

static fg__jval fg__j_str_case(fg__jinja *j, const fg__j_in *in) {
    return fg__j_like(in->self, fg__j_cased(j, in->self.u.s, (enum fg__j_case)in->how));
}

enum { FG__J_LEFT = 1, FG__J_RIGHT = 2, FG__J_MUST = 4 };

static fg__jval fg__j_str_strip(fg__jinja *j, const fg__j_in *in) {
    const fg__j_string *set = fg__j_optional_string(j, in->a[0]);
    return fg__j_like(in->self, fg__j_strip(j, in->self.u.s, set, (in->how & FG__J_LEFT) != 0, (in->how & FG__J_RIGHT) != 0));
}

static fg__jval fg__j_str_replace(fg__jinja *j, const fg__j_in *in) {
    const fg__j_string *from = fg__j_need_string(j, in->a[0]), *to = fg__j_need_string(j, in->a[1]);
    if (in->self.flag && !in->a[1].flag) to = fg__j_escaped(j, to).u.s;
    return fg__j_like(in->self, fg__j_replaced(j, in->self.u.s, from, to, fg__j_int_or(j, in->a[2], -1)));
}

static fg__jval fg__j_parts_like(fg__jinja *j, fg__jval self, fg__j_parts *parts) {
    size_t i;
    for (i = 0; i < parts->n; i++) parts->items[i] = fg__j_like(self, parts->items[i]);
    return fg__j_parts_list(j, FG__J_LIST, parts);
}

static fg__jval fg__j_str_split(fg__jinja *j, const fg__j_in *in) {
    bool right = in->how == FG__J_RIGHT;
    const fg__j_string *sep = fg__j_optional_string(j, in->a[0]);
    int64_t limit = fg__j_int_or(j, in->a[1], -1);
    fg__j_parts parts;
    memset(&parts, 0, sizeof(parts));
    if (limit < 0) limit = INT64_MAX;
    if (sep && !sep->length) return fg__j_fail(j, "empty separator");
    if (sep) (right ? fg__j_rsplit_at : fg__j_split_at)(j, in->self.u.s, sep, limit, &parts);
    else (right ? fg__j_rsplit_space : fg__j_split_space)(j, in->self.u.s, limit, &parts);
    if (right) fg__j_reverse(parts.items, parts.n);
    return fg__j_parts_like(j, in->self, &parts);
}

static fg__jval fg__j_str_splitlines(fg__jinja *j, const fg__j_in *in) {
    fg__j_parts parts;
    memset(&parts, 0, sizeof(parts));
    fg__j_split_lines(j, in->self.u.s, fg__j_flag(in->a[0]), &parts);
    return fg__j_parts_like(j, in->self, &parts);
}

/* The tuple (before, separator, behind) of partition and rpartition. */
static fg__jval fg__j_str_partition(fg__jinja *j, const fg__j_in *in) {
    const fg__j_string *s = in->self.u.s, *what = fg__j_need_string(j, in->a[0]);
    bool right = in->how == FG__J_RIGHT;
    fg__jval *items = fg__j_array(j, 3);
    size_t at;
    if (!what->length) return fg__j_fail(j, "empty separator");
    items[0] = items[1] = items[2] = fg__j_text(j, "");
    if (right ? fg__j_find_last(j, s, what, s->length, &at) : fg__j_find(j, s, what, 0, &at)) {
        items[0] = fg__j_substring(j, s, 0, at);
        items[1] = in->a[0];
        items[2] = fg__j_substring(j, s, at + what->length, s->length);
    } else {
        items[right ? 2 : 0] = in->self;
    }
    for (at = 0; at < 3; at++) items[at] = fg__j_like(in->self, items[at]);
    return fg__j_list_of(j, FG__J_TUPLE, items, 3);
}

/* The part self[a[1]:a[2]] in bytes that find, count, startswith and their like look at; false when it is out of reach. */
static bool fg__j_str_part(fg__jinja *j, fg__jval self, const fg__jval *a, size_t *begin, size_t *end) {
    int64_t count = (int64_t)self.u.s->chars;
    fg__jval none = fg__j_value(FG__J_NONE);
    int64_t from = fg__j_slice_index(j, fg__j_given(a[1]) ? a[1] : none, 0, count, 0, INT64_MAX);
    int64_t to = fg__j_slice_index(j, fg__j_given(a[2]) ? a[2] : none, count, count, 0, count);
    if (from > count || from > to) return false;
    *begin = fg__j_offset(j, self.u.s, (size_t)from);
    *end = fg__j_offset(j, self.u.s, (size_t)to);
    return true;
}

static fg__jval fg__j_str_affix(fg__jinja *j, const fg__j_in *in) {
    const fg__jval *items = &in->a[0];
    size_t n = 1, i, begin, end;
    if (in->a[0].type == FG__J_TUPLE) {
        items = in->a[0].u.l->items;
        n = in->a[0].u.l->count;
    }
    if (!fg__j_str_part(j, in->self, in->a, &begin, &end)) return fg__j_bool(false);
    for (i = 0; i < n; i++) {
        const fg__j_string *what = fg__j_need_string(j, items[i]);
        fg__j_work(j, what->length / 64 + 1);
        if (what->length <= end - begin &&
            memcmp(in->self.u.s->data + (in->how == FG__J_LEFT ? begin : end - what->length), what->data, what->length) == 0)
            return fg__j_bool(true);
    }
    return fg__j_bool(false);
}

static fg__jval fg__j_not_found(fg__jinja *j, const fg__j_in *in) {
    return in->how & FG__J_MUST ? fg__j_fail(j, "substring not found") : fg__j_int(-1);
}

/* The character where a[0] is found, else -1 or, for index and rindex, an error. */
static fg__jval fg__j_str_find(fg__jinja *j, const fg__j_in *in) {
    const fg__j_string *what = fg__j_need_string(j, in->a[0]);
    fg__j_string part = *in->self.u.s;
    size_t begin, end, at = 0;
    bool found;
    if (!fg__j_str_part(j, in->self, in->a, &begin, &end)) return fg__j_not_found(j, in);
    part.length = end;
    if (in->how & FG__J_RIGHT) found = fg__j_find_last(j, &part, what, end, &at) && at >= begin;
    else found = fg__j_find(j, &part, what, begin, &at);
    if (!found) return fg__j_not_found(j, in);
    fg__j_work(j, at / 16);
    return fg__j_int((int64_t)fg__j_count_chars(part.data, at));
}

static fg__jval fg__j_str_count(fg__jinja *j, const fg__j_in *in) {
    const fg__j_string *what = fg__j_need_string(j, in->a[0]);
    fg__j_string part = *in->self.u.s;
    size_t begin, end, at;
    int64_t n = 0;
    if (!fg__j_str_part(j, in->self, in->a, &begin, &end)) return fg__j_int(0);
    if (!what->length) return fg__j_int((int64_t)fg__j_count_chars(part.data + begin, end - begin) + 1);
    part.length = end;
    for (; fg__j_find(j, &part, what, begin, &at); n++) begin = at + what->length;
    return fg__j_int(n);
}

static fg__jval fg__j_str_removeprefix(fg__jinja *j, const fg__j_in *in) {
    const fg__j_string *s = in->self.u.s, *what = fg__j_need_string(j, in->a[0]);
    if (what->length > s->length || memcmp(s->data, what->data, what->length) != 0) return in->self;
    return fg__j_like(in->self, fg__j_substring(j, s, what->length, s->length));
}

static fg__jval fg__j_str_removesuffix(fg__jinja *j, const fg__j_in *in) {
    const fg__j_string *s = in->self.u.s, *what = fg__j_need_string(j, in->a[0]);
    if (what->length > s->length || memcmp(s->data + s->length - what->length, what->data, what->length) != 0) return in->self;
    return fg__j_like(in->self, fg__j_substring(j, s, 0, s->length - what->length));
}

static fg__jval fg__j_str_join(fg__jinja *j, const fg__j_in *in) {
    size_t n, i, mark = fg__j_mark(j);
    const fg__jval *items = fg__j_items(j, in->a[0], &n);
    for (i = 0; i < n; i++) {
        if (i) fg__j_put_string(j, in->self.u.s);
        fg__j_put_string(j, fg__j_need_string(j, items[i]));
    }
    return fg__j_like(in->self, fg__j_take(j, mark));
}

static fg__jval fg__j_str_format(fg__jinja *j, const fg__j_in *in) {
    fg__j_braces braces;
    memset(&braces, 0, sizeof(braces));
    braces.args = in->args;
    return fg__j_like(in->self, fg__j_braces_format(j, &braces, in->self.u.s, 0));
}

/* ljust, center, rjust: how is where the text goes. Of an odd number of spaces, center puts the one left over to the
   left if the width is odd, too. */
static fg__jval fg__j_str_justify(fg__jinja *j, const fg__j_in *in) {
    int64_t chars = (int64_t)in->self.u.s->chars, width = fg__j_need_int(j, in->a[0]);
    int64_t pad = width > chars ? width - chars : 0;
    int64_t left = in->how == '>' ? pad : in->how == '^' ? pad / 2 + (pad & width & 1) : 0;
    const fg__j_string *fill = fg__j_optional_string(j, in->a[1]);
    size_t mark = fg__j_mark(j);
    if (fill && fill->chars != 1) return fg__j_fail(j, "The fill character must be exactly one character long");
    fg__j_put_repeated(j, fill ? fill->data : " ", fill ? fill->length : 1, left);
    fg__j_put_string(j, in->self.u.s);
    fg__j_put_repeated(j, fill ? fill->data : " ", fill ? fill->length : 1, pad - left);
    return fg__j_like(in->self, fg__j_take(j, mark));
}

static fg__jval fg__j_str_zfill(fg__jinja *j, const fg__j_in *in) {
    fg__j_spec spec = fg__j_spec_none();
    const fg__j_string *s = in->self.u.s;
    size_t mark = fg__j_mark(j);
    spec.width = fg__j_need_int(j, in->a[0]);
    spec.fill = '0';
    fg__j_put_string(j, s);
    fg__j_pad(j, &spec, mark, s->length && (s->data[0] == '-' || s->data[0] == '+') ? 1 : 0, '=');
    return fg__j_like(in->self, fg__j_take(j, mark));
}

enum fg__j_kind { FG__J_IS_ALPHA, FG__J_IS_DIGIT, FG__J_IS_ALNUM, FG__J_IS_SPACE, FG__J_IS_ASCII, FG__J_IS_PRINTABLE };

static bool fg__j_is_kind(uint32_t c, enum fg__j_kind kind) {
    switch (kind) {
    case FG__J_IS_ALPHA: return fg__j_is_alpha(c);
    case FG__J_IS_DIGIT: return fg__j_is_digit(c);
    case FG__J_IS_ALNUM: return fg__j_is_alpha(c) || fg__j_is_digit(c);
    case FG__J_IS_SPACE: return fg__j_is_space(c);
    case FG__J_IS_ASCII: return c < 0x80;
    default: return fg__j_is_printable(c);
    }
}

/* Whether every character is of a kind; an empty string is none but ASCII and printable. */
static fg__jval fg__j_str_is(fg__jinja *j, const fg__j_in *in) {
    enum fg__j_kind kind = (enum fg__j_kind)in->how;
    const fg__j_string *s = in->self.u.s;
    size_t i, length;
    for (i = 0; i < s->length; i += length)
        if (!fg__j_is_kind(fg__j_decode(s->data + i, s->length - i, &length), kind)) return fg__j_bool(false);
    fg__j_work(j, s->length / 4);
    return fg__j_bool(s->length > 0 || kind >= FG__J_IS_ASCII);
}

/* Whether there are letters with case and all are lower (upper) case. */
static fg__jval fg__j_str_is_cased(fg__jinja *j, const fg__j_in *in) {
    const fg__j_string *s = in->self.u.s;
    bool any = false;
    size_t i, length;
    for (i = 0; i < s->length; i += length) {
        uint32_t c = fg__j_decode(s->data + i, s->length - i, &length);
        bool is_upper = fg__j_lower(c) != c, is_lower = fg__j_upper(c) != c || c == 0xDF;
        if (in->how == FG__J_UPPER ? is_lower : is_upper) return fg__j_bool(false);
        any = any || is_upper || is_lower;
    }
    fg__j_work(j, s->length / 4);
    return fg__j_bool(any);
}

static fg__jval fg__j_str_expandtabs(fg__jinja *j, const fg__j_in *in) {
    int64_t size = fg__j_int_or(j, in->a[0], 8), column = 0;
    size_t i, mark = fg__j_mark(j);
    for (i = 0; i < in->self.u.s->length; i++) {
        char c = in->self.u.s->data[i];
        if (c == '\t' && size > 0) {
            fg__j_put_repeated(j, " ", 1, size - column % size);
            column += size - column % size;
            continue;
        }
        if (c == '\n' || c == '\r') column = -1;
        if (((unsigned char)c & 0xC0) != 0x80) column++;
        if (c != '\t') fg__j_put(j, &c, 1);
    }
    return fg__j_like(in->self, fg__j_take(j, mark));
}

static const fg__j_function fg__j_string_methods[] = {
    {"strip", "/chars", 0, fg__j_str_strip, FG__J_LEFT | FG__J_RIGHT},
    {"split", "sep maxsplit", 0, fg__j_str_split, FG__J_LEFT},
    {"startswith", "/prefix start end", 1, fg__j_str_affix, FG__J_LEFT},
    {"endswith", "/suffix start end", 1, fg__j_str_affix, FG__J_RIGHT},
    {"lstrip", "/chars", 0, fg__j_str_strip, FG__J_LEFT},
    {"rstrip", "/chars", 0, fg__j_str_strip, FG__J_RIGHT},
    {"replace", "/old new count", 2, fg__j_str_replace, 0},
    {"upper", "/", 0, fg__j_str_case, FG__J_UPPER},
    {"lower", "/", 0, fg__j_str_case, FG__J_LOWER},
    {"title", "/", 0, fg__j_str_case, FG__J_TITLE},
    {"capitalize", "/", 0, fg__j_str_case, FG__J_CAPITALIZE},
    {"casefold", "/", 0, fg__j_str_case, FG__J_LOWER},
    {"swapcase", "/", 0, fg__j_str_case, FG__J_SWAP},
    {"format", "*", 0, fg__j_str_format, 0},
    {"join", "/iterable", 1, fg__j_str_join, 0},
    {"rsplit", "sep maxsplit", 0, fg__j_str_split, FG__J_RIGHT},
    {"splitlines", "keepends", 0, fg__j_str_splitlines, 0},
    {"partition", "/sep", 1, fg__j_str_partition, FG__J_LEFT},
    {"rpartition", "/sep", 1, fg__j_str_partition, FG__J_RIGHT},
    {"find", "/sub start end", 1, fg__j_str_find, FG__J_LEFT},
    {"rfind", "/sub start end", 1, fg__j_str_find, FG__J_RIGHT},
    {"index", "/sub start end", 1, fg__j_str_find, FG__J_LEFT | FG__J_MUST},
    {"rindex", "/sub start end", 1, fg__j_str_find, FG__J_RIGHT | FG__J_MUST},
    {"count", "/sub start end", 1, fg__j_str_count, 0},
    {"removeprefix", "/prefix", 1, fg__j_str_removeprefix, 0},
    {"removesuffix", "/suffix", 1, fg__j_str_removesuffix, 0},
    {"center", "/width fillchar", 1, fg__j_str_justify, '^'},
    {"ljust", "/width fillchar", 1, fg__j_str_justify, '<'},
    {"rjust", "/width fillchar", 1, fg__j_str_justify, '>'},
    {"zfill", "/width", 1, fg__j_str_zfill, 0},
    {"isalpha", "/", 0, fg__j_str_is, FG__J_IS_ALPHA},
    {"isdigit", "/", 0, fg__j_str_is, FG__J_IS_DIGIT},
    {"isdecimal", "/", 0, fg__j_str_is, FG__J_IS_DIGIT},
    {"isnumeric", "/", 0, fg__j_str_is, FG__J_IS_DIGIT},
    {"isalnum", "/", 0, fg__j_str_is, FG__J_IS_ALNUM},
    {"isspace", "/", 0, fg__j_str_is, FG__J_IS_SPACE},
    {"isascii", "/", 0, fg__j_str_is, FG__J_IS_ASCII},
    {"isprintable", "/", 0, fg__j_str_is, FG__J_IS_PRINTABLE},
    {"islower", "/", 0, fg__j_str_is_cased, FG__J_LOWER},
    {"isupper", "/", 0, fg__j_str_is_cased, FG__J_UPPER},
    {"expandtabs", "tabsize", 0, fg__j_str_expandtabs, 0},
};

static fg__jval fg__j_dict_method_view(fg__jinja *j, const fg__j_in *in) {
    fg__jval view = in->self;
    (void)j;
    view.type = FG__J_VIEW;
    view.flag = (uint8_t)in->how;
    return view;
}

static fg__jval fg__j_dict_method_get(fg__jinja *j, const fg__j_in *in) {
    const fg__jval *found = fg__j_dict_find(j, in->self.u.d, in->a[0]);
    if (found) return *found;
    return in->a[1].type == FG__J_MISSING ? fg__j_value(FG__J_NONE) : in->a[1];
}

/* Nothing changes, so the thing itself serves as its copy. */
static fg__jval fg__j_method_copy(fg__jinja *j, const fg__j_in *in) {
    (void)j;
    return in->self;
}

static const fg__j_function fg__j_dict_methods[] = {
    {"get", "/key default", 1, fg__j_dict_method_get, 0},
    {"items", "/", 0, fg__j_dict_method_view, FG__J_ITEMS},
    {"keys", "/", 0, fg__j_dict_method_view, FG__J_KEYS},
    {"values", "/", 0, fg__j_dict_method_view, FG__J_VALUES},
    {"copy", "/", 0, fg__j_method_copy, 0},
};

static fg__jval fg__j_list_method_index(fg__jinja *j, const fg__j_in *in) {
    size_t n, i;
    const fg__jval *items = fg__j_items(j, in->self, &n);
    int64_t count = (int64_t)n;
    fg__jval none = fg__j_value(FG__J_NONE);
    int64_t from = fg__j_slice_index(j, fg__j_given(in->a[1]) ? in->a[1] : none, 0, count, 0, count);
    int64_t to = fg__j_slice_index(j, fg__j_given(in->a[2]) ? in->a[2] : none, count, count, 0, count);
    for (i = (size_t)from; (int64_t)i < to; i++)
        if (fg__j_equal(j, items[i], in->a[0])) return fg__j_int((int64_t)i);
    return fg__j_fail(j, "the value is not in the list");
}

static fg__jval fg__j_list_method_count(fg__jinja *j, const fg__j_in *in) {
    size_t n, i;
    int64_t found = 0;
    const fg__jval *items = fg__j_items(j, in->self, &n);
    for (i = 0; i < n; i++) found += fg__j_equal(j, items[i], in->a[0]);
    return fg__j_int(found);
}

static const fg__j_function fg__j_list_methods[] = {
    {"index", "/value start stop", 1, fg__j_list_method_index, 0},
    {"count", "/value", 1, fg__j_list_method_count, 0},
    {"copy", "/", 0, fg__j_method_copy, 0}, /* tuples and ranges have it not */
};

static fg__jval fg__j_loop_cycle(fg__jinja *j, const fg__j_in *in) {
    if (!in->args->n || in->args->n_named) return fg__j_fail(j, "no items for cycling given");
    return in->args->items[(in->self.u.loop->next + in->args->n - 1) % in->args->n];
}

static fg__jval fg__j_loop_changed(fg__jinja *j, const fg__j_in *in) {
    fg__jval *items = fg__j_array(j, in->args->n), now;
    if (in->args->n_named) return fg__j_fail(j, "changed() takes no keyword arguments");
    if (in->args->n) memcpy(items, in->args->items, in->args->n * sizeof(*items));
    now = fg__j_list_of(j, FG__J_TUPLE, items, in->args->n);
    if (in->self.u.loop->last_changed.type == FG__J_TUPLE && fg__j_equal(j, in->self.u.loop->last_changed, now))
        return fg__j_bool(false);
    in->self.u.loop->last_changed = now;
    return fg__j_bool(true);
}

static const fg__j_function fg__j_loop_methods[] = {
    {"cycle", "*", 0, fg__j_loop_cycle, 0},
    {"changed", "*", 0, fg__j_loop_changed, 0},
};

static bool fg__j_one_of(const fg__j_string *name, const char *const *names, int count) {
    int i;
    for (i = 0; i < count; i++)
        if (strlen(names[i]) == name->length && memcmp(names[i], name->data, name->length) == 0) return true;
    return false;
}

/* The method of this name, or NULL. *unsafe: there is one which the sandbox does not let out. */
static const fg__j_function *fg__j_method_named(fg__jval object, const fg__j_string *name, bool *unsafe) {
    static const char *const list_unsafe[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
    static const char *const dict_unsafe[] = {"clear", "pop", "popitem", "setdefault", "update"};
    size_t n = name->length;
    *unsafe = n > 4 && memcmp(name->data, "__", 2) == 0 && memcmp(name->data + n - 2, "__", 2) == 0;
    switch (object.type) {
    case FG__J_STRING: return fg__j_function_named(fg__j_string_methods, FG__COUNT(fg__j_string_methods), name->data, n);
    case FG__J_DICT:
        *unsafe = *unsafe || fg__j_one_of(name, dict_unsafe, FG__COUNT(dict_unsafe));
        return fg__j_function_named(fg__j_dict_methods, FG__COUNT(fg__j_dict_methods), name->data, n);
    case FG__J_LIST:
        *unsafe = *unsafe || fg__j_one_of(name, list_unsafe, FG__COUNT(list_unsafe));
        return fg__j_function_named(fg__j_list_methods, FG__COUNT(fg__j_list_methods), name->data, n);
    case FG__J_TUPLE:
    case FG__J_RANGE: return fg__j_function_named(fg__j_list_methods, FG__COUNT(fg__j_list_methods) - 1, name->data, n);
    case FG__J_LOOP: return fg__j_function_named(fg__j_loop_methods, FG__COUNT(fg__j_loop_methods), name->data, n);
    default: return NULL;
    }
}

/* ------------------------------------------------------------------------------------------------
   Filters
   ------------------------------------------------------------------------------------------------ */

/* What an attribute like "a.b.0" or 0 leads to; `otherwise` (unless MISSING) instead of what is undefined on the way. */
static fg__jval fg__j_path(fg__jinja *j, fg__jval item, fg__jval attribute, fg__jval otherwise) {
    const fg__j_string *s = attribute.u.s;
    size_t begin = 0, end;
    int64_t index;
    if (!fg__j_given(attribute)) return item;
    if (attribute.type != FG__J_STRING) item = fg__j_item(j, item, attribute);
    for (; attribute.type == FG__J_STRING && begin <= s->length; begin = end + 1) {
        for (end = begin; end < s->length && s->data[end] != '.'; end++) {}
        if (fg__j_parse_index(s->data + begin, end - begin, &index)) item = fg__j_item(j, item, fg__j_int(index));
        else item = fg__j_item(j, item, fg__j_substring(j, s, begin, end));
        if (item.type == FG__J_UNDEFINED && fg__j_given(otherwise)) item = otherwise;
    }
    if (item.type == FG__J_UNDEFINED && fg__j_given(otherwise)) item = otherwise;
    return item;
}

static fg__jval fg__j_fold_case(fg__jinja *j, fg__jval v, bool fold) {
    return fold && v.type == FG__J_STRING ? fg__j_cased(j, v.u.s, FG__J_LOWER) : v;
}

/* The items to work on, their count, and each one's key: its attribute, strings in lower case unless `exact`. */
static const fg__jval *fg__j_keys_of(fg__jinja *j, fg__jval v, fg__jval attribute, fg__jval otherwise, bool exact,
                                     fg__jval **keys, size_t *n) {
    const fg__jval *items = fg__j_items(j, v, n);
    size_t i;
    *keys = fg__j_array(j, *n);
    for (i = 0; i < *n; i++) (*keys)[i] = fg__j_fold_case(j, fg__j_path(j, items[i], attribute, otherwise), !exact);
    return items;
}

static fg__jval fg__j_filter_abs(fg__jinja *j, const fg__j_in *in) {
    bool negative = fg__j_need_number(j, in->self) < 0;
    if (in->self.type == FG__J_FLOAT) return fg__j_float(fabs(in->self.u.f));
    return fg__j_negated(j, in->self, negative);
}

static fg__jval fg__j_filter_attr(fg__jinja *j, const fg__j_in *in) {
    fg__jval v;
    fg__j_need_string(j, in->a[0]);
    v = fg__j_own_attribute(j, in->self, in->a[0]);
    return v.type == FG__J_MISSING ? fg__j_lacks(in->self, in->a[0], FG__J_ATTRIBUTE) : v;
}

static fg__jval fg__j_filter_batch(fg__jinja *j, const fg__j_in *in) {
    size_t n, i;
    const fg__jval *items = fg__j_items(j, in->self, &n);
    fg__j_parts lists, row;
    memset(&lists, 0, sizeof(lists));
    memset(&row, 0, sizeof(row));
    for (i = 0; i < n; i++) {
        if (fg__j_equal(j, fg__j_int((int64_t)row.n), in->a[0])) {
            fg__j_add(j, &lists, fg__j_parts_list(j, FG__J_LIST, &row));
            memset(&row, 0, sizeof(row));
        }
        fg__j_add(j, &row, items[i]);
    }
    if (row.n && fg__j_given(in->a[1]) && fg__j_compare(j, FG__J_LT, fg__j_int((int64_t)row.n), in->a[0]))
        while ((int64_t)row.n < fg__j_need_int(j, in->a[0])) fg__j_add(j, &row, in->a[1]);
    if (row.n) fg__j_add(j, &lists, fg__j_parts_list(j, FG__J_LIST, &row));
    return fg__j_parts_list(j, FG__J_ITERATOR, &lists);
}

static fg__jval fg__j_filter_slice(fg__jinja *j, const fg__j_in *in) {
    int64_t slices = fg__j_need_int(j, in->a[0]), i;
    size_t n, at = 0;
    const fg__jval *items = fg__j_items(j, in->self, &n);
    fg__j_parts lists;
    memset(&lists, 0, sizeof(lists));
    if (slices == 0) return fg__j_fail(j, "integer division or modulo by zero");
    for (i = 0; i < slices; i++) {
        size_t count = n / (size_t)slices + ((size_t)i < n % (size_t)slices ? 1 : 0);
        fg__j_parts row;
        memset(&row, 0, sizeof(row));
        for (; count; count--) fg__j_add(j, &row, items[at++]);
        if (fg__j_given(in->a[1]) && (size_t)i >= n % (size_t)slices) fg__j_add(j, &row, in->a[1]);
        fg__j_add(j, &lists, fg__j_parts_list(j, FG__J_LIST, &row));
    }
    return fg__j_parts_list(j, FG__J_ITERATOR, &lists);
}

/* lower, upper, capitalize, title */
static fg__jval fg__j_filter_case(fg__jinja *j, const fg__j_in *in) {
    fg__jval s = fg__j_soft(j, in->self);
    return fg__j_like(s, fg__j_cased(j, s.u.s, (enum fg__j_case)in->how));
}

static fg__jval fg__j_filter_center(fg__jinja *j, const fg__j_in *in) {
    fg__j_in center = *in;
    center.self = fg__j_soft(j, in->self);
    center.how = '^';
    if (in->a[0].type == FG__J_MISSING) center.a[0] = fg__j_int(80);
    center.a[1] = fg__j_value(FG__J_MISSING);
    return fg__j_str_justify(j, &center);
}

static fg__jval fg__j_filter_length(fg__jinja *j, const fg__j_in *in) {
    int64_t n = fg__j_length(in->self);
    if (n < 0) return fg__j_fail(j, "object of type '%s' has no len()", fg__j_type_names[in->self.type]);
    return fg__j_int(n);
}

static fg__jval fg__j_filter_default(fg__jinja *j, const fg__j_in *in) {
    if (in->self.type != FG__J_UNDEFINED && (!fg__j_flag(in->a[1]) || fg__j_true(in->self))) return in->self;
    return in->a[0].type == FG__J_MISSING ? fg__j_text(j, "") : in->a[0];
}

static fg__jval fg__j_filter_dictsort(fg__jinja *j, const fg__j_in *in) {
    bool by_value = fg__j_is(in->a[1], "value");
    fg__jval *keys, *items;
    uint32_t *order, i;
    fg__j_dict *dict = in->self.u.d;
    if (in->self.type == FG__J_UNDEFINED) return fg__j_fail_undefined(j, in->self);
    if (in->self.type != FG__J_DICT) return fg__j_fail(j, "dictsort needs a dict");
    if (in->a[1].type != FG__J_MISSING && !by_value && !fg__j_is(in->a[1], "key"))
        return fg__j_fail(j, "You can only sort by either \"key\" or \"value\"");
    keys = fg__j_array(j, dict->count);
    items = fg__j_array(j, dict->count);
    for (i = 0; i < dict->count; i++)
        keys[i] = fg__j_fold_case(j, dict->items[2 * i + (by_value ? 1 : 0)], !fg__j_flag(in->a[0]));
    order = fg__j_sorted(j, keys, 1, dict->count, fg__j_int_or(j, in->a[2], 0) != 0, false);
    for (i = 0; i < dict->count; i++) items[i] = fg__j_list_of(j, FG__J_TUPLE, dict->items + 2 * order[i], 2);
    return fg__j_list_of(j, FG__J_LIST, items, dict->count);
}

static fg__jval fg__j_filter_escape(fg__jinja *j, const fg__j_in *in) {
    fg__jval s = fg__j_soft(j, in->self);
    return s.flag && !in->how ? s : fg__j_escaped(j, s.u.s);
}

static fg__jval fg__j_filter_safe(fg__jinja *j, const fg__j_in *in) {
    return fg__j_marked(fg__j_soft(j, in->self), true);
}

static fg__jval fg__j_filter_first(fg__jinja *j, const fg__j_in *in) {
    size_t n;
    const fg__jval *items;
    fg__jval first;
    if (in->self.type == FG__J_ITERATOR && in->self.u.l->next < in->self.u.l->count)
        return in->self.u.l->items[in->self.u.l->next++];
    if (in->self.type == FG__J_STRING && in->self.u.s->length) {
        first = fg__j_char(j, in->self.u.s->data, in->self.u.s->length);
        return fg__j_like(in->self, first);
    }
    items = fg__j_items(j, in->self, &n);
    return n ? items[0] : fg__j_undefined(j, "No first item, sequence was empty.");
}

static fg__jval fg__j_filter_last(fg__jinja *j, const fg__j_in *in) {
    size_t n;
    const fg__jval *items;
    if (in->self.type == FG__J_ITERATOR || in->self.type == FG__J_LOOP)
        return fg__j_fail(j, "'%s' object is not reversible", fg__j_type_names[in->self.type]);
    items = fg__j_items(j, in->self, &n);
    return n ? items[n - 1] : fg__j_undefined(j, "No last item, sequence was empty.");
}

static fg__jval fg__j_filter_format(fg__jinja *j, const fg__j_in *in) {
    const fg__j_args *args = in->args;
    fg__jval *items = fg__j_array(j, FG__MAX(args->n, 2 * args->n_named)), values;
    size_t i;
    if (args->n && args->n_named)
        return fg__j_fail(j, "can't handle positional and keyword arguments at the same time");
    for (i = 0; i < args->n; i++) items[i] = args->items[i];
    for (i = 0; i < args->n_named; i++) {
        items[2 * i] = args->names[i];
        items[2 * i + 1] = args->values[i];
    }
    if (args->n_named) values = fg__j_dict_of(j, FG__J_DICT, items, args->n_named);
    else values = fg__j_list_of(j, FG__J_TUPLE, items, args->n);
    return fg__j_percent_format(j, fg__j_soft(j, in->self).u.s, values);
}

static fg__jval fg__j_filter_groupby(fg__jinja *j, const fg__j_in *in) {
    bool exact = fg__j_flag(in->a[2]);
    fg__jval *keys, group;
    size_t n, i, begin = 0;
    const fg__jval *items = fg__j_keys_of(j, in->self, in->a[0], in->a[1], exact, &keys, &n);
    uint32_t *order = fg__j_sorted(j, keys, 1, n, false, false);
    fg__j_parts groups, members;
    memset(&groups, 0, sizeof(groups));
    memset(&members, 0, sizeof(members));
    for (i = 0; i < n; i++) {
        fg__j_add(j, &members, items[order[i]]);
        if (i + 1 < n && fg__j_equal(j, keys[order[i]], keys[order[i + 1]])) continue;
        group = fg__j_pair(j, fg__j_path(j, items[order[begin]], in->a[0], in->a[1]),
                           fg__j_parts_list(j, FG__J_LIST, &members));
        group.flag = 1;
        fg__j_add(j, &groups, group);
        memset(&members, 0, sizeof(members));
        begin = i + 1;
    }
    return fg__j_parts_list(j, FG__J_LIST, &groups);
}

static fg__jval fg__j_filter_indent(fg__jinja *j, const fg__j_in *in) {
    const fg__j_string *s = fg__j_need_string(j, in->self);
    bool blank = fg__j_flag(in->a[2]), ends = false;
    size_t mark = fg__j_mark(j), i, last;
    fg__jval indent = in->a[0];
    fg__j_parts lines;
    memset(&lines, 0, sizeof(lines));
    if (indent.type != FG__J_STRING) {
        fg__j_put_repeated(j, " ", 1, fg__j_int_or(j, indent, 4));
        indent = fg__j_take(j, mark);
    }
    fg__j_split_lines(j, s, false, &lines);
    /* Jinja adds a line feed before it splits, which makes one more line after a line end that is no carriage return */
    if (s->length && fg__j_decode_back(s->data, s->length, &last) != '\r')
        ends = fg__j_line_end(s->data + last, s->length - last) > 0;
    if (!lines.n || ends) fg__j_add(j, &lines, fg__j_text(j, ""));
    if (fg__j_flag(in->a[1])) fg__j_put_string(j, indent.u.s);
    for (i = 0; i < lines.n; i++) {
        if (i) fg__j_puts(j, "\n");
        if (i && (blank || lines.items[i].u.s->length)) fg__j_put_string(j, indent.u.s);
        fg__j_put_string(j, lines.items[i].u.s);
    }
    return fg__j_like(in->self, fg__j_take(j, mark));
}

/* Reads a number as Python's int(text, base) or, with base 0, float(text) does: white space around it, underscores between
   digits, a prefix that fits the base. */
static bool fg__j_parse_number(fg__jinja *j, const fg__j_string *text, int base, fg__jval *v) {
    const fg__j_string *s = fg__j_strip(j, text, NULL, true, true).u.s;
    char *digits = (char *)fg__j_alloc(j, s->length + 1, 1);
    size_t n = 0, i, begin = s->length && (s->data[0] == '-' || s->data[0] == '+') ? 1 : 0;
    bool negative = begin && s->data[0] == '-', any = false, point = false, exponent = false;
    int64_t value = 0;
    char prefix = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : 0;
    if (prefix && s->length > begin + 2 && s->data[begin] == '0' && (s->data[begin + 1] | 0x20) == prefix) {
        begin += 2;
        if (s->data[begin] == '_' && s->length > begin + 1) begin++;
    }
    for (i = begin; i < s->length; i++) {
        char c = s->data[i];
        bool digit = c >= '0' && c <= '9', letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
        if (c == '_') {
            if (i == begin || i + 1 == s->length || s->data[i - 1] == '_') return false;
            if (!base && (s->data[i - 1] < '0' || s->data[i - 1] > '9' || s->data[i + 1] < '0' || s->data[i + 1] > '9'))
                return false;
            continue;
        }
        if (base) {
            int number = digit ? c - '0' : letter ? (c | 0x20) - 'a' + 10 : 99;
            if (number >= base) return false;
            value = fg__j_mul_ints(j, value, base);
            value = fg__j_add_ints(j, value, negative ? -number : number).u.i;
        } else if ((c == 'e' || c == 'E') && any && !exponent) {
            exponent = true;
            any = false;
        } else if (c == '.' && !point && !exponent) {
            point = true;
        } else if (!digit && !((c == '-' || c == '+') && n && (digits[n - 1] | 0x20) == 'e')) {
            return false;
        }
        any = any || digit || base;
        digits[n++] = c;
    }
    if (!any) return false;
    if (base) *v = fg__j_int(value);
    else *v = fg__j_float(fg__number_parse(digits, n) * (negative ? -1 : 1));
    return true;
}

/* Reads what Python's float() accepts: numbers, inf, infinity and nan. */
static bool fg__j_parse_float(fg__jinja *j, const fg__j_string *text, fg__jval *v) {
    const fg__j_string *s = fg__j_cased(j, fg__j_strip(j, text, NULL, true, true).u.s, FG__J_LOWER).u.s;
    bool sign = s->length && (s->data[0] == '-' || s->data[0] == '+');
    fg__jval word = fg__j_substring(j, s, sign ? 1 : 0, s->length);
    if (fg__j_parse_number(j, text, 0, v)) return true;
    if (fg__j_is(word, "nan")) *v = fg__j_float(strtod("nan", NULL));
    else if (fg__j_is(word, "inf") || fg__j_is(word, "infinity")) *v = fg__j_float(sign && s->data[0] == '-' ? -HUGE_VAL : HUGE_VAL);
    else return false;
    return true;
}

static fg__jval fg__j_filter_float(fg__jinja *j, const fg__j_in *in) {
    fg__jval v;
    if (in->self.type == FG__J_UNDEFINED) return fg__j_fail_undefined(j, in->self);
    if (fg__j_is_number(in->self)) return fg__j_float(fg__j_as_float(in->self));
    if (in->self.type == FG__J_STRING && fg__j_parse_float(j, in->self.u.s, &v)) return v;
    return in->a[0].type == FG__J_MISSING ? fg__j_float(0) : in->a[0];
}

static fg__jval fg__j_filter_int(fg__jinja *j, const fg__j_in *in) {
    int64_t base = fg__j_int_or(j, in->a[1], 10);
    fg__jval v = in->self, otherwise = in->a[0].type == FG__J_MISSING ? fg__j_int(0) : in->a[0];
    if (v.type == FG__J_UNDEFINED) return fg__j_fail_undefined(j, v);
    if (fg__j_is_integer(v)) return fg__j_int(v.u.i);
    if (v.type == FG__J_STRING) {
        if (base >= 2 && base <= 36 && fg__j_parse_number(j, v.u.s, (int)base, &v)) return v;
        if (!fg__j_parse_float(j, in->self.u.s, &v) || v.u.f - v.u.f != 0) return otherwise;
    }
    if (v.type != FG__J_FLOAT || v.u.f != v.u.f) return otherwise;
    return fg__j_truncated(j, v.u.f);
}

static fg__jval fg__j_filter_items(fg__jinja *j, const fg__j_in *in) {
    if (in->self.type == FG__J_UNDEFINED) return fg__j_list_of(j, FG__J_ITERATOR, NULL, 0);
    if (in->self.type != FG__J_DICT) return fg__j_fail(j, "Can only get item pairs from a mapping.");
    return fg__j_list_of(j, FG__J_ITERATOR, fg__j_dict_items(j, in->self.u.d, FG__J_ITEMS), in->self.u.d->count);
}

static fg__jval fg__j_filter_join(fg__jinja *j, const fg__j_in *in) {
    size_t mark = fg__j_mark(j), n, i;
    const fg__jval *items = fg__j_items(j, in->self, &n);
    for (i = 0; i < n; i++) {
        if (i && in->a[0].type != FG__J_MISSING) fg__j_put_str(j, in->a[0]);
        fg__j_put_str(j, fg__j_path(j, items[i], in->a[1], fg__j_value(FG__J_MISSING)));
    }
    return fg__j_take(j, mark);
}

static fg__jval fg__j_filter_list(fg__jinja *j, const fg__j_in *in) {
    size_t n;
    const fg__jval *items = fg__j_items(j, in->self, &n);
    return fg__j_list_of(j, FG__J_LIST, items, n);
}

/* min and max */
static fg__jval fg__j_filter_extreme(fg__jinja *j, const fg__j_in *in) {
    fg__jval *keys;
    size_t n, i, best = 0;
    const fg__jval *items = fg__j_keys_of(j, in->self, in->a[1], fg__j_value(FG__J_MISSING), fg__j_flag(in->a[0]), &keys, &n);
    if (!n) return fg__j_undefined(j, "No aggregated item, sequence was empty.");
    for (i = 1; i < n; i++)
        if (fg__j_compare(j, in->how, keys[i], keys[best])) best = i;
    return items[best];
}

static fg__jval fg__j_filter_replace(fg__jinja *j, const fg__j_in *in) {
    int64_t count = fg__j_given(in->a[2]) ? fg__j_need_int(j, in->a[2]) : -1;
    return fg__j_replaced(j, fg__j_str(j, in->self).u.s, fg__j_str(j, in->a[0]).u.s, fg__j_str(j, in->a[1]).u.s, count);
}

static fg__jval fg__j_filter_reverse(fg__jinja *j, const fg__j_in *in) {
    size_t n;
    const fg__jval *items;
    fg__jval *reversed;
    fg__jval none = fg__j_value(FG__J_NONE);
    if (in->self.type == FG__J_STRING) return fg__j_sliced(j, in->self, none, none, fg__j_int(-1));
    items = fg__j_items(j, in->self, &n);
    reversed = fg__j_array(j, n);
    if (n) memcpy(reversed, items, n * sizeof(*items));
    fg__j_reverse(reversed, n);
    return fg__j_list_of(j, in->self.type == FG__J_ITERATOR ? FG__J_LIST : FG__J_ITERATOR, reversed, n);
}

/* Half-way cases go to the even neighbour. */
static fg__jval fg__j_round_int(fg__jinja *j, fg__jval v, int64_t precision) {
    int64_t unit = 1, low, rest;
    if (precision >= 0) return fg__j_int(v.u.i);
    if (precision < -18) return fg__j_int(0);
    for (; precision < 0; precision++) unit *= 10;
    low = fg__j_floor_div(j, v.u.i, unit);
    rest = v.u.i - low * unit;
    if (rest > unit / 2 || (rest == unit / 2 && low % 2 != 0)) low++;
    return fg__j_int(fg__j_mul_ints(j, low, unit));
}

static fg__jval fg__j_filter_round(fg__jinja *j, const fg__j_in *in) {
    int64_t precision = fg__j_int_or(j, in->a[0], 0);
    double x = fg__j_need_number(j, in->self), unit;
    char text[1024];
    if (in->a[1].type == FG__J_MISSING || fg__j_is(in->a[1], "common")) {
        if (fg__j_is_integer(in->self)) return fg__j_round_int(j, in->self, precision);
        if (precision > 300 || x - x != 0) return in->self;
        unit = pow(10, (double)-precision);
        if (precision < 0) return fg__j_float(precision < -308 ? copysign(0.0, x) : rint(x / unit) * unit);
        return fg__j_float(copysign(fg__number_parse(text, fg__j_print_float(j, 'f', false, precision, x, text)), x));
    }
    if (!fg__j_is(in->a[1], "ceil") && !fg__j_is(in->a[1], "floor"))
        return fg__j_fail(j, "method must be common, ceil or floor");
    unit = pow(10, (double)precision);
    if (unit == 0) return fg__j_fail(j, "float division by zero");
    x *= unit;
    if (x - x != 0) return fg__j_fail(j, "cannot convert float infinity or NaN to integer");
    return fg__j_float((fg__j_is(in->a[1], "ceil") ? ceil(x) : floor(x)) / unit);
}

/* The list of keys that a sort by several attributes ("a,b") compares. */
static fg__jval fg__j_sort_key(fg__jinja *j, fg__jval item, fg__jval attribute, bool exact) {
    const fg__j_string *s = attribute.u.s;
    size_t begin = 0, end;
    fg__j_parts parts;
    fg__jval missing = fg__j_value(FG__J_MISSING);
    memset(&parts, 0, sizeof(parts));
    if (attribute.type != FG__J_STRING) return fg__j_fold_case(j, fg__j_path(j, item, attribute, missing), !exact);
    for (; begin <= s->length; begin = end + 1) {
        for (end = begin; end < s->length && s->data[end] != ','; end++) {}
        fg__j_add(j, &parts, fg__j_fold_case(j, fg__j_path(j, item, fg__j_substring(j, s, begin, end), missing), !exact));
    }
    return fg__j_parts_list(j, FG__J_LIST, &parts);
}

static fg__jval fg__j_filter_sort(fg__jinja *j, const fg__j_in *in) {
    size_t n, i;
    const fg__jval *items = fg__j_items(j, in->self, &n);
    fg__jval *keys = fg__j_array(j, n), *sorted = fg__j_array(j, n);
    uint32_t *order;
    for (i = 0; i < n; i++) keys[i] = fg__j_sort_key(j, items[i], in->a[2], fg__j_flag(in->a[1]));
    order = fg__j_sorted(j, keys, 1, n, fg__j_int_or(j, in->a[0], 0) != 0, true);
    for (i = 0; i < n; i++) sorted[i] = items[order[i]];
    return fg__j_list_of(j, FG__J_LIST, sorted, n);
}

static fg__jval fg__j_filter_string(fg__jinja *j, const fg__j_in *in) { return fg__j_soft(j, in->self); }

static fg__jval fg__j_filter_sum(fg__jinja *j, const fg__j_in *in) {
    fg__jval sum = in->a[1].type == FG__J_MISSING ? fg__j_int(0) : in->a[1];
    size_t n, i;
    const fg__jval *items = fg__j_items(j, in->self, &n);
    if (sum.type == FG__J_STRING) return fg__j_fail(j, "sum() can't sum strings");
    for (i = 0; i < n; i++)
        sum = fg__j_binary(j, FG__J_ADD, sum, fg__j_path(j, items[i], in->a[0], fg__j_value(FG__J_MISSING)));
    return sum;
}

/* As json.dumps: separators default to ", " and ": ", with an indent to "," and ": ". */
static fg__jval fg__j_filter_tojson(fg__jinja *j, const fg__j_in *in) {
    fg__jval indent = in->a[1], separators = in->a[2];
    size_t mark = fg__j_mark(j);
    fg__j_json how;
    memset(&how, 0, sizeof(how));
    how.ascii = fg__j_flag(in->a[0]);
    how.sort_keys = fg__j_flag(in->a[3]);
    how.lines = fg__j_given(indent) && in->self.type != FG__J_STRING;
    if (how.lines && indent.type != FG__J_STRING) {
        fg__j_put_repeated(j, " ", 1, fg__j_need_int(j, indent));
        indent = fg__j_take(j, mark);
    }
    how.indent = how.lines ? indent.u.s : NULL;
    how.comma = fg__j_text(j, how.lines ? "," : ", ").u.s;
    how.colon = fg__j_text(j, ": ").u.s;
    if (fg__j_given(separators)) {
        size_t n;
        const fg__jval *items = fg__j_items(j, separators, &n);
        if (n != 2) return fg__j_fail(j, "tojson needs two separators");
        how.comma = fg__j_need_string(j, items[0]);
        how.colon = fg__j_need_string(j, items[1]);
    }
    fg__j_put_json(j, &how, in->self, 0);
    return fg__j_take(j, mark);
}

static fg__jval fg__j_filter_trim(fg__jinja *j, const fg__j_in *in) {
    fg__jval s = fg__j_soft(j, in->self);
    return fg__j_like(s, fg__j_strip(j, s.u.s, fg__j_optional_string(j, in->a[0]), true, true));
}

static fg__jval fg__j_filter_truncate(fg__jinja *j, const fg__j_in *in) {
    fg__jval length = in->a[0].type == FG__J_MISSING ? fg__j_int(255) : in->a[0], space = fg__j_text(j, " "), cut;
    fg__jval end = in->a[2].type == FG__J_MISSING ? fg__j_text(j, "...") : in->a[2];
    const fg__j_string *s, *tail = fg__j_need_string(j, end);
    double most = fg__j_need_number(j, length), leeway = fg__j_given(in->a[3]) ? fg__j_need_number(j, in->a[3]) : 5;
    size_t at;
    if (most < (double)tail->chars) return fg__j_fail(j, "truncate: the length is below that of the end");
    if (leeway < 0) return fg__j_fail(j, "truncate: the leeway is negative");
    if ((double)fg__j_filter_length(j, in).u.i <= most + leeway) return in->self;
    s = fg__j_need_string(j, in->self);
    cut = fg__j_substring(j, s, 0, fg__j_offset(j, s, (size_t)fg__j_need_int(j, length) - tail->chars));
    if (!fg__j_flag(in->a[1]) && fg__j_find_last(j, cut.u.s, space.u.s, cut.u.s->length, &at))
        cut = fg__j_substring(j, cut.u.s, 0, at);
    return fg__j_join2(j, cut.u.s, tail);
}

static fg__jval fg__j_filter_unique(fg__jinja *j, const fg__j_in *in) {
    fg__jval *keys, *pairs;
    size_t n, i;
    const fg__jval *items =
        fg__j_keys_of(j, in->self, in->a[1], fg__j_value(FG__J_MISSING), fg__j_flag(in->a[0]), &keys, &n);
    fg__j_parts parts;
    fg__jval seen;
    memset(&parts, 0, sizeof(parts));
    pairs = fg__j_array(j, 2 * n); /* backwards, for the value that counts is the last, and the first place is wanted */
    for (i = 0; i < n; i++) {
        pairs[2 * i] = keys[n - 1 - i];
        pairs[2 * i + 1] = fg__j_int((int64_t)(n - 1 - i));
    }
    seen = fg__j_dict_of(j, FG__J_DICT, pairs, n);
    for (i = 0; i < n; i++)
        if (fg__j_dict_find(j, seen.u.d, keys[i])->u.i == (int64_t)i) fg__j_add(j, &parts, items[i]);
    return fg__j_parts_list(j, FG__J_ITERATOR, &parts);
}

static fg__jval fg__j_filter_wordcount(fg__jinja *j, const fg__j_in *in) {
    const fg__j_string *s = fg__j_soft(j, in->self).u.s;
    size_t i, length;
    int64_t n = 0;
    bool inside = false;
    for (i = 0; i < s->length; i += length) {
        uint32_t c = fg__j_decode(s->data + i, s->length - i, &length);
        bool word = c == '_' || fg__j_is_kind(c, FG__J_IS_ALNUM);
        n += word && !inside;
        inside = word;
    }
    fg__j_work(j, s->length / 4);
    return fg__j_int(n);
}

static const fg__j_function *fg__j_filter_named(const fg__j_string *name);
static const fg__j_function *fg__j_test_named(const fg__j_string *name);

/* The function that map, select and reject apply, with its arguments: what is behind the first `skip` arguments. */
static const fg__j_function *fg__j_inner(fg__jinja *j, const fg__j_in *in, size_t skip, bool test, fg__j_args *args) {
    const fg__j_function *f;
    const fg__j_string *name = fg__j_need_string(j, in->args->items[skip]);
    f = test ? fg__j_test_named(name) : fg__j_filter_named(name);
    if (!f) fg__j_fail(j, "No %s named '%.*s'.", test ? "test" : "filter", fg__j_cut(name, 100), name->data);
    *args = *in->args;
    args->items += skip + 1;
    args->n -= skip + 1;
    return f;
}

/* map(attribute=..., default=...) */
static fg__jval fg__j_map_attribute(fg__jinja *j, const fg__j_in *in) {
    fg__jval attribute = fg__j_value(FG__J_MISSING), otherwise = attribute;
    const fg__jval *items;
    fg__jval *mapped;
    size_t n, i;
    for (i = 0; i < in->args->n_named; i++) {
        if (fg__j_is(in->args->names[i], "attribute")) attribute = in->args->values[i];
        else if (fg__j_is(in->args->names[i], "default")) otherwise = in->args->values[i];
        else return fg__j_fail(j, "map() got an unexpected keyword argument");
    }
    if (attribute.type == FG__J_MISSING) return fg__j_fail(j, "map requires a filter argument");
    items = fg__j_items(j, in->self, &n);
    mapped = fg__j_array(j, n);
    for (i = 0; i < n; i++) mapped[i] = fg__j_path(j, items[i], attribute, otherwise);
    return fg__j_list_of(j, FG__J_ITERATOR, mapped, n);
}

static fg__jval fg__j_filter_map(fg__jinja *j, const fg__j_in *in) {
    const fg__j_function *f;
    const fg__jval *items;
    fg__jval *mapped;
    fg__j_args args;
    size_t n, i;
    if (!fg__j_true(in->self)) return fg__j_list_of(j, FG__J_ITERATOR, NULL, 0);
    if (!in->args->n) return fg__j_map_attribute(j, in);
    f = fg__j_inner(j, in, 0, false, &args);
    if (f->call == fg__j_filter_map && args.n > FG__J_MAX_PARAMS) return fg__j_fail(j, "map maps map too often");
    items = fg__j_items(j, in->self, &n);
    mapped = fg__j_array(j, n);
    for (i = 0; i < n; i++) mapped[i] = fg__j_invoke(j, f, items[i], &args);
    return fg__j_list_of(j, FG__J_ITERATOR, mapped, n);
}

enum { FG__J_REJECT = 1, FG__J_BY_ATTRIBUTE = 2 };

/* select, reject, selectattr, rejectattr */
static fg__jval fg__j_filter_select(fg__jinja *j, const fg__j_in *in) {
    size_t skip = in->how & FG__J_BY_ATTRIBUTE ? 1 : 0, n, i;
    fg__jval missing = fg__j_value(FG__J_MISSING);
    const fg__j_function *test = NULL;
    const fg__jval *items;
    fg__j_args args;
    fg__j_parts parts;
    memset(&parts, 0, sizeof(parts));
    if (!fg__j_true(in->self)) return fg__j_parts_list(j, FG__J_ITERATOR, &parts);
    if (in->args->n < skip) return fg__j_fail(j, "Missing parameter for attribute name");
    if (in->args->n > skip) test = fg__j_inner(j, in, skip, true, &args);
    items = fg__j_items(j, in->self, &n);
    for (i = 0; i < n; i++) {
        fg__jval v = skip ? fg__j_path(j, items[i], in->args->items[0], missing) : items[i];
        if (test) v = fg__j_invoke(j, test, v, &args);
        if (fg__j_true(v) == !(in->how & FG__J_REJECT)) fg__j_add(j, &parts, items[i]);
    }
    return fg__j_parts_list(j, FG__J_ITERATOR, &parts);
}

static const fg__j_function fg__j_filters[] = {
    {"abs", "", 0, fg__j_filter_abs, 0},
    {"attr", "name", 1, fg__j_filter_attr, 0},
    {"batch", "linecount fill_with", 1, fg__j_filter_batch, 0},
    {"capitalize", "", 0, fg__j_filter_case, FG__J_CAPITALIZE},
    {"center", "width", 0, fg__j_filter_center, 0},
    {"count", "", 0, fg__j_filter_length, 0},
    {"d", "default_value boolean", 0, fg__j_filter_default, 0},
    {"default", "default_value boolean", 0, fg__j_filter_default, 0},
    {"dictsort", "case_sensitive by reverse", 0, fg__j_filter_dictsort, 0},
    {"e", "", 0, fg__j_filter_escape, 0},
    {"escape", "", 0, fg__j_filter_escape, 0},
    {"first", "", 0, fg__j_filter_first, 0},
    {"float", "default", 0, fg__j_filter_float, 0},
    {"forceescape", "", 0, fg__j_filter_escape, 1},
    {"format", "*", 0, fg__j_filter_format, 0},
    {"groupby", "attribute default case_sensitive", 1, fg__j_filter_groupby, 0},
    {"indent", "width first blank", 0, fg__j_filter_indent, 0},
    {"int", "default base", 0, fg__j_filter_int, 0},
    {"items", "", 0, fg__j_filter_items, 0},
    {"join", "d attribute", 0, fg__j_filter_join, 0},
    {"last", "", 0, fg__j_filter_last, 0},
    {"length", "", 0, fg__j_filter_length, 0},
    {"list", "", 0, fg__j_filter_list, 0},
    {"lower", "", 0, fg__j_filter_case, FG__J_LOWER},
    {"map", "*", 0, fg__j_filter_map, 0},
    {"max", "case_sensitive attribute", 0, fg__j_filter_extreme, FG__J_GT},
    {"min", "case_sensitive attribute", 0, fg__j_filter_extreme, FG__J_LT},
    {"reject", "*", 0, fg__j_filter_select, FG__J_REJECT},
    {"rejectattr", "*", 0, fg__j_filter_select, FG__J_REJECT | FG__J_BY_ATTRIBUTE},
    {"replace", "old new count", 2, fg__j_filter_replace, 0},
    {"reverse", "", 0, fg__j_filter_reverse, 0},
    {"round", "precision method", 0, fg__j_filter_round, 0},
    {"safe", "", 0, fg__j_filter_safe, 0},
    {"select", "*", 0, fg__j_filter_select, 0},
    {"selectattr", "*", 0, fg__j_filter_select, FG__J_BY_ATTRIBUTE},
    {"slice", "slices fill_with", 1, fg__j_filter_slice, 0},
    {"sort", "reverse case_sensitive attribute", 0, fg__j_filter_sort, 0},
    {"string", "", 0, fg__j_filter_string, 0},
    {"sum", "attribute start", 0, fg__j_filter_sum, 0},
    {"title", "", 0, fg__j_filter_case, FG__J_WORDS},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, fg__j_filter_tojson, 0},
    {"trim", "chars", 0, fg__j_filter_trim, 0},
    {"truncate", "length killwords end leeway", 0, fg__j_filter_truncate, 0},
    {"unique", "case_sensitive attribute", 0, fg__j_filter_unique, 0},
    {"upper", "", 0, fg__j_filter_case, FG__J_UPPER},
    {"wordcount", "", 0, fg__j_filter_wordcount, 0},
};

static const fg__j_function *fg__j_filter_named(const fg__j_string *name) {
    return fg__j_function_named(fg__j_filters, FG__COUNT(fg__j_filters), name->data, name->length);
}

/* ------------------------------------------------------------------------------------------------
   Tests
   ------------------------------------------------------------------------------------------------ */

/* Tests of a value's type: how is a set of types. */
static fg__jval fg__j_test_type(fg__jinja *j, const fg__j_in *in) {
    (void)j;
    return fg__j_bool((in->how >> in->self.type & 1) != 0);
}

/* true and false */
static fg__jval fg__j_test_bool(fg__jinja *j, const fg__j_in *in) {
    (void)j;
    return fg__j_bool(in->self.type == FG__J_BOOL && in->self.u.i == in->how);
}

/* odd, even and divisibleby */
static fg__jval fg__j_test_rest(fg__jinja *j, const fg__j_in *in) {
    fg__jval by = in->how < 0 ? in->a[0] : fg__j_int(2), want = fg__j_int(in->how < 0 ? 0 : in->how);
    return fg__j_bool(fg__j_equal(j, fg__j_binary(j, FG__J_MOD, in->self, by), want));
}

static fg__jval fg__j_test_defined(fg__jinja *j, const fg__j_in *in) {
    (void)j;
    return fg__j_bool((in->self.type != FG__J_UNDEFINED) == (in->how != 0));
}

static fg__jval fg__j_test_compare(fg__jinja *j, const fg__j_in *in) {
    return fg__j_bool(fg__j_compare(j, in->how, in->self, in->a[0]));
}

static fg__jval fg__j_test_case(fg__jinja *j, const fg__j_in *in) {
    fg__j_in text = *in;
    text.self = fg__j_str(j, in->self);
    return fg__j_str_is_cased(j, &text);
}

static fg__jval fg__j_test_escaped(fg__jinja *j, const fg__j_in *in) {
    (void)j;
    return fg__j_bool(in->self.type == FG__J_STRING && in->self.flag);
}

/* Whether there is a filter or a test of that name. */
static fg__jval fg__j_test_exists(fg__jinja *j, const fg__j_in *in) {
    fg__j_check_key(j, in->self, 0);
    if (in->self.type != FG__J_STRING) return fg__j_bool(false);
    return fg__j_bool((in->how ? fg__j_test_named(in->self.u.s) : fg__j_filter_named(in->self.u.s)) != NULL);
}

/* Identity in Python: certain for None, booleans and objects; numbers and strings are taken to be what they equal. */
static fg__jval fg__j_test_sameas(fg__jinja *j, const fg__j_in *in) {
    fg__jval a = in->self, b = in->a[0];
    if (a.type != b.type) return fg__j_bool(false);
    if (a.type <= FG__J_STRING) return fg__j_bool(fg__j_equal(j, a, b));
    return fg__j_bool(a.u.l == b.u.l);
}

enum {
    FG__J_IS_NUMBER = 1 << FG__J_BOOL | 1 << FG__J_INT | 1 << FG__J_FLOAT,
    FG__J_IS_SEQUENCE = 1 << FG__J_UNDEFINED | 1 << FG__J_STRING | 1 << FG__J_LIST | 1 << FG__J_TUPLE | 1 << FG__J_DICT |
                        1 << FG__J_RANGE,
    FG__J_IS_ITERABLE = FG__J_IS_SEQUENCE | 1 << FG__J_VIEW | 1 << FG__J_ITERATOR | 1 << FG__J_LOOP,
    FG__J_IS_CALLABLE = 1 << FG__J_UNDEFINED | 1 << FG__J_FUNCTION | 1 << FG__J_METHOD | 1 << FG__J_MACRO | 1 << FG__J_LOOP
};

static const fg__j_function fg__j_tests[] = {
    {"odd", "", 0, fg__j_test_rest, 1},
    {"even", "", 0, fg__j_test_rest, 0},
    {"divisibleby", "num", 1, fg__j_test_rest, -1},
    {"defined", "", 0, fg__j_test_defined, 1},
    {"undefined", "", 0, fg__j_test_defined, 0},
    {"filter", "", 0, fg__j_test_exists, 0},
    {"test", "", 0, fg__j_test_exists, 1},
    {"none", "", 0, fg__j_test_type, 1 << FG__J_NONE},
    {"boolean", "", 0, fg__j_test_type, 1 << FG__J_BOOL},
    {"false", "", 0, fg__j_test_bool, 0},
    {"true", "", 0, fg__j_test_bool, 1},
    {"integer", "", 0, fg__j_test_type, 1 << FG__J_INT},
    {"float", "", 0, fg__j_test_type, 1 << FG__J_FLOAT},
    {"lower", "", 0, fg__j_test_case, FG__J_LOWER},
    {"upper", "", 0, fg__j_test_case, FG__J_UPPER},
    {"string", "", 0, fg__j_test_type, 1 << FG__J_STRING},
    {"mapping", "", 0, fg__j_test_type, 1 << FG__J_DICT},
    {"number", "", 0, fg__j_test_type, FG__J_IS_NUMBER},
    {"sequence", "", 0, fg__j_test_type, FG__J_IS_SEQUENCE},
    {"iterable", "", 0, fg__j_test_type, FG__J_IS_ITERABLE},
    {"callable", "", 0, fg__j_test_type, FG__J_IS_CALLABLE},
    {"sameas", "other", 1, fg__j_test_sameas, 0},
    {"escaped", "", 0, fg__j_test_escaped, 0},
    {"in", "seq", 1, fg__j_test_compare, FG__J_IN},
    {"==", "/b", 1, fg__j_test_compare, FG__J_EQ},
    {"eq", "/b", 1, fg__j_test_compare, FG__J_EQ},
    {"equalto", "/b", 1, fg__j_test_compare, FG__J_EQ},
    {"!=", "/b", 1, fg__j_test_compare, FG__J_NE},
    {"ne", "/b", 1, fg__j_test_compare, FG__J_NE},
    {">", "/b", 1, fg__j_test_compare, FG__J_GT},
    {"gt", "/b", 1, fg__j_test_compare, FG__J_GT},
    {"greaterthan", "/b", 1, fg__j_test_compare, FG__J_GT},
    {">=", "/b", 1, fg__j_test_compare, FG__J_GE},
    {"ge", "/b", 1, fg__j_test_compare, FG__J_GE},
    {"<", "/b", 1, fg__j_test_compare, FG__J_LT},
    {"lt", "/b", 1, fg__j_test_compare, FG__J_LT},
    {"lessthan", "/b", 1, fg__j_test_compare, FG__J_LT},
    {"<=", "/b", 1, fg__j_test_compare, FG__J_LE},
    {"le", "/b", 1, fg__j_test_compare, FG__J_LE},
};

static const fg__j_function *fg__j_test_named(const fg__j_string *name) {
    return fg__j_function_named(fg__j_tests, FG__COUNT(fg__j_tests), name->data, name->length);
}

/* ------------------------------------------------------------------------------------------------
   Global functions
   ------------------------------------------------------------------------------------------------ */

static fg__jval fg__j_global_range(fg__jinja *j, const fg__j_in *in) {
    fg__jval value = fg__j_value(FG__J_RANGE);
    fg__j_range *r = (fg__j_range *)fg__j_alloc(j, 1, sizeof(*r));
    bool one = in->a[1].type == FG__J_MISSING;
    uint64_t distance, step;
    r->start = one ? 0 : fg__j_need_int(j, in->a[0]);
    r->stop = fg__j_need_int(j, one ? in->a[0] : in->a[1]);
    r->step = fg__j_int_or(j, in->a[2], 1);
    if (r->step == 0) return fg__j_fail(j, "range() arg 3 must not be zero");
    distance = r->step > 0 ? (uint64_t)r->stop - (uint64_t)r->start : (uint64_t)r->start - (uint64_t)r->stop;
    step = r->step > 0 ? (uint64_t)r->step : (uint64_t)0 - (uint64_t)r->step;
    if (r->step > 0 ? r->stop <= r->start : r->stop >= r->start) distance = 0;
    distance = distance / step + (distance % step != 0);
    if (distance > FG__J_MAX_RANGE) return fg__j_fail(j, "Range too big");
    r->count = (int64_t)distance;
    value.u.r = r;
    return value;
}

/* The two items of a pair. */
static void fg__j_two(fg__jinja *j, fg__jval pair, fg__jval *to) {
    size_t n;
    const fg__jval *items = fg__j_items(j, pair, &n);
    if (n != 2) fg__j_fail(j, "dictionary update sequence element has length %zu; 2 is required", n);
    to[0] = items[0];
    to[1] = items[1];
}

/* dict and namespace: of a mapping or pairs, and keywords. */
static fg__jval fg__j_global_dict(fg__jinja *j, const fg__j_in *in) {
    const fg__j_args *args = in->args;
    size_t n = 0, i;
    const fg__jval *pairs = NULL;
    fg__jval *items, value;
    if (args->n > 1) return fg__j_fail(j, "dict expected at most 1 argument");
    if (args->n && args->items[0].type == FG__J_UNDEFINED) return fg__j_fail_undefined(j, args->items[0]);
    if (args->n && args->items[0].type == FG__J_DICT) {
        pairs = fg__j_dict_items(j, args->items[0].u.d, FG__J_ITEMS);
        n = args->items[0].u.d->count;
    } else if (args->n) {
        pairs = fg__j_items(j, args->items[0], &n);
    }
    items = fg__j_array(j, 2 * (n + args->n_named));
    for (i = 0; i < n; i++) fg__j_two(j, pairs[i], items + 2 * i);
    for (i = 0; i < args->n_named; i++) {
        items[2 * (n + i)] = args->names[i];
        items[2 * (n + i) + 1] = args->values[i];
    }
    value = fg__j_dict_of(j, (fg__j_type)in->how, items, n + args->n_named);
    for (i = 0; in->how == FG__J_NAMESPACE && i < value.u.d->count; i++)
        if (items[2 * i].type == FG__J_STRING && items[2 * i].u.s->length && items[2 * i].u.s->data[0] == '_')
            return fg__j_fail(j, "a namespace takes no attribute that begins with an underscore");
    return value;
}

static fg__jval fg__j_global_raise(fg__jinja *j, const fg__j_in *in) {
    const fg__j_string *message = fg__j_str(j, in->a[0]).u.s;
    return fg__j_fail(j, "%.*s", fg__j_cut(message, 300), message->data);
}

static struct tm fg__j_local_time(void) {
    struct tm t;
    time_t now = time(NULL);
    memset(&t, 0, sizeof(t));
#if FG__WINDOWS
    localtime_s(&t, &now);
#else
    localtime_r(&now, &t);
#endif
    return t;
}

static const char *const fg__j_days[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
static const char *const fg__j_months[] = {"January", "February", "March",     "April",   "May",      "June",
                                           "July",    "August",   "September", "October", "November", "December"};

/* One directive of strftime, in English whatever the locale; what is not known stays as it is. */
static void fg__j_put_time(fg__jinja *j, const struct tm *t, char directive) {
    int hour = t->tm_hour % 12 ? t->tm_hour % 12 : 12;
    char text[64] = "";
    switch (directive) {
    case 'a': snprintf(text, sizeof(text), "%.3s", fg__j_days[t->tm_wday]); break;
    case 'A': snprintf(text, sizeof(text), "%s", fg__j_days[t->tm_wday]); break;
    case 'b':
    case 'h': snprintf(text, sizeof(text), "%.3s", fg__j_months[t->tm_mon]); break;
    case 'B': snprintf(text, sizeof(text), "%s", fg__j_months[t->tm_mon]); break;
    case 'd': snprintf(text, sizeof(text), "%02d", t->tm_mday); break;
    case 'e': snprintf(text, sizeof(text), "%2d", t->tm_mday); break;
    case 'H': snprintf(text, sizeof(text), "%02d", t->tm_hour); break;
    case 'I': snprintf(text, sizeof(text), "%02d", hour); break;
    case 'j': snprintf(text, sizeof(text), "%03d", t->tm_yday + 1); break;
    case 'm': snprintf(text, sizeof(text), "%02d", t->tm_mon + 1); break;
    case 'M': snprintf(text, sizeof(text), "%02d", t->tm_min); break;
    case 'p': snprintf(text, sizeof(text), "%s", t->tm_hour < 12 ? "AM" : "PM"); break;
    case 'S': snprintf(text, sizeof(text), "%02d", t->tm_sec); break;
    case 'w': snprintf(text, sizeof(text), "%d", t->tm_wday); break;
    case 'u': snprintf(text, sizeof(text), "%d", t->tm_wday ? t->tm_wday : 7); break;
    case 'y': snprintf(text, sizeof(text), "%02d", t->tm_year % 100); break;
    case 'Y': snprintf(text, sizeof(text), "%d", t->tm_year + 1900); break;
    case 'F': snprintf(text, sizeof(text), "%d-%02d-%02d", t->tm_year + 1900, t->tm_mon + 1, t->tm_mday); break;
    case 'D':
    case 'x': snprintf(text, sizeof(text), "%02d/%02d/%02d", t->tm_mon + 1, t->tm_mday, t->tm_year % 100); break;
    case 'T':
    case 'X': snprintf(text, sizeof(text), "%02d:%02d:%02d", t->tm_hour, t->tm_min, t->tm_sec); break;
    case 'R': snprintf(text, sizeof(text), "%02d:%02d", t->tm_hour, t->tm_min); break;
    case 'n': snprintf(text, sizeof(text), "\n"); break;
    case 't': snprintf(text, sizeof(text), "\t"); break;
    case 'z':
    case 'Z': break; /* a time without a zone */
    case '%': snprintf(text, sizeof(text), "%%"); break;
    default: snprintf(text, sizeof(text), "%%%c", directive);
    }
    fg__j_puts(j, text);
}

static fg__jval fg__j_global_now(fg__jinja *j, const fg__j_in *in) {
    const fg__j_string *format = fg__j_need_string(j, in->a[0]);
    struct tm t = fg__j_local_time();
    size_t i, mark = fg__j_mark(j);
    for (i = 0; i < format->length; i++) {
        if (format->data[i] == '%' && i + 1 < format->length && (unsigned char)format->data[i + 1] < 0x80)
            fg__j_put_time(j, &t, format->data[++i]);
        else fg__j_put(j, format->data + i, 1);
    }
    return fg__j_take(j, mark);
}

static const fg__j_function fg__j_global_functions[] = {
    {"range", "/start stop step", 1, fg__j_global_range, 0},
    {"dict", "*", 0, fg__j_global_dict, FG__J_DICT},
    {"namespace", "*", 0, fg__j_global_dict, FG__J_NAMESPACE},
    {"raise_exception", "message", 1, fg__j_global_raise, 0},
    {"strftime_now", "format", 1, fg__j_global_now, 0},
};

/* ------------------------------------------------------------------------------------------------
   From text to tokens
   ------------------------------------------------------------------------------------------------ */

/* Names that mean something to the compiler come first in j->names, in this order. */
#define FG__J_WORDS_TABLE(X) \
    X(AND, "and") X(OR, "or") X(NOT, "not") X(IN, "in") X(IS, "is") X(IF, "if") X(ELIF, "elif") X(ELSE, "else")          \
    X(ENDIF, "endif") X(FOR, "for") X(ENDFOR, "endfor") X(RECURSIVE, "recursive") X(BREAK, "break")                      \
    X(CONTINUE, "continue") X(SET, "set") X(ENDSET, "endset") X(MACRO, "macro") X(ENDMACRO, "endmacro") X(CALL, "call")  \
    X(ENDCALL, "endcall") X(FILTER, "filter") X(ENDFILTER, "endfilter") X(WITH, "with") X(ENDWITH, "endwith")            \
    X(GENERATION, "generation") X(ENDGENERATION, "endgeneration") X(PRINT, "print") X(TRUE, "true") X(TRUE2, "True")     \
    X(FALSE, "false") X(FALSE2, "False") X(NONE, "none") X(NONE2, "None") X(LOOP, "loop") X(CALLER, "caller")            \
    X(KWARGS, "kwargs") X(VARARGS, "varargs") X(BLOCK, "block") X(EXTENDS, "extends") X(INCLUDE, "include")              \
    X(IMPORT, "import") X(FROM, "from") X(AUTOESCAPE, "autoescape")

enum {
#define FG__J_ENUM(name, text) FG__J_W_##name,
    FG__J_WORDS_TABLE(FG__J_ENUM)
#undef FG__J_ENUM
    FG__J_N_WORDS
};

static uint32_t fg__j_hash(const char *data, size_t length) {
    uint32_t hash = 2166136261u;
    size_t i;
    for (i = 0; i < length; i++) hash = (hash ^ (unsigned char)data[i]) * 16777619u;
    return hash ^ hash >> 15;
}

static void fg__j_grow_names(fg__jinja *j) {
    size_t size = j->name_table ? 2 * (j->name_mask + 1) : 256, i, at;
    int32_t *table = (int32_t *)fg__j_alloc(j, size, sizeof(*table));
    memset(table, 0, size * sizeof(*table));
    for (i = 0; i < j->n_names; i++) {
        const fg__j_string *s = j->names[i].u.s;
        for (at = fg__j_hash(s->data, s->length) & (size - 1); table[at]; at = (at + 1) & (size - 1)) {}
        table[at] = (int32_t)i + 1;
    }
    j->name_table = table;
    j->name_mask = size - 1;
}

/* The number of a name. */
static int32_t fg__j_name(fg__jinja *j, const char *data, size_t length) {
    size_t at;
    if (2 * j->n_names >= j->name_mask) fg__j_grow_names(j);
    for (at = fg__j_hash(data, length) & j->name_mask; j->name_table[at]; at = (at + 1) & j->name_mask) {
        const fg__j_string *s = j->names[j->name_table[at] - 1].u.s;
        fg__j_work(j, 1);
        if (s->length == length && memcmp(s->data, data, length) == 0) return j->name_table[at] - 1;
    }
    j->names = (fg__jval *)fg__j_room(j, j->names, &j->names_capacity, j->n_names, sizeof(*j->names));
    j->names[j->n_names] = fg__j_span(j, data, length);
    j->name_table[at] = (int32_t)++j->n_names;
    return (int32_t)j->n_names - 1;
}

static void fg__j_add_token(fg__jinja *j, fg__j_token_type type, int32_t id, fg__jval value) {
    fg__j_token *token;
    fg__j_work(j, 1);
    j->tokens = (fg__j_token *)fg__j_room(j, j->tokens, &j->tokens_capacity, j->n_tokens, sizeof(*j->tokens));
    token = &j->tokens[j->n_tokens++];
    token->type = type;
    token->line = j->line;
    token->id = id;
    token->value = value;
}

static void fg__j_add_mark(fg__jinja *j, fg__j_token_type type) {
    fg__j_add_token(j, type, 0, fg__j_value(FG__J_MISSING));
}

/* Moves on to byte `to`, counting lines. */
static void fg__j_advance(fg__jinja *j, size_t to) {
    for (; j->at < to; j->at++) j->line += j->text[j->at] == '\n';
}

/* The character at `at`, or 0 at the end. */
static char fg__j_peek(const fg__jinja *j, size_t at) { return at < j->length ? j->text[at] : 0; }

static size_t fg__j_skip_space(const fg__jinja *j, size_t at) {
    size_t length;
    while (at < j->length && fg__j_is_space(fg__j_decode(j->text + at, j->length - at, &length))) at += length;
    return at;
}

static bool fg__j_at_word(const fg__jinja *j, size_t at, const char *word) {
    size_t n = strlen(word);
    return j->length - at >= n && memcmp(j->text + at, word, n) == 0;
}

/* Makes a data token of the text from j->at to a tag, without the white space that the tag's sign (- + or 0) or
   lstrip_blocks removes. */
static void fg__j_lex_text(fg__jinja *j, size_t tag, char sign, bool print) {
    size_t begin = j->at, end = tag, before = 0, line = tag;
    if (sign == '-') {
        while (end > begin && fg__j_is_space(fg__j_decode_back(j->text, end, &before)) && before >= begin) end = before;
    } else if (sign != '+' && !print) {
        while (line > begin && j->text[line - 1] != '\n') line--;
        if ((line > begin || j->line_start) && line < tag && fg__j_skip_space(j, line) >= tag) end = line;
    }
    if (end > begin) fg__j_add_token(j, FG__J_T_DATA, 0, fg__j_span(j, j->text + begin, end - begin));
    fg__j_advance(j, tag);
}

/* Passes the end of a tag at j->at: an optional sign, `close`, and the white space that goes with it. */
static void fg__j_lex_close(fg__jinja *j, const char *close) {
    char sign = fg__j_at_word(j, j->at, close) ? 0 : j->text[j->at];
    size_t end = j->at + (sign ? 1 : 0) + 2;
    if (sign == '-') end = fg__j_skip_space(j, end);
    else if (!sign && *close != '}' && fg__j_peek(j, end) == '\n') end++; /* trim_blocks */
    fg__j_advance(j, end);
    j->line_start = j->text[end - 1] == '\n';
}

/* Whether a tag ends at j->at. */
static bool fg__j_at_close(const fg__jinja *j, const char *close) {
    char c = fg__j_peek(j, j->at);
    if (fg__j_at_word(j, j->at, close)) return true;
    return (c == '-' || (c == '+' && *close != '}')) && fg__j_at_word(j, j->at + 1, close);
}

static void fg__j_lex_comment(fg__jinja *j) {
    while (j->at < j->length && !fg__j_at_close(j, "#}")) fg__j_advance(j, j->at + 1);
    if (j->at == j->length) fg__j_fail(j, "Missing end of comment tag");
    fg__j_lex_close(j, "#}");
}

/* If {% at j->at begins a raw block, makes a data token of its content and passes it. */
static bool fg__j_lex_raw(fg__jinja *j, size_t behind_sign) {
    size_t at = fg__j_skip_space(j, behind_sign), tag;
    char sign;
    if (!fg__j_at_word(j, at, "raw")) return false;
    at = fg__j_skip_space(j, at + 3);
    if (fg__j_at_word(j, at, "-%}")) at = fg__j_skip_space(j, at + 3);
    else if (fg__j_at_word(j, at, "%}")) at += 2;
    else return false;
    fg__j_advance(j, at);
    j->line_start = j->text[at - 1] == '\n';
    for (tag = at; tag < j->length; tag++) {
        if (!fg__j_at_word(j, tag, "{%")) continue;
        sign = fg__j_peek(j, tag + 2);
        if (sign != '-' && sign != '+') sign = 0;
        at = fg__j_skip_space(j, tag + (sign ? 3 : 2));
        if (!fg__j_at_word(j, at, "endraw")) continue;
        at = fg__j_skip_space(j, at + 6);
        if (!fg__j_at_word(j, at, "%}") && !fg__j_at_word(j, at, "-%}") && !fg__j_at_word(j, at, "+%}")) continue;
        fg__j_lex_text(j, tag, sign, false);
        fg__j_advance(j, at);
        fg__j_lex_close(j, "%}");
        return true;
    }
    fg__j_fail(j, "Missing end of raw directive");
    return true;
}

/* The end of digits with single underscores between them, from `at`. */
static size_t fg__j_digits_end(const fg__jinja *j, size_t at) {
    size_t end = at;
    while (fg__j_peek(j, end) >= '0' && fg__j_peek(j, end) <= '9') {
        end++;
        if (fg__j_peek(j, end) == '_' && fg__j_peek(j, end + 1) >= '0' && fg__j_peek(j, end + 1) <= '9') end++;
    }
    return end;
}

/* The end of a floating point number at j->at, or j->at if there is none. */
static size_t fg__j_float_end(const fg__jinja *j) {
    size_t whole = fg__j_digits_end(j, j->at), fraction = whole, at, exponent;
    if (whole == j->at || (j->at && j->text[j->at - 1] == '.')) return j->at;
    if (fg__j_peek(j, whole) == '.' && fg__j_digits_end(j, whole + 1) > whole + 1) fraction = fg__j_digits_end(j, whole + 1);
    if ((fg__j_peek(j, fraction) | 0x20) == 'e') {
        at = fraction + 1;
        if (fg__j_peek(j, at) == '+' || fg__j_peek(j, at) == '-') at++;
        exponent = fg__j_digits_end(j, at);
        if (exponent > at) return exponent;
    }
    return fraction > whole ? fraction : j->at;
}

/* The end of an integer at j->at, and its base. */
static size_t fg__j_integer_end(const fg__jinja *j, int *base) {
    char prefix = (char)(fg__j_peek(j, j->at + 1) | 0x20);
    size_t end = j->at + 2, next;
    *base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 10;
    if (j->text[j->at] == '0' && *base != 10) {
        for (;; end = next + 1) {
            char c = 0;
            next = end + (fg__j_peek(j, end) == '_' ? 1 : 0);
            c = fg__j_peek(j, next);
            if (!(c >= '0' && c <= '9' && c - '0' < *base) && !(*base == 16 && (c | 0x20) >= 'a' && (c | 0x20) <= 'f')) break;
        }
        if (end > j->at + 2) return end;
    }
    *base = 10;
    if (j->text[j->at] != '0') return fg__j_digits_end(j, j->at);
    for (end = j->at + 1;; end = next + 1) { /* zeros only */
        next = end + (fg__j_peek(j, end) == '_' ? 1 : 0);
        if (fg__j_peek(j, next) != '0') return end;
    }
}

static void fg__j_lex_number(fg__jinja *j) {
    size_t end = fg__j_float_end(j);
    int base = 0;
    fg__jval v = fg__j_value(FG__J_NONE);
    if (end == j->at) end = fg__j_integer_end(j, &base);
    if (!fg__j_parse_number(j, fg__j_span(j, j->text + j->at, end - j->at).u.s, base, &v)) fg__j_fail(j, "a bad number");
    fg__j_add_token(j, FG__J_T_NUMBER, 0, v);
    fg__j_advance(j, end);
}

/* Reads n hexadecimal or at most 3 octal digits. */
static uint32_t fg__j_escape_digits(fg__jinja *j, size_t *at, size_t end, size_t n, uint32_t base) {
    uint32_t code = 0;
    size_t i;
    for (i = 0; i < n; i++, ++*at) {
        char c = *at < end ? j->text[*at] : 0, lower = (char)(c | 0x20);
        uint32_t digit = c >= '0' && c <= '9' ? (uint32_t)(c - '0') : lower >= 'a' && lower <= 'f' ? (uint32_t)(lower - 'a' + 10) : 99;
        if (digit >= base && base == 8) break;
        if (digit >= base) fg__j_fail(j, "truncated escape in a string");
        code = code * base + digit;
    }
    if (code > 0x10FFFF) fg__j_fail(j, "illegal Unicode character");
    return code >= 0xD800 && code < 0xE000 ? FG__REPLACEMENT : code;
}

/* The value of a string literal from `at` to `end`, with Python's escapes. */
static fg__jval fg__j_unescape(fg__jinja *j, size_t at, size_t end) {
    static const char names[] = "\\'\"abfnrtv", values[] = "\\'\"\a\b\f\n\r\t\v";
    size_t mark = fg__j_mark(j);
    while (at < end) {
        const char *slash = (const char *)memchr(j->text + at, '\\', end - at), *name;
        size_t plain = slash ? (size_t)(slash - j->text) : end;
        char c;
        fg__j_put(j, j->text + at, plain - at);
        at = plain + 1;
        if (plain == end) break;
        c = j->text[at++];
        name = strchr(names, c);
        if (c && name) fg__j_put(j, &values[name - names], 1);
        else if (c == 'x') fg__j_put_code(j, fg__j_escape_digits(j, &at, end, 2, 16));
        else if (c == 'u') fg__j_put_code(j, fg__j_escape_digits(j, &at, end, 4, 16));
        else if (c == 'U') fg__j_put_code(j, fg__j_escape_digits(j, &at, end, 8, 16));
        else if (c >= '0' && c <= '7') {
            at--;
            fg__j_put_code(j, fg__j_escape_digits(j, &at, end, 3, 8));
        } else if (c == 'N') {
            fg__j_fail(j, "named characters are not supported");
        } else if (c != '\n') {
            fg__j_put(j, j->text + at - 2, 2);
        }
    }
    return fg__j_take(j, mark);
}

static void fg__j_lex_string(fg__jinja *j) {
    size_t end = j->at + 1;
    while (end < j->length && j->text[end] != j->text[j->at]) end += j->text[end] == '\\' ? 2 : 1;
    if (end >= j->length) fg__j_fail(j, "a string does not end");
    fg__j_add_token(j, FG__J_T_STRING, 0, fg__j_unescape(j, j->at + 1, end));
    fg__j_advance(j, end + 1);
}

static bool fg__j_is_word_char(char c) {
    return (c >= '0' && c <= '9') || c == '_' || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (unsigned char)c >= 0x80;
}

/* Operators of two characters are one number: the first * 256 + the second. */
static void fg__j_lex_operator(fg__jinja *j, char *open, int *n_open) {
    char c = j->text[j->at], next = fg__j_peek(j, j->at + 1);
    bool twice = ((c == '/' || c == '*') && next == c) || (next == '=' && c && strchr("=!<>", c));
    if (!twice && (!c || !strchr("+-/*%~[](){}<>=.:|,;", c))) fg__j_fail(j, "unexpected char '%c'", c > ' ' ? c : '?');
    if (c == '(' || c == '[' || c == '{') {
        if (*n_open == FG__J_MAX_NESTING) fg__j_fail(j, "brackets are nested too deeply");
        open[(*n_open)++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    }
    if ((c == ')' || c == ']' || c == '}') && (!*n_open || open[--*n_open] != c)) fg__j_fail(j, "unexpected '%c'", c);
    fg__j_add_token(j, FG__J_T_OPERATOR, twice ? c * 256 + next : c, fg__j_value(FG__J_MISSING));
    fg__j_advance(j, j->at + (twice ? 2 : 1));
}

/* The tokens of {% %} or {{ }}, up to its end. */
static void fg__j_lex_tag(fg__jinja *j, bool print) {
    const char *close = print ? "}}" : "%}";
    char open[FG__J_MAX_NESTING];
    int n_open = 0;
    fg__j_add_mark(j, print ? FG__J_T_PRINT : FG__J_T_BLOCK);
    for (;;) {
        char c;
        size_t end = j->at;
        if (!n_open && fg__j_at_close(j, close)) break;
        fg__j_advance(j, fg__j_skip_space(j, j->at));
        if (!n_open && fg__j_at_close(j, close)) break;
        if (j->at == j->length) return;
        c = j->text[j->at];
        if (c >= '0' && c <= '9') fg__j_lex_number(j);
        else if (c == '"' || c == '\'') fg__j_lex_string(j);
        else if (fg__j_is_word_char(c)) {
            for (end = j->at; fg__j_is_word_char(fg__j_peek(j, end)); end++) {}
            fg__j_add_token(j, FG__J_T_NAME, fg__j_name(j, j->text + j->at, end - j->at), fg__j_value(FG__J_MISSING));
            fg__j_advance(j, end);
        } else {
            fg__j_lex_operator(j, open, &n_open);
        }
    }
    fg__j_add_mark(j, print ? FG__J_T_PRINT_END : FG__J_T_BLOCK_END);
    fg__j_lex_close(j, close);
}

/* Text up to the next tag, and the tag. */
static void fg__j_lex_next(fg__jinja *j) {
    size_t tag = j->at, behind;
    char c = 0, sign;
    for (; tag + 1 < j->length; tag++) {
        c = j->text[tag] == '{' ? j->text[tag + 1] : 0;
        if (c == '{' || c == '%' || c == '#') break;
    }
    if (tag + 1 >= j->length) {
        fg__j_lex_text(j, j->length, '+', true);
        return;
    }
    sign = fg__j_peek(j, tag + 2);
    if (sign != '-' && sign != '+') sign = 0;
    behind = tag + (sign ? 3 : 2);
    fg__j_lex_text(j, tag, sign, c == '{');
    if (c == '%' && fg__j_lex_raw(j, behind)) return;
    fg__j_advance(j, behind);
    if (c == '#') fg__j_lex_comment(j);
    else fg__j_lex_tag(j, c == '{');
}

/* The template with line feeds for line ends, without the last one, and with U+FFFD for what is no UTF-8. */
static void fg__j_read_source(fg__jinja *j, const char *text, size_t length) {
    size_t mark = fg__j_mark(j), i, n;
    fg__jval source;
    for (i = 0; i < length; i += n) {
        uint32_t code = fg__j_decode(text + i, length - i, &n);
        if (code == '\r') {
            fg__j_puts(j, "\n");
            if (i + 1 < length && text[i + 1] == '\n') n = 2;
        } else {
            fg__j_put_code(j, code);
        }
    }
    if (j->scratch.length > mark && j->scratch.data[j->scratch.length - 1] == '\n') j->scratch.length--;
    source = fg__j_take(j, mark);
    j->text = source.u.s->data;
    j->length = source.u.s->length;
}

static void fg__j_lex(fg__jinja *j, const char *text, size_t length) {
#define FG__J_TEXT(name, text) text,
    static const char *const words[] = {FG__J_WORDS_TABLE(FG__J_TEXT)};
#undef FG__J_TEXT
    int i;
    if (length > FG__J_MAX_TEMPLATE) fg__j_fail(j, "the template is too long");
    fg__j_read_source(j, text, length);
    for (i = 0; i < FG__J_N_WORDS; i++) fg__j_name(j, words[i], strlen(words[i]));
    j->line = 1;
    j->line_start = true;
    while (j->at < j->length) fg__j_lex_next(j);
    fg__j_add_mark(j, FG__J_T_END);
}

/* ------------------------------------------------------------------------------------------------
   From tokens to code: expressions
   ------------------------------------------------------------------------------------------------ */

static fg__j_code *fg__j_emit(fg__jinja *j, fg__j_op op, int32_t a, int32_t b) {
    fg__j_code *code;
    fg__j_work(j, 1);
    j->code = (fg__j_code *)fg__j_room(j, j->code, &j->code_capacity, j->n_code, sizeof(*j->code));
    code = &j->code[j->n_code++];
    memset(code, 0, sizeof(*code));
    code->op = (uint8_t)op;
    code->a = a;
    code->b = b;
    code->line = j->token->line;
    return code;
}

static int32_t fg__j_here(const fg__jinja *j) { return (int32_t)j->n_code; }

static int32_t fg__j_constant(fg__jinja *j, fg__jval v) {
    j->constants = (fg__jval *)fg__j_room(j, j->constants, &j->constants_capacity, j->n_constants, sizeof(*j->constants));
    j->constants[j->n_constants] = v;
    return (int32_t)j->n_constants++;
}

static void fg__j_emit_constant(fg__jinja *j, fg__jval v) { fg__j_emit(j, FG__J_OP_CONST, fg__j_constant(j, v), 0); }

/* Emits a jump whose distance is not known yet: it goes to the front of a chain that fg__j_land later ends. */
static void fg__j_jump(fg__jinja *j, fg__j_op op, int32_t *chain) {
    fg__j_emit(j, op, *chain, 0);
    *chain = fg__j_here(j) - 1;
}

/* Lets the jumps of a chain end here. */
static void fg__j_land(fg__jinja *j, int32_t chain) {
    while (chain >= 0) {
        int32_t next = j->code[chain].a;
        j->code[chain].a = fg__j_here(j) - chain;
        chain = next;
    }
    j->last_call = -1;
}

static void fg__j_jump_back(fg__jinja *j, fg__j_op op, int32_t to) { fg__j_emit(j, op, to - fg__j_here(j), 0); }

static bool fg__j_is_operator(const fg__jinja *j, int32_t id) {
    return j->token->type == FG__J_T_OPERATOR && j->token->id == id;
}

static bool fg__j_is_word(const fg__jinja *j, int32_t word) {
    return j->token->type == FG__J_T_NAME && j->token->id == word;
}

static bool fg__j_accept(fg__jinja *j, int32_t id) {
    if (!fg__j_is_operator(j, id)) return false;
    j->token++;
    return true;
}

static bool fg__j_accept_word(fg__jinja *j, int32_t word) {
    if (!fg__j_is_word(j, word)) return false;
    j->token++;
    return true;
}

static void fg__j_unexpected(fg__jinja *j, const char *wanted) {
    static const char *const names[] = {"end of template", "text", "{%", "%}", "{{", "}}", "", "a string", "a number", ""};
    const fg__j_token *t = j->token;
    char text[64];
    if (t->type == FG__J_T_NAME) {
        const fg__j_string *s = j->names[t->id].u.s;
        snprintf(text, sizeof(text), "'%.*s'", fg__j_cut(s, 50), s->data);
    } else if (t->type == FG__J_T_OPERATOR) {
        if (t->id < 256) snprintf(text, sizeof(text), "'%c'", (char)t->id);
        else snprintf(text, sizeof(text), "'%c%c'", (char)(t->id / 256), (char)(t->id % 256));
    } else {
        snprintf(text, sizeof(text), "%s", names[t->type]);
    }
    j->line = t->line;
    fg__j_fail(j, "expected %s, got %s", wanted, text);
}

static void fg__j_expect(fg__jinja *j, int32_t id) {
    char wanted[8] = "' '";
    wanted[1] = (char)id;
    if (!fg__j_accept(j, id)) fg__j_unexpected(j, wanted);
}

static void fg__j_expect_type(fg__jinja *j, fg__j_token_type type, const char *wanted) {
    if (j->token->type != (int32_t)type) fg__j_unexpected(j, wanted);
    j->token++;
}

/* Passes a name and returns its number. */
static int32_t fg__j_expect_name(fg__jinja *j) {
    fg__j_expect_type(j, FG__J_T_NAME, "a name");
    return j->token[-1].id;
}

/* Counts the calls that are inside each other here, so that no template can exhaust the C stack. */
static void fg__j_nest(fg__jinja *j, int calls) {
    j->line = j->token->line;
    j->nesting += calls;
    if (j->nesting > FG__J_MAX_NESTING) fg__j_fail(j, "it is nested too deeply");
}

static void fg__j_conditional(fg__jinja *j);
static void fg__j_unary(fg__jinja *j, bool filters);
static int32_t fg__j_tuple(fg__jinja *j, bool conditional, bool parentheses, int32_t end_word);

static int32_t fg__j_add_call(fg__jinja *j, const fg__j_call *call) {
    j->calls = (fg__j_call *)fg__j_room(j, j->calls, &j->calls_capacity, j->n_calls, sizeof(*j->calls));
    j->calls[j->n_calls] = *call;
    return (int32_t)j->n_calls++;
}

static int32_t fg__j_no_arguments(fg__jinja *j) {
    fg__j_call call;
    memset(&call, 0, sizeof(call));
    return fg__j_add_call(j, &call);
}

static bool fg__j_at_keyword(const fg__jinja *j) {
    return j->token->type == FG__J_T_NAME && j->token[1].type == FG__J_T_OPERATOR && j->token[1].id == '=';
}

/* Whether the next argument may follow those before it: first positions, then keywords, then * and **, once each. */
static bool fg__j_in_order(const fg__jinja *j, const fg__j_call *call) {
    if (call->double_star) return false;
    if (fg__j_is_operator(j, '*' * 256 + '*') || fg__j_at_keyword(j)) return true;
    if (fg__j_is_operator(j, '*')) return !call->star;
    return !call->star && !call->n_named;
}

/* Arguments in parentheses, or none when the next token opens no parenthesis. Returns their number in j->calls. */
static int32_t fg__j_arguments(fg__jinja *j) {
    fg__j_call call;
    fg__j_parts names;
    size_t i;
    memset(&call, 0, sizeof(call));
    memset(&names, 0, sizeof(names));
    if (fg__j_accept(j, '(')) {
        while (!fg__j_accept(j, ')')) {
            if (call.n_items + call.n_named + call.star + call.double_star) {
                fg__j_expect(j, ',');
                if (fg__j_accept(j, ')')) break;
            }
            if (!fg__j_in_order(j, &call)) fg__j_fail(j, "invalid syntax for function call expression");
            if (fg__j_accept(j, '*' * 256 + '*')) call.double_star = true;
            else if (fg__j_accept(j, '*')) call.star = true;
            else if (fg__j_at_keyword(j)) {
                fg__j_add(j, &names, j->names[j->token->id]);
                j->token += 2;
                call.n_named++;
            } else {
                call.n_items++;
            }
            fg__j_conditional(j);
        }
    }
    call.first_name = (int32_t)j->n_constants;
    for (i = 0; i < names.n; i++) fg__j_constant(j, names.items[i]);
    return fg__j_add_call(j, &call);
}

/* A filter or test by name, with arguments. */
static void fg__j_emit_function(fg__jinja *j, bool test, const fg__j_string *name, int32_t call) {
    const fg__j_function *f = test ? fg__j_test_named(name) : fg__j_filter_named(name);
    size_t mark = fg__j_mark(j);
    if (f) {
        if (test) fg__j_emit(j, FG__J_OP_TEST, (int32_t)(f - fg__j_tests), call);
        else fg__j_emit(j, FG__J_OP_FILTER, (int32_t)(f - fg__j_filters), call);
        return;
    }
    fg__j_puts(j, test ? "No test named '" : "No filter named '");
    fg__j_put_string(j, name);
    fg__j_puts(j, "' found.");
    fg__j_emit(j, FG__J_OP_UNKNOWN, fg__j_constant(j, fg__j_take(j, mark)), 0);
}

/* A name that may have dots in it. */
static fg__jval fg__j_dotted_name(fg__jinja *j) {
    fg__jval name = j->names[fg__j_expect_name(j)];
    while (fg__j_accept(j, '.')) {
        name = fg__j_join2(j, name.u.s, fg__j_text(j, ".").u.s);
        name = fg__j_join2(j, name.u.s, j->names[fg__j_expect_name(j)].u.s);
    }
    return name;
}

/* A filter behind its bar, and those that follow. */
static void fg__j_filter_chain(fg__jinja *j) {
    do {
        fg__jval name = fg__j_dotted_name(j);
        fg__j_emit_function(j, false, name.u.s, fg__j_arguments(j));
    } while (fg__j_accept(j, '|'));
}

/* One index or slice in brackets. */
static void fg__j_subscript(fg__jinja *j) {
    int i;
    if (!fg__j_is_operator(j, ':')) {
        fg__j_conditional(j);
        if (!fg__j_is_operator(j, ':')) {
            fg__j_emit(j, FG__J_OP_ITEM, 0, 0);
            return;
        }
    } else {
        fg__j_emit_constant(j, fg__j_value(FG__J_NONE));
    }
    for (i = 0; i < 2; i++) {
        bool colon = fg__j_accept(j, ':');
        if (colon && !fg__j_is_operator(j, ':') && !fg__j_is_operator(j, ']')) fg__j_conditional(j);
        else fg__j_emit_constant(j, fg__j_value(FG__J_NONE));
    }
    fg__j_emit(j, FG__J_OP_SLICE, 0, 0);
}

/* object[a, b] means the tuple (a, b). */
static void fg__j_brackets(fg__jinja *j) {
    int32_t n = 1;
    if (fg__j_is_operator(j, ']')) {
        fg__j_emit(j, FG__J_OP_TUPLE, 0, 0);
        fg__j_emit(j, FG__J_OP_ITEM, 0, 0);
    } else {
        fg__j_subscript(j);
        if (fg__j_is_operator(j, ',')) {
            if (j->code[j->n_code - 1].op == FG__J_OP_SLICE) fg__j_fail(j, "a slice cannot be part of a tuple");
            j->n_code--; /* its ITEM: this is one item of several */
        }
        for (; fg__j_accept(j, ','); n++) fg__j_conditional(j);
        if (n > 1) fg__j_emit(j, FG__J_OP_TUPLE, n, 0);
        if (n > 1) fg__j_emit(j, FG__J_OP_ITEM, 0, 0);
    }
    fg__j_expect(j, ']');
}

static void fg__j_emit_call(fg__jinja *j) {
    int32_t call = fg__j_arguments(j);
    fg__j_emit(j, FG__J_OP_CALL, 0, call);
    j->last_call = fg__j_here(j) - 1;
}

/* Attributes, items and calls behind a value. */
static void fg__j_postfix(fg__jinja *j) {
    for (;;) {
        if (fg__j_accept(j, '.')) {
            if (j->token->type == FG__J_T_NUMBER && j->token->value.type == FG__J_INT) {
                fg__j_emit_constant(j, j->token->value);
                fg__j_emit(j, FG__J_OP_ITEM, 0, 0);
            } else if (j->token->type == FG__J_T_NAME) {
                fg__j_emit(j, FG__J_OP_ATTR, fg__j_constant(j, j->names[j->token->id]), 0);
            } else {
                fg__j_unexpected(j, "a name or number");
            }
            j->token++;
        } else if (fg__j_accept(j, '[')) {
            fg__j_brackets(j);
        } else if (fg__j_is_operator(j, '(')) {
            fg__j_emit_call(j);
        } else {
            return;
        }
    }
}

static void fg__j_primary(fg__jinja *j);

/* A test behind `is`. */
static void fg__j_emit_test(fg__jinja *j) {
    bool negated = fg__j_accept_word(j, FG__J_W_NOT);
    fg__jval name = fg__j_dotted_name(j);
    const fg__j_token *t = j->token;
    int32_t call;
    bool operand = t->type == FG__J_T_STRING || t->type == FG__J_T_NUMBER || fg__j_is_operator(j, '[') || fg__j_is_operator(j, '{');
    if (t->type == FG__J_T_NAME && t->id == FG__J_W_IS) fg__j_fail(j, "You cannot chain multiple tests with is");
    operand = operand || (t->type == FG__J_T_NAME && t->id != FG__J_W_ELSE && t->id != FG__J_W_OR && t->id != FG__J_W_AND);
    if (operand) {
        fg__j_primary(j);
        fg__j_postfix(j);
    }
    call = fg__j_arguments(j);
    if (operand) j->calls[call].n_items = 1;
    fg__j_emit_function(j, true, name.u.s, call);
    if (negated) fg__j_emit(j, FG__J_OP_NOT, 0, 0);
}

static void fg__j_list_literal(fg__jinja *j) {
    int32_t n = 0;
    while (!fg__j_accept(j, ']')) {
        if (n) fg__j_expect(j, ',');
        if (n && fg__j_accept(j, ']')) break;
        fg__j_conditional(j);
        n++;
    }
    fg__j_emit(j, FG__J_OP_LIST, n, 0);
}

static void fg__j_dict_literal(fg__jinja *j) {
    int32_t n = 0;
    while (!fg__j_accept(j, '}')) {
        if (n) fg__j_expect(j, ',');
        if (n && fg__j_accept(j, '}')) break;
        fg__j_conditional(j);
        fg__j_expect(j, ':');
        fg__j_conditional(j);
        n++;
    }
    fg__j_emit(j, FG__J_OP_DICT, n, 0);
}

static void fg__j_name_or_word(fg__jinja *j) {
    int32_t id = (j->token++)->id;
    if (id == FG__J_W_TRUE || id == FG__J_W_TRUE2) fg__j_emit_constant(j, fg__j_bool(true));
    else if (id == FG__J_W_FALSE || id == FG__J_W_FALSE2) fg__j_emit_constant(j, fg__j_bool(false));
    else if (id == FG__J_W_NONE || id == FG__J_W_NONE2) fg__j_emit_constant(j, fg__j_value(FG__J_NONE));
    else fg__j_emit(j, FG__J_OP_LOAD, id, 0);
}

static void fg__j_primary(fg__jinja *j) {
    fg__jval text;
    fg__j_nest(j, 1);
    if (j->token->type == FG__J_T_NAME) {
        fg__j_name_or_word(j);
    } else if (j->token->type == FG__J_T_STRING) {
        text = (j->token++)->value;
        for (; j->token->type == FG__J_T_STRING; j->token++) text = fg__j_join2(j, text.u.s, j->token->value.u.s);
        fg__j_emit_constant(j, text);
    } else if (j->token->type == FG__J_T_NUMBER) {
        fg__j_emit_constant(j, (j->token++)->value);
    } else if (fg__j_accept(j, '(')) {
        fg__j_tuple(j, true, true, -1);
        fg__j_expect(j, ')');
    } else if (fg__j_accept(j, '[')) {
        fg__j_list_literal(j);
    } else if (fg__j_accept(j, '{')) {
        fg__j_dict_literal(j);
    } else {
        fg__j_unexpected(j, "an expression");
    }
    j->last_call = -1;
    j->nesting--;
}

/* A value with its sign, what follows it, and filters and tests. A sign binds tighter than a filter. */
static void fg__j_unary(fg__jinja *j, bool filters) {
    fg__j_nest(j, 1);
    if (fg__j_is_operator(j, '-') || fg__j_is_operator(j, '+')) {
        fg__j_op op = (j->token++)->id == '-' ? FG__J_OP_NEG : FG__J_OP_POS;
        fg__j_unary(j, false);
        fg__j_emit(j, op, 0, 0);
    } else {
        fg__j_primary(j);
    }
    fg__j_postfix(j);
    while (filters) {
        if (fg__j_accept(j, '|')) fg__j_filter_chain(j);
        else if (fg__j_accept_word(j, FG__J_W_IS)) fg__j_emit_test(j);
        else if (fg__j_is_operator(j, '(')) fg__j_emit_call(j);
        else break;
    }
    j->nesting--;
}

enum {
    FG__J_LEVEL_OR = 1, FG__J_LEVEL_AND, FG__J_LEVEL_NOT, FG__J_LEVEL_COMPARE, FG__J_LEVEL_ADD, FG__J_LEVEL_CONCAT,
    FG__J_LEVEL_MUL, FG__J_LEVEL_POW
};

/* Level of the binary operator at the next token, or 0; which one of its level. */
static int fg__j_operator_level(const fg__jinja *j, int *which) {
    static const struct { int id, level, which; } operators[] = {
        {'=' * 256 + '=', FG__J_LEVEL_COMPARE, FG__J_EQ}, {'!' * 256 + '=', FG__J_LEVEL_COMPARE, FG__J_NE},
        {'<', FG__J_LEVEL_COMPARE, FG__J_LT},             {'<' * 256 + '=', FG__J_LEVEL_COMPARE, FG__J_LE},
        {'>', FG__J_LEVEL_COMPARE, FG__J_GT},             {'>' * 256 + '=', FG__J_LEVEL_COMPARE, FG__J_GE},
        {'+', FG__J_LEVEL_ADD, FG__J_ADD},                {'-', FG__J_LEVEL_ADD, FG__J_SUB},
        {'~', FG__J_LEVEL_CONCAT, 0},                     {'*', FG__J_LEVEL_MUL, FG__J_MUL},
        {'/', FG__J_LEVEL_MUL, FG__J_DIV},                {'/' * 256 + '/', FG__J_LEVEL_MUL, FG__J_FLOORDIV},
        {'%', FG__J_LEVEL_MUL, FG__J_MOD},                {'*' * 256 + '*', FG__J_LEVEL_POW, FG__J_POW}};
    const fg__j_token *t = j->token;
    int i;
    *which = 0;
    if (t->type == FG__J_T_NAME) {
        if (t->id == FG__J_W_OR) return FG__J_LEVEL_OR;
        if (t->id == FG__J_W_AND) return FG__J_LEVEL_AND;
        *which = t->id == FG__J_W_IN ? FG__J_IN : FG__J_NOT_IN;
        if (t->id == FG__J_W_IN) return FG__J_LEVEL_COMPARE;
        if (t->id == FG__J_W_NOT && t[1].type == FG__J_T_NAME && t[1].id == FG__J_W_IN) return FG__J_LEVEL_COMPARE;
    }
    for (i = 0; t->type == FG__J_T_OPERATOR && i < FG__COUNT(operators); i++) {
        if (operators[i].id != t->id) continue;
        *which = operators[i].which;
        return operators[i].level;
    }
    return 0;
}

static void fg__j_operators(fg__jinja *j, int lowest);

/* a < b < c: each middle operand is evaluated once, and what follows a false comparison not at all. */
static void fg__j_comparisons(fg__jinja *j) {
    int32_t chain = -1;
    int which, next;
    while (fg__j_operator_level(j, &which) == FG__J_LEVEL_COMPARE) {
        j->token += which == FG__J_NOT_IN ? 2 : 1;
        fg__j_operators(j, FG__J_LEVEL_ADD);
        if (fg__j_operator_level(j, &next) == FG__J_LEVEL_COMPARE) fg__j_jump(j, FG__J_OP_CHAIN, &chain);
        else fg__j_emit(j, FG__J_OP_COMPARE, 0, 0);
        j->code[j->n_code - 1].flag = (uint8_t)which;
    }
    fg__j_land(j, chain);
}

static void fg__j_concatenation(fg__jinja *j) {
    int32_t n = 1;
    for (; fg__j_accept(j, '~'); n++) fg__j_operators(j, FG__J_LEVEL_MUL);
    fg__j_emit(j, FG__J_OP_CONCAT, n, 0);
}

/* An expression of operators that bind at least as tightly as level `lowest`. All are left-associative, ** too. */
static void fg__j_operators(fg__jinja *j, int lowest) {
    int level, which;
    fg__j_nest(j, 1);
    if (lowest <= FG__J_LEVEL_NOT && fg__j_accept_word(j, FG__J_W_NOT)) {
        fg__j_operators(j, FG__J_LEVEL_NOT);
        fg__j_emit(j, FG__J_OP_NOT, 0, 0);
    } else {
        fg__j_unary(j, true);
    }
    while ((level = fg__j_operator_level(j, &which)) >= lowest) {
        if (level == FG__J_LEVEL_COMPARE) {
            fg__j_comparisons(j);
        } else if (level == FG__J_LEVEL_CONCAT) {
            fg__j_concatenation(j);
        } else {
            int32_t chain = -1;
            j->token++;
            if (level <= FG__J_LEVEL_AND) fg__j_jump(j, level == FG__J_LEVEL_AND ? FG__J_OP_AND : FG__J_OP_OR, &chain);
            fg__j_operators(j, level + 1);
            if (level <= FG__J_LEVEL_AND) fg__j_land(j, chain);
            else fg__j_emit(j, FG__J_OP_BINARY, 0, 0)->flag = (uint8_t)which;
        }
    }
    j->nesting--;
}

/* a if b else c. The code of a comes first, behind a jump to that of b, which is put in when the `if` is seen. */
static void fg__j_conditional(fg__jinja *j) {
    int32_t begin = fg__j_here(j), end;
    fg__j_nest(j, 1);
    fg__j_operators(j, FG__J_LEVEL_OR);
    while (fg__j_accept_word(j, FG__J_W_IF)) {
        end = -1;
        fg__j_work(j, j->n_code - (size_t)begin);
        fg__j_emit(j, FG__J_OP_JUMP, 0, 0);
        memmove(j->code + begin + 1, j->code + begin, (j->n_code - 1 - (size_t)begin) * sizeof(*j->code));
        memset(&j->code[begin], 0, sizeof(*j->code));
        j->code[begin].op = FG__J_OP_JUMP;
        j->code[begin].a = -1;
        fg__j_jump(j, FG__J_OP_JUMP, &end);
        fg__j_land(j, begin);
        fg__j_operators(j, FG__J_LEVEL_OR);
        fg__j_jump_back(j, FG__J_OP_JUMP_TRUE, begin + 1);
        if (fg__j_accept_word(j, FG__J_W_ELSE)) fg__j_conditional(j);
        else fg__j_emit(j, FG__J_OP_NO_ELSE, 0, 0);
        fg__j_land(j, end);
    }
    j->nesting--;
}

static bool fg__j_at_tuple_end(const fg__jinja *j, int32_t end_word) {
    return j->token->type == FG__J_T_PRINT_END || j->token->type == FG__J_T_BLOCK_END || fg__j_is_operator(j, ')') ||
           (end_word >= 0 && fg__j_is_word(j, end_word));
}

/* Expressions separated by commas: one value, or a tuple. Returns how many. */
static int32_t fg__j_tuple(fg__jinja *j, bool conditional, bool parentheses, int32_t end_word) {
    int32_t n = 0;
    bool comma = false;
    while (!fg__j_at_tuple_end(j, end_word)) {
        if (conditional) fg__j_conditional(j);
        else fg__j_operators(j, FG__J_LEVEL_OR);
        n++;
        if (!fg__j_accept(j, ',')) break;
        comma = true;
    }
    if (!n && !parentheses) fg__j_unexpected(j, "an expression");
    if (comma || !n) fg__j_emit(j, FG__J_OP_TUPLE, n, 0);
    return n;
}

/* ------------------------------------------------------------------------------------------------
   From tokens to code: statements
   ------------------------------------------------------------------------------------------------ */

/* Opens a scope: a set of variables of its own. */
static int32_t fg__j_open_scope(fg__jinja *j, int *ifs) {
    fg__j_scope *scope;
    j->scopes = (fg__j_scope *)fg__j_room(j, j->scopes, &j->scopes_capacity, j->n_scopes, sizeof(*j->scopes));
    scope = &j->scopes[j->n_scopes];
    memset(scope, 0, sizeof(*scope));
    scope->next = -1;
    scope->function = j->function;
    scope->begin = fg__j_here(j);
    fg__j_emit(j, FG__J_OP_ENTER, (int32_t)j->n_scopes, 0);
    *ifs = j->ifs;
    j->ifs = 0;
    return (int32_t)j->n_scopes++;
}

static void fg__j_close_scope(fg__jinja *j, int32_t scope, int ifs) {
    j->scopes[scope].end = fg__j_here(j);
    fg__j_emit(j, FG__J_OP_LEAVE, scope, 0);
    j->ifs = ifs;
}

static int32_t fg__j_block(fg__jinja *j, int32_t end1, int32_t end2, int32_t end3);

/* The body of a tag: its end, then a block. */
static int32_t fg__j_body(fg__jinja *j, int32_t end1, int32_t end2, int32_t end3) {
    fg__j_accept(j, ':');
    fg__j_expect_type(j, FG__J_T_BLOCK_END, "%}");
    return fg__j_block(j, end1, end2, end3);
}

static void fg__j_emit_store(fg__jinja *j, int32_t name, bool param) {
    if (name >= FG__J_W_TRUE && name <= FG__J_W_NONE2) fg__j_fail(j, "a constant cannot be assigned to");
    if (name == FG__J_W_LOOP && j->fors && !param) fg__j_fail(j, "Can't assign to special loop variable in for-loop target");
    fg__j_emit(j, FG__J_OP_STORE, name, 0)->flag =
        (uint8_t)(param ? FG__J_STORE_PARAM : j->ifs ? FG__J_STORE_SOMETIMES : FG__J_STORE_ALWAYS);
}

static void fg__j_targets(fg__jinja *j, bool param, bool attributes, bool parentheses, int32_t end_word);

/* One name, attribute of a namespace, or tuple of them in parentheses. */
static void fg__j_target(fg__jinja *j, bool param, bool attributes) {
    int32_t name;
    fg__j_nest(j, 1);
    if (fg__j_accept(j, '(')) {
        fg__j_targets(j, param, false, true, -1);
        fg__j_expect(j, ')');
    } else {
        name = fg__j_expect_name(j);
        if (attributes && fg__j_accept(j, '.')) {
            fg__j_emit(j, FG__J_OP_LOAD, name, 0);
            fg__j_emit(j, FG__J_OP_SET_ATTR, fg__j_constant(j, j->names[fg__j_expect_name(j)]), 0);
        } else {
            fg__j_emit_store(j, name, param);
        }
    }
    j->nesting--;
}

/* Stores the value on the stack into targets separated by commas: one, or as many as the value has items. */
static void fg__j_targets(fg__jinja *j, bool param, bool attributes, bool parentheses, int32_t end_word) {
    int32_t unpack = fg__j_here(j), n = 0;
    bool comma = false;
    fg__j_emit(j, FG__J_OP_UNPACK, 0, 0);
    while (!fg__j_at_tuple_end(j, end_word)) {
        fg__j_target(j, param, attributes);
        n++;
        if (!fg__j_accept(j, ',')) break;
        comma = true;
    }
    if (!n && !parentheses) fg__j_unexpected(j, "a name");
    j->code[unpack].a = n;
    if (comma || !n) return;
    j->n_code--; /* a single target takes the value as it is */
    memmove(j->code + unpack, j->code + unpack + 1, (j->n_code - (size_t)unpack) * sizeof(*j->code));
}

/* Passes targets whose code comes later: the tokens are read again then. */
static const fg__j_token *fg__j_skip_targets(fg__jinja *j, bool attributes, int32_t end_word) {
    const fg__j_token *begin = j->token;
    size_t n_code = j->n_code;
    fg__j_targets(j, true, attributes, false, end_word);
    j->n_code = n_code;
    return begin;
}

/* Emits the code of targets passed before. */
static void fg__j_emit_targets(fg__jinja *j, const fg__j_token *begin, bool param, bool attributes, int32_t end_word) {
    const fg__j_token *now = j->token;
    j->token = begin;
    fg__j_targets(j, param, attributes, false, end_word);
    j->token = now;
}

/* The body of set and filter blocks: leaves what it puts out, filtered, on the stack. The filters come before the body in
   the text, and so in the code, but run after it. */
static void fg__j_captured_body(fg__jinja *j, bool filters, int32_t end_word) {
    int32_t scope, filter, end = -1, body = -1;
    int ifs;
    fg__j_emit(j, FG__J_OP_CAPTURE, 0, 0);
    scope = fg__j_open_scope(j, &ifs);
    fg__j_jump(j, FG__J_OP_JUMP, &body);
    filter = fg__j_here(j);
    if (filters) fg__j_filter_chain(j);
    fg__j_jump(j, FG__J_OP_JUMP, &end);
    fg__j_land(j, body);
    if (j->loop) j->loop->captures++;
    fg__j_body(j, end_word, -1, -1);
    if (j->loop) j->loop->captures--;
    fg__j_emit(j, FG__J_OP_CAPTURED, 0, 0);
    fg__j_jump_back(j, FG__J_OP_JUMP, filter);
    fg__j_land(j, end);
    fg__j_close_scope(j, scope, ifs);
}

static void fg__j_set(fg__jinja *j) {
    const fg__j_token *targets = fg__j_skip_targets(j, true, -1);
    if (fg__j_accept(j, '=')) fg__j_tuple(j, true, false, -1);
    else fg__j_captured_body(j, fg__j_accept(j, '|'), FG__J_W_ENDSET);
    fg__j_emit_targets(j, targets, false, true, -1);
}

static void fg__j_filter_block(fg__jinja *j) {
    fg__j_captured_body(j, true, FG__J_W_ENDFILTER);
    fg__j_emit(j, FG__J_OP_OUTPUT, 0, 0);
}

static void fg__j_if(fg__jinja *j) {
    int32_t end = -1, next, word = FG__J_W_ELIF;
    while (word == FG__J_W_ELIF) {
        next = -1;
        fg__j_tuple(j, false, false, -1);
        fg__j_jump(j, FG__J_OP_JUMP_FALSE, &next);
        j->ifs++;
        word = fg__j_body(j, FG__J_W_ELIF, FG__J_W_ELSE, FG__J_W_ENDIF);
        if (word != FG__J_W_ENDIF) fg__j_jump(j, FG__J_OP_JUMP, &end);
        fg__j_land(j, next);
        if (word == FG__J_W_ELSE) fg__j_body(j, FG__J_W_ENDIF, -1, -1);
        j->ifs--;
    }
    fg__j_land(j, end);
}

/* Whether the code from `begin` on uses a name. */
static bool fg__j_uses(const fg__jinja *j, int32_t begin, int32_t name) {
    size_t i;
    for (i = (size_t)begin; i < j->n_code; i++)
        if (j->code[i].op == FG__J_OP_LOAD && j->code[i].a == name) return true;
    return false;
}

/* for: NEXT yields the items one by one; with a test, KEEP decides about each. Jinja tests lazily, but loop.length and its
   like would then have to look ahead: where the body uses `loop`, all items are tested before. */
static void fg__j_for_loop(fg__jinja *j) {
    const fg__j_token *targets, *t;
    int32_t word, begin, next, keep = -1, test, body, other;
    int ifs;
    fg__j_for loop;
    j->fors++;
    targets = fg__j_skip_targets(j, false, FG__J_W_IN);
    for (t = targets; t < j->token; t++)
        if (t->type == FG__J_T_NAME && t->id == FG__J_W_LOOP) fg__j_fail(j, "a loop's target cannot be named loop");
    if (!fg__j_accept_word(j, FG__J_W_IN)) fg__j_unexpected(j, "'in'");
    fg__j_tuple(j, false, false, FG__J_W_RECURSIVE);
    begin = fg__j_here(j);
    fg__j_emit(j, FG__J_OP_FOR, 0, 0);
    memset(&loop, 0, sizeof(loop));
    loop.outer = j->loop;
    loop.breaks = -1;
    loop.next = next = fg__j_here(j);
    fg__j_emit(j, FG__J_OP_NEXT, -1, 0);
    if (fg__j_accept_word(j, FG__J_W_IF)) {
        test = fg__j_open_scope(j, &ifs);
        fg__j_emit_targets(j, targets, true, false, FG__J_W_IN);
        fg__j_conditional(j);
        fg__j_close_scope(j, test, ifs);
        keep = fg__j_here(j);
        fg__j_emit(j, FG__J_OP_KEEP, 0, next - keep)->flag = j->code[j->scopes[test].begin + 1].op == FG__J_OP_UNPACK;
    }
    if (fg__j_is_word(j, FG__J_W_RECURSIVE)) fg__j_fail(j, "recursive loops are not supported");
    j->code[next].b = fg__j_here(j) - next;
    body = fg__j_open_scope(j, &ifs);
    j->scopes[body].next = next;
    fg__j_emit_targets(j, targets, true, false, FG__J_W_IN);
    j->loop = &loop;
    word = fg__j_body(j, FG__J_W_ENDFOR, FG__J_W_ELSE, -1);
    j->loop = loop.outer;
    j->code[begin].flag = keep >= 0 && fg__j_uses(j, j->scopes[body].begin, FG__J_W_LOOP);
    fg__j_jump_back(j, FG__J_OP_AGAIN, next);
    fg__j_land(j, next);
    fg__j_land(j, loop.breaks);
    fg__j_close_scope(j, body, ifs);
    other = fg__j_here(j);
    fg__j_emit(j, FG__J_OP_DONE, -1, 0);
    if (word == FG__J_W_ELSE) {
        int32_t scope = fg__j_open_scope(j, &ifs);
        fg__j_body(j, FG__J_W_ENDFOR, -1, -1);
        fg__j_close_scope(j, scope, ifs);
    }
    fg__j_land(j, other);
    j->fors--;
}

/* break and continue: what the loop's body captures is dropped. */
static void fg__j_leave_loop(fg__jinja *j, bool again) {
    int i;
    if (!j->loop) fg__j_fail(j, "'%s' outside loop", again ? "continue" : "break");
    for (i = 0; i < j->loop->captures; i++) fg__j_emit(j, FG__J_OP_DISCARD, 0, 0);
    if (again) fg__j_jump_back(j, FG__J_OP_JUMP, j->loop->next);
    else fg__j_jump(j, FG__J_OP_JUMP, &j->loop->breaks);
}

static void fg__j_with(fg__jinja *j) {
    fg__j_parts targets; /* where they begin */
    int32_t scope;
    size_t i;
    int ifs;
    memset(&targets, 0, sizeof(targets));
    while (j->token->type != FG__J_T_BLOCK_END) { /* all values are evaluated outside */
        if (targets.n) fg__j_expect(j, ',');
        fg__j_add(j, &targets, fg__j_int(fg__j_skip_targets(j, false, -1) - j->tokens));
        fg__j_expect(j, '=');
        fg__j_conditional(j);
    }
    fg__j_emit(j, FG__J_OP_TUPLE, (int32_t)targets.n, 0);
    scope = fg__j_open_scope(j, &ifs);
    fg__j_emit(j, FG__J_OP_UNPACK, (int32_t)targets.n, 0);
    for (i = 0; i < targets.n; i++) fg__j_emit_targets(j, j->tokens + targets.items[i].u.i, true, false, -1);
    fg__j_body(j, FG__J_W_ENDWITH, -1, -1);
    fg__j_close_scope(j, scope, ifs);
}

static int32_t fg__j_add_function(fg__jinja *j) {
    fg__j_code_function *f;
    j->functions = (fg__j_code_function *)fg__j_room(j, j->functions, &j->functions_capacity, j->n_functions,
                                                     sizeof(*j->functions));
    f = &j->functions[j->n_functions];
    memset(f, 0, sizeof(*f));
    f->level = j->n_functions ? j->functions[j->function].level + 1 : 0;
    f->caller = f->kwargs = f->varargs = -1;
    return (int32_t)j->n_functions++;
}

/* Parameters in parentheses, and the code of their defaults. */
static void fg__j_signature(fg__jinja *j) {
    fg__j_code_function *f;
    int32_t first = (int32_t)j->n_params, n = 0, n_defaults = 0, i;
    fg__j_expect(j, '(');
    for (; !fg__j_accept(j, ')'); n++) {
        int32_t name, given = -1;
        if (n) fg__j_expect(j, ',');
        name = fg__j_expect_name(j);
        fg__j_work(j, (size_t)n);
        for (i = 0; i < n; i++)
            if (j->params[first + i] == name) fg__j_fail(j, "two parameters have the same name");
        j->params = (int32_t *)fg__j_room(j, j->params, &j->params_capacity, j->n_params, sizeof(*j->params));
        j->params[j->n_params++] = name;
        if (fg__j_accept(j, '=')) {
            n_defaults++;
            fg__j_jump(j, FG__J_OP_DEFAULT, &given);
            j->code[j->n_code - 1].b = n;
            fg__j_conditional(j);
            fg__j_emit_store(j, name, true);
            fg__j_land(j, given);
        } else if (n_defaults) {
            fg__j_fail(j, "non-default argument follows default argument");
        }
    }
    f = &j->functions[j->function];
    f->first_param = first;
    f->n_params = n;
    f->n_defaults = n_defaults;
}

static bool fg__j_has_param(const fg__jinja *j, const fg__j_code_function *f, int32_t name) {
    int32_t i;
    for (i = 0; i < f->n_params; i++)
        if (j->params[f->first_param + i] == name) return true;
    return false;
}

/* The code of a function: parameters (from the token `signature` on, if not NULL) and a body. caller, kwargs and varargs
   are further parameters where the body uses them. */
static void fg__j_function_code(fg__jinja *j, int32_t function, const fg__j_token *signature, int32_t end_word) {
    int32_t over = -1, outer = j->function, scope;
    fg__j_for *loop = j->loop;
    fg__j_code_function *f;
    int ifs, slot;
    fg__j_jump(j, FG__J_OP_JUMP, &over);
    j->function = function;
    j->loop = NULL;
    j->functions[function].entry = fg__j_here(j);
    scope = fg__j_open_scope(j, &ifs);
    if (signature) {
        const fg__j_token *now = j->token;
        j->token = signature;
        fg__j_signature(j);
        if (now > j->token) j->token = now; /* of a call block: the call lies between */
    }
    fg__j_body(j, end_word, -1, -1);
    fg__j_close_scope(j, scope, ifs);
    j->code[j->n_code - 1].op = FG__J_OP_RETURN;
    f = &j->functions[function];
    f->scope = scope;
    slot = f->n_params;
    if (!fg__j_has_param(j, f, FG__J_W_CALLER) && fg__j_uses(j, f->entry, FG__J_W_CALLER)) f->caller = slot++;
    if (!fg__j_has_param(j, f, FG__J_W_KWARGS) && fg__j_uses(j, f->entry, FG__J_W_KWARGS)) f->kwargs = slot++;
    if (!fg__j_has_param(j, f, FG__J_W_VARARGS) && fg__j_uses(j, f->entry, FG__J_W_VARARGS)) f->varargs = slot++;
    j->function = outer;
    j->loop = loop;
    fg__j_land(j, over);
}

static void fg__j_macro_block(fg__jinja *j) {
    int32_t name = fg__j_expect_name(j), function = fg__j_add_function(j);
    fg__j_emit(j, FG__J_OP_MACRO, function, fg__j_constant(j, j->names[name]));
    fg__j_emit_store(j, name, false);
    fg__j_function_code(j, function, j->token, FG__J_W_ENDMACRO);
}

/* {% call(a, b) f(x) %} calls f with the block as its argument `caller`. */
static void fg__j_call_block(fg__jinja *j) {
    const fg__j_token *signature = j->token;
    int32_t function = fg__j_add_function(j), outer = j->function, caller;
    size_t n_code = j->n_code, n_params = j->n_params;
    bool has_signature = fg__j_is_operator(j, '(');
    fg__j_code call;
    if (has_signature) { /* to be read again where the function's code is */
        j->function = function;
        fg__j_signature(j);
        j->function = outer;
        j->n_code = n_code;
        j->n_params = n_params;
    }
    j->last_call = -1;
    fg__j_conditional(j);
    caller = j->last_call;
    if (caller < 0 || caller != fg__j_here(j) - 1) fg__j_fail(j, "expected call");
    call = j->code[--j->n_code];
    fg__j_emit(j, FG__J_OP_MACRO, function, fg__j_constant(j, fg__j_text(j, "caller")));
    fg__j_emit(j, FG__J_OP_CALL, 0, call.b)->flag = 1;
    fg__j_emit(j, FG__J_OP_OUTPUT, 0, 0);
    fg__j_function_code(j, function, has_signature ? signature : NULL, FG__J_W_ENDCALL);
}

/* {% generation %} marks what a model is trained to say: the block is put out as it is. */
static void fg__j_generation(fg__jinja *j) {
    int32_t function = fg__j_add_function(j);
    fg__j_emit(j, FG__J_OP_MACRO, function, fg__j_constant(j, fg__j_text(j, "generation")));
    fg__j_emit(j, FG__J_OP_CALL, 0, fg__j_no_arguments(j));
    fg__j_emit(j, FG__J_OP_OUTPUT, 0, 0);
    fg__j_function_code(j, function, NULL, FG__J_W_ENDGENERATION);
}

static void fg__j_print(fg__jinja *j) {
    int32_t n = 0;
    for (; j->token->type != FG__J_T_BLOCK_END; n++) {
        if (n) fg__j_expect(j, ',');
        fg__j_conditional(j);
        fg__j_emit(j, FG__J_OP_OUTPUT, 0, 0);
    }
}

/* A statement behind its name. */
static void fg__j_statement(fg__jinja *j, int32_t name) {
    const fg__j_string *s = j->names[name].u.s;
    switch (name) {
    case FG__J_W_FOR: fg__j_for_loop(j); break;
    case FG__J_W_IF: fg__j_if(j); break;
    case FG__J_W_SET: fg__j_set(j); break;
    case FG__J_W_MACRO: fg__j_macro_block(j); break;
    case FG__J_W_CALL: fg__j_call_block(j); break;
    case FG__J_W_FILTER: fg__j_filter_block(j); break;
    case FG__J_W_WITH: fg__j_with(j); break;
    case FG__J_W_GENERATION: fg__j_generation(j); break;
    case FG__J_W_PRINT: fg__j_print(j); break;
    case FG__J_W_BREAK: fg__j_leave_loop(j, false); break;
    case FG__J_W_CONTINUE: fg__j_leave_loop(j, true); break;
    default:
        if (name >= FG__J_W_BLOCK && name <= FG__J_W_AUTOESCAPE)
            fg__j_fail(j, "the tag '%.*s' is not supported", (int)s->length, s->data);
        fg__j_fail(j, "unknown tag '%.*s'", fg__j_cut(s, 100), s->data);
    }
}

enum { FG__J_BLOCK_CALLS = 4 }; /* of C, to get from one block to the next inside it */

/* A block of statements up to one of three words (or -1). Passes that word and returns it; with no words, -1 at the end of
   the template. */
static int32_t fg__j_block(fg__jinja *j, int32_t end1, int32_t end2, int32_t end3) {
    fg__j_nest(j, FG__J_BLOCK_CALLS);
    for (;;) {
        int32_t name;
        j->line = j->token->line;
        if (j->token->type == FG__J_T_END) {
            if (end1 >= 0) fg__j_fail(j, "Unexpected end of template: '%.12s' is missing", j->names[end1].u.s->data);
            break;
        }
        if (j->token->type == FG__J_T_DATA) {
            fg__j_emit(j, FG__J_OP_TEXT, fg__j_constant(j, j->token->value), 0);
            j->token++;
            continue;
        }
        if ((j->token++)->type == FG__J_T_PRINT) {
            fg__j_tuple(j, true, false, -1);
            fg__j_emit(j, FG__J_OP_OUTPUT, 0, 0);
            fg__j_expect_type(j, FG__J_T_PRINT_END, "}}");
            continue;
        }
        name = fg__j_expect_name(j);
        if (name == end1 || name == end2 || name == end3) {
            j->nesting -= FG__J_BLOCK_CALLS;
            return name;
        }
        fg__j_statement(j, name);
        fg__j_expect_type(j, FG__J_T_BLOCK_END, "%}");
    }
    j->nesting -= FG__J_BLOCK_CALLS;
    return -1;
}

static void fg__j_compile(fg__jinja *j) {
    int32_t scope;
    int ifs;
    j->token = j->tokens;
    fg__j_add_function(j);
    scope = fg__j_open_scope(j, &ifs);
    fg__j_block(j, -1, -1, -1);
    fg__j_close_scope(j, scope, ifs);
    j->code[j->n_code - 1].op = FG__J_OP_RETURN;
}

/* ------------------------------------------------------------------------------------------------
   Binding names to slots

   Jinja decides at compile time what a name means. A scope looks through its own code, not into the scopes inside it, in
   order: a name first read means a variable outside, or one of those given to the template; a name first assigned to is a
   variable of this scope, which begins as a copy of the one outside, or undefined (or, if only some branches of an `if`
   assign to it, as what is given to the template).
   ------------------------------------------------------------------------------------------------ */

static void fg__j_declare(fg__jinja *j, int32_t scope, int32_t name, fg__j_load load) {
    fg__j_code_function *f = &j->functions[j->scopes[scope].function];
    fg__j_variable *v;
    j->variables =
        (fg__j_variable *)fg__j_room(j, j->variables, &j->variables_capacity, j->n_variables, sizeof(*j->variables));
    v = &j->variables[j->n_variables];
    memset(v, 0, sizeof(*v));
    v->name = name;
    v->scope = scope;
    v->load = load;
    v->slot = f->n_slots++;
    v->shadowed = j->name_variables[name];
    if (load == FG__J_LOAD_ALIAS) {
        const fg__j_variable *outer = &j->variables[v->shadowed];
        v->from_slot = outer->slot;
        v->from_frames = f->level - j->functions[j->scopes[outer->scope].function].level;
    }
    j->name_variables[name] = (int32_t)j->n_variables++;
    j->scopes[scope].n_variables++;
}

/* The variables that do not come from the scope's code. */
static void fg__j_declare_params(fg__jinja *j, int32_t scope) {
    const fg__j_code_function f = j->functions[j->scopes[scope].function];
    int32_t i, next = j->scopes[scope].next;
    if (f.scope == scope) {
        for (i = 0; i < f.n_params; i++) fg__j_declare(j, scope, j->params[f.first_param + i], FG__J_LOAD_PARAM);
        if (f.caller >= 0) fg__j_declare(j, scope, FG__J_W_CALLER, FG__J_LOAD_PARAM);
        if (f.kwargs >= 0) fg__j_declare(j, scope, FG__J_W_KWARGS, FG__J_LOAD_PARAM);
        if (f.varargs >= 0) fg__j_declare(j, scope, FG__J_W_VARARGS, FG__J_LOAD_PARAM);
    }
    if (next < 0) return;
    fg__j_declare(j, scope, FG__J_W_LOOP, FG__J_LOAD_PARAM);
    j->code[next - 1].a = j->variables[j->n_variables - 1].slot; /* FOR's */
}

/* Declares what the instruction at `at` needs. */
static void fg__j_declare_for(fg__jinja *j, int32_t scope, const fg__j_code *code) {
    int32_t found = code->op == FG__J_OP_LOAD || code->op == FG__J_OP_STORE ? j->name_variables[code->a] : 0;
    if (code->op == FG__J_OP_LOAD && found < 0) fg__j_declare(j, scope, code->a, FG__J_LOAD_RESOLVE);
    if (code->op != FG__J_OP_STORE || (found >= 0 && j->variables[found].scope == scope)) return;
    if (code->flag == FG__J_STORE_PARAM) fg__j_declare(j, scope, code->a, FG__J_LOAD_PARAM);
    else if (found >= 0) fg__j_declare(j, scope, code->a, FG__J_LOAD_ALIAS);
    else fg__j_declare(j, scope, code->a, code->flag == FG__J_STORE_ALWAYS ? FG__J_LOAD_UNDEFINED : FG__J_LOAD_RESOLVE);
}

/* Binds the names in a scope, and then those in the scopes inside it. */
static void fg__j_resolve(fg__jinja *j, int32_t scope) {
    int32_t begin = j->scopes[scope].begin, end = j->scopes[scope].end, at, i;
    int32_t level = j->functions[j->scopes[scope].function].level;
    j->scopes[scope].first_variable = (int32_t)j->n_variables;
    fg__j_declare_params(j, scope);
    for (at = begin + 1; at < end; at++) {
        if (j->code[at].op == FG__J_OP_ENTER) at = j->scopes[j->code[at].a].end;
        else fg__j_declare_for(j, scope, &j->code[at]);
    }
    for (at = begin + 1; at < end; at++) {
        fg__j_code *code = &j->code[at];
        if (code->op == FG__J_OP_ENTER) {
            fg__j_resolve(j, code->a);
            at = j->scopes[code->a].end;
        } else if (code->op == FG__J_OP_LOAD || code->op == FG__J_OP_STORE) {
            const fg__j_variable *v = &j->variables[j->name_variables[code->a]];
            code->b = v->slot;
            code->n = (uint16_t)(level - j->functions[j->scopes[v->scope].function].level);
        }
    }
    for (i = j->scopes[scope].n_variables - 1; i >= 0; i--) {
        const fg__j_variable *v = &j->variables[j->scopes[scope].first_variable + i];
        j->name_variables[v->name] = v->shadowed;
    }
    fg__j_work(j, (size_t)(end - begin));
}

static void fg__j_bind_names(fg__jinja *j) {
    size_t i;
    j->name_variables = (int32_t *)fg__j_alloc(j, j->n_names, sizeof(*j->name_variables));
    j->globals = fg__j_array(j, j->n_names);
    for (i = 0; i < j->n_names; i++) {
        j->name_variables[i] = -1;
        j->globals[i] = fg__j_value(FG__J_MISSING);
    }
    fg__j_resolve(j, 0);
}

/* ------------------------------------------------------------------------------------------------
   The machine
   ------------------------------------------------------------------------------------------------ */

static void fg__j_push(fg__jinja *j, fg__jval v) {
    if (j->n_stack == j->stack_capacity)
        j->stack = (fg__jval *)fg__j_room(j, j->stack, &j->stack_capacity, j->n_stack, sizeof(*j->stack));
    j->stack[j->n_stack++] = v;
}

static fg__jval fg__j_pop(fg__jinja *j) { return j->stack[--j->n_stack]; }

static void fg__j_write(fg__jinja *j, const char *data, size_t length) {
    if (j->out->length - j->out_begin + length > FG__J_MAX_TEXT) fg__j_fail(j, "the output is too long");
    fg__j_work(j, length / 16);
    fg__text_add(j->out, data, length);
    if (j->out->failed) fg__j_leave(j, FG_ERROR_OUT_OF_MEMORY);
}

static void fg__j_output(fg__jinja *j, fg__jval v) {
    size_t mark = fg__j_mark(j);
    if (v.type == FG__J_STRING) {
        fg__j_write(j, v.u.s->data, v.u.s->length);
        return;
    }
    fg__j_put_str(j, v);
    if (j->scratch.length > mark) fg__j_write(j, j->scratch.data + mark, j->scratch.length - mark);
    j->scratch.length = mark;
}

static void fg__j_capture(fg__jinja *j) {
    j->captures = (size_t *)fg__j_room(j, j->captures, &j->captures_capacity, j->n_captures, sizeof(*j->captures));
    j->captures[j->n_captures++] = j->out->length;
}

static fg__jval fg__j_captured(fg__jinja *j) {
    size_t begin = j->captures[--j->n_captures];
    fg__jval v = fg__j_copy(j, j->out->data ? j->out->data + begin : "", j->out->length - begin);
    j->out->length = begin;
    return v;
}

static fg__jval fg__j_from_json(fg__jinja *j, const fg__json *node) {
    fg__jval *items;
    uint32_t i;
    switch (node->type) {
    case FG__JSON_BOOL: return fg__j_bool(node->value.boolean);
    case FG__JSON_INTEGER: return fg__j_int(node->value.integer);
    case FG__JSON_NUMBER: return fg__j_float(node->value.number);
    case FG__JSON_STRING: return fg__j_span(j, node->value.string, node->count);
    case FG__JSON_ARRAY:
        items = fg__j_array(j, node->count);
        for (i = 0; i < node->count; i++) items[i] = fg__j_from_json(j, fg__json_item(node, i));
        return fg__j_list_of(j, FG__J_LIST, items, node->count);
    case FG__JSON_OBJECT:
        items = fg__j_array(j, 2 * (size_t)node->count);
        for (i = 0; i < 2 * node->count; i++) items[i] = fg__j_from_json(j, &node->value.items[i]);
        return fg__j_dict_of(j, FG__J_DICT, items, node->count);
    default: return fg__j_value(FG__J_NONE);
    }
}

/* What a name means outside the template: a variable given to it, or a global function; MISSING for neither. */
static fg__jval fg__j_global(fg__jinja *j, int32_t name) {
    const fg__j_string *s = j->names[name].u.s;
    const fg__json *node;
    const fg__j_function *f;
    if (j->globals[name].type != FG__J_MISSING) return j->globals[name];
    node = fg__json_find(j->given, s->data, s->length);
    f = fg__j_function_named(fg__j_global_functions, FG__COUNT(fg__j_global_functions), s->data, s->length);
    if (node) {
        j->globals[name] = fg__j_from_json(j, node);
    } else if (f) {
        j->globals[name].type = FG__J_FUNCTION;
        j->globals[name].u.function = f;
    }
    return j->globals[name];
}

static fg__j_frame *fg__j_outer_frame(const fg__jinja *j, int frames) {
    fg__j_frame *frame = j->frame;
    for (; frames > 0; frames--) frame = frame->outer;
    return frame;
}

static void fg__j_enter(fg__jinja *j, const fg__j_scope *scope) {
    int32_t i;
    fg__j_work(j, (size_t)scope->n_variables);
    for (i = 0; i < scope->n_variables; i++) {
        const fg__j_variable *v = &j->variables[scope->first_variable + i];
        fg__jval *slot = &j->frame->slots[v->slot];
        if (v->load == FG__J_LOAD_RESOLVE) *slot = fg__j_global(j, v->name);
        else if (v->load == FG__J_LOAD_ALIAS) *slot = fg__j_outer_frame(j, v->from_frames)->slots[v->from_slot];
        else if (v->load == FG__J_LOAD_UNDEFINED) *slot = fg__j_value(FG__J_MISSING);
    }
}

static void fg__j_exit(fg__jinja *j, const fg__j_scope *scope) {
    int32_t i;
    for (i = 0; i < scope->n_variables; i++)
        j->frame->slots[j->variables[scope->first_variable + i].slot] = fg__j_value(FG__J_MISSING);
}

static fg__j_frame *fg__j_new_frame(fg__jinja *j, fg__j_frame *outer, int32_t n_slots) {
    fg__j_frame *frame = (fg__j_frame *)fg__j_alloc(j, 1, sizeof(*frame));
    frame->outer = outer;
    frame->slots = fg__j_array(j, (size_t)n_slots);
    memset(frame->slots, 0, (size_t)n_slots * sizeof(*frame->slots));
    return frame;
}

static void fg__j_unpack(fg__jinja *j, int32_t wanted) {
    size_t n;
    const fg__jval *items = fg__j_items(j, fg__j_pop(j), &n);
    if (n != (size_t)wanted) fg__j_fail(j, "cannot unpack %zu values into %d targets", n, (int)wanted);
    while (n) fg__j_push(j, items[--n]);
}

/* Replaces the n values on the stack by a list or tuple of them. */
static void fg__j_collect(fg__jinja *j, fg__j_type type, int32_t n) {
    fg__jval *items = fg__j_array(j, (size_t)n);
    if (n) memcpy(items, j->stack + j->n_stack - n, (size_t)n * sizeof(*items));
    j->n_stack -= (size_t)n;
    fg__j_push(j, fg__j_list_of(j, type, items, (size_t)n));
}

static void fg__j_collect_dict(fg__jinja *j, int32_t n) {
    fg__jval *items = fg__j_array(j, 2 * (size_t)n);
    if (n) memcpy(items, j->stack + j->n_stack - 2 * (size_t)n, 2 * (size_t)n * sizeof(*items));
    j->n_stack -= 2 * (size_t)n;
    fg__j_push(j, fg__j_dict_of(j, FG__J_DICT, items, (size_t)n));
}

/* Joins the n values on the stack as text. */
static void fg__j_concat(fg__jinja *j, int32_t n) {
    const fg__jval *items = j->stack + j->n_stack - n;
    fg__jval text = fg__j_str(j, items[0]);
    int32_t i;
    for (i = 1; i < n; i++) text = fg__j_join2(j, text.u.s, fg__j_str(j, items[i]).u.s);
    j->n_stack -= (size_t)n;
    fg__j_push(j, text);
}

/* Adds keywords: those of a ** mapping, or one. */
static void fg__j_add_named(fg__jinja *j, fg__j_args *args, const fg__jval *names, const fg__jval *values, size_t stride,
                            size_t n) {
    fg__jval *all = fg__j_array(j, 2 * (args->n_named + n));
    size_t i, k;
    for (i = 0; i < args->n_named + n; i++) {
        bool old = i < args->n_named;
        all[i] = old ? args->names[i] : names[(i - args->n_named) * stride];
        all[args->n_named + n + i] = old ? args->values[i] : values[(i - args->n_named) * stride];
        if (all[i].type != FG__J_STRING) fg__j_fail(j, "keywords must be strings");
        fg__j_work(j, i);
        for (k = 0; k < i; k++)
            if (fg__j_same_string(all[k].u.s, all[i].u.s)) fg__j_fail(j, "a keyword argument is given twice");
    }
    args->names = all;
    args->values = all + args->n_named + n;
    args->n_named += n;
}

/* The arguments of a call, which lie on the stack from `base` on. */
static fg__j_args fg__j_call_args(fg__jinja *j, const fg__j_call *call, size_t base, bool with_caller) {
    fg__j_args args;
    size_t at = base + (size_t)(call->n_items + call->n_named), n;
    memset(&args, 0, sizeof(args));
    args.items = j->stack + base;
    args.n = (size_t)call->n_items;
    args.names = call->n_named ? j->constants + call->first_name : NULL;
    args.values = args.items + args.n;
    args.n_named = (size_t)call->n_named;
    if (call->n_named > 1) fg__j_add_named(j, &args, NULL, NULL, 0, 0); /* to see that none is there twice */
    if (call->star) {
        const fg__jval *more = fg__j_items(j, j->stack[at++], &n);
        fg__jval *items = fg__j_array(j, args.n + n);
        if (args.n) memcpy(items, args.items, args.n * sizeof(*items));
        if (n) memcpy(items + args.n, more, n * sizeof(*items));
        args.items = items;
        args.n += n;
    }
    if (call->double_star) {
        fg__jval map = j->stack[at++];
        if (map.type != FG__J_DICT) fg__j_fail(j, "the argument behind ** must be a mapping");
        fg__j_add_named(j, &args, map.u.d->items, map.u.d->items + 1, 2, map.u.d->count);
    }
    if (with_caller) fg__j_add_named(j, &args, &j->names[FG__J_W_CALLER], &j->stack[at], 1, 1);
    return args;
}

/* Values on the stack that a call takes besides what is called. */
static size_t fg__j_call_size(const fg__j_call *call, bool with_caller) {
    return (size_t)(call->n_items + call->n_named + call->star + call->double_star + with_caller);
}

/* Takes a keyword argument out of `args`; MISSING if it is not there. */
static fg__jval fg__j_take_named(const fg__j_args *args, bool *taken, fg__jval name) {
    size_t i;
    for (i = 0; i < args->n_named; i++) {
        if (taken[i] || !fg__j_same_string(args->names[i].u.s, name.u.s)) continue;
        taken[i] = true;
        return args->values[i];
    }
    return fg__j_value(FG__J_MISSING);
}

/* The keyword arguments that no parameter took, as a dict; `n` of them. */
static fg__jval fg__j_rest_named(fg__jinja *j, const fg__j_args *args, const bool *taken, size_t *n) {
    fg__jval *items = fg__j_array(j, 2 * args->n_named);
    size_t i;
    *n = 0;
    for (i = 0; i < args->n_named; i++) {
        if (taken[i]) continue;
        items[2 * *n] = args->names[i];
        items[2 * (*n)++ + 1] = args->values[i];
    }
    return fg__j_dict_of(j, FG__J_DICT, items, *n);
}

/* Gives a macro's parameters their values. */
static void fg__j_bind_macro(fg__jinja *j, const fg__j_code_function *f, const fg__j_args *args, fg__jval *slots) {
    bool *taken = (bool *)fg__j_alloc(j, args->n_named, sizeof(*taken));
    size_t n_params = (size_t)f->n_params, i, n;
    fg__jval rest;
    memset(taken, 0, args->n_named * sizeof(*taken));
    for (i = 0; i < n_params; i++) {
        fg__j_work(j, args->n_named);
        if (i < args->n) slots[i] = args->items[i];
        else slots[i] = fg__j_take_named(args, taken, j->names[j->params[f->first_param + (int32_t)i]]);
        if (slots[i].type == FG__J_MISSING && i + (size_t)f->n_defaults < n_params)
            slots[i] = fg__j_undefined(j, "a parameter of a macro was not provided");
    }
    if (f->caller >= 0) slots[f->caller] = fg__j_take_named(args, taken, j->names[FG__J_W_CALLER]);
    if (f->caller >= 0 && slots[f->caller].type == FG__J_MISSING) slots[f->caller] = fg__j_undefined(j, "No caller defined");
    rest = fg__j_rest_named(j, args, taken, &n);
    if (f->kwargs >= 0) slots[f->kwargs] = rest;
    else if (n) fg__j_fail(j, "a macro got an unexpected keyword argument");
    n = args->n > n_params ? args->n - n_params : 0;
    if (f->varargs >= 0) slots[f->varargs] = fg__j_list_of(j, FG__J_TUPLE, args->items + args->n - n, n);
    else if (n) fg__j_fail(j, "a macro got too many arguments");
}

/* Begins a macro's code; it will return to instruction `back`. Returns where it begins. */
static int32_t fg__j_begin_macro(fg__jinja *j, const fg__j_macro *macro, const fg__j_args *args, int32_t back) {
    const fg__j_code_function *f = &j->functions[macro->function];
    fg__j_frame *frame = fg__j_new_frame(j, macro->outer, f->n_slots);
    fg__j_active *active;
    if (j->n_active == FG__J_MAX_CALLS) fg__j_fail(j, "macros call each other too deeply");
    if (f->varargs >= 0) { /* which outlive the stack they are on */
        fg__j_args kept = *args;
        fg__jval *items = fg__j_array(j, args->n);
        if (args->n) memcpy(items, args->items, args->n * sizeof(*items));
        kept.items = items;
        fg__j_bind_macro(j, f, &kept, frame->slots);
    } else {
        fg__j_bind_macro(j, f, args, frame->slots);
    }
    j->active = (fg__j_active *)fg__j_room(j, j->active, &j->active_capacity, j->n_active, sizeof(*j->active));
    active = &j->active[j->n_active++];
    active->frame = j->frame;
    active->back = back;
    active->n_loops = j->n_loops;
    j->frame = frame;
    fg__j_capture(j);
    return f->entry;
}

/* Returns from a macro; its output is its value. Returns where to go on, or -1 at the end of the template. */
static int32_t fg__j_return(fg__jinja *j) {
    fg__j_active active;
    if (!j->n_active) return -1;
    active = j->active[--j->n_active];
    j->frame = active.frame;
    j->n_loops = active.n_loops;
    fg__j_push(j, fg__j_captured(j));
    return active.back;
}

/* Calls what is on the stack under its arguments. Returns the next instruction. */
static int32_t fg__j_call_value(fg__jinja *j, const fg__j_code *code, int32_t at) {
    const fg__j_call *call = &j->calls[code->b];
    size_t base = j->n_stack - fg__j_call_size(call, code->flag != 0);
    fg__jval callee = j->stack[base - 1], result;
    fg__j_args args = fg__j_call_args(j, call, base, code->flag != 0);
    if (callee.type == FG__J_MACRO) {
        at = fg__j_begin_macro(j, callee.u.macro, &args, at + 1);
        j->n_stack = base - 1;
        return at;
    }
    if (callee.type == FG__J_UNDEFINED) fg__j_fail_undefined(j, callee);
    if (callee.type == FG__J_METHOD) result = fg__j_invoke(j, callee.u.m->function, callee.u.m->self, &args);
    else if (callee.type == FG__J_FUNCTION) result = fg__j_invoke(j, callee.u.function, callee, &args);
    else result = fg__j_fail(j, "'%s' object is not callable", fg__j_type_names[callee.type]);
    j->n_stack = base - 1;
    fg__j_push(j, result);
    return at + 1;
}

/* Applies a filter or test to the value on the stack under its arguments. */
static void fg__j_apply(fg__jinja *j, const fg__j_function *f, int32_t number) {
    const fg__j_call *call = &j->calls[number];
    size_t base = j->n_stack - fg__j_call_size(call, false);
    fg__j_args args = fg__j_call_args(j, call, base, false);
    fg__jval result = fg__j_invoke(j, f, j->stack[base - 1], &args);
    j->n_stack = base - 1;
    fg__j_push(j, result);
}

static void fg__j_begin_loop(fg__jinja *j, const fg__j_code *code) {
    fg__j_loop *loop = (fg__j_loop *)fg__j_alloc(j, 1, sizeof(*loop));
    memset(loop, 0, sizeof(*loop));
    loop->items = fg__j_items(j, fg__j_pop(j), &loop->count);
    loop->slot = code->a;
    loop->filtering = code->flag != 0;
    if (loop->filtering) loop->kept = fg__j_array(j, loop->count);
    j->loops = (fg__j_loop **)fg__j_room(j, j->loops, &j->loops_capacity, j->n_loops, sizeof(*j->loops));
    j->loops[j->n_loops++] = loop;
}

/* Pushes the next item of the innermost loop. Returns how far to jump. */
static int32_t fg__j_next_item(fg__jinja *j, const fg__j_code *code) {
    fg__j_loop *loop = j->loops[j->n_loops - 1];
    fg__jval v = fg__j_value(FG__J_LOOP);
    if (loop->next == loop->count && loop->filtering) {
        loop->items = loop->kept;
        loop->count = loop->n_kept;
        loop->next = 0;
        loop->filtering = false;
        loop->filtered = true;
    }
    if (loop->next == loop->count) return code->a;
    v.u.loop = loop;
    j->frame->slots[loop->slot] = v;
    fg__j_push(j, loop->items[loop->next++]);
    return loop->filtered ? code->b : 1;
}

/* Decides about the item just tested. Returns how far to jump. */
static int32_t fg__j_keep_item(fg__jinja *j, const fg__j_code *code) {
    fg__j_loop *loop = j->loops[j->n_loops - 1];
    bool keep = fg__j_true(fg__j_pop(j));
    fg__jval item = loop->items[loop->next - 1];
    size_t n;
    if (keep && code->flag) { /* Jinja goes on with the tuple of the targets */
        const fg__jval *items = fg__j_items(j, item, &n);
        item = fg__j_list_of(j, FG__J_TUPLE, items, n);
    }
    if (keep && loop->filtering) loop->kept[loop->n_kept++] = item;
    if (!keep || loop->filtering) return code->b;
    fg__j_push(j, item);
    return 1;
}

static fg__jval fg__j_make_macro(fg__jinja *j, const fg__j_code *code) {
    fg__jval v = fg__j_value(FG__J_MACRO);
    fg__j_macro *macro = (fg__j_macro *)fg__j_alloc(j, 1, sizeof(*macro));
    macro->function = code->a;
    macro->name = j->constants[code->b];
    macro->outer = j->frame;
    v.u.macro = macro;
    return v;
}

static fg__jval fg__j_load_variable(fg__jinja *j, const fg__j_code *code) {
    fg__jval v = fg__j_outer_frame(j, code->n)->slots[code->b];
    if (v.type != FG__J_MISSING) return v;
    v = j->names[code->a];
    v.type = FG__J_UNDEFINED;
    v.flag = FG__J_NAME;
    return v;
}

static void fg__j_set_attribute(fg__jinja *j, fg__jval name) {
    fg__jval space = fg__j_pop(j), v = fg__j_pop(j);
    if (space.type != FG__J_NAMESPACE) fg__j_fail(j, "cannot assign attribute on non-namespace object");
    fg__j_namespace_set(j, space.u.d, name, v);
}

/* One instruction that only works on the stack. */
static void fg__j_step(fg__jinja *j, const fg__j_code *code) {
    fg__jval a, b, c;
    switch (code->op) {
    case FG__J_OP_TEXT: fg__j_output(j, j->constants[code->a]); break;
    case FG__J_OP_OUTPUT: fg__j_output(j, fg__j_pop(j)); break;
    case FG__J_OP_CONST: fg__j_push(j, j->constants[code->a]); break;
    case FG__J_OP_LOAD: fg__j_push(j, fg__j_load_variable(j, code)); break;
    case FG__J_OP_STORE: fg__j_outer_frame(j, code->n)->slots[code->b] = fg__j_pop(j); break;
    case FG__J_OP_SET_ATTR: fg__j_set_attribute(j, j->constants[code->a]); break;
    case FG__J_OP_UNPACK: fg__j_unpack(j, code->a); break;
    case FG__J_OP_LIST: fg__j_collect(j, FG__J_LIST, code->a); break;
    case FG__J_OP_TUPLE: fg__j_collect(j, FG__J_TUPLE, code->a); break;
    case FG__J_OP_DICT: fg__j_collect_dict(j, code->a); break;
    case FG__J_OP_ATTR: fg__j_push(j, fg__j_attribute(j, fg__j_pop(j), j->constants[code->a])); break;
    case FG__J_OP_ITEM:
        b = fg__j_pop(j);
        fg__j_push(j, fg__j_item(j, fg__j_pop(j), b));
        break;
    case FG__J_OP_SLICE:
        c = fg__j_pop(j);
        b = fg__j_pop(j);
        a = fg__j_pop(j);
        fg__j_push(j, fg__j_sliced(j, fg__j_pop(j), a, b, c));
        break;
    case FG__J_OP_FILTER: fg__j_apply(j, &fg__j_filters[code->a], code->b); break;
    case FG__J_OP_TEST: fg__j_apply(j, &fg__j_tests[code->a], code->b); break;
    case FG__J_OP_UNKNOWN: a = j->constants[code->a], fg__j_fail(j, "%.*s", fg__j_cut(a.u.s, 200), a.u.s->data); break;
    case FG__J_OP_NOT: fg__j_push(j, fg__j_bool(!fg__j_true(fg__j_pop(j)))); break;
    case FG__J_OP_NEG: fg__j_push(j, fg__j_negated(j, fg__j_pop(j), true)); break;
    case FG__J_OP_POS: fg__j_push(j, fg__j_negated(j, fg__j_pop(j), false)); break;
    case FG__J_OP_BINARY:
        b = fg__j_pop(j);
        fg__j_push(j, fg__j_binary(j, code->flag, fg__j_pop(j), b));
        break;
    case FG__J_OP_CONCAT: fg__j_concat(j, code->a); break;
    case FG__J_OP_COMPARE:
        b = fg__j_pop(j);
        fg__j_push(j, fg__j_bool(fg__j_compare(j, code->flag, fg__j_pop(j), b)));
        break;
    case FG__J_OP_NO_ELSE: fg__j_push(j, fg__j_undefined(j, "the inline if-expression evaluated to false and has no else")); break;
    case FG__J_OP_ENTER: fg__j_enter(j, &j->scopes[code->a]); break;
    case FG__J_OP_LEAVE: fg__j_exit(j, &j->scopes[code->a]); break;
    case FG__J_OP_FOR: fg__j_begin_loop(j, code); break;
    case FG__J_OP_CAPTURE: fg__j_capture(j); break;
    case FG__J_OP_CAPTURED: fg__j_push(j, fg__j_captured(j)); break;
    case FG__J_OP_DISCARD: j->out->length = j->captures[--j->n_captures]; break;
    default: fg__j_push(j, fg__j_make_macro(j, code));
    }
}

/* a < b of a chain: leaves b and goes on when it holds, else leaves False and jumps. */
static int32_t fg__j_chain_step(fg__jinja *j, const fg__j_code *code) {
    fg__jval b = fg__j_pop(j);
    bool holds = fg__j_compare(j, code->flag, fg__j_pop(j), b);
    fg__j_push(j, holds ? b : fg__j_bool(false));
    return holds ? 1 : code->a;
}

/* and, or: keeps the value and jumps when it decides. */
static int32_t fg__j_either(fg__jinja *j, const fg__j_code *code) {
    if (fg__j_true(j->stack[j->n_stack - 1]) == (code->op == FG__J_OP_OR)) return code->a;
    j->n_stack--;
    return 1;
}

static int32_t fg__j_end_loop(fg__jinja *j, const fg__j_code *code) {
    return j->loops[--j->n_loops]->completed ? code->a : 1;
}

static int32_t fg__j_loop_again(fg__jinja *j, const fg__j_code *code) {
    j->loops[j->n_loops - 1]->completed = true;
    return code->a;
}

/* Runs the code from its beginning. */
static void fg__j_run(fg__jinja *j) {
    int32_t at = 0;
    j->frame = fg__j_new_frame(j, NULL, j->functions[0].n_slots);
    while (at >= 0) {
        const fg__j_code *code = &j->code[at];
        j->line = code->line;
        fg__j_work(j, 1);
        switch (code->op) {
        case FG__J_OP_JUMP: at += code->a; break;
        case FG__J_OP_JUMP_FALSE: at += fg__j_true(fg__j_pop(j)) ? 1 : code->a; break;
        case FG__J_OP_JUMP_TRUE: at += fg__j_true(fg__j_pop(j)) ? code->a : 1; break;
        case FG__J_OP_AND:
        case FG__J_OP_OR: at += fg__j_either(j, code); break;
        case FG__J_OP_CHAIN: at += fg__j_chain_step(j, code); break;
        case FG__J_OP_CALL: at = fg__j_call_value(j, code, at); break;
        case FG__J_OP_NEXT: at += fg__j_next_item(j, code); break;
        case FG__J_OP_KEEP: at += fg__j_keep_item(j, code); break;
        case FG__J_OP_AGAIN: at += fg__j_loop_again(j, code); break;
        case FG__J_OP_DONE: at += fg__j_end_loop(j, code); break;
        case FG__J_OP_DEFAULT: at += j->frame->slots[code->b].type == FG__J_MISSING ? 1 : code->a; break;
        case FG__J_OP_RETURN: at = fg__j_return(j); break;
        default: fg__j_step(j, code); at++;
        }
    }
}

/* ------------------------------------------------------------------------------------------------
   Rendering
   ------------------------------------------------------------------------------------------------ */

static void fg__j_render(fg__jinja *j, const char *text, size_t length) {
    fg__j_lex(j, text, length);
    fg__j_compile(j);
    fg__j_bind_names(j);
    fg__j_run(j);
}

/* Where every error comes back to. */
static fg_result fg__j_guard(fg__jinja *j, const char *text, size_t length) {
    if (setjmp(j->leave) == 0) fg__j_render(j, text, length);
    return j->result;
}

static void fg__j_free(fg__jinja *j) {
    const fg__env *env = j->env;
    fg__arena_free(&j->arena);
    fg__text_free(&j->scratch);
    fg__free(env, j->tokens);
    fg__free(env, j->names);
    fg__free(env, j->code);
    fg__free(env, j->constants);
    fg__free(env, j->calls);
    fg__free(env, j->params);
    fg__free(env, j->variables);
    fg__free(env, j->scopes);
    fg__free(env, j->functions);
    fg__free(env, j->stack);
    fg__free(env, j->active);
    fg__free(env, j->loops);
    fg__free(env, j->captures);
    fg__free(env, j);
}

/* Renders a template with the members of the object `variables`, and adds the text to `out`. Errors: TEMPLATE (it is wrong,
   uses too much, or raised an exception; the message names the line), OUT_OF_MEMORY; `out` is then as before. */
static fg_result fg__chat_render(const fg__env *env, const char *template_text, size_t template_length,
                                 const fg__json *variables, fg__text *out) {
    size_t begin = out->length;
    fg_result result;
    fg__jinja *j = (fg__jinja *)fg__calloc(env, 1, sizeof(*j));
    if (!j) return FG_ERROR_OUT_OF_MEMORY;
    j->env = j->arena.env = j->scratch.env = env;
    j->steps = FG__J_MAX_STEPS;
    j->out = out;
    j->out_begin = begin;
    j->given = variables;
    result = fg__j_guard(j, template_text, template_length);
    fg__j_free(j);
    if (result != FG_OK) out->length = begin;
    if (out->data) out->data[out->length] = 0;
    return result;
}

/* ------------------------------------------------------------------------------------------------
   Conversations
   ------------------------------------------------------------------------------------------------ */

/* A variable with text, like bos_token. */
typedef struct fg__chat_text {
    const char *name, *text;
    size_t length;
} fg__chat_text;

static fg__json fg__chat_string(const char *text, size_t length) {
    fg__json node;
    memset(&node, 0, sizeof(node));
    node.type = FG__JSON_STRING;
    node.count = (uint32_t)length;
    node.value.string = text;
    return node;
}

/* What was thought before an answer goes by several names. As in transformers, templates find it by the standard one and,
   for those of gpt-oss, as `thinking`: {"thinking": t, ...the message..., "reasoning_content": t}. */
static fg_result fg__chat_message(fg__arena *arena, fg__json *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const fg__json *thought = NULL;
    fg__json *items;
    size_t n = message->count;
    int i;
    for (i = 0; i < FG__COUNT(names) && !thought; i++) {
        thought = fg__json_get(message, names[i]);
        if (thought && thought->type == FG__JSON_NULL) thought = NULL;
    }
    if (!thought) return FG_OK;
    items = (fg__json *)fg__arena_alloc(arena, 2 * (n + 2) * sizeof(*items));
    if (!items) return FG_ERROR_OUT_OF_MEMORY;
    items[0] = fg__chat_string("thinking", 8);
    items[1] = *thought;
    memcpy(items + 2, message->value.items, 2 * n * sizeof(*items));
    items[2 * n + 2] = fg__chat_string("reasoning_content", 17);
    items[2 * n + 3] = *thought;
    return fg__json_make_object(arena, message, items, n + 2);
}

/* Copies the list of messages, to change it. */
static fg_result fg__chat_messages(fg__arena *arena, fg__json *messages) {
    size_t n = messages->count, i;
    fg__json *items = (fg__json *)fg__arena_alloc(arena, n * sizeof(*items));
    fg_result result = items ? FG_OK : FG_ERROR_OUT_OF_MEMORY;
    if (items && n) memcpy(items, messages->value.items, n * sizeof(*items));
    messages->value.items = items;
    for (i = 0; i < n && result == FG_OK; i++) {
        if (items[i].type != FG__JSON_OBJECT)
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "message number %zu is no JSON object", i);
        result = fg__chat_message(arena, &items[i]);
    }
    return result;
}

/* The same of bytes that need not be valid UTF-8; what is not becomes U+FFFD. */
static fg_result fg__chat_valid(fg__arena *arena, const char *text, size_t length, fg__json *node) {
    char *to = (char *)fg__arena_alloc(arena, 3 * length + 1);
    size_t i = 0, n = 0;
    uint32_t code;
    if (!to) return FG_ERROR_OUT_OF_MEMORY;
    while (i < length) {
        i += fg__utf8_decode(text + i, length - i, &code);
        n += fg__utf8_encode(code, to + n);
    }
    *node = fg__chat_string(to, n);
    return FG_OK;
}

/* Makes the object of a template's variables: texts, then add_generation_prompt = true, tools = documents = null, then the
   members of `options` (may be NULL), then messages; later ones win. It keeps pointers into all of these. */
static fg_result fg__chat_variables(fg__arena *arena, const fg__json *messages, const fg__json *options,
                                    const fg__chat_text *texts, size_t n_texts, fg__json *variables) {
    size_t n_options = options ? options->count : 0, n = 0, i;
    fg__json *items = (fg__json *)fg__arena_alloc(arena, 2 * (n_texts + n_options + 4) * sizeof(*items));
    fg__json value;
    if (!items) return FG_ERROR_OUT_OF_MEMORY;
    for (i = 0; i < n_texts; i++, n++) {
        fg_result result;
        items[n++] = fg__chat_string(texts[i].name, strlen(texts[i].name));
        result = fg__chat_valid(arena, texts[i].text, texts[i].length, &items[n]);
        if (result != FG_OK) return result;
    }
    memset(&value, 0, sizeof(value));
    items[n++] = fg__chat_string("tools", 5);
    items[n++] = value;
    items[n++] = fg__chat_string("documents", 9);
    items[n++] = value;
    value.type = FG__JSON_BOOL;
    value.value.boolean = true;
    items[n++] = fg__chat_string("add_generation_prompt", 21);
    items[n++] = value;
    if (n_options) memcpy(items + n, options->value.items, 2 * n_options * sizeof(*items));
    n += 2 * n_options;
    items[n++] = fg__chat_string("messages", 8);
    items[n++] = *messages;
    return fg__json_make_object(arena, variables, items, n / 2);
}

/* Renders a conversation as transformers' apply_chat_template does. messages_json: an array of objects; options_json: NULL
   or an object whose members become variables; texts: further variables (bos_token, eos_token, ...).
   Errors: those of fg__chat_render, and INVALID_ARGUMENT for bad JSON. */
static fg_result fg__chat_format(const fg__env *env, const char *template_text, size_t template_length,
                                 const char *messages_json, const char *options_json, const fg__chat_text *texts,
                                 size_t n_texts, fg__text *out) {
    fg__json *messages = NULL, *options = NULL, list, variables;
    fg__arena arena;
    fg_result result = fg__json_parse(env, messages_json, strlen(messages_json), &messages);
    memset(&arena, 0, sizeof(arena));
    arena.env = env;
    if (result == FG_OK && options_json) result = fg__json_parse(env, options_json, strlen(options_json), &options);
    if (result == FG_OK && messages->type != FG__JSON_ARRAY)
        result = fg__fail(FG_ERROR_INVALID_ARGUMENT, "the messages are no JSON array");
    if (result == FG_OK && options && options->type != FG__JSON_OBJECT)
        result = fg__fail(FG_ERROR_INVALID_ARGUMENT, "the options are no JSON object");
    if (result == FG_OK) {
        list = *messages;
        result = fg__chat_messages(&arena, &list);
        if (result == FG_OK) result = fg__chat_variables(&arena, &list, options, texts, n_texts, &variables);
        if (result == FG_OK) result = fg__chat_render(env, template_text, template_length, &variables, out);
    }
    fg__arena_free(&arena);
    fg__json_free(options);
    fg__json_free(messages);
    return result;
}
/* ================================================================================================
   >>sample  from a row of logits to a token: penalties, filters, temperature, logprobs
   ================================================================================================ */

/* A pure function of logits, parameters, history, seed and position: no clock, no state, so the same seed gives the
   same token whatever else runs. Nothing is sorted: filters are cuts of an order (by logit, or by distance from the
   entropy), found by radix selection in linear time, and candidates always stay in the order of their ids.
   NaN counts as -inf, +inf as the largest float. Equal logits rank by id, the lowest first. */

typedef struct fg__sampler {
    fg_sampling p; /* p.logit_bias points to memory owned by the request */
} fg__sampler;

typedef struct fg__candidate {
    uint32_t key;  /* order of the cut in progress, smallest first */
    float logit;
    float weight;  /* exp(logit - highest logit): probability at temperature 1, not normalised */
    int32_t id;
} fg__candidate;

/* Buffers for vocabularies of up to `capacity` tokens; all zero is empty. One per thread that samples. */
typedef struct fg__sample_scratch {
    int capacity;
    float *logits;              /* [capacity] copy that penalties and bias change */
    uint32_t *marks;            /* [capacity] occurrences in the history; zero between calls */
    fg__candidate *candidates;  /* [capacity] */
} fg__sample_scratch;

typedef struct fg__sample_input {
    const float *logits;        /* [n_vocab], or NULL where row is enough (see fg__sampler_needs_logits) */
    int n_vocab;
    const int32_t *history;     /* prompt and output */
    int n_history, n_prompt;
    uint64_t seed;              /* request's seed + sample index, mixed with the engine's seed */
    int position;               /* index of the token being sampled */
    const fg_row_result *row;   /* argmax and log_sum_exp of `logits` as the device found them; NULL: computed here */
    const int32_t *banned;      /* tokens that must not come now, as end tokens before min_tokens */
    int n_banned;
    int n_top;                  /* best alternatives wanted, at most FG_MAX_TOP_LOGPROBS */
    bool want_logprob;
} fg__sample_input;

typedef struct fg__sample_output {
    int32_t token;
    float logprob;              /* natural log, of the untouched distribution; -INFINITY where that is not a number */
    fg_token_logprob top[FG_MAX_TOP_LOGPROBS]; /* best first */
    int n_top;
} fg__sample_output;

/* ---- parameters ---- */

static bool fg__in_unit(float x) { return x >= 0.0f && x <= 1.0f; } /* false for NaN */

static fg_result fg__sampler_check_bias(const fg_sampling *p, int n_vocab) {
    int i;
    if (p->n_logit_bias < 0 || (p->n_logit_bias > 0 && !p->logit_bias))
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "n_logit_bias is %d but logit_bias is %s", p->n_logit_bias,
                        p->logit_bias ? "set" : "NULL");
    for (i = 0; i < p->n_logit_bias; i++) {
        const fg_logit_bias *b = &p->logit_bias[i];
        if (b->token < 0 || b->token >= n_vocab)
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "logit_bias token %d is outside the vocabulary of %d",
                            (int)b->token, n_vocab);
        if (!(b->bias <= FLT_MAX))
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "logit_bias of token %d must be finite or -INFINITY",
                            (int)b->token);
    }
    return FG_OK;
}

static fg_result fg__sampler_check_penalties(const fg_sampling *p) {
    if (!(p->repetition_penalty >= 0.0f && p->repetition_penalty <= FLT_MAX))
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "repetition_penalty must be positive (0 or 1: off), not %g",
                        (double)p->repetition_penalty);
    if (!(fabsf(p->presence_penalty) <= FLT_MAX) || !(fabsf(p->frequency_penalty) <= FLT_MAX))
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "presence_penalty and frequency_penalty must be finite");
    if (p->penalty_window < 0)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "penalty_window must not be negative (0: all), not %d",
                        p->penalty_window);
    return FG_OK;
}

/* FG_ERROR_INVALID_ARGUMENT, with a message that names the parameter, when any is out of range. */
static fg_result fg__sampler_check(const fg_sampling *p, int n_vocab) {
    fg_result result;
    if (!(p->temperature >= 0.0f && p->temperature <= FLT_MAX))
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "temperature must be 0 (greedy) or positive, not %g",
                        (double)p->temperature);
    if (p->top_k < 0)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "top_k must not be negative (0: off), not %d", p->top_k);
    if (!fg__in_unit(p->top_p))
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "top_p must be from 0 to 1, not %g", (double)p->top_p);
    if (!fg__in_unit(p->min_p))
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "min_p must be from 0 to 1, not %g", (double)p->min_p);
    if (!fg__in_unit(p->typical_p))
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "typical_p must be from 0 to 1, not %g", (double)p->typical_p);
    result = fg__sampler_check_penalties(p);
    return result != FG_OK ? result : fg__sampler_check_bias(p, n_vocab);
}

static bool fg__has_repetition_penalty(const fg_sampling *p) {
    return p->repetition_penalty > 0.0f && p->repetition_penalty != 1.0f;
}

static bool fg__has_penalties(const fg_sampling *p) {
    return fg__has_repetition_penalty(p) || p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f;
}

/* False: greedy and nothing changes the logits, so that the device's argmax is the token. (Banned tokens and top
   logprobs need logits too.) */
static bool fg__sampler_needs_logits(const fg__sampler *s) {
    return s->p.temperature > 0.0f || s->p.n_logit_bias > 0 || fg__has_penalties(&s->p);
}

/* ---- scratch ---- */

static void fg__sample_scratch_free(const fg__env *env, fg__sample_scratch *scratch) {
    fg__free(env, scratch->logits);
    fg__free(env, scratch->marks);
    fg__free(env, scratch->candidates);
    memset(scratch, 0, sizeof(*scratch));
}

/* Makes room for a vocabulary of n tokens; fg__sample calls it, and after that allocates nothing. */
static fg_result fg__sample_scratch_reserve(const fg__env *env, fg__sample_scratch *scratch, int n) {
    if (n <= scratch->capacity) return FG_OK;
    fg__sample_scratch_free(env, scratch);
    scratch->logits = (float *)fg__malloc(env, (size_t)n, sizeof(float));
    scratch->marks = (uint32_t *)fg__calloc(env, (size_t)n, sizeof(uint32_t));
    scratch->candidates = (fg__candidate *)fg__malloc(env, (size_t)n, sizeof(fg__candidate));
    if (!scratch->logits || !scratch->marks || !scratch->candidates) {
        fg__sample_scratch_free(env, scratch);
        return FG_ERROR_OUT_OF_MEMORY;
    }
    scratch->capacity = n;
    return FG_OK;
}

/* ---- arithmetic ---- */

/* exp of x <= 0, relative error below 3e-7; 0 below -87.7 and for NaN. Ours, so that seeds mean the same with every
   libm; bounded as integers, without branches, so that compilers vectorise loops over it. */
static inline float fg__exp_negative(float x) {
    int32_t bits, limit = (int32_t)0xC2B00000u; /* -88 */
    float f, r, y;
    memcpy(&bits, &x, sizeof(bits));
    bits |= (int32_t)0x80000000u;         /* 0 is -0; negative floats grow as integers when they fall */
    bits = bits < limit ? bits : limit;
    memcpy(&x, &bits, sizeof(x));
    bits = (int32_t)(x * 1.44269504f - 0.5f);             /* nearest multiple of ln 2, -127 to 0 */
    f = (float)bits;
    r = (x - f * 0.693359375f) + f * 2.12194440e-4f;      /* ln 2 in two parts, for an exact remainder */
    y = 0.0416666667f + r * (8.33333333e-3f + r * 1.38888889e-3f); /* the series, to the sixth power */
    y = 1.0f + r * (1.0f + r * (0.5f + r * (0.166666667f + r * y)));
    bits = (bits + 127) << 23;                            /* power of two; -127 gives 0 */
    memcpy(&f, &bits, sizeof(f));
    return y * f;
}

#define FG__EXP_BLOCK 64

/* out[i] = exp((x[i] - max) / temperature) of one block. Hot: its constant length lets compilers vectorise at -O2. */
static void fg__exp_all(const float *x, float max, float temperature, float *FG__RESTRICT out) {
    int i;
    for (i = 0; i < FG__EXP_BLOCK; i++) out[i] = fg__exp_negative((x[i] - max) / temperature);
}

/* The same for a block of n <= FG__EXP_BLOCK, and its sum. Of a shorter block the rest of `out` is 0. */
static double fg__exp_block(const float *x, int n, float max, float temperature, float *out) {
    float part[4] = {0.0f, 0.0f, 0.0f, 0.0f}, padded[FG__EXP_BLOCK];
    int i, j;
    if (n < FG__EXP_BLOCK) {
        for (i = 0; i < FG__EXP_BLOCK; i++) padded[i] = i < n ? x[i] : -INFINITY;
        x = padded;
    }
    fg__exp_all(x, max, temperature, out);
    for (i = 0; i < FG__EXP_BLOCK; i += 4)
        for (j = 0; j < 4; j++) part[j] += out[i + j];
    return ((double)part[0] + part[1]) + ((double)part[2] + part[3]);
}

/* Uniform in [0, 1), a pure function of seed and position: splitmix64's output function (Steele, Lea and Flood 2014)
   over a counter that starts where the mixed seed says. */
static uint64_t fg__mix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

static double fg__uniform(uint64_t seed, int position) {
    uint64_t start = fg__mix64(seed + 0x9E3779B97F4A7C15ull);
    uint64_t z = fg__mix64(start + ((uint64_t)(uint32_t)position + 1) * 0x9E3779B97F4A7C15ull);
    return (double)(z >> 11) * (1.0 / 9007199254740992.0);
}

/* The highest logit; -INFINITY when there is none. Hot: four chains, so that the adder's latency does not count. */
static float fg__max_logit(const float *x, int n) {
    float m[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    int i, j;
    for (i = 0; i + 4 <= n; i += 4)
        for (j = 0; j < 4; j++) m[j] = x[i + j] > m[j] ? x[i + j] : m[j];
    for (; i < n; i++) m[0] = x[i] > m[0] ? x[i] : m[0];
    for (j = 1; j < 4; j++) m[0] = m[j] > m[0] ? m[j] : m[0];
    return m[0];
}

/* The lowest id whose logit is `value`. */
static int32_t fg__find_logit(const float *x, int n, float value) {
    int i;
    for (i = 0; i < n; i++)
        if (x[i] == value) return i;
    return 0;
}

/* Sum of exp((x - max) / temperature). */
static double fg__sum_exp(const float *x, int n, float max, float temperature) {
    float block[FG__EXP_BLOCK];
    double sum = 0.0;
    int i;
    for (i = 0; i < n; i += FG__EXP_BLOCK)
        sum += fg__exp_block(x + i, FG__MIN(FG__EXP_BLOCK, n - i), max, temperature, block);
    return sum;
}

/* The bits of a float in an order where the highest float comes first. */
static uint32_t fg__descending_key(float x) {
    uint32_t bits;
    x += 0.0f; /* -0 becomes 0 */
    memcpy(&bits, &x, sizeof(bits));
    return bits & 0x80000000u ? bits : ~bits & 0x7FFFFFFFu;
}

/* ---- cuts ---- */

/* One byte of a radix selection: adds up weights per byte value of the candidates that match `prefix` above it, finds
   the value where the running sum reaches *target, and takes from *target what lies before. */
static uint32_t fg__select_byte(const fg__candidate *c, int n, uint32_t prefix, int shift, double *target) {
    double sums[256];
    uint32_t value, last = 0;
    int i;
    for (i = 0; i < 256; i++) sums[i] = 0.0;
    for (i = 0; i < n; i++)
        if ((uint64_t)(c[i].key ^ prefix) >> (shift + 8) == 0) sums[c[i].key >> shift & 255] += c[i].weight;
    for (value = 0; value < 256; value++)
        if (sums[value] > 0.0) last = value;
    for (value = 0; value < last && *target > sums[value]; value++) *target -= sums[value];
    return prefix | value << shift;
}

/* Keeps the shortest prefix, in order of (key, id), whose weights reach `target`; hands back how many these are. The
   order of ids stays. */
static int fg__cut(fg__candidate *c, int n, double target) {
    uint32_t key = 0;
    int i, kept = 0, shift;
    for (shift = 24; shift >= 0; shift -= 8) key = fg__select_byte(c, n, key, shift, &target);
    for (i = 0; i < n; i++) {
        if (c[i].key > key) continue;
        if (c[i].key == key && target <= 0.0) continue; /* enough of those that are equal */
        if (c[i].key == key) target -= c[i].weight;
        c[kept++] = c[i];
    }
    return kept;
}

static void fg__candidate_set(fg__candidate *c, int32_t id, float logit) {
    c->key = fg__descending_key(logit);
    c->logit = logit;
    c->weight = 1.0f;
    c->id = id;
}

/* The k highest logits above -inf, in order of id. Those that beat the k-th of all before them are collected in a
   buffer, which is cut back to k when it is full. */
static int fg__gather_best(const float *x, int n, int k, fg__candidate *c) {
    int i, j, count = 0, room = n - k > k && n - k > 1024 ? k + FG__MAX(k, 1024) : n;
    float floor_logit = -INFINITY;
    for (i = 0; i < n; i++) {
        if (!(x[i] > floor_logit)) continue;
        fg__candidate_set(&c[count++], i, x[i]);
        if (count < room || count <= k) continue;
        count = fg__cut(c, count, (double)k);
        for (floor_logit = c[0].logit, j = 1; j < count; j++) floor_logit = FG__MIN(floor_logit, c[j].logit);
    }
    return count > k ? fg__cut(c, count, (double)k) : count;
}

/* All logits of at least `limit` (and above -inf), in order of id. */
static int fg__gather_above(const float *x, int n, float limit, fg__candidate *c) {
    int i, count = 0;
    for (i = 0; i < n; i++)
        if (x[i] >= limit && x[i] >= -FLT_MAX) fg__candidate_set(&c[count++], i, x[i]);
    return count;
}

static double fg__set_weights(fg__candidate *c, int n, float max) {
    double sum = 0.0;
    int i;
    for (i = 0; i < n; i++) sum += c[i].weight = fg__exp_negative(c[i].logit - max);
    return sum;
}

/* Locally typical sampling (Meister et al., arXiv 2202.00666): tokens whose surprise is nearest to the entropy. */
static int fg__cut_typical(fg__candidate *c, int n, float max, double sum, float p) {
    double log_sum = log(sum), entropy = log_sum;
    int i;
    for (i = 0; i < n; i++)
        if (c[i].weight > 0.0f) entropy -= (double)c[i].weight / sum * ((double)c[i].logit - max);
    for (i = 0; i < n; i++) {
        float distance = (float)fabs(log_sum - ((double)c[i].logit - max) - entropy);
        memcpy(&c[i].key, &distance, sizeof(distance)); /* bits of positive floats are in their order */
    }
    return fg__cut(c, n, p * sum);
}

static int fg__cut_top_p(fg__candidate *c, int n, double sum, float p) {
    int i;
    for (i = 0; i < n; i++) c[i].key = fg__descending_key(c[i].logit);
    return fg__cut(c, n, p * sum);
}

static int fg__cut_min_p(fg__candidate *c, int n, float min_p) {
    float limit = -INFINITY;
    int i, kept = 0;
    for (i = 0; i < n; i++) limit = FG__MAX(limit, c[i].logit);
    limit += logf(min_p);
    for (i = 0; i < n; i++)
        if (c[i].logit >= limit) c[kept++] = c[i];
    return kept;
}

/* ---- drawing ---- */

static bool fg__is_fraction(float p) { return p > 0.0f && p < 1.0f; }

/* A logit below which no token can be in the top p of the mass `sum`: even n tokens there weigh less than what p
   leaves out. */
static float fg__top_p_limit(int n, float max, double sum, float p) {
    double left_out = (1.0 - (double)p) * 0.99 * sum; /* a little less, for rounding */
    return max + (float)log(left_out / n) - 1e-3f;
}

/* Everything that can pass the filters, in order of id; *sum is the mass, at temperature 1, that they are measured by.
   known_sum is that of all logits, or 0. */
static int fg__gather(const fg_sampling *p, const float *x, int n, float max, double known_sum, fg__candidate *c,
                      double *sum) {
    int count;
    if (p->top_k > 0 && p->top_k < n) {
        count = fg__gather_best(x, n, p->top_k, c);
        *sum = fg__set_weights(c, count, max);
    } else if (fg__is_fraction(p->typical_p)) {
        count = fg__gather_above(x, n, -FLT_MAX, c);
        *sum = fg__set_weights(c, count, max);
    } else if (fg__is_fraction(p->top_p)) {
        *sum = known_sum > 0.0 ? known_sum : fg__sum_exp(x, n, max, 1.0f);
        count = fg__gather_above(x, n, fg__top_p_limit(n, max, *sum, p->top_p), c);
        fg__set_weights(c, count, max);
    } else {
        count = fg__gather_above(x, n, max + logf(p->min_p), c);
        *sum = 0.0;
    }
    return count;
}

/* Draws from the candidates at the given temperature by inversion, in order of id. */
static int32_t fg__draw_candidate(fg__candidate *c, int n, float temperature, double u) {
    double sum = 0.0;
    float max = -INFINITY;
    int i, last = 0;
    for (i = 0; i < n; i++) max = FG__MAX(max, c[i].logit);
    for (i = 0; i < n; i++) sum += c[i].weight = fg__exp_negative((c[i].logit - max) / temperature);
    for (u *= sum, i = 0; i < n; i++) {
        if (c[i].weight <= 0.0f) continue;
        last = i;
        u -= c[i].weight;
        if (u < 0.0) break;
    }
    return c[last].id;
}

/* The same from the whole vocabulary: one walk adds up blocks, the other finds the block and the token in it. */
static int32_t fg__draw_any(const float *x, int n, float max, float temperature, double u) {
    float w[FG__EXP_BLOCK];
    double sum = 0.0;
    int i, j, length, last = fg__find_logit(x, n, max);
    u *= fg__sum_exp(x, n, max, temperature);
    for (i = 0; i < n; i += FG__EXP_BLOCK, u -= sum) {
        length = FG__MIN(FG__EXP_BLOCK, n - i);
        sum = fg__exp_block(x + i, length, max, temperature, w);
        if (u < sum) break;
    }
    for (j = 0; i < n && j < length; j++) {
        if (w[j] <= 0.0f) continue;
        last = i + j;
        u -= w[j];
        if (u < 0.0) break;
    }
    return last; /* the best token, should rounding carry u past the end */
}

static int32_t fg__draw(const fg_sampling *p, const float *x, int n, float max, double known_sum, double u,
                        fg__sample_scratch *scratch) {
    fg__candidate *c = scratch->candidates;
    bool cut_typical = fg__is_fraction(p->typical_p), cut_top_p = fg__is_fraction(p->top_p);
    double sum;
    int count;
    if (!(p->top_k > 0 && p->top_k < n) && !cut_typical && !cut_top_p && !(p->min_p > 0.0f))
        return fg__draw_any(x, n, max, p->temperature, u);
    count = fg__gather(p, x, n, max, known_sum, c, &sum);
    if (cut_typical) {
        count = fg__cut_typical(c, count, max, sum, p->typical_p);
        sum = fg__set_weights(c, count, max);
    }
    if (cut_top_p) count = fg__cut_top_p(c, count, sum, p->top_p);
    if (p->min_p > 0.0f) count = fg__cut_min_p(c, count, p->min_p);
    return fg__draw_candidate(c, count, p->temperature, u);
}

/* ---- penalties, bias, bans ---- */

#define FG__MARK_SEEN 0x80000000u

static void fg__penalize(const fg_sampling *p, float *logit, uint32_t mark) {
    uint32_t count = mark & ~FG__MARK_SEEN;
    if (fg__has_repetition_penalty(p) && *logit > 0.0f) *logit /= p->repetition_penalty;
    else if (fg__has_repetition_penalty(p)) *logit *= p->repetition_penalty;
    if (count) *logit -= p->presence_penalty + (float)count * p->frequency_penalty;
}

/* Repetition (Keskar et al., arXiv 1909.05858) looks at prompt and output, presence and frequency at the output. */
static void fg__apply_penalties(const fg_sampling *p, const fg__sample_input *in, float *x, uint32_t *marks) {
    int i, first = p->penalty_window > 0 ? FG__MAX(0, in->n_history - p->penalty_window) : 0;
    for (i = first; i < in->n_history; i++) {
        int32_t token = in->history[i];
        if (token < 0 || token >= in->n_vocab) continue;
        marks[token] |= FG__MARK_SEEN;
        if (i >= in->n_prompt) marks[token]++;
    }
    for (i = first; i < in->n_history; i++) {
        int32_t token = in->history[i];
        if (token < 0 || token >= in->n_vocab || !marks[token]) continue;
        fg__penalize(p, &x[token], marks[token]);
        marks[token] = 0;
    }
}

/* Logits with penalties, then bias, then bans, in scratch; or the input itself when nothing changes them. */
static const float *fg__changed_logits(const fg_sampling *p, const fg__sample_input *in, fg__sample_scratch *scratch) {
    float *x = scratch->logits;
    int i;
    if (!fg__has_penalties(p) && p->n_logit_bias == 0 && in->n_banned == 0) return in->logits;
    memcpy(x, in->logits, (size_t)in->n_vocab * sizeof(float));
    if (fg__has_penalties(p)) fg__apply_penalties(p, in, x, scratch->marks);
    for (i = 0; i < p->n_logit_bias; i++) x[p->logit_bias[i].token] += p->logit_bias[i].bias;
    for (i = 0; i < in->n_banned; i++)
        if (in->banned[i] >= 0 && in->banned[i] < in->n_vocab) x[in->banned[i]] = -INFINITY;
    return x;
}

/* A copy where +inf is the largest float, so that differences stay numbers. */
static const float *fg__bounded_logits(const float *x, int n, float *copy) {
    int i;
    for (i = 0; i < n; i++) copy[i] = x[i] > FLT_MAX ? FLT_MAX : x[i];
    return copy;
}

static int32_t fg__choose(const fg_sampling *p, const fg__sample_input *in, fg__sample_scratch *scratch) {
    const float *x = fg__changed_logits(p, in, scratch);
    float max = fg__max_logit(x, in->n_vocab);
    double known_sum = 0.0;
    if (max == -INFINITY) { /* all banned, or not numbers: the model's own choice, or token 0 */
        x = in->logits;
        return fg__find_logit(x, in->n_vocab, fg__max_logit(x, in->n_vocab));
    }
    if (p->temperature <= 0.0f) return fg__find_logit(x, in->n_vocab, max);
    if (max > FLT_MAX) {
        x = fg__bounded_logits(x, in->n_vocab, scratch->logits);
        max = FLT_MAX;
    } else if (x == in->logits && in->row && in->row->log_sum_exp >= max && in->row->log_sum_exp <= FLT_MAX) {
        known_sum = exp((double)in->row->log_sum_exp - (double)max);
    }
    return fg__draw(p, x, in->n_vocab, max, known_sum, fg__uniform(in->seed, in->position), scratch);
}

/* ---- log-probabilities ---- */

static double fg__log_sum_exp(const fg__sample_input *in) {
    float max;
    if (in->row && fabsf(in->row->log_sum_exp) <= FLT_MAX) return in->row->log_sum_exp;
    max = fg__max_logit(in->logits, in->n_vocab);
    return (double)max + log(fg__sum_exp(in->logits, in->n_vocab, max, 1.0f));
}

/* Never above 0, and -INFINITY for what is not a number. */
static float fg__logprob(float logit, double log_sum_exp) {
    double value = (double)logit - log_sum_exp;
    return value <= 0.0 ? (float)value : value > 0.0 ? 0.0f : -INFINITY;
}

/* The n best tokens of the raw logits, best first. */
static int fg__top_logprobs(const fg__sample_input *in, int n, double log_sum_exp, fg__candidate *c,
                            fg_token_logprob *top) {
    int count = fg__gather_best(in->logits, in->n_vocab, n, c), i, j;
    for (i = 1; i < count; i++) { /* insertion sort of at most FG_MAX_TOP_LOGPROBS; equals stay in order of id */
        fg__candidate item = c[i];
        for (j = i; j > 0 && c[j - 1].key > item.key; j--) c[j] = c[j - 1];
        c[j] = item;
    }
    for (i = 0; i < count; i++) {
        top[i].token = c[i].id;
        top[i].logprob = fg__logprob(c[i].logit, log_sum_exp);
    }
    return count;
}

/* Without logits: the device's argmax. */
static fg_result fg__sample_row(const fg__sampler *s, const fg__sample_input *in, fg__sample_output *out) {
    if (!in->row || in->n_banned || in->n_top || fg__sampler_needs_logits(s))
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "sampling needs logits that were not kept");
    out->token = in->row->token >= 0 && in->row->token < in->n_vocab ? in->row->token : 0;
    if (in->want_logprob) out->logprob = fg__logprob(in->row->logit, in->row->log_sum_exp);
    return FG_OK;
}

/* Chooses the token at in->position. Errors: OUT_OF_MEMORY (the first time, or with a larger vocabulary),
   INVALID_ARGUMENT (logits are needed and missing, an empty vocabulary). The parameters must have passed
   fg__sampler_check. Where a caller changed the logits after the device's argmax, in->row must be NULL. */
static fg_result fg__sample(const fg__env *env, fg__sample_scratch *scratch, const fg__sampler *s,
                            const fg__sample_input *in, fg__sample_output *out) {
    fg_result result;
    double log_sum_exp;
    int n_top = FG__MIN(FG__MIN(in->n_top, FG_MAX_TOP_LOGPROBS), in->n_vocab);
    memset(out, 0, sizeof(*out));
    if (in->n_vocab <= 0)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "nothing to sample from: n_vocab is %d", in->n_vocab);
    if (!in->logits) return fg__sample_row(s, in, out);
    result = fg__sample_scratch_reserve(env, scratch, in->n_vocab);
    if (result != FG_OK) return result;
    if (!fg__sampler_needs_logits(s) && !in->n_banned && in->row && in->row->token >= 0 && in->row->token < in->n_vocab)
        out->token = in->row->token;
    else
        out->token = fg__choose(&s->p, in, scratch);
    if (!in->want_logprob && n_top <= 0) return FG_OK;
    log_sum_exp = fg__log_sum_exp(in);
    out->logprob = fg__logprob(in->logits[out->token], log_sum_exp);
    if (n_top > 0) out->n_top = fg__top_logprobs(in, n_top, log_sum_exp, scratch->candidates, out->top);
    return FG_OK;
}

/* ================================================================================================
   >>kv  the KV block manager: block tables, reference counts, copy on write, prefix cache

   A pure data structure: no device, no clock, no thread. Blocks are numbers; what they hold is the device's affair.
   A cache group is a set of layers that share a block table. A sequence has one table per group, indexed by
   position / block_tokens. In a sliding-window group the blocks that fell out of the window are given back: -1.

   A block is in exactly one state:
     used    refs > 0; it may also be findable by its key (full blocks of a computed prefix)
     cached  refs = 0, findable by key, in the LRU list
     free    refs = 0, no key, in the free list
   ================================================================================================ */

/* 128 bits that stand for a whole prefix: hash of the parent's key and of the block's tokens. */
typedef struct fg__key {
    uint64_t a, b;
} fg__key;

typedef struct fg__block {
    int32_t refs;
    bool has_key;
    fg__key key;
    int32_t chain;      /* next block in the hash bucket */
    int32_t prev, next; /* LRU list while cached; next alone: free list */
} fg__block;

typedef struct fg__kv_group {
    int32_t window; /* 0: full attention */
    int32_t n_blocks, n_free, n_cached;
    int32_t free_head, lru_head, lru_tail; /* LRU: oldest at the head */
    uint32_t bucket_mask;
    int32_t *buckets;
    fg__block *blocks;
} fg__kv_group;

typedef struct fg__kv {
    const fg__env *env;
    int32_t n_groups, block_tokens, shift; /* block_tokens = 1 << shift */
    bool prefix_cache;
    fg__key root; /* parent key of first blocks */
    fg__kv_group groups[FG_MAX_GROUPS];
} fg__kv;

/* A sequence's share of the pool. Tables are allocated once, for the longest the sequence may become. */
typedef struct fg__kv_seq {
    int32_t *tables[FG_MAX_GROUPS];
    int32_t capacity;                   /* entries of each table */
    int32_t n_blocks;                   /* entries in use */
    int32_t first_live[FG_MAX_GROUPS];  /* entries before it are -1 */
    int32_t n_keyed;                    /* leading blocks whose keys are known */
    fg__key *keys;                      /* [capacity] */
} fg__kv_seq;

static uint64_t fg__mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

/* Two independent multiply-xorshift lanes over the tokens. */
static fg__key fg__key_of(fg__key parent, const int32_t *tokens, int32_t n) {
    fg__key key;
    int32_t i;
    key.a = parent.a ^ 0x9E3779B97F4A7C15ull;
    key.b = parent.b ^ 0xC2B2AE3D27D4EB4Full;
    for (i = 0; i < n; i++) {
        key.a = fg__mix(key.a + (uint64_t)(uint32_t)tokens[i] * 0xD6E8FEB86659FD93ull + 1);
        key.b = fg__mix(key.b ^ ((uint64_t)(uint32_t)tokens[i] + 0xA0761D6478BD642Full) * 0xE7037ED1A0B428DBull);
    }
    return key;
}

static void fg__kv_destroy(fg__kv *kv) {
    int g;
    for (g = 0; g < kv->n_groups; g++) {
        fg__free(kv->env, kv->groups[g].blocks);
        fg__free(kv->env, kv->groups[g].buckets);
    }
    memset(kv, 0, sizeof(*kv));
}

static void fg__kv_group_reset(fg__kv_group *group) {
    int32_t i;
    uint32_t b;
    for (i = 0; i < group->n_blocks; i++) {
        memset(&group->blocks[i], 0, sizeof(fg__block));
        group->blocks[i].next = i + 1 < group->n_blocks ? i + 1 : -1;
    }
    for (b = 0; b <= group->bucket_mask; b++) group->buckets[b] = -1;
    group->free_head = group->n_blocks ? 0 : -1;
    group->lru_head = group->lru_tail = -1;
    group->n_free = group->n_blocks;
    group->n_cached = 0;
}

/* n_blocks and window of each group come from `groups`; `salt` makes keys differ between models and engines. */
static fg_result fg__kv_init(fg__kv *kv, const fg__env *env, const fg_group *groups, int n_groups, bool prefix_cache,
                             uint64_t salt) {
    int g;
    memset(kv, 0, sizeof(*kv));
    kv->env = env;
    kv->n_groups = n_groups;
    kv->block_tokens = groups[0].block_tokens;
    while ((1 << kv->shift) < kv->block_tokens) kv->shift++;
    kv->prefix_cache = prefix_cache;
    kv->root.a = fg__mix(salt + 1);
    kv->root.b = fg__mix(~salt);
    for (g = 0; g < n_groups; g++) {
        fg__kv_group *group = &kv->groups[g];
        uint32_t buckets = 16;
        while (buckets < (uint32_t)groups[g].n_blocks * 2) buckets *= 2;
        group->window = groups[g].kind == FG_GROUP_WINDOW ? groups[g].window : 0;
        group->n_blocks = groups[g].n_blocks;
        group->bucket_mask = buckets - 1;
        group->blocks = (fg__block *)fg__malloc(env, (size_t)group->n_blocks, sizeof(fg__block));
        group->buckets = (int32_t *)fg__malloc(env, buckets, sizeof(int32_t));
        if (!group->blocks || !group->buckets) {
            fg__kv_destroy(kv);
            return FG_ERROR_OUT_OF_MEMORY;
        }
        fg__kv_group_reset(group);
    }
    return FG_OK;
}

static void fg__kv_seq_destroy(const fg__env *env, fg__kv_seq *seq) {
    int g;
    for (g = 0; g < FG_MAX_GROUPS; g++) fg__free(env, seq->tables[g]);
    fg__free(env, seq->keys);
    memset(seq, 0, sizeof(*seq));
}

/* Blocks that `tokens` tokens fill, the last one perhaps partly. */
static int32_t fg__kv_blocks_of(const fg__kv *kv, int64_t tokens) {
    return (int32_t)((tokens + kv->block_tokens - 1) >> kv->shift);
}

static fg_result fg__kv_seq_init(const fg__kv *kv, fg__kv_seq *seq, int32_t max_tokens) {
    int g;
    memset(seq, 0, sizeof(*seq));
    seq->capacity = fg__kv_blocks_of(kv, max_tokens);
    seq->keys = (fg__key *)fg__malloc(kv->env, (size_t)seq->capacity, sizeof(fg__key));
    for (g = 0; seq->keys && g < kv->n_groups; g++) {
        seq->tables[g] = (int32_t *)fg__malloc(kv->env, (size_t)seq->capacity, sizeof(int32_t));
        if (!seq->tables[g]) break;
    }
    if (g == kv->n_groups) return FG_OK;
    fg__kv_seq_destroy(kv->env, seq);
    return FG_ERROR_OUT_OF_MEMORY;
}

/* ---- the states of a block -------------------------------------------------------------------- */

static bool fg__key_equal(fg__key x, fg__key y) { return x.a == y.a && x.b == y.b; }

static int32_t fg__kv_find(const fg__kv_group *group, fg__key key) {
    int32_t i = group->buckets[key.a & group->bucket_mask];
    while (i >= 0 && !fg__key_equal(group->blocks[i].key, key)) i = group->blocks[i].chain;
    return i;
}

static void fg__kv_lru_remove(fg__kv_group *group, int32_t i) {
    fg__block *block = &group->blocks[i];
    if (block->prev >= 0) group->blocks[block->prev].next = block->next;
    else group->lru_head = block->next;
    if (block->next >= 0) group->blocks[block->next].prev = block->prev;
    else group->lru_tail = block->prev;
    group->n_cached--;
}

static void fg__kv_lru_push(fg__kv_group *group, int32_t i) {
    fg__block *block = &group->blocks[i];
    block->prev = group->lru_tail;
    block->next = -1;
    if (group->lru_tail >= 0) group->blocks[group->lru_tail].next = i;
    else group->lru_head = i;
    group->lru_tail = i;
    group->n_cached++;
}

static void fg__kv_set_key(fg__kv_group *group, int32_t i, fg__key key) {
    fg__block *block = &group->blocks[i];
    int32_t *bucket = &group->buckets[key.a & group->bucket_mask];
    block->key = key;
    block->has_key = true;
    block->chain = *bucket;
    *bucket = i;
}

static void fg__kv_drop_key(fg__kv_group *group, int32_t i) {
    int32_t *link = &group->buckets[group->blocks[i].key.a & group->bucket_mask];
    while (*link != i) link = &group->blocks[*link].chain;
    *link = group->blocks[i].chain;
    group->blocks[i].has_key = false;
}

static void fg__kv_free_push(fg__kv_group *group, int32_t i) {
    group->blocks[i].next = group->free_head;
    group->free_head = i;
    group->n_free++;
}

/* Blocks that an allocation can have: free ones, then the prefix that was not used for longest. */
static int32_t fg__kv_available(const fg__kv_group *group) { return group->n_free + group->n_cached; }

static int32_t fg__kv_take(fg__kv_group *group) {
    int32_t i = group->free_head;
    if (i >= 0) {
        group->free_head = group->blocks[i].next;
        group->n_free--;
    } else {
        i = group->lru_head;
        fg__kv_lru_remove(group, i);
        fg__kv_drop_key(group, i);
    }
    group->blocks[i].refs = 1;
    return i;
}

static void fg__kv_ref(fg__kv_group *group, int32_t i) {
    if (group->blocks[i].refs++ == 0) fg__kv_lru_remove(group, i);
}

static void fg__kv_unref(fg__kv_group *group, int32_t i) {
    if (--group->blocks[i].refs > 0) return;
    if (group->blocks[i].has_key) fg__kv_lru_push(group, i);
    else fg__kv_free_push(group, i);
}

/* ---- sequences -------------------------------------------------------------------------------- */

/* The first position that a token at `position` still sees in this group. */
static int32_t fg__kv_first_seen(const fg__kv_group *group, int32_t position) {
    return group->window && position >= group->window ? position - group->window + 1 : 0;
}

/* Gives back all blocks, the last ones first, so that of a cached prefix the end is forgotten before its start. */
static void fg__kv_release(fg__kv *kv, fg__kv_seq *seq) {
    int g;
    int32_t i;
    for (g = 0; g < kv->n_groups; g++) {
        for (i = seq->n_blocks - 1; i >= seq->first_live[g]; i--) fg__kv_unref(&kv->groups[g], seq->tables[g][i]);
        seq->first_live[g] = 0;
    }
    seq->n_blocks = 0;
    seq->n_keyed = 0;
}

/* Gives back blocks that no token from `position` on can see. */
static void fg__kv_trim(fg__kv *kv, fg__kv_seq *seq, int32_t position) {
    int g;
    for (g = 0; g < kv->n_groups; g++) {
        int32_t first = FG__MIN(fg__kv_first_seen(&kv->groups[g], position) >> kv->shift, seq->n_blocks);
        int32_t i = seq->first_live[g];
        for (; i < first; i++) {
            fg__kv_unref(&kv->groups[g], seq->tables[g][i]);
            seq->tables[g][i] = -1;
        }
        seq->first_live[g] = FG__MAX(first, seq->first_live[g]);
    }
}

/* A block that is shared, or findable as a prefix, must not be written: its next writer gets a copy. */
static bool fg__kv_needs_copy(const fg__kv_group *group, const fg__kv_seq *seq, int g, int32_t entry) {
    return entry < seq->n_blocks && entry >= seq->first_live[g] && group->blocks[seq->tables[g][entry]].refs > 1;
}

/* Blocks that growing from n_from computed tokens to n_to takes from group g. */
static int32_t fg__kv_cost(const fg__kv *kv, const fg__kv_seq *seq, int g, int32_t n_from, int32_t n_to) {
    int32_t cost = FG__MAX(fg__kv_blocks_of(kv, n_to) - seq->n_blocks, 0);
    return cost + (n_to > n_from && fg__kv_needs_copy(&kv->groups[g], seq, g, n_from >> kv->shift) ? 1 : 0);
}

/* Makes room for tokens n_from .. n_to-1, which are about to be written: all or nothing, in every group. Copies that the
   device must do before are appended to `copies` (room for one per group). False: not enough blocks, nothing changed. */
static bool fg__kv_grow(fg__kv *kv, fg__kv_seq *seq, int32_t n_from, int32_t n_to, fg_block_copy *copies, int *n_copies) {
    int g;
    int32_t wanted = fg__kv_blocks_of(kv, n_to), entry = n_from >> kv->shift, i;
    for (g = 0; g < kv->n_groups; g++)
        if (fg__kv_cost(kv, seq, g, n_from, n_to) > fg__kv_available(&kv->groups[g])) return false;
    for (g = 0; g < kv->n_groups; g++) {
        fg__kv_group *group = &kv->groups[g];
        if (n_to > n_from && fg__kv_needs_copy(group, seq, g, entry)) {
            fg_block_copy *copy = &copies[(*n_copies)++];
            copy->group = g;
            copy->from = seq->tables[g][entry];
            copy->to = fg__kv_take(group);
            fg__kv_unref(group, copy->from);
            seq->tables[g][entry] = copy->to;
        }
        for (i = seq->n_blocks; i < wanted; i++) seq->tables[g][i] = fg__kv_take(group);
    }
    seq->n_blocks = FG__MAX(seq->n_blocks, wanted);
    return true;
}

/* Gives an empty sequence new blocks for n tokens, but none before the entries `first`: all or nothing. */
static bool fg__kv_restore(fg__kv *kv, fg__kv_seq *seq, int32_t n, const int32_t *first) {
    int32_t blocks = fg__kv_blocks_of(kv, n), i;
    int g;
    for (g = 0; g < kv->n_groups; g++)
        if (blocks - first[g] > fg__kv_available(&kv->groups[g])) return false;
    for (g = 0; g < kv->n_groups; g++) {
        for (i = 0; i < blocks; i++) seq->tables[g][i] = i < first[g] ? -1 : fg__kv_take(&kv->groups[g]);
        seq->first_live[g] = FG__MIN(first[g], blocks);
    }
    seq->n_blocks = blocks;
    seq->n_keyed = 0;
    return true;
}

/* Gives back the blocks behind the first n tokens. */
static void fg__kv_truncate(fg__kv *kv, fg__kv_seq *seq, int32_t n) {
    int32_t wanted = fg__kv_blocks_of(kv, n), i;
    int g;
    for (g = 0; g < kv->n_groups; g++)
        for (i = seq->n_blocks - 1; i >= FG__MAX(wanted, seq->first_live[g]); i--) fg__kv_unref(&kv->groups[g], seq->tables[g][i]);
    seq->n_blocks = FG__MIN(seq->n_blocks, wanted);
}

/* After `n` tokens of the sequence are computed: makes its full blocks findable. */
static void fg__kv_commit(fg__kv *kv, fg__kv_seq *seq, const int32_t *tokens, int32_t n) {
    int32_t full = FG__MIN(n >> kv->shift, seq->n_blocks), i;
    int g;
    if (!kv->prefix_cache) return;
    for (i = seq->n_keyed; i < full; i++) {
        fg__key parent = i ? seq->keys[i - 1] : kv->root;
        seq->keys[i] = fg__key_of(parent, tokens + ((size_t)i << kv->shift), kv->block_tokens);
        for (g = 0; g < kv->n_groups; g++) {
            fg__kv_group *group = &kv->groups[g];
            if (i < seq->first_live[g] || group->blocks[seq->tables[g][i]].has_key) continue;
            if (fg__kv_find(group, seq->keys[i]) < 0) fg__kv_set_key(group, seq->tables[g][i], seq->keys[i]);
        }
    }
    seq->n_keyed = FG__MAX(seq->n_keyed, full);
}

/* True when group g caches every block that a token at block border `n_blocks` still sees. `run`: how many blocks in a
   row, ending at n_blocks-1, it has. */
static bool fg__kv_covers(const fg__kv *kv, int g, int32_t n_blocks, int32_t run) {
    int32_t first = fg__kv_first_seen(&kv->groups[g], n_blocks << kv->shift) >> kv->shift;
    return run >= n_blocks - first;
}

/* The longest cached prefix of tokens[0..n-1], in blocks, at least one token short of all (its logits are wanted).
   Fills seq->keys on the way. */
static int32_t fg__kv_lookup(const fg__kv *kv, fg__kv_seq *seq, const int32_t *tokens, int32_t n) {
    int32_t run[FG_MAX_GROUPS] = {0}, limit = n > 0 ? (n - 1) >> kv->shift : 0, best = 0, i;
    int g;
    for (i = 0; i < limit; i++) {
        bool covered = true;
        seq->keys[i] = fg__key_of(i ? seq->keys[i - 1] : kv->root, tokens + ((size_t)i << kv->shift), kv->block_tokens);
        for (g = 0; g < kv->n_groups; g++) {
            run[g] = fg__kv_find(&kv->groups[g], seq->keys[i]) >= 0 ? run[g] + 1 : 0;
            if (!run[g] && !kv->groups[g].window) return best;
            covered = covered && fg__kv_covers(kv, g, i + 1, run[g]);
        }
        if (covered) best = i + 1;
    }
    return best;
}

/* Gives an empty sequence the longest cached prefix of its tokens; returns how many tokens that covers. */
static int32_t fg__kv_match(fg__kv *kv, fg__kv_seq *seq, const int32_t *tokens, int32_t n) {
    int32_t blocks = kv->prefix_cache ? fg__kv_lookup(kv, seq, tokens, n) : 0, i;
    int g;
    for (g = 0; g < kv->n_groups; g++) {
        fg__kv_group *group = &kv->groups[g];
        int32_t first = fg__kv_first_seen(group, blocks << kv->shift) >> kv->shift;
        for (i = 0; i < blocks; i++) seq->tables[g][i] = i < first ? -1 : fg__kv_find(group, seq->keys[i]);
        for (i = first; i < blocks; i++) fg__kv_ref(group, seq->tables[g][i]);
        seq->first_live[g] = FG__MIN(first, blocks);
    }
    seq->n_blocks = blocks;
    seq->n_keyed = blocks;
    return blocks << kv->shift;
}

/* Makes the empty sequence `to` share all blocks of `from`; the partial last block is copied when one of them writes. */
static void fg__kv_fork(fg__kv *kv, const fg__kv_seq *from, fg__kv_seq *to) {
    int g;
    int32_t i;
    for (g = 0; g < kv->n_groups; g++) {
        memcpy(to->tables[g], from->tables[g], (size_t)from->n_blocks * sizeof(int32_t));
        for (i = from->first_live[g]; i < from->n_blocks; i++) fg__kv_ref(&kv->groups[g], from->tables[g][i]);
        to->first_live[g] = from->first_live[g];
    }
    memcpy(to->keys, from->keys, (size_t)from->n_keyed * sizeof(fg__key));
    to->n_blocks = from->n_blocks;
    to->n_keyed = from->n_keyed;
}

/* Forgets cached prefixes; blocks in use stay, but are not findable any more. */
static void fg__kv_forget(fg__kv *kv) {
    int g;
    int32_t i;
    for (g = 0; g < kv->n_groups; g++) {
        fg__kv_group *group = &kv->groups[g];
        for (i = 0; i < group->n_blocks; i++) {
            if (!group->blocks[i].has_key) continue;
            fg__kv_drop_key(group, i);
            if (group->blocks[i].refs) continue;
            fg__kv_lru_remove(group, i);
            fg__kv_free_push(group, i);
        }
    }
}

/* The most blocks of group g that a sequence of n tokens ever holds at once, computed `chunk` tokens at a time. */
static int32_t fg__kv_peak(const fg__kv *kv, int g, int32_t n, int32_t chunk) {
    int32_t all = fg__kv_blocks_of(kv, n), window = kv->groups[g].window;
    if (!window) return all;
    return FG__MIN(all, fg__kv_blocks_of(kv, (int64_t)window + chunk) + 1);
}

/* ================================================================================================
   >>sched  which tokens of which sequences make the next pass

   A pure data structure over >>kv. Dynamic SplitFuse (DeepSpeed-FastGen, arXiv 2401.08671): decodes first, one token each;
   the rest of the token budget goes to prompts, oldest first, split and fused to fill it.

   Order: a sequence's `rank` is the pass in which it arrived minus its head start (priority x head_start). The lower rank
   goes first. Since rank never changes while newcomers' ranks grow, everybody becomes the first some time: ageing.
   Under pressure the sequence of highest rank is preempted: it gives back its blocks, waits in its old place, and later
   computes its tokens again. The first in the order is never preempted, and alone it fits the pool: there is no deadlock.
   ================================================================================================ */

/* A sequence as the scheduler sees it. The engine embeds it. */
typedef struct fg__seq {
    int64_t rank;
    uint64_t serial;        /* breaks ties: order of arrival */
    const int32_t *tokens;  /* prompt and what was generated so far */
    int32_t n_tokens;       /* known tokens */
    int32_t n_computed;     /* of these, whose KV is in the pool */
    int32_t n_cached;       /* of these, taken from the prefix cache when last admitted */
    int32_t n_scheduled;    /* to be computed by this pass */
    int32_t n_draft;        /* guesses that lie behind the known tokens */
    int32_t n_drafted;      /* of n_scheduled, those that are guesses */
    bool no_match;          /* needs the logits of its whole prompt: may not start from a cached prefix */
    bool every_row;         /* each of its tokens takes a row of logits */
    bool running;
    uint32_t n_preemptions;
    int32_t n_swapped;      /* tokens whose KV is kept outside of the pool; 0: none */
    int32_t swap_first[FG_MAX_GROUPS]; /* of these, the first block of each group that is kept */
    fg__kv_seq kv;
} fg__seq;

/* Sequences in order of rank. */
typedef struct fg__seq_list {
    fg__seq **items;
    size_t count, capacity;
} fg__seq_list;

/* Seconds of a pass, t = a + b * tokens + c * KV tokens read, by recursive least squares with exponential forgetting.
   Everything is in units of the first pass's time, FG__COST_TOKENS and FG__COST_KV, so that all numbers are near 1. */
typedef struct fg__cost {
    double unit;       /* seconds; 0: no pass was measured yet */
    double theta[3];   /* a, b, c */
    double p[3][3];    /* covariance over the variance of the noise */
    double noise;      /* mean size of the last errors */
    int64_t n;
} fg__cost;

enum { FG__COST_TOKENS = 256, FG__COST_KV = 4096 };

typedef struct fg__sched {
    const fg__env *env;
    fg__kv *kv;
    fg_policy policy;
    bool even_split;
    int32_t max_seqs, max_rows, max_tokens; /* of a pass; max_tokens bounds whole prompts (orca, static) */
    uint64_t n_passes, next_serial, n_preemptions, prefix_queries, prefix_hits;
    fg__seq_list waiting, running;
    bool (*swap)(void *user, fg__seq *seq, bool out); /* moves the sequence's blocks out or in; may be NULL. False: it did not */
    void *swap_user;
    fg__cost cost;
    double target;           /* seconds of a pass that has decodes: prompts fill it up to here; INFINITY: no target */
    double deadline;         /* seconds of any pass, of which at least one token is made; INFINITY: none */
    int starved;             /* passes in a row in which the target left nothing for a prompt */
    bool turn;               /* the last pass did not hold all decodes: the next begins after this one */
    int64_t turn_rank;
    uint64_t turn_serial;
    /* the pass being made */
    double seconds;          /* expected so far */
    double limit;            /* of `seconds`, for prompts */
    fg__seq_list pass;       /* in batch order: one-token sequences first */
    fg_block_copy *copies;   /* [max_seqs * FG_MAX_GROUPS] */
    int n_copies;
    int32_t given, budget, n_rows; /* tokens of the pass: all, and those left */
} fg__sched;

/* ---- the time of a pass ------------------------------------------------------------------------ */

static void fg__cost_start(fg__cost *c, double seconds) {
    int i;
    memset(c, 0, sizeof(*c));
    c->unit = seconds;
    c->theta[0] = 0.5;
    c->theta[1] = 0.5;
    for (i = 0; i < 3; i++) c->p[i][i] = 1e4;
}

/* The covariance after a pass of x. It grows by forgetting only so far: a direction in which nothing happens for long
   must not become so uncertain that the noise of the next pass decides it. */
static void fg__cost_update(fg__cost *c, const double *px, double scale) {
    double trace = c->p[0][0] + c->p[1][1] + c->p[2][2], keep = trace < 1e4 ? 0.99 : 1;
    int i, k;
    for (i = 0; i < 3; i++)
        for (k = 0; k <= i; k++) c->p[i][k] = c->p[k][i] = (c->p[i][k] - px[i] * px[k] / scale) / keep;
}

/* Learns from a pass. An error far beyond the usual ones counts as a smaller one: machines have hiccups. */
static void fg__cost_add(fg__cost *c, double tokens, double kv_tokens, double seconds) {
    double x[3], px[3], error, scale = 0.99;
    int i;
    if (!(seconds > 0 && seconds < 1e6)) return;
    if (!(c->unit > 0)) fg__cost_start(c, seconds);
    x[0] = 1;
    x[1] = tokens / FG__COST_TOKENS;
    x[2] = kv_tokens / FG__COST_KV;
    error = seconds / c->unit;
    for (i = 0; i < 3; i++) {
        px[i] = c->p[i][0] * x[0] + c->p[i][1] * x[1] + c->p[i][2] * x[2];
        scale += x[i] * px[i];
        error -= x[i] * c->theta[i];
    }
    if (c->n > 16) error = FG__MAX(FG__MIN(error, 8 * c->noise + 0.02), -8 * c->noise - 0.02);
    for (i = 0; i < 3; i++) c->theta[i] += px[i] / scale * error;
    fg__cost_update(c, px, scale);
    c->noise += (fabs(error) - c->noise) * (c->n < 16 ? 1 / (double)(c->n + 1) : 0.05);
    c->n++;
}

static double fg__cost_pass(const fg__cost *c) { return FG__MAX(c->theta[0], 0) * c->unit; }
static double fg__cost_token(const fg__cost *c) { return FG__MAX(c->theta[1], 0) * c->unit / FG__COST_TOKENS; }
static double fg__cost_kv(const fg__cost *c) { return FG__MAX(c->theta[2], 0) * c->unit / FG__COST_KV; }

/* ---- lists ------------------------------------------------------------------------------------ */

static bool fg__seq_before(const fg__seq *x, const fg__seq *y) {
    return x->rank != y->rank ? x->rank < y->rank : x->serial < y->serial;
}

/* Room for one more was reserved when the sequence was accepted. */
static void fg__seq_list_insert(fg__seq_list *list, fg__seq *seq) {
    size_t low = 0, high = list->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (fg__seq_before(list->items[middle], seq)) low = middle + 1;
        else high = middle;
    }
    memmove(list->items + low + 1, list->items + low, (list->count - low) * sizeof(fg__seq *));
    list->items[low] = seq;
    list->count++;
}

static void fg__seq_list_remove(fg__seq_list *list, fg__seq *seq) {
    size_t i = 0;
    while (i < list->count && list->items[i] != seq) i++;
    if (i == list->count) return;
    memmove(list->items + i, list->items + i + 1, (list->count - i - 1) * sizeof(fg__seq *));
    list->count--;
}

static bool fg__seq_list_reserve(const fg__env *env, fg__seq_list *list, size_t count) {
    void *items = list->items;
    bool ok = fg__reserve(env, &items, &list->capacity, count, sizeof(fg__seq *));
    list->items = (fg__seq **)items;
    return ok;
}

static void fg__sched_destroy(fg__sched *s) {
    fg__free(s->env, s->waiting.items);
    fg__free(s->env, s->running.items);
    fg__free(s->env, s->pass.items);
    fg__free(s->env, s->copies);
    memset(s, 0, sizeof(*s));
}

static fg_result fg__sched_init(fg__sched *s, const fg__env *env, fg__kv *kv, const fg_engine_desc *desc,
                                int32_t max_tokens, int32_t max_rows) {
    memset(s, 0, sizeof(*s));
    s->env = env;
    s->kv = kv;
    s->policy = desc->policy;
    s->even_split = !desc->no_even_split;
    s->next_serial = 1; /* 0: a sequence that was never added */
    s->max_seqs = desc->max_seqs;
    s->max_rows = max_rows;
    s->max_tokens = max_tokens;
    s->target = desc->target_tbt_ms > 0 && desc->policy == FG_POLICY_SPLITFUSE ? (double)desc->target_tbt_ms / 1e3 : HUGE_VAL;
    s->deadline = HUGE_VAL;
    s->copies = (fg_block_copy *)fg__malloc(env, (size_t)desc->max_seqs * FG_MAX_GROUPS, sizeof(fg_block_copy));
    if (s->copies && fg__seq_list_reserve(env, &s->running, (size_t)desc->max_seqs) &&
        fg__seq_list_reserve(env, &s->pass, (size_t)desc->max_seqs))
        return FG_OK;
    fg__sched_destroy(s);
    return FG_ERROR_OUT_OF_MEMORY;
}

/* Takes in a sequence whose tokens, kv and flags are set. `head_start`: passes it is let ahead. The list of the waiting
   has room for everybody, so that preemption needs no memory. */
static fg_result fg__sched_add(fg__sched *s, fg__seq *seq, int64_t head_start) {
    if (!fg__seq_list_reserve(s->env, &s->waiting, s->waiting.count + s->running.count + 1))
        return FG_ERROR_OUT_OF_MEMORY;
    seq->rank = (int64_t)s->n_passes - head_start;
    seq->serial = s->next_serial++;
    fg__seq_list_insert(&s->waiting, seq);
    return FG_OK;
}

/* Takes a sequence out, wherever it is, and gives back its blocks. */
static void fg__sched_remove(fg__sched *s, fg__seq *seq) {
    fg__seq_list_remove(seq->running ? &s->running : &s->waiting, seq);
    fg__kv_release(s->kv, &seq->kv);
    seq->running = false;
}

/* Lets `child`, which is new, go on from where `parent` is, sharing its blocks. False: no place, add it instead. */
static bool fg__sched_fork(fg__sched *s, const fg__seq *parent, fg__seq *child) {
    if (s->running.count >= (size_t)s->max_seqs) return false;
    if (!fg__seq_list_reserve(s->env, &s->waiting, s->waiting.count + s->running.count + 1)) return false;
    fg__kv_fork(s->kv, &parent->kv, &child->kv);
    child->rank = parent->rank;
    child->serial = s->next_serial++;
    child->n_computed = parent->n_computed;
    child->n_cached = parent->n_cached;
    child->running = true;
    fg__seq_list_insert(&s->running, child);
    return true;
}

/* Takes the copies into a sequence's blocks out of the pass: the blocks will be others'. */
static void fg__sched_drop_copies(fg__sched *s, const fg__seq *seq) {
    int32_t entry = seq->n_computed >> s->kv->shift;
    int i, n = 0;
    for (i = 0; i < s->n_copies; i++) {
        const fg_block_copy *c = &s->copies[i];
        if (entry < seq->kv.n_blocks && seq->kv.tables[c->group][entry] == c->to) continue;
        s->copies[n++] = *c;
    }
    s->n_copies = n;
}

/* One that is already in the pass has blocks that are not as they should be yet: it is not swapped. */
static void fg__sched_preempt(fg__sched *s, fg__seq *seq) {
    int g;
    for (g = 0; g < s->kv->n_groups; g++) seq->swap_first[g] = seq->kv.first_live[g];
    if (seq->n_scheduled) fg__sched_drop_copies(s, seq);
    else if (seq->n_computed > 0 && s->swap && s->swap(s->swap_user, seq, true)) seq->n_swapped = seq->n_computed;
    fg__seq_list_remove(&s->running, seq);
    fg__kv_release(s->kv, &seq->kv);
    seq->running = false;
    seq->n_computed = seq->n_scheduled = seq->n_drafted = 0;
    seq->n_preemptions++;
    s->n_preemptions++;
    fg__seq_list_insert(&s->waiting, seq);
}

/* Preempts the last in the order if that is after `seq`. False: `seq` itself is the last that runs. */
static bool fg__sched_make_room(fg__sched *s, const fg__seq *seq) {
    fg__seq *last = s->running.count ? s->running.items[s->running.count - 1] : NULL;
    if (!last || last == seq || !fg__seq_before(seq, last)) return false;
    fg__sched_preempt(s, last);
    return true;
}

/* KV tokens that n more tokens of `seq` read. */
static int32_t fg__sched_kv(const fg__sched *s, const fg__seq *seq, int32_t n) {
    int32_t first = fg__kv_first_seen(&s->kv->groups[0], seq->n_computed);
    int g;
    for (g = 1; g < s->kv->n_groups; g++) first = FG__MIN(first, fg__kv_first_seen(&s->kv->groups[g], seq->n_computed));
    return seq->n_computed + n - first;
}

static double fg__sched_seconds(const fg__sched *s, const fg__seq *seq, int32_t n) {
    return fg__cost_token(&s->cost) * n + fg__cost_kv(&s->cost) * fg__sched_kv(s, seq, n);
}

/* The most tokens of `seq` that may be added to a pass of `limit` seconds. */
static int32_t fg__sched_until(const fg__sched *s, const fg__seq *seq, double limit) {
    double each = fg__cost_token(&s->cost) + fg__cost_kv(&s->cost), n;
    if (!(limit < HUGE_VAL) || !(each > 0)) return s->budget;
    n = (limit - s->seconds - fg__cost_kv(&s->cost) * fg__sched_kv(s, seq, 0)) / each;
    return n < 1 ? 0 : n < s->budget ? (int32_t)n : s->budget;
}

/* Puts n tokens of `seq` into the pass, preempting whom it must. False: there is no room. */
static bool fg__sched_take(fg__sched *s, fg__seq *seq, int32_t n) {
    while (!fg__kv_grow(s->kv, &seq->kv, seq->n_computed, seq->n_computed + n, s->copies, &s->n_copies))
        if (!fg__sched_make_room(s, seq)) return false;
    seq->n_scheduled = n;
    s->seconds += fg__sched_seconds(s, seq, n);
    s->budget -= n;
    s->n_rows += seq->every_row ? n : 1;
    return true;
}

static int32_t fg__seq_left(const fg__seq *seq) { return seq->n_tokens - seq->n_computed; }

/* ---- decodes ---------------------------------------------------------------------------------- */

/* One token more of all that are past their prompt and come after `mark` in the order (`after`), or do not; NULL: of all.
   False: the pass is full. */
static bool fg__sched_decode_some(fg__sched *s, const fg__seq *mark, bool after) {
    size_t i = 0;
    while (i < s->running.count) {
        fg__seq *seq = s->running.items[i++];
        if (fg__seq_left(seq) != 1 || seq->n_scheduled || (mark && fg__seq_before(mark, seq) != after)) continue;
        if (s->budget <= 0 || s->n_rows >= s->max_rows || (s->n_rows && !fg__sched_until(s, seq, s->deadline))) return false;
        if (!fg__sched_take(s, seq, 1)) {
            fg__sched_preempt(s, seq);
            continue;
        }
        s->turn_rank = seq->rank;
        s->turn_serial = seq->serial;
    }
    return true;
}

/* In order of rank; where a pass cannot hold them all, they take turns: the next begins after the one it ended with. */
static void fg__sched_plain_decodes(fg__sched *s) {
    fg__seq mark;
    bool turn = s->turn;
    mark.rank = s->turn_rank;
    mark.serial = s->turn_serial;
    s->turn = !(fg__sched_decode_some(s, turn ? &mark : NULL, true) && (!turn || fg__sched_decode_some(s, &mark, false)));
}

/* Blocks of group g that the running prompts still need to complete, and one for each decode to go on. */
static int64_t fg__sched_reserved(const fg__sched *s, int g) {
    int64_t sum = 0;
    size_t i;
    for (i = 0; i < s->running.count; i++) {
        const fg__seq *seq = s->running.items[i];
        int32_t live = seq->kv.n_blocks - seq->kv.first_live[g];
        int32_t more = fg__kv_peak(s->kv, g, seq->n_tokens, s->max_tokens) - live;
        sum += fg__seq_left(seq) > 1 ? FG__MAX(more, 0) + 1 : 1;
    }
    return sum;
}

/* Whether a running sequence has more than a decode to go. */
static bool fg__sched_left(const fg__sched *s) {
    size_t i;
    for (i = 0; i < s->running.count; i++)
        if (fg__seq_left(s->running.items[i]) > 1) return true;
    return false;
}

/* Guesses behind the decodes of the pass, for as long as they take nothing from others: blocks that nobody was promised, the
   time up to the target, and, while prompts wait, half of what is left of the budget. */
static void fg__sched_drafts(fg__sched *s) {
    int64_t spare[FG_MAX_GROUPS];
    int32_t budget = s->waiting.count || fg__sched_left(s) ? s->budget / 2 : s->budget, n;
    size_t i;
    int g;
    for (g = 0; g < s->kv->n_groups; g++) spare[g] = fg__kv_available(&s->kv->groups[g]) - fg__sched_reserved(s, g);
    for (i = 0; i < s->running.count; i++) {
        fg__seq *seq = s->running.items[i];
        int32_t from = seq->n_computed + 1;
        bool room = true;
        if (!seq->n_draft || seq->n_scheduled != 1 || fg__seq_left(seq) != 1) continue;
        n = FG__MIN(FG__MIN(seq->n_draft, budget), FG__MIN(s->max_rows - s->n_rows, fg__sched_until(s, seq, FG__MIN(s->target, s->deadline))));
        for (g = 0; n > 0 && g < s->kv->n_groups; g++) room = room && fg__kv_cost(s->kv, &seq->kv, g, from, from + n) <= spare[g];
        if (n <= 0 || !room || !fg__kv_grow(s->kv, &seq->kv, from, from + n, s->copies, &s->n_copies)) continue;
        for (g = 0; g < s->kv->n_groups; g++) spare[g] -= (n >> s->kv->shift) + 1;
        seq->n_drafted = n;
        seq->n_scheduled += n;
        s->seconds += fg__cost_token(&s->cost) * n;
        s->budget -= n;
        s->n_rows += n;
        budget -= n;
    }
}

static void fg__sched_decodes(fg__sched *s) {
    fg__sched_plain_decodes(s);
    fg__sched_drafts(s);
}

/* ---- prompts ---------------------------------------------------------------------------------- */

/* True when the pool has room for the whole of `seq` beside what the running ones were promised. */
static bool fg__sched_fits(const fg__sched *s, const fg__seq *seq) {
    int g;
    for (g = 0; g < s->kv->n_groups; g++) {
        int32_t live = seq->kv.n_blocks - seq->kv.first_live[g];
        int64_t need = fg__kv_peak(s->kv, g, seq->n_tokens, s->max_tokens) - live;
        if (s->running.count && need + fg__sched_reserved(s, g) > fg__kv_available(&s->kv->groups[g])) return false;
    }
    return true;
}

/* What the first of the waiting has already: a prefix in the cache, or what was swapped out, which needs no blocks yet. */
static void fg__sched_find(fg__sched *s, fg__seq *seq) {
    seq->n_cached = 0;
    if (!seq->no_match && !seq->n_swapped) seq->n_cached = fg__kv_match(s->kv, &seq->kv, seq->tokens, seq->n_tokens);
}

/* Brings back what was swapped out; where that fails, it is computed again. */
static void fg__sched_swap_in(fg__sched *s, fg__seq *seq) {
    if (seq->n_swapped && fg__kv_restore(s->kv, &seq->kv, seq->n_swapped, seq->swap_first)) {
        if (s->swap(s->swap_user, seq, false)) seq->n_cached = seq->n_swapped;
        else fg__kv_release(s->kv, &seq->kv);
    }
    seq->n_swapped = 0;
}

/* Moves the first of the waiting to the running if it fits; false when not. */
static bool fg__sched_admit(fg__sched *s) {
    fg__seq *seq = s->waiting.count ? s->waiting.items[0] : NULL;
    if (!seq) return false;
    while (s->running.count >= (size_t)s->max_seqs)
        if (!fg__sched_make_room(s, seq)) return false;
    fg__sched_find(s, seq);
    while (!fg__sched_fits(s, seq)) {
        if (fg__sched_make_room(s, seq)) continue;
        fg__kv_release(s->kv, &seq->kv);
        return false;
    }
    if (!seq->no_match && !seq->n_swapped) {
        s->prefix_queries += (uint64_t)seq->n_tokens;
        s->prefix_hits += (uint64_t)seq->n_cached;
    }
    if (seq->n_swapped) fg__sched_swap_in(s, seq);
    seq->n_computed = seq->n_cached;
    fg__seq_list_remove(&s->waiting, seq);
    seq->running = true;
    fg__seq_list_insert(&s->running, seq);
    return true;
}

/* Prompt tokens known to be ahead: those of running prompts and of the waiting that have a place, counted up to `enough`. */
static int64_t fg__sched_pool(const fg__sched *s, int64_t enough) {
    size_t places = (size_t)s->max_seqs - s->running.count, i;
    int64_t sum = 0;
    for (i = 0; i < s->running.count; i++) {
        const fg__seq *seq = s->running.items[i];
        if (!seq->n_scheduled) sum += fg__seq_left(seq);
    }
    for (i = 0; i < s->waiting.count && i < places && sum < enough; i++) sum += s->waiting.items[i]->n_tokens;
    return sum;
}

/* Throughput is concave in tokens per pass, so a pool of P tokens that needs F passes is best spread evenly: P/F each. */
static int32_t fg__even_split(int64_t pool, int32_t budget) {
    int64_t passes = (pool + budget - 1) / budget;
    return passes > 0 ? (int32_t)((pool + passes - 1) / passes) : 0;
}

/* Puts as much of a running prompt as the budget and the rows allow into the pass. */
static bool fg__sched_chunk(fg__sched *s, fg__seq *seq) {
    int32_t n = FG__MIN(fg__seq_left(seq), FG__MIN(s->budget, fg__sched_until(s, seq, s->limit)));
    if (s->n_rows == 0) n = FG__MAX(n, 1);
    if (seq->every_row) n = FG__MIN(n, s->max_rows - s->n_rows);
    return n > 0 && fg__sched_take(s, seq, n);
}

/* As fg__sched_chunk, but the whole prompt or nothing; the first of a pass may exceed the budget. */
static bool fg__sched_whole(fg__sched *s, fg__seq *seq, bool first) {
    int32_t n = fg__seq_left(seq);
    if (seq->every_row || n > s->max_tokens) return fg__sched_chunk(s, seq);
    return (n <= s->budget || first) && fg__sched_take(s, seq, n);
}

/* The first of the running ones that has a prompt to go on with, or NULL. To those who take whole prompts, a last token
   after others is none: it is a decode. */
static fg__seq *fg__sched_prompt(const fg__sched *s, bool whole) {
    size_t i;
    for (i = 0; i < s->running.count; i++) {
        fg__seq *seq = s->running.items[i];
        if (seq->n_scheduled || fg__seq_left(seq) < 1) continue;
        if (!whole || fg__seq_left(seq) > 1 || seq->n_computed == seq->n_cached) return seq;
    }
    return NULL;
}

/* Prompts in order while there is budget: of running sequences, and, with `admit`, of waiting ones. */
static void fg__sched_prompts(fg__sched *s, bool whole, bool admit) {
    bool first = true;
    while (s->budget > 0 && s->n_rows < s->max_rows) {
        fg__seq *seq = fg__sched_prompt(s, whole);
        if (admit && s->waiting.count && (!seq || fg__seq_before(s->waiting.items[0], seq))) {
            admit = fg__sched_admit(s);
            continue;
        }
        if (!seq || !(whole ? fg__sched_whole(s, seq, first) : fg__sched_chunk(s, seq))) break;
        first = false;
    }
}

/* ---- policies --------------------------------------------------------------------------------- */

/* What prompts get when the target leaves them nothing: little, and in every eighth pass; but where the target is out of
   reach for the decodes alone, a block in every pass. */
static void fg__sched_feed(fg__sched *s) {
    double token = fg__cost_token(&s->cost);
    bool missed = s->seconds > s->target;
    int32_t most = s->kv->block_tokens;
    if (!missed && token > 0 && 0.15 * s->target / token < most) most = FG__MAX((int32_t)(0.15 * s->target / token), 1);
    if (!missed && s->starved < 8) return;
    s->budget = FG__MIN(s->budget, most);
    s->limit = s->deadline;
    fg__sched_prompts(s, false, true);
}

/* Prompts beside decodes, within the target. Until the first passes have been measured they grow from a few tokens. */
static void fg__sched_timed(fg__sched *s) {
    int32_t before = s->n_rows;
    double token = fg__cost_token(&s->cost), room = s->target - s->seconds;
    int64_t wanted = fg__sched_pool(s, 1);
    if (s->cost.n < 4) s->budget = FG__MIN(s->budget, 16 << s->cost.n);
    else if (token > 0 && room / token < s->budget) s->budget = FG__MAX((int32_t)(room / token), 0);
    s->limit = s->cost.n < 4 ? s->deadline : FG__MIN(s->target, s->deadline);
    if (s->budget > 0 && s->even_split)
        s->budget = FG__MIN(s->budget, fg__even_split(fg__sched_pool(s, (int64_t)s->budget * 16), s->budget));
    fg__sched_prompts(s, false, true);
    if (s->n_rows == before && wanted > 0) {
        s->budget = s->given - before;
        fg__sched_feed(s);
    }
    s->starved = s->n_rows > before || wanted == 0 ? 0 : s->starved + 1;
}

static void fg__sched_splitfuse(fg__sched *s) {
    fg__sched_decodes(s);
    if (s->target < HUGE_VAL && s->n_rows > 0) {
        fg__sched_timed(s);
        return;
    }
    if (s->budget > 0 && s->even_split)
        s->budget = FG__MIN(s->budget, fg__even_split(fg__sched_pool(s, (int64_t)s->budget * 16), s->budget));
    fg__sched_prompts(s, false, true);
}

static void fg__sched_prefill_first(fg__sched *s) {
    fg__sched_prompts(s, true, true);
    if (!s->n_rows) fg__sched_decodes(s);
}

static void fg__sched_orca(fg__sched *s) {
    fg__sched_decodes(s);
    fg__sched_prompts(s, true, true);
}

/* Takes a whole batch at once, computes its prompts, then decodes until the last of it ends. */
static void fg__sched_static(fg__sched *s) {
    if (!s->running.count)
        while (fg__sched_admit(s)) {}
    fg__sched_prompts(s, true, false);
    if (!s->n_rows) fg__sched_decodes(s);
}

/* ---- a pass ----------------------------------------------------------------------------------- */

/* Writes the scheduled ones in batch order: single tokens first, otherwise by rank. */
static void fg__sched_order(fg__sched *s) {
    size_t i;
    int single;
    s->pass.count = 0;
    for (single = 1; single >= 0; single--)
        for (i = 0; i < s->running.count; i++) {
            fg__seq *seq = s->running.items[i];
            if (seq->n_scheduled && (seq->n_scheduled == 1) == (single == 1)) s->pass.items[s->pass.count++] = seq;
        }
}

/* Makes the next pass of at most `budget` tokens: s->pass, s->copies. False when there is nothing to do. */
static bool fg__sched_pass(fg__sched *s, int32_t budget) {
    size_t i;
    s->n_passes++;
    s->given = s->budget = budget;
    s->seconds = fg__cost_pass(&s->cost);
    s->limit = s->deadline;
    s->n_rows = 0;
    s->n_copies = 0;
    for (i = 0; i < s->running.count; i++) s->running.items[i]->n_scheduled = s->running.items[i]->n_drafted = 0;
    switch (s->policy) {
        case FG_POLICY_PREFILL_FIRST: fg__sched_prefill_first(s); break;
        case FG_POLICY_ORCA: fg__sched_orca(s); break;
        case FG_POLICY_STATIC: fg__sched_static(s); break;
        default: fg__sched_splitfuse(s); break;
    }
    fg__sched_order(s);
    return s->pass.count > 0;
}

/* n more tokens of `seq` are computed for good. */
static void fg__sched_advance(fg__sched *s, fg__seq *seq, int32_t n) {
    seq->n_computed += n;
    fg__kv_commit(s->kv, &seq->kv, seq->tokens, seq->n_computed);
    fg__kv_trim(s->kv, &seq->kv, seq->n_computed);
}

/* After the guesses of a pass were compared, and fg__sched_advance called for those that were right. */
static void fg__sched_settle(fg__sched *s, fg__seq *seq) { fg__kv_truncate(s->kv, &seq->kv, seq->n_computed); }

/* Books the pass as computed, but for its guesses. The engine then appends sampled tokens, and calls fg__sched_remove on what
   ended. */
static void fg__sched_done(fg__sched *s) {
    size_t i;
    for (i = 0; i < s->pass.count; i++) {
        fg__seq *seq = s->pass.items[i];
        fg__sched_advance(s, seq, seq->n_scheduled - seq->n_drafted);
        seq->n_scheduled = seq->n_drafted = 0;
    }
}

/* ================================================================================================
   >>model  architectures as data, hyperparameters, the tensors of a model
   ================================================================================================ */

/* One row per architecture. A new one of the same family is a row, and its tensors' names below. */
typedef struct fg__arch {
    const char *name;  /* general.architecture */
    bool rope_neox;    /* rope pairs: (i, i + n/2), else (2i, 2i + 1) */
    unsigned features; /* FG__HAS_..., tensors that must be there */
} fg__arch;

enum { FG__HAS_QKV_BIAS = 1, FG__HAS_QK_NORM = 2 };

static const fg__arch fg__archs[] = {
    {"llama", false, 0}, /* Llama 1 to 3, Mistral, SmolLM, TinyLlama */
    {"qwen2", true, FG__HAS_QKV_BIAS},
    {"qwen3", true, FG__HAS_QK_NORM},
};

/* Tensors of a layer. Shapes are one letter a dimension, the contiguous one first: E embedding, Q heads x head_dim,
   K KV heads x head_dim, H head_dim, F feed-forward. */
typedef struct fg__layer_tensor {
    const char *name, *shape;
    bool optional;
    unsigned features; /* required, and only known, with one of these; 0: always */
} fg__layer_tensor;

enum {
    FG__ATTN_NORM, FG__ATTN_Q, FG__ATTN_K, FG__ATTN_V, FG__ATTN_Q_BIAS, FG__ATTN_K_BIAS, FG__ATTN_V_BIAS,
    FG__ATTN_Q_NORM, FG__ATTN_K_NORM, FG__ATTN_OUT, FG__ATTN_OUT_BIAS, FG__FFN_NORM, FG__FFN_GATE, FG__FFN_UP,
    FG__FFN_DOWN, FG__FFN_GATE_BIAS, FG__FFN_UP_BIAS, FG__FFN_DOWN_BIAS, FG__LAYER_TENSORS
};

static const fg__layer_tensor fg__layer_tensors[FG__LAYER_TENSORS] = {
    {"attn_norm.weight", "E", false, 0},
    {"attn_q.weight", "EQ", false, 0},
    {"attn_k.weight", "EK", false, 0},
    {"attn_v.weight", "EK", false, 0},
    {"attn_q.bias", "Q", true, FG__HAS_QKV_BIAS}, /* Llama-like models may have biases, too */
    {"attn_k.bias", "K", true, FG__HAS_QKV_BIAS},
    {"attn_v.bias", "K", true, FG__HAS_QKV_BIAS},
    {"attn_q_norm.weight", "H", false, FG__HAS_QK_NORM},
    {"attn_k_norm.weight", "H", false, FG__HAS_QK_NORM},
    {"attn_output.weight", "QE", false, 0},
    {"attn_output.bias", "E", true, 0},
    {"ffn_norm.weight", "E", false, 0},
    {"ffn_gate.weight", "EF", false, 0},
    {"ffn_up.weight", "EF", false, 0},
    {"ffn_down.weight", "FE", false, 0},
    {"ffn_gate.bias", "F", true, 0},
    {"ffn_up.bias", "F", true, 0},
    {"ffn_down.bias", "E", true, 0},
};

typedef struct fg__hparams {
    int n_vocab, n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_ctx_train, n_rot;
    int window; /* sliding window in tokens, 0: none */
    double norm_eps, rope_base, rope_magnitude;
} fg__hparams;

struct fg_model {
    fg__env env;
    fg__gguf *gguf;
    fg__vocab *vocab;
    const fg__arch *arch;
    bool vocab_only;
    char *architecture, *name, *chat_template; /* the last may be NULL */
    fg__hparams hp;
    int64_t n_parameters, weight_bytes;
    const fg_tensor *embedding, *output_norm, *output; /* output is the embedding where tied */
    const fg_tensor **layers;      /* [n_layers * FG__LAYER_TENSORS], NULL: absent */
    bool *windowed;                /* [n_layers] the layer attends to the sliding window only */
    float *rope_frequencies;       /* [n_rot/2] radians per position */
};

/* ---- metadata --------------------------------------------------------------------------------- */

/* The key "<architecture>.<name>". */
static const char *fg__model_key(const fg_model *m, const char *name, char key[160]) {
    snprintf(key, 160, "%s.%s", m->architecture, name);
    return key;
}

static double fg__model_f64(const fg_model *m, const char *name, double missing) {
    char key[160];
    double value;
    return fg__gguf_get_f64(m->gguf, fg__model_key(m, name, key), &value) ? value : missing;
}

/* Reads a count between `least` and `most`; `missing` is its default, negative: it must be there. An array, one item a
   layer, is fine when all its items are equal. */
static fg_result fg__model_int(const fg_model *m, const char *name, int64_t least, int64_t most, int64_t missing, int *out) {
    char key[160];
    const fg__gguf_value *v = fg__gguf_find(m->gguf, fg__model_key(m, name, key));
    int64_t value = missing, item;
    uint64_t i;
    if (v && !fg__gguf_item_i64(v, 0, &value)) return fg__fail(FG_ERROR_BAD_FILE, "'%s' is no integer", key);
    for (i = 1; v && i < v->count; i++)
        if (!fg__gguf_item_i64(v, i, &item) || item != value)
            return fg__fail(FG_ERROR_UNSUPPORTED, "'%s' differs between layers", key);
    if (!v && missing < 0) return fg__fail(FG_ERROR_BAD_FILE, "'%s' is missing", key);
    if (value < least || value > most)
        return fg__fail(FG_ERROR_BAD_FILE, "'%s' is %lld, not within %lld to %lld", key, (long long)value,
                        (long long)least, (long long)most);
    *out = (int)value;
    return FG_OK;
}

/* A zero-terminated copy of a string of the metadata; NULL with FG_OK when it is absent. */
static fg_result fg__model_string(const fg_model *m, const char *key, char **out) {
    fg__gguf_string s;
    *out = NULL;
    if (!fg__gguf_get_string(m->gguf, key, &s)) return FG_OK;
    *out = fg__strndup(&m->env, s.data, s.length);
    return *out ? FG_OK : FG_ERROR_OUT_OF_MEMORY;
}

static fg_result fg__model_load_names(fg_model *m) {
    fg_result r;
    size_t i;
    if ((r = fg__model_string(m, "general.architecture", &m->architecture)) != FG_OK) return r;
    if ((r = fg__model_string(m, "general.name", &m->name)) != FG_OK) return r;
    if ((r = fg__model_string(m, "tokenizer.chat_template", &m->chat_template)) != FG_OK) return r;
    if (!m->architecture) return fg__fail(FG_ERROR_BAD_FILE, "'general.architecture' is missing");
    for (i = 0; m->architecture[i]; i++)
        if (m->architecture[i] < ' ' || m->architecture[i] > '~' || i > 64)
            return fg__fail(FG_ERROR_BAD_FILE, "'general.architecture' is no name");
    for (i = 0; i < (size_t)FG__COUNT(fg__archs); i++)
        if (strcmp(fg__archs[i].name, m->architecture) == 0) m->arch = &fg__archs[i];
    return FG_OK;
}

#define FG__MAX_DIM (1 << 24)

static fg_result fg__model_load_sizes(fg_model *m) {
    fg__hparams *hp = &m->hp;
    fg_result r;
    int value_dim;
    if ((r = fg__model_int(m, "block_count", 1, 4096, -1, &hp->n_layers)) != FG_OK) return r;
    if ((r = fg__model_int(m, "embedding_length", 1, FG__MAX_DIM, -1, &hp->n_embd)) != FG_OK) return r;
    if ((r = fg__model_int(m, "feed_forward_length", 1, FG__MAX_DIM, -1, &hp->n_ff)) != FG_OK) return r;
    if ((r = fg__model_int(m, "context_length", 1, 1 << 28, -1, &hp->n_ctx_train)) != FG_OK) return r;
    if ((r = fg__model_int(m, "attention.head_count", 1, 65536, -1, &hp->n_heads)) != FG_OK) return r;
    if ((r = fg__model_int(m, "attention.head_count_kv", 1, hp->n_heads, hp->n_heads, &hp->n_kv_heads)) != FG_OK) return r;
    if ((r = fg__model_int(m, "attention.key_length", 1, 4096, hp->n_embd / hp->n_heads, &hp->head_dim)) != FG_OK) return r;
    if ((r = fg__model_int(m, "attention.value_length", 1, 4096, hp->head_dim, &value_dim)) != FG_OK) return r;
    if ((r = fg__model_int(m, "rope.dimension_count", 2, hp->head_dim, hp->head_dim, &hp->n_rot)) != FG_OK) return r;
    if ((r = fg__model_int(m, "attention.sliding_window", 0, 1 << 28, 0, &hp->window)) != FG_OK) return r;
    if (hp->n_heads % hp->n_kv_heads || hp->n_rot % 2)
        return fg__fail(FG_ERROR_BAD_FILE, "%d heads over %d KV heads, %d rope dimensions: these do not divide",
                        hp->n_heads, hp->n_kv_heads, hp->n_rot);
    if (value_dim != hp->head_dim)
        return fg__fail(FG_ERROR_UNSUPPORTED, "heads of %d for keys but %d for values", hp->head_dim, value_dim);
    if ((int64_t)hp->n_heads * hp->head_dim > FG__MAX_DIM) return fg__fail(FG_ERROR_BAD_FILE, "the heads are absurdly large");
    hp->norm_eps = fg__model_f64(m, "attention.layer_norm_rms_epsilon", 1e-5);
    if (!(hp->norm_eps > 0 && hp->norm_eps < 1)) return fg__fail(FG_ERROR_BAD_FILE, "the norm's epsilon is %g", hp->norm_eps);
    return FG_OK;
}

/* Which layers attend to the window only: all, unless attention.sliding_window_pattern says otherwise, as one flag a
   layer or as a number p (every p-th layer sees everything). */
static fg_result fg__model_load_windows(fg_model *m) {
    char key[160];
    const fg__gguf_value *v = fg__gguf_find(m->gguf, fg__model_key(m, "attention.sliding_window_pattern", key));
    int64_t item;
    int i;
    m->windowed = (bool *)fg__calloc(&m->env, (size_t)m->hp.n_layers, sizeof(bool));
    if (!m->windowed) return FG_ERROR_OUT_OF_MEMORY;
    if (!m->hp.window) return FG_OK;
    for (i = 0; i < m->hp.n_layers; i++) {
        bool flags = v && v->type == FG__GGUF_ARRAY;
        if (v && !fg__gguf_item_i64(v, flags ? (uint64_t)i : 0, &item))
            return fg__fail(FG_ERROR_BAD_FILE, "'%s' has no flag for layer %d", key, i);
        m->windowed[i] = !v ? true : flags ? item != 0 : item <= 0 || (i + 1) % item != 0;
    }
    return FG_OK;
}

/* ---- rope ------------------------------------------------------------------------------------- */

/* YaRN (arXiv 2309.00071): the dimension pair that turns `turns` times over the original context. */
static double fg__yarn_pair(const fg__hparams *hp, double context, double turns) {
    return hp->n_rot * log(context / (turns * 2 * 3.14159265358979323846)) / (2 * log(hp->rope_base));
}

/* Pairs that turn fast keep their frequency, slow ones are divided by `factor`, those between are blended. */
static void fg__rope_yarn(fg_model *m, double factor) {
    const fg__hparams *hp = &m->hp;
    double context = fg__model_f64(m, "rope.scaling.original_context_length", hp->n_ctx_train);
    double low = floor(fg__yarn_pair(hp, context, fg__model_f64(m, "rope.scaling.yarn_beta_fast", 32)));
    double high = ceil(fg__yarn_pair(hp, context, fg__model_f64(m, "rope.scaling.yarn_beta_slow", 1)));
    int i;
    low = low > 0 ? low : 0;
    high = high < hp->n_rot - 1 ? high : hp->n_rot - 1;
    if (high - low < 0.001) high = low + 0.001;
    for (i = 0; i < hp->n_rot / 2; i++) {
        double slow = (i - low) / (high - low);
        slow = slow < 0 ? 0 : slow > 1 ? 1 : slow;
        m->rope_frequencies[i] *= (float)(slow / factor + 1 - slow);
    }
    m->hp.rope_magnitude = fg__model_f64(m, "rope.scaling.attn_factor", 1) * (factor > 1 ? 0.1 * log(factor) + 1 : 1);
}

/* Frequencies of a Llama 3 rope are divided by factors that the file lists. */
static fg_result fg__rope_factors(fg_model *m) {
    const fg_tensor *t = fg__gguf_find_tensor(m->gguf, "rope_freqs.weight");
    int i;
    if (!t) return FG_OK;
    if (t->type != FG_TYPE_F32 || t->n_dims != 1 || t->dims[0] != m->hp.n_rot / 2)
        return fg__fail(FG_ERROR_BAD_FILE, "'rope_freqs.weight' must be %d floats", m->hp.n_rot / 2);
    for (i = 0; i < m->hp.n_rot / 2; i++) {
        float factor;
        memcpy(&factor, (const char *)t->data + (size_t)i * 4, 4);
        if (!(factor > 0)) return fg__fail(FG_ERROR_BAD_FILE, "'rope_freqs.weight' has a factor of %g", (double)factor);
        m->rope_frequencies[i] /= factor;
    }
    return FG_OK;
}

/* Any of a rope's numbers may be odd; what comes of them must be angles. */
static fg_result fg__rope_check(const fg_model *m) {
    int i;
    if (!(fabs(m->hp.rope_magnitude) <= 1e6)) return fg__fail(FG_ERROR_BAD_FILE, "rope of magnitude %g", m->hp.rope_magnitude);
    for (i = 0; i < m->hp.n_rot / 2; i++)
        if (!(fabsf(m->rope_frequencies[i]) <= 1e6f))
            return fg__fail(FG_ERROR_BAD_FILE, "rope of frequency %g", (double)m->rope_frequencies[i]);
    return FG_OK;
}

static fg_result fg__model_load_rope(fg_model *m) {
    fg__hparams *hp = &m->hp;
    double factor = fg__model_f64(m, "rope.scaling.factor", fg__model_f64(m, "rope.scale_linear", 1));
    char key[160];
    fg__gguf_string type = {"", 0};
    bool named = fg__gguf_get_string(m->gguf, fg__model_key(m, "rope.scaling.type", key), &type);
    bool yarn = type.length == 4 && memcmp(type.data, "yarn", 4) == 0, none = type.length == 4 && memcmp(type.data, "none", 4) == 0;
    fg_result r;
    int i;
    hp->rope_base = fg__model_f64(m, "rope.freq_base", 10000);
    hp->rope_magnitude = 1;
    if (!(hp->rope_base > 1) || !(factor >= 0) || factor > 1e6 || hp->rope_base > 1e12)
        return fg__fail(FG_ERROR_BAD_FILE, "rope with base %g and factor %g", hp->rope_base, factor);
    if (named && !yarn && !none && !(type.length == 6 && memcmp(type.data, "linear", 6) == 0))
        return fg__fail(FG_ERROR_UNSUPPORTED, "rope scaling '%.*s' is not known", (int)FG__MIN(type.length, 40), type.data);
    m->rope_frequencies = (float *)fg__malloc(&m->env, (size_t)hp->n_rot / 2, sizeof(float));
    if (!m->rope_frequencies) return FG_ERROR_OUT_OF_MEMORY;
    factor = factor > 0 && !none ? factor : 1;
    for (i = 0; i < hp->n_rot / 2; i++)
        m->rope_frequencies[i] = (float)(pow(hp->rope_base, -2.0 * i / hp->n_rot) / (yarn ? 1 : factor));
    if (yarn) fg__rope_yarn(m, factor);
    r = fg__rope_factors(m);
    return r == FG_OK ? fg__rope_check(m) : r;
}

/* ---- tensors ---------------------------------------------------------------------------------- */

static int64_t fg__model_dim(const fg_model *m, char letter) {
    const fg__hparams *hp = &m->hp;
    switch (letter) {
        case 'E': return hp->n_embd;
        case 'Q': return (int64_t)hp->n_heads * hp->head_dim;
        case 'K': return (int64_t)hp->n_kv_heads * hp->head_dim;
        case 'H': return hp->head_dim;
        case 'F': return hp->n_ff;
        default: return hp->n_vocab;
    }
}

/* Finds a tensor and checks its shape, one letter a dimension. *tensor is NULL when it is absent and `optional`. */
static fg_result fg__model_find(const fg_model *m, const char *name, const char *shape, bool optional, const fg_tensor **tensor) {
    const fg_tensor *t = fg__gguf_find_tensor(m->gguf, name);
    int n = (int)strlen(shape), i;
    *tensor = t;
    if (!t) return optional ? FG_OK : fg__fail(FG_ERROR_BAD_FILE, "tensor '%s' is missing", name);
    for (i = 0; i < 4; i++) {
        int64_t want = i < n ? fg__model_dim(m, shape[i]) : 1, have = i < t->n_dims ? t->dims[i] : 1;
        if (want != have)
            return fg__fail(FG_ERROR_BAD_FILE, "tensor '%s' has %lld where the model has %lld (dimension %d)", name,
                            (long long)have, (long long)want, i);
    }
    if (n == 1 && t->type != FG_TYPE_F32 && t->type != FG_TYPE_F16 && t->type != FG_TYPE_BF16)
        return fg__fail(FG_ERROR_BAD_FILE, "tensor '%s' is a vector of type %s", name, fg_type_name(t->type));
    return FG_OK;
}

static fg_result fg__model_load_layer(fg_model *m, int layer) {
    char name[96];
    fg_result r;
    int i;
    for (i = 0; i < FG__LAYER_TENSORS; i++) {
        const fg__layer_tensor *t = &fg__layer_tensors[i];
        bool must = t->features ? (m->arch->features & t->features) != 0 : !t->optional;
        if (!must && !t->optional) continue;
        snprintf(name, sizeof(name), "blk.%d.%s", layer, t->name);
        r = fg__model_find(m, name, t->shape, !must, &m->layers[layer * FG__LAYER_TENSORS + i]);
        if (r != FG_OK) return r;
    }
    return FG_OK;
}

static fg_result fg__model_load_tensors(fg_model *m) {
    fg_result r;
    int i;
    m->hp.n_vocab = m->vocab->n_tokens;
    m->layers = (const fg_tensor **)fg__calloc(&m->env, (size_t)m->hp.n_layers * FG__LAYER_TENSORS, sizeof(fg_tensor *));
    if (!m->layers) return FG_ERROR_OUT_OF_MEMORY;
    if ((r = fg__model_find(m, "token_embd.weight", "EV", false, &m->embedding)) != FG_OK) return r;
    if ((r = fg__model_find(m, "output_norm.weight", "E", false, &m->output_norm)) != FG_OK) return r;
    if ((r = fg__model_find(m, "output.weight", "EV", true, &m->output)) != FG_OK) return r;
    if (!m->output) m->output = m->embedding;
    for (i = 0; i < m->hp.n_layers; i++)
        if ((r = fg__model_load_layer(m, i)) != FG_OK) return r;
    return FG_OK;
}

/* ---- load and free ---------------------------------------------------------------------------- */

static void fg__model_count(fg_model *m) {
    int i, n = fg__gguf_tensor_count(m->gguf);
    for (i = 0; i < n; i++) {
        const fg_tensor *t = fg__gguf_tensor_at(m->gguf, i);
        int64_t elements = 1;
        int d;
        for (d = 0; d < t->n_dims; d++) elements *= t->dims[d];
        m->n_parameters += elements;
        m->weight_bytes += (int64_t)t->bytes;
    }
}

static fg_result fg__model_load_weights(fg_model *m) {
    fg_result r;
    if (!m->arch) return fg__fail(FG_ERROR_UNSUPPORTED, "architecture '%s' is not known", m->architecture);
    if (!m->n_parameters)
        return fg__fail(FG_ERROR_UNSUPPORTED, "the file has a vocabulary but no weights: load it with vocab_only");
    if ((r = fg__model_load_sizes(m)) != FG_OK) return r;
    if ((r = fg__model_load_windows(m)) != FG_OK) return r;
    if ((r = fg__model_load_rope(m)) != FG_OK) return r;
    return fg__model_load_tensors(m);
}

static bool fg__model_progress(const fg_model_desc *d, float fraction, const char *what) {
    return !d->progress || d->progress(fraction, what, d->progress_user);
}

static fg_result fg__model_load_all(fg_model *m, const fg_model_desc *d) {
    fg_result r;
    if (!fg__model_progress(d, 0, "reading the file")) return fg__fail(FG_ERROR_CANCELLED, "loading was stopped");
    if ((r = fg__gguf_open(&m->env, d->path, d->data, d->size, &m->gguf)) != FG_OK) return r;
    if (!fg__model_progress(d, 0.3f, "reading the vocabulary")) return fg__fail(FG_ERROR_CANCELLED, "loading was stopped");
    if ((r = fg__model_load_names(m)) != FG_OK) return r;
    if ((r = fg__vocab_load(&m->env, m->gguf, &m->vocab)) != FG_OK) return r;
    if (!fg__model_progress(d, 0.9f, "checking tensors")) return fg__fail(FG_ERROR_CANCELLED, "loading was stopped");
    m->vocab_only = d->vocab_only;
    fg__model_count(m);
    if (!m->vocab_only && (r = fg__model_load_weights(m)) != FG_OK) return r;
    return fg__model_progress(d, 1, "loaded") ? FG_OK : fg__fail(FG_ERROR_CANCELLED, "loading was stopped");
}

fg_result fg_model_load(const fg_model_desc *desc, fg_model **model) {
    fg__env env;
    fg_model *m;
    fg_result r;
    if (!desc || !model) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "fg_model_load needs a descriptor and a place for the model");
    *model = NULL;
    if (!desc->path == !desc->data) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "give a path or data, one of the two");
    env = fg__env_make(desc->allocator, desc->log, desc->log_user);
    m = (fg_model *)fg__calloc(&env, 1, sizeof(fg_model));
    if (!m) return FG_ERROR_OUT_OF_MEMORY;
    m->env = env;
    r = fg__model_load_all(m, desc);
    if (r == FG_OK) *model = m;
    else fg_model_free(m);
    return r;
}

void fg_model_free(fg_model *model) {
    fg__env env;
    if (!model) return;
    env = model->env;
    if (model->vocab) fg__vocab_free(model->vocab);
    if (model->gguf) fg__gguf_close(model->gguf);
    fg__free(&env, model->architecture);
    fg__free(&env, model->name);
    fg__free(&env, model->chat_template);
    fg__free(&env, (void *)model->layers);
    fg__free(&env, model->windowed);
    fg__free(&env, model->rope_frequencies);
    fg__free(&env, model);
}

/* ---- what a model tells ----------------------------------------------------------------------- */

void fg_model_get_info(const fg_model *m, fg_model_info *info) {
    memset(info, 0, sizeof(*info));
    info->architecture = m->architecture;
    info->name = m->name ? m->name : "";
    info->chat_template = m->chat_template;
    info->n_parameters = m->n_parameters;
    info->weight_bytes = m->weight_bytes;
    info->n_vocab = m->vocab->n_tokens;
    info->n_layers = m->hp.n_layers;
    info->n_embd = m->hp.n_embd;
    info->n_heads = m->hp.n_heads;
    info->n_kv_heads = m->hp.n_kv_heads;
    info->head_dim = m->hp.head_dim;
    info->n_ff = m->hp.n_ff;
    info->n_ctx_train = m->hp.n_ctx_train;
    info->sliding_window = m->hp.window;
    info->token_bos = m->vocab->bos;
    info->token_eos = m->vocab->eos;
    info->token_unk = m->vocab->unk;
    info->token_pad = m->vocab->pad;
    info->add_bos = m->vocab->add_bos;
    info->add_eos = m->vocab->add_eos;
    info->vocab_only = m->vocab_only;
}

int fg_model_tensor_count(const fg_model *model) { return fg__gguf_tensor_count(model->gguf); }

fg_result fg_model_tensor(const fg_model *model, int index, fg_tensor *tensor) {
    if (index < 0 || index >= fg_model_tensor_count(model)) return fg__fail(FG_ERROR_NOT_FOUND, "no tensor %d", index);
    *tensor = *fg__gguf_tensor_at(model->gguf, index);
    return FG_OK;
}

/* Hands a text to a caller's buffer by the rule of all such calls: whole length out, zero-terminated where it fits. */
static fg_result fg__text_out(const char *data, size_t size, char *text, size_t capacity, size_t *length) {
    if (length) *length = size;
    if (text && size) memcpy(text, data, FG__MIN(size, capacity));
    if (text && size < capacity) text[size] = 0;
    if (size <= capacity) return FG_OK;
    return fg__fail(FG_ERROR_BUFFER_TOO_SMALL, "the text has %zu bytes, the buffer %zu", size, capacity);
}

static void fg__model_meta_item(const fg__gguf_value *v, fg__text *out) {
    static const char *const names[] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
    int64_t integer;
    double real;
    if (v->type == FG__GGUF_ARRAY)
        fg__text_printf(out, "[%s x %llu]", names[v->item_type], (unsigned long long)v->count);
    else if (v->type == FG__GGUF_STRING) fg__text_add(out, v->strings[0].data, v->strings[0].length);
    else if (v->type == FG__GGUF_BOOL) fg__text_puts(out, v->data[0] ? "true" : "false");
    else if (fg__gguf_item_i64(v, 0, &integer)) fg__text_printf(out, "%lld", (long long)integer);
    else if (fg__gguf_item_f64(v, 0, &real)) fg__text_printf(out, "%.9g", real);
}

fg_result fg_model_meta(const fg_model *m, int index, const char **key, char *value, size_t capacity, size_t *length) {
    fg__text out;
    fg_result r;
    if (index < 0 || index >= fg__gguf_value_count(m->gguf)) return fg__fail(FG_ERROR_NOT_FOUND, "no metadata %d", index);
    memset(&out, 0, sizeof(out));
    out.env = &m->env;
    *key = fg__gguf_value_at(m->gguf, index)->key.data;
    fg__model_meta_item(fg__gguf_value_at(m->gguf, index), &out);
    r = out.failed ? FG_ERROR_OUT_OF_MEMORY : fg__text_out(out.data, out.length, value, capacity, length);
    fg__text_free(&out);
    return r;
}

/* ================================================================================================
   >>graph  the list of operations that a model is
   ================================================================================================ */

/* A weight and the op that reads it: the same tensor may be packed for two uses (a tied embedding). */
typedef struct fg__graph_builder {
    const fg__env *env;
    const fg_model *model;
    bool failed;
    fg_op *ops;
    size_t n_ops, ops_capacity;
    fg_slot *slots;
    size_t n_slots, slots_capacity;
    fg_tensor *tensors;
    fg_op_type *uses; /* [n_tensors] */
    size_t n_tensors, tensors_capacity, uses_capacity;
    fg_group groups[FG_MAX_GROUPS];
    int n_groups;
} fg__graph_builder;

static fg_op *fg__graph_op(fg__graph_builder *b, fg_op_type type, int layer) {
    void *array = b->ops;
    fg_op *op;
    if (!fg__reserve(b->env, &array, &b->ops_capacity, b->n_ops + 1, sizeof(fg_op))) b->failed = true;
    b->ops = (fg_op *)array;
    op = &b->ops[b->failed ? 0 : b->n_ops++];
    memset(op, 0, sizeof(*op));
    op->type = type;
    op->layer = layer;
    op->src = op->src2 = op->dst = op->weight = op->weight2 = op->bias = -1;
    op->scale = 1;
    return op;
}

static int fg__graph_slot(fg__graph_builder *b, const char *name, int width, bool per_row) {
    void *array = b->slots;
    if (!fg__reserve(b->env, &array, &b->slots_capacity, b->n_slots + 1, sizeof(fg_slot))) b->failed = true;
    b->slots = (fg_slot *)array;
    if (b->failed) return -1;
    b->slots[b->n_slots].name = name;
    b->slots[b->n_slots].width = width;
    b->slots[b->n_slots].per_row = per_row;
    return (int)b->n_slots++;
}

/* Adds a weight; NULL (an absent optional tensor) is -1. */
static int fg__graph_weight(fg__graph_builder *b, const fg_tensor *tensor, fg_op_type use) {
    void *tensors = b->tensors, *uses = b->uses;
    if (!tensor || b->failed) return -1;
    if (!fg__reserve(b->env, &tensors, &b->tensors_capacity, b->n_tensors + 1, sizeof(fg_tensor))) b->failed = true;
    if (!fg__reserve(b->env, &uses, &b->uses_capacity, b->n_tensors + 1, sizeof(fg_op_type))) b->failed = true;
    b->tensors = (fg_tensor *)tensors;
    b->uses = (fg_op_type *)uses;
    if (b->failed) return -1;
    b->tensors[b->n_tensors] = *tensor;
    b->uses[b->n_tensors] = use;
    return (int)b->n_tensors++;
}

static void fg__graph_norm(fg__graph_builder *b, int layer, const fg_tensor *weight, int src, int dst) {
    fg_op *op = fg__graph_op(b, FG_OP_NORM, layer);
    op->src = src;
    op->dst = dst;
    op->n = b->model->hp.n_embd;
    op->eps = (float)b->model->hp.norm_eps;
    op->weight = fg__graph_weight(b, weight, FG_OP_NORM);
}

/* dst[.., dst_col + 0..n-1] = src . weight^T + bias + residual (a slot, or -1). */
static void fg__graph_gemm(fg__graph_builder *b, int layer, const fg_tensor *weight, const fg_tensor *bias, int src,
                           int dst, int dst_col, int residual) {
    fg_op *op = fg__graph_op(b, FG_OP_GEMM, layer);
    op->src = src;
    op->src2 = residual;
    op->dst = dst;
    op->dst_col = dst_col;
    op->k = (int32_t)weight->dims[0];
    op->n = (int32_t)weight->dims[1];
    op->weight = fg__graph_weight(b, weight, FG_OP_GEMM);
    op->bias = fg__graph_weight(b, bias, FG_OP_NORM);
}

/* The cache group of a kind of layer, made when the first such layer comes. */
static int fg__graph_group(fg__graph_builder *b, bool windowed) {
    const fg__hparams *hp = &b->model->hp;
    fg_group_kind kind = windowed ? FG_GROUP_WINDOW : FG_GROUP_FULL;
    int g = 0;
    while (g < b->n_groups && b->groups[g].kind != kind) g++;
    if (g == b->n_groups) {
        memset(&b->groups[g], 0, sizeof(fg_group));
        b->groups[g].kind = kind;
        b->groups[g].n_kv_head = hp->n_kv_heads;
        b->groups[g].head_dim = hp->head_dim;
        b->groups[g].window = windowed ? hp->window : 0;
        b->n_groups++;
    }
    return g;
}

/* Slots of a transformer; x is the residual stream. */
typedef struct fg__graph_slots {
    int x, normed, qkv, attended, gate_up, hidden, rows, rows_normed, logits, rope;
} fg__graph_slots;

static void fg__graph_attention(fg__graph_builder *b, int layer, const fg__graph_slots *s) {
    const fg_model *m = b->model;
    const fg__hparams *hp = &m->hp;
    const fg_tensor **t = m->layers + (size_t)layer * FG__LAYER_TENSORS;
    int q = hp->n_heads * hp->head_dim, k = hp->n_kv_heads * hp->head_dim, i;
    int group = fg__graph_group(b, m->windowed[layer]), group_layer = b->groups[group].n_layers++;
    fg__graph_norm(b, layer, t[FG__ATTN_NORM], s->x, s->normed);
    fg__graph_gemm(b, layer, t[FG__ATTN_Q], t[FG__ATTN_Q_BIAS], s->normed, s->qkv, 0, -1);
    fg__graph_gemm(b, layer, t[FG__ATTN_K], t[FG__ATTN_K_BIAS], s->normed, s->qkv, q, -1);
    fg__graph_gemm(b, layer, t[FG__ATTN_V], t[FG__ATTN_V_BIAS], s->normed, s->qkv, q + k, -1);
    for (i = 0; i < 2; i++) {
        int q_norm = i ? -1 : fg__graph_weight(b, t[FG__ATTN_Q_NORM], FG_OP_NORM);
        int k_norm = i ? -1 : fg__graph_weight(b, t[FG__ATTN_K_NORM], FG_OP_NORM);
        fg_op *op = fg__graph_op(b, i ? FG_OP_ATTENTION : FG_OP_ROPE_KV, layer);
        op->src = s->qkv;
        op->group = group;
        op->group_layer = group_layer;
        op->n_head = hp->n_heads;
        op->n_kv_head = hp->n_kv_heads;
        op->head_dim = hp->head_dim;
        if (i) {
            op->dst = s->attended;
            op->n = q;
            op->scale = (float)(1 / sqrt((double)hp->head_dim));
            continue;
        }
        op->src2_col = q;
        op->dst_col = q + k;
        op->weight = q_norm;
        op->weight2 = k_norm;
        op->bias = s->rope;
        op->n_rot = hp->n_rot;
        op->rope_neox = m->arch->rope_neox;
        op->eps = (float)hp->norm_eps;
        op->scale = (float)hp->rope_magnitude;
    }
    fg__graph_gemm(b, layer, t[FG__ATTN_OUT], t[FG__ATTN_OUT_BIAS], s->attended, s->x, 0, s->x);
}

static void fg__graph_ffn(fg__graph_builder *b, int layer, const fg__graph_slots *s) {
    const fg_tensor **t = b->model->layers + (size_t)layer * FG__LAYER_TENSORS;
    int n_ff = b->model->hp.n_ff;
    fg_op *op;
    fg__graph_norm(b, layer, t[FG__FFN_NORM], s->x, s->normed);
    fg__graph_gemm(b, layer, t[FG__FFN_GATE], t[FG__FFN_GATE_BIAS], s->normed, s->gate_up, 0, -1);
    fg__graph_gemm(b, layer, t[FG__FFN_UP], t[FG__FFN_UP_BIAS], s->normed, s->gate_up, n_ff, -1);
    op = fg__graph_op(b, FG_OP_ACT_MUL, layer);
    op->src = op->src2 = s->gate_up;
    op->src2_col = n_ff;
    op->dst = s->hidden;
    op->n = n_ff;
    op->act = FG_ACT_SILU;
    fg__graph_gemm(b, layer, t[FG__FFN_DOWN], t[FG__FFN_DOWN_BIAS], s->hidden, s->x, 0, s->x);
}

static void fg__graph_ends(fg__graph_builder *b, const fg__graph_slots *s, bool first) {
    const fg_model *m = b->model;
    fg_op *op = fg__graph_op(b, first ? FG_OP_EMBED : FG_OP_GATHER_ROWS, -1);
    op->n = m->hp.n_embd;
    op->dst = first ? s->x : s->rows;
    if (first) {
        op->weight = fg__graph_weight(b, m->embedding, FG_OP_EMBED);
        return;
    }
    op->src = s->x;
    fg__graph_norm(b, -1, m->output_norm, s->rows, s->rows_normed);
    fg__graph_gemm(b, -1, m->output, NULL, s->rows_normed, s->logits, 0, -1);
    op = fg__graph_op(b, FG_OP_SAMPLE, -1);
    op->src = s->logits;
    op->n = m->hp.n_vocab;
}

static fg__graph_slots fg__graph_make_slots(fg__graph_builder *b) {
    const fg__hparams *hp = &b->model->hp;
    fg__graph_slots s;
    fg_tensor rope;
    memset(&rope, 0, sizeof(rope));
    rope.name = "rope frequencies";
    rope.n_dims = 1;
    rope.dims[0] = hp->n_rot / 2;
    rope.dims[1] = rope.dims[2] = rope.dims[3] = 1;
    rope.data = b->model->rope_frequencies;
    rope.bytes = (size_t)hp->n_rot / 2 * sizeof(float);
    s.rope = fg__graph_weight(b, &rope, FG_OP_ROPE_KV);
    s.x = fg__graph_slot(b, "x", hp->n_embd, false);
    s.normed = fg__graph_slot(b, "normed", hp->n_embd, false);
    s.qkv = fg__graph_slot(b, "qkv", (hp->n_heads + 2 * hp->n_kv_heads) * hp->head_dim, false);
    s.attended = fg__graph_slot(b, "attended", hp->n_heads * hp->head_dim, false);
    s.gate_up = fg__graph_slot(b, "gate_up", 2 * hp->n_ff, false);
    s.hidden = fg__graph_slot(b, "hidden", hp->n_ff, false);
    s.rows = fg__graph_slot(b, "rows", hp->n_embd, true);
    s.rows_normed = fg__graph_slot(b, "rows_normed", hp->n_embd, true);
    s.logits = fg__graph_slot(b, "logits", hp->n_vocab, true);
    return s;
}

static void fg__graph_free(fg__graph_builder *b) {
    fg__free(b->env, b->ops);
    fg__free(b->env, b->slots);
    fg__free(b->env, b->tensors);
    fg__free(b->env, b->uses);
    memset(b, 0, sizeof(*b));
}

/* The whole of a decoder: embedding, layers, output. Groups have their layers; sizes of pools come later. */
static fg_result fg__graph_build(fg__graph_builder *b, const fg__env *env, const fg_model *model) {
    fg__graph_slots slots;
    int i;
    memset(b, 0, sizeof(*b));
    b->env = env;
    b->model = model;
    b->ops = (fg_op *)fg__malloc(env, b->ops_capacity = 64, sizeof(fg_op)); /* so that ops[0] is there when memory is out */
    if (!b->ops) return FG_ERROR_OUT_OF_MEMORY;
    slots = fg__graph_make_slots(b);
    fg__graph_ends(b, &slots, true);
    for (i = 0; i < model->hp.n_layers && !b->failed; i++) {
        fg__graph_attention(b, i, &slots);
        fg__graph_ffn(b, i, &slots);
    }
    fg__graph_ends(b, &slots, false);
    if (!b->failed) return FG_OK;
    fg__graph_free(b);
    return FG_ERROR_OUT_OF_MEMORY;
}

/* ---- as text ---------------------------------------------------------------------------------- */

static void fg__graph_print_slot(const fg_graph *g, const char *label, int slot, int column, fg__text *out) {
    if (slot < 0) return;
    fg__text_printf(out, " %s=%s", label, g->slots[slot].name);
    if (column) fg__text_printf(out, "+%d", column);
}

static void fg__graph_print_weight(const fg_graph *g, const char *label, int weight, fg__text *out) {
    const fg_tensor *t;
    int d;
    if (weight < 0) return;
    t = &g->tensors[weight];
    fg__text_printf(out, " %s='%s' %s", label, t->name, fg_type_name(t->type));
    for (d = 0; d < t->n_dims; d++) fg__text_printf(out, "%c%lld", d ? 'x' : ' ', (long long)t->dims[d]);
}

static void fg__graph_print_op(const fg_graph *g, int index, fg__text *out) {
    static const char *const acts[] = {"none", "silu", "gelu_tanh", "gelu", "relu"};
    const fg_op *op = &g->ops[index];
    bool heads = op->type == FG_OP_ROPE_KV || op->type == FG_OP_ATTENTION;
    fg__text_printf(out, "%4d ", index);
    if (op->layer >= 0) fg__text_printf(out, "L%-3d", op->layer);
    else fg__text_puts(out, "    ");
    fg__text_printf(out, " %-11s", fg__op_name(op->type));
    fg__graph_print_slot(g, "src", op->src, op->src_col, out);
    fg__graph_print_slot(g, op->type == FG_OP_GEMM ? "residual" : "src2", op->src2, op->src2_col, out);
    fg__graph_print_slot(g, "dst", op->dst, op->dst_col, out);
    if (op->n) fg__text_printf(out, " n=%d", op->n);
    if (op->k) fg__text_printf(out, " k=%d", op->k);
    if (op->act) fg__text_printf(out, " act=%s", acts[op->act]);
    if (heads) fg__text_printf(out, " heads=%d/%d dim=%d group=%d.%d", op->n_head, op->n_kv_head, op->head_dim, op->group, op->group_layer);
    if (op->n_rot) {
        fg__text_printf(out, " k=+%d v=+%d rope=%s:%d", op->src2_col, op->dst_col, op->rope_neox ? "neox" : "pairs", op->n_rot);
    }
    if (op->eps > 0) fg__text_printf(out, " eps=%g", (double)op->eps);
    if (op->scale != 1) fg__text_printf(out, " scale=%.6g", (double)op->scale);
    fg__graph_print_weight(g, "weight", op->weight, out);
    fg__graph_print_weight(g, "weight2", op->weight2, out);
    fg__graph_print_weight(g, op->type == FG_OP_ROPE_KV ? "table" : "bias", op->bias, out);
    fg__text_puts(out, "\n");
}

static void fg__graph_print(const fg_graph *g, fg__text *out) {
    static const char *const kinds[] = {"full", "window", "latent", "state"};
    int i;
    for (i = 0; i < g->n_groups; i++) {
        const fg_group *group = &g->groups[i];
        fg__text_printf(out, "group %d: %s, %d layers, %d KV heads of %d, %s", i, kinds[group->kind], group->n_layers,
                        group->n_kv_head, group->head_dim, fg_type_name(group->kv_type));
        if (group->window) fg__text_printf(out, ", window %d", group->window);
        fg__text_printf(out, ", %d blocks of %d tokens\n", group->n_blocks, group->block_tokens);
    }
    for (i = 0; i < g->n_ops; i++) fg__graph_print_op(g, i, out);
}

/* ---- checks, for backends: graphs and batches come from outside --------------------------------- */

/* True when columns [column, column + n) of `slot` exist. */
static bool fg__graph_has_columns(const fg_graph *graph, int slot, int64_t column, int64_t n) {
    return slot >= 0 && slot < graph->n_slots && column >= 0 && n >= 1 && column + n <= graph->slots[slot].width;
}

/* The tensor behind a weight; NULL when there is none. While memory is only measured weights need not be packed. */
static const fg_tensor *fg__graph_tensor(const fg_graph *graph, int index, bool measure) {
    if (index < 0 || index >= graph->n_weights) return NULL;
    if (!measure && !(graph->weights && graph->weights[index])) return NULL;
    return &graph->tensors[index];
}

/* True when `index` is a vector of at least n elements, or -1 and may be missing. */
static bool fg__graph_has_vector(const fg_graph *graph, int index, int64_t n, bool may_miss, bool measure) {
    const fg_tensor *tensor = fg__graph_tensor(graph, index, measure);
    if (index == -1) return may_miss;
    return tensor && tensor->dims[0] * (tensor->n_dims > 1 ? tensor->dims[1] : 1) >= n;
}

static bool fg__graph_has_matrix(const fg_graph *graph, int index, int64_t k, int64_t n, bool measure) {
    const fg_tensor *tensor = fg__graph_tensor(graph, index, measure);
    return tensor && tensor->dims[0] == k && (tensor->n_dims > 1 ? tensor->dims[1] : 1) >= n;
}

static bool fg__graph_check_heads(const fg_graph *graph, const fg_op *op, bool measure) {
    const fg_group *group;
    int64_t q = (int64_t)op->n_head * op->head_dim, kv = (int64_t)op->n_kv_head * op->head_dim;
    if (op->group < 0 || op->group >= graph->n_groups) return false;
    group = &graph->groups[op->group];
    if (op->group_layer < 0 || op->group_layer >= group->n_layers || op->n_head < 1 || op->n_kv_head < 1 ||
        op->n_head % op->n_kv_head || op->head_dim != group->head_dim || op->n_kv_head != group->n_kv_head ||
        !fg__graph_has_columns(graph, op->src, op->src_col, q))
        return false;
    if (op->type == FG_OP_ATTENTION) return fg__graph_has_columns(graph, op->dst, op->dst_col, q);
    return fg__graph_has_columns(graph, op->src, op->src2_col, kv) &&
           fg__graph_has_columns(graph, op->src, op->dst_col, kv) && op->n_rot >= 0 && op->n_rot % 2 == 0 &&
           op->n_rot <= op->head_dim && fg__graph_has_vector(graph, op->weight, op->head_dim, true, measure) &&
           fg__graph_has_vector(graph, op->weight2, op->head_dim, true, measure) &&
           fg__graph_has_vector(graph, op->bias, op->n_rot / 2, op->n_rot == 0, measure);
}

/* True when everything an op names exists and is wide enough. `measure`: weights need not be packed yet. */
static bool fg__graph_check_op(const fg_graph *g, const fg_op *op, bool measure) {
    bool to = fg__graph_has_columns(g, op->dst, op->dst_col, op->n);
    bool from = fg__graph_has_columns(g, op->src, op->src_col, op->n);
    bool second = op->src2 == -1 || fg__graph_has_columns(g, op->src2, op->src2_col, op->n);
    switch (op->type) {
    case FG_OP_EMBED: return to && fg__graph_has_matrix(g, op->weight, op->n, 1, measure);
    case FG_OP_NORM:
        return to && from && second && fg__graph_has_vector(g, op->weight, op->n, true, measure) &&
               fg__graph_has_vector(g, op->bias, op->n, true, measure);
    case FG_OP_GEMM:
        return to && fg__graph_has_columns(g, op->src, op->src_col, op->k) &&
               fg__graph_has_matrix(g, op->weight, op->k, op->n, measure) &&
               fg__graph_has_vector(g, op->bias, op->n, true, measure) && op->src != op->dst &&
               (op->src2 == -1 || fg__graph_has_columns(g, op->src2, 0, op->n)) &&
               (op->src2 != op->dst || op->dst_col == 0);
    case FG_OP_ROPE_KV:
    case FG_OP_ATTENTION: return fg__graph_check_heads(g, op, measure);
    case FG_OP_ACT_MUL: return to && from && second && op->src2 >= 0;
    case FG_OP_GATHER_ROWS: return to && from && g->slots[op->dst].per_row && !g->slots[op->src].per_row;
    case FG_OP_SAMPLE: return from && g->slots[op->src].per_row && g->slots[op->src].width == op->n && op->src_col == 0;
    default: return false;
    }
}

/* `kv_types`: bits of the types that backend `name` offers. */
static fg_result fg__graph_check_group(const fg_group *group, uint64_t kv_types, const char *name) {
    if (group->kind != FG_GROUP_FULL && group->kind != FG_GROUP_WINDOW)
        return fg__fail(FG_ERROR_UNSUPPORTED, "the %s backend has no cache groups of kind %d", name, (int)group->kind);
    if ((int)group->kv_type < 0 || group->kv_type > 63 || !(kv_types >> group->kv_type & 1))
        return fg__fail(FG_ERROR_UNSUPPORTED, "the %s backend has no KV cache of type %s", name, fg_type_name(group->kv_type));
    if (group->block_tokens < 1 || (group->block_tokens & (group->block_tokens - 1)) || group->block_tokens > 1 << 20 ||
        group->n_layers < 1 || group->n_kv_head < 1 || group->head_dim < 1 || group->n_blocks < 1 ||
        group->window < 0 || (int64_t)group->n_kv_head * group->head_dim > 1 << 24 || group->n_layers > 1 << 16 ||
        (int64_t)group->n_blocks * group->block_tokens > INT32_MAX)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "a cache group's dimensions make no sense");
    return FG_OK;
}

/* True when the blocks that a sequence reads, and the slots that its tokens are written to, exist. */
static bool fg__batch_check_blocks(const fg_graph *graph, const fg_batch *batch, int index, int seq) {
    const fg_group *group = &graph->groups[index];
    const int32_t *table = batch->tables[index] + (size_t)seq * (size_t)graph->max_blocks_per_seq;
    int i, last = (batch->kv_len[seq] - 1) / group->block_tokens;
    int first = batch->kv_len[seq] - (batch->cu_q[seq + 1] - batch->cu_q[seq]); /* position of the first query */
    if (last >= graph->max_blocks_per_seq) return false;
    first = group->window > 0 ? FG__MAX(0, first - group->window + 1) : 0;
    for (i = first / group->block_tokens; i <= last; i++)
        if (table[i] < 0 || table[i] >= group->n_blocks) return false;
    for (i = batch->cu_q[seq]; i < batch->cu_q[seq + 1]; i++)
        if (batch->slots[index][i] < 0 || batch->slots[index][i] >= group->n_blocks * group->block_tokens) return false;
    return true;
}

/* True when every token, row, block and slot that a batch names exists. */
static bool fg__batch_check(const fg_graph *graph, const fg_batch *batch) {
    int i, j;
    if (batch->n_tokens < 1 || batch->n_tokens > graph->max_tokens || batch->n_seqs < 1 ||
        batch->n_seqs > graph->max_seqs || batch->n_rows < 0 || batch->n_rows > graph->max_rows ||
        batch->cu_q[0] != 0 || batch->cu_q[batch->n_seqs] != batch->n_tokens)
        return false;
    for (i = 0; i < batch->n_seqs; i++) {
        int n = batch->cu_q[i + 1] - batch->cu_q[i];
        if (n < 1 || n > batch->n_tokens || batch->kv_len[i] < n) return false;
        for (j = 0; j < graph->n_groups; j++)
            if (!fg__batch_check_blocks(graph, batch, j, i)) return false;
    }
    for (i = 0; i < batch->n_rows; i++)
        if (batch->rows[i] < 0 || batch->rows[i] >= batch->n_tokens) return false;
    for (i = 0; i < graph->n_ops; i++) {
        const fg_tensor *table = graph->ops[i].type == FG_OP_EMBED ? &graph->tensors[graph->ops[i].weight] : NULL;
        for (j = 0; table && j < batch->n_tokens; j++)
            if (batch->tokens[j] < 0 || batch->tokens[j] >= (table->n_dims > 1 ? table->dims[1] : 1)) return false;
    }
    return true;
}

/* ================================================================================================
   >>cpu_base  what the CPU can do, and how its kernels are told to the compiler
   ================================================================================================ */

/* One set of kernels per path. A plain `cc -O2` compiles them all; the CPU's features choose at run time. */
enum { FG__CPU_SCALAR, FG__CPU_AVX2, FG__CPU_AVX512, FG__CPU_NEON, FG__CPU_PATHS };

static const char *const fg__cpu_path_names[FG__CPU_PATHS] = {"scalar", "avx2", "avx512", "neon"};

#if FG__X86 || FG__ARM
#define FG__ALWAYS_INLINE inline __attribute__((always_inline))
/* Before loops of constant length over arrays of registers. */
#if defined(__clang__)
#define FG__UNROLL _Pragma("clang loop unroll(full)")
#else
#define FG__UNROLL _Pragma("GCC unroll 32")
#endif
#endif

/* Function-level targets: put before `static`. */
#if FG__X86
#define FG__TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define FG__TARGET_AVXVNNI __attribute__((target("avx2,fma,f16c,avxvnni")))
#define FG__TARGET_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")))
#define FG__TARGET_AVX512VNNI __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define FG__TARGET_AVX512VBMI \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")))
#define FG__TARGET_AVX512BF16 \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")))
#if (defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11)
#define FG__HAS_AVXVNNI 1 /* the compiler knows AVX-VNNI and AVX-512 BF16 */
#endif
#endif
#if FG__ARM
#if defined(__clang__)
#define FG__TARGET_DOTPROD __attribute__((target("dotprod")))
#define FG__TARGET_I8MM __attribute__((target("i8mm,dotprod")))
#define FG__TARGET_BF16 __attribute__((target("bf16,dotprod")))
#else
#define FG__TARGET_DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))
#define FG__TARGET_I8MM __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))
#define FG__TARGET_BF16 __attribute__((target("arch=armv8.2-a+dotprod+bf16")))
#endif
#endif

typedef struct fg__cpu_features {
    bool avx2;        /* with FMA and F16C, enabled by the system */
    bool avx_vnni;    /* vpdpbusd on 256-bit VEX registers */
    bool avx512;      /* F, BW, DQ, VL, and everything of avx2 */
    bool avx512_vnni, avx512_vbmi, avx512_bf16;
    bool neon, dotprod, i8mm, bf16; /* bf16: bfdot on ARM */
} fg__cpu_features;

#if FG__X86
static bool fg__cpu_bit(unsigned word, int bit) { return (word >> bit) & 1; }

static fg__cpu_features fg__cpu_detect(void) {
    fg__cpu_features f;
    unsigned a, b, c, d, highest, state, state_high;
    memset(&f, 0, sizeof(f));
    highest = __get_cpuid_max(0, NULL);
    if (highest < 7) return f;
    __cpuid_count(1, 0, a, b, c, d);
    if (!fg__cpu_bit(c, 27)) return f; /* no xgetbv: the system saves no wide registers */
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(state), "=d"(state_high) : "c"(0));
    if ((state & 6) != 6) return f;
    f.avx2 = fg__cpu_bit(c, 12) && fg__cpu_bit(c, 28) && fg__cpu_bit(c, 29);
    __cpuid_count(7, 0, highest, b, c, d);
    f.avx2 = f.avx2 && fg__cpu_bit(b, 5);
    f.avx512 = f.avx2 && (state & 0xe0) == 0xe0 && fg__cpu_bit(b, 16) && fg__cpu_bit(b, 17) && fg__cpu_bit(b, 30) &&
               fg__cpu_bit(b, 31);
    f.avx512_vbmi = f.avx512 && fg__cpu_bit(c, 1);
    f.avx512_vnni = f.avx512 && fg__cpu_bit(c, 11);
    if (highest < 1) return f;
    __cpuid_count(7, 1, a, b, c, d);
    f.avx_vnni = f.avx2 && fg__cpu_bit(a, 4);
    f.avx512_bf16 = f.avx512 && fg__cpu_bit(a, 5);
    return f;
}
#elif FG__ARM
static fg__cpu_features fg__cpu_detect(void) {
    fg__cpu_features f;
    memset(&f, 0, sizeof(f));
    f.neon = true;
#if defined(__linux__)
    f.dotprod = (getauxval(AT_HWCAP) >> 20) & 1;
    f.i8mm = f.dotprod && ((getauxval(AT_HWCAP2) >> 13) & 1);
    f.bf16 = f.dotprod && ((getauxval(AT_HWCAP2) >> 14) & 1);
#elif defined(__ARM_FEATURE_DOTPROD)
    f.dotprod = true;
#endif
    return f;
}
#else
static fg__cpu_features fg__cpu_detect(void) {
    fg__cpu_features f;
    memset(&f, 0, sizeof(f));
    return f;
}
#endif

/* How one weight type is multiplied on one SIMD path. Panels are 32 output rows (the last one zero-padded). */
#define FG__PANEL 32
typedef struct fg__gemm_kernel {
    size_t (*panel_bytes)(fg_type type, int64_t k); /* bytes of one packed panel, multiple of 64 */
    void (*pack)(fg_type type, const void *rows, size_t row_bytes, int n_rows, int64_t k, void *panel); /* <= 32 rows */
    size_t (*act_bytes)(int64_t k);                    /* bytes of one packed activation row, multiple of 64 */
    void (*act_pack)(const float *x, int64_t k, void *packed); /* quantises or copies one row */
    /* out[i][0..31] = W . x_i for m rows, raw sums; strides in bytes (acts) and floats (out). A row's result does not
       depend on m or on the rows beside it. Kernels with the same act_pack share packed activations. */
    void (*gemm)(fg_type type, const void *panel, int64_t k, const void *acts, size_t act_stride, int m, float *out,
                 size_t out_stride);
} fg__gemm_kernel;

/* The fastest kernel for a weight type and input width on a path; NULL: none, the generic way is used (>>cpu). */
static const fg__gemm_kernel *fg__gemm_kernel_find(int path, fg_type type, int64_t k);

/* ================================================================================================
   >>cpu_ops  kernels of all operations but the matrix products

   A kernel's result for one row, token or head depends on nothing beside it: not on how many rows a call has, nor on
   where they lie. Sums run in a fixed order. That is what makes a request's results independent of its batch.
   ================================================================================================ */

/* The KV cache of one head is cut into tiles of 32 tokens (of `width`, where blocks are smaller), K then V:
     K  head_dim x width: a column per token, so that tokens are the lanes of a dot product
     V  width x head_dim: a row per token
   Q8_0 stores bytes in the same order, then one half float per token and 32 dimensions:
     K  scales n_scales x width          V  scales width x n_scales
   Kernels see tiles of 32 tokens only; smaller ones are put together before. */
#define FG__TILE 32
#define FG__SPAN 256      /* positions whose attention is one partial result; partial results are added in order */
#define FG__SCORE_ROW 272 /* floats from one row of scores to the next */
#define FG__ROW_BLOCK 12  /* rows (query heads of query tokens) that an attention kernel takes at once */

typedef struct fg__kv_layout {
    fg_type type;
    int head_dim, width;
    int n_scales;      /* Q8_0: per token */
    size_t v_offset;   /* of V in a tile */
    size_t tile_bytes; /* a multiple of 64 */
} fg__kv_layout;

/* What argmax and log-sum-exp need to know of a piece of a row. */
typedef struct fg__sample_part {
    float max, sum; /* sum of exp(x - max) */
    int32_t token;
} fg__sample_part;

/* One per path. Attention works on a block of m <= FG__ROW_BLOCK rows: q has head_dim x FG__ROW_BLOCK floats, so that
   what is multiplied together lies together; rows of scores are FG__SCORE_ROW apart. Rows past m must be there, as
   zeros. */
typedef struct fg__cpu_ops {
    /* out = x / rms(x) * weight; weight may be NULL */
    void (*rms_norm)(const float *x, const float *weight, int n, float eps, float *out);
    /* out = act(x) * y; y may be NULL: 1 */
    void (*act_mul)(int act, const float *x, const float *y, int n, float *out);
    /* turns the pairs of x by cos_sin: n_rot/2 cosines, then as many sines */
    void (*rope)(float *x, const float *cos_sin, int n_rot, int neox);
    /* stores one head's k and v as token t of a tile */
    void (*kv_store)(const fg__kv_layout *layout, const float *k, const float *v, int t, void *tile);
    /* s = q . K for the 32 tokens of a tile */
    void (*qk)(const fg__kv_layout *layout, const void *k, const float *q, int m, const char *next, float *s);
    /* scores in columns [from, to), multiples of 32, to exp(score - max), with 0 outside of a row's [lo, hi) */
    void (*softmax)(float *s, int m, int from, int to, const int *lo, const int *hi, float softcap, float *max,
                    float *sum);
    /* acc = s . V over tokens t0 to t1-1 of a tile; unless `first`, added to acc. s starts at the tile's column */
    void (*pv)(const fg__kv_layout *layout, const void *v, const float *s, int m, int t0, int t1, bool first,
               const char *next, float *acc);
    /* adds the partial result (max2, sum2, acc2) to (max, sum, acc) */
    void (*fold)(int m, int head_dim, const float *max2, const float *sum2, const float *acc2, float *max, float *sum,
                 float *acc);
    void (*sample)(const float *x, int n, fg__sample_part *part);
    /* m rows of a panel's sums to their place: out = sums (+ bias) (+ more); bias and more may be NULL, n <= 32 */
    void (*finish)(const float *sums, const float *bias, const float *more, size_t more_row, int m, int n, float *out,
                   size_t out_row);
    /* one row of the generic product: out[i * out_stride] = w . x_i */
    void (*dot)(const float *w, const float *x, size_t x_stride, int m, int64_t k, float *out, size_t out_stride);
    /* for fg_measure_roofs: reads memory; runs `rounds` of the path's best products and returns operations done */
    uint64_t (*read)(const void *memory, size_t bytes);
    double (*int8_products)(int rounds);
    double (*float_products)(int rounds);
} fg__cpu_ops;

static size_t fg__round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static fg__kv_layout fg__kv_layout_make(fg_type type, int head_dim, int block_tokens) {
    fg__kv_layout layout;
    size_t one;
    memset(&layout, 0, sizeof(layout));
    layout.type = type;
    layout.head_dim = head_dim;
    layout.width = FG__MIN(block_tokens, FG__TILE);
    layout.n_scales = type == FG_TYPE_Q8_0 ? (head_dim + 31) / 32 : 0;
    one = type == FG_TYPE_Q8_0 ? (size_t)head_dim + 1 + 2 * (size_t)layout.n_scales
                               : (size_t)head_dim * (type == FG_TYPE_F32 ? 4 : 2);
    layout.v_offset = fg__round_up(one * (size_t)layout.width, 64);
    layout.tile_bytes = 2 * layout.v_offset;
    return layout;
}

/* Where the scales of Q8_0 start, from K or from V. */
static size_t fg__kv_scales(const fg__kv_layout *layout) {
    return fg__round_up((size_t)layout->head_dim * (size_t)layout->width, 2);
}

/* ---- The scalar reference: the plainest way, for any CPU. ---- */

static void fg__rms_norm_scalar(const float *x, const float *weight, int n, float eps, float *out) {
    float sum[16], scale;
    int i, j;
    memset(sum, 0, sizeof(sum));
    for (i = 0; i < n; i++) sum[i & 15] += x[i] * x[i];
    for (j = 8; j > 0; j /= 2)
        for (i = 0; i < j; i++) sum[i] += sum[i + j];
    scale = 1.0f / sqrtf(sum[0] / (float)n + eps);
    for (i = 0; i < n; i++) out[i] = x[i] * scale * (weight ? weight[i] : 1.0f);
}

static float fg__act_one(int act, float x) {
    switch (act) {
    case FG_ACT_SILU: return x / (1.0f + expf(-x));
    case FG_ACT_GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case FG_ACT_GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case FG_ACT_RELU: return x > 0.0f ? x : 0.0f;
    default: return x;
    }
}

static void fg__act_mul_scalar(int act, const float *x, const float *y, int n, float *out) {
    int i;
    for (i = 0; i < n; i++) out[i] = y ? fg__act_one(act, x[i]) * y[i] : fg__act_one(act, x[i]);
}

static void fg__rope_scalar(float *x, const float *cos_sin, int n_rot, int neox) {
    int i, half = n_rot / 2, step = neox ? 1 : 2, apart = neox ? half : 1;
    for (i = 0; i < half; i++) {
        float *pair = x + step * i, a = pair[0], b = pair[apart];
        pair[0] = a * cos_sin[i] - b * cos_sin[half + i];
        pair[apart] = a * cos_sin[half + i] + b * cos_sin[i];
    }
}

/* Nearest integer, ties to even, within -127 to 127; NaN becomes -127. */
static int8_t fg__round_to_byte(float x) {
    if (!(x > -127.0f)) return -127;
    if (x >= 127.0f) return 127;
    return (int8_t)(int)((x + 12582912.0f) - 12582912.0f);
}

/* Quantises up to 32 values; values and bytes are `x_step` and `q_step` apart. Returns the scale as a half float. */
static uint16_t fg__q8_store(const float *x, int n, int8_t *q, int q_step) {
    float largest = 0.0f, scale, inverse;
    uint16_t half;
    int i;
    for (i = 0; i < n; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    half = fg__f32_to_f16(FG__MIN(largest / 127.0f, 65504.0f));
    scale = fg__f16_to_f32(half);
    inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (i = 0; i < n; i++) q[i * q_step] = fg__round_to_byte(x[i] * inverse);
    return half;
}

static void fg__kv_store_q8(const fg__kv_layout *layout, const float *k, const float *v, int t, char *tile) {
    int n = layout->head_dim, w = layout->width, b;
    int8_t *kq = (int8_t *)tile, *vq = (int8_t *)tile + layout->v_offset;
    uint16_t *ks = (uint16_t *)(void *)(kq + fg__kv_scales(layout)),
             *vs = (uint16_t *)(void *)(vq + fg__kv_scales(layout));
    for (b = 0; b < layout->n_scales; b++) {
        int count = FG__MIN(32, n - 32 * b);
        ks[b * w + t] = fg__q8_store(k + 32 * b, count, kq + 32 * b * w + t, w);
        vs[t * layout->n_scales + b] = fg__q8_store(v + 32 * b, count, vq + t * n + 32 * b, 1);
    }
}

static void fg__kv_store_scalar(const fg__kv_layout *layout, const float *k, const float *v, int t, void *tile) {
    int n = layout->head_dim, w = layout->width, i;
    char *values = (char *)tile + layout->v_offset;
    if (layout->type == FG_TYPE_Q8_0) {
        fg__kv_store_q8(layout, k, v, t, (char *)tile);
    } else if (layout->type == FG_TYPE_F32) {
        for (i = 0; i < n; i++) ((float *)tile)[i * w + t] = k[i];
        for (i = 0; i < n; i++) ((float *)(void *)values)[t * n + i] = v[i];
    } else if (layout->type == FG_TYPE_F16) {
        for (i = 0; i < n; i++) ((uint16_t *)tile)[i * w + t] = fg__f32_to_f16(k[i]);
        for (i = 0; i < n; i++) ((uint16_t *)(void *)values)[t * n + i] = fg__f32_to_f16(v[i]);
    } else {
        for (i = 0; i < n; i++) ((uint16_t *)tile)[i * w + t] = fg__f32_to_bf16(k[i]);
        for (i = 0; i < n; i++) ((uint16_t *)(void *)values)[t * n + i] = fg__f32_to_bf16(v[i]);
    }
}

/* n cached values that start at element `at` of K or V, as floats; without the scales of Q8_0. */
static void fg__kv_values(fg_type type, const void *values, int at, int n, float *out) {
    int i;
    if (type == FG_TYPE_F32) memcpy(out, (const float *)values + at, (size_t)n * sizeof(float));
    else if (type == FG_TYPE_F16)
        for (i = 0; i < n; i++) out[i] = fg__f16_to_f32(((const uint16_t *)values)[at + i]);
    else if (type == FG_TYPE_BF16)
        for (i = 0; i < n; i++) out[i] = fg__bf16_to_f32(((const uint16_t *)values)[at + i]);
    else
        for (i = 0; i < n; i++) out[i] = (float)((const int8_t *)values)[at + i];
}

/* Dimension d of the 32 tokens of a K tile, as floats. */
static void fg__k_column(const fg__kv_layout *layout, const void *k, int d, float *out) {
    const uint16_t *scales = (const uint16_t *)k + layout->head_dim * (FG__TILE / 2) + d / 32 * FG__TILE;
    int t;
    fg__kv_values(layout->type, k, d * FG__TILE, FG__TILE, out);
    for (t = 0; t < FG__TILE && layout->type == FG_TYPE_Q8_0; t++) out[t] *= fg__f16_to_f32(scales[t]);
}

/* Dimensions d0 to d0+count-1 (d0 a multiple of 32) of token t of a V tile, as floats. */
static void fg__v_row(const fg__kv_layout *layout, const void *v, int t, int d0, int count, float *out) {
    const uint16_t *scales = (const uint16_t *)v + layout->head_dim * (FG__TILE / 2) + t * layout->n_scales + d0 / 32;
    int i;
    fg__kv_values(layout->type, v, t * layout->head_dim + d0, count, out);
    for (i = 0; i < count && layout->type == FG_TYPE_Q8_0; i++) out[i] *= fg__f16_to_f32(scales[i / 32]);
}

static void fg__qk_scalar(const fg__kv_layout *layout, const void *k, const float *q, int m, const char *next,
                          float *s) {
    float column[FG__TILE];
    int d, r, t;
    (void)next;
    for (r = 0; r < m; r++) memset(s + r * FG__SCORE_ROW, 0, FG__TILE * sizeof(float));
    for (d = 0; d < layout->head_dim; d++) {
        fg__k_column(layout, k, d, column);
        for (r = 0; r < m; r++)
            for (t = 0; t < FG__TILE; t++) s[r * FG__SCORE_ROW + t] += q[d * FG__ROW_BLOCK + r] * column[t];
    }
}

static void fg__softmax_scalar(float *s, int m, int from, int to, const int *lo, const int *hi, float softcap,
                               float *max, float *sum) {
    int r, t;
    for (r = 0; r < m; r++, s += FG__SCORE_ROW) {
        float highest = -INFINITY, total = 0.0f;
        for (t = lo[r]; t < hi[r]; t++) {
            if (softcap > 0.0f) s[t] = softcap * tanhf(s[t] / softcap);
            highest = s[t] > highest ? s[t] : highest;
        }
        for (t = from; t < to; t++) s[t] = t >= lo[r] && t < hi[r] ? expf(s[t] - highest) : 0.0f;
        for (t = lo[r]; t < hi[r]; t++) total += s[t];
        max[r] = highest;
        sum[r] = total;
    }
}

static void fg__pv_scalar(const fg__kv_layout *layout, const void *v, const float *s, int m, int t0, int t1, bool first,
                          const char *next, float *acc) {
    float row[64];
    int n = layout->head_dim, d0, d, r, t;
    (void)next;
    if (first) memset(acc, 0, (size_t)(m * n) * sizeof(float));
    for (d0 = 0; d0 < n; d0 += 64)
        for (t = t0; t < t1; t++) {
            int count = FG__MIN(64, n - d0);
            fg__v_row(layout, v, t, d0, count, row);
            for (r = 0; r < m; r++)
                for (d = 0; d < count; d++) acc[r * n + d0 + d] += s[r * FG__SCORE_ROW + t] * row[d];
        }
}

static void fg__fold_scalar(int m, int head_dim, const float *max2, const float *sum2, const float *acc2, float *max,
                            float *sum, float *acc) {
    int r, d;
    for (r = 0; r < m; r++, acc += head_dim, acc2 += head_dim) {
        float highest = max2[r] > max[r] ? max2[r] : max[r];
        float a, b;
        if (max2[r] == -INFINITY) continue; /* nothing was seen: `acc` keeps its bits */
        a = max[r] == highest ? 1.0f : expf(max[r] - highest);
        b = max2[r] == highest ? 1.0f : expf(max2[r] - highest);
        for (d = 0; d < head_dim; d++) acc[d] = acc[d] * a + acc2[d] * b;
        sum[r] = sum[r] * a + sum2[r] * b;
        max[r] = highest;
    }
}

/* NaN counts as minus infinity. */
static void fg__sample_scalar(const float *x, int n, fg__sample_part *part) {
    float sum = 0.0f;
    int i;
    part->max = -INFINITY;
    part->token = 0;
    for (i = 0; i < n; i++)
        if (x[i] > part->max) {
            part->max = x[i];
            part->token = i;
        }
    for (i = 0; i < n && part->max > -INFINITY && part->max < INFINITY; i++)
        if (x[i] > -INFINITY) sum += expf(x[i] - part->max);
    part->sum = sum;
}

static float fg__dot_one(const float *a, const float *b, int64_t k) {
    float sum[16];
    int64_t i;
    int j, n;
    memset(sum, 0, sizeof(sum));
    for (i = 0; i + 16 <= k; i += 16)
        for (j = 0; j < 16; j++) sum[j] += a[i + j] * b[i + j];
    for (j = 0; i < k; i++, j++) sum[j] += a[i] * b[i];
    for (n = 8; n > 0; n /= 2)
        for (j = 0; j < n; j++) sum[j] += sum[j + n];
    return sum[0];
}

static void fg__finish_scalar(const float *sums, const float *bias, const float *more, size_t more_row, int m, int n,
                              float *out, size_t out_row) {
    int r, i;
    for (r = 0; r < m; r++)
        for (i = 0; i < n; i++) {
            float x = sums[r * FG__PANEL + i];
            if (bias) x += bias[i];
            if (more) x += more[(size_t)r * more_row + (size_t)i];
            out[(size_t)r * out_row + (size_t)i] = x;
        }
}

static void fg__dot_scalar(const float *w, const float *x, size_t x_stride, int m, int64_t k, float *out,
                           size_t out_stride) {
    int i;
    for (i = 0; i < m; i++) out[(size_t)i * out_stride] = fg__dot_one(w, x + (size_t)i * x_stride, k);
}

static uint64_t fg__read_scalar(const void *memory, size_t bytes) {
    const uint64_t *words = (const uint64_t *)memory;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    size_t i, n = bytes / sizeof(uint64_t);
    for (i = 0; i + 4 <= n; i += 4) {
        a += words[i];
        b += words[i + 1];
        c += words[i + 2];
        d += words[i + 3];
    }
    return a + b + c + d;
}

static double fg__int8_products_scalar(int rounds) {
    int8_t a[64], b[64];
    int32_t sum[64];
    volatile int32_t keep;
    int i, j;
    for (i = 0; i < 64; i++) {
        a[i] = (int8_t)(i + rounds);
        b[i] = (int8_t)(i - rounds);
        sum[i] = 0;
    }
    for (j = 0; j < rounds; j++)
        for (i = 0; i < 64; i++) sum[i] = (int32_t)((uint32_t)sum[i] + (uint32_t)(a[i] * b[i]));
    for (i = 1; i < 64; i++) sum[0] ^= sum[i];
    keep = sum[0];
    (void)keep;
    return 128.0 * rounds;
}

static double fg__float_products_scalar(int rounds) {
    float sum[32], a = 1.0f + (float)rounds * 1e-12f, b = (float)rounds * 1e-9f;
    volatile float keep;
    int i, j;
    for (i = 0; i < 32; i++) sum[i] = (float)i;
    for (j = 0; j < rounds; j++)
        for (i = 0; i < 32; i++) sum[i] = sum[i] * a + b;
    for (i = 1; i < 32; i++) sum[0] += sum[i];
    keep = sum[0];
    (void)keep;
    return 64.0 * rounds;
}

static const fg__cpu_ops fg__cpu_ops_scalar = {
    fg__rms_norm_scalar, fg__act_mul_scalar, fg__rope_scalar,          fg__kv_store_scalar,      fg__qk_scalar,
    fg__softmax_scalar,  fg__pv_scalar,      fg__fold_scalar,          fg__sample_scalar,        fg__finish_scalar,
    fg__dot_scalar,      fg__read_scalar,    fg__int8_products_scalar, fg__float_products_scalar};
#if FG__X86

/* ---- AVX-512. Tails are masked, so that every element goes through the same instructions. ---- */

#define FG__LANES(n) ((__mmask16)((n) >= 16 ? 0xFFFF : (1u << (n)) - 1))

/* e^x, relative error below 1.2e-7 (one unit in the last place); 0 from about -104 down, infinity from about 88.7 up.
 */
FG__TARGET_AVX512 static FG__ALWAYS_INLINE __m512 fg__exp_avx512(__m512 x) {
    __m512 n, r, p;
    x = _mm512_max_ps(_mm512_set1_ps(-110.0f), _mm512_min_ps(_mm512_set1_ps(100.0f), x)); /* keeps NaN */
    n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                             _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    p = _mm512_fmadd_ps(_mm512_set1_ps(0.0013814614f), r, _mm512_set1_ps(0.00836871f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.04166839f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.16666521f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.49999994f));
    p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

FG__TARGET_AVX512 static void fg__rms_norm_avx512(const float *x, const float *weight, int n, float eps, float *out) {
    __m512 a = _mm512_setzero_ps(), b = a, c = a, d = a, scale;
    int i = 0;
    for (; i + 64 <= n; i += 64) {
        __m512 v0 = _mm512_loadu_ps(x + i), v1 = _mm512_loadu_ps(x + i + 16);
        __m512 v2 = _mm512_loadu_ps(x + i + 32), v3 = _mm512_loadu_ps(x + i + 48);
        a = _mm512_fmadd_ps(v0, v0, a);
        b = _mm512_fmadd_ps(v1, v1, b);
        c = _mm512_fmadd_ps(v2, v2, c);
        d = _mm512_fmadd_ps(v3, v3, d);
    }
    for (; i < n; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps(FG__LANES(n - i), x + i);
        a = _mm512_fmadd_ps(v, v, a);
    }
    a = _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d));
    scale = _mm512_set1_ps(1.0f / sqrtf(_mm512_reduce_add_ps(a) / (float)n + eps));
    for (i = 0; i < n; i += 16) {
        __mmask16 lanes = FG__LANES(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), scale);
        if (weight) v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(lanes, weight + i));
        _mm512_mask_storeu_ps(out + i, lanes, v);
    }
}

/* SiLU is x * sigmoid(x); GELU with tanh is x * sigmoid(2u), u being what tanh takes. */
FG__TARGET_AVX512 static void fg__act_mul_avx512(int act, const float *x, const float *y, int n, float *out) {
    const __m512 one = _mm512_set1_ps(1.0f);
    int i;
    if (act != FG_ACT_SILU && act != FG_ACT_GELU_TANH) {
        fg__act_mul_scalar(act, x, y, n, out);
        return;
    }
    for (i = 0; i < n; i += 16) {
        __mmask16 lanes = FG__LANES(n - i);
        __m512 v = _mm512_maskz_loadu_ps(lanes, x + i), u = v;
        if (act == FG_ACT_GELU_TANH) {
            u = _mm512_fmadd_ps(_mm512_mul_ps(v, v), _mm512_set1_ps(0.044715f), one);
            u = _mm512_mul_ps(_mm512_mul_ps(v, u), _mm512_set1_ps(1.5957691f));
        }
        u = _mm512_div_ps(v, _mm512_add_ps(one, fg__exp_avx512(_mm512_sub_ps(_mm512_setzero_ps(), u))));
        if (y) u = _mm512_mul_ps(u, _mm512_maskz_loadu_ps(lanes, y + i));
        _mm512_mask_storeu_ps(out + i, lanes, u);
    }
}

FG__TARGET_AVX512 static void fg__rope_avx512(float *x, const float *cos_sin, int n_rot, int neox) {
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
    int i, half = n_rot / 2;
    for (i = 0; i < half; i += 16) {
        int count = FG__MIN(half - i, 16);
        __mmask16 lanes = FG__LANES(count), first = FG__LANES(2 * count);
        __mmask16 second = FG__LANES(count > 8 ? 2 * count - 16 : 0);
        __m512 co = _mm512_maskz_loadu_ps(lanes, cos_sin + i), si = _mm512_maskz_loadu_ps(lanes, cos_sin + half + i), a,
               b, c, d;
        if (neox) {
            a = _mm512_maskz_loadu_ps(lanes, x + i);
            b = _mm512_maskz_loadu_ps(lanes, x + half + i);
        } else {
            c = _mm512_maskz_loadu_ps(first, x + 2 * i);
            d = _mm512_maskz_loadu_ps(second, x + 2 * i + 16);
            a = _mm512_permutex2var_ps(c, even, d);
            b = _mm512_permutex2var_ps(c, odd, d);
        }
        c = _mm512_fmsub_ps(a, co, _mm512_mul_ps(b, si));
        d = _mm512_fmadd_ps(a, si, _mm512_mul_ps(b, co));
        if (neox) {
            _mm512_mask_storeu_ps(x + i, lanes, c);
            _mm512_mask_storeu_ps(x + half + i, lanes, d);
        } else {
            _mm512_mask_storeu_ps(x + 2 * i, first, _mm512_permutex2var_ps(c, low, d));
            _mm512_mask_storeu_ps(x + 2 * i + 16, second, _mm512_permutex2var_ps(c, high, d));
        }
    }
}

/* Up to 16 floats as halves or bfloat16, rounded to nearest even. */
FG__TARGET_AVX512 static FG__ALWAYS_INLINE __m256i fg__to_16_bits_avx512(fg_type type, __m512 x) {
    __m512i bits = _mm512_castps_si512(x), odd, rounded;
    if (type == FG_TYPE_F16) return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

/* 32 values (zeros past the end) as bytes with a scale. */
FG__TARGET_AVX512 static FG__ALWAYS_INLINE uint16_t fg__q8_avx512(__m512 a, __m512 b, int8_t *q) {
    const __m512 limit = _mm512_set1_ps(127.0f);
    __m512 larger = _mm512_max_ps(_mm512_abs_ps(b), _mm512_abs_ps(a)), inverse;
    uint16_t half = fg__f32_to_f16(FG__MIN(_mm512_reduce_max_ps(larger) / 127.0f, 65504.0f));
    float scale = fg__f16_to_f32(half);
    inverse = _mm512_set1_ps(scale > 0.0f ? 1.0f / scale : 0.0f);
    a = _mm512_max_ps(_mm512_min_ps(_mm512_mul_ps(a, inverse), limit), _mm512_set1_ps(-127.0f));
    b = _mm512_max_ps(_mm512_min_ps(_mm512_mul_ps(b, inverse), limit), _mm512_set1_ps(-127.0f));
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
    _mm_storeu_si128((__m128i *)(void *)(q + 16), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(b)));
    return half;
}

FG__TARGET_AVX512 static void fg__kv_store_q8_avx512(const fg__kv_layout *layout, const float *k, const float *v, int t,
                                                     char *tile) {
    int n = layout->head_dim, w = layout->width, b, i, part;
    for (b = 0; b < layout->n_scales; b++)
        for (part = 0; part < 2; part++) {
            const float *x = (part ? v : k) + 32 * b;
            int count = FG__MIN(32, n - 32 * b);
            int8_t q[32], *to = (int8_t *)tile + (part ? layout->v_offset : 0);
            uint16_t *scales = (uint16_t *)(void *)(to + fg__kv_scales(layout));
            uint16_t scale = fg__q8_avx512(_mm512_maskz_loadu_ps(FG__LANES(count), x),
                                           _mm512_maskz_loadu_ps(FG__LANES(count > 16 ? count - 16 : 0), x + 16), q);
            scales[part ? t * layout->n_scales + b : b * w + t] = scale;
            if (part) memcpy(to + t * n + 32 * b, q, (size_t)count);
            else
                for (i = 0; i < count; i++) to[(32 * b + i) * w + t] = q[i];
        }
}

FG__TARGET_AVX512 static void fg__kv_store_avx512(const fg__kv_layout *layout, const float *k, const float *v, int t,
                                                  void *tile) {
    int n = layout->head_dim, w = layout->width, i, j;
    uint16_t *keys = (uint16_t *)tile, *values = (uint16_t *)(void *)((char *)tile + layout->v_offset), room[16];
    if (layout->type == FG_TYPE_Q8_0) {
        fg__kv_store_q8_avx512(layout, k, v, t, (char *)tile);
    } else if (layout->type == FG_TYPE_F32) {
        for (i = 0; i < n; i++) ((float *)tile)[i * w + t] = k[i];
        memcpy((float *)(void *)values + t * n, v, (size_t)n * sizeof(float));
    } else {
        for (i = 0; i < n; i += 16) {
            __mmask16 lanes = FG__LANES(n - i);
            _mm256_mask_storeu_epi16(values + t * n + i, lanes,
                                     fg__to_16_bits_avx512(layout->type, _mm512_maskz_loadu_ps(lanes, v + i)));
            _mm256_storeu_si256((__m256i *)(void *)room,
                                fg__to_16_bits_avx512(layout->type, _mm512_maskz_loadu_ps(lanes, k + i)));
            for (j = 0; j < 16 && i + j < n; j++) keys[(i + j) * w + t] = room[j];
        }
    }
}

/* 16 cached values from element `at` on, as floats; without the scales of Q8_0. */
FG__TARGET_AVX512 static FG__ALWAYS_INLINE __m512 fg__kv_load_avx512(fg_type type, const void *from, size_t at,
                                                                     __mmask16 lanes) {
    if (type == FG_TYPE_F32) return _mm512_maskz_loadu_ps(lanes, (const float *)from + at);
    if (type == FG_TYPE_F16) return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, (const uint16_t *)from + at));
    if (type == FG_TYPE_BF16)
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, (const uint16_t *)from + at)), 16));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(lanes, (const int8_t *)from + at)));
}

FG__TARGET_AVX512 static FG__ALWAYS_INLINE __m512 fg__half_avx512(const uint16_t *half) {
    return _mm512_cvtph_ps(_mm256_set1_epi16((short)*half));
}

/* What both products of attention are made of: out[r][0..31] (+)= sum over j of a[r][j] * b[j][0..31], for j in [from,
   to). With `keys`, a is a block of queries (j a dimension), else rows of probabilities (j a token). Each element is a
   chain of fused multiply-adds in the order of j, whatever `rows` is. */
FG__TARGET_AVX512 static FG__ALWAYS_INLINE void fg__outer_avx512(fg_type type, int rows, bool keys, const float *a,
                                                                 const void *b, size_t b_row, const uint16_t *scales,
                                                                 size_t scale_row, int from, int to, bool first,
                                                                 const char *next, __mmask16 lanes0, __mmask16 lanes1,
                                                                 float *out, size_t out_row) {
    size_t bytes = type == FG_TYPE_F32 ? 4 : type == FG_TYPE_Q8_0 ? 1 : 2;
    __m512 acc[FG__ROW_BLOCK][2], scale0 = _mm512_setzero_ps(), scale1 = scale0;
    int j, r;
    FG__UNROLL
    for (r = 0; r < rows; r++) {
        acc[r][0] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes0, out + (size_t)r * out_row);
        acc[r][1] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes1, out + (size_t)r * out_row + 16);
    }
    for (j = from; j < to; j++) {
        __m512 b0 = fg__kv_load_avx512(type, b, (size_t)j * b_row, lanes0);
        __m512 b1 = fg__kv_load_avx512(type, b, (size_t)j * b_row + 16, lanes1);
        _mm_prefetch(next + (size_t)j * b_row * bytes, _MM_HINT_T0);
        if (type == FG_TYPE_F32) _mm_prefetch(next + (size_t)j * b_row * bytes + 64, _MM_HINT_T0);
        if (type == FG_TYPE_Q8_0) {
            if (keys && j % 32 == 0) {
                scale0 = fg__kv_load_avx512(FG_TYPE_F16, scales, (size_t)j / 32 * scale_row, 0xFFFF);
                scale1 = fg__kv_load_avx512(FG_TYPE_F16, scales, (size_t)j / 32 * scale_row + 16, 0xFFFF);
            }
            if (!keys) scale0 = scale1 = fg__half_avx512(scales + (size_t)j * scale_row);
            b0 = _mm512_mul_ps(b0, scale0);
            b1 = _mm512_mul_ps(b1, scale1);
        }
        FG__UNROLL
        for (r = 0; r < rows; r++) {
            __m512 x = _mm512_set1_ps(keys ? a[j * FG__ROW_BLOCK + r] : a[r * FG__SCORE_ROW + j]);
            acc[r][0] = _mm512_fmadd_ps(x, b0, acc[r][0]);
            acc[r][1] = _mm512_fmadd_ps(x, b1, acc[r][1]);
        }
    }
    FG__UNROLL
    for (r = 0; r < rows; r++) {
        _mm512_mask_storeu_ps(out + (size_t)r * out_row, lanes0, acc[r][0]);
        _mm512_mask_storeu_ps(out + (size_t)r * out_row + 16, lanes1, acc[r][1]);
    }
}

/* The 32 scores of m rows; computes a few rows more where that saves a second walk. */
FG__TARGET_AVX512 static FG__ALWAYS_INLINE void fg__qk_type_avx512(fg_type type, const fg__kv_layout *layout,
                                                                   const void *k, const float *q, int m,
                                                                   const char *next, float *s) {
    const uint16_t *scales = (const uint16_t *)k + layout->head_dim * (FG__TILE / 2);
    int n = layout->head_dim;
    if (m > 8)
        fg__outer_avx512(type, 12, true, q, k, 32, scales, 32, 0, n, true, next, 0xFFFF, 0xFFFF, s, FG__SCORE_ROW);
    else if (m > 4)
        fg__outer_avx512(type, 8, true, q, k, 32, scales, 32, 0, n, true, next, 0xFFFF, 0xFFFF, s, FG__SCORE_ROW);
    else if (m > 2)
        fg__outer_avx512(type, 4, true, q, k, 32, scales, 32, 0, n, true, next, 0xFFFF, 0xFFFF, s, FG__SCORE_ROW);
    else if (m > 1)
        fg__outer_avx512(type, 2, true, q, k, 32, scales, 32, 0, n, true, next, 0xFFFF, 0xFFFF, s, FG__SCORE_ROW);
    else fg__outer_avx512(type, 1, true, q, k, 32, scales, 32, 0, n, true, next, 0xFFFF, 0xFFFF, s, FG__SCORE_ROW);
}

FG__TARGET_AVX512 static void fg__qk_avx512(const fg__kv_layout *layout, const void *k, const float *q, int m,
                                            const char *next, float *s) {
    if (layout->type == FG_TYPE_F32) fg__qk_type_avx512(FG_TYPE_F32, layout, k, q, m, next, s);
    else if (layout->type == FG_TYPE_F16) fg__qk_type_avx512(FG_TYPE_F16, layout, k, q, m, next, s);
    else if (layout->type == FG_TYPE_BF16) fg__qk_type_avx512(FG_TYPE_BF16, layout, k, q, m, next, s);
    else fg__qk_type_avx512(FG_TYPE_Q8_0, layout, k, q, m, next, s);
}

/* One strip of 32 dimensions. */
FG__TARGET_AVX512 static FG__ALWAYS_INLINE void fg__pv_strip_avx512(fg_type type, const float *s, const void *v,
                                                                    size_t n, const uint16_t *scales, size_t n_scales,
                                                                    int m, int t0, int t1, bool first, const char *next,
                                                                    int dims, float *acc) {
    __mmask16 l0 = FG__LANES(dims), l1 = FG__LANES(dims > 16 ? dims - 16 : 0);
    if (m > 8) fg__outer_avx512(type, 12, false, s, v, n, scales, n_scales, t0, t1, first, next, l0, l1, acc, n);
    else if (m > 4) fg__outer_avx512(type, 8, false, s, v, n, scales, n_scales, t0, t1, first, next, l0, l1, acc, n);
    else if (m > 2) fg__outer_avx512(type, 4, false, s, v, n, scales, n_scales, t0, t1, first, next, l0, l1, acc, n);
    else if (m > 1) fg__outer_avx512(type, 2, false, s, v, n, scales, n_scales, t0, t1, first, next, l0, l1, acc, n);
    else fg__outer_avx512(type, 1, false, s, v, n, scales, n_scales, t0, t1, first, next, l0, l1, acc, n);
}

FG__TARGET_AVX512 static void fg__pv_avx512(const fg__kv_layout *layout, const void *v, const float *s, int m, int t0,
                                            int t1, bool first, const char *next, float *acc) {
    size_t n = (size_t)layout->head_dim, n_scales = (size_t)layout->n_scales, d;
    const uint16_t *scales = (const uint16_t *)v + n * (FG__TILE / 2);
    for (d = 0; d < n; d += 32) {
        int dims = (int)FG__MIN(n - d, 32);
        if (layout->type == FG_TYPE_F32)
            fg__pv_strip_avx512(FG_TYPE_F32, s, (const float *)v + d, n, NULL, 0, m, t0, t1, first, next + 4 * d, dims,
                                acc + d);
        else if (layout->type == FG_TYPE_F16)
            fg__pv_strip_avx512(FG_TYPE_F16, s, (const uint16_t *)v + d, n, NULL, 0, m, t0, t1, first, next + 2 * d,
                                dims, acc + d);
        else if (layout->type == FG_TYPE_BF16)
            fg__pv_strip_avx512(FG_TYPE_BF16, s, (const uint16_t *)v + d, n, NULL, 0, m, t0, t1, first, next + 2 * d,
                                dims, acc + d);
        else
            fg__pv_strip_avx512(FG_TYPE_Q8_0, s, (const int8_t *)v + d, n, scales + d / 32, n_scales, m, t0, t1, first,
                                next + d, dims, acc + d);
    }
}

/* softcap * tanh(x / softcap), tanh(u) = 1 - 2 / (e^2u + 1) */
FG__TARGET_AVX512 static FG__ALWAYS_INLINE __m512 fg__softcap_avx512(__m512 x, float softcap) {
    __m512 one = _mm512_set1_ps(1.0f), e = fg__exp_avx512(_mm512_mul_ps(x, _mm512_set1_ps(2.0f / softcap)));
    __m512 tanh_u = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(e, one)));
    return _mm512_mul_ps(tanh_u, _mm512_set1_ps(softcap));
}

/* Lanes whose token t, t + 1, ... is in [lo, hi). */
FG__TARGET_AVX512 static FG__ALWAYS_INLINE __mmask16 fg__between_avx512(int t, __m512i lo, __m512i hi) {
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512i at = _mm512_add_epi32(_mm512_set1_epi32(t), lanes);
    return _mm512_mask_cmpgt_epi32_mask(_mm512_cmpge_epi32_mask(at, lo), hi, at);
}

FG__TARGET_AVX512 static void fg__softmax_avx512(float *s, int m, int from, int to, const int *lo, const int *hi,
                                                 float softcap, float *max, float *sum) {
    int r, t;
    for (r = 0; r < m; r++, s += FG__SCORE_ROW) {
        __m512 highest = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps();
        __m512i first = _mm512_set1_epi32(lo[r]), end = _mm512_set1_epi32(hi[r]);
        for (t = from; t < to; t += 16) {
            __m512 x = _mm512_loadu_ps(s + t);
            if (softcap > 0.0f) _mm512_storeu_ps(s + t, x = fg__softcap_avx512(x, softcap));
            highest = _mm512_mask_max_ps(highest, fg__between_avx512(t, first, end), x, highest);
        }
        max[r] = _mm512_reduce_max_ps(highest);
        highest = _mm512_set1_ps(max[r]);
        for (t = from; t < to; t += 16) {
            __m512 x = fg__exp_avx512(_mm512_sub_ps(_mm512_loadu_ps(s + t), highest));
            x = _mm512_maskz_mov_ps(fg__between_avx512(t, first, end), x);
            total = _mm512_add_ps(total, x);
            _mm512_storeu_ps(s + t, x);
        }
        sum[r] = _mm512_reduce_add_ps(total);
    }
}

FG__TARGET_AVX512 static FG__ALWAYS_INLINE float fg__exp_one_avx512(float x) {
    return _mm512_cvtss_f32(fg__exp_avx512(_mm512_set1_ps(x)));
}

FG__TARGET_AVX512 static void fg__fold_avx512(int m, int head_dim, const float *max2, const float *sum2,
                                              const float *acc2, float *max, float *sum, float *acc) {
    int r, d;
    for (r = 0; r < m; r++, acc += head_dim, acc2 += head_dim) {
        float highest = max2[r] > max[r] ? max2[r] : max[r], a, b;
        if (max2[r] == -INFINITY) continue;
        a = max[r] == highest ? 1.0f : fg__exp_one_avx512(max[r] - highest);
        b = max2[r] == highest ? 1.0f : fg__exp_one_avx512(max2[r] - highest);
        for (d = 0; d < head_dim; d += 16) {
            __mmask16 lanes = FG__LANES(head_dim - d);
            __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, acc2 + d), _mm512_set1_ps(b));
            x = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(lanes, acc + d), _mm512_set1_ps(a), x);
            _mm512_mask_storeu_ps(acc + d, lanes, x);
        }
        sum[r] = sum[r] * a + sum2[r] * b;
        max[r] = highest;
    }
}

FG__TARGET_AVX512 static void fg__sample_avx512(const float *x, int n, fg__sample_part *part) {
    const __m512 lowest = _mm512_set1_ps(-INFINITY);
    __m512 highest = lowest, total = _mm512_setzero_ps(), v;
    int i;
    for (i = 0; i < n; i += 16) highest = _mm512_max_ps(_mm512_mask_loadu_ps(lowest, FG__LANES(n - i), x + i), highest);
    part->max = _mm512_reduce_max_ps(highest);
    part->token = 0;
    part->sum = 0.0f;
    if (part->max == -INFINITY) return;
    highest = _mm512_set1_ps(part->max);
    for (i = 0; i < n; i += 16) {
        unsigned equal = _mm512_mask_cmp_ps_mask(FG__LANES(n - i), _mm512_maskz_loadu_ps(FG__LANES(n - i), x + i),
                                                 highest, _CMP_EQ_OQ);
        if (!equal) continue;
        part->token = i + __builtin_ctz(equal);
        break;
    }
    if (part->max == INFINITY) return;
    for (i = 0; i < n; i += 16) {
        v = _mm512_mask_loadu_ps(lowest, FG__LANES(n - i), x + i);
        total = _mm512_add_ps(total, _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v, v, _CMP_ORD_Q),
                                                         fg__exp_avx512(_mm512_sub_ps(v, highest))));
    }
    part->sum = _mm512_reduce_add_ps(total);
}

FG__TARGET_AVX512 static void fg__finish_avx512(const float *sums, const float *bias, const float *more,
                                                size_t more_row, int m, int n, float *out, size_t out_row) {
    int i, r;
    for (i = 0; i < n; i += 16) {
        __mmask16 lanes = FG__LANES(n - i);
        __m512 add = bias ? _mm512_maskz_loadu_ps(lanes, bias + i) : _mm512_setzero_ps();
        for (r = 0; r < m; r++) {
            __m512 x = _mm512_loadu_ps(sums + r * FG__PANEL + i);
            if (bias) x = _mm512_add_ps(x, add);
            if (more) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(lanes, more + (size_t)r * more_row + i));
            _mm512_mask_storeu_ps(out + (size_t)r * out_row + i, lanes, x);
        }
    }
}

FG__TARGET_AVX512 static uint64_t fg__read_avx512(const void *memory, size_t bytes) {
    const char *from = (const char *)memory;
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    size_t i;
    for (i = 0; i + 256 <= bytes; i += 256) {
        a = _mm512_xor_si512(a, _mm512_loadu_si512(from + i));
        b = _mm512_xor_si512(b, _mm512_loadu_si512(from + i + 64));
        c = _mm512_xor_si512(c, _mm512_loadu_si512(from + i + 128));
        d = _mm512_xor_si512(d, _mm512_loadu_si512(from + i + 192));
    }
    a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
    return (uint64_t)_mm512_reduce_add_epi64(a);
}

FG__TARGET_AVX512VNNI static double fg__int8_products_vnni512(int rounds) {
    __m512i acc[16], a = _mm512_set1_epi8((char)rounds), b = _mm512_set1_epi8(3);
    volatile int keep;
    int i, j;
    FG__UNROLL
    for (i = 0; i < 16; i++) acc[i] = _mm512_set1_epi32(i);
    for (j = 0; j < rounds; j++) {
        FG__UNROLL
        for (i = 0; i < 16; i++) acc[i] = _mm512_dpbusd_epi32(acc[i], a, b);
    }
    FG__UNROLL
    for (i = 1; i < 16; i++) acc[0] = _mm512_xor_si512(acc[0], acc[i]);
    keep = _mm512_reduce_add_epi32(acc[0]);
    (void)keep;
    return 16.0 * 128.0 * rounds;
}

#if FG__HAS_AVXVNNI
FG__TARGET_AVX512BF16 static double fg__float_products_bf16(int rounds) {
    __m512 acc[16];
    __m512i a = _mm512_set1_epi16((short)0x3F80), b = _mm512_set1_epi16((short)(rounds & 0x3F));
    volatile float keep;
    int i, j;
    FG__UNROLL
    for (i = 0; i < 16; i++) acc[i] = _mm512_set1_ps((float)i);
    for (j = 0; j < rounds; j++) {
        FG__UNROLL
        for (i = 0; i < 16; i++) acc[i] = _mm512_dpbf16_ps(acc[i], (__m512bh)a, (__m512bh)b);
    }
    FG__UNROLL
    for (i = 1; i < 16; i++) acc[0] = _mm512_add_ps(acc[0], acc[i]);
    keep = _mm512_reduce_add_ps(acc[0]);
    (void)keep;
    return 16.0 * 64.0 * rounds;
}
#endif

FG__TARGET_AVX512 static double fg__float_products_avx512(int rounds) {
    __m512 acc[16], a = _mm512_set1_ps(1.0f + (float)rounds * 1e-12f), b = _mm512_set1_ps((float)rounds * 1e-9f);
    volatile float keep;
    int i, j;
    FG__UNROLL
    for (i = 0; i < 16; i++) acc[i] = _mm512_set1_ps((float)i);
    for (j = 0; j < rounds; j++) {
        FG__UNROLL
        for (i = 0; i < 16; i++) acc[i] = _mm512_fmadd_ps(acc[i], a, b);
    }
    FG__UNROLL
    for (i = 1; i < 16; i++) acc[0] = _mm512_add_ps(acc[0], acc[i]);
    keep = _mm512_reduce_add_ps(acc[0]);
    (void)keep;
    return 16.0 * 32.0 * rounds;
}

/* ---- AVX2. What does not fill a register goes through a padded copy. ---- */

FG__TARGET_AVX2 static FG__ALWAYS_INLINE __m256 fg__exp_avx2(__m256 x) {
    const __m256 bottom = _mm256_set1_ps(-87.3f);
    __m256 n, r, p, alive = _mm256_cmp_ps(x, bottom, _CMP_NLT_UQ); /* as fg__exp_avx512, but 0 from -87.3 down */
    x = _mm256_max_ps(bottom, _mm256_min_ps(_mm256_set1_ps(88.3f), x));
    n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    p = _mm256_fmadd_ps(_mm256_set1_ps(0.0013814614f), r, _mm256_set1_ps(0.00836871f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.04166839f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.16666521f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.49999994f));
    p = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
    n = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
    return _mm256_and_ps(_mm256_mul_ps(p, n), alive);
}

FG__TARGET_AVX2 static FG__ALWAYS_INLINE float fg__sum_avx2(__m256 x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
}

FG__TARGET_AVX2 static FG__ALWAYS_INLINE float fg__largest_avx2(__m256 x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
}

/* Lanes below n: all bits set. */
FG__TARGET_AVX2 static FG__ALWAYS_INLINE __m256i fg__lanes_avx2(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

FG__TARGET_AVX2 static void fg__rms_norm_avx2(const float *x, const float *weight, int n, float eps, float *out) {
    __m256 a = _mm256_setzero_ps(), b = a, c = a, d = a, scale;
    int i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256 v0 = _mm256_loadu_ps(x + i), v1 = _mm256_loadu_ps(x + i + 8);
        __m256 v2 = _mm256_loadu_ps(x + i + 16), v3 = _mm256_loadu_ps(x + i + 24);
        a = _mm256_fmadd_ps(v0, v0, a);
        b = _mm256_fmadd_ps(v1, v1, b);
        c = _mm256_fmadd_ps(v2, v2, c);
        d = _mm256_fmadd_ps(v3, v3, d);
    }
    for (; i < n; i += 8) {
        __m256 v = _mm256_maskload_ps(x + i, fg__lanes_avx2(n - i));
        a = _mm256_fmadd_ps(v, v, a);
    }
    a = _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d));
    scale = _mm256_set1_ps(1.0f / sqrtf(fg__sum_avx2(a) / (float)n + eps));
    for (i = 0; i < n; i += 8) {
        __m256i lanes = fg__lanes_avx2(n - i);
        __m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + i, lanes), scale);
        if (weight) v = _mm256_mul_ps(v, _mm256_maskload_ps(weight + i, lanes));
        _mm256_maskstore_ps(out + i, lanes, v);
    }
}

FG__TARGET_AVX2 static void fg__act_mul_avx2(int act, const float *x, const float *y, int n, float *out) {
    const __m256 one = _mm256_set1_ps(1.0f);
    int i;
    if (act != FG_ACT_SILU && act != FG_ACT_GELU_TANH) {
        fg__act_mul_scalar(act, x, y, n, out);
        return;
    }
    for (i = 0; i < n; i += 8) {
        __m256i lanes = fg__lanes_avx2(n - i);
        __m256 v = _mm256_maskload_ps(x + i, lanes), u = v;
        if (act == FG_ACT_GELU_TANH) {
            u = _mm256_fmadd_ps(_mm256_mul_ps(v, v), _mm256_set1_ps(0.044715f), one);
            u = _mm256_mul_ps(_mm256_mul_ps(v, u), _mm256_set1_ps(1.5957691f));
        }
        u = _mm256_div_ps(v, _mm256_add_ps(one, fg__exp_avx2(_mm256_sub_ps(_mm256_setzero_ps(), u))));
        if (y) u = _mm256_mul_ps(u, _mm256_maskload_ps(y + i, lanes));
        _mm256_maskstore_ps(out + i, lanes, u);
    }
}

/* Only pairs (i, i + n_rot/2) in whole registers; the rest is rare or small. */
FG__TARGET_AVX2 static void fg__rope_avx2(float *x, const float *cos_sin, int n_rot, int neox) {
    int i, half = n_rot / 2;
    if (!neox || half % 8) {
        fg__rope_scalar(x, cos_sin, n_rot, neox);
        return;
    }
    for (i = 0; i < half; i += 8) {
        __m256 co = _mm256_loadu_ps(cos_sin + i), si = _mm256_loadu_ps(cos_sin + half + i);
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
        _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, co, _mm256_mul_ps(b, si)));
        _mm256_storeu_ps(x + half + i, _mm256_fmadd_ps(a, si, _mm256_mul_ps(b, co)));
    }
}

FG__TARGET_AVX2 static FG__ALWAYS_INLINE __m256 fg__kv_load_avx2(fg_type type, const void *from, size_t at) {
    if (type == FG_TYPE_F32) return _mm256_loadu_ps((const float *)from + at);
    if (type == FG_TYPE_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)from + at)));
    if (type == FG_TYPE_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(
            _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)from + at))), 16));
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)((const int8_t *)from + at))));
}

/* As fg__outer_avx512, for up to 6 rows and `width` registers of 8 columns. */
FG__TARGET_AVX2 static FG__ALWAYS_INLINE void fg__outer_avx2(fg_type type, int rows, int width, bool keys,
                                                             const float *a, const void *b, size_t b_row,
                                                             const uint16_t *scales, size_t scale_row, int from, int to,
                                                             bool first, const char *next, float *out, size_t out_row) {
    size_t bytes = type == FG_TYPE_F32 ? 4 : type == FG_TYPE_Q8_0 ? 1 : 2;
    __m256 acc[6][2], scale[2];
    int j, r, c;
    scale[0] = scale[1] = _mm256_setzero_ps();
    FG__UNROLL
    for (r = 0; r < rows; r++) FG__UNROLL
    for (c = 0; c < width; c++)
        acc[r][c] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(out + (size_t)r * out_row + 8 * c);
    for (j = from; j < to; j++) {
        __m256 values[2];
        _mm_prefetch(next + (size_t)j * b_row * bytes, _MM_HINT_T0);
        FG__UNROLL
        for (c = 0; c < width; c++) {
            values[c] = fg__kv_load_avx2(type, b, (size_t)j * b_row + 8 * (size_t)c);
            if (type == FG_TYPE_Q8_0) {
                if (keys && j % 32 == 0)
                    scale[c] = fg__kv_load_avx2(FG_TYPE_F16, scales, (size_t)j / 32 * scale_row + 8 * (size_t)c);
                if (!keys) scale[c] = _mm256_cvtph_ps(_mm_set1_epi16((short)scales[(size_t)j * scale_row]));
                values[c] = _mm256_mul_ps(values[c], scale[c]);
            }
        }
        FG__UNROLL
        for (r = 0; r < rows; r++) {
            __m256 x = _mm256_set1_ps(keys ? a[j * FG__ROW_BLOCK + r] : a[r * FG__SCORE_ROW + j]);
            FG__UNROLL
            for (c = 0; c < width; c++) acc[r][c] = _mm256_fmadd_ps(x, values[c], acc[r][c]);
        }
    }
    FG__UNROLL
    for (r = 0; r < rows; r++) FG__UNROLL
    for (c = 0; c < width; c++) _mm256_storeu_ps(out + (size_t)r * out_row + 8 * c, acc[r][c]);
}

FG__TARGET_AVX2 static FG__ALWAYS_INLINE void fg__qk_type_avx2(fg_type type, const fg__kv_layout *layout, const void *k,
                                                               const float *q, int m, const char *next, float *s) {
    size_t e = type == FG_TYPE_F32 ? 4 : type == FG_TYPE_Q8_0 ? 1 : 2, t;
    const uint16_t *scales = (const uint16_t *)k + layout->head_dim * (FG__TILE / 2);
    int n = layout->head_dim, r;
    for (t = 0; t < FG__TILE; t += 16) {
        const char *from = (const char *)k + t * e;
        for (r = 0; r < m; r += 6) {
            float *to = s + r * FG__SCORE_ROW + t;
            if (m - r > 4)
                fg__outer_avx2(type, 6, 2, true, q + r, from, 32, scales + t, 32, 0, n, true, next + t * e, to,
                               FG__SCORE_ROW);
            else if (m - r > 2)
                fg__outer_avx2(type, 4, 2, true, q + r, from, 32, scales + t, 32, 0, n, true, next + t * e, to,
                               FG__SCORE_ROW);
            else
                fg__outer_avx2(type, 2, 2, true, q + r, from, 32, scales + t, 32, 0, n, true, next + t * e, to,
                               FG__SCORE_ROW);
        }
    }
}

FG__TARGET_AVX2 static void fg__qk_avx2(const fg__kv_layout *layout, const void *k, const float *q, int m,
                                        const char *next, float *s) {
    if (layout->type == FG_TYPE_F32) fg__qk_type_avx2(FG_TYPE_F32, layout, k, q, m, next, s);
    else if (layout->type == FG_TYPE_F16) fg__qk_type_avx2(FG_TYPE_F16, layout, k, q, m, next, s);
    else if (layout->type == FG_TYPE_BF16) fg__qk_type_avx2(FG_TYPE_BF16, layout, k, q, m, next, s);
    else fg__qk_type_avx2(FG_TYPE_Q8_0, layout, k, q, m, next, s);
}

FG__TARGET_AVX2 static FG__ALWAYS_INLINE void fg__pv_type_avx2(fg_type type, const fg__kv_layout *layout, const void *v,
                                                               const float *s, int m, int t0, int t1, bool first,
                                                               const char *next, float *acc) {
    size_t n = (size_t)layout->head_dim, e = type == FG_TYPE_F32 ? 4 : type == FG_TYPE_Q8_0 ? 1 : 2, d;
    const uint16_t *scales = (const uint16_t *)v + n * (FG__TILE / 2);
    size_t n_scales = (size_t)layout->n_scales;
    int r;
    for (d = 0; d < n; d += 16)
        for (r = 0; r < m; r += 6) {
            const char *from = (const char *)v + d * e;
            const float *p = s + r * FG__SCORE_ROW;
            float *to = acc + (size_t)r * n + d;
            if (n - d < 16) {
                if (m - r > 2)
                    fg__outer_avx2(type, 6, 1, false, p, from, n, scales + d / 32, n_scales, t0, t1, first,
                                   next + d * e, to, n);
                else
                    fg__outer_avx2(type, 2, 1, false, p, from, n, scales + d / 32, n_scales, t0, t1, first,
                                   next + d * e, to, n);
            } else if (m - r > 4)
                fg__outer_avx2(type, 6, 2, false, p, from, n, scales + d / 32, n_scales, t0, t1, first, next + d * e,
                               to, n);
            else if (m - r > 2)
                fg__outer_avx2(type, 4, 2, false, p, from, n, scales + d / 32, n_scales, t0, t1, first, next + d * e,
                               to, n);
            else
                fg__outer_avx2(type, 2, 2, false, p, from, n, scales + d / 32, n_scales, t0, t1, first, next + d * e,
                               to, n);
        }
}

FG__TARGET_AVX2 static void fg__pv_avx2(const fg__kv_layout *layout, const void *v, const float *s, int m, int t0,
                                        int t1, bool first, const char *next, float *acc) {
    if (layout->head_dim % 8) fg__pv_scalar(layout, v, s, m, t0, t1, first, next, acc);
    else if (layout->type == FG_TYPE_F32) fg__pv_type_avx2(FG_TYPE_F32, layout, v, s, m, t0, t1, first, next, acc);
    else if (layout->type == FG_TYPE_F16) fg__pv_type_avx2(FG_TYPE_F16, layout, v, s, m, t0, t1, first, next, acc);
    else if (layout->type == FG_TYPE_BF16) fg__pv_type_avx2(FG_TYPE_BF16, layout, v, s, m, t0, t1, first, next, acc);
    else fg__pv_type_avx2(FG_TYPE_Q8_0, layout, v, s, m, t0, t1, first, next, acc);
}

FG__TARGET_AVX2 static FG__ALWAYS_INLINE __m256 fg__softcap_avx2(__m256 x, float softcap) {
    __m256 one = _mm256_set1_ps(1.0f), e = fg__exp_avx2(_mm256_mul_ps(x, _mm256_set1_ps(2.0f / softcap)));
    __m256 tanh_u = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), _mm256_add_ps(e, one)));
    return _mm256_mul_ps(tanh_u, _mm256_set1_ps(softcap));
}

FG__TARGET_AVX2 static FG__ALWAYS_INLINE __m256 fg__between_avx2(int t, int lo, int hi) {
    return _mm256_castsi256_ps(_mm256_andnot_si256(fg__lanes_avx2(lo - t), fg__lanes_avx2(hi - t)));
}

FG__TARGET_AVX2 static void fg__softmax_avx2(float *s, int m, int from, int to, const int *lo, const int *hi,
                                             float softcap, float *max, float *sum) {
    const __m256 lowest = _mm256_set1_ps(-INFINITY);
    int r, t;
    for (r = 0; r < m; r++, s += FG__SCORE_ROW) {
        __m256 highest = lowest, total = _mm256_setzero_ps();
        for (t = from; t < to; t += 8) {
            __m256 x = _mm256_loadu_ps(s + t);
            if (softcap > 0.0f) _mm256_storeu_ps(s + t, x = fg__softcap_avx2(x, softcap));
            highest = _mm256_max_ps(_mm256_blendv_ps(lowest, x, fg__between_avx2(t, lo[r], hi[r])), highest);
        }
        max[r] = fg__largest_avx2(highest);
        highest = _mm256_set1_ps(max[r]);
        for (t = from; t < to; t += 8) {
            __m256 x = fg__exp_avx2(_mm256_sub_ps(_mm256_loadu_ps(s + t), highest));
            x = _mm256_and_ps(x, fg__between_avx2(t, lo[r], hi[r]));
            total = _mm256_add_ps(total, x);
            _mm256_storeu_ps(s + t, x);
        }
        sum[r] = fg__sum_avx2(total);
    }
}

FG__TARGET_AVX2 static FG__ALWAYS_INLINE float fg__exp_one_avx2(float x) {
    return _mm256_cvtss_f32(fg__exp_avx2(_mm256_set1_ps(x)));
}

FG__TARGET_AVX2 static void fg__fold_avx2(int m, int head_dim, const float *max2, const float *sum2, const float *acc2,
                                          float *max, float *sum, float *acc) {
    int r, d;
    for (r = 0; r < m; r++, acc += head_dim, acc2 += head_dim) {
        float highest = max2[r] > max[r] ? max2[r] : max[r], a, b;
        if (max2[r] == -INFINITY) continue;
        a = max[r] == highest ? 1.0f : fg__exp_one_avx2(max[r] - highest);
        b = max2[r] == highest ? 1.0f : fg__exp_one_avx2(max2[r] - highest);
        for (d = 0; d < head_dim; d += 8) {
            __m256i lanes = fg__lanes_avx2(head_dim - d);
            __m256 x = _mm256_mul_ps(_mm256_maskload_ps(acc2 + d, lanes), _mm256_set1_ps(b));
            x = _mm256_fmadd_ps(_mm256_maskload_ps(acc + d, lanes), _mm256_set1_ps(a), x);
            _mm256_maskstore_ps(acc + d, lanes, x);
        }
        sum[r] = sum[r] * a + sum2[r] * b;
        max[r] = highest;
    }
}

FG__TARGET_AVX2 static void fg__sample_avx2(const float *x, int n, fg__sample_part *part) {
    const __m256 lowest = _mm256_set1_ps(-INFINITY);
    __m256 highest = lowest, total = _mm256_setzero_ps(), v;
    int i;
    for (i = 0; i < n; i += 8) {
        __m256i lanes = fg__lanes_avx2(n - i);
        v = _mm256_blendv_ps(lowest, _mm256_maskload_ps(x + i, lanes), _mm256_castsi256_ps(lanes));
        highest = _mm256_max_ps(v, highest);
    }
    part->max = fg__largest_avx2(highest);
    part->token = 0;
    part->sum = 0.0f;
    if (part->max == -INFINITY) return;
    while (x[part->token] != part->max) part->token++;
    if (part->max == INFINITY) return;
    highest = _mm256_set1_ps(part->max);
    for (i = 0; i < n; i += 8) {
        __m256i lanes = fg__lanes_avx2(n - i);
        v = _mm256_blendv_ps(lowest, _mm256_maskload_ps(x + i, lanes), _mm256_castsi256_ps(lanes));
        total = _mm256_add_ps(total,
                              _mm256_and_ps(fg__exp_avx2(_mm256_sub_ps(v, highest)), _mm256_cmp_ps(v, v, _CMP_ORD_Q)));
    }
    part->sum = fg__sum_avx2(total);
}

FG__TARGET_AVX2 static void fg__finish_avx2(const float *sums, const float *bias, const float *more, size_t more_row,
                                            int m, int n, float *out, size_t out_row) {
    int i, r;
    for (i = 0; i < n; i += 8) {
        __m256i lanes = fg__lanes_avx2(n - i);
        __m256 add = bias ? _mm256_maskload_ps(bias + i, lanes) : _mm256_setzero_ps();
        for (r = 0; r < m; r++) {
            __m256 x = _mm256_loadu_ps(sums + r * FG__PANEL + i);
            if (bias) x = _mm256_add_ps(x, add);
            if (more) x = _mm256_add_ps(x, _mm256_maskload_ps(more + (size_t)r * more_row + i, lanes));
            _mm256_maskstore_ps(out + (size_t)r * out_row + i, lanes, x);
        }
    }
}

FG__TARGET_AVX2 static uint64_t fg__read_avx2(const void *memory, size_t bytes) {
    const char *from = (const char *)memory;
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    uint64_t words[4];
    size_t i;
    for (i = 0; i + 128 <= bytes; i += 128) {
        a = _mm256_xor_si256(a, _mm256_loadu_si256((const __m256i *)(const void *)(from + i)));
        b = _mm256_xor_si256(b, _mm256_loadu_si256((const __m256i *)(const void *)(from + i + 32)));
        c = _mm256_xor_si256(c, _mm256_loadu_si256((const __m256i *)(const void *)(from + i + 64)));
        d = _mm256_xor_si256(d, _mm256_loadu_si256((const __m256i *)(const void *)(from + i + 96)));
    }
    _mm256_storeu_si256((__m256i *)(void *)words, _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d)));
    return words[0] ^ words[1] ^ words[2] ^ words[3];
}

#if FG__HAS_AVXVNNI
FG__TARGET_AVXVNNI static double fg__int8_products_avxvnni(int rounds) {
    __m256i acc[12], a = _mm256_set1_epi8((char)rounds), b = _mm256_set1_epi8(3);
    volatile int keep;
    int i, j;
    FG__UNROLL
    for (i = 0; i < 12; i++) acc[i] = _mm256_set1_epi32(i);
    for (j = 0; j < rounds; j++) {
        FG__UNROLL
        for (i = 0; i < 12; i++) acc[i] = _mm256_dpbusd_avx_epi32(acc[i], a, b);
    }
    FG__UNROLL
    for (i = 1; i < 12; i++) acc[0] = _mm256_xor_si256(acc[0], acc[i]);
    keep = _mm256_cvtsi256_si32(acc[0]);
    (void)keep;
    return 12.0 * 64.0 * rounds;
}
#endif

/* Without VNNI a product of bytes takes three instructions. */
FG__TARGET_AVX2 static double fg__int8_products_avx2(int rounds) {
    __m256i acc[12], a = _mm256_set1_epi8((char)(rounds & 63)), b = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1);
    volatile int keep;
    int i, j;
    FG__UNROLL
    for (i = 0; i < 12; i++) acc[i] = _mm256_set1_epi32(i);
    for (j = 0; j < rounds; j++) {
        a = _mm256_xor_si256(a, b);
        FG__UNROLL
        for (i = 0; i < 12; i++)
            acc[i] =
                _mm256_add_epi32(acc[i], _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_add_epi8(a, acc[i]), b), ones));
    }
    FG__UNROLL
    for (i = 1; i < 12; i++) acc[0] = _mm256_xor_si256(acc[0], acc[i]);
    keep = _mm256_cvtsi256_si32(acc[0]);
    (void)keep;
    return 12.0 * 64.0 * rounds;
}

FG__TARGET_AVX2 static double fg__float_products_avx2(int rounds) {
    __m256 acc[12], a = _mm256_set1_ps(1.0f + (float)rounds * 1e-12f), b = _mm256_set1_ps((float)rounds * 1e-9f);
    volatile float keep;
    int i, j;
    FG__UNROLL
    for (i = 0; i < 12; i++) acc[i] = _mm256_set1_ps((float)i);
    for (j = 0; j < rounds; j++) {
        FG__UNROLL
        for (i = 0; i < 12; i++) acc[i] = _mm256_fmadd_ps(acc[i], a, b);
    }
    FG__UNROLL
    for (i = 1; i < 12; i++) acc[0] = _mm256_add_ps(acc[0], acc[i]);
    keep = _mm256_cvtss_f32(acc[0]);
    (void)keep;
    return 12.0 * 16.0 * rounds;
}

#endif /* FG__X86 */
#if FG__ARM

/* ---- NEON. What does not fill a register goes through a padded copy. ---- */

static FG__ALWAYS_INLINE float32x4_t fg__exp_neon(float32x4_t x) {
    const float32x4_t bottom = vdupq_n_f32(-87.3f);
    uint32x4_t dead = vcltq_f32(x, bottom); /* as on the other paths; 0 from -87.3 down */
    float32x4_t n, r, p;
    x = vmaxq_f32(bottom, vminq_f32(vdupq_n_f32(88.3f), x));
    n = vrndnq_f32(vmulq_f32(x, vdupq_n_f32(1.44269504f)));
    r = vfmsq_f32(x, n, vdupq_n_f32(0.693359375f));
    r = vfmsq_f32(r, n, vdupq_n_f32(-2.12194440e-4f));
    p = vfmaq_f32(vdupq_n_f32(0.00836871f), vdupq_n_f32(0.0013814614f), r);
    p = vfmaq_f32(vdupq_n_f32(0.04166839f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0.16666521f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0.49999994f), p, r);
    p = vaddq_f32(vfmaq_f32(r, p, vmulq_f32(r, r)), vdupq_n_f32(1.0f));
    n = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(vmulq_f32(p, n)), dead));
}

/* Up to 4 floats, `fill` past the end. */
static FG__ALWAYS_INLINE float32x4_t fg__load_neon(const float *x, int n, float fill) {
    float room[4];
    int i;
    if (n >= 4) return vld1q_f32(x);
    for (i = 0; i < 4; i++) room[i] = i < n ? x[i] : fill;
    return vld1q_f32(room);
}

static FG__ALWAYS_INLINE void fg__store_neon(float *x, int n, float32x4_t v) {
    float room[4];
    int i;
    if (n >= 4) {
        vst1q_f32(x, v);
        return;
    }
    vst1q_f32(room, v);
    for (i = 0; i < n; i++) x[i] = room[i];
}

static void fg__rms_norm_neon(const float *x, const float *weight, int n, float eps, float *out) {
    float32x4_t a = vdupq_n_f32(0.0f), b = a, c = a, d = a;
    float scale;
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        a = vfmaq_f32(a, vld1q_f32(x + i), vld1q_f32(x + i));
        b = vfmaq_f32(b, vld1q_f32(x + i + 4), vld1q_f32(x + i + 4));
        c = vfmaq_f32(c, vld1q_f32(x + i + 8), vld1q_f32(x + i + 8));
        d = vfmaq_f32(d, vld1q_f32(x + i + 12), vld1q_f32(x + i + 12));
    }
    for (; i < n; i += 4) {
        float32x4_t v = fg__load_neon(x + i, n - i, 0.0f);
        a = vfmaq_f32(a, v, v);
    }
    scale = 1.0f / sqrtf(vaddvq_f32(vaddq_f32(vaddq_f32(a, b), vaddq_f32(c, d))) / (float)n + eps);
    for (i = 0; i < n; i += 4) {
        float32x4_t v = vmulq_n_f32(fg__load_neon(x + i, n - i, 0.0f), scale);
        if (weight) v = vmulq_f32(v, fg__load_neon(weight + i, n - i, 0.0f));
        fg__store_neon(out + i, n - i, v);
    }
}

/* As fg__act_mul_avx512. */
static void fg__act_mul_neon(int act, const float *x, const float *y, int n, float *out) {
    const float32x4_t one = vdupq_n_f32(1.0f);
    int i;
    if (act != FG_ACT_SILU && act != FG_ACT_GELU_TANH) {
        fg__act_mul_scalar(act, x, y, n, out);
        return;
    }
    for (i = 0; i < n; i += 4) {
        float32x4_t v = fg__load_neon(x + i, n - i, 0.0f), u = v;
        if (act == FG_ACT_GELU_TANH) {
            u = vfmaq_f32(one, vmulq_f32(v, v), vdupq_n_f32(0.044715f));
            u = vmulq_f32(vmulq_f32(v, u), vdupq_n_f32(1.5957691f));
        }
        u = vdivq_f32(v, vaddq_f32(one, fg__exp_neon(vnegq_f32(u))));
        if (y) u = vmulq_f32(u, fg__load_neon(y + i, n - i, 0.0f));
        fg__store_neon(out + i, n - i, u);
    }
}

static void fg__rope_neon(float *x, const float *cos_sin, int n_rot, int neox) {
    int i, half = n_rot / 2;
    if (half % 4) {
        fg__rope_scalar(x, cos_sin, n_rot, neox);
        return;
    }
    for (i = 0; i < half; i += 4) {
        float32x4_t co = vld1q_f32(cos_sin + i), si = vld1q_f32(cos_sin + half + i);
        float32x4x2_t pair;
        if (neox) {
            pair.val[0] = vld1q_f32(x + i);
            pair.val[1] = vld1q_f32(x + half + i);
        } else pair = vld2q_f32(x + 2 * i);
        {
            float32x4_t a = pair.val[0], b = pair.val[1];
            pair.val[0] = vfmsq_f32(vmulq_f32(a, co), b, si);
            pair.val[1] = vfmaq_f32(vmulq_f32(b, co), a, si);
        }
        if (neox) {
            vst1q_f32(x + i, pair.val[0]);
            vst1q_f32(x + half + i, pair.val[1]);
        } else vst2q_f32(x + 2 * i, pair);
    }
}

/* 4 cached values from element `at` on, as floats; without the scales of Q8_0. */
static FG__ALWAYS_INLINE float32x4_t fg__kv_load_neon(fg_type type, const void *from, size_t at) {
    if (type == FG_TYPE_F32) return vld1q_f32((const float *)from + at);
    if (type == FG_TYPE_F16) return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)from + at)));
    if (type == FG_TYPE_BF16) return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)from + at), 16));
    {
        int8_t bytes[8] = {0};
        memcpy(bytes, (const int8_t *)from + at, 4);
        return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vld1_s8(bytes)))));
    }
}

/* As fg__outer_avx512, for up to 6 rows and `width` registers of 4 columns. */
static FG__ALWAYS_INLINE void fg__outer_neon(fg_type type, int rows, int width, bool keys, const float *a,
                                             const void *b, size_t b_row, const uint16_t *scales, size_t scale_row,
                                             int from, int to, bool first, const char *next, float *out,
                                             size_t out_row) {
    size_t bytes = type == FG_TYPE_F32 ? 4 : type == FG_TYPE_Q8_0 ? 1 : 2;
    float32x4_t acc[6][4], scale[4];
    int j, r, c;
    scale[0] = scale[1] = scale[2] = scale[3] = vdupq_n_f32(0.0f);
    FG__UNROLL
    for (r = 0; r < rows; r++) {
        FG__UNROLL
        for (c = 0; c < width; c++)
            acc[r][c] = first ? vdupq_n_f32(0.0f) : vld1q_f32(out + (size_t)r * out_row + 4 * (size_t)c);
    }
    for (j = from; j < to; j++) {
        float32x4_t values[4];
        __builtin_prefetch(next + (size_t)j * b_row * bytes);
        FG__UNROLL
        for (c = 0; c < width; c++) {
            values[c] = fg__kv_load_neon(type, b, (size_t)j * b_row + 4 * (size_t)c);
            if (type == FG_TYPE_Q8_0) {
                if (keys && j % 32 == 0)
                    scale[c] = fg__kv_load_neon(FG_TYPE_F16, scales, (size_t)j / 32 * scale_row + 4 * (size_t)c);
                if (!keys) scale[c] = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(scales[(size_t)j * scale_row])));
                values[c] = vmulq_f32(values[c], scale[c]);
            }
        }
        FG__UNROLL
        for (r = 0; r < rows; r++) {
            float32x4_t x = vdupq_n_f32(keys ? a[j * FG__ROW_BLOCK + r] : a[r * FG__SCORE_ROW + j]);
            FG__UNROLL
            for (c = 0; c < width; c++) acc[r][c] = vfmaq_f32(acc[r][c], x, values[c]);
        }
    }
    FG__UNROLL
    for (r = 0; r < rows; r++) {
        FG__UNROLL
        for (c = 0; c < width; c++) vst1q_f32(out + (size_t)r * out_row + 4 * (size_t)c, acc[r][c]);
    }
}

static FG__ALWAYS_INLINE void fg__qk_type_neon(fg_type type, const fg__kv_layout *layout, const void *k, const float *q,
                                               int m, const char *next, float *s) {
    size_t e = type == FG_TYPE_F32 ? 4 : type == FG_TYPE_Q8_0 ? 1 : 2, t;
    const uint16_t *scales = (const uint16_t *)k + layout->head_dim * (FG__TILE / 2);
    int n = layout->head_dim, r;
    for (t = 0; t < FG__TILE; t += 16)
        for (r = 0; r < m; r += 6) {
            const char *from = (const char *)k + t * e, *ahead = next + t * e;
            float *to = s + r * FG__SCORE_ROW + t;
            if (m - r > 2)
                fg__outer_neon(type, 6, 4, true, q + r, from, 32, scales + t, 32, 0, n, true, ahead, to, FG__SCORE_ROW);
            else
                fg__outer_neon(type, 2, 4, true, q + r, from, 32, scales + t, 32, 0, n, true, ahead, to, FG__SCORE_ROW);
        }
}

static void fg__qk_neon(const fg__kv_layout *layout, const void *k, const float *q, int m, const char *next, float *s) {
    if (layout->type == FG_TYPE_F32) fg__qk_type_neon(FG_TYPE_F32, layout, k, q, m, next, s);
    else if (layout->type == FG_TYPE_F16) fg__qk_type_neon(FG_TYPE_F16, layout, k, q, m, next, s);
    else if (layout->type == FG_TYPE_BF16) fg__qk_type_neon(FG_TYPE_BF16, layout, k, q, m, next, s);
    else fg__qk_type_neon(FG_TYPE_Q8_0, layout, k, q, m, next, s);
}

static FG__ALWAYS_INLINE void fg__pv_type_neon(fg_type type, const fg__kv_layout *layout, const void *v, const float *s,
                                               int m, int t0, int t1, bool first, const char *next, float *acc) {
    size_t n = (size_t)layout->head_dim, e = type == FG_TYPE_F32 ? 4 : type == FG_TYPE_Q8_0 ? 1 : 2, d, step;
    const uint16_t *scales = (const uint16_t *)v + n * (FG__TILE / 2);
    size_t n_scales = (size_t)layout->n_scales;
    int r;
    for (d = 0; d < n; d += step) {
        const uint16_t *scale = scales + d / 32;
        step = n - d < 16 ? 4 : 16;
        for (r = 0; r < m; r += 6) {
            const char *from = (const char *)v + d * e, *ahead = next + d * e;
            const float *p = s + r * FG__SCORE_ROW;
            float *to = acc + (size_t)r * n + d;
            if (step == 4) fg__outer_neon(type, 6, 1, false, p, from, n, scale, n_scales, t0, t1, first, ahead, to, n);
            else if (m - r > 2)
                fg__outer_neon(type, 6, 4, false, p, from, n, scale, n_scales, t0, t1, first, ahead, to, n);
            else fg__outer_neon(type, 2, 4, false, p, from, n, scale, n_scales, t0, t1, first, ahead, to, n);
        }
    }
}

static void fg__pv_neon(const fg__kv_layout *layout, const void *v, const float *s, int m, int t0, int t1, bool first,
                        const char *next, float *acc) {
    if (layout->head_dim % 4) fg__pv_scalar(layout, v, s, m, t0, t1, first, next, acc);
    else if (layout->type == FG_TYPE_F32) fg__pv_type_neon(FG_TYPE_F32, layout, v, s, m, t0, t1, first, next, acc);
    else if (layout->type == FG_TYPE_F16) fg__pv_type_neon(FG_TYPE_F16, layout, v, s, m, t0, t1, first, next, acc);
    else if (layout->type == FG_TYPE_BF16) fg__pv_type_neon(FG_TYPE_BF16, layout, v, s, m, t0, t1, first, next, acc);
    else fg__pv_type_neon(FG_TYPE_Q8_0, layout, v, s, m, t0, t1, first, next, acc);
}

static FG__ALWAYS_INLINE float32x4_t fg__softcap_neon(float32x4_t x, float softcap) {
    float32x4_t one = vdupq_n_f32(1.0f), e = fg__exp_neon(vmulq_n_f32(x, 2.0f / softcap));
    return vmulq_n_f32(vsubq_f32(one, vdivq_f32(vdupq_n_f32(2.0f), vaddq_f32(e, one))), softcap);
}

static FG__ALWAYS_INLINE uint32x4_t fg__between_neon(int t, int lo, int hi) {
    static const int32_t lanes[4] = {0, 1, 2, 3};
    int32x4_t at = vaddq_s32(vdupq_n_s32(t), vld1q_s32(lanes));
    return vandq_u32(vcgeq_s32(at, vdupq_n_s32(lo)), vcltq_s32(at, vdupq_n_s32(hi)));
}

static void fg__softmax_neon(float *s, int m, int from, int to, const int *lo, const int *hi, float softcap, float *max,
                             float *sum) {
    const float32x4_t lowest = vdupq_n_f32(-INFINITY);
    int r, t;
    for (r = 0; r < m; r++, s += FG__SCORE_ROW) {
        float32x4_t highest = lowest, total = vdupq_n_f32(0.0f);
        for (t = from; t < to; t += 4) {
            float32x4_t x = vld1q_f32(s + t);
            if (softcap > 0.0f) vst1q_f32(s + t, x = fg__softcap_neon(x, softcap));
            highest = vmaxnmq_f32(vbslq_f32(fg__between_neon(t, lo[r], hi[r]), x, lowest), highest);
        }
        max[r] = vmaxnmvq_f32(highest);
        highest = vdupq_n_f32(max[r]);
        for (t = from; t < to; t += 4) {
            float32x4_t x = fg__exp_neon(vsubq_f32(vld1q_f32(s + t), highest));
            x = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), fg__between_neon(t, lo[r], hi[r])));
            total = vaddq_f32(total, x);
            vst1q_f32(s + t, x);
        }
        sum[r] = vaddvq_f32(total);
    }
}

static FG__ALWAYS_INLINE float fg__exp_one_neon(float x) { return vgetq_lane_f32(fg__exp_neon(vdupq_n_f32(x)), 0); }

static void fg__fold_neon(int m, int head_dim, const float *max2, const float *sum2, const float *acc2, float *max,
                          float *sum, float *acc) {
    int r, d;
    for (r = 0; r < m; r++, acc += head_dim, acc2 += head_dim) {
        float highest = max2[r] > max[r] ? max2[r] : max[r], a, b;
        if (max2[r] == -INFINITY) continue;
        a = max[r] == highest ? 1.0f : fg__exp_one_neon(max[r] - highest);
        b = max2[r] == highest ? 1.0f : fg__exp_one_neon(max2[r] - highest);
        for (d = 0; d < head_dim; d += 4) {
            float32x4_t x = vmulq_n_f32(fg__load_neon(acc2 + d, head_dim - d, 0.0f), b);
            x = vfmaq_n_f32(x, fg__load_neon(acc + d, head_dim - d, 0.0f), a);
            fg__store_neon(acc + d, head_dim - d, x);
        }
        sum[r] = sum[r] * a + sum2[r] * b;
        max[r] = highest;
    }
}

static void fg__sample_neon(const float *x, int n, fg__sample_part *part) {
    float32x4_t highest = vdupq_n_f32(-INFINITY), total = vdupq_n_f32(0.0f);
    int i;
    for (i = 0; i < n; i += 4) highest = vmaxnmq_f32(fg__load_neon(x + i, n - i, -INFINITY), highest);
    part->max = vmaxnmvq_f32(highest);
    part->token = 0;
    part->sum = 0.0f;
    if (part->max == -INFINITY) return;
    while (x[part->token] != part->max) part->token++;
    if (part->max == INFINITY) return;
    highest = vdupq_n_f32(part->max);
    for (i = 0; i < n; i += 4) {
        float32x4_t v = fg__load_neon(x + i, n - i, -INFINITY), e = fg__exp_neon(vsubq_f32(v, highest));
        total = vaddq_f32(total, vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(e), vceqq_f32(v, v))));
    }
    part->sum = vaddvq_f32(total);
}

static void fg__finish_neon(const float *sums, const float *bias, const float *more, size_t more_row, int m, int n,
                            float *out, size_t out_row) {
    int i, r;
    for (i = 0; i < n; i += 4) {
        float32x4_t add = bias ? fg__load_neon(bias + i, n - i, 0.0f) : vdupq_n_f32(0.0f);
        for (r = 0; r < m; r++) {
            float32x4_t x = vld1q_f32(sums + r * FG__PANEL + i);
            if (bias) x = vaddq_f32(x, add);
            if (more) x = vaddq_f32(x, fg__load_neon(more + (size_t)r * more_row + i, n - i, 0.0f));
            fg__store_neon(out + (size_t)r * out_row + i, n - i, x);
        }
    }
}

static uint64_t fg__read_neon(const void *memory, size_t bytes) {
    const uint8_t *from = (const uint8_t *)memory;
    uint8x16_t a = vdupq_n_u8(0), b = a, c = a, d = a;
    size_t i;
    for (i = 0; i + 64 <= bytes; i += 64) {
        a = veorq_u8(a, vld1q_u8(from + i));
        b = veorq_u8(b, vld1q_u8(from + i + 16));
        c = veorq_u8(c, vld1q_u8(from + i + 32));
        d = veorq_u8(d, vld1q_u8(from + i + 48));
    }
    return vaddvq_u64(vreinterpretq_u64_u8(veorq_u8(veorq_u8(a, b), veorq_u8(c, d))));
}

FG__TARGET_DOTPROD static double fg__int8_products_dotprod(int rounds) {
    int32x4_t acc[16];
    int8x16_t a = vdupq_n_s8((int8_t)(rounds & 63)), b = vdupq_n_s8(3);
    volatile int keep;
    int i, j;
    FG__UNROLL
    for (i = 0; i < 16; i++) acc[i] = vdupq_n_s32(i);
    for (j = 0; j < rounds; j++) {
        FG__UNROLL
        for (i = 0; i < 16; i++) acc[i] = vdotq_s32(acc[i], a, b);
    }
    FG__UNROLL
    for (i = 1; i < 16; i++) acc[0] = veorq_s32(acc[0], acc[i]);
    keep = vaddvq_s32(acc[0]);
    (void)keep;
    return 16.0 * 32.0 * rounds;
}

FG__TARGET_I8MM static double fg__int8_products_i8mm(int rounds) {
    int32x4_t acc[16];
    int8x16_t a = vdupq_n_s8((int8_t)(rounds & 63)), b = vdupq_n_s8(3);
    volatile int keep;
    int i, j;
    FG__UNROLL
    for (i = 0; i < 16; i++) acc[i] = vdupq_n_s32(i);
    for (j = 0; j < rounds; j++) {
        FG__UNROLL
        for (i = 0; i < 16; i++) acc[i] = vmmlaq_s32(acc[i], a, b);
    }
    FG__UNROLL
    for (i = 1; i < 16; i++) acc[0] = veorq_s32(acc[0], acc[i]);
    keep = vaddvq_s32(acc[0]);
    (void)keep;
    return 16.0 * 64.0 * rounds;
}

static double fg__float_products_neon(int rounds) {
    float32x4_t acc[16], a = vdupq_n_f32(1.0f + (float)rounds * 1e-12f), b = vdupq_n_f32((float)rounds * 1e-9f);
    volatile float keep;
    int i, j;
    FG__UNROLL
    for (i = 0; i < 16; i++) acc[i] = vdupq_n_f32((float)i);
    for (j = 0; j < rounds; j++) {
        FG__UNROLL
        for (i = 0; i < 16; i++) acc[i] = vfmaq_f32(b, acc[i], a);
    }
    FG__UNROLL
    for (i = 1; i < 16; i++) acc[0] = vaddq_f32(acc[0], acc[i]);
    keep = vaddvq_f32(acc[0]);
    (void)keep;
    return 16.0 * 8.0 * rounds;
}

#endif /* FG__ARM */
/* ================================================================================================
   >>cpu  the CPU backend: threads, memory, the pass

   A plan turns the graph into stages, and those into phases: everything that can be done without results of other
   threads is one phase. Its pieces are rows for what works on rows alone (norms, rope, activations), runs of weight
   panels, and tasks of attention. Threads take pieces as they come.
   ================================================================================================ */

/* The kernels of a path. */
static fg__cpu_ops fg__cpu_ops_find(int path, const fg__cpu_features *features) {
    fg__cpu_ops ops = fg__cpu_ops_scalar;
    (void)path;
    (void)features;
#if FG__X86
    if (path == FG__CPU_AVX512) {
        ops.rms_norm = fg__rms_norm_avx512;
        ops.act_mul = fg__act_mul_avx512;
        ops.rope = fg__rope_avx512;
        ops.kv_store = fg__kv_store_avx512;
        ops.qk = fg__qk_avx512;
        ops.softmax = fg__softmax_avx512;
        ops.pv = fg__pv_avx512;
        ops.fold = fg__fold_avx512;
        ops.sample = fg__sample_avx512;
        ops.finish = fg__finish_avx512;
        ops.read = fg__read_avx512;
        ops.int8_products = features->avx512_vnni ? fg__int8_products_vnni512 : fg__int8_products_avx2;
        ops.float_products = fg__float_products_avx512;
#if FG__HAS_AVXVNNI
        if (features->avx512_bf16) ops.float_products = fg__float_products_bf16;
#endif
    }
    if (path == FG__CPU_AVX2) {
        ops.rms_norm = fg__rms_norm_avx2;
        ops.act_mul = fg__act_mul_avx2;
        ops.rope = fg__rope_avx2;
        ops.qk = fg__qk_avx2;
        ops.softmax = fg__softmax_avx2;
        ops.pv = fg__pv_avx2;
        ops.fold = fg__fold_avx2;
        ops.sample = fg__sample_avx2;
        ops.finish = fg__finish_avx2;
        ops.read = fg__read_avx2;
        ops.int8_products = fg__int8_products_avx2;
        ops.float_products = fg__float_products_avx2;
#if FG__HAS_AVXVNNI
        if (features->avx_vnni) ops.int8_products = fg__int8_products_avxvnni;
#endif
    }
#elif FG__ARM
    if (path == FG__CPU_NEON) {
        ops.rms_norm = fg__rms_norm_neon;
        ops.act_mul = fg__act_mul_neon;
        ops.rope = fg__rope_neon;
        ops.qk = fg__qk_neon;
        ops.softmax = fg__softmax_neon;
        ops.pv = fg__pv_neon;
        ops.fold = fg__fold_neon;
        ops.sample = fg__sample_neon;
        ops.finish = fg__finish_neon;
        ops.read = fg__read_neon;
        ops.float_products = fg__float_products_neon;
        if (features->dotprod) ops.int8_products = fg__int8_products_dotprod;
        if (features->i8mm) ops.int8_products = fg__int8_products_i8mm;
    }
#endif
    return ops;
}

static void fg__cpu_relax(void) {
#if FG__X86
    _mm_pause();
#elif FG__ARM && (defined(__GNUC__) || defined(__clang__))
    __asm__ volatile("yield");
#endif
}

/* ---- Memory in huge pages, where the system gives them: reading it is a third faster. ---- */

typedef struct fg__pages {
    void *memory; /* of the allocator */
    char *data;   /* aligned to 64 bytes; to 2 MiB when there are as many */
} fg__pages;

static bool fg__pages_alloc(const fg__env *env, fg__pages *pages, size_t bytes) {
    size_t huge = (size_t)2 << 20, align = bytes >= huge ? huge : 64;
    if (bytes > SIZE_MAX / 2) bytes = SIZE_MAX / 2;
    pages->memory = fg__malloc(env, bytes + align, 1);
    if (!pages->memory) return false;
    pages->data = (char *)pages->memory + (align - (size_t)pages->memory % align) % align;
#if defined(MADV_HUGEPAGE)
    if (bytes >= huge) (void)madvise(pages->data, bytes / huge * huge, MADV_HUGEPAGE);
#endif
    return true;
}

static void fg__pages_free(const fg__env *env, fg__pages *pages) {
    fg__free(env, pages->memory);
    pages->memory = NULL;
    pages->data = NULL;
}

/* ---- Threads. A job is a row of phases, each of which is cut into pieces that any thread may take; the thread that ends
   the last piece of a phase begins the next one. So nobody waits for a thread that the system does not run, unless it
   holds a piece: on a machine that is busy with other programs the threads that do run get all of the work.
   Between phases and jobs threads spin briefly, then sleep. ---- */

typedef struct fg__job {
    int (*begin)(void *user, int phase);            /* how many pieces it has, by one thread; -1: the job is over */
    void (*run)(void *user, int piece, int thread); /* a piece of the phase that was begun last */
    void *user;
} fg__job;

typedef struct fg__pool {
    fg__thread *threads; /* the caller is thread 0, these are 1 to n_threads-1 */
    struct fg__worker *workers;
    int n_threads, spins;
    fg__job job;
    int phase;
    int quit;
    fg__mutex mutex;
    fg__cond cond;
    int sleepers; /* under the mutex */
    int pad0[16];
    uint64_t ticket; /* 8 bits that change with each phase, 28 bits: its pieces, 28 bits: how many were taken */
    int pad1[16];
    int done; /* pieces of the phase */
    int pad2[16];
} fg__pool;

typedef struct fg__worker {
    fg__pool *pool;
    int index;
} fg__worker;

static int fg__ticket_pieces(uint64_t ticket) { return (int)(ticket >> 28 & 0xFFFFFFF); }
static int fg__ticket_taken(uint64_t ticket) { return (int)(ticket & 0xFFFFFFF); }
static bool fg__ticket_has(uint64_t ticket) { return fg__ticket_taken(ticket) < fg__ticket_pieces(ticket); }

/* The ticket is written under the mutex, so that nobody falls asleep over the change. */
static void fg__pool_publish(fg__pool *pool, int n_pieces) {
    uint64_t phase = ((fg__atomic_load64(&pool->ticket) >> 56) + 1) & 0xFF;
    bool wake;
    fg__mutex_lock(&pool->mutex);
    fg__atomic_store64(&pool->ticket, phase << 56 | (uint64_t)n_pieces << 28);
    wake = pool->sleepers > 0;
    fg__mutex_unlock(&pool->mutex);
    if (wake) fg__cond_broadcast(&pool->cond);
}

/* Begins the next phase that has pieces, or ends the job. */
static void fg__pool_next_phase(fg__pool *pool) {
    int n;
    do n = pool->job.begin(pool->job.user, pool->phase++);
    while (n == 0);
    fg__atomic_store(&pool->done, 0);
    fg__pool_publish(pool, n < 0 ? 0 : n);
}

/* Takes and runs one piece; false when none is left. A piece that was taken keeps its phase from ending. */
static bool fg__pool_work(fg__pool *pool, int thread) {
    uint64_t ticket = fg__atomic_load64(&pool->ticket);
    if (!fg__ticket_has(ticket)) return false;
    ticket = fg__atomic_add64(&pool->ticket, 1);
    if (!fg__ticket_has(ticket)) return false;
    pool->job.run(pool->job.user, fg__ticket_taken(ticket), thread);
    if (fg__atomic_add(&pool->done, 1) + 1 == fg__ticket_pieces(ticket)) fg__pool_next_phase(pool);
    return true;
}

/* Returns after the next change of phase that follows `seen`. */
static void fg__pool_await(fg__pool *pool, uint64_t seen) {
    int i;
    for (i = 0; i < pool->spins; i++) {
        if (fg__atomic_load64(&pool->ticket) >> 56 != seen >> 56) return;
        fg__cpu_relax();
    }
    fg__mutex_lock(&pool->mutex);
    pool->sleepers++;
    while (fg__atomic_load64(&pool->ticket) >> 56 == seen >> 56) fg__cond_wait(&pool->cond, &pool->mutex, -1.0);
    pool->sleepers--;
    fg__mutex_unlock(&pool->mutex);
}

static void fg__pool_main(void *user) {
    fg__worker *worker = (fg__worker *)user;
    fg__pool *pool = worker->pool;
    for (;;) {
        uint64_t seen = fg__atomic_load64(&pool->ticket);
        if (!fg__ticket_has(seen)) {
            if (fg__atomic_load(&pool->quit)) return;
            fg__pool_await(pool, seen);
        }
        while (fg__pool_work(pool, worker->index)) {}
    }
}

/* Runs a job and returns when it is over. */
static void fg__pool_run(fg__pool *pool, const fg__job *job) {
    pool->job = *job;
    pool->phase = 0;
    fg__pool_next_phase(pool);
    for (;;) {
        uint64_t seen = fg__atomic_load64(&pool->ticket);
        if (fg__ticket_pieces(seen) == 0) return;
        if (!fg__ticket_has(seen)) fg__pool_await(pool, seen);
        while (fg__pool_work(pool, 0)) {}
    }
}

static void fg__pool_close(const fg__env *env, fg__pool *pool) {
    int i;
    fg__atomic_store(&pool->quit, 1);
    fg__pool_publish(pool, 0);
    for (i = 1; i < pool->n_threads; i++) fg__thread_join(&pool->threads[i]);
    fg__cond_destroy(&pool->cond);
    fg__mutex_destroy(&pool->mutex);
    fg__free(env, pool->threads);
    fg__free(env, pool->workers);
}

/* Run `index` of n items: each round of runs, one for each thread, is half of what is left, evenly cut. Long runs come
   first, so that memory is read in order, short ones at the end, so that all threads end together. */
static bool fg__run_of(int n, int n_threads, int index, int *from, int *to) {
    int size;
    for (*from = 0; *from < n; index -= n_threads, *from += size * n_threads) {
        size = FG__MAX(1, (n - *from) / (2 * n_threads));
        if (index >= n_threads) continue;
        *from += index * size;
        *to = FG__MIN(*from + size, n);
        return *from < n;
    }
    return false;
}

static int fg__run_count(int n, int n_threads) {
    int from = 0, count = 0;
    while (from < n) {
        int size = FG__MAX(1, (n - from) / (2 * n_threads));
        int runs = FG__MIN(n_threads, (n - from + size - 1) / size);
        count += runs;
        from += runs * size;
    }
    return count;
}

/* Starts at most n_threads - 1 threads; with fewer, where the system refuses, work goes on. */
static bool fg__pool_open(const fg__env *env, fg__pool *pool, int n_threads) {
    int i;
    memset(pool, 0, sizeof(*pool));
    pool->threads = (fg__thread *)fg__calloc(env, (size_t)n_threads, sizeof(fg__thread));
    pool->workers = (fg__worker *)fg__calloc(env, (size_t)n_threads, sizeof(fg__worker));
    if (!pool->threads || !pool->workers) {
        fg__free(env, pool->threads);
        fg__free(env, pool->workers);
        return false;
    }
    fg__mutex_init(&pool->mutex);
    fg__cond_init(&pool->cond);
    pool->n_threads = 1;
    pool->spins = n_threads <= fg__cpu_count() ? 4000 : 0;
    for (i = 1; i < n_threads; i++) {
        pool->workers[i].pool = pool;
        pool->workers[i].index = i;
        if (!fg__thread_start(&pool->threads[i], fg__pool_main, &pool->workers[i])) break;
        pool->n_threads = i + 1;
    }
    return true;
}

/* ---- The device. ---- */

typedef struct fg__cpu_device {
    fg__env env;
    int path;
    fg__cpu_features features;
    fg__cpu_ops ops;
    fg__pool pool;
} fg__cpu_device;

typedef struct fg__cpu_weight {
    fg_tensor tensor;
    int64_t k, n;                  /* columns, rows */
    size_t row_bytes;              /* in the tensor */
    const fg__gemm_kernel *kernel; /* NULL: the tensor is used as it is */
    size_t panel_bytes;
    fg__pages pages; /* panels, or a vector of floats */
} fg__cpu_weight;

#define FG__CPU_OPS \
    (1u << FG_OP_EMBED | 1u << FG_OP_NORM | 1u << FG_OP_GEMM | 1u << FG_OP_ROPE_KV | 1u << FG_OP_ATTENTION | \
     1u << FG_OP_ACT_MUL | 1u << FG_OP_GATHER_ROWS | 1u << FG_OP_SAMPLE)
#define FG__CPU_KV_TYPES \
    ((uint64_t)1 << FG_TYPE_F32 | (uint64_t)1 << FG_TYPE_F16 | (uint64_t)1 << FG_TYPE_BF16 | \
     (uint64_t)1 << FG_TYPE_Q8_0)

static int fg__cpu_probe(void) { return 1; }

static bool fg__cpu_has_path(const fg__cpu_features *features, int path) {
    switch (path) {
    case FG__CPU_AVX2: return features->avx2;
    case FG__CPU_AVX512: return features->avx512;
    case FG__CPU_NEON: return features->neon;
    default: return path == FG__CPU_SCALAR;
    }
}

static fg_result fg__cpu_choose_path(const char *name, const fg__cpu_features *features, int *path) {
    int i, best = FG__CPU_SCALAR;
    for (i = 0; i < FG__CPU_PATHS; i++) {
        if (name && strcmp(name, fg__cpu_path_names[i]) == 0) break;
        if (!name && fg__cpu_has_path(features, i)) best = i;
    }
    *path = name ? i : best;
    if (*path == FG__CPU_PATHS) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "'%s' is no CPU path", name);
    if (!fg__cpu_has_path(features, *path)) return fg__fail(FG_ERROR_UNSUPPORTED, "this CPU cannot run '%s'", name);
    return FG_OK;
}

static fg_result fg__cpu_open(const fg_device_desc *desc, fg_device **out) {
    fg__env env = fg__env_make(&desc->allocator, desc->log, desc->log_user);
    fg__cpu_features features = fg__cpu_detect();
    fg__cpu_device *device;
    int path, n_threads = desc->n_threads > 0 ? FG__MIN(desc->n_threads, 1024) : fg__cpu_count();
    fg_result result = fg__cpu_choose_path(desc->cpu_path, &features, &path);
    if (result != FG_OK) return result;
    device = (fg__cpu_device *)fg__calloc(&env, 1, sizeof(*device));
    if (!device) return FG_ERROR_OUT_OF_MEMORY;
    device->env = env;
    device->features = features;
    device->path = path;
    device->ops = fg__cpu_ops_find(path, &features);
#if defined(FG_NO_THREADS)
    n_threads = 1;
#endif
    if (!fg__pool_open(&env, &device->pool, n_threads)) {
        fg__free(&env, device);
        return FG_ERROR_OUT_OF_MEMORY;
    }
    if (device->pool.n_threads < n_threads)
        fg__log(&env, FG_LOG_WARNING, "only %d of %d threads could be started", device->pool.n_threads, n_threads);
    *out = (fg_device *)device;
    return FG_OK;
}

static void fg__cpu_close(fg_device *handle) {
    fg__cpu_device *device = (fg__cpu_device *)handle;
    fg__env env;
    if (!device) return;
    env = device->env;
    fg__pool_close(&env, &device->pool);
    fg__free(&env, device);
}

/* The CPU's own name, without leading and double spaces. */
static void fg__cpu_brand(char *name, size_t capacity) {
#if FG__X86
    unsigned words[13];
    const char *from = (const char *)words;
    size_t length = 0;
    int i;
    memset(words, 0, sizeof(words));
    if (__get_cpuid_max(0x80000000u, NULL) >= 0x80000004u)
        for (i = 0; i < 3; i++)
            __cpuid_count(0x80000002u + (unsigned)i, 0, words[4 * i], words[4 * i + 1], words[4 * i + 2],
                          words[4 * i + 3]);
    for (; *from && length + 1 < capacity; from++)
        if (*from != ' ' || (length && from[1] != ' ' && from[1])) name[length++] = *from;
    name[length] = 0;
    if (!length) snprintf(name, capacity, "x86-64");
#elif defined(__aarch64__)
    snprintf(name, capacity, "ARM64");
#else
    snprintf(name, capacity, "CPU");
#endif
}

static size_t fg__memory_size(void) {
#if FG__WINDOWS
    MEMORYSTATUSEX status;
    status.dwLength = sizeof(status);
    return GlobalMemoryStatusEx(&status) ? (size_t)status.ullTotalPhys : 0;
#elif defined(_SC_PHYS_PAGES) && defined(_SC_PAGESIZE)
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (size_t)pages * (size_t)size : 0;
#else
    return 0;
#endif
}

/* What the path found beyond its name, as " (vnni, bf16)". */
static const char *fg__cpu_extras(const fg__cpu_device *device) {
    const fg__cpu_features *f = &device->features;
    switch (device->path) {
    case FG__CPU_AVX2: return f->avx_vnni ? " (vnni)" : "";
    case FG__CPU_AVX512: return f->avx512_vnni ? f->avx512_bf16 ? " (vnni, bf16)" : " (vnni)" : "";
    case FG__CPU_NEON: return f->dotprod ? f->i8mm ? " (dotprod, i8mm)" : " (dotprod)" : "";
    default: return "";
    }
}

static void fg__cpu_caps(fg_device *handle, fg_device_caps *caps) {
    fg__cpu_device *device = (fg__cpu_device *)handle;
    char brand[64];
    memset(caps, 0, sizeof(*caps));
    fg__cpu_brand(brand, sizeof(brand));
    caps->n_threads = device->pool.n_threads;
    snprintf(caps->name, sizeof(caps->name), "%s, %d thread%s, %s%s", brand, caps->n_threads,
             caps->n_threads == 1 ? "" : "s", fg__cpu_path_names[device->path], fg__cpu_extras(device));
    caps->memory_bytes = fg__memory_size();
    caps->block_tokens = 32;
    caps->token_budget = 256;
    caps->kv_types = FG__CPU_KV_TYPES;
#define FG__BIT(name, id, elements, bytes) caps->weight_types |= (uint64_t)1 << id;
    FG_TYPES(FG__BIT)
#undef FG__BIT
    caps->ops = FG__CPU_OPS;
}

static void *fg__cpu_alloc(fg_device *handle, size_t bytes) {
    return fg__malloc(&((fg__cpu_device *)handle)->env, bytes, 1);
}

static void fg__cpu_free(fg_device *handle, void *memory) { fg__free(&((fg__cpu_device *)handle)->env, memory); }

static fg_result fg__cpu_write(fg_device *handle, void *memory, size_t offset, const void *data, size_t bytes) {
    (void)handle;
    if (bytes) memcpy((char *)memory + offset, data, bytes);
    return FG_OK;
}

static fg_result fg__cpu_read(fg_device *handle, const void *memory, size_t offset, void *data, size_t bytes) {
    (void)handle;
    if (bytes) memcpy(data, (const char *)memory + offset, bytes);
    return FG_OK;
}

/* ---- Weights. ---- */

/* Fills in all but the memory. */
static fg_result fg__cpu_weight_describe(const fg__cpu_device *device, const fg_tensor *tensor, fg_op_type use,
                                         fg__cpu_weight *weight) {
    int64_t row_bytes, k = tensor->dims[0], n = tensor->n_dims > 1 ? tensor->dims[1] : 1;
    memset(weight, 0, sizeof(*weight));
    if (tensor->n_dims < 1 || tensor->n_dims > 2 || k < 1 || n < 1 || k > INT32_MAX || n > INT32_MAX)
        return fg__fail(FG_ERROR_UNSUPPORTED, "tensor '%s' is not a vector or a matrix", tensor->name);
    row_bytes = fg_type_bytes(tensor->type, k);
    if (!row_bytes)
        return fg__fail(FG_ERROR_UNSUPPORTED, "tensor '%s' has a type or width we do not know", tensor->name);
    if (tensor->bytes / (size_t)row_bytes < (size_t)n)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "tensor '%s' is shorter than its dimensions", tensor->name);
    weight->tensor = *tensor;
    weight->k = k;
    weight->n = n;
    weight->row_bytes = (size_t)row_bytes;
    if (use == FG_OP_GEMM) weight->kernel = fg__gemm_kernel_find(device->path, tensor->type, k);
    if (weight->kernel) weight->panel_bytes = weight->kernel->panel_bytes(tensor->type, k);
    return FG_OK;
}

static size_t fg__cpu_panels(const fg__cpu_weight *weight) { return ((size_t)weight->n + FG__PANEL - 1) / FG__PANEL; }

static int fg__pack_begin(void *user, int phase) {
    return phase == 0 ? (int)fg__cpu_panels((const fg__cpu_weight *)user) : -1;
}

static void fg__pack_panel(void *user, int i, int thread) {
    fg__cpu_weight *w = (fg__cpu_weight *)user;
    (void)thread;
    w->kernel->pack(w->tensor.type, (const char *)w->tensor.data + (size_t)i * FG__PANEL * w->row_bytes, w->row_bytes,
                    (int)FG__MIN(FG__PANEL, w->n - (int64_t)i * FG__PANEL), w->k,
                    w->pages.data + (size_t)i * w->panel_bytes);
}

/* GEMM weights with a kernel are packed, vectors become floats, the rest is used where it is. */
static fg_result fg__cpu_pack(fg_device *handle, const fg_tensor *tensor, fg_op_type use, fg_weight **out,
                              size_t *bytes) {
    fg__cpu_device *device = (fg__cpu_device *)handle;
    fg__cpu_weight described, *weight;
    fg__job job;
    bool vector = use != FG_OP_GEMM && use != FG_OP_EMBED;
    size_t size = 0;
    fg_result result = fg__cpu_weight_describe(device, tensor, use, &described);
    if (result != FG_OK) return result;
    if (described.kernel) size = fg__cpu_panels(&described) * described.panel_bytes;
    if (vector) size = (size_t)described.k * (size_t)described.n * sizeof(float);
    if (bytes) *bytes = size;
    if (!out) return FG_OK;
    weight = (fg__cpu_weight *)fg__malloc(&device->env, 1, sizeof(*weight));
    if (!weight) return FG_ERROR_OUT_OF_MEMORY;
    *weight = described;
    if (size && !fg__pages_alloc(&device->env, &weight->pages, size)) {
        fg__free(&device->env, weight);
        return FG_ERROR_OUT_OF_MEMORY;
    }
    job.begin = fg__pack_begin;
    job.run = fg__pack_panel;
    job.user = weight;
    if (vector)
        fg__dequantize_row(tensor->type, tensor->data, (float *)(void *)weight->pages.data, weight->k * weight->n);
    else if (weight->kernel) fg__pool_run(&device->pool, &job);
    *out = (fg_weight *)weight;
    return FG_OK;
}

static void fg__cpu_unpack(fg_device *handle, fg_weight *weight) {
    fg__cpu_device *device = (fg__cpu_device *)handle;
    if (!weight) return;
    fg__pages_free(&device->env, &((fg__cpu_weight *)weight)->pages);
    fg__free(&device->env, weight);
}

/* ---- Plans: stages, memory. ---- */

#define FG__ROWS 48                /* rows of a product that are finished together; also of queries in attention */
#define FG__SAMPLE_PIECE 4096      /* logits per partial result of SAMPLE */
#define FG__STAGE_ROPE FG_OP_COUNT /* sines and cosines of the pass */

typedef struct fg__cpu_stage {
    int type;     /* of its ops, or FG__STAGE_ROPE */
    int first, n; /* ops; only GEMM stages have several. FG__STAGE_ROPE: the rope table */
    bool per_row; /* works on rows that need logits, not on tokens */
    bool apart;   /* what it reads may be written by other pieces of the stage before */
    int n_panels; /* GEMM: of all ops */
    int gate;     /* GEMM: the ACT_MUL that multiplies both products while they are in the cache; -1: none */
} fg__cpu_stage;

/* A phase of the pool's job: what is done between two points at which all threads' results are needed. */
typedef enum fg__cpu_phase_type {
    FG__PHASE_ROWS,      /* stages that work on rows alone, packing of activations among them: pieces are rows */
    FG__PHASE_GEMM,      /* runs of panels */
    FG__PHASE_ATTENTION, /* tasks, for each KV head */
    FG__PHASE_MERGE,     /* tasks that were split, for each KV head */
    FG__PHASE_SAMPLE,    /* stretches of each row's logits */
    FG__PHASE_CHOOSE     /* rows */
} fg__cpu_phase_type;

typedef struct fg__cpu_phase {
    fg__cpu_phase_type type;
    int first, n; /* stages */
} fg__cpu_phase;

typedef struct fg__cpu_slot {
    float *data;
    size_t stride; /* floats from row to row */
} fg__cpu_slot;

/* What a plan keeps about one op. */
typedef struct fg__cpu_op {
    size_t act_offset, act_stride; /* GEMM: packed activations */
    int n_panels;
    bool packs_acts; /* the first of its stage that needs this form of the activations */
    int rope;        /* ROPE_KV: index of its table; -1: none */
} fg__cpu_op;

typedef struct fg__cpu_rope {
    int weight, n_rot;
    float scale;
    float *cos_sin; /* [max_tokens][n_rot] */
} fg__cpu_rope;

/* A piece of attention: some tokens of a sequence over some spans, for every KV head. */
typedef struct fg__attn_task {
    int seq, token, n_tokens;
    int first_span, n_spans;
    int partial; /* first row of partial results; -1: the result goes to dst */
    double cost;
} fg__attn_task;

typedef struct fg__cpu_group {
    fg__kv_layout layout, wide; /* as stored, and as kernels see it: tiles of 32 */
    size_t head_bytes, layer_bytes, block_bytes;
    fg__pages pool;
    int n_head;            /* of the layers' queries; 0: no attention op */
    int tile_tokens;       /* query tokens of a task */
    int n_partials;        /* rows of partial results */
    float *partials;       /* [n_partials][n_kv_head][head_dim + 2] */
    fg__attn_task *tasks;  /* largest first */
    fg__attn_task *merges; /* tasks that were split, whole */
    int n_tasks, n_merges, max_tasks;
} fg__cpu_group;

/* One thread's own memory. Attention: `m` rows in blocks of FG__ROW_BLOCK. */
typedef struct fg__cpu_scratch {
    float *row, *tile;         /* GEMM: a weight row; two times [FG__ROWS][32] results */
    float *q, *s;              /* [blocks][head_dim][FG__ROW_BLOCK]; scores of a block */
    float *acc, *max, *sum;    /* the result so far: [m][head_dim], [m], [m] */
    float *acc2, *max2, *sum2; /* of a block, over one span */
    char *kv;                  /* tiles of a span put together */
} fg__cpu_scratch;

typedef struct fg__cpu_plan {
    fg__cpu_device *device;
    const fg_graph *graph;
    const fg_batch *batch; /* of the pass that runs */
    bool measure;          /* only memory is asked for */
    fg__cpu_stage *stages;
    fg__cpu_phase *phases;
    const fg__cpu_phase *phase; /* the one that runs */
    fg__cpu_slot *slots;
    fg__cpu_op *ops;
    fg__cpu_rope *ropes;
    fg__cpu_scratch *scratch;
    int n_stages, n_phases, n_ropes;
    fg__cpu_group groups[FG_MAX_GROUPS];
    fg__pages memory;
    char *acts;
    fg_row_result *rows;
    fg__sample_part *parts; /* [max_rows][pieces] */
    int sample_op;          /* -1: none */
    bool want_logits;
} fg__cpu_plan;

static const fg__cpu_weight *fg__cpu_weight_of(const fg__cpu_plan *plan, int index) {
    return (const fg__cpu_weight *)plan->graph->weights[index];
}

/* A vector weight as floats; NULL for index -1, and for a matrix. */
static const float *fg__cpu_vector(const fg__cpu_plan *plan, int index) {
    const fg__cpu_weight *weight = index < 0 ? NULL : fg__cpu_weight_of(plan, index);
    return weight && !weight->kernel ? (const float *)(const void *)weight->pages.data : NULL;
}

static float *fg__cpu_row(const fg__cpu_plan *plan, int slot, int row) {
    return plan->slots[slot].data + (size_t)row * plan->slots[slot].stride;
}

static const fg__gemm_kernel *fg__cpu_kernel_of(const fg__cpu_plan *plan, const fg_op *op) {
    if (plan->measure) return fg__gemm_kernel_find(plan->device->path, plan->graph->tensors[op->weight].type, op->k);
    return fg__cpu_weight_of(plan, op->weight)->kernel;
}

/* True when everything an op names exists, is wide enough, and is what the kernels take. */
static bool fg__cpu_check_op(const fg__cpu_plan *plan, const fg_op *op) {
    int heads = op->type == FG_OP_ATTENTION ? plan->groups[op->group & (FG_MAX_GROUPS - 1)].n_head : 0;
    int vectors[3], i;
    if (!fg__graph_check_op(plan->graph, op, plan->measure) || (heads && heads != op->n_head)) return false;
    vectors[0] = op->type == FG_OP_NORM || op->type == FG_OP_ROPE_KV ? op->weight : -1;
    vectors[1] = op->weight2;
    vectors[2] = op->bias;
    for (i = 0; i < 3 && !plan->measure; i++)
        if (vectors[i] >= 0 && !fg__cpu_vector(plan, vectors[i])) return false;
    return true;
}

/* True when two products can run side by side: the same input, outputs that do not meet. */
static bool fg__cpu_gemms_join(const fg_op *a, const fg_op *b) {
    if (b->type != FG_OP_GEMM || a->src != b->src || a->src_col != b->src_col || a->k != b->k) return false;
    if (a->src2 == b->dst || b->src2 == a->dst) return false;
    return a->dst != b->dst || a->dst_col + a->n <= b->dst_col || b->dst_col + b->n <= a->dst_col;
}

/* True when ops `first` and the next are products whose results the third, an ACT_MUL, multiplies, and nothing else. */
static bool fg__cpu_is_gated(const fg_graph *graph, int first) {
    const fg_op *a, *b, *c, *op;
    if (first < 0 || first + 2 >= graph->n_ops) return false;
    a = &graph->ops[first];
    b = a + 1;
    c = a + 2;
    if (a->type != FG_OP_GEMM || c->type != FG_OP_ACT_MUL || !fg__cpu_gemms_join(a, b) || a->n != c->n || b->n != c->n)
        return false;
    for (op = a; op < c; op++)
        if (op->bias >= 0 || op->src2 >= 0 || op->act != FG_ACT_NONE) return false;
    return a->dst == c->src && a->dst_col == c->src_col && b->dst == c->src2 && b->dst_col == c->src2_col &&
           c->dst != a->dst && c->dst != b->dst && c->dst != a->src;
}

/* True when products for an ACT_MUL are all that slot `slot` is used for: it then need not be written. */
static bool fg__cpu_only_gates(const fg_graph *graph, int slot) {
    int i;
    for (i = 0; i < graph->n_ops; i++) {
        const fg_op *op = &graph->ops[i];
        if ((op->src == slot || op->src2 == slot) && !fg__cpu_is_gated(graph, i - 2)) return false;
    }
    return true;
}

/* How many ops from `first` on make one stage. */
static int fg__cpu_stage_ops(const fg_graph *graph, int first) {
    int i, n = 1;
    if (graph->ops[first].type != FG_OP_GEMM) return 1;
    for (; first + n < graph->n_ops; n++)
        for (i = 0; i < n; i++)
            if (!fg__cpu_gemms_join(&graph->ops[first + i], &graph->ops[first + n])) return n;
    return n;
}

/* The table of sines an op needs, made when it is new. */
static int fg__cpu_rope_find(fg__cpu_plan *plan, const fg_op *op) {
    int i;
    if (op->n_rot == 0) return -1;
    for (i = 0; i < plan->n_ropes; i++)
        if (plan->ropes[i].weight == op->bias && plan->ropes[i].n_rot == op->n_rot && plan->ropes[i].scale == op->scale)
            return i;
    plan->ropes[i].weight = op->bias;
    plan->ropes[i].n_rot = op->n_rot;
    plan->ropes[i].scale = op->scale;
    return plan->n_ropes++;
}

/* Divided evenly by rows: reads and writes its own rows only. */
static bool fg__cpu_by_rows(int type) {
    return type == FG_OP_EMBED || type == FG_OP_NORM || type == FG_OP_ROPE_KV || type == FG_OP_ACT_MUL ||
           type == FG__STAGE_ROPE;
}

static void fg__cpu_add_stage(fg__cpu_plan *plan, int type, int first, int n, bool per_row) {
    fg__cpu_stage *stage = &plan->stages[plan->n_stages];
    const fg__cpu_stage *before = plan->n_stages ? stage - 1 : stage;
    stage->type = type;
    stage->first = first;
    stage->n = n;
    stage->per_row = per_row;
    stage->gate = -1;
    /* A product starts with packing activations, by rows. */
    stage->apart =
        plan->n_stages > 0 && !((fg__cpu_by_rows(before->type) || before->type == FG_OP_GATHER_ROWS) &&
                                (fg__cpu_by_rows(type) || type == FG_OP_GEMM) && before->per_row == per_row);
    plan->n_stages++;
}

static bool fg__cpu_has_rows(int type) {
    return fg__cpu_by_rows(type) || type == FG_OP_GATHER_ROWS || type == FG_OP_GEMM;
}

static void fg__cpu_add_phase(fg__cpu_plan *plan, fg__cpu_phase_type type, int stage) {
    fg__cpu_phase *phase = &plan->phases[plan->n_phases++];
    phase->type = type;
    phase->first = stage;
    phase->n = 1;
}

static void fg__cpu_add_phases(fg__cpu_plan *plan) {
    int i;
    for (i = 0; i < plan->n_stages; i++) {
        const fg__cpu_stage *stage = &plan->stages[i];
        fg__cpu_phase *last = plan->n_phases ? &plan->phases[plan->n_phases - 1] : NULL;
        if (fg__cpu_has_rows(stage->type)) {
            if (last && last->type == FG__PHASE_ROWS && !stage->apart) last->n++;
            else fg__cpu_add_phase(plan, FG__PHASE_ROWS, i);
        }
        if (stage->type == FG_OP_GEMM) fg__cpu_add_phase(plan, FG__PHASE_GEMM, i);
        if (stage->type == FG_OP_ATTENTION) fg__cpu_add_phase(plan, FG__PHASE_ATTENTION, i);
        if (stage->type == FG_OP_ATTENTION) fg__cpu_add_phase(plan, FG__PHASE_MERGE, i);
        if (stage->type == FG_OP_SAMPLE) fg__cpu_add_phase(plan, FG__PHASE_SAMPLE, i);
        if (stage->type == FG_OP_SAMPLE) fg__cpu_add_phase(plan, FG__PHASE_CHOOSE, i);
    }
}

/* Decides how a product's activations are packed; returns the bytes they need. */
static size_t fg__cpu_plan_gemm(fg__cpu_plan *plan, fg__cpu_stage *stage) {
    const fg_graph *graph = plan->graph;
    size_t rows = (size_t)(stage->per_row ? graph->max_rows : graph->max_tokens), bytes = 0;
    int i, j;
    for (i = stage->first; i < stage->first + stage->n; i++) {
        const fg_op *op = &graph->ops[i];
        const fg__gemm_kernel *kernel = fg__cpu_kernel_of(plan, op);
        fg__cpu_op *own = &plan->ops[i];
        own->n_panels = (op->n + FG__PANEL - 1) / FG__PANEL;
        stage->n_panels += own->n_panels;
        if (!kernel) continue;
        own->act_stride = kernel->act_bytes(op->k);
        for (j = stage->first; j < i; j++) {
            const fg__gemm_kernel *other = fg__cpu_kernel_of(plan, &graph->ops[j]);
            if (other && other->act_pack == kernel->act_pack) break;
        }
        own->packs_acts = j == i;
        own->act_offset = j < i ? plan->ops[j].act_offset : bytes;
        if (j == i) bytes += fg__round_up(rows * own->act_stride, 64);
    }
    if (stage->gate >= 0) stage->n_panels /= 2; /* both products of a panel are one piece of work */
    return bytes;
}

static fg_result fg__cpu_add_ops(fg__cpu_plan *plan) {
    const fg_graph *graph = plan->graph;
    int i, n, slot;
    for (i = 0; i < graph->n_ops; i++) {
        const fg_op *op = &graph->ops[i];
        if (op->type < 0 || op->type >= FG_OP_COUNT || !(FG__CPU_OPS >> op->type & 1))
            return fg__fail(FG_ERROR_UNSUPPORTED, "the CPU backend has no op %s", fg__op_name(op->type));
        if (!fg__cpu_check_op(plan, op))
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "op %d (%s) names something that is missing or too small", i,
                            fg__op_name(op->type));
        if (op->type == FG_OP_ATTENTION) plan->groups[op->group].n_head = op->n_head;
        if (op->type == FG_OP_ROPE_KV) plan->ops[i].rope = fg__cpu_rope_find(plan, op);
        if (op->type == FG_OP_SAMPLE) plan->sample_op = i;
    }
    for (i = 0; i < plan->n_ropes; i++) fg__cpu_add_stage(plan, FG__STAGE_ROPE, i, 1, false);
    for (i = 0; i < graph->n_ops; i += n) {
        const fg_op *op = &graph->ops[i];
        n = fg__cpu_stage_ops(graph, i);
        slot = op->type == FG_OP_EMBED || op->type == FG_OP_GATHER_ROWS ? op->dst : op->src;
        fg__cpu_add_stage(plan, op->type, i, n, graph->slots[slot].per_row);
        if (n != 2 || !fg__cpu_is_gated(graph, i) || !fg__cpu_only_gates(graph, op->dst)) continue;
        if (!fg__cpu_only_gates(graph, op[1].dst)) continue;
        plan->stages[plan->n_stages - 1].gate = i + n;
        n++;
    }
    return FG_OK;
}

static void fg__cpu_plan_group(fg__cpu_plan *plan, int index) {
    const fg_graph *graph = plan->graph;
    const fg_group *group = &graph->groups[index];
    fg__cpu_group *own = &plan->groups[index];
    int n_threads = plan->device->pool.n_threads, heads;
    own->layout = fg__kv_layout_make(group->kv_type, group->head_dim, group->block_tokens);
    own->wide = fg__kv_layout_make(group->kv_type, group->head_dim, FG__TILE);
    own->head_bytes = own->layout.tile_bytes * (size_t)(group->block_tokens / own->layout.width);
    own->layer_bytes = own->head_bytes * (size_t)group->n_kv_head;
    own->block_bytes = own->layer_bytes * (size_t)group->n_layers;
    if (!own->n_head) return;
    heads = own->n_head / group->n_kv_head;
    own->tile_tokens = FG__MAX(1, FG__ROWS / heads);
    own->n_partials = n_threads > 1 ? FG__MAX(256, 128 * n_threads) : 0;
    own->max_tasks = graph->max_tokens + own->n_partials;
}

/* Takes `bytes` from the plan's memory; with base NULL only counts. */
static void *fg__lay(char *base, size_t *used, size_t count, size_t size) {
    void *result = base ? base + *used : NULL;
    if (size && count > (SIZE_MAX / 4) / size) count = SIZE_MAX / 4 / size;
    *used = FG__MIN(*used + fg__round_up(count * size, 64), SIZE_MAX / 4);
    return result;
}

static void fg__cpu_lay_group(fg__cpu_plan *plan, int index, char *base, size_t *used) {
    fg__cpu_group *own = &plan->groups[index];
    const fg_group *group = &plan->graph->groups[index];
    if (!own->n_head) return;
    own->partials = (float *)fg__lay(base, used, (size_t)own->n_partials * (size_t)group->n_kv_head,
                                     (size_t)(group->head_dim + 2) * sizeof(float));
    own->tasks = (fg__attn_task *)fg__lay(base, used, (size_t)own->max_tasks, sizeof(fg__attn_task));
    own->merges = (fg__attn_task *)fg__lay(base, used, (size_t)own->max_tasks, sizeof(fg__attn_task));
}

/* The largest inner width, rows, head size and bytes of a span that a thread's scratch must hold. */
static void fg__cpu_scratch_sizes(const fg__cpu_plan *plan, size_t *k, size_t *m, size_t *head_dim, size_t *kv) {
    int i;
    *k = *m = *head_dim = 1;
    *kv = 0;
    for (i = 0; i < plan->graph->n_ops; i++) {
        const fg_op *op = &plan->graph->ops[i];
        if (op->type == FG_OP_GEMM) *k = FG__MAX(*k, (size_t)op->k);
    }
    for (i = 0; i < plan->graph->n_groups; i++) {
        const fg_group *group = &plan->graph->groups[i];
        const fg__cpu_group *own = &plan->groups[i];
        if (!own->n_head) continue;
        *m = FG__MAX(*m,
                     fg__round_up((size_t)own->tile_tokens * (size_t)(own->n_head / group->n_kv_head), FG__ROW_BLOCK));
        *head_dim = FG__MAX(*head_dim, (size_t)group->head_dim);
        if (own->layout.width < FG__TILE) *kv = FG__MAX(*kv, own->wide.tile_bytes * (FG__SPAN / FG__TILE));
    }
}

static void fg__cpu_lay_scratch(fg__cpu_plan *plan, char *base, size_t *used) {
    size_t k, m, head_dim, kv;
    int i;
    fg__cpu_scratch_sizes(plan, &k, &m, &head_dim, &kv);
    for (i = 0; i < plan->device->pool.n_threads; i++) {
        fg__cpu_scratch *s = &plan->scratch[i];
        s->row = (float *)fg__lay(base, used, k, sizeof(float));
        s->tile = (float *)fg__lay(base, used, 2 * FG__ROWS * FG__PANEL, sizeof(float));
        s->q = (float *)fg__lay(base, used, m * head_dim, sizeof(float));
        s->s = (float *)fg__lay(base, used, FG__ROW_BLOCK * FG__SCORE_ROW, sizeof(float));
        s->acc = (float *)fg__lay(base, used, m * head_dim, sizeof(float));
        s->max = (float *)fg__lay(base, used, m, sizeof(float));
        s->sum = (float *)fg__lay(base, used, m, sizeof(float));
        s->acc2 = (float *)fg__lay(base, used, FG__ROW_BLOCK * head_dim, sizeof(float));
        s->max2 = (float *)fg__lay(base, used, FG__ROW_BLOCK, sizeof(float));
        s->sum2 = (float *)fg__lay(base, used, FG__ROW_BLOCK, sizeof(float));
        s->kv = (char *)fg__lay(base, used, kv, 1);
    }
}

/* Sets every pointer into the plan's memory; returns how much that is. */
static size_t fg__cpu_lay(fg__cpu_plan *plan, size_t act_bytes, char *base) {
    const fg_graph *graph = plan->graph;
    size_t used = 0, max_rows = (size_t)graph->max_rows, max_tokens = (size_t)graph->max_tokens, pieces;
    int i;
    for (i = 0; i < graph->n_slots; i++) {
        fg__cpu_slot *slot = &plan->slots[i];
        bool logits = plan->sample_op >= 0 && graph->ops[plan->sample_op].src == i;
        size_t width = (size_t)graph->slots[i].width;
        slot->stride =
            logits ? width : fg__round_up(width, 16) + 16; /* not a power of two: rows would share cache sets */
        slot->data = (float *)fg__lay(base, &used, graph->slots[i].per_row ? max_rows : max_tokens,
                                      slot->stride * sizeof(float));
    }
    for (i = 0; i < plan->n_ropes; i++)
        plan->ropes[i].cos_sin =
            (float *)fg__lay(base, &used, max_tokens, (size_t)plan->ropes[i].n_rot * sizeof(float));
    for (i = 0; i < graph->n_groups; i++) fg__cpu_lay_group(plan, i, base, &used);
    plan->acts = (char *)fg__lay(base, &used, act_bytes, 1);
    if (plan->sample_op >= 0) {
        pieces = ((size_t)graph->ops[plan->sample_op].n + FG__SAMPLE_PIECE - 1) / FG__SAMPLE_PIECE;
        plan->rows = (fg_row_result *)fg__lay(base, &used, max_rows, sizeof(fg_row_result));
        plan->parts = (fg__sample_part *)fg__lay(base, &used, max_rows * pieces, sizeof(fg__sample_part));
    }
    fg__cpu_lay_scratch(plan, base, &used);
    return used;
}

static void fg__cpu_release(fg_device *handle, fg_plan *plan_handle) {
    fg__cpu_device *device = (fg__cpu_device *)handle;
    fg__cpu_plan *plan = (fg__cpu_plan *)plan_handle;
    int i;
    if (!plan) return;
    for (i = 0; i < FG_MAX_GROUPS; i++) fg__pages_free(&device->env, &plan->groups[i].pool);
    fg__pages_free(&device->env, &plan->memory);
    fg__free(&device->env, plan->stages);
    fg__free(&device->env, plan->phases);
    fg__free(&device->env, plan->slots);
    fg__free(&device->env, plan->ops);
    fg__free(&device->env, plan->ropes);
    fg__free(&device->env, plan->scratch);
    fg__free(&device->env, plan);
}

/* A plan with everything but its memory. */
static fg__cpu_plan *fg__cpu_plan_make(fg__cpu_device *device, const fg_graph *graph) {
    size_t n_ops = (size_t)graph->n_ops;
    fg__cpu_plan *plan = (fg__cpu_plan *)fg__calloc(&device->env, 1, sizeof(*plan));
    if (!plan) return NULL;
    plan->device = device;
    plan->graph = graph;
    plan->sample_op = -1;
    plan->stages = (fg__cpu_stage *)fg__calloc(&device->env, 2 * n_ops + 1, sizeof(fg__cpu_stage));
    plan->phases = (fg__cpu_phase *)fg__calloc(&device->env, 4 * n_ops + 2, sizeof(fg__cpu_phase));
    plan->slots = (fg__cpu_slot *)fg__calloc(&device->env, (size_t)graph->n_slots, sizeof(fg__cpu_slot));
    plan->ops = (fg__cpu_op *)fg__calloc(&device->env, n_ops, sizeof(fg__cpu_op));
    plan->ropes = (fg__cpu_rope *)fg__calloc(&device->env, n_ops, sizeof(fg__cpu_rope));
    plan->scratch =
        (fg__cpu_scratch *)fg__calloc(&device->env, (size_t)device->pool.n_threads, sizeof(fg__cpu_scratch));
    if (plan->stages && plan->phases && plan->slots && plan->ops && plan->ropes && plan->scratch) return plan;
    fg__cpu_release((fg_device *)device, (fg_plan *)plan);
    return NULL;
}

/* Sizes of the pools; also allocates them unless only measuring. */
static fg_result fg__cpu_plan_pools(fg__cpu_plan *plan, size_t *bytes) {
    const fg_graph *graph = plan->graph;
    int i;
    *bytes = 0;
    for (i = 0; i < graph->n_groups; i++) {
        fg__cpu_group *own = &plan->groups[i];
        size_t size = (size_t)graph->groups[i].n_blocks;
        size = size > (SIZE_MAX / 4) / own->block_bytes ? SIZE_MAX / 4 : size * own->block_bytes;
        *bytes = FG__MIN(*bytes + size, SIZE_MAX / 4);
        if (!plan->measure && !fg__pages_alloc(&plan->device->env, &own->pool, size)) return FG_ERROR_OUT_OF_MEMORY;
    }
    return FG_OK;
}

static fg_result fg__cpu_plan_fill(fg__cpu_plan *plan, fg_memory *memory) {
    const fg_graph *graph = plan->graph;
    size_t kv = 0, used, act_bytes = 0, bytes;
    int i;
    fg_result result;
    if (graph->n_groups < 0 || graph->n_groups > FG_MAX_GROUPS || graph->max_tokens < 1 || graph->max_rows < 0 ||
        graph->max_seqs < 1)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "the graph's limits make no sense");
    for (i = 0; i < graph->n_groups; i++)
        if ((result = fg__graph_check_group(&graph->groups[i], FG__CPU_KV_TYPES, "CPU")) != FG_OK) return result;
    if ((result = fg__cpu_add_ops(plan)) != FG_OK) return result;
    fg__cpu_add_phases(plan);
    for (i = 0; i < plan->n_stages; i++)
        if (plan->stages[i].type == FG_OP_GEMM) {
            bytes = fg__cpu_plan_gemm(plan, &plan->stages[i]);
            act_bytes = FG__MAX(act_bytes, bytes);
        }
    for (i = 0; i < graph->n_groups; i++) fg__cpu_plan_group(plan, i);
    if ((result = fg__cpu_plan_pools(plan, &kv)) != FG_OK) return result;
    used = fg__cpu_lay(plan, act_bytes, NULL);
    if (memory) {
        memory->weights = 0;
        memory->kv = kv;
        memory->activations = used;
        memory->total = kv + used;
    }
    if (plan->measure) return FG_OK;
    if (!fg__pages_alloc(&plan->device->env, &plan->memory, used)) return FG_ERROR_OUT_OF_MEMORY;
    (void)fg__cpu_lay(plan, act_bytes, plan->memory.data);
    return FG_OK;
}

static fg_result fg__cpu_prepare(fg_device *handle, const fg_graph *graph, fg_plan **out, fg_memory *memory) {
    fg__cpu_plan *plan = fg__cpu_plan_make((fg__cpu_device *)handle, graph);
    fg_result result;
    if (!plan) return FG_ERROR_OUT_OF_MEMORY;
    plan->measure = !out;
    result = fg__cpu_plan_fill(plan, memory);
    if (result == FG_OK && out) *out = (fg_plan *)plan;
    else fg__cpu_release(handle, (fg_plan *)plan);
    return result;
}

/* ---- The pass: what is done in a stage. ---- */

static void fg__cpu_rope_rows(fg__cpu_plan *plan, const fg__cpu_rope *rope, int from, int to) {
    const float *frequencies = fg__cpu_vector(plan, rope->weight);
    int row, i, half = rope->n_rot / 2;
    for (row = from; row < to; row++) {
        float *out = rope->cos_sin + (size_t)row * (size_t)rope->n_rot;
        for (i = 0; i < half; i++) {
            float theta = (float)plan->batch->positions[row] * frequencies[i];
            out[i] = cosf(theta) * rope->scale;
            out[half + i] = sinf(theta) * rope->scale;
        }
    }
}

static void fg__cpu_embed(fg__cpu_plan *plan, const fg_op *op, int from, int to) {
    const fg__cpu_weight *weight = fg__cpu_weight_of(plan, op->weight);
    int row, i;
    for (row = from; row < to; row++) {
        float *out = fg__cpu_row(plan, op->dst, row) + op->dst_col;
        size_t token = (size_t)plan->batch->tokens[row];
        fg__dequantize_row(weight->tensor.type, (const char *)weight->tensor.data + token * weight->row_bytes, out,
                           op->n);
        if (op->scale != 0.0f && op->scale != 1.0f)
            for (i = 0; i < op->n; i++) out[i] *= op->scale;
    }
}

static void fg__layer_norm(const float *x, const float *weight, const float *bias, int n, float eps, float *out) {
    float sum[16], mean, scale;
    int i, j;
    memset(sum, 0, sizeof(sum));
    for (i = 0; i < n; i++) sum[i & 15] += x[i];
    for (j = 8; j > 0; j /= 2)
        for (i = 0; i < j; i++) sum[i] += sum[i + j];
    mean = sum[0] / (float)n;
    memset(sum, 0, sizeof(sum));
    for (i = 0; i < n; i++) sum[i & 15] += (x[i] - mean) * (x[i] - mean);
    for (j = 8; j > 0; j /= 2)
        for (i = 0; i < j; i++) sum[i] += sum[i + j];
    scale = 1.0f / sqrtf(sum[0] / (float)n + eps);
    for (i = 0; i < n; i++) out[i] = (x[i] - mean) * scale * (weight ? weight[i] : 1.0f) + bias[i];
}

static void fg__cpu_norm(fg__cpu_plan *plan, const fg_op *op, int from, int to) {
    const float *weight = fg__cpu_vector(plan, op->weight), *bias = fg__cpu_vector(plan, op->bias);
    int row, i;
    for (row = from; row < to; row++) {
        float *x = fg__cpu_row(plan, op->src, row) + op->src_col, *out = fg__cpu_row(plan, op->dst, row) + op->dst_col;
        if (op->src2 >= 0) {
            const float *more = fg__cpu_row(plan, op->src2, row) + op->src2_col;
            for (i = 0; i < op->n; i++) x[i] += more[i];
        }
        if (bias) fg__layer_norm(x, weight, bias, op->n, op->eps, out);
        else plan->device->ops.rms_norm(x, weight, op->n, op->eps, out);
    }
}

static void fg__cpu_act_mul(fg__cpu_plan *plan, const fg_op *op, int from, int to) {
    int row;
    for (row = from; row < to; row++) {
        const float *x = fg__cpu_row(plan, op->src, row) + op->src_col,
                    *y = fg__cpu_row(plan, op->src2, row) + op->src2_col;
        float *out = fg__cpu_row(plan, op->dst, row) + op->dst_col;
        plan->device->ops.act_mul(op->act, x, y, op->n, out);
    }
}

static void fg__cpu_gather(fg__cpu_plan *plan, const fg_op *op, int from, int to) {
    int row;
    for (row = from; row < to; row++)
        memcpy(fg__cpu_row(plan, op->dst, row) + op->dst_col,
               fg__cpu_row(plan, op->src, plan->batch->rows[row]) + op->src_col, (size_t)op->n * sizeof(float));
}

/* ---- Products. ---- */

static void fg__gemm_pack_acts(fg__cpu_plan *plan, const fg__cpu_stage *stage, int from, int to) {
    int i, row;
    for (i = stage->first; i < stage->first + stage->n; i++) {
        const fg_op *op = &plan->graph->ops[i];
        const fg__cpu_op *own = &plan->ops[i];
        if (!own->packs_acts) continue;
        for (row = from; row < to; row++)
            fg__cpu_weight_of(plan, op->weight)
                ->kernel->act_pack(fg__cpu_row(plan, op->src, row) + op->src_col, op->k,
                                   plan->acts + own->act_offset + (size_t)row * own->act_stride);
    }
}

/* One panel times m rows the generic way: each weight row becomes floats, then one dot product per row. */
static void fg__gemm_generic(fg__cpu_plan *plan, const fg_op *op, int panel, int row, int m, fg__cpu_scratch *scratch,
                             float *sums) {
    const fg__cpu_weight *weight = fg__cpu_weight_of(plan, op->weight);
    int i, n = FG__MIN(FG__PANEL, op->n - panel * FG__PANEL);
    for (i = 0; i < n; i++) {
        const char *from =
            (const char *)weight->tensor.data + ((size_t)panel * FG__PANEL + (size_t)i) * weight->row_bytes;
        const float *floats = scratch->row;
        if (weight->tensor.type == FG_TYPE_F32 && (size_t)from % sizeof(float) == 0)
            floats = (const float *)(const void *)from;
        else fg__dequantize_row(weight->tensor.type, from, scratch->row, weight->k);
        plan->device->ops.dot(floats, fg__cpu_row(plan, op->src, row) + op->src_col, plan->slots[op->src].stride, m,
                              weight->k, sums + i, FG__PANEL);
    }
}

/* dst = act(sums + bias) + src2, for m rows of one panel. */
static void fg__gemm_finish(fg__cpu_plan *plan, const fg_op *op, int panel, int row, int m, float *sums) {
    const fg__cpu_ops *ops = &plan->device->ops;
    int column = panel * FG__PANEL, n = FG__MIN(FG__PANEL, op->n - column);
    const float *bias = op->bias < 0 ? NULL : fg__cpu_vector(plan, op->bias) + column;
    const float *more = op->src2 < 0 ? NULL : fg__cpu_row(plan, op->src2, row) + column;
    size_t more_row = op->src2 < 0 ? 0 : plan->slots[op->src2].stride;
    if (op->act != FG_ACT_NONE) {
        ops->finish(sums, bias, NULL, 0, m, n, sums, FG__PANEL);
        ops->act_mul(op->act, sums, NULL, m * FG__PANEL, sums);
        bias = NULL;
    }
    ops->finish(sums, bias, more, more_row, m, n, fg__cpu_row(plan, op->dst, row) + op->dst_col + column,
                plan->slots[op->dst].stride);
}

/* The raw sums of one panel and m rows, m at most FG__ROWS. */
static void fg__gemm_sums(fg__cpu_plan *plan, int index, int panel, int row, int m, fg__cpu_scratch *scratch,
                          float *sums) {
    const fg_op *op = &plan->graph->ops[index];
    const fg__cpu_op *own = &plan->ops[index];
    const fg__cpu_weight *weight = fg__cpu_weight_of(plan, op->weight);
    if (!weight->kernel) {
        fg__gemm_generic(plan, op, panel, row, m, scratch, sums);
        return;
    }
    weight->kernel->gemm(weight->tensor.type, weight->pages.data + (size_t)panel * weight->panel_bytes, op->k,
                         plan->acts + own->act_offset + (size_t)row * own->act_stride, own->act_stride, m, sums,
                         FG__PANEL);
}

/* Rows [row, row + m) of one panel of one product. */
static void fg__gemm_panel(fg__cpu_plan *plan, int index, int panel, int row, int m, fg__cpu_scratch *scratch) {
    const fg_op *op = &plan->graph->ops[index];
    const fg__cpu_op *own = &plan->ops[index];
    const fg__cpu_weight *weight = fg__cpu_weight_of(plan, op->weight);
    bool plain = op->bias < 0 && op->src2 < 0 && op->act == FG_ACT_NONE && (panel + 1) * FG__PANEL <= op->n;
    int r, count;
    if (weight->kernel && plain) { /* straight to where the results belong */
        weight->kernel->gemm(weight->tensor.type, weight->pages.data + (size_t)panel * weight->panel_bytes, op->k,
                             plan->acts + own->act_offset + (size_t)row * own->act_stride, own->act_stride, m,
                             fg__cpu_row(plan, op->dst, row) + op->dst_col + panel * FG__PANEL,
                             plan->slots[op->dst].stride);
        return;
    }
    for (r = 0; r < m; r += count) {
        count = FG__MIN(FG__ROWS, m - r);
        fg__gemm_sums(plan, index, panel, row + r, count, scratch, scratch->tile);
        fg__gemm_finish(plan, op, panel, row + r, count, scratch->tile);
    }
}

/* The same panel of two products, multiplied with each other by the ACT_MUL after them. */
static void fg__gemm_gated(fg__cpu_plan *plan, const fg__cpu_stage *stage, int panel, int row, int m,
                           fg__cpu_scratch *scratch) {
    const fg_op *op = &plan->graph->ops[stage->gate];
    float *x = scratch->tile, *y = x + FG__ROWS * FG__PANEL;
    int r, count, column = panel * FG__PANEL, n = FG__MIN(FG__PANEL, op->n - column);
    for (r = 0; r < m; r += count) {
        count = FG__MIN(FG__ROWS, m - r);
        fg__gemm_sums(plan, stage->first, panel, row + r, count, scratch, x);
        fg__gemm_sums(plan, stage->first + 1, panel, row + r, count, scratch, y);
        plan->device->ops.act_mul(op->act, x, y, count * FG__PANEL, x);
        plan->device->ops.finish(x, NULL, NULL, 0, count, n, fg__cpu_row(plan, op->dst, row + r) + op->dst_col + column,
                                 plan->slots[op->dst].stride);
    }
}

/* How many rows are multiplied with a panel before the next one: their activations stay in the second-level cache. */
static int fg__gemm_tile_rows(const fg__cpu_plan *plan, const fg__cpu_stage *stage, int n_rows) {
    const fg_op *op = &plan->graph->ops[stage->first];
    size_t stride = plan->ops[stage->first].act_stride, fit;
    int n_tiles;
    if (stride == 0) stride = (size_t)op->k * sizeof(float);
    fit = FG__MAX(((size_t)384 << 10) / stride, FG__ROWS);
    n_tiles = (int)(((size_t)n_rows + fit - 1) / fit);
    return (int)fg__round_up((size_t)((n_rows + n_tiles - 1) / n_tiles), 12);
}

/* The panels of all row tiles of a product, one after the other. */
static int fg__gemm_items(const fg__cpu_plan *plan, const fg__cpu_stage *stage, int n_rows) {
    int rows = fg__gemm_tile_rows(plan, stage, FG__MAX(n_rows, 1));
    return (n_rows + rows - 1) / rows * stage->n_panels;
}

static void fg__gemm_run(fg__cpu_plan *plan, const fg__cpu_stage *stage, int n_rows, int piece, int thread) {
    int rows = fg__gemm_tile_rows(plan, stage, n_rows), i, end = 0, panel, op;
    if (!fg__run_of(fg__gemm_items(plan, stage, n_rows), plan->device->pool.n_threads, piece, &i, &end)) return;
    for (; i < end; i++) {
        int row = i / stage->n_panels * rows, m = FG__MIN(rows, n_rows - row);
        panel = i % stage->n_panels;
        if (stage->gate >= 0) {
            fg__gemm_gated(plan, stage, panel, row, m, &plan->scratch[thread]);
            continue;
        }
        for (op = stage->first; panel >= plan->ops[op].n_panels; op++) panel -= plan->ops[op].n_panels;
        fg__gemm_panel(plan, op, panel, row, m, &plan->scratch[thread]);
    }
}

/* ---- KV cache and attention. ---- */

static char *fg__kv_tile(const fg__cpu_plan *plan, const fg_op *op, int block, int offset, int head) {
    const fg__cpu_group *own = &plan->groups[op->group];
    return own->pool.data + (size_t)block * own->block_bytes + (size_t)op->group_layer * own->layer_bytes +
           (size_t)head * own->head_bytes + (size_t)(offset / own->layout.width) * own->layout.tile_bytes;
}

static void fg__cpu_rope_kv(fg__cpu_plan *plan, const fg_op *op, int index, int from, int to) {
    const fg__cpu_ops *ops = &plan->device->ops;
    const float *q_norm = fg__cpu_vector(plan, op->weight), *k_norm = fg__cpu_vector(plan, op->weight2);
    const fg__cpu_group *own = &plan->groups[op->group];
    int block_tokens = plan->graph->groups[op->group].block_tokens, rope = plan->ops[index].rope, row, h;
    for (row = from; row < to; row++) {
        float *x = fg__cpu_row(plan, op->src, row), *q = x + op->src_col, *k = x + op->src2_col, *v = x + op->dst_col;
        const float *cos_sin = rope < 0 ? NULL : plan->ropes[rope].cos_sin + (size_t)row * (size_t)op->n_rot;
        int slot = plan->batch->slots[op->group][row], offset = slot % block_tokens;
        for (h = 0; h < op->n_head + op->n_kv_head; h++) {
            float *head = h < op->n_head ? q + h * op->head_dim : k + (h - op->n_head) * op->head_dim;
            const float *norm = h < op->n_head ? q_norm : k_norm;
            if (norm) ops->rms_norm(head, norm, op->head_dim, op->eps, head);
            if (cos_sin) ops->rope(head, cos_sin, op->n_rot, op->rope_neox);
        }
        for (h = 0; h < op->n_kv_head; h++)
            ops->kv_store(&own->layout, k + h * op->head_dim, v + h * op->head_dim, offset % own->layout.width,
                          fg__kv_tile(plan, op, slot / block_tokens, offset, h));
    }
}

/* Copies a narrow tile into columns t0 and on of a tile of 32. */
static void fg__kv_widen(const fg__kv_layout *from, const fg__kv_layout *to, const char *tile, int t0, char *out) {
    size_t n = (size_t)from->head_dim, w = (size_t)from->width, t = (size_t)t0, s = (size_t)from->n_scales, d;
    size_t e = from->type == FG_TYPE_F32 ? 4 : from->type == FG_TYPE_Q8_0 ? 1 : 2;
    const char *v = tile + from->v_offset, *ks = tile + fg__kv_scales(from), *vs = v + fg__kv_scales(from);
    char *wide_v = out + to->v_offset, *wide_ks = out + fg__kv_scales(to), *wide_vs = wide_v + fg__kv_scales(to);
    for (d = 0; d < n; d++) memcpy(out + (d * FG__TILE + t) * e, tile + d * w * e, w * e);
    memcpy(wide_v + t * n * e, v, w * n * e);
    for (d = 0; d < s; d++) memcpy(wide_ks + (d * FG__TILE + t) * 2, ks + d * w * 2, w * 2);
    memcpy(wide_vs + t * s * 2, vs, w * s * 2);
}

/* The tiles of positions [lo, hi), which are in one span: in place, or put together from narrow ones. */
static void fg__attn_tiles(const fg__cpu_plan *plan, const fg_op *op, int seq, int head, int lo, int hi, char *room,
                           const char **tiles) {
    const fg__cpu_group *own = &plan->groups[op->group];
    int block_tokens = plan->graph->groups[op->group].block_tokens, w = own->layout.width, t;
    const int32_t *table = plan->batch->tables[op->group] + (size_t)seq * (size_t)plan->graph->max_blocks_per_seq;
    for (t = lo / w * w; t < hi; t += w) {
        const char *tile = fg__kv_tile(plan, op, table[t / block_tokens], t % block_tokens, head);
        int index = t % FG__SPAN / FG__TILE;
        tiles[index] = tile;
        if (w == FG__TILE) continue;
        tiles[index] = room + (size_t)index * own->wide.tile_bytes;
        fg__kv_widen(&own->layout, &own->wide, tile, t % FG__TILE, room + (size_t)index * own->wide.tile_bytes);
    }
}

/* The tile of a position, for fetching it early; a harmless address where the sequence does not reach it. */
static const char *fg__attn_ahead(const fg__cpu_plan *plan, const fg_op *op, const fg__attn_task *task, int head,
                                  int position) {
    int block_tokens = plan->graph->groups[op->group].block_tokens;
    const int32_t *table = plan->batch->tables[op->group] + (size_t)task->seq * (size_t)plan->graph->max_blocks_per_seq;
    if (position >= plan->batch->kv_len[task->seq]) position = plan->batch->kv_len[task->seq] - 1;
    return fg__kv_tile(plan, op, table[position / block_tokens], position % block_tokens, head);
}

/* The first position that the token at position p sees. */
static int fg__attn_first(const fg_group *group, int p) {
    return group->window > 0 && p >= group->window ? p - group->window + 1 : 0;
}

/* The position of batch token `token` of sequence `seq`. */
static int fg__attn_position(const fg_batch *batch, int seq, int token) {
    return batch->kv_len[seq] - (batch->cu_q[seq + 1] - token);
}

/* What a task's rows are. */
typedef struct fg__attn_range {
    int heads, m; /* query heads per KV head; rows: the heads of the first token, then of the second, ... */
    int lo, hi;   /* positions [lo, hi) that any row sees */
    int position; /* of the first token */
} fg__attn_range;

static fg__attn_range fg__attn_range_of(const fg__cpu_plan *plan, const fg_op *op, const fg__attn_task *task) {
    fg__attn_range range;
    range.heads = op->n_head / op->n_kv_head;
    range.m = task->n_tokens * range.heads;
    range.position = fg__attn_position(plan->batch, task->seq, task->token);
    range.lo = fg__attn_first(&plan->graph->groups[op->group], range.position);
    range.hi = range.position + task->n_tokens;
    return range;
}

static void fg__attn_reset(const fg__attn_range *range, int head_dim, fg__cpu_scratch *s) {
    int i;
    for (i = 0; i < range->m; i++) {
        s->max[i] = -INFINITY;
        s->sum[i] = 0.0f;
    }
    memset(s->acc, 0, (size_t)range->m * (size_t)head_dim * sizeof(float));
}

/* A block of m rows from row `first` over the span that starts at position `start`, into max2, sum2, acc2. False: the
   rows see nothing of it. `next` is the tile that is read after these. */
static bool fg__attn_block(fg__cpu_plan *plan, const fg_op *op, const fg__attn_range *range, const char **tiles,
                           const char *next, int start, int first, int m, fg__cpu_scratch *s) {
    const fg__cpu_ops *ops = &plan->device->ops;
    const fg_group *group = &plan->graph->groups[op->group];
    const fg__kv_layout *layout = &plan->groups[op->group].wide;
    int lo[FG__ROW_BLOCK], hi[FG__ROW_BLOCK], r, from, to, t;
    for (r = 0; r < m; r++) {
        int position = range->position + (first + r) / range->heads;
        hi[r] = FG__MAX(0, FG__MIN(FG__SPAN, position + 1 - start));
        lo[r] = FG__MIN(hi[r], FG__MAX(0, fg__attn_first(group, position) - start));
    }
    if (lo[0] >= FG__SPAN || hi[m - 1] == 0) return false;
    from = lo[0] / FG__TILE;
    to = (hi[m - 1] + FG__TILE - 1) / FG__TILE;
    for (t = from; t < to; t++)
        ops->qk(layout, tiles[t], s->q + first * op->head_dim, m,
                t + 1 < to ? tiles[t + 1] : tiles[from] + layout->v_offset, s->s + t * FG__TILE);
    ops->softmax(s->s, m, from * FG__TILE, to * FG__TILE, lo, hi, op->softcap, s->max2, s->sum2);
    for (t = from; t < to; t++)
        ops->pv(layout, tiles[t] + layout->v_offset, s->s + t * FG__TILE, m, FG__MAX(lo[0] - t * FG__TILE, 0),
                FG__MIN(hi[m - 1] - t * FG__TILE, FG__TILE), t == from,
                t + 1 < to ? tiles[t + 1] + layout->v_offset : next, s->acc2);
    return true;
}

/* The queries of a KV head, scaled, in blocks of rows. */
static void fg__attn_load_q(const fg__cpu_plan *plan, const fg_op *op, const fg__attn_task *task,
                            const fg__attn_range *range, int head, float *q) {
    int r, d, n = op->head_dim, m = (int)fg__round_up((size_t)range->m, FG__ROW_BLOCK);
    for (r = 0; r < m; r++) {
        float *to = q + r / FG__ROW_BLOCK * FG__ROW_BLOCK * n + r % FG__ROW_BLOCK;
        const float *from = NULL;
        if (r < range->m) {
            int token = task->token + r / range->heads, column = (head * range->heads + r % range->heads) * n;
            from = fg__cpu_row(plan, op->src, token) + op->src_col + column;
        }
        for (d = 0; d < n; d++) to[d * FG__ROW_BLOCK] = from ? from[d] * op->scale : 0.0f;
    }
}

/* dst = acc / sum */
static void fg__attn_store(const fg__cpu_plan *plan, const fg_op *op, const fg__attn_task *task,
                           const fg__attn_range *range, int head, const fg__cpu_scratch *s) {
    const float *acc = s->acc;
    int r, d;
    for (r = 0; r < range->m; r++, acc += op->head_dim) {
        float *out = fg__cpu_row(plan, op->dst, task->token + r / range->heads) + op->dst_col +
                     (head * range->heads + r % range->heads) * op->head_dim;
        float scale = 1.0f / s->sum[r]; /* at least the token itself was seen */
        for (d = 0; d < op->head_dim; d++) out[d] = acc[d] * scale;
    }
}

/* Row r of partial result number `partial` of a head: maximum, sum, then head_dim values. */
static float *fg__attn_partial(const fg__cpu_plan *plan, const fg_op *op, int partial, int head) {
    return plan->groups[op->group].partials +
           ((size_t)partial * (size_t)op->n_kv_head + (size_t)head) * (size_t)(op->head_dim + 2);
}

static void fg__attn_task_run(fg__cpu_plan *plan, const fg_op *op, const fg__attn_task *task, int head,
                              fg__cpu_scratch *s) {
    fg__attn_range range = fg__attn_range_of(plan, op, task);
    const char *tiles[FG__SPAN / FG__TILE];
    int span, first, r, n = op->head_dim;
    fg__attn_load_q(plan, op, task, &range, head, s->q);
    if (task->partial < 0) fg__attn_reset(&range, n, s);
    for (span = task->first_span; span < task->first_span + task->n_spans; span++) {
        int start = span * FG__SPAN;
        const char *next;
        fg__attn_tiles(plan, op, task->seq, head, FG__MAX(range.lo, start), FG__MIN(range.hi, start + FG__SPAN), s->kv,
                       tiles);
        next = fg__attn_ahead(plan, op, task, head, start + FG__SPAN);
        for (first = 0; first < range.m; first += FG__ROW_BLOCK) {
            int m = FG__MIN(FG__ROW_BLOCK, range.m - first);
            bool any = fg__attn_block(plan, op, &range, tiles, next, start, first, m, s);
            if (any && task->partial < 0)
                plan->device->ops.fold(m, n, s->max2, s->sum2, s->acc2, s->max + first, s->sum + first,
                                       s->acc + first * n);
            for (r = 0; r < m && task->partial >= 0; r++) {
                float *out =
                    fg__attn_partial(plan, op, task->partial + (span - task->first_span) * range.m + first + r, head);
                out[0] = any ? s->max2[r] : -INFINITY;
                out[1] = any ? s->sum2[r] : 0.0f;
                if (any) memcpy(out + 2, s->acc2 + r * n, (size_t)n * sizeof(float));
            }
        }
    }
    if (task->partial < 0) fg__attn_store(plan, op, task, &range, head, s);
}

/* Adds the partial results of a task that was split, in the order in which an unsplit one adds them. */
static void fg__attn_merge(fg__cpu_plan *plan, const fg_op *op, const fg__attn_task *task, int head,
                           fg__cpu_scratch *s) {
    fg__attn_range range = fg__attn_range_of(plan, op, task);
    int span, r, n = op->head_dim;
    fg__attn_reset(&range, n, s);
    for (span = 0; span < task->n_spans; span++)
        for (r = 0; r < range.m; r++) {
            const float *part = fg__attn_partial(plan, op, task->partial + span * range.m + r, head);
            if (part[1] == 0.0f && part[0] == -INFINITY) continue; /* the row sees nothing there */
            plan->device->ops.fold(1, n, part, part + 1, part + 2, s->max + r, s->sum + r, s->acc + r * n);
        }
    fg__attn_store(plan, op, task, &range, head, s);
}

static int fg__attn_compare(const void *a, const void *b) {
    double x = ((const fg__attn_task *)a)->cost, y = ((const fg__attn_task *)b)->cost;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Cuts tasks that cost more than their share into pieces of whole spans, while there is room for partial results. */
static void fg__attn_split(fg__cpu_group *own, int n_kv_head, int heads, int n_threads) {
    double total = 0.0, most;
    int i, n = own->n_tasks, used = 0;
    own->n_merges = 0;
    for (i = 0; i < n; i++) total += own->tasks[i].cost;
    most = total * n_kv_head / (2.0 * n_threads);
    for (i = 0; i < n && n_threads > 1; i++) {
        fg__attn_task whole = own->tasks[i];
        int m = whole.n_tokens * heads, pieces = FG__MIN(whole.n_spans, (int)(whole.cost / most) + 1), p, span = 0;
        if (pieces < 2 || whole.cost <= most || used + m * whole.n_spans > own->n_partials) continue;
        if (own->n_tasks + pieces > own->max_tasks) continue;
        whole.partial = used;
        used += m * whole.n_spans;
        own->merges[own->n_merges++] = whole;
        for (p = 0; p < pieces; p++) {
            fg__attn_task *piece = p ? &own->tasks[own->n_tasks++] : &own->tasks[i];
            int end = whole.n_spans * (p + 1) / pieces;
            *piece = whole;
            piece->first_span = whole.first_span + span;
            piece->n_spans = end - span;
            piece->partial = whole.partial + span * m;
            piece->cost = whole.cost * piece->n_spans / whole.n_spans;
            span = end;
        }
    }
}

/* The pieces of attention of this pass, the same for all layers of a group. */
static void fg__attn_plan(fg__cpu_plan *plan, int index) {
    const fg_batch *batch = plan->batch;
    const fg_group *group = &plan->graph->groups[index];
    fg__cpu_group *own = &plan->groups[index];
    int seq, token, heads = own->n_head / group->n_kv_head;
    own->n_tasks = 0;
    for (seq = 0; seq < batch->n_seqs; seq++)
        for (token = batch->cu_q[seq]; token < batch->cu_q[seq + 1]; token += own->tile_tokens) {
            fg__attn_task *task = &own->tasks[own->n_tasks++];
            int lo, hi;
            task->seq = seq;
            task->token = token;
            task->n_tokens = FG__MIN(own->tile_tokens, batch->cu_q[seq + 1] - token);
            lo = fg__attn_first(group, fg__attn_position(batch, seq, token));
            hi = fg__attn_position(batch, seq, token) + task->n_tokens;
            task->first_span = lo / FG__SPAN;
            task->n_spans = (hi - 1) / FG__SPAN - task->first_span + 1;
            task->partial = -1;
            task->cost = (double)(task->n_tokens * heads + 4) * (hi - lo + 16);
        }
    fg__attn_split(own, group->n_kv_head, heads, plan->device->pool.n_threads);
    qsort(own->tasks, (size_t)own->n_tasks, sizeof(*own->tasks), fg__attn_compare);
}

/* ---- Sampling. ---- */

static int fg__cpu_sample_pieces(const fg_op *op) { return (op->n + FG__SAMPLE_PIECE - 1) / FG__SAMPLE_PIECE; }

static void fg__cpu_sample(fg__cpu_plan *plan, const fg_op *op, int item) {
    int pieces = fg__cpu_sample_pieces(op), column = item % pieces * FG__SAMPLE_PIECE;
    plan->device->ops.sample(fg__cpu_row(plan, op->src, item / pieces) + column,
                             FG__MIN(FG__SAMPLE_PIECE, op->n - column), &plan->parts[item]);
}

static void fg__cpu_choose(fg__cpu_plan *plan, const fg_op *op, int row) {
    int pieces = fg__cpu_sample_pieces(op), best = 0, i;
    const fg__sample_part *part = &plan->parts[row * pieces];
    fg_row_result *result = &plan->rows[row];
    float sum = 0.0f;
    for (i = 1; i < pieces; i++)
        if (part[i].max > part[best].max) best = i;
    for (i = 0; i < pieces; i++)
        if (part[i].sum > 0.0f) sum += part[i].sum * expf(part[i].max - part[best].max);
    result->token = best * FG__SAMPLE_PIECE + part[best].token;
    result->logit = part[best].max;
    result->log_sum_exp = sum > 0.0f ? part[best].max + logf(sum) : part[best].max;
}

/* ---- Running a pass. ---- */

static int fg__cpu_stage_rows(const fg__cpu_plan *plan, const fg__cpu_stage *stage) {
    return stage->per_row ? plan->batch->n_rows : plan->batch->n_tokens;
}

static void fg__cpu_stage_run(fg__cpu_plan *plan, const fg__cpu_stage *stage, int from, int to) {
    const fg_op *op = &plan->graph->ops[stage->first];
    switch (stage->type) {
    case FG__STAGE_ROPE: fg__cpu_rope_rows(plan, &plan->ropes[stage->first], from, to); break;
    case FG_OP_EMBED: fg__cpu_embed(plan, op, from, to); break;
    case FG_OP_NORM: fg__cpu_norm(plan, op, from, to); break;
    case FG_OP_GEMM: fg__gemm_pack_acts(plan, stage, from, to); break;
    case FG_OP_ROPE_KV: fg__cpu_rope_kv(plan, op, stage->first, from, to); break;
    case FG_OP_ACT_MUL: fg__cpu_act_mul(plan, op, from, to); break;
    default: fg__cpu_gather(plan, op, from, to); break;
    }
}

/* Rows are cut into a few pieces for each thread. */
static int fg__cpu_row_pieces(const fg__cpu_plan *plan, int n_rows) {
    int n_threads = plan->device->pool.n_threads;
    return n_threads == 1 ? FG__MIN(n_rows, 1) : FG__MIN(n_rows, 4 * n_threads);
}

static int fg__cpu_pass_begin(void *user, int index) {
    fg__cpu_plan *plan = (fg__cpu_plan *)user;
    const fg__cpu_stage *stage;
    const fg_op *op;
    if (index == plan->n_phases) return -1;
    plan->phase = &plan->phases[index];
    stage = &plan->stages[plan->phase->first];
    op = &plan->graph->ops[stage->first];
    switch (plan->phase->type) {
    case FG__PHASE_ROWS: return fg__cpu_row_pieces(plan, fg__cpu_stage_rows(plan, stage));
    case FG__PHASE_GEMM:
        return fg__run_count(fg__gemm_items(plan, stage, fg__cpu_stage_rows(plan, stage)),
                             plan->device->pool.n_threads);
    case FG__PHASE_ATTENTION: return plan->groups[op->group].n_tasks * op->n_kv_head;
    case FG__PHASE_MERGE: return plan->groups[op->group].n_merges * op->n_kv_head;
    case FG__PHASE_SAMPLE: return plan->batch->n_rows * fg__cpu_sample_pieces(op);
    default: return plan->batch->n_rows;
    }
}

static void fg__cpu_rows_run(fg__cpu_plan *plan, const fg__cpu_phase *phase, int piece) {
    int n_rows = fg__cpu_stage_rows(plan, &plan->stages[phase->first]), pieces = fg__cpu_row_pieces(plan, n_rows), i;
    int from = (int)((int64_t)n_rows * piece / pieces), to = (int)((int64_t)n_rows * (piece + 1) / pieces);
    for (i = 0; i < phase->n; i++) fg__cpu_stage_run(plan, &plan->stages[phase->first + i], from, to);
}

static void fg__cpu_pass_run(void *user, int piece, int thread) {
    fg__cpu_plan *plan = (fg__cpu_plan *)user;
    const fg__cpu_stage *stage = &plan->stages[plan->phase->first];
    const fg_op *op = &plan->graph->ops[stage->first];
    fg__cpu_scratch *scratch = &plan->scratch[thread];
    switch (plan->phase->type) {
    case FG__PHASE_ROWS: fg__cpu_rows_run(plan, plan->phase, piece); break;
    case FG__PHASE_GEMM: fg__gemm_run(plan, stage, fg__cpu_stage_rows(plan, stage), piece, thread); break;
    case FG__PHASE_ATTENTION:
        fg__attn_task_run(plan, op, &plan->groups[op->group].tasks[piece / op->n_kv_head], piece % op->n_kv_head,
                           scratch);
        break;
    case FG__PHASE_MERGE:
        fg__attn_merge(plan, op, &plan->groups[op->group].merges[piece / op->n_kv_head], piece % op->n_kv_head,
                           scratch);
        break;
    case FG__PHASE_SAMPLE: fg__cpu_sample(plan, op, piece); break;
    default: fg__cpu_choose(plan, op, piece); break;
    }
}

/* The pass runs here, on this thread and the pool's; wait only hands out the results. */
static fg_result fg__cpu_submit(fg_device *handle, fg_plan *plan_handle, const fg_batch *batch) {
    fg__cpu_device *device = (fg__cpu_device *)handle;
    fg__cpu_plan *plan = (fg__cpu_plan *)plan_handle;
    fg__job job;
    int i;
    job.begin = fg__cpu_pass_begin;
    job.run = fg__cpu_pass_run;
    job.user = plan;
    plan->batch = batch;
    if (!fg__batch_check(plan->graph, batch)) {
        plan->batch = NULL;
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "the batch names tokens, rows or KV blocks that do not exist");
    }
    for (i = 0; i < plan->graph->n_groups; i++)
        if (plan->groups[i].n_head) fg__attn_plan(plan, i);
    fg__pool_run(&device->pool, &job);
    plan->want_logits = batch->want_logits;
    plan->batch = NULL;
    return FG_OK;
}

static fg_result fg__cpu_wait(fg_device *handle, fg_plan *plan_handle, fg_output *output) {
    fg__cpu_plan *plan = (fg__cpu_plan *)plan_handle;
    (void)handle;
    memset(output, 0, sizeof(*output));
    if (plan->sample_op < 0) return FG_OK;
    output->rows = plan->rows;
    if (plan->want_logits) output->logits = plan->slots[plan->graph->ops[plan->sample_op].src].data;
    return FG_OK;
}

static fg_result fg__cpu_copy_blocks(fg_device *handle, fg_plan *plan_handle, const fg_block_copy *copies, int n) {
    fg__cpu_plan *plan = (fg__cpu_plan *)plan_handle;
    int i;
    (void)handle;
    for (i = 0; i < n; i++) {
        const fg_block_copy *copy = &copies[i];
        fg__cpu_group *own = &plan->groups[copy->group & (FG_MAX_GROUPS - 1)];
        int n_blocks =
            copy->group >= 0 && copy->group < plan->graph->n_groups ? plan->graph->groups[copy->group].n_blocks : 0;
        if (copy->from < 0 || copy->from >= n_blocks || copy->to < 0 || copy->to >= n_blocks)
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "block %d or %d of group %d does not exist", copy->from,
                            copy->to, copy->group);
        if (copy->from != copy->to)
            memcpy(own->pool.data + (size_t)copy->to * own->block_bytes,
                   own->pool.data + (size_t)copy->from * own->block_bytes, own->block_bytes);
    }
    return FG_OK;
}

static fg_result fg__cpu_swap_blocks(fg_device *handle, fg_plan *plan_handle, int group, const int32_t *blocks, int n, void *host, bool out,
                                     size_t *block_bytes) {
    fg__cpu_plan *plan = (fg__cpu_plan *)plan_handle;
    size_t bytes = plan->groups[group].block_bytes;
    int i;
    (void)handle;
    if (block_bytes) *block_bytes = bytes;
    for (i = 0; host && i < n; i++) {
        char *block = plan->groups[group].pool.data + (size_t)blocks[i] * bytes, *copy = (char *)host + (size_t)i * bytes;
        memcpy(out ? copy : block, out ? block : copy, bytes);
    }
    return FG_OK;
}

/* ---- Roofs. ---- */

#define FG__PROFILE_BYTES ((size_t)192 << 20)

typedef struct fg__profile {
    fg__cpu_device *device;
    char *data;
    int what; /* 0: touch memory, 1: read it, 2: int8 products, 3: float products */
    int rounds;
    double *amounts; /* of each thread: bytes or operations; 16 apart */
    uint64_t *sinks;
} fg__profile;

static int fg__profile_begin(void *user, int phase) {
    return phase == 0 ? ((fg__profile *)user)->device->pool.n_threads : -1;
}

/* One piece for each thread. */
static void fg__profile_run(void *user, int piece, int thread) {
    fg__profile *p = (fg__profile *)user;
    size_t n_threads = (size_t)p->device->pool.n_threads, share = FG__PROFILE_BYTES / n_threads / 4096 * 4096;
    char *data = p->data + share * (size_t)piece;
    double *amount = &p->amounts[16 * piece];
    (void)thread;
    if (p->what == 0) memset(data, piece + 1, share);
    if (p->what == 1) p->sinks[16 * piece] += p->device->ops.read(data, share);
    if (p->what <= 1) *amount = (double)share;
    if (p->what == 2) *amount = p->device->ops.int8_products(p->rounds);
    if (p->what == 3) *amount = p->device->ops.float_products(p->rounds);
}

/* Amount per second of the best of several runs. */
static double fg__profile_best(fg__profile *p, int what, int runs) {
    double best = 0.0;
    fg__job job;
    int i, j;
    job.begin = fg__profile_begin;
    job.run = fg__profile_run;
    job.user = p;
    p->what = what;
    for (i = 0; i < runs; i++) {
        double start = fg__now(), total = 0.0, seconds;
        fg__pool_run(&p->device->pool, &job);
        seconds = fg__now() - start;
        for (j = 0; j < p->device->pool.n_threads; j++) total += p->amounts[16 * j];
        if (seconds > 0.0 && total / seconds > best) best = total / seconds;
    }
    return best;
}

static fg_result fg__cpu_profile(fg_device *handle, fg_roofs *roofs) {
    fg__cpu_device *device = (fg__cpu_device *)handle;
    fg__profile p;
    fg__pages pages;
    size_t n_threads = (size_t)device->pool.n_threads;
    p.device = device;
    p.rounds = 200000;
    if (!fg__pages_alloc(&device->env, &pages, FG__PROFILE_BYTES)) return FG_ERROR_OUT_OF_MEMORY;
    p.amounts = (double *)fg__calloc(&device->env, n_threads * 32, sizeof(double));
    if (!p.amounts) {
        fg__pages_free(&device->env, &pages);
        return FG_ERROR_OUT_OF_MEMORY;
    }
    p.data = pages.data;
    p.sinks = (uint64_t *)(void *)(p.amounts + 16 * n_threads);
    (void)fg__profile_best(&p, 0, 1);
    roofs->read_bytes_per_s = fg__profile_best(&p, 1, 6);
    roofs->int8_ops_per_s = fg__profile_best(&p, 2, 5);
    roofs->float_ops_per_s = fg__profile_best(&p, 3, 5);
    fg__free(&device->env, p.amounts);
    fg__pages_free(&device->env, &pages);
    return FG_OK;
}

const fg_backend *fg_backend_cpu(void) {
    static const fg_backend backend = {FG_BACKEND_ABI, sizeof(fg_backend),  "cpu",           fg__cpu_probe,
                                       fg__cpu_open,   fg__cpu_close,       fg__cpu_caps,    fg__cpu_alloc,
                                       fg__cpu_free,   fg__cpu_write,       fg__cpu_read,    fg__cpu_pack,
                                       fg__cpu_unpack, fg__cpu_prepare,     fg__cpu_release, fg__cpu_submit,
                                       fg__cpu_wait,   fg__cpu_copy_blocks, fg__cpu_profile, fg__cpu_swap_blocks};
    return &backend;
}
/* ================================================================================================
   >>cpu_gemm  packed weights and packed activations, shared by the SIMD paths

   A panel holds 32 rows of a weight matrix, in the order in which the kernels read them: runs of 32 rows, each row
   giving the 4 bytes of one lane. It takes exactly the bytes of the rows in the file, and serves one token as well as
   many.

   Quantised types: a panel is a row of units (blocks of 32 or 256 weights, as in the file). A unit holds
     low planes    for each 32 weights: 8, 4 or 2 bits of each quant
     high planes   for each 32 weights: 1 or 2 further bits (Q5, Q6_K, Q3_K)
     bytes         small scales, one run of 32 bytes for each byte that the file's block has
     halves        f16 d, and m or dmin: runs of 32 halves
   A plane of `bits` bits has `bits` words for each row. Weight 4 * step + byte of its 32 stands in that byte of word
   (step % bits), at bit step / bits * bits: so 4-bit quants 0-15 are in the low halves and 16-31 in the high halves.

   Floats: F32 and F16 hold runs of 32 weights with the same k, BF16 runs of 32 pairs (k, k + 1).

   Activations of quantised types are rounded to 8 bits, each 32 with a scale of their own: for every such type, so that
   the weights that read the same activations share them.
   ================================================================================================ */
#if FG__X86 || FG__ARM

#define FG__ALWAYS_INLINE inline __attribute__((always_inline))
/* Before loops of constant length over arrays of registers. */
#if defined(__clang__)
#define FG__UNROLL _Pragma("clang loop unroll(full)")
#else
#define FG__UNROLL _Pragma("GCC unroll 32")
#endif

typedef struct fg__panel_layout {
    fg_type type;
    int blocks;            /* of 32 weights in a unit */
    int bytes;             /* of a unit in one row of the file; a unit of a panel has 32 times as many */
    int low, high;         /* bits of the planes */
    int n_bytes, n_halves; /* for each row */
    int from_low, from_high, from_bytes, from_halves; /* where they are in the file's block */
} fg__panel_layout;

static const fg__panel_layout fg__panel_layouts[] = {
    {FG_TYPE_Q4_0, 1, 18, 4, 0, 0, 1, 2, 0, 0, 0},       {FG_TYPE_Q4_1, 1, 20, 4, 0, 0, 2, 4, 0, 0, 0},
    {FG_TYPE_Q5_0, 1, 22, 4, 1, 0, 1, 6, 2, 0, 0},       {FG_TYPE_Q5_1, 1, 24, 4, 1, 0, 2, 8, 4, 0, 0},
    {FG_TYPE_Q8_0, 1, 34, 8, 0, 0, 1, 2, 0, 0, 0},       {FG_TYPE_Q2_K, 8, 84, 2, 0, 16, 2, 16, 0, 0, 80},
    {FG_TYPE_Q3_K, 8, 110, 2, 1, 12, 1, 32, 0, 96, 108}, {FG_TYPE_Q4_K, 8, 144, 4, 0, 12, 2, 16, 0, 4, 0},
    {FG_TYPE_Q5_K, 8, 176, 4, 1, 12, 2, 48, 16, 4, 0},   {FG_TYPE_Q6_K, 8, 210, 4, 2, 16, 1, 0, 128, 192, 208},
    {FG_TYPE_IQ4_NL, 1, 18, 4, 0, 0, 1, 2, 0, 0, 0},     {FG_TYPE_IQ4_XS, 8, 136, 4, 0, 6, 1, 8, 0, 2, 0},
    {FG_TYPE_MXFP4, 1, 17, 4, 0, 1, 0, 1, 0, 0, 0},
};

/* NULL for float types and unknown ones. */
static const fg__panel_layout *fg__panel_layout_of(fg_type type) {
    int i;
    for (i = 0; i < FG__COUNT(fg__panel_layouts); i++)
        if (fg__panel_layouts[i].type == type) return &fg__panel_layouts[i];
    return NULL;
}

static size_t fg__panel_bytes(fg_type type, int64_t k) {
    if (type == FG_TYPE_BF16) k = (k + 1) / 2 * 2;
    return fg__round_up((size_t)fg_type_bytes(type, k) * FG__PANEL, 64);
}

/* Writes one plane of one row: weight i of 32 is at `shift` in byte i of `from`. Takes two words at a time. */
static FG__ALWAYS_INLINE void fg__pack_plane(const uint8_t *from, int shift, int bits, uint8_t *to) {
    uint64_t steps[4], pairs[2] = {0, 0}, mask = 0x0101010101010101u * ((1u << bits) - 1);
    int i;
    memcpy(steps, from, 32);
    for (i = 0; i < 4; i++) steps[i] = steps[i] >> shift & mask;
    if (bits == 4) {
        pairs[0] = steps[0] | steps[2] << 4;
        pairs[1] = steps[1] | steps[3] << 4;
    } else {
        pairs[0] = steps[0] | steps[1] << 2 | steps[2] << 4 | steps[3] << 6;
        if (bits == 1) pairs[0] |= pairs[0] >> 32 << 1;
    }
    for (i = 0; i < bits; i++) {
        uint32_t word = (uint32_t)(pairs[i / 2] >> (i % 2 * 32));
        memcpy(to + i * 128, &word, 4);
    }
}

/* The same for Q5_0 and Q5_1, where weight i is bit i of a word. */
static FG__ALWAYS_INLINE void fg__pack_bits(const uint8_t *from, uint8_t *to) {
    uint32_t bits, word = 0;
    int step;
    memcpy(&bits, from, 4);
    for (step = 0; step < 8; step++) /* the product puts bit b of four at bit 8b */
        word |= ((bits >> (4 * step) & 15) * 0x00204081u & 0x01010101u) << step;
    memcpy(to, &word, 4);
}

/* Words that are in the panel's order already. */
static FG__ALWAYS_INLINE void fg__pack_words(const uint8_t *from, int n, uint32_t flip, uint8_t *to) {
    uint32_t word;
    int i;
    for (i = 0; i < n; i++) {
        memcpy(&word, from + 4 * i, 4);
        word ^= flip;
        memcpy(to + i * 128, &word, 4);
    }
}

/* The planes of block b of 32 weights. Q8_0 becomes unsigned, by adding 128. */
static FG__ALWAYS_INLINE void fg__pack_block(int type, const uint8_t *low, const uint8_t *high, int b, uint8_t *to_low,
                                             uint8_t *to_high) {
    switch (type) {
    case FG_TYPE_Q8_0: fg__pack_words(low, 8, 0x80808080u, to_low); break;
    case FG_TYPE_Q2_K:
    case FG_TYPE_Q3_K: fg__pack_plane(low + b / 4 * 32, b % 4 * 2, 2, to_low); break;
    case FG_TYPE_Q4_K:
    case FG_TYPE_Q5_K: fg__pack_plane(low + b / 2 * 32, b % 2 * 4, 4, to_low); break;
    case FG_TYPE_Q6_K: fg__pack_plane(low + b / 4 * 64 + b % 2 * 32, b % 4 / 2 * 4, 4, to_low); break;
    default: fg__pack_words(low + b * 16, 4, 0, to_low); break;
    }
    switch (type) {
    case FG_TYPE_Q5_0:
    case FG_TYPE_Q5_1: fg__pack_bits(high, to_high); break;
    case FG_TYPE_Q3_K:
    case FG_TYPE_Q5_K: fg__pack_plane(high, b, 1, to_high); break;
    case FG_TYPE_Q6_K: fg__pack_plane(high + b / 4 * 32, b % 4 * 2, 2, to_high); break;
    default: break;
    }
}

/* One unit of row `row`. */
static FG__ALWAYS_INLINE void fg__pack_unit(int type, const fg__panel_layout *layout, const uint8_t *from, int row,
                                            uint8_t *to) {
    uint8_t *high = to + layout->blocks * layout->low * 128, *bytes = high + layout->blocks * layout->high * 128;
    uint8_t *halves = bytes + layout->n_bytes * 32;
    int i;
    for (i = 0; i < layout->blocks; i++)
        fg__pack_block(type, from + layout->from_low, from + layout->from_high, i, to + i * layout->low * 128 + row * 4,
                       high + i * layout->high * 128 + row * 4);
    for (i = 0; i < layout->n_bytes; i++) bytes[i * 32 + row] = from[layout->from_bytes + i];
    for (i = 0; i < layout->n_halves; i++) memcpy(halves + i * 64 + row * 2, from + layout->from_halves + i * 2, 2);
}

/* Takes 256 weights of a row and then those of the next one, so that what is written stays in the first-level cache.
   `type` is a constant: any type with the same bits in the same order. */
static FG__ALWAYS_INLINE void fg__pack_rows(int type, const fg__panel_layout *layout, const uint8_t *rows,
                                            size_t row_bytes, int n_rows, int64_t k, uint8_t *to) {
    int64_t unit, first, n_units = k / (32 * layout->blocks), group = 8 / layout->blocks;
    int row;
    for (first = 0; first < n_units; first += group)
        for (row = 0; row < n_rows; row++)
            for (unit = first; unit < FG__MIN(first + group, n_units); unit++)
                fg__pack_unit(type, layout, rows + (size_t)row * row_bytes + unit * layout->bytes, row,
                              to + unit * layout->bytes * FG__PANEL);
}

/* n lanes of `size` bytes of each row. */
static FG__ALWAYS_INLINE void fg__pack_lanes(size_t size, const uint8_t *rows, size_t row_bytes, int n_rows, int64_t n,
                                             uint8_t *to) {
    int64_t i, first;
    int row;
    for (first = 0; first < n; first += 64)
        for (row = 0; row < n_rows; row++)
            for (i = first; i < FG__MIN(first + 64, n); i++)
                memcpy(to + (size_t)(i * FG__PANEL + row) * size, rows + (size_t)row * row_bytes + (size_t)i * size,
                       size);
}

static void fg__pack_bf16(const uint8_t *rows, size_t row_bytes, int n_rows, int64_t k, uint8_t *to) {
    int row;
    fg__pack_lanes(4, rows, row_bytes, n_rows, k / 2, to);
    for (row = 0; k % 2 && row < n_rows; row++)
        memcpy(to + (size_t)(k / 2 * FG__PANEL + row) * 4, rows + (size_t)row * row_bytes + (size_t)(k - 1) * 2, 2);
}

/* See fg__gemm_kernel. `rows` need no alignment. */
static void fg__panel_pack(fg_type type, const void *rows, size_t row_bytes, int n_rows, int64_t k, void *panel) {
    const fg__panel_layout *layout = fg__panel_layout_of(type);
    const uint8_t *from = (const uint8_t *)rows;
    uint8_t *to = (uint8_t *)panel;
    if (n_rows < FG__PANEL || k % 2) memset(panel, 0, fg__panel_bytes(type, k));
    switch ((int)type) {
    case FG_TYPE_F32: fg__pack_lanes(4, from, row_bytes, n_rows, k, to); break;
    case FG_TYPE_F16: fg__pack_lanes(2, from, row_bytes, n_rows, k, to); break;
    case FG_TYPE_BF16: fg__pack_bf16(from, row_bytes, n_rows, k, to); break;
    case FG_TYPE_Q8_0: fg__pack_rows(FG_TYPE_Q8_0, layout, from, row_bytes, n_rows, k, to); break;
    case FG_TYPE_Q5_0:
    case FG_TYPE_Q5_1: fg__pack_rows(FG_TYPE_Q5_0, layout, from, row_bytes, n_rows, k, to); break;
    case FG_TYPE_Q2_K: fg__pack_rows(FG_TYPE_Q2_K, layout, from, row_bytes, n_rows, k, to); break;
    case FG_TYPE_Q3_K: fg__pack_rows(FG_TYPE_Q3_K, layout, from, row_bytes, n_rows, k, to); break;
    case FG_TYPE_Q4_K: fg__pack_rows(FG_TYPE_Q4_K, layout, from, row_bytes, n_rows, k, to); break;
    case FG_TYPE_Q5_K: fg__pack_rows(FG_TYPE_Q5_K, layout, from, row_bytes, n_rows, k, to); break;
    case FG_TYPE_Q6_K: fg__pack_rows(FG_TYPE_Q6_K, layout, from, row_bytes, n_rows, k, to); break;
    default: fg__pack_rows(FG_TYPE_Q4_0, layout, from, row_bytes, n_rows, k, to); break;
    }
}

/* 256 activations x = scale * q. The sums are of q times -128: where a kernel's accumulator starts, because weights are
   multiplied as w + 128. */
typedef struct fg__act_q8 {
    int8_t q[256];
    float scale[8];    /* of 32 */
    int32_t sum[8];    /* of 32 */
    int32_t sum16[16]; /* of 16 */
} fg__act_q8;

static size_t fg__act_q8_bytes(int64_t k) { return (size_t)((k + 255) / 256) * sizeof(fg__act_q8); }

static size_t fg__act_f32_bytes(int64_t k) { return fg__round_up((size_t)k * 4, 64); }

/* What a block's activations are multiplied with, from their largest magnitude. */
static float fg__act_inverse(float max) { return max > 1e-30f ? 127.0f / max : 0.0f; }

static void fg__act_q8_set(fg__act_q8 *a, int b, float max, int32_t sum0, int32_t sum1) {
    a->scale[b] = max / 127.0f;
    a->sum[b] = -128 * (sum0 + sum1);
    a->sum16[2 * b] = -128 * sum0;
    a->sum16[2 * b + 1] = -128 * sum1;
}

/* Zeros follow the row: a kernel may take k in pairs. */
static void fg__act_f32_pack(const float *x, int64_t k, void *packed) {
    memcpy(packed, x, (size_t)k * 4);
    memset((float *)packed + k, 0, fg__act_f32_bytes(k) - (size_t)k * 4);
}

#if FG__X86
static size_t fg__act_bf16_bytes(int64_t k) { return fg__round_up((size_t)k * 2, 64); }
#endif

/* How a quantised weight's panel is summed: w = scale * q, with what is subtracted and how many weights share it. */
typedef enum fg__gemm_form {
    FG__FORM_SIGNED, /* scale * (q - 128), scales of 32 */
    FG__FORM_MIN,    /* scale * q - min, both of 32 */
    FG__FORM_SUB16,  /* scale * (q - 128), scales of 16 */
    FG__FORM_MIN16   /* scale * q - min, scales of 32, minimums of 16 */
} fg__gemm_form;

static fg__gemm_form fg__gemm_form_of(fg_type type) {
    switch ((int)type) {
    case FG_TYPE_Q4_1:
    case FG_TYPE_Q5_1:
    case FG_TYPE_Q4_K:
    case FG_TYPE_Q5_K: return FG__FORM_MIN;
    case FG_TYPE_Q6_K: return FG__FORM_SUB16;
    case FG_TYPE_Q2_K: return FG__FORM_MIN16;
    default: return FG__FORM_SIGNED;
    }
}

/* 256 weights of 32 rows, expanded. It is filled once for all tokens and stays in the first-level cache. Minimums are
   in units of the activations' sums: divided by 128. */
typedef struct fg__gemm_slice {
    uint8_t q[8 * 1024]; /* [block][step of 4 weights][row][4]; unsigned on x86 */
    float scale[16 * FG__PANEL], min[16 * FG__PANEL];
    int32_t factor[16 * FG__PANEL]; /* of 16 quants that are not expanded: Q2_K, Q3_K for few tokens */
} fg__gemm_slice;

/* Expanded 4-bit quants + 128; see >>quant for the values. */
static const uint8_t fg__gemm_tables[3][16] = {
    {120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135}, /* Q4_0 */
    {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241},        /* IQ4_NL, IQ4_XS */
    {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116}, /* MXFP4 */
};

static FG__ALWAYS_INLINE const uint8_t *fg__gemm_table_of(fg_type type) {
    switch ((int)type) {
    case FG_TYPE_Q4_0: return fg__gemm_tables[0];
    case FG_TYPE_IQ4_NL:
    case FG_TYPE_IQ4_XS: return fg__gemm_tables[1];
    case FG_TYPE_MXFP4: return fg__gemm_tables[2];
    default: return NULL;
    }
}
#if FG__X86
/* The type that stands for all with the same planes and form. */
static fg_type fg__gemm_like(fg_type type) {
    if (fg__gemm_table_of(type)) return FG_TYPE_Q4_0;
    return type == FG_TYPE_Q4_K ? FG_TYPE_Q4_1 : type == FG_TYPE_Q5_K ? FG_TYPE_Q5_1 : type;
}
#endif

/* What is added to weights to make them unsigned, where they are not expanded to -128..127. */
static int fg__gemm_offset(fg_type type) {
    switch ((int)type) {
    case FG_TYPE_Q4_0: return 8;
    case FG_TYPE_Q5_0: return 16;
    case FG_TYPE_Q6_K: return 32;
    default: return fg__gemm_form_of(type) == FG__FORM_SIGNED ? 128 : 0;
    }
}

/* What tiles work on: m tokens, and n blocks or lanes of weights, up to 256 of k. */
typedef struct fg__gemm_job {
    const uint8_t *acts;
    size_t stride, out_stride;
    float *out;
    int m, n;
    bool first;          /* sums are set, not added to */
    const uint8_t *next; /* weights to fetch from memory while tiles are computed, */
    int left, each;      /* so many bytes, so many with each block or 8 lanes */
    fg__gemm_form form;
    int offset;   /* added to quants of FG__FORM_SIGNED and SUB16; sums start at -offset * sum(activations) */
    int together; /* AVX2: steps whose products fit 16 bits; 1: as signed */
} fg__gemm_job;

#define FG__GEMM_AHEAD 10240 /* bytes that weights are fetched ahead of their use */

/* The job for the first tokens of a panel. */
static fg__gemm_job fg__gemm_job_make(const void *panel, const void *acts, size_t stride, int m, float *out,
                                      size_t out_stride) {
    fg__gemm_job job;
    job.acts = (const uint8_t *)acts;
    job.stride = stride;
    job.out_stride = out_stride;
    job.out = out;
    job.m = m;
    job.n = job.left = job.each = 0;
    job.first = true;
    job.form = FG__FORM_SIGNED;
    job.offset = job.together = 0;
    job.next = (const uint8_t *)panel + FG__GEMM_AHEAD;
    return job;
}

/* Spreads the fetching of `bytes` over `pieces` calls of fg__fetch_ahead. */
static FG__ALWAYS_INLINE void fg__fetch_plan(fg__gemm_job *job, int bytes, int pieces) {
    job->left = bytes;
    job->each = (bytes / pieces + 64) / 64 * 64;
}

static FG__ALWAYS_INLINE void fg__fetch_ahead(fg__gemm_job *job) {
    int i;
    if (job->left <= 0) return;
    for (i = 0; i < job->each; i += 64) __builtin_prefetch(job->next + i);
    job->next += job->each;
    job->left -= job->each;
}
#endif
/* ================================================================================================
   >>cpu_gemm_x86  matrix products with AVX-512 and AVX2
   ================================================================================================ */
#if FG__X86

/* ---- activations, for both */

FG__TARGET_AVX2 static FG__ALWAYS_INLINE __m256 fg__act_load_256(const float *x, __m256 *max) {
    __m256 v = _mm256_loadu_ps(x);
    *max = _mm256_max_ps(*max, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v));
    return v;
}

FG__TARGET_AVX2 static FG__ALWAYS_INLINE int32_t fg__sum_256(__m256i a, __m256i b) {
    __m256i v = _mm256_add_epi32(a, b);
    __m128i w = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    w = _mm_add_epi32(w, _mm_shuffle_epi32(w, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(w, _mm_shuffle_epi32(w, 0xb1)));
}

/* Rounds one row, k a multiple of 32. */
FG__TARGET_AVX2 static void fg__act_q8_pack_256(const float *x, int64_t k, void *packed) {
    int64_t i;
    for (i = 0; i < k / 32; i++, x += 32) {
        fg__act_q8 *a = (fg__act_q8 *)packed + i / 8;
        __m256 v[4], all = _mm256_setzero_ps(), inverse;
        __m256i q[4], order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        __m128 half;
        int j;
        FG__UNROLL
        for (j = 0; j < 4; j++) v[j] = fg__act_load_256(x + 8 * j, &all);
        half = _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
        half = _mm_max_ps(half, _mm_movehl_ps(half, half));
        half = _mm_max_ss(half, _mm_movehdup_ps(half));
        inverse = _mm256_set1_ps(fg__act_inverse(_mm_cvtss_f32(half)));
        FG__UNROLL
        for (j = 0; j < 4; j++) q[j] = _mm256_cvtps_epi32(_mm256_mul_ps(v[j], inverse));
        fg__act_q8_set(a, (int)(i % 8), _mm_cvtss_f32(half), fg__sum_256(q[0], q[1]), fg__sum_256(q[2], q[3]));
        q[0] = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        _mm256_storeu_si256((__m256i *)(void *)(a->q + i % 8 * 32), _mm256_permutevar8x32_epi32(q[0], order));
    }
}

/* ---- AVX-512: a register holds one lane of 16 rows, two registers a run of a panel */

#define FG__INLINE512 FG__TARGET_AVX512VNNI static FG__ALWAYS_INLINE
#define FG__TILE512 6  /* tokens: 12 integer and 12 float accumulators */
#define FG__FUSED512 4 /* tokens of a tile that expands weights as it uses them */

typedef uint32_t fg__u32x16 __attribute__((vector_size(64)));
typedef int32_t fg__i32x16 __attribute__((vector_size(64)));

/* `bits` a constant; negative shifts left. */
FG__INLINE512 __m512i fg__shift_512(__m512i v, int bits) {
    return bits < 0 ? (__m512i)((fg__u32x16)v << -bits) : (__m512i)((fg__u32x16)v >> bits);
}

/* Bits number `step` of a plane of `bits` bits, moved to bit `at` of each byte. */
FG__INLINE512 __m512i fg__plane_512(const uint8_t *plane, int bits, int step, int at) {
    __m512i v = _mm512_loadu_si512(plane + step % bits * 128);
    return _mm512_and_si512(fg__shift_512(v, step / bits * bits - at),
                            _mm512_set1_epi8((char)(((1 << bits) - 1) << at)));
}

/* Masks of all ones, which compilers drop: without one, GCC 12 warns of its own header in C++. */
FG__INLINE512 __m512 fg__floats_512(__m512i v) { return _mm512_maskz_cvtepi32_ps(0xffff, v); }

FG__INLINE512 __m512 fg__halves_512(const uint8_t *from) {
    return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i *)from));
}

FG__INLINE512 __m512i fg__bytes_512(const uint8_t *from) {
    return _mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128((const __m128i *)from));
}

FG__INLINE512 __m512i fg__planes_512(const uint8_t *low, int low_bits, const uint8_t *high, int high_bits, int step) {
    return _mm512_or_si512(fg__plane_512(low, low_bits, step, 0), fg__plane_512(high, high_bits, step, low_bits));
}

/* The weights of up to 256 k of a panel: planes of block b at low + b * low_stride, ... */
typedef struct fg__weights_512 {
    const uint8_t *low, *high, *bytes;
    size_t low_stride, high_stride;
    __m512i table; /* to be indexed, or added */
} fg__weights_512;

/* Step `step` of block b of 16 rows, as the unsigned operand of the dot product. Constant `type`: one that stands for
   all with the same planes. Q2_K and Q3_K come without their scales. */
FG__INLINE512 __m512i fg__weight_512(fg_type type, const fg__weights_512 *w, int b, int half, int step) {
    const uint8_t *low = w->low + b * w->low_stride + half, *high = w->high + b * w->high_stride + half;
    switch ((int)type) {
    case FG_TYPE_Q4_0: return _mm512_shuffle_epi8(w->table, fg__plane_512(low, 4, step, 0));
    case FG_TYPE_Q4_1: return fg__plane_512(low, 4, step, 0);
    case FG_TYPE_Q5_0: return _mm512_add_epi8(fg__planes_512(low, 4, high, 1, step), w->table);
    case FG_TYPE_Q5_1: return fg__planes_512(low, 4, high, 1, step);
    case FG_TYPE_Q6_K: return _mm512_add_epi8(fg__planes_512(low, 4, high, 2, step), w->table);
    case FG_TYPE_Q2_K: return fg__plane_512(low, 2, step, 0);
    case FG_TYPE_Q3_K: return fg__planes_512(low, 2, high, 1, step);
    default: return _mm512_loadu_si512(low + step * 128); /* Q8_0, and what is expanded */
    }
}

/* The scale of 16 weights number i of Q3_K, plus 32. */
FG__INLINE512 __m512i fg__scale_q3_512(const uint8_t *bytes, int i) {
    __m512i low = fg__bytes_512(bytes + i % 8 * 32), high = fg__bytes_512(bytes + (8 + i % 4) * 32);
    low = _mm512_and_si512(fg__shift_512(low, i / 8 * 4), _mm512_set1_epi32(15));
    high = _mm512_and_si512(fg__shift_512(high, i / 4 * 2 - 4), _mm512_set1_epi32(48));
    return _mm512_or_si512(low, high);
}

/* Each 32-bit lane indexes bytes of its own. */
FG__INLINE512 __m512i fg__lookup_512(__m512i table, __m512i index) {
    return _mm512_shuffle_epi8(table, _mm512_or_si512(index, _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0)));
}

/* scale * q of 16 weights number i of Q2_K, by a table in the lane of each row. */
FG__INLINE512 void fg__expand_q2_512(const fg__weights_512 *w, int b, int part, int half, uint8_t *q) {
    __m512i scale = _mm512_and_si512(fg__bytes_512(w->bytes + (2 * b + part) * 32 + half / 4), _mm512_set1_epi32(15));
    __m512i table = _mm512_mullo_epi32(scale, _mm512_set1_epi32(0x03020100));
    int step;
    FG__UNROLL
    for (step = part * 4; step < part * 4 + 4; step++)
        _mm512_storeu_si512(q + step * 128 + half,
                            fg__lookup_512(table, fg__weight_512(FG_TYPE_Q2_K, w, b, half, step)));
}

/* 128 - (scale - 32) * (q - 4) of Q3_K: 4 * scale + low * (32 - scale), and 128 - 4 * scale more with the high bit. */
FG__INLINE512 void fg__expand_q3_512(const fg__weights_512 *w, int b, int part, int half, uint8_t *q) {
    const uint8_t *low = w->low + b * w->low_stride + half, *high = w->high + b * w->high_stride + half;
    __m512i scale = fg__scale_q3_512(w->bytes + half / 4, 2 * b + part), table, more;
    int step;
    table = _mm512_add_epi32(_mm512_mullo_epi32(scale, _mm512_set1_epi32(0x01020304)), _mm512_set1_epi32(0x60402000));
    more = _mm512_sub_epi32(_mm512_set1_epi32(128), fg__shift_512(scale, -2));
    more = fg__shift_512(_mm512_and_si512(more, _mm512_set1_epi32(255)), -8);
    FG__UNROLL
    for (step = part * 4; step < part * 4 + 4; step++)
        _mm512_storeu_si512(q + step * 128 + half,
                            _mm512_add_epi8(fg__lookup_512(table, fg__plane_512(low, 2, step, 0)),
                                            fg__lookup_512(more, fg__plane_512(high, 1, step, 0))));
}

/* Expands n blocks to bytes. */
FG__INLINE512 void fg__expand_512(fg_type type, const fg__weights_512 *w, int n, uint8_t *q) {
    int b, half, step;
    for (b = 0; b < n; b++, q += 1024) {
        FG__UNROLL
        for (half = 0; half < 128; half += 64) {
            if (type == FG_TYPE_Q2_K) {
                fg__expand_q2_512(w, b, 0, half, q);
                fg__expand_q2_512(w, b, 1, half, q);
            } else if (type == FG_TYPE_Q3_K) {
                fg__expand_q3_512(w, b, 0, half, q);
                fg__expand_q3_512(w, b, 1, half, q);
            } else {
                FG__UNROLL
                for (step = 0; step < 8; step++)
                    _mm512_storeu_si512(q + step * 128 + half, fg__weight_512(type, w, b, half, step));
            }
        }
    }
}

/* Scale and minimum of block b of Q4_K and Q5_K: see fg__scale_min. */
FG__INLINE512 void fg__scale_min_512(const uint8_t *bytes, int b, __m512i *scale, __m512i *min) {
    __m512i low, high;
    if (b < 4) {
        *scale = _mm512_and_si512(fg__bytes_512(bytes + b * 32), _mm512_set1_epi32(63));
        *min = _mm512_and_si512(fg__bytes_512(bytes + (b + 4) * 32), _mm512_set1_epi32(63));
        return;
    }
    low = fg__bytes_512(bytes + (b + 4) * 32);
    high = _mm512_set1_epi32(48);
    *scale = _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi32(15)),
                             _mm512_and_si512(fg__shift_512(fg__bytes_512(bytes + (b - 4) * 32), 2), high));
    *min =
        _mm512_or_si512(fg__shift_512(low, 4), _mm512_and_si512(fg__shift_512(fg__bytes_512(bytes + b * 32), 2), high));
}

/* The scale of block b of IQ4_XS. */
FG__INLINE512 __m512i fg__scale_iq4_512(const uint8_t *bytes, int b) {
    __m512i low = fg__bytes_512(bytes + (2 + b / 2) * 32), high = fg__bytes_512(bytes + b / 4 * 32);
    low = _mm512_and_si512(fg__shift_512(low, b % 2 * 4), _mm512_set1_epi32(15));
    high = _mm512_and_si512(fg__shift_512(high, b % 4 * 2 - 4), _mm512_set1_epi32(48));
    return _mm512_sub_epi32(_mm512_or_si512(low, high), _mm512_set1_epi32(32));
}

/* 2^(e-128), as fg__mxfp4_half_scale. */
FG__INLINE512 __m512 fg__scale_mxfp4_512(const uint8_t *bytes) {
    __m512i e = fg__bytes_512(bytes), small = fg__shift_512(_mm512_add_epi32(e, _mm512_set1_epi32(1)), -21);
    __mmask16 tiny = _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2));
    e = fg__shift_512(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), -23);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(e, tiny, small));
}

/* Scales and minimums of block b of a unit, 16 rows. */
FG__INLINE512 void fg__scales_512(fg_type type, const fg__panel_layout *layout, const uint8_t *unit, int b, int half,
                                  float *scale, float *min, int32_t *factor) {
    const uint8_t *bytes = unit + layout->blocks * (layout->low + layout->high) * 128 + half / 4;
    const uint8_t *halves = bytes + layout->n_bytes * 32 + half / 4;
    __m512 d = layout->n_halves ? fg__halves_512(halves) : _mm512_setzero_ps(), m = d;
    __m512i s, s2;
    if (layout->n_halves == 2)
        m = _mm512_mul_ps(fg__halves_512(halves + 64), _mm512_set1_ps(layout->blocks == 1 ? -1.0f / 128 : 1.0f / 128));
    switch ((int)type) {
    case FG_TYPE_Q4_1:
    case FG_TYPE_Q5_1: _mm512_storeu_ps(min, m); break;
    case FG_TYPE_Q4_K:
    case FG_TYPE_Q5_K:
        fg__scale_min_512(bytes, b, &s, &s2);
        d = _mm512_mul_ps(d, fg__floats_512(s));
        _mm512_storeu_ps(min, _mm512_mul_ps(m, fg__floats_512(s2)));
        break;
    case FG_TYPE_Q2_K:
        s = fg__bytes_512(bytes + 2 * b * 32);
        s2 = fg__bytes_512(bytes + (2 * b + 1) * 32);
        _mm512_storeu_ps(min, _mm512_mul_ps(m, fg__floats_512(fg__shift_512(s, 4))));
        _mm512_storeu_ps(min + FG__PANEL, _mm512_mul_ps(m, fg__floats_512(fg__shift_512(s2, 4))));
        _mm512_storeu_si512(factor, _mm512_and_si512(s, _mm512_set1_epi32(15)));
        _mm512_storeu_si512(factor + FG__PANEL, _mm512_and_si512(s2, _mm512_set1_epi32(15)));
        break;
    case FG_TYPE_Q3_K:
        _mm512_storeu_si512(factor, _mm512_sub_epi32(_mm512_set1_epi32(32), fg__scale_q3_512(bytes, 2 * b)));
        _mm512_storeu_si512(factor + FG__PANEL,
                            _mm512_sub_epi32(_mm512_set1_epi32(32), fg__scale_q3_512(bytes, 2 * b + 1)));
        d = _mm512_sub_ps(_mm512_setzero_ps(), d);
        break;
    case FG_TYPE_Q6_K:
        s = _mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128((const __m128i *)(const void *)(bytes + 2 * b * 32)));
        s2 = _mm512_maskz_cvtepi8_epi32(0xffff,
                                        _mm_loadu_si128((const __m128i *)(const void *)(bytes + (2 * b + 1) * 32)));
        _mm512_storeu_ps(scale + FG__PANEL, _mm512_mul_ps(d, fg__floats_512(s2)));
        d = _mm512_mul_ps(d, fg__floats_512(s));
        break;
    case FG_TYPE_IQ4_XS: d = _mm512_mul_ps(d, fg__floats_512(fg__scale_iq4_512(bytes, b))); break;
    case FG_TYPE_MXFP4: d = fg__scale_mxfp4_512(bytes); break;
    default: break;
    }
    _mm512_storeu_ps(scale, d);
}

/* The same for n blocks. `type` and `layout` are constants. */
FG__INLINE512 void fg__slice_scales_512(fg_type type, const fg__panel_layout *layout, const uint8_t *from, int n,
                                        fg__gemm_slice *to) {
    const int unit_bytes = layout->bytes * FG__PANEL;
    float *scale = to->scale, *min = to->min;
    int b;
    for (b = 0; b < n; b++) {
        const uint8_t *unit = from + b / layout->blocks * unit_bytes;
        fg__scales_512(type, layout, unit, b % layout->blocks, 0, scale, min, to->factor + 2 * b * FG__PANEL);
        fg__scales_512(type, layout, unit, b % layout->blocks, 64, scale + 16, min + 16,
                       to->factor + 2 * b * FG__PANEL + 16);
        scale += type == FG_TYPE_Q6_K ? 2 * FG__PANEL : FG__PANEL;
        min += type == FG_TYPE_Q2_K ? 2 * FG__PANEL : FG__PANEL;
    }
}

FG__TARGET_AVX512VNNI static void fg__unpack_scales_512(fg_type type, const uint8_t *from, int n, fg__gemm_slice *to) {
    switch ((int)type) {
    case FG_TYPE_Q4_0:
    case FG_TYPE_IQ4_NL: fg__slice_scales_512(FG_TYPE_Q4_0, &fg__panel_layouts[0], from, n, to); break;
    case FG_TYPE_Q4_1: fg__slice_scales_512(FG_TYPE_Q4_1, &fg__panel_layouts[1], from, n, to); break;
    case FG_TYPE_Q5_0: fg__slice_scales_512(FG_TYPE_Q5_0, &fg__panel_layouts[2], from, n, to); break;
    case FG_TYPE_Q5_1: fg__slice_scales_512(FG_TYPE_Q5_1, &fg__panel_layouts[3], from, n, to); break;
    case FG_TYPE_Q8_0: fg__slice_scales_512(FG_TYPE_Q8_0, &fg__panel_layouts[4], from, n, to); break;
    case FG_TYPE_Q2_K: fg__slice_scales_512(FG_TYPE_Q2_K, &fg__panel_layouts[5], from, n, to); break;
    case FG_TYPE_Q3_K: fg__slice_scales_512(FG_TYPE_Q3_K, &fg__panel_layouts[6], from, n, to); break;
    case FG_TYPE_Q4_K: fg__slice_scales_512(FG_TYPE_Q4_K, &fg__panel_layouts[7], from, n, to); break;
    case FG_TYPE_Q5_K: fg__slice_scales_512(FG_TYPE_Q5_K, &fg__panel_layouts[8], from, n, to); break;
    case FG_TYPE_Q6_K: fg__slice_scales_512(FG_TYPE_Q6_K, &fg__panel_layouts[9], from, n, to); break;
    case FG_TYPE_IQ4_XS: fg__slice_scales_512(FG_TYPE_IQ4_XS, &fg__panel_layouts[11], from, n, to); break;
    default: fg__slice_scales_512(FG_TYPE_MXFP4, &fg__panel_layouts[12], from, n, to); break;
    }
}

FG__TARGET_AVX512VNNI static void fg__unpack_512(fg_type type, const fg__weights_512 *w, int n, uint8_t *q) {
    switch ((int)fg__gemm_like(type)) {
    case FG_TYPE_Q4_0: fg__expand_512(FG_TYPE_Q4_0, w, n, q); break;
    case FG_TYPE_Q4_1: fg__expand_512(FG_TYPE_Q4_1, w, n, q); break;
    case FG_TYPE_Q5_0: fg__expand_512(FG_TYPE_Q5_0, w, n, q); break;
    case FG_TYPE_Q5_1: fg__expand_512(FG_TYPE_Q5_1, w, n, q); break;
    case FG_TYPE_Q2_K: fg__expand_512(FG_TYPE_Q2_K, w, n, q); break;
    case FG_TYPE_Q3_K: fg__expand_512(FG_TYPE_Q3_K, w, n, q); break;
    default: fg__expand_512(FG_TYPE_Q6_K, w, n, q); break;
    }
}

FG__INLINE512 void fg__tile_start_512(int nt, __m512 sums[][2]) {
    int t;
    FG__UNROLL
    for (t = 0; t < nt; t++) sums[t][0] = sums[t][1] = _mm512_setzero_ps();
}

/* Adds the sums of a tile to the output, or sets it when they are the first. */
FG__INLINE512 void fg__tile_end_512(int nt, __m512 sums[][2], const fg__gemm_job *job) {
    int t, i;
    FG__UNROLL
    for (t = 0; t < nt; t++) {
        FG__UNROLL
        for (i = 0; i < 2; i++) {
            float *to = job->out + t * job->out_stride + 16 * i;
            _mm512_storeu_ps(to, job->first ? sums[t][i] : _mm512_add_ps(sums[t][i], _mm512_loadu_ps(to)));
        }
    }
}

/* A tile: 32 rows, nt tokens, blocks of 32 weights. The operations on one output are the same for every nt. */
FG__INLINE512 void fg__tile_q8_512(fg_type type, fg__gemm_form form, int nt, const fg__weights_512 *w,
                                   const fg__gemm_slice *s, fg__gemm_job *job) {
    const bool factors = type == FG_TYPE_Q2_K || type == FG_TYPE_Q3_K;
    const int parts = form == FG__FORM_SUB16 || factors ? 2 : 1, scales = form == FG__FORM_SUB16 ? 2 : 1;
    const int minimums = form == FG__FORM_MIN ? 1 : form == FG__FORM_MIN16 ? 2 : 0;
    const float *scale = s->scale, *min = s->min;
    const uint8_t *acts = job->acts;
    const size_t stride = job->stride;
    __m512 f[FG__TILE512][2], v[FG__TILE512][2], sum;
    __m512i part0[FG__TILE512][2];
    int b, i, j, t, step, part, x;
    fg__tile_start_512(nt, f);
    for (b = 0; b < job->n; b++, scale += scales * FG__PANEL, min += minimums * FG__PANEL) {
        fg__fetch_ahead(job);
        if (nt > 4 && b < 6) { /* a line of each of the next tile's activations */
            FG__UNROLL
            for (t = 0; t < nt; t++) __builtin_prefetch(acts + (nt + t) * stride + b * 64);
        }
        FG__UNROLL
        for (part = 0; part < parts; part++) {
            __m512i acc[FG__TILE512][2], w0, w1;
            FG__UNROLL
            for (t = 0; t < nt; t++) {
                const fg__act_q8 *a = (const fg__act_q8 *)(const void *)(acts + t * stride);
                acc[t][0] = _mm512_setzero_si512();
                if (form == FG__FORM_SIGNED && !factors) acc[t][0] = _mm512_set1_epi32(a->sum[b]);
                if (form == FG__FORM_SUB16) acc[t][0] = _mm512_set1_epi32(a->sum16[2 * b + part]);
                if (type == FG_TYPE_Q3_K) /* -4 times the sum */
                    acc[t][0] = (__m512i)((fg__i32x16)_mm512_set1_epi32(a->sum16[2 * b + part]) >> 5);
                acc[t][1] = acc[t][0];
            }
            FG__UNROLL
            for (step = part * 8 / parts; step < (part + 1) * 8 / parts; step++) {
                w0 = fg__weight_512(type, w, b, 0, step);
                w1 = fg__weight_512(type, w, b, 64, step);
                FG__UNROLL
                for (t = 0; t < nt; t++) {
                    memcpy(&x, acts + t * stride + b * 32 + step * 4, 4);
                    acc[t][0] = _mm512_dpbusd_epi32(acc[t][0], w0, _mm512_set1_epi32(x));
                    acc[t][1] = _mm512_dpbusd_epi32(acc[t][1], w1, _mm512_set1_epi32(x));
                }
            }
            FG__UNROLL
            for (i = 0; i < 2; i++) {
                __m512 of_block = _mm512_loadu_ps(scale + (scales == 2 ? part * FG__PANEL : 0) + 16 * i);
                FG__UNROLL
                for (t = 0; t < nt; t++) {
                    if (factors) {
                        acc[t][i] = _mm512_mullo_epi32(
                            acc[t][i], _mm512_loadu_si512(s->factor + (2 * b + part) * FG__PANEL + 16 * i));
                        if (part) acc[t][i] = _mm512_add_epi32(acc[t][i], part0[t][i]);
                        part0[t][i] = acc[t][i];
                    }
                    sum = fg__floats_512(acc[t][i]);
                    v[t][i] = part && !factors ? _mm512_fmadd_ps(sum, of_block, v[t][i]) : _mm512_mul_ps(sum, of_block);
                }
            }
        }
        FG__UNROLL
        for (t = 0; t < nt; t++) {
            const fg__act_q8 *a = (const fg__act_q8 *)(const void *)(acts + t * stride);
            FG__UNROLL
            for (j = 0; j < minimums; j++) {
                sum = fg__floats_512(_mm512_set1_epi32(minimums == 1 ? a->sum[b] : a->sum16[2 * b + j]));
                v[t][0] = _mm512_fmadd_ps(sum, _mm512_loadu_ps(min + j * FG__PANEL), v[t][0]);
                v[t][1] = _mm512_fmadd_ps(sum, _mm512_loadu_ps(min + j * FG__PANEL + 16), v[t][1]);
            }
            f[t][0] = _mm512_fmadd_ps(v[t][0], _mm512_set1_ps(a->scale[b]), f[t][0]);
            f[t][1] = _mm512_fmadd_ps(v[t][1], _mm512_set1_ps(a->scale[b]), f[t][1]);
        }
    }
    fg__tile_end_512(nt, f, job);
}

/* All tokens, in tiles of at most `most` and of equal sizes as far as that goes. `bytes`: see fg__fetch_plan. */
FG__INLINE512 void fg__tiles_q8_512(fg_type type, fg__gemm_form form, int most, const fg__weights_512 *w,
                                    const fg__gemm_slice *s, int bytes, fg__gemm_job job) {
    int nt, tiles = (job.m + most - 1) / most;
    fg__fetch_plan(&job, bytes, tiles * job.n);
    for (; tiles > 0; tiles--, job.m -= nt, job.acts += nt * job.stride, job.out += nt * job.out_stride) {
        nt = (job.m + tiles - 1) / tiles;
        switch (nt) {
        case 1: fg__tile_q8_512(type, form, 1, w, s, &job); break;
        case 2: fg__tile_q8_512(type, form, 2, w, s, &job); break;
        case 3: fg__tile_q8_512(type, form, 3, w, s, &job); break;
        case 4: fg__tile_q8_512(type, form, 4, w, s, &job); break;
        case 5:
            if (most > 4) fg__tile_q8_512(type, form, 5, w, s, &job);
            break;
        default:
            if (most > 4) fg__tile_q8_512(type, form, 6, w, s, &job);
            break;
        }
    }
}

/* Tokens up to which expanding weights in registers, again for each tile, is faster than doing it once in memory. */
static int fg__fused_tokens_512(fg_type type) {
    switch ((int)type) {
    case FG_TYPE_Q8_0: return 0; /* nothing to expand */
    case FG_TYPE_Q2_K:
    case FG_TYPE_Q3_K: return FG__FUSED512;
    case FG_TYPE_Q6_K: return 2 * FG__FUSED512;
    default: return 4 * FG__FUSED512;
    }
}

/* A slice for few tokens. */
FG__TARGET_AVX512VNNI static void fg__slice_fused_512(fg_type type, const fg__weights_512 *w, const fg__gemm_slice *s,
                                                      int bytes, const fg__gemm_job *job) {
    const int most = FG__FUSED512;
    switch ((int)fg__gemm_like(type)) {
    case FG_TYPE_Q4_0: fg__tiles_q8_512(FG_TYPE_Q4_0, FG__FORM_SIGNED, most, w, s, bytes, *job); break;
    case FG_TYPE_Q4_1: fg__tiles_q8_512(FG_TYPE_Q4_1, FG__FORM_MIN, most, w, s, bytes, *job); break;
    case FG_TYPE_Q5_0: fg__tiles_q8_512(FG_TYPE_Q5_0, FG__FORM_SIGNED, most, w, s, bytes, *job); break;
    case FG_TYPE_Q5_1: fg__tiles_q8_512(FG_TYPE_Q5_1, FG__FORM_MIN, most, w, s, bytes, *job); break;
    case FG_TYPE_Q2_K: fg__tiles_q8_512(FG_TYPE_Q2_K, FG__FORM_MIN16, most, w, s, bytes, *job); break;
    case FG_TYPE_Q3_K: fg__tiles_q8_512(FG_TYPE_Q3_K, FG__FORM_SIGNED, most, w, s, bytes, *job); break;
    default: fg__tiles_q8_512(FG_TYPE_Q6_K, FG__FORM_SUB16, most, w, s, bytes, *job); break;
    }
}

/* A slice of bytes, expanded or of Q8_0. */
FG__TARGET_AVX512VNNI static void fg__slice_q8_512(fg__gemm_form form, const fg__weights_512 *w,
                                                   const fg__gemm_slice *s, int bytes, const fg__gemm_job *job) {
    switch (form) {
    case FG__FORM_SIGNED: fg__tiles_q8_512(FG_TYPE_Q8_0, FG__FORM_SIGNED, FG__TILE512, w, s, bytes, *job); break;
    case FG__FORM_MIN: fg__tiles_q8_512(FG_TYPE_Q8_0, FG__FORM_MIN, FG__TILE512, w, s, bytes, *job); break;
    case FG__FORM_SUB16: fg__tiles_q8_512(FG_TYPE_Q8_0, FG__FORM_SUB16, 4, w, s, bytes, *job); break;
    case FG__FORM_MIN16: fg__tiles_q8_512(FG_TYPE_Q8_0, FG__FORM_MIN16, 4, w, s, bytes, *job); break;
    }
}

FG__TARGET_AVX512VNNI static void fg__gemm_q8_512(fg_type type, const void *panel, int64_t k, const void *acts,
                                                  size_t stride, int m, float *out, size_t out_stride) {
    const fg__panel_layout *layout = fg__panel_layout_of(type);
    const int unit_bytes = layout->bytes * FG__PANEL, block_bytes = unit_bytes / layout->blocks;
    const uint8_t *from = (const uint8_t *)panel, *table = fg__gemm_table_of(type);
    uint8_t room[sizeof(fg__gemm_slice) + 64];
    fg__gemm_slice *s = (fg__gemm_slice *)(void *)(room + (64 - (size_t)(uintptr_t)room % 64));
    fg__gemm_job job = fg__gemm_job_make(panel, acts, stride, m, out, out_stride);
    fg__weights_512 w;
    int64_t left;
    w.table = table ? _mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128((const __m128i *)(const void *)table))
                    : _mm512_set1_epi8(type == FG_TYPE_Q6_K ? 96 : 112);
    for (left = k / 32; left > 0;
         left -= 8, from += 8 * block_bytes, job.acts += sizeof(fg__act_q8), job.first = false) {
        job.n = (int)FG__MIN(left, 8);
        job.next = from + FG__GEMM_AHEAD;
        w.low = from;
        w.high = w.low + layout->blocks * layout->low * 128;
        w.bytes = w.high + layout->blocks * layout->high * 128;
        w.low_stride = (size_t)(layout->blocks == 1 ? unit_bytes : layout->low * 128);
        w.high_stride = (size_t)(layout->blocks == 1 ? unit_bytes : layout->high * 128);
        fg__unpack_scales_512(type, from, job.n, s);
        if (m <= fg__fused_tokens_512(type)) {
            fg__slice_fused_512(type, &w, s, job.n * block_bytes, &job);
            continue;
        }
        if (type != FG_TYPE_Q8_0) {
            fg__unpack_512(type, &w, job.n, s->q);
            w.low = s->q;
            w.low_stride = 1024;
        }
        fg__slice_q8_512(fg__gemm_form_of(type), &w, s, job.n * block_bytes, &job);
    }
}

/* Element j of pairs of bfloat16, as floats. */
FG__INLINE512 __m512 fg__half_pair_512(__m512i pairs, int j) {
    return _mm512_castsi512_ps(j ? _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u))
                                 : fg__shift_512(pairs, -16));
}

/* A tile of floats. Lanes of BF16 are pairs, here for CPUs without a dot product of them. */
FG__INLINE512 void fg__tile_f32_512(fg_type type, int nt, const uint8_t *w, fg__gemm_job *job) {
    const int run = type == FG_TYPE_F16 ? 64 : 128, each = type == FG_TYPE_BF16 ? 2 : 1;
    __m512 f[FG__TILE512][2], w0, w1, v;
    int i, j, t;
    float x;
    fg__tile_start_512(nt, f);
    for (i = 0; i < job->n; i++, w += run) {
        if (i % 8 == 0) fg__fetch_ahead(job);
        FG__UNROLL
        for (j = 0; j < each; j++) {
            w0 = type == FG_TYPE_F16 ? fg__halves_512(w) : _mm512_loadu_ps((const float *)(const void *)w);
            w1 = type == FG_TYPE_F16 ? fg__halves_512(w + 32) : _mm512_loadu_ps((const float *)(const void *)(w + 64));
            if (type == FG_TYPE_BF16) {
                w0 = fg__half_pair_512(_mm512_castps_si512(w0), j);
                w1 = fg__half_pair_512(_mm512_castps_si512(w1), j);
            }
            FG__UNROLL
            for (t = 0; t < nt; t++) {
                memcpy(&x, job->acts + t * job->stride + (i * each + j) * 4, 4);
                v = _mm512_set1_ps(x);
                f[t][0] = _mm512_fmadd_ps(w0, v, f[t][0]);
                f[t][1] = _mm512_fmadd_ps(w1, v, f[t][1]);
            }
        }
    }
    fg__tile_end_512(nt, f, job);
}

FG__INLINE512 void fg__tiles_f32_512(fg_type type, const uint8_t *w, int bytes, fg__gemm_job job) {
    int nt, tiles = (job.m + FG__TILE512 - 1) / FG__TILE512;
    fg__fetch_plan(&job, bytes, tiles * ((job.n + 7) / 8));
    for (; tiles > 0; tiles--, job.m -= nt, job.acts += nt * job.stride, job.out += nt * job.out_stride) {
        nt = (job.m + tiles - 1) / tiles;
        switch (nt) {
        case 1: fg__tile_f32_512(type, 1, w, &job); break;
        case 2: fg__tile_f32_512(type, 2, w, &job); break;
        case 3: fg__tile_f32_512(type, 3, w, &job); break;
        case 4: fg__tile_f32_512(type, 4, w, &job); break;
        case 5: fg__tile_f32_512(type, 5, w, &job); break;
        default: fg__tile_f32_512(type, 6, w, &job); break;
        }
    }
}

FG__TARGET_AVX512VNNI static void fg__gemm_f32_512(fg_type type, const void *panel, int64_t k, const void *acts,
                                                   size_t stride, int m, float *out, size_t out_stride) {
    const int run = type == FG_TYPE_F16 ? 64 : 128, lane = type == FG_TYPE_BF16 ? 8 : 4;
    const uint8_t *w = (const uint8_t *)panel;
    fg__gemm_job job = fg__gemm_job_make(panel, acts, stride, m, out, out_stride);
    int64_t left;
    for (left = type == FG_TYPE_BF16 ? (k + 1) / 2 : k; left > 0; left -= 128, job.first = false) {
        job.n = (int)FG__MIN(left, 128);
        job.next = w + FG__GEMM_AHEAD;
        switch ((int)type) {
        case FG_TYPE_F32: fg__tiles_f32_512(FG_TYPE_F32, w, job.n * run, job); break;
        case FG_TYPE_F16: fg__tiles_f32_512(FG_TYPE_F16, w, job.n * run, job); break;
        default: fg__tiles_f32_512(FG_TYPE_BF16, w, job.n * run, job); break;
        }
        w += 128 * run;
        job.acts += 128 * lane;
    }
}

#if FG__HAS_AVXVNNI
#define FG__INLINE512BF16 FG__TARGET_AVX512BF16 static FG__ALWAYS_INLINE

/* A tile of pairs of bfloat16, activations too. */
FG__INLINE512BF16 void fg__tile_bf16_512(int nt, const uint8_t *w, fg__gemm_job *job) {
    __m512 f[FG__TILE512][2];
    __m512i w0, w1, v;
    int i, t, x;
    fg__tile_start_512(nt, f);
    for (i = 0; i < job->n; i++, w += 128) {
        if (i % 8 == 0) fg__fetch_ahead(job);
        w0 = _mm512_loadu_si512(w);
        w1 = _mm512_loadu_si512(w + 64);
        FG__UNROLL
        for (t = 0; t < nt; t++) {
            memcpy(&x, job->acts + t * job->stride + i * 4, 4);
            v = _mm512_set1_epi32(x);
            f[t][0] = _mm512_dpbf16_ps(f[t][0], (__m512bh)w0, (__m512bh)v);
            f[t][1] = _mm512_dpbf16_ps(f[t][1], (__m512bh)w1, (__m512bh)v);
        }
    }
    fg__tile_end_512(nt, f, job);
}

FG__TARGET_AVX512BF16 static void fg__gemm_bf16_512(fg_type type, const void *panel, int64_t k, const void *acts,
                                                    size_t stride, int m, float *out, size_t out_stride) {
    const uint8_t *w = (const uint8_t *)panel, *a = (const uint8_t *)acts;
    fg__gemm_job job = fg__gemm_job_make(panel, acts, stride, m, out, out_stride);
    int64_t left;
    int nt, tiles;
    (void)type;
    for (left = (k + 1) / 2; left > 0; left -= 128, w += 128 * 128, a += 512, job.first = false) {
        tiles = (m + FG__TILE512 - 1) / FG__TILE512;
        job.n = (int)FG__MIN(left, 128);
        job.m = m;
        job.acts = a;
        job.out = out;
        job.next = w + FG__GEMM_AHEAD;
        fg__fetch_plan(&job, job.n * 128, tiles * ((job.n + 7) / 8));
        for (; tiles > 0; tiles--, job.m -= nt, job.acts += nt * job.stride, job.out += nt * job.out_stride) {
            nt = (job.m + tiles - 1) / tiles;
            switch (nt) {
            case 1: fg__tile_bf16_512(1, w, &job); break;
            case 2: fg__tile_bf16_512(2, w, &job); break;
            case 3: fg__tile_bf16_512(3, w, &job); break;
            case 4: fg__tile_bf16_512(4, w, &job); break;
            case 5: fg__tile_bf16_512(5, w, &job); break;
            default: fg__tile_bf16_512(6, w, &job); break;
            }
        }
    }
}

FG__TARGET_AVX512BF16 static void fg__act_bf16_pack_512(const float *x, int64_t k, void *packed) {
    uint16_t *to = (uint16_t *)packed;
    int64_t i;
    for (i = 0; i + 16 <= k; i += 16)
        _mm256_storeu_si256((__m256i *)(void *)(to + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
    for (; i < k; i++) to[i] = fg__f32_to_bf16(x[i]);
    if (k % 2) to[k] = 0;
}
#endif

/* ---- AVX2: a register holds one lane of 8 rows. Weights are always expanded before; tiles have 16 rows. The sums are
   those of AVX-512, bit for bit. */

#define FG__INLINE256 FG__TARGET_AVX2 static FG__ALWAYS_INLINE
#define FG__TILE256 3

typedef uint32_t fg__u32x8 __attribute__((vector_size(32)));

FG__INLINE256 __m256i fg__load_256(const void *from) { return _mm256_loadu_si256((const __m256i *)from); }

FG__INLINE256 __m256i fg__and_256(__m256i v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi32(mask)); }

FG__INLINE256 __m256i fg__shift_256(__m256i v, int bits) {
    return bits < 0 ? (__m256i)((fg__u32x8)v << -bits) : (__m256i)((fg__u32x8)v >> bits);
}

FG__INLINE256 __m256i fg__plane_256(const uint8_t *plane, int bits, int step, int at) {
    __m256i v = fg__shift_256(fg__load_256(plane + step % bits * 128), step / bits * bits - at);
    return _mm256_and_si256(v, _mm256_set1_epi8((char)(((1 << bits) - 1) << at)));
}

FG__INLINE256 __m256i fg__planes_256(const uint8_t *low, int low_bits, const uint8_t *high, int high_bits, int step) {
    return _mm256_or_si256(fg__plane_256(low, low_bits, step, 0), fg__plane_256(high, high_bits, step, low_bits));
}

FG__INLINE256 __m256 fg__halves_256(const uint8_t *from) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from));
}

FG__INLINE256 __m256i fg__bytes_256(const uint8_t *from) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from));
}

/* The scale of 16 weights number i of Q3_K, plus 32. */
FG__INLINE256 __m256i fg__scale_q3_256(const uint8_t *bytes, int i) {
    __m256i low = fg__and_256(fg__shift_256(fg__bytes_256(bytes + i % 8 * 32), i / 8 * 4), 15);
    return _mm256_or_si256(low, fg__and_256(fg__shift_256(fg__bytes_256(bytes + (8 + i % 4) * 32), i / 4 * 2 - 4), 48));
}

FG__INLINE256 __m256i fg__lookup_256(__m256i table, __m256i index) {
    return _mm256_shuffle_epi8(table, _mm256_or_si256(index, _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0,
                                                                               0x04040404, 0x08080808, 0x0c0c0c0c)));
}

/* Step `step` of 8 rows, expanded; see the functions of AVX-512. For Q2_K and Q3_K `table` and `more` are for these 16
   weights. */
FG__INLINE256 __m256i fg__weight_256(fg_type type, const uint8_t *low, const uint8_t *high, __m256i table, __m256i more,
                                     int step) {
    switch ((int)type) {
    case FG_TYPE_Q4_1: return fg__plane_256(low, 4, step, 0);
    case FG_TYPE_IQ4_NL: return _mm256_shuffle_epi8(table, fg__plane_256(low, 4, step, 0));
    case FG_TYPE_Q5_1: return fg__planes_256(low, 4, high, 1, step);
    case FG_TYPE_Q6_K: return fg__planes_256(low, 4, high, 2, step);
    case FG_TYPE_Q2_K: return fg__lookup_256(table, fg__plane_256(low, 2, step, 0));
    case FG_TYPE_Q3_K:
        return _mm256_add_epi8(fg__lookup_256(table, fg__plane_256(low, 2, step, 0)),
                               fg__lookup_256(more, fg__plane_256(high, 1, step, 0)));
    default: return fg__load_256(low + step * 128);
    }
}

/* Tables of 16 weights number i. */
FG__INLINE256 void fg__tables_256(fg_type type, const uint8_t *bytes, int i, __m256i *table, __m256i *more) {
    __m256i scale;
    if (type == FG_TYPE_Q2_K) {
        *table = _mm256_mullo_epi32(fg__and_256(fg__bytes_256(bytes + i * 32), 15), _mm256_set1_epi32(0x03020100));
    } else if (type == FG_TYPE_Q3_K) {
        scale = fg__scale_q3_256(bytes, i);
        *table =
            _mm256_add_epi32(_mm256_mullo_epi32(scale, _mm256_set1_epi32(0x01020304)), _mm256_set1_epi32(0x60402000));
        *more = fg__shift_256(fg__and_256(_mm256_sub_epi32(_mm256_set1_epi32(128), fg__shift_256(scale, -2)), 255), -8);
    }
}

/* Block b of a unit: bytes of 8 rows. `low`, `high` and `bytes` are those of the rows. */
FG__INLINE256 void fg__expand_256(fg_type type, const uint8_t *low, const uint8_t *high, const uint8_t *bytes,
                                  __m256i table, int b, uint8_t *q) {
    __m256i more = table;
    int step, part;
    FG__UNROLL
    for (part = 0; part < 2; part++) {
        fg__tables_256(type, bytes, 2 * b + part, &table, &more);
        FG__UNROLL
        for (step = part * 4; step < part * 4 + 4; step++)
            _mm256_storeu_si256((__m256i *)(void *)(q + step * 128),
                                fg__weight_256(type, low, high, table, more, step));
    }
}

/* Scales and minimums of block b of a unit, 8 rows. */
FG__TARGET_AVX2 static void fg__scales_256(fg_type type, const uint8_t *bytes, const uint8_t *halves, int b,
                                           float *scale, float *min) {
    __m256 d = _mm256_setzero_ps(), m = d;
    __m256i s = _mm256_setzero_si256(), s2 = s;
    if (type != FG_TYPE_MXFP4) d = fg__halves_256(halves);
    switch ((int)type) {
    case FG_TYPE_Q4_1:
    case FG_TYPE_Q5_1:
        _mm256_storeu_ps(min, _mm256_mul_ps(fg__halves_256(halves + 64), _mm256_set1_ps(-1.0f / 128)));
        break;
    case FG_TYPE_Q4_K:
    case FG_TYPE_Q5_K:
        s = fg__bytes_256(bytes + (b < 4 ? b : b + 4) * 32);
        s2 = fg__bytes_256(bytes + (b + 4) * 32);
        if (b < 4) {
            s = fg__and_256(s, 63);
            s2 = fg__and_256(s2, 63);
        } else {
            s = _mm256_or_si256(fg__and_256(s, 15),
                                fg__and_256(fg__shift_256(fg__bytes_256(bytes + (b - 4) * 32), 2), 48));
            s2 =
                _mm256_or_si256(fg__shift_256(s2, 4), fg__and_256(fg__shift_256(fg__bytes_256(bytes + b * 32), 2), 48));
        }
        m = _mm256_mul_ps(fg__halves_256(halves + 64), _mm256_set1_ps(1.0f / 128));
        _mm256_storeu_ps(min, _mm256_mul_ps(m, _mm256_cvtepi32_ps(s2)));
        d = _mm256_mul_ps(d, _mm256_cvtepi32_ps(s));
        break;
    case FG_TYPE_Q2_K:
        m = _mm256_mul_ps(fg__halves_256(halves + 64), _mm256_set1_ps(1.0f / 128));
        s = fg__shift_256(fg__bytes_256(bytes + 2 * b * 32), 4);
        s2 = fg__shift_256(fg__bytes_256(bytes + (2 * b + 1) * 32), 4);
        _mm256_storeu_ps(min, _mm256_mul_ps(m, _mm256_cvtepi32_ps(s)));
        _mm256_storeu_ps(min + FG__PANEL, _mm256_mul_ps(m, _mm256_cvtepi32_ps(s2)));
        break;
    case FG_TYPE_Q3_K: d = _mm256_sub_ps(_mm256_setzero_ps(), d); break;
    case FG_TYPE_Q6_K:
        s = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(bytes + 2 * b * 32)));
        s2 = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(bytes + (2 * b + 1) * 32)));
        _mm256_storeu_ps(scale + FG__PANEL, _mm256_mul_ps(d, _mm256_cvtepi32_ps(s2)));
        d = _mm256_mul_ps(d, _mm256_cvtepi32_ps(s));
        break;
    case FG_TYPE_IQ4_XS:
        s = fg__and_256(fg__shift_256(fg__bytes_256(bytes + (2 + b / 2) * 32), b % 2 * 4), 15);
        s2 = fg__and_256(fg__shift_256(fg__bytes_256(bytes + b / 4 * 32), b % 4 * 2 - 4), 48);
        s = _mm256_sub_epi32(_mm256_or_si256(s, s2), _mm256_set1_epi32(32));
        d = _mm256_mul_ps(d, _mm256_cvtepi32_ps(s));
        break;
    case FG_TYPE_MXFP4: /* see fg__mxfp4_half_scale */
        s = fg__bytes_256(bytes);
        s2 = fg__shift_256(_mm256_add_epi32(s, _mm256_set1_epi32(1)), -21);
        d = _mm256_castsi256_ps(fg__shift_256(_mm256_sub_epi32(s, _mm256_set1_epi32(1)), -23));
        d = _mm256_blendv_ps(d, _mm256_castsi256_ps(s2),
                             _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(2), s)));
        break;
    default: break;
    }
    _mm256_storeu_ps(scale, d);
}

/* Expands n blocks. `like` is a constant: a type with the same planes. */
FG__INLINE256 void fg__unpack_blocks_256(fg_type like, fg_type type, const uint8_t *from, int n, fg__gemm_slice *to) {
    const fg__panel_layout *layout = fg__panel_layout_of(type);
    const uint8_t *values = fg__gemm_table_of(type), *low, *high, *bytes;
    __m256i table = _mm256_setzero_si256();
    int i, b, rows, scales = 0, minimums = 0;
    if (values) table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)values));
    for (i = 0; i < n; i++) {
        b = i % layout->blocks;
        low = from + (i - b) / layout->blocks * layout->bytes * FG__PANEL;
        high = low + layout->blocks * layout->low * 128;
        bytes = high + layout->blocks * layout->high * 128;
        for (rows = 0; rows < FG__PANEL; rows += 8) {
            fg__expand_256(like, low + b * layout->low * 128 + rows * 4, high + b * layout->high * 128 + rows * 4,
                           bytes + rows, table, b, to->q + i * 1024 + rows * 4);
            fg__scales_256(type, bytes + rows, bytes + layout->n_bytes * 32 + rows * 2, b,
                           to->scale + scales * FG__PANEL + rows, to->min + minimums * FG__PANEL + rows);
        }
        scales += type == FG_TYPE_Q6_K ? 2 : 1;
        minimums += type == FG_TYPE_Q2_K ? 2 : 1;
    }
}

FG__TARGET_AVX2 static void fg__unpack_256(fg_type type, const uint8_t *from, int n, fg__gemm_slice *to) {
    switch ((int)type) {
    case FG_TYPE_Q4_0:
    case FG_TYPE_Q4_1:
    case FG_TYPE_Q4_K: fg__unpack_blocks_256(FG_TYPE_Q4_1, type, from, n, to); break;
    case FG_TYPE_Q5_0:
    case FG_TYPE_Q5_1:
    case FG_TYPE_Q5_K: fg__unpack_blocks_256(FG_TYPE_Q5_1, type, from, n, to); break;
    case FG_TYPE_Q8_0: fg__unpack_blocks_256(FG_TYPE_Q8_0, type, from, n, to); break;
    case FG_TYPE_Q2_K: fg__unpack_blocks_256(FG_TYPE_Q2_K, type, from, n, to); break;
    case FG_TYPE_Q3_K: fg__unpack_blocks_256(FG_TYPE_Q3_K, type, from, n, to); break;
    case FG_TYPE_Q6_K: fg__unpack_blocks_256(FG_TYPE_Q6_K, type, from, n, to); break;
    default: fg__unpack_blocks_256(FG_TYPE_IQ4_NL, type, from, n, to); break;
    }
}

FG__INLINE256 __m256i fg__act_256(const uint8_t *acts, size_t stride, int t, int step) {
    int x;
    memcpy(&x, acts + t * stride + step * 4, 4);
    return _mm256_set1_epi32(x);
}

/* Adds 4 steps to the sums. Pairs are added to 16 bits, which cannot overflow: signed weights give at most
   2 * 128 * 127, and unsigned ones, of which `together` steps are added, 4 * 2 * 31 * 127 or 2 * 2 * 63 * 127. */
FG__INLINE256 void fg__dots_256(bool is_signed, int together, int nt, const uint8_t *w, const uint8_t *acts,
                                size_t stride, __m256i acc[][2]) {
    __m256i ones = _mm256_set1_epi16(1), pairs[FG__TILE256][2], v[2], size[2], x;
    int step, t, i;
    FG__UNROLL
    for (step = 0; step < 4; step++) {
        FG__UNROLL
        for (i = 0; i < 2; i++) {
            v[i] = fg__load_256(w + step * 128 + 32 * i);
            if (is_signed) v[i] = _mm256_xor_si256(v[i], _mm256_set1_epi8((char)128));
            size[i] = is_signed ? _mm256_abs_epi8(v[i]) : v[i];
        }
        FG__UNROLL
        for (t = 0; t < nt; t++) {
            x = fg__act_256(acts, stride, t, step);
            FG__UNROLL
            for (i = 0; i < 2; i++) {
                __m256i product = _mm256_maddubs_epi16(size[i], is_signed ? _mm256_sign_epi8(x, v[i]) : x);
                pairs[t][i] = step % together ? _mm256_add_epi16(pairs[t][i], product) : product;
                if (step % together == together - 1)
                    acc[t][i] = _mm256_add_epi32(acc[t][i], _mm256_madd_epi16(pairs[t][i], ones));
            }
        }
    }
}

/* Ends a part: v += scale * sum. */
FG__INLINE256 void fg__part_256(int nt, const float *scale, __m256i acc[][2], __m256 v[][2]) {
    int t, i;
    FG__UNROLL
    for (t = 0; t < nt; t++) {
        FG__UNROLL
        for (i = 0; i < 2; i++)
            v[t][i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[t][i]), _mm256_loadu_ps(scale + 8 * i), v[t][i]);
    }
}

/* Where the sums of a part of block b start, for weights with `offset` added. */
FG__INLINE256 void fg__start_256(int nt, const fg__gemm_job *job, int b, int part, __m256i acc[][2]) {
    int t, start;
    FG__UNROLL
    for (t = 0; t < nt; t++) {
        const fg__act_q8 *a = (const fg__act_q8 *)(const void *)(job->acts + t * job->stride);
        start = job->form == FG__FORM_SUB16 ? a->sum16[2 * b + part] : a->sum[b];
        acc[t][0] = acc[t][1] = _mm256_set1_epi32(start / 128 * job->offset);
    }
}

/* Ends block b: minimums and the activations' scale. */
FG__INLINE256 void fg__block_256(int nt, int minimums, const float *min, const uint8_t *acts, size_t stride, int b,
                                 __m256 v[][2], __m256 f[][2]) {
    int t, i, j;
    FG__UNROLL
    for (t = 0; t < nt; t++) {
        const fg__act_q8 *a = (const fg__act_q8 *)(const void *)(acts + t * stride);
        for (j = 0; j < minimums; j++) {
            __m256 sum = _mm256_cvtepi32_ps(_mm256_set1_epi32(minimums == 1 ? a->sum[b] : a->sum16[2 * b + j]));
            v[t][0] = _mm256_fmadd_ps(sum, _mm256_loadu_ps(min + j * FG__PANEL), v[t][0]);
            v[t][1] = _mm256_fmadd_ps(sum, _mm256_loadu_ps(min + j * FG__PANEL + 8), v[t][1]);
        }
        FG__UNROLL
        for (i = 0; i < 2; i++) f[t][i] = _mm256_fmadd_ps(v[t][i], _mm256_set1_ps(a->scale[b]), f[t][i]);
    }
}

FG__INLINE256 void fg__tile_end_256(int nt, __m256 sums[][2], int row, const fg__gemm_job *job) {
    int t, i;
    FG__UNROLL
    for (t = 0; t < nt; t++) {
        FG__UNROLL
        for (i = 0; i < 2; i++) {
            float *to = job->out + t * job->out_stride + row + 8 * i;
            _mm256_storeu_ps(to, job->first ? sums[t][i] : _mm256_add_ps(sums[t][i], _mm256_loadu_ps(to)));
        }
    }
}

/* A tile of 16 rows from `row` on. The form is no constant here, to keep the code small. */
FG__INLINE256 void fg__tile_q8_256(int nt, const fg__gemm_slice *s, int row, fg__gemm_job *job) {
    const fg__gemm_form form = job->form;
    const int scales = form == FG__FORM_SUB16 ? 2 : 1, minimums = form == FG__FORM_MIN     ? 1
                                                                  : form == FG__FORM_MIN16 ? 2
                                                                                           : 0;
    const float *scale = s->scale + row, *min = s->min + row;
    __m256 f[FG__TILE256][2], v[FG__TILE256][2];
    __m256i acc[FG__TILE256][2];
    int b, t, part;
    FG__UNROLL
    for (t = 0; t < nt; t++) f[t][0] = f[t][1] = _mm256_setzero_ps();
    for (b = 0; b < job->n; b++, scale += scales * FG__PANEL, min += minimums * FG__PANEL) {
        fg__fetch_ahead(job);
        FG__UNROLL
        for (t = 0; t < nt; t++) v[t][0] = v[t][1] = _mm256_setzero_ps();
        FG__UNROLL
        for (part = 0; part < 2; part++) {
            const uint8_t *w = s->q + b * 1024 + part * 512 + row * 4, *acts = job->acts + b * 32 + part * 16;
            if (part == 0 || scales == 2) fg__start_256(nt, job, b, part, acc);
            if (job->together == 4)
                fg__dots_256(false, 4, nt, w, acts, job->stride, acc);
            else if (job->together == 2)
                fg__dots_256(false, 2, nt, w, acts, job->stride, acc);
            else
                fg__dots_256(true, 1, nt, w, acts, job->stride, acc);
            if (part == 1 || scales == 2) fg__part_256(nt, scale + part * (scales - 1) * FG__PANEL, acc, v);
        }
        fg__block_256(nt, minimums, min, job->acts, job->stride, b, v, f);
    }
    fg__tile_end_256(nt, f, row, job);
}

#if FG__HAS_AVXVNNI
#define FG__INLINE256VNNI FG__TARGET_AVXVNNI static FG__ALWAYS_INLINE

/* The same with VNNI. */
FG__INLINE256VNNI void fg__tile_vnni_256(int nt, const fg__gemm_slice *s, int row, fg__gemm_job *job) {
    const fg__gemm_form form = job->form;
    const int scales = form == FG__FORM_SUB16 ? 2 : 1, minimums = form == FG__FORM_MIN     ? 1
                                                                  : form == FG__FORM_MIN16 ? 2
                                                                                           : 0;
    const float *scale = s->scale + row, *min = s->min + row;
    __m256 f[FG__TILE256][2], v[FG__TILE256][2];
    __m256i acc[FG__TILE256][2], w0, w1, x;
    int b, t, part, step;
    FG__UNROLL
    for (t = 0; t < nt; t++) f[t][0] = f[t][1] = _mm256_setzero_ps();
    for (b = 0; b < job->n; b++, scale += scales * FG__PANEL, min += minimums * FG__PANEL) {
        fg__fetch_ahead(job);
        FG__UNROLL
        for (t = 0; t < nt; t++) v[t][0] = v[t][1] = _mm256_setzero_ps();
        FG__UNROLL
        for (part = 0; part < 2; part++) {
            if (part == 0 || scales == 2) fg__start_256(nt, job, b, part, acc);
            FG__UNROLL
            for (step = 4 * part; step < 4 * part + 4; step++) {
                w0 = fg__load_256(s->q + b * 1024 + step * 128 + row * 4);
                w1 = fg__load_256(s->q + b * 1024 + step * 128 + row * 4 + 32);
                FG__UNROLL
                for (t = 0; t < nt; t++) {
                    x = fg__act_256(job->acts + b * 32, job->stride, t, step);
                    acc[t][0] = _mm256_dpbusd_avx_epi32(acc[t][0], w0, x);
                    acc[t][1] = _mm256_dpbusd_avx_epi32(acc[t][1], w1, x);
                }
            }
            if (part == 1 || scales == 2) fg__part_256(nt, scale + part * (scales - 1) * FG__PANEL, acc, v);
        }
        fg__block_256(nt, minimums, min, job->acts, job->stride, b, v, f);
    }
    fg__tile_end_256(nt, f, row, job);
}

FG__TARGET_AVXVNNI static void fg__slice_vnni_256(const fg__gemm_slice *s, int row, int bytes, fg__gemm_job job) {
    int nt, tiles = (job.m + FG__TILE256 - 1) / FG__TILE256;
    fg__fetch_plan(&job, bytes, tiles * job.n);
    for (; tiles > 0; tiles--, job.m -= nt, job.acts += nt * job.stride, job.out += nt * job.out_stride) {
        nt = (job.m + tiles - 1) / tiles;
        switch (nt) {
        case 1: fg__tile_vnni_256(1, s, row, &job); break;
        case 2: fg__tile_vnni_256(2, s, row, &job); break;
        default: fg__tile_vnni_256(3, s, row, &job); break;
        }
    }
}
#endif

FG__TARGET_AVX2 static void fg__slice_q8_256(const fg__gemm_slice *s, int row, int bytes, fg__gemm_job job) {
    int nt, tiles = (job.m + FG__TILE256 - 1) / FG__TILE256;
    fg__fetch_plan(&job, bytes, tiles * job.n);
    for (; tiles > 0; tiles--, job.m -= nt, job.acts += nt * job.stride, job.out += nt * job.out_stride) {
        nt = (job.m + tiles - 1) / tiles;
        switch (nt) {
        case 1: fg__tile_q8_256(1, s, row, &job); break;
        case 2: fg__tile_q8_256(2, s, row, &job); break;
        default: fg__tile_q8_256(3, s, row, &job); break;
        }
    }
}

typedef void (*fg__slice_fn)(const fg__gemm_slice *s, int row, int bytes, fg__gemm_job job);

static void fg__gemm_q8_slices(fg__slice_fn run, fg_type type, bool vnni, const uint8_t *from, int64_t k,
                               fg__gemm_job job) {
    uint8_t room[sizeof(fg__gemm_slice) + 64];
    fg__gemm_slice *s = (fg__gemm_slice *)(void *)(room + (64 - (size_t)(uintptr_t)room % 64));
    const int64_t block_bytes = fg_type_bytes(type, 256) * FG__PANEL / 8;
    int64_t left;
    job.form = fg__gemm_form_of(type);
    job.offset = fg__gemm_offset(type);
    job.together = job.offset == 128 ? 1 : type == FG_TYPE_Q2_K || type == FG_TYPE_Q6_K ? 2 : 4;
    if (job.offset == 128 && !vnni) job.offset = 0; /* multiplied as signed */
    for (left = k / 32; left > 0;
         left -= 8, from += 8 * block_bytes, job.acts += sizeof(fg__act_q8), job.first = false) {
        job.n = (int)FG__MIN(left, 8);
        job.next = from + FG__GEMM_AHEAD;
        fg__unpack_256(type, from, job.n, s);
        run(s, 0, job.n * (int)block_bytes / 2, job);
        job.next += job.n * block_bytes / 2;
        run(s, 16, job.n * (int)block_bytes / 2, job);
    }
}

static void fg__gemm_q8_256(fg_type type, const void *panel, int64_t k, const void *acts, size_t stride, int m,
                            float *out, size_t out_stride) {
    fg__gemm_q8_slices(fg__slice_q8_256, type, false, (const uint8_t *)panel, k,
                       fg__gemm_job_make(panel, acts, stride, m, out, out_stride));
}

/* A tile of floats, 16 rows. Lanes of BF16 are pairs. */
FG__INLINE256 void fg__tile_f32_256(fg_type type, int nt, const uint8_t *w, int row, fg__gemm_job *job) {
    const int run = type == FG_TYPE_F16 ? 64 : 128, each = type == FG_TYPE_BF16 ? 2 : 1;
    __m256 f[FG__TILE512][2], v[2], x;
    __m256i pair;
    int i, j, h, t;
    FG__UNROLL
    for (t = 0; t < nt; t++) f[t][0] = f[t][1] = _mm256_setzero_ps();
    for (i = 0, w += row * (run / 32); i < job->n; i++, w += run) {
        if (i % 8 == 0) fg__fetch_ahead(job);
        FG__UNROLL
        for (j = 0; j < each; j++) {
            FG__UNROLL
            for (h = 0; h < 2; h++) {
                if (type == FG_TYPE_F16) {
                    v[h] = fg__halves_256(w + 16 * h);
                } else {
                    pair = fg__load_256(w + 32 * h);
                    if (type == FG_TYPE_BF16) pair = j ? fg__and_256(pair, (int)0xffff0000u) : fg__shift_256(pair, -16);
                    v[h] = _mm256_castsi256_ps(pair);
                }
            }
            FG__UNROLL
            for (t = 0; t < nt; t++) {
                x = _mm256_castsi256_ps(fg__act_256(job->acts, job->stride, t, i * each + j));
                f[t][0] = _mm256_fmadd_ps(v[0], x, f[t][0]);
                f[t][1] = _mm256_fmadd_ps(v[1], x, f[t][1]);
            }
        }
    }
    fg__tile_end_256(nt, f, row, job);
}

FG__INLINE256 void fg__tiles_f32_256(fg_type type, const uint8_t *w, int row, int bytes, fg__gemm_job job) {
    int nt, tiles = (job.m + FG__TILE512 - 1) / FG__TILE512;
    fg__fetch_plan(&job, bytes, tiles * ((job.n + 7) / 8));
    for (; tiles > 0; tiles--, job.m -= nt, job.acts += nt * job.stride, job.out += nt * job.out_stride) {
        nt = (job.m + tiles - 1) / tiles;
        switch (nt) {
        case 1: fg__tile_f32_256(type, 1, w, row, &job); break;
        case 2: fg__tile_f32_256(type, 2, w, row, &job); break;
        case 3: fg__tile_f32_256(type, 3, w, row, &job); break;
        case 4: fg__tile_f32_256(type, 4, w, row, &job); break;
        case 5: fg__tile_f32_256(type, 5, w, row, &job); break;
        default: fg__tile_f32_256(type, 6, w, row, &job); break;
        }
    }
}

FG__TARGET_AVX2 static void fg__gemm_f32_256(fg_type type, const void *panel, int64_t k, const void *acts,
                                             size_t stride, int m, float *out, size_t out_stride) {
    const int run = type == FG_TYPE_F16 ? 64 : 128, lane = type == FG_TYPE_BF16 ? 8 : 4;
    const uint8_t *w = (const uint8_t *)panel;
    fg__gemm_job job = fg__gemm_job_make(panel, acts, stride, m, out, out_stride);
    int64_t left;
    int row;
    for (left = type == FG_TYPE_BF16 ? (k + 1) / 2 : k; left > 0; left -= 128, job.first = false) {
        job.n = (int)FG__MIN(left, 128);
        job.next = w + FG__GEMM_AHEAD;
        for (row = 0; row < FG__PANEL; row += 16, job.next += job.n * run / 2) {
            switch ((int)type) {
            case FG_TYPE_F32: fg__tiles_f32_256(FG_TYPE_F32, w, row, job.n * run / 2, job); break;
            case FG_TYPE_F16: fg__tiles_f32_256(FG_TYPE_F16, w, row, job.n * run / 2, job); break;
            default: fg__tiles_f32_256(FG_TYPE_BF16, w, row, job.n * run / 2, job); break;
            }
        }
        w += 128 * run;
        job.acts += 128 * lane;
    }
}

/* ---- the choice */

#if FG__HAS_AVXVNNI
static void fg__gemm_vnni_256(fg_type type, const void *panel, int64_t k, const void *acts, size_t stride, int m,
                              float *out, size_t out_stride) {
    fg__gemm_q8_slices(fg__slice_vnni_256, type, true, (const uint8_t *)panel, k,
                       fg__gemm_job_make(panel, acts, stride, m, out, out_stride));
}

static const fg__gemm_kernel fg__gemm_vnni256_kernel = {fg__panel_bytes, fg__panel_pack, fg__act_q8_bytes,
                                                        fg__act_q8_pack_256, fg__gemm_vnni_256};
static const fg__gemm_kernel fg__gemm_bf16_512_kernel = {fg__panel_bytes, fg__panel_pack, fg__act_bf16_bytes,
                                                         fg__act_bf16_pack_512, fg__gemm_bf16_512};
#endif
static const fg__gemm_kernel fg__gemm_q8_512_kernel = {fg__panel_bytes, fg__panel_pack, fg__act_q8_bytes,
                                                       fg__act_q8_pack_256, fg__gemm_q8_512};
static const fg__gemm_kernel fg__gemm_f32_512_kernel = {fg__panel_bytes, fg__panel_pack, fg__act_f32_bytes,
                                                        fg__act_f32_pack, fg__gemm_f32_512};
static const fg__gemm_kernel fg__gemm_q8_256_kernel = {fg__panel_bytes, fg__panel_pack, fg__act_q8_bytes,
                                                       fg__act_q8_pack_256, fg__gemm_q8_256};
static const fg__gemm_kernel fg__gemm_f32_256_kernel = {fg__panel_bytes, fg__panel_pack, fg__act_f32_bytes,
                                                        fg__act_f32_pack, fg__gemm_f32_256};

static const fg__gemm_kernel *fg__gemm_kernel_find(int path, fg_type type, int64_t k) {
    fg__cpu_features cpu = fg__cpu_detect();
    bool wide = path == FG__CPU_AVX512 && cpu.avx512 && cpu.avx512_vnni;
    if (k < 1 || !fg_type_bytes(type, k) || !cpu.avx2 || (path != FG__CPU_AVX2 && path != FG__CPU_AVX512)) return NULL;
    if (!fg__panel_layout_of(type)) {
#if FG__HAS_AVXVNNI
        if (wide && type == FG_TYPE_BF16 && cpu.avx512_bf16) return &fg__gemm_bf16_512_kernel;
#endif
        return wide ? &fg__gemm_f32_512_kernel : &fg__gemm_f32_256_kernel;
    }
#if FG__HAS_AVXVNNI
    if (!wide && cpu.avx_vnni) return &fg__gemm_vnni256_kernel;
#endif
    return wide ? &fg__gemm_q8_512_kernel : &fg__gemm_q8_256_kernel;
}
#endif
/* ================================================================================================
   >>cpu_gemm_arm  matrix products with NEON: dot products (sdot) or 2x2 products (smmla) of bytes, and floats
   ================================================================================================ */
#if FG__ARM

/* A register holds one lane of 4 rows. Weights are expanded before, to signed bytes, or raw where these are small. */

typedef uint8_t fg__u8x16 __attribute__((vector_size(16)));
typedef uint32_t fg__u32x4 __attribute__((vector_size(16)));

static FG__ALWAYS_INLINE uint8x16_t fg__shift_neon8(uint8x16_t v, int bits) {
    return bits < 0 ? (uint8x16_t)((fg__u8x16)v << -bits) : (uint8x16_t)((fg__u8x16)v >> bits);
}

static FG__ALWAYS_INLINE uint32x4_t fg__shift_neon(uint32x4_t v, int bits) {
    return bits < 0 ? (uint32x4_t)((fg__u32x4)v << -bits) : (uint32x4_t)((fg__u32x4)v >> bits);
}

static FG__ALWAYS_INLINE uint32x4_t fg__and_neon(uint32x4_t v, uint32_t mask) {
    return vandq_u32(v, vdupq_n_u32(mask));
}

/* Bits number `step` of a plane of `bits` bits, moved to bit `at` of each byte. */
static FG__ALWAYS_INLINE uint8x16_t fg__plane_neon(const uint8_t *plane, int bits, int step, int at) {
    uint8x16_t v = fg__shift_neon8(vld1q_u8(plane + step % bits * 128), step / bits * bits - at);
    return vandq_u8(v, vdupq_n_u8((uint8_t)(((1 << bits) - 1) << at)));
}

static FG__ALWAYS_INLINE uint8x16_t fg__planes_neon(const uint8_t *low, int low_bits, const uint8_t *high,
                                                    int high_bits, int step) {
    return vorrq_u8(fg__plane_neon(low, low_bits, step, 0), fg__plane_neon(high, high_bits, step, low_bits));
}

static FG__ALWAYS_INLINE float32x4_t fg__halves_neon(const uint8_t *from) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from)));
}

static FG__ALWAYS_INLINE uint32x4_t fg__bytes_neon(const uint8_t *from) {
    uint32_t word;
    memcpy(&word, from, 4);
    return vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(word)))));
}

/* The scale of 16 weights number i of Q3_K, plus 32. */
static FG__ALWAYS_INLINE uint32x4_t fg__scale_q3_neon(const uint8_t *bytes, int i) {
    uint32x4_t low = fg__and_neon(fg__shift_neon(fg__bytes_neon(bytes + i % 8 * 32), i / 8 * 4), 15);
    return vorrq_u32(low, fg__and_neon(fg__shift_neon(fg__bytes_neon(bytes + (8 + i % 4) * 32), i / 4 * 2 - 4), 48));
}

/* Tables of 16 weights number i of Q2_K and Q3_K, four entries for each row; see >>cpu_gemm_x86.
   Q2_K: scale * q.  Q3_K: (32 - scale) * (q - 4) = -128 + 4 * scale + low * (32 - scale), and with the high bit
   128 - 4 * scale more; as it is multiplied with -d. */
static FG__ALWAYS_INLINE void fg__tables_neon(fg_type type, const uint8_t *bytes, int i, uint8x16_t *table,
                                              uint8x16_t *more) {
    uint32x4_t scale, v;
    if (type == FG_TYPE_Q2_K) {
        *table = vreinterpretq_u8_u32(vmulq_n_u32(fg__and_neon(fg__bytes_neon(bytes + i * 32), 15), 0x03020100));
    } else if (type == FG_TYPE_Q3_K) {
        scale = fg__scale_q3_neon(bytes, i);
        v = vaddq_u32(vmulq_n_u32(scale, 0x01020304), vdupq_n_u32(0x60402000));
        *table = veorq_u8(vreinterpretq_u8_u32(v), vdupq_n_u8(128));
        v = fg__and_neon(vsubq_u32(vdupq_n_u32(128), fg__shift_neon(scale, -2)), 255);
        *more = vreinterpretq_u8_u32(fg__shift_neon(v, -8));
    }
}

static FG__ALWAYS_INLINE uint8x16_t fg__lookup_neon(uint8x16_t table, uint8x16_t index) {
    static const uint8_t lanes[16] = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
    return vqtbl1q_u8(table, vorrq_u8(index, vld1q_u8(lanes)));
}

static FG__ALWAYS_INLINE uint8x16_t fg__weight_neon(fg_type type, const uint8_t *low, const uint8_t *high,
                                                    uint8x16_t table, uint8x16_t more, int step) {
    switch ((int)type) {
    case FG_TYPE_Q4_1: return fg__plane_neon(low, 4, step, 0);
    case FG_TYPE_IQ4_NL: return vqtbl1q_u8(table, fg__plane_neon(low, 4, step, 0));
    case FG_TYPE_Q5_1: return fg__planes_neon(low, 4, high, 1, step);
    case FG_TYPE_Q6_K: return fg__planes_neon(low, 4, high, 2, step);
    case FG_TYPE_Q2_K: return fg__lookup_neon(table, fg__plane_neon(low, 2, step, 0));
    case FG_TYPE_Q3_K:
        return vaddq_u8(fg__lookup_neon(table, fg__plane_neon(low, 2, step, 0)),
                        fg__lookup_neon(more, fg__plane_neon(high, 1, step, 0)));
    default: return veorq_u8(vld1q_u8(low + step * 128), vdupq_n_u8(128)); /* Q8_0 */
    }
}

/* Block b of a unit: bytes of 4 rows; with `pairs` in the order of smmla, 8 weights of a row and then of the next. */
static FG__ALWAYS_INLINE void fg__expand_neon(fg_type type, bool pairs, const uint8_t *low, const uint8_t *high,
                                              const uint8_t *bytes, uint8x16_t table, int b, int row, uint8_t *q) {
    uint8x16_t more = table;
    uint32x4_t v0, v1;
    int step, part;
    FG__UNROLL
    for (part = 0; part < 2; part++) {
        fg__tables_neon(type, bytes, 2 * b + part, &table, &more);
        FG__UNROLL
        for (step = part * 4; step < part * 4 + 4; step += 2) {
            v0 = vreinterpretq_u32_u8(fg__weight_neon(type, low, high, table, more, step));
            v1 = vreinterpretq_u32_u8(fg__weight_neon(type, low, high, table, more, step + 1));
            vst1q_u8(q + step * 128 + row * (pairs ? 8 : 4), vreinterpretq_u8_u32(pairs ? vzip1q_u32(v0, v1) : v0));
            vst1q_u8(q + step * 128 + (pairs ? row * 8 + 16 : row * 4 + 128),
                     vreinterpretq_u8_u32(pairs ? vzip2q_u32(v0, v1) : v1));
        }
    }
}

/* Scales and minimums of block b of a unit, 4 rows. */
static void fg__scales_neon(fg_type type, const uint8_t *bytes, const uint8_t *halves, int b, float *scale,
                            float *min) {
    float32x4_t d = vdupq_n_f32(0), m = d;
    uint32x4_t s, s2;
    if (type != FG_TYPE_MXFP4) d = fg__halves_neon(halves);
    switch ((int)type) {
    case FG_TYPE_Q4_1:
    case FG_TYPE_Q5_1: vst1q_f32(min, vmulq_n_f32(fg__halves_neon(halves + 64), -1.0f / 128)); break;
    case FG_TYPE_Q4_K:
    case FG_TYPE_Q5_K:
        s = fg__bytes_neon(bytes + (b < 4 ? b : b + 4) * 32);
        s2 = fg__bytes_neon(bytes + (b + 4) * 32);
        if (b < 4) {
            s = fg__and_neon(s, 63);
            s2 = fg__and_neon(s2, 63);
        } else {
            s = vorrq_u32(fg__and_neon(s, 15),
                          fg__and_neon(fg__shift_neon(fg__bytes_neon(bytes + (b - 4) * 32), 2), 48));
            s2 = vorrq_u32(fg__shift_neon(s2, 4), fg__and_neon(fg__shift_neon(fg__bytes_neon(bytes + b * 32), 2), 48));
        }
        m = vmulq_n_f32(fg__halves_neon(halves + 64), 1.0f / 128);
        vst1q_f32(min, vmulq_f32(m, vcvtq_f32_u32(s2)));
        d = vmulq_f32(d, vcvtq_f32_u32(s));
        break;
    case FG_TYPE_Q2_K:
        m = vmulq_n_f32(fg__halves_neon(halves + 64), 1.0f / 128);
        s = fg__shift_neon(fg__bytes_neon(bytes + 2 * b * 32), 4);
        s2 = fg__shift_neon(fg__bytes_neon(bytes + (2 * b + 1) * 32), 4);
        vst1q_f32(min, vmulq_f32(m, vcvtq_f32_u32(s)));
        vst1q_f32(min + FG__PANEL, vmulq_f32(m, vcvtq_f32_u32(s2)));
        break;
    case FG_TYPE_Q3_K: d = vnegq_f32(d); break;
    case FG_TYPE_Q6_K: /* bytes are signed */
        s = vsubq_u32(veorq_u32(fg__bytes_neon(bytes + 2 * b * 32), vdupq_n_u32(128)), vdupq_n_u32(128));
        s2 = vsubq_u32(veorq_u32(fg__bytes_neon(bytes + (2 * b + 1) * 32), vdupq_n_u32(128)), vdupq_n_u32(128));
        vst1q_f32(scale + FG__PANEL, vmulq_f32(d, vcvtq_f32_s32(vreinterpretq_s32_u32(s2))));
        d = vmulq_f32(d, vcvtq_f32_s32(vreinterpretq_s32_u32(s)));
        break;
    case FG_TYPE_IQ4_XS:
        s = fg__and_neon(fg__shift_neon(fg__bytes_neon(bytes + (2 + b / 2) * 32), b % 2 * 4), 15);
        s2 = fg__and_neon(fg__shift_neon(fg__bytes_neon(bytes + b / 4 * 32), b % 4 * 2 - 4), 48);
        s = vsubq_u32(vorrq_u32(s, s2), vdupq_n_u32(32));
        d = vmulq_f32(d, vcvtq_f32_s32(vreinterpretq_s32_u32(s)));
        break;
    case FG_TYPE_MXFP4: /* see fg__mxfp4_half_scale */
        s = fg__bytes_neon(bytes);
        s2 = fg__shift_neon(vaddq_u32(s, vdupq_n_u32(1)), -21);
        s = vbslq_u32(vcltq_u32(s, vdupq_n_u32(2)), s2, fg__shift_neon(vsubq_u32(s, vdupq_n_u32(1)), -23));
        d = vreinterpretq_f32_u32(s);
        break;
    default: break;
    }
    vst1q_f32(scale, d);
}

/* Expands n blocks. `like` is a constant: a type with the same planes. */
static FG__ALWAYS_INLINE void fg__unpack_blocks_neon(fg_type like, fg_type type, bool pairs, const uint8_t *from, int n,
                                                     fg__gemm_slice *to) {
    const fg__panel_layout *layout = fg__panel_layout_of(type);
    const uint8_t *values = fg__gemm_table_of(type), *low, *high, *bytes;
    uint8x16_t table = vdupq_n_u8(0);
    int i, b, row, scales = 0, minimums = 0;
    if (values) table = veorq_u8(vld1q_u8(values), vdupq_n_u8(128));
    for (i = 0; i < n; i++) {
        b = i % layout->blocks;
        low = from + (i - b) / layout->blocks * layout->bytes * FG__PANEL;
        high = low + layout->blocks * layout->low * 128;
        bytes = high + layout->blocks * layout->high * 128;
        for (row = 0; row < FG__PANEL; row += 4) {
            fg__expand_neon(like, pairs, low + b * layout->low * 128 + row * 4, high + b * layout->high * 128 + row * 4,
                            bytes + row, table, b, row, to->q + i * 1024);
            fg__scales_neon(type, bytes + row, bytes + layout->n_bytes * 32 + row * 2, b,
                            to->scale + scales * FG__PANEL + row, to->min + minimums * FG__PANEL + row);
        }
        scales += type == FG_TYPE_Q6_K ? 2 : 1;
        minimums += type == FG_TYPE_Q2_K ? 2 : 1;
    }
}

static void fg__unpack_neon(fg_type type, bool pairs, const uint8_t *from, int n, fg__gemm_slice *to) {
    switch ((int)type) {
    case FG_TYPE_Q4_0:
    case FG_TYPE_Q4_1:
    case FG_TYPE_Q4_K: fg__unpack_blocks_neon(FG_TYPE_Q4_1, type, pairs, from, n, to); break;
    case FG_TYPE_Q5_0:
    case FG_TYPE_Q5_1:
    case FG_TYPE_Q5_K: fg__unpack_blocks_neon(FG_TYPE_Q5_1, type, pairs, from, n, to); break;
    case FG_TYPE_Q8_0: fg__unpack_blocks_neon(FG_TYPE_Q8_0, type, pairs, from, n, to); break;
    case FG_TYPE_Q2_K: fg__unpack_blocks_neon(FG_TYPE_Q2_K, type, pairs, from, n, to); break;
    case FG_TYPE_Q3_K: fg__unpack_blocks_neon(FG_TYPE_Q3_K, type, pairs, from, n, to); break;
    case FG_TYPE_Q6_K: fg__unpack_blocks_neon(FG_TYPE_Q6_K, type, pairs, from, n, to); break;
    default: fg__unpack_blocks_neon(FG_TYPE_IQ4_NL, type, pairs, from, n, to); break;
    }
}

static FG__ALWAYS_INLINE const fg__act_q8 *fg__act_neon(const fg__gemm_job *job, int t) {
    return (const fg__act_q8 *)(const void *)(job->acts + t * job->stride);
}

static FG__ALWAYS_INLINE int fg__start_neon(const fg__gemm_job *job, const fg__act_q8 *a, int b, int part) {
    return (job->form == FG__FORM_SUB16 ? a->sum16[2 * b + part] : a->sum[b]) / 128 * job->offset;
}

#define FG__INLINE_DOT FG__TARGET_DOTPROD static FG__ALWAYS_INLINE

FG__INLINE_DOT int32x4_t fg__dot_lane(int32x4_t sum, int8x16_t w, int8x16_t x, int lane) {
    switch (lane) {
    case 0: return vdotq_laneq_s32(sum, w, x, 0);
    case 1: return vdotq_laneq_s32(sum, w, x, 1);
    case 2: return vdotq_laneq_s32(sum, w, x, 2);
    default: return vdotq_laneq_s32(sum, w, x, 3);
    }
}

/* A tile: 8 rows from `row` on, nt tokens (at most 4), blocks of 32 weights. The operations on one output are the same
   for every nt, and with smmla. */
FG__INLINE_DOT void fg__tile_dot(int nt, const fg__gemm_slice *s, int row, fg__gemm_job *job) {
    const int parts = job->form == FG__FORM_SUB16 ? 2 : 1;
    const int minimums = job->form == FG__FORM_MIN ? 1 : job->form == FG__FORM_MIN16 ? 2 : 0;
    const float *scale = s->scale + row, *min = s->min + row;
    float32x4_t f[4][2], v[4][2], x, y;
    int32x4_t acc[4][2];
    int8x16_t a[4], w;
    int b, i, j, t, part, step;
    FG__UNROLL
    for (t = 0; t < nt; t++) f[t][0] = f[t][1] = vdupq_n_f32(0);
    for (b = 0; b < job->n; b++, scale += parts * FG__PANEL, min += minimums * FG__PANEL) {
        fg__fetch_ahead(job);
        FG__UNROLL
        for (part = 0; part < 2; part++) {
            FG__UNROLL
            for (t = 0; t < nt; t++) {
                const fg__act_q8 *act = fg__act_neon(job, t);
                a[t] = vld1q_s8(act->q + b * 32 + part * 16);
                if (part == 0) v[t][0] = v[t][1] = vdupq_n_f32(0);
                if (part == 0 || parts == 2) acc[t][0] = acc[t][1] = vdupq_n_s32(fg__start_neon(job, act, b, part));
            }
            FG__UNROLL
            for (step = 0; step < 4; step++) {
                FG__UNROLL
                for (i = 0; i < 2; i++) {
                    w = vreinterpretq_s8_u8(vld1q_u8(s->q + b * 1024 + (part * 4 + step) * 128 + row * 4 + i * 16));
                    FG__UNROLL
                    for (t = 0; t < nt; t++) acc[t][i] = fg__dot_lane(acc[t][i], w, a[t], step);
                }
            }
            if (part == 1 || parts == 2) {
                x = vld1q_f32(scale + (parts - 1) * part * FG__PANEL);
                y = vld1q_f32(scale + (parts - 1) * part * FG__PANEL + 4);
                FG__UNROLL
                for (t = 0; t < nt; t++) {
                    v[t][0] = vfmaq_f32(v[t][0], vcvtq_f32_s32(acc[t][0]), x);
                    v[t][1] = vfmaq_f32(v[t][1], vcvtq_f32_s32(acc[t][1]), y);
                }
            }
        }
        FG__UNROLL
        for (t = 0; t < nt; t++) {
            const fg__act_q8 *act = fg__act_neon(job, t);
            for (j = 0; j < minimums; j++) {
                x = vdupq_n_f32((float)(minimums == 1 ? act->sum[b] : act->sum16[2 * b + j]));
                v[t][0] = vfmaq_f32(v[t][0], x, vld1q_f32(min + j * FG__PANEL));
                v[t][1] = vfmaq_f32(v[t][1], x, vld1q_f32(min + j * FG__PANEL + 4));
            }
            f[t][0] = vfmaq_f32(f[t][0], v[t][0], vdupq_n_f32(act->scale[b]));
            f[t][1] = vfmaq_f32(f[t][1], v[t][1], vdupq_n_f32(act->scale[b]));
        }
    }
    FG__UNROLL
    for (t = 0; t < nt; t++) {
        FG__UNROLL
        for (i = 0; i < 2; i++) {
            float *to = job->out + t * job->out_stride + row + 4 * i;
            vst1q_f32(to, job->first ? f[t][i] : vaddq_f32(f[t][i], vld1q_f32(to)));
        }
    }
}

FG__TARGET_DOTPROD static void fg__slice_dot(const fg__gemm_slice *s, int row, int bytes, fg__gemm_job job) {
    int nt, tiles = (job.m + 3) / 4;
    fg__fetch_plan(&job, bytes, tiles * job.n);
    for (; tiles > 0; tiles--, job.m -= nt, job.acts += nt * job.stride, job.out += nt * job.out_stride) {
        nt = (job.m + tiles - 1) / tiles;
        switch (nt) {
        case 1: fg__tile_dot(1, s, row, &job); break;
        case 2: fg__tile_dot(2, s, row, &job); break;
        case 3: fg__tile_dot(3, s, row, &job); break;
        default: fg__tile_dot(4, s, row, &job); break;
        }
    }
}

/* Values of two tokens in the order of smmla's sums: row 0 with both, row 1 with both. */
static FG__ALWAYS_INLINE float32x4_t fg__pair_neon(float x0, float x1) {
    float32x2_t pair = vset_lane_f32(x1, vdup_n_f32(x0), 1);
    return vcombine_f32(pair, pair);
}

/* Values of two rows in that order. */
static FG__ALWAYS_INLINE float32x4_t fg__rows_neon(const float *from) {
    return vcombine_f32(vld1_dup_f32(from), vld1_dup_f32(from + 1));
}

#define FG__INLINE_I8MM FG__TARGET_I8MM static FG__ALWAYS_INLINE

/* A tile of np pairs of tokens (at most 2). The last pair may have one token, which then takes both places. */
FG__INLINE_I8MM void fg__tile_i8mm(int np, const fg__gemm_slice *s, int row, fg__gemm_job *job) {
    const int parts = job->form == FG__FORM_SUB16 ? 2 : 1;
    const int minimums = job->form == FG__FORM_MIN ? 1 : job->form == FG__FORM_MIN16 ? 2 : 0;
    const float *scale = s->scale + row, *min = s->min + row;
    const fg__act_q8 *act[2][2];
    float32x4_t f[2][4], v[2][4], x;
    int32x4_t acc[2][4];
    int8x16_t a[2], w;
    int b, i, j, p, part, eight;
    FG__UNROLL
    for (p = 0; p < np; p++) {
        f[p][0] = f[p][1] = f[p][2] = f[p][3] = vdupq_n_f32(0);
        act[p][0] = fg__act_neon(job, 2 * p);
        act[p][1] = fg__act_neon(job, FG__MIN(2 * p + 1, job->m - 1));
    }
    for (b = 0; b < job->n; b++, scale += parts * FG__PANEL, min += minimums * FG__PANEL) {
        fg__fetch_ahead(job);
        FG__UNROLL
        for (part = 0; part < 2; part++) {
            FG__UNROLL
            for (p = 0; p < np; p++) {
                int32x2_t start = vset_lane_s32(fg__start_neon(job, act[p][1], b, part),
                                                vdup_n_s32(fg__start_neon(job, act[p][0], b, part)), 1);
                if (part == 0) v[p][0] = v[p][1] = v[p][2] = v[p][3] = vdupq_n_f32(0);
                if (part == 0 || parts == 2) acc[p][0] = acc[p][1] = acc[p][2] = acc[p][3] = vcombine_s32(start, start);
            }
            FG__UNROLL
            for (eight = 0; eight < 2; eight++) {
                FG__UNROLL
                for (p = 0; p < np; p++)
                    a[p] = vcombine_s8(vld1_s8(act[p][0]->q + b * 32 + part * 16 + eight * 8),
                                       vld1_s8(act[p][1]->q + b * 32 + part * 16 + eight * 8));
                FG__UNROLL
                for (i = 0; i < 4; i++) {
                    w = vreinterpretq_s8_u8(vld1q_u8(s->q + b * 1024 + (part * 2 + eight) * 256 + row * 8 + i * 16));
                    FG__UNROLL
                    for (p = 0; p < np; p++) acc[p][i] = vmmlaq_s32(acc[p][i], w, a[p]);
                }
            }
            if (part == 1 || parts == 2) {
                FG__UNROLL
                for (i = 0; i < 4; i++) {
                    x = fg__rows_neon(scale + (parts - 1) * part * FG__PANEL + 2 * i);
                    FG__UNROLL
                    for (p = 0; p < np; p++) v[p][i] = vfmaq_f32(v[p][i], vcvtq_f32_s32(acc[p][i]), x);
                }
            }
        }
        FG__UNROLL
        for (p = 0; p < np; p++) {
            for (j = 0; j < minimums; j++) {
                x = minimums == 1
                        ? fg__pair_neon((float)act[p][0]->sum[b], (float)act[p][1]->sum[b])
                        : fg__pair_neon((float)act[p][0]->sum16[2 * b + j], (float)act[p][1]->sum16[2 * b + j]);
                FG__UNROLL
                for (i = 0; i < 4; i++) v[p][i] = vfmaq_f32(v[p][i], x, fg__rows_neon(min + j * FG__PANEL + 2 * i));
            }
            x = fg__pair_neon(act[p][0]->scale[b], act[p][1]->scale[b]);
            FG__UNROLL
            for (i = 0; i < 4; i++) f[p][i] = vfmaq_f32(f[p][i], v[p][i], x);
        }
    }
    FG__UNROLL
    for (p = 0; p < np; p++) {
        FG__UNROLL
        for (i = 0; i < 4; i++) {
            float *to = job->out + (2 * p + i / 2) * job->out_stride + row + i % 2 * 4;
            if (2 * p + i / 2 >= job->m) continue;
            x = i / 2 ? vuzp2q_f32(f[p][i % 2 * 2], f[p][i % 2 * 2 + 1])
                      : vuzp1q_f32(f[p][i % 2 * 2], f[p][i % 2 * 2 + 1]);
            vst1q_f32(to, job->first ? x : vaddq_f32(x, vld1q_f32(to)));
        }
    }
}

FG__TARGET_I8MM static void fg__slice_i8mm(const fg__gemm_slice *s, int row, int bytes, fg__gemm_job job) {
    fg__fetch_plan(&job, bytes, (job.m + 3) / 4 * job.n);
    for (; job.m > 0; job.m -= 4, job.acts += 4 * job.stride, job.out += 4 * job.out_stride) {
        if (job.m <= 2)
            fg__tile_i8mm(1, s, row, &job);
        else
            fg__tile_i8mm(2, s, row, &job);
    }
}

static void fg__gemm_q8_neon(bool pairs, fg_type type, const uint8_t *from, int64_t k, fg__gemm_job job) {
    uint8_t room[sizeof(fg__gemm_slice) + 64];
    fg__gemm_slice *s = (fg__gemm_slice *)(void *)(room + (64 - (size_t)(uintptr_t)room % 64));
    const int64_t block_bytes = fg_type_bytes(type, 256) * FG__PANEL / 8;
    int64_t left;
    int row;
    job.form = fg__gemm_form_of(type);
    job.offset = fg__gemm_offset(type) % 128;
    for (left = k / 32; left > 0;
         left -= 8, from += 8 * block_bytes, job.acts += sizeof(fg__act_q8), job.first = false) {
        int bytes = (int)(FG__MIN(left, 8) * block_bytes / 4);
        job.n = (int)FG__MIN(left, 8);
        job.next = from + FG__GEMM_AHEAD;
        fg__unpack_neon(type, pairs, from, job.n, s);
        for (row = 0; row < FG__PANEL; row += 8, job.next += bytes) {
            if (pairs)
                fg__slice_i8mm(s, row, bytes, job);
            else
                fg__slice_dot(s, row, bytes, job);
        }
    }
}

static void fg__gemm_dot_neon(fg_type type, const void *panel, int64_t k, const void *acts, size_t stride, int m,
                              float *out, size_t out_stride) {
    fg__gemm_q8_neon(false, type, (const uint8_t *)panel, k,
                     fg__gemm_job_make(panel, acts, stride, m, out, out_stride));
}

static void fg__gemm_i8mm_neon(fg_type type, const void *panel, int64_t k, const void *acts, size_t stride, int m,
                               float *out, size_t out_stride) {
    fg__gemm_q8_neon(m > 1, type, (const uint8_t *)panel, k,
                     fg__gemm_job_make(panel, acts, stride, m, out, out_stride));
}

/* Rounds one row, k a multiple of 32. */
static void fg__act_q8_pack_neon(const float *x, int64_t k, void *packed) {
    int64_t i;
    for (i = 0; i < k / 32; i++, x += 32) {
        fg__act_q8 *a = (fg__act_q8 *)packed + i / 8;
        float32x4_t v[8], all = vdupq_n_f32(0);
        int32x4_t q[8];
        float max, inverse;
        int j;
        FG__UNROLL
        for (j = 0; j < 8; j++) {
            v[j] = vld1q_f32(x + 4 * j);
            all = vmaxq_f32(all, vabsq_f32(v[j]));
        }
        max = vmaxvq_f32(all);
        inverse = fg__act_inverse(max);
        FG__UNROLL
        for (j = 0; j < 8; j++) q[j] = vcvtnq_s32_f32(vmulq_n_f32(v[j], inverse));
        fg__act_q8_set(a, (int)(i % 8), max, vaddvq_s32(vaddq_s32(vaddq_s32(q[0], q[1]), vaddq_s32(q[2], q[3]))),
                       vaddvq_s32(vaddq_s32(vaddq_s32(q[4], q[5]), vaddq_s32(q[6], q[7]))));
        FG__UNROLL
        for (j = 0; j < 8; j += 2)
            vst1_s8(a->q + i % 8 * 32 + 4 * j, vqmovn_s16(vcombine_s16(vqmovn_s32(q[j]), vqmovn_s32(q[j + 1]))));
    }
}

/* A tile of floats, 16 rows and nt tokens. Lanes of BF16 are pairs. */
static FG__ALWAYS_INLINE void fg__tile_f32_neon(fg_type type, int nt, const uint8_t *w, int row, fg__gemm_job *job) {
    const int run = type == FG_TYPE_F16 ? 64 : 128, each = type == FG_TYPE_BF16 ? 2 : 1;
    float32x4_t f[6][4], v[4], x;
    uint32x4_t pair;
    int i, j, r, t;
    FG__UNROLL
    for (t = 0; t < nt; t++) f[t][0] = f[t][1] = f[t][2] = f[t][3] = vdupq_n_f32(0);
    for (i = 0, w += row * (run / 32); i < job->n; i++, w += run) {
        if (i % 8 == 0) fg__fetch_ahead(job);
        FG__UNROLL
        for (j = 0; j < each; j++) {
            FG__UNROLL
            for (r = 0; r < 4; r++) {
                if (type == FG_TYPE_F16) {
                    v[r] = fg__halves_neon(w + 8 * r);
                } else {
                    pair = vreinterpretq_u32_u8(vld1q_u8(w + 16 * r));
                    if (type == FG_TYPE_BF16) pair = j ? fg__and_neon(pair, 0xffff0000u) : fg__shift_neon(pair, -16);
                    v[r] = vreinterpretq_f32_u32(pair);
                }
            }
            FG__UNROLL
            for (t = 0; t < nt; t++) {
                x = vld1q_dup_f32((const float *)(const void *)(job->acts + t * job->stride) + i * each + j);
                FG__UNROLL
                for (r = 0; r < 4; r++) f[t][r] = vfmaq_f32(f[t][r], v[r], x);
            }
        }
    }
    FG__UNROLL
    for (t = 0; t < nt; t++) {
        FG__UNROLL
        for (r = 0; r < 4; r++) {
            float *to = job->out + t * job->out_stride + row + 4 * r;
            vst1q_f32(to, job->first ? f[t][r] : vaddq_f32(f[t][r], vld1q_f32(to)));
        }
    }
}

static FG__ALWAYS_INLINE void fg__tiles_f32_neon(fg_type type, const uint8_t *w, int row, int bytes, fg__gemm_job job) {
    int nt, tiles = (job.m + 5) / 6;
    fg__fetch_plan(&job, bytes, tiles * ((job.n + 7) / 8));
    for (; tiles > 0; tiles--, job.m -= nt, job.acts += nt * job.stride, job.out += nt * job.out_stride) {
        nt = (job.m + tiles - 1) / tiles;
        switch (nt) {
        case 1: fg__tile_f32_neon(type, 1, w, row, &job); break;
        case 2: fg__tile_f32_neon(type, 2, w, row, &job); break;
        case 3: fg__tile_f32_neon(type, 3, w, row, &job); break;
        case 4: fg__tile_f32_neon(type, 4, w, row, &job); break;
        case 5: fg__tile_f32_neon(type, 5, w, row, &job); break;
        default: fg__tile_f32_neon(type, 6, w, row, &job); break;
        }
    }
}

static void fg__gemm_f32_neon(fg_type type, const void *panel, int64_t k, const void *acts, size_t stride, int m,
                              float *out, size_t out_stride) {
    const int run = type == FG_TYPE_F16 ? 64 : 128, lane = type == FG_TYPE_BF16 ? 8 : 4;
    const uint8_t *w = (const uint8_t *)panel;
    fg__gemm_job job = fg__gemm_job_make(panel, acts, stride, m, out, out_stride);
    int64_t left;
    int row;
    for (left = type == FG_TYPE_BF16 ? (k + 1) / 2 : k; left > 0; left -= 128, job.first = false) {
        job.n = (int)FG__MIN(left, 128);
        job.next = w + FG__GEMM_AHEAD;
        for (row = 0; row < FG__PANEL; row += 16, job.next += job.n * run / 2) {
            switch ((int)type) {
            case FG_TYPE_F32: fg__tiles_f32_neon(FG_TYPE_F32, w, row, job.n * run / 2, job); break;
            case FG_TYPE_F16: fg__tiles_f32_neon(FG_TYPE_F16, w, row, job.n * run / 2, job); break;
            default: fg__tiles_f32_neon(FG_TYPE_BF16, w, row, job.n * run / 2, job); break;
            }
        }
        w += 128 * run;
        job.acts += 128 * lane;
    }
}

static const fg__gemm_kernel fg__gemm_dot_neon_kernel = {fg__panel_bytes, fg__panel_pack, fg__act_q8_bytes,
                                                         fg__act_q8_pack_neon, fg__gemm_dot_neon};
static const fg__gemm_kernel fg__gemm_i8mm_neon_kernel = {fg__panel_bytes, fg__panel_pack, fg__act_q8_bytes,
                                                          fg__act_q8_pack_neon, fg__gemm_i8mm_neon};
static const fg__gemm_kernel fg__gemm_f32_neon_kernel = {fg__panel_bytes, fg__panel_pack, fg__act_f32_bytes,
                                                         fg__act_f32_pack, fg__gemm_f32_neon};

static const fg__gemm_kernel *fg__gemm_kernel_find(int path, fg_type type, int64_t k) {
    fg__cpu_features cpu = fg__cpu_detect();
    if (path != FG__CPU_NEON || k < 1 || !fg_type_bytes(type, k) || !cpu.neon) return NULL;
    if (!fg__panel_layout_of(type)) return &fg__gemm_f32_neon_kernel;
    return cpu.i8mm ? &fg__gemm_i8mm_neon_kernel : cpu.dotprod ? &fg__gemm_dot_neon_kernel : NULL;
}
#elif !FG__X86
static const fg__gemm_kernel *fg__gemm_kernel_find(int path, fg_type type, int64_t k) {
    (void)path;
    (void)type;
    (void)k;
    return NULL;
}
#endif
/* ================================================================================================
   >>backend  the null backend, and the choice of a backend

   The null backend computes no model: each KV slot holds a fingerprint of its token, and a row's "logits" are a fixed
   pseudo-random function of the fingerprints that attention would read through the block tables. So whatever goes wrong
   with blocks, copies or the order of things changes its output, at no cost. Time is what its options say.
   ================================================================================================ */

typedef struct fg__null_device {
    fg__env env;
    fg_null_options options;
} fg__null_device;

typedef struct fg__null_plan {
    const fg_graph *graph;
    uint64_t *kv[FG_MAX_GROUPS]; /* [n_blocks * block_tokens] fingerprints */
    fg_row_result *rows;
    float *logits;
    bool want_logits;
} fg__null_plan;

static int fg__null_probe(void) { return 1; }

static fg_result fg__null_open(const fg_device_desc *desc, fg_device **out) {
    fg__env env = fg__env_make(&desc->allocator, desc->log, desc->log_user);
    fg__null_device *device = (fg__null_device *)fg__calloc(&env, 1, sizeof(fg__null_device));
    if (!device) return FG_ERROR_OUT_OF_MEMORY;
    device->env = env;
    if (desc->options) device->options = *(const fg_null_options *)desc->options;
    *out = (fg_device *)device;
    return FG_OK;
}

static void fg__null_close(fg_device *handle) {
    fg__null_device *device = (fg__null_device *)handle;
    fg__env env = device->env;
    fg__free(&env, device);
}

static void fg__null_caps(fg_device *handle, fg_device_caps *caps) {
    (void)handle;
    memset(caps, 0, sizeof(*caps));
    snprintf(caps->name, sizeof(caps->name), "null");
    caps->n_threads = 1;
    caps->block_tokens = 32;
    caps->token_budget = 256;
    caps->kv_types = caps->weight_types = ~(uint64_t)0;
    caps->ops = ~(uint32_t)0;
}

static void *fg__null_alloc(fg_device *handle, size_t bytes) { return fg__malloc(&((fg__null_device *)handle)->env, bytes, 1); }
static void fg__null_free(fg_device *handle, void *memory) { fg__free(&((fg__null_device *)handle)->env, memory); }

static fg_result fg__null_write(fg_device *handle, void *memory, size_t offset, const void *data, size_t bytes) {
    (void)handle;
    memcpy((char *)memory + offset, data, bytes);
    return FG_OK;
}

static fg_result fg__null_read(fg_device *handle, const void *memory, size_t offset, void *data, size_t bytes) {
    (void)handle;
    memcpy(data, (const char *)memory + offset, bytes);
    return FG_OK;
}

static fg_result fg__null_pack(fg_device *handle, const fg_tensor *tensor, fg_op_type use, fg_weight **weight, size_t *bytes) {
    (void)handle;
    (void)use;
    if (weight) *weight = NULL;
    if (bytes) *bytes = tensor->bytes;
    return FG_OK;
}

static void fg__null_unpack(fg_device *handle, fg_weight *weight) {
    (void)handle;
    (void)weight;
}

static void fg__null_release(fg_device *handle, fg_plan *plan_handle) {
    const fg__env *env = &((fg__null_device *)handle)->env;
    fg__null_plan *plan = (fg__null_plan *)plan_handle;
    int g;
    for (g = 0; g < FG_MAX_GROUPS; g++) fg__free(env, plan->kv[g]);
    fg__free(env, plan->rows);
    fg__free(env, plan->logits);
    fg__free(env, plan);
}

static bool fg__null_allocate(const fg__env *env, fg__null_plan *plan, const fg_graph *graph) {
    bool ok = true;
    int g;
    for (g = 0; g < graph->n_groups; g++) {
        size_t slots = (size_t)graph->groups[g].n_blocks * (size_t)graph->groups[g].block_tokens;
        plan->kv[g] = (uint64_t *)fg__calloc(env, slots, sizeof(uint64_t));
        ok = ok && plan->kv[g];
    }
    plan->rows = (fg_row_result *)fg__calloc(env, (size_t)graph->max_rows, sizeof(fg_row_result));
    plan->logits = (float *)fg__calloc(env, (size_t)graph->max_rows * (size_t)graph->n_vocab, sizeof(float));
    return ok && plan->rows && plan->logits;
}

static fg_result fg__null_prepare(fg_device *handle, const fg_graph *graph, fg_plan **out, fg_memory *memory) {
    const fg__env *env = &((fg__null_device *)handle)->env;
    fg__null_plan *plan;
    int g;
    if (memory) {
        memset(memory, 0, sizeof(*memory));
        for (g = 0; g < graph->n_groups; g++)
            memory->kv += (size_t)graph->groups[g].n_blocks * (size_t)graph->groups[g].block_tokens * sizeof(uint64_t);
        memory->activations = (size_t)graph->max_rows * (size_t)graph->n_vocab * sizeof(float);
    }
    if (!out) return FG_OK;
    plan = (fg__null_plan *)fg__calloc(env, 1, sizeof(fg__null_plan));
    if (!plan) return FG_ERROR_OUT_OF_MEMORY;
    plan->graph = graph;
    *out = (fg_plan *)plan;
    if (fg__null_allocate(env, plan, graph)) return FG_OK;
    fg__null_release(handle, *out);
    *out = NULL;
    return FG_ERROR_OUT_OF_MEMORY;
}

static uint64_t fg__null_fingerprint(int32_t token, int32_t position) {
    return fg__mix((uint64_t)(uint32_t)token << 32 | (uint32_t)position);
}

/* What the token at `position` of sequence s sees, folded into one number. */
static uint64_t fg__null_seen(const fg__null_plan *plan, const fg_batch *batch, int s, int32_t position) {
    uint64_t h = 0x9E3779B97F4A7C15ull;
    int g;
    for (g = 0; g < plan->graph->n_groups; g++) {
        const fg_group *group = &plan->graph->groups[g];
        const int32_t *table = batch->tables[g] + (size_t)s * (size_t)plan->graph->max_blocks_per_seq;
        int32_t window = group->kind == FG_GROUP_WINDOW ? group->window : 0, bt = group->block_tokens;
        int32_t i = window && position >= window ? position - window + 1 : 0;
        for (; i <= position; i++) h = fg__mix(h + plan->kv[g][table[i / bt] * bt + i % bt]);
    }
    return h;
}

static void fg__null_row(fg__null_plan *plan, uint64_t h, int row) {
    int n = plan->graph->n_vocab, i;
    float *logits = plan->logits + (size_t)row * (size_t)n;
    double sum = 0;
    plan->rows[row].token = (int32_t)(h % (uint64_t)n);
    plan->rows[row].logit = 2;
    plan->rows[row].log_sum_exp = (float)log((double)n) + 2;
    if (!plan->want_logits) return;
    for (i = 0; i < n; i++) logits[i] = (float)(fg__mix(h + (uint64_t)i + 1) >> 40) / 16777216.0f;
    logits[plan->rows[row].token] = 2;
    for (i = 0; i < n; i++) sum += exp((double)logits[i]);
    plan->rows[row].log_sum_exp = (float)log(sum);
}

static fg_result fg__null_submit(fg_device *handle, fg_plan *plan_handle, const fg_batch *batch) {
    fg__null_plan *plan = (fg__null_plan *)plan_handle;
    const fg_null_options *o = &((fg__null_device *)handle)->options;
    double compute = o->per_token * batch->n_tokens;
    double seconds = o->overhead + (o->roofline ? FG__MAX(o->base, compute) : o->base + compute);
    int g, s, t, row = 0;
    plan->want_logits = batch->want_logits;
    for (g = 0; g < plan->graph->n_groups; g++)
        for (t = 0; t < batch->n_tokens; t++)
            plan->kv[g][batch->slots[g][t]] = fg__null_fingerprint(batch->tokens[t], batch->positions[t]);
    for (s = 0; s < batch->n_seqs; s++) {
        seconds += o->per_kv_token * batch->kv_len[s];
        for (; row < batch->n_rows && batch->rows[row] < batch->cu_q[s + 1]; row++)
            fg__null_row(plan, fg__null_seen(plan, batch, s, batch->positions[batch->rows[row]]), row);
    }
    if (o->clock) *o->clock += seconds;
    return FG_OK;
}

static fg_result fg__null_wait(fg_device *handle, fg_plan *plan_handle, fg_output *output) {
    fg__null_plan *plan = (fg__null_plan *)plan_handle;
    (void)handle;
    output->rows = plan->rows;
    output->logits = plan->want_logits ? plan->logits : NULL;
    return FG_OK;
}

static fg_result fg__null_copy_blocks(fg_device *handle, fg_plan *plan_handle, const fg_block_copy *copies, int n) {
    fg__null_plan *plan = (fg__null_plan *)plan_handle;
    int i;
    (void)handle;
    for (i = 0; i < n; i++) {
        size_t bt = (size_t)plan->graph->groups[copies[i].group].block_tokens;
        uint64_t *kv = plan->kv[copies[i].group];
        memcpy(kv + (size_t)copies[i].to * bt, kv + (size_t)copies[i].from * bt, bt * sizeof(uint64_t));
    }
    return FG_OK;
}

static fg_result fg__null_swap_blocks(fg_device *handle, fg_plan *plan_handle, int group, const int32_t *blocks, int n, void *host, bool out,
                                      size_t *block_bytes) {
    fg__null_plan *plan = (fg__null_plan *)plan_handle;
    size_t bytes = (size_t)plan->graph->groups[group].block_tokens * sizeof(uint64_t);
    int i;
    (void)handle;
    if (block_bytes) *block_bytes = bytes;
    for (i = 0; host && i < n; i++) {
        char *block = (char *)plan->kv[group] + (size_t)blocks[i] * bytes, *copy = (char *)host + (size_t)i * bytes;
        memcpy(out ? copy : block, out ? block : copy, bytes);
    }
    return FG_OK;
}

static fg_result fg__null_profile(fg_device *handle, fg_roofs *roofs) {
    (void)handle;
    memset(roofs, 0, sizeof(*roofs));
    return FG_OK;
}

const fg_backend *fg_backend_null(void) {
    static const fg_backend backend = {
        FG_BACKEND_ABI, sizeof(fg_backend), "null",
        fg__null_probe, fg__null_open, fg__null_close, fg__null_caps,
        fg__null_alloc, fg__null_free, fg__null_write, fg__null_read,
        fg__null_pack, fg__null_unpack, fg__null_prepare, fg__null_release,
        fg__null_submit, fg__null_wait, fg__null_copy_blocks, fg__null_profile, fg__null_swap_blocks,
    };
    return &backend;
}

/* ================================================================================================
   >>engine  requests in, passes over the device, events out

   Locks: `lock` guards the request table, the inbox, the event queue and the statistics, and is held for moments only;
   `step_lock` guards everything else and is held through a pass. Requests enter through the inbox, and belong to the
   stepping thread from there on. What ends a request is allocated when it is submitted, so that running out of memory
   can end requests but never lose one.
   ================================================================================================ */

typedef struct fg__event_node {
    struct fg__event_node *next;
    fg_event event; /* text and top point behind the node */
} fg__event_node;

struct fg__request;

/* Prompt lookup (Saxena 2023; as n-gram drafts in the field's engines): the last two and three tokens are looked up in a
   table of where such were followed by what. How far to guess, and whether at all, comes from how it went. */
typedef struct fg__lookup {
    int32_t *table;   /* [mask + 1] positions after two or three tokens of that hash; 0: none */
    uint32_t mask;
    int n_indexed;    /* positions before this one are in the table */
    int length;       /* of the next guess */
    int pause, misses; /* passes until the next guess; guesses in a row of which nothing was right */
    double rate;      /* share of guessed tokens that were right, of late */
    int n_drafted, n_accepted;
} fg__lookup;

/* One sample of a request. */
typedef struct fg__sequence {
    fg__seq seq;
    struct fg__request *request;
    int index;
    int32_t *tokens;        /* prompt and output, room for all */
    int n_reported;         /* prompt tokens whose log-probability was reported */
    fg__utf8 stream;
    fg__text pending;       /* text that is not given out yet: it may begin a stop string */
    fg__event_node *end;
    fg__lookup lookup;
    void *swapped;          /* KV blocks in host memory, group after group */
    size_t swapped_bytes;   /* of these, what counts against swap_bytes */
    double last_token;      /* time of the token before; 0: none */
    bool ended;
} fg__sequence;

typedef struct fg__request {
    struct fg__request *next; /* inbox */
    fg_request handle;
    fg_request_desc desc;     /* pointers lead into this allocation's own copies */
    fg__sampler sampler;
    int n, n_prompt, n_max, n_ended; /* samples, prompt tokens, most output tokens, samples that ended */
    int n_known_prompt;       /* of a restored request: its prompt before it was saved */
    bool taken;               /* out of the inbox: the stepping thread's */
    bool forked, cancelled;
    bool started, sampled;    /* times.first_scheduled and times.first_token are set */
    int32_t *banned;          /* tokens that may not come before min_tokens */
    int n_banned;
    fg__sequence *samples;
    fg__event_node *end;
    int n_cached;
    fg_times times;
} fg__request;

/* Of a handle: index into the table; the rest is the generation. Places are used again in turn, and only while as many as
   FG__IDLE_PLACES are free, so that it takes millions of requests until a handle comes back. */
enum { FG__REQUEST_BITS = 20, FG__IDLE_PLACES = 1024 };

enum { FG__MAX_DRAFT = 16 };

typedef struct fg__request_slot {
    fg__request *request;
    uint32_t generation;
    int32_t next_free;
} fg__request_slot;

/* A sequence of the pass, and its tokens in it. */
typedef struct fg__pass_entry {
    fg__sequence *sequence;
    int from, n, n_drafted; /* n counts the guesses, too */
} fg__pass_entry;

struct fg_engine {
    fg__env env;
    fg_engine_desc desc;
    fg_model *model, *owned_model;
    const fg_backend *backend;
    fg_device *device;
    fg_device_caps caps;
    fg__graph_builder builder;
    fg_graph graph;
    fg_weight **weights;
    fg_plan *plan;
    fg__kv kv;
    fg__sched sched;
    fg__sample_scratch scratch;
    fg__pass_entry *entries;  /* [max_seqs] */
    uint64_t n_drafted, n_accepted, n_swaps;
    size_t swapped_bytes;     /* host memory in use */
    double swap_byte_seconds; /* what moving a byte takes */
    float *hook_logits;       /* [n_vocab] the row that fg_logits_fn may change */
    int32_t *end_tokens;
    int n_end_tokens;
    /* the batch block of a pass */
    fg_batch batch;
    int32_t *batch_memory, *tokens, *positions, *cu_q, *kv_len, *rows, *tables[FG_MAX_GROUPS], *slots[FG_MAX_GROUPS];
    /* under lock */
    fg__mutex lock, step_lock;
    fg__cond changed;
    bool locks_ready;
    fg__request_slot *table;
    size_t table_count, table_capacity;
    int32_t table_free, table_free_end, n_table_free; /* a queue */
    fg__request *inbox, **inbox_end;
    int n_inbox, n_cancelled;
    bool work;                /* there is something to step */
    fg__event_node *events, **events_end, *current;
    fg_stats stats;
    fg_histograms histograms;
    double pass_end;          /* 0: none yet */
    bool idle;                /* no work was left after the last pass */
    bool traced;              /* the trace has begun */
    double trace_origin;
};

static double fg__engine_now(const fg_engine *e) { return e->desc.clock ? e->desc.clock(e->desc.clock_user) : fg__now(); }

/* ---- histograms ------------------------------------------------------------------------------- */

double fg_histogram_bound(int bucket) { return bucket < FG_HISTOGRAM_BUCKETS - 1 ? 1e-5 * pow(2.0, bucket / 4.0) : HUGE_VAL; }

static void fg__histogram_add(fg_histogram *h, double seconds) {
    double at;
    if (!(seconds > 0)) seconds = 0; /* a clock may be coarse, or the caller's */
    at = seconds > 1e-5 ? ceil(4 * log2(seconds / 1e-5)) : 0;
    h->buckets[at < FG_HISTOGRAM_BUCKETS - 1 ? (int)at : FG_HISTOGRAM_BUCKETS - 1]++;
    h->least = h->count ? FG__MIN(h->least, seconds) : seconds;
    h->most = FG__MAX(h->most, seconds);
    h->sum += seconds;
    h->count++;
}

double fg_histogram_quantile(const fg_histogram *h, double q) {
    double wanted = FG__MAX(FG__MIN(q, 1), 0) * (double)h->count, sum = 0, middle;
    int i = 0;
    if (q >= 1) return h->most;
    while (i < FG_HISTOGRAM_BUCKETS - 1 && (sum += (double)h->buckets[i]) < wanted) i++;
    middle = i < FG_HISTOGRAM_BUCKETS - 1 ? fg_histogram_bound(i) * 0.917 : h->most; /* 2^(-1/8) */
    return h->count ? FG__MAX(FG__MIN(middle, h->most), h->least) : 0;
}

/* ---- the trace -------------------------------------------------------------------------------- */

/* The Trace Event Format as a JSON array, one event a line. Process 1 has two threads, the engine (1) and the device (2);
   a request is a nestable asynchronous event with its phases inside. Numbers are written as integers, so that no locale
   gets into them; times are microseconds since the engine was made. */
FG__PRINTF(2, 3) static void fg__trace(const fg_engine *e, const char *format, ...) {
    char line[512];
    int length;
    va_list args;
    va_start(args, format);
    length = vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    if (length > 0 && length < (int)sizeof(line)) e->desc.trace(line, (size_t)length, e->desc.trace_user);
}

/* Time as text; 32 bytes. */
static const char *fg__trace_time(double seconds, char *text) {
    double ns = floor(fabs(seconds) * 1e9 + 0.5);
    long long whole = ns < 9e18 ? (long long)ns : 0; /* 0 for NaN, too */
    snprintf(text, 32, "%s%lld.%03d", seconds < 0 && whole ? "-" : "", whole / 1000, (int)(whole % 1000));
    return text;
}

static void fg__trace_begin(fg_engine *e) {
    e->traced = true;
    e->trace_origin = e->desc.clock ? e->desc.clock(e->desc.clock_user) : fg__now();
    fg__trace(e, "[{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{\"name\":\"fastgen\"}}");
    fg__trace(e, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":1,\"args\":{\"name\":\"engine\"}}");
    fg__trace(e, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":2,\"args\":{\"name\":\"device\"}}");
}

/* A span on one of the threads; `args`: members of the event's args. */
static void fg__trace_span(const fg_engine *e, int thread, const char *name, double from, double to, const char *args) {
    char start[32], length[32];
    fg__trace(e, ",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":1,\"tid\":%d,\"ts\":%s,\"dur\":%s,\"args\":{%s}}", name, thread,
              fg__trace_time(from - e->trace_origin, start), fg__trace_time(FG__MAX(to - from, 0), length), args);
}

static void fg__trace_async(const fg_engine *e, char phase, fg_request r, const char *name, double at, const char *args) {
    char time[32];
    fg__trace(e, ",\n{\"ph\":\"%c\",\"cat\":\"request\",\"name\":\"%s\",\"id\":\"0x%x\",\"pid\":1,\"tid\":1,\"ts\":%s,\"args\":{%s}}",
              phase, name, (unsigned)r.id, fg__trace_time(at - e->trace_origin, time), args);
}

/* A phase of a request. */
static void fg__trace_phase(const fg_engine *e, fg_request r, const char *name, double from, double to) {
    fg__trace_async(e, 'b', r, name, from, "");
    fg__trace_async(e, 'e', r, name, FG__MAX(from, to), "");
}

/* A request that has ended, with what it waited for. */
static void fg__trace_request(const fg_engine *e, const fg__request *request, const fg_event *end) {
    static const char *const finishes[] = {"none", "stop", "length", "cancelled", "error"};
    const fg_times *t = &end->times;
    fg_request r = request->handle;
    char args[256];
    fg__trace_async(e, 'b', r, "request", t->arrival, "");
    fg__trace_phase(e, r, "queue", t->arrival, request->started ? t->first_scheduled : t->finish);
    if (request->started) fg__trace_phase(e, r, "prompt", t->inference_begin, request->sampled ? t->first_token : t->inference_end);
    if (request->sampled) fg__trace_phase(e, r, "output", t->first_token, t->inference_end);
    snprintf(args, sizeof(args), "\"prompt\":%d,\"cached\":%d,\"generated\":%d,\"preemptions\":%d,\"finish\":\"%s\"", end->n_prompt,
             end->n_cached, end->n_generated, end->n_preemptions, finishes[end->finish]);
    fg__trace_async(e, 'e', r, "request", FG__MAX(t->finish, t->inference_end), args);
}

/* The pass that has just been done: scheduled from `begin`, on the device from `start` to `end`, handed out until `done`. */
static void fg__trace_pass(const fg_engine *e, double begin, double start, double end, double done) {
    const fg_stats *s = &e->stats;
    char args[256], time[32];
    fg__trace_span(e, 1, "schedule", begin, start, "");
    snprintf(args, sizeof(args), "\"tokens\":%d,\"prompt\":%d,\"decode\":%d,\"sequences\":%d", s->pass_tokens, s->pass_prompt_tokens,
             s->pass_decode_tokens, s->pass_seqs);
    fg__trace_span(e, 2, "pass", start, end, args);
    fg__trace_span(e, 1, "deliver", end, done, "");
    fg__trace_time(done - e->trace_origin, time);
    fg__trace(e, ",\n{\"ph\":\"C\",\"name\":\"requests\",\"pid\":1,\"ts\":%s,\"args\":{\"running\":%d,\"waiting\":%d}}", time,
              s->n_running, s->n_waiting);
    fg__trace(e, ",\n{\"ph\":\"C\",\"name\":\"KV blocks\",\"pid\":1,\"ts\":%s,\"args\":{\"used\":%d,\"cached\":%d}}", time,
              s->blocks_used, s->blocks_cached);
}

/* ---- events ----------------------------------------------------------------------------------- */

/* A node with room for `text_length` bytes of text and n_top alternatives behind it. */
static fg__event_node *fg__event_new(const fg__env *env, const char *text, size_t text_length, const fg_token_logprob *top, int n_top) {
    size_t top_bytes = (size_t)n_top * sizeof(fg_token_logprob);
    fg__event_node *node = (fg__event_node *)fg__malloc(env, sizeof(fg__event_node) + top_bytes + text_length + 1, 1);
    char *tail;
    if (!node) return NULL;
    tail = (char *)node + sizeof(fg__event_node);
    memset(node, 0, sizeof(*node));
    if (top_bytes) memcpy(tail, top, top_bytes);
    if (text_length) memcpy(tail + top_bytes, text, text_length);
    tail[top_bytes + text_length] = 0;
    node->event.top = n_top ? (const fg_token_logprob *)(void *)tail : NULL;
    node->event.n_top = n_top;
    node->event.text = tail + top_bytes;
    node->event.text_length = text_length;
    return node;
}

static void fg__event_post(fg_engine *e, const fg__request *r, fg__event_node *node) {
    node->event.request = r->handle;
    node->event.user = r->desc.user;
    fg__mutex_lock(&e->lock);
    node->next = NULL;
    if (node->event.type == FG_EVENT_TOKEN) e->stats.generated_tokens++;
    *e->events_end = node;
    e->events_end = &node->next;
    fg__cond_broadcast(&e->changed);
    fg__mutex_unlock(&e->lock);
}

bool fg_next_event(fg_engine *e, fg_event *event) {
    fg__event_node *node, *before;
    fg__mutex_lock(&e->lock);
    before = e->current;
    node = e->events;
    if (node) {
        e->events = node->next;
        if (!e->events) e->events_end = &e->events;
        *event = node->event;
    }
    e->current = node;
    fg__mutex_unlock(&e->lock);
    fg__free(&e->env, before);
    return node != NULL;
}

static bool fg__engine_ready(const fg_engine *e, unsigned what) {
    return ((what & FG_WAIT_EVENT) && e->events) || ((what & FG_WAIT_WORK) && e->work);
}

bool fg_wait(fg_engine *e, unsigned what, double seconds) {
    double until = fg__now() + seconds;
    bool ready;
    fg__mutex_lock(&e->lock);
    while (!fg__engine_ready(e, what)) {
        double left = seconds < 0 ? 3600 : until - fg__now();
        if (!(left > 0)) break;
#if defined(FG_NO_THREADS)
        break;
#endif
        fg__cond_wait(&e->changed, &e->lock, FG__MIN(left, 3600));
    }
    ready = fg__engine_ready(e, what);
    fg__mutex_unlock(&e->lock);
    return ready;
}

/* ---- requests: submit ------------------------------------------------------------------------- */

static void fg__request_free(const fg__env *env, fg__request *r) {
    int i;
    if (!r) return;
    for (i = 0; r->samples && i < r->n; i++) {
        fg__sequence *s = &r->samples[i];
        fg__kv_seq_destroy(env, &s->seq.kv);
        fg__free(env, s->tokens);
        fg__free(env, s->lookup.table);
        fg__free(env, s->swapped);
        fg__free(env, s->end);
        fg__text_free(&s->pending);
    }
    for (i = 0; r->desc.stop && i < r->desc.n_stop; i++) fg__free(env, (void *)(size_t)r->desc.stop[i]);
    fg__free(env, (void *)(size_t)r->desc.stop);
    fg__free(env, (void *)(size_t)r->desc.stop_tokens);
    fg__free(env, (void *)(size_t)r->sampler.p.logit_bias);
    fg__free(env, r->banned);
    fg__free(env, r->samples);
    fg__free(env, r->end);
    fg__free(env, r);
}

static fg_result fg__request_check(const fg_engine *e, const fg_request_desc *d) {
    int i, n_vocab = e->model->hp.n_vocab;
    if ((d->prompt != NULL) + (d->tokens != NULL) + (d->saved != NULL) != 1)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "give the prompt as text, as tokens or as a saved request, one of the three");
    if (d->n < 0 || d->n > 4096 || d->min_tokens < 0 || d->max_tokens < -1)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "n is %d, min_tokens %d, max_tokens %d", d->n, d->min_tokens, d->max_tokens);
    if (d->n_draft < 0 || d->n_draft > FG__MAX_DRAFT)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "n_draft is %d, the most is %d", d->n_draft, FG__MAX_DRAFT);
    if (d->top_logprobs < 0 || d->top_logprobs > FG_MAX_TOP_LOGPROBS)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "top_logprobs is %d, the most is %d", d->top_logprobs, FG_MAX_TOP_LOGPROBS);
    if (d->n_stop < 0 || d->n_stop_tokens < 0 || d->n_stop > 4096 || d->n_stop_tokens > 4096 || (d->n_stop && !d->stop) ||
        (d->n_stop_tokens && !d->stop_tokens))
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "stop: a count without its list, or over 4096");
    for (i = 0; i < d->n_stop; i++)
        if (!d->stop[i] || !d->stop[i][0] || strlen(d->stop[i]) > 65536)
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "stop string %d is empty or over 64 KiB", i);
    for (i = 0; i < d->n_stop_tokens; i++)
        if (d->stop_tokens[i] < 0 || d->stop_tokens[i] >= n_vocab)
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "stop token %d is not in the vocabulary", d->stop_tokens[i]);
    if (d->tokenize_flags & ~(unsigned)(FG_NO_BOS | FG_NO_SPECIAL))
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "tokenize_flags 0x%x are not all known", d->tokenize_flags);
    return fg__sampler_check(&d->sampling, n_vocab);
}

/* What fg_save_request writes first; then n_tokens tokens, then the blocks. */
typedef struct fg__saved {
    char magic[8];
    uint64_t check;     /* over everything behind it */
    uint64_t model, layout;
    int64_t kv_bytes;
    int32_t n_tokens, n_computed, n_prompt;
    int32_t first[FG_MAX_GROUPS];
    int32_t zero;
} fg__saved;

/* The prompt as ids, in memory of its own. */
static fg_result fg__request_prompt(const fg_engine *e, const fg_request_desc *d, int32_t **ids, size_t *count) {
    const void *from = d->tokens;
    size_t i, n = d->n_tokens;
    *ids = NULL;
    if (d->prompt) {
        size_t length = d->prompt_length ? d->prompt_length : strlen(d->prompt);
        return fg__vocab_encode(e->model->vocab, d->prompt, length, d->tokenize_flags, ids, count);
    }
    if (d->saved) { /* checked before */
        fg__saved head;
        memcpy(&head, d->saved, sizeof(head));
        n = (size_t)head.n_tokens;
        from = (const char *)d->saved + sizeof(head);
    }
    if (n > (size_t)INT32_MAX) return fg__fail(FG_ERROR_TOO_LONG, "%zu prompt tokens are absurd", n);
    *ids = (int32_t *)fg__malloc(&e->env, n, sizeof(int32_t));
    if (!*ids) return FG_ERROR_OUT_OF_MEMORY;
    if (n) memcpy(*ids, from, n * sizeof(int32_t));
    *count = n;
    for (i = 0; i < n; i++)
        if ((*ids)[i] < 0 || (*ids)[i] >= e->model->hp.n_vocab) {
            fg_result r = fg__fail(FG_ERROR_INVALID_ARGUMENT, "prompt token %zu is %d, not in the vocabulary of %d", i, (int)(*ids)[i], e->model->hp.n_vocab);
            fg__free(&e->env, *ids);
            return r;
        }
    return FG_OK;
}

static void *fg__copy(const fg__env *env, const void *data, size_t count, size_t size) {
    void *copy = fg__malloc(env, count, size);
    if (copy && count) memcpy(copy, data, count * size);
    return copy;
}

static bool fg__request_copy_lists(const fg_engine *e, fg__request *r, const fg_request_desc *d) {
    const fg__env *env = &e->env;
    char **stop = (char **)fg__calloc(env, (size_t)d->n_stop + 1, sizeof(char *));
    int i;
    r->desc.stop = (const char *const *)stop;
    for (i = 0; stop && i < d->n_stop; i++) {
        stop[i] = fg__strndup(env, d->stop[i], strlen(d->stop[i]));
        if (!stop[i]) return false;
    }
    r->desc.stop_tokens = (const int32_t *)fg__copy(env, d->stop_tokens, (size_t)d->n_stop_tokens, sizeof(int32_t));
    r->sampler.p.logit_bias = (const fg_logit_bias *)fg__copy(env, d->sampling.logit_bias, (size_t)d->sampling.n_logit_bias, sizeof(fg_logit_bias));
    if (!stop || !r->desc.stop_tokens || !r->sampler.p.logit_bias) return false;
    if (d->min_tokens == 0) return true;
    r->banned = (int32_t *)fg__malloc(env, (size_t)(e->n_end_tokens + d->n_stop_tokens), sizeof(int32_t));
    if (!r->banned) return false;
    for (i = 0; !d->ignore_eos && i < e->n_end_tokens; i++) r->banned[r->n_banned++] = e->end_tokens[i];
    for (i = 0; i < d->n_stop_tokens; i++) r->banned[r->n_banned++] = d->stop_tokens[i];
    return true;
}

static uint32_t fg__lookup_hash(const int32_t *tokens, int n) {
    uint64_t h = (uint64_t)n;
    int i;
    for (i = 0; i < n; i++) h = (h ^ (uint32_t)tokens[i]) * 0x9E3779B97F4A7C15ull;
    return (uint32_t)(h >> 32);
}

static bool fg__lookup_init(const fg__env *env, fg__lookup *l, size_t room, int most) {
    size_t size = 64;
    while (size < room) size *= 2;
    l->table = (int32_t *)fg__calloc(env, size, sizeof(int32_t));
    l->mask = (uint32_t)(size - 1);
    l->length = FG__MIN(4, most);
    l->rate = 0.5;
    return l->table != NULL;
}

static bool fg__request_make_sample(const fg_engine *e, fg__request *r, int index, const int32_t *prompt) {
    fg__sequence *s = &r->samples[index];
    size_t room = (size_t)r->n_prompt + (size_t)r->n_max;
    s->request = r;
    s->index = index;
    s->pending.env = &e->env;
    s->stream.strip_space = false;
    s->tokens = (int32_t *)fg__malloc(&e->env, room, sizeof(int32_t));
    s->end = fg__event_new(&e->env, NULL, 0, NULL, 0);
    if (!s->tokens || !s->end) return false;
    memcpy(s->tokens, prompt, (size_t)r->n_prompt * sizeof(int32_t));
    s->seq.tokens = s->tokens;
    s->seq.n_tokens = r->n_prompt;
    s->seq.no_match = s->seq.every_row = r->desc.prompt_logprobs;
    if (r->desc.n_draft > 0 && !fg__lookup_init(&e->env, &s->lookup, room, r->desc.n_draft)) return false;
    return fg__kv_seq_init(&e->kv, &s->seq.kv, (int32_t)room) == FG_OK;
}

static fg__request *fg__request_new(const fg_engine *e, const fg_request_desc *d, const int32_t *prompt, int n_prompt, int n_max) {
    fg__request *r = (fg__request *)fg__calloc(&e->env, 1, sizeof(fg__request));
    int i;
    if (!r) return NULL;
    r->desc = *d;
    r->desc.stop = NULL;
    r->desc.stop_tokens = NULL;
    r->sampler.p = d->sampling;
    r->sampler.p.logit_bias = NULL;
    r->desc.prompt = NULL;
    r->desc.tokens = NULL;
    r->n = d->n ? d->n : 1;
    r->n_prompt = r->n_known_prompt = n_prompt;
    r->n_max = n_max;
    r->samples = (fg__sequence *)fg__calloc(&e->env, (size_t)r->n, sizeof(fg__sequence));
    r->end = fg__event_new(&e->env, NULL, 0, NULL, 0);
    if (r->samples && r->end && fg__request_copy_lists(e, r, d)) {
        for (i = 0; i < r->n && fg__request_make_sample(e, r, i, prompt); i++) {}
        if (i == r->n) return r;
    }
    fg__request_free(&e->env, r);
    return NULL;
}

/* A free place in the table; with the lock held. */
static fg_result fg__request_place(fg_engine *e, fg__request *r) {
    void *table = e->table;
    int32_t i = e->table_free;
    if (e->desc.max_queue && e->stats.n_waiting + e->n_inbox >= e->desc.max_queue)
        return fg__fail(FG_ERROR_QUEUE_FULL, "%d requests are waiting already", e->desc.max_queue);
    if (e->n_table_free < FG__IDLE_PLACES && e->table_count < (size_t)1 << FG__REQUEST_BITS) {
        if (!fg__reserve(&e->env, &table, &e->table_capacity, e->table_count + 1, sizeof(fg__request_slot))) return FG_ERROR_OUT_OF_MEMORY;
        e->table = (fg__request_slot *)table;
        i = (int32_t)e->table_count++;
        e->table[i].generation = 1;
    } else {
        if (i < 0) return fg__fail(FG_ERROR_QUEUE_FULL, "too many requests at once");
        e->table_free = e->table[i].next_free;
        e->n_table_free--;
    }
    e->table[i].request = r;
    r->handle.id = e->table[i].generation << FG__REQUEST_BITS | (uint32_t)i;
    return FG_OK;
}

static fg__request *fg__request_find(const fg_engine *e, fg_request handle) {
    uint32_t i = handle.id & ((1u << FG__REQUEST_BITS) - 1);
    if (i >= e->table_count || e->table[i].generation != handle.id >> FG__REQUEST_BITS) return NULL;
    return e->table[i].request;
}

static fg_result fg__request_enqueue(fg_engine *e, fg__request *r, fg_request *handle) {
    fg_result result;
    fg__mutex_lock(&e->lock);
    result = fg__request_place(e, r);
    if (result == FG_OK) {
        if (handle) *handle = r->handle;
        *e->inbox_end = r;
        e->inbox_end = &r->next;
        e->n_inbox++;
        e->work = true;
        e->stats.n_submitted++;
        fg__cond_broadcast(&e->changed);
    }
    fg__mutex_unlock(&e->lock);
    return result;
}

fg_result fg_cancel(fg_engine *e, fg_request request) {
    fg__request *r;
    if (!e) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "fg_cancel needs an engine");
    fg__mutex_lock(&e->lock);
    r = fg__request_find(e, request);
    if (r && !r->cancelled) {
        r->cancelled = true;
        e->n_cancelled++;
        e->work = true;
        fg__cond_broadcast(&e->changed);
    }
    fg__mutex_unlock(&e->lock);
    return r ? FG_OK : fg__fail(FG_ERROR_NOT_FOUND, "request %08x has ended or never was", (unsigned)request.id);
}

/* ---- KV blocks in host memory ----------------------------------------------------------------- */

/* Bytes of a sequence's blocks, of which each group has those from `first` on; -1: the device cannot swap. */
static int64_t fg__swap_bytes(const fg_engine *e, int32_t n_tokens, const int32_t *first) {
    int64_t sum = 0;
    size_t bytes;
    int g;
    if (!e->backend->swap_blocks) return -1;
    for (g = 0; g < e->graph.n_groups; g++) {
        if (e->backend->swap_blocks(e->device, e->plan, g, NULL, 0, NULL, true, &bytes) != FG_OK) return -1;
        sum += (int64_t)bytes * FG__MAX(fg__kv_blocks_of(&e->kv, n_tokens) - first[g], 0);
    }
    return sum;
}

/* Moves the blocks of the first n_tokens tokens to `host`, or from there. */
static fg_result fg__swap_move(fg_engine *e, const fg__seq *seq, int32_t n_tokens, void *host, bool out) {
    char *at = (char *)host;
    size_t bytes;
    int g;
    for (g = 0; g < e->graph.n_groups; g++) {
        int32_t first = seq->kv.first_live[g], n = fg__kv_blocks_of(&e->kv, n_tokens) - first;
        fg_result r;
        if (n <= 0) continue;
        r = e->backend->swap_blocks(e->device, e->plan, g, seq->kv.tables[g] + first, n, at, out, &bytes);
        if (r != FG_OK) return r;
        at += (size_t)n * bytes;
    }
    return FG_OK;
}

static void fg__swap_drop(fg_engine *e, fg__sequence *s) {
    fg__free(&e->env, s->swapped);
    e->swapped_bytes -= s->swapped_bytes;
    s->swapped = NULL;
    s->swapped_bytes = 0;
}

/* Whether moving a sequence's blocks out and in takes less than computing them again. */
static bool fg__swap_pays(const fg_engine *e, const fg__seq *seq, int64_t bytes) {
    const fg__cost *c = &e->sched.cost;
    if (e->desc.preemption != FG_PREEMPT_AUTO) return e->desc.preemption == FG_PREEMPT_SWAP;
    return c->n >= 8 && 2 * (double)bytes * e->swap_byte_seconds < fg__cost_token(c) * seq->n_computed;
}

/* Of the scheduler: between passes, when nothing runs on the device. */
static bool fg__engine_swap(void *user, fg__seq *seq, bool out) {
    fg_engine *e = (fg_engine *)user;
    fg__sequence *s = (fg__sequence *)(void *)seq;
    int32_t n = out ? seq->n_computed : seq->n_swapped;
    int64_t bytes = fg__swap_bytes(e, n, out ? seq->kv.first_live : seq->swap_first);
    double begin = fg__engine_now(e), seconds;
    bool ok;
    if (bytes <= 0 || (out && ((uint64_t)bytes > e->desc.swap_bytes - e->swapped_bytes || !fg__swap_pays(e, seq, bytes)))) return false;
    if (out && !(s->swapped = fg__malloc(&e->env, (size_t)bytes, 1))) return false;
    if (out) e->swapped_bytes += s->swapped_bytes = (size_t)bytes;
    ok = fg__swap_move(e, seq, n, s->swapped, out) == FG_OK;
    if (!out || !ok) fg__swap_drop(e, s);
    seconds = fg__engine_now(e) - begin;
    if (seconds > 0) e->swap_byte_seconds += (seconds / (double)bytes - e->swap_byte_seconds) * 0.25;
    e->n_swaps += out && ok;
    return ok;
}

/* ---- requests saved and restored ---- */

static uint64_t fg__hash_bytes(uint64_t h, const void *data, size_t size) {
    const unsigned char *bytes = (const unsigned char *)data;
    uint64_t word;
    for (; size >= 8; size -= 8, bytes += 8) {
        memcpy(&word, bytes, 8);
        h = fg__mix(h ^ word) + 0x9E3779B97F4A7C15ull;
    }
    word = size;
    if (size) memcpy(&word, bytes, size);
    return fg__mix(h ^ word ^ (uint64_t)size << 56);
}

/* Names, shapes, types and some of the bytes of all weights. */
static uint64_t fg__model_identity(const fg_engine *e) {
    uint64_t h = (uint64_t)e->model->n_parameters;
    size_t i;
    for (i = 0; i < e->builder.n_tensors; i++) {
        const fg_tensor *w = &e->builder.tensors[i];
        int64_t facts[3];
        facts[0] = (int64_t)w->type;
        facts[1] = w->dims[0];
        facts[2] = (int64_t)w->bytes;
        h = fg__hash_bytes(h, w->name, strlen(w->name));
        h = fg__hash_bytes(h, facts, sizeof(facts));
        h = fg__hash_bytes(h, w->data, FG__MIN(w->bytes, 256));
        if (w->bytes > 256) h = fg__hash_bytes(h, (const char *)w->data + w->bytes / 2, FG__MIN(w->bytes - w->bytes / 2, 256));
    }
    return h;
}

/* All that the bytes of a block depend on. */
static uint64_t fg__layout_identity(const fg_engine *e) {
    uint64_t h = fg__hash_bytes(1, e->backend->name, strlen(e->backend->name));
    int g;
    for (g = 0; g < e->graph.n_groups; g++) {
        const fg_group *group = &e->graph.groups[g];
        int32_t facts[7];
        facts[0] = (int32_t)group->kind;
        facts[1] = group->n_layers;
        facts[2] = group->n_kv_head;
        facts[3] = group->head_dim;
        facts[4] = group->window;
        facts[5] = group->block_tokens;
        facts[6] = (int32_t)group->kv_type;
        h = fg__hash_bytes(h, facts, sizeof(facts));
    }
    return h;
}

static uint64_t fg__saved_check(const fg__saved *head, const void *tokens, const void *blocks) {
    const size_t skip = sizeof(head->magic) + sizeof(head->check);
    uint64_t h = fg__hash_bytes(2, (const char *)head + skip, sizeof(*head) - skip);
    h = fg__hash_bytes(h, tokens, (size_t)head->n_tokens * sizeof(int32_t));
    return fg__hash_bytes(h, blocks, (size_t)head->kv_bytes);
}

/* A request's first sample as it is now, with the step lock held. */
static fg_result fg__save_sequence(fg_engine *e, const fg__sequence *s, fg_write_fn write, void *user) {
    fg__saved head;
    void *blocks = s->swapped, *own = NULL;
    fg_result r = FG_OK;
    int g;
    memset(&head, 0, sizeof(head));
    memcpy(head.magic, "fgkv 1\n", 8);
    head.n_tokens = s->seq.n_tokens;
    head.n_computed = FG__MIN(s->seq.n_swapped ? s->seq.n_swapped : s->seq.n_computed, s->seq.n_tokens - 1);
    head.n_prompt = s->request->n_known_prompt;
    for (g = 0; g < e->graph.n_groups; g++) head.first[g] = s->seq.n_swapped ? s->seq.swap_first[g] : s->seq.kv.first_live[g];
    head.kv_bytes = fg__swap_bytes(e, head.n_computed, head.first);
    if (head.kv_bytes < 0) return fg__fail(FG_ERROR_UNSUPPORTED, "backend '%s' does not hand out its KV blocks", e->backend->name);
    if (!blocks || !s->seq.n_swapped) {
        blocks = own = fg__malloc(&e->env, (size_t)head.kv_bytes, 1);
        if (!own) return FG_ERROR_OUT_OF_MEMORY;
        r = fg__swap_move(e, &s->seq, head.n_computed, own, true);
    }
    head.model = fg__model_identity(e);
    head.layout = fg__layout_identity(e);
    head.check = fg__saved_check(&head, s->tokens, blocks);
    if (r == FG_OK) {
        write(&head, sizeof(head), user);
        write(s->tokens, (size_t)head.n_tokens * sizeof(int32_t), user);
        write(blocks, (size_t)head.kv_bytes, user);
    }
    fg__free(&e->env, own);
    return r;
}

fg_result fg_save_request(fg_engine *e, fg_request request, fg_write_fn write, void *user) {
    fg__request *r;
    fg_result result = FG_ERROR_NOT_FOUND;
    if (!e || !write) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "fg_save_request needs an engine and a function that writes");
    fg__mutex_lock(&e->step_lock);
    fg__mutex_lock(&e->lock);
    r = fg__request_find(e, request);
    fg__mutex_unlock(&e->lock);
    if (r && !r->samples[0].ended) result = fg__save_sequence(e, &r->samples[0], write, user);
    else fg__fail(result, "request %08x has ended or never was", (unsigned)request.id);
    fg__mutex_unlock(&e->step_lock);
    return result;
}

/* Checks what was saved; its head. */
static fg_result fg__saved_read(const fg_engine *e, const fg_request_desc *d, fg__saved *head) {
    size_t rest = d->n_saved - FG__MIN(d->n_saved, sizeof(*head));
    const char *tokens = (const char *)d->saved + sizeof(*head);
    int64_t bytes;
    int32_t blocks;
    int g;
    if (d->n_saved < sizeof(*head)) return fg__fail(FG_ERROR_BAD_FILE, "a saved request of %zu bytes is too short", d->n_saved);
    memcpy(head, d->saved, sizeof(*head));
    if (memcmp(head->magic, "fgkv 1\n", 8) != 0) return fg__fail(FG_ERROR_BAD_FILE, "this is not a saved request");
    if (head->model != fg__model_identity(e)) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "the request was saved with another model");
    if (head->layout != fg__layout_identity(e))
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "the request was saved with another KV type, block size or device");
    if (head->n_tokens < 1 || head->n_computed < 0 || head->n_computed >= head->n_tokens || head->n_prompt < 0 ||
        head->n_prompt > head->n_tokens || (size_t)head->n_tokens > rest / sizeof(int32_t))
        return fg__fail(FG_ERROR_BAD_FILE, "the saved request's numbers make no sense");
    blocks = fg__kv_blocks_of(&e->kv, head->n_computed);
    for (g = 0; g < e->graph.n_groups; g++)
        if (head->first[g] < 0 || head->first[g] > blocks || head->first[g] > fg__kv_first_seen(&e->kv.groups[g], head->n_computed) >> e->kv.shift)
            return fg__fail(FG_ERROR_BAD_FILE, "the saved request lacks blocks");
    bytes = fg__swap_bytes(e, head->n_computed, head->first);
    rest -= (size_t)head->n_tokens * sizeof(int32_t);
    if (bytes < 0) return fg__fail(FG_ERROR_UNSUPPORTED, "backend '%s' does not take KV blocks", e->backend->name);
    if (head->kv_bytes != bytes || (uint64_t)bytes != rest) return fg__fail(FG_ERROR_BAD_FILE, "the saved request is cut short");
    if (head->check != fg__saved_check(head, tokens, tokens + (size_t)head->n_tokens * sizeof(int32_t)))
        return fg__fail(FG_ERROR_BAD_FILE, "the saved request is damaged");
    return FG_OK;
}

/* Gives a new request the blocks that were saved. */
static fg_result fg__request_restore(const fg_engine *e, fg__request *r, const fg__saved *head, const fg_request_desc *d) {
    fg__sequence *s = &r->samples[0];
    r->n_known_prompt = head->n_prompt;
    if (head->kv_bytes == 0 || s->seq.every_row) return FG_OK;
    s->swapped = fg__malloc(&e->env, (size_t)head->kv_bytes, 1);
    if (!s->swapped) return FG_ERROR_OUT_OF_MEMORY;
    memcpy(s->swapped, (const char *)d->saved + sizeof(*head) + (size_t)head->n_tokens * sizeof(int32_t), (size_t)head->kv_bytes);
    memcpy(s->seq.swap_first, head->first, sizeof(head->first));
    s->seq.n_swapped = head->n_computed;
    return FG_OK;
}

fg_result fg_submit(fg_engine *e, const fg_request_desc *desc, fg_request *request) {
    int32_t *prompt;
    size_t n_prompt;
    int n_max;
    fg__saved head;
    fg__request *r;
    fg_result result;
    if (request) request->id = 0;
    if (!e || !desc) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "fg_submit needs an engine and a descriptor");
    if ((result = fg__request_check(e, desc)) != FG_OK) return result;
    if (desc->saved && (result = fg__saved_read(e, desc, &head)) != FG_OK) return result;
    if ((result = fg__request_prompt(e, desc, &prompt, &n_prompt)) != FG_OK) return result;
    n_max = e->desc.max_context - (int)FG__MIN(n_prompt, (size_t)e->desc.max_context);
    if (desc->max_tokens > 0 && desc->max_tokens < n_max) n_max = desc->max_tokens;
    if (desc->max_tokens < 0) n_max = 0;
    r = NULL;
    if (n_prompt == 0) result = fg__fail(FG_ERROR_INVALID_ARGUMENT, "the prompt has no tokens");
    else if (n_prompt > (size_t)e->desc.max_context || (n_max < 1 && desc->max_tokens >= 0))
        result = fg__fail(FG_ERROR_TOO_LONG, "a prompt of %zu tokens leaves no room in a context of %d", n_prompt, e->desc.max_context);
    else if (!(r = fg__request_new(e, desc, prompt, (int)n_prompt, n_max))) result = FG_ERROR_OUT_OF_MEMORY;
    fg__free(&e->env, prompt);
    if (r && desc->saved && (result = fg__request_restore(e, r, &head, desc)) != FG_OK) {
        fg__request_free(&e->env, r);
        return result;
    }
    if (r) {
        r->times.arrival = fg__engine_now(e);
        result = fg__request_enqueue(e, r, request);
        if (result != FG_OK) fg__request_free(&e->env, r);
    }
    return result;
}

/* ---- requests: the end ------------------------------------------------------------------------ */

/* Gives a request's place back, so that its handle is dead before anybody can see the end event. */
static void fg__request_leave(fg_engine *e, const fg__request *r) {
    int32_t i = (int32_t)(r->handle.id & ((1u << FG__REQUEST_BITS) - 1));
    fg__request_slot *place = &e->table[i];
    place->request = NULL;
    place->generation = (place->generation + 1) & ((1u << (32 - FG__REQUEST_BITS)) - 1);
    if (!place->generation) place->generation = 1;
    place->next_free = -1;
    if (e->n_table_free++) e->table[e->table_free_end].next_free = i;
    else e->table_free = i;
    e->table_free_end = i;
}

static void fg__engine_post_end(fg_engine *e, fg__request *r) {
    fg__event_node *end = r->end;
    end->event.type = FG_EVENT_END;
    end->event.times = r->times;
    end->event.n_prompt = r->n_prompt;
    end->event.n_cached = r->n_cached;
    r->end = NULL;
    if (e->desc.trace) fg__trace_request(e, r, &end->event);
    end->event.time = r->times.finish;
    fg__mutex_lock(&e->lock);
    fg__request_leave(e, r);
    fg__histogram_add(&e->histograms.request, r->times.finish - r->times.arrival);
    e->stats.n_finished++;
    if (end->event.finish == FG_FINISH_CANCELLED) e->stats.n_cancelled++;
    if (r->cancelled) e->n_cancelled--;
    fg__mutex_unlock(&e->lock);
    fg__event_post(e, r, end);
    fg__request_free(&e->env, r);
}

/* Ends a sample, and with the last one its request (which is then gone). `text` is what was still held back. */
static void fg__sequence_end(fg_engine *e, fg__sequence *s, fg_finish finish, fg_result result) {
    fg__request *r = s->request;
    fg__event_node *node = s->end;
    s->end = NULL;
    s->ended = true;
    if (s->seq.serial) fg__sched_remove(&e->sched, &s->seq);
    fg__swap_drop(e, s);
    if (!s->pending.failed) fg__utf8_flush(&s->stream, &s->pending);
    if (s->pending.length && finish != FG_FINISH_CANCELLED && finish != FG_FINISH_ERROR) {
        fg__event_node *with_text = s->pending.failed ? NULL : fg__event_new(&e->env, s->pending.data, s->pending.length, NULL, 0);
        if (with_text) {
            fg__free(&e->env, node);
            node = with_text;
        } else {
            finish = FG_FINISH_ERROR;
            result = FG_ERROR_OUT_OF_MEMORY;
        }
    }
    r->times.finish = fg__engine_now(e);
    node->event.type = FG_EVENT_SAMPLE_END;
    node->event.sample = s->index;
    node->event.position = s->seq.n_tokens;
    node->event.finish = finish;
    node->event.result = result;
    node->event.n_prompt = r->n_prompt;
    node->event.n_cached = r->n_cached;
    node->event.n_generated = s->seq.n_tokens - r->n_prompt;
    node->event.n_preemptions = (int)s->seq.n_preemptions;
    node->event.times = r->times;
    node->event.time = r->times.finish;
    if (r->end->event.result == FG_OK) { /* of several samples the last one to end, but an error stays */
        r->end->event.finish = finish;
        r->end->event.result = result;
    }
    node->event.n_drafted = s->lookup.n_drafted;
    node->event.n_accepted = s->lookup.n_accepted;
    r->end->event.n_drafted += s->lookup.n_drafted;
    r->end->event.n_accepted += s->lookup.n_accepted;
    r->end->event.n_generated += node->event.n_generated;
    r->end->event.n_preemptions += node->event.n_preemptions;
    fg__event_post(e, r, node);
    if (++r->n_ended == r->n) fg__engine_post_end(e, r);
}

static void fg__request_end(fg_engine *e, fg__request *r, fg_finish finish, fg_result result) {
    int i, n = r->n;
    fg__sequence *samples = r->samples;
    for (i = 0; i < n; i++) {
        bool last = r->n_ended == n - 1;
        if (samples[i].ended) continue;
        fg__sequence_end(e, &samples[i], finish, result);
        if (last) return;
    }
}

static void fg__engine_take_cancelled(fg_engine *e) {
    size_t i;
    fg__mutex_lock(&e->lock);
    for (i = 0; i < e->table_count && e->n_cancelled > 0; i++) {
        fg__request *r = e->table[i].request;
        if (!r || !r->cancelled || !r->taken) continue;
        fg__mutex_unlock(&e->lock);
        fg__request_end(e, r, FG_FINISH_CANCELLED, FG_OK);
        fg__mutex_lock(&e->lock);
    }
    fg__mutex_unlock(&e->lock);
}

static void fg__engine_take_inbox(fg_engine *e) {
    fg__request *r, *next;
    fg__mutex_lock(&e->lock);
    r = e->inbox;
    e->inbox = NULL;
    e->inbox_end = &e->inbox;
    e->stats.n_waiting += e->n_inbox;
    e->n_inbox = 0;
    fg__mutex_unlock(&e->lock);
    for (; r; r = next) {
        fg_result result = fg__sched_add(&e->sched, &r->samples[0].seq, (int64_t)r->desc.priority * e->desc.priority_head_start);
        next = r->next;
        r->taken = true;
        if (result != FG_OK) fg__request_end(e, r, FG_FINISH_ERROR, result);
    }
}

/* ---- a pass: the batch ------------------------------------------------------------------------ */

static fg__sequence *fg__sequence_of(fg__seq *seq) { return (fg__sequence *)(void *)seq; /* its first member */ }

static bool fg__request_wants_logits(const fg__request *r) {
    return fg__sampler_needs_logits(&r->sampler) || r->desc.top_logprobs > 0 || r->desc.prompt_logprobs || r->desc.on_logits ||
           r->desc.min_tokens > 0;
}

/* Rows of a sequence's tokens: all with prompt_logprobs, else that of the last known token and of the guesses behind it. */
static void fg__batch_rows(fg_engine *e, fg__seq *seq, int first_token) {
    int i;
    for (i = 0; i < seq->n_scheduled; i++)
        if (seq->every_row || seq->n_computed + i + 1 >= seq->n_tokens) e->rows[e->batch.n_rows++] = first_token + i;
}

static void fg__batch_tables(fg_engine *e, fg__seq *seq, int index, int first_token) {
    int32_t stride = e->graph.max_blocks_per_seq, bt = e->kv.block_tokens, shift = e->kv.shift;
    int g, i;
    for (g = 0; g < e->graph.n_groups; g++) {
        memcpy(e->tables[g] + (size_t)index * (size_t)stride, seq->kv.tables[g], (size_t)seq->kv.n_blocks * sizeof(int32_t));
        for (i = 0; i < seq->n_scheduled; i++) {
            int32_t p = seq->n_computed + i;
            e->slots[g][first_token + i] = seq->kv.tables[g][p >> shift] * bt + (p & (bt - 1));
        }
    }
}

static void fg__engine_fill_batch(fg_engine *e) {
    fg_batch *b = &e->batch;
    size_t s;
    int i;
    b->n_tokens = b->n_rows = 0;
    b->n_seqs = (int32_t)e->sched.pass.count;
    b->want_logits = false;
    for (s = 0; s < e->sched.pass.count; s++) {
        fg__seq *seq = e->sched.pass.items[s];
        e->cu_q[s] = b->n_tokens;
        e->kv_len[s] = seq->n_computed + seq->n_scheduled;
        fg__batch_rows(e, seq, b->n_tokens);
        fg__batch_tables(e, seq, (int)s, b->n_tokens);
        for (i = 0; i < seq->n_scheduled; i++) {
            e->tokens[b->n_tokens + i] = seq->tokens[seq->n_computed + i];
            e->positions[b->n_tokens + i] = seq->n_computed + i;
        }
        b->n_tokens += seq->n_scheduled;
        b->want_logits = b->want_logits || fg__request_wants_logits(fg__sequence_of(seq)->request);
    }
    e->cu_q[s] = b->n_tokens;
}

/* ---- a pass: what comes out ------------------------------------------------------------------- */

/* Where `wanted` begins in a text, which may have zero bytes; `size` when it is not in it. */
static size_t fg__text_find(const char *text, size_t size, const char *wanted) {
    size_t length = strlen(wanted), i;
    for (i = 0; i + length <= size; i++) {
        const char *at = (const char *)memchr(text + i, wanted[0], size - length + 1 - i);
        if (!at) break;
        i = (size_t)(at - text);
        if (memcmp(at, wanted, length) == 0) return i;
    }
    return size;
}

/* Looks for a stop string in the text held back; true: found, and the text cut before it. */
static bool fg__sequence_stop_string(fg__sequence *s) {
    const fg_request_desc *d = &s->request->desc;
    size_t best = s->pending.length;
    int i;
    if (!s->pending.length) return false;
    for (i = 0; i < d->n_stop; i++) best = FG__MIN(best, fg__text_find(s->pending.data, s->pending.length, d->stop[i]));
    if (best == s->pending.length) return false;
    s->pending.length = best;
    s->pending.data[best] = 0;
    memset(&s->stream, 0, sizeof(s->stream));
    return true;
}

/* How many bytes at the end of the text held back may begin a stop string. */
static size_t fg__sequence_hold(const fg__sequence *s) {
    const fg_request_desc *d = &s->request->desc;
    size_t hold = 0, n;
    int i;
    for (i = 0; i < d->n_stop; i++) {
        n = FG__MIN(strlen(d->stop[i]) - 1, s->pending.length);
        while (n > hold && memcmp(s->pending.data + s->pending.length - n, d->stop[i], n) != 0) n--;
        hold = FG__MAX(hold, n);
    }
    return hold;
}

static bool fg__request_stops_at(const fg_engine *e, const fg__request *r, int32_t token) {
    int i;
    for (i = 0; i < r->desc.n_stop_tokens; i++)
        if (r->desc.stop_tokens[i] == token) return true;
    return !r->desc.ignore_eos && fg__vocab_is_end(e->model->vocab, token);
}

/* The first token of a request, or one more of a sample. */
static void fg__sequence_token_time(fg_engine *e, fg__sequence *s) {
    fg__request *r = s->request;
    if (!r->sampled) r->times.first_token = e->pass_end;
    fg__mutex_lock(&e->lock);
    if (!r->sampled) fg__histogram_add(&e->histograms.first_token, e->pass_end - r->times.arrival);
    else if (s->last_token != 0) fg__histogram_add(&e->histograms.token_gap, e->pass_end - s->last_token);
    fg__mutex_unlock(&e->lock);
    r->sampled = true;
    s->last_token = e->pass_end;
}

/* Takes in a sampled token: text, stop conditions, events. False: the sample has ended with it, and may be gone. */
static bool fg__sequence_token(fg_engine *e, fg__sequence *s, const fg__sample_output *out) {
    fg__request *r = s->request;
    fg_finish finish = FG_FINISH_NONE;
    size_t length = 0, given;
    fg__event_node *node;
    int generated;
    s->tokens[s->seq.n_tokens++] = out->token;
    generated = s->seq.n_tokens - r->n_prompt;
    if (fg__request_stops_at(e, r, out->token)) {
        finish = FG_FINISH_STOP;
    } else {
        const char *piece = fg__vocab_piece(e->model->vocab, out->token, false, &length);
        fg__utf8_push(&s->stream, piece, length, &s->pending);
        if (generated >= r->desc.min_tokens && fg__sequence_stop_string(s)) finish = FG_FINISH_STOP;
        else if (generated >= r->n_max) finish = FG_FINISH_LENGTH;
    }
    given = finish ? s->pending.length : s->pending.length - fg__sequence_hold(s);
    node = s->pending.failed ? NULL : fg__event_new(&e->env, s->pending.data, given, out->top, out->n_top);
    if (!node) {
        s->seq.n_tokens--; /* nobody was told of it */
        fg__sequence_end(e, s, FG_FINISH_ERROR, FG_ERROR_OUT_OF_MEMORY);
        return false;
    }
    node->event.type = FG_EVENT_TOKEN;
    node->event.sample = s->index;
    node->event.position = s->seq.n_tokens - 1;
    node->event.time = e->pass_end;
    node->event.token = out->token;
    node->event.logprob = r->desc.logprobs ? out->logprob : 0;
    fg__event_post(e, r, node);
    if (given) memmove(s->pending.data, s->pending.data + given, s->pending.length - given + 1);
    s->pending.length -= given;
    if (finish) fg__sequence_end(e, s, finish, FG_OK);
    return !finish;
}

/* Samples the next token of `s` from a row of the pass. False: the sample has ended with it, and may be gone. */
static bool fg__sequence_sample(fg_engine *e, fg__sequence *s, const fg_output *output, int row) {
    fg__request *r = s->request;
    int n_vocab = e->model->hp.n_vocab;
    float *logits = output->logits ? output->logits + (size_t)row * (size_t)n_vocab : NULL;
    fg__sample_input in;
    fg__sample_output out;
    fg_result result;
    memset(&in, 0, sizeof(in));
    if (r->desc.on_logits) { /* in a copy: the samples of a request share their first row */
        logits = (float *)memcpy(e->hook_logits, logits, (size_t)n_vocab * sizeof(float));
        r->desc.on_logits(r->desc.on_logits_user, s->index, s->seq.n_tokens, s->tokens, logits, n_vocab);
    }
    in.logits = logits;
    in.n_vocab = n_vocab;
    in.history = s->tokens;
    in.n_history = s->seq.n_tokens;
    in.n_prompt = r->n_known_prompt;
    in.seed = r->sampler.p.seed + (uint64_t)s->index + e->desc.sample_seed * 0x9E3779B97F4A7C15ull;
    in.position = s->seq.n_tokens;
    in.row = r->desc.on_logits ? NULL : &output->rows[row];
    in.banned = r->banned;
    in.n_banned = s->seq.n_tokens - r->n_prompt < r->desc.min_tokens ? r->n_banned : 0;
    in.n_top = r->desc.top_logprobs;
    in.want_logprob = r->desc.logprobs;
    fg__sequence_token_time(e, s);
    result = fg__sample(&e->env, &e->scratch, &r->sampler, &in, &out);
    if (result == FG_OK) return fg__sequence_token(e, s, &out);
    fg__sequence_end(e, s, FG_FINISH_ERROR, result);
    return false;
}

/* ---- guessing ahead ---- */

/* Enters what followed the tokens up to the last one. */
static void fg__lookup_index(fg__lookup *l, const int32_t *tokens, int n_tokens) {
    for (; l->n_indexed < n_tokens; l->n_indexed++) {
        int i = l->n_indexed;
        if (i >= 2) l->table[fg__lookup_hash(tokens + i - 2, 2) & l->mask] = i;
        if (i >= 3) l->table[fg__lookup_hash(tokens + i - 3, 3) & l->mask] = i;
    }
}

/* Where the last n tokens stood before, or 0: the position after them. */
static int fg__lookup_find(const fg__lookup *l, const int32_t *tokens, int n_tokens, int n) {
    int at = n_tokens >= n ? l->table[fg__lookup_hash(tokens + n_tokens - n, n) & l->mask] : 0;
    return at >= n && memcmp(tokens + at - n, tokens + n_tokens - n, (size_t)n * sizeof(int32_t)) == 0 ? at : 0;
}

/* Whether a guess is expected to save more than it costs: a token that is right saves its share of a whole pass. */
static bool fg__lookup_pays(const fg_engine *e, const fg__lookup *l) {
    const fg__cost *c = &e->sched.cost;
    double token = fg__cost_token(c), share = fg__cost_pass(c) / (double)FG__MAX(e->sched.running.count, 1);
    return c->n < 8 || l->rate * (share + token) >= token;
}

/* Lays guesses behind the known tokens of a sample that decodes; what is copied may reach into the guesses themselves. */
static void fg__sequence_guess(const fg_engine *e, fg__sequence *s) {
    fg__lookup *l = &s->lookup;
    int n = s->seq.n_tokens, most = s->request->n_prompt + s->request->n_max - n - 1, at, i;
    s->seq.n_draft = 0;
    if (!l->table || s->seq.n_computed != n - 1 || n == s->request->n_prompt || l->pause-- > 0) return;
    l->pause = 0;
    if (!fg__lookup_pays(e, l)) {
        l->pause = 16;
        l->rate = FG__MIN(l->rate * 1.25 + 0.01, 1); /* the load may have changed: try again some time */
        return;
    }
    fg__lookup_index(l, s->tokens, n);
    at = fg__lookup_find(l, s->tokens, n, 3);
    if (!at) at = fg__lookup_find(l, s->tokens, n, 2);
    if (!at) return;
    s->seq.n_draft = FG__MIN(l->length, most);
    for (i = 0; i < s->seq.n_draft; i++) s->tokens[n + i] = s->tokens[at + i];
}

/* After a pass with n guesses, of which the first `right` were: longer, or shorter, or a pause. */
static void fg__lookup_learn(fg__lookup *l, int n, int right, int most) {
    l->rate += ((double)right / n - l->rate) * 0.25;
    l->length = right == n ? FG__MIN(2 * l->length, most) : FG__MAX(right, 1);
    l->misses = right ? 0 : FG__MIN(l->misses + 1, 6);
    l->pause = right ? 0 : (1 << l->misses) - 1;
}

/* Rows of a decode and of n guesses behind it: each token is drawn as it would be without them, and as long as the guess was
   the same, the row after it is the row that a pass of its own would have. */
static void fg__sequence_verify(fg_engine *e, fg__sequence *s, const fg_output *output, int row, int n) {
    int32_t guesses[FG__MAX_DRAFT];
    int right;
    memcpy(guesses, s->tokens + s->seq.n_tokens, (size_t)n * sizeof(int32_t));
    e->n_drafted += (uint64_t)n;
    s->lookup.n_drafted += n;
    for (right = 0; right <= n; right++) {
        if (!fg__sequence_sample(e, s, output, row + right)) return;
        if (right == n || s->tokens[s->seq.n_tokens - 1] != guesses[right]) break;
        fg__sched_advance(&e->sched, &s->seq, 1);
        e->n_accepted++;
        s->lookup.n_accepted++;
    }
    fg__lookup_learn(&s->lookup, n, right, s->request->desc.n_draft);
    fg__sched_settle(&e->sched, &s->seq);
}

/* Log-probability of prompt token `position`, which the row before it predicts. False: out of memory. */
static bool fg__sequence_report(fg_engine *e, fg__sequence *s, const fg_output *output, int row, int position) {
    fg__request *r = s->request;
    int n_vocab = e->model->hp.n_vocab;
    float *logits = output->logits + (size_t)row * (size_t)n_vocab;
    fg__sample_input in;
    fg__sample_output out;
    fg__sampler greedy;
    fg__event_node *node;
    memset(&in, 0, sizeof(in));
    memset(&greedy, 0, sizeof(greedy));
    if (r->desc.on_logits) r->desc.on_logits(r->desc.on_logits_user, s->index, position, s->tokens, logits, n_vocab);
    in.logits = logits;
    in.n_vocab = n_vocab;
    in.history = s->tokens;
    in.n_history = in.n_prompt = position;
    in.row = r->desc.on_logits ? NULL : &output->rows[row];
    in.n_top = r->desc.top_logprobs;
    if (fg__sample(&e->env, &e->scratch, &greedy, &in, &out) != FG_OK) return false;
    if (!(node = fg__event_new(&e->env, NULL, 0, out.top, out.n_top))) return false;
    node->event.type = FG_EVENT_PROMPT;
    node->event.position = position;
    node->event.time = e->pass_end;
    node->event.token = s->tokens[position];
    node->event.logprob = fg__logprob(logits[s->tokens[position]], fg__log_sum_exp(&in));
    fg__event_post(e, r, node);
    s->n_reported = position;
    return true;
}

/* The prompt is done: the other samples go on from its blocks, or, where there is no place, wait for their own turn. */
static void fg__request_fork(fg_engine *e, fg__request *r, const fg_output *output, int row) {
    int i;
    r->forked = true;
    for (i = 1; i < r->n; i++) {
        fg__sequence *s = &r->samples[i];
        fg_result result;
        s->seq.no_match = s->seq.every_row = false;
        if (fg__sched_fork(&e->sched, &r->samples[0].seq, &s->seq)) {
            fg__sequence_sample(e, s, output, row);
            continue;
        }
        result = fg__sched_add(&e->sched, &s->seq, (int64_t)e->sched.n_passes - r->samples[0].seq.rank); /* of the same rank */
        if (result != FG_OK) fg__sequence_end(e, s, FG_FINISH_ERROR, result);
    }
}

/* Ends a sample whose memory ran out; before the others were forked from it, they end with it. */
static void fg__sequence_fail(fg_engine *e, fg__sequence *s, fg_result result) {
    if (!s->request->forked && s->request->n > 1) fg__request_end(e, s->request, FG_FINISH_ERROR, result);
    else fg__sequence_end(e, s, FG_FINISH_ERROR, result);
}

/* The row after the last known token: the prompt's end, or one more token. */
static void fg__sequence_last_row(fg_engine *e, fg__sequence *s, const fg_output *output, int row) {
    fg__request *r = s->request;
    if (r->n_max == 0) {
        fg__request_end(e, r, FG_FINISH_LENGTH, FG_OK);
        return;
    }
    if (s->index == 0 && !r->forked && r->n > 1) fg__request_fork(e, r, output, row);
    fg__sequence_sample(e, s, output, row);
}

/* Handles the rows of sequence s, of which tokens from .. from+n-1 were computed, and n_drafted guesses after these; the
   first is `row`. Returns how many rows those are. The sequence may have ended afterwards. */
static int fg__sequence_rows(fg_engine *e, fg__sequence *s, const fg_output *output, int row, int from, int n, int n_drafted) {
    bool every = s->seq.every_row, last = from + n == s->seq.n_tokens;
    int rows = every ? n : last, i;
    for (i = from; every && i < from + n; i++) {
        if (i + 1 >= s->request->n_prompt || i + 1 <= s->n_reported) continue;
        if (fg__sequence_report(e, s, output, row + i - from, i + 1)) continue;
        fg__sequence_fail(e, s, FG_ERROR_OUT_OF_MEMORY);
        return rows + n_drafted;
    }
    if (n_drafted) fg__sequence_verify(e, s, output, row + rows - 1, n_drafted);
    else if (last) fg__sequence_last_row(e, s, output, row + rows - 1);
    return rows + n_drafted;
}

/* ---- a pass: all of it ------------------------------------------------------------------------ */

/* `begin`: when the pass was scheduled, `start`: when it goes to the device. */
static void fg__engine_times_before(fg_engine *e, double begin, double start) {
    size_t i;
    fg__mutex_lock(&e->lock);
    for (i = 0; i < e->sched.pass.count; i++) {
        fg__sequence *s = fg__sequence_of(e->sched.pass.items[i]);
        fg_times *t = &s->request->times;
        if (!s->request->started) {
            s->request->started = true;
            t->first_scheduled = begin;
            t->inference_begin = start;
            s->request->n_cached = s->seq.n_cached;
            fg__histogram_add(&e->histograms.queue, begin - t->arrival);
        }
        if (s->seq.n_computed == s->seq.n_cached) t->scheduled = begin;
    }
    if (e->pass_end != 0 && !e->idle) fg__histogram_add(&e->histograms.idle, start - e->pass_end);
    fg__mutex_unlock(&e->lock);
}

static void fg__engine_times_after(fg_engine *e, double now) {
    size_t i;
    for (i = 0; i < e->sched.pass.count; i++) fg__sequence_of(e->sched.pass.items[i])->request->times.inference_end = now;
}

static fg_result fg__engine_run_device(fg_engine *e, fg_output *output) {
    fg_result r = FG_OK;
    if (e->sched.n_copies) r = e->backend->copy_blocks(e->device, e->plan, e->sched.copies, e->sched.n_copies);
    if (r == FG_OK) r = e->backend->submit(e->device, e->plan, &e->batch);
    if (r == FG_OK) r = e->backend->wait(e->device, e->plan, output);
    return r;
}

/* The device failed: whoever was in the pass ends, the others go on. */
static void fg__engine_fail_pass(fg_engine *e, fg_result result) {
    fg__log(&e->env, FG_LOG_ERROR, "a pass failed: %s", fg_last_error());
    while (e->sched.pass.count > 0) {
        fg__seq *seq = e->sched.pass.items[--e->sched.pass.count];
        fg__sequence_fail(e, fg__sequence_of(seq), result);
    }
}

/* Sequences may end, and with their requests be freed, while the rows are handled: the pass is copied before. */
static void fg__engine_take_output(fg_engine *e, const fg_output *output) {
    fg__pass_entry *entries = e->entries;
    size_t i, count = e->sched.pass.count;
    int row = 0;
    for (i = 0; i < count; i++) {
        fg__seq *seq = e->sched.pass.items[i];
        entries[i].sequence = fg__sequence_of(seq);
        entries[i].from = seq->n_computed;
        entries[i].n_drafted = seq->n_drafted;
        entries[i].n = seq->n_scheduled;
    }
    fg__sched_done(&e->sched);
    for (i = 0; i < count; i++)
        row += fg__sequence_rows(e, entries[i].sequence, output, row, entries[i].from, entries[i].n - entries[i].n_drafted, entries[i].n_drafted);
}

static void fg__engine_count(fg_engine *e) {
    fg_stats *s = &e->stats;
    const fg__kv_group *group = &e->kv.groups[0];
    s->n_waiting = (int)e->sched.waiting.count;
    s->n_running = (int)e->sched.running.count;
    s->blocks_total = group->n_blocks;
    s->blocks_cached = group->n_cached;
    s->blocks_used = group->n_blocks - group->n_free - group->n_cached;
    s->n_preemptions = e->sched.n_preemptions;
    s->prefix_queries = e->sched.prefix_queries;
    s->prefix_hits = s->cached_tokens = e->sched.prefix_hits;
    s->n_swaps = e->n_swaps;
    s->drafted_tokens = e->n_drafted;
    s->accepted_tokens = e->n_accepted;
    e->work = e->sched.waiting.count || e->sched.running.count || e->inbox || e->n_cancelled > 0;
}

static void fg__engine_count_pass(fg_engine *e, double seconds) {
    fg_stats *s = &e->stats;
    size_t i;
    int g;
    s->pass_tokens = e->batch.n_tokens;
    s->pass_seqs = e->batch.n_seqs;
    s->pass_decode_tokens = 0;
    s->pass_seconds = seconds;
    s->device_seconds += seconds;
    s->n_passes++;
    fg__histogram_add(&e->histograms.pass, seconds);
    for (i = 0; i < e->sched.pass.count; i++) {
        const fg__seq *seq = e->sched.pass.items[i];
        const fg__request *r = fg__sequence_of(e->sched.pass.items[i])->request;
        if (seq->n_scheduled - seq->n_drafted == 1 && seq->n_computed >= r->n_prompt) s->pass_decode_tokens += seq->n_scheduled;
        for (g = 0; g < e->graph.n_groups; g++) {
            const fg_group *group = &e->graph.groups[g];
            int32_t first = fg__kv_first_seen(&e->kv.groups[g], seq->n_computed);
            s->kv_bytes_read += (uint64_t)(seq->n_computed + seq->n_scheduled - first) * 2u * (uint64_t)group->n_layers *
                                (uint64_t)fg_type_bytes(group->kv_type, (int64_t)group->n_kv_head * group->head_dim);
        }
    }
    s->pass_prompt_tokens = s->pass_tokens - s->pass_decode_tokens;
    s->prompt_tokens += (uint64_t)s->pass_prompt_tokens;
}

/* One pass of at most `budget` tokens; false when there was nothing to do. */
static bool fg__engine_pass(fg_engine *e, int32_t budget) {
    double begin = fg__engine_now(e), start = 0, end = 0, done = 0;
    double kv_tokens = 0;
    fg_output output;
    fg_result result;
    bool any;
    size_t i;
    for (i = 0; i < e->sched.running.count; i++) fg__sequence_guess(e, fg__sequence_of(e->sched.running.items[i]));
    any = fg__sched_pass(&e->sched, budget);
    memset(&output, 0, sizeof(output));
    if (any) {
        fg__engine_fill_batch(e);
        for (i = 0; i < e->sched.pass.count; i++)
            kv_tokens += fg__sched_kv(&e->sched, e->sched.pass.items[i], e->sched.pass.items[i]->n_scheduled);
        start = fg__engine_now(e);
        fg__engine_times_before(e, begin, start);
        result = fg__engine_run_device(e, &output);
        end = e->pass_end = fg__engine_now(e);
        fg__engine_times_after(e, end);
        fg__mutex_lock(&e->lock);
        fg__engine_count_pass(e, end - start);
        fg__mutex_unlock(&e->lock);
        if (result == FG_OK) fg__engine_take_output(e, &output);
        else fg__engine_fail_pass(e, result);
    }
    fg__mutex_lock(&e->lock);
    if (any) done = fg__engine_now(e);
    if (any) {
        e->stats.host_seconds += done - begin - (end - start);
        fg__cost_add(&e->sched.cost, e->batch.n_tokens, kv_tokens, done - begin);
    }
    fg__engine_count(e);
    e->idle = !e->work;
    fg__mutex_unlock(&e->lock);
    if (any && e->desc.trace) fg__trace_pass(e, begin, start, end, done);
    return any;
}

/* ---- stepping --------------------------------------------------------------------------------- */

/* One pass that is to take no longer than `limit`. The first ones are small: nothing is known of their time yet. */
static bool fg__engine_step_once(fg_engine *e, double limit) {
    const fg__cost *cost = &e->sched.cost;
    int32_t budget = e->desc.token_budget;
    fg__engine_take_inbox(e);
    fg__engine_take_cancelled(e);
    e->sched.deadline = limit;
    if (limit < HUGE_VAL && cost->n < 4) budget = FG__MIN(budget, 8 << cost->n);
    return fg__engine_pass(e, budget);
}

/* Passes until `limit` seconds are over or less is left than one more would take. 0: one pass, as long as it likes. */
static void fg__engine_step_until(fg_engine *e, double limit) {
    const fg__cost *cost = &e->sched.cost;
    double begin = fg__engine_now(e), left = limit;
    while (fg__engine_step_once(e, limit > 0 ? left : HUGE_VAL) && limit > 0) {
        left = limit - (fg__engine_now(e) - begin);
        if (!(left > 0) || left < fg__cost_pass(cost) + 2 * fg__cost_token(cost)) break;
    }
}

fg_result fg_step(fg_engine *e, double time_limit, bool *busy) {
    if (busy) *busy = false;
    if (!e || !(time_limit >= 0)) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "fg_step needs an engine and a limit that is not negative");
    fg__mutex_lock(&e->step_lock);
    fg__engine_step_until(e, time_limit);
    fg__mutex_unlock(&e->step_lock);
    fg__mutex_lock(&e->lock);
    if (busy) *busy = e->work;
    fg__mutex_unlock(&e->lock);
    return FG_OK;
}

/* ---- making an engine ------------------------------------------------------------------------- */

static bool fg__engine_progress(const fg_engine *e, float fraction, const char *what) {
    return !e->desc.progress || e->desc.progress(fraction, what, e->desc.progress_user);
}

static fg_result fg__engine_load_model(fg_engine *e) {
    fg_model_desc d;
    fg_result r;
    e->model = e->desc.model;
    if (!e->desc.model == !e->desc.model_path) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "give a model or a model_path, one of the two");
    if (e->model) return FG_OK;
    memset(&d, 0, sizeof(d));
    d.path = e->desc.model_path;
    d.allocator = &e->env.allocator;
    d.log = e->desc.log;
    d.log_user = e->desc.log_user;
    d.progress = e->desc.progress;
    d.progress_user = e->desc.progress_user;
    if ((r = fg_model_load(&d, &e->owned_model)) != FG_OK) return r;
    e->model = e->desc.model = e->owned_model;
    return FG_OK;
}

static fg_result fg__engine_try_backend(fg_engine *e, const fg_backend *backend) {
    fg_device_desc d;
    fg_result r;
    if (backend->abi != FG_BACKEND_ABI || backend->size < sizeof(fg_backend))
        return fg__fail(FG_ERROR_UNSUPPORTED, "backend '%s' was built for another version", backend->name);
    if (backend->probe() < 1) return fg__fail(FG_ERROR_NOT_FOUND, "backend '%s' finds no device", backend->name);
    memset(&d, 0, sizeof(d));
    d.device = e->desc.device;
    d.cpu_path = e->desc.cpu_path;
    d.n_threads = e->desc.n_threads;
    d.options = e->desc.backend_options;
    d.allocator = e->env.allocator;
    d.log = e->desc.log;
    d.log_user = e->desc.log_user;
    d.progress = e->desc.progress;
    d.progress_user = e->desc.progress_user;
    if ((r = backend->open(&d, &e->device)) != FG_OK) return r;
    e->backend = backend;
    backend->caps(e->device, &e->caps);
    return FG_OK;
}

/* The first backend of the list that opens; the CPU is the last. */
static fg_result fg__engine_open(fg_engine *e) {
    fg_result r;
    int i;
    for (i = 0; i < FG_MAX_BACKENDS && e->desc.backends[i]; i++) {
        if ((r = fg__engine_try_backend(e, e->desc.backends[i])) == FG_OK) return FG_OK;
        if (e->desc.backends[i] == fg_backend_cpu()) return r;
        fg__log(&e->env, FG_LOG_WARNING, "%s: %s", e->desc.backends[i]->name, fg_last_error());
    }
    return fg__engine_try_backend(e, fg_backend_cpu());
}

/* Bytes of one token's KV in the groups of `kind`. */
static size_t fg__engine_token_bytes(const fg_engine *e, fg_group_kind kind) {
    size_t sum = 0;
    int g;
    for (g = 0; g < e->builder.n_groups; g++) {
        const fg_group *group = &e->builder.groups[g];
        if (group->kind == kind)
            sum += 2 * (size_t)group->n_layers * (size_t)fg_type_bytes(e->desc.kv_type, (int64_t)group->n_kv_head * group->head_dim);
    }
    return sum;
}

static fg_result fg__engine_check_desc(const fg_engine *e) {
    const fg_engine_desc *d = &e->desc;
    int dim = e->model->hp.head_dim;
    if (d->max_context < 0 || d->max_seqs < 0 || d->max_seqs > 65536 || d->max_queue < 0 || d->token_budget < 0 || d->kv_tokens < 0 ||
        d->token_budget > 1 << 20 || d->priority_head_start < 0 || d->n_threads < 0 || d->n_threads > 1024)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "the engine descriptor has a negative or absurd number");
    if (d->preemption < FG_PREEMPT_AUTO || d->preemption > FG_PREEMPT_SWAP)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "preemption %d is not known", (int)d->preemption);
    if (!(d->target_tbt_ms >= 0 && d->target_tbt_ms < 1e9f))
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "target_tbt_ms is %g, not 0 (none) or positive", (double)d->target_tbt_ms);
    if (d->policy < FG_POLICY_SPLITFUSE || d->policy > FG_POLICY_STATIC) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "policy %d is not known", (int)d->policy);
    if (d->block_tokens < 0 || d->block_tokens > 4096 || (d->block_tokens & (d->block_tokens - 1)))
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "block_tokens is %d, not a power of two up to 4096", d->block_tokens);
    if ((int)d->kv_type < 0 || (int)d->kv_type > 63 || !(e->caps.kv_types >> (int)d->kv_type & 1))
        return fg__fail(FG_ERROR_UNSUPPORTED, "the device has no KV cache of type %s", fg_type_name(d->kv_type));
    if (fg_type_bytes(d->kv_type, dim) == 0) return fg__fail(FG_ERROR_UNSUPPORTED, "heads of %d do not fit KV blocks of type %s", dim, fg_type_name(d->kv_type));
    return FG_OK;
}

/* Blocks of a window group that one sequence holds at most, in passes of up to max_tokens. */
static int64_t fg__engine_window_blocks(const fg_engine *e, int64_t max_tokens) {
    return (e->model->hp.window + max_tokens + e->desc.block_tokens - 1) / e->desc.block_tokens + 2;
}

/* How many tokens a pool of `bytes` is for. A window group has room for all of them, or, if that is less, for what
   max_seqs sequences hold; with whole prompts that depends on the result, and the first is taken. */
static size_t fg__engine_pool_tokens(const fg_engine *e, uint64_t bytes) {
    uint64_t full = fg__engine_token_bytes(e, FG_GROUP_FULL), window = fg__engine_token_bytes(e, FG_GROUP_WINDOW);
    uint64_t tokens = bytes / (full + window), held = tokens;
    if (full && e->desc.policy == FG_POLICY_SPLITFUSE)
        held = (uint64_t)(fg__engine_window_blocks(e, e->desc.token_budget) * e->desc.block_tokens * e->desc.max_seqs);
    if (held < tokens) tokens = (bytes - held * window) / full;
    return (size_t)FG__MIN(tokens, (uint64_t)1 << 30);
}

/* Fills in the defaults; sizes of the pool last. */
static fg_result fg__engine_resolve(fg_engine *e) {
    fg_engine_desc *d = &e->desc;
    size_t tokens;
    fg_result r;
    if ((r = fg__engine_check_desc(e)) != FG_OK) return r;
    d->n_threads = e->caps.n_threads;
    d->device = e->caps.name;
    if (!d->max_seqs) d->max_seqs = 64;
    if (!d->token_budget) d->token_budget = e->caps.token_budget;
    if (!d->block_tokens) d->block_tokens = e->caps.block_tokens;
    if (!d->priority_head_start) d->priority_head_start = 256;
    tokens = (size_t)FG__MAX(d->max_context ? d->max_context : e->model->hp.n_ctx_train, 8 * 2048);
    if (d->kv_tokens) tokens = (size_t)FG__MIN(d->kv_tokens, 1 << 30);
    else if (d->kv_bytes) tokens = fg__engine_pool_tokens(e, d->kv_bytes);
    else tokens = FG__MIN(tokens, fg__engine_pool_tokens(e, (uint64_t)4 << 30));
    tokens = tokens / (size_t)d->block_tokens * (size_t)d->block_tokens;
    if (tokens < (size_t)d->block_tokens * 2)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "a KV pool of %zu tokens is less than two blocks of %d", tokens, d->block_tokens);
    d->kv_tokens = (int)tokens;
    d->max_context = FG__MIN(d->max_context ? d->max_context : e->model->hp.n_ctx_train, d->kv_tokens);
    return FG_OK;
}

/* Blocks of a window group: what max_seqs sequences can hold at once, but no more than the pool has tokens. */
static int32_t fg__engine_group_blocks(const fg_engine *e, const fg_group *group) {
    int64_t all = e->desc.kv_tokens / e->desc.block_tokens;
    if (group->kind != FG_GROUP_WINDOW) return (int32_t)all;
    return (int32_t)FG__MIN(all, fg__engine_window_blocks(e, e->graph.max_tokens) * e->desc.max_seqs);
}

static void fg__engine_make_graph(fg_engine *e) {
    fg_graph *g = &e->graph;
    int i;
    bool whole = e->desc.policy != FG_POLICY_SPLITFUSE;
    g->ops = e->builder.ops;
    g->n_ops = (int32_t)e->builder.n_ops;
    g->slots = e->builder.slots;
    g->n_slots = (int32_t)e->builder.n_slots;
    g->tensors = e->builder.tensors;
    g->weights = e->weights;
    g->n_weights = (int32_t)e->builder.n_tensors;
    g->n_groups = e->builder.n_groups;
    g->max_tokens = whole ? FG__MAX(e->desc.token_budget, e->desc.max_context) + e->desc.max_seqs : e->desc.token_budget;
    g->max_rows = FG__MAX(e->desc.max_seqs, 64);
    g->max_seqs = e->desc.max_seqs;
    g->max_blocks_per_seq = (e->desc.max_context + e->desc.block_tokens - 1) / e->desc.block_tokens;
    g->n_vocab = e->model->hp.n_vocab;
    for (i = 0; i < g->n_groups; i++) {
        g->groups[i] = e->builder.groups[i];
        g->groups[i].block_tokens = e->desc.block_tokens;
        g->groups[i].kv_type = e->desc.kv_type;
        g->groups[i].n_blocks = fg__engine_group_blocks(e, &g->groups[i]);
    }
}

/* Model, device, graph and every default, but no memory of the device yet. */
static fg_result fg__engine_plan(fg_engine *e) {
    fg_result r;
    if ((r = fg__engine_load_model(e)) != FG_OK) return r;
    if (e->model->vocab_only) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "the model was loaded with vocab_only");
    if ((r = fg__engine_open(e)) != FG_OK) return r;
    if ((r = fg__graph_build(&e->builder, &e->env, e->model)) != FG_OK) return r;
    e->weights = (fg_weight **)fg__calloc(&e->env, e->builder.n_tensors, sizeof(fg_weight *));
    if (!e->weights) return FG_ERROR_OUT_OF_MEMORY;
    if ((r = fg__engine_resolve(e)) != FG_OK) return r;
    fg__engine_make_graph(e);
    return FG_OK;
}

static fg_result fg__engine_pack(fg_engine *e) {
    size_t i, n = e->builder.n_tensors, bytes;
    fg_result r;
    for (i = 0; i < n; i++) {
        if (!fg__engine_progress(e, (float)i / (float)n, "packing weights")) return fg__fail(FG_ERROR_CANCELLED, "loading was stopped");
        r = e->backend->pack(e->device, &e->builder.tensors[i], e->builder.uses[i], &e->weights[i], &bytes);
        if (r != FG_OK) return r;
    }
    return fg__engine_progress(e, 1, "packing weights") ? FG_OK : fg__fail(FG_ERROR_CANCELLED, "loading was stopped");
}

/* One allocation for all arrays of the batch block. */
static fg_result fg__engine_make_batch(fg_engine *e) {
    const fg_graph *g = &e->graph;
    size_t tokens = (size_t)g->max_tokens, seqs = (size_t)g->max_seqs, table = seqs * (size_t)g->max_blocks_per_seq;
    size_t total = (2 + (size_t)g->n_groups) * tokens + 2 * seqs + 1 + (size_t)g->max_rows + (size_t)g->n_groups * table;
    int32_t *at = (int32_t *)fg__calloc(&e->env, total, sizeof(int32_t));
    int i;
    if (!at) return FG_ERROR_OUT_OF_MEMORY;
    e->batch_memory = at;
    e->batch.tokens = e->tokens = at, at += tokens;
    e->batch.positions = e->positions = at, at += tokens;
    e->batch.cu_q = e->cu_q = at, at += seqs + 1;
    e->batch.kv_len = e->kv_len = at, at += seqs;
    e->batch.rows = e->rows = at, at += g->max_rows;
    for (i = 0; i < g->n_groups; i++) {
        e->batch.slots[i] = e->slots[i] = at, at += tokens;
        e->batch.tables[i] = e->tables[i] = at, at += table;
    }
    return FG_OK;
}

/* ---- how many tokens fill the device ---- */

/* Makes the batch a prompt of n tokens, in the first blocks of the pool. */
static void fg__engine_probe_batch(fg_engine *e, int32_t n) {
    int32_t bt = e->desc.block_tokens, i;
    int g;
    e->batch.n_tokens = n;
    e->batch.n_seqs = e->batch.n_rows = 1;
    e->batch.want_logits = false;
    e->cu_q[0] = 0;
    e->cu_q[1] = e->kv_len[0] = n;
    e->rows[0] = n - 1;
    for (i = 0; i < n; i++) {
        e->tokens[i] = i % e->graph.n_vocab;
        e->positions[i] = i;
        for (g = 0; g < e->graph.n_groups; g++) {
            int32_t block = i / bt % e->graph.groups[g].n_blocks;
            e->tables[g][i / bt] = block;
            e->slots[g][i] = block * bt + i % bt;
        }
    }
}

/* Tokens per second of passes of n tokens: the best of three. */
static fg_result fg__engine_probe(fg_engine *e, int32_t n, double *rate) {
    fg_output output;
    double best = HUGE_VAL, start;
    int i;
    for (i = 0; i < 3; i++) {
        fg_result r;
        fg__engine_probe_batch(e, n);
        start = fg__engine_now(e);
        if ((r = e->backend->submit(e->device, e->plan, &e->batch)) != FG_OK) return r;
        if ((r = e->backend->wait(e->device, e->plan, &output)) != FG_OK) return r;
        best = FG__MIN(best, fg__engine_now(e) - start);
    }
    *rate = best > 0 ? n / best : HUGE_VAL;
    return FG_OK;
}

/* Sets the budget to the least power of two that has 90% of the best rate. */
static fg_result fg__engine_saturate(fg_engine *e) {
    double rates[32], best = 0;
    int n = 0, i;
    int32_t most = FG__MIN(e->desc.token_budget, e->desc.max_context), tokens;
    for (tokens = FG__MIN(8, most);; tokens = FG__MIN(tokens * 2, most)) {
        fg_result r = fg__engine_probe(e, tokens, &rates[n]);
        if (r != FG_OK) return r;
        best = FG__MAX(best, rates[n]);
        n++;
        if (tokens == most) break;
    }
    for (i = 0, tokens = FG__MIN(8, most); i < n && rates[i] < 0.9 * best; i++) tokens = FG__MIN(tokens * 2, most);
    e->desc.token_budget = tokens;
    return FG_OK;
}

static fg_result fg__engine_find_ends(fg_engine *e) {
    int i, n = 0;
    for (i = 0; i < e->model->hp.n_vocab; i++) n += fg__vocab_is_end(e->model->vocab, i);
    e->end_tokens = (int32_t *)fg__malloc(&e->env, (size_t)n, sizeof(int32_t));
    if (!e->end_tokens) return FG_ERROR_OUT_OF_MEMORY;
    for (i = 0; i < e->model->hp.n_vocab; i++)
        if (fg__vocab_is_end(e->model->vocab, i)) e->end_tokens[e->n_end_tokens++] = i;
    return FG_OK;
}

static void fg__engine_make_swap(fg_engine *e) {
    size_t bytes, sum = 0;
    int g;
    if (!e->backend->swap_blocks) return;
    for (g = 0; g < e->graph.n_groups; g++)
        if (e->backend->swap_blocks(e->device, e->plan, g, NULL, 0, NULL, true, &bytes) == FG_OK) sum += bytes * (size_t)e->graph.groups[g].n_blocks;
    if (!e->desc.swap_bytes) e->desc.swap_bytes = sum;
    e->swap_byte_seconds = 0.25e-9; /* until it is known */
    e->sched.swap = fg__engine_swap;
    e->sched.swap_user = e;
}

static fg_result fg__engine_make(fg_engine *e) {
    fg_result r;
    if ((r = fg__engine_plan(e)) != FG_OK) return r;
    if ((r = fg__engine_pack(e)) != FG_OK) return r;
    if ((r = e->backend->prepare(e->device, &e->graph, &e->plan, NULL)) != FG_OK) return r;
    r = fg__kv_init(&e->kv, &e->env, e->graph.groups, e->graph.n_groups, !e->desc.no_prefix_cache, (uint64_t)e->model->n_parameters);
    if (r != FG_OK) return r;
    if ((r = fg__sched_init(&e->sched, &e->env, &e->kv, &e->desc, e->graph.max_tokens, e->graph.max_rows)) != FG_OK) return r;
    if ((r = fg__engine_make_batch(e)) != FG_OK) return r;
    if (e->desc.saturate_budget && (r = fg__engine_saturate(e)) != FG_OK) return r;
    if ((r = fg__sample_scratch_reserve(&e->env, &e->scratch, e->graph.n_vocab)) != FG_OK) return r;
    fg__engine_make_swap(e);
    e->entries = (fg__pass_entry *)fg__malloc(&e->env, (size_t)e->desc.max_seqs, sizeof(fg__pass_entry));
    e->hook_logits = (float *)fg__malloc(&e->env, (size_t)e->graph.n_vocab, sizeof(float));
    if (!e->entries || !e->hook_logits) return FG_ERROR_OUT_OF_MEMORY;
    fg__engine_count(e);
    if ((r = fg__engine_find_ends(e)) == FG_OK && e->desc.trace) fg__trace_begin(e);
    return r;
}

static fg_result fg__engine_new(const fg_engine_desc *desc, fg_engine **out) {
    fg__env env = fg__env_make(desc->allocator, desc->log, desc->log_user);
    fg_engine *e = (fg_engine *)fg__calloc(&env, 1, sizeof(fg_engine));
    if (!e) return FG_ERROR_OUT_OF_MEMORY;
    e->env = env;
    e->desc = *desc;
    e->table_free = -1;
    e->inbox_end = &e->inbox;
    e->events_end = &e->events;
    fg__mutex_init(&e->lock);
    fg__mutex_init(&e->step_lock);
    fg__cond_init(&e->changed);
    *out = e;
    return FG_OK;
}

fg_result fg_engine_create(const fg_engine_desc *desc, fg_engine **engine) {
    fg_engine *e;
    fg_result r;
    if (!desc || !engine) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "fg_engine_create needs a descriptor and a place for the engine");
    *engine = NULL;
    if ((r = fg__engine_new(desc, &e)) != FG_OK) return r;
    r = fg__engine_make(e);
    if (r == FG_OK) *engine = e;
    else fg_engine_free(e);
    return r;
}

fg_result fg_estimate_memory(const fg_engine_desc *desc, fg_memory *memory) {
    fg_engine *e;
    fg_result r;
    size_t i, bytes, weights = 0;
    if (!desc || !memory) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "fg_estimate_memory needs a descriptor and a place for the result");
    memset(memory, 0, sizeof(*memory));
    if ((r = fg__engine_new(desc, &e)) != FG_OK) return r;
    r = fg__engine_plan(e);
    for (i = 0; r == FG_OK && i < e->builder.n_tensors; i++, weights += bytes) {
        bytes = 0;
        r = e->backend->pack(e->device, &e->builder.tensors[i], e->builder.uses[i], NULL, &bytes);
    }
    if (r == FG_OK) r = e->backend->prepare(e->device, &e->graph, NULL, memory);
    memory->weights = weights;
    memory->total = memory->weights + memory->kv + memory->activations;
    fg_engine_free(e);
    return r;
}

static void fg__engine_free_requests(fg_engine *e) {
    size_t i;
    for (i = 0; i < e->table_count; i++) fg__request_free(&e->env, e->table[i].request);
    while (e->events) {
        fg__event_node *next = e->events->next;
        fg__free(&e->env, e->events);
        e->events = next;
    }
    fg__free(&e->env, e->current);
    fg__free(&e->env, e->table);
}

static void fg__engine_close_device(fg_engine *e) {
    size_t i;
    if (!e->backend) return;
    if (e->plan) e->backend->release(e->device, e->plan);
    for (i = 0; e->weights && i < e->builder.n_tensors; i++)
        if (e->weights[i]) e->backend->unpack(e->device, e->weights[i]);
    e->backend->close(e->device);
}

void fg_engine_free(fg_engine *e) {
    fg__env env;
    if (!e) return;
    env = e->env;
    if (e->traced) fg__trace(e, "\n]\n");
    fg__engine_free_requests(e);
    fg__engine_close_device(e);
    if (e->sched.env) fg__sched_destroy(&e->sched);
    if (e->kv.env) fg__kv_destroy(&e->kv);
    if (e->builder.env) fg__graph_free(&e->builder);
    fg__sample_scratch_free(&env, &e->scratch);
    fg__free(&env, e->weights);
    fg__free(&env, e->batch_memory);
    fg__free(&env, e->entries);
    fg__free(&env, e->hook_logits);
    fg__free(&env, e->end_tokens);
    fg__cond_destroy(&e->changed);
    fg__mutex_destroy(&e->lock);
    fg__mutex_destroy(&e->step_lock);
    fg_model_free(e->owned_model);
    fg__free(&env, e);
}

/* ================================================================================================
   >>public  the rest of the public functions
   ================================================================================================ */

const char *fg_version(void) { return FG_VERSION; }

fg_result fg_tokenize(const fg_model *m, const char *text, size_t text_length, unsigned flags, int32_t *ids, size_t capacity,
                      size_t *count) {
    int32_t *own;
    size_t n;
    fg_result r;
    if (!m || (!text && text_length)) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "fg_tokenize needs a model and a text");
    if ((r = fg__vocab_encode(m->vocab, text ? text : "", text_length, flags, &own, &n)) != FG_OK) return r;
    if (ids && n) memcpy(ids, own, FG__MIN(n, capacity) * sizeof(int32_t));
    if (count) *count = n;
    fg__free(&m->env, own);
    return n <= capacity ? FG_OK : fg__fail(FG_ERROR_BUFFER_TOO_SMALL, "%zu tokens, room for %zu", n, capacity);
}

fg_result fg_detokenize(const fg_model *m, const int32_t *ids, size_t count, unsigned flags, char *text, size_t capacity,
                        size_t *length) {
    fg__utf8 stream;
    fg__text out;
    fg_result r;
    size_t i, n;
    if (!m || (!ids && count)) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "fg_detokenize needs a model and ids");
    memset(&stream, 0, sizeof(stream));
    memset(&out, 0, sizeof(out));
    out.env = &m->env;
    stream.strip_space = m->vocab->spm && m->vocab->add_space;
    for (i = 0; i < count; i++) {
        const char *piece;
        if (ids[i] < 0 || ids[i] >= m->vocab->n_tokens) {
            fg__text_free(&out);
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "token %d is not in the vocabulary of %d", ids[i], m->vocab->n_tokens);
        }
        piece = fg__vocab_piece(m->vocab, ids[i], !(flags & FG_NO_SPECIAL), &n);
        fg__utf8_push(&stream, piece, n, &out);
    }
    fg__utf8_flush(&stream, &out);
    r = out.failed ? FG_ERROR_OUT_OF_MEMORY : fg__text_out(out.data, out.length, text, capacity, length);
    fg__text_free(&out);
    return r;
}

bool fg_token_is_end(const fg_model *m, int32_t token) {
    return token >= 0 && token < m->vocab->n_tokens && fg__vocab_is_end(m->vocab, token);
}

const char *fg_token_text(const fg_model *m, int32_t token, size_t *length) {
    *length = 0;
    return token >= 0 && token < m->vocab->n_tokens ? fg__vocab_piece(m->vocab, token, true, length) : NULL;
}

/* The text of a token as templates see it. False: the vocabulary has no such token. */
static bool fg__chat_token(const fg_model *m, const char *name, int id, fg__chat_text *text) {
    if (id < 0) return false;
    text->name = name;
    text->text = fg__vocab_piece(m->vocab, id, true, &text->length);
    return true;
}

fg_result fg_chat_format(const fg_model *m, const char *messages_json, const char *options_json, char *text, size_t capacity,
                         size_t *length) {
    fg__chat_text texts[4];
    size_t n = 0;
    fg__text out;
    fg_result r;
    if (!m || !messages_json) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "fg_chat_format needs a model and messages");
    if (!m->chat_template) return fg__fail(FG_ERROR_NOT_FOUND, "the model has no chat template");
    n += fg__chat_token(m, "bos_token", m->vocab->bos, &texts[n]);
    n += fg__chat_token(m, "eos_token", m->vocab->eos, &texts[n]);
    n += fg__chat_token(m, "unk_token", m->vocab->unk, &texts[n]);
    n += fg__chat_token(m, "pad_token", m->vocab->pad, &texts[n]);
    memset(&out, 0, sizeof(out));
    out.env = &m->env;
    r = fg__chat_format(&m->env, m->chat_template, strlen(m->chat_template), messages_json, options_json, texts, n, &out);
    if (r == FG_OK && out.failed) r = FG_ERROR_OUT_OF_MEMORY;
    if (r == FG_OK) r = fg__text_out(out.data, out.length, text, capacity, length);
    fg__text_free(&out);
    return r;
}

void fg_engine_get_desc(const fg_engine *e, fg_engine_desc *desc) { *desc = e->desc; }
const fg_model *fg_engine_get_model(const fg_engine *e) { return e->model; }
const char *fg_engine_get_backend(const fg_engine *e) { return e->backend->name; }
void fg_engine_get_device(const fg_engine *e, fg_device_caps *caps) { *caps = e->caps; }

void fg_engine_get_memory(fg_engine *e, fg_memory *memory) {
    size_t i, bytes;
    memset(memory, 0, sizeof(*memory));
    e->backend->prepare(e->device, &e->graph, NULL, memory);
    memory->weights = 0;
    for (i = 0; i < e->builder.n_tensors; i++) {
        bytes = 0;
        e->backend->pack(e->device, &e->builder.tensors[i], e->builder.uses[i], NULL, &bytes);
        memory->weights += bytes;
    }
    memory->total = memory->weights + memory->kv + memory->activations;
}

void fg_get_stats(fg_engine *e, fg_stats *stats) {
    fg__mutex_lock(&e->lock);
    *stats = e->stats;
    stats->n_waiting += e->n_inbox;
    fg__mutex_unlock(&e->lock);
}

void fg_get_histograms(fg_engine *e, fg_histograms *histograms) {
    fg__mutex_lock(&e->lock);
    *histograms = e->histograms;
    fg__mutex_unlock(&e->lock);
}

void fg_reset_stats(fg_engine *e) {
    fg__mutex_lock(&e->step_lock);
    fg__mutex_lock(&e->lock);
    memset(&e->stats, 0, sizeof(e->stats));
    memset(&e->histograms, 0, sizeof(e->histograms));
    e->n_drafted = e->n_accepted = e->n_swaps = 0;
    e->sched.n_preemptions = e->sched.prefix_queries = e->sched.prefix_hits = 0;
    fg__engine_count(e);
    fg__mutex_unlock(&e->lock);
    fg__mutex_unlock(&e->step_lock);
}

void fg_clear_prefix_cache(fg_engine *e) {
    fg__mutex_lock(&e->step_lock);
    fg__kv_forget(&e->kv);
    fg__mutex_lock(&e->lock);
    fg__engine_count(e);
    fg__mutex_unlock(&e->lock);
    fg__mutex_unlock(&e->step_lock);
}

fg_result fg_graph_text(const fg_engine *e, char *text, size_t capacity, size_t *length) {
    fg__text out;
    fg_result r;
    memset(&out, 0, sizeof(out));
    out.env = &e->env;
    fg__graph_print(&e->graph, &out);
    r = out.failed ? FG_ERROR_OUT_OF_MEMORY : fg__text_out(out.data, out.length, text, capacity, length);
    fg__text_free(&out);
    return r;
}

fg_result fg_measure_roofs(fg_engine *e, fg_roofs *roofs) {
    fg_result r;
    fg__mutex_lock(&e->step_lock);
    r = e->backend->profile(e->device, roofs);
    fg__mutex_unlock(&e->step_lock);
    return r;
}

fg_result fg_generate(fg_engine *e, const fg_request_desc *desc, fg_text_fn on_text, void *user) {
    fg_request request;
    fg_event event;
    fg_result r;
    bool busy = true;
    if ((r = fg_submit(e, desc, &request)) != FG_OK) return r;
    for (;;) {
        while (fg_next_event(e, &event)) {
            if (event.request.id != request.id) continue;
            if (on_text && event.text_length) on_text(event.text, event.text_length, user);
            if (event.type == FG_EVENT_END) return event.result;
        }
        if (!busy) return fg__fail(FG_ERROR_NOT_FOUND, "another thread took the events of fg_generate");
        fg_step(e, 0, &busy); /* its arguments are right: it cannot fail */
    }
}

#endif /* FASTGEN_IMPLEMENTATION_INCLUDED */
#endif /* FASTGEN_IMPLEMENTATION */

/* Licence: at your choice one of the two.

   1. Public domain. Anyone is free to copy, modify, publish, use, compile, sell, or distribute this software, in source or
   binary form, for any purpose and by any means. In jurisdictions that recognise copyright laws, the authors dedicate any and
   all copyright interest in it to the public domain. It comes as it is, without warranty of any kind.

   2. MIT, copyright (c) 2026 the fastgen.h authors: the text is in the file LICENSE, and at https://opensource.org/license/mit */
