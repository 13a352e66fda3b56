"""Capture directories seen from outside: opened once a process, their owner found or found absent, cleared at rest."""
