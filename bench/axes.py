"""Plots as SVG: a coordinate system, groups of bars with marks, lines."""

import html

COLOURS = ["#4c72b0", "#dd8452", "#55a868", "#8172b3", "#937860"]
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 360, 60, 50, 60


class Picture:
    """An SVG of a coordinate system."""

    def __init__(self, title, unit, most, least=0.0):
        self.least, self.most = least, most if most > least else least + 1
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="11">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            f'<text x="{LEFT}" y="18" font-size="14">{html.escape(title)}</text>',
            f'<text x="{LEFT}" y="36" fill="#555">{html.escape(unit)}</text>',
        ]
        for n in range(6):
            value = self.least + (self.most - self.least) * n / 5
            y = self.y(value)
            self.parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            self.text(LEFT - 6, y + 4, f"{value:.3g}", "end")

    def y(self, value):
        share = (value - self.least) / (self.most - self.least)
        return HEIGHT - BOTTOM - min(max(share, 0), 1) * (HEIGHT - BOTTOM - TOP)

    def text(self, x, y, text, anchor="middle"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>')

    def bar(self, x, width, value, colour):
        top, zero = self.y(value), self.y(max(self.least, 0))
        y, height = min(top, zero), abs(zero - top)
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"><title>{value:.4g}</title></rect>')

    def mark(self, x, width, value):
        """The paper's value."""
        y = self.y(value)
        self.parts.append(f'<line x1="{x:.1f}" x2="{x + width:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="black" stroke-width="2"><title>paper: {value:.4g}</title></line>')

    def line(self, points, colour, longest):
        place = lambda x: LEFT + x / longest * (WIDTH - 10 - LEFT)
        text = " ".join(f"{place(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="1.5"/>')

    def legend(self, names, marks):
        x = LEFT
        for name, colour in zip(names, COLOURS):
            self.parts.append(f'<rect x="{x}" y="{HEIGHT - 22}" width="10" height="10" fill="{colour}"/>')
            self.text(x + 14, HEIGHT - 13, name, "start")
            x += 30 + 6 * len(name)
        if marks:
            self.parts.append(f'<line x1="{x}" x2="{x + 12}" y1="{HEIGHT - 17}" y2="{HEIGHT - 17}" stroke="black" stroke-width="2"/>')
            self.text(x + 16, HEIGHT - 13, "the paper", "start")

    def done(self):
        return "\n".join(self.parts + ["</svg>", ""])


def bars(title, unit, groups, names, least=0.0):
    """Groups of bars: (name, [(ours or None, the paper's or None)])."""
    values = [v for _, pairs in groups for pair in pairs for v in pair if v is not None]
    picture = Picture(title, unit, 1.08 * max(values, default=1), min([least, *values]))
    group = (WIDTH - 10 - LEFT) / max(len(groups), 1)
    for g, (name, pairs) in enumerate(groups):
        width = 0.84 * group / max(len(pairs), 1)
        for n, (ours, paper) in enumerate(pairs):
            x = LEFT + g * group + 0.08 * group + n * width
            if ours is not None:
                picture.bar(x, 0.92 * width, ours, COLOURS[n % len(COLOURS)])
            if paper is not None:
                picture.mark(x, 0.92 * width, paper)
        for line, part in enumerate(name.split(", ")):
            picture.text(LEFT + (g + 0.5) * group, HEIGHT - BOTTOM + 14 + 12 * line, part)
    picture.legend(names, any(p is not None for _, pairs in groups for _, p in pairs))
    return picture.done()


def labels(picture, longest, form):
    """Numbers below a plot of lines, from 0 to the longest."""
    for n in range(6):
        picture.text(LEFT + n / 5 * (WIDTH - 10 - LEFT), HEIGHT - BOTTOM + 16, form.format(longest * n / 5))
