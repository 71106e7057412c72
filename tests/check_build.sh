#!/bin/sh
# build.sh itself, over a stand-in for the compiler, so that it takes seconds: what is linked, where folders are, what a
# signal ends. POSIX sh; SHELL_OF is the shell that runs build.sh (default: sh). The last line is "N passed, N failed", with
# ", N skipped" where some were.
set -u
unset CDPATH
cd "$(dirname "$0")/.." || exit 1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
SHELL_OF=${SHELL_OF:-sh}
unset CFLAGS RUN TESTS FASTGEN_CUDA_LIBRARY
export MACHINE NEEDS
export CC="$dir/cc" BUILD="$dir/build"
passed=0
failed=0
skipped=0

# MACHINE is what it compiles for; only with the flag NEEDS it links atomics. Its programs say how they were compiled, and the driver they
# would take; both halves of the tests take long.
cat >"$CC" <<'CC'
#!/bin/sh
[ "$1" != -dumpmachine ] || { echo "$MACHINE"; exit; }
flags=" $* " out=
while [ $# -gt 0 ]; do
    [ "$1" != -o ] || out=$2
    case $1 in */links.*.c) case $flags in *" $NEEDS"*) ;; *) exit 1 ;; esac ;; esac
    shift
done
cat >"$out" <<PROGRAM
#!/bin/sh
echo '$flags'
echo "driver \$FASTGEN_CUDA_LIBRARY"
case \$1 in [12]/2) exec sh tests/long.sh ;; esac
echo "1 passed, 0 failed"
PROGRAM
chmod +x "$out"
CC
chmod +x "$CC"

# check NAME COMMAND...
check() {
    name=$1
    shift
    if "$@" >"$dir/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $name"
        sed 's/^/    /' "$dir/log"
    fi
}

skip() {
    skipped=$((skipped + 1))
    echo "skipped $1: $2"
}

# linked MACHINE NEEDS LIBRARIES: the last words of the tool's command
# shellcheck disable=SC2086 # SHELL_OF, here and below: a list of words
linked() {
    MACHINE=$1 NEEDS=$2
    rm -rf "$BUILD"
    $SHELL_OF ./build.sh tool || return 1
    said=$("$BUILD"/fastgen* | head -n 1)
    case $said in *"examples/fastgen.c $3 ") ;; *) echo "$said" && return 1 ;; esac
}
check "Linux: dlopen" linked x86_64-linux-gnu "" "-lm -lpthread -ldl"
check "Windows: sockets" linked x86_64-w64-mingw32 "" "-lm -lws2_32"
check "macOS" linked arm64-apple-darwin "" "-lm -lpthread"
check "ARMv6: atomics" linked arm-linux-gnueabihf -latomic "-lm -lpthread -ldl -latomic"
check "no atomics at all" linked arm-linux-gnueabihf -none "-lm -lpthread -ldl"

# ---- in a tree of its own, whose name has a space

tree="$dir/a tree"
mkdir -p "$tree/tests"
cp build.sh "$tree/"
cat >"$tree/tests/long.sh" <<'LONG'
echo $$ >>pids
exec sleep 60
LONG
cp "$tree/tests/long.sh" "$tree/tests/test_tool.sh"
echo 'echo "1 passed, 0 failed"' >"$tree/tests/test_serve.sh"

# shellcheck disable=SC2086
spaced() { ! BUILD="$dir/a build" $SHELL_OF "$tree/build.sh" tool; }
check "BUILD with a space is refused" spaced

# The stand-in driver lies where this tree's build/ is, whatever other folders cd would find.
# shellcheck disable=SC2086
driver_named() {
    mkdir -p "$dir/elsewhere/build"
    MACHINE=$(uname -m)-linux-gnu NEEDS='' BUILD=build CDPATH="$dir/elsewhere" TESTS=all $SHELL_OF "$tree/build.sh" test | tee "$dir/said"
    grep -Fqx "driver $tree/build/standin_gpu.so" "$dir/said"
}
if [ "$(uname -s)" = Linux ]; then check "CDPATH" driver_named; else skip "CDPATH" "the stand-in driver is for Linux"; fi

# soon COMMAND...: within ten seconds
soon() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || return 1
        sleep 0.1
    done
}

all_started() { [ "$(wc -l <"$tree/pids")" -ge 3 ]; }
all_over() {
    ps -A -o pid= -o stat= | awk 'NR == FNR { started[$1] = 1 } NR > FNR && $1 in started && $2 !~ /Z/ { print; on = 1 } END { exit on }' "$tree/pids" -
}

# Nothing goes on of what was started, both halves and the tool's tests, nor build.sh itself.
# shellcheck disable=SC2086
ended() {
    : >"$tree/pids"
    BUILD=build $SHELL_OF "$tree/build.sh" test &
    job=$!
    soon all_started || return 1
    echo $job >>"$tree/pids"
    kill -TERM $job
    soon all_over >/dev/null || { all_over; return 1; }
    ! wait $job
}
if ps -A -o ppid= -o pid= -o stat= >/dev/null 2>&1; then
    check "a signal ends all" ended
else
    skip "a signal ends all" "ps does not say whose child a process is"
fi

if [ $skipped = 0 ]; then
    echo "$passed passed, $failed failed"
else
    echo "$passed passed, $failed failed, $skipped skipped"
fi
[ $failed = 0 ]
