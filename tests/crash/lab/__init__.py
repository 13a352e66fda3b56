"""The crash lab: real Ray, several raylets, real load, one fault a run, and a check against what everybody was told.

`python -m tests.crash.lab` (`make crash`). A run is planned from its seed alone (`plan`), made by `run`, and judged by
`checker`, which is pure. What reaches into the owner's process (`in_process`) comes by a set-up hook of the lab's own
Ray jobs and by control files beside the capture directory: the package has no switch for it.
"""
