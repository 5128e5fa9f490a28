import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, field, replace
from dataclasses import dataclass as standard
from typing import NamedTuple as StandardTuple
from typing import get_type_hints

import msgspec
import pytest

from diagnose.model.frozen import NamedTuple, dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A class as the stages hand it on."""

    start: int
    end: int = 9
    names: list[str] = field(default_factory=list, compare=False, repr=False)
    pages: list[str] = field(default_factory=list, init=False)


@standard(frozen=True, slots=True)
class Standard:
    """The same by the decorator of the standard library."""

    start: int
    end: int = 9
    names: list[str] = field(default_factory=list, compare=False, repr=False)
    pages: list[str] = field(default_factory=list, init=False)


@dataclass(frozen=True, kw_only=True)
class Named(Span):
    """With one field more, given by name."""

    unit: str = "ns"


@pytest.mark.parametrize("kind", [Span, Standard])
def test_values_come_by_position_by_name_or_from_defaults(kind):
    made = kind(1, names=["a"])
    assert (made.start, made.end, made.names, made.pages) == (1, 9, ["a"], [])
    assert made.pages is not kind(1).pages
    assert asdict(replace(made, end=4)) == {"start": 1, "end": 4, "names": ["a"], "pages": []}
    assert repr(made).endswith("(start=1, end=9, pages=[])")


@pytest.mark.parametrize("kind", [Span, Standard])
@pytest.mark.parametrize(
    ("args", "given"),
    [((), {}), ((1, 2, [], []), {}), ((1,), {"start": 1}), ((1,), {"stop": 2}), ((1,), {"pages": []})],
)
def test_missing_surplus_and_unknown_values_are_refused(kind, args, given):
    with pytest.raises(TypeError):
        kind(*args, **given)


@pytest.mark.parametrize("kind", [Span, Standard])
def test_fields_stay_as_they_are(kind):
    made = kind(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'end'"):
        made.end = 3
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'end'"):
        del made.end
    assert not hasattr(made, "__dict__")


def test_equality_compares_class_and_compared_fields():
    assert Span(1, names=["a"]) == Span(1, names=["b"])
    assert Span(1) != Span(2)
    assert Span(1) != Standard(1)


@pytest.mark.parametrize("kind", [Span, Standard])
def test_a_hash_needs_fields_that_have_one(kind):
    with pytest.raises(TypeError, match="unhashable"):
        hash(kind(1))


def test_a_subclass_has_the_fields_of_both():
    made = replace(Named(1, unit="ms"), start=2)
    assert (made.start, made.end, made.unit) == (2, 9, "ms")
    with pytest.raises(TypeError):
        Named(1, 2, [], "ms")


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_instances_are_copied_and_pickled(again):
    assert again(Span(1, 2)) == Span(1, 2)


def test_patterns_take_fields_by_position():
    match Span(1, 2):
        case Span(start, end):
            assert (start, end) == (1, 2)


class Lane(NamedTuple):
    """A row as tables hold it."""

    start: int
    names: tuple[str, ...] = ()

    @property
    def num(self) -> int:
        """Return how many names it has."""
        return len(self.names)

    def moved(self, by: int) -> "Lane":
        return self._replace(start=self.start + by)


class StandardLane(StandardTuple):
    """A row as tables hold it."""

    start: int
    names: tuple[str, ...] = ()

    @property
    def num(self) -> int:
        """Return how many names it has."""
        return len(self.names)

    def moved(self, by: int) -> "StandardLane":
        return self._replace(start=self.start + by)


@pytest.mark.parametrize("kind", [Lane, StandardLane])
def test_a_named_tuple_is_what_the_standard_one_is(kind):
    made = kind(1, names=("a", "b"))
    assert made == (1, ("a", "b")) == pickle.loads(pickle.dumps(made))
    assert (made.num, made.moved(2).start, kind(3).names) == (2, 3, ())
    assert repr(made) == f"{kind.__name__}(start=1, names=('a', 'b'))"
    assert (kind.__doc__, kind.__qualname__, kind.__module__) == ("A row as tables hold it.", kind.__name__, __name__)
    assert (kind._fields, kind._field_defaults) == (("start", "names"), {"names": ()})
    assert get_type_hints(kind) == {"start": int, "names": tuple[str, ...]}
    assert msgspec.json.decode(b'[1, ["a"]]', type=kind) == (1, ("a",))
    with pytest.raises(TypeError):
        kind()
    with pytest.raises(AttributeError):
        made.start = 2
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'["x"]', type=kind)
