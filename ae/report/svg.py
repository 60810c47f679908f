"""A figure's SVG as the address of an image, in a third of the bytes. Pure functions."""

from __future__ import annotations

import re
from urllib.parse import quote

_LEFT_OUT = re.compile(
    r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>"
    r'| transform="rotate\(-?0 [^"]*"|(?<=>)\s+(?=<)',
    re.DOTALL,
)
_SHORTENED = re.compile(r' (d|x|y|width|height|transform|style)="([^"]*)"')
_REFERRED = re.compile(r"#([\w.-]+)(?=[\")])")
_GROUP = r"<g/>|<g></g>|<g>(<[^<>]*/>|<(\w+)\b[^<>]*>[^<>]*</\2>)</g>"
_SAFE = "".join(chr(code) for code in range(32, 127) if chr(code) not in '"#%&')


def address(svg: str) -> str:
    """A data URL, fit for an attribute in double quotes: shorter by a third than base64."""
    return "data:image/svg+xml," + quote(small(svg), safe=_SAFE)


def small(svg: str) -> str:
    """The same picture: styles become classes; comments, ids that nothing refers to, and digits
    beyond a hundredth of a point and last zeros go."""
    styles: dict[str, str] = {}

    def shorten(match: re.Match[str]) -> str:
        name, value = match[1], re.sub(r"(\.\d[1-9]?+)\d+", r"\1", match[2])
        if name == "style":
            return f" class='{styles.setdefault(value, f's{len(styles)}')}'"
        if name == "d":
            value = _straight(re.sub(r"\s*([A-Za-z])\s*", r"\1", value.strip()))
        return f" {name}='{value}'"

    svg = _SHORTENED.sub(shorten, _LEFT_OUT.sub("", svg))
    rules = [f".{name}{{{rule}}}" for rule, name in styles.items()]
    solid = "|".join(name for rule, name in styles.items() if "opacity" not in rule)
    svg = svg.replace("</style>", "".join(["text{white-space:pre}", *rules, "</style>"]), 1)
    ids = set(re.findall(r' id="([^"]*)"', svg))
    used = [name for name in dict.fromkeys(_REFERRED.findall(svg)) if name in ids]  # no colours
    names = {name: f"i{at}" for at, name in enumerate(used)}
    svg = re.sub(r' id="([^"]*)"', lambda m: f" id='{names[m[1]]}'" if m[1] in names else "", svg)
    svg = _REFERRED.sub(lambda match: f"#{names.get(match[1], match[1])}", svg)
    svg = re.sub(r'="([^"\']*)"', r"='\1'", svg)
    # Groups of one thing go, and shapes of one look, one after the other, are one.
    shape = rf"(<path d='[^']*)'((?: clip-path='[^']*')? class='(?:{solid})'/>)<path d='([^']*)'\2"
    for pattern, by in ((_GROUP, r"\1"), (shape, r"\1\3'\2")):
        while (shorter := re.sub(pattern, by, svg)) != svg:
            svg = shorter
    return svg


def _straight(path: str) -> str:
    """Level and upright lines by the one coordinate that they change."""
    here, found = ["", ""], []
    for letter, numbers in re.findall(r"([A-Za-z])([^A-Za-z]*)", path):
        there = numbers.split()[-2:] or ["", ""]
        across, down = (letter == "L" and there[at] == here[at] for at in (1, 0))
        found.append(f"V{there[1]}" if down else f"H{there[0]}" if across else letter + numbers)
        here = there
    return "".join(found)
