"""test_history.py: conversations kept in the browser, and their export; with INVAR_BINARY also against the real server.

usage: test_history.py [CLASS...]"""

import hashlib
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import urllib.request

import fake_server
from page_case import BINARY, MODEL, Case, expect, main, real_server

DENIED = """for (const name of ['localStorage', 'sessionStorage'])
  Object.defineProperty(window, name, {get() { throw new DOMException('denied', 'SecurityError'); }});"""


def digest(ids, bits):
    data = b"".join(struct.pack("<II", i, int(bits[8 * k : 8 * k + 8], 16)) for k, i in enumerate(ids))
    return "sha256:" + hashlib.sha256(data).hexdigest()


class HistoryCase(Case):
    def kept(self):
        """Title to number of characters."""
        return self.page.evaluate("() => Object.fromEntries(storedChats().map((c) => [c.title, c.size]))")

    def item(self, title):
        return self.page.locator("#history-list li", has_text=title)

    def export(self):
        with self.page.expect_download() as got:
            self.page.click("#chat-export")
        return pathlib.Path(got.value.path()).read_text()

    def asked_again(self, text):
        """Repeats every answer of an export: (old, new)."""
        for turn in json.loads(text)["turns"]:
            for answer in turn.get("answers", []):
                body = json.dumps(answer["request"]).encode()
                head = {"Content-Type": "application/json"}
                with urllib.request.urlopen(urllib.request.Request(self.url[:-1] + answer["path"], body, head)) as r:
                    yield answer, json.load(r)


