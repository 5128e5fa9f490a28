"""Writes the skeleton of a rule or of a change: files that work as they are, to be filled in."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from skeletons import CHANGE, CHANGE_TEST, FIXTURE, IDLE_RULE, IDLE_RULE_TEST, RULE, RULE_TEST

from diagnose.analyzers import META
from diagnose.changes import CHANGES

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Write the files, make the pages that follow from them, and name what was touched."""
    parser = argparse.ArgumentParser(prog="scripts/new_…", description=__doc__)
    kinds = parser.add_subparsers(dest="made", required=True)
    rule = kinds.add_parser("rule")
    rule.add_argument("name")
    rule.add_argument(
        "--kind", choices=("kernel", "idle"), default="kernel", help="what it looks at: kernels, idle time"
    )
    change = kinds.add_parser("change")
    change.add_argument("name")
    change.add_argument("--rule", required=True, help="the rule that prescribes it")
    options = parser.parse_args()
    try:
        written = (
            new_rule(options.name, options.kind) if options.made == "rule" else new_change(options.name, options.rule)
        )
    except ValueError as error:
        print(f"scripts: {error}", file=sys.stderr)
        return 2
    subprocess.run([sys.executable, str(ROOT / "scripts" / "rules.py")], check=True)
    pages = ["docs/rules.md"] if options.made == "rule" else ["docs/changes.md", "docs/rules.md"]
    print("\n".join([*(str(path.relative_to(ROOT)) for path in written), *(f"{page} (made again)" for page in pages)]))
    return 0


def new_rule(name: str, kind: str = "kernel") -> list[Path]:
    """Write a rule of kernels or of idle time, its test and its fixture.

    Returns their paths.

    Raises:
        ValueError: the name is not of the form of an id, or taken.
    """
    check(name, META, "rule")
    rule, test = (IDLE_RULE, IDLE_RULE_TEST) if kind == "idle" else (RULE, RULE_TEST)
    stem, values = name.replace("-", "_"), {"order": str(free_order(kind))}
    return [
        write(ROOT / "analyzers" / f"{stem}.py", rule, name, values),
        write(ROOT / "tests" / "analyzers" / f"test_{stem}.py", test, name, values),
        write(ROOT / "fixtures" / f"{stem}.py", FIXTURE, name, values),
    ]


def free_order(kind: str) -> int:
    """Return an order that no rule has: the last of kernel rules; of idle rules one before those of any host time."""
    if kind == "kernel":
        return max(meta.order for meta in META.values() if meta.kind == "kernel") + 10
    taken = {meta.order for meta in META.values() if meta.kind in ("trust", "idle")}
    first = min(meta.order for meta in META.values() if meta.kind == "idle" and meta.inflated)
    return max(set(range(first)) - taken)


def new_change(name: str, rule: str) -> list[Path]:
    """Write a change, its test, and its id into the rule's META; return their paths.

    Raises:
        ValueError: the name is not of the form of an id, or taken; or there is no such rule.
    """
    check(name, CHANGES, "change")
    if rule not in META:
        raise ValueError(f"there is no rule {rule}; there are {', '.join(sorted(META))}.")
    stem = name.replace("-", "_")
    return [
        write(ROOT / "diagnose" / "changes" / f"{stem}.py", CHANGE, name, {"rule": rule}),
        write(ROOT / "tests" / "changes" / f"test_{stem}.py", CHANGE_TEST, name, {"rule": rule}),
        enter(ROOT / "analyzers" / f"{rule.replace('-', '_')}.py", name),
    ]


def check(name: str, taken: object, kind: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ValueError(f"{name} is no id: small letters and digits, words joined by hyphens, such as slow-{kind}.")
    if name in taken:  # type: ignore[operator]  # both are mappings by id
        raise ValueError(f"there is a {kind} {name} already.")


def write(path: Path, text: str, name: str, values: dict[str, str]) -> Path:
    """Write a template with {id}, {words} and what else ``values`` names; never over a file."""
    words = name.replace("-", " ")
    for key, value in {"id": name, "words": words, "Title": words.capitalize(), **values}.items():
        text = text.replace(f"{{{key}}}", value)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    return path


def enter(path: Path, name: str) -> Path:
    """Add a change's id to the META of a rule's file."""
    text = path.read_text(encoding="utf-8")
    found = re.search(r"^    changes=\((.*?)\),\n", text, re.MULTILINE | re.DOTALL)
    if found is None:
        text = re.sub(r"^(META = RuleMeta\(\n(?:    .*\n)*?)\)", rf'\1    changes=("{name}",),\n)', text, flags=re.M)
    else:
        ids = [*re.findall(r'"([^"]+)"', found[1]), name]
        listed = ", ".join(f'"{one}"' for one in ids) + ("," if len(ids) == 1 else "")
        text = text.replace(found[0], f"    changes=({listed}),\n", 1)
    path.write_text(text, encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
