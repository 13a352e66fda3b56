"""The command line: `gym-capture run`, `proxy`, `status`, `verify`, `stop`, `sql`, `version`."""
