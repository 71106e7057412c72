#!/bin/sh
# The command-line tool, by the forms its users type. POSIX sh; TOOL is the command (default: build/fastgen).
# The last line is "N passed, N failed", with ", N skipped" where some were.
set -u
unset CDPATH
cd "$(dirname "$0")/.." || exit 1
TOOL=${TOOL:-build/fastgen}
demo=examples/demo-model/demo.gguf
stories=../shared/models/stories260K.gguf
vocabulary=../shared/tokenizers/ggml-vocab-llama-spm.gguf
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
export XDG_CACHE_HOME="$dir/cache"
passed=0
failed=0
skipped=0

# tool ARGUMENT...: stdout and stderr into files; the exit status is the tool's.
tool() {
    # shellcheck disable=SC2086 # TOOL: a list of words
    $TOOL "$@" >"$dir/out" 2>"$dir/err"
    status=$?
    if [ -n "$(tr -cd '\r' <"$dir/out")" ]; then # Windows
        tr -d '\r' <"$dir/out" >"$dir/plain" && mv "$dir/plain" "$dir/out"
    fi
    return $status
}

# check NAME COMMAND...
check() {
    name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $name"
        head -c 600 "$dir/out" | sed 's/^/    out: /'
        head -c 600 "$dir/err" | sed 's/^/    err: /'
    fi
}

skip() {
    skipped=$((skipped + 1))
    echo "skipped $1: $2 is not here"
}

out_is() { [ "$(cat "$dir/out")" = "$1" ]; }
out_starts() { case $(cat "$dir/out") in "$1"*) true ;; *) false ;; esac }
out_matches() { grep -Eiq -e "$1" "$dir/out"; }
out_lines() { [ "$(wc -l <"$dir/out")" -eq "$1" ]; }
err_matches() { grep -Eiq -e "$1" "$dir/err"; }
same() { [ -s "$dir/first" ] && cmp "$dir/out" "$dir/first"; }
silent() { ! [ -s "$dir/out" ]; }

# ---- generate

one_prompt() { tool generate -m $demo -p "Once upon a time" -n 16 --temp 0 && out_starts "Once upon a time" && [ "$(wc -c <"$dir/out")" -gt 30 ]; }
check "generate: prompt and continuation" one_prompt
cp "$dir/out" "$dir/first"
check "generate: the same again" one_prompt
check "generate: the same text each time" same

two_prompts() {
    tool generate -m $demo -p "Once upon a time" -p "The little dog" -n 16 --temp 0 || return 1
    out_starts "$(cat "$dir/first")" && out_matches "^The little dog"
}
check "generate: two prompts in one batch, one block each, the first as if alone" two_prompts

two_devices() {
    tool generate -m $demo -p "Once upon a time" -n 8 --temp 0 --backend vulkan --gpu-layers 1 && out_starts "Once upon a time" || return 1
    tool generate -m $demo -p "Once upon a time" -n 8 --temp 0 --backend vulkan --kv-device cpu --kv-level 64 && out_starts "Once upon a time"
}
check "generate: a model on two devices, or on the CPU alone" two_devices

where_kv() {
    tool bench -m $demo -p 32 -n 2 -b 1 -q --json --backend vulkan || return 1
    out_matches '"backend": "cpu"' || out_matches '"at_once": .*"products": .*"contexts": .*"pays": '
}
check "bench: where the KV cache belongs, if there is another device than the CPU" where_kv

bad_kv_device() { ! tool generate -m $demo -p a --kv-device disk && err_matches "kv_device is 'disk'"; }
check "generate: an unknown device for the KV cache" bad_kv_device

bad_experts_device() { ! tool generate -m $demo -p a --experts-device disk && err_matches "experts_device is 'disk'"; }
check "generate: an unknown device for experts" bad_experts_device

sampled() { tool generate -m $demo -p "Once" -n 16 --temp 0.8 --top-k 40 --top-p 0.9 --seed 7 --threads 2; }
check "generate: sampling options" sampled
cp "$dir/out" "$dir/first"
check "generate: sampling again" sampled
check "generate: a seed repeats" same

