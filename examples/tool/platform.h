/* What differs between systems: terminals, the clock, arguments and file names in UTF-8, sockets, threads. The rest is plain C. */

#include <signal.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#include <winsock2.h>
#include <ws2tcpip.h>
#include <shellapi.h>
#if defined(_MSC_VER)
#pragma comment(lib, "shell32")
#pragma comment(lib, "ws2_32")
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

static FILE *open_wide(const char *path, const wchar_t *mode) {
    wchar_t wide[1024];
    if (!MultiByteToWideChar(CP_UTF8, 0, path, -1, wide, 1024)) return NULL;
    return _wfopen(wide, mode);
}

static FILE *open_for_reading(const char *path) { return open_wide(path, L"rb"); }
static FILE *open_for_writing(const char *path) { return open_wide(path, L"wb"); }

/* Whether a file can be written, which this does not. One that was not there may be left, empty. */
static bool can_write(const char *path) {
    FILE *file = open_wide(path, L"ab");
    return file && fclose(file) == 0;
}

/* Whether two names are of one path. */
static bool same_file(const char *a, const char *b) {
    wchar_t name[1024], full[2][1024];
    int i;
    for (i = 0; i < 2; i++)
        if (!MultiByteToWideChar(CP_UTF8, 0, i ? b : a, -1, name, 1024) || !_wfullpath(full[i], name, 1024)) return false;
    return _wcsicmp(full[0], full[1]) == 0;
}

/* A part of a line that is typed, at most 256 units of UTF-16, in UTF-8: its bytes; 0: the end (Ctrl-Z), or an error. */
static int read_console(HANDLE console, char *to, int size) {
    wchar_t wide[257];
    DWORD n = 0, more = 0;
    if (!ReadConsoleW(console, wide, 256, &n, NULL) || n == 0 || wide[0] == 26) return 0;
    if (wide[n - 1] >= 0xD800 && wide[n - 1] < 0xDC00 && ReadConsoleW(console, wide + n, 1, &more, NULL)) n += more; /* a whole pair */
    return WideCharToMultiByte(CP_UTF8, 0, wide, (int)n, to, size, NULL, NULL);
}

/* The next byte or EOF, as getc, whose text from consoles before 2023 has NULs for all letters beyond ASCII. One file at a time. */
static int read_byte(FILE *file) {
    static char text[257 * 3];
    static int n, at;
    HANDLE console = (HANDLE)_get_osfhandle(_fileno(file));
    DWORD mode;
    if (at == n) {
        if (!is_terminal(file) || !GetConsoleMode(console, &mode)) return getc(file);
        n = read_console(console, text, (int)sizeof(text));
        at = 0;
    }
    return at < n ? (unsigned char)text[at++] : EOF;
}

/* As fread; fewer bytes: the end, which a console could be read beyond. */
static size_t read_bytes(FILE *file, char *to, size_t size) {
    size_t n = 0;
    int c;
    if (!is_terminal(file)) return fread(to, 1, size, file);
    while (n < size && (c = read_byte(file)) != EOF) to[n++] = (char)c;
    return n;
}

/* "<folder of the user's caches>\\fastgen\\<name>", whose folder is made; false: there is none. */
static bool user_cache_file(char *to, size_t size, const char *name) {
    const wchar_t *base = _wgetenv(L"LOCALAPPDATA");
    wchar_t folder[1024];
    char narrow[1024];
    if (!base || !*base || wcslen(base) > 900) return false;
    swprintf(folder, 1024, L"%ls\\fastgen", base);
    if (!CreateDirectoryW(folder, NULL) && GetLastError() != ERROR_ALREADY_EXISTS) return false;
    if (!WideCharToMultiByte(CP_UTF8, 0, folder, -1, narrow, sizeof(narrow), NULL, NULL)) return false;
    return (size_t)snprintf(to, size, "%s\\%s", narrow, name) < size;
}

#else
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
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

/* Standard streams that are closed get /dev/null: otherwise a socket or a file would have their number, and what is written to them.
   The input is opened for writing and the output for reading, so that to use them stays an error. */
static void platform_start(int *argc, char ***argv) {
    static const int modes[3] = {O_WRONLY, O_RDONLY, O_WRONLY};
    int i;
    for (i = 0; i < 3; i++)
        if (fcntl(i, F_GETFD) < 0 && open("/dev/null", modes[i]) < 0) return;
    (void)argc;
    (void)argv;
}

