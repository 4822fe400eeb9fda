"""test_page.py: the page's four panes in headless Chromium, over fake_server.py; and over `invar serve`, if INVAR_BINARY
names it.

usage: test_page.py [CLASS...]"""

import hashlib
import json
import pathlib
import re
import struct
import subprocess
import sys
import urllib.request

import fake_server
from page_case import BINARY, MODEL, QUESTION, Case, expect, main, real_server


class Chat(Case):
    def test_answer_with_all_that_made_it(self):
        page = self.open()
        page.fill("#field-seed", "7")
        self.ask()
        expect(page.locator(".turn.assistant .think")).to_contain_text("12 + 9")
        foot = page.locator(".foot").inner_text()
        self.assertIn("seed 7", foot)
        self.assertIn("temperature 0.6", foot)
        self.assertIn(fake_server.FINGERPRINT, foot)
        expect(page.locator(".foot .digest")).to_have_class(re.compile("good"))
        expect(page.locator("#fingerprint")).to_have_text(fake_server.FINGERPRINT)
        expect(page.locator("#effect")).to_contain_text("seed 7")
        path, body = [r for r in self.model.requests if r[0] == "/v1/chat/completions"][-1]
        self.assertEqual((body["seed"], body["stream"], body["logprobs"]), (7, True, True))

    def test_again_is_equal_and_seeds_keep_their_digits(self):
        page = self.open()
        page.fill("#field-seed", "9007199254740993")  # 2^53 + 1: no double
        self.ask()
        self.assertIn("seed 9007199254740993", page.locator(".foot").inner_text())
        page.click("text=Again")
        expect(page.locator(".foot")).to_contain_text("equal to the first, bit for bit")
        self.assertEqual({b["seed"] for p, b in self.model.requests if p == "/v1/chat/completions"}, {9007199254740993})

    def test_a_reload_keeps_the_conversation(self):
        page = self.open()
        self.ask()
        digest = page.evaluate("() => chat.selected.digest")
        page.reload()
        expect(page.locator(".foot .digest")).to_have_count(1)
        self.assertEqual(page.evaluate("() => chat.selected.digest"), digest)
        page.click("#chat-new")
        page.reload()
        expect(page.locator(".empty h1").first).to_have_text("Same request, same bits.")

    def test_wrong_digest_is_seen(self):
        """The control of the check: a server that lies about its digest."""
        real = fake_server.Handler.outcome
        try:
            fake_server.Handler.outcome = lambda *a: {**real(*a), "digest": "sha256:" + "0" * 64}
            page = self.open()
            self.ask()
            expect(page.locator(".foot .digest")).to_have_class(re.compile("bad"))
        finally:
            fake_server.Handler.outcome = real

    def test_stop(self):
        self.model.token_seconds = 0.1
        page = self.open()
        page.fill("#prompt", QUESTION)
        page.press("#prompt", "Enter")
        page.locator(".turn.assistant .think").wait_for()
        page.keyboard.press("Escape")
        expect(page.locator(".foot")).to_contain_text("stopped")
        expect(page.locator("#send")).to_have_text("Send")

    def test_edit_drops_what_followed(self):
        page = self.open()
        self.ask("What is 2 + 2?")
        self.ask("And 3 + 3?", 2)
        page.click("text=Edit >> nth=0")
        page.fill(".turn.user textarea", "What is 5 + 5?")
        page.press(".turn.user textarea", "Enter")
        expect(page.locator(".turn.user")).to_have_count(1)
        expect(page.locator(".foot .digest")).to_have_count(1)
        self.assertEqual([m["content"] for m in self.model.requests[-1][1]["messages"]], ["What is 5 + 5?"])

    def test_curl(self):
        page = self.open()
        self.ask("It's $HOME?")
        page.click("text=curl")
        expect(page.locator("#toast")).to_contain_text("copied")
        text = page.evaluate("() => navigator.clipboard.readText()")
        self.assertIn("/v1/chat/completions", text)
        body = json.loads(re.search(r"-d '(.*)'$", text, re.S).group(1).replace("'\\''", "'"))
        self.assertEqual(body["messages"][0]["content"], "It's $HOME?")
        self.assertIsInstance(body["seed"], int)

    def test_server_error_is_shown(self):
        page = self.open()
        self.model.refusal = "messages: wanted at most 2048 tokens, found 9999"
        page.fill("#prompt", "x")
        page.press("#prompt", "Enter")
        expect(page.locator(".error")).to_contain_text("wanted at most 2048 tokens")

    def test_text_of_a_model_is_no_html(self):
        page = self.open()
        self.model.script = self.model.words.ids("<img src=x onerror=alert(1)> **bold** `code`" + fake_server.END)
        self.ask("x")
        self.assertEqual(page.locator(".said img").count(), 0)
        page.evaluate("() => go('tokens')")
        self.assertEqual(page.locator("#text img").count(), 0)


