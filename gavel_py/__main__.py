"""`python -m gavel_py` is the command `gavel`."""

from gavel_py.cli import main

main()
