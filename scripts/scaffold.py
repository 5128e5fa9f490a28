"""Writes the skeleton of a rule or of a change: files that work as they are, to be filled in."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from diagnose.analyzers import META
from diagnose.changes import CHANGES

ROOT = Path(__file__).resolve().parents[1]

RULE = '''"""{Title}: one sentence that names the bottleneck.

What it looks for
    Kernels whose name holds `{words}`: at least 5 % of the busy time.

Why it costs
    What the device or the host does in this time, and what it could do instead.

What to do
    The change, in a sentence.

How sure
    What is measured, what is inferred, and where nothing is claimed.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding, top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables

META = RuleMeta(
    id="{id}",
    kind="kernel",
    order={order},
    changes=(),
)
MIN_SHARE = 0.05  # of the busy time: why this much, and where it was calibrated
_KERNELS = re.compile(r"{words}")


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time of these kernels."""
    tasks = np.flatnonzero(free & t.tasks_matching(_KERNELS))
    rule = KernelRule(META.id, "Kernels of {words} take time", MIN_SHARE, evidence=top_kernels(t, tasks))
    return kernel_finding(t, rule, tasks)
'''

RULE_TEST = '''"""{id}: its kernels take 5 % of the busy time. Times in µs."""

import pytest


def computing(recording, took, name="{words}_kernel"):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel(name, 0, took, launched=(-20, -15))
    r.kernel("gemm", took, 1000, launched=(-5, -2))
    return r


def test_what_it_costs(recording):
    finding = computing(recording, 100).find("{id}")
    assert (finding.lost_ns, finding.count) == (pytest.approx(100_000), 1)


@pytest.mark.parametrize(("took", "fires"), [(49, False), (51, True)])
def test_a_twentieth_of_the_busy_time(recording, took, fires):
    assert (computing(recording, took).find("{id}") is not None) == fires


def test_other_kernels_do_not_count(recording):
    assert computing(recording, 100, "add_kernel").find("{id}") is None
'''

FIXTURE = '''# expect: gpu={id} cpu=-
# fixed: gpu=none cpu=-
"""A residual MLP with one bottleneck planted.

Planted: what people write, and why it is slow.
Fixed: the same without it, and nothing else changed.
"""

from __future__ import annotations

import harness
import torch
from models import ResMLP
from torch.nn import functional


def main() -> None:
    options = harness.parse(__doc__)
    width, batch = options.pick(small=64, gpu=2048), options.pick(small=64, gpu=16384)
    model = ResMLP(width, num_blocks=options.pick(small=2, gpu=12)).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    x = torch.randn(8, batch, width, device=options.device)
    y = torch.randint(10, (8, batch), device=options.device)

    clock = harness.StepClock(options)
    for step in range(options.steps):
        loss = functional.cross_entropy(model(x[step % 8]), y[step % 8])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if not options.fixed:
            pass  # plant it here
        clock.tick()
    clock.report(loss)


if __name__ == "__main__":
    main()
'''

CHANGE = '''"""{Title}: one sentence in the imperative.

What it does
    What is different in the script, and in the steps.

What to watch
    What it needs, and where it does not help.
"""

from __future__ import annotations

from diagnose.changes.common.change import Advice, ByHand, Change, identical

CHANGE = Change(
    id="{id}",
    title="Use {words}",
    numerics=identical(),  # or rounding, reduced, other_training: the words and the promise that a trial checks
    advice=Advice(before="", after="pass  # code to paste", least=0.1),  # or a function of the finding
    patch=ByHand("no patch has been written for it"),  # or Patch(...) with a function of diagnose/changes/patches
    edit=ByHand("which lines it concerns only the script's author knows"),  # or SetArguments, AddStatement, EditLoop
    without_remedy="no module does it",  # or remedy="diagnose.kernels...."
)
'''

CHANGE_TEST = '''"""{id}: what is prescribed, and what it saves."""

import pytest

from diagnose.changes.common.prescribe import prescribe
from diagnose.model.diagnosis import Finding


def test_what_is_prescribed():
    p = next(p for p in prescribe(Finding("{rule}", "", 1e6), 1e7) if p.id == "{id}")
    assert (p.title, p.safety) == ("Use {words}", "same numbers")
    assert p.saves_ns == (pytest.approx(0.1e6), pytest.approx(1e6))
'''


def main() -> int:
    """Write the files, make the pages that follow from them, and name what was touched."""
    parser = argparse.ArgumentParser(prog="scripts/new_…", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("rule").add_argument("name")
    change = kinds.add_parser("change")
    change.add_argument("name")
    change.add_argument("--rule", required=True, help="the rule that prescribes it")
    options = parser.parse_args()
    try:
        written = new_rule(options.name) if options.kind == "rule" else new_change(options.name, options.rule)
    except ValueError as error:
        print(f"scripts: {error}", file=sys.stderr)
        return 2
    subprocess.run([sys.executable, str(ROOT / "scripts" / "rules.py")], check=True)
    pages = ["docs/rules.md"] if options.kind == "rule" else ["docs/changes.md", "docs/rules.md"]
    print("\n".join([*(str(path.relative_to(ROOT)) for path in written), *(f"{page} (made again)" for page in pages)]))
    return 0


def new_rule(name: str) -> list[Path]:
    """Write a rule of kernels, its test, its fixture and the row of that in the page of fixtures; return their paths.

    Raises:
        ValueError: the name is not of the form of an id, or taken.
    """
    check(name, META, "rule")
    order = max(meta.order for meta in META.values() if meta.kind == "kernel") + 10
    stem, values = name.replace("-", "_"), {"order": str(order)}
    return [
        write(ROOT / "analyzers" / f"{stem}.py", RULE, name, values),
        write(ROOT / "tests" / "analyzers" / f"test_{stem}.py", RULE_TEST, name, values),
        write(ROOT / "fixtures" / f"{stem}.py", FIXTURE, name, values),
        add_row(ROOT / "docs" / "fixtures.md", f"| {stem} | MLP | what is planted | {name} | - |"),
    ]


def new_change(name: str, rule: str) -> list[Path]:
    """Write a change made by hand, its test, and its id into the rule's META; return their paths.

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


def add_row(path: Path, row: str) -> Path:
    """Add a row at the end of the page's table of scripts."""
    lines = path.read_text(encoding="utf-8").split("\n")
    head = next(i for i, line in enumerate(lines) if line.startswith("| script |"))
    end = next(i for i in range(head, len(lines)) if not lines[i].startswith("|"))
    path.write_text("\n".join([*lines[:end], row, *lines[end:]]), encoding="utf-8")
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
