"""What a change is: the one object from which its prescription, its replay, its patch and its source edit are made.

This module and the files of changes import no NumPy and no torch: the process of a trial reads them too. What computes
is imported by the functions that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from diagnose.errors import DiagnoseError
from diagnose.model.numerics import Numerics, identical, other_training, redrawn, reduced, rounding
from diagnose.model.numerics import NumericsPromise as Promise

if TYPE_CHECKING:
    from diagnose.changes.common.call_edits import EditedCall
    from diagnose.model.diagnosis import Facts, Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

__all__ = [
    "REMOVED",
    "UNREADABLE",
    "AddStatement",
    "CannotApply",
    "Change",
    "Edit",
    "EditLoop",
    "HostWork",
    "Install",
    "Log",
    "Numerics",
    "Patch",
    "Promise",
    "Proposal",
    "SetArguments",
    "Undo",
    "identical",
    "other_training",
    "redrawn",
    "reduced",
    "replace_attribute",
    "rounding",
    "undo_all",
]

# What the functions of patches share: a log, and the way in which an attribute is replaced and put back.

Undo: TypeAlias = Callable[[], None]


class CannotApply(DiagnoseError):
    """A patch meets something that it cannot follow: the trial ends there, and the sentence is its result."""


class Log:
    """What a patch did to the script: one line for each kind of thing that it changed."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.refused: list[str] = []
        self._open: list[tuple[Callable[[], bool], str, str]] = []

    def did_unless(self, fell_back: Callable[[], bool], what: str, why: str) -> None:
        """Note a change that may take itself back while the script runs: `settle` checks whether it has."""
        self._open.append((fell_back, what, why))

    def settle(self) -> None:
        """Note what became of the changes that could take themselves back; the script has ended."""
        while self._open:
            fell_back, what, why = self._open.pop(0)
            if fell_back():
                self.left(why)
            else:
                self.did(what)

    def did(self, what: str) -> None:
        """Note a change, once."""
        if what not in self.done:
            self.done.append(what)

    def left(self, why: str) -> None:
        """Note something that could have been changed but was left alone, once."""
        if why not in self.refused:
            self.refused.append(why)


Install: TypeAlias = Callable[[Log, Mapping[str, Any]], Undo]


def replace_attribute(owner: Any, name: str, value: Any) -> Undo:  # a class or a module, any attribute
    """Set an attribute and return what puts the former one back, unless someone else has replaced it since."""
    before = owner.__dict__[name] if name in vars(owner) else None
    setattr(owner, name, value)

    def undo() -> None:
        if vars(owner).get(name) is value:
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    return undo


def undo_all(undo_each: Iterable[Undo]) -> Undo:
    """Return what undoes each of them, those that are added later included."""

    def undo() -> None:
        for one in undo_each:
            one()

    return undo


MIN_PART = 0.3  # of a CPU's step, for a trial of what makes it faster


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """How a change is made in one script; ``least`` and ``most`` are shares of what the finding costs.

    Where ``most`` is 0 nothing is predicted.
    """

    after: str = ""  # code to paste; "": the title has it all
    before: str = ""
    beside: str = ""  # code that the change needs elsewhere, shown behind the edited call
    is_whole: bool = True  # the edit alone makes the change: a diff of it can be applied
    by_hand: bool = False  # the change's own edit does not make it here
    edits: tuple[EditedCall, ...] = ()  # of the script, where the finding has what is edited
    least: float = 0.0
    most: float = 1.0
    title: str = ""  # imperative; "" for the change's own
    needs: str = ""
    arguments: Facts = field(default_factory=dict)  # what the patch and the source edit are given
    numerics: Numerics | None = None  # where they differ from the change's own
    frees_bytes: int = 0  # of device memory at the peak, as far as the recording shows it
    spares_samples: bool = False  # what is freed grows with the batch
    costs_ns: tuple[float, float] | None = None  # of a step, least and most, where the recording shows it


@dataclass(frozen=True, slots=True)
class Patch:
    """How a change is made to an unmodified script from outside.

    ``install`` is called once torch has been imported, with a log and with options such as ``{"workers": 4}``.
    ``environment`` is set for the whole process before torch is imported. What ``compiles`` may take minutes until its
    first step, and is killed when it takes too long, so it never writes to the compiler's cache of the user.
    """

    install: Install | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict)  # None: the variable is taken away
    needs_gpu: bool = False
    compiles: bool = False
    group: str = ""  # of changes to the same thing: only the best of them goes into a combination


REMOVED = object()
"""In the place of an argument's value: the call is made without it."""

UNREADABLE = object()
"""In the place of an argument's value that the source alone does not show, as that of a variable."""


