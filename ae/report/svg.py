"""A figure's SVG as the address of an image, in a third of the bytes. Pure functions."""

from __future__ import annotations

import re

_LEFT_OUT = re.compile(
    r"(?s)<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>"
    r'| transform="rotate\(-?0 [^"]*"|(?<=>)\s+(?=<)|<path d="M \S+ \S+\s*"[^>]*>'
)
_SHORTENED = re.compile(r' (d|x|y|width|height|transform|(?:clip-path="([^"]*)" )?style)="([^"]*)"')
_REFERRED = re.compile(r"#([\w.-]+)(?=[\")])")
_IN, _AT = r"([^<]*(?:<(?!/?g\b)[^<]*)*)</g>", r" x='\S*' y='\S*'"
_GROUPS = ((f"<g/>|<g>{_IN}", r"\1"), (rf"(<g clip-path='[^']*'>){_IN}\1", r"\1\2"))
_SHAPES = r"(<path d='[^']*)'( class='[s\d ]+'/>)<path d='([^']*)'\2"
_RUN = re.compile(rf"<use( href='\S*'){_AT}( class='\w*'/>)(?:<use\1{_AT}\2){{2,}}")


def address(svg: str) -> str:
    """A data URL, fit for an attribute in double quotes: shorter by a third than base64."""
    return "data:image/svg+xml," + re.sub(r'["#%&\n]', lambda c: f"%{ord(c[0]):02X}", small(svg))


def small(svg: str) -> str:
    """The same picture, without digits beyond a hundredth of a point. Class s1 is solid, o1 not."""
    looks: dict[str, str] = {}

    def shorten(match: re.Match[str]) -> str:
        name, clip, value = match[1], match[2], re.sub(r"(\.\d[1-9]?+)\d+", r"\1", match[3])
        if name.endswith("style"):
            kind, own = "so"["opacity" in value], [value, *[f"clip-path:{clip}"] * bool(clip)]
            return f" class='{' '.join(looks.setdefault(s, f'{kind}{len(looks)}') for s in own)}'"
        return f" {name}='{_straight(value) if name == 'd' else value}'"

    svg = _SHORTENED.sub(shorten, _LEFT_OUT.sub("", svg)).replace(" xlink:href=", " href=")
    rules = "".join(f".{name}{{{rule}}}" for rule, name in looks.items())
    svg = svg.replace("</", f"text{{white-space:pre}}marker{{overflow:visible}}{rules}</", 1)
    used, ids = {*_REFERRED.findall(svg)}, re.findall(r' id="([^"]*)"', svg)  # some are colours
    names = {name: f"i{at}" for at, name in enumerate(filter(used.__contains__, ids))}
    svg = re.sub(r' id="([^"]*)"', lambda m: f" id='{names[m[1]]}'" if m[1] in names else "", svg)
    svg = _REFERRED.sub(lambda match: f"#{names.get(match[1], match[1])}", svg)
    for old, new in ((r'="([^"\']*)"', r"='\1'"), *_GROUPS, (_SHAPES, r"\1\3'\2")):
        while (shorter := re.sub(old, new, svg)) != svg:
            svg = shorter
    return _RUN.sub(_marked, svg)


def _marked(run: re.Match[str]) -> str:
    """Of one thing in many places: a line that has it as the marker of its corners."""
    name, places = f"m{run.start()}", " ".join(re.findall(r" [xy]='(\S*)'", run[0]))
    line = f"<path d='M{places}' style='fill:none;marker:url(#{name})'/>"
    return f"<marker id='{name}' markerUnits='userSpaceOnUse'><use{run[1]}{run[2]}</marker>{line}"


def _straight(path: str) -> str:
    """Level and upright lines by the one coordinate that they change."""
    here, found = ["", ""], []
    for letter, numbers in re.findall(r"([A-Za-z])\s*([^A-Za-z]*[^A-Za-z\s])?", path):
        there = numbers.split()[-2:] or ["", ""]
        across, down = (letter == "L" and there[at] == here[at] for at in (1, 0))
        found.append(f"V{there[1]}" if down else f"H{there[0]}" if across else letter + numbers)
        here = there
    return "".join(found)
