#!/bin/sh
# Builds and tests fastgen. POSIX sh and a C compiler are all it needs; ./build.sh --help lists the targets.
set -eu
unset CDPATH
cd "$(dirname "$0")"

usage() {
    cat <<'TEXT'
usage: ./build.sh [target ...]

  tool       build/fastgen, the command-line tool (the default)
  demo       builds the tool and serves eight prompts at once with the model in examples/demo-model
  test       builds and runs all tests; the last line is "N passed, N failed", and how many were skipped
  examples   build/hello and build/frame_loop
  asan       the tests under the address, leak and undefined-behaviour sanitizers
  tsan       the tests of threads and of models under the thread sanitizer
  fuzz       build/fuzz_*: libFuzzer targets (needs clang)
  logits     build/logits, which tests/check_logits.py drives
  chat       build/chat, which tests/check_chat.py drives
  vulkan     backends/vulkan/fg_vulkan_spirv.h from shaders/ (needs glslangValidator), fg_vulkan_matrix.h (needs its version 13)
  cuda       backends/cuda/fg_cuda_kernels.h from backends/cuda/ (needs nvcc 12.8 or later)
  hip        backends/hip/fg_hip_kernels.h from the same kernels (needs clang 19 and lld)
  source     build/kernels.source: the GPU kernels as one file, as HIPRTC gets them
  dist       dist/: what an app copies, fastgen.h and one header for each GPU backend, with kernels that were built
  clean      removes build/

environment:
  CC       the compiler (default: the first of cc, gcc, clang, tcc)
  CFLAGS   more compiler flags, after -O2 -std=c99 -Wall -Wextra -Wpedantic
  BUILD    where results go, a name without spaces (default: build)
  RUN      a program to run results with, such as qemu-aarch64 or wine
  GLSLANG, GLSLANG_MATRIX   the compilers of shaders, and of those with cooperative matrices (default: glslangValidator)
  NVCC, HIPCC          the compilers of kernels (default: nvcc; clang)
  CUDA_TARGETS         such as "sm_80 sm_90a compute_80" (PTX) (default: all that fg_cuda.h knows)
  HIP_TARGETS          such as "gfx942 gfx11-generic"
  KERNEL_FLAGS         more flags for these compilers
  FASTGEN_CUDA_LIBRARY, FASTGEN_HIP_LIBRARY   drivers to run the tests on (default: tests/standin_gpu.c)
  TESTS    run only tests whose name contains one of these words, and not those of the tool; -WORD, before these or alone:
           no tests whose name contains it
TEXT
}

BUILD=${BUILD:-build}
RUN=${RUN-}
case $BUILD in *" "*)
    echo "build.sh: BUILD is '$BUILD': a name with a space cannot be one word of a command" >&2
    exit 2
    ;;
esac
TESTS=${TESTS-}
FLAGS=

first_of() {
    for name in "$@"; do
        if command -v "$name" >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    echo "build.sh: none of these is installed: $*" >&2
    return 1
}

# Sets CC, FLAGS, LIBS and EXE (".exe" when building for Windows).
find_compiler() {
    [ -n "${CC-}" ] || CC=$(first_of cc gcc clang tcc)
    FLAGS="-O2 -std=c99 -Wall -Wextra -Wpedantic ${CFLAGS-}"
    LIBS="-lm -lpthread"
    EXE=
    case $($CC -dumpmachine 2>/dev/null || uname -s) in
    *mingw* | *windows*)
        LIBS="-lm -lws2_32"
        EXE=.exe
        ;;
    *[Ll]inux*) LIBS="$LIBS -ldl" ;; # dlopen, which is in libc from glibc 2.34 on and with musl
    esac
    if ! links && links -latomic; then LIBS="$LIBS -latomic"; fi
}

# links FLAG...: does an atomic addition of 8 bytes? On some 32-bit CPUs (ARMv6, MIPS) it is a function of a library.
links() {
    mkdir -p "$BUILD"
    probe=$BUILD/links.$$
    echo 'unsigned long long n; int main(void) { return (int)__atomic_fetch_add(&n, 1, __ATOMIC_ACQ_REL); }' >"$probe.c"
    status=0
    # shellcheck disable=SC2086 # a list of words
    $CC $FLAGS -o "$probe$EXE" "$probe.c" "$@" 2>/dev/null || status=1
    rm -f "$probe.c" "$probe$EXE"
    return $status
}

