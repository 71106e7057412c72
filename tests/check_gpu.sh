#!/bin/sh
# What a first run on a real GPU does: builds the kernels for the card, runs the tests on its driver, looks for errors with NVIDIA's
# compute-sanitizer, measures models of real shapes beside llama.cpp and transformers' continuous batching, and writes a table.
#
#     tests/check_gpu.sh                                    all stages, results to build/gpu-check/results.md
#     tests/check_gpu.sh --llama /opt/llama.cpp/build/bin    with llama-bench and llama-batched-bench from there
#     tests/check_gpu.sh --quick build tests                the named stages, small models only
#     tests/check_gpu.sh --target sm_90a build              for a card that is not there
#
# Stages: card build tests sanitizer kernels models bench attention vulkan peers transformers report. Each leaves build/gpu-check/STAGE.log, and what
# it found out in files beside; `report` is made of these, so that stages may run one at a time. `vulkan` is the card by that backend: throughput,
# then every kernel of its passes.
#
# Options: --target T (default: asks nvidia-smi or rocminfo), --models DIR (default build/gpu-check/models), --llama DIR, --quick.
# PYTHON has numpy and gguf (models), and torch and transformers for the card's own rates and that stage, where they see it. Timings never fail it.
# The last line is "N passed, N failed".
set -u
unset CDPATH
cd "$(dirname "$0")/.."
out=build/gpu-check models= llama= quick= target= stages=
python=${PYTHON:-python3}
while [ $# -gt 0 ]; do
    case $1 in
    --target) target=$2 && shift ;;
    --models) models=$2 && shift ;;
    --llama) llama=$2 && shift ;;
    --quick) quick=1 ;;
    -h | --help) sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p;}' "tests/check_gpu.sh" && exit 0 ;;
    card | build | tests | sanitizer | kernels | models | bench | attention | vulkan | peers | transformers | report) stages="$stages $1" ;;
    *) echo "check_gpu.sh: no stage or option '$1'; see --help" >&2 && exit 2 ;;
    esac
    shift
done
stages=" ${stages:-card build tests sanitizer kernels models bench attention vulkan peers transformers report} "
models=${models:-$out/models}
mkdir -p "$out" "$models"
passed=0 failed=0 skipped=0

# ask_card: vendor and target of the first card.
ask_card() {
    vendor=none
    if command -v nvidia-smi >/dev/null 2>&1; then
        vendor=nvidia
        capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ')
        case $capability in 90) capability=90a ;; esac
        [ -n "$target" ] || target=${capability:+sm_$capability}
    elif command -v rocminfo >/dev/null 2>&1; then
        vendor=amd
        [ -n "$target" ] || target=$(rocminfo 2>/dev/null | awk '$1 == "Name:" && $2 ~ /^gfx/ { print $2; exit }')
    fi
    case $target in gfx*) backend=hip ;; *) backend=cuda ;; esac
}

# stage NAME COMMAND...: "ok", "FAILED" or "skipped" (status 77) with its last lines.
stage() {
    name=$1
    shift
    case $stages in *" $name "*) ;; *) return 0 ;; esac
    status=0
    "$@" >"$out/$name.log" 2>&1 </dev/null || status=$?
    case $status in
    0) passed=$((passed + 1)) && echo "ok       $name: $(tail -n 1 "$out/$name.log")" ;;
    77) skipped=$((skipped + 1)) && echo "skipped  $name: $(tail -n 1 "$out/$name.log")" ;;
    *) failed=$((failed + 1)) && echo "FAILED   $name (the end of $out/$name.log follows)" && tail -n 20 "$out/$name.log" ;;
    esac
}

# The card and the two rates that shares are of: of copies within its memory (bytes read and written) and of BF16 products.
card() {
    [ "$vendor" != none ] || { echo "there is neither nvidia-smi nor rocminfo" && return 1; }
    if [ $vendor = nvidia ]; then nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1 >"$out/card.txt"
    else rocminfo | awk -F: '/Marketing Name/ { name = $2 } END { print name }' >"$out/card.txt"; fi
    $python - >"$out/rates.txt" <<'PY' || { echo "no torch that sees the card: shares are left out" >&2 && rm -f "$out/rates.txt"; }
import torch, statistics
def seconds(work, times=12):
    for _ in range(3): work()
    taken = []
    for _ in range(times):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); work(); b.record(); torch.cuda.synchronize()
        taken.append(a.elapsed_time(b) / 1000)
    return statistics.median(taken)