best_alone() {
    tool generate -m $demo -p "Once upon a time" -n 16 --temp 0 && cp "$dir/out" "$dir/first" || return 1
    tool generate -m $demo -p "Once upon a time" -n 16 --temp 2 --top-k 0 --min-p 0 --top-p 0 --seed 3 && same
}
check "generate: --top-p 0 is the best token alone" best_alone

seeds() { tool generate -m $demo -p Once -n 1 --seed 010 --json && out_matches '"seed": 10,' && tool generate -m $demo -p Once -n 1 --seed 0x10 --json && out_matches '"seed": 16,'; }
check "generate: a seed is decimal, or hexadecimal" seeds

from_file() { # LINE-END: it is not part of the prompt
    printf 'Once upon a time%b' "$1" >"$dir/prompt" && tool generate -m $demo -f "$dir/prompt" -n 1 --json && out_matches '"prompt": "Once upon a time",'
}
check "generate: -f" from_file ""
check "generate: -f, a line of Unix" from_file '\n'
check "generate: -f, a line of Windows" from_file '\r\n'

# ---- another device: the CPU's text, or a message and the CPU's text. Eight tokens: the CPU rounds activations to 8 bits
# where weights are Q8_0, others need not, so that near ties part the texts at some point.

on_vulkan() {
    tool generate -m $demo -p "Once upon a time" -n 8 --temp 0 && cp "$dir/out" "$dir/first"
    tool generate -m $demo -p "Once upon a time" -n 8 --temp 0 --backend vulkan && same
}
check "generate: --backend vulkan" on_vulkan
kept_kernels() {
    grep -q "no vulkan driver" "$dir/err" && return 0
    [ -s "$XDG_CACHE_HOME/fastgen/vulkan.bin" ] && rm -r "$XDG_CACHE_HOME" &&
        tool generate -m $demo -p "Once upon a time" -n 8 --temp 0 --backend vulkan --no-kernel-cache && same && [ ! -e "$XDG_CACHE_HOME/fastgen" ]
}
case $TOOL in *.exe*) ;; *) check "generate: compiled Vulkan kernels are kept" kept_kernels ;; esac
no_driver() {
    VK_DRIVER_FILES=/nonexistent VK_ICD_FILENAMES=/nonexistent tool generate -m $demo -p "Once upon a time" -n 8 --temp 0 --backend vulkan &&
        same && err_matches "no vulkan driver"
}
case $TOOL in
*.exe* | *qemu*) ;; # whether those see this machine's drivers is not ours to say
*) check "generate: --backend vulkan without a driver" no_driver ;;
esac

# ---- tokenize

round_trip() {
    text="The little dog, 12 cats & a bird."
    ids=$(printf '%s' "$text" | $TOOL tokenize -m $demo --no-bos 2>"$dir/err" | tr -d '\r')
    echo "$ids" >"$dir/out"
    out_matches '^[0-9]+( [0-9]+)*$' && out_lines 1 || return 1
    echo "$ids" | $TOOL tokenize -m $demo --decode >"$dir/out" 2>"$dir/err" && out_is "$text"
}
check "tokenize: ids on one line, and back" round_trip

cut_ids() { ! printf '1 2\0 3' | $TOOL tokenize -m $demo --decode >"$dir/out" 2>"$dir/err" && silent && err_matches "NUL"; }
check "tokenize: --decode refuses what it would read a part of" cut_ids

json_ids() {
    printf 'Once upon' | $TOOL tokenize -m $demo --json 2>"$dir/err" >"$dir/ids"
    $TOOL tokenize -m $demo --decode <"$dir/ids" >"$dir/out" 2>"$dir/err" && out_is "Once upon" || return 1
    echo '{"ids": []}' | $TOOL tokenize -m $demo --decode >"$dir/out" 2>"$dir/err" && silent || return 1
    ! echo '1 2}' | $TOOL tokenize -m $demo --decode >"$dir/out" 2>"$dir/err" && silent
}
check "tokenize: --decode of what --json prints" json_ids

# One end of the input ends it: the rest is for the next program.
typed() {
    printf 'Once upon\n\004second\n\004\004\004' | script -qec "$TOOL tokenize -m $demo; read -r line; echo \"next: \$line\"" /dev/null >"$dir/out" 2>"$dir/err"
    out_matches "next: second"
}
case "$TOOL $(script --version 2>/dev/null)" in
*.exe*) ;;
*util-linux*) check "tokenize: one Ctrl-D in a terminal" typed ;;
*) skip "tokenize: one Ctrl-D in a terminal" "script of util-linux" ;;
esac

