"""Where the links of a page lead on the site: pages, pages of one rule or change, and sources outside docs/."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

__all__ = ["HOMES", "Site", "rewrite"]

ROOT = Path(__file__).resolve().parents[2]
HOMES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
FOLDERS = {"analyzers": "rules.md", "diagnose/changes": "changes.md", "kernels": "remedies.md"}
LINK = re.compile(r"(?<=\]\()(?!https?://|mailto:)([^)#\s]*)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^\s*(```|~~~)")


class Site:
    """What lies where: pages by the file in the repository, and sources that pages link to, as they are met."""

    def __init__(self, rules: frozenset[str], changes: frozenset[str]) -> None:
        self.objects = {"rules.md": rules, "changes.md": changes}
        self.sources: set[str] = set()  # files and folders of the repository that have a page because of a link

    def uri(self, target: str, anchor: str) -> tuple[str, str]:
        """Return the place on the site of a path in the repository, and the anchor there.

        Raises:
            FileNotFoundError: there is no such file.
        """
        if target in HOMES:
            return HOMES[target], anchor
        if target in FOLDERS:
            return FOLDERS[target], anchor
        if target.startswith("docs/"):
            page = target.removeprefix("docs/")
            if anchor[1:] in self.objects.get(page, ()):
                return f"{page.removesuffix('.md')}/{anchor[1:]}.md", ""
            return page, anchor
        if not (ROOT / target).exists():
            raise FileNotFoundError(target)
        self.sources.add(target)
        return f"source/{target}.md", ""


def rewrite(markdown: str, file: str, site: Site) -> str:
    """Return a page with links that lead where the site has things; ``file`` is the page's path in the repository."""
    base = PurePosixPath(file).parent
    home = HOMES.get(file, file.removeprefix("docs/"))

    def moved(match: re.Match[str]) -> str:
        target, anchor = site.uri(_joined(base, match[1]) if match[1] else file, match[2] or "")
        if target == home:
            return anchor
        return _relative(target, home) + anchor

    return _outside_code(markdown, lambda line: LINK.sub(moved, line))


def _joined(base: PurePosixPath, target: str) -> str:
    """Return a relative link as a path in the repository."""
    parts: list[str] = []
    for part in (*base.parts, *PurePosixPath(target).parts):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _relative(target: str, page: str) -> str:
    return "../" * page.count("/") + target


def _outside_code(markdown: str, change: Callable[[str], str]) -> str:
    lines, fenced = [], False
    for line in markdown.split("\n"):
        fenced ^= bool(FENCE.match(line))
        lines.append(line if fenced or line.startswith("    ") else change(line))
    return "\n".join(lines)
