"""What is read of torch.compile after a script has run."""

import pytest
import torch

from diagnose.capture.record.compiled import compiled_places, compiled_record


@pytest.fixture(autouse=True)
def fresh():
    """Forget what other tests have compiled, and what this one has."""
    torch._dynamo.reset()
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
