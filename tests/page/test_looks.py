"""test_looks.py: contrast of every text and axe-core over every pane, in both themes, on a desktop and a phone.

The states of the panes that no server shows at once (faults, failed runs, answers with errors) are put there by script.

usage: test_looks.py [CLASS...]"""

import itertools
import sys

from page_case import Case, expect, main

try:
    from axe_playwright_python.sync_playwright import Axe
except ImportError:
    Axe = None

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
SAID = """# Heading

Text with **bold**, `code`, ~~struck~~ and a [link](http://a.b/c).

> A quotation with a [link](http://a.b/d) and `code`.

- one
- [x] two

| name | value |
|:-----|------:|
| a    | 1     |

```c
int main(void) { return 0; } /* a line that is long enough to be wider than the screen of a phone is, by far, it is */
```
"""
# Ratio of every text on the screen: its colour over the backgrounds behind it, group opacity counted.
CONTRAST = r"""() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const rgba = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255]; };
  const over = (top, under) => { const a = top[3] + under[3] * (1 - top[3]);
    return a ? [0, 1, 2].map((i) => (top[i] * top[3] + under[i] * under[3] * (1 - top[3])) / a).concat(a) : [0, 0, 0, 0]; };
  const light = ([r, g, b]) => [r, g, b].map((c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((s, c, i) => s + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (color, element, behind) => {
    let front = rgba(color), back = [0, 0, 0, 0];
    const bars = behind ? [rgba(getComputedStyle(behind).backgroundColor)] : [];
    for (let e = element; e; e = e.parentElement) {
      const s = getComputedStyle(e);
      if (bars.length && e === behind.parentElement) { const bar = bars.pop(); front = over(front, bar); back = over(back, bar); }
      const ground = rgba(s.backgroundColor);
      front = over(front, ground); back = over(back, ground);
      front[3] *= Number(s.opacity); back[3] *= Number(s.opacity);
    }
    const page = rgba(getComputedStyle(document.documentElement).colorScheme === 'dark' ? '#121212' : '#fff');
    const [a, b] = [light(over(front, page)), light(over(back, page))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const found = [];
  const note = (r, e, text, what) => found.push([Math.round(r * 100) / 100, (e.id && '#' + e.id) || e.tagName.toLowerCase() + '.' + e.className, what + text.trim().slice(0, 30)]);
  const shown = (e) => e.checkVisibility({checkVisibilityCSS: true}) && e.getBoundingClientRect().width > 0 && e.getBoundingClientRect().right > 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; (n = walk.nextNode());) {
    const e = n.parentElement, open = document.querySelector('dialog[open]');
    if (!n.data.trim() || ['SCRIPT', 'STYLE', 'NOSCRIPT', 'OPTION'].includes(e.tagName) || !shown(e) || (open && !open.contains(e))) continue;
    note(ratio(getComputedStyle(e).color, e), e, n.data, '');
    const bar = e.closest('.option')?.querySelector('i');
    if (bar) note(ratio(getComputedStyle(e).color, e, bar), e, n.data, 'over its bar: ');
  }
  for (const e of document.querySelectorAll('input, textarea, select')) {
    if (!shown(e)) continue;
    note(ratio(getComputedStyle(e).color, e), e, e.value || '', 'value ');
    if (e.placeholder) { const p = getComputedStyle(e, '::placeholder'); if (p.opacity !== '1') note(0, e, e.placeholder, 'opacity of placeholder ');
      note(ratio(p.color, e), e, e.placeholder, 'placeholder '); }
  }
  return found;
}"""