class Tokens(Case):
    def test_values_of_a_token(self):
        page = self.open()
        page.fill("#field-seed", "7")
        self.ask()
        page.click(".acts >> text=Tokens")
        page.press("body", "Home")
        page.evaluate("() => selectToken(0, true)")
        a = page.evaluate(
            "() => ({ids: chat.selected.tokens.map((t) => t.id), lps: chat.selected.tokens.map((t) => t.logprob), digest: chat.selected.digest})"
        )
        panel = page.locator("#token").inner_text()
        self.assertIn(str(a["ids"][0]), panel)
        self.assertIn("3c 74 68 69 6e 6b 3e", panel)  # <think>
        self.assertIn("0x" + struct.pack(">f", a["lps"][0]).hex(), panel)
        data = b"".join(struct.pack("<If", i, p) for i, p in zip(a["ids"], a["lps"]))
        self.assertEqual(a["digest"], "sha256:" + hashlib.sha256(data).hexdigest())
        self.assertGreater(page.locator(".tok.tie").count(), 0)

    def test_keys_and_near_ties(self):
        page = self.open()
        self.ask()
        page.keyboard.press("Alt+2")
        page.evaluate("() => document.activeElement.blur()")
        page.keyboard.press("Home")
        expect(page.locator("#token h2")).to_have_text(re.compile("Token 1 of"))
        page.keyboard.press("ArrowRight")
        expect(page.locator("#token h2")).to_have_text(re.compile("Token 2 of"))
        page.keyboard.press("n")
        expect(page.locator("#token .badge")).to_have_text("near-tie")

    def test_arrows_after_the_tab_was_clicked(self):
        page = self.open()
        self.ask()
        page.click("#tab-tokens")
        before = page.evaluate("() => view.at")
        page.keyboard.press("ArrowRight")
        expect(page.locator("#tokens")).to_be_visible()
        self.assertEqual(page.evaluate("() => view.at"), before + 1)
        page.keyboard.press("ArrowLeft")
        self.assertEqual(page.evaluate("() => view.at"), before)
        expect(page.locator("#tokens")).to_be_visible()

    def test_fork_at_a_token(self):
        page = self.open()
        page.fill("#field-seed", "7")
        self.ask()
        first = page.evaluate("() => chat.selected.tokens.map((t) => t.id)")
        prompt = page.evaluate("() => chat.selected.promptIds")
        page.evaluate("() => { go('tokens'); selectToken(5, true); }")
        page.locator(".option:not(.chosen)").first.click()
        expect(page.locator(".versions")).to_contain_text("2 / 2")
        page.locator(".foot .digest.good").wait_for()
        path, body = [r for r in self.model.requests if r[0] == "/v1/completions"][-1]
        self.assertEqual(body["prompt"][:-1], prompt + first[:5])
        self.assertNotEqual(body["prompt"][-1], first[5])
        self.assertEqual(body["seed"], 7)

    def test_fork_at_the_same_token_changes_nothing(self):
        page = self.open()
        page.fill("#field-seed", "7")
        self.ask()
        first = page.evaluate("() => chat.selected.tokens.map((t) => [t.id, t.logprob])")
        page.evaluate("() => { go('tokens'); selectToken(5, true); }")
        page.locator(".option.chosen").click()
        expect(page.locator(".versions")).to_contain_text("2 / 2")
        page.locator(".foot .digest.good").wait_for()
        self.assertEqual(first, page.evaluate("() => chat.selected.tokens.map((t) => [t.id, t.logprob])"))
        self.assertIn("15", page.locator(".turn.assistant .said").inner_text())