@dataclass(frozen=True, slots=True)
class SetArguments:
    """Arguments that every call of one of these names gets; a name in ``takes`` comes from the prescription.

    The printed diff, `--write-patch` and the patch of a trial all ask ``of_call`` what becomes of a call.
    """

    of: tuple[str, ...]
    given: Mapping[str, object]
    takes: Mapping[str, str] = field(default_factory=dict)  # keyword: name among the prescription's arguments
    optional: tuple[str, ...] = ()  # keywords that are set only where the prescription has them
    without: tuple[str, ...] = ()  # keywords that contradict those: taken out, None where that is not possible
    unless: Callable[[Mapping[str, object]], str] | None = None  # why a call that passes this is left as it is
    parameters: tuple[str, ...] = ()  # of what is called, those that may be passed by position

    def values(self, asked: Mapping[str, object]) -> dict[str, object]:
        """Return the keywords with the values of a prescription, the change's own where it has none."""
        given = {name: asked.get(self.takes.get(name, ""), value) for name, value in self.given.items()}
        return given | {name: asked[name] for name in self.optional if name in asked}

    def of_call(self, passed: Mapping[str, object], asked: Mapping[str, object]) -> tuple[dict[str, object], str]:
        """Return what a call's arguments become, and why it is left as it is ("" where it is not).

        Args:
            passed: what the call passes today, by name; ``UNREADABLE`` where the value is not known.
            asked: the prescription's arguments.
        """
        why = self.unless(passed) if self.unless else ""
        removed = {name: REMOVED for name in self.without if name in passed}
        return ({}, why) if why else ({**removed, **self.values(asked)}, "")


@dataclass(frozen=True, slots=True)
class AddStatement:
    """A line that is put after the last import at the top, unless the script sets the same: one of both would win."""

    code: str
    set_by: tuple[str, ...] = ()  # what a script's own setting of it is written with
    imports: str = ""  # what it then needs


@dataclass(frozen=True, slots=True)
class EditLoop:
    """A function of ``edits.script_edits``, with one value of the prescription's; ``imports`` is what it then needs.

    The values ``device`` (its type) and ``lines`` (of the finding) are there for every change. If an edit is refused
    because it ``gains_nothing``, the rule's first further change that fits is prescribed instead.
    """

    function: str
    takes: str
    default: object
    imports: str = ""
    unless: Mapping[str, tuple[object, str]] = field(default_factory=dict)  # argument: a value, and why not with it
    gains_nothing: str = ""


Edit: TypeAlias = SetArguments | AddStatement | EditLoop
"""How a change is written into a script."""


class HostWork(NamedTuple):
    """What a step without a device computes, for changes whose effect on it no recording shows."""

    products: float  # share of the step in float32 products and convolutions
    convolutions: float
    has_bfloat16: bool  # whether the CPU has instructions for products in it
    is_compiled: bool
    waits_for_cores: bool  # operators run on several threads, and training waits for a core

    @property
    def is_of_products(self) -> bool:
        """Return whether products take a part of the step that is worth a trial."""
        return self.products >= MIN_PART

    @property
    def is_of_convolutions(self) -> bool:
        """Return whether convolutions do."""
        return self.convolutions >= MIN_PART


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change: ``CHANGE`` of a file in ``changes/``, whose name is the id with underscores.

    Which rules prescribe it is a field of their META. ``proposal`` is None where none does: it is asked for by name.
    A function that gives one takes the finding, the step's length in ns and what is known of the program; it returns
    None where the finding needs another change. ``applies`` returns why the change does not fit the program, ""
    where it does.
    """

    id: str
    title: str  # imperative
    numerics: Numerics
    page: str = ""  # where the file has several changes
    patch: Patch | None = None
    edit: Edit | None = None
    proposal: Proposal | Callable[[Finding, float, Program], Proposal | None] | None = None
    edits_expressions: bool = False  # its proposals hold the edits, which a printed diff has
    applies: Callable[[Program, Finding], bool] | None = None
    effect: Callable[[Tables, Finding], Effect | None] | None = None  # a model of its own, in a replay with a device
    is_within_share: bool = False  # without a device it saves no more than the share it takes of the recorded cost
    is_moved: bool = False  # what takes the time is done all the same, elsewhere
    to_try: Callable[[HostWork], bool] | None = None  # where a recording of a CPU cannot judge it, and a trial may
    remedy: str = ""  # dotted name of the module that does it
    modules: tuple[str, ...] = ()  # dotted names of further modules of kernels that its code or its patch takes

    def proposal_for(self, finding: Finding, step_ns: float, program: Program) -> Proposal | None:
        """Return how to make the change where this was found, None where it does not apply."""
        if self.applies is not None and not self.applies(program, finding):
            return None
        return self.proposal(finding, step_ns, program) if callable(self.proposal) else self.proposal
