"""fast-dropout: the bundled function in the place of torch's, and the line that puts it there."""

import torch
from torch import nn
from torch.nn import functional

from diagnose.changes import patch_of
from diagnose.changes.common.change import Log
from diagnose.trials.source_edits import edited_source


def test_modules_and_functions_draw_other_masks_until_it_is_undone():
    log, torchs, x = Log(), functional.dropout, torch.ones(1 << 15)
    undo = patch_of("fast-dropout").install(log, {})
    try:
        torch.manual_seed(0)
        of_module, of_function = nn.Dropout(0.5)(x), functional.dropout(x, 0.5)
    finally:
        undo()
    assert functional.dropout is torchs
    torch.manual_seed(0)
    assert not torch.equal(of_module, functional.dropout(x, 0.5))
    assert not torch.equal(of_module, of_function)
    assert log.done == ["dropout: masks of 16-bit numbers"]


def test_a_script_s_dropout_is_the_bundled_one_from_its_first_line_on():
    source = "import torch\n\nprint(torch.nn.functional.dropout.__module__)\n"
    after, done, left = edited_source(source, "train.py", ["fast-dropout"], {})
    assert (done, left) == (("fast-dropout",), {})
    head = "import torch\nfrom diagnose.kernels.dropout import use_fast_dropout\n\nuse_fast_dropout()\n\n"
    assert after == head + source.partition("\n\n")[2]
    _, done, left = edited_source(after, "train.py", ["fast-dropout"], {})
    assert (done, left) == ((), {"fast-dropout": "the script has it already"})
