"""The lemmas and theorems of pangu23."""
