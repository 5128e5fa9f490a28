"""Hooks of mkdocs: adds the pages that docs/ does not hold, and lets links lead to them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from rules import GROUPS

from documentation.links import HOMES, ROOT, Site, rewrite
from documentation.object_pages import change_pages, changes_index, rules_index, rules_pages

LANGUAGES = {".py": "python", ".json": "json", ".sh": "sh", ".toml": "toml", ".yml": "yaml", ".md": "markdown"}
INDEXES = {"rules.md": rules_index, "changes.md": changes_index}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Enter the pages of rules and changes into the navigation."""
    for section in config.nav or ():
        if "Rules" in section:
            section["Rules"] = ["rules.md", *_rule_sections()]
        elif "Changes" in section:
            section["Changes"] = ["changes.md", *(f"changes/{name}.md" for name in sorted(change_pages()))]
    return config


def _rule_sections() -> Iterator[dict[str, list[str]]]:
    for title, _, rules in GROUPS:
        yield {title: [f"rules/{rule.META.id}.md" for rule in rules]}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are made here; those of docs/ have their links rewritten."""
    rules, changes = rules_pages(), change_pages()
    site = Site(frozenset(rules), frozenset(changes))
    made = {f"rules/{name}.md": page for name, page in rules.items()}
    made |= {f"changes/{name}.md": page for name, page in changes.items()}
    made |= {name: rewrite(make(), f"docs/{name}", site) for name, make in INDEXES.items()}
    for file, name in HOMES.items():
        if files.get_file_from_path(name) is None:  # docs/ may have its own page of that name
            made[name] = rewrite((ROOT / file).read_text(encoding="utf-8"), file, site)
    for file in list(files.documentation_pages()):
        if file.src_uri not in made:
            made[file.src_uri] = rewrite(file.content_string, f"docs/{file.src_uri}", site)
    for target in sorted(site.sources):
        made |= _source_pages(target)
    for name, page in made.items():
        if (old := files.get_file_from_path(name)) is not None:
            files.remove(old)
        inclusion = InclusionLevel.NOT_IN_NAV if name.startswith("source/") else InclusionLevel.INCLUDED
        files.append(File.generated(config, name, content=_for_python_markdown(page), inclusion=inclusion))
    return files


def _source_pages(target: str) -> dict[str, str]:
    """Return the pages of a file, or of a folder and all files below it that git knows."""
    if (ROOT / target).is_file():
        return {f"source/{target}.md": _source_page(target)}
    listed = subprocess.run(["git", "ls-files", "-z", target], cwd=ROOT, check=True, capture_output=True, text=True)
    names = [name for name in listed.stdout.split("\0") if name and Path(name).suffix in LANGUAGES]
    links = "\n".join(f"- [{name.removeprefix(target + '/')}]({_up(target)}source/{name}.md)" for name in names)
    return {f"source/{target}.md": f"# {target}\n\n{links}\n"} | {f"source/{n}.md": _source_page(n) for n in names}


def _up(target: str) -> str:
    return "../" * (target.count("/") + 1)


def _source_page(name: str) -> str:
    text = (ROOT / name).read_text(encoding="utf-8")
    language = LANGUAGES.get(Path(name).suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n# {name}\n\n````{language}\n{text}\n````\n"


def _for_python_markdown(page: str) -> str:
    """Indent what is nested in a list by four columns, which is what Python-Markdown takes for nested."""
    lines, in_list, fenced = [], False, False
    for line in page.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        if re.match(r"([-*]|\d+\.) ", line):
            in_list = True
        elif line and not line.startswith(" "):
            in_list = False
        nested = in_list and not fenced and re.match(r" {2,3}[-*] ", line)
        lines.append(f"    {line.lstrip()}" if nested else line)
    return "\n".join(lines)