# compile NAME SOURCE [FLAG ...]: one compiler line, shown.
compile() {
    name=$1
    source=$2
    shift 2
    [ -n "$FLAGS" ] || find_compiler
    mkdir -p "$BUILD"
    echo "$CC $FLAGS $* -o $BUILD/$name$EXE $source $LIBS" >&2
    # shellcheck disable=SC2086 # lists of words
    $CC $FLAGS "$@" -o "$BUILD/$name$EXE" "$source" $LIBS
}

# show_tests NAME COMMAND...: runs a program whose last line is "N passed, N failed", and keeps what it says.
show_tests() {
    name=$1
    shift
    { "$@" 2>&1 || echo "$name: exit status $?"; } | tee "$BUILD/$name.log" | sed "s/^\([0-9]* passed, \)/$name: \1/"
}

# count_tests NAME: adds the counts of what was shown to the totals.
count_tests() {
    name=$1
    log=$BUILD/$name.log
    counts=$(awk '/^[0-9]+ passed, [0-9]+ failed/ { print $1, $3, $5 + 0 }' "$log" | tail -n 1)
    bad=$(grep -c "^$name: exit status " "$log" || true)
    # shellcheck disable=SC2086 # three numbers
    set -- ${counts:-0 1 0}
    # A program that failed without counting a failure (a crash, a sanitizer) is one.
    [ "$bad" = 0 ] || [ "$2" != 0 ] || set -- "$1" 1 "$3"
    passed=$((passed + $1))
    failed=$((failed + $2))
    skipped=$((skipped + $3))
}

tests_of() {
    show_tests "$@"
    count_tests "$1"
}

# The closing line; its status is that of the tests.
totals() {
    if [ $skipped = 0 ]; then
        echo "$passed passed, $failed failed"
    else
        echo "$passed passed, $failed failed, $skipped skipped"
    fi
    [ $failed = 0 ]
}

passed=0
failed=0
skipped=0

target_tool() { compile fastgen examples/fastgen.c; }

target_demo() {
    target_tool
    # shellcheck disable=SC2086 # RUN may be empty or several words
    $RUN "$BUILD/fastgen$EXE" demo -m examples/demo-model/demo.gguf
}

target_examples() {
    compile hello examples/hello.c "$@"
    compile frame_loop examples/frame_loop.c "$@"
}

# The driver that the tests of the CUDA and HIP backends run over, see tests/standin_gpu.c, unless the environment names another
# one; "none" where a shared library is not to be had, and those tests are skipped.
standin() {
    [ -z "${FASTGEN_CUDA_LIBRARY-}" ] || return 0
    [ -n "$FLAGS" ] || find_compiler
    mkdir -p "$BUILD"
    library=none
    case "$(uname -s) $EXE$RUN $($CC -dumpmachine 2>/dev/null) $CC ${CFLAGS-}" in
    *-static* | *musl*) ;;
    "Linux  $(uname -m)-"*)
        echo "$CC -O2 -std=gnu99 -ffp-contract=off -fPIC -shared -o $BUILD/standin_gpu.so tests/standin_gpu.c -lm" >&2
        $CC -O2 -std=gnu99 -ffp-contract=off -Wall -Wextra -Wno-unused-function -fPIC -shared -o "$BUILD/standin_gpu.so" tests/standin_gpu.c -lm || return 1
        library=$(cd "$BUILD" && pwd)/standin_gpu.so
        ;;
    esac
    export FASTGEN_CUDA_LIBRARY="$library" FASTGEN_HIP_LIBRARY="$library"
    export FASTGEN_CUBLASLT_LIBRARY=none FASTGEN_HIPBLASLT_LIBRARY=none FASTGEN_HIPRTC_LIBRARY=none # but where a test is about them
}

# build_tests NAME [FLAG ...]: tests/test.c as build/NAME.
build_tests() {
    program=$1
    shift
    standin && compile "$program" tests/test.c "$@"
}

# unit NAME [FLAG ...]: builds the tests and runs those that TESTS says.
unit() {
    if build_tests "$@"; then
        # shellcheck disable=SC2086 # RUN, TESTS: lists of words
        tests_of "$program" $RUN "$BUILD/$program$EXE" $TESTS
    else
        failed=$((failed + 1))
    fi
}

# end_jobs PID...: each with all that it has started, which hears nothing of a signal to its parent, nor, in the background, of Ctrl-C.
end_jobs() {
    for job in "$@"; do
        children=$(ps -A -o ppid= -o pid= 2>/dev/null | awk -v parent="$job" '$1 == parent { print $2 }')
        kill "$job" 2>/dev/null || true # before them, so that it starts no more
        # shellcheck disable=SC2086 # a list of numbers
        end_jobs $children
    done
}

