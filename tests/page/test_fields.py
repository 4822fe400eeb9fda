"""test_fields.py: invalid input, typed, pasted or dropped, is reported at its field; the tabs' keys.

usage: test_fields.py [CLASS...]"""

import sys

from page_case import Case, expect, main

ANSWERS = ("/v1/chat/completions", "/v1/completions")


class Faults(Case):
    def sent(self):
        return [body for path, body in self.model.requests if path in ANSWERS]

    def paste(self, selector, text=None, file=None, event="paste"):
        """Pastes or drops; returns whether the browser's default action was allowed."""
        return self.page.evaluate(
            """([selector, text, file, event]) => {
              const data = new DataTransfer(), target = document.querySelector(selector);
              if (text !== null) data.setData('text/plain', text);
              if (file !== null) data.items.add(new File(['x'], file, {type: 'image/png'}));
              const more = event === 'paste' ? {clipboardData: data} : {dataTransfer: data};
              const type = event === 'paste' ? ClipboardEvent : DragEvent;
              return target.dispatchEvent(new type(event, {bubbles: true, cancelable: true, ...more}));
            }""",
            [selector, text, file, event],
        )

    def fault(self, selector):
        """The text that the field is described by, if it is on the screen and announced."""
        field = self.page.locator(selector)
        expect(field).to_have_attribute("aria-invalid", "true")
        note = self.page.locator("#" + field.get_attribute("aria-describedby"))
        expect(note).to_be_visible()
        expect(note).to_have_attribute("role", "alert")
        return note.inner_text()


class Fields(Faults):
    def test_a_bad_seed_is_not_sent(self):
        page = self.open()
        for bad in ["abc", "1.5", "0x10", "-", "1 2", "18446744073709551616", "-9223372036854775809", "9" * 500]:
            page.fill("#field-seed", bad)
            page.fill("#prompt", "What is 2 + 2?")
            page.press("#prompt", "Enter")
            text = self.fault("#field-seed")
            self.assertIn("Wanted an integer from −2⁶³ to 2⁶⁴ − 1, found", text)
            self.assertIn(bad[:40], text)
            expect(page.locator("#field-seed")).to_be_focused()
            self.assertEqual(page.input_value("#prompt"), "What is 2 + 2?")
            expect(page.locator("#effect")).to_contain_text("seed not valid")
        self.assertEqual(self.sent(), [])
        self.assertEqual(page.locator(".turn").count(), 0)
        page.fill("#field-seed", "7")
        expect(page.locator("#field-seed-fault")).to_be_empty()
        page.press("#prompt", "Enter")
        expect(page.locator(".foot .digest")).to_have_count(1)
        self.assertEqual(self.sent()[-1]["seed"], 7)

    def test_every_seed_of_the_server_is_sent(self):
        page = self.open()
        seeds = ["-9223372036854775808", "-1", "0", "18446744073709551615"]
        for n, seed in enumerate(seeds):
            page.fill("#field-seed", f" {seed} ")
            self.ask("What is 2 + 2?", n + 1)
            self.assertIn("seed " + seed, page.locator(".foot").nth(n).inner_text())
        self.assertEqual({body["seed"] for body in self.sent()}, {int(s) for s in seeds})

    def test_bad_numbers_are_not_sent(self):
        page = self.open()
        cases = [("temperature", "-1"), ("top_p", "1.5"), ("top_k", "2.5"), ("min_p", "7"), ("max_tokens", "0")]
        for name, value in cases:
            page.fill("#field-" + name, value)
            page.fill("#prompt", "x")
            page.press("#prompt", "Enter")
            self.assertIn("found “" + value, self.fault("#field-" + name))
            page.fill("#field-" + name, "")
            expect(page.locator(f"#field-{name}-fault")).to_be_empty()
        page.focus("#field-temperature")
        page.keyboard.type("1e")  # the browser says that the field is empty
        self.assertEqual(page.input_value("#field-temperature"), "")
        page.press("#prompt", "Enter")
        self.assertIn("no number", self.fault("#field-temperature"))
        self.assertEqual(self.sent(), [])

    def test_an_edited_message_stays_while_a_field_has_a_fault(self):
        page = self.open()
        self.ask("What is 2 + 2?")
        page.fill("#field-seed", "x")
        page.click("text=Edit")
        page.fill(".turn.user textarea", "What is 5 + 5?")
        page.press(".turn.user textarea", "Enter")
        self.fault("#field-seed")
        expect(page.locator(".turn.assistant .foot")).to_have_count(1)
        self.assertEqual(page.input_value(".turn.user textarea"), "What is 5 + 5?")

    def test_proof_runs_with_no_seed_but_the_one_shown(self):
        page = self.open("proof")
        for bad in ["seven", ""]:
            page.fill("#proof-seed", bad)
            page.click("#proof-run")
            self.assertIn(f"found {'“seven”' if bad else 'nothing'}", self.fault("#proof-seed"))
        page.fill("#proof-seed", "7")
        page.fill("#proof-decoys", "65")
        page.click("#proof-run")
        self.assertIn("a whole number from 1 to 64", self.fault("#proof-decoys"))
        self.assertEqual(self.sent(), [])

    def test_sampling_sheet_opens_on_the_phone(self):
        self.page.set_viewport_size({"width": 390, "height": 780})
        page = self.open()
        page.click("#effect")
        page.fill("#field-seed", "x")
        page.click("#sampling-close")
        page.fill("#prompt", "x")
        page.click("#send")
        self.fault("#field-seed")
        self.assertEqual(self.sent(), [])


