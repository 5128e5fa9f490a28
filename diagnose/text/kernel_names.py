"""Short kernel names: the template's own name and the functor that it is instantiated with."""

from __future__ import annotations

import re

from diagnose.text.plain_text import middle

_ANONYMOUS = r"\(anonymous namespace\)::|\(anonymous\)::|\{anonymous\}::|<unnamed>::"
_QUALIFIER = r"\b[A-Za-z_]\w*::(?=\w)"
_CPP = r"<|[\w>]\("
_FUNCTOR = r"\b(\w*[fF]unctor\w*|\w+_(?:kernel_cuda|cuda_kernel|cuda)|\w+Ops?|cutlass\w*_\w+|\w+gemm\w*)\b"
_WRAPPERS = ("gpu_kernel_impl", "ReduceOp", "AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor")
_LAUNCHERS = frozenset({"device_kernel", "Kernel", "Kernel2", "kernel"})  # of any type: its argument is what runs
_ARGUMENT = r"<\s*(?:\w+::)*?((?:\w+::)?\w+)(?!\w|::)"
_PARAMETERS = r"(?s)(?<=[\w>])\(.*$"


def shorten(name: str, limit: int = 60) -> str:
    """Return a name of at most ``limit`` characters; a name that is no C++ signature is only cut in its middle.

    ``void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, …>(int, …)`` becomes
    ``vectorized_elementwise_kernel<CUDAFunctor_add>``. Several launches may share a short name.
    """
    # Whether a name is a C++ signature: no operator (aten::mm), annotation (a#b (c)), copy or plain name.
    is_signature = (
        bool(re.search(_CPP, name)) and name.endswith((")", ">", "]")) and not name.startswith(("Memcpy ", "Memset "))
    )
    if not is_signature:
        return middle(name, limit)
    plain = re.sub(_ANONYMOUS, "", name).removeprefix("void ").strip()
    opening = plain.find("<")
    head = re.sub(_PARAMETERS, "", plain if opening < 0 else plain[:opening])
    base = head.rpartition("::")[2].split(" ")[-1] or head
    found = None if opening < 0 else _functor(plain[opening:], base)
    if found is None and base in _LAUNCHERS and (argument := re.match(_ARGUMENT, plain[max(opening, 0) :])):
        found = argument[1]
    return middle(f"{base}<{found}>" if found else base or name, limit)


def _functor(arguments: str, base: str) -> str | None:
    """Return the identifier among template arguments that names what is computed; a wrapper only if alone."""
    found = [m[1] for m in re.finditer(_FUNCTOR, re.sub(_QUALIFIER, "", arguments)) if m[1] != base]
    return next((word for word in found if not word.startswith(_WRAPPERS)), found[0] if found else None)