tokenize() { # TEXT FILE OPTIONS...
    text=$1
    file=$2
    shift 2
    printf '%s' "$text" | $TOOL tokenize -m "$file" "$@" 2>"$dir/err" | tr -d '\r' >"$dir/out"
}
ids_are() { # EXPECTED TEXT FILE OPTIONS...
    expected=$1
    shift
    tokenize "$@" && out_is "$expected"
}
if [ -f $stories ]; then
    check "tokenize: stories" ids_are "1 403 407 261 378" "Once upon a time" $stories
    check "tokenize: --no-bos" ids_are "403 407 261 378" "Once upon a time" $stories --no-bos
    story="Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    story() { tool generate -m $stories -p "Once upon a time" -n 64 --temp 0 && out_starts "$story"; }
    check "generate: stories" story
    names() {
        tool generate -m $stories -p "Once" -n 2 --temp 0 --logprobs 1 --json && out_matches '"text": " upon", "logprob": [-0-9.]+, "top": \[\{"token": [0-9]+, "text": " upon"' || return 1
        tool generate -m $stories -p "Once" -n 2 --temp 0 --logprobs 1 && err_matches "' upon'   of ' upon'"
    }
    check "generate: --logprobs names tokens with their spaces" names
else
    skip "stories" $stories
fi
if [ -f $vocabulary ]; then
    check "tokenize: a file with a vocabulary only" ids_are "15043 3186" "Hello world" $vocabulary --no-bos
    check "tokenize: special tokens" ids_are "1 2" "</s>" $vocabulary
    check "tokenize: --no-special" ids_are "1 1533 29879 29958" "</s>" $vocabulary --no-special
else
    skip "vocabulary-only files" $vocabulary
fi

# ---- perplexity

perplexity() {
    tool perplexity -m $demo -f LICENSE "$@" && out_lines 1 &&
        out_matches '^tokens [0-9]+ nll [0-9]+\.[0-9]+ ppl [0-9]+(\.[0-9]+)?$' &&
        awk '{ d = exp($4) / $6 - 1; exit !($2 > 100 && d < 0.01 && d > -0.01) }' "$dir/out"
}
check "perplexity: tokens N nll X ppl Y" perplexity
check "perplexity: -c" perplexity -c 32

# ---- bench

bench_json() {
    tool bench -m $demo -p 32 -n 8 -b 1,4 --json || return 1
    tr -d ' \n' <"$dir/out" >"$dir/json"
    number='[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?'
    grep -Eq '^\{"model":".*\}$' "$dir/json" || return 1
    for key in '"backend":"cpu"' '"device":"' "\"threads\":$number" '"prompt":32' "\"pp_tok_s\":$number" \
        "\"decode\":\[\{\"batch\":1,\"tok_s\":$number,\"idle_us\":$number,\"idle_share\":$number\},\{\"batch\":4,\"tok_s\":$number," \
        "\"read_gb_s\":$number" "\"roof_gb_s\":$number" "\"read_share\":$number"; do
        grep -Eq "$key" "$dir/json" || return 1
    done
}
check "bench: --json" bench_json
table() { tool bench -m $demo -p 32 -n 8 -b 1,4 && [ "$(wc -l <"$dir/out")" -gt 2 ]; }
check "bench: a table" table
mixed() {
    tool bench -m $demo -p 32 -n 8 -b 1,4 --mixed --json -q || return 1
    tr -d ' \n' <"$dir/out" >"$dir/json"
    number='[0-9]+\.[0-9]+'
    part="\"decode_ms\":$number,\"piece_ms\":$number,\"both_ms\":$number"
    grep -Eq "\"mixed\":\[\{\"batch\":1,\"piece\":32,$part\},\{\"batch\":4,\"piece\":32,$part\}\]" "$dir/json" || return 1
    tool bench -m $demo -p 32 -n 8 -b 2 --mixed -q && out_matches 'both in a pass' && out_matches ' 32: .* ms .*%'
}
check "bench: --mixed" mixed
plots() { tool bench "$@" -q --plot "$dir/bench.svg" && grep -q "</svg>" "$dir/bench.svg" && rm "$dir/bench.svg"; }
check "bench: --plot, passes longer than the model's context" plots -m $demo -b 1 -p 64 -n 8 --token-budget 2048
if [ -f $stories ]; then
    check "bench: --plot, as many tokens as the context has" plots -m $stories -b 1 -n 128
    check "bench: --plot, more" plots -m $stories -b 1 -n 200
    check "bench: --plot, short prompts" plots -m $stories -b 1 -p 8 -n 4
