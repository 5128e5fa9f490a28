"""Whether a loop over a loader is in another one, as the open calls and their source show."""

import linecache
import sys

import pytest

from diagnose.capture.record.loading import comes_again

ONCE = """
for batch in opened():
    pass
"""
EPOCHS = """
for epoch in range(3):
    for batch in opened():
        pass
"""
CALLED = """
def train(num):
    for batch in opened():
        pass

while True:
    train(1)
    break
"""
MAIN = """
for name in ("a", "b"):
    def main():
        for batch in opened():
            pass
main()
"""
NEXT = """
step = 0
while step < 1:
    it = iter(opened())
    step += 1
"""


@pytest.mark.parametrize(
    ("text", "again"), [(ONCE, False), (EPOCHS, True), (CALLED, True), (MAIN, False), (NEXT, True), ("opened()", False)]
)
def test_a_loader_comes_again_in_the_body_of_a_loop(text, again):
    seen = []

    def opened():
        seen.append(comes_again(sys._getframe(1)))
        return [1]

    file = f"<{abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    launcher = {"__name__": "diagnose.launch", "text": text, "file": file, "opened": opened}
    exec(  # the launcher, in whose call no loop counts
        "def launch():\n"
        "    for _ in (1,):\n"
        "        exec(compile(text, file, 'exec'), {'__name__': '__main__', 'opened': opened})\n"
        "launch()",
        launcher,
    )
    assert seen[0] is again


def test_without_the_source_it_is_not_known():
    code = compile("import sys\nf = sys._getframe()", "<nowhere>", "exec")
    names = {"__name__": "__main__"}
    exec(code, names)
    assert comes_again(names["f"]) is None
    assert comes_again(None) is False
