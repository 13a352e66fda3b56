"""One HTTP exchange with a model server, observed as its bytes pass: routes, streams, bodies and what is recorded."""
