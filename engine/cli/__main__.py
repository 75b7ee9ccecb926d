"""`python -m batonlog.engine.cli`."""

from batonlog.engine.cli import main

main()
