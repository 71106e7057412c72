#!/usr/bin/env python3
"""fastgen serve under attack: hundreds of connections that open, abort, dawdle and send garbage, while a well-behaved client
beside them must keep getting its exact answers; afterwards nothing may have leaked.

    ./build.sh tool && python tests/abuse_serve.py [--seconds 60] [--connections 400]          needs: openai; Linux

The last line is "N passed, N failed".
"""
import argparse
import asyncio
import collections
import json
import os
import random
import threading
import time

import openai
from check_serve import PROMPT, Server

counts = collections.Counter()


def request(body, path="/v1/completions", length=None):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def work(rng, **more):
    return {"prompt": PROMPT, "max_tokens": rng.randint(1, 200), "ignore_eos": True, **more}


GRACE_SECONDS = 1  # the server's: a connection that has sent nothing for so long may have to give way to another


async def expect(reader, writer, data, what):
    """Sends and must be answered so; unanswered only where this process was so slow to send that the connection gave way."""
    writer.write(data)
    late = time.monotonic() - writer.opened > GRACE_SECONDS
    answer = await reader.read(1000)
    counts["gave way"] += late and not answer
    assert what in answer[:20] or (late and not answer), (late, answer)


# What an attacker does with an open connection; each ends by closing it, most often rudely.

async def nothing(rng, reader, writer):
    await asyncio.sleep(rng.random() * 2)


async def garbage(rng, reader, writer):
    writer.write(rng.randbytes(rng.randint(1, 20000)))
    await reader.read(1000)


async def half_head(rng, reader, writer):
    writer.write(b"POST /v1/completions HTTP/1.1\r\nX: " + b"a" * rng.randint(0, 18000))
    await asyncio.sleep(rng.random() * 4)


async def drip(rng, reader, writer):
    for byte in request(work(rng)):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(rng.random() * 0.1)


async def half_body(rng, reader, writer):
    writer.write(request(b"{" * rng.randint(1, 100000), length=rng.randint(100001, 10 ** 7)))
    await asyncio.sleep(rng.random() * 4)


async def announce(rng, reader, writer):
    writer.write(request(b"{", length=8 << 20))
    await asyncio.sleep(rng.random() * 4)


async def bad_json(rng, reader, writer):
    data = bytearray(json.dumps(work(rng, stop=["a", "b"], logit_bias={"5": 1})).encode())
    for _ in range(rng.randint(1, 5)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    writer.write(request(bytes(data)))
    await reader.read(1000)


async def deep_json(rng, reader, writer):
    writer.write(request(b"[" * rng.randint(1, 300000)))
    await reader.read(1000)


async def bad_chunks(rng, reader, writer):
    writer.write(b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + rng.choice(
        [b"ffffffffffffffff\r\nx", b"5\r\nabc", b"zz\r\n", b"3\r\nabcde\r\n", b"1" * 1000]))
    await reader.read(1000)


async def smuggle(rng, reader, writer):
    both = b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n"
    await expect(reader, writer, both, b" 400 ")


async def abort_answer(rng, reader, writer):
    writer.write(request(work(rng, n=rng.randint(1, 4))))
    await asyncio.sleep(rng.random() * 0.2)


async def abort_stream(rng, reader, writer):
    writer.write(request(work(rng, stream=True)))
    await reader.read(rng.randint(1, 3000))


async def never_read(rng, reader, writer):
    writer.transport.pause_reading()
    writer.write(request(work(rng, stream=True, logprobs=20, n=4)) * 3)
    await asyncio.sleep(rng.random() * 4)


async def pipeline(rng, reader, writer):
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n" * rng.randint(1, 3000))
    await reader.read(rng.randint(1, 100000))


async def unread_pages(rng, reader, writer):
    writer.transport.pause_reading()
    writer.write(b"GET / HTTP/1.1\r\n\r\n" * 3000)
    await asyncio.sleep(rng.random() * 4)


async def honest(rng, reader, writer):
    await expect(reader, writer, request(work(rng)), b"HTTP/1.1 ")


ATTACKS = [nothing, garbage, half_head, drip, half_body, announce, bad_json, deep_json, bad_chunks, smuggle, abort_answer, abort_stream,
           never_read, pipeline, unread_pages, honest]


async def attacker(rng, host, port, until):
    while time.monotonic() < until:
        attack = rng.choice(ATTACKS)
        counts[attack.__name__] += 1
        try:
            opened = time.monotonic()
            reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), 10)
            writer.opened = opened
            try:
                await asyncio.wait_for(attack(rng, reader, writer), 15)
            finally:
                if rng.random() < 0.7:
                    writer.transport.abort()
                else:
                    writer.close()
        except (OSError, asyncio.TimeoutError):
            counts["refused or timed out"] += 1
        await asyncio.sleep(rng.random() * 0.3)


def well_behaved(server, wanted, stop, answers, wrong):
    """Told to try again (429), it does."""
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=100, timeout=60)
    while not stop.is_set():
        for prompt, text in wanted.items():
            answer = client.completions.create(model="demo", prompt=prompt, max_tokens=12, temperature=0)
            answers.append(1)
            if answer.choices[0].text != text:
                wrong.append((prompt, answer.choices[0].text))
        time.sleep(0.05)


def resident(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2 ** 20


def files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


async def attack_all(server, seconds, connections):
    host, port = server.url.split("//")[1].rsplit(":", 1)
    until = time.monotonic() + seconds
    await asyncio.gather(*(attacker(random.Random(i), host, int(port), until) for i in range(connections)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--connections", type=int, default=400)
    args = parser.parse_args()
    results = []

    def check(name, good, note=""):
        results.append(bool(good))
        print("ok     " if good else "FAILED ", name, note, flush=True)

    with Server("--max-connections", "300", "--max-queue", "16", "--max-seqs", "16", "--timeout", "5") as s:
        pid = s.process.pid
        stop, answers, wrong, failure = threading.Event(), [], [], []

        def run():
            try:
                well_behaved(s, wanted, stop, answers, wrong)
            except Exception as error:
                failure.append(error)
        good = threading.Thread(target=run)
        wanted = {p: s.complete(p, max_tokens=12).choices[0].text for p in (PROMPT, "The little dog", "The cat and the fox")}
        files_before = files(pid)
        good.start()
        asyncio.run(attack_all(s, args.seconds / 2, args.connections))  # what memory it needs is known after this
        memory_before = resident(pid)
        asyncio.run(attack_all(s, args.seconds / 2, args.connections))
        stop.set()
        good.join()
        print("       ", sum(counts.values()), "connections:", ", ".join(f"{n} {name}" for name, n in counts.most_common()))
        check("the well-behaved client was answered", not failure and len(answers) > 10, f"{len(answers)} times {failure}")
        check("and always with the same", not wrong, str(wrong[:2] or ""))
        for _ in range(200):
            m = s.metrics()
            left = [m[(f"vllm:{name}",)] for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")]
            if left == [0, 0, 0] and files(pid) <= files_before + 2:
                break
            time.sleep(0.1)
        check("no request, no block is left", left == [0, 0, 0], str(left))
        check("no file is left open", files(pid) <= files_before + 2, f"{files_before} before, {files(pid)} after")
        memory = resident(pid)
        check("memory is level", memory < memory_before * 1.25 + 16, f"{memory_before:.0f} MiB, then {memory:.0f} MiB")
        check("aborted requests were counted", m[("vllm:request_success_total", ("finished_reason", "abort"))] > 0)
    check("the server ends with 0", True)
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
