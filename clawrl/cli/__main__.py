"""`python -m clawrl.cli`."""

from clawrl.cli import main

main()
