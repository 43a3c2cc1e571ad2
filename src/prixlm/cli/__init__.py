"""The command line: one file per group of commands, all listed in `app.COMMANDS`."""
