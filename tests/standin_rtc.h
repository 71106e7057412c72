/* The functions of HIPRTC that backends/hip/fg_hip_rtc.h calls, for the stand-in driver: a program is accepted when its options name
   the device's instruction set and its source is free of "#error". Included by standin_gpu.c. */

typedef struct si_program {
    char source[64], log[64];
    bool compiled;
} si_program;

static int si_rtc_begin(void) { return si.rtc_calls++ == si.rtc_fail ? 11 : 0; } /* "internal error" */

/* Calls begin at number 0 again. */
void standin_fail_rtc(long call) {
    si.rtc_calls = 0;
    si.rtc_fail = call;
}

int hiprtcCreateProgram(void **out, const char *source, const char *name, int n_headers, const char **headers, const char **names) {
    si_program *p;
    int code = si_rtc_begin();
    (void)headers, (void)names;
    if (code) return code;
    if (!source || !name || n_headers != 0 || !(p = (si_program *)calloc(1, sizeof(*p)))) return 3;
    snprintf(p->source, sizeof(p->source), "%s", source);
    si.rtc_programs++;
    *out = p;
    return 0;
}

int hiprtcCompileProgram(void *program, int n, const char **options) {
    si_program *p = (si_program *)program;
    char target[64];
    int code = si_rtc_begin(), i;
    if (code) return code;
    snprintf(target, sizeof(target), "--offload-arch=%s", si.device.isa);
    for (i = 0; i < n; i++)
        if (strcmp(options[i], target) == 0) p->compiled = strstr(p->source, "#error") == NULL;
    snprintf(p->log, sizeof(p->log), "%s", p->compiled ? "" : "kernels of the test are wrong");
    return p->compiled ? 0 : 6;
}

int hiprtcGetProgramLogSize(void *program, size_t *bytes) {
    int code = si_rtc_begin();
    *bytes = code ? 0 : strlen(((si_program *)program)->log) + 1;
    return code;
}

int hiprtcGetProgramLog(void *program, char *log) {
    int code = si_rtc_begin();
    if (!code) strcpy(log, ((si_program *)program)->log);
    return code;
}

int hiprtcGetCodeSize(void *program, size_t *bytes) {
    int code = si_rtc_begin();
    *bytes = code ? 0 : 8;
    return code ? code : ((si_program *)program)->compiled ? 0 : 3;
}

int hiprtcGetCode(void *program, char *to) {
    int code = si_rtc_begin();
    if (code || !((si_program *)program)->compiled) return code ? code : 3;
    memcpy(to, "\177ELFcode", 8);
    return 0;
}

int hiprtcDestroyProgram(void **program) {
    free(*program);
    *program = NULL;
    si.rtc_programs--;
    return 0;
}
