"""A reader for each kind of log: tables, states of trainers, event files, lines of text."""
