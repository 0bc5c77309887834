"""`python -m fastcore` is the `fastcore` command."""

import sys

from fastcore.cli import main

if __name__ == "__main__":
    sys.exit(main())
