#!/usr/bin/env python3
"""Two `fastgen serve` behind HAProxy, as examples/haproxy.cfg sets it up: a worker is killed, comes back, and is stopped, while
clients go on. None of them may notice more than one retried request, or ever get another answer.

    ./build.sh tool && python tests/check_balancer.py          needs: openai; haproxy

The last line is "N passed, N failed[, N skipped]".
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request

import openai

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOOL = os.environ.get("TOOL", os.path.join(ROOT, "build", "fastgen"))
DEMO = os.path.join(ROOT, "examples", "demo-model", "demo.gguf")
PROMPTS = ("Once upon a time", "The little dog", "The cat and the fox", "One day a girl")
CLIENTS, LENGTH = 8, 200


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def answers(url):
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def wait_for(condition, what, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


class Worker:
    def __init__(self, port):
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.start()

    def start(self):
        self.process = subprocess.Popen([TOOL, "serve", "-m", DEMO, "--alias", "demo", "--port", str(self.port), "--quiet",
                                         "--threads", "1"], stdout=subprocess.DEVNULL)
        wait_for(lambda: answers(self.url), "a worker does not start")

    def end(self, how):
        self.process.send_signal(how)
        return self.process.wait(40)

    def count(self):
        """Requests it has answered."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines
                   if line.startswith("vllm:request_success_total") and 'finished_reason="length"' in line)


class Client(threading.Thread):
    """Asks over and over, streaming every other time; what fails is asked again and counted."""

    def __init__(self, url, wanted, number):
        super().__init__()
        self.openai = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=30)
        self.wanted, self.number, self.stop = wanted, number, False
        self.done, self.failures, self.most, self.wrong = 0, [], 0, []

    def ask(self, prompt, stream):
        answer = self.openai.completions.create(model="demo", prompt=prompt, max_tokens=LENGTH, temperature=0, stream=stream,
                                                extra_body={"ignore_eos": True})
        if not stream:
            return answer.choices[0].text
        text, ended = "", False
        for chunk in answer:
            text += chunk.choices[0].text
            ended = ended or chunk.choices[0].finish_reason is not None
        if not ended:
            raise openai.APIConnectionError(message="the stream broke off", request=None)
        return text

    def run(self):
        while not self.stop:
            prompt = PROMPTS[(self.done + self.number) % len(PROMPTS)]
            tries = 0
            while True:
                try:
                    text = self.ask(prompt, (self.done + self.number) % 2 == 0)
                    break
                except Exception as error:  # whatever a client would see
                    tries += 1
                    self.failures.append(repr(error)[:200])
                    if tries == 10:
                        return
            self.most = max(self.most, tries)
            self.done += 1
            if text != self.wanted[prompt]:
                self.wrong.append((prompt, text))


def balancer(folder, port, workers):
    with open(os.path.join(ROOT, "examples", "haproxy.cfg")) as file:
        text = file.read()
    for old, new in ((8080, port), (8081, workers[0].port), (8082, workers[1].port)):
        text = text.replace(f"127.0.0.1:{old}\n", f"127.0.0.1:{new}\n")
    path = os.path.join(folder, "haproxy.cfg")
    with open(path, "w") as file:
        file.write(text)
    return subprocess.Popen([shutil.which("haproxy", path=os.environ["PATH"] + ":/usr/sbin"), "-q", "-f", path])


def main():
    results = []

    def check(name, good, note=""):
        results.append(bool(good))
        print("ok     " if good else "FAILED ", name, note, flush=True)

    def go_on(seconds, clients, what, event=lambda: None):
        """Lets the clients work while `event` happens and after; what became of their requests meanwhile."""
        before = [(c.done, len(c.failures)) for c in clients]
        event()
        time.sleep(seconds)
        wait_for(lambda: all(c.done > b[0] for c, b in zip(clients, before)), f"{what}: a client is stuck")
        done = sum(c.done - b[0] for c, b in zip(clients, before))
        failed = [len(c.failures) - b[1] for c, b in zip(clients, before)]
        print(f"        {what}: {done} answers, retried by client: {failed}")
        return done, failed

    if not shutil.which("haproxy", path=os.environ["PATH"] + ":/usr/sbin"):
        print("skipped: haproxy is not installed\n0 passed, 0 failed, 1 skipped")
        return 0
    port, *rest = free_ports(3)
    url = f"http://127.0.0.1:{port}"
    workers = [Worker(p) for p in rest]
    clients = []
    with tempfile.TemporaryDirectory() as folder:
        proxy = balancer(folder, port, workers)
        try:
            wait_for(lambda: answers(url), "haproxy does not answer")
            wanted = {}
            for prompt in PROMPTS:
                body = json.dumps({"prompt": prompt, "max_tokens": LENGTH, "temperature": 0, "ignore_eos": True}).encode()
                with urllib.request.urlopen(urllib.request.Request(workers[0].url + "/v1/completions", body)) as answer:
                    wanted[prompt] = json.load(answer)["choices"][0]["text"]
            clients = [Client(url, wanted, i) for i in range(CLIENTS)]
            for c in clients:
                c.start()
            counts = [w.count() for w in workers]
            _, failed = go_on(2, clients, "two workers")
            shares = [w.count() - n for w, n in zip(workers, counts)]
            check("both workers get their share", min(shares) > 0.25 * sum(shares) and not any(failed), f"{shares}")
            _, failed = go_on(2, clients, "one killed", lambda: workers[0].end(signal.SIGKILL))
            causes = sorted({failure for c in clients for failure in c.failures})
            check("a killed worker costs a client one retry at most", max(failed) <= 1, ", ".join(causes))
            check("and only if its answer had begun", not any("Error code" in cause for cause in causes))
            _, failed = go_on(2, clients, "and back", workers[0].start)
            check("it comes back and gets requests", workers[0].count() > 0, f"{workers[0].count():.0f}")
            check("which costs nobody anything", not any(failed))
            _, failed = go_on(2, clients, "the other one stopped", lambda: workers[1].end(signal.SIGTERM))
            check("a worker that is stopped ends well and loses nothing", workers[1].process.returncode == 0 and not any(failed),
                  f"{[c.failures[-1:] for c in clients if c.failures]}")
            for c in clients:
                c.stop = True
            for c in clients:
                c.join()
            check("nobody had to ask a third time", max(c.most for c in clients) <= 1)
            check("all answers were right", not any(c.wrong for c in clients), str([c.wrong[:1] for c in clients if c.wrong]))
        finally:
            for c in clients:
                c.stop = True
            proxy.terminate()
            proxy.wait()
            for w in workers:
                if w.process.poll() is None:
                    w.end(signal.SIGTERM)
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
