#!/bin/sh
# build.sh itself, over a stand-in for the compiler, so that it takes seconds: what is linked, where folders are, what a
# signal ends. POSIX sh. The last line is "N passed, N failed".
set -u
unset CDPATH
cd "$(dirname "$0")/.." || exit 1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
unset CFLAGS RUN TESTS FASTGEN_CUDA_LIBRARY
export MACHINE NEEDS
export CC="$dir/cc" BUILD="$dir/build"
passed=0
failed=0

# MACHINE is what it compiles for; only with the flag NEEDS it links atomics. Its programs say how they were compiled, and the driver they
# would take; the tests' second half takes long.
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
case \$1 in 1/2) sleep 2 ;; 2/2) exec sh tests/long.sh ;; esac
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

# linked MACHINE NEEDS LIBRARIES: the last words of the tool's command
linked() {
    MACHINE=$1 NEEDS=$2
    rm -rf "$BUILD"
    ./build.sh tool || return 1
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

spaced() { ! BUILD="$dir/a build" "$tree/build.sh" tool; }
check "BUILD with a space is refused" spaced

# The stand-in driver lies where this tree's build/ is, whatever other folders cd would find.
driver_named() {
    mkdir -p "$dir/elsewhere/build"
    MACHINE=$(uname -m)-linux-gnu NEEDS='' BUILD=build CDPATH="$dir/elsewhere" TESTS=all "$tree/build.sh" test | tee "$dir/said"
    grep -Fqx "driver $tree/build/standin_gpu.so" "$dir/said"
}
[ "$(uname -s)" != Linux ] || check "CDPATH" driver_named

# Nothing that was started goes on.
ended() {
    BUILD=build "$tree/build.sh" test &
    job=$!
    tries=0
    until [ "$(wc -l <"$tree/pids")" -ge 2 ] || [ $tries = 100 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done 2>/dev/null
    kill -TERM $job
    ! wait $job && [ $tries -lt 100 ] || return 1
    sleep 0.2
    ps -A -o pid= -o stat= | awk 'NR == FNR { started[$1] = 1 } NR > FNR && $1 in started && $2 !~ /Z/ { print; on = 1 } END { exit on }' "$tree/pids" -
}
if ps -A -o ppid= -o pid= -o stat= >/dev/null 2>&1; then check "a signal ends all" ended; fi

echo "$passed passed, $failed failed"
[ $failed = 0 ]
