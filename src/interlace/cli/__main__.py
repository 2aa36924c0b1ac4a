"""`python -m interlace.cli`, where the command itself is not on the path."""

from interlace.cli.main import main

main()
