"""``python -m clgemm``."""

import sys

from clgemm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
