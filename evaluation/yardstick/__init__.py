"""The open yardstick: cases with a truth, tools that answer, and rules that compare the two.

- ``case``: what a case is. ``sets``: all cases, from the manifest and the files that hold their truth (``readers``).
- ``answer``: what every tool's answer is turned into. ``tools``: one file per tool.
- ``scoring``: what rules can judge. ``sheet``: the rest, for a reader who does not know which tool answered.
- ``page``: the result as Markdown.
"""