n = 1 << 30
x, y = torch.empty(n, dtype=torch.uint8, device="cuda").random_(), torch.empty(n, dtype=torch.uint8, device="cuda")
print("bytes_per_s", 2 * n / seconds(lambda: y.copy_(x)))
a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
print("flops_per_s", 2 * 8192 ** 3 / seconds(lambda: a @ b))
PY
    cat "$out/card.txt"
}

# Kernels for this card alone, the tool and the tests with them inside.
build() {
    [ -n "$target" ] || { echo "no card answers, and no --target was given" && return 1; }
    if [ $backend = cuda ]; then CUDA_TARGETS=$target ./build.sh cuda || return 1
    else HIP_TARGETS=$target ./build.sh hip || return 1; fi
    ./build.sh tool && echo "kernels for $target"
}

# The card's own driver under the tests: backends, op differentials, engines, logits of transformers. FASTGEN_CUDA_LIBRARY may name
# another, such as build/standin_gpu.so.
driver() {
    if [ $backend = cuda ]; then export FASTGEN_CUDA_LIBRARY="${FASTGEN_CUDA_LIBRARY:-libcuda.so.1}" FASTGEN_HIP_LIBRARY="${FASTGEN_HIP_LIBRARY:-none}"
    else export FASTGEN_HIP_LIBRARY="${FASTGEN_HIP_LIBRARY:-libamdhip64.so}" FASTGEN_CUDA_LIBRARY="${FASTGEN_CUDA_LIBRARY:-none}"; fi
    build/fastgen info --help >/dev/null 2>&1 || { echo "build first" && return 1; }
}

tests() {
    driver && TESTS="gpu_host cpu_ logits" ./build.sh test
}

# The same device code under compute-sanitizer's four tools: out-of-bounds accesses, races in shared memory, barriers, reads of what
# nobody wrote.
sanitizer() {
    command -v compute-sanitizer >/dev/null 2>&1 || { echo "there is no compute-sanitizer" && return 77; }
    driver && [ -x build/test ] || return 1
    bad=0
    for tool in memcheck racecheck synccheck initcheck; do
        compute-sanitizer --tool $tool --error-exitcode 9 build/test gpu_host_model gpu_host_engine gpu_host_async gpu_host_blas \
            >"$out/sanitizer-$tool.log" 2>&1 || bad=$((bad + 1))
        echo "$tool: $(grep 'ERROR SUMMARY\|RACECHECK SUMMARY' "$out/sanitizer-$tool.log" | tail -n 1)"
    done
    [ $bad = 0 ]
}

# Every kernel beside the roof that bounds it, see tests/bench_gpu.c.
kernels() {
    [ $backend = cuda ] || { echo "of CUDA alone" && return 77; }
    ${CC:-cc} -O2 -DFG_NO_SIMD -o build/bench_gpu tests/bench_gpu.c -lpthread -lm -ldl || return 1
    build/bench_gpu >"$out/kernels.txt" && echo "$out/kernels.txt"
}

list() { if [ -n "$quick" ]; then echo "1.1b:Q8_0"; else echo "1.1b:BF16 1.1b:Q8_0 1.1b:Q4_K_M 8b:BF16 8b:Q8_0 8b:Q4_K_M"; fi; }

# Random weights, written here.
write_models() {
    for model in $(list); do
        file=$models/$(echo "$model" | tr ':' '-').gguf
        [ -s "$file" ] || $python tests/make_model.py --repeat --shape "${model%%:*}" --type "${model#*:}" "$file.part" && { [ -s "$file" ] || mv "$file.part" "$file"; } || return 1
        ls -l "$file"
    done
}

# Decode at batches of 1 to 128, prompts of 512 and 2048 tokens; the mixed passes of SplitFuse beside their parts.
bench() {
    driver || return 1
    for model in $(list); do
        file=$models/$(echo "$model" | tr ':' '-').gguf
        for prompt in 512 2048; do
            build/fastgen bench -m "$file" --backend $backend -p $prompt -n 64 -b 1,8,32,128 -r 5 --mixed --json -q >"$out/bench-$model-$prompt.json" || return 1
        done
        build/fastgen bench -m "$file" --backend $backend -p 512 -n 64 -b 1,32 -r 3 --async overlap --json -q >"$out/bench-$model-overlap.json" || return 1
    done
    # without a driver the tool takes the CPU
    for file in "$out"/bench-*.json; do grep -q '"device": "[^"]*, \(CUDA sm_\|HIP gfx\)' "$file" || { echo "$file is not of $backend" && return 1; }; done
    echo "measured $(list)"
}

