"""Rollout functions that run as they are: a scripted agent, without a network."""