class Kept(HistoryCase):
    def test_a_conversation_comes_back(self):
        page = self.open()
        expect(page.locator("#chat-export")).to_be_disabled()
        page.fill("#field-seed", "9007199254740993")
        self.ask("What is   2 + 2?\nQuickly, and this line is longer than a title may ever be here.")
        self.ask("And doubled?", 2)
        page.click("text=Again >> nth=1")
        expect(page.locator(".versions")).to_contain_text("2 / 2")
        expect(page.locator(".foot").nth(1)).to_contain_text("equal to the first, bit for bit")
        before = page.locator("#messages").inner_text()
        tokens = "() => chat.turns[1].versions[0].tokens.map((t) => [t.id, t.logprob, t.text])"
        ids = page.evaluate(tokens)
        title = "What is 2 + 2? Quickly, and this line is longer than a titl…"
        expect(page.locator("#chat-title")).to_have_text(title)
        page.reload()
        expect(page.locator(".turn")).to_have_count(4)  # the tab's conversation
        self.assertEqual(page.locator("#messages").inner_text(), before)
        page.click("#chat-new")
        expect(page.locator(".turn")).to_have_count(0)
        page.click("#chat-history")
        expect(page.locator("#history-used")).to_contain_text("1 conversation in this browser")
        self.item(title).locator(".open").click()
        expect(page.locator(".turn")).to_have_count(4)
        self.assertEqual(page.locator("#messages").inner_text(), before)
        self.assertEqual(page.evaluate(tokens), ids)
        self.ask("And once more?", 3)  # continues at its position
        self.assertEqual(len(self.model.requests[-1][1]["messages"]), 5)
        self.assertEqual(list(self.kept()), [title])
        page.evaluate("() => { chat.selected = chat.turns[1].versions[0]; showTokens(); go('tokens'); }")
        expect(page.locator("#token")).to_contain_text("History keeps no alternatives")

    def test_new_chat_while_an_answer_runs(self):
        self.model.token_seconds = 0.1
        page = self.open()
        page.fill("#prompt", "First")
        page.press("#prompt", "Enter")
        page.locator(".turn.assistant .think").wait_for()
        page.click("#chat-new")
        expect(page.locator(".turn")).to_have_count(0)
        expect(page.locator("#prompt")).to_be_focused()
        expect(page.locator("#send")).to_have_text("Send")
        self.model.token_seconds = 0.001
        self.ask("Second")
        self.assertEqual(set(self.kept()), {"First", "Second"})
        page.click("#chat-history")
        self.item("First").locator(".open").click()
        expect(page.locator(".foot")).to_contain_text("stopped")

    def test_rename_and_delete(self):
        page = self.open()
        for title in ["One", "Two", "Three"]:
            self.ask(title)
            page.click("#chat-new")
        page.click("#chat-history")
        self.assertEqual(
            [t.split("\n")[0] for t in page.locator("#history-list .open b").all_inner_texts()], ["Three", "Two", "One"]
        )
        self.item("Two").get_by_text("Rename").click()
        page.keyboard.type("Deux <b>")
        page.keyboard.press("Escape")
        expect(page.locator("#history")).to_be_visible()
        self.assertEqual(set(self.kept()), {"One", "Two", "Three"})
        self.item("Two").get_by_text("Rename").click()
        page.keyboard.type("Deux <b>")
        page.keyboard.press("Enter")
        self.assertEqual(set(self.kept()), {"One", "Deux <b>", "Three"})
        self.item("Deux").get_by_text("Delete").click()
        self.assertEqual(len(self.kept()), 3)  # asks first
        self.item("Deux").get_by_text("Delete for good?").click()
        expect(page.locator("#history-list li")).to_have_count(2)
        self.assertEqual(set(self.kept()), {"One", "Three"})
        page.click("text=Delete all")
        page.click("text=Delete all for good?")
        expect(page.locator("#history-used")).to_have_text("No conversation is kept in this browser.")
        self.assertEqual(self.kept(), {})

    def test_deleting_what_is_on_the_screen(self):
        page = self.open()
        self.ask("One")
        page.click("#chat-history")
        for text in ["Delete", "Delete for good?"]:
            self.item("One").get_by_text(text, exact=True).click()
        expect(page.locator("#history-list li")).to_have_count(0)
        page.click("#history-close")
        expect(page.locator(".turn")).to_have_count(0)
        self.assertEqual(self.kept(), {})

    def test_deleting_while_its_answer_runs(self):
        page = self.open()
        self.ask("One")
        self.model.token_seconds = 0.1
        page.fill("#prompt", "Two")
        page.press("#prompt", "Enter")
        page.locator(".turn.assistant .think").nth(1).wait_for()
        page.click("#chat-history")
        page.keyboard.press("Escape")  # closes the list and does not stop the answer
        expect(page.locator("#send")).to_have_text("Stop")
        page.click("#chat-history")
        for text in ["Delete", "Delete for good?"]:
            self.item("One").get_by_text(text, exact=True).click()
        expect(page.locator("#history-list li")).to_have_count(0)
        expect(page.locator("#send")).to_have_text("Send")
        self.assertEqual(self.kept(), {})

    def test_no_key_is_kept(self):
        page = self.open()
        page.evaluate("() => { keys.api = 'the-api-key'; keys.admin = 'the-admin-key'; }")
        self.ask("One")
        everything = page.evaluate("() => JSON.stringify({...localStorage})")
        self.assertIn("One", everything)
        self.assertNotRegex(everything + self.export(), "the-(api|admin)-key")


class Full(HistoryCase):
    def fault(self):
        note = self.page.locator("#history-fault")
        expect(note).to_be_visible()
        expect(note).to_have_attribute("role", "alert")
        return note.inner_text()

    def test_own_limit(self):
        page = self.open()
        self.ask("One")
        expect(page.locator("#history-fault")).to_be_empty()
        page.click("#chat-new")
        page.evaluate("() => localStorage.setItem('invar-chat-big', '{}\\n' + 'x'.repeat(4.19e6))")
        self.ask("Two")
        self.assertRegex(self.fault(), r"History is full \(4\.00 MiB of 4\.00 MiB with other conversations\)")
        self.assertNotIn("Two", self.kept())
        self.assertEqual(json.loads(self.export())["turns"][0]["content"], "Two")
        page.click("#chat-history")
        self.item("cannot be read").get_by_text("Delete").click()
        self.item("cannot be read").get_by_text("Delete for good?").click()
        page.click("#history-close")
        self.ask("More", 2)
        expect(page.locator("#history-fault")).to_be_empty()
        self.assertIn("Two", self.kept())

    def test_the_browsers_limit(self):
        page = self.open()
        page.evaluate("() => localStorage.setItem('other', 'x'.repeat(5 * 2 ** 20 - 1000))")
        self.ask("One")
        self.assertIn("The browser’s storage is full", self.fault())

    def test_storage_that_is_forbidden(self):
        """The page still works, and reports what does not."""
        self.page.add_init_script(DENIED)
        page = self.open()
        self.ask("One")
        self.assertIn("does not let this page store anything", self.fault())
        page.click("#chat-history")
        expect(page.locator("#history-list-fault")).to_contain_text("does not let this page store")
        page.click("#history-close")
        self.assertEqual(len(json.loads(self.export())["turns"]), 2)

    def test_records_that_are_no_records(self):
        """Any data under our names is listed and can be deleted, and the page continues."""
        page = self.open()
        bad = [
            "",
            "{",
            "null\n[]",
            '{"version":9,"title":"t"}\n[]',
            '{"version":1,"title":"odd","when":"x","turns":1}\n[{"role":"assistant"}]',
        ]
        page.evaluate("(bad) => bad.forEach((text, i) => localStorage.setItem('invar-chat-' + i, text))", bad)
        self.ask("One")
        page.click("#chat-history")
        expect(page.locator("#history-list li")).to_have_count(len(bad) + 1)
        self.item("odd").locator(".open").click()
        expect(page.locator("#history-list-fault")).to_contain_text("cannot be read")
        page.click("text=Delete all")
        page.click("text=Delete all for good?")
        self.assertEqual(self.kept(), {})


