"""A figure's SVG as the address of an image, in a quarter of the bytes. Pure functions.

What nobody sees goes, ids and numbers get short, looks become classes of the image's sheet, and
neighbours that look alike one path, one group of words, or one line whose corners have markers."""

import re
from typing import Any

_PART = re.compile(r'(?ms)^( +)<g id="(?!.tick|matplotlib).*?^\1</g>\n')  # of an axis
_FONT = "font-family: 'DejaVu Sans', 'Verdana', sans-serif; "
_SHEET = f"<style>text{{{_FONT}white-space:pre}}marker{{overflow:visible}}"
_IN, _AT, _T = r"([^<]*(?:<(?!/?g\b)[^<]*)*)</g>", r" x='\S*' y='\S*'", r"[^>]*>[^<]*</text>"


def address(svg: str) -> str:
    """A data URL, fit for an attribute in double quotes: shorter by a third than base64."""
    return "data:image/svg+xml," + re.sub(r'["#%&\n]', lambda c: f"%{ord(c[0]):02X}", small(svg))


def small(svg: str) -> str:
    """The same picture, but for digits beyond a hundredth of a point; ticks' words come last."""
    looks, ids = dict[str, str](), dict[str, str]()
    steps: dict[str, Any] = {  # each until it changes nothing
        r'(?ms)^( +)<g id="matplotlib\.axis_\d+">\n.*?^\1</g>': lambda m: "".join(
            sorted((p[0] for p in _PART.finditer(m[0])), key=lambda p: ("<text" in p, "<use" in p))
        ),
        r'xmlns:xlink="\S*" |xlink:(?=h)| transform="rotate\(-?0 [^"]*"|<g\b[^>]*/>': "",
        r"(?s)<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>|(?<=>)\s+(?=<)": "",
        r'(\(#|f="#)(?!i\d)([\w.-]+)': lambda m: m[1] + ids.setdefault(m[2], f"i{len(ids)}"),
        r' id="([^"]*)"': lambda m: f" id='{ids[m[1]]}'" if m[1] in ids else "",
        r'<path d="M \S+ \S+\s*"[^>]*>|<defs><path d="[^"]*" style="[^"]*"/></defs>': "",
        rf"<g>([^<]*(?:(?:<g [^>]+>{_IN}|<(?!/?g\b))[^<]*)*)</g>": r"\1",
        r'clip-path="([^"]*)"(?= style|>)': r'style="clip-path:\1"',
        rf'( (?:[xywht]\w*|style)="[^"]*?)(?:(\.\d[1-9]?+)\d+|{_FONT}|(?<=[:;]) )': r"\1\2",
        r'(<path d="[^"]*)"((?: style="(?:(?!opac)[^"])*")+/>)<path d="([^"]*)"\2': r'\1\3"\2',
        r'style="([^"]*)"': lambda m: f"class='{looks.setdefault(m[1], f's{len(looks)}')}'",
        r"(class='[\w ]*)' class='": r"\1 ",
        "<style [^>]*>": lambda _: _SHEET + "".join(f".{s}{{{look}}}" for look, s in looks.items()),
        r'="([^"\']*)"': r"='\1'",
        rf"(<g [^>]*>){_IN}\1": r"\1\2",
        rf"<text( c\S+\d'){_T}(<text\1{_T})+": lambda m: f"<g{m[1]}>{m[0].replace(m[1], '')}</g>",
        rf"<use( \S+'#(\w+)'){_AT}( class='(\w+)'/>)(<use\1{_AT}\3){{2,}}": lambda m: (
            f"<marker id='{m[2]}{m[4]}'><use{m[1]}{m[3]}</marker><path d='M"
            + re.sub(r"<.*?x='(\S*)' y='(\S*)'.*?>", r"L\1 \2", m[0])[1:]
            + f"' style='fill:none;marker:url(#{m[2]}{m[4]})'/>"
        ),
        r"(?<= d=')M[^']*": _path,
    }
    for old, new in steps.items():
        while (shorter := re.sub(old, new, svg)) != svg:
            svg = shorter
    return svg


def _path(path: re.Match[str]) -> str:
    """Each piece from the end of the one before; a level or upright one by one number."""
    found, at, start = "", [0.0, 0.0], [0.0, 0.0]
    for letter, text in re.findall("([A-Za-z])([^A-Za-z]*)", path[0]):
        ends = [round(float(number), 2) for number in text.split()]
        by = " ".join(f"{round(end - at[i % 2], 2) + 0:g}" for i, end in enumerate(ends))
        at, start = ends[-2:] or start, ends if letter == "M" else start
        found += re.sub("^l0 ", "v", re.sub("^l(.*) 0$", r"h\1", letter.lower() + by))
    return re.sub(r" (?=-)|(?<!\d)0(?=\.)", "", found)
