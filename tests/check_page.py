#!/usr/bin/env python3
"""The page of fastgen serve in headless Chromium, on a desk and on a phone: a chat, many answers at once, failures, the pictures.

    ./build.sh tool && python tests/check_page.py [--screenshot FILE]       needs: playwright, openai; Debian's chromium

The last line is "N passed, N failed".
"""
import argparse
import concurrent.futures
import json
import shutil
import traceback

from playwright.sync_api import sync_playwright

from check_serve import Server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def painted(page, canvas):
    """How many different colours a picture has."""
    return page.evaluate(
        "id => { const c = document.getElementById(id); const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " const s = new Set(); for (let i = 0; i < d.length; i += 4) if (d[i + 3] == 255) s.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);"
        " return s.size; }", canvas)


def open_page(browser, server, outside, **options):
    page = browser.new_page(**options)
    problems = []
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("request", lambda r: outside.append(r.url) if not r.url.startswith((server.url, "data:")) else None)
    page.goto(server.url + "/")
    return page, problems


def refused(problems, status):
    """Whether there are problems, and all are what the browser itself says of an answer of that status."""
    return problems and all(f"status of {status}" in p for p in problems)


def say(page, text):
    n = page.locator(".note").count()
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
    page.wait_for_function("n => document.querySelectorAll('.note').length > n && "
                           "document.getElementById('send').textContent == 'Send'", arg=n, timeout=60000)


def chat(browser, server, outside, screenshot):
    page, problems = open_page(browser, server, outside, viewport={"width": 1280, "height": 800})
    page.evaluate("() => { document.getElementById('temperature').value = 0 }")
    say(page, "Hello")
    wanted = server.chat("Hello", max_tokens=256).choices[0].message.content
    text = page.locator(".assistant").first.evaluate("e => e.firstChild.textContent")
    assert text == wanted, (text, wanted)
    say(page, "Tell me a story.")
    assert page.locator(".turn").count() == 4
    page.wait_for_timeout(600)
    assert painted(page, "passes") >= 3, "no bars of prompts and decodes"
    assert page.inner_text("#first") != "-" and page.inner_text("#gap") != "-" and page.inner_text("#blocks") != "0"
    page.evaluate("() => { document.getElementById('mode').value = 'text'; document.getElementById('copies').value = 12;"
                  "document.getElementById('temperature').value = 0.9; document.getElementById('tokens').value = 400 }")
    say(page, "Once upon a time")
    assert page.locator(".assistant").count() == 14
    if screenshot:
        others = concurrent.futures.ThreadPoolExecutor(24)
        for i in range(160):
            others.submit(server.complete, f"The little dog and the cat {i} " * (1 + i * 7 % 20), max_tokens=100 + i * 37 % 300,
                          temperature=1, extra_body={"ignore_eos": True})
        page.evaluate("() => { document.getElementById('turns').scrollTop = 0 }")
        page.wait_for_timeout(5000)
        page.screenshot(path=screenshot)
        others.shutdown(cancel_futures=True)
    assert not problems, problems


def failures(browser, server, outside):
    """A question that failed is no part of the conversation; numbers that were taken out are those that were there."""
    page, problems = open_page(browser, server, outside)
    page.evaluate("() => { document.getElementById('temperature').value = 0; document.getElementById('copies').value = '';"
                  "document.getElementById('tokens').value = '' }")
    page.fill("#prompt", "The little dog. " * 1000)
    page.press("#prompt", "Enter")
    page.wait_for_selector(".error")
    assert "context" in page.inner_text(".error"), page.inner_text(".error")
    say(page, "Hello")
    wanted = server.chat("Hello", max_tokens=256).choices[0].message.content
    text = page.locator(".assistant").last.evaluate("e => e.firstChild.textContent")
    assert text == wanted, (text, wanted)
    say(page, "Tell me a story.")
    assert page.evaluate("() => turns.map(t => t.role).join()") == "user,assistant,user,assistant"
    assert refused(problems, 400), problems


def thoughts(browser, server, outside):
    """What a model thinks stands before its answer, and is no part of the conversation. A choice of one text makes this one think."""
    page, problems = open_page(browser, server, outside)
    sent = []

    def choose(route):
        sent.append(json.loads(route.request.post_data))
        route.continue_(post_data=json.dumps({**sent[-1], "guided_choice": ["<think>\nHm. So.\n</think>\n\nYes."]}))
    page.route("**/v1/chat/completions", choose)
    say(page, "Hello")
    assert page.locator(".assistant").first.evaluate("e => [...e.childNodes].map(n => n.textContent).slice(0, 2)") == ["Hm. So.", "Yes."]
    assert page.inner_text(".assistant .thought") == "Hm. So."
    say(page, "And?")
    assert [m["content"] for m in sent[-1]["messages"]] == ["Hello", "Yes.", "And?"] and page.locator(".thought").count() == 2
    assert not problems, problems


def stop(browser, outside):
    """On a slow server, so that there is something to stop."""
    with Server("--cpu-path", "scalar", "--threads", "1") as server:
        page, problems = open_page(browser, server, outside)
        page.evaluate("() => { document.getElementById('mode').value = 'text'; document.getElementById('tokens').value = 1000;"
                      "document.getElementById('copies').value = 64 }")
        page.fill("#prompt", "Once upon a time")
        page.press("#prompt", "Enter")
        page.wait_for_function("() => document.getElementById('running').textContent > 20")
        page.click("#send")
        page.wait_for_function("() => document.getElementById('running').textContent == 0")
        assert server.metrics()[("vllm:request_success_total", ("finished_reason", "abort"))] > 0
        assert not problems, problems


def phone(browser, server, outside):
    page, problems = open_page(browser, server, outside, viewport={"width": 375, "height": 700}, is_mobile=True, has_touch=True)
    say(page, "Hello")
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1], f"wider than the screen: {width}"
    assert page.locator("#send").bounding_box()["height"] >= 40
    assert not problems, problems


def key(browser, outside):
    with Server("--api-key", "secret") as server:
        page, problems = open_page(browser, server, outside)
        page.fill("#prompt", "Hello")
        page.press("#prompt", "Enter")
        page.wait_for_selector(".error")
        assert "API key" in page.inner_text(".error")
        page.evaluate("() => { document.getElementById('key').value = 'secret' }")
        say(page, "Hello")
        assert refused(problems, 401), problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--screenshot")
    args = parser.parse_args()
    passed, failed, outside = 0, 0, []
    with sync_playwright() as playwright, Server() as server:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        runs = {"chat": lambda: chat(browser, server, outside, args.screenshot), "failures": lambda: failures(browser, server, outside),
                "thoughts": lambda: thoughts(browser, server, outside), "stop": lambda: stop(browser, outside), "phone": lambda: phone(browser, server, outside), "key": lambda: key(browser, outside)}
        for name, run in runs.items():
            try:
                run()
                passed += 1
                print("ok     ", name, flush=True)
            except Exception:
                failed += 1
                print("FAILED ", name)
                traceback.print_exc()
        browser.close()
    if outside:
        failed += 1
        print("FAILED  requests to other places:", outside)
    else:
        passed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