else
    skip "bench: --plot of a short context" $stories
fi
simulated() {
    tool bench sim -q -r 3 --json --plot "$dir/sim.svg" || return 1
    [ "$(grep -c '"policy": "splitfuse"' "$dir/out")" = 32 ] && [ "$(grep -c '"policy": "static"' "$dir/out")" = 32 ] && grep -q "</svg>" "$dir/sim.svg"
}
check "bench sim: --json and --plot" simulated
elsewhere() { # the model that it takes by default is not there
    # shellcheck disable=SC2086 # a list of words
    set -- $TOOL
    for word; do # from the front to the end: a path with a space stays one word
        shift
        [ ! -f "$PWD/$word" ] || word=$PWD/$word
        set -- "$@" "$word"
    done
    (cd "$dir" && ! "$@" bench sim -q -r 1 >out 2>err) && silent && err_matches "give -m FILE"
}
check "bench sim: without a model" elsewhere
swept() { tool bench sweep -m $demo -q --json --plot "$dir/sweep.svg" && out_matches '"share": 100, "cached": 9' && out_matches '"async": "async-2", "rate": 16' && out_matches '"hashing_ns": [0-9]' && grep -q "</svg>" "$dir/sweep.svg"; }
check "bench sweep: --json and --plot" swept
# results REQUESTS/S: as bench serve prints them
results() {
    values='"requests": 4, "failed": 0, "seconds": 1, "tokens_s": 9, "latency_s": 1, "first_p50_s": 1, "first_p99_s": 1, "gap_p50_s": 1, "gap_p99_s": 1'
    echo "{\"servers\": [{\"name\": \"here\", \"model\": \"demo\", \"levels\": [{\"clients\": 1, \"requests_s\": $1, $values, \"passed_s\": {\"2\": 1}}]}]}"
}
two_days() {
    results 1.25 >"$dir/monday.json"
    results 2.5 >"$dir/tuesday.json"
    tool bench serve --results "$dir/monday.json" && out_matches '^here \(demo\)' && out_matches '^ +1 +1\.25 ' || return 1
    tool bench serve --results "$dir/monday.json" --results "$dir/tuesday.json" --plot "$dir/days.svg" && grep -q 'monday.json' "$dir/days.svg" || return 1
    out_matches '^here \(.*monday\.json\) \(demo\)' && out_matches '^ +1 +1\.25 ' && out_matches '^here \(.*tuesday\.json\) \(demo\)' && out_matches '^ +1 +2\.50 '
}
check "bench serve: --results of a server, twice" two_days
long_name() { # the picture has room for it: its end, at seven pixels a character
    results 1 >"$dir/a_file_of_results_whose_name_is_long_1.json" && results 2 >"$dir/a_file_of_results_whose_name_is_long_2.json"
    tool bench serve --results "$dir/a_file_of_results_whose_name_is_long_1.json" --results "$dir/a_file_of_results_whose_name_is_long_2.json" --plot "$dir/days.svg" || return 1
    width=$(sed -n "s/^<svg .* width='\([0-9]*\)'.*/\1/p" "$dir/days.svg")
    sed -n "s|.*<text x='\([0-9]*\)' y='[0-9]*'>\(here (.*)\)</text>.*|\1 \2|p" "$dir/days.svg" >"$dir/names"
    [ "$(wc -l <"$dir/names")" -ge 8 ] && awk -v width="$width" '{ if ($1 + 7 * (length($0) - length($1) - 1) > width) exit 1 }' "$dir/names"
}
check "bench serve: a long name in the picture" long_name
numbered() { # BATCHES NUMBERS: those below the axis of batches, which is that of the second picture
    tool bench -m $demo -p 8 -n 2 -b "$1" -q --plot "$dir/batches.svg" || return 1
    [ "$(sed -n "/translate(0 400)/,/translate(0 800)/s|.* [0-9]*v5' .*>\([0-9]*\)</text>|\1|p" "$dir/batches.svg" | tr '\n' ' ')" = "$2" ]
}
check "bench: --plot, batches between two powers of two" numbered 5,6,7 "4 8 "
check "bench: --plot, one batch" numbered 3 "2 4 8 "
check "bench: --plot, one batch that is a power of two" numbered 4 "2 4 8 "
budgets() {
    tool generate -m $demo -p "Once upon a time" -n 24 --temp 0 || return 1
    cp "$dir/out" "$dir/plain_budget"
    tool generate -m $demo -p "Once upon a time" -n 24 --temp 0 --saturate --target-tbt 20 && cmp "$dir/out" "$dir/plain_budget"
}
check "--saturate and --target-tbt" budgets
drafted() {
    tool generate -m $demo -p "One two three. One two three. One two" -n 60 --temp 0 && cp "$dir/out" "$dir/plain_draft" || return 1
    tool generate -m $demo -p "One two three. One two three. One two" -n 60 --temp 0 --draft 8 && cmp "$dir/out" "$dir/plain_draft"
}
check "--draft: the same text" drafted

drafted_by() { tool generate -m $demo -p "One two three. One two three. One two" -n 60 --temp 0 --draft-model $demo --draft 3 && cmp "$dir/out" "$dir/plain_draft" && grep -q "guesses right" "$dir/err"; }
check "--draft-model: the same text" drafted_by
drafted_wrong() { ! tool generate -m $demo -p x -n 1 --draft-model nosuchfile && [ $status = 1 ]; }
check "--draft-model: a file that is not there" drafted_wrong

asynchronous() {
    for mode in off overlap 2; do
        tool generate -m $demo -p "One two three. One two three. One two" -n 60 --temp 0 --async $mode && cmp "$dir/out" "$dir/plain_draft" || return 1
    done
    ! tool generate -m $demo -p x --async 3 && [ $status = 2 ]
}
check "--async: the same text" asynchronous
beams() {
    tool generate -m $demo -p "Once upon a time" -n 12 --beams 4 --samples 2 --json && out_matches '"sample": 1' || return 1
    tool generate -m $demo -p "Once upon a time" -n 12 --best-of 4 --samples 2 --seed 1 --json && out_matches '"sample": 1'
}
check "--beams and --best-of" beams
no_beams() { ! tool generate -m $demo -p x --beams 2 --samples 3 && err_matches "at most n_beams"; }
check "--beams: too many texts" no_beams
traced() {
    tool generate -m $demo -p "Once upon a time" -n 8 --temp 0 --trace "$dir/trace.json" || return 1
    [ "$(head -c 1 "$dir/trace.json")" = "[" ] && [ "$(tail -n 1 "$dir/trace.json" | tr -d '\r')" = "]" ] && grep -q '"name":"pass"' "$dir/trace.json"
}
check "--trace" traced
# A file that is opened then must not get the number of a closed stream, and with it what is said there.
closed_streams() {
    # shellcheck disable=SC2086 # TOOL: a list of words
    $TOOL generate -m $demo -p "Once upon a time" -n 8 --temp 0 --trace "$dir/trace.json" >&- 2>"$dir/err"
    [ $? = 1 ] && err_matches "could not be written" && ! grep -q "Once upon" "$dir/trace.json" && tail -n 1 "$dir/trace.json" | grep -q '^\]$' || return 1
    # shellcheck disable=SC2086 # TOOL: a list of words
    $TOOL generate -m $demo -p "Once upon a time" -n 8 --temp 0 --trace "$dir/trace.json" >"$dir/out" 2>&- || return 1
    out_matches "Once upon" && ! grep -q "tokens/s" "$dir/trace.json" && tail -n 1 "$dir/trace.json" | grep -q '^\]$'
}
case $TOOL in *.exe*) ;; *) check "closed standard streams" closed_streams ;; esac
bad_trace() { ! tool generate -m $demo -p x --trace "$dir/no/such/dir" && err_matches "cannot write"; }
check "--trace: cannot write" bad_trace

