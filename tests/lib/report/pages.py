"""HTML pages as tests look at them."""

import re
from base64 import b64decode
from html.parser import HTMLParser
from xml.etree import ElementTree

EMPTY_ELEMENTS = {"meta", "img", "br"}


class Page(HTMLParser):
    """What tests look at on a page, which is self-contained and accessible: its elements, tables as lists of rows of
    cells, and ``written``, its text without what lies in it as data.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.named_tables: dict[str, list[list[str]]] = {}
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open
        self.written = self._check_self_contained()
        self._check_accessible()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in EMPTY_ELEMENTS:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
            self.named_tables[dict(attrs).get("id") or ""] = self.tables[-1]
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(" ".join(data.split()))
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data.strip()

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def prose(self) -> str:
        """The text without elements."""
        return " ".join(filter(None, self.words))

    def _check_self_contained(self) -> str:
        """Nothing is loaded from elsewhere, by the page or its drawings."""
        written = re.sub(r"data:image/[a-z+]+;base64,[A-Za-z0-9+/=]+", "", self.text)
        assert not re.search(r"https?:|//|@import|url\(|<script|<link", written)
        for tag, attributes in self.elements:
            for name in ("src", "href", "srcset", "data", "action"):
                value = attributes.get(name) or "#"
                assert value.startswith(("data:image/", "#")), (tag, name, value[:80])
        start = "data:image/svg+xml;base64,"
        for source in (str(each["src"]) for each in self.of("img")):
            if source.startswith(start):
                drawing = ElementTree.fromstring(b64decode(source.removeprefix(start)))
                values = [value for element in drawing.iter() for value in element.attrib.values()]
                assert not [each for each in values if "//" in each and not each.startswith("data:image/png;base64,")]
        return written

    def _check_accessible(self) -> None:
        """Pictures have words, what scrolls by keyboard has a name, and the menu leads to every section."""
        assert all(attributes["alt"] for attributes in self.of("img"))
        ids = {attributes["id"] for attributes in self.of("section") if "id" in attributes}
        assert {attributes["href"] for attributes in self.of("a")} == {f"#{name}" for name in ids}
        for each in self.of("div"):
            if "scroll" in (each.get("class") or "") and "tabindex" in each:
                assert each["aria-label"]
