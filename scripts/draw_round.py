"""Draws the picture of a round that the README and the first page show, for light and for dark pages."""

from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
WIDTH, HEIGHT = 760, 452
COMMIT = (0.55, -0.30, 0.75, 0.15, -0.60, 0.35, -0.20, 0.50)
VOTES = {
    "ann": (0.70, -0.15, 0.55, 0.35, -0.50, 0.20, -0.40, 0.65),
    "bob": (0.40, -0.50, 0.90, -0.10, -0.75, 0.50, 0.10, 0.30),
    "carol": (0.60, -0.25, 0.80, 0.25, -0.45, 0.40, -0.30, 0.55),
    "mallory": (-1.0, 0.80, -1.0, -0.60, 1.0, -0.85, 0.70, -1.0),
}
LIAR = "mallory"
NAMES = ("ink", "soft", "line", "box", "us", "lie")
SCHEMES = {
    "light": dict(zip(NAMES, ("#1c2430", "#5b6675", "#c3cad4", "#f3f6fa", "#0072b2", "#c44900"), strict=True)),
    "dark": dict(zip(NAMES, ("#e8ecf2", "#a3aebd", "#4a5568", "#232b38", "#5ab4ec", "#ff8b3d"), strict=True)),
}


def picture(colours: dict[str, str]) -> str:
    """Return the picture as SVG."""
    parts = [
        _heading(24, "1  Each client measures", "how its own loss changes along", "shared pseudorandom directions"),
        _heading(330, "2  It votes", "one number for each", "direction, or a lie"),
        _heading(556, "3  The rule decides", "the federator holds", "no model and no data"),
    ]
    for place, (name, votes) in enumerate(VOTES.items()):
        parts.append(_client(name, votes, 122 + 62 * place, colours))
    parts += [_federator(colours), _apply()]
    style = (
        "text{{font:15px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:{ink}}}"
        ".h{{font-weight:600;font-size:17px}}.s{{fill:{soft}}}.l{{fill:{lie};font-weight:600}}.m{{text-anchor:middle}}"
        ".b{{fill:{box};stroke:{line}}}.a{{stroke:{line};stroke-width:2;fill:none;marker-end:url(#tip)}}"
        ".f{{font-family:ui-monospace,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:16px}}"
    ).format(**colours)
    tip = f'<path d="M0 0 8 4 0 8z" fill="{colours["line"]}"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        "<title>A round: clients send a few numbers, one of them lies, a robust rule decides, everybody applies the "
        f"same step</title>\n<style>{style}</style>\n"
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="6" refY="4" orient="auto" '
        f'markerUnits="userSpaceOnUse">{tip}</marker></defs>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _heading(x: int, title: str, *lines: str) -> str:
    below = "".join(_text(x, 52 + 20 * row, line, "s") for row, line in enumerate(lines))
    return _text(x, 28, title, "h") + below


def _client(name: str, votes: tuple[float, ...], y: int, colours: dict[str, str]) -> str:
    lies = name == LIAR
    box = f'<rect class="b" x="24" y="{y - 22}" width="200" height="46" rx="8"/>'
    says = _text(80, y + 6, name, "l" if lies else "")
    says += _text(157, y + 6, "lies" if lies else "its data", "l" if lies else "s")
    bars = _bars(votes, 332, y, colours["lie" if lies else "us"])
    arrows = f'<path class="a" d="M234 {y}H318"/><path class="a" d="M488 {y}H538"/>'
    return box + _disc(52, y, colours) + says + bars + arrows


def _disc(x: int, y: int, colours: dict[str, str]) -> str:
    """Return a small drum, as data are drawn."""
    side = f'<path d="M{x - 13} {y - 7}v15a13 5 0 0 0 26 0v-15" fill="none"/>'
    return (
        f'<g stroke="{colours["soft"]}" stroke-width="1.6" fill="none">'
        f'<ellipse cx="{x}" cy="{y - 7}" rx="13" ry="5"/>{side}<path d="M{x - 13} {y}a13 5 0 0 0 26 0"/></g>'
    )


def _bars(values: tuple[float, ...], x: int, y: int, colour: str) -> str:
    """Return numbers as bars up and down."""
    bars = "".join(
        f'<rect x="{x + 18 * place}" y="{y + 1 - max(size, 0):g}" width="11" height="{abs(size):g}" rx="2"/>'
        for place, size in enumerate(24 * value for value in values)
    )
    return f'<g fill="{colour}">{bars}</g>'


def _federator(colours: dict[str, str]) -> str:
    return (
        '<rect class="b" x="548" y="100" width="190" height="232" rx="8"/>'
        + _text(643, 130, "federator", "h m")
        + _text(643, 158, "rule nnm+cwtm", "f m")
        + _bars(COMMIT, 574, 210, colours["us"])
        + _text(643, 266, "the commit:", "s m")
        + _text(643, 288, "as many numbers,", "s m")
        + _text(643, 310, "written to a ledger", "s m")
    )


def _apply() -> str:
    return (
        '<path class="a" d="M643 332V366"/><rect class="b" x="24" y="370" width="714" height="66" rx="8"/>'
        + _text(44, 398, "4  Everybody applies it: the same model, bit for bit", "h")
        + _text(44, 422, "w ← w \u2212 η (c₁z₁ + … + c₆₄z₆₄)", "f")
        + _text(362, 422, "z from the shared seed, never sent", "s")
    )


def _text(x: int, y: int, text: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{text}</text>' if text else ""


def main() -> None:
    """Write both pictures."""
    for scheme, colours in SCHEMES.items():
        (DOCS / f"round-{scheme}.svg").write_text(picture(colours), encoding="utf-8")


if __name__ == "__main__":
    main()
