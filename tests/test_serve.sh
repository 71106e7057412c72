#!/bin/sh
# fastgen serve on loopback, by a client that needs nothing but a C compiler. POSIX sh; TOOL is the command (default:
# build/fastgen), CLIENT the client (build/serve_client). The last line is "N passed, N failed[, N skipped]".
set -u
unset CDPATH
cd "$(dirname "$0")/.." || exit 1
TOOL=${TOOL:-build/fastgen}
CLIENT=${CLIENT:-build/serve_client}
demo=examples/demo-model/demo.gguf
stories=../shared/models/stories260K.gguf
dir=$(mktemp -d) || exit 1
server=
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
passed=0
failed=0
skipped=0

# start OPTION...: a server on any free port; sets port and server. False: it does not listen.
start() {
    : >"$dir/out"
    # shellcheck disable=SC2086 # TOOL: a list of words
    $TOOL serve -m $demo --alias demo --port 0 --quiet "$@" >"$dir/out" 2>"$dir/err" &
    server=$!
    tries=0
    until grep -q '^listening on' "$dir/out"; do
        tries=$((tries + 1))
        if [ $tries -gt 300 ] || ! kill -0 "$server" 2>/dev/null; then return 1; fi
        sleep 0.1
    done
    port=$(sed -n 's/^listening on .*:\([0-9]*\).*/\1/p' "$dir/out")
}

count() {
    if [ "$1" = 0 ]; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        echo "FAILED $2"
        [ ! -e "$dir/err" ] || sed 's/^/    /' "$dir/err"
    fi
}

# ask ARGUMENT...: runs tests of the client and adds their counts.
ask() {
    # shellcheck disable=SC2086 # CLIENT: a list of words
    $CLIENT "$@" >"$dir/client" 2>&1
    result=$?
    grep -v ' passed, ' "$dir/client"
    # shellcheck disable=SC2046 # N passed, N failed
    set -- $(grep -E '^[0-9]+ passed, [0-9]+ failed' "$dir/client" | tr -d ,) x
    if [ $# -lt 5 ] || { [ $result != 0 ] && [ "$3" = 0 ]; }; then
        failed=$((failed + 1))
        echo "FAILED the client: status $result"
    else
        passed=$((passed + $1))
        failed=$((failed + $3))
    fi
}

# stop NAME: SIGTERM; the server must end by itself and with 0.
stop() {
    kill -TERM "$server"
    wait "$server"
    count $? "$1"
    server=
}

examples/tool/make_page.sh "$dir/page.h" && cmp "$dir/page.h" examples/tool/page.h
count $? "page.h is what make_page.sh writes from page.html"
ask units
windows=
case $TOOL in *wine* | *.exe*) TOOL=false windows="Windows has no SIGTERM to stop it by" ;; esac
if start; then
    # shellcheck disable=SC2086 # TOOL: a list of words
    text=$($TOOL generate -m $demo -p "Once upon a time" -n 24 --temp 0 2>/dev/null)
    ask protocol "$port" "${text#Once upon a time}"
    # load PROMPT-RATE: what the benchmark says of this server
    load() {
        # shellcheck disable=SC2086 # TOOL: a list of words
        $TOOL bench serve --url "here=http://127.0.0.1:$port/v1" --clients 4,1 -p 60 -n 12 -r 3 --rates 0.001 --prompt-rate "$1" \
            --json --plot "$dir/load.svg" >"$dir/json" 2>"$dir/err" && grep -q '</svg>' "$dir/load.svg" &&
            grep -q '"clients": 4, "requests": 12, "failed": 0,' "$dir/json"
    }
    load 0.001 && grep -Eq '"passed_s": \{"0.001": [0-9.]*[1-9]' "$dir/json" &&
        load 1e9 && ! grep -Eq '"passed_s": \{"0.001": [0-9.]*[1-9]' "$dir/json"
    count $? "bench serve"
    refused() { # OPTION...: with token ids that the model does not have
        # shellcheck disable=SC2086 # TOOL: a list of words
        $TOOL bench serve --url "http://127.0.0.1:$port/v1/" --clients 2 -p 60 -n 2 -r 2 --vocab 100000 "$@" >"$dir/json" 2>"$dir/err"
        [ $? = 1 ] && grep -q 'all 4 requests failed, the first: status 400: .*vocabulary' "$dir/err"
    }
    refused && refused --json -q && grep -q '"requests": 0, "failed": 4,' "$dir/json"
    count $? "bench serve: every request fails"
    stop "stops when it is asked to"
    FASTGEN_API_KEY= # no key
    export FASTGEN_API_KEY
    start --max-queue 2 --max-seqs 1 --max-connections 20 --max-body 1 --timeout 2
    ask limits "$port" "$server"
    stop "stops after limits"
    FASTGEN_API_KEY=secret
    start
    unset FASTGEN_API_KEY
    ask key "$port"
    stop "stops after keys"
    # shellcheck disable=SC2086 # CLIENT: a list of words
    $CLIENT template $demo "$dir/calls.gguf" && start -m "$dir/calls.gguf"
    count $? "a model with another template"
    ask calls "$port"
    stop "stops after calls"
    if [ -f $stories ]; then
        start -m $stories
        ask spaces "$port"
        stop "stops after stories"
    else
        skipped=1
        echo "skipped a SentencePiece vocabulary: $stories is not here"
    fi
    start --drain 600 # what it has to end takes a slow machine half a minute
    : >"$dir/drain"
    $CLIENT drain "$port" >"$dir/drain" 2>&1 &
    client=$!
    until grep -q begun "$dir/drain" || ! kill -0 $client 2>/dev/null; do sleep 0.05; done
    kill -TERM "$server"
    wait $client
    count $? "drain: a stream ends in order, new clients are not taken"
    grep -v ' passed, ' "$dir/drain"
    wait "$server"
    count $? "drain: the server ends with 0"
    server=
elif [ -n "$windows" ] || grep -Eq 'cannot listen|cannot make a socket|no sockets' "$dir/err"; then
    skipped=1
    echo "skipped fastgen serve: ${windows:-it cannot listen here}"
    sed 's/^/    /' "$dir/err"
else
    count 1 "the server starts"
fi

if [ $skipped = 0 ]; then
    echo "$passed passed, $failed failed"
else
    echo "$passed passed, $failed failed, $skipped skipped"
fi
[ $failed = 0 ]
