#!/bin/sh
# The header with every compiler: alone without a warning, in two translation units, and the tests and the tool built with
# musl, tcc, for aarch64 (run by qemu) and for Windows (run by wine). Missing compilers are skipped.
#
#     tests/compile_matrix.sh [WORD ...]     only checks whose name contains one of the words
#
# NATIVE is the native tool, where one is built already.
# The last line is "N passed, N failed", with ", N skipped" where some were.
set -u
unset CDPATH
cd "$(dirname "$0")/.." || exit 1
out=${BUILD:-build}/matrix
mkdir -p "$out"
words=$*
passed=0
failed=0
skipped=0

has() { command -v "$1" >/dev/null 2>&1; }

# check NAME COMMAND...: one line, and what the command said when it failed.
check() {
    name=$1
    shift
    wanted "$name" || return 0
    start=$(date +%s)
    if "$@" >"$out/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok      $name ($(($(date +%s) - start)) s)"
    else
        failed=$((failed + 1))
        echo "FAILED  $name"
        tail -n 40 "$out/log"
        return 1
    fi
}

wanted() {
    [ -n "$words" ] || return 0
    for word in $words; do
        case $1 in *"$word"*) return 0 ;; esac
    done
    return 1
}

skip() {
    wanted "$1" || return 0
    skipped=$((skipped + 1))
    echo "skipped $1: $2 is not installed"
}

# ---- the header alone

cat >"$out/with.c" <<'C'
#define FASTGEN_IMPLEMENTATION
#include "fastgen.h"
#include "backends/cuda/fg_cuda.h"
#include "backends/hip/fg_hip.h"
#include "backends/vulkan/fg_vulkan.h"
int user(void);
int main(void) { return user() ? 0 : 1; }
C
cat >"$out/without.c" <<'C'
#include "fastgen.h"
#include "backends/cuda/fg_cuda.h"
#include "backends/hip/fg_hip.h"
#include "backends/vulkan/fg_vulkan.h"
int user(void);
int user(void) { return fg_version()[0] != 0; }
C

# two_units COMPILER FLAG...: both files without a warning, and linked.
two_units() {
    compiler=$1
    shift
    "$compiler" "$@" -Wall -Wextra -Wpedantic -Werror -I. -c "$out/with.c" -o "$out/with.o" &&
        "$compiler" "$@" -Wall -Wextra -Wpedantic -Werror -I. -c "$out/without.c" -o "$out/without.o" &&
        "$compiler" "$out/with.o" "$out/without.o" -o "$out/two" -lm -lpthread -ldl &&
        "$out/two"
}

newest_clang() {
    for name in clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14; do
        if has "$name"; then
            echo "$name"
            return
        fi
    done
}
clang=$(newest_clang)

# syntax_too COMPILER FLAG...: every path without a warning, but no code; then both files with the scalar one, which is soon compiled.
syntax_too() {
    compiler=$1
    shift
    "$compiler" "$@" -Wall -Wextra -Wpedantic -Werror -I. -fsyntax-only "$out/with.c" && two_units "$compiler" "$@" -O1 -DFG_NO_SIMD
}

# What strict projects add; with -O1, as without it GCC's intrinsics are macros, in which it warns of itself.
more="-O1 -Wshadow -Wconversion -Wsign-conversion -Wundef -Wdouble-promotion -Wcast-qual -Wcast-align -Wredundant-decls -Wvla -Wwrite-strings -Wpointer-arith"
more="$more -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition"

# strict COMPILER: every path without these warnings either.
strict() { "$1" -std=c99 -Wall -Wextra -Wpedantic $more -Werror -I. -fsyntax-only "$out/with.c"; }

# native_of COMPILER: -march=native, and no word of clang 19's about what it itself makes of a CPU with AVX10, even for an empty file.
native_of() {
    echo "int main(void) { return 0; }" >"$out/empty.c"
    echo -march=native
    "$1" -march=native -Werror -c "$out/empty.c" -o "$out/empty.o" 2>/dev/null || echo -Wno-invalid-feature-combination
}

