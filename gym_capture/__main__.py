"""`python -m gym_capture` is `gym-capture`."""

from __future__ import annotations

from gym_capture.cli.main import main

if __name__ == "__main__":
    main()
