"""`python -m qkvflow` is the command `qkvflow`."""

import sys

from qkvflow.cli import main

sys.exit(main())
