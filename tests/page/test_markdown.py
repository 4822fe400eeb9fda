"""test_markdown.py: answers as Markdown: the drawn elements, hostile text, and cost.

usage: test_markdown.py [CLASS...]"""

import random
import re
import sys

from page_case import Case, expect, main

MEGABYTE = 1 << 20
SHAPES = [
    "*",
    "_",
    "`",
    "~",
    "[",
    "]",
    "(",
    "<",
    ">",
    "> ",
    "- ",
    "1. ",
    "#",
    "|",
    "\\",
    " ",
    "\t",
    "\n",
    "\r",
    "h",
    "&",
    "!",
    "![",
    "*a ",
    "**a ",
    "*a_",
    "a*",
    "*a* ",
    "**a** ",
    "_a*b",
    "`a",
    "``a`",
    "[a](",
    "[a](b",
    "[](http://a ",
    "[a](http://b)",
    "<http://",
    "http://a ",
    "http://)",
    "*\n",
    "- a\n",
    "> a\n",
    ">\n",
    "> > > > ",
    "# a\n",
    "a\n\n",
    "|a\n|-\n",
    "|",
    "| a | b |\n",
    "```\n",
    "```\na\n",
    "a" * 70 + "\n",
    "1. a\n  - b\n",
    "- " * 40 + "\n",
    "  - a\n",
    "\\`",
    "``` `",
    "- - - x ",
    "|" * 64 + "\n" + "|-" * 64 + "\n" + "|a\n" * 20000,
]
# All elements that the renderer may create, with their attributes.
ALLOWED = {
    **{tag: set() for tag in "BLOCKQUOTE BR CODE DEL EM H3 H4 H5 H6 HR LI STRONG TABLE TBODY THEAD TR UL SPAN".split()},
    "P": {"class"},
    "OL": {"start"},
    "TH": {"class"},
    "TD": {"class"},
    "DIV": {"class", "tabindex", "role", "aria-label"},
    "PRE": {"tabindex", "role", "aria-label"},
    "BUTTON": {"type"},
    "A": {"href", "title", "target", "rel"},
}


class MarkdownCase(Case):
    def setUp(self):
        super().setUp()
        self.open()

    def draw(self, text, cuts=None):
        """The HTML of a text, given at once or in pieces of these lengths."""
        return self.page.evaluate(
            """([text, cuts]) => {
              const root = document.createElement('div'), m = new Markdown(root);
              for (const n of cuts || []) { m.push(text.slice(0, n)); text = text.slice(n); }
              m.push(text);
              m.end();
              return root.innerHTML;
            }""",
            [text, cuts],
        )

    def made(self, text):
        """[tag, attributes] of every element created for a text."""
        return self.page.evaluate(
            """(text) => {
              const root = document.createElement('div');
              markdown(root, text);
              return [...root.querySelectorAll('*')].map((e) => [e.tagName, Object.fromEntries([...e.attributes].map((a) => [a.name, a.value]))]);
            }""",
            text,
        )


