"""What ``--pick`` draws of the tests: the same for the same seed, and from as many files as can be."""

import pytest

FILES = ["large.py"] * 90 + ["a.py", "b.py", "b.py"]


@pytest.fixture
def drawn(request):
    """Return the function of the conftest at the root."""
    return next(
        plugin.drawn_places for plugin in request.config.pluginmanager.get_plugins() if hasattr(plugin, "drawn_places")
    )


def test_a_large_file_does_not_crowd_out_the_others(drawn):
    for seed in "abcdefgh":
        assert {FILES[place] for place in drawn(FILES, 3, seed)} == {"large.py", "a.py", "b.py"}
        assert [FILES[place] for place in drawn(FILES, 6, seed)] == ["large.py"] * 3 + ["a.py", "b.py", "b.py"]


def test_the_seed_alone_decides(drawn):
    assert drawn(FILES, 5, "a") == drawn(FILES, 5, "a")
    assert len({tuple(drawn(FILES, 3, seed)) for seed in "abcdefgh"}) > 4
    assert drawn(FILES, len(FILES), "a") == list(range(len(FILES)))
