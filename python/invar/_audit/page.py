"""The results of an audit as a table of text, a picture (SVG) and a page (HTML): self-contained, dark and light."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from .answers import brief, percent

if TYPE_CHECKING:
    from ..audit import Cell, Report, Row

LIGHT = {"bg": "#fbfaf7", "panel": "#ffffff", "ink": "#1b1d21", "muted": "#696f78", "line": "#e4e2dc", "equal": "#45a878",
         "logprob": "#eda92c", "text": "#d84b4b", "error": "#a3a8af", "glyph": "#ffffff"}  # fmt: skip
DARK = {"bg": "#121418", "panel": "#1a1d23", "ink": "#eceef0", "muted": "#99a0aa", "line": "#2a2e36", "equal": "#2f8f63",
        "logprob": "#d4982a", "text": "#e05a5a", "error": "#5b626c", "glyph": "#ffffff"}  # fmt: skip
KINDS = {
    "equal": "equal: text and every bit",
    "logprob": "same text, other log-probabilities",
    "text": "another text",
    "error": "no answer",
}
FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
LABEL_WIDTH, RATE_WIDTH, GAP = 190, 178, 3


def _variables(colors: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colors.items())


STYLE_COLORS = (
    f":root{{color-scheme:light dark;{_variables(LIGHT)}}}@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}"
)
STYLE_GRID = f"""
.g text{{font-family:{FONT};fill:var(--ink);font-size:13px}} .g .m{{fill:var(--muted);font-size:12px}}
.g .equal{{fill:var(--equal)}} .g .logprob{{fill:var(--logprob)}} .g .text{{fill:var(--text)}} .g .error{{fill:var(--error)}}
.g .track{{fill:var(--line)}} .g .x{{stroke:var(--glyph);stroke-width:1.6;stroke-linecap:round;fill:none}} .g .o{{fill:var(--glyph)}}
"""


# ---- the grid: ways by requests


def _cell_size(count: int) -> int:
    return max(6, min(28, 540 // count - GAP))


def _glyph(kind: str, x: float, y: float, size: int) -> str:
    """Colors are not the only mark."""
    cx, cy, r = x + size / 2, y + size / 2, size / 6
    if kind == "text" and size > 9:
        a, b, c, d = f"{cx - r:.1f}", f"{cy - r:.1f}", f"{cx + r:.1f}", f"{cy + r:.1f}"
        return f'<path class="x" d="M{a} {b}L{c} {d}M{c} {b}L{a} {d}"/>'
    if kind == "logprob" and size > 9:
        return f'<circle class="o" cx="{cx:.1f}" cy="{cy:.1f}" r="{r * 0.8:.1f}"/>'
    return ""


def _cell(row: Row, cell: Cell, x: float, y: float, size: int) -> str:
    hint = f"request {cell.request}, {row.title}: "
    hint += "equal" if cell.kind == "equal" else f"{cell.different} of {cell.sent} differ; {cell.first}"
    opacity = 1.0 if cell.kind in ("equal", "error") else 0.6 + 0.4 * cell.different / cell.sent
    square = f'<rect class="{cell.kind}" x="{x:.1f}" y="{y:.1f}" width="{size}" height="{size}" rx="{min(5, size / 4):.1f}" '
    square += f'opacity="{opacity:.2f}"/>'
    return f"<g><title>{escape(hint)}</title>{square}{_glyph(cell.kind, x, y, size)}</g>"


def _grid(report: Report, left: float, top: float) -> tuple[str, float, float]:
    """Elements, width and height."""
    count = len(report.jobs)
    size = _cell_size(count)
    step, pitch = size + GAP, max(size + GAP, 24)
    width = LABEL_WIDTH + count * step + RATE_WIDTH
    out, y = [], top
    for row in report.rows:
        middle = y + size / 2 + 4.5
        out.append(f'<text x="{left}" y="{middle:.1f}">{escape(row.title)}</text>')
        if row.skipped:
            why = escape(brief(row.skipped, 70))
            out.append(f'<text class="m" x="{left + LABEL_WIDTH}" y="{middle:.1f}">not compared: {why}</text>')
        else:
            out += [_cell(row, cell, left + LABEL_WIDTH + i * step, y, size) for i, cell in enumerate(row.cells)]
            out.append(_rate(row, left + LABEL_WIDTH + count * step + 10, y, size))
        y += pitch
    return "".join(out), width, y - top


def _rate(row: Row, x: float, y: float, size: int) -> str:
    """A bar of the share that differs, and the share."""
    sent, track, height = row.total("sent") - row.total("error"), 70, min(size, 10)
    at = y + (size - height) / 2
    out = f'<rect class="track" x="{x}" y="{at:.1f}" width="{track}" height="{height}" rx="{height / 2}"/>'
    begin = x
    for kind in ("text", "logprob"):
        part = track * row.total(kind) / sent if sent else 0
        if part:
            shape = f'width="{max(part, 3):.1f}" height="{height}" rx="{min(height / 2, part / 2):.1f}"'
            out += f'<rect class="{kind}" x="{begin:.1f}" y="{at:.1f}" {shape}/>'
        begin += part
    words = "no answers" if not sent else f"{percent(row.total('different'), sent)} differ"
    return out + f'<text class="m" x="{x + track + 8}" y="{y + size / 2 + 4.5:.1f}">{words}</text>'


def _legend(report: Report, x: float, y: float) -> str:
    used = {cell.kind for row in report.rows for cell in row.cells} | {"equal"}
    out = []
    for kind in KINDS:
        if kind not in used:
            continue
        words = KINDS[kind] if report.logprobs or kind != "equal" else "equal text"
        out.append(f'<rect class="{kind}" x="{x}" y="{y}" width="14" height="14" rx="3"/>{_glyph(kind, x, y, 14)}')
        out.append(f'<text class="m" x="{x + 20}" y="{y + 11.5}">{words}</text>')
        x += 44 + 6.3 * len(words)
    return "".join(out)


def _headline(report: Report) -> tuple[str, str]:
    """The number, and what it counts."""
    sent, different = report.total("sent") - report.total("error"), report.total("different")
    if not sent:
        return "none", "of the repeated requests was answered"
    if not different:
        return "0", f"of {sent} answers differ"
    return percent(different, sent), f"of {sent} answers differ"


def picture(report: Report) -> str:
    """A self-contained SVG."""
    margin, top = 28, 118
    elements, width, height = _grid(report, margin, top)
    number, words = _headline(report)
    kind = "text" if report.total("text") else "logprob" if report.total("different") else "equal"
    total_width, total_height = max(width + 2 * margin, 760), top + height + 62
    about = f"{report.name} · {report.model} · {report.when}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total_width:.0f} {total_height:.0f}" width="{total_width:.0f}" '
        f'height="{total_height:.0f}" class="g" role="img" aria-label="{escape(report.summary(), True)}">'
        f"<style>{STYLE_COLORS}{STYLE_GRID}.g .n{{font-size:44px;font-weight:700}} .g .h{{font-size:17px;font-weight:600}}</style>"
        f'<rect width="100%" height="100%" rx="12" style="fill:var(--bg)"/>'
        f'<text class="n" x="{margin}" y="68" style="fill:var(--{kind})">{escape(number)}</text>'
        f'<text class="h" x="{margin + 29 * len(number) + 16}" y="52">{escape(words)}</text>'
        f'<text class="m" x="{margin + 29 * len(number) + 16}" y="72">{escape(about)}</text>'
        f"{elements}{_legend(report, margin, top + height + 14)}</svg>\n"
    )


# ---- the page

STYLE_PAGE = f"""
*{{box-sizing:border-box}} body{{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 {FONT}}}
main{{max-width:960px;margin:0 auto;padding:48px 24px 64px}} h1{{font-size:17px;font-weight:600;margin:0}}
.s{{color:var(--muted)}}
.about{{margin:2px 0 36px;color:var(--muted);font-size:14px;overflow-wrap:anywhere}}
.hero{{display:flex;gap:24px;align-items:center;flex-wrap:wrap;margin-bottom:10px}}
.hero b{{font-size:92px;line-height:1;letter-spacing:-.03em;font-weight:750}}
.hero div{{flex:1;min-width:260px;font-size:21px;line-height:1.35}}
.hero small{{display:block;font-size:15px;color:var(--muted);margin-top:8px;line-height:1.5}}
.c-equal{{color:var(--equal)}} .c-logprob{{color:var(--logprob)}} .c-text{{color:var(--text)}}
.c-error{{color:var(--muted)}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(180px,1fr));gap:12px;margin:28px 0}}
.tile,.box{{background:var(--panel);border:1px solid var(--line);border-radius:12px;padding:14px 16px}}
.tile b{{display:block;font-size:24px;font-variant-numeric:tabular-nums}}
.tile span{{font-size:13px;color:var(--muted);line-height:1.4;display:block;margin-top:2px}}
h2{{font-size:18px;margin:40px 0 12px}} .box svg{{width:100%;min-width:560px;height:auto;display:block}}
.scroll{{overflow-x:auto}}
table{{border-collapse:collapse;width:100%;font-size:14px}}
th,td{{text-align:left;padding:7px 12px 7px 0;border-bottom:1px solid var(--line);vertical-align:top}}
th{{color:var(--muted);font-weight:500}}
td.n{{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}} th.n{{text-align:right}}
.pair{{display:grid;grid-template-columns:repeat(auto-fit,minmax(280px,1fr));gap:12px}}
pre{{margin:8px 0 0;white-space:pre-wrap;overflow-wrap:anywhere;font:13.5px/1.55 ui-monospace,Menlo,Consolas,monospace}}
pre i{{font-style:normal;color:var(--muted)}}
pre mark{{background:color-mix(in srgb,var(--text) 22%,transparent);color:inherit;border-radius:3px;padding:0 1px}}
code{{font:13px ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere}}
footer{{margin-top:48px;color:var(--muted);font-size:13px}} ul{{padding-left:20px}}
"""


def page(report: Report) -> str:
    """A self-contained HTML page: no scripts, nothing loaded."""
    number, words = _headline(report)
    kind = "text" if report.total("text") else "logprob" if report.total("different") else "equal"
    elements, width, height = _grid(report, 0, 0)
    grid = (
        f'<svg class="g" viewBox="0 0 {width:.0f} {height + 34:.0f}" width="{width:.0f}" height="{height + 34:.0f}" role="img" '
        f'aria-label="{escape(report.summary(), True)}">{elements}{_legend(report, 0, height + 16)}</svg>'
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(number)} {escape(words)}: {escape(report.name)}</title>"
        f"<style>{STYLE_COLORS}{STYLE_PAGE}{STYLE_GRID}</style></head>"
        f"<body><main><h1>Does the same request get the same answer?</h1><p class=about>{_about(report)}</p>"
        f'<div class=hero><b class="c-{kind}">{escape(number)}</b><div>{escape(words)}<small>{_method(report)}</small></div></div>'
        f"{_tiles(report)}<h2>Each square is one request, each row one way to send it</h2>"
        f'<div class="box scroll">{grid}</div>{_example(report)}<h2>The ways</h2>{_ways(report)}{_notes(report)}'
        f"<footer>Made by <code>python -m invar.audit</code> on {escape(report.when)}.</footer></main></body></html>\n"
    )


def _about(report: Report) -> str:
    parts = [report.name, f"model {report.model}", f"/v1/{'chat/completions' if report.api == 'chat' else 'completions'}"]
    parts += [f"temperature {report.fields['temperature']:g}", f"up to {report.fields['max_tokens']} tokens"]
    if report.fingerprint:
        parts.append(report.fingerprint)
    return escape(" · ".join(parts))


def _method(report: Report) -> str:
    tried = sum(not row.skipped for row in report.rows)
    times = {1: "once", 2: "twice"}.get(report.rounds, f"{report.rounds} times")
    compared = "its text and the log-probability of every token are" if report.logprobs else "its text is"
    return (
        f"{len(report.jobs)} requests were sent alone, one after another, then in {tried} other ways, {times} each. "
        f"An answer counts as equal if {compared} equal to the first one's."
    )


def _tiles(report: Report) -> str:
    sent = report.total("sent") - report.total("error")
    tiles = [(f"{report.total('text')}", f"with another text ({percent(report.total('text'), sent)})")]
    if report.logprobs:
        tiles.append((f"{report.total('logprob')}", "with the same text and other log-probabilities"))
        tiles.append((f"{report.largest_logprob:.3g}", "largest difference of a log-probability before texts part"))
    tiles.append((f"{report.total('error')}", "requests without an answer"))
    boxes = [f"<div class=tile><b>{escape(a)}</b><span>{escape(b)}</span></div>" for a, b in tiles]
    return f"<div class=tiles>{''.join(boxes)}</div>"


def _example(report: Report) -> str:
    """Where one answer parts from the first one: the texts, or the log-probabilities."""
    found = [(row, cell) for row in report.rows for cell in row.cells if cell.answer is not None and cell.kind != "error"]
    if not found:
        return ""
    row, cell = next(((r, c) for r, c in found if c.kind == "text"), found[0])
    prompt = report.jobs[cell.request].prompt
    shown = prompt if len(prompt) <= 200 else prompt[:200] + "..."
    body = _texts(report, row, cell) if cell.kind == "text" else _logprobs(report, row, cell)
    return (
        f"<h2>An example: request {cell.request}</h2><p class=s>{escape(shown)}</p>{body}"
        f"<p class=s>First difference: <code>{escape(str(cell.first))}</code></p>"
    )


def _texts(report: Report, row: Row, cell: Cell) -> str:
    assert cell.answer is not None
    a, b = report.reference[cell.request].text, cell.answer.text
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    boxes = []
    for title, text in (("alone", a), (row.title, b)):
        before, after = text[max(0, at - 220) : at], text[at : at + 260]
        dots = "..." if at > 220 else ""
        marked = f"<mark>{escape(after) or '(the end)'}</mark>"
        boxes.append(f"<div class=box><span class=s>{escape(title)}</span><pre><i>{dots}{escape(before)}</i>{marked}</pre></div>")
    return f"<div class=pair>{''.join(boxes)}</div>"


def _logprobs(report: Report, row: Row, cell: Cell) -> str:
    assert cell.answer is not None
    a, b = report.reference[cell.request].logprobs, cell.answer.logprobs
    places = [t for t, (x, y) in enumerate(zip(a, b)) if x != y]
    rows = [
        f"<tr><td class=n>{t}</td><td class=n>{a[t]!r}</td><td class=n>{b[t]!r}</td><td class=n>{b[t] - a[t]:+.2e}</td></tr>"
        for t in places[:6]
    ]
    head = f"<tr><th class=n>token</th><th class=n>alone</th><th class=n>{escape(row.title)}</th><th class=n>difference</th></tr>"
    count = f"{len(places)} of {len(a)} log-probabilities differ" + (f"; the first {len(rows)}:" if len(places) > len(rows) else ":")
    return f"<div class=box><span class=s>{count}</span><table>{head}{''.join(rows)}</table></div>"


def _ways(report: Report) -> str:
    head = "<tr><th>way</th><th>what is sent</th><th class=n>differ</th><th class=n>in text</th><th>first difference</th></tr>"
    rows = []
    for row in report.rows:
        if row.skipped:
            why = f"<td colspan=3 class=s>not compared: {escape(row.skipped)}</td>"
            rows.append(f"<tr><td>{escape(row.title)}</td><td class=s>{escape(row.what)}</td>{why}</tr>")
            continue
        first = next((cell for cell in row.cells if cell.first is not None), None)
        place = "none"
        if first is not None and first.first is not None:
            place = f"request {first.request}" + ("" if first.first.token is None else f", token {first.first.token}")
        rows.append(
            f"<tr><td>{escape(row.title)}</td><td class=s>{escape(row.what)}</td><td class=n>{row.total('different')} of "
            f"{row.total('sent') - row.total('error')}</td><td class=n>{row.total('text')}</td><td class=s>{place}</td></tr>"
        )
    return f"<div class=scroll><table>{head}{''.join(rows)}</table></div>"


def _notes(report: Report) -> str:
    if not report.notes:
        return ""
    return "<h2>Notes</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in report.notes) + "</ul>"


# ---- the table


def text_table(report: Report) -> str:
    lines = [f"{report.url}: {report.model}" + (f", {report.fingerprint}" if report.fingerprint else "")]
    width = max(len(row.title) for row in report.rows)
    lines.append(f"{'':{width}}   sent  differ  in text  failed")
    for row in report.rows:
        if row.skipped:
            lines.append(f"{row.title:{width}}   not compared: {row.skipped}")
            continue
        counts = [row.total(k) for k in ("sent", "different", "text", "error")]
        lines.append(f"{row.title:{width}}  {counts[0]:5}  {counts[1]:6}  {counts[2]:7}  {counts[3]:6}")
    lines += report.notes
    first = report.first_difference()
    if first:
        lines.append(f"first difference: {first}")
    return "\n".join([*lines, report.summary()])