class Blocks(MarkdownCase):
    def test_each_kind(self):
        cases = {
            "a *b* **c** ***d*** ~~e~~ `f*g*`": "<p>a <em>b</em> <strong>c</strong> <em><strong>d</strong></em> <del>e</del> <code>f*g*</code></p>",
            "snake_case_name 2 * 3 * 4 \\*x\\* **open": "<p>snake_case_name 2 * 3 * 4 *x* **open</p>",
            "one\ntwo\n\nthree": "<p>one<br>two</p><p>three</p>",
            "# A\n### B ##\n####### C": "<h3>A</h3><h5>B</h5><p>####### C</p>",
            "- a\n  - b\n- c": "<ul><li><p>a</p><ul><li><p>b</p></li></ul></li><li><p>c</p></li></ul>",
            "3. a\n4. b": '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>',
            "10. a\n   - b\n11. c": '<ol start="10"><li><p>a</p><ul><li><p>b</p></li></ul></li><li><p>c</p></li></ol>',
            "- [x] a\n- [ ] b": "<ul><li><p>☑ a</p></li><li><p>☐ b</p></li></ul>",
            "1. a\n\n   more\n\n2. b": "<ol><li><p>a</p><p>more</p></li><li><p>b</p></li></ol>",
            "> a\nlazy\n> > b\n\nc": "<blockquote><p>a<br>lazy</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>",
            "in\n1986. Not a list": "<p>in<br>1986. Not a list</p>",
            "a\n\n---\n* * *\nb": "<p>a</p><hr><hr><p>b</p>",
            "`` a`b `` `c": "<p><code>a`b</code> `c</p>",
            "a  \nb\\\nc": "<p>a<br>b<br>c</p>",
        }
        for text, wanted in cases.items():
            self.assertEqual(self.draw(text), wanted, text)

    def test_code(self):
        html = self.draw("Do:\n\n```python\nif x < 1:\n    *y*\n\n<b>\n```\nand\n~~~\n```\n~~~\n```js\nopen")
        codes = re.findall(r"<span>(.*?)</span>.*?<code>(.*?)</code>", html, re.S)
        self.assertEqual(
            codes, [("python", "if x &lt; 1:\n    *y*\n\n&lt;b&gt;"), ("text", "```"), ("js", "open")], html
        )
        self.assertIn("<p>and</p>", html)
        self.assertIn("<code>\n  a</code>", self.draw("- x\n  ```\n\n    a\n  ```\n- y"))

    def test_tables(self):
        html = self.draw("| a | b |\n|:-|-:|\n| *1* | x\\|y |\n| 2 |\nafter")
        self.assertIn('<thead><tr><th>a</th><th class="right">b</th></tr></thead>', html)
        self.assertIn('<tr><td><em>1</em></td><td class="right">x|y</td></tr>', html)
        self.assertIn('<tr><td>2</td><td class="right"></td></tr>', html)
        self.assertTrue(html.endswith("<p>after</p>"), html)
        self.assertEqual(self.draw("a | b\nno | rule"), "<p>a | b<br>no | rule</p>")

    def test_links(self):
        rel = 'target="_blank" rel="noopener noreferrer"'
        link = lambda address, text: f'<a href="{address}" title="{address}" {rel}>{text}</a>'
        cases = {
            "[a *b*](http://x.y/z)": link("http://x.y/z", "a <em>b</em>"),
            'see [a](<https://x.y/a b> "t").': f'see {link("https://x.y/a%20b", "a")}.',
            "(http://x.y/z).": f'({link("http://x.y/z", "http://x.y/z")}).',
            "<https://x.y>": link("https://x.y/", "https://x.y"),
            "[w](https://x.y/a_(b))": link("https://x.y/a_(b)", "w"),
            "![pic](http://x.y/p.png)": link("http://x.y/p.png", "pic"),
            "[http://a.b](http://c.d/)": link("http://c.d/", "http://a.b"),
        }
        for text, wanted in cases.items():
            self.assertEqual(self.draw(text), f"<p>{wanted}</p>", text)
        for address in [
            "javascript:alert(1)",
            "JaVaScRiPt:alert(1)",
            "java\tscript:alert(1)",
            "data:text/html,x",
            "vbscript:x",
            "file:///etc/passwd",
            "//x.y",
            "/v1/models",
            "#proof",
            "?x",
            "http://user:word@x.y",
            "http://good.com@evil.com",
            "blob:http://x.y/1",
            "http://",
        ]:
            for text in [f"[a]({address})", f"![a]({address})", f"<{address}>", f"[a](<{address}>)"]:
                self.assertNotIn("A", [tag for tag, _ in self.made(text)], text)

    def test_raw_view_and_copies(self):
        page = self.page
        text = "A **b**:\n\n```c\nint x;\n```"
        self.model.say(text)
        self.ask("x")
        self.assertEqual(page.locator(".turn.assistant .said strong").inner_text(), "b")
        self.assertEqual(page.locator(".code-head span").inner_text(), "c")
        clipboard = lambda: page.evaluate("() => navigator.clipboard.readText()")
        page.click("text=Copy code")
        expect(page.locator("#toast")).to_contain_text("Code copied")
        self.assertEqual(clipboard(), "int x;")
        page.click(".acts button:text-is('Copy')")
        expect(page.locator("#toast")).to_contain_text("Answer copied")
        self.assertEqual(clipboard(), text)
        raw = page.locator(".acts >> text=Raw")
        raw.click()
        expect(raw).to_have_attribute("aria-pressed", "true")
        self.assertEqual(page.locator(".turn.assistant .said").inner_text().strip(), text)
        self.assertEqual(page.locator(".turn.assistant .said strong").count(), 0)
        raw.click()
        expect(raw).to_have_attribute("aria-pressed", "false")
        self.assertEqual(page.locator(".turn.assistant .said strong").count(), 1)

    def test_copy_that_the_browser_refuses_is_said(self):
        page = self.page
        self.model.say("y")  # a sampled answer may be empty
        self.ask("x")
        page.evaluate(
            "() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); document.execCommand = () => false; }"
        )
        page.click(".acts button:text-is('Copy')")
        expect(page.locator("#toast")).to_contain_text("Answer not copied")


