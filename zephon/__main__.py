"""`python -m zephon` is the command `zephon`."""

from __future__ import annotations

import sys

from zephon.cli import main

if __name__ == "__main__":
    sys.exit(main())
