"""The other side of `planning.process.plan`: a job comes in as JSON, the plan goes out."""

import json
import sys

from qkvflow.errors import UserError
from qkvflow.planning.process import make_plan


def main() -> int:
    try:
        print(json.dumps(make_plan(json.load(sys.stdin))))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