static FILE *open_for_reading(const char *path) { return fopen(path, "rb"); }
static FILE *open_for_writing(const char *path) { return fopen(path, "wb"); }

/* Whether a file can be written, which this does not. */
static bool can_write(const char *path) {
    struct stat status;
    bool there = stat(path, &status) == 0;
    FILE *file;
    if (there && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) return true; /* a pipe: who reads it would see its end */
    file = fopen(path, "ab");
    if (!file) return false;
    fclose(file);
    if (!there) remove(path);
    return true;
}

/* Whether two names are of one file that is there. */
static bool same_file(const char *a, const char *b) {
    struct stat first, second;
    return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

static int read_byte(FILE *file) { return getc(file); }
static size_t read_bytes(FILE *file, char *to, size_t size) { return fread(to, 1, size, file); }

/* "<folder of the user's caches>/fastgen/<name>" by the XDG base directory specification, whose folder is made; false: there
   is none. */
static bool user_cache_file(char *to, size_t size, const char *name) {
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool xdg = base && *base == '/';
    int n = xdg ? snprintf(to, size, "%s", base) : home && *home == '/' ? snprintf(to, size, "%s/.cache", home) : -1;
    size_t used = (size_t)n;
    if (n < 0 || used >= size) return false;
    if (mkdir(to, 0700) != 0 && errno != EEXIST) return false;
    n = snprintf(to + used, size - used, "/fastgen");
    if ((size_t)n >= size - used || (mkdir(to, 0700) != 0 && errno != EEXIST)) return false;
    used += (size_t)n;
    return (size_t)snprintf(to + used, size - used, "/%s", name) < size - used;
}
#endif

/* Ctrl-C, or being asked to end: the first sets the flag, so that a generation or a view ends in order; the second ends the program. */
static volatile sig_atomic_t interrupted; /* the signal's number */

static void on_interrupt(int number) {
    interrupted = number;
    signal(number, SIG_DFL);
}

static void catch_interrupts(void) {
    interrupted = 0;
    signal(SIGINT, on_interrupt);
    signal(SIGTERM, on_interrupt);
}

/* While a line is typed: Ctrl-C ends its reading. Windows ends the program. */
static void catch_typed_interrupts(void) {
    interrupted = 0;
#if defined(_WIN32)
    signal(SIGINT, SIG_DFL);
#else
    {
        struct sigaction action;
        memset(&action, 0, sizeof(action));
        action.sa_handler = on_interrupt; /* and no SA_RESTART */
        sigaction(SIGINT, &action, NULL);
    }
#endif
}

/* ---- sockets: non-blocking ---------------------------------------------------------------------- */

#if defined(_WIN32)
typedef SOCKET socket_id;
typedef WSAPOLLFD socket_poll;
#define NO_SOCKET INVALID_SOCKET

static bool sockets_start(void) {
    WSADATA data;
    return WSAStartup(MAKEWORD(2, 2), &data) == 0;
}

static void socket_close(socket_id s) { closesocket(s); }
static bool socket_blocked(void) { return WSAGetLastError() == WSAEWOULDBLOCK; }
static int wait_sockets(socket_poll *sockets, int n, int milliseconds) { return WSAPoll(sockets, (ULONG)n, milliseconds); }

static void socket_make_nonblocking(socket_id s) {
    u_long on = 1;
    ioctlsocket(s, FIONBIO, &on);
}

static void raise_file_limit(int n) { (void)n; }
#else
typedef int socket_id;
typedef struct pollfd socket_poll;
#define NO_SOCKET (-1)

static bool sockets_start(void) { return signal(SIGPIPE, SIG_IGN) != SIG_ERR; }
static void socket_close(socket_id s) { close(s); }
static bool socket_blocked(void) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }
static int wait_sockets(socket_poll *sockets, int n, int milliseconds) { return poll(sockets, (nfds_t)n, milliseconds); }
static void socket_make_nonblocking(socket_id s) { fcntl(s, F_SETFL, fcntl(s, F_GETFL) | O_NONBLOCK); }