# Warnings that come of optimisation need one compilation with it; the first level is the quickest to compile. GCC's of the paths
# without -march are seen where build.sh builds the tool and the tests, as clang's, which finds some only when it makes code, are here.
for compiler in gcc ${clang:-clang}; do
    if has "$compiler"; then
        case $compiler in
        gcc) check "header gcc C99" syntax_too gcc -std=c99 -x c ;;
        *) check "header $compiler C99" two_units "$compiler" -O1 -std=c99 -x c ;;
        esac
        check "header $compiler C++17" syntax_too "$compiler" -std=c++17 -x c++
        check "header $compiler strict" strict "$compiler"
        check "header $compiler no threads, no SIMD" two_units "$compiler" -O1 -std=c99 -DFG_NO_THREADS -DFG_NO_SIMD
        check "header $compiler -march=native" syntax_too "$compiler" -std=c99 $(native_of "$compiler")
    else
        skip "header $compiler" "$compiler"
    fi
done

# ---- other platforms: the tool's text must be the native one's, and the tests that say something about a platform pass

model=examples/demo-model/demo.gguf
platform_tests="-token_long logits gguf quant token"

# Ten tokens: the scalar path does not round activations to 8 bits, so that near ties part the texts at some point.
greedy() { "$@" generate -m $model -p "Once upon a time" -p "The little dog" -n 10 --temp 0 2>"$out/err" | tr -d '\r'; }

# same_text COMMAND...: the tool at COMMAND writes what the native one writes.
same_text() {
    greedy "$@" >"$out/other.txt"
    if ! [ -s "$out/other.txt" ] || ! diff "$out/native.txt" "$out/other.txt"; then
        cat "$out/err"
        return 1
    fi
}

# platform NAME CC CFLAGS EXE RUNNER [CFLAGS]: builds the tool and the tests, with these more flags, and runs both.
platform() {
    # shellcheck disable=SC2086 # the runner: a list of words
    check "$1 tool builds" env CC="$2" CFLAGS="$3" BUILD="$out/$1" ./build.sh tool &&
        check "$1 tool writes the same text" same_text $5 "$out/$1/fastgen$4"
    check "$1 tests" env CC="$2" CFLAGS="$3 ${6-}" BUILD="$out/$1" RUN="$5" TESTS="$platform_tests" ./build.sh test
}

build_native() {
    NATIVE=$out/native/fastgen
    BUILD="$out/native" CFLAGS=-O1 ./build.sh tool
}

native() { { [ -n "${NATIVE:-}" ] || build_native; } && greedy "$NATIVE" >"$out/native.txt" && [ -s "$out/native.txt" ]; }

if ! native >"$out/log" 2>&1; then
    failed=1
    echo "FAILED  native tool"
    tail -n 40 "$out/log"
fi

# Without optimisation, whose frames are large.
if has "${clang:-clang}"; then
    check "$clang -O0 tool builds" env CC="$clang" CFLAGS="-O0 -Werror" BUILD="$out/O0" ./build.sh tool &&
        check "$clang -O0 tool writes the same text" same_text "$out/O0/fastgen"
else
    skip "clang -O0" clang
fi
if has musl-gcc; then
    platform musl musl-gcc "-O0 -static -Werror" "" "" "-O1 -DFG_NO_SIMD" # whose kernels the tool has run, which GCC optimises nevertheless
else
    skip musl musl-gcc
fi
if has tcc; then
    platform tcc tcc "" "" ""
else
    skip tcc tcc
fi
if has aarch64-linux-gnu-gcc && has qemu-aarch64; then
    check "header aarch64 strict" strict aarch64-linux-gnu-gcc
    # Where the program's target has more than a kernel's own, GCC inlines no helper there, which it says when it makes code.
    check "header aarch64 -mcpu=neoverse-v1" aarch64-linux-gnu-gcc -O0 -std=c99 -Wall -Wextra -Wpedantic -Werror -mcpu=neoverse-v1 -I. -c "$out/with.c" -o "$out/more.o"
    platform aarch64 aarch64-linux-gnu-gcc "-O1 -static -Werror" "" "qemu-aarch64 -cpu max"
else
    skip aarch64 "aarch64-linux-gnu-gcc or qemu-aarch64"
fi
WINEPREFIX=$(cd "$out" && pwd)/wine
export WINEPREFIX WINEDEBUG=-all
if has x86_64-w64-mingw32-gcc && has wine; then
    check "header windows strict" strict x86_64-w64-mingw32-gcc
    platform windows x86_64-w64-mingw32-gcc "-O1 -static -Werror" .exe wine
else
    skip windows "x86_64-w64-mingw32-gcc or wine"
fi

if [ $skipped = 0 ]; then
    echo "$passed passed, $failed failed"
else
    echo "$passed passed, $failed failed, $skipped skipped"
fi
[ $failed = 0 ]
