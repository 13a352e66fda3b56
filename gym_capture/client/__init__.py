"""The client: claims, commits, clears, quiescence and merges, from any process, thread or event loop."""
