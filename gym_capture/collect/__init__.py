"""The config-driven collector: input rows → clear → rollouts on Ray workers → quiescence → merge → output JSONL.

From the bottom: `identity` (who a row is), `rows` (reading the input), `jsonl_file` (durable lines), `resume` (what is
finished already), `binding` (whose captures a directory holds), `attempt` (one try and how it ended), `session` and
`worker` (inside the worker processes), `dispatch` (the scheduling, free of Ray), `pool` and `ray_worker` (the workers),
`proxies` and `ray_proxy` (the capturing proxies on the nodes), `ray_run` (Ray and the owner), `collector` (all of it,
for one configuration).
"""
