"""``python -m mpsgrad``: the ``mpsgrad`` command."""

import sys

from mpsgrad.cli import main

sys.exit(main())
