"""Durable capture of every model call of an RL rollout collection on Ray."""
