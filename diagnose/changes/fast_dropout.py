"""Make dropout masks on the CPU from 16-bit numbers.

What it does
    `use_fast_dropout()` at the top of the script draws four mask elements at once. It covers `nn.Dropout`, `F.dropout`
    and attention.

What to watch
    Files that ran `from torch.nn.functional import dropout` before keep torch's function. So does dropout within
    `nn.LSTM`.
"""

from __future__ import annotations

from diagnose.changes.common.change import AddStatement, Change, Patch, Proposal, redrawn
from diagnose.changes.patches import precision

IMPORT = "from diagnose.kernels.dropout import use_fast_dropout"
STATEMENT = "use_fast_dropout()"

CHANGE = Change(
    id="fast-dropout",
    title="Use the faster dropout: one draw makes four mask values",
    numerics=redrawn("other elements are dropped, as many and as independent of each other"),
    proposal=Proposal(
        before="h = F.dropout(h, 0.5, self.training)   # or nn.Dropout(0.5)",
        after=f"{IMPORT}\n\n{STATEMENT}   # at the top of the script: nn.Dropout and attention draw by it",
        least=0.7,
        most=1.1,  # memory that is written once is not read again
    ),
    patch=Patch(precision.fast_dropout),
    edit=AddStatement(STATEMENT, ("fast_dropout",), imports=IMPORT),
    remedy="diagnose.kernels.dropout",
)
