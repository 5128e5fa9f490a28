"""Results as bytes: each record that a diagnosis can hold is known to them."""

import importlib
import pkgutil
import re
import sys
from dataclasses import is_dataclass

from diagnose import model
from diagnose.model import serialization
from diagnose.model.charts import MemoryByLine
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.serialization import pack, unpack


def records():
    """Return the records of the model, by name."""
    modules = [importlib.import_module(f"diagnose.model.{each.name}") for each in pkgutil.iter_modules(model.__path__)]
    every = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    return {kind.__name__: kind for kind in every if is_dataclass(kind) or hasattr(kind, "_fields")}


def held_by(kind, every):
    """Return the records that its fields can hold, and theirs, by name."""
    found, pending = {}, [kind]
    while pending:
        one = pending.pop()
        near = every | vars(sys.modules[one.__module__])  # a name may stand for two records
        words = {word for text in one.__annotations__.values() for word in re.findall(r"\w+", str(text))}
        new = {word: near[word] for word in (words & every.keys()) - found.keys()}
        found |= new
        pending += new.values()
    return found


def test_every_record_that_a_diagnosis_can_hold_goes_through():
    held, known = held_by(Diagnosis, records()), serialization._of_model()
    assert {"MemoryByLine", "KeptByLine", "FlowNode", "Finding", "Prescription"} <= held.keys()
    assert {name: known.get(name) for name in held} == held


def test_a_record_goes_through_whole():
    memory = MemoryByLine("cpu", 10, 8, (), ())
    assert unpack(pack(memory)) == memory