class LooksCase(Case):
    options = {"admin_key": "secret"}

    def each(self):
        """Every state, in each theme and size: (its name)."""
        for (size, (width, height)), theme in itertools.product(SIZES.items(), ["light", "dark"]):
            self.page.set_viewport_size({"width": width, "height": height})
            self.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            for state in STATES:
                if state != "proof_mixed":
                    if self.page.url.startswith("http"):  # else the tab opens its conversation again
                        self.page.evaluate("() => sessionStorage.removeItem('invar-chat')")
                    self.page.goto("about:blank")
                getattr(self, "show_" + state)()
                yield f"{state}, {theme}, {size}"

    def show_empty(self):
        self.open()
        expect(self.page.locator("#status")).to_have_text("idle")

    def show_chat(self):
        page = self.open()
        self.model.say("<think>\nLet me see.\n</think>\n\n" + SAID)
        self.ask("What is 2 + 2?")
        page.evaluate(
            "() => { const a = chat.turns[1].versions[0]; a.error = 'The server does not answer'; a.label = 'a label';"
            " a.like = {digest: 'x'}; drawAnswer(1); toast('Copied'); }"
        )
        page.click(".acts >> text=Again")
        expect(page.locator(".versions")).to_have_count(1)
        page.locator(".foot .digest.good").wait_for()
        page.evaluate(
            "() => { chat.turns[1].at = 0; showChat(); keepChat(); showHistoryFault('History is full.'); toast('Copied'); }"
        )

    def show_raw(self):
        self.show_chat()
        self.page.click(".acts >> text=Raw")

    def show_faults(self):
        page = self.open()
        page.evaluate("() => openSide(true)")
        page.fill("#field-seed", "abc")
        page.fill("#field-temperature", "200")
        page.evaluate("() => { checkSampling(); showFault($('prompt'), 'Not inserted: wanted text, found a file.'); }")

    def show_tokens(self):
        page = self.open()
        self.model.ties = True
        self.ask()
        page.evaluate(
            "() => { const a = chat.selected; a.given = a.tokens.slice(0, 4); a.tokens[5].forced = true;"
            " a.tokens.forEach((t, i) => { t.logprob = -i / 4; }); view.answer = null; showTokens(); go('tokens'); }"
        )

    def show_no_tokens(self):
        self.open("tokens")

    def show_proof(self):
        page = self.open("proof")
        page.fill("#proof-decoys", "2")
        self.prove()

    def show_proof_mixed(self):  # continues from the last
        self.page.evaluate(
            """() => { const states = ['different', 'failed', 'running', 'waiting'];
          proof.rows.slice(3, 7).forEach((r, i) => { r.state = states[i]; r.note = 'a note'; r.at = 2; drawRow(r); });
          proof.before = [{}]; proof.like = {top_p: 1}; showContext(); $('save-proof').disabled = true; showVerdict(); }"""
        )

    def show_live(self):
        page = self.open()
        self.ask()
        page.evaluate("() => { go('live'); }")
        expect(page.locator("#hist-gap .hist-row").first).to_be_visible()
        page.evaluate("() => { clearTimeout(live.timer); live.error = 'The server does not answer'; drawLive(); }")

    def show_keys(self):
        page = self.open()
        page.click("#settings")
        page.fill("#api-key", "ä")
        page.evaluate("() => checkField($('api-key'))")

    def show_history(self):
        page = self.open()
        self.model.ties = True
        self.ask("A title")
        page.evaluate("() => localStorage.setItem('invar-chat-x', 'broken')")
        page.click("#chat-history")
        page.locator("#history-list li").first.get_by_text("Delete").click()
        page.evaluate("() => showListFault('It cannot be read.')")


STATES = [name.removeprefix("show_") for name in dir(LooksCase) if name.startswith("show_")]


class Contrast(LooksCase):
    def test_every_text_has_four_and_a_half_to_one(self):
        low, seen = {}, 0
        for state in self.each():
            texts = self.page.evaluate(CONTRAST)
            seen += len(texts)
            for ratio, element, text in texts:
                if ratio < 4.5:
                    low.setdefault((element, text), []).append((ratio, state))
        self.assertGreater(seen, 1000)
        if low:
            self.fail("\n" + "\n".join(f"{min(v)} {k[0]} {k[1]!r} in {len(v)} states" for k, v in sorted(low.items())))

    def test_the_measure_itself(self):
        """Known ratios; a pale text, a group's opacity and a placeholder are found."""
        styles = ["color: #767676", "color: #777", "color: #000; opacity: 0.5", "color: rgb(0 0 0 / 0.5)"]
        page = self.page
        page.set_content("".join(f'<p id=p{i} style="background: #fff; {s}">x</p>' for i, s in enumerate(styles)))
        ratios = {e: r for r, e, _ in page.evaluate(CONTRAST)}
        self.assertAlmostEqual(ratios["#p0"], 4.54, delta=0.02)
        self.assertAlmostEqual(ratios["#p1"], 4.48, delta=0.02)
        self.assertLess(ratios["#p2"], 4.2)
        self.assertAlmostEqual(ratios["#p3"], 3.95, delta=0.1)


class Axes(LooksCase):
    def test_no_serious_violation(self):
        if Axe is None:
            self.skipTest("axe-playwright-python is not installed")
        axe, found = Axe(), {}
        for state in self.each():
            for v in axe.run(self.page).response["violations"]:
                if v["impact"] in ("serious", "critical"):
                    for node in v["nodes"]:
                        found.setdefault((v["id"], str(node["target"])), []).append(state)
        if found:
            self.fail(
                "\n" + "\n".join(f"{k[0]} {k[1]}: {v[0]} and {len(v) - 1} more" for k, v in sorted(found.items()))
            )

    def test_a_violation_is_found(self):
        """The control: an image without a name and a pale text."""
        if Axe is None:
            self.skipTest("axe-playwright-python is not installed")
        page = self.open()
        page.evaluate(
            "() => { const p = el('p', {}, 'pale text'); p.style.color = '#ccc'; document.body.append(el('img', {}), p); }"
        )
        ids = {v["id"] for v in Axe().run(page).response["violations"]}
        self.assertLessEqual({"image-alt", "color-contrast"}, ids)


if __name__ == "__main__":
    sys.exit(main())