# full MESSAGE COMMAND...: a status of 1 and a message, as /dev/full takes nothing.
full() {
    message=$1
    shift
    "$@"
    [ $status = 1 ] && err_matches "$message"
}
full_output() {
    # shellcheck disable=SC2086 # TOOL: a list of words
    $TOOL "$@" >/dev/full 2>"$dir/err"
    status=$?
    : >"$dir/out"
}
if [ -c /dev/full ]; then
    check "--trace: no room" full "trace is not complete" tool generate -m $demo -p Once -n 3 --trace /dev/full
    for words in "generate -m $demo -p Once -n 2 -q" "generate -m $demo -p Once -n 2 --json" "info -m $demo" "--help" "generate --help" "--version"; do
        # shellcheck disable=SC2086 # a list of words
        check "no room for the output: $words" full "could not be written" full_output $words
    done
else
    skip "outputs without room" /dev/full
fi

ended() { # FILE OPTION...: one who is asked to end, once there is something in a file, keeps what was written
    watched=$1
    shift
    # shellcheck disable=SC2086 # TOOL: a list of words
    $TOOL generate -m $demo -p Once -n 100000 -c 200000 --ignore-eos -q "$@" >"$dir/out" 2>"$dir/err" &
    pid=$!
    seconds=0
    until [ -s "$watched" ] || [ $seconds = 60 ]; do
        sleep 1
        seconds=$((seconds + 1))
    done
    kill -TERM $pid
    wait $pid
    [ $? = 143 ] && [ -s "$dir/out" ] && err_matches "interrupted"
}
ended_json() { ended "$dir/trace" --trace "$dir/trace" --json && out_matches '"finish": "cancelled", "prompt_tokens": [1-9]'; }
case $TOOL in
*.exe*) ;;
*)
    check "generate: asked to end" ended "$dir/out"
    check "generate: asked to end, --json" ended_json
    ;;
