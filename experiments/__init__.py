"""The `rekey` command, the experiments, and the demo.  The only package that wires the others together."""
