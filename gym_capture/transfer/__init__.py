"""Captures taken out of a directory in the formats of others, and taken into one."""