# Builds the tests and runs one half of them beside the other, whose output is shown first. Both in the background: a signal is
# heard while they are waited for, and not while a program runs in the foreground.
unit_halves() {
    if build_tests test; then
        # shellcheck disable=SC2086 # RUN, TESTS: lists of words
        { $RUN "$BUILD/test$EXE" 2/2 $TESTS 2>&1 || echo "other_half: exit status $?"; } >"$BUILD/other_half" &
        half=$!
        # shellcheck disable=SC2086 # RUN, TESTS: lists of words
        show_tests test $RUN "$BUILD/test$EXE" 1/2 $TESTS &
        first=$!
        trap 'end_jobs $others $half $first; exit 1' INT TERM
        wait $first || true
        wait $half || true
        count_tests test
        tests_of other_half cat "$BUILD/other_half"
    else
        failed=$((failed + 1))
    fi
}

# Programs that are only compiled here, where they are in nobody's way, without the kernels, which take the longest.
examples_compile() (
    BUILD=$BUILD/examples
    target_examples -DFG_NO_SIMD
)

# Tests of the tool and its server; the counts go into a file.
tool_tests() {
    if target_tool && examples_compile && compile serve_client tests/serve_client.c; then
        export TOOL="$RUN $BUILD/fastgen$EXE" CLIENT="$RUN $BUILD/serve_client$EXE"
        tests_of tool sh tests/test_tool.sh
        tests_of serve sh tests/test_serve.sh
    else
        failed=$((failed + 1))
    fi
    echo "$passed $failed $skipped" >"$BUILD/tool_tests.counts"
}

# The tool's tests run beside the library's, whose output is shown first.
target_test() {
    # shellcheck disable=SC2086 # a list of words
    if printf '%s\n' $TESTS | grep -q '^[^-]'; then
        unit test
        totals
        return
    fi
    [ -n "$FLAGS" ] || find_compiler # once for both
    mkdir -p "$BUILD"
    echo "0 1 0" >"$BUILD/tool_tests.counts" # until it has ended
    tool_tests >"$BUILD/tool_tests.log" 2>&1 &
    others=$!
    trap 'end_jobs $others; exit 1' INT TERM
    unit_halves
    wait $others || true
    cat "$BUILD/tool_tests.log"
    read -r more_passed more_failed more_skipped <"$BUILD/tool_tests.counts"
    passed=$((passed + more_passed))
    failed=$((failed + more_failed))
    skipped=$((skipped + more_skipped))
    totals
}

SANITIZE="-O1 -g1 -fno-omit-frame-pointer -fno-sanitize-recover=all"

# Graphics drivers are not built for sanitizers: without them the tests of GPUs are skipped.
without_drivers() { export VK_DRIVER_FILES=none VK_ICD_FILENAMES=none; }
without_standin() { export FASTGEN_CUDA_LIBRARY=none FASTGEN_HIP_LIBRARY=none; }

# shellcheck disable=SC2086 # a list of flags
target_asan() {
    words=$TESTS
    # Long comparisons of bits, of whole models with each path of the CPU, whose kernels and passes shorter tests run as well, and
    # shaders that are executed slowly.
    [ -n "$words" ] || TESTS="-cpu_model_invariance -cpu_amx -engine_bits_q4k -engine_bits_bf16 -engine_bits_f32 -cpu_attention_invariance -logits_llama -split_layers -token_long -vulkan_shapes"
    without_drivers
    driver=${FASTGEN_CUDA_LIBRARY-}
    without_standin # kernels are executed slowly: only what the host does with them is looked at
    unit test_asan $SANITIZE -fsanitize=address,undefined -DFG__J_MAX_STEPS=10000000 # templates that would run for ever end sooner
    TESTS=$words
    FASTGEN_CUDA_LIBRARY=$driver
    if [ -z "$words" ] && standin && [ "$FASTGEN_CUDA_LIBRARY" != none ]; then
        tests_of gpu_asan "$BUILD/test_asan$EXE" gpu_host_d gpu_host_compile gpu_host_unpack gpu_host_swap gpu_host_blas_f gpu_host_faults gpu_host_out
    fi
    totals
}

# shellcheck disable=SC2086 # a list of flags
target_tsan() {
    TESTS=${TESTS:-thread logits}
    without_drivers
    without_standin
    unit test_tsan $SANITIZE -fsanitize=thread -DFG_NO_SIMD
    totals
}