class Export(HistoryCase):
    def test_every_answer_can_be_asked_again(self):
        page = self.open()
        page.fill("#field-temperature", "0.9")
        self.ask("What is 2 + 2?")
        page.fill("#field-seed", "18446744073709551615")
        self.ask("And doubled?", 2)
        page.evaluate("() => { go('tokens'); selectToken(5, true); }")
        page.locator(".option:not(.chosen)").first.click()
        expect(page.locator(".versions")).to_contain_text("2 / 2")
        page.locator(".foot").nth(1).locator(".digest.good").wait_for()
        text = self.export()
        self.assertIn('"seed": 18446744073709551615', text)
        out = json.loads(text)
        self.assertEqual((out["page"], out["title"]), ("invar chat 1", "What is 2 + 2?"))
        self.assertEqual(out["server"]["fingerprint"], fake_server.FINGERPRINT)
        self.assertEqual([len(t.get("answers", [])) for t in out["turns"]], [0, 1, 0, 2])
        for a, again in self.asked_again(text):
            self.assertEqual(again["invar"]["digest"], a["digest"])
            self.assertEqual(again["invar"]["seed"], a["seed"])
            self.assertEqual(digest(a["token_ids"], a["logprob_bits"]), a["digest"])
            self.assertEqual(a["digest_by_page"], a["digest"])
            self.assertEqual(a["fingerprint"], fake_server.FINGERPRINT)
            self.assertEqual(a["parameters"]["temperature"], 0.9)
            self.assertEqual(a["receipt"]["receipt"], 1)
        page.reload()
        page.click("#chat-history")
        self.item("What is 2 + 2?").locator(".open").click()
        later = json.loads(self.export())
        self.assertEqual(later["turns"], out["turns"])


class Program(HistoryCase):
    def test_export_against_the_program(self):
        """Each answer of the export gives the digest again, and its receipt replays."""
        if not BINARY:
            self.skipTest("INVAR_BINARY is not set")
        self.url = real_server(self) + "/"
        page = self.open()
        expect(page.locator("#model")).to_have_text("tiny-math")
        self.ask()
        page.fill("#field-seed", "-3")
        self.ask("What is 17 * 6?", 2)
        page.reload()
        page.click("#chat-history")
        page.locator("#history-list .open").click()
        expect(page.locator(".foot .digest.good")).to_have_count(2)
        text, n = self.export(), 0
        for a, again in self.asked_again(text):
            self.assertEqual(again["invar"]["digest"], a["digest"])
            self.assertEqual(again["system_fingerprint"], a["fingerprint"])
            receipt = a["receipt"] if isinstance(a["receipt"], str) else json.dumps(a["receipt"])
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                file.write(receipt)
                file.flush()
                replayed = subprocess.run([BINARY, "replay", file.name, str(MODEL)], capture_output=True, text=True)
            self.assertEqual(replayed.returncode, 0, replayed.stderr)
            self.assertRegex(replayed.stdout, re.compile("equal"))
            n += 1
        self.assertEqual(n, 2)


if __name__ == "__main__":
    sys.exit(main())
