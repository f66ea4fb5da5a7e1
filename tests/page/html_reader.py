"""A parser for pages: their text, their links, and whether their tags match."""

from html.parser import HTMLParser

_EMPTY = {"meta", "link", "br", "input", "img"}
_MAY_STAY_OPEN = {"td", "th", "tr", "li", "p", "thead", "tbody"}


class Read(HTMLParser):
    """A page, read."""

    def __init__(self, page: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.words: list[str] = []
        self.tags: list[str] = []
        self.headings: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self._open: list[str] = []
        self.feed(page.decode())
        self.close()
        assert not self._open, self._open

    @property
    def text(self) -> str:
        """All its words, with one space between them."""
        return " ".join(" ".join(self.words).split())

    def all_of(self, name: str) -> list[str]:
        """The values of all attributes of that name."""
        return [value for _, attribute, value in self.attributes if attribute == name]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in _EMPTY:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element is all there is of it."""
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        """An element ends, and with it those of which HTML need not say so."""
        while self._open[-1] != tag:
            assert self._open.pop() in _MAY_STAY_OPEN, (tag, self._open)
        self._open.pop()

    def handle_data(self, data: str) -> None:
        """Text."""
        self.words.append(data)
        if self._open and self._open[-1] == "h2":
            self.headings.append(data)


def section(page: bytes, name: str) -> str:
    """Return the text of the section with this id."""
    html = page.decode()
    begin = html.index(f'<section id="{name}"')
    return Read(html[begin : html.index("</section>", begin) + len("</section>")].encode()).text
