#!/bin/sh
# Compiles the GPU kernels (backends/cuda/kernels.cu) for every target that releases have, and compares registers and spills of each
# kernel with tests/golden/gpu_targets.txt; looks in the assembly of its products for the matrix instructions that tests/golden/
# gpu_instructions.txt names. Skips, saying so, what no installed compiler can make.
#
#     tests/check_gpu_targets.sh             all targets: one with all kernels, the others with those of four weight types and one KV type
#     tests/check_gpu_targets.sh nvidia      NVIDIA's of these; or amd
#     tests/check_gpu_targets.sh all         all kernels for all targets
#     tests/check_gpu_targets.sh TARGET ...  all kernels for these (sm_80, gfx1100, ...)
#     tests/check_gpu_targets.sh some TARGET ...  those of four weight types and one KV type for these
#
# The first three also compare the drivers' functions with the official headers, where these are installed (tests/test_gpu_abi.cpp).
# The figures of each target go to BUILD/gpu/TARGET.txt: kernel, registers, bytes spilled.
# NVCC, HIPCLANG: the compilers (default: nvcc, else that of .ci/run; the first of clang, clang-19 and on that has AMD's targets).
# CUBLASLT_INCLUDE, HIPBLASLT_INCLUDE: where their headers are, when the compiler does not know. BUILD: default build.
# The last line is "N passed, N failed".
set -eu
unset CDPATH
cd "$(dirname "$0")/.."
out=${BUILD:-build}/gpu
mkdir -p "$out"
nvidia="sm_75 sm_80 sm_86 sm_89 sm_90a sm_100 sm_120 compute_80"
amd="gfx906 gfx90a gfx9-4-generic gfx942 gfx1030 gfx1100 gfx1151 gfx1201"
whole=gfx1100 # of which a plain run compiles every kernel
passed=0 failed=0 skipped=0

nvcc=${NVCC:-nvcc}
command -v "$nvcc" >/dev/null 2>&1 || nvcc=build/nvcc/nvidia/cu13/bin/nvcc
command -v "$nvcc" >/dev/null 2>&1 || nvcc=
hipclang=${HIPCLANG-}
if [ -z "$hipclang" ]; then
    for name in clang clang-19 clang-20 clang-21 clang-18; do
        if command -v "$name" >/dev/null 2>&1 && "$name" -print-targets 2>/dev/null | grep -q amdgcn; then
            hipclang=$name
            break
        fi
    done
fi

# compile_nvidia TARGET FLAG...: a line "kernel registers spilled-bytes" for each kernel, and TARGET.s, their assembly (PTX).
compile_nvidia() {
    target=$1
    shift
    rm -rf "${out:?}/$target"
    mkdir -p "$out/$target"
    case $target in
    compute_*) set -- "$@" -gencode="arch=$target,code=$target" -ptx ;;
    *) set -- "$@" -gencode="arch=compute_${target#sm_},code=$target" -Xptxas -v -cubin ;;
    esac
    "$nvcc" -std=c++17 -O3 --fmad=false --keep --keep-dir "$out/$target" "$@" -o "$out/$target.bin" backends/cuda/kernels.cu >"$out/$target.log" 2>&1 || return 1
    case $target in compute_*)
        cp "$out/$target.bin" "$out/$target.s"
        grep '\.entry' "$out/$target.bin" >"$out/$target.txt"
        return
        ;;
    esac
    mv "$out/$target/"*.ptx "$out/$target.s"
    awk '/Compiling entry function/ { split($0, part, "\047"); name = part[2]; sub(/^fg_gpu_/, "", name) }
         /bytes spill stores/ { for (i = 1; i <= NF; i++) if ($i == "spill") { spilled += $(i - 2); } }
         / Used [0-9]+ registers/ { for (i = 1; i < NF; i++) if ($i == "Used") print name, $(i + 1), spilled + 0; spilled = 0 }' \
        "$out/$target.log" >"$out/$target.txt"
}