class Refused(Faults):
    def test_pasted_text_that_is_no_number(self):
        page = self.open()
        for text in ["warm", "0,6", "1.2.3", "", "1e"]:
            self.assertFalse(self.paste("#field-temperature", text))
            self.assertIn("Not inserted: wanted a number from 0 to 100, found", self.fault("#field-temperature"))
            page.fill("#field-temperature", "")
        for text in ["0.6", " -3\n", ".5", "1e-3"]:
            self.assertTrue(self.paste("#field-temperature", text))
            expect(page.locator("#field-temperature-fault")).to_be_empty()
        page.evaluate("() => go('proof')")
        self.assertFalse(self.paste("#proof-max", "many", event="drop"))
        self.assertIn("found “many”", self.fault("#proof-max"))

    def test_the_browser_pastes(self):
        """With the real clipboard: text that the browser drops silently, and text that it inserts."""
        page = self.open()
        page.evaluate("() => navigator.clipboard.writeText('warm')")
        page.focus("#field-temperature")
        page.keyboard.press("Control+V")
        self.assertIn("found “warm”", self.fault("#field-temperature"))
        page.focus("#field-seed")
        page.keyboard.press("Control+V")
        self.assertIn("found “warm”", self.fault("#field-seed"))

    def test_files(self):
        page = self.open()
        page.fill("#prompt", "kept")
        for event in ["paste", "drop"]:
            self.assertFalse(self.paste("#prompt", file="cat.png", event=event))
            text = self.fault("#prompt")
            self.assertIn("found “cat.png”", text)
            self.assertIn("text only", text)
            self.assertEqual(page.input_value("#prompt"), "kept")
            page.press("#prompt", "End")
            page.keyboard.type("!")
            expect(page.locator("#prompt-fault")).to_be_empty()
            page.fill("#prompt", "kept")
        page.evaluate("() => go('live')")
        self.assertFalse(self.paste("body", file="cat.png", event="drop"))  # or the browser would leave the page
        self.fault("#prompt")
        self.assertTrue(self.paste("#prompt", "some text"))

    def test_a_key_that_no_header_takes(self):
        """fetch refuses it, which would look like a server that does not answer."""
        page = self.open()
        page.click("#settings")
        page.fill("#api-key", "sk-“quoted”")
        page.click("#keys button.primary")
        self.assertIn("found U+201C", self.fault("#api-key"))
        expect(page.locator("#keys")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#keys")).to_be_hidden()
        expect(page.locator("#api-key")).to_have_value("")  # by an event after the dialog is hidden
        self.assertEqual(page.evaluate("() => keys.api"), "")
        page.click("#settings")
        page.fill("#api-key", "sk-plain")
        page.click("#keys button.primary")
        expect(page.locator("#keys")).to_be_hidden()
        page.wait_for_function("() => keys.api === 'sk-plain'")  # the same event


class Tabs(Case):
    def state(self):
        """The focused tab, the selected one and those in the order of Tab."""
        return self.page.evaluate("""() => { const tabs = [...document.querySelectorAll('[role=tab]')];
              return [document.activeElement.dataset.pane, ...['[aria-selected=true]', '[tabindex="0"]']
                .map((s) => tabs.filter((t) => t.matches(s)).map((t) => t.dataset.pane).join())]; }""")

    def test_arrow_keys_after_the_mouse(self):
        page = self.open()
        # Like browsers that do not focus a clicked button.
        page.evaluate("() => document.addEventListener('mousedown', (e) => e.preventDefault())")
        page.click("#tab-proof")
        self.assertEqual(self.state(), ["proof"] * 3)
        for key, pane in [
            ("ArrowRight", "live"),
            ("ArrowRight", "chat"),
            ("ArrowLeft", "live"),
            ("ArrowLeft", "proof"),
        ]:
            page.keyboard.press(key)
            self.assertEqual(self.state(), [pane] * 3, key)

    def test_home_and_end(self):
        page = self.open("tokens")
        page.click("#tab-tokens")
        page.keyboard.press("End")
        self.assertEqual(self.state(), ["live"] * 3)
        page.keyboard.press("Home")
        self.assertEqual(self.state(), ["chat"] * 3)

    def test_the_focus_follows_a_shortcut(self):
        page = self.open()
        page.click("#tab-live")
        page.keyboard.press("Alt+2")
        self.assertEqual(self.state(), ["tokens"] * 3)
        page.focus("#settings")
        page.keyboard.press("Alt+3")
        self.assertEqual(self.state(), [None, "proof", "proof"])


if __name__ == "__main__":
    sys.exit(main())
