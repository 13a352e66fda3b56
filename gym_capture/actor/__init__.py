"""The Ray shell: a named, detached, restartable actor around the owner, and what starts it."""
