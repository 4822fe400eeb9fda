"""page_case.py: a fresh browser context per test, over fake_server.py, and the run of one file's classes.

A browser error, an unhandled rejection or a breach of the page's policy fails whatever test saw it. Without Playwright or
Chromium every test is skipped and the exit status is 77."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import unittest

import fake_server

# ./run test installs Playwright there, if this Python has none.
sys.path += map(str, (pathlib.Path(__file__).resolve().parents[2] / "build/venv-page/lib").glob("python3*/site-packages"))
try:
    from playwright.sync_api import TimeoutError as PlaywrightTimeout
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    expect = sync_playwright = PlaywrightTimeout = None
WAIT_MS = 60000  # for what must come; other tests may have the processors
if expect:
    expect.set_options(timeout=WAIT_MS)
CHROMIUM = os.environ.get("INVAR_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
BINARY = os.environ.get("INVAR_BINARY")
MODEL = pathlib.Path(__file__).resolve().parents[2] / "models/tiny-math"
QUESTION = "Omar has 12 apples. Then Omar buys 9 more. Omar gives away 6. How many apples are left for Omar?"


def real_server(case, *flags):
    """`invar serve` until the test ends; its origin."""
    command = [BINARY, "serve", str(MODEL), "--port", "0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def end():
        process.terminate()
        process.wait()
        process.stderr.close()

    case.addCleanup(end)
    for line in process.stderr:
        found = re.search(r"listening on (http://\S+)", line)
        if found:
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return found.group(1).rstrip("/")
    return case.fail("the server did not start")


class Case(unittest.TestCase):
    options = {}
    size = (1280, 800)
    scheme = "light"
    browser = None

    @classmethod
    def setUpClass(cls):
        if not Case.browser:
            Case.browser = sync_playwright().start().chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

    def setUp(self):
        self.server, self.model = fake_server.start(token_seconds=0.001, **self.options)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"
        self.context = self.browser.new_context(
            viewport={"width": self.size[0], "height": self.size[1]}, color_scheme=self.scheme
        )
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.errors, self.allowed = [], ["status of 400", "status of 401"]  # probing for fields and keys
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)

    def tearDown(self):
        self.context.close()
        self.server.shutdown()
        self.server.server_close()
        self.assertEqual([e for e in self.errors if not any(a in e for a in self.allowed)], [])

    def open(self, pane="chat"):
        self.page.goto(self.url + "#" + pane)
        return self.page

    def ask(self, text=QUESTION, answers=1):
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")
        expect(self.page.locator(".foot .digest")).to_have_count(answers)

    def prove(self):
        """Runs the proof to its end; test_fields.py starts it by its button. A failure says where it stood."""
        self.page.evaluate("() => void runProof()")
        state = """() => JSON.stringify([$('proof-run').textContent, location.href, document.activeElement?.id,
            ['prompt', 'seed', 'temperature', 'max', 'decoys'].map((f) => $('proof-' + f).value),
            proof.rows.map((r) => [r.way.name, r.state, r.note, r.answer?.tokens.length])])"""
        if self.page.inner_text("#proof-run") == "Run":
            self.fail("the proof did not begin: " + self.page.evaluate(state))
        try:
            self.page.locator("#proof-run", has_text="Run again").wait_for(timeout=4 * WAIT_MS)
        except PlaywrightTimeout:
            self.fail(f"the proof did not end: {self.page.evaluate(state)}; the server runs {self.model.running}")

    def words(self, row):
        return (
            self.page.locator(".run", has=self.page.locator(".way b", has_text=re.compile(f"^{row}$")))
            .locator(".word")
            .inner_text()
        )


def main(missing=None):
    """Runs the classes named on the command line, or all. missing: further requirements of this file that the machine lacks."""
    loader, module = unittest.defaultTestLoader, sys.modules["__main__"]
    suite = loader.loadTestsFromNames(sys.argv[1:], module) if sys.argv[1:] else loader.loadTestsFromModule(module)
    why = "Playwright for Python" if sync_playwright is None else "Chromium" if not CHROMIUM else missing
    if why:
        print(f"  SKIPPED: page: needs {why}\n[  SKIPPED ] {suite.countTestCases()} test(s)")
        return 77
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    for _, reason in result.skipped:
        print(f"  SKIPPED: page: {reason}")
    print(f"[  PASSED  ] {result.testsRun - len(result.failures) - len(result.errors) - len(result.skipped)} test(s)")
    if result.skipped:
        print(f"[  SKIPPED ] {len(result.skipped)} test(s)")
    if result.testsRun and len(result.skipped) == result.testsRun:
        return 77
    return 0 if result.wasSuccessful() else 1