# Prompts of 512 and 8192 tokens with each type of cache: what the longer take more is attention, which f16 and bf16 have by wgmma on
# Hopper, q8_0 by mma.sync, f32 in floats.
attention() {
    driver || return 1
    for model in $(list); do
        case $model in *:Q8_0) ;; *) continue ;; esac
        file=$models/$(echo "$model" | tr ':' '-').gguf
        for kv in f16 bf16 q8_0 f32; do
            for prompt in 512 8192; do
                build/fastgen bench -m "$file" --backend $backend -p $prompt -n 1 -b 1 -r 3 --token-budget 512 --kv-type $kv --json \
                    >"$out/attention-$model-$kv-$prompt.json" 2>"$out/attention-$model-$kv-$prompt.said" || return 1
            done
        done
    done
    # a try at start-up that failed is no measurement of wgmma
    if grep -l 'by wgmma' "$out"/attention-*.said; then return 1; fi
    echo "measured $(list)"
}

# Of the first device that Vulkan names; a line of each pass's kernels is what one takes on the device's clock, see tests/bench_vulkan.c.
vulkan() {
    printf '#include <vulkan/vulkan.h>\n' | ${CC:-cc} -fsyntax-only -xc - 2>/dev/null || { echo "no headers of Vulkan" && return 77; }
    ${CC:-cc} -O2 -DFG_NO_SIMD -o build/bench_vulkan tests/bench_vulkan.c -lpthread -lm -ldl || return 1
    for model in $(list); do
        file=$models/$(echo "$model" | tr ':' '-').gguf
        build/fastgen bench -m "$file" --backend vulkan -p 512 -n 64 -b 1,8,32 -r 5 --json -q >"$out/vulkan-$model.json" || return 1
        for batch in 1 8 32; do build/bench_vulkan "$file" -b $batch >"$out/vulkan-$model-$batch.txt" || return 1; done
    done
    echo "measured $(list)"
}

peers() {
    [ -x "$llama/llama-bench" ] || { echo "no --llama" && return 77; }
    for model in $(list); do
        file=$models/$(echo "$model" | tr ':' '-').gguf
        "$llama/llama-bench" -m "$file" -ngl 99 -p 512,2048 -n 64 -r 3 -o json >"$out/llama-$model.json" || return 1
        "$llama/llama-batched-bench" -m "$file" -ngl 99 -c 81920 -npp 512 -ntg 64 -npl 1,8,32,128 --output-format jsonl \
            >"$out/llama-$model-batched.jsonl" || return 1
    done
    echo "measured $(list)"
}

# Continuous batching of transformers, BF16, on the same shapes, prompts and batches.
transformers() {
    shapes=1.1b
    [ -n "$quick" ] || shapes="1.1b 8b"
    for shape in $shapes; do
        status=0
        $python tests/bench_transformers.py --shape "$shape" --prompts 512,2048 --batches 1,8,32,128 >"$out/transformers-$shape.json" || status=$?
        [ $status = 0 ] || { rm -f "$out/transformers-$shape.json" && return $status; }
    done
    echo "measured $shapes"
}

