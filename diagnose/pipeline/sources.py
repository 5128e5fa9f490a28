"""The last stage of an answer: the diffs of sources that lie in the working folder, the same for every report."""

from __future__ import annotations

import os
from pathlib import Path

from diagnose.answer.screen import with_words
from diagnose.changes.edits.source_edits import script_of, with_diffs
from diagnose.model.diagnosis import Diagnosis


def with_source_diffs(d: Diagnosis) -> Diagnosis:
    """Return the answer with a diff for each change of a source that is here; without sources, the answer as it is."""
    script = script_of(d.source.command, Path.cwd())
    places = (w for f in d.findings for w in f.where)
    if script is None and not any(w.code and w.file and os.path.isfile(w.file) for w in places):
        return d
    made = with_diffs(d, script)
    return made if made is d else with_words(made)
