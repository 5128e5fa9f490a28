"""The old name of ``diagnose.kernels.distributed.single_process_parity``, deprecated (docs/json.md)."""

import warnings

from diagnose.kernels.distributed.single_process_parity import (
    Comparison,
    compare_with_one_process,
    parameter_distances,
)

__all__ = ["Comparison", "compare_with_one_process", "parameter_distances"]

warnings.warn(
    "diagnose.kernels.distributed.one_process is now diagnose.kernels.distributed.single_process_parity; "
    "the old name goes after two minor releases and half a year.",
    DeprecationWarning,
    stacklevel=2,
)
