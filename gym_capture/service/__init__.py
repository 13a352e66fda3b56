"""The owner of one capture directory, free of Ray: group commit, leases, quiescence, merge, and the stream server."""