/* Lets the process have n files open, if the system allows that many. */
static void raise_file_limit(int n) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= (rlim_t)n) return;
    limit.rlim_cur = limit.rlim_max < (rlim_t)n ? limit.rlim_max : (rlim_t)n;
    setrlimit(RLIMIT_NOFILE, &limit);
}
#endif

/* Bytes taken or given; 0: the other side has closed (receiving) or nothing fits (sending); -1: nothing now; -2: broken. */
static int socket_receive(socket_id s, char *to, size_t size) {
    int n = (int)recv(s, to, size, 0);
    return n >= 0 ? n : socket_blocked() ? -1 : -2;
}

static int socket_send(socket_id s, const char *from, size_t size) {
    int n = (int)send(s, from, size, 0);
    return n >= 0 ? n : socket_blocked() ? -1 : -2;
}

typedef struct socket_address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } u;
    int length;
} socket_address;

/* An address or a name, which is looked up; "localhost" is 127.0.0.1. False: there is none of that name. */
static bool parse_address(const char *host, int port, socket_address *to) {
    struct addrinfo hints, *found = NULL;
    char service[8];
    bool ok;
    memset(&hints, 0, sizeof(hints));
    hints.ai_socktype = SOCK_STREAM;
    snprintf(service, sizeof(service), "%u", (unsigned)port & 0xFFFF);
    if (strcmp(host, "localhost") == 0) host = "127.0.0.1";
    if (getaddrinfo(host, service, &hints, &found) != 0) return false;
    memset(to, 0, sizeof(*to));
    ok = found && (size_t)found->ai_addrlen <= sizeof(to->u);
    if (ok) memcpy(&to->u, found->ai_addr, (size_t)found->ai_addrlen);
    if (ok) to->length = (int)found->ai_addrlen;
    freeaddrinfo(found);
    return ok;
}

static void socket_set(socket_id s, int level, int option) {
    int on = 1;
    setsockopt(s, level, option, (const char *)&on, sizeof(on));
}

/* A socket that has that place; *port is then the one chosen, when it was 0. It listens after socket_listen, which fails where, on Linux,
   another had the place, too, and was faster. */
static socket_id socket_bind(socket_address *address, int *port) {
    socket_id s = socket(address->u.any.sa_family, SOCK_STREAM, 0);
    socklen_t length = (socklen_t)address->length;
    if (s == NO_SOCKET) return NO_SOCKET;
#if defined(_WIN32)
    socket_set(s, SOL_SOCKET, SO_EXCLUSIVEADDRUSE);
#else
    socket_set(s, SOL_SOCKET, SO_REUSEADDR);
#endif
    if (bind(s, &address->u.any, length) != 0 || getsockname(s, &address->u.any, &length) != 0) {
#if defined(_WIN32)
        int why = WSAGetLastError();
        socket_close(s);
        WSASetLastError(why);
#else
        int why = errno;
        socket_close(s);
        errno = why;
#endif
        return NO_SOCKET;
    }
    *port = ntohs(address->u.any.sa_family == AF_INET ? address->u.v4.sin_port : address->u.v6.sin6_port);
    socket_make_nonblocking(s);
    return s;
}

static bool socket_listen(socket_id s) { return listen(s, 1024) == 0; }

/* A datagram socket that is connected to itself: a byte sent to it ends a wait_sockets, also from a signal handler. */
static socket_id socket_loop(void) {
    socket_address address;
    socklen_t length;
    socket_id s = socket(AF_INET, SOCK_DGRAM, 0);
    if (s == NO_SOCKET) return NO_SOCKET;
    parse_address("127.0.0.1", 0, &address);
    length = (socklen_t)address.length;
    if (bind(s, &address.u.any, length) != 0 || getsockname(s, &address.u.any, &length) != 0 ||
        connect(s, &address.u.any, length) != 0) {
        socket_close(s);
        return NO_SOCKET;
    }
    socket_make_nonblocking(s);
    return s;
}

static void socket_wake(socket_id loop) { (void)!socket_send(loop, "", 1); }

/* ---- the end of a server: how often it was asked to stop ---------------------------------------- */

static volatile sig_atomic_t stops_asked;
static socket_id stop_socket = NO_SOCKET; /* woken then */

