"""Builds the site of the documentation with mkdocs, strictly; --serve shows it while one writes."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ["NO_MKDOCS_2_WARNING"] = "true"  # the theme's advertisement, printed at each start
os.environ["DISABLE_MKDOCS_2_WARNING"] = "true"

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Build or serve; return 1 where anything was warned of."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help="show the site, and build it again when a page changes")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--output", type=Path, default=ROOT / "site", help="where the site is built (default: site/)")
    options = parser.parse_args()
    from mkdocs.__main__ import cli

    config = ["--config-file", str(ROOT / "mkdocs.yml"), "--strict"]
    if options.serve:
        arguments = ["serve", *config, "--dev-addr", f"127.0.0.1:{options.port}"]
    else:
        arguments = ["build", *config, "--clean", "--site-dir", str(options.output.resolve())]
    status = cli.main(arguments, prog_name="scripts/docs", standalone_mode=False)
    if not options.serve and not status:
        print(f"The site: {options.output / 'index.html'}")
    return int(status or 0)


if __name__ == "__main__":
    sys.exit(main())
