"""Four further sets of wrong lines of the optimization modules, each written down before any of it was planted.

One was taken out again, since nothing differs with it: that the prefetcher lets go of the loader's iterator, which its
frame, the only one that holds it, does by ending.
"""

from __future__ import annotations

__all__ = ["FIFTH", "FOURTH", "SECOND", "THIRD"]

_RANKS = "distributed/test_on_ranks.py"
_SECOND: dict[str, tuple[tuple[str, str], ...]] = {
    "test_web_shards.py": (
        ("            self.epoch, self.done, self.skip = epoch, 0, 0", "            self.epoch, self.done = epoch, 0"),
        ("left = recipe.epoch_batches // workers + (worker < recipe.epoch_batches % workers)",
         "left = recipe.epoch_batches // workers"),
    ),
    "test_concurrent_samples.py": (("raise errors[min(errors)]", "raise next(iter(errors.values()))"),),
    "test_shared_cache.py": (("access=mmap.ACCESS_COPY)", "access=mmap.ACCESS_WRITE)"),),
    "test_length_batches.py": (
        ("manual_seed(self.seed + epoch)\n            num =", "manual_seed(self.seed)\n            num ="),
    ),
    "test_loader_*.py": (
        ("\"generator\": loader.generator if entries is None else None,", "\"generator\": None,"),
    ),
    "test_sharding.py": (
        ("return {**self.__dict__, \"rank\": rank, \"num_ranks\": num_ranks}", "return self.__dict__"),
    ),
    "test_saving.py": (("made = copy.copy(value)  # of the same class", "made = {}  # of the same class"),),
    "test_fast_save.py": (("text += b\" \" * (-len(text) % 8)", "text += b\"\""),),
    "test_fast_load.py": (
        ("        for name, tensor in loaded.items():\n            _set(module, name, tensor)\n", ""),
        ("mmap=mapped and is_zip)", "mmap=is_zip)"),
    ),
    "test_offload.py": (
        ("range(packed.number - 1, packed.number - 1 - self.ahead, -1)",
         "range(packed.number + 1, packed.number + 1 + self.ahead)"),
    ),
    "test_memory_snapshot.py": (
        ("if block[\"state\"].startswith(\"active\")", "if block[\"state\"] == \"active_allocated\""),
    ),
    "test_allocator.py": (
        ("seen.reserved_peak >= MIN_PRESSED_SHARE * seen.capacity",
         "seen.allocated_peak >= MIN_PRESSED_SHARE * seen.capacity"),
    ),
    "test_checkpointing.py": (
        ("sum(counter.calls[name]), max(counter.calls[name])", "sum(counter.calls[name]), sum(counter.calls[name])"),
        ("            if before is not None:\n                block.forward = before\n", ""),
    ),
    "test_optimizers.py": (("if may_fuse and kinds and all(", "if may_fuse and kinds and any("),),
    "ops/test_adamw.py": (
        ("    torch._foreach_div_(roots, (1 - beta2**step) ** 0.5)\n    torch._foreach_add_(roots, eps)\n",
         "    torch._foreach_add_(roots, eps)\n    torch._foreach_div_(roots, (1 - beta2**step) ** 0.5)\n"),
    ),
    "test_accumulation.py": (
        ("        if stepped:\n            self._stepped += 1\n", "        if True:\n            self._stepped += 1\n"),
    ),
    "test_precision.py": (
        ("            self._last_scale = float(state[\"scaler\"][\"scale\"])\n", ""),
        ("if not (math.isfinite(loss) and math.isfinite(reference)):",
         "if not (math.isfinite(loss) or math.isfinite(reference)):"),
    ),
    _RANKS: (
        ("_pieces([*self.ddp.module.parameters(), *buffers])", "_pieces([*self.ddp.module.parameters()])"),
        ("self.step += bucket.is_last()", "self.step += 1"),
        ("plan = [(now, self._counts_of(now)), *later]", "plan = [(now, self._counts_of(now))]"),
    ),
    "distributed/test_bucket_tuning.py": (
        ("return DEFAULT_MB if DEFAULT_MB in near else best.bucket_cap_mb", "return best.bucket_cap_mb"),
    ),
    "distributed/test_memory_estimate.py": (
        ("math.ceil(p.shape[dim] / num_ranks)", "p.shape[dim] // num_ranks"),
    ),
    "ops/test_*.py": (
        ("    position = row // num_inner\n", "    position = row % num_positions\n"),
        ("            and not torch._C._autograd._profiler_enabled()\n", ""),
        ("return loss.sum() / (target != ignored).sum()", "return loss.sum() / target.numel()"),
    ),
    "test_layout.py": (
        ("        if handle is not None:\n            handle.remove()\n\n    left = tuple(", "\n    left = tuple("),
    ),
}  # fmt: skip
_THIRD: dict[str, tuple[tuple[str, str], ...]] = {
    "test_shared_cache.py": (("    if os.getpid() == owner:  #", "    if True:  #"),),
    "test_web_shards.py": (
        ("tuple(shards[number % len(shards) :: readers])", "tuple(shards[number % len(shards) :: 1])"),
    ),
    "test_saving.py": (
        ("while len(self._pending) >= self.max_pending:", "while len(self._pending) > self.max_pending:"),
    ),
    "test_planner.py": (
        ("needed = total_bytes - target_bytes + live", "needed = total_bytes - target_bytes"),
    ),
    "test_precision.py": (
        ("            else:\n                self.skipped_in_a_row = 0\n", ""),
    ),
    _RANKS: (
        ("else 0.0, float(self.sampler.drawn)]\n        self._times, self._samples = [], 0",
         "else 0.0, float(self.sampler.drawn)]\n        self._times = []"),
        ("if any(not step.get(name) for step in self.steps)]", "if all(not step.get(name) for step in self.steps)]"),
    ),
    "ops/test_patching.py": (("for mode in (True, False)):", "for mode in (False,)):"),),
    "test_gc_schedule.py": (("        if was_enabled:\n            gc.enable()", "        gc.enable()"),),
    "ops/test_emulated.py": (
        ("aligned(first) && aligned(second) && aligned(result)", "aligned(first) && aligned(result)"),
    ),
}  # fmt: skip