#if defined(_WIN32)
/* Where the window is closed or the user goes, the process ends with the return from here: then it waits for the main thread to end it. */
static BOOL WINAPI on_stop(DWORD event) {
    stops_asked = stops_asked + 1;
    socket_wake(stop_socket);
    if (event != CTRL_C_EVENT && event != CTRL_BREAK_EVENT) Sleep(INFINITE);
    return TRUE;
}

static void catch_stops(socket_id loop) {
    stop_socket = loop;
    SetConsoleCtrlHandler(on_stop, TRUE);
}
#else
static void on_stop(int number) {
    int error = errno;
    (void)number;
    stops_asked = stops_asked + 1;
    socket_wake(stop_socket);
    errno = error;
}

static void catch_stops(socket_id loop) {
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_stop;
    stop_socket = loop;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}
#endif

/* ---- threads: where the library has none, there are none here ----------------------------------- */

#if defined(FG_NO_THREADS)
typedef int thread_id;
typedef int thread_lock;
typedef int thread_signal;
static bool thread_start(thread_id *t, void (*run)(void *), void *user) { return (void)t, (void)run, (void)user, false; }
static void thread_join(thread_id *t) { (void)t; }
static void lock_init(thread_lock *l) { *l = 0; }
static void lock_take(thread_lock *l) { *l = 1; }
static void lock_give(thread_lock *l) { *l = 0; }
static void signal_init(thread_signal *s) { *s = 0; }
static void signal_send(thread_signal *s) { *s = 1; }
static void signal_wait(thread_signal *s, thread_lock *l) { *s = *l = 0; }
#elif defined(_WIN32)
typedef struct thread_id {
    HANDLE handle;
    void (*run)(void *);
    void *user;
} thread_id;
typedef SRWLOCK thread_lock;
typedef CONDITION_VARIABLE thread_signal;

static DWORD WINAPI thread_main(LPVOID argument) {
    thread_id *t = (thread_id *)argument;
    t->run(t->user);
    return 0;
}

static bool thread_start(thread_id *t, void (*run)(void *), void *user) {
    t->run = run;
    t->user = user;
    t->handle = CreateThread(NULL, 0, thread_main, t, 0, NULL);
    return t->handle != NULL;
}

static void thread_join(thread_id *t) {
    WaitForSingleObject(t->handle, INFINITE);
    CloseHandle(t->handle);
}

static void lock_init(thread_lock *l) { InitializeSRWLock(l); }
static void lock_take(thread_lock *l) { AcquireSRWLockExclusive(l); }
static void lock_give(thread_lock *l) { ReleaseSRWLockExclusive(l); }
static void signal_init(thread_signal *s) { InitializeConditionVariable(s); }
static void signal_send(thread_signal *s) { WakeAllConditionVariable(s); }
static void signal_wait(thread_signal *s, thread_lock *l) { SleepConditionVariableSRW(s, l, INFINITE, 0); }
#else
#include <pthread.h>
typedef struct thread_id {
    pthread_t handle;
    void (*run)(void *);
    void *user;
} thread_id;
typedef pthread_mutex_t thread_lock;
typedef pthread_cond_t thread_signal;

static void *thread_main(void *argument) {
    thread_id *t = (thread_id *)argument;
    t->run(t->user);
    return NULL;
}

/* With a stack of 2 MiB: that of some systems (musl: 128 KiB) is too small for a pass. */
static bool thread_start(thread_id *t, void (*run)(void *), void *user) {
    pthread_attr_t attributes;
    bool started;
    t->run = run;
    t->user = user;
    if (pthread_attr_init(&attributes) != 0) return false;
    pthread_attr_setstacksize(&attributes, (size_t)2 << 20);
    started = pthread_create(&t->handle, &attributes, thread_main, t) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

static void thread_join(thread_id *t) { pthread_join(t->handle, NULL); }
static void lock_init(thread_lock *l) { pthread_mutex_init(l, NULL); }
static void lock_take(thread_lock *l) { pthread_mutex_lock(l); }
static void lock_give(thread_lock *l) { pthread_mutex_unlock(l); }
static void signal_init(thread_signal *s) { pthread_cond_init(s, NULL); }
static void signal_send(thread_signal *s) { pthread_cond_broadcast(s); }
static void signal_wait(thread_signal *s, thread_lock *l) { pthread_cond_wait(s, l); }
#endif
