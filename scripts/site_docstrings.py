"""Griffe extension for the API pages: examples become code, and every name has one page.

A name that ``l0arm`` offers, or that is a contract, has its entry on the page of ``l0arm`` or of
``l0arm.contracts``. The pages of other packages that export it leave it out.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Alias, AliasResolutionError, Extension, Module, Object

DOCTEST = re.compile(r"((?:^|(?<=\n))( *)>>> .*(?:\n\2\S.*)*)")
EXAMPLE = re.compile(r"^( *)Example:$", re.M)
ROLE = re.compile(r":(?:class|func|meth|mod):(?=`)")


class SiteDocstrings(Extension):
    """Registered in mkdocs.yml."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for every object that griffe has read."""
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Called when the whole package is read."""
        public, contracts = pkg.members["_public"], pkg.members["contracts"]
        elsewhere = {target(public.members[name]) for name in public.exports or []}
        elsewhere |= {member.path for member in contracts.members.values()}
        for module in modules(pkg):
            for member in module.members.values():
                if module is not contracts and target(member) in elsewhere:
                    member.public = False


def shown(docstring: str) -> str:
    """The docstring as Markdown: doctests in fences, ``Example:`` as griffe names that section."""
    named, found = EXAMPLE.subn(r"\1Examples:", ROLE.sub("", docstring))
    return named if found else DOCTEST.sub(r"\2```pycon\n\1\n\2```", named)


def modules(package: Module) -> list[Module]:
    """All modules inside a package, at any depth."""
    inner = [member for member in package.members.values() if isinstance(member, Module)]
    return inner + [deeper for module in inner for deeper in modules(module)]


def target(member: Object | Alias) -> str:
    """The path of what a name stands for."""
    try:
        return str(member.final_target.path if isinstance(member, Alias) else member.path)
    except AliasResolutionError:
        return str(member.path)