target_fuzz() {
    CC=$(first_of clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14)
    compile fuzz tests/fuzz.c -O1 -g -DFG_NO_SIMD -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
    for source in tests/fuzz_*.c; do ln -f "$BUILD/fuzz" "$BUILD/$(basename "$source" .c)"; done
}

target_logits() { compile logits tests/logits_main.c; }
target_chat() { compile chat tests/chat_main.c -DFG_NO_SIMD; }

# One shader as an array of words.
spirv_array() {
    echo "static const uint32_t fg__vk_spirv_$1[] = {"
    od -An -v -tx4 "$BUILD/$1.spv" | awk '{ for (i = 1; i <= NF; i++) { sub(/^0+/, "", $i); printf "0x%s,", $i == "" ? "0" : $i } print "" }'
    echo "};"
}

# shader COMPILER NAME: build/NAME.spv.
shader() {
    # shellcheck disable=SC2086 # the compiler may be several words
    $1 -V --target-env vulkan1.2 -g0 -o "$BUILD/$2.spv" "shaders/$2.comp" >"$BUILD/$2.log" || { cat "$BUILD/$2.log"; exit 1; }
}

# Cooperative matrices need a newer compiler than others; what it gave before stays where there is none.
vulkan_matrix() {
    compiler=${GLSLANG_MATRIX-$GLSLANG}
    version=$($compiler --version | sed -n 's/^Glslang Version: [0-9]*:\([0-9]*\).*/\1/p')
    if [ "${version:-0}" -lt 13 ]; then
        echo "$compiler is of version ${version:-unknown} and knows no cooperative matrices (13 does): backends/vulkan/fg_vulkan_matrix.h stays as it is" >&2
        return 0
    fi
    {
        echo "/* The *_matrix.comp of shaders/, compiled by glslang $version; written by ./build.sh vulkan. */"
        for name in $matrix_names; do
            shader "$compiler" "$name"
            spirv_array "$name"
        done
    } >"${SPIRV_MATRIX-backends/vulkan/fg_vulkan_matrix.h}"
}

# SPIRV, SPIRV_MATRIX: where the results go, for CI to compare.
target_vulkan() {
    [ -n "${GLSLANG-}" ] || GLSLANG=$(first_of glslangValidator glslang)
    mkdir -p "$BUILD"
    names=
    plain_names=
    matrix_names=
    for source in shaders/*.comp; do
        name=$(basename "$source" .comp)
        names="$names $name"
        case $name in
            *_matrix) matrix_names="$matrix_names $name" ;;
            *) plain_names="$plain_names $name" && shader "$GLSLANG" "$name" ;;
        esac
    done
    vulkan_matrix
    {
        echo "/* The shaders in shaders/, compiled; written by ./build.sh vulkan. */"
        for name in $plain_names; do spirv_array "$name"; done
        echo "enum {"
        for name in $names; do echo "    FG__VK_SHADER_$(echo "$name" | tr 'a-z' 'A-Z'),"; done
        echo "    FG__VK_SHADERS"
        echo "};"
        echo "static const struct {"
        echo "    const uint32_t *code;"
        echo "    size_t bytes;"
        echo "} fg__vk_spirv[] = {"
        for name in $names; do echo "    {fg__vk_spirv_$name, sizeof(fg__vk_spirv_$name)},"; done
        echo "};"
    } >"${SPIRV-backends/vulkan/fg_vulkan_spirv.h}"
}

# embed NAME TARGET=FILE...: the images as a header.
embed() {
    backend=$1
    compile embed backends/cuda/embed.c -O1 -DFG_NO_SIMD
    $RUN "$BUILD/embed$EXE" "$@" >"$BUILD/fg_${backend}_kernels.h"
    mv "$BUILD/fg_${backend}_kernels.h" "backends/$backend/fg_${backend}_kernels.h"
}

# PTX takes the version of the language down to what drivers from CUDA 11.4 on know, where the code needs no more: of what is newer
# there are only hints about loads. The assembler says whether that holds.
ptx() {
    ${NVCC:-nvcc} $NVFLAGS -arch="$1" -ptx -o "$2.new" backends/cuda/kernels.cu
    sed -e 's/^\.version .*/.version 7.4/' -e '/^[[:space:]]*\.pragma "used_bytes_mask /d' "$2.new" >"$2"
    rm "$2.new"
    "$(dirname "$(command -v "${NVCC:-nvcc}")")/ptxas" -arch="sm_${1#compute_}" -o /dev/null "$2"
}