esac

# ---- chat, info, demo

chat() { printf 'Hello there\nWhat is your name?\n' | $TOOL chat -m $demo -n 16 --temp 0 >"$dir/out" 2>"$dir/err" && [ -s "$dir/out" ]; }
check "chat: two turns from a pipe" chat
nul_chat() {
    printf 'he\0llo\nsecond' | $TOOL chat -m $demo -n 4 --temp 0 >"$dir/out" 2>"$dir/err" && out_lines 2
}
check "chat: a NUL in a question" nul_chat
long_chat() { # what an answer does not have room for is forgotten before it, and what -n cuts is told
    for _ in 1 2 3; do echo "Please tell me a long story about a dog"; done |
        $TOOL chat -m $demo -n 40 -c 84 --temp 0 >"$dir/out" 2>"$dir/err" && out_lines 3 &&
        [ "$(sort "$dir/out" | uniq | wc -l)" -eq 1 ] && [ "$(grep -c 'forgotten' "$dir/err")" -eq 2 ] && [ "$(grep -c 'cut: -n' "$dir/err")" -eq 3 ]
}
check "chat: room for answers" long_chat
chat_commands() {
    printf '/nothing\nHello\n/reset\n/quit\nHello\n' | $TOOL chat -m $demo -n 4 --temp 0 >"$dir/out" 2>"$dir/err" && out_lines 1 && err_matches "no command '/nothing'"
}
check "chat: commands" chat_commands
unread() { # COMMAND: the standard input is there, but cannot be read
    # shellcheck disable=SC2086 # TOOL: a list of words
    $TOOL "$1" -m $demo </ >"$dir/out" 2>"$dir/err"
    [ $? = 1 ] && err_matches "cannot read the standard input" || return 1
    # shellcheck disable=SC2086 # TOOL: a list of words
    $TOOL "$1" -m $demo <&- >"$dir/out" 2>"$dir/err"
    [ $? = 1 ] && err_matches "cannot read the standard input"
}
case $TOOL in
*.exe*) ;;
*)
    check "chat: an input that cannot be read" unread chat
    check "tokenize: an input that cannot be read" unread tokenize
    ;;
