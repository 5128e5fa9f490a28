"""trim-padding: what is shown for tokens and for signals."""

import pytest

from diagnose.changes.trim_padding import CHANGE
from diagnose.model.diagnosis import Finding


@pytest.mark.parametrize(("of_signals", "shown"), [(True, "rnn.pad_sequence"), (False, "tokenizer(texts")])
def test_signals_have_no_tokenizer(of_signals, shown):
    facts = {"kind": "padding", "padded": 0.4, "of_signals": of_signals}
    advice = CHANGE.advice(Finding("work-on-nothing", "", 1.0, facts=facts), 2.0, None)
    assert shown in advice.after
    assert bool(advice.before) is not of_signals
    assert advice.title == "Pad each batch to its own longest row (40 % of the positions are padding)"