class Proof(Case):
    options = {"admin_key": "secret"}

    def test_all_equal_and_the_control_differs(self):
        page = self.open("proof")
        page.evaluate("() => { keys.admin = 'secret'; }")
        self.prove()
        expect(page.locator("#verdict")).to_contain_text("1 unique answer in 10 runs")
        self.assertEqual(page.locator(".run.different").count(), 0)
        self.assertEqual(self.words("Control"), "differs, as it must")
        for row in ["Warm", "Cold", "Whole", "As tokens", "Sibling", "Concurrent", "Chunked", "Shuffled", "Resumed"]:
            self.assertEqual(self.words(row), "equal", row)
        self.assertGreater(self.model.flushes, 0)
        self.assertRegex(page.locator(".run", has_text="Concurrent").inner_text(), r"up to 1\d ran together")

    def test_without_the_admin_key_cold_is_skipped(self):
        page = self.open("proof")
        self.prove()
        self.assertEqual(self.words("Cold"), "skipped")
        expect(page.locator("#verdict")).to_contain_text("1 skipped")
        self.assertEqual(self.model.flushes, 0)

    def test_downloads(self):
        page = self.open("proof")
        self.prove()
        with page.expect_download() as got:
            page.click("#save-receipt")
        receipt = json.loads(pathlib.Path(got.value.path()).read_text())
        self.assertEqual(receipt["receipt"], 1)
        with page.expect_download() as got:
            page.click("#save-proof")
        report = json.loads(pathlib.Path(got.value.path()).read_text())
        quiet = report["runs"][0]
        data = b"".join(
            struct.pack("<II", i, int(quiet["logprob_bits"][8 * k : 8 * k + 8], 16)) for k, i in enumerate(quiet["ids"])
        )
        self.assertEqual(quiet["digest"], "sha256:" + hashlib.sha256(data).hexdigest())

    def test_prove_an_answer_of_the_chat(self):
        page = self.open()
        page.fill("#field-seed", "11")
        self.ask("What is 2 + 2?")
        self.ask("And doubled?", 2)
        page.click("text=Prove >> nth=1")
        expect(page.locator("#proof-context")).to_contain_text("after 2 earlier messages")
        self.assertEqual(page.input_value("#proof-seed"), "11")
        self.prove()
        expect(page.locator("#verdict")).to_contain_text("1 unique answer")
        chat = page.evaluate("() => chat.selected.digest")
        self.assertEqual(chat, page.evaluate("() => proof.rows[0].digest"))


class Keyless(Case):
    """A server without keys lets its own machine empty the cache."""

    def test_cold_runs(self):
        page = self.open("proof")
        self.prove()
        self.assertEqual(self.words("Cold"), "equal")
        expect(page.locator("#verdict")).to_contain_text("1 unique answer in 10 runs")
        self.assertGreater(self.model.flushes, 0)

    def test_the_readme_counts_the_ways(self):
        self.open()
        words = {10: "ten", 11: "eleven", 12: "twelve", 13: "thirteen"}
        readme = (pathlib.Path(__file__).resolve().parents[2] / "README.md").read_text()
        self.assertIn(f"runs one prompt in {words[self.page.evaluate('() => ways.length')]} ways", readme)


class Vanilla(Case):
    """The control: a server whose bits depend on the batch must be detected."""

    options = {"vanilla": True}

    def test_batch_dependence_is_found(self):
        page = self.open("proof")
        self.prove()
        self.assertEqual(self.words("Warm"), "equal")
        self.assertEqual(self.words("Concurrent"), "different")
        expect(page.locator("#verdict")).to_have_class(re.compile("different"))
        self.assertIn("same id, bits", page.locator(".run", has_text="Concurrent").inner_text())


class Live(Case):
    def test_counts(self):
        page = self.open()
        self.ask()
        page.evaluate("() => go('live')")
        expect(page.locator("#totals")).to_contain_text("generated tokens")
        total = page.locator("#totals div", has_text="generated tokens").locator("dd")
        expect(total).to_have_text(str(self.model.generated))
        self.assertEqual(page.locator(".chart svg").count(), 8)
        expect(page.locator("#hist-gap .hist-row").first).to_be_visible()

    def test_dialects(self):
        page = self.open()
        text = (
            '# TYPE x counter\nvllm:num_requests_running{model_name="a\\"b",engine="0"} 3\nvllm:kv_cache_usage_perc 0.25\n'
            'vllm:time_to_first_token_seconds_bucket{le="0.1"} 2\nvllm:time_to_first_token_seconds_bucket{le="+Inf"} 4\n'
        )
        out = page.evaluate(
            "(text) => { const m = parseMetrics(text); return [m.get('vllm:num_requests_running')[0], m.get('vllm:kv_cache_usage_perc')[0].value,"
            " m.get('vllm:time_to_first_token_seconds_bucket').length]; }",
            text,
        )
        self.assertEqual(out, [{"labels": {"model_name": 'a"b', "engine": "0"}, "value": 3}, 0.25, 2])

    def test_median_of_buckets(self):
        self.open()
        h = {"buckets": [[1, 0], [2, 10], [4, 10]]}
        self.assertAlmostEqual(self.page.evaluate("(h) => quantile(h, null, 0.5)", h), 1.5)