_FOURTH: dict[str, tuple[tuple[str, str], ...]] = {
    "test_web_shards.py": (("                if epoch == self.epoch:  #", "                if True:  #"),),
    "test_background_loader.py": (
        ("            yield next(source)  # the sampler draws its seed here\n            before = fingerprint()\n",
         "            before = fingerprint()\n            yield next(source)\n"),
    ),
    "test_shared_cache.py": (("        os.utime(descriptor)\n", ""),),
    "test_sharding.py": (
        ("equal = self.equal if self.equal is not None else num_ranks > 1", "equal = bool(self.equal)"),
    ),
    "test_length_batches.py": (
        ("                steps = [steps[i] for i in torch.randperm(len(steps), generator=generator).tolist()]",
         "                pass"),
    ),
    "test_shard_writing.py": (
        ("with atomic_write(path) as file, tarfile", 'with Path(path).open("wb") as file, tarfile'),
    ),
    "test_on_demand.py": (("        self._waiting.discard(path)\n", ""),),
    "test_fast_load.py": (("    _tie(model, tied, set())\n", ""),),
    "test_checkpointing.py": ((".items())[::every]", ".items())[every - 1 :: every]"),),
    "test_allocator.py": (("    settings |= parse_settings(text)", "    settings = parse_settings(text) | settings"),),
    "test_memory_snapshot.py": (
        ("    finally:\n        if recording:\n            torch.cuda.memory._record_memory_history(enabled=None)",
         "    finally:\n        pass"),
    ),
    "test_nested_blocks.py": (
        ("        finally:\n            self._is_off = before", "        finally:\n            self._is_off = False"),
    ),
    "test_state.py": (
        ("[random_state(generators), *map(_saved, objects)]", "[random_state(), *map(_saved, objects)]"),
    ),
    "test_eight_bit.py": (("2 * (parameter.numel() + scales)", "2 * parameter.numel()"),),
    "test_accumulation.py": (("                set_sync(True)\n", "                pass\n"),),
    "test_indexing.py": (("    places = torch.where(places < 0, places + len(source), places)\n", ""),),
    _RANKS: (
        ("            self.factors[m.name].copy_(_usable(mean))\n", ""),
        ("        Join.notify_join_context(self)\n", ""),
        ("                stage.train(mode)", "                stage.train()"),
    ),
    "ops/test_rows.py": (
        ("            h = tl.where(at < width, h - mean, 0.0)\n            square",
         "            h = h - mean\n            square"),
    ),
}  # fmt: skip

_FIFTH: dict[str, tuple[tuple[str, str], ...]] = {
    "test_loader_*.py": (
        ("wanted = math.ceil(costs.load / costs.step) + 1 if", "wanted = math.ceil(costs.load / costs.step) if"),
    ),
    "test_shard_writing.py": (("        total += size\n", "        total = size\n"),),
    "test_fast_save.py": (
        ("tensor.storage_offset(), tensor.shape, tensor.stride(),\n            tensor.dtype",
         "tensor.storage_offset(), tensor.shape,\n            tensor.dtype"),
    ),
    "test_offload.py": (("        self.num_bytes = 0\n        for parameter", "        for parameter"),),
    "test_accumulation.py": (
        ("        self.optimizer.zero_grad(set_to_none=True)\n        self._num, self._total = 0, 0.0",
         "        self.optimizer.zero_grad(set_to_none=True)\n        self._num = 0"),
    ),
    "test_optimizers.py": (("if name in accepted and name not in arguments}", "if name in accepted}"),),
    _RANKS: (("t.step_ms < (1 - MIN_GAIN_SHARE) * plain.step_ms]", "t.step_ms < plain.step_ms]"),),
    "ops/test_[cr]o*.py": (("                dbias += grad\n", "                dbias += weighted\n"),),
    "test_compiling.py": (
        ("{tuple(tensor.shape for tensor in tensors(sample))", "{tuple(tensor.dim() for tensor in tensors(sample))"),
    ),
}  # fmt: skip


def _cases(lines: dict[str, tuple[tuple[str, str], ...]]) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    return tuple((old, new, (f"tests/kernels/{tests}",)) for tests, its in lines.items() for old, new in its)


SECOND, THIRD, FOURTH, FIFTH = map(_cases, (_SECOND, _THIRD, _FOURTH, _FIFTH))
