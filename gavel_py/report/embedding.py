"""A chart's SVG file made a part of a page: in the colours of its theme, and told to those who do not see it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from gavel_py.report.charts import Chart
from gavel_py.report.tones import tone_names

__all__ = ["embedded"]

SVG, HREF = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
ET.register_namespace("", SVG[1:-1])
COLOUR, NUMBER, REFERENCE = re.compile(r"#[0-9a-f]{6}"), re.compile(r"-?\d+\.\d{3,}"), re.compile(r"url\(#(\w+)\)")
FONT = re.compile(r"font-family: [^;]*;?")
NUMERIC = ("d", "x", "y", "transform", "points")


def embedded(svg: bytes, chart: Chart) -> str:
    """Return an `<svg>` element to stand in a page among others: with title and description, and ids that no other chart has."""
    root = ET.fromstring(svg)  # noqa: S314  made by this package
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in {f"{SVG}metadata", f"{SVG}style"}:
                parent.remove(child)
    referred = set(_references(root))
    names = {colour: f"var(--{name})" for colour, name in tone_names().items()}
    for element in root.iter():
        _rewrite(element, f"{chart.name}-", referred, names)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"role": "img", "aria-labelledby": f"{chart.name}-title {chart.name}-desc"}
    for place, (tag, text) in enumerate((("title", chart.title), ("desc", chart.told))):
        told = ET.Element(f"{SVG}{tag}", {"id": f"{chart.name}-{tag}"})
        told.text = text
        root.insert(place, told)
    return ET.tostring(root, encoding="unicode")


def _references(root: ET.Element) -> Iterator[str]:
    """The ids that something refers to."""
    for element in root.iter():
        yield from (value[1:] for name, value in element.attrib.items() if name in {HREF, "href"} and value.startswith("#"))
        yield from REFERENCE.findall(element.get("clip-path", ""))


def _rewrite(element: ET.Element, prefix: str, referred: set[str], names: dict[str, str]) -> None:
    attributes = element.attrib
    if attributes.get("id") in referred:
        attributes["id"] = prefix + attributes["id"]
    else:
        attributes.pop("id", None)
    link = attributes.pop(HREF, None)
    if link is not None:
        attributes["href"] = f"#{prefix}{link[1:]}" if link.startswith("#") else link
    if "clip-path" in attributes:
        attributes["clip-path"] = REFERENCE.sub(rf"url(#{prefix}\1)", attributes["clip-path"])
    if "style" in attributes:
        style = FONT.sub("", attributes["style"])
        attributes["style"] = COLOUR.sub(lambda found: names.get(found[0], found[0]), style).strip()
    for name in NUMERIC:
        if name in attributes:
            attributes[name] = " ".join(NUMBER.sub(_rounded, attributes[name]).split())
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    if element.text is not None and not element.text.strip():
        element.text = None
    element.tail = None


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")
