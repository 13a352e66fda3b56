"""What capture costs at its limits: bounded memory, parsers in linear time. `python -m tests.limits` prints figures."""
