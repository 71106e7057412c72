#!/bin/sh
# The headers of ./build.sh dist, from the kernels on: an app of one line of cc, with nothing but dist/ beside it, opens both backends
# on the stand-in driver, which takes the code that suits. In a copy of the tree; some kernels for one target of each vendor, PTX
# included, where their compilers are. The last line is "N passed, N failed".
set -eu
unset CDPATH
cd "$(dirname "$0")/.."
copy=${BUILD:-build}/check_dist
compiler=build/nvcc/nvidia/cu13/bin/nvcc
[ -n "${NVCC-}" ] || { command -v nvcc >/dev/null 2>&1 && NVCC=nvcc; } || { [ -x "$compiler" ] && NVCC=$PWD/$compiler; } || NVCC=
export NVCC
rm -rf "$copy"
mkdir -p "$copy"
tar cf - build.sh fastgen.h LICENSE backends shaders tests/*.h tests/standin_gpu.c | tar xf - -C "$copy"
cd "$copy"
rm -f backends/cuda/fg_cuda_kernels.h backends/hip/fg_hip_kernels.h
export BUILD=build KERNEL_FLAGS=-DFG_ONLY_ONE
passed=0 failed=0 skipped=0 want=

# built NAME WORD COMMAND...: skipped where the compiler is missing; else what must be seen of the app.
built() {
    name=$1 word=$2
    shift 2
    if [ "$1" = skip ]; then
        echo "$name: skipped, no compiler for it is installed"
        skipped=$((skipped + 1))
    elif "$@" >$name.log 2>&1; then
        want="$want $word"
    else
        tail -n 20 $name.log
        failed=$((failed + 1))
    fi
}

mkdir -p build
CC=${CC:-cc}
$CC -O2 -std=gnu99 -ffp-contract=off -fPIC -shared -Wno-unused-function -o build/standin_gpu.so tests/standin_gpu.c -lm
if [ -n "$NVCC" ]; then built cuda sm_80 env CUDA_TARGETS="compute_80" ./build.sh cuda; else built cuda "" skip; fi
if command -v clang-19 >/dev/null 2>&1; then built hip gfx1100 env HIP_TARGETS="gfx11-generic" ./build.sh hip; else built hip "" skip; fi
./build.sh dist >dist.log 2>&1
mkdir -p app
cp dist/* app/
cat >app/app.c <<'APP'
#define FASTGEN_IMPLEMENTATION
#include "fastgen.h"
#include "fastgen_cuda.h"
#include "fastgen_hip.h"
#include "fastgen_vulkan.h"

static void open_one(const fg_backend *backend) {
    fg_device_desc desc;
    fg_device *device = NULL;
    fg_device_caps caps;
    memset(&desc, 0, sizeof(desc));
    if (backend->open(&desc, &device) == FG_OK) {
        backend->caps(device, &caps);
        printf("%s: %s\n", backend->name, caps.name);
        backend->close(device);
    } else printf("%s: %s\n", backend->name, fg_last_error());
}

int main(void) {
    open_one(fg_backend_cuda());
    open_one(fg_backend_hip());
    return fg_backend_vulkan()->abi != FG_BACKEND_ABI;
}
APP
cd app
$CC -O1 -DFG_NO_SIMD -Wall -Wextra -Wpedantic -Werror app.c -o app -lm -lpthread -ldl
FASTGEN_CUDA_LIBRARY=$PWD/../build/standin_gpu.so FASTGEN_HIP_LIBRARY=$PWD/../build/standin_gpu.so ./app | tee app.log
for word in $want; do
    if grep -q "Stand-in GPU, .* $word" app.log; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
[ $skipped = 0 ] && echo "$passed passed, $failed failed" || echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