# results.md of all there is.
report() {
    $python - "$out" >"$out/results.md" <<'PY' || return 1
import glob, json, os, re, sys
out = sys.argv[1]
def text(name):
    try: return open(os.path.join(out, name)).read()
    except OSError: return ""
rates = dict((k, float(v)) for k, v in (line.split() for line in text("rates.txt").splitlines()))
def share(x, of): return f" ({100 * x / rates[of]:.0f}%)" if of in rates and x else ""
print(f"# {text('card.txt').strip() or 'A card'}\n")
for name, unit, scale in (("bytes_per_s", "GB/s of copies", 1e9), ("flops_per_s", "TFLOP/s of BF16 products", 1e12)):
    if name in rates: print(f"{rates[name] / scale:.0f} {unit}\n")
print("Tokens/s; shares are of the card's rates above.\n")
print("| model | prompt | prompts | llama.cpp | batch | decode | llama.cpp | transformers (BF16) | bytes read | mixed pass, of its parts |\n" + "|---" * 10 + "|")
rows = 0
for path in sorted(glob.glob(os.path.join(out, "bench-*-[0-9]*.json"))):
    model, prompt = re.match(r"bench-(.*)-(\d+)\.json", os.path.basename(path)).groups()
    b = json.load(open(path))
    peer, batched, mixed, other = {}, {}, {}, {}
    for m in b.get("mixed", []): mixed[m["batch"]] = m["both_ms"] / (m["decode_ms"] + m["piece_ms"])
    for r in json.loads(text(f"transformers-{model.split(':')[0]}.json") or '{"results": []}')["results"]:
        if r["prompt"] == int(prompt): other[r["batch"]] = r["tok_s"]
    for r in json.loads(text(f"llama-{model}.json") or "[]"):
        if r["n_gen"] == 0: peer[r["n_prompt"]] = r["avg_ts"]
    for line in text(f"llama-{model}-batched.jsonl").splitlines():
        if line.startswith("{"):
            r = json.loads(line)
            batched[r["pl"]] = r["speed_tg"]
    for d in b["decode"]:
        first = d is b["decode"][0]
        def cell(x): return f"{x:.0f}" if x else ""
        print("|", model, "|", prompt, "|", cell(b["pp_tok_s"]) if first else "", "|", cell(peer.get(int(prompt))) if first else "", "|", d["batch"], "|",
              cell(d["tok_s"]), "|", cell(batched.get(d["batch"])), "|", cell(other.get(d["batch"])), "|",
              f"{b['read_gb_s']:.0f} GB/s{share(b['read_gb_s'] * 1e9, 'bytes_per_s')}" if first else "", "|",
              f"{100 * mixed[d['batch']]:.0f}%" if d["batch"] in mixed else "", "|")
        rows += 1
for path in sorted(glob.glob(os.path.join(out, "bench-*-512.json"))):
    k = json.load(open(path)).get("kv_device")
    if not k: continue
    print(f"\n{os.path.basename(path)[6:-9]}, KV cache on the CPU ({k['device_gb_s']:.0f} GB/s of attention on the device, "
          f"{k['cpu_gb_s']:.0f} on the CPU, {100 * k['at_once']:.0f}% at once, {k['down_gb_s']:.0f} GB/s to the host and {k['up_gb_s']:.0f} back), by the model: " +
          "; ".join(f"{c['context']} tokens: {c['cpu_tok_s']:.0f} tokens/s beside {c['device_tok_s']:.0f}" for c in k["contexts"]))
shapes = {"1.1b": (22, 32, 64), "8b": (32, 32, 128)} # of tests/make_model.py: layers, heads, head size
for path in sorted(glob.glob(os.path.join(out, "attention-*-8192.json"))):
    model, kv = re.match(r"attention-(.*)-([a-z0-9_]+)-8192\.json", os.path.basename(path)).groups()
    short = json.loads(text(os.path.basename(path).replace("-8192.", "-512.")) or "{}").get("pp_tok_s")
    if not short: continue
    layers, heads, dim = shapes[model.split(":")[0]]
    n, rate = 8192, json.load(open(path))["pp_tok_s"]
    more = n / rate - n / short # seconds; the rest of the model takes the same for each 512
    flops = layers * heads * 4 * dim * (n * n - n // 512 * 512 * 512) / 2
    print(f"\n{model}, {kv} cache: prompts of 512 {short:.0f} tokens/s, of 8192 {rate:.0f}" +
          (f"; attention {flops / more / 1e12:.1f} TFLOP/s{share(flops / more, 'flops_per_s')}" if more > 0 else ""))
for log in sorted(glob.glob(os.path.join(out, "sanitizer-*.log"))):
    found = re.findall(r"SUMMARY: .*", open(log, errors="replace").read())
    print(f"\n{os.path.basename(log)[10:-4]}: {found[-1] if found else 'no summary'}")
sys.exit(rows == 0)
PY
    echo "$out/results.md"
}

ask_card
stage card card
stage build build
stage tests tests
stage sanitizer sanitizer
stage kernels kernels
stage models write_models
stage bench bench
stage attention attention
stage vulkan vulkan
stage peers peers
stage transformers transformers
stage report report
[ $skipped = 0 ] && echo "$passed passed, $failed failed" || echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
