/* What differs between systems: terminals, the clock, arguments and file names in UTF-8. The rest is plain C. */

#include <signal.h>

#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#include <shellapi.h>
#if defined(_MSC_VER)
#pragma comment(lib, "shell32")
#endif

static void *xrealloc(void *pointer, size_t size);

static bool is_terminal(FILE *file) { return _isatty(_fileno(file)) != 0; }

static void terminal_size(int *columns, int *rows) {
    CONSOLE_SCREEN_BUFFER_INFO info;
    if (!GetConsoleScreenBufferInfo(GetStdHandle(STD_ERROR_HANDLE), &info)) return;
    *columns = info.srWindow.Right - info.srWindow.Left + 1;
    *rows = info.srWindow.Bottom - info.srWindow.Top + 1;
}

static double now_seconds(void) {
    LARGE_INTEGER count, rate;
    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&rate);
    return (double)count.QuadPart / (double)rate.QuadPart;
}

static void sleep_seconds(double seconds) { Sleep((DWORD)(seconds * 1000.0)); }

static bool terminal_is_utf8(void) { return true; }

/* Text without CR, UTF-8 and escape sequences on the console, arguments in UTF-8. */
static void platform_start(int *argc, char ***argv) {
    static const DWORD handles[2] = {STD_OUTPUT_HANDLE, STD_ERROR_HANDLE};
    wchar_t **wide = CommandLineToArgvW(GetCommandLineW(), argc);
    DWORD mode;
    int i;
    _setmode(_fileno(stdin), _O_BINARY);
    _setmode(_fileno(stdout), _O_BINARY);
    SetConsoleOutputCP(CP_UTF8);
    SetConsoleCP(CP_UTF8);
    for (i = 0; i < 2; i++)
        if (GetConsoleMode(GetStdHandle(handles[i]), &mode))
            SetConsoleMode(GetStdHandle(handles[i]), mode | 4 /* ENABLE_VIRTUAL_TERMINAL_PROCESSING */);
    *argv = (char **)xrealloc(NULL, ((size_t)*argc + 1) * sizeof(char *));
    for (i = 0; i < *argc; i++) {
        int size = WideCharToMultiByte(CP_UTF8, 0, wide[i], -1, NULL, 0, NULL, NULL);
        (*argv)[i] = (char *)xrealloc(NULL, (size_t)size);
        WideCharToMultiByte(CP_UTF8, 0, wide[i], -1, (*argv)[i], size, NULL, NULL);
    }
    (*argv)[*argc] = NULL;
}

static FILE *open_for_reading(const char *path) {
    wchar_t wide[1024];
    if (!MultiByteToWideChar(CP_UTF8, 0, path, -1, wide, 1024)) return NULL;
    return _wfopen(wide, L"rb");
}

static FILE *open_for_writing(const char *path) {
    wchar_t wide[1024];
    if (!MultiByteToWideChar(CP_UTF8, 0, path, -1, wide, 1024)) return NULL;
    return _wfopen(wide, L"wb");
}

#else
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static bool is_terminal(FILE *file) { return isatty(fileno(file)) != 0; }

static void terminal_size(int *columns, int *rows) {
    struct winsize size;
    if (ioctl(fileno(stderr), TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return;
    *columns = size.ws_col;
    *rows = size.ws_row;
}

static double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void sleep_seconds(double seconds) {
    struct timespec t;
    t.tv_sec = (time_t)seconds;
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
}

static bool terminal_is_utf8(void) {
    static const char *const names[3] = {"LC_ALL", "LC_CTYPE", "LANG"};
    int i;
    for (i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);
        if (value && *value) return strstr(value, "UTF-8") || strstr(value, "utf8") || strstr(value, "UTF8");
    }
    return false;
}

static void platform_start(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
}

static FILE *open_for_reading(const char *path) { return fopen(path, "rb"); }
static FILE *open_for_writing(const char *path) { return fopen(path, "wb"); }
#endif

/* Ctrl-C: the first sets the flag, so that a generation or a view ends in order; the second ends the program. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    interrupted = 1;
    signal(number, SIG_DFL);
}

static void catch_interrupts(void) {
    interrupted = 0;
    signal(SIGINT, on_interrupt);
}
