"""The runbooks as HTML: only what they use of Markdown. Everything else is text, which is escaped."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from markupsafe import Markup, escape

_INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*|\[([^\]]+)\]\(([\w.-]+\.md)\)")
_ITEM = re.compile(r"(\d+\.|-) ")
_COMMAND = Markup('<div class="command"><code>{}</code><button type="button" class="copy">Copy</button></div>')


def html_of(markdown: str) -> Markup:
    """Return headings, paragraphs, lists, tables, and code with a button that copies it."""
    return _html(markdown.split("\n"))


def _html(lines: Sequence[str]) -> Markup:
    parts = []
    for kind, blocks in groupby(_blocks(lines), key=lambda block: block[0]):
        html = Markup("\n").join(block for _, block in blocks)
        parts.append(Markup("<{0}>{1}</{0}>").format(kind, html) if kind else html)
    return Markup("\n").join(parts)


def _blocks(lines: Sequence[str]) -> Iterator[tuple[str, Markup]]:
    """Yield the blocks, each with the element in which it is together with others like it."""
    at = 0
    while at < len(lines):
        begin, at = at, at + 1
        first = lines[begin]
        if item := _ITEM.match(first):
            # An item goes on in the lines that are indented below it.
            margin = " " * len(item[0])
            while at < len(lines) and (not lines[at] or lines[at].startswith(margin)):
                at += 1
            inner = _html([first.removeprefix(item[0]), *(line.removeprefix(margin) for line in lines[begin + 1 : at])])
            yield "ul" if item[1] == "-" else "ol", Markup("<li>{}</li>").format(inner)
        elif first:
            while at < len(lines) and lines[at] and not _ITEM.match(lines[at]):
                at += 1
            yield "", _block(lines[begin:at])


def _block(lines: Sequence[str]) -> Markup:
    first = lines[0]
    if first.startswith("#"):
        marks, _, heading = first.partition(" ")
        return Markup("<h{0}>{1}</h{0}>").format(len(marks), heading)
    if first.startswith("    "):
        return _COMMAND.format("\n".join(line[4:] for line in lines))
    if first.startswith("|"):
        rows = ([_inline(cell) for cell in line.strip("| ").split(" | ")] for line in lines if line[1] != "-")
        cells = Markup("").join(Markup("<tr><td>") + Markup("<td>").join(row) for row in rows)
        return Markup('<div class="wide"><table>{}</table></div>').format(cells)
    return Markup("<p>{}</p>").format(_inline("\n".join(lines)))


def _inline(text: str) -> Markup:
    """Return a text with code, bold and emphasized words, and links to other runbooks."""
    html, begin = Markup(), 0
    for match in _INLINE.finditer(text):
        code, bold, emphasized, label, path = match.groups()
        html += escape(text[begin : match.start()])
        if label:
            html += Markup('<a href="/runbooks/{}">{}</a>').format(path, label)
        elif code:
            html += Markup("<code>{}</code>").format(code)
        else:
            html += Markup("<{0}>{1}</{0}>").format("b" if bold else "em", _inline(bold or emphasized))
        begin = match.end()
    return html + escape(text[begin:])
