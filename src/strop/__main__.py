"""The command `strop`, which `python -m strop` is too."""

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line; a Ctrl-C while it is imported, which takes a moment, ends it as one later does."""
    try:
        from strop import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
