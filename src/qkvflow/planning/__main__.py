"""The other side of `planning.process.estimate_run`: a job in JSON to its estimate."""

import json
import sys

from qkvflow.errors import UserError
from qkvflow.planning.process import make_estimate


def main() -> int:
    try:
        print(json.dumps(make_estimate(json.load(sys.stdin))))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
