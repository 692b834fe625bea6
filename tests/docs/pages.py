"""Parse the pages of the documentation: fences, Python blocks, command lines, links."""

import ast
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
}

FENCE = re.compile(r"^( *)```(.*)\n((?:.*\n)*?)\1```$", re.M)
CORE = {"l0arm", "torch", "numpy", *sys.stdlib_module_names}
EXTRA_OF = {  # the extra that brings a package
    "accelerate": "integrations",
    "lightning": "integrations",
    "onnxruntime": "export",
    "ray": "ray",
    "safetensors": "export",
    "transformers": "integrations",
}
INDIRECT = {  # packages that these parts of the library need
    "l0arm.export": {"onnxruntime"},
    "l0arm.integrations.lightning": {"lightning"},
    "l0arm.integrations.transformers": {"transformers", "accelerate"},
}


@dataclass(frozen=True)
class Fence:
    """A code block between two lines of three backticks."""

    line: int
    language: str
    text: str


def fences(page: str) -> list[Fence]:
    return [
        Fence(page.count("\n", 0, found.start()) + 1, found[2].strip(), found[3])
        for found in FENCE.finditer(page)
    ]


def python_blocks(page: str) -> list[Fence]:
    return [fence for fence in fences(page) if fence.language == "python"]


def modules(code: str) -> set[str]:
    """All modules that a block imports, by their full names."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def packages(code: str) -> set[str]:
    """The optional packages that a block needs, directly or through the library."""
    named = modules(code)
    indirect = set().union(*(INDIRECT.get(name, set()) for name in named))
    return {name.split(".")[0] for name in named} - CORE | indirect


def command_lines(page: str) -> list[list[str]]:
    """The arguments of every ``l0arm`` command line, in blocks and in sentences."""
    fenced = [
        line
        for fence in fences(page)
        if fence.language == "bash"
        for line in fence.text.splitlines()
    ]
    prose = FENCE.sub("", page)
    indented = re.findall(r"^ {4}(.*)$", prose, re.M)
    inline = re.findall(r"`([^`\n]+)`", prose)
    found = (_arguments(line) for line in [*fenced, *indented, *inline])
    return [arguments for arguments in found if arguments]


def _arguments(line: str) -> list[str]:
    """The words after ``l0arm`` or ``python -m l0arm`` if the line is a command."""
    start = re.match(
        r"(?:\$ )?(?:(?:\S*/)?l0arm|(?:torchrun|python)\b.* -m l0arm) (?=[a-z-])", line
    )
    return shlex.split(line[start.end() :], comments=True) if start else []


def links(page: str) -> list[str]:
    """Links to files, without their anchors."""
    return re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", FENCE.sub("", page))


def documented_modules() -> list[str]:
    """The modules that have a page in the API reference, by the titles of the pages."""
    texts = [page for name, page in PAGES.items() if name.startswith("docs/api/")]
    return [found[1] for text in texts if (found := re.match(r"# (l0arm[\w.]*)\n", text))]
