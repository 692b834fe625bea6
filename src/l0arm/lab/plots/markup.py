"""HTML from values: text is escaped, only what was built here is written as it is."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Markup:
    """A finished piece of HTML."""

    text: str


VOID = frozenset({"img", "meta"})  # elements without content


def tag(name: str, /, *children: Markup | str, **attributes: str) -> Markup:
    """An element; ``class_`` gives the attribute class.

    >>> tag("p", "1 < 2", class_="fact").text
    '<p class="fact">1 &lt; 2</p>'
    """
    pairs = (
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
    )
    opening = f"<{name}{''.join(pairs)}>"
    return Markup(opening if name in VOID else f"{opening}{joined(*children).text}</{name}>")


def joined(*children: Markup | str) -> Markup:
    """Pieces one after the other."""
    return Markup("".join(c.text if isinstance(c, Markup) else escape(c) for c in children))
