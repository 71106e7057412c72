#!/bin/sh
# Compiles the Vulkan backend's kernels by Mesa's compilers for GPUs, of which the machine needs none, and compares registers and scratch
# memory of each with tests/golden/vulkan_compilers.txt; none may take ten seconds. Skips, saying so, what no installed driver can make.
#
#     tests/check_vulkan_compilers.sh                      some kernels for VEGA10 and NAVI21
#     tests/check_vulkan_compilers.sh TARGET ...           for these
#     tests/check_vulkan_compilers.sh all TARGET ...       all kernels: every type of weights and caches, more sizes of heads
#     tests/check_vulkan_compilers.sh only WORDS TARGET    what the driver tells of the kernels whose names begin with WORDS (one argument)
#
# Targets: families of AMD's as RADV_FORCE_FAMILY has them (Mesa up to 25: NAVI10, NAVI21, VEGA10; NAVI31, GFX1200 from 23 and 25 on);
# intel-PLATFORM (intel-dg2, intel-tgl, intel-bmg) and nvidia-CHIPSET (nvidia-162: TU102) where SHIMS names a folder with Mesa's
# libintel_noop_drm_shim.so and libnouveau_noop_drm_shim.so, which say that there is such a device. Of Mesa's source these alone are made by
#     meson setup b -Dtools=drm-shim,intel -Dvulkan-drivers= -Dgallium-drivers=crocus,nouveau -Dplatforms= -Dglx=disabled -Dllvm=disabled
#     ninja -C b src/intel/tools/libintel_noop_drm_shim.so src/nouveau/drm-shim/libnouveau_noop_drm_shim.so
# and they serve the drivers of Debian's packages. IN: a command under which drivers run, for those of another system:
#     IN="chroot /srv/trixie" SHIMS=/srv/shims tests/check_vulkan_compilers.sh NAVI31 intel-dg2
#
# The figures of each target go to BUILD/vulkan/TARGET.txt; see build/vulkan_stats --help. BUILD: default build.
# Needs libvulkan-dev. The last line is "N passed, N failed[, N skipped]".
set -eu
unset CDPATH
cd "$(dirname "$0")/.."
case ${1-} in -h | --help)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit
    ;;
esac
BUILD=$(mkdir -p "${BUILD:-build}/vulkan" && cd "${BUILD:-build}" && pwd)
out=$BUILD/vulkan
passed=0 failed=0 skipped=0
export MESA_SHADER_CACHE_DISABLE=true MESA_GLSL_CACHE_DISABLE=true

# driver NAME: its file for the loader, where drivers run.
# shellcheck disable=SC2086 # IN: a list of words
driver() { ${IN-} sh -c "ls /usr/share/vulkan/icd.d/$1*.json 2>/dev/null | head -n 1"; }

# stats TARGET WORD...: build/vulkan_stats as on such a device.
# shellcheck disable=SC2086 # IN: a list of words
stats() {
    target=$1
    shift
    set -- "$BUILD/vulkan_stats" "$@"
    case $target in
    intel-*) set -- "VK_ICD_FILENAMES=$(driver intel_icd)" "INTEL_STUB_GPU_PLATFORM=${target#intel-}" "LD_PRELOAD=${SHIMS-}/libintel_noop_drm_shim.so" "$@" ;;
    nvidia-*) set -- "VK_ICD_FILENAMES=$(driver nouveau_icd)" "NOUVEAU_CHIPSET=${target#nvidia-}" "LD_PRELOAD=${SHIMS-}/libnouveau_noop_drm_shim.so" "$@" ;;
    *) set -- "VK_ICD_FILENAMES=$(driver radeon_icd)" "RADV_FORCE_FAMILY=$target" "$@" ;;
    esac
    ${IN-} env "$@"
}

# compare TARGET COLUMN: the figures beside the table, whose lines are: first letters of a kernel, then for AMD, Intel and NVIDIA the most
# registers and bytes of scratch memory. The longest match counts.
compare() {
    awk -v target="$1" -v column="$2" '
        NR == FNR { if (NF == 7 && $1 !~ /^#/) { most[$1] = $column; scratch[$1] = $(column + 1) } next }
        /^#/ { print target ": " substr($0, 3); next }
        { best = ""
          for (name in most) if (index($1, name) == 1 && length(name) > length(best)) best = name
          n++
          if ($2 == "failed") print target ": " $1 " does not compile: " $3
          else if (best == "" || $2 > most[best] || $3 > scratch[best])
              printf "%s: %s has %s registers and %s bytes of scratch memory; the table allows %s and %s\n", target, $1, $2, $3, most[best], scratch[best]
          else if ($7 > 10000) printf "%s: %s takes %s ms\n", target, $1, $7
          else good++ }
        END { printf "%s: %d kernels\n", target, n; exit n == 0 || good < n }' tests/golden/vulkan_compilers.txt "$out/$1.txt"
}

check() {
    case $1 in intel-*) column=4 name=intel_icd ;; nvidia-*) column=6 name=nouveau_icd ;; *) column=2 name=radeon_icd ;; esac
    if [ -z "$(driver $name)" ]; then
        echo "$1: skipped, there is no driver for it"
        skipped=$((skipped + 1))
    elif ! stats "$1" $some >"$out/$1.txt" 2>"$out/$1.log"; then
        if [ ! -s "$out/$1.txt" ] && grep -q 'vulkan_stats: no device\|Unknown family' "$out/$1.log"; then
            echo "$1: skipped, the driver does not know it"
            skipped=$((skipped + 1))
            return
        fi
        echo "$1: the driver ends"
        tail -n 5 "$out/$1.txt" "$out/$1.log"
        failed=$((failed + 1))
    elif compare "$1" $column; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
}

${CC:-cc} -O1 -std=gnu99 -DFG_NO_SIMD -Wall -Wextra -Wno-unused-function -Werror -o "$BUILD/vulkan_stats" tests/vulkan_stats.c -lm -lpthread -ldl
some=
case ${1-} in
all)
    some=all
    shift
    ;;
only)
    # shellcheck disable=SC2086 # a list of words
    stats "$3" every all $2
    exit
    ;;
esac
[ $# -gt 0 ] || set -- VEGA10 NAVI21
for target in "$@"; do check "$target"; done
[ $skipped = 0 ] && echo "$passed passed, $failed failed" || echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
