"""The old name of ``diagnose.kernels.distributed.single_process_parity``, kept for one release."""

import warnings

from diagnose.kernels.distributed.single_process_parity import (
    Comparison,
    compare_with_one_process,
    parameter_distances,
)

__all__ = ["Comparison", "compare_with_one_process", "parameter_distances"]

warnings.warn(
    "diagnose.kernels.distributed.one_process is now diagnose.kernels.distributed.single_process_parity; "
    "the old name goes with the next release.",
    DeprecationWarning,
    stacklevel=2,
)
