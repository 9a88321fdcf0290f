"""A drawing, held against what every drawing promises."""

from xml.etree import ElementTree

from hubmerge.output.drawing import width_of

SVG = "{http://www.w3.org/2000/svg}"
ALLOWED = {SVG + tag for tag in ("svg", "title", "rect", "polyline", "polygon", "text")}


def parsed(svg: bytes) -> ElementTree.Element:
    """The drawing, whose every rectangle and upright text lies on its sheet."""
    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert root.attrib["viewBox"] == f"0 0 {root.attrib['width']} {root.attrib['height']}"
    for element in root.iter():
        assert element.tag in ALLOWED
        assert not any(key.startswith("on") or "href" in key or key in ("style", "class") for key in element.attrib)
    for rect in root.iter(SVG + "rect"):
        x, y, w, h = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        assert -0.01 <= x <= x + w <= width + 0.02
        assert -0.01 <= y <= y + h <= height + 0.02
    for text in root.iter(SVG + "text"):
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        assert 0 < y < height
        long = width_of(text.text or "", float(text.attrib["font-size"]))
        if (turn := text.attrib.get("transform")) is None:
            before = {"start": 0.0, "middle": 0.5, "end": 1.0}[text.attrib.get("text-anchor", "start")] * long
            assert x - before >= -1, text.text
            assert x - before + long <= width + 1, text.text
        elif turn.startswith("rotate(-30"):
            assert y + long / 2 <= height
    return root
