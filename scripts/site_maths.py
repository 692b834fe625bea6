"""Hook of mkdocs: formulas become MathML when the site is built, so pages need no script."""

from __future__ import annotations

import html
import re
from typing import Any

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)


def on_page_content(content: str, **_: Any) -> str:
    """Called by mkdocs with the HTML of every page."""
    return FORMULA.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    from latex2mathml.converter import convert  # the extra l0arm[docs] brings it

    display = "block" if found[1] == "div" else "inline"
    return str(convert(html.unescape(found[2]).strip(), display=display))
