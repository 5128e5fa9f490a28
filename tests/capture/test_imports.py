"""Calling back after an import that somebody else makes."""

import importlib
import sys

import pytest

from diagnose.capture.steps.hooks import when_imported


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "planted_module.py").write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "planted_module"
    sys.modules.pop("planted_module", None)


def test_called_once_after_the_module_is_whole(module):
    seen = []
    when_imported(module, lambda: seen.append(sys.modules[module].VALUE))
    assert seen == []
    imported = importlib.import_module(module)
    importlib.import_module(module)
    assert seen == [7]
    assert type(imported.__loader__).__module__ == "_frozen_importlib_external"
    assert imported.__spec__.loader is imported.__loader__


def test_forgotten(module):
    seen = []
    forget = when_imported(module, lambda: seen.append(1))
    finders = len(sys.meta_path)
    forget()
    importlib.import_module(module)
    assert seen == []
    assert len(sys.meta_path) == finders - 1


def test_at_once_where_it_is_there_already():
    seen = []
    when_imported("json", lambda: seen.append(1))
    assert seen == [1]
