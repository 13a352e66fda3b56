"""Benchmarks: gym_capture and a plain file store, side by side in one run (`make bench`)."""
