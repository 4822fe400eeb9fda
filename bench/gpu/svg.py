"""svg.py: charts as SVG that follow the reader's light or dark theme, in the look of `invar eval --plot`.

A chart is panels, three in a row, under one title with one legend; every panel has lines over a logarithmic axis of powers of
two, or groups of bars. Nothing here knows what is drawn.
"""

import math
from xml.sax.saxutils import escape

STYLE = """<style>
text{font:12px ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:currentColor}
.strong{font-weight:600}.small{font-size:10.5px}.large{font-size:17px}
.middle{text-anchor:middle}.end{text-anchor:end}
.shape{fill:none;stroke:none}.shape.fill{fill:currentColor}
.shape.stroke{stroke:currentColor;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.shape.thin{stroke:currentColor;stroke-width:1}
.paper{color:#ffffff}.ink{color:#1f2937}.soft{color:#6b7280}.faint{color:#e5e7eb}
.series0{color:#0072b2}.series1{color:#d55e00}.series2{color:#009e73}.series3{color:#cc79a7}.series4{color:#b58900}
.series5{color:#56b4e9}.series6{color:#7a5195}.series7{color:#555555}
@media (prefers-color-scheme: dark){
.paper{color:#12161d}.ink{color:#e5e7eb}.soft{color:#9ca3af}.faint{color:#2c333f}
.series0{color:#4aa3df}.series1{color:#f08a3c}.series2{color:#2ec495}.series4{color:#e0bd3a}.series6{color:#b08bd0}
.series7{color:#b5b5b5}
}
</style>
"""
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 66, 34  # margins of the page
LEVEL, UPRIGHT = 22, 10  # widths of bars whose labels lie, stand
ACROSS, ABOVE, BELOW, GAP = 3, 26, 52, 56  # panels in a row; room above and below each, and for the next one's axis


def number(x):
    """1536 -> 1,536; 0.25 -> 0.25."""
    return f"{x:,.0f}" if abs(x) >= 100 or x == int(x) else f"{x:.3g}"


def short(x):
    """What fits over a bar: 53k, 174, 5.2, .07."""
    if x >= 9999.5:
        return f"{x / 1e3:.0f}k"
    return f"{x:.0f}" if x >= 99.5 else f"{x:.1f}" if x >= 0.995 else f"{x:.2f}".lstrip("0")


def ticks(most):
    """0 and a few round values up to the first at or beyond `most`."""
    if most <= 0:
        return [0, 1]
    rough = most / 4
    unit = 10 ** math.floor(math.log10(rough))
    step = next(f * unit for f in (1, 2, 2.5, 5, 10) if f * unit >= rough)
    return [i * step for i in range(math.ceil(most / step - 1e-9) + 1)]


def log_ticks(least, most):
    """Powers of ten, with 2 and 5 between where the range is short, around [least, most]."""
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    steps = (1, 2, 5) if high - low <= 2 else (1,)
    return [f * 10.0 ** e for e in range(low, high) for f in steps] + [10.0 ** high]


class Panel:
    """title; unit: what the y axis counts; series: {name: [(x, y)]} for lines, {name: {group: y}} for bars; groups: their
    order, else that of the series."""

    def __init__(self, title, unit, series, kind="lines", x_name="", log_y=False, groups=()):
        self.title, self.unit, self.series, self.kind = title, unit, series, kind
        self.x_name, self.log_y = x_name, log_y
        self.groups = list(groups or dict.fromkeys(g for v in series.values() for g in v)) if kind == "bars" else []

    def values(self):
        for points in self.series.values():
            yield from points.values() if self.kind == "bars" else (y for _, y in points)


