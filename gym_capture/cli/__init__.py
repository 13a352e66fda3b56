"""The command line: `gym-capture run`, `status`, `verify`, `stop`, `version`."""
