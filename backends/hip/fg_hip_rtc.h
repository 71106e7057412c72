/* fg_hip_rtc.h: kernels compiled at run time by HIPRTC, for AMD devices that none of the code objects built in suits.

   Included by fg_hip.h. The source of the kernels is an image with the target "source", one file; it takes about a minute. */

#ifndef FG_HIP_RTC_H
#define FG_HIP_RTC_H

typedef struct fg__hip_rtc {
    void *library; /* NULL: the driver's own, which had these functions before ROCm 7 */
    int(FG__GPU_CALL *create)(void **program, const char *source, const char *name, int n_headers, const char **headers, const char **names);
    int(FG__GPU_CALL *compile)(void *program, int n_options, const char **options);
    int(FG__GPU_CALL *log_bytes)(void *program, size_t *bytes);
    int(FG__GPU_CALL *log)(void *program, char *text);
    int(FG__GPU_CALL *code_bytes)(void *program, size_t *bytes);
    int(FG__GPU_CALL *code)(void *program, char *code);
    int(FG__GPU_CALL *destroy)(void **program);
} fg__hip_rtc;

static const char *const fg__hip_rtc_names[] = {
    "hiprtcCreateProgram", "hiprtcCompileProgram", "hiprtcGetProgramLogSize", "hiprtcGetProgramLog", "hiprtcGetCodeSize", "hiprtcGetCode",
    "hiprtcDestroyProgram",
};

/* The newest that is installed; on Windows its name has the version in it, as in hiprtc0605.dll. */
static void *fg__hip_rtc_library(void) {
    void *library = NULL;
#if FG__WINDOWS
    char name[32];
    int version;
    for (version = 99; version >= 50 && !library; version--) { /* of 9.9 to 5.0 */
        snprintf(name, sizeof(name), "hiprtc%02d%02d.dll", version / 10, version % 10);
        library = fg__gpu_library(name);
    }
    return library ? library : fg__gpu_library("hiprtc.dll");
#else
    static const char *const names[] = {"libhiprtc.so", "libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5"};
    size_t i;
    for (i = 0; i < FG__COUNT(names) && !library; i++) library = fg__gpu_library(names[i]);
    return library;
#endif
}

static fg_result fg__hip_rtc_find(const fg__gpu_device *d, fg__hip_rtc *rtc) {
    const char *own = getenv("FASTGEN_HIPRTC_LIBRARY");
    size_t i;
    memset(rtc, 0, sizeof(*rtc));
    rtc->library = own && *own ? fg__gpu_library(own) : fg__hip_rtc_library();
    for (i = 0; i < FG__COUNT(fg__hip_rtc_names); i++) {
        fg__gpu_fn function = NULL;
        if (rtc->library || !(own && *own))
            function = fg__gpu_symbol(rtc->library ? rtc->library : d->loader.library, fg__hip_rtc_names[i]);
        if (!function)
            return fg__fail(FG_ERROR_UNSUPPORTED, "%s (%s) has no kernels among those built in, and HIPRTC, which could compile them, is missing",
                            d->name, d->isa);
        memcpy((char *)&rtc->create + i * sizeof(function), &function, sizeof(function));
    }
    return FG_OK;
}

/* The compiler's first words about what it does not like. */
static fg_result fg__hip_rtc_fail(const fg__gpu_device *d, const fg__hip_rtc *rtc, void *program, int code) {
    size_t bytes = 0;
    char *text = NULL;
    fg_result r;
    if (program && !rtc->log_bytes(program, &bytes) && bytes > 0 && bytes < 1 << 24)
        text = (char *)fg__calloc(&d->env, bytes + 1, 1);
    if (text && rtc->log(program, text)) text[0] = 0;
    r = fg__fail(FG_ERROR_UNSUPPORTED, "HIPRTC does not compile the kernels for %s: error %d%s%.300s", d->isa, code, text && *text ? ", " : "",
                 text ? text : "");
    fg__free(&d->env, text);
    return r;
}

/* Compiles `source` for the device and loads what comes of it. */
static fg_result fg__hip_rtc_build(fg__gpu_device *d, const fg__hip_rtc *rtc, const char *source) {
    const char *options[] = {"-O3", "-std=c++17", "-ffp-contract=off", NULL};
    char target[96], *object = NULL;
    void *program = NULL;
    size_t bytes = 0;
    fg_result r = FG_OK;
    int code;
    snprintf(target, sizeof(target), "--offload-arch=%s", d->isa);
    options[3] = target;
    code = rtc->create(&program, source, "fastgen.hip", 0, NULL, NULL);
    if (code) program = NULL;
    if (!code) code = rtc->compile(program, 4, options);
    if (!code) code = rtc->code_bytes(program, &bytes);
    if (code || !bytes) r = fg__hip_rtc_fail(d, rtc, program, code);
    else if (!(object = (char *)fg__malloc(&d->env, bytes, 1))) r = FG_ERROR_OUT_OF_MEMORY;
    else if ((code = rtc->code(program, object)) != 0) r = fg__hip_rtc_fail(d, rtc, program, code);
    else {
        code = d->api.module_load(&d->module, object);
        if (code) d->module = NULL;
        r = fg__gpu_check(d, code, "loading kernels");
    }
    fg__free(&d->env, object);
    if (program) (void)rtc->destroy(&program);
    return r;
}

static fg_result fg__hip_compile(fg__gpu_device *d, const fg__gpu_image *image) {
    char *source;
    fg__hip_rtc rtc;
    fg_result r = fg__hip_rtc_find(d, &rtc);
    if (r == FG_OK) {
        fg__log(&d->env, FG_LOG_WARNING, "%s (%s) has no kernels among those built in; HIPRTC compiles them, which takes a minute or two", d->name,
                d->isa);
        source = (char *)fg__malloc(&d->env, image->bytes + 1, 1);
        if (!source) r = FG_ERROR_OUT_OF_MEMORY;
        else if (!fg__gpu_unpack_image(image, (uint8_t *)source))
            r = fg__fail(FG_ERROR_DEVICE, "the source of the kernels is damaged");
        else {
            source[image->bytes] = 0;
            r = fg__hip_rtc_build(d, &rtc, source);
        }
        fg__free(&d->env, source);
    }
    fg__gpu_library_close(rtc.library);
    return r;
}

#endif /* FG_HIP_RTC_H */