class Chart:
    def __init__(self, title, subtitle, panels, colours, names=None, width=340, height=220):
        self.title, self.subtitle, self.panels, self.colours = title, subtitle, panels, colours
        self.names, self.width, self.height, self.parts = names or {}, width, height, []
        self.top = 0  # of the panel that is drawn

    def put(self, text):
        self.parts.append(text)

    def text(self, x, y, words, style="soft"):
        self.put(f'<text class="{style}" x="{x:.6g}" y="{y:.6g}">{escape(str(words))}</text>')

    def line(self, x1, y1, x2, y2, style):
        self.put(f'<line class="shape {style}" x1="{x1:.6g}" y1="{y1:.6g}" x2="{x2:.6g}" y2="{y2:.6g}"/>')

    def tip(self, element, words):
        self.put(f"<{element}><title>{escape(words)}</title></{element.split()[0]}>")

    def name(self, series):
        return self.names.get(series, series)

    def colour(self, series):
        return f"series{self.colours.get(series, 7)}"

    def y_axis(self, panel, left, scale, marks):
        for mark in marks:
            y = scale(mark)
            self.line(left, y, left + self.width, y, "thin faint")
            self.text(left - 6, y + 3.5, number(mark), "soft small end")

    def y_scale(self, panel):
        values = [v for v in panel.values() if v > 0] or [1]
        most = max(values)
        if panel.kind == "bars" and UPRIGHT <= self.bar_width(panel) < LEVEL:
            most *= 1.12  # room for the highest bar's label
        marks = log_ticks(min(values), most) if panel.log_y else ticks(most)
        low, high = marks[0], marks[-1]
        base = self.top + self.height

        def scale(y):
            if panel.log_y:
                return base - self.height * math.log(max(y, low) / low) / math.log(high / low)
            return base - self.height * y / high

        return scale, marks

    def lines(self, panel, left, scale):
        xs = sorted({x for points in panel.series.values() for x, _ in points})
        if not xs:
            return
        span = math.log2(xs[-1] / xs[0]) or 1

        def at(x):
            return left + 10 + (self.width - 20) * math.log2(x / xs[0]) / span

        shown = []
        for x in reversed(xs):  # where there is room for a number
            if not shown or at(shown[-1]) - at(x) >= max(30, 3 * len(number(x) + number(shown[-1])) + 8):
                shown.append(x)
        for x in shown:
            self.text(at(x), self.top + self.height + 16, number(x), "soft small middle")
        self.text(left + self.width / 2, self.top + self.height + 34, panel.x_name, "soft small middle")
        for series, points in panel.series.items():
            points = sorted(points)
            path = " ".join(f"{at(x):.6g},{scale(y):.6g}" for x, y in points)
            self.put(f'<polyline class="shape stroke {self.colour(series)}" points="{path}"/>')
            for x, y in points:
                self.tip(f'circle class="shape fill {self.colour(series)}" cx="{at(x):.6g}" cy="{scale(y):.6g}" r="3"',
                         f"{self.name(series)}, {panel.x_name} {number(x)}: {number(y)} {panel.unit}")

    def bar_width(self, panel):
        return min(26.0, 0.8 * self.width / max(1, len(panel.groups)) / max(1, len(panel.series)))

    def bars(self, panel, left, scale):
        groups = panel.groups
        if not groups:
            return
        room = self.width / len(groups)
        wide = self.bar_width(panel)
        for i, group in enumerate(groups):
            first = left + room * (i + 0.5) - wide * len(panel.series) / 2
            for j, (series, values) in enumerate(panel.series.items()):
                if group not in values:
                    continue
                y = scale(values[group])
                self.tip(f'rect class="shape fill {self.colour(series)}" x="{first + wide * j + 1:.6g}" y="{y:.6g}" '
                         f'width="{wide - 2:.6g}" height="{self.top + self.height - y:.6g}"',
                         f"{self.name(series)}, {group}: {number(values[group])} {panel.unit}")
                self.bar_label(first + wide * (j + 0.5), y - 4, wide, short(values[group]))
            for k, words in enumerate(str(group).split("\n")):
                self.text(left + room * (i + 0.5), self.top + self.height + 16 + 13 * k, words, "soft small middle")
        self.text(left + self.width / 2, self.top + self.height + 42, panel.x_name, "soft small middle")

    def bar_label(self, x, y, wide, words):
        """Upright over a narrow bar, nothing over a narrower one."""
        if wide >= LEVEL:
            self.text(x, y, words, "soft small middle")
        elif wide >= UPRIGHT:
            self.put(f'<text class="soft small" transform="translate({x + 3.5:.6g} {y:.6g}) rotate(-90)">{words}</text>')

    def legend(self, width, height):
        x, seen = LEFT, dict.fromkeys(s for panel in self.panels for s in panel.series)
        for series in seen:
            self.put(f'<rect class="shape fill {self.colour(series)}" x="{x:.6g}" y="{height - 24:.6g}" width="12" '
                     f'height="12" rx="2"/>')
            self.text(x + 18, height - 14, self.name(series), "ink")
            x += 34 + 7.0 * len(self.name(series))

    def document(self):
        across = min(ACROSS, len(self.panels))
        width = max(LEFT + RIGHT + across * self.width + (across - 1) * GAP, 640)  # the subtitle's room
        height = TOP + -(-len(self.panels) // ACROSS) * (ABOVE + self.height + BELOW) + BOTTOM
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                      f'height="{height}" role="img" aria-labelledby="title desc">',
                      f'<title id="title">{escape(self.title)}</title>', f'<desc id="desc">{escape(self.subtitle)}</desc>',
                      STYLE.strip(), f'<rect class="shape fill paper" x="0" y="0" width="{width}" height="{height}"/>']
        self.text(20, 30, self.title, "ink large strong")
        self.text(20, 50, self.subtitle)
        for i, panel in enumerate(self.panels):
            left = LEFT + i % ACROSS * (self.width + GAP)
            self.top = TOP + ABOVE + i // ACROSS * (ABOVE + self.height + BELOW)
            scale, marks = self.y_scale(panel)
            self.text(left, self.top - 14, panel.title, "ink strong")
            self.text(left + self.width, self.top - 14, panel.unit, "soft small end")
            self.y_axis(panel, left, scale, marks)
            (self.bars if panel.kind == "bars" else self.lines)(panel, left, scale)
        self.legend(width, height)
        self.put("</svg>")
        return "\n".join(self.parts) + "\n"
