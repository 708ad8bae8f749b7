"""The two ways a run ends early, each with one line a person can act on."""


class InputError(ValueError):
    """Bad input: says which record, what was found, what was expected, and what to do.

    `problems` lists every fault that was found, one line each, so that a file is mended once
    and not once per fault.  Commands print it and exit with status 2.
    """

    def __init__(self, *problems: str):
        super().__init__("\n".join(problems))
        self.problems = problems


class WorkerLost(Exception):
    """A process that did part of the work died; what was finished is kept (exit 1)."""


class Interrupted(Exception):
    """A run was asked to stop and left a folder that the same command continues (exit 75)."""
