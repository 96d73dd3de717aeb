"""`python -m art_core` is the command `art`."""

from __future__ import annotations

from art_core.cli import main

if __name__ == "__main__":
    main()