class Page(Case):
    def test_sha256(self):
        page = self.open()
        for n in [0, 1, 55, 56, 63, 64, 65, 119, 120, 1000]:
            data = [(7 * i + n) % 256 for i in range(n)]
            self.assertEqual(
                page.evaluate("(d) => sha256(new Uint8Array(d))", data), hashlib.sha256(bytes(data)).hexdigest(), n
            )

    def test_talks_to_its_own_server_only(self):
        page = self.open()
        seen = []
        page.on("request", lambda r: seen.append(r.url))
        self.ask()
        page.wait_for_timeout(1200)
        self.assertTrue(seen)
        self.assertEqual([u for u in seen if not u.startswith(self.url)], [])
        blocked = page.evaluate("() => fetch('http://127.0.0.2:9/').then(() => 'went', () => 'blocked')")
        self.assertEqual(blocked, "blocked")
        self.allowed += ["Content Security Policy", "violates", "Failed to load", "Refused to connect"]

    def test_themes(self):
        page = self.open()
        paper = lambda: page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        auto = paper()
        page.click("#theme")
        self.assertEqual(paper(), auto)  # light, as the system has it
        page.click("#theme")
        self.assertNotEqual(paper(), auto)
        page.reload()
        self.assertNotEqual(paper(), auto)

    def test_shortcuts(self):
        page = self.open()
        for key, pane in [("3", "proof"), ("4", "live"), ("2", "tokens"), ("1", "chat")]:
            page.keyboard.press("Alt+" + key)
            expect(page.locator("#" + pane)).to_be_visible()
            self.assertEqual(page.locator("[role=tabpanel]:visible").count(), 1)
        page.evaluate("() => document.activeElement.blur()")
        page.keyboard.press("/")
        expect(page.locator("#prompt")).to_be_focused()


class Keys(Case):
    options = {"api_key": "open sesame"}

    def test_key_is_asked_for_and_used(self):
        page = self.open()
        expect(page.locator("#keys")).to_be_visible()
        page.fill("#api-key", "open sesame")
        page.click("#keys button")
        expect(page.locator("#model")).to_have_text("tiny-fake")
        self.ask()


class Phone(Case):
    size, scheme = (390, 780), "dark"

    def test_nothing_is_wider_than_the_screen(self):
        page = self.open()
        self.ask()
        page.evaluate("() => go('proof')")
        self.prove()
        for pane in ["chat", "tokens", "proof", "live"]:
            page.evaluate("(p) => go(p)", pane)
            page.wait_for_timeout(100)
            wide = page.evaluate(
                "() => [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.id || e.className)"
            )
            self.assertEqual(wide, [], pane)

    def test_sampling_sheet(self):
        page = self.open()
        expect(page.locator("#sampling")).to_be_hidden()
        page.click("#effect")
        page.fill("#field-seed", "5")
        page.click("#sampling-close")
        expect(page.locator("#effect")).to_contain_text("seed 5")