# Milliseconds to draw the text at once, the paragraphs at once, and a quarter of the text in pieces.
DRAW = """([text, paragraphs]) => [[text, text.length], [paragraphs, paragraphs.length], [text.slice(0, text.length / 4), 64]].map(
  ([text, size]) => {
    const start = performance.now(), m = new Markdown(document.createElement('div'));
    for (let at = 0; at < text.length; at += size) m.push(text.slice(at, at + size));
    m.end();
    return performance.now() - start;
  })"""


class Hostile(MarkdownCase):
    PIECES = [
        "*",
        "**",
        "***",
        "_",
        "__",
        "~~",
        "`",
        "``",
        "```",
        "~~~",
        "\n",
        "\n\n",
        " ",
        "  ",
        "    ",
        "\t",
        "\r\n",
        "- ",
        "* ",
        "1. ",
        "7) ",
        "> ",
        ">",
        "# ",
        "#### ",
        "---",
        "|",
        "|-|",
        "| a | b |\n|---|---|\n",
        "[",
        "](",
        ")",
        "]",
        "![",
        "<",
        ">",
        "\\",
        "&amp;",
        "word",
        "two words",
        "é",
        "😀",
        "\u202e",
        "\0",
        "[x](javascript:alert(1))",
        "[x](http://a.b/c)",
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "http://a.b/?q=1",
        "https://a.b).",
        "<https://a.b>",
        "</style>",
        "<!--",
        "]]>",
        "{{x}}",
        "${x}",
        "- [ ] ",
        "```html\n",
        "\n```\n",
    ]

    def texts(self, count, seed):
        r = random.Random(seed)
        for _ in range(count):
            yield "".join(r.choice(self.PIECES) for _ in range(r.randrange(1, 60))), r

    def test_nothing_but_the_allowed_is_made(self):
        links = 0
        for text, _ in self.texts(400, 1):
            for tag, attributes in self.made(text):
                self.assertIn(tag, ALLOWED, text)
                self.assertLessEqual(set(attributes), ALLOWED[tag], text)
                if tag == "A":
                    links += 1
                    self.assertRegex(attributes["href"], "^https?://", text)
                    self.assertEqual(attributes["rel"], "noopener noreferrer")
        self.assertGreater(links, 50)

    def test_pieces_draw_what_the_whole_draws(self):
        for text, r in self.texts(400, 2):
            cuts, left = [], len(text)
            while left > 0:
                cuts.append(r.randrange(1, 9))
                left -= cuts[-1]
            self.assertEqual(self.draw(text, cuts), self.draw(text), repr(text))

    def test_no_word_is_lost(self):
        signs = [p for p in self.PIECES if not re.search(r"\w{2}", p)]
        r = random.Random(3)
        for _ in range(300):
            words = [f"w{k}x" for k in range(r.randrange(1, 30))]
            text = "".join(r.choice(signs) + w + " " * r.randrange(2) for w in words)
            shown = self.page.evaluate(
                "(t) => { const e = document.createElement('div'); markdown(e, t); e.querySelectorAll('button').forEach((b) => b.remove()); return e.textContent; }",
                text,
            )
            dropped = re.findall(r"[`~]{3,}[^\n]*", text)  # of an info string only the language is shown
            for w in words:
                if not any(w in d for d in dropped):
                    self.assertIn(w, shown, repr(text))

    def test_script_in_an_answer(self):
        text = "<script>window.hit = 1</script>\n\n<img src=x onerror='window.hit=1'>\n\n[a](javascript:window.hit=1)\n\n```\n</script>"
        self.model.say(text)
        self.ask("x")
        said = self.page.locator(".turn.assistant .said")
        self.assertEqual(said.locator("script, img, a").count(), 0)
        self.assertIn("[a](javascript:window.hit=1)", said.inner_text())
        self.assertIsNone(self.page.evaluate("() => window.hit ?? null"))

    def test_a_megabyte_within_seconds(self):
        """Each shape drawn at once; a quarter of it in paragraphs short enough to be read as Markdown, and in 4,096
        pieces. A quadratic renderer takes minutes."""
        for shape in SHAPES:
            text = shape * (MEGABYTE // len(shape) + 1)
            short = shape * (7000 // len(shape) + 1) + "\n\n"
            given = [text, short * (MEGABYTE // 4 // len(short) + 1)]
            limits = [3000, 5000, 8000]
            times = self.page.evaluate(DRAW, given)
            if any(took >= most for took, most in zip(times, limits)):  # other tests may have had the processors
                times = [min(pair) for pair in zip(times, self.page.evaluate(DRAW, given))]
            for took, most, way in zip(times, limits, ["at once", "paragraphs", "pieces"]):
                self.assertLess(took, most, f"{shape[:20]!r} {way}")

    def test_depth_is_bounded(self):
        for shape in ["> ", "- ", "1. ", "*a ", "**a _b ", "[a", "- > "]:
            text = shape * 20000 + "x" + " a*" * 3000 + " a** b_" * 3000
            deepest = self.page.evaluate(
                """(text) => { const root = document.createElement('div'); markdown(root, text); let most = 0;
                  for (const e of root.querySelectorAll('*')) { let d = 0; for (let p = e; p !== root; p = p.parentNode) d++; most = Math.max(most, d); }
                  return most; }""",
                text[:19000] if "a" in shape else text,
            )
            self.assertLess(deepest, 64, shape)


class Growing(MarkdownCase):
    def quarters(self, path, way):
        """Milliseconds of each quarter of an answer of many kinds, token by token, a frame each."""
        return self.page.evaluate(
            """(path) => {
              const part = '## Head\\n\\nSome *text* with `code` and a [link](http://a.b).\\n\\n- one\\n- two\\n\\n| a | b |\\n|---|---|\\n| 1 | 2 |\\n\\n```c\\nint x = 1;\\n```\\n\\n';
              const a = newAnswer(path, {}), quarters = [0, 0, 0, 0], text = part.repeat(400);
              a.state = 'running';
              for (let at = 0; at < text.length; at += 8) {
                const start = performance.now(), t = text.slice(at, at + 8);
                takeChunk(a, {choices: [WAY]});
                growView(a);
                quarters[Math.floor(4 * at / text.length)] += performance.now() - start;
              }
              if (viewOf(a).said.querySelectorAll('table').length !== 400) throw Error('not drawn');
              return quarters;
            }""".replace("WAY", way),
            path,
        )

    def test_a_token_costs_the_same_late_as_early(self):
        """The last quarter costs at most a few times the first, in the better of two attempts: other programs take time too."""
        for path, way in [("/v1/chat/completions", "{delta: {content: t}}"), ("/v1/completions", "{text: t}")]:
            times = self.quarters(path, way)
            if times[3] >= 4 * times[0] + 300:
                times = self.quarters(path, way)
            self.assertLess(times[3], 4 * times[0] + 300, (path, times))

    def test_a_completion_is_cut_as_it_comes(self):
        """Thinking and answer of a fork, in pieces of any length: at the end the same as cut from the whole."""
        texts = [
            "<think>\na < b\n</think>\n\nSo **x** <y>.<|im_end|>",
            "no tags <|im_end|>\n",
            "only the end</think>\nrest",
            "<think>\nstill",
            "a <thin",
            "<think></think>x</think>y",
            "\n\nplain <b> text",
        ]
        for text in texts:
            for size in [1, 2, 3, 7, 100]:
                running, ended = self.page.evaluate(
                    """([text, size]) => {
                      const a = newAnswer('/v1/completions', {}, [{text: text.slice(0, 4)}]), state = () => [a.reasoning, a.text];
                      a.state = 'running';
                      takeRaw(a, '');
                      for (let at = 4; at < text.length; at += size) takeRaw(a, text.slice(at, at + size)), growView(a);
                      const last = state().map((s, i) => s + (i === (a.cut.to === 'text') * 1 ? a.cut.held.replace(/<\\|.*/, '') : ''));
                      splitRaw(a);
                      a.state = 'done';
                      growView(a);
                      const v = viewOf(a), drawn = document.createElement('div');
                      markdown(drawn, a.text);
                      if (v.said.innerHTML !== drawn.innerHTML || v.thought.textContent.trim() !== a.reasoning.trim()) throw Error('drawn otherwise');
                      return [last, state()].map((l) => l.map((s) => s.trim()));
                    }""",
                    [text, size],
                )
                self.assertEqual(running, ended, (text, size))

    def test_what_is_drawn_stays(self):
        """Finished blocks keep their nodes, and with them the reader's selection and focus."""
        kept = self.page.evaluate("""() => { const root = document.createElement('div'), m = new Markdown(root);
              m.push('# A\\n\\nsome text\\n\\n```c\\nint'); const before = [...root.children];
              m.push(' x;\\n```\\n\\nmore *t'); m.push('ext*'); m.end();
              return [before.map((e, i) => e === root.children[i]), root.lastChild.innerHTML]; }""")
        self.assertEqual(kept, [[True, True, True], "more <em>text</em>"])


if __name__ == "__main__":
    sys.exit(main())
