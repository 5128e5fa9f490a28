"""What is read of torch.compile after a script has run."""

import time

import pytest
import torch

from diagnose.capture.record.compiled import CompilationLog, compiled_places, compiled_record


@pytest.fixture(autouse=True)
def fresh():
    """Forget what other tests have compiled, and what this one has."""
    torch._dynamo.reset()
    torch._dynamo.utils.clear_compilation_metrics()
    yield
    torch._dynamo.reset()


def broken(x):
    y = x.relu()
    print(end="")
    return y + 1


def test_a_break_has_its_line_and_torch_s_reason():
    torch.compile(broken, backend="eager")(torch.ones(3))
    (found,) = compiled_record().breaks
    assert (found.file, found.line, found.function) == (__file__, broken.__code__.co_firstlineno + 2, "broken")
    assert "print" in found.reason + found.hint
    assert "\n" not in found.reason
    assert compiled_places(compiled_record())[0] == (__file__, found.line)


def test_a_break_inside_a_called_function_is_named_where_it_is():
    def outer(x):
        return broken(x) * 2

    torch.compile(outer, backend="eager")(torch.ones(3))
    assert {(each.line, each.function) for each in compiled_record().breaks} == {
        (broken.__code__.co_firstlineno + 2, "broken")
    }


@pytest.mark.parametrize(("num", "gave_up"), [(3, False), (7, True)])
def test_versions_are_counted_up_to_the_limit(num, gave_up):
    def scaled(x):
        return x * 2

    compiled = torch.compile(scaled, backend="eager", dynamic=False)
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"  # up to 2.6
    with torch._dynamo.config.patch({limit: 4}):
        for i in range(num):
            compiled(torch.ones(3 + i))
        (found,) = compiled_record().versions
    assert (found.num, found.gave_up, found.function) == (min(num, 4), gave_up, "scaled")
    assert "size mismatch" in found.guards[0]


def test_what_is_compiled_once_leaves_nothing():
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    compiled(torch.ones(3))
    compiled(torch.ones(3))
    record = compiled_record()
    assert (record.breaks, record.versions) == ((), ())
    assert 0 <= record.backend_s < record.took_s


def test_a_script_that_compiles_nothing_imports_nothing(monkeypatch):
    monkeypatch.delitem(__import__("sys").modules, "torch._dynamo.utils")
    assert compiled_record().breaks == ()


def test_a_release_that_keeps_its_notes_elsewhere_has_none(monkeypatch):
    torch.compile(broken, backend="eager")(torch.ones(3))
    monkeypatch.delattr(torch._dynamo.utils, "graph_break_reasons")
    assert compiled_record() == type(compiled_record())()


def test_each_compilation_has_its_time_and_the_guard_that_failed():
    class Counting(torch.nn.Module):
        updates = 0

        def forward(self, x):
            return x * self.updates

    log, model = CompilationLog(), Counting()
    compiled, before = torch.compile(model, backend="aot_eager"), time.time_ns()
    for model.updates in (0, 7, 14):
        compiled(torch.ones(3, requires_grad=True)).sum().backward()
        log.look()
    first = Counting.forward.__code__.co_firstlineno
    forward = [each for each in log.compilations if each.guard or not each.version]
    assert [each.version for each in log.compilations][-2:] == [2, 2], "the backward pass is of the same version"
    assert {(each.file, each.line, each.function) for each in forward} == {(__file__, first, "forward")}
    assert [each.guard for each in log.compilations if each.guard][:1] == ["self.updates == 0"]
    assert log.compilations[-1].at == (__file__, first + 1)
    assert before < forward[0].began_ns < forward[-1].began_ns < time.time_ns()
    assert all(each.took_ns > 0 for each in log.compilations)
    assert (__file__, first + 1) in compiled_places(compiled_record(log))


def test_a_break_in_a_loop_skips_the_function():
    def checked(x):
        for _ in range(3):
            x = x * 2
            if not torch.isfinite(x).all():
                raise ValueError
        return x

    log = CompilationLog()
    torch.compile(checked, backend="eager")(torch.ones(3))
    log.look()
    (found,) = compiled_record(log).breaks
    line = checked.__code__.co_firstlineno + 3
    assert (found.file, found.line, found.function, found.skips) == (__file__, line, "checked", True)
    assert found.reason == "Data-dependent branching"


def test_first_compilations_are_timed_by_stage():
    log = CompilationLog()
    compiled = torch.compile(lambda x: x * 2, backend="aot_eager", dynamic=False)
    compiled(torch.ones(3, requires_grad=True)).sum().backward()
    log.look()
    first = sum(each.took_ns for each in log.compilations)
    compiled(torch.ones(4, requires_grad=True)).sum().backward()
    record = compiled_record(log)
    assert list(record.stages) == ["Dynamo", "AOTAutograd"]
    assert sum(record.stages.values()) == pytest.approx(first / 1e9, abs=0.01)
