"""How a process reaches an owner: where it is looked for, over what, and one core for each run."""