compile_amd() {
    target=$1
    shift
    case $target in *-generic) set -- "$@" -mcode-object-version=6 ;; esac
    rm -rf "${out:?}/$target"
    mkdir -p "$out/$target"
    "$hipclang" -x hip -nogpuinc -nogpulib --offload-arch="$target" --offload-device-only --no-gpu-bundle-output -O3 -ffp-contract=off \
        -save-temps=obj -Rpass-analysis=kernel-resource-usage "$@" -o "$out/$target/kernels.bin" backends/cuda/kernels.cu \
        >"$out/$target.log" 2>&1 || return 1
    mv "$out/$target/"*.s "$out/$target.s"
    awk '/Function Name:/ { for (i = 1; i < NF; i++) if ($i == "Name:") { name = $(i + 1); sub(/^fg_gpu_/, "", name) } }
         / VGPRs:/ { for (i = 1; i < NF; i++) if ($i == "VGPRs:") registers = $(i + 1) }
         / ScratchSize/ { for (i = 1; i < NF; i++) if ($i == "[bytes/lane]:") scratch = $(i + 1) }
         / LDS Size/ { print name, registers, scratch }' "$out/$target.log" >"$out/$target.txt"
}

# compare TARGET VENDOR: the figures beside the table, whose lines are: first letters of a kernel, NVIDIA registers and spilled bytes,
# AMD vector registers and bytes of scratch memory of a lane. The longest match counts.
compare() {
    awk -v target="$1" -v vendor="$2" '
        NR == FNR { if (NF == 5 && $1 !~ /^#/) { most[$1] = $(vendor == "amd" ? 4 : 2); spills[$1] = $(vendor == "amd" ? 5 : 3) } next }
        { best = ""
          for (name in most) if (index($1, name) == 1 && length(name) > length(best)) best = name
          n++
          if (best == "" || $2 > most[best] || $3 > spills[best]) {
              printf "%s: %s has %s registers and spills %s bytes; the table allows %s and %s\n", target, $1, $2, $3, most[best], spills[best]
              bad++
          } }
        END { if (n == 0) { print target ": no kernel was reported"; bad++ } exit bad > 0 }' tests/golden/gpu_targets.txt "$out/$1.txt"
}

# instructions TARGET: whether all kernels that multiply in fragments have the target's instruction in their assembly; one that is for
# kernels of some first letters alone is named with these.
instructions() {
    awk -v target="$1" '
        NR == FNR { if ($1 == target) { wanted[$3] = $2; lines++ } next }
        /^[.a-z]*.*\.entry fg_gpu_/ || /^fg_gpu_[A-Za-z0-9_]*:/ {
            name = $0
            sub(/.*fg_gpu_/, "", name)
            sub(/[^A-Za-z0-9_].*/, "", name)
            want = ""
            if (name ~ /^(gemm|experts[1-9][0-9]|wide|few|skinny|roof)/) {
                best = ""
                for (first in wanted) if (index(name, first) == 1 && length(first) > length(best)) best = first
                want = wanted[best]
                wants[name] = want
                there[name] += 0
                seen[best]++
            }
        }
        want != "" && index($0, want) { there[name]++ }
        END {
            if (!lines) { print target ": tests/golden/gpu_instructions.txt names no instruction"; exit 1 }
            for (first in wanted) if (!seen[first]) { print target ": there is no kernel " first; bad++ }
            for (name in there) { n++; if (!there[name]) { print target ": " name " has no " wants[name]; bad++ } }
            if (n == 0) print target ": no products were found"
            exit bad > 0 || n == 0
        }' tests/golden/gpu_instructions.txt "$out/$1.s"
}

# check TARGET VENDOR FLAG...
check() {
    target=$1 vendor=$2
    shift 2
    if ! "compile_$vendor" "$target" "$@"; then
        echo "$target: does not compile"
        tail -n 20 "$out/$target.log"
        failed=$((failed + 1))
    elif grep 'wgmma.*serialized' "$out/$target.log"; then
        failed=$((failed + 1))
    elif case $target in compute_*) false ;; *) ! compare "$target" "$vendor" ;; esac || ! instructions "$target"; then
        failed=$((failed + 1))
    else
        rm -rf "${out:?}/$target"
        echo "$target: $(wc -l <"$out/$target.txt" | tr -d ' ') kernels"
        passed=$((passed + 1))
    fi
}

