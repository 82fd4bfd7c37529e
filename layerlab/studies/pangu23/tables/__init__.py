"""The tables of pangu23, counted or measured again."""