NVFLAGS="-O3 -std=c++17 -fmad=false -Xcudafe --diag_suppress=177 ${KERNEL_FLAGS-}"

target_cuda() {
    mkdir -p "$BUILD"
    images=
    for target in ${CUDA_TARGETS-compute_80 sm_75 sm_80 sm_86 sm_89 sm_90a sm_100 sm_120}; do
        echo "kernels for $target" >&2
        case $target in
        compute_*) ptx "$target" "$BUILD/kernels.$target" ;;
        # shellcheck disable=SC2086 # a list of flags
        *) ${NVCC:-nvcc} $NVFLAGS -gencode=arch="compute_${target#sm_},code=$target" -cubin -o "$BUILD/kernels.$target" backends/cuda/kernels.cu ;;
        esac
        images="$images $target=$BUILD/kernels.$target"
    done
    # shellcheck disable=SC2086 # a list of files
    embed cuda $images
}

# The kernels' source as one file, for HIPRTC.
target_source() {
    mkdir -p "$BUILD"
    one_header backends/cuda/kernels.cu >"$BUILD/kernels.source"
}

# Generic targets need version 6 of code objects (ROCm 6.3 and on load it); the others have one that older drivers load too.
target_hip() {
    [ -n "${HIPCC-}" ] || HIPCC=$(first_of clang-21 clang-20 clang-19 clang amdclang)
    mkdir -p "$BUILD"
    images=
    for target in ${HIP_TARGETS-gfx9-generic gfx906 gfx90a gfx9-4-generic gfx942 gfx10-1-generic gfx10-3-generic gfx11-generic gfx12-generic}; do
        case $target in *-generic) version=6 ;; *) version=5 ;; esac
        if [ -z "${HIP_TARGETS-}" ] && ! $HIPCC --target=amdgcn-amd-amdhsa -nogpulib -mcpu="$target" -x c -fsyntax-only /dev/null 2>/dev/null; then
            echo "kernels for $target: left out, $HIPCC does not know it" >&2
            continue
        fi
        echo "kernels for $target" >&2
        $HIPCC -x hip -O3 -std=c++17 -ffp-contract=off -nogpuinc -nogpulib --cuda-device-only --no-gpu-bundle-output -mcode-object-version=$version \
            --offload-arch="$target" -Wno-unused ${KERNEL_FLAGS-} -o "$BUILD/kernels.$target" backends/cuda/kernels.cu
        images="$images $target=$BUILD/kernels.$target"
    done
    target_source
    # shellcheck disable=SC2086 # a list of files
    embed hip $images "source=$BUILD/kernels.source"
}

# one_header FILE: the file with the files of its own folder, and of backends/cuda, that it includes in their places.
one_header() {
    awk '
        function there(path, line, got) {
            got = (getline line <path)
            close(path)
            return got >= 0
        }
        function show(path, line, name, at, dir) {
            dir = path
            sub(/[^\/]*$/, "", dir)
            while ((getline line <path) > 0) {
                name = line
                sub(/^[^"]*"/, "", name)
                sub(/".*/, "", name)
                at = dir name
                if (line ~ /^#if defined\(__has_include\)/) line = "#if 1"
                else if (line ~ /^#if __has_include\("/) line = "#if " there(at)
                else if (line ~ /^#include "/ && there(at)) {
                    if (!(at in seen)) {
                        seen[at] = 1
                        show(at)
                    }
                    continue
                }
                print line
            }
            close(path)
        }
        BEGIN { show(ARGV[1]) }' "$1"
}

target_dist() {
    mkdir -p dist
    cp fastgen.h LICENSE dist/
    for name in vulkan cuda hip; do
        one_header "backends/$name/fg_$name.h" >"dist/fastgen_$name.h"
        case $name in cuda | hip) [ -f "backends/$name/fg_${name}_kernels.h" ] || echo "dist/fastgen_$name.h has no kernels: ./build.sh $name first" >&2 ;; esac
    done
    ls -l dist >&2
}

target_clean() { rm -rf "$BUILD"; }

[ $# -gt 0 ] || set -- tool
for target in "$@"; do
    case $target in
    tool | demo | test | examples | asan | tsan | fuzz | logits | chat | vulkan | cuda | hip | source | dist | clean) "target_$target" ;;
    -h | --help | help) usage ;;
    *)
        echo "build.sh: no target '$target'; see ./build.sh --help" >&2
        exit 2
        ;;
    esac
done
