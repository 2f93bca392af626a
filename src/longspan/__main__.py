"""`python -m longspan` is the command line."""

import sys

from longspan.cli import main

if __name__ == "__main__":
    sys.exit(main())