esac
info() { tool info -m $demo && out_matches llama; }
check "info" info
info_json() { tool info -m $demo --json && tr -d '\n' <"$dir/out" | grep -Eq '^\{.*\}$'; }
check "info: --json" info_json
info_engine() { # the last row of the text's table is what the JSON says
    tool info -m $demo --json && kv=$(sed 's/.*"kv": \([0-9]*\).*/\1/' "$dir/out") && tool info -m $demo &&
        out_matches "^ +engine .* $((kv / 1048576))\\.00 MiB"
}
check "info: an engine's memory" info_engine
used_backend() {
    FASTGEN_CUDA_LIBRARY=none tool info -m $demo --backend cuda && out_matches '^device +cpu: ' || return 1
    FASTGEN_CUDA_LIBRARY=none tool info -m $demo --backend cuda --json && out_matches '"backend": "cpu"'
}
check "info: the backend that is used" used_backend
run_demo() { tool demo -m $demo; }
check "demo" run_demo
# demo_in COLUMNS ROWS: in a terminal of that size. It hides the cursor for the view that is drawn in place.
demo_in() {
    script -qec "stty cols $1 rows $2; $TOOL demo -m $demo -n 8" /dev/null </dev/null >"$dir/out" 2>"$dir/err" && grep -q "tokens written" "$dir/out"
}
drawn() { demo_in "$@" && grep -q "\[?25l" "$dir/out"; }
plain() { demo_in "$@" && ! grep -q "\[?25l" "$dir/out"; }
case "$TOOL $(script --version 2>/dev/null)" in
*.exe*) ;;
*util-linux*)
    check "demo: drawn in a terminal" drawn 64 15
    check "demo: not in a narrow one" plain 63 24
    check "demo: nor in a low one" plain 80 14
    ;;
*) skip "demo in a terminal" "script of util-linux" ;;
esac

# ---- help and errors

help_of() { tool "$@" --help && out_matches 'example|fastgen'; }
check "--help" help_of
for command in generate chat tokenize perplexity info bench; do
    check "$command --help" help_of $command
done

# fails PATTERN ARGUMENT...: a non-zero status, nothing on stdout, a message that matches.
fails() {
    pattern=$1
    shift
    tool "$@" </dev/null
    case $? in 1 | 2) ;; *) return 1 ;; esac
    silent && err_matches "$pattern"
}
check "no such command" fails "frobnicate" frobnicate
check "help of no such command" fails "no command 'frobnicate'" help frobnicate
check "info: a pool that is none" fails "blocks" info -m $demo --kv-tokens 1 --json
check "info: a path that is none" fails "foo" info -m $demo --cpu-path foo
check "info: text as JSON" fails "json" info -m $demo --graph --json
check "serve: an empty key" fails "empty" serve -m $demo --api-key ""
cp $demo "$dir/model.gguf"
check "a trace over the model" fails "is the model" generate -m "$dir/model.gguf" -p x --trace "$dir/model.gguf"
check "a plot over the model" fails "is the model" bench -m "$dir/model.gguf" --plot "$dir/./model.gguf"
check "a model that was not written" cmp $demo "$dir/model.gguf"
check "a plot that cannot be written" fails "cannot write" bench -m $demo --plot "$dir/nothing/a.svg"
check "no such option" fails "frobnicate" generate -m $demo --frobnicate
check "an option without its value" fails "-n" generate -m $demo -p x -n
check "a number that is none" fails "abc" generate -m $demo -p x -n abc
for bias in 15 15= =1 15=x; do
    check "a bias that is none: $bias" fails "ID=NUMBER" generate -m $demo -p x --logit-bias $bias
done
printf 'Once\0upon' >"$dir/nul"
check "a prompt with a NUL" fails "NUL" generate -m $demo -f "$dir/nul"
check "no model" fails "model|-m" generate -p x
check "no such file" fails "nothing.gguf" generate -m "$dir/nothing.gguf" -p x
head -c 5000 $demo >"$dir/short.gguf"
check "a truncated model" fails "short.gguf|truncat|end" generate -m "$dir/short.gguf" -p x
printf 'not a model' >"$dir/text.gguf"
check "not a model" fails "gguf" generate -m "$dir/text.gguf" -p x
check "no such backend" fails "frobnicate" generate -m $demo -p x --backend frobnicate

if [ $skipped = 0 ]; then
    echo "$passed passed, $failed failed"
else
    echo "$passed passed, $failed failed, $skipped skipped"
fi
[ $failed = 0 ]
