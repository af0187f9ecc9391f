"""Make every table, sentence and figure of the pages from the records in this directory.

    python -m results [--check]

With --check nothing is written, and what the records do not say is an error.
"""

import sys
from pathlib import Path

from qkvflow.errors import UserError
from results.pages import Pages


def main() -> int:
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__)
        return 2
    pages = Pages(Path(__file__).parents[1])
    try:
        for path in [] if sys.argv[1:] else pages.rebuild():
            print(f"wrote {path.relative_to(pages.root)}")
        wrong = pages.check()
    except UserError as error:
        wrong = [str(error)]
    for line in wrong:
        print(f"results: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
