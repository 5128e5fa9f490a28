"""``diagnose what-if``: read what was asked for, replay, answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING

from diagnose.cli.output import ResultRequest, answer_text, plan_text
from diagnose.reports.language import translated
from diagnose.text.plain_text import columns

if TYPE_CHECKING:
    from diagnose.pipeline.what_if import WhatIfResult


@dataclass(frozen=True, slots=True)
class WhatIfOptions(ResultRequest):
    """What ``diagnose what-if`` was asked for, as it was typed."""

    apply: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    loader_workers: int | None = None
    bucket_mb: float | None = None
    overlap: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    memory: str | None = None


def predict_and_answer(path: str, options: WhatIfOptions) -> None:
    """Replay the recording with the changes, print the prediction and write it.

    Raises:
        UsageError: an option cannot be read, or names what is not in the recording.
        InputError: the recording cannot be read or replayed.
        OutputError: the file cannot be written.
    """
    from diagnose.pipeline.what_if import WhatIfRequest, parse_scale, parse_size, run_what_if

    request = WhatIfRequest(
        apply=options.apply,
        without=options.rules,
        workers=options.loader_workers,
        bucket_mb=options.bucket_mb,
        overlap=options.overlap,
        scale=tuple(map(parse_scale, options.scales)),
        memory=parse_size(options.memory) if options.memory is not None else None,
    )
    files = plan_text(options, inputs=[path], has_page=True)
    result = run_what_if(path, request)
    answer_text(lambda: "\n".join(_lines(result)), result.to_json, options, files, page=lambda: _page(path, result))


def _page(path: str, result: WhatIfResult) -> str:
    from diagnose.reports.html import Basis, render_forecasts

    memory = tuple(result.memory.lines()) if result.memory is not None else ()
    basis = Basis(result.error, result.is_doubtful, result.assumptions, memory)
    return render_forecasts(path, result.forecasts, result.path, basis)


def _lines(result: WhatIfResult) -> Iterator[str]:
    """Yield the text in lines that fit standard output; what goes on in the next line is indented."""
    for english in result.text().split("\n"):
        text = english.lstrip()
        line = english[: len(english) - len(text)] + translated(text)
        for each in line.split("\n"):
            yield fill(each, columns(), subsequent_indent="    ", drop_whitespace=True) if each.strip() else each
