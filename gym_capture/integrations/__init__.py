"""Capture in the worker: HTTP transports that record what passes, and ready-made clients of the providers' SDKs.

Nothing here is imported unless it is asked for; each module needs the extra of its name.
"""
