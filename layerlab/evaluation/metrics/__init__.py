"""Scores of answers that lm-eval does not have: pure functions on texts, lists and sets.

One idea in a file. All of them lie in [0, 1] and give 1 to equal answers, save the two that say
otherwise: Matthews correlation, which may be negative, and the score of a prison term.
"""
