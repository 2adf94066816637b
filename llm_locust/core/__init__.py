"""Values shared by all parts of the package: a request's record, batches of records, the manifest.

Here are the exit codes of all commands. ``docs/exit-codes.md`` has the table for users.
"""

#: A gate broke, or nothing shows that it held.
EXIT_GATE = 1
#: Usage, or it could not start: no input, no user class, no worker, no server.
EXIT_USAGE = 2
#: The measurement is invalid.
EXIT_INVALID = 3
#: Records are missing, or the run was cut short.
EXIT_INCOMPLETE = 4
