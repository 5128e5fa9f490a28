"""The wrong lines of the optimization modules: file of tests, the text, what it becomes."""

from __future__ import annotations

__all__ = ["KERNELS"]

_RANKS = "distributed/test_on_ranks.py"
_LINES: dict[str, tuple[tuple[str, str], ...]] = {
    "test_accumulation.py": (
        ("is_last = self._num + 1 == self.every or self._ends is True", "is_last = self._num == self.every"),
        ("self._total = self._total + weight", "self._total = weight"),
        ("self._unit = max(float(first), 1.0)", "self._unit = 1.0 + float(first)"),
    ),
    "test_prefetch.py": (
        ("while len(copied) <= self.ahead and", "while len(copied) < self.ahead and"),
        ("self.pool.shutdown(wait=True, cancel_futures=True)", "self.pool.shutdown(wait=False)"),
    ),
    "ordering/test_modules.py": (
        ("        stream.wait_event(done)\n        for tensor in", "        for tensor in"),
        ("        for event in self.events:\n            event.synchronize()\n", ""),
        ("                tensor.record_stream(stream)\n\n\nclass _Pinned", "                pass\n\n\nclass _Pinned"),
    ),
    "test_deferred_metrics.py": (
        ("while len(self._pending) > 1 and (", "while len(self._pending) > 0 and ("),
        ("return {name: found[name] for name in self.names}", "return found"),
    ),
    "test_shared_cache.py": (
        ("self._named.setdefault(prefix, function) != function:", "self._named.setdefault(prefix, function) is None:"),
        ("totals[\"held_bytes\"] + size > self.num_bytes", "totals[\"held_bytes\"] > self.num_bytes"),
        ("for _, size, path in sorted(files):", "for _, size, path in sorted(files, reverse=True):"),
    ),
    "test_sharding.py": (
        ("return rank * workers + worker, num_ranks * workers", "return rank + worker, num_ranks * workers"),
        ("number % shares == shares - 1):", "number % shares == mine):"),
    ),
    "test_offload.py": (
        ("tensor.stride(), tensor.dtype, tensor._version)", "tensor.stride(), tensor.dtype)"),
        ("if held.get(name) is host:", "if True:"),
    ),
    "test_step_graph.py": (
        ("if self.calls <= self.warm_up:", "if self.calls < self.warm_up:"),
        ("mapped(self._outputs, lambda output: output.clone())", "self._outputs"),
    ),
    "test_precision.py": (
        ("            self.scaler.unscale_(optimizer)\n", ""),
        ("torch._foreach_mul_(gradients, scale_by)", "torch._foreach_div_(gradients, scale_by)"),
        ("            if scale < before:\n", "            if scale > before:\n"),
    ),
    "test_gc_schedule.py": (
        ("if schedule.has_frozen and not was_frozen:", "if schedule.has_frozen:"),
        ("(self.steps - self.warm_up) % self.every and", "self.steps % self.every and"),
    ),
    "test_indexing.py": (
        ("wide = WIDER.get(values.dtype, values.dtype)", "wide = values.dtype"),
        ("torch.where(mask & (place < capacity), place, capacity)", "torch.where(mask, place, capacity)"),
    ),
    "test_saving.py": (
        ("self._storages[key] = self._copy(storage)", "self._storages[key] = storage"),
        ("torch.serialization.save(obj, file)", "torch.serialization.save(obj, path)"),
    ),
    "test_batch_size.py": (
        ("middle = (fits + too_large) // 2 // multiple * multiple", "middle = (fits + too_large) // 2"),
        ("if size / took >= MIN_RATE_SHARE * most)", "if size / took >= most)"),
    ),
    "test_tiny.py": (
        ("gone = run[num_blocks:]", "gone = run[:-num_blocks]"),
        ("wanted |= cut_lists(config, deepest, num_layers)", "pass"),
    ),
    "distributed/test_shares.py": (
        ("fixed |= below if lacking >= exceeding else above", "fixed |= below | above"),
    ),
    "distributed/test_topology.py": (
        ("limits = [NVLINK] if NVLINK in others else", "limits = [] if NVLINK in others else"),
    ),
    "distributed/test_comm_hooks.py": (
        ("magnitude[-1:] /= block - short", "magnitude[-1:] /= block"),
        ("places = torch.topk(values.abs(), num, sorted=False)", "places = torch.topk(values, num, sorted=False)"),
    ),
    _RANKS: (
        ("self.residuals.keep(bucket, names, left)\n        self.count(bucket, packed)", "self.count(bucket, packed)"),
        ("if apart > 0 and apart % self.every == 0:", "if apart >= 0 and apart % self.every == 0:"),
        ("return mine * self._group.size() / self._summed(mine)", "return mine / self._summed(mine)"),
        ("                    buffer.copy_(before)\n", "                    pass\n"),
        ("        left.nan_to_num_(0.0, 0.0, 0.0)\n", ""),
    ),
    "test_sampler_positions.py": (
        ("if self._named is None or self._named[0] != epoch:", "if self._named is None:"),
    ),
    "ops/test_custom_op.py": (
        ("*, dtypes: Sequence[torch.dtype] = FLOATING,", "*, dtypes: Sequence[torch.dtype] = (torch.int64,),"),
    ),
    "ops/test_rows.py": (
        ("rstd = 1.0 / tl.sqrt(square / width + EPS)", "rstd = 1.0 / tl.sqrt(square / BLOCK + EPS)"),
        ("    if GRAD_H:\n        dx +=", "    if not GRAD_H:\n        dx +="),
    ),
    "ops/test_patching.py": (("ROUNDINGS = 8  #", "ROUNDINGS = 10**9  #"),),
}  # fmt: skip
KERNELS = tuple((old, new, (f"tests/kernels/{tests}",)) for tests, lines in _LINES.items() for old, new in lines)
