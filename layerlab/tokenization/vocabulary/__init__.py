"""A vocabulary that is changed: extended or cut down, verified, and written as a folder."""