class Real(Case):
    """The page that the program itself serves. numerics vanilla is the control: its bits depend on the batch."""

    def serve(self, *flags):
        self.url = real_server(self, "--admin-api-key", "admin", *flags) + "/"
        try:
            urllib.request.urlopen(self.url).close()
        except (OSError, ValueError):
            self.skipTest("this build does not serve the page")
        self.page.add_init_script("sessionStorage.setItem('invar-admin', 'admin')")

    def setUp(self):
        if not BINARY:
            self.skipTest("INVAR_BINARY is not set")
        super().setUp()

    def test_proof_and_receipt(self):
        self.serve()
        page = self.open("proof")
        expect(page.locator("#model")).to_have_text("tiny-math")
        self.prove()
        expect(page.locator("#verdict")).to_contain_text("1 unique answer in 10 runs")
        self.assertEqual(self.words("Control"), "differs, as it must")
        self.assertRegex(page.locator(".run", has_text="Warm").inner_text(), "64 cached")
        with page.expect_download() as got:
            page.click("#save-receipt")
        replayed = subprocess.run([BINARY, "replay", str(got.value.path()), str(MODEL)], capture_output=True, text=True)
        self.assertEqual(replayed.returncode, 0, replayed.stderr)
        self.assertIn("equal", replayed.stdout)

    def test_vanilla_is_found_out(self):
        self.serve("--numerics", "vanilla")
        page = self.open("proof")
        expect(page.locator("#model")).to_have_text("tiny-math")
        self.prove()
        self.assertGreater(page.locator(".run.different").count(), 0)
        expect(page.locator("#verdict")).to_have_class(re.compile("different"))

    def test_peers_with_other_ranks(self):
        """Other servers, asked by the browser: equal with any number of ranks; servers of another model are not counted; servers
        that do not allow the page, or need a key, fail with a reason. Keys are sent to no other server."""
        peers = [
            real_server(self, "--tp", "2", "--allowed-origins", "*", "--served-model-name", "another-name"),
            real_server(self, "--tp", "4", "--threads", "1", "--allowed-origins", "*"),
            real_server(self, "--numerics", "vanilla", "--allowed-origins", "*"),
            real_server(self),
            real_server(self, "--api-key", "secret", "--allowed-origins", "*"),
        ]
        self.allowed += ["CORS policy", "Failed to load resource"]
        self.serve("--proof-urls", ",".join(peers))
        sent = []
        self.page.on("request", lambda r: sent.append(r) if not r.url.startswith(self.url) else None)
        page = self.open("proof")
        expect(page.locator("#model")).to_have_text("tiny-math")
        page.wait_for_function("() => server.peers.length === 5")
        self.prove()
        rows = [page.locator(".run", has_text=peer.removeprefix("http://")) for peer in peers]
        words = [row.locator(".word").inner_text() for row in rows]
        self.assertEqual(words, ["equal", "equal", "skipped", "failed", "failed"])
        self.assertIn("2 ranks", rows[0].inner_text())
        self.assertIn("4 ranks", rows[1].inner_text())
        self.assertIn("computes something else: vanilla3-", rows[2].inner_text())
        self.assertIn("--allowed-origins", rows[3].inner_text())
        self.assertIn("Authorization", rows[4].inner_text())
        digests = {row.locator(".result code").inner_text() for row in rows[:2]}
        self.assertEqual(digests, {page.locator(".run").first.locator(".result code").inner_text()})
        self.assertTrue(sent and all("authorization" not in r.headers for r in sent))
        expect(page.locator("#verdict")).to_contain_text("1 unique answer in 14 runs")

    def test_a_peer_that_lies_is_found_out(self):
        """A control: a peer of the same fingerprint with other bits."""
        self.serve()
        page = self.open("proof")
        expect(page.locator("#model")).to_have_text("tiny-math")
        page.wait_for_function("() => server.fingerprint")
        fingerprint = page.evaluate("() => server.fingerprint")
        peer, _ = fake_server.start(fingerprint=fingerprint, cors=True)
        self.addCleanup(peer.server_close)
        self.addCleanup(peer.shutdown)
        self.url = None
        self.serve("--proof-urls", f"http://127.0.0.1:{peer.server_address[1]}")
        self.open("proof")
        page.wait_for_function("() => server.peers.length === 1")
        self.prove()
        self.assertEqual(self.words("Peer"), "different")
        expect(page.locator("#verdict")).to_have_class(re.compile("different"))

    def test_chat_and_fork(self):
        self.serve()
        page = self.open()
        page.fill("#field-seed", "7")
        self.ask()
        expect(page.locator(".turn.assistant .think")).to_contain_text("12 + 9 = 21")
        expect(page.locator(".foot .digest")).to_have_class(re.compile("good"))
        first = page.evaluate("() => chat.selected.tokens.map((t) => [t.id, t.logprob])")
        page.evaluate("() => { go('tokens'); selectToken(3, true); }")
        page.locator(".option.chosen").click()
        expect(page.locator(".versions")).to_contain_text("2 / 2")
        page.locator(".foot .digest.good").wait_for()
        self.assertEqual(first, page.evaluate("() => chat.selected.tokens.map((t) => [t.id, t.logprob])"))
        page.evaluate("() => go('live')")
        expect(page.locator("#totals div", has_text="generated tokens").locator("dd")).not_to_have_text("0")


if __name__ == "__main__":
    sys.exit(main())
