"""Reading the HTML of a view the way a browser would: which elements, which attributes, which text."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser


@dataclass
class Page(HTMLParser):
    """What stands in a piece of HTML."""

    html: str
    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    open_tags: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.html)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag in ("td", "th", "tr"):
            self._end("td", "th", *(["tr"] if tag == "tr" else []))
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in ("img", "br"):
            self.open_tags.append(tag)

    def _end(self, *tags):
        """End those whose end HTML leaves out."""
        while self.open_tags and self.open_tags[-1] in tags:
            self.open_tags.pop()

    def handle_endtag(self, tag):
        self._end("td", "th", "tr")
        if not self.open_tags or self.open_tags.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing that is open")

    def handle_data(self, data):
        self.texts.append(data)

    def handle_comment(self, data):
        self.problems.append(f"comment {data[:40]!r}")

    def handle_decl(self, decl):
        self.problems.append(f"declaration {decl[:40]!r}")

    def handle_pi(self, data):
        self.problems.append(f"instruction {data[:40]!r}")

    @property
    def shape(self) -> set[tuple[str, frozenset[str]]]:
        """Which elements with which attributes there are at all."""
        return {(tag, frozenset(attributes)) for tag, attributes in self.elements}

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def styles(self) -> list[tuple[str, dict[str, str]]]:
        """Element name and style properties, for every element that has any: as a sanitizer leaves them, which knows no
        themes."""
        out = []
        for tag, attributes in self.elements:
            pairs = [
                pair.partition(":")
                for pair in attributes.get("style", "").split(";")
                if pair and "var(" not in pair and not pair.startswith("--")
            ]
            out.append((tag, {name.strip(): value.strip() for name, _, value in pairs}))
        return out
