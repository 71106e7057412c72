#!/bin/sh
# build.sh itself, over a stand-in for the compiler, so that it takes seconds: what is linked. POSIX sh. The last line is "N passed, N failed".
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

# MACHINE is what it compiles for; only with the flag NEEDS it links atomics. Its programs say what they were linked with.
cat >"$CC" <<'CC'
#!/bin/sh
[ "$1" != -dumpmachine ] || { echo "$MACHINE"; exit; }
flags=" $* " out=
while [ $# -gt 0 ]; do
    [ "$1" != -o ] || out=$2
    case $1 in */links.*.c) case $flags in *" $NEEDS"*) ;; *) exit 1 ;; esac ;; esac
    shift
done
printf '%s\n' '#!/bin/sh' "echo '$flags'" >"$out" && chmod +x "$out"
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
    said=$("$BUILD"/fastgen*)
    case $said in *"examples/fastgen.c $3 ") ;; *) echo "$said" && return 1 ;; esac
}
check "Linux: dlopen" linked x86_64-linux-gnu "" "-lm -lpthread -ldl"
check "Windows: sockets" linked x86_64-w64-mingw32 "" "-lm -lws2_32"
check "macOS" linked arm64-apple-darwin "" "-lm -lpthread"
check "ARMv6: atomics" linked arm-linux-gnueabihf -latomic "-lm -lpthread -ldl -latomic"
check "no atomics at all" linked arm-linux-gnueabihf -none "-lm -lpthread -ldl"

echo "$passed passed, $failed failed"
[ $failed = 0 ]