# declarations MACRO HEADER COMPILER...: tests/test_gpu_abi.cpp, where the official header is.
declarations() {
    macro=$1 header=$2
    shift 2
    echo "#include <$header>" >"$out/header.cpp"
    if ! "$@" -D__HIP_PLATFORM_AMD__ -E "$out/header.cpp" >/dev/null 2>&1; then
        echo "$header: skipped, it is not installed"
        skipped=$((skipped + 1))
    elif "$@" -O1 -DFG_NO_SIMD -std=c++17 -D"$macro" -o "$out/abi_$macro" tests/test_gpu_abi.cpp -lm -lpthread -ldl && "$out/abi_$macro" "$out/kernels.source" >"$out/abi_$macro.log"; then
        echo "$header: as we declare it; $(grep HIPRTC "$out/abi_$macro.log")"
        passed=$((passed + 1))
    else
        cat "$out/abi_$macro.log" 2>/dev/null
        failed=$((failed + 1))
    fi
}

# hiprtc: the kernels as one file, as HIPRTC gets them, beside the names of types that some of its versions bring.
hiprtc() {
    BUILD=${BUILD:-build} ./build.sh source >/dev/null
    printf 'typedef unsigned long uint64_t;\ntypedef signed long int64_t;\ntypedef unsigned char uint8_t;\n' >"$out/other_types.h"
    if [ -z "$hipclang" ]; then
        skipped=$((skipped + 1))
    elif "$hipclang" -x hip -std=c++17 -nogpuinc -nogpulib --offload-arch=gfx1030 --offload-device-only -fsyntax-only \
        -include "$out/other_types.h" "${BUILD:-build}/kernels.source"; then
        echo "the source for HIPRTC: compiles beside other types"
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
    cp "${BUILD:-build}/kernels.source" "$out/kernels.source"
    printf '\0' >>"$out/kernels.source"
}

targets="$nvidia $amd"
case ${1-} in
'') ;;
nvidia) targets=$nvidia ;;
amd) targets=$amd ;;
all) whole=$targets ;;
some)
    shift
    targets=$* whole=
    ;;
*) targets=$* whole=$* ;;
esac
for target in $targets; do
    case $target in gfx*) vendor=amd compiler=$hipclang ;; *) vendor=nvidia compiler=$nvcc ;; esac
    if [ -z "$compiler" ]; then
        echo "$target: skipped, no compiler for it is installed"
        skipped=$((skipped + 1))
        continue
    fi
    if [ "$vendor" = amd ] && ! "$hipclang" --target=amdgcn-amd-amdhsa -nogpulib -mcpu="$target" -x c -fsyntax-only /dev/null 2>/dev/null; then
        echo "$target: skipped, $hipclang does not know it"
        skipped=$((skipped + 1))
        continue
    fi
    case " $whole " in
    *" $target "*) check "$target" "$vendor" ;;
    *) check "$target" "$vendor" -DFG_ONLY_SOME ;;
    esac
done
case ${1-all} in nvidia | all)
    declarations WITH_CUDA cuda.h "${nvcc:-c++}" ${nvcc:+-cudart none}
    declarations WITH_CUBLASLT cublasLt.h "${nvcc:-c++}" ${nvcc:+-cudart none} ${CUBLASLT_INCLUDE:+-I "$CUBLASLT_INCLUDE"}
    ;;
esac
case ${1-all} in amd | all)
    hiprtc
    declarations WITH_HIP hip/hip_runtime_api.h "${CXX:-c++}"
    declarations WITH_HIPBLASLT hipblaslt/hipblaslt.h "${CXX:-c++}" ${HIPBLASLT_INCLUDE:+-I "$HIPBLASLT_INCLUDE"}
    ;;
esac
[ $skipped = 0 ] && echo "$passed passed, $failed failed" || echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
