"""What tests of this package, and of what is built on it, need: faulty files, a manual clock, conformance suites."""
