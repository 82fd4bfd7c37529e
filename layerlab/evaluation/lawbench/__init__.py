"""LawBench: twenty tasks of Chinese law, scored as its own evaluation code scores them.

What that code does and its description says otherwise is followed, and noted beside the task.
"""
